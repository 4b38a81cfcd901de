r"""Lower bounds: points of the ball that are local maxima.

For μ large enough F(W(t)) + ½μ‖t‖² is convex near t. A convex function lies above its tangent plane, so the maximizer
of the tangent plane over the ball is an ascent: t⁺ ∝ ∇ + μt, cut off where the manifold ends (a power iteration, where
F is quadratic in t). μ is 0 until a step loses, and then grows until one gains.
"""

from __future__ import annotations

import numpy as np

from refgeo.diagonal.geometry import Geometry
from refgeo.diagonal.problem import LeastSquares
from refgeo.support.arguments import Array


def value_at(problem: LeastSquares, geometry: Geometry, t: Array) -> Array:
    """Return F(W(t))."""
    return problem.increase(geometry.shift(problem.beta, t))


def climb(problem: LeastSquares, geometry: Geometry, t: Array, rho: Array, steps: int) -> tuple[Array, Array]:
    """Return local maxima of F(W(t)) over the ball from the points t, and the values there."""
    lowest = geometry.lowest(problem.beta)
    value, gradient = _value_and_gradient(problem, geometry, t)
    caution = np.zeros_like(value)
    for _ in range(steps):
        candidate = farthest(gradient + caution[..., None] * t, lowest, rho)
        new_value, new_gradient = _value_and_gradient(problem, geometry, candidate)
        better = new_value > value
        settled = (np.abs(new_value - value) <= 1e-15 * np.abs(value)) & (caution == 0.0)
        keep = better[..., None]
        t, gradient = np.where(keep, candidate, t), np.where(keep, new_gradient, gradient)
        value = np.where(better, new_value, value)
        size = np.linalg.norm(gradient, axis=-1) / rho
        caution = np.where(better | settled, 0.0, np.minimum(4.0 * caution + 0.25 * size, 1e7 * size))
        if np.all(settled | (caution > 1e6 * size)):
            break
    return t, value


def _value_and_gradient(problem: LeastSquares, geometry: Geometry, t: Array) -> tuple[Array, Array]:
    """Return F and its gradient in t."""
    value, down = problem.increase_and_gradient(geometry.shift(problem.beta, t))
    return value, down * geometry.slope(problem.beta, t)


def farthest(p: Array, lowest: Array, rho: Array) -> Array:
    """Return the t with the largest pᵀt, ‖t‖ ≤ ρ and t ≥ lowest (which is negative).

    t_i = max(θp_i, lowest_i), with the θ that puts it on the sphere: θ² Σ_free p² = ρ² − Σ_cut lowest². Cutting off
    what is below its end leaves more for the others, so θ only grows, and at most d rounds find who is cut.

    Examples
    --------
    >>> farthest(np.array([3.0, -4.0]), np.array([-np.inf, -1.0]), np.asarray(5.0)).round(6)
    array([ 4.898979, -1.      ])
    """
    p = p / np.maximum(np.max(np.abs(p), axis=-1, keepdims=True), 1e-300)
    cut = np.zeros(p.shape, dtype=bool)
    while True:
        room = rho**2 - np.sum(np.where(cut, lowest, 0.0) ** 2, axis=-1)
        free = np.sum(np.where(cut, 0.0, p) ** 2, axis=-1)
        theta = np.sqrt(np.maximum(room, 0.0) / np.where(free > 0.0, free, 1.0))[..., None]
        beyond = (theta * p < lowest) & ~cut
        if not beyond.any():
            return np.where(cut, lowest, theta * p)
        cut |= beyond
