"""Interleave the calls of two threads in the most harmful way: before each line of one call, the other call is made.

The operating system switches threads at times of its own, so that a whole call of another thread can come between any
two lines of a call. To meet such a switch by chance takes many calls; a tracing function makes it happen once at every
line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

_MAX_LINES, _MAX_SECONDS = 200, 1.0
"""Lines before which the other calls are made, and seconds during which this is done; chosen."""
_PATIENCE = 0.05
"""Seconds that one thread waits for the other, which may itself wait for a lock that the first one holds; chosen."""
_Result = TypeVar("_Result")


def run_in_thread(work: Callable[[], _Result]) -> _Result:
    """Run a function in a new thread, and return its result.

    Examples
    --------
    >>> run_in_thread(threading.current_thread) is threading.main_thread()
    False
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@contextlib.contextmanager
def interleave_calls(calls: Sequence[Callable[[], None]], is_foreign: Callable[[str], bool]) -> Iterator[None]:
    """Return a context in which another thread makes all the calls before each line that this thread reaches first.

    Parameters
    ----------
    calls : sequence of callable
        The other calls; without any, nothing happens.
    is_foreign : callable
        Returns, for the name of a file, whether its lines are not the backend's own.

    Examples
    --------
    >>> now, seen = ["mine"], []
    >>> def look():
    ...     now[0] = "mine"
    ...     seen.append(now[0])
    >>> with interleave_calls([lambda: now.__setitem__(0, "theirs")], lambda file: False):
    ...     look()
    >>> seen
    ['theirs']
    """
    if not calls:
        yield
        return
    requested, done = threading.Semaphore(0), threading.Semaphore(0)
    seen: set[tuple[Any, int]] = set()
    ended, waiting, deadline = threading.Event(), [False], time.monotonic() + _MAX_SECONDS

    def make_calls() -> None:
        sys.settrace(None)  # somebody's, which would only cost time
        while requested.acquire() and not ended.is_set():
            for call in calls:
                call()
            done.release()

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        position = frame.f_code, frame.f_lineno
        if event == "line" and position not in seen and len(seen) < _MAX_LINES and time.monotonic() < deadline:
            seen.add(position)
            if not waiting[0]:
                requested.release()
            waiting[0] = not done.acquire(timeout=_PATIENCE)
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return None if is_foreign(frame.f_code.co_filename) else on_line

    thread = threading.Thread(target=make_calls, daemon=True)
    thread.start()
    previous = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(previous)
        ended.set()
        requested.release()
        thread.join(1.0)
