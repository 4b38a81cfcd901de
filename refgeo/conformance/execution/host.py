"""Call somebody's functions as requested, and record what the calls do besides returning.

This runs in a process of its own (`serve`), so that whatever a backend does to the process, to NumPy or to refgeo does
not affect the judge. An object without a name is called in the judge's process, by the same `Host`.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import functools
import importlib
import inspect
import math
import os
import re
import select
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
from typing import Any, TextIO

import numpy as np
import numpy.ma
import numpy.typing as npt

from refgeo.conformance.execution.coverage import Coverage
from refgeo.conformance.execution.drivers import (
    Problem,
    TrajectorySpec,
    required_arguments,
    rule_kind,
    run_trajectory,
    wrap_function,
)
from refgeo.conformance.execution.interleaving import interleave_calls, run_in_thread
from refgeo.conformance.execution.memory_layout import LayoutView, apply_layout, copies
from refgeo.conformance.execution.messages import CallDecoder, send
from refgeo.conformance.protocol.call import (
    RULE_ARGUMENTS,
    Answer,
    Arrays,
    BackendError,
    Breaches,
    Call,
    Event,
    NoResult,
)
from refgeo.support import files
from refgeo.support.arguments import detach
from refgeo.support.console import printable

MAX_TEXT = 400
"""Number of characters of somebody's messages that are kept; chosen."""
_MAX_REMEMBERED = 1 << 14
"""Number of entries of a call's inputs above which only the last call is remembered; chosen, to bound memory."""
_FORK_DELAY = 0.5
"""Seconds within which the copy of a process that forks must return from the function, to be noticed; chosen."""
_OUT_OF_MEMORY = re.compile("out of memory|can(no|')t allocate|RESOURCE_EXHAUSTED", re.IGNORECASE)
"""Messages of PyTorch and JAX in cases in which Python raises MemoryError."""


class LayoutRefused(Exception):
    """The backend's ``asarray`` refuses arrays of this memory layout."""


class NotInFile(NotImplementedError):
    """A file of results has no value for this call."""


class Unusable(Exception):
    """A result that is not an array of real numbers of the expected shape."""


# Somebody's code -----------------------------------------------------------------------------------------------------


def load(spec: str) -> Any:
    """Import the module or object that ``module``, ``module:object``, ``file.py`` or ``file.py:object`` names.

    Raises
    ------
    BackendError
        It cannot be imported, or the object does not exist.
    """
    place, attribute = files.place_of(spec)
    implementation: Any = _import_module(place)
    for part in filter(None, attribute.split(".")):
        if not hasattr(implementation, part):
            raise BackendError(f"backend {spec}: {place} was imported but has no {attribute!r}")
        implementation = getattr(implementation, part)
    return implementation


def as_backend(implementation: Any, functions: Sequence[str]) -> Any:
    """Return an implementation, or wrap a single function as an implementation that has it.

    A function that is named as one of the protocol stands for it. Otherwise its arguments decide whether it is an
    update rule or a sharpness routine.
    """
    if not callable(implementation) or any(_provides(implementation, name) for name in functions):
        return implementation
    name = getattr(implementation, "__name__", "")
    if name in functions:
        return SimpleNamespace(**{name: implementation})
    if rule_kind(implementation):
        return SimpleNamespace(**{rule_kind(implementation): implementation})
    return SimpleNamespace(sharpness=wrap_function(implementation), is_plain=True)


def _provides(implementation: Any, function: str) -> bool:
    """Return whether an implementation has a function of the protocol.

    Update rules have common names, so their arguments decide: a method ``step`` of another kind does not count.
    """
    try:
        member = getattr(implementation, function, None)
        return callable(member) and (function not in RULE_ARGUMENTS or rule_kind(member) == function)
    except Exception:  # somebody's property raises: it is there, and calling it will say why it fails
        return True


