r"""The metrics between inv and mix in balls: what the paper does not have.

⟨a, b⟩ = tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H) with M_G = S⁻¹ #ₛ T and M_H = T⁻¹ #ₛ S. A with A⁻ᵀSA⁻¹ = ATAᵀ = Σ, from Arb's
certified eigenvectors of S T, gives M_G = A⁻¹Σ²ˢ⁻¹A⁻ᵀ. There the derivatives M' of the weights are entry by entry the
divided differences of x ↦ xˢ and xˢ⁻¹ at σ², and Koszul's formula reads

    Γ(a, b)_G = {½(b_G M_G'[a] + a_G M_G'[b]) − G W_G} M_G⁻¹,    W_G = M'_G with ½(a_Gᵀb_G + b_Gᵀa_G) for Ṡ, alike Ṫ.

Points where singular values of G Hᵀ coincide are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint import acb_mat, arb, arb_mat

from refgeo import paper
from refgeo.exact.ball import Ball, EnclosureError

Balls = Sequence[Ball]


class BetweenPoint:
    """The operations of `refgeo.paper` for S⁻¹ #ₛ T, at one point.

    Parameters
    ----------
    s : float, 0 < s < 1
    G, H : Ball
    relaxation : arb
    """

    def __init__(self, s: float, G: Ball, H: Ball, relaxation: arb) -> None:
        self.s, self.factors = arb(s), (G, H)
        self.S, self.T = paper.grams(G, H)
        self.A, self.squares = _balancing(*paper.grams(G, H, relaxation))
        power = _diagonal([x ** (self.s - arb(1) / 2) for x in self.squares])
        inverse = _diagonal([x ** (arb(1) / 2 - self.s) for x in self.squares])
        self.weights = self._carry(power, power)
        self.raising = self.A.mT @ inverse @ self.A, self.A.inverse @ inverse @ self.A.inverse.mT

    def inner_product(self, *vectors: Ball) -> arb:
        """Return tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H)."""
        a, b = vectors[:2], vectors[2:]
        G, H = (paper.trace(M @ (x.mT @ y)) for M, x, y in zip(self.weights, a, b, strict=True))
        return arb(G + H)

    def riemannian_gradient(self, *e: Ball) -> tuple[Ball, Ball]:
        """Return (e_G M_G⁻¹, e_H M_H⁻¹)."""
        return e[0] @ self.raising[0], e[1] @ self.raising[1]

    def horizontal_projection(self, *v: Ball) -> tuple[Ball, Ball]:
        """Return (v_G + GΛ, v_H − HΛᵀ), of the normal equations S Λ M_G + M_H Λ T = M_H v_HᵀH − Gᵀv_G M_G."""
        (G, H), (N_G, N_H) = self.factors, self.raising
        right_side = (v[1].mT @ H) @ N_G - N_H @ (G.mT @ v[0])
        L = paper.sylvester(N_H @ self.S, self.T @ N_G, right_side)
        return v[0] + G @ L, v[1] - H @ L.mT

    def christoffel(self, *vectors: Ball) -> tuple[Ball, Ball]:
        """Return Γ(a, b)."""
        a, b = vectors[:2], vectors[2:]
        half = arb(1) / 2
        between = self._derivative(*(paper.sym(x.mT @ y) * half for x, y in zip(a, b, strict=True)))
        along_a, along_b = self._along(a), self._along(b)
        G, H = (
            (y @ along_a[i] * half + x @ along_b[i] * half - F @ between[i]) @ self.raising[i]
            for i, (F, x, y) in enumerate(zip(self.factors, a, b, strict=True))
        )
        return G, H

    def christoffel_adjoint(self, *vectors: Ball) -> tuple[Ball, Ball]:
        """Return Γ(a, ·)* e: (Ṡ, Ṫ) ↦ (M_G', M_H') is its own adjoint in tr(M_G'X) + tr(M_H'Y)."""
        a, raised = vectors[:2], self.riemannian_gradient(*vectors[2:])
        half = arb(1) / 2
        bends = self._derivative(*(paper.sym(f.mT @ x) * half for f, x in zip(raised, a, strict=True)))
        falls = self._derivative(*(paper.sym(f.mT @ F) * half for f, F in zip(raised, self.factors, strict=True)))
        along = self._along(a)
        G, H = (
            f @ along[i] * half + F @ bends[i] - x @ falls[i]
            for i, (F, x, f) in enumerate(zip(self.factors, a, raised, strict=True))
        )
        return G, H

    def riemannian_hessian(self, *vectors: Ball) -> tuple[Ball, Ball]:
        """Return the horizontal part of the gradient of w − Γ(v, ·)* e."""
        e, w, v = vectors[:2], vectors[2:4], vectors[4:]
        falling = self.christoffel_adjoint(*v, *e)
        return self.horizontal_projection(*self.riemannian_gradient(w[0] - falling[0], w[1] - falling[1]))

    def geodesic(self, v_G: Ball, v_H: Ball, t: arb, order: Any) -> tuple[Ball, Ball]:
        """Return θ + tv, or θ + tv − ½t²Γ(v, v)."""
        bend = self.christoffel(v_G, v_H, v_G, v_H)
        half = t * t / 2 if order == 2 else arb(0)
        G, H = (F + x * t - c * half for F, x, c in zip(self.factors, (v_G, v_H), bend, strict=True))
        return G, H

    def _along(self, v: Balls) -> tuple[Ball, Ball]:
        """Return the derivatives of the weights along a vector."""
        return self._derivative(*(paper.sym(x.mT @ F) for x, F in zip(v, self.factors, strict=True)))

    def _derivative(self, S_dot: Ball, T_dot: Ball) -> tuple[Ball, Ball]:
        """Return the derivatives of S⁻¹ #ₛ T and T⁻¹ #ₛ S along derivatives of S and T."""
        A, alpha = self.A, self._divided_differences(self.s - 1, arb(1) / 2)
        beta = self._divided_differences(self.s, arb(0))
        moved_S, moved_T = A.inverse.mT @ S_dot @ A.inverse, A @ T_dot @ A.mT
        return self._carry(alpha * moved_S + beta * moved_T, alpha * moved_T + beta * moved_S)

    def _carry(self, G: Ball, H: Ball) -> tuple[Ball, Ball]:
        """Transform weights of the gauge to the point."""
        return self.A.inverse @ G @ self.A.inverse.mT, self.A.mT @ H @ self.A

    def _divided_differences(self, power: arb, weight: arb) -> Ball:
        """Return (xᵢxⱼ)ʷ (xᵢᵖ − xⱼᵖ)/(xᵢ − xⱼ), x = σ², and its limit on the diagonal."""

        def entry(x: arb, y: arb) -> arb:
            quotient = power * x ** (power - 1) if x is y else (x**power - y**power) / (x - y)
            return (x * y) ** weight * quotient

        return Ball(arb_mat([[entry(x, y) for y in self.squares] for x in self.squares]))


