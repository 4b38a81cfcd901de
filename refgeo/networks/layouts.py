r"""What the checkpoints of the common architectures look like: where each layer's query, key, value and output are.

================  =================================================================================================
``bert``          Hugging Face BERT, RoBERTa, MiniLM, ...: ``encoder.layer.N.attention.self.query``
``vit``           Hugging Face ViT, DeiT: ``encoder.layer.N.attention.attention.query``
``gpt2``          Hugging Face GPT-2: ``h.N.attn.c_attn``, fused and stored transposed (Conv1D)
``clip``          OpenAI and OpenCLIP, ``torch.nn.TransformerEncoder``: ``attn.`` or ``self_attn.in_proj_weight``, fused
``clip_hf``       Hugging Face CLIP: ``self_attn.q_proj`` with ``out_proj``
``timm``          timm's ViT: ``blocks.N.attn.qkv``, fused
``llama``         Llama, Mistral, Qwen2, ...: ``self_attn.q_proj`` with ``o_proj``, grouped queries, rotary positions
``llama_rotary``  the same, with query and key as a pair, for `refgeo.RotaryMetric`
``llama_nope``    the same names in a network without rotary positions
``lora``          PEFT adapters: every ``lora_A``, ``lora_B``
================  =================================================================================================

Rotary positions. Query and key at positions s and t meet as :math:`q^\top R_{t-s} k`, with R a rotation in each of h/2
planes of different frequency. A change of weights (A⁻¹, Aᵀ) leaves that alone only if A commutes with all R: of GL(h)
there remain the scaled rotations of each plane, :math:`(\mathbb{C}^*)^{h/2}`. Quotienting by GL(h) would identify
networks that are different functions. With ``llama`` query and key stay arrays, with the elementwise metric by default:
it does not notice the scalings, but it does notice the rotations of that smaller group. With ``llama_rotary`` they are
a pair, and `Network.metric` divides by exactly that group. A network that also normalises queries and keys (Qwen3) has
not even that, and ``llama_rotary`` refuses it. Value and output have their GL(h) as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from refgeo.geometry.blocks import names_of
from refgeo.geometry.pair import Pair
from refgeo.networks.attention import OWN, AttentionLayer, Factors, LayoutError, Linear, MissingTensorsError
from refgeo.support.arguments import Array

Heads = int | Mapping[str, int]
"""A number of heads, or one for each pattern of layer names."""
STATISTICS = r".*\brunning_(?:mean|var)"
"""Names of the statistics of batch normalisation."""


@dataclass(frozen=True)
class Separate:
    """Make the layer of an attention module, whose four matrices are modules of their own, from its prefix."""

    query: str
    key: str
    value: str
    out: str
    rotary: bool = False
    paired: bool = True
    rotated: float = 1.0
    interleaved: bool = False

    def __call__(self, prefix: str) -> AttentionLayer:
        """Return the layer."""
        query, key, value = (
            Linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias") for name in (self.query, self.key, self.value)
        )
        return AttentionLayer(
            prefix, query, key, value, Linear(f"{prefix}{self.out}.weight"), self.rotary, self.paired, self.rotated,
            self.interleaved,
        )  # fmt: skip


@dataclass(frozen=True)
class Fused:
    """The same, where query, key and value are thirds of one matrix."""

    weight: str
    bias: str
    out: str
    transposed: bool = False

    def __call__(self, prefix: str) -> AttentionLayer:
        """Return the layer."""
        query, key, value = (
            Linear(prefix + self.weight, prefix + self.bias, self.transposed, part, 3) for part in range(3)
        )
        return AttentionLayer(prefix, query, key, value, Linear(prefix + self.out, transposed=self.transposed))


@dataclass(frozen=True)
class AttentionLayout:
    """A layout whose pairs are those of attention layers.

    Attributes
    ----------
    anchor : pattern
        Of the tensors that give a layer away; its first group is the prefix of the attention module.
    example : str
        Such a name, for messages.
    layer : callable
        From the prefix to where everything is.
    known : pattern
        What else a module may have, beyond its prefix: tensors with no part in the symmetry.
    constants : pattern
        Tensors that are no parameters although they hold floating-point numbers.
    renamed : AttentionLayout, optional
        The same architecture under other names: those of a module, where its files have older ones.
    """

    anchor: str
    example: str
    layer: Callable[[str], AttentionLayer]
    known: str
    constants: str = STATISTICS
    renamed: AttentionLayout | None = None

    def _prefixes(self, names: Iterable[str]) -> list[str]:
        """Return the prefixes of the attention modules."""
        return list(dict.fromkeys(match[1] for match in map(re.compile(self.anchor).match, names) if match))

    def tensor_names(self, names: Mapping[str, object]) -> set[str]:
        """Return the tensors that it would take, were all of them numbers."""
        names_of_layers = {name for prefix in self._prefixes(names) for name in self.layer(prefix).tensor_names(names)}
        return names_of_layers or (set() if self.renamed is None else self.renamed.tensor_names(names))

    def layers(self, tensors: Mapping[str, object]) -> list[AttentionLayer]:
        """Return the attention layers of a checkpoint; complete, and with nothing unknown."""
        prefixes = self._prefixes(tensors)
        if not prefixes and self.renamed is not None:
            return self.renamed.layers(tensors)
        if not prefixes:
            listed = ", ".join(list(tensors)[:3]) or "no floating-point tensors"
            raise LayoutError(f"expected tensors named {self.example}, found none; there are {listed}, ...; {OWN}")
        layers = [self.layer(prefix) for prefix in prefixes]
        missing = [name for layer in layers for name in layer.needed() if name not in tensors]
        for role in ("query", "key", "value"):
            biases = [bias for layer in layers if (bias := getattr(layer, role).bias) is not None]
            absent = [bias for bias in biases if bias not in tensors and bias not in missing]
            missing += absent if len(absent) < len(biases) else []  # all layers have one, or none has
        if missing:
            inside = (name for name in tensors if name.startswith(tuple(prefixes)))
            raise MissingTensorsError(missing, [*inside])
        left_over = []
        for layer in layers:
            used = layer.tensor_names(tensors)
            inside = (name for name in tensors if name.startswith(layer.prefix) and name not in used)
            left_over += [name for name in inside if not re.fullmatch(self.known, name[len(layer.prefix) :])]
        if left_over:
            raise LayoutError(
                f"the layout does not know {len(left_over)} tensors of the attention layers; because of them, the "
                f"loss may have other symmetries than the layout says: {names_of(left_over, 5)}"
            )
        return layers

    def factors(self, tensors: Mapping[str, Array], heads: Heads, key_heads: Heads) -> dict[str, Factors]:
        """Return the factors of every pair, of parameters or of gradients."""
        layers = self.layers(tensors)
        widths = {layer.query.matrix(tensors).shape[1] for layer in layers}
        if isinstance(heads, int) and len(widths) > 1:
            raise LayoutError(
                f"heads: the attention layers have {len(widths)} different widths, {sorted(widths)}; give the heads of "
                'each layer by a pattern that fits its name, such as heads={"text_model.*": 8, "vision_model.*": 12}'
            )
        factors_of_layers: dict[str, Factors] = {}
        for layer in layers:
            factors_of_layers |= layer.factors(tensors, heads_of(layer, heads), heads_of(layer, key_heads))
        return factors_of_layers

    def split(self, tensors: Mapping[str, Array], heads: Heads, key_heads: Heads) -> dict[str, Pair]:
        """Return the pairs."""
        return {name: _pair(name, factors) for name, factors in self.factors(tensors, heads, key_heads).items()}

    def pair_tensors(self, names: Mapping[str, object]) -> set[str]:
        """Return the tensors that the pairs are made of."""
        return {name for layer in self.layers(names) for name in layer.pair_tensors(names)}

    def rotary(self, names: Mapping[str, object]) -> set[str]:
        """Return the pairs behind rotary positions."""
        return {f"{layer.prefix}query_key" for layer in self.layers(names) if layer.rotary and layer.paired}

    def redundant_biases(self, names: Mapping[str, object]) -> set[str]:
        """Return the pairs with redundant biases: of keys, or of values and outputs that have one each."""
        pairs = set()
        for layer in self.layers(names):
            if len(layer.key.names(names)) == 2 and not (layer.rotary and layer.rotated == 1.0):
                pairs.add(f"{layer.prefix}query_key{'_rest' if layer.rotary else ''}")
            if len(layer.value.names(names)) == 2 and layer.out.weight.removesuffix("weight") + "bias" in names:
                pairs.add(f"{layer.prefix}value_out")
        return pairs

    def join(self, pairs: Mapping[str, Pair], like: Mapping[str, tuple[int, ...]], heads: Heads) -> dict[str, Array]:
        """Return the tensors that `split` took, from the pairs; `like` has the shape of every tensor."""
        tensors: dict[str, Array] = {}
        for layer in self.layers(like):
            layer.store(pairs, tensors, like, heads_of(layer, heads))
        return tensors


_OF_ADAPTERS = re.compile(r"(^|\.)lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.|$)")
"""What adapters of PEFT have; B A is their product, so nothing stands between the two."""


@dataclass(frozen=True)
class LowRankLayout:
    """PEFT's adapters: ΔW = B A with ``lora_B`` (out, r) and ``lora_A`` (r, in); G = B, H = Aᵀ (App. A.3)."""

    constants: str = STATISTICS

    def tensor_names(self, names: Mapping[str, object]) -> set[str]:
        """Return the tensors that it would take, were all of them numbers."""
        return {*filter(_OF_ADAPTERS.search, names)}

    def _adapters(self, names: Mapping[str, object]) -> dict[str, tuple[str, str]]:
        """Return the names of B and A of each block."""
        adapters = {}
        for name in names:
            match = re.match(r"^(.*\.)?lora_A(\..+)?\.weight$", name)
            if match:
                start, adapter = match[1] or "", match[2] or ""
                adapters[f"{start}lora{adapter}"] = (f"{start}lora_B{adapter}.weight", name)
        missing = [B for B, _ in adapters.values() if B not in names]
        others = [name for name in names if re.search(r"(^|\.)lora_B(\..+)?\.weight$", name)]
        missing += [A for B in others if (A := B.replace("lora_B", "lora_A")) not in names]
        if missing:
            raise MissingTensorsError(missing)
        if not adapters:
            listed = ", ".join(list(names)[:3]) or "no floating-point tensors"
            raise LayoutError(f"expected tensors named ...q_proj.lora_A.weight, found none; the file has {listed}, ...")
        return adapters

    def factors(self, tensors: Mapping[str, Array], heads: Heads, key_heads: Heads) -> dict[str, Factors]:
        """Return B and Aᵀ of every adapter, of parameters or of gradients."""
        adapters = self._adapters(tensors)
        strange = [name for name in tensors if "lora" in name.lower() and not _OF_ADAPTERS.search(name)]
        for block, (B, A) in adapters.items():
            module, base = block[: block.rindex("lora")], (np.shape(tensors[B])[:1], np.shape(tensors[A])[1:])
            strange += [
                name for name, tensor in tensors.items()
                if module and name.startswith(module) and name not in strange and not _OF_ADAPTERS.search(name)
                and np.shape(tensor) not in ((), base[0], base[0] + base[1])
            ]  # fmt: skip
        if strange:
            raise LayoutError(
                f"the layout does not know {len(strange)} tensors of the adapters, which may stand between B and A: "
                f"{names_of(strange, 5)}"
            )
        for name in (name for pair in adapters.values() for name in pair):
            if np.ndim(tensors[name]) != 2:
                raise LayoutError(
                    f"{name}: expected a matrix, got the shape {np.shape(tensors[name])}; convolutions are not read"
                )
        return {block: (tensors[B], tensors[A].T) for block, (B, A) in adapters.items()}

    def split(self, tensors: Mapping[str, Array], heads: Heads, key_heads: Heads) -> dict[str, Pair]:
        """Return the pairs."""
        return {name: _pair(name, factors) for name, factors in self.factors(tensors, heads, key_heads).items()}

    def pair_tensors(self, names: Mapping[str, object]) -> set[str]:
        """Return the tensors that the pairs are made of."""
        return {name for pair in self._adapters(names).values() for name in pair}

    def rotary(self, names: Mapping[str, object]) -> set[str]:
        """Return an empty set: adapters have no rotary positions and no redundant biases."""
        return set()

    redundant_biases = rotary

    def join(self, pairs: Mapping[str, Pair], like: Mapping[str, tuple[int, ...]], heads: Heads) -> dict[str, Array]:
        """Return the tensors of the adapters, from the pairs."""
        tensors = {}
        for block, (B, A) in self._adapters(like).items():
            tensors[B], tensors[A] = pairs[block].G, np.ascontiguousarray(pairs[block].H.T)
        return tensors


