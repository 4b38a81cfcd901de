"""The judged side: somebody's functions, called as asked, with what they did besides returning.

This runs in a process of its own (`serve`), so that whatever a backend does to it, to NumPy or to refgeo, happens to
the judged and not to the judge. An object that cannot be imported again is served in the judge's process, by the same
`Host`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import math
import os
import random
import re
import site
import sys
import sysconfig
import tempfile
import threading
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo import files
from refgeo.conformance.routine import Problem, plain_routine
from refgeo.conformance.uncovered import Coverage

Arrays = list[npt.NDArray[Any]]

_FORTRAN: dict[str, Callable[[int], bool]] = {
    "Fortran order": lambda i: True,
    "vectors in Fortran order": lambda i: i >= 2,
    "last vectors in Fortran order": lambda i: i >= 4,
    "H parts in Fortran order": lambda i: i % 2 == 1,
}
"""Which arrays are then, counted from G."""
LAYOUTS = (
    "plain", *_FORTRAN, "a strided view", "a reversed view", "read-only", "a view of a larger array",
    "one block for all",
)  # fmt: skip
"""How the arrays of a call lie in memory; with the last one every block of a batch is the first, of stride 0."""

_MUCH = 1 << 14
"""Of calls with more numbers only the last one is remembered."""
_OUT_OF_MEMORY = re.compile("out of memory|can(no|')t allocate|RESOURCE_EXHAUSTED", re.IGNORECASE)
"""What PyTorch and JAX say, where Python raises MemoryError."""
Kept = list[tuple[Any, int]]
"""Arrays, and a checksum of what was in them."""

_LOOKS = 5
"""At so many calls of a kind it is looked at what they do to their process, which takes longer than many a call."""
_PACKAGES = tuple({
    *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
})  # fmt: skip
"""Where installed packages lie: below Python's own folder, where there is no virtual environment."""


_REFEREE = (str(Path(__file__).parent), "<frozen ", files.__file__)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


@cache
def _is_ours(file: str) -> bool:
    """Whether code is neither somebody's own nor of an installed package: the referee's, or Python's."""
    if file.startswith(_REFEREE):
        return True
    return file.startswith(_STANDARD_LIBRARY) and not file.startswith(_PACKAGES)


MOST_TEXT = 400


class BackendError(ValueError):
    """A backend cannot be found, or provides nothing to check."""


class NotInFile(NotImplementedError):
    """A file of results holds no such value."""


class Unusable(Exception):
    """A result that is no array of real numbers of the expected shape."""


def load(spec: str) -> Any:
    """The module or object named by ``module``, ``module:object`` or ``path/to/file.py`` (also ``file.py:object``).

    Raises
    ------
    BackendError
        It cannot be imported, or the object does not exist.
    """
    place, _, attribute = spec.partition(":")
    implementation: Any = _import(place)
    for part in filter(None, attribute.split(".")):
        if not hasattr(implementation, part):
            raise BackendError(f"backend {spec}: {place} was imported but has no {attribute!r}")
        implementation = getattr(implementation, part)
    return implementation


def as_backend(implementation: Any, functions: list[str]) -> Any:
    """The implementation itself; of a function alone, one that has it: of that name, or else a sharpness routine."""
    if not callable(implementation) or any(hasattr(implementation, name) for name in functions):
        return implementation
    name = getattr(implementation, "__name__", "")
    if name in functions:
        return SimpleNamespace(**{name: implementation})
    return SimpleNamespace(sharpness=plain_routine(implementation), is_plain=True)


def _import(place: str) -> Any:
    path = Path(place)
    if not place or path.is_dir() or (path.is_file() and path.suffix != ".py"):
        came = "nothing" if not place else "a folder" if path.is_dir() else "a file of another kind"
        raise BackendError(f"backend {place!r}: expected module, module:object or the path of a .py file, got {came}")
    if path.suffix != ".py":
        if "" not in sys.path:
            sys.path.append("")
        return _executed(place, lambda: importlib.import_module(place))
    if not path.is_file():
        raise BackendError(f"backend {place}: no such file")
    return _executed(place, lambda: files.imported(path, f"refgeo_backend_{path.stem}"))


def _executed(place: str, load: Callable[[], Any]) -> Any:
    """Import somebody's code; whatever it raises, sys.exit included, is a `BackendError`."""
    arguments, sys.argv = sys.argv, [place]
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BackendError(
            f"backend {place}: importing it raised {said(error)}; expected module, module:object or the path of a .py "
            "file"
        ) from None
    finally:
        sys.argv = arguments


def _as_users_see_them() -> None:
    """Warnings every time, but for those that Python does not show: they are for developers of what raises them."""
    warnings.simplefilter("always")
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


