"""What a wrong result looks like, and where: explanations that have been confirmed, or none.

A diagnosis never decides that something is wrong. It says that the backend remembers something; that its result is the
right one up to a factor, exchanged or transposed; which formula it computes (`refgeo.conformance.reading`); or where it
is wrong (`refgeo.conformance.places`). Each is tried at several failing points, or at fresh ones, first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from refgeo import formulas
from refgeo.conformance import places
from refgeo.conformance.backend import Backend
from refgeo.conformance.case import Case
from refgeo.conformance.checks import DOUBTFUL, VALUE_CHECKS, Check
from refgeo.conformance.host import BackendFailure
from refgeo.conformance.reading import read_one, right_formula
from refgeo.conformance.recipes import Recipe, build
from refgeo.conformance.trial import Trial, combination
from refgeo.metrics.pair import PAIR_METRICS
from refgeo.operations import OPERATIONS, Parts, Value
from refgeo.pair import Pair

NO_DIAGNOSIS = "no formula gives these numbers"
_POINTS = 4
"""At so many failing points an explanation is tried, if there are so many."""
_REPEATS = 3
CANNOT_TELL = (BackendFailure, NotImplementedError, ValueError, ArithmeticError)
"""Why a diagnosis may fail: the backend gives nothing, or a formula has no value at its point."""
_SMALL = 20_000
"""Numbers of a point that is called often."""
_CLEAR = 40.0
"""κ up to which formulas in double precision are accurate enough to compare with."""


@dataclass(frozen=True)
class Diagnosis:
    """What is to be said of a wrong value.

    Attributes
    ----------
    text : str
    yours, expected : tuple of str
        The formula that the backend computes, and the right one, read in the same way.
    differs : str
        In what.
    """

    text: str = ""
    yours: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    differs: str = ""


def diagnose(check: Check, backend: Backend, failing: list[Case], passing: list[Case]) -> Diagnosis:
    """Explain the wrong numbers of a value check.

    Parameters
    ----------
    check : Check
        The check that failed.
    backend : Backend
    failing, passing : list of Case
        The decisive cases, by their outcome.
    """
    with np.errstate(all="ignore"), suppress(*CANNOT_TELL):
        return _diagnosed(check, backend, failing, passing)
    return Diagnosis()  # what fails has said why, in its row; files answer no new questions


def _diagnosed(check: Check, backend: Backend, failing: list[Case], passing: list[Case]) -> Diagnosis:
    value = check.value
    assert value is not None
    scenes = _scenes(value, backend, _telling(failing))
    if not scenes:
        return Diagnosis()
    kept = _by_memory(check, backend, scenes)
    if kept:
        return Diagnosis(kept)
    others = _scenes(value, backend, _telling([case for case in passing if case.plain]))
    simple = _simple(scenes)
    if simple is not None and all(scene.agrees(simple[1](scene)) for scene in others):
        return Diagnosis(simple[0])
    judge = partial(_passes, check, backend, failing[0])
    # what passes at generic points has the right formula there: it is a matter of place
    if any(judge(recipe) is False for recipe in places.usual()):
        read = _read(value, backend, failing[0])
        if read is not None:
            return read
    wrong, right = ([case for case in cases if case.recipe is not None] for cases in (failing, passing))
    place = places.where(value.operation, wrong, [case for case in right if _could_be_wrong(value, case)], judge)
    if place:
        return Diagnosis(f"wrong where {place}" + (f"; there, {simple[0]}" if simple is not None else ""))
    return Diagnosis()


def _passes(check: Check, backend: Backend, like: Case, recipe: Recipe) -> bool | None:
    """Whether a fresh case passes; None where it decides nothing, or fails without a number."""
    try:
        case = build(recipe, like.metric, like.dtype, like.seed, like.relaxation)
        if not (np.all(check.decisive(case)) and check.applies(case)):
            return None
        return _is_right(check, backend, case)
    except CANNOT_TELL:
        return None


def _is_right(check: Check, backend: Backend, case: Case) -> bool:
    """Whether a case passes."""
    return bool(np.all(check.errors(Trial(backend, case)) <= DOUBTFUL * check.unit(case)))


def _could_be_wrong(value: Value, case: Case) -> bool:
    """Whether the right result is not next to nothing beside its terms, in any block."""
    reference = case.reference(value)
    if reference is None:
        return True
    length = np.abs(reference[0]) if len(reference) == 1 else case.space.norm(Pair.unchecked(*reference))
    return bool(np.all(length > 1e-6 * case.size(value)))


# What explanations rest on -------------------------------------------------------------------------------------------


def _telling(cases: list[Case]) -> list[Case]:
    """A few cases: large enough that explanations do not coincide, well conditioned, and different."""
    clear = [case for case in cases if float(np.max(case.condition)) <= _CLEAR and case.entries <= _SMALL]
    ranked = sorted(clear or cases[:1], key=lambda case: (case.oddity, case.point.sizes[2] == 1))
    first = {case.point.sizes: case for case in reversed(ranked)}
    return [*first.values()][::-1][:_POINTS]


class _Scene:
    """One case: what the backend gave, what is right, and how closely numbers must agree."""

    def __init__(self, value: Value, backend: Backend, case: Case) -> None:
        self.value, self.case = value, case
        self.result = Trial(backend, case).value(value)
        reference = case.reference(value)
        if reference is None:
            raise ValueError("no reference")
        self.right = reference
        deviation = _distance(self.result, self.right)
        self.rounding = float(np.max(4 * DOUBTFUL * VALUE_CHECKS[value.name].unit(case)))
        self.tolerance = max(min(self.rounding, 0.01 * deviation), 1e-12)

    def agrees(self, candidate: Parts) -> bool:
        return _distance(self.result, candidate) <= self.tolerance


def _scenes(value: Value, backend: Backend, cases: list[Case]) -> list[_Scene]:
    """Those of the cases that can be evaluated."""
    found = []
    for case in cases:
        with suppress(*CANNOT_TELL):
            found.append(_Scene(value, backend, case))
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


# Explanations --------------------------------------------------------------------------------------------------------


def _by_memory(check: Check, backend: Backend, scenes: list[_Scene]) -> str:
    """Called again, and called first thing in a new process."""
    again = [[_is_right(check, backend, scene.case) for _ in range(_REPEATS)] for scene in scenes]
    if all(map(all, again)):
        return "right when called again with the same input: it depends on the calls before, or on chance"
    if any(map(any, again)):
        return "right and wrong by turns with the same input: it depends on the calls before, or on chance"
    for _ in range(_REPEATS):
        fresh = backend.fresh()
        if fresh is backend:
            return ""
        try:
            if not _is_right(check, fresh, scenes[0].case):
                return ""
        finally:
            fresh.close()
    return "right when it is the first call: it keeps something of the calls before (a cache?)"


Explanation = tuple[str, Callable[[_Scene], Parts]]
"""What it is called, and what it gives at any case."""


def _simple(scenes: list[_Scene]) -> Explanation | None:
    """The right result, but exchanged, transposed, or times a factor: what holds at all scenes."""
    for text, made in _candidates(scenes):
        with suppress(ValueError):
            if all(scene.agrees(made(scene)) for scene in scenes):
                return text, made
    return None


def _candidates(scenes: list[_Scene]) -> Iterator[Explanation]:
    if len(scenes[0].right) == 2:
        yield "the G and H parts of your result are exchanged", lambda scene: scene.right[::-1]
        yield (
            "your result is transposed",
            lambda scene: tuple(part if 1 in part.shape[-2:] else part.mT for part in scene.right),
        )
    if len(scenes) < 2:  # a number that is fitted to one point proves nothing
        return
    parts = range(len(scenes[0].right))
    fits = [
        [float(np.vdot(x, y)) / max(float(np.vdot(x, x)), 1e-300) for x, y in zip(s.right, s.result, strict=True)]
        for s in scenes
    ]
    factors = [float(np.median([fit[i] for fit in fits])) for i in parts]
    words = [f"{factor:.6g} times the right one" if factor else "zero" for factor in factors]
    if len(set(words)) == 1:
        text = f"your result is {words[0]}"
    else:
        text = "; ".join(
            f"the {'GH'[i]} part of your result is {words[i]}" for i in parts if abs(factors[i] - 1.0) > 1e-6
        )
    yield text, lambda scene: tuple(factors[i] * scene.right[i] for i in parts)


def _read(value: Value, backend: Backend, case: Case) -> Diagnosis | None:
    """The formula that the backend computes, beside the right one."""
    try:
        mine = read_one(backend, value.name, case.metric, case.dtype, case.relaxation)
    except CANNOT_TELL:
        return None
    right = right_formula(value.name, case.metric, case.relaxation)
    if mine is None or mine == right:
        return None
    note = f"read {mine.note}" if mine.note else ""
    expected = () if right is None else tuple(right.lines())
    return Diagnosis(note, tuple(mine.lines()), expected, "" if right is None else mine.differs(right))


def worst_entries(value: Value, backend: Backend, case: Case, block: tuple[int, ...]) -> str:
    """Of each part of a wrong result the entry that is furthest from the right one, or that the part is right."""
    said = []
    enclosures = case.exact_block(block).enclosures(value) or ()
    try:
        results = [part[block] for part in Trial(backend, case).value(value)]
    except CANNOT_TELL:
        return "it fails now"
    with np.errstate(all="ignore"):
        distances = [np.abs(part - right.mid) for part, right in zip(results, enclosures, strict=True)]
    for name, part, right, distance in zip("GH", results, enclosures, distances, strict=False):
        at = np.unravel_index(np.argmax(distance), distance.shape)
        entry = f"{name}[{', '.join(map(str, at))}]" if at else "it"
        is_right = np.max(distance) <= 1e-6 * max(map(np.max, distances))
        digits = 17 if distance[at] < 1e-6 * abs(right.mid[at]) else 8
        shown = f"{entry} is {part[at]:.{digits}g} and not {right.mid[at]:.{digits}g}"
        said.append(f"{name} is right" if is_right else shown)
    return f"in {case.name}{list(block) or ''} {', '.join(said)}"


# What a value inherits -----------------------------------------------------------------------------------------------


def inherits(value: Value, backend: Backend, failing: Sequence[Case], guilty: Sequence[str]) -> bool:
    """Whether the right formula with the backend's own `guilty` functions in it gives exactly these wrong numbers."""
    cases = [case for case in failing if case.entries <= _SMALL]
    if not cases or len(cases) < len(failing) or (value.order is None and cases[0].metric not in PAIR_METRICS):
        return False
    for made in (_geodesic,) if value.order == 2 else _HESSIANS:
        with np.errstate(all="ignore"), suppress(*CANNOT_TELL):
            if all(_is_made(value, backend, case, guilty, made) for case in cases):
                return True
    return False


