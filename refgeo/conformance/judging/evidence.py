r"""Evidence: errors of results against the test oracle, in units of the rounding error that must be expected.

An error is measured in the metric (as its length at the base point), relative to the scale of the result, which is that
of its terms before they cancel:

    ratio = error / (scale · u · √max(n, m) · κᵖ),

u is the unit roundoff of the backend's dtype, κ the larger condition number of G and H, and p the exponent of κ in the
forward error of a route over Gram matrices (`protocol/operations.py`): S = GᵀG has the condition number κ², and the
Sylvester equation of inv, or a product of several such matrices, squares it again. Sums over n rows add up √n
roundings. If two vectors have different lengths, a route by polarisation has rounding errors relative to the longer
one. A factorised route, which is bilinear where the result is, has the error of p = 1; this accuracy is *attainable*.

*Right* means a small backward error: the exact result for inputs that differ from the given ones by a few roundings.
The formula above takes this from the condition of the factors, which is all that matters at most points. A geodesic
that passes close to the end of the manifold can be far more sensitive. Before a result is called inaccurate or WRONG,
the inputs are therefore changed by a rounding in a few ways (`adapt_units`); where the exact result moves by more than
the unit, that movement is the unit.

A verdict rests on *decisive* evidence: no product leaves the range of the dtype, and rounding cannot explain a failure,
even that of a route that is numerically as bad as an explicit inverse of the h²×h² system (p is then 3/2 as large) or
of a Gram matrix by cofactors (κ(S)² = κ⁴). In double precision, that is κ ≤ 350 for a projection, and some thousands
for a gradient. Right cofactors may lose κ^min(2p, 4); where a thousandth of that is more than κᵖ, it takes the place of
κᵖ, so that no such loss is WRONG. The ratios of right implementations have been below 17
(``python -m validation implementations``).

*Floats acquit, balls accuse.* A result is right if it is within the threshold of refgeo's factorised route, less that
route's own error: this route is a pseudo-oracle, which may accept a result and not reject it. An enclosure, the oracle,
is computed at a few tiny points, where the error of a right value is largest, and wherever the factorised route does
not accept the result, until enclosures have proved at a few points that the value is wrong.
Lengths are computed in double precision by the factorised geometry. That changes the unit of an error (by rounding),
and never the expected value, which comes from `refgeo.exact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from refgeo.conformance.points.scene import Scene
from refgeo.conformance.protocol.call import Answer, Event
from refgeo.conformance.protocol.operations import VALUES, Parts, Value
from refgeo.conformance.protocol.precision import INTEGRATOR_FACTOR, N_PERTURBATIONS, PRECISIONS
from refgeo.support.arguments import Array

MAX_RATIO = 30.0
"""The largest test ratio of an accurate result; with a larger one, a row is *inaccurate*, which passes as a finding.
Chosen: nearly twice the largest ratio of a right implementation so far, 17, which ``python -m validation
implementations`` measures."""
WRONG_RATIO, WRONG_COUNT = 100.0, 3
"""The ratio above which results are WRONG together, and the number of different points at which they must occur.
Chosen: six times the largest ratio of a right implementation so far, at more than two points."""
SURELY_WRONG_RATIO = 1000.0
"""The ratio above which a single result is WRONG. Chosen: 60 times the largest ratio of a right implementation."""
NON_FINITE = "returned NaN or infinity"
"""The `Evidence.detail` of a result that has no number in a block."""
REFERENCE_ERROR = 12.0
"""Bound of the factorised route's own error, in units of the attainable error; 3.2 is the largest so far."""
Enclosing = Literal["in doubt", "worst", "never"]
"""Which blocks are enclosed if the factorised route has a result: those in doubt, also the worst one, or none."""
_MAX_LISTED_BLOCKS = 64
"""Number of blocks in a batch above which one block represents all those that pass by the factorised route."""


