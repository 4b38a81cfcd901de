"""Attention networks of 300 parameters in NumPy, trained in a second: to try the study, and to test it.

A sequence of six tokens has the class of the token that it holds most often. Models differ in seed and step size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import refgeo as rg
from validation.findings.study.measures import Model
from validation.findings.study.runner import Row, Task, measure_model


class Population:
    """So many models, of so many steps of gradient descent.

    Parameters
    ----------
    count, steps : int
    """

    name = "tiny"

    def __init__(self, count: int = 8, steps: int = 30) -> None:
        self.count, self.steps = count, steps

    def units(self) -> list[str]:
        """Return a model each."""
        return [str(index) for index in range(self.count)]

    def rows(self, task: Task) -> list[Row]:
        """Train a model and measure it."""
        return measure_model(task, task.unit, self.model(int(task.unit)))

    def model(self, index: int) -> Model:
        """Trained from scratch."""
        network = rg.networks.AttentionClassifier(vocabulary=4, length=6, width=4, heads=1, hidden=4, classes=4)
        rng = np.random.default_rng(index)
        step = float(np.exp(rng.uniform(np.log(0.02), np.log(0.3))))
        train, test = self._data(np.random.default_rng(100), 24), self._data(np.random.default_rng(101), 96)
        params = network.init(index)
        for _ in range(self.steps):
            _, grads = network.value_and_grad(params, train)
            params = {name: block - step * grads[name] for name, block in params.items()}
        errors = {
            name: float(np.mean(np.argmax(network.logits(params, tokens), axis=1) != labels))
            for name, (tokens, labels) in (("train", train), ("test", test))
        }
        columns = {
            "step_size": step,
            "test error": errors["test"],
            "test loss": float(network.loss(params, test)),
            "gap": float(network.loss(params, test) - network.loss(params, train)),
            "trained": bool(errors["train"] < 0.5),
        }
        matrices = ("layer0.up.weight", "layer0.down.weight")
        return Model(params, network.value_and_grad, [train], columns, weights=matrices)

    def _data(self, rng: np.random.Generator, count: int) -> tuple[Any, Any]:
        tokens = rng.integers(4, size=(count, 6))
        return tokens, np.array([np.bincount(row, minlength=4).argmax() for row in tokens])
