"""What populations of PyTorch models share: recipes drawn from an index, weights that are kept, scores, losses."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import refgeo as rg
from validation.findings.study.measures import Model
from validation.findings.study.runner import Row, Task, measure_model


class Draw:
    """Hyper-parameters, the same for the same population and index.

    Examples
    --------
    >>> Draw(17, 0).choice(1, 2, 3) in (1, 2, 3), 0.1 <= Draw(17, 0).between(0.1, 1.0) <= 1.0
    (True, True)
    """

    def __init__(self, population: int, index: int) -> None:
        self._rng = np.random.default_rng([population, index])

    def choice(self, *options: Any) -> Any:
        """One of them."""
        return options[self._rng.integers(len(options))]

    def between(self, low: float, high: float) -> float:
        """Log-uniformly."""
        return float(np.exp(self._rng.uniform(math.log(low), math.log(high))))


@dataclass(kw_only=True)
class FineTuned(ABC):
    """A population of models that begin at one checkpoint, each trained by a recipe of its own.

    Parameters
    ----------
    data : str
        The folder with the data.
    count : int
    draw : int
        Another one is another population.
    batches, batch_size : int
        Training examples on which sharpness is measured, the same for all models.
    train : int
        Training examples.
    device : str
        Of the losses.
    """

    places: ClassVar = ("data", "device", "count")
    """Options on which no number depends."""
    kind: ClassVar[str]
    data: str
    count: int
    draw: int = 0
    batches: int = 8
    batch_size: int
    train: int
    device: str = "cpu"

    @property
    def name(self) -> str:
        """With the number of the draw: another one is another population."""
        return f"{self.kind}-{self.draw}"

    def units(self) -> list[str]:
        """Return a model each."""
        return [f"{index:03d}" for index in range(self.count)]

    def rows(self, task: Task) -> list[Row]:
        """Train a model, or load it, and measure it."""
        return measure_model(task, task.unit, self.model(task.unit, task.weights))

    @abstractmethod
    def model(self, unit: str, cache: Path) -> Model:
        """Train it, or load it."""

    @abstractmethod
    def checkpoint(self, cache: Path, dtype: Any = np.float32) -> Model:
        """The checkpoint itself, on its own task and the examples on which sharpness is measured: to fix the radii."""

    def prepare(self, cache: Path) -> None:
        """Make the checkpoint, and verify its symmetries in double precision: they are those of every model.

        Raises
        ------
        ValueError
            They do not hold, or it cannot be told.
        """
        model = self.checkpoint(cache, np.float64)
        loss = partial(model.value_and_grad, batch=model.batches[0])
        result = rg.symmetry.verify(loss, model.blocks, rg.networks.block_metric(model.moving(), "inv"))
        if not result.holds:
            raise ValueError(f"the symmetries of the checkpoint: {result}")


def train_or_load(module: Any, folder: Path, unit: str, recipe: Any, train: Callable[[Any], None]) -> None:
    """Train a module, or load what was trained by the same recipe; the file appears whole or not at all."""
    from safetensors.torch import load_file, save_file

    place = folder / f"{unit}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]}.safetensors"
    if place.exists():
        module.load_state_dict(load_file(place))
        return
    train(module)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_suffix(".part")
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, beside)
    beside.replace(place)


def network_of(module: Any, layout: str, heads: int) -> rg.networks.Network:
    """Return the module's parameters as blocks."""
    return rg.networks.read(module.state_dict(), layout, heads)


def cross_entropy(call: Any, *batch: Any) -> Any:
    """The loss of a classifier on a batch: what it is called with, and the labels last."""
    import torch

    *inputs, labels = batch
    return torch.nn.functional.cross_entropy(call(*inputs), labels)


def in_parts(call: Any, inputs: Iterable[Any], size: int) -> Any:
    """Return what a module makes of tensors, so many examples at a time, without gradients."""
    import torch

    with torch.no_grad():
        return torch.cat([call(*part) for part in zip(*(tensor.split(size) for tensor in inputs), strict=True)])


def outcomes(sets: Iterable[tuple[str, Any, Any]]) -> dict[str, float]:
    """Errors and losses of named scores with their labels, "train" and "test", and the gap."""
    import torch

    result: dict[str, float] = {}
    for name, scores, labels in sets:
        result[f"{name} error"] = float((scores.argmax(1) != labels).double().mean())
        result[f"{name} loss"] = float(torch.nn.functional.cross_entropy(scores, labels))
    result["gap"] = round(result["test error"] - result["train error"], 9)  # equal gaps are to be equal
    return result
