# pip install torch==2.13.0 lora-pro-adamw==0.2.1
import torch
from lora_pro._lorapro import _solve_sylvester_vec

torch.manual_seed(0)
S_B, S_A = (M @ M.T for M in torch.randn(2, 3, 3, dtype=torch.float64))
C = torch.randn(3, 3, dtype=torch.float64)
X = _solve_sylvester_vec(S_B, S_A, C)
residual = (S_B @ X + X @ S_A - C).norm() / C.norm()
print(f"residual of S_B X + X S_A = C, as a share of C: {residual:.2g}, should be about 1e-15")
