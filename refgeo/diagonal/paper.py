r"""The paper's printed formulas, for comparison with the paper and never as the answer.

They measure the ball as ‖b‖ ≤ ρ, although ‖η‖² = 2‖b‖², and hold for XᵀX = I, where β* = Xᵀy. For other X the text
takes the least-norm solution for β*, which is X⁺y when d > n.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refgeo.diagonal.certified import worst_case
from refgeo.diagonal.geometry import SQRT2
from refgeo.diagonal.problem import LeastSquares, applied
from refgeo.diagonal.trust_region import maximise_diagonal_quadratic
from refgeo.support.arguments import Array, radii_of, real_array


def paper_25(u: npt.ArrayLike, v: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike, rho: npt.ArrayLike) -> Array:
    """The inv sharpness (25) with the printed ball, ‖b‖ ≤ ρ: that of a radius √2 times as large; for any X.

    Parameters
    ----------
    u, v : array_like, shape ``(..., d)``
    X : array_like, shape ``(..., n, d)``
    y : array_like, shape ``(..., n)``
    rho : array_like

    Returns
    -------
    ndarray
        The lower bound; `refgeo.diagonal.worst_case` of that radius has both.

    Examples
    --------
    >>> import refgeo as rg
    >>> arguments = [1.0, 2.0], [1.0, 1.0], np.eye(2), [1.0, 1.0]
    >>> printed = rg.diagonal.paper_25(*arguments, 0.1)
    >>> bool(printed == rg.diagonal.worst_case("inv", *arguments, 0.1 * 2**0.5).lower)
    True
    """
    problem = LeastSquares.of(u, v, X, y)
    return worst_case("inv", u, v, X, y, radii_of(rho, problem.batch) * SQRT2).lower


def paper_26(u: npt.ArrayLike, v: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike, rho: npt.ArrayLike) -> Array:
    r"""The second-order inv sharpness as printed: max of :math:`4b^\top r' + 4b^\top D b` over ‖b‖ ≤ ρ.

    With r′ = β₀ ⊙ (β₀ − β*) and D = diag(β₀(2β₀ − β*)), both for XᵀX = I.

    Parameters
    ----------
    u, v : array_like, shape ``(..., d)``
    X : array_like, shape ``(..., n, d)``
    y : array_like, shape ``(..., n)``
    rho : array_like

    Returns
    -------
    ndarray

    Examples
    --------
    At the minimum 4ρ² max β₀², where the metric's ball gives half of it (and the text of E.1 a quarter):

    >>> import refgeo as rg
    >>> rg.diagonal.paper_26([1.0, 3.0], [1.0, 1.0], np.eye(2), [1.0, 3.0], 0.1).round(12)
    np.float64(0.36)
    """
    problem = LeastSquares.of(u, v, X, y)
    beta, optimum = problem.beta, _least_norm(X, y)
    radii = radii_of(rho, problem.batch)
    return maximise_diagonal_quadratic(4.0 * beta * (beta - optimum), 8.0 * beta * (2.0 * beta - optimum), radii).lower


def paper_35(u: npt.ArrayLike, v: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike, rho: npt.ArrayLike) -> Array:
    """The mix sharpness as printed: ρ‖β₀ − β*‖, for 2√2ρ‖β₀ − β*‖ + 2ρ².

    Parameters
    ----------
    u, v : array_like, shape ``(..., d)``
    X : array_like, shape ``(..., n, d)``
    y : array_like, shape ``(..., n)``
    rho : array_like

    Returns
    -------
    ndarray

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.diagonal.paper_35([1.0, 3.0], [1.0, 1.0], np.eye(2), [4.0, 7.0], 0.1).round(12)
    np.float64(0.5)
    """
    problem = LeastSquares.of(u, v, X, y)
    return np.asarray(radii_of(rho, problem.batch) * np.linalg.norm(problem.beta - _least_norm(X, y), axis=-1))


def _least_norm(X: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """X⁺y."""
    return applied(np.linalg.pinv(real_array("X", X)), real_array("y", y))