@dataclass(frozen=True)
class Evidence:
    """The outcome of one block of one call, compared with the test oracle.

    Attributes
    ----------
    case : str
        The test point.
    block : tuple of int
    condition : float
        κ, the larger condition number of the factors; of a search the radius, of a trajectory the step.
    relative_error : float
        Relative to the scale of the result; infinite without a usable result.
    attainable, gram : float
        The relative errors of ratio 1: those of a factorised route, and of a route over Gram matrices.
    decisive : bool
        Whether a verdict rests on it.
    event : Event
        How the call ended.
    detail : str
        Why there is no result; of a wrong result, the entries that are furthest from the right ones, with both numbers.
    circumstance : str
        How the call was changed, in words. A wrong result has a circumstance only if the plain call is right.
    law : str
        What had to hold, where no right result is known.
    demanding : bool
        Whether a right implementation may run out of time or memory at the point.
    enclosed : bool
        Whether the error is that against an enclosure, and not against the factorised route.
    dtype : str
    subject : str
        Of conduct, the function; of a trajectory, the class of group elements.
    multiplicity : int
        The number of blocks that it represents, itself included.
    sizes : tuple of int
        n, m, h, and the number of blocks of the point.
    """

    case: str
    block: tuple[int, ...] = ()
    condition: float = 1.0
    relative_error: float = 0.0
    attainable: float = 1.0
    gram: float = 1.0
    decisive: bool = True
    event: Event = Event.RESULT
    detail: str = field(default="", metadata={"json": "said"})
    circumstance: str = ""
    law: str = ""
    demanding: bool = False
    enclosed: bool = False
    dtype: str = "float64"
    subject: str = field(default="", metadata={"json": "about"})
    multiplicity: int = field(default=1, metadata={"json": "blocks"})
    sizes: tuple[int, ...] = ()

    @property
    def ratio(self) -> float:
        """The test ratio: the error in units of that of a route over Gram matrices."""
        return self.relative_error / self.gram

    @property
    def attainable_ratio(self) -> float:
        """The error in units of that of a factorised route."""
        return self.relative_error / self.attainable

    @property
    def is_failure(self) -> bool:
        """Whether it is decisive, and has no usable result or an inaccurate one."""
        has_no_result = self.event in (Event.FAILED, Event.MASKED_EXCEPTION)
        return self.decisive and (has_no_result or (self.event is Event.RESULT and self.is_inaccurate))

    @property
    def is_inaccurate(self) -> bool:
        """Whether the ratio is above that of right implementations, or NaN."""
        return not self.ratio <= MAX_RATIO

    @property
    def is_likely_wrong(self) -> bool:
        """Whether it is a decisive result above `WRONG_RATIO`; `WRONG_COUNT` of these at different points are WRONG."""
        return self.decisive and self.event is Event.RESULT and self.ratio > WRONG_RATIO

    @property
    def digits(self) -> float:
        """The number of correct decimal digits, at most that of the dtype."""
        most = -np.log10(PRECISIONS[self.dtype].roundoff)
        return float(np.clip(-np.log10(max(self.relative_error, 1e-300)), 0.0, most)) + 0.0  # no −0

    @property
    def location(self) -> str:
        """The test point, the block, and the circumstance or law."""
        return ", ".join(filter(None, (str(self), self.circumstance, self.law)))

    def __str__(self) -> str:
        return self.case + (f"[{','.join(map(str, self.block))}]" if self.block else "")


