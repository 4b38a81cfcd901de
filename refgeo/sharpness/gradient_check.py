"""Compare a gradient with difference quotients of its loss, before anything is built on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refgeo.sharpness.auto_pgd import norm
from refgeo.sharpness.noise import NOISE_FACTOR, least_noise
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

_GRADIENT_TOLERANCE = 0.1
"""Disagreement of a difference quotient with the slope, relative, below which it confirms the gradient. Chosen.
"""
_RANDOM_DIRECTION_TOLERANCE = 0.03
"""The same along a random direction, where a part that the gradient leaves out is one of many; chosen."""
_CONVERGENCE_TOLERANCE = 0.3
"""Largest difference of two successive quotients, and largest error by noise, relative to the disagreement with the
gradient, for which the quotients count as the true slope; chosen.
"""
_ZERO_GRADIENT = "the loss changes, but the gradient is zero"
_MAX_STEP_GROWTH = 10.0
"""Factor by which a difference step may be longer where noise hides the slope; chosen."""
_DISPLACEMENT = 0.1
"""Distance from the parameters, relative to them, at which a gradient that is zero is evaluated again; chosen."""
_N_STEPS = 9
"""Number of difference steps, each a tenth of the one before; chosen."""
_REPORTED_TOLERANCE = 1e-3
"""Disagreement, relative, below which `check_gradient`, which returns it, tries no shorter step; chosen."""
_MAX_NAMED_BLOCKS = 6
"""Number of blocks that an error names."""


def check_gradient(
    value_and_grad: LossAndGradient,
    params: Any,
    *,
    tolerance: float = _GRADIENT_TOLERANCE,
    rng: np.random.Generator | int | None = 0,
) -> dict[str, float]:
    """Compare a gradient with differences of its loss, block by block.

    Every block is moved alone, along its gradient and along a random direction. Steps get shorter until the difference
    quotient agrees with the gradient, or has converged to another value.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(params) -> (loss, grads)``.
    params : Pair, array or dict of these
    tolerance : float
        Relative disagreement above which an error is raised.
    rng : numpy Generator, or a seed
        Source of the random directions.

    Returns
    -------
    dict of str to float
        The relative disagreement of every block (of ``name.G`` and ``name.H`` for a pair); nan where it is undecided,
        because rounding hides the slope along one of the two directions.

    Raises
    ------
    ValueError
        A block disagrees, or the loss differs when it is evaluated again at the same parameters.

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
        return _check_blocks(value_and_grad, params, tolerance, np.random.default_rng(rng))


def _check_blocks(
    value_and_grad: LossAndGradient, params: Any, tolerance: float, generator: np.random.Generator
) -> dict[str, float]:
    """Return the relative disagreement of every block, or raise an error that names the blocks that disagree."""
    loss, grads = checked_evaluation(value_and_grad(params))
    if not math.isfinite(loss):
        raise ValueError(f"value_and_grad: expected a finite loss, got {loss}")
    arrays = _arrays_with_gradient(params, grads)
    if not arrays.given:
        raise ValueError(f"value_and_grad: expected gradients among {', '.join(params)}, got {', '.join(grads)}")
    of_arrays = arrays.value_and_grad(value_and_grad)
    repeated, gradients = of_arrays(arrays.given)
    refuse_chance(loss, repeated)
    noise = measure_noise(value_and_grad, arrays)
    errors: dict[str, float] = {}
    zero = _zero_gradients(value_and_grad, arrays, gradients, noise)
    complaints = [f"{arrays.label(name)}: {_ZERO_GRADIENT}" for name in zero.wrong]
    for name, gradient in gradients.items():
        given = arrays.given[name]

        def change(by: Array, name: Name = name, given: Array = given) -> float:
            return of_arrays({name: given + by})[0] - loss

        step = 1e-2 * (float(np.sqrt(np.mean(given**2))) or 1.0) * math.sqrt(given.size)
        stop, longest = min(_REPORTED_TOLERANCE, tolerance), _MAX_STEP_GROWTH * step
        comparisons = [
            _disagreement(change, gradient, direction, noise, _GRADIENT_TOLERANCE, step, longest, stop)
            for direction in (gradient, generator.standard_normal(given.shape))
        ]
        label = arrays.label(name)
        decided = [comparison for comparison in comparisons if comparison is not None]
        worst, message = max(decided, key=lambda comparison: comparison[0], default=(math.nan, ""))
        errors[label] = worst if len(decided) == len(comparisons) or worst > tolerance else math.nan
        if errors[label] > tolerance:
            complaints.append(f"{label}: {message}")
        if len(complaints) >= _MAX_NAMED_BLOCKS:
            break
    if complaints:
        rest = f"; only {len(errors)} of {len(gradients)} blocks were checked" if len(errors) < len(gradients) else ""
        raise ValueError(f"value_and_grad: the gradient is not that of the loss; {'; '.join(complaints)}{rest}")
    return errors


