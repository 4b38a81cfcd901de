# in a clone of vcastin/balora, with torch==2.13.0
from types import SimpleNamespace

import torch
from callbacks import ProjectionCallback

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def layer(A, B):
    holder = [SimpleNamespace(default=SimpleNamespace(weight=torch.nn.Parameter(x.clone()))) for x in (A, B)]
    module = torch.nn.Module()
    module.lora_A, module.lora_B = holder
    return module


for condition in (1.0, 1e4):
    A, B = torch.randn(8, 32), torch.randn(24, 8) @ torch.diag(torch.logspace(0, -torch.tensor(condition).log10(), 8))
    module = layer(A, B)
    ProjectionCallback(module, 1).on_step_end(None, SimpleNamespace(global_step=1), None)
    a, b = module.lora_A.default.weight.data, module.lora_B.default.weight.data
    product, balance = (b @ a - B @ A).norm() / (B @ A).norm(), (b.T @ b - a @ a.T).norm() / (a @ a.T).norm()
    print(
        f"condition {condition:.0e}: change of B A {product:.0e}, of the balance {balance:.0e}, should be below 1e-13"
    )
