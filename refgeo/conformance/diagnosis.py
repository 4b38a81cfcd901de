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

from refgeo.conformance import places
from refgeo.conformance.backend import Backend
from refgeo.conformance.case import Case
from refgeo.conformance.checks import DOUBTFUL, VALUE_CHECKS, Check
from refgeo.conformance.host import BackendFailure
from refgeo.conformance.operations import Parts, Value
from refgeo.conformance.reading import read_one, right_formula
from refgeo.conformance.recipes import Recipe, build
from refgeo.conformance.trial import Trial, combination
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import PAIR_METRICS

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
    if simple is not None and _explains(simple, others):
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
        self.case, self.result = case, Trial(backend, case).value(value)
        right = case.reference(value)
        if right is None:
            raise ValueError("no reference")
        self.right, self.rounding = right, float(np.max(4 * DOUBTFUL * VALUE_CHECKS[value.name].unit(case)))
        self.tolerance = max(min(self.rounding, 0.01 * _distance(self.result, right)), 1e-12)


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
        return (
            "the result is right when refgeo calls the function again with the same input: so it depends on earlier "
            "calls, or on chance"
        )
    if any(map(any, again)):
        return (
            "for the same input, the result is sometimes right and sometimes wrong: so it depends on earlier calls, "
            "or on chance"
        )
    for _ in range(_REPEATS):
        fresh = backend.fresh()
        if fresh is backend:
            return ""
        try:
            if not _is_right(check, fresh, scenes[0].case):
                return ""
        finally:
            fresh.close()
    return (
        "the result is right if this call is the first one: your function keeps something from earlier calls, such "
        "as a cache"
    )


Explanation = tuple[str, Callable[[Parts], Parts]]
"""What it is called, and what it makes of a right result."""


def _explains(explanation: Explanation, scenes: list[_Scene]) -> bool:
    """Whether it gives what the backend gives."""
    return all(_distance(scene.result, explanation[1](scene.right)) <= scene.tolerance for scene in scenes)


def _simple(scenes: list[_Scene]) -> Explanation | None:
    """The right result, but exchanged, transposed, or times a factor: what holds at all scenes."""
    return next((one for one in _explanations(scenes) if _explains(one, scenes)), None)


def _explanations(scenes: list[_Scene]) -> Iterator[Explanation]:
    count = len(scenes[0].right)
    if count == 2:
        yield "the G and H parts of your result are swapped", lambda right: right[::-1]
        yield "your result is transposed", lambda right: tuple(x if 1 in x.shape[-2:] else x.mT for x in right)
    if len(scenes) < 2:  # a number that is fitted to one point proves nothing
        return
    fits = [
        [float(np.vdot(x, y) / max(float(np.vdot(x, x)), 1e-300)) for x, y in zip(one.right, one.result, strict=True)]
        for one in scenes
    ]
    factors = list(map(float, np.median(fits, axis=0)))
    words = [f"{factor:.6g} times the right one" if factor else "zero" for factor in factors]
    named = (f"the {'GH'[i]} part of your result is {words[i]}" for i in range(count) if abs(factors[i] - 1.0) > 1e-6)
    text = f"your result is {words[0]}" if len(set(words)) == 1 else "; ".join(named)
    yield text, lambda right: tuple(factor * part for factor, part in zip(factors, right, strict=True))


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
    return f"in {case.name}{list(block) or ''} {', '.join(said)}"


# What a value inherits -----------------------------------------------------------------------------------------------


def inherits(value: Value, backend: Backend, failing: Sequence[Case], guilty: Sequence[str]) -> bool:
    """Whether a value at the failing cases is what the backend's own wrong functions give, and the right others.

    Parameters
    ----------
    value : Value
        The value that is wrong.
    backend : Backend
    failing : list of Case
    guilty : list of str
        The values that it uses and that are wrong.
    """
    cases = [case for case in failing if case.entries <= _SMALL]
    if not cases or len(cases) < len(failing) or (value.order is None and cases[0].metric not in PAIR_METRICS):
        return False
    for raises_all in (True, False):  # for a Hessian there are two ways to raise an index: with its own gradient or not
        with np.errstate(all="ignore"), suppress(*CANNOT_TELL):
            made = ((_Scene(value, backend, case), _made(value, backend, case, guilty, raises_all)) for case in cases)
            if all(_distance(scene.result, parts) <= scene.rounding for scene, parts in made):
                return True
    return False


def _made(value: Value, backend: Backend, case: Case, guilty: Sequence[str], raises_all: bool) -> Parts:
    """A geodesic of order 2, or a Hessian, made of other values: the backend's own where these are wrong."""
    from refgeo import paper  # which is slow to import

    def right(name: str, *vectors: Any) -> Parts:
        flat = [factor for pair in (case.point, *vectors) for factor in pair]
        result: Parts = getattr(paper, name)(case.metric, *flat, relaxation=case.relaxation)
        return result

    def own(name: str, *vectors: Any) -> Parts:
        trial = Trial(backend, case)
        return (
            trial.call(name, *(trial.rounded(Pair(*v)) for v in vectors)) if name in guilty else right(name, *vectors)
        )

    (G, H), t = case.point, case.t
    if value.order == 2:
        v = case.vectors["v"]
        return combination((1.0, (G, H)), (t, tuple(v)), (-0.5 * t * t, own("christoffel", v, v)))
    e, w, v = case.inputs(value.operation)
    gradient = own("riemannian_gradient", e)
    raised = partial(own if raises_all else right, "riemannian_gradient")
    S_dot, T_dot = (x.mT @ F + F.mT @ x for x, F in zip(v, (G, H), strict=True))
    moving: Parts = (e.G @ S_dot, e.H @ T_dot)
    if case.metric == "mix":
        moving = raised((-gradient[0] @ T_dot, -gradient[1] @ S_dot))
    terms = raised(w), moving, own("christoffel", gradient, v)
    return own("horizontal_projection", combination(*((1.0, term) for term in terms)))
