"""The vectors of a case: drawn at random, of a kind, and rounded to the dtype under test."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.operations import relative_speed
from refgeo.conformance.precision import representable
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.support.arguments import Array


@dataclass(frozen=True)
class Kind:
    """How the vectors of a case lie beside its point and beside each other.

    Attributes
    ----------
    first : "any", "zero", "horizontal", "vertical" or "radial"
        What a is, v along with it, and e where that has a meaning.
    second : "any", "zero", "same" (one array), "equal", "opposite" or "orthogonal"
        What b is beside a.
    off : float
        What else is added to the one that is special, beside its length.
    length : float
        Beside the point; infinite: as fast as exact geodesics are still enclosed.
    parts : (float, float)
        Sizes of the G and H parts.
    zeros : "", "block", "row" or "sparse"
    critical : float
        How long the gradient of the Hessian's loss is, beside what it is elsewhere.
    """

    first: str = "any"
    second: str = "any"
    off: float = 0.0
    length: float = 1.0
    parts: tuple[float, float] = (1.0, 1.0)
    zeros: str = ""
    critical: float = 1.0


KINDS = {
    "any": Kind(),
    "zero": Kind("zero", "zero"),
    "zero-first": Kind("zero"),
    "zero-second": Kind(second="zero"),
    "zero-G": Kind(parts=(0.0, 1.0)),
    "zero-H": Kind(parts=(1.0, 0.0)),
    "small-G": Kind(parts=(2.0**-16, 1.0)),
    "zero-block": Kind(zeros="block"),
    "zero-row": Kind(zeros="row"),
    "sparse": Kind(zeros="sparse"),
    "horizontal": Kind("horizontal"),
    "near-horizontal": Kind("horizontal", off=2.0**-23),
    "nearer-horizontal": Kind("horizontal", off=2.0**-33),
    "vertical": Kind("vertical"),
    "near-vertical": Kind("vertical", off=2.0**-12),
    "radial": Kind("radial"),
    "same": Kind(second="same"),
    "equal": Kind(second="equal"),
    "nearly-equal": Kind(second="equal", off=2.0**-21),
    "opposite": Kind(second="opposite"),
    "orthogonal": Kind(second="orthogonal"),
    "near-orthogonal": Kind(second="orthogonal", off=2.0**-23),
    "small": Kind(length=2.0**-30),
    "tiny": Kind(length=2.0**-43),
    "long": Kind(length=2.0**40),
    "fast": Kind(length=np.inf),
    "near-critical": Kind(critical=2.0**-27),
}
TIMES = (0.75, -2.0, 2.5, 0.0, 1.0, -0.75, 1000.0, 0.3, 2.0**-8, 1e-7)
FASTEST = 7.9
"""How far, relatively, exact geodesics go that are still enclosed."""
_APART = {"a": 1e4, "b": 1e-4, "e": 1e5, "v": 1e4, "hessian_v": 1e3, "hessian_w": 1e3}
"""Sizes of vectors that are far from each other."""


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
    vectors = _drawn(space, KINDS[kind], rng, t)
    if apart:
        vectors |= {name: vectors[name] * scale for name, scale in _APART.items()}
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
                f"{part}: expected a largest absolute value between 1e-75 and 1e75, so that double precision can hold "
                f"products, got {size:.1g} in shape {factor.shape}; multiply {part} by a power of two, which "
                "multiplies each result by a known power of two"
            )


def _drawn(space: PairTangentSpace, kind: Kind, rng: np.random.Generator, t: float) -> dict[str, Pair]:
    """The vectors of a kind. The hessian's are always those of an invariant loss along a horizontal vector."""
    point = space.point
    a, b = (_curvature_sized(space, _like(point, rng)) for _ in range(2))
    e = Pair(*(rng.standard_normal(factor.shape) / typical_size(factor) for factor in point))
    loss = InvariantLoss(point, rng, 0.0 if kind.first == "zero" else kind.critical)
    h_v = horizontal_like(space, b, rng)  # of b, not of a: the projection of a is a value that is asked for
    h = point.sizes[2]
    vertical = _curvature_sized(space, space.vertical_vector(rng.standard_normal((h, h))))
    a, beside = {
        "any": (a, b), "zero": (0.0 * a, 0.0 * b), "horizontal": (horizontal_like(space, a, rng), vertical),
        "vertical": (vertical, a), "radial": (0.5 * point, a),
    }[kind.first]  # fmt: skip
    if kind.first != "any" and kind.off:
        a = a + beside * (kind.off * space.norm(a) / space.norm(beside))
    if kind.first in ("zero", "horizontal"):  # a covector of the same kind
        e = loss.gradient()
    if kind.second == "orthogonal":
        b = b - a * (space.inner_product(a, b) / space.inner_product(a, a))
        b = b + a * (kind.off * space.norm(b) / space.norm(a))
    elif kind.second == "zero":
        b, h_v = 0.0 * b, 0.0 * h_v
    elif kind.second != "any":
        b = {"same": a, "equal": Pair(*a) + kind.off * b, "opposite": -a}[kind.second]
    mask = _mask(kind.zeros, rng)
    if kind.parts != (1.0, 1.0) or kind.zeros:
        masked = (Pair(*(part * x * mask(x) for part, x in zip(kind.parts, v, strict=True))) for v in (a, b, e))
        a, b, e = masked
    if kind.zeros == "block":
        h_v = Pair(*(x * mask(x) for x in h_v))
    fastest = FASTEST / max(abs(t), 1e-3) / relative_speed(space, a) if kind.length == np.inf else None
    v = a * (fastest if fastest is not None else 1.0 if kind.first == "radial" else 0.25)
    length = kind.length if np.isfinite(kind.length) else 1.0
    once = {id(x): length * x for x in (a, b)}  # vectors that are one object stay one
    h_v = length * h_v
    return {
        "a": once[id(a)], "b": once[id(b)], "e": length * e, "v": length * v, "hessian_e": loss.gradient(),
        "hessian_w": loss.hessian(h_v), "hessian_v": h_v,
    }  # fmt: skip


