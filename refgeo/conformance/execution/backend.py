"""Backends: somebody's functions, found and called in one way, if possible in a process of their own."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from refgeo.conformance.execution.coverage import CoverageData
from refgeo.conformance.execution.process import START_TIMEOUT, CallTimeout, Process, ProcessLost, Thread, refuse_itself
from refgeo.conformance.protocol.call import Answer, BackendError, Call, Event, NoResult, demand_of
from refgeo.conformance.protocol.operations import FUNCTIONS, arguments_of
from refgeo.support.arguments import number
from refgeo.support.records import with_fields

TIMEOUT = 60.0
"""Seconds that one call may take by default: compilers get their time, a hanging call does not hold up the run."""
_MAX_LOSSES = 3
"""Number of times that a function may end its process before it is not called any more; chosen."""
_DEMAND_FACTOR = 4
"""Factor by which a point must be less demanding, for each time that time or memory ran out before; chosen."""
_LOSS_DELAY = 0.2
"""Seconds within which a thread that an earlier call has started must end the process, to be found; chosen."""


class Backend:
    """The functions of a module or object, with conversion of arrays both ways.

    A backend that is given by its name or its file is loaded in a process of its own, with one thread for its linear
    algebra. A module, or any other object, is called in this process, as it is here.

    Parameters
    ----------
    implementation : module, object or str
        Anything with some of the functions of the protocol (`refgeo.conformance.protocol.operations`); optionally
        ``asarray`` (from NumPy, default: unchanged), ``to_numpy`` (back, default: ``numpy.asarray``), and
        ``thread_safe = False``.
        Or where it is: ``"module"``, ``"module:object"``, ``"path/to/file.py"``, ``"file.py:object"``. A function
        alone is a sharpness routine (`refgeo.conformance.optimisers.searches`).
    name : str, optional
        How reports call it.
    timeout : float
        Seconds that one call may take. A function that takes longer is called again at smaller points only, and
        one that has ended its process three times not at all, for that metric and order; the report names the points
        that were not judged.
    known : dict, optional
        What another process of the same backend has `described`. It is then loaded with the first call, which
        fails if loading does.
    meanwhile : callable
        What is done while its process starts.

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
    >>> from refgeo import paper
    >>> Backend(paper).where, Backend("refgeo.paper").where
    ('this process', 'a process of its own')
    """

    def __init__(
        self,
        implementation: Any,
        name: str | None = None,
        timeout: float = TIMEOUT,
        known: dict[str, Any] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        timeout = float("inf") if timeout == float("inf") else number("timeout", timeout, "seconds", above=0.0)
        self.spec = os.fspath(implementation) if isinstance(implementation, (str, os.PathLike)) else None
        self.name = name or self.spec or getattr(implementation, "__name__", None) or type(implementation).__name__
        refuse_itself(self.spec)
        self.timeout = timeout
        self._given_up: defaultdict[tuple[Any, ...], list[tuple[int, bool, NoResult]]] = defaultdict(list)
        self._losses: Counter[tuple[Any, ...]] = Counter()
        self._n_unexplained = 0
        self._last_calls: dict[str, Call] = {}
        self._blamed: dict[str, NoResult] = {}
        self._count = 0
        self.has_own_process = self.spec is not None
        self.where = "this process" if self.spec is None else "a process of its own"
        self._server = Thread(implementation, FUNCTIONS) if self.spec is None else Process(self.spec, FUNCTIONS)
        try:
            if self.has_own_process and not known:
                self.start()
                meanwhile()
            self.described: dict[str, Any] = known or self._server.request(Call(action="describe"), START_TIMEOUT).parts
        except ProcessLost as lost:
            raise BackendError(f"backend {self.spec}: importing it failed: {lost}") from None
        self._functions = frozenset(self.described["provides"])
        self.converts: bool = self.described["converts"]
        self.thread_safe: bool = self.described["thread_safe"]
        self.is_plain: bool = self.described["is_plain"]
        self.misspelt: list[str] = self.described["misspelt"]
        if not self._functions:
            raise BackendError(
                f"backend {self.name}: expected at least one of the functions {', '.join(FUNCTIONS)}, found none; "
                + "".join(f"{hint}; " for hint in self.misspelt)
                + "for one function or class of a module, write MODULE:NAME; see https://refgeo.github.io/refgeo/check/"
            )

    @classmethod
    def of(cls, backend: Any, timeout: float = TIMEOUT, meanwhile: Callable[[], None] = lambda: None) -> Backend:
        """Return the backend for a `Backend`, a name, a module or an object.

        Examples
        --------
        >>> Backend.of("refgeo.paper").spec
        'refgeo.paper'
        """
        return backend if isinstance(backend, Backend) else cls(backend, timeout=timeout, meanwhile=meanwhile)

    def provides(self, function: str) -> bool:
        """Return whether the backend has a function.

        Examples
        --------
        >>> Backend("refgeo.paper").provides("sharpness")
        False
        """
        return function in self._functions

    def call(self, call: Call) -> Answer:
        """Make a call, and return its results as float64 arrays of the expected shapes, or why there are none.

        Examples
        --------
        >>> import numpy as np
        >>> one = np.ones((1, 1))
        >>> call = Call("riemannian_gradient", "inv", [one] * 4, shapes=[(1, 1)] * 2)
        >>> Backend("refgeo.paper").call(call).parts
        [array([[1.]]), array([[1.]])]
        """
        kind, demand = (call.function, call.metric, *call.extra[1:]), demand_of(call)  # of a geodesic, with its order
        for least, decisive, why in self._given_up[kind]:
            if demand >= least and decisive >= call.decisive:
                return Answer(failure=NoResult(why.event, f"not called again: {why}"))
        call = with_fields(call, names=arguments_of(call.function, self.is_plain))
        answer = self._request(call)
        if _is_exhausted(answer.failure) and self.has_own_process and self._count > 1:
            self.close()  # a new process tells a function that leaks from one that asks for too much
            answer = self._request(call)
        failure, losses = answer.failure, (*kind, call.decisive)
        if failure is not None and _is_exhausted(failure):  # it takes its time, every time
            least = demand // _DEMAND_FACTOR ** len(self._given_up[kind])
            self._given_up[kind].append((least, call.decisive, failure))
        elif failure is not None and not self._count:
            self._losses[losses] += 1
            if self._losses[losses] >= _MAX_LOSSES:
                self._given_up[kind].append((0, call.decisive, failure))
        return answer

    def _request(self, call: Call) -> Answer:
        """Send a call to the process; after a loss, find out whether this call or an earlier one has caused it."""
        if call.function in self._blamed:
            return Answer(failure=self._blamed[call.function])
        self._count += 1
        try:
            answer = self._server.request(call, self.timeout)
            self._last_calls[call.function] = call
            return answer
        except (ProcessLost, BackendError) as lost:  # it could be imported once, and cannot any more
            is_first, self._count = self._count == 1, 0
            event = Event.EXHAUSTED if isinstance(lost, CallTimeout) else Event.FAILED
            if is_first or event is Event.EXHAUSTED or isinstance(lost, BackendError):
                return Answer(failure=NoResult(event, f"{call.function}: {lost}"))
        self._n_unexplained += 1
        if self._n_unexplained <= _MAX_LOSSES:
            self._blame_earlier_calls()
        return self._request(call)  # as the first one of a new process

    def _blame_earlier_calls(self) -> None:
        """Find the functions of which a few calls end a process, even after they have returned."""
        for function, call in self._last_calls.items():
            with self.isolated() as alone:
                try:
                    for _ in range(_MAX_LOSSES):
                        alone._server.request(call, self.timeout)
                    time.sleep(_LOSS_DELAY)
                    alone._server.request(Call(action="describe"), self.timeout)
                except BackendError:  # it cannot be imported any more
                    return
                except ProcessLost as lost:
                    self._blamed[function] = NoResult(Event.FAILED, f"{function}: after it has returned, {lost}")

    def coverage(self) -> CoverageData:
        """Return which lines of the backend's own files decisive calls have not reached."""
        try:
            data: CoverageData = self._server.request(Call(action="coverage"), self.timeout).parts
            return data
        except (ProcessLost, BackendError):
            return {}

    def start(self) -> None:
        """Start the process, if there is one, without waiting until the backend is loaded."""
        self._server.start()

    def restart(self) -> Backend:
        """Return the same backend in a new process, which remembers nothing; itself if it has no process of its own."""
        return Backend(self.spec, self.name, self.timeout, self.described) if self.has_own_process else self

    @contextmanager
    def isolated(self) -> Iterator[Backend]:
        """Return a context with the same backend in a new process, which ends with it.

        Without a process of its own, it is the backend itself.
        """
        restarted = self.restart()
        try:
            yield restarted
        finally:
            if restarted is not self:
                restarted.close()

    def close(self) -> None:
        """End the process."""
        self._count = 0
        self._server.close()


def _is_exhausted(failure: NoResult | None) -> bool:
    """Return whether time or memory did not suffice."""
    return failure is not None and failure.event is Event.EXHAUSTED
