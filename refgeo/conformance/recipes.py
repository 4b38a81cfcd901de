"""Generated test points: what a run covers, by stated dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from refgeo.arguments import Array
from refgeo.conformance.case import Case
from refgeo.conformance.drawing import KINDS, LENGTHS, TIMES, make_case, rng_of
from refgeo.conformance.precision import PRECISIONS
from refgeo.pair import Pair

Shape = tuple[tuple[int, ...], int, int, int]

SHAPES: tuple[Shape, ...] = (
    ((), 1, 1, 1), ((), 7, 4, 1), ((), 1, 5, 1), ((), 6, 1, 1), ((), 2, 2, 2), ((), 4, 4, 4), ((), 5, 4, 2),
    ((), 10, 9, 4), ((), 5, 12, 3), ((), 6, 6, 3), ((), 3, 8, 3), ((), 8, 3, 3), ((), 9, 8, 7), ((), 8, 8, 8),
    ((), 12, 11, 9), ((), 16, 16, 16), ((), 20, 19, 17), ((), 513, 511, 2),
    ((), 70, 68, 3), ((), 769, 769, 2), ((), 1025, 1023, 2), ((), 16411, 3, 2), ((), 1024, 768, 2),
    ((), 3, 70, 2), ((), 5, 513, 2),
    ((1,), 5, 4, 2), ((3,), 7, 4, 1), ((20,), 1, 1, 1), ((4,), 25, 24, 6), ((2,), 6, 7, 2), ((3,), 5, 6, 3),
    ((5,), 5, 6, 2), ((6,), 5, 6, 2), ((2, 3), 6, 7, 2), ((1, 2), 4, 5, 3), ((3, 1), 4, 4, 2), ((2, 1, 3), 3, 4, 2),
    ((2, 2), 2, 2, 2), ((2,), 40, 36, 16), ((2,), 4, 40, 3), ((48,), 3, 2, 2), ((257,), 2, 2, 1), ((2, 17), 2, 1, 1),
    ((1, 2, 1, 2), 3, 2, 2), ((2, 1, 2, 1, 2), 2, 3, 2), ((3,), 5, 4, 4), ((), 7, 6, 5), ((2,), 128, 64, 16),
    ((2,), 34, 33, 32),
)  # fmt: skip
LARGE_SHAPES: tuple[Shape, ...] = (
    ((12,), 65, 64, 16), ((2,), 257, 256, 64), ((), 2049, 2047, 3), ((), 40, 33, 33),
    ((2, 2, 2, 2), 3, 4, 2), ((70,), 2, 3, 1), ((3,), 130, 3, 3), ((), 100, 99, 48),
)  # fmt: skip
CONDITIONS: tuple[tuple[float, float], ...] = (
    (1.0, 1.0), (10.0, 10.0), (30.0, 30.0), (1.0, 100.0), (100.0, 1.0), (120.0, 120.0), (330.0, 330.0), (1e3, 1e3),
    (5e3, 5e3), (1e4, 1e4), (1e6, 1e6),
)  # fmt: skip
POINTS = (
    "random",
    "balanced",
    "orthonormal",
    "identity",
    "repeated",
    "clustered",
    "twins",
    "uneven",
    "alike",
    "padded",
    "small-row",
    "columns",
    "near-balanced",
    "near-twins",
    "symmetric",
    "triangular",
)
SCALES: dict[str, tuple[float, float]] = {
    "1": (1.0, 1.0), "1e6,1e-6": (1e6, 1e-6), "1e-6,1e6": (1e-6, 1e6), "1e6": (1e6, 1e6), "1e-6": (1e-6, 1e-6),
    "1e3,1": (1e3, 1.0), "1e-9": (1e-9, 1e-9), "blocks": (1.0, 1.0), "vectors": (1.0, 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What a generated point is made of; its name says all that is not the usual.

    Attributes
    ----------
    shape : (leading dimensions, n, m, h)
    conditions : (float, float)
        Of G and of H.
    point : str
        One of `POINTS`: orthonormal columns, columns of the identity; singular values that are equal in pairs, or
        nearly; G = H; condition numbers that differ from block to block; all rows but the last (in draws 3 and 4 the
        first, above that the middle one) those of every such point of the shape; a first row of zeros, or a short one;
        columns of very different lengths; nearly balanced; nearly G = H; for n = h a symmetric or triangular G.
    scale : str
        One of `SCALES`; "blocks" gives each block of a batch its own, "vectors" each vector.
    vectors : str
        One of `KINDS`.
    t : float
    draw : int
        Points that are alike but for their random numbers.
    """

    shape: Shape
    conditions: tuple[float, float] = (3.0, 3.0)
    point: str = "random"
    scale: str = "1"
    vectors: str = "any"
    t: float = TIMES[0]
    draw: int = 0

    @property
    def name(self) -> str:
        """The shape, and what is unusual.

        Examples
        --------
        >>> Recipe(((2, 3), 6, 7, 2), conditions=(1.0, 1e4), vectors="zero-G").name
        '2.3-6x7x2/k1,10000/zero-G'
        """
        batch, n, m, h = self.shape
        kappa = f"k{self.conditions[0]:g}" + ("" if len(set(self.conditions)) == 1 else f",{self.conditions[1]:g}")
        parts = [(f"{'.'.join(map(str, batch))}-" if batch else "") + f"{n}x{m}x{h}", kappa]
        parts += [self.point] if self.point != "random" else []
        parts += [f"scale{self.scale}"] if self.scale != "1" else []
        parts += [self.vectors] if self.vectors != "any" else []
        parts += [f"t{self.t:g}"] if self.t != TIMES[0] else []
        parts += [f"draw{self.draw}"] if self.draw else []
        return "/".join(parts)

    @property
    def unusual(self) -> str:
        """The dimensions, but for the shape and the vectors, in which it is not the usual.

        Examples
        --------
        >>> Recipe(((), 6, 7, 2), point="balanced", t=1.0).unusual
        'point, t'
        """
        usual = Recipe(self.shape)
        names = ("conditions", "point", "scale", "t", "draw")
        return ", ".join(name for name in names if getattr(self, name) != getattr(usual, name))

    @property
    def possible(self) -> bool:
        """Whether such a point exists."""
        batch, n, m, h = self.shape
        blocks = int(np.prod(batch))
        return not (
            (self.point in ("twins", "near-twins") and n != m)
            or (self.point in ("repeated", "clustered") and h < 2)
            or (self.point in ("padded", "small-row") and min(n, m) == h)
            or (self.point in ("symmetric", "triangular") and n != h)
            or (self.vectors in ("zero-column", "rank-one") and h == 1)
            or ((self.scale == "blocks" or self.point == "uneven" or self.vectors == "zero-block") and blocks < 2)
            or (h == 1 and self.conditions not in ((3.0, 3.0), (1.0, 1.0)))
        )


