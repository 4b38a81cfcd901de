"""What is said of one check of one metric: verdicts, measurements, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from refgeo.conformance.precision import PRECISIONS

ABSENT = "no function"
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
    CONTRACT = "contract"
    INACCURATE = "inaccurate"
    PARTIAL = "partly provided"
    NOT_JUDGED = "not judged"
    PASS = "pass"
    NOT_PROVIDED = "not provided"


NOT_RIGHT = (Verdict.WRONG, Verdict.INHERITS)
"""Verdicts on values that are not the right ones."""
FAILING = (*NOT_RIGHT, Verdict.UNDECIDED)
"""Verdicts that make a report fail."""
FINDINGS = (Verdict.INACCURATE, Verdict.PARTIAL, Verdict.CONTRACT)
"""Verdicts that pass, unless findings are to count, too (``--strict``)."""


@dataclass(frozen=True)
class Measurement:
    """One check of one block of a case.

    Attributes
    ----------
    case : str
    block : tuple of int
    condition : float
        κ, the larger condition number of the factors.
    relative_error : float
        Beside the natural size of the result; infinite where there was no usable result.
    attainable, gram : float
        The relative errors of ratio 1: of a factorised route, and with Gram matrices.
    decisive : bool
        Whether the verdict rests on it.
    oddity : int
        In how many ways its case is unusual.
    enclosed : bool
        Whether the error is against an enclosure; else against the factorised route, which acquits.
    dtype : str
    """

    case: str
    block: tuple[int, ...]
    condition: float
    relative_error: float
    attainable: float
    gram: float
    decisive: bool
    oddity: int = 0
    enclosed: bool = False
    dtype: str = "float64"

    @property
    def ratio(self) -> float:
        """The error in units of what Gram matrices cost."""
        return self.relative_error / self.gram

    @property
    def attainable_ratio(self) -> float:
        """The error in units of what a factorised route costs."""
        return self.relative_error / self.attainable

    @property
    def digits(self) -> float:
        """Decimal digits that are right, at most those of the dtype."""
        most = -np.log10(PRECISIONS[self.dtype].roundoff)
        return float(np.clip(-np.log10(max(self.relative_error, 1e-300)), 0.0, most))

    def __str__(self) -> str:
        return self.case + (f"[{','.join(map(str, self.block))}]" if self.block else "")


@dataclass(frozen=True)
class Row:
    """One check of one metric.

    Attributes
    ----------
    check, kind, function, metric, statement : str
        `kind` is "value", "law", "contract", "search" or "trajectory".
    verdict : Verdict
    points, decisive_points : int
        Blocks judged, and those on which the verdict rests.
    worst_ratio : float or None
        Over the decisive points; above `threshold` it is a finding.
    digits_kept : float or None
        The fewest, over the decisive points.
    worst_case : Measurement or None
    example : Measurement or None
        Where to look first: the failing point that is unusual in the fewest ways, else the worst case.
    digits_lost : float
        The most digits that the conditioning of a point leaves and the backend does not keep, over all points.
    lossy_case : Measurement or None
    no_result : str
        Where it gives none though the point is only ill-conditioned, and what it did instead.
    message : str
    measurements : tuple of Measurement
        Of a value: everything that was judged, for plots of digits against conditioning.
    diagnosis : str
        For a wrong value: which known mistake gives the same numbers, at every point tried.
    yours, expected : tuple of str
        The formula that the backend computes, if it could be read, and the right one.
    differs : str
        In what they differ.
    about : str
        The value that it is about, such as "geodesic_2"; of a function that has one value alone, the function.
    uses : tuple of str
        The values that it follows from: where one of them is wrong, it is not to blame.
    harmful : bool
        Of a rule of conduct: whether who breaks it makes his caller's numbers wrong.
    options : mapping
        The keyword arguments with which an update rule was judged.
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
    threshold: float = 0.0
    digits_kept: float | None = None
    worst_case: Measurement | None = None
    example: Measurement | None = None
    digits_lost: float = 0.0
    lossy_case: Measurement | None = None
    no_result: str = ""
    message: str = ""
    measurements: tuple[Measurement, ...] = ()
    diagnosis: str = ""
    yours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    differs: str = ""
    about: str = ""
    uses: tuple[str, ...] = ()
    harmful: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether a report with it does not pass."""
        return self.verdict in FAILING or (self.verdict is Verdict.CONTRACT and self.harmful)

    @property
    def of_one_metric(self) -> bool:
        """Whether its metric is one that `refgeo.check` can be asked for; of a trajectory it is options of the rule."""
        return self.kind != "trajectory" and self.metric not in (EVERY, "adaptive")

    @property
    def is_absent(self) -> bool:
        """Whether the backend has no such function at all."""
        return self.verdict is Verdict.NOT_PROVIDED and self.message.startswith(ABSENT)

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
            return str(self.verdict.value)
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
                rule, message = self.check.split(".")[1], self.message.rsplit(" (", 1)[0]
                yield "FAILS" if self.fails else "contract", f"{rule}: {message}"
            return
        if self.verdict not in (Verdict.PASS, Verdict.WRONG, Verdict.NOT_PROVIDED):
            yield self.verdict.value, self.message
        if self.verdict is Verdict.PASS and self.no_result:
            yield "no result", f"right elsewhere, but the function gives no result at {self.no_result}"
        elif self.verdict is Verdict.PASS and self.message:
            yield "note", self.message
        if self.lossy_case is not None and not self.no_result:
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
        return f"{self.check}[{self.metric}]"


def absent(function: str, kind: str, statement: str, named: str = "") -> Row:
    """The row of a function, perhaps one of several `named`, that the backend does not have.

    Examples
    --------
    >>> absent("sharpness", "search", "a whole search").is_absent
    True
    """
    message = f"{ABSENT} {named or function}"
    return Row(function, kind, function, EVERY, statement, Verdict.NOT_PROVIDED, message=message)


def counted(number: float, noun: str) -> str:
    """A number of things in words.

    Examples
    --------
    >>> counted(1.2, "digit"), counted(8.7, "digit")
    ('1 digit', '9 digits')
    """
    return f"{number:.0f} {noun}" + ("" if round(number) == 1 else "s")
