r"""Upper bounds by Lagrange's dual, where XᵀX is diagonal or dominated by a diagonal matrix D.

With XᵀX ⪯ D, F(W(t)) ≤ Σ_i 2g_iW_i + D_iW_i², with equality if XᵀX = D, so that for every λ ≥ 0

.. math:: \max_{‖t‖ ≤ ρ} F \;\le\; λρ^2 + \sum_i \max_{|t_i| ≤ ρ} 2g_iW_i(t_i) + D_iW_i(t_i)^2 - λt_i^2 .

Each term is a problem in one variable that is solved globally: on the main branch it is concave up to a known t and
convex beyond, so that its maximum is at the one stationary point of the concave part or at an end. The bound is convex
in λ; its slope is ρ² − ‖t(λ)‖². At its minimum either ‖t(λ)‖ = ρ, and t(λ) is a global maximizer, or ‖t(λ)‖ jumps past
ρ and a gap can remain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refgeo.diagonal.geometry import Geometry
from refgeo.support.arguments import Array

_BISECTIONS = 100
_NEWTON_STEPS = 80
_NEGLIGIBLE = 1e-9
"""Of a Newton step, beside ρ: the next one would be of the order of its square, and so is the error of a maximum."""


class Dual(NamedTuple):
    """The bound, and the maximizers of the terms on either side of the best λ: within the ball and outside."""

    upper: Array
    inside: Array
    outside: Array


def dominating_diagonal(gram: Array, beta: Array) -> Array:
    """Return a diagonal D ⪰ XᵀX: Σ_j |A_ij|, by Gershgorin, or λ_max, whichever is smaller on average in log β.

    Examples
    --------
    >>> dominating_diagonal(np.array([[2.0, -1.0], [-1.0, 3.0]]), np.array([1.0, 1.0]))
    array([3., 4.])
    """
    sums = np.sum(np.abs(gram), axis=-1)
    largest = np.linalg.eigvalsh(gram)[..., -1:]
    larger = np.sum(sums * beta**2, axis=-1) > np.sum(largest * beta**2, axis=-1)
    return np.where(larger[..., None], largest, sums)


def dual(geometry: Geometry, beta: Array, g: Array, D: Array, rho: Array) -> Dual:
    """Return the smallest bound over λ."""
    beta, g, D = np.broadcast_arrays(beta, g, D)
    terms = _Terms(geometry, beta, g, D, rho)
    # λ in units of the slopes at the ball's rim: for the largest every t is small, for 0 the sphere is reached
    slope = geometry.slope(beta, rho[..., None])
    size = np.max(np.abs(g * slope), axis=-1) / rho + np.max(D * slope**2, axis=-1)
    high = np.where(size > 0.0, size, 1.0)
    for _ in range(60):
        best, inside = terms.maximise(high)
        short = np.sum(inside * inside, axis=-1) <= rho**2
        if short.all():
            break
        high = np.where(short, high, 4.0 * high)
    low = np.zeros_like(high)
    upper = best + high * rho**2
    outside = np.broadcast_to(rho[..., None], inside.shape)
    for _ in range(_BISECTIONS):
        # the scale of λ is unknown at first: down by factors of 16, then halving
        middle = np.where(low > 0.0, 0.5 * (low + high), high / 16.0)
        best, t = terms.maximise(middle)
        upper = np.minimum(upper, best + middle * rho**2)
        short = np.sum(t * t, axis=-1) <= rho**2
        inside, outside = np.where(short[..., None], t, inside), np.where(short[..., None], outside, t)
        high, low = np.where(short, middle, high), np.where(short, low, middle)
        if np.all(high - low <= 1e-14 * high):
            break
    return Dual(upper, inside, outside)


class _Terms:
    """The problems in one variable, all at once."""

    def __init__(self, geometry: Geometry, beta: Array, g: Array, D: Array, rho: Array) -> None:
        self.geometry, self.beta, self.g, self.D = geometry, beta, g, D
        self.highest = np.broadcast_to(rho[..., None], np.broadcast_shapes(beta.shape, (*rho.shape, 1)))
        self.lowest = np.maximum(-self.highest, geometry.end(beta))
        self.last = np.zeros_like(self.lowest)  # where Newton's method ended for the λ before

    def _at(self, t: Array, multiplier: Array) -> Array:
        w = self.geometry.shift(self.beta, t)
        return 2.0 * self.g * w + self.D * w * w - multiplier[..., None] * t * t

    def _slope(self, t: Array, multiplier: Array) -> tuple[Array, Array]:
        w, slope = self.geometry.shift(self.beta, t), self.geometry.slope(self.beta, t)
        down = 2.0 * (self.g + self.D * w)
        bend = down * self.geometry.curvature(self.beta, t) + 2.0 * self.D * slope**2 - 2.0 * multiplier[..., None]
        return down * slope - 2.0 * multiplier[..., None] * t, bend

    def maximise(self, multiplier: Array) -> tuple[Array, Array]:
        """Return the sum of the maxima, and where they are; 0 where nothing moves."""
        at = (self.beta, self.g, self.D, multiplier[..., None])
        first = np.clip(self.geometry.concave_from(*at), self.lowest, self.highest)
        inner = self._stationary(multiplier, first, np.clip(self.geometry.concave_until(*at), first, self.highest))
        best, where = self._at(inner, multiplier), inner
        for end in (self.lowest, self.highest):
            value = self._at(end, multiplier)
            where, best = np.where(value > best, end, where), np.maximum(best, value)
        return np.sum(best, axis=-1), np.where(self.beta == 0.0, 0.0, where)

    def _stationary(self, multiplier: Array, low: Array, high: Array) -> Array:
        """Return where a decreasing slope changes sign between low and high, or the end where it does not."""
        at_low, at_high = self._slope(low, multiplier)[0] <= 0.0, self._slope(high, multiplier)[0] >= 0.0
        low, high = np.where(at_high & ~at_low, high, low), np.where(at_low, low, high)
        t = np.clip(self.last, low, high)
        for _ in range(_NEWTON_STEPS):
            slope, bend = self._slope(t, multiplier)
            low, high = np.where(slope > 0.0, t, low), np.where(slope > 0.0, high, t)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = t - slope / bend
            inside = (step > low) & (step < high)
            moved = np.where(inside, step, 0.5 * (low + high))
            done = np.abs(moved - t) <= _NEGLIGIBLE * self.highest
            t = moved
            if done.all():
                break
        self.last = t
        return t
