r"""Update rules with state on trial: whole trajectories from a point and from other points of its orbit.

A rule is invariant if the products :math:`X_k = G_kH_k^\top` of k steps from θ and from A·θ agree, for all k, on one
loss of X. That needs no metric, and it is stronger than equivariance of one step: moments that are transported by the
wrong matrix show at the second step. What a rule does to (G, H) beside X is a choice of gauge and is not judged.

*How much rounding may do.* The rule itself is the measure: the same trajectory again, with every number of G and H
changed at every step by a random share of 16 roundings, moves X_k by 16 times what rounding does, amplified as the rule
and the loss amplify it. The unit is that distance by 16, with one rounding of all that has been travelled, times κ² for
rules that form Gram matrices and invert them. A difference is a share of the way that both trajectories have travelled,
so at most 1; as for values, a ratio above 1,000 at one place, or above 100 at three, is beyond what rounding explains.

*Where.* From the points of the design that are not too large, on a loss whose size is found by trying (a
rule's step size is its own), or 64 times smaller or 16 times larger, or for a few steps of any size (a rule can clip);
to points of the orbit by elements A of the group: a rotation, scalings, a mild and an ill-conditioned one. A rule that
is not invariant under all of them is WRONG: who knows why (it is damped, or computes in float32) says so with the
options ``relaxation`` and ``dtype``, and the report says what these would leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.call import BackendError, Call, Event, NoResult
from refgeo.conformance.conduct import WHOLE_RUN_RULES
from refgeo.conformance.evidence import SURELY_WRONG_RATIO, WRONG_RATIO, CheckEvidence, Evidence, is_beyond_rounding
from refgeo.conformance.features import Features, all_levels, covering_design, distribute, size_levels
from refgeo.conformance.points import Points
from refgeo.conformance.precision import PRECISIONS, representable
from refgeo.conformance.scene import build, rng_of
from refgeo.conformance.scope import Scope
from refgeo.conformance.steps import UPDATE_RULES, Walk
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

STEPS = 25
SHOWN = (1, 2, 5, 10, 25)
"""The steps of which a report speaks."""
_NOISE = 16.0
TRAJECTORY = {
    "step.invariant": "k steps of the optimiser from (G, H) and from (G A⁻¹, H Aᵀ) give the same product G Hᵀ, for "
    "all A of GL(h); with a relaxation ε, for all A of O(h)",
    "step.repeatable": "a new run of the optimiser from the same start gives the same trajectory",
    "step.blocks": "in a batch of blocks, each block takes the steps that it takes alone",
    "step.starts": "from G = 0, from H = 0, and with a large loss, the optimiser moves X = G Hᵀ; from G = 0 and "
    "from H = 0, all numbers stay finite",
}
SCALES = tuple(4.0**j for j in range(-12, 13))
_FAR = 0.4
"""A good trajectory of so many times its start's own length: beyond it, many a right rule is no longer stable."""
_MOST, _MOST_CONDITION = 2_000, 30.0
_FEW = 3
"""Steps of a trajectory before another one, or beside it."""
_USUAL = Features(n=6, m=5, h=2)
"""Where it is tried whether a rule moves at all, and does the same again."""
_BATCHES = (
    Features((2,), 5, 4, 2), Features((2, 3), 4, 5, 3), Features((3,), 9, 8, 6), Features((2,), 20, 19, 17),
)  # fmt: skip
_LIMITS = (1.0, 2.0**-6, 2.0**4, 2.0**8)
"""Sizes of the loss beside the one that a rule likes, at which it may reach its limits."""
_EXCESS = 1e-4
"""A trajectory that ends with a NaN says something where rounding has moved it by less than this share until then."""
_SLIGHT = 1e-3
"""A difference begins where it is no smaller than this share of what it becomes."""


def starts(profile: str, seed: int) -> list[Features]:
    """The design's points without their vectors, as far as a rule takes many steps there in a moment."""
    kept = ("n", "m", "h", "gap", "turn", "balance", "alike", "identity", "normed", "zero_rows")
    points = [
        Features(
            **{name: getattr(one, name) for name in kept},
            condition_G=min(one.condition_G, _MOST_CONDITION), condition_H=min(one.condition_H, _MOST_CONDITION),
        )
        for one in covering_design(profile, seed)
    ]  # fmt: skip
    return [one for one in dict.fromkeys(points) if one.is_feasible and one.cost <= _MOST]