def _import_module(place: str) -> Any:
    """Import somebody's module; whatever the import raises, including SystemExit, becomes a `BackendError`."""
    path, expected = Path(place), "expected the name of a module, module:object or the path of a .py file"
    if not place or path.is_dir() or (path.is_file() and path.suffix != ".py"):
        got = "nothing" if not place else "a folder" if path.is_dir() else "a file of another kind"
        raise BackendError(f"backend {place!r}: {expected}, got {got}")
    if path.suffix == ".py" and not path.is_file():
        raise BackendError(f"backend {place}: no such file")
    if "" not in sys.path:
        sys.path.append("")
    arguments, sys.argv = sys.argv, [place]
    try:
        if path.suffix == ".py":
            return files.import_file(path, f"refgeo_backend_{path.stem}")
        return importlib.import_module(place)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BackendError(f"backend {place}: importing it raised {describe_exception(error)}; {expected}") from None
    finally:
        sys.argv = arguments


_PACKAGES = tuple({
    *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
})  # fmt: skip
"""Folders of installed packages; without a virtual environment they lie below Python's own folder."""
_REFEREE = (str(Path(__file__).parents[1]), "<frozen ", files.__file__)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


@cache
def _is_ours(file: str) -> bool:
    """Return whether a file belongs to the referee or to Python itself."""
    return file.startswith(_REFEREE) or (file.startswith(_STANDARD_LIBRARY) and not file.startswith(_PACKAGES))


def _is_foreign(folder: str, file: str) -> bool:
    """Return whether a file is outside somebody's own code; of an installed module, its folder is its own code."""
    return _is_ours(file) or (file.startswith(_PACKAGES) and not (folder and file.startswith(folder)))


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception, and the last line of somebody's own code on the way to it."""
    frames = _their_frames(error)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGES)] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    return " ".join([f"{_describe_type(error)}{where}", *map(printable, getattr(error, "__notes__", [])[:1])])


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the stack frames that belong neither to the referee nor to Python itself."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]


def _describe_type(error: BaseException) -> str:
    """Return the type and message of an exception, in characters that a file can hold.

    Somebody's ``__str__`` may itself raise.
    """
    try:
        message = printable(str(error).encode("utf-8", "replace").decode("utf-8")[:MAX_TEXT]).strip()
    except Exception:
        message = "(no message)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _failure(error: BaseException, call: Call, converts: bool) -> NoResult:
    """Classify an exception, and describe it for the judge.

    A backend without ``asarray`` gets NumPy arrays; the description says so if they may be the cause.
    """
    if isinstance(error, NotInFile):
        return NoResult(Event.NOT_IMPLEMENTED, str(error))
    if isinstance(error, Unusable):
        return NoResult(Event.FAILED, str(error))
    if isinstance(error, NotImplementedError):
        cause = error.__cause__ or error.__context__
        if cause is None or isinstance(cause, (LookupError, ImportError, NotImplementedError)):  # what there is
            return NoResult(Event.NOT_IMPLEMENTED, _describe_type(error))
        return NoResult(Event.MASKED_EXCEPTION, f"{_describe_type(error)}, after {describe_exception(cause)}")
    if isinstance(error, ModuleNotFoundError):  # which says what is not installed, and nothing of a formula
        return NoResult(Event.NOT_IMPLEMENTED, describe_exception(error))
    if isinstance(error, LayoutRefused):
        return NoResult(Event.LAYOUT, str(error))
    if isinstance(error, MemoryError):
        return NoResult(Event.EXHAUSTED, "MemoryError: the call needs more memory than refgeo allows for one call")
    text = describe_exception(error)
    if isinstance(error, TypeError) and not _their_frames(error):  # its body was not entered
        text += f"; refgeo calls it with ({', '.join(call.names)})"
    if isinstance(error, (TypeError, AttributeError)) and "numpy.ndarray" in text and not converts:
        text += "; it gets NumPy arrays, as the backend has no asarray (PyTorch: asarray = torch.from_numpy)"
    return NoResult(Event.EXHAUSTED if _OUT_OF_MEMORY.search(text) else Event.FAILED, text)


