r"""Upper bounds by quadratic sets around the ball, for any X; not for mix, whose ball is such a set itself.

In e = β/β₀ − 1 the objective 2(β₀ ⊙ g)ᵀe + eᵀMe, M = diag(β₀)XᵀX diag(β₀), is exactly quadratic, and the ball is
{Σ φ(e_i) ≤ ρ²} with φ(e) = t², the price of e. Its maximum over any larger set {Σ q_i(e_i) ≤ ρ²} with quadratics
q_i ≤ φ is a trust-region problem, solved exactly. Two choices:

* *ball*: |e| ≤ E(ρ) t/ρ, because E(t)/t grows with t and E(−t) is smaller. So ‖e‖ ≤ E(ρ); the bound exceeds the
  maximum by a factor of at most (E(ρ)/(√2ρ))², which is 1 + O(ρ). Between inv and mix, where E depends on β₀, the
  same argument leaves the ellipsoid Σ (e_i/E_i(ρ))² ≤ 1.
* *ellipsoid*: q_i touches φ at the best point known, ê_i, and bends as much as it can and stay below. If that point is
  the maximum over the ellipsoid too, the bound equals its value: a certificate. That happens when the gradient is large
  beside ρ times the curvature. At zero residual a gap of relative size O(ρ) remains.

For inv φ = ½ log²(1 + e), for adaptive φ = 2(√(1 + e) − 1)², between inv and mix φ = ½(|β₀|ˢ((1 + e)ˢ − 1)/s)².
Where φ‴ < 0, the quotient
(φ(e) − φ(ê) − φ′(ê)(e − ê)) / (e − ê)² falls with e, so its least value over the range is at the upper end, and at
least ½φ″ there.
"""

from __future__ import annotations

import numpy as np

from refgeo.diagonal.geometry import Geometry, on_sphere
from refgeo.diagonal.problem import LeastSquares
from refgeo.diagonal.trust_region import maximise_diagonal_quadratic, maximise_quadratic
from refgeo.support.arguments import Array

_LARGEST = 1e150
"""The square of a longer one overflows."""
_LEAST_BEND = 0.01
"""Beside φ″(0). What hardly bends has its middle far away, and differences lose digits there."""


def ball(problem: LeastSquares, geometry: Geometry, rho: Array) -> tuple[Array, Array]:
    """Return the maximum over Σ (e_i/E_i(ρ))² ≤ 1, and the point of the sphere ‖t‖ = ρ in the direction of its
    maximizer.
    """
    gradient = 2.0 * problem.moving_g * problem.beta
    if geometry.s != 0.0:  # E differs from coordinate to coordinate
        size = np.where(problem.beta != 0.0, problem.beta, 1.0)
        radii = np.where(problem.beta != 0.0, geometry.shift(problem.beta, rho[..., None]) / size, 0.0)
        finite = np.all(radii < _LARGEST, axis=-1)
        radii = np.where(finite[..., None], radii, 0.0)
        maximum = maximise_quadratic(
            radii * gradient, 2.0 * radii[..., :, None] * problem.log_gram * radii[..., None, :], np.ones_like(rho)
        )
        return np.where(finite, maximum.upper, np.inf), on_sphere(maximum.x, rho)
    w, V = np.linalg.eigh(problem.log_gram)
    radius = geometry.shift(np.ones_like(rho), rho)
    finite = radius < _LARGEST
    along = (V.mT @ gradient[..., None])[..., 0]
    maximum = maximise_diagonal_quadratic(along, 2.0 * w, np.where(finite, radius, 1.0))
    return np.where(finite, maximum.upper, np.inf), on_sphere((V @ maximum.x[..., None])[..., 0], rho)


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def ellipsoid(problem: LeastSquares, geometry: Geometry, t: Array, rho: Array) -> Array:
    """Return the maximum over the ellipsoid that touches the ball at t; inf where there is none."""
    beta = np.where(problem.beta != 0.0, problem.beta, 1.0)
    price = geometry.price(beta)
    possible = rho <= price.longest
    safe = np.where(possible, rho, np.minimum(price.longest, rho))[..., None]
    inside = np.maximum(np.clip(np.where(possible[..., None], t, 0.0), -safe, safe), geometry.lowest(beta))
    touch, end = (geometry.shift(beta, at) / beta for at in (inside, safe * np.ones_like(t)))
    value, slope = price.value(touch), price.slope(touch)
    distance = end - touch
    parts = (price.value(end), -value, -slope * distance)
    rounding = 8.0 * np.finfo(np.float64).eps * sum(np.abs(part) for part in parts)
    quotient = np.divide(sum(parts) - rounding, distance**2, out=np.full_like(t, -np.inf), where=distance > 0.0)
    bend = np.maximum(quotient, 0.5 * price.bend(end))
    straight = _LEAST_BEND * price.bend(np.zeros_like(beta))
    usable = possible & np.all((bend >= straight) & np.isfinite(bend) & np.isfinite(slope), axis=-1)
    bend, slope = np.where(usable[..., None], bend, 1.0), np.where(usable[..., None], slope, 0.0)
    root = np.sqrt(bend)
    middle = touch - slope / (2.0 * bend)
    square = rho**2 - np.sum(value, axis=-1) + np.sum(slope**2 / (4.0 * bend), axis=-1)
    usable &= square > 0.0
    radius = np.sqrt(np.where(usable, square, 1.0))
    M = problem.log_gram
    from_middle = problem.beta * middle
    at_middle, down = problem.increase_and_gradient(from_middle)
    maximum = maximise_quadratic(
        np.where(problem.beta != 0.0, down * problem.beta, 0.0) / root,
        2.0 * M / (root[..., :, None] * root[..., None, :]),
        radius,
    )
    cancelled = 16.0 * np.finfo(np.float64).eps * (np.abs(at_middle) + np.abs(maximum.upper))
    return np.where(usable, at_middle + maximum.upper + cancelled, np.inf)
