r"""Matrices of intervals that know ``@ + - * .mT``, so that `refgeo.paper` runs on them; this module is their library.

**The Sylvester equation, certified.** In AX + XB = C of the paper, A = PQ and B = P'Q' are products of symmetric
positive definite matrices, and a product remembers its factors. Multiplied by P⁻¹ and Q'⁻¹, the equation is

    N(X) = M₁XM₂ + M₃XM₄ = P⁻¹CQ'⁻¹,    (M₁, M₂, M₃, M₄) = (Q, Q'⁻¹, P⁻¹, P'),

symmetric positive definite as well. Let L and K be *any* matrices that nearly diagonalise the pairs (M₁, M₃) and
(M₂, M₄): LᵀM₁L = D₁^½(I + E₁)D₁^½, and so on for M₂, M₃, M₄ with diagonals D₂, D₃, D₄. With X = LYKᵀ the operator
becomes Y ↦ M̃₁YM̃₂ + M̃₃YM̃₄, close to the diagonal N₀ = d₁ᵢd₂ⱼ + d₃ᵢd₄ⱼ. If ‖Eᵢ‖ ≤ δ for all four, Kronecker products
of Loewner-ordered matrices give

    (1 − δ)² N₀ ≤ N ≤ (1 + δ)² N₀,

so the iteration Y ← Y + N₀⁻¹(R̃ − N(Y)) converges like (2δ + δ²)ᵏ, and any Y whatever is within

    |Y − Y*|_ij ≤ ‖R̃ − N(Y)‖_{N₀⁻¹} / ((1 − δ)² √N₀_ij)

of the solution Y*: a certificate that needs one residual, evaluated in balls, and no system of size h². For L, let R
and R' be roots of P and Q, RᵀR ≈ P, R'ᵀR' ≈ Q, and R'Rᵀ = UΣVᵀ: then L = RᵀV makes LᵀM₃L ≈ I and LᵀM₁L ≈ Σ². K alike.
Roots are doubles; their errors cost time, never truth.

Examples
--------
>>> third = Ball(arb_mat([[3]])).inverse
>>> third.mT.matrix[0, 0].contains(flint.fmpq(1, 3))
True
"""

from __future__ import annotations

import sys
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import flint
import numpy as np
from flint import arb, arb_mat

from refgeo.support.arguments import Array


class EnclosureError(ArithmeticError):
    """No enclosure narrow enough to judge with was found; the value must not be used."""


class Ball:
    """A matrix of intervals, at the working precision of the process.

    It keeps what is asked of it again and again: its transpose, its inverse, its product with its transpose.

    Parameters
    ----------
    matrix : arb_mat
    factors : two Balls, optional
        Of which it is the product.
    """

    __array_ufunc__ = None

    def __init__(self, matrix: arb_mat, factors: tuple[Ball, Ball] | None = None) -> None:
        self.matrix, self.factors = matrix, factors

    @classmethod
    def of(cls, array: Array) -> Ball:
        """Return the matrix, exactly.

        Examples
        --------
        >>> Ball.of(np.array([[0.5]])).matrix[0, 0] == 0.5
        True
        """
        rows, columns = array.shape
        return cls(arb_mat(rows, columns, np.asarray(array, dtype=np.float64).ravel().tolist()))

    def __array_namespace__(self, **_: Any) -> Any:
        return sys.modules[__name__]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.matrix.nrows(), self.matrix.ncols()

    @cached_property
    def mT(self) -> Ball:
        """The transpose."""
        transpose = Ball(self.matrix.transpose(), self.factors and (self.factors[1].mT, self.factors[0].mT))
        transpose.__dict__["mT"] = self
        return transpose

    @cached_property
    def gram(self) -> Ball:
        """The transpose times itself."""
        return Ball(self.mT.matrix * self.matrix, (self.mT, self))

    @cached_property
    def inverse(self) -> Ball:
        """The inverse; ZeroDivisionError where the precision does not tell it from a singular matrix."""
        inverse = Ball(self.matrix.inv())
        inverse.__dict__["inverse"] = self
        return inverse

    @cached_property
    def root(self) -> Array:
        """Of a positive definite matrix, upper triangular doubles R with RᵀR near a multiple of it."""
        if self.factors and self.factors[0].mT is self.factors[1]:
            return np.asarray(np.linalg.qr(_normalise(self.factors[1].matrix), mode="r"))
        return _normalise(_cholesky(self.matrix))

    def __matmul__(self, other: Ball) -> Ball:
        if not isinstance(other, Ball):
            return NotImplemented
        if other.__dict__.get("mT") is self:
            return other.gram
        return Ball(self.matrix * other.matrix, (self, other))

    def __add__(self, other: Ball) -> Ball:
        return Ball(self.matrix + other.matrix)

    def __sub__(self, other: Ball) -> Ball:
        return Ball(self.matrix - other.matrix)

    def __neg__(self) -> Ball:
        return Ball(-self.matrix)

    def __mul__(self, other: Any) -> Ball:
        """Multiply by a number, or entry by entry."""
        if isinstance(other, Ball):
            products = [x * y for x, y in zip(self.matrix.entries(), other.matrix.entries(), strict=True)]
            return Ball(arb_mat(*self.shape, products))
        return Ball(self.matrix * arb(other))

    __rmul__ = __mul__


def solve(A: Ball, B: Ball) -> Ball:
    """Return A⁻¹B.

    Examples
    --------
    >>> solve(Ball.of(np.array([[4.0]])), Ball.of(np.array([[2.0]]))).matrix[0, 0] == 0.5
    True
    """
    return A.inverse @ B


linalg = SimpleNamespace(solve=solve)


