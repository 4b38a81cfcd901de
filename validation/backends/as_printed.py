"""The paper's misprints, followed to the letter: what an implementation that trusts the print computes.

- Sec. 5.2 prints the Sylvester equation of the inv projection as AΛ + ΛAᵀ = B; the definition gives AΛᵀ + ΛᵀA = B.
- Eq. (41) prints the inv norm without the inverse Gram matrices.

Everything else is the literal formulas.

    refgeo check validation/backends/as_printed.py      exits 1 and names these two operations for inv
"""

import numpy as np
import scipy.linalg

from refgeo import paper
from refgeo.paper import christoffel, geodesic, riemannian_gradient

__all__ = ["christoffel", "geodesic", "horizontal_projection", "inner_product", "riemannian_gradient"]


def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
    if metric != "inv":
        return paper.inner_product(metric, G, H, a_G, a_H, b_G, b_H)
    return np.sum(a_G * b_G, axis=(-2, -1)) + np.sum(a_H * b_H, axis=(-2, -1))


def horizontal_projection(metric, G, H, v_G, v_H):
    if metric != "inv":
        return paper.horizontal_projection(metric, G, H, v_G, v_H)
    result_G, result_H = np.empty_like(v_G), np.empty_like(v_H)
    for block in np.ndindex(G.shape[:-2]):
        g, h, x, y = G[block], H[block], v_G[block], v_H[block]
        S, T = g.T @ g, h.T @ h
        A, B = S @ T, S @ h.T @ y - x.T @ g @ T
        L = scipy.linalg.solve_sylvester(A, A.T, B)
        result_G[block], result_H[block] = x + g @ L, y - h @ L.T
    return result_G, result_H
