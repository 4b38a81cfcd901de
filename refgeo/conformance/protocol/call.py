"""Calls of a backend and its answers, as data that the referee and the backend's process exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy.typing as npt

Arrays = list[npt.NDArray[Any]]
Breaches = dict[str, str]
"""From a broken rule of conduct to how it was broken."""


class Event(Enum):
    """How a call ended, or why its result is not judged; the same words everywhere."""

    RESULT = "a result"
    FAILED = "no usable result"
    EXHAUSTED = "out of time or memory"
    NOT_IMPLEMENTED = "not implemented"
    MASKED_EXCEPTION = "not implemented, in the place of another exception"
    LAYOUT = "memory layout not taken"
    BROKEN = "rule of conduct broken"
    NO_ORACLE = "no right result known"
    ORACLE_FAILED = "cannot be evaluated"


class NoResult(Exception):
    """A call has ended without a result; `event` says how."""

    def __init__(self, event: Event, text: str) -> None:
        super().__init__(text)
        self.event = event


RULE_ARGUMENTS = {"step": ("state", "G", "H", "e_G", "e_H"), "make": ("params",)}
"""The arguments of these functions: ``step(state, G, H, e_G, e_H) -> (state, G, H)``, ``make(params) -> optimizer``."""
UPDATE_RULES = (*RULE_ARGUMENTS,)


class BackendError(ValueError):
    """A backend cannot be loaded, or provides nothing to check."""


@dataclass(frozen=True)
class Call:
    """One call of a backend.

    Attributes
    ----------
    function, metric : str
    arrays : sequence of ndarray
        The point and the vectors. Where two of them are the same object, the backend gets the same object twice.
    extra : tuple
        The arguments after the arrays.
    shapes : sequence of tuple of int
        The shapes that the parts of the result must have.
    dtypes : tuple of str
        The dtypes that the parts may have; empty for any.
    preceding : tuple of Call
        Calls that the same process makes first. Their results are discarded, or written to (``action="write"``).
    concurrent : tuple of Call
        Calls that another thread repeats at the same time.
    layout : str
        The memory layout of the arrays: "" or one of `refgeo.conformance.execution.memory_layout.LAYOUTS`.
    in_thread : bool
        Whether the call is made in a thread of its own.
    decisive : bool
        Whether a verdict rests on the call.
    action : str
        "call"; "write", to write to the result afterwards; "search" or "trajectory" for a whole run; "describe" for a
        description of the implementation; "coverage" for the lines that no decisive call has reached.
    names : tuple of str
        The names of the function's parameters, that of the metric first; for messages.
    """

    function: str = ""
    metric: str = ""
    arrays: Sequence[npt.NDArray[Any]] = ()
    extra: tuple[Any, ...] = ()
    shapes: Sequence[tuple[int, ...]] = ()
    dtypes: tuple[str, ...] = ()
    preceding: tuple[Call, ...] = ()
    concurrent: tuple[Call, ...] = ()
    layout: str = ""
    in_thread: bool = False
    decisive: bool = False
    action: str = "call"
    names: tuple[str, ...] = ()

    def after(self, *calls: Call) -> Call:
        """Return this call, to be made after other calls."""
        return replace(self, preceding=calls)

    def to_dict(self, represent: Callable[[Any], Any]) -> dict[str, Any]:
        """Convert to a dictionary, which any copy of this module understands, with a representation of each array."""
        calls = {name: tuple(call.to_dict(represent) for call in getattr(self, name)) for name in _LISTS_OF_CALLS}
        return vars(self) | calls | {"arrays": [represent(array) for array in self.arrays]}

    @classmethod
    def from_dict(cls, data: dict[str, Any], array_of: Callable[[Any], Any]) -> Call:
        """Convert from a dictionary, with the array of each representation.

        Examples
        --------
        >>> call = Call("christoffel", "inv", [4]).after(Call("geodesic", "mix", [2]))
        >>> Call.from_dict(call.to_dict(lambda x: x + 1), lambda x: x - 1) == call
        True
        """
        calls = {name: tuple(cls.from_dict(call, array_of) for call in data[name]) for name in _LISTS_OF_CALLS}
        return cls(**data | calls | {"arrays": [array_of(x) for x in data["arrays"]]})


_LISTS_OF_CALLS = ("preceding", "concurrent")
"""The fields of a call that are calls themselves."""


@dataclass(frozen=True)
class Answer:
    """The backend's answer to a call.

    Attributes
    ----------
    parts : tuple of ndarray
        The parts of the result, in float64; for "describe" and "coverage", other data.
    failure : NoResult, optional
        Why there is no result.
    breaches : dict of str to str
        The rules of conduct that the call has broken, and how.
    """

    parts: Any = ()
    failure: NoResult | None = None
    breaches: Breaches = field(default_factory=dict)

    def result(self) -> Any:
        """Return the parts of the result.

        Raises
        ------
        NoResult
            There is no result.
        """
        if self.failure is not None:
            raise self.failure
        return self.parts


_DEMANDING = 100_000
"""With more numbers, a call in plain Python or to many digits may take more time or memory than there is."""


def is_demanding(call: Call) -> bool:
    """Return whether a right implementation may run out of time or memory, with matrices of n² or nh³ numbers."""
    return demand_of(call) > _DEMANDING


def demand_of(call: Call) -> int:
    """Return the number of entries of the dense matrices of a literal implementation."""
    G, H = call.arrays[:2]
    *blocks, n, h = G.shape
    m = H.shape[-2]
    return int(math.prod(blocks) * max((n + m) * h**3, max(n, m) ** 2))
