"""What a wrong result looks like: the common mistakes, tried one by one against the backend's numbers.

A diagnosis never decides that something is wrong; it only says which known mistake gives the same wrong numbers, to the
precision of the dtype, or that none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from refgeo import formulas
from refgeo.conformance.backend import BackendFailure
from refgeo.conformance.cases import Case, make_case
from refgeo.conformance.checks import EXACT_GEODESIC, THRESHOLD, Check, gram_unit
from refgeo.conformance.trial import Trial
from refgeo.pair import Array, Pair, transpose

Parts = tuple[Array, ...]
Candidate = tuple[str, Parts]

NO_DIAGNOSIS = "no common mistake gives these numbers"


def diagnose(check: Check, trial: Trial, failing: list[Case], passing: list[Case]) -> str:
    """Which common mistake reproduces the wrong numbers of a value check.

    Parameters
    ----------
    check : Check
        The check that failed.
    trial : Trial
        A well-conditioned case on which it did.
    failing, passing : list of Case
        The decisive cases, by their outcome.

    Returns
    -------
    str
        A sentence; `NO_DIAGNOSIS` if nothing fits.
    """
    if check is EXACT_GEODESIC:  # the mistakes are made with the paper's formulas, which have no exact geodesic
        return NO_DIAGNOSIS
    try:
        result = _result(check, trial)
    except (BackendFailure, NotImplementedError):  # what fails has said why, in its row
        return NO_DIAGNOSIS
    tolerance = float(np.max(THRESHOLD * gram_unit(trial.case, 4)))
    with np.errstate(all="ignore"):
        for statement, candidate in _candidates(check, trial, result):
            if _distance(trial, result, candidate) <= min(tolerance, 1e-3):
                return statement
    return _where(check, trial, failing, passing) or _precision(check, trial, result) or NO_DIAGNOSIS


def _arguments(check: Check, case: Case) -> tuple[list[Array], tuple[Any, ...]]:
    arrays = [factor for pair in (case.point, *case.vectors(check.function)) for factor in pair]
    return arrays, ((case.t, _order(check)) if check.function == "geodesic" else ())


def _order(check: Check) -> Any:
    order = check.name.removeprefix("geodesic_")
    return int(order) if order.isdigit() else order


def _result(check: Check, trial: Trial) -> Parts:
    _, extra = _arguments(check, trial.case)
    result = trial.call(check.function, *trial.case.vectors(check.function), extra=extra)
    return result if isinstance(result, tuple) else (result,)


def _formula(check: Check, case: Case, metric: str, relaxation: float = 0.0) -> Parts:
    arrays, extra = _arguments(check, case)
    result = getattr(formulas, check.function)(metric, *arrays, *extra, relaxation=relaxation)
    return result if isinstance(result, tuple) else (result,)


def _distance(trial: Trial, result: Parts, candidate: Parts) -> float:
    """Relative, part by part, so that a wrong part cannot hide behind a large one."""
    worst = 0.0
    for one, other in zip(result, candidate, strict=True):
        if one.shape != other.shape or not np.isfinite(other).all():
            return np.inf
        size = np.linalg.norm(other)
        difference = np.linalg.norm(one - other)
        worst = max(worst, float(difference / size) if size > 0 else float(difference > 0))
    return worst


def _candidates(check: Check, trial: Trial, result: Parts) -> Iterator[Candidate]:
    case = trial.case
    right = _formula(check, case, case.metric)
    other_metric = "mix" if case.metric == "inv" else "inv"
    yield f"your result is that of the metric {other_metric!r}", _formula(check, case, other_metric)
    if len(right) == 2:
        yield "your result has its G and H parts exchanged", right[::-1]
    yield from _OWN_CANDIDATES[check.function](check, case, right)
    yield from _multiples(right, result)
    yield from _relaxed(check, case, right, result)


def _multiples(right: Parts, result: Parts) -> Iterator[Candidate]:
    factors = [float(np.vdot(x, y)) / max(float(np.vdot(x, x)), 1e-300) for x, y in zip(right, result, strict=True)]
    # one number is always a multiple of another
    if len(set(np.round(factors, 6))) == 1 and right[0].size > 2 and abs(factors[0] - 1.0) > 1e-3:
        yield f"your result is {factors[0]:.6g} times the right one", tuple(factors[0] * x for x in right)
    for name, i in (("G", 0), ("H", 1)):
        if len(right) == 2 and right[i].size > 2 and abs(factors[i] - 1.0) > 1e-3:
            changed = list(right)
            changed[i] = factors[i] * right[i]
            yield f"the {name} part of your result is {factors[i]:.6g} times the right one", tuple(changed)


def _relaxed(check: Check, case: Case, right: Parts, result: Parts) -> Iterator[Candidate]:
    """A relaxation of both Gram matrices, or of one."""
    relaxed: dict[str, Callable[[float], Parts]] = {
        "the Gram matrices": partial(_formula, check, case, case.metric),
        "S = GᵀG alone, one side only": partial(_relaxed_on_one_side, check, case, "G"),
        "T = HᵀH alone, one side only": partial(_relaxed_on_one_side, check, case, "H"),
    }
    for place, formula in relaxed.items():
        epsilon = _fitted(formula, right, result, 1e-6 * float(np.mean(case.point.G**2)))
        if epsilon is not None:
            yield f"a relaxation ε = {epsilon:.3g} is left in {place}", formula(epsilon)


def _relaxed_on_one_side(check: Check, case: Case, side: str, epsilon: float) -> Parts:
    """S + εI is the Gram matrix of G stacked on √ε I; vectors get rows of zeros, and results lose them again."""
    arrays, extra = _arguments(check, case)
    h = case.point.sizes[2]
    first = 0 if side == "G" else 1
    for i in range(first, len(arrays), 2):
        below = np.sqrt(epsilon) * np.eye(h) if i == first else np.zeros((h, h))
        batch = arrays[i].shape[:-2]
        arrays[i] = np.concatenate([arrays[i], np.broadcast_to(below, (*batch, h, h))], axis=-2)
    result = getattr(formulas, check.function)(case.metric, *arrays, *extra)
    if not isinstance(result, tuple):
        return (result,)
    return tuple(part[..., :rows, :] for part, rows in zip(result, case.point.sizes[:2], strict=True))


def _fitted(formula: Callable[[float], Parts], right: Parts, result: Parts, start: float) -> float | None:
    """The ε that explains the difference best, to first order and then corrected."""
    epsilon = start
    for _ in range(6):
        slope = [x - y for x, y in zip(formula(epsilon), right, strict=True)]
        denominator = sum(float(np.vdot(x, x)) for x in slope)
        if denominator == 0.0:
            return None
        numerator = sum(float(np.vdot(x, z - y)) for x, y, z in zip(slope, right, result, strict=True))
        epsilon *= numerator / denominator
        if not 0.0 < epsilon < 1e6:
            return None
    return epsilon


# The mistakes of each function ------------------------------------------------------------------------------------


def _grams(case: Case) -> tuple[Array, Array, Array, Array]:
    G, H = case.point
    return G, H, transpose(G) @ G, transpose(H) @ H


def _of_inner_product(check: Check, case: Case, right: Parts) -> Iterator[Candidate]:
    _, _, S, T = _grams(case)
    A_G, A_H = transpose(case.a.G) @ case.b.G, transpose(case.a.H) @ case.b.H
    inverse_S, inverse_T = np.linalg.inv(S), np.linalg.inv(T)

    def value(W_G: Array, W_H: Array) -> Parts:
        return (np.asarray(np.trace(W_G @ A_G, axis1=-2, axis2=-1) + np.trace(W_H @ A_H, axis1=-2, axis2=-1)),)

    eye, zero = np.eye(S.shape[-1]), np.zeros_like(S)
    G_weight, H_weight = (inverse_S, inverse_T) if case.metric == "inv" else (T, S)
    yield "the Gram matrices are missing: your result is tr(a_Gᵀb_G) + tr(a_Hᵀb_H)", value(eye, eye)
    yield "the Gram matrices are not inverted: tr(S a_Gᵀb_G) + tr(T a_Hᵀb_H)", value(S, T)
    yield "the Gram matrices are inverted and exchanged: tr(T⁻¹a_Gᵀb_G) + tr(S⁻¹a_Hᵀb_H)", value(inverse_T, inverse_S)
    yield "the H part uses the Gram matrix of the G part", value(G_weight, G_weight)
    yield "the G part uses the Gram matrix of the H part", value(H_weight, H_weight)
    yield "the H part is missing", value(G_weight, zero)
    yield "the G part is missing", value(zero, H_weight)


def _of_projection(check: Check, case: Case, right: Parts) -> Iterator[Candidate]:
    G, H, S, T = _grams(case)
    v_G, v_H = case.a
    # Λ from what the right projection added: G has full column rank
    L = np.linalg.solve(S, transpose(G) @ (right[0] - v_G))
    Lt = transpose(L)
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
    yield "the H part is not projected", (right[0], v_H)
    yield "the G part is not projected", (v_G, right[1])
    for statement, solve in (
        ("Λ solves AΛ + ΛAᵀ = B as printed; the definition gives AΛᵀ + ΛᵀA = B", _printed),
        ("Λ solves AᵀΛᵀ + ΛᵀAᵀ = B, with the transpose of A = ST", _transposed),
    ):
        wrong = _solved(solve, S, T, case)
        yield statement, (v_G + G @ wrong, v_H - H @ transpose(wrong))
    for statement, W_G, W_H in (
        ("the H part's Gram matrix is S = GᵀG where T = HᵀH belongs", S, S),
        ("the G part's Gram matrix is T = HᵀH where S = GᵀG belongs", T, T),
    ):
        wrong = 0.5 * (transpose(np.linalg.solve(W_H, transpose(H) @ v_H)) - np.linalg.solve(W_G, transpose(G) @ v_G))
        yield statement, (v_G + G @ wrong, v_H - H @ transpose(wrong))


def _printed(A: Array, B: Array) -> Array:
    return np.asarray(scipy.linalg.solve_sylvester(A, A.T, B))


def _transposed(A: Array, B: Array) -> Array:
    return np.asarray(scipy.linalg.solve_sylvester(A.T, A.T, B)).T


def _solved(solve: Callable[[Array, Array], Array], S: Array, T: Array, case: Case) -> Array:
    (G, H), (v_G, v_H) = case.point, case.a
    A, B = S @ T, S @ transpose(H) @ v_H - transpose(v_G) @ G @ T
    result = np.empty_like(A)
    for block in np.ndindex(A.shape[:-2]):
        result[block] = solve(A[block], B[block])
    return result


def _of_gradient(check: Check, case: Case, right: Parts) -> Iterator[Candidate]:
    _, _, S, T = _grams(case)
    e_G, e_H = case.e
    inverse_S, inverse_T = np.linalg.inv(S), np.linalg.inv(T)
    yield "your result is the Euclidean gradient", (e_G, e_H)
    exchanged, other = "S and T are exchanged", "a Gram matrix stands where its inverse belongs, or the reverse"
    inv = case.metric == "inv"
    yield f"{exchanged if inv else other}: (e_G T, e_H S)", (e_G @ T, e_H @ S)
    yield f"{other if inv else exchanged}: (e_G S⁻¹, e_H T⁻¹)", (e_G @ inverse_S, e_H @ inverse_T)
    G_weight, H_weight = (S, T) if case.metric == "inv" else (inverse_T, inverse_S)
    yield "the H part uses the Gram matrix of the G part", (right[0], e_H @ G_weight)
    yield "the G part uses the Gram matrix of the H part", (e_G @ H_weight, right[1])


def _of_christoffel(check: Check, case: Case, right: Parts) -> Iterator[Candidate]:
    a, b = case.a, case.b

    def gamma(x: Pair, y: Pair) -> Parts:
        return formulas.christoffel(case.metric, *case.point, *x, *y)

    double = tuple(2 * part for part in right)
    yield "a factor ½ is missing in Γ", double
    yield "Γ has the wrong sign", tuple(-part for part in right)
    yield "the second vector is ignored: your result is Γ(a, a)", gamma(a, a)
    yield "the first vector is ignored: your result is Γ(b, b)", gamma(b, b)
    yield "your result is the quadratic form Γ(a + b, a + b)", gamma(a + b, a + b)
    for dropped, name in enumerate(("a(bᵀG + Gᵀb)", "b(aᵀG + Gᵀa)", "G(aᵀb + bᵀa)")):
        terms = _christoffel_terms(case)
        signs = [1.0, 1.0, 1.0]
        signs[dropped] = 0.0
        yield f"the term {name} of Γ is missing", _weighted(terms, signs)
        signs[dropped] = -1.0
        yield f"the term {name} of Γ has the wrong sign", _weighted(terms, signs)


def _christoffel_terms(case: Case) -> list[Parts]:
    G, H, S, T = _grams(case)
    terms: list[list[Array]] = [[], [], []]
    for own, other in ((0, 1), (1, 0)):
        factors, a, b = (G, H), tuple(case.a), tuple(case.b)
        at = own if case.metric == "inv" else other
        W = np.linalg.inv((S, T)[at])
        sums = [
            transpose(x) @ y + transpose(y) @ x for x, y in ((b[at], factors[at]), (a[at], factors[at]), (a[at], b[at]))
        ]
        for term, x, matrix, sign in zip(terms, (a[own], b[own], factors[own]), sums, (1.0, 1.0, -1.0), strict=True):
            term.append(-0.5 * sign * x @ W @ matrix if case.metric == "inv" else 0.5 * sign * x @ matrix @ W)
    return [tuple(term) for term in terms]


def _weighted(terms: list[Parts], signs: list[float]) -> Parts:
    return tuple(sum(sign * term[i] for sign, term in zip(signs, terms, strict=True)) for i in (0, 1))  # type: ignore[misc]


def _of_geodesic(check: Check, case: Case, right: Parts) -> Iterator[Candidate]:
    t, point, v = case.t, case.point, case.a
    bend = formulas.christoffel(case.metric, *point, *v, *v)

    def curve(linear: float, quadratic: float) -> Parts:
        return tuple(p + linear * x - quadratic * c for p, x, c in zip(point, v, bend, strict=True))

    if check.name.endswith("_2"):
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


def _of_hessian(check: Check, case: Case, right: Parts) -> Iterator[Candidate]:
    e, w, v = case.hessian
    metric, (G, H) = case.metric, case.point

    def raised(x: Pair) -> Parts:
        return formulas.riemannian_gradient(metric, G, H, *x)

    def gamma(x: Parts) -> Parts:
        return formulas.christoffel(metric, G, H, x[0], x[1], *v)

    def projected(x: Parts) -> Parts:
        return formulas.horizontal_projection(metric, G, H, x[0], x[1])

    def total(*terms: tuple[float, Parts]) -> Parts:
        return tuple(np.asarray(sum(c * part[i] for c, part in terms)) for i in (0, 1))

    curved = gamma(raised(e))
    # D grad f[v] = g⁻¹w + e D(g⁻¹)[v], of which the second is the rest of the whole covariant derivative
    adjoint = formulas.christoffel_adjoint(metric, G, H, *v, *e)
    covariant = raised(Pair(w.G - adjoint[0], w.H - adjoint[1]))
    change = total((1.0, covariant), (-1.0, raised(w)), (-1.0, curved))
    yield "your result is the Euclidean Hessian", tuple(w)
    yield "your result is g⁻¹ times the Euclidean Hessian, without the connection", raised(w)
    yield "your result is g⁻¹ times the Euclidean Hessian, projected, without the connection", projected(raised(w))
    yield "the result is not projected to the horizontal space", covariant
    yield "Γ(grad f, v) is missing: your result is P(D grad f[v])", projected(total((1.0, raised(w)), (1.0, change)))
    yield "Γ(grad f, v) has the wrong sign", projected(total((1.0, raised(w)), (1.0, change), (-1.0, curved)))
    yield "the derivative of the metric is missing from D grad f[v]", projected(total((1.0, raised(w)), (1.0, curved)))
    double = total((1.0, covariant), (1.0, curved))
    yield "a factor ½ is missing in Γ", projected(double)


_OWN_CANDIDATES: dict[str, Callable[[Check, Case, Parts], Iterator[Candidate]]] = {
    "inner_product": _of_inner_product,
    "horizontal_projection": _of_projection,
    "riemannian_gradient": _of_gradient,
    "riemannian_hessian": _of_hessian,
    "christoffel": _of_christoffel,
    "geodesic": _of_geodesic,
}


# Where it is wrong -------------------------------------------------------------------------------------------------


def _where(check: Check, trial: Trial, failing: list[Case], passing: list[Case]) -> str | None:
    """A property of the points that separates the wrong ones from the right ones, or an experiment that does."""
    properties: tuple[tuple[str, Callable[[Case], bool]], ...] = (
        ("with leading dimensions (batches)", lambda case: bool(case.point.block_shape)),
        ("for h > 1", lambda case: case.point.sizes[2] > 1),
        ("for h = 1", lambda case: case.point.sizes[2] == 1),
        ("for n ≠ m", lambda case: case.point.sizes[0] != case.point.sizes[1]),
        ("for n < m", lambda case: case.point.sizes[0] < case.point.sizes[1]),
        ("where a factor is not of size 1", lambda case: not case.name.endswith("s1,1")),
        ("where the factors have different sizes", lambda case: not 0.1 < _size_ratio(case) < 10.0),
        ("where both factors are small", lambda case: case.name.endswith("s1e-06,1e-06")),
    )
    for statement, holds in properties:
        if failing and passing and all(map(holds, failing)) and not any(map(holds, passing)):
            return f"wrong only {statement}"
    case = trial.case
    balanced = make_case(case.name, case.metric, case.point.balanced()[0], trial.rng("blame"), trial.dtype, case.seed)
    a, b = (trial.rounded(case.space.horizontal_projection(vector)) for vector in (case.a, case.b))
    for statement, other in (
        ("correct only for balanced factors, GᵀG = HᵀH", balanced),
        ("correct only for horizontal vectors", replace(case, a=a, b=b)),
    ):
        if _is_right(check, trial, other):
            return statement
    return None


def _size_ratio(case: Case) -> float:
    return float(np.linalg.norm(case.point.G) / np.linalg.norm(case.point.H))


def _is_right(check: Check, trial: Trial, case: Case) -> bool:
    try:
        errors = check.relative_errors(Trial(trial.backend, case))
    except (BackendFailure, NotImplementedError):
        return False
    return bool(np.all(errors <= THRESHOLD * check.unit(case)))


def _precision(check: Check, trial: Trial, result: Parts) -> str | None:
    if trial.dtype != "float64":
        return None
    right = _formula(check, trial.case, trial.case.metric)
    error = _distance(trial, result, right)
    single = gram_unit(replace(trial.case, dtype="float32"), 1)
    if 1e-3 * np.min(single) < error < 30 * float(np.max(single)):
        return f"an error of {error:.1g} is of the size of single precision: float32 inside?"
    return None
