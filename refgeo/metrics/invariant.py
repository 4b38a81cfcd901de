r"""The invariant metric "inv" (Eq. 9): each factor measured in its own Gram matrix.

In coordinates each factor of the base point is a matrix p with metric tensor I (without relaxation, p has orthonormal
columns), and the paper's formulas hold with S = T = I.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refgeo.arguments import Array
from refgeo.balanced import BalancedGauge
from refgeo.geodesics import invariant_geodesic
from refgeo.metrics.pair_space import Frame, PairMetric, PairTangentSpace, symmetric_sum
from refgeo.pair import Pair, transpose


class InvariantTangentSpace(PairTangentSpace):
    """Tangent space of `InvariantMetric`; see `PairTangentSpace` for its members."""

    @staticmethod
    def _frames(gauge: BalancedGauge) -> tuple[Frame, Frame]:
        return Frame(gauge.white_G, transpose(gauge.root_G)), Frame(gauge.white_H, transpose(gauge.root_H))

    @staticmethod
    def _weights(gauge: BalancedGauge) -> tuple[Array | None, Array | None]:
        return None, gauge.sigma / gauge.sigma[..., :1]

    def _christoffel(self, x: Pair, z: Pair) -> Pair:
        def formula(x: Array, z: Array, p: Array) -> Array:
            return 0.5 * (
                p @ symmetric_sum(transpose(x) @ z)
                - x @ symmetric_sum(transpose(z) @ p)
                - z @ symmetric_sum(transpose(x) @ p)
            )

        return self._per_factor(formula, x, z, self._p)

    def _christoffel_adjoint(self, x: Pair, e: Pair) -> Pair:
        def formula(x: Array, e: Array, p: Array) -> Array:
            return 0.5 * (
                x @ symmetric_sum(transpose(p) @ e)
                - p @ symmetric_sum(transpose(e) @ x)
                - e @ symmetric_sum(transpose(x) @ p)
            )

        return self._per_factor(formula, x, e, self._p)

    def _bent(
        self, along: Sequence[Array], squares: Sequence[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        identity = np.eye(self.point.sizes[2])
        A_G, A_H = (identity + 0.5 * symmetric_sum(qx) for qx in along)
        B_G, B_H = (-0.5 * xx for xx in squares)
        return (A_G, A_H), (B_G, B_H)

    def _bent_adjoint(
        self, along: Sequence[Array], falling: Sequence[Array], mixed: Sequence[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        identity = np.eye(self.point.sizes[2])
        A_G, A_H = (identity + 0.5 * symmetric_sum(qx) for qx in along)
        B_G, B_H = (0.5 * symmetric_sum(ex) for ex in mixed)
        C_G, C_H = (-0.5 * symmetric_sum(qe) for qe in falling)
        return (A_G, A_H), (B_G, B_H), (C_G, C_H)

    def _gradient_derivative(self, e: Pair, x: Pair) -> Pair:
        # grad = E S, and the derivative of S along ξ is ξᵀG + Gᵀξ.
        return self._per_factor(lambda e, x, p: e @ symmetric_sum(transpose(x) @ p), e, x, self._p)

    def _exact_geodesic(self, v: Pair, t: float) -> Pair:
        x = self._to(v)
        return self._back(self._per_factor(lambda p, x: invariant_geodesic(p, x, t), self._p, x))


class InvariantMetric(PairMetric):
    r"""The metric "inv" (9): :math:`⟨η, ζ⟩ = \mathrm{tr}(S^{-1} η_G^\top ζ_G) + \mathrm{tr}(T^{-1} η_H^\top ζ_H)`.

    :math:`S = G^\top G`, :math:`T = H^\top H`. Invariant under GL(h); geodesically complete; without units (scaling a
    loss's parameters changes nothing).

    Parameters
    ----------
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance; the
        default 0 needs no regularisation here, because no Gram matrix is inverted.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rng = np.random.default_rng(0)
    >>> point = rg.Pair(rng.standard_normal((12, 65, 8)), rng.standard_normal((12, 65, 8)))  # twelve heads
    >>> space = rg.InvariantMetric().at(point)
    >>> v = space.random_tangent_vector(rng)
    >>> space.geodesic(0.1 * v, order="exact")
    Pair(G (12, 65, 8), H (12, 65, 8))
    """

    name = "inv"
    _space = InvariantTangentSpace
