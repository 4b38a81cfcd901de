"""Read a checkpoint into named blocks, and turn blocks into a checkpoint again, without loss."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import names_of
from refgeo.geometry.groups import Symmetry, key_bias, value_bias
from refgeo.geometry.pair import Pair
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.rotary import RotaryMetric
from refgeo.geometry.tangent_space import Metric
from refgeo.networks.attention import LayoutError
from refgeo.networks.block_metric import behind_rotations, block_metric
from refgeo.networks.configuration import Configuration
from refgeo.networks.files import as_numpy, holds_numbers, load, refuse_scaled
from refgeo.networks.layouts import LAYOUTS, AttentionLayout, Heads, Layout, LowRankLayout, own_layout
from refgeo.networks.summary import NetworkSummary, summarise
from refgeo.support.arguments import Array

Block = Pair | Array

__all__ = ["LAYOUTS", "Block", "LayoutError", "Network", "own_layout", "read"]


@dataclass(frozen=True)
class Network:
    """A network's parameters as blocks.

    Attributes
    ----------
    layout : str
        The layout's name; ``"own"`` if it is one of your own.
    blocks : dict
        ``Pair`` blocks with the heads as leading dimension, named after their layer, and every other floating-point
        parameter as an array under its own name.
    heads, key_value_heads : int or mapping of patterns to int
        The numbers of query heads and of key and value heads, which differ if several query heads share one.
    dtypes : dict
        The dtype of every tensor of the checkpoint, to which `state_dict` converts.
    shapes : dict
        The shape of every tensor that is a parameter.
    constants : dict
        Tensors that are no parameters (position ids, causal masks, ...), kept as they are.
    form : AttentionLayout or LowRankLayout
        The layout itself.
    of_module : bool
        Whether the network was read from a module, which knows its parameters.
    """

    layout: str
    blocks: dict[str, Block]
    heads: Heads
    key_value_heads: Heads
    dtypes: dict[str, np.dtype[Any]] = field(repr=False)
    shapes: dict[str, tuple[int, ...]] = field(repr=False)
    constants: dict[str, npt.NDArray[Any]] = field(repr=False)
    form: Layout = field(repr=False)
    of_module: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        pairs = sum(isinstance(block, Pair) for block in self.blocks.values())
        size = sum(math.prod(shape) for shape in self.shapes.values())
        return (
            f"Network({self.layout!r}, {len(self.blocks)} blocks, {pairs} of them pairs, {size:,} parameters, "
            f"heads={self.heads!r})"
        )

    def metric(
        self, pairs: str | Metric[Any] = "inv", arrays: Metric[Any] | None = None, frozen: Iterable[str] = ()
    ) -> ProductMetric:
        """Make the product metric of the blocks, see `refgeo.networks.block_metric`.

        The metric of pairs with rotary positions becomes a `RotaryMetric`.
        """
        if isinstance(pairs, RotaryMetric):
            raise TypeError(f"pairs: expected a metric for all pairs, such as {pairs.pairs!r}, got a RotaryMetric; "
                "refgeo "
                            "itself uses RotaryMetric(metric) for the pairs with rotary positions")  # fmt: skip
        metrics = block_metric(self.blocks, pairs, arrays, frozen).metrics
        rotary = self.form.rotary(self.shapes)
        return ProductMetric({name: behind_rotations(m) if name in rotary else m for name, m in metrics.items()})

    def symmetries(self) -> list[Symmetry]:
        """Return the groups that change the weights without changing the function, if the layout is right.

        They are the groups that the metric of `metric` divides out, and those of redundant biases. `summary` counts
        their dimension.
        """
        symmetries, redundant = self.metric("inv").symmetries(), self.form.redundant_biases(self.shapes)
        for layer in self.form.layers(self.shapes) if isinstance(self.form, AttentionLayout) else []:
            keys, out = f"{layer.prefix}query_key", f"{layer.out.weight.removesuffix('weight')}bias"
            symmetries += [key_bias(pair) for pair in (keys, f"{keys}_rest") if pair in redundant]
            pair = f"{layer.prefix}value_out"
            if pair in redundant:
                symmetries.append(value_bias(pair, out))
        return symmetries

    def summary(self) -> NetworkSummary:
        """Return the shapes, condition numbers and spectra of all heads, and the number of redundant parameters.

        Examples
        --------
        >>> import refgeo as rg
        >>> adapter = {"lora_A.weight": np.ones((1, 5)), "lora_B.weight": np.ones((4, 1))}
        >>> rg.networks.read(adapter, "lora").summary().redundant  # of 9
        1
        """
        pairs = {name: block for name, block in self.blocks.items() if isinstance(block, Pair)}
        size = sum(math.prod(shape) for shape in self.shapes.values())
        return summarise(
            self.layout,
            size,
            pairs,
            self.form.rotary(self.shapes),
            self.form.redundant_biases(self.shapes),
            self._parameter_remark,
        )

    @property
    def _parameter_remark(self) -> str:
        """A remark on which tensors count as parameters; empty if a module has defined them."""
        excluded = [name for name, tensor in self.constants.items() if holds_numbers(tensor.dtype)]
        exception = f", except {names_of(excluded)}" if excluded else ""
        return "" if self.of_module else (
            f"Taken for parameters: the {len(self.shapes)} tensors of floating-point numbers{exception}. Their names "
            "do not show which tensors are buffers. A PyTorch module does: refgeo.networks.read takes one, too."
        )  # fmt: skip

    def state_dict(
        self,
        blocks: Mapping[str, Block] | None = None,
        dtype: npt.DTypeLike | None = None,
        without: Container[str] = (),
    ) -> dict[str, npt.NDArray[Any]]:
        """Turn blocks into the checkpoint's tensors, with their names, shapes and dtypes.

        Parameters
        ----------
        blocks : mapping, optional
            Changed blocks under the names of `Network.blocks`; default: the blocks as read, which give the checkpoint
            bit for bit.
        dtype : dtype, optional
            The dtype of the parameters, for a network that computes in another precision than the checkpoint's.
        without : container of str
            Names of array blocks to leave out, because they do not move and need not be converted.

        Returns
        -------
        dict of ndarray
            May share memory with `blocks`.

        Raises
        ------
        KeyError
            `blocks` has a name that the network lacks, or lacks one that it has.
        """
        blocks = self.blocks if blocks is None else blocks
        if set(blocks) != set(self.blocks):
            difference = sorted(set(blocks) ^ set(self.blocks))
            names = ", ".join(difference[:5])
            raise KeyError(f"blocks: expected exactly the names of Network.blocks; missing or unknown: {names}")
        for name, block in self.blocks.items():
            given: Any = blocks[name]
            shapes = [np.shape(part) for part in (given if isinstance(block, Pair) else [given])]
            expected = [part.shape for part in (block if isinstance(block, Pair) else [block])]
            if shapes != expected:
                wanted, actual = (" and ".join(map(str, of_parts)) for of_parts in (expected, shapes))
                raise ValueError(f"blocks[{name!r}]: expected the shape {wanted}, got {actual}")
        pairs = {
            name: given if isinstance(given := blocks[name], Pair) else Pair(*given)
            for name, block in self.blocks.items()
            if isinstance(block, Pair)
        }
        arrays = {
            name: blocks[name]
            for name, block in self.blocks.items()
            if not isinstance(block, Pair) and name not in without
        }
        if dtype is not None:  # before `join`, which copies
            pairs = {
                name: Pair.unchecked(*(factor.astype(dtype, copy=False) for factor in pair))
                for name, pair in pairs.items()
            }
        tensors = {**self.form.join(pairs, self.shapes, self.heads), **arrays}
        # the blocks as read are copied, so that the caller cannot change them, and so are read-only tensors
        state = {
            name: tensor.astype(dtype or self.dtypes[name], copy=blocks is self.blocks or not tensor.flags.writeable)
            for name, tensor in zip(tensors, map(np.asarray, tensors.values()), strict=True)
        }
        everything = state | {name: constant.copy() for name, constant in self.constants.items()}
        return {name: everything[name] for name in self.dtypes if name in everything}

    def blocks_of(self, tensors: Mapping[str, npt.ArrayLike]) -> dict[str, Any]:
        """Rearrange gradients with respect to the checkpoint's tensors as gradients with respect to blocks.

        This is possible because blocks are rearrangements of tensors.

        Parameters
        ----------
        tensors : mapping of str to array_like
            A gradient for each tensor of the pairs, and for any of the others; the rest is missing in the result, too.

        Returns
        -------
        dict
            (G, H) for each pair, and arrays.

        Raises
        ------
        KeyError
            A tensor of a pair is missing.
        """
        layout = self.form
        arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
        for name, array in arrays.items():
            if name not in self.shapes:
                raise KeyError(f"tensors: expected names of the checkpoint's parameters, got {name!r}")
            if array.shape != self.shapes[name]:
                raise ValueError(f"tensors[{name!r}]: expected the shape {self.shapes[name]}, got {array.shape}")
        missing = sorted(layout.pair_tensors(self.shapes) - arrays.keys())
        if missing:
            raise KeyError(
                f"tensors: expected every tensor that belongs to a pair; these are missing: {', '.join(missing[:5])}"
            )
        complete = {n: arrays[n] if n in arrays else np.zeros(shape) for n, shape in self.shapes.items()}
        factors = layout.factors(complete, self.heads, self.key_value_heads)
        return {**factors, **{name: arrays[name] for name in self.blocks if name in arrays}}


def read(
    source: str | Path | Mapping[str, npt.ArrayLike] | Any,
    layout: str | Layout,
    heads: Heads | None = None,
    key_value_heads: Heads | None = None,
) -> Network:
    """Read a checkpoint into blocks: pairs where the network has a GL(h) symmetry, arrays elsewhere.

    Parameters
    ----------
    source : path, mapping or torch.nn.Module
        A ``.safetensors`` file (never a pickle), a folder with one or with its shards, a state dict of arrays, or a
        module of PyTorch. A module's parameters become blocks, each once, and its buffers are kept as they are. Files
        and state dicts do not distinguish the two: there all tensors of floating-point numbers are parameters, except
        those that the layout excludes (`Network.constants`).
    layout : str or AttentionLayout
        One of ``refgeo.networks.LAYOUTS``: ``"bert"``, ``"vit"``, ``"gpt2"``, ``"clip"``, ``"clip_hf"``, ``"timm"``,
        ``"llama"``, ``"llama_rotary"``, ``"llama_nope"`` or ``"lora"``; `refgeo.networks.layouts` says what each is.
        Or one of your own, see `own_layout`. It says how the network uses its weights, which their names do not show;
        `refgeo.symmetry.verify` measures whether this is right.
    heads : int or mapping of str to int, optional
        Number of attention heads, which the tensors do not show; if towers differ, by pattern of the names:
        ``{"text_model.*": 8, "vision_model.*": 12}``. Default: ``num_attention_heads`` or ``n_head`` in the
        ``config.json`` beside the file, also in its ``text_config`` and ``vision_config``. Not needed for ``"lora"``.
    key_value_heads : int or mapping of str to int, optional
        Number of key and value heads, if several query heads share one. Default: ``num_key_value_heads`` in the
        ``config.json``, or the number of heads.

    Returns
    -------
    Network

    Raises
    ------
    FileNotFoundError
        There is no such file.
    LayoutError
        The tensors do not fit the layout (the message names those missing), or the number of heads is unknown or does
        not divide the width.

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
    _check_source(source)
    if not (isinstance(layout, (AttentionLayout, LowRankLayout)) or (isinstance(layout, str) and layout in LAYOUTS)):
        raise LayoutError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    file = Path(source) if isinstance(source, (str, Path)) else None
    configuration = None if file is None else Configuration.beside(file)
    state, parameters, tied = _tensors_of(source)
    refuse_scaled(
        "source", [name for name, tensor in state.items() if "float8" in str(getattr(tensor, "dtype", ""))], state
    )
    tensors = {name: as_numpy(tensor, name) for name, tensor in state.items()}
    name, form = (layout, LAYOUTS[layout]) if isinstance(layout, str) else ("own", layout)
    if isinstance(form, LowRankLayout) and file is not None:
        Configuration.beside(file, "adapter_config.json").refuse_packed()
    constant = re.compile(form.constants)
    numeric = {
        name: tensor for name, tensor in tensors.items()
        if holds_numbers(tensor.dtype) and not constant.fullmatch(name) and (parameters is None or name in parameters)
    }  # fmt: skip
    exact = {name: tensor.astype(np.float64) for name, tensor in numeric.items()}
    for tensor in exact.values():
        tensor.setflags(write=False)  # so that a tangent space need not copy it
    _refuse_other_types(
        name, {n: tensors[n] for n in form.tensor_names({**tensors, **tied}) & tensors.keys() - numeric}
    )
    try:
        used = form.pair_tensors(
            {**exact, **tied}
        )  # names that do not fit are an error before a missing number of heads is
        _refuse_tied(tied, used)
        heads, key_value_heads = _numbers_of_heads(configuration, name, heads, key_value_heads)
        if configuration is not None and isinstance(form, AttentionLayout) and form in LAYOUTS.values():
            configuration.refuse_other_tensors(form.layers(exact), exact, heads)
        pairs = form.split(exact, heads, key_value_heads)
    except LayoutError as error:
        raise LayoutError(f"layout {name}: {error}") from error
    return Network(
        name,
        {**pairs, **{name: tensor for name, tensor in exact.items() if name not in used}},
        heads,
        key_value_heads,
        {name: tensor.dtype for name, tensor in tensors.items()},
        {name: tensor.shape for name, tensor in numeric.items()},
        {name: tensor for name, tensor in tensors.items() if name not in numeric},
        form,
        parameters is not None,
    )


