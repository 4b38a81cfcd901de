r"""Auto-PGD (Alg. 1; Croce & Hein 2020): the maximum of a function over a ball of ℝᴺ. No geometry is known here.

An iteration takes the projected step z = P(x + η ĝ) and adds momentum, P(x + ¾(z − x) + ¼(x − x⁻)). At checkpoints
that become more frequent, η is halved and the search goes back to the best point if fewer than 75% of the steps since
the last one improved on the step before, or if neither η nor the best value has changed since. Only the iterate x is
replaced then, not the one before, x⁻.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo.landscape.objective import Objective
from refgeo.landscape.vectors import Combination, Span, Vector, is_zero, norm
from refgeo.support.arguments import Array

Watch = Callable[[int, float, float, float], bool]
"""Is told of every evaluation: iteration, value, best value, step size; says whether to stop."""

MOMENTUM = 0.75
IMPROVING = 0.75
NEGLIGIBLE = 1e-6
"""Share of the first step's value below which the gradient is rounding, and its direction means nothing."""
STATIONARY = 0.01
"""Residual at which a run counts as converged."""
_TRIES = 20
"""Of a random start, each half as far as the one before, until there is a value."""


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

    def step(self, x: Any, previous: Any, gradient: Any, size: float) -> Any:
        """P(x + ¾(z − x) + ¼(x − x⁻)) with z = P(x + size · sign g)."""
        z = self._clipped(x + size * np.sign(gradient))
        return z if previous is None else self._clipped(_with_momentum(z, x, previous))

    def _clipped(self, x: Array) -> Array:
        return np.clip(x, -self.radius, self.radius)

    def residual(self, x: Any, gradient: Any) -> float:
        """How much of the linear gain over the box is left: gᵀ(ρ sign g − x) / (ρ‖g‖₁), square root."""
        total = float(np.abs(gradient).sum()) * self.radius
        return math.sqrt(max(1.0 - float(gradient @ x) / total, 0.0)) if total > 0.0 else 0.0

    def linear_gain(self, gradient: Any) -> float:
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
class Climb:
    """What one start found.

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
    n_evaluations, n_rejected : int
        With those of starts that were given up.
    """

    value: float
    x: Array
    values: Array
    steps: Array
    residual: float
    n_evaluations: int
    n_rejected: int


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
    """Alg. 1 from one start: the current iterate, the one before, and the best.

    Where the ball is round, vectors are combinations of a few that are kept, else arrays. A step to where there is no
    value is undone, and the next one is half as long.

    Parameters
    ----------
    objective : Objective
    ball : Ball
    most : int
        So many vectors are kept at most.
    watch : callable
    """

    def __init__(self, objective: Objective, ball: Ball, most: int, watch: Watch) -> None:
        self.objective, self.ball, self.most, self.watch = objective, ball, most, watch
        self.n_evaluations = self.n_rejected = 0
        self.start_at_centre()

    def start_at_centre(self) -> None:
        """With nothing that was found before."""
        objective, gradient = self.objective, self.objective.gradient_at_origin
        is_round = isinstance(self.ball, RoundBall)
        self.span = Span(len(objective.origin), objective.kept, objective.dtype, self.most) if is_round else None
        self.centre: Vector = objective.origin if self.span is None else self.span.zero()
        self.slope: Vector = gradient if self.span is None else self.span.add(gradient, own=False)
        self._start(self.centre, 0.0, self.slope)

    def _start(self, x: Any, value: float, gradient: Any) -> None:
        self.size = self.tried = 2.0 * self.ball.radius
        self.x = self.best = x
        self.value = self.best_value = value
        self.gradient = self.best_gradient = gradient
        self.previous: Vector | None = None
        self.improved = self.since = 0
        self.last = (self.size, value)

    def start_at(self, x: Array, tries: int = _TRIES) -> None:
        """From x, or from half as far and so on until there is a value; else from the centre."""
        moved = self.put(x)
        for _ in range(0 if is_zero(moved) else tries):
            value, gradient = self.evaluate(moved)
            self.watch(0, value, value, 0.0)
            if value > -math.inf:
                self._start(moved, value, gradient)
                return
            moved = 0.5 * moved

    def put(self, x: Array) -> Any:
        """An array as a vector of this search."""
        return x if self.span is None else self.span.add(x)

    def evaluate(self, x: Any) -> tuple[float, Any]:
        """Value, −inf where there is none, and gradient."""
        value, gradient = self.objective(x)
        self.n_evaluations += 1
        self.n_rejected += value == -math.inf
        return value, gradient if value == -math.inf else self.put(gradient)

    def run(self, n_iter: int, give_up: bool = False) -> Climb | None:
        """To the end. With `give_up`, None if the gradient at the start turns out to be negligible beside the
        curvature: it is rounding then, and another start is better, with nothing that was found.
        """
        halvings = set(checkpoints(n_iter))
        slope, values, steps = self.gradient, [self.value], [0.0]
        for iteration in range(1, n_iter + 1):
            if is_zero(self.gradient):
                break  # nothing to follow: a stationary point, or a function that is constant
            values.append(self.move(iteration, n_iter))
            steps.append(self.tried)
            if iteration in halvings:
                self.check()
            if self.watch(iteration, values[-1], self.best_value, self.tried):
                break
            is_first = give_up and iteration == 1 and math.isfinite(values[1])
            if is_first and self.ball.linear_gain(slope) <= NEGLIGIBLE * abs(values[1]):
                self.start_at_centre()
                return None
        return self.found(np.array(values), np.array(steps))

    def found(self, values: Array, steps: Array) -> Climb:
        """The best point; without any value its residual is not known."""
        known = len(values) == 1 or np.isfinite(values[1:]).any()
        residual = float(self.ball.residual(self.best, self.best_gradient)) if known else math.inf
        best = np.asarray(self.best)
        return Climb(self.best_value, best, values, steps, residual, self.n_evaluations, self.n_rejected)

    def move(self, iteration: int, n_iter: int) -> float:
        """One evaluation; its value."""
        return self.advance()

    def advance(self) -> float:
        """A gradient step with momentum."""
        before = self.value
        value = self.go_to(self.ball.step(self.x, self.previous, self.gradient, self.size))
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
        if self.span is not None and self.span.is_full:
            self.span.keep(one for one in (candidate, *self.state) if isinstance(one, Combination))

    def go_to(self, candidate: Vector) -> float:
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
            self.x, self.value, self.gradient = self.best, self.best_value, self.best_gradient
        self.improved = self.since = 0
