"""Diagnosis of a failed check: the cause of a wrong result, and the region of inputs in which it is wrong.

Whether a result is wrong is decided in `refgeo.conformance.judging`. A diagnosis is a hypothesis about the backend, and
is reported only if it predicts the backend's results, up to rounding, at several failing points or at fresh ones.
Hypotheses are tried in this order, so that a cause is found before its symptoms:

1. the check fails in certain circumstances only: a memory layout, a preceding call, another thread;
2. the fault is inherited from another function of the backend;
3. the backend keeps state between calls;
4. the result is a simple modification of the right one: it has a wrong factor, belongs to the other metric, ...;
5. the backend computes another formula (`fitting.py`);
6. the check fails in a region of inputs, such as h ≥ 5 (`regions.py`), where 4 and 5 are tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from refgeo.conformance.diagnosis.fitting import formula_of_paper, read_at, read_one
from refgeo.conformance.diagnosis.formulas import Formula, definition_terms, reference_functions
from refgeo.conformance.diagnosis.regions import RegionSearch, describe_blocks
from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.judging.checks import Check
from refgeo.conformance.judging.evidence import (
    MAX_RATIO,
    Evidence,
    compare,
    difference,
    error_units,
    relative_to,
)
from refgeo.conformance.judging.laws import can_be_judged, evaluate
from refgeo.conformance.judging.verdict import NO_DIAGNOSIS, Diagnosis, EvidenceSummary, Verdict
from refgeo.conformance.points.circumstances import PRECEDING_CALLS
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.scene import Scene
from refgeo.conformance.points.sources import LazyPoint, points_named
from refgeo.conformance.protocol.call import Call, Event, NoResult
from refgeo.conformance.protocol.operations import VALUES, Parts, Value
from refgeo.conformance.protocol.precision import round_to_dtype
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import PAIR_METRICS, pair_metric
from refgeo.support.arguments import ENDS, Array

NO_FORMULA = "not found: no formula gives these numbers"
NO_FORMULA_FROM_ONE = "not found from one result; refgeo check reads the formula at many points"
INCONCLUSIVE = (NoResult, ValueError, ArithmeticError)
"""Raised where a hypothesis cannot be tested: the backend returns nothing, or a formula has no value at a point."""
_MAX_POINTS = 4
"""Number of failing points at which a hypothesis is tested, if there are as many."""
_MAX_ENTRIES, _MAX_CONDITION = 20_000, 40.0
"""Bounds for points at which hypotheses are tested: called often, and with formulas in double precision."""
_REPETITIONS = 3
"""Number of times that a call is repeated to find out whether its result depends on earlier calls."""
_NEW_DRAW = 80
"""`Features.draw` of fresh points; no generated point has it."""
_SINGLE_ROUNDOFF, _SINGLE_TOLERANCE = 2.0**29, 1e-3
"""Unit roundoff of float32 relative to float64; and the largest error that is attributed to it."""
_MAX_ROUNDING = 0.01
"""A point can refute a hypothesis if its rounding errors are at most this fraction of the fault."""
_MIN_ENTRIES = 4
"""Number of entries of each part from which on a fitted factor is significant."""


class OutOfWork(Exception):
    """The work that diagnoses may take is used up."""


_ENTRIES_PER_CALL, _INTEGRATION = 2000, 20.0
"""Number of entries of a point that cost as much as a call itself, and the cost of an integrated geodesic; measured."""


@dataclass
class Work:
    """The work that is left for diagnoses, in calls at small points, so that they do not depend on a machine's load.

    Examples
    --------
    >>> Work(0.5).spend(1.0)
    Traceback (most recent call last):
    ...
    refgeo.conformance.diagnosis.causes.OutOfWork
    """

    left: float

    def spend(self, amount: float) -> None:
        """Take some of it.

        Raises
        ------
        OutOfWork
            There is not as much left.
        """
        self.left -= amount
        if self.left < 0.0:
            raise OutOfWork


@dataclass
class FailedCheck:
    """A failed check of one metric, with the evidence against it, and the means to gather more.

    Attributes
    ----------
    check : Check
    metric : str
    backend : Backend
    evidence : mapping of str to list of Evidence
        All evidence of this metric, by check.
    points : sequence of LazyPoint
        The test points of the run.
    work : Work
        What `evaluate` may still take.
    """

    check: Check
    metric: str
    backend: Backend
    evidence: MutableMapping[str, list[Evidence]]
    points: Sequence[LazyPoint]
    work: Work

    @cached_property
    def summary(self) -> EvidenceSummary:
        """The evidence on this check."""
        return EvidenceSummary(self.evidence[self.check.name])

    @property
    def value(self) -> Value:
        """The value that is wrong."""
        assert self.check.value is not None
        return self.check.value

    def evaluate(self, scene: Scene) -> list[Evidence]:
        """Judge a plain call at another point; no evidence where the value cannot be judged."""
        if not can_be_judged(self.value, scene):
            return []
        is_integrated = self.value.order == "exact" and not scene.is_closed
        self.work.spend(1.0 + scene.entries / _ENTRIES_PER_CALL + _INTEGRATION * is_integrated)
        return evaluate(scene, self.value, self.backend.call, enclosing="never")

    def is_wrong(self, name: str) -> bool:
        """Return whether another value of the backend is wrong; a value that was not part of the run is judged now."""
        value = VALUES[name]
        if name not in self.evidence and self.backend.provides(value.operation.name):
            scenes = (case.make() for case in self.points)
            judged = (evaluate(scene, value, self.backend.call) for scene in scenes if scene.can_be_enclosed(value))
            self.evidence[name] = [item for evidence in judged for item in evidence]
        return EvidenceSummary(self.evidence.get(name, [])).is_wrong

    @cached_property
    def plain_errors(self) -> list[Evidence]:
        """Wrong numbers of plain calls; violated laws only where no value is wrong."""
        wrong = [e for e in self.summary.wrong_evidence if not e.circumstance and np.isfinite(e.relative_error)]
        return [e for e in wrong if not e.law] or wrong

    @cached_property
    def failing(self) -> list[Scene]:
        """The points with `plain_errors`; without any, the points at which plain calls return no numbers."""
        errors = self.summary.missing_results
        if self.plain_errors:
            errors = [e for e in self.summary.inaccurate if bool(e.law) == bool(self.plain_errors[0].law)]
        return points_named(self.points, dict.fromkeys(e.case for e in errors if not e.circumstance))

    @cached_property
    def passing(self) -> list[Scene]:
        """The points that have decisive evidence, all of it right."""
        failing = {e.case for e in (*self.summary.inaccurate, *self.summary.missing_results)}
        return points_named(self.points, dict.fromkeys(e.case for e in self.summary.decisive if e.case not in failing))

    @cached_property
    def place(self) -> RegionSearch:
        """The search for the failing region."""
        return RegionSearch(self.value, self.evaluate, self.failing[0])


def diagnose(failed: FailedCheck) -> Diagnosis:
    """Explain a failed check; return `NO_DIAGNOSIS` if it has not failed, or if no hypothesis can be confirmed."""
    if failed.check.kind not in ("value", "law") or not failed.summary.is_wrong or failed.check.value is None:
        return NO_DIAGNOSIS
    with np.errstate(all="ignore"), suppress(*INCONCLUSIVE, OutOfWork):
        diagnosis = _diagnose(failed)
        if failed.check.kind == "law" or not failed.plain_errors or diagnosis.expected or diagnosis.excuse:
            return diagnosis
        formula = formula_of_paper(failed.value.name, failed.metric, failed.failing[0].relaxation)
        return diagnosis if formula is None else replace(diagnosis, expected=tuple(formula.lines()))
    return NO_DIAGNOSIS


def diagnose_result(scene: Scene, value: Value, backend: Backend) -> Diagnosis:
    """Explain a wrong result at a single point."""
    with np.errstate(all="ignore"), suppress(*INCONCLUSIVE):
        samples = [_sample(value, backend, scene)]
        simple = next((h for h in _modify_right_result(value, samples) if _is_consistent(h, samples)), None)
        if simple is not None:
            return Diagnosis(simple.text)
        return _compare_formulas(read_at(value, [scene], [samples[0].result]), value, scene)
    return NO_DIAGNOSIS


def _diagnose(failed: FailedCheck) -> Diagnosis:
    """Test the hypotheses in the order of the list above, and return the first that is confirmed."""
    value, summary = failed.value, failed.summary
    if all(e.circumstance or e.law for e in summary.wrong_evidence):
        is_local = failed.failing and failed.plain_errors and not all(map(bool, failed.place.fails_at_generic_points()))
        region = _find_region(failed) if is_local else ""
        return Diagnosis("; ".join(filter(None, [region and f"wrong {region}", _describe_circumstances(summary)])))
    if failed.check.kind == "law" or not failed.failing:
        return NO_DIAGNOSIS
    faulty = [name for name in value.uses if failed.is_wrong(name)]
    if faulty and not summary.missing_results and _is_inherited(failed, faulty):
        text = f"this formula is right; the result is wrong only because it uses a wrong {' and '.join(faulty)}"
        return Diagnosis(text, excuse=Verdict.INHERITS)
    samples = _samples(value, failed.backend, _informative(failed.failing))
    region = ""
    with suppress(OutOfWork):
        diagnosis = _diagnose_samples(failed, samples) if samples else NO_DIAGNOSIS
        if diagnosis != NO_DIAGNOSIS:
            return diagnosis
        region = _find_region(failed) if summary.missing_results else ""
    if not summary.missing_results:
        example, right = _contrast(failed)
        worst_blocks = [_worst_block(sample) for sample in samples]
        simple = next((h for h in _modify_right_result(value, worst_blocks) if _is_consistent(h, worst_blocks)), None)
        if simple is not None and len(samples) > 1:
            where = "in the worst block of each" if any(sample.scene.shape for sample in samples) else "in all of them"
            text = f"wrong at some points, such as {samples[0].scene.name}; {where}, {simple.text}"
            return Diagnosis(text, example=example)
        nearest = f"; right at {right}, the point most like this one" * bool(right)
        return Diagnosis(_diagnose_batching(failed) or NO_FORMULA + nearest, example=example)
    return Diagnosis(region and f"wrong {region}")


def _diagnose_samples(failed: FailedCheck, samples: list[Sample]) -> Diagnosis:
    """Test the hypotheses 3 to 6 of this module on wrong results."""
    value, backend = failed.value, failed.backend
    stateful = _diagnose_state(failed, samples)
    if stateful:
        return Diagnosis(stateful, needs_others=True)
    ε = samples[0].scene.relaxation
    if ε and _is_consistent(Hypothesis("", _without_relaxation), samples):
        return Diagnosis(f"your result is that of ε = 0, not of ε = {ε:g}")
    if _are_single_precision(samples):
        passes_in_double = any(scene.dtype == "float64" and _reveals(failed, scene) for scene in failed.passing)
        region = (_find_region(failed) or "at some points") if passes_in_double else ""
        text = "your numbers are those of float32, and right to its precision: compute in float64, or judge the "
        text += "function with --dtype float32"
        return _within(region, Diagnosis(text)) if region else Diagnosis(text)
    fault = min(_difference(sample.result, sample.right) for sample in samples)
    others = _samples(value, backend, _informative([scene for scene in failed.passing if scene.has_generic_vectors]))
    others = [sample for sample in others if sample.rounding <= _MAX_ROUNDING * fault]
    simple = next((h for h in _modify_right_result(value, samples) if _is_consistent(h, samples)), None)
    if simple is not None and _is_consistent(simple, others):
        return Diagnosis(simple.text)
    generic = failed.place.fails_at_generic_points()
    is_everywhere = True in generic and False not in generic
    # where a generic point passes, the backend has the right formula, and only a region of inputs is wrong
    if is_everywhere and not (others and (simple is not None or _is_refuted(value, samples, others))):
        formula = _read_formula(value, backend, failed.failing[0])
        if formula != NO_DIAGNOSIS:
            return _within("in float32 only", formula) if _fails_in_single_only(failed) else formula
    region = _find_region(failed)
    local = _diagnose_region(failed, samples, simple)
    region = region or (f"at some points, such as {samples[0].scene.name}" if local != NO_DIAGNOSIS else "")
    return _within(region, local) if region else NO_DIAGNOSIS


def _diagnose_region(failed: FailedCheck, samples: list[Sample], simple: Hypothesis | None) -> Diagnosis:
    """Describe what is wrong in a region: at the failing points in it, and at new points there that vary other
    features.
    """
    features = [sample.scene.features for sample in samples if sample.scene.features is not None]
    nearby = failed.place.confirmed or failed.place.failing_near(features)
    fresh = _informative([failed.failing[0].with_features(f) for f in nearby], count=2 * _MAX_POINTS)
    more = _samples(failed.value, failed.backend, fresh)
    if simple is not None:
        return Diagnosis(simple.text) if _is_consistent(simple, more) else NO_DIAGNOSIS
    ranked = sorted(more + samples, key=lambda sample: sample.scene.point.sizes[2] == 1)
    formula = read_at(failed.value, [sample.scene for sample in ranked], [sample.result for sample in ranked])
    return _compare_formulas(formula, failed.value, ranked[0].scene)


def _within(region: str, diagnosis: Diagnosis) -> Diagnosis:
    """Restrict a diagnosis to a region."""
    return replace(diagnosis, text="; there, ".join(filter(None, (f"wrong {region}", diagnosis.text))))


def _describe_circumstances(summary: EvidenceSummary) -> str:
    """Say which laws are violated, and in which circumstances calls fail whose plain counterparts are right."""
    wrong = summary.wrong_evidence
    laws = list(dict.fromkeys(e.law for e in wrong if e.law and not e.circumstance))
    words = list(dict.fromkeys(e.circumstance for e in wrong if e.circumstance))
    listed = words[:3] + ([f"and in {len(words) - 3} more circumstances"] if len(words) > 3 else [])
    sentences = [f"does not obey: {'; '.join(laws)}"] if laws else []
    passes_somewhere = any(e.circumstance in words and not e.is_failure for e in summary.decisive)
    where = "at other points, right" if laws else "at some points, right" if passes_somewhere else "right"
    return "; ".join(sentences + [f"{where} in a plain call, and wrong {'; '.join(listed)}"] * bool(words))


# Samples and hypotheses ----------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """A result of the backend at one test point, together with the right result.

    Attributes
    ----------
    scene : Scene
    value : Value
    result, right : tuple of ndarray
    rounding : float
        Bound for the relative rounding error of a usual implementation.
    """

    scene: Scene
    value: Value
    result: Parts
    right: Parts
    rounding: float

    @property
    def errors(self) -> Array:
        """The error of each block, relative to the size of the terms of the result before they cancel."""
        return relative_to(self.scene.length(difference(self.result, self.right)), self.scene.size(self.value))

    @property
    def error(self) -> float:
        """The largest error of a block."""
        return float(np.max(self.errors, initial=0.0))

    @property
    def tolerance(self) -> float:
        """Largest relative difference from a prediction: that of rounding, and much less than the fault itself."""
        return max(min(self.rounding, _MAX_ROUNDING * _difference(self.result, self.right)), 1e-12)


class Hypothesis(NamedTuple):
    """A possible cause: a text for the user, and a function that predicts the backend's result."""

    text: str
    predict: Callable[[Sample], Parts]


