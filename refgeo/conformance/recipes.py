"""Test cases from features with levels: a covering design, and the point and vectors that a recipe describes.

A feature is what honest code, vectorised code included, branches on or divides by: leading dimensions and sizes, the
conditioning, structure and scale of the point, how vectors lie beside it and beside each other, the time, the
precision. A profile is a set of recipes in which every level of every feature occurs, and as many pairs of levels as so
many cases can hold; greedily, from random candidates.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.drawing import KINDS, TIMES, make_case, rng_of
from refgeo.conformance.precision import PRECISIONS
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

BATCHES: tuple[tuple[int, ...], ...] = (
    (), (1,), (2,), (3,), (5,), (2, 3), (3, 1), (2, 3, 2), (1, 2, 1, 2), (12,), (37,), (64,), (257,),
)  # fmt: skip
SIZES: tuple[tuple[int, int, int], ...] = (
    (5, 4, 3), (1, 1, 1), (7, 4, 1), (1, 5, 1), (5, 4, 2), (2, 2, 2), (6, 6, 3), (3, 8, 3), (8, 3, 3), (10, 9, 4),
    (4, 4, 4), (6, 7, 5), (9, 8, 7), (24, 9, 8), (12, 11, 9), (40, 36, 16), (20, 19, 17), (70, 68, 3), (769, 64, 6),
    (5, 1030, 2), (16411, 3, 2), (300, 290, 20), (34, 40, 32), (66, 64, 64), (67, 66, 65),
)  # fmt: skip
CONDITIONS: tuple[tuple[float, float], ...] = (
    (3.0, 3.0), (1.0, 1.0), (30.0, 30.0), (1.0, 100.0), (100.0, 1.0), (120.0, 120.0), (330.0, 330.0), (1e3, 1e3),
    (1e4, 1e4), (1e6, 1e6),
)  # fmt: skip
POINTS = ("random", "balanced", "near-balanced", "identity", "near-identity", "repeated", "clustered", "twins",
          "uneven", "padded")  # fmt: skip
"""Balanced; columns of the identity matrix; singular values that are equal in pairs; G = H; condition numbers that
differ from block to block; a first row of zeros. Near: up to 2⁻²⁴; clustered: up to 1e-9.
"""
SCALES: dict[str, tuple[float, float]] = {
    "1": (1.0, 1.0), "1e6,1e-6": (1e6, 1e-6), "1e-6,1e6": (1e-6, 1e6), "1e6": (1e6, 1e6), "1e-6": (1e-6, 1e-6),
    "1e-9": (1e-9, 1e-9), "1e3,1": (1e3, 1.0), "blocks": (1.0, 1.0), "vectors": (1.0, 1.0),
}  # fmt: skip
"""Of G and H; "blocks" gives each block of a batch a scale of its own, "vectors" each vector."""
_PLAIN: tuple[tuple[tuple[int, ...], tuple[int, int, int]], ...] = (
    ((), (5, 4, 2)), ((3,), (5, 4, 3)), ((), (7, 4, 1)), ((2, 3), (6, 7, 2)), ((20,), (1, 1, 1)), ((), (10, 9, 4)),
    ((), (4, 4, 4)), ((), (6, 6, 3)),
)  # fmt: skip
"""Cases with nothing special but their shape, for laws and conduct."""
COUNTS = {"quick": 76, "full": 300}
"""Cases of a profile, for a metric; a few more are in single precision, which is what people ship."""
_LARGEST = 50_000
"""Numbers of a factor in a case that is large in several features."""
_ODD = 3
"""In at most so many features a case is unusual."""


@dataclass(frozen=True)
class Recipe:
    """What a generated case is made of; its name says all that is not the usual.

    Attributes
    ----------
    batch : tuple of int
        Leading dimensions.
    sizes : (n, m, h)
    conditions : (float, float)
        Of G and of H.
    point, scale, vectors : str
        One of `POINTS`, `SCALES`, and `refgeo.conformance.drawing.KINDS`.
    t : float
    single : bool
        In single precision, whatever the run is in.
    draw : int
        Cases that are alike but for their random numbers.

    Examples
    --------
    >>> Recipe((2, 3), (6, 7, 2), (1.0, 1e4), vectors="zero-G").name
    '2.3-6x7x2/k1,10000/zero-G'
    >>> Recipe.parse("2.3-6x7x2/k1,10000/zero-G").conditions
    (1.0, 10000.0)
    """

    batch: tuple[int, ...] = ()
    sizes: tuple[int, int, int] = SIZES[0]
    conditions: tuple[float, float] = CONDITIONS[0]
    point: str = "random"
    scale: str = "1"
    vectors: str = "any"
    t: float = TIMES[0]
    single: bool = False
    draw: int = 0

    @property
    def name(self) -> str:
        """The shape, the conditioning, and what is unusual."""
        kappa = f"k{self.conditions[0]:g}" + ("" if len(set(self.conditions)) == 1 else f",{self.conditions[1]:g}")
        shape = (f"{'.'.join(map(str, self.batch))}-" if self.batch else "") + "x".join(map(str, self.sizes))
        words = {"point": self.point, "scale": f"scale{self.scale}", "vectors": self.vectors, "t": f"t{self.t:.12g}",
                 "single": "float32", "draw": f"draw{self.draw}"}  # fmt: skip
        return "/".join([shape, kappa, *(word for field, word in words.items() if field in self.unusual)])

    @classmethod
    def parse(cls, name: str) -> Recipe | None:
        """The recipe of a name; None if it is none."""
        shape, *words = name.split("/")
        found = re.fullmatch(r"(?:((?:\d+\.)*\d+)-)?(\d+)x(\d+)x(\d+)", shape)
        if not found:
            return None
        n, m, h = (int(size) for size in found.groups()[1:])
        recipe = cls(tuple(map(int, found[1].split("."))) if found[1] else (), (n, m, h))
        for word in words:
            change = _parsed(word)
            if change is None:
                return None
            recipe = replace(recipe, **change)
        return recipe if recipe.possible else None

    @property
    def unusual(self) -> list[str]:
        """The features in which it is not the usual."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    @property
    def needs_blocks(self) -> bool:
        """Whether its blocks differ in something."""
        return self.scale == "blocks" or self.point == "uneven" or self.vectors == "zero-block"

    @property
    def possible(self) -> bool:
        """Whether such a case exists."""
        (n, m, h), blocks = self.sizes, int(np.prod(self.batch))
        return (
            0 < h <= min(n, m)
            and min(self.batch, default=1) > 0
            and not (
                (self.point == "twins" and n != m)
                or (self.point in ("repeated", "clustered", "near-identity") and h < 2)
                or (self.point == "padded" and min(n, m) == h)
                or (self.needs_blocks and blocks < 2)
                or (h == 1 and self.conditions not in ((3.0, 3.0), (1.0, 1.0)))
            )
        )

    def fits(self, dtype: str) -> bool:
        """Whether its numbers and the products of six of them are within the range of the dtype."""
        scale = max(abs(np.log(size)) for size in SCALES[self.scale])
        scale = np.log(1e6) if self.scale in ("blocks", "vectors") else scale
        length = KINDS[self.vectors].length
        size = 3.0 * np.log(length) if 1.0 < length < np.inf else 0.0  # an infinite one is cut to what can be enclosed
        return bool(max(6.0 * scale, size) <= np.log(PRECISIONS[dtype].largest))

    @property
    def cost(self) -> int:
        """Numbers of the larger factor."""
        return int(np.prod(self.batch)) * max(self.sizes[:2]) * self.sizes[2]


