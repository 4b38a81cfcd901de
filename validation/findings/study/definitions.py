"""Text encoders that are fine-tuned by one recipe with other seeds, as McCoy et al.'s (2020) BERTs on MNLI.

Of two nouns of WordNet with their definitions: *is the second the hypernym of the first*, as canine is of dog? So it
is in half of the pairs. In the others, it is the hypernym of a cousin (whose hypernym has the same hypernym), or of
any other noun. So all second nouns are drawn as hypernyms, and tell nothing alone. First nouns are for training, for
the test, or for the challenge; hypernyms are shared. all-MiniLM-L6-v2 gets a new classifier, and the last of its six
layers moves. Models differ in the seed of the classifier and of the draw of the examples: each sees about 95% of them.
The *challenge* are pairs on which the overlap of words misleads: of negative pairs those whose definitions share most
words, of positive pairs those that share fewest.

The nouns are those of WordNet's ``data.noun``, as the Debian package wordnet-base or any other copy has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refgeo.networks.modules import torch_value_and_grad
from validation.findings.study import encoder
from validation.findings.study.measures import Model
from validation.findings.study.training import FineTuned, cross_entropy, in_parts, network_of, outcomes, train_or_load

FIRST = 5
"""Layers that do not move: what they make of a text is computed once."""
LENGTH = 16
"""Tokens of a noun with its definition; longer ones are cut."""
TRAIN, TEST = 4096, 4000
KINDS, SHARES = ("its own", "a cousin's", "another's"), (1 / 2, 1 / 4, 1 / 4)
"""Whose hypernym the second noun is, and how often."""
PARTS = ("train", "test", "challenge")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: all alike but for the seed."""

    draw: int
    seed: int
    step_size: float = 1e-4
    batch_size: int = 32
    weight_decay: float = 0.01
    steps: int = 384


@dataclass(kw_only=True)
class Population(FineTuned):
    """As `FineTuned`; and for a quick look, ``steps`` of training, in the place of the recipe's."""

    kind = "definitions"
    count: int = 35
    batch_size: int = 128
    train: int = TRAIN
    steps: int | None = None

    def model(self, unit: str, cache: Path) -> Model:
        """Fine-tune it, or load it."""
        import torch

        torch.set_num_threads(1)
        recipe = Recipe(self.draw, int(unit))
        recipe = recipe if self.steps is None else replace(recipe, steps=self.steps)
        sets = {part: self._examples(part) for part in PARTS}
        torch.manual_seed(1000 * recipe.draw + recipe.seed)
        module = encoder.classifier(2, FIRST).to(self.device)
        made_by = recipe, FIRST, self.train
        train_or_load(module, cache, unit, made_by, lambda net: fine_tune(net, sets["train"], recipe))
        module.eval()
        network = network_of(module, "bert", 12)
        evaluate = torch_value_and_grad(module, network, cross_entropy, encoder.FROZEN, device=self.device)
        scores = [(part, in_parts(module, of[:-1], 100), of[-1]) for part, of in sets.items()]
        size = self.batch_size
        return Model(
            blocks=dict(network.blocks),
            value_and_grad=lambda blocks, batch: evaluate(blocks, *batch),
            batches=[tuple(item[k * size : (k + 1) * size] for item in sets["train"]) for k in range(self.batches)],
            columns=vars(recipe) | outcomes(scores),
            frozen=encoder.FROZEN,
            weights=("head.weight",),
            verify=False,  # `prepare` has
        )

    def checkpoint(self, cache: Path, dtype: Any = np.float32) -> Model:
        """The encoder before fine-tuning: which hypernym of a batch belongs to a noun? It was trained for the like."""
        import torch

        torch.manual_seed(0)
        module = encoder.classifier(2, FIRST).eval().to(self.device)
        network = network_of(module, "bert", 12)

        def loss(call: Any, *inputs: Any) -> Any:
            return cross_entropy(lambda *x: call(*x, similar=True), *inputs)

        evaluate = torch_value_and_grad(module, network, loss, encoder.FROZEN, dtype=dtype, device=self.device)
        *inputs, labels = self._examples("train")
        above = torch.nonzero(labels)[:, 0]
        batches = []
        for k in range(self.batches):
            chosen = above[(k * self.batch_size + torch.arange(self.batch_size, device=self.device)) % len(above)]
            parts = [item[chosen] for item in inputs]
            numbers = [
                item.to(getattr(torch, np.dtype(dtype).name)) if item.is_floating_point() else item for item in parts
            ]
            batches.append((*numbers, torch.arange(len(chosen), device=self.device)))
        value_and_grad = lambda blocks, batch: evaluate(blocks, *batch)  # noqa: E731
        return Model(dict(network.blocks), value_and_grad, batches, {}, encoder.FROZEN, verify=False)

    def _examples(self, part: str) -> tuple[Any, ...]:
        count = self.train if part == "train" else min(TEST, self.train)
        return make_hidden_examples(self.data, part, count, self.device)


