r"""The one factorisation: R of a thin QR of both factors, and an SVD of :math:`R_G R_H^\top`.

Forming the Gram matrices :math:`S = G^\top G`, :math:`T = H^\top H` squares the condition number, and the Sylvester
equation of the horizontal projection squares it again. Neither is needed. With :math:`G = Q_G R_G`,
:math:`H = Q_H R_H` and :math:`R_G R_H^\top = U Σ V^\top`, the element :math:`A = Σ^{-½} U^\top R_G` of GL(h) carries
:math:`(G, H)` to the *balanced gauge*, where both Gram matrices equal Σ. Everything the metrics need is one of

    root_G        = R_Gᵀ U,    S   = root_G root_Gᵀ
    white_G       = R_G⁻¹ U,   S⁻¹ = white_G white_Gᵀ,   root_Gᵀ white_G = I
    Q_G           = G white_G

and the same for H with V. These come from a triangular factor and solves with it, hence with errors like κ(G), not
κ(G)². (`refgeo.geometry.accelerated` has the same for many large blocks, faster.)

With relaxation ε > 0 (App. H.2) the metric uses ``S + εI``, which is the Gram matrix of G stacked on ``√ε I``: R of the
stacked factors gives the same quantities, again without forming a Gram matrix.

Factors can be complex (planes of rotary positions); then ᵀ is the conjugate transpose, here and in the geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from refgeo.support.arguments import Array
from refgeo.support.errors import RankDeficientError


@dataclass(frozen=True)
class BalancedGauge:
    """What one factorisation of a base point yields; shapes ``(..., h)`` and ``(..., h, h)`` where not said otherwise.

    Attributes
    ----------
    sigma
        Singular values of the (relaxed) product, descending; a small one is known to within eps times the largest.
    root_G, root_H, white_G, white_H
        Square roots of the (relaxed) Gram matrices and of their inverses, see the module's text.
    factors, turns
        What `columns` are the products of; a turn that is None is the identity.
    triangular
        R of both factors without relaxation, up to powers of two.
    relaxed
        Whether the Gram matrices are relaxed.
    """

    sigma: Array
    root_G: Array
    root_H: Array
    white_G: Array
    white_H: Array
    factors: tuple[Array, Array]
    turns: tuple[Array | None, Array | None]
    triangular: tuple[Array, Array]
    relaxed: bool

    @cached_property
    def columns(self) -> tuple[Array, Array]:
        """Shape ``(..., n, h)`` and ``(..., m, h)``: the singular vectors of G Hᵀ; with relaxation G white_G and
        H white_H, which are not orthonormal.

        Examples
        --------
        >>> balance(np.array([[3.0], [4.0]]), np.array([[2.0], [0.0]])).columns[0].round(12)
        array([[0.6],
               [0.8]])
        """
        G, H = (F if turn is None else F @ turn for F, turn in zip(self.factors, self.turns, strict=True))
        return G, H

    @cached_property
    def condition(self) -> Array:
        """The larger condition number of the two factors, one per block.

        Examples
        --------
        >>> float(balance(np.diag([8.0, 1.0]), np.eye(2)).condition)
        8.0
        """
        return np.maximum(*self._conditions)

    @cached_property
    def condition_of_product(self) -> Array:
        """The product of both condition numbers, one per block: at least that of G Hᵀ.

        Examples
        --------
        >>> float(balance(np.diag([8.0, 1.0]), np.diag([1.0, 2.0])).condition_of_product)
        16.0
        """
        of_G, of_H = self._conditions
        return of_G * of_H

    @cached_property
    def _conditions(self) -> tuple[Array, Array]:
        values_G, values_H = (np.linalg.svd(R, compute_uv=False) for R in self.triangular)
        return values_G[..., 0] / values_G[..., -1], values_H[..., 0] / values_H[..., -1]

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
        Q_G, Q_H = self.columns
        return Q_G * root, Q_H * root


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
        A factor has a singular value at or below ``rows · eps`` times its largest, or fewer rows than columns.

    Examples
    --------
    >>> gauge = balance(np.array([[3.0], [4.0]]), np.array([[2.0], [0.0]]))
    >>> gauge.sigma
    array([10.])
    """
    check_sizes(G, H)
    (Q_G, R_G), (Q_H, R_H) = np.linalg.qr(G), np.linalg.qr(H)
    return from_triangular(G, H, (Q_G, Q_H), (R_G, R_H), relaxation)


def check_sizes(G: Array, H: Array) -> None:
    """Raise `RankDeficientError` unless h ≤ min(n, m).

    Examples
    --------
    >>> check_sizes(np.ones((3, 2)), np.ones((2, 2)))
    """
    n, m, h = G.shape[-2], H.shape[-2], G.shape[-1]
    if h > min(n, m):
        raise RankDeficientError(
            f"G, H: expected h <= min(n, m) for full column rank, got h = {h}, n = {n}, m = {m}; "
            "you may have to transpose the factors", (), 0.0,
        )  # fmt: skip


