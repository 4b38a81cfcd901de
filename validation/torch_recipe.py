"""The README's recipe: a loss of a PyTorch module as a function of the blocks of a refgeo network."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import refgeo as rg


def value_and_grad_of(
    module: Any, network: rg.networks.Network, loss: Callable[..., Any], frozen: Any = (), dtype: Any = np.float32
) -> Callable[..., tuple[float, Mapping[str, Any]]]:
    """``loss(call, *batch)`` as ``value_and_grad(blocks, *batch)``; `frozen` blocks stay as the module has them."""
    import torch

    own = threading.local()  # functional_call exchanges the module's parameters: a copy for every thread

    def value_and_grad(blocks: Mapping[str, Any], *batch: Any) -> tuple[float, Mapping[str, Any]]:
        if not hasattr(own, "module"):
            own.module = copy.deepcopy(module).eval()
        tensors = {
            name: torch.from_numpy(array).requires_grad_()
            for name, array in network.state_dict(blocks, dtype, without=frozen).items()
            if name in network.shapes
        }
        value = loss(lambda *x, **kw: torch.func.functional_call(own.module, tensors, x, kw), *batch)
        grads = torch.autograd.grad(value, list(tensors.values()), materialize_grads=True)
        return value.item(), network.blocks_of({name: g.numpy() for name, g in zip(tensors, grads, strict=True)})

    return value_and_grad


def blocks_of(module: Any, layout: str, heads: int) -> rg.networks.Network:
    """The module's parameters as blocks."""
    return rg.networks.read({name: t.detach().cpu().numpy() for name, t in module.state_dict().items()}, layout, heads)