Layout = AttentionLayout | LowRankLayout


def own_layout(
    attention: str,
    query: str,
    key: str,
    value: str,
    out: str,
    *,
    rotary: bool = False,
    rotated: float = 1.0,
    interleaved: bool = False,
    others: str = "",
) -> AttentionLayout:
    """Return a layout of your own, for `read`: where the attention modules are, and what they call their four matrices.

    You say with it that scores depend on queries and keys through their dot products alone, and that every head's
    values go through the output matrix alone; `refgeo.symmetry.verify` measures whether it is so.

    Parameters
    ----------
    attention : str
        The name of the attention modules, with ``*`` for the number of the layer.
    query, key, value, out : str
        The modules in it whose ``weight`` is (out, in) and whose ``bias``, if there is one, belongs to it.
    rotary : bool
        Whether queries and keys are rotated by their positions, in the planes (i, i + h/2) of all h columns.
    rotated : float
        The share of columns that are rotated, the first ones of every head (``partial_rotary_factor``); the others are
        a pair of their own, ``query_key_rest``.
    interleaved : bool
        Whether the planes are (2i, 2i + 1) instead.
    others : regular expression
        What else an attention module may have, beyond its name, that has no part in the symmetry.

    Returns
    -------
    AttentionLayout

    Raises
    ------
    ValueError
        Positions are said to rotate in some way, and not to rotate.

    Examples
    --------
    >>> distilbert = own_layout("transformer.layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin")
    >>> parts = {"q_lin": 4, "k_lin": 4, "v_lin": 4, "out_lin": 4}
    >>> state = {f"transformer.layer.0.attention.{name}.weight": np.eye(n) for name, n in parts.items()}
    >>> list(distilbert.split(state, heads=2, key_heads=2))
    ['transformer.layer.0.attention.query_key', 'transformer.layer.0.attention.value_out']
    """
    if (interleaved or rotated != 1.0) and not rotary:
        raise ValueError("rotary: expected True together with rotated or interleaved, which say what positions rotate")
    inside, matrices = r"[^.]+".join(map(re.escape, attention.rstrip(".").split("*"))), (query, key, value, out)
    return _separate(
        rf"(?:.*\.)?{inside}\.", attention.rstrip("."), *matrices, others=others, rotary=rotary, rotated=rotated,
        interleaved=interleaved,
    )  # fmt: skip


