"""One BLAS thread for small batched products: on a busy machine several wait for each other, for seconds."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

LEAST = 10_000
"""Below so many numbers BLAS uses one thread anyway."""

_in_control = threading.RLock()


@lru_cache(maxsize=1)
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  (it brings a BLAS of its own, which is to be limited, too)
    from threadpoolctl import ThreadpoolController  # deferred: importing refgeo needs NumPy and SciPy only

    return ThreadpoolController()


@contextmanager
def one_thread(size: float = math.inf) -> Iterator[None]:
    """Limit BLAS to one thread, for work on `size` numbers.

    The limit is one of the whole process. While one Python thread is inside, what others ask for has no effect.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_thread():
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    if size < LEAST or not _in_control.acquire(blocking=False):
        yield
        return
    try:
        controller = _controller()
        before = [pool["num_threads"] for pool in controller.info()]
        try:
            with controller.limit(limits=1, user_api="blas"):
                yield
        finally:  # an interruption can come between the limit and the block that would have lifted it
            for pool, number in zip(controller.lib_controllers, before, strict=True):
                if pool.num_threads != number:
                    pool.set_num_threads(number)
    finally:
        _in_control.release()
