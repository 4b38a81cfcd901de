r"""Judge whole searches: a sharpness routine is compared with certified maxima.

The problems are diagonal networks :math:`‖X(u ⊙ v) - y‖^2` with orthogonal columns, :math:`X^\top X = D`, whose worst
case is certified between two bounds (`refgeo.diagonal`), for the exact geodesics of inv and mix and for adaptive
sharpness. For geodesics of order 1 and 2, the reference is the result of refgeo's own search: a certified bound would
add nothing, because a value that is the loss at a step within the ball cannot exceed the maximum.

A routine gets the coordinates as blocks of one number (G and H of shape (d, 1, 1)). It also gets factors with several
columns, with the loss ‖X vec(G Hᵀ) − y‖², whose maximum is unknown. It is WRONG if its perturbation is longer
than ρ, is not horizontal or leaves the domain of the geodesics; if the loss at its end differs from the returned value;
if this value exceeds the bound; or if it is less than one projected gradient step gains, or less than half of what
refgeo's own search finds. The share of the maximum that it finds, or of that search's result, is reported.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from refgeo import diagonal
from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.execution.drivers import Problem
from refgeo.conformance.judging.evidence import MAX_RATIO, NON_FINITE, WRONG_COUNT, CheckEvidence, Evidence
from refgeo.conformance.points.covering_design import SIZE_LEVELS, instantiate, random_choice
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.sampling import rng_of
from refgeo.conformance.points.scene import generate
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.call import Call, Event
from refgeo.conformance.protocol.conduct import WHOLE_RUN_RULES
from refgeo.conformance.protocol.operations import ROUTINE, VALUES
from refgeo.conformance.protocol.precision import N_PERTURBATIONS, PRECISIONS
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import Array

RADII = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)
MAX_BOUND_GAP = 1e-6
"""Relative gap of the two bounds up to which a problem is used; chosen."""
TOLERANCE = 1e-8
"""Length by which a perturbation may leave the ball and the horizontal space, relative to ρ, in addition to rounding;
chosen.
"""
INTEGRATOR_TOLERANCE = 1e-6
"""Relative difference of the returned value and the loss, if an integrator may have computed the end of the geodesic;
chosen.
"""
MAX_ROUNDINGS = 1000.0
"""Number of roundings of a number's terms that count as no error; chosen."""
INACCURATE_SHARE, WRONG_SHARE = 0.5, 1e-6
"""Shares of the maximum, in the median, below which a routine is *inaccurate*, and WRONG; chosen."""
MIN_GAIN_SHARE = 0.99
"""Share of the gain of one projected gradient step below which, in several searches, a routine is WRONG; chosen."""

_CERTIFIED_ORDERS = ("adaptive", "exact")
"""Orders for which the maximum of a diagonal network is certified."""
_ADAPTIVE = ("adaptive", "adaptive")
_SETTINGS: tuple[tuple[str, Any], ...] = (
    _ADAPTIVE, ("inv", 1), ("inv", 2), ("inv", "exact"), ("mix", 1), ("mix", 2), ("mix", "exact"),
)  # fmt: skip
"""Metrics and orders; for adaptive sharpness, which has neither, both are "adaptive"."""


@dataclass(frozen=True)
class SearchProblem:
    """A network with its data; G and H are rounded to the dtype of the run. A diagonal network has G = u and H = v.

    Attributes
    ----------
    name : str
    G, H : ndarray
    X, y : ndarray
        The loss is ‖X vec(G Hᵀ) − y‖².
    dtype : str
    radii : tuple of float
        The radii of the balls; for wide networks as many as a verdict requires.
    """

    name: str
    G: Array
    H: Array
    X: Array
    y: Array
    dtype: str = "float64"
    radii: tuple[float, ...] = ()

    @classmethod
    def diagonal(cls, name: str, u: Array, v: Array, X: Array, y: Array, dtype: str = "float64") -> SearchProblem:
        """Make a diagonal network, with the coordinates as blocks of one number."""
        return cls(name, u.reshape(-1, 1, 1), v.reshape(-1, 1, 1), X, y, dtype, RADII)

    @property
    def u(self) -> Array:
        """The first factor of a diagonal network."""
        return self.G.ravel()

    @property
    def v(self) -> Array:
        """The second factor of a diagonal network."""
        return self.H.ravel()

    @property
    def sizes(self) -> tuple[int, ...]:
        """n, m, h, and the number of blocks."""
        return self.G.shape[-2], self.H.shape[-2], self.G.shape[-1], len(self.G)

    @property
    def is_diagonal(self) -> bool:
        """Whether the network is diagonal, so that its maxima are known."""
        return self.sizes[:3] == (1, 1, 1)

    @cached_property
    def product(self) -> Array:
        """G Hᵀ."""
        return np.asarray(self.G @ self.H.mT)

    @cached_property
    def residual(self) -> Array:
        """X vec(G Hᵀ) − y."""
        return np.asarray(self.X @ self.product.ravel() - self.y)

    @property
    def gradient(self) -> Pair:
        """The Euclidean gradient of the loss."""
        E = (2.0 * self.X.T @ self.residual).reshape(self.product.shape)
        return Pair(E @ self.H, E.mT @ self.G)

    @property
    def rounding(self) -> float:
        """The error that rounding may add to a difference of losses."""
        loss = float(self.residual @ self.residual)
        return MAX_ROUNDINGS * PRECISIONS[self.dtype].roundoff * (2.0 * loss + float(self.y @ self.y))

    def increase(self, end: Pair) -> float:
        """Return the increase of the loss at another point, without a subtraction of losses."""
        moved = self.X @ (end.product - self.product).ravel()
        return float(2.0 * self.residual @ moved + moved @ moved)


