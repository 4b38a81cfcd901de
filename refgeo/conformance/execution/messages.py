"""Messages to a backend's process, and from it; the latter are told from anything else written to the connection."""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy.typing as npt

from refgeo.conformance.protocol.call import Call

_MAGIC = b"refgeo:"
"""The first bytes of every message from a backend's process, after the length that `Connection.send_bytes` writes."""
_HEADER = f"!i{len(_MAGIC)}s"
"""The format of both."""
_MAX_KEPT = 1 << 20
"""Number of entries of arrays after which both ends of a connection drop those that they keep; chosen, 8 MiB."""


class CallEncoder:
    """Convert calls to plain data in which an array that cannot change is sent once, and named by a number later."""

    def __init__(self) -> None:
        self._kept: dict[int, npt.NDArray[Any]] = {}
        self._size = 0

    def encode(self, call: Call) -> tuple[bool, dict[int, npt.NDArray[Any]], dict[str, Any]]:
        """Return whether the decoder must drop its arrays first, the arrays that are new to it, and the call, in which
        they are numbers.
        """
        is_full, new = self._size > _MAX_KEPT, dict[int, npt.NDArray[Any]]()
        if is_full:
            self._kept, self._size = {}, 0

        def represent(array: npt.NDArray[Any]) -> Any:
            if array.flags.writeable:
                return array
            if id(array) not in self._kept:
                self._kept[id(array)] = new[id(array)] = array
                self._size += array.size
            return id(array)

        return is_full, new, call.to_dict(represent)


class CallDecoder:
    """Restore calls from the data of a `CallEncoder`."""

    def __init__(self) -> None:
        self._kept: dict[int, npt.NDArray[Any]] = {}

    def decode(self, is_full: bool, new: dict[int, npt.NDArray[Any]], call: dict[str, Any]) -> Call:
        """Return the call, with arrays in the place of their numbers."""
        if is_full:
            self._kept.clear()
        self._kept.update(new)
        return Call.from_dict(call, lambda x: self._kept[x] if isinstance(x, int) else x)


class ForeignData(Exception):
    """Something that is no message of refgeo has been written to the connection."""


def send(line: Connection, message: Any) -> None:
    """Send a message that `receive` recognises."""
    line.send_bytes(_MAGIC + pickle.dumps(message))


def receive(line: Connection, timeout: float) -> Any:
    """Receive a message of `send` within some seconds; unlike `Connection.recv`, do not wait for the rest of junk.

    Raises
    ------
    TimeoutError, EOFError, ForeignData
    """
    deadline, poller = time.monotonic() + timeout, select.poll()
    poller.register(line, select.POLLIN)

    def read(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not poller.poll(1e3 * max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError
            part = os.read(line.fileno(), count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    size, magic = struct.unpack(_HEADER, read(struct.calcsize(_HEADER)))
    if size < len(_MAGIC) or magic != _MAGIC:
        raise ForeignData
    return pickle.loads(read(size - len(_MAGIC)))
