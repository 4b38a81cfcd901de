"""Backends: somebody's functions, found and called in one way, in a process of their own where that is possible."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, number
from refgeo.conformance.host import BackendError, as_backend
from refgeo.conformance.process import Lost, Process, Slow, Thread
from refgeo.conformance.uncovered import Reached
from refgeo.operations import FUNCTIONS, PLAIN_ROUTINE, arguments_of

TIMEOUT = 60.0
"""Seconds that one call may take by default: compilers get their time, a hanging call does not hold up the run."""
_MOST_LOSSES = 3
_DEMANDING = 100_000
"""With more numbers, a call in plain Python or to many digits may take more time or memory than there is."""


class BackendFailure(Exception):
    """A call that gave no usable result: it raised, ended its process, or returned something else."""


class Exhausted(BackendFailure):
    """Out of time or memory at a point where somebody right may be, with dense matrices of n² or h⁴ numbers."""


class Swallowed(NotImplementedError):
    """Said while another exception was handled: where the function gives results elsewhere, that one is the answer."""


class NotCalled(NotImplementedError):
    """A function that has not returned once is not called again."""


class Refused(Exception):
    """The backend's ``asarray`` takes no arrays of this layout."""


@dataclass(frozen=True)
class Observed:
    """What a call did besides returning.

    Attributes
    ----------
    kinds : tuple of str
        The dtypes of the parts; "number" for a Python number.
    printed : str
    changed : tuple of int
        The arguments that it wrote to, counted from G.
    aliases : str
        Which memory its results share, in words; empty if none.
    overwritten, changed_later : bool
        Whether it changed what one of the last calls had returned, or had got.
    disturbed : str
        What it changed in its process besides, in words; empty if nothing.
    leaked : int
        After how many calls its process was out of memory, where a new one was not; 0 if it was not.
    evaluations : int
        Of a sharpness routine: how often it has evaluated the loss.
    """

    kinds: tuple[str, ...] = ()
    printed: str = ""
    changed: tuple[int, ...] = ()
    aliases: str = ""
    overwritten: bool = False
    changed_later: bool = False
    disturbed: str = ""
    leaked: int = 0
    evaluations: int = 0


