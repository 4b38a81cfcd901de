"""How the arrays of a call lie in memory: functions of both parts of a pair, as what they share is what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _wide(x: Array, columns: slice) -> Array:
    """Columns of a larger array, whose other numbers are NaN."""
    larger = np.full((*x.shape[:-1], 2 * x.shape[-1] + 3), np.nan, dtype=x.dtype)
    larger[..., columns] = x
    return larger[..., columns]


def _sliced(x: Array) -> Array:
    """Every second block of a larger batch."""
    larger = np.full((*(2 * count for count in x.shape[:-2]), *x.shape[-2:]), np.nan, dtype=x.dtype)
    every_second = (slice(None, None, 2),) * (x.ndim - 2)
    larger[every_second] = x
    return larger[every_second]


def _frozen(x: Array) -> Array:
    x = np.array(x)
    x.flags.writeable = False
    return x


def _expanded(x: Array) -> Array:
    """Blocks that are equal as one block with stride 0."""
    first = x[(0,) * (x.ndim - 2)]
    return np.broadcast_to(np.array(first), x.shape) if np.array_equal(np.broadcast_to(first, x.shape), x) else x.copy()


def _fused(G: Array, H: Array) -> list[Array]:
    """Both parts in one buffer, as in a weight that holds several."""
    axis, size = (-1, G.shape[-1]) if G.shape == H.shape else (-2, G.shape[-2])
    return np.split(np.concatenate([G, H], axis=axis), [size], axis=axis)


def _overlapping(G: Array, H: Array) -> list[Array]:
    """The last rows of one part are the first rows of the other, if they are equal."""
    n, m = G.shape[-2], H.shape[-2]
    shared = next((k for k in range(min(n, m), 0, -1) if np.array_equal(G[..., n - k :, :], H[..., :k, :])), 0)
    both = np.concatenate([G, H[..., shared:, :]], axis=-2)
    return [both[..., :n, :], both[..., n - shared :, :]]


def _each(change: Callable[[Array], Array], takes: Callable[[int, int, int], bool] = lambda *_: True) -> Any:
    """Of the arrays that are taken, by the pair, the number of pairs, and the part."""
    return lambda pair, i, count: [
        change(x) if takes(i, count, part) else np.array(x) for part, x in enumerate(pair)
    ]  # fmt: skip


def _in_columns(x: Array) -> Array:
    return np.array(x, order="F")


LIES: dict[str, Callable[[Sequence[Array], int, int], list[Array]]] = {
    "": _each(np.array),
    "fortran": _each(_in_columns),
    "fortran-vectors": _each(_in_columns, lambda i, count, part: i > 0),
    "fortran-last": _each(_in_columns, lambda i, count, part: i == count - 1),
    "fortran-H": _each(_in_columns, lambda i, count, part: part == 1),
    "transposed": _each(lambda x: np.ascontiguousarray(x.mT).mT),
    "strided": _each(lambda x: _wide(x, slice(1, 2 * x.shape[-1], 2))),
    "columns": _each(lambda x: _wide(x, slice(2, 2 + x.shape[-1]))),
    "reversed": _each(lambda x: np.array(x[..., ::-1, ::-1])[..., ::-1, ::-1]),
    "read-only": _each(_frozen),
    "fused": lambda pair, i, count: _fused(*pair),
    "sliced": _each(_sliced),
    "expanded": _each(_expanded),
    "overlapping": lambda pair, i, count: _overlapping(*pair) if i == 0 else [np.array(x) for x in pair],
    "reused": _each(np.array),
}
"""By name, of a pair, its place among the pairs of a call, and their number."""


def laid_out(arrays: Sequence[Array], lies: str) -> list[Array]:
    """Copies of the arrays of a call, G and H parts in turn, that lie so; one pair given twice stays one.

    Examples
    --------
    >>> G, H = laid_out([np.ones((2, 1)), np.zeros((3, 1))], "fused")
    >>> G.base is H.base, G.shape, H.shape
    (True, (2, 1), (3, 1))
    """
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    once: dict[tuple[int, ...], list[Array]] = {}
    for i, pair in enumerate(pairs):
        once.setdefault(tuple(map(id, pair)), LIES[lies](pair, i, len(pairs)))
    return [x for pair in pairs for x in once[tuple(map(id, pair))]]
