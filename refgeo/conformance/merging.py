r"""Merges of low-rank adapters on trial: ``merge(factors, weights) -> (G, H)``.

A merge is a mean of points on the quotient, so it obeys laws without anybody's knowing the right result:

* *idempotent*: the same adapter, merged with itself, is itself;
* *independent of the representation*: other factors (G A⁻¹, H Aᵀ) of one adapter give the same product;
* *symmetric*: the order of the adapters with their weights does not matter;
* *a source of weight 1*, with weight 0 for the others, is returned.

Where the mean of a metric has a closed form, a merge can be asked for it by name:

* ``merge.products``: :math:`\sum_i w_i X_i`, of rank h where n = m = h: the mean of mix there, and that of flat space;
* ``merge.geometric``: with one direction for all factors and h = 1, the mean of inv is :math:`\prod_i |x_i|^{w_i}`.

Products are compared, in units of rounding like those of values. All weights are exact in any precision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.checks import BEYOND_DOUBT, DOUBTFUL
from refgeo.conformance.drawing import rng_of
from refgeo.conformance.host import BackendFailure, Request
from refgeo.conformance.points import Points
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.rows import ABSENT, EVERY, Row, Verdict
from refgeo.conformance.steps import drawn_factor
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

MERGE = "merge"
MERGE_LAWS = {
    "merge.idempotent": "an adapter that is merged with itself is itself",
    "merge.representation": "other factors of the same adapters give the same product",
    "merge.symmetric": "the order of the adapters does not matter",
    "merge.weight_one": "an adapter of weight 1, beside others of weight 0, is returned",
}
MERGE_VALUES = {
    "merge.products": "for n = m = h the product is Σ wᵢ Xᵢ, the mean of mix",
    "merge.geometric": "for h = 1 and common directions the product is Π |xᵢ|^wᵢ, the mean of inv",
}
_ROUNDINGS = 16.0
"""Of Gram matrices whose factors have condition numbers of 2, inverted: κ⁴."""
_SHAPES = ((6, 5, 2), (5, 7, 3), (4, 4, 1))
Adapters = Sequence[Pair]
"""What is merged."""


class _Merge:
    """Somebody's merge in one precision."""

    def __init__(self, backend: Backend, points: Points) -> None:
        self._backend, self._points = backend, points
        self.precision = PRECISIONS[points.dtype]

    def adapters(self, sizes: tuple[int, int, int], count: int = 2) -> list[Pair]:
        """Random ones, with condition numbers of 2."""
        rng, (n, m, h) = rng_of(self._points.seed, f"merge {sizes}"), sizes
        made = (Pair(drawn_factor(rng, n, h), drawn_factor(rng, m, h)) for _ in range(count))
        return [self.rounded(one) for one in made]

    def rounded(self, pair: Pair) -> Pair:
        """What the merge really gets."""
        return Pair(*map(self.precision.rounded, pair))

    def product(self, adapters: Adapters, weights: Sequence[float]) -> Array:
        """G Hᵀ of the merged adapter, of the rank of the first one."""
        arrays = [factor.astype(self.precision.carrier) for pair in adapters for factor in pair]
        shapes = [adapters[0].G.shape, adapters[0].H.shape]
        G, H = self._backend.call(Request("merge", MERGE, "", arrays, extra=(tuple(weights),), shapes=shapes))[0]
        return np.asarray(G @ H.mT)

    def off(self, found: Array, expected: Array, adapters: Adapters) -> float:
        """The difference in units of rounding, beside the products that are merged."""
        size = max(float(np.linalg.norm(pair.product)) for pair in adapters)
        with np.errstate(all="ignore"):
            error = float(np.linalg.norm(found - expected)) / size
        error = error if np.isfinite(error) else np.inf
        return float(error / (self.precision.roundoff * _ROUNDINGS * max(found.shape) ** 0.5))


