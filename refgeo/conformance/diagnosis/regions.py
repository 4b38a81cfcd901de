"""Find the failure region of a backend: the interval of one feature that separates failing calls from passing ones.

Nothing is reported unless new calls confirm it: points that are generic except for this feature fail inside the
interval, the simplest failing point passes if this feature alone is moved out of it, and the reported bound is a
failing value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refgeo.conformance.judging.evidence import MAX_RATIO, Evidence
from refgeo.conformance.points.features import Features, affects, repair
from refgeo.conformance.points.scene import Scene
from refgeo.conformance.protocol.call import Event, NoResult
from refgeo.conformance.protocol.operations import Value

_FIRST_DRAW = 50
"""The first `Features.draw` of new points, above those of test points."""
_MAX_BISECTIONS, _TESTED_FACTOR = 40, 4.0
"""Number of bisections of a bound; and the factor by which points around a bound that is not a short number are moved
away from it. Chosen.
"""
_VANISHING_RATIO = 100.0 * MAX_RATIO
"""Test ratio at the bound of an interval up to which the error vanishes towards it: beyond, rounding hides it."""
_HIDDEN_SHARE = 0.1
"""A passing point inside an interval contradicts it if rounding is at most this share of the least error that was found
inside; chosen."""
_MAX_MASKED = 3
"""Number of passing points inside an interval for which fault masking is tested; chosen."""
_VARIATIONS: tuple[Callable[[Features], Features], ...] = (
    lambda f: replace(f, blocks=()), lambda f: replace(f, blocks=(3,)), lambda f: replace(f, n=f.n + 7),
    lambda f: replace(f, m=f.m + 9), lambda f: _with_columns(f, 6), lambda f: replace(f, condition_G=1.0),
    lambda f: replace(f, condition_H=1.0), lambda f: replace(f, condition_G=20.0),
    lambda f: replace(f, condition_H=20.0), lambda f: replace(f, t=-0.6), lambda f: replace(f, t=1.5),
    lambda f: replace(f, t=-1.5), lambda f: replace(f, size_G=3.0),
)  # fmt: skip
"""Changes of other features, to test a hypothesis at new points."""
_GENERIC_POINTS = tuple(Features(n=n, m=m, h=h, draw=_FIRST_DRAW) for n, m, h in ((5, 4, 2), (4, 6, 3), (7, 5, 4)))
"""A few points without special levels."""


@dataclass(frozen=True)
class Axis:
    """A number of a call that can be varied.

    Attributes
    ----------
    description : str
    read : callable
        Returns its value; NaN if there is none.
    move : callable
        Returns the features with another value of it.
    is_whole : bool
    of : str
        A feature of the point or the vectors; the axis exists for calls that this feature affects.
    is_flag : bool
        Whether its only values are 0 and 1.
    divisor_of : str
        The name of the number whose exponent of 2 it is; an interval then says by what this number is divisible.
    """

    description: str
    read: Callable[[Features], float]
    move: Callable[[Features, float], Features]
    is_whole: bool = False
    of: str = "n"
    is_flag: bool = False
    divisor_of: str = ""


def _flag_axis(name: str, description: str, levels: Sequence[Any]) -> Axis:
    """Make an axis with the value 1 for some levels of a feature, the first of which is the simplest, else 0."""
    return Axis(
        description, lambda f: float(getattr(f, name) in levels),
        lambda f, x: repair(replace(f, **{name: levels[0] if x else getattr(Features, name)})), True, name, True,
    )  # fmt: skip


def _numeric_axis(name: str, description: str) -> Axis:
    """Make an axis of a numeric feature."""
    is_whole = isinstance(getattr(Features, name), int)

    def read(f: Features) -> float:
        value = getattr(f, name)
        return math.nan if value is None else float(value)

    def move(f: Features, x: float) -> Features:
        change: dict[str, Any] = {name: int(x) if is_whole else x}
        return replace(f, **change)

    return Axis(description, read, move, is_whole, name)


def _with_columns(f: Features, h: float) -> Features:
    """Return features with h columns, and as many more rows than columns as before."""
    return replace(f, n=f.n - f.h + int(h), m=f.m - f.h + int(h), h=int(h))


def _kappa(f: Features) -> float:
    """Return the condition number of the features; 1 if h = 1."""
    return 1.0 if f.h == 1 else f.max_condition


def _power_of_two(k: int) -> float:
    """Return the exponent of 2 in a whole number."""
    return float((k & -k).bit_length() - 1)


AXES = (
    Axis("h", lambda f: f.h, _with_columns, True),
    _numeric_axis("n", "n"),
    _numeric_axis("m", "m"),
    Axis("the number of blocks", lambda f: math.prod(f.blocks), lambda f, x: replace(f, blocks=(int(x),)), True),
    Axis("the number of leading dimensions", lambda f: len(f.blocks),
            lambda f, x: replace(f, blocks=(2, 3, 2, 1, 2)[: int(x)]), True),
    Axis("max(n, m)", lambda f: max(f.n, f.m),
            lambda f, x: replace(f, n=int(x)) if f.n >= f.m else replace(f, m=int(x)), True),
    Axis("n − m", lambda f: f.n - f.m, lambda f, x: replace(f, n=f.m + int(x)), True),
    Axis("|n − m|", lambda f: abs(f.n - f.m), lambda f, x: replace(f, n=f.m + int(x)), True),
    Axis("n − h", lambda f: f.n - f.h, lambda f, x: replace(f, n=f.h + int(x)), True),
    Axis("m − h", lambda f: f.m - f.h, lambda f, x: replace(f, m=f.h + int(x)), True),
    Axis("the exponent of 2 in h", lambda f: _power_of_two(f.h), lambda f, x: _with_columns(f, 2.0**x), True,
            divisor_of="h"),
    Axis("the exponent of 2 in n", lambda f: _power_of_two(f.n),
            lambda f, x: replace(f, n=int(2**x) * (-(-f.h // int(2**x)) | 1)), True, divisor_of="n"),
    _numeric_axis("t", "t"),
    Axis("|t|", lambda f: abs(f.t), lambda f, x: replace(f, t=math.copysign(x, f.t)), of="t"),
    _numeric_axis("speed", "the relative length of the geodesic"),
    Axis("κ", _kappa, lambda f, x: replace(f, condition_G=x, condition_H=x)),
    Axis("κ of G", lambda f: max(f.condition_G, f.uneven_condition), lambda f, x: replace(f, condition_G=x)),
    Axis("κ of H", lambda f: max(f.condition_H, f.uneven_condition), lambda f, x: replace(f, condition_H=x)),
    _numeric_axis("uneven_condition", "the spread of κ between blocks"),
    _numeric_axis("size_G", "the size of G"),
    _numeric_axis("size_H", "the size of H"),
    Axis("the size of G Hᵀ", lambda f: f.size_G * f.size_H, lambda f, x: replace(f, size_G=x**0.5, size_H=x**0.5)),
    _numeric_axis("uneven", "the spread of sizes between blocks"),
    _numeric_axis("length", "the length of the vectors beside the point"),
    _numeric_axis("slope", "the length of the gradient"),
    _numeric_axis("ratio", "the length of b beside that of a"),
    _numeric_axis("part", "the size of a vector's G part beside its H part"),
    _numeric_axis("cosine", "the cosine of the vectors' angle"),
    _flag_axis("same", "both vectors are one array", [1]),
    _numeric_axis("vertical", "the vertical share of the vector"),
    _flag_axis("radial", "a vector points along θ", [1.0]),
    _numeric_axis("sparse", "the share of zeros in the vectors"),
    _numeric_axis("empty_rows", "the number of zero rows of the vectors"),
    _numeric_axis("empty_blocks", "the number of zero blocks of the vectors"),
    _numeric_axis("balance", "the balance of S and T (1: S = T)"),
    _numeric_axis("turn", "the turn of the singular vectors away from the axes"),
    _numeric_axis("gap", "the relative gap of the singular values"),
    _flag_axis("alike", "G = H", [1]),
    _flag_axis("identity", "G has orthonormal columns along the axes", [1, 3]),
    _flag_axis("identity", "H has orthonormal columns along the axes", [2, 3]),
    _flag_axis("normed", "all columns of the factors have length 1", [1]),
    _flag_axis("shared", "all blocks have the same G", ["G", "all"]),
    _flag_axis("shared", "all blocks have the same H", ["H", "all"]),
    _flag_axis("shared", "the factors have rows in common", ["rows"]),
    _numeric_axis("zero_rows", "the number of zero rows of the factors"),
)  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """The bound of an interval.

    Attributes
    ----------
    value : float
    is_open : bool
        Whether the value itself is right.
    vanishes : bool
        Whether the error tends to zero towards it.
    """

    value: float
    is_open: bool = False
    vanishes: bool = False


@dataclass
class RegionSearch:
    """Searches for the region in which a value is wrong.

    Attributes
    ----------
    value : Value
    judge : callable
        Returns the evidence at a point.
    like : Scene
        A failing point: new points have its metric, seed and relaxation, and the run's dtype.
    confirmed : list of Features
        The new points that fail inside the last interval.
    """

    value: Value
    judge: Callable[[Scene], Sequence[Evidence]]
    like: Scene
    confirmed: list[Features] = field(default_factory=list)

    def _error_at(self, features: Features) -> tuple[float, float] | None:
        """Return the test ratio and the error unit of a value at a new point.

        The ratio is infinite if a call fails. The result is None if the point is not decisive.
        """
        if not features.is_feasible:
            return None
        try:
            evidence = list(self.judge(self.like.with_features(features)))
        except (ValueError, ArithmeticError, NoResult):
            return None
        if any(e.event is Event.FAILED and e.decisive for e in evidence):
            return math.inf, 1.0
        if not evidence or not all(e.decisive and np.isfinite(e.relative_error) for e in evidence):
            return None
        return max(e.ratio for e in evidence), max(e.gram for e in evidence)

    def fails(self, features: Features) -> bool | None:
        """Return whether a value fails at a new point; None if the point is not decisive."""
        error = self._error_at(features)
        return None if error is None else error[0] > MAX_RATIO

    def fails_at_generic_points(self) -> list[bool | None]:
        """Return whether a value fails, for each of a few generic points."""
        return [self.fails(self._with_precision(features)) for features in _GENERIC_POINTS]

    def passes_in_double(self, wrong: Sequence[Features]) -> bool:
        """Return whether a value passes in float64 at generic points, and at points that are wrong in float32."""
        points = [*_GENERIC_POINTS, *(replace(f, single=0) for f in wrong)]
        return {self.fails(features) for features in points} - {None} == {False}

    def _with_precision(self, features: Features) -> Features:
        """Return features in float32 if the failing point has `single`."""
        single = self.like.features is not None and self.like.features.single
        return replace(features, single=1) if single else features

    def find_interval(self, wrong: Sequence[Features], right: Sequence[Features]) -> str:
        """Describe the failing interval, such as "h ≥ 5".

        The description is empty if no interval of one feature separates failing from passing calls, or if new calls
        refute it.
        """
        if not wrong or not right:
            return ""
        for axis in AXES:
            if affects(axis.of, self.value.operation):
                description = self._failing_interval(axis, wrong, right)
                if description:
                    return description
        return ""

    def failing_near(self, wrong: Sequence[Features]) -> list[Features]:
        """Return new points near the failing ones at which the value fails, too."""
        return [varied for f in wrong for change in _VARIATIONS if self.fails(varied := change(_with_new_draw(f)))]

    def _failing_interval(self, axis: Axis, wrong: Sequence[Features], right: Sequence[Features]) -> str:
        """Describe the failing interval of one feature, if new calls confirm it."""
        values = [axis.read(f) for f in wrong]
        if any(map(math.isnan, values)):
            return ""
        low, high = min(values), max(values)
        plainest = min(wrong, key=lambda f: (f.single, f.h == 1))
        inside = [f for f in right if low <= axis.read(f) <= high]
        if len(inside) > _MAX_MASKED or not all(self._is_masked(f, plainest) for f in inside):
            return ""
        others = [x for x in map(axis.read, right) if x < low or x > high]
        bounds: list[Bound | None] = []
        default = axis.read(Features())
        tested = [axis.move(_with_new_draw(plainest), x) for x in _between_whole(axis, low, high)]
        tested += [self._with_precision(axis.move(f, axis.read(plainest))) for f in _GENERIC_POINTS]
        for end, side in ((low, -1.0), (high, 1.0)):
            beyond = sorted((x for x in (*others, default) if side * (x - end) > 0.0), key=lambda x: side * x)
            if not beyond:
                bounds.append(None)
                continue
            shape = Features(plainest.blocks, plainest.n, plainest.m, plainest.h)  # generic, if it can be
            start = axis.move(self._with_precision(_with_new_draw(shape)), end)
            passing_values = [x for x in dict.fromkeys((beyond[0], default, beyond[-1])) if x in beyond]
            outcomes = [self.fails(axis.move(start, x)) for x in passing_values]
            if self.fails(start) is not True or (False not in outcomes and None in outcomes):
                return ""
            if False not in outcomes:  # what passes there has something else that hides the mistake
                points = [f for f in right if side * (axis.read(f) - end) > 0.0]
                simplest = sorted(points, key=lambda f: len(f.non_default))[:_MAX_MASKED]
                if not all(self._is_masked(f, plainest) for f in simplest):
                    return ""
                bounds.append(None)
                tested += [axis.move(start, x) for x in passing_values]
                continue
            outside = passing_values[outcomes.index(False)]
            bound, near = self._bisect_bound(axis, start, outside, end)
            bounds.append(bound)
            tested += [axis.move(start, x) for x in (*near, end)]
        return _describe(axis, *bounds) if self._is_confirmed(axis, bounds, tested) else ""

    def _is_confirmed(self, axis: Axis, bounds: Sequence[Bound | None], tested: Sequence[Features]) -> bool:
        """Return whether new points, which vary other features, fail inside the interval and pass outside."""
        low, high = ((-math.inf, math.inf)[i] if end is None else end.value for i, end in enumerate(bounds))
        self.confirmed.clear()
        least_error = math.inf
        for features in dict.fromkeys(change(x) for x in tested for change in (lambda x: x, *_VARIATIONS)):
            x, error = axis.read(features), self._error_at(features)
            if error is None:
                continue
            at_end = any(end and end.value == x and end.is_open for end in bounds)
            fails, inside = error[0] > MAX_RATIO, low <= x <= high and not at_end
            if fails and inside:
                self.confirmed.append(features)
                least_error = min(least_error, error[0] * error[1])
            elif fails or (inside and MAX_RATIO * error[1] <= _HIDDEN_SHARE * least_error):
                return False
        return len(self.confirmed) > 1

    def _is_masked(self, passing: Features, plainest: Features) -> bool:
        """Return whether another special level of a passing point makes the simplest failing point pass, too."""
        special = {k: getattr(passing, k) for k in passing.non_default if k not in ("blocks", "n", "m", "h")}
        point = _with_new_draw(plainest)
        changed = [repair(replace(point, **special)), *(replace(point, **{k: x}) for k, x in special.items())]
        return any(self.fails(features) is False for features in changed)

    def _bisect_bound(self, axis: Axis, start: Features, good: float, bad: float) -> tuple[Bound, list[float]]:
        """Bisect the bound between failing and passing values; return it with few digits, and values on both sides."""
        outside = good
        for _ in range(_MAX_BISECTIONS):
            middle = _between(good, bad, axis.is_whole)
            if middle is None:
                break
            outcome = self.fails(axis.move(start, middle))
            if outcome is None:
                break
            good, bad = (good, middle) if outcome else (middle, bad)
        error = self._error_at(axis.move(start, bad))
        vanishes = error is not None and error[0] < _VANISHING_RATIO and not axis.is_whole
        if vanishes and min(outside, bad) <= 0.0 <= max(outside, bad):
            return Bound(0.0, is_open=True), [outside]  # what is left of it there is less than rounding
        # a bound that is not a short number depends a little on all other features
        away = _TESTED_FACTOR if bad > good else 1.0 / _TESTED_FACTOR
        about = [outside] if vanishes or good <= 0.0 else [good / away, bad * away]
        for digits in () if axis.is_whole else (1, 2, 3):
            short = float(f"{bad:.{digits}g}")
            outcome = self.fails(axis.move(start, short)) if min(good, bad) <= short <= max(good, bad) else None
            if outcome is not None:
                values = about if vanishes or digits > 2 else [good, bad]
                return Bound(short, not outcome, vanishes), values
        return Bound(bad, vanishes=vanishes), [good, bad] if axis.is_whole else about


def _between_whole(axis: Axis, low: float, high: float) -> Iterator[float]:
    """Yield short numbers in the middle of an interval, which tests whether it is an interval."""
    middle = 0.5 * (low + high)
    if axis.is_whole and math.isfinite(middle):
        yield from (float(x) for x in (math.floor(middle), math.floor(middle) + 1) if low < x < high)
    elif middle and math.isfinite(middle):
        yield math.copysign(2.0 ** round(math.log2(abs(middle))), middle)


def _between(good: float, bad: float, is_whole: bool) -> float | None:
    """Return the middle of two values, geometric if they are positive and far apart; None if there is none."""
    if math.isinf(good) or math.isinf(bad):
        return None
    geometric = good > 0.0 and bad > 0.0 and not is_whole and max(good, bad) > 4.0 * min(good, bad)
    middle = math.sqrt(good * bad) if geometric else 0.5 * (good + bad)
    if is_whole:
        middle = float(round(middle))
    close = (not is_whole and abs(good - bad) <= 0.002 * abs(bad)) or middle in (good, bad)
    return None if close else middle


def _with_new_draw(features: Features) -> Features:
    """Return the features of a test point with another random seed."""
    return replace(features, draw=features.draw + _FIRST_DRAW)


def _describe(axis: Axis, low: Bound | None, high: Bound | None) -> str:
    """Describe an interval.

    Examples
    --------
    >>> axis = next(axis for axis in AXES if axis.divisor_of == "h")
    >>> _describe(axis, None, Bound(0.0)), _describe(axis, Bound(2.0), None), _describe(AXES[0], Bound(5.0), None)
    ('h is odd', 'h is a multiple of 4', 'h ≥ 5')
    >>> _describe(AXES[12], None, Bound(0.0, is_open=True))
    't < 0'
    """
    if axis.is_flag:
        return axis.description
    if axis.divisor_of and (low is None) != (high is None):
        power = 2 ** int((low.value if low else 0.0) if high is None else high.value + 1.0)
        is_multiple = "even" if power == 2 else f"a multiple of {power}"
        is_none = "odd" if power == 2 else f"no multiple of {power}"
        return f"{axis.divisor_of} is {is_multiple if high is None else is_none}"

    def number(end: Bound) -> str:
        short = f"{end.value:.0f}" if axis.is_whole else f"{end.value:.3g}"
        return short if float(short) == end.value else f"about {end.value:.2g}"

    less = ", and less and less beyond" if (low and low.vanishes) or (high and high.vanishes) else ""
    if low is not None and high is not None:
        if low.value == high.value:
            return f"{axis.description} = {number(low)}"
        signs = ["<" if end.is_open else "≤" for end in (low, high)]
        return f"{number(low)} {signs[0]} {axis.description} {signs[1]} {number(high)}{less}"
    if low is not None:
        return f"{axis.description} {'>' if low.is_open else '≥'} {number(low)}{less}"
    return f"{axis.description} {'<' if high.is_open else '≤'} {number(high)}{less}" if high is not None else ""


def describe_blocks(outcomes: Sequence[tuple[int, int, bool]]) -> str:
    """Describe which blocks of batches are wrong, from triples (index, number of blocks, whether it fails).

    Examples
    --------
    >>> describe_blocks([(0, 3, False), (1, 3, True), (2, 3, True), (1, 2, True)])
    'in all blocks but the first'
    """
    for description, expected in _PATTERNS.items():
        if outcomes and all(fails == expected(i, count) for i, count, fails in outcomes):
            return description
    return ""


_PATTERNS: dict[str, Callable[[int, int], bool]] = {
    "in all blocks but the first": lambda i, count: i > 0,
    "in the first block": lambda i, count: i == 0,
    "in the last block": lambda i, count: i == count - 1,
    "in all blocks but the last": lambda i, count: i < count - 1,
}
