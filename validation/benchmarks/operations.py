"""Every operation of a pair metric beside plain matrix products, in one run.

    python -m validation operations [--rounds 9] [--quick] [--out DIR]

The unit is six tall products, (h, n)·(n, h) twice and (n, h)·(h, h) four times a block: what a projection contains that
is written directly in the balanced gauge. Then a first call, `metric.at` and one projection, beside a loop over blocks
with SciPy's Sylvester solver and Gram matrices; and the memory that a factorisation takes, in sizes of the point.
Rounds are interleaved; the median ratio is printed with its range.
"""

import argparse
import statistics
import time
import tracemalloc
from pathlib import Path

import numpy as np
import scipy.linalg

import refgeo as rg
from validation import experiment

LARGE = [(48, 768, 768, 64), (288, 769, 769, 64)]
FIRST_CALLS = [(1, 20, 20, 4), (1, 385, 385, 32), (2000, 65, 65, 8), (144, 385, 385, 32), (144, 769, 769, 32), *LARGE]
SHOWN = (
    "at", "projection", "gradient", "Γ(v, v)", "Γ(a, b)", "Γ(a, ·)*", "geodesic 2", "point_at", "gradient_at",
    "geodesic exact", "gradient exact",
)  # fmt: skip
TARGETS = {
    "at": 1.5, "Γ(v, v)": 1.8, "geodesic 2": 1.8, "Γ(a, b)": 2.5, "Γ(a, ·)*": 2.5, "geodesic exact": 3.5,
    "gradient exact": 7.0,
}  # fmt: skip
"""For 768×64; at 385×32 `at` may take 3."""


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(functions, rounds):
    """Durations of each, the first round left out."""
    durations = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            duration = seconds(function)
            if number > 0:
                durations[name].append(duration)
    return durations


def ratios(durations, name, unit):
    each = sorted(a / b for a, b in zip(durations[name], durations[unit], strict=True))
    return f"{statistics.median(each):6.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def a_point(blocks, n, m, h):
    rng = np.random.default_rng(0)
    point, v, e = (rg.Pair(rng.standard_normal((blocks, n, h)), rng.standard_normal((blocks, m, h))) for _ in range(3))
    return point, v, e, rng.standard_normal((blocks, h, h))


def operations(metric, shape, rounds):
    point, v, e, small = a_point(*shape)
    space = metric.at(point)
    v = 0.3 * space.horizontal_projection(v) / space.norm(v)
    x = space.to_coordinates(v)

    def six_products():
        for F in point:
            F.mT @ F
            for _ in range(2):
                F @ small

    timed = {
        "six products": six_products,
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
        timed["geodesic exact"] = lambda: space.geodesic(v, 1.0, "exact")
        timed["gradient exact"] = lambda: space.geodesic_gradient(v, e, "exact")
    durations = in_turn(timed, rounds)
    print(f"{metric.name}, {shape}: six tall products {1e3 * statistics.median(durations['six products']):.1f} ms")
    for name in list(timed)[1:]:
        target = f"   target {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"    {name:16s} {ratios(durations, name, 'six products')}{target}", flush=True)
    tracemalloc.start()
    kept = metric.at(point).gauge.columns  # noqa: F841
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"    peak memory of at: {peak / sum(F.nbytes for F in point):.1f} times the point", flush=True)
    return {
        name: statistics.median(a / b for a, b in zip(each, durations["six products"], strict=True))
        for name, each in durations.items()
    }


def sylvester_loop(point, v):
    """Projection in inv, a block at a time: S T Λᵀ + Λᵀ S T = S Hᵀv_H − v_GᵀG T."""
    result = []
    for G, H, v_G, v_H in zip(*point, *v, strict=True):
        S, T = G.T @ G, H.T @ H
        product = S @ T
        L = scipy.linalg.solve_sylvester(product, product, S @ (H.T @ v_H) - (v_G.T @ G) @ T).T
        result.append((v_G + G @ L, v_H - H @ L.T))
    return result


def first_call(shape, rounds):
    point, v, _, _ = a_point(*shape)
    metric = rg.InvariantMetric()
    repeat = 50 if shape[0] == 1 else 1

    def ours():
        for _ in range(repeat):
            metric.at(point).horizontal_projection(v)

    def theirs():
        for _ in range(repeat):
            sylvester_loop(point, v)

    durations = in_turn(
        {"refgeo": ours, "loop": theirs, "at": lambda: [metric.at(point) for _ in range(repeat)]}, rounds
    )
    ours, theirs, at = (1e6 * statistics.median(durations[name]) / repeat for name in ("refgeo", "loop", "at"))
    print(
        f"{shape!s:22s} at and projection {ours:9.0f} µs (at {at:.0f}), SciPy's loop {theirs:9.0f} µs; "
        f"ratio {ratios(durations, 'refgeo', 'loop')}",
        flush=True,
    )
    return [str(shape), f"{ours:,.0f} µs", f"{theirs:,.0f} µs", ratios(durations, "refgeo", "loop").strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small points only")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the tables (results)")
    options = parser.parse_args()
    rounds = options.rounds
    print("A first call (target: no slower than the loop; twice as slow for a small block, 1.2 for a large one)")
    calls = [first_call(shape, rounds) for shape in FIRST_CALLS[: 3 if options.quick else None]]
    print("\nUnits of six tall products")
    rows = []
    for shape in [(12, 384, 384, 32)] if options.quick else LARGE:
        for metric in (rg.InvariantMetric(), rg.MixedMetric()):
            found = operations(metric, shape, rounds)
            rows.append(
                [f"{metric.name}, {shape}", *(f"{found[name]:.1f}" if name in found else "–" for name in SHOWN)]
            )
    experiment.table(["blocks, n, m, h", "refgeo", "SciPy's loop", "ratio"], calls, options.out / "first_call.md")
    experiment.table(["", *SHOWN], rows, options.out / "operations.md")


if __name__ == "__main__":
    main()
