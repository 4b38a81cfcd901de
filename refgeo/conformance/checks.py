"""The register of all checks: values, laws of retractions, rules of conduct, searches, trajectories."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from refgeo.conformance.conduct import HARMFUL, RULES
from refgeo.conformance.laws import RETRACTION
from refgeo.conformance.operations import FUNCTIONS, ROUTINE, VALUES, Value
from refgeo.conformance.searches import SEARCH
from refgeo.conformance.steps import UPDATE_RULES
from refgeo.conformance.trajectories import TRAJECTORY
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import listed, one_of


@dataclass(frozen=True)
class Check:
    """One thing that must hold: what a row of a report is about.

    Attributes
    ----------
    name : str
    kind : "value", "law", "contract", "search" or "trajectory"
    function : str
        The backend's function that is judged; of a rule of conduct "", as it is for all.
    statement : str
        What must hold, in a line.
    value : Value, optional
    """

    name: str
    kind: str
    function: str
    statement: str
    value: Value | None = None

    @property
    def harmful(self) -> bool:
        """Whether who breaks this rule of conduct makes his caller's numbers wrong."""
        return self.name in HARMFUL

    def statement_of(self, metric: str) -> str:
        """What must hold, for one metric.

        Examples
        --------
        >>> CHECKS["inner_product"].statement_of("s=0.5")[:25]
        'tr(M_G a_Gᵀb_G) + tr(M_H '
        """
        return self.value.statement_of(metric) if self.kind == "value" and self.value else self.statement


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        *(Check(v.name, "value", v.operation.name, v.statement, v) for v in VALUES.values()),
        Check(RETRACTION.name, "law", RETRACTION.operation.name, RETRACTION.statement, RETRACTION),
        *(Check(rule, "contract", "", statement) for rule, statement in RULES.items()),
        *(Check(name, "search", ROUTINE, statement) for name, statement in SEARCH.items()),
        *(Check(name, "trajectory", UPDATE_RULES[0], statement) for name, statement in TRAJECTORY.items()),
    )
}


def chosen(names: Iterable[str] | None) -> list[Check]:
    """The checks with these names, or of the functions with these names; None: all.

    A value's name alone leaves conduct out.
    """
    wanted = list(FUNCTIONS) if names is None else listed(names)
    for name in wanted:
        one_of("checks", name, [*FUNCTIONS, *CHECKS])
    functions = {*wanted} & {*FUNCTIONS}
    functions |= {UPDATE_RULES[0]} if functions & {*UPDATE_RULES} else set()
    found = []
    for check in CHECKS.values():
        if check.name in wanted or check.function in functions or (check.kind == "contract" and functions):
            found.append(check)
    return found


def functions_of(names: Iterable[str] | None) -> set[str]:
    """Those whose conduct is watched: of the checks with these names, or all."""
    wanted = list(FUNCTIONS) if names is None else listed(names)
    found = {name for name in wanted if name in FUNCTIONS}
    found |= {CHECKS[name].function for name in wanted if name in CHECKS and CHECKS[name].function}
    found |= {*UPDATE_RULES} if found & {*UPDATE_RULES} else set()
    return found or {*FUNCTIONS}


def known_row(entry: str, argument: str) -> str:
    """The name of a row, such as ``christoffel[inv]`` or ``christoffel``, if its check and its metric are known, as
    `sorted_name` writes it; of what a trajectory has in brackets, the options of the rule, nothing is known.

    Examples
    --------
    >>> known_row("christoffel[inv]", "expected_failures")
    'christoffel[inv]'
    """
    name, _, metric = entry.partition("[")
    one_of(argument, name, CHECKS)
    if metric and CHECKS[name].kind != "trajectory":
        pair_metric(metric.removesuffix("]"), argument=argument)
    return sorted_name(entry)


def sorted_name(row: str) -> str:
    """The name of a row with its options in one order, and their numbers as Python writes them.

    Examples
    --------
    >>> sorted_name("step.invariant[momentum=0,eps=1e-6]")
    'step.invariant[eps=1e-06, momentum=0]'
    """
    name, _, options = row.partition("[")
    with suppress(SyntaxError):  # a text that is no Python stands as it is
        given = ast.parse(f"f({options.removesuffix(']')})", mode="eval").body
        if isinstance(given, ast.Call) and given.keywords:
            return f"{name}[{', '.join(sorted(f'{one.arg}={ast.unparse(one.value)}' for one in given.keywords))}]"
    return row
