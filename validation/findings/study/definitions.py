"""Text encoders that are fine-tuned by one recipe with different seeds, as McCoy et al.'s (2020) BERTs on MNLI.

Of two definitions from WordNet, *does the second word include the first?* (a dog is an animal.) The second is a hypernym of
the first, or it is a hyponym, a sibling or any other noun. all-MiniLM-L6-v2 gets a new last layer; its last layers move.
The *challenge* is a set on which a shallow rule fails: of siblings, the pairs whose definitions share most words, and of
hypernyms, those that share none. Definitions are those of a folder with WordNet's ``data.noun``, as the Debian package
wordnet-base has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refgeo.networks.adapters import torch_value_and_grad
from validation.findings.study import sentences
from validation.findings.study.measures import Model
from validation.findings.study.training import TrainedModels, cross_entropy, in_parts, kept, network_of, outcomes

FIRST = 3
"""Layers that do not move: what they make of a text is computed once."""
TRAIN, TEST = 4096, 2000
KINDS = ("hypernym", "hyponym", "sibling", "other")
SHARES = (0.5, 1 / 6, 1 / 6, 1 / 6)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: all alike but for the seed, of its last layer and of the order of the examples."""

    draw: int
    seed: int
    step_size: float = 1e-4
    batch_size: int = 32
    weight_decay: float = 0.01
    steps: int = 384


class Population(TrainedModels):
    """So many models.

    Parameters
    ----------
    data : str
        The folder with ``data.noun``.
    count : int
    draw : int
        Another one is another population of seeds.
    batches, batch_size : int
        Training examples on which sharpness is measured, the same for all models.
    device : str
        Of the losses.
    steps, train : int, optional
        For a quick look.
    """

    name = "definitions"
    places = ("data", "device")
    """Options on which no number depends."""

    def __init__(
        self,
        data: str,
        count: int = 35,
        draw: int = 0,
        batches: int = 8,
        batch_size: int = 128,
        device: str = "cpu",
        steps: int | None = None,
        train: int = TRAIN,
    ) -> None:
        self.data, self.count, self.draw, self.device = Path(data), count, draw, device
        self.batches, self.batch_size, self.steps, self.train = batches, batch_size, steps, train

    def model(self, unit: str, cache: Path) -> Model:
        """Train it, or load it."""
        import torch

        torch.set_num_threads(1)
        recipe = Recipe(self.draw, int(unit))
        recipe = recipe if self.steps is None else replace(recipe, steps=self.steps)
        train_set, test_set, challenge = (self._hidden(part) for part in ("train", "test", "challenge"))
        torch.manual_seed(1000 * recipe.draw + recipe.seed)
        module = sentences.classifier(answers=2, first=FIRST).to(self.device)
        kept(module, cache, f"{self.draw}-{unit}", (recipe, self.train), lambda net: sentences.train(net, train_set, recipe))
        module.eval()
        network = network_of(module, "bert", 12)
        evaluate = torch_value_and_grad(module, network, cross_entropy, sentences.FROZEN, device=self.device)
        scores = [(name, in_parts(module, of[:-1], 100), of[-1]) for name, of in (("train", train_set), ("test", test_set))]
        errors = outcomes([("challenge", in_parts(module, challenge[:-1], 100), challenge[-1]), *scores])
        size = self.batch_size
        return Model(
            blocks=dict(network.blocks),
            value_and_grad=lambda blocks, batch: evaluate(blocks, *batch),
            batches=[tuple(part[k * size : (k + 1) * size] for part in train_set) for k in range(self.batches)],
            columns=vars(recipe) | errors,
            frozen=sentences.FROZEN,
            weights=("head.weight",),
        )

    def _hidden(self, part: str) -> tuple[Any, ...]:
        found = hidden_examples(self.data, part, self.train if part == "train" else min(TEST, self.train))
        return tuple(tensor.to(self.device) for tensor in found)


# Words ----------------------------------------------------------------------------------------------------------------


class Noun(NamedTuple):
    """A group of nouns with one meaning.

    Attributes
    ----------
    text : str
        Its first word and its definition.
    above : tuple of str
        Its hypernyms.
    """

    text: str
    above: tuple[str, ...]


