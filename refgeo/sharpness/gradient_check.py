"""Compare a gradient with difference quotients of its loss, before anything is built on it, and where a search led.

**The error of a difference quotient.** Let D(s) = (f(s) − f(−s))/2s, and g(s) = |f(s) + f(−s) − 2f(0)|/s the gap
between the two one-sided quotients. For two step sizes, s and s/4, the extrapolated slope is (16 D(s/4) − D(s))/15. Its
error is at most

    |D(s) − D(s/4)| + |4 g(s/4) − g(s)|/6 + 30 ν/s',    s' the smaller step, ν the noise of the loss.

The first term bounds the truncation error of a smooth function, 15/16 c s², with much to spare. For a kink of size J at
a distance xs, the error of the slope is J|1 − 4.2 x|/2 for x ≤ 1/4 and less beyond; the first two terms are 1.5 Jx and
J|3 − 15x|/6, together no less. At x = 0, a kink at the point itself, D does not depend on the step, and the gap alone
shows that one slope does not exist. The third term is that of rounding; see `NOISE_FACTOR`.

A gradient is wrong along a direction if it differs from the slope by more than this error and `_MIN_ERROR`, for the two
smallest pairs of step sizes that noise permits. If the error exceeds `MAX_UNCERTAINTY`, the comparison is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    refuse_chance,
    unpack_evaluation,
)
from refgeo.support.arguments import Array

_MIN_ERROR = 1e-3
"""Error of a slope, relative to the length of the gradient's part along the direction, below which it is right; chosen.
An error of 10⁻³ turns a direction by as much, which costs an ascent 5·10⁻⁷ of what it gains."""
MAX_UNCERTAINTY = 0.1
"""Uncertainty of a slope, in the same unit, above which it is undecided whether the gradient is right. An error of 0.1
turns a direction by as much, which costs an ascent 1 − cos 0.1 = 0.5% of what it gains."""
_STEP_RATIO, _N_STEPS, _MAX_STEPS = 4.0, 3, 10
"""Ratio of successive difference steps, which the formulas of this module contain; their number if the gradient looks
right, and if it looks wrong, as a loss may bend within all long steps; chosen."""
_FIRST_STEP, _MAX_STEP = 1e-2, 0.1
"""The first difference step, relative to the parameters, and the longest one, where noise hides the slope; chosen."""
_DISPLACEMENT = 0.1
"""Distance from the parameters, relative to them, at which a gradient that is zero is evaluated again; chosen."""
_MAX_NAMED_BLOCKS = 6
"""Number of blocks that an error names."""
_ZERO_GRADIENT = "the loss changes, but the gradient is zero"


class Comparison(NamedTuple):
    """A gradient compared with the slope of its loss along a direction.

    Attributes
    ----------
    error, uncertainty : float
        How far the gradient is from the slope, and the error of the slope, both relative to `unit`.
    unit : float
        The slope that the gradient has along such a direction; 0 if it is zero.
    is_wrong : bool
    message : str
        How the loss changes, compared with what the gradient says.
    """

    error: float
    uncertainty: float
    unit: float
    is_wrong: bool
    message: str = ""

    @property
    def is_undecided(self) -> bool:
        """Whether the slope is too uncertain to tell whether the gradient is right."""
        return not self.is_wrong and not self.uncertainty <= MAX_UNCERTAINTY


def compare_slope(
    change: Callable[[float], float],
    slope: float,
    unit: float,
    noise: float,
    step: float,
    max_step: float,
    tolerance: float = _MIN_ERROR,
    n_steps: int = _N_STEPS,
) -> Comparison:
    """Compare a slope that a gradient gives with difference quotients of the loss; see the text of this module.

    Parameters
    ----------
    change : callable
        ``change(s)`` is f(s) − f(0).
    slope, unit : float
        The slope, and the unit of errors.
    noise : float
        The noise of f.
    step, max_step : float
        The first step, and its bound: it is longer where noise hides the slope at the last one.
    tolerance : float
        The error up to which a gradient is right, in units.
    n_steps : int
        The number of step sizes after which a gradient that looks right is accepted.

    Examples
    --------
    >>> compare_slope(lambda s: math.exp(s) - 1.0, 1.01, 1.0, 1e-16, 1e-2, 0.1).is_wrong
    True
    >>> compare_slope(lambda s: abs(s), 0.0, 1.0, 1e-16, 1e-2, 0.1).is_undecided
    True
    """
    if unit == 0.0 or not math.isfinite(unit):
        return Comparison(0.0, 0.0, 0.0, is_wrong=False)  # `_zero_gradients` examines this case
    audible = _STEP_RATIO ** (_N_STEPS - 1) * NOISE_FACTOR * noise / (0.5 * MAX_UNCERTAINTY * unit)
    step = max(step, min(audible, max_step))
    quotients, gaps, comparisons = [], [], list[tuple[float, float, float]]()
    for i in range(_MAX_STEPS):
        rounding = NOISE_FACTOR * noise / (step * unit)
        if comparisons and rounding > MAX_UNCERTAINTY * max(1.0, comparisons[-1][0]):
            break  # from here on, noise hides the slope, and an error of this size
        ahead, behind = change(step), change(-step)
        quotients.append((ahead - behind) / (2.0 * step))
        gaps.append(abs(ahead + behind) / step)
        if i and all(map(math.isfinite, (*quotients[-2:], *gaps[-2:]))):
            estimate = quotients[-1] + (quotients[-1] - quotients[-2]) / (_STEP_RATIO**2 - 1.0)
            spread = abs(quotients[-2] - quotients[-1]) + abs(_STEP_RATIO * gaps[-1] - gaps[-2]) / 6.0
            comparisons.append((abs(estimate - slope) / unit, spread / unit + rounding, estimate))
            error, uncertainty, _ = comparisons[-1]
            if error <= uncertainty + tolerance and (uncertainty <= tolerance or i + 1 >= n_steps):
                break
        step /= _STEP_RATIO
    if not comparisons:
        return Comparison(math.nan, math.inf, unit, is_wrong=False)
    error, uncertainty, estimate = min(comparisons, key=lambda comparison: comparison[1])
    is_wrong = len(comparisons) > 1 and all(error > unsure + tolerance for error, unsure, _ in comparisons[-2:])
    ratio = f" {estimate / slope:.3g} times as much as the gradient says" if slope else ", but the gradient says 0"
    return Comparison(error, uncertainty, unit, is_wrong, f"the loss changes{ratio}")


def check_gradient(
    value_and_grad: LossAndGradient,
    params: Any,
    *,
    tolerance: float = _MIN_ERROR,
    rng: np.random.Generator | int | None = 0,
) -> dict[str, float]:
    """Compare a gradient with differences of its loss, block by block.

    Every block is moved alone, along its gradient and along a direction of random signs, by up to three step sizes. The
    slope to which their difference quotients converge comes with an estimate of its error.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(params) -> (loss, grads)``.
    params : Pair, array or dict of these
    tolerance : float
        Relative disagreement, beyond the estimated error of the slope, above which an error is raised.
    rng : numpy Generator, or a seed
        Source of the random directions.

    Returns
    -------
    dict of str to float
        The relative disagreement of every block (of ``name.G`` and ``name.H`` for a pair); nan where it is undecided,
        because rounding or a kink hides the slope along one of the two directions.

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
    loss, grads = unpack_evaluation(value_and_grad(params))
    if not math.isfinite(loss):
        raise ValueError(f"value_and_grad: expected a finite loss, got {loss}")
    arrays = _arrays_with_gradient(params, grads)
    if not arrays.given:
        raise ValueError(f"value_and_grad: expected gradients among {', '.join(params)}, got {', '.join(grads)}")
    of_arrays = arrays.value_and_grad(value_and_grad)
    repeated, gradients = of_arrays(arrays.given)
    gradients = {name: gradient.copy() for name, gradient in gradients.items()}  # the function may use a buffer again
    refuse_chance(loss, repeated)
    noise = measure_noise(value_and_grad, arrays, loss)
    errors: dict[str, float] = {}
    zero = _zero_gradients(value_and_grad, arrays, gradients, noise)
    complaints = [f"{arrays.label(name)}: {_ZERO_GRADIENT}" for name in zero.wrong]
    for name, gradient in gradients.items():
        given, size = arrays.given[name], norm(gradient.ravel())
        length = math.sqrt(given.size) * (float(np.sqrt(np.mean(given**2))) or 1.0) if given.size else 0.0
        signs = generator.choice((-1.0, 1.0), given.shape) / math.sqrt(max(given.size, 1))
        comparisons = []
        for direction, unit in ((gradient / (size or 1.0), size), (signs, size / math.sqrt(max(given.size, 1)))):

            def change(s: float, name: Name = name, given: Array = given, direction: Array = direction) -> float:
                return of_arrays({name: given + s * direction})[0] - loss

            slope = float(np.vdot(gradient, direction))
            steps = _FIRST_STEP * length, _MAX_STEP * length
            comparisons.append(compare_slope(change, slope, unit, noise, *steps, tolerance))
        label = arrays.label(name)
        wrong = [comparison for comparison in comparisons if comparison.is_wrong]
        worst = wrong[0] if wrong else max(comparisons, key=lambda comparison: comparison.error)
        is_undecided = any(comparison.is_undecided for comparison in comparisons) or worst.unit == 0.0
        errors[label] = math.nan if is_undecided and not worst.is_wrong else worst.error
        complaints += [f"{label}: {worst.message}"] * worst.is_wrong
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


