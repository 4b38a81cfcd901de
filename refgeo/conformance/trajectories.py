r"""Update rules with state on trial: whole trajectories from a point and from other points of its orbit.

A rule is invariant if the products :math:`X_k = G_kH_k^\top` of k steps from θ and from A·θ agree, for all k, on one
loss of X. That needs no metric, and it is stronger than equivariance of one step: moments that are transported by the
wrong matrix show at the second step. What a rule does to (G, H) beside X is a choice of gauge and is not judged.

*How much rounding may do.* The rule itself is the measure: the same trajectory again, with every number of G and H
changed at every step by a random share of 16 roundings, moves X_k by 16 times what rounding does, amplified as the rule
and the loss amplify it. The unit is that distance by 16, with one rounding of all that has been travelled, times κ² for
rules that form Gram matrices and invert them. As for values, a ratio above 1,000 at one place, or above 100 at three,
is beyond what rounding explains.

*Where.* Several shapes, three sizes of the loss (a rule's step size is its own: the first size is found by trying), at
one shape a few steps with any size (a rule can clip), and elements A of the group: a rotation, scalings, a mild and an
ill-conditioned one. A rule that is not invariant under all of them may be under some. One that fails only beside a
damping ε of its own is told by large weights, beside which ε is nothing; one that computes in float32 inside, by
powers of 2, which change nothing, and by the roundings of float32, which explain the rest.

*What the first step is.* Its dX, to first order in the changes of G and H, is compared with the rules that are known:
the gradients of the metrics, and *spectral*, :math:`ΔG = -η\, e_G (T \# e_G^\top e_G)^{-1}`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.call import BackendError, Call, Event, NoResult
from refgeo.conformance.evidence import BEYOND_DOUBT, MANY_TIMES, SEVERAL, Evidence
from refgeo.conformance.points import Points
from refgeo.conformance.precision import PRECISIONS, Precision, representable
from refgeo.conformance.scene import rng_of
from refgeo.conformance.steps import RULES, Walk, drawn_factor, slope
from refgeo.geometry.embedded import metric_on_pairs
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import MixedMetric
from refgeo.support.arguments import Array

STEPS = 25
SHOWN = (1, 2, 5, 10, 25)
"""The steps of which a report speaks."""
_NOISE, _LARGE = 16.0, 256.0
_SMALL = 1e-5
"""A mistake in a formula is of order one at generic points, and no smaller than this at every one of them."""
_KNOWN = ("inv", "mix", "s=0.5", "embedded", "spectral", "gradient descent")
TRAJECTORY = {
    "step.invariant": "k steps of the optimiser from (G, H) and from (G A⁻¹, H Aᵀ) give the same product G Hᵀ, for "
    "all A of GL(h)",
    "step.repeatable": "a new run of the optimiser from the same start gives the same trajectory",
    "step.blocks": "in a batch of blocks, each block takes the steps that it takes alone",
    "step.starts": "from G = 0, from H = 0, and with a large loss, the optimiser moves X = G Hᵀ; from G = 0 and "
    "from H = 0, all numbers stay finite",
    "step.reads": "which known rule the first step follows, such as the gradient of mix",
}
_SCALES = tuple(4.0**j for j in range(-12, 13))
_FAR = 0.4
"""A good trajectory of so many times its start's own length: beyond it, many a right rule is no longer stable."""
_SHAPES = ((6, 5, 2), (5, 8, 3), (4, 4, 3), (7, 9, 1), (8, 6, 4))
_SWEPT = (5, 6, 2)
"""At this one, a few steps with a loss of every size: for what a rule does with large or small gradients only."""
_EXCESS = 1e-4
"""A trajectory that ends with a NaN says something where rounding has moved it by less than this share until then."""


