r"""Auto-PGD (Alg. 1; Croce & Hein 2020): the maximum of a function over a ball of ℝᴺ. No geometry is known here.

An iteration takes the projected step z = P(x + η ĝ) and adds momentum, P(x + ¾(z − x) + ¼(x − x⁻)). At checkpoints
that become more frequent, η is halved and the search goes back to the best point if fewer than 75% of the steps since
the last one improved on the step before, or if neither η nor the best value has changed since.

Every fourth evaluation, and the last, is spent on the maximum of a quadratic model instead
(`refgeo.sharpness.model_step`), and one, in the middle, on the point opposite the best, if curvature rather than slope
made that one large: then both are local maxima of nearly the same height. With an empty memory it is Alg. 1 literally.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from refgeo.arguments import Array
from refgeo.sharpness.model_step import Memory
from refgeo.sharpness.vectors import combination, gram, is_zero

Evaluation = tuple[float, Array]
Watch = Callable[[int, float, float, float], bool]

MOMENTUM = 0.75
IMPROVING = 0.75
MODEL_STEP_EVERY = 4
NEGLIGIBLE = 1e-6
"""Share of the first step's value below which the gradient is rounding, and its direction means nothing."""
_SMALL = 1 << 20
STATIONARY = 0.03
"""Residual at which a run counts as converged; the value's relative error is of the order of its square."""


class Ball(Protocol):
    """The set {‖x‖ ≤ ρ} of some norm."""

    @property
    def radius(self) -> float:
        """ρ."""

    def step(self, x: Array, previous: Array | None, gradient: Array, size: float) -> Array:
        """The next iterate; without a previous one, the step has no momentum."""

    def residual(self, x: Array, gradient: Array) -> float:
        """How far from stationary x is: 0 where no direction within the ball goes up."""

    def linear_gain(self, gradient: Array) -> float:
        """The largest value of gᵀx."""

    def random(self, direction: Array) -> Array:
        """The boundary point in a random direction; 0 if there is none."""


def _of_usual_size(gradient: Array) -> Array:
    """The gradient, or a multiple of it whose square neither underflows nor overflows; only its direction counts."""
    largest = float(np.max(np.abs(gradient), initial=0.0)) if gradient.size < _SMALL else 1.0
    return gradient if largest == 0.0 or 1e-100 < largest < 1e100 else gradient / largest


def _with_momentum(z: Array, x: Array, previous: Array) -> Array:
    return x + MOMENTUM * (z - x) + (1.0 - MOMENTUM) * (x - previous)


@dataclass(frozen=True)
class RoundBall:
    """‖x‖₂ ≤ radius. A step never leaves the span of x, x⁻ and g, so it is found from their dot products."""

    radius: float

    def step(self, x: Array, previous: Array | None, gradient: Array, size: float) -> Array:
        """P(x + ¾(z − x) + ¼(x − x⁻)) with z = P(x + size · g/‖g‖)."""
        gradient = _of_usual_size(gradient)
        vectors = (gradient, x) if previous is None else (gradient, x, previous)
        products = gram(vectors)
        direction, here, *earlier = np.eye(len(vectors))
        z = self._scaled(here + size / math.sqrt(products[0, 0]) * direction, products)
        if earlier:
            z = self._scaled(_with_momentum(z, here, earlier[0]), products)
        return combination(z, vectors)

    def _scaled(self, coefficients: Array, products: Array) -> Array:
        length = math.sqrt(max(float(coefficients @ products @ coefficients), 0.0))
        return coefficients if length <= self.radius else coefficients * (self.radius / length)

    def residual(self, x: Array, gradient: Array) -> float:
        """‖P(x + ρ g/‖g‖) − x‖ / ρ."""
        products = gram((x, _of_usual_size(gradient)))
        length = math.sqrt(products[1, 1])
        if length == 0.0:
            return 0.0
        there = self._scaled(np.array([1.0, self.radius / length]), products) - np.array([1.0, 0.0])
        return math.sqrt(max(float(there @ products @ there), 0.0)) / self.radius

    def linear_gain(self, gradient: Array) -> float:
        """ρ‖g‖₂."""
        return self.radius * float(np.linalg.norm(gradient))

    def random(self, direction: Array) -> Array:
        """The direction, scaled to the radius; 0 if it is nothing but rounding."""
        length = float(np.linalg.norm(direction))
        if length <= 1e-12 * math.sqrt(len(direction)):
            return np.zeros_like(direction)
        return np.asarray(direction * (self.radius / length))


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


