r"""Metrics on plain arrays: Euclidean, its quotient by translations, by scalings, and the elementwise one.

A point is one array of any shape, and one block.

*Scaling* (Sec. 3.1), :math:`⟨ξ, ζ⟩ = ξ^\top ζ / ‖θ‖^2`, for a loss that does not change when an array is scaled. With
θ = e^s u, |u| = 1, it is ds² + |du|², a cylinder: lines in s, great circles in u. Horizontal vectors are orthogonal to
θ, and their geodesics are great circles. It is conformal to the Euclidean metric with factor e^{2φ}, φ = −log ‖θ‖, so

    Γ(a, b) = (dφ·a) b + (dφ·b) a − (a·b) ∇φ = −[(θ·a) b + (θ·b) a − (a·b) θ] / ‖θ‖².

*Elementwise* (App. F, C.1), :math:`⟨ξ, ζ⟩ = Σ ξ_iζ_i / w_i^2`, is what adaptive sharpness measures in. Every parameter
is a scaling symmetry of its own. A parameter that is exactly zero is at infinite distance from all others: it is
*frozen*, vectors have a zero there, and nothing is divided by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.groups import Symmetry, scaling, translation
from refgeo.geometry.pair import Pair
from refgeo.geometry.tangent_space import Metric, TangentSpace
from refgeo.support.arguments import Array, Order, one_array, order_of, real_array
from refgeo.support.errors import RankDeficientError


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

    _orbit = 0
    """The dimension of an orbit."""

    def __init__(self, metric: Metric[Array], point: npt.ArrayLike, dim: int | None = None) -> None:
        if isinstance(point, Pair):
            raise TypeError(
                f"point: expected an array, because {metric!r} is for arrays, got a Pair; use InvariantMetric or "
                "MixedMetric, or a ProductMetric that has both factors as arrays"
            )
        array = one_array("point", point)
        array.setflags(write=False)
        self.metric, self.point = metric, array
        self.dim, self.n_coordinates = array.size - self._orbit if dim is None else dim, array.size

    @property
    def _scale(self) -> Any:
        """A number, or one for each coordinate."""
        return 1.0

    def _flat(self, v: Array) -> Array:
        return v.ravel()

    def _reshape(self, x: Array) -> Array:
        return x.reshape(self.point.shape)

    def _to(self, v: Array) -> Array:
        return np.asarray(self._flat(v) / self._scale)

    def _back(self, x: Array) -> Array:
        return self._reshape(x * self._scale)

    def _gradient_to(self, e: Array) -> Array:
        return np.asarray(self._flat(e) * self._scale)

    def _gradient_back(self, x: Array) -> Array:
        return self._reshape(x / self._scale)

    def _vector(self, name: str, value: npt.ArrayLike) -> Array:
        vector = real_array(name, value)
        if vector.shape != self.point.shape:
            raise ValueError(f"{name}: expected the shape of the point, {self.point.shape}, got {vector.shape}")
        return vector


class EuclideanMetric(Metric[Array]):
    """The Euclidean metric on arrays: plain weight space.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.EuclideanMetric().at([1.0, 2.0]).geodesic([3.0, 4.0])
    array([4., 6.])
    """

    name = "euclidean"
    is_invariant = True

    def at(self, point: npt.ArrayLike) -> ArrayTangentSpace:
        """Return the tangent space at `point`, an array of any shape."""
        return ArrayTangentSpace(self, point)

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return an empty list."""
        return []


class TranslationTangentSpace(ArrayTangentSpace):
    """Tangent space of `TranslationMetric`: horizontal vectors have mean zero."""

    _orbit = 1

    def _vertical(self, x: Array) -> Array:
        return np.full_like(x, x.mean())


