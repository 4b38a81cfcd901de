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
from typing import Any

import numpy as np
import scipy  # its modules load where they are used: optimize takes as long as the rest of the kit

from refgeo import formulas
from refgeo.arguments import Array
from refgeo.conformance.backend import Backend, BackendFailure
from refgeo.conformance.case import Case
from refgeo.conformance.checks import DOUBTFUL, VALUE_CHECKS, Check
from refgeo.conformance.drawing import horizontal_like, make_case, rng_of
from refgeo.conformance.precision import representable
from refgeo.conformance.properties import PROPERTIES, situation
from refgeo.conformance.recipes import Recipe, build
from refgeo.conformance.trial import Parts, Trial, combination
from refgeo.metrics.pair import PAIR_METRICS, pair_metric
from refgeo.operations import OPERATIONS, Value
from refgeo.pair import Pair

Candidate = tuple[str, Parts]

NO_DIAGNOSIS = "no common mistake gives these numbers"
_POINTS = 4
"""At so many failing points a mistake must give the backend's numbers, if there are so many."""
_REPEATS = 3
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
    except (BackendFailure, NotImplementedError):  # what fails has said why, in its row; files answer no new questions
        return NO_DIAGNOSIS


def _diagnosed(check: Check, backend: Backend, failing: list[Case], passing: list[Case]) -> str:
    scenes = [_Scene.of(check, backend, case) for case in _telling(failing)]
    kept = _by_memory(check, backend, scenes)
    if kept:
        return kept
    fine = [_Scene.of(check, backend, case) for case in _telling([case for case in passing if case.plain])]
    mistake = _by_mistake(scenes) or _by_relaxation(check, scenes)
    if mistake is not None:
        # at any shape and time, where sizes and vectors are plain
        others = [
            _Scene.of(check, backend, case)
            for case in failing
            if _is_clear(case) and case.plain and case.unusual in ("", "t")
        ]
        if not all(scene.agrees(mistake[1](scene)) for scene in others):
            mistake = None
    if mistake is not None and all(scene.agrees(mistake[1](scene)) for scene in fine):
        return mistake[0]
    place = _by_place(check, failing, passing)
    if place:  # a mistake that does not show where it should is none, unless it is made in one place only
        return place if mistake is None else f"{place}; there, {mistake[0]}"
    return _by_experiment(check, backend, scenes, passing) or _by_precision(backend, scenes) or NO_DIAGNOSIS


_OTHERS = tuple(Recipe(shape) for shape in (((), 5, 4, 2), ((), 4, 5, 3), ((2,), 5, 5, 3), ((), 6, 4, 4)))


def _with_others(
    check: Check, backend: Backend, failing: list[Case], passing: list[Case]
) -> tuple[list[Case], list[Case]]:
    """Where only a point or two were tried, a few more: what one point seems to show can be chance."""
    if len(failing) + len(passing) > 2:
        return failing, passing
    first = failing[0]
    failing, passing = list(failing), list(passing)
    for recipe in _OTHERS:
        case = build(recipe, first.metric, first.dtype, first.seed, first.relaxation)
        try:
            right = _is_right(check, backend, case, strict=True)
        except (BackendFailure, NotImplementedError):
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
    tried = [case for case in failing if case.entries <= _SMALL]
    unit = VALUE_CHECKS[value.name].unit
    for formula in (_geodesic_of,) if value.order == 2 else _HESSIANS:

        def agrees(case: Case, formula: Callable[..., Parts] = formula) -> bool:
            def right(name: str, *vectors: Any) -> Parts:
                flat = [factor for pair in (case.point, *_rounded(case, vectors)) for factor in pair]
                result: Parts = getattr(formulas, name)(case.metric, *flat, relaxation=case.relaxation)
                return result

            def own(name: str, *vectors: Any) -> Parts:
                return trial.call(name, *_rounded(case, vectors)) if name in guilty else right(name, *vectors)

            trial = Trial(backend, case)
            return _distance(trial.value(value), formula(case, own, right)) <= float(np.max(4 * DOUBTFUL * unit(case)))

        with contextlib.suppress(BackendFailure, NotImplementedError, ValueError):
            if all(agrees(case) for case in tried):
                return " and ".join(guilty)
    return None


