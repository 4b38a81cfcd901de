r"""What was seen: an answer held against what is known, in units of what rounding alone must be expected to do.

An error is measured in the metric itself (its length at the base point), beside the natural size of the result:

    ratio = error / (size · u · √max(n, m) · κᵖ),

u the unit roundoff of the backend's dtype, κ the larger condition number of G and H, and p the power that a route over
Gram matrices loses in that metric (`refgeo.conformance.operations`): S = GᵀG squares κ, and the Sylvester equation of
inv or a product of several such matrices squares it again. Sums over the rows add up √n roundings; of two vectors that
are not as long as each other, a route by polarisation rounds the longer one. A route that is factorised, and bilinear
where the result is, loses κ alone (*attainable*).

A verdict rests on *decisive* evidence: rounding, even that of a route which is numerically as bad as an explicit
inverse of the h²×h² system (it may lose κ^{3p/2}) or of a Gram matrix by cofactors (κ(S)² = κ⁴), leaves something to
tell there, and no product leaves the range of the dtype. In double precision that is κ ≤ 350 for a projection, and
some thousands for a gradient. Cofactors may lose κ^min(2p, 4) and be right; a thousandth of that stands in the place
of κᵖ where it is more, so that no such loss is WRONG. The ratios of right implementations are then below 17, as far as
has been seen (``python -m validation implementations``).

*Floats acquit, balls accuse.* A result that is within the threshold of the factorised route, less that route's own
error, is right. An enclosure is computed for the first block of every small point, and wherever the factorised route
does not acquit. Lengths are computed in double precision by the factorised geometry; that affects the unit in which an
error is expressed (by rounding), never the expected value, which comes from `refgeo.exact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.call import Answer, Event
from refgeo.conformance.operations import VALUES, Parts, Value
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.scene import Scene
from refgeo.support.arguments import Array

DOUBTFUL = 30.0
"""Above this ratio a row is *inaccurate*, which is a finding and passes."""
MANY_TIMES, SEVERAL = 100.0, 3
"""Above this ratio at so many points, different ones, it is WRONG; so it is"""
BEYOND_DOUBT = 1000.0
"""above this ratio at one."""
NO_NUMBER = "returned NaN or infinity"
OWN = 12.0
"""The factorised route's own error is below so many of what is attainable; 3.2 is the largest that has been seen."""
_MANY_BLOCKS = 64
"""Of more blocks in one batch, those that nothing is to be said of are not listed one by one."""
INTEGRATED = 100.0
"""Most exact geodesics are integrated, and no integrator works to the last digits: their unit is so much wider."""


