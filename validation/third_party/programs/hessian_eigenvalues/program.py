# pip install torch==2.13.0 pyhessian==0.1 hessian-eigenthings==1.0.0a5 curvlinops-for-pytorch==3.0.1 landscaper==1.3.1
import contextlib
import io
import warnings

import torch
from curvlinops import HessianLinearOperator
from hessian_eigenthings import HessianOperator, lanczos, power_iteration_one, supervised_loss
from landscaper.hessian import PyHessian
from pyhessian import hessian
from scipy.sparse.linalg import eigsh

warnings.simplefilter("ignore")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
loss, X, y, p = torch.nn.MSELoss(), torch.randn(30, 4), torch.randn(30, 1), dict(model.named_parameters())
sizes = [w.numel() for w in p.values()]


def value(flat):
    parts = {name: x.view_as(w) for (name, w), x in zip(p.items(), flat.split(sizes), strict=True)}
    return loss(torch.func.functional_call(model, parts, X), y)


dense = torch.autograd.functional.hessian(value, torch.cat([w.detach().ravel() for w in p.values()])).double()
top = torch.linalg.eigvalsh(dense).abs().max().item()
operator = HessianOperator(model, [(X, y)], supervised_loss(loss))
found = {
    "curvlinops, eigsh": eigsh(HessianLinearOperator(model, loss, list(p.values()), [(X, y)]).to_scipy(), k=1)[0][0]
}
found["hessian-eigenthings, lanczos"] = lanczos(operator, k=1, max_iter=sum(sizes), seed=0).eigenvalues[0].item()
found["hessian-eigenthings, power iteration"] = power_iteration_one(operator, seed=0)[0]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    found["landscaper, its default tolerance"] = PyHessian(model, loss, [(X, y)], "cpu").eigenvalues()[0][0]
found["PyHessian, its default tolerance"] = hessian(model, loss, data=(X, y), cuda=False).eigenvalues()[0][0]
for name, one in found.items():
    limit = 2e-3 if "tolerance" in name else 1e-6
    print(f"{name}: error of the largest eigenvalue {abs(one / top - 1):.0e}, should be below {limit}")