def _is_made(value: Value, backend: Backend, case: Case, guilty: Sequence[str], made: Callable[..., Parts]) -> bool:
    trial = Trial(backend, case)

    def right(name: str, *vectors: Any) -> Parts:
        flat = [factor for pair in (case.point, *vectors) for factor in pair]
        result: Parts = getattr(formulas, name)(case.metric, *flat, relaxation=case.relaxation)
        return result

    def own(name: str, *vectors: Any) -> Parts:
        return (
            trial.call(name, *(trial.rounded(Pair(*v)) for v in vectors)) if name in guilty else right(name, *vectors)
        )

    scene = _Scene(value, backend, case)
    return _distance(scene.result, made(case, own, right)) <= scene.rounding


def _geodesic(case: Case, own: Callable[..., Parts], right: Callable[..., Parts]) -> Parts:
    t, v = case.t, case.vectors["v"]
    return combination((1.0, tuple(case.point)), (t, tuple(v)), (-0.5 * t * t, own("christoffel", v, v)))


def _hessian(
    case: Case, own: Callable[..., Parts], right: Callable[..., Parts], raises_all: bool, raises_e: bool
) -> Parts:
    """With the backend's own gradient wherever a covector is raised; or of e alone; or of e in Γ alone."""
    (G, H), (e, w, v) = case.point, case.inputs(OPERATIONS["riemannian_hessian"])
    gradient = own("riemannian_gradient", e)
    raise_index = partial(own if raises_all else right, "riemannian_gradient")
    S_dot, T_dot = (x.mT @ F + F.mT @ x for x, F in zip(v, (G, H), strict=True))
    if case.metric == "inv":
        moving: Parts = (e.G @ S_dot, e.H @ T_dot)
    else:
        raised = gradient if raises_e else raise_index(e)
        moving = raise_index((-raised[0] @ T_dot, -raised[1] @ S_dot))
    terms = raise_index(w), moving, own("christoffel", gradient, v)
    return own("horizontal_projection", combination(*((1.0, term) for term in terms)))


_HESSIANS = tuple(
    partial(_hessian, raises_all=every, raises_e=one) for every, one in ((True, True), (False, True), (False, False))
)