@dataclass(frozen=True)
class Evidence:
    """What was seen of one block of one call.

    Attributes
    ----------
    case : str
        The test point.
    block : tuple of int
    condition : float
        κ, the larger condition number of the factors; of a search the radius, of a trajectory the step.
    relative_error : float
        Beside the natural size of the result; infinite where there was no usable result.
    attainable, gram : float
        The relative errors of ratio 1: of a factorised route, and with Gram matrices.
    decisive : bool
        Whether the verdict rests on it.
    event : Event
        What came.
    said : str
        Of anything but a result, in words.
    circumstance : str
        What was not as usual with the call, in words. A wrong result has one only if the plain call is right.
    law : str
        What had to hold, where no right result is known.
    demanding : bool
        Whether somebody right may run out of time or memory there.
    enclosed : bool
        Whether the error is against an enclosure; else against the factorised route, which acquits.
    dtype : str
    about : str
        Of conduct, the function.
    blocks : int
        For so many blocks it stands, itself included.
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
    said: str = ""
    circumstance: str = ""
    law: str = ""
    demanding: bool = False
    enclosed: bool = False
    dtype: str = "float64"
    about: str = ""
    blocks: int = 1
    sizes: tuple[int, ...] = ()

    @property
    def ratio(self) -> float:
        """The error in units of what Gram matrices cost."""
        return self.relative_error / self.gram

    @property
    def attainable_ratio(self) -> float:
        """The error in units of what a factorised route costs."""
        return self.relative_error / self.attainable

    @property
    def is_doubtful(self) -> bool:
        """Whether it says that something is not right: no result, or one that is off by more than is usual."""
        failed = self.event in (Event.FAILED, Event.SWALLOWED)
        return self.decisive and (failed or (self.event is Event.RESULT and self.is_off))

    @property
    def is_off(self) -> bool:
        """Whether its number is further from right than is usual."""
        return not self.ratio <= DOUBTFUL

    @property
    def is_far_off(self) -> bool:
        """Whether several like it are WRONG."""
        return self.decisive and self.event is Event.RESULT and self.ratio > MANY_TIMES

    @property
    def digits(self) -> float:
        """Decimal digits that are right, at most those of the dtype."""
        most = -np.log10(PRECISIONS[self.dtype].roundoff)
        return float(np.clip(-np.log10(max(self.relative_error, 1e-300)), 0.0, most))

    @property
    def place(self) -> str:
        """The test point, the block, and the circumstance or law."""
        return ", ".join(filter(None, (str(self), self.circumstance, self.law)))

    def __str__(self) -> str:
        return self.case + (f"[{','.join(map(str, self.block))}]" if self.block else "")


@dataclass(frozen=True)
class Units:
    """What rounding does to a result at a point, relative to its size, per block: what ratios are measured in.

    Attributes
    ----------
    gram, attainable : ndarray
        With Gram matrices; by a factorised and bilinear route, where numbers stay in the dtype's range.
    decisive : ndarray of bool
        Where a verdict can rest on it.
    """

    gram: Array
    attainable: Array
    decisive: npt.NDArray[np.bool_]


def units(scene: Scene, value: Value, scale: float | None = None, roundoff_power: float = 1.0) -> Units:
    """The units of a value at a point; wider by `scale`, with another power of u where differences are taken.

    Examples
    --------
    >>> from refgeo.conformance.features import Features
    >>> from refgeo.conformance.scene import build
    >>> bool(units(build(Features(h=2), "inv", "float64"), VALUES["christoffel"]).gram < 1e-13)
    True
    """
    scale = scale or (INTEGRATED if value.order == "exact" else 1.0)

    def made() -> Units:
        power = value.loss(scene.metric, scene.relaxation)
        by_cofactors = min(2.0 * power, 4.0)
        rounding = scale * scene.precision.roundoff**roundoff_power * max(scene.point.sizes[:2]) ** 0.5
        # a route that combines both vectors before it multiplies (by polarisation) rounds the longer one
        spread = scene.spread if value.operation.sources == ("a", "b") else 1.0
        in_range = scene.is_in_range(max(2.0 + power, 2.0 * power))  # norms square products of so many factors
        with np.errstate(over="ignore"):
            lost = {p: spread * rounding * scene.condition**p for p in (power, by_cofactors, 1.5 * power)}
            gram = np.asarray(np.maximum(lost[power], lost[by_cofactors] / BEYOND_DOUBT))
            far = np.maximum(lost[by_cofactors], lost[1.5 * power])
        attainable = np.where(in_range, rounding * scene.condition, np.inf)
        return Units(gram, attainable, np.asarray(in_range & (far <= 1.0) & (MANY_TIMES * gram <= 1.0)))

    found: Units = scene.kept(("units", value.name, scale, roundoff_power), made)
    return found


def result_is_expected(scene: Scene) -> npt.NDArray[np.bool_]:
    """Per block, whether an exception is a failure: where even inv's projection, which loses most, is decisive.

    Examples
    --------
    >>> from refgeo.conformance.features import Features
    >>> from refgeo.conformance.scene import build
    >>> bool(result_is_expected(build(Features(condition_G=1e6), "inv", "float64")))
    False
    """
    return units(scene, _LOSES_MOST).decisive


_LOSES_MOST = replace(
    VALUES["horizontal_projection"], name="what loses most",
    loss=lambda *_: VALUES["horizontal_projection"].loss("inv", 0.0),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What was seen of one check, and what there is to say of it."""

    evidence: list[Evidence]
    message: str = ""


