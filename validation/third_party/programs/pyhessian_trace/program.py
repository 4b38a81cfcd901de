# pip install torch==2.13.0 pyhessian==0.1
import warnings

import torch
from pyhessian import hessian

warnings.simplefilter("ignore")  # torch's, about backward(create_graph=True)
torch.manual_seed(0)
R = torch.randn(30, 30)


class Quadratic(torch.nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.w, self.A = torch.nn.Parameter(torch.ones(30)), sign * (3.0 * torch.eye(30) + (R + R.T) / 2.0)

    def forward(self, x):
        return 0.5 * self.w @ self.A @ self.w + 0 * x.sum()


zero = torch.zeros(1)
for sign in (1, -1):
    model = Quadratic(sign)
    one = hessian(model, lambda output, target: output, data=(zero, zero), cuda=False)
    draws = [len(one.trace(maxIter=2000, tol=1e-3)) for _ in range(5)]
    print(f"trace {model.A.trace():.0f}: stops after {min(draws)} to {max(draws)} draws; should not depend on the sign")
