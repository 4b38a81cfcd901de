# pip install torch==2.13.0 pytorch_optimizer==4.1.0
import torch
from pytorch_optimizer import SAM, LookSAM

for optimiser in (SAM, LookSAM):
    for adaptive in (False, True):
        torch.manual_seed(0)
        before = torch.randn(6, 5)
        weights = torch.nn.Parameter(before.clone())
        weights.grad = torch.randn(6, 5) + 2.0
        optimiser([weights], torch.optim.SGD, rho=0.05, adaptive=adaptive, use_gc=True, lr=0.1).first_step()
        change = (weights.detach() - before) / (before.abs() if adaptive else 1.0)
        length = change.norm() / 0.05
        print(f"{optimiser.__name__}, adaptive={adaptive}, use_gc=True: ascent {length:.2f} times rho")
