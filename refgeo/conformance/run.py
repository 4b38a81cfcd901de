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

from refgeo.conformance.execution.backend import TIMEOUT, Backend
from refgeo.conformance.execution.coverage import CoverageData, find_uncovered_lines
from refgeo.conformance.execution.process import ChildProcess
from refgeo.conformance.judge import Judge, not_provided
from refgeo.conformance.judging.checks import CHECKS
from refgeo.conformance.judging.evidence import Evidence
from refgeo.conformance.judging.verdict import ANY_METRIC, Row, make_row
from refgeo.conformance.optimisers.invariance import trajectory_evidence
from refgeo.conformance.optimisers.searches import search_evidence
from refgeo.conformance.plan import Plan
from refgeo.conformance.points.sources import GivenPoints, Points
from refgeo.conformance.protocol.call import UPDATE_RULES, BackendError
from refgeo.conformance.protocol.operations import FUNCTIONS, ROUTINE
from refgeo.conformance.report import Report
from refgeo.support.errors import Interrupted, RefereeError
from refgeo.support.threads import one_thread

Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, what: str) -> None:
    """Show nothing."""


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
        The number of generated points.
    seed : int
    relaxation : float
        ε of App. H.2: results are compared with the geometry of S + εI and T + εI.
    cases : iterable of str, optional
        Only the points with these names, or whose names begin with them.
    points : mapping of str to mapping of str to array, optional
        Your own test points instead of generated ones, by name: ``G`` and ``H``, and if you like the vectors ``a_G``,
        ``a_H``, ``b_G``, ``b_H``, ``e_G``, ``e_H``, ``v_G``, ``v_H`` and the time ``t``; for the Hessian
        ``hessian_e_G``, ... (the gradient of an invariant loss), ``hessian_w_G``, ... (its Hessian applied to v) and
        ``hessian_v_G``, ... (a horizontal v) together. Missing arrays are drawn at random. A point with ``metric`` is
        used for this metric only.
    checkpoint : path or state dict, optional
        Take the test points from a network instead.
    layout : str, optional
        The network's layout, see `refgeo.networks.read`.
    heads : int, optional
        The network's number of attention heads, unless a ``config.json`` beside the file contains it.
    key_value_heads : int, optional
        Its number of key and value heads, likewise.
    options : mapping of str to sequence, optional
        The values of an update rule's keyword arguments to be tried, such as ``{"momentum": [0.0, 0.9]}``; every
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
        Ctrl-C, a KeyboardInterrupt whose ``report`` contains all results so far.

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
    backend = "refgeo.paper" if backend is None else backend
    with one_thread(), ExitStack() as stack:
        parallel = _start_parallel_runs(plan, backend, stack)
        loaded = Backend.of(backend, timeout, plan.generate_points)
        if loaded is not backend:
            stack.callback(loaded.close)
        return judge_all(plan, loaded, progress or no_progress, parallel)


@dataclass
class MetricResult:
    """The result of the run of one metric.

    Attributes
    ----------
    rows : list of Row
        The rows of values and laws.
    conduct : dict of list of Evidence
        The evidence on each rule.
    reached : CoverageData
        The lines of the backend that decisive calls have not reached.
    count : int
        The number of points that were judged.
    """

    metric: str
    rows: list[Row]
    conduct: dict[str, list[Evidence]]
    reached: CoverageData
    count: int
    interrupted: bool = False


def judge_metric(plan: Plan, backend: Backend, metric: str, show: Progress) -> MetricResult:
    """Judge one metric point by point; Ctrl-C ends this with the rows so far, without diagnoses."""
    result = MetricResult(metric, [], {}, {}, 0)
    try:
        judge = Judge(plan, backend, metric)
        judge.prime()
        for i, point in enumerate(judge.points):
            show(i, len(judge.points), f"{metric} {point.name}")
            judge.judge_point(i)
            result.count += 1
        with _as_referee_errors():
            result.reached = backend.coverage()
            result.rows = judge.rows(explain=True)
    except KeyboardInterrupt:
        backend.close()  # what it was asked last is of no interest any more
        result.interrupted = True
        result.rows = judge.rows(explain=False) if result.count else []
    result.conduct = {rule: judge.evidence[rule] for rule in judge.rules} if result.count else {}
    return result