@dataclass(frozen=True)
class Start:
    """Where a trajectory begins, and its loss.

    Attributes
    ----------
    name : str
    G, H : ndarray
    Y : ndarray
        The target, about as far from G Hᵀ as that is long.
    magnitude : float
        Of the entries of G Hᵀ.
    sizes : tuple of int
    condition : float
    """

    name: str
    G: Array
    H: Array
    Y: Array
    magnitude: float
    sizes: tuple[int, ...]
    condition: float

    @classmethod
    def of(cls, features: Features, dtype: str, seed: int) -> Start:
        """The point that has these features."""
        scene = build(features, "mix", dtype, seed)
        (G, H), X = scene.point, scene.point.product
        magnitude = float(np.sqrt(np.mean(X**2)))
        Y = X + magnitude * scene.rng("trajectory").standard_normal(X.shape)
        return cls(features.name, G, H, Y, magnitude, scene.sizes, float(np.max(scene.space.gauge.condition)))

    def at(self, A: Array, dtype: str) -> Start:
        """The same loss from A·θ."""
        G, H = representable(Pair(self.G @ np.linalg.inv(A), self.H @ A.T), dtype)
        return replace(self, G=G, H=H)

    def block(self, i: tuple[int, ...]) -> Start:
        """One block of a batch."""
        return replace(self, G=self.G[i], H=self.H[i], Y=self.Y[i])


@dataclass(frozen=True)
class Trajectory:
    """G and H before every step and after the last one."""

    G: Array
    H: Array

    @cached_property
    def products(self) -> Array:
        """X_k."""
        with np.errstate(all="ignore"):
            return np.asarray(self.G @ self.H.mT)

    @cached_property
    def end(self) -> int | None:
        """The first step after which a number is not finite."""
        there = _finite(self.G) & _finite(self.H) & _finite(self.products)
        return None if there.all() else int(np.argmin(there))

    @cached_property
    def travelled(self) -> Array:
        """The length of the way to X_k; after its end, the whole way."""
        with np.errstate(all="ignore"):
            steps = _lengths(np.diff(self.products, axis=0, prepend=self.products[:1]))
            return np.asarray(np.fmax.accumulate(np.where(np.isfinite(steps), np.cumsum(steps), np.nan)))

    @cached_property
    def condition(self) -> Array:
        """The larger condition number of the factors, at each step; after its end, the last one."""
        last = np.minimum(np.arange(len(self.G)), len(self.G) if self.end is None else max(self.end - 1, 0))
        values = [np.linalg.svd(F[last], compute_uv=False) for F in (self.G, self.H)]
        with np.errstate(all="ignore"):
            found = np.nan_to_num(np.max([v[..., 0] / v[..., -1] for v in values], axis=0), nan=np.inf)
        return np.asarray(found.reshape(len(self.G), -1).max(axis=-1))


def _lengths(matrices: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(np.sum(matrices**2, axis=tuple(range(1, matrices.ndim)))))


def _finite(matrices: Array) -> Any:
    """Of each step whether all numbers are."""
    return np.isfinite(matrices).reshape(len(matrices), -1).all(axis=1)


def _apart(one: Trajectory, products: Array) -> Array:
    """How far each X_k is from another; 0 where both are not finite, infinite where one of them is not."""
    with np.errstate(all="ignore"):
        lengths = _lengths(one.products - products)
    here, there = _finite(one.products), _finite(products)
    return np.where(here & there, lengths, np.where(here | there, np.inf, 0.0))


