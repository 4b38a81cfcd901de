r"""Gradient norms of one self-attention block along an orbit, beside Figure 1.

The loss of a single-head attention classifier depends on W_q and W_k only through :math:`W_q W_k^\top`. Along the orbit
(W_q A⁻¹, W_k Aᵀ), A = diag(e^s, e^{−s}, 1, …) in a random basis, the loss is constant. The norm of its Riemannian
gradient is too; that of its Euclidean gradient is not.

    python -m validation gradient_norm [--quick] [--out DIR]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import refgeo as rg
from validation import experiment


def measure(points: int) -> dict[str, list[float]]:
    """The loss and the norms along the orbit."""
    model = rg.networks.AttentionClassifier(width=6, heads=1)
    params = model.init(0)
    rng = np.random.default_rng(1)
    batch = rng.integers(0, model.vocabulary, (32, model.length)), rng.integers(0, model.classes, 32)
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    table: dict[str, list[float]] = {"s": [], "loss": [], "inv": [], "mix": [], "Euclidean": []}
    for s in np.linspace(-3, 3, points):
        A = basis @ np.diag([np.exp(s), np.exp(-s), 1, 1, 1, 1]) @ basis.T
        at = {**params, "layer0.query_key": params["layer0.query_key"].transform(A)}
        loss, grads = model.value_and_grad(at, batch)
        pair, e = at["layer0.query_key"], grads["layer0.query_key"]
        table["s"].append(float(s))
        table["loss"].append(loss)
        for name, metric in (("inv", rg.InvariantMetric()), ("mix", rg.MixedMetric())):
            space = metric.at(pair)
            table[name].append(float(space.norm(space.riemannian_gradient(e))[0]))
        table["Euclidean"].append(float(np.sqrt(np.sum(e.G**2) + np.sum(e.H**2))))
    return table


def plot(table: dict[str, list[float]], path: Path) -> None:
    """Every curve relative to its value at s = 0."""
    plt = experiment.style()
    figure, ax = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    middle = len(table["s"]) // 2
    for name, width in (("Euclidean", 2.5), ("loss", 5.0), ("inv", 3.0), ("mix", 1.5)):
        label = {"loss": "loss", "Euclidean": "Euclidean gradient norm"}.get(name, f"Riemannian gradient norm, {name}")
        values = np.array(table[name]) / table[name][middle]
        ax.semilogy(table["s"], values, color=experiment.COLOURS[name], linewidth=width, label=label)
    ax.set_xlabel("s, along the orbit of one attention head")
    ax.set_ylabel("relative to s = 0")
    ax.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    ax.minorticks_off()
    ax.set_title("Same function, same Riemannian gradient norm")
    ax.legend(fontsize=9)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    points = 13 if options.quick else 61
    results = experiment.Results(options.out / "gradient_norm.json", {"points": points})
    table = results.measure("table", lambda: measure(points))
    plot(table, options.out / "gradient_norm.png")
    spread = {name: max(values) / min(values) - 1 for name, values in table.items() if name != "s"}
    experiment.console.print(
        f"along the orbit Riemannian gradient norms vary by {spread['inv']:.1e} (inv) and {spread['mix']:.1e} (mix), "
        f"the Euclidean one by a factor {1 + spread['Euclidean']:.1f}; picture and numbers in {options.out}"
    )


if __name__ == "__main__":
    main()
