"""From an objective to a `SharpnessResult`: starts, batches, progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from refgeo.sharpness.auto_pgd import STATIONARY, TRIES, Ball, Climb, climb
from refgeo.sharpness.gradient_check import Seen, verify, verify_unchanged
from refgeo.sharpness.noise import CLEAR
from refgeo.sharpness.objective import Objective
from refgeo.sharpness.parameters import Calls, LossAndGradient, on_batch
from refgeo.sharpness.result import Progress, SharpnessCurve, SharpnessResult
from refgeo.support.arguments import Array, integer, seed_of
from refgeo.support.errors import BatchError, Interrupted
from refgeo.support.progress import Tell, interruptible, shown

Callback = Callable[[Progress], object]
Item = TypeVar("Item")

N_RESTARTS = 5
"""Starts of a search by default: with so many, small problems hardly show more."""
_DIRECTIONS, _SHORT = 4, 3
"""Every start but the first is the best of so many directions, of which each is followed for so many iterations."""
_HIDDEN = 0.05
"""A slope that is hidden matters where it could change the value by this share."""
_REACHED = 0.01
"""Starts whose values are this close to the best have reached it."""
_SETTLED, _GAIN, _FURTHER = 1e-3, 1e-3, 5
"""The best is followed further where its residual is larger, as long as that gives so much more, so often at most."""


@dataclass
class Effort:
    """How hard to search; arguments as of `worst_case_sharpness`."""

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
        """For the record."""
        return {name: getattr(self, name) for name in ("n_iter", "n_restarts", "seed")}


class Watcher:
    """Counts evaluations, tells of them, and remembers when the callback, or Ctrl-C, asked to stop."""

    def __init__(
        self, callback: Callback | None, total: int | None, tell: Tell, interrupted: Callable[[], bool]
    ) -> None:
        self._callback, self._total, self._done, self.stopped = callback, total, 0, False
        self._tell, self.interrupted = tell, interrupted

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; none is taken after the callback has asked to stop."""
        for item in items:
            yield item
            if self.stopped:
                return

    def tell(self, batch: int, start: int, rho: float, iteration: int, value: float, best: float, step: float) -> bool:
        """One more evaluation; whether to stop."""
        self._done += 1
        if self._total is not None:  # a start that was halved until there was a value took more
            self._total = max(self._total, self._done)
        self._tell(self._done, self._total or 0, f"ρ = {rho:g}")
        self.stopped = self.stopped or self.interrupted()
        if self._callback is not None and not self.stopped:
            try:
                self._callback(Progress(self._done, self._total, batch, start, iteration, value, best, step, rho))
            except StopIteration:
                self.stopped = True
        return self.stopped


def search(
    value_and_grad: LossAndGradient,
    params: Any,
    objective_of: Callable[[LossAndGradient], Objective],
    batches: Iterable[Any] | None,
    balls: Sequence[Ball],
    effort: Effort,
    settings: dict[str, Any],
    is_single: bool,
) -> SharpnessResult | SharpnessCurve:
    """Maximise over every ball for every batch; a result for each ball, averaged over batches.

    Raises
    ------
    Interrupted, BatchError
        With what was found, if Ctrl-C was pressed, or if a batch has no finite loss.
    """
    given, of_batches = [None] if batches is None else checked_batches(batches), []
    noise: float | None = None
    failure: BatchError | None = None
    calls = Calls("value_and_grad", value_and_grad)
    with calls, shown("searching", quiet=not effort.progress) as tell, interruptible() as interrupted:
        watcher = Watcher(effort.callback, _most_evaluations(batches, balls, effort), tell, interrupted)
        for index, batch in watcher.until_stopped(enumerate(given)):
            loss = value_and_grad if batches is None else on_batch(value_and_grad, batch)
            try:
                objective = objective_of(loss)
            except ValueError as error:
                if batches is None:
                    raise
                failure = BatchError(f"batch {index}: {error}")
                break
            seen = Seen(math.nan, ())
            if effort.verify:
                seen = verify(objective, max(ball.radius for ball in balls), loss, params, noise)
                noise = seen.noise if math.isfinite(seen.noise) else None  # of other batches it is the same
            search = _OfBatch(objective, index, effort, watcher, settings | effort.settings, seen)
            of_batches.append(search.over(balls))
            if effort.verify:
                verify_unchanged(objective)
        if not of_batches:
            raise failure or ValueError("batches: expected at least one batch, got none")
        # a batch in which the search was stopped may lack the larger balls
        everywhere = [i for i in of_batches[0] if all(i in results for results in of_batches)]
        found = [of_batches[0][i] if batches is None else _mean([r[i] for r in of_batches]) for i in everywhere]
        result = found[0] if is_single else SharpnessCurve(tuple(found))
        if failure is not None:
            failure.result = result
            raise failure
        if interrupted():
            raise Interrupted(result)
    return result