class Rule:
    """A rule of a backend, in one precision and with some options.

    Attributes
    ----------
    breaches : dict
        The rules of conduct that it has broken, and how.
    has_walked : bool
        Whether a trajectory had a result.
    """

    def __init__(self, backend: Backend, function: str, points: Points, options: Mapping[str, Any]) -> None:
        self._backend, self.function, self.options, self.points = backend, function, dict(options), points
        self.precision, self.relaxation = PRECISIONS[points.dtype], points.relaxation
        self.breaches: dict[str, str] = {}
        self.has_walked = False
        self._scales: dict[str, float] = {}

    @cached_property
    def repeats(self) -> CheckEvidence:
        """Whether its trajectories are the same again, which several laws ask."""
        return _repeatable(self)

    def start(self, features: Features) -> Start:
        """The start that has these features, in the rule's precision."""
        return Start.of(features, self.precision.name, self.points.seed)

    def at(self, start: Start, element: str) -> Start:
        """Another point of the orbit of a start."""
        h = start.G.shape[-1]
        return start.at(ELEMENTS[element](h, rng_of(self.points.seed, f"{element} {start.name}")), self.precision.name)

    def walk(
        self, start: Start, scale: float, count: int = STEPS, noise: float = 0.0, seed: int = 0, stream: int = 0,
        between: Sequence[Start] = (), **how: Any,
    ) -> Trajectory:  # fmt: skip
        """The trajectory, also with steps of others between its own; `how` the call is made."""
        others = tuple(map(self._arrays, between))
        walk = Walk(count, scale, start.magnitude, noise * self.precision.roundoff, seed, self.options, stream, others)
        shapes = [(count + 1, *start.G.shape), (count + 1, *start.H.shape)]
        call = Call(self.function, "", self._arrays(start), (vars(walk),), shapes, action="trajectory")
        call = replace(call, decisive=True, **how)
        answer = self._backend.call(call)
        refused = ["missing a required argument"] + ["unexpected keyword argument"] * bool(self.options)
        if any(said in str(answer.failure) for said in refused):
            expected = f"expected keyword arguments of {self.function}, and all that have no default"
            raise BackendError(f"options: {expected}, got {answer.failure}")
        self.breaches = answer.breaches | self.breaches
        self.has_walked |= answer.failure is None
        return Trajectory(*answer.result())

    def _arrays(self, start: Start) -> list[Array]:
        return [x.astype(self.precision.carrier) for x in (start.G, start.H)] + [start.Y]

    def call(self, start: Start, scale: float) -> Call:
        """A few steps, to be made before others, or beside them."""
        walk = Walk(_FEW, scale, start.magnitude, options=self.options)
        return Call(self.function, "", self._arrays(start), (vars(walk),), action="trajectory")

    def scale(self, start: Start) -> float:
        """A size of the loss with which the rule moves X by about its own length and stays at good points."""
        if start.name not in self._scales:
            known = next(reversed(self._scales.values()), None)  # a rule's step size is nearly the same everywhere
            near = [scale for scale in SCALES if known is not None and known / 20.0 < scale < known * 20.0]
            best = min(near, key=lambda scale: self.unease(start, scale), default=None)
            if best is None or self.unease(start, best) == np.inf:
                best = min(SCALES, key=lambda scale: self.unease(start, scale))
            self._scales[start.name] = best
        return self._scales[start.name]

    @contextmanager
    def alone(self) -> Iterator[Rule]:
        """The rule in a process in which nothing was asked, if there is a way to load it again."""
        with self._backend.isolated() as fresh:
            yield Rule(fresh, self.function, self.points, self.options)

    def unease(self, start: Start, scale: float, count: int = STEPS) -> float:
        """How far the length of a trajectory is from a good one; infinite where it leads to bad points."""
        try:
            walked = self.walk(start, scale, count)
        except NoResult:
            return np.inf
        if walked.end is not None or walked.condition.max() > 1e3 * start.condition:
            return np.inf
        length = walked.travelled[-1] / _lengths(walked.products[:1])[0]
        return float(abs(np.log(max(length, 1e-300) / _FAR)))

    def rounding(self, start: Start, walked: Trajectory) -> Array:
        """One rounding of all that has been travelled, as a route over Gram matrices makes it."""
        rows = float(np.sqrt(max(start.sizes[:2])))
        size = float(np.linalg.norm(walked.products[0])) + walked.travelled
        with np.errstate(all="ignore"):
            return np.asarray(self.precision.roundoff * rows * size * walked.condition**2)

    def unit(self, start: Start, scale: float, walked: Trajectory) -> Array:
        """What rounding does to X_k, also by the rule's own reaction to noise."""
        with np.errstate(all="ignore"):
            return self.noise(start, scale, walked) + self.rounding(start, walked)

    def noise(self, start: Start, scale: float, walked: Trajectory) -> Array:
        """How far noise of one rounding drives X_k, times κ², for it is noise of the point alone."""
        count = len(walked.G) - 1
        noisy = [self.walk(start, scale, count, _NOISE, seed) for seed in (1, 2)]
        moved = np.max([_apart(other, walked.products) for other in noisy], axis=0) / _NOISE
        with np.errstate(all="ignore"):
            return np.asarray(moved * walked.condition**2)

    def ends_alike(self, start: Start, scale: float, walked: Trajectory) -> bool:
        """Whether a trajectory ends after the same step whatever the noise."""
        count = len(walked.G) - 1
        return all(self.walk(start, scale, count, _NOISE, seed).end == walked.end for seed in range(1, 9))


# Elements of the group -----------------------------------------------------------------------------------------------


def _element(condition: float, factor: float = 1.0) -> Callable[[int, np.random.Generator], Array]:
    def drawn(h: int, rng: np.random.Generator) -> Array:
        left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
        return np.asarray(factor * (left * np.geomspace(condition**0.5, condition**-0.5, h)) @ right)

    return drawn


