"""What the common mistakes give: each function's wrong formulas, by name.

Nothing is judged here. `refgeo.conformance.diagnosis` compares a backend's numbers with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import scipy  # its modules load where they are used

from refgeo import formulas
from refgeo.arguments import Array
from refgeo.conformance.case import Case
from refgeo.conformance.trial import Parts, combination
from refgeo.errors import GeodesicAccuracyError, GeodesicIncompleteError
from refgeo.metrics.pair import PAIR_METRICS, pair_metric
from refgeo.operations import Value, relative_speed
from refgeo.pair import Pair

Candidate = tuple[str, Parts]
"""What a mistake is called, and what it gives."""
_MODERATE = 10.0
"""How far, relatively, the factors of a geodesic may move."""


def _inputs(value: Value, case: Case) -> list[Array]:
    return [factor for pair in (case.point, *case.inputs(value.operation)) for factor in pair]


def formula_of(value: Value, case: Case, metric: str, relaxation: float) -> Parts:
    """A value by the paper's formulas, in double precision."""
    name, extra = value.operation.name, value.extra(case.t)
    if metric in PAIR_METRICS:
        result = getattr(formulas, name)(metric, *_inputs(value, case), *extra, relaxation=relaxation)
    else:  # between them the paper has no formulas
        space = pair_metric(metric, relaxation).at(case.point)
        result = getattr(space, name)(*case.inputs(value.operation), *extra)
    return tuple(result) if isinstance(result, (tuple, Pair)) else (np.asarray(result),)


def right_result(value: Value, case: Case) -> Parts:
    """No mistake, in double precision."""
    if value.order == "exact":
        return tuple(case.space.geodesic(case.vectors["v"], case.t, "exact"))
    return formula_of(value, case, case.metric, case.relaxation)


def mistakes(value: Value, case: Case, right: Parts) -> Iterator[Candidate]:
    """The mistakes that have no number in them, one after another."""
    if value.order == "exact":
        yield from _of_exact_geodesic(case)
        return
    if len(right) == 2 and right[0].shape == right[1].shape:
        yield "your result has its G and H parts exchanged", right[::-1]
    if len(right) == 2 and all(1 in part.shape[-2:] or part.shape[-2] == part.shape[-1] for part in right):
        # a single column is as good as a row where files lose dimensions of length one
        transposed = tuple(part if 1 in part.shape[-2:] else part.mT for part in right)
        yield "your result is transposed: rows and columns are exchanged", transposed
    if case.relaxation:
        return  # what follows is computed without
    for other in PAIR_METRICS:
        if other != case.metric:
            yield f"your result is that of the metric {other!r}", formula_of(value, case, other, 0.0)
    if case.metric in PAIR_METRICS:
        yield from _MISTAKES[value.operation.name](value, case, right)


def _of_exact_geodesic(case: Case) -> Iterator[Candidate]:
    v = case.vectors["v"]
    for order in (2, 1):
        yield f"your result is the geodesic of order {order}", tuple(case.space.geodesic(v, case.t, order))
    straight = case.space.horizontal_projection(v)
    if np.any(case.space.norm(v - straight) > 1e-6 * case.space.norm(v)):
        yield "the velocity is projected first", tuple(case.space.geodesic(straight, case.t, "exact"))


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
    if abs(t) * np.max(relative_speed(case.space, v)) <= _MODERATE:  # an integration of any other takes long
        with suppress(GeodesicIncompleteError, GeodesicAccuracyError):
            yield "your result is the exact geodesic", tuple(case.space.geodesic(v, t, "exact"))


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


_MISTAKES: dict[str, Callable[[Value, Case, Parts], Iterator[Candidate]]] = {
    "inner_product": _of_inner_product,
    "horizontal_projection": _of_projection,
    "riemannian_gradient": _of_gradient,
    "riemannian_hessian": _of_hessian,
    "christoffel": _of_christoffel,
    "geodesic": _of_geodesic,
}


# Those with a number in them: of steps, or ε -------------------------------------------------------------------------


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


def with_unfinished_inverse(value: Value, case: Case, start: str, steps: int) -> Parts:
    """The inner product of inv, or the gradient of mix; inverse Gram matrices by some steps X ← X(2I − SX)."""
    S_inverse, T_inverse = (_newton_schulz(x, start, steps) for x in _grams(case)[2:])
    if value.name == "riemannian_gradient":
        e_G, e_H = case.vectors["e"]
        return e_G @ T_inverse, e_H @ S_inverse
    a, b = case.vectors["a"], case.vectors["b"]
    terms = [S_inverse @ a.G.mT @ b.G, T_inverse @ a.H.mT @ b.H]
    return (np.asarray(sum(np.trace(term, axis1=-2, axis2=-1) for term in terms)),)


def damped(value: Value, case: Case, epsilon: float, sides: tuple[int, int], relative: str) -> Parts:
    """A value with S + εI, T + εI, or both; ε as it is, or a share of the "mean" diagonal entry or the "trace".

    S + εI is the Gram matrix of G stacked on √ε I; vectors get rows of zeros, and results lose them again.
    """
    arrays, h = _inputs(value, case), case.point.sizes[2]
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
