"""One BLAS thread for small batched products: on a busy machine several wait for each other, for seconds."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import lru_cache
from typing import Any, TypeVar

LEAST = 10_000
"""Below so many numbers BLAS uses one thread anyway."""
_LARGE, _CACHED = 1 << 21, 1 << 18
"""More operations are worth several threads; so many numbers, and what is made of them, stay in a core's cache."""

Item = TypeVar("Item")
_in_control = threading.RLock()


@lru_cache(maxsize=1)
def _controller() -> Any:
    """None without threadpoolctl: threads are a matter of speed, and the geometry needs NumPy and SciPy only."""
    import scipy.linalg  # noqa: F401  (it brings a BLAS of its own, which is to be limited, too)

    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


@contextmanager
def one_thread(size: float = math.inf) -> Iterator[int]:
    """Limit BLAS to one thread, for work on `size` numbers; gives the number of threads that it had.

    The limit holds for the whole process. While one Python thread is inside, only its limit applies.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_thread():
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    if size < LEAST or not _in_control.acquire(blocking=False):
        yield 1
        return
    try:
        controller = _controller()
        if controller is None:
            yield 1
            return
        before = [pool.num_threads for pool in controller.lib_controllers]
        try:
            with controller.limit(limits=1):
                yield max(before, default=1)
        finally:  # an interruption can come between the limit and the block that would have lifted it
            for pool, number in zip(controller.lib_controllers, before, strict=True):
                if pool.num_threads != number:
                    pool.set_num_threads(number)
    finally:
        _in_control.release()


def spread(function: Callable[[Item], object], items: Sequence[Item]) -> None:
    """Call the function with each item, in as many threads as BLAS would use, of which each has one of BLAS.

    Products of a few blocks at a time stay in the cache of a core, and factorisations, of which BLAS does one at a
    time, take place side by side.

    Examples
    --------
    >>> squares = {}
    >>> spread(lambda x: squares.update({x: x * x}), [1, 2, 3])
    >>> sorted(squares.values())
    [1, 4, 9]
    """
    with one_thread() as threads:
        if threads == 1 or len(items) < 2:
            for item in items:
                function(item)
            return
        running: list[Future[object]] = []
        with ThreadPoolExecutor(threads) as pool:
            try:
                for item in items:  # each with the caller's context, such as NumPy's errstate
                    running.append(pool.submit(copy_context().run, function, item))
            except RuntimeError:  # no thread can be started any more, as when the interpreter ends
                for item in items[len(running) :]:
                    function(item)
            for one in running:
                one.result()


def groups(blocks: int, entries: int) -> list[slice]:
    """A large batch, a few blocks at a time; where there are fewer than 2 million numbers, it is one group.

    Parameters
    ----------
    blocks, entries : int
        How many, of so many numbers each.

    Examples
    --------
    >>> groups(48, 100_000)[:2], groups(12, 100_000)
    ([slice(0, 2, None), slice(2, 4, None)], [slice(0, 12, None)])
    """
    large = blocks * entries > _LARGE
    count = max(1, min(_CACHED // entries, -(-blocks // 8))) if large else blocks
    return [slice(start, start + count) for start in range(0, blocks, max(count, 1))]
