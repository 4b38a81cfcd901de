"""Vectors of a search that share their memory: combinations of a few that are kept.

Auto-PGD never leaves the span of its start and its gradients. So these are kept, once, with their dot products, and
every other vector is a handful of coefficients: steps, projections and models cost nothing that grows with the length.
Where the vectors are long, those that are kept are rounded to single precision. That perturbs directions by 1e-7, and
no value: a `Combination` stands for the exact combination of what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # whose modules load where they are used

from refgeo.support.arguments import Array
from refgeo.support.threads import one_thread

_CHUNK = 1 << 15  # three vectors of this length stay in a core's cache
_LARGEST = 2.0**300
"""Beyond it, or below its inverse, the squares of numbers leave the range of double precision."""


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, length, _CHUNK))


class Combination:
    """A linear combination of the vectors of a `Span`; its entries are made where they are asked for, by slice.

    Examples
    --------
    >>> span = Span(3, np.float64, np.float64, most=4)
    >>> x, y = span.add(np.array([1.0, 0.0, 2.0])), span.add(np.array([0.0, 3.0, 0.0]))
    >>> (x - 2.0 * y)[1:], float(x @ x), norm(y)
    (array([-6.,  2.]), 5.0, 3.0)
    """

    __array_ufunc__ = None  # so that a NumPy number times a combination is one

    def __init__(self, span: Span, coefficients: Array) -> None:
        self.span, self.coefficients = span, coefficients

    def _with(self, other: Combination) -> tuple[Array, Array]:
        """The coefficients of both, as many as there are vectors by now."""
        return self.span.padded(self.coefficients), self.span.padded(other.coefficients)

    def __add__(self, other: Combination) -> Combination:
        mine, theirs = self._with(other)
        return Combination(self.span, mine + theirs)

    def __sub__(self, other: Combination) -> Combination:
        return self + (-1.0) * other

    def __neg__(self) -> Combination:
        return -1.0 * self

    def __mul__(self, factor: float) -> Combination:
        return Combination(self.span, factor * self.coefficients)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Combination:
        return Combination(self.span, self.coefficients / divisor)

    def __matmul__(self, other: Combination) -> float:
        mine, theirs = self._with(other)
        sizes = [float(np.max(np.abs(c), initial=0.0)) or 1.0 for c in (mine, theirs)]
        return float((mine / sizes[0]) @ self.span.products @ (theirs / sizes[1])) * sizes[0] * sizes[1]

    @property
    def norm(self) -> float:
        """Its Euclidean length, also where its square overflows or underflows."""
        size = float(np.max(np.abs(self.coefficients), initial=0.0))
        if size == 0.0:
            return 0.0
        unit = self.span.padded(self.coefficients) / size
        return size * math.sqrt(max(float(unit @ self.span.products @ unit), 0.0))

    @property
    def shape(self) -> tuple[int, ...]:
        """That of an array with its entries."""
        return (self.span.length,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the entries that are made."""
        return self.span.dtype

    def __len__(self) -> int:
        return self.span.length

    def __getitem__(self, part: slice) -> Array:
        terms = [(c, row[part]) for c, row in zip(self.coefficients, self.span.rows, strict=False) if c]
        total = np.zeros(len(range(*part.indices(self.span.length))), self.dtype)
        add = scipy.linalg.get_blas_funcs("axpy", (total,))
        for chunk in _chunks(len(total)):
            for factor, row in terms:
                add(row[chunk].astype(total.dtype, copy=False), total[chunk], a=factor)
        return total

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """All entries; by default in the precision in which vectors are kept."""
        entries = np.empty(self.shape, dtype or self.span.kept)
        for chunk in _chunks(len(self)):
            entries[chunk] = self[chunk]
        return entries


Vector: TypeAlias = Array | Combination
"""What a search moves: an array, where its ball is not round, or a combination."""


