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

*Upper bounds* are lengths of curves: between the balanced representatives, one turned towards the other as
`Pair.aligned_to` does, a line and a line with its size on a logarithmic scale; and a geodesic that is shot at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from refgeo.geometry.arrays import ElementwiseMetric, EuclideanMetric, ScalingMetric, TranslationMetric
from refgeo.geometry.balanced import BalancedGauge, balance
from refgeo.geometry.pair import Pair, as_factors
from refgeo.geometry.pair_metrics import InterpolatedMetric, PairTangentSpace
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.rotary import RotaryMetric, complex_columns
from refgeo.geometry.tangent_space import Metric
from refgeo.support.arguments import Array, integer
from refgeo.support.errors import NO_GEODESIC, RankDeficientError, about

__all__ = ["Distance", "quotient_distance"]


@dataclass(frozen=True)
class Distance:
    """A distance between two bounds.

    Attributes
    ----------
    lower, upper : float
        All blocks and heads together. ``inf`` where no curve leads from one to the other, or none was found.
    is_exact : bool
        Whether both are a closed form.
    blocks : dict of str to Distance
        Of a product, its blocks.

    Examples
    --------
    >>> import refgeo as rg
    >>> metric = rg.ProductMetric({"w": rg.EuclideanMetric(), "norm": rg.ScalingMetric()})
    >>> rg.quotient_distance(metric, {"w": [3.0], "norm": [1.0, 1.0]}, {"w": [0.0], "norm": [7.0, 7.0]})
    Distance(lower=3.0, upper=3.0, is_exact=True)
    """

    lower: float
    upper: float
    is_exact: bool
    blocks: dict[str, Distance] = field(default_factory=dict, repr=False)


