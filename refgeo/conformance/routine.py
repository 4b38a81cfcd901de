"""What a sharpness routine gets, in the process that calls it: a loss with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.support.arguments import Array


class Problem:
    """What a routine is given beside the parameters.

    Attributes
    ----------
    X, y : ndarray
        Of the loss ‖X(u ⊙ v) − y‖², for those who would rather look than differentiate: of diagonal networks alone.
    calls : int
        How often the loss has been evaluated.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        convert: Callable[[Any], Any],
        back: Callable[[Any], Any],
        dtype: npt.DTypeLike = np.float64,
        is_diagonal: bool = True,
    ) -> None:
        self._X, self._y, self.calls = X, y, 0
        self._convert, self._back, self._dtype, self.is_diagonal = convert, back, dtype, is_diagonal

    @property
    def X(self) -> Array:
        """Of the loss of a diagonal network."""
        return self._of_diagonal(self._X)

    @property
    def y(self) -> Array:
        """Of the loss of a diagonal network."""
        return self._of_diagonal(self._y)

    def _of_diagonal(self, x: Array) -> Array:
        if not self.is_diagonal:
            raise NotImplementedError("X and y are those of diagonal networks, with G and H of shape (d, 1, 1)")
        return x

    def value_and_grad(self, G: Any, H: Any) -> tuple[float, tuple[Any, Any]]:
        """The loss ‖X vec(G Hᵀ) − y‖² and its gradient at (G, H), in the backend's kind of array."""
        self.calls += 1
        G, H = (np.asarray(self._back(x), dtype=np.float64) for x in (G, H))
        with np.errstate(all="ignore"):  # a warning of ours is not the routine's
            product = G @ H.mT
            r = self._X @ product.ravel() - self._y
            slope = (2.0 * self._X.T @ r).reshape(product.shape)
            loss, gradient = float(r @ r), [x.astype(self._dtype) for x in (slope @ H, slope.mT @ G)]
        first, second = map(self._convert, gradient)
        return loss, (first, second)


def plain_routine(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(value_and_grad, params, metric, rho)`` as the protocol's ``sharpness``; params is the tuple (G, H)."""

    def sharpness(metric: str, problem: Problem, G: Any, H: Any, rho: float, order: Any) -> Any:
        return function(lambda params: problem.value_and_grad(*params), (G, H), metric, rho)

    return sharpness