def diagonal(M: Ball, *_: int) -> Any:
    """Return the diagonal, an array of intervals.

    Examples
    --------
    >>> diagonal(Ball.of(np.eye(2))).sum() == 2
    True
    """
    return np.array([M.matrix[i, i] for i in range(M.shape[0])], dtype=object)


def identity_like(M: Ball) -> Ball:
    """Return I, of the size of M.

    Examples
    --------
    >>> identity_like(Ball.of(np.ones((2, 2)))).matrix[0, 1] == 0
    True
    """
    return Ball.of(np.eye(M.shape[0]))


def solve_sylvester(A: Ball, B: Ball, C: Ball) -> Ball:
    """Return X with AX + XB = C, where A and B are products of symmetric positive definite matrices.

    Raises
    ------
    EnclosureError
        The matrices are too ill-conditioned for a certificate.

    Examples
    --------
    >>> A, B = (Ball.of(np.array([[x]])) @ Ball.of(np.array([[1.0]])) for x in (1.0, 3.0))
    >>> solve_sylvester(A, B, Ball.of(np.array([[8.0]]))).matrix[0, 0].contains(2)
    True
    """
    if A.factors is None or B.factors is None:
        raise TypeError("A, B: expected products of two matrices")
    (P, Q), (other_P, other_Q) = A.factors, B.factors
    L, K = _diagonalising(Q.root, P.root), _diagonalising(other_P.root, other_Q.root)
    operators = [_in_basis(M, basis) for M, basis in ((Q, L), (other_Q.inverse, K), (P.inverse, L), (other_P, K))]
    delta = max(_distance_from_diagonal(M) for M in operators)
    if not delta < 0.4:  # (1 + 0.4)² − 1 < 1: beyond it the iteration need not converge
        raise EnclosureError("the factors are too ill-conditioned to solve the Sylvester equation with proved bounds")
    h, target = C.shape[0], (L.mT @ (P.inverse @ C @ other_Q.inverse) @ K).matrix
    d1, d2, d3, d4 = ([M[i, i].mid() for i in range(h)] for M in operators)
    inverse = [1 / (d1[i] * d2[j] + d3[i] * d4[j]) for i in range(h) for j in range(h)]

    def residual(Y: arb_mat) -> arb_mat:
        M1, M2, M3, M4 = operators
        return target - (M1 * Y * M2 + M3 * Y * M4)

    Y = arb_mat(h, h)
    for _ in range(_steps((1.0 + delta) ** 2 - 1.0)):
        Y = (Y + arb_mat(h, h, [r * d for r, d in zip(residual(Y).entries(), inverse, strict=True)])).mid()
    weighted = sum((r * r * d for r, d in zip(residual(Y).entries(), inverse, strict=True)), arb(0))
    radius = weighted.abs_upper().sqrt() / (1 - arb(delta)) ** 2
    corrected = [y + arb(0, (radius * d.sqrt()).abs_upper()) for y, d in zip(Y.entries(), inverse, strict=True)]
    return L @ Ball(arb_mat(h, h, corrected)) @ K.mT


def _diagonalising(first: Array, second: Array) -> Ball:
    """Return L = RᵀV for R'Rᵀ = UΣVᵀ, of the module's text; R' is the first root and R the second."""
    return Ball.of(second.T @ np.linalg.svd(first @ second.T)[2].T)


def _in_basis(M: Ball, basis: Ball) -> arb_mat:
    return (basis.mT @ M @ basis).matrix


def _distance_from_diagonal(M: arb_mat) -> float:
    """Return an upper bound of ‖D^-½ M D^-½ − I‖, D the midpoint of the diagonal."""
    h = M.nrows()
    lengths = [M[i, i].mid() for i in range(h)]
    if not all(length > 0 for length in lengths):
        return np.inf
    roots = [length.sqrt() for length in lengths]
    entries = (M[i, j] / (roots[i] * roots[j]) - int(i == j) for i in range(h) for j in range(h))
    return float(sum((entry * entry for entry in entries), arb(0)).abs_upper().sqrt().abs_upper()) * (1 + 2.0**-50)


def _steps(contraction: float) -> int:
    """Return the number of steps until a contracting iteration has reached the working precision."""
    return int(np.ceil(-flint.ctx.prec / np.log2(max(contraction, 2.0**-52))))


def read(M: arb_mat) -> tuple[Array, Array]:
    """Return midpoints and radii, rounded to doubles.

    Examples
    --------
    >>> read(arb_mat([[arb(1, 0.5)]]))
    (array([[1.]]), array([[0.5]]))
    """
    shape, entries = (M.nrows(), M.ncols()), M.entries()
    mid = np.array([float(entry) for entry in entries]).reshape(shape)
    return mid, np.array([float(entry.rad()) for entry in entries]).reshape(shape)


def _normalise(M: arb_mat) -> Array:
    """Return the midpoints as doubles, divided by a power of two that makes them of order one."""
    largest = max((abs(entry.mid()) for entry in M.entries()), default=arb(0))
    exponent = largest.man_exp()
    power = int(exponent[1]) + int(exponent[0]).bit_length() if largest > 0 else 0
    return read((M * arb(2) ** -power).mid())[0]


def _cholesky(M: arb_mat) -> arb_mat:
    """Return the upper triangular R with RᵀR = M, of midpoints."""
    h, R = M.nrows(), np.zeros((M.nrows(), M.nrows()), dtype=object)
    for i in range(h):
        row = np.array([M[i, j].mid() for j in range(i, h)], dtype=object) - R[:i, i] @ R[:i, i:]
        if not row[0] > 0:
            raise EnclosureError("the matrix is not positive definite at this precision")
        R[i, i:] = [(x / row[0].sqrt()).mid() for x in row]
    return arb_mat(R.tolist())
