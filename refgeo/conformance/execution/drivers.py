"""Give searches their loss, and run the steps of update rules, in the process of the backend."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.protocol.call import RULE_ARGUMENTS
from refgeo.support.arguments import Array

# Searches ------------------------------------------------------------------------------------------------------------


class Problem:
    """A loss with its gradient, which a sharpness routine gets in addition to the parameters.

    Attributes
    ----------
    X, y : ndarray
        The data of the loss ‖X(u ⊙ v) − y‖², for routines that do not use its gradient; diagonal networks only.
    calls : int
        The number of evaluations of the loss.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        convert: Callable[[Any], Any],
        back: Callable[[Any], Any],
        dtype: npt.DTypeLike = np.float64,
        is_diagonal: bool = True,
    ) -> None:
        self._X, self._y, self.calls = X, y, 0
        self._convert, self._back, self._dtype, self.is_diagonal = convert, back, dtype, is_diagonal

    @property
    def X(self) -> Array:
        """The matrix X, if the network is diagonal."""
        return self._refuse_general(self._X)

    @property
    def y(self) -> Array:
        """The vector y, if the network is diagonal."""
        return self._refuse_general(self._y)

    def _refuse_general(self, x: Array) -> Array:
        """Return an array, or raise an error if the network is not diagonal."""
        if not self.is_diagonal:
            raise NotImplementedError("X and y are those of diagonal networks, with G and H of shape (d, 1, 1)")
        return x

    def value_and_grad(self, G: Any, H: Any) -> tuple[float, tuple[Any, Any]]:
        """Return the loss ‖X vec(G Hᵀ) − y‖² and its gradient at (G, H), in the backend's kind of array."""
        self.calls += 1
        G, H = (np.asarray(self._back(x), dtype=np.float64) for x in (G, H))
        with np.errstate(all="ignore"):  # a warning of ours is not the routine's
            product = G @ H.mT
            r = self._X @ product.ravel() - self._y
            E = (2.0 * self._X.T @ r).reshape(product.shape)
            loss, gradients = (float(r @ r), [x.astype(self._dtype) for x in (E @ H, E.mT @ G)])
        e_G, e_H = map(self._convert, gradients)
        return loss, (e_G, e_H)


def wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the protocol's ``sharpness`` of ``function(value_and_grad, params, metric, rho)``; params is (G, H)."""

    def sharpness(metric: str, problem: Problem, G: Any, H: Any, rho: float, order: Any) -> Any:
        return function(lambda params: problem.value_and_grad(*params), (G, H), metric, rho)

    return sharpness


# Update rules --------------------------------------------------------------------------------------------------------


Rule = Callable[..., tuple[Any, Any]]
"""A function of G, H and their gradients that returns the next G and H."""


@dataclass(frozen=True)
class TrajectorySpec:
    """The number of steps of a trajectory, its loss, its noise and the options of the rule.

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


def rule_kind(function: Callable[..., Any]) -> str:
    """Return which update rule a function is, "step" or "make", by the number of its required arguments; "" if it is
    none.

    The names of these functions are common ones, so the arguments decide. A function whose first arguments are those of
    the protocol, and a class of optimisers, may have further required arguments, which are options.

    Examples
    --------
    >>> rule_kind(lambda state, G, H, e_G, e_H: (state, G, H)), rule_kind(lambda params, lr=0.1: None)
    ('step', 'make')
    """
    if isinstance(function, type) and all(hasattr(function, name) for name in ("step", "zero_grad")):
        return "make"
    required = required_arguments(function)
    of_names = (name for name, names in RULE_ARGUMENTS.items() if required[: len(names)] == names)
    return next((name for name, names in RULE_ARGUMENTS.items() if len(required) == len(names)), next(of_names, ""))


def required_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's required positional arguments; none if it has no signature.

    Examples
    --------
    >>> required_arguments(lambda factors, weights, rank=None: None)
    ('factors', 'weights')
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional and p.default is p.empty)


def _check_signature(function: Callable[..., Any], options: Mapping[str, Any], *arguments: Any) -> None:
    """Raise an error if a function that has a signature does not take these arguments."""
    with suppress(ValueError):
        inspect.signature(function).bind(*arguments, **options)


class _RandomNumbers:
    """The random numbers of one trajectory, which do not depend on other users of the process."""

    def __init__(self, seed: int) -> None:
        self._seed, self._states = seed, None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which the global generators continue this trajectory's numbers; they are restored after
        it.
        """
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
    """Return the states of the global generators of NumPy and PyTorch."""
    return np.random.get_state(), None if torch is None else torch.get_rng_state()  # noqa: NPY002


def _set_states(torch: Any, states: Any) -> None:
    """Set the states of the global generators of NumPy and PyTorch."""
    np.random.set_state(states[0])  # noqa: NPY002
    if torch is not None and states[1] is not None:
        torch.set_rng_state(states[1])


def loss_gradient(X: Array, Y: Array, scale: float, magnitude: float) -> Array:
    """Return the gradient in X of the loss of a `TrajectorySpec`."""
    return np.asarray(scale * np.tanh((X - Y) / magnitude))