def _most_evaluations(batches: Iterable[Any] | None, balls: Sequence[Ball], effort: Effort) -> int | None:
    """So many there can be; None if the number of batches is not known."""
    count = 1 if batches is None else len(batches) if isinstance(batches, Sized) else None
    # every start has an evaluation before its iterations: at θ, at a random point, or at a smaller ball's maximizer
    tries = (effort.n_restarts - 1) * _DIRECTIONS * (1 + min(_SHORT, effort.n_iter))
    further = _FURTHER * (1 + effort.n_iter) if effort.n_restarts > 1 else 0  # from the best, if it is not stationary
    per_batch = len(balls) * (effort.n_restarts * (1 + effort.n_iter) + tries + further)
    return None if count is None else count * per_batch


OfBalls = dict[int, SharpnessResult]
"""Results by the index of the ball; a search that was stopped has not all."""


def checked_batches(batches: Any) -> Iterable[Any]:
    """The batches, which can be taken one after the other.

    Examples
    --------
    >>> checked_batches([1, 2])
    [1, 2]
    """
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
        raise TypeError(f"batches: expected an iterable of batches, got {type(batches).__name__}")
    return batches


class _Best:
    """The best of several climbs, and of the others their numbers alone: vectors are as long as the parameters."""

    climb: Climb

    def __init__(self) -> None:
        self.values: list[float] = []
        self.n_evaluations = self.n_rejected = 0

    def add(self, climb: Climb) -> None:
        """One more; of equal ones the last is kept, which has been followed for longer."""
        if not self.values or climb.value >= self.climb.value:
            self.climb = climb
        self.values.append(climb.value)
        self.n_evaluations += climb.n_evaluations
        self.n_rejected += climb.n_rejected

    def give_up(self) -> Array:
        """Where the best is, for a climb from there, which takes its place."""
        x = self.climb.x
        self.values.clear()
        del self.climb
        return x

    @property
    def whole(self) -> Climb:
        """The best, with all evaluations."""
        return replace(self.climb, n_evaluations=self.n_evaluations, n_rejected=self.n_rejected)


