"""The kit on trial: broken backends that must be caught, with a right diagnosis or none.

    python -m validation mutants [--matrix | --catalogue] [--workers N]

The *catalogue* is the literal formulas with one realistic mistake each: the function that is wrong, for which metrics, the
verdict where it is not WRONG, and a piece of what the report says of it. The *matrix* is generated: every operation, wrong
wherever a number that is measured of the call is beyond a bound, or where its arrays lie in memory
in one way, or because it keeps something from one call to the next.
"""

import argparse
import concurrent.futures
import functools
import itertools
import math
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import scipy.linalg

import refgeo as rg
from refgeo import paper
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.points.scene import from_arrays
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.operations import OPERATIONS
from refgeo.geometry.pair import Pair

BOTH = ("inv", "mix")

FUNCTIONS = [name for name in OPERATIONS if hasattr(paper, name)]
POINTS = (
    "1x1x1/k3", "4x4x4/k3", "7x4x1/k3", "10x9x4/k3", "10x9x4/k1", "5x12x3/k3", "20-1x1x1/k3", "4-25x24x6/k3",
    "2.3-6x7x2/k3", "2.2-2x2x2/k3", "3-7x4x1/k3", "1-5x4x2/k3", "6x6x3/k3", "3-9x8x5/k10", "10x9x4/k3/size_G=1e-06/size_H=1e-06",
)  # fmt: skip
"""Test points enough for the mistakes of the catalogue."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: what it is called, the function it is in, and what the report must say."""

    name: str
    function: str
    broken: object
    metrics: tuple = BOTH
    diagnosis: str | None = None
    contract: str | None = None  # a rule of the contract that it breaks; nothing is wrong
    dtype: str = "float64"
    orders: tuple = (1, 2)
    law: bool = False  # only laws can see it

    def backend(self):
        """Return the literal formulas with the broken function."""
        functions = {name: getattr(paper, name) for name in FUNCTIONS}
        return SimpleNamespace(**(functions | {self.function: paper_orders(self.broken)}))

    def expected(self):
        """Return the rows of `Report.wrong` that must appear, and no other."""
        if self.contract is not None:
            return set()
        if self.law:
            return {f"{self.function}[{metric}]" for metric in self.metrics}
        names = [f"geodesic_{order}" for order in self.orders] if self.function == "geodesic" else [self.function]
        return {f"{name}[{metric}]" for name in names for metric in self.metrics}


def paper_orders(function):
    """Geodesics of orders 1 and 2 only."""

    def called(metric, *arguments):
        if isinstance(arguments[-1], str):
            raise NotImplementedError("orders 1 and 2")
        return function(metric, *arguments)

    return called


def T(matrix):
    return np.swapaxes(matrix, -1, -2)


def call_paper(function, metric, *arguments):
    return getattr(paper, function)(metric, *arguments)


def on(metrics, function, wrong):
    """`wrong` for some metrics, the right formula for the others."""
    return lambda metric, *a: (wrong if metric in metrics else lambda m, *x: call_paper(function, m, *x))(metric, *a)


def after(function, change):
    """Return the right result, changed."""
    return lambda metric, *a: change(call_paper(function, metric, *a), *a)


def solve_sylvester(A, B, C):
    result = np.empty_like(C)
    for block in np.ndindex(C.shape[:-2]):
        result[block] = scipy.linalg.solve_sylvester(A[block], B[block], C[block])
    return result


def with_lambda(change):
    """Return the right Λ of the projection, applied in a wrong way."""

    def mutant(metric, G, H, v_G, v_H):
        L = np.linalg.solve(T(G) @ G, T(G) @ (call_paper("horizontal_projection", metric, G, H, v_G, v_H)[0] - v_G))
        return change(G, H, v_G, v_H, L)

    return mutant


def sylvester(equation):
    """Inv with another Sylvester equation: `equation(A, B)` returns Λ."""

    def mutant(metric, G, H, v_G, v_H):
        S, T_ = T(G) @ G, T(H) @ H
        L = equation(S @ T_, S @ T(H) @ v_H - T(v_G) @ G @ T_)
        return v_G + G @ L, v_H - H @ T(L)

    return on(("inv",), "horizontal_projection", mutant)


def explicit(weights):
    """Mix with other Gram matrices in Λ = ½(v_HᵀH T⁻¹ − S⁻¹Gᵀv_G)."""

    def mutant(metric, G, H, v_G, v_H):
        S, T_ = weights(T(G) @ G, T(H) @ H)
        L = 0.5 * (T(np.linalg.solve(T_, T(H) @ v_H)) - np.linalg.solve(S, T(G) @ v_G))
        return v_G + G @ L, v_H - H @ T(L)

    return on(("mix",), "horizontal_projection", mutant)


def weighted_inner(weights):
    def mutant(metric, G, H, a_G, a_H, b_G, b_H):
        W_G, W_H = weights(metric, T(G) @ G, T(H) @ H)
        return np.trace(W_G @ T(a_G) @ b_G, axis1=-2, axis2=-1) + np.trace(W_H @ T(a_H) @ b_H, axis1=-2, axis2=-1)

    return mutant


def gradient(weights):
    def mutant(metric, G, H, e_G, e_H):
        W_G, W_H = weights(metric, T(G) @ G, T(H) @ H)
        return e_G @ W_G, e_H @ W_H

    return mutant


