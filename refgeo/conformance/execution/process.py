"""Run a backend in a process of its own, or in a thread of this one.

A child process runs one of our functions at the other end of a connection (`multiprocessing.connection`). It is a plain
subprocess rather than a `multiprocessing.Process`, which would run the user's script again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
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

from refgeo.conformance.execution.host import Host, OutputCapture, serve
from refgeo.conformance.execution.messages import CallEncoder, ForeignData, receive
from refgeo.conformance.protocol.call import Answer, BackendError, Call, Event, NoResult
from refgeo.support.files import origin, place_of
from refgeo.support.threads import NUMBER_OF_THREADS

MAX_MEMORY = min(8 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
"""Bytes of data that a backend's process may hold: half of the machine's memory, at most 8 GiB; chosen."""
START_TIMEOUT = 300.0
"""Seconds that the import of a backend may take; chosen."""
_SETTINGS = {
    **dict.fromkeys(NUMBER_OF_THREADS, "1"),
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX takes most of a GPU's memory for its first process
}
_BOOT = """
import sys
from multiprocessing.connection import Connection

line = Connection(int(sys.argv.pop(1)))
parent, sys.path[:] = line.recv()
from refgeo.conformance.execution.process import main

main(line, parent)
"""
_JUDGED_VARIABLE = "REFGEO_JUDGED"
"""The environment variable that tells a backend's process, and all that it starts, which backend is judged."""


class ProcessLost(Exception):
    """The backend's process has ended, or it does not answer."""


class CallTimeout(ProcessLost):
    """The backend does not answer in time."""


class ChildProcess:
    """A process that runs ``function(line, *arguments)`` and ends when this process ends.

    Attributes
    ----------
    line : Connection
        The connection to the process.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, judged: str = "") -> None:
        open_standard_streams()
        if not sys.executable:
            raise BackendError(
                f"sys.executable: expected the path of Python, to start a process, got {sys.executable!r}; set it, or "
                "give the module or object itself, not its name"
            )
        self.line, their_line = Pipe()
        with their_line:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(their_line.fileno())],
                pass_fds=[their_line.fileno()],
                env={**_SETTINGS, **os.environ, **({_JUDGED_VARIABLE: judged} if judged else {})},
                stdin=subprocess.DEVNULL,
                cwd=None if has_working_directory() else os.sep,
                start_new_session=True,  # an interrupt is for this process, which ends that one
            )
        self.close = weakref.finalize(self, _end, self._process, self.line)
        self.send((os.getpid(), [folder for folder in sys.path if isinstance(folder, str)]))  # as imports do
        self.send((function, arguments))

    def send(self, message: Any) -> None:
        """Send a message, unless the process is gone, which whoever waits for its answer will see."""
        with contextlib.suppress(OSError):
            self.line.send(message)

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def terminate(self) -> str:
        """End the process, and return a description of how it had ended."""
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
    """End a process and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    line.close()


def has_working_directory() -> bool:
    """Return whether the working directory still exists."""
    with contextlib.suppress(OSError):
        return bool(os.getcwd())
    return False


def open_standard_streams() -> None:
    """Redirect closed standard streams to the null device, so that no pipe or file gets their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def refuse_itself(spec: str | None) -> None:
    """Raise an error in a process that refgeo has started for this backend, or in a process that was started there."""
    judged = os.environ.get(_JUDGED_VARIABLE)
    if spec is not None and judged is not None and judged == _absolute(spec):
        raise BackendError(
            f"backend {spec}: it asks refgeo to judge itself while refgeo loads or calls it; put that below "
            'if __name__ == "__main__":'
        )


def _absolute(spec: str) -> str:
    """Return the absolute path of a backend's file, or the name of its module."""
    place, _ = place_of(spec)
    return str(Path(place).resolve() if place.endswith(".py") else origin(place) or place)


def main(line: Connection, parent: int) -> None:
    """Run the function that the parent sends."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    function, arguments = line.recv()
    with contextlib.suppress(EOFError, BrokenPipeError):
        function(line, *arguments)
    os._exit(0)  # threads that hang do not keep the process


def _end_with(parent: int) -> None:
    """End this process when its parent has been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    with contextlib.suppress(PermissionError):
        os.killpg(0, signal.SIGKILL)


class Process:
    """A backend in a process of its own, which is started with a call, and again after it is lost."""

    def __init__(self, spec: str, functions: Sequence[str]) -> None:
        self._arguments = serve, spec, functions, MAX_MEMORY
        self._child: ChildProcess | None = None
        self._is_loaded = False
        self._number = 0

    def start(self) -> ChildProcess:
        """Return the process, which is started unless it runs."""
        if self._child is None:
            self._child = ChildProcess(*self._arguments, judged=_absolute(self._arguments[1]))
            self._encoder, self._is_loaded = CallEncoder(), False
        return self._child

    def request(self, call: Call, timeout: float) -> Answer:
        """Send a call, and return the answer."""
        child = self.start()
        if not self._is_loaded:
            self._is_loaded = True
            if call.action != "describe":  # which may take as long as importing it does
                self.request(Call(action="describe"), START_TIMEOUT)
        self._number += 1
        try:
            child.line.send_bytes(pickle.dumps((self._number, self._encoder.encode(call))))
            number = 0
            while number != self._number:  # a late or second answer belongs to another call
                number, parts, failure, breaches = receive(child.line, min(timeout, 1e6))
            if failure and failure[0] == BackendError.__name__:
                raise BackendError(failure[1])
        except TimeoutError:
            self.close()
            verb = "start" if call.action == "describe" else "return"
            option = "" if call.action == "describe" else " (--timeout)"
            raise CallTimeout(f"did not {verb} within {timeout:g} s{option}") from None
        except ForeignData:
            self.close()
            raise ProcessLost("it wrote to a file descriptor that is not its own: refgeo's connection") from None
        except (EOFError, OSError):
            self._child = None
            raise ProcessLost(child.terminate()) from None
        except BaseException:  # interrupted, too: an answer that is under way would be taken for the next one
            self.close()
            raise
        return Answer(parts, failure and NoResult(Event[failure[0]], failure[1]), breaches)

    def close(self) -> None:
        """End the process; the next call starts a new one."""
        if self._child is not None:
            self._child.close()
        self._child = None


class Thread:
    """A backend in this process, called in a thread, so that a call that does not return can be abandoned."""

    def __init__(self, implementation: Any, functions: Sequence[str]) -> None:
        self._host = Host(implementation, functions, OutputCapture(owns_process=False))
        self._calls: queue.SimpleQueue[Call | None] | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._calls is None:
            self._calls, self._answers = queue.SimpleQueue(), queue.SimpleQueue[Answer]()
            threading.Thread(target=self._serve, args=(self._calls, self._answers), daemon=True).start()

    def request(self, call: Call, timeout: float) -> Answer:
        """Make a call, and return the answer."""
        self.start()
        assert self._calls is not None
        self._calls.put(call)
        try:
            return self._answers.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            self._calls = None
            raise CallTimeout(f"did not return within {timeout:g} s (--timeout)") from None

    def _serve(self, calls: queue.SimpleQueue[Call | None], answers: queue.SimpleQueue[Answer]) -> None:
        """Answer calls until None is received."""
        while (call := calls.get()) is not None:
            answers.put(self._host.answer(call))

    def close(self) -> None:
        """Let the thread end; the next call starts a new one."""
        if self._calls is not None:
            self._calls.put(None)
        self._calls = None