class Backend:
    """The functions of a module or object, with conversion of arrays both ways.

    A backend that can be imported by name is served by a process of its own, with one thread for its linear algebra;
    an object that cannot is called in this process, which `where` says.

    Parameters
    ----------
    implementation : module, object or str
        Anything with some of the functions of the protocol (`refgeo.operations.OPERATIONS`); optionally ``asarray``
        (from NumPy, default: unchanged), ``to_numpy`` (back, default: ``numpy.asarray``) and ``thread_safe = False``.
        Or where it is: ``"module"``, ``"module:object"``, ``"path/to/file.py"``, ``"file.py:object"``. A function
        alone is a sharpness routine (`refgeo.conformance.searches`).
    name : str, optional
        How reports call it.
    timeout : float
        Seconds that one call may take. A function that takes longer, or has ended its process three times, is not
        called again for that metric and order; points that it would have got are said not to be judged.
    known : dict, optional
        What another process of the same backend has `described`. It is loaded with the first call then, and if that
        fails the call does.

    Attributes
    ----------
    spec : str or None
        What it can be loaded by again; None for an object that has no name.
    where : str
        "a process of its own" or "this process".
    converts, thread_safe, is_plain : bool
        Whether it has an ``asarray``, may be called from threads, and is a sharpness routine that is a function alone.
    misspelt : list of str
        Functions that are nearly called like one that is missing, in words.
    described : dict
        All that is `known` of it.

    Raises
    ------
    BackendError
        It cannot be loaded, or has none of the functions.

    Examples
    --------
    >>> from refgeo import formulas
    >>> Backend(formulas).where
    'a process of its own'
    """

    def __init__(
        self,
        implementation: Any,
        name: str | None = None,
        timeout: float = TIMEOUT,
        known: dict[str, Any] | None = None,
    ) -> None:
        timeout = float("inf") if timeout == float("inf") else number("timeout", timeout, "seconds", above=0.0)
        self.spec = implementation if isinstance(implementation, str) else _importable(implementation)
        self.name = name or self.spec or getattr(implementation, "__name__", None) or type(implementation).__name__
        self.timeout = timeout
        self._given_up: defaultdict[tuple[Any, ...], list[tuple[int, str]]] = defaultdict(list)
        self._losses: Counter[tuple[Any, ...]] = Counter()
        self._calls = 0
        self._server: Process | Thread
        if self.spec is not None and os.name == "posix":
            self._server = Process(self.spec, list(FUNCTIONS), known or {})
            self.where = "a process of its own"
        else:
            self._server = Thread(as_backend(implementation, list(FUNCTIONS)), list(FUNCTIONS))
            self.where = "this process"
        self.described = self._server.describe()
        self._functions = frozenset(self.described["provides"])
        self.converts: bool = self.described["converts"]
        self.thread_safe: bool = self.described["thread_safe"]
        self.is_plain: bool = self.described["is_plain"]
        self.misspelt: list[str] = self.described["misspelt"]
        if not self._functions:
            raise BackendError(
                f"backend {self.name}: expected at least one of the functions {', '.join(FUNCTIONS)}, found none; "
                + "".join(f"{hint} " for hint in self.misspelt)
                + "see https://refgeo.github.io/refgeo/check/"
            )

    @classmethod
    def of(cls, given: Any, timeout: float = TIMEOUT) -> Backend:
        """The backend that somebody means: one already, a name, or a module or object.

        Examples
        --------
        >>> Backend.of("refgeo.formulas").spec
        'refgeo.formulas'
        """
        return given if isinstance(given, Backend) else cls(given, timeout=timeout)

    def provides(self, function: str) -> bool:
        """Whether the backend has `function`.

        Examples
        --------
        >>> Backend("refgeo.formulas").provides("sharpness")
        False
        """
        return function in self._functions

    def call(
        self,
        function: str,
        metric: str,
        arrays: Sequence[npt.NDArray[Any]],
        extra: tuple[Any, ...],
        shapes: Sequence[tuple[int, ...]],
        layout: str = "plain",
        do: str = "call",
        decisive: bool = False,
        **options: Any,
    ) -> tuple[list[Array], Observed]:
        """Call a function: its results as float64 arrays of the expected `shapes`, and what else it did.

        Arrays that are one and the same object here are so for the backend, too. `decisive` says that a verdict rests
        on the result: lines of the backend's files that no such call has reached are `not_run`.

        Raises
        ------
        BackendFailure
            No usable result, and why; `Exhausted` where that is no mistake.
        NotImplementedError
            The backend says that it has no such thing.
        Refused
            It takes no arrays of this `layout`.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> Backend("refgeo.formulas").call("riemannian_gradient", "inv", [one] * 4, (), [(1, 1)] * 2)[0]
        [array([[1.]]), array([[1.]])]
        """
        demand = _demand(*arrays[:2])
        kind = function, metric, *extra[1:]  # of a geodesic, with its order
        for least, why in self._given_up[kind]:
            if demand >= least:
                raise NotCalled(f"not called again: {why}")
        distinct = list({id(array): array for array in arrays}.values())
        places = {id(array): i for i, array in enumerate(distinct)}
        order = [places[id(array)] for array in arrays]
        request: dict[str, Any] = {"do": do, "function": function, "metric": metric, "order": order}
        request |= {
            "extra": list(extra),
            "shapes": [list(shape) for shape in shapes],
            "layout": layout,
            "decisive": decisive,
            **options,
        }
        header, parts = self._asked(request, distinct, kind, demand)
        if header.get("status") == "exhausted" and self.has_own_process and self._calls > 1:
            calls = self._calls
            self.close()  # a new process tells a function that leaks from one that asks for too much
            header, parts = self._asked(request, distinct, kind, demand)
            if header.get("status") != "exhausted":
                header.setdefault("notes", {})["leaked"] = calls
        self._require_done(kind, demand, header)
        return [np.asarray(part, dtype=np.float64) for part in parts], _observed(header.get("notes", {}), order)

    def _asked(
        self, request: dict[str, Any], arrays: list[npt.NDArray[Any]], kind: tuple[Any, ...], demand: int
    ) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
        """The answer of its process, which may be lost."""
        self._calls += 1
        function = kind[0]
        try:
            return self._server.ask(request, arrays, self.timeout)
        except Lost as lost:
            self._calls = 0
            self._losses[kind] += 1
            if isinstance(lost, Slow) or self._losses[kind] >= _MOST_LOSSES:
                self._given_up[kind].append((demand, f"{function}: {lost}"))
            raise (Exhausted if demand and isinstance(lost, Slow) else BackendFailure)(f"{function}: {lost}") from None

    def _require_done(self, kind: tuple[Any, ...], demand: int, header: dict[str, Any]) -> None:
        status, text = header.get("status"), str(header.get("text", ""))
        if header.get("not_entered"):
            text += f"; it is called with {PLAIN_ROUTINE if self.is_plain else arguments_of(kind[0])}"
        if status == "not provided":
            raise Swallowed(f"{text}, after {header['after']}") if header.get("after") else NotImplementedError(text)
        if status == "refused":
            raise Refused(text)
        if status == "exhausted":  # which takes its time, every time
            self._given_up[kind].append((demand, text))
            raise (Exhausted if demand else BackendFailure)(text)
        if status != "done":
            raise BackendFailure(text or "no usable result")

    def reached(self) -> Reached:
        """The lines of its own files that decisive calls have reached, and those that they have not."""
        try:
            found: Reached = self._server.ask({"do": "coverage"}, [], self.timeout)[0]["reached"]
            return found
        except Lost:
            return {}

    @property
    def has_own_process(self) -> bool:
        """Whether it can have another one."""
        return isinstance(self._server, Process)

    def fresh(self) -> Backend:
        """The same backend in a new process, which remembers nothing; itself if it has no process of its own."""
        return Backend(self.spec, self.name, self.timeout, self.described) if self.has_own_process else self

    def close(self) -> None:
        """End its process."""
        self._calls = 0
        self._server.close()


