"""Test points: generated ones by stated dimensions, the heads of real networks, and somebody's own.

What a run covers is written down once, in `recipes` (what is generated) and `PROPERTIES` (what can be said of a call).
The same properties tell a diagnosis where something is wrong, and make the planted mistakes that the kit is tested on.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, number
from refgeo.errors import RankDeficientError
from refgeo.exact import Enclosure, EnclosureError, ExactTangentSpace
from refgeo.metrics.pair import PairTangentSpace, pair_metric
from refgeo.operations import Operation, Value, relative_speed
from refgeo.pair import Pair

# Precision ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """A floating-point type: its unit roundoff, its largest number, and what NumPy passes it in."""

    name: str
    roundoff: float
    largest: float
    carrier: str

    def rounded(self, array: Array) -> Array:
        """The nearest numbers of this type, as float64; the largest one where there is none.

        Examples
        --------
        >>> float(PRECISIONS["bfloat16"].rounded(np.array(1.01)))
        1.0078125
        """
        array = np.clip(array, -self.largest, self.largest)
        if self.name != "bfloat16":
            return array.astype(self.carrier).astype(np.float64)
        bits = array.astype(np.float32).view(np.uint32)  # the upper half of a float32, to nearest even
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float64", 2.0**-53, float(np.finfo(np.float64).max), "float64"),
        Precision("float32", 2.0**-24, float(np.finfo(np.float32).max), "float32"),
        Precision("float16", 2.0**-11, 65504.0, "float16"),
        Precision("bfloat16", 2.0**-8, 3.38e38, "float32"),
    )
}
"""bfloat16 numbers come in float32 arrays, since NumPy has none: ``asarray`` may convert them without loss."""


def representable(pair: Pair, dtype: str) -> Pair:
    """Rounded to `dtype` and back to float64.

    Examples
    --------
    >>> float(representable(Pair([[0.1]], [[1.0]]), "float32").G.item() - 0.1) != 0.0
    True
    """
    return Pair(*(PRECISIONS[dtype].rounded(factor) for factor in pair))


# A test point ------------------------------------------------------------------------------------------------------

VECTORS = ("a", "b", "e", "v", "hessian_e", "hessian_w", "hessian_v")
GIVEN = (*(f"{vector}_{part}" for vector in VECTORS for part in "GH"), "t")
"""The names of a point's arrays beside G and H."""


class ExactBlock:
    """One block of a case for the enclosures: made once, shared by all checks and runs."""

    def __init__(self, case: Case, block: tuple[int, ...]) -> None:
        self._case, self._block = case, block
        G, H = _block_of(case.point, block)
        self._space = ExactTangentSpace(case.space.metric.s, G, H, case.relaxation)
        self._vectors: dict[str, Pair] = {}
        self._enclosures: dict[str, tuple[Enclosure, ...] | None] = {}

    def enclosures(self, value: Value) -> tuple[Enclosure, ...] | None:
        """The value, computed on first use; None if there is no narrow enclosure."""
        if value.name not in self._enclosures:
            for name in value.operation.sources:
                if name not in self._vectors:
                    self._vectors[name] = _block_of(self._case.vectors[name], self._block)
            vectors = [self._vectors[name] for name in value.operation.sources]
            try:
                self._enclosures[value.name] = value.expected(self._space, vectors, self._case.t)
            except EnclosureError:
                self._enclosures[value.name] = None
        return self._enclosures[value.name]