def no_rounding_explains(found: Iterable[Evidence]) -> bool:
    """Whether numbers are WRONG: one ratio beyond doubt, or several points that agree.

    Examples
    --------
    >>> no_rounding_explains([Evidence("a", relative_error=1e4)]), no_rounding_explains([Evidence("a")])
    (True, False)
    """
    far = [one for one in found if one.is_far_off]
    several = len({(one.case, one.about) for one in far}) >= SEVERAL
    return several or any(one.ratio > BEYOND_DOUBT for one in far)


def compare(scene: Scene, value: Value, answer: Answer, **more: Any) -> Iterator[Evidence]:
    """Compare an answer with the right result, block by block."""
    if answer.failure is not None:
        yield from _of_failure(scene, value, answer, **more)
        return
    with np.errstate(all="ignore"):  # infinities are judged, not warned of
        errors, enclosed = _errors(scene, value, tuple(answer.parts))
    yield from measured(scene, units(scene, value), errors, enclosed, **more)


def measured(
    scene: Scene, unit: Units, errors: Array, enclosed: npt.NDArray[np.bool_] | None = None, **more: Any
) -> Iterator[Evidence]:
    """Relative errors, one a block: infinite where there was no number, NaN where none is known."""
    expected = result_is_expected(scene)
    for block, alike in _telling(errors, unit, enclosed):
        error, decisive = float(errors[block]), bool(unit.decisive[block])
        event, said = Event.RESULT, ""
        if np.isnan(error):
            event, said = Event.UNKNOWN, "no reference value"
        elif np.isinf(error):
            event, said, decisive = Event.FAILED, NO_NUMBER, decisive and bool(expected[block])
        yield Evidence(
            scene.name, block, float(scene.condition[block]), error, float(unit.attainable[block]),
            float(unit.gram[block]), decisive, event, said,
            enclosed=enclosed is not None and bool(enclosed[block]), dtype=scene.dtype, blocks=1 + alike,
            sizes=scene.sizes, **more,
        )  # fmt: skip


def _telling(
    errors: Array, unit: Units, enclosed: npt.NDArray[np.bool_] | None
) -> Iterator[tuple[tuple[int, ...], int]]:
    """All blocks; of many those that are enclosed or not acquitted, and the worst other one in the name of the rest.

    Each comes with the number of blocks for which it stands.
    """
    tells = np.ones(errors.shape, dtype=bool)
    if errors.size > _MANY_BLOCKS:
        with np.errstate(all="ignore"):
            ratios = errors / unit.gram
        tells = ~(ratios <= DOUBTFUL) | (False if enclosed is None else enclosed)
        if not tells.all():
            worst = np.unravel_index(np.argmax(np.where(tells, -1.0, ratios)), errors.shape)
            yield tuple(map(int, worst)), int(np.sum(~tells)) - 1
    for block in np.ndindex(errors.shape):
        if tells[block]:
            yield block, 0


def _of_failure(scene: Scene, value: Value, answer: Answer, demanding: bool = False, **more: Any) -> Iterator[Evidence]:
    """A failure counts where values can be expected; where none can in some block, the others go unjudged with it:
    it is ill-conditioned, or has no enclosure, such as a geodesic beyond the end of the manifold.
    """
    assert answer.failure is not None
    event, said = answer.failure.event, str(answer.failure)
    expected = units(scene, value).decisive & result_is_expected(scene)
    decisive = bool(np.all(expected))
    if event in (Event.FAILED, Event.SWALLOWED) and decisive:
        if value.order == "exact" and scene.can_be_enclosed(value):  # all other orders have enclosures
            known = (scene.enclosures(value, block) is not None for block in np.ndindex(scene.shape))
            event, said = (event, said) if all(known) else (Event.UNKNOWN, "no reference value")
    elif event is Event.FAILED and np.any(expected):
        said = f"at {scene.name}, the whole batch failed because of an ill-conditioned block ({said})"
        event = Event.UNKNOWN
    yield Evidence(
        scene.name, (), float(np.max(scene.condition, initial=1.0)), np.inf, decisive=decisive, event=event, said=said,
        demanding=demanding, dtype=scene.dtype, sizes=scene.sizes, **more,
    )  # fmt: skip


