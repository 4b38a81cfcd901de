"""Where a backend is wrong: the one interval of one feature of a call that separates failing cases from passing ones.

Nothing is said unless fresh cases on either side confirm it, and bisection between them says where the interval begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from refgeo.arguments import Array
from refgeo.conformance.case import Case
from refgeo.conformance.recipes import Recipe
from refgeo.operations import Operation
from refgeo.pair import Pair

_FRESH = 50
"""Draws of fresh cases begin here."""
_BISECTIONS = 12

Judge = Callable[[Recipe], bool | None]
"""Whether a fresh case passes; None where it decides nothing."""


@dataclass(frozen=True)
class Feature:
    """A number that a call has.

    Attributes
    ----------
    name : str
    value : callable
        Of a case and an operation.
    change : callable, optional
        ``(recipe, value) -> recipe``: another recipe with the feature at a value, if there is one.
    whole : bool
        Whether it is an integer.
    least : float
        Smaller values, and zero, are all the same.
    """

    name: str
    value: Callable[[Case, Operation], float]
    change: Callable[[Recipe, float], Recipe] | None = None
    whole: bool = False
    least: float = 0.0


def _first(case: Case, operation: Operation) -> Pair:
    return case.vectors[operation.sources[-1 if operation.name == "riemannian_hessian" else 0]]


def _size(pair: Pair) -> float:
    return float(np.hypot(np.linalg.norm(pair.G), np.linalg.norm(pair.H)))


def _ratio(x: float, y: float) -> float:
    return x / y if y else math.inf if x else 1.0


def _spread(values: Array) -> float:
    return float(np.max(values) / np.min(values)) if np.min(values, initial=1.0) > 0 else math.inf


def _vertical(case: Case, operation: Operation) -> float:
    v = _first(case, operation)
    length = case.space.norm(v)
    if operation.inputs[0].type == "covector" or not np.all(length > 0.0):
        return math.nan
    return float(np.max(case.space.norm(case.space.vertical_projection(v)) / length))


def _of_two(measure: Callable[[Case, Pair, Pair], float]) -> Callable[[Case, Operation], float]:
    def value(case: Case, operation: Operation) -> float:
        vectors = case.inputs(operation)
        return measure(case, *vectors) if len(vectors) == 2 and all(map(_size, vectors)) else math.nan

    return value


def _cosine(case: Case, a: Pair, b: Pair) -> float:
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(case.space.inner_product(a, b) / (case.space.norm(a) * case.space.norm(b)))))


def _gaps(case: Case, operation: Operation) -> float:
    """The smallest relative distance between singular values of a factor."""
    found = [s for s in _singular_values(case) if s.shape[-1] > 1]
    return min((float(np.min((s[..., :-1] - s[..., 1:]) / s[..., :1])) for s in found), default=1.0)


def _kappas(case: Case) -> list[Array]:
    return [s[..., 0] / s[..., -1] for s in _singular_values(case)]


def _singular_values(case: Case) -> list[Array]:
    return [np.linalg.svd(factor, compute_uv=False) for factor in case.point]


def _beside(S: Array, T: Array) -> float:
    return float(np.linalg.norm(S - T) / np.linalg.norm(S))


def _grams(case: Case) -> list[Array]:
    return [factor.mT @ factor for factor in case.point]


def _of_size(index: int) -> Callable[[Recipe, float], Recipe]:
    def change(recipe: Recipe, value: float) -> Recipe:
        sizes = list(recipe.sizes)
        sizes[index] = int(value)
        if index == 2:  # rows enough for the columns, and as many more as before
            sizes = [max(sizes[i], int(value) + max(recipe.sizes[i] - recipe.sizes[2], 0)) for i in (0, 1)] + sizes[2:]
        return replace(recipe, sizes=(sizes[0], sizes[1], sizes[2]))

    return change


def _multiple(number: int) -> float:
    """The power of two in a number."""
    return float((number & -number).bit_length() - 1)


FEATURES = (
    Feature("h", lambda c, o: c.point.sizes[2], _of_size(2), whole=True),
    Feature("n", lambda c, o: c.point.sizes[0], _of_size(0), whole=True),
    Feature("m", lambda c, o: c.point.sizes[1], _of_size(1), whole=True),
    Feature("the number of blocks", lambda c, o: math.prod(c.point.block_shape),
            lambda r, x: replace(r, batch=(int(x),)), whole=True),
    Feature("the number of leading dimensions", lambda c, o: len(c.point.block_shape),
            lambda r, x: replace(r, batch=(2, 3, 2, 1, 2)[: int(x)]), whole=True),
    Feature("max(n, m)", lambda c, o: max(c.point.sizes[:2]), None, whole=True),
    Feature("n − m", lambda c, o: c.point.sizes[0] - c.point.sizes[1], None, whole=True),
    Feature("|n − m|", lambda c, o: abs(c.point.sizes[0] - c.point.sizes[1]), None, whole=True),
    Feature("n − h", lambda c, o: c.point.sizes[0] - c.point.sizes[2], None, whole=True),
    Feature("m − h", lambda c, o: c.point.sizes[1] - c.point.sizes[2], None, whole=True),
    Feature("the power of two in h", lambda c, o: _multiple(c.point.sizes[2]), None, whole=True),
    Feature("the power of two in n", lambda c, o: _multiple(c.point.sizes[0]), None, whole=True),
    Feature("t", lambda c, o: c.t if "t" in o.extra else math.nan, lambda r, x: replace(r, t=float(x))),
    Feature("|t|", lambda c, o: abs(c.t) if "t" in o.extra else math.nan, lambda r, x: replace(r, t=float(x))),
    Feature("κ", lambda c, o: float(np.max(c.condition)), lambda r, x: replace(r, conditions=(x, x)), least=1.5),
    Feature("the spread of κ between blocks", lambda c, o: max(map(_spread, _kappas(c)))),
    Feature("the size of G", lambda c, o: _size(Pair(c.point.G, 0 * c.point.H))),
    Feature("the size of H", lambda c, o: _size(Pair(0 * c.point.G, c.point.H))),
    Feature("the spread of sizes between blocks",
            lambda c, o: max(_spread(np.linalg.norm(x, axis=(-2, -1))) for x in c.point)),
    Feature("the length of the first vector beside the point", lambda c, o: _ratio(_size(_first(c, o)), _size(c.point)),
            least=1e-30),
    Feature("the length of the first vector beside the second", _of_two(lambda c, a, b: _ratio(_size(a), _size(b)))),
    Feature("the size of a vector's G part beside its H part",
            lambda c, o: _ratio(*(float(np.linalg.norm(x)) for x in _first(c, o))), least=1e-30),
    Feature("the vertical share of the vector", _vertical, least=1e-14),
    Feature("the cosine of the vectors' angle", _of_two(_cosine), least=1e-14),
    Feature("the distance of the vectors beside their length", _of_two(lambda c, a, b: _ratio(_size(a - b), _size(a))),
            least=1e-16),
    Feature("the share of zeros in a vector", lambda c, o: float(np.mean([np.mean(x == 0.0) for x in _first(c, o)]))),
    Feature("|S − T| beside |S|", lambda c, o: _beside(*_grams(c)), least=1e-14),
    Feature("the off-diagonal part of S", lambda c, o: _beside(_grams(c)[0], np.eye(c.point.sizes[2]) * _grams(c)[0]),
            least=1e-14),
    Feature("the distance between singular values", _gaps, least=1e-14),
    Feature("the rows of zeros", lambda c, o: float(sum(np.sum(~np.any(x, axis=-1)) for x in c.point)), whole=True),
    Feature("the unit roundoff", lambda c, o: 2.0 ** {"float64": -53, "float32": -24, "float16": -11}.get(c.dtype, -8)),
)  # fmt: skip


def where(operation: Operation, failing: Sequence[Case], passing: Sequence[Case], judge: Judge) -> str:
    """In words, such as "h ≥ 5"; empty if no interval of one feature separates the cases, or fresh ones refute it."""
    if len(passing) < 3 or not failing:
        return ""
    with np.errstate(all="ignore"):
        for feature in _separating(operation, failing, passing):
            said = _confirmed(feature, failing, passing, operation, judge)
            if said:
                return said
    return ""


Interval = tuple[float, float]


def _separating(operation: Operation, failing: Sequence[Case], passing: Sequence[Case]) -> Iterator[Feature]:
    """The features of which one interval holds all failing cases and no passing one."""
    for feature in FEATURES:
        wrong, right = (
            [max(feature.value(case, operation), feature.least) for case in cases] for cases in (failing, passing)
        )
        if any(map(math.isnan, wrong)):
            continue
        low, high = min(wrong), max(wrong)
        if not any(low <= x <= high for x in right):
            yield feature


def _confirmed(
    feature: Feature, failing: Sequence[Case], passing: Sequence[Case], operation: Operation, judge: Judge
) -> str:
    """The interval in words, after fresh cases on either side of each of its ends; empty where these refute it."""
    bounds: list[Interval | None] = []
    known = [(max(feature.value(case, operation), feature.least), case) for case in passing]
    cases = [(max(feature.value(case, operation), feature.least), case) for case in failing]
    for sign in (1.0, -1.0):  # the lower end, the upper one
        end, inside = min(cases, key=lambda one: (sign * one[0], one[1].oddity))
        beyond = [one for one in known if sign * one[0] < sign * end]
        if not beyond:
            bounds.append(None)
            continue
        last = max(sign * one[0] for one in beyond)
        outside = min((one for one in beyond if sign * one[0] == last), key=lambda one: one[1].oddity)
        if judge(_again(inside.recipe)) is not False or judge(_again(outside[1].recipe)) is not True:
            return ""
        bounds.append(_bisected(feature, outside[0], end, inside.recipe, judge))
    return _said(feature, bounds[0], bounds[1])


def _again(recipe: Recipe) -> Recipe:
    return replace(recipe, draw=recipe.draw + _FRESH)


def _bisected(feature: Feature, good: float, bad: float, recipe: Recipe, judge: Judge) -> Interval:
    """Values of the feature that pass and that fail, as close as bisection of a failing recipe brings them."""
    if feature.change is None:
        return good, bad
    for _ in range(_BISECTIONS):
        middle = 0.5 * (good + bad)
        middle = float(round(middle)) if feature.whole else middle
        if middle in (good, bad) or abs(good - bad) <= 0.002 * abs(bad):
            break
        changed = _again(feature.change(recipe, middle))
        outcome = judge(changed) if changed.possible and min(changed.sizes[:2]) >= changed.sizes[2] else None
        if outcome is None:
            break
        good, bad = (middle, bad) if outcome else (good, middle)
    return good, bad


def _said(feature: Feature, lower: Interval | None, upper: Interval | None) -> str:
    def number(bound: Interval) -> str:
        if feature.whole:
            return f"{bound[1]:g}"
        close = abs(bound[0] - bound[1]) <= 0.01 * abs(bound[1])
        return f"{bound[1]:.1g}" if close and f"{bound[1]:.1g}" == f"{bound[0]:.1g}" else f"{bound[1 - close]:.3g}"

    if lower and upper and lower[1] == upper[1]:
        return f"{feature.name} = {number(lower)}"
    strict = not feature.whole
    if lower and upper:
        return f"{number(lower)} ≤ {feature.name} ≤ {number(upper)}"
    if lower:
        return f"{feature.name} {'>' if strict else '≥'} {number(lower)}"
    return f"{feature.name} {'<' if strict else '≤'} {number(upper)}" if upper else ""


def usual() -> Iterator[Recipe]:
    """A few recipes with nothing special about them."""
    yield from (Recipe(sizes=sizes, draw=_FRESH) for sizes in ((5, 4, 2), (4, 5, 3), (6, 5, 4)))
