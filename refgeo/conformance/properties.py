"""What can be said of a call: the dimensions that test points cover.

They tell a diagnosis where something is wrong, and make the planted mistakes that the kit is tested on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from refgeo.arguments import Array
from refgeo.conformance.case import Case
from refgeo.metrics.pair import pair_metric
from refgeo.operations import Operation
from refgeo.pair import Pair


@dataclass(frozen=True)
class Situation:
    """The inputs of one call."""

    metric: str
    G: Array
    H: Array
    vectors: tuple[Pair, ...]
    t: float | None = None

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading dimensions."""
        return self.G.shape[:-2]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """n, m and h."""
        return self.G.shape[-2], self.H.shape[-2], self.G.shape[-1]

    @cached_property
    def singular_values(self) -> tuple[Array, Array]:
        """Of both factors."""
        return np.linalg.svd(self.G, compute_uv=False), np.linalg.svd(self.H, compute_uv=False)

    @cached_property
    def kappa(self) -> float:
        """The largest condition number."""
        return float(max(np.max(s[..., 0] / s[..., -1]) for s in self.singular_values))

    @cached_property
    def spread_of_kappa(self) -> float:
        """The largest condition number of a factor beside the smallest of that factor in another block."""
        kappas = [values[..., 0] / values[..., -1] for values in self.singular_values]
        return float(max(np.max(kappa) / np.min(kappa) for kappa in kappas))

    def zero(self, i: int) -> bool:
        """Whether a vector is zero."""
        return len(self.vectors) > i and not any(np.any(x) for x in self.vectors[i])

    def parts(self) -> list[list[float]]:
        """The norms of the parts of the vectors, beside those of the factors."""
        return [
            [float(np.linalg.norm(x) / np.linalg.norm(F)) for x, F in zip(v, (self.G, self.H), strict=True)]
            for v in self.vectors
        ]

    def lengths(self) -> list[float]:
        """The norms of the vectors beside the point's."""
        size = np.hypot(np.linalg.norm(self.G), np.linalg.norm(self.H))
        return [float(np.hypot(np.linalg.norm(v.G), np.linalg.norm(v.H)) / size) for v in self.vectors]


def _blocks(s: Situation) -> int:
    return int(np.prod(s.batch))


def _largest(factor: Array) -> Array:
    return np.asarray(np.abs(factor).max(axis=(-2, -1)))


def _repeated(s: Situation) -> bool:
    def close(values: Array) -> bool:
        return values.shape[-1] > 1 and bool(np.any(values[..., :-1] - values[..., 1:] <= 1e-6 * values[..., :1]))

    return close(s.singular_values[0]) and close(s.singular_values[1])


def _vectors_equal(s: Situation) -> bool:
    if len(s.vectors) < 2 or s.zero(0) or s.zero(1):
        return False
    return all(np.array_equal(x, y) for x, y in zip(s.vectors[0], s.vectors[1], strict=True))


def _zero_in_one_block(s: Situation) -> bool:
    lengths = [np.hypot(*(np.linalg.norm(x, axis=(-2, -1)) for x in v)) for v in s.vectors]
    return bool(s.batch) and any(np.any(x == 0.0) and np.any(x > 0.0) for x in lengths)


def _is_vertical(s: Situation) -> bool:
    """Whether the first vector leaves the product G Hᵀ as it is."""
    if not s.vectors or s.zero(0):
        return False
    v = s.vectors[0]
    change, terms = v.G @ s.H.mT + s.G @ v.H.mT, np.linalg.norm(v.G) * np.linalg.norm(s.H)
    return bool(np.linalg.norm(change) <= 1e-5 * terms)


def _cosine(s: Situation) -> float:
    """Of the angle between the two vectors, in the metric; of the block where it is largest."""
    if len(s.vectors) < 2 or s.zero(0) or s.zero(1):
        return 1.0
    space = pair_metric(s.metric).at(Pair(s.G, s.H))
    a, b = s.vectors[:2]
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.abs(space.inner_product(a, b)) / (space.norm(a) * space.norm(b))
    return float(np.max(np.nan_to_num(cosines, nan=0.0)))