class LossNoise(NamedTuple):
    """The noise of a loss before a search, and what it hides.

    Attributes
    ----------
    level : float
        The error of the loss's values; nan if it was not measured.
    undecided : tuple of str
        The directions along which noise or kinks hide whether the gradient is right.
    hidden_slope : float
        The slope that is hidden along these directions, in coordinates.
    lengths : tuple of float
        The displacements of the blocks along random signs (`ParameterSpace.equalise`).
    """

    level: float
    undecided: tuple[str, ...] = ()
    hidden_slope: float = 0.0
    lengths: tuple[float, ...] = ()


def verify_loss(
    objective: Objective, radius: float, value_and_grad: LossAndGradient, params: Any, noise: float | None = None
) -> LossNoise:
    """Verify what a search relies on, and raise an error if any of it does not hold.

    The loss is the same in two calls. The gradient of a block is zero only where the loss does not change. Difference
    quotients agree with the gradient as far as the noise permits: along the gradient, which reveals a wrong factor, and
    random signs, to which all blocks contribute alike, which reveals a wrong part. The loss has the symmetries that the
    metric divides out. The noise is measured unless it is given.
    """
    arrays = Arrays(params, objective.space.moving_blocks or None)
    of_arrays = arrays.value_and_grad(value_and_grad)
    repeated, gradients = of_arrays(arrays.given)
    refuse_chance(objective.loss, repeated)
    if objective.is_flat:
        return LossNoise(math.nan)
    _refuse_zero_gradients(value_and_grad, arrays, gradients)
    del gradients  # they take as much memory as the parameters
    gradient, size = objective.gradient_at_origin, objective.space.size

    def along(seed: int) -> Callable[[float], float]:
        direction = objective.space.random_direction(np.random.default_rng(seed))
        unit = size / (norm(direction) or 1.0)
        return lambda t: objective.loss + (objective((t * unit) * direction)[0] if t else 0.0)

    if noise is None:
        noise = least_noise(along) if objective.space.dim else measure_noise(value_and_grad, arrays, objective.loss)
    step, longest = min(_FIRST_STEP * size, 0.1 * radius) if size else 0.1 * radius, _MAX_STEP * (size or radius)
    comparisons = {}
    lengths = objective.space.equalise(gradient)
    for name, is_gradient in (("the gradient", True), ("random signs", False)):
        x = gradient if is_gradient else objective.space.random_signs(lengths, 0)
        x = x * (1.0 / (norm(x) or 1.0))
        slope, unit = float(gradient @ x), norm(gradient if is_gradient else gradient * x)

        def change(s: float, x: Array = x) -> float:
            return objective(s * x)[0]

        comparisons[name] = compare_slope(change, slope, unit, noise, step, longest)
    for name, comparison in comparisons.items():
        if comparison.is_wrong:
            check_gradient(value_and_grad, params)  # its error names the block
            # without a symmetry, differences along geodesics may differ from those of the loss
            check_symmetry(objective.space, value_and_grad, noise)
            raise ValueError(f"value_and_grad: along {name}, {comparison.message}; verify=False turns this check off")
    check_symmetry(objective.space, value_and_grad, noise)
    undecided = {name: comparison for name, comparison in comparisons.items() if comparison.is_undecided}
    hidden = max((comparison.uncertainty for comparison in undecided.values()), default=0.0)
    return LossNoise(noise, tuple(undecided), hidden * norm(gradient), lengths)


