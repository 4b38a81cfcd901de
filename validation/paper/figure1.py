r"""Figures 1 and 6: level sets of the scalar model L(G, H) = Σ (G H x − y)².

The loss depends on P = GH alone, and so do the norm of its Riemannian gradient and the trace of its Riemannian Hessian:
their level sets are hyperbolas. Those of the Euclidean gradient norm and Hessian trace are not.

    python -m validation figure1 [--quick] [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from refgeo import paper
from validation import experiment

QUANTITIES = {
    "loss": lambda G, H, x, y: np.sum(((G * H)[..., None] * x - y) ** 2, axis=-1),
    "Euclidean gradient norm": lambda *at: paper.toy_gradient_norms(*at)[0],
    "Riemannian gradient norm, inv": lambda *at: paper.toy_gradient_norms(*at)[1],
    "Riemannian gradient norm, mix": lambda *at: paper.toy_gradient_norms(*at)[2],
    "Euclidean Hessian trace": lambda *at: paper.toy_hessian_traces(*at)[0],
    "Riemannian Hessian trace, inv": lambda *at: paper.toy_hessian_traces(*at)[1],
}
FIGURES = {
    "figure1": ["loss", "Euclidean gradient norm", "Riemannian gradient norm, inv", "Riemannian gradient norm, mix"],
    "figure6": ["loss", "Euclidean Hessian trace", "Riemannian Hessian trace, inv"],
}
RANGE = 3.0


def data() -> tuple[Any, Any]:
    """Twenty points near the line y = x."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(20)
    return x, x + 0.1 * rng.standard_normal(20)


def measure(points: int) -> dict[str, Any]:
    """Return every quantity on a grid, and how much it varies along hyperbolas of constant loss."""
    x, y = data()
    axis = np.linspace(-RANGE, RANGE, points)
    G, H = np.meshgrid(axis, axis)
    along = np.geomspace(0.2, 5.0, points)
    result: dict[str, Any] = {"axis": axis.tolist(), "x": x.tolist(), "y": y.tolist(), "grid": {}, "variation": {}}
    for name, quantity in QUANTITIES.items():
        result["grid"][name] = quantity(G, H, x, y).tolist()
        values = np.abs([quantity(along, P / along, x, y) for P in (-2.0, -0.5, 0.3, 2.0)])
        result["variation"][name] = float(np.max(values.max(axis=1) / values.min(axis=1) - 1.0))
    return result


def plot(found: dict[str, Any], names: list[str], path: Path) -> None:
    """Level sets, evenly spaced in the square root; the minimum is a dashed line."""
    plt = experiment.style()
    rows = 2 if len(names) > 3 else 1  # no picture is wider than a page
    columns = len(names) // rows
    figure, axes = plt.subplots(rows, columns, figsize=(3.1 * columns, 3.4 * rows), layout="constrained", squeeze=False)
    x, y = np.array(found["x"]), np.array(found["y"])
    axis = np.array(found["axis"])
    minimum = float(x @ y / (x @ x))
    for ax, name in zip(axes.flat, names, strict=True):
        values = np.array(found["grid"][name])
        root = np.sign(values) * np.sqrt(np.abs(values))
        ax.contourf(axis, axis, root, levels=24, cmap="viridis")
        ax.contour(axis, axis, root, levels=24, colors="white", linewidths=0.4)
        for sign in (-1, 1):
            G = sign * np.geomspace(minimum / RANGE, RANGE, 100)
            ax.plot(G, minimum / G, "--", color="#ff6b5e", linewidth=1.2)
        ax.set_title(name.replace(", ", "\n") if ", " in name else name + "\n", fontsize=9)
        ax.set_xlabel("G")
        ax.set_aspect("equal")
    for ax in axes[:, 0]:
        ax.set_ylabel("H")
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    points = 61 if options.quick else 201
    results = experiment.Results(options.out / "toy.json", {"points": points})
    result = results.measure("found", lambda: measure(points))
    for name, names in FIGURES.items():
        plot(result, names, options.out / f"{name}.png")
    riemannian = max(result["variation"][name] for name in QUANTITIES if name == "loss" or name.startswith("Riem"))
    euclidean = [1 + result["variation"][name] for name in QUANTITIES if name.startswith("Euclid")]
    experiment.console.print(
        f"along hyperbolas GH = const the loss and the Riemannian quantities vary by at most {riemannian:.0e} (the "
        f"paper: not at all), the Euclidean gradient norm by a factor {euclidean[0]:.1f} and the Euclidean Hessian "
        f"trace by a factor {euclidean[1]:.1f}; pictures and numbers in {options.out}"
    )


if __name__ == "__main__":
    main()
