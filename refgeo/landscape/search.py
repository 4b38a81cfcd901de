"""From an objective to a `SharpnessResult`: starts, batches, threads, progress."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from refgeo.landscape.auto_pgd import STATIONARY, AutoPGD, Ball, Climb
from refgeo.landscape.gradient_check import verify, verify_unchanged
from refgeo.landscape.model_step import POINTS, ModelSteps
from refgeo.landscape.objective import Objective
from refgeo.landscape.parameters import LossAndGradient, on_batch
from refgeo.landscape.result import Progress, SharpnessResult
from refgeo.landscape.vectors import is_zero
from refgeo.support.arguments import Array, integer, number, one_of, seed_of
from refgeo.support.threads import one_thread

Callback = Callable[[Progress], object]
Item = TypeVar("Item")
Result = TypeVar("Result")

N_RESTARTS = 5
"""Starts of a search by default: with so many, small problems hardly show more (`validation.search_methods`)."""
_TRIES, _SHORT = 4, 3
"""Every start but the first is the best of so many directions, of which each is followed for so many iterations."""
_REACHED = 0.01
"""Starts whose values are this close to the best have reached it."""
_SETTLED, _GAIN, _FURTHER = 1e-3, 1e-3, 5
"""The best is followed further where its residual is larger, as long as that gives so much more, so often at most."""
METHODS = {"model_steps": ModelSteps, "auto_pgd": AutoPGD}
_LEAST = 6
"""Vectors that a search cannot do without, with one that is being made; for a while there can be two more."""
_FULL = {"model_steps": POINTS + 5, "auto_pgd": 12}
"""Vectors with which nothing is left out; Auto-PGD alone makes room less often."""
_PLENTY = 48e6
"""Bytes that vectors may take whatever the size of the parameters."""
_BESIDE, _STARTS = 6.0, 4.0
"""What a search needs beside these vectors: a point, a factorisation and temporaries, in sizes of the parameters in
float32; and what it keeps of other starts."""


class Effort:
    """How hard to search; arguments as of `worst_case_sharpness`."""

    def __init__(
        self,
        method: str,
        n_iter: int,
        n_restarts: int,
        rng: np.random.Generator | int | None,
        workers: int,
        callback: Callback | None,
        verify: bool,
        memory: float | None = None,
        maximizers: bool = True,
    ) -> None:
        self.method = one_of("method", method, METHODS)
        self.n_iter, self.n_restarts = integer("n_iter", n_iter), integer("n_restarts", n_restarts)
        self.seed = seed_of(rng)  # drawn once, so that results do not depend on the number of workers
        self.workers = integer("workers", workers)
        self.callback, self.verify, self.maximizers = callback, bool(verify), bool(maximizers)
        self.memory = None if memory is None else number("memory", memory, "bytes", above=0.0)
        self.kept, self.vectors = "float64", _FULL[self.method]

    def plan(self, length: int, dtype: str = "float64") -> None:
        """How many vectors are kept, and in which precision, so that they fit."""
        single, full = 4.0 * length, _FULL[self.method]
        beside = _BESIDE + (_STARTS if self.n_restarts > 1 else 0.0)
        room = max(_LEAST * single, _PLENTY) if self.memory is None else self.memory - beside * single
        room /= self.workers
        self.kept = dtype if 2.0 * full * single <= room else "float32"
        self.vectors = min(full, int(room / (single if self.kept == "float32" else 2.0 * single)) if length else full)
        if self.memory is None:
            self.vectors = max(self.vectors, _LEAST)
        elif self.vectors < _LEAST:
            needed = (beside + _LEAST * self.workers) * single
            threads = f" for {self.workers} workers; fewer workers need less" if self.workers > 1 else ""
            raise ValueError(
                f"memory: expected at least {needed:.2g} bytes ({needed / 1e9:.2g} GB) to move {length} numbers, got "
                f"{self.memory:.2g} bytes ({self.memory / 1e9:.2g} GB){threads}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """For the record."""
        return {name: getattr(self, name) for name in ("method", "n_iter", "n_restarts", "seed", "vectors", "kept")}


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, abort: Callable[[], None]
) -> Iterator[Result]:
    """The results in the order of the items, whatever the number of threads; after an error or an interruption what
    has not begun does not begin, and `abort` is called, so that running work stops.
    """
    if workers == 1:
        for item in items:  # not map: a StopIteration of the function would end it silently
            yield function(item)
        return

    def watched(item: Item) -> Result:
        try:
            return function(item)
        except BaseException:
            abort()
            raise

    pool = ThreadPoolExecutor(workers)
    try:
        yield from pool.map(watched, items)
    except BaseException:
        abort()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class Watcher:
    """Counts evaluations, tells the callback, and remembers when it asked to stop."""

    def __init__(self, callback: Callback | None, total: int | None) -> None:
        self._callback, self._total = callback, total
        self._lock = threading.Lock()
        self._done = 0
        self.stopped = False

    def abort(self) -> None:
        """Every run ends after its next evaluation."""
        self.stopped = True

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; none is taken after the callback has asked to stop."""
        for item in items:
            yield item
            if self.stopped:
                return

    def tell(self, batch: int, start: int, rho: float, iteration: int, value: float, best: float, step: float) -> bool:
        """One more evaluation; whether to stop."""
        with self._lock:
            self._done += 1
            if self._total is not None:  # a start that was halved until there was a value took more
                self._total = max(self._total, self._done)
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
) -> list[SharpnessResult]:
    """Maximise over every ball for every batch; a result for each ball, averaged over batches."""
    count = 1 if batches is None else len(batches) if isinstance(batches, Sized) else None
    # every start has an evaluation before its iterations: at θ, at a random point, or at a smaller ball's maximizer
    tries = (effort.n_restarts - 1) * _TRIES * (1 + min(_SHORT, effort.n_iter))
    further = _FURTHER * (1 + effort.n_iter) if effort.n_restarts > 1 else 0  # from the best, if it is not stationary
    per_batch = len(balls) * (effort.n_restarts * (1 + effort.n_iter) + tries + further)
    watcher = Watcher(effort.callback, None if count is None else count * per_batch)
    settings = {**settings, **effort.settings}

    def of_batch(index: int, loss: LossAndGradient, workers: int) -> OfBalls:
        objective = objective_of(loss)
        if effort.verify and index == 0:
            verify(objective, max(ball.radius for ball in balls), loss, params)
        found = _OfBatch(objective, index, effort, workers, watcher, settings).over(balls)
        if effort.verify:
            verify_unchanged(objective, effort.workers)
        return found

    def numbered(item: tuple[int, Any]) -> OfBalls:
        return {} if watcher.stopped else of_batch(item[0], on_batch(value_and_grad, item[1]), 1)

    # several searches at once are the threads, and none of them may set a limit for the others
    with one_thread() if effort.workers > 1 else nullcontext():
        if batches is None:
            return list(of_batch(0, value_and_grad, effort.workers).values())
        given = watcher.until_stopped(enumerate(checked_batches(batches)))
        found = [results for results in in_order(numbered, given, effort.workers, watcher.abort) if results]
    if not found:
        raise ValueError("batches: expected at least one batch, got none")
    # a batch in which the callback stopped may lack the larger balls
    return [_mean([results[i] for results in found]) for i in found[0] if all(i in results for results in found)]


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


