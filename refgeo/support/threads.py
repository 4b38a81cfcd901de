"""One BLAS thread for small batched products: on a busy machine several wait for each other, for seconds."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

LEAST = 10_000
"""Below so many numbers BLAS uses one thread anyway."""
_in_control = threading.RLock()
NUMBER_OF_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Environment variables from which BLAS libraries read their number of threads when they are loaded."""
_HAS_ONE_THREAD = all(os.environ.get(name) == "1" for name in NUMBER_OF_THREADS)


@lru_cache(maxsize=1)
def _controller() -> Any:
    """Return the control of BLAS threads; None without threadpoolctl, as the geometry needs NumPy and SciPy only."""
    import scipy.linalg  # noqa: F401  (it brings a BLAS of its own, which is to be limited, too)

    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


@contextmanager
def one_thread(size: float = math.inf) -> Iterator[int]:
    """Limit BLAS to one thread, for work on `size` numbers; yields the number of threads before, or 1 if not limited.

    The limit holds for the whole process. While one Python thread is inside, only its limit applies.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_thread():
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    if size < LEAST or _HAS_ONE_THREAD or not _in_control.acquire(blocking=False):
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
