"""From an objective to a `SharpnessResult`: starts, batches, threads, progress."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from refgeo.arguments import Array, integer, seed_of
from refgeo.sharpness.auto_pgd import STATIONARY, Ball, Run, maximise
from refgeo.sharpness.gradient_check import Verifiable, verify, verify_unchanged
from refgeo.sharpness.model_step import Memory
from refgeo.sharpness.result import Progress, SharpnessResult
from refgeo.sharpness.vectors import is_zero

Callback = Callable[[Progress], object]
Item = TypeVar("Item")
Result = TypeVar("Result")

_SHORTEST_START = 2.0**-20


class Searched(Verifiable, Protocol):
    """A function of coordinates that can be searched."""

    def random_direction(self, rng: np.random.Generator) -> Array:
        """A direction for a random start."""

    def horizontal(self, x: Array) -> Array:
        """The part of x that is to be searched."""

    def tangent_vector(self, x: Array) -> Any:
        """What x stands for."""


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    Attributes
    ----------
    n_iter : int
        Iterations of every start.
    n_restarts : int
        Starts: the first along the gradient, the others in random directions.
    memory : int
        Points that a quadratic model is made of.
    seed : int
    workers : int
        Threads, over batches if there are several, else over starts.
    callback : callable or None
    verify : bool
        Whether the gradient is compared with differences first.
    """

    n_iter: int
    n_restarts: int
    memory: int
    seed: int
    workers: int
    callback: Callback | None
    verify: bool


def checked_effort(
    n_iter: int,
    n_restarts: int,
    memory: int,
    rng: np.random.Generator | int | None,
    workers: int,
    callback: Callback | None,
    verify: bool,
) -> Effort:
    """The settings, checked; one seed is drawn, so that results do not depend on the number of workers."""
    return Effort(
        integer("n_iter", n_iter),
        integer("n_restarts", n_restarts),
        integer("memory", memory, least=0),
        seed_of(rng),
        integer("workers", workers),
        callback,
        bool(verify),
    )


def in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """The results in the order of the items, whatever the number of threads."""
    if workers == 1:
        for item in items:  # not map: a StopIteration of the function would end it silently
            yield function(item)
    else:
        pool = ThreadPoolExecutor(workers)
        try:
            yield from pool.map(function, items)
        finally:  # after an error or an interruption, what has not begun does not begin
            pool.shutdown(cancel_futures=True)


class Watcher:
    """Counts evaluations, tells the callback, and remembers when it asked to stop."""

    def __init__(self, callback: Callback | None, total: int | None) -> None:
        self._callback, self._total = callback, total
        self._lock = threading.Lock()
        self._done = 0
        self.stopped = False

    def tell(self, batch: int, start: int, iteration: int, value: float, best: float, step: float) -> bool:
        """One more evaluation; whether to stop."""
        with self._lock:
            self._done += 1
            if self._callback is not None and not self.stopped:
                try:
                    self._callback(Progress(self._done, self._total, batch, start, iteration, value, best, step))
                except StopIteration:
                    self.stopped = True
            return self.stopped


def search(
    objective_of: Callable[[Any], Searched],
    batches: Iterable[Any] | None,
    ball: Ball,
    effort: Effort,
    settings: dict[str, Any],
) -> SharpnessResult:
    """Maximise over the ball for every batch; average."""
    count = 1 if batches is None else len(batches) if isinstance(batches, Sized) else None
    per_batch = effort.n_restarts * (1 + effort.n_iter)
    watcher = Watcher(effort.callback, None if count is None else count * per_batch)

    def one(item: tuple[int, Any]) -> SharpnessResult | None:
        if watcher.stopped:
            return None
        index, batch = item
        workers = effort.workers if batches is None else 1
        objective = objective_of(batch)
        if effort.verify and index == 0:
            verify(objective, ball.radius)
        found = _one_batch(objective, index, ball, effort, workers, watcher, settings)
        if effort.verify:
            verify_unchanged(objective, effort.workers)
        return found

    if batches is None:
        result = one((0, None))
        assert result is not None
        return result
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
        raise TypeError(f"batches: expected an iterable of batches, got {type(batches).__name__}")

    def until_stopped() -> Iterator[tuple[int, Any]]:
        for item in enumerate(batches):
            yield item
            if watcher.stopped:
                return

    found = [result for result in in_order(one, until_stopped(), effort.workers) if result is not None]
    if not found:
        raise ValueError("batches: expected at least one batch, got none")
    return _mean(found, settings)


