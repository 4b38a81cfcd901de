"""`read`: a checkpoint as named blocks, losslessly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.networks import bert
from refgeo.networks.errors import LayoutError
from refgeo.pair import Array, Pair

Block = Pair | Array

LAYOUTS = {"bert": bert}
"""Layout name to the module with its ``split`` (tensors to pairs) and ``join`` (pairs to tensors)."""

__all__ = ["LAYOUTS", "Block", "LayoutError", "Network", "read"]


@dataclass(frozen=True)
class Network:
    """A network's parameters as blocks.

    Attributes
    ----------
    layout : str
    blocks : dict
        ``Pair`` blocks with the heads as leading dimension, named after their layer, and every other floating-point
        parameter as an array under its own name.
    dtypes : dict
        The dtype of every tensor of the checkpoint, for the way back.
    constants : dict
        Integer tensors (position ids, ...), kept as they are.
    """

    layout: str
    blocks: dict[str, Block]
    dtypes: dict[str, np.dtype[Any]] = field(repr=False)
    constants: dict[str, npt.NDArray[Any]] = field(repr=False)

    def state_dict(self, blocks: Mapping[str, Block] | None = None) -> dict[str, npt.NDArray[Any]]:
        """The checkpoint's tensors again, with their names, shapes and dtypes.

        Parameters
        ----------
        blocks : mapping, optional
            Changed blocks under the names of `Network.blocks`; default: the blocks as read, which gives back the
            checkpoint bit by bit.

        Returns
        -------
        dict of ndarray

        Raises
        ------
        KeyError
            `blocks` has a name that the network lacks, or lacks one that it has.
        """
        blocks = self.blocks if blocks is None else blocks
        if set(blocks) != set(self.blocks):
            difference = sorted(set(blocks) ^ set(self.blocks))
            raise KeyError(f"blocks: expected the names of Network.blocks; differing: {', '.join(difference[:5])}")
        pairs = {name: block for name, block in blocks.items() if isinstance(block, Pair)}
        arrays = {name: block for name, block in blocks.items() if not isinstance(block, Pair)}
        tensors = {**LAYOUTS[self.layout].join(pairs), **arrays}
        state = {name: np.asarray(tensor).astype(self.dtypes[name]) for name, tensor in tensors.items()}
        return {name: (state | self.constants)[name] for name in self.dtypes}


def read(source: str | Path | Mapping[str, npt.ArrayLike], layout: str, heads: int | None = None) -> Network:
    """Read a checkpoint into blocks: pairs where the network has a GL(h) symmetry, arrays elsewhere.

    Parameters
    ----------
    source : path or mapping
        A ``.safetensors`` file (never a pickle), or a state dict of arrays.
    layout : str
        ``"bert"``: Hugging Face BERT and relatives.
    heads : int, optional
        Number of attention heads, which the tensors do not show. Default: ``num_attention_heads`` in the
        ``config.json`` beside the file.

    Returns
    -------
    Network

    Raises
    ------
    FileNotFoundError
        There is no such file.
    LayoutError
        The tensors do not fit the layout (the message names those missing), or the number of heads is unknown or
        does not divide the width.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rng = np.random.default_rng(0)
    >>> prefix = "encoder.layer.0.attention."
    >>> state = {prefix + f"self.{name}.weight": rng.standard_normal((6, 6)) for name in ("query", "key", "value")}
    >>> state |= {prefix + f"self.{name}.bias": rng.standard_normal(6) for name in ("query", "key", "value")}
    >>> state |= {prefix + "output.dense.weight": rng.standard_normal((6, 6)), "pooler.bias": np.zeros(6)}
    >>> network = rg.networks.read(state, "bert", heads=2)
    >>> network.blocks["encoder.layer.0.attention.query_key"]
    Pair(G (2, 7, 3), H (2, 7, 3))
    >>> all(np.array_equal(network.state_dict()[name], state[name]) for name in state)
    True
    """
    if layout not in LAYOUTS:
        raise LayoutError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    state = _load(Path(source)) if isinstance(source, (str, Path)) else dict(source)
    tensors = {name: np.asarray(tensor) for name, tensor in state.items()}
    if heads is None and isinstance(source, (str, Path)):
        heads = _configured_heads(Path(source))
    if heads is None:
        raise LayoutError(
            "heads: the number of attention heads is not in the tensors; put the model's config.json beside the file, "
            "or give heads"
        )
    numeric = {name: tensor for name, tensor in tensors.items() if tensor.dtype.kind == "f"}
    constants = {name: tensor for name, tensor in tensors.items() if tensor.dtype.kind != "f"}
    exact = {name: tensor.astype(np.float64) for name, tensor in numeric.items()}
    pairs, rest = LAYOUTS[layout].split(exact, heads)
    return Network(layout, {**pairs, **rest}, {name: tensor.dtype for name, tensor in tensors.items()}, constants)


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        raise FileNotFoundError(f"checkpoint: no file {path}")
    try:
        return dict(load_file(path))
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"checkpoint {path}: expected a safetensors file NumPy can hold, got {error}") from error


def _configured_heads(path: Path) -> int | None:
    config = path.with_name("config.json")
    if not config.is_file():
        return None
    try:
        heads = json.loads(config.read_text(encoding="utf-8"))["num_attention_heads"]
        if isinstance(heads, bool) or int(heads) != float(heads):
            raise ValueError(f"num_attention_heads is {heads!r}")
        return int(heads)
    except (ValueError, TypeError, LookupError) as error:
        raise LayoutError(
            f"{config}: expected JSON with a number num_attention_heads, got {error}; or give heads"
        ) from error
