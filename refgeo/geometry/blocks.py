"""Parameters by name: dicts of blocks, as points and as vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ONLY = "parameters"
"""What a block is called where there is one only."""

Named = Mapping[str, Any]


class Blocks(dict[str, Any]):
    """A vector of the product: a dict of blocks with ``+``, ``-`` and multiplication by a number, block by block.

    Examples
    --------
    >>> import numpy as np
    >>> v = Blocks(w=np.array([1.0, 2.0]), b=np.array([3.0]))
    >>> 2.0 * v - v
    {'w': array([1., 2.]), 'b': array([3.])}
    """

    def __add__(self, other: Named) -> Blocks:
        return self._with(other, lambda x, y: x + y)

    def __sub__(self, other: Named) -> Blocks:
        return self._with(other, lambda x, y: x - y)

    def __neg__(self) -> Blocks:
        return Blocks({name: -block for name, block in self.items()})

    def __mul__(self, number: float) -> Blocks:
        return Blocks({name: block * number for name, block in self.items()})

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> Blocks:
        return Blocks({name: block / number for name, block in self.items()})

    def _with(self, other: Named, operation: Callable[[Any, Any], Any]) -> Blocks:
        if not isinstance(other, Mapping) or other.keys() != self.keys():
            raise ValueError(f"blocks: expected a dict with the blocks {names_of(self)}, got {names_of(other)}")
        return Blocks({name: operation(block, other[name]) for name, block in self.items()})


def names_of(names: Any, most: int = 4) -> str:
    """The first few, for a message.

    Examples
    --------
    >>> names_of({"a": 1, "b": 2})
    'a, b'
    """
    listed = list(names)
    return ", ".join(map(str, listed[:most])) + (", ..." if len(listed) > most else "")
