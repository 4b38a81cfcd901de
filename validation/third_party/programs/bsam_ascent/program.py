# pip install torch==2.13.0 pytorch_optimizer==4.1.0
import torch
from pytorch_optimizer import BSAM

a = torch.linspace(0.5, 2.0, 1000, dtype=torch.float64)


def run(steps, **options):
    """The loss before and after, and how far the weights have moved."""
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.ones(1000, dtype=torch.float64))
    optimiser = BSAM([weights], num_data=10**12, **options)

    def closure():
        optimiser.zero_grad()
        loss = 0.5 * (a * weights**2).sum()
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(steps):
        optimiser.step(closure)
    return first, closure().item(), (weights.detach() - 1.0).norm().item()


first, last, _ = run(50, lr=1e-12)
print(f"50 steps with the learning rate 1e-12: the loss goes from {first:.4g} to {last:.4g}, should stay")
*_, moved = run(1, lr=0.5, rho=0.0, weight_decay=0.0)
print(f"a step without decay and ascent: the weights move by {moved:.1g}, a gradient with momentum moves them by 2")
