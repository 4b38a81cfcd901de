"""From evidence to a row: the one place where a verdict is made, and the words for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from refgeo.conformance.call import Event
from refgeo.conformance.checks import Check
from refgeo.conformance.evidence import BEYOND_DOUBT, DOUBTFUL, Evidence, no_rounding_explains
from refgeo.conformance.scope import Scope, counted

EVERY = "any metric"
WHOLE = ("search", "trajectory")
"""The kinds of rows that judge more than single calls."""
NOTHING_LEFT = 0.3
"""A result with this relative error has no digit."""


class Verdict(Enum):
    """What is said of one check of one metric; the gravest first."""

    WRONG = "WRONG"
    INHERITS = "inherits"
    UNDECIDED = "undecided"
    NOT_JUDGED = "not judged"
    CONTRACT = "contract"
    INACCURATE = "inaccurate"
    PARTIAL = "partly provided"
    PASS = "pass"
    NOT_PROVIDED = "not provided"


NOT_RIGHT = (Verdict.WRONG, Verdict.INHERITS)
"""Verdicts on values that are not the right ones."""
FAILING = (*NOT_RIGHT, Verdict.UNDECIDED)
"""Verdicts that make a report fail."""
FINDINGS = (Verdict.INACCURATE, Verdict.PARTIAL, Verdict.CONTRACT)
"""Verdicts that pass, unless findings are to count, too (``--strict``)."""


@dataclass(frozen=True)
class Explanation:
    """What is to be said of a wrong result.

    Attributes
    ----------
    text : str
    yours, expected : tuple of str
        The formula that the backend computes, and the right one, read in the same way.
    differs : str
        In what.
    excuse : Verdict, optional
        What it is called instead of WRONG, where something else is to blame.
    needs_others : bool
        Whether it takes other calls, at other points, to show it.
    """

    text: str = ""
    yours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    differs: str = ""
    excuse: Verdict | None = None
    needs_others: bool = False


NOTHING = Explanation()


@dataclass(frozen=True)
class Row:
    """What is said of one check of one metric.

    Attributes
    ----------
    check, kind, function, metric, statement : str
        `kind` is "value", "law", "contract", "search" or "trajectory".
    verdict : Verdict
    points, decisive_points : int
        Blocks judged, and those on which the verdict rests.
    worst_ratio : float or None
        Over the decisive points; above 30 it is a finding.
    digits_kept : float or None
        The fewest, over the decisive points.
    worst_case : Evidence or None
    example : Evidence or None
        Where to look first: the first failing point, in the order of the design.
    digits_lost : float
        The most digits that the conditioning of a point leaves and the backend does not keep, over all points.
    lossy_case : Evidence or None
    no_result : str
        Where it gives none though the point is only ill-conditioned, and what it did instead.
    message : str
    measurements : tuple of Evidence
        Of a value: everything that was judged, for plots of digits against conditioning.
    diagnosis : str
        For a wrong value: what explains the numbers, confirmed at every point tried.
    yours, expected : tuple of str
        The formula that the backend computes, if it could be read, and the right one.
    differs : str
        In what they differ.
    broken_by : tuple of str
        Of a rule of conduct: the functions that break it.
    harmful : bool
        Of a rule of conduct: whether who breaks it makes his caller's numbers wrong.
    exhausted : bool
        Whether it was not judged for want of time or memory, which fails.
    options : mapping
        The keyword arguments with which an update rule was judged.
    scope : Scope
        What was met decisively.
    needs_others : bool
        Whether it takes calls at other points to show what is wrong.
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
        """Whether a report with it does not pass."""
        broken = self.verdict is Verdict.CONTRACT and self.harmful
        return self.verdict in FAILING or broken or (self.verdict is Verdict.NOT_JUDGED and self.exhausted)

    @property
    def of_one_metric(self) -> bool:
        """Whether its metric is one that `refgeo.check` can be asked for; of a trajectory it is options of the rule."""
        return self.kind != "trajectory" and self.metric not in (EVERY, "adaptive")

    @property
    def is_absent(self) -> bool:
        """Whether the backend has no such function at all."""
        return self.verdict is Verdict.NOT_PROVIDED and not self.points and not self.example

    @property
    def outcome(self) -> str:
        """The verdict in words; right with lost digits is not the same as right.

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
        if self.lossy_case.relative_error > NOTHING_LEFT:
            return f"no digit at {where}"
        return f"loses {counted(self.digits_lost, 'digit')} at {where}"

    @property
    def remarks(self) -> Iterator[tuple[str, str]]:
        """What is neither wrong nor simply right: a label and a sentence each."""
        if self.kind == "contract":
            if self.verdict is Verdict.CONTRACT:
                yield self.outcome, self.message
            return
        if self.verdict not in (Verdict.PASS, Verdict.WRONG, Verdict.NOT_PROVIDED):
            yield self.verdict.value, self.message
        if self.verdict is Verdict.PASS and self.no_result:
            where = "at well-conditioned points" if self.lossy_case is not None else "elsewhere"
            yield "no result", f"right {where}, but the function gives no result at {self.no_result}"
        elif self.verdict is Verdict.PASS and self.message:
            yield "note", self.message
        if self.lossy_case is not None:
            yield "digits", f"{self._lost} ({self.lossy_case})"

    @property
    def _lost(self) -> str:
        assert self.lossy_case is not None
        place, lost = f"κ = {self.lossy_case.condition:.1g}", counted(self.digits_lost, "digit")
        if self.lossy_case.relative_error > NOTHING_LEFT:
            return (
                f"right at well-conditioned points; at {place}, no digit is right, but an implementation that uses QR "
                f"factorisations gets {lost} right"
            )
        return f"right, but at {place}, an implementation that uses QR factorisations has {lost} more"

    def __str__(self) -> str:
        return self.check if self.metric == EVERY else f"{self.check}[{self.metric}]"


# Seen as a whole -----------------------------------------------------------------------------------------------------


class Seen:
    """The evidence on one check of one metric, sorted by what came."""

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        self.all = list(evidence)
        self.results = [one for one in self.all if one.event is Event.RESULT]
        self.decisive = [one for one in self.results if one.decisive]
        self.doubtful = [one for one in self.decisive if one.is_off]

    def of(self, *events: Event) -> list[Evidence]:
        """What came as one of these."""
        return [one for one in self.all if one.event in events]

    @property
    def failures(self) -> list[Evidence]:
        """Where there is no usable result though there must be one: what a NotImplementedError stands for is such a
        failure where the function has given results at other points.
        """
        events = (Event.FAILED, Event.SWALLOWED) if self.results else (Event.FAILED,)
        return [one for one in self.of(*events) if one.decisive]

    @property
    def has_wrong_numbers(self) -> bool:
        """Whether no rounding explains them."""
        return no_rounding_explains(self.doubtful)

    @property
    def is_wrong(self) -> bool:
        """Whether it has no usable result, or wrong numbers, where it must have right ones."""
        return bool(self.failures) or self.has_wrong_numbers

    @property
    def wrong_evidence(self) -> list[Evidence]:
        """What shows that it is wrong, and not only inaccurate."""
        beyond = [one for one in self.doubtful if one.is_far_off]
        return [*self.failures, *(beyond if self.has_wrong_numbers else ())]


def row_of(
    check: Check,
    metric: str,
    evidence: Sequence[Evidence],
    explanation: Explanation = NOTHING,
    dtype: str = "float64",
    message: str = "",
    options: Mapping[str, Any] | None = None,
) -> Row:
    """The row of a check: what the evidence says, with the explanation of what is wrong.

    Parameters
    ----------
    check : Check
    metric : str
    evidence : sequence of Evidence
    explanation : Explanation
    dtype : str
        Of the run: digits are counted there.
    message : str
        What else there is to say.
    options : mapping, optional
        Of an update rule.
    """
    seen = Seen(evidence)
    verdict, words = _verdict(check, seen, explanation)
    plainly = [one for one in seen.doubtful if not one.circumstance]
    worst = max(plainly or seen.doubtful or seen.decisive, key=lambda one: one.ratio, default=None)
    is_value = check.kind == "value"
    lossy = _lossy(seen) if verdict in (Verdict.PASS, Verdict.PARTIAL) and is_value else None
    lost = 0.0 if lossy is None else _digits_lost(lossy)
    breakdowns = [one for one in seen.of(Event.FAILED, Event.EXHAUSTED) if not one.decisive]
    said = f"κ={breakdowns[0].condition:.0e}: {_told(breakdowns)}" if breakdowns else ""
    broken = tuple(dict.fromkeys(one.about for one in seen.of(Event.BROKEN)))
    numbers = check.kind != "contract"
    separator, said_of_it = ("\n", (message, words)) if check.kind == "trajectory" else ("; ", (words, message))
    digits = [one.digits for one in seen.decisive if one.dtype == dtype and is_value]
    return Row(
        check.name, check.kind, check.function, metric, check.statement_of(metric), verdict,
        points=_blocks([*seen.results, *(one for one in seen.of(Event.FAILED) if not one.circumstance)]),
        decisive_points=_blocks(seen.decisive),
        worst_ratio=worst.ratio if worst and numbers else None,
        digits_kept=min(digits, default=None),
        worst_case=worst if numbers else None,
        example=_example(seen) or worst,
        digits_lost=lost,
        lossy_case=lossy if lost >= 1.0 else None,
        no_result=said if verdict is Verdict.PASS else "",
        message=separator.join(filter(None, said_of_it)),
        measurements=tuple(distinct(seen.results)) if numbers else (),
        diagnosis=explanation.text, yours=explanation.yours, expected=explanation.expected, differs=explanation.differs,
        broken_by=broken, harmful=check.harmful, exhausted=bool(seen.of(Event.EXHAUSTED)), options=dict(options or {}),
        scope=Scope.of(check.kind, seen.all), needs_others=explanation.needs_others,
    )  # fmt: skip


def _verdict(check: Check, seen: Seen, explanation: Explanation) -> tuple[Verdict, str]:
    """The verdict, and why."""
    exhausted = [one for one in seen.of(Event.EXHAUSTED) if one.decisive]
    refused = seen.of(Event.NOT_IMPLEMENTED, Event.SWALLOWED)
    unknown = Counter(one.said for one in seen.of(Event.UNKNOWN))
    if refused and len(refused) == len(seen.all):
        return Verdict.NOT_PROVIDED, refused[0].said
    if check.kind == "contract":
        broken = seen.of(Event.BROKEN)
        if broken:
            return Verdict.CONTRACT, _conduct(broken)
        return (Verdict.PASS, "") if seen.results else (Verdict.NOT_JUDGED, "; ".join(dict.fromkeys(
            one.said for one in seen.all)))  # fmt: skip
    if seen.is_wrong:
        return explanation.excuse or Verdict.WRONG, _why_wrong(check, seen, explanation)
    unevaluated = seen.of(Event.UNEVALUATED)
    if unevaluated:
        return Verdict.UNDECIDED, f"the result at {_places(unevaluated)} cannot be evaluated ({unevaluated[0].said})"
    notes = [f"{counted(count, 'block')} not judged: {why}" for why, count in unknown.items()]
    first = {one.case: one for one in reversed(exhausted)}
    late = [f"not judged at {_places(some)}: {some[0].said}" for some in _by_reason([*first.values()][::-1])]
    if exhausted and not (seen.decisive and all(one.demanding for one in exhausted)):
        return Verdict.NOT_JUDGED, "; ".join([*late, *notes])
    broken = seen.of(Event.BROKEN)
    if broken:
        return Verdict.CONTRACT, "; ".join(one.said for one in broken)
    if not seen.decisive and check.kind != "value":
        return Verdict.NOT_JUDGED, "; ".join(unknown)
    if not seen.decisive:
        explained = "at every point, rounding alone can cause an error of any size, so nothing can be judged"
        late = [f"not judged at {_places(some)}: {some[0].said}" for some in _by_reason(seen.of(Event.EXHAUSTED))]
        return Verdict.UNDECIDED, "; ".join([*notes, *late, explained if seen.results else "no point was judged"])
    if seen.doubtful and check.kind in WHOLE:
        return Verdict.INACCURATE, ""
    if seen.doubtful:
        worst = max(seen.doubtful, key=lambda one: one.ratio)
        found = f"the error is up to {worst.ratio:.0f} times the usual rounding error, {_count(seen, seen.doubtful)}"
        return Verdict.INACCURATE, "; ".join(
            [
                f"{found} ({worst.place}): less accurate than it could be, and not so far off that it must be wrong",
                *notes,
            ]
        )
    missing = [*late, *(f"no result at {_places(some)}: {some[0].said}" for some in _by_reason(refused))]
    return (Verdict.PARTIAL if missing else Verdict.PASS), "; ".join([*notes, *missing])


def _why_wrong(check: Check, seen: Seen, explanation: Explanation) -> str:
    if explanation.excuse is not None:
        return explanation.text
    where = f"{_places(seen.failures)}: " if seen.failures and check.kind != "trajectory" else ""
    words = [where + seen.failures[0].said] if seen.failures else []
    if seen.has_wrong_numbers and check.kind not in WHOLE:
        count = _count(seen, seen.doubtful)
        words.append(f"where the function returns numbers, they are wrong {count}" if words else f"wrong {count}")
    return "; ".join(words)


def _conduct(broken: list[Evidence]) -> str:
    """Who breaks a rule, and how."""
    how: dict[str, list[Evidence]] = {}
    for one in broken:
        how.setdefault(one.said, []).append(one)
    return "; ".join(
        f"{text} ({', '.join(dict.fromkeys(one.about for one in some))}; {_places(some)})" for text, some in how.items()
    )


def _by_reason(found: list[Evidence]) -> list[list[Evidence]]:
    reasons: dict[str, list[Evidence]] = {}
    for one in found:
        reasons.setdefault(one.said, []).append(one)
    return list(reasons.values())


def _places(found: Sequence[Evidence]) -> str:
    cases = list(dict.fromkeys(one.case for one in found))
    first = found[0].case + (f", {found[0].circumstance}" if found[0].circumstance else "")
    return first + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")


def _told(found: list[Evidence]) -> str:
    return f"{found[0].said} ({_places(found)})"


def _count(seen: Seen, found: list[Evidence]) -> str:
    plainly = [one for one in found if not one.circumstance]
    others = f", {found[0].circumstance}" if found and not plainly else ""
    return f"at {_blocks(plainly or found)} of {counted(_blocks(seen.decisive), 'decisive point')}{others}"


def _blocks(found: Iterable[Evidence]) -> int:
    return sum(one.blocks for one in distinct(found))


def distinct(found: Iterable[Evidence]) -> list[Evidence]:
    """Of each block of a point, and each law, what is worst in all circumstances."""
    worst: dict[tuple[Any, ...], Evidence] = {}
    for one in found:
        place = one.case, one.block, one.law, one.about
        known = worst.setdefault(place, one)
        if known is not one:
            worse = known if one.ratio <= known.ratio else one
            either = one.enclosed or known.enclosed
            worst[place] = worse if worse.enclosed is either else replace(worse, enclosed=either)
    return list(worst.values())


def _example(seen: Seen) -> Evidence | None:
    beyond = [one for one in seen.doubtful if one.ratio > BEYOND_DOUBT]
    refused = seen.of(Event.NOT_IMPLEMENTED, Event.EXHAUSTED)
    for found in (seen.failures, seen.of(Event.BROKEN), beyond, seen.doubtful, refused):
        named = [one for one in found if one.case]
        if named:
            return min(named, key=lambda one: bool(one.circumstance))
    return None


def _lossy(seen: Seen) -> Evidence | None:
    """Where the first digit is gone that a factorised route keeps; else where most are lost."""
    gone = [one for one in seen.results if one.relative_error > NOTHING_LEFT and _digits_lost(one) >= 1.0]
    if gone:
        return min(gone, key=lambda one: one.condition)
    return max(seen.results, key=lambda one: one.attainable_ratio, default=None)


def _digits_lost(one: Evidence) -> float:
    """Digits that conditioning leaves and the backend does not keep."""
    available = -np.log10(DOUBTFUL * one.attainable)
    return float(max(0.0, available - one.digits))
