"""What is fixed of Table 1 before a model is measured, and what a run says by it.

    python -m validation protocol --population images --data FOLDER
    python -m validation protocol --population definitions --data FOLDER [--device cuda] [--workers N]

write into ``protocol.json`` beside this file: the plan, and a radius for each measure and increase of the loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.support.files import write_text
from validation import experiment
from validation.findings.study import definitions, images
from validation.findings.study.measures import MEASURES, Effort, Measured
from validation.findings.study.runner import Row, by_model, measure_at
from validation.findings.study.statistics import differences, holm

PLACE = Path(__file__).with_suffix(".json")
PLAN = {
    "populations": "72 vision transformers, fine-tuned from one checkpoint by recipes that are drawn beforehand (draw "
    "0); the confirmation are 72 others (draw 1), which are trained after the first were seen. No model is left out; "
    "a measure that is missing for one is not judged. The same with 35 text encoders, whose last layer and "
    "classifier are fine-tuned from one checkpoint by one recipe with other seeds.",
    "measures": "Adaptive sharpness (elementwise, order 1), inv and mix (order 2) by the search of Algorithm 1 with "
    "exact gradients, one start and 20 steps, the larger ball also from the maximiser of the smaller; on the same 8 "
    "batches of 256 training images (128 pairs of texts) for every model; of a model, the mean over the batches.",
    "radii": "Of each measure two: where the median over the batches of the increase of the loss is 0.1, and where it "
    "is 0.5, on the checkpoint itself and its own task. No fine-tuned model is looked at.",
    "outcome": "The gap: test error − training error, on 10,000 images each (4,000 and 4,096 pairs of texts).",
    "tests": "Six: Kendall's τ_a between each measure at each radius and the gap; p is the share of 2,000 random "
    "orders with at least this |τ|, with Holm's correction over the six.",
    "predicts": "The corrected p is below 0.05 in both draws, and τ has the same sign.",
    "predicts beyond the step size alone": "It predicts, and in both draws the 95% interval of τ given the step size "
    "is on the same side of zero: τ of what a cubic polynomial in the rank of the step size leaves of both ranks. Not "
    "asked where all models have one step size.",
    "better than adaptive": "What the paper's table says of inv and mix: in both draws the 95% interval of τ minus "
    "that of adaptive sharpness at the same increase, times the sign of the paper's τ, is above zero.",
    "description": "All else: τ with the test error, the test loss and the error on the challenge; τ of the recipe's "
    "numbers, the norm of the weights and the training loss with the gap; mix without Γ.",
    "changed": "Of the images, 'beyond the step size alone' took the place of a partial τ while draw 0 was measured "
    "and before a result was looked at; 'better than adaptive' came when τ of adaptive sharpness and of the recipes "
    "in draw 0 had been seen, and before that of inv and mix. Draw 1 began after both. Of the definitions, after the "
    "results of the images, before a model was trained, and for cost: the last layer moves, not three; texts have 16 "
    "tokens, not 32; the test has 4,000 pairs, not 2,000. Both draws were trained before a result was seen.",
}
POPULATIONS = {"images": images.Population, "definitions": definitions.Population}
MODELS = {"images": 72, "definitions": 35}
BATCHES = 8
PAPER = {
    "images": {"adaptive": -0.41, "inv": -0.71, "mix": -0.70},
    "definitions": {"adaptive": 0.06, "inv": 0.28, "mix": 0.38, "mix, no Γ": 0.24},
}
"""The paper's τ: of CLIP on ImageNet, of BERT on MNLI; without Γ from its ablation."""
NAMES = ("adaptive", "inv", "mix")
INCREASES = (0.1, 0.5)
GRID = tuple(float(rho) for rho in np.geomspace(3e-3, 3.0, 13))


def rows_of_checkpoint(population: str, options: dict[str, Any], weights: str, name: str, batch: int) -> list[Row]:
    """Of one measure on one batch of a population, at the radii of the grid."""
    model = POPULATIONS[population](**options).checkpoint(Path(weights))
    return Measured(replace(model, batches=[model.batches[batch]]), Effort()).rows(MEASURES[name], GRID)


