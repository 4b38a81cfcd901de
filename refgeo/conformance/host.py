"""The judged side: somebody's functions, called as asked, with what they did besides returning.

This runs in a process of its own (`serve`), so that whatever a backend does to it, to NumPy or to refgeo, happens to
the judged and not to the judge. An object is served in the judge's process, by the same `Host`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import math
import os
import re
import site
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.ma
import numpy.typing as npt

from refgeo.conformance.call import Answer, Arrays, BackendError, Breaches, Call, Event, NoResult
from refgeo.conformance.interleaving import in_a_thread, interleaved
from refgeo.conformance.memory import Laid, copies, laid_out
from refgeo.conformance.routine import Problem, plain_routine
from refgeo.conformance.steps import RULE_ARGUMENTS, Walk, needs, rule_of, trajectory
from refgeo.conformance.uncovered import Coverage
from refgeo.support import files
from refgeo.support.arguments import detached
from refgeo.support.console import printable

MOST_TEXT = 400
_MUCH = 1 << 14
"""Of calls with more numbers only the last one is remembered."""
_OUT_OF_MEMORY = re.compile("out of memory|can(no|')t allocate|RESOURCE_EXHAUSTED", re.IGNORECASE)
"""What PyTorch and JAX say, where Python raises MemoryError."""


class LayoutRefused(Exception):
    """The backend's ``asarray`` takes no arrays of this layout."""


class NotInFile(NotImplementedError):
    """A file of results holds no such value."""


class Unusable(Exception):
    """A result that is no array of real numbers of the expected shape."""


# Somebody's code -----------------------------------------------------------------------------------------------------


def load(spec: str) -> Any:
    """The module or object named by ``module``, ``module:object`` or ``path/to/file.py`` (also ``file.py:object``).

    Raises
    ------
    BackendError
        It cannot be imported, or the object does not exist.
    """
    place, attribute = files.place_of(spec)
    implementation: Any = _imported(place)
    for part in filter(None, attribute.split(".")):
        if not hasattr(implementation, part):
            raise BackendError(f"backend {spec}: {place} was imported but has no {attribute!r}")
        implementation = getattr(implementation, part)
    return implementation


def as_backend(implementation: Any, functions: Sequence[str]) -> Any:
    """The implementation itself; of a function alone, one that has it: of that name, an update rule by what it
    gets, or else a sharpness routine.
    """
    if not callable(implementation) or any(_provides(implementation, name) for name in functions):
        return implementation
    name = getattr(implementation, "__name__", "")
    if name in functions:
        return SimpleNamespace(**{name: implementation})
    if rule_of(implementation):
        return SimpleNamespace(**{rule_of(implementation): implementation})
    return SimpleNamespace(sharpness=plain_routine(implementation), is_plain=True)


def _provides(implementation: Any, function: str) -> bool:
    """Whether it has a function; some have common names, and are told by what they get (a method ``step`` is none)."""
    try:
        found = getattr(implementation, function, None)
        return callable(found) and (function not in RULE_ARGUMENTS or rule_of(found) == function)
    except Exception:  # somebody's property raises: it is there, and calling it will say why it fails
        return True


def _imported(place: str) -> Any:
    """Somebody's module; whatever importing it raises, sys.exit included, is a `BackendError`."""
    path, expected = Path(place), "expected the name of a module, module:object or the path of a .py file"
    if not place or path.is_dir() or (path.is_file() and path.suffix != ".py"):
        came = "nothing" if not place else "a folder" if path.is_dir() else "a file of another kind"
        raise BackendError(f"backend {place!r}: {expected}, got {came}")
    if path.suffix == ".py" and not path.is_file():
        raise BackendError(f"backend {place}: no such file")
    if "" not in sys.path:
        sys.path.append("")
    arguments, sys.argv = sys.argv, [place]
    try:
        if path.suffix == ".py":
            return files.imported(path, f"refgeo_backend_{path.stem}")
        return importlib.import_module(place)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BackendError(f"backend {place}: importing it raised {said(error)}; {expected}") from None
    finally:
        sys.argv = arguments


