"""Where a backend's code runs: a process of its own, or a thread of this one."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from refgeo.conformance.capture import Capture
from refgeo.conformance.host import BackendError, Host
from refgeo.conformance.wire import Arrays, Reader, WireError, out_of_the_way, receive, send
from refgeo.operations import FUNCTIONS

MEMORY = (
    min(8 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2) if hasattr(os, "sysconf") else 8 << 30
)
"""Bytes of data that a backend's process may hold: half of the machine, 8 GiB at most."""
_START = 300.0
"""Seconds that importing a backend may take."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""There may be several processes of a backend, and JAX takes most of a GPU's memory for its first one."""

_SERVE = """
import json, os, resource, signal, sys, time

referee, descriptor, *rest, path = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if child := os.fork():  # so that what a backend finds as its parent is not the referee
    os.close(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if os.getppid() != referee:  # killed: who would end a backend that hangs?
            os.killpg(0, signal.SIGKILL)
        if hasattr(signal, "sigtimedwait"):
            signal.sigtimedwait([signal.SIGCHLD], 1.0)
        else:
            time.sleep(0.05)
    status = os.waitstatus_to_exitcode(ended[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)
sys.path[:], sys.argv[:] = path, ["refgeo"]
from refgeo.conformance.host import main

main(descriptor, *rest)
"""
"""What a backend's process runs."""


class Lost(Exception):
    """The backend has no process any more, or it does not answer; and how that came."""


class Slow(Lost):
    """It does not answer."""


@dataclass
class Process:
    """A backend's process, started again when it is lost; what it has may be known already."""

    spec: str
    _described: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _read: Reader | None = None
    _number: int = 0

    def describe(self) -> dict[str, Any]:
        """What the backend has (`Host.describe`)."""
        if not self._described:
            self._start()
        return self._described

    def ask(self, request: dict[str, Any], arrays: Arrays, timeout: float, room: int) -> tuple[dict[str, Any], Arrays]:
        """The answer to a request, with arrays of `room` bytes at most."""
        if self._process is None:
            try:
                self._start()
            except BackendError as error:  # it could be imported once, and cannot any more
                raise Lost(str(error)) from None
        assert self._read is not None
        self._number += 1
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
        try:
            self._read.wire.settimeout(max(1.0, min(timeout, 1e6)))
            send(self._read.wire, self._number, request, arrays)
            number, header, parts = receive(partial(self._read, deadline=deadline), room)
            if number != self._number:
                raise WireError("its answer is to another question")
            return header, parts
        except TimeoutError:
            self.close()
            raise Slow(f"did not return within {timeout:g} s (--timeout)") from None
        except (EOFError, OSError):
            raise Lost(self._end()) from None
        except Exception as error:  # what came is no message: JSON, dtypes, sizes
            self.close()
            raise Lost(f"its process wrote into the referee's line ({type(error).__name__}: {error})") from None
        except BaseException:  # interrupted: an answer that is under way would be taken for the next one
            self.close()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # far from the descriptors that a program may close
        descriptor = out_of_the_way(theirs.fileno())
        theirs.close()
        arguments = json.dumps([os.getpid(), descriptor, self.spec, list(FUNCTIONS), MEMORY, sys.path])
        environment = {**dict.fromkeys(_ONE_THREAD, "1"), **_SHARED, **os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, arguments],
            pass_fds=[descriptor],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(descriptor)
        self._read = Reader(ours)
        weakref.finalize(self, _let_go, self._process, ours)
        try:
            _, header, _ = receive(partial(self._read, deadline=time.monotonic() + _START), 0)
        except TimeoutError:
            self.close()
            raise BackendError(f"backend {self.spec}: importing it did not end within {_START:g} s") from None
        except Exception:  # no message, or none that can be read: how the process ended says more
            raise BackendError(f"backend {self.spec}: importing it: {self._end()}") from None
        if header["status"] != "done":
            self.close()
            raise BackendError(header["text"])
        self._described = header

    def _end(self) -> str:
        """How the process ended, in words."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        status = self._process.poll()
        self.close()
        if status is None:
            return "its process closed the referee's line"
        if status < 0:
            return f"its process was ended by signal {-status} ({signal.Signals(-status).name})"
        return f"its process ended with status {status}"

    def close(self) -> None:
        """End it; the next request starts another one."""
        if self._process is not None:
            _kill(self._process)
        if self._read is not None:
            self._read.wire.close()
        self._process = self._read = None


def _let_go(process: subprocess.Popen[bytes], wire: socket.socket) -> None:
    """End a backend's process, and the line to it."""
    _kill(process)
    wire.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)


class Thread:
    """A backend in this process: calls in a thread, so that one that does not return can be left behind."""

    def __init__(self, implementation: Any) -> None:
        self._host = Host(implementation, Capture())
        self._queue: queue.SimpleQueue[Any] | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def describe(self) -> dict[str, Any]:
        """What the backend has (`Host.describe`)."""
        return self._host.describe(list(FUNCTIONS))

    def ask(self, request: dict[str, Any], arrays: Arrays, timeout: float, room: int) -> tuple[dict[str, Any], Arrays]:
        """The answer to a request, with arrays of `room` bytes at most."""
        if self._queue is None:
            self._queue, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._host, self._queue, self._answers), daemon=True).start()
        self._queue.put((request, arrays))
        try:
            header, parts = self._answers.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            self._queue = None
            raise Slow(f"did not return within {timeout:g} s (--timeout)") from None
        return header, parts

    def close(self) -> None:
        """Ask no more of it; the next request starts another one."""
        if self._queue is not None:
            self._queue.put(None)
        self._queue = None


def _serve(host: Host, requests: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (request := requests.get()) is not None:
        answers.put(host.answer(*request))
