r"""The metric for a loss that does not change when an array is scaled (Sec. 3.1): :math:`⟨ξ, ζ⟩ = ξ^\top ζ / ‖θ‖^2`.

With θ = e^s u, |u| = 1, it is ds² + |du|², a cylinder: lines in s, great circles in u. Horizontal vectors are
orthogonal to θ, and their geodesics are great circles. It is conformal to the Euclidean metric with factor e^{2φ},
φ = −log ‖θ‖, so

    Γ(a, b) = (dφ·a) b + (dφ·b) a − (a·b) ∇φ = −[(θ·a) b + (θ·b) a − (a·b) θ] / ‖θ‖².
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, Order, order_of
from refgeo.errors import RankDeficientError
from refgeo.metrics.array_space import ArrayTangentSpace
from refgeo.metrics.tangent_space import Metric


class ScalingTangentSpace(ArrayTangentSpace):
    """Tangent space of `ScalingMetric`; see `ArrayTangentSpace` for its members."""

    def __init__(self, metric: ScalingMetric, point: npt.ArrayLike) -> None:
        super().__init__(metric, point, dim=np.size(point) - 1)
        self._radius = float(np.linalg.norm(self.point))
        if self._radius == 0.0:
            raise RankDeficientError("point: expected an array that is not all zero, which cannot be scaled", (), 0.0)
        self._unit = self.point / self._radius

    def inner_product(self, a: Array, b: Array) -> Array:
        """Σ a_i b_i / ‖θ‖²."""
        return np.asarray(np.vdot(self._vector("a", a) / self._radius, self._vector("b", b) / self._radius))

    def horizontal_projection(self, v: Array) -> Array:
        """`v` without its component along θ.

        Examples
        --------
        >>> ScalingMetric().at([3.0, 4.0]).horizontal_projection([3.0, 9.0])
        array([-2.4,  1.8])
        """
        v = self._vector("v", v)
        return np.asarray(v - np.vdot(self._unit, v) * self._unit)

    def riemannian_gradient(self, egrad: Array) -> Array:
        """‖θ‖² e; horizontal for an invariant loss."""
        return np.asarray(self._radius**2 * self._vector("egrad", egrad))

    def riemannian_hessian(self, egrad: Array, ehess_v: Array, v: Array) -> Array:
        """P(‖θ‖² Hess v + Γ(grad f, v)) for a horizontal v, along which ‖θ‖ does not change."""
        gradient = self.riemannian_gradient(egrad)
        derivative = self._radius**2 * self._vector("ehess_v", ehess_v)
        return self.horizontal_projection(derivative + self.christoffel(gradient, v))

    def christoffel(self, a: Array, b: Array | None = None) -> Array:
        """Γ(a, b) = −[(θ·a) b + (θ·b) a − (a·b) θ] / ‖θ‖²."""
        a = self._vector("a", a)
        b = a if b is None else self._vector("b", b)
        u, r = self._unit, self._radius
        return np.asarray(-(np.vdot(u, a) * b + np.vdot(u, b) * a - np.vdot(a, b) * u) / r)

    def christoffel_adjoint(self, a: Array, e: Array) -> Array:
        """Γ(a, ·)* e = −[(θ·a) e + (a·e) θ − (θ·e) a] / ‖θ‖²."""
        a, e = self._vector("a", a), self._vector("e", e)
        u, r = self._unit, self._radius
        return np.asarray(-(np.vdot(u, a) * e + np.vdot(a, e) * u - np.vdot(u, e) * a) / r)

    def _exact_geodesic(self, v: Array) -> Array:
        growth = np.vdot(self._unit, v) / self._radius
        turning = v / self._radius - growth * self._unit
        angle = float(np.linalg.norm(turning))
        # sin(x)/x, which is 1 at 0
        return np.asarray(
            np.exp(growth) * self._radius * (np.cos(angle) * self._unit + np.sinc(angle / np.pi) * turning)
        )

    def geodesic_gradient(self, v: Array, e: Array, order: Order = 2) -> Array:
        """The Riemannian gradient at ξ = v of ξ ↦ ℓ(γ_ξ(1)).

        With x = v/‖θ‖ = a u + τ and φ = |τ| the exact geodesic ends at ‖θ‖eᵃ(cos φ u + sin φ/φ τ), of which this is
        the derivative.

        Examples
        --------
        >>> ScalingMetric().at([2.0, 0.0]).geodesic_gradient([0.0, np.pi], [1.0, 0.0], "exact").round(12)
        array([ 0., -4.])
        """
        if order_of(order) != "exact":
            return np.asarray(super().geodesic_gradient(v, e, order))
        x, e, u = self._vector("v", v) / self._radius, self._vector("e", e), self._unit
        a = np.vdot(u, x)
        turn = x - a * u
        angle = float(np.linalg.norm(turn))
        c, s = np.cos(angle), np.sinc(angle / np.pi)
        # (cos φ − sin φ/φ)/φ², whose digits cancel where φ is small
        bend = (c - s) / angle**2 if angle > 0.03 else -1.0 / 3.0 + angle**2 / 30.0 - angle**4 / 840.0
        across = s * e + (bend * np.vdot(e, turn) - s * np.vdot(e, u)) * turn
        gradient = (np.vdot(e, c * u + s * turn) - np.vdot(u, across)) * u + across
        return np.asarray(self._radius**2 * np.exp(a) * gradient)

    def to_coordinates(self, v: Array) -> Array:
        """The entries of v / ‖θ‖, flat."""
        return np.asarray(self._vector("v", v).ravel() / self._radius)

    def from_coordinates(self, x: npt.ArrayLike) -> Array:
        """‖θ‖ x, in the shape of the point."""
        return np.asarray(self._radius * self._coordinates(x).reshape(self.point.shape))


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

    def at(self, point: npt.ArrayLike) -> ScalingTangentSpace:
        """The tangent space at `point`, an array of any shape, not all zero."""
        return ScalingTangentSpace(self, point)
