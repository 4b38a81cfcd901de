"""One metric of one backend on trial: every value at every point of the design, in the circumstances of the point."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.blame import Suspect, explained
from refgeo.conformance.call import Answer, Call, Event
from refgeo.conformance.checks import CHECKS, Check
from refgeo.conformance.circumstances import (
    CIRCUMSTANCES,
    PLAIN,
    TURNED,
    Circumstance,
    dealt,
    in_another_metric,
)
from refgeo.conformance.conduct import ON_EVERY_CALL, short
from refgeo.conformance.evidence import NO_NUMBER, Evidence, something_to_expect
from refgeo.conformance.features import concerns
from refgeo.conformance.laws import TARGETS, can_be_judged, look
from refgeo.conformance.operations import Value
from refgeo.conformance.plan import Plan
from refgeo.conformance.points import LARGE, named
from refgeo.conformance.scene import Scene
from refgeo.conformance.verdict import NOTHING, Explanation, Row, Seen, row_of

_EXCUSED, _DRAWS, _FRESH = 4, 2, 70
"""At so many points, each drawn so often anew, an excuse is tried."""
_LEAST = 10.0
"""So many seconds there are to explain what is wrong, however few points were judged."""
_CONFIRMED = 2
"""So many times what is wrong in a circumstance must be so again, and right without it."""
_FOR_NOTHING = (Event.EXHAUSTED, Event.LAYOUT)
"""What says nothing of a call in a circumstance, which takes more time and memory."""


class Judge:
    """One metric of one backend: the test points, one after the other.

    Attributes
    ----------
    evidence : dict of list of Evidence
        By the name of a check.
    """

    def __init__(self, plan: Plan, backend: Backend, metric: str) -> None:
        self.plan, self.backend, self.metric = plan, backend, metric
        self.evidence: defaultdict[str, list[Evidence]] = defaultdict(list)
        self.values = _values(plan, backend)
        self.points = plan.points.selected(metric, plan.cases) if self.values else []
        features = [one.features for one in self.points]
        self.circumstances = dealt(features) if plan.closely else [[PLAIN]] * len(features)
        self.rules = [one.name for one in plan.of_kind("contract")]
        self._seen: set[tuple[str, str]] = set()
        self._watched: set[str] = set()
        self._began = time.monotonic()

    def open(self) -> None:
        """The first calls of a process, on which no value rests, are of another metric and in another precision: what
        is kept of the first call on is wrong in all that follow.
        """
        for point in self.points[:1] if self.plan.closely else ():
            scene = point.make().turned(1 + len(CIRCUMSTANCES), 1)
            for value in reversed(self.values):
                call = in_another_metric(scene, value) or scene.call(value)
                with np.errstate(all="ignore"):
                    self.backend.call(replace(call, arrays=[x.astype(np.float32) for x in call.arrays]))

    def look_at(self, i: int) -> None:
        """All that is asked at one point: every value in each circumstance that there is for it, or plainly, where
        what is special of the point concerns it.
        """
        scene = self.points[i].make()
        part = scene.first_blocks(2, 2 * scene.point.sizes[2] + 1) if scene.entries > LARGE else scene
        for value in self.values:
            some, is_told = self.circumstances[i], concerns(self.points[i].features, value.operation)
            asked = [(part, one) for one in some if one != PLAIN and self._is_asked(part, value, one)]
            plainly = (PLAIN in some or not asked) and (is_told or not self.plan.is_whole)
            plain = [(scene, PLAIN)] * (plainly and self._is_asked(scene, value, PLAIN))
            for there, circumstance in plain + asked:
                self.evidence[value.name] += self._weighed(there, value, circumstance)

    def _is_asked(self, scene: Scene, value: Value, circumstance: Circumstance) -> bool:
        """Whether a value is to be asked for; some circumstances show a rule of conduct alone."""
        function, rule = value.operation.name, circumstance.rule
        if not can_be_judged(value, scene):
            return False
        if rule == "thread_safe" and not self.backend.thread_safe:
            unseen = "the backend says that it is not thread-safe (thread_safe = False)"
            self._note(rule, scene, function, unseen=unseen)
            return False
        return circumstance.of(next(circumstance.points(scene)), value) is not None

    def _evidence(self, plain: Scene, value: Value, circumstance: Circumstance = PLAIN) -> list[Evidence]:
        """What is seen of a value at a point, in a circumstance."""
        scene = next(circumstance.points(plain))
        change = circumstance.of(scene, value)
        assert change is not None
        return look(scene, value, partial(self._ask, scene), change, circumstance=circumstance.words)

    def _ask(self, scene: Scene, call: Call) -> Answer:
        answer = self.backend.call(call)
        self._watch(scene, call, answer)
        return answer

    def _weighed(self, scene: Scene, value: Value, circumstance: Circumstance) -> list[Evidence]:
        """What is wrong in a circumstance is asked plainly, too, to tell why; it is laid to it where it is so again."""
        found = self._evidence(scene, value, circumstance)
        doubtful = [one for one in found if one.is_doubtful]
        if circumstance == PLAIN or not (doubtful or any(one.event in _FOR_NOTHING for one in found)):
            if circumstance.rule and any(one.decisive and one.event is Event.RESULT for one in found):
                self._note(circumstance.rule, scene, value.operation.name)
            return found
        plainly = self._evidence(scene, value)
        if not doubtful or any(one.is_doubtful for one in plainly):
            return plainly
        both = [self._evidence(scene, value, how) for how in (circumstance, PLAIN) * _CONFIRMED]
        is_again = [any(one.is_doubtful for one in some) for some in both] == [True, False] * _CONFIRMED
        if not is_again:  # chance, or what came long before
            return plainly + [replace(one, circumstance="") for one in doubtful]
        alike = [
            replace(one, circumstance=TURNED) for one in self._alike(circumstance, scene, value) if one.is_doubtful
        ]
        return plainly + (alike or self._laid_to(circumstance, scene, value.operation.name, doubtful))

    def _alike(self, circumstance: Circumstance, scene: Scene, value: Value) -> list[Evidence]:
        """Plain calls with the numbers of a circumstance, by a process that has kept nothing of it; where there is
        none, with numbers of the same size, and of the same signs.
        """
        points = circumstance.points(scene)
        there = next(points)
        if not self.backend.has_own_process:
            return [one for other in points for one in self._evidence(other, value)]
        if there is scene or not any(one.is_doubtful for one in self._evidence(there, value)):
            return []
        with self.backend.isolated() as fresh:
            return look(there, value, fresh.call)

    def _laid_to(
        self, circumstance: Circumstance, scene: Scene, function: str, doubtful: list[Evidence]
    ) -> list[Evidence]:
        """What is wrong in a circumstance alone; it can be a matter of conduct."""
        words, errors = circumstance.words, [one for one in doubtful if one.event is not Event.RESULT]
        if circumstance.rule == "thread_safe":
            overwritten = any(
                one.about == function for one in Seen(self.evidence["keeps_its_results"]).of(Event.BROKEN)
            )
            if not overwritten:  # by the other thread as by any later call
                self._note(circumstance.rule, scene, function, f"right in a plain call, and wrong {words}")
            return []
        if circumstance.rule == "takes_any_memory_layout" and all(one.said != NO_NUMBER for one in errors):
            for one in errors:
                self._note(circumstance.rule, scene, function, f"the function fails {words}: {short(one.said)}")
            return [one for one in doubtful if one.event is Event.RESULT]
        return doubtful

    def _watch(self, scene: Scene, call: Call, answer: Answer) -> None:
        """The conduct of a call, where nothing is numerically wrong with the point."""
        if self.rules and answer.failure is None and np.all(something_to_expect(scene)):
            broken = answer.conduct
            for rule in broken if call.function in self._watched else broken.keys() | set(ON_EVERY_CALL):
                self._note(rule, scene, call.function, broken.get(rule, ""))
            self._watched.add(call.function)

    def _note(self, rule: str, scene: Scene, function: str, broken: str = "", unseen: str = "") -> None:
        """How a rule of conduct was kept or broken; the same again says nothing."""
        if rule not in self.rules or (rule, function + broken) in self._seen:
            return
        self._seen |= {(rule, function), (rule, function + broken)}
        event = Event.BROKEN if broken else Event.UNKNOWN if unseen else Event.RESULT
        self.evidence[rule].append(
            Evidence(scene.name, event=event, said=broken or unseen, dtype=scene.dtype, about=function)
        )

    def rows(self, explain: bool) -> list[Row]:
        """Of values and laws that have met a point."""
        now = time.monotonic()
        self._until = now + max(now - self._began, _LEAST)  # explaining takes no longer than judging
        found = (self.row(check, explain) for check in self.plan.checks if check.kind in ("value", "law"))
        return [row for row in found if row is not None]

    def row(self, check: Check, explain: bool) -> Row | None:
        """What is said of a value or a law; None where it has met no point."""
        if not self.backend.provides(check.function):
            return row_of(check, self.metric, [absent(check.function)])
        found = self.evidence.get(check.name, [])
        if not found:
            return None
        excused = Seen(found)
        if explain and not excused.is_wrong and (excused.doubtful or excused.of(Event.NOT_IMPLEMENTED)):
            found = self.confirmed(check.name, found)
        explanation = self.explanation(check.name, found) if explain and Seen(found).is_wrong else NOTHING
        return row_of(check, self.metric, found, explanation, self.plan.points.dtype)

    def confirmed(self, check: str, found: list[Evidence]) -> list[Evidence]:
        """With what is seen at fresh points that have the features of those where a result is inaccurate, or is not
        provided: at these, too, it must be no more than inaccurate, and not be provided.
        """
        seen = Seen(found)
        refused = [one for one in seen.of(Event.NOT_IMPLEMENTED) if seen.results]
        cases = list(dict.fromkeys(one.case for one in (*seen.doubtful, *refused)))[:_EXCUSED]
        for scene in named(self.points, cases):
            if scene.features is None or scene.entries > LARGE:
                continue
            for k in range(1, 1 + _DRAWS):
                more = self._evidence(scene.fresh(replace(scene.features, draw=_FRESH + k)), TARGETS[check])
                was_refused = any(one.case == scene.name for one in refused)
                if was_refused and any(one.event is Event.RESULT for one in more):
                    said = f"not provided at {scene.name}, and provided at another point with these features"
                    more.append(Evidence(scene.name, event=Event.FAILED, said=said, relative_error=np.inf))
                found = found + more
        return found

    def explanation(self, check: str, found: list[Evidence]) -> Explanation:
        """What there is to say of what is wrong."""
        self.evidence[check] = found
        return explained(Suspect(CHECKS[check], self.metric, self.backend, self.evidence, self.points, self._until))


def _values(plan: Plan, backend: Backend) -> list[Value]:
    """What is asked at the points: what is judged, and all whose conduct is watched."""
    named = {one.name for one in plan.checks if one.value}
    watched = plan.functions if plan.of_kind("contract") else ()
    asked = [one for one in TARGETS.values() if one.name in named or one.operation.name in watched]
    return [one for one in asked if backend.provides(one.operation.name)]


def absent(function: str) -> Evidence:
    """What a backend without a function shows."""
    return Evidence("", event=Event.NOT_IMPLEMENTED, said=f"no function {function}", decisive=False)
