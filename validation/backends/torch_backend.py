"""A plain PyTorch port of the paper, as a good engineer would write it: Gram matrices, batched, any dtype or device.

The Sylvester equation (ST)X + X(ST) = B is solved by diagonalising ST = VDV⁻¹: with S = LLᵀ and LᵀTL = QDQᵀ, V = LQ.

    refgeo check validation/backends/torch_backend.py
    refgeo check validation/backends/torch_backend.py --dtype float32
"""

import torch


def asarray(array):
    return torch.from_numpy(array)


def to_numpy(tensor):
    return tensor.detach().cpu().numpy()


def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
    S, T = G.mT @ G, H.mT @ H
    if metric == "inv":
        return _trace(torch.linalg.solve(S, a_G.mT @ b_G)) + _trace(torch.linalg.solve(T, a_H.mT @ b_H))
    return _trace(T @ (a_G.mT @ b_G)) + _trace(S @ (a_H.mT @ b_H))


def horizontal_projection(metric, G, H, v_G, v_H):
    S, T = G.mT @ G, H.mT @ H
    if metric == "inv":
        B = S @ H.mT @ v_H - v_G.mT @ G @ T
        L = torch.linalg.cholesky(S)
        d, Q = torch.linalg.eigh(L.mT @ T @ L)
        V = L @ Q
        V_inverse = torch.linalg.solve_triangular(L.mT, Q, upper=True).mT
        X = V @ ((V_inverse @ B @ V) / (d.unsqueeze(-1) + d.unsqueeze(-2))) @ V_inverse
        K = X.mT
    else:
        K = 0.5 * (torch.linalg.solve(T, H.mT @ v_H).mT - torch.linalg.solve(S, G.mT @ v_G))
    return v_G + G @ K, v_H - H @ K.mT


def riemannian_gradient(metric, G, H, e_G, e_H):
    S, T = G.mT @ G, H.mT @ H
    if metric == "inv":
        return e_G @ S, e_H @ T
    return torch.linalg.solve(T, e_G.mT).mT, torch.linalg.solve(S, e_H.mT).mT


def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
    """∇grad f[v] = g⁻¹(w − Γ(v, ·)* e); the adjoint comes from automatic differentiation of Γ(v, ·)."""

    def bend(b_G, b_H):
        return christoffel(metric, G, H, v_G, v_H, b_G, b_H)

    _, (adjoint_G, adjoint_H) = torch.autograd.functional.vjp(bend, (v_G, v_H), (e_G, e_H))
    covariant = riemannian_gradient(metric, G, H, w_G - adjoint_G, w_H - adjoint_H)
    return horizontal_projection(metric, G, H, *covariant)


def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
    if metric == "inv":
        return _christoffel_inv(G, a_G, b_G), _christoffel_inv(H, a_H, b_H)
    return _christoffel_mix(G, H, a_G, a_H, b_G, b_H), _christoffel_mix(H, G, a_H, a_G, b_H, b_G)


def geodesic(metric, G, H, v_G, v_H, t, order):
    if order not in (1, 2):
        raise NotImplementedError(f"order {order!r}")
    step = (G + t * v_G, H + t * v_H)
    if order == 1:
        return step
    c_G, c_H = christoffel(metric, G, H, v_G, v_H, v_G, v_H)
    return step[0] - 0.5 * t**2 * c_G, step[1] - 0.5 * t**2 * c_H


def _trace(matrix):
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _symmetric_sum(matrix):
    return matrix + matrix.mT


def _christoffel_inv(G, a, b):
    S = G.mT @ G
    right = [_symmetric_sum(b.mT @ G), _symmetric_sum(a.mT @ G), _symmetric_sum(a.mT @ b)]
    first, second, third = (torch.linalg.solve(S, matrix) for matrix in right)
    return 0.5 * (G @ third - a @ first - b @ second)


def _christoffel_mix(G, H, a_G, a_H, b_G, b_H):
    T = H.mT @ H
    numerator = a_G @ _symmetric_sum(b_H.mT @ H) + b_G @ _symmetric_sum(a_H.mT @ H) - G @ _symmetric_sum(a_H.mT @ b_H)
    return 0.5 * torch.linalg.solve(T, numerator.mT).mT
