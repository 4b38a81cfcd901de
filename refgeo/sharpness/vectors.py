"""Sums over long vectors in one sweep through memory: most of an iteration, once there are millions of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy  # whose modules load where they are used

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
    """The matrix of their dot products, in double precision.

    Examples
    --------
    >>> gram([np.array([1.0, 2.0]), np.array([0.0, 3.0])])
    array([[5., 6.],
           [6., 9.]])
    """
    products = np.zeros((len(vectors), len(vectors)))
    for part in _chunks(len(vectors[0])):
        pieces = [u[part].astype(np.float64, copy=False) for u in vectors]
        for i, u in enumerate(pieces):
            for j in range(i + 1):
                products[i, j] += np.dot(u, pieces[j])
    return np.asarray(products + np.tril(products, -1).T)


def gram_of_many(rows: Array) -> Array:
    """The same of the rows of a matrix, by one product a chunk.

    Examples
    --------
    >>> gram_of_many(np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[5., 6.],
           [6., 9.]])
    """
    products = np.zeros((len(rows), len(rows)))
    for part in _chunks(rows.shape[1]):
        pieces = rows[:, part].astype(np.float64, copy=False)
        products += pieces @ pieces.T
    return products


def combination(coefficients: Sequence[float] | Array, vectors: Sequence[Array]) -> Array:
    """The linear combination of the vectors, a new one.

    Examples
    --------
    >>> combination([1.0, -2.0], [np.array([1.0, 2.0]), np.array([0.0, 3.0])])
    array([ 1., -4.])
    """
    total = np.empty(vectors[0].shape, np.result_type(*vectors))
    add = scipy.linalg.get_blas_funcs("axpy", (total,))
    for part in _chunks(len(total)):
        np.multiply(vectors[0][part], coefficients[0], out=total[part])
        for factor, vector in zip(coefficients[1:], vectors[1:], strict=True):
            add(vector[part].astype(total.dtype, copy=False), total[part], a=factor)
    return total
