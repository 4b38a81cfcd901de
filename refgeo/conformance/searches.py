r"""Whole searches on trial: a sharpness routine against proved maxima.

The problems are diagonal networks :math:`‖X(u ⊙ v) - y‖^2` with orthogonal columns, :math:`X^\top X = D`, where the
worst case is known between two bounds that meet (`refgeo.diagonal`), for the exact geodesics of inv and mix and for
adaptive sharpness; for geodesics of order 1 and 2 it is found here: with b = η_u/u = η_v/v the objective is separable,

.. math:: \max_{‖b‖ ≤ ρ/c} \sum_i f_i(b_i), \qquad f_i(b) = 2 g_i β_i (p(b) - 1) + D_i β_i^2 (p(b) - 1)^2,

p(b) = (1 + b + s b²/2)² with s = 0 (order 1), +1 (order 2, inv), −1 (order 2, mix), and Lagrange's dual
:math:`λ R^2 + \sum_i \max_b f_i(b) - λ c_i^2 b^2` bounds it from above for every λ ≥ 0: maxima of polynomials.

A routine gets the coordinates as blocks of one number (G of shape (d, 1, 1), H alike). It is WRONG where its
perturbation is longer than ρ or not horizontal or leaves the geodesics' domain, where the loss there is not the value
that it claims, where that exceeds the bound, and where it is less than one projected gradient step gains. What share of
the maximum it finds is a finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its modules load where they are used: optimize takes longer than the rest of a short run

from refgeo import diagonal
from refgeo.conformance.backend import Backend
from refgeo.conformance.call import Call, Event
from refgeo.conformance.evidence import DOUBTFUL, SEVERAL, Evidence, Found
from refgeo.conformance.operations import ROUTINE
from refgeo.conformance.points import Points
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.scene import rng_of
from refgeo.support.arguments import Array

RADII = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)
MEET = 1e-6
"""A problem is one where the bounds are no further apart than this."""
TOLERANCE = 1e-8
"""By how much, relative to ρ, a perturbation may leave the ball and the horizontal space, beside rounding."""
INTEGRATED = 1e-6
"""By how much a claimed value may differ from the loss there where the end of a geodesic may be an integrator's."""
ROUNDINGS = 1000.0
"""So many roundings, of the terms that a number is made of, are nobody's mistake."""
LITTLE, NOTHING_FOUND = 0.5, 1e-6
"""A routine that finds less of the maximum, in the median, is *inaccurate*, or WRONG."""
LEAST = 0.99
"""Of what one projected gradient step gains; less, in several searches, is WRONG."""
SEARCH = {
    "sharpness_1": "order 1: the step is horizontal and in the ball; it increases the loss by the returned value, "
    "which is at most the proved bound",
    "sharpness_2": "order 2: the step is horizontal and in the ball; it increases the loss by the returned value, "
    "which is at most the proved bound",
    "sharpness_exact": "exact geodesics: the step is horizontal and in the ball; it increases the loss by the returned "
    "value, which is at most the proved bound",
    "sharpness_adaptive": "adaptive: the step is in the ball; it increases the loss by the returned value, which is at "
    "most the proved bound",
}

_ADAPTIVE = ("adaptive", "adaptive")
_SETTINGS: tuple[tuple[str, Any], ...] = (
    _ADAPTIVE, ("inv", 1), ("inv", 2), ("inv", "exact"), ("mix", 1), ("mix", 2), ("mix", "exact"),
)  # fmt: skip
"""Metrics and orders; adaptive sharpness has no order, and its name stands for one."""


@dataclass(frozen=True)
class DiagonalNetwork:
    """A diagonal network with its data, u and v representable in the dtype of a run."""

    name: str
    u: Array
    v: Array
    X: Array
    y: Array
    dtype: str = "float64"

    def loss(self, u: Array, v: Array) -> float:
        """‖X(u ⊙ v) − y‖²."""
        return float(np.sum((self.X @ (u * v) - self.y) ** 2))

    @property
    def rounding(self) -> float:
        """What rounding may add to a difference of losses."""
        return ROUNDINGS * PRECISIONS[self.dtype].roundoff * (2.0 * self.loss(self.u, self.v) + float(self.y @ self.y))

    def increase(self, shift: Array) -> float:
        """L(β + shift) − L(β), without subtracting the losses."""
        r, moved = self.X @ (self.u * self.v) - self.y, self.X @ shift
        return float(2.0 * r @ moved + moved @ moved)