def quotient_distance(metric: Metric[Any], a: Any, b: Any, n_shots: int = 20) -> Distance:
    """The Riemannian distance of two points in the quotient: between networks, modulo their symmetries.

    Parameters
    ----------
    metric : Metric
        A pair metric without relaxation, `RotaryMetric`, one on arrays, or a `ProductMetric` of such; of a network,
        ``network.metric("inv", arrays=rg.ElementwiseMetric())``.
    a, b : Pair, array or dict
    n_shots : int
        Most geodesics that are shot to tighten the upper bound; 0 for none. Each is an exact geodesic of all heads of
        a block, which takes long for mix where it has no closed form.

    Returns
    -------
    Distance
        The upper bound is the length of a curve, by quadrature to about 1e-8, or ``inf`` if it has not converged.

    Raises
    ------
    NotImplementedError
        The metric has no distance here (an ablation, a relaxed metric, or `EmbeddedMetric`).
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
    return _between(metric.at(a), metric.at(b), n_shots)


def _between(here: Any, there: Any, n_shots: int) -> Distance:
    """Of the points of two tangent spaces of one metric, which are factorised already."""
    metric = here.metric
    if isinstance(metric, ProductMetric):
        return _of_product(here.spaces, there.spaces, n_shots)
    known = (InterpolatedMetric, RotaryMetric, ElementwiseMetric, EuclideanMetric, ScalingMetric)
    if getattr(metric, "relaxation", 0.0) > 0.0 or not isinstance(metric, known):
        raise NotImplementedError(
            f"metric: expected a metric for which refgeo knows a distance, got {metric!r}; it knows none for a metric "
            "with relaxation, and none for ConstantMetric, EuclideanNormMetric and EmbeddedMetric. For a network, pass "
            "arrays=refgeo.ElementwiseMetric() to network.metric"
        )
    if _shapes(here.point) != _shapes(there.point):
        raise ValueError(f"a, b: expected the same shapes, got {_shapes(here.point)} and {_shapes(there.point)}")
    if all(np.array_equal(x, y) for x, y in zip(as_factors(here.point), as_factors(there.point), strict=True)):
        return _exactly(np.zeros(()))
    if isinstance(metric, InterpolatedMetric):
        return _of_pairs(here, there, n_shots)
    if isinstance(metric, RotaryMetric):
        return _exactly(_of_planes(metric.pairs.s, here.point, there.point))
    return _exactly(_of_arrays(metric, here.point, there.point))


def _of_product(here: Mapping[str, Any], there: Mapping[str, Any], n_shots: int) -> Distance:
    blocks = {}
    for name in here:
        with about(f"block {name!r}"):
            blocks[name] = _between(here[name], there[name], n_shots)
    lower, upper = (math.hypot(*(getattr(d, end) for d in blocks.values())) for end in ("lower", "upper"))
    return Distance(lower, upper, all(d.is_exact for d in blocks.values()), blocks)


def _shapes(point: Any) -> Any:
    return [F.shape for F in point] if isinstance(point, Pair) else point.shape


def _exactly(distances: Array) -> Distance:
    value = float(_norm(np.ravel(distances)))
    return Distance(value, value, True)


def _norm(x: Array) -> Array:
    """Along the last axis, of numbers of any size."""
    x = np.atleast_1d(x)
    size = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
    divisor = np.where((size > 0.0) & (size < np.inf), size, 1.0)
    return np.asarray(divisor[..., 0] * np.linalg.norm(x / divisor, axis=-1))


# Arrays ---------------------------------------------------------------------------------------------------------------


def _of_arrays(metric: Metric[Array], a: Array, b: Array) -> Array:
    if isinstance(metric, ScalingMetric):
        return _angle(a.ravel(), b.ravel())
    if isinstance(metric, TranslationMetric):
        return np.asarray((a - a.mean()) - (b - b.mean()))
    if isinstance(metric, EuclideanMetric):
        return np.asarray(a - b)
    moved = a != b
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio, apart = b / a, np.log(np.abs(b)) - np.log(np.abs(a))
        logs = np.where((ratio > 0.5) & (ratio < 2.0), np.log(ratio), apart)
    return np.where(moved, np.where(np.sign(a) == np.sign(b), np.abs(logs), np.inf), 0.0)


def _angle(u: Array, v: Array) -> Array:
    """Between vectors, accurate where it is small; numbers of opposite signs are not connected."""
    u, v = (x / _norm(x)[..., None] for x in (u, v))
    angle = 2.0 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    return np.asarray(np.where(angle > 1.0, np.inf, 0.0) if u.shape[-1] == 1 else angle)


# Pairs with h = 1, real and complex -----------------------------------------------------------------------------------


def _on_the_cone(s: float, logs: tuple[Array, Array], angle: Array) -> Array:
    """The distance of points with these log σ, at an angle θ."""
    between = logs[0] - logs[1]
    if s == 0.0:
        return np.asarray(np.hypot(between / math.sqrt(2.0), angle))
    one, other = (np.exp(s * log) / s for log in logs)
    apart = other * np.expm1(s * between)  # τ₁ − τ₂
    across = 2.0 * np.sqrt(one) * np.sqrt(other) * np.sin(np.minimum(math.sqrt(2.0) * s * angle, math.pi) / 2.0)
    return np.asarray(np.where(np.isinf(angle), np.inf, np.hypot(apart, across) / math.sqrt(2.0)))


def _of_lines(s: float, a: Pair, b: Pair) -> Array:
    (u, w), (u_other, w_other) = ((F[..., 0] for F in pair) for pair in (a, b))
    logs = np.log(_norm(u)) + np.log(_norm(w)), np.log(_norm(u_other)) + np.log(_norm(w_other))
    angles = [np.hypot(_angle(u, sign * u_other), _angle(w, sign * w_other)) for sign in (1.0, -1.0)]
    return _on_the_cone(s, logs, np.minimum(*angles))


_PHASES, _MINIMA, _HALVINGS = 128, 3, 80


def _of_planes(s: float, a: Pair, b: Pair) -> Array:
    """The least angle over a common phase of both factors: minima of a grid, each by golden sections."""
    here, there = complex_columns(a), complex_columns(b)
    logs = [np.log(_norm(np.abs(z))) + np.log(_norm(np.abs(w))) for z, w in (here, there)]

    def angle(phase: Array) -> Array:
        turned = [np.exp(1j * phase)[..., None] * x for x in there]
        real = ([np.concatenate([x.real, x.imag], axis=-1) for x in pair] for pair in zip(here, turned, strict=True))
        return np.asarray(np.hypot(*(_angle(*pair) for pair in real)))

    grid = np.arange(_PHASES) * (2.0 * math.pi / _PHASES)
    values = np.stack([angle(np.full(np.shape(logs[0]), phase)) for phase in grid])
    lowest = (values <= np.roll(values, 1, axis=0)) & (values <= np.roll(values, -1, axis=0))
    starts = grid[np.argsort(np.where(lowest, values, np.inf), axis=0)[:_MINIMA]]
    return _on_the_cone(s, (logs[0], logs[1]), np.min([_refined(angle, start, grid[1]) for start in starts], axis=0))


def _refined(angle: Callable[[Array], Array], start: Array, width: float) -> Array:
    low, high, golden = start - width, start + width, (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(_HALVINGS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        nearer = angle(left) < angle(right)
        low, high = np.where(nearer, low, left), np.where(nearer, right, high)
    return angle((low + high) / 2.0)


# Pairs ----------------------------------------------------------------------------------------------------------------


def _of_pairs(space: PairTangentSpace, other: PairTangentSpace, n_shots: int) -> Distance:
    metric, a, b = space.metric, space.point, other.point
    n, m, h = a.sizes
    if h == 1:
        return _exactly(_of_lines(metric.s, a, b))
    here, there = space.gauge, other.gauge
    start, target = Pair.unchecked(*here.representative), Pair.unchecked(*there.turned_to(here)[0])
    least = _lower_bound(metric.s, here, there, start, target)
    if n == m == h:
        if np.any(_orientation(a) != _orientation(b)):  # nothing regular leads from one sign to the other
            return _exactly(np.asarray(np.inf))
        straight = _keeps_its_rank(start.product, target.product)
        if metric.s == 1.0 and np.all(straight):
            return _exactly(least)
    most = _length(metric, start, target)
    if n_shots and np.isfinite(most).all():
        most = _shot(metric, start, target, most, n_shots)
    # quadrature may be below the proved bound by its rounding
    lower, upper = (float(_norm(np.ravel(d))) for d in (least, np.maximum(most, least)))
    return Distance(lower, upper, False)


def _lower_bound(s: float, here: BalancedGauge, there: BalancedGauge, a: Pair, b: Pair) -> Array:
    """One number per block, derivation in the module's text."""
    if s == 1.0:
        apart = a.product - b.product
        return np.asarray(_norm(apart.reshape(*a.block_shape, apart.shape[-2] * apart.shape[-1])) / math.sqrt(2.0))
    logs = np.log(here.sigma / there.sigma)
    if s > 0.0:
        return np.asarray(np.linalg.norm(there.sigma**s * np.expm1(s * logs) / s, axis=-1) / math.sqrt(2.0))
    parts = [np.linalg.norm(logs, axis=-1) / math.sqrt(2.0)]
    parts += [_between_spaces(*columns) for columns in zip(here.columns, there.columns, strict=True)]
    return np.asarray(np.linalg.norm(parts, axis=0))


