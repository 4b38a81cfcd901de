r"""Which ρ may one use? First- and second-order geodesics against exact ones, on the heads of a real checkpoint.

For the 12 heads of some layers of all-MiniLM-L6-v2, query with key and value with output, and horizontal directions of
unit length, random ones and those of the loss's Riemannian gradient, which a search follows: the relative error

    ‖γ_order(ρ) − γ_exact(ρ)‖ / ‖γ_exact(ρ) − θ‖

of one pair that moves by ρ, in the metric at θ, against ρ; and for mix the length at which the geodesic loses rank. In
a network ρ² is shared out among all its blocks, so that each moves by less.

    python -m validation validity [--quick] [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from validation import experiment, minilm

RADII = tuple(float(rho) for rho in np.geomspace(0.01, 10.0, 13))
PAIRS = ("query_key", "value_out")
DIRECTIONS = ("random", "gradient")


def errors(name: str, block: str, direction: str, seed: int) -> dict[str, Any]:
    """Of every head, order and radius; and the length at which mix ends (None: not within the last radius)."""
    network = minilm.network()
    pair = network.blocks[block]
    if direction == "gradient":
        loss = minilm.SentenceLoss(*minilm.tokens(minilm.sentence_pairs(8), 48))
        e_G, e_H = loss(network.blocks)[1][block]
    metric = rg.InvariantMetric() if name == "inv" else rg.MixedMetric()
    result: dict[str, Any] = {"1": [], "2": [], "ends": []}
    for head in range(pair.block_shape[0]):
        space = metric.at(rg.Pair(pair.G[head], pair.H[head]))
        if direction == "gradient":
            v = space.riemannian_gradient(rg.Pair(e_G[head], e_H[head]))
            v = v / float(space.norm(v))
        else:
            v = space.random_tangent_vector(np.random.default_rng([seed, head]))
        rows: dict[str, list[float | None]] = {"1": [], "2": []}
        ends = None
        for rho in RADII:
            try:
                exact = None if ends is not None else space.geodesic(rho * v, order="exact")
            except rg.GeodesicIncompleteError as error:
                exact, ends = None, rho * error.time
            except rg.GeodesicAccuracyError:
                exact = None
            for order in (1, 2):
                if exact is None:
                    rows[str(order)].append(None)
                    continue
                found = space.geodesic(rho * v, order=order)  # type: ignore[arg-type]
                rows[str(order)].append(float(space.norm(found - exact) / space.norm(exact - space.point)))
        for order in ("1", "2"):
            result[order].append(rows[order])
        result["ends"].append(ends)
    return result


def plot(found: dict[tuple[str, str], list[dict[str, Any]]], place: Path) -> None:
    """Median error and its range over heads."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.8), sharey=True)
    colours = {"random": experiment.COLOURS["inv"], "gradient": experiment.COLOURS["adaptive"]}
    for axis, name in zip(axes, ("inv", "mix"), strict=True):
        for (metric, direction), several in found.items():
            if metric != name:
                continue
            for order, style in (("1", "--"), ("2", "-")):
                table = np.array([row for one in several for row in one[order]], dtype=float)
                kept = np.isfinite(table).any(axis=0)
                radii, table = np.array(RADII)[kept], table[:, kept]
                label = f"{'random' if direction == 'random' else 'along the gradient'}, order {order}"
                axis.loglog(radii, np.nanmedian(table, axis=0), style, color=colours[direction], label=label)
                low, high = np.nanmin(table, axis=0), np.nanmax(table, axis=0)
                axis.fill_between(radii, low, high, color=colours[direction], alpha=0.1, lw=0)
            for end in (end for one in several for end in one["ends"] if end is not None):
                axis.axvline(end, ymax=0.04, color=colours[direction], lw=0.6)
        axis.axhline(0.01, color="0.7", lw=0.8)
        axis.set(xlabel="length ρ that one pair moves", title=name)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("relative error")
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def within(table: Any, bound: float) -> float:
    """The largest radius up to which the median error is below a bound, interpolated."""
    middle = np.nanmedian(np.array(table, dtype=float), axis=0)
    below = np.flatnonzero(middle > bound)
    if not len(below):
        return RADII[-1]
    k = int(below[0])
    if k == 0:
        return 0.0
    x, y = np.log(RADII[k - 1 : k + 1]), np.log(middle[k - 1 : k + 1])
    return float(np.exp(x[0] + (np.log(bound) - y[0]) * (x[1] - x[0]) / (y[1] - y[0])))


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    layers = (0,) if options.quick else (0, 2, 5)
    results = experiment.Results(options.out / "validity.json", {"quick": options.quick, "radii": RADII})
    places = {
        f"{metric} | {direction} | {layer} | {pair}": (
            metric,
            f"encoder.layer.{layer}.attention.{pair}",
            direction,
            layer,
        )
        for metric in ("inv", "mix")
        for direction in DIRECTIONS
        for layer in layers
        for pair in PAIRS
    }
    found = results.measure_all(errors, places, options.workers, "layers")
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place, one in zip(places, found, strict=True):
        metric, direction, *_ = place.split(" | ")
        grouped.setdefault((metric, direction), []).append(one)
    plot(grouped, options.out / "validity.png")
    summary = results.values["summary"] = {
        f"{metric}, {direction}": {
            "1% at": {order: within([row for one in several for row in one[order]], 0.01) for order in ("1", "2")},
            "10% at": {order: within([row for one in several for row in one[order]], 0.1) for order in ("1", "2")},
            "first end": min((end for one in several for end in one["ends"] if end is not None), default=None),
            "ended": float(np.mean([end is not None for one in several for end in one["ends"]])),
        }
        for (metric, direction), several in grouped.items()
    }
    results.save()
    for name, row in summary.items():
        end = (
            "none"
            if row["first end"] is None
            else f"from {row['first end']:.2f} on, {row['ended']:.0%} by {RADII[-1]:g}"
        )
        experiment.console.print(
            f"{name}: 1% off at ρ = {row['1% at']['1']:.3f} (order 1), {row['1% at']['2']:.3f} (order 2); 10% at "
            f"{row['10% at']['1']:.2f}, {row['10% at']['2']:.2f}; rank lost: {end}"
        )


if __name__ == "__main__":
    main()