def _block_of(pair: Pair, block: tuple[int, ...]) -> Pair:
    return Pair(pair.G[block], pair.H[block])


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
        Whether its vectors are of no special kind, and worth a law.
    unusual : str
        The dimension that its point or time is unusual in; empty for all that differ in shape alone.
    """

    name: str
    metric: str
    dtype: str
    space: PairTangentSpace
    vectors: dict[str, Pair]
    t: float
    seed: int
    plain: bool = True
    unusual: str = ""

    @property
    def point(self) -> Pair:
        """The base point."""
        return self.space.point

    @property
    def relaxation(self) -> float:
        """ε of the geometry that is the truth."""
        return self.space.metric.relaxation

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

    @cached_property
    def exact_blocks(self) -> dict[tuple[int, ...], ExactBlock]:
        """Every block, for enclosures."""
        return {block: ExactBlock(self, block) for block in np.ndindex(self.point.block_shape)}

    @cached_property
    def condition(self) -> Array:
        """κ, the larger condition number of the factors, per block; between inv and mix that of G Hᵀ.

        A metric between them depends on powers of the singular values of G Hᵀ.
        """
        gauge = self.space.gauge
        is_end = self.space.metric.s in (0.0, 1.0)
        return np.asarray(gauge.condition if is_end else gauge.condition_of_product)

    def lost(self, power: float) -> Array:
        """κ to a power, per block."""
        with np.errstate(over="ignore"):
            return np.asarray(self.condition**power)

    def once(self, key: Hashable, compute: Callable[[], Array]) -> Array:
        """What many checks ask of this case, computed for the first."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    @cached_property
    def _known(self) -> dict[Hashable, Array]:
        return {}

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
                    covector = name in ("e", "hessian_e", "hessian_w")
                    ratios = np.log(part) + (np.log(size) if covector else -np.log(size))
                of_vectors = max(of_vectors, float(np.max(np.abs(ratios[np.isfinite(ratios)]), initial=0.0)))
        return of_point, 4.0 * max(0.0, of_vectors - 12.0) + 4.0 * float(np.log(max(abs(self.t), 1.0)))

    @cached_property
    def entries(self) -> int:
        """How many numbers the point has."""
        return int(self.point.G.size + self.point.H.size)

    def blocks(self, count: int) -> Case:
        """The first `count` blocks of a larger batch, as a case of its own."""
        if int(np.prod(self.point.block_shape)) <= count:
            return self

        def first(pair: Pair) -> Pair:
            return Pair(*(x.reshape(-1, *x.shape[-2:])[:count] for x in pair))

        space = self.space.metric.at(first(self.point))
        return replace(self, space=space, vectors={name: first(v) for name, v in self.vectors.items()})

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
        if self.relaxation == 0.0 and (self.metric == "inv" or h == 1):
            return bool(speed <= 8.0)
        if self.space.metric.s not in (0.0, 1.0):
            return False
        if h <= 2:
            few = blocks <= (1 if self.unusual else 2)
            return bool(few and speed <= 1.0 and np.max(self.condition, initial=1.0) <= 10.0)
        easy = blocks == 1 and speed <= 0.5 and np.max(self.condition) <= 4.0
        return bool(self.plain and h == 3 and easy)  # half a second; three for h = 5


class InvariantLoss:
    """f(θ) = ½‖GHᵀ − Y‖²/s² per block, s the typical size of GHᵀ at `point`, and Y as far away as GHᵀ is large.

    Examples
    --------
    >>> point = Pair([[2.0]], [[3.0]])
    >>> loss = InvariantLoss(point, np.random.default_rng(0))
    >>> bool(np.abs(loss.gradient(point).G * 2 - loss.gradient(point).H * 3).max() < 1e-12)
    True
    """

    def __init__(self, point: Pair, rng: np.random.Generator) -> None:
        self.size = typical_size(point.product)  # divided by twice rather than squared, which could overflow
        self.target: Array = point.product - self.size * rng.standard_normal(point.product.shape)

    def residual(self, place: Pair) -> Array:
        """R = (GHᵀ − Y)/s²."""
        return np.asarray((place.product - self.target) / self.size / self.size)

    def gradient(self, place: Pair) -> Pair:
        """The Euclidean gradient (RH, RᵀG)."""
        R = self.residual(place)
        return Pair.unchecked(R @ place.H, R.mT @ place.G)

    def hessian(self, place: Pair, v: Pair) -> Pair:
        """The Euclidean Hessian applied to v."""
        R = self.residual(place)
        change = (v.G @ place.H.mT + place.G @ v.H.mT) / self.size / self.size
        return Pair.unchecked(change @ place.H + R @ v.H, change.mT @ place.G + R.mT @ v.G)


def typical_size(factor: Array) -> Array:
    """Root mean square of the entries, per block; 1 for zeros.

    Examples
    --------
    >>> typical_size(np.array([[3.0], [4.0]])).round(12).item()
    3.535533905933
    """
    largest = np.abs(factor).max(axis=(-2, -1), keepdims=True)  # whose square can overflow
    unit = np.where(largest > 0, largest, 1.0)
    return np.asarray(unit * np.sqrt(np.mean((factor / unit) ** 2, axis=(-2, -1), keepdims=True)))


# What is generated -------------------------------------------------------------------------------------------------

Shape = tuple[tuple[int, ...], int, int, int]

