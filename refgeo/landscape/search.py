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

METHODS = {"model_steps": ModelSteps, "auto_pgd": AutoPGD}
_LEAST = 6
"""Vectors that a search cannot do without, with one that is being made; for a while there can be two more."""
_FULL = {"model_steps": POINTS + 5, "auto_pgd": 12}
"""Vectors with which nothing is left out; Auto-PGD alone makes room less often."""
_PLENTY = 48e6
"""Bytes that vectors may take whatever the size of the parameters."""
_BESIDE = 6.0
"""What a search needs beside these vectors: a point, a factorisation and temporaries, in sizes of the parameters in
float32."""


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
        room = max(_LEAST * single, _PLENTY) if self.memory is None else self.memory - _BESIDE * single
        room /= self.workers
        self.kept = dtype if 2.0 * full * single <= room else "float32"
        self.vectors = min(full, int(room / (single if self.kept == "float32" else 2.0 * single)) if length else full)
        if self.memory is None:
            self.vectors = max(self.vectors, _LEAST)
        elif self.vectors < _LEAST:
            needed = (_BESIDE + _LEAST * self.workers) * single
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
    per_batch = len(balls) * effort.n_restarts * (1 + effort.n_iter)
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
            starts = range(1 if self.watcher.stopped else self.effort.n_restarts)
            climbs = list(in_order(partial(self._from_start, balls[i]), starts, self.workers, self.watcher.abort))
            if best is not None and not is_zero(best.x):
                climbs.append(self._from_smaller(balls[i], best.x, max(climb.value for climb in climbs)))
                if max(climb.value for climb in climbs) < best.value:  # at the larger boundary there is less
                    climbs.append(self._at(balls[i], best.x))
            before = 1 if best is None else 0  # at θ itself
            best = max(climbs, key=lambda climb: climb.value)
            found[i] = self._result(balls[i], best, before + sum(climb.n_evaluations for climb in climbs), climbs)
        return dict(sorted(found.items()))

    def _method(self, ball: Ball, start: int) -> AutoPGD:
        watch = partial(self.watcher.tell, self.batch, start, ball.radius)
        return METHODS[self.effort.method](self.objective, ball, self.effort.vectors, watch)

    def _from_start(self, ball: Ball, start: int) -> Climb:
        method, climb = self._method(ball, start), None
        if start == 0 and not is_zero(self.objective.gradient_at_origin):
            climb = method.run(self.effort.n_iter, give_up=True)
        if climb is None:
            rng = np.random.default_rng([self.effort.seed, self.batch, start])
            method.start_at(ball.random(self.objective.random_direction(rng)))
            climb = method.run(self.effort.n_iter)
        assert climb is not None
        return climb

    def _from_smaller(self, ball: Ball, x: Array, to_beat: float) -> Climb:
        """From the maximizer of a smaller ball, moved to this one's boundary, if that is better than what is known."""
        method = self._method(ball, 0)
        method.start_at(ball.outermost(x), tries=1)
        climb = method.run(self.effort.n_iter if method.value > to_beat else 0)
        assert climb is not None
        return climb

    def _at(self, ball: Ball, x: Array) -> Climb:
        """The maximizer of a smaller ball, as it is."""
        method = self._method(ball, 0)
        method.start_at(x, tries=1)
        climb = method.run(0)
        assert climb is not None
        return climb

    def _result(self, ball: Ball, best: Climb, n_evaluations: int, climbs: Sequence[Climb]) -> SharpnessResult:
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
            n_evaluations=n_evaluations,
            n_rejected=sum(climb.n_rejected for climb in climbs),
            residual=best.residual,
            converged=best.residual <= STATIONARY,
            rho=ball.radius,
            settings=self.settings,
            bend=0.0 if nothing else self.objective.bend(x),
        )


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
        bend=max(result.bend for result in found),
        batches=tuple(found),
    )
