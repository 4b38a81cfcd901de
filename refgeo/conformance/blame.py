"""What a wrong result looks like, and where: explanations that have been confirmed, or none.

An explanation never decides that something is wrong. Causes come before terms: the circumstances in which alone it is
wrong; that the backend remembers something; what the value is made of; a simple change of the right result; the formula
that the backend computes (`refgeo.conformance.reading`); where it is wrong (`refgeo.conformance.places`). Each is tried
at several failing points, or at fresh ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.call import Call, Event, NoResult
from refgeo.conformance.checks import Check
from refgeo.conformance.circumstances import BEFORE
from refgeo.conformance.evidence import DOUBTFUL, Evidence, beside, combination, hold, units
from refgeo.conformance.features import Features
from refgeo.conformance.laws import can_be_judged, look
from refgeo.conformance.operations import VALUES, Parts, Value
from refgeo.conformance.places import Place, blocks_in_words
from refgeo.conformance.points import Case, named
from refgeo.conformance.reading import Formula, functions_at, made_of, read_at, read_one, right_formula
from refgeo.conformance.scene import Scene
from refgeo.conformance.verdict import NOTHING, Explanation, Seen, Verdict
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import PAIR_METRICS, pair_metric
from refgeo.support.arguments import ENDS

NO_DIAGNOSIS = "no formula was found that gives these numbers"
_POINTS = 4
"""At so many failing points an explanation is tried, if there are so many."""
_REPEATS, _FRESH = 3, 80
_SINGLE, _NEARLY = 2.0**29, 1e-3
"""The roundoff of float32 beside that of float64; and how near such a result must be in any case."""
CANNOT_TELL = (NoResult, ValueError, ArithmeticError)
"""Why an explanation may fail: the backend gives nothing, or a formula has no value at its point."""
_SEEN = 0.01
"""What passes tells something of a mistake where rounding is at most so many times as large."""
_SMALL = 20_000
"""Numbers of a point that is called often."""
_NUMBERS = 4
"""So many numbers of a part at least."""
_CLEAR = 40.0
"""κ up to which formulas in double precision are accurate enough to compare with."""


class OutOfTime(Exception):
    """There is no time left to look for explanations."""


@dataclass
class Suspect:
    """A check of one metric that failed, with what was seen.

    Attributes
    ----------
    check : Check
    metric : str
    backend : Backend
    evidence : mapping of list of Evidence
        What was seen of every check, by its name.
    points : sequence of Case
    until : float
        When there is no time left, as ``time.monotonic`` says it.
    """

    check: Check
    metric: str
    backend: Backend
    evidence: MutableMapping[str, list[Evidence]]
    points: Sequence[Case]
    until: float

    @cached_property
    def seen(self) -> Seen:
        """What was seen of it."""
        return Seen(self.evidence[self.check.name])

    def look(self, scene: Scene) -> list[Evidence]:
        """What is seen at another point, plainly."""
        if time.monotonic() > self.until:
            raise OutOfTime
        return look(scene, self.value, self.backend.call) if can_be_judged(self.value, scene) else []

    def is_wrong(self, name: str) -> bool:
        """Whether another value is, too; one that was not asked for, at the points so far."""
        value = VALUES[name]
        if name not in self.evidence and self.backend.provides(value.operation.name):
            scenes = (one.make() for one in self.points)
            some = (look(one, value, self.backend.call) for one in scenes if one.can_be_enclosed(value))
            self.evidence[name] = [one for found in some for one in found]
        return Seen(self.evidence.get(name, [])).is_wrong

    @property
    def value(self) -> Value:
        """What is wrong."""
        assert self.check.value is not None
        return self.check.value

    @cached_property
    def plain(self) -> list[Evidence]:
        """What is wrong without any circumstance: values, or if no value is, laws."""
        wrong = [one for one in self.seen.wrong_evidence if not one.circumstance and np.isfinite(one.relative_error)]
        return [one for one in wrong if not one.law] or wrong

    @cached_property
    def failing(self) -> list[Scene]:
        """The points of that; where no numbers are wrong, those without numbers."""
        laws = bool(self.plain and self.plain[0].law)
        numbers = [one for one in self.seen.doubtful if bool(one.law) == laws] if self.plain else self.seen.failures
        return named(self.points, dict.fromkeys(one.case for one in numbers if not one.circumstance))

    @cached_property
    def place(self) -> Place:
        """Where to look for the place where it is wrong."""
        return Place(self.value, self.look, self.failing[0])

    @cached_property
    def passing(self) -> list[Scene]:
        """The decisive points that gave right numbers."""
        bad = {one.case for one in (*self.seen.doubtful, *self.seen.failures)}
        return named(self.points, dict.fromkeys(one.case for one in self.seen.decisive if one.case not in bad))


def explained(suspect: Suspect) -> Explanation:
    """What there is to say of a check that failed."""
    if suspect.check.kind not in ("value", "law") or not suspect.seen.is_wrong or suspect.check.value is None:
        return NOTHING
    with np.errstate(all="ignore"), suppress(*CANNOT_TELL, OutOfTime):
        return _beside_what_is_right(suspect, _explained(suspect))
    return NOTHING  # what fails has said why, in its row; files answer no new questions


def _beside_what_is_right(suspect: Suspect, found: Explanation) -> Explanation:
    """With the right formula of the metric for wrong numbers."""
    if suspect.check.kind == "law" or not suspect.plain or found.expected or found.excuse:
        return found
    right = right_formula(suspect.value.name, suspect.metric, suspect.failing[0].relaxation)
    return found if right is None else replace(found, expected=tuple(right.lines()))


def explained_once(scene: Scene, value: Value, backend: Backend) -> Explanation:
    """What there is to say of one wrong result."""
    with np.errstate(all="ignore"), suppress(*CANNOT_TELL):
        views = [_view(value, backend, scene)]
        simple = next((one for one in _simple(value, views) if _explains(one, views)), None)
        if simple is not None:
            return Explanation(simple[0])
        return _compared(read_at(value, [scene], [views[0].result]), value, scene)
    return NOTHING


def _explained(suspect: Suspect) -> Explanation:
    value, seen = suspect.value, suspect.seen
    if all(one.circumstance or one.law for one in seen.wrong_evidence):
        has_place = suspect.failing and suspect.plain and not all(map(bool, suspect.place.usual()))
        where = _place(suspect) if has_place else ""
        said = [where and f"wrong {where}", _circumstances(seen)]
        return Explanation("; ".join(filter(None, said)))
    if suspect.check.kind == "law" or not suspect.failing:
        return NOTHING
    guilty = [name for name in value.uses if suspect.is_wrong(name)]
    if guilty and not seen.failures and _inherits(suspect, guilty):
        text = f"this formula is right; the result is wrong only because it uses a wrong {' and '.join(guilty)}"
        return Explanation(text, excuse=Verdict.INHERITS)
    views = _views(value, suspect.backend, _telling(suspect.failing))
    where = ""
    with suppress(OutOfTime):
        found = _of_views(suspect, views) if views else NOTHING
        if found != NOTHING:
            return found
        where = _place(suspect) if seen.failures else ""
    if not seen.failures:
        return Explanation(_alone(suspect) or f"{NO_DIAGNOSIS}: {_entries(suspect)}")
    return Explanation(where and f"wrong {where}")


def _of_views(suspect: Suspect, views: list[View]) -> Explanation:
    value, backend = suspect.value, suspect.backend
    kept = _by_memory(suspect, views)
    if kept:
        return Explanation(kept, needs_others=True)
    ε = views[0].scene.relaxation
    if ε and _explains(("", _without_relaxation), views):
        return Explanation(f"your result is that of ε = 0, not of ε = {ε:g}")
    if _are_in_single(views):
        in_double = [one for one in suspect.passing if one.dtype == "float64" and _could_be_wrong(suspect, one, None)]
        where = (_place(suspect) or "at some points") if in_double else ""
        single = "your numbers are those of float32, and right to its precision: compute in float64, or judge the "
        single += "function with --dtype float32"
        return _only(where, Explanation(single)) if where else Explanation(single)
    least = min(_distance(one.result, one.right) for one in views)
    others = _views(value, backend, _telling([one for one in suspect.passing if one.is_plain]))
    others = [one for one in others if one.rounding <= _SEEN * least]
    simple = next((one for one in _simple(value, views) if _explains(one, views)), None)
    if simple is not None and _explains(simple, others):
        return Explanation(simple[0])
    usual = suspect.place.usual()
    is_everywhere = True in usual and False not in usual  # what passes at a generic point has the right formula there
    if is_everywhere and not (others and (simple is not None or _is_refuted(value, views, others))):
        read = _read(value, backend, suspect.failing[0])
        if read != NOTHING:
            return _only("in float32 only", read) if _is_of_single(suspect) else read
    where = _place(suspect)
    there = _there(suspect, views, simple)
    where = where or (f"at some points, such as {views[0].scene.name}" if there != NOTHING else "")
    return _only(where, there) if where else NOTHING


def _there(suspect: Suspect, views: list[View], simple: Candidate | None) -> Explanation:
    """What explains the failing points, and fresh wrong ones, which vary everything else."""
    place, wrong = suspect.place, [one.scene.features for one in views if one.scene.features is not None]
    nearby = place.confirmed or place.failing_near(wrong)
    fresh = _telling([suspect.failing[0].fresh(one) for one in nearby], count=2 * _POINTS)
    more = _views(suspect.value, suspect.backend, fresh)
    if simple is not None:
        return Explanation(simple[0]) if _explains(simple, more) else NOTHING
    every = sorted(more + views, key=lambda one: one.scene.point.sizes[2] == 1)
    read = read_at(suspect.value, [one.scene for one in every], [one.result for one in every])
    return _compared(read, suspect.value, every[0].scene)


def _only(where: str, found: Explanation) -> Explanation:
    """An explanation of what is wrong somewhere."""
    return replace(found, text="; there, ".join(filter(None, (f"wrong {where}", found.text))))


def _circumstances(seen: Seen) -> str:
    """In words, which laws do not hold, and the circumstances in which alone something is wrong, everywhere or not."""
    found = seen.wrong_evidence
    laws = list(dict.fromkeys(one.law for one in found if one.law and not one.circumstance))
    words = list(dict.fromkeys(one.circumstance for one in found if one.circumstance))
    shown = words[:3] + ([f"and in {len(words) - 3} more circumstances"] if len(words) > 3 else [])
    said = [f"does not obey: {'; '.join(laws)}"] if laws else []
    somewhere = any(one.circumstance in words and not one.is_doubtful for one in seen.decisive)
    where = "at other points, right" if laws else "at some points, right" if somewhere else "right"
    return "; ".join(said + [f"{where} in a plain call, and wrong {'; '.join(shown)}"] * bool(words))


# What explanations rest on -------------------------------------------------------------------------------------------


def _telling(scenes: Sequence[Scene], count: int = _POINTS) -> list[Scene]:
    """A few points: large enough that explanations do not coincide, well conditioned, and different."""
    clear = [one for one in scenes if float(np.max(one.condition)) <= _CLEAR and one.entries <= _SMALL]
    ranked = sorted(clear or scenes[:1], key=lambda one: one.point.sizes[2] == 1)
    first = {(one.point.sizes, one.t): one for one in reversed(ranked) if one.dtype == ranked[0].dtype}
    return [*first.values()][::-1][:count]


@dataclass
class View:
    """One point: what the backend gave, what is right, and how closely numbers must agree."""

    scene: Scene
    value: Value
    result: Parts
    right: Parts
    rounding: float

    @property
    def error(self) -> float:
        """Beside the natural size of the result, that of its terms before they cancel."""
        apart = self.scene.length(combination((1.0, self.result), (-1.0, self.right)))
        return float(np.max(beside(apart, self.scene.size(self.value)), initial=0.0))

    @property
    def tolerance(self) -> float:
        """How far an explanation may be from the result, relatively: not as far as what is right."""
        return max(min(self.rounding, _SEEN * _distance(self.result, self.right)), 1e-12)


def _right(scene: Scene, value: Value) -> Parts:
    right = scene.reference(value)
    if right is None:
        raise ValueError("no reference")
    return right


def _view(value: Value, backend: Backend, scene: Scene) -> View:
    right = _right(scene, value)
    rounding = float(np.max(4 * DOUBTFUL * units(scene, value).gram))
    return View(scene, value, tuple(backend.call(scene.call(value)).result()), right, rounding)


def _views(value: Value, backend: Backend, scenes: Iterable[Scene]) -> list[View]:
    """Those of the points that can be evaluated."""
    found = []
    for scene in scenes:
        with suppress(*CANNOT_TELL):
            found.append(_view(value, backend, scene))
    return found


def _distance(result: Parts, candidate: Parts) -> float:
    """Relative, part by part and block by block, so that a wrong part cannot hide behind a large one."""
    worst = 0.0
    for one, other in zip(result, candidate, strict=True):
        if one.shape != other.shape or not np.isfinite(other).all() or not np.isfinite(one).all():
            return np.inf
        axes = (-2, -1) if one.ndim > 1 and len(result) == 2 else None
        size, difference = np.linalg.norm(other, axis=axes), np.linalg.norm(one - other, axis=axes)
        ratio = np.where(size > 0, difference / np.where(size > 0, size, 1.0), (difference > 0) * 1.0)
        worst = max(worst, float(np.max(ratio, initial=0.0)))
    return worst


Candidate = tuple[str, Callable[[View], Parts]]
"""What it is called, and what it says the result is."""


def _explains(candidate: Candidate, views: Sequence[View]) -> bool:
    """Whether it gives what the backend gives."""
    with suppress(*CANNOT_TELL):  # such as the other metric's geodesic, where nothing encloses it
        return all(_distance(one.result, candidate[1](one)) <= one.tolerance for one in views)
    return False


# Memory --------------------------------------------------------------------------------------------------------------


def _is_right(suspect: Suspect, backend: Backend, scene: Scene, *before: Call) -> bool:
    """Whether a plain call is right, when it is made again, or after other calls."""
    found = hold(scene, suspect.value, backend.call(scene.call(suspect.value).after(*before)))
    return not any(one.is_off for one in found)


def _by_memory(suspect: Suspect, views: Sequence[View]) -> str:
    """Called again, and called first thing in a new process."""
    scenes = [one.scene for one in views]
    again = [[_is_right(suspect, suspect.backend, scene) for _ in range(_REPEATS)] for scene in scenes]
    if all(map(all, again)):
        return (
            "the result is right when refgeo calls the function again with the same input: so it depends on earlier "
            "calls, or on chance"
        )
    if any(map(any, again)):
        return (
            "for the same input, the result is sometimes right and sometimes wrong: so it depends on earlier calls, or "
            "on chance"
        )
    for _ in range(_REPEATS):
        with suspect.backend.isolated() as fresh:
            if fresh is suspect.backend or not _is_right(suspect, fresh, scenes[0]):
                return ""
    for words, before in (BEFORE[name] for name in ("metric", "dtype", "order", "function")):
        earlier = before(scenes[0], suspect.value)
        with suspect.backend.isolated() as fresh:
            if earlier is not None and not _is_right(suspect, fresh, scenes[0], earlier):
                return f"right if this call is the first one, and wrong after {words}"
    return (
        "the result is right if this call is the first one: your function keeps something from earlier calls, such "
        "as a cache"
    )


# A simple change -----------------------------------------------------------------------------------------------------


def _simple(value: Value, views: Sequence[View]) -> Iterator[Candidate]:
    """The right result, but of the other metric, exchanged, transposed, or times a factor."""
    count = len(views[0].right)
    if views[0].scene.metric in ENDS:
        other = views[0].scene.other_metric
        yield f"your result is that of the metric {other}", lambda view: _right(view.scene.in_metric(other), value)
    if count == 2:
        yield "the G and H parts of your result are swapped", lambda view: view.right[::-1]
        yield (
            "your result is transposed",
            lambda view: tuple(x if 1 in x.shape[-2:] else x.mT for x in view.right),
        )
    if sum(part.size for one in views for part in one.right) < _NUMBERS * count:  # a fit to few numbers proves nothing
        return
    fits = [
        [float(np.vdot(x, y) / max(float(np.vdot(x, x)), 1e-300)) for x, y in zip(one.right, one.result, strict=True)]
        for one in views
    ]
    factors = list(map(float, np.median(fits, axis=0)))
    words = [f"{factor:.6g} times the right one" if factor else "zero" for factor in factors]
    named = (f"the {'GH'[i]} part of your result is {words[i]}" for i in range(count) if abs(factors[i] - 1.0) > 1e-6)
    text = f"your result is {words[0]}" if len(set(words)) == 1 else "; ".join(named)
    yield text, lambda view: tuple(factor * part for factor, part in zip(factors, view.right, strict=True))
    if count == 1:
        yield from _factors_of_the_shape(views)


def _are_in_single(views: Sequence[View]) -> bool:
    """Whether all results have only the digits of float32, and these are right."""
    plain = [one for one in views if one.scene.dtype == "float64"]
    few = sum(part.size for one in plain for part in one.right) < _NUMBERS
    with np.errstate(over="ignore"):
        rounded = all(np.array_equal(x, x.astype(np.float32)) for one in plain for x in one.result)
    near = (one.error <= min(one.rounding * _SINGLE, _NEARLY) for one in plain)
    return not few and rounded and all(near)


def _without_relaxation(view: View) -> Parts:
    return _right(replace(view.scene, space=pair_metric(view.scene.metric).at(view.scene.point)), view.value)


def _factors_of_the_shape(views: Sequence[View]) -> Iterator[Candidate]:
    """A number times h^-½, 1/(nh) and the like: means in the place of sums."""
    for n, m, h in ((0, 0, -0.5), (0, 0, -1), (0, 0, 0.5), (0, 0, 1), (-1, 0, -1), (0, -1, -1), (-1, 0, 0), (0, -1, 0),
                    (-0.5, 0, -0.5)):  # fmt: skip

        def factor(view: View, powers: tuple[float, ...] = (n, m, h)) -> float:
            return float(np.prod([size**p for size, p in zip(view.scene.point.sizes, powers, strict=True)]))

        c = float(np.median([np.vdot(v.right[0], v.result[0]) / max(float(np.vdot(v.right[0], v.right[0])), 1e-300)
                             / factor(v) for v in views]))  # fmt: skip
        if abs(c - 1.0) < 1e-6:
            powers = [f"{name}^{p:g}" for name, p in zip("nmh", (n, m, h), strict=True) if p]
            yield f"your result is {' '.join(powers)} times the right one", partial(_times, factor)


def _times(factor: Callable[[View], float], view: View) -> Parts:
    return tuple(factor(view) * part for part in view.right)


# What a value is made of ---------------------------------------------------------------------------------------------


def _inherits(suspect: Suspect, guilty: Sequence[str]) -> bool:
    """Whether the value at all failing points, and at fresh ones, is what the backend's own wrong functions give, and
    the right others.
    """
    value, failing = suspect.value, suspect.failing
    fresh = [one.fresh(replace(one.features, draw=_FRESH)) for one in failing[:_POINTS] if one.features is not None]
    scenes = [*failing, *fresh]
    if value.order is None and failing[0].metric not in PAIR_METRICS:
        return False
    for raises_all in (True, False):  # for a Hessian there are two ways to raise an index: with its own gradient or not
        with np.errstate(all="ignore"), suppress(*CANNOT_TELL):
            views = (_view(value, suspect.backend, scene) for scene in scenes)
            made = ((one, _made(value, suspect.backend, one.scene, guilty, raises_all)) for one in views)
            if all(_distance(one.result, parts) <= one.rounding for one, parts in made):
                return True
    return False


def _made(value: Value, backend: Backend, scene: Scene, guilty: Sequence[str], raises_all: bool) -> Parts:
    """A value made of other values: the backend's own where these are wrong."""
    from refgeo.conformance.precision import representable

    def own(name: str, *vectors: Pair) -> Pair:
        if name not in guilty:
            return plainly(name, *vectors)
        pairs = [representable(v, scene.dtype) for v in vectors]
        return Pair.unchecked(*backend.call(scene.call(VALUES[name], pairs)).result())

    plainly, operation, point = functions_at(scene.space), value.operation, scene.point
    vectors = dict(zip(operation.vectors, scene.inputs(operation), strict=True))
    pieces = made_of(operation, scene.metric, point, vectors, own, own if raises_all else plainly)
    if value.order == 2:
        (bend,) = pieces.values()
        return tuple(point + scene.t * vectors["v"] - 0.5 * scene.t**2 * bend)
    return tuple(own("horizontal_projection", sum(pieces.values(), 0.0 * point)))


