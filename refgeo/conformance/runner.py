"""Run the checks over the cases and collect a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from refgeo.conformance.backend import TIMEOUT, Backend
from refgeo.conformance.blame import diagnose
from refgeo.conformance.cases import METRICS, Case, generated_cases, given_case, network_cases
from refgeo.conformance.checks import VALUES, Check, can_tell
from refgeo.conformance.conduct import CONDUCT
from refgeo.conformance.laws import LAWS
from refgeo.conformance.report import Report, Row, Verdict
from refgeo.conformance.tally import Tally
from refgeo.conformance.trial import Trial
from refgeo.pair import Pair

CHECKS: dict[str, Check] = {**VALUES, **LAWS, **CONDUCT}
PROFILES = ("quick", "full", "fuzz")
DTYPES = ("float64", "float32")
SECONDS = 60.0
"""How long the profile fuzz searches by default."""

Progress = Callable[[int, int, str], None]
Points = Mapping[str, Mapping[str, npt.ArrayLike]]


def check(
    backend: Any = None,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtype: str = "float64",
    profile: str = "quick",
    seconds: float = SECONDS,
    seed: int = 0,
    cases: Iterable[str] | None = None,
    points: Points | None = None,
    checkpoint: str | Path | Mapping[str, Any] | None = None,
    layout: str | None = None,
    heads: int | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Report:
    """Judge a backend against rigorous enclosures.

    Parameters
    ----------
    backend : module, object, str or Backend, optional
        The implementation (see `Backend`), or where it is: ``"module"``, ``"module:object"``, ``"file.py"``. Default:
        the paper's formulas, `refgeo.formulas`.
    metrics : iterable of "inv", "mix"
    checks : iterable of str, optional
        Names of checks (``"geodesic_2"``) or functions (``"geodesic"``). Default: all.
    dtype : "float64" or "float32"
        The precision of the arrays that the backend gets, and that it is judged by.
    profile : "quick", "full" or "fuzz"
        How many generated points; ``"fuzz"`` searches for a failing one with Hypothesis and shrinks it.
    seconds : float
        How long ``"fuzz"`` searches.
    seed : int
    cases : iterable of str, optional
        Only these cases; a name, or the first part of one.
    points : mapping of str to mapping of str to array, optional
        Your own test points instead of generated ones, by name: ``G`` and ``H``, and if you like the vectors ``a_G``,
        ``a_H``, ``b_G``, ``b_H``, ``e_G``, ``e_H`` and the time ``t``; for the Hessian ``hessian_e_G``, ... (the
        gradient of an invariant loss), ``hessian_w_G``, ... (its Hessian applied to v) and ``hessian_v_G``, ... (a
        horizontal v) together. What is missing is drawn.
    checkpoint : path or state dict, optional
        Take the test points from a network instead.
    layout : str, optional
        The network's layout, see `refgeo.networks.read`.
    heads : int, optional
        The network's number of attention heads, where no ``config.json`` beside the file says it.
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

    Examples
    --------
    >>> import refgeo as rg
    >>> report = rg.check(checks=["inner_product"], cases=["scalar"])
    >>> report.passed
    True
    >>> rg.check(points={"mine": {"G": [[1.0]], "H": [[2.0]]}}, checks=["inner_product"]).passed
    True
    """
    loaded = Backend.of("refgeo.formulas" if backend is None else backend, timeout)
    if not timeout > 0.0:
        raise ValueError(f"timeout: expected a number of seconds > 0, got {timeout!r}")
    run = _Run(
        loaded,
        chosen_checks(checks),
        list(dict.fromkeys(one_of("metrics", metric, METRICS) for metric in metrics)),
        one_of("dtype", dtype, DTYPES),
        seed,
        progress or (lambda done, total, what: None),
    )
    one_of("profile", profile, PROFILES)
    if sum((points is not None, checkpoint is not None, profile == "fuzz")) > 1:
        raise ValueError("points, checkpoint, profile='fuzz': expected one kind of test points, got several")
    network: dict[str, Any] = {}
    if profile == "fuzz":
        from refgeo.conformance.fuzz import search

        if cases is not None:
            raise ValueError("cases: the profile fuzz makes its own; leave one of the two out")
        source = f"search with Hypothesis, {seconds:g} s"
        run.points = search(run.tally, run.checks, run.metrics, run.dtype, seed, seconds, run.progress)
    else:
        if checkpoint is not None:
            file = str(checkpoint) if isinstance(checkpoint, (str, Path)) else None
            source, network = f"{layout} checkpoint", {"checkpoint": file, "layout": layout, "heads": heads}
            found = network_points(checkpoint, layout, heads, run.metrics, dtype, seed)
        elif points is not None:
            source = "given points"
            found = [
                given_case(name, metric, arrays, dtype, seed)
                for metric in run.metrics
                for name, arrays in points.items()
            ]
        else:
            source = "generated points"
            found = [case for metric in run.metrics for case in generated_cases(metric, profile, seed, dtype)]
        run.over(selected(found, cases))
    rows = run.rows()
    return Report(
        backend=loaded.name,
        dtype=dtype,
        profile=profile,
        seed=seed,
        source=source,
        rows=rows,
        spec=loaded.spec,
        network=network,
        timeout=loaded.timeout,
        given=points is not None,
        failing_points=run.failing_points(rows) if profile == "fuzz" else {},
    )


def run_over(
    backend: Backend, checks: list[Check], cases: list[Case], dtype: str, seed: int, progress: Progress | None
) -> _Run:
    """All checks on all cases."""
    metrics = list(dict.fromkeys(case.metric for case in cases))
    run = _Run(backend, checks, metrics, dtype, seed, progress or (lambda done, total, what: None))
    run.over(cases)
    return run


@dataclass
class _Run:
    """One run: what is checked, the cases so far, and what each check has seen of them."""

    backend: Backend
    checks: list[Check]
    metrics: list[str]
    dtype: str
    seed: int
    progress: Progress
    points: list[Case] = field(default_factory=list)
    refused: list[Case] = field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = field(init=False)

    def __post_init__(self) -> None:
        self.tallies = {
            (one.name, metric): Tally(one, metric, self.dtype) for one in self.checks for metric in self.metrics
        }

    def over(self, cases: list[Case]) -> None:
        """All checks on all cases."""
        self.points = cases
        for done, case in enumerate(cases):
            self.progress(done, len(cases), f"{case.metric} {case.name}")
            for one in self.checks:
                if one.applies(case) and can_tell(one, case):
                    self.tally(one, case)
        self.progress(len(cases), len(cases), "done")

    def tally(self, check: Check, case: Case, keep: bool = True) -> Tally:
        """The tally of one check with one more case; a fresh one that is not kept, if asked."""
        tally = self.tallies[check.name, case.metric] if keep else Tally(check, case.metric, self.dtype)
        refusals = len(tally.refusals)
        tally.run(Trial(self.backend, case))
        if len(tally.refusals) > refusals == 0:
            self.refused.append(case)
        return tally

    def rows(self) -> list[Row]:
        """A row for each check and metric that met a case."""
        met = [t for t in self.tallies.values() if t.measurements or t.not_provided or t.not_judged]
        return _without_hearsay([self._with_diagnosis(tally) for tally in met])

    def failing_points(self, rows: list[Row]) -> dict[str, dict[str, Any]]:
        """The example of every failing row, by name, for points that a seed cannot give again."""
        names = {row.example.case for row in rows if row.verdict is Verdict.WRONG and row.example}
        return {case.name: case.arrays() for case in (*self.points, *self.refused) if case.name in names}

    def _with_diagnosis(self, tally: Tally) -> Row:
        row = tally.row()
        if row.verdict is not Verdict.WRONG or row.is_law or tally.troubles or tally.not_provided:
            return row
        wrong_names = {one.case for one in tally.failing}
        decisive_names = {one.case for one in tally.decisive}
        cases = [case for case in self.points if case.metric == row.metric and case.name in decisive_names]
        failing = [case for case in cases if case.name in wrong_names]
        if not failing:
            return row
        passing = [case for case in cases if case.name not in wrong_names]
        # The most telling point: large enough that mistakes do not coincide, then well conditioned.
        telling = min(
            failing,
            key=lambda case: (
                case.point.sizes[2] == 1,
                not case.point.block_shape and row.function == "inner_product",
                float(case.space.gauge.condition.max()),
            ),
        )
        return replace(row, diagnosis=diagnose(tally.check, Trial(self.backend, telling), failing, passing))


def _without_hearsay(rows: list[Row]) -> list[Row]:
    """A law that uses another function cannot be judged where that function is wrong itself."""
    wrong = {(row.function, row.metric) for row in rows if row.verdict is Verdict.WRONG and not row.is_law}
    judged = []
    for row in rows:
        culprits = [name for name in CHECKS[row.check].needs if (name, row.metric) in wrong]
        if culprits and row.verdict is Verdict.WRONG:
            row = replace(row, verdict=Verdict.NOT_JUDGED, message=f"uses {culprits[0]}, which is wrong")
        judged.append(row)
    return judged


def selected(found: list[Case], cases: Iterable[str] | None) -> list[Case]:
    """The cases with these names, or names that start with them; None: all."""
    wanted = None if cases is None else [cases] if isinstance(cases, str) else list(cases)
    chosen = [case for case in found if wanted is None or any(_selects(name, case.name) for name in wanted)]
    unknown = [name for name in wanted or [] if not any(_selects(name, case.name) for case in chosen)]
    if unknown or not chosen:
        raise ValueError(f"cases: none of the test points is called {', '.join(unknown)}; leave it out to see all")
    return chosen


def one_of(argument: str, value: str, known: Iterable[str]) -> str:
    """The value, or ValueError if it is none of the known ones."""
    if value not in known:
        raise ValueError(f"{argument}: expected one of {', '.join(known)}, got {value!r}")
    return value


def chosen_checks(names: Iterable[str] | None) -> list[Check]:
    """The checks with these names, or of the functions with these names; None: all."""
    if names is None:
        return list(CHECKS.values())
    wanted = list(names)
    functions = dict.fromkeys(one.function for one in CHECKS.values())
    for name in wanted:
        one_of("checks", name, [*functions, *CHECKS])
    return [one for one in CHECKS.values() if one.name in wanted or one.function in wanted]


def _selects(wanted: str, name: str) -> bool:
    """By the name as a table shows it (a block's index is no part of it), or by the first parts of the name."""
    start = wanted.split("[")[0].rstrip("/.")
    return name == start or name.startswith((start + "/", start + "."))


def network_points(
    checkpoint: str | Path | Mapping[str, Any],
    layout: str | None,
    heads: int | None,
    metrics: list[str],
    dtype: str,
    seed: int,
) -> list[Case]:
    """The attention blocks of a network as cases."""
    from refgeo import networks

    if layout is None:
        raise ValueError(f"layout: a checkpoint needs one of {', '.join(networks.LAYOUTS)}")
    blocks = networks.read(checkpoint, layout, heads).blocks
    pairs = {name: block for name, block in blocks.items() if isinstance(block, Pair)}
    return [case for metric in metrics for case in network_cases(pairs, metric, seed, dtype)]
