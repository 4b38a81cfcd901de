"""Run the checks over the test points, and collect a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from refgeo.conformance.backend import TIMEOUT, Backend
from refgeo.conformance.call import BackendError
from refgeo.conformance.checks import CHECKS
from refgeo.conformance.evidence import Evidence
from refgeo.conformance.judge import Judge, not_provided
from refgeo.conformance.operations import FUNCTIONS, ROUTINE
from refgeo.conformance.plan import Plan
from refgeo.conformance.points import GivenPoints, Points
from refgeo.conformance.process import Child
from refgeo.conformance.report import Report
from refgeo.conformance.searches import search_evidence
from refgeo.conformance.steps import UPDATE_RULES
from refgeo.conformance.trajectories import trajectory_evidence
from refgeo.conformance.uncovered import Reached, not_run
from refgeo.conformance.verdict import ANY_METRIC, Row, make_row
from refgeo.support.errors import Interrupted, RefereeError
from refgeo.support.threads import one_thread

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
    cases: Iterable[str] | None = None,
    points: GivenPoints | None = None,
    checkpoint: str | Path | Mapping[str, Any] | None = None,
    layout: str | None = None,
    heads: int | None = None,
    key_value_heads: int | None = None,
    options: Mapping[str, Sequence[Any]] | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Report:
    """Judge a backend against rigorous enclosures.

    Parameters
    ----------
    backend : module, object, function, str, path or Backend, optional
        The implementation (see `Backend`), or where it is: ``"module"``, ``"module:object"``, ``"file.py"``. Default:
        the paper's formulas, `refgeo.paper`.
    metrics : iterable of "inv", "mix", or between them "s=0.5"
        The backend gets these names. Between the paper's metrics, exact geodesics are judged at h = 1 alone.
    checks : iterable of str, optional
        Names of checks (``"geodesic_2"``) or functions (``"geodesic"``). Default: all.
    dtype : "float64", "float32", "float16" or "bfloat16"
        The precision of the arrays that the backend gets, and that it is judged by.
    profile : "quick" or "full"
        How many generated points.
    seed : int
    relaxation : float
        ε of App. H.2: the geometry with S + εI and T + εI is the truth.
    cases : iterable of str, optional
        Only these cases; a name, or the first part of one.
    points : mapping of str to mapping of str to array, optional
        Your own test points instead of generated ones, by name: ``G`` and ``H``, and if you like the vectors ``a_G``,
        ``a_H``, ``b_G``, ``b_H``, ``e_G``, ``e_H``, ``v_G``, ``v_H`` and the time ``t``; for the Hessian
        ``hessian_e_G``, ... (the gradient of an invariant loss), ``hessian_w_G``, ... (its Hessian applied to v) and
        ``hessian_v_G``, ... (a horizontal v) together. What is missing is drawn. A point with ``metric`` is for this
        one alone.
    checkpoint : path or state dict, optional
        Take the test points from a network instead.
    layout : str, optional
        The network's layout, see `refgeo.networks.read`.
    heads : int, optional
        The network's number of attention heads, where no ``config.json`` beside the file says it.
    key_value_heads : int, optional
        Its number of key and value heads, likewise.
    options : mapping of str to sequence, optional
        Of an update rule: the values of its keyword arguments to be tried, such as ``{"momentum": [0.0, 0.9]}``; every
        combination is judged.
    timeout : float
        Seconds that one call of the backend may take.
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
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function of (done, total, what), got {progress!r}")
    where = Points(profile, dtype, seed, relaxation, points, checkpoint, layout, heads, key_value_heads)
    plan = Plan.of(metrics, checks, where, cases, options)
    with one_thread(), ExitStack() as stack:
        loaded = Backend.of("refgeo.paper" if backend is None else backend, timeout)
        if loaded is not backend:
            stack.callback(loaded.close)
        return judge(plan, loaded, progress or no_progress)