# What it does besides returning --------------------------------------------------------------------------------------


@cache
def _open_null_device() -> TextIO:
    """Open the null device as a stream, once for the process."""
    stream = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    atexit.register(stream.close)
    return stream


def _null_device() -> TextIO:
    """Return a stream that discards what is written to it; a new one if somebody has closed or detached it."""
    try:
        is_closed = _open_null_device().closed
    except ValueError:  # of a detached stream
        is_closed = True
    if is_closed:
        _open_null_device.cache_clear()
    return _open_null_device()


class OutputCapture:
    """Discards output and warnings; in a process of its own also those of compiled code, by file descriptors."""

    def __init__(self, owns_process: bool) -> None:
        self._descriptors = (1, 2) if owns_process else ()
        self._redirect()

    def _redirect(self) -> None:
        """Redirect the file descriptors to the null device."""
        for descriptor in self._descriptors:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Return a context in which output and warnings are discarded."""
        with (
            contextlib.redirect_stdout(_null_device()),
            contextlib.redirect_stderr(_null_device()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
        self._redirect()  # somebody may have closed them


Snapshot = list[tuple[Any, bytes]]
"""Arrays, and the bytes that were in them."""


# Calls ---------------------------------------------------------------------------------------------------------------


class Host:
    """Calls the functions of one implementation.

    Parameters
    ----------
    implementation : module or object
    functions : sequence of str
        The names of the functions of the protocol.
    capture : OutputCapture
        Discards its output.
    coverage : Coverage, optional
        Records the lines of its files that are reached.
    """

    def __init__(
        self, implementation: Any, functions: Sequence[str], capture: OutputCapture, coverage: Coverage | None = None
    ) -> None:
        self.functions = functions
        self.implementation = as_backend(implementation, functions)
        self.capture, self.coverage = capture, coverage
        self._folder = os.path.dirname(getattr(implementation, "__file__", None) or "")
        self._past: dict[Any, list[tuple[Snapshot, Snapshot]]] = {}

    def describe(self) -> dict[str, Any]:
        """Return which functions the implementation has, and which names nearly match a missing function."""
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
                and not any(name in known.split("_") for known in self.functions)  # nor is projection
            ] + [
                f"{name} must take the arguments {', '.join(RULE_ARGUMENTS[name])}, but the {name} here takes "
                f"{', '.join(required_arguments(rule)) or 'none'}"
                for name in missing if name in RULE_ARGUMENTS
                and inspect.isfunction(rule := getattr(self.implementation, name, None))
            ],
        }  # fmt: skip

    @property
    def _converts(self) -> bool:
        """Whether the implementation has an ``asarray``."""
        return callable(getattr(self.implementation, "asarray", None))

    def answer(self, call: Call) -> Answer:
        """Carry out a call, and return the answer."""
        if call.action == "describe":
            return Answer(self.describe())
        if call.action == "coverage":
            return Answer(self.coverage.data() if self.coverage else {})
        if self.coverage is not None:
            self.coverage.switch_context("decisive" if call.decisive else "other")
        breaches: Breaches = {}
        with self.capture.silence():
            for earlier in call.preceding:
                self._repeat(earlier)()
            work = functools.partial(getattr(self, f"_{call.action}"), call, breaches)
            try:
                parts = run_in_thread(work) if call.in_thread else work()
                return Answer(parts, None, breaches)
            except BaseException as error:
                return Answer((), _failure(error, call, self._converts))

    def _call(self, call: Call, breaches: Breaches) -> Arrays:
        """Call a function of the protocol, and record breaches of the rules of conduct."""
        views = apply_layout(call.arrays, call.layout)
        inputs = [view.array for view in views]
        if call.layout == "reused":
            for array in inputs:
                array *= -1.5
            self._apply(call, self._convert_all(inputs))
            for array, content in zip(inputs, call.arrays, strict=True):
                array[...] = content
        try:
            converted = self._views(views)
        except Exception as error:
            if not call.layout:
                raise
            raise LayoutRefused(describe_exception(error)) from None
        contents, shapes = self._bytes(inputs, converted), [np.shape(x) for x in converted]
        function = getattr(self.implementation, call.function)
        with interleave_calls(list(map(self._repeat, call.concurrent)), functools.partial(_is_foreign, self._folder)):
            result = function(call.metric, *converted, *call.extra)
        result = result_parts(result, len(call.shapes))
        arrays = [self._to_numpy(part) for part in result]
        results = [_validate(array, shape) for array, shape in zip(arrays, call.shapes, strict=True)]
        seen = [*inputs, *map(self._to_numpy, converted)]
        breaches |= self._result_mutation(call.function, inputs, result)
        breaches |= _input_mutation(call, contents, self._bytes(inputs, converted))
        reshaped = [np.shape(x) for x in (*inputs, *converted)] != [*(np.shape(x) for x in call.arrays), *shapes]
        breaches |= {"inputs_unchanged": "changed the shape of an input"} if reshaped else {}
        breaches |= _dtype_change(call, result, arrays) | _aliasing(arrays, seen)
        return results

    def _repeat(self, call: Call) -> Callable[[], None]:
        """Return a function that makes a call and ignores its result."""

        def repeat() -> None:
            with contextlib.suppress(Exception, SystemExit):
                if call.action == "trajectory":
                    self._trajectory(call, {})
                    return
                result = self._apply(call, self._convert_all(copies(call.arrays)))
                for part in result_parts(result, len(call.shapes)) if call.action == "write" else ():
                    np.asarray(detach(part))[...] = np.nan

        return repeat

    def _bytes(self, given: Arrays, converted: list[Any]) -> list[tuple[bytes, bytes]]:
        """Return the bytes of arrays, and of what ``asarray`` has made of them."""
        pairs = zip(given, converted, strict=True)
        return [(x.tobytes(), b"" if y is x else self._to_numpy(y).tobytes()) for x, y in pairs]

    def _result_mutation(self, function: str, inputs: Arrays, result: list[Any]) -> Breaches:
        """Detect whether this call has changed the results or the inputs of an earlier call with arrays of these
        shapes.
        """
        past, breaches = self._past.setdefault((function, *(array.shape for array in inputs)), []), {}
        if any(self._to_numpy(x).tobytes() != content for _, results in past for x, content in results):
            breaches["keeps_its_results"] = "a call overwrites the result that an earlier call has returned"
        if any(x.tobytes() != content for given, _ in past for x, content in given):
            breaches["inputs_unchanged"] = "a call changes the inputs of an earlier call"
        past.append(([(x, x.tobytes()) for x in inputs], [(x, self._to_numpy(x).tobytes()) for x in result]))
        few = sum(array.size for array in inputs) <= _MAX_REMEMBERED
        del past[1 if few else 0 : -3 if few else -1]  # the first one, too: a buffer may be made of it
        return breaches

    def _search(self, call: Call, breaches: Breaches) -> Arrays:
        """Run a sharpness routine; the last part of the result is the number of evaluations of the loss."""
        inputs = [np.array(array) for array in call.arrays]
        G, H, X, y = inputs
        is_diagonal = G.shape[-2:] == H.shape[-2:] == (1, 1)
        problem, (rho, order) = Problem(X, y, self._convert, self._to_numpy, G.dtype, is_diagonal), call.extra
        function, point = getattr(self.implementation, call.function), map(self._convert, (G, H))
        result = function(call.metric, problem, *point, rho, order)
        try:
            value, steps = result_parts(result, 2)
            steps = result_parts(steps, 2)
        except Unusable:
            raise Unusable(f"expected (value, (step_G, step_H)), got {type(result).__name__}") from None
        if any(x.tobytes() != y.tobytes() for x, y in zip(inputs, call.arrays, strict=True)):
            breaches["inputs_unchanged"] = "writes to the arrays it gets"
        numbers = [_validate(self._to_numpy(x), shape) for x, shape in zip(steps, call.shapes[1:], strict=True)]
        return [_validate(np.asarray(value), ()), *numbers, np.array(float(problem.calls))]

    def _trajectory(self, call: Call, breaches: Breaches) -> Arrays:
        """Run an update rule for several steps.

        An optimiser of PyTorch has its own parameters, so ``asarray`` is not used for it.
        """
        is_torch = call.function == "make"

        def read(x: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
            return _validate(np.asarray(detach(x)) if is_torch else self._to_numpy(x), shape)

        request, arrays = TrajectorySpec(**call.extra[0]), [np.array(x) for x in call.arrays]  # rules may write to them
        convert = (lambda x: x) if is_torch else self._convert
        with interleave_calls(list(map(self._repeat, call.concurrent)), functools.partial(_is_foreign, self._folder)):
            return run_trajectory(self.implementation, call.function, arrays, request, convert, read, breaches)

    def _apply(self, call: Call, converted: list[Any]) -> Any:
        """Call a function of the protocol with converted arrays."""
        return getattr(self.implementation, call.function)(call.metric, *converted, *call.extra)

    def _convert_all(self, arrays: Arrays) -> list[Any]:
        """Convert arrays; an array that is given twice is converted once."""
        converted = {id(array): self._convert(array) for array in arrays}
        return [converted[id(array)] for array in arrays]

    def _views(self, views: list[LayoutView]) -> list[Any]:
        """Return arrays of the backend's own kind in these layouts: views of a converted base, if that kind has such
        views.
        """
        if not self._converts:
            return [view.array for view in views]
        bases = {id(view.base): self._convert(view.base) for view in views}
        converted: dict[int, Any] = {}
        for view in views:
            if id(view) not in converted:
                with contextlib.suppress(Exception):
                    part = view.view_of(bases[id(view.base)])
                    is_same = np.array_equal(self._to_numpy(part), view.array, equal_nan=True)
                    converted[id(view)] = part if is_same else None
                if converted.get(id(view)) is None:
                    converted[id(view)] = self._convert(view.array)
        return [converted[id(view)] for view in views]

    def _convert(self, array: npt.NDArray[Any]) -> Any:
        """Convert an array with the backend's ``asarray``, if it has one."""
        convert = getattr(self.implementation, "asarray", None)
        return array if convert is None else convert(array)

    def _to_numpy(self, array: Any) -> npt.NDArray[Any]:
        """Convert a result to a NumPy array, or raise `Unusable`."""
        back = getattr(self.implementation, "to_numpy", None)
        if back is None and type(array) is np.ndarray:
            return array
        result = array if back is None else back(array)
        if isinstance(result, np.ma.MaskedArray):
            raise Unusable(
                "expected an array without a mask, got a masked array, whose masked entries can hold any data"
            )
        return array_of(detach(result))


