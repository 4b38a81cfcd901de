r"""The paper as code: da Silva, Dangel, Oore, "Hide & Seek", ICML 2025 (arXiv 2505.05409v1), equation by equation.

This file is what refgeo means by each formula. It needs NumPy and SciPy only, and may be copied.

===================  ===================================================================================
(1), (38), (39)      `adaptive_sharpness`
(2)                  GL(h): `group_action`
(3), Algorithm 1     `geodesic_sharpness`, `checkpoints`; App. C.1's product: the list of its blocks
(4)                  `geodesic`
Sec. 5               `kendall_tau`
(5), (6), (23)       `diagonal_inner_product`
(7), (8)             `diagonal_sharpness_at_zero_residual`
(9), (10)            `inner_product`
Sec. 5.2, App. B     `horizontal_projection`, `riemannian_gradient`, `riemannian_hessian`
(11), (12)           `christoffel`, `christoffel_adjoint`
(13)-(17)            `group_action`; App. B: `vertical_vector`
(18)                 `toy_geodesic`
(19)-(22)            `toy_sharpness`; D.1: `toy_gradient_norms`, `toy_hessian_traces`
(24)                 `diagonal_geodesic`
(25), (27)-(29)      `diagonal_sharpness_inv`
(26), (30)           `diagonal_sharpness_second_order`
(31)-(35)            `diagonal_sharpness_mix`
(36), (37)           `ElementwiseBlock`
(40)-(46)            derive (11) and (12) from (9) and (10): `christoffel`
App. G               ``PairBlock(order=1)`` is without curvature, ``PairBlock(norm=...)`` without the metric's norm
App. H.2             ``relaxation``, which is ε: `grams`
===================  ===================================================================================

A *matrix* is what knows ``@ + - * .mT``: arrays of NumPy, of PyTorch or JAX, autograd's boxes, and the balls of
`refgeo.exact`, which make every function a proved enclosure. G is (..., n, h) and H (..., m, h), with full column rank;
leading dimensions are independent blocks. ``metric`` is "inv" (9) or "mix" (10). Shapes are not checked. Numbers are
those of the first version; in the conference version, (3) to (6) are (4) to (7).

This is the literal route. Gram matrices square the condition number: `refgeo.InvariantMetric` and `refgeo.MixedMetric`
compute the same by other formulas, with more digits.

Printed otherwise in the paper, and corrected here: inv's horizontal space and Sylvester equation (Sec. 5.2), the ball
of (8), (20), (26) and App. E, (1), a term of (22), brackets of (25), (30), (33) to (35), (41), and lines 4, 6, 17 and
21 of Algorithm 1. Each says so at its place.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy  # whose modules load where they are used

Matrix = Any
Number = Any
"""Of the same arithmetic; a float as a rule."""
Pair = tuple[Matrix, Matrix]
"""(G, H), or a vector."""
Parts = tuple[Matrix, ...]
"""What a block consists of: (G, H), or (w,)."""

# 5.2 The metrics on attention layers ----------------------------------------------------------------------------------


def grams(G: Matrix, H: Matrix, relaxation: Number = 0.0) -> Parts:
    """S = GᵀG + εI and T = HᵀH + εI, with ε = 0 but in App. H.2.

    The paper calls ε harmless, but for ε > 0 the metrics are invariant under rotations only.

    Examples
    --------
    >>> [float(gram.item()) for gram in grams(np.array([[3.0], [4.0]]), np.array([[2.0]]), 0.5)]
    [25.5, 4.5]
    """
    S, T = G.mT @ G, H.mT @ H
    if relaxation == 0.0:
        return S, T
    return S + relaxation * identity(S), T + relaxation * identity(T)


def inner_product(
    metric: str, G: Matrix, H: Matrix, a_G: Matrix, a_H: Matrix, b_G: Matrix, b_H: Matrix, relaxation: Number = 0.0
) -> Any:
    """Eq. (9), inv: tr(S⁻¹ a_Gᵀb_G) + tr(T⁻¹ a_Hᵀb_H). Eq. (10), mix: tr(T a_Gᵀb_G) + tr(S a_Hᵀb_H).

    S = GᵀG and T = HᵀH (`grams`). One number for each block. (41) prints inv without the inverses.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> float(inner_product("mix", 2 * one, 3 * one, one, one, one, one))
    13.0
    """
    S, T = grams(G, H, relaxation)
    if is_inv(metric):
        return trace(solve(S, a_G.mT @ b_G)) + trace(solve(T, a_H.mT @ b_H))
    return trace(T @ (a_G.mT @ b_G)) + trace(S @ (a_H.mT @ b_H))


def horizontal_projection(
    metric: str, G: Matrix, H: Matrix, v_G: Matrix, v_H: Matrix, relaxation: Number = 0.0
) -> Pair:
    """(v_G + GΛ, v_H − HΛᵀ). inv: (ST)Λᵀ + Λᵀ(ST) = S Hᵀv_H − v_GᵀG T; mix: Λ = ½(v_HᵀH T⁻¹ − S⁻¹Gᵀv_G).

    With ε, S_ε = S + εI and T_ε = T + εI: inv (S_εT)Λᵀ + Λᵀ(ST_ε) = S_εHᵀv_H − v_GᵀGT_ε, and mix
    (T⁻¹T_ε)Λᵀ + Λᵀ(S_εS⁻¹) = T⁻¹(Hᵀv_H S_ε − T_ε v_GᵀG)S⁻¹. Sec. 5.2 prints AΛ + ΛAᵀ on the left of inv's equation;
    that Λ gives no horizontal vector where h > 1. It prints inv's horizontal space with Hᵀv_Hᵀ, for Hᵀv_H.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> [float(part.item()) for part in horizontal_projection("inv", 2 * one, 3 * one, 2 * one, 0 * one)]
    [1.0, 1.5]
    """
    (S, T), (S_eps, T_eps) = grams(G, H), grams(G, H, relaxation)
    if is_inv(metric):
        L = sylvester(S_eps @ T, S @ T_eps, S_eps @ (H.mT @ v_H) - v_G.mT @ G @ T_eps).mT
    elif relaxation == 0.0:
        L = 0.5 * (divide(v_H.mT @ H, T) - solve(S, G.mT @ v_G))
    else:
        right_side = divide(solve(T, H.mT @ v_H @ S_eps - T_eps @ (v_G.mT @ G)), S)
        L = sylvester(solve(T, T_eps), divide(S_eps, S), right_side).mT
    return v_G + G @ L, v_H - H @ L.mT


def riemannian_gradient(metric: str, G: Matrix, H: Matrix, e_G: Matrix, e_H: Matrix, relaxation: Number = 0.0) -> Pair:
    """From the Euclidean gradient e (Sec. 5.2): inv (e_G S, e_H T); mix (e_G T⁻¹, e_H S⁻¹).

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> [float(part.item()) for part in riemannian_gradient("inv", 2 * one, 3 * one, one, one)]
    [4.0, 9.0]
    """
    S, T = grams(G, H, relaxation)
    return (e_G @ S, e_H @ T) if is_inv(metric) else (divide(e_G, T), divide(e_H, S))


def christoffel(
    metric: str, G: Matrix, H: Matrix, a_G: Matrix, a_H: Matrix, b_G: Matrix, b_H: Matrix, relaxation: Number = 0.0
) -> Pair:
    """Γ(a, b) of the Levi-Civita connection, Eq. (11) and (12) as a symmetric bilinear map.

    With sym M = M + Mᵀ; the H part has G and H, S and T exchanged:
    inv ½(G S⁻¹ sym(a_Gᵀb_G) − a_G S⁻¹ sym(b_GᵀG) − b_G S⁻¹ sym(a_GᵀG)),
    mix ½(a_G sym(b_HᵀH) + b_G sym(a_HᵀH) − G sym(a_Hᵀb_H)) T⁻¹.

    Examples
    --------
    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
    >>> float(christoffel("inv", 2 * one, 3 * one, one, zero, one, zero)[0].item())
    -0.5
    """
    S, T = grams(G, H, relaxation)

    def inv(F: Matrix, W: Matrix, a: Matrix, b: Matrix) -> Matrix:
        return 0.5 * (F @ solve(W, sym(a.mT @ b)) - a @ solve(W, sym(b.mT @ F)) - b @ solve(W, sym(a.mT @ F)))

    def mix(F: Matrix, a: Matrix, b: Matrix, W: Matrix, K: Matrix, c: Matrix, d: Matrix) -> Matrix:
        return divide(0.5 * (a @ sym(d.mT @ K) + b @ sym(c.mT @ K) - F @ sym(c.mT @ d)), W)

    if is_inv(metric):
        return inv(G, S, a_G, b_G), inv(H, T, a_H, b_H)
    return mix(G, a_G, b_G, T, H, a_H, b_H), mix(H, a_H, b_H, S, G, a_G, b_G)


def christoffel_adjoint(
    metric: str, G: Matrix, H: Matrix, a_G: Matrix, a_H: Matrix, e_G: Matrix, e_H: Matrix, relaxation: Number = 0.0
) -> Pair:
    """Γ(a, ·)* e: tr((Γ(a, ·)* e)ᵀ b) = tr(eᵀ Γ(a, b)) for every b, from (11) and (12).

    inv ½(a_G sym(S⁻¹Gᵀe_G) − G sym(S⁻¹a_Gᵀe_G) − e_G sym(a_GᵀG) S⁻¹); mix, with E = e_G T⁻¹ and F = e_H S⁻¹,
    ½(E sym(a_HᵀH) + G sym(Fᵀa_H) − a_G sym(HᵀF)).

    Examples
    --------
    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
    >>> float(christoffel_adjoint("inv", 2 * one, 3 * one, one, zero, 4 * one, zero)[0].item())
    -2.0
    """
    S, T = grams(G, H, relaxation)

    def inv(F: Matrix, W: Matrix, a: Matrix, e: Matrix) -> Matrix:
        return 0.5 * (a @ sym(solve(W, F.mT @ e)) - F @ sym(solve(W, a.mT @ e)) - divide(e @ sym(a.mT @ F), W))

    def mix(F: Matrix, a: Matrix, e: Matrix, K: Matrix, c: Matrix, f: Matrix) -> Matrix:
        return 0.5 * (e @ sym(c.mT @ K) + F @ sym(f.mT @ c) - a @ sym(K.mT @ f))

    if is_inv(metric):
        return inv(G, S, a_G, e_G), inv(H, T, a_H, e_H)
    E, F = divide(e_G, T), divide(e_H, S)
    return mix(G, a_G, E, H, a_H, F), mix(H, a_H, F, G, a_G, E)


def riemannian_hessian(
    metric: str,
    G: Matrix,
    H: Matrix,
    e_G: Matrix,
    e_H: Matrix,
    w_G: Matrix,
    w_H: Matrix,
    v_G: Matrix,
    v_H: Matrix,
    relaxation: Number = 0.0,
) -> Pair:
    """The horizontal part of D grad f[v] + Γ(grad f, v) (App. B.5).

    From the Euclidean gradient e and the Euclidean Hessian w applied to v. With g = grad f, Ṡ = sym(v_GᵀG) and
    Ṫ = sym(v_HᵀH): D grad f[v] = (w_G S + e_G Ṡ, w_H T + e_H Ṫ) for inv, ((w_G − g_G Ṫ)T⁻¹, (w_H − g_H Ṡ)S⁻¹) for mix.

    Examples
    --------
    The loss ½(GH)² of two numbers, along (G, H), of length √2: twice 4(GH)².

    >>> one = np.ones((1, 1))
    >>> hessian = riemannian_hessian("inv", 2 * one, 3 * one, 18 * one, 12 * one, 54 * one, 36 * one, 2 * one, 3 * one)
    >>> [float(part.item()) for part in hessian]
    [288.0, 432.0]
    """
    S, T = grams(G, H, relaxation)
    S_dot, T_dot = sym(v_G.mT @ G), sym(v_H.mT @ H)
    g_G, g_H = riemannian_gradient(metric, G, H, e_G, e_H, relaxation)
    if is_inv(metric):
        d_G, d_H = w_G @ S + e_G @ S_dot, w_H @ T + e_H @ T_dot
    else:
        d_G, d_H = divide(w_G - g_G @ T_dot, T), divide(w_H - g_H @ S_dot, S)
    c_G, c_H = christoffel(metric, G, H, g_G, g_H, v_G, v_H, relaxation)
    return horizontal_projection(metric, G, H, d_G + c_G, d_H + c_H, relaxation)


def geodesic(
    metric: str,
    G: Matrix,
    H: Matrix,
    v_G: Matrix,
    v_H: Matrix,
    t: Number = 1.0,
    order: object = 2,
    relaxation: Number = 0.0,
) -> Pair:
    """Eq. (4), order 2: θ + tv − ½t²Γ(v, v). Order 1: θ + tv.

    The paper gives no other, so another order raises NotImplementedError. Line 3 of Algorithm 1 prints 2Γ for ½Γ.

    Examples
    --------
    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
    >>> float(geodesic("inv", 2 * one, 3 * one, one, zero, 1.0, 2)[0].item())
    3.25
    """
    if order not in (1, 2):
        raise NotImplementedError(f"order: expected 1 or 2, as the paper gives no other geodesics, got {order!r}")
    if order == 1:
        return G + t * v_G, H + t * v_H
    c_G, c_H = christoffel(metric, G, H, v_G, v_H, v_G, v_H, relaxation)
    return G + t * v_G - 0.5 * t * t * c_G, H + t * v_H - 0.5 * t * t * c_H


# A, B The symmetry ----------------------------------------------------------------------------------------------------


def group_action(G: Matrix, H: Matrix, A: Matrix) -> Pair:
    """Def. 3.1: A·(G, H) = (G A⁻¹, H Aᵀ), which leaves G Hᵀ as it is; of points and of tangent vectors.

    (13) attention: G = [W_q; b_qᵀ], H = [W_k; b_kᵀ] of one head, and G = [W_v; b_vᵀ], H its columns of W_o, transposed;
    (14) a shallow linear network: G = W₂, H = [W₁ b₁]ᵀ; (15) LoRA, W + L Rᵀ: G = L, H = R. All A·(G, H) are
    equivalent (16), and one point of the quotient (17).

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> [float(part.item()) for part in group_action(6 * one, one, 2 * one)]
    [3.0, 2.0]
    """
    return solve(A.mT, G.mT).mT, H @ A.mT


def vertical_vector(G: Matrix, H: Matrix, K: Matrix) -> Pair:
    """(GK, −HKᵀ), a direction of the orbit (App. B).

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> [float(part.item()) for part in vertical_vector(2 * one, 3 * one, one)]
    [2.0, -3.0]
    """
    return G @ K, -(H @ K.mT)


# 4 Geodesic sharpness, Algorithm 1, App. C.1, F, G --------------------------------------------------------------------


class PairBlock:
    """One pair (G, H) of a network: the metric (9) or (10), horizontal steps, geodesics (4).

    Parameters
    ----------
    metric : "inv" or "mix"
    point : (G, H)
    order : 2, or 1 for App. G's ablation without curvature
    norm : "metric", or for an ablation "adaptive" (App. G) or "euclidean", in which Algorithm 1 measures lengths and
        raises gradients as adaptive sharpness does, or as in plain weight space; horizontal vectors and Γ remain those
        of the metric
    relaxation : float

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> block = PairBlock("inv", (2 * one, 3 * one))
    >>> float(block.product((one, one), (one, one)))
    0.3611111111111111
    """

    def __init__(
        self, metric: str, point: Sequence[Matrix], order: int = 2, norm: str = "metric", relaxation: Number = 0.0
    ) -> None:
        G, H = point
        self.metric, self.point, self.order, self.norm, self.relaxation = metric, (G, H), order, norm, relaxation

    def product(self, a: Pair, b: Pair) -> Any:
        """⟨a, b⟩, summed over leading dimensions."""
        if self.norm == "adaptive":
            return sum(ElementwiseBlock(w).product((x,), (y,)) for w, x, y in zip(self.point, a, b, strict=True))
        if self.norm == "euclidean":
            return total(trace(a[0].mT @ b[0]) + trace(a[1].mT @ b[1]))
        return total(inner_product(self.metric, *self.point, *a, *b, self.relaxation))

    def project(self, v: Pair) -> Pair:
        """The horizontal part."""
        return horizontal_projection(self.metric, *self.point, *v, self.relaxation)

    def gradient(self, xi: Pair, e: Pair) -> Pair:
        """Of ξ ↦ ℓ(γ_ξ(1)), where ℓ has the Euclidean gradient e: e − Γ(ξ, ·)* e, raised.

        Algorithm 1 takes e itself, the gradient at the perturbed weights.
        """
        if self.order == 2:
            c_G, c_H = christoffel_adjoint(self.metric, *self.point, *xi, *e, self.relaxation)
            e = e[0] - c_G, e[1] - c_H
        if self.norm == "adaptive":
            e_G, e_H = (w * (w * part) for w, part in zip(self.point, e, strict=True))
            return e_G, e_H
        if self.norm == "euclidean":
            return e
        return riemannian_gradient(self.metric, *self.point, *e, self.relaxation)

    def move(self, xi: Pair) -> Pair:
        """γ_ξ(1)."""
        return geodesic(self.metric, *self.point, *xi, 1.0, self.order, self.relaxation)


class ElementwiseBlock:
    """All other parameters (App. C.1, F): ⟨ξ, ζ⟩ = Σ ξζ/c² (36), (37), and w + ξ, as Γ = 0. c is |w| by default.

    Where c is zero a parameter cannot move.

    Examples
    --------
    >>> block = ElementwiseBlock(np.array([2.0, 0.0]))
    >>> block.gradient((), (np.array([3.0, 5.0]),))[0].tolist()
    [12.0, 0.0]
    """

    def __init__(self, w: Matrix, scale: Matrix = None) -> None:
        self.point, self.c = (w,), w if scale is None else scale
        self.moves = self.c != 0

    def product(self, a: Parts, b: Parts) -> Any:
        """Σ ab/c²."""
        divisor = self.c + (self.c == 0)
        return total(self.moves * (a[0] / divisor) * (b[0] / divisor))

    def project(self, v: Parts) -> Parts:
        """Nothing moves where c is zero."""
        return (self.moves * v[0],)

    def gradient(self, xi: Parts, e: Parts) -> Parts:
        """The gradient c² e."""
        return (self.c * (self.c * e[0]),)

    def move(self, xi: Parts) -> Parts:
        """The end w + ξ."""
        return (self.point[0] + xi[0],)


Block = Any
"""A `PairBlock` or an `ElementwiseBlock`."""
Vector = list[Parts]
LossAndGradient = Callable[[list[Parts]], tuple[Any, Sequence[Parts]]]


def geodesic_sharpness(
    value_and_grad: LossAndGradient, blocks: Sequence[Block], rho: float, n_iter: int = 20
) -> tuple[Any, Vector]:
    """Eq. (3): max L(γ_ξ(1)) − L(θ) over horizontal ξ with ‖ξ‖ ≤ ρ, by Algorithm 1 (Auto-PGD) from ξ = 0.

    What it finds is a lower bound: a local maximum, and 0 where the gradient is.

    Taken otherwise than printed: the best ξ is the one whose loss is the largest (lines 6 and 17 store the next one),
    and a halved step begins at it again (line 21 resets w); all gradients are raised (line 4's is not), and divided by
    their lengths, as Auto-PGD's are.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(points) -> (loss, gradients)``: a list with the tuple of matrices of each block, and the same
        of Euclidean gradients.
    blocks : list of PairBlock and ElementwiseBlock
        ‖ξ‖² is the sum over the blocks (C.1).
    rho : float
    n_iter : int

    Returns
    -------
    value, xi
        The largest increase, and the ξ where it was found.

    Examples
    --------
    >>> def value_and_grad(points):
    ...     ((G, H),) = points
    ...     return 0.5 * float(np.sum(G * H) ** 2), [(G * H * H, G * G * H)]
    >>> one = np.ones((1, 1))
    >>> value, _ = geodesic_sharpness(value_and_grad, [PairBlock("mix", (2 * one, 3 * one))], 0.1)
    >>> round(value, 4)  # ½(6 + √2ρ)² − 18
    0.8585
    """

    def norm(v: Vector) -> Any:
        return sum(block.product(x, x) for block, x in zip(blocks, v, strict=True)) ** 0.5

    def into_ball(v: Vector) -> Vector:
        v = [block.project(x) for block, x in zip(blocks, v, strict=True)]
        return multiply(v, min(1.0, rho / max(norm(v), TINY)))

    def evaluate(xi: Vector) -> tuple[Any, Vector]:
        value, grads = value_and_grad([block.move(x) for block, x in zip(blocks, xi, strict=True)])
        g = [block.project(block.gradient(x, e)) for block, x, e in zip(blocks, xi, grads, strict=True)]
        return value, multiply(g, 1.0 / max(norm(g), TINY))

    xi = previous = best = [tuple(0.0 * F for F in block.point) for block in blocks]
    start, direction = evaluate(xi)
    value = top = start
    best_direction, step, improved, since, last = direction, 2.0 * rho, 0, 0, (2.0 * rho, start)
    marks = checkpoints(n_iter)
    for k in range(1, n_iter + 1):
        z = into_ball(add(xi, multiply(direction, step)))
        if k > 1:  # momentum from the iterate before, also after a return to the best point
            towards, onwards = add(z, multiply(xi, -1.0)), add(xi, multiply(previous, -1.0))
            z = into_ball(add(xi, add(multiply(towards, 0.75), multiply(onwards, 0.25))))
        before, previous, xi = value, xi, z
        value, direction = evaluate(xi)
        improved, since = improved + int(value > before), since + 1
        if value > top:
            best, top, best_direction = xi, value, direction
        if k in marks:
            stuck, last = last == (step, top), (step, top)  # the steps that led to two checkpoints, not those from them
            if improved < 0.75 * since or stuck:
                step, xi, value, direction = step / 2.0, best, top, best_direction
            improved = since = 0
    return top - start, best


def checkpoints(n_iter: int) -> set[int]:
    """⌈p_j n⌉ of Algorithm 1: p₀ = 0, p₁ = 0.22, p_{j+1} = p_j + max(p_j − p_{j−1} − 0.03, 0.06).

    Examples
    --------
    >>> sorted(checkpoints(20))
    [5, 9, 12, 14, 16, 18, 19, 20]
    """
    shares = [0.0, 0.22]
    while shares[-1] < 1.0:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return {int(np.ceil(round(share * n_iter, 9))) for share in shares[1:] if share <= 1.0}


def adaptive_sharpness(
    value_and_grad: LossAndGradient,
    arrays: Iterable[Matrix],
    rho: float,
    n_iter: int = 20,
    scale: Iterable[Matrix] | None = None,
) -> tuple[Any, Vector]:
    """Eq. (1): max L(θ + δ) − L(θ) over ‖δ ⊘ c‖ ≤ ρ, c = |θ| or `scale`: (3) for (36), (37) with Γ = 0, (38).

    (1) prints δ ⊙ c. (38) has horizontal δ alone; (39) has all, which can be larger from ρ = 1/√2 on.

    Parameters
    ----------
    value_and_grad : callable
        As in `geodesic_sharpness`; a block is a tuple of one array.
    arrays : list of matrices
    rho : float
    n_iter : int
    scale : list of matrices, optional
        The paper's c, one for each array.

    Examples
    --------
    >>> loss = lambda points: (points[0][0] @ points[0][0], [(2 * points[0][0],)])
    >>> round(float(adaptive_sharpness(loss, [np.ones(2)], 0.1)[0]), 6)  # (√2 + 0.1)² − 2
    0.292843
    """
    arrays = list(arrays)
    scales: Iterable[Matrix] = [None] * len(arrays) if scale is None else scale
    return geodesic_sharpness(
        value_and_grad, [ElementwiseBlock(w, c) for w, c in zip(arrays, scales, strict=True)], rho, n_iter
    )


def kendall_tau(x: Any, y: Any) -> float:
    """Kendall's τ (Sec. 5): the mean of sgn(x_i − x_j) sgn(y_i − y_j) over all pairs i < j.

    Examples
    --------
    >>> kendall_tau([1, 2, 3], [1, 3, 2])
    0.3333333333333333
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    i, j = np.triu_indices(len(x), 1)
    return float(np.mean(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])))


