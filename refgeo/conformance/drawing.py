"""The vectors of a case: drawn at random, of a kind, and rounded to the dtype under test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import numpy as np

from refgeo.arguments import Array
from refgeo.conformance.case import Case
from refgeo.conformance.precision import representable
from refgeo.metrics.pair import PairTangentSpace, pair_metric
from refgeo.operations import relative_speed
from refgeo.pair import Pair

KINDS = (
    "any", "zero", "zero-first", "zero-second", "zero-G", "zero-H", "horizontal", "vertical", "same", "equal",
    "orthogonal", "radial", "shared", "shared-first", "small", "tiny", "fast", "zero-block", "zero-row",
    "near-horizontal", "nearer-horizontal", "near-orthogonal", "nearer-orthogonal", "nearly-equal", "nearer-equal",
    "rows", "opposite", "sparse", "zero-column", "radial-first", "near-critical", "vertical-first", "near-vertical",
    "normal", "small-G", "small-H", "one-hot", "rank-one", "equal-G",
)  # fmt: skip
TIMES = (0.75, -2.0, 2.5, 0.0, 1.0, -0.75, 1000.0, 0.0078125, 0.3, -1000.0, 2.0**-12)
LENGTHS = {"small": 2.0**-30, "tiny": 2.0**-43, "long": 2.0**40}
"""How long such vectors are beside the point."""
_VERTICAL_PARTS = {"near-horizontal": 2.0**-23, "nearer-horizontal": 2.0**-33}
"""Of the first vector, beside its length."""
_PARALLEL_PARTS = {"near-orthogonal": 2.0**-23, "nearer-orthogonal": 2.0**-31}
"""Of the second vector along the first, beside its length."""
_DIFFERENCES = {"nearly-equal": 2.0**-21, "nearer-equal": 2.0**-33}
"""Of two vectors, beside their length."""
_SIZES_OF_PARTS = {
    "zero-G": (0.0, 1.0), "zero-H": (1.0, 0.0), "small-G": (2.0**-16, 1.0), "small-H": (1.0, 2.0**-16),
}  # fmt: skip
_OFF_VERTICAL = 2.0**-12
"""Of another vector that is added to a vertical one."""
_NEARLY_CRITICAL = 2.0**-27
"""How long the gradient is then, beside what it is elsewhere."""
_SIZES_OF_ROWS: dict[str, Callable[[int], Array]] = {
    "rows": lambda count: np.geomspace(1.0, 2.0**-24, count),
    "zero-row": lambda count: np.minimum(np.arange(count), 1.0),
}


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
    if kind in LENGTHS:
        vectors |= {name: vectors[name] * LENGTHS[kind] for name in ("a", "b", "e", "v", "hessian_w", "hessian_v")}
    if abs(t) > 4.0:
        vectors["v"] = vectors["v"] / abs(t)
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
    if kind == "near-critical":
        loss.target = point.product + _NEARLY_CRITICAL * (loss.target - point.product)
    h_v = horizontal_like(space, b, rng)  # of b, not of a: the projection of a is a value that is asked for
    zero = 0.0 * point
    if kind in ("horizontal", "orthogonal"):
        a, e = horizontal_like(space, a, rng), loss.gradient(point)
    if kind == "horizontal":
        b = horizontal_like(space, b, rng)
    if kind in ("vertical", "vertical-first", "near-vertical"):
        h = point.sizes[2]
        verticals = [_curvature_sized(space, space.vertical_vector(rng.standard_normal((h, h)))) for _ in range(2)]
        a = verticals[0] + a * (_OFF_VERTICAL * (kind == "near-vertical"))
        b = verticals[1] if kind == "vertical" else b
    if kind == "normal":
        a, b, e = (Pair(*(x - F @ (np.linalg.pinv(F) @ x) for x, F in zip(v, point, strict=True))) for v in (a, b, e))
    if kind == "radial":
        a, b = 0.5 * point, -0.25 * point
    if kind == "radial-first":
        a = 0.5 * point
    if kind == "orthogonal" or kind in _PARALLEL_PARTS:
        along = space.inner_product(a, b) / space.inner_product(a, a)
        b = b - a * along
    if kind in _PARALLEL_PARTS:
        b = b + a * (_PARALLEL_PARTS[kind] * space.norm(b) / space.norm(a))
    if kind in _SIZES_OF_PARTS:
        keep = _SIZES_OF_PARTS[kind]
        a, b, e = (Pair.unchecked(keep[0] * x.G, keep[1] * x.H) for x in (a, b, e))
    if kind in ("zero", "zero-first"):
        a, e = zero, zero
        loss.target = point.product
    if kind in ("zero", "zero-second"):
        b, h_v = zero, zero
    if kind in ("same", "equal"):
        b = a if kind == "same" else Pair(*a)
    if kind in _VERTICAL_PARTS:
        h = point.sizes[2]
        vertical = space.vertical_vector(rng.standard_normal((h, h)))
        a = horizontal_like(space, a, rng)
        a = a + vertical * (_VERTICAL_PARTS[kind] * space.norm(a) / space.norm(vertical))
    if kind == "opposite":
        b = -a
    if kind in _DIFFERENCES:
        b = a + _DIFFERENCES[kind] * b
    if kind == "equal-G":
        b = Pair(a.G, b.H)
    if kind == "one-hot":
        a, b, e = (Pair(v.G * _corner(v.G.shape), 0.0 * v.H) for v in (a, b, e))
    if kind == "rank-one":
        a, b, e = (Pair(*(x[..., :, :1] * x[..., :1, :] for x in v)) for v in (a, b, e))
    if kind == "sparse":
        a, b, e = (Pair(*(x * (rng.random(x.shape) < 0.3) for x in v)) for v in (a, b, e))
    if kind == "zero-column":
        a, e = (Pair(*(x * (np.arange(x.shape[-1]) > 0) for x in v)) for v in (a, e))
    if kind in _SIZES_OF_ROWS:
        a, b, e = (Pair(*(_SIZES_OF_ROWS[kind](x.shape[-2])[:, None] * x for x in v)) for v in (a, b, e))
    if kind == "zero-block":
        others = np.arange(int(np.prod(point.block_shape))).reshape(point.block_shape) > 0
        a, b, e, h_v = (x * np.where(others, 1.0, 0.0) for x in (a, b, e, h_v))
    v = a if kind == "radial" else 0.25 * a
    if kind == "fast":  # as fast as exact geodesics are still enclosed
        v = a * (6.0 / relative_speed(space, a))
    return {
        "a": a, "b": b, "e": e, "v": v, "hessian_e": loss.gradient(point), "hessian_w": loss.hessian(point, h_v),
        "hessian_v": h_v,
    }  # fmt: skip


def _corner(shape: tuple[int, ...]) -> Array:
    """One in the first row and column, zero elsewhere."""
    return np.outer(np.arange(shape[-2]) == 0, np.arange(shape[-1]) == 0)


def _shared(point: Pair, seed: int, rng: np.random.Generator | None) -> dict[str, Pair]:
    """Vectors that depend on the seed and the shapes only; with `rng`, b is drawn anew."""
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


def rng_of(seed: int, name: str) -> np.random.Generator:
    """Random numbers that depend on the seed and a name only."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
