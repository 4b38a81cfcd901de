"""Metrics side by side: other processes of the referee, with processes of the backend's own, judge some of them."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from refgeo.conformance.process import Child
from refgeo.support.arguments import integer


def shares(metrics: Sequence[str], jobs: int | None) -> list[list[str]]:
    """The metrics dealt to so many processes; None: as many as there are processors.

    Examples
    --------
    >>> shares(["inv", "mix", "s=0.5"], 2)
    [['inv', 's=0.5'], ['mix']]
    """
    affinity = getattr(os, "sched_getaffinity", None)  # the processors that this process may use, where one can ask
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    count = min(len(metrics), processors if jobs is None else integer("jobs", jobs))
    return [list(metrics[i::count]) for i in range(count)]


class Elsewhere(Child):
    """A function that runs in another process, and tells how far it is.

    The process starts at once, and imports the function's module while others are at work.

    Parameters
    ----------
    module : str

    Attributes
    ----------
    done, total : int
        How much it has done, of how much.
    """

    def __init__(self, module: str) -> None:
        super().__init__("refgeo.conformance.side_by_side:run")
        with contextlib.suppress(OSError):
            self.line.send(module)
        self.done = self.total = 0
        self._result: tuple[Any] | None = None

    def begin(self, total: int, function: str, *arguments: Any) -> None:
        """Run a function of the module, with a function ``progress(done, total, what)`` and the arguments."""
        self.total = total
        with contextlib.suppress(OSError):  # it has ended, as whoever asks for its result will hear
            self.line.send((function, arguments))

    def look(self) -> None:
        """Hear what it has said so far."""
        while self._result is None and self.line.poll():
            self._hear()

    def result(self) -> Any:
        """What the function returns, or raises.

        Raises
        ------
        ChildProcessError
            The process has ended without.
        """
        while self._result is None:
            self._hear()
        if isinstance(self._result[0], BaseException):
            raise self._result[0]
        return self._result[0]

    def _hear(self) -> None:
        try:
            said = self.line.recv()
        except (EOFError, OSError):
            how = self.ended()
            raise ChildProcessError(
                f"refgeo judges the metrics at the same time, in separate processes, and one of these failed: {how}; "
                "with jobs=1 (--jobs 1), refgeo judges one metric after the other, without these processes"
            ) from None
        if isinstance(said, int):
            self.done = said
        else:
            self._result = said


def together(progress: Callable[[int, int, str], None], others: Sequence[Elsewhere]) -> Callable[[int, int, str], None]:
    """Progress of this process and of others, as one."""

    def show(done: int, total: int, what: str) -> None:
        for other in others:
            other.look()
        progress(done + sum(other.done for other in others), total + sum(other.total for other in others), what)

    return show


def run(line: Connection) -> None:
    """What the other process does; what goes wrong goes back."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the backend's process is ended, too
    try:
        module = importlib.import_module(line.recv())  # which takes as long as many a check
        function, arguments = line.recv()
        found = getattr(module, function)(lambda done, total, what: line.send(done), *arguments)
    except Exception as error:
        found = error
    line.send((found,))