class _OfBatch:
    """The search for one batch: one ball after the other, each from several starts."""

    def __init__(
        self, objective: Objective, batch: int, effort: Effort, watcher: Watcher, settings: dict[str, Any], seen: Seen
    ) -> None:
        self.objective, self.batch, self.effort = objective, batch, effort
        self.watcher, self.settings, self.seen = watcher, settings, seen

    def over(self, balls: Sequence[Ball]) -> OfBalls:
        """A result for every ball, in the order given; smaller ones are searched first and lend their maxima."""
        self.watcher.tell(self.batch, 0, balls[0].radius, 0, 0.0, 0.0, 0.0)
        found: OfBalls = {}
        best: Climb | None = None
        outwards = sorted(range(len(balls)), key=lambda i: balls[i].radius)
        for i in outwards:
            if best is not None and self.watcher.stopped:
                break
            climbs = _Best()
            for start in self.watcher.until_stopped(range(self.effort.n_restarts)):
                climbs.add(self._from_start(balls[i], start))
                if i == outwards[-1]:
                    self.objective.forget_gradient()
            values = list(climbs.values)
            self._follow_further(balls[i], climbs)
            if best is not None and best.x.any():
                self._follow_smaller(balls[i], best, climbs)
            climbs.n_evaluations += 1 if best is None else 0  # at θ itself
            best = climbs.climb
            n_reached = sum(value >= best.value - _REACHED * abs(best.value) for value in values)
            found[i] = self._result(balls[i], climbs.whole, n_reached)
        return dict(sorted(found.items()))

    def _from_start(self, ball: Ball, start: int) -> Climb:
        """The first along the gradient, if there is one; the others from the best of several random directions."""
        n_iter, objective = self.effort.n_iter, self.objective
        climbs = _Best()
        if start == 0:
            slope = objective.gradient_at_origin
            if slope.any():
                watch = partial(self.watcher.tell, self.batch, 0, ball.radius)
                climbs.add(climb(objective, ball, (objective.origin, 0.0, slope), n_iter, watch))
                if not climbs.climb.negligible:
                    return climbs.climb
                climbs.give_up()  # what was found along it is worth nothing
            climbs.add(self._follow(ball, start, self._direction(ball, start, 0), n_iter))
            return climbs.whole
        for k in self.watcher.until_stopped(range(_DIRECTIONS)):
            climbs.add(self._follow(ball, start, self._direction(ball, start, k), min(_SHORT, n_iter)))
        if not self.watcher.stopped:
            climbs.add(self._follow(ball, start, climbs.give_up(), n_iter))
        return climbs.whole

    def _direction(self, ball: Ball, start: int, k: int) -> Array:
        """The k-th, at random, and for odd k the opposite of the one before: near a minimum one is as good as the
        other, elsewhere one is better.
        """
        rng = np.random.default_rng([self.effort.seed, self.batch, start, k // 2])
        direction = ball.random(self.objective.space.random_direction(rng))
        return -direction if k % 2 else direction

    def _follow(self, ball: Ball, start: int, x: Array, n_iter: int, size: float = 0.0, tries: int = TRIES) -> Climb:
        """From x, or from half as far and so on until there is a value; else from the centre."""
        objective, n_tried, n_rejected = self.objective, 0, 0
        watch = partial(self.watcher.tell, self.batch, start, ball.radius)

        def begin(x: Array) -> tuple[Array, float, Array]:
            nonlocal n_tried, n_rejected
            while n_tried < tries and x.any():
                value, gradient = objective(x)
                n_tried += 1
                watch(0, value, value, 0.0)
                if value > -math.inf:
                    return x, value, gradient
                n_rejected, x = n_rejected + 1, 0.5 * x
            return objective.origin, 0.0, objective.gradient_at_origin

        begun = [begin(x)]
        del x  # long vectors that are not needed go
        found = climb(objective, ball, begun.pop(), n_iter, watch, size)
        return replace(found, n_evaluations=found.n_evaluations + n_tried, n_rejected=found.n_rejected + n_rejected)

    def _follow_further(self, ball: Ball, climbs: _Best) -> None:
        """The best of several, with the step size that it has come to, as long as that pays."""
        for _ in range(_FURTHER if self.effort.n_restarts > 1 else 0):
            reached = climbs.climb.value
            if climbs.climb.residual <= _SETTLED or self.watcher.stopped:
                break
            size = float(climbs.climb.steps[-1])
            climbs.add(self._follow(ball, 0, climbs.climb.x, self.effort.n_iter, size))
            if climbs.climb.value <= reached * (1.0 + _GAIN):
                break

    def _follow_smaller(self, ball: Ball, smaller: Climb, climbs: _Best) -> None:
        """From the maximizer of a smaller ball, moved to this one's boundary, if that is better than what is known."""
        moved = self._follow(ball, 0, ball.outermost(smaller.x), 0, tries=1)
        if moved.value > climbs.climb.value:
            moved = self._follow(ball, 0, moved.x, self.effort.n_iter)
        climbs.add(moved)
        if climbs.climb.value < smaller.value:  # at the larger boundary there is less
            climbs.add(self._follow(ball, 0, smaller.x, 0))

    def _result(self, ball: Ball, best: Climb, n_reached: int) -> SharpnessResult:
        nothing = best.value <= 0.0
        x = self.objective.origin if nothing else best.x
        residual = ball.residual(x, self.objective.gradient_at_origin) if nothing else best.residual
        residual = residual if self.objective.saw_slope else math.inf
        return SharpnessResult(
            value=max(best.value, 0.0),
            maximizer=self.objective.space.tangent_vector(x) if self.effort.maximizers else None,
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
            bend=0.0 if nothing else self.objective.bend(x),
            noise=self.seen.noise,
            untold=self.seen.untold if self._matters(ball, best.value) else (),
        )

    def _matters(self, ball: Ball, value: float) -> bool:
        """Whether a slope that noise hides over a tenth of θ would make a difference to the value."""
        hidden = CLEAR * self.seen.noise / (0.1 * (self.objective.space.size or 1.0))
        return hidden * ball.radius > _HIDDEN * value


def _mean(found: list[SharpnessResult]) -> SharpnessResult:
    """Of the results of batches, for one ball."""
    length = max(len(result.trace) for result in found)
    numbers, curves = ("value", "loss", "loss_max"), ("trace", "values", "steps")
    means: dict[str, Any] = {
        **{name: math.fsum(getattr(one, name) for one in found) / len(found) for name in numbers},
        **{
            name: np.mean([np.pad(getattr(one, name), (0, length - len(one.trace)), "edge") for one in found], axis=0)
            for name in curves
        },
    }
    return replace(
        found[0],
        **means,
        maximizer=[result.maximizer for result in found],
        n_evaluations=sum(result.n_evaluations for result in found),
        n_rejected=sum(result.n_rejected for result in found),
        residual=max(result.residual for result in found),
        converged=all(result.converged for result in found),
        n_reached=min(result.n_reached for result in found),
        bend=max(result.bend for result in found),
        noise=float(np.max([result.noise for result in found])),
        untold=tuple(dict.fromkeys(name for result in found for name in result.untold)),
        batches=tuple(found),
    )
