"""One metric of one backend on trial: every subject at every point of the design, in the circumstances of the point."""

from __future__ import annotations

import copy
import math
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend, is_demanding
from refgeo.conformance.blame import ANOTHER_ORDER, Suspect, explained
from refgeo.conformance.call import Answer, Call, Event
from refgeo.conformance.checks import CHECKS, Check
from refgeo.conformance.circumstances import PLAIN, Circumstance, dealt, nearly, turned, turned_back
from refgeo.conformance.conduct import ON_EVERY_CALL, short
from refgeo.conformance.evidence import NO_NUMBER, Evidence, hold, something_to_expect, units
from refgeo.conformance.laws import CURVE, GEODESIC, RETRACTION, TARGETS, Ask, Law, obeys
from refgeo.conformance.operations import VALUES, Parts, Value
from refgeo.conformance.plan import Plan
from refgeo.conformance.points import LARGE
from refgeo.conformance.process import Child
from refgeo.conformance.scene import Scene, build
from refgeo.conformance.uncovered import Reached
from refgeo.conformance.verdict import NOTHING, Explanation, Row, Seen, row_of
from refgeo.support.errors import RefereeError

_REPLAYED, MOST_REPLAYED = 1000, 120
"""Numbers of a point whose calls are kept, to be repeated in another order; so many of them are."""


Changed = Callable[[Call], Call]
"""From a call to the one in a circumstance."""


def _unchanged(call: Call) -> Call:
    return call


@dataclass(frozen=True)
class Subject:
    """What is asked at points: a value, or laws of it where nothing is known of the right result.

    Attributes
    ----------
    check : str
        The name under which its evidence stands.
    value : Value
    laws : tuple of Law
        Without any, answers are held against what is right.
    """

    check: str
    value: Value
    laws: tuple[Law, ...] = ()

    def fits(self, scene: Scene, circumstance: Circumstance) -> bool:
        """Whether it is asked there."""
        of_exact_laws = self.value.order == "exact" and self.laws == GEODESIC
        if of_exact_laws or circumstance == _EXACT_LAWS:
            return of_exact_laws and circumstance == _EXACT_LAWS and not scene.can_be_enclosed(self.value)
        return bool(self.laws) or scene.can_be_enclosed(self.value)


_EXCUSED, _DRAWS, _FRESH = 4, 2, 70
"""At so many points, each drawn so often anew, an excuse is tried."""
_CONFIRMED = 2
"""So many times what is wrong in a circumstance must be so again, and right without it."""
_FOR_NOTHING = (Event.EXHAUSTED, Event.LAYOUT)
"""What says nothing of a call in a circumstance, which takes more time and memory."""
_EXACT_LAWS, _WITH_NAN = Circumstance("where", "laws"), Circumstance("where", "nan")


@dataclass(frozen=True, eq=False)
class Judged:
    """A call that has been judged to be right, and its result.

    Attributes
    ----------
    case, value : str
        The names of its point and of the value.
    dtype : str
    call : Call
    parts : tuple of ndarray
    """

    case: str
    value: str
    dtype: str
    call: Call
    parts: Parts

    def is_repeated_by(self, answer: Answer) -> bool:
        """Whether the same numbers came again."""
        return answer.failure is None and all(map(np.array_equal, answer.parts, self.parts))


