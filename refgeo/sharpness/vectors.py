"""Sums over long vectors in one sweep through memory: most of an iteration, once there are millions of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.linalg.blas import daxpy

from refgeo.arguments import Array

_CHUNK = 1 << 15  # three vectors of this length stay in a core's cache


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, length, _CHUNK))


def is_zero(vector: Array) -> bool:
    """Whether nothing but zeros is in it; a vector that is not zero tells by its first entries, as a rule.

    Examples
    --------
    >>> is_zero(np.zeros(3)), is_zero(np.array([0.0, 1e-300]))
    (True, False)
    """
    return not (vector[:_CHUNK].any() or vector.any())


def gram(vectors: Sequence[Array]) -> Array:
    """The matrix of their dot products.

    Examples
    --------
    >>> gram([np.array([1.0, 2.0]), np.array([0.0, 3.0])])
    array([[5., 6.],
           [6., 9.]])
    """
    products = np.zeros((len(vectors), len(vectors)))
    for part in _chunks(len(vectors[0])):
        for i, u in enumerate(vectors):
            for j in range(i + 1):
                products[i, j] += np.dot(u[part], vectors[j][part])
    return np.asarray(products + np.tril(products, -1).T)


def combination(coefficients: Sequence[float] | Array, vectors: Sequence[Array]) -> Array:
    """The linear combination of the vectors, a new one.

    Examples
    --------
    >>> combination([1.0, -2.0], [np.array([1.0, 2.0]), np.array([0.0, 3.0])])
    array([ 1., -4.])
    """
    total = np.empty(vectors[0].shape)
    for part in _chunks(len(total)):
        np.multiply(vectors[0][part], coefficients[0], out=total[part])
        for factor, vector in zip(coefficients[1:], vectors[1:], strict=True):
            daxpy(vector[part], total[part], a=factor)
    return total
