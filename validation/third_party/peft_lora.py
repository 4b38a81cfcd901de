"""PEFT's Riemannian-preconditioned LoRA (Zhang & Pilanci), as released: the gradient that one SGD step takes.

refgeo check validation/third_party/peft_lora.py:undamped
refgeo check validation/third_party/peft_lora.py:shipped --relaxation 1e-2
"""

from types import SimpleNamespace

import torch
from peft.optimizers import create_riemannian_optimizer

import refgeo as rg


def _with_damping(**options):
    def make(model, learning_rate):
        return create_riemannian_optimizer(model, torch.optim.SGD, lr=learning_rate, **options)

    return SimpleNamespace(riemannian_gradient=rg.adapters.torch_optimizer(make, metric="mix"))


undamped = _with_damping(reg=0.0)
shipped = _with_damping()
