r"""How far apart two points are modulo their symmetries, where there is a closed form.

With h = 1 the quotient is a cone over two spheres (`refgeo.geometry.geodesics`): unrolled, with
:math:`σ = ‖G‖‖H‖`, τ = σˢ/s and θ the angle on both spheres together,

    d² = ½ (τ₁² + τ₂² − 2 τ₁τ₂ cos min(√2 s θ, π)),    s = 0:  d² = ½ log²(σ₁/σ₂) + θ²,

at angles beyond π by way of the apex. Behind rotary positions θ is the least over a common phase. For mix with
n = m = h the quotient is flat in X = GHᵀ, and d = ‖X₁ − X₂‖/√2 if no point of the line between them is singular. The
metrics on arrays are flat in log |w|, in w, and on a sphere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from refgeo.geometry.arrays import ElementwiseMetric, EuclideanMetric, ScalingMetric, TranslationMetric, WeightedMetric
from refgeo.geometry.pair import Pair, as_factors
from refgeo.geometry.pair_metrics import InterpolatedMetric
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.rotary import RotaryMetric, complex_columns
from refgeo.geometry.tangent_space import Metric, as_metric
from refgeo.support.arguments import Array
from refgeo.support.errors import about

__all__ = ["quotient_distance"]


def quotient_distance(metric: Metric[Any], a: Any, b: Any) -> float:
    """The Riemannian distance of two points in the quotient: between networks, modulo their symmetries.

    Parameters
    ----------
    metric : Metric
        A pair metric without relaxation, `RotaryMetric`, one on arrays, or a `ProductMetric` of such; of a network,
        ``network.metric("inv", arrays=rg.ElementwiseMetric())``.
    a, b : Pair, array or dict

    Returns
    -------
    float
        All blocks and heads together; ``inf`` where no curve leads from one to the other.

    Raises
    ------
    NotImplementedError
        There is no closed form: a pair with h > 1, but for mix with n = m = h; a relaxed or another metric.
    RankDeficientError
        A factor has numerical rank below h.

    Examples
    --------
    The product of two numbers, 2·3 and 1·12: √½ log 2 apart, whatever the factors are.

    >>> import numpy as np, refgeo as rg
    >>> found = rg.quotient_distance(rg.InvariantMetric(), rg.Pair([[2.0]], [[3.0]]), rg.Pair([[1.0]], [[12.0]]))
    >>> round(found, 6), round(float(np.log(2)) / 2**0.5, 6)
    (0.490129, 0.490129)
    """
    metric = as_metric("metric", metric)
    return _between(metric.at(a), metric.at(b))


def _between(here: Any, there: Any) -> float:
    """Of the points of two tangent spaces of one metric, which are factorised already."""
    metric = here.metric
    if isinstance(metric, ProductMetric):
        of_blocks = []
        for name in here.spaces:
            with about(f"block {name!r}"):
                of_blocks.append(_between(here.spaces[name], there.spaces[name]))
        return math.hypot(*of_blocks)
    known = (InterpolatedMetric, RotaryMetric, ElementwiseMetric, EuclideanMetric, ScalingMetric)
    no_metric = getattr(metric, "relaxation", 0.0) > 0.0 or not getattr(metric, "curved", True)
    if no_metric or not isinstance(metric, known) or isinstance(metric, WeightedMetric):
        raise NotImplementedError(
            f"metric: expected a metric for which refgeo knows a distance, got {metric!r}; it knows none for a metric "
            "with relaxation or without curvature, and none for EmbeddedMetric. For a network, pass "
            "arrays=refgeo.ElementwiseMetric() to network.metric"
        )
    if _shapes(here.point) != _shapes(there.point):
        raise ValueError(f"a, b: expected the same shapes, got {_shapes(here.point)} and {_shapes(there.point)}")
    if all(np.array_equal(x, y) for x, y in zip(as_factors(here.point), as_factors(there.point), strict=True)):
        return 0.0
    if isinstance(metric, InterpolatedMetric):
        distances = _of_pairs(metric.s, here.point, there.point)
    elif isinstance(metric, RotaryMetric):
        distances = _of_planes(metric.pairs.s, here.point, there.point)
    else:
        distances = _of_arrays(metric, here.point, there.point)
    return float(_norm(np.ravel(distances)))


def _shapes(point: Any) -> Any:
    return [F.shape for F in point] if isinstance(point, Pair) else point.shape


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


def _of_pairs(s: float, a: Pair, b: Pair) -> Array:
    n, m, h = a.sizes
    if h == 1:
        return _of_lines(s, a, b)
    if s == 1.0 and n == m == h:
        # nothing regular leads from one sign of the determinant to the other
        apart = _norm((a.product - b.product).reshape(*a.block_shape, h * h)) / math.sqrt(2.0)
        connected = _orientation(a) == _orientation(b)
        if np.all(_keeps_its_rank(a.product, b.product) | ~connected):
            return np.where(connected, apart, np.inf)
    raise NotImplementedError(
        f"metric: expected pairs with h = 1, or mix and n = m = h where the line from one product G Hᵀ to the other "
        f"stays regular, got h = {h}; other distances have no closed form that is known"
    )


def _orientation(point: Pair) -> Array:
    """The sign of det G det H."""
    return np.asarray(np.prod([np.linalg.slogdet(F)[0] for F in point], axis=0))


@partial(np.vectorize, signature="(h,h),(h,h)->()", otypes=[np.bool_])
def _keeps_its_rank(A: Array, B: Array) -> bool:
    """Whether (1 − t) A + t B, square, is regular for all 0 ≤ t ≤ 1: no eigenvalue of the pencil below zero."""
    size = max(np.abs(A).max(), np.abs(B).max())
    above, below = scipy.linalg.eigvals(B / size, A / size, homogeneous_eigvals=True)
    return not np.any((above * below.conj()).real <= -(1.0 - 1e-12) * np.abs(above) * np.abs(below))
