"""Small vision transformers on scikit-learn's digits (1,797 images of 8×8 pixels).

Patches of 2×2 pixels are 16 tokens of width 32; two layers of four heads, pre-norm; 18,000 parameters. Models differ in
seed, step size, batch size, weight decay, number of steps, number of training images, augmentation (shifts by a pixel)
and the share of training labels that are exchanged for random ones. The test images are the same 597 for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.networks.adapters import torch_value_and_grad
from validation.findings.study.measures import Model
from validation.findings.study.training import Draw, TrainedModels, cross_entropy, kept, network_of, outcomes

TEST = 597
WIDTH, HEADS, LAYERS = 32, 4, 2


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; drawn from its index."""

    seed: int
    step_size: float
    batch_size: int
    weight_decay: float
    steps: int
    train_size: int
    augmented: bool
    label_noise: float

    @classmethod
    def drawn(cls, index: int) -> Recipe:
        """The same for the same index."""
        draw = Draw(17, index)
        return cls(
            index, draw.between(1e-3, 5e-3), draw.choice(16, 32, 64), draw.between(1e-4, 1.0),
            draw.choice(2000, 4000, 8000), draw.choice(150, 300, 600, 1200), draw.choice(True, False),
            draw.choice(0.0, 0.0, 0.1, 0.2),
        )  # fmt: skip


class Population(TrainedModels):
    """The models of so many recipes.

    Parameters
    ----------
    count : int
    batches, batch_size : int
        On which sharpness is measured: training images, with the labels that the model was trained on.
    """

    name = "digits"

    def __init__(self, count: int = 72, batches: int = 2, batch_size: int = 128) -> None:
        self.count, self.batches, self.batch_size = count, batches, batch_size

    def model(self, unit: str, cache: Path) -> Model:
        """Train it, or load it."""
        import torch

        torch.set_num_threads(1)
        recipe = Recipe.drawn(int(unit))
        torch.manual_seed(recipe.seed)
        (x, y), (x_test, y_test) = data(recipe)
        module = vision_transformer()
        kept(module, cache, unit, recipe, lambda module: train(module, x, y, recipe))
        module = module.double().eval()
        network = network_of(module, "clip", HEADS)
        evaluate = torch_value_and_grad(module, network, cross_entropy, dtype=np.float64)
        size = min(self.batch_size, len(x))
        order = np.random.default_rng([recipe.seed, 5]).permutation(len(x))
        parts = [order[(k * size) % len(x) :][:size] for k in range(min(self.batches, max(1, len(x) // size)))]
        with torch.no_grad():
            scores = [("train", module(x.double()), y), ("test", module(x_test.double()), y_test)]
        columns = {**recipe.__dict__, **outcomes(scores)}
        columns["trained"] = bool(columns["train error"] <= 0.05 + recipe.label_noise)
        return Model(
            blocks=dict(network.blocks),
            value_and_grad=lambda blocks, batch: evaluate(blocks, *batch),
            batches=[(x[part].double(), y[part]) for part in parts],
            columns=columns,
            weights=(
                "head.weight",
                *(f"encoder.layers.{layer}.linear{k}.weight" for layer in range(LAYERS) for k in (1, 2)),
                "embed.weight",
            ),
        )


def everything() -> tuple[Any, Any]:
    """All images, from 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.float32) / 16.0, digits.target.astype(np.int64)


def data(recipe: Recipe) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Training and test images with labels, as tensors; some training labels are random."""
    import torch

    images, labels = everything()
    order = np.random.default_rng(0).permutation(len(images))
    rest, test = order[TEST:], order[:TEST]
    rng = np.random.default_rng([recipe.seed, 3])
    train = rng.permutation(rest)[: recipe.train_size]
    y = labels[train].copy()
    wrong = rng.random(len(y)) < recipe.label_noise
    y[wrong] = rng.integers(10, size=int(wrong.sum()))
    return tuple(  # type: ignore[return-value]
        (torch.from_numpy(x), torch.from_numpy(t)) for x, t in ((images[train], y), (images[test], labels[test]))
    )


def vision_transformer() -> Any:
    """An untrained model."""
    import torch
    from torch import nn

    class VisionTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(4, WIDTH)
            self.positions = nn.Parameter(0.02 * torch.randn(16, WIDTH))
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, 10)

        def forward(self, images: Any) -> Any:
            patches = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(images), 16, 4)
            tokens = self.encoder(self.embed(patches) + self.positions)
            return self.head(self.norm(tokens).mean(1))

    return VisionTransformer()


def train(module: Any, x: Any, y: Any, recipe: Recipe) -> None:
    """AdamW with a cosine schedule."""
    import torch

    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), recipe.step_size, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    generator = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.steps):
        part = torch.randint(len(x), (recipe.batch_size,), generator=generator)
        images = x[part]
        if recipe.augmented:
            shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
            images = torch.roll(images, shift, (1, 2))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(images), y[part]).backward()
        optimizer.step()
        schedule.step()