def _parsed(word: str) -> dict[str, Any] | None:
    """What a word of a name says."""
    if word == "float32":
        return {"single": True}
    for field, known in (("point", POINTS), ("vectors", KINDS)):
        if word in known:
            return {field: word}
    if word.startswith("scale") and word[5:] in SCALES:
        return {"scale": word[5:]}
    try:
        if word.startswith("draw"):
            return {"draw": int(word[4:])}
        if word.startswith("k"):
            values = [float(x) for x in word[1:].split(",")]
            return {"conditions": (values[0], values[-1])} if min(values) >= 1.0 and len(values) <= 2 else None
        return {"t": float(word[1:])} if word.startswith("t") else None
    except ValueError:
        return None


LEVELS: dict[str, tuple[Any, ...]] = {
    "batch": BATCHES, "sizes": SIZES, "conditions": CONDITIONS, "point": POINTS, "scale": tuple(SCALES),
    "vectors": tuple(KINDS), "t": TIMES,
}  # fmt: skip
_OFTEN = (0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1)
"""How often a feature is unusual beside others: shapes are what most code branches on."""
Level = tuple[str, Any]


_HIDING = {"point", "scale", "vectors"}
"""Of these one hides another: at zero vectors no point shows what it has, and scaled factors are not balanced."""