def _arrays_with_gradient(params: Any, grads: Any) -> Arrays:
    """Return the arrays that have a gradient; the others are frozen."""
    parameters = Parameters(params)
    given = parameters.gradients(grads)
    return Arrays(params, [block for block in parameters.blocks if block in given])


def _disagreement(
    change: Callable[[Array], float],
    gradient: Array,
    direction: Array,
    noise: float,
    tolerance: float,
    step: float,
    max_step: float,
    stop_tolerance: float | None = None,
) -> tuple[float, str] | None:
    """Compare a gradient with difference quotients along a direction.

    Parameters
    ----------
    change : callable
        The change of the loss by a displacement.
    gradient, direction : ndarray
    noise : float
        The noise of the loss.
    tolerance : float
        Relative disagreement that must be distinguished from noise.
    step, max_step : float
        Length of the first displacement, and its bound: it is longer where noise hides the slope at `step`.
    stop_tolerance : float, optional
        Relative disagreement below which no shorter step is tried; default: `tolerance`.

    Returns
    -------
    (float, str) or None
        The relative disagreement, and a message about it; None if it is undecided.
    """
    length, size = float(np.linalg.norm(direction)), float(np.linalg.norm(gradient))
    if not 0.0 < length < math.inf or not math.isfinite(size):
        return None
    unit = direction / length
    slope = float(np.vdot(gradient, unit))
    scale = max(abs(slope), size / math.sqrt(gradient.size))
    if scale == 0.0:
        return 0.0, ""  # `_zero_gradients` examines this case

    def along(s: float) -> float:
        return change(s * unit)

    # at this step, noise permits two successive quotients, whose agreement shows convergence
    decisive_step = 10.0 * NOISE_FACTOR * noise / (_CONVERGENCE_TOLERANCE * tolerance * scale)
    first_step = max(step, min(decisive_step, max_step))
    quotient = _difference_quotient(along, slope, scale, noise, first_step, tolerance, stop_tolerance or tolerance)
    if quotient is None:
        return None
    ratio = f" {quotient / slope:.3g} times as much as the gradient says" if slope else ", but the gradient says 0"
    return abs(quotient - slope) / scale, f"the loss changes{ratio}"


class LossNoise(NamedTuple):
    """The noise of a loss before a search.

    Attributes
    ----------
    level : float
        The error of the loss's values; nan if it was not measured.
    undecided : tuple of str
        The directions along which this noise hides whether the gradient is right.
    """

    level: float
    undecided: tuple[str, ...]


