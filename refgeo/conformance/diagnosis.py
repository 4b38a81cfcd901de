"""What a wrong result looks like: the common mistakes, tried one by one against the backend's numbers.

A diagnosis never decides that something is wrong. It is given only after it has reproduced the backend's numbers at
several of the points where it fails, or after an experiment that changes one thing and a control that changes as much
without it; otherwise there is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy  # its modules load where they are used: optimize takes as long as the rest of the kit

from refgeo import formulas
from refgeo.conformance.backend import Backend, BackendFailure
from refgeo.conformance.case import Case
from refgeo.conformance.checks import DOUBTFUL, VALUE_CHECKS, Check
from refgeo.conformance.drawing import horizontal_like, make_case, rng_of
from refgeo.conformance.mistakes import Candidate, damped, formula_of, mistakes, right_result, with_unfinished_inverse
from refgeo.conformance.precision import representable
from refgeo.conformance.properties import PROPERTIES, situation
from refgeo.conformance.recipes import Recipe, build
from refgeo.conformance.trial import Parts, Trial, combination
from refgeo.metrics.pair import PAIR_METRICS
from refgeo.operations import OPERATIONS, Value
from refgeo.pair import Pair

Found = TypeVar("Found")
NO_DIAGNOSIS = "no common mistake gives these numbers"
_POINTS = 4
"""At so many failing points a mistake must give the backend's numbers, if there are so many."""
_REPEATS = 3
CANNOT_TELL = (BackendFailure, NotImplementedError, ValueError, ArithmeticError)
"""Why a diagnosis may fail: the backend gives nothing, or a formula has no value at its point."""
_SMALL = 20_000
"""Numbers of a point that is called often."""
_CLEAR = 15.0
"""κ up to which the paper's formulas are accurate enough to compare with."""


def diagnose(check: Check, backend: Backend, failing: list[Case], passing: list[Case]) -> str:
    """Which common mistake reproduces the wrong numbers of a value check.

    Parameters
    ----------
    check : Check
        The check that failed.
    backend : Backend
    failing, passing : list of Case
        The decisive cases, by their outcome.

    Returns
    -------
    str
        A sentence; `NO_DIAGNOSIS` if nothing fits.
    """
    try:
        with np.errstate(all="ignore"):
            return _diagnosed(check, backend, *_with_others(check, backend, failing, passing))
    except CANNOT_TELL:  # what fails has said why, in its row; files answer no new questions
        return NO_DIAGNOSIS


def _diagnosed(check: Check, backend: Backend, failing: list[Case], passing: list[Case]) -> str:
    value = check.value
    assert value is not None
    scenes = _scenes(value, backend, _telling(failing))
    if not scenes:
        return NO_DIAGNOSIS
    kept = _by_memory(check, backend, scenes)
    if kept:
        return kept
    fine = _scenes(value, backend, _telling([case for case in passing if case.plain]))
    telling = [scene for scene in scenes if scene.tells]
    mistake = _if_it_can(_by_mistake, telling) or _if_it_can(_by_relaxation, check, telling) if telling else None
    if mistake is not None:
        # at any shape and time, where sizes and vectors are plain
        clear = [case for case in failing if _is_clear(case) and case.plain and case.unusual in ("", "t")]
        others = _scenes(value, backend, clear)
        if not all(scene.agrees(mistake[1](scene)) for scene in others):
            mistake = None
    if mistake is not None and all(scene.agrees(mistake[1](scene)) for scene in fine):
        return mistake[0]
    place = _by_place(check, failing, passing)
    if place:  # a mistake that does not show where it should is none, unless it is made in one place only
        return place if mistake is None else f"{place}; there, {mistake[0]}"
    found = _if_it_can(_by_experiment, check, backend, scenes, passing) or _if_it_can(_by_precision, backend, scenes)
    return found or NO_DIAGNOSIS


def _if_it_can(explain: Callable[..., Found | None], *arguments: Any) -> Found | None:
    """An explanation; None where it cannot be evaluated, at a point that is too ill-conditioned for a formula."""
    try:
        return explain(*arguments)
    except CANNOT_TELL:
        return None


def _scenes(value: Value, backend: Backend, cases: list[Case]) -> list[_Scene]:
    """Those of the cases that can be evaluated."""
    found = (_if_it_can(_Scene, value, backend, case) for case in cases)
    return [scene for scene in found if scene is not None]


