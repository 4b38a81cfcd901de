"""A thread that calls somebody's code, so that the run can go on when a call does not come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

Outcome = tuple[Any, BaseException | None]


class Overdue(Exception):
    """A call did not return in time."""


class Worker:
    """Runs one call at a time. After `Overdue` it is still busy: make a new one.

    Threads cannot be stopped: a call that hangs keeps its (daemon) thread until the process ends. A call that hangs
    while it holds the interpreter's lock, in compiled code, cannot be timed out at all.

    Examples
    --------
    >>> Worker().run(divmod, (7, 2), timeout=1.0)
    ((3, 1), None)
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float) -> Outcome:
        """The result of ``function(*arguments)`` and None, or None and what it raised; `Overdue` after `timeout`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._calls.put((function, arguments))
        try:
            return self._results.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            raise Overdue from None

    def _serve(self) -> None:
        while True:
            function, arguments = self._calls.get()
            try:
                outcome: Outcome = function(*arguments), None
            except BaseException as error:
                outcome = None, error
            self._results.put(outcome)