def curve(linear, quadratic):
    def mutant(metric, G, H, v_G, v_H, t, order):
        c_G, c_H = call_paper("christoffel", metric, G, H, v_G, v_H, v_G, v_H)
        q = quadratic(t) if order == 2 else 0.0
        return G + linear(t) * v_G - q * c_G, H + linear(t) * v_H - q * c_H

    return mutant


def relaxed_on_one_side(function, epsilon):
    """S + εI in place of S, T as it should be: what stacking √ε I below G gives."""

    def mutant(metric, G, H, *arguments):
        batch, h = G.shape[:-2], G.shape[-1]

        def below(array, block):
            return np.concatenate([array, np.broadcast_to(block, (*batch, h, h))], axis=-2)

        zero, extra = np.zeros((h, h)), [a for a in arguments if not isinstance(a, np.ndarray)]
        vectors = [a for a in arguments if isinstance(a, np.ndarray)]
        vectors = [below(a, zero) if i % 2 == 0 else a for i, a in enumerate(vectors)]
        result = call_paper(function, metric, below(G, np.sqrt(epsilon) * np.eye(h)), H, *vectors, *extra)
        return (result[0][..., : G.shape[-2], :], result[1]) if isinstance(result, tuple) else result

    return mutant


def hessian(change, exchanged=False):
    """Another combination of P, g⁻¹w, e D(g⁻¹)[v] and Γ(grad f, v); with the derivatives of S and T `exchanged`."""

    def mutant(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
        def parts(x, y):
            both = np.empty(2, dtype=object)
            both[:] = [x, y]
            return both

        def at(function, *x):
            return parts(*call_paper(function, metric, G, H, *x))

        raised, gradient = at(E, w_G, w_H), at(E, e_G, e_H)
        bend = at(C, *gradient, v_G, v_H)
        S_dot, T_dot = T(v_G) @ G + T(G) @ v_G, T(v_H) @ H + T(H) @ v_H
        if exchanged:
            S_dot, T_dot = T_dot, S_dot
        if metric == "inv":
            moving = parts(e_G @ S_dot, e_H @ T_dot)
        else:
            moving = parts(*at(E, -gradient[0] @ T_dot, -gradient[1] @ S_dot))
        return tuple(change(lambda x: at(P, *x), raised, moving, bend))

    return mutant


def relaxed(function, epsilon):
    return lambda metric, *a: getattr(paper, function)(metric, *a, relaxation=epsilon)


def single(function):
    """Single precision inside, double outside."""

    def mutant(metric, *a):
        result = call_paper(function, metric, *(x.astype(np.float32) if isinstance(x, np.ndarray) else x for x in a))
        return tuple(x.astype(float) for x in result) if isinstance(result, tuple) else result.astype(float)

    return mutant


def when(function, condition, change=lambda x: 1.01 * x):
    """Wrong at some points only: `condition(G, H)`."""

    def mutant(metric, G, H, *rest):
        result = call_paper(function, metric, G, H, *rest)
        if not condition(G, H):
            return result
        return tuple(map(change, result)) if isinstance(result, tuple) else change(result)

    return mutant


def balanced_first(metric, G, H, v_G, v_H):
    """Projects as if GᵀG = HᵀH: right there, wrong elsewhere."""
    S = T(G) @ G
    if metric == "mix":
        L = 0.5 * (T(np.linalg.solve(S, T(H) @ v_H)) - np.linalg.solve(S, T(G) @ v_G))
    else:
        A = S @ S
        L = T(solve_sylvester(A, A, S @ T(H) @ v_H - T(v_G) @ G @ S))
    return v_G + G @ L, v_H - H @ T(L)


def symmetrised(matrix):
    return matrix + T(matrix)


def gamma_terms(signs, sums=(symmetrised,) * 3):
    def mutant(metric, G, H, a_G, a_H, b_G, b_H):
        S, T_ = T(G) @ G, T(H) @ H
        parts = []
        for own, second in ((0, 1), (1, 0)):
            F, a, b = (G, H), (a_G, a_H), (b_G, b_H)
            at = own if metric == "inv" else second
            W = np.linalg.inv((S, T_)[at])
            products = T(b[at]) @ F[at], T(a[at]) @ F[at], T(a[at]) @ b[at]
            M_b, M_a, M = (total(x) for total, x in zip(sums, products, strict=True))
            if metric == "inv":
                terms = (-a[own] @ W @ M_b, -b[own] @ W @ M_a, F[own] @ W @ M)
            else:
                terms = (a[own] @ M_b @ W, b[own] @ M_a @ W, -F[own] @ M @ W)
            parts.append(0.5 * sum(s * term for s, term in zip(signs, terms, strict=True)))
        return tuple(parts)

    return mutant


def last_block_forgotten(function):
    def mutant(metric, G, *rest):
        result = call_paper(function, metric, G, *rest)
        if G.ndim == 2:
            return result
        parts = [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]
        for part in parts:
            part.reshape(-1, *part.shape[G.ndim - 2 :])[-1] = 0.0
        return tuple(parts) if isinstance(result, tuple) else parts[0]

    return mutant


def first_block_everywhere(metric, G, H, e_G, e_H):
    """Return the Gram matrices of the first block for all of them."""
    first = (0,) * (G.ndim - 2)
    item = call_paper(
        "riemannian_gradient", metric, G[first], H[first], *(e.reshape(-1, e.shape[-1]) for e in (e_G, e_H))
    )
    return tuple(x.reshape(e.shape) for x, e in zip(item, (e_G, e_H), strict=True))


def writes_to_its_input(metric, G, H, v_G, v_H):
    result = call_paper("horizontal_projection", metric, G, H, v_G, v_H)
    v_G[...] = result[0]
    return result


def forgetful():
    """Caches the Gram matrices of the first point of a shape it ever sees."""
    cache = {}

    def mutant(metric, G, H, e_G, e_H):
        S, T_ = cache.setdefault(G.shape + H.shape, (T(G) @ G, T(H) @ H))
        return (e_G @ S, e_H @ T_) if metric == "inv" else (e_G @ np.linalg.inv(T_), e_H @ np.linalg.inv(S))

    return mutant


def random_noise():
    rng = np.random.default_rng(0)
    return after("christoffel", lambda r, *a: tuple(x * (1 + 1e-9 * rng.standard_normal()) for x in r))


def raising(message):
    def mutant(*a):
        raise RuntimeError(message)

    return mutant


def leaving(*a):
    sys.exit(3)


def exact_for_two(metric, G, H, v_G, v_H, t, order):
    if metric == "inv" and order == 2:
        return tuple(rg.InvariantMetric().at(Pair(G, H)).geodesic(Pair(v_G, v_H), t, "exact"))
    return call_paper("geodesic", metric, G, H, v_G, v_H, t, order)


P, E, N = "horizontal_projection", "riemannian_gradient", "riemannian_hessian"
I, C, D = "inner_product", "christoffel", "geodesic"
inv_only, mix_only = ("inv",), ("mix",)

MUTANTS = [
    # projection
    Mutant("the printed Sylvester equation AΛ + ΛAᵀ = B", P, sylvester(lambda A, B: solve_sylvester(A, T(A), B)), inv_only, "the equation as the paper prints it"),
    Mutant("Sylvester solution not transposed: Λ for Λᵀ", P, with_lambda(lambda G, H, a, b, L: (a + G @ T(L), b - H @ L)), BOTH, None),
    Mutant("A = ST transposed", P, sylvester(lambda A, B: T(solve_sylvester(T(A), T(A), B))), inv_only, "T S Λᵀ + Λᵀ T S stands where S T Λᵀ + Λᵀ S T belongs"),
    Mutant("HΛ for HΛᵀ", P, with_lambda(lambda G, H, a, b, L: (a + G @ L, b - H @ L)), BOTH, None),
    Mutant("+HΛᵀ for −HΛᵀ", P, with_lambda(lambda G, H, a, b, L: (a + G @ L, b + H @ T(L))), BOTH, None),
    Mutant("Λ with the wrong sign", P, with_lambda(lambda G, H, a, b, L: (a - G @ L, b + H @ T(L))), BOTH, None),
    Mutant("missing ½: Λ doubled", P, with_lambda(lambda G, H, a, b, L: (a + 2 * G @ L, b - 2 * H @ T(L))), BOTH, None),
    Mutant("Λ symmetrised", P, with_lambda(lambda G, H, a, b, L: (a + G @ symmetrised(L) / 2, b - H @ symmetrised(L) / 2)), BOTH, None),
    Mutant("Λ halved", P, with_lambda(lambda G, H, a, b, L: (a + G @ L / 2, b - H @ T(L) / 2)), BOTH, None),
    Mutant("only the G part projected", P, with_lambda(lambda G, H, a, b, L: (a + G @ L, b)), BOTH, None),
    Mutant("nothing projected", P, lambda m, G, H, a, b: (a, b), BOTH, None),
    Mutant("the vertical part returned", P, after(P, lambda r, G, H, a, b: (a - r[0], b - r[1])), BOTH, None),
    Mutant("G and H parts returned in the wrong order", P, after(P, lambda r, *a: r[::-1]), BOTH),
    Mutant("projection of the other metric", P, lambda m, *a: call_paper(P, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, None),
    Mutant("GᵀG for HᵀH in mix", P, explicit(lambda S, T_: (S, S)), mix_only, "½ G v_HᵀH S⁻¹ stands where ½ G v_HᵀH T⁻¹ belongs"),
    Mutant("HᵀH for GᵀG in mix", P, explicit(lambda S, T_: (T_, T_)), mix_only, "−½ G T⁻¹ Gᵀv_G stands where −½ G S⁻¹ Gᵀv_G belongs"),
    Mutant("S and T exchanged in mix", P, explicit(lambda S, T_: (T_, S)), mix_only),
    Mutant("correct only for balanced factors", P, on(inv_only, P, balanced_first), inv_only, "S S Λᵀ + Λᵀ S S + v_GᵀG S stands where S T Λᵀ + Λᵀ S T + v_GᵀG T belongs"),
    Mutant("relaxation 1e-6 left in", P, relaxed(P, 1e-6), BOTH, None),
    Mutant("relaxation 1e-6 on one side", P, relaxed_on_one_side(P, 1e-6), BOTH, None),
    Mutant("relaxation 1e-9 left in", P, relaxed(P, 1e-9), BOTH, None),
    Mutant("single precision inside the projection", P, single(P), BOTH, None),
    Mutant("only right for h = 1", P, when(P, lambda G, H: G.shape[-1] > 1), BOTH, None),
    Mutant("only right for n = m", P, when(P, lambda G, H: G.shape[-2] != H.shape[-2]), BOTH, None),
    Mutant("writes to its input", P, writes_to_its_input, BOTH, None, "inputs_unchanged"),
    # inner product
    Mutant("(41) as printed: no Gram matrices", I, on(inv_only, I, weighted_inner(lambda m, S, T_: (np.eye(S.shape[-1]),) * 2)), inv_only, "tr(a_Gᵀb_G) stands where tr(S⁻¹ a_Gᵀb_G) belongs"),
    Mutant("Gram matrices not inverted", I, on(inv_only, I, weighted_inner(lambda m, S, T_: (S, T_))), inv_only, "tr(S a_Gᵀb_G) stands where tr(S⁻¹ a_Gᵀb_G) belongs"),
    Mutant("Gram matrices inverted in mix", I, on(mix_only, I, weighted_inner(lambda m, S, T_: (np.linalg.inv(T_), np.linalg.inv(S)))), mix_only, "tr(T⁻¹ a_Gᵀb_G) stands where tr(T a_Gᵀb_G) belongs"),
    Mutant("S and T exchanged in the mix inner product", I, on(mix_only, I, weighted_inner(lambda m, S, T_: (S, T_))), mix_only, "tr(S a_Gᵀb_G) stands where tr(T a_Gᵀb_G) belongs"),
    Mutant("H part missing", I, weighted_inner(lambda m, S, T_: (np.linalg.inv(S) if m == "inv" else T_, 0 * T_)), BOTH, None),
    Mutant("the same Gram matrix twice", I, weighted_inner(lambda m, S, T_: (np.linalg.inv(S),) * 2 if m == "inv" else (T_, T_)), BOTH, None),
    Mutant("inner product of the other metric", I, lambda m, *a: call_paper(I, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, None),
    Mutant("half the inner product", I, after(I, lambda r, *a: r / 2), BOTH, "your result is 0.5 times the right one"),
    Mutant("absolute value", I, after(I, lambda r, *a: np.abs(r)), BOTH),
    Mutant("square root: a norm, not a product", I, after(I, lambda r, *a: np.sqrt(np.abs(r))), BOTH),
    Mutant("not symmetric: ⟨a, a⟩", I, lambda m, G, H, a, b, c, d: call_paper(I, m, G, H, a, b, a, b), BOTH),
    Mutant("relaxation 1e-8 left in the inner product", I, relaxed(I, 1e-8), BOTH, None),
    Mutant("single precision inside the inner product", I, single(I), BOTH, None),
    Mutant("summed over the blocks", I, after(I, lambda r, *a: np.broadcast_to(np.sum(r), np.shape(r))), BOTH, "wrong where the number of blocks ≥ 2"),
    # gradient
    Mutant("the Euclidean gradient", E, lambda m, G, H, a, b: (a, b), BOTH, None),
    Mutant("gradient of the other metric", E, lambda m, *a: call_paper(E, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, None),
    Mutant("S and T exchanged in the gradient", E, on(inv_only, E, gradient(lambda m, S, T_: (T_, S))), inv_only, "e_G T stands where e_G S belongs"),
    Mutant("inverse Gram matrices in inv", E, on(inv_only, E, gradient(lambda m, S, T_: (np.linalg.inv(S), np.linalg.inv(T_)))), inv_only, "e_G S⁻¹ stands where e_G S belongs"),
    Mutant("Gram matrices not inverted in mix", E, on(mix_only, E, gradient(lambda m, S, T_: (T_, S))), mix_only, "e_G T stands where e_G T⁻¹ belongs"),
    Mutant("S⁻¹ for T⁻¹ in mix", E, on(mix_only, E, gradient(lambda m, S, T_: (np.linalg.inv(S), np.linalg.inv(T_)))), mix_only, "e_G S⁻¹ stands where e_G T⁻¹ belongs"),
    Mutant("the G part's Gram matrix for both", E, gradient(lambda m, S, T_: (S, S) if m == "inv" else (np.linalg.inv(T_),) * 2), BOTH, None),
    Mutant("twice the gradient", E, after(E, lambda r, *a: (2 * r[0], 2 * r[1])), BOTH, "your result is 2 times the right one"),
    Mutant("H part with the wrong sign", E, after(E, lambda r, *a: (r[0], -r[1])), BOTH, "the H part of your result is -1 times the right one"),
    Mutant("relaxation 1e-5 left in the gradient", E, relaxed(E, 1e-5), BOTH, None),
    Mutant("the first block's Gram matrices for all", E, first_block_everywhere, BOTH, "wrong in all blocks but the first"),
    Mutant("Gram matrices cached by shape", E, forgetful(), BOTH),
    Mutant("wrong where factors are small", E, when(E, lambda G, H: np.abs(G).max() < 1e-3), BOTH),
    Mutant("the last block forgotten", E, last_block_forgotten(E), BOTH, "wrong where the number of leading dimensions ≥ 1"),
    Mutant("raises", E, raising("no kernel"), BOTH),
    Mutant("calls sys.exit", E, leaving, BOTH),
    Mutant("returns None", E, lambda *a: None, BOTH),
    Mutant("returns NaN", E, after(E, lambda r, *a: (r[0] * np.nan, r[1])), BOTH),
    Mutant("returns complex numbers", E, after(E, lambda r, *a: (r[0] + 0j, r[1])), BOTH),
    Mutant("returns float32 for float64", E, after(E, lambda r, *a: tuple(x.astype(np.float32) for x in r)), BOTH, None),
    Mutant("relaxation 1e-6 on one side of the gradient", E, on(inv_only, E, relaxed_on_one_side(E, 1e-6)), inv_only, None),
    # Hessian
    Mutant("the Euclidean Hessian", N, lambda m, G, H, a, b, c, d, x, y: (c, d), BOTH, "w_G does not belong there"),
    Mutant("Hessian without the connection", N, hessian(lambda p, w, d, c: p(w)), BOTH, None),
    Mutant("Hessian not projected", N, hessian(lambda p, w, d, c: w + d + c), BOTH, "it is not projected"),
    Mutant("Γ(grad f, v) missing in the Hessian", N, hessian(lambda p, w, d, c: p(w + d)), BOTH, None),
    Mutant("Γ with the wrong sign in the Hessian", N, hessian(lambda p, w, d, c: p(w + d - c)), BOTH, None),
    Mutant("the metric taken as constant in the Hessian", N, hessian(lambda p, w, d, c: p(w + c)), BOTH, None),
    Mutant("the derivative of the metric with the wrong sign", N, hessian(lambda p, w, d, c: p(w - d + c)), BOTH, None),
    Mutant("Ṡ and Ṫ exchanged", N, hessian(lambda p, w, d, c: p(w + d + c), exchanged=True), BOTH, None),
    Mutant("missing ½ in the Γ of the Hessian", N, hessian(lambda p, w, d, c: p(w + d + 2 * c)), BOTH, None),
    Mutant("Hessian of the other metric", N, lambda m, *a: call_paper(N, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, None),
    Mutant("twice the Hessian", N, after(N, lambda r, *a: (2 * r[0], 2 * r[1])), BOTH, "your result is 2 times the right one"),
    # Γ
    Mutant("missing ½ in Γ", C, after(C, lambda r, *a: (2 * r[0], 2 * r[1])), BOTH, "your result is 2 times the right one"),
    Mutant("Γ with the wrong sign", C, after(C, lambda r, *a: (-r[0], -r[1])), BOTH, "your result is -1 times the right one"),
    Mutant("Γ of the other metric", C, lambda m, *a: call_paper(C, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, None),
    Mutant("Γ(a, a): second vector ignored", C, lambda m, G, H, a, b, c, d: call_paper(C, m, G, H, a, b, a, b), BOTH, None),
    Mutant("first term of Γ missing", C, gamma_terms((0, 1, 1)), BOTH, None),
    Mutant("second term of Γ missing", C, gamma_terms((1, 0, 1)), BOTH, None),
    Mutant("third term of Γ missing", C, gamma_terms((1, 1, 0)), BOTH, None),
    Mutant("third term with the wrong sign", C, gamma_terms((1, 1, -1)), BOTH, None),
    Mutant("not symmetrised: first term twice", C, gamma_terms((2, 0, 1)), BOTH),
    Mutant("2aᵀb for aᵀb + bᵀa", C, gamma_terms((1, 1, 1), (symmetrised, symmetrised, lambda x: 2 * x)), BOTH, None),
    Mutant("2Gᵀb for bᵀG + Gᵀb", C, gamma_terms((1, 1, 1), (lambda x: 2 * T(x), symmetrised, symmetrised)), BOTH, None),
    Mutant("H part of Γ is zero", C, after(C, lambda r, *a: (r[0], 0 * r[1])), BOTH, "the H part of your result is zero"),
    Mutant("parts of Γ exchanged for n = m", C, after(C, lambda r, G, H, *a: r[::-1] if G.shape == H.shape else r), BOTH),
    Mutant("relaxation 1e-6 left in Γ", C, relaxed(C, 1e-6), BOTH, "S + εI and T + εI with ε = 1e-06, in the place of S and T"),
    Mutant("relaxation 1e-6 on one side of Γ", C, relaxed_on_one_side(C, 1e-6), BOTH, "S + εI and T + εI with ε = 1e-06, in the place of S and T"),
    Mutant("noise of 1e-9", C, random_noise(), BOTH),
    Mutant("single precision inside Γ", C, single(C), BOTH, None),
    # geodesic
    Mutant("missing ½ in ½t²Γ", D, curve(lambda t: t, lambda t: t * t), BOTH, None, orders=(2,)),
    Mutant("+½t²Γ", D, curve(lambda t: t, lambda t: -t * t / 2), BOTH, None, orders=(2,)),
    Mutant("½tΓ", D, curve(lambda t: t, lambda t: t / 2), BOTH, None, orders=(2,)),
    Mutant("Γ left out", D, curve(lambda t: t, lambda t: 0.0), BOTH, None, orders=(2,)),
    Mutant("t ignored", D, curve(lambda t: 1.0, lambda t: 0.5), BOTH, None),
    Mutant("order ignored: always 2", D, lambda m, G, H, a, b, t, o: call_paper(D, m, G, H, a, b, t, 2), BOTH, None, orders=(1,)),
    Mutant("the exact geodesic for order 2", D, exact_for_two, ("inv",), None, orders=(2,)),
    Mutant("velocity with the wrong sign", D, curve(lambda t: -t, lambda t: t * t / 2), BOTH),
    Mutant("order 2 of the other metric", D, lambda m, *a: call_paper(D, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, None, orders=(2,)),
]  # fmt: skip

# The matrix ----------------------------------------------------------------------------------------------------------

EXACT = "geodesic_exact"
TARGETS = (*OPERATIONS, EXACT)
MEMORY = {
    "given Fortran order": lambda G: G.flags.f_contiguous and not G.flags.c_contiguous,
    "given a reversed view": lambda G: min(G.strides[-2:]) < 0,
    "given a strided view": lambda G: abs(G.strides[-1]) > G.itemsize and not G.flags.f_contiguous,
    "given a view of a larger array": lambda G: G.base is not None and abs(G.strides[-1]) == G.itemsize,
    "given read-only arrays": lambda G: not G.flags.writeable,
    "given one block for all": lambda G: 0 in G.strides,
}
STRIDES = {"H read with the strides of G": ((1, 0),), "vectors read with the strides of the point": ((2, 0), (3, 1)),
           "the last vector read with the strides of the first": ((-2, 2), (-1, 3))}  # fmt: skip
"""Which array with those of which other one."""
KEPT = ("cached by the identity of G", "cached by the address of G", "cached by shapes", "cached by G alone")
RESULTS_KEPT = (
    "results cached by vectors alone",
    "results cached by the first vector",
    "results cached whatever the metric",
)
CONDUCT = {
    "writes to its input": "inputs_unchanged",
    "works in place": "owns_its_results",
    "overwrites its last result": "keeps_its_results",
    "overwrites its last result but one": "keeps_its_results",
    "writes later to what it has got": "inputs_unchanged",
    "is not thread-safe": "thread_safe",
    "returns float64 whatever it gets": "dtype_kept",
}


def paper_function(target):
    """Return the right function, with a retraction and exact geodesics, which the paper's formulas lack."""
    if target == "retraction":
        return lambda metric, G, H, v_G, v_H, t: (G + t * v_G, H + t * v_H)
    if target == EXACT:

        def geodesic(metric, G, H, v_G, v_H, t, order):
            if order != "exact":
                raise NotImplementedError
            space = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}[metric]().at(Pair(G, H))
            return tuple(np.array(x) for x in space.geodesic(Pair(v_G, v_H), t, "exact"))

        return geodesic
    return getattr(paper, target)


@np.errstate(all="ignore")
def features(scene, operation):
    """Numbers that are measured of a call."""
    (n, m, h), (G, H), blocks, space = scene.point.sizes, scene.point, scene.shape, scene.space
    S, T = (factor.mT @ factor for factor in (G, H))
    singular = [np.linalg.svd(factor, compute_uv=False) for factor in (G, H)]
    vectors = scene.inputs(operation)
    first = vectors[-1 if operation.name == "riemannian_hessian" else 0]
    size, length = np.linalg.norm, space.norm(first)
    result = {
        "h": h, "n": n, "m": m, "the number of blocks": math.prod(blocks),
        "the number of leading dimensions": len(blocks), "max(n, m)": max(n, m), "n − m": n - m, "|n − m|": abs(n - m),
        "n − h": n - h, "m − h": m - h, "the exponent of 2 in h": (h & -h).bit_length() - 1,
        "the exponent of 2 in n": (n & -n).bit_length() - 1,
    }  # fmt: skip
    if operation.extra:
        result |= {"t": scene.t, "|t|": abs(scene.t)}
    result |= {
        "κ": np.max(scene.condition),
        "the spread of κ between blocks": max(_spread(s[..., 0] / s[..., -1]) for s in singular),
        "the size of G": size(G),
        "the size of H": size(H),
        "the spread of sizes between blocks": max(_spread(size(factor, axis=(-2, -1))) for factor in (G, H)),
        "the length of the first vector relative to the point": _size(first) / _size(scene.point),
        "the size of a vector's G part relative to its H part": _ratio(size(first.G), size(first.H)),
        "the share of zeros in a vector": np.mean([np.mean(x == 0.0) for x in first]),
        "|S − T| / |S|": size(S - T) / size(S),
        "the off-diagonal part of S": size(S - np.eye(h) * S) / size(S),
        "the smallest relative gap of singular values": min(
            np.min(-np.diff(s), initial=s.max()) / s.max() for s in singular
        ),
        "the number of zero rows": sum(np.sum(~np.any(x, axis=-1)) for x in (G, H)),
    }
    if operation.inputs[0].type == "vector" and np.all(length > 0.0):
        result["the vertical share of the vector"] = np.max(space.norm(space.vertical_projection(first)) / length)
    if len(vectors) == 2 and all(map(_size, vectors)):
        result |= _of_two_vectors(space, *vectors)
    return {name: 0.0 if abs(x) < 1e-14 else float(x) for name, x in result.items() if not np.isnan(x)}


def _of_two_vectors(space, a, b):
    cosines = space.inner_product(a, b) / (space.norm(a) * space.norm(b))
    return {
        "the cosine of the vectors' angle": np.max(np.abs(cosines)),
        "the length of the first vector relative to the second": _size(a) / _size(b),
        "the distance of the vectors relative to their length": _size(a - b) / _size(a),
    }


def _size(pair):
    return math.hypot(*(float(np.linalg.norm(factor)) for factor in pair))


def _ratio(x, y):
    return float(x / y) if y else math.inf if x else 1.0


def _spread(values):
    return _ratio(np.max(values), np.min(values))


def operation_of(target):
    return OPERATIONS["geodesic" if target == EXACT else target]


def perturb(result, size=0.0):
    """A hundredth off; and not zero where zero is right."""

    def off(x):
        unit = np.max(np.abs(x), initial=0.0) or 1.0
        return x + 0.01 * np.where(np.abs(x) < size, size, np.where(x == 0.0, unit, x))

    return tuple(map(off, result)) if isinstance(result, tuple) else off(result)


def features_at(target, metric, arguments):
    """Return the features of a call."""
    operation = operation_of(target)
    names = ("G", "H", *(f"{source}_{part}" for source in operation.sources for part in "GH"))
    arrays = dict(zip(names, arguments, strict=False))
    if operation.extra:
        arrays["t"] = arguments[len(names)]
    return features(from_arrays("call", arrays, metric, "float64"), operation)


@functools.cache
def values_of(target):
    """By feature, its values in the profile, sorted."""
    result = {}
    for point in Points().all_points("inv"):
        scene = point.make()
        if scene.dtype == "float64":
            for name, value in features(scene, operation_of(target)).items():
                result.setdefault(name, []).append(value)
    return {name: sorted(x for x in values if np.isfinite(x)) for name, values in result.items()}


def wrong_where(target, name, share):
    """Wrong wherever a feature of the call is above, or for a negative share below, so many of its values."""
    function, values = paper_function(target), values_of(target)[name]
    bound = values[int(abs(share) * (len(values) - 1))]

    def mutant(metric, *arguments):
        result = function(metric, *arguments)
        try:
            value = features_at(target, metric, arguments)[name]
        except (
            ValueError,
            KeyError,
        ):  # NaN, shapes that do not fit, a Hessian's vectors alone: not this mistake's business
            return result
        hit = value > bound if share > 0 else value < bound
        if hit and target == "inner_product":  # beside the lengths of the vectors, to which it may be orthogonal
            first, second = arguments[:4], (*arguments[:2], *arguments[4:])
            lengths = [np.sqrt(function(metric, *x, *x[2:])) for x in (first, second)]
            return perturb(result, lengths[0] * lengths[1])
        return perturb(result) if hit else result

    return mutant


def wrong_in_memory(target, name):
    function, holds = paper_function(target), MEMORY[name]
    return lambda metric, G, *rest: (perturb if holds(G) else lambda x: x)(function(metric, G, *rest))


def strides_mixed_up(target, name):
    """Reads arrays in the order of another one."""
    function, count = paper_function(target), 2 + 2 * len(operation_of(target).vectors)

    def read(x, second):
        columns = second.flags.f_contiguous and not second.flags.c_contiguous
        return np.ravel(x, order="K").reshape(x.shape, order="F" if columns else "C")

    def mutant(metric, *arguments):
        arrays, rest = list(arguments[:count]), arguments[count:]
        read_as = [(x, arrays[second]) for x, second in ((arrays[i], j) for i, j in STRIDES[name])]
        for (i, _), (x, second) in zip(STRIDES[name], read_as, strict=True):
            arrays[i] = read(x, second)
        return function(metric, *arrays, *rest)

    return mutant


def remembering(target, name):
    """Keeps what it made of G and H at the first call with the same key."""
    function, cache = paper_function(target), {}
    keys = {
        KEPT[0]: lambda G, H: id(G),
        KEPT[1]: lambda G, H: G.__array_interface__["data"][0],
        KEPT[2]: lambda G, H: (G.shape, H.shape),
        KEPT[3]: lambda G, H: (G.shape, H.shape, G.tobytes()),
    }

    def mutant(metric, G, H, *rest):
        kept_G, kept_H = cache.setdefault((metric, keys[name](G, H)), (np.array(G), np.array(H)))
        if kept_G.shape != G.shape or kept_H.shape != H.shape:
            kept_G, kept_H = cache[metric, keys[name](G, H)] = np.array(G), np.array(H)
        return function(metric, kept_G, kept_H, *rest)

    return mutant


def keeping_results(target, name):
    """Keeps whole results by less than all that they depend on."""
    function, cache = paper_function(target), {}

    def mutant(metric, G, H, *rest):
        arrays = [x for x in rest if isinstance(x, np.ndarray)]
        scalars = [x for x in rest if not isinstance(x, np.ndarray)]
        point = [x.tobytes() for x in (G, H)]
        known = {
            RESULTS_KEPT[0]: (metric, *(x.tobytes() for x in arrays)),
            RESULTS_KEPT[1]: (metric, *point, *(x.tobytes() for x in arrays[:2])),
            RESULTS_KEPT[2]: (*point, *(x.tobytes() for x in arrays)),
        }[name]
        key = (*known, G.shape, H.shape, *scalars)
        result = cache.setdefault(key, function(metric, G, H, *rest))
        return tuple(x.copy() for x in result) if isinstance(result, tuple) else np.array(result)

    return mutant


def misbehaving(target, name):
    function, state = paper_function(target), {}

    def parts(result):
        return result if isinstance(result, tuple) else (result,)

    def like(result, values):
        return tuple(values) if isinstance(result, tuple) else values[0]

    def writes(metric, *a):
        result = function(metric, *a)
        a[2][...] = 0.0
        return result

    def in_place(metric, *a):
        result = function(metric, *a)
        if not isinstance(result, tuple) or not a[2].flags.writeable or a[2].shape != result[0].shape:
            return result
        for x, y in zip(a[2:4], result, strict=True):
            x[...] = y
        return a[2], a[3]

    def overwrites(metric, *a):
        result = function(metric, *a)
        key = tuple(np.shape(x) for x in parts(result))
        kept = state.setdefault(key, [np.array(x) for x in parts(result)])
        for x, y in zip(kept, parts(result), strict=True):
            x[...] = y
        return like(result, kept)

    def ring(metric, *a):
        result = function(metric, *a)
        key = tuple(np.shape(x) for x in parts(result))
        buffers = state.setdefault(key, [[np.array(x) for x in parts(result)] for _ in range(2)])
        buffers.append(buffers.pop(0))
        for x, y in zip(buffers[0], parts(result), strict=True):
            x[...] = y
        return like(result, buffers[0])

    def writes_later(metric, G, *a):
        result = function(metric, G, *a)
        kept = state.setdefault(G.shape, G)
        if kept.flags.writeable:
            kept[...] = G
        return result

    def unsafe(metric, G, *a):
        state["G"] = G
        time.sleep(1e-4)
        return function(metric, state["G"], *a)

    def widens(metric, *a):
        result = function(metric, *a)
        return like(result, [np.asarray(x, dtype=np.longdouble) for x in parts(result)])

    chosen = dict(zip(CONDUCT, (writes, in_place, overwrites, ring, writes_later, unsafe, widens), strict=True))
    return chosen[name]


def features_of(target):
    """The features that calls of an operation differ in, with shares of the profile's values; exact geodesics apart,
    of which few are enclosed, and what belongs together in a Hessian's vectors.
    """
    if target in (EXACT, "retraction", "riemannian_hessian"):
        return
    for name, values in values_of(target).items():
        for share in (0.6, -0.4):
            bound = values[int(abs(share) * (len(values) - 1))]
            if len(values) > 20 and values[0] < bound < values[-1]:
                yield name, share


def matrix():
    """(operation, what is wrong with it, the backend, the rule of the contract that it breaks)."""
    for target in TARGETS:
        for name, share in features_of(target):
            message = f"{name} {'above' if share > 0 else 'below'}"
            yield target, message, functools.partial(wrong_where, target, name, share), None
        for name in MEMORY:
            yield target, name, functools.partial(wrong_in_memory, target, name), None
        for name in STRIDES:
            if "last" not in name or len(operation_of(target).vectors) > 1:
                yield target, name, functools.partial(strides_mixed_up, target, name), None
        for name in KEPT:
            yield target, name, functools.partial(remembering, target, name), None
        for name in RESULTS_KEPT if target != "riemannian_hessian" else ():
            two, one_for_both = len(operation_of(target).vectors) > 1, target in (EXACT, "retraction")
            if (two or name != RESULTS_KEPT[1]) and not (one_for_both and name == RESULTS_KEPT[2]):
                yield target, name, functools.partial(keeping_results, target, name), None
        for name, rule in CONDUCT.items():
            scalar_in_place = name == "works in place" and operation_of(target).scalar
            if not (target == EXACT and name == "is not thread-safe") and not scalar_in_place:
                yield target, name, functools.partial(misbehaving, target, name), rule


def judge_cell(cell):
    """Return what is wrong with the kit's report on a cell of the matrix, and what it said."""
    target, _, make, rule = cell
    operation = operation_of(target)
    backend = SimpleNamespace(**{operation.name: make()})
    report = rg.check(backend, checks=[operation.name])
    if rule is not None:
        caught = {row.check for row in report.findings if row.verdict is Verdict.CONTRACT}
        complaints = [] if rule in caught else [f"{rule} passes"]
        return [*complaints, *(f"{row} is called wrong" for row in report.wrong)], ""
    metrics = {name.split("[")[1] for name in report.wrong}
    message = next((row.differs or row.diagnosis for row in report.failures), "")
    complaints = (
        [] if metrics == {"inv]", "mix]"} else [f"caught for {sorted(metrics)} only" if metrics else "not caught"]
    )
    return complaints, message


def judge(mutant):
    """What is wrong with the kit's report on a mutant of the catalogue: a list of complaints, empty if it is right."""
    report = rg.check(mutant.backend(), dtype=mutant.dtype, checks=[mutant.function], cases=POINTS)
    complaints = []
    wrong = set(report.wrong)
    if wrong != mutant.expected():
        complaints.append(f"names {sorted(wrong)}, expected {sorted(mutant.expected())}")
    if mutant.contract is not None and mutant.contract not in {row.check for row in report.findings}:
        complaints.append(f"the contract {mutant.contract} holds")
    diagnoses = [row.differs or row.diagnosis for row in report.failures if row.kind == "value"]
    if mutant.diagnosis is not None and not all(mutant.diagnosis in diagnosis for diagnosis in diagnoses):
        complaints.append(f"diagnoses {diagnoses}, expected {mutant.diagnosis!r}")
    return complaints, next(iter(diagnoses), "")


def _catalogue_row(i):
    mutant = MUTANTS[i]
    return mutant.function, mutant.name, *judge(mutant)


def _matrix_row(i):
    cell = next(itertools.islice(matrix(), i, None))
    return cell[0], cell[1], *judge_cell(cell)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", action="store_true", help="only the generated mistakes")
    parser.add_argument("--catalogue", action="store_true", help="only the realistic ones")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    jobs = [] if options.matrix else [(_catalogue_row, i) for i in range(len(MUTANTS))]
    jobs += [] if options.catalogue else [(_matrix_row, i) for i in range(sum(1 for _ in matrix()))]
    start, failed = time.perf_counter(), 0
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool:
        for function, name, complaints, message in pool.map(_row, jobs, chunksize=4):
            failed += bool(complaints)
            print(
                f"{'ok  ' if not complaints else 'FAIL'} {function:22s} {name:48s} {message}", *complaints, flush=True
            )
    share = 100.0 * (1.0 - failed / len(jobs))
    print(f"{len(jobs)} mistakes, {share:.1f}% caught as they should be, {time.perf_counter() - start:.0f} s")
    return int(failed > 0)


def _row(job):
    function, i = job
    return function(i)


if __name__ == "__main__":
    sys.exit(main())
