r"""Worst-case sharpness of diagonal networks with a proof: a point that reaches `lower`, a bound `upper`.

In the coordinates t of `refgeo.diagonal.geometry` it is max F(W(t)) over ‖t‖₂ ≤ ρ, F(w) = 2gᵀw + ‖Xw‖², and

* mix moves β on straight lines: a trust-region problem in w over ‖w‖ ≤ √2ρ, exact for any X as long as its solution
  stays within the manifold;
* for XᵀX = I, and any other diagonal, the problem is separable: Lagrange's dual is exact unless its maximizer jumps;
* otherwise, a local maximum from many starts, and the least of the upper bounds that apply: the dual with a diagonal
  that dominates XᵀX, the trust region over a ball or an ellipsoid around the feasible set (`refgeo.diagonal.outer`),
  or, for mix, the trust region that does not know where the manifold ends.

How wide the last ones are: for inv and adaptive the ball is too large by a factor of at most (E(ρ)/√2ρ)², that is
1 + √2ρ + O(ρ²) and 1 + ρ/√2 + O(ρ²), and the ellipsoid closes the gap where the residual is not small; for mix beyond
the domain, typically a tenth to a quarter. `Certified.gap` says it for each network.

The formulas of the paper follow. For XᵀX = I, with β* = Xᵀy, it is g = β₀ − β*, and

* mix: the maximum of 2gᵀw + ‖w‖² over ‖w‖ ≤ √2ρ is along g, 2√2ρ‖β₀ − β*‖ + 2ρ² (35);
* inv: w = β₀(e^{2b} − 1) gives Σ β₀²(e^{2b} − 1)² + 2(β₀ − β*)β₀(e^{2b} − 1) = Σ β₀²(e^{4b} − 1) − 2β₀β*(e^{2b} − 1)
  (25), over ‖b‖ ≤ ρ/√2, because ‖η‖² = 2‖b‖²;
* inv to second order in b: e^{4b} − 1 = 4b + 8b², e^{2b} − 1 = 2b + 2b² leave 4bᵀr′ + 4bᵀDb with r′ = β₀ ⊙ (β₀ − β*)
  and D = diag(β₀(2β₀ − β*)) (26). For small ρ the first term decides, 2√2ρ‖r′‖; at the minimum r′ = 0, D = diag(β₀²)
  and the value is 4(ρ²/2) max β₀² = 2ρ² max β₀².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.diagonal import ascent, outer, separable
from refgeo.diagonal.geometry import SQRT2, Geometry, geometry_of, on_sphere
from refgeo.diagonal.problem import LeastSquares
from refgeo.diagonal.trust_region import QuadraticMaximum, maximise_quadratic
from refgeo.support.arguments import Array, integer, radii_of, seed_of

EXACT = 1e-10
"""Relative gap up to which a value counts as exact."""
_ROUNDING = 1e-11
_STEPS, _FEWER_STEPS = 4000, 60
_SEPARABLE_FROM = 0.5
"""For smaller radii the ball around the feasible set is the better bound, unless XᵀX is diagonal."""


@dataclass(frozen=True)
class Certified:
    r"""A sharpness between two bounds; one entry per network and radius.

    Attributes
    ----------
    lower : ndarray
        The increase of the loss at the maximizer: reached, up to rounding.
    upper : ndarray
        No point of the ball exceeds it, up to rounding.
    maximizer : tuple of ndarray
        The tangent vector (η_u, η_v) of length at most ρ at whose end the loss has increased by `lower`.
    coordinates : ndarray
        Its orthonormal coordinates t.
    leaves_domain : ndarray of bool
        Only mix: the trust region's solution would pass a zero of β, where the manifold ends, and nothing within
        reaches its value. Where the maximum is at the end of the manifold, `lower` is as close to it as geodesics
        exist.

    Examples
    --------
    >>> import refgeo as rg
    >>> result = rg.diagonal.worst_case("mix", [2.0, 1.0], [1.0, 1.0], np.eye(2), [2.0, 1.0], 0.1)
    >>> float(result.lower.round(12)), float(result.upper.round(12))  # 2ρ² at the minimum
    (0.02, 0.02)
    """

    lower: Array
    upper: Array
    maximizer: tuple[Array, Array]
    coordinates: Array
    leaves_domain: npt.NDArray[np.bool_]

    @property
    def gap(self) -> Array:
        """(upper − lower) / upper, 0 where both are 0 and nan where both are infinite."""
        with np.errstate(invalid="ignore"):
            difference = self.upper - self.lower
            return np.divide(difference, self.upper, out=np.zeros_like(difference), where=difference != 0.0)

    @property
    def exact(self) -> npt.NDArray[np.bool_]:
        """Where the bounds meet to 1e-10 relative."""
        return np.asarray(self.gap <= EXACT)

    def __repr__(self) -> str:
        if self.lower.ndim:
            return f"Certified({self.lower.size} values, {np.count_nonzero(self.exact)} exact)"
        if self.exact:
            return f"Certified({float(self.lower):.10g}, exact)"
        return f"Certified({float(self.lower):.6g} to {float(self.upper):.6g})"


def worst_case(
    metric: Any,
    u: npt.ArrayLike,
    v: npt.ArrayLike,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    rho: npt.ArrayLike,
    *,
    n_starts: int = 8,
    rng: np.random.Generator | int | None = 0,
    tight: bool = True,
) -> Certified:
    r"""Return the worst-case sharpness of the diagonal network :math:`‖X(u ⊙ v) - y‖^2`, between two bounds.

    The maximum over geodesics of length at most ρ (Eq. 3), without approximation of the geodesics.

    Parameters
    ----------
    metric : "inv", "mix", "adaptive", or InvariantMetric(), MixedMetric() or InterpolatedMetric(s)
    u, v : array_like, shape ``(..., d)``
        Coordinates with u_i v_i = 0 do not move.
    X : array_like, shape ``(..., n, d)``
    y : array_like, shape ``(..., n)``
    rho : array_like, shape ``(...)``
        Leading dimensions of all arguments broadcast: radii of shape ``(k, 1)`` and 50 networks
        give ``(k, 50)`` values.
    n_starts : int
        Random starts where no route is exact, beside those that suggest themselves.
    rng : numpy Generator, or a seed
    tight : bool
        False is some twenty times as fast, where no route is exact, and leaves the bounds further apart: fewer steps
        for `lower`, and for `upper` no decomposition that differs from radius to radius.

    Returns
    -------
    Certified
        Infinite where the loss exceeds the largest float.

    Examples
    --------
    mix with XᵀX = I: 2√2ρ‖β₀ − Xᵀy‖ + 2ρ².

    >>> import refgeo as rg
    >>> result = rg.diagonal.worst_case("mix", [2.0, 1.0], [2.0, 1.0], np.eye(2), [1.0, 5.0], 0.1)
    >>> result
    Certified(1.434213562, exact)
    >>> round(2 * 2**0.5 * 0.1 * 5 + 2 * 0.01, 9)
    1.434213562
    """
    geometry = geometry_of(metric)
    problem = LeastSquares.of(u, v, X, y)
    rho = radii_of(rho, problem.batch)
    n_starts = integer("n_starts", n_starts, least=0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        return _worst_case(problem, geometry, rho, n_starts, np.random.default_rng(seed_of(rng)), bool(tight))


def second_order(
    metric: Any, u: npt.ArrayLike, v: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike, rho: npt.ArrayLike
) -> Certified:
    r"""Return the worst case of the loss's Taylor polynomial of degree two in normal coordinates, exactly, for any X.

    For inv, over ‖b‖ ≤ ρ/√2 (26, 35 with their constants),

    .. math:: 4 b^\top (β_0 ⊙ g) + 4 b^\top [\mathrm{diag}(β_0 ⊙ g) + \mathrm{diag}(β_0) X^\top X \mathrm{diag}(β_0)] b,

    an indefinite trust-region problem. In coordinates t the term diag(β₀ ⊙ g) has the weight W″(0)/β₀, which is 2 for
    inv, 1 for adaptive and 0 for mix: at zero residual inv and adaptive coincide.

    Parameters
    ----------
    metric, u, v, X, y, rho
        As in `worst_case`.

    Returns
    -------
    Certified
        Of the polynomial, not of the loss; for mix it does not know where the manifold ends.

    Examples
    --------
    At zero residual the value is 2ρ² max β₀² for XᵀX = I:

    >>> import refgeo as rg
    >>> rg.diagonal.second_order("inv", [1.0, 3.0], [1.0, 1.0], np.eye(2), [1.0, 3.0], 0.1)
    Certified(0.18, exact)
    """
    geometry = geometry_of(metric)
    problem = LeastSquares.of(u, v, X, y)
    rho = radii_of(rho, problem.batch)
    if geometry.is_linear:
        maximum, t = _trust_region_of_mix(problem, rho)
        t, leaves = _within(problem, geometry, t)
    else:
        maximum = _taylor_maximum(problem, geometry, rho)
        t, leaves = np.where(problem.beta != 0.0, maximum.x, 0.0), np.zeros(rho.shape, dtype=bool)
    return Certified(maximum.lower, maximum.upper, geometry.velocity(problem.u, problem.v, t), t, leaves)


def _taylor_maximum(problem: LeastSquares, geometry: Geometry, rho: Array) -> QuadraticMaximum:
    zero = np.zeros_like(problem.beta)
    slope, curvature = geometry.slope(problem.beta, zero), geometry.curvature(problem.beta, zero)
    B = 2.0 * slope[..., :, None] * problem.gram * slope[..., None, :]
    d = B.shape[-1]
    B = B + (2.0 * problem.g * curvature)[..., None] * np.eye(d)
    return maximise_quadratic(2.0 * problem.g * slope, B, rho)


def _trust_region_of_mix(problem: LeastSquares, rho: Array) -> tuple[QuadraticMaximum, Array]:
    """Maximise in w, in which the matrix is the same for all networks, unless a coordinate cannot move."""
    maximum = maximise_quadratic(2.0 * problem.moving_g, 2.0 * problem.moving(problem.gram), SQRT2 * rho)
    return maximum, maximum.x * np.sign(problem.beta) / SQRT2


def _worst_case(
    problem: LeastSquares, geometry: Geometry, rho: Array, n_starts: int, rng: np.random.Generator, tight: bool
) -> Certified:
    beta, shape = problem.beta, (*rho.shape, problem.beta.shape[-1])
    leaves = np.zeros(rho.shape, dtype=bool)
    is_diagonal = _is_diagonal(problem.gram)
    starts = [_single_coordinate_start(problem, geometry, rho)]
    if geometry.is_linear:
        maximum, t = _trust_region_of_mix(problem, rho)
        t, leaves = _within(problem, geometry, t)
        uppers = [maximum.upper]
        if not leaves.any():
            return _make_certified(problem, geometry, rho, t, uppers, leaves)
    else:
        upper, t = outer.ball(problem, geometry, rho)
        uppers = [upper]
    starts += [t, -t]
    if is_diagonal or (tight and np.any(rho >= _SEPARABLE_FROM)):
        D = separable.dominating_diagonal(problem.moving(problem.gram), beta)
        bound = separable.dual(geometry, beta, problem.moving_g, D, rho)
        uppers.append(bound.upper)
        starts += [bound.inside, bound.outside]
    if not is_diagonal:
        starts += _guesses(problem, geometry, rho, n_starts, rng)
    together = np.stack([np.broadcast_to(start, shape) for start in starts])
    together = _into_ball(np.maximum(together, geometry.lowest(beta)), rho)
    steps = _STEPS if tight else _FEWER_STEPS
    ends, values = ascent.climb(problem, geometry, together, np.broadcast_to(rho, together.shape[:-1]), steps)
    best = np.argmax(np.where(np.isnan(values), -math.inf, values), axis=0)[None]
    t = np.take_along_axis(ends, best[..., None], 0)[0]
    if tight and not geometry.is_linear:
        uppers.append(outer.ellipsoid(problem, geometry, t, rho))
    return _make_certified(problem, geometry, rho, t, uppers, leaves)


def _within(problem: LeastSquares, geometry: Geometry, t: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return t, or −t if only −t is in the domain and as good, as at zero residual; and whether the domain is left
    either way.
    """
    lowest = geometry.lowest(problem.beta)
    leaves = np.any(t < lowest, axis=-1)
    value, opposite = (ascent.value_at(problem, geometry, sign * t) for sign in (1.0, -1.0))
    turn = leaves & ~np.any(-t < lowest, axis=-1) & (opposite >= value * (1.0 - 1e-14))
    return np.where(turn[..., None], -t, t), leaves & ~turn


