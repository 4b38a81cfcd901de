r"""Geodesics of diagonal networks and their domain (5.1): horizontal velocities are η_u/u = η_v/v = b.

The metrics on a pair of numbers are (5) inv :math:`η_u^2/u^2 + η_v^2/v^2` and (6) mix
:math:`η_u^2v^2 + η_v^2u^2`. In a = log|u|, c = log|v| inv is da² + dc², flat: geodesics are straight in (a, c), so
u e^{tη_u/u} for any velocity. mix is e^{2(a+c)}(da² + dc²); along horizontal curves, da = dc, it is
½e^{2(a+c)}(d(a + c))² = ½dβ², so β = uv moves on a straight line, β₀(1 + 2bt), and a and c gain the same:
(u√(1+2bt), v√(1+2bt)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.diagonal.geometry import Adaptive
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import Array, number, real_array


def geodesic(
    metric: Any,
    u: npt.ArrayLike,
    v: npt.ArrayLike,
    eta_u: npt.ArrayLike,
    eta_v: npt.ArrayLike,
    t: float = 1.0,
) -> tuple[Array, Array]:
    r"""Return the geodesic from (u, v) with initial velocity (η_u, η_v) at time t, in closed form.

    inv :math:`(u e^{tη_u/u}, v e^{tη_v/v})`; mix :math:`(u\sqrt{1+2bt}, v\sqrt{1+2bt})` for a horizontal velocity,
    between them :math:`(u(1+2sbt)^{1/2s}, v(1+2sbt)^{1/2s})`; adaptive, which knows no curvature, (u + tη_u, v + tη_v).
    Coordinates with u_i v_i = 0 do not move.

    Parameters
    ----------
    metric : "inv", "mix", "adaptive", or InvariantMetric(), MixedMetric() or InterpolatedMetric(s)
    u, v, eta_u, eta_v : array_like, shape ``(..., d)``
        They broadcast.
    t : float

    Returns
    -------
    tuple of ndarray
        The weights (u, v) at time t.

    Raises
    ------
    GeodesicIncompleteError
        mix, and between: a weight reaches zero at or before t.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.diagonal.geodesic("mix", [2.0], [3.0], [2.0], [3.0], t=1.5)
    (array([4.]), array([6.]))
    """
    (u, v, eta_u, eta_v), t = _arguments(u, v, eta_u, eta_v), number("t", t)
    free, space, eta = _pairs(metric, u, v, eta_u, eta_v)
    moved = space.point + t * eta if metric == Adaptive.name else space.geodesic(eta, t, "exact")
    moved_u, moved_v = (np.where(free, part[..., 0, 0], w) for part, w in zip(moved, (u, v), strict=True))
    return moved_u, moved_v


def norm(metric: Any, u: npt.ArrayLike, v: npt.ArrayLike, eta_u: npt.ArrayLike, eta_v: npt.ArrayLike) -> Array:
    r"""Return the length of a velocity, a number per network: inv and adaptive :math:`\sqrt{Σ η_u^2/u^2 + η_v^2/v^2}`,
    mix :math:`\sqrt{Σ η_u^2v^2 + η_v^2u^2}`. Coordinates with u_i v_i = 0 do not count.

    Parameters
    ----------
    metric : "inv", "mix", "adaptive", or InvariantMetric(), MixedMetric() or InterpolatedMetric(s)
    u, v, eta_u, eta_v : array_like, shape ``(..., d)``
        They broadcast.

    Returns
    -------
    ndarray, shape ``(...)``

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.diagonal.norm("mix", [2.0, 0.0], [3.0, 1.0], [1.0, 0.0], [2.0, 5.0])
    array(5.)
    """
    _, space, eta = _pairs(metric, *_arguments(u, v, eta_u, eta_v))
    return np.asarray(np.linalg.norm(space.norm(eta), axis=-1))


def horizontal_projection(
    u: npt.ArrayLike, v: npt.ArrayLike, eta_u: npt.ArrayLike, eta_v: npt.ArrayLike
) -> tuple[Array, Array]:
    """Return the horizontal part (ub, vb), b = ½(η_u/u + η_v/v), the same for both metrics.

    Parameters
    ----------
    u, v, eta_u, eta_v : array_like, shape ``(..., d)``
        They broadcast.

    Returns
    -------
    tuple of ndarray

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.diagonal.horizontal_projection([2.0], [3.0], [2.0], [0.0])
    (array([1.]), array([1.5]))
    """
    _, space, eta = _pairs("inv", *_arguments(u, v, eta_u, eta_v))
    along_u, along_v = (part[..., 0, 0] for part in space.horizontal_projection(eta))
    return along_u, along_v


def _arguments(*arrays: npt.ArrayLike) -> list[Array]:
    checked = [real_array(name, array) for name, array in zip(("u", "v", "eta_u", "eta_v"), arrays, strict=True)]
    try:
        checked = [np.asarray(array) for array in np.broadcast_arrays(*checked)]
    except ValueError:
        raise ValueError(
            f"eta_u, eta_v: expected shapes that broadcast with u and v, got {[array.shape for array in checked]}"
        ) from None
    if checked[0].ndim == 0:
        raise ValueError("u: expected at least one dimension, got a number")
    return checked


def _pairs(metric: Any, u: Array, v: Array, eta_u: Array, eta_v: Array) -> tuple[Array, Any, Pair]:
    """Return which coordinates move, and each coordinate as a pair with h = 1; those that do not move are at (1, 1), at
    rest.
    """
    free = u * v != 0.0
    point, eta = (
        Pair(*(np.where(free, w, rest)[..., None, None] for w in parts))
        for parts, rest in (((u, v), 1.0), ((eta_u, eta_v), 0.0))
    )
    on_pairs = pair_metric("inv" if metric == Adaptive.name else metric) if isinstance(metric, str) else metric
    return free, on_pairs.at(point), eta
