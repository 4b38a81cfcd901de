"""Metrics made from metrics, for ablations by composition (App. G): without curvature, or with the Euclidean norm."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy  # whose modules load where they are used

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.groups import Symmetry
from refgeo.geometry.pair import Pair, each
from refgeo.geometry.pair_metrics import InterpolatedMetric, PairTangentSpace
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.tangent_space import Metric, TangentSpace, as_metric
from refgeo.support.arguments import Array, Order, order_of


class ConstantTangentSpace(TangentSpace[Any]):
    """Tangent space of `ConstantMetric`: Γ = 0 and every geodesic is θ + tv, whatever the order."""

    def __init__(self, metric: Metric[Any], space: TangentSpace[Any]) -> None:
        self.metric, self._space = metric, space
        self.point, self.dim, self.block_shape = space.point, space.dim, space.block_shape
        self.n_coordinates = space.n_coordinates

    def _vector(self, name: str, value: Any) -> Any:
        return self._space._vector(name, value)

    def _to(self, v: Any) -> Array:
        return self._space._to(v)

    def _back(self, x: Array) -> Any:
        return self._space._back(x)

    def _gradient_to(self, e: Any) -> Array:
        return self._space._gradient_to(e)

    def _gradient_back(self, x: Array) -> Any:
        return self._space._gradient_back(x)

    def _vertical(self, x: Array) -> Array:
        return self._space._vertical(x)

    def _exact_gradient(self, v: Any, e: Any) -> Any:
        return self.riemannian_gradient(e)

    def horizontal_projection(self, v: Any) -> Any:
        """That of the other metric."""
        return self._space.horizontal_projection(v)

    def is_horizontal(self, v: Any, tolerance: float = 1e-8) -> Any:
        """As the other metric says."""
        return self._space.is_horizontal(v, tolerance)

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Those of the other metric."""
        return self._space.normal_coordinates(rng)

    def point_at(self, x: Array, order: Order = 2) -> Any:
        """θ + ξ."""
        order_of(order)
        return self._space.point_at(x, order=1)

    def gradient_at(self, x: Array, e: Any, order: Order = 2, out: Array | None = None) -> Array:
        """The raised and projected gradient, in coordinates."""
        order_of(order)
        return self._space.gradient_at(x, e, 1, out)