# The formula, the place ----------------------------------------------------------------------------------------------


def _read(value: Value, backend: Backend, scene: Scene) -> Explanation:
    """The formula that the backend computes, beside the right one; in float64 if it takes it, which shows most."""
    for dtype in dict.fromkeys(("float64", scene.dtype)):
        with suppress(*CANNOT_TELL):
            found = _compared(read_one(backend, value.name, scene.metric, dtype, scene.relaxation), value, scene)
            if found != NOTHING:
                return found
    return NOTHING


def _is_refuted(value: Value, views: list[View], others: list[View]) -> bool:
    """Whether one formula gives the results at the failing points, and not those at points that are right."""

    def is_read(some: list[View]) -> bool:
        return read_at(value, [one.scene for one in some], [one.result for one in some]) is not None

    return is_read(views) and not is_read(views + others)


def _compared(mine: Formula | None, value: Value, scene: Scene) -> Explanation:
    """A formula beside the right one, if it is another."""
    right = right_formula(value.name, scene.metric, scene.relaxation)
    if mine is None or mine == right:
        return NOTHING
    note, yours = f"read {mine.note}" if mine.note else "", tuple(mine.lines())
    return Explanation(note, yours) if right is None else Explanation(
        note, yours, tuple(right.lines()), mine.differs(right))  # fmt: skip


