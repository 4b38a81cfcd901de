r"""The mixed metric "mix" (Eq. 10): each factor measured in the other's Gram matrix.

In the balanced gauge both (relaxed) Gram matrices are Σ, and coordinates are :math:`x = ξΣ^{½}`, :math:`p = ĜΣ^{½}`.
Substituting ξ = xΣ^{-½} into (12) puts one Σ⁻¹ on either side of every h×h product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refgeo.arguments import Array
from refgeo.balanced import BalancedGauge
from refgeo.geodesics import integrate, mixed_cone_geodesic, mixed_square_geodesic
from refgeo.metrics.pair_space import Frame, PairMetric, PairTangentSpace, symmetric_sum
from refgeo.pair import Pair, transpose


class MixedTangentSpace(PairTangentSpace):
    """Tangent space of `MixedMetric`; see `PairTangentSpace` for its members."""

    @staticmethod
    def _frames(gauge: BalancedGauge) -> tuple[Frame, Frame]:
        return Frame(gauge.root_H, transpose(gauge.white_H)), Frame(gauge.root_G, transpose(gauge.white_G))

    @staticmethod
    def _weights(gauge: BalancedGauge) -> tuple[Array | None, Array | None]:
        return gauge.sigma, None

    def _twisted(self, a: Array, b: Array) -> Array:
        """Σ⁻¹ (aᵀb + bᵀa) Σ⁻¹, divided before it is multiplied so that small factors cannot underflow."""
        sigma = self.gauge.sigma[..., None, :]
        return symmetric_sum(transpose(a / sigma) @ (b / sigma))

    def _christoffel(self, x: Pair, z: Pair) -> Pair:
        p = self._p

        def formula(own: str, other: str) -> Array:
            x_own, z_own, p_own = (getattr(pair, own) for pair in (x, z, p))
            x_other, z_other, p_other = (getattr(pair, other) for pair in (x, z, p))
            part: Array = 0.5 * (
                x_own @ self._twisted(z_other, p_other)
                + z_own @ self._twisted(x_other, p_other)
                - p_own @ self._twisted(x_other, z_other)
            )
            return part

        return Pair.unchecked(formula("G", "H"), formula("H", "G"))

    def _christoffel_adjoint(self, x: Pair, e: Pair) -> Pair:
        p = self._p

        def formula(own: str, other: str) -> Array:
            x_own, e_own, p_own = (getattr(pair, own) for pair in (x, e, p))
            x_other, e_other, p_other = (getattr(pair, other) for pair in (x, e, p))
            part: Array = 0.5 * (
                e_own @ self._twisted(x_other, p_other)
                + p_own @ self._twisted(e_other, x_other)
                - x_own @ self._twisted(e_other, p_other)
            )
            return part

        return Pair.unchecked(formula("G", "H"), formula("H", "G"))

    def _bent(
        self, along: Sequence[Array], squares: Sequence[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        # p = QΣ, so Σ⁻¹(xᵀp + pᵀx)Σ⁻¹ = QᵀxΣ⁻¹ + its transpose
        identity, sigma = np.eye(self.point.sizes[2]), self.gauge.sigma[..., None, :]
        A_H, A_G = (identity - 0.5 * symmetric_sum(qx / sigma) for qx in along)
        B_H, B_G = (0.5 * xx / sigma for xx in squares)
        return (A_G, A_H), (B_G, B_H)

    def _bent_adjoint(
        self, along: Sequence[Array], falling: Sequence[Array], mixed: Sequence[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        identity, sigma = np.eye(self.point.sizes[2]), self.gauge.sigma[..., None, :]
        A_H, A_G = (identity - 0.5 * symmetric_sum(qx / sigma) for qx in along)
        B_H, B_G = (-0.5 * symmetric_sum(ex) / sigma for ex in mixed)
        C_H, C_G = (0.5 * symmetric_sum(qe / sigma) for qe in falling)
        return (A_G, A_H), (B_G, B_H), (C_G, C_H)

    def _gradient_derivative(self, e: Pair, x: Pair) -> Pair:
        # grad_G = E_G T⁻¹, and the derivative of T⁻¹ along ξ is −T⁻¹(ξ_HᵀH + Hᵀξ_H)T⁻¹.
        p = self._p
        return Pair.unchecked(
            -e.G @ self._twisted(x.H, p.H),
            -e.H @ self._twisted(x.G, p.G),
        )

    def _exact_geodesic(self, v: Pair, t: float) -> Pair:
        n, m, h = self.point.sizes
        if h == 1:
            return mixed_cone_geodesic(self.gauge, v, t)
        if n == m == h and not self._counts_as_vertical(v):
            return mixed_square_geodesic(self.gauge, v, t)
        return integrate(self, v, t).point

    def _counts_as_vertical(self, v: Pair) -> bool:
        """Whether v has a vertical part beyond the rounding of v or of the point: the closed forms are horizontal."""
        rounding = np.finfo(np.float64).eps * float(np.max(self.gauge.condition, initial=1.0))
        vertical = self.norm(self.vertical_projection(v))
        return bool(np.any(vertical > rounding * np.maximum(100.0 * self.norm(v), 1000.0 * self.norm(self.point))))


class MixedMetric(PairMetric):
    r"""The metric "mix" (10): :math:`⟨η, ζ⟩ = \mathrm{tr}(T η_G^\top ζ_G) + \mathrm{tr}(S η_H^\top ζ_H)`.

    :math:`S = G^\top G`, :math:`T = H^\top H`. Invariant under GL(h); not complete: a geodesic can lose rank in finite
    time, which raises `GeodesicIncompleteError` with the time.

    Parameters
    ----------
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance.

    Examples
    --------
    Two numbers (G, H) move so that the product G H is a straight line in time (Sec. 5.1):

    >>> import refgeo as rg
    >>> space = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]]))
    >>> space.geodesic(rg.Pair([[1.0]], [[1.5]]), t=1.0, order="exact").product.round(12)
    array([[12.]])
    """

    name = "mix"
    _space = MixedTangentSpace
