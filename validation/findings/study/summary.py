"""From the table to what it says: τ of every measure with its interval, and differences between measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from validation.findings.study import statistics
from validation.findings.study.runner import Row, columns

FEWEST = 5
"""Models below which there is no τ."""
BASELINE = "adaptive"


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
        Of each: ``tau_a`` [value, low, high], ``tau_b``, ``p``, ``models``, ``sets``, ``missing`` (models without a
        number), and ``minus adaptive`` at the same radius.
    """
    found: dict[str, dict[float, dict[str, Any]]] = {}
    sets = _sets(rows)
    radii = list(dict.fromkeys(_radius(row) for row in rows))
    for radius in radii:
        at = [[row for row in one if _radius(row) == radius] for one in sets]
        for measure in dict.fromkeys(str(row["measure"]) for one in at for row in one):
            found.setdefault(measure, {})[radius] = _ranked(at, measure, outcome)
    return found


def _radius(row: Row) -> float:
    return -1.0 if math.isnan(row["rho"]) else float(row["rho"])


def _sets(rows: Sequence[Row]) -> list[list[Row]]:
    """Units with several models are sets; units of one model are one set together."""
    models: dict[str, set[str]] = {}
    for row in rows:
        models.setdefault(str(row["unit"]), set()).add(str(row["model"]))
    if all(len(of) == 1 for of in models.values()):
        return [list(rows)]
    return [[row for row in rows if str(row["unit"]) == unit] for unit in models]


def _ranked(sets: list[list[Row]], measure: str, outcome: str) -> dict[str, Any]:
    taus, others, tau_bs, ps, counts, missing = [], [], [], [], [], 0
    estimate = difference = None
    for rows in sets:
        values, y = columns(rows, outcome)
        if measure not in values:
            continue
        there = np.isfinite(values[measure]) & np.isfinite(y)
        missing += int(np.count_nonzero(~there))
        if there.sum() < FEWEST:
            continue
        one = statistics.correlation(values[measure][there], y[there])
        estimate = one.tau_a
        taus.append(one.tau_a.value)
        tau_bs.append(one.tau_b)
        ps.append(one.p)
        counts.append(one.models)
        if BASELINE in values and measure != BASELINE:
            both = there & np.isfinite(values[BASELINE])
            pair = {name: values[name][both] for name in (BASELINE, measure)}
            difference = statistics.differences(pair, y[both], of=BASELINE)[measure]
            others.append(difference.value)
    if not taus:
        return {"models": 0, "missing": missing}
    several = len(taus) > 1
    estimate = statistics.median(taus) if several else estimate
    if others:
        difference = statistics.median(others) if several else difference
    return {
        "tau_a": list(estimate or ()),
        "tau_b": float(np.median(tau_bs)),
        "p": float(np.median(ps)),
        "models": int(np.sum(counts)),
        "sets": len(taus),
        "missing": missing,
        "minus adaptive": list(difference) if difference is not None else None,
    }


def trained(rows: Sequence[Row]) -> float:
    """The share of models that trained."""
    shares = {f"{row['unit']}/{row['model']}": float(row.get("trained", True)) for row in rows}
    return float(np.mean(list(shares.values())))