def _place(suspect: Suspect) -> str:
    """Where it is wrong, part by part and block by block, whatever the dtype."""
    part = _part(suspect)
    wrong = [one.features for one in suspect.failing if one.features is not None]
    right = [
        one.features for one in suspect.passing if one.features is not None and _could_be_wrong(suspect, one, part)
    ]
    words = []
    if _is_of_single(suspect):
        words += ["at some points"] * any(one.single for one in right) + ["in float32 only"]
    else:
        blocks, where = _blocks(suspect), suspect.place.find(wrong, right)
        elsewhere = not where and any(math.prod(one.shape) > 1 for one in suspect.passing)
        words += filter(None, ["at some points" * bool(blocks and elsewhere), blocks, where and f"where {where}"])
    return ", ".join([*words, f"in the {'GH'[part]} part alone"] if words and part is not None else words)


def _is_of_single(suspect: Suspect) -> bool:
    """Whether float32 alone is wrong: nothing else failed, and points with nothing special pass in float64."""
    return all(one.features and one.features.single for one in suspect.failing) and suspect.place.passes_in_double()


def _could_be_wrong(suspect: Suspect, scene: Scene, part: int | None) -> bool:
    """Whether a mistake like those seen would show: the right result, or this part of it, is not next to nothing beside
    its terms in any block, and rounding is less than the mistakes.
    """
    value, reference = suspect.value, scene.reference(suspect.value)
    least = min((one.relative_error for one in suspect.plain), default=np.inf)
    if DOUBTFUL * float(np.max(units(scene, value).gram)) > 0.1 * least:
        return False
    if reference is None:
        return True
    some = reference if part is None else tuple(x * (i == part) for i, x in enumerate(reference))
    return bool(np.all(scene.length(some) > 1e-6 * scene.size(value)))


