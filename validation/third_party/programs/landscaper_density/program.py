# pip install torch==2.13.0 landscaper==1.3.1
import numpy as np
import torch
from landscaper.hessian import PyHessian

torch.manual_seed(0)
Q, small = torch.linalg.qr(torch.randn(60, 60))[0], 0.01 * torch.randn(50)
A = Q @ torch.diag(torch.cat([small, torch.linspace(1.0, 10.0, 10)])) @ Q.T


class Quadratic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(60))

    def forward(self, x):
        return 0.5 * self.w @ (A + A.T) @ self.w / 2 + 0 * x.sum()


zero = torch.zeros(1)
hessian = PyHessian(Quadratic().eval(), lambda output, target: output, [(zero, zero)], "cpu")
values, weights = (np.real(np.array(x)) for x in hessian.density(iter=15, n_v=200))
print(f"shapes: eigenvalues {values.shape}, weights {weights.shape}, which should be the same")
if values.shape != weights.shape:
    values = np.broadcast_to(values[:, None, :], weights.shape)
share = (weights * (np.abs(values) < 0.5)).sum() / weights.sum()
print(f"weight of the eigenvalues below 0.5: {share:.2f}, should be about {50 / 60:.2f}")
