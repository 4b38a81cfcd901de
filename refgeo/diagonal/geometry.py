r"""The geometries of a diagonal network in one form: what a coordinate of length t does to β = u ⊙ v.

A loss that depends on (u, v) through β only cares about how far β can move for its price. With e = β/β₀ − 1:

* inv: a horizontal velocity η_u/u = η_v/v = b has ‖η‖² = 2b² and moves β as β₀e^{2b}, so with t = √2 b
  :math:`β = β_0 e^{\sqrt2 t}`.
* mix: ‖η‖² = 2(β₀b)² and the geodesic (u√(1+2b), v√(1+2b)) moves β as β₀(1 + 2b), so with t = √2|β₀|b
  :math:`β = β_0 + \sqrt2\,\mathrm{sgn}(β_0)\, t`, as long as 1 + 2b > 0, that is t > −|β₀|/√2: there β reaches zero and
  the manifold ends.
* between them, :math:`S^{-1} \#_s T`: the same velocity has ‖η‖² = 2b²|β|²ˢ and dβ = 2βb, so that |β|ˢ moves on a
  straight line, :math:`|β|^s = |β_0|^s + \sqrt2\,s\,t`, as long as that is positive.
* adaptive: weights u(1 + a), v(1 + c) at the price a² + c² give 1 + e = (1 + a)(1 + c). The cheapest way to a product
  P = xy is the point of the hyperbola nearest to (1, 1): with s = x + y the price is s² − 2P − 2s + 2. Where x = y,
  that is 2(√P − 1)²; the stationary s = 1 is real for P ≤ ¼ and then costs less, 1 − 2P. So with t² = a² + c²,
  :math:`β = β_0(1 + t/\sqrt2)^2` for t ≥ −1/√2, and :math:`β_0(1 - t^2)/2` below, which passes zero at t = −1.

In all of them the ball of radius ρ is {‖t‖₂ ≤ ρ}, and the sharpness is the maximum over it of a convex quadratic in β.
Coordinates with β₀ = 0 do not move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo.geometry.pair_metrics import InterpolatedMetric, pair_metric
from refgeo.support.arguments import Array

SQRT2 = float(np.sqrt(2.0))
_TURN = -1.0 / SQRT2
"""Where the cheapest way to a product ceases to treat both weights alike."""
_WIDE, _HALVINGS = 690.0, 64
"""log z is sought between ±690, where doubles end, to a gap of 2⁻⁶⁴ of that."""


def on_sphere(t: Array, rho: Array) -> Array:
    """Return the point of the sphere ‖t‖ = ρ in the direction of t; 0 stays.

    Examples
    --------
    >>> on_sphere(np.array([3.0, 4.0]), np.asarray(10.0))
    array([6., 8.])
    """
    length = np.linalg.norm(t, axis=-1)
    return np.asarray(t * (rho / np.where(length > 0.0, length, 1.0))[..., None])


@dataclass(frozen=True)
class Price:
    """φ, φ′ and φ″ on the main branch, and the largest ρ for which that is all of {|t| ≤ ρ} and φ‴ < 0 there."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    bend: Callable[[Array], Array]
    longest: Array


