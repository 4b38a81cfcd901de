"""The tables of the page on speed: every operation of a pair metric beside plain matrix products, and a first call.

python -m validation operations [--rounds 9] [--quick] [--out DIR]

The same functions as in `tracked`, at the sizes of real networks; rounds are interleaved.
"""

import argparse
import statistics
from pathlib import Path

from validation import experiment
from validation.benchmarks.tracked import in_turn
from validation.benchmarks.tracked.operations import METRICS, PRODUCTS, first_call, operations

LARGE = [(48, 768, 768, 64), (288, 769, 769, 64)]
FIRST_CALLS = [(1, 20, 20, 4), (1, 385, 385, 32), (2000, 65, 65, 8), (144, 385, 385, 32), (144, 769, 769, 32), *LARGE]
SHOWN = (
    "at", "projection", "gradient", "Γ(v, v)", "Γ(a, b)", "Γ(a, ·)*", "geodesic 2", "point_at", "gradient_at",
    "geodesic exact", "gradient exact",
)  # fmt: skip


def row_of_operations(name, shape, rounds):
    durations = in_turn.durations_of(operations(METRICS[name], shape), rounds)
    shown = (f"{in_turn.ratio(durations, one, PRODUCTS):.1f}" if one in durations else "–" for one in SHOWN)
    return [f"{METRICS[name].name}, {shape}", *shown]


def row_of_a_first_call(shape, rounds):
    functions, repeat = first_call(shape)
    durations = in_turn.durations_of(functions, rounds)
    ours, theirs = (1e6 * statistics.median(durations[name]) / repeat for name in ("refgeo", "loop"))
    each = in_turn.ratios(durations, "refgeo", "loop")
    ratio = f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"
    return [str(shape), f"{ours:,.0f} µs", f"{theirs:,.0f} µs", ratio]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small points only")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the tables (results)")
    options = parser.parse_args()
    calls = [row_of_a_first_call(shape, options.rounds) for shape in FIRST_CALLS[: 3 if options.quick else None]]
    experiment.table(["blocks, n, m, h", "refgeo", "SciPy's loop", "ratio"], calls, options.out / "first_call.md")
    sizes = [(12, 384, 384, 32)] if options.quick else LARGE
    rows = [row_of_operations(name, shape, options.rounds) for shape in sizes for name in METRICS]
    experiment.table(["", *SHOWN], rows, options.out / "operations.md")


if __name__ == "__main__":
    main()
