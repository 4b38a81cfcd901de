"""Metrics side by side: a second process of the referee, with a process of the backend's own, judges some of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from refgeo.conformance.report import Row

_JUDGE = """
import json, sys

descriptor, path = json.loads(sys.argv[1])
sys.path[:] = path
from refgeo.conformance.side_by_side import main

main(descriptor)
"""


def shares(metrics: Sequence[str], jobs: int | None) -> list[list[str]]:
    """The metrics dealt to so many processes; None: as many as there are processors.

    Examples
    --------
    >>> shares(["inv", "mix", "s=0.5"], 2)
    [['inv', 's=0.5'], ['mix']]
    """
    affinity = getattr(os, "sched_getaffinity", None)  # the processors that this process may use, where one can ask
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    count = min(len(metrics), jobs or processors)
    return [list(metrics[i::count]) for i in range(count)]


class Elsewhere:
    """A run in another process, which ends with this one.

    Parameters
    ----------
    points : int
        How many it will judge.
    run : tuple
        What `refgeo.conformance.run.rows_of` takes.

    Attributes
    ----------
    done, total : int
        How many points it has put to the backend, of how many.
    """

    def __init__(self, points: int, *run: Any) -> None:
        self.done, self.total = 0, points
        self._rows: list[Row] | None = None
        self._line, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _JUDGE, json.dumps([theirs.fileno(), sys.path])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt is for this process, which ends that one
            )
        self._line.send(run)

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._rows is None:
            self._process.terminate()
        self._line.close()
        self._process.wait()

    def look(self) -> None:
        """Hear what it has said so far."""
        while self._rows is None and self._line.poll():
            self._hear()

    def rows(self) -> list[Row]:
        """Its rows, when it has them.

        Raises
        ------
        ChildProcessError
            It has ended without.
        """
        while self._rows is None:
            self._hear()
        return self._rows

    def _hear(self) -> None:
        try:
            said = self._line.recv()
        except (EOFError, OSError):
            raise ChildProcessError(
                f"the process that judged other metrics has ended with status {self._process.wait()}; with jobs=1 "
                "(--jobs 1) there is none"
            ) from None
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, int):
            self.done = said
        else:
            self._rows = said


def together(progress: Callable[[int, int, str], None], others: Sequence[Elsewhere]) -> Callable[[int, int, str], None]:
    """Progress of this process and of others, as one."""

    def show(done: int, total: int, what: str) -> None:
        for other in others:
            other.look()
        progress(done + sum(other.done for other in others), total + sum(other.total for other in others), what)

    return show


def _end_with(process: int) -> None:
    """End when the process that has started this one has been killed."""
    while os.getppid() == process:
        time.sleep(0.5)
    os._exit(1)


def main(descriptor: int) -> None:
    """Judge what the other process says; what went wrong goes back to it."""
    from refgeo.conformance.run import rows_of

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the backend's process is ended, too
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with Connection(descriptor) as line:
        try:
            line.send(rows_of(lambda done, total, what: line.send(done), *line.recv()))
        except Exception as error:
            line.send(error)
