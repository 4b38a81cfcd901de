"""Whether a fault would be visible in a value at a test point, estimated from the numbers of its features.

A formula determines a part of a value only: the curvature term of a geodesic, the vector that a projection removes. If
that part is as small as rounding errors, because the time is short or the condition number large, no fault is visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

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
"""Fields, besides sizes, κ and `turn`, that `determined_parts` uses."""


def estimate_rounding_errors(f: Features, values: Iterable[Value]) -> list[float]:
    """Estimate the relative errors of ratio 1, as `error_units` computes them; infinite if no evidence is decisive.

    The laws of retractions compare perturbed calls, in which half of the digits agree.

    Examples
    --------
    >>> value = JUDGED_VALUES["christoffel"]
    >>> [f"{estimate_rounding_errors(Features(condition_G=x), [value])[0]:.0e}" for x in (1.0, 100.0, 1e6)]
    ['7e-15', '2e-10', 'inf']
    """
    is_long = f.h > MAX_INTEGRATED_COLUMNS or enclosed_size(f.n, f.m, f.h) > MAX_ENCLOSED_SIZE
    length_ratio = _ratio_of_lengths(f.ratio) if f.ratio not in (0.0, math.inf) else 1.0
    dtype = "float32" if f.single else "float64"
    known = _rounding_errors(max(f.n, f.m), is_long, f.max_condition, length_ratio, dtype)

    def is_in_range(value: Value) -> bool:
        p = value.loss("inv", 0.0)
        return f.is_in_range("float64", PRECISIONS[dtype].largest, max(2.0 + p, 2.0 * p))

    return [known[value.name] if not f.single or is_in_range(value) else math.inf for value in values]


@lru_cache(1024)
def _rounding_errors(rows: int, is_long: bool, kappa: float, length_ratio: float, dtype: str) -> dict[str, float]:
    """Estimate the relative error of ratio 1 of every value, by its name; shared by all points with these numbers."""
    errors = {}
    for value in JUDGED_VALUES.values():
        p = value.loss("inv", 0.0)
        unit = PRECISIONS[dtype].roundoff ** (0.5 if value.name == "retraction" else 1.0) * rows**0.5
        unit *= INTEGRATOR_FACTOR if value.order == "exact" else 1.0
        unit *= length_ratio if len(value.operation.sources) == 2 else 1.0
        cofactors = kappa ** min(2.0 * p, 4.0)
        is_decisive = unit * max(cofactors, kappa ** (1.5 * p)) <= _CLEARLY_DECISIVE
        is_known = is_decisive and not (value.order == "exact" and is_long)
        errors[value.name] = unit * max(kappa**p, cofactors / 1e3) if is_known else math.inf
    return errors


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


def find_visible(f: Features, values: Sequence[Value], errors: Iterable[float] | None = None) -> list[bool]:
    """Return for each value whether a fault of a tenth of what the formula determines would be far larger than rounding
    errors, which may be given.

    Examples
    --------
    >>> [find_visible(Features(t=t), [JUDGED_VALUES["geodesic_2"]]) for t in (0.5, 1e-7, 0.0)]
    [[True], [False], [False]]
    """
    errors = estimate_rounding_errors(f, values) if errors is None else errors
    return [part >= _MIN_PART * error for part, error in zip(determined_parts(f, values), errors, strict=True)]


def is_sensitive(f: Features) -> bool:
    """Return whether a fault would be visible in every value except exact geodesics.

    Examples
    --------
    >>> is_sensitive(Features()), is_sensitive(Features(vertical=0.0))
    (True, False)
    """
    return all(find_visible(f, [value for value in JUDGED_VALUES.values() if value.order != "exact"]))


def determined_parts(f: Features, values: Iterable[Value]) -> list[float]:
    """Estimate the size of the part of each value that its formula determines, relative to the scale of the value."""
    rows = min(f.n, f.m) - f.empty_rows
    is_empty = rows <= 0 or f.sparse ** (math.prod(f.blocks) * rows * f.h) > _MAX_CHANCE
    has_equal_grams = f.alike or f.balance or f.identity == 3  # formulas with S are those with T
    if has_equal_grams or is_empty or f.length == 0.0 or f.ratio == math.inf:
        return [0.0 for _ in values]
    slowness = 3.0 / max(f.max_condition, 3.0)  # vectors are the shorter, the more strongly Γ grows with κ
    length_ratio = _ratio_of_lengths(f.part)
    step = (1.0 if f.radial == 1.0 else 0.25) * f.length * (abs(f.t) if abs(f.t) <= 4.0 else 1.0)
    path = step if f.speed is None else f.speed

    def estimate(value: Value) -> float:
        if f.ratio == 0.0 and len(value.operation.sources) > 1:
            return 0.0
        if isinstance(value.order, int):
            return slowness * min(path, 1.0) ** value.order
        if value.order == "exact":
            return _INTEGRATOR_ERROR * min(max(path, least_exact_path(f)), EXACT_PATH) ** _INTEGRATOR_ORDER
        if value.name == "horizontal_projection":
            is_horizontal = f.radial == 1.0 or (f.turn < 1.0 and f.empty_rows >= f.h)
            return 0.0 if is_horizontal else 1.0 if f.vertical is None else f.vertical
        if value.name == "riemannian_hessian" or (
            value.name == "riemannian_gradient" and f.vertical is not None and f.vertical < 0.5  # of a loss, too
        ):
            return f.slope
        if value.name == "christoffel" and f.radial == 1.0:
            return 0.1 * slowness**2  # of θ, most terms cancel
        return abs(f.cosine) if value.name == "inner_product" and f.cosine is not None else 1.0

    return [estimate(value) / length_ratio for value in values]


def _ratio_of_lengths(ratio: float) -> float:
    """Return a ratio or its inverse, whichever is larger."""
    return max(ratio, 1.0 / ratio) if ratio else math.inf