@dataclass(frozen=True)
class Run:
    """What one start of `maximise` found.

    Attributes
    ----------
    value, x
        The best value and where it is.
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


def maximise(
    evaluate: Callable[[Array], Evaluation],
    ball: Ball,
    start: Array,
    at_start: Evaluation,
    n_iter: int,
    watch: Watch,
    memory: Memory,
    from_gradient: bool = False,
) -> Run | None:
    """Maximise over the ball from `start`, whose value and gradient are `at_start`.

    `evaluate` gives −inf where there is no value; such a step is undone and the next one is half as long. `watch` is
    told of every evaluation (iteration, value, best value, step size), and says whether to stop there.

    With `from_gradient`, the result is None if the gradient at the start turns out to be negligible beside the
    curvature: it is rounding then, and another start is better.
    """
    search = _Search(evaluate, ball, start, at_start, memory)
    halvings = set(checkpoints(n_iter))
    values, steps = [at_start[0]], [0.0]
    for iteration in range(1, n_iter + 1):
        if is_zero(search.gradient):
            break  # nothing to follow: a stationary point, or a function that is constant
        if iteration == n_iter // 2 + 1 and iteration < n_iter:
            proposal = search.opposite()
        else:
            proposal = search.proposal() if iteration % MODEL_STEP_EVERY == 0 or iteration == n_iter else None
        values.append(search.advance() if proposal is None else search.go_to(proposal))
        steps.append(search.tried)
        if iteration in halvings:
            search.check()
        if watch(iteration, values[-1], search.best_value, search.tried):
            break
        is_first = iteration == 1 and from_gradient and math.isfinite(values[1])
        if is_first and ball.linear_gain(at_start[1]) <= NEGLIGIBLE * abs(values[1]):
            return None
    residual = (
        ball.residual(search.best, search.best_gradient)
        if np.isfinite(values[1:]).any() or len(values) == 1
        else math.inf
    )
    return Run(search.best_value, search.best, np.array(values), np.array(steps), residual)


class _Search:
    """The state of one run: the current iterate, the one before, and the best."""

    def __init__(
        self,
        evaluate: Callable[[Array], Evaluation],
        ball: Ball,
        start: Array,
        at_start: Evaluation,
        memory: Memory,
    ) -> None:
        self.evaluate, self.ball, self.memory = evaluate, ball, memory
        self.size = self.tried = 2.0 * ball.radius
        self.value, self.gradient = at_start
        self.x = self.best = start
        self.previous: Array | None = None
        self.best_value, self.best_gradient = at_start
        self.improved = self.since = 0
        self.last = (self.size, self.best_value)

    def advance(self) -> float:
        """A gradient step with momentum."""
        before = self.value
        candidate = self.ball.step(self.x, self.previous, self.gradient, self.size)
        value = self._evaluated(candidate)
        self.since += 1
        if value > -math.inf:
            self.improved += value > before
        else:
            # stay, and try half as far: a step longer than the radius only ends on the boundary again
            self.size, self.previous = 0.5 * min(self.size, self.ball.radius), None
        return value

    def proposal(self) -> Array | None:
        """Where the model's maximum is."""
        return self.memory.model_maximiser(self.best, self.best_gradient, self.ball.radius)

    def opposite(self) -> Array | None:
        """The point opposite the best, if a quadratic function with the slope at 0 would have half as much there."""
        if not self.memory.remembers or self.best_value <= 0.0:
            return None
        return -self.best if 4.0 * self.memory.slope_towards(self.best) <= self.best_value else None

    def go_to(self, candidate: Array) -> float:
        """Evaluate a proposal; if it is not the best point, the search goes on from where it was."""
        here = (self.x, self.previous, self.value, self.gradient)
        best_before = self.best_value
        value = self._evaluated(candidate)
        if value <= best_before:
            self.x, self.previous, self.value, self.gradient = here
        else:
            self.previous = None
        return value

    def _evaluated(self, candidate: Array) -> float:
        self.tried = self.size
        value, gradient = self.evaluate(candidate)
        if value == -math.inf:
            return value
        self.memory.add(candidate, gradient)
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