def _gram(factor: Array) -> Array:
    return factor.mT @ factor


def _distance_from_horizontal(s: Situation) -> float:
    """Of the first vector: its vertical part beside its length, in the metric; of the block where that is largest."""
    if not s.vectors or s.zero(0) or s.sizes[2] > 8:
        return 1.0
    space, v = pair_metric(s.metric).at(Pair(s.G, s.H)), s.vectors[0]
    length = space.norm(v)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(length > 0.0, space.norm(space.vertical_projection(v)) / length, 0.0)))


def _nearly_equal(s: Situation, within: float = 1e-5) -> bool:
    if len(s.vectors) < 2 or s.zero(0) or s.zero(1) or _vectors_equal(s):
        return False
    return all(np.linalg.norm(x - y) <= within * np.linalg.norm(x) for x, y in zip(*s.vectors[:2], strict=True))


def _are_opposite(s: Situation) -> bool:
    if len(s.vectors) < 2 or s.zero(0):
        return False
    return all(np.array_equal(x, -y) for x, y in zip(*s.vectors[:2], strict=True))


def _radial(s: Situation) -> bool:
    if len(s.vectors) < 2 or s.zero(0):
        return False
    (v, *_), factor = s.vectors, np.vdot(s.G, s.vectors[0].G) / np.vdot(s.G, s.G)
    return bool(factor != 0.0) and all(
        np.allclose(x, factor * y, rtol=1e-5) for x, y in zip(v, (s.G, s.H), strict=True)
    )


def _structured(s: Situation) -> bool:
    if s.sizes[0] != s.sizes[2] or s.sizes[2] == 1 or np.count_nonzero(s.G) <= s.sizes[2] * _blocks(s):
        return False
    return bool(np.array_equal(s.G, s.G.mT) or np.array_equal(s.G, np.triu(s.G)))


def _uneven_rows(s: Situation) -> bool:
    rows = [np.linalg.norm(part, axis=-1) for v in s.vectors for part in v]
    return any(0.0 < np.min(sizes) < 1e-6 * np.max(sizes) for sizes in rows)


def _row_of_zeros(pairs: Iterable[Iterable[Array]]) -> bool:
    return any(np.any(part) and not np.all(np.any(part, axis=-1)) for pair in pairs for part in pair)