def _separate(
    prefix: str, example: str, query: str, key: str, value: str, out: str, *, others: str = "",
    constants: str = STATISTICS, renamed: AttentionLayout | None = None, **positions: Any,
) -> AttentionLayout:  # fmt: skip
    """Return a layout of four matrices in attention modules, whose names are a pattern; and what else is in these."""
    names = "|".join(map(re.escape, (query, key, value, out)))
    return AttentionLayout(
        rf"^({prefix})(?:{names})\.weight$",
        f"{example}.{query}.weight",
        Separate(query, key, value, out, **positions),
        rf"{re.escape(out)}\.bias" + (f"|{others}" if others else ""),
        constants,
        renamed,
    )


def heads_of(layer: AttentionLayer, heads: Heads) -> int:
    """Return the heads of one layer.

    Examples
    --------
    >>> heads_of(LAYOUTS["bert"].layer("text.encoder.layer.0.attention."), {"text.*": 8, "image.*": 12})
    8
    """
    if isinstance(heads, int):
        return heads
    counts = [count for pattern, count in heads.items() if fnmatchcase(layer.prefix, pattern)]
    if not counts:
        raise LayoutError(f"heads: no pattern of {', '.join(heads)} fits {layer.prefix.rstrip('.')}")
    return counts[0]


