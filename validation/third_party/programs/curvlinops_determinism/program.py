# pip install torch==2.13.0 curvlinops-for-pytorch==3.0.1
import contextlib
import io

import torch
from curvlinops import HessianLinearOperator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model, data = torch.nn.Linear(4, 2), TensorDataset(torch.randn(12, 4), torch.randn(12, 2))
loader = DataLoader(data, batch_size=4, shuffle=True)
arguments = model, torch.nn.MSELoss(), list(model.parameters()), loader
plain = HessianLinearOperator(*arguments, check_deterministic=False)
one, other = plain @ torch.eye(10), plain @ torch.eye(10)
losses = [plain.gradient_and_loss()[1] for _ in range(2)]
print(
    f"two Hessians differ by {(one - other).abs().max():.0e}, and the total loss by {abs(losses[0] - losses[1]):.0e};"
)
refused = 0
for _ in range(20):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            HessianLinearOperator(*arguments)
        except RuntimeError as error:
            refused, said = refused + 1, str(error)
print(f"refused {refused} times of 20, should be 0" + (f': "{said}"' if refused else ""))