class Judge:
    """One metric of one backend: the test points, one after the other.

    Attributes
    ----------
    evidence : dict of list of Evidence
        By the name of a check.
    judged : list of Judged
        Small calls, to be repeated.
    count : int
        Points so far.
    """

    def __init__(self, plan: Plan, backend: Backend, metric: str) -> None:
        self.plan, self.backend, self.metric = plan, backend, metric
        self.evidence: defaultdict[str, list[Evidence]] = defaultdict(list)
        self.judged: list[Judged] = []
        self.count = 0
        self.points = plan.points.selected(metric, plan.cases)
        features = [one.features for one in self.points]
        self.circumstances = dealt(features) if plan.closely else [[PLAIN]] * len(features)
        self.rules = [one.name for one in plan.of_kind("contract")]
        self.subjects = _subjects(plan, backend)
        self._seen: set[tuple[str, str]] = set()
        self._enclosed: set[str] = set()
        self._watched: set[str] = set()

    def so_far(self) -> Judge:
        """With what has been seen; a thread may go on."""
        found = copy.copy(self)
        found.evidence = defaultdict(list, {name: [*seen] for name, seen in [*self.evidence.items()]})
        return found

    def look_at(self, i: int) -> tuple[dict[str, list[Evidence]], list[Judged]]:
        """All that is asked at one point: what is seen there, and the calls that are right."""
        known, right = {name: len(found) for name, found in self.evidence.items()}, len(self.judged)
        scene = self.points[i].make()
        for subject, there, circumstance, changed in self._questions(scene, self.circumstances[i]):
            found = self._evidence(there, subject, circumstance, changed)
            self.evidence[subject.check] += self._weighed(there, subject, circumstance, changed, found)
        self.count += 1
        return {name: found[known.get(name, 0) :] for name, found in self.evidence.items()}, self.judged[right:]

    def _questions(
        self, scene: Scene, circumstances: Sequence[Circumstance]
    ) -> Iterator[tuple[Subject, Scene, Circumstance, Changed]]:
        """What is asked at a point: every subject in each circumstance that there is for it, or plainly."""
        for subject in self.subjects:
            asked = False
            for circumstance in circumstances:
                large = circumstance != PLAIN and scene.entries > LARGE
                there = scene.first_blocks(2, 2 * scene.point.sizes[2] + 1) if large else scene
                changed = (
                    circumstance.of(there, subject.value) if self._is_asked(there, subject, circumstance) else None
                )
                if changed is not None:
                    asked = True
                    yield subject, there, circumstance, changed
            if not asked and subject.fits(scene, PLAIN):
                yield subject, scene, PLAIN, _unchanged

    def _is_asked(self, scene: Scene, subject: Subject, circumstance: Circumstance) -> bool:
        """Whether a subject is to be asked; some circumstances show a rule of conduct alone."""
        function, rule = subject.value.operation.name, circumstance.rule
        if not subject.fits(scene, circumstance):
            return False
        if rule == "thread_safe" and not self.backend.thread_safe:
            unseen = "the backend says that it is not thread-safe (thread_safe = False)"
            self._note(rule, scene, function, unseen=unseen)
            return False
        if circumstance == _WITH_NAN and not subject.laws:
            self._note(rule, scene, function, *self._with_nan(scene, subject))
        return circumstance != _WITH_NAN

    def _evidence(
        self, scene: Scene, subject: Subject, circumstance: Circumstance = PLAIN, changed: Changed | None = None
    ) -> list[Evidence]:
        """What is seen of a subject at a point, in a circumstance."""
        value, turn, change = subject.value, circumstance.turn(scene), changed or _unchanged
        plain = scene.call(value)
        more: dict[str, Any] = {"demanding": is_demanding(plain), "circumstance": circumstance.words}
        if subject.laws:

            def there(call: Call) -> Answer:
                return self._ask(scene, change(replace(call, decisive=True)), turn)

            ask = Ask(there, lambda call: self._ask(scene, nearly(call), turn))
            return obeys(scene, value, subject.laws, ask, **more)
        call = turned(change(replace(plain, decisive=bool(np.all(units(scene, value).decisive)))), turn)
        answer = self.backend.call(call)
        self._watch(scene, call, answer)
        answer = replace(answer, parts=turned_back(answer.parts, turn)) if turn else answer
        found = list(hold(scene, value, answer, 0 if subject.check in self._enclosed else 1, **more))
        self._enclosed |= {subject.check for one in found if one.enclosed}
        kept = scene.entries <= _REPLAYED and (scene.features or len(self.judged) < MOST_REPLAYED)
        if kept and all(one.event is Event.RESULT and one.decisive and not one.is_doubtful for one in found):
            self.judged.append(Judged(scene.name, value.name, scene.dtype, plain, tuple(answer.parts)))
        return found

    def _ask(self, scene: Scene, call: Call, turn: int = 0) -> Answer:
        call = turned(call, turn)
        answer = self.backend.call(call)
        self._watch(scene, call, answer)
        return replace(answer, parts=turned_back(answer.parts, turn))

    def _weighed(
        self, scene: Scene, subject: Subject, circumstance: Circumstance, changed: Changed, found: list[Evidence]
    ) -> list[Evidence]:
        """What is wrong in a circumstance is asked plainly, too, to tell why; it is laid to it where it is so again."""
        doubtful = [one for one in found if one.is_doubtful]
        if circumstance == PLAIN or not (doubtful or any(one.event in _FOR_NOTHING for one in found)):
            if circumstance.rule and any(one.decisive and one.event is Event.RESULT for one in found):
                self._note(circumstance.rule, scene, subject.value.operation.name)
            return found
        plainly = self._evidence(scene, subject)
        if not doubtful or any(one.is_doubtful for one in plainly):
            return plainly
        both = [self._evidence(scene, subject, *how) for how in ((circumstance, changed), ()) * _CONFIRMED]
        is_again = [any(one.is_doubtful for one in some) for some in both] == [True, False] * _CONFIRMED
        if not (is_again or circumstance.rule):  # chance, or what came long before
            doubtful = [replace(one, circumstance="") for one in doubtful]
        return plainly + self._laid_to(circumstance, scene, subject.value.operation.name, doubtful)

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

    def _with_nan(self, scene: Scene, subject: Subject) -> tuple[str, str]:
        """NaN in the first block's vector or point: NaN there, the other blocks right; or a clear refusal. How that
        is broken, or why it is not seen.
        """
        value, first = subject.value, (0,) * len(scene.shape)
        right, call = scene.reference(value), scene.call(value)
        if right is None or any(one.is_doubtful for one in self._evidence(scene, subject)):
            return "", "the results of the other blocks are not right, or nothing is known of them"
        others = np.arange(math.prod(scene.shape)).reshape(scene.shape) > 0
        for name, places in (("a vector", (2,)), ("G and H", (0, 1))):  # together, lest caches keep half a point
            arrays = list(map(np.array, call.arrays))
            for i in places:
                arrays[i][first] = np.nan
            answer = self._ask(scene, replace(call, arrays=arrays))
            if answer.failure is not None:
                if answer.failure.event is Event.FAILED:  # an error is an answer, too
                    continue
                return "", str(answer.failure)
            if all(np.isfinite(part[first]).all() for part in answer.parts):
                return f"the function returns finite numbers where it gets NaN in {name}", ""
            parts = tuple(
                np.where(others.reshape(others.shape + (1,) * (x.ndim - others.ndim)), x, y)
                for x, y in zip(answer.parts, right, strict=True)
            )
            if any(one.is_doubtful for one in hold(scene, value, Answer(parts))):
                return f"NaN in {name} of the first block of a batch changes the results of the other blocks", ""
        return "", ""

    def _watch(self, scene: Scene, call: Call, answer: Answer) -> None:
        """The conduct of a call, where nothing is numerically wrong with the point."""
        if self.rules and answer.failure is None and np.all(something_to_expect(scene)):
            broken = {r: how for r, how in answer.conduct.items() if not (r == "silent" and call.lies)}
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

    def compare(self, judged: Judged, answer: Answer, why: Callable[[], str]) -> None:
        """Hold a repeated call that gives another result than its first, right one against what is right."""
        (scene,), value = self._named([judged.case]), VALUES[judged.value]
        if not any(one.is_doubtful for one in hold(scene, value, answer)):
            return
        known = [one.circumstance for one in self.evidence[value.name] if one.is_doubtful]
        words = ANOTHER_ORDER if any(known) else why()
        self.evidence[value.name] += hold(scene, value, answer, circumstance=words)

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

    def _subject(self, check: str, found: Iterable[Evidence]) -> Subject:
        """By what evidence on a check was seen."""
        by_law = all(one.law for one in found)
        return min((one for one in self.subjects if one.check == check), key=lambda one: bool(one.laws) is not by_law)

    def confirmed(self, check: str, found: list[Evidence]) -> list[Evidence]:
        """With what is seen at fresh points that have the features of those where a result is inaccurate, or is not
        provided: at these, too, it must be no more than inaccurate, and not be provided.
        """
        seen = Seen(found)
        refused = [one for one in seen.of(Event.NOT_IMPLEMENTED) if seen.results]
        cases = list(dict.fromkeys(one.case for one in (*seen.doubtful, *refused)))[:_EXCUSED]
        subject = self._subject(check, seen.doubtful)
        for scene in self._named(cases):
            if scene.features is None or scene.entries > LARGE:
                continue
            for k in range(1, 1 + _DRAWS):
                dtype = "float64" if scene.features.single else scene.dtype
                fresh = build(
                    replace(scene.features, draw=_FRESH + k), self.metric, dtype, scene.seed, scene.relaxation
                )
                more = self._evidence(fresh, subject)
                was_refused = any(one.case == scene.name for one in refused)
                if was_refused and any(one.event is Event.RESULT for one in more):
                    said = f"not provided at {scene.name}, and provided at another point with these features"
                    more.append(Evidence(scene.name, event=Event.FAILED, said=said, relative_error=np.inf))
                found = found + more
        return found

    def explanation(self, check: str, found: list[Evidence]) -> Explanation:
        """What there is to say of what is wrong."""
        self.evidence[check], subject = found, self._subject(check, Seen(found).wrong_evidence)

        def look(scene: Scene) -> list[Evidence]:
            if not subject.laws and not scene.can_be_enclosed(subject.value):
                return []
            return self._evidence(scene, subject)

        return explained(
            Suspect(CHECKS[check], self.metric, self.backend, Seen(found), self._named, self._is_wrong, look)
        )

    def reached(self) -> Reached:
        """The lines of the backend's own files that decisive calls have reached."""
        return self.backend.reached()

    def close(self) -> None:
        """End what has been started for it alone."""
        self.backend.close()

    def _named(self, names: Iterable[str]) -> list[Scene]:
        """Points made again, one by one: those of a large network together need much memory."""
        wanted = set(names)
        return [one.make() for one in self.points if one.name in wanted]

    def _is_wrong(self, name: str) -> bool:
        """Also of a value that was not asked for, at the points so far."""
        value = VALUES[name]
        if name not in self.evidence and self.backend.provides(value.operation.name):
            for scene in (one.make() for one in self.points):
                if scene.can_be_enclosed(value):
                    self.evidence[name] += hold(scene, value, self.backend.call(scene.call(value)))
        return Seen(self.evidence.get(name, [])).is_wrong


