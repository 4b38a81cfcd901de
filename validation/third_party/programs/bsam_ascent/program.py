# pip install torch==2.13.0 pytorch_optimizer==4.1.0
import torch
from pytorch_optimizer import BSAM

torch.manual_seed(0)
a = torch.linspace(0.5, 2.0, 1000, dtype=torch.float64)
weights = torch.nn.Parameter(torch.ones(1000, dtype=torch.float64))
optimiser = BSAM([weights], num_data=10**12, lr=1e-12, rho=0.05, weight_decay=0.0)


def closure():
    optimiser.zero_grad()
    loss = 0.5 * (a * weights**2).sum()
    loss.backward()
    return loss


first = closure().item()
for _ in range(50):
    optimiser.step(closure)
print(f"50 steps with the learning rate 1e-12: the loss goes from {first:.4g} to {closure().item():.4g}, should stay")
