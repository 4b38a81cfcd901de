"""Backends: somebody's functions, found and called in one way."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.worker import Overdue, Worker
from refgeo.pair import Array, Pair

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "inner_product": ("a", "b"),
    "horizontal_projection": ("v",),
    "riemannian_gradient": ("e",),
    "riemannian_hessian": ("e", "w", "v"),
    "christoffel": ("a", "b"),
    "geodesic": ("v",),
}
"""Every function of a backend and the vectors that it gets, each as two arrays, after the metric and the point."""

FUNCTIONS = tuple(ARGUMENTS)

TIMEOUT = 60.0
"""Seconds that one call may take by default: compilers get their time, a hanging call does not hold up the run."""


class BackendError(ValueError):
    """A backend cannot be found, or provides nothing to check."""


class BackendFailure(Exception):
    """A call of a backend that gave no result: it raised, or returned a wrong type or shape."""


class Backend:
    """The functions of a module or object, with conversion of arrays both ways.

    Parameters
    ----------
    implementation : module or object
        Anything with some of the functions ``inner_product(metric, G, H, a_G, a_H, b_G, b_H)``,
        ``horizontal_projection(metric, G, H, v_G, v_H)``, ``riemannian_gradient(metric, G, H, e_G, e_H)``,
        ``riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H)`` (w: the Euclidean Hessian applied to v),
        ``christoffel(metric, G, H, a_G, a_H, b_G, b_H)``, ``geodesic(metric, G, H, v_G, v_H, t, order)``; optionally
        ``asarray`` (from NumPy, default: unchanged) and ``to_numpy`` (back, default: ``numpy.asarray``).
    name : str, optional
        How reports call it.
    timeout : float
        Seconds that one call may take. A function that takes longer is not called again.

    Attributes
    ----------
    spec : str or None
        What to give to `load` to get it again; None for an object that has no name.

    Raises
    ------
    BackendError
        It has none of the functions.

    Examples
    --------
    >>> from refgeo import formulas
    >>> Backend(formulas).name
    'refgeo.formulas'
    """

    def __init__(self, implementation: Any, name: str | None = None, timeout: float = TIMEOUT) -> None:
        self.implementation = implementation
        self.spec: str | None = None
        self.timeout = timeout
        self._hanging: set[str] = set()
        self._worker = Worker()
        self.name = name or getattr(implementation, "__name__", None) or type(implementation).__name__
        if self.name != "__main__" and sys.modules.get(self.name) is implementation:
            self.spec = self.name
        if not any(self.provides(function) for function in FUNCTIONS):
            raise BackendError(
                f"backend {self.name}: expected at least one of the functions {', '.join(FUNCTIONS)}, found none; see "
                'the section "Check your implementation" of the README'
            )

    @classmethod
    def load(cls, spec: str, timeout: float = TIMEOUT) -> Backend:
        """The backend named by ``module``, ``module:object`` or ``path/to/file.py`` (also ``file.py:object``).

        Raises
        ------
        BackendError
            It cannot be imported, or the object does not exist.

        Examples
        --------
        >>> Backend.load("refgeo.formulas").provides("geodesic")
        True
        """
        place, _, attribute = spec.partition(":")
        implementation: Any = _import(place)
        for part in filter(None, attribute.split(".")):
            if not hasattr(implementation, part):
                raise BackendError(f"backend {spec}: {place} was imported but has no {attribute!r}")
            implementation = getattr(implementation, part)
        backend = cls(implementation, spec, timeout)
        backend.spec = spec
        return backend

    @classmethod
    def of(cls, given: Any, timeout: float = TIMEOUT) -> Backend:
        """The backend that somebody means: one already, a name, or a module or object.

        Examples
        --------
        >>> Backend.of("refgeo.formulas").spec
        'refgeo.formulas'
        """
        if isinstance(given, Backend):
            return given
        return cls.load(given, timeout) if isinstance(given, str) else cls(given, timeout=timeout)

    def provides(self, function: str) -> bool:
        """Whether the backend has `function`.

        Examples
        --------
        >>> Backend.load("refgeo.formulas").provides("sharpness")
        False
        """
        try:
            return callable(getattr(self.implementation, function, None))
        except Exception:  # somebody's property raises: it is there, and calling it will say why it fails
            return True

    def call(
        self, function: str, metric: str, arrays: list[npt.NDArray[Any]], extra: tuple[Any, ...], shapes: list[Any]
    ) -> list[Array]:
        """Call a function and return its results as float64 arrays of the expected `shapes`.

        Raises
        ------
        BackendFailure
            The function raised (anything but NotImplementedError), or its result has the wrong type, number of parts,
            dtype or shape.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> Backend.load("refgeo.formulas").call("riemannian_gradient", "inv", [one] * 4, (), [(1, 1)] * 2)
        [array([[1.]]), array([[1.]])]
        """

        def job() -> list[Array]:
            parts = _parts(self._apply(function, metric, self._converted(arrays), extra), len(shapes))
            return [_as_float64(self._back(part), shape) for part, shape in zip(parts, shapes, strict=True)]

        result: list[Array] = self._run(function, job)
        return result

    def observe(
        self, function: str, metric: str, arrays: list[npt.NDArray[Any]], extra: tuple[Any, ...]
    ) -> Observation:
        """Call a function and report what it did besides returning.

        Raises
        ------
        BackendFailure
            The function raised, or its result is no array.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> Backend.load("refgeo.formulas").observe("riemannian_gradient", "inv", [one] * 4, ()).dtypes
        ('float64', 'float64')
        """
        before = [array.copy() for array in arrays]
        printed = io.StringIO()

        def job() -> tuple[list[str], list[npt.NDArray[Any]]]:
            converted = self._converted(arrays)
            result = self._apply(function, metric, converted, extra)
            parts = result if isinstance(result, (tuple, list, Pair)) else [result]
            return [np.asarray(self._back(part)).dtype.name for part in parts], [self._back(x) for x in converted]

        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            dtypes, after = self._run(function, job)
        return Observation(
            dtypes=tuple(dtypes),
            changed_inputs=tuple(
                i
                for i, (old, array, new) in enumerate(zip(before, arrays, after, strict=True))
                if not (np.array_equal(old, array) and np.array_equal(old, new))
            ),
            printed=printed.getvalue(),
        )

    def _converted(self, arrays: list[npt.NDArray[Any]]) -> list[Any]:
        convert = getattr(self.implementation, "asarray", None)
        return list(arrays) if convert is None else [convert(array) for array in arrays]

    def _back(self, array: Any) -> npt.NDArray[Any]:
        back = getattr(self.implementation, "to_numpy", None)
        return np.asarray(array if back is None else back(array))

    def _apply(self, function: str, metric: str, arrays: list[Any], extra: tuple[Any, ...]) -> Any:
        return getattr(self.implementation, function)(metric, *arrays, *extra)

    def _run(self, name: str, job: Callable[[], Any]) -> Any:
        """Call somebody's code: within the time limit, and whatever it raises, sys.exit included, as BackendFailure."""
        if name in self._hanging:
            raise BackendFailure(f"{name} did not return within {self.timeout:g} s before; not called again")
        try:
            result, error = self._worker.run(job, (), self.timeout)
        except Overdue:
            self._hanging.add(name)
            self._worker = Worker()
            raise BackendFailure(f"{name} did not return within {self.timeout:g} s (--timeout)") from None
        if isinstance(error, BackendFailure):
            raise error
        if isinstance(error, NotImplementedError):
            raise NotImplementedError(_text_of(error)) from None
        if error is not None:
            raise BackendFailure(f"{type(error).__name__}: {_text_of(error)}") from error
        return result