_DIAGONAL, _LARGE_DIAGONAL = ((6, 1.0), (10, 0.1), (4, 0.0), (6, 0.3)), ((40, 0.5), (25, 0.0))
"""The lengths of diagonal networks, each with the distance of y from the network's outputs; the large ones are tested
with the profile "full" only.
"""
_MAX_ENTRIES, _MAX_DRAWS = 700, 50
"""Number of entries of G Hᵀ of a wide network, and number of draws to find one; chosen."""
_MAX_COLUMNS = 4
"""Number of columns up to which exact geodesics of mix, which take long, are integrated; chosen."""


def make_problems(profile: str, seed: int, dtype: str = "float64") -> Iterator[SearchProblem]:
    """Yield diagonal networks whose X has orthogonal columns, far from the minimum, near it and at it, and wider
    networks.
    """
    round_to = PRECISIONS[dtype].round
    for d, distance in _DIAGONAL + _LARGE_DIAGONAL * (profile == "full"):
        name = f"net{d}/{distance:g}"
        rng = rng_of(seed, name)
        u, v = (round_to(rng.uniform(0.5, 2.0, d) * rng.choice([-1.0, 1.0], d)) for _ in range(2))
        X = np.linalg.qr(rng.standard_normal((d + 2, d)))[0] * rng.uniform(0.7, 1.4, d)
        yield SearchProblem.diagonal(name, u, v, X, X @ (u * v) + distance * rng.standard_normal(d + 2), dtype)
    for k, features in enumerate(_wide_features(seed)):
        radii = tuple(RADII[(k + j) % len(RADII)] for j in range(0, 2 * WRONG_COUNT, 2))
        blocks, n, m = features.blocks[0], features.n, features.m
        scene = generate(features, "mix", dtype, seed)
        (G, H), rng = scene.point, scene.rng("network")
        X = rng.standard_normal((2 * n * m, blocks * n * m)) / np.sqrt(2 * n * m)
        yield SearchProblem(
            f"net{features.name}", G, H, X, X @ (G @ H.mT).ravel() + rng.standard_normal(2 * n * m), dtype, radii
        )


