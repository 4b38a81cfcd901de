r"""What a check is, how large an error may be, and the value checks.

An error is measured in the metric itself (its length at the base point), beside the natural size of the result, and
divided by what rounding alone must be expected to do:

    ratio = error / (size · u · √max(n, m) · κᵖ),

u the unit roundoff of the backend's dtype, κ the larger condition number of G and H, and p the power that a route over
Gram matrices loses in that metric (`refgeo.conformance.operations`): S = GᵀG squares κ, and the Sylvester equation of
inv or a product of several such matrices squares it again. Sums over the rows add up √n roundings; of two vectors that
are not as long as each other, a route by polarisation rounds the longer one. A route that is factorised, and bilinear
where the result is, loses κ alone (*attainable*).

A verdict rests on *decisive* points: rounding, even that of a route which is numerically as bad as an explicit inverse
of the h²×h² system (it may lose κ^{3p/2}) or of a Gram matrix by cofactors (κ(S)² = κ⁴), leaves something to tell
there, and no product leaves the range of the dtype. In double precision that is κ ≤ 350 for a projection, and some
thousands for a gradient. Cofactors may lose κ^min(2p, 4) and be right; a thousandth of that stands in the place of κᵖ
where it is more, so that no such loss is WRONG. The ratios of right implementations are then below 17, as far as has
been seen (``python -m validation implementations``). So

* above `DOUBTFUL` = 30 a row is *inaccurate*, which is a finding and passes;
* *WRONG* takes evidence that rounding cannot explain: a ratio above `BEYOND_DOUBT` = 1,000 at one point, or above
  `MANY_TIMES` = 100 at three.

Where κ is larger, errors show what conditioning costs an implementation: a ratio against the attainable condition above
the threshold means that it is right but loses digits.

Lengths are computed in double precision by the factorised geometry; that affects the unit in which an error is
expressed (by rounding), never the expected value, which comes from `refgeo.exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.operations import VALUES, Operation, Value
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.trial import Trial, beside, combination
from refgeo.support.arguments import Array

DOUBTFUL = 30.0
MANY_TIMES = 100.0
BEYOND_DOUBT = 1000.0
SEVERAL = 3
"""Points, different ones, that must agree where none alone is beyond doubt."""
OWN = 12.0
"""The factorised route's own error is below so many of what is attainable; 3.2 is the largest that has been seen."""


def anywhere(case: Case) -> bool:
    """Every case is one for a check."""
    return True


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes
    ----------
    name : str
        That of a value, or ``function.law``.
    kind : "value", "law" or "contract"
    operation : Operation
        The backend's function that is judged.
    statement : str
        What must hold, in a line.
    errors : callable
        The errors of a trial beside their natural size, per block; NaN where a block could not be judged.
    power : callable
        Of the metric and its relaxation: the power of κ that may be lost.
    scale : float
        By how much the unit is wider than one rounding.
    roundoff_power : float
        Of u: below 1 where differences are taken.
    applies : callable
        Whether a case is one for this check.
    value : Value, optional
        What a value check, or a law of conduct about it, is about.
    most : int or None
        At most this many cases with leading dimensions, and this many without.
    always : bool
        Of a law: whether it is judged where the operation's values are.
    of_metric : bool
        Whether the metric alone decides it, as it does values: an update rule of another metric need not pass.
    harmful : bool
        Of a rule of conduct: whether who breaks it makes his caller's numbers wrong.
    """

    name: str
    kind: str
    operation: Operation
    statement: str
    errors: Callable[[Trial], Array]
    power: Callable[[str, float], float]
    scale: float = 1.0
    roundoff_power: float = 1.0
    applies: Callable[[Case], bool] = anywhere
    value: Value | None = None
    most: int | None = None
    always: bool = False
    of_metric: bool = False
    harmful: bool = False

    @property
    def uses(self) -> tuple[str, ...]:
        """The values that it follows from, if that is wrong: of a law its own.

        Examples
        --------
        >>> VALUE_CHECKS["geodesic_2"].uses
        ('christoffel',)
        """
        if self.kind == "contract" or self.value is None:
            return ()
        return self.value.uses if self.kind == "value" else (self.value.name,) * (self.value.name in VALUES)

    @property
    def about(self) -> str:
        """The value that it is about; the function, where that has one value alone.

        Examples
        --------
        >>> VALUE_CHECKS["geodesic_2"].about, VALUE_CHECKS["christoffel"].about
        ('geodesic_2', 'christoffel')
        """
        return self.operation.name if self.value is None else self.value.name

    def statement_of(self, metric: str) -> str:
        """What must hold, for one metric.

        Examples
        --------
        >>> VALUE_CHECKS["inner_product"].statement_of("s=0.5")[:25]
        'tr(M_G a_Gᵀb_G) + tr(M_H '
        """
        return self.value.statement_of(metric) if self.kind == "value" and self.value else self.statement

    def unit(self, case: Case, power: float | None = None) -> Array:
        """The relative error of ratio 1, per block; or with another power of κ alone.

        Examples
        --------
        >>> from refgeo.conformance.recipes import Recipe, build
        >>> bool(VALUE_CHECKS["christoffel"].unit(build(Recipe(sizes=(5, 4, 2)), "inv", "float64", 0)) < 1e-13)
        True
        """
        if power is None:
            cofactors = self.unit(case, self._by_cofactors(case))
            return np.asarray(np.maximum(self.unit(case, self._power(case)), cofactors / BEYOND_DOUBT))
        # a route that combines both vectors before it multiplies (by polarisation) rounds the longer one
        spread = case.spread if self.operation.sources == ("a", "b") else 1.0
        with np.errstate(over="ignore"):
            return np.asarray(spread * self._rounding(case) * case.condition**power)

    def _rounding(self, case: Case) -> float:
        """The relative error of ratio 1 where nothing is lost."""
        roundoff, rows = PRECISIONS[case.dtype].roundoff ** self.roundoff_power, max(case.point.sizes[:2]) ** 0.5
        return float(self.scale * roundoff * rows)

    def _power(self, case: Case) -> float:
        return self.power(case.metric, case.relaxation)

    def _by_cofactors(self, case: Case) -> float:
        """The power that a Gram matrix inverted by cofactors loses, if not twice what is lost as a rule is less."""
        return min(2.0 * self._power(case), 4.0)

    def attainable(self, case: Case) -> Array:
        """What a factorised and bilinear route loses, per block: anything where numbers leave the dtype's range."""
        return np.where(self._in_range(case), self._rounding(case) * case.condition, np.inf)

    def _in_range(self, case: Case) -> bool:
        power = self._power(case)
        return case.in_range(max(2.0 + power, 2.0 * power))  # norms square products of so many factors

    def decisive(self, case: Case) -> Array:
        """Where a verdict can rest on this case, per block."""
        if not self._in_range(case):
            return np.zeros(case.point.block_shape, dtype=bool)
        worst = max(1.5 * self._power(case), self._by_cofactors(case))
        far, unit = self.unit(case, worst), self.unit(case)
        return np.asarray((far <= 1.0) & (MANY_TIMES * unit <= 1.0))


