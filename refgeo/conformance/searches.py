r"""Whole searches on trial: a sharpness routine against proved maxima.

The problems are diagonal networks :math:`‖X(u ⊙ v) - y‖^2` with orthogonal columns, :math:`X^\top X = D`, where the
worst case is known between two bounds that meet (`refgeo.diagonal`), for the exact geodesics of inv and mix and for
adaptive sharpness. For geodesics of order 1 and 2 the measure is what refgeo's own search finds: a proved bound could
tell nothing more, since a value that is the loss at a step in the ball is no more than the maximum.

A routine gets the coordinates as blocks of one number (G of shape (d, 1, 1), H alike), and also factors of two and
three columns, with the loss ‖X vec(G Hᵀ) − y‖², whose maximum nobody knows. It is WRONG where its perturbation is
longer than ρ or not horizontal or leaves the geodesics' domain, where the loss there is not the value that it claims,
where that exceeds the bound, and where it is less than one projected gradient step gains, or less than a half of what
refgeo's own search finds. What share of the maximum, or of what that search finds, it finds is a finding.
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
from refgeo.conformance.backend import Backend
from refgeo.conformance.call import Call, Event
from refgeo.conformance.conduct import WHOLE_RUN_RULES
from refgeo.conformance.evidence import MAX_RATIO, WRONG_COUNT, CheckEvidence, Evidence
from refgeo.conformance.features import SIZE_LEVELS, Features, instantiate, random_choice
from refgeo.conformance.operations import ROUTINE, VALUES
from refgeo.conformance.points import Points
from refgeo.conformance.precision import N_PERTURBATIONS, PRECISIONS
from refgeo.conformance.routine import Problem
from refgeo.conformance.scene import build, rng_of
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import Array

RADII = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)
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
    "sharpness_1": "order 1: the step is horizontal and in the ball; it increases the loss by the returned value",
    "sharpness_2": "order 2: the step is horizontal and in the ball; it increases the loss by the returned value",
    "sharpness_exact": "exact geodesics: the step is horizontal and in the ball; it increases the loss by the returned "
    "value, which is at most the proved bound",
    "sharpness_adaptive": "adaptive: the step is in the ball; it increases the loss by the returned value, which is at "
    "most the proved bound",
}

_PROVED = ("adaptive", "exact")
"""Orders for which the maximum of a diagonal network is known."""
_ADAPTIVE = ("adaptive", "adaptive")
_SETTINGS: tuple[tuple[str, Any], ...] = (
    _ADAPTIVE, ("inv", 1), ("inv", 2), ("inv", "exact"), ("mix", 1), ("mix", 2), ("mix", "exact"),
)  # fmt: skip
"""Metrics and orders; adaptive sharpness has no order, and its name stands for one."""


@dataclass(frozen=True)
class Network:
    """A network with its data, G and H representable in the dtype of a run; a diagonal one has G = u and H = v.

    Attributes
    ----------
    name : str
    G, H : ndarray
    X, y : ndarray
        The loss is ‖X vec(G Hᵀ) − y‖².
    dtype : str
    radii : tuple of float
        Of the balls; of wide networks as many as a verdict on one of them takes.
    """

    name: str
    G: Array
    H: Array
    X: Array
    y: Array
    dtype: str = "float64"
    radii: tuple[float, ...] = ()

    @classmethod
    def diagonal(cls, name: str, u: Array, v: Array, X: Array, y: Array, dtype: str = "float64") -> Network:
        """With the coordinates as blocks of one number."""
        return cls(name, u.reshape(-1, 1, 1), v.reshape(-1, 1, 1), X, y, dtype, RADII)

    @property
    def u(self) -> Array:
        """Of a diagonal network the first factor."""
        return self.G.ravel()

    @property
    def v(self) -> Array:
        """Of a diagonal network the second factor."""
        return self.H.ravel()

    @property
    def sizes(self) -> tuple[int, ...]:
        """n, m, h, and the number of blocks."""
        return self.G.shape[-2], self.H.shape[-2], self.G.shape[-1], len(self.G)

    @property
    def is_diagonal(self) -> bool:
        """Whether its maxima are known."""
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
    def slope(self) -> Pair:
        """The Euclidean gradient of the loss."""
        E = (2.0 * self.X.T @ self.residual).reshape(self.product.shape)
        return Pair(E @ self.H, E.mT @ self.G)

    @property
    def rounding(self) -> float:
        """What rounding may add to a difference of losses."""
        loss = float(self.residual @ self.residual)
        return ROUNDINGS * PRECISIONS[self.dtype].roundoff * (2.0 * loss + float(self.y @ self.y))

    def increase(self, end: Pair) -> float:
        """By how much the loss is larger at another point, without subtracting the losses."""
        moved = self.X @ (end.product - self.product).ravel()
        return float(2.0 * self.residual @ moved + moved @ moved)


_DIAGONAL, _LARGE_DIAGONAL = ((6, 1.0), (10, 0.1), (4, 0.0), (6, 0.3)), ((40, 0.5), (25, 0.0))
"""The lengths of diagonal networks, each with the distance of y from the network's outputs; the large ones are tested
with the profile "full" alone."""
_MOST_PRODUCTS, _TRIES = 700, 50
"""Entries of G Hᵀ of a wide network; and how often one is drawn."""
_SMALLEST = 4
"""Columns up to which exact geodesics of mix are integrated, which take their time, at one radius."""


def networks(profile: str, seed: int, dtype: str = "float64") -> Iterator[Network]:
    """Diagonal ones whose X has orthogonal columns: far from the minimum, near it, at it; signs and sizes mixed. Then
    wider ones.
    """
    rounded = PRECISIONS[dtype].rounded
    for d, distance in _DIAGONAL + _LARGE_DIAGONAL * (profile == "full"):
        name = f"net{d}/{distance:g}"
        rng = rng_of(seed, name)
        u, v = (rounded(rng.uniform(0.5, 2.0, d) * rng.choice([-1.0, 1.0], d)) for _ in range(2))
        X = np.linalg.qr(rng.standard_normal((d + 2, d)))[0] * rng.uniform(0.7, 1.4, d)
        yield Network.diagonal(name, u, v, X, X @ (u * v) + distance * rng.standard_normal(d + 2), dtype)
    for k, features in enumerate(_wide(seed)):
        radii = tuple(RADII[(k + j) % len(RADII)] for j in range(0, 2 * WRONG_COUNT, 2))
        blocks, n, m = features.blocks[0], features.n, features.m
        scene = build(features, "mix", dtype, seed)
        (G, H), rng = scene.point, scene.rng("network")
        X = rng.standard_normal((2 * n * m, blocks * n * m)) / np.sqrt(2 * n * m)
        yield Network(
            f"net{features.name}", G, H, X, X @ (G @ H.mT).ravel() + rng.standard_normal(2 * n * m), dtype, radii
        )


def _wide(seed: int) -> Iterator[Features]:
    """Points with several columns: every band of h, alone and in a batch, as far as a search is short there."""
    rng = rng_of(seed, "networks")
    for i, (h, blocks) in enumerate(itertools.product(SIZE_LEVELS["h"], ("none", "one"))):
        m = ("near h", "= n")[(i // 2 + i) % 2]  # of each in turn, alone and in a batch
        bands = {"h": h, "n": "near h", "m": m, "blocks": blocks, "κ": "30" if blocks == "none" else "3"}
        drawn = (instantiate(bands, partial(random_choice, rng)) for _ in range(_TRIES))
        some = (one for one in drawn if one and (blocks == "none" or math.prod(one.blocks) > 1))
        few = (one for one in some if math.prod(one.blocks) * one.n * one.m <= _MOST_PRODUCTS)
        yield from (replace(one, blocks=(math.prod(one.blocks),)) for one in itertools.islice(few, 1) if one.h > 1)


def search_evidence(
    backend: Backend,
    names: Collection[str],
    points: Points,
    metrics: Collection[str],
    progress: Callable[[int, int, str], None],
) -> Iterator[tuple[str, str, dict[str, Any], CheckEvidence]]:
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
    results = False
    for done, (metric, order) in enumerate(settings):
        progress(done, len(settings), f"searches: {metric} {order}")
        problems = list(networks(points.profile, seed, dtype))
        found = _seen(backend, metric, order, problems, broken)
        results |= any(one.event is Event.RESULT for one in found.evidence)
        yield f"{ROUTINE}_{order}", metric, {}, found
    kept = Evidence("searches", event=Event.RESULT if results else Event.NO_ORACLE, subject=ROUTINE)
    yield from ((rule, "", {}, CheckEvidence(broken.get(rule, [kept]))) for rule in sorted({*broken, *WHOLE_RUN_RULES}))


def _order_of(backend: Backend, metric: str, dtype: str, seed: int) -> Any:
    """The order of the geodesics at whose end the loss is closest to what a routine claims; 2 where nothing is."""
    network = next(networks("quick", seed, dtype))
    answer = backend.call(_call(metric, 2, network, 0.1))
    if answer.failure is not None:
        return 2
    found = Search.of(metric, 2, network, 0.1, answer.parts)
    return min((2, "exact", 1), key=lambda order: abs(replace(found, order=order).reached - found.value))


def _call(metric: str, order: Any, network: Network, rho: float) -> Call:
    G, H = (x.astype(PRECISIONS[network.dtype].carrier) for x in (network.G, network.H))
    asked = 2 if order == "adaptive" else order
    return Call(ROUTINE, metric, [G, H, network.X, network.y], (rho, asked), [(), G.shape, H.shape], action="search")


def _seen(
    backend: Backend, metric: str, order: Any, problems: list[Network], broken: Mapping[str, list[Evidence]]
) -> CheckEvidence:
    """Every search held against its proved bound, and what share of it is found; with the rules that were broken."""
    found: list[Evidence] = []
    shares: dict[str, float] = {}
    wide: dict[str, float] = {}
    short: list[Evidence] = []
    calls = 0.0
    for network, rho in [(one, rho) for one in problems for rho in one.radii]:
        is_proved = network.is_diagonal and order in _PROVED
        known = _bound(metric, network, rho) if is_proved else _own(metric, order, network, rho)
        if known is None or network.rounding > 0.01 * known:
            continue
        place = f"{network.name}/rho{rho:g}"
        answer = backend.call(_call(metric, order, network, rho))
        for rule, how in answer.breaches.items():
            broken[rule].append(Evidence(place, event=Event.BROKEN, detail=how, subject=ROUTINE))
        if answer.failure is not None:
            event, said = answer.failure.event, str(answer.failure)
            event = event if network.is_diagonal or event is not Event.FAILED else Event.NOT_IMPLEMENTED
            found.append(Evidence(place, (), rho, np.inf, event=event, detail=said, sizes=network.sizes))
            if event is not Event.FAILED:
                break
            continue
        search = Search.of(metric, order, network, rho, answer.parts)
        complaint = search.complaint(known if is_proved else np.inf)
        if search.end is None and not complaint:
            continue  # a rounding decides whether the geodesic exists
        falls_short = "" if complaint else search.falls_short(0.0 if network.is_diagonal else LITTLE * known)
        if falls_short:
            short.append(Evidence(place, (), rho, np.inf, event=Event.FAILED, detail=falls_short, sizes=network.sizes))
        share, calls = search.reached / known if known > 0.0 else 1.0, calls + float(answer.parts[3])
        event = Event.FAILED if complaint else Event.RESULT
        found.append(Evidence(place, (), rho, max(1 - share, 0.0), event=event, detail=complaint, sizes=network.sizes))
        (shares if network.is_diagonal else wide)[place] = share
    if not shares:
        reason = "there is no test problem whose maximum is known and is larger than rounding errors"
        return CheckEvidence(found or [Evidence("", event=Event.NO_ORACLE, detail=reason)])
    worst, median = min(shares, key=lambda place: shares[place]), float(np.median(list(shares.values())))
    whole = "the maximum" if order in _PROVED else "what refgeo's own search finds"
    found += short if len(short) >= WRONG_COUNT else ()
    if median <= NOTHING_FOUND:
        found.append(Evidence(worst, event=Event.FAILED, detail=f"the search finds nothing of {whole}"))
    # a routine that finds less than a half, in the median, is inaccurate
    found.append(Evidence("", (), 1.0, max(1.0 - median, 0.0), 1.0, (1.0 - LITTLE) / MAX_RATIO))
    return CheckEvidence(
        found,
        f"on diagonal networks, the search finds {100.0 * median:.4g}% of {whole} (median of {len(shares)} searches), "
        f"and at least {100.0 * shares[worst]:.3g}% ({worst})"
        + (f"; on others, at least {100.0 * min(wide.values()):.3g}% of what refgeo's own search finds" if wide else "")
        + f"; with {calls / len(found):.0f} evaluations of the loss per search",
    )


@dataclass(frozen=True)
class Search:
    """What a search has returned: its value, and its step."""

    metric: str
    order: Any
    network: Network
    rho: float
    value: float
    step: Pair

    @classmethod
    def of(cls, metric: str, order: Any, network: Network, rho: float, parts: Any) -> Search:
        """From the parts of an answer."""
        value, G, H, _ = parts
        return cls(metric, order, network, rho, float(value), Pair.unchecked(G, H))

    @cached_property
    def end(self) -> Pair | None:
        """Where the geodesic ends; None if that is outside of its domain."""
        return _end(self.metric, self.order, self.network, self.step)

    @property
    def reached(self) -> float:
        """The increase of the loss there."""
        return -np.inf if self.end is None else self.network.increase(self.end)

    @cached_property
    def sensitivity(self) -> float:
        """How far the increase of the loss moves if the step and the factors change by a rounding in a few ways."""
        rng, perturb = rng_of(0, f"{self.network.name} {self.rho}"), PRECISIONS[self.network.dtype].perturb
        ends = [self.reached]
        for _ in range(N_PERTURBATIONS):
            G, H, *step = (perturb(x, rng) for x in (self.network.G, self.network.H, *self.step))
            ends.append(replace(self, network=replace(self.network, G=G, H=H), step=Pair.unchecked(*step)).reached)
        return max(ends) - min(ends) if min(ends) > -np.inf else np.inf

    def complaint(self, upper: float) -> str:
        """What is wrong with it; empty if nothing is."""
        network, metric, order, rho, step = self.network, self.metric, self.order, self.rho, self.step
        if not (np.isfinite(self.value) and all(np.isfinite(x).all() for x in step)):
            return "returned NaN or infinity"
        length = _length(metric, network, step)
        roundoff = PRECISIONS[network.dtype].roundoff
        tolerance = TOLERANCE + ROUNDINGS * roundoff + 10.0 * roundoff / rho  # of a step, and of a difference of points
        if length > rho * (1.0 + tolerance):
            return f"the step leaves the ball: its length is {length / rho:.10g} ρ"
        if metric != "adaptive":
            space = _space(metric, network)
            vertical = _length(metric, network, space.vertical_projection(step))
            lost = np.max(space.gauge.condition) ** VALUES["horizontal_projection"].loss(metric, 0.0)
            if vertical > rho * (tolerance + lost * roundoff):
                return f"the step is not horizontal: its vertical part has length {vertical / rho:.2g} ρ"
        if self.end is None and replace(self, step=self.step * (1.0 - MAX_RATIO * roundoff)).end is None:
            return "the step leaves the domain of exact geodesics: along it, a number becomes 0 before t = 1"
        value, reached = self.value, self.reached
        slack = INTEGRATED if order == "exact" else TOLERANCE
        rounding = network.rounding + (slack + ROUNDINGS * roundoff) * abs(reached)
        if abs(value - reached) > rounding and abs(value - reached) > MAX_RATIO * self.sensitivity:
            others = [one for one in (1, 2, "exact") if abs(replace(self, order=one).reached - value) <= rounding]
            if order != "adaptive" and others:
                return (
                    f"the returned value is that of the step along geodesics of order {' or '.join(map(str, others))}"
                )
            return f"the returned value is {value:.10g}, but the step increases the loss by {reached:.10g}"
        if reached < -rounding:
            return f"the search descends: the step decreases the loss by {-reached:.6g}; without a step, it is 0"
        if value > upper * (1.0 + 10.0 * TOLERANCE) + rounding:
            return f"the returned value is {value:.10g}, which is more than the proved bound {upper:.10g}"
        return ""

    def falls_short(self, least: float) -> str:
        """Whether it gains less than that, or than one projected gradient step, in words."""
        reached, gained = self.reached, _gained(self.metric, self.order, self.network, self.rho)
        if reached < LEAST * gained - self.network.rounding:
            return f"the step increases the loss by {reached:.6g}, and one projected gradient step by {gained:.6g}"
        if reached < least - self.network.rounding:
            return f"the step increases the loss by {reached:.6g}, and refgeo's own search by {least / LITTLE:.6g}"
        return ""


def _space(metric: str, network: Network) -> Any:
    return pair_metric(metric).at(Pair(network.G, network.H))


def _length(metric: str, network: Network, step: Pair) -> float:
    """Of a step, over all blocks; in adaptive sharpness beside the weights."""
    if metric == "adaptive":
        return float(np.hypot(np.linalg.norm(step.G / network.G), np.linalg.norm(step.H / network.H)))
    return float(np.linalg.norm(_space(metric, network).norm(step)))


def _end(metric: str, order: Any, network: Network, step: Pair) -> Pair | None:
    if metric == "adaptive" or order == 1:
        return Pair.unchecked(network.G + step.G, network.H + step.H)
    try:
        with np.errstate(all="ignore"):
            end: Pair = _space(metric, network).geodesic(step, 1.0, order)
    except (ValueError, ArithmeticError):
        return None
    return end


def _gained(metric: str, order: Any, network: Network, rho: float) -> float:
    """What one step of length ρ along the projected gradient gains."""
    e = network.slope
    if metric == "adaptive":
        step = Pair(e.G * network.G**2, e.H * network.H**2)
    else:
        step = _space(metric, network).riemannian_gradient(e)
    length = _length(metric, network, step)
    scale = float(np.linalg.norm(network.X, 2)) ** 2 * float(np.linalg.norm(network.product))
    if length * float(np.linalg.norm(e.G)) <= 1e-6 * scale * length or rho <= 0.0:
        return 0.0
    end = _end(metric, order, network, step * (rho / length))
    return 0.0 if end is None else network.increase(end)


def _own(metric: str, order: Any, network: Network, rho: float) -> float | None:
    """What refgeo's own search finds where nobody knows the maximum; for exact geodesics where that of order 2 leads
    along the exact one, of mix at a few networks and one radius.
    """
    takes_long = order == "exact" and metric == "mix"
    if takes_long and not network.is_diagonal and (network.sizes[2] > _SMALLEST or rho != network.radii[1]):
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
    asked, geometry = 2 if order == "exact" else order, pair_metric(metric)
    found = worst_case_sharpness(value_and_grad, pair, geometry, rho, order=asked, n_restarts=1, verify=False)
    return Search(metric, order, network, rho, found.value, found.maximizer).reached


def _bound(metric: str, network: Network, rho: float) -> float | None:
    """A proved upper bound on the maximum, where a point comes within `MEET` of it."""
    found = diagonal.worst_case(metric, network.u, network.v, network.X, network.y, rho)
    return None if bool(found.leaves_domain) or not float(found.gap) <= MEET else float(found.upper)
