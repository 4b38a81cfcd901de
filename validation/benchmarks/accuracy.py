"""Digits of the horizontal projection against enclosures.

    python -m validation accuracy [--seeds 20] [--out DIR]

For each condition number κ(G) = κ(H), the worst relative error (Frobenius norm of both parts) over random 10×4 and
9×4 factors: the paper's formulas with Gram matrices, for inv with scipy.linalg.solve_sylvester and with Cholesky and
eigh, and refgeo's factorised route.
"""

import argparse
from pathlib import Path

import numpy as np
import scipy.linalg

import refgeo as rg
from refgeo import paper
from refgeo.exact import ExactTangentSpace
from validation import experiment

CONDITIONS = (1e1, 1e2, 1e3, 1e4, 1e6)


def factor(rng, n, h, condition):
    left = np.linalg.qr(rng.standard_normal((n, h)))[0]
    right = np.linalg.qr(rng.standard_normal((h, h)))[0]
    return left * np.geomspace(1.0, 1.0 / condition, h) @ right.T


def cholesky_projection(G, H, v_G, v_H):
    """inv: (ST)X + X(ST) = B with S = LLᵀ, LᵀTL = QDQᵀ; no digits (NaN) where the Gram matrix is not definite."""
    S, T = G.T @ G, H.T @ H
    try:
        L = np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        return np.full_like(v_G, np.nan), np.full_like(v_H, np.nan)
    d, Q = np.linalg.eigh(L.T @ T @ L)
    V, V_inverse = L @ Q, scipy.linalg.solve_triangular(L.T, Q).T
    X = V @ ((V_inverse @ (S @ H.T @ v_H - v_G.T @ G @ T) @ V) / (d[:, None] + d)) @ V_inverse
    return v_G + G @ X.T, v_H - H @ X


def relative_error(result, expected):
    difference = sum(np.sum((x - y) ** 2) for x, y in zip(result, expected, strict=True))
    return float(np.sqrt(difference / sum(np.sum(y**2) for y in expected)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the table (results)")
    options = parser.parse_args()
    rows = []
    for condition in CONDITIONS:
        worst = np.zeros(5)
        for seed in range(options.seeds):
            rng = np.random.default_rng(seed)
            point = rg.Pair(factor(rng, 10, 4, condition), factor(rng, 9, 4, condition))
            v = rg.Pair(rng.standard_normal((10, 4)), rng.standard_normal((9, 4)))
            inv, mix = (
                tuple(part.mid for part in ExactTangentSpace(name, *point).horizontal_projection(v))
                for name in ("inv", "mix")
            )
            errors = [
                relative_error(paper.horizontal_projection("inv", *point, *v), inv),
                relative_error(cholesky_projection(*point, *v), inv),
                relative_error(rg.InvariantMetric().at(point).horizontal_projection(v), inv),
                relative_error(paper.horizontal_projection("mix", *point, *v), mix),
                relative_error(rg.MixedMetric().at(point).horizontal_projection(v), mix),
            ]
            worst = np.maximum(worst, np.nan_to_num(errors, nan=np.inf))
        cells = ["no digits" if not error < 0.5 else f"{error:.0e}" for error in worst]
        rows.append([f"{condition:.0e}", *cells])
    header = [
        "κ(G) = κ(H)", "inv, Grams, `solve_sylvester`", "inv, Grams, Cholesky + `eigh`", "**inv, refgeo**",
        "mix, Grams", "**mix, refgeo**",
    ]  # fmt: skip
    experiment.table(header, rows, options.out / "accuracy.csv")


if __name__ == "__main__":
    main()
