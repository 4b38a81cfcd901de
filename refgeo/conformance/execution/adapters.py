"""Make backends of functions of one block, and of optimisers.

Examples
--------
A function that knows no batches:

>>> import numpy as np, refgeo as rg
>>> from types import SimpleNamespace
>>> def gradient(metric, G, H, e_G, e_H):
...     assert G.ndim == 2
...     return rg.paper.riemannian_gradient(metric, G, H, e_G, e_H)
>>> backend = SimpleNamespace(riemannian_gradient=rg.adapters.unbatched(gradient))
>>> rg.check(backend, cases=["2.3-6x7x2"]).passed
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refgeo.networks.modules import torch_value_and_grad

__all__ = ["lora_optimizer", "torch_optimizer", "torch_value_and_grad", "unbatched"]


def unbatched(function: Callable[..., Any], stack: Callable[[list[Any]], Any] = np.stack) -> Callable[..., Any]:
    """Make a function that takes leading dimensions of a function of a single block.

    Parameters
    ----------
    function : callable
        Of the protocol, such as ``horizontal_projection(metric, G, H, v_G, v_H)``, with plain matrices.
    stack : callable
        From a list of results to one array with a new first dimension: ``torch.stack`` for tensors.

    Returns
    -------
    callable

    Raises
    ------
    TypeError
        It is no function, but an object with functions.

    Examples
    --------
    >>> double = unbatched(lambda metric, G, H: (2 * G, 2 * H))
    >>> double("inv", np.ones((3, 2, 1)), np.ones((3, 4, 1)))[1].shape
    (3, 4, 1)
    """
    if not callable(function):
        raise TypeError(
            f"function: expected one function of a backend, got {type(function).__name__}; wrap each of its functions, "
            "such as christoffel = unbatched(mine.christoffel)"
        )

    def call_blocks(metric: str, G: Any, *rest: Any) -> Any:
        leading = tuple(G.shape[:-2])
        if not leading:
            return function(metric, G, *rest)
        arrays = [
            x.reshape((-1, *x.shape[len(leading) :])) if hasattr(x, "shape") and len(x.shape) else x for x in (G, *rest)
        ]
        results = [
            function(metric, *(x[i] if hasattr(x, "shape") and len(x.shape) else x for x in arrays))
            for i in range(len(arrays[0]))
        ]

        def join(parts: list[Any]) -> Any:
            array = stack(parts)
            array = array.astype(G.dtype) if type(parts[0]) is float else array
            return array.reshape((*leading, *array.shape[1:]))

        if isinstance(results[0], (tuple, list)):
            return tuple(join(list(parts)) for parts in zip(*results, strict=True))
        return join(results)

    return call_blocks


def torch_optimizer(make: Callable[[Any, float], Any], metric: str = "mix") -> Callable[..., Any]:
    """Make ``riemannian_gradient`` of a PyTorch optimiser of LoRA: the preconditioned gradient that one step takes.

    The adapter of a layer is W = B A, so G = B and H = Aᵀ. A step of length η from θ gives θ − ηg. If η is so large
    that θ is a rounding error relative to ηg, then −(θ − ηg)/η is g to the last digits, where a small step would cancel
    them.

    Parameters
    ----------
    make : callable
        ``make(model, learning_rate) -> optimizer``, with the model a module whose parameters are called
        ``layer.lora_A.default.weight`` (h × m) and ``layer.lora_B.default.weight`` (n × h), as PEFT's are.
    metric : str
        Which metric's gradient it should be; asked for another one it says NotImplementedError.

    Returns
    -------
    callable
        ``riemannian_gradient(metric, G, H, e_G, e_H)`` on NumPy arrays, for any leading dimensions.
    """

    def riemannian_gradient(requested: str, G: Any, H: Any, e_G: Any, e_H: Any) -> tuple[Any, Any]:
        if requested != metric:
            raise NotImplementedError(f"this optimiser is checked as the gradient of {metric} only, not of {requested}")
        roundoff, numbers = float(np.finfo(G.dtype).eps), float(np.finfo(G.dtype).max)
        size = max(float(np.abs(G).max()), float(np.abs(H).max()))
        parts: list[Any] = [np.zeros_like(G), np.zeros_like(H)]
        rate, open_parts = 1.0, [0, 1]
        while open_parts and rate < numbers**0.95:
            changes = _step_difference(make, G, H, e_G, e_H, rate)
            for part in list(open_parts):
                change = float(np.abs(changes[part]).max())
                if not change < 16.0 * size / roundoff:  # beside which the parameters are rounding; or NaN
                    parts[part] = changes[part] / G.dtype.type(rate)
                    open_parts.remove(part)
            rate *= 2.0**8
        return parts[0], parts[1]

    return unbatched(riemannian_gradient)


def _step_difference(
    make: Callable[[Any, float], Any], G: Any, H: Any, e_G: Any, e_H: Any, rate: float
) -> tuple[Any, Any]:
    """Return θ before a step minus θ after it, in which θ is rounded relative to ``rate`` times the gradient."""
    import torch

    B, A = (torch.nn.Parameter(torch.tensor(np.ascontiguousarray(x))) for x in (G, H.T))
    optimizer = make(_adapter_module(B, A), rate)
    if not (np.array_equal(B.detach(), G, equal_nan=True) and np.array_equal(A.detach(), H.T, equal_nan=True)):
        raise NotImplementedError(
            "the optimiser changes the factors when it is made, so its step is no gradient at the point that is asked "
            "for; its trajectories can be judged: refgeo.adapters.lora_optimizer"
        )
    B.grad, A.grad = (torch.tensor(np.ascontiguousarray(x)) for x in (e_G, e_H.T))
    optimizer.step()
    return G - B.detach().numpy(), H - A.detach().numpy().T


def _adapter_module(B: Any, A: Any) -> Any:
    """Make a module with the parameters of an adapter, under the names that PEFT gives them."""
    import torch

    def holder(weight: Any) -> Any:
        module: Any = torch.nn.Module()
        module.weight = weight
        return torch.nn.ModuleDict({"default": module})

    model: Any = torch.nn.Module()
    model.layer = torch.nn.Module()
    model.layer.lora_A, model.layer.lora_B = holder(A), holder(B)
    return model


def lora_optimizer(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make an optimiser of G = B and H = Aᵀ of an optimiser of LoRA, whose parameters are B and A of W = B A.

    `refgeo.check` judges its trajectories, with ``checks=["step"]``.

    Parameters
    ----------
    make : callable
        ``make(model, **options) -> optimizer``, with the model a module whose parameters are called
        ``layer.lora_A.default.weight`` (h × m) and ``layer.lora_B.default.weight`` (n × h), as PEFT's are.

    Returns
    -------
    callable
        ``make(params, **options)`` for ``params = [G, H]``.
    """

    def make_for_factors(params: Any, **options: Any) -> Any:
        import torch

        G, H = params
        A = torch.nn.Parameter(H.detach().T.contiguous())
        optimizer = make(_adapter_module(G, A), **options)
        step = optimizer.step
        with torch.no_grad():
            H.copy_(A.T)  # which the optimiser may have changed

        def step_both() -> None:
            with torch.no_grad():
                A.copy_(H.T)
                A.grad = None if H.grad is None else H.grad.T.contiguous()
            step()
            with torch.no_grad():
                H.copy_(A.T)

        optimizer.step = step_both
        return optimizer

    return make_for_factors