@dataclass(frozen=True)
class Start:
    """Where a trajectory begins, and its loss."""

    name: str
    G: Array
    H: Array
    Y: Array
    size: float

    @classmethod
    def drawn(cls, sizes: tuple[int, ...], seed: int) -> Start:
        """Factors of condition number 2, and a target as far from their product as that is long."""
        *blocks, n, m, h = sizes
        name = "x".join(map(str, sizes))
        rng = rng_of(seed, f"trajectory {name}")
        G, H = (drawn_factor(rng, rows, h, tuple(blocks)) for rows in (n, m))
        size = float(np.sqrt(h / (n * m)))
        return cls(name, G, H, G @ H.mT + size * rng.standard_normal((*blocks, n, m)), size)

    def at(self, A: Array) -> Start:
        """The same loss from A·θ."""
        return replace(self, G=self.G @ np.linalg.inv(A), H=self.H @ A.T)

    def block(self, i: int) -> Start:
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
    """A rule of a backend, in one precision and with some options."""

    def __init__(self, backend: Backend, function: str, points: Points, options: Mapping[str, Any]) -> None:
        self._backend, self.function, self.options = backend, function, dict(options)
        self.precision, self.seed, self.relaxation = PRECISIONS[points.dtype], points.seed, points.relaxation
        self.roundoff = self.precision.roundoff
        self._scales: dict[str, float] = {}

    def computing_in(self, precision: Precision) -> Rule:
        """The same rule, held against the roundings of another precision."""
        other = copy.copy(self)
        other.roundoff = precision.roundoff
        return other

    def start(self, sizes: tuple[int, ...]) -> Start:
        """A start of these sizes, in the rule's precision."""
        return self.rounded(Start.drawn(sizes, self.seed))

    def rounded(self, start: Start) -> Start:
        """What the rule really gets."""
        G, H = representable(Pair(start.G, start.H), self.precision.name)
        return replace(start, G=G, H=H)

    def elements(self, start: Start) -> dict[str, Array]:
        """Those of the group that a start is compared with."""
        return elements(start.G.shape[-1], self.precision.name, rng_of(self.seed, f"elements {start.name}"))

    def walk(self, start: Start, scale: float, count: int = STEPS, noise: float = 0.0, seed: int = 0) -> Trajectory:
        """The trajectory."""
        arrays = [x.astype(self.precision.carrier) for x in (start.G, start.H)] + [start.Y]
        walk = Walk(count, scale, start.size, noise * self.roundoff, seed, self.options)
        shapes = [(count + 1, *start.G.shape), (count + 1, *start.H.shape)]
        call = Call(self.function, "", arrays, (vars(walk),), shapes, decisive=True, do="trajectory")
        return Trajectory(*self._backend.call(call).result())

    def scale(self, start: Start) -> float:
        """A size of the loss with which the rule moves X by about its own length and stays at good points."""
        if start.name not in self._scales:
            self._scales[start.name] = min(_SCALES, key=lambda scale: self.unease(start, scale))
        return self._scales[start.name]

    def scales(self, start: Start) -> Iterator[float]:
        """Three sizes of the loss, those of them with which the trajectory stays at good points."""
        scale = self.scale(start)
        yield scale
        yield from (factor * scale for factor in (2.0**-6, 2.0**4) if self.unease(start, factor * scale) < np.inf)

    def unease(self, start: Start, scale: float, count: int = STEPS) -> float:
        """How far the length of a trajectory is from a good one; infinite where it leads to bad points."""
        try:
            walked = self.walk(start, scale, count)
        except NoResult:
            return np.inf
        if walked.end is not None or walked.condition.max() > 1e3:
            return np.inf
        length = walked.travelled[-1] / _lengths(walked.products[:1])[0]
        return float(abs(np.log(max(length, 1e-300) / _FAR)))

    def rounding(self, start: Start, walked: Trajectory) -> Array:
        """One rounding of all that has been travelled, as a route over Gram matrices makes it."""
        rows = float(np.sqrt(max(start.G.shape[-2], start.H.shape[-2])))
        size = float(np.linalg.norm(walked.products[0])) + walked.travelled
        with np.errstate(all="ignore"):
            return np.asarray(self.roundoff * rows * size * walked.condition**2)

    def unit(self, start: Start, scale: float, walked: Trajectory) -> Array:
        """What rounding does to X_k, also by the rule's own reaction to noise."""
        count = len(walked.G) - 1
        noisy = [self.walk(start, scale, count, _NOISE, seed) for seed in (1, 2)]
        moved = np.max([_apart(other, walked.products) for other in noisy], axis=0) / _NOISE
        with np.errstate(all="ignore"):
            return np.asarray(moved * walked.condition**2 + self.rounding(start, walked))

    def ends_alike(self, start: Start, scale: float, walked: Trajectory) -> bool:
        """Whether a trajectory ends after the same step whatever the noise."""
        count = len(walked.G) - 1
        return all(self.walk(start, scale, count, _NOISE, seed).end == walked.end for seed in range(1, 9))