_ILL = "ill-conditioned elements"
ELEMENTS: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "rotations": _element(1.0),
    "scalings": lambda h, rng: 0.3 * np.eye(h),
    "scalings by powers of 2": lambda h, rng: 4.0 * np.eye(h),
    "general elements": _element(3.0, 1.3),
    _ILL: _element(100.0, 1.3),
}
_LARGER = {
    "scalings": ("scalings by powers of 2",),
    "general elements": ("rotations", "scalings", "scalings by powers of 2"),
    _ILL: ("rotations", "scalings", "scalings by powers of 2", "general elements"),
}
"""What larger classes of elements contain."""


@dataclass(frozen=True)
class Trial:
    """What is compared at a start.

    Attributes
    ----------
    element : str
        The class of A.
    factor : float
        The size of the loss beside the one that the rule likes.
    scale : float
        The size itself, if it is not 0; then for a few steps.
    in_thread : bool
    """

    element: str
    factor: float = 1.0
    scale: float = 0.0
    in_thread: bool = False


def trials(rule: Rule) -> list[tuple[Features, Trial]]:
    """Which comparisons are made where: each of them twice, where it meets most that it has not met."""
    points = starts(rule.points.profile, rule.points.seed)
    classes = [name for name in ELEMENTS if name == "rotations" or rule.relaxation == 0.0]
    if rule.precision.name != "float64":
        classes = [name for name in classes if name != _ILL]
    several = [Trial(name, factor) for name, factor in itertools.product(classes, _LIMITS[:3])]
    several += [Trial(name, in_thread=True) for name in classes[:1]]
    several += [Trial(classes[j % len(classes)], scale=scale) for j, scale in enumerate(SCALES)]
    wide = [i for i, one in enumerate(points) if one.h > 1]
    every = [*range(len(points))]
    asked = [(trial, every if trial.element.startswith("scalings") else wide) for trial in several]
    once, twice = asked, [one for one in asked if not one[0].scale]
    found = distribute([sorted(all_levels(one)) for one in points], [*once, *twice, *twice])
    return [(point, trial) for point, some in zip(points, found, strict=True) for trial in some]


# What is seen --------------------------------------------------------------------------------------------------------


def _compared(rule: Rule, start: Start, trial: Trial) -> list[Evidence]:
    """Evidence of each step: the trajectory from a start beside that from another point of its orbit.

    `subject` is the class of the element, `condition` the step; an error is a share of both ways.
    """
    scale, count = (trial.scale, 3) if trial.scale else (trial.factor * rule.scale(start), STEPS)
    is_usual = not trial.scale and trial.factor == 1.0  # where something is to be expected
    there, place = rule.at(start, trial.element), f"{start.name}/{trial.element}"
    if not is_usual and rule.unease(start, scale, count) == np.inf:
        return []
    walks: list[tuple[Start, Trajectory]] = []
    errors: dict[str, NoResult] = {}
    for where, begun, in_thread in (("(G, H)", start, False), ("(G A⁻¹, H Aᵀ)", there, trial.in_thread)):
        try:
            walks.append((begun, rule.walk(begun, scale, count, in_thread=in_thread)))
        except NoResult as failure:
            errors[where] = failure
    other_events = [one for one in errors.values() if one.event is not Event.FAILED]
    if other_events:
        return [Evidence(start.name, event=other_events[0].event, detail=str(other_events[0]), sizes=start.sizes)]
    try:
        units = [rule.unit(begun, scale, walked) for begun, walked in walks]
    except NoResult:
        return []  # a rounding decides whether there is an error
    if not walks:
        return [_of_both(start, str(errors["(G, H)"]))] if is_usual else []
    if errors:  # which says nothing where the other trajectory has no digits left
        ((_, walked),) = walks
        tells = _tells(units[0], walked.travelled)[-1]
        return [_of_failure(start, trial, *one) for one in errors.items()] if tells else []
    (_, walked), (_, other) = walks
    unit = units[0] + units[1]
    end = min((one.end for one in (walked, other) if one.end is not None), default=None)
    alike = walked.end == other.end or (
        trial.element != _ILL and rule.ends_alike(start, scale, walked) and rule.ends_alike(there, scale, other)
    )
    if not alike:
        unit[end:] = np.inf  # rounding decides whether it ends
    found = _shares(place, trial.element, start, walked, other, unit, end)
    if is_usual and walked.end is not None and walked.end == other.end:
        said = f"after step {end}, G, H or G Hᵀ is not finite, for every size of the loss that was tried"
        found.append(_of_both(start, said))
    return found


def _of_both(start: Start, said: str) -> Evidence:
    """No result from both representations: it does not contradict that they are alike, and shows nothing."""
    return Evidence(start.name, event=Event.NOT_IMPLEMENTED, detail=said, sizes=start.sizes)