_PACKAGES = tuple({
    *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
})  # fmt: skip
"""Where installed packages lie: below Python's own folder, where there is no virtual environment."""
_REFEREE = (str(Path(__file__).parent), "<frozen ", files.__file__)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


@cache
def _is_ours(file: str) -> bool:
    """Whether code is neither somebody's own nor of an installed package: the referee's, or Python's."""
    return file.startswith(_REFEREE) or (file.startswith(_STANDARD_LIBRARY) and not file.startswith(_PACKAGES))


def _is_foreign(folder: str, file: str) -> bool:
    """Whether code is not somebody's own: not in the folder of his module, if that is an installed one."""
    return _is_ours(file) or (file.startswith(_PACKAGES) and not (folder and file.startswith(folder)))


def said(error: BaseException) -> str:
    """What an exception says, and the last line of somebody's own code on the way to it."""
    frames = _their_frames(error)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGES)] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    return " ".join([f"{_named(error)}{where}", *map(printable, getattr(error, "__notes__", [])[:1])])


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Of code that is neither ours nor Python's own."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]


def _named(error: BaseException) -> str:
    """In characters that a file can hold; somebody's ``__str__`` may itself raise."""
    try:
        message = printable(str(error).encode("utf-8", "replace").decode("utf-8")[:MOST_TEXT]).strip()
    except Exception:
        message = "(no message)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _failure(error: BaseException, call: Call, converts: bool) -> NoResult:
    """What the judge is told of an exception, which NumPy's arrays may have caused where nothing converts them."""
    if isinstance(error, NotInFile):
        return NoResult(Event.NOT_IMPLEMENTED, str(error))
    if isinstance(error, Unusable):
        return NoResult(Event.FAILED, str(error))
    if isinstance(error, NotImplementedError):
        cause = error.__cause__ or error.__context__
        if cause is None or isinstance(cause, (LookupError, ImportError, NotImplementedError)):  # what there is
            return NoResult(Event.NOT_IMPLEMENTED, _named(error))
        return NoResult(Event.MASKED_EXCEPTION, f"{_named(error)}, after {said(cause)}")
    if isinstance(error, ModuleNotFoundError):  # which says what is not installed, and nothing of a formula
        return NoResult(Event.NOT_IMPLEMENTED, said(error))
    if isinstance(error, LayoutRefused):
        return NoResult(Event.LAYOUT, str(error))
    if isinstance(error, MemoryError):
        return NoResult(Event.EXHAUSTED, "MemoryError: the call needs more memory than refgeo allows for one call")
    text = said(error)
    if isinstance(error, TypeError) and not _their_frames(error):  # its body was not entered
        text += f"; refgeo calls it with ({', '.join(call.names)})"
    if isinstance(error, (TypeError, AttributeError)) and "numpy.ndarray" in text and not converts:
        text += "; it gets NumPy arrays, as the backend has no asarray (PyTorch: asarray = torch.from_numpy)"
    return NoResult(Event.EXHAUSTED if _OUT_OF_MEMORY.search(text) else Event.FAILED, text)


# What it does besides returning --------------------------------------------------------------------------------------


