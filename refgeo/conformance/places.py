"""Where a backend is wrong: the one interval of one feature of a call that separates failing cases from passing ones.

Nothing is said unless fresh cases on either side confirm it, and bisection between them says where the interval begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.operations import Operation
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.recipes import Recipe, build
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_space import PairTangentSpace

_FRESH = 50
"""Draws of fresh cases begin here."""
_BISECTIONS = 12
_PLAINEST = 2
"""Of so many failing cases what is nearby is tried."""
_CHANCE = 1e-3
"""A feature that cannot be changed alone is believed where cases are so unlikely to be separated by accident."""
_NOTHING = 1e-14
"""What is smaller is as good as zero."""

Judge = Callable[[Recipe], bool | None]
"""Whether a fresh case passes; None where it decides nothing."""
Interval = tuple[float, float]
"""Values of a feature at which cases pass and fail."""


@np.errstate(all="ignore")
def features(case: Case, operation: Operation) -> dict[str, float]:
    """The numbers that a call has, in the order in which they are asked whether they separate.

    Examples
    --------
    >>> from refgeo.conformance.recipes import build
    >>> from refgeo.conformance.operations import OPERATIONS
    >>> features(build(Recipe(batch=(2,)), "inv", "float64", 0), OPERATIONS["christoffel"])["the number of blocks"]
    2.0
    """
    (n, m, h), (G, H), blocks, space = case.point.sizes, case.point, case.point.block_shape, case.space
    S, T = (factor.mT @ factor for factor in (G, H))
    singular = [np.linalg.svd(factor, compute_uv=False) for factor in (G, H)]
    vectors: list[Any] = case.inputs(operation)
    first = vectors[-1 if operation.name == "riemannian_hessian" else 0]
    size, length = np.linalg.norm, space.norm(first)
    found: dict[str, Any] = {
        "h": h, "n": n, "m": m, "the number of blocks": math.prod(blocks),
        "the number of leading dimensions": len(blocks), "max(n, m)": max(n, m), "n − m": n - m, "|n − m|": abs(n - m),
        "n − h": n - h, "m − h": m - h, "the exponent of 2 in h": (h & -h).bit_length() - 1,
        "the exponent of 2 in n": (n & -n).bit_length() - 1,
    }  # fmt: skip
    if operation.extra:
        found |= {"t": case.t, "|t|": abs(case.t)}
    found |= {
        "κ": np.max(case.condition),
        "the spread of κ between blocks": max(_spread(s[..., 0] / s[..., -1]) for s in singular),
        "the size of G": size(G),
        "the size of H": size(H),
        "the spread of sizes between blocks": max(_spread(size(factor, axis=(-2, -1))) for factor in (G, H)),
        "the length of the first vector relative to the point": _size(first) / _size(case.point),
        "the size of a vector's G part relative to its H part": _ratio(size(first.G), size(first.H)),
        "the share of zeros in a vector": np.mean([np.mean(x == 0.0) for x in first]),
        "|S − T| / |S|": size(S - T) / size(S),
        "the off-diagonal part of S": size(S - np.eye(h) * S) / size(S),
        "the smallest relative gap of singular values": min(
            np.min(-np.diff(s), initial=s.max()) / s.max() for s in singular
        ),
        "the number of zero rows": sum(np.sum(~np.any(x, axis=-1)) for x in (G, H)),
        "the unit roundoff": PRECISIONS[case.dtype].roundoff,
    }
    if operation.inputs[0].type == "vector" and np.all(length > 0.0):
        found["the vertical share of the vector"] = np.max(space.norm(space.vertical_projection(first)) / length)
    if len(vectors) == 2 and all(map(_size, vectors)):
        found |= _of_two_vectors(space, *vectors)
    return {name: 0.0 if abs(x) < _NOTHING else float(x) for name, x in found.items() if not np.isnan(x)}


def _of_two_vectors(space: PairTangentSpace, a: Pair, b: Pair) -> dict[str, Any]:
    cosines = space.inner_product(a, b) / (space.norm(a) * space.norm(b))
    return {
        "the cosine of the vectors' angle": np.max(np.abs(cosines)),
        "the length of the first vector relative to the second": _size(a) / _size(b),
        "the distance of the vectors relative to their length": _size(a - b) / _size(a),
    }


def _size(pair: Any) -> float:
    return math.hypot(*(float(np.linalg.norm(factor)) for factor in pair))


def _ratio(x: Any, y: Any) -> float:
    return float(x / y) if y else math.inf if x else 1.0


def _spread(values: Any) -> float:
    return _ratio(np.max(values), np.min(values))


CHANGES: dict[str, Callable[[Recipe, float], Recipe]] = {
    "h": lambda recipe, x: _with_columns(recipe, int(x)),
    "n": lambda recipe, x: replace(recipe, sizes=(int(x), *recipe.sizes[1:])),
    "m": lambda recipe, x: replace(recipe, sizes=(recipe.sizes[0], int(x), recipe.sizes[2])),
    "the number of blocks": lambda recipe, x: replace(recipe, batch=(int(x),)),
    "the number of leading dimensions": lambda recipe, x: replace(recipe, batch=(2, 3, 2, 1, 2)[: int(x)]),
    "t": lambda recipe, x: replace(recipe, t=x),
    "|t|": lambda recipe, x: replace(recipe, t=x),
    "κ": lambda recipe, x: replace(recipe, conditions=(x, x)),
}
"""Another recipe, with a feature at some value."""


def _with_columns(recipe: Recipe, h: int) -> Recipe:
    """With as many more rows than columns as before."""
    n, m, before = recipe.sizes
    return replace(recipe, sizes=(h + n - before, h + m - before, h))


def where(operation: Operation, failing: Sequence[Case], passing: Sequence[Case], judge: Judge) -> str:
    """In words, such as "h ≥ 5"; empty if no interval of one feature separates the cases, or fresh ones refute it."""
    if len(passing) < 3 or not failing:
        return ""
    with np.errstate(all="ignore"):
        more = _nearby(operation, failing, judge)
        wrong, right = (
            [(features(one, operation), one) for one in (*cases, *more[passes])]
            for cases, passes in ((failing, False), (passing, True))
        )
        # of all orders of the cases along a feature that means nothing, the share in which no passing one is in between
        chance = (len(right) + 1) / math.comb(len(right) + len(wrong), len(wrong))
        for name in wrong[0][0]:
            if all(name in numbers for numbers, _ in wrong) and (name in CHANGES or chance < _CHANCE):
                known = [(numbers[name], case) for numbers, case in right if name in numbers]
                said = _interval(name, [(numbers[name], case) for numbers, case in wrong], known, judge)
                if said:
                    return said
    return ""


def _nearby(operation: Operation, failing: Sequence[Case], judge: Judge) -> dict[bool, list[Case]]:
    """Fresh cases by their outcome, between the plainest failing ones and nothing special: with one of their oddities
    less, with one oddity alone, with one feature alone. What separates these, too, is less likely to do so by accident.
    """
    found: dict[bool, list[Case]] = {False: [], True: []}
    for case in sorted(failing, key=lambda one: one.oddity)[:_PLAINEST]:
        odd, numbers = {name: getattr(case.recipe, name) for name in case.recipe.unusual}, features(case, operation)
        without = [replace(case.recipe, **{name: getattr(Recipe(), name)}) for name in odd]
        with_one = [replace(plain, **{name: x}) for plain in usual() for name, x in odd.items()]
        alone = [change(Recipe(), numbers[name]) for name, change in CHANGES.items() if name in numbers]
        for recipe in map(_again, filter(lambda one: one.possible, dict.fromkeys([*without, *with_one, *alone]))):
            passes = judge(recipe)
            if passes is not None:
                found[passes].append(build(recipe, case.metric, case.dtype, case.seed, case.relaxation))
    return found


Valued = list[tuple[float, Case]]


def _interval(name: str, wrong: Valued, right: Valued, judge: Judge) -> str:
    """The interval that holds all failing cases and no passing one, after fresh cases on either side of its ends."""
    ends = [end(x for x, _ in wrong) for end in (min, max)]
    if any(ends[0] <= x <= ends[1] for x, _ in right):
        return ""
    whole = all(x.is_integer() for x, _ in (*wrong, *right)) and name not in ("t", "|t|", "κ")
    bounds: list[Interval | None] = []
    for sign, end in zip((1.0, -1.0), ends, strict=True):
        beyond = [one for one in right if sign * one[0] < sign * end]
        if not beyond:
            bounds.append(None)
            continue
        last = max(sign * x for x, _ in beyond)
        inside, outside = (
            min((case for x, case in cases if sign * x == place), key=lambda case: case.oddity)
            for cases, place in ((wrong, sign * end), (beyond, last))
        )
        if judge(_again(inside.recipe)) is not False or judge(_again(outside.recipe)) is not True:
            return ""
        bounds.append(_bisected(name, sign * last, end, inside.recipe, whole, judge))
    if name in CHANGES and not whole and not _is_filled(name, ends, wrong[0][1].recipe, judge):
        return ""
    return _said(name, whole, bounds[0], bounds[1])


def _is_filled(name: str, ends: Sequence[float], recipe: Recipe, judge: Judge) -> bool:
    """Whether a number inside with few digits fails, too: times that are no dyadic numbers are no interval."""
    middle = 0.5 * sum(ends)
    if not middle:
        return True
    plain = math.copysign(2.0 ** round(math.log2(abs(middle))), middle)
    return judge(_again(CHANGES[name](recipe, plain))) is not True


def _again(recipe: Recipe) -> Recipe:
    return replace(recipe, draw=recipe.draw + _FRESH)


def _bisected(name: str, good: float, bad: float, recipe: Recipe, whole: bool, judge: Judge) -> Interval:
    """Values of the feature that pass and that fail, as close as bisection of a failing recipe brings them."""
    for _ in range(_BISECTIONS if name in CHANGES else 0):
        middle = 0.5 * (good + bad)
        middle = float(round(middle)) if whole else middle
        if middle in (good, bad) or abs(good - bad) <= 0.002 * abs(bad):
            break
        changed = _again(CHANGES[name](recipe, middle))
        outcome = judge(changed) if changed.possible else None
        if outcome is None:
            break
        good, bad = (middle, bad) if outcome else (good, middle)
    return good, bad


def _said(name: str, whole: bool, lower: Interval | None, upper: Interval | None) -> str:
    if whole and lower and upper and lower[1] == upper[1]:
        return f"{name} = {lower[1]:g}"

    def number(bound: Interval) -> str:
        good, bad = bound
        short = f"{bad:.1g}"  # what somebody has written, where both ends of what is left are that
        return f"{bad:g}" if whole else short if short == f"{good:.1g}" else f"{good:.3g}"

    below, above = ("≤", "≥") if whole else ("<", ">")
    if lower and upper and number(lower) == number(upper):
        return ""
    if lower and upper:
        return f"{number(lower)} {below} {name} {below} {number(upper)}"
    if lower:
        return f"{name} {above} {number(lower)}"
    return f"{name} {below} {number(upper)}" if upper else ""


def usual() -> Iterator[Recipe]:
    """A few recipes with nothing special about them."""
    yield from (Recipe(sizes=sizes, draw=_FRESH) for sizes in ((5, 4, 2), (4, 5, 3), (6, 5, 4)))
