r"""The embedded metric :math:`‖dX‖_F` in ball arithmetic, by its literal formulas.

With P_U and P_V the projectors on the columns of G and H, and dX = v_G Hᵀ + G v_Hᵀ,

    ⟨a, b⟩ = tr(T a_Gᵀb_G) + tr(S a_Hᵀb_H) + ½ tr((P_U dX_a P_V)ᵀ dX_b),
    grad ℓ = (e_G T⁻¹ − ½GN, e_H S⁻¹ − ½HNᵀ),    N = ½(S⁻¹Gᵀe_G T⁻¹ + S⁻¹e_Hᵀ H T⁻¹),
    Γ_G(a, b) = ½(2I − P_U)(a_G b_Hᵀ + b_G a_Hᵀ) H T⁻¹,    Γ_H with the factors exchanged,

Γ up to a vertical vector (`refgeo.geometry.embedded`).
"""

from __future__ import annotations

from typing import Any

from flint import arb

from refgeo import paper
from refgeo.exact import Enclosure, ExactTangentSpace, Vector
from refgeo.exact.ball import Ball
from refgeo.exact.family import OwnPoint
from refgeo.support.arguments import Array


class _EmbeddedPoint(OwnPoint):
    """The operations at one point: those of mix, and the core."""

    def __init__(self, G: Ball, H: Ball) -> None:
        self.factors = (G, H)
        self.grams = paper.grams(G, H)

    def inner_product(self, a_G: Ball, a_H: Ball, b_G: Ball, b_H: Ball) -> arb:
        """⟨a, b⟩."""
        (G, H), (S, T) = self.factors, self.grams
        a, b = (G.mT @ v_G @ T + S @ (v_H.mT @ H) for v_G, v_H in ((a_G, a_H), (b_G, b_H)))
        core = paper.trace(S.inverse @ a @ T.inverse @ b.mT)
        return arb(paper.inner_product("mix", G, H, a_G, a_H, b_G, b_H) + core / 2)

    def horizontal_projection(self, *v: Ball) -> tuple[Ball, Ball]:
        """That of mix: the core of a vertical vector is zero."""
        return paper.horizontal_projection("mix", *self.factors, *v)

    def riemannian_gradient(self, *e: Ball) -> tuple[Ball, Ball]:
        """The gradient of mix, less half of its core."""
        (G, H), (S, T) = self.factors, self.grams
        g_G, g_H = paper.riemannian_gradient("mix", G, H, *e)
        N = (S.inverse @ (G.mT @ g_G) + (g_H.mT @ H) @ T.inverse) * (arb(1) / 4)
        return g_G - G @ N, g_H - H @ N.mT

    def christoffel(self, *vectors: Ball) -> tuple[Ball, Ball]:
        """Γ(a, b) up to a vertical vector."""
        a_G, a_H, b_G, b_H = vectors
        a, b = self._across(a_G, a_H), self._across(b_G, b_H)
        return self._bent(0, a_G @ b[0] + b_G @ a[0]), self._bent(1, a_H @ b[1] + b_H @ a[1])

    def christoffel_adjoint(self, *vectors: Ball) -> tuple[Ball, Ball]:
        """Γ(a, ·)* e."""
        a_G, a_H, e_G, e_H = vectors
        (G, H), (S, T), across = self.factors, self.grams, self._across(a_G, a_H)
        bent_G, bent_H = self._bent(0, e_G), self._bent(1, e_H)
        return (
            bent_G @ across[0].mT + G @ (S.inverse @ (bent_H.mT @ a_H)),
            bent_H @ across[1].mT + H @ (T.inverse @ (bent_G.mT @ a_G)),
        )

    def _across(self, v_G: Ball, v_H: Ball) -> tuple[Ball, Ball]:
        """v_HᵀH T⁻¹ and v_GᵀG S⁻¹."""
        (G, H), (S, T) = self.factors, self.grams
        return v_H.mT @ H @ T.inverse, v_G.mT @ G @ S.inverse

    def _bent(self, i: int, part: Ball) -> Ball:
        """½(2I − P) of a part."""
        factor = self.factors[i]
        return part - factor @ (factor.gram.inverse @ (factor.mT @ part)) * (arb(1) / 2)


class ExactEmbeddedSpace(ExactTangentSpace):
    """Enclosures of the embedded metric at one base point.

    Parameters
    ----------
    G : ndarray, shape (n, h)
    H : ndarray, shape (m, h)

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones((1, 1))
    >>> ExactEmbeddedSpace(2 * one, 3 * one).inner_product((one, one), (one, one)).mid.item()
    25.5
    """

    def __init__(self, G: Array, H: Array) -> None:
        super().__init__("mix", G, H)

    def _formulas(self, G: Ball, H: Ball) -> Any:
        return _EmbeddedPoint(G, H)

    def geodesic(self, v: Vector, t: float = 1.0, order: object = 2) -> tuple[Enclosure, Enclosure]:
        """θ + tv, or θ + tv − ½t²Γ(v, v)."""
        if order == "exact":
            raise NotImplementedError('order: the embedded metric has geodesics of order 1 and 2 only, got "exact"')
        return super().geodesic(v, t, order)
