r"""Judge update rules with state: whole trajectories from a point and from other points of its orbit.

A rule is invariant if the products :math:`X_k = G_kH_k^\top` of k steps from θ and from A·θ agree, for all k, on one
loss of X. This needs no metric, and it is stronger than the equivariance of one step: moments that are transported by
the wrong matrix are visible at the second step. How a rule changes (G, H) without changing X is a choice of gauge, and
is not judged.

*The unit of errors.* The rule itself measures the effect of rounding: in two further runs, every entry of
G and H is changed at every step by a random share of 16 roundings. This moves X_k by 16 times the effect of rounding,
amplified as the rule and the loss amplify it. The unit is this distance divided by 16, plus one rounding of the length
of the path, times κ² for rules that form and invert Gram matrices. A difference is measured relative to the lengths of
both paths, so it is at most 1. As for values, a ratio above 1,000 at one point, or above 100 at three, is not explained
by rounding.

*The comparisons.* Trajectories start at points of the covering design that are not too large. The size of the loss is
found by trials, because a rule has a step size of its own. It is also made 64 times smaller and 16 times larger, and
takes any size for a few steps, because a rule can clip. Elements A of the group are rotations, scalings, and mildly and
ill-conditioned matrices. A rule that is not invariant under all of them is WRONG. Its author may know that it is
damped, or computes in float32, and can declare this by the options ``relaxation`` and ``dtype``; the report says what
``relaxation`` would leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.judging.evidence import (
    SURELY_WRONG_RATIO,
    WRONG_RATIO,
    CheckEvidence,
    Evidence,
    is_beyond_rounding,
)
from refgeo.conformance.judging.scope import Scope
from refgeo.conformance.optimisers.update_rule import (
    ELEMENTS,
    FEW_STEPS,
    ILL_CONDITIONED,
    N_STEPS,
    SCALES,
    Rule,
    Start,
    Trajectory,
    product_distance,
)
from refgeo.conformance.points.covering_design import all_levels, covering_design, distribute, size_levels
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.call import UPDATE_RULES, Event, NoResult
from refgeo.conformance.protocol.conduct import WHOLE_RUN_RULES, first_line
from refgeo.support.arguments import Array

REPORTED_STEPS = (1, 2, 5, 10, 25)
"""The steps that a report shows."""
_MAX_COST, _MAX_CONDITION = 2_000, 30.0
"""Cost of a start (`Features.cost`), and its condition number; chosen."""
_GENERIC = Features(n=6, m=5, h=2)
"""The start at which a rule is first tested."""
_BATCHES = (
    Features((2,), 5, 4, 2), Features((2, 3), 4, 5, 3), Features((3,), 9, 8, 6), Features((2,), 20, 19, 17),
)  # fmt: skip
_LOSS_FACTORS = (1.0, 2.0**-6, 2.0**4, 2.0**8)
"""Sizes of the loss relative to a good one, at which a rule may reach its limits; chosen."""
_MAX_SHARE_BEFORE_END = 1e-4
"""Share by which rounding may have moved a trajectory before a NaN ends it, if the end is to be conclusive; chosen."""
_N_CONFIRMATIONS = 8
"""Number of fresh starts at which a class of elements is tried again before a report says that a rule is invariant."""
_MIN_SHARE = 1e-3
"""Share of the largest difference from which on a difference counts as its beginning; chosen."""


def starts(profile: str, seed: int) -> list[Features]:
    """Return the points of the covering design without their vectors, as far as a rule takes many steps there in a
    short time.
    """
    names = ("n", "m", "h", "gap", "turn", "balance", "alike", "identity", "normed", "zero_rows")
    points = [
        Features(
            **{name: getattr(f, name) for name in names},
            condition_G=min(f.condition_G, _MAX_CONDITION), condition_H=min(f.condition_H, _MAX_CONDITION),
        )
        for f in covering_design(profile, seed)
    ]  # fmt: skip
    return [f for f in dict.fromkeys(points) if f.is_feasible and f.cost <= _MAX_COST]


_SUBCLASSES = {
    "scalings": ("scalings by powers of 2",),
    "general elements": ("rotations", "scalings", "scalings by powers of 2"),
    ILL_CONDITIONED: ("rotations", "scalings", "scalings by powers of 2", "general elements"),
}
"""The classes of elements that larger classes contain."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of two points of an orbit.

    Attributes
    ----------
    element : str
        The class of A.
    factor : float
        The size of the loss relative to a good one.
    scale : float
        The size of the loss for a few steps, if it is not 0.
    in_thread : bool
    """

    element: str
    factor: float = 1.0
    scale: float = 0.0
    in_thread: bool = False


def plan_comparisons(rule: Rule) -> list[tuple[Features, Comparison]]:
    """Choose the starts of all comparisons: each is made at several starts, which together contain as many levels as
    possible.
    """
    points = starts(rule.points.profile, rule.points.seed)
    classes = [name for name in ELEMENTS if name == "rotations" or rule.relaxation == 0.0]
    if rule.precision.name != "float64":
        classes = [name for name in classes if name != ILL_CONDITIONED]
    comparisons = [Comparison(name, factor) for name, factor in itertools.product(classes, _LOSS_FACTORS[:3])]
    comparisons += [Comparison(name, in_thread=True) for name in classes[:1]]
    comparisons += [Comparison(classes[j % len(classes)], scale=scale) for j, scale in enumerate(SCALES)]
    wide = [i for i, point in enumerate(points) if point.h > 1]
    all_points = [*range(len(points))]
    requests = [(c, all_points if c.element.startswith("scalings") else wide) for c in comparisons]
    first, repeated = requests, [point for point in requests if not point[0].scale]
    assigned = distribute([sorted(all_levels(point)) for point in points], [*first, *repeated, *repeated])
    return [(point, comparison) for point, selected in zip(points, assigned, strict=True) for comparison in selected]


# What is seen --------------------------------------------------------------------------------------------------------


def _compare(rule: Rule, start: Start, comparison: Comparison) -> list[Evidence]:
    """Compare two trajectories of an optimiser, from a start and from an equivalent start; return evidence for each
    step.

    `subject` is the class of the group element, `condition` the step; an error is relative to the lengths of both
    paths.
    """
    scale = comparison.scale or comparison.factor * rule.scale(start)
    count = FEW_STEPS if comparison.scale else N_STEPS
    is_expected = not comparison.scale and comparison.factor == 1.0  # the size of the loss is a good one
    image, case = rule.at(start, comparison.element), f"{start.name}/{comparison.element}"
    if not is_expected and rule.scale_penalty(start, scale, count) == np.inf:
        return []
    runs: list[tuple[Start, Trajectory]] = []
    failures: dict[str, NoResult] = {}
    for where, begin, in_thread in (("(G, H)", start, False), ("(G A⁻¹, H Aᵀ)", image, comparison.in_thread)):
        try:
            runs.append((begin, rule.run(begin, scale, count, in_thread=in_thread)))
        except NoResult as failure:
            failures[where] = failure
    other_events = [x for x in failures.values() if x.event is not Event.FAILED]
    if other_events:
        return [Evidence(start.name, event=other_events[0].event, detail=str(other_events[0]), sizes=start.sizes)]
    try:
        units = [rule.unit(begin, scale, trajectory) for begin, trajectory in runs]
    except NoResult:
        return []  # a rounding decides whether there is an error
    if not runs:
        return [_no_result_from_both(start, str(failures["(G, H)"]))] if is_expected else []
    if failures:  # which says nothing where the other trajectory has no digits left
        ((_, trajectory),) = runs
        is_conclusive = _is_conclusive(units[0], trajectory.path_length)[-1]
        return [_failure_evidence(start, comparison, *x) for x in failures.items()] if is_conclusive else []
    (_, trajectory), (_, second) = runs
    unit = units[0] + units[1]
    end = min((x.end for x in (trajectory, second) if x.end is not None), default=None)
    ends_alike = trajectory.end == second.end or (
        comparison.element != ILL_CONDITIONED
        and rule.ends_alike(start, scale, trajectory)
        and rule.ends_alike(image, scale, second)
    )
    if not ends_alike:
        unit[end:] = np.inf  # rounding decides whether it ends
    evidence = _compare_products(case, comparison.element, start, trajectory, second, unit, end)
    if is_expected and trajectory.end is not None and trajectory.end == second.end:
        detail = f"after step {end}, G, H or G Hᵀ is not finite, for every size of the loss that was tried"
        evidence.append(_no_result_from_both(start, detail))
    return evidence


def _no_result_from_both(start: Start, detail: str) -> Evidence:
    """Make evidence without a result from either point: it neither contradicts invariance nor shows it."""
    return Evidence(start.name, event=Event.NOT_IMPLEMENTED, detail=detail, sizes=start.sizes)


def _compare_products(
    case: str, subject: str, start: Start, trajectory: Trajectory, second: Trajectory, unit: Array, end: int | None
) -> list[Evidence]:
    """Return evidence for each step of two trajectories."""
    errors, ways = product_distance(second, trajectory.products), trajectory.path_length + second.path_length
    size, evidence, conclusive = float(np.linalg.norm(trajectory.products[0])), [], _is_conclusive(unit, ways)
    for k in range(1, len(errors)):
        with np.errstate(all="ignore"):
            tells = conclusive[k]
            if k == end:
                tells = unit[k] <= _MAX_SHARE_BEFORE_END * (size + ways[k])
            share = float(np.nan_to_num(errors[k] / ways[k], nan=0.0, posinf=1.0))
            relative = max(float(np.nan_to_num(unit[k] / ways[k], nan=np.inf, posinf=np.inf)), 1e-300)
        if np.isfinite(relative) and ways[k] > 0.0:
            evidence.append(
                Evidence(case, (), float(k), min(share, 1.0), relative, relative, bool(tells), subject=subject,
                         sizes=start.sizes, detail="ends" if k == end and np.isinf(errors[k]) else "")
            )  # fmt: skip
    return evidence


def _failure_evidence(start: Start, comparison: Comparison, where: str, failure: NoResult) -> Evidence:
    """Make evidence of an error that occurred from only one of two equivalent starts."""
    detail = f"at the start {start.name}, from {where} with A from the {comparison.element}: {failure}; from "
    detail += "the other one of (G, H) and (G A⁻¹, H Aᵀ) there is no error, so it depends on the representation"
    return Evidence(start.name, event=Event.FAILED, detail=detail, relative_error=np.inf, sizes=start.sizes)


def _is_conclusive(unit: Array, ways: Array) -> Array:
    """Return for each step whether rounding is small enough for a conclusion."""
    with np.errstate(all="ignore"):
        return np.asarray(SURELY_WRONG_RATIO * unit <= 0.1 * ways)


def _worst(evidence: Sequence[Evidence]) -> Evidence:
    """Return the evidence with the largest test ratio of one comparison."""
    return max(evidence, key=lambda e: e.ratio * e.decisive)


def _make_evidence(event: Event, detail: str = "", case: str = "", subject: str = "") -> CheckEvidence:
    """Make evidence of one event."""
    message = detail if event is Event.RESULT else ""
    return CheckEvidence([Evidence(case, event=event, detail=detail, subject=subject)], message)


def combinations(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of one value for each option.

    Examples
    --------
    >>> combinations({"momentum": [0, 0.9], "rate": [0.1]})
    [{'momentum': 0, 'rate': 0.1}, {'momentum': 0.9, 'rate': 0.1}]
    """
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def label_of(chosen: Mapping[str, Any]) -> str:
    """Return the label of a combination of options in the name of a row.

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
    """Judge an update rule: yield (check, label, options, evidence) for each check and combination of options.

    For a rule of conduct, the check is its name.
    """
    function = next(name for name in UPDATE_RULES if backend.provides(name))
    choices = combinations(options)
    for i, chosen in enumerate(choices):
        rule, label = Rule(backend, function, points, chosen), label_of(chosen)
        for j, name in enumerate(names):
            progress(i * len(names) + j, len(choices) * len(names), f"trajectories: {name} {label}".rstrip())
            yield name, label, chosen, _judge_check(rule, name)
        for name in sorted({*rule.breaches, *WHOLE_RUN_RULES}):
            detail = rule.breaches.get(name, "")
            event = Event.BROKEN if detail else Event.RESULT if rule.has_result else Event.NO_ORACLE
            yield name, label, chosen, _make_evidence(event, detail, "trajectories", function)


def _judge_check(rule: Rule, name: str) -> CheckEvidence:
    """Return the evidence for one check of a rule."""
    if rule.precision.name not in ("float64", "float32"):
        detail = f"refgeo judges trajectories in float64 and float32 only, not in {rule.precision.name}"
        return _make_evidence(Event.NO_ORACLE, detail)
    try:
        return _LAWS[name](rule)
    except NoResult as failure:
        return _make_evidence(failure.event, str(failure))


# The laws ------------------------------------------------------------------------------------------------------------


def _check_invariant(rule: Rule) -> CheckEvidence:
    """Compare trajectories from points of one orbit."""
    start = rule.start(_GENERIC)
    trajectory = rule.run(start, rule.scale(start))
    if trajectory.end is not None:
        detail = f"after step {trajectory.end}, G, H or G Hᵀ is not finite, for every size of the loss that was tried"
        return _make_evidence(Event.FAILED, detail, start.name)
    test = InvarianceTest.of(rule)
    missed = {comparison.element for _, comparison in test.planned} - {e.subject for e in test.evidence}
    repetition = _repeatability(rule).evidence[0]  # what differs by itself is taken for rounding
    if repetition.event is Event.FAILED:
        return _make_evidence(Event.NO_ORACLE, f"{repetition.detail}; so no two of them can be compared")
    if not test.results:
        detail = "no trajectory stays finite and moves G Hᵀ by more than rounding explains"
        return CheckEvidence(test.evidence) if test.failures else _make_evidence(Event.NO_ORACLE, detail)
    reported = max(test.results, key=lambda results: _worst(results).ratio)
    reported = [replace(e, decisive=False, multiplicity=0, case=f"{e.case}/step{e.condition:.0f}") for e in reported]
    evidence = [*test.evidence, *(e for e in reported if e.condition in REPORTED_STEPS)]
    if is_beyond_rounding(evidence):
        return CheckEvidence(evidence, _describe_dependence(rule, test.results))
    if missed and not test.failures:
        share = f"in only {len(test.results)} of {len(test.planned)} pairs of trajectories, rounding is small enough"
        return _make_evidence(Event.NO_ORACLE, f"{share} for a verdict, and in none with {' or '.join(sorted(missed))}")
    last = [[e for e in r if e.decisive][-1] for r in test.results if r[0].subject != ILL_CONDITIONED]
    digits = -np.log10(max(e.relative_error for e in last) + 1e-17)
    group = "O(h)" if rule.relaxation > 0.0 else "GL(h)"
    widest = Scope.of("trajectory", evidence)
    detail = (
        f"{'' if rule.precision.name == 'float64' else 'as far as float32 tells, and without ill-conditioned A, '}"
        f"the optimiser is invariant under {group} at {widest.summary}: "
        f"G Hᵀ agrees to {digits:.0f} digits after {N_STEPS} steps, or the last ones that tell something, in "
        f"{len(test.results)} pairs of trajectories"
    )
    return CheckEvidence(evidence, "" if test.failures else detail)


@dataclass(frozen=True)
class InvarianceTest:
    """All comparisons of a rule.

    Attributes
    ----------
    planned : list of (Features, Comparison)
    results : list of list of Evidence
        The conclusive comparisons, step by step.
    failures : list of Evidence
    """

    planned: list[tuple[Features, Comparison]]
    results: list[list[Evidence]]
    failures: list[Evidence]

    @classmethod
    def of(cls, rule: Rule) -> InvarianceTest:
        """Make all comparisons of a rule."""
        planned = plan_comparisons(rule)
        compared = [_compare(rule, rule.start(point), comparison) for point, comparison in planned]
        failures = [e for evidence in compared for e in evidence if e.event is not Event.RESULT]
        results = [evidence for evidence in compared if any(e.decisive and e.event is Event.RESULT for e in evidence)]
        return cls(planned, results, failures)

    @property
    def evidence(self) -> list[Evidence]:
        """The worst step of each comparison, and the first error, or all failures if there are only such."""
        errors = [e for e in self.failures if e.event is not Event.NOT_IMPLEMENTED]
        return [*map(_worst, self.results), *(errors[:1] or self.failures)]


def _describe_dependence(rule: Rule, results: Sequence[Sequence[Evidence]]) -> str:
    """Describe how a rule depends on the representation, a line each: from which step on, by how much, under which
    elements.
    """
    min_error = _MIN_SHARE * max(e.relative_error for evidence in results for e in evidence if e.is_likely_wrong)
    broken = [[e for e in evidence if e.is_likely_wrong and e.relative_error >= min_error] for evidence in results]
    first = min((evidence[0] for evidence in broken if evidence), key=lambda e: (e.condition, -e.relative_error))
    last = next(evidence[-1] for evidence in broken if first in evidence)
    name = first.case.rpartition("/")[0]
    points = starts(rule.points.profile, rule.points.seed)
    point = next(f for f in points if f.name == name)
    all_evidence = [e for evidence in (*results, *_compare_classes(rule, point)) for e in evidence]
    fresh = [replace(f, draw=1) for f in points[:: -(-len(points) // _N_CONFIRMATIONS)]]
    for element in _invariant_classes(all_evidence):
        possible = [f for f in fresh if element in _classes(rule, f)]
        all_evidence += [e for f in possible for e in _compare(rule, rule.start(f), Comparison(element))]
    classes = _invariant_classes(all_evidence)
    after = f", and by {last.relative_error:.2g} after step {last.condition:.0f}" if last is not first else ""
    differs = f"the products from (G, H) and from (G A⁻¹, H Aᵀ) differ by {first.relative_error:.2g} of both paths"
    if first.detail:
        differs, after = "one of the two trajectories is no longer finite", ""
    under = f"only under {' and '.join(classes)}" if classes else "under none of the matrices A that were tried"
    largest = {e.subject: e.relative_error for e in sorted(all_evidence, key=lambda e: e.relative_error) if e.decisive}
    sizes = ", ".join(f"{name} {largest[name]:.1g}" for name in ELEMENTS if largest.get(name))
    lines = (
        f"from step {first.condition:.0f} on, G Hᵀ depends on the representation: {differs}{after} (point {name}, A: "
        f"{first.subject})",
        f"the largest differences, over all points and sizes of the loss, of at most 1: {sizes}",
        f"the optimiser is invariant {under}",
    )
    return "\n".join([*lines, *_suggest_declarations(all_evidence, classes)])


def _compare_classes(rule: Rule, point: Features) -> list[list[Evidence]]:
    """Return the evidence for each class of elements at one point."""
    compared = [_compare(rule, rule.start(point), Comparison(element)) for element in _classes(rule, point)]
    return [evidence for evidence in compared if evidence and evidence[0].event is Event.RESULT]


def _classes(rule: Rule, point: Features) -> list[str]:
    """Return the classes of elements that can be tested at a point."""
    return [name for name in ELEMENTS if (point.h > 1 or name.startswith("scalings"))
            and (name != ILL_CONDITIONED or rule.precision.name == "float64")]  # fmt: skip


def _invariant_classes(evidence: Iterable[Evidence]) -> list[str]:
    """Return the largest classes of elements under which a rule is invariant."""
    evidence = [e for e in evidence if e.event is Event.RESULT]
    violated = {e.subject for e in evidence if e.is_likely_wrong}
    obeyed = {e.subject for e in evidence if e.decisive} - violated
    classes = {name for name in obeyed if {*_SUBCLASSES.get(name, ())} <= obeyed}
    inner = {part for name in classes for part in _SUBCLASSES.get(name, ())}
    return [name for name in ELEMENTS if name in classes - inner]


def _suggest_declarations(evidence: Sequence[Evidence], classes: Collection[str]) -> Iterator[str]:
    """Yield what the author of a rule can declare, and what difference this would leave."""
    if "rotations" in classes:
        left = max(e.relative_error for e in evidence if e.subject == "rotations" and e.decisive)
        yield (
            f"with --relaxation ε, rotations alone are asked for, which leave a difference of {left:.1g}: right for a "
            "rule that adds an ε, and for any other it hides the mistake"
        )


def _repeatability(rule: Rule) -> CheckEvidence:
    """Return evidence on whether trajectories are reproducible, which several laws require; it is made once."""
    if rule.repeatability is None:
        rule.repeatability = _check_repeatable(rule)
    return rule.repeatability


def _check_repeatable(rule: Rule) -> CheckEvidence:
    """Run a trajectory first in a new process, and again.

    At a generic start it is repeated in every circumstance, at a start of every level of h again, and in turn with
    others.
    """
    by_level = {size_levels(f)["h"]: f for f in reversed(starts(rule.points.profile, rule.points.seed))}
    evidence: list[Evidence] = []
    for f in (_GENERIC, *by_level.values()):
        start = rule.start(f)
        with rule.in_new_process() if f is _GENERIC else nullcontext(rule) as new_rule:
            scale = rule.scale(start)
            try:
                first = new_rule.run(start, scale)
                depends = bool(product_distance(new_rule.run(start, scale, stream=1), first.products).any())
            except NoResult:
                if f is _GENERIC:
                    raise
                continue
        rounding = rule.rounding(start, first)
        for change, context in _circumstances(rule, start, scale, f is _GENERIC, has_random_numbers=depends):
            errors = product_distance(rule.run(start, scale, **context), first.products)
            k = int(np.argmax(errors != 0.0))  # later differences are amplified; a number that ends both is none
            if errors[k] > WRONG_RATIO * rounding[0]:
                detail = (
                    f"from step {k} on, a run from the same start differs from the first one in a process, {change}"
                )
                detail += ": the optimiser uses what another run left, or random numbers of a generator of its own"
                return _make_evidence(Event.FAILED, detail, start.name)
        evidence.append(Evidence(start.name, event=Event.RESULT, sizes=start.sizes))
    return CheckEvidence(evidence)


def _circumstances(
    rule: Rule, start: Start, scale: float, every: bool, has_random_numbers: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield descriptions and contexts of a trajectory: others before it, between its steps, and concurrent with it.

    Unless `every` one is requested, there are two: a repetition, and a run in turn with all others.
    """
    others = {name: change(start) for name, change in OTHER_RUNS.items()}
    yield "if it is made again", {}
    for name, begin in others.items() if every else ():
        yield f"after one {name}", {"preceding": (rule.call(begin, scale),)}
        yield f"with steps of one {name} between its own", {"between": (begin,)}
    yield "with steps of several others between its own", {"between": tuple(others.values())}
    if every:
        yield "in another thread", {"in_thread": True}
    if every and not has_random_numbers:  # which two threads share
        yield "beside another one in another thread", {"concurrent": (rule.call(others["with another loss"], scale),)}