class ConstantMetric(Metric[Any]):
    """The metric tensor that another metric has at the base point, everywhere: Γ off.

    The inner product and the horizontal space are those of `metric`; geodesics are straight. The paper uses the
    elementwise metric this way for every parameter outside attention (App. C.1).

    Parameters
    ----------
    metric : Metric

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.ConstantMetric(rg.ElementwiseMetric()).at([2.0, -1.0]).geodesic([1.0, 1.0], order="exact")
    array([3., 0.])
    """

    def __init__(self, metric: Metric[Any]) -> None:
        self.base = as_metric("metric", metric)
        self.name = f"constant {metric.name}"

    def at(self, point: Any) -> TangentSpace[Any]:
        """The tangent space at `point`, which the other metric must accept; of a product, block by block."""
        if isinstance(self.base, ProductMetric):
            return ProductMetric({name: ConstantMetric(metric) for name, metric in self.base.metrics.items()}).at(point)
        return ConstantTangentSpace(self, self.base.at(point))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Those of the other metric."""
        return self.base.symmetries(block)

    def __repr__(self) -> str:
        return f"ConstantMetric({self.base!r})"


_REFINEMENTS, _AT_REST = 10, 1e-10


class EuclideanNormTangentSpace(TangentSpace[Pair]):
    r"""Tangent space of `EuclideanNormMetric`; coordinates are the entries themselves.

    With the other metric tensor, ⟨ξ, ζ⟩ = tr(M_G ξ_Gᵀζ_G) + tr(M_H ξ_Hᵀζ_H), horizontal vectors
    are those with no Euclidean product with any :math:`N(Λ) = (GΛM_G, -HΛ^\top M_H)`. The orthogonal projection takes
    N(Λ) away, and the normal equations are a Sylvester equation,

    .. math:: M_H^{-2} S Λ + Λ T M_G^{-2} = M_H^{-2} (G^\top ξ_G M_G - M_H ξ_H^\top H) M_G^{-2}.

    What is taken away is a N(Λ) whatever the rounding of Λ, so that doing it again refines the result. A ValueError
    says that the point is so ill-conditioned (beyond κ of some hundreds for inv, some thousands for mix) that this does
    not come to rest.
    """

    def __init__(self, metric: Metric[Any], space: PairTangentSpace) -> None:
        self.metric, self._space = metric, space
        self.point, self.dim, self.block_shape = space.point, space.dim, space.block_shape
        self.n_coordinates = space.n_coordinates
        self._tensor_G, self._tensor_H = space.metric_tensor()

    def _vector(self, name: str, value: Any) -> Pair:
        return self._space._vector(name, value)

    def _to(self, v: Pair) -> Array:
        return self._space._flat(v)

    def _back(self, x: Array) -> Pair:
        return self._space._split(x)

    _gradient_to, _gradient_back = _to, _back

    def _vertical(self, x: Array) -> Array:
        size, left = np.linalg.norm(x, axis=-1), x
        for _ in range(_REFINEMENTS):
            normal = self._normal_part(left)
            left = left - normal
            if not np.any(np.linalg.norm(normal, axis=-1) > _AT_REST * size):
                return x - left
        raise ValueError(
            "point: expected a smaller condition number κ, because the projection in the Euclidean norm is not "
            f"accurate, got κ = {float(np.max(self._space.gauge.condition)):.2g}; {self._space.metric!r} itself "
            "allows any κ"
        )

    @cached_property
    def _equation(self) -> tuple[Array, Array, Array, Array]:
        """The inverse metric tensors, and the coefficients of the Sylvester equation."""
        (G, H), inverse_G, inverse_H = self.point, np.linalg.inv(self._tensor_G), np.linalg.inv(self._tensor_H)
        return inverse_G, inverse_H, inverse_H @ inverse_H @ (G.mT @ G), (H.mT @ H) @ inverse_G @ inverse_G

    def _normal_part(self, x: Array) -> Array:
        (G, H), (x_G, x_H), (M_G, M_H) = self.point, self._back(x), (self._tensor_G, self._tensor_H)
        inverse_G, inverse_H, left, right = self._equation
        falling = G.mT @ x_G @ M_G - M_H @ x_H.mT @ H
        K = _sylvester(left, right, inverse_H @ inverse_H @ falling @ inverse_G @ inverse_G)
        return self._to(Pair.unchecked(G @ K @ M_G, -(H @ K.mT @ M_H)))

    def _gamma(self, x: Array, z: Array) -> Array:
        return self._to(self._space.christoffel(self._back(x), self._back(z)))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        return self._to(self._space.christoffel_adjoint(self._back(x), self._back(e)))

    def _exact(self, v: Pair, t: float) -> Pair:
        return self._space._exact(v, t)

    def _exact_gradient(self, v: Pair, e: Pair) -> Pair:
        return each(np.matmul, self._space._exact_gradient(v, e), (self._tensor_G, self._tensor_H))

    def riemannian_hessian(self, egrad: Any, ehess_v: Any, v: Any) -> Any:
        """Not defined: the norm and the curvature are not of one metric."""
        raise NotImplementedError(
            "EuclideanNormMetric takes its lengths from one metric and its geodesics from another metric, so it "
            "defines no Riemannian Hessian of a loss; use InvariantMetric or MixedMetric"
        )


class EuclideanNormMetric(Metric[Any]):
    """A pair metric's horizontal space and geodesics, with lengths measured in the Euclidean norm.

    One of the ablations of App. G. It is no Riemannian geometry of the
    quotient: lengths change along an orbit. Without curvature too, ``ConstantMetric(EuclideanNormMetric(metric))``.

    Parameters
    ----------
    metric : InvariantMetric, MixedMetric or InterpolatedMetric
        A network's blocks are wrapped one by one; on arrays, `EuclideanMetric` is what this would be.

    Examples
    --------
    >>> import refgeo as rg
    >>> point = rg.Pair([[2.0]], [[4.0]])
    >>> float(rg.EuclideanNormMetric(rg.InvariantMetric()).at(point).inner_product(point, point))
    20.0
    """

    def __init__(self, metric: InterpolatedMetric) -> None:
        if not isinstance(metric, InterpolatedMetric):
            raise TypeError(
                f"metric: expected InvariantMetric or MixedMetric, got {type(metric).__name__}; in a ProductMetric, "
                "wrap the metric of each block by itself, and use EuclideanMetric on arrays"
            )
        self.base = metric
        self.name = f"Euclidean norm, {metric.name}"

    def at(self, point: Any) -> EuclideanNormTangentSpace:
        """The tangent space at `point`, which the other metric must accept."""
        return EuclideanNormTangentSpace(self, self.base.at(point))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Those of the other metric."""
        return self.base.symmetries(block)

    def __repr__(self) -> str:
        return f"EuclideanNormMetric({self.base!r})"


def _sylvester(left: Array, right: Array, side: Array) -> Array:
    """X of left X + X right = side, block by block."""
    solve = np.vectorize(scipy.linalg.solve_sylvester, signature="(h,h),(h,h),(h,h)->(h,h)", otypes=[np.float64])
    return np.asarray(solve(left, right, side))