def worst_entries(value: Value, backend: Backend, case: Case, block: tuple[int, ...]) -> str:
    """Of each part of a wrong result the entry that is furthest from the right one, or that the part is right."""
    said = []
    enclosures = case.exact_blocks[block].enclosures(value) or ()
    try:
        results = [part[block] for part in Trial(backend, case).value(value)]
    except (BackendFailure, NotImplementedError):
        return "it fails now"
    with np.errstate(all="ignore"):
        distances = [np.abs(part - right.mid) for part, right in zip(results, enclosures, strict=True)]
    for name, part, right, distance in zip("GH", results, enclosures, distances, strict=False):
        at = np.unravel_index(np.argmax(distance), distance.shape)
        entry = f"{name}[{', '.join(map(str, at))}]" if at else "it"
        is_right = np.max(distance) <= 1e-6 * max(map(np.max, distances))
        said.append(f"{name} is right" if is_right else f"{entry} is {part[at]:.8g} and not {right.mid[at]:.8g}")
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

    def __init__(self, value: Value, case: Case, result: Parts, right: Parts, tolerance: float) -> None:
        self.value, self.case, self.result, self.right, self.tolerance = value, case, result, right, tolerance

    @classmethod
    def of(cls, check: Check, backend: Backend, case: Case) -> _Scene:
        assert check.value is not None
        result = Trial(backend, case).value(check.value)
        right = _right(check.value, case)
        deviation = _distance(result, right)
        rounding = float(np.max(4 * DOUBTFUL * check.unit(case)))
        if deviation <= rounding:
            return cls(check.value, case, result, right, rounding)
        # a hundredth of what is to be explained, and rounding has its share of a small error
        return cls(check.value, case, result, right, max(min(rounding, 0.01 * deviation), 0.002 * min(deviation, 1e-6)))

    def agrees(self, candidate: Parts) -> bool:
        return _distance(self.result, candidate) <= self.tolerance


def _flat(value: Value, case: Case) -> list[Array]:
    return [factor for pair in (case.point, *case.inputs(value.operation)) for factor in pair]


def _formula(value: Value, case: Case, metric: str, relaxation: float) -> Parts:
    name, extra = value.operation.name, value.extra(case.t)
    if metric in PAIR_METRICS:
        result = getattr(formulas, name)(metric, *_flat(value, case), *extra, relaxation=relaxation)
    else:  # between them the paper has no formulas
        space = pair_metric(metric, relaxation).at(case.point)
        result = getattr(space, name)(*case.inputs(value.operation), *extra)
    return tuple(result) if isinstance(result, (tuple, Pair)) else (np.asarray(result),)


def _right(value: Value, case: Case) -> Parts:
    if value.order == "exact":
        return tuple(case.space.geodesic(case.vectors["v"], case.t, "exact"))
    return _formula(value, case, case.metric, case.relaxation)


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
    if scenes[0].case.relaxation:
        return None  # the candidates are computed without relaxation
    for statement, candidate in _mistakes(scenes[0]):
        made = partial(_mistake, statement)
        if scenes[0].agrees(candidate) and all(scene.agrees(made(scene)) for scene in scenes[1:]):
            return statement, made
    if len(scenes) < 2:  # a number that is fitted to one point proves nothing
        return None
    return _scaled(scenes) or _clipped(scenes) or _unfinished(scenes)


def _mistake(statement: str, scene: _Scene) -> Parts:
    return dict(_mistakes(scene)).get(statement, ())


def _mistakes(scene: _Scene) -> Iterator[Candidate]:
    value, case = scene.value, scene.case
    if value.order == "exact":
        yield from _of_exact_geodesic(case)
        return
    for other in PAIR_METRICS:
        if other != case.metric:
            yield f"your result is that of the metric {other!r}", _formula(value, case, other, 0.0)
    if len(scene.right) == 2 and scene.right[0].shape == scene.right[1].shape:
        yield "your result has its G and H parts exchanged", scene.right[::-1]
    if case.metric in PAIR_METRICS:
        yield from _OWN_CANDIDATES[value.operation.name](value, case, scene.right)