class Capture:
    """Output of Python code, by replacing its streams."""

    def start(self) -> None:
        """From now on, output is kept."""
        self._text, self._stack = io.StringIO(), contextlib.ExitStack()
        self._stack.enter_context(contextlib.redirect_stdout(self._text))
        self._stack.enter_context(contextlib.redirect_stderr(self._text))
        self._warnings = self._stack.enter_context(warnings.catch_warnings(record=True))
        _as_users_see_them()

    def stop(self) -> str:
        """What was printed since the start."""
        self._stack.close()
        warned = [f"{found.category.__name__}: {found.message}" for found in self._warnings or ()]
        return "\n".join(["" if self._text.closed else self._text.getvalue(), *warned])[:MOST_TEXT].strip()


class FileCapture(Capture):
    """All output of a process, by descriptors: its standard streams go to a file without a name."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        for stream in (1, 2):
            os.dup2(self._file.fileno(), stream)
        _as_users_see_them()

    def start(self) -> None:
        """From now on, output is new."""
        self._seen = self._size()

    def stop(self) -> str:
        """What was printed since the start; a stream that was closed or replaced is opened again."""
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(self._file.fileno(), number)
            if getattr(getattr(sys, name), "closed", True):
                setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
        text = os.pread(self._file.fileno(), MOST_TEXT, self._seen) if self._size() > self._seen else b""
        return text.decode("utf-8", "replace").strip()

    def _size(self) -> int:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # somebody has closed or replaced it
                stream.flush()
        return os.fstat(self._file.fileno()).st_size


class Host:
    """Calls the functions of one implementation.

    Parameters
    ----------
    implementation : module or object
    capture : Capture
        Where its output goes.
    coverage : Coverage, optional
        Of its files.
    """

    def __init__(self, implementation: Any, capture: Capture, coverage: Coverage | None = None) -> None:
        self.implementation, self.capture, self.coverage = implementation, capture, coverage
        self._past: dict[Any, list[tuple[Kept, Kept]]] = {}
        self._looked: Counter[Any] = Counter()

    def describe(self, functions: list[str]) -> dict[str, Any]:
        """What the implementation has."""
        return {
            "provides": [name for name in functions if self._provides(name)],
            "converts": callable(getattr(self.implementation, "asarray", None)),
            "thread_safe": bool(getattr(self.implementation, "thread_safe", True)),
            "is_plain": bool(getattr(self.implementation, "is_plain", False)),
            "misspelt": self._misspelt(functions),
        }

    def _misspelt(self, functions: list[str]) -> list[str]:
        """Public functions whose names are nearly those of the protocol that are missing."""
        missing = [name for name in functions if not self._provides(name)]
        return [
            f"{name} is none of the functions; did you mean {near[0]}?"
            for name in dir(self.implementation)
            if not name.startswith("_")
            and name not in functions
            and self._provides(name)
            and (near := difflib.get_close_matches(name, missing, n=1, cutoff=0.7))
        ]

    def _provides(self, function: str) -> bool:
        try:
            return callable(getattr(self.implementation, function, None))
        except Exception:  # somebody's property raises: it is there, and calling it will say why it fails
            return True

    def answer(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """Carry out a request: one call, or two at once in threads; or say what no call has reached."""
        if request["do"] == "coverage":
            return {"status": "done", "reached": self.coverage.reached() if self.coverage else {}}, []
        self.capture.start()
        kind = (request["function"], request["metric"], *request["extra"][1:])
        self._looked[kind] += 1
        looks = self._looked[kind] <= _LOOKS
        before, modules = surroundings() if looks else {}, len(sys.modules)
        if self.coverage is not None:
            self.coverage.of("decisive" if request["decisive"] else "other")
        header, parts = self._answer(request, arrays)
        after = surroundings() if looks else {}
        printed = self.capture.stop()
        if len(sys.modules) != modules:  # a library was imported, which changes what it likes: the next call tells
            self._looked[kind] -= 1
            before = {}
        if "notes" in header:
            changed = [what for what, value in after.items() if what in before and not _equal(before[what], value)]
            header["notes"] |= {"printed": printed, "disturbed": changed}
        return header, parts

    def _answer(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        try:
            if request["do"] == "search":
                return self._search(request, arrays)
            if request["do"] == "together":
                return self._together(request, arrays)
            return self._call(request, arrays)
        except NotInFile as error:
            return {"status": "not provided", "text": str(error)}, []
        except NotImplementedError as error:
            return {"status": "not provided", "text": _named(error), "after": _handled(error)}, []
        except Unusable as error:
            return {"status": "failed", "text": str(error)}, []
        except MemoryError:
            return {"status": "exhausted", "text": "MemoryError: it needs more memory than it may have"}, []
        except BaseException as error:
            text = said(error)
            header = {"status": "exhausted" if _OUT_OF_MEMORY.search(text) else "failed", "text": text}
            return header | {"not_entered": isinstance(error, TypeError) and not _their_frames(error)}, []

    def _call(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        layout = request["layout"]
        given = [_laid_out(array, layout, i) for i, array in enumerate(arrays)]
        if request["do"] == "again":  # after a call with other contents at the same address
            for array in given:
                array *= -1.5
            self._apply(request, self._convert(given))
            for array, content in zip(given, arrays, strict=True):
                array[...] = content
        before = [array.copy() for array in given]
        try:
            converted = self._convert(given)
        except Exception as error:
            if layout == "plain":
                raise
            return {"status": "refused", "text": said(error)}, []
        as_converted = [np.array(self._back(x)) for x in converted]  # which may be rounded to another format
        result = members(self._apply(request, converted), len(request["shapes"]))
        arrays = [self._back(part) for part in result]
        parts = _checked(arrays, request["shapes"])
        now = [self._back(x) for x in converted]
        notes = {
            "kinds": [
                "number" if isinstance(part, (int, float, list, tuple)) else array.dtype.name
                for part, array in zip(result, arrays, strict=True)
            ],
            "changed": [
                i for i, old in enumerate(before) if not (_same(old, given[i]) and _same(as_converted[i], now[i]))
            ],
            "aliases": _aliases(arrays, [*given, *now]),
            **self._left_alone(request["function"], given, result, arrays),
        }
        return {"status": "done", "notes": notes}, parts

    def _left_alone(self, function: str, given: Arrays, result: list[Any], arrays: Arrays) -> dict[str, bool]:
        """Whether this call has changed what earlier ones of the function with such arrays had returned, or had got."""
        past = self._past.setdefault((function, *(array.shape for array in given)), [])
        found = {
            "overwritten": any(_checksum(self._back(x)) != content for results, _ in past for x, content in results),
            "changed_later": any(_checksum(x) != content for _, inputs in past for x, content in inputs),
        }
        results: Kept = [(x, _checksum(array)) for x, array in zip(result, arrays, strict=True)]
        past.append((results, [(array, _checksum(array)) for array in given]))
        few = sum(array.size for array in given) <= _MUCH
        del past[1 if few else 0 : -3 if few else -1]  # the first one, too: a buffer may be made of it
        return found

    def _together(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """Calls with the arrays and with their halves at once, in two threads, several times."""
        start = threading.Barrier(2)

        def calls(factor: float) -> Arrays:
            parts: Arrays = []
            start.wait()
            for _ in range(request["times"]):
                result = self._apply(request, self._convert([factor * array for array in arrays]))
                found = [self._back(part) for part in members(result, len(request["shapes"]))]
                parts += _checked(found, request["shapes"])
            return parts

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(2) as threads:
                both = list(threads.map(calls, (1.0, 0.5)))
        finally:
            sys.setswitchinterval(interval)
        return {"status": "done", "notes": {}}, [part for parts in both for part in parts]

    def _search(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """A whole sharpness routine on a diagonal network."""
        given = [np.array(array) for array in arrays]
        G, H, X, y = given
        problem, (rho, order) = Problem(X, y, self._convert, self._back, G.dtype), request["extra"]
        function = getattr(self.implementation, request["function"])
        found = function(request["metric"], problem, *self._convert([G, H]), rho, order)
        try:
            value, steps = members(found, 2)
            step_G, step_H = members(steps, 2)
        except Unusable:
            raise Unusable(f"expected (value, (step_G, step_H)), got {type(found).__name__}") from None
        changed = [i for i, (old, new) in enumerate(zip(arrays, given, strict=True)) if not _same(old, new)]
        steps = [_real(self._back(x), array.shape) for x, array in ((step_G, G), (step_H, H))]
        notes = {"calls": problem.calls, "changed": changed}
        return {"status": "done", "notes": notes}, [_real(np.asarray(value), ()), *steps]

    def _apply(self, request: dict[str, Any], arrays: list[Any]) -> Any:
        chosen = [arrays[i] for i in request["order"]]
        return getattr(self.implementation, request["function"])(request["metric"], *chosen, *request["extra"])

    def _convert(self, arrays: Arrays) -> list[Any]:
        convert = getattr(self.implementation, "asarray", None)
        return list(arrays) if convert is None else [convert(array) for array in arrays]

    def _back(self, array: Any) -> npt.NDArray[Any]:
        back = getattr(self.implementation, "to_numpy", None)
        found = array if back is None else back(array)
        if isinstance(found, np.ma.MaskedArray):
            raise Unusable("expected an array, got a masked one, whose data may be anything where it is masked")
        return np.asarray(found)


def surroundings() -> dict[str, Any]:
    """What a process has beside its modules, which a call of mathematics leaves as it is."""
    found: dict[str, Any] = {
        "the state of Python's random generator": random.getstate(),
        "the state of NumPy's random generator": np.random.get_state(),  # noqa: NPY002  (it is what backends use)
        "np.seterr": np.geterr(),
        "np.set_printoptions": np.get_printoptions(),
        "the warning filters": list(warnings.filters),
        "the working directory": os.getcwd(),
        "os.environ": dict(os.environ),
        "a standard stream": (sys.stdout, sys.stderr, getattr(sys.stdout, "closed", True)),
    }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["the state of PyTorch's random generator"] = torch.get_rng_state().numpy()
    return found


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _aliases(results: Arrays, inputs: Arrays) -> str:
    """Whether a result shares memory with an input or with another result."""
    if any(part.size and np.shares_memory(part, array) for part in results for array in inputs):
        return "its result shares memory with its input"
    if len(results) == 2 and np.shares_memory(results[0], results[1]):
        return "the two parts of its result share memory"
    return ""


def members(result: Any, count: int) -> list[Any]:
    """The parts of a result, which is a pair or one number per block."""
    if count == 1:
        return [result]
    parts = list(result) if _is_sequence(result) else None
    if parts is None or len(parts) != count:
        got = type(result).__name__ if parts is None else f"{len(parts)} parts"
        raise Unusable(f"expected a tuple of {count} arrays (G part, H part), got {got}")
    return parts


def _is_sequence(result: Any) -> bool:
    return isinstance(result, (tuple, list)) or type(result).__name__ == "Pair"


def _real(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "iuf" and not array.dtype.name.startswith(("bfloat16", "float8")):
        hint = " (null or None: NaN, perhaps)" if array.dtype == object and any(x is None for x in array.flat) else ""
        raise Unusable(f"expected real numbers, got dtype {array.dtype}{hint}")
    if array.size == 0 == math.prod(shape):  # a list does not say how many columns there are of nothing
        array = array.reshape(shape)
    if array.shape != shape:
        raise Unusable(f"expected shape {shape}, got {array.shape}")
    return np.array(array, dtype=np.float64)


def _checked(arrays: Arrays, shapes: list[list[int]]) -> Arrays:
    return [_real(array, tuple(shape)) for array, shape in zip(arrays, shapes, strict=True)]


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return bool(np.array_equal(one, other) or np.array_equal(one, other, equal_nan=True))


def _checksum(array: npt.NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes()) if array.dtype != object else 0


def _laid_out(array: npt.NDArray[Any], layout: str, i: int) -> npt.NDArray[Any]:
    """The array, the i-th of a call, in some layout."""
    if layout in _FORTRAN and _FORTRAN[layout](i):
        return np.array(array, order="F")
    if layout in ("a strided view", "a view of a larger array") and array.ndim:
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1] + 3), np.nan, dtype=array.dtype)
        columns = slice(1, 2 * array.shape[-1], 2) if "strided" in layout else slice(2, 2 + array.shape[-1])
        wide[..., columns] = array
        return wide[..., columns]
    if layout == "one block for all":
        return np.broadcast_to(array[(0,) * (array.ndim - 2)], array.shape)
    if layout == "a reversed view":
        return np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1]
    plain = np.array(array)
    plain.flags.writeable = layout != "read-only"
    return plain


def said(error: BaseException) -> str:
    """What an exception says, and the last line of somebody's own code on the way to it."""
    frames = _their_frames(error)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGES)] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{_named(error)}{where}"


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Of code that is neither ours nor Python's own."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]


def _handled(error: BaseException) -> str:
    """The failure that a NotImplementedError was raised in the place of; a look-up of what there is, is none."""
    cause = error.__cause__ or error.__context__
    return "" if cause is None or isinstance(cause, (LookupError, ImportError, NotImplementedError)) else said(cause)


def _named(error: BaseException) -> str:
    """In characters that a file can hold; somebody's ``__str__`` may itself raise."""
    try:
        message = str(error).encode("utf-8", "replace").decode("utf-8")[:MOST_TEXT]
    except Exception:
        message = "(no message)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# A process of its own ------------------------------------------------------------------------------------------------


def serve(line: Connection, spec: str, functions: list[str], most_memory: int) -> None:
    """Serve a backend until the line closes."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_memory, most_memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv[:] = ["refgeo"]
    capture, coverage = FileCapture(), Coverage(spec)
    line.recv()
    try:
        coverage.of("import")
        host = Host(as_backend(load(spec), functions), capture, coverage)
        line.send(host.describe(functions))
    except BackendError as error:
        line.send(error.with_traceback(None))
        return
    while True:
        line.send(host.answer(*line.recv()))
