"""Find the formulas that a backend computes, of all its functions: `read`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from refgeo.conformance.diagnosis.fitting import SHAPES, fit_step, function_of, read_one
from refgeo.conformance.diagnosis.formulas import UNREAD, Formula, SampleBatch
from refgeo.conformance.execution.backend import TIMEOUT, Backend
from refgeo.conformance.execution.drivers import loss_gradient
from refgeo.conformance.optimisers.update_rule import SCALES, Rule, Start
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.call import UPDATE_RULES, NoResult
from refgeo.conformance.protocol.operations import OPERATIONS, VALUES
from refgeo.conformance.protocol.precision import PRECISIONS
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import as_list, number, one_of

READABLE = (*VALUES, "retraction")
_STEP_LENGTH = 0.1
"""Length of a step relative to G Hᵀ, up to which its formula is read; chosen."""


def _find_short_step(rule: Rule, start: Start) -> float:
    """Return the largest size of the loss with which one step is short, so that a weight decay hides nothing."""
    size = np.linalg.norm(start.G @ start.H.mT)
    lengths = {scale: rule.run(start, scale, 1).path_length[-1] / size for scale in SCALES}
    return max((scale for scale, length in lengths.items() if length <= _STEP_LENGTH), default=min(SCALES))


def read_step(rule: Rule) -> Formula | None:
    """Fit the formula of an optimiser's first step; None if no terms explain it."""
    samples, scale = [], _find_short_step(rule, rule.start(Features()))
    for (n, m, h), count in SHAPES:
        starts = [rule.start(Features(n=n, m=m, h=h, draw=i)) for i in range(count)]
        runs = [rule.run(start, scale, 1) for start in starts]
        before, after = (Pair(*(np.stack(F) for F in zip(*((x.G[k], x.H[k]) for x in runs), strict=True)))
                         for k in (0, 1))  # fmt: skip
        E = np.stack(
            [loss_gradient(G @ H.mT, s.Y, scale, s.magnitude) for s, G, H in zip(starts, *before, strict=True)]
        )
        e = Pair(E @ before.H, E.mT @ before.G)
        samples.append(SampleBatch(pair_metric("mix").at(before), {"e": e}, tuple(after - before)))
    return fit_step(samples, rule.precision.name)


class Readings(dict[tuple[str, str], Formula | None]):
    """The formulas that a backend computes, by function (for geodesics by value, "geodesic_2") and metric.

    The first step of an optimiser has no metric: ``readings["step", ""]``.

    Attributes
    ----------
    no_result : dict
        The reason why a function has no result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.no_result: dict[tuple[str, str], str] = {}

    def __str__(self) -> str:
        lines = []
        for (name, metric), formula in self.items():
            note = formula.note if formula is not None else ""
            lines.append((f"{name}[{metric}]" if metric else name) + (f"   ({note})" if note else ""))
            reason = self.no_result.get((name, metric), UNREAD)
            lines += [f"    {line}" for line in (formula.lines() if formula is not None else [reason])]
        return "\n".join(lines or ["nothing to read: the implementation has none of these functions"])


def read(
    backend: Any,
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    functions: Iterable[str] | None = None,
    dtype: str = "float64",
    relaxation: float = 0.0,
    timeout: float = TIMEOUT,
    options: Mapping[str, Any] | None = None,
) -> Readings:
    """Find the formulas that a backend computes, right or wrong, from its results.

    Parameters
    ----------
    backend : module, object, str or Backend
        As for `refgeo.check`. It may compute any metric: `metrics` are only the names that it gets.
    metrics : iterable of str
    functions : iterable of str, optional
        Functions (``"geodesic"``), values (``"geodesic_2"``), or ``"step"``: the first step of an optimiser. Default:
        all that it has.
    dtype : str
        The precision of the arrays that it gets; in single precision, coefficients have about five digits.
    relaxation : float
        A known ε: S_ε = S + εI and T_ε = T + εI are factors of terms, too.
    timeout : float
        Seconds that one call may take.
    options : mapping, optional
        The keyword arguments of an optimiser.

    Returns
    -------
    Readings
        ``readings["christoffel", "inv"]`` is a `Formula` with ``.G``, ``.H`` and ``.relation``, or None.

    Examples
    --------
    >>> from refgeo import paper
    >>> readings = read(paper, metrics=["inv"], functions=["riemannian_gradient", "horizontal_projection"])
    >>> print(readings)
    horizontal_projection[inv]
        G: v_G + G Λ
        H: v_H − H Λᵀ
        S T Λᵀ + Λᵀ S T + v_GᵀG T − S Hᵀv_H = 0
    riemannian_gradient[inv]
        G: e_G S
        H: e_H T
    """
    one_of("dtype", dtype, PRECISIONS)
    relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
    metric_names = [pair_metric(metric, argument="metrics").name for metric in as_list(metrics)]
    known = [*OPERATIONS, *VALUES, "step"]
    selection = [one_of("functions", name, known) for name in as_list(functions or known)]
    loaded = Backend.of(backend, timeout)
    readings = Readings()
    try:
        for name, metric in itertools.product(READABLE, metric_names):
            if loaded.provides(function_of(name)) and (name in selection or function_of(name) in selection):
                try:
                    readings[name, metric] = read_one(loaded, name, metric, dtype, relaxation)
                except NoResult as error:
                    readings[name, metric], readings.no_result[name, metric] = None, str(error)
        if "step" in selection and any(map(loaded.provides, UPDATE_RULES)):
            points, function = Points(dtype=dtype, relaxation=relaxation), next(filter(loaded.provides, UPDATE_RULES))
            with np.errstate(all="ignore"):
                readings["step", ""] = read_step(Rule(loaded, function, points, options or {}))
    finally:
        if loaded is not backend:
            loaded.close()
    return readings
