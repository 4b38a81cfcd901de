"""Memory for large arrays that come and go in a loop.

Fresh memory costs more than what is computed in it: the operating system clears and maps every page at the first touch.
Within ``with recycling():`` the memory of an array that nobody refers to any more serves the next one of its size. An
array that somebody still holds, or any view of it, is never touched: its buffer's reference count tells.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from refgeo.arguments import Array

_WORTHWHILE = 1 << 16
"""Smaller arrays come from the allocator's own pools."""


class _Buffers:
    def __init__(self) -> None:
        self._by_size: defaultdict[int, list[Array]] = defaultdict(list)

    def empty(self, shape: tuple[int, ...]) -> Array:
        buffers = self._by_size[math.prod(shape)]
        for i in range(len(buffers)):
            if sys.getrefcount(buffers[i]) == _UNUSED:
                return buffers[i].reshape(shape)
        buffers.append(np.empty(math.prod(shape)))
        return buffers[-1].reshape(shape)


def _references_to_an_unused_buffer() -> int:
    buffers = [np.empty(1)]
    return sys.getrefcount(buffers[0])


_UNUSED = _references_to_an_unused_buffer()
_current: ContextVar[_Buffers | None] = ContextVar("buffers", default=None)


@contextmanager
def recycling() -> Iterator[None]:
    """Serve `empty` from recycled memory, in this thread, until the block ends.

    Examples
    --------
    >>> with recycling():
    ...     first = empty((300, 300))
    ...     second = empty((300, 300))
    ...     address = first.ctypes.data
    ...     del first
    ...     third = empty((300, 300))
    >>> third.ctypes.data == address, second.ctypes.data == address
    (True, False)
    """
    token = _current.set(_Buffers())
    try:
        yield
    finally:
        _current.reset(token)


def empty(shape: tuple[int, ...]) -> Array:
    """``np.empty(shape)``, of recycled memory within `recycling`.

    Examples
    --------
    >>> empty((2, 3)).shape
    (2, 3)
    """
    buffers = _current.get()
    if buffers is None or math.prod(shape) < _WORTHWHILE:
        return np.empty(shape)
    return buffers.empty(shape)