def _balancing(S: Ball, T: Ball) -> tuple[Ball, list[arb]]:
    """Return A, and σ²: from S T = AᵀΣ²A⁻ᵀ, whose eigenvalues are real and whose eigenvectors may be taken so.

    Both are divided by a power of two first, which is exact: Arb takes a matrix of huge numbers for a singular one.
    """
    unit_S, unit_T = (_power_of_two_beside(M) for M in (S, T))
    try:
        values, vectors = acb_mat(((S * (1 / unit_S)) @ (T * (1 / unit_T))).matrix).eig(right=True)
    except ValueError as error:
        raise EnclosureError(
            "for a metric between inv and mix, the singular values of G Hᵀ must differ, and refgeo cannot prove this"
        ) from error
    W, squares = Ball(vectors.real), [value.real * unit_S * unit_T for value in values]
    if not all(square > 0 for square in squares):
        raise EnclosureError("refgeo cannot prove that the eigenvalues of S T are positive, where S = GᵀG and T = HᵀH")
    lengths = paper.library(W).diagonal(W.mT @ T @ W)
    return (W @ _diagonal([(x.sqrt() / y).sqrt() for x, y in zip(squares, lengths, strict=True)])).mT, squares


def _power_of_two_beside(M: Ball) -> arb:
    """Return a power of two of the size of the largest diagonal entry."""
    mantissa, exponent = max(abs(M.matrix[i, i].mid()) for i in range(M.matrix.nrows())).man_exp()
    return arb(2) ** (exponent + mantissa.bit_length())


def _diagonal(entries: Sequence[arb]) -> Ball:
    h = len(entries)
    return Ball(arb_mat([[entries[i] if i == j else arb(0) for j in range(h)] for i in range(h)]))
