"""Everything that is measured outside the tests: ``python -m validation NAME [--help]``."""

from __future__ import annotations

import importlib
import sys

PROGRAMS = {
    "the paper": {
        "figure1": ("paper.figure1", "Figures 1 and 6: level sets of the scalar model"),
        "figure3": ("paper.figure3", "Figure 3: diagonal networks, sharpness against test loss, over 16 settings"),
        "table1": ("paper.table1", "Table 1: sharpness against the generalisation gap, over populations of models"),
        "protocol": ("paper.protocol", "radii of Table 1's measures on images, fixed beforehand by a rule"),
        "section3_2": ("paper.section3_2", "Sec. 3.2: does a larger group distort the Euclidean trace more"),
    },
    "findings": {
        "phase": ("findings.phase", "where τ is negative on diagonal networks, and a prediction"),
        "orbit": ("findings.orbit", "sharpness of a network whose heads are moved along their orbit"),
        "spectrum": ("findings.spectrum", "the spectrum of the Hessian along an orbit, Riemannian beside Euclidean"),
        "publish": ("findings.publish", "copy the results of finished runs to validation/results"),
    },
    "the referee": {
        "implementations": (
            "backends.implementations",
            "right implementations that it may not accuse, over many seeds",
        ),
        "mutants": ("mutants.catalogue", "mistakes that it must find"),
        "formulas": ("mutants.formulas", "mistakes in formulas that it must read"),
        "third_party": ("third_party.__main__", "published code, judged"),
        "vectors": ("vectors.__main__", "the frozen test set, computed anew"),
    },
    "benchmarks": {
        "accuracy": ("benchmarks.accuracy", "digits against condition numbers, beside enclosures"),
        "operations": ("benchmarks.operations", "times of operations, as ratios to the plain formulas"),
        "sharpness_overhead": ("benchmarks.sharpness_overhead", "what a search takes beside the loss"),
    },
    "the site": {
        "tour": ("examples.tour", "the tour of a sentence encoder"),
        "site": ("docs.site", "every page in a browser"),
    },
}
EXPERIMENTS = {name: module for group in PROGRAMS.values() for name, (module, _) in group.items()}


def main() -> int:
    """Run the program that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in EXPERIMENTS:
        lines = [__doc__ or ""]
        for group, programs in PROGRAMS.items():
            lines += ["", f"{group}:", *(f"  {name:20}{kind}" for name, (_, kind) in programs.items())]
        print("\n".join(lines), file=sys.stdout if sys.argv[1:] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    name = sys.argv.pop(1)
    return importlib.import_module(f"validation.{EXPERIMENTS[name]}").main() or 0


if __name__ == "__main__":
    raise SystemExit(main())