# 5.1, E Diagonal networks L(u, v) = ‖X(u ⊙ v) − y‖²; β₀ = u ⊙ v, and b = η_u/u = η_v/v of a horizontal η --------------


def diagonal_inner_product(metric: str, u: Any, v: Any, a_u: Any, a_v: Any, b_u: Any, b_v: Any) -> Any:
    """Eq. (5), (23), inv: Σ a_u b_u/u² + a_v b_v/v². Eq. (6), mix: Σ a_u b_u v² + a_v b_v u². So ‖η‖² = 2‖b‖², 2‖β₀b‖².

    Examples
    --------
    >>> two, three = np.array([2.0]), np.array([3.0])
    >>> [float(diagonal_inner_product(metric, two, three, two, three, two, three)) for metric in ("inv", "mix")]
    [2.0, 72.0]
    """
    weight_u, weight_v = (1 / (u * u), 1 / (v * v)) if is_inv(metric) else (v * v, u * u)
    return total(weight_u * a_u * b_u + weight_v * a_v * b_v)


def diagonal_geodesic(metric: str, u: Any, v: Any, b: Any, t: Number = 1.0) -> tuple[Any, Any]:
    """Eq. (24): inv (u e^{bt}, v e^{bt}); mix (u√(1 + 2bt), v√(1 + 2bt)), as long as 1 + 2bt > 0.

    Examples
    --------
    >>> [float(part) for part in diagonal_geodesic("mix", 2.0, 3.0, 1.5)]
    [4.0, 6.0]
    """
    growth = elementwise("exp", b * t) if is_inv(metric) else (1.0 + 2.0 * b * t) ** 0.5
    return u * growth, v * growth


