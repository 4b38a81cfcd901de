r"""How far is a loss from smooth? Its rounding, measured rather than assumed.

Differences of high order along a line leave nothing of a smooth function, and of independent errors of size σ at the
points :math:`\sqrt{(2k)!}/k!` times σ (Moré and Wild, SIAM J. Sci. Comput. 33, 2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

TINY, SHORT = 1e-5, 1e-2
"""Steps as shares of a change: what rounding in float32 or float64 answers to, and what half precision does."""
CLEAR = 30.0
"""What is so many times the noise is none."""
_AROUND = (-3, -2, -1, 0, 1, 2, 3)


def noise_along(function: Callable[[float], Any], step: float) -> float:
    """The error of a function's values, from seven of them at a distance `step`; infinite where one is not finite.

    Parameters
    ----------
    function : callable
        ``function(t)``, a number, or an array whose length is meant.
    step : float

    Returns
    -------
    float
        What values are off by, at least the half of their last digit. It is more where the function is not smooth.

    Examples
    --------
    >>> single = noise_along(lambda t: float(np.float32(np.sin(1.0 + t))), 1e-3)
    >>> 1e-8 < single < 1e-7, noise_along(lambda t: math.sin(1.0 + t), 1e-5) < 1e-15
    (True, True)
    """
    return noise_of([function(step * k) for k in _AROUND])


def least_noise(along: Callable[[int], Callable[[float], Any]]) -> float:
    """That of a function of many variables, along a line; along another one, too, where it is more than float32 has,
    as a jump that one line crosses is no noise.

    Parameters
    ----------
    along : callable
        ``along(i)``, the function on the i-th line, in the unit of its variables.

    Examples
    --------
    >>> least_noise(lambda i: lambda t: (t > 0.0 and i == 0) + math.pi) < 1e-14
    True
    """
    line = along(0)
    first = noise_along(line, TINY)
    return first if first <= 1e-6 * abs(line(0.0)) else min(first, noise_along(along(1), TINY))


def noise_of(values: Sequence[Any]) -> float:
    """The same of values at equal distances, four or more.

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
    table, orders, found = table / size, len(table), []
    for k in range(1, orders):
        table = np.diff(table, axis=0)
        if k >= 3:
            squares = np.sum(table.reshape(len(table), -1) ** 2, axis=1)
            found.append(math.factorial(k) * math.sqrt(float(np.mean(squares)) / math.factorial(2 * k)))
    return max(size * float(np.median(found)), 0.5 * last_digit(values))


def last_digit(values: Sequence[Any]) -> float:
    """The largest power of two of which all values are multiples: of numbers in float32, one of its last digits.

    Examples
    --------
    >>> last_digit([0.75, 1.5, 0.0]), last_digit([float(np.float32(0.1))]) / 2**-27, last_digit([0.1]) / 2**-55
    (0.25, 1.0, 1.0)
    """
    ratios = [float(x).as_integer_ratio() for x in np.ravel(values)]
    common = max(denominator for _, denominator in ratios)
    divisor = math.gcd(*(n * (common // denominator) for n, denominator in ratios))
    return (divisor & -divisor) / common
