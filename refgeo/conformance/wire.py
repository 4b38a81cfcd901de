"""Messages between the judge and the judged: a number, a JSON header, and the raw bytes of arrays.

Nothing that comes is unpickled or executed.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = list[npt.NDArray[Any]]

HEAD = struct.Struct("<QIQ")
MOST_HEADER = 1 << 20


class WireError(Exception):
    """What came over the wire is no answer."""


def send(wire: socket.socket, number: int, header: dict[str, Any], arrays: Arrays) -> None:
    """Write one message: its number, a JSON header, the raw bytes of arrays."""
    header = header | {"arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    text = json.dumps(header).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    wire.sendall(HEAD.pack(number, len(text), len(body)) + text + body)


def receive(read: Callable[[int], bytes], most: int) -> tuple[int, dict[str, Any], Arrays]:
    """Read one message of at most `most` bytes of arrays; `read` returns exactly that many bytes."""
    number, header_size, body_size = HEAD.unpack(read(HEAD.size))
    if header_size > MOST_HEADER or body_size > most:
        raise WireError("its answer is too long to be one")
    header, body = json.loads(read(header_size)), read(body_size)
    arrays, start = [], 0
    for name, shape in header["arrays"]:
        dtype = np.dtype(name)
        if dtype.kind != "f" or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise WireError("its answer holds no floating-point numbers")
        count = math.prod(shape)
        if start + count * dtype.itemsize > body_size:
            raise WireError("its answer is shorter than it says")
        arrays.append(np.frombuffer(body, dtype, count, start).reshape(shape))
        start += count * dtype.itemsize
    return number, header, arrays


class Reader:
    """Reads exactly so many bytes from a wire; what came with them is kept for the next time."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire, self._kept = wire, b""

    def __call__(self, count: int, deadline: float | None = None) -> bytes:
        """The next bytes; TimeoutError if they do not come before the deadline, of `time.monotonic`."""
        parts = [self._kept]
        missing = count - len(self._kept)
        while missing > 0:
            if deadline is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0.0:
                    raise TimeoutError
                self.wire.settimeout(min(remaining, 1e6))
            parts.append(self.wire.recv(max(1 << 16, min(missing, 1 << 20))))
            if not parts[-1]:
                raise EOFError
            missing -= len(parts[-1])
        found = b"".join(parts)
        self._kept = found[count:]
        return found[:count]


def out_of_the_way(descriptor: int) -> int:
    """A copy with a number that programs seldom close."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200)
