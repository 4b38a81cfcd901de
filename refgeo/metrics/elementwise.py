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
    def _inverse(self) -> Array:
        """1/w, and 0 for a frozen parameter, so that what is divided by it vanishes; not kept, for want of memory."""
        return np.divide(1.0, self.point, out=np.zeros_like(self.point), where=self.point != 0)

    @cached_property
    def _in_single(self) -> Array:
        return self.point.astype(np.float32)

    def _point(self, dtype: Any) -> Array:
        """The weights w, in the precision of a search."""
        return self._in_single if dtype == np.float32 else self.point

    def inner_product(self, a: Array, b: Array) -> Array:
        """Σ a_i b_i / w_i²; frozen parameters do not count.

        Examples
        --------
        >>> float(ElementwiseMetric().at([2.0, 0.0]).inner_product([1.0, 5.0], [4.0, 5.0]))
        1.0
        """
        x, y = self._vector("a", a) * self._inverse, self._vector("b", b) * self._inverse
        return np.asarray(np.vdot(x, y))

    def horizontal_projection(self, v: Array) -> Array:
        """`v` with zeros at the frozen parameters.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0, 0.0]).horizontal_projection([1.0, 5.0])
        array([1., 0.])
        """
        v = self._vector("v", v)
        return v if self._free is None else np.asarray(np.where(self._free, v, 0.0))

    def is_horizontal(self, v: Array, tolerance: float = 1e-8) -> bool:
        """Whether `v` leaves the frozen parameters alone."""
        return self._free is None or not np.any(self._vector("v", v)[~self._free])

    def riemannian_gradient(self, egrad: Array) -> Array:
        """w² ⊙ e.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0, 0.0]).riemannian_gradient([1.0, 5.0])
        array([4., 0.])
        """
        return np.asarray(self.point**2 * self._vector("egrad", egrad))

    def riemannian_hessian(self, egrad: Array, ehess_v: Array, v: Array) -> Array:
        """w² ⊙ (Hess v) + w ⊙ e ⊙ v.

        Examples
        --------
        The loss ½w² is ½e²ˣ in the coordinate x = log w:

        >>> float(ElementwiseMetric().at([3.0]).riemannian_hessian([3.0], [3.0], [3.0])[0] / 3.0)
        18.0
        """
        e, w = self._vector("egrad", egrad), self.point
        return np.asarray(w**2 * self._vector("ehess_v", ehess_v) + w * e * self.horizontal_projection(v))

    def christoffel(self, a: Array, b: Array | None = None) -> Array:
        """Γ(a, b) = −a ⊙ b / w.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0, 0.0]).christoffel([1.0, 5.0])
        array([-0.5, -0. ])
        """
        a = self._vector("a", a)
        return np.asarray(-a * (a if b is None else self._vector("b", b)) * self._inverse)

    def christoffel_adjoint(self, a: Array, e: Array) -> Array:
        """Γ(a, ·)* e = −a ⊙ e / w."""
        return np.asarray(-self._vector("a", a) * self._vector("e", e) * self._inverse)

    def _exact_geodesic(self, v: Array) -> Array:
        return np.asarray(self.point * np.exp(v * self._inverse))

    def geodesic_gradient(self, v: Array, e: Array, order: Order = 2) -> Array:
        """The gradient w² ⊙ e times the derivative 1, 1 + x or eˣ of the geodesic of this order, x = v/w.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0]).geodesic_gradient([2.0], [3.0], "exact").round(6)
        array([32.619382])
        """
        factor = _DERIVATIVES[order_of(order)](self._vector("v", v) * self._inverse)
        return np.asarray(self.point**2 * factor * self._vector("e", e))

    def to_coordinates(self, v: Array) -> Array:
        """The ratios v / w, without the frozen parameters; a flat vector.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0, 0.0]).to_coordinates([1.0, 5.0])
        array([0.5])
        """
        return self._free_part(self._vector("v", v) * self._inverse)

    def from_coordinates(self, x: npt.ArrayLike) -> Array:
        """The products w ⊙ x."""
        return self._placed(self._coordinates(x)) * self.point

    def point_at(self, x: Array, order: Order = 2) -> Array:
        """The point w(1 + x), w(1 + x + ½x²) or w eˣ."""
        if np.shape(x) != (self.n_coordinates,):
            raise ValueError(f"x: expected shape {(self.n_coordinates,)}, got {np.shape(x)}")
        w = self._point(x.dtype)
        if self._free is not None:
            return np.asarray(self._placed(_FACTORS[order_of(order)](x)) * w)
        moved = np.empty_like(w)
        if order == 1:
            np.multiply(x.reshape(w.shape), w, out=moved)
            moved += w
        else:
            np.multiply(_FACTORS[order_of(order)](x.reshape(w.shape)), w, out=moved)
        return moved

    def gradient_at(self, x: Array, e: Array, order: Order = 2, out: Array | None = None) -> Array:
        """The gradient w ⊙ e, times the derivative of the factor: 1, 1 + x or eˣ."""
        e, w = self._shaped("e", e), self._point(x.dtype)
        gradient = np.empty((self.n_coordinates,), x.dtype) if out is None else out
        if self._free is None:
            np.multiply(w, e, out=gradient.reshape(w.shape))
        else:
            gradient[...] = (w * e)[self._free]
        if order != 1:
            gradient *= _DERIVATIVES[order_of(order)](x)
        return gradient

    def _free_part(self, array: Array) -> Array:
        return np.asarray(array.ravel() if self._free is None else array[self._free])

    def _placed(self, flat: Array) -> Array:
        if self._free is None:
            return np.asarray(flat.reshape(self.point.shape))
        array = np.zeros(self.point.shape, flat.dtype)
        array[self._free] = flat
        return array


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