def recipes(profile: str, seed: int = 0) -> Iterator[Recipe]:
    """What a profile generates, simplest first: every value of every dimension, and some of them together."""
    shapes = SHAPES if profile == "quick" else SHAPES + LARGE_SHAPES
    yield from (Recipe(shape) for shape in shapes)
    probes: tuple[Shape, ...] = (((), 10, 9, 4), ((3,), 9, 8, 5))
    small: tuple[Shape, ...] = (((), 7, 4, 1), ((), 5, 4, 3), ((3,), 4, 3, 2))
    if profile == "full":
        probes += (((), 4, 4, 4), ((2, 2), 6, 7, 2))
        small += (((), 6, 6, 3), ((2,), 3, 8, 3))
    yield from (Recipe(shape, conditions) for conditions in CONDITIONS for shape in probes)
    yield from (Recipe(((), h + 2, h + 1, h), (30.0, 30.0)) for h in (12, 18) + (profile == "full") * (32, 64))
    # where single precision inside shows, which rounding hides at larger κ
    yield from (Recipe(((), h + 2, h + 1, h), (1.0, 1.0)) for h in (18, 32, 40, 65))
    yield Recipe(((2,), 150, 131, 8), (1.0, 1.0))
    yield Recipe(((), 5, 4, 2), vectors="fast", t=1.0)
    yield from (Recipe(shape, point=point) for point in POINTS[1:] for shape in (((), 6, 6, 4), ((2,), 5, 5, 2)))
    yield from (Recipe(shape, (1.0, 1.0), "columns") for shape in (((), 6, 6, 4), ((2,), 5, 5, 2)))
    yield from (Recipe(shape, scale=scale) for scale in list(SCALES)[1:] for shape in (((), 10, 9, 4), ((3,), 7, 4, 1)))
    yield from (Recipe(shape, vectors=kind) for kind in KINDS[1:] for shape in small)
    yield from (Recipe(shape, vectors="shared", draw=1) for shape in small)
    yield from (Recipe(((), 5, 4, 2), vectors=kind) for kind in ("horizontal", "vertical"))
    yield Recipe(((), 4, 4, 4), vectors="near-vertical")
    yield from (Recipe(shape, vectors="long") for shape in (((), 5, 4, 3), ((3,), 4, 3, 2)))
    yield Recipe(((3,), 3, 3, 3))  # whatever is transposed too far fits
    yield from (Recipe(((), 4, 4, 4), point=point) for point in ("symmetric", "triangular"))
    yield from (Recipe(((), 6, 5, 2), point="alike", draw=draw) for draw in (1, 2, 3, 4))  # one right after the other
    yield from (Recipe(((), 1025, 1023, 2), point="alike", draw=draw) for draw in (5, 6))
    yield from (Recipe(shape, scale="blocks") for shape in (((5,), 5, 6, 2), ((3,), 5, 6, 3)))
    yield from (Recipe(shape, (1e9, 1e9), "uneven") for shape in (((4,), 6, 5, 3), ((2, 2), 7, 4, 2)))
    yield Recipe(((3,), 4, 3, 2), (2e3, 2e3), "uneven")
    yield Recipe(((3,), 4, 3, 1), vectors="zero-block")
    yield from (Recipe(((), n, 3, 2), (k, k), t=0.3) for n, k in ((4, 8.0), (4, 20.0), (5, 20.0)))  # exact ones, too
    yield from (Recipe(((), n, 3, 2), (1.0, 1.0), t=2.0**-8) for n in (4, 5, 6))  # where a parabola is nearly enough
    yield from (Recipe(((), 6, 5, 4), t=t) for t in (TIMES[1], TIMES[2]))
    yield from (Recipe(shape, t=t) for t in TIMES[1:] for shape in (((), 5, 4, 2), ((2,), 7, 4, 1)))
    yield from (Recipe(shape, t=-TIMES[0]) for shape in (((), 5, 4, 3), ((1,), 4, 3, 2)))
    yield from combined(40 if profile == "full" else 12, seed)


