"""The tables of the page on speed: every operation of a pair metric beside plain matrix products, and a first call.

python -m validation operations [--rounds 9] [--quick] [--out DIR]

Six tall products, (h, n)·(n, h) twice and (n, h)·(h, h) four times a block, are what a projection contains that is
written directly in the balanced gauge. Functions are called in turn, so that a busy machine slows all of them.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import scipy.linalg

import refgeo as rg
from validation import experiment

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
PRODUCTS = "six products"
LARGE = [(48, 768, 768, 64), (288, 769, 769, 64)]
FIRST_CALLS = [(1, 20, 20, 4), (1, 385, 385, 32), (2000, 65, 65, 8), (144, 385, 385, 32), (144, 769, 769, 32), *LARGE]
SHOWN = (
    "at", "projection", "gradient", "Γ(v, v)", "Γ(a, b)", "Γ(a, ·)*", "geodesic 2", "point_at", "gradient_at",
    "geodesic exact", "gradient exact",
)  # fmt: skip


def durations_of(functions, rounds):
    """Durations of each, the first round left out."""
    durations = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number > 0:
                durations[name].append(time.perf_counter() - start)
    return durations


def ratios(durations, name, unit):
    """Of each round, sorted."""
    return sorted(a / b for a, b in zip(durations[name], durations[unit], strict=True))


def ratio(durations, name, unit):
    return statistics.median(ratios(durations, name, unit))


def a_point(blocks, n, m, h):
    rng = np.random.default_rng(0)
    point, v, e = (rg.Pair(rng.standard_normal((blocks, n, h)), rng.standard_normal((blocks, m, h))) for _ in range(3))
    return point, v, e, rng.standard_normal((blocks, h, h))


def operations(metric, shape):
    """Functions without arguments."""
    point, v, e, small = a_point(*shape)
    space = metric.at(point)
    v = 0.3 * space.horizontal_projection(v) / space.norm(v)
    x = space.to_coordinates(v)

    def six_products():
        for F in point:
            F.mT @ F
            for _ in range(2):
                F @ small

    made = {
        PRODUCTS: six_products,
        "at": lambda: metric.at(point).gauge.columns,  # which are computed on first use
        "projection": lambda: space.horizontal_projection(v),
        "gradient": lambda: space.riemannian_gradient(e),
        "Γ(v, v)": lambda: space.christoffel(v),
        "Γ(a, b)": lambda: space.christoffel(v, e),
        "Γ(a, ·)*": lambda: space.christoffel_adjoint(v, e),
        "geodesic 2": lambda: space.geodesic(v),
        "point_at": lambda: space.point_at(x),
        "gradient_at": lambda: space.gradient_at(x, e),
    }
    if metric.s == 0.0:
        made["geodesic exact"] = lambda: space.geodesic(v, 1.0, "exact")
        made["gradient exact"] = lambda: space.geodesic_gradient(v, e, "exact")
    return made


def sylvester_loop(point, v):
    """Projection in inv, a block at a time: S T Λᵀ + Λᵀ S T = S Hᵀv_H − v_GᵀG T."""
    result = []
    for G, H, v_G, v_H in zip(*point, *v, strict=True):
        S, T = G.T @ G, H.T @ H
        product = S @ T
        L = scipy.linalg.solve_sylvester(product, product, S @ (H.T @ v_H) - (v_G.T @ G) @ T).T
        result.append((v_G + G @ L, v_H - H @ L.T))
    return result


def first_call(shape):
    """``at`` and one projection, and the loop; and how often each is repeated."""
    point, v, _, _ = a_point(*shape)
    metric = rg.InvariantMetric()
    repeat = 50 if shape[0] == 1 else 1

    def wrap(function):
        return lambda: [function() for _ in range(repeat)]

    return {
        "refgeo": wrap(lambda: metric.at(point).horizontal_projection(v)),
        "loop": wrap(lambda: sylvester_loop(point, v)),
    }, repeat


def row_of_operations(name, shape, rounds):
    durations = durations_of(operations(METRICS[name], shape), rounds)
    shown = (f"{ratio(durations, item, PRODUCTS):.1f}" if item in durations else "–" for item in SHOWN)
    return [f"{METRICS[name].name}, {shape}", *shown]


def row_of_a_first_call(shape, rounds):
    functions, repeat = first_call(shape)
    durations = durations_of(functions, rounds)
    ours, theirs = (1e6 * statistics.median(durations[name]) / repeat for name in ("refgeo", "loop"))
    each = ratios(durations, "refgeo", "loop")
    ratio = f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"
    return [str(shape), f"{ours:,.0f} µs", f"{theirs:,.0f} µs", ratio]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small points only")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the tables (results)")
    options = parser.parse_args()
    calls = [row_of_a_first_call(shape, options.rounds) for shape in FIRST_CALLS[: 3 if options.quick else None]]
    experiment.table(["blocks, n, m, h", "refgeo", "SciPy's loop", "ratio"], calls, options.out / "first_call.csv")
    sizes = [(12, 384, 384, 32)] if options.quick else LARGE
    rows = [row_of_operations(name, shape, options.rounds) for shape in sizes for name in METRICS]
    experiment.table(["", *SHOWN], rows, options.out / "operations.csv")


if __name__ == "__main__":
    main()