def verify_loss(
    objective: Objective, radius: float, value_and_grad: LossAndGradient, params: Any, noise: float | None = None
) -> LossNoise:
    """Verify what a search relies on, and raise an error if any of it does not hold.

    The loss is the same in two calls. The gradient of a block is zero only where the loss does not change. Difference
    quotients agree with the gradient as far as the noise permits: along the gradient, which reveals a wrong factor, and
    along a random direction, which reveals a part that is left out. The loss has the symmetries that the metric divides
    out. The noise is measured unless it is given.
    """
    arrays = Arrays(params, objective.space.moving_blocks or None)
    repeated, gradients = arrays.value_and_grad(value_and_grad)(arrays.given)
    refuse_chance(objective.loss, repeated)
    if objective.is_flat:
        return LossNoise(math.nan, ())
    _refuse_zero_gradients(value_and_grad, arrays, gradients)
    del gradients  # they take as much memory as the parameters
    gradient, size = objective.gradient_at_origin, objective.space.size

    def change(x: Array) -> float:
        return objective(x)[0]

    def random(seed: int) -> Array:
        return objective.space.random_direction(np.random.default_rng(seed))

    def along(seed: int) -> Callable[[float], float]:
        direction = random(seed)
        unit = size / (norm(direction) or 1.0)
        return lambda t: objective.loss + objective((t * unit) * direction)[0]

    if noise is None:
        noise = least_noise(along) if random(0).any() else measure_noise(value_and_grad, arrays)
    undecided = []
    for name, tolerance in (("the gradient", _GRADIENT_TOLERANCE), ("a random direction", _RANDOM_DIRECTION_TOLERANCE)):
        direction = gradient if name == "the gradient" else random(0)
        comparison = _disagreement(change, gradient, direction, noise, tolerance, 0.1 * radius, 0.1 * size)
        if comparison is None and direction.any():
            undecided.append(name)
        elif comparison is not None and comparison[0] > tolerance:
            check_gradient(value_and_grad, params)  # its error names the block
            # without a symmetry, differences along geodesics may differ from those of the loss
            check_symmetry(objective.space, value_and_grad, noise)
            raise ValueError(f"value_and_grad: along {name}, {comparison[1]}; verify=False turns this check off")
    check_symmetry(objective.space, value_and_grad, noise)
    return LossNoise(noise, tuple(undecided))


class ZeroGradients(NamedTuple):
    """Names of arrays whose gradient is zero, both at the parameters and near them.

    Attributes
    ----------
    wrong : list of Name
        Those with which the loss changes all the same.
    unused : list of Name
        Those with which it does not.
    """

    wrong: list[Name]
    unused: list[Name]


def _zero_gradients(
    value_and_grad: LossAndGradient, arrays: Arrays, gradients: Mapping[Name, Array], noise: float | None = None
) -> ZeroGradients:
    """Find the arrays whose gradient is zero, and test whether the loss changes with each of the first few.

    An array is changed once, near the parameters. A change of the loss counts if it exceeds the noise.
    """
    zero, of_arrays = ZeroGradients([], []), arrays.value_and_grad(value_and_grad)
    names = [name for name, gradient in gradients.items() if gradient.size and not gradient.any()]
    if not names:
        return zero
    near, noise = _displace(arrays.given, 0), measure_noise(value_and_grad, arrays) if noise is None else noise
    loss, gradients = of_arrays(near)
    for name in [name for name in names if name in gradients and not gradients[name].any()][:_MAX_NAMED_BLOCKS]:
        change = abs(of_arrays({**near, **_displace({name: near[name]}, 1)})[0] - loss)
        (zero.wrong if change > NOISE_FACTOR * noise else zero.unused).append(name)
    return zero


def _refuse_zero_gradients(value_and_grad: LossAndGradient, arrays: Arrays, gradients: Mapping[Name, Array]) -> None:
    """Raise an error if the gradient of an array that moves is zero and wrong, or if the loss ignores the array."""
    zero = _zero_gradients(value_and_grad, arrays, gradients)
    if zero.wrong:
        raise ValueError(
            f"value_and_grad: the gradient is not that of the loss; {', '.join(map(arrays.label, zero.wrong))}: "
            f"{_ZERO_GRADIENT}. Is a part of it without gradients (no_grad, detach)? verify=False turns this check off"
        )
    if zero.unused and len(zero.unused) < len(arrays.given):  # for a loss that ignores all arrays, the search says so
        raise ValueError(
            f"value_and_grad: the loss does not depend on {', '.join(map(arrays.label, zero.unused))}, which is to "
            f"move: a change of {_DISPLACEMENT:.0%} in it changes the loss by no more than noise. Does the loss use "
            "other weights than it is given? If this is intended, leave the block out of the metric, or freeze it; "
            "verify=False turns this check off"
        )


