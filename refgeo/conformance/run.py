"""Run the checks over the cases and collect a report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT, Backend
from refgeo.conformance.case import Case
from refgeo.conformance.checks import VALUE_CHECKS, Check, something_to_expect
from refgeo.conformance.contract import CONTRACT, SEEN
from refgeo.conformance.diagnosis import CANNOT_TELL, NO_DIAGNOSIS, Diagnosis, diagnose, inherits, worst_entries
from refgeo.conformance.host import BackendError, Breaches
from refgeo.conformance.laws import LAWS
from refgeo.conformance.operations import FUNCTIONS, ROUTINE, VALUES, Operation
from refgeo.conformance.points import GivenPoints, Points
from refgeo.conformance.recipes import Lazy
from refgeo.conformance.report import Report
from refgeo.conformance.rows import Row, Verdict
from refgeo.conformance.searches import SEARCH, judge_routine
from refgeo.conformance.side_by_side import Elsewhere, shares, together
from refgeo.conformance.steps import RULES
from refgeo.conformance.tally import Tally
from refgeo.conformance.trajectories import CLAIMS, TRAJECTORY, judge_trajectories
from refgeo.conformance.trial import Trial
from refgeo.conformance.uncovered import Reached, not_run
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import listed, one_of
from refgeo.support.errors import Interrupted, RefereeError
from refgeo.support.threads import one_thread

CHECKS: dict[str, Check] = {**VALUE_CHECKS, **LAWS, **CONTRACT}
OTHERS: dict[str, str] = {**SEARCH, **TRAJECTORY, **CLAIMS}
"""What judges more than single calls, with what it states."""
SPECIFICATION = 2
"""The version of the protocol and of the formulas, which ``FORMAT.md`` describes."""

_BY_METRIC = ("value", "law", "contract")
LARGE = 20_000
"""Of points with more numbers, laws see the first rows of two blocks, and at most two points that are still larger."""

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
    points: GivenPoints | None = None,
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
    points : mapping of str to mapping of str to array, optional
        Your own test points instead of generated ones, by name: ``G`` and ``H``, and if you like the vectors ``a_G``,
        ``a_H``, ``b_G``, ``b_H``, ``e_G``, ``e_H``, ``v_G``, ``v_H`` and the time ``t``; for the Hessian
        ``hessian_e_G``, ... (the gradient of an invariant loss), ``hessian_w_G``, ... (its Hessian applied to v) and
        ``hessian_v_G``, ... (a horizontal v) together. What is missing is drawn.
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
        How many metrics are judged at once at generated points, each by a process with a process of the backend's own.
        Default: as many as there are processors.
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
    where = Points(profile, dtype, seed, relaxation, points, checkpoint, layout, heads).with_layout()
    plan = _Plan.of(metrics, checks, where, laws_only, cases, options, progress)
    sendable = isinstance(backend, (str, os.PathLike, ModuleType, NoneType)) and where.can_be_sent
    with one_thread(), ExitStack() as stack:  # a process of a backend and one of ours are at work already
        here, *elsewhere = shares(plan.metrics, jobs if plan.checks and cases is None and sendable else 1)
        others = [Elsewhere(__name__) for _ in elsewhere]
        for other in others:
            stack.callback(other.terminate)
        loaded = Backend.of("refgeo.paper" if backend is None else backend, timeout)
        if loaded is not backend:
            stack.callback(loaded.close)
        if not loaded.has_own_process:
            here, others = plan.metrics, []
        for other, share in zip(others, elsewhere, strict=False):
            plan.begin(other, share, loaded)
        return plan.carried_out(loaded, here, others, progress or no_progress)


@dataclass(frozen=True)
class _Plan:
    """What is to be judged."""

    metrics: list[str]
    checks: list[Check]
    searches: list[str]
    trajectories: list[str]
    options: dict[str, list[Any]]
    points: Points
    laws_only: bool
    cases: Iterable[str] | None

    @classmethod
    def of(
        cls,
        metrics: Iterable[str],
        checks: Iterable[str] | None,
        points: Points,
        laws_only: bool,
        cases: Iterable[str] | None,
        options: Mapping[str, Sequence[Any]] | None,
        progress: Progress | None,
    ) -> _Plan:
        """What arguments of `check` choose."""
        if progress is not None and not callable(progress):
            raise ValueError(f"progress: expected a function of (done, total, what), got {progress!r}")
        wanted = list(dict.fromkeys(pair_metric(metric, argument="metrics").name for metric in listed(metrics)))
        if not wanted:
            raise ValueError("metrics: expected at least one metric, got none")
        if not isinstance(laws_only, bool):
            raise ValueError(f"laws_only: expected True or False, got {laws_only!r}")
        chosen = chosen_checks(checks, laws_only)
        searches, trajectories = chosen_others(checks).values()
        if not (chosen or searches or trajectories):
            raise ValueError(
                "checks: expected at least one check, got none (laws_only leaves out checks that only inv and mix "
                "must pass)"
            )
        generated = cases is None and points.generated
        searches, trajectories = (searches if generated and not laws_only else []), trajectories if generated else []
        several = {name: list(values) for name, values in (options or {}).items()}
        return cls(wanted, chosen, searches, trajectories, several, points, laws_only, cases)

    def begin(self, other: Elsewhere, metrics: list[str], backend: Backend) -> None:
        """Have some metrics judged by another process, with a process of the same backend."""
        total = sum(len(list(self.points.cases(metric))) for metric in metrics)
        known = backend.spec, backend.name, backend.timeout, backend.described
        names = [one.name for one in self.checks]
        other.begin(total, judged.__name__, known, names, metrics, self.points)

    def carried_out(self, backend: Backend, here: list[str], others: list[Elsewhere], progress: Progress) -> Report:
        """The report: of the metrics here, and of those that other processes judge; after Ctrl-C of what there is."""
        run = Run(backend, self.checks, here, self.points, together(progress, others), self.laws_only)
        found: list[tuple[list[Row], Reached]] = []
        try:
            if self.checks:
                run.over(self.cases)
            self._finish(run, others, progress, found)
        except KeyboardInterrupt:
            found = found or [(run.rows(explained=False), {})]
            raise Interrupted(run.report(self._in_order(found), interrupted=self._how_far(run, found))) from None
        return run.report(self._in_order(found), not_run=not_run([reached for _, reached in found]))

    def _how_far(self, run: Run, found: list[tuple[list[Row], Reached]]) -> str:
        """The points of each metric that had been judged."""
        seen, elsewhere = Counter(metric for metric, _ in run.cases), {row.metric for rows, _ in found for row in rows}
        here = {metric: f"{seen[metric]} points checked" for metric in run.metrics}
        said = {metric: "checked" if metric in elsewhere else "not checked" for metric in self.metrics} | here
        return "; ".join(f"{metric}: {text}" for metric, text in said.items())

    def _finish(
        self, run: Run, others: list[Elsewhere], progress: Progress, found: list[tuple[list[Row], Reached]]
    ) -> None:
        """Add what this process has found, the others, and searches, each when it is there."""
        try:
            found.append((run.rows(), run.backend.reached()))
            for other in others:
                found.append(other.result())
            if self.searches:
                found.append((judge_routine(run.backend, self.searches, self.metrics, self.points, progress), {}))
            if self.trajectories:
                rows = judge_trajectories(run.backend, self.trajectories, self.points, self.options, progress)
                found.append((rows, run.backend.reached()))
        except BackendError:
            raise
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            message = f"after the run, refgeo itself failed ({type(error).__name__}: {error}); please report it"
            raise RefereeError(message) from error

    def _in_order(self, found: list[tuple[list[Row], Reached]]) -> list[Row]:
        """Rows as the checks and metrics stand; searches are last."""
        rows = [row for some, _ in found for row in some]
        names = list(CHECKS)
        place = {row.check: names.index(row.check) if row.check in names else len(names) for row in rows}
        metric = {name: i for i, name in enumerate(self.metrics)}
        return sorted(
            rows, key=lambda row: (place[row.check], metric.get(row.metric, 0) if row.kind in _BY_METRIC else 0)
        )


def judged(
    progress: Progress, of: tuple[Any, ...], checks: list[str], metrics: list[str], points: Points
) -> tuple[list[Row], Reached]:
    """The rows of a run, of a backend that is loaded by its name, and what it has not reached."""
    backend = Backend(*of)
    try:
        run = Run(backend, [CHECKS[name] for name in checks], metrics, points, progress)
        run.over()
        return run.rows(), backend.reached()
    finally:
        backend.close()


@dataclass
class Run:
    """One run: what is checked, the cases so far, and what each check has seen of them."""

    backend: Backend
    checks: list[Check]
    metrics: list[str]
    points: Points
    progress: Progress
    laws_only: bool = False
    cases: list[tuple[str, Lazy]] = field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = field(init=False)
    _tried: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    _large: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tallies = {
            (one.name, metric): Tally(one, metric, self.points.dtype) for one in self.checks for metric in self.metrics
        }

    def over(self, names: Iterable[str] | None = None) -> None:
        """All checks on all cases; only those of these `names`, which are made only then."""
        found = [(metric, lazy) for metric in self.metrics for lazy in self.points.selected(metric, names)]
        for done, (metric, (name, make)) in enumerate(found):
            self.progress(done, len(found), f"{metric} {name}")
            self.cases.append((metric, (name, make)))
            case = make()
            for one in self.checks:
                self.tally(one, case)
        self.progress(len(found), len(found), "done")

    def tally(self, one: Check, case: Case, tally: Tally | None = None) -> None:
        """Put a case to a check, if it is one for it; what is seen goes to the run's own tally, or the one given."""
        limited = tally is None
        tally = tally or self.tallies[one.name, case.metric]
        if not self.backend.provides(one.operation.name):
            tally.absent = one.operation.name
            return
        fitting = self._fitting(one, case, limited)
        if fitting is not None:  # of every value one block is enclosed at least
            tally.run(Trial(self.backend, fitting, self._watch, least=0 if tally.measurements else 1))

    def _fitting(self, one: Check, case: Case, limited: bool) -> Case | None:
        """The case, or its first blocks, if the check has something to say of it (and not yet said it often enough)."""
        if one.kind == "value":
            return case if one.applies(case) else None
        if one.name.partition(".")[2] in SEEN and self.tallies[one.name, case.metric].measurements and limited:
            return None  # other calls have been watched
        if one.kind == "law" and not (case.plain and case.is_usual):
            return None
        large, tried = (one.name, case.metric), (one.name, case.metric, bool(case.point.block_shape))
        if limited and one.most is not None and self._tried[tried] >= one.most:
            return None
        if case.entries > LARGE:  # conduct and laws do not depend on how many blocks and rows there are
            case = case.blocks(2, 2 * case.point.sizes[2] + 1)
        if limited and case.entries > LARGE and self._large[large] > 1:
            return None
        if not (one.applies(case) and np.all(one.decisive(case))):
            return None
        self._tried[tried] += limited
        self._large[large] += case.entries > LARGE
        return case

    def _watch(self, operation: Operation, case: Case, broken: Breaches) -> None:
        """Hold what a call did besides returning against the contract, where nothing is numerically wrong with it."""
        tallies = {rule: self.tallies.get((f"{operation.name}.{rule}", case.metric)) for rule in SEEN}
        news = [
            (tally, broken.get(rule))
            for rule, tally in tallies.items()
            if tally and (rule in broken or not tally.measurements)
        ]
        if news and np.all(something_to_expect(case)):
            for tally, breach in news:
                tally.saw(case, breach)

    def report(self, rows: list[Row] | None = None, **options: Any) -> Report:
        """What has been seen, with diagnoses; or rows of this run and others."""
        rows = self.rows() if rows is None else rows
        return Report(
            backend=self.backend.name,
            points=self.points,
            rows=rows,
            spec=self.backend.spec,
            where=self.backend.where,
            timeout=self.backend.timeout,
            notes=tuple(self._notes()),
            **options,
        )

    def _notes(self) -> Iterator[str]:
        yield from self.backend.misspelt
        if self.points.dtype == "bfloat16" and not self.backend.converts:
            yield (
                "bfloat16: the backend has no function asarray, so it has got float32 arrays and has computed in "
                "float32"
            )

    def rows(self, explained: bool = True) -> list[Row]:
        """A row for each check and metric that met a case, and who is to blame: `Row.uses` is the graph of it."""
        rows = [tally.row() for tally in self.tallies.values() if tally.has_seen]
        if not explained:
            return rows
        return [self._blamed(row, self.tallies[row.check, row.metric]) for row in rows]

    def _blamed(self, row: Row, tally: Tally) -> Row:
        """What follows from a wrong value that the row uses is not laid to it."""
        if row.verdict not in (Verdict.WRONG, Verdict.INACCURATE) or row.kind == "contract":
            return row
        guilty = [name for name in row.uses if self._is_wrong(VALUE_CHECKS[name], row.metric)]
        if row.kind == "law":
            message = "the values of this function are wrong"
            return replace(row, verdict=Verdict.NOT_JUDGED, message=message) if guilty else row
        if row.verdict is Verdict.INACCURATE or not tally.has_wrong_numbers:
            return row
        failing, passing = self._outcomes(tally)
        if guilty and not tally.failures and inherits(VALUES[row.check], self.backend, failing, guilty):
            message = f"this formula is right; the result is wrong only because it uses a wrong {' and '.join(guilty)}"
            return replace(row, verdict=Verdict.INHERITS, message=message)
        try:
            found = diagnose(tally.check, self.backend, failing, passing)
            if found == Diagnosis() and not tally.failures:
                found = Diagnosis(self._other_precision(row) or f"{NO_DIAGNOSIS}: {self._seen(row)}{self._hint}")
        except CANNOT_TELL:  # an explanation decides nothing
            return row
        return replace(row, diagnosis=found.text, yours=found.yours, expected=found.expected, differs=found.differs)

    def _other_precision(self, row: Row) -> str:
        """Where a function computes in another precision than that of its inputs, that is the first thing to know."""
        conduct = self.tallies.get((f"{row.function}.dtype_kept", row.metric))
        told = conduct.row().message if conduct is not None and conduct.events["breach"] else ""
        return f"{told}; check the function in this precision (--dtype)" if told else ""

    @property
    def _hint(self) -> str:
        return "" if self.points.dtype == "float64" else "; in float64 (--dtype float64), refgeo can read more formulas"

    def _outcomes(self, tally: Tally) -> tuple[list[Case], list[Case]]:
        """The decisive cases that gave numbers: wrong ones, and right ones."""
        doubtful, without = {one.case for one in tally.doubtful}, {one.case for one, _ in tally.failures}
        decisive = {one.case for one in tally.decisive} - without
        cases = list(self._made(tally.metric, decisive))
        return [case for case in cases if case.name in doubtful], [case for case in cases if case.name not in doubtful]

    def _made(self, metric: str, names: Collection[str] | None = None) -> Iterator[Case]:
        """The cases of a metric, made again one by one: those of a large network together need much memory."""
        return (make() for other, (name, make) in self.cases if other == metric and (names is None or name in names))

    def _seen(self, row: Row) -> str:
        assert row.example is not None
        case = next(self._made(row.metric, [row.example.case]))
        return worst_entries(VALUES[row.check], self.backend, case, row.example.block)

    def _is_wrong(self, one: Check, metric: str) -> bool:
        """Also of a function that was not asked for, at the cases so far."""
        if (one.name, metric) not in self.tallies:
            self.tallies[one.name, metric] = tally = Tally(one, metric, self.points.dtype)
            for case in [] if self.laws_only else self._made(metric):
                self.tally(one, case, tally)
        return self.tallies[one.name, metric].is_wrong


