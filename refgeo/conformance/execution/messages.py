"""Messages from a backend's process, which are told from anything else that is written to the same connection."""

from __future__ import annotations

import os
import pickle
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

_MAGIC = b"refgeo:"
"""The first bytes of every message from a backend's process."""


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
    deadline = time.monotonic() + timeout

    def read(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not line.poll(max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError
            part = os.read(line.fileno(), count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    (size,) = struct.unpack("!i", read(4))
    if size < len(_MAGIC) or read(len(_MAGIC)) != _MAGIC:
        raise ForeignData
    return pickle.loads(read(size - len(_MAGIC)))
