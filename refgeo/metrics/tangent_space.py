"""What every geometry offers at a base point: the interfaces `Metric` and `TangentSpace`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from refgeo.pair import Array

Point = TypeVar("Point")
Order = Literal[1, 2, "exact"]


class Metric(ABC, Generic[Point]):
    """A Riemannian metric; `at` fixes a base point and factorises it once."""

    name: str

    @abstractmethod
    def at(self, point: Point) -> TangentSpace[Point]:
        """The tangent space at `point`."""


class TangentSpace(ABC, Generic[Point]):
    """An immutable value that answers every question about one base point.

    Points and tangent vectors have the same type. Leading dimensions are independent blocks; a scalar per block has
    their shape. Implemented by each metric; made by `Metric.at`.
    """

    metric: Metric[Point]
    point: Point
    dim: int

    @abstractmethod
    def inner_product(self, a: Point, b: Point) -> Array:
        """The metric, one number per block."""

    def norm(self, a: Point) -> Array:
        """The length of a tangent vector in the metric, one number per block."""
        return np.asarray(np.sqrt(self.inner_product(a, a)))

    @abstractmethod
    def horizontal_projection(self, v: Point) -> Point:
        """Metric-orthogonal projection onto the horizontal space."""

    @abstractmethod
    def vertical_projection(self, v: Point) -> Point:
        """What `horizontal_projection` removes."""

    @abstractmethod
    def is_horizontal(self, v: Point, tolerance: float = 1e-8) -> Any:
        """Whether the vertical part is at most `tolerance` times the vector, one answer per block."""

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

    @abstractmethod
    def to_coordinates(self, v: Point) -> Array:
        """Orthonormal coordinates: an isometry to flat vectors, one vector per block."""

    @abstractmethod
    def from_coordinates(self, x: Array) -> Point:
        """The inverse of `to_coordinates`."""

    @abstractmethod
    def random_tangent_vector(self, rng: np.random.Generator | int | None = None, horizontal: bool = True) -> Point:
        """A tangent vector of unit length, uniform in direction in the metric."""
