"""A test case: a base point with the vectors that the checks need, and what is known of it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from refgeo.conformance.operations import COVECTORS, VECTORS, Operation, Value, relative_speed
from refgeo.conformance.precision import PRECISIONS
from refgeo.exact import Enclosure, EnclosureError, ExactTangentSpace
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.support.arguments import Array

GIVEN = (*(f"{vector}_{part}" for vector in VECTORS for part in "GH"), "t")
"""The names of a point's arrays beside G and H."""
_SMALL = 20_000
"""(n + m)h² of a block that is enclosed in a moment."""
_MANY = 4
"""So many blocks of a batch are enclosed, on average."""


class ExactBlock:
    """One block of a case for the enclosures: made once, shared by all checks and runs."""

    def __init__(self, case: Case, block: tuple[int, ...]) -> None:
        self._case, self._block = case, block
        G, H = _block_of(case.point, block)
        self._space = ExactTangentSpace(case.space.metric.s, G, H, case.relaxation)
        self._enclosures: dict[str, tuple[Enclosure, ...] | None] = {}

    def enclosures(self, value: Value) -> tuple[Enclosure, ...] | None:
        """The value, computed on first use; None if there is no narrow enclosure."""
        if value.name not in self._enclosures:
            vectors = [_block_of(vector, self._block) for vector in self._case.inputs(value.operation)]
            try:
                self._enclosures[value.name] = value.expected(self._space, vectors, self._case.t)
            except EnclosureError:
                self._enclosures[value.name] = None
        return self._enclosures[value.name]


def _block_of(pair: Pair, block: tuple[int, ...]) -> Pair:
    return Pair.unchecked(pair.G[block], pair.H[block])