def _errors(scene: Scene, value: Value, result: Parts) -> tuple[Array, npt.NDArray[np.bool_]]:
    """How far a result lies from the truth, per block, beside its natural size; NaN where the truth is not known.

    Blocks that the factorised route does not acquit are enclosed, the worst one first, until an enclosure confirms
    what that route says of them.
    """
    unit, size, shape = units(scene, value), scene.size(value), scene.shape
    errors, doubted, enclosed = np.full(shape, np.inf), np.ones(shape, dtype=bool), np.zeros(shape, dtype=bool)
    reference = scene.reference(value)
    if reference is not None:
        errors = np.array(beside(scene.length(combination((1.0, result), (-1.0, reference))), size))
        is_right = errors <= DOUBTFUL * unit.gram - OWN * unit.attainable
        doubted = np.array(~is_right & np.isfinite(errors))  # what is no number is wrong, whatever is right
    worst_first = np.argsort(np.where(doubted, -errors, np.inf), axis=None, kind="stable")[: np.sum(doubted)]
    distances = tuple(np.zeros_like(part) for part in result)
    for i in dict.fromkeys([*range(scene.is_small), *map(int, worst_first)]):
        block = tuple(map(int, np.unravel_index(i, shape)))
        enclosures, said = scene.enclosures(value, block), errors[block]
        errors[block], enclosed[block] = np.nan, enclosures is not None
        if enclosures is None:
            continue
        for distance, part, enclosure in zip(distances, result, enclosures, strict=True):
            difference = part[block] - enclosure.mid
            # Only what certainly lies outside counts; NaN stays NaN.
            distance[block] = np.sign(difference) * np.maximum(np.abs(difference) - enclosure.rad, 0.0)
        errors[block] = beside(scene.length(distances), size)[block]
        own = OWN * unit.attainable[block] * (1.0 + said)
        if doubted[block] and reference is not None and (errors[block] == said or abs(errors[block] - said) <= own):
            break
    return errors, enclosed


def beside(error: Array, size: Array) -> Array:
    """Error / size; where the size is zero nothing but zero is right, and any other number is as wrong as can be.

    Examples
    --------
    >>> beside(np.array([1.0, 0.0, 1.0]), np.array([2.0, 0.0, 0.0]))
    array([5.e-001, 0.e+000, 1.e+200])
    """
    with np.errstate(all="ignore"):
        hopeless = np.where(np.isfinite(error), 1e200, error)
        return np.where(size > 0.0, error / size, np.where(error == 0.0, 0.0, hopeless))


def combination(*terms: tuple[Any, Parts]) -> Parts:
    """Σ cᵢ xᵢ of results, which may contain NaN.

    Examples
    --------
    >>> combination((2.0, (np.ones(1), np.ones(2))), (-1.0, (np.ones(1), np.zeros(2))))
    (array([1.]), array([2., 2.]))
    """
    count, total = len(terms[0][1]), list[Array]()
    for c, parts in terms:
        scaled = [(c if count == 1 else blockwise(c)) * part for part in parts]
        total = [np.asarray(x + y) for x, y in zip(total, scaled, strict=True)] if total else scaled
    return tuple(total)


def blockwise(scalar: Any) -> Any:
    """One number a block, to multiply its arrays by.

    Examples
    --------
    >>> blockwise([2.0, 3.0]).shape
    (2, 1, 1)
    """
    scalar = np.asarray(scalar)
    return scalar[..., None, None] if scalar.ndim else scalar