class Elsewhere(Judge):
    """A judge in a process of its own, where the backend has another one; what it sees is here, too."""

    def __init__(self, plan: Plan, backend: Backend, metric: str) -> None:
        self._child = Child(serve, plan, backend.spec, backend.name, backend.timeout, backend.described, metric)
        super().__init__(plan, backend, metric)

    def _there(self, method: str, *arguments: Any) -> Any:
        try:
            self._child.line.send((method, arguments))
            found, error = self._child.line.recv()
        except (EOFError, OSError):
            raise RefereeError(f"the process that judged {self.metric} has gone: {self._child.ended()}") from None
        if error is not None:
            raise error
        return found

    def look_at(self, i: int) -> tuple[dict[str, list[Evidence]], list[Judged]]:
        """All that is asked at one point."""
        seen, right = self._there("look_at", i)
        for name, found in seen.items():
            self.evidence[name] += found
        self.judged += right
        self.count += 1
        return seen, right

    def confirmed(self, check: str, found: list[Evidence]) -> list[Evidence]:
        """With what is seen at fresh points: there, where the backend has been called."""
        seen: list[Evidence] = self._there("confirmed", check, found)
        return seen

    def explanation(self, check: str, found: list[Evidence]) -> Explanation:
        """What there is to say of what is wrong."""
        explanation: Explanation = self._there("explanation", check, found)
        return explanation

    def reached(self) -> Reached:
        """The lines that decisive calls have reached."""
        reached: Reached = self._there("reached")
        return reached

    def close(self) -> None:
        """End both processes."""
        self._child.terminate()