SHAPES: tuple[Shape, ...] = (
    ((), 1, 1, 1), ((), 7, 4, 1), ((), 1, 5, 1), ((), 6, 1, 1), ((), 2, 2, 2), ((), 4, 4, 4), ((), 5, 4, 2),
    ((), 10, 9, 4), ((), 5, 12, 3), ((), 6, 6, 3), ((), 3, 8, 3), ((), 8, 3, 3), ((), 9, 8, 7), ((), 8, 8, 8),
    ((), 12, 11, 9), ((), 16, 16, 16), ((), 20, 19, 17), ((), 34, 33, 32), ((), 513, 511, 2),
    ((), 769, 769, 2), ((), 1025, 1023, 1), ((), 2050, 3, 1),
    ((1,), 5, 4, 2), ((3,), 7, 4, 1), ((20,), 1, 1, 1), ((4,), 25, 24, 6), ((2,), 6, 7, 2), ((3,), 5, 6, 3),
    ((5,), 5, 6, 2), ((6,), 5, 6, 2), ((2, 3), 6, 7, 2), ((1, 2), 4, 5, 3), ((3, 1), 4, 4, 2), ((2, 1, 3), 3, 4, 2),
    ((2, 2), 2, 2, 2), ((40,), 3, 2, 2), ((144,), 2, 2, 1), ((2, 17), 2, 1, 1),
    ((1, 2, 1, 2), 3, 2, 2), ((3,), 5, 4, 4),
)  # fmt: skip
LARGE_SHAPES: tuple[Shape, ...] = (
    ((), 66, 65, 64), ((12,), 65, 64, 16), ((2,), 257, 256, 64), ((), 2049, 2047, 3), ((), 40, 33, 33),
    ((2, 2, 2, 2), 3, 4, 2), ((70,), 2, 3, 1), ((3,), 130, 3, 3), ((), 100, 99, 48),
)  # fmt: skip
CONDITIONS: tuple[tuple[float, float], ...] = (
    (1.0, 1.0), (10.0, 10.0), (30.0, 30.0), (1.0, 100.0), (100.0, 1.0), (120.0, 120.0), (1e3, 1e3), (1e4, 1e4),
    (1e6, 1e6),
)  # fmt: skip
POINTS = ("random", "balanced", "orthonormal", "identity", "repeated", "clustered", "twins")
SCALES: dict[str, tuple[float, float]] = {
    "1": (1.0, 1.0), "1e6,1e-6": (1e6, 1e-6), "1e-6,1e6": (1e-6, 1e6), "1e6": (1e6, 1e6), "1e-6": (1e-6, 1e-6),
    "1e3,1": (1e3, 1.0), "1e-9": (1e-9, 1e-9), "blocks": (1.0, 1.0), "vectors": (1.0, 1.0),
}  # fmt: skip
KINDS = (
    "any", "zero", "zero-first", "zero-second", "zero-G", "zero-H", "horizontal", "vertical", "same", "equal",
    "orthogonal", "radial", "shared", "shared-first", "small", "tiny",
)  # fmt: skip
TIMES = (0.75, -2.0, 2.5, 0.0, 1.0, -0.75, 16.0, 0.0078125)
SHORT = {"small": 2.0**-30, "tiny": 2.0**-43}
"""How long such vectors are beside the point."""


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
        nearly; G = H.
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
        parts = ["".join(f"{'.'.join(map(str, batch))}-" if batch else "") + f"{n}x{m}x{h}", kappa]
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
            (self.point == "twins" and n != m)
            or (self.point in ("repeated", "clustered") and h < 2)
            or (self.scale == "blocks" and blocks < 2)
            or (h == 1 and self.conditions not in ((3.0, 3.0), (1.0, 1.0)))
        )


def recipes(profile: str, seed: int = 0) -> Iterator[Recipe]:
    """What a profile generates, simplest first: every value of every dimension, and some of them together."""
    shapes = SHAPES if profile == "quick" else SHAPES + LARGE_SHAPES
    yield from (Recipe(shape) for shape in shapes)
    probes: tuple[Shape, ...] = (((), 10, 9, 4), ((4,), 25, 24, 6))
    small: tuple[Shape, ...] = (((), 7, 4, 1), ((), 5, 4, 3), ((3,), 4, 3, 2))
    if profile == "full":
        probes += (((), 4, 4, 4), ((2, 2), 6, 7, 2))
        small += (((), 6, 6, 3), ((2,), 3, 8, 3))
    yield from (Recipe(shape, conditions) for conditions in CONDITIONS for shape in probes)
    yield from (Recipe(((), h + 2, h + 1, h), (30.0, 30.0)) for h in (12, 18, 32) + (profile == "full") * (64,))
    yield from (Recipe(shape, point=point) for point in POINTS[1:] for shape in (((), 6, 6, 4), ((2,), 5, 5, 2)))
    yield from (Recipe(shape, scale=scale) for scale in list(SCALES)[1:] for shape in (((), 10, 9, 4), ((3,), 7, 4, 1)))
    yield from (Recipe(shape, vectors=kind) for kind in KINDS[1:] for shape in small)
    yield from (Recipe(shape, vectors="shared", draw=1) for shape in small)
    yield from (Recipe(((), 5, 4, 2), vectors=kind) for kind in ("horizontal", "vertical"))
    yield from (Recipe(((), 6, 5, 4), t=t) for t in (TIMES[1], TIMES[2]))
    yield from (Recipe(shape, t=t) for t in TIMES[1:] for shape in (((), 5, 4, 2), ((2,), 7, 4, 1)))
    yield Recipe(((), 5, 4, 3), t=-TIMES[0])
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
    if recipe.point == "twins":
        H = G.copy()
    if recipe.point == "balanced":
        G, H = Pair(G, H).balanced()[0]
    sizes: list[Any] = list(SCALES[recipe.scale])
    if recipe.scale == "blocks":
        steps = np.resize([1.0, 1e-3, 1e3, 1e-2], int(np.prod(batch))).reshape(*batch, 1, 1)
        sizes = [steps, 1.0 / steps**0.5]
    return Pair(sizes[0] * G, sizes[1] * H)


