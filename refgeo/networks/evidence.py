r"""What says that a network has the symmetries of its layout: more than the names of its tensors.

RoFormer has the names of BERT, and rotates queries and keys by their positions; GLM has the names of Llama, and rotates
other planes. So without a layout of the user's own word, an architecture must be known, and its options must be those
that the layout assumes. `KNOWN` are those whose outputs stayed the same to rounding when all weights were moved along
everything that the layout claims (`refgeo inspect --verify` does that), with these options at their defaults and
switched; a test does it again for the installed release of transformers. What is not here is refused, and
`refgeo.symmetry.verify` or ``--verify`` settles it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refgeo.geometry.blocks import names_of
from refgeo.networks.attention import AttentionLayer, LayoutError, Tensors
from refgeo.networks.files import configuration
from refgeo.networks.layouts import Heads, heads_of

KNOWN: dict[str, frozenset[str]] = {
    layout: frozenset(types.split())
    for layout, types in {
        "bert": "bert bert-generation blip camembert data2vec-text dpr electra ernie layoutlm markuplm mobilebert "
        "rembert roberta roc_bert splinter tapas visual_bert xlm-roberta",
        "vit": "deit dinov2 dinov2_with_registers ijepa vilt vit vit_mae vit_msn yolos",
        "gpt2": "gpt2 imagegpt openai-gpt",
        "clip_hf": "bart biogpt blenderbot blenderbot-small chinese_clip_vision_model clip clip_text_model "
        "clip_vision_model clipseg fsmt groupvit m2m_100 marian mbart metaclip_2 mvp opt owlv2 owlvit pegasus plbart "
        "siglip siglip_vision_model",
        "llama": "apertus exaone4 exaone_moe flex_olmo gemma3_text olmo2 olmo3 olmoe qwen3 qwen3_moe qwen3_vl_text "
        "qwen3_vl_moe_text",
        "llama_rotary": "arcee cwm gemma gemma2 granite granitemoe granitemoeshared hyperclovax internlm3 jais2 llama "
        "ministral3 mistral mixtral olmo phimoe qwen2 qwen2_moe qwen2_vl_text qwen2_5_vl_text seed_oss smollm3 "
        "starcoder2 vaultgemma",
    }.items()
}
"""The ``model_type`` of transformers by layout."""

ASSUMED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), (None, 1)),
    "clip_qkv": (None,),
    "use_prompt": (None, False),
    **dict.fromkeys(("rope_interleave", "rope_interleaved", "interleaved_rope"), (None, False)),
}
"""Options of a configuration, wherever they stand in it, and with which values the layouts' claims hold."""
NORMS = ("use_qk_norm", "qk_norm", "qk_layernorm", "use_query_key_norm", "use_qk_layernorm")
"""Options that say that queries and keys are normalised, which ``llama`` alone takes into account."""


def refuse_without_evidence(layout: str, file: Path | None) -> None:
    """An error unless something but the names of tensors says that the layout's symmetries are there.

    Parameters
    ----------
    layout : str
        The one that fits the names.
    file : Path or None
        The checkpoint, beside which its configuration is.

    Raises
    ------
    LayoutError
        It says what is missing, and what to do.

    Examples
    --------
    >>> refuse_without_evidence("bert", None)
    Traceback (most recent call last):
    ...
    refgeo.networks.attention.LayoutError: layout: the tensors have the names of 'bert', but names are no evidence ...
    """
    reason = _adapters_reason(file) if layout == "lora" else _reason(layout, file)
    if reason is not None:
        raise LayoutError(
            f"layout: the tensors have the names of {layout!r}, but names are no evidence of its symmetries: {reason}. "
            f"If you know that this network uses its weights as {layout!r} does, say so: layout={layout!r}, on the "
            f"command line --layout {layout}. Or measure it: refgeo inspect --verify, or refgeo.symmetry.verify(loss, "
            "network.blocks, network) with a loss of your own, moves the weights along every group"
        )


def _reason(layout: str, file: Path | None) -> str | None:
    """Why there is no evidence for a layout of attention, if there is none."""
    if file is None:
        return "a state dict does not say of which architecture it is"
    place, config = configuration(file)
    if not config:
        return f"there is no {place} that says which architecture this is"
    kind = config.get("model_type")
    if config.get("auto_map"):
        return f"{place} has auto_map, so code of its own makes the network"
    if not isinstance(kind, str) or kind not in KNOWN.get(layout, ()):
        said = "no model_type" if kind is None else f"model_type {kind!r}, which refgeo does not know with this layout"
        return f"{place} has {said}"
    assumed = ASSUMED if layout == "llama" else ASSUMED | dict.fromkeys(NORMS, (None, False))
    for name, value in _options(config):
        if name in assumed and value not in assumed[name]:
            expected = " or ".join(map(repr, assumed[name]))
            return f"{place} has {name} = {value!r}, and this layout assumes {expected}"
    return None


def _options(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        yield name, value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                yield from _options(part)


def _adapters_reason(file: Path | None) -> str | None:
    """The same for adapters: PEFT packs those of several experts into one lora_A and one lora_B."""
    packed = "whether PEFT has packed the factors of several experts into one (target_parameters)"
    if file is None:
        return f"a state dict does not say {packed}"
    place, config = configuration(_beside(file))
    if config.get("peft_type") not in (None, "LORA"):
        return f"{place} has peft_type {config['peft_type']!r}, which may use its factors in another way than LoRA"
    for name, value in config.items():
        if name.startswith("use_") and value and name not in ("use_dora", "use_rslora"):
            return f"{place} has {name} = {value!r}, which may use the factors in another way than LoRA"
    return None if config else f"there is no {place} that says {packed}"


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


__all__ = ["ASSUMED", "KNOWN", "refuse_contradictions", "refuse_packed", "refuse_without_evidence"]