def networks(profile: str, seed: int, dtype: str = "float64") -> Iterator[DiagonalNetwork]:
    """Networks whose X has orthogonal columns: far from the minimum, near it, at it; signs and sizes mixed."""
    for d, distance in (
        (6, 1.0),
        (10, 0.1),
        (4, 0.0),
        (6, 0.3),
        *(((40, 0.5), (25, 0.0)) if profile == "full" else ()),
    ):
        name = f"net{d}/{distance:g}"
        rng = rng_of(seed, name)
        u, v = (rng.uniform(0.5, 2.0, d) * rng.choice([-1.0, 1.0], d) for _ in range(2))
        u, v = (PRECISIONS[dtype].rounded(x) for x in (u, v))
        X = np.linalg.qr(rng.standard_normal((d + 2, d)))[0] * rng.uniform(0.7, 1.4, d)
        yield DiagonalNetwork(name, u, v, X, X @ (u * v) + distance * rng.standard_normal(d + 2), dtype)


def search_evidence(
    backend: Backend,
    names: Collection[str],
    points: Points,
    metrics: Collection[str],
    progress: Callable[[int, int, str], None],
) -> Iterator[tuple[str, str, dict[str, Any], Found]]:
    """Of the backend's ``sharpness``, for each of these names and metrics: the check, the metric, no options, and what
    was seen; adaptive sharpness has no metric. Of rules of conduct, the check is one of these.
    """
    dtype, seed, settings = points.dtype, points.seed, _SETTINGS
    if backend.is_plain:  # it is not told an order, and judged by the one whose geodesics it uses
        settings = (_ADAPTIVE, *((metric, _order_of(backend, metric, dtype, seed)) for metric in ("inv", "mix")))
    settings = tuple(
        (metric, order)
        for metric, order in settings
        if f"{ROUTINE}_{order}" in names and metric in (*metrics, "adaptive")
    )
    broken: defaultdict[str, list[Evidence]] = defaultdict(list)
    for done, (metric, order) in enumerate(settings):
        progress(done, len(settings), f"searches: {metric} {order}")
        problems = list(networks(points.profile, seed, dtype))
        yield f"{ROUTINE}_{order}", metric, {}, _seen(backend, metric, order, problems, broken)
    yield from ((rule, "", {}, Found(found)) for rule, found in broken.items())


def _order_of(backend: Backend, metric: str, dtype: str, seed: int) -> Any:
    """The order of the geodesics at whose end the loss is closest to what a routine claims; 2 where nothing is."""
    network = next(networks("quick", seed, dtype))
    answer = backend.call(_call(metric, 2, network, 0.1))
    if answer.failure is not None:
        return 2
    found = Search.of(metric, 2, network, 0.1, answer.parts)
    return min((2, "exact", 1), key=lambda order: abs(_reached(metric, order, network, found.a, found.c) - found.value))


def _call(metric: str, order: Any, network: DiagonalNetwork, rho: float) -> Call:
    d, carrier = len(network.u), PRECISIONS[network.dtype].carrier
    G, H = (x.reshape(d, 1, 1).astype(carrier) for x in (network.u, network.v))
    asked = 2 if order == "adaptive" else order
    return Call(ROUTINE, metric, [G, H, network.X, network.y], (rho, asked), [(), G.shape, H.shape], do="search")


def _seen(
    backend: Backend, metric: str, order: Any, problems: list[DiagonalNetwork], broken: Mapping[str, list[Evidence]]
) -> Found:
    """Every search held against its proved bound, and what share of it is found; with the rules that were broken."""
    found: list[Evidence] = []
    shares: dict[str, float] = {}
    short: list[Evidence] = []
    calls = 0.0
    for network in problems:
        for rho in RADII:
            upper = _bound(metric, order, network, rho)
            if upper is None or network.rounding > 0.01 * upper:
                continue
            place = f"{network.name}/rho{rho:g}"
            answer = backend.call(_call(metric, order, network, rho))
            for rule, how in answer.conduct.items():
                broken[rule].append(Evidence(place, event=Event.BROKEN, said=how, about=ROUTINE))
            if answer.failure is not None:
                event, said = answer.failure.event, str(answer.failure)
                found.append(Evidence(place, (), rho, np.inf, event=event, said=said))
                if event is not Event.FAILED:
                    return Found(found)
                continue
            search = Search.of(metric, order, network, rho, answer.parts)
            calls += float(answer.parts[3])
            complaint = search.complaint(upper)
            if not complaint and search.falls_short:
                short.append(Evidence(place, (), rho, np.inf, event=Event.FAILED, said=search.falls_short))
            shares[place] = search.reached / upper if upper > 0.0 else 1.0
            event = Event.FAILED if complaint else Event.RESULT
            found.append(Evidence(place, (), rho, 1.0 - shares[place], event=event, said=complaint))
    if not shares:
        reason = "there is no test problem whose maximum is known exactly and is larger than rounding errors"
        return Found(found or [Evidence("", event=Event.UNKNOWN, said=reason)])
    worst, median = min(shares, key=lambda place: shares[place]), float(np.median(list(shares.values())))
    found += short if len(short) >= SEVERAL else ()
    if median <= NOTHING_FOUND:
        found.append(Evidence(worst, event=Event.FAILED, said="the search finds nothing of the maximum"))
    # a routine that finds less than a half, in the median, is inaccurate
    found.append(Evidence("", (), 1.0, max(1.0 - median, 0.0), 1.0, (1.0 - LITTLE) / DOUBTFUL))
    return Found(
        found,
        f"the search finds {100.0 * median:.4g}% of the maximum (median of {len(shares)} searches), and at least "
        f"{100.0 * shares[worst]:.3g}% ({worst}), with {calls / len(shares):.0f} evaluations of the loss per search",
    )


