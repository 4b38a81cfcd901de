"""The configuration beside a checkpoint: the heads that it tells of, and what of the tensors it contradicts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from refgeo.geometry.blocks import names_of
from refgeo.networks.attention import AttentionLayer, LayoutError, Tensors
from refgeo.networks.layouts import Heads, heads_of

_WIDTHS = "true_hidden_size", "hidden_size", "n_embd", "d_model", "dim"
_DEPTHS = "num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers"
_HEADS = "num_attention_heads", "n_head", "attention_heads"
_TEXT_TOWERS = "text", "language", "llm", "decoder"
"""Names of the tower of text, whose layers are often named without it."""


@dataclass(frozen=True)
class Configuration:
    """What a file of JSON says of a network, nothing if it is not there.

    Attributes
    ----------
    file : Path
    content : mapping

    Examples
    --------
    >>> Configuration.beside(Path("nowhere/model.safetensors")).heads is None
    True
    >>> Configuration(Path("config.json"), {"text_config": {"n_head": 8}, "vision_config": {"n_head": 12}}).heads
    {'*vision*': 12, '*': 8}
    >>> Configuration(Path("config.json"), {"num_attention_heads": [2, 4]}).heads
    {'*.0.*': 2, '*.1.*': 4}
    """

    file: Path
    content: Mapping[str, Any]

    @classmethod
    def beside(cls, path: Path, name: str = "config.json") -> Configuration:
        """Return the configuration beside a checkpoint, or in a folder; an empty one if there is no file."""
        file = path / name if path.is_dir() else path.with_name(name)
        if not file.is_file():
            return cls(file, {})
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise LayoutError(f"{file}: expected JSON, got {error}; correct or remove this file") from error
        if not isinstance(content, dict):
            kind = type(content).__name__
            raise LayoutError(f"{file}: expected a JSON object, got {kind}; correct or remove this file")
        return cls(file, content)

    @property
    def heads(self) -> Heads | None:
        """The number of attention heads, or one for each pattern of layers' names."""
        numbers = self._numbers(_HEADS)
        encoder, whole = numbers.get("*encoder.*"), numbers.get("*")
        if encoder is not None and whole not in (None, encoder):
            raise LayoutError(
                f"{self.file}: num_attention_heads = {whole} contradicts encoder_attention_heads = {encoder}; correct "
                "this file"
            )
        return numbers.get("*") if numbers.keys() <= {"*"} else numbers

    @property
    def key_value_heads(self) -> Heads | None:
        """The same of keys and values, where several query heads share one."""
        numbers = self._numbers(("num_key_value_heads",))
        return numbers.get("*") if numbers.keys() <= {"*"} else numbers

    @property
    def _parts(self) -> dict[str, Mapping[str, Any]]:
        """What it says of towers, or of encoder and decoder where they differ, by patterns of layers' names.

        The configuration of a tower is nested. That of the text is of all layers whose names show no other tower.
        """
        towers: dict[str, Mapping[str, Any]] = {}
        nested = [*self.content.items()]
        for name, part in nested:
            if name.endswith("_config") and isinstance(part, Mapping):
                nested += part.items()
                if any(part.get(heads) is not None for heads in _HEADS):
                    towers.setdefault(name.removesuffix("_config"), part)
        text = next((towers.pop(name) for name in _TEXT_TOWERS if name in towers), {})
        if towers or text:
            return {**{f"*{tower}*": part for tower, part in towers.items()}, "*": {**self.content, **text}}
        sides = {}
        for side in ("decoder", "encoder"):
            start = f"{side}_"
            own = {name.removeprefix(start): x for name, x in self.content.items() if name.startswith(start)}
            if any(own.get(name) is not None for name in _HEADS):
                sides[f"*{side}.*"] = {name: x for name, x in self.content.items() if name == "d_model"} | own
        return {**sides, "*": self.content}

    def _numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Return the first of these that each part has, a whole number, or a list of them for the layers."""
        by_pattern = {}
        for pattern, part in self._parts.items():
            name, value = next(((name, part[name]) for name in names if part.get(name) is not None), ("", None))
            if value is None:
                continue
            numbers = {pattern: value}
            if isinstance(value, list) and pattern == "*":
                numbers = {f"*.{i}.*": number for i, number in enumerate(value)}
            for of_layers, number in numbers.items():
                is_whole = (
                    isinstance(number, (int, float)) and not isinstance(number, bool) and float(number).is_integer()
                )
                if not is_whole or number < 1:
                    raise LayoutError(
                        f"{self.file}: expected a whole number >= 1 for {name}, got {value!r}; correct this file, or "
                        f'give {self._argument[name in _HEADS]}, also by patterns such as {{"*layers.0.*": 2, "*": 4}}'
                    )
                by_pattern[of_layers] = int(number)
        return by_pattern

    _argument = ("key_value_heads", "heads")

    def refuse_other_tensors(self, layers: Sequence[AttentionLayer], tensors: Tensors, heads: Heads) -> None:
        """Raise an error where the tensors are not those that it tells of: heads that are gone or of another width,
        layers that are elsewhere.
        """
        if self.content.get("pruned_heads") and isinstance(heads, int):
            raise LayoutError(
                f"heads: {self.file} has pruned_heads = {self.content['pruned_heads']!r}; give the heads that are left "
                'of every layer, by patterns: {"*layer.0.*": 10, "*": 12}'
            )
        of_patterns: dict[str, list[AttentionLayer]] = {}
        for layer in layers:
            pattern = next((pattern for pattern in self._parts if fnmatchcase(layer.prefix, pattern)), None)
            if pattern is not None:
                of_patterns.setdefault(pattern, []).append(layer)
        for pattern, those in of_patterns.items():
            self._refuse_widths(self._parts[pattern], those, tensors, heads)
            self._refuse_depth(self._parts[pattern], those, tensors)

    def _refuse_widths(
        self, part: Mapping[str, Any], layers: Iterable[AttentionLayer], tensors: Tensors, heads: Heads
    ) -> None:
        width, count, each = _first(part, _WIDTHS), _first(part, _HEADS), _first(part, ("head_dim",))
        if each is None and width is not None and count is not None:
            each = width // count
        for layer in layers:
            here, has = heads_of(layer, heads), layer.query.matrix(tensors).shape[1]
            if each is not None and has != here * each:
                raise LayoutError(
                    f"heads: {layer.prefix.rstrip('.')} has queries of width {has}, which are not {here} heads of the "
                    f"width {each} that {self.file} tells of; have heads been removed? Give the number that is left, "
                    'also by patterns such as {"*layers.0.*": 2, "*": 4}, or correct the file'
                )

    def _refuse_depth(self, part: Mapping[str, Any], layers: Sequence[AttentionLayer], tensors: Tensors) -> None:
        """Raise an error if layers are missing; those of another kind, as in a hybrid, have tensors, too."""
        depth = _first(part, _DEPTHS)
        if any(isinstance(x, list) and ("layer" in name or "block" in name) for name, x in part.items()):
            return  # a list says of which kind the layers are, and some may have no tensors
        numbered = [match for layer in layers if (match := re.match(r"(.*?)(\d+)(\D*)$", layer.prefix))]
        numbers = [int(match[2]) for match in numbered]
        stems = {match[1] for match in numbered}
        others = {int(n) for stem in stems for name in tensors for n in re.findall(rf"^{re.escape(stem)}(\d+)\.", name)}
        if depth is not None and len(numbers) == len(set(numbers)) and {*numbers, *others} != set(range(depth)):
            raise LayoutError(
                f"checkpoint: there are {len(layers)} of {depth} layers that {self.file} tells of, with the numbers "
                f"{names_of(sorted(numbers), 8)}; give the whole network, correct the file, or read a state dict"
            )

    def refuse_packed(self) -> None:
        """Raise an error for adapters of PEFT's ``target_parameters``: their group is GL(r)ᴱ for E experts of rank r,
        where one pair of rank E·r would claim GL(E·r).
        """
        if self.content.get("target_parameters"):
            raise LayoutError(
                f"layout lora: {self.file} has target_parameters = {self.content['target_parameters']!r}; PEFT packs "
                "the factors of several experts into one lora_A and one lora_B, of which each expert uses a part, so "
                "they are no pair. Take them apart, and read a state dict with a lora_A and a lora_B for each expert"
            )


def _first(part: Mapping[str, Any], names: Iterable[str]) -> int | None:
    return next((x for name in names if isinstance(x := part.get(name), int) and x), None)