class Slope(NamedTuple):
    """The slope at a point that a gradient gives along a direction, and the unit of its error.

    ``sign`` is that of the direction's random signs, for which the two parts of the slope do not cancel.
    """

    slope: float
    unit: float
    sign: float


def find_slope(objective: Objective, lengths: Sequence[float], x: Array, gradient: Array) -> Slope:
    """Find the slope at a point, along the ray to it plus random signs, which no error of a block escapes."""
    signs = objective.space.random_signs(lengths, 1)
    along_ray, along_signs = float(gradient @ x) / (norm(x) or 1.0), float(gradient @ signs)
    sign = math.copysign(1.0, along_ray * along_signs)
    return Slope(along_ray + sign * along_signs, math.hypot(along_ray, norm(gradient * signs)), sign)


def verify_maximizer(
    objective: Objective, loss: LossAndGradient, noise: LossNoise, x: Array, value: float, slope: Slope
) -> None:
    """Compare the gradient with differences at the maximizer, where a search has led, by four evaluations.

    A gradient can be right at the parameters and wrong elsewhere: if it is computed from other weights than the loss.

    Parameters
    ----------
    objective : Objective
    loss : callable
        The function that the caller has given.
    noise : LossNoise
    x : ndarray
        The coordinates of the maximizer.
    value : float
        The objective there.
    slope : Slope
        What the gradient gives there (`find_slope`).
    """
    signs, length = slope.sign * objective.space.random_signs(noise.lengths, 1), norm(x)
    step = _MAX_STEP * length / math.hypot(1.0, norm(signs))

    def change(s: float) -> float:
        return objective((1.0 + s / length) * x + s * signs)[0] - value

    comparison = compare_slope(change, slope.slope, slope.unit, noise.level, step, step, n_steps=2)
    if not comparison.is_wrong:
        return
    message = comparison.message
    try:
        check_gradient(loss, objective.point_for_caller(x))
        if objective.has_differenced_gradient:  # where the caller's gradient is right, ours may be inaccurate
            return
    except ValueError as error:
        message = str(error).removeprefix("value_and_grad: ")
    raise ValueError(
        "value_and_grad: the gradient is right at the given parameters and wrong at the maximizer, where the search "
        f"has led: {message}. Does the function keep state, change weights in place, run under autocast, or compute "
        "activations again in the backward pass (checkpointing)? verify=False turns this check off"
    )


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

    An array is changed once, near the parameters. A change of the loss counts if it exceeds the noise, and if the
    gradient is zero after the change, too.
    """
    zero, of_arrays = ZeroGradients([], []), arrays.value_and_grad(value_and_grad)
    names = [name for name, gradient in gradients.items() if gradient.size and not gradient.any()]
    if not names:
        return zero
    near = _displace(arrays.given, 0)
    noise = measure_noise(value_and_grad, arrays, of_arrays(arrays.given)[0]) if noise is None else noise
    loss, gradients = of_arrays(near)
    for name in [name for name in names if name in gradients and not gradients[name].any()][:_MAX_NAMED_BLOCKS]:
        value, displaced = of_arrays({**near, **_displace({name: near[name]}, 1)})
        if abs(value - loss) <= NOISE_FACTOR * noise:
            zero.unused.append(name)
        # if it is not zero there, the loss may bend between the two points, as beyond a saturation
        elif name in displaced and not displaced[name].any():
            zero.wrong.append(name)
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


def measure_noise(value_and_grad: LossAndGradient, arrays: Arrays, loss: float) -> float:
    """Measure the noise of a loss from its value at the parameters, and six or twelve others along random lines.

    Examples
    --------
    >>> single = lambda w: (float(np.float32(np.sum(np.sin(w)))), np.cos(w))
    >>> 1e-8 < measure_noise(single, Arrays(np.ones(2)), single(np.ones(2))[0]) < 1e-6
    True
    """
    of_arrays = arrays.value_and_grad(value_and_grad)

    def along(seed: int) -> Callable[[float], float]:
        direction = _random_direction(arrays.given, seed)
        return lambda t: of_arrays({n: x + t * direction[n] for n, x in arrays.given.items()})[0] if t else loss

    return least_noise(along)


def verify_unchanged(objective: Objective) -> None:
    """Evaluate once more at the parameters after a search, and raise an error if the loss has changed."""
    change, _ = objective(objective.origin)
    when = " before and after the search; does the function change the model"
    refuse_chance(objective.loss, objective.loss + change, when)
