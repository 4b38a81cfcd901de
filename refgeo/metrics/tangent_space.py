"""What every geometry offers at a base point: the interfaces `Metric` and `TangentSpace`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from refgeo.arguments import Array, Order
from refgeo.errors import NO_GEODESIC

Point = TypeVar("Point")


class Metric(ABC, Generic[Point]):
    """A Riemannian metric; `at` fixes a base point and factorises it once."""

    name: str

    @abstractmethod
    def at(self, point: Point) -> TangentSpace[Point]:
        """The tangent space at `point`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def as_metric(name: str, value: object) -> Metric[Any]:
    """The metric itself.

    Examples
    --------
    >>> import refgeo as rg
    >>> as_metric("metric", rg.InvariantMetric)
    Traceback (most recent call last):
    ...
    TypeError: metric: expected a metric such as refgeo.InvariantMetric(), got the class InvariantMetric; call it
    """
    if isinstance(value, Metric):
        return value
    if isinstance(value, str):
        got = repr(value)
    else:
        got = f"the class {value.__name__}; call it" if isinstance(value, type) else type(value).__name__
    raise TypeError(f"{name}: expected a metric such as refgeo.InvariantMetric(), got {got}")


class TangentSpace(ABC, Generic[Point]):
    """An immutable value that answers every question about one base point.

    Points and tangent vectors have the same type. Leading dimensions are independent blocks; a scalar per block has
    their shape. Implemented by each metric; made by `Metric.at`.
    """

    metric: Metric[Point]
    point: Point
    dim: int
    n_coordinates: int
    block_shape: tuple[int, ...] = ()

    @abstractmethod
    def inner_product(self, a: Point, b: Point) -> Array:
        """The metric, one number per block."""

    def norm(self, a: Point) -> Array:
        """The length of a tangent vector in the metric, one number per block."""
        return np.asarray(np.sqrt(self.inner_product(a, a)))

    @abstractmethod
    def horizontal_projection(self, v: Point) -> Point:
        """Metric-orthogonal projection onto the horizontal space."""

    def vertical_projection(self, v: Point) -> Point:
        """The vertical part: `v` minus its horizontal projection."""
        return v - self.horizontal_projection(v)  # type: ignore[operator, no-any-return]

    def is_horizontal(self, v: Point, tolerance: float = 1e-8) -> Any:
        """Whether the vertical part is at most `tolerance` times the vector in the metric, one answer per block."""
        return np.asarray(self.norm(self.vertical_projection(v)) <= tolerance * self.norm(v))

    @abstractmethod
    def riemannian_gradient(self, egrad: Point) -> Point:
        """The vector that represents the Euclidean gradient `egrad` in the metric."""

    @abstractmethod
    def riemannian_hessian(self, egrad: Point, ehess_v: Point, v: Point) -> Point:
        """The Riemannian Hessian applied to `v`, from the Euclidean gradient and Hessian-vector product."""

    @abstractmethod
    def christoffel(self, a: Point, b: Point | None = None) -> Point:
        """The Christoffel term Γ(a, b), a symmetric bilinear map; ``b=None`` means Γ(a, a)."""

    @abstractmethod
    def christoffel_adjoint(self, a: Point, e: Point) -> Point:
        """The adjoint Γ(a, ·)* applied to a Euclidean gradient `e`."""

    @abstractmethod
    def geodesic(self, v: Point, t: float = 1.0, order: Order = 2) -> Point:
        """The geodesic with initial velocity `v` at time `t`."""

    def geodesic_gradient(self, v: Point, e: Point, order: Order = 2) -> Point:
        r"""The Riemannian gradient at ξ = v of :math:`ξ ↦ ℓ(γ_ξ(1))`, by the chain rule through the geodesic.

        Order 1 raises e, order 2 raises :math:`e - Γ(v,·)^* e`. "exact" needs no derivative of a formula: a geodesic
        flow is symplectic, so the adjoint of its derivative is the derivative of the reversed flow. With v₁ the
        velocity at the end θ₁ and g₁ the Riemannian gradient of ℓ there,

        .. math:: \mathrm{grad} = -\frac{d}{ds} \exp_{θ_1}(-(v_1 + s g_1)) \Big|_{s=0},

        taken by five-point differences (relative error about 1e-10): one direction, and so four geodesics, where the
        equation of variation would need the derivative of Γ. Metrics with a closed form differentiate that instead.

        Parameters
        ----------
        v : tangent vector
        e : Euclidean gradient of ℓ at γ_v(1)
        order : 1, 2 or "exact"

        Returns
        -------
        tangent vector

        Raises
        ------
        GeodesicIncompleteError
            Only "exact": a reversed geodesic ends before it is back.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ElementwiseMetric().at([2.0]).geodesic_gradient([2.0], [3.0])  # w(1 + x + ½x²), x = 1: 2·2·3·(1 + x)
        array([24.])
        """
        if order == 1:
            return self.riemannian_gradient(e)
        if order == 2:
            return self.riemannian_gradient(e - self.christoffel_adjoint(v, e))  # type: ignore[operator]
        there = self.metric.at(self.geodesic(v, 1.0, order))
        longest = float(np.max(self.norm(v) / self.norm(self.point), initial=0.0))
        arriving: Any = five_point(lambda t: self.geodesic(v, 1.0 + t, order), 1e-3 / max(longest, 1e-3))
        gradient: Any = there.riemannian_gradient(e)
        if there._is_horizontal_but_for_noise(arriving) and there._is_horizontal_but_for_noise(gradient):
            # without the rounding of the differences, closed forms serve the way back
            arriving, gradient = there.horizontal_projection(arriving), there.horizontal_projection(gradient)
        size = there.norm(gradient)
        step = 1e-3 * (there.norm(arriving) + there.norm(there.point)) / np.where(size > 0, size, 1.0)
        back: Any = five_point(lambda s: there.geodesic(-(arriving + gradient * (s * step)), 1.0, order), 1.0)
        return back * (-1.0 / step)  # type: ignore[no-any-return]

    def _is_horizontal_but_for_noise(self, v: Point) -> bool:
        """Horizontal beside the largest block: what is small in a block may be nothing but rounding."""
        return bool(np.max(self.norm(self.vertical_projection(v))) <= 1e-8 * np.max(self.norm(v)))

    # In coordinates: what an optimiser that knows no geometry needs -----------------------------------------------

    @abstractmethod
    def to_coordinates(self, v: Point) -> Array:
        """Orthonormal coordinates: an isometry to flat vectors, one vector per block."""

    @abstractmethod
    def from_coordinates(self, x: Array) -> Point:
        """The inverse of `to_coordinates`."""

    def point_at(self, x: Array, order: Order = 2) -> Point:
        """``geodesic(from_coordinates(x), 1, order)``; without "exact", x = 0 gives the base point bit by bit.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.EuclideanMetric().at([1.0, 2.0]).point_at([0.5, 0.0])
        array([1.5, 2. ])
        """
        return self.geodesic(self.from_coordinates(x), 1.0, order)

    def gradient_at(self, x: Array, e: Point, order: Order = 2, out: Array | None = None) -> Array:
        """The gradient of ``ℓ(point_at(x, order))`` in coordinates, projected to the horizontal space.

        Where a geodesic can be followed to its end but not differentiated there, as beside a loss of rank ("exact"
        only), it is the gradient of the second-order geodesic.

        Parameters
        ----------
        x : ndarray, coordinates
        e : Euclidean gradient of ℓ at ``point_at(x, order)``
        order : 1, 2 or "exact"
        out : ndarray, optional
            Where to put the result.

        Returns
        -------
        ndarray, coordinates

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ScalingMetric().at([3.0, 4.0]).gradient_at([0.0, 0.0], [0.0, 1.0], order=1)
        array([-2.4,  1.8])
        """
        v = self.from_coordinates(x)
        try:
            gradient = self.geodesic_gradient(v, e, order)
        except NO_GEODESIC:
            if order != "exact":
                raise
            gradient = self.geodesic_gradient(v, e, 2)
        coordinates = self.to_coordinates(self.horizontal_projection(gradient))
        if out is None:
            return coordinates
        out[...] = coordinates
        return out

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Standard normal coordinates; for the same generator they stand for the same vector along an orbit.

        Examples
        --------
        >>> import numpy as np, refgeo as rg
        >>> rg.EuclideanMetric().at(np.ones(5)).normal_coordinates(np.random.default_rng(0)).shape
        (5,)
        """
        return rng.standard_normal((*self.block_shape, self.n_coordinates))

    def random_tangent_vector(self, rng: np.random.Generator | int | None = None, horizontal: bool = True) -> Point:
        """A tangent vector of unit length, uniform in direction in the metric.

        Parameters
        ----------
        rng : numpy Generator, or a seed
        horizontal : bool
            Draw from the horizontal space (default) or from the whole tangent space.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.ElementwiseMetric().at([1.0, 20.0, 0.0])
        >>> round(float(space.norm(space.random_tangent_vector(0))), 12)
        1.0
        """
        x: Array = np.random.default_rng(rng).standard_normal((*self.block_shape, self.n_coordinates))
        # twice: the rounding of the first is large beside what it leaves of a nearly vertical draw
        for _ in range(2 if horizontal else 0):
            x = self.to_coordinates(self.horizontal_projection(self.from_coordinates(x)))
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        return self.from_coordinates(x / np.linalg.norm(x, axis=-1, keepdims=True))


def five_point(f: Callable[[float], Any], step: float) -> Any:
    """The derivative of f at 0; the error is O(step⁴).

    Examples
    --------
    >>> round(float(five_point(np.exp, 1e-3)), 11)
    1.0
    """
    return ((f(step) - f(-step)) * 8.0 - (f(2.0 * step) - f(-2.0 * step))) * (1.0 / (12.0 * step))