def _wide_features(seed: int) -> Iterator[Features]:
    """Yield features with several columns: every level of h, without and with a batch, as far as a search is short."""
    rng = rng_of(seed, "networks")
    for i, (h, blocks) in enumerate(itertools.product(SIZE_LEVELS["h"], ("none", "one"))):
        m = ("near h", "= n")[(i // 2 + i) % 2]  # of each in turn, alone and in a batch
        levels = {"h": h, "n": "near h", "m": m, "blocks": blocks, "κ": "30" if blocks == "none" else "3"}
        draws = (instantiate(levels, partial(random_choice, rng)) for _ in range(_MAX_DRAWS))
        candidates = (f for f in draws if f and (blocks == "none" or math.prod(f.blocks) > 1))
        small = (f for f in candidates if math.prod(f.blocks) * f.n * f.m <= _MAX_ENTRIES)
        yield from (replace(f, blocks=(math.prod(f.blocks),)) for f in itertools.islice(small, 1) if f.h > 1)


def search_evidence(
    backend: Backend,
    names: Collection[str],
    points: Points,
    metrics: Collection[str],
    progress: Callable[[int, int, str], None],
) -> Iterator[tuple[str, str, dict[str, Any], CheckEvidence]]:
    """Judge a backend's ``sharpness``: yield (check, metric, no options, evidence) for each check and metric.

    Adaptive sharpness has no metric. For a rule of conduct, the check is its name.
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
    results = False
    for done, (metric, order) in enumerate(settings):
        progress(done, len(settings), f"searches: {metric} {order}")
        problems = list(make_problems(points.profile, seed, dtype))
        evidence = _judge_searches(backend, metric, order, problems, broken)
        results |= any(e.event is Event.RESULT for e in evidence.evidence)
        yield f"{ROUTINE}_{order}", metric, {}, evidence
    kept = Evidence("searches", event=Event.RESULT if results else Event.NO_ORACLE, subject=ROUTINE)
    yield from ((rule, "", {}, CheckEvidence(broken.get(rule, [kept]))) for rule in sorted({*broken, *WHOLE_RUN_RULES}))


def _order_of(backend: Backend, metric: str, dtype: str, seed: int) -> Any:
    """Return the order of the geodesics at whose end the loss is closest to the returned value; 2 if there is no
    result.
    """
    network = next(make_problems("quick", seed, dtype))
    answer = backend.call(_call(metric, 2, network, 0.1))
    if answer.failure is not None:
        return 2
    outcome = SearchOutcome.of(metric, 2, network, 0.1, answer.parts)
    return min((2, "exact", 1), key=lambda order: abs(replace(outcome, order=order).reached - outcome.value))


def _call(metric: str, order: Any, network: SearchProblem, rho: float) -> Call:
    """Make the call of a search."""
    G, H = (x.astype(PRECISIONS[network.dtype].carrier) for x in (network.G, network.H))
    sent = 2 if order == "adaptive" else order
    return Call(ROUTINE, metric, [G, H, network.X, network.y], (rho, sent), [(), G.shape, H.shape], action="search")


def _judge_searches(
    backend: Backend, metric: str, order: Any, problems: list[SearchProblem], breaches: Mapping[str, list[Evidence]]
) -> CheckEvidence:
    """Judge a backend's searches for sharpness on all problems, each by a certified bound or by refgeo's own search."""
    evidence: list[Evidence] = []
    shares: dict[str, float] = {}
    wide: dict[str, float] = {}
    shortfalls: list[Evidence] = []
    calls = 0.0
    for network, rho in [(problem, rho) for problem in problems for rho in problem.radii]:
        is_proved = network.is_diagonal and order in _CERTIFIED_ORDERS
        bound = _upper_bound(metric, network, rho) if is_proved else _reference_maximum(metric, order, network, rho)
        if bound is None or network.rounding > 0.01 * bound:
            continue
        case = f"{network.name}/rho{rho:g}"
        answer = backend.call(_call(metric, order, network, rho))
        for rule, how in answer.breaches.items():
            breaches[rule].append(Evidence(case, event=Event.BROKEN, detail=how, subject=ROUTINE))
        if answer.failure is not None:
            event, detail = answer.failure.event, str(answer.failure)
            event = event if network.is_diagonal or event is not Event.FAILED else Event.NOT_IMPLEMENTED
            evidence.append(Evidence(case, (), rho, np.inf, event=event, detail=detail, sizes=network.sizes))
            if event is not Event.FAILED:
                break
            continue
        search = SearchOutcome.of(metric, order, network, rho, answer.parts)
        flaw = search.violation(bound if is_proved else np.inf)
        if search.end is None and not flaw:
            continue  # a rounding decides whether the geodesic exists
        reason = "" if flaw else search.shortfall(0.0 if network.is_diagonal else INACCURATE_SHARE * bound)
        if reason:
            shortfalls.append(Evidence(case, (), rho, np.inf, event=Event.FAILED, detail=reason, sizes=network.sizes))
        share = 0.0 if np.isnan(search.reached) else search.reached / bound
        calls += float(answer.parts[3])
        event = Event.FAILED if flaw else Event.RESULT
        evidence.append(Evidence(case, (), rho, max(1 - share, 0.0), event=event, detail=flaw, sizes=network.sizes))
        (shares if network.is_diagonal else wide)[case] = share
    if not shares:
        reason = "there is no test problem whose maximum is known and is larger than rounding errors"
        return CheckEvidence(evidence or [Evidence("", event=Event.NO_ORACLE, detail=reason)])
    worst, median = min(shares, key=lambda case: shares[case]), float(np.median(list(shares.values())))
    target = "the maximum" if order in _CERTIFIED_ORDERS else "what refgeo's own search finds"
    evidence += shortfalls if len(shortfalls) >= WRONG_COUNT else ()
    if median <= WRONG_SHARE:
        evidence.append(Evidence(worst, event=Event.FAILED, detail=f"the search finds nothing of {target}"))
    # a routine that finds less than a half, in the median, is inaccurate
    evidence.append(Evidence("", (), 1.0, max(1.0 - median, 0.0), 1.0, (1.0 - INACCURATE_SHARE) / MAX_RATIO))
    return CheckEvidence(
        evidence,
        f"on diagonal networks, the search finds {100.0 * median:.4g}% of {target} (median of {len(shares)} searches), "
        f"and at least {100.0 * shares[worst]:.3g}% ({worst})"
        + (f"; on others, at least {100.0 * min(wide.values()):.3g}% of what refgeo's own search finds" if wide else "")
        + f"; with {calls / (len(shares) + len(wide)):.0f} evaluations of the loss per search",
    )


@dataclass(frozen=True)
class SearchOutcome:
    """The result of a search: its value and its step."""

    metric: str
    order: Any
    network: SearchProblem
    rho: float
    value: float
    step: Pair

    @classmethod
    def of(cls, metric: str, order: Any, network: SearchProblem, rho: float, parts: Any) -> SearchOutcome:
        """Make an outcome of the parts of an answer."""
        value, G, H, _ = parts
        return cls(metric, order, network, rho, float(value), Pair.unchecked(G, H))

    @cached_property
    def end(self) -> Pair | None:
        """The end of the geodesic; None if it is outside of the domain."""
        return _end(self.metric, self.order, self.network, self.step)

    @property
    def reached(self) -> float:
        """The increase of the loss at the end."""
        return -np.inf if self.end is None else self.network.increase(self.end)

    @cached_property
    def sensitivity(self) -> float:
        """The change of the increase if the step and the factors change by a rounding in a few ways."""
        rng, perturb = rng_of(0, f"{self.network.name} {self.rho}"), PRECISIONS[self.network.dtype].perturb
        ends = [self.reached]
        for _ in range(N_PERTURBATIONS):
            G, H, *step = (perturb(x, rng) for x in (self.network.G, self.network.H, *self.step))
            ends.append(replace(self, network=replace(self.network, G=G, H=H), step=Pair.unchecked(*step)).reached)
        return max(ends) - min(ends) if min(ends) > -np.inf else np.inf

    def violation(self, upper: float) -> str:
        """Describe what is wrong with a search; empty if nothing is."""
        network, metric, order, rho, step = self.network, self.metric, self.order, self.rho, self.step
        if not (np.isfinite(self.value) and all(np.isfinite(x).all() for x in step)):
            return NON_FINITE
        length = _length(metric, network, step)
        roundoff = PRECISIONS[network.dtype].roundoff
        # of a step, and of a difference of points
        tolerance = TOLERANCE + MAX_ROUNDINGS * roundoff + 10.0 * roundoff / rho
        if length > rho * (1.0 + tolerance):
            return f"the step leaves the ball: its length is {length / rho:.10g} ρ"
        if metric != "adaptive":
            space = _tangent_space(metric, network)
            vertical = _length(metric, network, space.vertical_projection(step))
            growth = np.max(space.gauge.condition) ** VALUES["horizontal_projection"].loss(metric, 0.0)
            if vertical > rho * (tolerance + growth * roundoff):
                return f"the step is not horizontal: its vertical part has length {vertical / rho:.2g} ρ"
        if self.end is None and replace(self, step=self.step * (1.0 - MAX_RATIO * roundoff)).end is None:
            return "the step leaves the domain of exact geodesics: along it, a number becomes 0 before t = 1"
        value, reached = self.value, self.reached
        slack = INTEGRATOR_TOLERANCE if order == "exact" else TOLERANCE
        rounding = network.rounding + (slack + MAX_ROUNDINGS * roundoff) * abs(reached)
        if abs(value - reached) > rounding and abs(value - reached) > MAX_RATIO * self.sensitivity:
            orders = [o for o in (1, 2, "exact") if abs(replace(self, order=o).reached - value) <= rounding]
            if order != "adaptive" and orders:
                return (
                    f"the returned value is that of the step along geodesics of order {' or '.join(map(str, orders))}"
                )
            return f"the returned value is {value:.10g}, but the step increases the loss by {reached:.10g}"
        if reached < -rounding:
            return f"the search descends: the step decreases the loss by {-reached:.6g}; without a step, it is 0"
        if value > upper * (1.0 + 10.0 * TOLERANCE) + rounding:
            return f"the returned value is {value:.10g}, which is more than the proved bound {upper:.10g}"
        return ""

    def shortfall(self, least: float) -> str:
        """Describe whether a search gains less than `least`, or than one projected gradient step; else return ""."""
        reached, gained = self.reached, _gradient_gain(self.metric, self.order, self.network, self.rho)
        if reached < MIN_GAIN_SHARE * gained - self.network.rounding:
            return f"the step increases the loss by {reached:.6g}, and one projected gradient step by {gained:.6g}"
        if reached < least - self.network.rounding:
            known = least / INACCURATE_SHARE
            return f"the step increases the loss by {reached:.6g}, and refgeo's own search by {known:.6g}"
        return ""


def _tangent_space(metric: str, network: SearchProblem) -> Any:
    """Return the tangent space at the factors of a problem."""
    return pair_metric(metric).at(Pair(network.G, network.H))


def _length(metric: str, network: SearchProblem, step: Pair) -> float:
    """Return the length of a step over all blocks; for adaptive sharpness, relative to the weights."""
    if metric == "adaptive":
        return float(np.hypot(np.linalg.norm(step.G / network.G), np.linalg.norm(step.H / network.H)))
    return float(np.linalg.norm(_tangent_space(metric, network).norm(step)))


def _end(metric: str, order: Any, network: SearchProblem, step: Pair) -> Pair | None:
    """Return the end of the geodesic; None if it is outside of the domain."""
    if metric == "adaptive" or order == 1:
        return Pair.unchecked(network.G + step.G, network.H + step.H)
    try:
        with np.errstate(all="ignore"):
            end: Pair = _tangent_space(metric, network).geodesic(step, 1.0, order)
    except (ValueError, ArithmeticError):
        return None
    return end


def _gradient_gain(metric: str, order: Any, network: SearchProblem, rho: float) -> float:
    """Return the gain of one step of length ρ along the projected gradient."""
    e = network.gradient
    if metric == "adaptive":
        step = Pair(e.G * network.G**2, e.H * network.H**2)
    else:
        step = _tangent_space(metric, network).riemannian_gradient(e)
    length = _length(metric, network, step)
    scale = float(np.linalg.norm(network.X, 2)) ** 2 * float(np.linalg.norm(network.product))
    if length * float(np.linalg.norm(e.G)) <= 1e-6 * scale * length:
        return 0.0
    end = _end(metric, order, network, step * (rho / length))
    return 0.0 if end is None else network.increase(end)


def _reference_maximum(metric: str, order: Any, network: SearchProblem, rho: float) -> float | None:
    """Return what refgeo's own search finds if the maximum is unknown; None if it would take too long.

    The search moves along geodesics of order 2 for exact ones, and its result is evaluated along the exact geodesic.
    """
    is_slow = order == "exact" and metric == "mix"
    if is_slow and not network.is_diagonal and (network.sizes[2] > _MAX_COLUMNS or rho != network.radii[1]):
        return None
    from refgeo.sharpness.adaptive import adaptive_sharpness  # slow to import, and used where there is a search
    from refgeo.sharpness.worst_case import worst_case_sharpness

    problem = Problem(network.X, network.y, lambda x: x, np.asarray, is_diagonal=False)

    def value_and_grad(pair: Pair) -> tuple[float, Pair]:
        value, grads = problem.value_and_grad(*pair)
        return value, Pair(*grads)

    pair = Pair(network.G, network.H)
    if metric == "adaptive":
        return float(adaptive_sharpness(value_and_grad, pair, rho, n_restarts=1, verify=False).value)
    requested, geometry = 2 if order == "exact" else order, pair_metric(metric)
    result = worst_case_sharpness(value_and_grad, pair, geometry, rho, order=requested, n_restarts=1, verify=False)
    return SearchOutcome(metric, order, network, rho, result.value, result.maximizer).reached


def _upper_bound(metric: str, network: SearchProblem, rho: float) -> float | None:
    """Return a certified upper bound on the maximum, if a point comes within `MAX_BOUND_GAP` of it; else None."""
    c = diagonal.worst_case(metric, network.u, network.v, network.X, network.y, rho)
    return None if bool(c.leaves_domain) or not float(c.gap) <= MAX_BOUND_GAP else float(c.upper)