def serve(
    line: Connection, plan: Plan, spec: str, name: str, timeout: float, known: dict[str, Any], metric: str
) -> None:
    """Judge one metric, as asked, until the line closes."""
    backend = Backend(spec, name, timeout, known)

    def end(*_: Any) -> None:
        backend.close()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    judge = Judge(plan, backend, metric)
    while True:
        method, arguments = line.recv()
        try:
            line.send((getattr(judge, method)(*arguments), None))
        except Exception as error:
            line.send((None, error))


def _subjects(plan: Plan, backend: Backend) -> list[Subject]:
    """What is asked at the points: what is judged, and all whose conduct is watched."""
    named = {one.name for one in plan.checks if one.value}
    watched = plan.functions if plan.of_kind("contract") and not plan.laws_only else ()
    asked = [one for one in TARGETS.values() if one.name in named or one.operation.name in watched]
    found = [Subject(one.name, one, CURVE if one is RETRACTION else ()) for one in asked]
    found += [Subject(one.name, one, GEODESIC) for one in asked if one.order == "exact"]
    found += [Subject(one.name, one.value, (one.law,)) for one in plan.checks if one.law and one.value]
    return [one for one in found if backend.provides(one.value.operation.name)]


def absent(function: str) -> Evidence:
    """What a backend without a function shows."""
    return Evidence("", event=Event.NOT_IMPLEMENTED, said=f"no function {function}", decisive=False)
