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
        Of the loss ‖X(u ⊙ v) − y‖², for those who would rather look than differentiate.
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
    ) -> None:
        self.X, self.y, self.calls = X, y, 0
        self._convert, self._back, self._dtype = convert, back, dtype

    def value_and_grad(self, G: Any, H: Any) -> tuple[float, tuple[Any, Any]]:
        """The loss and its gradient at (G, H), in the backend's kind of array."""
        self.calls += 1
        u, v = (np.asarray(self._back(x), dtype=np.float64) for x in (G, H))
        r = self.X @ (u * v).ravel() - self.y
        slope = (2.0 * self.X.T @ r).reshape(u.shape)
        first, second = (self._convert((slope * x).astype(self._dtype)) for x in (v, u))
        return float(r @ r), (first, second)


def plain_routine(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(value_and_grad, params, metric, rho)`` as the protocol's ``sharpness``; params is the tuple (G, H)."""

    def sharpness(metric: str, problem: Problem, G: Any, H: Any, rho: float, order: Any) -> Any:
        return function(lambda params: problem.value_and_grad(*params), (G, H), metric, rho)

    return sharpness
