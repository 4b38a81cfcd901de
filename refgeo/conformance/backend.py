"""Backends: somebody's functions, found and called in one way, in a process of their own where that is possible."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, number
from refgeo.conformance.host import (
    Arrays,
    BackendError,
    Capture,
    Host,
    Reader,
    WireError,
    as_backend,
    out_of_the_way,
    receive,
    send,
)
from refgeo.operations import FUNCTIONS

TIMEOUT = 60.0
"""Seconds that one call may take by default: compilers get their time, a hanging call does not hold up the run."""
MEMORY = (
    min(8 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2) if hasattr(os, "sysconf") else 8 << 30
)
"""Bytes of data that a backend's process may hold: half of the machine, 8 GiB at most."""
_MOST_LOSSES = 3
_DEMANDING = 100_000
"""With more numbers, a call in plain Python or to many digits may take more time or memory than there is."""
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


class BackendFailure(Exception):
    """A call that gave no usable result: it raised, ended its process, or returned something else."""


class Exhausted(BackendFailure):
    """Out of time or memory at a point where somebody right may be, with dense matrices of n² or h⁴ numbers."""


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
    streams : str
        What it did to the standard streams, in words; empty if nothing.
    forked : bool
        Whether it forked a process.
    evaluations : int
        Of a sharpness routine: how often it has evaluated the loss.
    """

    kinds: tuple[str, ...] = ()
    printed: str = ""
    changed: tuple[int, ...] = ()
    aliases: str = ""
    overwritten: bool = False
    changed_later: bool = False
    streams: str = ""
    forked: bool = False
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

    def __init__(self, implementation: Any, name: str | None = None, timeout: float = TIMEOUT) -> None:
        timeout = float("inf") if timeout == float("inf") else number("timeout", timeout, "seconds", above=0.0)
        self.spec = implementation if isinstance(implementation, str) else _importable(implementation)
        self.name = name or self.spec or getattr(implementation, "__name__", None) or type(implementation).__name__
        self.timeout = timeout
        self._given_up: defaultdict[tuple[Any, ...], list[tuple[int, str]]] = defaultdict(list)
        self._losses: Counter[tuple[Any, ...]] = Counter()
        self._server: _Process | _Thread
        if self.spec is not None and os.name == "posix":
            self._server = _Process(self.spec)
            self.where = "a process of its own"
        else:
            self._server = _Thread(as_backend(implementation, list(FUNCTIONS)))
            self.where = "this process"
        described = self._server.describe()
        self._functions = frozenset(described["provides"])
        self.converts: bool = described["converts"]
        self.thread_safe: bool = described["thread_safe"]
        self.is_plain: bool = described["is_plain"]
        self.misspelt: list[str] = described["misspelt"]
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
        **options: Any,
    ) -> tuple[list[Array], Observed]:
        """Call a function: its results as float64 arrays of the expected `shapes`, and what else it did.

        Arrays that are one and the same object here are so for the backend, too.

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
                raise (Exhausted if least else NotCalled)(f"not called again: {why}")
        distinct = list({id(array): array for array in arrays}.values())
        places = {id(array): i for i, array in enumerate(distinct)}
        order = [places[id(array)] for array in arrays]
        request = {"do": do, "function": function, "metric": metric, "order": order, "extra": list(extra)}
        request |= {"shapes": [list(shape) for shape in shapes], "layout": layout, **options}
        room = 16 * sum(8 * math.prod(shape) for shape in shapes) + 4096
        try:
            header, parts = self._server.ask(request, distinct, self.timeout, room)
        except _Lost as lost:
            self._losses[kind] += 1
            if isinstance(lost, _Slow) or self._losses[kind] >= _MOST_LOSSES:
                self._given_up[kind].append((demand, f"{function}: {lost}"))
            raise (Exhausted if demand and isinstance(lost, _Slow) else BackendFailure)(f"{function}: {lost}") from None
        self._require_done(kind, demand, header)
        repeats = len(parts) // max(len(shapes), 1)
        if [part.shape for part in parts] != [tuple(shape) for shape in shapes] * repeats or not parts:
            raise BackendFailure("its process answered with something else than its results")
        return [np.asarray(part, dtype=np.float64) for part in parts], _observed(header.get("notes", {}), order)

    def _require_done(self, kind: tuple[Any, ...], demand: int, header: dict[str, Any]) -> None:
        status, text = header.get("status"), str(header.get("text", ""))
        if status == "not provided":
            raise NotImplementedError(text)
        if status == "refused":
            raise Refused(text)
        if status == "exhausted":  # which takes its time, every time
            self._given_up[kind].append((demand, text))
            raise (Exhausted if demand else BackendFailure)(text)
        if status != "done":
            raise BackendFailure(text or "no usable result")

    @property
    def has_own_process(self) -> bool:
        """Whether it can have another one."""
        return isinstance(self._server, _Process)

    def fresh(self) -> Backend:
        """The same backend in a new process, which remembers nothing; itself if it has no process of its own."""
        return Backend(self.spec, self.name, self.timeout) if self.has_own_process else self

    def close(self) -> None:
        """End its process."""
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
        str(notes.get("streams", "")),
        bool(notes.get("forked", False)),
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


class _Lost(Exception):
    """The backend has no process any more, or it does not answer."""


class _Slow(_Lost):
    """It does not answer."""


@dataclass
class _Process:
    """A backend's process, started again when it is lost."""

    spec: str
    _process: subprocess.Popen[bytes] | None = None
    _read: Reader | None = None
    _number: int = 0
    _described: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        self._start()
        return self._described

    def ask(self, request: dict[str, Any], arrays: Arrays, timeout: float, room: int) -> tuple[dict[str, Any], Arrays]:
        if self._process is None:
            try:
                self._start()
            except BackendError as error:  # it could be imported once, and cannot any more
                raise _Lost(str(error)) from None
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
            raise _Slow(f"did not return within {timeout:g} s (--timeout)") from None
        except (EOFError, OSError):
            raise _Lost(self._end()) from None
        except Exception as error:  # what came is no message: JSON, dtypes, sizes
            self.close()
            raise _Lost(f"its process wrote into the referee's line ({type(error).__name__}: {error})") from None
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


class _Thread:
    """A backend in this process: calls in a thread, so that one that does not return can be left behind."""

    def __init__(self, implementation: Any) -> None:
        self._host = Host(implementation, Capture())
        self._queue: queue.SimpleQueue[Any] | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def describe(self) -> dict[str, Any]:
        return self._host.describe(list(FUNCTIONS))

    def ask(self, request: dict[str, Any], arrays: Arrays, timeout: float, room: int) -> tuple[dict[str, Any], Arrays]:
        if self._queue is None:
            self._queue, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._host, self._queue, self._answers), daemon=True).start()
        self._queue.put((request, arrays))
        try:
            header, parts = self._answers.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            self._queue = None
            raise _Slow(f"did not return within {timeout:g} s (--timeout)") from None
        return header, parts

    def close(self) -> None:
        if self._queue is not None:
            self._queue.put(None)
        self._queue = None


def _serve(host: Host, requests: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (request := requests.get()) is not None:
        answers.put(host.answer(*request))
