"""Files that are written whole or not at all, and somebody's Python files."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def write_whole(file: str | Path, write: Callable[[Path], Any]) -> None:
    """Let `write` write beside the file and move that there, so that a half-written one never has its name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/note.txt", lambda beside: beside.write_text("whole"))
    ...     Path(folder, "note.txt").read_text()
    'whole'
    """
    file = Path(file)
    beside = file.with_name(f".{file.name}.part")
    write(beside)
    os.replace(beside, file)


def write_text(file: str | Path, text: str) -> None:
    """A text in UTF-8, whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/note.txt", "λ")
    ...     Path(folder, "note.txt").read_text(encoding="utf-8")
    'λ'
    """
    write_whole(file, lambda beside: beside.write_text(text, encoding="utf-8"))


def imported(file: Path, name: str) -> ModuleType:
    """A Python file as a module; what lies beside it can be imported, then and by its functions later.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "one.py").write_text("answer = 42")
    ...     imported(Path(folder, "one.py"), "refgeo_doctest").answer
    42
    """
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file}: not a Python file")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module