def array_of(value: Any) -> npt.NDArray[Any]:
    """Convert a value to an array, or raise `Unusable`."""
    try:
        return np.asarray(value)
    except ValueError as error:
        if isinstance(value, (list, tuple)):
            raise Unusable("expected an array, got rows of different lengths") from error
        raise


def _input_mutation(call: Call, before: list[Any], after: list[Any]) -> Breaches:
    """Return a breach that names the inputs whose bytes have changed."""
    names = ", ".join(name for name, x, y in zip(call.names[1:], before, after, strict=False) if x != y)
    return {"inputs_unchanged": f"changed its input {names}"} if names else {}


def _dtype_change(call: Call, result: list[Any], arrays: Arrays) -> Breaches:
    """Return a breach if a result has another dtype than the inputs; numbers of Python have no dtype."""
    pairs = zip(result, arrays, strict=True)
    kinds = {array.dtype for part, array in pairs if not isinstance(part, (int, float, list, tuple))}
    changed = ", ".join(sorted({kind.name for kind in kinds} - set(call.dtypes)))
    if not (call.dtypes and changed):
        return {}
    single = "jax" in sys.modules and changed == "float32" and call.dtypes[0] == "float64"
    hint = '; JAX computes in double precision only after jax.config.update("jax_enable_x64", True)' if single else ""
    return {"dtype_kept": f"returned {changed} for {call.dtypes[0]} input{hint}"}


