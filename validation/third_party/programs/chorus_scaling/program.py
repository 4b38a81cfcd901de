# pip install torch==2.13.0 chorus-fl==0.1.0
import torch
from chorus.server.aggregation import FedExLoRA
from chorus.server.weight_manager import fold_residuals_into_base

torch.manual_seed(0)
base = {"lin.weight": torch.randn(24, 24, dtype=torch.float64)}
clients = [{"lin.lora_A.weight": torch.randn(4, 24), "lin.lora_B.weight": torch.randn(24, 4)} for _ in range(3)]


def product(adapter):
    return (adapter["lin.lora_B.weight"] @ adapter["lin.lora_A.weight"]).double()


rule = FedExLoRA()
merged = rule.aggregate(clients)
residual = fold_residuals_into_base(base, rule.get_residuals())["lin.weight"] - base["lin.weight"]
for scaling in (1, 2):  # lora_alpha / r; its own trainer has r = 16 and lora_alpha = 32
    comes = residual + scaling * product(merged)  # what a client adds to the old base weight
    mean = scaling * sum(map(product, clients)) / len(clients)
    error = (comes - mean).norm() / mean.norm()
    print(f"lora_alpha / r = {scaling}: error beside the mean of the clients {error:.1g}, exact would be about 1e-7")