def _tensors_of(source: Any) -> tuple[dict[str, Any], set[str] | None, dict[str, str]]:
    """Return tensors by name, the names of parameters if a module defines them, and the further names of tied tensors.

    A tied tensor is returned under its first name. The dict of further names maps each to the first one.
    """
    if not _is_module(source):
        return (dict(source) if isinstance(source, Mapping) else load(Path(source))), None, {}
    tied = further_names(source)
    state = {name: tensor for name, tensor in source.state_dict().items() if name not in tied}
    return state, {name for name, _ in source.named_parameters()}, tied


def further_names(module: Any) -> dict[str, str]:
    """Return the further names of tied parameters of a module, each with the parameter's first name."""
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}


def _refuse_tied(tied: Mapping[str, str], used: Collection[str]) -> None:
    """Raise an error if a tensor that belongs to a pair is tied to another."""
    for name in sorted(tied.keys() & used):
        raise LayoutError(
            f"{name} and {tied[name]} are one parameter of the module (tied weights), so the factors of a pair do not "
            "move alone; expected a tensor for each"
        )


def _refuse_other_types(layout: str, codes: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise an error if tensors that belong to the layout are no parameters of floating-point numbers."""
    if codes:
        kinds = [f"{name} ({'a buffer' if holds_numbers(x.dtype) else x.dtype})" for name, x in sorted(codes.items())]
        raise LayoutError(
            f"layout {layout}: expected parameters of floating-point numbers, got these tensors (undo a quantisation): "
            f"{names_of(kinds)}"
        )


def _is_module(source: object) -> bool:
    """Return whether a source is a module of PyTorch, which need not be imported for this."""
    return hasattr(source, "named_parameters") and hasattr(source, "state_dict")


def _check_source(source: object) -> None:
    """Raise an error if a source is of the wrong kind."""
    if not (isinstance(source, (str, Path, Mapping)) or _is_module(source)):
        raise TypeError(
            "source: expected the path of a safetensors file, a mapping of names to arrays or a module of PyTorch, got "
            f"{type(source).__name__}"
        )
    dicts = {name: x for name, x in source.items() if isinstance(x, Mapping)} if isinstance(source, Mapping) else {}
    states = [name for name, x in dicts.items() if x and all(hasattr(tensor, "shape") for tensor in x.values())]
    if dicts:
        remedy = f"; pass source[{states[0]!r}]" if states else ""
        raise TypeError(f"source: expected a state dict, got a dict with dicts, {names_of(dicts)}{remedy}")
    if isinstance(source, Mapping) and not all(isinstance(name, str) for name in source):
        raise TypeError("source: expected a mapping whose keys are the names of tensors, got keys that are no strings")


def _numbers_of_heads(
    configuration: Configuration | None, layout: str, heads: Heads | None, key_value_heads: Heads | None
) -> tuple[Heads, Heads]:
    """Return the numbers of query heads and of key heads: as given, else as in the configuration."""
    if configuration is not None:
        configured = configuration.heads
        if heads is not None and configured is not None and heads != configured:
            message = f"heads: {configuration.file} says {configured}, got {heads}, which is used"
            warnings.warn(message, stacklevel=3)
        heads = configured if heads is None else heads
        key_value_heads = configuration.key_value_heads if key_value_heads is None else key_value_heads
    if heads is None and layout == "lora":
        heads = 1
    heads, key_value_heads = _check_heads("heads", heads), _check_heads("key_value_heads", key_value_heads)
    if heads is None:
        missing = "there is no config.json in the same folder"
        if configuration is not None and configuration.content:
            missing = f"{configuration.file} lacks it"
        raise LayoutError(
            f"heads: expected the number of heads, because the tensors do not contain it and {missing}; give it"
        )
    return heads, heads if key_value_heads is None else key_value_heads


def _check_heads(name: str, heads: Heads | None) -> Heads | None:
    """Return the numbers of heads if they are integers, else raise an error."""
    for value in heads.values() if isinstance(heads, Mapping) else [heads]:
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
            raise LayoutError(f"{name}: expected an integer >= 1 (or a mapping of patterns to integers), got {value!r}")
    return heads