@dataclass(frozen=True)
class Found:
    """How far two trajectories that should agree are from each other."""

    start: str
    element: str
    errors: Array
    units: Array
    travelled: Array
    size: float
    end: int | None

    @cached_property
    def _raw(self) -> Array:
        """Errors in units of rounding."""
        with np.errstate(all="ignore"):
            return np.nan_to_num(self.errors / self.units, nan=0.0, posinf=np.inf)

    @cached_property
    def tells(self) -> Any:
        """After which steps rounding leaves something to tell."""
        with np.errstate(all="ignore"):
            tells = np.asarray(BEYOND_DOUBT * self.units <= 0.1 * self.travelled)
            if self.end is not None:
                tells[self.end] = self.units[self.end] <= _EXCESS * (self.size + self.travelled[self.end])
        return tells

    @cached_property
    def ratios(self) -> Array:
        """Errors in units of rounding, where that leaves something to tell; else 0."""
        return np.where(self.tells, self._raw, 0.0)

    @property
    def decisive(self) -> bool:
        """Whether a verdict can rest on it."""
        return bool(self.tells.any())

    @property
    def worst(self) -> float:
        """The largest ratio."""
        return float(self.ratios.max())

    @cached_property
    def first(self) -> int:
        """The step from which on there is a difference that neither rounding nor a small constant explains."""
        beyond = (self._raw > MANY_TIMES) | (self.ratios > MANY_TIMES)
        large = beyond & np.array([self.share(k) >= _SMALL for k in range(len(beyond))])
        return int(np.argmax(large if large.any() else beyond))

    @property
    def largest(self) -> float:
        """The largest share of all steps."""
        return max(self.share(k) for k in range(1, len(self.errors)))

    def share(self, k: int) -> float:
        """The difference after k steps as a share of the way."""
        with np.errstate(all="ignore"):
            k = min(k, len(self.errors) - 1)
            return float(np.nan_to_num(self.errors[k] / self.travelled[k], nan=0.0, posinf=np.inf))

    @property
    def seen(self) -> Evidence:
        """The largest difference, in units of rounding."""
        k = int(np.argmax(self.ratios))
        unit = float(self.units[k] / self.travelled[k]) if self.travelled[k] > 0.0 else 1.0
        return Evidence(f"{self.start}/{self.element}", (), float(k), self.worst * unit, unit, unit)

    def measurements(self) -> Iterator[Evidence]:
        """One for each step that is shown; `condition` is the step."""
        for k in SHOWN:
            if k < len(self.errors) and self.travelled[k] > 0.0 and np.isfinite(self.units[k]):
                unit = float(self.units[k] / self.travelled[k])
                where = f"{self.start}/{self.element}/step{k}"
                yield Evidence(where, (), float(k), self.share(k), unit, unit, False)


_ILL = "ill-conditioned elements"
_LARGER = {
    "scalings": ("scalings by powers of 2",),
    "general elements": ("rotations", "scalings", "scalings by powers of 2"),
    _ILL: ("rotations", "scalings", "scalings by powers of 2", "general elements"),
}
"""What larger classes of elements contain."""


def elements(h: int, dtype: str, rng: np.random.Generator) -> dict[str, Array]:
    """Elements of the group by name, the special ones first."""

    def drawn(condition: float) -> Array:
        left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
        return np.asarray((left * np.geomspace(condition**0.5, condition**-0.5, h)) @ right)

    found = {"rotations": drawn(1.0), "scalings": 0.3 * np.eye(h), "scalings by powers of 2": 4.0 * np.eye(h)}
    mild, ill = ("general elements", 1.3 * drawn(3.0)), (_ILL, 1.3 * drawn(100.0))
    return found | dict([mild, ill][: 0 if h == 1 else 2 if dtype == "float64" else 1])


@dataclass(frozen=True)
class Judged:
    """What was seen of one law.

    Attributes
    ----------
    evidence : list of Evidence
    message : str
    excused : str
        Of a difference that is no wrong formula, what explains it.
    """

    evidence: list[Evidence]
    message: str = ""
    excused: str = ""


def _of(event: Event, said: str = "", case: str = "") -> Judged:
    return Judged([Evidence(case, event=event, said=said)], said if event is Event.RESULT else "")


