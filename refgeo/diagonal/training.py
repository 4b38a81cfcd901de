"""Training of many diagonal networks at once, by gradient descent on the mean squared error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refgeo.diagonal.problem import applied
from refgeo.support.arguments import Array, integer, real_array, seed_of

_DIVERGED = 1e6
"""A loss this many times that of β = 0 or of the start, whichever is larger, does not come back."""
_TELL_EVERY = 100


@dataclass(frozen=True)
class TrainingProgress:
    """What a callback hears: steps done and allowed, and how many networks have converged, diverged, or go on."""

    step: int
    max_steps: int
    converged: int
    diverged: int
    running: int


Callback = Callable[[TrainingProgress], object]


@dataclass(frozen=True)
class Trained:
    """Networks after training; one entry per network.

    Attributes
    ----------
    u, v : ndarray, shape ``(..., d)``
        Of a diverged network, its last finite weights (with batches, the last ones whose loss was looked at).
    loss : ndarray
        ‖X(u ⊙ v) − y‖² / n; infinite where training diverged.
    steps : ndarray of int
        Updates made.
    converged, diverged : ndarray of bool
        Both false: `max_steps` were not enough.

    Examples
    --------
    >>> import refgeo as rg
    >>> trained = rg.diagonal.train([[1.0]], [2.0], [1.0], [1.0], step_size=0.1)
    >>> trained, (trained.u * trained.v).round(2)
    (Trained(1 networks: 1 converged, 0 diverged, 0 unfinished), array([2.]))
    """

    u: Array
    v: Array
    loss: Array
    steps: npt.NDArray[np.int64]
    converged: npt.NDArray[np.bool_]
    diverged: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        total = self.loss.size
        left = total - np.count_nonzero(self.converged) - np.count_nonzero(self.diverged)
        return (
            f"Trained({total} networks: {np.count_nonzero(self.converged)} converged, "
            f"{np.count_nonzero(self.diverged)} diverged, {left} unfinished)"
        )


def train(
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    u: npt.ArrayLike,
    v: npt.ArrayLike,
    step_size: npt.ArrayLike,
    *,
    target: float = 1e-5,
    max_steps: int = 100_000,
    batch_size: int | None = None,
    rng: np.random.Generator | int | None = 0,
    callback: Callback | None = None,
    progress: bool = False,
) -> Trained:
    """Gradient descent on ‖X(u ⊙ v) − y‖² / n until the loss is at most `target`.

    Parameters
    ----------
    X : array_like, shape ``(..., n, d)``
    y : array_like, shape ``(..., n)``
    u, v : array_like, shape ``(..., d)``
        Where training starts; leading dimensions of all arguments broadcast.
    step_size : array_like, shape ``(...)``
    target : float
    max_steps : int
    batch_size : int, optional
        Rows drawn for a step, with replacement, for every network on its own (SGD). Default: all rows. With batches
        the loss is looked at once per ⌈n / batch_size⌉ steps.
    rng : numpy Generator, or a seed
        Only for batches.
    callback : callable, optional
        Hears a `TrainingProgress` every 100 steps and at the end. Raising StopIteration ends training.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Trained

    Examples
    --------
    >>> import refgeo as rg
    >>> found = rg.diagonal.train(np.eye(2), [1.0, 4.0], [[1.0, 1.0], [2.0, 2.0]], np.ones(2), 0.1)
    >>> found, (found.u * found.v).round(2).tolist()
    (Trained(2 networks: 2 converged, 0 diverged, 0 unfinished), [[1.0, 4.0], [1.0, 4.0]])
    """
    X, y, u, v = real_array("X", X), real_array("y", y), real_array("u", u), real_array("v", v)
    step_size = real_array("step_size", step_size)
    if X.ndim < 2 or u.ndim == 0 or X.shape[-1] != u.shape[-1] or v.shape[-1:] != u.shape[-1:]:
        raise ValueError(f"X, u, v: expected (..., n, d), (..., d), (..., d), got {X.shape}, {u.shape} and {v.shape}")
    if y.shape[-1:] != X.shape[-2:-1]:
        raise ValueError(f"y: expected shape (..., {X.shape[-2]}), got {y.shape}")
    if not np.all(step_size > 0.0):
        raise ValueError("step_size: expected numbers > 0")
    if np.ndim(target) != 0 or not isinstance(target, (int, float, np.number)) or not target >= 0.0:
        raise ValueError(f"target: expected a number >= 0, got {target!r}")
    if X.shape[-2] == 0:
        raise ValueError("X: expected at least one row, got none")
    integer("max_steps", max_steps)
    rows = X.shape[-2] if batch_size is None else integer("batch_size", batch_size)
    try:
        shape = np.broadcast_shapes(X.shape[:-2], y.shape[:-1], u.shape[:-1], v.shape[:-1], step_size.shape)
    except ValueError:
        raise ValueError(
            "X, y, u, v, step_size: expected leading dimensions that broadcast, got "
            f"{X.shape[:-2]}, {y.shape[:-1]}, {u.shape[:-1]}, {v.shape[:-1]} and {step_size.shape}"
        ) from None
    run = _Training(X, y, u, v, step_size, shape, float(target))
    generator = None if batch_size is None else np.random.default_rng(seed_of(rng))
    with np.errstate(over="ignore", invalid="ignore"), _bar(progress, callback) as watched:
        run.go(max_steps, rows, generator, watched)
    return run.result(shape)


@contextmanager
def _bar(wanted: bool, callback: Callback | None) -> Iterator[Callback | None]:
    """The callback, with a bar before it."""
    if not wanted:
        yield callback
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("training")

        def watched(at: TrainingProgress) -> None:
            total = at.converged + at.diverged + at.running
            text = f"training: {at.converged} of {total} networks converged, {at.diverged} diverged, step {at.step}"
            bar.update(task, description=text, completed=total - at.running, total=total)
            if callback is not None:
                callback(at)

        yield watched


def _residual(X: Array, y: Array, u: Array, v: Array) -> Array:
    return applied(X, u * v) - y


class _Training:
    """Networks in a flat list; those that are done leave it."""

    def __init__(
        self, X: Array, y: Array, u: Array, v: Array, step_size: Array, shape: tuple[int, ...], target: float
    ) -> None:
        n, d = X.shape[-2:]
        self.n, self.target = n, target
        count = int(np.prod(shape))
        self.X = X if X.ndim == 2 else np.broadcast_to(X, (*shape, n, d)).reshape(count, n, d)
        self.y = np.broadcast_to(y, (*shape, n)).reshape(count, n)
        self.u, self.v = (np.array(np.broadcast_to(w, (*shape, d))).reshape(count, d) for w in (u, v))
        self.eta = np.broadcast_to(step_size, shape).reshape(count, 1) * 2.0
        self.loss = np.full(count, np.inf)
        self.steps = np.zeros(count, dtype=np.int64)
        self.converged, self.diverged = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        self.live = np.arange(count)
        at_start = np.mean(_residual(self.X, self.y, self.u, self.v) ** 2, axis=-1)
        self.limit = _DIVERGED * np.maximum(np.mean(self.y**2, axis=-1), at_start)

    def go(
        self,
        max_steps: int,
        rows: int,
        generator: np.random.Generator | None,
        callback: Callback | None,
    ) -> None:
        """Steps until all are done."""
        every = -(-self.n // rows)
        X, y, u, v, eta = self._working()
        for step in range(max_steps + 1):
            looks = generator is None or step % every == 0 or step == max_steps
            residual = _residual(X, y, u, v) if looks else None
            if residual is not None and self._settle(residual, u, v, step):
                X, y, u, v, eta = self._working()
                residual = _residual(X, y, u, v)
            if step % _TELL_EVERY == 0 or step == max_steps or not len(self.live):
                try:
                    self._tell(callback, step, max_steps)
                except StopIteration:
                    self._settle(_residual(X, y, u, v), u, v, step)
                    break
            if not len(self.live) or step == max_steps:
                break
            if generator is None:
                assert residual is not None
                gradient = applied(np.swapaxes(X, -1, -2), residual) / self.n
            else:
                drawn = generator.integers(self.n, size=(len(self.steps), rows))[self.live]
                chosen = X[drawn] if X.ndim == 2 else np.take_along_axis(X, drawn[..., None], axis=-2)
                error = _residual(chosen, np.take_along_axis(y, drawn, axis=-1), u, v)
                gradient = applied(np.swapaxes(chosen, -1, -2), error) / rows
            gradient *= eta
            u, v = u - gradient * v, v - gradient * u

    def _working(self) -> tuple[Array, Array, Array, Array, Array]:
        live = self.live
        return self.X if self.X.ndim == 2 else self.X[live], self.y[live], self.u[live], self.v[live], self.eta[live]

    def _settle(self, residual: Array, u: Array, v: Array, step: int) -> bool:
        """Note the losses; take out what has converged or diverged."""
        loss = np.mean(residual * residual, axis=-1)
        converged = loss <= self.target
        diverged = ~(loss <= self.limit[self.live])
        self.steps[self.live] = step
        self.loss[self.live] = np.where(diverged, np.inf, loss)
        finite = np.isfinite(u).all(axis=-1) & np.isfinite(v).all(axis=-1)
        self.u[self.live[finite]], self.v[self.live[finite]] = u[finite], v[finite]
        if not (converged.any() or diverged.any()):
            return False
        self.converged[self.live[converged]] = True
        self.diverged[self.live[diverged]] = True
        self.live = self.live[~(converged | diverged)]
        return True

    def _tell(self, callback: Callback | None, step: int, max_steps: int) -> None:
        if callback is not None:
            done, lost = int(self.converged.sum()), int(self.diverged.sum())
            callback(TrainingProgress(step, max_steps, done, lost, len(self.live)))

    def result(self, shape: tuple[int, ...]) -> Trained:
        """In the shape of the arguments."""
        d = self.u.shape[-1]
        return Trained(
            self.u.reshape(*shape, d),
            self.v.reshape(*shape, d),
            self.loss.reshape(shape),
            self.steps.reshape(shape),
            self.converged.reshape(shape),
            self.diverged.reshape(shape),
        )
