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

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.checks import BEYOND_DOUBT, DOUBTFUL
from refgeo.conformance.drawing import rng_of
from refgeo.conformance.host import BackendFailure, Request
from refgeo.conformance.points import Points
from refgeo.conformance.precision import PRECISIONS, representable
from refgeo.conformance.rows import EVERY, Row, Verdict, absent
from refgeo.conformance.steps import drawn_factor
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

MERGE = "merge"
MERGE_LAWS = {
    "merge.idempotent": "if both adapters are the same, the merge has the product of this adapter",
    "merge.representation": "if the factors of an adapter are replaced by others with the same product, the merge "
    "has the same product",
    "merge.symmetric": "the order of the adapters does not change the product of the merge",
    "merge.weight_one": "if one adapter has weight 1 and the others have weight 0, the merge has the product of "
    "this adapter",
}
MERGE_VALUES = {
    "merge.products": "for n = m = h, the product of the merge is Σ wᵢ Xᵢ, the mean in the metric mix",
    "merge.geometric": "for h = 1 and adapters of the same direction, the length of the product is Π |xᵢ|^wᵢ, the "
    "mean in the metric inv",
}
_ROUNDINGS = 16.0
"""Of Gram matrices whose factors have condition numbers of 2, inverted: κ⁴."""
_SHAPES = ((6, 5, 2), (5, 7, 3), (4, 4, 1))
Adapters = Sequence[Pair]
"""What is merged."""


class _Merge:
    """Somebody's merge in one precision."""

    def __init__(self, backend: Backend, points: Points) -> None:
        self._backend, self._seed, self.dtype = backend, points.seed, points.dtype
        self.precision = PRECISIONS[points.dtype]

    def adapters(self, sizes: tuple[int, int, int], count: int = 2) -> list[Pair]:
        """Random ones, with condition numbers of 2."""
        rng, (n, m, h) = rng_of(self._seed, f"merge {sizes}"), sizes
        made = (Pair(drawn_factor(rng, n, h), drawn_factor(rng, m, h)) for _ in range(count))
        return [representable(one, self.dtype) for one in made]

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


Compared = tuple[Array, Array, Adapters]
"""A product, what it should be, and the adapters that were merged."""


def _idempotent(merge: _Merge) -> Iterator[Compared]:
    for sizes in _SHAPES:
        one = merge.adapters(sizes, 1)[0]
        yield merge.product([one, one], [0.5, 0.5]), one.product, [one]


def _representation(merge: _Merge) -> Iterator[Compared]:
    for sizes in _SHAPES:
        adapters, weights = merge.adapters(sizes), [0.25, 0.75]
        A = drawn_factor(rng_of(0, f"merge element {sizes}"), sizes[2], sizes[2])
        moved = representable(adapters[0].transform(A), merge.dtype)
        yield merge.product(adapters, weights), merge.product([moved, adapters[1]], weights), adapters


def _symmetric(merge: _Merge) -> Iterator[Compared]:
    for sizes in _SHAPES:
        adapters, weights = merge.adapters(sizes, 3), [0.125, 0.375, 0.5]
        yield merge.product(adapters, weights), merge.product(adapters[::-1], weights[::-1]), adapters


def _weight_one(merge: _Merge) -> Iterator[Compared]:
    for sizes in _SHAPES:
        adapters = merge.adapters(sizes)
        yield merge.product(adapters, [1.0, 0.0]), adapters[0].product, adapters


def _products(merge: _Merge) -> Iterator[Compared]:
    first, second = merge.adapters((3, 3, 3))
    second = representable(first + 0.1 * second, merge.dtype)  # near it: no product on the way is singular
    mean = 0.25 * first.product + 0.75 * second.product
    yield merge.product([first, second], [0.25, 0.75]), mean, [first, second]


def _geometric(merge: _Merge) -> Iterator[Compared]:
    one = merge.adapters((5, 4, 1), 1)[0]
    adapters = [one, representable(Pair(4.0 * one.G, 0.5 * one.H), merge.dtype)]
    yield merge.product(adapters, [0.25, 0.75]), 2.0**0.75 * one.product, adapters


_LAWS: dict[str, Callable[[_Merge], Iterator[Compared]]] = {
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
        return [absent(MERGE, "law", "a merge of adapters")]
    merge = _Merge(backend, points)
    return [_row(merge, name) for name in names]


def _row(merge: _Merge, name: str) -> Row:
    row = Row(
        name, "law", MERGE, EVERY, {**MERGE_LAWS, **MERGE_VALUES}[name], Verdict.PASS, threshold=DOUBTFUL, about=MERGE
    )
    try:
        worst, case = max(((merge.off(*one), one) for one in _LAWS[name](merge)), key=lambda found: found[0])
    except NotImplementedError as error:
        return replace(row, verdict=Verdict.NOT_PROVIDED, message=str(error))
    except BackendFailure as failure:
        return replace(row, verdict=Verdict.WRONG, message=str(failure))
    row = replace(row, points=len(_SHAPES), decisive_points=len(_SHAPES), worst_ratio=worst)
    if worst <= DOUBTFUL:
        return row
    product, expected, adapters = case
    size = worst * merge.precision.roundoff * _ROUNDINGS * max(product.shape) ** 0.5
    said = f"the error of the product of the merge is about {size:.2g} times the size of the merged products"
    if len(adapters) == 1:
        along = float(np.sum(product * expected) / np.sum(expected**2))
        said += f"; the part along the adapter is {along:.3g} times as long as the adapter"
    return replace(row, verdict=Verdict.WRONG if worst > BEYOND_DOUBT else Verdict.INACCURATE, message=said)
