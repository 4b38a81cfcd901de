"""The kit on trial: broken backends that must be caught, with the right blame, and right ones that must not be accused.

    python -m validation.mutants

Every mutant is the literal formulas with one realistic mistake. For each: the function that is wrong, for which
metrics, the law that must fail where values cannot show it, and a piece of the diagnosis where the kit knows the mistake.
"""

import argparse
import contextlib
import io
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import scipy.linalg

import refgeo as rg
from refgeo import formulas
from refgeo.conformance.backend import FUNCTIONS

BOTH = ("inv", "mix")

POINTS = ("scalar", "diagonal", "vectors", "square/k1", "tall/k3", "heads/k3", "nested/k3", "wide-H/k3")
"""Test points enough for a mistake of any kind; right backends face the whole quick profile."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: what it is called, the function it is in, and what the report must say."""

    name: str
    function: str
    broken: object
    metrics: tuple = BOTH
    diagnosis: str | None = None
    law: str | None = None  # a law that must fail
    dtype: str = "float64"
    orders: tuple = (1, 2)

    def backend(self):
        """The literal formulas with the broken function."""
        functions = {name: getattr(formulas, name) for name in FUNCTIONS}
        return SimpleNamespace(**(functions | {self.function: self.broken}))

    def expected(self):
        """The rows of `Report.wrong` that must appear, and no other."""
        if self.law is not None:
            return {f"{self.function}[{metric}]" for metric in self.metrics}
        names = [f"geodesic_{order}" for order in self.orders] if self.function == "geodesic" else [self.function]
        return {f"{name}[{metric}]" for name in names for metric in self.metrics}


def T(matrix):
    return np.swapaxes(matrix, -1, -2)


def right(function, metric, *arguments):
    return getattr(formulas, function)(metric, *arguments)


def on(metrics, function, wrong):
    """`wrong` for some metrics, the right formula for the others."""
    return lambda metric, *a: (wrong if metric in metrics else lambda m, *x: right(function, m, *x))(metric, *a)


def after(function, change):
    """The right result, changed."""
    return lambda metric, *a: change(right(function, metric, *a), *a)


def solve_sylvester(A, B, C):
    result = np.empty_like(C)
    for block in np.ndindex(C.shape[:-2]):
        result[block] = scipy.linalg.solve_sylvester(A[block], B[block], C[block])
    return result


def with_lambda(change):
    """The right Λ of the projection, applied in a wrong way."""

    def broken(metric, G, H, v_G, v_H):
        L = np.linalg.solve(T(G) @ G, T(G) @ (right("horizontal_projection", metric, G, H, v_G, v_H)[0] - v_G))
        return change(G, H, v_G, v_H, L)

    return broken


def sylvester(equation):
    """Inv with another Sylvester equation: `equation(A, B)` returns Λ."""

    def broken(metric, G, H, v_G, v_H):
        S, T_ = T(G) @ G, T(H) @ H
        L = equation(S @ T_, S @ T(H) @ v_H - T(v_G) @ G @ T_)
        return v_G + G @ L, v_H - H @ T(L)

    return on(("inv",), "horizontal_projection", broken)


def explicit(weights):
    """Mix with other Gram matrices in Λ = ½(v_HᵀH T⁻¹ − S⁻¹Gᵀv_G)."""

    def broken(metric, G, H, v_G, v_H):
        S, T_ = weights(T(G) @ G, T(H) @ H)
        L = 0.5 * (T(np.linalg.solve(T_, T(H) @ v_H)) - np.linalg.solve(S, T(G) @ v_G))
        return v_G + G @ L, v_H - H @ T(L)

    return on(("mix",), "horizontal_projection", broken)


def weighted_inner(weights):
    def broken(metric, G, H, a_G, a_H, b_G, b_H):
        W_G, W_H = weights(metric, T(G) @ G, T(H) @ H)
        return np.trace(W_G @ T(a_G) @ b_G, axis1=-2, axis2=-1) + np.trace(W_H @ T(a_H) @ b_H, axis1=-2, axis2=-1)

    return broken


def gradient(weights):
    def broken(metric, G, H, e_G, e_H):
        W_G, W_H = weights(metric, T(G) @ G, T(H) @ H)
        return e_G @ W_G, e_H @ W_H

    return broken


