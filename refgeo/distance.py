r"""How far apart two points are modulo their symmetries: exactly where there is a closed form, else between two bounds.

*Closed forms.* With h = 1 the quotient is a cone over two spheres (`refgeo.geodesics`): unrolled, with
:math:`σ = ‖G‖‖H‖`, τ = σˢ/s and θ the angle on both spheres together,

    d² = ½ (τ₁² + τ₂² − 2 τ₁τ₂ cos min(√2 s θ, π)),    s = 0:  d² = ½ log²(σ₁/σ₂) + θ²,

at angles beyond π by way of the apex. Behind rotary positions θ is the least over a common phase. For mix with
n = m = h the quotient is flat in X = GHᵀ, and d = ‖X₁ − X₂‖/√2 if no point of the line between them is singular. The
metrics on arrays are flat in log |w|, in w, and on a sphere.

*Lower bounds.* Where x are orthonormal coordinates of a velocity in the balanced gauge, the singular values of GHᵀ move
by :math:`\dot σ_i = σ_i^{1-s} (Q_G^\top x_G + Q_H^\top x_H)_{ii}`, so that σˢ is Lipschitz:

    d ≥ ‖σ₁ˢ − σ₂ˢ‖ / (√2 s),    s = 0:  d² ≥ ½ ‖log σ₁ − log σ₂‖² + ∠(G₁, G₂)² + ∠(H₁, H₂)²,

with ∠ the norm of the angles between column spaces, which the other part of x moves at its own speed. For mix
:math:`\dot X = ξ_G H^\top + G ξ_H^\top` gives d ≥ ‖X₁ − X₂‖/√2.

*Upper bounds* are lengths of curves: the line to the representative that is turned towards the other point
(`Pair.aligned_to`), and a geodesic that is shot at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from refgeo.arguments import Array, integer
from refgeo.balanced import balance
from refgeo.errors import GeodesicAccuracyError, GeodesicIncompleteError, RankDeficientError
from refgeo.metrics.elementwise import ElementwiseMetric
from refgeo.metrics.euclidean import EuclideanMetric, TranslationMetric
from refgeo.metrics.pair import InterpolatedMetric
from refgeo.metrics.product import ProductMetric
from refgeo.metrics.rotary import RotaryMetric, complex_columns
from refgeo.metrics.scaling import ScalingMetric
from refgeo.metrics.tangent_space import Metric
from refgeo.pair import Pair, as_pair

__all__ = ["Distance", "quotient_distance"]


@dataclass(frozen=True)
class Distance:
    """A distance between two bounds; they are equal where there is a closed form.

    Attributes
    ----------
    lower, upper : float
        All blocks and heads together. ``inf`` where no curve leads from one to the other, or none was found.
    blocks : dict of str to Distance
        Of a product, its blocks.

    Examples
    --------
    >>> import refgeo as rg
    >>> metric = rg.ProductMetric({"w": rg.EuclideanMetric(), "norm": rg.ScalingMetric()})
    >>> rg.quotient_distance(metric, {"w": [3.0], "norm": [1.0, 1.0]}, {"w": [0.0], "norm": [7.0, 7.0]})
    Distance(lower=3.0, upper=3.0)
    """

    lower: float
    upper: float
    blocks: dict[str, Distance] = field(default_factory=dict, repr=False)

    @property
    def is_exact(self) -> bool:
        """Whether both bounds are one number."""
        return self.lower == self.upper


def quotient_distance(metric: Metric[Any], a: Any, b: Any, n_shots: int = 20) -> Distance:
    """The Riemannian distance of two points in the quotient: between networks, modulo their symmetries.

    Parameters
    ----------
    metric : Metric
        A pair metric without relaxation, `RotaryMetric`, one on arrays, or a `ProductMetric` of such.
    a, b : Pair, array or dict
    n_shots : int
        Most geodesics that are shot to tighten the upper bound; 0 for none. Each is an exact geodesic of all heads of
        a block, which takes long for mix where it has no closed form.

    Returns
    -------
    Distance
        The upper bound is the length of a curve, by quadrature to about 1e-8.

    Raises
    ------
    TypeError
        The metric has no distance here (an ablation, or a relaxed metric).
    RankDeficientError
        A factor has numerical rank below h.

    Examples
    --------
    The product of two numbers, 2·3 and 1·12: √½ log 2 apart, whatever the factors are.

    >>> import numpy as np, refgeo as rg
    >>> found = rg.quotient_distance(rg.InvariantMetric(), rg.Pair([[2.0]], [[3.0]]), rg.Pair([[1.0]], [[12.0]]))
    >>> found.is_exact, round(found.upper, 6), round(float(np.log(2)) / 2**0.5, 6)
    (True, 0.490129, 0.490129)
    """
    integer("n_shots", n_shots, least=0)
    if isinstance(metric, ProductMetric):
        points = metric.at(a).point, metric.at(b).point
        blocks = {
            name: quotient_distance(one, points[0][name], points[1][name], n_shots)
            for name, one in metric.metrics.items()
        }
        lower, upper = (math.hypot(*(getattr(d, end) for d in blocks.values())) for end in ("lower", "upper"))
        return Distance(lower, upper, blocks)
    if isinstance(metric, InterpolatedMetric) and metric.relaxation == 0.0:
        return _of_pairs(metric, as_pair("a", a), as_pair("b", b), n_shots)
    if isinstance(metric, RotaryMetric) and metric.pairs.relaxation == 0.0:
        return _exactly(_of_planes(metric.pairs.s, as_pair("a", a), as_pair("b", b)))
    if isinstance(metric, (ElementwiseMetric, EuclideanMetric, ScalingMetric)):
        return _exactly(_of_arrays(metric, metric.at(a).point, metric.at(b).point))
    raise TypeError(
        f"metric: expected one with a distance, got {metric!r}; ablations and relaxed metrics have none here"
    )


def _exactly(distances: Array | float) -> Distance:
    value = float(np.linalg.norm(np.ravel(distances)))
    return Distance(value, value)


# Arrays ---------------------------------------------------------------------------------------------------------------


def _of_arrays(metric: Metric[Array], a: Array, b: Array) -> Array | float:
    if a.shape != b.shape:
        raise ValueError(f"a, b: expected the same shapes, got {a.shape} and {b.shape}")
    if isinstance(metric, ScalingMetric):
        return float(_angle(a.ravel(), b.ravel()))
    if isinstance(metric, TranslationMetric):
        return np.asarray((a - a.mean()) - (b - b.mean()))
    if isinstance(metric, EuclideanMetric):
        return np.asarray(a - b)
    connected = np.sign(a) == np.sign(b)
    ratio: Array = np.divide(b, a, out=np.ones_like(a), where=connected & (a != 0.0))
    return np.asarray(np.where(connected, np.abs(np.log(ratio)), np.inf))


def _angle(u: Array, v: Array) -> Array:
    """Between vectors, accurate where it is small."""
    u, v = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (u, v))
    return np.asarray(2.0 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1)))


# Pairs with h = 1, real and complex -----------------------------------------------------------------------------------


def _on_the_cone(s: float, sizes: tuple[Array, Array], angle: Array) -> Array:
    """The distance of points with these σ, at an angle θ."""
    logarithm = np.log(sizes[0] / sizes[1])
    if s == 0.0:
        return np.asarray(np.hypot(logarithm / math.sqrt(2.0), angle))
    one, other = (size**s / s for size in sizes)
    apart = other * np.expm1(s * logarithm)  # τ₁ − τ₂
    across = 2.0 * np.sqrt(one * other) * np.sin(np.minimum(math.sqrt(2.0) * s * angle, math.pi) / 2.0)
    return np.asarray(np.hypot(apart, across) / math.sqrt(2.0))


def _of_lines(s: float, a: Pair, b: Pair) -> Array:
    (u, w), (u_other, w_other) = ((F[..., 0] for F in pair) for pair in (a, b))
    sizes = tuple(np.linalg.norm(G, axis=-2)[..., 0] * np.linalg.norm(H, axis=-2)[..., 0] for G, H in (a, b))
    angles = [np.hypot(_angle(u, sign * u_other), _angle(w, sign * w_other)) for sign in (1.0, -1.0)]
    return _on_the_cone(s, (sizes[0], sizes[1]), np.minimum(*angles))


_PHASES, _HALVINGS = 128, 80


def _of_planes(s: float, a: Pair, b: Pair) -> Array:
    """The least angle over a common phase of both factors, from a grid and then golden sections."""
    here, there = complex_columns(a), complex_columns(b)
    sizes = tuple(np.linalg.norm(z, axis=-1) * np.linalg.norm(w, axis=-1) for z, w in (here, there))

    def angle(phase: Array) -> Array:
        turned = [np.exp(1j * phase)[..., None] * x for x in there]
        each = [
            _angle(*(np.concatenate([x.real, x.imag], axis=-1) for x in pair))
            for pair in zip(here, turned, strict=True)
        ]
        return np.asarray(np.hypot(*each))

    grid = np.arange(_PHASES) * (2.0 * math.pi / _PHASES)
    best = grid[np.argmin([angle(np.full(sizes[0].shape, phase)) for phase in grid], axis=0)]
    low, high, golden = best - grid[1], best + grid[1], (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(_HALVINGS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        nearer = angle(left) < angle(right)
        low, high = np.where(nearer, low, left), np.where(nearer, right, high)
    return _on_the_cone(s, (sizes[0], sizes[1]), angle((low + high) / 2.0))


# Pairs ----------------------------------------------------------------------------------------------------------------


def _of_pairs(metric: InterpolatedMetric, a: Pair, b: Pair, n_shots: int) -> Distance:
    if a.G.shape != b.G.shape or a.H.shape != b.H.shape:
        raise ValueError(f"a, b: expected the same shapes, got {a!r} and {b!r}")
    n, m, h = a.sizes
    if h == 1:
        return _exactly(_of_lines(metric.s, a, b))
    least = _lower_bound(metric.s, a, b)
    if n == m == h:
        connected = np.sign(np.linalg.det(a.product)) == np.sign(np.linalg.det(b.product))
        least = np.where(connected, least, np.inf)
        if metric.s == 1.0 and np.all(~connected | _keeps_its_rank(a.product, b.product)):
            return _exactly(least)
    most = _length_to(metric, a, b)
    if n_shots and np.isfinite(most).all():
        most = np.minimum(most, _shot(metric, a, b, n_shots))
    lower, upper = (float(np.linalg.norm(np.ravel(d))) for d in (least, np.maximum(most, least)))
    return Distance(lower, upper)


def _lower_bound(s: float, a: Pair, b: Pair) -> Array:
    """One number per block, derivation in the module's text."""
    here, there = balance(a.G, a.H), balance(b.G, b.H)
    if s == 1.0:
        return np.asarray(np.linalg.norm(a.product - b.product, axis=(-2, -1)) / math.sqrt(2.0))
    if s > 0.0:
        return np.asarray(np.linalg.norm(here.sigma**s - there.sigma**s, axis=-1) / (math.sqrt(2.0) * s))
    parts = [np.linalg.norm(np.log(here.sigma / there.sigma), axis=-1) / math.sqrt(2.0)]
    parts += [_between_spaces(*columns) for columns in zip(here.columns, there.columns, strict=True)]
    return np.asarray(np.linalg.norm(parts, axis=0))


