"""The loss ‖X(u ⊙ v) − y‖² about a network: F(w) = L(β₀ + w) − L(β₀) = 2gᵀw + ‖Xw‖², g = Xᵀr and r = Xβ₀ − y."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from refgeo.support.arguments import Array, real_array

_LARGEST = 1e140


def apply(matrix: Array, vectors: Array) -> Array:
    """Multiply matrices and vectors, ``(..., n, d)`` and ``(..., d)``; one matrix for all vectors is one product.

    Examples
    --------
    >>> apply(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0], [0.0, 3.0]]))
    array([[3.],
           [6.]])
    """
    if matrix.ndim == 2:
        return np.asarray(vectors @ matrix.T)
    return np.asarray((matrix @ vectors[..., None])[..., 0])


@dataclass(frozen=True)
class LeastSquares:
    """A batch of networks with their data; leading dimensions broadcast.

    Attributes
    ----------
    u, v : ndarray, shape ``(..., d)``
    X : ndarray, shape ``(..., n, d)``
    residual : ndarray, shape ``(..., n)``
        r.
    """

    u: Array
    v: Array
    X: Array
    residual: Array

    @staticmethod
    def of(u: npt.ArrayLike, v: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike) -> LeastSquares:
        """Make a problem of checked arguments."""
        u, v, X, y = real_array("u", u), real_array("v", v), real_array("X", X), real_array("y", y)
        if u.ndim == 0 or u.shape != v.shape:
            raise ValueError(f"v: expected the shape of u, {u.shape}, with at least one dimension, got {v.shape}")
        d = u.shape[-1]
        if d == 0:
            raise ValueError("u: expected at least one coordinate, got none")
        if X.ndim < 2 or X.shape[-1] != d:
            raise ValueError(f"X: expected shape (..., n, {d}) for u of shape {u.shape}, got {X.shape}")
        if y.ndim == 0 or y.shape[-1] != X.shape[-2]:
            raise ValueError(f"y: expected shape (..., {X.shape[-2]}) for X of shape {X.shape}, got {y.shape}")
        if not np.all(np.abs(X) < _LARGEST):
            raise ValueError(f"X: expected entries below {_LARGEST:g}, because squares are added; rescale X and y")
        try:
            np.broadcast_shapes(u.shape[:-1], X.shape[:-2], y.shape[:-1])
        except ValueError:
            raise ValueError(
                "u, X, y: expected leading dimensions that broadcast, "
                f"got {u.shape[:-1]}, {X.shape[:-2]} and {y.shape[:-1]}"
            ) from None
        return LeastSquares(u, v, X, apply(X, u * v) - y)

    @cached_property
    def beta(self) -> Array:
        """β₀ = u ⊙ v."""
        return self.u * self.v

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading dimensions."""
        return np.broadcast_shapes(self.u.shape[:-1], self.residual.shape[:-1])

    def moving(self, matrix: Array) -> Array:
        """Return the matrix without the rows and columns of coordinates that cannot move."""
        free = self.beta != 0.0
        return matrix if free.all() else matrix * free[..., :, None] * free[..., None, :]

    @cached_property
    def g(self) -> Array:
        """Half the gradient with respect to β."""
        return apply(self.X.mT, self.residual)

    @cached_property
    def gram(self) -> Array:
        """XᵀX."""
        return self.X.mT @ self.X

    @cached_property
    def log_gram(self) -> Array:
        """diag(β₀) XᵀX diag(β₀), the Gram matrix in log β."""
        beta = self.beta
        return beta[..., :, None] * self.gram * beta[..., None, :]

    @cached_property
    def moving_g(self) -> Array:
        """`g`, zero where nothing moves."""
        return np.where(self.beta != 0.0, self.g, 0.0)

    def rounding(self, w: Array) -> Array:
        """Return how much of F(w) can be due to the rounding of Xᵀr, which can be much smaller than ‖X‖‖r‖."""
        size = np.linalg.norm(self.X, axis=(-2, -1)) * np.linalg.norm(self.residual, axis=-1)
        return np.asarray(64.0 * np.finfo(np.float64).eps * size * np.linalg.norm(w, axis=-1))

    def increase(self, w: Array) -> Array:
        """Return F(w) = Σ z(z + 2r), z = Xw: no difference of infinities where z is large."""
        return self._increase(apply(self.X, w))

    def increase_and_gradient(self, w: Array) -> tuple[Array, Array]:
        """Return F(w) and its gradient."""
        z = apply(self.X, w)
        return self._increase(z), 2.0 * apply(self.X.mT, z + self.residual)

    def _increase(self, z: Array) -> Array:
        return np.asarray(np.sum(z * (z + 2.0 * self.residual), axis=-1))
