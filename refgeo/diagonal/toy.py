r"""The scalar toy model (App. D): :math:`L(G, H) = \sum_k (G H x_k - y_k)^2` of two numbers.

With P = GH, a = Σx², b = Σxy and c = Σy² it is aP² − 2bP + c, a convex quadratic in the one number that the quotient
keeps. A horizontal geodesic of length t moves P to P e^{√2t} (inv), P + √2 sgn(P) t (mix, until P reaches zero), and
the two weights of adaptive sharpness to P(1 + t/√2)² (see `refgeo.diagonal.geometry`): monotone in t, so that the
maximum over |t| ≤ ρ is at one of the two ends. Functions take arrays of G and H, entry by entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.diagonal.geometry import SQRT2, geometry_of
from refgeo.support.arguments import Array, radii_of, real_array


def _data(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array]:
    x, y = np.atleast_1d(real_array("x", x)), np.atleast_1d(real_array("y", y))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"y: expected one number for each x, shape {x.shape}, got {y.shape}")
    return x, y


def _coefficients(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """The numbers a and b."""
    x, y = _data(x, y)
    return float(x @ x), float(x @ y)


def _weights(G: npt.ArrayLike, H: npt.ArrayLike) -> tuple[Array, Array]:
    G, H = real_array("G", G), real_array("H", H)
    try:
        broadcast = np.broadcast_arrays(G, H)
    except ValueError:
        raise ValueError(f"H: expected a shape that broadcasts with G {G.shape}, got {H.shape}") from None
    return np.asarray(broadcast[0]), np.asarray(broadcast[1])


def loss(G: npt.ArrayLike, H: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """Σ (G H x − y)².

    Examples
    --------
    >>> float(loss(2.0, 3.0, [1.0, 2.0], [5.0, 10.0]))
    5.0
    """
    G, H = _weights(G, H)
    x, y = _data(x, y)
    return np.asarray(np.sum(((G * H)[..., None] * x - y) ** 2, axis=-1))


def euclidean_gradient(G: npt.ArrayLike, H: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array]:
    """2(aGH − b)(H, G).

    Examples
    --------
    >>> [float(e) for e in euclidean_gradient(2.0, 3.0, 1.0, 5.0)]
    [6.0, 4.0]
    """
    G, H = _weights(G, H)
    a, b = _coefficients(x, y)
    slope = 2.0 * (a * G * H - b)
    return slope * H, slope * G


def riemannian_gradient(
    metric: Any, G: npt.ArrayLike, H: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike
) -> tuple[Array, Array]:
    """Of the Euclidean gradient e: inv (G²e_G, H²e_H), mix (e_G/H², e_H/G²); horizontal, g_G/G = g_H/H.

    For mix it is 0 where G or H is, which is not on the manifold.

    Examples
    --------
    >>> [float(g) for g in riemannian_gradient("inv", 2.0, 3.0, 1.0, 5.0)]
    [24.0, 36.0]
    """
    G, H = _weights(G, H)
    e_G, e_H = euclidean_gradient(G, H, x, y)
    if _name(metric) == "inv":
        return G * G * e_G, H * H * e_H
    free = (G * H) != 0.0
    zero = np.zeros(G.shape)
    return (
        np.divide(e_G, H * H, out=zero.copy(), where=free),
        np.divide(e_H, G * G, out=zero, where=free),
    )


def gradient_norm(metric: Any, G: npt.ArrayLike, H: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    r"""Length of the gradient: Euclidean :math:`2|aP - b|\sqrt{G^2 + H^2}`, inv :math:`2\sqrt2|P||aP - b|`, mix
    :math:`2\sqrt2|aP - b|`. The Riemannian ones depend on P = GH alone.

    Parameters
    ----------
    metric : "Euclidean", "inv" or "mix" (or an InvariantMetric or MixedMetric)
    G, H : array_like
    x, y : array_like
        One data point or a list of them.

    Examples
    --------
    >>> [round(float(gradient_norm("inv", 2.0 * s, 3.0 / s, 1.0, 5.0)), 12) for s in (1.0, 10.0)]
    [16.970562748477, 16.970562748477]
    """
    G, H = _weights(G, H)
    a, b = _coefficients(x, y)
    slope = np.abs(a * G * H - b)
    name = _name(metric, euclidean=True)
    if name == "Euclidean":
        return np.asarray(2.0 * slope * np.hypot(G, H))
    return np.asarray(2.0 * SQRT2 * slope * (np.abs(G * H) if name == "inv" else 1.0))


def hessian_trace(metric: Any, G: npt.ArrayLike, H: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    r"""Trace of the Hessian: Euclidean 2a(G² + H²), inv 4P(2aP − b), mix 4a.

    The Riemannian ones are of the Hessian on the quotient, which has one dimension: the second derivative of the loss
    along a horizontal geodesic of unit speed. At the minimum aP = b inv gives 4aP².

    Examples
    --------
    >>> [float(hessian_trace("inv", G, H, 1.0, 6.0)) for G, H in ((2.0, 3.0), (20.0, 0.3))]
    [144.0, 144.0]
    """
    G, H = _weights(G, H)
    a, b = _coefficients(x, y)
    name = _name(metric, euclidean=True)
    P = G * H
    if name == "Euclidean":
        return np.asarray(2.0 * a * (G * G + H * H))
    return np.asarray(4.0 * P * (2.0 * a * P - b) if name == "inv" else np.full_like(P, 4.0 * a))


def euclidean_hessian(G: float, H: float, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """The 2×2 matrix 2[[aH², 2aP − b], [2aP − b, aG²]]; at the minimum of rank one, λ_max = 2a(G² + H²).

    Examples
    --------
    >>> euclidean_hessian(2.0, 3.0, 1.0, 6.0).tolist()
    [[18.0, 12.0], [12.0, 8.0]]
    """
    G, H = (float(w) for w in _weights(G, H))
    a, b = _coefficients(x, y)
    mixed = 2.0 * (2.0 * a * G * H - b)
    return np.array([[2.0 * a * H * H, mixed], [mixed, 2.0 * a * G * G]])


def worst_case(
    metric: Any, G: npt.ArrayLike, H: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike, rho: npt.ArrayLike
) -> Array:
    r"""The worst-case sharpness, exactly: the larger increase of the two ends of the geodesic (21).

    For inv, with s = e^{±√2ρ}, :math:`aP^2(s^2 - 1) - 2bP(s - 1)`. For one data point, y₀ = GHx and small ρ that is
    :math:`2\sqrt2 ρ|y_0||y_0 - y| + 2ρ^2 y_0(2y_0 - y)`, at the minimum 2ρ²y₀².

    Parameters
    ----------
    metric : "inv", "mix" or "adaptive" (or an InvariantMetric or MixedMetric)
    G, H : array_like
        Where one of them is zero nothing moves.
    x, y : array_like
        One data point or a list of them.
    rho : array_like
        Broadcasts with G and H.

    Returns
    -------
    ndarray
        For mix, where the ball reaches beyond P = 0, the supremum, which no geodesic attains.

    Examples
    --------
    >>> round(float(worst_case("inv", 2.0, 3.0, 1.0, 6.0, 0.01)), 6)
    0.007303
    """
    geometry = geometry_of(metric)
    G, H = _weights(G, H)
    a, b = _coefficients(x, y)
    P = np.asarray(G * H)
    radius = radii_of(rho, P.shape)
    start = np.broadcast_to(P, radius.shape)
    low = np.maximum(-radius, geometry.end(start))
    with np.errstate(over="ignore"):
        ends = [np.where(start != 0.0, geometry.shift(start, t), 0.0) for t in (low, radius)]
        increases = [w * (a * (2.0 * start + w) - 2.0 * b) for w in ends]
    return np.asarray(np.maximum(np.maximum(*increases), 0.0))


def _name(metric: Any, euclidean: bool = False) -> str:
    if euclidean and isinstance(metric, str) and metric == "Euclidean":
        return metric
    name = geometry_of(metric).name
    if name not in ("inv", "mix"):
        names = '"Euclidean", "inv" or "mix"' if euclidean else '"inv" or "mix"'
        raise ValueError(f"metric: expected {names}, got {metric!r}")
    return name
