"""Trajectories of an update rule with state, in the process that calls it: an optimiser of PyTorch, or a function."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refgeo.support.arguments import Array

RULE_ARGUMENTS = {"step": ("state", "G", "H", "e_G", "e_H"), "make": ("params",)}
"""What these functions get: ``step(state, G, H, e_G, e_H) -> (state, G, H)``, and ``make(params) -> optimizer``."""
UPDATE_RULES = (*RULE_ARGUMENTS,)

Rule = Callable[..., tuple[Any, Any]]
"""From G, H and the gradients to the next G and H."""


@dataclass(frozen=True)
class Walk:
    """How a trajectory is made.

    Attributes
    ----------
    count : int
        Steps.
    scale, magnitude : float
        Of the loss ``scale · magnitude · Σ log cosh((X − Y)/magnitude)`` of X = G Hᵀ, whose gradient in X is bounded.
    noise : float
        By which random share every number of G and H is changed before every step.
    seed : int
        Of the noise.
    options : mapping
        Of the rule: its keyword arguments.
    stream : int
        Of the random numbers that the rule itself may use.
    between : tuple of list of ndarray
        G, H and Y of other trajectories, each of which takes a step after every step of this one.
    """

    count: int
    scale: float
    magnitude: float
    noise: float = 0.0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    stream: int = 0
    between: tuple[list[Array], ...] = ()


def rule_of(function: Callable[..., Any]) -> str:
    """Which of the rules a function alone is, by how many arguments it must get, as the names of the functions are
    common ones; "" if it is none of them. A function with the very arguments of the protocol, and a class of
    optimisers, may have to get more, by options.

    Examples
    --------
    >>> rule_of(lambda state, G, H, e_G, e_H: (state, G, H)), rule_of(lambda params, lr=0.1: None)
    ('step', 'make')
    """
    if isinstance(function, type) and all(hasattr(function, name) for name in ("step", "zero_grad")):
        return "make"
    needed = needs(function)
    of_names = (name for name, names in RULE_ARGUMENTS.items() if needed[: len(names)] == names)
    return next((name for name, names in RULE_ARGUMENTS.items() if len(needed) == len(names)), next(of_names, ""))


def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments that a function must get, by position; none where it does not say so.

    Examples
    --------
    >>> needs(lambda factors, weights, rank=None: None)
    ('factors', 'weights')
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(one.name for one in parameters if one.kind in plain and one.default is inspect.Parameter.empty)


def _bound(function: Callable[..., Any], options: Mapping[str, Any], *arguments: Any) -> None:
    """An error if these are not the arguments of a function that says which it has."""
    with suppress(ValueError):
        inspect.signature(function).bind(*arguments, **options)


class _RandomNumbers:
    """Those of one trajectory, whoever else uses the process; the caller's stay as they are."""

    def __init__(self, seed: int) -> None:
        self._seed, self._states = seed, None

    @contextmanager
    def used(self) -> Iterator[None]:
        """They go on where they were left."""
        torch = sys.modules.get("torch")
        before = _states(torch)
        if self._states is None:
            np.random.seed(self._seed)  # noqa: NPY002  (the rule may use them)
            if torch is not None:
                torch.manual_seed(self._seed)
        else:
            _set_states(torch, self._states)
        try:
            yield
        finally:
            self._states = _states(torch)
            _set_states(torch, before)


def _states(torch: Any) -> Any:
    return np.random.get_state(), None if torch is None else torch.get_rng_state()  # noqa: NPY002


def _set_states(torch: Any, states: Any) -> None:
    np.random.set_state(states[0])  # noqa: NPY002
    if torch is not None and states[1] is not None:
        torch.set_rng_state(states[1])


def slope(X: Array, Y: Array, scale: float, magnitude: float) -> Array:
    """The gradient in X of the loss of a `Walk`."""
    return np.asarray(scale * np.tanh((X - Y) / magnitude))


def trajectory(
    implementation: Any,
    function: str,
    arrays: list[Array],
    walk: Walk,
    convert: Callable[[Any], Any],
    read: Callable[[Any, tuple[int, ...]], Array],
    breaches: dict[str, str],
) -> list[Array]:
    """G and H before every step and after the last one; NaN from where a number is not finite.

    Parameters
    ----------
    arrays : list of ndarray
        G, H and Y.
    convert, read : callable
        To the rule's kind of array, and back to float64 of a known shape.
    breaches : dict
        The rules of conduct that are broken, and how.
    """
    kept = [np.full((walk.count + 1, *x.shape), np.nan) for x in arrays[:2]]
    others = [[np.empty((walk.count + 1, *x.shape)) for x in some[:2]] for some in walk.between]
    together = [
        (_steps(implementation, function, some, walk, convert, read, breaches, into), _RandomNumbers(walk.stream))
        for some, into in zip((arrays, *walk.between), (kept, *others), strict=True)
    ]
    for _ in range(walk.count + 1 if walk.between else 1):
        for steps, numbers in together:
            mine = steps is together[0][0]
            with numbers.used(), nullcontext() if mine else suppress(Exception):  # an error of another one is not its
                list(itertools.islice(steps, 1 if walk.between else None))
    return kept