def trajectory_evidence(
    backend: Backend,
    names: Collection[str],
    points: Points,
    options: Mapping[str, Sequence[Any]],
    progress: Callable[[int, int, str], None],
) -> Iterator[tuple[str, str, dict[str, Any], Judged]]:
    """For each of these names, for every combination of the rule's options: the check, the options in words and as they
    are, and what was seen.
    """
    function = next(name for name in RULES if backend.provides(name))
    combinations = [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]
    for i, chosen in enumerate(combinations):
        rule = Rule(backend, function, points, chosen)
        label = ", ".join(f"{option}={value}" for option, value in chosen.items())
        for j, name in enumerate(names):
            progress(i * len(names) + j, len(combinations) * len(names), f"trajectories: {name} {label}".rstrip())
            yield name, label, chosen, _judged(rule, name)


def _judged(rule: Rule, name: str) -> Judged:
    if rule.precision.name not in ("float64", "float32"):
        said = f"refgeo judges trajectories in float64 and float32 only, not in {rule.precision.name}"
        return _of(Event.UNKNOWN, said)
    try:
        return _LAWS[name](rule)
    except NoResult as failure:
        if rule.options and "unexpected keyword argument" in str(failure):
            raise BackendError(f"options: expected keyword arguments of {rule.function}, got {failure}") from None
        return _of(failure.event, str(failure))


# The laws ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raised:
    """A trajectory that ended with an error."""

    start: str
    element: str
    failure: NoResult


def _compared(
    rule: Rule, start: Start, scale: float, others: Mapping[str, Array], count: int = STEPS
) -> Iterator[Found | Raised]:
    """The trajectory from a start beside those from other points of its orbit."""
    try:
        walked = rule.walk(start, scale, count)
        unit, size = rule.unit(start, scale, walked), float(np.linalg.norm(walked.products[0]))
    except NoResult as failure:
        yield Raised(start.name, "", failure)
        return
    for name, A in others.items():
        there = rule.rounded(start.at(A))
        try:
            other = rule.walk(there, scale, count)
            unit_there = rule.unit(there, scale, other)
        except NoResult as failure:
            yield Raised(start.name, name, failure)
            continue
        units = unit + unit_there
        end = min((one.end for one in (walked, other) if one.end is not None), default=None)
        alike = walked.end == other.end or (
            name != _ILL and rule.ends_alike(start, scale, walked) and rule.ends_alike(there, scale, other)
        )
        if not alike:
            units[end:] = np.inf  # rounding decides whether it ends
        yield Found(start.name, name, _apart(other, walked.products), units, walked.travelled, size, end)


def _pairs(rule: Rule) -> Iterator[Found | Raised]:
    """Everything that is compared."""
    for i, sizes in enumerate((*_SHAPES, _SWEPT)):
        start = rule.start(sizes)
        others = rule.elements(start)
        if rule.relaxation > 0.0:
            others = {"rotations": others["rotations"]}
        if sizes == _SWEPT:
            some = ("rotations", "scalings by powers of 2", "general elements")
            few = {name: others[name] for name in others if name in some}
            for scale in _SCALES:
                if rule.unease(start, scale, count=3) < np.inf:
                    yield from _compared(rule, start, scale, few, count=3)
        else:
            for scale in itertools.islice(rule.scales(start), 3 if i < 2 else 1):
                yield from _compared(rule, start, scale, others)


