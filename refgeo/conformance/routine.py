"""The loss that a sharpness routine gets, in the process of the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.support.arguments import Array


class Problem:
    """A loss with its gradient, which a sharpness routine gets in addition to the parameters.

    Attributes
    ----------
    X, y : ndarray
        The data of the loss ‖X(u ⊙ v) − y‖², for routines that do not use its gradient; diagonal networks only.
    calls : int
        The number of evaluations of the loss.
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
        """The matrix X, if the network is diagonal."""
        return self._refuse_general(self._X)

    @property
    def y(self) -> Array:
        """The vector y, if the network is diagonal."""
        return self._refuse_general(self._y)

    def _refuse_general(self, x: Array) -> Array:
        """Return an array, or raise an error if the network is not diagonal."""
        if not self.is_diagonal:
            raise NotImplementedError("X and y are those of diagonal networks, with G and H of shape (d, 1, 1)")
        return x

    def value_and_grad(self, G: Any, H: Any) -> tuple[float, tuple[Any, Any]]:
        """Return the loss ‖X vec(G Hᵀ) − y‖² and its gradient at (G, H), in the backend's kind of array."""
        self.calls += 1
        G, H = (np.asarray(self._back(x), dtype=np.float64) for x in (G, H))
        with np.errstate(all="ignore"):  # a warning of ours is not the routine's
            product = G @ H.mT
            r = self._X @ product.ravel() - self._y
            E = (2.0 * self._X.T @ r).reshape(product.shape)
            loss, gradients = (float(r @ r), [x.astype(self._dtype) for x in (E @ H, E.mT @ G)])
        e_G, e_H = map(self._convert, gradients)
        return loss, (e_G, e_H)


def wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the protocol's ``sharpness`` of ``function(value_and_grad, params, metric, rho)``; params is (G, H)."""

    def sharpness(metric: str, problem: Problem, G: Any, H: Any, rho: float, order: Any) -> Any:
        return function(lambda params: problem.value_and_grad(*params), (G, H), metric, rho)

    return sharpness
