"""Projection of 48 heads of 768×64 beside the plain matrix products of that size, in one run.

    python -m validation.benchmarks.projection

Prints medians over interleaved rounds: the projection (base point factorised beforehand), six batched tall products
(Hᵀξ, ξᵀG, two changes of gauge, two corrections: what a direct implementation of the balanced gauge contains), the
four that this implementation needs, and the factorisation; then a projection by the literal formulas.
"""

import argparse
import statistics
import time

import numpy as np

import refgeo as rg
from refgeo import formulas


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = (options.blocks, options.rows, options.columns)
    point, v = (rg.Pair(rng.standard_normal(shape), rng.standard_normal(shape)) for _ in range(2))
    small = rng.standard_normal((options.blocks, options.columns, options.columns))

    def products(n_inner, n_outer):
        for _ in range(n_inner):
            np.swapaxes(v.G, -1, -2) @ point.G
        for _ in range(n_outer):
            v.G @ small

    for metric in (rg.InvariantMetric(), rg.MixedMetric()):
        space = metric.at(point)
        timed = {
            "projection": lambda space=space: space.horizontal_projection(v),
            "factorisation": lambda metric=metric: metric.at(point),
            "six products": lambda: products(2, 4),
            "four products": lambda: products(2, 2),
        }
        rounds = {name: [] for name in timed}
        for number in range(options.rounds + 2):
            for name, function in timed.items():
                duration = seconds(function)
                if number >= 2:  # two rounds to warm up
                    rounds[name].append(duration)
        median = {name: statistics.median(durations) for name, durations in rounds.items()}
        print(
            f"{metric.name}: six tall products {1e3 * median['six products']:.1f} ms, "
            f"four {1e3 * median['four products']:.1f} ms"
        )
        for name in ("projection", "factorisation"):
            ratios = [a / b for a, b in zip(rounds[name], rounds["six products"], strict=True)]
            print(
                f"     {name} {1e3 * median[name]:.1f} ms; ratio to six "
                f"{statistics.median(ratios):.2f} (range {min(ratios):.2f} to {max(ratios):.2f})"
            )
        literal = 1e3 * seconds(lambda metric=metric: formulas.horizontal_projection(metric.name, *point, *v))
        print(f"     literal formulas {literal:.0f} ms a vector")


if __name__ == "__main__":
    main()
