"""Losses of PyTorch modules as functions of blocks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from refgeo.geometry.blocks import names_of

if TYPE_CHECKING:
    from refgeo.networks import Network

__all__ = ["torch_value_and_grad"]


def torch_value_and_grad(
    module: Any,
    network: Network,
    loss: Callable[..., Any],
    frozen: Iterable[str] = (),
    dtype: Any = np.float32,
    device: str = "cpu",
) -> Callable[..., tuple[float, Mapping[str, Any]]]:
    """Return a loss of a PyTorch module as a function of the blocks of a `refgeo.networks.Network`.

    Parameters
    ----------
    module : torch.nn.Module
        Copied for every thread and put into evaluation mode; your own stays as it is. Parameters are shared with the
        copies where their dtype and device are those asked for, and the mode does not change them.
    network : Network
        Of the module's parameters: ``refgeo.networks.read(module, layout)``.
    loss : callable
        ``loss(call, *batch)``, a tensor of one number; ``call`` is the module with the parameters that are asked for.
        It is differentiated also where gradients are off (``torch.no_grad``).
    frozen : iterable of str
        Blocks that are arrays and do not move, with wildcards: they stay as the module has them, and have no gradient.
    dtype : dtype
        Of the module and its parameters, of NumPy or PyTorch.
    device : str
        Where it runs: ``"cpu"``, ``"cuda"``, ``"cuda:0"``, ``"mps"``, ...

    Returns
    -------
    callable
        ``value_and_grad(blocks, *batch) -> (loss, gradients)``.

    Raises
    ------
    ValueError
        Two tensors of the network are one parameter of the module (tied weights), one that is to move is a buffer, or
        a constant of the network has other numbers than the module's buffer. The dtype or device is not available.
        When it is called: the loss is not one number with a gradient, it uses the module's own parameters, or
        the module itself has another loss, which is computed once, with other weights.
    TypeError
        The module is TorchScript or cannot be copied; the message says which part. When called: the loss is no tensor.
    """
    import torch

    from refgeo.networks.block_metric import moving

    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("module: expected a module of Python, got TorchScript, whose parameters cannot be exchanged")
    own = threading.local()  # a module for every thread, as its parameters are exchanged
    fixed = network.blocks.keys() - moving(network.blocks, frozen)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    _refuse_strange(network.shapes.keys() - fixed - parameters)
    _refuse_tied(module, network)
    _refuse_other_buffers(module, network)
    dtype = _dtype_name(dtype)
    precision = getattr(torch, dtype)
    _refuse_device(device)
    one_at_a_time = threading.Lock()  # to see whether a loss uses the module's own parameters, these are changed

    def tensors_of(blocks: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors that move, which share no memory with the blocks."""
        return {
            name: torch.tensor(array, device=device)
            for name, array in network.state_dict(blocks, dtype, without=fixed).items()
            if name in network.shapes
        }

    def verify(blocks: Mapping[str, Any], batch: tuple[Any, ...]) -> None:
        """Compare the loss with that of a copy of the module that has loaded other weights as a module does."""
        moved = {name: (1.01 * tensor).requires_grad_() for name, tensor in tensors_of(blocks).items()}
        loaded = _convert(_copy(module), precision, device)
        loaded.load_state_dict(moved, strict=False)

        def evaluate(copy: Any) -> float:
            return float(loss(copy, *batch).detach().item())

        expected = evaluate(loaded.eval())
        value, repeated = (_with_parameters(own.module, moved, parameters, evaluate) for _ in range(2))
        unit = _REPEATS * max(abs(value), abs(expected))
        if abs(value - expected) > unit >= abs(value - repeated):  # a search says if the loss is not the same twice
            raise ValueError(
                f"module: if it loads other weights, its loss in evaluation mode is {expected:.8g}, but {value:.8g} if "
                "its parameters are exchanged. Does it merge, swap or keep weights in train() or eval()? Give a module "
                "whose parameters are the weights that it uses, such as a merged one"
            )

    def value_and_grad(blocks: Mapping[str, Any], *batch: Any) -> tuple[float, Mapping[str, Any]]:
        with torch.inference_mode(False), torch.enable_grad():
            if not hasattr(own, "module"):
                own.module, own.asked, own.is_verified = _make_evaluation_copy(module, precision, device), set(), False
            this = tuple(map(id, batch))
            is_new = this not in own.asked  # of every batch once: a loss may do something else with another
            own.asked.add(this)
            tensors = {name: tensor.requires_grad_() for name, tensor in tensors_of(blocks).items()}
            originals = [p for n, p in module.named_parameters() if n in tensors] if is_new else []

            def evaluate(copy: Any) -> tuple[Any, Any]:
                """Return loss and gradients while the parameters are exchanged: activations may be computed again."""
                value = _check_loss(lambda: loss(copy, *batch), originals)
                return value.item(), _gradients(value, list(tensors.values()), module)

            with one_at_a_time if is_new else nullcontext():
                value, grads = _with_parameters(own.module, tensors, parameters, evaluate)
            torch.clear_autocast_cache()  # of weights that are exchanged again
            if not own.is_verified:
                verify(blocks, batch)
                own.is_verified = True
        return value, network.blocks_of({n: g.cpu().numpy() for n, g in zip(tensors, grads, strict=True)})

    return value_and_grad


