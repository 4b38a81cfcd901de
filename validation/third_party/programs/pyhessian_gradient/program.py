# pip install torch==2.13.0 pyhessian==0.1
import warnings

import torch
from pyhessian import hessian

warnings.simplefilter("ignore")  # torch's, about backward(create_graph=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
loss, X, y = torch.nn.CrossEntropyLoss(), torch.randn(6, 4), torch.randint(0, 2, (6,))
first = hessian(model, loss, data=(X, y), cuda=False)
second = hessian(model, loss, data=(X, y), cuda=False)
one = second.eigenvalues(maxIter=2000, tol=1e-7)[0][0]
model.zero_grad()
other = hessian(model, loss, data=(X, y), cuda=False).eigenvalues(maxIter=2000, tol=1e-7)[0][0]
times = one / other
print(f"the largest eigenvalue by a second object of the same model is {times:.3f} times the right one, should be 1")