def _invariant(rule: Rule) -> Judged:
    start = rule.start(_SHAPES[0])
    walked = rule.walk(start, rule.scale(start))
    if walked.end is not None:
        said = f"after step {walked.end}, G, H or G Hᵀ is not finite, for every size of the loss that was tried"
        return _of(Event.FAILED, said, start.name)
    everything = list(_pairs(rule))
    found = [one for one in everything if isinstance(one, Found)]
    raised = [one for one in everything if isinstance(one, Raised)]
    judged = [one for one in found if one.decisive]
    failures = [_of_raised(rule, raised)] if raised else []
    if not judged:
        said = "no trajectory stays finite and moves G Hᵀ by more than rounding explains"
        return Judged(failures or [Evidence("", event=Event.UNKNOWN, said=said)])
    shown = [one for kept in judged for one in kept.measurements()]
    evidence = [*(one.seen for one in judged), *failures]
    if not _beyond_rounding(judged):
        whole = [one for one in judged if len(one.errors) > STEPS and one.element != _ILL]
        if {one.element for one in found} - {one.element for one in whole} - {_ILL} and not failures:
            few = f"in only {len(judged)} of {len(found)} pairs of trajectories, rounding is small enough for a verdict"
            return _of(Event.UNKNOWN, f"{few}; these are too few; see step.repeatable")
        worst = max(judged, key=lambda one: one.worst)
        digits = -np.log10(max(one.share(STEPS) for one in whole or judged) + 1e-17)
        group = "O(h)" if rule.relaxation > 0.0 else "GL(h)"
        untried = "" if rule.precision.name == "float64" else " (in float32, no ill-conditioned A was tried)"
        said = (
            f"the optimiser is invariant under {group}{untried}: "
            f"after {STEPS} steps, G Hᵀ agrees to {digits:.0f} digits in {len(judged)} pairs of trajectories"
        )
        return Judged([*evidence, *worst.measurements()], "" if failures else said)
    broken = [one for one in judged if one.worst > MANY_TIMES]
    large = [one for one in broken if one.largest >= _SMALL] or broken
    first = min(one.first for one in large)
    worst = max((one for one in large if one.first == first), key=lambda one: one.share(first))
    said, excuse = _in_words(worst, _kept(judged, broken)), _excuse(rule, large, worst)
    return Judged([*evidence, *(shown if len(shown) < 40 else worst.measurements())], said + excuse, excuse)


def _of_raised(rule: Rule, raised: Sequence[Raised]) -> Evidence:
    """An error: from which start, and whether other points of its orbit give it, too."""
    one = raised[0]
    where = f"from (G A⁻¹, H Aᵀ) with A from the {one.element}" if one.element else "from (G, H)"
    elsewhere = [other.element for other in raised if other.start == one.start]
    depends = "; from (G, H) itself there is no error, so it depends on the representation" if one.element else ""
    if not one.element and all(not name for name in elsewhere):
        start = next(start for start in map(rule.start, (*_SHAPES, _SWEPT)) if start.name == one.start)
        there = rule.rounded(start.at(rule.elements(start)["scalings by powers of 2"]))
        try:
            rule.walk(there, rule.scale(start))
            depends = "; from (G A⁻¹, H Aᵀ) there is no error, so it depends on the representation"
        except NoResult:
            depends = "; from (G A⁻¹, H Aᵀ) there is an error, too"
    said = f"at the start {one.start}, {where}: {one.failure}{depends}"
    return Evidence(one.start, event=one.failure.event, said=said, relative_error=np.inf)


def _kept(judged: Sequence[Found], broken: Sequence[Found]) -> list[str]:
    """The classes of elements under which it is invariant."""
    no = {one.element for one in broken}
    kept = [one.element for one in judged if not no & {one.element, *_LARGER.get(one.element, ())}]
    inner = {part for name in kept for part in _LARGER.get(name, ())}
    return [name for name in dict.fromkeys(kept) if name not in inner]


def _in_words(worst: Found, kept: Sequence[str]) -> str:
    last = len(worst.errors) - 1
    after = f", and by {_share(worst.share(last))} after step {last}" if last > worst.first else ""
    far = f"{_share(worst.share(worst.first))} the distance that they have travelled{after}"
    differs = f"the products from (G, H) and from (G A⁻¹, H Aᵀ) differ by {far}"
    if worst.first == worst.end:
        differs = "one of the two trajectories is no longer finite"
    under = f"only under {' and '.join(kept)}" if kept else "under none of the matrices A that were tried"
    where = f"(point {worst.start}, A: {worst.element}); the optimiser is invariant {under}"
    return f"from step {worst.first} on, G Hᵀ depends on the representation: {differs} {where}"


def _excuse(rule: Rule, large: Sequence[Found], worst: Found) -> str:
    """What explains a difference and is no wrong formula: a small constant, a damping, or a lower precision inside."""
    if worst.largest < _SMALL:
        return "; such a small difference comes from a very small or very large constant, not from a wrong formula"
    exact = all(one.element != "scalings by powers of 2" for one in large)
    if exact and rule.precision.name == "float64":
        pairs = _pairs(rule.computing_in(PRECISIONS["float32"]))
        found = [one for one in pairs if isinstance(one, Found) and one.decisive]
        if found and not _beyond_rounding(found):
            return (
                "; scalings by powers of 2 change nothing, and rounding of float32 explains the other differences, "
                "so the optimiser seems to compute in float32"
            )
    far = _beside_large_weights(rule, worst)
    if far is not None and worst.share(worst.first) < 1.0 and _is_damping(worst, far):
        return (
            f"; with weights {_LARGE:g} times as large, the products differ by {far.share(worst.first):.2g} times this "
            "distance, so a damping such as an ε explains all of it"
        )
    return ""


