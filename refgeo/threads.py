"""One BLAS thread for small batched products: on a busy machine several wait for each other, for seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

LEAST = 10_000
"""Below so many numbers BLAS uses one thread anyway."""


@lru_cache(maxsize=1)
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # deferred: importing refgeo needs NumPy and SciPy only

    return ThreadpoolController()


@contextmanager
def one_thread(size: float = math.inf) -> Iterator[None]:
    """Limit BLAS to one thread, for work on `size` numbers.

    The limit is one of the whole process. The first Python thread that sets it is in control until it leaves; what
    others ask for meanwhile has no effect.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_thread():
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    if size < LEAST:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
