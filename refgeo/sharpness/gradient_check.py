"""Is the gradient that somebody gives the gradient of the loss? By differences, before anything is built on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refgeo.sharpness.auto_pgd import norm
from refgeo.sharpness.noise import CLEAR, least_noise
from refgeo.sharpness.objective import Objective, check_symmetry
from refgeo.sharpness.parameters import (
    Arrays,
    Calls,
    LossAndGradient,
    Name,
    Parameters,
    checked_evaluation,
    refuse_chance,
)
from refgeo.support.arguments import Array

_AGREE = 0.1
"""A difference quotient this close to the slope confirms it: a wrong gradient is off by more, rounding by less."""
_AGREE_AT_RANDOM = 0.03
"""Along a random direction, where a part that is left out is one of many."""
_CONVERGED = 0.3
"""Two quotients that agree to this share of what is asked for are the slope, whatever the gradient says."""
_SILENT = "the loss changes, but the gradient is zero"
_FAR = 10.0
"""Differences may be so many times as long where rounding hides the slope."""
_ASIDE = 0.1
"""So far aside, as a share of the parameters, a gradient that is zero is asked for again."""
_STEPS = 9
"""Of differences, each a tenth of the one before."""
_FINE = 1e-3
"""So close a difference is looked for where the disagreement is told."""
_MOST = 6
"""So many blocks are named."""


def check_gradient(
    value_and_grad: LossAndGradient,
    params: Any,
    *,
    tolerance: float = _AGREE,
    rng: np.random.Generator | int | None = 0,
) -> dict[str, float]:
    """Compare a gradient with differences of its loss, block by block.

    Every block is moved alone, along its gradient and along a random direction, by smaller and smaller steps until the
    difference quotient agrees with the gradient, or has converged to something else.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(params) -> (loss, grads)``.
    params : Pair, array or dict of these
    tolerance : float
        Relative disagreement that is an error.
    rng : numpy Generator, or a seed

    Returns
    -------
    dict of str to float
        The relative disagreement of every block (of ``name.G`` and ``name.H`` for a pair); nan where rounding hides the
        slope along one of the two directions, so that it cannot be told.

    Raises
    ------
    ValueError
        A block disagrees, or the loss differs when it is evaluated again.

    Examples
    --------
    >>> import refgeo as rg
    >>> def loss(w):
    ...     return float(np.sum(w**3)), 3 * w**2
    >>> max(rg.check_gradient(loss, np.array([1.0, 2.0])).values()) < 1e-3
    True
    >>> rg.check_gradient(lambda w: (float(np.sum(w**3)), 2 * w**2), np.array([1.0, 2.0]))
    Traceback (most recent call last):
    ...
    ValueError: value_and_grad: the gradient is not that of the loss; parameters: the loss changes ...
    """
    with Calls("value_and_grad", value_and_grad):
        return _checked(value_and_grad, params, tolerance, np.random.default_rng(rng))


def _checked(
    value_and_grad: LossAndGradient, params: Any, tolerance: float, generator: np.random.Generator
) -> dict[str, float]:
    loss, grads = checked_evaluation(value_and_grad(params))
    if not math.isfinite(loss):
        raise ValueError(f"value_and_grad: expected a finite loss, got {loss}")
    arrays = _moving(params, grads)
    if not arrays.given:
        raise ValueError(f"value_and_grad: expected gradients among {', '.join(params)}, got {', '.join(grads)}")
    of_arrays = arrays.value_and_grad(value_and_grad)
    again, gradients = of_arrays(arrays.given)
    refuse_chance(loss, again)
    rounding = measured_noise(value_and_grad, arrays)
    found: dict[str, float] = {}
    silent = _unsaid(value_and_grad, arrays, gradients, rounding)
    complaints = [f"{arrays.label(name)}: {_SILENT}" for name in silent.wrong]
    for name, gradient in gradients.items():
        given = arrays.given[name]

        def change(by: Array, name: Name = name, given: Array = given) -> float:
            return of_arrays({name: given + by})[0] - loss

        step = 1e-2 * (float(np.sqrt(np.mean(given**2))) or 1.0) * math.sqrt(given.size)
        told = [
            _disagreement(change, gradient, direction, rounding, _AGREE, step, _FAR * step, min(_FINE, tolerance))
            for direction in (gradient, generator.standard_normal(given.shape))
        ]
        label = arrays.label(name)
        seen = [one for one in told if one is not None]
        worst, said = max(seen, key=lambda one: one[0], default=(math.nan, ""))
        found[label] = worst if len(seen) == len(told) or worst > tolerance else math.nan
        if found[label] > tolerance:
            complaints.append(f"{label}: {said}")
        if len(complaints) >= _MOST:
            break
    if complaints:
        left = f"; of {len(gradients)} blocks {len(found)} were looked at" if len(found) < len(gradients) else ""
        raise ValueError(f"value_and_grad: the gradient is not that of the loss; {'; '.join(complaints)}{left}")
    return found


def _moving(params: Any, grads: Any) -> Arrays:
    """The arrays that have a gradient; others are frozen."""
    parameters = Parameters(params)
    given = parameters.gradients(grads)
    return Arrays(params, [block for block in parameters.blocks if block in given])


def _disagreement(
    change: Callable[[Array], float],
    gradient: Array,
    direction: Array,
    rounding: float,
    agree: float,
    step: float,
    longest: float,
    enough: float | None = None,
) -> tuple[float, str] | None:
    """How far the gradient is from what the loss does along a direction, relative, and that in words; None where
    nothing can be told. Where the noise of the loss, `rounding`, hides the slope at `step`, a step up to `longest` is
    taken.
    """
    length, size = float(np.linalg.norm(direction)), float(np.linalg.norm(gradient))
    if not 0.0 < length < math.inf or not math.isfinite(size):
        return None
    unit = direction / length
    slope = float(np.vdot(gradient, unit))
    beside = max(abs(slope), size / math.sqrt(gradient.size))
    if beside == 0.0:
        return 0.0, ""  # `_unsaid` asks

    def along(s: float) -> float:
        return change(s * unit)

    telling = 10.0 * CLEAR * rounding / (_CONVERGED * agree * beside)
    quotient = _slope_by_differences(
        along, slope, beside, rounding, max(step, min(telling, longest)), agree, enough or agree
    )
    if quotient is None:
        return None
    said = f" {quotient / slope:.3g} times as much as the gradient says" if slope else ", but the gradient says 0"
    return abs(quotient - slope) / beside, f"the loss changes{said}"


class Seen(NamedTuple):
    """What was seen of a loss before a search: its noise, and along which directions rounding hides the slope."""

    noise: float
    untold: tuple[str, ...]


def verify(
    objective: Objective, radius: float, value_and_grad: LossAndGradient, params: Any, rounding: float | None = None
) -> Seen:
    """What a search rests on: an error if any of it is not there.

    The loss is the same twice; no part of the gradient is zero without reason; differences along the gradient, which a
    wrong factor shows in, and along a random direction, for what it leaves out, agree with it as far as the noise
    tells, which is measured unless it is known; the loss has the symmetries that the metric divides out.
    """
    arrays = Arrays(params, objective.space.that_move or None)
    again, slopes = arrays.value_and_grad(value_and_grad)(arrays.given)
    refuse_chance(objective.loss, again)
    if objective.is_flat:
        return Seen(math.nan, ())
    _refuse_silent_parts(value_and_grad, arrays, slopes)
    del slopes  # as long as the parameters
    gradient, size = objective.gradient_at_origin, objective.space.size

    def change(x: Array) -> float:
        return objective(x)[0]

    def random(seed: int) -> Array:
        return objective.space.random_direction(np.random.default_rng(seed))

    def along(seed: int) -> Callable[[float], float]:
        direction = random(seed)
        unit = size / (norm(direction) or 1.0)
        return lambda t: objective.loss + objective((t * unit) * direction)[0]

    if rounding is None:
        rounding = least_noise(along)
    untold = []
    for name, agree in (("the gradient", _AGREE), ("a random direction", _AGREE_AT_RANDOM)):
        direction = gradient if name == "the gradient" else random(0)
        found = _disagreement(change, gradient, direction, rounding, agree, 0.1 * radius, 0.1 * size)
        if found is None and direction.any():
            untold.append(name)
        elif found is not None and found[0] > agree:
            check_gradient(value_and_grad, params)  # which names the block
            # without a symmetry, differences along geodesics may be none of the loss's
            check_symmetry(objective.space, value_and_grad, rounding)
            raise ValueError(f"value_and_grad: along {name}, {found[1]}; verify=False turns this check off")
    check_symmetry(objective.space, value_and_grad, rounding)
    return Seen(rounding, tuple(untold))


class Unsaid(NamedTuple):
    """Arrays whose gradient is zero at θ and beside it: those with which the loss changes all the same, and others."""

    wrong: list[Name]
    idle: list[Name]


def _unsaid(
    value_and_grad: LossAndGradient, arrays: Arrays, slopes: Mapping[Name, Array], rounding: float | None = None
) -> Unsaid:
    """Of each of the first few, one more change beside θ tells, if it is more than the noise of the loss."""
    found, of_arrays = Unsaid([], []), arrays.value_and_grad(value_and_grad)
    silent = [name for name, slope in slopes.items() if slope.size and not slope.any()]
    if not silent:
        return found
    near, rounding = _aside(arrays.given, 0), measured_noise(value_and_grad, arrays) if rounding is None else rounding
    here, slopes = of_arrays(near)
    for name in [name for name in silent if name in slopes and not slopes[name].any()][:_MOST]:
        change = abs(of_arrays({**near, **_aside({name: near[name]}, 1)})[0] - here)
        (found.wrong if change > CLEAR * rounding else found.idle).append(name)
    return found


def _refuse_silent_parts(value_and_grad: LossAndGradient, arrays: Arrays, slopes: Mapping[Name, Array]) -> None:
    """An error where the gradient of an array that is to move is zero, and is wrong or the loss ignores the array."""
    found = _unsaid(value_and_grad, arrays, slopes)
    if found.wrong:
        raise ValueError(
            f"value_and_grad: the gradient is not that of the loss; {', '.join(map(arrays.label, found.wrong))}: "
            f"{_SILENT}. Are gradients off where it is computed (no_grad, detach)? verify=False turns this check off"
        )
    if found.idle and len(found.idle) < len(arrays.given):  # a loss that ignores all is flat, and a search says so
        raise ValueError(
            f"value_and_grad: the loss does not depend on {', '.join(map(arrays.label, found.idle))}, which is to "
            f"move: beside its noise, a change of {_ASIDE:.0%} does nothing to it. Does it use other weights than it "
            "is given? If it is meant, leave the block out of the metric, or freeze it; verify=False turns this check "
            "off"
        )


def _direction(arrays: Mapping[Name, Array], seed: int) -> dict[Name, Array]:
    """Random, in every array as long as the array is."""
    rng = np.random.default_rng(seed)
    return {name: (float(np.sqrt(np.mean(x**2))) or 1.0) * rng.standard_normal(x.shape) for name, x in arrays.items()}


def _aside(arrays: Mapping[Name, Array], seed: int) -> dict[Name, Array]:
    direction = _direction(arrays, seed)
    return {name: x + _ASIDE * direction[name] for name, x in arrays.items()}


def measured_noise(value_and_grad: LossAndGradient, arrays: Arrays) -> float:
    """What the values of a loss are off by, from seven of them.

    Examples
    --------
    >>> single = lambda w: (float(np.float32(np.sum(np.sin(w)))), np.cos(w))
    >>> 1e-8 < measured_noise(single, Arrays(np.ones(2))) < 1e-6
    True
    """
    of_arrays = arrays.value_and_grad(value_and_grad)

    def along(seed: int) -> Callable[[float], float]:
        direction = _direction(arrays.given, seed)
        return lambda t: of_arrays({name: x + t * direction[name] for name, x in arrays.given.items()})[0]

    return least_noise(along)


def verify_unchanged(objective: Objective) -> None:
    """One evaluation again at the parameters, after the search: an error if it has changed them."""
    again, _ = objective(objective.origin)
    when = " before and after the search; does the function change the model"
    refuse_chance(objective.loss, objective.loss + again, when)


def _slope_by_differences(
    change: Callable[[float], float],
    slope: float,
    scale: float,
    rounding: float,
    step: float,
    agree: float,
    enough: float,
) -> float | None:
    """A central difference that agrees with the slope to a share that is `enough`, or else the one that agrees best.

    Where none agrees, the one of the shortest step that noise allows, if the step before and the differences on both
    sides give the same: where there are kinks within a step they do not. None if nothing can be told.
    """
    seen: list[float] = []
    apart = math.inf
    for _ in range(_STEPS):
        ahead, behind, error = change(step), change(-step), CLEAR * rounding / step
        if math.isfinite(ahead) and math.isfinite(behind):
            quotient = (ahead - behind) / (2.0 * step)
            off = abs(quotient - slope)
            if error > max(_CONVERGED * agree * scale, _CONVERGED * off):
                break  # noise is more than what could be told
            seen.append(quotient)
            apart = abs(ahead + behind) / step
            if off <= enough * scale:
                return quotient
        step *= 0.1
    best = min(seen, key=lambda one: abs(one - slope), default=None)
    if best is None or abs(best - slope) <= agree * scale:
        return best
    off = abs(seen[-1] - slope)
    settled = len(seen) > 1 and abs(seen[-1] - seen[-2]) <= _CONVERGED * off and apart <= off
    return seen[-1] if settled else None
