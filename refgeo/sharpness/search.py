"""Search for the worst case: maximise an objective over balls, from several starts, for every batch.

One ascent from one start is `auto_pgd.climb`. Here starts are chosen, batches are averaged, and progress is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from refgeo.sharpness.auto_pgd import STATIONARY, TRIES, Ball, Climb, climb
from refgeo.sharpness.gradient_check import (
    LossNoise,
    Slope,
    find_slope,
    verify_loss,
    verify_maximizer,
    verify_unchanged,
)
from refgeo.sharpness.objective import Objective
from refgeo.sharpness.parameters import Calls, LossAndGradient, on_batch
from refgeo.sharpness.result import Progress, SharpnessCurve, SharpnessResult
from refgeo.support.arguments import Array, integer, seed_of
from refgeo.support.errors import BatchError, Interrupted
from refgeo.support.progress import Tell, interruptible, show_progress

Callback = Callable[[Progress], object]
Item = TypeVar("Item")

_N_DIRECTIONS, _TRIAL_ITERATIONS = 4, 3
"""Number of random directions that are tried for every start but the first, and of iterations for each trial;
chosen."""
_MAX_HIDDEN_SHARE = 0.05
"""Change of the value, relative to it, above which a slope that noise hides is mentioned in the result; chosen."""
_REACHED_TOLERANCE = 0.01
"""Distance from the best value, relative to it, up to which a start has reached it; chosen."""
_SETTLED_RESIDUAL, _MIN_GAIN, _MAX_CONTINUATIONS = 1e-3, 1e-3, 5
"""Residual up to which the best start is not continued, relative gain up to which it is not continued again, and the
largest number of continuations; all chosen.
"""


@dataclass
class SearchOptions:
    """The options of a search; arguments as of `worst_case_sharpness`."""

    n_iter: int
    n_restarts: int
    rng: np.random.Generator | int | None
    callback: Callback | None
    verify: bool
    maximizers: bool
    progress: bool

    def __post_init__(self) -> None:
        self.n_iter, self.n_restarts = integer("n_iter", self.n_iter), integer("n_restarts", self.n_restarts)
        self.seed = seed_of(self.rng)

    @property
    def settings(self) -> dict[str, Any]:
        """The options that `SharpnessResult.settings` contains."""
        return {name: getattr(self, name) for name in ("n_iter", "n_restarts", "seed")}


class ProgressMonitor:
    """Counts evaluations, reports them, and records whether the callback or Ctrl-C has asked to stop.

    Attributes
    ----------
    is_stopped : bool
    """

    def __init__(
        self, callback: Callback | None, total: int | None, tell: Tell, interrupted: Callable[[], bool]
    ) -> None:
        self._callback, self._total, self._done, self.is_stopped = callback, total, 0, False
        self._tell, self._interrupted = tell, interrupted

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items until the search is to stop."""
        for item in items:
            yield item
            if self.is_stopped:
                return

    def tell(self, batch: int, start: int, rho: float, iteration: int, value: float, best: float, step: float) -> bool:
        """Count and report an evaluation, and return whether to stop."""
        self._done += 1
        if self._total is not None:  # halving a start until the loss is finite takes evaluations that total lacks
            self._total = max(self._total, self._done)
        self._tell(self._done, self._total or 0, f"ρ = {rho:g}")
        self.is_stopped = self.is_stopped or self._interrupted()
        if self._callback is not None and not self.is_stopped:
            try:
                self._callback(Progress(self._done, self._total, batch, start, iteration, value, best, step, rho))
            except StopIteration:
                self.is_stopped = True
        return self.is_stopped


