"""Draw the random factors and vectors of test points."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from refgeo.conformance.points.features import Features
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_space import PairTangentSpace, relative_speed
from refgeo.support.arguments import Array

_UNEVEN_EXPONENTS = (0.0, -1.0, 0.5, -1.0 / 3.0)
"""Exponents of the sizes of uneven blocks: smaller and larger ones."""


def rng_of(seed: int, name: str) -> np.random.Generator:
    """Return a generator that depends on the seed and a name only."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def draw_factors(f: Features, rng: np.random.Generator) -> Pair:
    """Draw the factors with these features."""
    above = [*[(0, 0)] * len(f.blocks), (f.zero_rows, 0), (0, 0)]
    G, H = (
        np.pad(_factor(f, rng, rows - f.zero_rows, k), above)
        for rows, k in ((f.n, f.condition_G), (f.m, f.condition_H))
    )
    if f.alike:
        H = G.copy()
    if f.identity:
        G, H = (
            np.tile(np.eye(x.shape[-2], f.h), (*f.blocks, 1, 1)) if f.identity in (i, 3) else x
            for i, x in enumerate((G, H), 1)
        )
    if f.normed:
        G, H = (x / np.linalg.norm(x, axis=-2, keepdims=True) for x in (G, H))
    if f.shared in ("G", "H", "all"):
        first = (0,) * len(f.blocks)
        G, H = (
            np.tile(x[first], (*f.blocks, 1, 1)) if f.shared in (part, "all") else x for part, x in (("G", G), ("H", H))
        )
    elif f.shared:
        count = max(min(f.n, f.m) // 2, 1)
        H[..., :count, :] = G[..., f.n - count :, :]
    if f.balance:
        balanced = Pair(G, H).balanced()[0]
        G, H = (x + (1.0 - f.balance) * (x + 1.0) * rng.standard_normal(x.shape) for x in balanced)
    sizes = (f.uneven ** np.resize(_UNEVEN_EXPONENTS, math.prod(f.blocks))).reshape(*f.blocks, 1, 1)
    return Pair(f.size_G * G * sizes, f.size_H * H / sizes**0.5)


def _factor(f: Features, rng: np.random.Generator, rows: int, condition: float) -> Array:
    """Draw a factor with singular values from 1 to 1/condition, in random directions or along the axes."""
    shape = (*f.blocks, rows, f.h)
    if f.turn < 1.0:
        plain = np.tile(np.eye(rows, f.h) * np.linspace(2.0, 1.0, f.h), (*f.blocks, 1, 1))
        return np.asarray(plain + f.turn * (plain + 1.0) * rng.standard_normal(shape))
    left, right = (np.linalg.qr(rng.standard_normal((*f.blocks, k, f.h)))[0] for k in (rows, f.h))
    share: Any = 1.0
    if f.uneven_condition > 1.0:
        share, condition = np.linspace(0.0, 1.0, math.prod(f.blocks)).reshape(*f.blocks, 1), f.uneven_condition
    each = 1 if f.gap == Features.gap else 2  # so many singular values are equal, or nearly so
    steps = np.repeat(np.linspace(0.0, 1.0, -(-f.h // each)), each)[: f.h]
    sizes = condition ** (-share * steps)
    # Singular values that coincide would make every basis of the whole space as good as any other and hide mistakes.
    values = sizes * (1.0 + f.gap * rng.standard_normal((*f.blocks, f.h)))
    return np.asarray((left * values[..., None, :]) @ right.mT)


def draw_vectors(space: PairTangentSpace, f: Features, rng: np.random.Generator, t: float) -> dict[str, Pair]:
    """Draw the vectors with these features; those of the Hessian belong to an invariant loss."""
    point, h = space.point, space.point.sizes[2]
    a, b = (_scale_to_curvature(space, like(point, rng)) for _ in range(2))
    e = Pair(*(rng.standard_normal(factor.shape) / typical_size(factor) for factor in point))
    # the Hessian's vector is made of b: made of a, it would be a projection that is judged, too
    loss = InvariantLoss(point, rng, 0.0 if f.length == 0.0 or f.ratio == math.inf else f.slope)
    h_v = horizontal_like(space, b, rng)

    def tilt(v: Pair, share: float) -> Pair:
        vertical = _scale_to_curvature(space, space.vertical_vector(rng.standard_normal((h, h))))
        return _at_angle(space, horizontal_like(space, v, rng), vertical, share) * space.norm(v)

    if f.radial == 1.0:
        a = 0.5 * point
    elif f.radial:
        across = a - point * (space.inner_product(a, point) / space.inner_product(point, point))
        a = _at_angle(space, across, point, f.radial) * space.norm(a)
    elif f.vertical is not None:
        a, b = tilt(a, f.vertical), tilt(b, f.vertical) if rng.random() < 0.5 else b
        e = loss.gradient() if f.vertical < 0.5 else e  # a covector of the same kind
    if f.cosine is not None and abs(f.cosine) == 1.0:
        b = f.cosine * Pair(*a)
    elif f.cosine is not None:
        across = b - a * (space.inner_product(a, b) / space.inner_product(a, a))
        b = _at_angle(space, across, a, f.cosine) * space.norm(b)

    def mask(v: Pair) -> Pair:
        return Pair(*(_mask(f, x.shape, rng) * _part_size(f.part, i) * x for i, x in enumerate(v)))

    if f.part != 1.0 or f.sparse or f.empty_rows or f.empty_blocks:
        a, b, e = map(mask, (a, b, e))
        h_v = Pair(*(_mask(Features(f.blocks, empty_blocks=f.empty_blocks), x.shape, rng) * x for x in h_v))
        h_v = _one_sided_vector(point, h_v, f.part)
    h_v = h_v * (f.length * (0.0 if f.ratio == 0.0 else 1.0))
    speed = 1.0 if f.radial == 1.0 else 0.25
    v = a * (speed if f.speed is None else f.speed / max(abs(t), 1e-3) / relative_speed(space, a)) * f.length
    a, b, e = f.length * a, (f.length if f.ratio == math.inf else f.length * f.ratio) * b, f.length * e
    if f.ratio == math.inf:
        a, v, e = 0.0 * a, 0.0 * v, 0.0 * e
    if abs(t) > 4.0:
        v = v / abs(t)
    growth = 1.0 + 2.0 * t * space.inner_product(v, point) / space.inner_product(point, point)
    if f.radial == 1.0 and np.any(growth <= 0.0):
        v = -1.0 * v  # otherwise, X = G Hᵀ would shrink to 0 before t, where the manifold ends in mix
    return {
        "a": a, "b": a if f.same else b, "e": e, "v": v, "hessian_e": loss.gradient(), "hessian_w": loss.hessian(h_v),
        "hessian_v": h_v,
    }  # fmt: skip


def _one_sided_vector(point: Pair, v: Pair, part: float) -> Pair:
    """Return a horizontal vector with one part zero and the other orthogonal to its factor's columns, if it has
    enough rows.
    """
    i = {0.0: 1, math.inf: 0}.get(part)
    if i is None or point.sizes[i] == point.sizes[2]:
        return v
    factor, x = tuple(point)[i], tuple(v)[i]
    Q = np.linalg.qr(factor)[0]
    across = x - Q @ (Q.mT @ x)
    across = across - Q @ (Q.mT @ across)
    return Pair(*(across if j == i else 0.0 * x for j, x in enumerate(v)))


def _at_angle(space: PairTangentSpace, x: Pair, y: Pair, share: float) -> Pair:
    """Return a vector of length 1 with this share along y, from two orthogonal vectors."""
    if share in (0.0, 1.0):
        v = y if share else x
        return v / space.norm(v)
    return x * (math.sqrt((1.0 - share) * (1.0 + share)) / space.norm(x)) + y * (share / space.norm(y))


def _part_size(part: float, i: int) -> float:
    """Return the factor by which the G or the H part is multiplied."""
    return ((1.0, 0.0) if part == math.inf else (part, 1.0))[i]


def _mask(f: Features, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw a mask of zeros and ones with these features."""
    blocks = shape[:-2]
    first = np.arange(math.prod(blocks)).reshape(blocks) >= f.empty_blocks
    rows = np.arange(shape[-2]) >= f.empty_rows
    return np.asarray(first[..., None, None] * rows[:, None] * (rng.random(shape) >= f.sparse), dtype=float)


def like(point: Pair, rng: np.random.Generator) -> Pair:
    """Draw a Gaussian vector with the size of each factor.

    Examples
    --------
    >>> like(Pair([[2.0]], [[3.0]]), np.random.default_rng(0)).sizes
    (1, 1, 1)
    """
    return Pair(*(typical_size(factor) * rng.standard_normal(factor.shape) for factor in point))


def horizontal_like(space: PairTangentSpace, v: Pair, rng: np.random.Generator) -> Pair:
    """Return the horizontal part of `v`, or a random horizontal vector if that part is small.

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.InvariantMetric().at(Pair([[1.0]], [[1.0]]))
    >>> bool(space.is_horizontal(horizontal_like(space, space.vertical_vector([[1.0]]), np.random.default_rng(0))))
    True
    """
    part, length = space.horizontal_projection(v), space.norm(v)
    drawn = space.random_tangent_vector(rng) * np.where(length > 0.0, length, space.norm(space.point))
    nearly_vertical = (space.norm(part) <= 0.1 * length)[..., None, None]
    return Pair.unchecked(*(np.where(nearly_vertical, y, x) for x, y in zip(part, drawn, strict=True)))


def _scale_to_curvature(space: PairTangentSpace, v: Pair) -> Pair:
    """Scale a vector so that Γ(v, v) is as long as v, so that an error of Γ is visible in a geodesic."""
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
        """Return the Euclidean gradient (PᵀRQH/s, QᵀRᵀPG/s)."""
        return self._back(self.R @ self.QH, self.R.mT @ self.PG)

    def hessian(self, v: Pair) -> Pair:
        """Return the Euclidean Hessian applied to v."""
        Pv, Qv = self.P @ v.G, self.Q @ v.H
        change = (Pv @ self.QH.mT + self.PG @ Qv.mT) / self.size
        return self._back(change @ self.QH + self.R @ Qv, change.mT @ self.PG + self.R.mT @ Pv)

    def _back(self, of_G: Array, of_H: Array) -> Pair:
        """Return (Pᵀ of_G/s, Qᵀ of_H/s)."""
        return Pair.unchecked(self.P.mT @ (of_G / self.size), self.Q.mT @ (of_H / self.size))


def typical_size(factor: Array) -> Array:
    """Return the root mean square of the entries per block; 1 for zeros.

    Examples
    --------
    >>> typical_size(np.array([[3.0], [4.0]])).round(12).item()
    3.535533905933
    """
    largest = np.abs(factor).max(axis=(-2, -1), keepdims=True)  # whose square can overflow
    unit = np.where(largest > 0, largest, 1.0)
    return np.asarray(unit * np.sqrt(np.mean((factor / unit) ** 2, axis=(-2, -1), keepdims=True)))