def _aliasing(results: Arrays, inputs: Arrays) -> Breaches:
    """Return a breach if results share memory with inputs or with each other."""
    if any(part.size and np.shares_memory(part, x) for part in results for x in inputs):
        return {"owns_its_results": "its result shares memory with its input"}
    if len(results) == 2 and np.shares_memory(results[0], results[1]):
        return {"owns_its_results": "the two parts of its result share memory"}
    return {}


def result_parts(result: Any, count: int) -> list[Any]:
    """Split a result into its parts: a pair, or one number per block."""
    if count == 1:
        return [result]
    is_sequence = isinstance(result, (tuple, list)) or type(result).__name__ == "Pair"
    parts = list(result) if is_sequence else None
    if parts is None or len(parts) != count:
        got = type(result).__name__ if parts is None else f"{len(parts)} parts"
        raise Unusable(f"expected a tuple of {count} arrays (G part, H part), got {got}")
    return parts


def _validate(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a result as float64, or raise `Unusable` if it has another shape or no real numbers."""
    if array.dtype.kind not in "iuf" and not array.dtype.name.startswith(("bfloat16", "float8")):
        hint = " (with null or None, for NaN?)" if array.dtype == object and any(x is None for x in array.flat) else ""
        kind = "text" if array.dtype.kind == "U" else f"dtype {array.dtype}{hint}"
        raise Unusable(f"expected real numbers, got {kind}")
    if array.size == 0 == math.prod(shape):  # a list does not say how many columns there are of nothing
        array = array.reshape(shape)
    if array.shape != tuple(shape):
        raise Unusable(f"expected shape {tuple(shape)}, got {array.shape}")
    return np.array(array, dtype=np.float64)


def serve(line: Connection, spec: str, functions: Sequence[str], most_memory: int) -> None:
    """Serve a backend in a process of its own until the connection is closed; a `BackendError` ends it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_memory, most_memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv[:] = ["refgeo"]
    capture, problem = OutputCapture(owns_process=True), ""
    try:
        implementation = load(spec)
        host = Host(implementation, functions, capture, Coverage(spec))  # of calls: importing is slow under a tracer
    except BackendError as error:
        problem = str(error)
    except ImportError as error:
        problem = f"importing coverage, which refgeo needs, failed: {error}"
    own, forks, decoder = os.getpid(), list[bool](), CallDecoder()
    copies_read, copies_write = os.pipe()
    os.register_at_fork(after_in_parent=lambda: forks.append(True))
    while True:  # plain data alone, which any copy of this module understands
        number, data = line.recv()
        if problem:
            send(line, (number, (), (BackendError.__name__, problem), {}))
            return
        answer = host.answer(decoder.decode(*data))
        if os.getpid() != own:  # a copy of the process that has returned from the function, too
            os.write(copies_write, b"1")
            os._exit(0)
        if forks and select.select([copies_read], [], [], _FORK_DELAY)[0]:
            os.read(copies_read, 1)
            answer = Answer(failure=NoResult(Event.FAILED, "it forks, and both processes return from the function"))
        forks.clear()
        failure = answer.failure and (answer.failure.event.name, str(answer.failure))
        send(line, (number, answer.parts, failure, answer.breaches))
