"""A template: your PyTorch implementation, for ``refgeo check torch_backend.py --dtype float32``.

Replace the bodies by calls of your own code, and delete the functions that you do not have: they are reported as not
provided, never as passed. ``metric`` is "inv" or "mix"; G is (..., n, h), H is (..., m, h), and the leading dimensions
are independent blocks, such as heads. Raise NotImplementedError for a metric that you do not have.
"""

import torch


def asarray(array):
    """Return what your functions get, made of a NumPy array."""
    return torch.from_numpy(array.copy())


def to_numpy(tensor):
    """Return the way back."""
    return tensor.detach().cpu().numpy()


def riemannian_gradient(metric, G, H, e_G, e_H):
    S, T = G.mT @ G, H.mT @ H
    if metric == "inv":
        return e_G @ S, e_H @ T
    return torch.linalg.solve(T, e_G, left=False), torch.linalg.solve(S, e_H, left=False)


def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
    S, T = G.mT @ G, H.mT @ H
    if metric == "inv":
        parts = torch.linalg.solve(S, a_G.mT @ b_G), torch.linalg.solve(T, a_H.mT @ b_H)
    else:
        parts = T @ (a_G.mT @ b_G), S @ (a_H.mT @ b_H)
    return sum(part.diagonal(dim1=-2, dim2=-1).sum(-1) for part in parts)