def curve(linear, quadratic):
    def broken(metric, G, H, v_G, v_H, t, order):
        c_G, c_H = right("christoffel", metric, G, H, v_G, v_H, v_G, v_H)
        q = quadratic(t) if order == 2 else 0.0
        return G + linear(t) * v_G - q * c_G, H + linear(t) * v_H - q * c_H

    return broken


def relaxed_on_one_side(function, epsilon):
    """S + εI in place of S, T as it should be: what stacking √ε I below G gives."""

    def broken(metric, G, H, *arguments):
        batch, h = G.shape[:-2], G.shape[-1]

        def below(array, block):
            return np.concatenate([array, np.broadcast_to(block, (*batch, h, h))], axis=-2)

        zero, extra = np.zeros((h, h)), [a for a in arguments if not isinstance(a, np.ndarray)]
        vectors = [a for a in arguments if isinstance(a, np.ndarray)]
        vectors = [below(a, zero) if i % 2 == 0 else a for i, a in enumerate(vectors)]
        result = right(function, metric, below(G, np.sqrt(epsilon) * np.eye(h)), H, *vectors, *extra)
        return (result[0][..., : G.shape[-2], :], result[1]) if isinstance(result, tuple) else result

    return broken


def hessian(change):
    """Another combination of P, g⁻¹w, e D(g⁻¹)[v] and Γ(grad f, v)."""

    def broken(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
        def parts(x, y):
            both = np.empty(2, dtype=object)
            both[:] = [x, y]
            return both

        def at(function, *x):
            return parts(*right(function, metric, G, H, *x))

        raised, gradient = at(E, w_G, w_H), at(E, e_G, e_H)
        bend = at(C, *gradient, v_G, v_H)
        S_dot, T_dot = T(v_G) @ G + T(G) @ v_G, T(v_H) @ H + T(H) @ v_H
        if metric == "inv":
            moving = parts(e_G @ S_dot, e_H @ T_dot)
        else:
            moving = parts(*at(E, -gradient[0] @ T_dot, -gradient[1] @ S_dot))
        return tuple(change(lambda x: at(P, *x), raised, moving, bend))

    return broken


def relaxed(function, epsilon):
    return lambda metric, *a: getattr(formulas, function)(metric, *a, relaxation=epsilon)


def single(function):
    """Single precision inside, double outside."""

    def broken(metric, *a):
        result = right(function, metric, *(x.astype(np.float32) if isinstance(x, np.ndarray) else x for x in a))
        return tuple(x.astype(float) for x in result) if isinstance(result, tuple) else result.astype(float)

    return broken


def when(function, condition, change=lambda x: 1.01 * x):
    """Wrong at some points only: `condition(G, H)`."""

    def broken(metric, G, H, *rest):
        result = right(function, metric, G, H, *rest)
        if not condition(G, H):
            return result
        return tuple(map(change, result)) if isinstance(result, tuple) else change(result)

    return broken


def balanced_first(metric, G, H, v_G, v_H):
    """Projects as if GᵀG = HᵀH: right there, wrong elsewhere."""
    S = T(G) @ G
    if metric == "mix":
        L = 0.5 * (T(np.linalg.solve(S, T(H) @ v_H)) - np.linalg.solve(S, T(G) @ v_G))
    else:
        A = S @ S
        L = T(solve_sylvester(A, A, S @ T(H) @ v_H - T(v_G) @ G @ S))
    return v_G + G @ L, v_H - H @ T(L)


def gamma_terms(signs):
    def broken(metric, G, H, a_G, a_H, b_G, b_H):
        S, T_ = T(G) @ G, T(H) @ H
        parts = []
        for own, other in ((0, 1), (1, 0)):
            F, a, b = (G, H), (a_G, a_H), (b_G, b_H)
            at = own if metric == "inv" else other
            W = np.linalg.inv((S, T_)[at])
            M_b, M_a, M = (x + T(x) for x in (T(b[at]) @ F[at], T(a[at]) @ F[at], T(a[at]) @ b[at]))
            if metric == "inv":
                terms = (-a[own] @ W @ M_b, -b[own] @ W @ M_a, F[own] @ W @ M)
            else:
                terms = (a[own] @ M_b @ W, b[own] @ M_a @ W, -F[own] @ M @ W)
            parts.append(0.5 * sum(s * term for s, term in zip(signs, terms, strict=True)))
        return tuple(parts)

    return broken


def last_block_forgotten(function):
    def broken(metric, G, *rest):
        result = right(function, metric, G, *rest)
        if G.ndim == 2:
            return result
        parts = [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]
        for part in parts:
            part.reshape(-1, *part.shape[G.ndim - 2 :])[-1] = 0.0
        return tuple(parts) if isinstance(result, tuple) else parts[0]

    return broken


def first_block_everywhere(metric, G, H, e_G, e_H):
    """The Gram matrices of the first block for all of them."""
    first = (0,) * (G.ndim - 2)
    one = right("riemannian_gradient", metric, G[first], H[first], *(e.reshape(-1, e.shape[-1]) for e in (e_G, e_H)))
    return tuple(x.reshape(e.shape) for x, e in zip(one, (e_G, e_H), strict=True))


def writes_to_its_input(metric, G, H, v_G, v_H):
    result = right("horizontal_projection", metric, G, H, v_G, v_H)
    v_G[...] = result[0]
    return result


def chatty(metric, *a):
    print("christoffel called")
    return right("christoffel", metric, *a)


def forgetful():
    """Caches the Gram matrices of the first point of a shape it ever sees."""
    cache = {}

    def broken(metric, G, H, e_G, e_H):
        S, T_ = cache.setdefault(G.shape + H.shape, (T(G) @ G, T(H) @ H))
        return (e_G @ S, e_H @ T_) if metric == "inv" else (e_G @ np.linalg.inv(T_), e_H @ np.linalg.inv(S))

    return broken


def random_noise():
    rng = np.random.default_rng(0)
    return after("christoffel", lambda r, *a: tuple(x * (1 + 1e-9 * rng.standard_normal()) for x in r))


def raising(message):
    def broken(*a):
        raise RuntimeError(message)

    return broken


def leaving(*a):
    sys.exit(3)


def nan_spreads(metric, G, H, e_G, e_H):
    """Normalises by the whole batch, so that NaN in one block reaches all."""
    size = np.abs(e_G).max()
    result = right("riemannian_gradient", metric, G, H, e_G / size, e_H / size)
    return tuple(size * x for x in result)


def broadcasts_anything(metric, G, H, v_G, v_H, t, order):
    return right("geodesic", metric, G, H, v_G[..., : G.shape[-1]], v_H, t, order)


P, E, N = "horizontal_projection", "riemannian_gradient", "riemannian_hessian"
I, C, D = "inner_product", "christoffel", "geodesic"
inv_only, mix_only = ("inv",), ("mix",)

MUTANTS = [
    # projection
    Mutant("the printed Sylvester equation AΛ + ΛAᵀ = B", P, sylvester(lambda A, B: solve_sylvester(A, T(A), B)), inv_only, "as printed"),
    Mutant("Sylvester solution not transposed: Λ for Λᵀ", P, with_lambda(lambda G, H, a, b, L: (a + G @ T(L), b - H @ L)), BOTH, "Λᵀ where Λ belongs"),
    Mutant("A = ST transposed", P, sylvester(lambda A, B: T(solve_sylvester(T(A), T(A), B))), inv_only, "transpose of A"),
    Mutant("HΛ for HΛᵀ", P, with_lambda(lambda G, H, a, b, L: (a + G @ L, b - H @ L)), BOTH, "H part has Λ"),
    Mutant("+HΛᵀ for −HΛᵀ", P, with_lambda(lambda G, H, a, b, L: (a + G @ L, b + H @ T(L))), BOTH, "must be subtracted"),
    Mutant("Λ with the wrong sign", P, with_lambda(lambda G, H, a, b, L: (a - G @ L, b + H @ T(L))), BOTH, "wrong sign"),
    Mutant("missing ½: Λ doubled", P, with_lambda(lambda G, H, a, b, L: (a + 2 * G @ L, b - 2 * H @ T(L))), BOTH, "½ is missing"),
    Mutant("Λ halved", P, with_lambda(lambda G, H, a, b, L: (a + G @ L / 2, b - H @ T(L) / 2)), BOTH, "half"),
    Mutant("only the G part projected", P, with_lambda(lambda G, H, a, b, L: (a + G @ L, b)), BOTH, "H part is not projected"),
    Mutant("nothing projected", P, lambda m, G, H, a, b: (a, b), BOTH, "nothing is projected"),
    Mutant("the vertical part returned", P, after(P, lambda r, G, H, a, b: (a - r[0], b - r[1])), BOTH, "vertical part"),
    Mutant("G and H parts returned in the wrong order", P, after(P, lambda r, *a: r[::-1]), BOTH),
    Mutant("projection of the other metric", P, lambda m, *a: right(P, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, "metric"),
    Mutant("GᵀG for HᵀH in mix", P, explicit(lambda S, T_: (S, S)), mix_only, "S = GᵀG where T"),
    Mutant("HᵀH for GᵀG in mix", P, explicit(lambda S, T_: (T_, T_)), mix_only, "T = HᵀH where S"),
    Mutant("S and T exchanged in mix", P, explicit(lambda S, T_: (T_, S)), mix_only),
    Mutant("correct only for balanced factors", P, on(inv_only, P, balanced_first), inv_only, "correct only for balanced"),
    Mutant("relaxation 1e-6 left in", P, relaxed(P, 1e-6), BOTH, "relaxation"),
    Mutant("relaxation 1e-6 on one side", P, relaxed_on_one_side(P, 1e-6), BOTH, "one side only"),
    Mutant("relaxation 1e-9 left in", P, relaxed(P, 1e-9), BOTH, "relaxation"),
    Mutant("single precision inside the projection", P, single(P), BOTH, "single precision"),
    Mutant("only right for h = 1", P, when(P, lambda G, H: G.shape[-1] > 1), BOTH, None),
    Mutant("only right for n = m", P, when(P, lambda G, H: G.shape[-2] != H.shape[-2]), BOTH, None),
    Mutant("writes to its input", P, writes_to_its_input, BOTH, None, "inputs_unchanged"),
    # inner product
    Mutant("(41) as printed: no Gram matrices", I, on(inv_only, I, weighted_inner(lambda m, S, T_: (np.eye(S.shape[-1]),) * 2)), inv_only, "Gram matrices are missing"),
    Mutant("Gram matrices not inverted", I, on(inv_only, I, weighted_inner(lambda m, S, T_: (S, T_))), inv_only, "not inverted"),
    Mutant("Gram matrices inverted in mix", I, on(mix_only, I, weighted_inner(lambda m, S, T_: (np.linalg.inv(T_), np.linalg.inv(S)))), mix_only, "inverted"),
    Mutant("S and T exchanged in the mix inner product", I, on(mix_only, I, weighted_inner(lambda m, S, T_: (S, T_))), mix_only, "not inverted"),
    Mutant("H part missing", I, weighted_inner(lambda m, S, T_: (np.linalg.inv(S) if m == "inv" else T_, 0 * T_)), BOTH, "H part is missing"),
    Mutant("the same Gram matrix twice", I, weighted_inner(lambda m, S, T_: (np.linalg.inv(S),) * 2 if m == "inv" else (T_, T_)), BOTH, "Gram matrix of the G part"),
    Mutant("inner product of the other metric", I, lambda m, *a: right(I, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, "metric"),
    Mutant("half the inner product", I, after(I, lambda r, *a: r / 2), BOTH, "0.5 times"),
    Mutant("absolute value", I, after(I, lambda r, *a: np.abs(r)), BOTH),
    Mutant("square root: a norm, not a product", I, after(I, lambda r, *a: np.sqrt(np.abs(r))), BOTH),
    Mutant("not symmetric: ⟨a, a⟩", I, lambda m, G, H, a, b, c, d: right(I, m, G, H, a, b, a, b), BOTH),
    Mutant("relaxation 1e-8 left in the inner product", I, relaxed(I, 1e-8), BOTH, "relaxation"),
    Mutant("single precision inside the inner product", I, single(I), BOTH, "single precision"),
    Mutant("summed over the blocks", I, after(I, lambda r, *a: np.broadcast_to(np.sum(r), np.shape(r))), BOTH, "batches"),
    # gradient
    Mutant("the Euclidean gradient", E, lambda m, G, H, a, b: (a, b), BOTH, "Euclidean gradient"),
    Mutant("gradient of the other metric", E, lambda m, *a: right(E, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, "metric"),
    Mutant("S and T exchanged in the gradient", E, on(inv_only, E, gradient(lambda m, S, T_: (T_, S))), inv_only, "exchanged"),
    Mutant("inverse Gram matrices in inv", E, on(inv_only, E, gradient(lambda m, S, T_: (np.linalg.inv(S), np.linalg.inv(T_)))), inv_only, "where its inverse belongs"),
    Mutant("Gram matrices not inverted in mix", E, on(mix_only, E, gradient(lambda m, S, T_: (T_, S))), mix_only, "where its inverse belongs"),
    Mutant("S⁻¹ for T⁻¹ in mix", E, on(mix_only, E, gradient(lambda m, S, T_: (np.linalg.inv(S), np.linalg.inv(T_)))), mix_only, "S and T are exchanged"),
    Mutant("the G part's Gram matrix for both", E, gradient(lambda m, S, T_: (S, S) if m == "inv" else (np.linalg.inv(T_),) * 2), BOTH, "Gram matrix of the G part"),
    Mutant("twice the gradient", E, after(E, lambda r, *a: (2 * r[0], 2 * r[1])), BOTH, "2 times"),
    Mutant("H part with the wrong sign", E, after(E, lambda r, *a: (r[0], -r[1])), BOTH, "H part of your result is -1"),
    Mutant("relaxation 1e-5 left in the gradient", E, relaxed(E, 1e-5), BOTH, "relaxation"),
    Mutant("the first block's Gram matrices for all", E, first_block_everywhere, BOTH, "batches"),
    Mutant("Gram matrices cached by shape", E, forgetful(), BOTH),
    Mutant("wrong where factors are small", E, when(E, lambda G, H: np.abs(G).max() < 1e-3), BOTH),
    Mutant("the last block forgotten", E, last_block_forgotten(E), BOTH, "batches"),
    Mutant("NaN spreads over the batch", E, nan_spreads, BOTH, None, "nan_stays_in_its_block"),
    Mutant("raises", E, raising("no kernel"), BOTH),
    Mutant("calls sys.exit", E, leaving, BOTH),
    Mutant("returns None", E, lambda *a: None, BOTH),
    Mutant("returns NaN", E, after(E, lambda r, *a: (r[0] * np.nan, r[1])), BOTH),
    Mutant("returns complex numbers", E, after(E, lambda r, *a: (r[0] + 0j, r[1])), BOTH),
    Mutant("returns float32 for float64", E, after(E, lambda r, *a: tuple(x.astype(np.float32) for x in r)), BOTH, "single precision"),
    Mutant("relaxation 1e-6 on one side of the gradient", E, on(inv_only, E, relaxed_on_one_side(E, 1e-6)), inv_only, "one side only"),
    # Hessian
    Mutant("the Euclidean Hessian", N, lambda m, G, H, a, b, c, d, x, y: (c, d), BOTH, "Euclidean Hessian"),
    Mutant("Hessian without the connection", N, hessian(lambda p, w, d, c: p(w)), BOTH, "without the connection"),
    Mutant("Hessian not projected", N, hessian(lambda p, w, d, c: w + d + c), BOTH, "not projected"),
    Mutant("Γ(grad f, v) missing in the Hessian", N, hessian(lambda p, w, d, c: p(w + d)), BOTH, "Γ(grad f, v) is missing"),
    Mutant("Γ with the wrong sign in the Hessian", N, hessian(lambda p, w, d, c: p(w + d - c)), BOTH, "wrong sign"),
    Mutant("the metric taken as constant in the Hessian", N, hessian(lambda p, w, d, c: p(w + c)), BOTH, "derivative of the metric is missing"),
    Mutant("missing ½ in the Γ of the Hessian", N, hessian(lambda p, w, d, c: p(w + d + 2 * c)), BOTH, "½ is missing"),
    Mutant("Hessian of the other metric", N, lambda m, *a: right(N, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, "metric"),
    Mutant("twice the Hessian", N, after(N, lambda r, *a: (2 * r[0], 2 * r[1])), BOTH, "2 times"),
    # Γ
    Mutant("missing ½ in Γ", C, after(C, lambda r, *a: (2 * r[0], 2 * r[1])), BOTH, "½ is missing"),
    Mutant("Γ with the wrong sign", C, after(C, lambda r, *a: (-r[0], -r[1])), BOTH, "wrong sign"),
    Mutant("Γ of the other metric", C, lambda m, *a: right(C, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, "metric"),
    Mutant("Γ(a, a): second vector ignored", C, lambda m, G, H, a, b, c, d: right(C, m, G, H, a, b, a, b), BOTH, "second vector"),
    Mutant("first term of Γ missing", C, gamma_terms((0, 1, 1)), BOTH, "a(bᵀG + Gᵀb) of Γ is missing"),
    Mutant("second term of Γ missing", C, gamma_terms((1, 0, 1)), BOTH, "b(aᵀG + Gᵀa) of Γ is missing"),
    Mutant("third term of Γ missing", C, gamma_terms((1, 1, 0)), BOTH, "G(aᵀb + bᵀa) of Γ is missing"),
    Mutant("third term with the wrong sign", C, gamma_terms((1, 1, -1)), BOTH, "G(aᵀb + bᵀa) of Γ has the wrong sign"),
    Mutant("not symmetrised: first term twice", C, gamma_terms((2, 0, 1)), BOTH),
    Mutant("H part of Γ is zero", C, after(C, lambda r, *a: (r[0], 0 * r[1])), BOTH, "H part of your result is 0"),
    Mutant("parts of Γ exchanged for n = m", C, after(C, lambda r, G, H, *a: r[::-1] if G.shape == H.shape else r), BOTH),
    Mutant("relaxation 1e-6 left in Γ", C, relaxed(C, 1e-6), BOTH, "relaxation"),
    Mutant("relaxation 1e-6 on one side of Γ", C, relaxed_on_one_side(C, 1e-6), BOTH, "one side only"),
    Mutant("noise of 1e-9", C, random_noise(), BOTH),
    Mutant("prints", C, chatty, BOTH, None, "silent"),
    Mutant("single precision inside Γ", C, single(C), BOTH, "single precision"),
    # geodesic
    Mutant("missing ½ in ½t²Γ", D, curve(lambda t: t, lambda t: t * t), BOTH, "½ is missing", orders=(2,)),
    Mutant("+½t²Γ", D, curve(lambda t: t, lambda t: -t * t / 2), BOTH, "wrong sign", orders=(2,)),
    Mutant("½tΓ", D, curve(lambda t: t, lambda t: t / 2), BOTH, "not squared", orders=(2,)),
    Mutant("Γ left out", D, curve(lambda t: t, lambda t: 0.0), BOTH, "order 1", orders=(2,)),
    Mutant("t ignored", D, curve(lambda t: 1.0, lambda t: 0.5), BOTH, "t is ignored"),
    Mutant("order ignored: always 2", D, lambda m, G, H, a, b, t, o: right(D, m, G, H, a, b, t, 2), BOTH, "order 2", orders=(1,)),
    Mutant("velocity with the wrong sign", D, curve(lambda t: -t, lambda t: t * t / 2), BOTH),
    Mutant("order 2 of the other metric", D, lambda m, *a: right(D, {"inv": "mix", "mix": "inv"}[m], *a), BOTH, "metric", orders=(2,)),
    Mutant("accepts vectors of any shape", D, broadcasts_anything, BOTH, None, "wrong_shapes_raise"),
]  # fmt: skip


# Right backends, each in its own way --------------------------------------------------------------------------------


def _backend(inverse_product, projection=None, christoffel=None):
    """All functions from `inverse_product(F, M)` = (FᵀF)⁻¹ M."""

    def gram_weights(metric, G, H):
        return (lambda M: inverse_product(G, M), lambda M: inverse_product(H, M)) if metric == "inv" else (
            lambda M: T(H) @ (H @ M), lambda M: T(G) @ (G @ M))  # fmt: skip

    def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
        W_G, W_H = gram_weights(metric, G, H)
        return np.einsum("...ii", W_G(T(a_G) @ b_G)) + np.einsum("...ii", W_H(T(a_H) @ b_H))

    def riemannian_gradient(metric, G, H, e_G, e_H):
        if metric == "inv":
            return (e_G @ T(G)) @ G, (e_H @ T(H)) @ H
        return T(inverse_product(H, T(e_G))), T(inverse_product(G, T(e_H)))

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order not in (1, 2):
            raise NotImplementedError
        if order == 1:
            return G + t * v_G, H + t * v_H
        c_G, c_H = (christoffel or gamma)(metric, G, H, v_G, v_H, v_G, v_H)
        return G + (t * v_G - 0.5 * t * t * c_G), H + (t * v_H - 0.5 * t * t * c_H)

    def gamma(metric, G, H, a_G, a_H, b_G, b_H):
        def sums(x, y):
            return T(x) @ y + T(y) @ x

        if metric == "inv":
            return tuple(
                0.5 * (F @ inverse_product(F, sums(a, b)) - a @ inverse_product(F, sums(b, F)) - b @ inverse_product(F, sums(a, F)))
                for F, a, b in ((G, a_G, b_G), (H, a_H, b_H))
            )  # fmt: skip
        return tuple(
            0.5 * T(inverse_product(K, T(a @ sums(d, K) + b @ sums(c, K) - F @ sums(c, d))))
            for F, K, a, b, c, d in ((G, H, a_G, b_G, a_H, b_H), (H, G, a_H, b_H, a_G, b_G))
        )

    def project(metric, G, H, v_G, v_H):
        if metric == "mix":
            L = 0.5 * (T(inverse_product(H, T(H) @ v_H)) - inverse_product(G, T(G) @ v_G))
        else:
            S, T_ = T(G) @ G, T(H) @ H
            d, Q = np.linalg.eigh(S)
            root, white = Q * np.sqrt(d)[..., None, :], Q / np.sqrt(d)[..., None, :]
            s, U = np.linalg.eigh(T(root) @ T_ @ root)
            V, V_inverse = root @ U, T(U) @ T(white)
            B = S @ T(H) @ v_H - T(v_G) @ G @ T_
            L = T(V @ ((V_inverse @ B @ V) / (s[..., :, None] + s[..., None, :])) @ V_inverse)
        return v_G + G @ L, v_H - H @ T(L)

    def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
        S_dot, T_dot = T(v_G) @ G + T(G) @ v_G, T(v_H) @ H + T(H) @ v_H
        g_G, g_H = riemannian_gradient(metric, G, H, e_G, e_H)
        if metric == "inv":
            d_G, d_H = w_G @ T(G) @ G + e_G @ S_dot, w_H @ T(H) @ H + e_H @ T_dot
        else:
            d_G, d_H = riemannian_gradient(metric, G, H, w_G - g_G @ T_dot, w_H - g_H @ S_dot)
        c_G, c_H = (christoffel or gamma)(metric, G, H, g_G, g_H, v_G, v_H)
        return (projection or project)(metric, G, H, d_G + c_G, d_H + c_H)

    return SimpleNamespace(
        inner_product=inner_product,
        horizontal_projection=projection or project,
        riemannian_gradient=riemannian_gradient,
        riemannian_hessian=riemannian_hessian,
        christoffel=christoffel or gamma,
        geodesic=geodesic,
    )


def _by_cholesky(F, M):
    L = np.linalg.cholesky(T(F) @ F)
    return np.linalg.solve(T(L), np.linalg.solve(L, M))


def _by_qr(F, M):
    R = np.linalg.qr(F, mode="r")
    return np.linalg.solve(R, np.linalg.solve(T(R), M))


def _by_pinv(F, M):
    pinv = np.linalg.pinv(F)
    return pinv @ (T(pinv) @ M)


def _by_lstsq(F, M):
    """F⁺(F⁺)ᵀM, one least-squares problem a block."""
    result = np.empty_like(M)
    for block in np.ndindex(F.shape[:-2]):
        dual = np.linalg.lstsq(F[block].T, M[block], rcond=None)[0]
        result[block] = np.linalg.lstsq(F[block], dual, rcond=None)[0]
    return result


def _dense_projection(metric, G, H, v_G, v_H):
    """Normal equations of the vertical space with an h²×h² matrix, by einsum."""
    S, T_ = T(G) @ G, T(H) @ H
    W_G, W_H = (np.linalg.inv(S), np.linalg.inv(T_)) if metric == "inv" else (T_, S)
    h = G.shape[-1]
    # ⟨(GK, −HKᵀ), (GL, −HLᵀ)⟩ = tr(W_G KᵀSL) + tr(W_H K T Lᵀ)
    operator = np.einsum("...ik,...lj->...ijkl", S, W_G) + np.einsum("...ik,...lj->...ijkl", W_H, T_)
    right_side = W_H @ T(v_H) @ H - T(G) @ v_G @ W_G
    L = np.linalg.solve(
        operator.reshape(*G.shape[:-2], h * h, h * h), right_side.reshape(*G.shape[:-2], h * h, 1)
    ).reshape(right_side.shape)
    return v_G + G @ L, v_H - H @ T(L)


def _loop(backend):
    """One block at a time."""

    def looped(function):
        def call(metric, *arguments):
            arrays = [a for a in arguments if isinstance(a, np.ndarray)]
            extra = [a for a in arguments if not isinstance(a, np.ndarray)]
            leading = arrays[0].shape[:-2]
            results = [function(metric, *(a[block] for a in arrays), *extra) for block in np.ndindex(leading)]
            if isinstance(results[0], tuple):
                return tuple(np.array(x).reshape(*leading, *x[0].shape) for x in zip(*results, strict=True))
            return np.array(results).reshape(leading)

        return call

    return SimpleNamespace(**{name: looped(getattr(backend, name)) for name in FUNCTIONS})


def right_backends(only_numpy=False):
    """Name to backend; unless `only_numpy` also refgeo's own, and Torch and JAX where they are installed."""
    inverse = _backend(lambda F, M: np.linalg.inv(T(F) @ F) @ M)
    backends = {
        "Gram, solve": formulas,
        "Gram, explicit inverse, eigh": inverse,
        "Cholesky": _backend(_by_cholesky),
        "QR": _backend(_by_qr),
        "pseudo-inverse": _backend(_by_pinv),
        "least squares": _backend(_by_lstsq),
        "einsum, dense normal equations": _backend(_by_qr, projection=_dense_projection),
        "a loop over blocks": _loop(_backend(_by_qr)),
    }
    from pathlib import Path

    folder = Path(__file__).parent / "backends"
    if only_numpy:
        return backends
    backends["balanced gauge"] = str(folder / "balanced.py")
    for name, module in (("PyTorch", "torch"), ("JAX", "jax")):
        try:
            __import__(module)
        except ImportError:
            print(f"not installed, not tried: {name}")
            continue
        backends[name] = str(folder / f"{module}_backend.py")
    return backends


def judge(mutant):
    """What is wrong with the kit's report on a mutant: a list of complaints, empty if it is right."""
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints
        report = rg.check(mutant.backend(), dtype=mutant.dtype, checks=[mutant.function], cases=POINTS)
    complaints = []
    wrong = set(report.wrong)
    if not wrong:
        return ["not caught"], report
    if wrong != mutant.expected():
        complaints.append(f"names {sorted(wrong)}, expected {sorted(mutant.expected())}")
    if mutant.law is not None and f"{mutant.function}.{mutant.law}" not in {row.check for row in report.failures}:
        complaints.append(f"law {mutant.law} does not fail")
    diagnoses = [row.diagnosis for row in report.failures if not row.is_law]
    if mutant.diagnosis is not None and not all(mutant.diagnosis in diagnosis for diagnosis in diagnoses):
        complaints.append(f"diagnoses {diagnoses}, expected {mutant.diagnosis!r}")
    return complaints, report


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    start, failed = time.perf_counter(), 0
    for mutant in MUTANTS:
        complaints, report = judge(mutant)
        said = next((row.diagnosis for row in report.failures if row.diagnosis), "")
        failed += bool(complaints)
        print(f"{'ok  ' if not complaints else 'FAIL'} {mutant.function:22s} {mutant.name:48s} {said}", *complaints)
    for name, backend in right_backends().items():
        for dtype in ("float64", "float32"):
            report = rg.check(backend, dtype=dtype)
            failed += not report.passed
            print(f"{'ok  ' if report.passed else 'FAIL'} right: {name}, {dtype}", *report.wrong)
    print(f"{len(MUTANTS)} mutants, {failed} mistakes of the kit, {time.perf_counter() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