class Span:
    """A few long vectors, which are kept, and their dot products.

    Parameters
    ----------
    length : int
    kept, dtype : dtype
        The precision in which they are kept, and that of the entries of combinations.
    most : int
        So many are kept at most.

    Attributes
    ----------
    rows : list of ndarray
    products : ndarray
        Their dot products, in double precision.
    """

    def __init__(self, length: int, kept: npt.DTypeLike, dtype: npt.DTypeLike, most: int) -> None:
        self.length, self.kept, self.dtype, self.most = length, np.dtype(kept), np.dtype(dtype), most
        self.rows: list[Array] = []
        self.products: Array = np.zeros((0, 0))
        self._lent: list[Array] = []

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another one."""
        return len(self.rows) >= self.most

    def padded(self, coefficients: Array) -> Array:
        """Coefficients from a time when there were fewer vectors."""
        return np.pad(coefficients, (0, len(self.rows) - len(coefficients)))

    def zero(self) -> Combination:
        """The combination that is zero."""
        return Combination(self, np.zeros(len(self.rows)))

    def add(self, vector: Array, own: bool = True) -> Combination:
        """Keep one more, which may be written over later if it is the span's `own`; where its square would leave the
        range, a multiple of it.
        """
        largest = float(max(vector.max(initial=0.0), -vector.min(initial=0.0)))
        scale = 1.0 if largest == 0.0 or 1.0 / _LARGEST < largest < _LARGEST else 2.0 ** math.frexp(largest)[1]
        row = vector.astype(self.kept, copy=False) if scale == 1.0 else (vector / scale).astype(self.kept)
        self.rows.append(row)
        if not own:
            self._lent.append(row)
        with one_thread(self.length):
            self.products = _bordered(self.products, _dots(self.rows, row))
        return Combination(self, scale * np.eye(len(self.rows))[-1])

    def keep(self, needed: Iterable[Combination | None]) -> None:
        """Make room: keep what these combinations are made of, and rewrite their coefficients; all others are void."""
        distinct = list({id(one): one for one in needed if one is not None}.values())
        coefficients = np.array([self.padded(one.coefficients) for one in distinct])
        sizes = np.max(np.abs(coefficients), axis=1, keepdims=True)
        units = coefficients / np.where(sizes > 0.0, sizes, 1.0)
        # what is kept already comes first, and stays as it is
        order = sorted(range(len(units)), key=lambda i: int(np.count_nonzero(units[i])))
        basis: Array = np.zeros((0, len(self.rows)))
        for i in order:
            if np.linalg.norm(units[i] - _in_terms_of(basis, units[i]) @ basis) > 1e-12:
                basis = np.vstack([basis, units[i]])
        found = [_in_terms_of(basis, unit) for unit in units]
        self._replace(basis)
        for one, mine, size in zip(distinct, found, sizes[:, 0], strict=True):
            one.coefficients = size * mine

    def _replace(self, basis: Array) -> None:
        """In place of the vectors, these combinations of them."""
        stays = [int(np.argmax(one)) if np.count_nonzero(one) == 1 and 1.0 in one else None for one in basis]
        spare = [row for i, row in enumerate(self.rows) if i not in stays and not any(row is one for one in self._lent)]
        rows = [
            (spare.pop() if spare else np.empty(self.length, self.kept)) if i is None else self.rows[i] for i in stays
        ]
        made = [k for k, i in enumerate(stays) if i is None]
        with one_thread(self.length):
            for chunk in _chunks(self.length) if made else ():
                pieces = np.array([row[chunk] for row in self.rows], dtype=np.float64)
                for k in made:
                    rows[k][chunk] = basis[k] @ pieces
            self.rows, self.products = rows, basis @ self.products @ basis.T
            for k in made:  # which has been rounded
                self.products[k] = self.products[:, k] = _dots(rows, rows[k])


def _in_terms_of(basis: Array, coefficients: Array) -> Array:
    return np.asarray(np.linalg.lstsq(basis.T, coefficients, rcond=None)[0]) if len(basis) else np.zeros(0)


def _bordered(products: Array, last: Array) -> Array:
    return np.block([[products, last[:-1, None]], [last[None, :-1], last[-1:, None]]])


def _dots(rows: Sequence[Array], other: Array) -> Array:
    """The dot products of all with one, in double precision, in one sweep through memory."""
    found = np.zeros(len(rows))
    for chunk in _chunks(len(other)):
        piece = other[chunk].astype(np.float64, copy=False)
        for i, row in enumerate(rows):
            found[i] += np.dot(row[chunk].astype(np.float64, copy=False), piece)
    return found


class Precise:
    """An array whose slices come in another precision.

    Examples
    --------
    >>> Precise(np.ones(3, np.float32), np.float64)[:2]
    array([1., 1.])
    """

    def __init__(self, array: Array, dtype: npt.DTypeLike) -> None:
        self._array, self.dtype, self.shape = array, np.dtype(dtype), array.shape

    def __getitem__(self, part: slice) -> Array:
        return self._array[part].astype(self.dtype, copy=False)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self[:], dtype=dtype, copy=copy)


def norm(vector: Vector) -> float:
    """The Euclidean length of an array or a combination, also where its square overflows or underflows.

    Examples
    --------
    >>> round(norm(np.array([3e-200, 4e-200])) / 1e-200, 12)
    5.0
    """
    return vector.norm if isinstance(vector, Combination) else float(scipy.linalg.norm(vector, check_finite=False))


def is_zero(vector: Vector | Precise) -> bool:
    """Whether nothing but zeros is in it; a vector that is not zero tells by its first entries, as a rule.

    Examples
    --------
    >>> is_zero(np.zeros(3)), is_zero(np.array([0.0, 1e-300]))
    (True, False)
    """
    if isinstance(vector, Combination):
        return vector.norm == 0.0
    return not any(vector[part].any() for part in _chunks(vector.shape[0]))
