"""Where a backend's code runs: a process of its own, or a thread of this one.

A child process runs one of our functions at the other end of a line (`multiprocessing.connection`). It is a plain
subprocess rather than one of `multiprocessing`, which would run the user's script again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from refgeo.conformance.call import Answer, BackendError, Call, Event, NoResult
from refgeo.conformance.host import Capture, Host, serve
from refgeo.support.files import origin, place_of

MEMORY = min(8 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
"""Bytes of data that a backend's process may hold: half of the machine, 8 GiB at most."""
STARTING = 300.0
"""Seconds that importing a backend may take."""
_SETTINGS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX takes most of a GPU's memory for its first process
}
_BOOT = """
import sys
from multiprocessing.connection import Connection

line = Connection(int(sys.argv.pop(1)))
parent, sys.path[:] = line.recv()
from refgeo.conformance.process import main

main(line, parent)
"""
_JUDGED = "REFGEO_JUDGED"
"""The variable of a backend's process, and of all that it starts, with what is judged there."""


class Lost(Exception):
    """The backend has no process any more, or it does not answer; and how that came."""


class Slow(Lost):
    """It does not answer."""


class Child:
    """A process that runs a function, ``function(line, *arguments)``, and ends with this one.

    Attributes
    ----------
    line : Connection
        To it.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, judged: str = "") -> None:
        open_standard_streams()
        if not sys.executable:
            raise BackendError(
                f"sys.executable: expected the path of Python, to start a process, got {sys.executable!r}; set it, or "
                "give the module or object itself, not its name"
            )
        self.line, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**_SETTINGS, **os.environ, **({_JUDGED: judged} if judged else {})},
                stdin=subprocess.DEVNULL,
                cwd=None if has_working_directory() else os.sep,
                start_new_session=True,  # an interrupt is for this process, which ends that one
            )
        self.close = weakref.finalize(self, _end, self._process, self.line)
        with contextlib.suppress(OSError):  # it is gone already, which whoever waits for its answer will see
            self.line.send((os.getpid(), [place for place in sys.path if isinstance(place, str)]))  # as imports do
            self.line.send((function, arguments))

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def ended(self) -> str:
        """End it, and say how it had ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        status = self._process.poll()
        self.close()
        if status is None:
            return "its process closed the connection to refgeo"
        if status < 0:
            return f"its process was ended by signal {-status} ({signal.Signals(-status).name})"
        return f"its process ended with status {status}"


def _end(process: subprocess.Popen[bytes], line: Connection) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    line.close()


def has_working_directory() -> bool:
    """Whether it has not been removed."""
    with contextlib.suppress(OSError):
        return bool(os.getcwd())
    return False


def open_standard_streams() -> None:
    """Descriptors that are closed lead nowhere, so that no pipe or file gets their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def refuse_itself(spec: str | None) -> None:
    """An error in a process that refgeo has started for this backend, or in one that was started there."""
    judged = os.environ.get(_JUDGED)
    if spec is not None and judged is not None and judged == _absolute(spec):
        raise BackendError(
            f"backend {spec}: it asks refgeo to judge itself while refgeo loads or calls it; put that below "
            'if __name__ == "__main__":'
        )


def _absolute(spec: str) -> str:
    """The file, or the name of the module."""
    place, _ = place_of(spec)
    return str(Path(place).resolve() if place.endswith(".py") else origin(place) or place)


def main(line: Connection, parent: int) -> None:
    """What a child does."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    function, arguments = line.recv()
    with contextlib.suppress(EOFError, BrokenPipeError):
        function(line, *arguments)
    os._exit(0)  # threads that hang do not keep the process


def _end_with(parent: int) -> None:
    """End when the process that has started this one has been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    with contextlib.suppress(PermissionError):
        os.killpg(0, signal.SIGKILL)


class Process:
    """A backend in a process of its own, which is started with a call and again when it is lost."""

    def __init__(self, spec: str, functions: Sequence[str]) -> None:
        self._start = serve, spec, functions, MEMORY
        self._child: Child | None = None

    def ask(self, call: Call, timeout: float) -> Answer:
        """The answer to a call."""
        if self._child is None:
            self._child = Child(*self._start, judged=_absolute(self._start[1]))
            if call.action != "describe":  # which may take as long as importing it does
                self.ask(Call(action="describe"), STARTING)
        child = self._child
        try:
            child.line.send(call.to_dict())
            if not child.line.poll(min(timeout, 1e6)):
                within = f"within {timeout:g} s"
                raise Slow(
                    f"did not start {within}" if call.action == "describe" else f"did not return {within} (--timeout)"
                )
            parts, failure, breaches = child.line.recv()
            if failure and failure[0] == BackendError.__name__:
                raise BackendError(failure[1])
        except (EOFError, OSError):
            self._child = None
            raise Lost(child.ended()) from None
        except BaseException:  # interrupted, too: an answer that is under way would be taken for the next one
            self.close()
            raise
        return Answer(parts, failure and NoResult(Event[failure[0]], failure[1]), breaches)

    def close(self) -> None:
        """End it; the next call starts another one."""
        if self._child is not None:
            self._child.close()
        self._child = None


class Thread:
    """A backend in this process: calls in a thread, so that one that does not return can be left behind."""

    def __init__(self, implementation: Any, functions: Sequence[str]) -> None:
        self._host = Host(implementation, functions, Capture(owns_process=False))
        self._calls: queue.SimpleQueue[Call | None] | None = None

    def ask(self, call: Call, timeout: float) -> Answer:
        """The answer to a call."""
        if self._calls is None:
            self._calls, self._answers = queue.SimpleQueue(), queue.SimpleQueue[Answer]()
            threading.Thread(target=self._serve, args=(self._calls, self._answers), daemon=True).start()
        self._calls.put(call)
        try:
            return self._answers.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            self._calls = None
            raise Slow(f"did not return within {timeout:g} s (--timeout)") from None

    def _serve(self, calls: queue.SimpleQueue[Call | None], answers: queue.SimpleQueue[Answer]) -> None:
        while (call := calls.get()) is not None:
            answers.put(self._host.answer(call))

    def close(self) -> None:
        """Ask no more of it; the next call starts another one."""
        if self._calls is not None:
            self._calls.put(None)
        self._calls = None
