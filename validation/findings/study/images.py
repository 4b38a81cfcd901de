"""Vision transformers that are fine-tuned from one checkpoint with random recipes, as the paper's on ImageNet.

Fashion-MNIST: 70,000 images of 28×28 pixels in four IDX files, as the Debian package dataset-fashion-mnist or any
other copy has them. A network of 105,000 parameters (patches of 7×7 pixels are 16 tokens of width 64, three layers of
four heads, pre-norm) learns by how much 50,000 images were turned. From this checkpoint each model is fine-tuned on the
other 10,000 for their ten classes. Step size, weight decay, epochs, label smoothing, mixup and augmentation are drawn
at random, as in the model soups of Wortsman et al. (2022). Sharpness is measured on the same training images for every
model, batch by batch.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.networks.modules import torch_value_and_grad
from validation.findings.study.measures import Model
from validation.findings.study.training import (
    Draw,
    FineTuned,
    cross_entropy,
    in_parts,
    network_of,
    outcomes,
    train_or_load,
)

PATCH, WIDTH, HEADS, LAYERS = SHAPE = 7, 64, 4, 3
TRAIN = 10_000
"""Images for fine-tuning; the others are for the checkpoint."""
MEAN, SPREAD = 0.2860, 0.3530


@dataclass(frozen=True)
class Recipe:
    """How a model is fine-tuned; drawn from the seed of its population and its index."""

    draw: int
    index: int
    step_size: float
    weight_decay: float
    epochs: int
    smoothing: float
    mixup: float
    augmentation: int

    @classmethod
    def draw_once(cls, draw: int, index: int) -> Recipe:
        """Draw the same for the same population and index."""
        of = Draw(1000 + draw, index)
        return cls(
            draw, index, of.between(10**-3.8, 10**-2.4), of.between(1e-4, 0.6), of.choice(*range(4, 17)),
            of.choice(0.0, of.between(0.01, 0.25)), of.choice(0.0, of.between(0.05, 0.9)), of.choice(0, 1, 2),
        )  # fmt: skip


@dataclass(kw_only=True)
class Population(FineTuned):
    """As `FineTuned`; and for a quick look, ``epochs`` of all models, in the place of the recipe's."""

    kind = "images"
    count: int = 72
    batch_size: int = 256
    train: int = TRAIN
    epochs: int | None = None

    def model(self, unit: str, cache: Path) -> Model:
        """Fine-tune it, or load it."""
        import torch

        torch.set_num_threads(1)
        torch.backends.mha.set_fastpath_enabled(False)  # which has no gradients
        recipe = Recipe.draw_once(self.draw, int(unit))
        (x, y), test = (images(self.data, part, self.device) for part in ("train", "t10k"))
        x, y = x[: self.train], y[: self.train]
        epochs = self.epochs or recipe.epochs
        module = self._checkpoint(cache)
        torch.manual_seed(1000 * self.draw + recipe.index)
        module.head = torch.nn.Linear(WIDTH, 10)
        module.to(self.device)
        train_or_load(
            module,
            cache,
            unit,
            (recipe, *SHAPE, epochs, self.train),
            lambda net: fine_tune(net, x, y, recipe, epochs),
        )
        module.eval()
        network = network_of(module, "clip", HEADS)
        evaluate = torch_value_and_grad(module, network, cross_entropy, device=self.device)
        scores = [(name, in_parts(module, (a,), 1000), b) for name, a, b in (("train", x, y), ("test", *test))]
        size = self.batch_size
        return Model(
            blocks=dict(network.blocks),
            value_and_grad=lambda blocks, batch: evaluate(blocks, *batch),
            batches=[(x[k * size : (k + 1) * size], y[k * size : (k + 1) * size]) for k in range(self.batches)],
            columns=vars(recipe) | {"weight norm": norm_of(module)} | outcomes(scores),
            weights=("head.weight",),
            verify=False,  # `prepare` has
        )

    def _checkpoint(self, cache: Path) -> Any:
        """Return the network that was trained on rotations."""
        import torch

        torch.manual_seed(0)
        module = vision_transformer(4).to(self.device)
        x, _ = images(self.data, "train", self.device)
        epochs = 10 if self.epochs is None else 1
        train_or_load(
            module,
            cache.parent / "images",  # of all draws
            "checkpoint",
            ("rotations", *SHAPE, epochs, self.train),
            lambda net: turn(net, x[self.train :], epochs),
        )
        return module

    def checkpoint(self, cache: Path, dtype: Any = np.float32) -> Model:
        """Return the network that was trained on rotations, and rotations of the images."""
        import torch

        torch.backends.mha.set_fastpath_enabled(False)
        module = self._checkpoint(cache).eval()
        x, _ = images(self.data, "train", self.device)
        x = x.to(getattr(torch, np.dtype(dtype).name))
        network = network_of(module, "clip", HEADS)
        evaluate = torch_value_and_grad(module, network, cross_entropy, dtype=dtype, device=self.device)
        parts = [x[k * self.batch_size : (k + 1) * self.batch_size] for k in range(self.batches)]
        turns = [torch.arange(len(part), device=self.device) % 4 for part in parts]
        batches = [(rotate_quarters(part, by), by) for part, by in zip(parts, turns, strict=True)]
        return Model(dict(network.blocks), lambda blocks, batch: evaluate(blocks, *batch), batches, {}, verify=False)


