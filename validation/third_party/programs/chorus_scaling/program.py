# pip install torch==2.13.0 chorus-fl==0.1.0
from inspect import signature

import torch
from chorus.server.aggregation import FedExLoRA
from chorus.server.weight_manager import fold_residuals_into_base

torch.manual_seed(0)
base = {"lin.weight": torch.randn(24, 24, dtype=torch.float64)}
clients = [{"lin.lora_A.weight": torch.randn(4, 24), "lin.lora_B.weight": torch.randn(24, 4)} for _ in range(3)]


def product(adapter):
    return (adapter["lin.lora_B.weight"] @ adapter["lin.lora_A.weight"]).double()


for scaling in (1, 2):  # lora_alpha / r; its own trainer has r = 16 and lora_alpha = 32
    rule = FedExLoRA()
    merged = rule.aggregate(clients)
    known = {"scaling": scaling} if "scaling" in signature(fold_residuals_into_base).parameters else {}
    new_base = fold_residuals_into_base(base, rule.get_residuals(), **known)["lin.weight"]
    comes = new_base - base["lin.weight"] + scaling * product(merged)  # what a client adds to the old base weight
    mean = scaling * sum(map(product, clients)) / len(clients)
    error = (comes - mean).norm() / mean.norm()
    print(f"lora_alpha / r = {scaling}: error beside the mean of the clients {error:.1g}, should be about 1e-7")