def _shares(
    place: str, subject: str, start: Start, walked: Trajectory, other: Trajectory, unit: Array, end: int | None
) -> list[Evidence]:
    errors, ways = _apart(other, walked.products), walked.travelled + other.travelled
    size, found, telling = float(np.linalg.norm(walked.products[0])), [], _tells(unit, ways)
    for k in range(1, len(errors)):
        with np.errstate(all="ignore"):
            tells = telling[k]
            if k == end:
                tells = unit[k] <= _EXCESS * (size + ways[k])
            share = float(np.nan_to_num(errors[k] / ways[k], nan=0.0, posinf=1.0))
            relative = max(float(np.nan_to_num(unit[k] / ways[k], nan=np.inf, posinf=np.inf)), 1e-300)
        if np.isfinite(relative) and ways[k] > 0.0:
            found.append(
                Evidence(place, (), float(k), min(share, 1.0), relative, relative, bool(tells), subject=subject,
                         sizes=start.sizes, detail="ends" if k == end and np.isinf(errors[k]) else "")
            )  # fmt: skip
    return found


def _of_failure(start: Start, trial: Trial, where: str, failure: NoResult) -> Evidence:
    """An error from one representation alone."""
    said = f"at the start {start.name}, from {where} with A from the {trial.element}: {failure}; from the other one of "
    said += "(G, H) and (G A⁻¹, H Aᵀ) there is no error, so it depends on the representation"
    return Evidence(start.name, event=Event.FAILED, detail=said, relative_error=np.inf, sizes=start.sizes)


def _tells(unit: Array, ways: Array) -> Array:
    """At which steps rounding leaves something to tell."""
    with np.errstate(all="ignore"):
        return np.asarray(SURELY_WRONG_RATIO * unit <= 0.1 * ways)


def _worst(found: Sequence[Evidence]) -> Evidence:
    """Of one comparison the largest difference, in units of rounding."""
    return max(found, key=lambda one: one.ratio * one.decisive)


def _of(event: Event, said: str = "", case: str = "", subject: str = "") -> CheckEvidence:
    message = said if event is Event.RESULT else ""
    return CheckEvidence([Evidence(case, event=event, detail=said, subject=subject)], message)