def diagonal_sharpness_at_zero_residual(u: Any, v: Any, rho: float) -> Any:
    """Eq. (7), (8), inv, XᵀX = I and Xβ₀ = y, to second order: 2ρ² max β₀².

    The maximum of 4bᵀDb with D = diag(β₀²). (8) prints the ball ‖b‖ ≤ ρ, but ‖η‖² = 2‖b‖²; E.1 prints ρ² max β₀². The
    conference version's (8) adds the first-order term, for residuals that are not zero.
    The text calls (8) the square of adaptive sharpness; both are equal to second order.

    Examples
    --------
    >>> round(float(diagonal_sharpness_at_zero_residual(np.array([1.0, 3.0]), np.ones(2), 0.1)), 12)
    0.18
    """
    return 2.0 * rho**2 * (u * v * u * v).max()


def diagonal_sharpness_inv(u: Any, v: Any, target: Any, rho: float) -> Any:
    """Eq. (25), inv, XᵀX = I, β* = Xᵀy: max of Σ β₀²(e^{4b} − 1) − 2β₀β*(e^{2b} − 1) over ‖b‖ ≤ ρ/√2.

    (25) prints (β₀ ⊙ γ − 1)ᵀβ* for (β₀ ⊙ (γ − 1))ᵀβ*.

    By the stationary points of (27) to (29): ‖b‖ = ρ/√2 with b parallel to the slope, as a convex function of β, which
    is monotone in b, has no maximum inside. From every coordinate's direction, both ways: b ← (ρ/√2) s/‖s‖ goes up for
    s = slope + μb, if μ is so large that the function is convex; max β*² always is.

    Examples
    --------
    >>> round(float(diagonal_sharpness_inv(np.array([2.0]), np.array([3.0]), np.array([5.0]), 0.1)), 9)
    2.653677271
    """
    beta = u * v

    def value(b: Any) -> Any:
        z = elementwise("expm1", 2.0 * b)
        return total(beta * z * (beta * z + 2.0 * (beta - target)))

    def slope(b: Any) -> Any:
        growth = elementwise("exp", 2.0 * b)
        return 4.0 * beta * growth * (beta * growth - target)

    def outwards(s: Any) -> Any:
        return (rho / 2**0.5) * s / max(total(s * s) ** 0.5, TINY)

    best, axes, most = 0.0, identity(u[:, None] * u) * u, (target * target).max()
    for direction in (slope(0.0 * u), -slope(0.0 * u), *axes, *-axes):
        b, mu = outwards(direction), most
        for _ in range(200):
            ahead = outwards(slope(b) + mu * b)
            b, mu = (ahead, mu / 4.0) if value(ahead) > value(b) else (b, min(4.0 * mu, most))
        best = max(best, value(b))
    return best


