"""Run the checks over the cases and collect a report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT, Backend, BackendFailure
from refgeo.conformance.blame import diagnose
from refgeo.conformance.cases import METRICS, Case, generated_cases, network_cases
from refgeo.conformance.checks import THRESHOLD, UNDECIDABLE, VALUES, WELL_CONDITIONED, Check, gram_unit
from refgeo.conformance.conduct import CONDUCT
from refgeo.conformance.laws import LAWS
from refgeo.conformance.report import Report, Row, Verdict, WorstCase
from refgeo.conformance.trial import Trial
from refgeo.pair import Array, Pair

CHECKS: dict[str, Check] = {**VALUES, **LAWS, **CONDUCT}
PROFILES = ("quick", "full")
DTYPES = ("float64", "float32")

Progress = Callable[[int, int, str], None]


def check(
    backend: Any = None,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtype: str = "float64",
    profile: str = "quick",
    seed: int = 0,
    cases: Iterable[str] | None = None,
    checkpoint: str | Path | Mapping[str, Any] | None = None,
    layout: str | None = None,
    heads: int | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Report:
    """Judge a backend against rigorous enclosures.

    Parameters
    ----------
    backend : module, object or str, optional
        The implementation (see `Backend`), or where it is: ``"module"``, ``"module:object"``, ``"file.py"``. Default:
        the paper's formulas, `refgeo.formulas`.
    metrics : iterable of "inv", "mix"
    checks : iterable of str, optional
        Names of checks (``"geodesic_2"``) or functions (``"geodesic"``). Default: all.
    dtype : "float64" or "float32"
        The precision of the arrays that the backend gets, and that it is judged by.
    profile : "quick" or "full"
        How many generated points.
    seed : int
    cases : iterable of str, optional
        Only these cases; a name, or the first part of one.
    checkpoint : path or state dict, optional
        Take the test points from a network instead of generating them.
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
    """
    if backend is None:
        backend = "refgeo.formulas"
    loaded = Backend.load(backend, timeout) if isinstance(backend, str) else Backend(backend, timeout=timeout)
    chosen_metrics = list(dict.fromkeys(_one_of("metrics", metric, METRICS) for metric in metrics))
    chosen_checks = _chosen_checks(checks)
    _one_of("dtype", dtype, DTYPES)
    _one_of("profile", profile, PROFILES)
    blocks = None if checkpoint is None else _attention_blocks(checkpoint, layout, heads)

    wanted = None if cases is None else [cases] if isinstance(cases, str) else list(cases)
    points: list[Case] = []
    for metric in chosen_metrics:
        found = (
            generated_cases(metric, profile, seed, dtype)
            if blocks is None
            else network_cases(blocks, metric, seed, dtype)
        )
        points.extend(case for case in found if wanted is None or any(_selects(name, case.name) for name in wanted))
    unknown = [name for name in wanted or [] if not any(_selects(name, case.name) for case in points)]
    if unknown or not points:
        raise ValueError(f"cases: none of the test points is called {', '.join(unknown)}; leave it out to see all")

    tallies = {(one.name, metric): _Tally(one, metric, dtype) for one in chosen_checks for metric in chosen_metrics}
    for done, case in enumerate(points):
        if progress is not None:
            progress(done, len(points), f"{case.metric} {case.name}")
        trial = Trial(loaded, case, dtype)
        for one in chosen_checks:
            if one.applies(case):
                tallies[one.name, case.metric].run(trial)
    if progress is not None:
        progress(len(points), len(points), "done")
    source = "generated points" if checkpoint is None else f"{layout} checkpoint"
    rows = [tally.row() for tally in tallies.values() if tally.judged or tally.not_provided or tally.not_judged]
    rows = [_with_diagnosis(row, tallies[row.check, row.metric], points, loaded) for row in rows]
    network = () if checkpoint is None else _network_options(checkpoint, layout, heads)
    return Report(loaded.name, dtype, profile, seed, source, _without_hearsay(rows), network)


def _network_options(
    checkpoint: str | Path | Mapping[str, Any], layout: str | None, heads: int | None
) -> tuple[str, ...]:
    """What to write on a command line; a state dict has to be saved first."""
    file = shlex.quote(str(checkpoint)) if isinstance(checkpoint, (str, Path)) else "FILE"
    options = (f"--checkpoint {file}", f"--layout {layout}")
    return options if heads is None else (*options, f"--heads {heads}")


def _with_diagnosis(row: Row, tally: _Tally, points: list[Case], backend: Backend) -> Row:
    if row.verdict is not Verdict.WRONG or row.is_law or tally.troubles or tally.not_provided:
        return row
    wrong_names = {one.case for one in tally.judged if one.decisive and one.ratio > THRESHOLD}
    decisive_names = {one.case for one in tally.judged if one.decisive}
    cases = [case for case in points if case.metric == row.metric and case.name in decisive_names]
    failing = [case for case in cases if case.name in wrong_names]
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
    return replace(row, diagnosis=diagnose(tally.check, Trial(backend, telling, tally.dtype), failing, passing))


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


def _one_of(argument: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise ValueError(f"{argument}: expected one of {', '.join(known)}, got {value!r}")
    return value


def _chosen_checks(names: Iterable[str] | None) -> list[Check]:
    if names is None:
        return list(CHECKS.values())
    wanted = list(names)
    functions = dict.fromkeys(one.function for one in CHECKS.values())
    for name in wanted:
        _one_of("checks", name, [*functions, *CHECKS])
    return [one for one in CHECKS.values() if one.name in wanted or one.function in wanted]


def _selects(wanted: str, name: str) -> bool:
    """By the name as a table shows it (a block's index is no part of it), or by the first parts of the name."""
    start = wanted.split("[")[0].rstrip("/.")
    return name == start or name.startswith((start + "/", start + "."))


def _attention_blocks(
    checkpoint: str | Path | Mapping[str, Any], layout: str | None, heads: int | None
) -> dict[str, Pair]:
    from refgeo import networks

    if layout is None:
        raise ValueError(f"layout: a checkpoint needs one of {', '.join(networks.LAYOUTS)}")
    blocks = networks.read(checkpoint, layout, heads).blocks
    return {name: block for name, block in blocks.items() if isinstance(block, Pair)}


@dataclass
class _Judged:
    """One block of one case."""

    case: str
    block: tuple[int, ...]
    condition: float
    relative_error: float  # inf: no usable value
    attainable: float
    gram: float

    @property
    def decisive(self) -> bool:
        return self.condition <= WELL_CONDITIONED and THRESHOLD * self.gram <= UNDECIDABLE

    @property
    def ratio(self) -> float:
        return self.relative_error / self.gram

    @property
    def attainable_ratio(self) -> float:
        return self.relative_error / self.attainable


@dataclass
class _Tally:
    """What one check of one metric has seen so far."""

    check: Check
    metric: str
    dtype: str
    judged: list[_Judged] = field(default_factory=list)
    troubles: list[tuple[str, str]] = field(default_factory=list)  # (case, what the backend did) on decisive cases
    breakdowns: list[tuple[str, str]] = field(default_factory=list)  # the same on the other cases
    not_provided: list[str] = field(default_factory=list)
    not_judged: int = 0

    def run(self, trial: Trial) -> None:
        """Put one case to the backend."""
        check, backend = self.check, trial.backend
        missing = [name for name in (check.function, *check.needs) if not backend.provides(name)]
        if missing:
            self.not_provided.append(f"no function {missing[0]}")
            return
        try:
            with np.errstate(all="ignore"):  # infinities are judged below, not warned of
                relative = check.relative_errors(trial)
        except NotImplementedError as error:
            self.not_provided.append(f"{trial.case.name}: NotImplementedError: {error}")
            return
        except BackendFailure as failure:
            # A failure where a value can be expected; where none can, no digits kept.
            relative = np.full(trial.case.point.block_shape, np.inf)
            self._add(trial.case, relative, str(failure))
            return
        self._add(trial.case, relative, "returned NaN or infinity")

    def _add(self, case: Case, relative: Array, trouble: str) -> None:
        relative = np.broadcast_to(relative, case.point.block_shape)
        numbers = (
            case.space.gauge.condition,
            relative,
            gram_unit(case, self.dtype, 1),
            self.check.unit(case, self.dtype),
        )
        fresh = [
            _Judged(case.name, block, *(float(number[block]) for number in numbers))
            for block in np.ndindex(case.point.block_shape)
            if not np.isnan(relative[block])
        ]
        self.not_judged += relative.size - len(fresh)
        if any(np.isinf(one.relative_error) for one in fresh):
            hit = any(one.decisive and np.isinf(one.relative_error) for one in fresh)
            (self.troubles if hit else self.breakdowns).append((case.name, trouble))
        self.judged.extend(fresh)

    def row(self) -> Row:
        verdict, message = self._verdict()
        decisive = [one for one in self.judged if one.decisive]
        worst = max(decisive, key=lambda one: one.ratio, default=None)
        lossy, digits_lost = None, 0.0
        if verdict is Verdict.PASS and not self.check.is_law:
            lossy = max(self.judged, key=lambda one: one.attainable_ratio)
            digits_lost = _digits_lost(lossy, self.dtype)
        return Row(
            check=self.check.name,
            metric=self.metric,
            statement=self.check.statement,
            verdict=verdict,
            points=len(self.judged),
            decisive_points=len(decisive),
            worst_ratio=worst.ratio if worst else None,
            threshold=THRESHOLD,
            digits_kept=min((_digits(one, self.dtype) for one in decisive), default=None),
            worst_case=_worst_case(worst),
            digits_lost=digits_lost,
            lossy_case=_worst_case(lossy) if digits_lost >= 1.0 else None,
            message=message,
        )

    def _verdict(self) -> tuple[Verdict, str]:
        if self.not_provided and not self.judged:
            return Verdict.NOT_PROVIDED, self.not_provided[0]
        if self.not_provided:
            return Verdict.WRONG, "NotImplementedError for some points only: " + self.not_provided[0]
        if self.troubles:
            case, what = self.troubles[0]
            return Verdict.WRONG, f"{case}: {what} ({len(self.troubles)} cases)"
        notes = [f"{self.not_judged} points not judged: no reference value to compare with"] if self.not_judged else []
        if self.breakdowns:
            case, what = self.breakdowns[0]
            notes.append(f"no result on {len(self.breakdowns)} ill-conditioned cases; {case}: {what}")
        decisive = [one for one in self.judged if one.decisive]
        if not decisive:
            return Verdict.UNDECIDED, "; ".join([*notes, "no point is well enough conditioned to tell in this dtype"])
        failing = sum(not one.ratio <= THRESHOLD for one in decisive)
        if failing:
            return Verdict.WRONG, "; ".join([*notes, f"{failing} of {len(decisive)} decisive points"])
        return Verdict.PASS, "; ".join(notes)


def _digits(one: _Judged, dtype: str) -> float:
    most = -np.log10(np.finfo(dtype).eps / 2)
    return float(np.clip(-np.log10(max(one.relative_error, 1e-300)), 0.0, most))


def _digits_lost(one: _Judged, dtype: str) -> float:
    """Digits that conditioning leaves and the backend does not keep."""
    available = -np.log10(THRESHOLD * one.attainable)
    return float(max(0.0, available - _digits(one, dtype)))


def _worst_case(one: _Judged | None) -> WorstCase | None:
    return None if one is None else WorstCase(one.case, one.block, one.condition, one.relative_error)
