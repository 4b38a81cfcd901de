"""Hypothesis strategies for points, tangent vectors and group elements: for property tests of your own code.

What is drawn shrinks to something a person can read: small shapes, condition number and scale 1, factors that are
columns of the identity, entries that are eighths of small integers. Needs Hypothesis,
which the extra ``test`` installs.

Examples
--------
A projection is idempotent:

>>> from hypothesis import HealthCheck, given, settings, strategies as st
>>> import numpy as np, refgeo as rg
>>> @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
... @given(st.data())
... def idempotent(data):
...     point = data.draw(rg.strategies.pairs(condition=100.0))
...     v = data.draw(rg.strategies.tangent_vectors(point))
...     space = rg.InvariantMetric().at(point)
...     once = space.horizontal_projection(v)
...     assert space.norm(space.horizontal_projection(once) - once).max() <= 1e-10 * space.norm(v).max()
>>> idempotent()
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refgeo.geometry.pair import Pair, as_pair
from refgeo.geometry.pair_metrics import InvariantMetric
from refgeo.support.arguments import Array, integer, number
from refgeo.support.extras import require

require("refgeo.strategies", "strategies", "hypothesis")
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402

__all__ = ["covectors", "group_elements", "pairs", "shapes", "tangent_vectors"]

Strategy = st.SearchStrategy
_MANY = 64
"""Entries that are not drawn one by one."""
Range = float | tuple[float, float]
Shape = tuple[tuple[int, ...], int, int, int]


def shapes(max_h: int = 4, max_extra: int = 4, max_batch: int = 2) -> Strategy[Shape]:
    """Return leading dimensions, n, m and h, with n, m ≥ h.

    Parameters
    ----------
    max_h : int
        The largest number of columns.
    max_extra : int
        The largest n − h and m − h.
    max_batch : int
        The largest number of leading dimensions, each of at most 3.

    Returns
    -------
    strategy of ``(batch, n, m, h)``; shrinks to ``((), 1, 1, 1)``

    Examples
    --------
    >>> from hypothesis import find
    >>> find(shapes(), lambda shape: shape[1] != shape[2] and shape[3] > 1)
    ((), 2, 3, 2)
    """
    integer("max_h", max_h, least=1)
    integer("max_extra", max_extra, least=0)
    integer("max_batch", max_batch, least=0)

    def shape(h: int, extra_n: int, extra_m: int, batch: list[int]) -> Shape:
        return tuple(batch), h + extra_n, h + extra_m, h

    extra = st.integers(0, max_extra)
    batch = st.lists(st.integers(1, 3), max_size=max_batch)
    return st.builds(shape, st.integers(1, max_h), extra, extra, batch)


@st.composite
def pairs(draw: Any, shape: Shape | None = None, *, condition: Range = (1.0, 10.0), scale: Range = 1.0) -> Pair:
    """Draw points: both factors have full column rank, and a given condition number and scale.

    Parameters
    ----------
    shape : (batch, n, m, h), optional
        See `shapes`, which draws it by default.
    condition : float or (low, high)
        The condition number of both factors (of no consequence for h = 1), or a range for each.
    scale : float or (low, high)
        The largest singular value of both factors, or a range for each, drawn in powers of ten.

    Returns
    -------
    strategy of Pair

    Examples
    --------
    >>> from hypothesis import find
    >>> point = find(pairs(((), 3, 2, 2), condition=4.0), lambda point: True)
    >>> print(point.G)
    [[1.   0.  ]
     [0.   0.25]
     [0.   0.  ]]
    """
    try:
        leading, *sizes = draw(shapes()) if shape is None else shape
        batch = tuple(integer("shape", k) for k in leading)
        n, m, h = (integer("shape", k) for k in sizes)
    except (TypeError, ValueError):
        raise ValueError(f"shape: expected (batch, n, m, h), integers and a tuple of integers, got {shape!r}") from None
    if not min(n, m) >= h >= 1:
        raise ValueError(f"shape: expected n, m >= h >= 1, as the factors have full column rank, got {shape!r}")
    return Pair(*(draw(_factors(batch, rows, h, condition, scale)) for rows in (n, m)))


@st.composite
def tangent_vectors(draw: Any, point: Pair, *, horizontal: bool = False) -> Pair:
    """Draw tangent vectors at `point`, never zero in a block, with entries of the size of the point's.

    Parameters
    ----------
    point : Pair
    horizontal : bool
        Whether to project them to the horizontal space of the inv metric.

    Returns
    -------
    strategy of Pair

    Examples
    --------
    >>> from hypothesis import find
    >>> find(tangent_vectors(Pair([[2.0]], [[3.0]])), lambda v: v.G > 1.0)
    Pair(G (1, 1), H (1, 1))
    """
    point = as_pair("point", point)
    sizes = [np.abs(factor).max(axis=(-2, -1), keepdims=True) for factor in point]
    v: Pair = draw(_nonzero(point, sizes))
    if not horizontal:
        return v
    space = InvariantMetric().at(point)
    part = space.horizontal_projection(v)
    # a vertical vector has no horizontal part; the point itself is always horizontal in part
    fallback = space.horizontal_projection(Pair(point.G, point.H))
    vertical = (space.norm(part) < 1e-6 * space.norm(v))[..., None, None]
    return Pair(*(np.where(vertical, y, x) for x, y in zip(part, fallback, strict=True)))


def covectors(point: Pair) -> Strategy[Pair]:
    """Return euclidean gradients at `point`, never zero in a block, with entries of the reciprocal size of the point's.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(covectors(Pair([[2.0]], [[4.0]])), lambda e: e.H > 0).H.item()
    0.03125
    """
    point = as_pair("point", point)
    return _nonzero(point, [1.0 / np.abs(factor).max(axis=(-2, -1), keepdims=True) for factor in point])


@st.composite
def group_elements(draw: Any, h: int, *, condition: Range = (1.0, 10.0), scale: Range = 1.0) -> Array:
    """Return elements of GL(h); they shrink to the identity.

    Parameters
    ----------
    h : int
    condition : float or (low, high)
    scale : float or (low, high)
        The largest singular value.

    Returns
    -------
    strategy of ndarray, shape (h, h)

    Examples
    --------
    >>> from hypothesis import find
    >>> find(group_elements(2), lambda A: True)
    array([[1., 0.],
           [0., 1.]])
    """
    h = integer("h", h)
    return np.asarray(draw(_factors((), h, h, condition, scale)))


@st.composite
def _factors(draw: Any, batch: tuple[int, ...], rows: int, h: int, condition: Range, scale: Range) -> Array:
    spread = draw(_powers("condition", condition, 1.0))
    values = draw(_powers("scale", scale, np.finfo(np.float64).tiny)) * spread ** -np.linspace(0.0, 1.0, h)
    left = _orthonormal(draw(_eighths((*batch, rows, h))))
    right = _orthonormal(draw(_eighths((*batch, h, h))))
    return np.asarray((left * values) @ np.swapaxes(right, -1, -2))


def _powers(name: str, bounds: Range, least: float) -> Strategy[float]:
    """Draw a number, or one between two, of which the one nearest to 1 is the simplest."""
    ends = bounds if isinstance(bounds, (tuple, list)) else (bounds, bounds)
    try:
        low, high = (number(name, end, least=least) for end in ends)
    except ValueError:
        low, high = 1.0, 0.0
    if low > high:
        raise ValueError(f"{name}: expected a finite number >= {least:g}, or (low, high) of these, got {bounds!r}")
    if low == high:
        return st.just(low)
    simplest = min(max(1.0, low), high)
    steps = 12  # of log(high/low), each way

    def power(k: int) -> float:
        end = high if k > 0 else low
        return float(simplest * (end / simplest) ** (abs(k) / steps))

    return st.integers(-steps if low < simplest else 0, steps if high > simplest else 0).map(power)


def _eighths(shape: tuple[int, ...]) -> Strategy[Array]:
    """Return small arrays entry by entry, and large ones, which Hypothesis would refuse to draw so, from a seed."""
    if math.prod(shape) > _MANY:
        seeds = st.integers(0, 2**32 - 1)
        return seeds.map(lambda seed: np.random.default_rng(seed).integers(-16, 17, shape) / 8.0 * bool(seed))
    return hnp.arrays(np.float64, shape, elements=st.integers(-16, 16).map(lambda k: k / 8.0), fill=st.nothing())


def _orthonormal(entries: Array) -> Array:
    """Return orthonormal columns; those of the identity for zeros, and never dependent (Householder)."""
    rows, h = entries.shape[-2:]
    return np.linalg.qr(entries + np.eye(rows, h))[0]


def _nonzero(point: Pair, sizes: list[Array]) -> Strategy[Pair]:
    def vector(G: Array, H: Array) -> Pair:
        zero = ~(np.any(G, axis=(-2, -1)) | np.any(H, axis=(-2, -1)))
        G = np.array(G)
        G[..., 0, 0] = np.where(zero, 1.0, G[..., 0, 0])
        return Pair(sizes[0] * G, sizes[1] * H)

    # a part that is zero is a special case which single entries would hardly ever make
    parts = (st.one_of(st.just(np.zeros(factor.shape)), _eighths(factor.shape)) for factor in point)
    return st.builds(vector, *parts)
