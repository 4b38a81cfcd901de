# pip install torch==2.13.0 peft==0.21.2
import torch
from peft.optimizers.lorafa import LoraFAOptimizer

torch.manual_seed(0)
A, B = torch.nn.Parameter(torch.randn(2, 5)), torch.nn.Parameter(torch.zeros(6, 2))
B.grad = torch.randn(6, 2)
group = {"params": [A, B], "names": ["lora_A", "lora_B"], "scaling_factors": [1.0, 1.0]}
optimiser = LoraFAOptimizer([group], betas=(0.0, 0.999))
optimiser.step()
moment = next(state["exp_avg_B"] for state in optimiser.state.values() if "exp_avg_B" in state)
error = (moment - B.grad @ torch.linalg.inv(A @ A.T)).norm() / moment.norm()
print(f"all tensors are in float32; error of the preconditioned gradient {error:.1g}, could be about 1e-7")
