"""The memory layouts in which the arrays of a call can lie: strides, orders of axes, shared buffers.

A layout is a function of both parts of a pair, because errors come from what the parts share. Each array is a view of a
base. If a backend has arrays of its own kind, it gets views of that kind, if these exist: otherwise the conversion
would remove what the arrays share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LayoutView:
    """An array as a view of another one.

    Attributes
    ----------
    base : ndarray
        The array that owns the memory.
    view_of : callable
        Returns the view of a base of any kind.
    array : ndarray
        The view of `base`.
    """

    base: Array
    view_of: Callable[[Any], Any]
    array: Array


def _view(base: Array, view_of: Callable[[Any], Any] = lambda x: x) -> LayoutView:
    """Make a view of a base; by default the base itself."""
    return LayoutView(base, view_of, view_of(base))


AXIS_ORDERS: dict[str, tuple[str, Callable[[list[int]], list[int]]]] = {
    "": ("", lambda axes: axes),
    "columns": ("in Fortran order", lambda axes: [*axes[:-2], axes[-1], axes[-2]]),
    "heads": ("of heads side by side", lambda axes: [axes[-2], *axes[:-2], axes[-1]]),
    "blocks": ("with blocks innermost", lambda axes: [*axes[-2:], *axes[:-2]]),
}
"""Orders of the axes in memory, the last one contiguous: description and permutation."""
STRIDES = {
    "": ("", 1, 0), "part": ("that are parts of larger ones", 1, 1),
    "second": ("that are every second number of larger ones", 2, 0), "reversed": ("that are reversed", -1, 0),
}  # fmt: skip
"""Description, stride along every axis, and the number of entries of the larger array on each side."""


def _make_strided(order: str, steps: str) -> Callable[[Array], LayoutView]:
    """Return a function that lays out an array with this order of axes and strides, in an array whose other entries are
    NaN.
    """

    def apply(x: Array) -> LayoutView:
        axes, (_, step, pad) = AXIS_ORDERS[order][1](list(range(x.ndim))), STRIDES[steps]
        larger = [abs(step) * x.shape[i] + 2 * pad for i in axes]
        ends = {1: slice(pad, -pad or None), 2: slice(None, None, 2), -1: slice(None, None, -1)}
        cut, back = (ends[step],) * x.ndim, [axes.index(i) for i in range(x.ndim)]

        def view_of(base: Any) -> Any:
            part = base[cut]
            return part.permute(*back) if hasattr(part, "permute") else part.transpose(back)

        base = np.full(larger, np.nan, dtype=x.dtype)
        view_of(base)[...] = x
        return _view(base, view_of)

    return apply


def _make_read_only(x: Array) -> LayoutView:
    """Copy an array, and make the copy read-only."""
    x = np.array(x)
    x.flags.writeable = False
    return _view(x)


def _broadcast_blocks(x: Array) -> LayoutView:
    """Store equal blocks once, with stride 0; blocks that differ are copied."""
    first, shape = np.array(x[(0,) * (x.ndim - 2)]), x.shape
    if not np.array_equal(np.broadcast_to(first, shape), x):
        return _view(np.array(x))

    def view_of(base: Any) -> Any:
        return np.broadcast_to(base, shape) if isinstance(base, np.ndarray) else base.expand(shape)

    return _view(first, view_of)


def _pack(G: Array, H: Array) -> list[LayoutView]:
    """Store both parts in one buffer, as a weight matrix that holds several projections."""
    if G.shape == H.shape:
        both, h = np.concatenate([G, H], axis=-1), G.shape[-1]
        return [_view(both, lambda base: base[..., :h]), _view(both, lambda base: base[..., h:])]
    both, n = np.concatenate([G, H], axis=-2), G.shape[-2]
    return [_view(both, lambda base: base[..., :n, :]), _view(both, lambda base: base[..., n:, :])]


def _alias(G: Array, H: Array) -> list[LayoutView]:
    """Store the last rows of one part and the first rows of the other, if they are equal, in the same memory."""
    n, m = G.shape[-2], H.shape[-2]
    shared = next((k for k in range(min(n, m), 0, -1) if np.array_equal(G[..., n - k :, :], H[..., :k, :])), 0)
    both = np.concatenate([G, H[..., shared:, :]], axis=-2)
    return [_view(both, lambda base: base[..., :n, :]), _view(both, lambda base: base[..., n - shared :, :])]


def _each(change: Callable[[Array], LayoutView], is_selected: Callable[[int, int, int], bool] = lambda *_: True) -> Any:
    """Return the layout that applies a function to the selected arrays of a pair, and copies the others.

    The selection depends on the index of the pair, the number of pairs, and the index of the part.
    """
    return lambda pair, i, count: [
        change(x) if is_selected(i, count, part) else _view(np.array(x)) for part, x in enumerate(pair)
    ]


_PLAIN = _each(lambda x: _view(np.array(x)))
_IN_COLUMNS = _make_strided("columns", "")
Layout = Callable[[Sequence[Array], int, int], list[LayoutView]]
"""A function of a pair, its index among the pairs of a call, and their number."""
LAYOUTS: dict[str, tuple[str, Layout]] = {
    "": ("", _PLAIN),
    **{f"{order}-{steps}": (" ".join(filter(None, ("with arrays", AXIS_ORDERS[order][0], STRIDES[steps][0]))),
                            _each(_make_strided(order, steps)))
       for order in AXIS_ORDERS for steps in STRIDES if (order or steps) and (order in ("", "heads") or not steps)},
    "vectors": ("with vectors in Fortran order", _each(_IN_COLUMNS, lambda i, count, part: i > 0)),
    "last": ("with the last vector in Fortran order", _each(_IN_COLUMNS, lambda i, count, part: i == count - 1)),
    "H": ("with H parts in Fortran order", _each(_IN_COLUMNS, lambda i, count, part: part == 1)),
    "read-only": ("with read-only arrays", _each(_make_read_only)),
    "fused": ("with both parts in one buffer", lambda pair, i, count: _pack(*pair)),
    "expanded": ("with equal blocks as one, with stride 0", _each(_broadcast_blocks)),
    "overlapping": ("with overlapping factors",
                    lambda pair, i, count: _alias(*pair) if i == 0 else _PLAIN(pair, i, count)),
    "reused": ("with arrays that an earlier call had with other contents", _PLAIN),
}  # fmt: skip
"""Description and function of every layout."""


def apply_layout(arrays: Sequence[Array], layout: str) -> list[LayoutView]:
    """Copy the arrays of a call, G and H parts in turn, into a memory layout; a pair that is given twice stays one
    pair.

    Examples
    --------
    >>> G, H = apply_layout([np.ones((2, 1)), np.zeros((3, 1))], "fused")
    >>> G.base is H.base, G.array.shape, H.array.shape
    (True, (2, 1), (3, 1))
    """
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    views: dict[tuple[int, ...], list[LayoutView]] = {}
    for i, pair in enumerate(pairs):
        key = tuple(map(id, pair))
        if key not in views:
            views[key] = LAYOUTS[layout][1](pair, i, len(pairs))
    return [x for pair in pairs for x in views[tuple(map(id, pair))]]


def copies(arrays: Sequence[Array]) -> list[Array]:
    """Copy arrays into the default layout."""
    return [view.array for view in apply_layout(arrays, "")]
