"""Parameters by name: dicts of blocks, as points and as vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refgeo.geometry.pair import Pair, as_factors
from refgeo.support.arguments import Array

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
    """Return the first few, for a message.

    Examples
    --------
    >>> names_of({"a": 1, "b": 2})
    'a, b'
    """
    listed = list(names)
    return ", ".join(map(str, listed[:most])) + (", ..." if len(listed) > most else "")


def flat(point: Any) -> Array:
    """Return all numbers of an array, a pair or a dict of these, in their order.

    Examples
    --------
    >>> flat({"w": np.array([[1.0, 2.0]]), "qk": Pair([[3.0]], [[4.0]])})
    array([1., 2., 3., 4.])
    """
    blocks = point.values() if isinstance(point, Mapping) else [point]
    return np.concatenate([np.ravel(np.asarray(part)) for block in blocks for part in as_factors(block)])


def reshape_like(numbers: Array, like: Any) -> Any:
    """Return the inverse of `flat`: a point or vector of the form of `like`, also of complex numbers.

    Examples
    --------
    >>> reshape_like(np.arange(4.0), {"w": np.ones((1, 2)), "qk": Pair([[1.0]], [[1.0]])})
    {'w': array([[0., 1.]]), 'qk': Pair(G (1, 1), H (1, 1))}
    """
    if isinstance(like, Mapping):
        ends = np.cumsum([flat(block).size for block in like.values()])[:-1]
        parts = zip(like.items(), np.split(numbers, ends), strict=True)
        return Blocks({name: reshape_like(part, block) for (name, block), part in parts})
    if not isinstance(like, Pair):
        return numbers.reshape(np.shape(like))
    G, H = np.split(numbers, (like.G.size,))
    return Pair.unchecked(G.reshape(like.G.shape).copy(), H.reshape(like.H.shape).copy())