def _is_consistent(hypothesis: Hypothesis, samples: Sequence[Sample]) -> bool:
    """Return whether a hypothesis predicts all results."""
    with suppress(*INCONCLUSIVE):  # for example, the geodesic of the other metric may end before t
        return all(_difference(sample.result, hypothesis.predict(sample)) <= sample.tolerance for sample in samples)
    return False


def _informative(scenes: Sequence[Scene], count: int = _MAX_POINTS) -> list[Scene]:
    """Select a few well-conditioned points of different shapes; last those with h = 1, where many formulas coincide."""
    clear = [x for x in scenes if float(np.max(x.condition)) <= _MAX_CONDITION and x.entries <= _MAX_ENTRIES]
    ranked = sorted(clear or scenes[:1], key=lambda scene: scene.point.sizes[2] == 1)
    distinct = {(x.point.sizes, x.t): x for x in reversed(ranked) if x.dtype == ranked[0].dtype}
    return [*distinct.values()][::-1][:count]


def _reference_result(scene: Scene, value: Value) -> Parts:
    """Return the right result at a point, by the factorised route."""
    right = scene.reference(value)
    if right is None:
        raise ValueError("no reference")
    return right


def _sample(value: Value, backend: Backend, scene: Scene) -> Sample:
    """Call the backend at a point, and return its result with the right one."""
    right = _reference_result(scene, value)
    rounding = float(np.max(4 * MAX_RATIO * error_units(scene, value).gram))
    return Sample(scene, value, tuple(backend.call(scene.call(value)).result()), right, rounding)


