# in a clone of 1bang118/manifold-intrinsic-muon, with torch==2.13.0
import sys

import torch

sys.path.insert(0, "imuon/_third_party/RiemanianFinetune/src/optimizers")
from RiemannianLoRA import RiemannianSGD

torch.manual_seed(0)
A, B = torch.nn.Parameter(torch.randn(4, 5)), torch.nn.Parameter(torch.randn(6, 4))
A.grad, B.grad = torch.randn(4, 5), torch.randn(6, 4)
group = {"params": [A, B], "param_names": ["lora_A.weight", "lora_B.weight"]}
try:
    RiemannianSGD([group], lr=0.01, momentum=0.9).step()
    print("the step is taken, as it should be")
except TypeError as error:
    print(f"TypeError: {error}")

RiemannianSGD.apply_second_momentum = lambda self, momentum_vec, **others: (
    momentum_vec
)  # what it does, without the point
optimiser, before = RiemannianSGD([group], lr=0.01, momentum=0.9), A.detach().T[:, :2].clone()
optimiser.step()
with torch.no_grad():
    apart = (optimiser.state[A]["prev_point"][0] - before).norm()  # the momentum belongs to the point before the step
print(f"distance of the kept point from that before the step: {apart:.2g}, should be 0")
