# pip install torch==2.13.0 pytorch_optimizer==4.1.0
from types import SimpleNamespace

import torch
from pytorch_optimizer import GSAM, SAM, WSAM, FriendlySAM, LookSAM

SGD, RHO = torch.optim.SGD, 0.05
MAKE = {
    "SAM": lambda groups, **o: SAM(groups, SGD, rho=RHO, lr=0.1, **o),
    "LookSAM": lambda groups, **o: LookSAM(groups, SGD, rho=RHO, lr=0.1, **o),
    "FriendlySAM": lambda groups, **o: FriendlySAM(groups, SGD, rho=RHO, lr=0.1, **o),
    "WSAM": lambda groups, **o: WSAM(torch.nn.Module(), groups, SGD, rho=RHO, lr=0.1, **o),
    "GSAM": lambda groups, **o: GSAM([p for g in groups for p in g["params"]], SGD(groups, lr=0.1), torch.nn.Module(),
                                     SimpleNamespace(step=lambda: RHO), **o),
}  # fmt: skip


def errors(name, adaptive, size):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(k * torch.randn(4, 3, dtype=torch.float64)) for k in (size, 1.0, 1.0 / size)]
    optimiser = MAKE[name]([{"params": parameters[:2]}, {"params": parameters[2:]}], adaptive=adaptive)
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.randn_like(p)
    g = torch.cat([p.grad.ravel() for p in parameters])
    optimiser.perturb_weights(RHO) if name == "GSAM" else optimiser.first_step()
    change = torch.cat([(p.detach() - x).ravel() for p, x in zip(parameters, before, strict=True)])
    T = torch.cat([x.abs().ravel() for x in before]) if adaptive else torch.ones_like(g)
    return (
        (change - RHO * T * T * g / (T * g).norm()) / T
    ).norm().item() / RHO  # beside the maximiser of g over the ball


for name in MAKE:
    worst = max(errors(name, adaptive, size) for adaptive in (False, True) for size in (1.0, 1000.0))
    print(
        f"{name}: ascent beside the maximiser of its ball, plain and adaptive: {worst:.0e} of rho, should be below 1e-6"
    )