def _errors(value: Value, trial: Trial) -> Array:
    """How far a result lies from the truth, per block, beside its natural size; NaN where the truth is not known.

    Floats acquit, balls accuse: a result that is within the threshold of the factorised route, less that route's own
    error, is right. An enclosure is computed for every small block, for a sample of the large ones, and wherever the
    factorised route does not acquit.
    """
    case, result = trial.case, trial.value(value)
    check, size = VALUE_CHECKS[value.name], case.size(value)
    shape = case.point.block_shape
    errors, enclose = np.full(shape, np.nan), np.ones(shape, dtype=bool)
    reference = case.reference(value)
    if reference is not None:
        errors = np.array(beside(trial.length(combination((1.0, result), (-1.0, reference))), size))
        acquitted = errors <= DOUBTFUL * check.unit(case) - OWN * check.attainable(case)
        first = np.arange(errors.size).reshape(shape) < trial.least
        enclose = np.array(~acquitted | case.sampled.astype(bool) | first)
    distances = tuple(np.zeros_like(part) for part in result)
    for block in zip(*np.nonzero(enclose), strict=True) if shape else [()] * bool(enclose):
        enclosures = case.exact_block(block).enclosures(value)
        if enclosures is None:
            enclose[block], errors[block] = False, np.nan
            continue
        for distance, part, enclosure in zip(distances, result, enclosures, strict=True):
            difference = part[block] - enclosure.mid
            # Only what certainly lies outside counts; NaN stays NaN.
            distance[block] = np.sign(difference) * np.maximum(np.abs(difference) - enclosure.rad, 0.0)
    trial.enclosed = enclose
    return np.where(enclose, beside(trial.length(distances), size), errors)


def _check_of(value: Value) -> Check:
    return Check(
        value.name,
        "value",
        value.operation,
        value.statement,
        lambda trial: _errors(value, trial),
        value.loss,
        # most exact geodesics are integrated, and no integrator works to the last digits
        scale=100.0 if value.order == "exact" else 1.0,
        applies=lambda case: value.order != "exact" or case.can_flow(case.t),
        value=value,
    )


VALUE_CHECKS: dict[str, Check] = {value.name: _check_of(value) for value in VALUES.values()}


_LOSES_MOST = replace(
    VALUE_CHECKS["horizontal_projection"], power=lambda *_: VALUES["horizontal_projection"].loss("inv", 0.0)
)


def something_to_expect(case: Case) -> Array:
    """Where an exception counts as a failure, per block: where even inv's projection, which loses most, is decisive.

    Examples
    --------
    >>> from refgeo.conformance.recipes import Recipe, build
    >>> bool(something_to_expect(build(Recipe(sizes=(5, 4, 2), conditions=(1e6, 1e6)), "inv", "float64", 0)))
    False
    """
    return _LOSES_MOST.decisive(case)