class TranslationMetric(EuclideanMetric):
    """The Euclidean metric, for a loss that does not change when one number is added to all entries (Sec. 3.1).

    Such are the logits' biases before a softmax. Geodesics are straight.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.TranslationMetric().at([5.0, 6.0, 7.0]).dim
    2
    """

    name = "translation"

    def at(self, point: npt.ArrayLike) -> TranslationTangentSpace:
        """Return the tangent space at `point`, an array of any shape."""
        return TranslationTangentSpace(self, point)

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return the translations."""
        return [translation(block)]


class ScalingTangentSpace(ArrayTangentSpace):
    """Tangent space of `ScalingMetric`; see `ArrayTangentSpace` for its members."""

    _orbit = 1

    def __init__(self, metric: ScalingMetric, point: npt.ArrayLike) -> None:
        super().__init__(metric, point)
        largest = float(np.max(np.abs(self.point), initial=0.0))
        self._radius = largest * float(np.linalg.norm(self.point / (largest or 1.0)))
        if self._radius == 0.0:
            raise RankDeficientError(
                "point: expected an array with a nonzero entry, because scaling does not change zeros", (), 0.0
            )
        self._unit = self.point / self._radius

    @property
    def _scale(self) -> float:
        return self._radius

    def _vertical(self, x: Array) -> Array:
        u = self._unit.ravel()
        return np.asarray((u @ x) * u)

    def _gamma(self, x: Array, z: Array) -> Array:
        u = self._unit.ravel()
        return np.asarray((x @ z) * u - (u @ x) * z - (u @ z) * x)

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        u = self._unit.ravel()
        return np.asarray((u @ e) * x - (u @ x) * e - (x @ e) * u)

    def _exact(self, v: Array, t: float) -> Array:
        """Return ‖θ‖eᵃ(cos φ u + sin φ/φ τ), where tv/‖θ‖ = a u + τ and φ = |τ|."""
        x, u = t * v / self._radius, self._unit
        growth = np.vdot(u, x)
        turning = x - growth * u
        angle = float(np.linalg.norm(turning))
        # sin(x)/x, which is 1 at 0
        return np.asarray(np.exp(growth) * self._radius * (np.cos(angle) * u + np.sinc(angle / np.pi) * turning))

    def _exact_gradient(self, v: Array, e: Array) -> Array:
        """Return the gradient through the closed form of the geodesic."""
        x, u = v / self._radius, self._unit
        a = np.vdot(u, x)
        turn = x - a * u
        angle = float(np.linalg.norm(turn))
        c, s = np.cos(angle), np.sinc(angle / np.pi)
        # (cos φ − sin φ/φ)/φ², whose digits cancel where φ is small
        bend = (c - s) / angle**2 if angle > 0.03 else -1.0 / 3.0 + angle**2 / 30.0 - angle**4 / 840.0
        across = s * e + (bend * np.vdot(e, turn) - s * np.vdot(e, u)) * turn
        gradient = (np.vdot(e, c * u + s * turn) - np.vdot(u, across)) * u + across
        return np.asarray(self._radius**2 * np.exp(a) * gradient)


class ScalingMetric(Metric[Array]):
    r"""The metric :math:`⟨ξ, ζ⟩ = ξ^\top ζ / ‖θ‖^2`, for a loss that does not change when the array is scaled.

    Such are weights before a normalisation layer.

    Examples
    --------
    A quarter of a great circle:

    >>> import numpy as np, refgeo as rg
    >>> rg.ScalingMetric().at([2.0, 0.0]).geodesic([0.0, 2.0], t=np.pi / 2, order="exact").round(12)
    array([0., 2.])
    """

    name = "scaling"
    is_invariant = True

    def at(self, point: npt.ArrayLike) -> ScalingTangentSpace:
        """Return the tangent space at `point`, an array of any shape, not all zero."""
        return ScalingTangentSpace(self, point)

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return the positive scalings."""
        return [scaling(block)]


class WeightedTangentSpace(ArrayTangentSpace):
    """Tangent space of `WeightedMetric`; see `ArrayTangentSpace` for its members."""

    def __init__(self, metric: Metric[Array], point: npt.ArrayLike, weights: Array | None = None) -> None:
        super().__init__(metric, point)
        self._weights = self.point if weights is None else weights
        if self._weights.shape != self.point.shape:
            raise ValueError(f"scale: expected the shape of the point, {self.point.shape}, got {self._weights.shape}")
        free = self._weights != 0
        self.dim = self.n_coordinates = int(np.count_nonzero(free))
        self._free = None if free.all() else free

    @property
    def _scale(self) -> Array:
        return self._flat(self._weights)

    def _flat(self, v: Array) -> Array:
        return np.asarray(v.ravel() if self._free is None else v[self._free])

    def _reshape(self, x: Array) -> Array:
        if self._free is None:
            return np.asarray(x.reshape(self.point.shape))
        array = np.zeros(self.point.shape)
        array[self._free] = x
        return array

    def _exact_gradient(self, v: Array, e: Array) -> Array:
        return self.riemannian_gradient(e)  # of straight lines

    def horizontal_projection(self, v: Array) -> Array:
        """Return `v` with zeros at the frozen parameters.

        Examples
        --------
        >>> ElementwiseMetric().at([2.0, 0.0]).horizontal_projection([1.0, 5.0])
        array([1., 0.])
        """
        return self._reshape(self._flat(self._vector("v", v)))

    def is_horizontal(self, v: Array, tolerance: float = 1e-8) -> bool:
        """Return whether `v` leaves the frozen parameters alone."""
        return self._free is None or not np.any(self._vector("v", v)[~self._free])