# Images ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def images(folder: str | Path, part: str, device: str) -> tuple[Any, Any]:
    """Images with mean 0 and spread 1, and their labels; of the files "train-…" or "t10k-…"."""
    x = _idx(folder, f"{part}-images-idx3-ubyte").reshape(-1, 1, 28, 28)
    y = _idx(folder, f"{part}-labels-idx1-ubyte")
    import torch

    return (
        torch.tensor((x / 255.0 - MEAN) / SPREAD, dtype=torch.float32, device=device),
        torch.tensor(y.astype(np.int64), device=device),
    )


def _idx(folder: str | Path, name: str) -> Any:
    """Return the numbers of an IDX file of bytes, which may be compressed."""
    places = [place for suffix in ("", ".gz") if (place := Path(folder, f"{name}{suffix}")).is_file()]
    if not places:
        raise SystemExit(f"the images: expected {name} or {name}.gz in {folder}; Fashion-MNIST has four such files")
    content = places[0].read_bytes()
    content = gzip.decompress(content) if places[0].suffix == ".gz" else content
    kind, rank = content[2], content[3]
    if content[:2] != b"\0\0" or kind != 8:
        raise SystemExit(f"the images: {places[0]} is no IDX file of bytes")
    sizes = np.frombuffer(content, ">u4", rank, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(sizes)


def rotate_quarters(x: Any, by: Any) -> Any:
    """Turn images by so many quarters."""
    import torch

    return torch.stack([torch.rot90(x, k, (2, 3)) for k in range(4)])[by, torch.arange(len(x), device=x.device)]


def augment(x: Any, strength: int, generator: Any) -> Any:
    """Shift images by a few pixels, and mirror half of them; 0 is not at all."""
    import torch

    if strength == 0:
        return x
    mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    shift = torch.randint(-1 - strength, 2 + strength, (2,), generator=generator, device=x.device).tolist()
    return torch.roll(x, shift, (2, 3))


# Networks -------------------------------------------------------------------------------------------------------------


def vision_transformer(classes: int) -> Any:
    """Return an untrained network."""
    import torch
    from torch import nn

    class VisionTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, WIDTH, PATCH, PATCH)
            self.positions = nn.Parameter(0.02 * torch.randn((28 // PATCH) ** 2, WIDTH))
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, classes)

        def forward(self, images: Any) -> Any:
            tokens = self.patch(images).flatten(2).mT + self.positions
            return self.head(self.norm(self.encoder(tokens)).mean(1))

    return VisionTransformer()


def norm_of(module: Any) -> float:
    """Return the length of all weights."""
    return float(sum(p.detach().double().square().sum() for p in module.parameters()) ** 0.5)


def _steps(module: Any, step_size: float, weight_decay: float, count: int) -> Iterator[Any]:
    """Yield an optimiser for each step: AdamW, warmed up and falling as a cosine."""
    import torch

    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), step_size, weight_decay=weight_decay)
    warm = min(50, max(1, count // 10))
    for step in range(count):
        rate = min(1.0, (step + 1) / warm) * 0.5 * (1.0 + np.cos(np.pi * step / count))
        for group in optimizer.param_groups:
            group["lr"] = step_size * rate
        optimizer.zero_grad()
        yield optimizer


def turn(module: Any, x: Any, epochs: int, batch: int = 256) -> None:
    """Train a network to say by how many quarters an image is turned."""
    import torch

    generator = torch.Generator(device=x.device).manual_seed(0)
    for optimizer in _steps(module, 1e-3, 0.05, epochs * (len(x) // batch)):
        chosen = torch.randint(len(x), (batch,), generator=generator, device=x.device)
        by = torch.randint(4, (batch,), generator=generator, device=x.device)
        torch.nn.functional.cross_entropy(module(rotate_quarters(x[chosen], by)), by).backward()
        optimizer.step()


def fine_tune(module: Any, x: Any, y: Any, recipe: Recipe, epochs: int, batch: int = 128) -> None:
    """By a recipe."""
    import torch
    from torch.nn.functional import cross_entropy as loss
    from torch.nn.functional import one_hot

    generator = torch.Generator(device=x.device).manual_seed(1000 * recipe.draw + recipe.index)
    shares = np.random.default_rng([recipe.draw, recipe.index])
    per_epoch = len(x) // batch
    order = x.new_zeros(0)
    for step, optimizer in enumerate(_steps(module, recipe.step_size, recipe.weight_decay, epochs * per_epoch)):
        if step % per_epoch == 0:
            order = torch.randperm(len(x), generator=generator, device=x.device)
        part = order[(step % per_epoch) * batch :][:batch]
        images, target = augment(x[part], recipe.augmentation, generator), one_hot(y[part], 10).float()
        if recipe.mixup:
            share = float(shares.beta(recipe.mixup, recipe.mixup))
            second = torch.randperm(batch, generator=generator, device=x.device)
            images, target = (share * item + (1.0 - share) * item[second] for item in (images, target))
        loss(module(images), target, label_smoothing=recipe.smoothing).backward()
        optimizer.step()