def fine_tune(module: Any, examples: tuple[Any, ...], recipe: Recipe) -> None:
    """By AdamW, warmed up and falling linearly, without dropout."""
    import torch

    module.eval()
    optimizer = torch.optim.AdamW(encoder.groups(module, recipe.step_size), weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * recipe.steps), 1.0 - step / recipe.steps)
    )
    generator = torch.Generator().manual_seed(1000 * recipe.draw + recipe.seed)
    for _ in range(recipe.steps):
        part = torch.randint(len(examples[-1]), (recipe.batch_size,), generator=generator).to(examples[-1].device)
        optimizer.zero_grad()
        cross_entropy(module, *(tensor[part] for tensor in examples)).backward()
        optimizer.step()
        schedule.step()


# Nouns ----------------------------------------------------------------------------------------------------------------


class Noun(NamedTuple):
    """A group of nouns with one meaning.

    Attributes
    ----------
    text : str
        Its first noun and its definition.
    above : tuple of str
        Its hypernyms.
    """

    text: str
    above: tuple[str, ...]


@lru_cache(maxsize=1)
def nouns(folder: str | Path) -> dict[str, Noun]:
    """By their place in WordNet's file."""
    place = Path(folder, "data.noun")
    if not place.is_file():
        raise SystemExit(
            f"the nouns: expected WordNet's data.noun in {folder}, as the Debian package wordnet-base has it"
        )
    result = {}
    for line in place.read_text(encoding="utf-8").splitlines():
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        if line.startswith("  ") or len(fields) < 6:
            continue  # of the licence
        pointers = fields[5 + 2 * int(fields[3], 16) :]
        above = [pointers[k + 1] for k in range(0, len(pointers) - 3, 4) if pointers[k] == "@"]
        definition = gloss.split(";")[0].split('"')[0].strip()
        result[fields[0]] = Noun(f"{fields[4].replace('_', ' ')}: {definition}", tuple(above))
    return result


class Families(NamedTuple):
    """Nouns with a hypernym, those of each part, and those below each noun."""

    of: Mapping[str, Noun]
    parts: Mapping[str, Sequence[str]]
    below: Mapping[str, Sequence[str]]

    def above(self, name: str) -> str:
        """Return the first hypernym of a noun, or ""."""
        return next(iter(self.of[name].above), "")

    def cousin(self, name: str, chosen: Collection[str], rng: np.random.Generator) -> str:
        """One of these nouns whose hypernym is a sibling of this noun's hypernym, or ""."""
        grandparent = self.above(self.above(name))
        aunts = [item for item in self.below.get(grandparent, ()) if item not in self.of[name].above]
        cousins = [
            item for aunt in aunts for item in self.below.get(aunt, ()) if item in chosen and self.above(item) == aunt
        ]
        return cousins[rng.integers(len(cousins))] if cousins else ""

    def share(self, a: str, b: str) -> float:
        """Return the share of the words of two definitions that are in both."""
        item, second = (set(re.findall(r"[a-z]{4,}", self.of[name].text.lower())) for name in (a, b))
        return len(item & second) / max(1, len(item | second))


@lru_cache(maxsize=1)
def families(folder: str | Path) -> Families:
    """Of the nouns of a folder: three fifths for training, one for the test, one for the challenge."""
    of = nouns(folder)
    below: dict[str, list[str]] = {}
    for name, noun in of.items():
        for above in noun.above:
            below.setdefault(above, []).append(name)
    names = [name for name in sorted(of) if of[name].above]
    order = [names[k] for k in np.random.default_rng(0).permutation(len(names))]
    fifth = len(names) // 5
    split = {"train": order[2 * fifth :], "test": order[:fifth], "challenge": order[fifth : 2 * fifth]}
    return Families(of, split, below)


def pairs(folder: str | Path, part: str, count: int) -> list[tuple[str, str]]:
    """First and second nouns, the same for every model."""
    result, rng = families(folder), np.random.default_rng([7, PARTS.index(part)])
    if part != "challenge":
        return list(islice(_draw(result, part, rng), count))
    drawn = list(islice(_draw(result, part, rng), 10 * count))
    ranked = sorted(dict.fromkeys(drawn), key=lambda pair: result.share(*pair))
    includes = [pair for pair in ranked if pair[1] in result.of[pair[0]].above]
    others = [pair for pair in ranked if pair[1] not in result.of[pair[0]].above]
    return includes[: count // 2] + others[::-1][: count - count // 2]


def _draw(found: Families, part: str, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    names, chosen = found.parts[part], set(found.parts[part])
    while True:
        name, kind = names[rng.integers(len(names))], KINDS[rng.choice(len(KINDS), p=SHARES)]
        whose = name
        if kind == "a cousin's":
            whose = found.cousin(name, chosen, rng)
        elif kind == "another's":
            whose = names[rng.integers(len(names))]
        if whose and (kind == "its own" or found.above(whose) not in found.of[name].above):
            yield name, found.above(whose)


@lru_cache(maxsize=3)
def make_hidden_examples(folder: str | Path, part: str, count: int, device: str) -> tuple[Any, ...]:
    """Return the outputs of the layers that do not move for both texts, with masks, and whether the second includes the
    first.
    """
    import torch

    of, chosen = nouns(folder), pairs(folder, part, count)
    ids, masks = encoder.tokens([of[name].text for both in zip(*chosen, strict=True) for name in both], LENGTH)
    labels = torch.tensor([int(b in of[a].above) for a, b in chosen])
    half = len(chosen)
    examples = ids[:half], masks[:half], ids[half:], masks[half:], labels
    return encoder.replace_tokens(tuple(example.to(device) for example in examples), FIRST)
