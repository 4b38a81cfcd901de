r"""The one factorisation: thin QR of both factors and an SVD of :math:`R_G R_H^\top`.

Forming the Gram matrices :math:`S = G^\top G`, :math:`T = H^\top H` squares the condition number, and the Sylvester
equation of the horizontal projection squares it again. Neither is needed. With :math:`G = Q_G R_G`,
:math:`H = Q_H R_H` and :math:`R_G R_H^\top = U Σ V^\top`, the element :math:`A = Σ^{-½} U^\top R_G` of GL(h) carries
:math:`(G, H)` to the *balanced gauge*, where both Gram matrices equal Σ. Everything the metrics need is one of

    root_G        = R_Gᵀ U,    S   = root_G root_Gᵀ
    white_G       = R_G⁻¹ U,   S⁻¹ = white_G white_Gᵀ,   root_Gᵀ white_G = I
    orthonormal_G = Q_G U = G white_G

and the same for H with V. These come straight from QR and triangular solves, hence with errors like κ(G), not κ(G)².

With relaxation ε > 0 (App. H.2) the metric uses ``S + εI``, which is the Gram matrix of G stacked on ``√ε I``: the same
factorisation of the stacked factors gives the same quantities, again without forming a Gram matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from refgeo.arguments import Array
from refgeo.errors import RankDeficientError


@dataclass(frozen=True)
class BalancedGauge:
    """What one factorisation of a base point yields; shapes ``(..., h)`` and ``(..., h, h)`` where not said otherwise.

    Attributes
    ----------
    sigma
        Singular values of the (relaxed) product, descending; a small one is known to within eps times the largest.
    orthonormal_G, orthonormal_H
        Shape ``(..., n, h)`` and ``(..., m, h)``: the singular vectors of G Hᵀ (with relaxation, the rows of the
        stacked factors' singular vectors that belong to G and H, no longer orthonormal).
    root_G, root_H, white_G, white_H
        Square roots of the (relaxed) Gram matrices and of their inverses, see the module's text.
    triangular
        R of both factors, up to powers of two.
    """

    sigma: Array
    orthonormal_G: Array
    orthonormal_H: Array
    root_G: Array
    root_H: Array
    white_G: Array
    white_H: Array
    triangular: tuple[Array, Array]

    @cached_property
    def condition(self) -> Array:
        """The larger condition number of the two factors, one per block.

        Examples
        --------
        >>> float(balance(np.diag([8.0, 1.0]), np.eye(2)).condition)
        8.0
        """
        values_G, values_H = (np.linalg.svd(R, compute_uv=False) for R in self.triangular)
        return np.maximum(values_G[..., 0] / values_G[..., -1], values_H[..., 0] / values_H[..., -1])

    @property
    def to_balanced(self) -> tuple[Array, Array]:
        r"""The group element :math:`A = Σ^{-½} U^\top R_G` that carries the point to its gauge, and its inverse.

        Examples
        --------
        >>> A, A_inverse = balance(np.array([[8.0], [0.0]]), np.array([[2.0], [0.0]])).to_balanced
        >>> A.item(), A_inverse.item()
        (2.0, 0.5)
        """
        root = np.sqrt(self.sigma)[..., None, :]
        return (self.root_G / root).mT, self.white_G * root

    @property
    def representative(self) -> tuple[Array, Array]:
        """The point in the balanced gauge, :math:`(Q_G U Σ^{½}, Q_H V Σ^{½})`.

        Examples
        --------
        >>> balance(np.array([[8.0], [0.0]]), np.array([[2.0], [0.0]])).representative[1]
        array([[4.],
               [0.]])
        """
        root = np.sqrt(self.sigma)[..., None, :]
        return self.orthonormal_G * root, self.orthonormal_H * root


def balance(G: Array, H: Array, relaxation: float = 0.0) -> BalancedGauge:
    r"""Factorise a base point (mathematics in the module's text).

    Parameters
    ----------
    G : ndarray, shape ``(..., n, h)``
    H : ndarray, shape ``(..., m, h)``
    relaxation : float
        ε of App. H.2, added to both Gram matrices.

    Returns
    -------
    BalancedGauge

    Raises
    ------
    RankDeficientError
        A factor has a singular value at or below ``rows · eps`` times its largest.

    Examples
    --------
    >>> gauge = balance(np.array([[3.0], [4.0]]), np.array([[2.0], [0.0]]))
    >>> gauge.sigma
    array([10.])
    """
    G, exponent_G = _scaled(G)
    H, exponent_H = _scaled(H)
    (Q_G, R_G), (Q_H, R_H) = _qr(G), _qr(H)
    triangular = (R_G, R_H)
    if relaxation > 0.0:
        R_G = _relaxed(R_G, relaxation, exponent_G)
        R_H = _relaxed(R_H, relaxation, exponent_H)
        Q_G, Q_H = _divided(G, R_G), _divided(H, R_H)

    U, sigma, V_transposed = np.linalg.svd(R_G @ R_H.mT)
    largest = np.linalg.norm(R_G, axis=(-2, -1)) * np.linalg.norm(R_H, axis=(-2, -1))
    if relaxation > 0.0 or np.any(sigma[..., -1] <= _TELLING * largest):
        # A small singular value of the product has an absolute error; σ_h(G) σ_h(H) is a lower bound for all of them.
        least_G = _check_rank("G", triangular[0], G.shape[-2], exponent_G)
        least_H = _check_rank("H", triangular[1], H.shape[-2], exponent_H)
        sigma = np.maximum(sigma, (least_G * least_H)[..., None])
    # A singular pair (u, v) is determined up to a common sign; fixing it makes the gauge a function of G Hᵀ alone.
    orthonormal_G = Q_G @ U
    signs = _sign_of_largest_entry(orthonormal_G)
    U, V = U * signs, V_transposed.mT * signs

    def restored(array: Array, exponent: Array) -> Array:
        return np.ldexp(array, exponent[..., None, None])

    return BalancedGauge(
        sigma=np.ldexp(sigma, (exponent_G + exponent_H)[..., None]),
        orthonormal_G=orthonormal_G * signs,
        orthonormal_H=Q_H @ V,
        root_G=restored(R_G.mT @ U, exponent_G),
        root_H=restored(R_H.mT @ V, exponent_H),
        white_G=restored(np.linalg.solve(R_G, U), -exponent_G),
        white_H=restored(np.linalg.solve(R_H, V), -exponent_H),
        triangular=triangular,
    )


_TELLING = 1e-10
"""A singular value of the product down to this share of ‖G‖‖H‖ has digits of its own, and the factors full rank."""
_SAFE = 1e6
"""Bound on κ up to which Cholesky's factor of a Gram matrix, twice, is as good as Householder reflections."""
_LARGE = 1 << 12
"""A block of so many numbers is worth more calls."""


def _qr(factor: Array) -> tuple[Array, Array]:
    r"""Q and R of a factor. Products of tall matrices are fast, Householder reflections are not.

    :math:`R_1` of :math:`G^\top G = R_1^\top R_1` leaves :math:`Q_1 = G R_1^{-1}` orthonormal to κ²·eps only; the same
    once more on :math:`Q_1` makes it orthonormal to eps, and :math:`R = R_2 R_1` (CholeskyQR2, Yamamoto et al. 2015).
    One step of refinement makes the product with the inverse as good as solving: :math:`G = Q R` to eps.
    """
    if factor.shape[-2] * factor.shape[-1] < _LARGE:
        return np.linalg.qr(factor)
    try:
        R_1 = np.linalg.cholesky(factor.mT @ factor).mT
        inverse = np.linalg.inv(R_1)
        Q_1 = factor @ inverse
        Q_1 += (factor - Q_1 @ R_1) @ inverse
        R_2 = np.linalg.cholesky(Q_1.mT @ Q_1).mT
    except np.linalg.LinAlgError:
        return np.linalg.qr(factor)
    Q, R = Q_1 @ np.linalg.inv(R_2), R_2 @ R_1
    far = np.linalg.norm(R, axis=(-2, -1)) * np.linalg.norm(inverse, axis=(-2, -1)) > _SAFE
    if np.any(far):
        Q[far], R[far] = np.linalg.qr(factor[far])
    return Q, R


def _scaled(factor: Array) -> tuple[Array, Array]:
    """Each block divided by a power of two near its largest entry (exact), so that products cannot overflow."""
    largest = np.abs(factor).max(axis=(-2, -1), initial=0.0)
    exponent = np.frexp(largest)[1]
    return np.ldexp(factor, -exponent[..., None, None]), exponent


def _relaxed(R: Array, relaxation: float, exponent: Array) -> Array:
    """The R of G stacked on √ε I."""
    root = np.ldexp(np.sqrt(relaxation), -exponent)[..., None, None] * np.eye(R.shape[-1])
    return np.asarray(np.linalg.qr(np.concatenate([R, root], axis=-2), mode="r"))


def _divided(factor: Array, R: Array) -> Array:
    """G R⁻¹."""
    return np.linalg.solve(R.mT, factor.mT).mT


def _check_rank(name: str, R: Array, rows: int, exponent: Array) -> Array:
    """The smallest singular value of a scaled factor, or `RankDeficientError`."""
    values: Array = np.linalg.svd(R, compute_uv=False)
    floor = rows * np.finfo(np.float64).eps * values[..., 0]
    deficient = np.argwhere(values[..., -1] <= floor)
    if len(deficient) == 0:
        return np.asarray(values[..., -1])
    block = tuple(int(i) for i in deficient[0])
    largest, smallest = (float(np.ldexp(values[block][i], exponent[block])) for i in (0, -1))
    where = f"block {block}" if block else "the point"
    raise RankDeficientError(
        f"{name}: expected numerical rank h = {R.shape[-1]}, but the smallest singular value of {where} is "
        f"{smallest:.3g} against a largest of {largest:.3g}; drop dependent columns (a smaller h)",
        block,
        smallest,
    )


def _sign_of_largest_entry(columns: Array) -> Array:
    size = np.abs(columns)
    # The first of those that are largest up to rounding, so that a tie is broken alike along the whole orbit.
    first = (size >= (1.0 - 1e-6) * size.max(axis=-2, keepdims=True)).argmax(axis=-2)
    return np.where(np.take_along_axis(columns, first[..., None, :], axis=-2) < 0, -1.0, 1.0)
