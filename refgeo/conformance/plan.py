"""Describe what is to be judged, as plain data that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refgeo.conformance.judging.checks import CHECKS, Check, functions_of, select_checks
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.operations import OPERATIONS
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import as_list


@dataclass(frozen=True)
class Plan:
    """What is to be judged.

    Attributes
    ----------
    metrics : list of str
    names : list of str
        The names of the checks.
    functions : set of str
        The functions whose conduct is checked.
    points : Points
    cases : list of str or None
    options : dict
        The values of the options of an update rule.
    tests_contexts : bool
        Whether circumstances and conduct are tested; not for results from files.
    """

    metrics: list[str]
    names: list[str]
    functions: set[str]
    points: Points
    cases: list[str] | None = None
    options: dict[str, list[Any]] = field(default_factory=dict)
    tests_contexts: bool = True

    @classmethod
    def of(
        cls,
        metrics: Iterable[str],
        checks: Iterable[str] | None,
        points: Points,
        cases: Iterable[str] | None = None,
        options: Mapping[str, Sequence[Any]] | None = None,
    ) -> Plan:
        """Make a plan of the arguments of `refgeo.check`."""
        metric_names = list(dict.fromkeys(pair_metric(metric, argument="metrics").name for metric in as_list(metrics)))
        if not metric_names:
            raise ValueError("metrics: expected at least one metric, got none")
        names = None if checks is None else as_list(checks)
        selection = select_checks(names)
        if not selection:
            raise ValueError("checks: expected at least one check, got none")
        includes_whole_runs = cases is None and points.is_generated
        selection = [check for check in selection if check.kind not in ("search", "trajectory") or includes_whole_runs]
        if cases is not None and functions_of(names).isdisjoint(OPERATIONS):
            raise ValueError(
                f"cases: expected a check of a function at points, got {', '.join(names or ())}: searches and update "
                "rules choose points of their own; leave out cases (--case)"
            )
        chosen = None if cases is None else as_list(cases)
        wanted = [check.name for check in selection]
        return cls(metric_names, wanted, functions_of(names), points, chosen, option_values(options))

    @property
    def includes_whole_runs(self) -> bool:
        """Whether searches and trajectories are run, which choose their own points."""
        return self.cases is None and self.points.is_generated

    def generate_points(self) -> None:
        """Generate the design of the points, if it is needed, so that what is sent to other processes contains it."""
        if self.points.is_generated:
            self.points.select(self.metrics[0], self.cases)

    @property
    def checks(self) -> list[Check]:
        """The selected checks."""
        return [CHECKS[name] for name in self.names]

    def of_kind(self, kind: str) -> list[Check]:
        """Return the selected checks of a kind."""
        return [check for check in self.checks if check.kind == kind]


def option_values(options: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Return a list of the values of each option; a single value becomes a list of length one.

    Examples
    --------
    >>> option_values({"momentum": [0, 0.9], "rate": 0.1, "kind": "plain"})
    {'momentum': [0, 0.9], 'rate': [0.1], 'kind': ['plain']}
    """
    return {
        name: list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
        for name, values in (options or {}).items()
    }