def _part(suspect: Suspect) -> int | None:
    """Which part is wrong, if the other one is right at all failing points."""
    wrong = np.zeros(2, dtype=bool)
    for view in _views(suspect.value, suspect.backend, _some(suspect.failing)):
        if len(view.right) != 2:
            return None
        wrong |= [_distance((x,), (y,)) > view.rounding for x, y in zip(view.result, view.right, strict=True)]
    return None if wrong.all() or not wrong.any() else int(np.argmax(wrong))


def _blocks(suspect: Suspect) -> str:
    """Which blocks of batches are wrong, where that is the same in all."""
    outcomes = []
    for scene in suspect.failing:
        told = [one for one in suspect.seen.of(Event.RESULT, Event.FAILED) if one.decisive and not one.circumstance]
        found = [one for one in told if one.case == scene.name]
        count = math.prod(scene.shape)
        if count < 2 or not all(one.block for one in found):
            return ""
        flat = [int(np.ravel_multi_index(one.block, scene.shape)) for one in found]
        outcomes += [(i, count, one.is_doubtful) for i, one in zip(flat, found, strict=True)]
    return blocks_in_words(outcomes)


def _alone(suspect: Suspect) -> str:
    """Whether blocks are right alone that are wrong in their batch, in words; empty if something alone is wrong, also
    where it has as many numbers as a batch.
    """
    if not all(one.shape for one in suspect.failing):
        return ""
    batches = _some(suspect.failing)
    alone = [one.changed(itemgetter(block)) for one in batches for block in _some([*np.ndindex(one.shape)])]
    sizes = [(*one.point.sizes, math.prod(one.shape)) for one in batches]
    alone += [one.fresh(Features((), n * count, m, h)) for one, (n, m, h, count) in zip(batches, sizes, strict=True)]
    if not all(_is_right(suspect, suspect.backend, one) for one in alone):
        return ""
    somewhere = "at some points, " * any(math.prod(one.shape) > 1 for one in suspect.passing)
    return (
        f"{somewhere}in a batch, the results are not those of its blocks: {len(alone)} blocks were tried, and each of "
        f"them is right when your function gets it alone ({_entries(suspect)})"
    )