def _levels(recipe: Recipe) -> list[Level]:
    return [(name, getattr(recipe, name)) for name in LEVELS]


def shown(recipe: Recipe) -> set[Level]:
    """The levels that no other one hides."""
    hidden = _HIDING if len(_HIDING & set(recipe.unusual)) > 1 else set()
    return {one for one in _levels(recipe) if one[0] not in hidden}


@cache
def recipes(profile: str, seed: int = 0) -> tuple[Recipe, ...]:
    """What a profile generates, simplest first: every level where it shows, and as many pairs as there is room for."""
    rng = np.random.default_rng([seed, COUNTS[profile]])
    alone = [replace(Recipe(), **{name: level}) for name, levels in LEVELS.items() for level in levels]
    missing: set[Level] = {one for recipe in map(repaired, alone) for one in shown(recipe)}
    chosen = [Recipe(batch, sizes) for batch, sizes in _PLAIN]
    covered: set[tuple[Level, Level]] = set()
    single = [repaired(Recipe(b, s, single=True)) for b, s in (((), (5, 4, 3)), ((3,), (7, 4, 1)), ((2,), (9, 8, 7)))]
    while len(chosen) < COUNTS[profile]:
        drawn = [_drawn_recipe(rng, sorted(missing, key=str)) for _ in range(24)]
        drawn = [recipe for recipe in drawn if recipe.possible and recipe not in chosen and _is_affordable(recipe)]
        if not drawn:
            continue
        best = max(drawn, key=lambda recipe: _news(recipe, missing, covered))
        chosen.append(best)
        missing -= shown(best)
        covered |= set(itertools.combinations(_levels(best), 2))
    found = sorted(chosen[len(_PLAIN) :], key=lambda recipe: (len(recipe.unusual), recipe.cost))
    return (*chosen[: len(_PLAIN)], *found, *single, Recipe(vectors="zero-first", single=True))


def _news(recipe: Recipe, missing: set[Level], covered: set[tuple[Level, Level]]) -> float:
    pairs = set(itertools.combinations([one for one in _levels(recipe) if one[0] in recipe.unusual], 2))
    return 10.0 * len(missing & shown(recipe)) + len(pairs - covered)


def _drawn_recipe(rng: np.random.Generator, missing: list[Level]) -> Recipe:
    """Unusual in a few features; in one of them as nothing before, if there is something left."""
    changes: dict[str, Any] = {}
    if missing:
        name, level = missing[rng.integers(len(missing))]
        changes[name] = level
    for name in rng.choice(list(LEVELS), rng.integers(1, _ODD + 1), replace=False, p=_OFTEN):
        changes.setdefault(str(name), LEVELS[name][rng.integers(len(LEVELS[name]))])
    return repaired(replace(Recipe(), **changes))


def repaired(recipe: Recipe) -> Recipe:
    """With the shape that its other features need."""
    n, m, h = recipe.sizes
    if h >= 8 and recipe.conditions == CONDITIONS[0]:  # where rounding hides least of what is lost inside
        recipe = replace(recipe, conditions=(1.0, 1.0))
    if recipe.vectors == "fast":  # as far as can be enclosed, wherever that is
        recipe = replace(recipe, t=TIMES[0], scale="1", conditions=CONDITIONS[0])
    if recipe.point == "twins" and n != m:
        recipe = replace(recipe, sizes=(6, 6, 3))
    if recipe.needs_blocks and not recipe.batch:
        recipe = replace(recipe, batch=(3,))
    return recipe


