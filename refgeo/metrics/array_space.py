"""What the metrics on plain arrays have in common: a point is one array of any shape, and one block."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, Order, number, order_of, real_array
from refgeo.metrics.tangent_space import Metric, TangentSpace
from refgeo.pair import Pair


class ArrayTangentSpace(TangentSpace[Array]):
    """Tangent space of a metric on plain arrays; made by ``metric.at(point)``.

    Attributes
    ----------
    metric : Metric
    point : ndarray, read-only
    dim : int
        Dimension of the quotient.
    """

    def __init__(self, metric: Metric[Array], point: npt.ArrayLike, dim: int | None = None) -> None:
        if isinstance(point, Pair):
            raise TypeError(
                f"point: {metric!r} is for arrays, got a Pair; use InvariantMetric or MixedMetric, or a ProductMetric "
                "with both factors as arrays"
            )
        array = real_array("point", point)
        array.setflags(write=False)
        self.metric, self.point = metric, array
        self.dim, self.n_coordinates = array.size if dim is None else dim, array.size

    def _vector(self, name: str, value: npt.ArrayLike) -> Array:
        vector = real_array(name, value)
        if vector.shape != self.point.shape:
            raise ValueError(f"{name}: expected the shape of the point, {self.point.shape}, got {vector.shape}")
        return vector

    def _shaped(self, name: str, value: Array) -> Array:
        """A look at the shape alone, for what is called in every iteration."""
        if np.shape(value) != self.point.shape:
            raise ValueError(f"{name}: expected the shape of the point, {self.point.shape}, got {np.shape(value)}")
        return value

    def _coordinates(self, x: npt.ArrayLike) -> Array:
        coordinates = real_array("x", x)
        if coordinates.shape != (self.n_coordinates,):
            raise ValueError(f"x: expected shape {(self.n_coordinates,)}, got {coordinates.shape}")
        return coordinates

    def vertical_projection(self, v: Array) -> Array:
        """The vertical part: `v` minus its horizontal projection."""
        return super().vertical_projection(self._vector("v", v))

    def horizontal_projection(self, v: Array) -> Array:
        """The vector itself: there is no vertical direction, unless a metric says so."""
        return self._vector("v", v)

    def geodesic(self, v: Array, t: float = 1.0, order: Order = 2) -> Array:
        """The geodesic with initial velocity `v` at time `t`: θ + tv, θ + tv − ½t²Γ(v, v), or without truncation.

        Raises
        ------
        ValueError
            `order` is not 1, 2 or "exact".
        """
        v, t, order = self._vector("v", v), number("t", t), order_of(order)
        if order == "exact":
            return self._exact_geodesic(t * v)
        straight = self.point + t * v
        return np.asarray(straight if order == 1 else straight - 0.5 * t * t * self.christoffel(v))

    @abstractmethod
    def _exact_geodesic(self, v: Array) -> Array:
        """The geodesic without truncation, at time 1."""