class WeightedMetric(EuclideanMetric):
    r"""The constant metric :math:`⟨ξ, ζ⟩ = Σ ξ_iζ_i / c_i^2`; where c is zero, nothing moves.

    Parameters
    ----------
    scale : array_like, the c

    Examples
    --------
    >>> float(WeightedMetric([2.0, 0.0]).at([5.0, 7.0]).norm([4.0, 0.0]))
    2.0
    """

    name = "weighted"

    def __init__(self, scale: npt.ArrayLike) -> None:
        self.scale = real_array("scale", scale)

    def at(self, point: npt.ArrayLike) -> WeightedTangentSpace:
        """Return the tangent space at `point`, an array of the same shape."""
        return WeightedTangentSpace(self, point, self.scale)


class ElementwiseTangentSpace(WeightedTangentSpace):
    """Tangent space of `ElementwiseMetric`; see `ArrayTangentSpace` for its members."""

    def _gamma(self, x: Array, z: Array) -> Array:
        """Return Γ(a, b) = −a ⊙ b / w."""
        return np.asarray(-x * z)

    _gamma_adjoint = _gamma

    def _exact(self, v: Array, t: float) -> Array:
        return self._reshape(self._scale * np.exp(t * self._to(v)))

    def _exact_gradient(self, v: Array, e: Array) -> Array:
        return self._back(self._gradient_to(e) * np.exp(self._to(v)))

    def point_at(self, x: npt.ArrayLike, order: Order = 2) -> Array:
        """Return the point w(1 + x), w(1 + x + ½x²) or w eˣ."""
        return self._reshape(self._scale * _FACTORS[order_of(order)](self._coordinates(x)))

    def gradient_at(self, x: npt.ArrayLike, e: Array, order: Order = 2) -> Array:
        """Return the gradient w ⊙ e, times the derivative of the factor: 1, 1 + x or eˣ."""
        x, gradient = self._coordinates(x), self._gradient_to(self._vector("e", e))
        return gradient if order_of(order) == 1 else gradient * _DERIVATIVES[order](x)


_FACTORS: dict[Order, Callable[[Array], Array]] = {
    1: lambda x: 1.0 + x,
    2: lambda x: 1.0 + x * (1.0 + 0.5 * x),
    "exact": np.exp,
}
_DERIVATIVES: dict[Order, Callable[[Array], Array]] = {2: lambda x: 1.0 + x, "exact": np.exp}


class ElementwiseMetric(Metric[Array]):
    r"""The metric :math:`⟨ξ, ζ⟩ = Σ ξ_iζ_i / w_i^2` on arrays.

    Geodesics are :math:`w_i e^{tξ_i/w_i}`. The unit ball of a step w + ξ is that of adaptive sharpness.

    Parameters
    ----------
    curved : bool
        False leaves Γ out: whatever the order, a step is w + ξ. The paper has it so for every parameter outside
        attention (App. C.1).

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.ElementwiseMetric().at([1.0, -2.0, 0.0])
    >>> space.geodesic([1.0, -2.0, 7.0], order="exact").round(3)
    array([ 2.718, -5.437,  0.   ])
    """

    name = "elementwise"
    is_invariant = True

    def __init__(self, curved: bool = True) -> None:
        self.curved = curved

    def __repr__(self) -> str:
        return f"ElementwiseMetric({'' if self.curved else 'curved=False'})"

    def at(self, point: npt.ArrayLike) -> WeightedTangentSpace:
        """Return the tangent space at `point`, an array of any shape."""
        return (ElementwiseTangentSpace if self.curved else WeightedTangentSpace)(self, point)

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return an empty list: the metric divides out no symmetry."""
        return []
