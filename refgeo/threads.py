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

_lock = threading.Lock()
_inside = 0
_limit: Any = None


@lru_cache(maxsize=1)
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # deferred: importing refgeo needs NumPy and SciPy only

    return ThreadpoolController()


@contextmanager
def one_thread(size: float = math.inf) -> Iterator[None]:
    """Limit BLAS to one thread, for work on `size` numbers; the limit there was comes back when the last one leaves.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_thread(10**6):
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    global _inside, _limit
    if size < LEAST:
        yield
        return
    with _lock:
        if _inside == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.restore_original_limits()
