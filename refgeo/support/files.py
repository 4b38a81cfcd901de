"""Files that are written whole or not at all, and somebody's Python files."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def write_whole(file: str | Path, content: bytes) -> None:
    """Write beside the file and move that there, so that a half-written one never has its name.

    A file that is there keeps its rights, a link stays a link to it, and what is no file, such as ``/dev/stdout`` or a
    named pipe, is written into.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/note.txt", b"whole")
    ...     Path(folder, "note.txt").read_text()
    'whole'
    """
    file = Path(file)
    if is_stream(file):
        sys.stdout.flush()
        with file.open("ab") as into:
            into.write(content)
        return
    with _beside(file) as (target, beside):
        rights = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_mask()
        beside.write_bytes(content)
        beside.chmod(rights)
        beside.replace(target)


def refuse_unwritable(file: str | Path) -> None:
    """Raise OSError before the work if `write_whole` could not write after it.

    Examples
    --------
    >>> refuse_unwritable("nowhere/note.txt")
    Traceback (most recent call last):
    ...
    FileNotFoundError: [Errno 2] nowhere/note.txt: No such file or directory
    """
    if not is_stream(Path(file)):
        with _beside(Path(file)):
            pass


@contextlib.contextmanager
def _beside(file: Path) -> Iterator[tuple[Path, Path]]:
    """Return the file behind links, and one beside it, which is nobody else's and which others may not read."""
    if file.is_dir():
        raise IsADirectoryError(f"{file}: expected a file, got a folder")
    target = Path(os.path.realpath(file))
    try:
        descriptor, beside = tempfile.mkstemp(prefix=".", dir=target.parent)
        os.close(descriptor)
    except OSError as error:
        raise type(error)(error.errno, f"{file}: {error.strerror}") from error
    try:
        if len(os.fsencode(target.name)) > os.pathconf(target.parent, "PC_NAME_MAX"):
            raise OSError(errno.ENAMETOOLONG, f"{file}: {os.strerror(errno.ENAMETOOLONG)}")
        yield target, Path(beside)
    finally:
        with contextlib.suppress(OSError):
            os.remove(beside)


def _mask() -> int:
    """Return the mask of the rights of new files, which Python reveals only to those who set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def is_stream(file: Path) -> bool:
    """Return whether it is no file of its own: a device, a pipe, or what a standard stream writes to, as
    ``/dev/stdout``.

    Examples
    --------
    >>> is_stream(Path(os.devnull)), is_stream(Path(__file__))
    (True, False)
    """
    if not file.is_file():
        return file.exists() and not file.is_dir()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return True
    return False


def strict_json(content: Any) -> str:
    r"""Return JSON that every reader accepts: NaN and infinity, which JSON does not have, become null.

    Examples
    --------
    >>> strict_json(float("inf")), strict_json([1.0, float("nan")]).split()
    ('null\n', ['[', '1.0,', 'null', ']'])
    """

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: convert(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [convert(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(convert(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(file: str | Path, text: str) -> None:
    r"""Write a text in UTF-8, whole or not at all; names of files that are no UTF-8 keep their bytes as ``\udc..``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/note.txt", "λ")
    ...     Path(folder, "note.txt").read_text(encoding="utf-8")
    'λ'
    """
    write_whole(file, text.encode(errors="backslashreplace"))


def import_file(file: Path, alias: str) -> ModuleType:
    """Return a Python file as a module; what lies beside it can be imported, then and by its functions later.

    It has its own name if that leads to it, so that its functions go to other processes, and else the alias.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "one.py").write_text("answer = 42")
    ...     import_file(Path(folder, "one.py"), "refgeo_doctest").answer
    42
    """
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    known = getattr(sys.modules.get(file.stem), "__file__", None)
    own = origin(file.stem) == file.resolve() and (file.stem not in sys.modules or same_file(known, file))
    name = file.stem if own else alias
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # half of a module is none
        raise
    return module


def origin(name: str) -> Path | None:
    """Return the file that a name leads to in another process with this one's path, whatever is imported here.

    Examples
    --------
    >>> origin("json.decoder").name, origin("no_such_module")
    ('decoder.py', None)
    """
    path, spec = None, None
    try:
        for end in range(1, name.count(".") + 2):
            whole = ".".join(name.split(".")[:end])
            finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
            spec = next((candidate for finder in finders if (candidate := finder.find_spec(whole, path, None))), None)
            if spec is None:
                return None
            path = spec.submodule_search_locations
    except (ImportError, ValueError, AttributeError, OSError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def same_file(a: str | Path | None, b: str | Path | None) -> bool:
    """Return whether two names are of one file.

    Examples
    --------
    >>> same_file(__file__, f"./{os.path.relpath(__file__)}"), same_file(None, __file__)
    (True, False)
    """
    return a is not None and b is not None and Path(a).resolve() == Path(b).resolve()


def place_of(spec: str) -> tuple[str, str]:
    """Return a module or file, and the object in it, from "module", "module:object", "file.py" or "file.py:object".

    Examples
    --------
    >>> place_of("package.module:Class.member"), place_of("module")
    (('package.module', 'Class.member'), ('module', ''))
    """
    cuts = [len(spec), *(i for i in range(len(spec) - 1, 0, -1) if spec[i] == ":")]
    for cut in cuts:  # a folder may have a colon in its name
        if spec[:cut].endswith(".py") and Path(spec[:cut]).is_file():
            return spec[:cut], spec[cut + 1 :]
    drive = re.match(r"[A-Za-z]:[\\/]", spec)
    place, _, attribute = spec[drive.end() if drive else 0 :].partition(":")
    return (drive[0] if drive else "") + place, attribute