def _pair(name: str, factors: Factors) -> Pair:
    try:
        return Pair(*factors)
    except ValueError as error:
        raise LayoutError(f"{name}: {error}") from error


_PROJECTIONS = "q_proj", "k_proj", "v_proj"


def _llama(others: str, **positions: Any) -> AttentionLayout:
    return _separate(
        r".*\bself_attn\.", "model.layers.N.self_attn", *_PROJECTIONS, "o_proj", others=others,
        constants=rf".*\brotary_emb\.inv_freq|{STATISTICS}", **positions,
    )  # fmt: skip


LAYOUTS: dict[str, AttentionLayout | LowRankLayout] = {
    "bert": _separate(
        r".*encoder\.layer\.\d+\.attention\.", "encoder.layer.N.attention",
        "self.query", "self.key", "self.value", "output.dense",
        others=r"output\.LayerNorm\.(weight|bias|gamma|beta)",
    ),
    "vit": _separate(
        r".*encoder\.layer\.\d+\.attention\.", "encoder.layer.N.attention",
        "attention.query", "attention.key", "attention.value", "output.dense",
        renamed=_separate(  # by transformers 5
            r".*\blayers?\.\d+\.attention\.", "layers.N.attention", *_PROJECTIONS, "o_proj",
        ),
    ),
    "gpt2": AttentionLayout(
        r"^((?:.*\.)?h\.\d+\.attn\.)c_(?:attn|proj)\.weight$",
        "h.N.attn.c_attn.weight",
        Fused("c_attn.weight", "c_attn.bias", "c_proj.weight", transposed=True),
        r"c_proj\.bias",
        constants=rf".*\battn\.(masked_)?bias|{STATISTICS}",  # the causal mask, in older files as numbers
    ),
    "clip": AttentionLayout(
        r"^((?:(?:.*\b)?(?:self_)?attn\.)?)(?:in_proj_weight|out_proj\.weight)$",
        "transformer.resblocks.N.attn.in_proj_weight",
        Fused("in_proj_weight", "in_proj_bias", "out_proj.weight"),
        r"out_proj\.bias",
    ),
    "clip_hf": _separate(r".*\bself_attn\.", "encoder.layers.N.self_attn", *_PROJECTIONS, "out_proj"),
    "timm": AttentionLayout(
        r"^(.*\battn\.)(?:qkv|proj)\.weight$",
        "blocks.N.attn.qkv.weight",
        Fused("qkv.weight", "qkv.bias", "proj.weight"),
        r"proj\.bias",
    ),
    # a network that normalises queries and keys has no group left that a pair could be divided by
    "llama": _llama(r"rotary_emb\.inv_freq|[qk]_norm\.weight", rotary=True, paired=False),
    "llama_rotary": _llama(r"rotary_emb\.inv_freq", rotary=True),
    "llama_nope": _llama(""),
    "lora": LowRankLayout(),
}  # fmt: skip
"""Layout name to its description."""
