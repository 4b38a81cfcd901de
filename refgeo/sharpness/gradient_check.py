"""Is the gradient that somebody gives the gradient of the loss? By differences, before anything is built on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refgeo.sharpness.objective import Objective
from refgeo.sharpness.parameters import Arrays, LossAndGradient, Name, Parameters, checked_evaluation
from refgeo.support.arguments import Array

_AGREE = 0.1
"""A difference quotient this close to the slope confirms it: a wrong gradient is off by more, rounding by less."""
_AGREE_AT_RANDOM = 0.03
"""Along a random direction, where a part that is left out is one of many."""
_CONVERGED = 0.3
"""Two quotients that agree to this share of what is asked for are the slope, whatever the gradient says."""
_NOISE = 2.0**-23
"""Of a loss in float32, relative."""
_REPEATS = 1e-5
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
        The relative disagreement of every block (of ``name.G`` and ``name.H`` for a pair); nan where the loss is flat
        to rounding and nothing can be told.

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
    generator = np.random.default_rng(rng)
    if not callable(value_and_grad):
        raise TypeError(f"value_and_grad: expected a function of the parameters, got {type(value_and_grad).__name__}")
    loss, grads = checked_evaluation(value_and_grad(params))
    if not math.isfinite(loss):
        raise ValueError(f"value_and_grad: expected a finite loss, got {loss}")
    again, _ = checked_evaluation(value_and_grad(params))
    _refuse_chance(loss, again)
    found: dict[str, float] = {}
    complaints: list[str] = []
    arrays = _moving(params, grads)
    of_arrays, gradients = arrays.value_and_grad(value_and_grad), arrays.gradients(grads)
    for name, gradient in gradients.items():
        given = arrays.given[name]

        def change(by: Array, name: Name = name, given: Array = given) -> float:
            return of_arrays({name: given + by})[0] - loss

        step = 1e-2 * (float(np.sqrt(np.mean(given**2))) or 1.0) * math.sqrt(given.size)
        seen = [
            one
            for direction in (gradient, generator.standard_normal(given.shape))
            if (one := _disagreement(change, gradient, direction, loss, _AGREE, step, step)) is not None
        ]
        label = arrays.label(name)
        found[label], said = max(seen, key=lambda one: one[0], default=(math.nan, ""))
        if found[label] > tolerance:
            complaints.append(f"{label}: {said}")
        if len(complaints) == _MOST:
            break
    if not found:
        raise ValueError(f"value_and_grad: expected gradients among {', '.join(params)}, got {', '.join(grads)}")
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
    loss: float,
    agree: float,
    step: float,
    longest: float,
) -> tuple[float, str] | None:
    """How far the gradient is from what the loss does along a direction, relative, and that in words; None where
    nothing can be told. Where noise hides the slope at `step`, a step up to `longest` is taken.
    """
    length, size = float(np.linalg.norm(direction)), float(np.linalg.norm(gradient))
    if not 0.0 < length < math.inf or not math.isfinite(size):
        return None
    unit = direction / length
    slope = float(np.vdot(gradient, unit))
    beside = max(abs(slope), size / math.sqrt(gradient.size))

    def along(s: float) -> float:
        return change(s * unit)

    if beside == 0.0:
        return (1.0, "the loss changes, but the gradient is zero") if _is_sloped(along, loss, step) else None
    telling = 100.0 * _NOISE * abs(loss) / (_CONVERGED * agree * beside)
    quotient = _slope_by_differences(along, slope, beside, loss, max(step, min(telling, longest)), agree)
    if quotient is None:
        return None
    said = f" {quotient / slope:.3g} times as much as the gradient says" if slope else ", but the gradient says 0"
    return abs(quotient - slope) / beside, f"the loss changes{said}"


def verify(objective: Objective, radius: float, value_and_grad: LossAndGradient, params: Any) -> None:
    """One evaluation again at the parameters, a difference along the gradient, which a wrong factor shows in, and one
    along a random direction, for what it leaves out, and one evaluation on the orbit: an error if any of it tells of a
    mistake.
    """
    again, _ = objective(objective.origin)
    _refuse_chance(objective.loss, objective.loss + again)
    gradient, longest = objective.gradient_at_origin, 1e-2 * objective.space.size  # short beside the parameters

    def change(x: Array) -> float:
        return objective(x)[0]

    for name, direction, agree in (
        ("the gradient", gradient, _AGREE),
        ("a random direction", objective.space.random_direction(np.random.default_rng(0)), _AGREE_AT_RANDOM),
    ):
        found = _disagreement(change, gradient, direction, objective.loss, agree, 0.1 * radius, longest)
        if found is not None and found[0] > agree:
            check_gradient(value_and_grad, params)  # which names the block
            raise ValueError(f"value_and_grad: along {name}, {found[1]}; verify=False turns this check off")
    objective.check_symmetry()


def verify_unchanged(objective: Objective) -> None:
    """One evaluation again at the parameters, after the search: an error if it has changed them."""
    again, _ = objective(objective.origin)
    when = " before and after the search; does the function change the model"
    _refuse_chance(objective.loss, objective.loss + again, when)


def _refuse_chance(
    loss: float, again: float, when: str = "; is dropout on, or does the function change the model"
) -> None:
    if abs(again - loss) > _REPEATS * max(abs(loss), abs(again)):
        raise ValueError(
            f"value_and_grad: two calls with the same parameters gave the losses {loss:.8g} and {again:.8g}{when}? "
            "(module.eval(), a fixed batch and a fixed seed help; verify=False turns this check off)"
        )


def _slope_by_differences(
    change: Callable[[float], float], slope: float, scale: float, loss: float, step: float, agree: float
) -> float | None:
    """A central difference that agrees with the slope, or that smaller steps converge to; None if rounding hides it."""
    before = None
    for _ in range(6):
        if _NOISE * abs(loss) > _CONVERGED * agree * scale * step:
            return None
        ahead, behind = change(step), change(-step)
        rounding = _NOISE * (abs(ahead) + abs(behind))  # which a smaller step has less of
        if math.isfinite(ahead) and math.isfinite(behind) and rounding <= _CONVERGED * agree * scale * step:
            quotient = (ahead - behind) / (2.0 * step)
            if abs(quotient - slope) <= agree * scale:
                return quotient
            if before is not None and abs(quotient - before) <= _CONVERGED * agree * scale:
                return quotient
            before = quotient
        step *= 0.1
    return None


def _is_sloped(change: Callable[[float], float], loss: float, step: float) -> bool:
    """Whether differences with two steps are the same, and more than rounding."""
    quotients = []
    for s in (step, 0.1 * step):
        ahead, behind = change(s), change(-s)
        quotients.append((ahead - behind) / (2.0 * s))
        if not abs(quotients[-1]) > 30.0 * _NOISE * (abs(loss) + abs(ahead) + abs(behind)) / s:
            return False
    return abs(quotients[0] - quotients[1]) <= 0.1 * abs(quotients[1])