def diagonal_sharpness_second_order(metric: str, u: Any, v: Any, X: Any, y: Any, rho: float) -> float:
    """Eq. (26), inv: max 4bᵀ(β₀ ⊙ r) + 4bᵀ(diag(β₀ ⊙ r) + D XᵀX D)b over ‖b‖ ≤ ρ/√2. Eq. (30), mix: see below.

    With r = Xᵀ(Xβ₀ − y), D = diag(β₀), for any X. mix: 4bᵀ(β₀ ⊙ r) + 4bᵀD XᵀX Db over ‖β₀b‖ ≤ ρ/√2, exact as long as
    no β is zero or changes its sign. (26) prints ‖b‖ ≤ ρ, and (30) bᵀr.

    Examples
    --------
    >>> u, v, X, y = np.array([2.0]), np.array([3.0]), np.eye(1), np.array([5.0])
    >>> round(diagonal_sharpness_second_order("mix", u, v, X, y, 0.1), 9)
    0.302842712
    """
    beta = u * v
    r = X.T @ (X @ beta - y)
    if is_inv(metric):
        B = 8.0 * (np.diag(beta * r) + beta[:, None] * (X.T @ X) * beta)
        return maximise_quadratic(4.0 * beta * r, B, rho / np.sqrt(2.0))
    return maximise_quadratic(2.0 * r, 2.0 * (X.T @ X), np.sqrt(2.0) * rho)