def plain_cases(like: Case) -> Iterator[Case]:
    """A few with nothing special about them, for the same metric and dtype."""
    for shape in (((), 5, 4, 2), ((), 4, 5, 3), ((2,), 5, 5, 3), ((), 6, 4, 4)):
        yield build(Recipe(shape), like.metric, like.dtype, like.seed, like.relaxation)


def _with_others(
    check: Check, backend: Backend, failing: list[Case], passing: list[Case]
) -> tuple[list[Case], list[Case]]:
    """Where only a point or two were tried, a few more: what one point seems to show can be chance."""
    if len(failing) + len(passing) > 2:
        return failing, passing
    failing, passing = list(failing), list(passing)
    for case in plain_cases(failing[0]):
        try:
            right = _is_right(check, backend, case, strict=True)
        except CANNOT_TELL:
            continue
        (passing if right else failing).append(case)
    return failing, passing


PARTS = {
    "geodesic_2": ("christoffel",),
    "riemannian_hessian": ("riemannian_gradient", "christoffel", "horizontal_projection"),
}
"""The functions that others are made of."""


def inherited(value: Value, backend: Backend, failing: list[Case], wrong: set[str]) -> str | None:
    """The backend's own functions, wrong themselves, from which the right formula gives exactly these wrong numbers."""
    guilty = [name for name in PARTS.get(value.name, ()) if name in wrong]
    known = value.order == 2 or failing[0].metric in PAIR_METRICS
    if not guilty or not known:
        return None
    try:
        scenes = [_Scene(value, backend, case) for case in failing if case.entries <= _SMALL]
    except CANNOT_TELL:
        return None
    if not any(scene.tells for scene in scenes):
        return None
    for formula in (_geodesic_of,) if value.order == 2 else _HESSIANS:

        def agrees(scene: _Scene, formula: Callable[..., Parts] = formula) -> bool:
            case = scene.case

            def right(name: str, *vectors: Any) -> Parts:
                flat = [factor for pair in (case.point, *_rounded(case, vectors)) for factor in pair]
                result: Parts = getattr(formulas, name)(case.metric, *flat, relaxation=case.relaxation)
                return result

            def own(name: str, *vectors: Any) -> Parts:
                return trial.call(name, *_rounded(case, vectors)) if name in guilty else right(name, *vectors)

            trial = Trial(backend, case)
            return _distance(scene.result, formula(case, own, right)) <= scene.rounding

        with contextlib.suppress(*CANNOT_TELL):
            if all(map(agrees, scenes)):
                return " and ".join(guilty)
    return None


def worst_entries(value: Value, backend: Backend, case: Case, block: tuple[int, ...]) -> str:
    """Of each part of a wrong result the entry that is furthest from the right one, or that the part is right."""
    said = []
    enclosures = case.exact_blocks[block].enclosures(value) or ()
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


def _rounded(case: Case, vectors: Iterable[Any]) -> list[Pair]:
    return [representable(Pair(*v), case.dtype) for v in vectors]


_Call = Callable[..., Parts]


def _geodesic_of(case: Case, own: _Call, right: _Call) -> Parts:
    t, v = case.t, case.vectors["v"]
    return combination((1.0, tuple(case.point)), (t, tuple(v)), (-0.5 * t * t, own("christoffel", v, v)))


def _hessian_of(case: Case, own: _Call, right: _Call, raises_all: bool, raises_e: bool) -> Parts:
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
    partial(_hessian_of, raises_all=every, raises_e=one) for every, one in ((True, True), (False, True), (False, False))
)


# What a diagnosis rests on -------------------------------------------------------------------------------------------


def _telling(failing: list[Case]) -> list[Case]:
    """A few failing cases: large enough that mistakes do not coincide, well conditioned, and different."""
    clear = [case for case in failing if _is_clear(case)]
    ranked = sorted(
        clear or failing[:1], key=lambda case: (not case.plain, case.point.sizes[2] == 1, float(np.max(case.condition)))
    )
    chosen: list[Case] = []
    for case in ranked:
        if case.point.sizes not in [other.point.sizes for other in chosen]:
            chosen.append(case)
    return [*chosen, *(case for case in ranked if case not in chosen)][:_POINTS]


def _is_clear(case: Case) -> bool:
    return float(np.max(case.condition)) <= _CLEAR and case.entries <= _SMALL


