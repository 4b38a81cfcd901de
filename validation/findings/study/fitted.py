"""Models that fit equally well: each is trained until its loss on all training examples is at most the target.

A population is a full factorial of step size, batch size, weight decay and number of training examples, three seeds
each; all its models are tested on the same examples. *digits*: 72 vision transformers, tested on 1,197 images.
*sentences*: all-MiniLM-L6-v2 with the last two of its six layers fine-tuned, 36 times; it says whether a docstring is
that of a function, or of a function of another module; tested on 1,200 pairs from modules of their own.

Measured on two disjoint batches of training examples: *matched*, −ρ for the ρ at which a measure increases the loss by
0.1, so that units of ρ do not matter; and *fixed*, the increase at one ρ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from refgeo.networks.modules import torch_value_and_grad
from validation.findings.study import digits, sentences
from validation.findings.study.measures import MEASURES, Effort, Measured, Model
from validation.findings.study.runner import Row, Task
from validation.findings.study.training import cross_entropy, in_parts, network_of, outcomes

MAX_STEPS, EVERY = 20_000, 50
"""Of training; and after how many steps the loss is looked at."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    step_size: float
    batch_size: int
    weight_decay: float
    train_size: int
    seed: int

    @property
    def unit(self) -> str:
        """Its name."""
        return "-".join(f"{value:g}" for value in vars(self).values())


@dataclass(frozen=True)
class Source:
    """What a population is made of.

    Attributes
    ----------
    choices : tuple of tuple
        Of each number of a recipe.
    examples : callable
        Of a recipe; training and test examples, each a tuple of tensors, the labels last.
    module : callable
        A model to train.
    groups : callable
        The optimiser's groups, of a module and a step size.
    layout, heads, frozen
        How its weights are read, see `refgeo.networks.read`, and which do not move.
    batch : int
        Examples of a batch on which sharpness is measured.
    effort : Effort
    precision : str
        In which its loss is computed.
    """

    choices: tuple[tuple[Any, ...], ...]
    examples: Callable[[Recipe], tuple[tuple[Any, ...], tuple[Any, ...]]]
    module: Callable[[], Any]
    groups: Callable[[Any, float], Any]
    layout: str
    heads: int
    frozen: tuple[str, ...]
    batch: int
    effort: Effort
    precision: str = "float64"


def digits_of(recipe: Recipe) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Training images of a pool of 600, and all images outside this pool."""
    import torch

    x, y = map(torch.from_numpy, digits.everything())
    order = np.random.default_rng(0).permutation(len(x))
    chosen = np.random.default_rng([recipe.seed, recipe.train_size]).permutation(order[:600])[: recipe.train_size]
    return (x[chosen], y[chosen]), (x[order[600:]], y[order[600:]])


FIRST = 4
"""Layers of the encoder that stay as they are."""


def sentences_of(recipe: Recipe) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Pairs of a function and a docstring, its own or that of another module, as they leave the first layers."""
    examples = sentences.training_examples(recipe.train_size, recipe.seed)
    return sentences.hidden_states(examples, FIRST), _tested_sentences()


@lru_cache(maxsize=1)
def _tested_sentences() -> tuple[Any, ...]:
    return sentences.hidden_states(sentences.held_out_examples(1200), FIRST)


SOURCES = {
    "digits": Source(
        ((1e-3, 3e-3), (16, 64), (1e-4, 0.2), (150, 300, 600), (0, 1, 2)),
        digits_of, digits.vision_transformer, lambda module, size: [{"params": module.parameters(), "lr": size}],
        "clip", digits.HEADS, (), 64, Effort(n_samples=20),
    ),
    "sentences": Source(
        ((3e-5, 1e-4), (8, 32), (0.01,), (150, 300, 600), (0, 1, 2)),
        sentences_of, lambda: sentences.classifier(2, FIRST), sentences.groups,
        "bert", 12, sentences.FROZEN, 8, Effort(n_iter=10, n_samples=10), "float32",
    ),
}  # fmt: skip