@dataclass(frozen=True)
class Search:
    """What a search has returned: its value, and its step as a_i = η_u/u, c_i = η_v/v."""

    metric: str
    order: Any
    network: DiagonalNetwork
    rho: float
    value: float
    a: Array
    c: Array

    @classmethod
    def of(cls, metric: str, order: Any, network: DiagonalNetwork, rho: float, parts: Any) -> Search:
        """From the parts of an answer."""
        value, u_step, v_step, _ = parts
        return cls(metric, order, network, rho, float(value), u_step.ravel() / network.u, v_step.ravel() / network.v)

    @property
    def reached(self) -> float:
        """The increase of the loss at the end of the geodesic."""
        return _reached(self.metric, self.order, self.network, self.a, self.c)

    def complaint(self, upper: float) -> str:
        """What is wrong with it; empty if nothing is."""
        network, metric, order, rho, a, c = self.network, self.metric, self.order, self.rho, self.a, self.c
        if not (np.isfinite(self.value) and np.isfinite(a).all() and np.isfinite(c).all()):
            return "returned NaN or infinity"
        weight = np.abs(network.u * network.v) if metric == "mix" else np.ones_like(a)
        length = float(np.linalg.norm(np.concatenate([a * weight, c * weight])))
        roundoff = PRECISIONS[network.dtype].roundoff
        tolerance = TOLERANCE + ROUNDINGS * roundoff + 10.0 * roundoff / rho  # of a step, and of a difference of points
        if length > rho * (1.0 + tolerance):
            return f"the step leaves the ball: its length is {length / rho:.10g} ρ"
        vertical = float(np.linalg.norm((a - c) * weight)) / np.sqrt(2.0)
        if metric != "adaptive" and vertical > rho * tolerance:
            return f"the step is not horizontal: its vertical part has length {vertical / rho:.2g} ρ"
        if metric == "mix" and order == "exact" and np.any(1.0 + a + c <= 0.0):
            return "the step leaves the domain of exact geodesics: along it, a number becomes 0 before t = 1"
        value, reached = self.value, self.reached
        slack = INTEGRATED if order == "exact" else TOLERANCE
        rounding = network.rounding + (slack + ROUNDINGS * roundoff) * abs(reached)
        if abs(value - reached) > rounding:
            others = [one for one in (1, 2, "exact") if abs(_reached(metric, one, network, a, c) - value) <= rounding]
            if order != "adaptive" and others:
                return f"the returned value is that of geodesics of order {' or '.join(map(str, others))}"
            return f"the returned value is {value:.10g}, but the step increases the loss by {reached:.10g}"
        if reached < -rounding:
            return f"the search descends: the step decreases the loss by {-reached:.6g}; without a step, it is 0"
        if value > upper * (1.0 + 10.0 * TOLERANCE) + rounding:
            return f"the returned value is {value:.10g}, which is more than the proved bound {upper:.10g}"
        return ""

    @property
    def falls_short(self) -> str:
        """Whether one projected gradient step gains more, in words."""
        reached, gained = self.reached, _gained(self.metric, self.order, self.network, self.rho)
        if reached >= LEAST * gained - self.network.rounding:
            return ""
        return f"the step increases the loss by {reached:.6g}, and one projected gradient step by {gained:.6g}"


def _gained(metric: str, order: Any, network: DiagonalNetwork, rho: float) -> float:
    """What one step of length ρ along the projected gradient gains."""
    beta = network.u * network.v
    slope = beta * (network.X.T @ (network.X @ beta - network.y))
    price = beta**2 if metric == "mix" else np.ones_like(beta)
    step = slope / price
    length = float(np.sqrt(2.0 * np.sum(price * step**2)))
    if length <= 1e-6 * float(np.linalg.norm(beta)) or rho <= 0.0:
        return 0.0
    b = rho * step / length
    if metric == "mix" and order == "exact" and np.any(1.0 + 2.0 * b <= 0.0):
        return 0.0
    return _reached(metric, order, network, b, b)