def from_triangular(
    G: Array, H: Array, orthonormal: Sequence[Array | None], R: Sequence[Array], relaxation: float = 0.0
) -> BalancedGauge:
    """Return the gauge from triangular factors of G and H; an orthonormal one that is None is G R⁻¹.

    Examples
    --------
    >>> G, H = np.array([[3.0], [4.0]]), np.array([[2.0], [0.0]])
    >>> from_triangular(G, H, (None, None), (np.array([[5.0]]), np.array([[2.0]]))).columns[0]
    array([[0.6],
           [0.8]])
    """
    (R_G, exponent_G), (R_H, exponent_H) = triangular = scale_exactly(R[0]), scale_exactly(R[1])
    if relaxation > 0.0:
        R_G, R_H = _add_relaxation(R_G, relaxation, exponent_G), _add_relaxation(R_H, relaxation, exponent_H)
    U, sigma, V = np.linalg.svd(R_G @ R_H.conj().mT)
    V = V.conj().mT
    largest = np.linalg.norm(R_G, axis=(-2, -1)) * np.linalg.norm(R_H, axis=(-2, -1))
    if relaxation > 0.0 or not np.all(sigma[..., -1] > _TELLING * largest):
        # A small singular value of the product has an absolute error; σ_h(G) σ_h(H) is a lower bound for all of them.
        least = [
            _check_rank(name, factor, rows, exponent)
            for name, (factor, exponent), rows in zip("GH", triangular, (G.shape[-2], H.shape[-2]), strict=True)
        ]
        sigma = np.maximum(sigma, (least[0] * least[1])[..., None])
    white_G, white_H = np.linalg.solve(R_G, U), np.linalg.solve(R_H, V)
    white_G = white_G * np.ldexp(1.0, -exponent_G[..., None, None])
    # A singular pair (u, v) is determined up to a common sign; fixing it makes the gauge a function of G Hᵀ alone.
    signs = _signs(G, white_G)
    U, V, white_G, white_H = U * signs, V * signs, white_G * signs, white_H * signs
    powers = np.ldexp(1.0, exponent_G)[..., None, None], np.ldexp(1.0, exponent_H)[..., None, None]
    white_H = white_H / powers[1]
    Q_G, Q_H = (None, None) if relaxation > 0.0 else orthonormal
    # a tall factor is turned at once, so that there are not two
    A_G, turn_G = (G, white_G) if Q_G is None else (Q_G @ U, None)
    A_H, turn_H = (H, white_H) if Q_H is None else (Q_H @ V, None)
    with np.errstate(over="ignore", under="ignore"):
        sigma = np.ldexp(sigma, (exponent_G + exponent_H)[..., None])
    return BalancedGauge(
        sigma=sigma,
        root_G=R_G.conj().mT @ U * powers[0],
        root_H=R_H.conj().mT @ V * powers[1],
        white_G=white_G,
        white_H=white_H,
        factors=(A_G, A_H),
        turns=(turn_G, turn_H),
        triangular=(triangular[0][0], triangular[1][0]),
        relaxed=relaxation > 0.0,
    )


_TELLING = 1e-10
"""Above this share of ‖G‖‖H‖ a singular value of the product is accurate, and the factors have full rank."""


def scale_exactly(R: Array) -> tuple[Array, Array]:
    """Return R divided by a power of two near its largest entry (exact), so that products cannot overflow; and the
    power.

    Examples
    --------
    >>> scale_exactly(np.array([[6.0], [-8.0]]))
    (array([[ 0.375],
           [-0.5  ]]), np.int32(4))
    """
    exponent = np.frexp(np.abs(R).max(axis=(-2, -1), initial=0.0))[1]
    return R * np.ldexp(1.0, -exponent[..., None, None]), exponent


def _add_relaxation(R: Array, relaxation: float, exponent: Array) -> Array:
    """Return the R of G stacked on √ε I."""
    root = np.ldexp(np.sqrt(relaxation), -exponent)[..., None, None] * np.eye(R.shape[-1])
    return np.asarray(np.linalg.qr(np.concatenate([R, root], axis=-2), mode="r"))


def lacks_rank(values: Array, rows: int) -> npt.NDArray[np.bool_]:
    """Return whether a factor has a numerical rank below h, by its h singular values, the largest first.

    Examples
    --------
    >>> lacks_rank(np.array([[1.0, 0.1], [1.0, 1e-17]]), 5)
    array([False,  True])
    """
    return np.asarray(values[..., -1] <= rows * np.finfo(np.float64).eps * values[..., 0])


def _check_rank(name: str, R: Array, rows: int, exponent: Array) -> Array:
    """Return the smallest singular value of a scaled factor, or raise `RankDeficientError`."""
    values: Array = np.linalg.svd(R, compute_uv=False)
    deficient = np.argwhere(lacks_rank(values, rows))
    if len(deficient) == 0:
        return np.asarray(values[..., -1])
    block = tuple(int(i) for i in deficient[0])
    largest, smallest = (float(np.ldexp(values[block][i], exponent[block])) for i in (0, -1))
    where = f"block {block}" if block else "the point"
    advice = (
        "it is zero, as B of a fresh low-rank adapter is; train a step first, or freeze this block"
        if largest == 0.0
        else "drop linearly dependent columns, which makes h smaller"
    )
    raise RankDeficientError(
        f"{name}: expected numerical rank h = {R.shape[-1]}, but the smallest singular value of {where} is "
        f"{smallest:.3g} and the largest is {largest:.3g}; {advice}",
        block,
        smallest,
    )


def _signs(G: Array, white: Array) -> Array:
    """Return ±1 a column (a phase, if it is complex): that of its product with a vector that nothing is orthogonal to
    but by accident.
    """
    along = ((probe_vector(G.shape[-2]) @ G)[..., None, :] @ white).conj()
    size = np.abs(along)
    return np.where(size > 0.0, along / np.where(size > 0.0, size, 1.0), 1.0)


@lru_cache(maxsize=64)
def probe_vector(n: int) -> Array:
    """Return a fixed vector that nothing is orthogonal to but by accident.

    Examples
    --------
    >>> probe_vector(2).round(3)
    array([0.841, 0.909])
    """
    return np.sin(1.0 + np.arange(n, dtype=np.float64) ** 2)