def _samples(value: Value, backend: Backend, scenes: Iterable[Scene]) -> list[Sample]:
    """Call the backend at the points, leaving out those where it returns nothing, or no right result is known."""
    samples = []
    for scene in scenes:
        with suppress(*INCONCLUSIVE):
            samples.append(_sample(value, backend, scene))
    return samples


def _worst_block(sample: Sample) -> Sample:
    """Return the block of a sample with the largest error, as a sample."""
    scene = sample.scene
    block = np.unravel_index(np.argmax(sample.errors), scene.shape)
    if not scene.shape:
        return sample
    result, right = (tuple(part[block] for part in parts) for parts in (sample.result, sample.right))
    return replace(sample, scene=scene.map_factors(itemgetter(block)), result=result, right=right)


def _difference(result: Parts, prediction: Parts) -> float:
    """Return the largest relative difference of a part in a block, so that a large part or block does not hide an
    error.
    """
    worst = 0.0
    for x, y in zip(result, prediction, strict=True):
        if x.shape != y.shape or not np.isfinite(y).all() or not np.isfinite(x).all():
            return np.inf
        axes = (-2, -1) if x.ndim > 1 and len(result) == 2 else None
        size, difference = np.linalg.norm(y, axis=axes), np.linalg.norm(x - y, axis=axes)
        ratio = np.where(size > 0, difference / np.where(size > 0, size, 1.0), (difference > 0) * 1.0)
        worst = max(worst, float(np.max(ratio, initial=0.0)))
    return worst


