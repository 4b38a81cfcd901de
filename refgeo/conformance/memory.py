"""How the arrays of a call lie in memory: functions of both parts of a pair, as what they share is what goes wrong.

Each array is a view of some base. A backend that has arrays of its own kind gets views of its own kind, where these
have such views: otherwise what they share would be lost with the conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Laid:
    """An array as a view of another one.

    Attributes
    ----------
    base : ndarray
    take : callable
        From a base of any kind to the view.
    array : ndarray
    """

    base: Array
    take: Callable[[Any], Any]
    array: Array


def _view(base: Array, take: Callable[[Any], Any] = lambda x: x) -> Laid:
    return Laid(base, take, take(base))


def _part(larger_shape: Sequence[int], x: Array, *part: Any) -> Laid:
    """A part of a larger array, whose other numbers are NaN."""
    larger = np.full(tuple(larger_shape), np.nan, dtype=x.dtype)
    place = (..., *part)
    larger[place] = x
    return _view(larger, lambda base: base[place])


def _columns(x: Array, step: int) -> Laid:
    h = x.shape[-1]
    return _part([*x.shape[:-1], 2 * h + 3], x, slice(2, 2 + h) if step == 1 else slice(1, 2 * h, 2))


def _sliced(x: Array) -> Laid:
    """Every second block of a larger batch."""
    every = slice(None)
    parts = (slice(None, None, 2),) * (x.ndim - 2)
    return _part([*(2 * count for count in x.shape[:-2]), *x.shape[-2:]], x, *parts, every, every)


def _frozen(x: Array) -> Laid:
    x = np.array(x)
    x.flags.writeable = False
    return _view(x)


def _expanded(x: Array) -> Laid:
    """Blocks that are equal as one block with stride 0."""
    first, shape = np.array(x[(0,) * (x.ndim - 2)]), x.shape
    if not np.array_equal(np.broadcast_to(first, shape), x):
        return _view(np.array(x))

    def take(base: Any) -> Any:
        return np.broadcast_to(base, shape) if isinstance(base, np.ndarray) else base.expand(shape)

    return _view(first, take)


def _fused(G: Array, H: Array) -> list[Laid]:
    """Both parts in one buffer, as in a weight that holds several."""
    if G.shape == H.shape:
        both, h = np.concatenate([G, H], axis=-1), G.shape[-1]
        return [_view(both, lambda base: base[..., :h]), _view(both, lambda base: base[..., h:])]
    both, n = np.concatenate([G, H], axis=-2), G.shape[-2]
    return [_view(both, lambda base: base[..., :n, :]), _view(both, lambda base: base[..., n:, :])]


def _overlapping(G: Array, H: Array) -> list[Laid]:
    """The last rows of one part are the first rows of the other, if they are equal."""
    n, m = G.shape[-2], H.shape[-2]
    shared = next((k for k in range(min(n, m), 0, -1) if np.array_equal(G[..., n - k :, :], H[..., :k, :])), 0)
    both = np.concatenate([G, H[..., shared:, :]], axis=-2)
    return [_view(both, lambda base: base[..., :n, :]), _view(both, lambda base: base[..., n - shared :, :])]


def _each(change: Callable[[Array], Laid], takes: Callable[[int, int, int], bool] = lambda *_: True) -> Any:
    """Of the arrays that are taken, by the pair, the number of pairs, and the part."""
    return lambda pair, i, count: [
        change(x) if takes(i, count, part) else _view(np.array(x)) for part, x in enumerate(pair)
    ]


def _in_columns(x: Array) -> Laid:
    return _view(np.array(x, order="F"))


_PLAIN = _each(lambda x: _view(np.array(x)))
LIES: dict[str, Callable[[Sequence[Array], int, int], list[Laid]]] = {
    "": _PLAIN,
    "fortran": _each(_in_columns),
    "fortran-vectors": _each(_in_columns, lambda i, count, part: i > 0),
    "fortran-last": _each(_in_columns, lambda i, count, part: i == count - 1),
    "fortran-H": _each(_in_columns, lambda i, count, part: part == 1),
    "transposed": _each(lambda x: _view(np.array(x.mT, order="C"), lambda base: base.mT)),
    "strided": _each(lambda x: _columns(x, 2)),
    "columns": _each(lambda x: _columns(x, 1)),
    "reversed": _each(lambda x: _view(np.array(x[..., ::-1, ::-1]), lambda base: base[..., ::-1, ::-1])),
    "read-only": _each(_frozen),
    "fused": lambda pair, i, count: _fused(*pair),
    "sliced": _each(_sliced),
    "expanded": _each(_expanded),
    "overlapping": lambda pair, i, count: _overlapping(*pair) if i == 0 else _PLAIN(pair, i, count),
    "reused": _PLAIN,
}
"""By name, of a pair, its place among the pairs of a call, and their number."""


def laid_out(arrays: Sequence[Array], lies: str) -> list[Laid]:
    """Copies of the arrays of a call, G and H parts in turn, that lie so; one pair given twice stays one.

    Examples
    --------
    >>> G, H = laid_out([np.ones((2, 1)), np.zeros((3, 1))], "fused")
    >>> G.base is H.base, G.array.shape, H.array.shape
    (True, (2, 1), (3, 1))
    """
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    once: dict[tuple[int, ...], list[Laid]] = {}
    for i, pair in enumerate(pairs):
        key = tuple(map(id, pair))
        if key not in once:
            once[key] = LIES[lies](pair, i, len(pairs))
    return [x for pair in pairs for x in once[tuple(map(id, pair))]]


def copies(arrays: Sequence[Array]) -> list[Array]:
    """As they usually lie."""
    return [one.array for one in laid_out(arrays, "")]