def _between_spaces(Q: Array, R: Array) -> Array:
    blocks = [np.linalg.norm(scipy.linalg.subspace_angles(Q[i], R[i])) for i in np.ndindex(Q.shape[:-2])]
    return np.reshape(blocks, Q.shape[:-2])


def _keeps_its_rank(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Whether (1 − t) A + t B, square, is regular for all 0 ≤ t ≤ 1: A⁻¹B has no eigenvalue below zero."""
    values = np.linalg.eigvals(np.linalg.solve(a, b))
    negative = (values.real <= 0.0) & (np.abs(values.imag) <= 1e-12 * np.abs(values))
    return np.asarray(~negative.any(axis=-1))


_NODES, _ENOUGH, _ENDS = (
    (4, 8, 16, 32, 64, 128),
    1e-8,
    (RankDeficientError, GeodesicIncompleteError, GeodesicAccuracyError),
)


def _length_to(metric: InterpolatedMetric, a: Pair, b: Pair) -> Array:
    """The length, in the quotient, of the line from a to the representative of b turned towards it; inf if it meets
    a loss of rank.
    """
    target = b.aligned_to(a)[0]
    velocity, found = target - a, np.full(a.block_shape, np.inf)
    square = [(F, E) for F, E in zip(a, target, strict=True) if F.shape[-2] == F.shape[-1]]
    passable = np.all([np.ones(a.block_shape, bool), *(_keeps_its_rank(F, E) for F, E in square)], axis=0)
    for count in _NODES:
        places, weights = np.polynomial.legendre.leggauss(count)
        total = np.zeros(a.block_shape)
        try:
            for place, weight in zip((places + 1.0) / 2.0, weights / 2.0, strict=True):
                space = metric.at(a + float(place) * velocity)
                total += weight * space.norm(space.horizontal_projection(velocity))
        except RankDeficientError:
            return np.full(a.block_shape, np.inf)
        previous, found = found, total
        if np.all(np.abs(found - previous) <= _ENOUGH * found):
            break
    return np.where(passable, found, np.inf)


def _shot(metric: InterpolatedMetric, a: Pair, b: Pair, n_shots: int) -> Array:
    """The length of a geodesic that starts at a and is aimed again by what it misses, with the rest of the way."""
    here = metric.at(a)
    v = here.horizontal_projection(b.aligned_to(a)[0] - a)
    best: Array = np.full(a.block_shape, np.inf)
    for _ in range(n_shots):
        try:
            end = here.geodesic(v, 1.0, "exact")
            missed = b.aligned_to(end)[0] - end
            rest = _length_to(metric, end, b)
        except _ENDS:
            v = v * 0.5
            continue
        best = np.minimum(best, here.norm(v) + rest)
        if np.all(rest <= _ENOUGH * here.norm(v)):
            break
        v = here.horizontal_projection(v + missed)
    return best