def diagonal_sharpness_mix(u: Any, v: Any, target: Any, rho: float) -> Any:
    """Eq. (31)-(35), mix, XᵀX = I: 2√2ρ‖β₀ − β*‖ + 2ρ², as long as no β is zero or changes its sign.

    (33) prints the norm ‖2Db‖ for √2‖Db‖, and (35) ρ‖β₀ − β*‖ without the constants.

    Examples
    --------
    >>> round(float(diagonal_sharpness_mix(np.array([2.0]), np.array([3.0]), np.array([5.0]), 0.1)), 9)
    0.302842712
    """
    residual = u * v - target
    return 2.0 * 2.0**0.5 * rho * total(residual * residual) ** 0.5 + 2.0 * rho**2


def maximise_quadratic(c: Any, B: Any, radius: float) -> float:
    """Max of cᵀx + ½xᵀBx over ‖x‖ ≤ radius: (λI − B)x = c with λ ≥ max(0, λ_max(B)) (Moré & Sorensen 1983).

    The dual ½(λ radius² + cᵀ(λI − B)⁻¹c), convex in λ, has the same value at its minimum.

    Examples
    --------
    >>> round(maximise_quadratic(np.array([1.0, 0.0]), np.diag([0.0, 2.0]), 1.0), 9)
    1.25
    """
    w, V = np.linalg.eigh(B)
    c, least = V.T @ c, max(0.0, w[-1])

    def divided(mu: float) -> Any:
        return np.divide(c, (least - w) + mu, out=np.zeros_like(c), where=c != 0.0)

    def excess(mu: float) -> float:
        return float(radius / np.linalg.norm(divided(mu))) - 1.0

    with np.errstate(divide="ignore"):
        high = 2.0 * np.linalg.norm(c) / radius
        inside = high == 0.0 or excess(0.0) >= 0.0
        root = 0.0 if inside else scipy.optimize.brentq(excess, 0.0, high, xtol=TINY * high, maxiter=1000)
    return float(0.5 * (np.sum(c * divided(root)) + (least + root) * radius**2))


