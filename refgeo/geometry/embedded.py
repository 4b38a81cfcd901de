r"""The metric that the space of matrices gives to products :math:`X = GH^\top` of rank h: :math:`‖dX‖_F`.

It is a metric of X alone, so it lives on the quotient by GL(h), but it is not a member of the family between inv and
mix. With Q the singular vectors of X (the gauge's columns), mix's coordinates x of a vector and its parts along Q,

    dX = v_G Hᵀ + G v_Hᵀ = x_G Q_Hᵀ + Q_G x_Hᵀ,    K_G = Q_Gᵀx_G,  K_H = Q_Hᵀx_H,

and Pythagoras gives :math:`‖dX‖^2 = ‖(I - Q_GQ_G^\top) x_G‖^2 + ‖(I - Q_HQ_H^\top) x_H‖^2 + ‖K_G + K_H^\top‖^2`. Mix
has :math:`‖K_G‖^2 + ‖K_H‖^2` in the place of the last term. On horizontal vectors, :math:`K_G = K_H^\top`, that is half
of it: *embedded is mix with the core* :math:`Q_G^\top dX\, Q_H` *counted in full*. So its coordinates are those of mix
with the symmetric part of the core, :math:`M = ½(K_G + K_H^\top)`, times √2; the skew part is vertical in both.

*Gradient.* :math:`dX = P_UE + EP_V - P_UEP_V` with :math:`E = ∂ℓ/∂X` and the projectors on the columns of G and H.
Mix's gradient moves X by :math:`P_UE + EP_V`: it counts the core twice.

*Geodesics.* X accelerates along the normal space only, :math:`\ddot X = 2 (I - P_U)\, dX\, X^+ dX\, (I - P_V)` with the
pseudoinverse of X (the second fundamental form of the matrices of rank h). The product of (G + tv_G, H + tv_H) has the
second-order term :math:`v_Gv_H^\top` instead. What is missing is tangent, and so can be made up for in the factors:

    Γ_G(v, v) = (2I − P_U) v_G v_Hᵀ H T⁻¹,    Γ_H(v, v) = (2I − P_V) v_H v_Gᵀ G S⁻¹.

As a vertical part of Γ moves X in third order alone, this is Γ up to a vector that no product, geodesic of order 2 or
Hessian of an invariant loss sees. Exact geodesics have no closed form that is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.groups import Symmetry, general_linear
from refgeo.geometry.pair import Pair, each
from refgeo.geometry.pair_metrics import MixedMetric, pair_metric
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.geometry.tangent_space import Metric, TangentSpace
from refgeo.support.arguments import Array


class EmbeddedTangentSpace(TangentSpace[Pair]):
    """Tangent space of `EmbeddedMetric`; its horizontal vectors are those of mix."""

    def __init__(self, metric: EmbeddedMetric, mix: PairTangentSpace) -> None:
        self.metric, self.point, self.gauge, self._mix = metric, mix.point, mix.gauge, mix
        self.dim, self.n_coordinates, self.block_shape = mix.dim, mix.n_coordinates, mix.block_shape

    def _vector(self, name: str, value: object) -> Pair:
        return self._mix._vector(name, value)

    def _stretch(self, x: Array, factor: float) -> Array:
        """Return the coordinates with the symmetric part of the core multiplied by a factor."""
        (x_G, x_H), (Q_G, Q_H) = self._mix._split(x), self.gauge.columns
        M = (0.5 * (factor - 1.0)) * (Q_G.mT @ x_G + x_H.mT @ Q_H)
        return self._mix._flat(x_G + Q_G @ M, x_H + Q_H @ M.mT)

    def _to(self, v: Pair) -> Array:
        return self._stretch(self._mix._to(v), math.sqrt(2.0))

    def _back(self, x: Array) -> Pair:
        return self._mix._back(self._stretch(x, math.sqrt(0.5)))

    def _gradient_to(self, e: Pair) -> Array:
        return self._stretch(self._mix._gradient_to(e), math.sqrt(0.5))

    def _gradient_back(self, x: Array) -> Pair:
        return self._mix._gradient_back(self._stretch(x, math.sqrt(2.0)))

    def _vertical(self, x: Array) -> Array:
        return self._mix._vertical(x)

    def _core(self, x: Pair) -> Pair:
        """Return Σ⁻¹xᵀQ of both factors."""
        return each(lambda x, Q: (x.mT @ Q) / self.gauge.sigma[..., :, None], x, self.gauge.columns)

    def _gamma(self, x: Array, z: Array) -> Array:
        first, second = (Pair.unchecked(*self._mix._split(self._stretch(y, math.sqrt(0.5)))) for y in (x, z))

        def part(Q: Array, x: Array, z: Array, across_x: Array, across_z: Array) -> Array:
            bent = x @ across_z + z @ across_x
            return bent - 0.5 * Q @ (Q.mT @ bent)

        across = (_exchange(self._core(y)) for y in (first, second))
        bent = each(part, self.gauge.columns, first, second, *across)
        return self._stretch(self._mix._flat(*bent), math.sqrt(2.0))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        along = Pair.unchecked(*self._mix._split(self._stretch(x, math.sqrt(0.5))))
        falling = Pair.unchecked(*self._mix._split(self._stretch(e, math.sqrt(2.0))))
        falling = each(lambda e, Q: e - 0.5 * Q @ (Q.mT @ e), falling, self.gauge.columns)
        straight = each(lambda e, across: e @ across.mT, falling, _exchange(self._core(along)))
        crossed = each(
            lambda Q, x, e: Q @ ((x.mT @ e) / self.gauge.sigma[..., :, None]).mT,
            _exchange(self.gauge.columns),
            along,
            falling,
        )
        return self._stretch(self._mix._flat(*(straight + _exchange(crossed))), math.sqrt(0.5))

    def _exact(self, v: Pair, t: float) -> Pair:
        raise NotImplementedError('order: the embedded metric has geodesics of order 1 and 2 only, got "exact"')

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Draw coordinates as mix does."""
        return self._mix.normal_coordinates(rng)


