"""Does a network have the symmetries that its layout claims? transformers runs it, and its weights are moved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.geometry.pair import Pair
from refgeo.networks.network import Network, read
from refgeo.sharpness import symmetry
from refgeo.support.extras import require


def verify(network: Network, folder: Path, progress: Callable[[], None] = lambda: None) -> symmetry.Verification:
    """Measure `Network.symmetries` on the outputs of the model that transformers makes of a folder.

    The symmetries are those of the architecture, so the weights of the pairs are random ones, for which scores and
    outputs are of the order of 1; fresh weights are so small that nothing would be seen. The squares of the outputs,
    for random tokens or pixels, are weighted at random and added up.

    Parameters
    ----------
    network : Network
    folder : Path
        With the checkpoint and its ``config.json``.
    progress : callable
        Called after every evaluation.

    Returns
    -------
    Verification

    Raises
    ------
    ValueError
        transformers cannot make or run the model, or its outputs do not depend on a pair; the message says which.
    """
    require("--verify", "validation", "torch", "transformers")
    import torch

    module, rng = _module(folder if folder.is_dir() else folder.parent), np.random.default_rng(0)
    # read again, since tensors of files may have older names than the module's
    network = read(module, network.form, network.heads, network.key_value_heads)
    inputs, claims = _inputs(module), network.symmetries()
    moving = {block for one in claims for block in one.blocks}
    blocks = {name: _random(block, rng) if name in moving else block for name, block in network.blocks.items()}

    def outputs(tensors: dict[str, Any]) -> Any:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)  # for models that draw what they look at
            found = torch.func.functional_call(module, tensors, (), inputs)
        return torch.cat([x.double().ravel() for x in found.to_tuple() if isinstance(x, torch.Tensor)])

    try:
        weights = torch.from_numpy(rng.uniform(1.0, 2.0, len(outputs({}))))
    except Exception as error:
        kind = type(module).__name__
        raise ValueError(
            f"--verify: {kind} could not be run on random {' and '.join(inputs) or 'inputs'}: {error}; measure it with "
            "a loss of your own: refgeo.symmetry.verify"
        ) from error

    def loss(blocks: Any) -> float:
        state = network.state_dict(blocks, np.float64)
        progress()
        return float(outputs({name: torch.from_numpy(state[name]) for name in network.shapes}) ** 2 @ weights)

    found = symmetry.verify(loss, blocks, claims)
    for one in found:
        if one.obstacle:
            raise ValueError(f"--verify: of {' and '.join(one.blocks)} nothing can be seen: {one.obstacle}")
    return found


def _module(place: Path) -> Any:
    """The model that the configuration names, else the one of AutoModel."""
    import transformers

    try:
        named = transformers.AutoConfig.from_pretrained(place, local_files_only=True).architectures or []
        kind = next((one for name in named if (one := getattr(transformers, name, None))), transformers.AutoModel)
        module = kind.from_pretrained(place, local_files_only=True)
    except Exception as error:
        raise ValueError(f"--verify: transformers could not load {place}: {error}") from error
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # others have no double precision
    return module.double().eval()


def _random(block: Any, rng: np.random.Generator) -> Any:
    """Of a pair, for inputs of the order of 1; arrays change little."""
    if isinstance(block, Pair):
        return Pair(*(1.5 * rng.standard_normal(F.shape) / F.shape[-2] ** 0.5 for F in block))
    return block + 0.1 * rng.standard_normal(np.shape(block))


def _inputs(module: Any) -> dict[str, Any]:
    """Random ones, of those kinds that the model takes."""
    import torch

    taken = inspect.signature(module.forward).parameters
    generator, config, found = torch.Generator().manual_seed(0), module.config, {}
    words = _first(config, "vocab_size")
    if "input_ids" in taken and words is not None:
        for name in {"input_ids", "decoder_input_ids"} & taken.keys():
            found[name] = torch.randint(0, words, (2, 8), generator=generator)
    size = _first(config, "image_size")
    if "pixel_values" in taken and size is not None:
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (2, _first(config, "num_channels") or 3, height, width)
        found["pixel_values"] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return found


def _first(config: Any, name: str) -> Any:
    """Of a configuration, or of those in it for text and pictures."""
    parts = (config, getattr(config, "text_config", None), getattr(config, "vision_config", None))
    return next((value for part in parts if (value := getattr(part, name, None)) is not None), None)
