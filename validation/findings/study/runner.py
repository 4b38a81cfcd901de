"""Population × measures × ρ × batches → one tidy table, a unit of work at a time.

A unit is a model to train and measure (or a set of models). Its rows are written, whole or not at all, as soon as they
are there; what is written is not done again. So a run that is killed loses at most the units in work, and units can be
shared among processes or machines by anything that maps a function over a list.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import refgeo
from refgeo.support.files import write_text
from refgeo.support.progress import show_progress
from validation import experiment
from validation.findings.study.measures import MEASURES, Effort, Measured, Model

Row = dict[str, Any]
Workers = int | Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Population(Protocol):
    """Where models come from. It is named by its module, and made again in every process.

    A class may have ``places``, names of options on which no number depends, and a method ``prepare(weights)``, which
    is called once, before models are made.
    """

    name: str

    def units(self) -> list[str]:
        """The names of the units of work."""

    def rows(self, task: Task) -> list[Row]:
        """Train and measure the models of a unit."""


@dataclass(frozen=True)
class Task:
    """One unit, as it travels to a process.

    Attributes
    ----------
    module, options
        The population is ``module.Population(**options)``.
    unit : str
    measures : tuple of str
    radii : tuple of float
    effort : Effort
    out : str
        The study's folder.
    """

    module: str
    options: tuple[tuple[str, Any], ...]
    unit: str
    measures: tuple[str, ...]
    radii: tuple[float, ...]
    effort: Effort
    out: str

    @property
    def population(self) -> Any:
        """Made anew."""
        return import_module(self.module).Population(**dict(self.options))

    @property
    def weights(self) -> Path:
        """The folder of what has been trained."""
        return Path(self.out) / "weights" / self.population.name

    @property
    def settings(self) -> Row:
        """What the numbers depend on: not where files lie, or which processor computes."""
        described = asdict(self) | {"refgeo": refgeo.__version__}
        places = getattr(import_module(self.module).Population, "places", ())
        described["options"] = [option for option in self.options if option[0] not in places]
        del described["out"]
        return json.loads(json.dumps(described))  # type: ignore[no-any-return]

    @property
    def place(self) -> Path:
        """The unit's file; another one for other settings."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:12]
        return Path(self.out) / "units" / self.population.name / f"{self.unit}-{digest}.json"


def done(task: Task) -> list[Row] | None:
    """The rows of a unit that is finished."""
    try:
        document = json.loads(task.place.read_text(encoding="utf-8"))
        return list(document["rows"]) if document["settings"] == task.settings else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def work(task: Task) -> list[Row]:
    """Train and measure one unit; its rows, written to its file as well."""
    finished = done(task)
    if finished is not None:
        return finished
    population = task.population
    rows = [{"population": population.name, "unit": task.unit, **row} for row in population.rows(task)]
    write(task, rows)
    return rows


def measure_model(task: Task, name: str, model: Model) -> list[Row]:
    """Return all that a task measures of a model.

    Raises
    ------
    ValueError
        The model has a column that is one of the measure.
    """
    numbers = Measured(model, task.effort)
    if twice := sorted(set(model.columns) & set(_OF_A_NUMBER)):
        raise ValueError(f"columns of a model: {', '.join(twice)} are columns of every number; expected other names")
    return [
        {"model": name, **model.columns, **row}
        for measure in task.measures
        for row in numbers.rows(MEASURES[measure], task.radii)
    ]


def write(task: Task, rows: list[Row]) -> None:
    """A unit's file."""
    task.place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"settings": task.settings, "versions": experiment.versions(), "rows": rows})
    write_text(task.place, text)


def versions_of(tasks: Sequence[Task]) -> dict[str, list[dict[str, str]]]:
    """Of each population, on what its finished units were computed."""
    result: dict[str, list[dict[str, str]]] = {}
    for task in tasks:
        known = result.setdefault(task.population.name, [])
        versions = json.loads(task.place.read_text(encoding="utf-8"))["versions"]
        known += [] if versions in known else [versions]
    return result


def run(tasks: Sequence[Task], workers: Workers = 1) -> list[Row]:
    """Return the rows of all units.

    Parameters
    ----------
    tasks : sequence of Task
    workers : int or callable
        A number of processes, or a function like ``map``: `concurrent.futures.Executor.map`, one of joblib, or
        `on_cluster`.

    Returns
    -------
    list of dict
        In the order of the tasks, whoever did them.
    """
    result = {task.place: rows for task in tasks if (rows := done(task)) is not None}
    missing = [task for task in tasks if task.place not in result]
    for task in {(task.module, task.options): task for task in missing}.values():
        prepare = getattr(task.population, "prepare", None)
        if prepare is not None:  # what all models begin with, before several processes need it
            prepare(task.weights)
    with show_progress("models") as tell:
        tell(len(result), len(tasks), "")
        for task, rows in _map_tasks(missing, workers):
            if done(task) is None:  # it was done on a machine with other files
                write(task, rows)
            result[task.place] = json.loads(json.dumps(rows))
            tell(len(result), len(tasks), task.place.stem)
    return [row for task in tasks for row in result[task.place]]


