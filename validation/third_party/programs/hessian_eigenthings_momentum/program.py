# pip install torch==2.13.0 hessian-eigenthings==1.0.0a5
import torch
from hessian_eigenthings import LambdaOperator, power_iteration_one

torch.manual_seed(0)
Q = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64))[0]
A = Q @ torch.diag(torch.linspace(-1.0, 5.0, 40, dtype=torch.float64)) @ Q.T
operator = LambdaOperator(lambda v: A @ v, size=40, device=torch.device("cpu"), dtype=torch.float64)
for momentum in (0.0, 0.1, 0.5):
    value, *_, converged = power_iteration_one(operator, max_iter=5000, tol=1e-8, momentum=momentum, seed=0)
    print(f"momentum {momentum}: largest eigenvalue {value:.4f}, converged: {converged}; should be 5.0000")
