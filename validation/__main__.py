"""The paper's experiments, again: ``python -m validation NAME [--quick] [--out DIR] [--workers N]``."""

from __future__ import annotations

import importlib
import sys

EXPERIMENTS = {
    "orbit": "the orbit experiment: sharpness of a network whose heads are moved along their orbit",
    "spectrum": "the spectrum of the Hessian along an orbit, Riemannian beside Euclidean",
    "completion": "low-rank matrix completion beside Pymanopt's fixed-rank manifold",
    "table1": "Table 1: sharpness against the generalisation gap, over populations of models",
    "diagonal": "Figure 3: diagonal networks, sharpness against test loss, and a map over what the paper does not fix",
    "sign": "what the sign of τ depends on, on diagonal networks: the truth, noise",
    "phase": "where τ is negative on diagonal networks: a phase diagram and its prediction",
    "sensing": "the same diagram for matrix sensing, where X = G Hᵀ and the loss is linear in X",
    "regime": "what else ranks diagonal networks as sharpness does, and what the number of points does",
    "teacher": "the sign of τ for attention: students of teachers with different spectra",
    "teacher_baseline": "how far these students are from their teachers: the loss of predicting zero beside theirs",
    "fault": "how much of a τ is the fault of the search: certified, ours, published",
    "matched": "does sharpness predict the test error of models that fit equally well",
    "validity": "from which ρ first- and second-order geodesics leave the exact ones, on real heads",
    "toy": "Figures 1 and 6: level sets of the scalar model",
    "weights": "how the gradients of inv, mix, RefLoRA and the embedded metric weigh singular directions",
    "distortion": "does a larger group distort the Euclidean trace more: shallow linear networks along random orbits",
    "family": "between inv and mix: sharpness and its rank correlation along the family",
    "implementations": "right implementations that the referee may not accuse, over many seeds",
    "gradient_norm": "beside Figure 1: gradient norms of one attention block along an orbit",
}


def main() -> int:
    """Run the experiment that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in EXPERIMENTS:
        lines = [__doc__ or "", "", *(f"  {name:18}{what}" for name, what in EXPERIMENTS.items())]
        print("\n".join(lines), file=sys.stdout if sys.argv[1:] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    name = sys.argv.pop(1)
    return importlib.import_module(f"validation.{name}").main() or 0


if __name__ == "__main__":
    raise SystemExit(main())