# State between calls -------------------------------------------------------------------------------------------------


def _passes(failed: FailedCheck, backend: Backend, scene: Scene, *preceding: Call) -> bool:
    """Return whether a call is right if it follows certain other calls."""
    evidence = compare(scene, failed.value, backend.call(scene.call(failed.value).after(*preceding)))
    return not any(e.is_inaccurate for e in evidence)


def _diagnose_state(failed: FailedCheck, samples: Sequence[Sample]) -> str:
    """Repeat failing calls, and make them first thing in a new process; "" if they fail there, too."""
    scenes = [sample.scene for sample in samples]
    repeated = [[_passes(failed, failed.backend, scene) for _ in range(_REPETITIONS)] for scene in scenes]
    if all(map(all, repeated)):
        return (
            "the result is right when refgeo calls the function again with the same input: so it depends on earlier "
            "calls, or on chance"
        )
    if any(map(any, repeated)):
        return (
            "for the same input, the result is sometimes right and sometimes wrong: so it depends on earlier calls, or "
            "on chance"
        )
    for _ in range(_REPETITIONS):
        with failed.backend.isolated() as fresh:
            if fresh is failed.backend or not _passes(failed, fresh, scenes[0]):
                return ""
    # one change at a time, each of what a cache may have left out of its key
    for words, make_call in (PRECEDING_CALLS[name] for name in ("metric", "dtype", "order", "function")):
        preceding = make_call(scenes[0], failed.value)
        with failed.backend.isolated() as fresh:
            if preceding is not None and not _passes(failed, fresh, scenes[0], preceding):
                return f"right if this call is the first one, and wrong after {words}"
    return (
        "the result is right if this call is the first one: your function keeps something from earlier calls, such "
        "as a cache"
    )


