# in a clone of seruva19/takenoko, with torch==2.13.0 optimum-quanto==0.2.7
import sys
from types import SimpleNamespace

import torch

sys.path.insert(0, "src")
from optimizers.riemannion import SingleDeviceRiemannionWithAuxAdam


def steps(inputs, outputs, rank, count=2):
    """The length of W = B A before and after steps of length 0.01, for a layer and its gradient E with respect to W."""
    torch.manual_seed(0)
    A, B = torch.nn.Parameter(torch.randn(rank, inputs)), torch.nn.Parameter(torch.randn(outputs, rank))
    layer, E = SimpleNamespace(_last_input=torch.eye(inputs)), torch.randn(outputs, inputs)
    group = {"params": [A, B], "use_riemannion": True, "lr": 0.01, "lora_down": A, "lora_up": B, "lora_module": layer}
    optimiser = SingleDeviceRiemannionWithAuxAdam([group])
    lengths = [(B @ A).norm().item()]
    for _ in range(count):
        layer._last_input, layer._last_grad_output = torch.eye(inputs), E.T
        A.grad, B.grad = B.detach().T @ E, E @ A.detach().T
        optimiser.step()
        lengths.append((B @ A).norm().item())
    return ", ".join(f"{length:.4g}" for length in lengths)


for inputs, outputs, rank, count in ((5, 6, 2, 1), (4, 2, 2, 1), (4, 2, 2, 2)):
    try:
        said = f"the length of B A becomes {steps(inputs, outputs, rank, count)}"
    except RuntimeError as error:
        said = f"RuntimeError: {error}"
    print(f"{inputs} inputs, {outputs} outputs, rank {rank}, {count} steps: {said}")
print("should be: in every case a length that changes by at most 0.02 at each step")