def _mask(zeros: str, rng: np.random.Generator) -> Callable[[Array], Any]:
    """What a factor is multiplied by, to have zeros of this kind."""
    masks: dict[str, Callable[[Array], Any]] = {
        "": lambda x: 1.0, "block": _all_but_the_first_block, "row": lambda x: np.arange(x.shape[-2])[:, None] > 0,
        "sparse": lambda x: rng.random(x.shape) < 0.3,
    }  # fmt: skip
    return masks[zeros]


def _all_but_the_first_block(x: Array) -> Array:
    blocks = x.shape[:-2]
    return 1.0 * (np.arange(int(np.prod(blocks))).reshape(blocks) > 0)[..., None, None]


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
    """f(θ) = ½‖PGHᵀQᵀ/s − Z‖² per block, with derivatives at `point`: P and Q are a few random combinations of rows.

    s is the typical size of PGHᵀQᵀ, and the residual R = PGHᵀQᵀ/s − Z is as large as `residual`.

    Examples
    --------
    >>> point = Pair([[2.0]], [[3.0]])
    >>> e = InvariantLoss(point, np.random.default_rng(0)).gradient()
    >>> bool(np.abs(e.G * 2 - e.H * 3).max() < 1e-12)
    True
    """

    def __init__(self, point: Pair, rng: np.random.Generator, residual: float = 1.0) -> None:
        count = point.sizes[2] + 2
        self.P, self.Q = (
            rng.standard_normal((*point.block_shape, count, factor.shape[-2])) / np.sqrt(factor.shape[-2])
            for factor in point
        )
        self.PG, self.QH = self.P @ point.G, self.Q @ point.H
        self.size = typical_size(self.PG @ self.QH.mT)
        self.R = residual * rng.standard_normal((*point.block_shape, count, count))

    def gradient(self) -> Pair:
        """The Euclidean gradient (PᵀRQH/s, QᵀRᵀPG/s)."""
        return self._back(self.R @ self.QH, self.R.mT @ self.PG)

    def hessian(self, v: Pair) -> Pair:
        """The Euclidean Hessian applied to v."""
        Pv, Qv = self.P @ v.G, self.Q @ v.H
        change = (Pv @ self.QH.mT + self.PG @ Qv.mT) / self.size
        return self._back(change @ self.QH + self.R @ Qv, change.mT @ self.PG + self.R.mT @ Pv)

    def _back(self, of_G: Array, of_H: Array) -> Pair:
        return Pair.unchecked(self.P.mT @ (of_G / self.size), self.Q.mT @ (of_H / self.size))


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