def judge_metric_in_child(line: Connection, metric: str) -> None:
    """Judge one metric in another process: receive the backend and the plan, send the progress, and at the end the
    result, or the error that ended it.
    """
    try:
        backend = Backend(*line.recv())
        backend.start()
        plan = line.recv()
        with one_thread():
            result: Any = judge_metric(plan, backend, metric, lambda *far: line.send(far))
        backend.close()
    except Exception as error:
        result = error
    line.send(result)


class ParallelRun:
    """The run of one metric in another process, which imports its modules until it gets the backend and the plan."""

    def __init__(self, metric: str) -> None:
        self.metric, self.far = metric, (0, 0, "")
        self.child = ChildProcess(judge_metric_in_child, metric)
        self.last: Any = None

    def begin(self, plan: Plan, backend: Backend) -> None:
        """Send the backend and the plan."""
        self.child.send((backend.spec, backend.name, backend.timeout, backend.described))
        self.child.send(plan)

    def poll(self, waiting: float = 0.0) -> bool:
        """Receive what the process has sent, and return whether it has ended."""
        while self.last is None and self.child.line.poll(waiting):
            try:
                message = self.child.line.recv()
            except (EOFError, OSError):
                message = RefereeError(f"the process that judged {self.metric} is lost: {self.child.terminate()}")
            if isinstance(message, tuple):
                self.far, waiting = message, 0.0
            else:
                self.last = message
        return self.last is not None

    def result(self) -> MetricResult:
        """Return the result after the end, or raise the error that ended the run."""
        if isinstance(self.last, Exception):
            raise self.last
        return cast(MetricResult, self.last)


def _start_parallel_runs(plan: Plan, backend: Any, stack: ExitStack) -> list[ParallelRun]:
    """Start a process for each metric but the first, if there are enough processors and the backend has a name."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_named = backend.has_own_process if isinstance(backend, Backend) else isinstance(backend, (str, os.PathLike))
    parallel = [ParallelRun(metric) for metric in (plan.metrics[1:processors] if is_named else [])]
    for run in parallel:
        stack.callback(run.child.close)
    return parallel


def judge_all(
    plan: Plan, backend: Backend, show: Progress = no_progress, parallel: Sequence[ParallelRun] = ()
) -> Report:
    """Judge the metrics of other processes there, and all others in turn here; return the report on all of them."""
    in_turn = [metric for metric in plan.metrics if metric not in [run.metric for run in parallel]]
    with ExitStack() as stack:
        results: list[MetricResult] = []
        try:
            plan.generate_points()
            for run in parallel:
                run.begin(plan, backend)
            for metric in in_turn:
                own = backend if metric == in_turn[0] else backend.restart()
                if own is not backend:
                    stack.callback(own.close)
                n_before = sum(result.count for result in results)
                report = partial(_report_progress, show, n_before, parallel, len(plan.metrics))
                results.append(judge_metric(plan, own, metric, report))
                if results[-1].interrupted:
                    raise KeyboardInterrupt
            with _as_referee_errors():
                whole_runs = list(_judge_whole_runs(plan, backend, results[0], show))
                has_run = plan.includes_whole_runs and any(map(backend.provides, (ROUTINE, *UPDATE_RULES)))
                reached = [backend.coverage()] if has_run else []
            done, total = sum(result.count for result in results), results[0].count
            for run in parallel:
                while not run.poll(_POLL_INTERVAL):
                    _report_progress(show, done, parallel, len(plan.metrics), 0, total, run.far[2])
                results.append(run.result())
            show(sum(result.count for result in results), sum(result.count for result in results), "done")
        except KeyboardInterrupt:
            for run in parallel:
                run.child.interrupt()
            results += [run.last for run in parallel if run.poll(_LAST_WAIT) and isinstance(run.last, MetricResult)]
            n_points = {result.metric: result.count for result in results}
            counts = "; ".join(f"{metric}: {n_points.get(metric, 0)} points checked" for metric in plan.metrics)
            raise Interrupted(_report(plan, backend, results, [], interrupted=counts)) from None
    results.sort(key=lambda result: plan.metrics.index(result.metric))
    reached += [result.reached for result in results]
    left = find_uncovered_lines(reached, {*FUNCTIONS} - plan.functions) if backend.has_own_process else None
    return _report(plan, backend, results, whole_runs, not_run=left)


_POLL_INTERVAL, _LAST_WAIT = 0.2, 10.0
"""Seconds between looks at other processes, and those that an interrupted process gets to send its result; chosen."""


def _report_progress(
    show: Progress, before: int, runs: Sequence[ParallelRun], metrics: int, done: int, total: int, what: str
) -> None:
    """Report the progress of all metrics together; each has the same number of points."""
    for run in runs:
        run.poll()
    show(before + done + sum(run.far[0] for run in runs), metrics * total, what)


@contextmanager
def _as_referee_errors() -> Iterator[None]:
    """Return a context in which errors are refgeo's own, as those of the backend come as answers."""
    try:
        yield
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        if isinstance(error, BackendError):
            raise
        message = f"refgeo itself failed ({type(error).__name__}: {error}); please report it"
        raise RefereeError(message) from error