class _Scene:
    """One failing case: what the backend gave, what is right, and how closely numbers must agree."""

    def __init__(self, value: Value, backend: Backend, case: Case) -> None:
        self.value, self.case = value, case
        self.result, self.right = Trial(backend, case).value(value), right_result(value, case)
        self.deviation = _distance(self.result, self.right)
        self.rounding = float(np.max(4 * DOUBTFUL * VALUE_CHECKS[value.name].unit(case)))

    @property
    def tells(self) -> bool:
        """Whether there is more to explain than rounding, which is large where a block of it is ill-conditioned."""
        return self.deviation > self.rounding

    @property
    def tolerance(self) -> float:
        if not self.tells:
            return self.rounding
        # a hundredth of what is to be explained, and rounding has its share of a small error
        return max(min(self.rounding, 0.01 * self.deviation), 0.002 * min(self.deviation, 1e-6))

    def agrees(self, candidate: Parts) -> bool:
        return _distance(self.result, candidate) <= self.tolerance

    def mistakes(self) -> Iterator[Candidate]:
        return mistakes(self.value, self.case, self.right)


def _distance(result: Parts, candidate: Parts) -> float:
    """Relative, part by part and block by block, so that a wrong part cannot hide behind a large one."""
    worst = 0.0
    if len(result) != len(candidate):
        return np.inf
    for one, other in zip(result, candidate, strict=True):
        if one.shape != other.shape or not np.isfinite(other).all() or not np.isfinite(one).all():
            return np.inf
        axes = (-2, -1) if one.ndim > 1 and len(result) == 2 else None
        size, difference = np.linalg.norm(other, axis=axes), np.linalg.norm(one - other, axis=axes)
        ratio = np.where(size > 0, difference / np.where(size > 0, size, 1.0), (difference > 0) * 1.0)
        worst = max(worst, float(np.max(ratio, initial=0.0)))
    return worst


# Mistakes ------------------------------------------------------------------------------------------------------------


Mistake = tuple[str, Callable[["_Scene"], Parts]]
"""What it is called, and what it gives at any case."""


def _by_mistake(scenes: list[_Scene]) -> Mistake | None:
    for statement, candidate in scenes[0].mistakes():
        made = partial(_mistake, statement)
        if scenes[0].agrees(candidate) and all(scene.agrees(made(scene)) for scene in scenes[1:]):
            return statement, made
    if len(scenes) < 2 or scenes[0].case.relaxation:  # a number that is fitted to one point proves nothing
        return None
    return _scaled(scenes) or _clipped(scenes) or _unfinished(scenes)


def _mistake(statement: str, scene: _Scene) -> Parts:
    return dict(scene.mistakes()).get(statement, ())


def _scaled(scenes: list[_Scene]) -> Mistake | None:
    """A multiple of the right result, or of one of its parts: the same everywhere."""
    parts = range(len(scenes[0].right))
    fits = [
        [
            float(np.vdot(x, y)) / max(float(np.vdot(x, x)), 1e-300)
            for x, y in zip(scene.right, scene.result, strict=True)
        ]
        for scene in scenes
    ]
    factors = [float(np.median([fit[i] for fit in fits])) for i in parts]
    changed = [i for i in parts if abs(factors[i] - 1.0) > 1e-6]

    def made(scene: _Scene) -> Parts:
        return tuple(factors[i] * scene.right[i] for i in parts)

    if not changed or not all(scene.agrees(made(scene)) for scene in scenes):
        return None
    if not any(factors):
        return "your result is zero", made
    if len(changed) == len(parts) and len({round(factor, 5) for factor in factors}) == 1:
        return f"your result is {factors[0]:.6g} times the right one", made
    return "; ".join(
        f"the {'GH'[i]} part of your result is {factors[i]:.6g} times the right one" for i in changed
    ), made


def _clipped(scenes: list[_Scene]) -> Mistake | None:
    largest = {round(float(max(np.abs(part).max() for part in scene.result)), 12) for scene in scenes}
    bound = largest.pop()
    if largest:
        return None

    def made(scene: _Scene) -> Parts:
        return tuple(np.clip(part, -bound, bound) for part in scene.right)

    return (f"numbers beyond ±{bound:.6g} are clipped", made) if all(s.agrees(made(s)) for s in scenes) else None


def _unfinished(scenes: list[_Scene]) -> Mistake | None:
    """Inverse Gram matrices from Newton–Schulz steps X ← X(2I − SX), stopped too early."""
    value, metric = scenes[0].value, scenes[0].case.metric
    if (value.name, metric) not in (("inner_product", "inv"), ("riemannian_gradient", "mix")):
        return None
    for start in ("transpose", "trace", "norm"):
        for steps in range(1, 41):

            def made(scene: _Scene, start: str = start, steps: int = steps) -> Parts:
                return with_unfinished_inverse(scene.value, scene.case, start, steps)

            if all(scene.agrees(made(scene)) for scene in scenes):
                return f"the inverse Gram matrix is unfinished, as after {steps} Newton–Schulz steps", made
    return None