@dataclass(frozen=True)
class ErrorUnits:
    """The relative errors of ratio 1 at a point, per block.

    Attributes
    ----------
    gram : ndarray
        That of a route over Gram matrices.
    attainable : ndarray
        That of a factorised, bilinear route; infinite where numbers leave the range of the dtype.
    decisive : ndarray of bool
        Whether a verdict can rest on the block.
    """

    gram: Array
    attainable: Array
    decisive: npt.NDArray[np.bool_]

    def enlarge(self, movement: Array, size: Array | float = 1.0) -> ErrorUnits:
        """Return units in which a right result may move by the given distances if the inputs change by a rounding.

        Examples
        --------
        >>> units = ErrorUnits(np.array(1e-15), np.array(1e-15), np.array(True))
        >>> units.enlarge(np.array(1e-9)).gram.item(), units.enlarge(np.array(0.5)).decisive.item()
        (1e-09, False)
        """
        is_stable = (movement <= self.gram) | (WRONG_RATIO * movement <= size)
        return replace(self, gram=np.maximum(self.gram, movement), decisive=self.decisive & is_stable)


def error_units(scene: Scene, value: Value, factor: float | None = None, roundoff_power: float = 1.0) -> ErrorUnits:
    """Compute the error units of a value at a point.

    Parameters
    ----------
    scene : Scene
    value : Value
    factor : float, optional
        By which the units are larger. Default: `INTEGRATOR_FACTOR` for exact geodesics, 1 otherwise.
    roundoff_power : float
        The power of u; less than 1 where differences of results are judged.

    Examples
    --------
    >>> from refgeo.conformance.points.features import Features
    >>> from refgeo.conformance.points.scene import generate
    >>> bool(error_units(generate(Features(h=2), "inv", "float64"), VALUES["christoffel"]).gram < 1e-13)
    True
    """
    factor = factor or (INTEGRATOR_FACTOR if value.order == "exact" else 1.0)

    def compute() -> ErrorUnits:
        p = value.loss(scene.metric, scene.relaxation)
        p_cofactors = min(2.0 * p, 4.0)
        rounding = factor * scene.precision.roundoff**roundoff_power * max(scene.point.sizes[:2]) ** 0.5
        # A route that adds the vectors before it multiplies (polarisation) has errors relative to the longer one.
        length_ratio = scene.length_ratio if value.operation.sources == ("a", "b") else 1.0
        in_range = scene.is_in_range(max(2.0 + p, 2.0 * p))  # The squares in norms are products of so many factors.
        with np.errstate(over="ignore"):
            errors = {q: length_ratio * rounding * scene.condition**q for q in (p, p_cofactors, 1.5 * p)}
            gram = np.asarray(np.maximum(errors[p], errors[p_cofactors] / SURELY_WRONG_RATIO))
            worst = np.maximum(errors[p_cofactors], errors[1.5 * p])
        attainable = np.where(in_range, rounding * scene.condition, np.inf)
        return ErrorUnits(gram, attainable, np.asarray(in_range & (worst <= 1.0) & (WRONG_RATIO * gram <= 1.0)))

    units: ErrorUnits = scene.cached(("units", value.name, factor, roundoff_power), compute)
    return units


def adapt_units(
    scene: Scene, value: Value, units: ErrorUnits, in_question: npt.NDArray[np.bool_], enclosing: Enclosing = "in doubt"
) -> ErrorUnits:
    """Enlarge the units of the blocks in question to how far the exact result moves if inputs change by a rounding.

    Results in double precision tell where it moves by less than the unit. Elsewhere the enclosures at the changed
    inputs tell how far it moves, as an excuse needs the same evidence as an accusation; infinitely far without any.
    If blocks are never enclosed, results in double precision are enough.

    Examples
    --------
    >>> from refgeo.conformance.points.features import Features
    >>> from refgeo.conformance.points.scene import generate
    >>> scene, value = generate(Features(h=2), "inv", "float64"), VALUES["christoffel"]
    >>> units = error_units(scene, value)
    >>> adapt_units(scene, value, units, np.array(True)) == units
    True
    """
    if not in_question.any():
        return units
    scenes = [scene, *(scene.perturb(scene.time(value), k) for k in range(N_PERTURBATIONS))]

    def measure(results: Sequence[Parts | None]) -> Array:
        """Return the movement and the size of the exact result, relative to the scale."""
        exact, *moved = [parts for parts in results if parts is not None] or [()]
        if len(moved) < N_PERTURBATIONS:
            return np.full((2, *scene.shape), np.inf)
        lengths = [scene.length(difference(parts, exact)) for parts in moved]
        movement = 0.5 * np.max(lengths, axis=0)  # A unit in the last place is two roundings.
        return np.array([relative_to(length, scene.size(value)) for length in (movement, scene.length(exact))])

    with np.errstate(all="ignore"):
        measured = np.where(in_question, measure([s.reference(value) for s in scenes]), 0.0)
        for block in map(tuple, np.argwhere(~(measured[0] <= units.gram))) if enclosing != "never" else ():
            measured[:, *block] = measure([s.midpoints(value, block) for s in scenes])[:, *block]
    return units.enlarge(*measured)