def combinations(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value for each option.

    Examples
    --------
    >>> combinations({"momentum": [0, 0.9], "rate": [0.1]})
    [{'momentum': 0, 'rate': 0.1}, {'momentum': 0.9, 'rate': 0.1}]
    """
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def label_of(chosen: Mapping[str, Any]) -> str:
    """What the row of a choice of options is called.

    Examples
    --------
    >>> label_of({"momentum": 0.9, "rate": 0.1})
    'momentum=0.9, rate=0.1'
    """
    return ", ".join(f"{option}={value}" for option, value in chosen.items())


def trajectory_evidence(
    backend: Backend,
    names: Collection[str],
    points: Points,
    options: Mapping[str, Sequence[Any]],
    progress: Callable[[int, int, str], None],
) -> Iterator[tuple[str, str, dict[str, Any], CheckEvidence]]:
    """For each of these names, for every combination of the rule's options: the check, the options in words and as they
    are, and what was seen; of rules of conduct, the check is one of these.
    """
    function = next(name for name in UPDATE_RULES if backend.provides(name))
    several = combinations(options)
    for i, chosen in enumerate(several):
        rule, label = Rule(backend, function, points, chosen), label_of(chosen)
        for j, name in enumerate(names):
            progress(i * len(names) + j, len(several) * len(names), f"trajectories: {name} {label}".rstrip())
            yield name, label, chosen, _judged(rule, name)
        for name in sorted({*rule.breaches, *WHOLE_RUN_RULES}):
            said = rule.breaches.get(name, "")
            event = Event.BROKEN if said else Event.RESULT if rule.has_walked else Event.NO_ORACLE
            yield name, label, chosen, _of(event, said, "trajectories", function)


def _judged(rule: Rule, name: str) -> CheckEvidence:
    if rule.precision.name not in ("float64", "float32"):
        said = f"refgeo judges trajectories in float64 and float32 only, not in {rule.precision.name}"
        return _of(Event.NO_ORACLE, said)
    try:
        return _LAWS[name](rule)
    except NoResult as failure:
        return _of(failure.event, str(failure))


# The laws ------------------------------------------------------------------------------------------------------------


def _invariant(rule: Rule) -> CheckEvidence:
    start = rule.start(_USUAL)
    walked = rule.walk(start, rule.scale(start))
    if walked.end is not None:
        said = f"after step {walked.end}, G, H or G Hᵀ is not finite, for every size of the loss that was tried"
        return _of(Event.FAILED, said, start.name)
    seen = Comparisons.of(rule)
    missed = {trial.element for _, trial in seen.asked} - {one.subject for one in seen.evidence}
    again = rule.repeats.evidence[0]  # what differs by itself is taken for rounding
    if again.event is Event.FAILED:
        return _of(Event.NO_ORACLE, f"{again.detail}; so no two of them can be compared")
    if not seen.told:
        said = "no trajectory stays finite and moves G Hᵀ by more than rounding explains"
        return CheckEvidence(seen.evidence) if seen.failures else _of(Event.NO_ORACLE, said)
    shown = max(seen.told, key=lambda some: _worst(some).ratio)
    shown = [replace(one, decisive=False, multiplicity=0, case=f"{one.case}/step{one.condition:.0f}") for one in shown]
    evidence = [*seen.evidence, *(one for one in shown if one.condition in SHOWN)]
    if is_beyond_rounding(evidence):
        return CheckEvidence(evidence, _in_words(rule, seen.told))
    if missed and not seen.failures:
        few = f"in only {len(seen.told)} of {len(seen.asked)} pairs of trajectories, rounding is small enough"
        return _of(Event.NO_ORACLE, f"{few} for a verdict, and in none with {' or '.join(sorted(missed))}")
    last = [[one for one in some if one.decisive][-1] for some in seen.told if some[0].subject != _ILL]
    digits = -np.log10(max(one.relative_error for one in last) + 1e-17)
    group = "O(h)" if rule.relaxation > 0.0 else "GL(h)"
    widest = Scope.of("trajectory", evidence)
    said = (
        f"{'' if rule.precision.name == 'float64' else 'as far as float32 tells, and without ill-conditioned A, '}"
        f"the optimiser is invariant under {group} at {widest.summary}: "
        f"G Hᵀ agrees to {digits:.0f} digits after {STEPS} steps, or the last ones that tell something, in "
        f"{len(seen.told)} pairs of trajectories"
    )
    return CheckEvidence(evidence, "" if seen.failures else said)


@dataclass(frozen=True)
class Comparisons:
    """All comparisons of a rule.

    Attributes
    ----------
    asked : list of (Features, Trial)
    told : list of list of Evidence
        Those that say something, step by step.
    failures : list of Evidence
    """

    asked: list[tuple[Features, Trial]]
    told: list[list[Evidence]]
    failures: list[Evidence]

    @classmethod
    def of(cls, rule: Rule) -> Comparisons:
        """What is seen of a rule."""
        asked = trials(rule)
        compared = [_compared(rule, rule.start(point), trial) for point, trial in asked]
        failures = [one for some in compared for one in some if one.event is not Event.RESULT]
        told = [some for some in compared if any(one.decisive and one.event is Event.RESULT for one in some)]
        return cls(asked, told, failures)

    @property
    def evidence(self) -> list[Evidence]:
        """Of each comparison the worst step, and the first error, or all that give no result."""
        errors = [one for one in self.failures if one.event is not Event.NOT_IMPLEMENTED]
        return [*map(_worst, self.told), *(errors[:1] or self.failures)]


def _in_words(rule: Rule, told: Sequence[Sequence[Evidence]]) -> str:
    """How a rule depends on the representation, a line each: from which step on, by how much, under what not."""
    least = _SLIGHT * max(one.relative_error for some in told for one in some if one.is_likely_wrong)
    broken = [[one for one in some if one.is_likely_wrong and one.relative_error >= least] for some in told]
    first = min((some[0] for some in broken if some), key=lambda one: (one.condition, -one.relative_error))
    last = next(some[-1] for some in broken if first in some)
    name = first.case.rpartition("/")[0]
    point = next(one for one in starts(rule.points.profile, rule.points.seed) if one.name == name)
    seen = [one for some in (*told, *_by_class(rule, point)) for one in some]
    kept = _kept(seen)
    after = f", and by {last.relative_error:.2g} after step {last.condition:.0f}" if last is not first else ""
    differs = f"the products from (G, H) and from (G A⁻¹, H Aᵀ) differ by {first.relative_error:.2g} of both their ways"
    if first.detail:
        differs, after = "one of the two trajectories is no longer finite", ""
    under = f"only under {' and '.join(kept)}" if kept else "under none of the matrices A that were tried"
    largest = {
        one.subject: one.relative_error for one in sorted(seen, key=lambda one: one.relative_error) if one.decisive
    }
    sizes = ", ".join(f"{name} {largest[name]:.1g}" for name in ELEMENTS if largest.get(name))
    said = (
        f"from step {first.condition:.0f} on, G Hᵀ depends on the representation: {differs}{after} (point {name}, A: "
        f"{first.subject})",
        f"the largest differences, over all points and sizes of the loss, of at most 1: {sizes}",
        f"the optimiser is invariant {under}",
    )
    return "\n".join([*said, *_offers(rule, seen, kept, point)])


def _by_class(rule: Rule, point: Features) -> list[list[Evidence]]:
    """Of each class of elements the differences at a point, step by step."""
    found = [_compared(rule, rule.start(point), Trial(element)) for element in _classes(rule, point)]
    return [some for some in found if some and some[0].event is Event.RESULT]


def _classes(rule: Rule, point: Features) -> list[str]:
    return [name for name in ELEMENTS if (point.h > 1 or name.startswith("scalings"))
            and (name != _ILL or rule.precision.name == "float64")]  # fmt: skip


def _kept(seen: Iterable[Evidence]) -> list[str]:
    """The classes of elements under which it is invariant."""
    seen = list(seen)
    no = {one.subject for one in seen if one.is_likely_wrong}
    yes = {one.subject for one in seen if one.decisive} - no
    kept = {name for name in yes if {*_LARGER.get(name, ())} <= yes}
    inner = {part for name in kept for part in _LARGER.get(name, ())}
    return [name for name in ELEMENTS if name in kept - inner]


def _offers(rule: Rule, seen: Sequence[Evidence], kept: Collection[str], point: Features) -> Iterator[str]:
    """What somebody can declare who knows why, and what that would leave."""
    if "rotations" in kept:
        left = max(one.relative_error for one in seen if one.subject == "rotations" and one.decisive)
        yield (
            f"with --relaxation ε, rotations alone are asked for, which leave a difference of {left:.1g}: right for a "
            "rule that adds an ε, and for any other it hides the mistake"
        )
    exact = not any(one.is_likely_wrong for one in seen if one.subject == "scalings by powers of 2")  # no rounding
    if rule.precision.name == "float64" and exact and "rotations" not in kept:  # which round, too
        alike = Rule(rule._backend, rule.function, replace(rule.points, dtype="float32"), rule.options)
        single, there = Comparisons.of(alike), [one for some in _by_class(alike, point) for one in some]
        found = [*single.evidence, *there]
        if any(one.decisive for one in there) and not single.failures and not is_beyond_rounding(found):
            left = max(one.relative_error for one in found)
            yield (
                f"with --dtype float32, rounding is as large as all differences, which leaves {left:.1g}: right for a "
                "rule that computes in float32, and for any other it hides the mistake"
            )


def _repeatable(rule: Rule) -> CheckEvidence:
    """A trajectory alone, first thing in a process, and again: at a usual start in every circumstance, and at one of
    every band of h again, and in turn with others.
    """
    by_band = {size_levels(one)["h"]: one for one in reversed(starts(rule.points.profile, rule.points.seed))}
    found: list[Evidence] = []
    for features in (_USUAL, *by_band.values()):
        start = rule.start(features)
        with rule.alone() if features is _USUAL else nullcontext(rule) as fresh:
            scale = rule.scale(start)
            try:
                first = fresh.walk(start, scale)
                depends = bool(_apart(fresh.walk(start, scale, stream=1), first.products).any())
            except NoResult:
                if features is _USUAL:
                    raise
                continue
        rounding = rule.rounding(start, first)
        for words, how in _circumstances(rule, start, scale, features is _USUAL, has_random_numbers=depends):
            errors = _apart(rule.walk(start, scale, **how), first.products)
            k = int(np.argmax(errors != 0.0))  # later differences are amplified; a number that ends both is none
            if errors[k] > WRONG_RATIO * rounding[0]:
                said = f"from step {k} on, a run from the same start differs from the first one in a process, {words}: "
                said += "the optimiser uses what another run left, or random numbers of a generator of its own"
                return _of(Event.FAILED, said, start.name)
        found.append(Evidence(start.name, event=Event.RESULT, sizes=start.sizes))
    return CheckEvidence(found)


def _circumstances(
    rule: Rule, start: Start, scale: float, every: bool, has_random_numbers: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is before a trajectory, between its steps, and beside it: others, each with any part changed; if not `every`
    one is wanted, again and in turn with all others.
    """
    others = {name: change(start) for name, change in OTHERS.items()}
    yield "if it is made again", {}
    for name, other in others.items() if every else ():
        yield f"after one {name}", {"preceding": (rule.call(other, scale),)}
        yield f"with steps of one {name} between its own", {"between": (other,)}
    yield "with steps of several others between its own", {"between": tuple(others.values())}
    if every:
        yield "in another thread", {"in_thread": True}
    if every and not has_random_numbers:  # which two threads share
        yield "beside another one in another thread", {"concurrent": (rule.call(others["with another loss"], scale),)}


OTHERS: dict[str, Callable[[Start], Start]] = {
    "from the same start": lambda start: start,
    "with another loss": lambda start: replace(start, Y=start.Y[::-1]),
    "from nearly the same start": lambda start: replace(start, G=start.G * (1.0 + 2.0**-40)),
    "from twice as large a start": lambda start: replace(start, G=2.0 * start.G, Y=2.0 * start.Y),
    "with G and H exchanged": lambda start: replace(start, G=start.H, H=start.G, Y=start.Y.T),
    "with fewer rows": lambda start: replace(start, G=start.G[:-1], Y=start.Y[:-1]),
}
"""Other trajectories, of each what is changed."""


def _blocks(rule: Rule) -> CheckEvidence:
    if rule.function == "make":
        return _of(Event.NO_ORACLE, "refgeo gives one pair to an optimiser of PyTorch, not a batch")
    found: list[Evidence] = []
    for start in map(rule.start, _BATCHES):
        scale = rule.scale(start.block(next(np.ndindex(start.G.shape[:-2]))))
        for factor in _LIMITS:
            try:
                found += _apart_from_blocks(rule, start, factor * scale)
            except NoResult as failure:
                said = f"the optimiser takes no leading dimensions: {str(failure).splitlines()[0]}"
                refused = Evidence(start.name, event=Event.NOT_IMPLEMENTED, detail=said)
                return CheckEvidence([Evidence(start.name), refused])
    if not found:
        return _of(Event.NO_ORACLE, "no block alone is without an error, or moves")
    if not any(one.is_likely_wrong for one in found):
        return CheckEvidence([Evidence(one.case, event=Event.RESULT, sizes=one.sizes) for one in found])
    again = rule.repeats.evidence[0]
    if again.event is Event.FAILED:
        return _of(Event.NO_ORACLE, f"{again.detail}; so no two of them can be compared")
    worst = _worst(found)
    said = (
        "the blocks of a batch change each other: in the batch, G Hᵀ differs from that of a block alone by "
        f"{worst.relative_error:.2g} of both their ways"
    )
    return _of(Event.BROKEN, said, worst.case)


def _apart_from_blocks(rule: Rule, start: Start, scale: float) -> list[Evidence]:
    """A batch beside its blocks alone; nothing where one of these has an error."""
    blocks = start.G.shape[:-2]
    try:
        alone = [rule.walk(start.block(block), scale) for block in np.ndindex(blocks)]
    except NoResult:
        return []
    parts = (np.stack([getattr(one, part) for one in alone], axis=1) for part in "GH")
    apart = Trajectory(*(x.reshape(len(x), *blocks, *x.shape[-2:]) for x in parts))
    together = rule.walk(start, scale)
    return _shares(start.name, "blocks", start, together, apart, rule.unit(start, scale, together), together.end)


def _starts(rule: Rule) -> CheckEvidence:
    start = rule.start(_USUAL)
    scale, asked = rule.scale(start), Trial("rotations" if rule.relaxation > 0.0 else "general elements")
    said, bad = [], False
    for name, begun in (("G", replace(start, G=0.0 * start.G)), ("H", replace(start, H=0.0 * start.H))):
        stuck = _stuck(rule, begun, scale)
        rule._scales[f"{name} = 0"] = scale
        found = [] if stuck else _compared(rule, replace(begun, name=f"{name} = 0"), asked)
        if stuck or is_beyond_rounding(found):
            said.append(f"from {name} = 0, {stuck or 'G Hᵀ depends on the representation'}")
        bad |= bool(stuck)
    if _stuck(rule, start, max(SCALES)) == _FROZEN:
        said, bad = [*said, f"with a large loss, {_FROZEN}"], True
    return _of(Event.BROKEN if bad else Event.RESULT, "; ".join(said), start.name)


_FROZEN = f"G Hᵀ does not move in {SHOWN[3]} steps"


def _stuck(rule: Rule, start: Start, scale: float) -> str:
    """Why a trajectory does not get away from its start."""
    try:
        walked = rule.walk(start, scale, count=SHOWN[3])
    except NoResult as failure:
        if failure.event is Event.NOT_IMPLEMENTED:
            raise
        return f"there is no result: {str(failure).splitlines()[0]}"
    if walked.end is not None:
        return f"G, H or G Hᵀ is not finite after step {walked.end}"
    return "" if walked.travelled.any() else _FROZEN


_LAWS: dict[str, Callable[[Rule], CheckEvidence]] = {
    "step.invariant": _invariant,
    "step.repeatable": lambda rule: rule.repeats,
    "step.blocks": _blocks,
    "step.starts": _starts,
}