class Capture:
    """Output and warnings lead nowhere; in a process of its own by descriptors, so that compiled code is unheard."""

    def __init__(self, owns_process: bool) -> None:
        self._descriptors = (1, 2) if owns_process else ()
        self._take()

    def _take(self) -> None:
        for descriptor in self._descriptors:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """What is said inside is lost."""
        with (
            open(os.devnull, "w", encoding="utf-8", errors="replace") as stream,
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
        self._take()  # somebody may have closed them


Kept = list[tuple[Any, bytes]]
"""Arrays, and what was in them."""


# Calls ---------------------------------------------------------------------------------------------------------------


class Host:
    """Calls the functions of one implementation.

    Parameters
    ----------
    implementation : module or object
    functions : sequence of str
        Of the protocol.
    capture : Capture
        Where its output goes.
    coverage : Coverage, optional
        Of its files.
    """

    def __init__(
        self, implementation: Any, functions: Sequence[str], capture: Capture, coverage: Coverage | None = None
    ) -> None:
        self.functions = functions
        self.implementation = as_backend(implementation, functions)
        self.capture, self.coverage = capture, coverage
        self._folder = os.path.dirname(getattr(implementation, "__file__", None) or "")
        self._past: dict[Any, list[tuple[Kept, Kept]]] = {}

    def describe(self) -> dict[str, Any]:
        """What the implementation has, and functions whose names are nearly those that are missing."""
        missing = [name for name in self.functions if not _provides(self.implementation, name)]
        return {
            "provides": [name for name in self.functions if name not in missing],
            "converts": self._converts,
            "thread_safe": bool(getattr(self.implementation, "thread_safe", True)),
            "is_plain": bool(getattr(self.implementation, "is_plain", False)),
            "misspelt": [
                f"refgeo knows no function {name}; did you mean {near[0]}?"
                for name in dir(self.implementation)
                if not name.startswith("_") and name not in self.functions and _provides(self.implementation, name)
                and (near := difflib.get_close_matches(name, missing, n=1, cutoff=0.7))
                and near[0] not in name.split("_")  # toy_sharpness is no mistake
                and not any(name in one.split("_") for one in self.functions)  # nor is projection
            ] + [
                f"{name} must take the arguments {', '.join(RULE_ARGUMENTS[name])}, but the {name} here takes "
                f"{', '.join(needs(found)) or 'none'}"
                for name in missing if name in RULE_ARGUMENTS
                and inspect.isfunction(found := getattr(self.implementation, name, None))
            ],
        }  # fmt: skip

    @property
    def _converts(self) -> bool:
        return callable(getattr(self.implementation, "asarray", None))

    def answer(self, call: Call) -> Answer:
        """Carry out a call."""
        if call.action == "describe":
            return Answer(self.describe())
        if call.action == "coverage":
            return Answer(self.coverage.reached() if self.coverage else {})
        if self.coverage is not None:
            self.coverage.of("decisive" if call.decisive else "other")
        breaches: Breaches = {}
        with self.capture.unheard():
            for earlier in call.preceding:
                self._again(earlier)()
            work = getattr(self, f"_{call.action}")
            try:
                parts = in_a_thread(functools.partial(work, call, breaches)) if call.in_thread else work(call, breaches)
                return Answer(parts, None, breaches)
            except BaseException as error:
                return Answer((), _failure(error, call, self._converts))

    def _call(self, call: Call, breaches: Breaches) -> Arrays:
        laid = laid_out(call.arrays, call.layout)
        given = [one.array for one in laid]
        if call.layout == "reused":
            for array in given:
                array *= -1.5
            self._apply(call, self._all_converted(given))
            for array, content in zip(given, call.arrays, strict=True):
                array[...] = content
        try:
            converted = self._views(laid)
        except Exception as error:
            if not call.layout:
                raise
            raise LayoutRefused(said(error)) from None
        before, shapes = self._bytes(given, converted), [np.shape(x) for x in converted]
        function = getattr(self.implementation, call.function)
        with interleaved(list(map(self._again, call.concurrent)), functools.partial(_is_foreign, self._folder)):
            result = function(call.metric, *converted, *call.extra)
        result = members(result, len(call.shapes))
        arrays = [self._back(part) for part in result]
        parts = [_real(array, shape) for array, shape in zip(arrays, call.shapes, strict=True)]
        inputs = [*given, *map(self._back, converted)]
        breaches |= self._left_behind(call.function, given, result)
        breaches |= _written(call, before, self._bytes(given, converted))
        reshaped = [np.shape(x) for x in (*given, *converted)] != [*(np.shape(x) for x in call.arrays), *shapes]
        breaches |= {"inputs_unchanged": "changed the shape of an input"} if reshaped else {}
        breaches |= _foreign(call, result, arrays) | _shared(arrays, inputs)
        return parts

    def _again(self, call: Call) -> Callable[[], None]:
        """The call whenever it is wanted; what comes of it is of no interest."""

        def asked() -> None:
            with contextlib.suppress(Exception, SystemExit):
                if call.action == "trajectory":
                    self._trajectory(call, {})
                    return
                result = self._apply(call, self._all_converted(copies(call.arrays)))
                for part in members(result, len(call.shapes)) if call.action == "write" else ():
                    np.asarray(detached(part))[...] = np.nan

        return asked

    def _bytes(self, given: Arrays, converted: list[Any]) -> list[tuple[bytes, bytes]]:
        """What is in arrays, and in what ``asarray`` has made of them."""
        return [(x.tobytes(), self._back(y).tobytes()) for x, y in zip(given, converted, strict=True)]

    def _left_behind(self, function: str, inputs: Arrays, result: list[Any]) -> Breaches:
        """Whether this call has changed what earlier ones of the function with such arrays had returned, or had got."""
        past, found = self._past.setdefault((function, *(array.shape for array in inputs)), []), {}
        if any(self._back(x).tobytes() != content for _, results in past for x, content in results):
            found["keeps_its_results"] = "a call overwrites the result that an earlier call has returned"
        if any(x.tobytes() != content for given, _ in past for x, content in given):
            found["inputs_unchanged"] = "a call changes the inputs of an earlier call"
        past.append(([(x, x.tobytes()) for x in inputs], [(x, self._back(x).tobytes()) for x in result]))
        few = sum(array.size for array in inputs) <= _MUCH
        del past[1 if few else 0 : -3 if few else -1]  # the first one, too: a buffer may be made of it
        return found

    def _search(self, call: Call, breaches: Breaches) -> Arrays:
        """A whole sharpness routine on a diagonal network; the last part is how often it evaluates the loss."""
        given = [np.array(array) for array in call.arrays]
        G, H, X, y = given
        is_diagonal = G.shape[-2:] == H.shape[-2:] == (1, 1)
        problem, (rho, order) = Problem(X, y, self._converted, self._back, G.dtype, is_diagonal), call.extra
        function, converted = getattr(self.implementation, call.function), map(self._converted, (G, H))
        found = function(call.metric, problem, *converted, rho, order)
        try:
            value, steps = members(found, 2)
            steps = members(steps, 2)
        except Unusable:
            raise Unusable(f"expected (value, (step_G, step_H)), got {type(found).__name__}") from None
        if any(x.tobytes() != y.tobytes() for x, y in zip(given, call.arrays, strict=True)):
            breaches["inputs_unchanged"] = "writes to the arrays it gets"
        numbers = [_real(self._back(x), shape) for x, shape in zip(steps, call.shapes[1:], strict=True)]
        return [_real(np.asarray(value), ()), *numbers, np.array(float(problem.calls))]

    def _trajectory(self, call: Call, breaches: Breaches) -> Arrays:
        """Steps of an update rule; an optimiser of PyTorch has parameters of its own, whatever ``asarray`` makes."""
        own = call.function == "make"

        def read(x: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
            return _real(np.asarray(detached(x)) if own else self._back(x), shape)

        walk, arrays = Walk(**call.extra[0]), list(call.arrays)
        convert = (lambda x: x) if own else self._converted
        with interleaved(list(map(self._again, call.concurrent)), functools.partial(_is_foreign, self._folder)):
            return trajectory(self.implementation, call.function, arrays, walk, convert, read, breaches)

    def _apply(self, call: Call, converted: list[Any]) -> Any:
        return getattr(self.implementation, call.function)(call.metric, *converted, *call.extra)

    def _all_converted(self, arrays: Arrays) -> list[Any]:
        """One array given twice is one array after conversion."""
        once = {id(array): self._converted(array) for array in arrays}
        return [once[id(array)] for array in arrays]

    def _views(self, laid: list[Laid]) -> list[Any]:
        """Arrays of the backend's own kind that lie so: views of a base that is converted, where it has such views."""
        bases = {id(one.base): self._converted(one.base) for one in laid}
        found: dict[int, Any] = {}
        for one in laid:
            if id(one) not in found:
                with contextlib.suppress(Exception):
                    view = one.take(bases[id(one.base)])
                    found[id(one)] = view if np.array_equal(self._back(view), one.array, equal_nan=True) else None
                if found.get(id(one)) is None:
                    found[id(one)] = self._converted(one.array)
        return [found[id(one)] for one in laid]

    def _converted(self, array: npt.NDArray[Any]) -> Any:
        convert = getattr(self.implementation, "asarray", None)
        return array if convert is None else convert(array)

    def _back(self, array: Any) -> npt.NDArray[Any]:
        back = getattr(self.implementation, "to_numpy", None)
        found = array if back is None else back(array)
        if isinstance(found, np.ma.MaskedArray):
            raise Unusable(
                "expected an array without a mask, got a masked array, whose masked entries can hold any data"
            )
        return array_of(detached(found))


def array_of(value: Any) -> npt.NDArray[Any]:
    """An array of a result, or `Unusable`."""
    try:
        return np.asarray(value)
    except ValueError as error:
        if isinstance(value, (list, tuple)):
            raise Unusable("expected an array, got rows of different lengths") from error
        raise


def _written(call: Call, before: list[Any], after: list[Any]) -> Breaches:
    names = ", ".join(name for name, x, y in zip(call.names[1:], before, after, strict=False) if x != y)
    return {"inputs_unchanged": f"changed its input {names}"} if names else {}


def _foreign(call: Call, result: list[Any], arrays: Arrays) -> Breaches:
    """Numbers of Python are of any dtype."""
    pairs = zip(result, arrays, strict=True)
    kinds = {array.dtype.name for part, array in pairs if not isinstance(part, (int, float, list, tuple))}
    foreign = ", ".join(sorted(kinds - set(call.dtypes)))
    if not (call.dtypes and foreign):
        return {}
    single = "jax" in sys.modules and foreign == "float32" and call.dtypes[0] == "float64"
    hint = '; JAX computes in double precision only after jax.config.update("jax_enable_x64", True)' if single else ""
    return {"dtype_kept": f"returned {foreign} for {call.dtypes[0]} input{hint}"}


def _shared(results: Arrays, inputs: Arrays) -> Breaches:
    if any(part.size and np.shares_memory(part, x) for part in results for x in inputs):
        return {"owns_its_results": "its result shares memory with its input"}
    if len(results) == 2 and np.shares_memory(results[0], results[1]):
        return {"owns_its_results": "the two parts of its result share memory"}
    return {}


def members(result: Any, count: int) -> list[Any]:
    """The parts of a result, which is a pair or one number per block."""
    if count == 1:
        return [result]
    is_sequence = isinstance(result, (tuple, list)) or type(result).__name__ == "Pair"
    parts = list(result) if is_sequence else None
    if parts is None or len(parts) != count:
        got = type(result).__name__ if parts is None else f"{len(parts)} parts"
        raise Unusable(f"expected a tuple of {count} arrays (G part, H part), got {got}")
    return parts


def _real(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "iuf" and not array.dtype.name.startswith(("bfloat16", "float8")):
        hint = " (with null or None, for NaN?)" if array.dtype == object and any(x is None for x in array.flat) else ""
        what = "text" if array.dtype.kind == "U" else f"dtype {array.dtype}{hint}"
        raise Unusable(f"expected real numbers, got {what}")
    if array.size == 0 == math.prod(shape):  # a list does not say how many columns there are of nothing
        array = array.reshape(shape)
    if array.shape != tuple(shape):
        raise Unusable(f"expected shape {tuple(shape)}, got {array.shape}")
    return np.array(array, dtype=np.float64)


def serve(line: Connection, spec: str, functions: Sequence[str], most_memory: int) -> None:
    """Serve a backend, in a process of its own, until the line closes; a `BackendError` ends it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_memory, most_memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv[:] = ["refgeo"]
    capture = Capture(owns_process=True)
    try:
        implementation = load(spec)
        coverage = Coverage(spec)  # of calls: importing is slow under a tracer
    except BackendError as error:
        line.send(((), (BackendError.__name__, str(error)), {}))
        return
    except ImportError as error:
        line.send(((), (BackendError.__name__, f"importing coverage, which refgeo needs, failed: {error}"), {}))
        return
    host = Host(implementation, functions, capture, coverage)
    while True:  # plain data alone, which any copy of this module understands
        answer = host.answer(Call.from_dict(line.recv()))
        failure = answer.failure and (answer.failure.event.name, str(answer.failure))
        line.send((answer.parts, failure, answer.breaches))