def _of_exact_geodesic(case: Case) -> Iterator[Candidate]:
    v = case.vectors["v"]
    for order in (2, 1):
        yield f"your result is the geodesic of order {order}", tuple(case.space.geodesic(v, case.t, order))
    straight = case.space.horizontal_projection(v)
    if np.any(case.space.norm(v - straight) > 1e-6 * case.space.norm(v)):
        yield "the velocity is projected first", tuple(case.space.geodesic(straight, case.t, "exact"))


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
            made = partial(_with_inverse, partial(_newton_schulz, start=start, steps=steps))
            if all(scene.agrees(made(scene)) for scene in scenes):
                return f"the inverse Gram matrix is unfinished, as after {steps} Newton–Schulz steps", made
    return None


def _newton_schulz(S: Array, start: str, steps: int) -> Array:
    eye = np.eye(S.shape[-1])
    if start == "transpose":
        scale = np.abs(S).sum(-1).max(-1) * np.abs(S).sum(-2).max(-1)
        X = S.mT / scale[..., None, None]
    elif start == "trace":
        X = eye / np.trace(S, axis1=-2, axis2=-1)[..., None, None]
    else:
        X = eye / np.linalg.norm(S, axis=(-2, -1))[..., None, None]
    for _ in range(steps):
        X = X @ (2 * eye - S @ X)
    return np.asarray(X)


def _with_inverse(inverse: Callable[[Array], Array], scene: _Scene) -> Parts:
    case = scene.case
    _, _, S, T = _grams(case)
    if scene.value.name == "riemannian_gradient":
        e_G, e_H = case.vectors["e"]
        return e_G @ inverse(T), e_H @ inverse(S)
    a, b = case.vectors["a"], case.vectors["b"]
    terms = [inverse(S) @ a.G.mT @ b.G, inverse(T) @ a.H.mT @ b.H]
    return (np.asarray(sum(np.trace(term, axis1=-2, axis2=-1) for term in terms)),)


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
        "the Gram matrices": lambda case, x: _formula(value, case, case.metric, x)
    }
    if truth == 0.0:
        for name, sides in (
            ("every Gram matrix", (1, 1)), ("S = GᵀG alone, one side only", (1, 0)),
            ("T = HᵀH alone, one side only", (0, 1)),
        ):  # fmt: skip
            for words, relative in _RELATIVE.items():
                places[name + words] = partial(_stacked, value, sides=sides, relative=relative)
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


def _stacked(value: Value, case: Case, epsilon: float, sides: tuple[int, int], relative: str) -> Parts:
    """S + εI is the Gram matrix of G stacked on √ε I; vectors get rows of zeros, and results lose them again."""
    arrays, h = _flat(value, case), case.point.sizes[2]
    for i in range(len(arrays)):
        if not sides[i % 2]:
            continue
        shift = np.asarray(epsilon)
        if relative:
            shift = epsilon * np.sum(case.point.G**2 if i % 2 == 0 else case.point.H**2, axis=(-2, -1))
            shift = shift / h if relative == "mean" else shift
        block = np.sqrt(shift)[..., None, None] * np.eye(h) if i < 2 else np.zeros((h, h))
        arrays[i] = np.concatenate([arrays[i], np.broadcast_to(block, (*arrays[i].shape[:-2], h, h))], axis=-2)
    result = getattr(formulas, value.operation.name)(case.metric, *arrays, *value.extra(case.t))
    if not isinstance(result, tuple):
        return (result,)
    return tuple(part[..., :rows, :] for part, rows in zip(result, case.point.sizes[:2], strict=True))


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


# The mistakes of each function ------------------------------------------------------------------------------------


def _grams(case: Case) -> tuple[Array, Array, Array, Array]:
    G, H = case.point
    return G, H, G.mT @ G, H.mT @ H


