"""A metric without its curvature, for ablations (App. G) and for the paper's elementwise blocks (App. C.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.groups import Symmetry
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

    def point_at(self, x: npt.ArrayLike, order: Order = 2) -> Any:
        """θ + ξ."""
        order_of(order)
        return self._space.point_at(x, order=1)

    def gradient_at(self, x: npt.ArrayLike, e: Any, order: Order = 2) -> Array:
        """The raised and projected gradient, in coordinates."""
        order_of(order)
        return self._space.gradient_at(x, e, 1)


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
        self._base = as_metric("metric", metric).base
        self.name = f"constant {self.base.name}"

    @property
    def base(self) -> Metric[Any]:
        """The other metric."""
        return self._base

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
