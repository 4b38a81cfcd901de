"""What a check has seen of a backend so far, and the row that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from refgeo.conformance.backend import BackendFailure
from refgeo.conformance.cases import Case
from refgeo.conformance.checks import THRESHOLD, UNDECIDABLE, WELL_CONDITIONED, Check, gram_unit
from refgeo.conformance.report import ABSENT, Measurement, Row, Verdict
from refgeo.conformance.trial import Trial
from refgeo.pair import Array


@dataclass
class Tally:
    """One check of one metric.

    Attributes
    ----------
    check : Check
    metric, dtype : str
    measurements : list of Measurement
    troubles, breakdowns : list of (case name, what the backend did)
        Unusable results on decisive points, and on the others.
    not_provided : list of str
        Why the backend lacks it.
    refusals : list of Measurement
        Where it said so, of a function that it has.
    not_judged : int
        Blocks without a reference value.
    remark : str
        What else there is to say of the verdict.
    """

    check: Check
    metric: str
    dtype: str
    measurements: list[Measurement] = field(default_factory=list)
    troubles: list[tuple[str, str]] = field(default_factory=list)
    breakdowns: list[tuple[str, str]] = field(default_factory=list)
    not_provided: list[str] = field(default_factory=list)
    refusals: list[Measurement] = field(default_factory=list)
    not_judged: int = 0
    remark: str = ""

    def run(self, trial: Trial) -> None:
        """Put one case to the backend."""
        check, backend = self.check, trial.backend
        missing = [name for name in (check.function, *check.needs) if not backend.provides(name)]
        if missing:
            self.not_provided.append(f"{ABSENT} {missing[0]}")
            return
        try:
            with np.errstate(all="ignore"):  # infinities are judged below, not warned of
                relative = check.relative_errors(trial)
        except NotImplementedError as error:
            self.not_provided.append(f"{trial.case.name}: NotImplementedError: {error}")
            self.refusals.append(self._measured(trial.case, np.full(trial.case.point.block_shape, np.inf))[0])
        except BackendFailure as failure:
            # A failure where a value can be expected; where none can, no digits kept.
            self._add(trial.case, np.full(trial.case.point.block_shape, np.inf), str(failure))
        else:
            self._add(trial.case, relative, "returned NaN or infinity")

    def _add(self, case: Case, relative: Array, trouble: str) -> None:
        relative = np.broadcast_to(relative, case.point.block_shape)
        fresh = self._measured(case, relative)
        self.not_judged += relative.size - len(fresh)
        if any(np.isinf(one.relative_error) for one in fresh):
            hit = any(one.decisive and np.isinf(one.relative_error) for one in fresh)
            (self.troubles if hit else self.breakdowns).append((case.name, trouble))
        self.measurements.extend(fresh)

    def _measured(self, case: Case, relative: Array) -> list[Measurement]:
        """A measurement for every block that could be judged."""
        numbers = (case.space.gauge.condition, relative, gram_unit(case, 1), self.check.unit(case))
        measured = []
        for block in np.ndindex(case.point.block_shape):
            condition, error, attainable, gram = (float(number[block]) for number in numbers)
            decisive = condition <= WELL_CONDITIONED and THRESHOLD * gram <= UNDECIDABLE
            if not np.isnan(error):
                measured.append(Measurement(case.name, block, condition, error, attainable, gram, decisive))
        return measured

    @property
    def decisive(self) -> list[Measurement]:
        """What the verdict rests on."""
        return [one for one in self.measurements if one.decisive]

    @property
    def failing(self) -> list[Measurement]:
        """What makes it wrong."""
        return [one for one in self.decisive if not one.ratio <= THRESHOLD]

    def row(self) -> Row:
        """The row of the report; without a diagnosis."""
        verdict, message = self._verdict()
        message = "; ".join(filter(None, (message, self.remark)))
        worst = max(self.decisive, key=lambda one: one.ratio, default=None)
        lossy, digits_lost = None, 0.0
        if verdict is Verdict.PASS and not self.check.is_law:
            lossy = max(self.measurements, key=lambda one: one.attainable_ratio)
            digits_lost = self._digits_lost(lossy)
        return Row(
            check=self.check.name,
            metric=self.metric,
            statement=self.check.statement,
            verdict=verdict,
            points=len(self.measurements),
            decisive_points=len(self.decisive),
            worst_ratio=worst.ratio if worst else None,
            threshold=THRESHOLD,
            digits_kept=min((one.digits(self.dtype) for one in self.decisive), default=None),
            worst_case=worst,
            example=self._example() or worst,
            digits_lost=digits_lost,
            lossy_case=lossy if digits_lost >= 1.0 else None,
            message=message,
            measurements=() if self.check.is_law else tuple(self.measurements),
        )

    def _example(self) -> Measurement | None:
        if self.refusals and self.measurements:
            return self.refusals[0]
        trouble = self.troubles[0][0] if self.troubles else None
        return next((one for one in self.failing if trouble in (None, one.case)), None)

    def _digits_lost(self, one: Measurement) -> float:
        """Digits that conditioning leaves and the backend does not keep."""
        available = -np.log10(THRESHOLD * one.attainable)
        return float(max(0.0, available - one.digits(self.dtype)))

    def _verdict(self) -> tuple[Verdict, str]:
        if self.not_provided and not self.measurements:
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
        if not self.decisive:
            return Verdict.UNDECIDED, "; ".join([*notes, "no point is well enough conditioned to tell in this dtype"])
        if self.failing:
            return Verdict.WRONG, "; ".join([*notes, f"{len(self.failing)} of {len(self.decisive)} decisive points"])
        return Verdict.PASS, "; ".join(notes)