def chosen_checks(names: Iterable[str] | None, laws_only: bool = False) -> list[Check]:
    """The checks with these names, or of the functions with these names; None: all.

    Laws that values make superfluous are among them only by name, or where there are to be no values.
    """
    wanted = list(FUNCTIONS) if names is None else listed(names)
    for name in wanted:
        one_of("checks", name, [*FUNCTIONS, *CHECKS, *OTHERS])
    found = [
        one
        for one in CHECKS.values()
        if one.name in wanted or (one.operation.name in wanted and (one.kind != "law" or one.always or laws_only))
    ]
    return [one for one in found if not (laws_only and (one.kind == "value" or one.of_metric))]


def chosen_others(names: Iterable[str] | None) -> dict[tuple[str, ...], list[str]]:
    """What judges more than single calls, by the functions that it judges: searches, update rules.

    Whether a rule is a known one is chosen by its name alone.
    """
    return {
        (ROUTINE,): _named(names, (ROUTINE,), SEARCH),
        RULES: _named(names, RULES, TRAJECTORY, CLAIMS),
    }


def _named(
    names: Iterable[str] | None, functions: Collection[str], laws: Collection[str], values: Collection[str] = ()
) -> list[str]:
    """All laws, or those with these names or whose function is named; values by their names alone."""
    wanted = list(functions) if names is None else listed(names)
    every = bool(set(functions) & set(wanted))
    return [name for name in laws if every or name in wanted] + [name for name in values if name in wanted]
