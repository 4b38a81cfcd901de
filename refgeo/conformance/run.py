"""Run the checks over the test points, and collect a report."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT, Backend, is_demanding
from refgeo.conformance.blame import ANOTHER_ORDER, Suspect, explained
from refgeo.conformance.call import Answer, BackendError, Call, Event, NoResult
from refgeo.conformance.checks import CHECKS, Check, chosen, functions_of
from refgeo.conformance.circumstances import circumstances
from refgeo.conformance.conduct import RULES, observe, short
from refgeo.conformance.evidence import (
    DOUBTFUL,
    INTEGRATED,
    Evidence,
    difference,
    hold,
    measured,
    something_to_expect,
    units,
)
from refgeo.conformance.laws import CURVE, GEODESIC, RETRACTION, TARGETS, Law, takes_laws
from refgeo.conformance.operations import ROUTINE, VALUES, Parts, Value
from refgeo.conformance.points import GivenPoints, Points
from refgeo.conformance.report import Report
from refgeo.conformance.scene import Scene
from refgeo.conformance.searches import search_evidence
from refgeo.conformance.steps import RULES as STEPS
from refgeo.conformance.trajectories import trajectory_evidence
from refgeo.conformance.uncovered import Reached, not_run
from refgeo.conformance.verdict import EVERY, NOTHING, Explanation, Row, Seen, Verdict, row_of
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import integer, listed
from refgeo.support.errors import Interrupted, RefereeError
from refgeo.support.threads import one_thread

SPECIFICATION = 2
"""The version of the protocol and of the formulas, which ``FORMAT.md`` describes."""
_LARGE = 20_000
"""Of points with more numbers, circumstances, conduct and laws see the first rows of two blocks."""
_FEW, _MANY, _LAWS = 1, 12, 4
"""So many points, with leading dimensions and without, for circumstances and conduct; for laws of update rules; for
those of exact geodesics."""
_REPLAYED, _SHUFFLED = 1000, 400
"""Numbers of a point whose calls are kept, to be repeated in another order; so many of them are."""

Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, what: str) -> None:
    """Nothing is shown."""


def check(
    backend: Any = None,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtype: str = Points.dtype,
    profile: str = Points.profile,
    seed: int = Points.seed,
    relaxation: float = Points.relaxation,
    laws_only: bool = False,
    cases: Iterable[str] | None = None,
    points: GivenPoints | str | Path | None = None,
    checkpoint: str | Path | Mapping[str, Any] | None = None,
    layout: str | None = None,
    heads: int | None = None,
    options: Mapping[str, Sequence[Any]] | None = None,
    timeout: float = TIMEOUT,
    jobs: int | None = None,
    specification: int = SPECIFICATION,
    progress: Progress | None = None,
) -> Report:
    """Judge a backend against rigorous enclosures.

    Parameters
    ----------
    backend : module, object, function, str, path or Backend, optional
        The implementation (see `Backend`), or where it is: ``"module"``, ``"module:object"``, ``"file.py"``. Default:
        the paper's formulas, `refgeo.paper`.
    metrics : iterable of "inv", "mix", or between them "s=0.5"
        The backend gets these names. Between the paper's metrics, exact geodesics are judged by laws alone if h > 1.
    checks : iterable of str, optional
        Names of checks (``"geodesic_2"``) or functions (``"geodesic"``). Default: all.
    dtype : "float64", "float32", "float16" or "bfloat16"
        The precision of the arrays that the backend gets, and that it is judged by.
    profile : "quick" or "full"
        How many generated points.
    seed : int
    relaxation : float
        ε of App. H.2: the geometry with S + εI and T + εI is the truth.
    laws_only : bool
        For update rules that are no gradient of these metrics: no values, nor laws that only these values obey.
        Equivariance, linearity, horizontality in the metric named, blocks and layouts are left.
    cases : iterable of str, optional
        Only these cases; a name, or the first part of one.
    points : mapping of str to mapping of str to array, or path, optional
        Your own test points instead of generated ones, by name: ``G`` and ``H``, and if you like the vectors ``a_G``,
        ``a_H``, ``b_G``, ``b_H``, ``e_G``, ``e_H``, ``v_G``, ``v_H`` and the time ``t``; for the Hessian
        ``hessian_e_G``, ... (the gradient of an invariant loss), ``hessian_w_G``, ... (its Hessian applied to v) and
        ``hessian_v_G``, ... (a horizontal v) together. What is missing is drawn. A point with ``metric`` is for this
        one alone. Or a file that `Report.save` has
        written.
    checkpoint : path or state dict, optional
        Take the test points from a network instead.
    layout : str, optional
        The network's layout, see `refgeo.networks.read`. Default: the one that fits.
    heads : int, optional
        The network's number of attention heads, where no ``config.json`` beside the file says it.
    options : mapping of str to sequence, optional
        Of an update rule: the values of its keyword arguments to be tried, such as ``{"momentum": [0.0, 0.9]}``; every
        combination is judged.
    timeout : float
        Seconds that one call of the backend may take.
    jobs : int, optional
        How many metrics are judged at once. Each has a process of the backend's own, whatever their number, so the
        verdicts do not depend on it. Default: as many as there are processors.
    specification : int
        The version of the protocol that you have written for; any other raises an error.
    progress : callable, optional
        Called as ``progress(done, total, what)``.

    Returns
    -------
    Report

    Raises
    ------
    BackendError
        The backend cannot be loaded or provides none of the functions.
    ValueError
        An option has an unknown value, or no case is left.
    RefereeError
        The referee itself failed.
    Interrupted
        Ctrl-C, a KeyboardInterrupt whose ``report`` has what had been seen by then.

    Examples
    --------
    >>> import refgeo as rg
    >>> report = rg.check(checks=["inner_product"], cases=["1x1x1"])
    >>> report.passed
    True
    >>> rg.check(points={"mine": {"G": [[1.0]], "H": [[2.0]]}}, checks=["inner_product"]).passed
    True
    """
    if specification != SPECIFICATION:
        raise ValueError(
            f"specification: expected {SPECIFICATION}, by which this version of refgeo judges, got {specification}"
        )
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function of (done, total, what), got {progress!r}")
    where = Points(profile, dtype, seed, relaxation, points, checkpoint, layout, heads).with_layout()
    plan = Plan.of(metrics, checks, where, laws_only, cases, options)
    with one_thread(), ExitStack() as stack:
        loaded = Backend.of("refgeo.paper" if backend is None else backend, timeout)
        if loaded is not backend:
            stack.callback(loaded.close)
        return judge(plan, loaded, _processors() if jobs is None else integer("jobs", jobs), progress or no_progress)


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # those that this process may use, where one can ask
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Plan:
    """What is to be judged.

    Attributes
    ----------
    metrics : list of str
    checks : list of Check
    functions : set of str
        Whose conduct is watched.
    points : Points
    cases : list of str or None
    laws_only : bool
    options : dict
        Of an update rule.
    closely : bool
        Whether circumstances and conduct are tried, and calls repeated in another order: not for results from files.
    """

    metrics: list[str]
    checks: list[Check]
    functions: set[str]
    points: Points
    cases: list[str] | None = None
    laws_only: bool = False
    options: dict[str, list[Any]] = field(default_factory=dict)
    closely: bool = True

    @classmethod
    def of(
        cls,
        metrics: Iterable[str],
        checks: Iterable[str] | None,
        points: Points,
        laws_only: bool = False,
        cases: Iterable[str] | None = None,
        options: Mapping[str, Sequence[Any]] | None = None,
    ) -> Plan:
        """What arguments of `check` choose."""
        wanted = list(dict.fromkeys(pair_metric(metric, argument="metrics").name for metric in listed(metrics)))
        if not wanted:
            raise ValueError("metrics: expected at least one metric, got none")
        if not isinstance(laws_only, bool):
            raise ValueError(f"laws_only: expected True or False, got {laws_only!r}")
        names = None if checks is None else listed(checks)
        found = chosen(names, laws_only)
        if not found:
            raise ValueError(
                "checks: expected at least one check, got none (laws_only leaves out checks that only inv and mix "
                "must pass)"
            )
        whole = cases is None and points.generated
        found = [one for one in found if one.kind not in ("search", "trajectory") or whole]
        found = [one for one in found if one.kind != "search" or not laws_only]
        several = {name: list(values) for name, values in (options or {}).items()}
        return cls(wanted, found, functions_of(names), points, None if cases is None else listed(cases), laws_only,
                   several)  # fmt: skip

    def of_kind(self, kind: str) -> list[Check]:
        """The checks of a kind."""
        return [one for one in self.checks if one.kind == kind]

    def values(self, backend: Backend) -> list[Value]:
        """What is asked for at every point: what is judged by itself or by laws, and all whose conduct is watched."""
        asked = {one.value.name for one in self.checks if one.value}
        if self.of_kind("contract"):
            asked |= {value.name for value in TARGETS.values() if value.operation.name in self.functions}
        return [one for one in TARGETS.values() if one.name in asked and backend.provides(one.operation.name)]

    def has_truth(self, value: Value) -> bool:
        """Whether a value is held against what is right: a retraction is any curve, an update rule of any metric."""
        known = value is not RETRACTION and not self.laws_only
        return known and (bool(self.of_kind("contract")) or any(one.name == value.name for one in self.checks))


@dataclass(frozen=True)
class Judged:
    """A call that has been judged to be right, and its result."""

    scene: Scene
    value: Value
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
    of_other_metric : dict of dict of list of Evidence
        By metric: calls of other metrics, right after one of this.
    judged : list of Judged
        Small calls, to be repeated.
    count : int
        Points so far.
    """

    def __init__(self, plan: Plan, backend: Backend, metric: str) -> None:
        self.plan, self.backend, self.metric = plan, backend, metric
        self.evidence: defaultdict[str, list[Evidence]] = defaultdict(list)
        self.of_other_metric: defaultdict[str, defaultdict[str, list[Evidence]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.judged: list[Judged] = []
        self.scenes = plan.points.selected(metric, plan.cases)
        self.rules = [one.name for one in plan.of_kind("contract")]
        self._values = plan.values(backend)
        self._seen: set[tuple[str, str]] = set()
        self._tried: Counter[Any] = Counter()
        self.count = 0

    def so_far(self) -> Judge:
        """With what has been seen; a thread may go on."""
        found = copy.copy(self)
        found.evidence = defaultdict(list, {name: [*seen] for name, seen in [*self.evidence.items()]})
        return found

    def look_at(self, scene: Scene) -> None:
        """All checks at one point."""
        for value in filter(self.plan.has_truth, self._values):
            if scene.can_be_enclosed(value):
                known = self.evidence[value.name]
                call = scene.call(value, decisive=bool(np.any(units(scene, value).decisive)))
                answer = self.ask(scene, call)
                found = list(hold(scene, value, answer, 0 if known else 1, demanding=is_demanding(call)))
                known += found
                kept = scene.entries <= _REPLAYED and (scene.features or len(self.judged) < _SHUFFLED)
                if kept and all(one.decisive and one.ratio <= DOUBTFUL for one in found):
                    self.judged.append(Judged(scene, value, call, tuple(answer.parts)))
            elif value.order == "exact" and takes_laws(scene) and self._is_among("geodesic", _LAWS):
                self._laws(scene, value, GEODESIC, value.name)
        if self.plan.closely and scene.is_plain and scene.is_usual and scene.dtype == self.plan.points.dtype:
            self._look_closely(scene)

    def ask(self, scene: Scene, call: Call) -> Answer:
        """The answer to a call, whose conduct is watched where nothing is numerically wrong with the point."""
        answer = self.backend.call(call)
        if self.rules and answer.failure is None and np.all(something_to_expect(scene)):
            broken = {r: how for r, how in answer.conduct.items() if not (r == "silent" and call.layout)}
            for rule in self.rules:
                if rule in broken or (rule in _ON_EVERY_CALL and (rule, call.function) not in self._seen):
                    self._note(rule, scene, call.function, broken.get(rule, ""))
        return answer

    def _note(self, rule: str, scene: Scene, function: str, broken: str = "", unseen: str = "") -> None:
        """How a rule of conduct was kept or broken; the same again says nothing."""
        if (rule, function + broken) in self._seen:
            return
        self._seen |= {(rule, function), (rule, function + broken)}
        event = Event.BROKEN if broken else Event.UNKNOWN if unseen else Event.RESULT
        self.evidence[rule].append(
            Evidence(
                scene.name, event=event, said=broken or unseen, oddity=scene.oddity, dtype=scene.dtype, about=function
            )
        )

    def _is_among(self, what: Any, most: int) -> bool:
        """Whether something was tried less often than this; then it is now."""
        self._tried[what] += 1
        return self._tried[what] <= most

    def _look_closely(self, scene: Scene) -> None:
        """Laws, circumstances and conduct: they do not depend on how many blocks and rows there are."""
        if scene.entries > _LARGE:
            scene = scene.first_blocks(2, 2 * scene.point.sizes[2] + 1)
        kind = bool(scene.shape)
        functions: set[str] = set()
        for value in self._values:
            decisive = bool(np.all(units(scene, value).decisive)) and scene.entries <= _LARGE
            self._of_types(scene, value, kind)
            if not decisive or (value.order == "exact" and not takes_laws(scene)):
                continue
            first_of_function = value.operation.name not in functions
            if self._is_among(("circumstances", value.name, kind), _FEW):
                self._circumstances(scene, value)
                functions.add(value.operation.name)
                if first_of_function:
                    self._conduct(scene, value)

    def _circumstances(self, scene: Scene, value: Value) -> None:
        """The same call in other circumstances, held against what is right; or against its own result."""
        if self.backend.call(scene.call(value)).failure is not None:
            return  # which the plain call has said
        for words, there, asked, call in circumstances(scene, value):
            answer = self.ask(there, call)
            failure = answer.failure
            if call.layout and failure is not None and failure.event in (Event.FAILED, Event.LAYOUT):
                if failure.event is Event.FAILED and "takes_any_memory_layout" in self.rules:
                    text = f"the function fails for {words}: {short(str(failure))}"
                    self._note("takes_any_memory_layout", scene, call.function, text)
                continue
            if failure is not None and there.shape != scene.shape:
                continue  # whether it takes batches is said by batches
            if self.plan.has_truth(value) and there.can_be_enclosed(asked):
                known = self.evidence if there.metric == self.metric else self.of_other_metric[there.metric]
                known[asked.name] += hold(there, asked, answer, circumstance=words)
            elif failure is None:
                self._beside_plain(there, asked, answer, words)
                if call.before and not there.shape:
                    self._of_types(there, asked, ("after", scene.name, words), call.before, words)
        if "takes_any_memory_layout" in self.rules:
            self._note("takes_any_memory_layout", scene, value.operation.name)

    def _beside_plain(self, scene: Scene, value: Value, answer: Answer, words: str) -> None:
        """A result that nothing is known of, beside that of the plain call."""
        plain = self.ask(scene, scene.call(value))
        if plain.failure is None:
            size = scene.size(value)
            errors = difference(scene, value, tuple(answer.parts), tuple(plain.parts), size)
            unit = units(scene, value, 2.0 * (INTEGRATED if value.order == "exact" else 1.0))
            for one in self.plan.checks:
                if one.value is value and one.law is None and (one.kind == "law" or scene.metric == self.metric):
                    self.evidence[one.name] += measured(scene, unit, errors, circumstance=words)

    def _of_types(
        self, scene: Scene, value: Value, kind: Any, before: Sequence[Call] = (), circumstance: str = ""
    ) -> None:
        """Laws of update rules, and of retractions."""
        if value is RETRACTION and self._is_among(("retraction", kind), _MANY):
            self._laws(scene, value, CURVE, value.name, before, circumstance)
        for one in self.plan.of_kind("law"):
            if one.law is not None and one.value is value and self._is_among((one.name, kind), _MANY):
                self._laws(scene, value, {"": one.law}, one.name, before, circumstance)

    def _laws(
        self, scene: Scene, value: Value, laws: Mapping[str, Law], name: str, before: Sequence[Call] = (),
        circumstance: str = "",
    ) -> None:  # fmt: skip
        for law in laws.values():
            unit = law.units(scene, value)
            if not np.all(unit.decisive):
                continue
            try:
                with np.errstate(all="ignore"):
                    errors = law.errors(scene, value, lambda call: self.ask(scene, call.after(*before)))
            except NoResult as failure:
                answer = Answer(failure=failure)
                self.evidence[name] += hold(scene, value, answer, demanding=is_demanding(scene.call(value)))
                return
            except (ValueError, ArithmeticError) as error:  # of the referee's own mathematics, at numbers it cannot use
                said = f"{type(error).__name__}: {error}"
                self.evidence[name].append(Evidence(scene.name, event=Event.UNEVALUATED, said=said))
                return
            self.evidence[name] += measured(scene, unit, errors, law=law.statement, circumstance=circumstance)

    def _conduct(self, scene: Scene, value: Value) -> None:
        for seen in observe(self.backend, scene, value, self.backend.call) if self.rules else ():
            if seen.rule in self.rules:
                self._note(seen.rule, scene, value.operation.name, seen.broken, seen.unseen)

    def compare(self, judged: Judged, answer: Answer, past: list[Judged]) -> None:
        """Hold a repeated call against its own judged result, and if it is another one, against what is right."""
        scene, value = judged.scene, judged.value
        if answer.failure is None:
            away = difference(scene, value, tuple(answer.parts), judged.parts, scene.size(value))
            if np.all(away <= 2.0 * DOUBTFUL * units(scene, value).gram):
                return
        words = ANOTHER_ORDER
        if self._is_among(("culprit", value.name), _FEW):
            words = _culprit(self.backend, judged, past)
        self.evidence[value.name] += hold(scene, value, answer, circumstance=words)

    def row(self, check: Check, explain: bool) -> Row | None:
        """What is said of a value or a law; None where it has met no point."""
        if not self.backend.provides(check.function):
            return row_of(check, self.metric, [_absent(check.function)])
        found = self.evidence.get(check.name, [])
        if not found:
            return None
        suspect = Suspect(check, self.metric, self.backend, Seen(found), self._named, self._is_wrong)
        explanation = explained(suspect) if explain else NOTHING
        return row_of(check, self.metric, found, explanation, self.plan.points.dtype)

    def _named(self, names: Iterable[str]) -> list[Scene]:
        """Points made again, one by one: those of a large network together need much memory."""
        wanted = set(names)
        return [make() for name, make in self.scenes if name in wanted]

    def _is_wrong(self, name: str) -> bool:
        """Also of a value that was not asked for, at the points so far."""
        value = VALUES[name]
        if value not in self._values and self.backend.provides(value.operation.name) and name not in self.evidence:
            for _, make in self.scenes:
                scene = make()
                if scene.can_be_enclosed(value):
                    self.evidence[name] += hold(scene, value, self.backend.call(scene.call(value)))
        return Seen(self.evidence.get(name, [])).is_wrong


_ON_EVERY_CALL = [*RULES][: [*RULES].index("frees_its_memory")]


@dataclass
class _Progress:
    """Of several metrics as one."""

    show: Progress
    total: int = 0
    done: int = 0
    lock: Any = field(default_factory=threading.Lock)
    stopped: bool = False

    def step(self, what: str) -> None:
        """Another point begins."""
        with self.lock:
            self.show(self.done, self.total, what)
            self.done += 1


def judge(plan: Plan, backend: Backend, jobs: int, show: Progress = no_progress) -> Report:
    """The report: every metric by a process of the backend's own, then all of them in one, in another order."""
    judges: list[Judge] = []
    progress, pool = _Progress(show), ThreadPoolExecutor(max(jobs, 1))
    try:
        for metric in plan.metrics:
            judges.append(Judge(plan, backend.fresh() if judges else backend, metric))
        progress.total = sum(len(one.scenes) for one in judges)
        if min(jobs, len(judges)) > 1 and backend.has_own_process:
            for future in as_completed([pool.submit(_over, one, progress) for one in judges]):
                future.result()
        else:
            for one in judges:
                _over(one, progress)
        show(progress.total, progress.total, "done")
        return _concluded(plan, backend, judges, show)
    except KeyboardInterrupt:
        progress.stopped = True
        counts = dict.fromkeys(plan.metrics, 0) | {one.metric: one.count for one in judges}
        far = "; ".join(f"{metric}: {count} points checked" for metric, count in counts.items())
        rows = _rows(plan, [one.so_far() for one in judges], explain=False)
        raise Interrupted(_report(plan, backend, judges, rows, interrupted=far)) from None
    finally:
        ended = [one.backend for one in judges if one.backend is not backend or progress.stopped]
        for theirs in ended:
            theirs.close()  # what it was asked last is of no interest any more
        pool.shutdown()
        for theirs in ended:
            theirs.close()  # a thread may have started another process since


def _over(judge: Judge, progress: _Progress) -> None:
    for name, make in judge.scenes:
        if progress.stopped:
            return
        progress.step(f"{judge.metric} {name}")
        judge.look_at(make())
        judge.count += 1


def _concluded(plan: Plan, backend: Backend, judges: list[Judge], show: Progress) -> Report:
    """Calls in another order, rows, searches, trajectories."""
    for one, other in itertools.permutations(judges, 2):
        for name, found in one.of_other_metric[other.metric].items():
            other.evidence[name] += found
    try:
        _replay(plan, backend, judges)
        reached: list[Reached] = [one.backend.reached() for one in judges]
        whole = [*_searches(plan, backend, judges[0], show), *_trajectories(plan, backend, show)]
        reached.append(backend.reached())
        rows = [*_rows(plan, judges), *whole]
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        if isinstance(error, BackendError):
            raise
        message = f"after the run, refgeo itself failed ({type(error).__name__}: {error}); please report it"
        raise RefereeError(message) from error
    return _report(plan, backend, judges, rows, not_run=not_run(reached))


def _replay(plan: Plan, backend: Backend, judges: list[Judge]) -> None:
    """The judged calls once more in one process, shuffled across metrics, dtypes, orders and functions: what is kept
    from the first call on, or by too little, gives other results. It begins with what no process has begun with.
    """
    calls = [(one, judged) for one in judges for judged in one.judged] if plan.closely else []
    rng = np.random.default_rng(plan.points.seed)
    order = [calls[i] for i in rng.permutation(len(calls))[:_SHUFFLED]]
    first: dict[str, tuple[Judge, Judged]] = {}
    for one in sorted(order, key=lambda one: (one[1].scene.dtype == "float64", one[0] is judges[0])):
        first.setdefault(one[1].call.function, one)
    opening = list(first.values())
    rest = sorted((one for one in order if one not in opening), key=lambda one: one[1].scene.dtype == "float64")
    fresh, past = backend.fresh(), list[Judged]()
    try:
        for one, judged in [*opening, *rest]:  # in single precision first: in the other processes that came last
            answer = fresh.call(judged.call)
            if not judged.is_repeated_by(answer):
                one.compare(judged, answer, past)
            past.append(judged)
    finally:
        if fresh is not backend:
            fresh.close()


def _culprit(backend: Backend, judged: Judged, past: list[Judged]) -> str:
    """After which of the earlier calls alone, in a process of its own, a call gives another result; in words."""
    kinds: dict[str, Judged] = {}
    shape = judged.scene.point.G.shape
    for earlier in sorted(past, key=lambda one: one.scene.point.G.shape != shape):
        differing = [
            words
            for words, one, other in (
                (f"the metric {earlier.call.metric}", earlier.call.metric, judged.call.metric),
                (f"{earlier.scene.dtype} arrays", earlier.scene.dtype, judged.scene.dtype),
                (f"order {earlier.value.order}", earlier.value.order, judged.value.order),
                (f"the function {earlier.call.function}", earlier.call.function, judged.call.function),
            )
            if one != other
        ]
        if len(differing) <= 1:
            kinds.setdefault(
                f"after a call with {differing[0]}" if differing else "after a call at another point", earlier
            )
    for words, earlier in kinds.items():
        fresh = backend.fresh()
        if fresh is backend:
            break
        try:
            answer = fresh.call(judged.call.after(earlier.call))
        finally:
            fresh.close()
        if not judged.is_repeated_by(answer):
            return words
    return ANOTHER_ORDER


def _searches(plan: Plan, backend: Backend, first: Judge, show: Progress) -> Iterator[Row]:
    names = [one.name for one in plan.of_kind("search")]
    if names and not backend.provides(ROUTINE):
        yield row_of(replace(CHECKS[names[0]], name=ROUTINE), EVERY, [_absent(ROUTINE)])
        return
    for name, metric, found, message in search_evidence(backend, names, plan.metrics, plan.points, show):
        for one in found:
            if one.event is Event.BROKEN and one.circumstance in first.rules:
                first.evidence[one.circumstance].append(replace(one, circumstance=""))
        yield row_of(CHECKS[name], metric, [one for one in found if one.event is not Event.BROKEN], message=message)


def _trajectories(plan: Plan, backend: Backend, show: Progress) -> Iterator[Row]:
    names = [one.name for one in plan.of_kind("trajectory")]
    if names and not any(map(backend.provides, STEPS)):
        yield row_of(replace(CHECKS[names[0]], name=STEPS[0]), EVERY, [_absent("step or make")])
        return
    for name, label, options, judged in (
        trajectory_evidence(backend, names, plan.points, plan.options, show) if names else ()
    ):
        excuse = Explanation(judged.message, excuse=Verdict.INACCURATE) if judged.excused else NOTHING
        message = "" if judged.excused else judged.message
        yield row_of(CHECKS[name], label or EVERY, judged.evidence, excuse, message=message, options=options)


def _absent(function: str) -> Evidence:
    return Evidence("", event=Event.NOT_IMPLEMENTED, said=f"no function {function}", decisive=False)


def _rows(plan: Plan, judges: list[Judge], explain: bool = True) -> list[Row]:
    """A row for each check and metric that met a point; for each rule of conduct one."""
    rows = []
    for check in plan.checks:
        if check.kind == "contract":
            found = [evidence for one in judges for evidence in one.evidence.get(check.name, [])]
            rows += [row_of(check, EVERY, found)] if found else []
        elif check.kind in ("value", "law"):
            rows += [row for one in judges for row in [one.row(check, explain)] if row is not None]
    return rows


def _report(plan: Plan, backend: Backend, judges: list[Judge], rows: list[Row], **options: Any) -> Report:
    notes = list(backend.misspelt)
    if plan.points.dtype == "bfloat16" and not backend.converts:
        notes.append(
            "bfloat16: the backend has no function asarray, so it has got float32 arrays and has computed in float32"
        )
    failing = {(row.metric, row.example.case) for row in rows if row.fails and row.example is not None}
    examples = [make() for one in judges for name, make in one.scenes if (one.metric, name) in failing]
    return Report(
        backend=backend.name, points=plan.points, rows=rows, spec=backend.spec, where=backend.where,
        timeout=backend.timeout, notes=tuple(notes),
        examples=tuple(examples), **options,
    )  # fmt: skip