OTHER_RUNS: dict[str, Callable[[Start], Start]] = {
    "from the same start": lambda start: start,
    "with another loss": lambda start: replace(start, Y=start.Y[::-1]),
    "from nearly the same start": lambda start: replace(start, G=start.G * (1.0 + 2.0**-40)),
    "from twice as large a start": lambda start: replace(start, G=2.0 * start.G, Y=2.0 * start.Y),
    "with G and H exchanged": lambda start: replace(start, G=start.H, H=start.G, Y=start.Y.T),
    "with fewer rows": lambda start: replace(start, G=start.G[:-1], Y=start.Y[:-1]),
}
"""Other trajectories, each with one change of the start."""


def _check_blocks(rule: Rule) -> CheckEvidence:
    """Compare trajectories of batches with those of their blocks."""
    if rule.function == "make":
        return _make_evidence(Event.NO_ORACLE, "refgeo gives one pair to an optimiser of PyTorch, not a batch")
    evidence: list[Evidence] = []
    for start in map(rule.start, _BATCHES):
        scale = rule.scale(start.block(next(np.ndindex(start.G.shape[:-2]))))
        for factor in _LOSS_FACTORS:
            try:
                evidence += _compare_with_blocks(rule, start, factor * scale)
            except NoResult as failure:
                detail = f"the optimiser takes no leading dimensions: {first_line(str(failure))}"
                refused = Evidence(start.name, event=Event.NOT_IMPLEMENTED, detail=detail)
                return CheckEvidence([Evidence(start.name), refused])
    if not evidence:
        return _make_evidence(Event.NO_ORACLE, "no block alone runs without an error and moves")
    if not any(e.is_likely_wrong for e in evidence):
        return CheckEvidence([Evidence(e.case, event=Event.RESULT, sizes=e.sizes) for e in evidence])
    repetition = _repeatability(rule).evidence[0]
    if repetition.event is Event.FAILED:
        return _make_evidence(Event.NO_ORACLE, f"{repetition.detail}; so no two of them can be compared")
    worst = _worst(evidence)
    detail = (
        "the blocks of a batch change each other: in the batch, G Hᵀ differs from that of a block alone by "
        f"{worst.relative_error:.2g} of both paths"
    )
    return _make_evidence(Event.BROKEN, detail, worst.case)