@partial(np.vectorize, signature="(n,h),(n,h)->()", otypes=[np.float64])
def _between_spaces(Q: Array, R: Array) -> float:
    return float(np.linalg.norm(scipy.linalg.subspace_angles(Q, R)))


def _orientation(point: Pair) -> Array:
    """The sign of det G det H."""
    return np.asarray(np.prod([np.linalg.slogdet(F)[0] for F in point], axis=0))


@partial(np.vectorize, signature="(h,h),(h,h)->()", otypes=[np.bool_])
def _keeps_its_rank(A: Array, B: Array) -> bool:
    """Whether (1 − t) A + t B, square, is regular for all 0 ≤ t ≤ 1: no eigenvalue of the pencil below zero."""
    size = max(np.abs(A).max(), np.abs(B).max())
    above, below = scipy.linalg.eigvals(B / size, A / size, homogeneous_eigvals=True)
    return not np.any((above * below.conj()).real <= -(1.0 - 1e-12) * np.abs(above) * np.abs(below))


_NODES, _ENOUGH = (4, 8, 16, 32, 64, 128), 1e-8
_ENDS = (*NO_GEODESIC, FloatingPointError)


def _length(metric: InterpolatedMetric, a: Pair, b: Pair) -> Array:
    """The length of the shorter of two curves: a line, and one whose size is on a logarithmic scale."""
    square = [(F, E) for F, E in zip(a, b, strict=True) if F.shape[-2] == F.shape[-1]]
    passable = np.all([np.ones(a.block_shape, bool), *(_keeps_its_rank(F, E) for F, E in square)], axis=0)
    sizes = [np.sqrt(sum(np.sum(F * F, axis=(-2, -1)) for F in point)) for point in (a, b)]
    log, (u, v) = np.log(sizes[1] / sizes[0]), (point / size for point, size in zip((a, b), sizes, strict=True))

    def line(t: float) -> tuple[Pair, Pair]:
        return a + t * (b - a), b - a

    def growing(t: float) -> tuple[Pair, Pair]:
        size, place = sizes[0] * np.exp(t * log), u + t * (v - u)
        return place * size, (v - u + place * log) * size

    shorter = np.minimum(_along(metric, line, a), _along(metric, growing, a))
    return np.where(passable, shorter, np.inf)