def _of_inner_product(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    _, _, S, T = _grams(case)
    A_G, A_H = (
        case.vectors["a"].G.mT @ case.vectors["b"].G,
        case.vectors["a"].H.mT @ case.vectors["b"].H,
    )
    inverse_S, inverse_T = np.linalg.inv(S), np.linalg.inv(T)

    def product(W_G: Array, W_H: Array) -> Parts:
        return (np.asarray(np.trace(W_G @ A_G, axis1=-2, axis2=-1) + np.trace(W_H @ A_H, axis1=-2, axis2=-1)),)

    eye, zero = np.eye(S.shape[-1]), np.zeros_like(S)
    G_weight, H_weight = (inverse_S, inverse_T) if case.metric == "inv" else (T, S)
    yield "the Gram matrices are missing: your result is tr(a_Gᵀb_G) + tr(a_Hᵀb_H)", product(eye, eye)
    yield "the Gram matrices are not inverted: tr(S a_Gᵀb_G) + tr(T a_Hᵀb_H)", product(S, T)
    yield "the Gram matrices are inverted and exchanged: tr(T⁻¹a_Gᵀb_G) + tr(S⁻¹a_Hᵀb_H)", product(inverse_T, inverse_S)
    yield "the H part uses the Gram matrix of the G part", product(G_weight, G_weight)
    yield "the G part uses the Gram matrix of the H part", product(H_weight, H_weight)
    yield "the H part is missing", product(G_weight, zero)
    yield "the G part is missing", product(zero, H_weight)


def _of_projection(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    G, H, S, T = _grams(case)
    v_G, v_H = case.vectors["v"]
    # Λ from what the right projection added: G has full column rank
    L = np.linalg.solve(S, G.mT @ (right[0] - v_G))
    Lt = L.mT
    yield "your result is the input: nothing is projected", (v_G, v_H)
    yield "your result is the vertical part, not the horizontal one", (v_G - right[0], v_H - right[1])
    yield "your result equals the projection with Λᵀ where Λ belongs", (v_G + G @ Lt, v_H - H @ L)
    yield "the H part has Λ where Λᵀ belongs", (right[0], v_H - H @ L)
    yield "the G part has Λᵀ where Λ belongs", (v_G + G @ Lt, right[1])
    yield "Λ has the wrong sign", (v_G - G @ L, v_H + H @ Lt)
    yield "the H part adds HΛᵀ, which must be subtracted", (right[0], v_H + H @ Lt)
    yield "the G part subtracts GΛ, which must be added", (v_G - G @ L, right[1])
    yield "Λ is twice what it must be (a factor ½ is missing)", (v_G + 2 * G @ L, v_H - 2 * H @ Lt)
    yield "Λ is half of what it must be", (v_G + 0.5 * G @ L, v_H - 0.5 * H @ Lt)
    mean = 0.5 * (L + Lt)
    yield "½(Λ + Λᵀ) stands where Λ belongs", (v_G + G @ mean, v_H - H @ mean)
    yield "the H part is not projected", (right[0], v_H)
    yield "the G part is not projected", (v_G, right[1])
    for statement, solve in (
        ("Λ solves AΛ + ΛAᵀ = B as printed; the definition gives AΛᵀ + ΛᵀA = B", _printed),
        ("Λ solves AᵀΛᵀ + ΛᵀAᵀ = B, with the transpose of A = ST", _transposed),
    ):
        wrong = _solved(solve, S, T, case)
        yield statement, (v_G + G @ wrong, v_H - H @ wrong.mT)
    for statement, W_G, W_H in (
        ("the H part's Gram matrix is S = GᵀG where T = HᵀH belongs", S, S),
        ("the G part's Gram matrix is T = HᵀH where S = GᵀG belongs", T, T),
    ):
        wrong = 0.5 * (np.linalg.solve(W_H, H.mT @ v_H).mT - np.linalg.solve(W_G, G.mT @ v_G))
        yield statement, (v_G + G @ wrong, v_H - H @ wrong.mT)


def _printed(A: Array, B: Array) -> Array:
    return np.asarray(scipy.linalg.solve_sylvester(A, A.T, B))


def _transposed(A: Array, B: Array) -> Array:
    return np.asarray(scipy.linalg.solve_sylvester(A.T, A.T, B)).T


def _solved(solve: Callable[[Array, Array], Array], S: Array, T: Array, case: Case) -> Array:
    (G, H), (v_G, v_H) = case.point, case.vectors["v"]
    A, B = S @ T, S @ H.mT @ v_H - v_G.mT @ G @ T
    return np.asarray(np.vectorize(solve, signature="(h,h),(h,h)->(h,h)", otypes=[np.float64])(A, B))


def _of_gradient(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    _, _, S, T = _grams(case)
    e_G, e_H = case.vectors["e"]
    inverse_S, inverse_T = np.linalg.inv(S), np.linalg.inv(T)
    yield "your result is the Euclidean gradient", (e_G, e_H)
    exchanged, other = "S and T are exchanged", "a Gram matrix stands where its inverse belongs, or the reverse"
    inv = case.metric == "inv"
    yield f"{exchanged if inv else other}: (e_G T, e_H S)", (e_G @ T, e_H @ S)
    yield f"{other if inv else exchanged}: (e_G S⁻¹, e_H T⁻¹)", (e_G @ inverse_S, e_H @ inverse_T)
    G_weight, H_weight = (S, T) if case.metric == "inv" else (inverse_T, inverse_S)
    yield "the H part uses the Gram matrix of the G part", (right[0], e_H @ G_weight)
    yield "the G part uses the Gram matrix of the H part", (e_G @ H_weight, right[1])


def _of_christoffel(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    a, b = case.vectors["a"], case.vectors["b"]

    def gamma(x: Pair, y: Pair) -> Parts:
        return formulas.christoffel(case.metric, *case.point, *x, *y)

    double = tuple(2 * part for part in right)
    yield "a factor ½ is missing in Γ", double
    yield "Γ has the wrong sign", tuple(-part for part in right)
    yield "the second vector is ignored: your result is Γ(a, a)", gamma(a, a)
    yield "the first vector is ignored: your result is Γ(b, b)", gamma(b, b)
    yield "your result is the quadratic form Γ(a + b, a + b)", gamma(a + b, a + b)
    terms = _christoffel_terms(case, lambda x, y: x.mT @ y + y.mT @ x)
    F = "G" if case.metric == "inv" else "H"  # of the G part
    for dropped, name in enumerate((f"a(bᵀ{F} + {F}ᵀb)", f"b(aᵀ{F} + {F}ᵀa)", "G(aᵀb + bᵀa)")):
        signs = [1.0, 1.0, 1.0]
        signs[dropped] = 0.0
        yield f"the term {name} of Γ is missing", combination(*zip(signs, terms, strict=True))
        signs[dropped] = -1.0
        yield f"the term {name} of Γ has the wrong sign", combination(*zip(signs, terms, strict=True))
    for products, twice in (
        ((f"2bᵀ{F}", f"2aᵀ{F}", "2aᵀb"), _christoffel_terms(case, lambda x, y: 2.0 * x.mT @ y)),
        ((f"2{F}ᵀb", f"2{F}ᵀa", "2bᵀa"), _christoffel_terms(case, lambda x, y: 2.0 * y.mT @ x)),
    ):
        wholes = f"bᵀ{F} + {F}ᵀb", f"aᵀ{F} + {F}ᵀa", "aᵀb + bᵀa"
        for i, (product, whole) in enumerate(zip(products, wholes, strict=True)):
            mixed = [*terms[:i], twice[i], *terms[i + 1 :]]
            yield f"{product} stands where {whole} belongs in Γ", combination(*((1.0, term) for term in mixed))


def _christoffel_terms(case: Case, sum_of: Callable[[Array, Array], Array]) -> list[Parts]:
    """The three terms of Γ, with `sum_of`(x, y) for xᵀy + yᵀx."""
    G, H, S, T = _grams(case)
    terms: list[list[Array]] = [[], [], []]
    for own, other in ((0, 1), (1, 0)):
        factors, a, b = (G, H), tuple(case.vectors["a"]), tuple(case.vectors["b"])
        at = own if case.metric == "inv" else other
        W = np.linalg.inv((S, T)[at])
        sums = [sum_of(x, y) for x, y in ((b[at], factors[at]), (a[at], factors[at]), (a[at], b[at]))]
        for term, x, matrix, sign in zip(terms, (a[own], b[own], factors[own]), sums, (1.0, 1.0, -1.0), strict=True):
            term.append(-0.5 * sign * x @ W @ matrix if case.metric == "inv" else 0.5 * sign * x @ matrix @ W)
    return [tuple(term) for term in terms]


def _of_geodesic(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    t, point, v = case.t, case.point, case.vectors["v"]
    bend = formulas.christoffel(case.metric, *point, *v, *v)

    def curve(linear: float, quadratic: float) -> Parts:
        return combination((1.0, tuple(point)), (linear, tuple(v)), (-quadratic, bend))

    if value.order == 2:
        yield "your result is the geodesic of order 1", curve(t, 0.0)
        yield "a factor ½ is missing: θ + tv − t²Γ(v, v)", curve(t, t * t)
        yield "Γ has the wrong sign: θ + tv + ½t²Γ(v, v)", curve(t, -0.5 * t * t)
        yield "t is not squared: θ + tv − ½tΓ(v, v)", curve(t, 0.5 * t)
        yield "t is ignored: θ + v − ½Γ(v, v)", curve(1.0, 0.5)
        yield "t is applied twice to Γ: θ + tv − ½t⁴Γ(v, v)", curve(t, 0.5 * t**4)
    else:
        yield "your result is the geodesic of order 2", curve(t, 0.5 * t * t)
        yield "t is ignored: θ + v", curve(1.0, 0.0)
        yield "your result is tv, without the point", tuple(t * x for x in v)
        yield "the velocity has the wrong sign: θ − tv", curve(-t, 0.0)


def _of_hessian(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    e, w, v = case.inputs(value.operation)
    metric, (G, H) = case.metric, case.point

    def raised(x: Pair) -> Parts:
        return formulas.riemannian_gradient(metric, G, H, *x)

    def gamma(x: Parts) -> Parts:
        return formulas.christoffel(metric, G, H, x[0], x[1], *v)

    def projected(x: Parts) -> Parts:
        return formulas.horizontal_projection(metric, G, H, x[0], x[1])

    curved, w_raised = gamma(raised(e)), raised(w)
    # D grad f[v] = g⁻¹w + e D(g⁻¹)[v], of which the second is the rest of the whole covariant derivative
    adjoint = formulas.christoffel_adjoint(metric, G, H, *v, *e)
    covariant = raised(Pair(w.G - adjoint[0], w.H - adjoint[1]))
    change = combination((1.0, covariant), (-1.0, w_raised), (-1.0, curved))
    yield "your result is the Euclidean Hessian", tuple(w)
    yield "your result is g⁻¹ times the Euclidean Hessian, without the connection", w_raised
    yield "your result is g⁻¹ times the Euclidean Hessian, projected, without the connection", projected(w_raised)
    yield "the result is not projected to the horizontal space", covariant
    yield (
        "Γ(grad f, v) is missing: your result is P(D grad f[v])",
        projected(combination((1.0, w_raised), (1.0, change))),
    )
    yield "Γ(grad f, v) has the wrong sign", projected(combination((1.0, w_raised), (1.0, change), (-1.0, curved)))
    yield (
        "the derivative of the metric is missing from D grad f[v]",
        projected(combination((1.0, w_raised), (1.0, curved))),
    )
    against = combination((1.0, w_raised), (-1.0, change), (1.0, curved))
    yield "the derivative of the metric has the wrong sign in D grad f[v]", projected(against)
    S_dot, T_dot = (x.mT @ F + F.mT @ x for x, F in zip(v, (G, H), strict=True))
    if metric == "inv":
        exchanged: Parts = (e.G @ T_dot, e.H @ S_dot)
    else:
        gradient = raised(e)
        exchanged = raised(Pair(-gradient[0] @ S_dot, -gradient[1] @ T_dot))
    mixed = combination((1.0, w_raised), (1.0, exchanged), (1.0, curved))
    yield "the derivatives of S and T along v are exchanged in D grad f[v]", projected(mixed)
    double = combination((1.0, covariant), (1.0, curved))
    yield "a factor ½ is missing in Γ", projected(double)


_OWN_CANDIDATES: dict[str, Callable[[Value, Case, Parts], Iterator[Candidate]]] = {
    "inner_product": _of_inner_product,
    "horizontal_projection": _of_projection,
    "riemannian_gradient": _of_gradient,
    "riemannian_hessian": _of_hessian,
    "christoffel": _of_christoffel,
    "geodesic": _of_geodesic,
}


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
    except (BackendFailure, NotImplementedError):
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