@lru_cache(maxsize=1)
def nouns(folder: Path) -> dict[str, Noun]:
    """By their place in WordNet's file."""
    place = folder / "data.noun"
    if not place.is_file():
        raise SystemExit(f"--words: expected WordNet's data.noun in {folder}")
    found = {}
    for line in place.read_text(encoding="utf-8").splitlines():
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        if line.startswith("  ") or len(fields) < 6:
            continue
        words = int(fields[3], 16)
        pointers = fields[5 + 2 * words :]
        above = [pointers[k + 1] for k in range(0, len(pointers) - 3, 4) if pointers[k] == "@"]
        definition = gloss.split(';')[0].split('"')[0].strip()
        found[fields[0]] = Noun(f"{fields[4].replace('_', ' ')}: {definition}", tuple(above))
    return found


@lru_cache(maxsize=1)
def _families(folder: Path) -> tuple[list[str], list[str], dict[str, list[str]]]:
    """Nouns with a hypernym, for training and for the test (none is in both), and the nouns below each."""
    of = nouns(folder)
    below: dict[str, list[str]] = {}
    for name, noun in of.items():
        for above in noun.above:
            below.setdefault(above, []).append(name)
    names = [name for name in sorted(of) if of[name].above]
    order = np.random.default_rng(0).permutation(len(names))
    tested = len(names) // 5
    return [names[k] for k in order[tested:]], [names[k] for k in order[:tested]], below


def examples(folder: Path, part: str, count: int) -> tuple[list[str], list[str], Any]:
    """First texts, second texts, and whether the second includes the first; the same for every model."""
    trained, tested, below = _families(folder)
    rng = np.random.default_rng([7, ("train", "test", "challenge").index(part)])
    chosen = trained if part == "train" else tested
    if part == "challenge":
        return _challenge(folder, chosen, below, count, rng)
    of, pairs = nouns(folder), []
    while len(pairs) < count:
        name, kind = chosen[rng.integers(len(chosen))], KINDS[rng.choice(len(KINDS), p=SHARES)]
        other = _other(of, chosen, below, name, kind, rng)
        if other:
            pairs.append((name, other) if kind != "hyponym" else (other, name))
    return _texts(of, pairs, [b in of[a].above for a, b in pairs])


def _other(of: Any, chosen: Sequence[str], below: Any, name: str, kind: str, rng: np.random.Generator) -> str:
    above = of[name].above[0]
    if kind in ("hypernym", "hyponym"):
        return above
    others = [one for one in (below[above] if kind == "sibling" else [chosen[rng.integers(len(chosen))]]) if one != name]
    others = [one for one in others if one not in of[name].above]
    return others[rng.integers(len(others))] if others else ""


def _challenge(
    folder: Path, chosen: Sequence[str], below: Any, count: int, rng: np.random.Generator
) -> tuple[list[str], list[str], Any]:
    """Half siblings whose definitions share most words, half hypernyms that share none."""
    of = nouns(folder)
    drawn = [chosen[k] for k in rng.permutation(len(chosen))[: 20 * count]]
    siblings = [(name, _other(of, chosen, below, name, "sibling", rng)) for name in drawn]
    siblings = sorted((pair for pair in siblings if pair[1]), key=lambda pair: -_shared(of, *pair))[: count // 2]
    above = [(name, of[name].above[0]) for name in drawn]
    above = sorted(above, key=lambda pair: _shared(of, *pair))[: count - len(siblings)]
    pairs = [*siblings, *above]
    return _texts(of, pairs, [False] * len(siblings) + [True] * len(above))


def _shared(of: Any, a: str, b: str) -> float:
    """Of the words of two definitions, the share that is in both."""
    one, other = (set(re.findall(r"[a-z]{4,}", of[name].text.lower())) for name in (a, b))
    return len(one & other) / max(1, len(one | other))


def _texts(of: Any, pairs: Sequence[tuple[str, str]], labels: Sequence[bool]) -> tuple[list[str], list[str], Any]:
    return [of[a].text for a, _ in pairs], [of[b].text for _, b in pairs], np.array(labels, dtype=np.int64)


@lru_cache(maxsize=3)
def hidden_examples(folder: Path, part: str, count: int) -> tuple[Any, ...]:
    """What the layers that do not move make of the examples, with their masks and labels."""
    import torch

    first, second, labels = examples(folder, part, count)
    ids, masks = sentences.tokens(first + second)
    half = len(first)
    tensors = ids[:half], masks[:half], ids[half:], masks[half:], torch.from_numpy(labels)
    return sentences.hidden_states(tensors, FIRST)