PROPERTIES: dict[str, Callable[[Situation], bool]] = {
    "without leading dimensions": lambda s: not s.batch,
    "with leading dimensions (batches)": lambda s: bool(s.batch),
    "with more than one block": lambda s: _blocks(s) > 1,
    "with one leading dimension": lambda s: len(s.batch) == 1,
    "with two leading dimensions": lambda s: len(s.batch) == 2,
    "with three leading dimensions": lambda s: len(s.batch) == 3,
    "with four leading dimensions": lambda s: len(s.batch) == 4,
    "with five leading dimensions": lambda s: len(s.batch) == 5,
    "with a number of blocks that is a multiple of 12": lambda s: bool(s.batch) and _blocks(s) % 12 == 0,
    "with a number of blocks that is a multiple of 16": lambda s: bool(s.batch) and _blocks(s) % 16 == 0,
    "with a leading dimension of size 1": lambda s: 1 in s.batch,
    "with unequal leading dimensions": lambda s: len(set(s.batch)) > 1,
    "with more than 32 blocks": lambda s: _blocks(s) > 32,
    "with more than 64 blocks": lambda s: _blocks(s) > 64,
    "with more than 256 blocks": lambda s: _blocks(s) > 256,
    "with more than 1,024 blocks": lambda s: _blocks(s) > 1024,
    "with as many blocks as columns": lambda s: bool(s.batch) and s.batch[-1] == s.sizes[2] > 1,
    "with as many blocks as rows of G": lambda s: bool(s.batch) and s.batch[-1] == s.sizes[0] > 1,
    "with as many blocks as rows of H": lambda s: bool(s.batch) and s.batch[-1] == s.sizes[1] > 1,
    "with as many blocks as columns and rows": lambda s: len({*s.batch, *s.sizes}) == 1 < len(s.batch) * s.sizes[0],
    "for n = m = h": lambda s: len(set(s.sizes)) == 1,
    "for n = h < m": lambda s: s.sizes[0] == s.sizes[2] < s.sizes[1],
    "for m = h < n": lambda s: s.sizes[1] == s.sizes[2] < s.sizes[0],
    "for n = m > h": lambda s: s.sizes[0] == s.sizes[1] > s.sizes[2],
    "for n = m": lambda s: s.sizes[0] == s.sizes[1],
    "for n ≠ m": lambda s: s.sizes[0] != s.sizes[1],
    "for n < m": lambda s: s.sizes[0] < s.sizes[1],
    "for n > m": lambda s: s.sizes[0] > s.sizes[1],
    "for h = 1": lambda s: s.sizes[2] == 1,
    "for h = 1 without leading dimensions": lambda s: s.sizes[2] == 1 and not s.batch,
    "for h = 1 with leading dimensions": lambda s: s.sizes[2] == 1 and bool(s.batch),
    "for h > 1": lambda s: s.sizes[2] > 1,
    "for h = 2": lambda s: s.sizes[2] == 2,
    "for h = 5": lambda s: s.sizes[2] == 5,
    "for h ≥ 32 with leading dimensions": lambda s: s.sizes[2] >= 32 and bool(s.batch),
    "for h > 64": lambda s: s.sizes[2] > 64,
    "for more than 32,767 numbers": lambda s: max(s.sizes[:2]) * s.sizes[2] > 32767,
    "for more than 128 rows and h ≥ 8": lambda s: max(s.sizes[:2]) > 128 and s.sizes[2] >= 8,
    "for more than 64 rows with leading dimensions": lambda s: max(s.sizes[:2]) > 64 and bool(s.batch),
    "for n that is a multiple of 32 with leading dimensions": lambda s: s.sizes[0] % 32 == 0 and bool(s.batch),
    "for h ≥ 8": lambda s: s.sizes[2] >= 8,
    "for h > 8 with leading dimensions": lambda s: s.sizes[2] > 8 and bool(s.batch),
    "for more than 32 rows with leading dimensions": lambda s: max(s.sizes[:2]) > 32 and bool(s.batch),
    "for h > 8": lambda s: s.sizes[2] > 8,
    "for h ≥ 16": lambda s: s.sizes[2] >= 16,
    "for h > 16": lambda s: s.sizes[2] > 16,
    "for h ≥ 32": lambda s: s.sizes[2] >= 32,
    "for h ≥ 64": lambda s: s.sizes[2] >= 64,
    "for more than 512 rows": lambda s: max(s.sizes[:2]) > 512,
    "for more than 1,024 rows": lambda s: max(s.sizes[:2]) > 1024,
    "for more than 4,096 rows": lambda s: max(s.sizes[:2]) > 4096,
    "for more than 8,192 rows": lambda s: max(s.sizes[:2]) > 8192,
    "for m > 32 and m > 2n": lambda s: s.sizes[1] > max(32, 2 * s.sizes[0]),
    "for n that is a multiple of 64": lambda s: s.sizes[0] % 64 == 0,
    "for n that is a multiple of 256": lambda s: s.sizes[0] % 256 == 0,
    "for more than 4,096 numbers": lambda s: max(s.sizes[:2]) * s.sizes[2] > 4096,
    "for n that is a multiple of 8": lambda s: s.sizes[0] % 8 == 0,
    "for n that is no multiple of 8": lambda s: s.sizes[0] > 8 and s.sizes[0] % 8 != 0,
    "where the first vector is zero": lambda s: s.zero(0),
    "where the last vector is zero": lambda s: s.zero(len(s.vectors) - 1),
    "where a vector is zero in one block only": _zero_in_one_block,
    "where the G part of a vector is zero": lambda s: any(np.any(v.H) and not np.any(v.G) for v in s.vectors),
    "where the H part of a vector is zero": lambda s: any(np.any(v.G) and not np.any(v.H) for v in s.vectors),
    "where both vectors are the same": _vectors_equal,
    "where the vectors are nearly equal": _nearly_equal,
    "where the vectors are very nearly equal": lambda s: _nearly_equal(s, 1e-8),
    "where the vectors are opposite": _are_opposite,
    "where the rows of a vector have different sizes": _uneven_rows,
    "where the vectors are orthogonal": lambda s: _cosine(s) <= 1e-5,
    "where the vectors are nearly orthogonal": lambda s: 1e-9 < _cosine(s) <= 1e-5,
    "where the vectors are very nearly orthogonal": lambda s: 1e-12 < _cosine(s) <= 1e-8,
    "where a vector has more zeros than other numbers": lambda s: any(
        0 < np.count_nonzero(x) < 0.5 * x.size for v in s.vectors for x in v
    ),
    "where a column of a vector is zero": lambda s: any(
        np.any(x) and not np.all(np.any(x, axis=-2)) for v in s.vectors for x in v
    ),
    "where the first vector is a multiple of the point": _radial,
    "where the first vector is tiny beside the second": lambda s: (
        len(s.vectors) > 1 and 0.0 < s.lengths()[0] < 1e-6 * s.lengths()[1]
    ),
    "where a vector is normal to the columns of the factors": lambda s: any(
        np.any(x) and np.linalg.norm(F.mT @ x) <= 1e-5 * np.linalg.norm(F) * np.linalg.norm(x)
        for v in s.vectors
        for F, x in zip((s.G, s.H), v, strict=True)
    ),
    "where one part of a vector is much shorter than the other": lambda s: any(
        0.0 < min(sizes) < 1e-4 * max(sizes) for sizes in s.parts()
    ),
    "where a vector has rank one": lambda s: any(
        s.sizes[2] > 1 and np.any(x) and np.all(np.linalg.matrix_rank(x) == 1) for v in s.vectors for x in v
    ),
    "where the vectors have the same G part": lambda s: (
        len(s.vectors) > 1
        and bool(np.any(s.vectors[0].G))
        and np.array_equal(s.vectors[0].G, s.vectors[1].G)
        and not np.array_equal(s.vectors[0].H, s.vectors[1].H)
    ),
    "where the vector is vertical": _is_vertical,
    "where the vector is horizontal": lambda s: _distance_from_horizontal(s) <= 1e-4,
    "where the vector is nearly horizontal": lambda s: 1e-10 < _distance_from_horizontal(s) < 1e-5,
    "where the vector is very nearly horizontal": lambda s: 1e-13 < _distance_from_horizontal(s) < 3e-9,
    "where a row of a vector is zero": lambda s: _row_of_zeros(s.vectors),
    "where a row of a factor is zero": lambda s: _row_of_zeros([(s.G, s.H)]),
    "where a vector is vastly longer than the point": lambda s: max(s.lengths(), default=0.0) > 1e9,
    "where a vector is much longer than the point": lambda s: max(s.lengths(), default=0.0) > 1e3,
    "where vectors are much shorter than the point": lambda s: 0.0 < max(s.lengths(), default=0.0) < 1e-6,
    "where the vectors have different sizes": lambda s: (
        len(s.vectors) > 1 and min(s.lengths()) > 0.0 and max(s.lengths()) > 1e6 * min(s.lengths())
    ),
    "for balanced factors": lambda s: bool(
        np.linalg.norm(_gram(s.G) - _gram(s.H)) <= 1e-5 * np.linalg.norm(_gram(s.G))
    ),
    "for nearly balanced factors": lambda s: bool(
        1e-10 < np.linalg.norm(_gram(s.G) - _gram(s.H)) / np.linalg.norm(_gram(s.G)) <= 1e-5
    ),
    "where a row of a factor is short": lambda s: any(
        0.0 < np.min(np.linalg.norm(x, axis=-1)) < 1e-4 * np.max(np.linalg.norm(x, axis=-1)) for x in (s.G, s.H)
    ),
    "where a column of a factor is short": lambda s: any(
        np.min(np.linalg.norm(x, axis=-2)) < 1e-2 * np.max(np.linalg.norm(x, axis=-2)) for x in (s.G, s.H)
    ),
    "for factors with orthonormal columns": lambda s: all(
        np.allclose(x, 1.0, rtol=0.0, atol=1e-5) for x in s.singular_values
    ),
    "for Gram matrices that are diagonal": lambda s: (
        s.sizes[2] > 1 and all(np.count_nonzero(S - np.eye(s.sizes[2]) * S) == 0 for S in (_gram(s.G), _gram(s.H)))
    ),
    "for singular values that repeat": _repeated,
    "for G = H": lambda s: s.G.shape == s.H.shape and np.array_equal(s.G, s.H),
    "for a symmetric or triangular square G": _structured,
    "for n that is a multiple of 128 and h that is one of 16": lambda s: s.sizes[0] % 128 == s.sizes[2] % 16 == 0,
    "for G nearly H": lambda s: (
        s.G.shape == s.H.shape and not np.array_equal(s.G, s.H) and np.allclose(s.G, s.H, rtol=1e-5, atol=0.0)
    ),
    "where a factor is tiny": lambda s: bool(np.min(_largest(s.G)) < 1e-4 or np.min(_largest(s.H)) < 1e-4),
    "where a factor is huge": lambda s: bool(np.max(_largest(s.G)) > 1e4 or np.max(_largest(s.H)) > 1e4),
    "where both factors are tiny": lambda s: bool(np.max(_largest(s.G)) < 1e-4 and np.max(_largest(s.H)) < 1e-4),
    "where both factors are huge": lambda s: bool(np.min(_largest(s.G)) > 1e4 and np.min(_largest(s.H)) > 1e4),
    "where the factors have different sizes": lambda s: not 0.01 < np.linalg.norm(s.G) / np.linalg.norm(s.H) < 100.0,
    "where the blocks of a batch have different sizes": lambda s: any(
        np.max(_largest(x)) > 100.0 * np.min(_largest(x)) for x in (s.G, s.H)
    ),
    "for h ≥ 16 and κ < 2": lambda s: s.sizes[2] >= 16 and s.kappa < 2.0,
    "for h ≥ 32 and κ < 2": lambda s: s.sizes[2] >= 32 and s.kappa < 2.0,
    "for κ < 2": lambda s: s.kappa < 2.0,
    "for κ > 8": lambda s: s.kappa > 8.0,
    "for κ > 20": lambda s: s.kappa > 20.0,
    "for κ > 50": lambda s: s.kappa > 50.0,
    "for κ > 100": lambda s: s.kappa > 100.0,
    "for κ > 300": lambda s: s.kappa > 300.0,
    "where the blocks of a batch have different condition numbers": lambda s: s.spread_of_kappa > 1e3,
    "for t = 0": lambda s: s.t == 0.0,
    "for t < 0": lambda s: s.t is not None and s.t < 0.0,
    "for t < -1": lambda s: s.t is not None and s.t < -1.0,
    "for t short, 0 < |t| < 0.1": lambda s: s.t is not None and 0.0 < abs(s.t) < 0.1,
    "for t very short, 0 < |t| < 0.001": lambda s: s.t is not None and 0.0 < abs(s.t) < 1e-3,
    "for t = 1": lambda s: s.t == 1.0,
    "for t ≠ 1": lambda s: s.t is not None and s.t != 1.0,
    "for t > 1": lambda s: s.t is not None and s.t > 1.0,
    "for t < -50": lambda s: s.t is not None and s.t < -50.0,
    "for t that float32 does not hold": lambda s: s.t is not None and float(np.float32(s.t)) != s.t,
    "for t > 50": lambda s: s.t is not None and s.t > 50.0,
}
"""What can be said of a call; each a dimension that the generated points cover."""


def situation(case: Case, operation: Operation) -> Situation:
    """What an operation gets at a case.

    Examples
    --------
    >>> from refgeo.conformance.recipes import Recipe, build
    >>> from refgeo.operations import OPERATIONS
    >>> case = build(Recipe(((), 5, 4, 2)), "inv", "float64", 0)
    >>> PROPERTIES["for n > m"](situation(case, OPERATIONS["geodesic"]))
    True
    """
    t = case.t if "t" in operation.extra else None
    return Situation(case.metric, case.point.G, case.point.H, tuple(case.inputs(operation)), t)
