"""What a check has seen of a backend so far, and the row that it becomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from refgeo.conformance.backend import NotCalled
from refgeo.conformance.case import Case
from refgeo.conformance.checks import BEYOND_DOUBT, DOUBTFUL, MANY_TIMES, SEVERAL, Check, something_to_expect
from refgeo.conformance.contract import Breach
from refgeo.conformance.host import BackendFailure, Exhausted, Swallowed
from refgeo.conformance.rows import ABSENT, NOTHING_LEFT, Measurement, Row, Verdict, counted
from refgeo.conformance.trial import Trial
from refgeo.support.arguments import Array

NO_REFERENCE = "no reference value"


def _places(found: list[tuple[Measurement, str]]) -> str:
    return found[0][0].case + (f" and {len(found) - 1} more" if len(found) > 1 else "")


Event = tuple[Measurement, str]
"""Where, and what happened."""


def _told(found: list[Event]) -> str:
    return f"{found[0][1]} ({_places(found)})"


@dataclass
class Tally:
    """One check of one metric.

    Attributes
    ----------
    check : Check
    metric, dtype : str
    measurements : list of Measurement
    events : dict of list of (Measurement, in words)
        What came in the place of a number, by its kind: "trouble" and "breakdown" (unusable results on decisive points,
        and on the others), "breach" (of the contract), "exhausted" (time or memory that ran out, where they may),
        "refused" (NotImplementedError), "swallowed" (NotImplementedError in the place of another exception), "not
        called" any more, "unevaluated" (the referee could not use what came: a point that lacks rank, for example).
    absent : str
        The function that is missing.
    not_judged : Counter of str
        Blocks that were not, by reason.
    remark : str
        What else there is to say of the verdict.
    """

    check: Check
    metric: str
    dtype: str
    measurements: list[Measurement] = field(default_factory=list)
    events: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    absent: str = ""
    not_judged: Counter[str] = field(default_factory=Counter)
    remark: str = ""

    def run(self, trial: Trial) -> None:
        """Put one case to the backend."""
        case = trial.case
        trial.decisive = bool(np.any(self.check.decisive(case)))
        try:
            with np.errstate(all="ignore"):  # infinities are judged below, not warned of
                errors = self.check.errors(trial)
                self.add(case, errors, "returned NaN or infinity", NO_REFERENCE, trial.enclosed)
            if trial.breach:
                self._note("breach", case, trial.breach, 1.0)
        except NotCalled as error:
            self._note("not called", case, error)
        except Swallowed as error:
            must = bool(np.all(self._expected(case)) and np.all(self._known(case)))
            self._note("swallowed" if must else "refused", case, error)
        except NotImplementedError as error:
            self._note("refused", case, error)
        except Breach as breach:
            self._note("breach", case, breach, 1.0)
        except Exhausted as failure:
            self._note("exhausted", case, failure)
        except BackendFailure as failure:
            # A failure where values can be expected; where none can in some block, the others go unjudged with it:
            # it is ill-conditioned, or has no enclosure, such as a geodesic beyond the end of the manifold.
            expected, known = self._expected(case), self._known(case)
            errors = np.where(expected, np.inf if expected.all() and known.all() else np.nan, np.inf)
            reason = f"at {case.name}, the whole batch failed because of an ill-conditioned block ({failure})"
            self.add(case, np.where(known, errors, np.nan), str(failure), reason if known.all() else NO_REFERENCE)
        except Exception as error:  # of the referee's own mathematics, at numbers that it cannot use
            self._note("unevaluated", case, f"{type(error).__name__}: {error}")

    def _note(self, kind: str, case: Case, what: object, error: float = np.inf) -> None:
        self.events[kind].append((self._at(case, error), str(what)))

    def _expected(self, case: Case) -> Array:
        """Where there must be some result."""
        return np.logical_and(self.check.decisive(case), something_to_expect(case))

    def _known(self, case: Case) -> Array:
        """Which blocks have a reference value, if it takes one."""
        if self.check.kind != "value" or self.check.value is None:
            return np.ones(case.point.block_shape, dtype=bool)
        blocks = np.ndindex(case.point.block_shape)
        known = [case.exact_block(block).enclosures(self.check.value) is not None for block in blocks]
        return np.reshape(known, case.point.block_shape)

    def saw(self, case: Case, breach: str | None) -> None:
        """Count a call that kept the contract, or broke it."""
        if breach is not None:
            self._note("breach", case, breach, 1.0)
        else:
            self.measurements.append(self._at(case, 0.0))

    def _at(self, case: Case, error: float) -> Measurement:
        """A measurement for a case as a whole."""
        decisive, condition = bool(np.all(self.check.decisive(case))), float(np.max(case.condition, initial=1.0))
        return Measurement(case.name, (), condition, error, 1.0, 1.0, decisive, case.oddity)

    def add(self, case: Case, relative: Array, trouble: str, unjudged: str, enclosed: Array | bool = False) -> None:
        """The relative errors of every block; `trouble` is what an infinite one means, `unjudged` what NaN does."""
        shape = case.point.block_shape
        relative, enclosed = np.broadcast_to(relative, shape), np.broadcast_to(enclosed, shape)
        numbers = (case.condition, relative, self.check.attainable(case), self.check.unit(case))
        decisive = np.where(np.isinf(relative), self._expected(case), self.check.decisive(case))
        lost = []
        for block in np.ndindex(shape):
            if np.isnan(relative[block]):
                self.not_judged[unjudged] += 1
                continue
            condition, error, attainable, gram = (float(number[block]) for number in numbers)
            one = Measurement(
                case.name, block, condition, error, attainable, gram, bool(decisive[block]), case.oddity,
                bool(enclosed[block]), case.dtype,
            )  # fmt: skip
            self.measurements.append(one)
            lost += [one] if np.isinf(one.relative_error) else []
        hit = [one for one in lost if one.decisive]
        if hit:
            self.events["trouble"].append((hit[0], trouble))
        elif lost:
            self.events["breakdown"].append((max(lost, key=lambda one: one.condition), trouble))

    def absorb(self, other: Tally) -> None:
        """Add what another tally of the same check has seen."""
        self.measurements += other.measurements
        for kind, events in other.events.items():
            self.events[kind] += events
        self.absent = other.absent
        self.not_judged.update(other.not_judged)

    @property
    def has_seen(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.measurements or any(self.events.values()) or self.absent or self.not_judged)

    @property
    def decisive(self) -> list[Measurement]:
        """What the verdict rests on."""
        return [one for one in self.measurements if one.decisive]

    @property
    def doubtful(self) -> list[Measurement]:
        """What rounding does not do as a rule."""
        return [one for one in self.decisive if not one.ratio <= DOUBTFUL]

    @property
    def wrong_numbers(self) -> list[Measurement]:
        """Doubtful, and not for want of a number."""
        return [one for one in self.doubtful if np.isfinite(one.ratio)]

    @property
    def has_wrong_numbers(self) -> bool:
        """Whether no rounding explains them: one ratio beyond doubt, or several points that agree."""
        ratios: dict[str, float] = {}
        for one in self.wrong_numbers:
            ratios[one.case] = max(ratios.get(one.case, 0.0), one.ratio)
        several = sum(ratio > MANY_TIMES for ratio in ratios.values()) >= SEVERAL
        return several or any(ratio > BEYOND_DOUBT for ratio in ratios.values())

    @property
    def is_wrong(self) -> bool:
        """Whether it has no usable result, or wrong numbers, where it must have right ones."""
        return bool(self.failures) or self.has_wrong_numbers

    @property
    def failures(self) -> list[tuple[Measurement, str]]:
        """Where there is no usable result though there must be one: what a NotImplementedError stands for is such a
        failure where the function has given results at other points.
        """
        has_results = any(np.isfinite(one.relative_error) for one in self.measurements)
        return [
            *self.events["trouble"],
            *(self.events["swallowed"] if has_results and self.check.kind != "contract" else ()),
        ]

    def row(self) -> Row:
        """The row of the report; without a diagnosis."""
        verdict, message = self._verdict()
        worst = max(self.decisive, key=lambda one: one.ratio, default=None)
        lossy, digits_lost = None, 0.0
        if verdict is Verdict.PASS and self.check.kind == "value":
            lossy = self._lossy()
            digits_lost = 0.0 if lossy is None else self._digits_lost(lossy)
        return Row(
            check=self.check.name,
            kind=self.check.kind,
            function=self.check.operation.name,
            metric=self.metric,
            statement=self.check.statement_of(self.metric),
            verdict=verdict,
            about=self.check.about,
            uses=self.check.uses,
            harmful=self.check.harmful,
            points=len(self.measurements),
            decisive_points=len(self.decisive),
            worst_ratio=worst.ratio if worst else None,
            threshold=DOUBTFUL,
            digits_kept=min((one.digits for one in self.decisive if one.dtype == self.dtype), default=None),
            worst_case=worst,
            example=self._example() or worst,
            digits_lost=digits_lost,
            lossy_case=lossy if digits_lost >= 1.0 else None,
            no_result=self._no_result() if verdict is Verdict.PASS else "",
            message="; ".join(filter(None, (message, self.remark))),
            measurements=tuple(self.measurements) if self.check.kind == "value" else (),
        )

    def _example(self) -> Measurement | None:
        beyond = [one for one in self.doubtful if one.ratio > BEYOND_DOUBT]
        for found in (self.failures, self.events["breach"], beyond, self.doubtful, self.events["refused"]):
            if found:
                places = [one if isinstance(one, Measurement) else one[0] for one in found]
                return min(places, key=lambda one: one.oddity)
        return None

    def _lossy(self) -> Measurement | None:
        """Where the first digit is gone that a factorised route keeps; else where most are lost."""
        finite = [one for one in self.measurements if np.isfinite(one.ratio)]
        gone = [one for one in finite if one.relative_error > NOTHING_LEFT and self._digits_lost(one) >= 1.0]
        if gone:
            return min(gone, key=lambda one: one.condition)
        return max(finite, key=lambda one: one.attainable_ratio, default=None)

    def _digits_lost(self, one: Measurement) -> float:
        """Digits that conditioning leaves and the backend does not keep."""
        available = -np.log10(DOUBTFUL * one.attainable)
        return float(max(0.0, available - one.digits))

    def _no_result(self) -> str:
        found = self.events["breakdown"]
        return f"κ={found[0][0].condition:.0e}: {_told(found)}" if found else ""

    def _verdict(self) -> tuple[Verdict, str]:
        breaches, exhausted, unevaluated = (self.events[kind] for kind in ("breach", "exhausted", "unevaluated"))
        if self.absent:
            return Verdict.NOT_PROVIDED, f"{ABSENT} {self.absent}"
        finite = any(np.isfinite(one.relative_error) for one in self.measurements)
        refusals = [*self.events["refused"], *self.events["swallowed"]]
        if refusals and not (finite or breaches or self.events["trouble"]):
            return Verdict.NOT_PROVIDED, refusals[0][1]
        if self.events["not called"] and not (self.measurements or exhausted):
            return Verdict.NOT_JUDGED, self.events["not called"][0][1]
        if self.check.kind == "contract":
            if breaches:
                return Verdict.CONTRACT, _told(breaches)
            reasons = (f"not judged: {reason}" for reason in self.not_judged)
            return (Verdict.PASS, "") if finite else (Verdict.NOT_JUDGED, next(reasons, "no call returned"))
        if self.failures:
            message = f"{_places(self.failures)}: {self.failures[0][1]}"
            if self.has_wrong_numbers:
                message += f"; where the function returns numbers, they are wrong {self._count(self.wrong_numbers)}"
            return Verdict.WRONG, message
        if unevaluated and not self.is_wrong:
            why = unevaluated[0][1]
            return Verdict.UNDECIDED, f"the result at {_places(unevaluated)} cannot be evaluated ({why})"
        notes = [f"{counted(n, 'block')} not judged: {reason}" for reason, n in self.not_judged.items()]
        if not self.decisive:
            return self._nothing_decides(notes)
        if self.doubtful:
            worst, count = max(self.doubtful, key=lambda one: one.ratio), self._count(self.doubtful)
            if self.is_wrong:
                return Verdict.WRONG, "; ".join([f"wrong {count}", *notes])
            found = f"the error is up to {worst.ratio:.0f} times the usual rounding error, {count} ({worst})"
            return Verdict.INACCURATE, "; ".join(
                [f"{found}, so it is right, but less accurate than it could be", *notes]
            )
        if breaches:
            return Verdict.CONTRACT, _told(breaches)
        missing = list(filter(None, (exhausted, self.events["refused"], self.events["not called"])))
        notes += [f"no result at {_places(found)}: {found[0][1]}" for found in missing]
        return Verdict.PARTIAL if missing else Verdict.PASS, "; ".join(notes)

    def _nothing_decides(self, notes: list[str]) -> tuple[Verdict, str]:
        exhausted = self.events["exhausted"]
        if exhausted:  # a law may be tried at such points alone
            verdict = Verdict.NOT_JUDGED if self.check.kind == "law" else Verdict.UNDECIDED
            return verdict, f"no result at {_places(exhausted)}: {exhausted[0][1]}"
        explained = (
            f"at every point, rounding in {self.dtype} alone can cause an error of any size, so nothing can be judged"
        )
        return Verdict.UNDECIDED, "; ".join([*notes, explained if self.measurements else "no point was judged"])

    def _count(self, found: list[Measurement]) -> str:
        return f"at {len(found)} of {counted(len(self.decisive), 'decisive point')}"