@dataclass(frozen=True)
class Observation:
    """What a call did besides returning: dtypes of the results, indices of changed inputs, text printed."""

    dtypes: tuple[str, ...]
    changed_inputs: tuple[int, ...]
    printed: str


def _text_of(error: BaseException) -> str:
    """What an exception says, in characters that a file can hold; somebody's ``__str__`` may itself raise."""
    try:
        return str(error).encode("utf-8", "replace").decode("utf-8")
    except Exception:
        return "(no message)"


def _parts(result: Any, count: int) -> list[Any]:
    if isinstance(result, Pair):
        result = tuple(result)
    if count == 1:
        return [result]
    if not isinstance(result, (tuple, list)) or len(result) != count:
        got = f"{len(result)} parts" if isinstance(result, (tuple, list)) else type(result).__name__
        raise BackendFailure(f"expected a tuple of {count} arrays (G part, H part), got {got}")
    return list(result)


def _as_float64(value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise BackendFailure(f"expected real numbers, got dtype {array.dtype} (type {type(value).__name__})")
    if array.shape != shape:
        raise BackendFailure(f"expected shape {shape}, got {array.shape}")
    return np.array(array, dtype=np.float64)


def _import(place: str) -> Any:
    path = Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            raise BackendError(f"backend {place}: no such file")
        spec = importlib.util.spec_from_file_location(f"refgeo_backend_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise BackendError(f"backend {place}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)  # and it stays: functions may import their neighbours when called
        _executed(place, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
        return module
    if "" not in sys.path:
        sys.path.append("")
    return _executed(place, lambda: importlib.import_module(place))


def _executed(place: str, load: Callable[[], Any]) -> Any:
    """Import somebody's code; whatever it raises, sys.exit included, is a `BackendError`."""
    arguments, sys.argv = sys.argv, [place]
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BackendError(
            f"backend {place}: importing it raised {type(error).__name__}: {error}; expected module, module:object or "
            "the path of a .py file"
        ) from error
    finally:
        sys.argv = arguments