class Geometry(ABC):
    """How β moves with t; every function works entry by entry.

    Attributes
    ----------
    name : str
    s : float
        A velocity (ub, vc) costs |β₀|ˢ√(b² + c²).
    is_linear : bool
        Whether β is linear in t.
    """

    name: str
    s = 0.0
    is_linear = False

    @abstractmethod
    def shift(self, beta: Array, t: Array) -> Array:
        """Return W(t) = β − β₀."""

    @abstractmethod
    def slope(self, beta: Array, t: Array) -> Array:
        """Return W′(t)."""

    @abstractmethod
    def curvature(self, beta: Array, t: Array) -> Array:
        """Return W″(t)."""

    @abstractmethod
    def concave_until(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the t below which (on the main branch) 2gW + DW² − λt² is concave; beyond, it is convex. D ≥ 0, λ
        > 0.
        """

    def concave_from(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the t where the concave part begins; below it, 2gW + DW² − λt² is monotone, convex, or convex in
        t².
        """
        return self.end(beta)

    @abstractmethod
    def velocity(self, u: Array, v: Array, t: Array) -> tuple[Array, Array]:
        """Return the tangent vector (η_u, η_v) of coordinates t."""

    @abstractmethod
    def price(self, beta: Array) -> Price:
        """Return the cost of a move from β₀ to β₀(1 + e)."""

    def end(self, beta: Array) -> Array:
        """Return where the manifold ends."""
        return np.full_like(beta, -np.inf)

    def lowest(self, beta: Array) -> Array:
        """Return a hair above the end, where geodesics still exist."""
        return self.end(beta) * (1.0 - 2.0**-40)


def _grow(beta: Array, t: Array) -> Array:
    """Return β₀e^{√2t}, at most 1e250 in size: where its square overflows anyway, it is still a number times zero."""
    x = SQRT2 * t
    grown = beta * np.exp(np.minimum(x, 500.0))
    if np.any(x > 500.0):
        grown = np.clip(grown * np.exp(np.clip(x - 500.0, 0.0, 700.0)), -1e250, 1e250)
    return np.asarray(grown)


class Invariant(Geometry):
    """β₀e^{√2t}."""

    name = "inv"

    def shift(self, beta: Array, t: Array) -> Array:
        """Return W(t) = β − β₀."""
        return np.where(t < 1.0, beta * np.expm1(SQRT2 * np.minimum(t, 1.0)), _grow(beta, t) - beta)

    def slope(self, beta: Array, t: Array) -> Array:
        """Return W′(t)."""
        return SQRT2 * _grow(beta, t)

    def curvature(self, beta: Array, t: Array) -> Array:
        """Return W″(t)."""
        return 2.0 * _grow(beta, t)

    def concave_until(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the t of the z = e^{√2t} with 4kz² + 2(h − k)z = λ, where h = gβ₀ and k = Dβ₀²."""
        h, k = g * beta, D * beta**2
        root = np.hypot(k - h, 2.0 * np.sqrt(k * multiplier))
        with np.errstate(divide="ignore"):
            # the same root of the quadratic twice; neither subtracts equal numbers
            z = np.where(k > h, (k - h + root) / (4.0 * k), multiplier / np.maximum(h - k + root, 0.0))
            return np.asarray(np.log(z) / SQRT2)

    def velocity(self, u: Array, v: Array, t: Array) -> tuple[Array, Array]:
        """Return the tangent vector (η_u, η_v) of coordinates t."""
        return u * (t / SQRT2), v * (t / SQRT2)

    def price(self, beta: Array) -> Price:
        """Return ½ log²(1 + e)."""
        return Price(
            lambda e: 0.5 * np.log1p(e) ** 2,
            lambda e: np.log1p(e) / (1.0 + e),
            lambda e: (1.0 - np.log1p(e)) / (1.0 + e) ** 2,
            np.asarray(1.5 / SQRT2),  # φ‴ = (2 log(1 + e) − 3) / (1 + e)³
        )


class Interpolated(Geometry):
    """sgn(β₀) (|β₀|ˢ + √2 s t)^{1/s}, 0 < s < 1, while that is not 0; in terms of z = 1 + √2 s t/|β₀|ˢ, β₀z^{1/s}."""

    def __init__(self, s: float) -> None:
        self.s = s
        self.name = f"s={s:g}"

    def _relative_growth(self, beta: Array, t: Array) -> Array:
        """Return the difference z − 1."""
        scale = np.abs(beta) ** self.s
        shape = np.broadcast_shapes(t.shape, scale.shape)
        grown = np.divide(SQRT2 * self.s * t, scale, out=np.zeros(shape), where=scale > 0.0)
        return np.asarray(np.maximum(grown, -1.0))

    def _power(self, beta: Array, t: Array, power: float) -> Array:
        """Return a power of z."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray((1.0 + self._relative_growth(beta, t)) ** power)

    def shift(self, beta: Array, t: Array) -> Array:
        """Return W(t) = β − β₀."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(beta * np.expm1(np.log1p(self._relative_growth(beta, t)) / self.s))

    def slope(self, beta: Array, t: Array) -> Array:
        """Return W′(t)."""
        size = np.sign(beta) * np.abs(beta) ** (1.0 - self.s)
        return np.asarray(SQRT2 * size * self._power(beta, t, 1.0 / self.s - 1.0))

    def curvature(self, beta: Array, t: Array) -> Array:
        """Return W″(t)."""
        size = np.sign(beta) * np.abs(np.where(beta != 0.0, beta, 1.0)) ** (1.0 - 2.0 * self.s)
        return np.asarray(2.0 * (1.0 - self.s) * size * self._power(beta, t, 1.0 / self.s - 2.0))

    def concave_until(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the t of the last z where a z^{2q−2} + b z^{q−2} = λ|β₀|²ˢ/2s², with q = 1/s; see `concave_from`."""
        return self._crossing(beta, g, D, multiplier, first=False)

    def concave_from(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the t of the first z where half the second derivative in z, a z^{2q−2} + b z^{q−2} less a constant,
        is 0, with a = q(2q−1)Dβ₀², b = q(q−1)(gβ₀ − Dβ₀²): it falls, where it falls at all, before it rises.
        """
        return self._crossing(beta, g, D, multiplier, first=True)

    def _crossing(self, beta: Array, g: Array, D: Array, multiplier: Array, first: bool) -> Array:
        q = 1.0 / self.s
        a, b = q * (2.0 * q - 1.0) * D * beta**2, q * (q - 1.0) * (g * beta - D * beta**2)
        level = multiplier * np.abs(beta) ** (2.0 * self.s) / self.s**2 / 2.0
        a, b, level = np.broadcast_arrays(a, b, level)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # the least value is where a(2q−2) z^q = b(2−q), if that is positive, and else at z = 0
            lowest = np.log(np.where(a > 0.0, b * (2.0 - q) / (a * (2.0 * q - 2.0)), np.inf)) / q
            lowest = np.where(b * (2.0 - q) > 0.0, np.clip(lowest, -_WIDE, _WIDE), -_WIDE)

            def above(log_z: Array) -> Array:
                return np.asarray(a * np.exp((2.0 * q - 2.0) * log_z) + b * np.exp((q - 2.0) * log_z) > level)

            low, high = (np.full_like(lowest, -_WIDE), lowest) if first else (lowest, np.full_like(lowest, _WIDE))
            never = above(lowest)
            for _ in range(_HALVINGS):
                middle = 0.5 * (low + high)
                beyond = above(middle) == (not first)
                low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
            z = np.exp(np.where(never, lowest, high if first else low))
            z = np.where(low <= -_WIDE * (1.0 - 1e-9), 0.0, z) if first else z
            return np.asarray((z - 1.0) * np.abs(beta) ** self.s / (SQRT2 * self.s))

    def velocity(self, u: Array, v: Array, t: Array) -> tuple[Array, Array]:
        """Return the tangent vector (η_u, η_v) of coordinates t."""
        size = SQRT2 * np.abs(u * v) ** self.s
        b = np.divide(t, size, out=np.zeros(np.broadcast_shapes(t.shape, size.shape)), where=size > 0.0)
        return u * b, v * b

    def end(self, beta: Array) -> Array:
        """Return −|β₀|ˢ/(√2 s)."""
        return np.abs(beta) ** self.s / (-SQRT2 * self.s)

    def price(self, beta: Array) -> Price:
        """Return ½(|β₀|ˢ((1 + e)ˢ − 1)/s)²."""
        s = self.s
        scale = np.abs(beta) ** s / s
        return Price(
            lambda e: 0.5 * (scale * np.expm1(s * np.log1p(e))) ** 2,
            lambda e: s * scale**2 * np.expm1(s * np.log1p(e)) * (1.0 + e) ** (s - 1.0),
            lambda e: s * scale**2 * (1.0 + e) ** (s - 2.0) * ((2.0 * s - 1.0) * (1.0 + e) ** s + 1.0 - s),
            # φ‴ < 0 while 2(1 − 2s)(1 + e)ˢ < 2 − s
            np.min(1.5 * s * scale, axis=-1) / (SQRT2 * (1.0 - 2.0 * s)) if s < 0.5 else np.asarray(np.inf),
        )


class Mixed(Interpolated):
    """s = 1: β₀ + √2 sgn(β₀) t, while it keeps its sign."""

    is_linear = True

    def __init__(self) -> None:
        super().__init__(1.0)
        self.name = "mix"

    def shift(self, beta: Array, t: Array) -> Array:
        """Return W(t) = β − β₀."""
        return SQRT2 * np.sign(beta) * t

    def slope(self, beta: Array, t: Array) -> Array:
        """Return W′(t)."""
        return SQRT2 * np.sign(beta) * np.ones_like(t)

    def curvature(self, beta: Array, t: Array) -> Array:
        """Return W″(t)."""
        return np.zeros(np.broadcast_shapes(beta.shape, t.shape))

    def concave_until(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return ∞ or −∞, because 2gW + 2Dt² − λt² is concave everywhere or nowhere."""
        return np.where(multiplier > 2.0 * D, np.inf, -np.inf)

    def concave_from(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the end of the manifold."""
        return self.end(beta)


class Adaptive(Geometry):
    """β₀(1 + t/√2)², and β₀(1 − t²)/2 below t = −1/√2."""

    name = "adaptive"

    def shift(self, beta: Array, t: Array) -> Array:
        """Return W(t) = β − β₀."""
        return beta * np.where(t >= _TURN, t * (SQRT2 + 0.5 * t), -0.5 * (1.0 + t * t))

    def slope(self, beta: Array, t: Array) -> Array:
        """Return W′(t)."""
        return beta * np.where(t >= _TURN, SQRT2 + t, -t)

    def curvature(self, beta: Array, t: Array) -> Array:
        """Return W″(t)."""
        return beta * np.where(t >= _TURN, 1.0, -1.0)

    def concave_until(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return the t where x² = (k − h + λ)/(3k), with x = 1 + t/√2, h = gβ₀ and k = Dβ₀²."""
        h, k = g * beta, D * beta**2
        with np.errstate(divide="ignore", invalid="ignore"):
            square = np.where(k > 0.0, (k - h + multiplier) / (3.0 * k), np.where(h < multiplier, np.inf, 0.0))
        return np.asarray(SQRT2 * (np.sqrt(np.maximum(square, 0.0)) - 1.0))

    def velocity(self, u: Array, v: Array, t: Array) -> tuple[Array, Array]:
        """Return (η_u, η_v): alike for both weights on the main branch; beyond, x + y = 1 and u has the larger part."""
        half_difference = 0.5 * np.sqrt(np.maximum(2.0 * t * t - 1.0, 0.0))
        alike = t >= _TURN
        return (
            u * np.where(alike, t / SQRT2, half_difference - 0.5),
            v * np.where(alike, t / SQRT2, -half_difference - 0.5),
        )

    def concave_from(self, beta: Array, g: Array, D: Array, multiplier: Array) -> Array:
        """Return −1/√2: below it W is linear in t², and the term is a convex function of t²."""
        return np.full_like(beta, _TURN)

    def price(self, beta: Array) -> Price:
        """Return 2(√(1 + e) − 1)²."""
        return Price(
            lambda e: 2.0 * (e / (np.sqrt(1.0 + e) + 1.0)) ** 2,  # √(1+e) − 1 without cancellation
            lambda e: 2.0 * e / (np.sqrt(1.0 + e) * (np.sqrt(1.0 + e) + 1.0)),
            lambda e: (1.0 + e) ** -1.5,
            np.asarray(1.0 / SQRT2),
        )


GEOMETRIES: dict[str, Geometry] = {geometry.name: geometry for geometry in (Invariant(), Mixed(), Adaptive())}


_OTHERS = f', or "{Adaptive.name}"'


def geometry_of(metric: Any) -> Geometry:
    """Return the geometry that a metric or its name stands for.

    Examples
    --------
    >>> geometry_of("mix").name, geometry_of("s=0.5").name, geometry_of(InterpolatedMetric(0.5)).name
    ('mix', 's=0.5', 's=0.5')
    """
    if isinstance(metric, InterpolatedMetric):
        if metric.relaxation != 0.0:
            raise ValueError(f"metric: expected no relaxation, got {metric}; refgeo.worst_case_sharpness allows it")
        return GEOMETRIES[metric.name] if metric.s in (0.0, 1.0) else Interpolated(metric.s)
    if isinstance(metric, str):
        return GEOMETRIES[metric] if metric in GEOMETRIES else Interpolated(pair_metric(metric, others=_OTHERS).s)
    raise ValueError(
        'metric: expected a name such as "inv", or an InvariantMetric, MixedMetric or InterpolatedMetric, got '
        f"{metric!r}"
    )
