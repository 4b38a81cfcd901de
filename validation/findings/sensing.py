r"""Does the phase diagram hold for matrices? Matrix sensing, one step from diagonal networks towards attention.

X = G Hᵀ is learnt from n numbers ⟨A_i, X*⟩ with Gaussian A_i, where X* is a 10 × 10 matrix with r equal singular
values. Gradient descent from G = αI, H = 0 keeps GᵀG − HᵀH near α²I, as it keeps u² − v² on diagonal networks. All
networks of a set fit the same numbers and differ in α alone. To second order in ρ, their sharpness for inv is ρ²λ,
where λ is half the largest eigenvalue of the Hessian in this metric: with S = GᵀG and T = HᵀH, it is the largest
‖𝒜(W S^½ Hᵀ + G T^½ Zᵀ)‖² for ‖W‖² + ‖Z‖² = 1. The loss is linear in X, so unlike attention it has no softmax. What
differs from diagonal networks is that singular vectors are learnt, too.

Prediction, as in `validation.findings.phase`: τ of λ and ‖X − X*‖² has the sign of the difference between the errors of
the interpolators of least nuclear norm and of least Frobenius norm.

    python -m validation sensing [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from validation import experiment
from validation.findings import phase
from validation.findings.study import statistics

D, NETWORKS = 10, 24
ALPHAS = (0.01, 3.0)
RANKS, POINTS = (1, 2, 3, 4, 5, 6, 8, 10), (20, 30, 40, 50, 60, 70, 80, 90)
TARGET, MAX_STEPS = 1e-8, 200_000
"""A network is trained whose loss is this share of that of X = 0."""
FEWEST = 10


def drawn(rank: int, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Measurement matrices, shape (n, D, D), and the true X, of Frobenius norm 1."""
    left, right = (np.linalg.qr(rng.standard_normal((D, D)))[0][:, :rank] for _ in range(2))
    return rng.standard_normal((n, D, D)), left @ right.T / rank**0.5


def trained(A: Any, y: Any, alphas: Any) -> tuple[Any, Any, Any]:
    """G, H and the share of the loss that is left, after gradient descent on the mean squared error."""
    flat = A.reshape(len(y), -1)
    G, H = alphas[:, None, None] * np.eye(D), np.zeros((len(alphas), D, D))
    largest = np.linalg.norm(flat, 2) ** 2 / len(y)  # of the Hessian with respect to X
    step = 0.7 / (largest * (1.0 + alphas**2))[:, None, None]  # stable where X has no singular value above 1.4
    left = np.ones(len(alphas))
    running = np.arange(len(alphas))
    for _ in range(MAX_STEPS):
        g, h = G[running], H[running]
        residual = (g @ h.mT).reshape(len(running), -1) @ flat.T - y
        left[running] = np.sum(residual**2, axis=-1) / np.sum(y**2)
        E = (residual @ flat / len(y)).reshape(-1, D, D)
        G[running], H[running] = g - step[running] * E @ h, h - step[running] * E.mT @ g
        running = np.flatnonzero(left > TARGET)
        if not len(running):
            break
    return G, H, left


def top(G: Any, H: Any, A: Any) -> float:
    """λ: half the largest eigenvalue of the Hessian of ‖𝒜(X) − y‖² in inv, at zero residual."""
    S, T = G.T @ G, H.T @ H
    moved = [A @ (H @ _root(S)), A.mT @ (G @ _root(T))]
    return float(np.linalg.norm(np.concatenate([part.reshape(len(A), -1) for part in moved], axis=1), 2) ** 2)


def _root(S: Any) -> Any:
    values, vectors = np.linalg.eigh(S)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def least_nuclear(A: Any, y: Any) -> Any:
    """The interpolator of least nuclear norm, by the method of Douglas and Rachford."""
    flat = A.reshape(len(y), -1)
    inverse = np.linalg.pinv(flat)
    state = inverse @ y
    for _ in range(20_000):
        U, sigma, V = np.linalg.svd(state.reshape(D, D))
        near = ((U * np.maximum(sigma - 0.1 / D, 0.0)) @ V).ravel()
        other = 2.0 * near - state
        change = other - inverse @ (flat @ other - y) - near
        state = state + change
        if np.linalg.norm(change) < 1e-9:
            break
    return (near - inverse @ (flat @ near - y)).reshape(D, D)


def one_set(seed: int, rank: int, n: int) -> dict[str, Any]:
    """τ of a set and the errors of both ends."""
    A, truth = drawn(rank, n, np.random.default_rng([seed, rank, n]))
    y = np.sum(A * truth, axis=(1, 2))
    alphas = np.geomspace(*ALPHAS, NETWORKS)
    G, H, left = trained(A, y, alphas)
    ok = left <= TARGET
    ends = (least_nuclear(A, y), (np.linalg.pinv(A.reshape(n, -1)) @ y).reshape(D, D))
    result = {"trained": float(ok.mean()), "ends": [float(np.sum((end - truth) ** 2)) for end in ends]}
    if ok.sum() < FEWEST:
        return result
    sharpness = np.array([top(*pair, A) for pair in zip(G[ok], H[ok], strict=True)])
    error = np.sum((G[ok] @ H[ok].mT - truth) ** 2, axis=(1, 2))
    return result | {
        "tau": statistics.tau_a(sharpness, error),
        "sharpness along the path": statistics.tau_a(sharpness, alphas[ok]),
        "error along the path": statistics.tau_a(error, alphas[ok]),
    }


def plot(table: dict[str, Any], place: Path) -> None:
    """The phase diagram, and τ against the difference of the ends."""
    plt = experiment.style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.2))
    image = phase.diagram(left, table)
    figure.colorbar(image, ax=left)
    left.set(xlabel=f"n/{D * D}", ylabel="rank of the true X", title="median τ")
    phase.against_ends(right, {"matrix sensing": table})
    right.set(xlabel="error of least nuclear − least Frobenius norm", title="every cell")
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    ranks, points, seeds = ((1, 4, 10), (30, 60), 2) if options.quick else (RANKS, POINTS, 20)
    settings = {"quick": options.quick, "seeds": seeds, "α": ALPHAS, "networks": NETWORKS, "target": TARGET}
    results = experiment.Results(options.out / "sensing.json", settings)
    cells = {f"rank {rank}, n {n}": (rank, n) for n in points for rank in ranks}

    def at(rank: int, n: int) -> tuple[float, float]:
        return n / D**2, rank

    table = phase.measured(results, one_set, cells, at, options.workers, f"sets of {NETWORKS} networks")
    sets = [one for name, one in results.values.items() if name != "summary"]
    results.values["summary"] = table | {"all sets": phase.counted(sets)}
    results.save()
    plot(table, options.out / "sensing.png")
    experiment.console.print(phase.told("matrix sensing", table))


if __name__ == "__main__":
    main()