def _is_damping(near: Found, far: Found) -> bool:
    """Whether every difference vanishes beside large weights: where it can be told, as that of a damping does.

    The standard is the largest share so far: near a minimum of the loss both trajectories forget what moved them apart.
    """
    steps = [k for k in range(1, STEPS + 1) if near.ratios[k] > MANY_TIMES]

    def vanishes(k: int) -> bool:
        left, peak = far.share(k), max(map(near.share, range(1, k + 1)))
        as_damping = left <= 30.0 / _LARGE**2 * peak or far.ratios[k] <= MANY_TIMES
        return bool(far.tells[k] and left <= 0.1 * peak and as_damping)

    return bool(steps) and all(map(vanishes, steps))


def _beyond_rounding(found: Iterable[Found]) -> bool:
    ratios = [one.worst for one in found] or [0.0]
    return max(ratios) > BEYOND_DOUBT or sum(ratio > MANY_TIMES for ratio in ratios) >= SEVERAL


def _share(share: float) -> str:
    return f"{share:.2g} times" if share < 100.0 else "more than 100 times"


def _beside_large_weights(rule: Rule, worst: Found) -> Found | None:
    """The same comparison with weights beside which a damping, which is divided by their square, is nothing."""
    near = next((start for start in map(rule.start, _SHAPES) if start.name == worst.start), None)
    if near is None:
        return None
    far = replace(near, G=_LARGE * near.G, H=_LARGE * near.H, Y=_LARGE**2 * near.Y, size=_LARGE**2 * near.size)
    far = replace(far, name=f"{near.name} times {_LARGE:g}")
    try:
        (found,) = _compared(rule, far, rule.scale(far), {worst.element: rule.elements(near)[worst.element]})
        if isinstance(found, Raised):
            return None
        driven = [_driven(rule, one) for one in (near, far)]
    except NoResult:
        return None
    return found if driven[1] > 0.1 * driven[0] else None  # else its steps do not grow with the weights


def _driven(rule: Rule, start: Start) -> float:
    """How far the loss moves X, as a share of its length: decay moves it without one."""
    ends = [rule.walk(start, scale) for scale in (rule.scale(start), 0.0)]
    return float(_apart(ends[0], ends[1].products)[-1] / np.linalg.norm(ends[0].products[0]))


def _repeatable(rule: Rule) -> Judged:
    start = rule.start(_SHAPES[0])
    scale = rule.scale(start)
    first, _, again = (rule.walk(one, scale) for one in (start, replace(start, Y=start.Y[::-1]), start))
    errors, rounding = _apart(again, first.products), rule.rounding(start, first)
    k = int(np.argmax(errors != 0.0))  # the first difference: later ones are amplified; a number that ends both is none
    if errors[k] <= MANY_TIMES * rounding[0]:
        return _of(Event.RESULT)
    said = (
        f"from step {k} on, a second run from the same start differs from the first: the optimiser uses what an "
        "earlier run left"
    )
    return _of(Event.FAILED, said, start.name)


def _blocks(rule: Rule) -> Judged:
    if rule.function == "make":
        return _of(Event.UNKNOWN, "refgeo gives one pair to an optimiser of PyTorch, not a batch")
    start = rule.start((2, 5, 4, 2))
    scale = rule.scale(start.block(0))
    alone = np.stack([rule.walk(start.block(i), scale).products for i in range(2)], axis=1)
    try:
        together = rule.walk(start, scale)
    except NoResult as failure:
        said = f"the optimiser takes no leading dimensions: {str(failure).splitlines()[0]}"
        return Judged([Evidence(start.name), Evidence(start.name, event=Event.NOT_IMPLEMENTED, said=said)])
    found = Found(
        start.name, "blocks", _apart(together, alone), rule.unit(start, scale, together), together.travelled,
        float(np.linalg.norm(together.products[0])), together.end,
    )  # fmt: skip
    if found.worst <= MANY_TIMES:
        return _of(Event.RESULT)
    far = f"{_share(found.share(STEPS))} the distance that it has travelled"
    said = f"the blocks of a batch change each other: in the batch, G Hᵀ differs from that of a block alone by {far}"
    return _of(Event.BROKEN, said, start.name)