def _along(metric: InterpolatedMetric, curve: Callable[[float], tuple[Pair, Pair]], a: Pair) -> Array:
    """The length of a curve in the quotient, by Gauss's rule; inf where that does not converge."""
    found: Array = np.full(a.block_shape, np.nan)
    for count in _NODES:
        places, weights = np.polynomial.legendre.leggauss(count)
        previous, found = found, np.zeros(a.block_shape)
        try:
            for place, weight in zip((places + 1.0) / 2.0, weights / 2.0, strict=True):
                point, velocity = curve(float(place))
                space = metric.at(point)
                found = found + weight * space.norm(space.horizontal_projection(velocity))
        except RankDeficientError:
            return np.full(a.block_shape, np.inf)
        agreed = np.abs(found - previous) <= _ENOUGH * found
        if agreed.all():
            return found
    return np.where(agreed, found, np.inf)


def _shot(metric: InterpolatedMetric, a: Pair, b: Pair, most: Array, n_shots: int) -> Array:
    """The shortest of a known length and those of geodesics from a, with the rest of the way; each is aimed again by
    what the best one misses, by half as much after one that is worse.
    """
    here, goal = metric.at(a), balance(*b)
    v, missed = 0.0 * a, here.horizontal_projection(b - a)
    best, rest, share = most, most, np.ones(a.block_shape)
    for _ in range(n_shots):
        tried = v + missed * share
        # a geodesic that is longer than a known curve is of no use
        length = here.norm(tried)
        tried = tried * np.minimum(1.0, most / np.where(length > 0.0, length, 1.0))
        try:
            with np.errstate(over="raise", invalid="raise"):
                end = here.geodesic(tried, 1.0, "exact")
                gauge = balance(*end)
                facing = Pair.unchecked(*goal.turned_to(gauge)[0])
                left = _length(metric, Pair.unchecked(*gauge.representative), facing)
        except _ENDS:
            share = share * 0.5
            continue
        best = np.minimum(best, here.norm(tried) + left)
        better = left < rest
        to, back = gauge.to_balanced
        aimed = here.horizontal_projection(Pair.unchecked(facing.G @ to, facing.H @ back.mT) - end)
        v, missed = (_chosen(better, new, old) for new, old in ((tried, v), (aimed, missed)))
        rest, share = np.where(better, left, rest), np.where(better, 1.0, share * 0.5)
        if np.all(rest <= _ENOUGH * here.norm(v)):
            break
    return best


def _chosen(where: npt.NDArray[np.bool_], one: Pair, other: Pair) -> Pair:
    return Pair.unchecked(*(np.where(where[..., None, None], x, y) for x, y in zip(one, other, strict=True)))
