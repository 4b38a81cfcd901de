r"""Auto-PGD (Alg. 1; Croce & Hein 2020): the maximum of a function over a ball of ℝᴺ. No geometry is known here.

An iteration takes the projected step z = P(x + η ĝ) and adds momentum, P(x + ¾(z − x) + ¼(x − x⁻)). At checkpoints
that become more frequent, η is halved and the search goes back to the best point if fewer than 75% of the steps since
the last one improved on the step before, or if neither η nor the best value has changed since. Only the iterate x is
replaced then, not the one before, x⁻.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # whose modules load where they are used

from refgeo.paper import checkpoints
from refgeo.support.arguments import Array

Function = Callable[[Array], tuple[float, Array]]
"""Value, −inf where there is none, and gradient."""
Watch = Callable[[int, float, float, float], bool]
"""Is told of every evaluation: iteration, value, best value, step size; says whether to stop."""

MOMENTUM = 0.75
IMPROVING = 0.75
NEGLIGIBLE = 1e-6
"""Share of the first step's value below which the gradient is rounding, and its direction means nothing."""
N_RESTARTS = 5
"""Default number of starts; chosen. On small problems, more starts seldom find a larger value."""
STATIONARY = 0.01
"""Residual at which a run counts as converged."""
TRIES = 20
"""Of a random start, each half as far as the one before, until there is a value."""


def norm(x: Array) -> float:
    """Return the Euclidean length, also where its square overflows or underflows.

    Examples
    --------
    >>> round(norm(np.array([3e-200, 4e-200])) / 1e-200, 12)
    5.0
    """
    return float(scipy.linalg.norm(x, check_finite=False))


@dataclass(frozen=True)
class RoundBall:
    """‖x‖₂ ≤ radius."""

    radius: float

    def upwards(self, gradient: Array) -> Array:
        """Return the steepest direction."""
        return gradient * (1.0 / norm(gradient))

    def pull(self, x: Array) -> None:
        """Move x, in place, to the nearest point of the ball."""
        length = norm(x)
        if length > self.radius:
            x *= self.radius / length

    def residual(self, x: Array, gradient: Array) -> float:
        """Return ‖P(x + ρ g/‖g‖) − x‖ / ρ."""
        if not gradient.any():
            return 0.0
        return norm(advance(self, x, gradient, self.radius) - x) / self.radius

    def linear_gain(self, gradient: Array) -> float:
        """Return ρ‖g‖₂."""
        return self.radius * norm(gradient)

    def random(self, direction: Array) -> Array:
        """Return the direction, scaled to the radius; 0 if it is nothing but rounding."""
        length = norm(direction)
        return direction * (self.radius / length if length > 1e-12 * math.sqrt(len(direction)) else 0.0)

    def outermost(self, x: Array) -> Array:
        """Return the multiple of x whose length is the radius."""
        return x * (self.radius / norm(x))


@dataclass(frozen=True)
class Box:
    """max |x_i| ≤ radius. The steepest direction is the gradient's sign."""

    radius: float

    def upwards(self, gradient: Array) -> Array:
        """Return the signs."""
        return np.sign(gradient)

    def pull(self, x: Array) -> None:
        """Move x, in place, to the nearest point of the box."""
        np.clip(x, -self.radius, self.radius, out=x)

    def residual(self, x: Array, gradient: Array) -> float:
        """Return the square root of the share of the linear gain that is left: gᵀ(ρ sign g − x) / (ρ‖g‖₁)."""
        total = self.linear_gain(gradient)
        return math.sqrt(max(1.0 - float(gradient @ x) / total, 0.0)) if total > 0.0 else 0.0

    def linear_gain(self, gradient: Array) -> float:
        """Return ρ‖g‖₁."""
        return self.radius * float(np.abs(gradient).sum())

    def random(self, direction: Array) -> Array:
        """Return the corner in the direction of the signs."""
        return self.radius * np.sign(direction)

    def outermost(self, x: Array) -> Array:
        """Return the multiple of x whose largest entry is the radius."""
        return x * (self.radius / float(np.max(np.abs(x))))


Ball = RoundBall | Box
"""The set {‖x‖ ≤ ρ} of some norm. `residual` is 0 where no direction within it goes up; `random` is 0 where there is no
direction.
"""