def _steps(
    implementation: Any, function: str, arrays: list[Array], walk: Walk, convert: Callable[[Any], Any],
    read: Callable[[Any, tuple[int, ...]], Array], breaches: dict[str, str], kept: list[Array],
) -> Iterator[None]:  # fmt: skip
    """One step whenever the next one is asked for."""
    G, H, Y = arrays
    dtype, shapes, rng = G.dtype, (G.shape, H.shape), np.random.default_rng(walk.seed)
    if function == "make":
        rule, now = _optimiser(implementation.make, G, H, walk.options)
    else:
        rule, now = _plain(implementation.step, walk.options), (convert(G), convert(H))
    for k in range(walk.count + 1):
        numbers = [
            _read(read, x, shape, f"{name} after step {k}") for name, x, shape in zip("GH", now, shapes, strict=True)
        ]
        if not all(np.isfinite(x).all() for x in numbers):
            break
        for place, x in zip(kept, numbers, strict=True):
            place[k] = x
        if k == walk.count:
            break
        if walk.noise:
            numbers = [(x * (1.0 + walk.noise * rng.standard_normal(x.shape))).astype(dtype) for x in numbers]
            now = tuple(convert(x) for x in numbers)
        with np.errstate(all="ignore"):  # a warning of ours is not the rule's
            E = slope(numbers[0] @ numbers[1].mT, Y, walk.scale, walk.magnitude)
            slopes = [x.astype(dtype) for x in (E @ numbers[1], E.mT @ numbers[0])]
        gradients = tuple(map(convert, slopes))
        given, shapes_given = (*now, *gradients), [np.shape(x) for x in (*now, *gradients)]
        before = [*numbers, *map(read, gradients, shapes)]
        try:
            now = rule(*given)
            if function == "step":  # an optimiser of PyTorch has its parameters to change
                changed = _changed(given, shapes_given, before, read)
                breaches |= {"inputs_unchanged": f"changed its input {changed}"} if changed else {}
        except Exception as error:
            error.add_note(f"at step {k + 1}")
            raise
        yield


def _read(read: Callable[[Any, tuple[int, ...]], Array], x: Any, shape: tuple[int, ...], what: str) -> Array:
    try:
        return read(x, shape)
    except Exception as error:
        error.args = (f"{what}: {error}",)
        raise


def _changed(
    given: tuple[Any, ...], shapes: list[tuple[int, ...]], before: list[Array], read: Callable[..., Array]
) -> str:
    """Which of its arrays a step has written to, or given another shape."""
    names = []
    for name, x, shape, old in zip(("G", "H", "e_G", "e_H"), given, shapes, before, strict=True):
        if np.shape(x) != shape or not np.array_equal(read(x, shape), old, equal_nan=True):
            names.append(name)
    return ", ".join(names)


def _plain(step: Callable[..., Any], options: Mapping[str, Any]) -> Rule:
    state: Any = None
    _bound(step, options, *RULE_ARGUMENTS["step"])

    def rule(G: Any, H: Any, e_G: Any, e_H: Any) -> tuple[Any, Any]:
        nonlocal state
        result = step(state, G, H, e_G, e_H, **options)
        if not isinstance(result, (tuple, list)) or len(result) != 3:
            got = f"{len(result)} values" if isinstance(result, (tuple, list)) else type(result).__name__
            raise TypeError(f"step must return (state, G, H), got {got}")
        state, G, H = result
        return G, H

    return rule


def _optimiser(make: Callable[..., Any], G: Array, H: Array, options: Mapping[str, Any]) -> tuple[Rule, Any]:
    """An optimiser of the two parameters, as a rule; and the parameters as it has left them, as arrays."""
    import torch

    params = [torch.nn.Parameter(torch.tensor(np.ascontiguousarray(x))) for x in (G, H)]
    _bound(make, options, params)
    optimizer = make(list(params), **options)
    if not callable(getattr(optimizer, "step", None)):
        raise TypeError(f"make must return an optimiser with a method step, got {type(optimizer).__name__}")
    if needs(optimizer.step):
        raise NotImplementedError("the method step of the optimiser needs a closure, which refgeo cannot give to it")

    def rule(*numbers: Any) -> tuple[Any, Any]:
        optimizer.zero_grad()
        with torch.no_grad():
            for param, x, gradient in zip(params, numbers[:2], numbers[2:], strict=True):
                param.copy_(torch.as_tensor(x))
                param.grad = torch.tensor(np.asarray(gradient))
        optimizer.step()
        return numbers_of()

    def numbers_of() -> tuple[Any, Any]:
        first, second = (param.detach().numpy().copy() for param in params)
        return first, second

    return rule, numbers_of()  # some change their parameters when they are made
