# pip install torch==2.13.0 peft==0.21.2
import torch
from peft import PsoftConfig, get_peft_model

default = PsoftConfig().num_cayley_neumann_terms


def error(terms):
    torch.manual_seed(0)
    options = {
        "psoft_mag_a": False,
        "psoft_mag_b": False,
        "use_cayley_neumann": True,
        "num_cayley_neumann_terms": terms,
    }
    model = get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(24, 20)), PsoftConfig(r=16, target_modules=["0"], **options)
    )
    layer = model.base_model.model[0].psoft_R["default"]
    layer.weight.data = 0.02 * torch.randn(layer.weight.shape, dtype=torch.float64)
    R = layer.get_matrix().detach()
    return torch.linalg.matrix_norm(R.T @ R - torch.eye(16, dtype=torch.float64), 2).item()


print("distance of RᵀR from I: " + ", ".join(f"{error(terms):.0e} with {terms} terms" for terms in (4, 5, 6, 7)))
print(f"the default is {default}")
