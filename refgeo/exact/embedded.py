r"""The embedded metric :math:`‖dX‖_F` in ball arithmetic, by its literal formulas.

With P_U and P_V the projectors on the columns of G and H, and dX = v_G Hᵀ + G v_Hᵀ,

    ⟨a, b⟩ = tr(T a_Gᵀb_G) + tr(S a_Hᵀb_H) + ½ tr((P_U dX_a P_V)ᵀ dX_b),
    grad ℓ = (e_G T⁻¹ − ½GN, e_H S⁻¹ − ½HNᵀ),    N = ½(S⁻¹Gᵀe_G T⁻¹ + S⁻¹e_Hᵀ H T⁻¹),
    Γ_G(a, b) = ½(2I − P_U)(a_G b_Hᵀ + b_G a_Hᵀ) H T⁻¹,    Γ_H with the factors exchanged,

Γ up to a vertical vector (`refgeo.geometry.embedded`).
"""

from __future__ import annotations

from collections.abc import Sequence

from flint import arb, arb_mat

from refgeo.exact import Enclosure, ExactTangentSpace, Vector, _BallPoint
from refgeo.support.arguments import Array


class _EmbeddedBallPoint(_BallPoint):
    """The base point in balls."""

    def inner_product(self, a: Sequence[arb_mat], b: Sequence[arb_mat]) -> arb:
        """⟨a, b⟩."""
        S_inverse, T_inverse = self.inverses
        core_a, core_b = (self.G.transpose() * v_G * self.T + self.S * v_H.transpose() * self.H for v_G, v_H in (a, b))
        core = (S_inverse * core_a * T_inverse * core_b.transpose()).trace()
        return super().inner_product(a, b) + core / 2

    def raised(self, e: Sequence[arb_mat]) -> list[arb_mat]:
        """The Riemannian gradient."""
        S_inverse, T_inverse = self.inverses
        g_G, g_H = super().raised(e)
        N = (S_inverse * (self.G.transpose() * g_G) + (g_H.transpose() * self.H) * T_inverse) * (arb(1) / 4)
        return [g_G - self.G * N, g_H - self.H * N.transpose()]

    def christoffel(self, a: Sequence[arb_mat], b: Sequence[arb_mat]) -> list[arb_mat]:
        """Γ(a, b) up to a vertical vector."""
        (a_G, a_H), (b_G, b_H) = a, b
        across_G, across_H = self._across(a), self._across(b)
        return [
            self._bent(0, a_G * across_H[0] + b_G * across_G[0]),
            self._bent(1, a_H * across_H[1] + b_H * across_G[1]),
        ]

    def christoffel_adjoint(self, a: Sequence[arb_mat], e: Sequence[arb_mat]) -> list[arb_mat]:
        """Γ(a, ·)* e."""
        bent = [self._bent(i, part) for i, part in enumerate(e)]
        across, inverses = self._across(a), self.inverses
        crossed = [(self.G, self.H)[1 - i] * (inverses[1 - i] * (bent[i].transpose() * a[i])) for i in (0, 1)]
        return [bent[i] * across[i].transpose() + crossed[1 - i] for i in (0, 1)]

    def _across(self, v: Sequence[arb_mat]) -> tuple[arb_mat, arb_mat]:
        """v_HᵀH T⁻¹ and v_GᵀG S⁻¹."""
        S_inverse, T_inverse = self.inverses
        return v[1].transpose() * self.H * T_inverse, v[0].transpose() * self.G * S_inverse

    def _bent(self, i: int, part: arb_mat) -> arb_mat:
        """½(2I − P) of a part."""
        factor, inverse = (self.G, self.H)[i], self.inverses[i]
        return part - factor * (inverse * (factor.transpose() * part)) * (arb(1) / 2)


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

    def _formulas(self) -> type[_BallPoint]:
        return _EmbeddedBallPoint

    def riemannian_hessian(self, e: Vector, w: Vector, v: Vector) -> tuple[Enclosure, Enclosure]:
        """The horizontal part of the gradient of w − Γ(v, ·)* e."""

        def compute(point: _BallPoint) -> list[arb_mat]:
            falling = point.christoffel_adjoint(self._balls(v), self._covector_balls(e))
            raised = point.raised([x - y for x, y in zip(self._covector_balls(w), falling, strict=True)])
            L = point.vertical_coefficients(*raised)
            return self._moved_back([raised[0] + point.G * L, raised[1] - point.H * L.transpose()])

        return self._enclose_pair(compute, tuple(0.0 * factor for factor in self.point))

    def geodesic(self, v: Vector, t: float = 1.0, order: object = 2) -> tuple[Enclosure, Enclosure]:
        """θ + tv, or θ + tv − ½t²Γ(v, v)."""
        if order == "exact":
            raise NotImplementedError('order: the embedded metric has geodesics of order 1 and 2 only, got "exact"')
        return super().geodesic(v, t, order)
