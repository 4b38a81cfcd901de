"""A small vision transformer for scikit-learn's digits (1,797 images of 8×8 pixels).

Patches of 2×2 pixels are 16 tokens of width 32; two layers of four heads, pre-norm; 18,000 parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS = 32, 4, 2


def everything() -> tuple[Any, Any]:
    """All images, from 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.float32) / 16.0, digits.target.astype(np.int64)


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