# A relaxation --------------------------------------------------------------------------------------------------------


_RELATIVE = {"": "", ", relative to its mean diagonal entry": "mean", ", relative to its trace": "trace"}


def _by_relaxation(check: Check, scenes: list[_Scene]) -> Mistake | None:
    """S + εI or T + εI, or both, ε fixed or a share of the mean diagonal entry: found by a search in log ε."""
    value, truth = scenes[0].value, scenes[0].case.relaxation
    if value.order == "exact" or len(scenes) < 2:
        return None
    # the case where it tells most without drowning the rest
    first = min(scenes, key=lambda scene: abs(np.log(max(_distance(scene.result, scene.right), 1e-300)) + 3.0))
    places: dict[str, Callable[[Case, float], Parts]] = {
        "the Gram matrices": lambda case, x: formula_of(value, case, case.metric, x)
    }
    if truth == 0.0:
        for name, sides in (
            ("every Gram matrix", (1, 1)), ("S = GᵀG alone, one side only", (1, 0)),
            ("T = HᵀH alone, one side only", (0, 1)),
        ):  # fmt: skip
            for words, relative in _RELATIVE.items():
                places[name + words] = partial(damped, value, sides=sides, relative=relative)
    for place, formula in places.items():
        epsilon = _fitted(partial(formula, first.case), first.result)
        size = 1.0 if "relative" in place else min(_sizes(first.case))
        below_rounding = epsilon < 100.0 * float(np.max(check.unit(first.case, 0.0))) * size

        def made(scene: _Scene, formula: Callable[[Case, float], Parts] = formula, epsilon: float = epsilon) -> Parts:
            return formula(scene.case, epsilon)

        if not all(scene.agrees(made(scene)) for scene in scenes):
            continue
        if truth:
            ignored = (
                f"ε is not used: your result is that of the geometry without it, where ε = {truth:g} was asked for"
            )
            return (ignored if below_rounding else f"your ε is {epsilon:.2g} where {truth:g} was asked for"), made
        if not below_rounding:
            return f"a relaxation ε = {epsilon:.2g} is left in {place}", made
    return None


def _sizes(case: Case) -> list[float]:
    return [float(np.max(np.sum(factor**2, axis=(-2, -1)) / factor.shape[-1])) for factor in case.point]


def _fitted(formula: Callable[[float], Parts], result: Parts) -> float:
    """The ε between 1e-15 and 3 that explains the numbers best: a search in log ε, then two Gauss–Newton steps."""

    def distance(x: float) -> float:
        return _distance(result, formula(10.0**x))

    grid = np.linspace(-15.0, 0.5, 63)
    best = float(grid[int(np.argmin([distance(x) for x in grid]))])
    found = scipy.optimize.minimize_scalar(distance, bounds=(best - 0.26, best + 0.26), method="bounded")
    epsilon = float(10.0**found.x)
    for _ in range(2):
        here, ahead = formula(epsilon), formula(1.01 * epsilon)
        slope = [(y - x) / (0.01 * epsilon) for x, y in zip(here, ahead, strict=True)]
        size = sum(float(np.vdot(x, x)) for x in slope)
        rest = sum(float(np.vdot(x, y - z)) for x, y, z in zip(slope, result, here, strict=True))
        epsilon = max(epsilon + (rest / size if size > 0.0 else 0.0), 0.5 * epsilon)
    return epsilon


# Where it is wrong -------------------------------------------------------------------------------------------------


def _by_place(check: Check, failing: list[Case], passing: list[Case]) -> str:
    """The properties of a call that separate the wrong ones from the right ones, if several of both were tried."""
    assert check.value is not None
    operation = check.value.operation
    for kept in (lambda case: True, lambda case: case.plain):  # at zero vectors many a mistake does not show
        wrong = [situation(case, operation) for case in failing]
        right = [situation(case, operation) for case in passing if kept(case)]
        if not wrong or len(right) < 3:
            return ""
        found = [name for name, holds in PROPERTIES.items() if all(map(holds, wrong)) and not any(map(holds, right))]
        if 0 < len(found) <= 3:  # of more, the true one cannot be told
            unclear = " (which of these, the points cannot tell)" if len(found) > 1 else ""
            return f"of the points tried, wrong exactly those {', or '.join(found)}{unclear}"
    return ""


# Experiments ---------------------------------------------------------------------------------------------------------


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