# D The scalar toy L(G, H) = Σ (G H x − y)²; P = GH, a = Σx², b = Σxy --------------------------------------------------


def toy_geodesic(G: Any, H: Any, b: Any, t: Number = 1.0) -> tuple[Any, Any]:
    """Eq. (18), inv: Γ¹₁₁ = −1/G, Γ²₂₂ = −1/H; horizontal is η_G/G = η_H/H = b; (G e^{bt}, H e^{bt}).

    They exist for all t. The paper calls them "not complete" as they keep the signs of G and H.

    Examples
    --------
    >>> [round(float(part), 6) for part in toy_geodesic(2.0, 3.0, np.log(2.0))]
    [4.0, 6.0]
    """
    return diagonal_geodesic("inv", G, H, b, t)


def toy_sharpness(G: Any, H: Any, x: Any, y: Any, rho: float) -> Any:
    """Eq. (19) to (21), inv: the larger of Σ x²P²(s² − 1) − 2xyP(s − 1) at s = e^{±√2ρ}.

    It is convex in s, so the maximum is at an end; (21) has the mean, 1/n times this sum. (20) prints |b| ≤ ρ for ρ/√2.
    (22) is its second order, with 2ρ²y⁰(2y⁰ − y) for the printed 2ρ²(y⁰)²; its sign can choose the other end.

    Examples
    --------
    >>> round(float(toy_sharpness(2.0, 3.0, 1.0, 6.0, 0.01)), 6)  # at the minimum, about 2ρ²P²
    0.007303
    """
    P, a, b = _toy(G, H, x, y)
    ends = (elementwise("expm1", sign * 2**0.5 * rho) for sign in (-1.0, 1.0))  # s − 1
    return max(P * z * (a * P * z + 2.0 * (a * P - b)) for z in ends)


