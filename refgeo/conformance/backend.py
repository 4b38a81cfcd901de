"""Backends: somebody's functions, found and called in one way."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.pair import Array

FUNCTIONS = ("inner_product", "horizontal_projection", "riemannian_gradient", "christoffel", "geodesic")


class BackendError(ValueError):
    """A backend cannot be found, or provides nothing to check."""


class WrongResultError(ValueError):
    """A backend returned something that is not a result: a wrong type or shape."""


class Backend:
    """The functions of a module or object, with conversion of arrays both ways.

    Parameters
    ----------
    implementation : module or object
        Anything with some of the functions ``inner_product(metric, G, H, a_G, a_H, b_G, b_H)``,
        ``horizontal_projection(metric, G, H, v_G, v_H)``, ``riemannian_gradient(metric, G, H, e_G, e_H)``,
        ``christoffel(metric, G, H, a_G, a_H, b_G, b_H)``, ``geodesic(metric, G, H, v_G, v_H, t, order)``; optionally
        ``asarray`` (from NumPy, default: unchanged) and ``to_numpy`` (back, default: ``numpy.asarray``).
    name : str, optional
        How reports call it.

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

    def __init__(self, implementation: Any, name: str | None = None) -> None:
        self.implementation = implementation
        self.name = name or getattr(implementation, "__name__", None) or type(implementation).__name__
        if not any(self.provides(function) for function in FUNCTIONS):
            raise BackendError(
                f"backend {self.name}: expected at least one of the functions {', '.join(FUNCTIONS)}, found none; see "
                'the section "Check your implementation" of the README'
            )

    @classmethod
    def load(cls, spec: str) -> Backend:
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
        return cls(implementation, spec)

    def provides(self, function: str) -> bool:
        """Whether the backend has `function`.

        Examples
        --------
        >>> Backend.load("refgeo.formulas").provides("sharpness")
        False
        """
        return callable(getattr(self.implementation, function, None))

    def call(
        self, function: str, metric: str, arrays: list[npt.NDArray[Any]], extra: tuple[Any, ...], shapes: list[Any]
    ) -> list[Array]:
        """Call a function and return its results as float64 arrays of the expected `shapes`.

        Raises
        ------
        WrongResultError
            The result has the wrong type, number of parts, dtype or shape.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> Backend.load("refgeo.formulas").call("riemannian_gradient", "inv", [one] * 4, (), [(1, 1)] * 2)
        [array([[1.]]), array([[1.]])]
        """
        convert = getattr(self.implementation, "asarray", None) or (lambda array: array)
        back = getattr(self.implementation, "to_numpy", None) or np.asarray
        result = getattr(self.implementation, function)(metric, *(convert(array) for array in arrays), *extra)
        if len(shapes) > 1:
            if not isinstance(result, (tuple, list)) or len(result) != len(shapes):
                got = f"{len(result)} parts" if isinstance(result, (tuple, list)) else type(result).__name__
                raise WrongResultError(f"expected a tuple of {len(shapes)} arrays (G part, H part), got {got}")
            parts = list(result)
        else:
            parts = [result]
        return [_as_float64(back(part), shape) for part, shape in zip(parts, shapes, strict=True)]


def _as_float64(value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise WrongResultError(f"expected real numbers, got dtype {array.dtype} (type {type(value).__name__})")
    if array.shape != shape:
        raise WrongResultError(f"expected shape {shape}, got {array.shape}")
    return np.array(array, dtype=np.float64)


def _import(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            raise BackendError(f"backend {place}: no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise BackendError(f"backend {place}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        sys.path.insert(0, str(path.resolve().parent))
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise BackendError(f"backend {place}: importing it raised {type(error).__name__}: {error}") from error
        finally:
            sys.path.pop(0)
        return module
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except Exception as error:
        raise BackendError(
            f"backend {place}: importing it raised {type(error).__name__}: {error}; expected module, module:object or "
            "the path of a .py file"
        ) from error
    finally:
        sys.path.pop(0)