def _compare_with_blocks(rule: Rule, start: Start, scale: float) -> list[Evidence]:
    """Compare a batch with its single blocks; return no evidence if one of these has an error."""
    blocks = start.G.shape[:-2]
    try:
        runs = [rule.run(start.block(block), scale) for block in np.ndindex(blocks)]
    except NoResult:
        return []
    stacked = (np.stack([getattr(trajectory, part) for trajectory in runs], axis=1) for part in "GH")
    single = Trajectory(*(x.reshape(len(x), *blocks, *x.shape[-2:]) for x in stacked))
    batch = rule.run(start, scale)
    return _compare_products(start.name, "blocks", start, batch, single, rule.unit(start, scale, batch), batch.end)


def _check_starts(rule: Rule) -> CheckEvidence:
    """Test whether a rule moves from G = 0, from H = 0, and with a large loss."""
    start = rule.start(_GENERIC)
    scale, comparison = rule.scale(start), Comparison("rotations" if rule.relaxation > 0.0 else "general elements")
    details, is_broken = [], False
    for name, zero_start in (("G", replace(start, G=0.0 * start.G)), ("H", replace(start, H=0.0 * start.H))):
        stagnation = _describe_stagnation(rule, zero_start, scale)
        rule._scales[f"{name} = 0"] = scale
        evidence = [] if stagnation else _compare(rule, replace(zero_start, name=f"{name} = 0"), comparison)
        if stagnation or is_beyond_rounding(evidence):
            details.append(f"from {name} = 0, {stagnation or 'G Hᵀ depends on the representation'}")
        is_broken |= bool(stagnation)
    if _describe_stagnation(rule, start, max(SCALES)) == _STAGNATION:
        details, is_broken = [*details, f"with a large loss, {_STAGNATION}"], True
    return _make_evidence(Event.BROKEN if is_broken else Event.RESULT, "; ".join(details), start.name)


_STAGNATION = f"G Hᵀ does not move in {REPORTED_STEPS[3]} steps"


def _describe_stagnation(rule: Rule, start: Start, scale: float) -> str:
    """Describe why a trajectory does not leave its start; empty if it does."""
    try:
        trajectory = rule.run(start, scale, count=REPORTED_STEPS[3])
    except NoResult as failure:
        if failure.event is Event.NOT_IMPLEMENTED:
            raise
        return f"there is no result: {first_line(str(failure))}"
    if trajectory.end is not None:
        return f"G, H or G Hᵀ is not finite after step {trajectory.end}"
    return "" if trajectory.path_length.any() else _STAGNATION


_LAWS: dict[str, Callable[[Rule], CheckEvidence]] = {
    "step.invariant": _check_invariant,
    "step.repeatable": _repeatability,
    "step.blocks": _check_blocks,
    "step.starts": _check_starts,
}
