r"""The elementwise metric :math:`⟨ξ, ζ⟩ = Σ ξ_iζ_i / w_i^2` (App. F, C.1): what adaptive sharpness measures in.

Every parameter is a scaling symmetry of its own. A parameter that is exactly zero is at infinite distance from all
others: it is *frozen*, vectors have a zero there, and nothing is divided by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, Order, order_of
from refgeo.metrics.array_space import ArrayTangentSpace
from refgeo.metrics.tangent_space import Metric


class ElementwiseTangentSpace(ArrayTangentSpace):
    """Tangent space of `ElementwiseMetric`; see `ArrayTangentSpace` for its members."""

    def __init__(self, metric: ElementwiseMetric, point: npt.ArrayLike) -> None:
        super().__init__(metric, point)
        free = self.point != 0
        self.dim = self.n_coordinates = int(np.count_nonzero(free))
        self._free = None if free.all() else free

    @property
    def _scale(self) -> Array:
        return self._flat(self.point)

    def _flat(self, v: Array) -> Array:
        return np.asarray(v.ravel() if self._free is None else v[self._free])

    def _shaped(self, x: Array) -> Array:
        if self._free is None:
            return np.asarray(x.reshape(self.point.shape))
        array = np.zeros(self.point.shape, x.dtype)
        array[self._free] = x
        return array

    def _gamma(self, x: Array, z: Array) -> Array:
        """Γ(a, b) = −a ⊙ b / w."""
        return np.asarray(-x * z)

    _gamma_adjoint = _gamma

    def _exact(self, v: Array, t: float) -> Array:
        return self._shaped(self._scale * np.exp(t * self._to(v)))

    def _exact_gradient(self, v: Array, e: Array) -> Array:
        return self._back(self._gradient_to(e) * np.exp(self._to(v)))

    def horizontal_projection(self, v: Array) -> Array:
        """`v` with zeros at the frozen parameters.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0, 0.0]).horizontal_projection([1.0, 5.0])
        array([1., 0.])
        """
        return self._shaped(self._flat(self._vector("v", v)))

    def is_horizontal(self, v: Array, tolerance: float = 1e-8) -> bool:
        """Whether `v` leaves the frozen parameters alone."""
        return self._free is None or not np.any(self._vector("v", v)[~self._free])

    @cached_property
    def _in_single(self) -> Array:
        return self.point.astype(np.float32)

    def _point(self, dtype: Any) -> Array:
        """The weights w, in the precision of a search."""
        return self._in_single if dtype == np.float32 else self.point

    def point_at(self, x: Array, order: Order = 2) -> Array:
        """The point w(1 + x), w(1 + x + ½x²) or w eˣ."""
        w = self._point(self._coordinates(x).dtype)
        if self._free is not None:
            return np.asarray(self._shaped(_FACTORS[order_of(order)](x)) * w)
        moved = np.empty_like(w)
        if order == 1:
            np.multiply(x.reshape(w.shape), w, out=moved)
            moved += w
        else:
            np.multiply(_FACTORS[order_of(order)](x.reshape(w.shape)), w, out=moved)
        return moved

    def gradient_at(self, x: Array, e: Array, order: Order = 2, out: Array | None = None) -> Array:
        """The gradient w ⊙ e, times the derivative of the factor: 1, 1 + x or eˣ."""
        w = self._point(x.dtype)
        if np.shape(e) != w.shape:
            raise ValueError(f"e: expected the shape of the point, {w.shape}, got {np.shape(e)}")
        gradient = np.empty((self.n_coordinates,), x.dtype) if out is None else out
        if self._free is None:
            np.multiply(w, e, out=gradient.reshape(w.shape))
        else:
            gradient[...] = (w * e)[self._free]
        if order != 1:
            gradient *= _DERIVATIVES[order_of(order)](x)
        return gradient


_FACTORS: dict[Order, Callable[[Array], Array]] = {
    1: lambda x: 1.0 + x,
    2: lambda x: 1.0 + x * (1.0 + 0.5 * x),
    "exact": np.exp,
}
_DERIVATIVES: dict[Order, Callable[[Array], Array]] = {1: np.ones_like, 2: lambda x: 1.0 + x, "exact": np.exp}


class ElementwiseMetric(Metric[Array]):
    r"""The metric :math:`⟨ξ, ζ⟩ = Σ ξ_iζ_i / w_i^2` on arrays.

    Geodesics are :math:`w_i e^{tξ_i/w_i}`. The unit ball of a step w + ξ is that of adaptive sharpness.

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.ElementwiseMetric().at([1.0, -2.0, 0.0])
    >>> space.geodesic([1.0, -2.0, 7.0], order="exact").round(3)
    array([ 2.718, -5.437,  0.   ])
    """

    name = "elementwise"

    def at(self, point: npt.ArrayLike) -> ElementwiseTangentSpace:
        """The tangent space at `point`, an array of any shape."""
        return ElementwiseTangentSpace(self, point)