def search(
    value_and_grad: LossAndGradient,
    params: Any,
    objective_of: Callable[[LossAndGradient], Objective],
    batches: Iterable[Any] | None,
    balls: Sequence[Ball],
    options: SearchOptions,
    settings: dict[str, Any],
    is_single: bool,
) -> SharpnessResult | SharpnessCurve:
    """Maximise over every ball for every batch, and return a result for each ball, averaged over batches.

    Parameters
    ----------
    value_and_grad : callable
    params : Pair, array or dict
    objective_of : callable
        Makes the objective for the loss of a batch.
    batches : iterable, optional
    balls : sequence of Ball
    options : SearchOptions
    settings : dict
        What the result's settings contain besides the options.
    is_single : bool
        Whether to return the result of the only ball rather than a curve.

    Raises
    ------
    Interrupted, BatchError
        Ctrl-C was pressed, or a batch has no finite loss. Both have the result so far.
    """
    items, by_batch = [None] if batches is None else as_batches(batches), []
    noise: float | None = None
    failure: BatchError | None = None
    calls = Calls("value_and_grad", value_and_grad)
    with calls, show_progress("searching", quiet=not options.progress) as tell, interruptible() as interrupted:
        monitor = ProgressMonitor(options.callback, _max_evaluations(batches, balls, options), tell, interrupted)
        for index, batch in monitor.until_stopped(enumerate(items)):
            loss = value_and_grad if batches is None else on_batch(value_and_grad, batch)
            try:
                objective = objective_of(loss)
            except ValueError as error:
                if batches is None:
                    raise
                failure = BatchError(f"batch {index}: {error}")
                break
            loss_noise = LossNoise(math.nan)
            if options.verify:
                loss_noise = verify_loss(objective, max(ball.radius for ball in balls), loss, params, noise)
                noise = loss_noise.level if math.isfinite(loss_noise.level) else None  # stands for later batches
            search = _BatchSearch(objective, loss, index, options, monitor, settings | options.settings, loss_noise)
            by_batch.append(search.run(balls))
            if options.verify and not monitor.is_stopped:
                verify_unchanged(objective)
        if not by_batch:
            raise failure or ValueError("batches: expected at least one batch, got none")
        # in a batch in which the search was stopped, the larger balls may be missing
        complete = [i for i in by_batch[0] if all(i in results for results in by_batch)]
        results = [by_batch[0][i] if batches is None else _mean_result([r[i] for r in by_batch]) for i in complete]
        result = results[0] if is_single else SharpnessCurve(tuple(results))
        if failure is not None:
            failure.result = result
            raise failure
        if interrupted():
            raise Interrupted(result)
    return result


def _max_evaluations(batches: Iterable[Any] | None, balls: Sequence[Ball], options: SearchOptions) -> int | None:
    """Return the largest number of evaluations, or None if the number of batches is not known."""
    n_batches = 1 if batches is None else len(batches) if isinstance(batches, Sized) else None
    # every start has an evaluation before its iterations: at θ, at a random point, or at a smaller ball's maximizer
    trials = (options.n_restarts - 1) * _N_DIRECTIONS * (1 + min(_TRIAL_ITERATIONS, options.n_iter))
    continuations = _MAX_CONTINUATIONS * (1 + options.n_iter) if options.n_restarts > 1 else 0
    per_ball = options.n_restarts * (1 + options.n_iter) + trials + continuations
    # from the maximizer of a smaller ball: it is moved outwards, climbs from there, and is compared as it is
    from_smaller = (len(balls) - 1) * (3 + options.n_iter)
    return None if n_batches is None else n_batches * (len(balls) * per_ball + from_smaller)


ResultsByBall = dict[int, SharpnessResult]
"""Results by the index of the ball. If the search was stopped, balls are missing."""


def as_batches(batches: Any) -> Iterable[Any]:
    """Return the batches if they are an iterable, else raise an error.

    Examples
    --------
    >>> as_batches([1, 2])
    [1, 2]
    """
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
        raise TypeError(f"batches: expected an iterable of batches, got {type(batches).__name__}")
    return batches


class _BestClimb:
    """The best of several climbs, and numbers of the others, whose vectors are too long to be kept.

    Attributes
    ----------
    climb : Climb
        The best one.
    values : list of float
        The value of every climb.
    n_evaluations, n_rejected : int
        The numbers of all climbs together.
    """

    climb: Climb

    def __init__(self) -> None:
        self.values: list[float] = []
        self.n_evaluations = self.n_rejected = 0

    def add(self, climb: Climb) -> None:
        """Add a climb. Of equal ones the last is the best, because it has been continued for longer."""
        if not self.values or climb.value >= self.climb.value:
            self.climb = climb
        self.values.append(climb.value)
        self.n_evaluations += climb.n_evaluations
        self.n_rejected += climb.n_rejected

    def take_point(self) -> Array:
        """Drop the best climb and return its point, so that a climb from there takes its place in memory."""
        x = self.climb.x
        self.values.clear()
        del self.climb
        return x

    @property
    def with_all_counts(self) -> Climb:
        """The best climb, with the numbers of evaluations of all climbs."""
        return replace(self.climb, n_evaluations=self.n_evaluations, n_rejected=self.n_rejected)


