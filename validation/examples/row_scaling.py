"""A geometry of one's own: each row of an array may be multiplied by its own positive number."""

import numpy as np

from refgeo.geometry.arrays import ArrayTangentSpace
from refgeo.geometry.tangent_space import Metric


class RowScalingMetric(Metric):  # ⟨ξ, ζ⟩ is the sum of ξᵢ·ζᵢ/‖wᵢ‖² over the rows wᵢ
    def at(self, point):
        rows, columns = np.shape(point)
        return RowScalingTangentSpace(self, point, dim=rows * (columns - 1))


class RowScalingTangentSpace(ArrayTangentSpace):
    def __init__(self, metric, point, dim):
        super().__init__(metric, point, dim)
        self.lengths = np.linalg.norm(self.point, axis=1, keepdims=True)
        self.u = self.point / self.lengths

    @property
    def _scale(self):  # coordinates times this scale give the tangent vector
        return np.repeat(self.lengths, self.point.shape[1])

    def _vertical(self, x):  # the part of each row that points along the row
        return (dot(self.u, self._reshape(x)) * self.u).ravel()

    def _gamma(self, x, z):  # Γ(x, z)
        x, z, u = self._reshape(x), self._reshape(z), self.u
        return (dot(x, z) * u - dot(u, x) * z - dot(u, z) * x).ravel()

    def _gamma_adjoint(self, x, e):  # the adjoint of z ↦ Γ(x, z), applied to e
        x, e, u = self._reshape(x), self._reshape(e), self.u
        return (dot(u, e) * x - dot(u, x) * e - dot(x, e) * u).ravel()

    def _exact(self, v, t):  # each row turns on a great circle, and grows exponentially
        x = t * v / self.lengths
        growth = dot(self.u, x)
        turning = x - growth * self.u
        angle = np.sqrt(dot(turning, turning))
        return np.exp(growth) * self.lengths * (np.cos(angle) * self.u + np.sinc(angle / np.pi) * turning)


def dot(x, y):  # the dot product of each row of x with that of y
    return np.sum(x * y, axis=1, keepdims=True)
