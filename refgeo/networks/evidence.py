"""What the configuration beside a checkpoint contradicts: other heads, other layers, packed adapters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refgeo.geometry.blocks import names_of
from refgeo.networks.attention import AttentionLayer, LayoutError, Tensors
from refgeo.networks.files import configuration
from refgeo.networks.layouts import Heads, heads_of

_WIDTHS = "true_hidden_size", "hidden_size", "n_embd", "d_model", "dim"
_DEPTHS = "num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers"
_COUNTS = "num_attention_heads", "n_head", "attention_heads"


def refuse_contradictions(file: Path, layers: Sequence[AttentionLayer], tensors: Tensors, heads: Heads) -> None:
    """An error where the tensors are not those that the configuration beside them tells of: heads that are gone or of
    another width, layers that are elsewhere.

    Examples
    --------
    >>> refuse_contradictions(Path("nowhere/model.safetensors"), [], {}, 2)
    """
    place, config = configuration(file)
    if config.get("pruned_heads") and isinstance(heads, int):
        raise LayoutError(
            f"heads: {place} has pruned_heads = {config['pruned_heads']!r}; give the heads that are left of every "
            'layer, by patterns: {"*layer.0.*": 10, "*": 12}'
        )
    parts = [(_part(config, layer.prefix), layer) for layer in layers]
    for part, layer in parts:
        width, count, each = _first(part, _WIDTHS), _first(part, _COUNTS), _first(part, ("head_dim",))
        if each is None and width is not None and count is not None:
            each = width // count
        here, has = heads_of(layer, heads), layer.query.matrix(tensors).shape[1]
        if each is not None and has != here * each:
            raise LayoutError(
                f"heads: {layer.prefix.rstrip('.')} has queries of width {has}, which are not {here} heads of the "
                f"width {each} that {place} tells of; have heads been removed? Give the number that is left, also "
                'by patterns such as {"*layers.0.*": 2, "*": 4}, or correct the file'
            )
    for part in (one for i, (one, _) in enumerate(parts) if one not in [other for other, _ in parts[:i]]):
        depth, inside = _first(part, _DEPTHS), [layer.prefix for other, layer in parts if other == part]
        numbers = [int(digits[-1]) for prefix in inside if (digits := re.findall(r"\d+", prefix))]
        if depth is not None and len(numbers) == len(set(numbers)) and set(numbers) != set(range(depth)):
            raise LayoutError(
                f"checkpoint: there are {len(inside)} of {depth} layers that {place} tells of, with the numbers "
                f"{names_of(sorted(numbers), 8)}; give the whole network, correct the file, or read a state dict"
            )


def _part(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What a configuration says of a layer: that of its tower, or of its side where encoder and decoder differ."""
    for tower in ("text", "vision"):
        if isinstance(config.get(f"{tower}_config"), Mapping):
            if prefix.startswith(f"{tower}_model."):
                return {**config[f"{tower}_config"], "part": tower}
            return {"part": "another"}
    sides = [side for side in ("decoder", "encoder") if any(f"{side}_{name}" in config for name in _COUNTS)]
    for side in sides:
        if f"{side}." in prefix:
            own = {name.removeprefix(f"{side}_"): x for name, x in config.items() if name.startswith(f"{side}_")}
            return {"part": side, **({"d_model": config["d_model"]} if "d_model" in config else {}), **own}
    return dict(config)


def _first(part: Mapping[str, Any], names: Iterable[str]) -> int | None:
    return next((x for name in names if isinstance(x := part.get(name), int) and x), None)


def _beside(file: Path) -> Path:
    return (file if file.is_dir() else file.parent) / "adapter_config.json"


def refuse_packed(file: Path) -> None:
    """An error for adapters of PEFT's ``target_parameters``: their group is GL(r)ᴱ for E experts of rank r, where one
    pair of rank E·r would claim GL(E·r).
    """
    place, config = configuration(_beside(file))
    if config.get("target_parameters"):
        raise LayoutError(
            f"layout lora: {place} has target_parameters = {config['target_parameters']!r}; PEFT packs the factors of "
            "several experts into one lora_A and one lora_B, of which each expert uses a part, so they are no pair. "
            "Take them apart, and read a state dict with a lora_A and a lora_B for each expert"
        )