@dataclass
class Judged:
    """What the run of one metric has found.

    Attributes
    ----------
    rows : list of Row
        Of values and laws.
    conduct : dict of list of Evidence
        By rule.
    reached : Reached
        Lines of the backend.
    count : int
        Points so far.
    """

    metric: str
    rows: list[Row]
    conduct: dict[str, list[Evidence]]
    reached: Reached
    count: int
    interrupted: bool = False


def judged(plan: Plan, backend: Backend, metric: str, show: Progress) -> Judged:
    """One metric, point by point; Ctrl-C ends it with what there is by then, which is not explained."""
    found = Judged(metric, [], {}, {}, 0)
    try:
        judge = Judge(plan, backend, metric)
        judge.prime()
        for i, point in enumerate(judge.points):
            show(i, len(judge.points), f"{metric} {point.name}")
            judge.judge_point(i)
            found.count += 1
        with _failures_of_ours():
            found.reached = backend.reached()
            found.rows = judge.rows(explain=True)
    except KeyboardInterrupt:
        backend.close()  # what it was asked last is of no interest any more
        found.interrupted = True
        found.rows = judge.rows(explain=False) if found.count else []
    found.conduct = {rule: judge.evidence[rule] for rule in judge.rules} if found.count else {}
    return found


def serve_judged(line: Connection, plan: Plan, loaded: tuple[Any, ...], metric: str) -> None:
    """The same in another process: how far it is, and at last what it has found, or the error that ended it."""
    try:
        with one_thread():
            backend = Backend(*loaded)
            found: Any = judged(plan, backend, metric, lambda *far: line.send(far))
            backend.close()
    except Exception as error:
        found = error
    line.send(found)


class Beside:
    """The run of a metric in another process, beside those of this one."""

    def __init__(self, plan: Plan, backend: Backend, metric: str) -> None:
        self.metric, self.far = metric, (0, 0, "")
        loaded = backend.spec, backend.name, backend.timeout, backend.described
        self.child = Child(serve_judged, plan, loaded, metric)
        self.last: Any = None

    def hear(self, waiting: float = 0.0) -> bool:
        """Take what it has sent; whether it has ended."""
        while self.last is None and self.child.line.poll(waiting):
            try:
                message = self.child.line.recv()
            except (EOFError, OSError):
                message = RefereeError(f"the process that judged {self.metric} is lost: {self.child.ended()}")
            if isinstance(message, tuple):
                self.far, waiting = message, 0.0
            else:
                self.last = message
        return self.last is not None

    def found(self) -> Judged:
        """What it has found, when it has ended."""
        if isinstance(self.last, Exception):
            raise self.last
        return cast(Judged, self.last)


def judge(plan: Plan, backend: Backend, show: Progress = no_progress) -> Report:
    """The report. Metrics are judged beside each other, each as a whole run by a process of the backend's own, where
    there are processors, and a name by which a backend can be loaded; in turn else.
    """
    first, *others = plan.metrics
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = processors - 1 if backend.has_own_process else 0
    with ExitStack() as stack:
        beside = [Beside(plan, backend, metric) for metric in others[:count]]
        for one in beside:
            stack.callback(one.child.close)
        found: list[Judged] = []
        try:
            for metric in (first, *others[count:]):
                own = backend if metric == first else backend.fresh()
                if own is not backend:
                    stack.callback(own.close)
                before = sum(one.count for one in found)
                found.append(judged(plan, own, metric, partial(_shown, show, before, beside, len(plan.metrics))))
                if found[-1].interrupted:
                    raise KeyboardInterrupt
            with _failures_of_ours():
                whole = list(_whole(plan, backend, found[0], show))
                reached = [found[0].reached, backend.reached()]
            done, total = sum(one.count for one in found), found[0].count
            for one in beside:
                while not one.hear(_PATIENCE):
                    _shown(show, done, beside, len(plan.metrics), 0, total, one.far[2])
                found.append(one.found())
            show(sum(one.count for one in found), sum(one.count for one in found), "done")
        except KeyboardInterrupt:
            for one in beside:
                one.child.interrupt()
            found += [one.last for one in beside if one.hear(_LAST) and isinstance(one.last, Judged)]
            far = {one.metric: one.count for one in found}
            said = "; ".join(f"{metric}: {far.get(metric, 0)} points checked" for metric in plan.metrics)
            raise Interrupted(_report(plan, backend, found, [], interrupted=said)) from None
    found.sort(key=lambda one: plan.metrics.index(one.metric))
    reached += [one.reached for one in found]
    left = not_run(reached, {*FUNCTIONS} - plan.functions) if backend.has_own_process else None
    return _report(plan, backend, found, whole, not_run=left)


