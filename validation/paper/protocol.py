"""What is fixed of Table 1 before a model is measured, and what a run says by it.

    python -m validation protocol --data FOLDER [--out FILE]

writes ``protocol.json`` beside this file: the plan, and a radius for each measure and increase of the loss.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.support.files import write_text
from validation import experiment
from validation.findings.study.images import Population
from validation.findings.study.measures import MEASURES, Effort, Measured, Model
from validation.findings.study.runner import Row
from validation.findings.study.statistics import correlation, estimated_partial_tau, estimated_tau, holm

PLACE = Path(__file__).with_suffix(".json")
PLAN = {
    "populations": "72 vision transformers, fine-tuned from one checkpoint by recipes that are drawn beforehand (draw "
    "0); the confirmation are 72 others (draw 1), which are trained after the first were seen. No model is left out.",
    "measures": "Adaptive sharpness (elementwise, order 1), inv and mix (order 2) by Algorithm 1 with one start and 20 "
    "steps, on the same 8 batches of 256 training images for every model; of a model, the mean over the batches.",
    "radii": "Of each measure two: where the median over the batches of the increase of the loss is 0.1, and where it "
    "is 0.5, on the checkpoint itself and its own task. No fine-tuned model is looked at.",
    "outcome": "The gap: test error − training error, on 10,000 images each.",
    "tests": "Six: Kendall's τ_a between each measure at each radius and the gap; p is the share of 2,000 random "
    "orders with at least this |τ|, with Holm's correction over the six.",
    "predicts": "The corrected p is below 0.05 in both populations, and τ has the same sign.",
    "predicts beyond the step size": "It predicts, and the 95% interval of the partial τ given the step size is on the "
    "same side of zero in both populations.",
    "description": "All else: τ with the test error and the test loss; τ of the recipe's numbers, the norm of the "
    "weights and the training loss with the gap; differences between measures at the same increase.",
}
NAMES = ("adaptive", "inv", "mix")
INCREASES = (0.1, 0.5)
GRID = tuple(float(rho) for rho in np.geomspace(3e-3, 3.0, 13))


def radii(model: Model, effort: Effort, grid: Sequence[float] = GRID) -> dict[str, list[float]]:
    """Of each measure, the radius for each increase of the loss, between those of a grid.

    Raises
    ------
    ValueError
        The grid does not reach an increase.
    """
    found = {}
    for name in NAMES:
        rows = Measured(model, effort).rows(MEASURES[name], grid)
        medians = [float(np.median([row["value"] for row in rows if row["rho"] == rho])) for rho in grid]
        if not min(medians) <= min(INCREASES) < max(INCREASES) <= max(medians):
            raise ValueError(f"{name}: increases from {min(medians):.3g} to {max(medians):.3g} at ρ from {grid[0]:.3g}")
        rising = np.maximum.accumulate(np.log(np.maximum(medians, 1e-12)))
        found[name] = [float(f"{np.exp(np.interp(np.log(one), rising, np.log(grid))):.3g}") for one in INCREASES]
    return found


def ranked(models: Sequence[Row], radii: Mapping[str, Sequence[float]], given: str = "step_size") -> dict[str, Any]:
    """What one population says: each measure at each of its radii, and all else that could order the models.

    Parameters
    ----------
    models : sequence of dict
        A row each, with a number ``NAME @ ρ`` for each measure and radius.
    radii : dict
    given : str
        What a measure is to say more than.
    """
    columns = {name: np.array([float(one[name]) for one in models]) for name in models[0] if name not in _NO_NUMBERS}
    gap, table = columns["gap"], {}
    for name, of in radii.items():
        for increase, rho in zip(INCREASES, of, strict=True):
            values = columns[f"{name} @ {rho:g}"]
            there = np.isfinite(values)
            value, outcome = values[there], {of: columns[of][there] for of in (*_OUTCOMES, given)}
            one = correlation(value, outcome["gap"])
            table[f"{name}, {increase:g}"] = {
                "rho": rho,
                "missing": int(np.sum(~there)),
                "tau": list(one.tau_a),
                "p": one.p,
                f"given the {given}": list(estimated_partial_tau(value, outcome["gap"], outcome[given])),
                **{of: list(estimated_tau(value, outcome[of])) for of in _OUTCOMES if of != "gap"},
            }
    for row, p in zip(table.values(), holm([row["p"] for row in table.values()]), strict=True):
        row["p, Holm"] = p
    others = {name: list(estimated_tau(values, gap)) for name, values in columns.items() if _orders(name, values)}
    return {"models": len(models), "measures": table, "others": others}


_NO_NUMBERS = ("population", "unit", "model", "trained")
_OUTCOMES = ("gap", "test error", "test loss")


def _orders(name: str, values: Any) -> bool:
    """Whether it is a number of a model that differs, and no measure."""
    return "@" not in name and name not in ("gap", "index") and len(set(values)) > 1


def predicting(first: Mapping[str, Any], second: Mapping[str, Any], given: str = "step_size") -> dict[str, str]:
    """By the plan: of each measure at each increase, whether it "predicts", "predicts beyond", or "does not predict".

    Parameters
    ----------
    first, second : dict
        What `ranked` says of the population that was looked at, and of the one that confirms it.
    """
    found = {}
    for name in first["measures"]:
        both = [of["measures"][name] for of in (first, second)]
        signs = {np.sign(row["tau"][0]) for row in both}
        if any(row["p, Holm"] >= 0.05 for row in both) or len(signs) > 1:
            found[name] = "does not predict"
            continue
        (sign,) = signs
        low = [min(sign * end for end in row[f"given the {given}"][1:]) for row in both]
        found[name] = "predicts beyond" if min(low) > 0.0 else "predicts"
    return found


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder with the four files of Fashion-MNIST")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", type=Path, default=Path("results/table1/weights/images"))
    parser.add_argument("--out", type=Path, default=PLACE)
    options = parser.parse_args()
    population = Population(options.data, device=options.device)
    found = {
        "plan": PLAN,
        "increases": INCREASES,
        "radii": radii(population.checkpoint(options.weights), Effort()),
        "versions": experiment.versions(),
    }
    write_text(options.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    experiment.console.print(found["radii"])


if __name__ == "__main__":
    main()