@dataclass
class _BatchSearch:
    """The search for one batch: in one ball after the other, each from several starts."""

    objective: Objective
    loss: LossAndGradient
    batch: int
    options: SearchOptions
    monitor: ProgressMonitor
    settings: dict[str, Any]
    loss_noise: LossNoise

    def run(self, balls: Sequence[Ball]) -> ResultsByBall:
        """Search every ball, and return results in the order of the balls.

        Smaller balls are searched first, because their maximizers are starts in larger ones.
        """
        self.monitor.tell(self.batch, 0, balls[0].radius, 0, 0.0, 0.0, 0.0)
        results: ResultsByBall = {}
        best: Climb | None = None
        by_radius = sorted(range(len(balls)), key=lambda i: balls[i].radius)
        for i in by_radius:
            if best is not None and self.monitor.is_stopped:
                break
            climbs, residual = _BestClimb(), balls[i].residual(self.objective.origin, self.objective.gradient_at_origin)
            for start in self.monitor.until_stopped(range(self.options.n_restarts)):
                climbs.add(self._climb_from_start(balls[i], start))
                if i == by_radius[-1]:
                    self.objective.forget_gradient()
            values = list(climbs.values)
            self._continue_best(balls[i], climbs)
            if self.monitor.is_stopped and best is not None and climbs.climb.value < best.value:
                break  # a smaller ball has a larger value, so this one says nothing
            if not self.monitor.is_stopped and best is not None and best.x.any():
                self._climb_from_smaller_ball(balls[i], best, climbs)
            climbs.n_evaluations += 1 if best is None else 0  # the evaluation at θ
            best = climbs.climb
            if self.options.verify and not self.monitor.is_stopped and best.value > 0.0:
                self._verify(best)
            n_reached = sum(value >= best.value - _REACHED_TOLERANCE * abs(best.value) for value in values)
            results[i] = self._make_result(balls[i], climbs.with_all_counts, n_reached, residual)
        return dict(sorted(results.items()))

    def _climb_from_start(self, ball: Ball, start: int) -> Climb:
        """Climb from a start: the first along the gradient, the others from the best of several random directions.

        The first start is at random, too, if the gradient is zero or negligible.
        """
        n_iter, objective = self.options.n_iter * (not self.monitor.is_stopped), self.objective
        climbs = _BestClimb()
        if start == 0:
            gradient = objective.gradient_at_origin
            if gradient.any():
                watch = partial(self.monitor.tell, self.batch, 0, ball.radius)
                climbs.add(climb(objective, ball, (objective.origin, 0.0, gradient), n_iter, watch, probe=self._probe))
                if not climbs.climb.negligible or self.monitor.is_stopped:
                    return climbs.climb
                climbs.take_point()  # frees the memory of a climb that is discarded
            climbs.add(self._climb(ball, start, self._random_point(ball, start, 0), n_iter))
            return climbs.with_all_counts
        for k in self.monitor.until_stopped(range(_N_DIRECTIONS)):
            climbs.add(self._climb(ball, start, self._random_point(ball, start, k), min(_TRIAL_ITERATIONS, n_iter)))
        if not self.monitor.is_stopped:
            climbs.add(self._climb(ball, start, climbs.take_point(), n_iter))
        return climbs.with_all_counts

    def _random_point(self, ball: Ball, start: int, k: int) -> Array:
        """Return the k-th random point on the boundary of the ball.

        For odd k it is opposite to the one before: near a minimum both are equally good, elsewhere one is better.
        """
        rng = np.random.default_rng([self.options.seed, self.batch, start, k // 2])
        point = ball.random(self.objective.space.random_direction(rng))
        return -point if k % 2 else point

    def _climb(self, ball: Ball, start: int, x: Array, n_iter: int, size: float = 0.0, tries: int = TRIES) -> Climb:
        """Climb from x, or from the first of x/2, x/4, ... where the loss is finite, else from the centre."""
        objective, n_tried, n_rejected = self.objective, 0, 0
        tries = 0 if self.monitor.is_stopped else tries
        watch = partial(self.monitor.tell, self.batch, start, ball.radius)

        def find_start(x: Array) -> tuple[Array, float, Array]:
            nonlocal n_tried, n_rejected
            while n_tried < tries and x.any():
                value, gradient = objective(x)
                n_tried += 1
                is_stopped = watch(0, value, value, 0.0)
                if value > -math.inf:
                    return x, value, gradient
                n_rejected, x = n_rejected + 1, 0.5 * x
                if is_stopped:
                    break
            return objective.origin, 0.0, objective.gradient_at_origin

        starts = [find_start(x)]
        n_iter = 0 if self.monitor.is_stopped else n_iter
        del x  # vectors are long, and `climb` must hold the only reference to its start
        result = climb(objective, ball, starts.pop(), n_iter, watch, size, self._probe)
        return replace(result, n_evaluations=result.n_evaluations + n_tried, n_rejected=result.n_rejected + n_rejected)

    def _continue_best(self, ball: Ball, climbs: _BestClimb) -> None:
        """Continue the best climb, with its last step size, until it is stationary or gains little."""
        for _ in range(_MAX_CONTINUATIONS if self.options.n_restarts > 1 else 0):
            reached = climbs.climb.value
            if climbs.climb.residual <= _SETTLED_RESIDUAL or self.monitor.is_stopped:
                break
            size = float(climbs.climb.steps[-1])
            climbs.add(self._climb(ball, 0, climbs.climb.x, self.options.n_iter, size))
            if climbs.climb.value <= reached * (1.0 + _MIN_GAIN):
                break

    def _climb_from_smaller_ball(self, ball: Ball, smaller: Climb, climbs: _BestClimb) -> None:
        """Move the maximizer of a smaller ball to this one's boundary, and climb from there if it is the best point."""
        moved = self._climb(ball, 0, ball.outermost(smaller.x), 0, tries=1)
        if moved.value > climbs.climb.value:
            moved = self._climb(ball, 0, moved.x, self.options.n_iter)
        climbs.add(moved)
        if climbs.climb.value < smaller.value:  # then the smaller ball's maximizer itself is better
            climbs.add(self._climb(ball, 0, smaller.x, 0))

    def _probe(self, x: Array, gradient: Array) -> Slope | None:
        """Find what `verify_maximizer` needs of the gradient; the paper's is not that of the objective."""
        if not self.options.verify or not self.loss_noise.lengths or not x.any():
            return None
        if not self.objective.has_exact_gradient:
            return None
        return find_slope(self.objective, self.loss_noise.lengths, x, gradient)

    def _verify(self, best: Climb) -> None:
        """Verify the gradient at the best point, where the paper's gradient has to be replaced by the exact one."""
        slope, noise = best.probe, self.loss_noise
        if slope is None and noise.lengths:
            _, gradient = self.objective.with_exact_gradient()(best.x)
            slope = find_slope(self.objective, noise.lengths, best.x, gradient)
        if slope is not None:
            verify_maximizer(self.objective, self.loss, noise, best.x, best.value, slope)

    def _make_result(self, ball: Ball, best: Climb, n_reached: int, residual_at_origin: float) -> SharpnessResult:
        """Make the result of a ball; it is zero, at the centre, if no point has a larger loss."""
        is_zero = best.value <= 0.0
        x = self.objective.origin if is_zero else best.x
        residual = residual_at_origin if is_zero else best.residual
        residual = residual if self.objective.has_seen_slope else math.inf
        return SharpnessResult(
            value=max(best.value, 0.0),
            maximizer=self.objective.space.tangent_vector(x) if self.options.maximizers else None,
            loss=self.objective.loss,
            loss_max=self.objective.loss + max(best.value, 0.0),
            trace=np.maximum.accumulate(np.maximum(best.values, 0.0)),
            values=best.values,
            steps=best.steps,
            n_evaluations=best.n_evaluations,
            n_rejected=best.n_rejected,
            residual=residual,
            converged=residual <= STATIONARY,
            n_reached=n_reached,
            rho=ball.radius,
            settings=self.settings,
            bend=0.0 if is_zero else self.objective.bend(x),
            noise=self.loss_noise.level,
            undecided_directions=self.loss_noise.undecided if self._is_hidden_slope_relevant(ball, best.value) else (),
        )

    def _is_hidden_slope_relevant(self, ball: Ball, value: float) -> bool:
        """Return whether a slope that noise or a kink hides could change the value noticeably."""
        return not self.loss_noise.hidden_slope * ball.radius <= _MAX_HIDDEN_SHARE * value


def _mean_result(results: list[SharpnessResult]) -> SharpnessResult:
    """Average the results of all batches for one ball."""
    length = max(len(result.trace) for result in results)
    numbers, curves = ("value", "loss", "loss_max"), ("trace", "values", "steps")
    means: dict[str, Any] = {name: math.fsum(getattr(r, name) for r in results) / len(results) for name in numbers}
    for name in curves:
        padded = [np.pad(getattr(r, name), (0, length - len(r.trace)), "edge") for r in results]
        means[name] = np.mean(padded, axis=0)
    return replace(
        results[0],
        **means,
        maximizer=[result.maximizer for result in results],
        n_evaluations=sum(result.n_evaluations for result in results),
        n_rejected=sum(result.n_rejected for result in results),
        residual=max(result.residual for result in results),
        converged=all(result.converged for result in results),
        n_reached=min(result.n_reached for result in results),
        bend=max(result.bend for result in results),
        noise=float(np.max([result.noise for result in results])),
        undecided_directions=tuple(dict.fromkeys(name for result in results for name in result.undecided_directions)),
        batches=tuple(results),
    )