def _make_certified(
    problem: LeastSquares, geometry: Geometry, rho: Array, t: Array, uppers: list[Array], leaves: npt.NDArray[np.bool_]
) -> Certified:
    t = np.where(problem.beta != 0.0, _into_ball(t, rho), 0.0)
    lower = np.maximum(ascent.value_at(problem, geometry, t), 0.0)
    lower = np.where(np.isnan(lower), math.inf, lower)
    rounding = problem.rounding(geometry.shift(problem.beta, t)) + _ROUNDING * lower
    upper = np.min([_check_bound(bound, lower, rounding) for bound in uppers], axis=0)
    upper = np.where(np.any(problem.beta != 0.0, axis=-1), upper, 0.0)
    short = leaves & (uppers[0] - lower > EXACT * uppers[0])  # for mix, the first bound does not know the domain
    return Certified(lower, upper, geometry.velocity(problem.u, problem.v, t), t, short)


def _check_bound(bound: Array, lower: Array, rounding: Array) -> Array:
    """Return a bound, at least what is reached; one that is beaten by more than rounding is a mistake of ours."""
    bound = np.where(np.isnan(bound), math.inf, bound)
    beaten = bound < lower - rounding
    if np.any(beaten):
        raise ArithmeticError(
            f"refgeo.diagonal: the upper bound is smaller than an increase of the loss that is reached, in "
            f"{np.count_nonzero(beaten)} networks. This is a mistake in refgeo; please report it with the data"
        )
    return np.maximum(bound, lower)