def radii(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Of each measure, the radius for each increase of the loss, between those of the checkpoint's rows.

    Raises
    ------
    ValueError
        The grid does not reach an increase.
    """
    result, grid = {}, sorted({row["rho"] for row in rows})
    for name in NAMES:
        of = [row for row in rows if row["measure"] == name]
        medians = [float(np.median([row["value"] for row in of if row["rho"] == rho])) for rho in grid]
        if not min(medians) <= min(INCREASES) < max(INCREASES) <= max(medians):
            raise ValueError(f"{name}: increases from {min(medians):.3g} to {max(medians):.3g} at ρ from {grid[0]:.3g}")
        rising = np.maximum.accumulate(np.log(np.maximum(medians, 1e-12)))
        result[name] = [float(f"{np.exp(np.interp(np.log(item), rising, np.log(grid))):.3g}") for item in INCREASES]
    return result


def read_radii(population: str) -> dict[str, list[float]]:
    """Return the radii of the file. Without Γ, mix has those of mix; it belongs to the description.

    Raises
    ------
    SystemExit
        There are none of this population.
    """
    fixed = json.loads(PLACE.read_text(encoding="utf-8"))["radii"].get(population)
    if fixed is None:
        raise SystemExit(
            f"no radii of the {population} are fixed: python -m validation protocol --population {population}"
        )
    return {**fixed, "mix, no Γ": fixed["mix"]}


def predicting(population: str, populations: Mapping[str, Any]) -> dict[str, Any]:
    """By the plan, of each measure at each increase: p with Holm's correction in both draws, and the verdict.

    Parameters
    ----------
    population : "images" or "definitions"
    populations : dict
        What `validation.paper.table1.describe` says of each.

    Returns
    -------
    dict
        Nothing where a draw is missing, has fewer models or batches than the plan, or lacks a number.
    """
    draws = [populations.get(f"{population}-{draw}", {}) for draw in (0, 1)]
    if any((of.get("models"), of.get("batches")) != (MODELS[population], BATCHES) for of in draws):
        return {}
    both = [of["gap"] for of in draws]
    tests = [(name, f"{rho:g}") for name in NAMES for rho in read_radii(population)[name]]
    if any(of.get(name, {}).get(rho, {}).get("models") != MODELS[population] for of in both for name, rho in tests):
        return {}
    corrected = [holm([of[name][rho]["p"] for name, rho in tests]) for of in both]
    result = {}
    for (name, rho), *p in zip(tests, *corrected, strict=True):
        result[f"{name} @ {rho}"] = {"p, Holm": p, "verdict": verdict([of[name][rho] for of in both], p)}
        if name != NAMES[0]:
            increase = f"{INCREASES[read_radii(population)[name].index(float(rho))]:g}"
            beside = [np.sign(PAPER[population][name]) * np.array(of["minus adaptive"][increase][name]) for of in draws]
            result[f"{name} @ {rho}"]["better than adaptive"] = all(bool(min(item) > 0.0) for item in beside)
    return result


def minus_adaptive(population: str, rows: Sequence[Row]) -> dict[str, dict[str, list[float]]]:
    """τ with the gap of each other measure minus that of adaptive sharpness, at the same increase of the loss; of those
    that all models have.
    """
    models, fixed, result = by_model(rows, measure_at), read_radii(population), {}
    gap = [item["gap"] for item in models]
    for k, increase in enumerate(INCREASES):
        values = {name: [item.get(f"{name} @ {of[k]:g}", np.nan) for item in models] for name, of in fixed.items()}
        target = {name: of for name, of in values.items() if np.isfinite(of).all()}
        if NAMES[0] in target:
            result[f"{increase:g}"] = {name: list(item) for name, item in differences(target, gap, of=NAMES[0]).items()}
    return result


def verdict(rows: Sequence[Mapping[str, Any]], p: Sequence[float]) -> str:
    """Return what a measure at a radius does, by what two populations say of it.

    Examples
    --------
    >>> row = {"tau_a": [-0.3, -0.4, -0.2], "given": [-0.1, -0.3, 0.1]}
    >>> verdict([row, row], [0.01, 0.02]), verdict([row, row], [0.01, 0.2])
    ('predicts', 'does not predict')
    """
    first, second = (np.sign(row["tau_a"][0]) for row in rows)
    if max(p) >= 0.05 or first != second:
        return "does not predict"
    beyond = all(row["given"] and min(first * np.array(row["given"][1:])) > 0.0 for row in rows)
    return "predicts beyond the step size alone" if beyond else "predicts"


def main() -> None:
    """Write the file."""
    parser = experiment.parser(__doc__, has_quick=False)
    parser.add_argument("--population", choices=list(POPULATIONS), required=True)
    parser.add_argument("--data", required=True, help="a folder with the four files of Fashion-MNIST, or data.noun")
    parser.add_argument("--device", default="cpu", help="of the losses (cpu)")
    options = parser.parse_args()
    fixed = json.loads(PLACE.read_text(encoding="utf-8"))
    if options.population in fixed["radii"]:
        parser.error(f"the radii of the {options.population} are fixed already: {PLACE}")
    out: Path = options.out / "table1"
    given, weights = {"data": options.data, "device": options.device}, out / "weights" / options.population
    POPULATIONS[options.population](**given).checkpoint(weights)  # it is trained once
    tasks = {
        f"{name}, batch {batch}": (options.population, given, str(weights), name, batch)
        for name in NAMES
        for batch in range(BATCHES)
    }
    results = experiment.Results(out / f"radii-{options.population}.json", {"grid": GRID, "effort": asdict(Effort())})
    measured = results.measure_all(rows_of_checkpoint, tasks, options.workers, "radii")
    rows = [row for part in measured for row in part]
    result = {
        "plan": PLAN,
        "increases": INCREASES,
        "radii": fixed["radii"] | {options.population: radii(rows)},
        "versions": fixed["versions"] | {options.population: experiment.versions()},
    }
    write_text(PLACE, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    experiment.console.print(result["radii"][options.population])


if __name__ == "__main__":
    main()
