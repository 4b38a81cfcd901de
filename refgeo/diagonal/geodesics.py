r"""Geodesics of diagonal networks and their domain (5.1): horizontal velocities are η_u/u = η_v/v = b.

The metrics on a pair of numbers are (5) inv :math:`η_u^2/u^2 + η_v^2/v^2` and (6) mix
:math:`η_u^2v^2 + η_v^2u^2`. In a = log|u|, c = log|v| inv is da² + dc², flat: geodesics are straight in (a, c), so
u e^{tη_u/u} for any velocity. mix is e^{2(a+c)}(da² + dc²); along horizontal curves, da = dc, it is
½e^{2(a+c)}(d(a + c))² = ½dβ², so β = uv moves on a straight line, β₀(1 + 2bt), and a and c gain the same:
(u√(1+2bt), v√(1+2bt)).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.diagonal.geometry import geometry_of
from refgeo.support.arguments import Array, number, real_array
from refgeo.support.errors import GeodesicIncompleteError


def geodesic(
    metric: Any,
    u: npt.ArrayLike,
    v: npt.ArrayLike,
    eta_u: npt.ArrayLike,
    eta_v: npt.ArrayLike,
    t: float = 1.0,
) -> tuple[Array, Array]:
    r"""The geodesic from (u, v) with initial velocity (η_u, η_v) at time t, in closed form.

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
        mix: a weight reaches zero at or before t.
    ValueError
        mix: the velocity is not horizontal.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.diagonal.geodesic("mix", [2.0], [3.0], [2.0], [3.0], t=1.5)
    (array([4.]), array([6.]))
    """
    geometry = geometry_of(metric)
    u, v, eta_u, eta_v = _arguments(u, v, eta_u, eta_v)
    time = number("t", t)
    rate_u, rate_v = _rates(u, v, eta_u, eta_v)
    forward = math.copysign(1.0, time)
    ends = geometry.end_time(forward * rate_u, forward * rate_v)
    if np.any(abs(time) >= ends):
        block = tuple(int(i) for i in np.unravel_index(int(np.argmin(ends)), ends.shape))
        first = math.copysign(float(ends[block]), time)
        raise GeodesicIncompleteError(
            f"t: the geodesic{f' of network {block}' if block else ''} ends at t = {first:.6g}, where an entry of u ⊙ "
            f"v is 0, got t = {time:.6g}; take a shorter time or a smaller velocity",
            first,
            block,
        )
    return u * geometry.growth(time * rate_u), v * geometry.growth(time * rate_v)


def norm(metric: Any, u: npt.ArrayLike, v: npt.ArrayLike, eta_u: npt.ArrayLike, eta_v: npt.ArrayLike) -> Array:
    r"""The length of a velocity, a number per network: inv and adaptive :math:`\sqrt{Σ η_u^2/u^2 + η_v^2/v^2}`, mix
    :math:`\sqrt{Σ η_u^2v^2 + η_v^2u^2}`. Coordinates with u_i v_i = 0 do not count.

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
    geometry = geometry_of(metric)
    u, v, eta_u, eta_v = _arguments(u, v, eta_u, eta_v)
    rate_u, rate_v = _rates(u, v, eta_u, eta_v)
    return np.asarray(np.linalg.norm(np.hypot(rate_u, rate_v) * np.abs(u * v) ** geometry.s, axis=-1))


def horizontal_projection(
    u: npt.ArrayLike, v: npt.ArrayLike, eta_u: npt.ArrayLike, eta_v: npt.ArrayLike
) -> tuple[Array, Array]:
    """The horizontal part (ub, vb), b = ½(η_u/u + η_v/v), the same for both metrics.

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
    u, v, eta_u, eta_v = _arguments(u, v, eta_u, eta_v)
    rate_u, rate_v = _rates(u, v, eta_u, eta_v)
    b = 0.5 * (rate_u + rate_v)
    return u * b, v * b


def end_time(metric: Any, u: npt.ArrayLike, v: npt.ArrayLike, eta_u: npt.ArrayLike, eta_v: npt.ArrayLike) -> Array:
    """When a geodesic leaves the manifold: mix at the first 1 + 2b_i t = 0 with t > 0, inv and adaptive never.

    Parameters
    ----------
    metric, u, v
        As in `geodesic`.
    eta_u, eta_v : array_like, shape ``(..., d)``
        A horizontal velocity, b = η_u/u = η_v/v.

    Returns
    -------
    ndarray, shape ``(...)``
        Infinite where it never does.

    Raises
    ------
    ValueError
        The velocity is not horizontal, for mix or a metric between inv and mix.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.diagonal.end_time("mix", [2.0, 1.0], [3.0, 1.0], [-2.0, 1.0], [-3.0, 1.0])
    array(0.5)
    """
    geometry = geometry_of(metric)
    u, v, eta_u, eta_v = _arguments(u, v, eta_u, eta_v)
    return geometry.end_time(*_rates(u, v, eta_u, eta_v))


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


def _rates(u: Array, v: Array, eta_u: Array, eta_v: Array) -> tuple[Array, Array]:
    """η_u/u and η_v/v, 0 where u v is."""
    free = u * v != 0.0
    zero = np.zeros(u.shape)
    return np.divide(eta_u, u, out=zero.copy(), where=free), np.divide(eta_v, v, out=zero, where=free)
