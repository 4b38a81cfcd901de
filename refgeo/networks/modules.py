"""Losses of PyTorch modules as functions of blocks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from refgeo.networks import Network

__all__ = ["torch_value_and_grad"]


def torch_value_and_grad(
    module: Any,
    network: Network,
    loss: Callable[..., Any],
    frozen: Iterable[str] = (),
    dtype: npt.DTypeLike = np.float32,
    device: str = "cpu",
) -> Callable[..., tuple[float, Mapping[str, Any]]]:
    """A loss of a PyTorch module as a function of the blocks of a `refgeo.networks.Network`.

    Parameters
    ----------
    module : torch.nn.Module
        Copied for every thread and put into evaluation mode; your own stays as it is. Parameters are shared with the
        copies where their dtype and device are those asked for.
    network : Network
        Of the module's parameters: ``refgeo.networks.read(module, layout)``.
    loss : callable
        ``loss(call, *batch)``, a tensor of one number; ``call`` is the module with the parameters that are asked for.
        It is differentiated also where gradients are off (``torch.no_grad``).
    frozen : iterable of str
        Blocks that are arrays and do not move, with wildcards: they stay as the module has them, and have no gradient.
    dtype : dtype
        Of the module and its parameters.
    device : str
        Where it runs.

    Returns
    -------
    callable
        ``value_and_grad(blocks, *batch) -> (loss, gradients)``.

    Raises
    ------
    ValueError
        Two tensors of the network are one parameter of the module (tied weights), or one that is to move is a buffer.
        When it is called: the loss is no tensor of one number with a gradient, or it uses the module's own parameters.
    TypeError
        The module cannot be copied; the message says which part of it.
    """
    import torch

    from refgeo.networks.block_metric import moving

    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("module: expected a module of Python, got TorchScript, whose parameters cannot be exchanged")
    own = threading.local()  # functional_call exchanges the module's parameters: a module for every thread
    fixed = network.blocks.keys() - moving(network.blocks, frozen)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    _refuse_strange(network.shapes.keys() - fixed - parameters)
    _refuse_tied(module, network)
    precision = getattr(torch, np.dtype(dtype).name)

    one_at_a_time = threading.Lock()  # whether a loss uses the module itself is asked of its own parameters

    def value_and_grad(blocks: Mapping[str, Any], *batch: Any) -> tuple[float, Mapping[str, Any]]:
        with torch.inference_mode(False), torch.enable_grad():
            if not hasattr(own, "module"):
                own.module, own.asked = _copied(module, precision, device), set()
            this = tuple(map(id, batch))
            is_new = this not in own.asked  # of every batch once: a loss may do something else with another
            own.asked.add(this)
            tensors = {
                name: torch.from_numpy(array).to(device).requires_grad_()
                for name, array in network.state_dict(blocks, dtype, without=fixed).items()
                if name in network.shapes
            }
            named = {name: tensor for name, tensor in tensors.items() if name in parameters}

            def call(*x: Any, **kw: Any) -> Any:
                return torch.func.functional_call(own.module, named, x, kw)

            originals = [p for n, p in module.named_parameters() if n in named] if is_new else []
            with one_at_a_time if is_new else nullcontext():
                value = _checked_loss(lambda: loss(call, *batch), originals)
            grads = torch.autograd.grad(value, list(tensors.values()), materialize_grads=True)
        return value.item(), network.blocks_of({n: g.cpu().numpy() for n, g in zip(tensors, grads, strict=True)})

    return value_and_grad


def _copied(module: Any, precision: Any, device: str) -> Any:
    """In evaluation mode, with numbers of this precision, complex ones of the complex precision; what is as it should
    be already is shared, as those that do not move, for one.
    """
    import torch

    as_they_are = all(p.dtype == precision and p.device == torch.device(device) for p in module.parameters())
    shared = {id(p): p for p in module.parameters()} if as_they_are else {}
    complex_precision = torch.complex128 if precision == torch.float64 else torch.complex64

    def converted(tensor: Any) -> Any:
        kind = precision if tensor.is_floating_point() else complex_precision if tensor.is_complex() else None
        return tensor.to(device, kind)

    try:
        copied = copy.deepcopy(module, dict(shared))
    except Exception as error:
        raise TypeError(f"module: it is copied for every thread, but {_obstacle(module, shared, error)}") from error
    return copied.eval()._apply(converted)


def _obstacle(module: Any, shared: dict[int, Any], error: Exception) -> str:
    """Which attribute of which part of a module cannot be copied."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            holders = value.items() if name in ("_parameters", "_buffers") else [(name, value)]
            for attribute, held in holders if name != "_modules" else ():
                try:
                    copy.deepcopy(held, dict(shared))
                except Exception as reason:
                    where = ".".join(filter(None, (path, attribute)))
                    return (
                        f"its {where}, a {type(held).__name__}, cannot be copied: {reason}. Set it to None or "
                        "remove it (of weight_norm, torch.nn.utils.remove_weight_norm or parametrizations.weight_norm "
                        "does), or give a module that has not run yet"
                    )
    return f"it cannot be: {error}"


def _checked_loss(evaluate: Callable[[], Any], originals: list[Any]) -> Any:
    """One number that can be differentiated, and that does not depend on the module's own parameters, which stand
    still; that is asked where these are given.
    """
    import torch

    needed = [p.requires_grad for p in originals]
    try:
        for p in originals:
            p.requires_grad_()
        value = evaluate()
        expected = "loss: expected a function loss(call, *batch) that returns a tensor of one number"
        if not isinstance(value, torch.Tensor):
            also = " (not .item() of it)" if isinstance(value, float) else ""
            raise TypeError(f"{expected}{also}, got {type(value).__name__}")
        if value.numel() != 1 or value.is_complex():
            got = f"shape {tuple(value.shape)}; return its mean" if value.numel() != 1 else str(value.dtype)
            raise ValueError(f"{expected}, got {got}")
        if not value.requires_grad:
            raise ValueError(
                f"{expected} and can be differentiated, got one that has no gradient (detach, no_grad, or numbers from "
                "elsewhere). Does it use what call gives, which is the module with the parameters that are asked for?"
            )
        value = value.reshape(())
        used = torch.autograd.grad(value, originals, retain_graph=True, allow_unused=True) if originals else ()
    finally:
        for p, wanted in zip(originals, needed, strict=True):
            p.requires_grad_(wanted)
    if any(g is not None for g in used):
        raise ValueError(
            "loss: it uses the module's own parameters, which stand still. Call call(x) in the place of module(x) or a "
            "part of it, and leave penalties on module.parameters() out, or compute them of the blocks (beside this "
            "function, with their gradients)"
        )
    return value


def _refuse_strange(names: Set[str]) -> None:
    """An error if a tensor is to move that is no parameter of the module."""
    for name in sorted(names):
        raise ValueError(
            f"network: {name!r} is to move, and the module has no parameter of this name (it may be a buffer, or have "
            "another name in files); freeze it, or read the network from the module: refgeo.networks.read(module, "
            "layout)"
        )


def _refuse_tied(module: Any, network: Network) -> None:
    """The names of a state dict that are one parameter would be moved as several."""
    from refgeo.networks.network import further_names

    for name, other in further_names(module).items():
        if {other, name} <= network.shapes.keys():
            raise ValueError(
                f"network: {other!r} and {name!r} are the same parameter of the module (tied weights); read "
                f"the network from a state dict without {name!r}"
            )