class _OfBatch:
    """The search for one batch: one ball after the other, each from several starts."""

    def __init__(
        self,
        objective: Objective,
        batch: int,
        effort: Effort,
        workers: int,
        watcher: Watcher,
        settings: dict[str, Any],
    ) -> None:
        self.objective, self.batch, self.effort = objective, batch, effort
        self.workers, self.watcher, self.settings = workers, watcher, settings

    def over(self, balls: Sequence[Ball]) -> OfBalls:
        """A result for every ball, in the order given; smaller ones are searched first and lend their maxima."""
        self.watcher.tell(self.batch, 0, balls[0].radius, 0, 0.0, 0.0, 0.0)
        found: OfBalls = {}
        best: Climb | None = None
        for i in sorted(range(len(balls)), key=lambda i: balls[i].radius):
            if best is not None and self.watcher.stopped:
                break
            starts = self.watcher.until_stopped(range(self.effort.n_restarts))
            climbs = _Best()
            for climb in in_order(partial(self._from_start, balls[i]), starts, self.workers, self.watcher.abort):
                climbs.add(climb)
                del climb  # so that the next start need not share the memory with it
            values = list(climbs.values)
            for _ in range(_FURTHER if self.effort.n_restarts > 1 else 0):
                reached = climbs.climb.value
                if climbs.climb.residual <= _SETTLED or self.watcher.stopped:
                    break
                search, size = self._method(balls[i], 0, self.effort.method), float(climbs.climb.steps[-1])
                climbs.add(_followed(search, climbs.climb.x, self.effort.n_iter, size))
                if climbs.climb.value <= reached * (1.0 + _GAIN):
                    break
            if best is not None and not is_zero(best.x):
                climbs.add(self._from_smaller(balls[i], best.x, climbs.climb.value))
                if climbs.climb.value < best.value:  # at the larger boundary there is less
                    climbs.add(self._at(balls[i], best.x))
            climbs.n_evaluations += 1 if best is None else 0  # at θ itself
            best = climbs.climb
            n_reached = sum(value >= best.value - _REACHED * abs(best.value) for value in values)
            found[i] = self._result(balls[i], best, climbs, n_reached)
        return dict(sorted(found.items()))

    def _method(self, ball: Ball, start: int, method: str) -> AutoPGD:
        watch = partial(self.watcher.tell, self.batch, start, ball.radius)
        return METHODS[method](self.objective, ball, self.effort.vectors, watch)

    def _from_start(self, ball: Ball, start: int) -> Climb:
        """The first along the gradient, if there is one; the others from the best of several random tries."""
        n_iter, few = self.effort.n_iter, min(_SHORT, self.effort.n_iter)
        search = self._method(ball, start, self.effort.method)
        if start == 0:
            climb = None
            if not is_zero(self.objective.gradient_at_origin):
                climb = search.run(n_iter, give_up=self.effort.method != "auto_pgd")  # which is Alg. 1 literally
            return climb or _followed(search, self._direction(ball, start, 0), n_iter)
        climbs = _Best()
        for k in range(_TRIES):
            tried = self._method(ball, start, "auto_pgd")
            climbs.add(_followed(tried, self._direction(ball, start, k), few))
            if self.watcher.stopped:
                break
        if not self.watcher.stopped:
            climbs.add(_followed(search, climbs.climb.x, n_iter))
        return replace(climbs.climb, n_evaluations=climbs.n_evaluations, n_rejected=climbs.n_rejected)

    def _direction(self, ball: Ball, start: int, k: int) -> Array:
        """The k-th, at random, and for odd k the opposite of the one before: near a minimum one is as good as the
        other, elsewhere one is better.
        """
        rng = np.random.default_rng([self.effort.seed, self.batch, start, k // 2])
        direction = ball.random(self.objective.random_direction(rng))
        return -direction if k % 2 else direction

    def _from_smaller(self, ball: Ball, x: Array, to_beat: float) -> Climb:
        """From the maximizer of a smaller ball, moved to this one's boundary, if that is better than what is known."""
        search = self._method(ball, 0, self.effort.method)
        search.start_at(ball.outermost(x), tries=1)
        return _run(search, self.effort.n_iter if search.value > to_beat else 0)

    def _at(self, ball: Ball, x: Array) -> Climb:
        """The maximizer of a smaller ball, as it is."""
        return _followed(self._method(ball, 0, self.effort.method), x, 0)

    def _result(self, ball: Ball, best: Climb, climbs: _Best, n_reached: int) -> SharpnessResult:
        nothing = best.value <= 0.0
        x = self.objective.origin if nothing else best.x
        return SharpnessResult(
            value=max(best.value, 0.0),
            maximizer=self.objective.space.tangent_vector(x) if self.effort.maximizers else None,
            loss=self.objective.loss,
            loss_max=self.objective.loss + max(best.value, 0.0),
            trace=np.maximum.accumulate(np.maximum(best.values, 0.0)),
            values=best.values,
            steps=best.steps,
            n_evaluations=climbs.n_evaluations,
            n_rejected=climbs.n_rejected,
            residual=best.residual,
            converged=best.residual <= STATIONARY,
            n_reached=n_reached,
            rho=ball.radius,
            settings=self.settings,
            bend=0.0 if nothing else self.objective.bend(x),
        )


def _followed(search: AutoPGD, x: Array, n_iter: int, size: float = 0.0) -> Climb:
    """From x; with a first step size, if there is one, that an earlier search has come to."""
    search.start_at(x)
    if size > 0.0:
        search.size = search.tried = size
        search.last = (size, search.value)
    return _run(search, n_iter)


def _run(search: AutoPGD, n_iter: int) -> Climb:
    climb = search.run(n_iter)
    assert climb is not None  # only a search that may be given up has none
    return climb


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
        batches=tuple(found),
    )
