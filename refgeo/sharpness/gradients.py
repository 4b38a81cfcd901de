"""Gradients by autograd, at the edge: the core needs none, and any other program can take this one's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import autograd.numpy
import numpy as np
import numpy.typing as npt
from autograd.numpy.numpy_boxes import ArrayBox

from refgeo.geometry.pair import Pair

if not hasattr(ArrayBox, "mT"):  # which NumPy's arrays have, and `refgeo.paper` needs
    ArrayBox.mT = property(lambda box: autograd.numpy.swapaxes(box, -2, -1))


def value_and_grad(loss: Callable[..., Any], *, dtype: npt.DTypeLike = np.float64) -> Callable[..., tuple[float, Any]]:
    """Return a function that returns a loss and its gradient, by autograd.

    Parameters
    ----------
    loss : callable
        ``loss(params, *rest) -> number``, written with ``autograd.numpy``. In it, a `Pair` of the parameters is an
        object with the factors ``G`` and ``H`` that unpacks like one.
    dtype : dtype
        Parameters are handed to the loss in this precision, to see what a float32 loss does to a result.

    Returns
    -------
    callable
        ``(params, *rest) -> (float, gradients)``; parameters are a `Pair`, an array or a dict of these, and the
        gradients are alike.

    Examples
    --------
    >>> import refgeo as rg
    >>> import autograd.numpy as np
    >>> f = rg.value_and_grad(lambda pair: np.sum((pair.G @ pair.H.T) ** 2))
    >>> value, grad = f(rg.Pair([[2.0]], [[3.0]]))
    >>> value, grad.G.item(), grad.H.item()
    (36.0, 36.0, 24.0)
    """

    def of_tree(tree: Any, params: Any, rest: tuple[Any, ...]) -> Any:
        value = loss(
            _map_blocks(lambda of, part: Factors(*part) if isinstance(of, Pair) else part, params, tree), *rest
        )
        bare = value
        while isinstance(bare, ArrayBox):
            bare = bare._value
        if np.ma.is_masked(bare) or not isinstance(bare, (float, int, np.number, np.ndarray)) or np.iscomplexobj(bare):
            raise TypeError(f"loss: expected a function that returns one real number, got {type(bare).__name__}")
        if np.shape(bare) != ():
            raise TypeError(
                f"loss: expected a function that returns one real number, got the shape {np.shape(bare)}; return the "
                "mean or the sum"
            )
        return float(value) if isinstance(value, int) else value

    try:
        is_real = np.dtype(dtype).kind == "f"
    except TypeError:
        is_real = False
    if not is_real:
        raise ValueError(f"dtype: expected a real floating-point type of NumPy, such as np.float32, got {dtype!r}")
    differentiate = autograd.value_and_grad(of_tree)

    def bare(of: Any, _: Any) -> Any:
        factors = tuple(np.asarray(x).astype(dtype, copy=False) for x in (of if isinstance(of, Pair) else (of,)))
        return factors if isinstance(of, Pair) else factors[0]

    def evaluate(params: Any, *rest: Any) -> tuple[float, Any]:
        try:
            value, gradient = differentiate(_map_blocks(bare, params, params), params, rest)
        except (TypeError, ValueError, AttributeError) as error:
            if not any(words in str(error) for words in _UNTRACED):
                raise
            raise TypeError(
                f"loss: autograd cannot differentiate it: {error}; write it with autograd.numpy in the place of numpy "
                "and math, without float(), int(), and assignments to entries, or give a function that returns the "
                "loss and its gradient, from any other program"
            ) from error
        return float(value), _map_blocks(_as_given, params, gradient)

    return evaluate


_UNTRACED = ("ArrayBox", "setting an array element with a sequence")
"""Words of the errors that NumPy and Python raise if they get what autograd traces."""


class Factors(NamedTuple):
    """What stands for a `Pair` while autograd traces a loss."""

    G: Any
    H: Any


def _map_blocks(function: Callable[[Any, Any], Any], params: Any, tree: Any) -> Any:
    """Return ``function(parameters, part)`` of every block."""
    if isinstance(params, Mapping):
        return {name: _map_blocks(function, params[name], tree[name]) for name in params}
    return function(params, tree)


def _as_given(params: Any, gradient: Any) -> Any:
    if not isinstance(params, Pair):
        return gradient
    # which may hold NaN: a search undoes such a step
    return Pair.unchecked(*(np.asarray(factor, dtype=np.float64) for factor in gradient))