def _demand(G: Array, H: Array) -> int:
    """Numbers in the dense matrices of a literal route, if it may be right and run out of time or memory; else 0."""
    *blocks, n, h = G.shape
    m = H.shape[-2]
    numbers = math.prod(blocks) * max((n + m) * h**3, max(n, m) ** 2)
    return numbers if numbers > _DEMANDING else 0


def _observed(notes: dict[str, Any], order: list[int]) -> Observed:
    """What the other side has noted; `order` says which of the distinct arrays each argument is."""
    return Observed(
        tuple(notes.get("kinds", ())),
        str(notes.get("printed", "")),
        tuple(i for i, place in enumerate(order) if place in notes.get("changed", ())),
        str(notes.get("aliases", "")),
        bool(notes.get("overwritten", False)),
        bool(notes.get("changed_later", False)),
        ", ".join(map(str, notes.get("disturbed", ()))),
        int(notes.get("leaked", 0)),
        int(notes.get("calls", 0)),
    )


def _importable(implementation: Any) -> str | None:
    """The name by which a module can be imported again, in another process."""
    name = getattr(implementation, "__name__", None)
    if not isinstance(name, str) or sys.modules.get(name) is not implementation or name == "__main__":
        return None
    spec = getattr(implementation, "__spec__", None)
    file = getattr(implementation, "__file__", None)
    if spec is not None and importlib.util.find_spec(name) is not None:
        return name
    return file if file and Path(file).suffix == ".py" else None