def run_trajectory(
    implementation: Any,
    function: str,
    arrays: list[Array],
    request: TrajectorySpec,
    convert: Callable[[Any], Any],
    read: Callable[[Any, tuple[int, ...]], Array],
    breaches: dict[str, str],
) -> list[Array]:
    """Return G and H before every step and after the last one; NaN from where a number is not finite.

    Parameters
    ----------
    arrays : list of ndarray
        G, H and Y.
    convert, read : callable
        To the rule's kind of array, and back to float64 of a known shape.
    breaches : dict
        The rules of conduct that are broken, and how.
    """
    main = [np.full((request.count + 1, *x.shape), np.nan) for x in arrays[:2]]
    others = [[np.empty((request.count + 1, *x.shape)) for x in start[:2]] for start in request.between]
    runs = [
        (
            _steps(implementation, function, start, request, convert, read, breaches, out),
            _RandomNumbers(request.stream),
        )
        for start, out in zip((arrays, *request.between), (main, *others), strict=True)
    ]
    for _ in range(request.count + 1 if request.between else 1):
        for steps, numbers in runs:
            is_main = steps is runs[0][0]
            with numbers.active(), nullcontext() if is_main else suppress(Exception):  # errors of others are ignored
                list(itertools.islice(steps, 1 if request.between else None))
    return main


def _steps(
    implementation: Any, function: str, arrays: list[Array], request: TrajectorySpec, convert: Callable[[Any], Any],
    read: Callable[[Any, tuple[int, ...]], Array], breaches: dict[str, str], out: list[Array],
) -> Iterator[None]:  # fmt: skip
    """Make one step of a trajectory each time the next item is requested."""
    G, H, Y = arrays
    dtype, shapes, rng = G.dtype, (G.shape, H.shape), np.random.default_rng(request.seed)
    if function == "make":
        rule, current = _optimiser(implementation.make, G, H, request.options)
    else:
        rule, current = _as_rule(implementation.step, request.options), (convert(G), convert(H))
    for k in range(request.count + 1):
        numbers = [
            _read(read, x, shape, f"{name} after step {k}")
            for name, x, shape in zip("GH", current, shapes, strict=True)
        ]
        if not all(np.isfinite(x).all() for x in numbers):
            break
        for rows, x in zip(out, numbers, strict=True):
            rows[k] = x
        if k == request.count:
            break
        if request.noise:
            numbers = [(x * (1.0 + request.noise * rng.standard_normal(x.shape))).astype(dtype) for x in numbers]
            current = tuple(convert(x) for x in numbers)
        with np.errstate(all="ignore"):  # a warning of ours is not the rule's
            E = loss_gradient(numbers[0] @ numbers[1].mT, Y, request.scale, request.magnitude)
            numpy_gradients = [x.astype(dtype) for x in (E @ numbers[1], E.mT @ numbers[0])]
        gradients = tuple(map(convert, numpy_gradients))
        arguments, argument_shapes = (*current, *gradients), [np.shape(x) for x in (*current, *gradients)]
        before = [*numbers, *map(read, gradients, shapes)]
        try:
            current = rule(*arguments)
            if function == "step":  # an optimiser of PyTorch has its parameters to change
                changed = _find_mutations(arguments, argument_shapes, before, read)
                breaches |= {"inputs_unchanged": f"changed its input {changed}"} if changed else {}
        except Exception as error:
            error.add_note(f"at step {k + 1}")
            raise
        yield


def _read(read: Callable[[Any, tuple[int, ...]], Array], x: Any, shape: tuple[int, ...], what: str) -> Array:
    """Read an array; an error says which array, and after which step."""
    try:
        return read(x, shape)
    except Exception as error:
        error.args = (f"{what}: {error}",)
        raise


def _find_mutations(
    given: tuple[Any, ...], shapes: list[tuple[int, ...]], before: list[Array], read: Callable[..., Array]
) -> str:
    """Return the names of the arguments that a step has written to, or given another shape."""
    names = []
    for name, x, shape, old in zip(RULE_ARGUMENTS["step"][1:], given, shapes, before, strict=True):
        if np.shape(x) != shape or not np.array_equal(read(x, shape), old, equal_nan=True):
            names.append(name)
    return ", ".join(names)


def _as_rule(step: Callable[..., Any], options: Mapping[str, Any]) -> Rule:
    """Make a `Rule` of a function ``step``, which keeps the state."""
    state: Any = None
    _check_signature(step, options, *RULE_ARGUMENTS["step"])

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
    """Make a `Rule` of an optimiser of two parameters; also return the parameters after its construction, as arrays."""
    import torch

    params = [torch.nn.Parameter(torch.tensor(np.ascontiguousarray(x))) for x in (G, H)]
    _check_signature(make, options, params)
    optimizer = make(list(params), **options)
    if not callable(getattr(optimizer, "step", None)):
        raise TypeError(f"make must return an optimiser with a method step, got {type(optimizer).__name__}")
    if required_arguments(optimizer.step):
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