class Population:
    """The models of one source.

    Parameters
    ----------
    source : str
    quick : bool
        Two seeds and two numbers of examples, all else as it trains fastest, for a quick look.
    target : float
        The loss at which training ends.
    increase : float
        Of the loss, at which measures are matched.
    """

    def __init__(self, source: str, quick: bool = False, target: float = 0.01, increase: float = 0.1) -> None:
        self.name, self.source, self.quick = source, SOURCES[source], quick
        self.target, self.increase = target, increase

    def recipes(self) -> Iterator[Recipe]:
        """Of all models."""
        sizes, batches, decays, examples, seeds = self.source.choices
        if self.quick:
            sizes, batches, decays, examples, seeds = sizes[-1:], batches[-1:], decays[:1], examples[:2], seeds[:2]
        for chosen in itertools.product(sizes, batches, decays, examples, seeds):
            yield Recipe(*chosen)

    def units(self) -> list[str]:
        """A model each."""
        return [recipe.unit for recipe in self.recipes()]

    def rows(self, task: Task) -> list[Row]:
        """Train a model and measure it."""
        recipe = next(one for one in self.recipes() if one.unit == task.unit)
        return list(matched(self.model(recipe), task, self.increase))

    def model(self, recipe: Recipe) -> Model:
        """Train it."""
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(recipe.seed)
        of = self.source
        examples, tested = of.examples(recipe)
        module = of.module().eval()
        steps = fit(module, examples, of.groups(module, recipe.step_size), recipe, self.target)
        if of.precision == "float64":
            module = module.double()
            examples, tested = _double(examples), _double(tested)
        network = network_of(module, of.layout, of.heads)
        evaluate = torch_value_and_grad(module, network, cross_entropy, of.frozen, dtype=of.precision)
        scores, (scored, labels) = _scored(module, examples), (_scored(module, tested), tested[-1])
        wrong = (scored.argmax(1) != labels).double()
        trained = [parameter.detach().double() for parameter in module.parameters() if parameter.requires_grad]
        columns = {
            **vars(recipe), **outcomes([("train", scores, examples[-1]), ("test", scored, labels)]), "steps": steps,
            "weight norm": float(sum((parameter**2).sum() for parameter in trained) ** 0.5),
            "test error, odd": float(wrong[1::2].mean()), "test error, even": float(wrong[::2].mean()),
        }  # fmt: skip
        columns["trained"] = columns["train loss"] <= self.target
        order = np.random.default_rng([recipe.seed, 5]).permutation(len(examples[-1]))
        parts = order[: of.batch], order[of.batch : 2 * of.batch]
        batches = [tuple(tensor[part] for tensor in examples) for part in parts]
        return Model(dict(network.blocks), lambda blocks, batch: evaluate(blocks, *batch), batches, columns, of.frozen)


def fit(module: Any, examples: tuple[Any, ...], groups: Any, recipe: Recipe, target: float) -> int:
    """Train by AdamW until the target is reached; the number of steps."""
    import torch

    optimizer = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    for step in range(1, MAX_STEPS + 1):
        part = torch.randint(len(examples[-1]), (recipe.batch_size,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(module, *(tensor[part] for tensor in examples)).backward()
        optimizer.step()
        if step % EVERY == 0:
            loss = torch.nn.functional.cross_entropy(_scored(module, examples), examples[-1])
            if loss <= target:
                return step
    return MAX_STEPS


def _double(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors)


def _scored(module: Any, examples: tuple[Any, ...]) -> Any:
    return in_parts(module, examples[:-1], 100)


def matched(model: Model, task: Task, increase: float) -> Iterator[Row]:
    """Of every measure and batch, a row for the fixed ρ and one for the ρ of the increase."""
    (fixed,) = task.radii
    for name, batch in itertools.product(task.measures, range(len(model.batches))):
        alone = Measured(replace(model, batches=model.batches[batch : batch + 1]), task.effort)

        @lru_cache
        def row(rho: float, name: str = name, alone: Measured = alone) -> Row:
            return alone.rows(MEASURES[name], [rho])[0]

        about = {"model": task.unit, **model.columns, "batch": batch, "note": row(fixed)["note"]}
        radius = matched_radius(lambda rho, row=row: row(rho)["value"], increase, fixed)
        yield {**about, "measure": f"{name}, fixed", "rho": fixed, "value": row(fixed)["value"]}
        yield {**about, "measure": f"{name}, matched", "rho": math.nan, "value": -radius}


def matched_radius(value: Callable[[float], float], increase: float, start: float) -> float:
    """The ρ at which the value is the increase: from the start, ρ is doubled or halved until the increase lies between
    two of them, then interpolated in logarithms. NaN where ten times do not suffice.

    Examples
    --------
    >>> round(matched_radius(lambda rho: 2.0 * rho**2, 0.1, 0.03), 6) == round((0.1 / 2.0) ** 0.5, 6)
    True
    """
    factor = 2.0 if value(start) < increase else 0.5
    radii = [start * factor**k for k in range(11)]
    for pair in itertools.pairwise(radii):
        low, high = sorted(pair)
        if value(low) < increase <= value(high):
            if value(low) <= 0.0:
                break
            return low * 2.0 ** (math.log(increase / value(low)) / math.log(value(high) / value(low)))
    return math.nan
