"""What is asked of a backend and what comes: plain data, which the judge and the judged share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy.typing as npt

Arrays = list[npt.NDArray[Any]]
Conduct = dict[str, str]
"""From a rule of conduct to how it was broken."""


class Event(Enum):
    """What came of a call; the same word everywhere."""

    RESULT = "a result"
    FAILED = "no usable result"
    EXHAUSTED = "out of time or memory"
    NOT_IMPLEMENTED = "not implemented"
    SWALLOWED = "not implemented, in the place of another exception"
    LAYOUT = "memory layout not taken"
    BROKEN = "rule of conduct broken"
    UNKNOWN = "no right result known"
    UNEVALUATED = "cannot be evaluated"


class NoResult(Exception):
    """What a call gave in the place of a result; `event` says of which kind it is."""

    def __init__(self, event: Event, text: str) -> None:
        super().__init__(text)
        self.event = event


class BackendError(ValueError):
    """A backend cannot be found, or provides nothing to check."""


@dataclass(frozen=True)
class Call:
    """One question to a backend.

    Attributes
    ----------
    function, metric : str
    arrays : sequence of ndarray
        The point and the vectors. Arrays that are one and the same object here are so for the backend, too.
    extra : tuple
        The arguments after the arrays.
    shapes : sequence of tuple of int
        Of the parts of the result.
    dtypes : tuple of str
        Those that the parts may have; empty for any.
    before : tuple of Call
        What the same process is asked first. What comes of that is not told; the caller may write to it
        (``do="write"``).
    beside : tuple of Call
        What another thread asks again and again meanwhile.
    lies : str
        How the arrays lie in memory: "" or one of `refgeo.conformance.memory.LIES`.
    in_thread : bool
        Whether it is made in a thread of its own.
    decisive : bool
        Whether a verdict rests on it.
    do : str
        "call"; a whole "search" or "trajectory"; "describe" the implementation; what no decisive call reached
        ("coverage").
    """

    function: str = ""
    metric: str = ""
    arrays: Sequence[npt.NDArray[Any]] = ()
    extra: tuple[Any, ...] = ()
    shapes: Sequence[tuple[int, ...]] = ()
    dtypes: tuple[str, ...] = ()
    before: tuple[Call, ...] = ()
    beside: tuple[Call, ...] = ()
    lies: str = ""
    in_thread: bool = False
    decisive: bool = False
    do: str = "call"
    names: tuple[str, ...] = ()

    def after(self, *calls: Call) -> Call:
        """The same call after others."""
        return replace(self, before=calls)

    def plain(self) -> dict[str, Any]:
        """As a dictionary, which any copy of this module understands."""
        return vars(self) | {name: tuple(call.plain() for call in getattr(self, name)) for name in ("before", "beside")}

    @classmethod
    def of_plain(cls, data: dict[str, Any]) -> Call:
        """The call that a dictionary describes.

        Examples
        --------
        >>> call = Call("christoffel", "inv").after(Call("geodesic", "mix"))
        >>> Call.of_plain(call.plain()) == call
        True
        """
        return cls(**data | {name: tuple(map(cls.of_plain, data[name])) for name in ("before", "beside")})


@dataclass(frozen=True)
class Answer:
    """What came of a call.

    Attributes
    ----------
    parts : tuple of ndarray
        Of the result, in float64; of questions about the implementation anything.
    failure : NoResult, optional
    conduct : dict
        The rules of conduct that were broken, and how.
    """

    parts: Any = ()
    failure: NoResult | None = None
    conduct: Conduct = field(default_factory=dict)

    def result(self) -> Any:
        """The parts.

        Raises
        ------
        NoResult
            There are none.
        """
        if self.failure is not None:
            raise self.failure
        return self.parts
