"""Two threads at once, in the order that does most harm: before each line of one call, the other call is made whole.

Threads take turns where they like, so that whole calls of another thread can come between any two lines of a call. To
wait for that by chance takes many calls; a tracing function brings it about at every line once.
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

_MOST_LINES, _MOST_SECONDS = 200, 1.0
_PATIENCE = 0.05
"""Seconds that one thread waits for the other, which may itself wait for a lock that the first one holds."""
_Result = TypeVar("_Result")


def in_a_thread(work: Callable[[], _Result]) -> _Result:
    """What comes of some work in a thread of its own.

    Examples
    --------
    >>> in_a_thread(threading.current_thread) is threading.main_thread()
    False
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@contextlib.contextmanager
def interleaved(others: Sequence[Callable[[], None]], is_foreign: Callable[[str], bool]) -> Iterator[None]:
    """While this thread runs, another one does all the other work before each line that it reaches for the first time.

    Parameters
    ----------
    others : sequence of callable
        The other work; without any, nothing happens.
    is_foreign : callable
        Of the name of a file, whether its lines are nobody's own.

    Examples
    --------
    >>> now, seen = ["mine"], []
    >>> def look():
    ...     now[0] = "mine"
    ...     seen.append(now[0])
    >>> with interleaved([lambda: now.__setitem__(0, "theirs")], lambda file: False):
    ...     look()
    >>> seen
    ['theirs']
    """
    if not others:
        yield
        return
    wanted, done = threading.Semaphore(0), threading.Semaphore(0)
    seen: set[tuple[Any, int]] = set()
    ended, waiting, end = threading.Event(), [False], time.monotonic() + _MOST_SECONDS

    def work() -> None:
        sys.settrace(None)  # somebody's, which would only cost time
        while wanted.acquire() and not ended.is_set():
            for other in others:
                other()
            done.release()

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        place = frame.f_code, frame.f_lineno
        if event == "line" and place not in seen and len(seen) < _MOST_LINES and time.monotonic() < end:
            seen.add(place)
            if not waiting[0]:
                wanted.release()
            waiting[0] = not done.acquire(timeout=_PATIENCE)
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return None if is_foreign(frame.f_code.co_filename) else on_line

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        ended.set()
        wanted.release()
        thread.join(1.0)
