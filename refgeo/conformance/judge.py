"""Judging one metric of a backend: call every function at every test point, and compare results with what is right.

No result may depend on how arrays lie in memory, on preceding calls, or on the thread. Each of these *circumstances* is
therefore a metamorphic relation: a changed call must give the result of the plain one. Changed calls replace plain ones
at most points. One call tests a memory layout and a preceding call together, as in group testing; if it fails, each is
tested alone, and a plain call shows to what the failure must be attributed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial

import numpy as np

from refgeo.conformance.diagnosis.causes import FailedCheck, Work, diagnose
from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.judging.checks import CHECKS, Check
from refgeo.conformance.judging.evidence import (
    NON_FINITE,
    SURELY_WRONG_RATIO,
    WRONG_COUNT,
    Enclosing,
    Evidence,
    result_is_expected,
)
from refgeo.conformance.judging.laws import can_be_judged, evaluate
from refgeo.conformance.judging.verdict import NO_DIAGNOSIS, Diagnosis, EvidenceSummary, Row, make_row
from refgeo.conformance.plan import Plan
from refgeo.conformance.points.circumstances import (
    BASELINE,
    CIRCUMSTANCES,
    SIGN_FLIPPED,
    Circumstance,
    apply_all,
    assign_circumstances,
    change_metric,
    combine,
)
from refgeo.conformance.points.features import MAX_ENCLOSED_SIZE, enclosed_size
from refgeo.conformance.points.scene import Scene
from refgeo.conformance.points.sources import MAX_CONTEXT_ENTRIES, points_named
from refgeo.conformance.protocol.call import Answer, Call, Event
from refgeo.conformance.protocol.conduct import PER_CALL_RULES, first_line
from refgeo.conformance.protocol.operations import JUDGED_VALUES, Value
from refgeo.support.records import with_fields

_MAX_CONFIRMED_POINTS, _DRAWS_PER_POINT, _FRESH_DRAW = 4, 2, 70
"""Number of points at which a lenient verdict is confirmed, of fresh points for each, and where their draws begin."""
_MAX_DIAGNOSIS_WORK = 4000.0
"""Work of all diagnoses of a metric, in calls at small points (`Work`); chosen, about ten seconds."""
_MAX_TINY_SIZE, _MAX_ALWAYS_ENCLOSED = 600, 10
"""(n + m)h² of a block up to which its enclosure takes about half a millisecond, and the number of such points at which
a right result is enclosed, for each value; chosen."""
_REPETITIONS = 2
"""Number of times that a failure must recur in a circumstance, and not without it, to be attributed to it."""
_INCONCLUSIVE = (Event.EXHAUSTED, Event.LAYOUT)
"""Failures that are no fault: in a circumstance, calls take more time and memory, and layouts may be refused, also by a
NotImplementedError of a function that has results elsewhere."""


class Judge:
    """Collects evidence on one metric of one backend, and turns it into rows of a report.

    Attributes
    ----------
    evidence : dict of str to list of Evidence
        The evidence so far, by the name of a check.
    values : list of Value
        What is evaluated at each point.
    points : sequence of LazyPoint
    circumstances : list of list of Circumstance
        Those of each point.
    rules : list of str
        The rules of conduct to be checked.
    """

    def __init__(self, plan: Plan, backend: Backend, metric: str) -> None:
        self.plan, self.backend, self.metric = plan, backend, metric
        self.evidence: defaultdict[str, list[Evidence]] = defaultdict(list)
        self.values = _values_to_evaluate(plan, backend)
        self.points = plan.points.select(metric, plan.cases) if self.values else []
        features = [case.features for case in self.points]
        self.circumstances = assign_circumstances(features) if plan.tests_contexts else [[BASELINE]] * len(features)
        self.rules = [check.name for check in plan.of_kind("contract")]
        self._recorded: set[tuple[str, str]] = set()
        self._conduct_seen: set[str] = set()
        self._proofs: defaultdict[str, set[str]] = defaultdict(set)
        self._n_enclosed = Counter[str]()
        self._work = Work(_MAX_DIAGNOSIS_WORK)

    def prime(self) -> None:
        """Make calls in another metric and in float32, and discard their results.

        A backend that keeps something from its first call on will then be wrong in all calls that count.
        """
        for case in self.points[:1] if self.plan.tests_contexts else ():
            scene = case.make().sign_flipped(1 + len(CIRCUMSTANCES), 1)
            for value in reversed(self.values):
                call = change_metric(scene, value) or scene.call(value)
                with np.errstate(all="ignore"):
                    self.backend.call(replace(call, arrays=[x.astype(np.float32) for x in call.arrays]))

    def judge_point(self, i: int) -> None:
        """Evaluate every value at a point, in each of the point's circumstances that it admits.

        A plain call is made if there is no circumstance.
        """
        scene, circumstances = self.points[i].make(), self.circumstances[i]
        part = scene.first_blocks(2, 2 * scene.point.sizes[2] + 1) if scene.entries > MAX_CONTEXT_ENTRIES else scene
        for value in self.values:
            changed = [c for c in circumstances if c != BASELINE and self._is_applicable(part, value, c)]
            if (BASELINE in circumstances or not changed) and self._is_applicable(scene, value, BASELINE):
                self.evidence[value.name] += self._evaluate(scene, value)
            h = scene.point.sizes[2] if self.plan.cases is None else 1  # at a named point, each is tested alone
            for combination in combine(changed, h):
                self.evidence[value.name] += self._evaluate_changed(part, value, *combination)

    def _is_applicable(self, scene: Scene, value: Value, circumstance: Circumstance) -> bool:
        """Return whether a value can be judged at a point, and the backend claims to support such a call."""
        if not can_be_judged(value, scene):
            return False
        if circumstance.rule == "thread_safe" and not self.backend.thread_safe:
            unseen = "the backend says that it is not thread-safe (thread_safe = False)"
            self._record(circumstance.rule, scene, value.operation.name, unseen=unseen)
            return False
        return circumstance.transformation(next(circumstance.variants(scene)), value) is not None

    def _evaluate(
        self, plain: Scene, value: Value, *circumstances: Circumstance, enclosing: Enclosing | None = None
    ) -> list[Evidence]:
        """Call the backend, in circumstances, and return the comparison with the right result as evidence.

        The evidence of several circumstances holds for each of them.
        """
        chosen = circumstances or (BASELINE,)
        scene = next(chosen[0].variants(plain))
        transforms = [t for circumstance in chosen if (t := circumstance.transformation(scene, value))]
        enclosing = enclosing or self._choose_enclosing(scene, value)
        evidence = evaluate(scene, value, partial(self._call, scene), partial(apply_all, transforms), enclosing)
        proofs = (e for e in evidence if e.enclosed and e.is_likely_wrong and e.ratio > SURELY_WRONG_RATIO)
        self._proofs[value.name].update(e.case for e in proofs if chosen == (BASELINE,))
        return [with_fields(e, circumstance=c.description) for c in chosen for e in evidence]

    def _choose_enclosing(self, scene: Scene, value: Value) -> Enclosing:
        """Choose which blocks of a result are enclosed: none if enclosures at several points have proved it wrong.

        At the first tiny points, the worst block is enclosed in any case, as the factorised route might err there, too.
        """
        if len(self._proofs[value.name]) >= WRONG_COUNT:
            return "never"
        is_enclosed = scene.enclosed_size <= _MAX_TINY_SIZE and self._n_enclosed[value.name] < _MAX_ALWAYS_ENCLOSED
        self._n_enclosed[value.name] += is_enclosed
        return "worst" if is_enclosed else "in doubt"

    def _call(self, scene: Scene, call: Call) -> Answer:
        """Make a call, and record its breaches of conduct."""
        answer = self.backend.call(call)
        self._record_conduct(scene, call, answer)
        return answer

    def _evaluate_changed(self, scene: Scene, value: Value, *circumstances: Circumstance) -> list[Evidence]:
        """Evaluate a value in circumstances, all at once, and find out to which of them a failure must be attributed.

        What fails in none of them alone is due to chance, to an earlier call, or to the circumstances together.
        """
        evidence = self._evaluate(scene, value, *circumstances)
        if self._accept(scene, value, evidence, *circumstances):
            return evidence
        if len(circumstances) == 1:
            return self._attribute(circumstances[0], scene, value, evidence)
        alone = {c: self._evaluate(scene, value, c) for c in circumstances}
        attributed = [e for c, items in alone.items() for e in self._attribute(c, scene, value, items)]
        if all(self._accept(scene, value, items) for items in alone.values()):
            attributed += dict.fromkeys(replace(e, circumstance="") for e in evidence if e.is_failure)
        return attributed

    def _accept(self, scene: Scene, value: Value, evidence: list[Evidence], *circumstances: Circumstance) -> bool:
        """Return whether a call has neither failed nor ended inconclusively; if so, record the rules it has kept."""
        has_results = any(e.event is Event.RESULT for e in self.evidence[value.name])
        inconclusive = (*_INCONCLUSIVE, Event.NOT_IMPLEMENTED) if has_results else _INCONCLUSIVE
        is_accepted = not any(e.is_failure or e.event in inconclusive for e in evidence)
        is_decisive = any(e.decisive and e.event is Event.RESULT for e in evidence)
        for rule in {c.rule for c in circumstances if c.rule and is_accepted and is_decisive}:
            self._record(rule, scene, value.operation.name)
        return is_accepted

    def _attribute(
        self, circumstance: Circumstance, scene: Scene, value: Value, evidence: list[Evidence]
    ) -> list[Evidence]:
        """Return the evidence in a circumstance if it passes, and otherwise what the failure must be attributed to.

        It is attributed to the circumstance only if the plain call passes, if the failure recurs each time in the
        circumstance and never without it, and if it is not due to the numbers that the changed call has.
        """
        if self._accept(scene, value, evidence, circumstance):
            return evidence
        failures, plain = [e for e in evidence if e.is_failure], self._evaluate(scene, value)
        if not failures or any(e.is_failure for e in plain):
            return plain
        repeated = [self._evaluate(scene, value, c) for c in (circumstance, BASELINE) * _REPETITIONS]
        if [any(e.is_failure for e in repetition) for repetition in repeated] != [True, False] * _REPETITIONS:
            return plain + [replace(e, circumstance="") for e in failures]  # chance, or an earlier call
        controls = [e for e in self._evaluate_controls(circumstance, scene, value) if e.is_failure]
        if controls:
            return plain + [replace(e, circumstance=SIGN_FLIPPED) for e in controls]
        return plain + self._select_wrong(circumstance, scene, value.operation.name, failures)

    def _evaluate_controls(self, circumstance: Circumstance, scene: Scene, value: Value) -> list[Evidence]:
        """Return the evidence of control calls: ordinary calls with the numbers of a call in a circumstance.

        They separate the effect of the numbers from that of the circumstance. They are made in a process that has not
        seen these numbers; or if there can be none, with other numbers of the same size, and of the same signs.
        """
        points = circumstance.variants(scene)
        changed = next(points)
        if not self.backend.has_own_process:
            return [e for point in points for e in self._evaluate(point, value)]
        if changed is scene or not any(e.is_failure for e in self._evaluate(changed, value)):
            return []
        with self.backend.isolated() as fresh:
            return evaluate(changed, value, fresh.call)

    def _select_wrong(
        self, circumstance: Circumstance, scene: Scene, function: str, failures: list[Evidence]
    ) -> list[Evidence]:
        """Return the failures in a circumstance that are wrong results; record the others as breaches of its rule."""
        words, exceptions = circumstance.description, [e for e in failures if e.event is not Event.RESULT]
        if circumstance.rule == "thread_safe":
            broken = EvidenceSummary(self.evidence["keeps_its_results"]).select(Event.BROKEN)
            if all(e.subject != function for e in broken):  # else any later call overwrites the result, in any thread
                self._record(circumstance.rule, scene, function, f"right in a plain call, and wrong {words}")
            return []
        if circumstance.rule == "takes_any_memory_layout" and all(e.detail != NON_FINITE for e in exceptions):
            for e in exceptions:
                self._record(circumstance.rule, scene, function, f"the function fails {words}: {first_line(e.detail)}")
            return [e for e in failures if e.event is Event.RESULT]
        return failures

    def _record_conduct(self, scene: Scene, call: Call, answer: Answer) -> None:
        """Record which rules a call has broken, and of each function's first call, which ones it has kept.

        Only at points where results can be expected.
        """
        if self.rules and answer.failure is None and result_is_expected(scene).all():
            broken, is_first = answer.breaches, call.function not in self._conduct_seen
            for rule in broken.keys() | set(PER_CALL_RULES) if is_first else broken:
                self._record(rule, scene, call.function, broken.get(rule, ""))
            self._conduct_seen.add(call.function)

    def _record(self, rule: str, scene: Scene, function: str, broken: str = "", unseen: str = "") -> None:
        """Add evidence that a function keeps a rule of conduct, or breaks it, or was not tested; once for each way."""
        if rule not in self.rules or (rule, function + broken) in self._recorded:
            return
        self._recorded |= {(rule, function), (rule, function + broken)}
        event = Event.BROKEN if broken else Event.NO_ORACLE if unseen else Event.RESULT
        self.evidence[rule].append(
            Evidence(scene.name, event=event, detail=broken or unseen, dtype=scene.dtype, subject=function)
        )

    def rows(self, explain: bool) -> list[Row]:
        """Return the rows of all values and laws on which there is evidence.

        Parameters
        ----------
        explain : bool
            Whether to confirm lenient verdicts, and diagnose wrong results, by further calls.
        """
        rows = (self.row(check, explain) for check in self.plan.checks if check.kind in ("value", "law"))
        return [row for row in rows if row is not None]

    def row(self, check: Check, explain: bool) -> Row | None:
        """Return the row of a value or a law; None without evidence."""
        if not self.backend.provides(check.function):
            return make_row(check, self.metric, [not_provided(check.function)])
        evidence = self.evidence.get(check.name, [])
        if not evidence:
            return None
        summary = EvidenceSummary(evidence)
        if check.value and not summary.is_wrong:
            evidence = self._enclose_worst(check.value, evidence)
            summary = EvidenceSummary(evidence)
        if explain and not summary.is_wrong and (summary.inaccurate or summary.select(Event.NOT_IMPLEMENTED)):
            evidence = self._confirm(check.name, evidence)
        diagnosis = self._diagnose(check.name, evidence) if explain else NO_DIAGNOSIS
        return make_row(check, self.metric, evidence, diagnosis, self.plan.points.dtype)

    def _enclose_worst(self, value: Value, evidence: list[Evidence]) -> list[Evidence]:
        """Add the evidence of an enclosure at the point where the error of a value that is not wrong is largest."""
        results = (e for e in evidence if e.decisive and e.event is Event.RESULT and not e.circumstance and not e.law)
        small = (e for e in results if enclosed_size(*e.sizes[:3]) <= MAX_ENCLOSED_SIZE)
        worst = max(small, key=lambda e: e.ratio, default=None)
        if worst is None or worst.enclosed:
            return evidence
        (scene,) = points_named(self.points, [worst.case])
        return evidence + self._evaluate(scene, value, enclosing="worst")

    def _confirm(self, check: str, evidence: list[Evidence]) -> list[Evidence]:
        """Confirm at fresh points a verdict that excuses the backend: *inaccurate*, or *not provided* at some points.

        Fresh points have the features of those in question. A result there that is more than inaccurate, or that is
        provided after all, is evidence that the backend is wrong.
        """
        summary = EvidenceSummary(evidence)
        refused = [e.case for e in summary.select(Event.NOT_IMPLEMENTED) if summary.results]
        cases = list(dict.fromkeys([*(e.case for e in summary.inaccurate), *refused]))[:_MAX_CONFIRMED_POINTS]
        for scene in points_named(self.points, cases):
            if scene.features is None or scene.entries > MAX_CONTEXT_ENTRIES:
                continue
            for draw in range(_FRESH_DRAW + 1, _FRESH_DRAW + 1 + _DRAWS_PER_POINT):
                fresh = self._evaluate(scene.with_features(replace(scene.features, draw=draw)), JUDGED_VALUES[check])
                if scene.name in refused and any(e.event is Event.RESULT for e in fresh):
                    detail = f"not provided at {scene.name}, and provided at another point with these features"
                    fresh.append(Evidence(scene.name, event=Event.FAILED, detail=detail, relative_error=np.inf))
                evidence = evidence + fresh
        return evidence

    def _diagnose(self, check: str, evidence: list[Evidence]) -> Diagnosis:
        """Diagnose a failed check."""
        self.evidence[check] = evidence
        failed = FailedCheck(CHECKS[check], self.metric, self.backend, self.evidence, self.points, self._work)
        return diagnose(failed)


def _values_to_evaluate(plan: Plan, backend: Backend) -> list[Value]:
    """Return the provided values that are judged, or whose functions' conduct is checked."""
    judged = {check.name for check in plan.checks if check.value}
    watched = plan.functions if plan.of_kind("contract") else ()
    chosen = [value for value in JUDGED_VALUES.values() if value.name in judged or value.operation.name in watched]
    return [value for value in chosen if backend.provides(value.operation.name)]


def not_provided(function: str) -> Evidence:
    """Make evidence that a backend has no function of this name."""
    return Evidence("", event=Event.NOT_IMPLEMENTED, detail=f"no function {function}", decisive=False)
