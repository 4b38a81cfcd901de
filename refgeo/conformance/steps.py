"""Trajectories of an update rule with state, in the process that calls it: an optimiser of PyTorch, or a function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refgeo.support.arguments import Array

RULES = ("step", "make")
"""``step(state, G, H, e_G, e_H) -> (state, G, H)``, and ``make(params) -> optimizer``."""
_ARGUMENTS = {5: "step", 1: "make"}

Rule = Callable[..., tuple[Any, Any]]
"""From G, H and the gradients to the next G and H."""


@dataclass(frozen=True)
class Walk:
    """How a trajectory is made.

    Attributes
    ----------
    count : int
        Steps.
    scale, size : float
        Of the loss ``scale · size · Σ log cosh((X − Y)/size)`` of X = G Hᵀ, whose gradient in X is bounded.
    noise : float
        By which random share every number of G and H is changed before every step.
    seed : int
        Of the noise.
    options : mapping
        Of the rule: its keyword arguments.
    """

    count: int
    scale: float
    size: float
    noise: float = 0.0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def rule_of(function: Callable[..., Any]) -> str:
    """Which of the rules a function alone is, by how many arguments it must get; "" if it is none of them.

    Examples
    --------
    >>> rule_of(lambda state, G, H, e_G, e_H: (state, G, H)), rule_of(lambda params, lr=0.1: None)
    ('step', 'make')
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return _ARGUMENTS.get(sum(one.kind in plain and one.default is inspect.Parameter.empty for one in parameters), "")


def trajectory(
    implementation: Any,
    function: str,
    arrays: list[Array],
    walk: Walk,
    convert: Callable[[Any], Any],
    read: Callable[[Any, tuple[int, ...]], Array],
) -> list[Array]:
    """G and H before every step and after the last one; NaN from where a number is not finite.

    Parameters
    ----------
    arrays : list of ndarray
        G, H and Y.
    convert, read : callable
        To the rule's kind of array, and back to float64 of a known shape.
    """
    G, H, Y = arrays
    dtype, shapes, rng = G.dtype, (G.shape, H.shape), np.random.default_rng(walk.seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    kept = [np.full((walk.count + 1, *shape), np.nan) for shape in shapes]
    if function == "make":
        rule, now = _optimiser(implementation.make, G, H, walk.options)
    else:
        rule, now = _plain(implementation.step, walk.options), (convert(G), convert(H))
    for k in range(walk.count + 1):
        numbers = [read(x, shape) for x, shape in zip(now, shapes, strict=True)]
        if not all(np.isfinite(x).all() for x in numbers):
            break
        for place, x in zip(kept, numbers, strict=True):
            place[k] = x
        if k == walk.count:
            break
        if walk.noise:
            numbers = [(x * (1.0 + walk.noise * rng.standard_normal(x.shape))).astype(dtype) for x in numbers]
            now = tuple(convert(x) for x in numbers)
        E = walk.scale * np.tanh((numbers[0] @ numbers[1].mT - Y) / walk.size)
        gradients = (convert((E @ numbers[1]).astype(dtype)), convert((E.mT @ numbers[0]).astype(dtype)))
        now = rule(*now, *gradients)
    return kept


def _plain(step: Callable[..., Any], options: Mapping[str, Any]) -> Rule:
    state: Any = None

    def rule(G: Any, H: Any, e_G: Any, e_H: Any) -> tuple[Any, Any]:
        nonlocal state
        state, G, H = step(state, G, H, e_G, e_H, **options)
        return G, H

    return rule


def _optimiser(make: Callable[..., Any], G: Array, H: Array, options: Mapping[str, Any]) -> tuple[Rule, Any]:
    """An optimiser of the two parameters, as a rule; and the parameters, as arrays."""
    import torch

    params = [torch.nn.Parameter(torch.tensor(np.ascontiguousarray(x))) for x in (G, H)]
    optimizer = make(list(params), **options)

    def rule(*numbers: Any) -> tuple[Any, Any]:
        optimizer.zero_grad()
        with torch.no_grad():
            for param, x, gradient in zip(params, numbers[:2], numbers[2:], strict=True):
                param.copy_(torch.as_tensor(x))
                param.grad = torch.tensor(np.asarray(gradient))
        optimizer.step()
        first, second = (param.detach().numpy().copy() for param in params)
        return first, second

    return rule, (G, H)
