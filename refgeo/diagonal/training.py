"""Gradient descent on the mean squared error of many diagonal networks at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refgeo.diagonal.problem import LeastSquares, apply
from refgeo.support.arguments import Array, integer, number, real_array

_DIVERGED = 1e6
"""A loss this many times that of β = 0 or of the start, whichever is larger, does not come back."""


@dataclass(frozen=True)
class Trained:
    """Networks after training; one entry per network.

    Attributes
    ----------
    u, v : ndarray, shape ``(..., d)``
        Of a diverged network, where it was when its loss was too large.
    loss : ndarray
        ‖X(u ⊙ v) − y‖² / n; infinite where training diverged.
    steps : ndarray of int
        Updates made.
    converged, diverged : ndarray of bool
        Both false: `max_steps` were not enough.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rg.diagonal.train(np.eye(2), np.array([1.0, 2.0]), np.ones((3, 2)), np.ones((3, 2)), step_size=0.1)
    Trained(3 networks: 3 converged, 0 diverged, 0 unfinished)
    """

    u: Array
    v: Array
    loss: Array
    steps: npt.NDArray[np.int64]
    converged: npt.NDArray[np.bool_]
    diverged: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        converged, diverged = np.count_nonzero(self.converged), np.count_nonzero(self.diverged)
        left = self.loss.size - converged - diverged
        return f"Trained({self.loss.size} networks: {converged} converged, {diverged} diverged, {left} unfinished)"


def train(
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    u: npt.ArrayLike,
    v: npt.ArrayLike,
    step_size: npt.ArrayLike,
    *,
    target: float = 1e-5,
    max_steps: int = 100_000,
) -> Trained:
    """Train by gradient descent on ‖X(u ⊙ v) − y‖² / n until the loss is at most `target`.

    Parameters
    ----------
    X : array_like, shape ``(..., n, d)``
    y : array_like, shape ``(..., n)``
    u, v : array_like, shape ``(..., d)``
        Where training starts; leading dimensions of all arguments broadcast.
    step_size : array_like, shape ``(...)``
    target : float
    max_steps : int

    Returns
    -------
    Trained

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> result = rg.diagonal.train(np.eye(1), np.array([6.0]), np.array([1.0]), np.array([1.0]), 0.02)
    >>> result.loss < 1e-5, (result.u * result.v).round(2)
    (np.True_, array([6.]))
    """
    given, step_size = LeastSquares.of(u, v, X, y), real_array("step_size", step_size)
    if not np.all(step_size > 0.0):
        raise ValueError("step_size: expected numbers > 0")
    target, most = number("target", target, least=0.0), integer("max_steps", max_steps)
    X, y, n = given.X, real_array("y", y), given.X.shape[-2]
    shape = np.broadcast_shapes(given.batch, step_size.shape)
    u, v = (np.broadcast_to(w, (*shape, w.shape[-1])) for w in (given.u, given.v))
    rate, steps = (2.0 / n) * step_size[..., None], np.zeros(shape, dtype=np.int64)
    limit = _DIVERGED * np.maximum(np.mean(y**2, axis=-1), np.mean(given.residual**2, axis=-1))
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(most + 1):
            residual = apply(X, u * v) - y
            loss = np.mean(residual**2, axis=-1)
            running = (loss > target) & (loss <= limit)
            if step == most or not running.any():
                break
            gradient = np.where(running[..., None], rate * apply(X.mT, residual), 0.0)
            u, v, steps = u - gradient * v, v - gradient * u, steps + running
    diverged = ~((loss <= target) | running)
    return Trained(u, v, np.where(diverged, np.inf, loss), steps, loss <= target, diverged)
