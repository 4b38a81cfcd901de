r"""Estimate the noise of a loss, that is, the error that rounding leaves in its values.

Differences of high order along a line leave nothing of a smooth function. Of independent errors of standard deviation σ
they leave :math:`\sqrt{(2k)!}/k!` times σ at order k (Moré and Wild, SIAM J. Sci. Comput. 33, 2011). The noise is
therefore measured rather than assumed from the precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FINE_STEP, COARSE_STEP = 1e-5, 1e-2
"""Distances between sampled values, relative to the length of the displacement. The fine one changes how float32 and
float64 round, while third differences of a smooth function, about 1e-15, are comparable to float64's rounding, and
higher ones vanish. The coarse one exceeds the rounding of half precision: 2⁻⁹ in bfloat16, 2⁻¹¹ in float16.
"""
NOISE_FACTOR = 30.0
"""Multiple of the noise above which a change is not explained by noise. The estimate is at least a fifth of the
standard deviation (measured in the tests of this module), so this is at least six standard deviations.
"""
_MAX_FLOAT32_NOISE = 1e-6
"""Noise relative to the loss above which a second line is tried. Chosen: 17 units of roundoff of float32."""
_OFFSETS = (-3, -2, -1, 0, 1, 2, 3)
"""Where values are sampled, in steps. Seven values have differences up to order 6."""


def noise_along(function: Callable[[float], Any], step: float) -> float:
    """Estimate the noise of a function from seven values at a distance `step`.

    Parameters
    ----------
    function : callable
        ``function(t)`` is a number, or an array, of which the length of the error vector is estimated.
    step : float

    Returns
    -------
    float
        The standard deviation of the values' errors, at least half of their last digit; infinite if a value is not
        finite. It is larger where the function is not smooth.

    Examples
    --------
    >>> single = noise_along(lambda t: float(np.float32(np.sin(1.0 + t))), 1e-3)
    >>> 1e-8 < single < 1e-7, noise_along(lambda t: math.sin(1.0 + t), 1e-5) < 1e-15
    (True, True)
    """
    return noise_of(values_along(function, step))


def values_along(function: Callable[[float], Any], step: float) -> list[Any]:
    """Return the seven values at a distance `step` from which `noise_of` estimates the noise."""
    return [function(step * k) for k in _OFFSETS]


def least_noise(along: Callable[[int], Callable[[float], Any]]) -> float:
    """Estimate the noise of a function of many variables, along one line or two.

    A second line is tried if the first shows more noise than float32 has, or if all values are equal, which shows
    nothing. The smaller estimate is returned, because a jump that one line crosses is not noise. If the loss is 0
    everywhere, the noise is unknown, and infinite.

    Parameters
    ----------
    along : callable
        ``along(i)`` is the function on the i-th line. Its argument is the displacement relative to the variables.

    Examples
    --------
    >>> least_noise(lambda i: lambda t: (t > 0.0 and i == 0) + math.pi + t) < 1e-14
    True
    >>> 1e-8 < least_noise(lambda i: lambda t: float(np.float32(1.0 + 1e-4 * np.sin(t)))) < 1e-6
    True
    """
    estimates: list[float] = []
    for function in map(along, range(2)):
        values = values_along(function, FINE_STEP)
        estimates.append(noise_of(values))
        if 2 * len(set(values)) <= len(values):  # plateaus, whose height only longer steps show
            coarse = values_along(function, COARSE_STEP)
            if len(set(coarse)) > 1:
                return max(estimates[-1] if len(set(values)) > 1 else 0.0, noise_of(coarse))
            estimates[-1] = math.nan
        if estimates[-1] <= _MAX_FLOAT32_NOISE * abs(values[0]):
            break
    known = [noise for noise in estimates if not math.isnan(noise)]
    return min(known, default=0.5 * last_digit(values[:1])) or math.inf


def noise_of(values: Sequence[Any]) -> float:
    """Estimate the noise in four or more values at equal distances.

    Examples
    --------
    >>> noise_of([1.0, 2.0, 3.0, 4.0])
    0.5
    >>> noise_of([5.0] * 5), noise_of([1.0, 0.9, 1.1, float("nan")])
    (0.5, inf)
    """
    table = np.array(values, dtype=np.float64)
    if not np.isfinite(table).all():
        return math.inf
    size = float(np.max(np.abs(table), initial=0.0)) or 1.0
    table, n_values, estimates = table / size, len(table), []
    for k in range(1, n_values):
        table = np.diff(table, axis=0)
        if k >= 3:
            squares = np.sum(table.reshape(len(table), -1) ** 2, axis=1)
            estimates.append(math.factorial(k) * math.sqrt(float(np.mean(squares)) / math.factorial(2 * k)))
    return max(size * float(np.median(estimates)), 0.5 * last_digit(values))


def last_digit(values: Sequence[Any]) -> float:
    """Return the largest power of two of which all values are multiples.

    For numbers in float32, this is a unit in the last place of one of them.

    Examples
    --------
    >>> last_digit([0.75, 1.5, 0.0]), last_digit([float(np.float32(0.1))]) / 2**-27, last_digit([0.1]) / 2**-55
    (0.25, 1.0, 1.0)
    """
    ratios = [float(x).as_integer_ratio() for x in np.ravel(values)]
    common = max(denominator for _, denominator in ratios)
    divisor = math.gcd(*(n * (common // denominator) for n, denominator in ratios))
    return (divisor & -divisor) / common