def _reached(metric: str, order: Any, network: DiagonalNetwork, a: Array, c: Array) -> float:
    """The increase of the loss at the end of the geodesic."""
    if metric == "adaptive" or order == 1:
        factors = (1.0 + a) * (1.0 + c)
    elif order == 2:
        sign = 1.0 if metric == "inv" else -1.0
        factors = 1.0 + a + 0.5 * sign * (a * a if metric == "inv" else a * c)
        factors = factors * (1.0 + c + 0.5 * sign * (c * c if metric == "inv" else a * c))
    else:
        factors = np.exp(a + c) if metric == "inv" else 1.0 + a + c
    return network.increase(network.u * network.v * (factors - 1.0))


def _bound(metric: str, order: Any, network: DiagonalNetwork, rho: float) -> float | None:
    """A proved upper bound on the maximum, where a point comes within `MEET` of it."""
    if order in ("adaptive", "exact"):
        found = diagonal.worst_case(metric, network.u, network.v, network.X, network.y, rho)
        if bool(found.leaves_domain) or not float(found.gap) <= MEET:
            return None
        return float(found.upper)
    upper, lower = _polynomial_bounds(metric, order, network, rho)
    return upper if upper - lower <= MEET * upper else None


def _polynomial_bounds(metric: str, order: int, network: DiagonalNetwork, rho: float) -> tuple[float, float]:
    """The dual bound, least over λ, and the value of the primal point that it suggests."""
    beta = network.u * network.v
    g, D = network.X.T @ (network.X @ beta - network.y), np.sum(network.X**2, axis=0)
    price = 2.0 * (beta**2 if metric == "mix" else np.ones_like(beta))  # ‖η‖² = Σ price b²
    sign = 0.0 if order == 1 else 1.0 if metric == "inv" else -1.0
    moved = np.polynomial.Polynomial([1.0, 1.0, 0.5 * sign]).trim() ** 2 - 1.0
    linear, quadratic = (np.asarray(p.coef, dtype=np.float64) for p in (moved, moved**2))
    terms: Array = (D * beta**2)[:, None] * quadratic  # coefficients of every f_i
    terms[:, : len(linear)] += (2.0 * g * beta)[:, None] * linear

    def gains(b: Array) -> Array:
        return np.asarray(np.sum(_polynomials(terms, b[..., None])[..., 0], axis=-1))

    def dual(log_multipliers: Array) -> tuple[Array, Array]:
        multipliers = np.exp(log_multipliers)
        lagrangians = np.broadcast_to(terms, (*multipliers.shape, *terms.shape)).copy()
        lagrangians[..., 2] -= multipliers[..., None] * price
        b = _maximizers(lagrangians, rho / np.sqrt(price))
        return multipliers * (rho**2 - b**2 @ price) + gains(b), b

    grid = np.linspace(-12.0, 16.0, 57)
    start = float(grid[int(np.argmin(dual(grid)[0]))])
    found = scipy.optimize.minimize_scalar(
        lambda x: float(dual(np.asarray(x))[0]), bounds=(start - 0.6, start + 0.6), method="bounded",
        options={"xatol": 1e-12},
    )  # fmt: skip
    b = dual(np.asarray(found.x))[1]
    length = max(float(np.sqrt(b**2 @ price)), 1e-300)
    lower = max(float(gains(b * factor)) for factor in (min(1.0, rho / length), rho / length))
    return float(found.fun), lower


def _polynomials(coefficients: Array, x: Array) -> Array:
    """Polynomials ``(..., k)`` at points ``(..., m)`` each."""
    return np.asarray(np.polynomial.polynomial.polyval(x, np.moveaxis(coefficients, -1, 0)[..., None], tensor=False))


def _maximizers(polynomials: Array, reach: Array) -> Array:
    """Where polynomials are largest on [−reach, reach]: at an end, or where the slope vanishes (companion matrices)."""
    count = polynomials.shape[-1]
    slopes = polynomials[..., 1:] * np.arange(1, count)
    companions = np.zeros((*slopes.shape[:-1], count - 2, count - 2))
    companions[..., 1:, :-1] = np.eye(count - 3)
    companions[..., -1] = -slopes[..., :-1] / slopes[..., -1:]
    roots, ends = np.linalg.eigvals(companions), np.broadcast_to(reach, slopes.shape[:-1])[..., None]
    inside = (np.abs(roots.imag) < 1e-7 * (1.0 + np.abs(roots))) & (np.abs(roots.real) <= ends)
    candidates = np.concatenate([0.0 * ends, -ends, ends, np.where(inside, roots.real, 0.0)], axis=-1)
    best = np.argmax(_polynomials(polynomials, candidates), axis=-1)
    return np.asarray(np.take_along_axis(candidates, best[..., None], axis=-1)[..., 0])
