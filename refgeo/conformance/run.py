"""Run the checks over the cases and collect a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.arguments import integer, listed, one_of
from refgeo.conformance.backend import TIMEOUT, Backend, Observed
from refgeo.conformance.case import Case
from refgeo.conformance.checks import VALUE_CHECKS, Check, something_to_expect
from refgeo.conformance.contract import CONTRACT, SEEN, seen
from refgeo.conformance.diagnosis import (
    CANNOT_TELL,
    NO_DIAGNOSIS,
    PARTS,
    diagnose,
    inherited,
    plain_cases,
    worst_entries,
)
from refgeo.conformance.laws import LAWS
from refgeo.conformance.points import EXAMPLES, GivenPoints, Points
from refgeo.conformance.recipes import Lazy
from refgeo.conformance.report import Report, Row, Verdict
from refgeo.conformance.searches import SEARCH, judge_routine
from refgeo.conformance.side_by_side import Elsewhere, shares, together
from refgeo.conformance.tally import Tally
from refgeo.conformance.trial import Trial
from refgeo.errors import RefereeError
from refgeo.metrics.pair import pair_metric
from refgeo.operations import FUNCTIONS, ROUTINE, Operation, Value

CHECKS: dict[str, Check] = {**VALUE_CHECKS, **LAWS, **CONTRACT}
SPECIFICATION = 2
"""The version of the protocol and of the formulas, which ``FORMAT.md`` describes."""

LARGE = 20_000
"""Of points with more numbers, laws see the first two blocks, and at most two points that are still larger then."""

Progress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, what: str) -> None:
    """Nothing is shown."""


def check(
    backend: Any = None,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtype: str = "float64",
    profile: str = "quick",
    examples: int = EXAMPLES,
    seed: int = 0,
    relaxation: float = 0.0,
    laws_only: bool = False,
    cases: Iterable[str] | None = None,
    points: GivenPoints | None = None,
    checkpoint: str | Path | Mapping[str, Any] | None = None,
    layout: str | None = None,
    heads: int | None = None,
    timeout: float = TIMEOUT,
    jobs: int | None = None,
    specification: int = SPECIFICATION,
    progress: Progress | None = None,
) -> Report:
    """Judge a backend against rigorous enclosures.

    Parameters
    ----------
    backend : module, object, function, str or Backend, optional
        The implementation (see `Backend`), or where it is: ``"module"``, ``"module:object"``, ``"file.py"``. Default:
        the paper's formulas, `refgeo.formulas`.
    metrics : iterable of "inv", "mix", or between them "s=0.5"
        The backend gets these names. Between the paper's metrics, exact geodesics are judged by laws alone if h > 1.
    checks : iterable of str, optional
        Names of checks (``"geodesic_2"``) or functions (``"geodesic"``). Default: all.
    dtype : "float64", "float32", "float16" or "bfloat16"
        The precision of the arrays that the backend gets, and that it is judged by.
    profile : "quick", "full" or "fuzz"
        How many generated points; ``"fuzz"`` searches for a failing one with Hypothesis and shrinks it.
    examples : int
        How many points ``"fuzz"`` tries.
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
        The network's layout, see `refgeo.networks.read`.
    heads : int, optional
        The network's number of attention heads, where no ``config.json`` beside the file says it.
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

    Examples
    --------
    >>> import refgeo as rg
    >>> report = rg.check(checks=["inner_product"], cases=["1x1x1"])
    >>> report.passed
    True
    >>> rg.check(points={"mine": {"G": [[1.0]], "H": [[2.0]]}}, checks=["inner_product"]).passed
    True
    """
    wanted = list(dict.fromkeys(pair_metric(metric, argument="metrics").name for metric in listed(metrics)))
    if not wanted:
        raise ValueError("metrics: expected at least one, got none")
    if specification != SPECIFICATION:
        raise ValueError(f"specification: this refgeo judges by version {SPECIFICATION}, got {specification}")
    if not isinstance(laws_only, bool):
        raise ValueError(f"laws_only: expected True or False, got {laws_only!r}")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function of (done, total, what), got {progress!r}")
    if profile == "fuzz" and cases is not None:
        raise ValueError("cases: the profile fuzz makes its own; leave one of the two out")
    where = Points.chosen(profile, dtype, seed, relaxation, points, checkpoint, layout, heads, examples)
    chosen = [one for one in chosen_checks(checks) if not (laws_only and (one.kind == "value" or one.of_metric))]
    searches = chosen_searches(checks)
    if not chosen and not searches:
        raise ValueError(
            "checks: expected at least one check, and with laws_only one that other metrics can pass; got none"
        )
    jobs = None if jobs is None else integer("jobs", jobs)
    loaded = Backend.of("refgeo.formulas" if backend is None else backend, timeout)
    searching = cases is None and not laws_only and where.kind == "generated" and searches
    several = chosen and cases is None and where.kind == "generated" and loaded.has_own_process
    here, *elsewhere = shares(wanted, jobs if several else 1)
    progress = progress or no_progress
    with ExitStack() as stack:
        if loaded is not backend:
            stack.callback(loaded.close)
        others = [
            stack.enter_context(
                Elsewhere(
                    sum(len(list(where.cases(metric))) for metric in share),
                    loaded.spec,
                    loaded.name,
                    loaded.timeout,
                    loaded.described,
                    [one.name for one in chosen],
                    share,
                    where,
                )
            )
            for share in elsewhere
        ]
        run = Run(loaded, chosen, here, where, together(progress, others))
        if where.kind == "fuzz":
            from refgeo.conformance.fuzz import search

            run.cases = search(run, examples)
        elif chosen:
            run.over(cases)
        try:
            rows = [*run.rows(), *(row for other in others for row in other.rows())]
            rows.sort(key=lambda row: (list(CHECKS).index(row.check), wanted.index(row.metric)))
            if searching:
                rows += judge_routine(loaded, searches, wanted, profile, dtype, seed, progress)
            return run.report(rows)
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            message = f"after its run the referee failed ({type(error).__name__}: {error}); please report it"
            raise RefereeError(message) from error


def rows_of(
    progress: Progress,
    spec: str,
    name: str,
    timeout: float,
    known: dict[str, Any],
    checks: list[str],
    metrics: list[str],
    points: Points,
) -> list[Row]:
    """The rows of a run, of a backend that is loaded by its name."""
    backend = Backend(spec, name, timeout, known)
    try:
        run = Run(backend, chosen_checks(checks), metrics, points, progress)
        run.over()
        return run.rows()
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
    cases: list[Case] = field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = field(init=False)
    _tried: Counter[tuple[str, str, bool, str]] = field(default_factory=Counter)
    _large: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tallies = {
            (one.name, metric): Tally(one, metric, self.points.dtype) for one in self.checks for metric in self.metrics
        }

    def over(self, names: Iterable[str] | None = None) -> None:
        """All checks on all cases; only those of these `names`, which are made only then."""
        found = [(metric, lazy) for metric in self.metrics for lazy in selected(self.points.cases(metric), names)]
        for done, (metric, (name, make)) in enumerate(found):
            self.progress(done, len(found), f"{metric} {name}")
            case = make()
            self.cases.append(case)
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
        if fitting is not None:
            tally.run(Trial(self.backend, fitting, self._watch))

    def _fitting(self, one: Check, case: Case, limited: bool) -> Case | None:
        """The case, or its first blocks, if the check has something to say of it (and not yet said it often enough)."""
        if one.kind == "value":
            return case if one.applies(case) else None
        if one.kind == "law" and one.most is not None and not case.plain:
            return None
        if case.entries > LARGE:  # conduct and laws do not depend on how many blocks there are
            case = case.blocks(2)
        large, tried = (one.name, case.metric), (one.name, case.metric, bool(case.point.block_shape), case.unusual)
        if limited and case.entries > LARGE and self._large[large] > 1:
            return None
        if limited and one.most is not None and self._tried[tried] >= (one.unusual if case.unusual else one.most):
            return None
        if not (one.applies(case) and np.all(one.decisive(case))):
            return None
        self._tried[tried] += limited
        self._large[large] += case.entries > LARGE
        return case

    def _watch(self, operation: Operation, case: Case, observed: Observed) -> None:
        """Hold what a call did besides returning against the contract, where nothing is numerically wrong with it."""
        broken = dict(seen(operation, case, observed))
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
            failing_points=self._failing_points(rows) if self.points.kind == "fuzz" else {},
            **options,
        )

    def _notes(self) -> Iterator[str]:
        yield from self.backend.misspelt
        if self.points.dtype == "bfloat16" and not self.backend.converts:
            yield "bfloat16: without an asarray of its own the backend has got, and computed in, float32"

    def rows(self) -> list[Row]:
        """A row for each check and metric that met a case."""
        rows = []
        for tally in self.tallies.values():
            if tally.has_seen:
                row = tally.row()
                if row.verdict is Verdict.WRONG and row.kind == "value":
                    with suppress(*CANNOT_TELL):  # an explanation decides nothing
                        row = self._explained(tally, row)
                rows.append(row)
        return list(_without_hearsay(rows, self._wrong_besides(rows)))

    def _wrong_besides(self, rows: list[Row]) -> set[tuple[str, str]]:
        """Functions, by metric, that were not asked for, are used by a law that is broken, and are wrong."""
        broken = [row for row in rows if row.kind == "law" and row.verdict is Verdict.WRONG]
        used = {(name, row.metric) for row in broken for name in CHECKS[row.check].needs} - set(self.tallies)
        return {
            (name, metric)
            for name, metric in used
            if self._is_wrong(CHECKS[name], [case for case in self.cases if case.metric == metric])
        }

    def _explained(self, tally: Tally, row: Row) -> Row:
        """With the mistake that gives these numbers, where one does at every point tried."""
        if not tally.has_wrong_numbers:
            return row
        doubtful, without = {one.case for one in tally.doubtful}, {one.case for one, _ in tally.failures}
        decisive = {one.case for one in tally.decisive}
        cases = [case for case in self.cases if case.metric == row.metric and case.name in decisive - without]
        failing = [case for case in cases if case.name in doubtful]
        passing = [case for case in cases if case.name not in doubtful]
        if not failing:
            return row
        wrong_already = {
            one.check.name
            for one in self.tallies.values()
            if one.check.kind == "value" and one.metric == row.metric and one is not tally and one.is_wrong
        }
        assert tally.check.value is not None
        for name in PARTS.get(tally.check.value.name, ()):
            unasked = (name, row.metric) not in self.tallies
            if unasked and self._is_wrong(CHECKS[name], [*failing, *plain_cases(failing[0])]):
                wrong_already.add(name)
        origin = inherited(tally.check.value, self.backend, failing, wrong_already)
        if origin and not tally.failures:
            return replace(
                row, verdict=Verdict.INHERITS, message=f"exactly what its own {origin} gives, which is wrong"
            )
        diagnosis = diagnose(tally.check, self.backend, failing, passing)
        if diagnosis == NO_DIAGNOSIS and tally.failures:
            return row
        if diagnosis == NO_DIAGNOSIS:
            diagnosis += self._seen(tally.check.value, row)
            diagnosis += "; more points may tell where it is wrong" if len(cases) == 1 else ""
        return replace(row, diagnosis=diagnosis)

    def _seen(self, value: Value, row: Row) -> str:
        assert row.example is not None
        case = next(case for case in self.cases if (case.name, case.metric) == (row.example.case, row.metric))
        return f": {worst_entries(value, self.backend, case, row.example.block)}"

    def _is_wrong(self, one: Check, cases: list[Case]) -> bool:
        """Of a function that was not asked for, at these points."""
        tally = Tally(one, cases[0].metric, self.points.dtype)
        for case in cases:
            self.tally(one, case, tally)
        return tally.is_wrong

    def _failing_points(self, rows: list[Row]) -> dict[str, dict[str, Any]]:
        """The example of every failing row, by name, for points that a seed cannot give again."""
        names = {row.example.case for row in rows if row.verdict is Verdict.WRONG and row.example}
        return {case.name: dict(case.arrays()) for case in self.cases if case.name in names}


def _without_hearsay(rows: list[Row], besides: set[tuple[str, str]]) -> Iterator[Row]:
    """A law that uses another function cannot be judged where that function is wrong itself."""
    wrong = {(row.about, row.metric) for row in rows if row.verdict is Verdict.WRONG and row.kind == "value"}
    heirs = {(row.about, row.metric) for row in rows if row.verdict is Verdict.INHERITS}
    # wrong values alone break it, too: whether something is remembered, another law says
    repeats = [row for row in rows if ".same_twice" in row.check and row.verdict is Verdict.PASS]
    stateless = {(row.check.replace("same_twice", "remembers_nothing"), row.metric) for row in repeats}
    for row in rows:
        needs = CHECKS[row.check].needs if row.check in CHECKS else ()
        culprits = [name for name in needs if (name, row.metric) in wrong | besides]
        follows = row.verdict is Verdict.INACCURATE or (
            row.verdict is Verdict.WRONG and (row.check, row.metric) in stateless
        )
        if row.kind == "law" and follows and (row.about, row.metric) in wrong:
            row = replace(row, verdict=Verdict.NOT_JUDGED, message="its values are wrong")
        if row.kind == "law" and row.verdict is Verdict.WRONG and (row.about, row.metric) in heirs - wrong:
            row = replace(row, verdict=Verdict.NOT_JUDGED, message="its values inherit a mistake")
        if culprits and row.verdict is Verdict.WRONG:
            row = replace(row, verdict=Verdict.NOT_JUDGED, message=f"uses {culprits[0]}, which is wrong")
        yield row


def selected(found: Iterable[Lazy], names: Iterable[str] | None) -> list[Lazy]:
    """The cases with these names, or where there is none of a name, those whose names start with it; None: all."""
    found, wanted = list(found), None if names is None else listed(names)
    known = {name for name, _ in found}

    def selects(name: str, case: str) -> bool:
        start = name.split("[")[0].rstrip("/.")  # a block's index, as a table shows it, is no part of a case's name
        return case == start if start in known else case.startswith((start + "/", start + ".", start + " "))

    chosen = [one for one in found if wanted is None or any(selects(name, one[0]) for name in wanted)]
    unknown = [name for name in wanted or [] if not any(selects(name, one) for one, _ in chosen)]
    if unknown or not chosen:
        raise ValueError(f"cases: none of the test points is called {', '.join(unknown) or 'so'}; --list shows them")
    return chosen


def chosen_checks(names: Iterable[str] | None) -> list[Check]:
    """The checks with these names, or of the functions with these names; None: all."""
    if names is None:
        return list(CHECKS.values())
    wanted = listed(names)
    for name in wanted:
        one_of("checks", name, [*FUNCTIONS, *CHECKS, *SEARCH])
    return [one for one in CHECKS.values() if one.name in wanted or one.operation.name in wanted]


def chosen_searches(names: Iterable[str] | None) -> list[str]:
    """The whole searches with these names; None, or the name of the function: all."""
    wanted = [ROUTINE] if names is None else listed(names)
    return [name for name in SEARCH if name in wanted or ROUTINE in wanted]