def _factor(rng: np.random.Generator, batch: tuple[int, ...], rows: int, h: int, condition: float, kind: str) -> Array:
    """Random factors with singular values from 1 down to 1/condition, in random directions."""
    left = np.linalg.qr(rng.standard_normal((*batch, rows, h)))[0]
    right = np.linalg.qr(rng.standard_normal((*batch, h, h)))[0]
    spread = max(condition, 1.0) ** (-np.linspace(0.0, 1.0, h))
    if kind in ("repeated", "clustered"):
        spread = spread[np.arange(h) // 2]
    # Singular values that coincide would make every basis of the whole space as good as any other and hide mistakes.
    apart = {"repeated": 0.0, "clustered": 1e-9}.get(kind, 0.05)
    values = spread * (1.0 + apart * rng.standard_normal((*batch, h)))
    return np.asarray((left * values[..., None, :]) @ right.mT)


def rng_of(seed: int, name: str) -> np.random.Generator:
    """Random numbers that depend on the seed and a name only."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


# Vectors -----------------------------------------------------------------------------------------------------------


def make_case(
    name: str,
    metric: str,
    point: Pair,
    rng: np.random.Generator,
    dtype: str,
    seed: int = 0,
    relaxation: float = 0.0,
    given: Mapping[str, Pair] | None = None,
    t: float = TIMES[0],
    kind: str = "any",
    apart: bool = False,
) -> Case:
    """A case at `point`, with the `given` vectors and random ones of a kind for the rest, all rounded to `dtype`.

    With `apart` the vectors have sizes that are far from each other.

    Examples
    --------
    >>> make_case("mine", "inv", Pair([[2.0]], [[3.0]]), np.random.default_rng(0), "float32").point.G.item()
    2.0
    """
    point = representable(point, dtype)
    _refuse_extremes(point)
    space = pair_metric(metric, relaxation).at(point)
    vectors = _drawn(space, kind, rng)
    if kind.startswith("shared"):
        vectors |= _shared(point, seed, rng if kind == "shared-first" else None)
    if apart:
        vectors |= {name: vectors[name] * scale for name, scale in _APART.items()}
    if kind in SHORT:
        vectors |= {name: vectors[name] * SHORT[kind] for name in ("a", "b", "e", "v", "hessian_w", "hessian_v")}
    if abs(t) > 4.0:
        vectors["v"] = vectors["v"] * 0.0625
    vectors |= dict(given or {})
    if given and "a" in given and "v" not in given:
        vectors["v"] = given["a"]
    once = {id(pair): representable(pair, dtype) for pair in vectors.values()}  # vectors that are one object stay one
    rounded = {key: once[id(pair)] for key, pair in vectors.items()}
    return Case(name, metric, dtype, space, rounded, float(t), seed, plain=kind == "any" and not apart)


def _refuse_extremes(point: Pair) -> None:
    for part, factor in zip("GH", point, strict=True):
        size = np.abs(factor).max(initial=0.0)
        if factor.size == 0:
            raise ValueError(f"{part}: expected at least one number, got the empty shape {factor.shape}")
        if not 1e-75 < size < 1e75:
            raise ValueError(
                f"{part}: expected numbers of a size between 1e-75 and 1e75, whose products doubles can hold, got "
                f"{size:.1g} in shape {factor.shape}; divide by a power of two: the metrics are homogeneous"
            )


_APART = {"a": 1e4, "b": 1e-4, "e": 1e5, "v": 1e4, "hessian_v": 1e3, "hessian_w": 1e3}
"""Sizes of vectors that are far from each other."""


def _drawn(space: PairTangentSpace, kind: str, rng: np.random.Generator) -> dict[str, Pair]:
    """The vectors of a kind. The hessian's are always those of an invariant loss along a horizontal vector."""
    point = space.point
    a, b = (_curvature_sized(space, _like(point, rng)) for _ in range(2))
    e = Pair(*(rng.standard_normal(factor.shape) / typical_size(factor) for factor in point))
    loss = InvariantLoss(point, rng)
    h_v = horizontal_like(space, b, rng)  # of b, not of a: the projection of a is a value that is asked for
    zero = 0.0 * point
    if kind in ("horizontal", "orthogonal"):
        a, e = horizontal_like(space, a, rng), loss.gradient(point)
    if kind == "horizontal":
        b = horizontal_like(space, b, rng)
    if kind == "vertical":
        h = point.sizes[2]
        a, b = (_curvature_sized(space, space.vertical_vector(rng.standard_normal((h, h)))) for _ in range(2))
    if kind == "radial":
        a, b = 0.5 * point, -0.25 * point
    if kind == "orthogonal":
        along = space.inner_product(a, b) / space.inner_product(a, a)
        b = b - a * along
    if kind in ("zero-G", "zero-H"):
        keep = (0.0, 1.0) if kind == "zero-G" else (1.0, 0.0)
        a, b, e = (Pair.unchecked(keep[0] * x.G, keep[1] * x.H) for x in (a, b, e))
    if kind in ("zero", "zero-first"):
        a, e = zero, zero
        loss.target = point.product
    if kind in ("zero", "zero-second"):
        b, h_v = zero, zero
    if kind in ("same", "equal"):
        b = a if kind == "same" else Pair(*a)
    v = a if kind == "radial" else 0.25 * a
    return {
        "a": a, "b": b, "e": e, "v": v, "hessian_e": loss.gradient(point), "hessian_w": loss.hessian(point, h_v),
        "hessian_v": h_v,
    }  # fmt: skip


def _shared(point: Pair, seed: int, rng: np.random.Generator | None) -> dict[str, Pair]:
    """Vectors that are the same at every point of these shapes, for both metrics; but for the second, if drawn anew."""
    common = rng_of(seed, f"shared {point.G.shape} {point.H.shape}")
    a, b, e = (Pair(*(common.standard_normal(factor.shape) for factor in point)) for _ in range(3))
    if rng is not None:
        b = Pair(*(rng.standard_normal(factor.shape) for factor in point))
    return {"a": a, "b": b, "e": e, "v": 0.25 * a}


def _like(point: Pair, rng: np.random.Generator) -> Pair:
    """Gaussian, with the size of each factor."""
    return Pair(*(typical_size(factor) * rng.standard_normal(factor.shape) for factor in point))


def horizontal_like(space: PairTangentSpace, v: Pair, rng: np.random.Generator) -> Pair:
    """The horizontal part of `v`; another horizontal vector where that is next to nothing.

    Examples
    --------
    >>> space = pair_metric("inv").at(Pair([[1.0]], [[1.0]]))
    >>> bool(space.is_horizontal(horizontal_like(space, space.vertical_vector([[1.0]]), np.random.default_rng(0))))
    True
    """
    part, length = space.horizontal_projection(v), space.norm(v)
    drawn = space.random_tangent_vector(rng) * np.where(length > 0.0, length, space.norm(space.point))
    nearly_vertical = (space.norm(part) <= 0.1 * length)[..., None, None]
    return Pair.unchecked(*(np.where(nearly_vertical, y, x) for x, y in zip(part, drawn, strict=True)))


def _curvature_sized(space: PairTangentSpace, v: Pair) -> Pair:
    """Scaled so that Γ(v, v) is as long as v, and an error in Γ cannot hide in a geodesic."""
    bend = space.norm(space.christoffel(v))
    return v * (space.norm(v) / np.where(bend > 0, bend, 1.0))


# Where points come from --------------------------------------------------------------------------------------------

Lazy = tuple[str, Callable[[], Case]]


@dataclass(frozen=True)
class Points:
    """Where the test points of a run come from; says itself as a command line and as Python.

    Attributes
    ----------
    kind : "generated", "checkpoint", "given", "fuzz" or "files"
    profile, dtype : str
    seed : int
    relaxation : float
    options : dict
        What else the command line has to say: the checkpoint, its layout and heads; the examples of a search.
    source : object
        The state dict, or the named arrays of given points.
    """

    kind: str = "generated"
    profile: str = "quick"
    dtype: str = "float64"
    seed: int = 0
    relaxation: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    source: Any = None

    @classmethod
    def of_network(
        cls,
        checkpoint: str | Path | Mapping[str, Any],
        layout: str | None,
        heads: int | None,
        profile: str,
        dtype: str,
        seed: int,
        relaxation: float,
    ) -> Points:
        """The heads of a network, from a file or a state dict."""
        file = str(checkpoint) if isinstance(checkpoint, (str, Path)) else None
        options = {"checkpoint": file, "layout": layout, "heads": heads}
        return cls("checkpoint", profile, dtype, seed, relaxation, options, checkpoint)

    def cases(self, metric: str) -> Iterator[Lazy]:
        """The names of the points, each with the function that makes it."""
        if self.kind == "generated":
            yield from generated(self.profile, metric, self.dtype, self.seed, self.relaxation)
        elif self.kind == "given":
            for name, arrays in self.source.items():
                yield name, _later(given_case, name, metric, arrays, self.dtype, self.seed, self.relaxation)
        elif self.kind == "files":
            yield from ((case.name, lambda case=case: case) for case in self.source if case.metric == metric)
        elif self.kind == "checkpoint":
            for name, point in self._network().items():
                yield name, _later(_network_case, name, metric, point, self)

    def _network(self) -> dict[str, Pair]:
        from refgeo import networks

        layout = self.options.get("layout")
        if layout is None:
            raise ValueError(f"layout: a checkpoint needs one of {', '.join(networks.LAYOUTS)}")
        blocks = networks.read(self.source, layout, self.options.get("heads")).blocks
        return {name: block for name, block in blocks.items() if isinstance(block, Pair)}

    def __str__(self) -> str:
        text = {
            "generated": "generated points",
            "given": "given points",
            "checkpoint": f"{self.options.get('layout')} checkpoint",
            "fuzz": f"search with Hypothesis, {self.options.get('examples')} examples",
            "files": f"vectors in {self.options.get('directory')}",
        }[self.kind]
        return text + (f", ε = {self.relaxation:g}" if self.relaxation else "")

    def command(self) -> list[str] | None:
        """The options of a command line that makes the same points; None if there is none."""
        if self.kind not in ("generated", "checkpoint") or (self.kind == "checkpoint" and not self._named):
            return None
        import shlex

        words = [f"--dtype {self.dtype}"] if self.dtype != "float64" else []
        words += [f"--profile {self.profile}"] if self.profile != "quick" else []
        words += [f"--relaxation {self.relaxation:g}"] if self.relaxation else []
        return words + [f"--{key} {shlex.quote(str(x))}" for key, x in self.options.items() if x is not None]

    def python(self, case: str | None, arrays: Mapping[str, Any] | None = None) -> list[str]:
        """The arguments of `refgeo.check` that make one point again; `arrays`: those of a point that a search found."""
        words = [f"dtype={self.dtype!r}"] if self.dtype != "float64" else []
        words += [f"relaxation={self.relaxation!r}"] if self.relaxation else []
        if self.kind == "fuzz" and (case is None or arrays is None):
            return [*words, "profile='fuzz'", f"examples={self.options['examples']}"]  # one among many that passed
        if arrays is not None:
            literal = {name: np.asarray(array).tolist() for name, array in arrays.items()}
            return [*words, f"points={{{case!r}: {literal!r}}}"]
        if self.kind == "given":
            return [*words, f"points={{{case!r}: points[{case!r}]}}"]
        words += [f"profile={self.profile!r}"] if self.profile != "quick" else []
        if self.kind == "checkpoint":
            words += [f"{key}={x!r}" for key, x in self.options.items() if x is not None]
            words += [] if self._named else ["checkpoint=state_dict"]
        return [*words, f"cases={[case]!r}"] if case is not None else words

    @property
    def _named(self) -> bool:
        return self.options.get("checkpoint") is not None


def _later(make: Callable[..., Case], *arguments: Any) -> Callable[[], Case]:
    return lambda: make(*arguments)


@lru_cache(maxsize=6)
def generated(profile: str, metric: str, dtype: str, seed: int, relaxation: float) -> tuple[Lazy, ...]:
    """The points of a profile; made on first use and kept, with their enclosures, for the next run in this process."""
    found = dict.fromkeys(recipe for recipe in recipes(profile, seed) if recipe.possible)

    def lazy(recipe: Recipe) -> Lazy:
        return recipe.name, lru_cache(maxsize=1)(lambda: build(recipe, metric, dtype, seed, relaxation))

    return tuple(lazy(recipe) for recipe in found if _fits(recipe, dtype))


def _fits(recipe: Recipe, dtype: str) -> bool:
    """Whether its numbers and the products of six of them are within the range of the dtype."""
    scale = max(abs(np.log(size)) for size in SCALES[recipe.scale])
    scale = np.log(1e3) if recipe.scale in ("blocks", "vectors") else scale
    return bool(6.0 * scale <= np.log(PRECISIONS[dtype].largest))


def _network_case(name: str, metric: str, point: Pair, points: Points) -> Case:
    """A block of a network, with random vectors."""
    try:
        return make_case(name, metric, point, rng_of(points.seed, name), points.dtype, points.seed, points.relaxation)
    except RankDeficientError as error:
        raise RankDeficientError(f"{name}: {error}", error.block, error.smallest_singular_value) from error


def given_case(
    name: str, metric: str, arrays: Mapping[str, npt.ArrayLike], dtype: str, seed: int = 0, relaxation: float = 0.0
) -> Case:
    """A case from named arrays: ``G``, ``H`` and any of `GIVEN`; the vectors that are missing are drawn.

    Raises
    ------
    ValueError
        An array is missing, unknown, of the wrong shape or not real.

    Examples
    --------
    >>> one = {"G": [[2.0]], "H": [[3.0]], "a_G": [[1.0]], "a_H": [[0.0]]}
    >>> given_case("mine", "inv", one, "float64").vectors["a"].G.item()
    1.0
    """
    unknown = sorted(set(arrays) - {"G", "H", *GIVEN})
    if unknown:
        raise ValueError(f"point {name}: unknown array {unknown[0]!r}; expected G, H and any of {', '.join(GIVEN)}")
    if "G" not in arrays or "H" not in arrays:
        raise ValueError(f"point {name}: expected the arrays G and H, got {', '.join(sorted(arrays)) or 'nothing'}")
    try:
        point = Pair(arrays["G"], arrays["H"])
        given = {}
        for vector in VECTORS:
            parts = [arrays[f"{vector}_{part}"] for part in "GH" if f"{vector}_{part}" in arrays]
            if len(parts) == 1:
                raise ValueError(f"{vector}_G and {vector}_H go together, got one of them")
            if parts:
                given[vector] = _tangent(vector, Pair(*parts), point)
        hessian = [vector for vector in given if vector.startswith("hessian")]
        if len(hessian) not in (0, 3):
            raise ValueError(f"hessian_e, hessian_w and hessian_v go together, got {' and '.join(hessian)}")
        t = _time(arrays["t"], dtype) if "t" in arrays else TIMES[0]
        case = make_case(name, metric, point, rng_of(seed, name), dtype, seed, relaxation, given, t)
        slack = 200 * PRECISIONS[dtype].roundoff * np.max(case.condition, initial=1.0)
        if hessian and not np.all(case.space.is_horizontal(case.vectors["hessian_v"], float(slack))):
            raise ValueError(f"hessian_v: expected a horizontal vector of {metric}; use horizontal_projection")
    except RankDeficientError as error:
        raise RankDeficientError(f"point {name}: {error}", error.block, error.smallest_singular_value) from error
    except ValueError as error:
        raise ValueError(f"point {name}: {error}") from error
    return case


def _time(value: npt.ArrayLike, dtype: str) -> float:
    return float(PRECISIONS[dtype].rounded(np.array(number("t", value))))


def _tangent(name: str, v: Pair, point: Pair) -> Pair:
    if (v.G.shape, v.H.shape) != (point.G.shape, point.H.shape):
        raise ValueError(
            f"{name}_G and {name}_H: expected the shapes of G and H, {point.G.shape} and {point.H.shape}, got "
            f"{v.G.shape} and {v.H.shape}"
        )
    return v


# What can be said of a call ----------------------------------------------------------------------------------------


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

    def zero(self, i: int) -> bool:
        """Whether a vector is zero."""
        return len(self.vectors) > i and not any(np.any(x) for x in self.vectors[i])

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


def _pairwise(s: Situation) -> bool:
    if len(s.vectors) < 2 or s.zero(0) or s.zero(1):
        return False
    return all(np.array_equal(x, y) for x, y in zip(s.vectors[0], s.vectors[1], strict=True))


def _is_vertical(s: Situation) -> bool:
    """Whether the first vector leaves the product G Hᵀ as it is."""
    if not s.vectors or s.zero(0):
        return False
    v = s.vectors[0]
    change, terms = v.G @ s.H.mT + s.G @ v.H.mT, np.linalg.norm(v.G) * np.linalg.norm(s.H)
    return bool(np.linalg.norm(change) <= 1e-5 * terms)


def _is_horizontal(s: Situation) -> bool:
    """Whether the first vector satisfies the equation of horizontal vectors (mathematics: inv ξ_GᵀGT = SHᵀξ_H)."""
    if not s.vectors or s.zero(0) or s.sizes[2] > 8:
        return False
    v, S, T = s.vectors[0], _gram(s.G), _gram(s.H)
    left, right = v.G.mT @ s.G @ T, S @ s.H.mT @ v.H
    if s.metric == "mix":
        left, right = s.G.mT @ v.G @ T, S @ v.H.mT @ s.H
    return bool(np.linalg.norm(left - right) <= 1e-4 * (np.linalg.norm(left) + np.linalg.norm(right)) > 0.0)


def _are_orthogonal(s: Situation) -> bool:
    if len(s.vectors) < 2 or s.zero(0) or s.zero(1):
        return False
    space = pair_metric(s.metric).at(Pair(s.G, s.H))
    product = space.inner_product(s.vectors[0], s.vectors[1])
    return bool(np.all(np.abs(product) <= 1e-5 * space.norm(s.vectors[0]) * space.norm(s.vectors[1])))


def _gram(factor: Array) -> Array:
    return factor.mT @ factor


PROPERTIES: dict[str, Callable[[Situation], bool]] = {
    "without leading dimensions": lambda s: not s.batch,
    "with leading dimensions (batches)": lambda s: bool(s.batch),
    "with more than one block": lambda s: _blocks(s) > 1,
    "with one leading dimension": lambda s: len(s.batch) == 1,
    "with two leading dimensions": lambda s: len(s.batch) == 2,
    "with three leading dimensions": lambda s: len(s.batch) == 3,
    "with four leading dimensions": lambda s: len(s.batch) == 4,
    "with a leading dimension of size 1": lambda s: 1 in s.batch,
    "with unequal leading dimensions": lambda s: len(set(s.batch)) > 1,
    "with more than 32 blocks": lambda s: _blocks(s) > 32,
    "with more than 64 blocks": lambda s: _blocks(s) > 64,
    "with as many blocks as columns": lambda s: bool(s.batch) and s.batch[-1] == s.sizes[2] > 1,
    "with as many blocks as rows of G": lambda s: bool(s.batch) and s.batch[-1] == s.sizes[0] > 1,
    "with as many blocks as rows of H": lambda s: bool(s.batch) and s.batch[-1] == s.sizes[1] > 1,
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
    "for h ≥ 8": lambda s: s.sizes[2] >= 8,
    "for h > 8": lambda s: s.sizes[2] > 8,
    "for h ≥ 16": lambda s: s.sizes[2] >= 16,
    "for h > 16": lambda s: s.sizes[2] > 16,
    "for h ≥ 32": lambda s: s.sizes[2] >= 32,
    "for more than 512 rows": lambda s: max(s.sizes[:2]) > 512,
    "for more than 1,024 rows": lambda s: max(s.sizes[:2]) > 1024,
    "for more than 2,048 rows": lambda s: max(s.sizes[:2]) > 2048,
    "for rows that are a multiple of 8": lambda s: s.sizes[0] % 8 == 0,
    "for rows that are no multiple of 8": lambda s: s.sizes[0] > 8 and s.sizes[0] % 8 != 0,
    "where the first vector is zero": lambda s: s.zero(0),
    "where the last vector is zero": lambda s: s.zero(len(s.vectors) - 1),
    "where the G part of a vector is zero": lambda s: any(np.any(v.H) and not np.any(v.G) for v in s.vectors),
    "where the H part of a vector is zero": lambda s: any(np.any(v.G) and not np.any(v.H) for v in s.vectors),
    "where both vectors are the same": _pairwise,
    "where the vectors are orthogonal": _are_orthogonal,
    "where the vector is vertical": _is_vertical,
    "where the vector is horizontal": _is_horizontal,
    "where a vector is much longer than the point": lambda s: max(s.lengths(), default=0.0) > 1e3,
    "where the vectors are much shorter than the point": lambda s: 0.0 < max(s.lengths(), default=0.0) < 1e-6,
    "where the vectors have different sizes": lambda s: (
        len(s.vectors) > 1 and min(s.lengths()) > 0.0 and max(s.lengths()) > 1e6 * min(s.lengths())
    ),
    "for balanced factors": lambda s: bool(
        np.linalg.norm(_gram(s.G) - _gram(s.H)) <= 1e-5 * np.linalg.norm(_gram(s.G))
    ),
    "for factors with orthonormal columns": lambda s: all(
        np.allclose(x, 1.0, rtol=0.0, atol=1e-5) for x in s.singular_values
    ),
    "for Gram matrices that are diagonal": lambda s: (
        s.sizes[2] > 1 and all(np.count_nonzero(S - np.eye(s.sizes[2]) * S) == 0 for S in (_gram(s.G), _gram(s.H)))
    ),
    "for singular values that repeat": _repeated,
    "for G = H": lambda s: s.G.shape == s.H.shape and np.array_equal(s.G, s.H),
    "where a factor is tiny": lambda s: bool(np.min(_largest(s.G)) < 1e-4 or np.min(_largest(s.H)) < 1e-4),
    "where a factor is huge": lambda s: bool(np.max(_largest(s.G)) > 1e4 or np.max(_largest(s.H)) > 1e4),
    "where both factors are tiny": lambda s: bool(np.max(_largest(s.G)) < 1e-4 and np.max(_largest(s.H)) < 1e-4),
    "where both factors are huge": lambda s: bool(np.min(_largest(s.G)) > 1e4 and np.min(_largest(s.H)) > 1e4),
    "where the factors have different sizes": lambda s: not 0.01 < np.linalg.norm(s.G) / np.linalg.norm(s.H) < 100.0,
    "where the blocks of a batch have different sizes": lambda s: bool(
        np.max(_largest(s.G)) > 100.0 * np.min(_largest(s.G))
    ),
    "for κ < 2": lambda s: s.kappa < 2.0,
    "for κ > 8": lambda s: s.kappa > 8.0,
    "for κ > 20": lambda s: s.kappa > 20.0,
    "for κ > 50": lambda s: s.kappa > 50.0,
    "for κ > 100": lambda s: s.kappa > 100.0,
    "for t = 0": lambda s: s.t == 0.0,
    "for t < 0": lambda s: s.t is not None and s.t < 0.0,
    "for t < -1": lambda s: s.t is not None and s.t < -1.0,
    "for t short, 0 < |t| < 0.1": lambda s: s.t is not None and 0.0 < abs(s.t) < 0.1,
    "for t = 1": lambda s: s.t == 1.0,
    "for t ≠ 1": lambda s: s.t is not None and s.t != 1.0,
    "for t > 1": lambda s: s.t is not None and s.t > 1.0,
    "for t > 10": lambda s: s.t is not None and s.t > 10.0,
}
"""What can be said of a call; each a dimension that the generated points cover."""


def situation(case: Case, operation: Operation) -> Situation:
    """What an operation gets at a case.

    Examples
    --------
    >>> from refgeo.operations import OPERATIONS
    >>> case = build(Recipe(((), 5, 4, 2)), "inv", "float64", 0)
    >>> PROPERTIES["for n > m"](situation(case, OPERATIONS["geodesic"]))
    True
    """
    t = case.t if "t" in operation.extra else None
    return Situation(case.metric, case.point.G, case.point.H, tuple(case.inputs(operation)), t)