def _is_affordable(recipe: Recipe) -> bool:
    """Large in one feature alone, and at most ill-conditioned besides: what is hard to judge is judged for itself."""
    large = recipe.cost > 5000 or recipe.sizes[2] > 16
    hard = max(recipe.conditions) > 300.0
    return (
        recipe.cost <= _LARGEST
        and len(recipe.unusual) <= (2 if large or hard else _ODD)
        and not (large and hard)
        and not (int(np.prod(recipe.batch)) > 40 and max(recipe.sizes) > 8)
        and (int(np.prod(recipe.batch)) <= 40 or len(recipe.unusual) <= 2)
    )


def build(recipe: Recipe, metric: str, dtype: str, seed: int, relaxation: float = 0.0) -> Case:
    """The case of a recipe.

    Examples
    --------
    >>> build(Recipe(sizes=(5, 4, 2)), "inv", "float32", 0).name
    '5x4x2/k3'
    """
    rng = rng_of(seed, recipe.name)
    dtype = "float32" if recipe.single else dtype
    made = make_case(
        recipe.name, metric, _point(recipe, rng), rng, dtype, seed, relaxation, t=recipe.t, kind=recipe.vectors,
        apart=recipe.scale == "vectors",
    )  # fmt: skip
    return replace(made, recipe=recipe)


def _point(recipe: Recipe, rng: np.random.Generator) -> Pair:
    batch, (n, m, h) = recipe.batch, recipe.sizes
    if recipe.point.endswith("identity"):
        factors: list[Any] = [np.tile(np.eye(rows, h) * np.linspace(2.0, 1.0, h), (*batch, 1, 1)) for rows in (n, m)]
    else:
        factors = [_factor(rng, recipe, rows, k) for rows, k in zip((n, m), recipe.conditions, strict=True)]
    G, H = factors
    if recipe.point == "padded":
        for factor in (G, H):
            factor[..., 0, :] = 0.0
    if recipe.point == "twins":
        H = G.copy()
    if recipe.point.endswith("balanced"):
        G, H = Pair(G, H).balanced()[0]
    if recipe.point.startswith("near-"):
        G, H = (x + 2.0**-24 * (x + 1.0) * rng.standard_normal(x.shape) for x in (G, H))
    sizes: list[Any] = list(SCALES[recipe.scale])
    if recipe.scale == "blocks":
        steps = np.resize([1.0, 1e-6, 1e3, 1e-2], int(np.prod(batch))).reshape(*batch, 1, 1)
        sizes = [steps, 1.0 / steps**0.5]
    return Pair(sizes[0] * G, sizes[1] * H)


def _factor(rng: np.random.Generator, recipe: Recipe, rows: int, condition: float) -> Array:
    """Random factors with singular values from 1 down to 1/condition, in random directions."""
    batch, h = recipe.batch, recipe.sizes[2]
    left = np.linalg.qr(rng.standard_normal((*batch, rows, h)))[0]
    right = np.linalg.qr(rng.standard_normal((*batch, h, h)))[0]
    share: Any = 1.0
    if recipe.point == "uneven":
        share, condition = np.linspace(0.0, 1.0, int(np.prod(batch))).reshape(*batch, 1), max(condition, 2e3)
    spread = max(condition, 1.0) ** (-share * np.linspace(0.0, 1.0, h))
    if recipe.point in ("repeated", "clustered"):
        spread = spread[..., np.arange(h) // 2]
    # Singular values that coincide would make every basis of the whole space as good as any other and hide mistakes.
    apart = {"repeated": 0.0, "clustered": 1e-9}.get(recipe.point, 0.05)
    values = spread * (1.0 + apart * rng.standard_normal((*batch, h)))
    return np.asarray((left * values[..., None, :]) @ right.mT)


Lazy = tuple[str, Callable[[], Case]]


@lru_cache(maxsize=6)
def generated(profile: str, metric: str, dtype: str, seed: int, relaxation: float) -> tuple[Lazy, ...]:
    """The cases of a profile; made on first use and kept, with their enclosures, for the next run in this process."""
    return tuple(
        lazy(recipe, metric, dtype, seed, relaxation)
        for recipe in recipes(profile, seed)
        if recipe.fits(dtype) and (dtype == "float64" or not recipe.single)
    )


@cache
def lazy(recipe: Recipe, metric: str, dtype: str, seed: int, relaxation: float) -> Lazy:
    """A case by its name, made on first use."""
    return recipe.name, lru_cache(maxsize=1)(lambda: build(recipe, metric, dtype, seed, relaxation))