_REPEATS = 1e-5
"""Relative difference of two losses that are computed alike; chosen."""


def _with_parameters(module: Any, tensors: Mapping[str, Any], names: Set[str], evaluate: Callable[[Any], Any]) -> Any:
    """Evaluate a function of a module while it has these parameters, also in a backward pass within the function."""
    import torch

    class Within(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self) -> Any:
            return evaluate(self.module)

    named = {f"module.{name}": tensor for name, tensor in tensors.items() if name in names}
    return torch.func.functional_call(Within(), named, ())


def _gradients(value: Any, tensors: list[Any], module: Any) -> Sequence[Any]:
    """Differentiate a loss; gradients of the module and of inputs stay as they are.

    Reentrant checkpointing runs a backward pass of its own, which adds to the gradients of all leaves.
    """
    import torch

    nodes, seen = [value.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    if all(node.name() != "CheckpointFunctionBackward" for node in seen):
        return torch.autograd.grad(value, tensors, materialize_grads=True)
    inputs = {node.variable for node in seen if hasattr(node, "variable")}
    own = [(leaf, leaf.grad) for leaf in {*module.parameters(), *inputs}.difference(tensors)]
    for leaf, _ in own:
        leaf.grad = None
    value.backward()
    for leaf, gradient in own:
        leaf.grad = gradient
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors]


def _make_evaluation_copy(module: Any, precision: Any, device: str) -> Any:
    """Return a copy in evaluation mode, with numbers of this precision, complex ones of the complex precision.

    Parameters that this leaves as they are become the module's own, as those that do not move, for example.
    """
    import torch

    copied = _convert(_copy(module).eval(), precision, device)
    for part, original in zip(copied.modules(), module.modules(), strict=True):
        for name, p in original._parameters.items():
            mine = part._parameters.get(name)
            is_same = p is not None and mine is not None and mine.dtype == p.dtype and mine.device == p.device
            if is_same and torch.equal(mine, p):
                part._parameters[name] = p
    return copied


def _convert(module: Any, precision: Any, device: str) -> Any:
    """Convert a module's numbers to this precision, complex ones to the complex precision, on this device."""
    import torch

    complex_precision = torch.complex128 if precision == torch.float64 else torch.complex64

    def convert(tensor: Any) -> Any:
        kind = precision if tensor.is_floating_point() else complex_precision if tensor.is_complex() else None
        return tensor.to(device, kind)

    return module._apply(convert)


def _copy(module: Any) -> Any:
    """Copy a module, or raise an error that names what cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise TypeError(f"module: it is copied for every thread, but {_obstacle(module, {}, error)}") from error


def _obstacle(module: Any, shared: dict[int, Any], error: Exception) -> str:
    """Describe which attribute of which part of a module cannot be copied."""
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


def _check_loss(evaluate: Callable[[], Any], originals: list[Any]) -> Any:
    """Return the loss if it is one number that can be differentiated, and does not depend on `originals`, the module's
    own parameters, which stand still; else raise an error.
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
    """Raise an error if a tensor is to move that is no parameter of the module."""
    for name in sorted(names):
        raise ValueError(
            f"network: {name!r} is to move, and the module has no parameter of this name (it may be a buffer, or have "
            "another name in files); freeze it, or read the network from the module: refgeo.networks.read(module, "
            "layout)"
        )


def _refuse_tied(module: Any, network: Network) -> None:
    """Raise an error if tensors of the network are one parameter of the module, which would be moved as several."""
    from refgeo.networks.network import further_names

    for name, first in further_names(module).items():
        if {first, name} <= network.shapes.keys():
            raise ValueError(
                f"network: {first!r} and {name!r} are the same parameter of the module (tied weights); read "
                f"the network from a state dict without {name!r}"
            )


def _refuse_other_buffers(module: Any, network: Network) -> None:
    """Raise an error if a constant of the network, such as a running mean, differs from the module's buffer."""
    import torch

    state, different = module.state_dict(), []
    for name, constant in network.constants.items():
        if name in state and state[name].is_floating_point():
            mine = state[name].detach().cpu().float()
            expected = torch.tensor(np.asarray(constant, dtype=np.float32))
            if mine.shape != expected.shape or not torch.allclose(mine, expected, rtol=2.0**-7, equal_nan=True):
                different.append(name)
    if different:
        raise ValueError(
            f"network: {names_of(different)} differ from the module's buffers, which the loss uses; load the file into "
            "the module first (module.load_state_dict), or read the network from the module"
        )


def _dtype_name(dtype: Any) -> str:
    """Return the name of a floating-point type of NumPy or PyTorch, or raise an error."""
    try:
        name: str = np.dtype(dtype).newbyteorder("=").name
    except TypeError:
        name = str(dtype).removeprefix("torch.")
    if name not in _PRECISIONS:
        raise ValueError(f"dtype: expected one of {', '.join(_PRECISIONS)}, got {dtype!r}")
    return name


_PRECISIONS = ("float64", "float32", "float16")


def _refuse_device(device: str) -> None:
    """Raise an error unless a tensor can be made on a device."""
    import torch

    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, TypeError) as error:
        kinds = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
        available = ["cpu", *(name for name, kind in kinds.items() if kind.is_available())]
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: expected {' or '.join(available)}, got {device!r}: {reason}") from error
