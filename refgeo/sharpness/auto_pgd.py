r"""Auto-PGD (Alg. 1; Croce & Hein 2020): the maximum of a function over a ball of ℝᴺ. No geometry is known here.

An iteration takes the projected step z = P(x + η ĝ) and adds momentum, P(x + ¾(z − x) + ¼(x − x⁻)). At checkpoints
that become more frequent, η is halved and the search goes back to the best point if fewer than 75% of the steps since
the last one improved on the step before, or if neither η nor the best value has changed since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo.arguments import Array
from refgeo.sharpness.vectors import Combination, Vector, is_zero, norm

Evaluation = tuple[float, Any]
"""The value, and the gradient as a `Vector`."""
Watch = Callable[[int, float, float, float], bool]

MOMENTUM = 0.75
IMPROVING = 0.75
NEGLIGIBLE = 1e-6
"""Share of the first step's value below which the gradient is rounding, and its direction means nothing."""
STATIONARY = 0.01
"""Residual at which a run counts as converged."""


def _with_momentum(z: Any, x: Any, previous: Any) -> Any:
    return x + MOMENTUM * (z - x) + (1.0 - MOMENTUM) * (x - previous)


@dataclass(frozen=True)
class RoundBall:
    """‖x‖₂ ≤ radius. No step leaves the span of x, x⁻ and g, so that all three may be combinations of what is kept."""

    radius: float

    def step(self, x: Vector, previous: Vector | None, gradient: Vector, size: float) -> Vector:
        """P(x + ¾(z − x) + ¼(x − x⁻)) with z = P(x + size · g/‖g‖)."""
        z: Vector = self.within(x + size * (gradient / norm(gradient)))
        moved: Vector = z if previous is None else self.within(_with_momentum(z, x, previous))
        return moved

    def within(self, x: Any) -> Any:
        """The nearest point of the ball."""
        length = norm(x)
        return x if length <= self.radius else x * (self.radius / length)

    def residual(self, x: Vector, gradient: Vector) -> float:
        """‖P(x + ρ g/‖g‖) − x‖ / ρ."""
        length = norm(gradient)
        return norm(self.within(x + self.radius * (gradient / length)) - x) / self.radius if length > 0.0 else 0.0

    def linear_gain(self, gradient: Vector) -> float:
        """ρ‖g‖₂."""
        return self.radius * norm(gradient)

    def random(self, direction: Array) -> Array:
        """The direction, scaled to the radius; 0 if it is nothing but rounding."""
        length = float(np.linalg.norm(direction))
        if length <= 1e-12 * math.sqrt(len(direction)):
            return np.zeros_like(direction)
        return np.asarray(direction * (self.radius / length), direction.dtype)

    def outermost(self, x: Array) -> Array:
        """The multiple of x whose length is the radius."""
        return np.asarray(x * (self.radius / norm(x)), x.dtype)


@dataclass(frozen=True)
class Box:
    """max |x_i| ≤ radius. The steepest direction is the gradient's sign."""

    radius: float

    def step(self, x: Array, previous: Array | None, gradient: Array, size: float) -> Array:
        """P(x + ¾(z − x) + ¼(x − x⁻)) with z = P(x + size · sign g)."""
        z = self._clipped(x + size * np.sign(gradient))
        return z if previous is None else self._clipped(_with_momentum(z, x, previous))

    def _clipped(self, x: Array) -> Array:
        return np.clip(x, -self.radius, self.radius)

    def residual(self, x: Array, gradient: Array) -> float:
        """How much of the linear gain over the box is left: gᵀ(ρ sign g − x) / (ρ‖g‖₁), square root."""
        total = float(np.abs(gradient).sum()) * self.radius
        return math.sqrt(max(1.0 - float(gradient @ x) / total, 0.0)) if total > 0.0 else 0.0

    def linear_gain(self, gradient: Array) -> float:
        """ρ‖g‖₁."""
        return self.radius * float(np.abs(gradient).sum())

    def random(self, direction: Array) -> Array:
        """The corner in the direction of the signs."""
        return np.asarray(self.radius * np.sign(direction))

    def outermost(self, x: Array) -> Array:
        """The multiple of x whose largest entry is the radius."""
        return np.asarray(x * (self.radius / float(np.max(np.abs(x)))))


Ball = RoundBall | Box
"""The set {‖x‖ ≤ ρ} of some norm. `residual` is 0 where no direction within it goes up; `random` is 0 where there is no
direction.
"""


@dataclass(frozen=True)
class Run:
    """What one start of `maximise` found.

    Attributes
    ----------
    value, x
        The best value, and where it is as an array.
    values : ndarray
        The value at every evaluation, −inf where it was rejected.
    steps : ndarray
        The step size η that led there.
    residual : float
        See `Ball.residual`, at x.
    """

    value: float
    x: Array
    values: Array
    steps: Array
    residual: float


