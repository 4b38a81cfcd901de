"""How far long work is: a bar on a terminal, lines elsewhere; and Ctrl-C that keeps what was found."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FIRST_LINE, LINE_EVERY = 2.0, 10.0
"""Seconds until the first line of progress, and between them, where there is no terminal."""

Tell = Callable[[int, int, str], None]
"""``tell(done, total, of what)``; a total of 0 is not known."""


@contextmanager
def show_progress(title: str, quiet: bool = False) -> Iterator[Tell]:
    """Show progress, as a bar on a terminal and else as lines of text; yield the function that reports it.

    Examples
    --------
    >>> with show_progress("searching", quiet=True) as tell:
    ...     tell(1, 2, "inv")
    """
    if quiet:
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)  # this one, whatever a backend's output is redirected to meanwhile
    if not sys.stderr.isatty():  # FORCE_COLOR makes rich take a pipe for a terminal, where a bar is a pile of lines
        with _lines(title, sys.stderr) as show:
            yield show
        return
    columns = (TextColumn(title), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(),
               TimeRemainingColumn(), TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def show(done: int, total: int, item: str) -> None:
            if (total or None) != bar.tasks[0].total:  # another piece of work, with a speed of its own
                bar.reset(task, total=total or None)
            bar.update(task, completed=done, description=item)

        yield show


@contextmanager
def _lines(title: str, stream: Any) -> Iterator[Tell]:
    """Show progress as lines of text, also while a single call takes long."""
    begun = time.monotonic()
    piece = last = (0, begun, 0, "")  # a piece of work: total, time and count when first heard of, and name
    over = threading.Event()

    def show(done: int, total: int, of: str) -> None:
        nonlocal piece, last
        last = total, time.monotonic(), done, of
        if total != piece[0] or done < piece[2]:
            piece = last

    def write() -> None:
        seconds = FIRST_LINE
        while not over.wait(seconds):
            (total, since, first, _), (_, _, done, of), now = piece, last, time.monotonic()
            new, past = done - first, now - since
            # the first few evaluations take longer, and say nothing yet
            left = f", about {past * (total - done) / new:.0f} s left" if total / 20 < new and done < total else ""
            print(f"{title} {of}: {done} of {total or '?'}, {now - begun:.0f} s{left}", file=stream, flush=True)
            seconds = LINE_EVERY

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed: the first time it is noted, the second it interrupts.

    Where Ctrl-C means something else already, or where it does not arrive, in another thread, nothing is noted.

    Examples
    --------
    >>> with interruptible() as interrupted:
    ...     interrupted()
    False
    """
    seen: list[int] = []

    def note(signal_number: int, frame: Any) -> None:
        seen.append(signal_number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