def _starts(rule: Rule) -> Judged:
    start = rule.start(_SHAPES[0])
    scale, other = rule.scale(start), elements(start.H.shape[-1], rule.precision.name, rng_of(rule.seed, "starts"))
    said, bad = [], False
    for name, begun in (("G", replace(start, G=0.0 * start.G)), ("H", replace(start, H=0.0 * start.H))):
        stuck = _stuck(rule, begun, scale)
        pairs = [] if stuck else list(_compared(rule, begun, scale, {"general": other["general elements"]}))
        if stuck or _beyond_rounding(one for one in pairs if isinstance(one, Found)):
            said.append(f"from {name} = 0, {stuck or 'G Hᵀ depends on the representation'}")
        bad |= bool(stuck)
    if _stuck(rule, start, max(_SCALES)) == _FROZEN:
        said, bad = [*said, f"with a large loss, {_FROZEN}"], True
    return _of(Event.BROKEN if bad else Event.RESULT, "; ".join(said), start.name)


_FROZEN = f"G Hᵀ does not move in {SHOWN[3]} steps"


def _stuck(rule: Rule, start: Start, scale: float) -> str:
    """Why a trajectory does not get away from its start."""
    try:
        walked = rule.walk(start, scale, count=SHOWN[3])
    except NoResult as failure:
        return f"there is no result: {str(failure).splitlines()[0]}"
    if walked.end is not None:
        return f"G, H or G Hᵀ is not finite after step {walked.end}"
    return "" if walked.travelled.any() else _FROZEN


# The first step ------------------------------------------------------------------------------------------------------


def rule_moves(name: str, point: Pair, E: Array) -> tuple[Array, Array]:
    r"""The two parts of dX, by G and by H, of one step of length 1 of a known rule, where the loss has the gradient E.

    Examples
    --------
    >>> point = Pair([[2.0]], [[3.0]])
    >>> [sum(rule_moves(name, point, np.ones((1, 1)))).item() for name in ("gradient descent", "embedded", "spectral")]
    [-13.0, -1.0, -2.0]
    """
    e = Pair(E @ point.H, E.mT @ point.G)
    if name == "gradient descent":
        g = e
    elif name == "spectral":
        gauge = MixedMetric().at(point).gauge
        g = Pair(_polar(e.G @ gauge.white_H) @ gauge.white_H.mT, _polar(e.H @ gauge.white_G) @ gauge.white_G.mT)
    else:
        g = metric_on_pairs(name).at(point).riemannian_gradient(e)
    return np.asarray(-g.G @ point.H.mT), np.asarray(-point.G @ g.H.mT)


def _polar(matrix: Array) -> Array:
    """The orthonormal factor of a polar decomposition: msign."""
    U, _, V_transposed = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(U @ V_transposed)


_SHORT = 2.0**-12