def _some(all_of: Sequence[Any]) -> Sequence[Any]:
    """A few of them, from the first to the last."""
    return all_of[:: -(-len(all_of) // _POINTS)]


def _entries(suspect: Suspect) -> str:
    """A wrong result beside the right one, and the point that is right and most like it."""
    examples = {one.case: one for one in reversed(suspect.plain)}
    example, beside = suspect.plain[0], ""
    telling = [one for one in suspect.passing if _could_be_wrong(suspect, one, None)]
    named = [[one for one in some if one.features] for some in (suspect.failing, telling)]
    pairs = [(one, other) for one in named[0] if one.name in examples for other in named[1]]
    if pairs:
        wrong, right = min(pairs, key=lambda pair: _apart(*pair))
        example, beside = examples[wrong.name], f"right in {right.name}; "
    scene = next(one for one in suspect.failing if one.name == example.case)
    return beside + worst_entries(suspect.value, suspect.backend, scene, example.block)


def _apart(one: Scene, other: Scene) -> float:
    return one.features.distance(other.features) if one.features and other.features else math.inf


def worst_entries(value: Value, backend: Backend, scene: Scene, block: tuple[int, ...]) -> str:
    """Of each part of a wrong result the entry that is furthest from the right one, or that the part is right."""
    said = []
    enclosures = scene.enclosures(value, block) or ()
    try:
        results = [part[block] for part in backend.call(scene.call(value)).result()]
    except NoResult:
        return "the function fails if it is called again"
    with np.errstate(all="ignore"):
        distances = [np.abs(part - right.mid) for part, right in zip(results, enclosures, strict=True)]
    for name, part, right, distance in zip("GH", results, enclosures, distances, strict=False):
        at = np.unravel_index(np.argmax(distance), distance.shape)
        entry = f"{name}[{', '.join(map(str, at))}]" if at else "it"
        is_right = np.max(distance) <= 1e-6 * max(map(np.max, distances))
        digits = 17 if distance[at] < 1e-6 * abs(right.mid[at]) else 8
        shown = f"{entry} is {part[at]:.{digits}g} and not {right.mid[at]:.{digits}g}"
        said.append(f"{name} is right" if is_right else shown)
    return f"in {scene.name}{list(block) or ''} {', '.join(said)}"
