"""Verdicts: turn the evidence on a check into a row of the report, which has a verdict and the words for it.

This is the only place where verdicts are made. Code that collects evidence knows none, and code that shows rows decides
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from refgeo.conformance.judging.checks import Check
from refgeo.conformance.judging.evidence import MAX_RATIO, SURELY_WRONG_RATIO, Evidence, is_beyond_rounding
from refgeo.conformance.judging.scope import Scope, count_noun
from refgeo.conformance.protocol.call import Event

ANY_METRIC = "any metric"
"""The metric of rows that are not about a single one."""
WHOLE_RUN_KINDS = ("search", "trajectory")
"""The kinds of checks that judge whole runs, and not single calls."""
NO_DIGIT_ERROR = 0.3
"""The relative error above which a result has no correct digit. Chosen: at 0.3, half a digit is left."""


class Verdict(Enum):
    """The verdict on one check of one metric; the gravest first."""

    WRONG = "WRONG"
    INHERITS = "inherits"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    CONTRACT = "contract"
    INACCURATE = "inaccurate"
    PARTIAL = "partly provided"
    PASS = "pass"
    NOT_PROVIDED = "not provided"


FAILING = (Verdict.WRONG, Verdict.INHERITS, Verdict.UNDECIDED)
"""Verdicts with which a report fails."""
FINDINGS = (Verdict.INACCURATE, Verdict.PARTIAL, Verdict.CONTRACT)
"""Verdicts with which a report passes, unless it is strict (``--strict``) or a breach is harmful."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a result is wrong, as far as it is known.

    Attributes
    ----------
    text : str
    yours, expected : tuple of str
        The formula that the backend computes, and the right one in the same notation.
    differs : str
        How they differ.
    excuse : Verdict, optional
        The verdict in the place of WRONG, if the cause is the fault of another function.
    needs_others : bool
        Whether the failure recurs only after calls at other points.
    example : Evidence, optional
        The wrong result to show, if it is not the gravest one.
    """

    text: str = ""
    yours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    differs: str = ""
    excuse: Verdict | None = None
    needs_others: bool = False
    example: Evidence | None = None


NO_DIAGNOSIS = Diagnosis()


@dataclass(frozen=True)
class Row:
    """The row of one check and one metric in a report.

    Attributes
    ----------
    check, kind, function, metric, statement : str
        `kind` is "value", "law", "contract", "search" or "trajectory".
    verdict : Verdict
    points, decisive_points : int
        The numbers of blocks that were judged, and of those on which the verdict rests.
    worst_ratio : float or None
        The largest ratio of the decisive points; above 30 it is a finding.
    digits_kept : float or None
        The smallest number of correct digits of the decisive points.
    worst_case : Evidence or None
    example : Evidence or None
        The gravest evidence, or `worst_case` if nothing fails.
    digits_lost : float
        The largest number of digits that are attainable at a point and that the backend does not return.
    lossy_case : Evidence or None
        The point with this loss.
    no_result : str
        Where the function returns no result at points that are only ill-conditioned, and what it did instead.
    message : str
    measurements : tuple of Evidence
        The worst evidence of each block, for plots of digits against conditioning.
    diagnosis : str
        The cause of wrong results, confirmed at every point that was tried.
    yours, expected : tuple of str
        The formula that the backend computes, if it could be read, and the right one.
    differs : str
        How they differ.
    broken_by : tuple of str
        Of a rule of conduct, the functions that break it.
    harmful : bool
        Of a rule of conduct, whether breaking it makes a caller's numbers wrong.
    exhausted : bool
        Whether some call ran out of time or memory; a row that is not judged fails for this reason.
    options : mapping
        The keyword arguments with which an update rule was judged.
    scope : Scope
        What was tested decisively.
    needs_others : bool
        Whether the failure recurs only after calls at other points.
    """

    check: str
    kind: str
    function: str
    metric: str
    statement: str
    verdict: Verdict
    points: int = 0
    decisive_points: int = 0
    worst_ratio: float | None = None
    digits_kept: float | None = None
    worst_case: Evidence | None = None
    example: Evidence | None = None
    digits_lost: float = 0.0
    lossy_case: Evidence | None = None
    no_result: str = ""
    message: str = ""
    measurements: tuple[Evidence, ...] = ()
    diagnosis: str = ""
    yours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    differs: str = ""
    broken_by: tuple[str, ...] = ()
    harmful: bool = False
    exhausted: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)
    needs_others: bool = False

    @property
    def fails(self) -> bool:
        """Whether a report with this row fails."""
        broken = self.verdict is Verdict.CONTRACT and self.harmful
        return self.verdict in FAILING or broken or (self.verdict is Verdict.NOT_JUDGED and self.exhausted)

    @property
    def has_single_metric(self) -> bool:
        """Whether the row belongs to one metric of `refgeo.check`; that of a trajectory has options of the rule."""
        return self.kind != "trajectory" and self.metric not in (ANY_METRIC, "adaptive")

    @property
    def is_absent(self) -> bool:
        """Whether the backend does not have the function."""
        return self.verdict is Verdict.NOT_PROVIDED and not self.points and not self.example

    @property
    def outcome(self) -> str:
        """The verdict as a text; a pass with lost digits says so.

        Examples
        --------
        >>> import refgeo as rg
        >>> cases = ["10x9x4/k1", "10x9x4/k10000"]
        >>> rg.check(checks=["horizontal_projection"], metrics=["inv"], cases=cases).rows[0].outcome
        'loses 8 digits at κ=1e+04'
        """
        if self.verdict is not Verdict.PASS:
            return "FAILS" if self.verdict is Verdict.CONTRACT and self.fails else str(self.verdict.value)
        if self.no_result:
            return f"no result at {self.no_result.split(':')[0]}"
        if self.lossy_case is None:
            return "pass"
        where = f"κ={self.lossy_case.condition:.0e}"
        if self.lossy_case.relative_error > NO_DIGIT_ERROR:
            return f"no digit at {where}"
        return f"loses {count_noun(self.digits_lost, 'digit')} at {where}"

    @property
    def remarks(self) -> Iterator[tuple[str, str]]:
        """Notes on a row that does not simply pass, each a label and a sentence."""
        is_unseen_conduct = self.kind == "contract" and self.verdict is Verdict.NOT_JUDGED
        if not is_unseen_conduct and self.verdict not in (Verdict.PASS, Verdict.NOT_PROVIDED):
            yield self.outcome, self.message
        if self.verdict is Verdict.PASS and self.no_result:
            where = "at well-conditioned points" if self.lossy_case is not None else "elsewhere"
            yield "no result", f"right {where}, but the function gives no result at {self.no_result}"
        elif self.verdict is Verdict.PASS and self.message:
            yield "note", self.message
        if self.lossy_case is not None:
            yield "digits", f"{self._digit_loss_text} ({self.lossy_case})"

    @property
    def _digit_loss_text(self) -> str:
        assert self.lossy_case is not None
        where, digits = f"κ = {self.lossy_case.condition:.1g}", count_noun(self.digits_lost, "digit")
        if self.lossy_case.relative_error > NO_DIGIT_ERROR:
            return (
                f"right at well-conditioned points; at {where}, no digit is right, but an implementation that uses QR "
                f"factorisations gets {digits} right"
            )
        return f"right, but at {where}, an implementation that uses QR factorisations has {digits} more"

    def __str__(self) -> str:
        return self.check if self.metric == ANY_METRIC else f"{self.check}[{self.metric}]"


# Evidence on a check -------------------------------------------------------------------------------------------------


class EvidenceSummary:
    """The evidence on one check of one metric, by the outcome of the calls.

    Attributes
    ----------
    all : list of Evidence
    results : list of Evidence
        The evidence of calls that returned a result.
    decisive : list of Evidence
        The results on which a verdict rests.
    inaccurate : list of Evidence
        The decisive results that are inaccurate or worse.
    """

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        self.all = list(evidence)
        self.results = self.select(Event.RESULT)
        self.decisive = [e for e in self.results if e.decisive]
        self.inaccurate = [e for e in self.decisive if e.is_inaccurate]

    def select(self, *events: Event) -> list[Evidence]:
        """Select the evidence of calls that ended in one of these ways."""
        return [e for e in self.all if e.event in events]

    @property
    def missing_results(self) -> list[Evidence]:
        """The evidence of calls without a result where one can be expected.

        An exception behind a NotImplementedError counts only if the function has returned results at other points.
        """
        events = (Event.FAILED, Event.MASKED_EXCEPTION) if self.results else (Event.FAILED,)
        return [e for e in self.select(*events) if e.decisive]

    @property
    def has_wrong_numbers(self) -> bool:
        """Whether no rounding explains the results."""
        return is_beyond_rounding(self.inaccurate)

    @property
    def is_wrong(self) -> bool:
        """Whether a result that can be expected is missing, or no rounding explains the results."""
        return bool(self.missing_results) or self.has_wrong_numbers

    @property
    def wrong_evidence(self) -> list[Evidence]:
        """The evidence that the backend is wrong, and not only inaccurate."""
        wrong = [e for e in self.inaccurate if e.is_likely_wrong]
        return [*self.missing_results, *(wrong if self.has_wrong_numbers else ())]


def make_row(
    check: Check,
    metric: str,
    evidence: Sequence[Evidence],
    diagnosis: Diagnosis = NO_DIAGNOSIS,
    dtype: str = "float64",
    message: str = "",
    options: Mapping[str, Any] | None = None,
) -> Row:
    """Turn the evidence on a check into its row.

    Parameters
    ----------
    check : Check
    metric : str
    evidence : sequence of Evidence
    diagnosis : Diagnosis
    dtype : str
        Of the run; digits are counted for results in this precision.
    message : str
        A message besides that of the verdict.
    options : mapping, optional
        The keyword arguments of an update rule.
    """
    summary = EvidenceSummary(evidence)
    verdict, reason = _decide(check, summary, diagnosis)
    plain = [e for e in summary.inaccurate if not e.circumstance]
    worst = max(plain or summary.inaccurate or summary.decisive, key=lambda e: e.ratio, default=None)
    is_value = check.kind == "value"
    lossy = _worst_digit_loss(summary) if verdict in (Verdict.PASS, Verdict.PARTIAL) and is_value else None
    digits_lost = 0.0 if lossy is None else _count_lost_digits(lossy)
    breakdowns = [e for e in summary.select(Event.FAILED, Event.EXHAUSTED) if not e.decisive]
    no_result = [f"κ={e.condition:.0e}: {e.detail} ({_describe_points(breakdowns)})" for e in breakdowns[:1]]
    has_numbers = check.kind != "contract"
    separator, messages = ("\n", (message, reason)) if check.kind == "trajectory" else ("; ", (reason, message))
    digits = [e.digits for e in summary.decisive if e.dtype == dtype and is_value]
    return Row(
        check.name, check.kind, check.function, metric, check.statement_of(metric), verdict,
        points=_count_blocks([*summary.results, *(e for e in summary.select(Event.FAILED) if not e.circumstance)]),
        decisive_points=_count_blocks(summary.decisive),
        worst_ratio=worst.ratio if worst and has_numbers else None,
        digits_kept=min(digits, default=None),
        worst_case=worst if has_numbers else None,
        example=diagnosis.example or _choose_example(summary) or worst,
        digits_lost=digits_lost, lossy_case=lossy if digits_lost >= 1.0 else None,
        no_result="".join(no_result) if verdict is Verdict.PASS else "",
        message=separator.join(filter(None, messages)),
        measurements=tuple(worst_per_block(summary.results)) if has_numbers else (),
        diagnosis=diagnosis.text, yours=diagnosis.yours, expected=diagnosis.expected, differs=diagnosis.differs,
        broken_by=tuple(dict.fromkeys(e.subject for e in summary.select(Event.BROKEN))),
        harmful=check.harmful, exhausted=bool(summary.select(Event.EXHAUSTED)), options=dict(options or {}),
        scope=Scope.of(check.kind, summary.all, check.name), needs_others=diagnosis.needs_others,
    )  # fmt: skip


def _decide(check: Check, summary: EvidenceSummary, diagnosis: Diagnosis) -> tuple[Verdict, str]:
    """Decide on a verdict, and give the reason for it."""
    exhausted = [e for e in summary.select(Event.EXHAUSTED) if e.decisive]
    refused = summary.select(Event.NOT_IMPLEMENTED, Event.MASKED_EXCEPTION)
    unknown = Counter(e.detail for e in summary.select(Event.NO_ORACLE))
    if refused and len(refused) == len(summary.all):
        return Verdict.NOT_PROVIDED, refused[0].detail
    broken = summary.select(Event.BROKEN)
    if check.kind == "contract":
        if broken:
            return Verdict.CONTRACT, _describe_breaches(broken)
        details = "; ".join(dict.fromkeys(e.detail for e in summary.all))
        return (Verdict.PASS, "") if summary.results else (Verdict.NOT_JUDGED, details)
    if summary.is_wrong:
        return diagnosis.excuse or Verdict.WRONG, _describe_wrong_results(check, summary, diagnosis)
    failed = summary.select(Event.ORACLE_FAILED)
    if failed:
        return Verdict.UNDECIDED, f"the result at {_describe_points(failed)} cannot be evaluated ({failed[0].detail})"
    notes = [f"{count_noun(count, 'block')} not judged: {why}" for why, count in unknown.items()]
    first = {e.case: e for e in reversed(exhausted)}
    late = _describe_by_detail("not judged", [*first.values()][::-1])
    if exhausted and not (summary.decisive and all(e.demanding for e in exhausted)):
        return Verdict.NOT_JUDGED, "; ".join([*late, *notes])
    if broken:
        return Verdict.CONTRACT, "; ".join(e.detail for e in broken)
    if not summary.decisive and check.kind != "value":
        return Verdict.NOT_JUDGED, "; ".join(unknown)
    if not summary.decisive or (check.kind == "value" and _is_decided_by_scalars(summary)):
        points = "every point with h > 1, where most mistakes are seen" if summary.decisive else "every point"
        reason = f"at {points}, rounding alone can cause an error of any size, so nothing can be judged"
        late = _describe_by_detail("not judged", summary.select(Event.EXHAUSTED))
        return Verdict.UNDECIDED, "; ".join([*notes, *late, reason if summary.results else "no point was judged"])
    if summary.inaccurate and check.kind in WHOLE_RUN_KINDS:
        return Verdict.INACCURATE, ""
    if summary.inaccurate:
        worst = max(summary.inaccurate, key=lambda e: e.ratio)
        count = _describe_count(summary, summary.inaccurate)
        reason = f"the error is up to {worst.ratio:.0f} times the usual rounding error, {count} ({worst.location})"
        reason += ": less accurate than it could be, and not so far off that it must be wrong"
        return Verdict.INACCURATE, "; ".join([reason, *notes])
    missing = [*late, *_describe_by_detail("no result", refused)]
    return (Verdict.PARTIAL if missing else Verdict.PASS), "; ".join([*notes, *missing])


def _is_decided_by_scalars(summary: EvidenceSummary) -> bool:
    """Return whether all decisive points have h = 1, where Gram matrices are numbers, and other points do not."""
    decisive, results = ({e.sizes[2:3] for e in evidence} for evidence in (summary.decisive, summary.results))
    return decisive == {(1,)} != results


def _describe_wrong_results(check: Check, summary: EvidenceSummary, diagnosis: Diagnosis) -> str:
    """Describe how many results are wrong, and what is missing."""
    if diagnosis.excuse is not None:
        return diagnosis.text
    missing = summary.missing_results
    where = f"{_describe_points(missing)}: " if missing and check.kind != "trajectory" else ""
    sentences = [where + missing[0].detail] if missing else []
    if summary.has_wrong_numbers and check.kind not in WHOLE_RUN_KINDS:
        count = _describe_count(summary, summary.inaccurate)
        sentences.append(f"where the function returns numbers, they are wrong {count}" if missing else count)
    return "; ".join(sentences)


def _describe_breaches(broken: list[Evidence]) -> str:
    """Say how a rule of conduct is broken, and by which functions."""
    return "; ".join(
        f"{group[0].detail} ({', '.join(dict.fromkeys(e.subject for e in group))}; {_describe_points(group)})"
        for group in _group_by_detail(broken)
    )


def _describe_by_detail(outcome: str, evidence: list[Evidence]) -> list[str]:
    """Describe each event with its detail and its points, events with equal details together."""
    return [f"{outcome} at {_describe_points(group)}: {group[0].detail}" for group in _group_by_detail(evidence)]


def _group_by_detail(evidence: list[Evidence]) -> list[list[Evidence]]:
    """Group evidence with the same detail."""
    groups: dict[str, list[Evidence]] = {}
    for e in evidence:
        groups.setdefault(e.detail, []).append(e)
    return list(groups.values())


def _describe_points(evidence: Sequence[Evidence]) -> str:
    """Name the first point, with its circumstance, and count the others."""
    cases = list(dict.fromkeys(e.case for e in evidence))
    first = evidence[0].case + (f", {evidence[0].circumstance}" if evidence[0].circumstance else "")
    return first + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")


def _describe_count(summary: EvidenceSummary, evidence: list[Evidence]) -> str:
    """Say how many of the decisive points these are; those in a circumstance count only if no plain call is among them.

    The name of the first circumstance is given in this case.
    """
    plain = [e for e in evidence if not e.circumstance]
    circumstance = f", {evidence[0].circumstance}" if evidence and not plain else ""
    decisive = count_noun(_count_blocks(summary.decisive), "decisive point")
    return f"at {_count_blocks(plain or evidence)} of {decisive}{circumstance}"


def _count_blocks(evidence: Iterable[Evidence]) -> int:
    """Count the blocks that evidence is about."""
    return sum(e.multiplicity for e in worst_per_block(evidence))


def worst_per_block(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Select the worst evidence of each block and law over all circumstances, as enclosed if any of it is."""
    worst: dict[tuple[Any, ...], Evidence] = {}
    for e in evidence:
        key = e.case, e.block, e.law, e.subject
        known = worst.setdefault(key, e)
        if known is not e:
            worse = known if e.ratio <= known.ratio else e
            enclosed = e.enclosed or known.enclosed
            worst[key] = worse if worse.enclosed is enclosed else replace(worse, enclosed=enclosed)
    return list(worst.values())


