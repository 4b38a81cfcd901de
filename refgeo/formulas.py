r"""The paper's equations one to one: Gram matrices and `scipy.linalg.solve_sylvester`.

The literal route, to be read beside the paper (arXiv 2505.05409). The rest of refgeo does not call it; it is a second
opinion, and a backend: the functions have the signatures that ``refgeo check`` expects, and ``refgeo check`` without an
argument judges this module. Gram matrices square the condition number, so it keeps fewer digits than
`refgeo.InvariantMetric` and `refgeo.MixedMetric`.

Every function takes ``metric`` ("inv" or "mix") first, then the base point, then vectors, as arrays of shape
``(..., n, h)`` and ``(..., m, h)``; `relaxation` is ε of App. H.2. Write S_ε = GᵀG + εI, T_ε = HᵀH + εI. A result
has the shapes of a vector, or of the leading dimensions for `inner_product`. Another metric or order raises
NotImplementedError, a factor without full rank LinAlgError where its Gram matrix must be inverted; shapes are not
checked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from refgeo.support.arguments import ENDS, Array


def inner_product(
    metric: str, G: Array, H: Array, a_G: Array, a_H: Array, b_G: Array, b_H: Array, relaxation: float = 0.0
) -> Array:
    """Eq. (9): tr(S_ε⁻¹ a_Gᵀ b_G) + tr(T_ε⁻¹ a_Hᵀ b_H); Eq. (10): tr(T_ε a_Gᵀ b_G) + tr(S_ε a_Hᵀ b_H).

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> float(inner_product("mix", 2 * one, 3 * one, one, one, one, one))
    13.0
    """
    S, T = _grams(G, H, relaxation)
    if _is_inv(metric):
        return _trace(_solve(S, a_G.mT @ b_G)) + _trace(_solve(T, a_H.mT @ b_H))
    return _trace(T @ a_G.mT @ b_G) + _trace(S @ a_H.mT @ b_H)


def horizontal_projection(
    metric: str, G: Array, H: Array, v_G: Array, v_H: Array, relaxation: float = 0.0
) -> tuple[Array, Array]:
    """(v_G + GΛ, v_H − HΛᵀ).

    inv: (S_εT)X + X(ST_ε) = S_εHᵀv_H − v_GᵀGT_ε for X = Λᵀ. (Sec. 5.2 prints ``AΛ + ΛAᵀ = B``, without the transposes;
    that Λ does not give a horizontal vector.) mix: Λ = ½(v_HᵀHT⁻¹ − S⁻¹Gᵀv_G), and with relaxation
    T_εXS + TXS_ε = Hᵀv_HS_ε − T_εv_GᵀG.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> [float(part.item()) for part in horizontal_projection("inv", 2 * one, 3 * one, 2 * one, 0 * one)]
    [1.0, 1.5]
    """
    S, T = _grams(G, H, 0.0)
    S_eps, T_eps = _grams(G, H, relaxation)
    if _is_inv(metric):
        right_side = S_eps @ H.mT @ v_H - v_G.mT @ G @ T_eps
        X = _each_block(scipy.linalg.solve_sylvester, S_eps @ T, S @ T_eps, right_side)
        L = X.mT
    elif relaxation == 0.0:
        L = 0.5 * (_divide(v_H.mT @ H, T) - _solve(S, G.mT @ v_G))
    else:
        right_side = H.mT @ v_H @ S_eps - T_eps @ v_G.mT @ G
        L = _each_block(_two_sided, T_eps, S, T, S_eps, right_side).mT
    return v_G + G @ L, v_H - H @ L.mT


def riemannian_gradient(
    metric: str, G: Array, H: Array, e_G: Array, e_H: Array, relaxation: float = 0.0
) -> tuple[Array, Array]:
    """inv: (e_G S_ε, e_H T_ε); mix: (e_G T_ε⁻¹, e_H S_ε⁻¹) (Sec. 5.2).

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> [float(part.item()) for part in riemannian_gradient("inv", 2 * one, 3 * one, one, one)]
    [4.0, 9.0]
    """
    S, T = _grams(G, H, relaxation)
    if _is_inv(metric):
        return e_G @ S, e_H @ T
    return _divide(e_G, T), _divide(e_H, S)


def riemannian_hessian(
    metric: str,
    G: Array,
    H: Array,
    e_G: Array,
    e_H: Array,
    w_G: Array,
    w_H: Array,
    v_G: Array,
    v_H: Array,
    relaxation: float = 0.0,
) -> tuple[Array, Array]:
    """P(D grad f[v] + Γ(grad f, v)), from the Euclidean gradient e and the Euclidean Hessian w applied to v.

    D grad f[v] by the product rule: inv (w_G S_ε + e_G Ṡ, w_H T_ε + e_H Ṫ); mix
    ((w_G − e_G T_ε⁻¹Ṫ)T_ε⁻¹, (w_H − e_H S_ε⁻¹Ṡ)S_ε⁻¹), with Ṡ = v_GᵀG + Gᵀv_G and Ṫ alike.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> hessian = riemannian_hessian("inv", 2 * one, 3 * one, 18 * one, 12 * one, 54 * one, 36 * one, 2 * one, 3 * one)
    >>> [float(part.item()) for part in hessian]
    [288.0, 432.0]
    """
    S, T = _grams(G, H, relaxation)
    S_dot, T_dot = v_G.mT @ G + G.mT @ v_G, v_H.mT @ H + H.mT @ v_H
    g_G, g_H = riemannian_gradient(metric, G, H, e_G, e_H, relaxation)
    d: tuple[Array, Array]
    if _is_inv(metric):
        d = w_G @ S + e_G @ S_dot, w_H @ T + e_H @ T_dot
    else:
        d = _divide(w_G - g_G @ T_dot, T), _divide(w_H - g_H @ S_dot, S)
    c_G, c_H = christoffel(metric, G, H, g_G, g_H, v_G, v_H, relaxation)
    return horizontal_projection(metric, G, H, d[0] + c_G, d[1] + c_H, relaxation)


def christoffel(
    metric: str, G: Array, H: Array, a_G: Array, a_H: Array, b_G: Array, b_H: Array, relaxation: float = 0.0
) -> tuple[Array, Array]:
    """Γ(a, b), Eq. (11) and (12), polarised to a symmetric bilinear map.

    Examples
    --------
    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
    >>> float(christoffel("inv", 2 * one, 3 * one, one, zero, one, zero)[0].item())
    -0.5
    """
    S, T = _grams(G, H, relaxation)
    if _is_inv(metric):
        return _christoffel_inv(G, S, a_G, b_G), _christoffel_inv(H, T, a_H, b_H)
    return _christoffel_mix(G, H, T, a_G, a_H, b_G, b_H), _christoffel_mix(H, G, S, a_H, a_G, b_H, b_G)


def christoffel_adjoint(
    metric: str, G: Array, H: Array, a_G: Array, a_H: Array, e_G: Array, e_H: Array, relaxation: float = 0.0
) -> tuple[Array, Array]:
    """Γ(a, ·)* e, from differentiating the trace of eᵀΓ(a, b) in b.

    Examples
    --------
    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
    >>> float(christoffel_adjoint("inv", 2 * one, 3 * one, one, zero, 4 * one, zero)[0].item())
    -2.0
    """
    S, T = _grams(G, H, relaxation)
    if _is_inv(metric):
        return _adjoint_inv(G, S, a_G, e_G), _adjoint_inv(H, T, a_H, e_H)
    E, F = _divide(e_G, T), _divide(e_H, S)
    return _adjoint_mix(G, H, a_G, a_H, E, F), _adjoint_mix(H, G, a_H, a_G, F, E)


def geodesic(
    metric: str, G: Array, H: Array, v_G: Array, v_H: Array, t: float, order: object, relaxation: float = 0.0
) -> tuple[Array, Array]:
    """Order 1: θ + tv; order 2, Eq. (4): θ + tv − ½t²Γ(v, v). The paper gives no other.

    Examples
    --------
    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
    >>> float(geodesic("inv", 2 * one, 3 * one, one, zero, 1.0, 2)[0].item())
    3.25
    """
    if order == 1:
        return G + t * v_G, H + t * v_H
    if order == 2:
        c_G, c_H = christoffel(metric, G, H, v_G, v_H, v_G, v_H, relaxation)
        return G + t * v_G - 0.5 * t**2 * c_G, H + t * v_H - 0.5 * t**2 * c_H
    raise NotImplementedError(f"refgeo.formulas has geodesics of order 1 and 2 only, not {order!r}")


def _is_inv(metric: str) -> bool:
    if metric not in ENDS:
        raise NotImplementedError(f'metric: expected "inv" or "mix", got {metric!r}')
    return metric == "inv"


def _grams(G: Array, H: Array, relaxation: float) -> tuple[Array, Array]:
    shift = np.asarray(relaxation * np.eye(G.shape[-1]), dtype=np.result_type(G, np.float32))
    return G.mT @ G + shift, H.mT @ H + shift


def _solve(gram: Array, right_side: Array) -> Array:
    return np.asarray(np.linalg.solve(gram, right_side))


def _divide(left_side: Array, gram: Array) -> Array:
    """Left side times the inverse of a (symmetric) Gram matrix."""
    return _solve(gram, left_side.mT).mT


def _trace(matrix: Array) -> Array:
    return np.asarray(np.trace(matrix, axis1=-2, axis2=-1))


def _each_block(solver: Callable[..., Array], *matrices: Array) -> Array:
    signature = ",".join(["(h,h)"] * len(matrices)) + "->(h,h)"
    return np.asarray(np.vectorize(solver, signature=signature, otypes=[matrices[-1].dtype])(*matrices))


def _two_sided(T_eps: Array, S: Array, T: Array, S_eps: Array, right_side: Array) -> Array:
    """Solve T_ε X S + T X S_ε = R as one linear system of size h²."""
    operator = np.kron(T_eps, S.mT) + np.kron(T, S_eps.mT)
    return np.asarray(np.linalg.solve(operator, right_side.ravel()).reshape(right_side.shape))


def _christoffel_inv(G: Array, S: Array, a: Array, b: Array) -> Array:
    Gt, at, bt = G.mT, a.mT, b.mT
    return 0.5 * (-a @ _solve(S, bt @ G + Gt @ b) - b @ _solve(S, at @ G + Gt @ a) + G @ _solve(S, at @ b + bt @ a))


def _christoffel_mix(G: Array, H: Array, T: Array, a_G: Array, a_H: Array, b_G: Array, b_H: Array) -> Array:
    Ht, at, bt = H.mT, a_H.mT, b_H.mT
    return _divide(0.5 * (a_G @ (bt @ H + Ht @ b_H) + b_G @ (at @ H + Ht @ a_H) - G @ (at @ b_H + bt @ a_H)), T)


def _adjoint_inv(G: Array, S: Array, a: Array, e: Array) -> Array:
    Gt, at, et = G.mT, a.mT, e.mT
    return 0.5 * (
        -G @ (_divide(et @ a, S) + _solve(S, at @ e))
        - _divide(e @ (at @ G + Gt @ a), S)
        + a @ (_solve(S, Gt @ e) + _divide(et @ G, S))
    )


def _adjoint_mix(G: Array, H: Array, a_G: Array, a_H: Array, E: Array, F: Array) -> Array:
    Ht, at, Ft = H.mT, a_H.mT, F.mT
    return 0.5 * (E @ (at @ H + Ht @ a_H) + G @ (Ft @ a_H + at @ F) - a_G @ (Ht @ F + Ft @ H))