# Simple modifications of the right result ----------------------------------------------------------------------------


def _modify_right_result(value: Value, samples: Sequence[Sample]) -> Iterator[Hypothesis]:
    """Yield hypotheses: the result of the other metric, swapped parts, transposed parts, a constant factor.

    The first hypothesis that predicts all results is the cause, so special ones come before those with a fitted factor.
    """
    count = len(samples[0].right)
    if samples[0].scene.metric in ENDS:
        second_metric = samples[0].scene.other_metric
        yield Hypothesis(
            f"your result is that of the metric {second_metric}",
            lambda sample: _reference_result(sample.scene.in_metric(second_metric), value),
        )
    if count == 2:
        yield Hypothesis("the G and H parts of your result are swapped", lambda sample: sample.right[::-1])
        yield Hypothesis(
            "your result is transposed",
            lambda sample: tuple(x if 1 in x.shape[-2:] else x.mT for x in sample.right),
        )
    if sum(part.size for sample in samples for part in sample.right) < _MIN_ENTRIES * count:
        return
    factors = [_fit_factor([(s.right[i], s.result[i]) for s in samples if s.right[i].any()]) for i in range(count)]
    words = [f"{factor:.6g} times the right one" if factor else "zero" for factor in factors]
    by_part = (f"the {'GH'[i]} part of your result is {words[i]}" for i in range(count) if abs(factors[i] - 1.0) > 1e-6)
    text = f"your result is {words[0]}" if len(set(words)) == 1 else "; ".join(by_part)
    yield Hypothesis(text, lambda sample: tuple(c * part for c, part in zip(factors, sample.right, strict=True)))
    if count == 1:
        yield from _powers_of_sizes(samples)