def _choose_example(summary: EvidenceSummary) -> Evidence | None:
    """Choose the gravest evidence that has a test point, that of a plain call before others."""
    surely_wrong = [e for e in summary.inaccurate if e.ratio > SURELY_WRONG_RATIO]
    refused = summary.select(Event.NOT_IMPLEMENTED, Event.EXHAUSTED)
    groups = (summary.missing_results, summary.select(Event.BROKEN), surely_wrong, summary.inaccurate, refused)
    candidates = (e for group in groups for e in sorted(group, key=lambda e: bool(e.circumstance)) if e.case)
    return next(candidates, None)


def _worst_digit_loss(summary: EvidenceSummary) -> Evidence | None:
    """Select the result with the smallest κ that has no digit though one is attainable, or the largest loss."""
    lost = [e for e in summary.results if e.relative_error > NO_DIGIT_ERROR and _count_lost_digits(e) >= 1.0]
    if lost:
        return min(lost, key=lambda e: e.condition)
    return max(summary.results, key=lambda e: e.attainable_ratio, default=None)


def _count_lost_digits(evidence: Evidence) -> float:
    """Count the digits that are attainable and that the backend does not return."""
    attainable = -np.log10(MAX_RATIO * evidence.attainable)
    return float(max(0.0, attainable - evidence.digits))
