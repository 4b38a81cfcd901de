"""The table of all checks: values, laws of retractions, rules of conduct, searches, trajectories."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from refgeo.conformance.protocol.call import UPDATE_RULES
from refgeo.conformance.protocol.conduct import HARMFUL, RULES
from refgeo.conformance.protocol.operations import FUNCTIONS, RETRACTION, ROUTINE, VALUES, Value
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import as_list, one_of

SEARCH = {
    "sharpness_1": "order 1: the step is horizontal and in the ball; it increases the loss by the returned value",
    "sharpness_2": "order 2: the step is horizontal and in the ball; it increases the loss by the returned value",
    "sharpness_exact": "exact geodesics: the step is horizontal and in the ball; it increases the loss by the returned "
    "value, which is at most the proved bound",
    "sharpness_adaptive": "adaptive: the step is in the ball; it increases the loss by the returned value, which is at "
    "most the proved bound",
}
TRAJECTORY = {
    "step.invariant": "k steps of the optimiser from (G, H) and from (G A⁻¹, H Aᵀ) give the same product G Hᵀ, for "
    "all A of GL(h); with a relaxation ε, for all A of O(h)",
    "step.repeatable": "a new run of the optimiser from the same start gives the same trajectory",
    "step.blocks": "in a batch of blocks, each block takes the steps that it takes alone",
    "step.starts": "from G = 0, from H = 0, and with a large loss, the optimiser moves X = G Hᵀ; from G = 0 and "
    "from H = 0, all numbers stay finite",
}
"""The statements of the checks of searches, and of trajectories."""


@dataclass(frozen=True)
class Check:
    """A statement about a backend that must hold; the subject of a row of a report.

    Attributes
    ----------
    name : str
    kind : "value", "law", "contract", "search" or "trajectory"
    function : str
        The backend's function that is judged; "" for a rule of conduct, which all functions must obey.
    statement : str
        What must hold, in one line.
    value : Value, optional
    """

    name: str
    kind: str
    function: str
    statement: str
    value: Value | None = None

    @property
    def harmful(self) -> bool:
        """Whether a breach of this rule of conduct makes the caller's numbers wrong."""
        return self.name in HARMFUL

    def statement_of(self, metric: str) -> str:
        """Return what must hold, for one metric.

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


def select_checks(names: Iterable[str] | None) -> list[Check]:
    """Return the checks with these names, or of the functions with these names; all checks for None.

    The name of a single value does not select the rules of conduct.
    """
    requested = list(FUNCTIONS) if names is None else as_list(names)
    for name in requested:
        one_of("checks", name, [*FUNCTIONS, *CHECKS])
    functions = {*requested} & {*FUNCTIONS}
    functions |= {UPDATE_RULES[0]} if functions & {*UPDATE_RULES} else set()
    selection = []
    for check in CHECKS.values():
        if check.name in requested or check.function in functions or (check.kind == "contract" and functions):
            selection.append(check)
    return selection


def functions_of(names: Iterable[str] | None) -> set[str]:
    """Return the functions whose conduct is checked: those of the checks with these names, or all."""
    requested = list(FUNCTIONS) if names is None else as_list(names)
    functions = {name for name in requested if name in FUNCTIONS}
    functions |= {CHECKS[name].function for name in requested if name in CHECKS and CHECKS[name].function}
    functions |= {*UPDATE_RULES} if functions & {*UPDATE_RULES} else set()
    return functions or {*FUNCTIONS}


def parse_row_name(entry: str, argument: str) -> str:
    """Return the name of a row, such as ``christoffel[inv]``, in its normal form.

    An unknown check or metric is an error. For a trajectory, the brackets contain options of the rule, which can be
    anything.

    Examples
    --------
    >>> parse_row_name("christoffel[inv]", "expected_failures")
    'christoffel[inv]'
    """
    name, _, metric = entry.partition("[")
    one_of(argument, name, CHECKS)
    if metric and CHECKS[name].kind != "trajectory":
        pair_metric(metric.removesuffix("]"), argument=argument)
    return normalise_row_name(entry)


def normalise_row_name(row: str) -> str:
    """Return the name of a row with its options in alphabetical order, and their values as Python prints them.

    Examples
    --------
    >>> normalise_row_name("step.invariant[momentum=0,eps=1e-6]")
    'step.invariant[eps=1e-06, momentum=0]'
    """
    name, _, options = row.partition("[")
    with suppress(SyntaxError):  # a text that is no Python stands as it is
        call = ast.parse(f"f({options.removesuffix(']')})", mode="eval").body
        if isinstance(call, ast.Call) and call.keywords:
            return f"{name}[{', '.join(sorted(f'{k.arg}={ast.unparse(k.value)}' for k in call.keywords))}]"
    return row
