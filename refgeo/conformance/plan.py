"""What is to be judged, as plain data that another process can get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refgeo.conformance.checks import CHECKS, Check, chosen, functions_of
from refgeo.conformance.operations import OPERATIONS
from refgeo.conformance.points import Points
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import listed


@dataclass(frozen=True)
class Plan:
    """What is to be judged.

    Attributes
    ----------
    metrics : list of str
    names : list of str
        Of checks.
    functions : set of str
        Whose conduct is watched.
    points : Points
    cases : list of str or None
    options : dict
        Of an update rule.
    closely : bool
        Whether circumstances and conduct are tried: not for results from files.
    """

    metrics: list[str]
    names: list[str]
    functions: set[str]
    points: Points
    cases: list[str] | None = None
    options: dict[str, list[Any]] = field(default_factory=dict)
    closely: bool = True

    @classmethod
    def of(
        cls,
        metrics: Iterable[str],
        checks: Iterable[str] | None,
        points: Points,
        cases: Iterable[str] | None = None,
        options: Mapping[str, Sequence[Any]] | None = None,
    ) -> Plan:
        """What arguments of `check` choose."""
        wanted = list(dict.fromkeys(pair_metric(metric, argument="metrics").name for metric in listed(metrics)))
        if not wanted:
            raise ValueError("metrics: expected at least one metric, got none")
        names = None if checks is None else listed(checks)
        found = chosen(names)
        if not found:
            raise ValueError("checks: expected at least one check, got none")
        whole = cases is None and points.generated
        found = [one for one in found if one.kind not in ("search", "trajectory") or whole]
        if cases is not None and functions_of(names).isdisjoint(OPERATIONS):
            raise ValueError(
                f"cases: expected a check of a function at points, got {', '.join(names or ())}: searches and update "
                "rules choose points of their own; leave out cases (--case)"
            )
        some = None if cases is None else listed(cases)
        return cls(wanted, [one.name for one in found], functions_of(names), points, some, values_of(options))

    @property
    def is_whole(self) -> bool:
        """Whether searches and trajectories are run: their points are not chosen."""
        return self.cases is None and self.points.generated

    @property
    def checks(self) -> list[Check]:
        """What must hold."""
        return [CHECKS[name] for name in self.names]

    def of_kind(self, kind: str) -> list[Check]:
        """The checks of a kind."""
        return [one for one in self.checks if one.kind == kind]


def values_of(options: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """The values of each option; one alone is one.

    Examples
    --------
    >>> values_of({"momentum": [0, 0.9], "rate": 0.1, "kind": "plain"})
    {'momentum': [0, 0.9], 'rate': [0.1], 'kind': ['plain']}
    """
    return {
        name: list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
        for name, values in (options or {}).items()
    }