def _by_experiment(check: Check, backend: Backend, scenes: list[_Scene], passing: list[Case]) -> str:
    """Right for horizontal vectors, or balanced factors, and still wrong for others of the same making.

    What was right elsewhere, with other vectors at factors that are not balanced, refutes both. A projection has
    nothing to do to horizontal vectors, so that being right there says nothing.
    """
    cases = [scene.case for scene in scenes if scene.case.point.sizes[2] > 1][:2]
    balanced = PROPERTIES["for balanced factors"]
    assert check.value is not None
    if not cases or any(case.plain and not balanced(situation(case, check.value.operation)) for case in passing):
        return ""
    for statement, change, control in (
        ("correct only for balanced factors, GᵀG = HᵀH", _balanced, _unbalanced),
        ("correct only for horizontal vectors", _horizontal, _redrawn),
    ):
        if change is _horizontal and check.value.name == "horizontal_projection":
            continue
        if all(
            _is_right(check, backend, change(case)) and not _is_right(check, backend, control(case)) for case in cases
        ):
            return statement
    return ""


def _remade(case: Case, point: Pair) -> Case:
    return make_case(
        case.name, case.metric, point, rng_of(case.seed, "diagnosis"), case.dtype, case.seed, case.relaxation
    )


def _balanced(case: Case) -> Case:
    """Balanced, but not diagonal."""
    h = case.point.sizes[2]
    Q = np.linalg.qr(rng_of(case.seed, "balanced").standard_normal((h, h)))[0]
    return _remade(case, case.point.balanced()[0].transform(Q))


def _unbalanced(case: Case) -> Case:
    """As well conditioned as the balanced one, on the same orbit."""
    h = case.point.sizes[2]
    Q = np.linalg.qr(rng_of(case.seed, "unbalanced").standard_normal((h, h)))[0]
    return _remade(case, case.point.balanced()[0].transform(Q * np.geomspace(1.5, 0.7, h)))


def _horizontal(case: Case) -> Case:
    return _with_vectors(case, lambda v, rng: horizontal_like(case.space, v, rng))


def _redrawn(case: Case) -> Case:
    """Other vectors, as long, that are not horizontal."""

    def drawn(v: Pair, rng: np.random.Generator) -> Pair:
        return case.space.random_tangent_vector(rng, horizontal=False) * case.space.norm(v)

    return _with_vectors(case, drawn)


def _with_vectors(case: Case, change: Callable[[Pair, np.random.Generator], Pair]) -> Case:
    rng = rng_of(case.seed, "diagnosis")
    changed = {name: representable(change(case.vectors[name], rng), case.dtype) for name in ("a", "b", "v")}
    return replace(case, vectors={**case.vectors, **changed})


def _is_right(check: Check, backend: Backend, case: Case, strict: bool = False) -> bool:
    """Whether a case passes; one that fails without a result raises, if `strict`."""
    try:
        errors = check.errors(Trial(backend, case))
    except CANNOT_TELL:
        if strict:
            raise
        return False
    return bool(np.all(errors <= DOUBTFUL * check.unit(case)))


_ARITHMETICS = (("float32", 2.0**-24, 2.0**-24), ("TF32, float16 or bfloat16", 2.0**-11, 2.0**-8))


def _by_precision(backend: Backend, scenes: list[_Scene]) -> str:
    """Rounding in a smaller format: exact under powers of two; under other factors not linear, by its error."""
    value, levels = scenes[0].value, []
    if value.operation.extra:
        return ""
    # linear in the first vector; a Hessian in the other two together
    names = value.operation.sources[1:] if "hessian_v" in value.operation.sources else value.operation.sources[:1]
    for scene in scenes:
        case, error = scene.case, _distance(scene.result, scene.right)

        def times(factor: float, case: Case = case) -> Parts:
            inputs = [
                representable(case.vectors[source] * factor, case.dtype) if source in names else case.vectors[source]
                for source in value.operation.sources
            ]
            return Trial(backend, case).call(value.operation.name, *inputs)

        doubled, other = times(2.0), times(1.0 + 1.0 / 3.0)
        if not all(np.array_equal(2.0 * x, y) for x, y in zip(scene.result, doubled, strict=True)):
            return ""
        nonlinear = _distance(tuple((4.0 / 3.0) * x for x in scene.result), other)
        if not 0.02 * error <= nonlinear <= 50.0 * error:
            return ""
        levels.append(error)
    level = float(np.median(levels))
    for format_name, least, most in _ARITHMETICS:
        if 0.05 * least <= level <= 30.0 * most:
            return f"lower precision inside: the errors behave as rounding in {format_name} does"
    return ""
