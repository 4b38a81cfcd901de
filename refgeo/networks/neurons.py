r"""Neurons with a scale of their own, as pairs with h = 1: ReLU networks, gated networks, layer norms (Sec. 3.1).

A hidden neuron of a ReLU network does not notice when what comes in is multiplied by c > 0 and what goes out divided by
it; nor does a channel of a layer norm's scale and shift with the weight that follows, nor the linear half of a gated
network (SwiGLU: ``up`` with ``down``). All that comes into neuron i is one column G_i, all that goes out H_i, and the
group is GL(1) per neuron: pairs (n, 1) and (m, 1) with the neurons as leading dimension, for which every pair metric
has closed-form geodesics. Several arrays may share the scale. (A negative c is no symmetry of a ReLU. Nearby that makes
no difference, but a distance takes (G, H) and (−G, −H) for one point.)

A pruned network's mask belongs in the loss. A search for the worst case then leaves its zeros zero: with h = 1 a
geodesic moves no entry that is zero and has no velocity. The average case draws velocities for them, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

Blocks = Mapping[str, Any]


class NeuronPairs:
    """Some arrays of a network as one block of pairs, and back.

    Parameters
    ----------
    params : mapping of str to array
        The network's parameters.
    incoming, outgoing : mapping of str to int
        Names of arrays, and which axis counts the neurons.
    name : str
        Of the block.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rng = np.random.default_rng(0)
    >>> params = {"up": rng.standard_normal((7, 5)), "bias": np.ones(7), "down": rng.standard_normal((3, 7))}
    >>> hidden = rg.networks.NeuronPairs(params, {"up": 0, "bias": 0}, {"down": 1}, "hidden")
    >>> blocks = hidden.blocks(params)
    >>> blocks
    {'hidden': Pair(G (7, 6, 1), H (7, 3, 1))}
    >>> all(np.array_equal(params[name], array) for name, array in hidden.params(blocks).items())
    True
    """

    def __init__(
        self, params: Blocks, incoming: Mapping[str, int], outgoing: Mapping[str, int], name: str = "neurons"
    ) -> None:
        self.incoming, self.outgoing, self.name = dict(incoming), dict(outgoing), name
        if not incoming or not outgoing or set(incoming) & set(outgoing):
            raise ValueError("incoming, outgoing: expected at least one array in each of the two, and no array in both")
        if name in params and name not in (*incoming, *outgoing):
            raise ValueError(f"name: expected a name that is not the name of an array in params, got {name!r}")
        counts = {}
        self._shapes = {}
        for array, axis in (*incoming.items(), *outgoing.items()):
            if array not in params:
                raise ValueError(f"params: expected an array {array!r}, got {', '.join(map(str, list(params)[:5]))}")
            shape = self._shapes[array] = np.shape(params[array])
            if not -len(shape) <= axis < len(shape):
                raise ValueError(f"{array}: expected an axis of its shape {shape}, got {axis}")
            counts[array] = shape[axis]
        if len(set(counts.values())) > 1:
            raise ValueError(f"incoming, outgoing: expected the same number of neurons everywhere, got {counts}")

    def blocks(self, params: Blocks) -> dict[str, Any]:
        """Return the parameters, or gradients of them, with the pairs in the place of their arrays."""
        for name, shape in self._shapes.items():
            if name not in params or np.shape(params[name]) != shape:
                came = np.shape(params[name]) if name in params else "no such array"
                raise ValueError(f"params[{name!r}]: expected an array of shape {shape}, got {came}")
        pair = Pair(*(self._gather(params, side) for side in (self.incoming, self.outgoing)))
        rest = {name: array for name, array in params.items() if name not in self._shapes}
        return {self.name: pair, **rest}

    def params(self, blocks: Blocks) -> dict[str, Any]:
        """Return the parameters, from blocks."""
        params = {name: block for name, block in blocks.items() if name != self.name}
        for factor, side in zip(Pair(*blocks[self.name]), (self.incoming, self.outgoing), strict=True):
            start = 0
            for name, axis in side.items():
                shape = self._shapes[name]
                moved = (shape[axis], *np.delete(shape, axis))
                rows = factor[:, start : (start := start + math.prod(moved[1:])), 0]
                params[name] = np.moveaxis(rows.reshape(moved), 0, axis)
        return params

    def value_and_grad(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Turn a function of parameters, a loss with or without its gradient, into one of blocks; batches follow."""

        def evaluate(blocks: Blocks, *batch: Any) -> Any:
            result = function(self.params(blocks), *batch)
            return (result[0], self.blocks(result[1])) if isinstance(result, tuple) else result

        return evaluate

    def _gather(self, params: Blocks, side: Mapping[str, int]) -> Array:
        """Return the arrays of one side as (neurons, rows, 1)."""
        moved = (np.moveaxis(np.asarray(params[name]), axis, 0) for name, axis in side.items())
        return np.concatenate([array.reshape(len(array), -1) for array in moved], axis=1)[..., None]