def result_is_expected(scene: Scene) -> npt.NDArray[np.bool_]:
    """Return per block whether an exception is a failure: if even the projection of inv, which is the least accurate,
    is decisive there.

    Examples
    --------
    >>> from refgeo.conformance.points.features import Features
    >>> from refgeo.conformance.points.scene import generate
    >>> bool(result_is_expected(generate(Features(condition_G=1e6), "inv", "float64")))
    False
    """
    return error_units(scene, _MOST_SENSITIVE).decisive


_MOST_SENSITIVE = replace(
    VALUES["horizontal_projection"], name="the most sensitive value",
    loss=lambda *_: VALUES["horizontal_projection"].loss("inv", 0.0),
)  # fmt: skip


@dataclass(frozen=True)
class CheckEvidence:
    """The evidence on one check, and a message for its row."""

    evidence: list[Evidence]
    message: str = ""


def is_beyond_rounding(evidence: Iterable[Evidence]) -> bool:
    """Return whether rounding explains no such ratios: one is surely wrong, or several points are likely wrong.

    Examples
    --------
    >>> is_beyond_rounding([Evidence("a", relative_error=1e4)]), is_beyond_rounding([Evidence("a")])
    (True, False)
    """
    wrong = [e for e in evidence if e.is_likely_wrong]
    has_enough_points = len({(e.case, e.subject) for e in wrong}) >= WRONG_COUNT
    return has_enough_points or any(e.ratio > SURELY_WRONG_RATIO for e in wrong)


def compare(
    scene: Scene, value: Value, answer: Answer, enclosing: Enclosing = "in doubt", **fields: Any
) -> list[Evidence]:
    """Compare an answer with the right result, block by block; `fields` are further ones of `Evidence`."""
    if answer.failure is not None:
        return [_judge_failure(scene, value, answer, **fields)]
    units = error_units(scene, value)
    with np.errstate(all="ignore"):  # Infinities are judged, not warned of.
        errors, enclosed = _errors_against_oracle(scene, value, units, tuple(answer.parts), enclosing)
        in_question = ~(errors <= MAX_RATIO * units.gram) & ~np.isnan(errors)
        units = adapt_units(scene, value, units, in_question & units.decisive, enclosing)
    evidence = list(to_evidence(scene, units, errors, enclosed, **fields))
    for i, e in enumerate(evidence):
        if e.is_failure and e.event is Event.RESULT:
            evidence[i] = replace(e, detail=describe_worst_entries(scene, value, answer, e))
    return evidence