@dataclass(frozen=True)
class FirstStep:
    """A first step beside the rules that are known.

    Attributes
    ----------
    start : Start
    residuals : dict of float
        By rule, what is left of dX, as a share, beside the rule with a step length of its own for each factor.
    rates : dict of (float, float)
        These step lengths.
    tolerance : float
        What rounding explains.
    turned : bool
        Whether the step leads to another gauge.
    """

    start: Start
    residuals: dict[str, float]
    rates: dict[str, tuple[float, float]]
    tolerance: float
    turned: bool

    @classmethod
    def of(cls, rule: Rule, sizes: tuple[int, ...], factor: float = 1.0) -> FirstStep:
        """The step of a rule, with a size of the loss that is multiplied by a factor."""
        start = rule.start(sizes)
        scale, point = factor * rule.scale(start), Pair(start.G, start.H)
        walked = rule.walk(start, scale, count=1)
        changes = [np.diff(F, axis=0)[0] for F in (walked.G, walked.H)]
        moved = (changes[0] @ start.H.mT + start.G @ changes[1].mT).ravel()
        share = float(_lengths(np.diff(walked.products, axis=0))[0] / np.linalg.norm(point.product))
        changed = max(float(np.linalg.norm(x) / np.linalg.norm(F)) for x, F in zip(changes, point, strict=True))
        turned = changed > 100.0 * share
        if turned:  # into another gauge: dX is known to the order of the step only
            moved = np.diff(walked.products, axis=0)[0].ravel()
        E = slope(point.product, start.Y, scale, start.size)
        length, residuals, rates = float(np.linalg.norm(moved)), {}, {}
        for name in _KNOWN:
            parts = np.stack([part.ravel() for part in rule_moves(name, point, E)], axis=-1)
            found = np.linalg.lstsq(parts, moved)[0] if np.isfinite(length) else np.full(2, np.nan)
            rates[name] = (float(found[0]), float(found[1]))
            residuals[name] = float(np.linalg.norm(moved - parts @ found)) / length if length > 0.0 else np.inf
        unit = rule.precision.roundoff * max(sizes) ** 0.5 * float(walked.condition[0]) ** 4
        far = 1.0 + float(np.linalg.norm(point.product)) / length if length > 0.0 else np.inf
        return cls(start, residuals, rates, BEYOND_DOUBT * unit * far + 10.0 * share * turned, turned)

    def is_one_of(self, name: str, least: float = 0.0) -> bool:
        """Whether rounding explains what is left of the step beside a rule."""
        return self.residuals[name] <= max(self.tolerance, least) < 0.01

    def rates_differ(self, name: str) -> bool:
        """Whether G and H have step lengths of their own."""
        of_G, of_H = self.rates[name]
        return not abs(of_G - of_H) <= max(self.tolerance, 1e-6) * max(abs(of_G), abs(of_H))


def _first_steps(rule: Rule, factor: float = 1.0) -> list[FirstStep]:
    return [FirstStep.of(rule, sizes, factor) for sizes in _SHAPES if sizes[-1] > 1]


def reading_of_step(rule: Rule) -> str:
    """Which known rule the first step follows, in words; empty if it is none of them."""
    steps = _first_steps(rule)
    for name in _KNOWN:
        if all(one.is_one_of(name) for one in steps):
            return f"the first step is that of {name}{_step_lengths(steps, name)}"
    for factor, size in ((_SHORT, "smaller"), (1.0 / _SHORT, "larger")):
        if factor < 1.0 and _is_bounded(rule):
            continue
        far = _first_steps(rule, factor)
        for name in _KNOWN:
            if all(one.is_one_of(name, 1e-3) for one in far):
                if all(one.turned for one in far):
                    return f"a short first step moves the product G Hᵀ as {name} does, but leads to other factors"
                off = 100.0 * max(one.residuals[name] for one in steps)
                return (
                    f"the {size} the loss, the nearer is the first step to that of {name}; with the loss of this "
                    f"check, it differs by {off:.2g}%"
                )
    return ""


_LARGER_LOSS, _GROWS = 64.0, 8.0


def _is_bounded(rule: Rule) -> bool:
    """Whether the step does not grow with the loss, as that of Adam: where it does for a small loss, that is its ε."""
    start = rule.start(_SHAPES[0])
    scale = rule.scale(start)
    with np.errstate(all="ignore"):
        lengths = [rule.walk(start, factor * scale, count=1).travelled[-1] for factor in (1.0, _LARGER_LOSS)]
    return bool(lengths[1] < _GROWS * lengths[0])


def _reads(rule: Rule) -> Judged:
    said = reading_of_step(rule)
    none = f"the first step is that of none of the known rules ({', '.join(_KNOWN)})"
    return _of(Event.RESULT if said else Event.UNKNOWN, said or none)


def _step_lengths(steps: Sequence[FirstStep], name: str) -> str:
    """In words, where they are the same for all sizes."""
    rates = np.array([one.rates[name] for one in steps])
    if np.ptp(rates, axis=0).max() > 1e-3 * np.abs(rates).max():
        return ", with step lengths that depend on the point"
    of_G, of_H = np.where(np.abs(rates[0]) > steps[0].tolerance * np.abs(rates[0]).max(), rates[0], 0.0)
    return f", with step length η = {of_G:.3g}" + (
        f" for G and {of_H:.3g} for H" if steps[0].rates_differ(name) else ""
    )


_LAWS: dict[str, Callable[[Rule], Judged]] = {
    "step.invariant": _invariant,
    "step.repeatable": _repeatable,
    "step.blocks": _blocks,
    "step.starts": _starts,
    "step.reads": _reads,
}
