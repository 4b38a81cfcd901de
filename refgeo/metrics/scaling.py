r"""The metric for a loss that does not change when an array is scaled (Sec. 3.1): :math:`⟨ξ, ζ⟩ = ξ^\top ζ / ‖θ‖^2`.

With θ = e^s u, |u| = 1, it is ds² + |du|², a cylinder: lines in s, great circles in u. Horizontal vectors are
orthogonal to θ, and their geodesics are great circles. It is conformal to the Euclidean metric with factor e^{2φ},
φ = −log ‖θ‖, so

    Γ(a, b) = (dφ·a) b + (dφ·b) a − (a·b) ∇φ = −[(θ·a) b + (θ·b) a − (a·b) θ] / ‖θ‖².
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array
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
        """‖θ‖eᵃ(cos φ u + sin φ/φ τ), where tv/‖θ‖ = a u + τ and φ = |τ|."""
        x, u = t * v / self._radius, self._unit
        growth = np.vdot(u, x)
        turning = x - growth * u
        angle = float(np.linalg.norm(turning))
        # sin(x)/x, which is 1 at 0
        return np.asarray(np.exp(growth) * self._radius * (np.cos(angle) * u + np.sinc(angle / np.pi) * turning))

    def _exact_gradient(self, v: Array, e: Array) -> Array:
        """The derivative of that."""
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

    def at(self, point: npt.ArrayLike) -> ScalingTangentSpace:
        """The tangent space at `point`, an array of any shape, not all zero."""
        return ScalingTangentSpace(self, point)
