"""What the metrics on plain arrays have in common: a point is one array of any shape, and one block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, real_array
from refgeo.metrics.tangent_space import Metric, TangentSpace
from refgeo.pair import Pair


class ArrayTangentSpace(TangentSpace[Array]):
    """Tangent space of a metric on plain arrays; made by ``metric.at(point)``.

    A vector is its coordinates times a scale.

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

    @property
    def _scale(self) -> Any:
        """A number, or one for each coordinate."""
        return 1.0

    def _flat(self, v: Array) -> Array:
        return v.ravel()

    def _shaped(self, x: Array) -> Array:
        return x.reshape(self.point.shape)

    def _to(self, v: Array) -> Array:
        return np.asarray(self._flat(v) / self._scale)

    def _back(self, x: Array) -> Array:
        return self._shaped(x * self._scale)

    def _gradient_to(self, e: Array) -> Array:
        return np.asarray(self._flat(e) * self._scale)

    def _gradient_back(self, x: Array) -> Array:
        return self._shaped(x / self._scale)

    def _vector(self, name: str, value: npt.ArrayLike) -> Array:
        vector = real_array(name, value)
        if vector.shape != self.point.shape:
            raise ValueError(f"{name}: expected the shape of the point, {self.point.shape}, got {vector.shape}")
        return vector