_CONDUCT_RUNS = {"search": "sharpness_1", "trajectory": "step.repeatable"}
"""The check that is run for its conduct alone, if no check of its kind is selected."""


def _judge_whole_runs(plan: Plan, backend: Backend, first: MetricResult, show: Progress) -> Iterator[Row]:
    """Judge searches and trajectories; breaches of conduct in them are added to those of other calls."""
    for kind, functions, judge in (
        ("search", (ROUTINE,), partial(search_evidence, metrics=plan.metrics)),
        ("trajectory", UPDATE_RULES, partial(trajectory_evidence, options=plan.options)),
    ):
        names = [check.name for check in plan.of_kind(kind)]
        has_any = any(map(backend.provides, functions))
        if names and not has_any:
            absent = replace(CHECKS[names[0]], name=functions[0])
            yield make_row(absent, ANY_METRIC, [not_provided(" or ".join(functions))])
        watched = plan.of_kind("contract") and plan.includes_whole_runs and not plan.functions.isdisjoint(functions)
        run = names or ([_CONDUCT_RUNS[kind]] if watched else [])
        for name, label, options, item in judge(backend, run, plan.points, progress=show) if run and has_any else ():
            if CHECKS[name].kind == "contract":
                if name in plan.names:
                    first.conduct.setdefault(name, []).extend(item.evidence)
            elif names:
                yield make_row(CHECKS[name], label or ANY_METRIC, item.evidence, options=options, message=item.message)


def _rows(plan: Plan, results: Sequence[MetricResult]) -> Iterator[Row]:
    """Yield a row for each check and metric that has evidence, and one for each rule of conduct."""
    for check in plan.checks:
        if check.kind == "contract":
            breaches = [evidence for result in results for evidence in result.conduct.get(check.name, [])]
            yield from [make_row(check, ANY_METRIC, breaches)] if breaches else []
        else:
            yield from (row for result in results for row in result.rows if row.check == check.name)


def _report(plan: Plan, backend: Backend, results: Sequence[MetricResult], whole: list[Row], **options: Any) -> Report:
    """Make the report of all results."""
    rows = [*_rows(plan, results), *whole]
    notes = list(backend.misspelt)
    if plan.points.dtype == "bfloat16" and not backend.converts:
        notes.append(
            "bfloat16: the backend has no function asarray, so it has got float32 arrays and has computed in float32"
        )
    return Report(
        backend=backend.name, points=plan.points, rows=rows, spec=backend.spec, where=backend.where,
        timeout=backend.timeout, notes=tuple(notes), **options,
    )  # fmt: skip
