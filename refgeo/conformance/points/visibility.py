"""Whether a fault would be visible in a value at a test point, estimated from the numbers of its features.

A formula determines a part of a value only: the curvature term of a geodesic, the vector that a projection removes. If
that part is as small as rounding errors, because the time is short or the condition number large, no fault is visible.
"""

from __future__ import annotations

import math

from refgeo.conformance.points.features import MAX_ENCLOSED_SIZE, MAX_INTEGRATED_COLUMNS, Features, enclosed_size
from refgeo.conformance.protocol.operations import JUDGED_VALUES, Value
from refgeo.conformance.protocol.precision import INTEGRATOR_FACTOR, PRECISIONS

_MIN_PART = 1e3
"""The part of a value, in rounding errors, from which on a fault of a tenth of it is WRONG: it has a ratio of 100."""
_INTEGRATOR_ERROR, _INTEGRATOR_ORDER = 1e-11, 9
"""What an integrator with an absolute tolerance gets wrong along an exact geodesic of length 1: ten times the relative
error of DOP853 at a tolerance of 1e-12 and factors of 1e-5 or less, as a tenth of a part must be visible; and the power
of the length to which it is proportional. Measured."""
EXACT_PATH, _MAX_EXACT_BEND = 2.0, 6.0
"""Length of an exact geodesic, relative to the factors, along which the error of such an integrator is far above
rounding, and the largest product of κ and a length up to which enclosures stay narrow; measured."""
_CLEARLY_DECISIVE = 0.1
"""Rounding error of a bad algorithm up to which a point is decisive although its κ is random; chosen, below 1."""
_MAX_CHANCE = 1e-3
"""Probability with which a sparse vector may be zero; chosen."""
DETERMINING_FIELDS = frozenset((
    "alike", "balance", "identity", "length", "ratio", "part", "radial", "speed", "t", "vertical", "slope", "cosine",
    "sparse", "empty_rows",
))  # fmt: skip
"""Fields, besides sizes, κ and `turn`, that `determined_part` uses."""


def rounding_error(f: Features, value: Value) -> float:
    """Estimate the relative error of ratio 1, as `error_units` computes it; infinite if no evidence is decisive.

    The laws of retractions compare perturbed calls, in which half of the digits agree.

    Examples
    --------
    >>> [f"{rounding_error(Features(condition_G=x), JUDGED_VALUES['christoffel']):.0e}" for x in (1.0, 100.0, 1e6)]
    ['7e-15', '2e-10', 'inf']
    """
    is_long = f.h > MAX_INTEGRATED_COLUMNS or enclosed_size(f.n, f.m, f.h) > MAX_ENCLOSED_SIZE
    if value.order == "exact" and is_long:
        return math.inf
    p, precision, kappa = value.loss("inv", 0.0), PRECISIONS["float32" if f.single else "float64"], f.max_condition
    unit = precision.roundoff ** (0.5 if value.name == "retraction" else 1.0) * max(f.n, f.m) ** 0.5
    unit *= INTEGRATOR_FACTOR if value.order == "exact" else 1.0
    unit *= _ratio_of_lengths(f.ratio) if len(value.operation.sources) == 2 and f.ratio not in (0.0, math.inf) else 1.0
    cofactors = kappa ** min(2.0 * p, 4.0)
    is_decisive = unit * max(cofactors, kappa ** (1.5 * p)) <= _CLEARLY_DECISIVE
    is_in_range = not f.single or f.is_in_range("float64", precision.largest, max(2.0 + p, 2.0 * p))
    return unit * max(kappa**p, cofactors / 1e3) if is_decisive and is_in_range else math.inf


def least_exact_path(f: Features) -> float:
    """Return the least length of an exact geodesic of inv, relative to the factors; shorter ones are followed further.

    Times and lengths that are special levels stay as they are.

    Examples
    --------
    >>> least_exact_path(Features()), least_exact_path(Features(t=2.5))
    (2.0, 0.0)
    """
    is_usual = (f.t, f.speed, f.length) == (Features.t, Features.speed, Features.length)
    return min(EXACT_PATH, _MAX_EXACT_BEND / f.max_condition) if is_usual else 0.0


def is_fault_visible(f: Features, value: Value, error: float | None = None) -> bool:
    """Return whether a fault of a tenth of what the formula determines would be far larger than rounding errors.

    Examples
    --------
    >>> [is_fault_visible(Features(t=t), JUDGED_VALUES["geodesic_2"]) for t in (0.5, 1e-7, 0.0)]
    [True, False, False]
    """
    return determined_part(f, value) >= _MIN_PART * (rounding_error(f, value) if error is None else error)


def is_sensitive(f: Features) -> bool:
    """Return whether a fault would be visible in every value except exact geodesics.

    Examples
    --------
    >>> is_sensitive(Features()), is_sensitive(Features(vertical=0.0))
    (True, False)
    """
    return all(is_fault_visible(f, value) for value in JUDGED_VALUES.values() if value.order != "exact")


def determined_part(f: Features, value: Value) -> float:
    """Estimate the size of the part of a value that its formula determines, relative to the scale of the value."""
    rows = min(f.n, f.m) - f.empty_rows
    is_empty = rows <= 0 or f.sparse ** (math.prod(f.blocks) * rows * f.h) > _MAX_CHANCE
    is_zero = f.length == 0.0 or f.ratio == math.inf or (f.ratio == 0.0 and len(value.operation.sources) > 1)
    has_equal_grams = f.alike or f.balance or f.identity == 3  # formulas with S are those with T
    if has_equal_grams or is_empty or is_zero:
        return 0.0
    share, slowness = 1.0, 3.0 / max(f.max_condition, 3.0)  # vectors are the shorter, the more strongly Γ grows with κ
    if value.operation.name == "geodesic":
        step = (1.0 if f.radial == 1.0 else 0.25) * f.length * (abs(f.t) if abs(f.t) <= 4.0 else 1.0)
        path = step if f.speed is None else f.speed
        if isinstance(value.order, int):
            share = slowness * min(path, 1.0) ** value.order
        else:
            share = _INTEGRATOR_ERROR * min(max(path, least_exact_path(f)), EXACT_PATH) ** _INTEGRATOR_ORDER
    elif value.name == "horizontal_projection":
        is_horizontal = f.radial == 1.0 or (f.turn < 1.0 and f.empty_rows >= f.h)
        share = 0.0 if is_horizontal else 1.0 if f.vertical is None else f.vertical
    elif value.name == "riemannian_hessian" or (
        value.name == "riemannian_gradient" and f.vertical is not None and f.vertical < 0.5  # of a loss, too
    ):
        share = f.slope
    elif value.name == "christoffel" and f.radial == 1.0:
        share = 0.1 * slowness**2  # of θ, most terms cancel
    elif value.name == "inner_product" and f.cosine is not None:
        share = abs(f.cosine)
    return share / _ratio_of_lengths(f.part)


def _ratio_of_lengths(ratio: float) -> float:
    """Return a ratio or its inverse, whichever is larger."""
    return max(ratio, 1.0 / ratio) if ratio else math.inf
