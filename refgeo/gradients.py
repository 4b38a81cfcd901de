"""Gradients by autograd, at the edge: the core needs none, and any other program can take this one's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import autograd
import numpy as np
import numpy.typing as npt

from refgeo.pair import Pair


def value_and_grad(loss: Callable[..., Any], *, dtype: npt.DTypeLike = np.float64) -> Callable[..., tuple[float, Any]]:
    """A function that returns a loss and its gradient, by autograd.

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

    def of_tree(tree: Any, kinds: Any, rest: tuple[Any, ...]) -> Any:
        return loss(_with_factors(tree, kinds), *rest)

    differentiate = autograd.value_and_grad(of_tree)

    def evaluate(params: Any, *rest: Any) -> tuple[float, Any]:
        kinds = _kinds(params)
        value, gradient = differentiate(_without_pairs(params, np.dtype(dtype)), kinds, rest)
        return float(value), _with_pairs(gradient, kinds)

    return evaluate


class Factors:
    """What stands for a `Pair` while autograd traces a loss."""

    def __init__(self, G: Any, H: Any) -> None:
        self.G, self.H = G, H

    def __iter__(self) -> Any:
        return iter((self.G, self.H))


def _kinds(params: Any) -> Any:
    if isinstance(params, Mapping):
        return {name: _kinds(part) for name, part in params.items()}
    return Pair if isinstance(params, Pair) else np.ndarray


def _without_pairs(params: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(params, Mapping):
        return {name: _without_pairs(part, dtype) for name, part in params.items()}
    if isinstance(params, Pair):
        return tuple(factor.astype(dtype, copy=False) for factor in params)
    return np.asarray(params).astype(dtype, copy=False)


def _with_factors(tree: Any, kinds: Any) -> Any:
    if isinstance(kinds, dict):
        return {name: _with_factors(tree[name], kind) for name, kind in kinds.items()}
    return Factors(tree[0], tree[1]) if kinds is Pair else tree


def _with_pairs(tree: Any, kinds: Any) -> Any:
    if isinstance(kinds, dict):
        return {name: _with_pairs(tree[name], kind) for name, kind in kinds.items()}
    if kinds is Pair:  # which may hold NaN: a search undoes such a step
        return Pair.unchecked(*(np.asarray(factor, dtype=np.float64) for factor in tree))
    return tree