def describe_worst_entries(scene: Scene, value: Value, answer: Answer, evidence: Evidence) -> str:
    """Quote, for each part of a wrong result, the entry that is furthest from the right one, and the right number.

    Examples
    --------
    >>> from refgeo.conformance.points.features import Features
    >>> from refgeo.conformance.points.scene import generate
    >>> scene, value = generate(Features(h=2), "inv", "float64"), VALUES["inner_product"]
    >>> describe_worst_entries(scene, value, Answer(parts=(np.array(7.0),)), Evidence("a", gram=1e-15))[:23]
    'the result is 7 and not'
    """
    block = evidence.block
    enclosures = scene.enclosures(value, block) if evidence.enclosed else None
    rights = [x.mid for x in enclosures] if enclosures else [x[block] for x in scene.reference(value) or ()]
    with np.errstate(all="ignore"):
        distances = [np.abs(part[block] - right) for part, right in zip(answer.parts, rights, strict=True)]
    descriptions = []
    for name, part, right, distance in zip("GH", answer.parts, rights, distances, strict=False):
        index = np.unravel_index(np.argmax(distance), distance.shape)
        entry = f"{name}[{', '.join(map(str, index))}]" if index else "the result"
        is_right = np.max(distance) <= MAX_RATIO * evidence.gram * np.max(np.abs(right))
        digits = 17 if distance[index] < 1e-6 * abs(right[index]) else 8
        numbers = f"{entry} is {part[block][index]:.{digits}g} and not {right[index]:.{digits}g}"
        descriptions.append(f"{name} is right" if is_right else numbers)
    return ", ".join(descriptions)


def to_evidence(
    scene: Scene, units: ErrorUnits, errors: Array, enclosed: npt.NDArray[np.bool_] | None = None, **fields: Any
) -> Iterator[Evidence]:
    """Turn relative errors, one per block, into evidence; infinity: no number returned, NaN: none is known."""
    expected = result_is_expected(scene)
    for block, multiplicity in _select_blocks(errors, units, enclosed):
        error, decisive = float(errors[block]), bool(units.decisive[block])
        event, detail = Event.RESULT, ""
        if np.isnan(error):
            event, detail = Event.NO_ORACLE, "no reference value"
        elif np.isinf(error):
            event, detail, decisive = Event.FAILED, NON_FINITE, decisive and bool(expected[block])
        yield Evidence(
            scene.name, block, float(scene.condition[block]), error, float(units.attainable[block]),
            float(units.gram[block]), decisive, event, detail,
            enclosed=enclosed is not None and bool(enclosed[block]), dtype=scene.dtype, multiplicity=multiplicity,
            sizes=scene.sizes, **fields,
        )  # fmt: skip