def _map_tasks(tasks: list[Task], workers: Workers) -> Iterator[tuple[Task, list[Row]]]:
    if callable(workers):
        yield from zip(tasks, workers(work, tasks), strict=True)
    elif workers == 1 or len(tasks) <= 1:
        yield from ((task, work(task)) for task in tasks)
    else:
        with experiment.processes(workers) as pool:
            futures = {pool.submit(work, task): task for task in tasks}
            yield from ((futures[future], future.result()) for future in as_completed(futures))


def on_cluster(address: str) -> Workers:
    """For `run`: the workers of a dask.distributed scheduler. What they return is written here, as it comes.

    Raises
    ------
    OSError
        There is no scheduler at this address.
    """
    from distributed import Client

    def map_on_cluster(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        with Client(address) as client:
            yield from (future.result() for future in client.map(function, list(tasks)))

    return map_on_cluster


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options of an experiment whose models can be shared among machines."""
    made = experiment.parser(description)
    made.add_argument(
        "--cluster", metavar="ADDRESS", help="of a dask.distributed scheduler, whose workers train and measure"
    )
    return made


def workers(options: argparse.Namespace) -> Workers:
    """Return what the options of `parser` ask for."""
    return on_cluster(options.cluster) if options.cluster else int(options.workers)


# The table ---------------------------------------------------------------------------------------------------------


def save_table(rows: Sequence[Row], place: Path) -> None:
    """Tidy CSV, a number a row, as pandas and polars read it; NaN is an empty field."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def as_cell(value: Any) -> Any:
        return "" if isinstance(value, float) and math.isnan(value) else value

    stream = io.StringIO()
    table = csv.DictWriter(stream, names, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    write_text(place, stream.getvalue())


def load_table(place: Path) -> list[Row]:
    """Return the rows of `save_table`."""
    with place.open(newline="", encoding="utf-8") as stream:
        return [
            {name: text if name in ("unit", "model") else _number(text) for name, text in row.items()}
            for row in csv.DictReader(stream)
        ]


def _number(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": math.nan, "True": True, "False": False}[text]
    try:
        return float(text)
    except ValueError:
        return text


_OF_A_NUMBER = (
    "measure", "kind", "metric", "order", "curvature", "norm", "relaxation", "rho", "batch", "value", "upper", "note",
)  # fmt: skip


def about(row: Row) -> Row:
    """Return what a row says of its model, and not of the number; without what only other populations have.

    Examples
    --------
    >>> about({"unit": "0", "gap": 0.25, "step_size": math.nan, "measure": "inv", "rho": 0.1, "value": 3.0})
    {'unit': '0', 'gap': 0.25}
    """
    return {name: x for name, x in row.items() if name not in _OF_A_NUMBER and x == x}


def measure_at(row: Row) -> str:
    """Return the measure of a row with its radius, if it has one.

    Examples
    --------
    >>> measure_at({"measure": "inv", "rho": 0.1}), measure_at({"measure": "λ_max, inv", "rho": math.nan})
    ('inv @ 0.1', 'λ_max, inv')
    """
    return str(row["measure"]) + ("" if math.isnan(row["rho"]) else f" @ {row['rho']:g}")


def by_model(rows: Iterable[Row], named: Callable[[Row], str]) -> list[Row]:
    """A row for each model: what is known of it, and the mean of its values of each name.

    Examples
    --------
    >>> row = {"unit": "0", "model": "a", "gap": 0.1, "measure": "inv", "batch": 0, "value": 2.0}
    >>> by_model([row, {**row, "batch": 1, "value": 3.0}], lambda row: row["measure"])
    [{'unit': '0', 'model': 'a', 'gap': 0.1, 'inv': 2.5}]
    """
    message: dict[tuple[str, str], Row] = {}
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        model = row["unit"], row["model"]
        message.setdefault(model, about(row))
        values.setdefault(model, {}).setdefault(named(row), []).append(row["value"])
    return [message[model] | {name: float(np.mean(of)) for name, of in values[model].items()} for model in message]


def columns(rows: Iterable[Row], outcome: str) -> tuple[dict[str, Any], Any]:
    """Measures as columns over models, averaged over batches; and the outcome.

    Parameters
    ----------
    rows : iterable of dict
        Of one population and one radius.
    outcome : str
        The column to predict: "gap" or "test loss".

    Returns
    -------
    dict of ndarray, ndarray
        NaN where a model lacks a number.
    """
    values: dict[str, dict[str, list[float]]] = {}
    outcomes: dict[str, float] = {}
    for row in rows:
        model = f"{row['unit']}/{row['model']}"
        outcomes[model] = float(row[outcome])
        values.setdefault(str(row["measure"]), {}).setdefault(model, []).append(float(row["value"]))
    result = {
        name: np.array([float(np.mean(of.get(model, [math.nan]))) for model in outcomes]) for name, of in values.items()
    }
    return result, np.array(list(outcomes.values()))


def of_population(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    """Rows by population."""
    result: dict[str, list[Row]] = {}
    for row in rows:
        result.setdefault(str(row["population"]), []).append(row)
    return result
