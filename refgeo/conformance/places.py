"""Where a backend is wrong: the one interval of one feature of a call that separates failing calls from right ones.

Nothing is said unless fresh calls confirm it: with nothing special but this feature they fail inside the interval, the
plainest failing point passes when this feature alone is moved out of it, and the end that is printed is a failing one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refgeo.conformance.call import Event, NoResult
from refgeo.conformance.evidence import MAX_RATIO, Evidence
from refgeo.conformance.features import Features, affects, repair
from refgeo.conformance.operations import Value
from refgeo.conformance.scene import Scene

_FRESH = 50
"""Draws of fresh points begin here."""
_BISECTIONS, _ABOUT = 40, 4.0
"""Steps to the end of an interval; and how many times as far the interval is tried, where it begins at no plain number.
"""
_FADED = 100.0 * MAX_RATIO
"""An error that is no larger at the end of an interval gets smaller towards it: beyond, rounding hides what is left."""
_HIDDEN = 0.1
"""A passing point contradicts where rounding there is at most so many times the least mistake."""
_MASKED = 3
"""Of so many passing points inside an interval it is tried whether something else hides the mistake there."""
_OTHERS: tuple[Callable[[Features], Features], ...] = (
    lambda f: replace(f, blocks=()), lambda f: replace(f, blocks=(3,)), lambda f: replace(f, n=f.n + 7),
    lambda f: replace(f, m=f.m + 9), lambda f: _with_columns(f, 6), lambda f: replace(f, condition_G=1.0),
    lambda f: replace(f, condition_H=1.0), lambda f: replace(f, condition_G=20.0),
    lambda f: replace(f, condition_H=20.0), lambda f: replace(f, t=-0.6), lambda f: replace(f, t=1.5),
    lambda f: replace(f, t=-1.5), lambda f: replace(f, size_G=3.0),
)  # fmt: skip
"""What is varied to hold an explanation against fresh points."""
_USUAL = tuple(Features(n=n, m=m, h=h, draw=_FRESH) for n, m, h in ((5, 4, 2), (4, 6, 3), (7, 5, 4)))
"""A few points with nothing special about them."""


@dataclass(frozen=True)
class Feature:
    """A number of a call, which can be moved.

    Attributes
    ----------
    words : str
    read : callable
        Its value; NaN where there is none.
    move : callable
        The features with another value of it.
    is_whole : bool
    of : str
        A feature of the point or of the vectors that calls have who have this one.
    is_flag : bool
        Whether it only says that something is so.
    divided : str
        Whose exponent of 2 it is, if it is one: an interval then says by what that is divisible.
    """

    words: str
    read: Callable[[Features], float]
    move: Callable[[Features, float], Features]
    is_whole: bool = False
    of: str = "n"
    is_flag: bool = False
    divided: str = ""


def _flag(name: str, words: str, levels: Sequence[Any]) -> Feature:
    """Whether a feature has one of some levels, the first of which is the plainest."""
    return Feature(
        words, lambda f: float(getattr(f, name) in levels),
        lambda f, x: repair(replace(f, **{name: levels[0] if x else getattr(Features, name)})), True, name, True,
    )  # fmt: skip


def _named(name: str, words: str) -> Feature:
    is_whole = isinstance(getattr(Features, name), int)

    def read(f: Features) -> float:
        value = getattr(f, name)
        return math.nan if value is None else float(value)

    def move(f: Features, x: float) -> Features:
        change: dict[str, Any] = {name: int(x) if is_whole else x}
        return replace(f, **change)

    return Feature(words, read, move, is_whole, name)


def _with_columns(f: Features, h: float) -> Features:
    """With as many more rows than columns as before."""
    return replace(f, n=f.n - f.h + int(h), m=f.m - f.h + int(h), h=int(h))


def _kappa(f: Features) -> float:
    return 1.0 if f.h == 1 else max(f.condition_G, f.condition_H, f.uneven_condition)


def _power_of_two(k: int) -> float:
    return float((k & -k).bit_length() - 1)


FEATURES = (
    Feature("h", lambda f: f.h, _with_columns, True),
    _named("n", "n"),
    _named("m", "m"),
    Feature("the number of blocks", lambda f: math.prod(f.blocks), lambda f, x: replace(f, blocks=(int(x),)), True),
    Feature("the number of leading dimensions", lambda f: len(f.blocks),
            lambda f, x: replace(f, blocks=(2, 3, 2, 1, 2)[: int(x)]), True),
    Feature("max(n, m)", lambda f: max(f.n, f.m),
            lambda f, x: replace(f, n=int(x)) if f.n >= f.m else replace(f, m=int(x)), True),
    Feature("n − m", lambda f: f.n - f.m, lambda f, x: replace(f, n=f.m + int(x)), True),
    Feature("|n − m|", lambda f: abs(f.n - f.m), lambda f, x: replace(f, n=f.m + int(x)), True),
    Feature("n − h", lambda f: f.n - f.h, lambda f, x: replace(f, n=f.h + int(x)), True),
    Feature("m − h", lambda f: f.m - f.h, lambda f, x: replace(f, m=f.h + int(x)), True),
    Feature("the exponent of 2 in h", lambda f: _power_of_two(f.h), lambda f, x: _with_columns(f, 2.0**x), True,
            divided="h"),
    Feature("the exponent of 2 in n", lambda f: _power_of_two(f.n),
            lambda f, x: replace(f, n=int(2**x) * (-(-f.h // int(2**x)) | 1)), True, divided="n"),
    _named("t", "t"),
    Feature("|t|", lambda f: abs(f.t), lambda f, x: replace(f, t=math.copysign(x, f.t)), of="t"),
    _named("speed", "the relative length of the geodesic"),
    Feature("κ", _kappa, lambda f, x: replace(f, condition_G=x, condition_H=x)),
    Feature("κ of G", lambda f: max(f.condition_G, f.uneven_condition), lambda f, x: replace(f, condition_G=x)),
    Feature("κ of H", lambda f: max(f.condition_H, f.uneven_condition), lambda f, x: replace(f, condition_H=x)),
    _named("uneven_condition", "the spread of κ between blocks"),
    _named("size_G", "the size of G"),
    _named("size_H", "the size of H"),
    Feature("the size of G Hᵀ", lambda f: f.size_G * f.size_H, lambda f, x: replace(f, size_G=x**0.5, size_H=x**0.5)),
    _named("uneven", "the spread of sizes between blocks"),
    _named("length", "the length of the vectors beside the point"),
    _named("slope", "the length of the gradient"),
    _named("ratio", "the length of b beside that of a"),
    _named("part", "the size of a vector's G part beside its H part"),
    _named("cosine", "the cosine of the vectors' angle"),
    _flag("same", "both vectors are one array", [1]),
    _named("vertical", "the vertical share of the vector"),
    _flag("radial", "a vector points along θ", [1.0]),
    _named("sparse", "the share of zeros in the vectors"),
    _named("empty_rows", "the number of zero rows of the vectors"),
    _named("empty_blocks", "the number of zero blocks of the vectors"),
    _named("balance", "the balance of S and T (1: S = T)"),
    _named("turn", "the turn of the singular vectors away from the axes"),
    _named("gap", "the relative gap of the singular values"),
    _flag("alike", "G = H", [1]),
    _flag("identity", "G has orthonormal columns along the axes", [1, 3]),
    _flag("identity", "H has orthonormal columns along the axes", [2, 3]),
    _flag("normed", "all columns of the factors have length 1", [1]),
    _flag("shared", "all blocks have the same G", ["G", "all"]),
    _flag("shared", "all blocks have the same H", ["H", "all"]),
    _flag("shared", "the factors have rows in common", ["rows"]),
    _named("zero_rows", "the number of zero rows of the factors"),
)  # fmt: skip


@dataclass(frozen=True)
class End:
    """Where an interval ends.

    Attributes
    ----------
    value : float
    is_open : bool
        Whether the value itself is right.
    fades : bool
        Whether the error gets smaller and smaller towards it.
    """

    value: float
    is_open: bool = False
    fades: bool = False


@dataclass
class Place:
    """Looks for the place where a value is wrong.

    Attributes
    ----------
    value : Value
    look : callable
        What is seen of it at a point.
    like : Scene
        A failing point: fresh ones have its metric, dtype, seed and relaxation.
    confirmed : list of Features
        Fresh points that are wrong as the place says that was found last.
    """

    value: Value
    look: Callable[[Scene], Sequence[Evidence]]
    like: Scene
    confirmed: list[Features] = field(default_factory=list)

    def _told(self, features: Features) -> tuple[float, float] | None:
        """How far a fresh point is from right in units of rounding, infinitely where a call fails, and the unit; None
        where it decides nothing.
        """
        if not features.is_feasible:
            return None
        try:
            found = list(self.look(self.like.fresh(features)))
        except (ValueError, ArithmeticError, NoResult):
            return None
        if any(one.event is Event.FAILED and one.decisive for one in found):
            return math.inf, 1.0
        if not found or not all(one.decisive and np.isfinite(one.relative_error) for one in found):
            return None
        return max(one.ratio for one in found), max(one.gram for one in found)

    def fails(self, features: Features) -> bool | None:
        """Whether a fresh point fails; None where it decides nothing."""
        told = self._told(features)
        return None if told is None else told[0] > MAX_RATIO

    def usual(self) -> list[bool | None]:
        """Whether points with nothing special fail."""
        return [self.fails(self._as_single(features)) for features in _USUAL]

    def passes_in_double(self) -> bool:
        """Whether points with nothing special pass in float64."""
        return {self.fails(features) for features in _USUAL} - {None} == {False}

    def _as_single(self, features: Features) -> Features:
        single = self.like.features is not None and self.like.features.single
        return replace(features, single=1) if single else features

    def find(self, wrong: Sequence[Features], right: Sequence[Features]) -> str:
        """In words, such as "h ≥ 5"; empty if no interval of one feature separates them, or fresh calls refute it."""
        if not wrong or not right:
            return ""
        for feature in FEATURES:
            if affects(feature.of, self.value.operation):
                said = self._interval(feature, wrong, right)
                if said:
                    return said
        return ""

    def failing_near(self, wrong: Sequence[Features]) -> list[Features]:
        """Fresh points that are nearly those that fail, and fail."""
        return [one for f in wrong for change in _OTHERS if self.fails(one := change(_again(f)))]

    def _interval(self, feature: Feature, wrong: Sequence[Features], right: Sequence[Features]) -> str:
        values = [feature.read(f) for f in wrong]
        if any(map(math.isnan, values)):
            return ""
        low, high = min(values), max(values)
        plainest = min(wrong, key=lambda f: (f.single, f.h == 1))
        inside = [f for f in right if low <= feature.read(f) <= high]
        if len(inside) > _MASKED or not all(self._is_masked(f, plainest) for f in inside):
            return ""
        others = [x for x in map(feature.read, right) if x < low or x > high]
        ends: list[End | None] = []
        usual = feature.read(Features())
        tried = [feature.move(_again(plainest), x) for x in _between_whole(feature, low, high)]
        tried += [self._as_single(feature.move(one, feature.read(plainest))) for one in _USUAL]
        for end, side in ((low, -1.0), (high, 1.0)):
            beyond = sorted((x for x in (*others, usual) if side * (x - end) > 0.0), key=lambda x: side * x)
            if not beyond:
                ends.append(None)
                continue
            shape = Features(
                plainest.blocks, plainest.n, plainest.m, plainest.h
            )  # with nothing else special, if it can
            start = feature.move(self._as_single(_again(shape)), end)
            there = [x for x in dict.fromkeys((beyond[0], usual, beyond[-1])) if x in beyond]
            outcomes = [self.fails(feature.move(start, x)) for x in there]
            if self.fails(start) is not True or (False not in outcomes and None in outcomes):
                return ""
            if False not in outcomes:  # what passes there has something else that hides the mistake
                some = [f for f in right if side * (feature.read(f) - end) > 0.0]
                few = sorted(some, key=lambda f: len(f.non_default))[:_MASKED]
                if not all(self._is_masked(f, plainest) for f in few):
                    return ""
                ends.append(None)
                tried += [feature.move(start, x) for x in there]
                continue
            outside = there[outcomes.index(False)]
            found, near = self._end(feature, start, outside, end)
            ends.append(found)
            tried += [feature.move(start, x) for x in (*near, end)]
        return _said(feature, *ends) if self._predicts(feature, ends, tried) else ""

    def _predicts(self, feature: Feature, ends: Sequence[End | None], tried: Sequence[Features]) -> bool:
        """Whether fresh points that vary everything else are wrong inside, and right outside, as the interval says."""
        low, high = ((-math.inf, math.inf)[i] if end is None else end.value for i, end in enumerate(ends))
        self.confirmed.clear()
        least = math.inf
        for one in dict.fromkeys(change(x) for x in tried for change in (lambda x: x, *_OTHERS)):
            x, told = feature.read(one), self._told(one)
            if told is None:
                continue
            at_end = any(end and end.value == x and end.is_open for end in ends)
            fails, inside = told[0] > MAX_RATIO, low <= x <= high and not at_end
            if fails and inside:
                self.confirmed.append(one)
                least = min(least, told[0] * told[1])
            elif fails or (inside and MAX_RATIO * told[1] <= _HIDDEN * least):  # rounding does not hide the mistake
                return False
        return len(self.confirmed) > 1

    def _is_masked(self, passing: Features, plainest: Features) -> bool:
        """Whether something else that is special of a passing point makes the plainest failing one pass, too."""
        special = {k: getattr(passing, k) for k in passing.non_default if k not in ("blocks", "n", "m", "h")}
        again = _again(plainest)
        changed = [repair(replace(again, **special)), *(replace(again, **{k: x}) for k, x in special.items())]
        return any(self.fails(one) is False for one in changed)

    def _end(self, feature: Feature, start: Features, good: float, bad: float) -> tuple[End, list[float]]:
        """Where failing values begin, by bisection, with as few digits as can be; and values on both sides."""
        outside = good
        for _ in range(_BISECTIONS):
            middle = _between(good, bad, feature.is_whole)
            if middle is None:
                break
            outcome = self.fails(feature.move(start, middle))
            if outcome is None:
                break
            good, bad = (good, middle) if outcome else (middle, bad)
        told = self._told(feature.move(start, bad))
        fades = told is not None and told[0] < _FADED and not feature.is_whole
        if fades and min(outside, bad) <= 0.0 <= max(outside, bad):
            return End(0.0, is_open=True), [outside]  # what is left of it there is less than rounding
        away = _ABOUT if bad > good else 1.0 / _ABOUT  # an end that is no plain number depends a little on all else
        about = [outside] if fades or good <= 0.0 else [good / away, bad * away]
        for digits in () if feature.is_whole else (1, 2, 3):
            short = float(f"{bad:.{digits}g}")
            outcome = self.fails(feature.move(start, short)) if min(good, bad) <= short <= max(good, bad) else None
            if outcome is not None:
                return End(short, is_open=not outcome, fades=fades), about if fades or digits > 2 else [good, bad]
        return End(bad, fades=fades), [good, bad] if feature.is_whole else about


def _between_whole(feature: Feature, low: float, high: float) -> Iterator[float]:
    """Plain numbers in the middle: times that are no dyadic numbers are no interval."""
    middle = 0.5 * (low + high)
    if feature.is_whole and math.isfinite(middle):
        yield from (float(x) for x in (math.floor(middle), math.floor(middle) + 1) if low < x < high)
    elif middle and math.isfinite(middle):
        yield math.copysign(2.0 ** round(math.log2(abs(middle))), middle)


def _between(good: float, bad: float, is_whole: bool) -> float | None:
    """Between two values, geometrically where both are positive and far apart; None where there is nothing."""
    if math.isinf(good) or math.isinf(bad):
        return None
    geometric = good > 0.0 and bad > 0.0 and not is_whole and max(good, bad) > 4.0 * min(good, bad)
    middle = math.sqrt(good * bad) if geometric else 0.5 * (good + bad)
    if is_whole:
        middle = float(round(middle))
    close = (not is_whole and abs(good - bad) <= 0.002 * abs(bad)) or middle in (good, bad)
    return None if close else middle


def _again(features: Features) -> Features:
    return replace(features, draw=features.draw + _FRESH)


def _said(feature: Feature, low: End | None, high: End | None) -> str:
    """The interval in words.

    Examples
    --------
    >>> feature = next(one for one in FEATURES if one.divided == "h")
    >>> _said(feature, None, End(0.0)), _said(feature, End(2.0), None), _said(FEATURES[0], End(5.0), None)
    ('h is odd', 'h is a multiple of 4', 'h ≥ 5')
    >>> _said(FEATURES[12], None, End(0.0, is_open=True))
    't < 0'
    """
    if feature.is_flag:
        return feature.words
    if feature.divided and (low is None) != (high is None):
        power = 2 ** int((low.value if low else 0.0) if high is None else high.value + 1.0)
        is_multiple = "even" if power == 2 else f"a multiple of {power}"
        is_none = "odd" if power == 2 else f"no multiple of {power}"
        return f"{feature.divided} is {is_multiple if high is None else is_none}"

    def number(end: End) -> str:
        short = f"{end.value:.0f}" if feature.is_whole else f"{end.value:.3g}"
        return short if float(short) == end.value else f"about {end.value:.2g}"

    less = ", and less and less beyond" if (low and low.fades) or (high and high.fades) else ""
    if low is not None and high is not None:
        if low.value == high.value:
            return f"{feature.words} = {number(low)}"
        signs = ["<" if end.is_open else "≤" for end in (low, high)]
        return f"{number(low)} {signs[0]} {feature.words} {signs[1]} {number(high)}{less}"
    if low is not None:
        return f"{feature.words} {'>' if low.is_open else '≥'} {number(low)}{less}"
    return f"{feature.words} {'<' if high.is_open else '≤'} {number(high)}{less}" if high is not None else ""


def blocks_in_words(outcomes: Sequence[tuple[int, int, bool]]) -> str:
    """Which blocks of batches are wrong; of triples of an index, the number of blocks, and whether it fails.

    Examples
    --------
    >>> blocks_in_words([(0, 3, False), (1, 3, True), (2, 3, True), (1, 2, True)])
    'in all blocks but the first'
    """
    for words, expected in _PATTERNS.items():
        if outcomes and all(fails == expected(i, count) for i, count, fails in outcomes):
            return words
    return ""


_PATTERNS: dict[str, Callable[[int, int], bool]] = {
    "in all blocks but the first": lambda i, count: i > 0,
    "in the first block": lambda i, count: i == 0,
    "in the last block": lambda i, count: i == count - 1,
    "in all blocks but the last": lambda i, count: i < count - 1,
}