_PATIENCE, _LAST = 0.2, 10.0
"""Seconds between looks at other processes, and those that one gets to tell what it has when it is interrupted."""


def _shown(show: Progress, before: int, beside: list[Beside], metrics: int, done: int, total: int, what: str) -> None:
    """How far all metrics are, beside and after those before; each has as many points."""
    for one in beside:
        one.hear()
    show(before + done + sum(one.far[0] for one in beside), metrics * total, what)


@contextmanager
def _failures_of_ours() -> Iterator[None]:
    """What fails after the run is no failure of the backend."""
    try:
        yield
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        if isinstance(error, BackendError):
            raise
        message = f"after the run, refgeo itself failed ({type(error).__name__}: {error}); please report it"
        raise RefereeError(message) from error


_WATCHED = {"search": "sharpness_1", "trajectory": "step.repeatable"}
"""What is run to watch conduct alone."""


def _whole(plan: Plan, backend: Backend, first: Judged, show: Progress) -> Iterator[Row]:
    """Searches and trajectories; what is seen of their conduct is told as that of any call."""
    for kind, functions, seen in (
        ("search", (ROUTINE,), partial(search_evidence, metrics=plan.metrics)),
        ("trajectory", UPDATE_RULES, partial(trajectory_evidence, options=plan.options)),
    ):
        names = [one.name for one in plan.of_kind(kind)]
        provided = any(map(backend.provides, functions))
        if names and not provided:
            absent = replace(CHECKS[names[0]], name=functions[0])
            yield make_row(absent, ANY_METRIC, [not_provided(" or ".join(functions))])
        watched = plan.of_kind("contract") and plan.is_whole and not plan.functions.isdisjoint(functions)
        run = names or ([_WATCHED[kind]] if watched else [])
        for name, label, options, item in seen(backend, run, plan.points, progress=show) if run and provided else ():
            if CHECKS[name].kind == "contract":
                if name in plan.names:
                    first.conduct.setdefault(name, []).extend(item.evidence)
            elif names:
                yield make_row(CHECKS[name], label or ANY_METRIC, item.evidence, options=options, message=item.message)


def _rows(plan: Plan, judged: Sequence[Judged]) -> Iterator[Row]:
    """A row for each check and metric that met a point; for each rule of conduct one."""
    for check in plan.checks:
        if check.kind == "contract":
            found = [evidence for one in judged for evidence in one.conduct.get(check.name, [])]
            yield from [make_row(check, ANY_METRIC, found)] if found else []
        else:
            yield from (row for one in judged for row in one.rows if row.check == check.name)


def _report(plan: Plan, backend: Backend, judged: Sequence[Judged], whole: list[Row], **options: Any) -> Report:
    rows = [*_rows(plan, judged), *whole]
    notes = list(backend.misspelt)
    if plan.points.dtype == "bfloat16" and not backend.converts:
        notes.append(
            "bfloat16: the backend has no function asarray, so it has got float32 arrays and has computed in float32"
        )
    return Report(
        backend=backend.name, points=plan.points, rows=rows, spec=backend.spec, where=backend.where,
        timeout=backend.timeout, notes=tuple(notes), **options,
    )  # fmt: skip
