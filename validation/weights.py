r"""How strongly the gradient of each metric moves the singular directions of X = G Hᵀ.

In the bases of singular vectors of X, E = ∂ℓ/∂X has a core (both indices belong to X) and a side (one of them does).
The gradient of a metric multiplies each entry by a number, which is read from the change dX that it makes:
σ²⁻²ˢ for the side and σᵢ²⁻²ˢ + σⱼ²⁻²ˢ for the core in the family from inv (s = 0) to mix (s = 1), and 1 for all of
them in the embedded metric.

    python -m validation weights [--quick] [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from validation import experiment

METRICS: dict[str, Any] = {
    "inv": rg.InvariantMetric(),
    "s=0.5 (RefLoRA)": rg.InterpolatedMetric(0.5),
    "mix": rg.MixedMetric(),
    "embedded": rg.EmbeddedMetric(),
}


def measure(points: int) -> dict[str, Any]:
    """Of each metric, the multipliers of the side and of the diagonal of the core, at singular values σ."""
    rng, sigma = np.random.default_rng(0), np.geomspace(0.1, 10.0, points)
    U, V = (np.linalg.qr(rng.standard_normal((2 * points, points)))[0] for _ in range(2))
    A = np.eye(points) + 0.05 * rng.standard_normal((points, points))
    point = rg.Pair(U * np.sqrt(sigma), V * np.sqrt(sigma)).transform(A)  # any point of the orbit
    E = rng.standard_normal((2 * points, 2 * points))
    outside = np.linalg.qr(np.concatenate([U, rng.standard_normal((2 * points, points))], axis=1))[0][:, points:]
    found: dict[str, Any] = {"sigma": sigma.tolist(), "side": {}, "core": {}}
    for name, metric in METRICS.items():
        g = metric.at(point).riemannian_gradient(rg.Pair(E @ point.H, E.T @ point.G))
        dX = g.G @ point.H.T + point.G @ g.H.T
        found["side"][name] = ((outside.T @ dX @ V) / (outside.T @ E @ V))[0].tolist()
        found["core"][name] = np.diag((U.T @ dX @ V) / (U.T @ E @ V)).tolist()
    return found


def plot(found: dict[str, Any], path: Path) -> None:
    """Both multipliers against σ."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, 2, figsize=(6.6, 2.9), layout="constrained", sharey=True)
    titles = {"side": "side: one singular vector of X", "core": "core: two singular vectors of X"}
    for ax, (part, title) in zip(axes, titles.items(), strict=True):
        for name, values in found[part].items():
            ax.loglog(found["sigma"], values, "--" if name == "embedded" else "-", label=name, lw=1.6)
        ax.set(xlabel="singular value σ of X", title=title)
    axes[0].set(ylabel="multiplier of ∂ℓ/∂X in the gradient")
    axes[1].legend(frameon=False, fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Command line."""
    options = experiment.parser(__doc__).parse_args()
    found = measure(7 if options.quick else 25)
    plot(found, options.out / "weights.png")
    worst = max(abs(value - 1.0) for part in ("side", "core") for value in found[part]["embedded"])
    print(f"the embedded gradient multiplies every entry by 1, to {worst:.1e}")