def _select_blocks(
    errors: Array, units: ErrorUnits, enclosed: npt.NDArray[np.bool_] | None
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the blocks of a batch to be listed, each with the number of blocks that it represents.

    In a large batch, these are the blocks that are enclosed or inaccurate, the first one, which all values then have in
    common, and the worst one of all others.
    """
    if errors.size <= _MAX_LISTED_BLOCKS:
        yield from ((block, 1) for block in np.ndindex(errors.shape))
        return
    with np.errstate(all="ignore"):
        ratios = errors / units.gram
    is_listed = ~(ratios <= MAX_RATIO) | (False if enclosed is None else enclosed)
    is_listed.flat[0] = True
    if not is_listed.all():
        worst = np.unravel_index(np.argmax(np.where(is_listed, -1.0, ratios)), errors.shape)
        yield tuple(map(int, worst)), int(np.sum(~is_listed))
    yield from ((block, 1) for block in np.ndindex(errors.shape) if is_listed[block])


def _judge_failure(scene: Scene, value: Value, answer: Answer, demanding: bool = False, **fields: Any) -> Evidence:
    """Judge a call without a result: it is a failure where every block can be expected to have a result.

    If some block cannot, because it is ill-conditioned or has no enclosure (such as a geodesic beyond the end of the
    manifold), the others are not judged either.
    """
    assert answer.failure is not None
    event, detail = answer.failure.event, str(answer.failure)
    expected = error_units(scene, value).decisive & result_is_expected(scene)
    decisive = bool(np.all(expected))
    if event in (Event.FAILED, Event.MASKED_EXCEPTION) and decisive:
        if value.order == "exact" and scene.can_be_enclosed(value):  # All other orders have enclosures.
            units = adapt_units(scene, value, error_units(scene, value), np.ones(scene.shape, dtype=bool))
            known = (scene.enclosures(value, block) is not None for block in np.ndindex(scene.shape))
            if not (np.all(units.decisive) and all(known)):
                event, detail = Event.NO_ORACLE, "no reference value"
    elif event is Event.FAILED and np.any(expected):
        detail = f"at {scene.name}, the whole batch failed because of an ill-conditioned block ({detail})"
        event = Event.NO_ORACLE
    return Evidence(
        scene.name, (), float(np.max(scene.condition, initial=1.0)), np.inf, decisive=decisive, event=event,
        detail=detail, demanding=demanding, dtype=scene.dtype, sizes=scene.sizes, **fields,
    )  # fmt: skip


def _errors_against_oracle(
    scene: Scene, value: Value, units: ErrorUnits, result: Parts, enclosing: Enclosing
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Compute the relative error of each block, and whether it is that against an enclosure; NaN without an oracle.

    Blocks that the factorised route does not accept are enclosed, the worst one first, until an enclosure confirms
    the error against that route.
    """
    scale, shape = scene.size(value), scene.shape
    reference, enclosed = scene.reference(value), np.zeros(shape, dtype=bool)
    if reference is None:
        errors, in_doubt = np.full(shape, np.inf), np.ones(shape, dtype=bool)
    else:
        errors = np.array(relative_to(scene.length(difference(result, reference)), scale))
        is_right = errors <= MAX_RATIO * units.gram - REFERENCE_ERROR * units.attainable
        in_doubt = np.array(~is_right & np.isfinite(errors))  # NaN and infinity are wrong, whatever is right.
        if enclosing == "never" or not (enclosing == "worst" or in_doubt.any()):
            return errors, enclosed
    order = np.argsort(np.where(in_doubt | (enclosing == "worst"), -errors, np.inf), axis=None, kind="stable")
    worst_first = order[: max(np.sum(in_doubt), enclosing == "worst")]
    distances = tuple(np.zeros_like(part) for part in result)
    for i in map(int, worst_first):
        block = tuple(map(int, np.unravel_index(i, shape)))
        enclosures, error = scene.enclosures(value, block), errors[block]
        errors[block], enclosed[block] = np.nan, enclosures is not None
        if enclosures is None:
            continue
        for distance, part, enclosure in zip(distances, result, enclosures, strict=True):
            gap = part[block] - enclosure.mid
            # Only what certainly lies outside of the enclosure counts; NaN stays NaN.
            distance[block] = np.sign(gap) * np.maximum(np.abs(gap) - enclosure.rad, 0.0)
        errors[block] = relative_to(scene.length(distances), scale)[block]
        tolerance = REFERENCE_ERROR * units.attainable[block] * (1.0 + error)
        is_confirmed = errors[block] == error or abs(errors[block] - error) <= tolerance
        if in_doubt[block] and reference is not None and is_confirmed:
            break
    return errors, enclosed


def relative_to(error: Array, scale: Array) -> Array:
    """Divide errors by scales; where the scale is zero, the quotient is 0 for a zero error, and 1e200 for any other.

    Examples
    --------
    >>> relative_to(np.array([1.0, 0.0, 1.0]), np.array([2.0, 0.0, 0.0]))
    array([5.e-001, 0.e+000, 1.e+200])
    """
    with np.errstate(all="ignore"):
        largest = np.where(np.isfinite(error), 1e200, error)
        return np.where(scale > 0.0, error / scale, np.where(error == 0.0, 0.0, largest))


def difference(x: Parts, y: Parts) -> Parts:
    """Return x − y, part by part.

    Examples
    --------
    >>> difference((np.ones(1), np.ones(2)), (np.ones(1), np.zeros(2)))
    (array([0.]), array([1., 1.]))
    """
    return tuple(a - b for a, b in zip(x, y, strict=True))
