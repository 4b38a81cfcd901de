# pip install torch==2.13.0 hessian-eigenthings==1.0.0a5
import torch
from hessian_eigenthings import HessianOperator, supervised_loss

torch.manual_seed(0)
model, X, y, v = (
    torch.nn.Linear(4, 1).double(),
    torch.randn(10, 4).double(),
    torch.randn(10, 1).double(),
    torch.randn(5).double(),
)
loss = supervised_loss(torch.nn.MSELoss())
whole = HessianOperator(model, [(X, y)], loss).matvec(v)
for size in (5, 4, 3):
    parts = HessianOperator(model, [(X, y)], loss, microbatch_size=size).matvec(v)
    error = (parts - whole).norm() / whole.norm()
    print(f"10 examples in microbatches of {size}: error of H v {error:.1g}, should be about 1e-16")