class _Counted:
    """An objective that counts its evaluations, from any thread; the one at the origin is already made."""

    def __init__(self, objective: Searched) -> None:
        self._objective, self._lock = objective, threading.Lock()
        self.evaluations, self.rejected = 1, 0

    def __call__(self, x: Array) -> tuple[float, Array]:
        value, gradient = self._objective(x)
        with self._lock:
            self.evaluations += 1
            self.rejected += value == -math.inf
        return value, gradient


def _one_batch(
    objective: Searched,
    batch: int,
    ball: Ball,
    effort: Effort,
    workers: int,
    watcher: Watcher,
    settings: dict[str, Any],
) -> SharpnessResult:
    watcher.tell(batch, 0, 0, 0.0, 0.0, 0.0)
    counted = _Counted(objective)
    at_origin = (0.0, objective.gradient_at_origin)

    def random_start(start: int) -> Array:
        rng = np.random.default_rng([effort.seed, batch, start])
        return ball.random(objective.random_direction(rng))

    def run(start: int) -> Run:
        def watch(iteration: int, value: float, best: float, step: float) -> bool:
            return watcher.tell(batch, start, iteration, value, best, step)

        def climbed(x: Array, evaluation: tuple[float, Array], from_gradient: bool = False) -> Run | None:
            memory = Memory(effort.memory, objective.origin, objective.gradient_at_origin, objective.horizontal)
            return maximise(counted, ball, x, evaluation, effort.n_iter, watch, memory, from_gradient)

        if start == 0 and not is_zero(objective.gradient_at_origin):
            found = climbed(objective.origin, at_origin, from_gradient=True)
            if found is not None:
                return found
        x, evaluation = random_start(start), at_origin
        while not is_zero(x):
            evaluation = counted(x)
            watch(0, evaluation[0], evaluation[0], 0.0)
            if evaluation[0] > -math.inf:
                break
            x = 0.5 * x if np.max(np.abs(x)) > _SHORTEST_START * ball.radius / math.sqrt(len(x)) else 0.0 * x
        found = climbed(x, at_origin if is_zero(x) else evaluation)
        assert found is not None
        return found

    runs = list(in_order(run, range(1 if watcher.stopped else effort.n_restarts), workers))
    best = max(runs, key=lambda run: run.value)
    nothing = best.value <= 0.0
    return SharpnessResult(
        value=max(best.value, 0.0),
        maximizer=objective.tangent_vector(objective.origin if nothing else best.x),
        loss=objective.loss,
        loss_max=objective.loss + max(best.value, 0.0),
        trace=np.maximum.accumulate(np.maximum(best.values, 0.0)),
        values=best.values,
        steps=best.steps,
        n_evaluations=counted.evaluations,
        n_rejected=counted.rejected,
        residual=best.residual,
        converged=best.residual <= STATIONARY,
        rho=ball.radius,
        settings=settings,
    )


def _mean(found: list[SharpnessResult], settings: dict[str, Any]) -> SharpnessResult:
    length = max(len(result.trace) for result in found)
    traces, values, steps = (
        np.mean([np.pad(getattr(result, name), (0, length - len(result.trace)), "edge") for result in found], axis=0)
        for name in ("trace", "values", "steps")
    )
    return SharpnessResult(
        value=math.fsum(result.value for result in found) / len(found),
        maximizer=[result.maximizer for result in found],
        loss=math.fsum(result.loss for result in found) / len(found),
        loss_max=math.fsum(result.loss_max for result in found) / len(found),
        trace=traces,
        values=values,
        steps=steps,
        n_evaluations=sum(result.n_evaluations for result in found),
        n_rejected=sum(result.n_rejected for result in found),
        residual=max(result.residual for result in found),
        converged=all(result.converged for result in found),
        rho=found[0].rho,
        settings=settings,
        batches=tuple(found),
    )