def combined(count: int, seed: int) -> Iterator[Recipe]:
    """Dimensions drawn together."""
    rng = np.random.default_rng([seed, 7])
    moderate = [shape for shape in SHAPES if max(shape[1:3]) < 30]

    def one_of(options: Iterable[Any]) -> Any:
        options = list(options)
        return options[rng.integers(len(options))]

    drawn = (
        Recipe(
            one_of(moderate), one_of([(1.0, 1.0), (3.0, 3.0), *CONDITIONS[1:5]]), one_of(POINTS), one_of(SCALES),
            one_of(KINDS), one_of(TIMES), 1,
        )
        for _ in itertools.count()
    )  # fmt: skip
    return itertools.islice((recipe for recipe in drawn if recipe.possible), count)


def build(recipe: Recipe, metric: str, dtype: str, seed: int, relaxation: float = 0.0) -> Case:
    """The point of a recipe.

    Examples
    --------
    >>> build(Recipe(((), 5, 4, 2)), "inv", "float32", 0).name
    '5x4x2/k3'
    """
    rng = rng_of(seed, recipe.name)
    if recipe.vectors == "shared-first":  # the point, too
        rng = rng_of(seed, replace(recipe, vectors="shared").name)
    point = _point(recipe, rng)
    apart = recipe.scale == "vectors"
    case = make_case(
        recipe.name, metric, point, rng, dtype, seed, relaxation, t=recipe.t, kind=recipe.vectors, apart=apart
    )
    return replace(case, unusual=recipe.unusual)


