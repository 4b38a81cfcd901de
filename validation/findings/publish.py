"""What the page of findings rests on: summaries of finished experiments, and one raw number each to regenerate.

    python -m validation publish DIR        (the folder that the experiments wrote to)

Writes ``validation/results/NAME.json`` with settings, versions, the summary and a sample, and the pictures; of Table 1
all models as well, a row each, but for populations of sets: there the first set. Tables that the documentation
includes are copied as they are.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from validation import experiment
from validation.findings.study import runner
from validation.findings.study.runner import Row, load_table, measure_at, of_population, save_table
from validation.findings.study.statistics import Estimate, format_signed
from validation.paper import protocol
from validation.paper.table1 import PAPER

HERE = Path(__file__).parent.parent
PICTURES = {
    "phase": ("phase",),
    "diagonal": (),
    "section3_2": ("section3_2",),
}
"""Of every experiment."""


TABLES = ("accuracy.csv", "first_call.csv", "operations.csv", "spectrum.csv", "implementations.csv")
"""Tables that pages of the documentation include or link."""


def select_published(source: Path) -> dict[str, Any]:
    """Select what is published of one experiment: the first value beside the summary is the sample."""
    document = json.loads(source.read_text(encoding="utf-8"))
    values = document["values"]
    sample = next(name for name in values if name != "summary")
    return {
        "settings": document["settings"],
        "versions": document["versions"],
        "summary": values["summary"],
        "sample": {sample: values[sample]},
    }


def round_numbers(value: Any, digits: int = 4) -> Any:
    """Round all numbers of a document to so many digits."""
    if isinstance(value, dict):
        return {name: round_numbers(item, digits) for name, item in value.items()}
    if isinstance(value, list):
        return [round_numbers(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def by_model(rows: list[Row]) -> list[Row]:
    """A row for each model, with its measures by name and radius, means over batches; of several sets, the first."""
    first = [row for row in rows if row["unit"] == min(row["unit"] for row in rows)]
    chosen = first if len({row["model"] for row in first}) > 1 else rows
    measures = {measure_at(row) for row in chosen}
    return [
        {name: round_numbers(value, 6) if name in measures else value for name, value in item.items()}
        for item in runner.by_model(chosen, measure_at)
    ]


def publish_table1(folder: Path) -> None:
    """Its summary and its models; of populations that are not in the folder, what was published before."""
    place = HERE / "results" / "table1.json"
    document = json.loads((folder / "table1.json").read_text(encoding="utf-8"))
    before = json.loads(place.read_text(encoding="utf-8"))
    merged = {name: {**before[name], **document[name]} for name in ("settings", "versions", "populations", "predicts")}
    save(place, round_numbers({**document, **merged}))
    for population, rows in of_population(load_table(folder / "table1.csv")).items():
        save_table(by_model(rows), HERE / "results" / f"table1-{population}.csv")
    if (picture := folder / "table1.png").is_file():  # of populations that are one set each
        shutil.copy(picture, HERE / "figures" / "table1.png")


def page_table(document: dict[str, Any], population: str) -> str:
    """Table 1 as the page has it, of both draws of a population: τ with the gap of measures, and of two others."""
    first, second = (document["populations"][f"{population}-{draw}"] for draw in (0, 1))
    counts = [f"first {first['models']}", f"{second['models']} others"]
    rows = []
    measured = {name: radii for name, radii in protocol.read_radii(population).items() if name in protocol.NAMES}
    for measure, radii in measured.items():
        for increase, rho in zip(protocol.INCREASES, radii, strict=True):
            here, target = (result["gap"][measure][f"{rho:g}"] for result in (first, second))
            paper = PAPER[population].get(measure)
            rows.append([
                f"{measure}, {increase:g}", "" if paper is None else format_signed(paper),
                *(str(Estimate(*of["tau_a"])) for of in (here, target)),
            ])  # fmt: skip
    for name in (name for name in ("augmentation", "train error") if name in first["others"]):
        taus = (str(Estimate(*of["others"][name])) for of in (first, second))
        rows.append([name.replace("_", " "), "", *taus])
    return experiment.markdown(["τ with the gap", "the paper", *counts], rows)


def save(place: Path, document: Any) -> None:
    """As JSON."""
    place.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Publish what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    (HERE / "results").mkdir(exist_ok=True)
    for name, pictures in PICTURES.items():
        source = folder / f"{name}.json"
        if not source.is_file() or "summary" not in json.loads(source.read_text(encoding="utf-8"))["values"]:
            print(f"{name}: not finished in {folder}, left as it is")
            continue
        save(HERE / "results" / f"{name}.json", select_published(source))
        for picture in pictures:
            shutil.copy(folder / f"{picture}.png", HERE / "figures" / f"{picture}.png")
        print(f"{name}: published")
    for name in TABLES:
        for source, place in ((name, "results"), (f"{Path(name).stem}.png", "figures")):
            if (folder / source).is_file():
                shutil.copy(folder / source, HERE / place / source)
                print(f"{source}: published")
    if (folder / "table1" / "table1.json").is_file():
        publish_table1(folder / "table1")
        print("table1: published; the page's tables are")
        document = json.loads((HERE / "results" / "table1.json").read_text(encoding="utf-8"))
        print("\n\n".join(page_table(document, name) for name in protocol.POPULATIONS if name in document["predicts"]))


if __name__ == "__main__":
    main()