def advance(ball: Ball, x: Array, gradient: Array, size: float) -> Array:
    """Return P(x + η ĝ).

    Examples
    --------
    >>> advance(RoundBall(1.0), np.array([0.5, 0.0]), np.array([3.0, 0.0]), 0.25)
    array([0.75, 0.  ])
    """
    z = ball.upwards(gradient)
    z *= size
    z += x
    ball.pull(z)
    return z


@dataclass(frozen=True)
class Climb:
    """What one start found.

    Attributes
    ----------
    value, x
        The best value, and where it is.
    values : ndarray
        The value at every evaluation, −inf where it was rejected.
    steps : ndarray
        The step size η that led there.
    residual : float
        See `Ball.residual`, at x.
    probe : any
        What `climb` was asked to find out from x and the gradient there, which is not kept.
    n_evaluations, n_rejected : int
        With those that looked for a start.
    negligible : bool
        Whether the gradient at the start was nothing but rounding beside the first value: another start is better.
    """

    value: float
    x: Array
    values: Array
    steps: Array
    residual: float
    probe: Any
    n_evaluations: int
    n_rejected: int
    negligible: bool = False


def climb(
    function: Function, ball: Ball, start: tuple[Array, float, Array], n_iter: int, watch: Watch, size: float = 0.0,
    probe: Callable[[Array, Array], Any] = lambda x, gradient: None,
) -> Climb:  # fmt: skip
    """Run Alg. 1 from a start, of which value and gradient are known. A step to where there is no value is undone: the
    search goes on from the best point, with half the step.

    Parameters
    ----------
    function : callable
    ball : Ball
    start : (x, value, gradient)
    n_iter : int
    watch : callable
    size : float
        The first step size; 0 is the paper's, 2ρ.
    probe : callable
        ``probe(x, gradient)`` is called for the best point at the end.

    Examples
    --------
    >>> result = climb(lambda x: (float(x @ x + x[0]), 2 * x + np.eye(2)[0]), RoundBall(1.0),
    ...               (np.zeros(2), 0.0, np.eye(2)[0]), 20, lambda *_: False)
    >>> result.value, result.x.tolist()
    (2.0, [1.0, 0.0])
    """
    size = size or 2.0 * ball.radius
    x, value, gradient = best, top, best_gradient = start
    del start  # vectors are as long as the parameters: what is not needed goes
    previous, values, steps = None, [value], [0.0]
    improved, since, last, marks = 0, 0, (size, value), checkpoints(n_iter)
    gain, negligible = ball.linear_gain(gradient), False
    for iteration in range(1, n_iter + 1):
        if not gradient.any():
            break  # nothing to follow: a stationary point, or a function that is constant
        candidate = advance(ball, x, gradient, size)
        del gradient
        if previous is not None:  # x + ¾(z − x) + ¼(x − x⁻)
            candidate *= MOMENTUM
            candidate += (2.0 * (1.0 - MOMENTUM)) * x
            candidate -= (1.0 - MOMENTUM) * previous
            ball.pull(candidate)
            previous = None
        before, tried, since = value, size, since + 1
        value, gradient = function(candidate)
        values.append(value)
        steps.append(tried)
        if value > -math.inf:
            previous, x, improved = x, candidate, improved + (value > before)
        else:  # a step longer than the radius only ends on the boundary again
            size = 0.5 * min(size, ball.radius)
            x, value, gradient = best, top, best_gradient
        del candidate
        if value > top:
            best, top, best_gradient = x, value, gradient
        if iteration in marks:
            stuck, last = last == (size, top), (size, top)
            if stuck or improved < IMPROVING * since:
                size, x, value, gradient = 0.5 * size, best, top, best_gradient
            improved = since = 0
        if iteration == 1 and math.isfinite(values[1]):
            negligible = gain <= NEGLIGIBLE * abs(values[1])
        if watch(iteration, values[-1], top, tried) or (negligible and iteration == 1):
            break
    known = len(values) == 1 or np.isfinite(values[1:]).any()
    residual = ball.residual(best, best_gradient) if known else math.inf
    n_rejected = values.count(-math.inf)
    counts = len(values) - 1, n_rejected, negligible
    return Climb(top, best, np.array(values), np.array(steps), residual, probe(best, best_gradient), *counts)
