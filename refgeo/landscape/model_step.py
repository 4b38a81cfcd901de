r"""Auto-PGD with model steps: every fourth evaluation, and the last, goes to the maximum of a quadratic model.

Gradient steps need many iterations where the gradient is small and curvature decides, that is near a minimum, where
sharpness is asked for most. But k evaluated points carry the Hessian on their span: with differences d_i of points and
y_i of gradients, Q an orthonormal basis of the d_i, D = QᵀD-coordinates, the model

.. math:: m(z) = c^\top z + ½ z^\top B z, \qquad B = D^+ Y Q,\; c = Q g_b - B Q x_b

is exact for a quadratic, and its maximum over ‖z‖ ≤ ρ, a trust-region subproblem in k dimensions, is what Lanczos'
method would find there with as many gradients. One evaluation in the middle goes to the point opposite the best, if
curvature rather than slope made that one large: then both are local maxima of nearly the same height.

Where the loss is not nearly quadratic, models mislead: a prediction far above the best value is not tried, and after
two evaluations that found nothing better the search is plain Auto-PGD. (`validation.search_methods` compares them.)

Points and gradients are combinations of the vectors that the search keeps, so a model costs products of their
coefficients; where few can be kept, models are made of the points since the last ones were dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from refgeo.landscape.auto_pgd import AutoPGD, RoundBall
from refgeo.landscape.trust_region import maximise_quadratic
from refgeo.landscape.vectors import Combination, Vector

POINTS = 20
"""The latest points that a model is made of, beside the origin."""
EVERY = 4
MOST_FAILURES = 2
BELIEVED = 3.0
"""A model's maximum up to so many times the best value is tried."""
_REGULAR = 1e-5
"""Differences shorter than this part of the longest tell rounding rather than curvature, and count less."""
_INDEPENDENT = 1e-7


class ModelSteps(AutoPGD):
    """Auto-PGD with model steps; the ball is round."""

    ball: RoundBall

    def start_at_centre(self) -> None:
        """With nothing that was found before."""
        super().start_at_centre()
        self._points: deque[tuple[Combination, Combination]] = deque(maxlen=POINTS)
        self._failures = 0

    @property
    def state(self) -> Iterable[Vector | None]:
        """With the centre, and the gradient there, so that the best point is in the span of the differences."""
        return *super().state, self.centre, self.slope

    def make_room(self, candidate: Vector) -> None:
        """Where there is none, the points that models are made of go."""
        if self.span is not None and self.span.is_full:
            self._points.clear()
        super().make_room(candidate)

    def move(self, iteration: int, n_iter: int) -> float:
        """A proposal where one is due, else a gradient step."""
        proposal = None
        if iteration == n_iter // 2 + 1 and iteration < n_iter:
            proposal = self._opposite()
        elif self._failures < MOST_FAILURES and (iteration % EVERY == 0 or iteration == n_iter):
            proposal = self._model_maximizer()
        return self.advance() if proposal is None else self._try(proposal)

    def go_to(self, candidate: Vector) -> float:
        """The value at a candidate, which is remembered."""
        value = super().go_to(candidate)
        if value > -math.inf:
            assert isinstance(candidate, Combination)
            self._points.append((candidate, self.gradient))
        return value

    def _try(self, candidate: Combination) -> float:
        """Evaluate a proposal; if it is not the best point, the search goes on from where it was."""
        here = (self.x, self.previous, self.value, self.gradient)
        best_before = self.best_value
        value = self.go_to(candidate)
        if value <= best_before:
            self._failures += 1
            self.x, self.previous, self.value, self.gradient = here
        else:
            self.previous = None
        return value

    def _opposite(self) -> Combination | None:
        """The point opposite the best, if a quadratic function with the slope at 0 would have half as much there."""
        if self.best_value <= 0.0:
            return None
        return -self.best if 4.0 * (self.slope @ (self.best - self.centre)) <= self.best_value else None

    def _model_maximizer(self) -> Combination | None:
        """The model's maximizer over the ball, expanded about the best point; None without points or belief."""
        best, best_gradient, radius = self.best, self.best_gradient, self.ball.radius
        others = [point for point in ((self.centre, self.slope), *self._points) if point[0] is not best]
        if len(others) < 3:
            return None
        span, W = best.span, best.span.products
        D = np.array([span.padded((x - best).coefficients) for x, _ in others])
        Y = np.array([span.padded((gradient - best_gradient).coefficients) for _, gradient in others])
        squares, U = np.linalg.eigh(D @ W @ D.T)
        lengths = np.sqrt(np.maximum(squares, 0.0))
        kept = lengths > _INDEPENDENT * lengths[-1]
        if not kept.any():
            return None
        lengths, U = lengths[kept], U[:, kept]
        # D = U diag(lengths) Q, so D⁺ = Qᵀ diag(1/lengths) Uᵀ; damped, so that rounding is not divided by nothing
        Q = (U / lengths).T @ D
        damped = lengths / (lengths**2 + (_REGULAR * lengths[-1]) ** 2)
        B = damped[:, None] * (U.T @ (Y @ W @ Q.T))
        B = 0.5 * (B + B.T)
        c = Q @ W @ span.padded(best_gradient.coefficients) - B @ (Q @ W @ span.padded(best.coefficients))
        found = maximise_quadratic(c, B, radius)
        if found.upper > BELIEVED * self.best_value:
            return None
        proposal = Combination(span, found.x @ Q)
        self.make_room(proposal)
        # all points are horizontal but for rounding, which short differences magnify
        settled: Combination = self.ball.within(self.put(self.objective.horizontal(proposal)))
        return settled