def _into_ball(t: Array, rho: Array) -> Array:
    length = np.linalg.norm(t, axis=-1)
    return t * np.where(length > rho, rho / np.where(length > 0.0, length, 1.0), 1.0)[..., None]


def _is_diagonal(gram: Array) -> bool:
    """Return whether a Gram matrix is diagonal up to rounding."""
    off = np.where(np.eye(gram.shape[-1], dtype=bool), 0.0, gram)
    return bool(np.max(np.abs(off)) <= 1e-13 * np.max(np.abs(gram)))


def _single_coordinate_start(problem: LeastSquares, geometry: Geometry, rho: Array) -> Array:
    """Return the point with the whole radius on the best coordinate, which is the maximizer if ρ is large."""
    beta = problem.beta
    shape = (*rho.shape, beta.shape[-1])
    w = geometry.shift(beta, rho[..., None] * np.ones_like(beta))
    gain = 2.0 * problem.g * w + np.einsum("...ii->...i", problem.gram) * w * w
    start = np.zeros(shape)
    best = np.argmax(np.broadcast_to(gain, shape), axis=-1)[..., None]
    np.put_along_axis(start, best, rho[..., None], axis=-1)
    return start


def _guesses(
    problem: LeastSquares, geometry: Geometry, rho: Array, n_starts: int, rng: np.random.Generator
) -> list[Array]:
    """Return starts for when no route is exact: the gradient, and random points."""
    beta = problem.beta
    guesses: list[Array] = [rho[..., None] * problem.g * geometry.slope(beta, np.zeros_like(beta))]
    shape = (*rho.shape, beta.shape[-1])
    for _ in range(n_starts):
        guesses.append(on_sphere(rng.standard_normal(shape) * (beta != 0.0), rho))
    return guesses