@dataclass(frozen=True)
class Case:
    """A base point with the vectors that the checks need, all representable in the dtype under test.

    Attributes
    ----------
    name : str
    metric, dtype : str
    space : PairTangentSpace
        At the base point; used for sizes and condition numbers, never for expected values.
    vectors : dict of Pair
        ``a, b, v`` tangent vectors, ``e`` a covector of no particular loss; ``hessian_e, hessian_w, hessian_v`` the
        Euclidean gradient of an invariant loss, its Euclidean Hessian applied to a horizontal vector, the vector.
    t : float
    seed : int
        Of the run, for whatever else a check draws.
    plain : bool
        Whether its vectors are random and not zero, so that laws can be tested on them.
    recipe : Recipe, optional
        What it was generated from.
    """

    name: str
    metric: str
    dtype: str
    space: PairTangentSpace
    vectors: dict[str, Pair]
    t: float
    seed: int
    plain: bool = True
    recipe: Any = None
    _exact: dict[tuple[int, ...], ExactBlock] = field(default_factory=dict, init=False, repr=False, compare=False)
    _first: dict[Any, Case] = field(default_factory=dict, init=False, repr=False, compare=False)
    _references: dict[str, tuple[Array, ...] | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def point(self) -> Pair:
        """The base point."""
        return self.space.point

    @property
    def relaxation(self) -> float:
        """ε of the geometry that is the truth."""
        return float(self.space.metric.relaxation)

    @cached_property
    def oddity(self) -> int:
        """In how many ways it is unusual: an example with few of them tells most."""
        shape, (n, m, h) = self.point.block_shape, self.point.sizes
        of_shape = (bool(shape), len(shape) > 1, n == m, n == h, m == h, h == 1, max(n, m) > 30)
        return sum(of_shape) + (not self.plain if self.recipe is None else len(self.recipe.unusual))

    @property
    def is_usual(self) -> bool:
        """Whether it differs from others in its shape and vectors alone."""
        return self.recipe is None or not {"conditions", "point", "scale", "t"} & set(self.recipe.unusual)

    def inputs(self, operation: Operation) -> list[Pair]:
        """What an operation gets after the point."""
        return [self.vectors[name] for name in operation.sources]

    def size(self, value: Value) -> Array:
        """The natural size of a value, per block."""
        with np.errstate(all="ignore"):
            return np.asarray(value.size(self.space, self.inputs(value.operation), self.t))

    def arrays(self) -> dict[str, Array | float]:
        """The point, the vectors and the time by name, as `given_case` takes them."""
        parts = {f"{name}_{part}": x for name, pair in self.vectors.items() for part, x in zip("GH", pair, strict=True)}
        return {"G": self.point.G, "H": self.point.H, **parts, "t": self.t}

    def exact_block(self, block: tuple[int, ...]) -> ExactBlock:
        """One block, for enclosures."""
        key = tuple(map(int, block))
        if key not in self._exact:
            self._exact[key] = ExactBlock(self, key)
        return self._exact[key]

    def reference(self, value: Value) -> tuple[Array, ...] | None:
        """The value by the factorised route, in double precision; None where that is not to the last digits."""
        if value.order == "exact" and not self._is_closed:
            return None
        if value.name not in self._references:
            with np.errstate(all="ignore"):
                try:
                    function = getattr(self.space, value.operation.name)
                    found = function(*self.inputs(value.operation), *value.extra(self.t))
                    self._references[value.name] = tuple(found) if isinstance(found, Pair) else (np.asarray(found),)
                except (ValueError, ArithmeticError):
                    self._references[value.name] = None
        return self._references[value.name]

    @cached_property
    def sampled(self) -> Array:
        """Which blocks are enclosed in any case: every small one, some of many, the fewer the larger they are."""
        n, m, h = self.point.sizes
        shape = self.point.block_shape
        share = min(1.0, _SMALL / ((n + m) * h * h)) * min(1.0, _MANY / max(int(np.prod(shape)), 1))
        chance = np.random.default_rng([self.seed, zlib.crc32(self.name.encode())]).random(shape)
        return np.asarray(chance < share)

    @property
    def _is_closed(self) -> bool:
        """Whether exact geodesics have a closed form for any velocity."""
        return self.relaxation == 0.0 and (self.metric == "inv" or self.point.sizes[2] == 1)

    @cached_property
    def condition(self) -> Array:
        """κ, the larger condition number of the factors, per block; between inv and mix that of G Hᵀ.

        A metric between them depends on powers of the singular values of G Hᵀ.
        """
        gauge = self.space.gauge
        is_end = self.space.metric.s in (0.0, 1.0)
        return np.asarray(gauge.condition if is_end else gauge.condition_of_product)

    def in_range(self, factors: float) -> bool:
        """Whether products of so many factors, with vectors and a time, stay within the range of the dtype."""
        return bool(factors * self._log_sizes[0] + self._log_sizes[1] <= np.log(PRECISIONS[self.dtype].largest))

    @cached_property
    def _log_sizes(self) -> tuple[float, float]:
        """|log| of the largest entries of the factors; and what vectors, beside them, and the time add to that."""

        def largest(pair: Pair) -> list[Array]:
            return [np.abs(factor).max(axis=(-2, -1)) for factor in pair]

        sizes = largest(self.point)
        of_point = max(float(np.max(np.abs(np.log(size)), initial=0.0)) for size in sizes)
        of_vectors = 0.0
        for name, vector in self.vectors.items():
            for part, size in zip(largest(vector), sizes, strict=True):
                with np.errstate(divide="ignore", over="ignore", under="ignore"):
                    ratios = np.log(part) + (np.log(size) if name in COVECTORS else -np.log(size))
                of_vectors = max(of_vectors, float(np.max(np.abs(ratios[np.isfinite(ratios)]), initial=0.0)))
        return of_point, 4.0 * max(0.0, of_vectors - 12.0) + 4.0 * float(np.log(max(abs(self.t), 1.0)))

    @cached_property
    def entries(self) -> int:
        """How many numbers the point has."""
        return int(self.point.G.size + self.point.H.size)

    def blocks(self, count: int, rows: int | None = None) -> Case:
        """The first `count` blocks of a larger batch, and of these the first rows, as a case of its own."""
        if math.prod(self.point.block_shape) <= count and (rows is None or rows >= max(self.point.sizes[:2])):
            return self
        if (count, rows) not in self._first:
            self._first[count, rows] = self._changed(lambda x: x.reshape(-1, *x.shape[-2:])[:count, :rows])
        return self._first[count, rows]

    def repeated(self, count: int) -> Case:
        """A batch of so many blocks: those of the case, again and again."""

        def again(x: Array) -> Array:
            blocks = x.reshape(-1, *x.shape[-2:])
            return blocks[np.arange(count) % len(blocks)]

        return self._changed(again)

    def of_one_block(self) -> Case:
        """A case whose blocks are all the first one."""
        first = (0,) * len(self.point.block_shape)
        return self._changed(lambda x: np.broadcast_to(x[first], x.shape))

    def _changed(self, change: Callable[[Array], Array]) -> Case:
        """The same change to all factors, of the point and of the vectors."""

        def changed(pair: Pair) -> Pair:
            return Pair(*map(change, pair))

        space = self.space.metric.at(changed(self.point))
        return replace(self, space=space, vectors={name: changed(v) for name, v in self.vectors.items()})

    @cached_property
    def spread(self) -> Array:
        """How many times as long as the other one of a and b is, per block; 1 where one of them is zero."""
        a, b = (self.space.norm(self.vectors[name]) for name in "ab")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where((a > 0.0) & (b > 0.0), np.maximum(a, b) / np.minimum(a, b), 1.0))

    def can_flow(self, t: float) -> bool:
        """Whether an exact geodesic is enclosed in a moment: a closed form, or a short integration of few numbers."""
        h, blocks = self.point.sizes[2], int(np.prod(self.point.block_shape))
        speed = np.max(np.abs(t) * relative_speed(self.space, self.vectors["v"]), initial=0.0)
        if self._is_closed:
            return bool(speed <= 8.0)
        if self.space.metric.s not in (0.0, 1.0) or max(self.point.sizes) > 20:
            return False
        if h <= 2:
            few = blocks <= (1 if not self.is_usual else 4 if self.plain else 2)
            return bool(few and speed <= 1.0 and speed * np.max(self.condition, initial=1.0) <= 3.0)
        easy = blocks == 1 and speed <= 0.5 and np.max(self.condition) <= 4.0
        return bool(self.plain and easy and (h == 3 or (h <= 5 and self.is_usual)))  # half a second; two for h = 5