def _powers_of_sizes(samples: Sequence[Sample]) -> Iterator[Hypothesis]:
    """Yield the hypothesis of a factor such as h^-½ or 1/(nh), as if sums were means."""
    for powers in ((0, 0, -0.5), (0, 0, -1), (0, 0, 0.5), (0, 0, 1), (-1, 0, -1), (0, -1, -1), (-1, 0, 0), (0, -1, 0),
                   (-0.5, 0, -0.5)):  # fmt: skip

        def factor(sample: Sample, powers: tuple[float, ...] = powers) -> float:
            return float(np.prod([size**p for size, p in zip(sample.scene.point.sizes, powers, strict=True)]))

        def predict(sample: Sample, factor: Callable[[Sample], float] = factor) -> Parts:
            return tuple(factor(sample) * part for part in sample.right)

        c = float(np.median([_least_squares(s.right[0], s.result[0]) / factor(s) for s in samples]))
        if abs(c - 1.0) < 1e-6:
            words = " ".join(f"{name}^{p:g}" for name, p in zip("nmh", powers, strict=True) if p)
            yield Hypothesis(f"your result is {words} times the right one", predict)


def _fit_factor(pairs: Sequence[tuple[Array, Array]]) -> float:
    """Fit y ≈ c x to each pair (x, y), and return the median of c; 1 without any pair, as 0 is right for every c."""
    return float(np.median([_least_squares(x, y) for x, y in pairs])) if pairs else 1.0


def _least_squares(x: Array, y: Array) -> float:
    """Return the factor c that minimises ‖y − c x‖."""
    return float(np.vdot(x, y) / max(float(np.vdot(x, x)), 1e-300))


def _are_single_precision(samples: Sequence[Sample]) -> bool:
    """Return whether all float64 results are float32 numbers, and right to the precision of float32."""
    double = [sample for sample in samples if sample.scene.dtype == "float64"]
    few = sum(part.size for sample in double for part in sample.right) < _MIN_ENTRIES
    with np.errstate(over="ignore"):
        rounded = all(np.array_equal(x, x.astype(np.float32)) for sample in double for x in sample.result)
    near = (sample.error <= min(sample.rounding * _SINGLE_ROUNDOFF, _SINGLE_TOLERANCE) for sample in double)
    return not few and rounded and all(near)


def _without_relaxation(sample: Sample) -> Parts:
    """Return the right result for ε = 0."""
    space = pair_metric(sample.scene.metric).at(sample.scene.point)
    return _reference_result(replace(sample.scene, space=space), sample.value)


# Inherited faults ----------------------------------------------------------------------------------------------------