def _random_direction(arrays: Mapping[Name, Array], seed: int) -> dict[Name, Array]:
    """Draw a random array for each array, with entries of the same root mean square."""
    rng = np.random.default_rng(seed)
    return {name: (float(np.sqrt(np.mean(x**2))) or 1.0) * rng.standard_normal(x.shape) for name, x in arrays.items()}


def _displace(arrays: Mapping[Name, Array], seed: int) -> dict[Name, Array]:
    """Move the arrays along a random direction, by the share `_DISPLACEMENT` of their lengths."""
    direction = _random_direction(arrays, seed)
    return {name: x + _DISPLACEMENT * direction[name] for name, x in arrays.items()}


def measure_noise(value_and_grad: LossAndGradient, arrays: Arrays) -> float:
    """Measure the noise of a loss, from seven or fourteen of its values along random lines.

    Examples
    --------
    >>> single = lambda w: (float(np.float32(np.sum(np.sin(w)))), np.cos(w))
    >>> 1e-8 < measure_noise(single, Arrays(np.ones(2))) < 1e-6
    True
    """
    of_arrays = arrays.value_and_grad(value_and_grad)

    def along(seed: int) -> Callable[[float], float]:
        direction = _random_direction(arrays.given, seed)
        return lambda t: of_arrays({name: x + t * direction[name] for name, x in arrays.given.items()})[0]

    return least_noise(along)


def verify_unchanged(objective: Objective) -> None:
    """Evaluate once more at the parameters after a search, and raise an error if the loss has changed."""
    change, _ = objective(objective.origin)
    when = " before and after the search; does the function change the model"
    refuse_chance(objective.loss, objective.loss + change, when)


def _difference_quotient(
    change: Callable[[float], float],
    slope: float,
    scale: float,
    noise: float,
    step: float,
    tolerance: float,
    stop_tolerance: float,
) -> float | None:
    """Return the central difference quotient that agrees best with a slope, or the one to which quotients converge.

    The first quotient within `stop_tolerance` of the slope is returned at once, else the best one within `tolerance`.
    If there is none, it is the quotient of the shortest step that noise permits, provided that it has converged: the
    step before gives the same, and so do the one-sided quotients, which differ where there are kinks within a step.
    Tolerances are relative to `scale`.

    Returns
    -------
    float or None
        None if noise hides the slope, or if quotients do not converge.
    """
    quotients: list[float] = []
    one_sided_gap = math.inf
    for _ in range(_N_STEPS):
        ahead, behind, uncertainty = change(step), change(-step), NOISE_FACTOR * noise / step
        if math.isfinite(ahead) and math.isfinite(behind):
            quotient = (ahead - behind) / (2.0 * step)
            disagreement = abs(quotient - slope)
            if uncertainty > max(_CONVERGENCE_TOLERANCE * tolerance * scale, _CONVERGENCE_TOLERANCE * disagreement):
                break  # from here on, noise hides the disagreement
            quotients.append(quotient)
            one_sided_gap = abs(ahead + behind) / step
            if disagreement <= stop_tolerance * scale:
                return quotient
        step *= 0.1
    best = min(quotients, key=lambda quotient: abs(quotient - slope), default=None)
    if best is None or abs(best - slope) <= tolerance * scale:
        return best
    last, disagreement = quotients[-1], abs(quotients[-1] - slope)
    is_steady = len(quotients) > 1 and abs(last - quotients[-2]) <= _CONVERGENCE_TOLERANCE * disagreement
    return last if is_steady and one_sided_gap <= disagreement else None
