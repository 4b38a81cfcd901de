"""From the table to what it says: τ of every measure with its interval, and differences between measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from validation.findings.study import statistics
from validation.findings.study.runner import Row, about, by_model, columns, measure_at

FEWEST = 5
"""Models below which there is no τ."""
GIVEN = "step_size"
"""What a measure is to say more than, where models have one."""


def by_radius(rows: Sequence[Row], outcome: str) -> dict[str, dict[float, dict[str, Any]]]:
    """For each measure and radius (−1: it has none), how it ranks the models of one population.

    Parameters
    ----------
    rows : sequence of dict
        Of one population. Several sets (a diagonal network's unit) are correlated each by itself; the median counts.
    outcome : str

    Returns
    -------
    dict
        Of each: ``tau_a`` [value, low, high], ``p``, ``models``, ``sets``, ``missing`` (models without a number), and
        τ ``given`` the step size, if models differ in it: of what it leaves of both ranks (`statistics.rest`).
    """
    result: dict[str, dict[float, dict[str, Any]]] = {}
    sets = _sets(rows)
    radii = list(dict.fromkeys(_radius(row) for row in rows))
    for radius in radii:
        at = [[row for row in item if _radius(row) == radius] for item in sets]
        for measure in dict.fromkeys(str(row["measure"]) for item in at for row in item):
            result.setdefault(measure, {})[radius] = _rank(at, measure, outcome)
    return result


def _radius(row: Row) -> float:
    return -1.0 if math.isnan(row["rho"]) else float(row["rho"])


def is_one_set(rows: Sequence[Row]) -> bool:
    """Return whether every unit is one model."""
    return all(len(of) == 1 for of in _models(rows).values())


def has_step_sizes(rows: Sequence[Row]) -> bool:
    """Return whether models differ in it."""
    return len({row[GIVEN] for row in rows if GIVEN in row and row[GIVEN] == row[GIVEN]}) > 1


def _models(rows: Sequence[Row]) -> dict[str, set[str]]:
    models: dict[str, set[str]] = {}
    for row in rows:
        models.setdefault(str(row["unit"]), set()).add(str(row["model"]))
    return models


def _sets(rows: Sequence[Row]) -> list[list[Row]]:
    """Units with several models are sets; units of one model are one set together."""
    if is_one_set(rows):
        return [list(rows)]
    return [[row for row in rows if str(row["unit"]) == unit] for unit in _models(rows)]


def _rank(sets: list[list[Row]], measure: str, outcome: str) -> dict[str, Any]:
    result, missing = [], 0
    for rows in sets:
        values, y = columns(rows, outcome)
        if measure not in values:
            continue
        target = np.isfinite(values[measure]) & np.isfinite(y)
        missing += int(np.count_nonzero(~target))
        if target.sum() >= FEWEST:
            result.append(statistics.correlation(values[measure][target], y[target]))
    if not result:
        return {"models": 0, "missing": missing}
    given = None
    if len(sets) == 1 and has_step_sizes(rows):
        steps = columns(rows, GIVEN)[1][target]
        left = [statistics.rest(z[target], steps) for z in (values[measure], y)]
        given = list(statistics.estimate_tau(*left))
    return {
        "tau_a": list(statistics.median([item.tau_a.value for item in result]) if len(sets) > 1 else result[0].tau_a),
        "p": float(np.median([item.p for item in result])),
        "models": sum(item.models for item in result),
        "sets": len(result),
        "missing": missing,
        "given": given,
    }


_NO_NUMBERS = ("population", "unit", "model", "index", "draw", "seed", "gap")


def of_others(rows: Sequence[Row]) -> dict[str, list[float]]:
    """τ with the gap, and its interval, of every other number of a model: what else could order one set."""
    if not is_one_set(rows):
        return {}
    models = [about(row) for row in {row["unit"]: row for row in rows}.values()]
    gap, result = [item["gap"] for item in models], {}
    for name in (name for name in models[0] if name not in _NO_NUMBERS):
        values = [float(item.get(name, math.nan)) for item in models]
        if len(set(values)) > 1 and np.isfinite(values).all():
            result[name] = list(statistics.estimate_tau(values, gap))
    return result


def between_halves(rows: Sequence[Row]) -> dict[str, float]:
    """τ between each measure on every second batch and on the others: how well it tells the models apart."""
    if not is_one_set(rows) or len({row["batch"] for row in rows}) < 2:
        return {}
    models = by_model(rows, lambda row: f"{measure_at(row)}, {int(row['batch']) % 2}")
    names = dict.fromkeys(map(measure_at, rows))
    halves = {name: [[item.get(f"{name}, {k}", math.nan) for item in models] for k in (0, 1)] for name in names}
    return {name: statistics.tau_a(*both) for name, both in halves.items() if np.isfinite(both).all()}
