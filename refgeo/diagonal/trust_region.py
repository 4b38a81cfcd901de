r"""The trust-region subproblem: the global maximum of a quadratic on a ball, also where it is not concave.

.. math:: \max_{‖x‖ ≤ ρ} c^\top x + ½ x^\top B x

x is a global maximizer exactly if some λ ≥ max(0, λ_max(B)) has (λI − B) x = c and λ(ρ − ‖x‖) = 0 (Moré & Sorensen
1983). In the eigenbasis of B, with gaps δ_i = λ_max − w_i and the unknown μ = λ − λ_max, ‖x‖ is a decreasing function
of μ alone, x_i = c_i / (μ + δ_i). In the *hard case* c has no part in the top eigenspace and even μ = 0 leaves ‖x‖ < ρ:
then a top eigenvector fills the rest.

For any admissible λ, ½(λρ² + Σ c_i² / (λ − w_i)) is an upper bound (Lagrange's dual), so every solution is certified.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refgeo.support.arguments import Array


class QuadraticMaximum(NamedTuple):
    """The solution of a trust-region subproblem; leading dimensions are independent problems.

    ``x`` is the maximizer, ``lower`` the value there, ``upper`` a bound that no point of the ball exceeds and
    ``multiplier`` its λ.
    """

    x: Array
    lower: Array
    upper: Array
    multiplier: Array


def maximise_quadratic(c: npt.ArrayLike, B: npt.ArrayLike, radius: npt.ArrayLike) -> QuadraticMaximum:
    r"""Return the global maximum of :math:`c^\top x + ½ x^\top B x` over ‖x‖ ≤ radius.

    Parameters
    ----------
    c : array_like, shape ``(..., n)``
    B : array_like, shape ``(..., n, n)``
        Symmetric, of any signature.
    radius : array_like, shape ``(...)``
        Positive.

    Returns
    -------
    QuadraticMaximum
        ``upper - lower`` is of the order of rounding.

    Examples
    --------
    The hard case: c is orthogonal to the top eigenvector.

    >>> result = maximise_quadratic([1.0, 0.0], [[0.0, 0.0], [0.0, 2.0]], 1.0)
    >>> abs(result.x).round(12).tolist(), round(float(result.lower), 12)
    ([0.5, 0.866025403784], 1.25)
    """
    c, B = np.asarray(c, dtype=np.float64), np.asarray(B, dtype=np.float64)
    w, V = np.linalg.eigh(B)
    maximum = maximise_diagonal_quadratic((V.mT @ c[..., None])[..., 0], w, radius)
    return maximum._replace(x=(V @ maximum.x[..., None])[..., 0])


def maximise_diagonal_quadratic(c: npt.ArrayLike, w: npt.ArrayLike, radius: npt.ArrayLike) -> QuadraticMaximum:
    r"""Return the same for a diagonal matrix: :math:`\sum c_i x_i + ½ w_i x_i^2`.

    Parameters
    ----------
    c, w : array_like, shape ``(..., n)``
    radius : array_like, shape ``(...)``

    Returns
    -------
    QuadraticMaximum

    Examples
    --------
    Inside the ball, where the quadratic is concave and its maximum near:

    >>> result = maximise_diagonal_quadratic([1.0], [-4.0], 1.0)
    >>> result.x.tolist(), float(result.lower), float(result.multiplier)
    ([0.25], 0.125, 0.0)
    """
    c, w, rho = (np.asarray(array, dtype=np.float64) for array in (c, w, radius))
    if c.ndim == 0 or c.shape[-1] == 0:
        raise ValueError(f"c: expected at least one coefficient, got shape {c.shape}")
    c, w, rho = np.broadcast_arrays(c, w, rho[..., None])
    rho = rho[..., 0]
    for name, array in (("c", c), ("w", w), ("radius", rho)):
        if not np.isfinite(array).all() or (name == "radius" and not np.all(array > 0.0)):
            raise ValueError(f"{name}: expected finite numbers{' > 0' if name == 'radius' else ''}")
    # in units in which c and wρ are at most 1, squares neither overflow nor matter where they underflow
    size = np.maximum(np.max(np.abs(c), axis=-1), np.max(np.abs(w), axis=-1) * rho)
    size = np.where(size > 0.0, size, 1.0)
    maximum = _maximise_on_unit_ball(c / size[..., None], w / (size / rho)[..., None])
    return QuadraticMaximum(
        maximum.x * rho[..., None],
        maximum.lower * size * rho,
        maximum.upper * size * rho,
        maximum.multiplier * size / rho,
    )


def _maximise_on_unit_ball(c: Array, w: Array) -> QuadraticMaximum:
    """Return the same on the unit ball, for coefficients of the order of 1."""
    c = np.where(np.abs(c) < 1e-150, 0.0, c)
    top = np.max(w, axis=-1)
    gaps = top[..., None] - w
    least = np.maximum(0.0, -top)  # of μ, so that λ ≥ 0
    mu = np.maximum(_secular_root(c, gaps), least)
    x = _quotient(c, mu[..., None] + gaps)
    x = x + _fill(x, gaps, np.where(mu > least, mu, 0.0) == 0.0, top)
    length = np.linalg.norm(x, axis=-1)
    x = x / np.maximum(length, 1.0)[..., None]  # rounding only
    lower = np.sum(c * x + 0.5 * w * x * x, axis=-1)
    multiplier = np.maximum(mu + top, 0.0)
    dual = 0.5 * (multiplier + np.sum(_quotient(c, mu[..., None] + gaps) * c, axis=-1))
    return QuadraticMaximum(x, lower, np.maximum(dual, lower), multiplier)


def _quotient(c: Array, denominator: Array) -> Array:
    """Return the ratio c / denominator, 0 where c is."""
    return np.divide(c, denominator, out=np.zeros_like(c), where=c != 0.0)


def _secular_root(c: Array, gaps: Array) -> Array:
    """Return the μ ≥ 0 with ‖c / (μ + gaps)‖ = 1, and 0 in the hard case.

    Newton's method on 1/‖x(μ)‖ − 1, a concave increasing function: from below it never passes the root, and it is
    exact where one component dominates. ‖c_top‖ ≤ μ ≤ ‖c‖.
    """
    in_top = gaps == 0.0
    lower = np.linalg.norm(np.where(in_top, c, 0.0), axis=-1)
    mu: Array = np.asarray(lower, dtype=np.float64)
    for _ in range(200):
        denominator = mu[..., None] + gaps
        x = _quotient(c, denominator)
        length = np.linalg.norm(x, axis=-1)
        slope = np.sum(_quotient(x * x, denominator), axis=-1)
        # d/dμ (1/‖x‖) = Σ x²/(μ+δ) / ‖x‖³
        step = np.divide(length**2 * (length - 1.0), slope, out=np.zeros_like(mu), where=slope > 0.0)
        moved: Array = np.maximum(mu + step, lower)
        settled = np.abs(moved - mu) <= 4.0 * np.finfo(np.float64).eps * moved
        mu = moved
        if np.all(settled):
            break
    return mu


def _fill(x: Array, gaps: Array, on_edge: npt.NDArray[np.bool_], top: Array) -> Array:
    """Return what a top eigenvector adds in the hard case, in which λ = λ_max > 0 and ‖x‖ < 1."""
    rest = np.sqrt(np.maximum(1.0 - np.sum(x * x, axis=-1), 0.0))
    fill = np.zeros_like(x)
    where = np.argmax(gaps == 0.0, axis=-1)[..., None]
    amount = np.where(on_edge & (top > 0.0), rest, 0.0)
    np.put_along_axis(fill, where, amount[..., None], axis=-1)
    return fill