def toy_gradient_norms(G: Any, H: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """D.1, Figure 1, of the gradient: Euclidean 2|aP − b|√(G² + H²), inv 2√2|P||aP − b|; and mix 2√2|aP − b|.

    Examples
    --------
    >>> [round(float(norm), 6) for norm in toy_gradient_norms(2.0, 3.0, 1.0, 5.0)]
    [7.211103, 16.970563, 2.828427]
    """
    P, a, b = _toy(G, H, x, y)
    slope = 2.0 * abs(a * P - b)
    return slope * (G * G + H * H) ** 0.5, 2.0**0.5 * slope * abs(P), 2.0**0.5 * slope


def toy_hessian_traces(G: Any, H: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """D.1, of the Hessian: Euclidean 2a(G² + H²), inv 4P(2aP − b); and mix 4a.

    At the minimum aP = b, inv's is 4aP², not 0, as D.1 says.

    Examples
    --------
    >>> [float(trace) for trace in toy_hessian_traces(2.0, 3.0, 1.0, 6.0)]
    [26.0, 144.0, 4.0]
    """
    P, a, b = _toy(G, H, x, y)
    return 2.0 * a * (G * G + H * H), 4.0 * P * (2.0 * a * P - b), 4.0 * a


def _toy(G: Any, H: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    return G * H, total(x * x), total(x * y)


# Arithmetic, by what the matrix is ------------------------------------------------------------------------------------

TINY = 1e-150


def is_inv(metric: str) -> bool:
    """Whether the metric is (9) and not (10).

    Examples
    --------
    >>> is_inv("mix")
    False
    """
    if metric not in ("inv", "mix"):
        raise NotImplementedError(f'metric: expected "inv" or "mix", got {metric!r}')
    return metric == "inv"


def library(*matrices: Matrix) -> Any:
    """The module with the functions of these, for example NumPy, PyTorch, ``jax.numpy`` or ``autograd.numpy``.

    Of arrays of NumPy and others together it is that of the others.

    Examples
    --------
    >>> library(np.ones(2)) is np
    True
    """
    M = next((M for M in matrices if not isinstance(M, (np.ndarray, np.generic, float, int))), None)
    if M is None:
        return np
    module = type(M).__module__.partition(".")[0]
    if module == "autograd":  # of which __array_namespace__ has NumPy's own linalg
        return importlib.import_module("autograd.numpy")
    return M.__array_namespace__() if hasattr(M, "__array_namespace__") else importlib.import_module(module)


def sym(M: Matrix) -> Matrix:
    """M + Mᵀ.

    Examples
    --------
    >>> sym(np.array([[1.0, 2.0], [0.0, 3.0]])).tolist()
    [[2.0, 2.0], [2.0, 6.0]]
    """
    return M + M.mT


def identity(M: Matrix) -> Matrix:
    """I, of the kind and the shape of M.

    Examples
    --------
    >>> identity(np.ones((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    ours = library(M)
    if hasattr(ours, "identity_like"):
        return ours.identity_like(M)
    return ours.tril(ours.triu(ours.ones_like(M)))


def solve(A: Matrix, B: Matrix) -> Matrix:
    """A⁻¹B.

    Examples
    --------
    >>> solve(np.array([[4.0]]), np.array([[2.0]])).item()
    0.5
    """
    return library(A, B).linalg.solve(A, B)


def elementwise(function: str, x: Any) -> Any:
    """The "exp" or "expm1" of each number.

    Examples
    --------
    >>> elementwise("exp", 0.0)
    1.0
    """
    if isinstance(x, (float, int)):
        return getattr(math, function)(x)
    return getattr(x, function)() if hasattr(x, function) else getattr(library(x), function)(x)


def divide(B: Matrix, A: Matrix) -> Matrix:
    """B A⁻¹, A symmetric.

    Examples
    --------
    >>> divide(np.array([[2.0]]), np.array([[4.0]])).item()
    0.5
    """
    return solve(A, B.mT).mT


def sylvester(A: Matrix, B: Matrix, C: Matrix) -> Matrix:
    """X with AX + XB = C.

    Examples
    --------
    >>> sylvester(np.array([[1.0]]), np.array([[3.0]]), np.array([[8.0]])).item()
    2.0
    """
    ours = library(A, B, C)
    if hasattr(ours, "solve_sylvester"):
        return ours.solve_sylvester(A, B, C)
    if ours is np:
        kind = np.result_type(A, B, C, np.float32)
        return np.vectorize(scipy.linalg.solve_sylvester, [kind], signature="(h,h),(h,h),(h,h)->(h,h)")(A, B, C)
    h, I = C.shape[-1], identity(C)  # noqa: E741
    K = A[..., :, None, :, None] * I[..., None, :, None, :] + I[..., :, None, :, None] * B.mT[..., None, :, None, :]
    blocks = C.shape[:-2]
    return solve(K.reshape(*blocks, h * h, h * h), C.reshape(*blocks, h * h, 1)).reshape(C.shape)


def trace(M: Matrix) -> Any:
    """The trace, one number for each block.

    Examples
    --------
    >>> float(trace(np.diag([1.0, 2.0])))
    3.0
    """
    return library(M).diagonal(M, 0, -1, -2).sum(-1)


def total(numbers: Any) -> Any:
    """The sum of all.

    Examples
    --------
    >>> float(total(np.ones((2, 3))))
    6.0
    """
    return numbers.sum() if hasattr(numbers, "shape") else numbers


def add(v: Vector, w: Vector) -> Vector:
    """The sum v + w.

    Examples
    --------
    >>> add([(1.0, 2.0)], [(3.0, 4.0)])
    [(4.0, 6.0)]
    """
    return [tuple(x + y for x, y in zip(a, b, strict=True)) for a, b in zip(v, w, strict=True)]


def multiply(v: Vector, factor: Any) -> Vector:
    """The vector times a number.

    Examples
    --------
    >>> multiply([(1.0, 2.0)], 2.0)
    [(2.0, 4.0)]
    """
    return [tuple(x * factor for x in a) for a in v]