def _is_inherited(failed: FailedCheck, faulty: Sequence[str]) -> bool:
    """Return whether the wrong results follow from the backend's own wrong values.

    At all failing points and at new ones, the definition of the value is evaluated with the backend's own versions of
    the functions that it contains.
    """
    value, failing = failed.value, failed.failing
    fresh = [x.with_features(replace(x.features, draw=_NEW_DRAW)) for x in failing[:_MAX_POINTS] if x.features]
    if value.order is None and failing[0].metric not in PAIR_METRICS:
        return False
    for raises_all in (True, False):  # a Hessian may raise indices by its own gradient or not
        with np.errstate(all="ignore"), suppress(*INCONCLUSIVE):
            samples = (_sample(value, failed.backend, scene) for scene in [*failing, *fresh])
            composed = ((s, _compose(value, failed.backend, s.scene, faulty, raises_all)) for s in samples)
            if all(_difference(sample.result, parts) <= sample.rounding for sample, parts in composed):
                return True
    return False


def _compose(value: Value, backend: Backend, scene: Scene, faulty: Sequence[str], raises_all: bool) -> Parts:
    """Evaluate the definition of a value in terms of others: the backend's own where they are faulty."""

    def own(name: str, *vectors: Pair) -> Pair:
        if name not in faulty:
            return right(name, *vectors)
        pairs = [round_to_dtype(v, scene.dtype) for v in vectors]
        return Pair.unchecked(*backend.call(scene.call(VALUES[name], pairs)).result())

    right, operation, point = reference_functions(scene.space), value.operation, scene.point
    vectors = dict(zip(operation.vectors, scene.inputs(operation), strict=True))
    terms = definition_terms(operation, scene.metric, point, vectors, own, own if raises_all else right)
    if value.order == 2:
        (christoffel,) = terms.values()
        return tuple(point + scene.t * vectors["v"] - 0.5 * scene.t**2 * christoffel)
    return tuple(own("horizontal_projection", sum(terms.values(), 0.0 * point)))


# Formulas ------------------------------------------------------------------------------------------------------------


def _read_formula(value: Value, backend: Backend, scene: Scene) -> Diagnosis:
    """Read the formula that the backend computes, in float64 if it accepts that, and compare it with the right one."""
    for dtype in dict.fromkeys(("float64", scene.dtype)):
        with suppress(*INCONCLUSIVE):
            formula = read_one(backend, value.name, scene.metric, dtype, scene.relaxation)
            diagnosis = _compare_formulas(formula, value, scene)
            if diagnosis != NO_DIAGNOSIS:
                return diagnosis
    return NO_DIAGNOSIS


def _is_refuted(value: Value, failing: list[Sample], passing: list[Sample]) -> bool:
    """Return whether a formula fits the results at the failing points, but none fits those and the passing points."""

    def is_readable(samples: list[Sample]) -> bool:
        return read_at(value, [sample.scene for sample in samples], [sample.result for sample in samples]) is not None

    return is_readable(failing) and not is_readable(failing + passing)


def _compare_formulas(formula: Formula | None, value: Value, scene: Scene) -> Diagnosis:
    """Describe how a formula differs from the right one; return `NO_DIAGNOSIS` if they are equal."""
    right = formula_of_paper(value.name, scene.metric, scene.relaxation)
    if formula is None or formula == right:
        return NO_DIAGNOSIS
    note, yours = f"read {formula.note}" if formula.note else "", tuple(formula.lines())
    return Diagnosis(note, yours) if right is None else Diagnosis(
        note, yours, tuple(right.lines()), formula.differs(right))  # fmt: skip


# The failing region --------------------------------------------------------------------------------------------------


def _find_region(failed: FailedCheck) -> str:
    """Find the region in which the check fails, and the part that is wrong there; "" if it fails everywhere."""
    part = _find_wrong_part(failed)
    wrong = [scene.features for scene in failed.failing if scene.features is not None]
    right = [x.features for x in failed.passing if x.features is not None and _reveals(failed, x, part)]
    words = []
    if _fails_in_single_only(failed):
        words += ["at some points"] * (False in failed.place.fails_at_generic_points()) + ["in float32 only"]
    else:
        blocks, interval = _find_wrong_blocks(failed), failed.place.find_interval(wrong, right)
        is_partial = not interval and any(math.prod(scene.shape) > 1 for scene in failed.passing)
        words += filter(
            None, ["at some points" * bool(blocks and is_partial), blocks, interval and f"where {interval}"]
        )
    return ", ".join([*words, f"in the {'GH'[part]} part alone"] if words and part is not None else words)


