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


ORDERS: dict[str, tuple[str, Callable[[list[int]], list[int]]]] = {
    "": ("", lambda axes: axes),
    "columns": ("in Fortran order", lambda axes: [*axes[:-2], axes[-1], axes[-2]]),
    "heads": ("of heads side by side", lambda axes: [axes[-2], *axes[:-2], axes[-1]]),
    "blocks": ("with blocks innermost", lambda axes: [*axes[-2:], *axes[:-2]]),
}
"""In which order the axes lie, the last one without gaps."""
STEPS = {
    "": ("", 1, 0), "part": ("that are parts of larger ones", 1, 1),
    "second": ("that are every second number of larger ones", 2, 0), "reversed": ("that are reversed", -1, 0),
}  # fmt: skip
"""The step along every axis, and how many numbers of a larger array lie beside."""


def _lying(order: str, steps: str) -> Callable[[Array], Laid]:
    """Any order of the axes, with steps and offsets in a larger array, whose other numbers are NaN."""

    def change(x: Array) -> Laid:
        axes, (_, step, pad) = ORDERS[order][1](list(range(x.ndim))), STEPS[steps]
        larger = [abs(step) * x.shape[i] + 2 * pad for i in axes]
        ends = {1: slice(pad, -pad or None), 2: slice(None, None, 2), -1: slice(None, None, -1)}
        cut, back = (ends[step],) * x.ndim, [axes.index(i) for i in range(x.ndim)]

        def take(base: Any) -> Any:
            part = base[cut]
            return part.permute(*back) if hasattr(part, "permute") else part.transpose(back)

        base = np.full(larger, np.nan, dtype=x.dtype)
        take(base)[...] = x
        return _view(base, take)

    return change


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


_PLAIN = _each(lambda x: _view(np.array(x)))
_IN_COLUMNS = _lying("columns", "")
Lying = Callable[[Sequence[Array], int, int], list[Laid]]
"""Of a pair, its place among the pairs of a call, and their number."""
LIES: dict[str, tuple[str, Lying]] = {
    "": ("", _PLAIN),
    **{f"{order}-{steps}": (" ".join(filter(None, ("with arrays", ORDERS[order][0], STEPS[steps][0]))),
                            _each(_lying(order, steps)))
       for order in ORDERS for steps in STEPS if (order or steps) and (order in ("", "heads") or not steps)},
    "vectors": ("with vectors in Fortran order", _each(_IN_COLUMNS, lambda i, count, part: i > 0)),
    "last": ("with the last vector in Fortran order", _each(_IN_COLUMNS, lambda i, count, part: i == count - 1)),
    "H": ("with H parts in Fortran order", _each(_IN_COLUMNS, lambda i, count, part: part == 1)),
    "read-only": ("with read-only arrays", _each(_frozen)),
    "fused": ("with both parts in one buffer", lambda pair, i, count: _fused(*pair)),
    "expanded": ("with equal blocks as one, with stride 0", _each(_expanded)),
    "overlapping": ("with overlapping factors",
                    lambda pair, i, count: _overlapping(*pair) if i == 0 else _PLAIN(pair, i, count)),
    "reused": ("with arrays that an earlier call had with other contents", _PLAIN),
}  # fmt: skip
"""By name, in words, and how."""


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
            once[key] = LIES[lies][1](pair, i, len(pairs))
    return [x for pair in pairs for x in once[tuple(map(id, pair))]]


def copies(arrays: Sequence[Array]) -> list[Array]:
    """As they usually lie."""
    return [one.array for one in laid_out(arrays, "")]
