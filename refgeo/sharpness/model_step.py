r"""Model steps: the maximiser of a quadratic model over the ball, within the span of the points evaluated so far.

Gradient steps need many iterations where the gradient is small and curvature decides, that is near a minimum, where
sharpness is asked for most. But k evaluated points carry the Hessian on their span: with differences d_i of points and
y_i of gradients, Q an orthonormal basis of the d_i, D = QᵀD-coordinates, the model

.. math:: m(z) = c^\top z + ½ z^\top B z, \qquad B = D^+ Y Q,\; c = Q g_b - B Q x_b

is exact for a quadratic, and its maximum over ‖z‖ ≤ ρ, a trust-region subproblem in k dimensions, is what Lanczos'
method would find there with as many gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refgeo.arguments import Array
from refgeo.trust_region import maximise_quadratic

_NUMBERS = 1 << 25
"""What a memory may hold, 256 MiB of float64."""
_FEWEST = 6
"""With fewer points, gradient steps do better."""
_REGULAR = 1e-5
"""Differences shorter than this part of the longest tell rounding rather than curvature, and count less."""
_INDEPENDENT = 1e-7


@dataclass
class _Evaluated:
    x: Array
    gradient: Array


class Memory:
    """The origin and the most recent points with their gradients, as many as fit.

    Parameters
    ----------
    points : int
        The most that are kept.
    origin, gradient : ndarray
        The ball's centre and the gradient there; with it the best point is in the span of the differences.
    horizontal : callable
        The projection onto the subspace in which all points lie but for rounding, which short differences magnify.
    """

    def __init__(self, points: int, origin: Array, gradient: Array, horizontal: Callable[[Array], Array]) -> None:
        room = min(points, _NUMBERS // max(2 * len(origin), 1))
        self._origin, self._horizontal = _Evaluated(origin, gradient), horizontal
        self._points: deque[_Evaluated] = deque(maxlen=room if room >= _FEWEST else 0)

    @property
    def remembers(self) -> bool:
        """Whether there is room for points at all."""
        return self._points.maxlen != 0

    def slope_towards(self, x: Array) -> float:
        """The linear part of the function at x."""
        return float(np.dot(self._origin.gradient, x - self._origin.x))

    def add(self, x: Array, gradient: Array) -> None:
        """Remember a point."""
        self._points.append(_Evaluated(x, gradient))

    def model_maximiser(self, best: Array, best_gradient: Array, radius: float) -> Array | None:
        """The model's maximiser over the ball, expanded about the best point; None without enough points."""
        others = [point for point in (self._origin, *self._points) if point.x is not best]
        if len(others) < 3:
            return None
        D = np.stack([point.x - best for point in others])
        Y = np.stack([point.gradient - best_gradient for point in others])
        squares, U = np.linalg.eigh(D @ D.T)
        lengths = np.sqrt(np.maximum(squares, 0.0))
        kept = lengths > _INDEPENDENT * lengths[-1]
        if not kept.any():
            return None
        lengths, U = lengths[kept], U[:, kept]
        # D = U diag(lengths) Q, so D⁺ = Qᵀ diag(1/lengths) Uᵀ; damped, so that rounding is not divided by nothing
        Q = (U / lengths).T @ D
        damped = lengths / (lengths**2 + (_REGULAR * lengths[-1]) ** 2)
        B = damped[:, None] * (U.T @ (Y @ Q.T))
        B = 0.5 * (B + B.T)
        c = Q @ best_gradient - B @ (Q @ best)
        found = self._horizontal(maximise_quadratic(c, B, radius).x @ Q)
        return np.asarray(found * min(1.0, radius / max(float(np.linalg.norm(found)), 1e-300)))
