"""Run the checks over the cases and collect a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.cases import METRICS, Case, generated_cases, network_cases
from refgeo.conformance.checks import CHECKS, THRESHOLD, UNDECIDABLE, Check
from refgeo.conformance.report import Report, Row, Verdict, WorstCase
from refgeo.exact import EnclosureError, ExactTangentSpace
from refgeo.pair import Array, Pair

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
    loaded = backend if isinstance(backend, Backend) else Backend.load(backend) if isinstance(backend, str) else None
    loaded = loaded or Backend(backend)
    chosen_metrics = [_one_of("metrics", metric, METRICS) for metric in metrics]
    chosen_checks = _chosen_checks(checks)
    _one_of("dtype", dtype, DTYPES)
    _one_of("profile", profile, PROFILES)
    blocks = None if checkpoint is None else _attention_blocks(checkpoint, layout, heads)

    points: list[Case] = []
    for metric in chosen_metrics:
        found = (
            generated_cases(metric, profile, seed, dtype)
            if blocks is None
            else network_cases(blocks, metric, seed, dtype)
        )
        points.extend(case for case in found if cases is None or any(_selects(name, case.name) for name in cases))
    if not points:
        raise ValueError(f"cases: none of the test points is called {', '.join(cases or [])}; leave it out to see all")

    tallies = {(one.name, metric): _Tally(one, metric) for one in chosen_checks for metric in chosen_metrics}
    for done, case in enumerate(points):
        if progress is not None:
            progress(done, len(points), f"{case.metric} {case.name}")
        _run_case(loaded, case, [tallies[one.name, case.metric] for one in chosen_checks], dtype)
    if progress is not None:
        progress(len(points), len(points), "done")
    source = "generated points" if checkpoint is None else f"{layout} checkpoint"
    rows = [tally.row(dtype) for tally in tallies.values()]
    return Report(loaded.name, dtype, profile, seed, source, rows)


def _one_of(argument: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise ValueError(f"{argument}: expected one of {', '.join(known)}, got {value!r}")
    return value


def _chosen_checks(names: Iterable[str] | None) -> list[Check]:
    if names is None:
        return list(CHECKS.values())
    wanted = list(names)
    known = {*CHECKS, *(one.function for one in CHECKS.values())}
    for name in wanted:
        _one_of("checks", name, sorted(known))
    return [one for one in CHECKS.values() if one.name in wanted or one.function in wanted]


def _selects(wanted: str, name: str) -> bool:
    return name == wanted or name.startswith(wanted.rstrip("/") + "/")


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
        return THRESHOLD * self.gram <= UNDECIDABLE

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
    judged: list[_Judged] = field(default_factory=list)
    troubles: list[tuple[str, str]] = field(default_factory=list)  # (case, what the backend did) on decisive cases
    not_provided: list[str] = field(default_factory=list)
    not_enclosed: list[str] = field(default_factory=list)

    def add_unusable(self, case: Case, dtype: str, what: str) -> None:
        """No value came back: a failure where a value can be expected, no digits kept elsewhere."""
        relative = np.full(case.point.block_shape, np.inf)
        fresh = self._judge(case, dtype, relative)
        if any(one.decisive for one in fresh):
            self.troubles.append((case.name, what))
        self.judged.extend(fresh)

    def add_errors(self, case: Case, dtype: str, errors: Sequence[Array], enclosed: Array) -> None:
        finite = np.ones(case.point.block_shape, dtype=bool)
        for error in errors:
            finite &= np.isfinite(error).reshape(*case.point.block_shape, -1).all(axis=-1)
        safe = [np.where(np.isfinite(error), error, 0.0) for error in errors]
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = self.check.error(case, safe) / self.check.size(case.space, case)
        relative = np.where(finite, relative, np.inf)
        fresh = [one for one in self._judge(case, dtype, relative) if enclosed[one.block]]
        if any(one.decisive and np.isinf(one.relative_error) for one in fresh):
            self.troubles.append((case.name, "returned NaN or infinity"))
        self.judged.extend(fresh)

    def _judge(self, case: Case, dtype: str, relative: Array) -> list[_Judged]:
        attainable, gram = self.check.unit(case, dtype)
        numbers = (case.space.gauge.condition, relative, attainable, gram)
        return [
            _Judged(case.name, block, *(float(number[block]) for number in numbers))
            for block in np.ndindex(case.point.block_shape)
        ]

    def row(self, dtype: str) -> Row:
        verdict, message = self._verdict()
        decisive = [one for one in self.judged if one.decisive]
        worst = max(decisive, key=lambda one: one.ratio, default=None)
        if verdict is not Verdict.WRONG and self.judged:
            lossy = max(self.judged, key=lambda one: one.attainable_ratio)
            digits_lost = _digits_lost(lossy, dtype)
        else:
            lossy, digits_lost = None, 0.0
        return Row(
            check=self.check.name,
            metric=self.metric,
            statement=self.check.statement,
            verdict=verdict,
            points=len(self.judged),
            decisive_points=len(decisive),
            worst_ratio=worst.ratio if worst else None,
            threshold=THRESHOLD,
            digits_kept=min((_digits(one, dtype) for one in decisive), default=None),
            worst_case=_worst_case(worst),
            digits_lost=digits_lost,
            lossy_case=_worst_case(lossy) if digits_lost >= 1.0 else None,
            message=message,
        )

    def _verdict(self) -> tuple[Verdict, str]:
        if self.not_provided and not self.judged:
            return Verdict.NOT_PROVIDED, self.not_provided[0]
        notes = []
        if self.not_enclosed:
            notes.append(f"{len(self.not_enclosed)} points not judged: no narrow enclosure ({self.not_enclosed[0]})")
        if self.not_provided:
            return Verdict.WRONG, "NotImplementedError for some points only: " + self.not_provided[0]
        if self.troubles:
            case, what = self.troubles[0]
            return Verdict.WRONG, f"{case}: {what} ({len(self.troubles)} cases)"
        decisive = [one for one in self.judged if one.decisive]
        if not decisive:
            return Verdict.UNDECIDED, "; ".join([*notes, "no point is well enough conditioned to tell in this dtype"])
        if max(one.ratio for one in decisive) > THRESHOLD:
            failing = sum(one.ratio > THRESHOLD for one in decisive)
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


class _ExactBlock:
    """One block of a case for the enclosures: made once, shared by all checks."""

    def __init__(self, case: Case, block: tuple[int, ...]) -> None:
        def part(pair: Pair) -> Pair:
            return Pair(pair.G[block], pair.H[block])

        self.space = ExactTangentSpace(case.metric, *part(case.point))
        self.vectors = {"a": part(case.a), "b": part(case.b), "e": part(case.e)}


def _run_case(backend: Backend, case: Case, tallies: list[_Tally], dtype: str) -> None:
    blocks = {block: _ExactBlock(case, block) for block in np.ndindex(case.point.block_shape)}
    for tally in tallies:
        one = tally.check
        if not backend.provides(one.function):
            tally.not_provided.append(f"no function {one.function}")
            continue
        try:
            results = backend.call(
                one.function, case.metric, one.arguments(case, dtype), one.extra(case), one.shapes(case)
            )
        except NotImplementedError as error:
            tally.not_provided.append(f"NotImplementedError: {error}")
            continue
        except Exception as error:  # whatever somebody's code raises becomes a row
            tally.add_unusable(case, dtype, f"{type(error).__name__}: {error}")
            continue
        errors = [np.zeros(shape) for shape in one.shapes(case)]
        enclosed = np.ones(case.point.block_shape, dtype=bool)
        for block, exact in blocks.items():
            try:
                expected = one.expected(exact.space, exact.vectors, case.t)
            except EnclosureError as error:
                enclosed[block] = False
                tally.not_enclosed.append(f"{case.name}: {error}")
                continue
            for error_array, result, enclosure in zip(errors, results, expected, strict=True):
                # Only what certainly lies outside the enclosure counts.
                difference = result[block] - enclosure.mid
                error_array[block] = np.sign(difference) * np.maximum(np.abs(difference) - enclosure.rad, 0.0)
        tally.add_errors(case, dtype, errors, enclosed)