def _point(recipe: Recipe, rng: np.random.Generator) -> Pair:
    batch, n, m, h = recipe.shape
    G: Array
    H: Array
    if recipe.point == "identity":
        G, H = (np.tile(np.eye(rows, h), (*batch, 1, 1)) for rows in (n, m))
    elif recipe.point == "orthonormal":
        G, H = (np.linalg.qr(rng.standard_normal((*batch, rows, h)))[0] for rows in (n, m))
    else:
        G, H = (
            _factor(rng, batch, rows, h, k, recipe.point) for rows, k in zip((n, m), recipe.conditions, strict=True)
        )
    if recipe.point == "alike":
        common = rng_of(0, f"alike {recipe.shape}")
        for factor in (G, H):
            rows = factor.shape[-2]
            own = rows // 2 if recipe.draw > 4 else 0 if recipe.draw > 2 else rows - 1
            shared = np.delete(np.arange(rows), own)
            factor[..., shared, :] = 0.5 * common.standard_normal(factor.shape)[..., shared, :]
            factor[..., own, :] = 0.5 * rng.standard_normal(factor[..., own, :].shape)
    if recipe.point in _FIRST_ROWS:
        for factor in (G, H):
            factor[..., 0, :] *= _FIRST_ROWS[recipe.point]
    if recipe.point == "symmetric":
        G = G + G.mT
    if recipe.point == "triangular":
        G = np.triu(G) + np.eye(h)
    if recipe.point == "columns":
        G, H = (factor * np.geomspace(1.0, 2.0**-7, h) for factor in (G, H))
    if recipe.point.endswith("twins"):
        H = G.copy()
    if recipe.point.endswith("balanced"):
        G, H = Pair(G, H).balanced()[0]
    if recipe.point.startswith("near-"):
        G = G * (1.0 + 2.0**-24 * rng.standard_normal(G.shape))
    sizes: list[Any] = list(SCALES[recipe.scale])
    if recipe.scale == "blocks":
        steps = np.resize([1.0, 1e-3, 1e3, 1e-2], int(np.prod(batch))).reshape(*batch, 1, 1)
        sizes = [steps, 1.0 / steps**0.5]
    return Pair(sizes[0] * G, sizes[1] * H)


_FIRST_ROWS = {"padded": 0.0, "small-row": 2.0**-16}
"""Sizes of the first rows, beside the others."""


def _factor(rng: np.random.Generator, batch: tuple[int, ...], rows: int, h: int, condition: float, kind: str) -> Array:
    """Random factors with singular values from 1 down to 1/condition, in random directions."""
    left = np.linalg.qr(rng.standard_normal((*batch, rows, h)))[0]
    right = np.linalg.qr(rng.standard_normal((*batch, h, h)))[0]
    share: Any = 1.0
    if kind == "uneven":
        share = np.linspace(0.0, 1.0, int(np.prod(batch))).reshape(*batch, 1)
    spread = max(condition, 1.0) ** (-share * np.linspace(0.0, 1.0, h))
    if kind in ("repeated", "clustered"):
        spread = spread[..., np.arange(h) // 2]
    # Singular values that coincide would make every basis of the whole space as good as any other and hide mistakes.
    apart = {"repeated": 0.0, "clustered": 1e-9}.get(kind, 0.05)
    values = spread * (1.0 + apart * rng.standard_normal((*batch, h)))
    return np.asarray((left * values[..., None, :]) @ right.mT)


Lazy = tuple[str, Callable[[], Case]]


@lru_cache(maxsize=6)
def generated(profile: str, metric: str, dtype: str, seed: int, relaxation: float) -> tuple[Lazy, ...]:
    """The points of a profile; made on first use and kept, with their enclosures, for the next run in this process."""
    found = dict.fromkeys(recipe for recipe in recipes(profile, seed) if recipe.possible)

    def lazy(recipe: Recipe) -> Lazy:
        return recipe.name, lru_cache(maxsize=1)(lambda: build(recipe, metric, dtype, seed, relaxation))

    return tuple(lazy(recipe) for recipe in found if _fits(recipe, dtype))


def _fits(recipe: Recipe, dtype: str) -> bool:
    """Whether its numbers and the products of six of them are within the range of the dtype, or of three vectors."""
    scale = max(abs(np.log(size)) for size in SCALES[recipe.scale])
    scale = np.log(1e3) if recipe.scale in ("blocks", "vectors") else scale
    length = np.log(LENGTHS[recipe.vectors]) if recipe.vectors in LENGTHS else 0.0
    return bool(max(6.0 * scale, 3.0 * length) <= np.log(PRECISIONS[dtype].largest))