def checkpoints(n_iter: int) -> list[int]:
    """The iterations ⌈p_j n⌉: p₀ = 0, p₁ = 0.22, p_{j+1} = p_j + max(p_j − p_{j−1} − 0.03, 0.06).

    Examples
    --------
    >>> checkpoints(100)
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    shares = [0.0, 0.22]
    while shares[-1] < 1.0:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return sorted({math.ceil(round(share * n_iter, 9)) for share in shares[1:] if share <= 1.0})


class AutoPGD:
    """The state of one run of Alg. 1: the current iterate, the one before, and the best.

    Parameters
    ----------
    evaluate : callable
        Value and gradient; −inf where there is no value. Such a step is undone and the next one is half as long.
    ball : Ball
    start : array or Combination
    at_start : tuple
        Value and gradient at the start.
    """

    def __init__(self, evaluate: Callable[[Any], Evaluation], ball: Any, start: Vector, at_start: Evaluation) -> None:
        self.evaluate, self.ball = evaluate, ball
        self.size = self.tried = 2.0 * ball.radius
        self.value, self.gradient = at_start
        self.x = self.best = start
        self.previous: Vector | None = None
        self.best_value, self.best_gradient = at_start
        self.improved = self.since = 0
        self.last = (self.size, self.best_value)

    def move(self, iteration: int, n_iter: int) -> float:
        """One evaluation; its value."""
        return self.advance()

    def advance(self) -> float:
        """A gradient step with momentum."""
        before = self.value
        value = self.evaluated(self.ball.step(self.x, self.previous, self.gradient, self.size))
        self.since += 1
        if value > -math.inf:
            self.improved += value > before
        else:
            # stay, and try half as far: a step longer than the radius only ends on the boundary again
            self.size, self.previous = 0.5 * min(self.size, self.ball.radius), None
        return value

    @property
    def state(self) -> Iterable[Vector | None]:
        """What the search cannot go on without."""
        return self.x, self.previous, self.best, self.gradient, self.best_gradient

    def make_room(self, candidate: Vector) -> None:
        """Forget the vectors that are not needed any more, where there is no room for another one."""
        if isinstance(candidate, Combination) and candidate.span.is_full:
            candidate.span.keep(one for one in (candidate, *self.state) if isinstance(one, Combination))

    def evaluated(self, candidate: Vector) -> float:
        """The value at a candidate, which becomes the current iterate."""
        self.tried = self.size
        self.make_room(candidate)
        value, gradient = self.evaluate(candidate)
        if value == -math.inf:
            return value
        self.x, self.previous, self.value, self.gradient = candidate, self.x, value, gradient
        if value > self.best_value:
            self.best, self.best_value, self.best_gradient = candidate, value, gradient
        return value

    def check(self) -> None:
        """A checkpoint."""
        stuck = self.last == (self.size, self.best_value)
        self.last = (self.size, self.best_value)
        if stuck or self.improved < IMPROVING * self.since:
            self.size *= 0.5
            self.x, self.previous = self.best, None
            self.value, self.gradient = self.best_value, self.best_gradient
        self.improved = self.since = 0

    def residual(self) -> float:
        """Of the best point."""
        return float(self.ball.residual(self.best, self.best_gradient))


def maximise(search: AutoPGD, n_iter: int, watch: Watch, from_gradient: bool = False) -> Run | None:
    """Run a search to its end. `watch` is told of every evaluation (iteration, value, best value, step size), and says
    whether to stop there.

    With `from_gradient`, the result is None if the gradient at the start turns out to be negligible beside the
    curvature: it is rounding then, and another start is better.
    """
    halvings = set(checkpoints(n_iter))
    gradient, values, steps = search.gradient, [search.value], [0.0]
    for iteration in range(1, n_iter + 1):
        if is_zero(search.gradient):
            break  # nothing to follow: a stationary point, or a function that is constant
        values.append(search.move(iteration, n_iter))
        steps.append(search.tried)
        if iteration in halvings:
            search.check()
        if watch(iteration, values[-1], search.best_value, search.tried):
            break
        is_first = iteration == 1 and from_gradient and math.isfinite(values[1])
        if is_first and search.ball.linear_gain(gradient) <= NEGLIGIBLE * abs(values[1]):
            return None
    known = len(values) == 1 or np.isfinite(values[1:]).any()
    residual = search.residual() if known else math.inf
    return Run(search.best_value, np.asarray(search.best), np.array(values), np.array(steps), residual)