class EmbeddedMetric(Metric[Pair]):
    r"""The metric :math:`‖dX‖_F` of the matrices :math:`X = GH^\top` of rank h, embedded in all n×m matrices.

    For horizontal v, :math:`‖v‖^2 = ‖v‖_{mix}^2 + ½‖P_U\,dX\,P_V‖_F^2`. The Riemannian gradient moves X by
    :math:`P_UE + EP_V - P_UEP_V`, E = ∂ℓ/∂X: the rule of LoRA-Pro, LORO and Riemannion. What their steps do to (G, H)
    beside X is a choice of gauge; the gradient here is horizontal.

    Notes
    -----
    Geodesics have order 1 and 2; Γ is given up to a vertical vector, which changes no product to second order and no
    Hessian of an invariant loss (`refgeo.geometry.embedded` derives it).

    Examples
    --------
    A gradient step of length 1 on ½‖X − Y‖² moves X by the tangent part of Y − X:

    >>> import numpy as np, refgeo as rg
    >>> G, H, Y = np.eye(3, 2), np.eye(4, 2), np.ones((3, 4))
    >>> X = G @ H.T
    >>> g = rg.EmbeddedMetric().at(rg.Pair(G, H)).riemannian_gradient(rg.Pair((X - Y) @ H, (X - Y).T @ G))
    >>> (X - g.G @ H.T - G @ g.H.T).round(12)
    array([[1., 1., 1., 1.],
           [1., 1., 1., 1.],
           [1., 1., 0., 0.]])
    """

    name = "embedded"
    is_invariant = True

    def at(self, point: Pair) -> EmbeddedTangentSpace:
        """Factorise `point` once and return its tangent space.

        Raises
        ------
        RankDeficientError
            A factor has numerical rank below h.
        """
        return EmbeddedTangentSpace(self, MixedMetric().at(point))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return GL(h)."""
        return [general_linear(block)]


def metric_on_pairs(name: str, argument: str = "metric", others: str = "") -> Metric[Pair]:
    """Return the metric called "inv", "mix", "s=0.5" or "embedded"; the caller may know others.

    Examples
    --------
    >>> metric_on_pairs("embedded")
    EmbeddedMetric()
    """
    if name == EmbeddedMetric.name:
        return EmbeddedMetric()
    return pair_metric(name, argument=argument, others=f', "{EmbeddedMetric.name}"{others}')


def _exchange(pair: Iterable[Array]) -> Pair:
    G, H = pair
    return Pair.unchecked(H, G)
