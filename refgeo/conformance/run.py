"""Run the checks over the test points, and collect a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from refgeo.conformance.backend import TIMEOUT, Backend
from refgeo.conformance.call import BackendError
from refgeo.conformance.checks import CHECKS
from refgeo.conformance.judge import Judge, absent
from refgeo.conformance.operations import FUNCTIONS, ROUTINE
from refgeo.conformance.plan import Plan
from refgeo.conformance.points import GivenPoints, Points
from refgeo.conformance.report import Report
from refgeo.conformance.searches import search_evidence
from refgeo.conformance.steps import UPDATE_RULES
from refgeo.conformance.trajectories import trajectory_evidence
from refgeo.conformance.uncovered import Reached, not_run
from refgeo.conformance.verdict import EVERY, Row, row_of
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
    where = Points(profile, dtype, seed, relaxation, points, checkpoint, layout, heads)
    plan = Plan.of(metrics, checks, where, cases, options)
    with one_thread(), ExitStack() as stack:
        loaded = Backend.of("refgeo.paper" if backend is None else backend, timeout)
        if loaded is not backend:
            stack.callback(loaded.close)
        return judge(plan, loaded, progress or no_progress)


def judge(plan: Plan, backend: Backend, show: Progress = no_progress) -> Report:
    """The report: every metric by a process of the backend's own."""
    judges = [Judge(plan, backend if i == 0 else backend.fresh(), metric) for i, metric in enumerate(plan.metrics)]
    total = sum(len(one.points) for one in judges)
    try:
        for one in judges:
            one.open()
            for i, point in enumerate(one.points):
                show(sum(each.count for each in judges), total, f"{one.metric} {point.name}")
                one.look_at(i)
        show(total, total, "done")
        return _concluded(plan, backend, judges, show)
    except KeyboardInterrupt:
        backend.close()  # what it was asked last is of no interest any more
        far = "; ".join(f"{one.metric}: {one.count} points checked" for one in judges)
        rows = _rows(plan, judges, explain=False)
        raise Interrupted(_report(plan, backend, judges, rows, interrupted=far)) from None
    finally:
        for one in judges:
            if one.backend is not backend:
                one.backend.close()


def _concluded(plan: Plan, backend: Backend, judges: list[Judge], show: Progress) -> Report:
    """Rows, searches, trajectories."""
    try:
        reached: list[Reached] = [one.backend.reached() for one in judges]
        whole = list(_whole(plan, backend, judges[0], show))
        reached.append(backend.reached())
        rows = [*_rows(plan, judges), *whole]
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        if isinstance(error, BackendError):
            raise
        message = f"after the run, refgeo itself failed ({type(error).__name__}: {error}); please report it"
        raise RefereeError(message) from error
    return _report(plan, backend, judges, rows, not_run=not_run(reached, {*FUNCTIONS} - plan.functions))


_WATCHED = {"search": "sharpness_1", "trajectory": "step.repeatable"}
"""What is run to watch conduct alone."""


def _whole(plan: Plan, backend: Backend, first: Judge, show: Progress) -> Iterator[Row]:
    """Searches and trajectories; what is seen of their conduct is told as that of any call."""
    for kind, functions, seen in (
        ("search", (ROUTINE,), partial(search_evidence, metrics=plan.metrics)),
        ("trajectory", UPDATE_RULES, partial(trajectory_evidence, options=plan.options)),
    ):
        names = [one.name for one in plan.of_kind(kind)]
        provided = any(map(backend.provides, functions))
        if names and not provided:
            yield row_of(replace(CHECKS[names[0]], name=functions[0]), EVERY, [absent(" or ".join(functions))])
        watched = plan.of_kind("contract") and plan.is_whole and not plan.functions.isdisjoint(functions)
        run = names or ([_WATCHED[kind]] if watched else [])
        for name, label, options, found in seen(backend, run, plan.points, progress=show) if run and provided else ():
            if CHECKS[name].kind == "contract":
                first.evidence[name] += found.evidence if name in first.rules else []
            elif names:
                row = row_of(CHECKS[name], label or EVERY, found.evidence, options=options, message=found.message)
                yield row


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
    return Report(
        backend=backend.name, points=plan.points, rows=rows, spec=backend.spec, where=backend.where,
        timeout=backend.timeout, notes=tuple(notes), **options,
    )  # fmt: skip