def _fails_in_single_only(failed: FailedCheck) -> bool:
    """Return whether all failing points are float32 points, and pass in float64, as generic points do."""
    features = [scene.features for scene in failed.failing]
    single = [f for f in features if f is not None and f.single]
    return len(single) == len(features) and failed.place.passes_in_double(_thin(single))


def _reveals(failed: FailedCheck, scene: Scene, part: int | None = None) -> bool:
    """Return whether a point would reveal a fault of the size that other points show."""
    value, reference = failed.value, scene.reference(failed.value)
    fault = min((e.relative_error for e in failed.plain_errors), default=np.inf)
    if MAX_RATIO * float(np.max(error_units(scene, value).gram)) > 0.1 * fault:
        return False
    if reference is None:
        return True
    parts = reference if part is None else tuple(x * (i == part) for i, x in enumerate(reference))
    return bool(np.all(scene.length(parts) > 1e-6 * scene.size(value)))


def _find_wrong_part(failed: FailedCheck) -> int | None:
    """Return the index of the only wrong part (G, H) at a sample of failing points; None if both are or neither is."""
    wrong = np.zeros(2, dtype=bool)
    for sample in _samples(failed.value, failed.backend, _thin(failed.failing)):
        if len(sample.right) != 2:
            return None
        wrong |= [_difference((x,), (y,)) > sample.rounding for x, y in zip(sample.result, sample.right, strict=True)]
    return None if wrong.all() or not wrong.any() else int(np.argmax(wrong))


def _find_wrong_blocks(failed: FailedCheck) -> str:
    """Describe which blocks of a batch are wrong, if that is the same in all batches."""
    outcomes = []
    for scene in failed.failing:
        results = [e for e in failed.summary.select(Event.RESULT, Event.FAILED) if e.decisive and not e.circumstance]
        blocks, count = [e for e in results if e.case == scene.name], math.prod(scene.shape)
        if count < 2 or not all(e.block for e in blocks):
            return ""
        outcomes += [(int(np.ravel_multi_index(e.block, scene.shape)), count, e.is_failure) for e in blocks]
    return describe_blocks(outcomes)


def _diagnose_batching(failed: FailedCheck) -> str:
    """Say that each block of a wrong batch is right when it is alone; "" if some block is not.

    A single block with as many entries as the batch must be right, too; otherwise the size is at fault.
    """
    if not all(scene.shape for scene in failed.failing):
        return ""
    batches = _thin(failed.failing)
    single = [x.map_factors(itemgetter(block)) for x in batches for block in _thin([*np.ndindex(x.shape)])]
    sizes = [(*scene.point.sizes, math.prod(scene.shape)) for scene in batches]
    single += [x.with_features(Features((), n * k, m, h)) for x, (n, m, h, k) in zip(batches, sizes, strict=True)]
    if not all(_passes(failed, failed.backend, scene) for scene in single):
        return ""
    somewhere = "at some points, " * any(math.prod(scene.shape) > 1 for scene in failed.passing)
    return (
        f"{somewhere}in a batch, the results are not those of its blocks: {len(single)} blocks were tried, and each of "
        "them is right when your function gets it alone"
    )


def _thin(items: Sequence[Any]) -> Sequence[Any]:
    """Select at most `_MAX_POINTS` of the items, evenly spaced."""
    return items[:: -(-len(items) // _MAX_POINTS)]


def _contrast(failed: FailedCheck) -> tuple[Evidence, str]:
    """Find the most similar pair of a failing and a passing point: the error at the one, and the name of the other."""
    errors = {e.case: e for e in reversed(failed.plain_errors)}
    failing = [scene for scene in failed.failing if scene.name in errors]
    passing = [scene for scene in failed.passing if scene.features and _reveals(failed, scene)]
    pairs = [(x.features.distance(y.features), errors[x.name], y.name)
             for x in failing if x.features for y in passing if y.features]  # fmt: skip
    return min(pairs, key=itemgetter(0), default=(0.0, failed.plain_errors[0], ""))[1:]