def _idempotent(merge: _Merge) -> tuple[float, float]:
    found = []
    for sizes in _SHAPES:
        one = merge.adapters(sizes, 1)[0]
        X = merge.product([one, one], [0.5, 0.5])
        along = float(np.sum(X * one.product) / np.sum(one.product**2))
        found.append((merge.off(X, one.product, [one]), along))
    return max(found)


def _representation(merge: _Merge) -> tuple[float, float]:
    found = []
    for sizes in _SHAPES:
        adapters = merge.adapters(sizes)
        A = drawn_factor(rng_of(0, f"merge element {sizes}"), sizes[2], sizes[2])
        moved = merge.rounded(adapters[0].transform(A))
        first, second = (merge.product([one, adapters[1]], [0.25, 0.75]) for one in (adapters[0], moved))
        found.append(merge.off(first, second, adapters))
    return max(found), np.nan


def _symmetric(merge: _Merge) -> tuple[float, float]:
    found = []
    for sizes in _SHAPES:
        adapters = merge.adapters(sizes, 3)
        first, second = merge.product(adapters, [0.125, 0.375, 0.5]), merge.product(adapters[::-1], [0.5, 0.375, 0.125])
        found.append(merge.off(first, second, adapters))
    return max(found), np.nan


def _weight_one(merge: _Merge) -> tuple[float, float]:
    found = []
    for sizes in _SHAPES:
        adapters = merge.adapters(sizes)
        found.append(merge.off(merge.product(adapters, [1.0, 0.0]), adapters[0].product, adapters))
    return max(found), np.nan


def _products(merge: _Merge) -> tuple[float, float]:
    first, second = merge.adapters((3, 3, 3))
    second = merge.rounded(first + 0.1 * second)  # near it, so that no product on the way is singular
    found = merge.product([first, second], [0.25, 0.75])
    return merge.off(found, 0.25 * first.product + 0.75 * second.product, [first, second]), np.nan


def _geometric(merge: _Merge) -> tuple[float, float]:
    one = merge.adapters((5, 4, 1), 1)[0]
    adapters = [one, merge.rounded(Pair(4.0 * one.G, 0.5 * one.H))]
    found = merge.product(adapters, [0.25, 0.75])
    return merge.off(found, 2.0**0.75 * one.product, adapters), np.nan


_LAWS: dict[str, Callable[[_Merge], tuple[float, float]]] = {
    "merge.idempotent": _idempotent,
    "merge.representation": _representation,
    "merge.symmetric": _symmetric,
    "merge.weight_one": _weight_one,
    "merge.products": _products,
    "merge.geometric": _geometric,
}


def judge_merge(backend: Backend, names: Collection[str], points: Points) -> list[Row]:
    """A row for each of these names."""
    if not backend.provides(MERGE):
        missing = Row(MERGE, "law", MERGE, EVERY, "a merge of adapters", Verdict.NOT_PROVIDED)
        return [replace(missing, message=f"{ABSENT} {MERGE}")]
    merge = _Merge(backend, points)
    return [_row(merge, name) for name in names]


def _row(merge: _Merge, name: str) -> Row:
    row = Row(
        name, "law", MERGE, EVERY, {**MERGE_LAWS, **MERGE_VALUES}[name], Verdict.PASS, threshold=DOUBTFUL, about=MERGE
    )
    try:
        worst, times = _LAWS[name](merge)
    except NotImplementedError as error:
        return replace(row, verdict=Verdict.NOT_PROVIDED, message=str(error))
    except BackendFailure as failure:
        return replace(row, verdict=Verdict.WRONG, message=str(failure))
    row = replace(row, points=len(_SHAPES), decisive_points=len(_SHAPES), worst_ratio=worst)
    if worst <= DOUBTFUL:
        return row
    size = worst * merge.precision.roundoff * _ROUNDINGS
    said = f"off by about {size:.2g} times the products that are merged"
    if np.isfinite(times):
        said += f"; along the adapter itself the result is {times:.3g} times as long"
    return replace(row, verdict=Verdict.WRONG if worst > BEYOND_DOUBT else Verdict.INACCURATE, message=said)
