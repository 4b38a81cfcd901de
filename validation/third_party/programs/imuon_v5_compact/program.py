# in a clone of 1bang118/manifold-intrinsic-muon, with torch==2.13.0
import contextlib
import importlib.util
import io

import torch

spec = importlib.util.spec_from_file_location("muon", "imuon/swift/trainers/optimizers/muon.py")
muon = importlib.util.module_from_spec(spec)
spec.loader.exec_module(muon)


def change_of_B(variant):
    torch.manual_seed(0)
    A, B = torch.nn.Parameter(torch.randn(2, 5)), torch.nn.Parameter(torch.randn(6, 2))
    A.grad, B.grad, before = torch.randn(2, 5), torch.randn(6, 2), B.detach().clone()
    optimiser = muon.Muon(1.0, muon_params=[A, B], lora_pairs=[(A, B)], wd=0.0, momentum=0.0, nesterov=False,
                          lora_riemannian_muon=True, lora_riemannian_variant=variant, ortho_method="svd",
                          lora_precond_eps=1e-6)  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        optimiser.step()
    return B.detach() - before


v5, compact = (change_of_B(variant) for variant in ("v5", "v5_compact"))
apart = (v5 - compact).norm() / v5.norm()
print(f"the changes of B by v5 and by v5_compact differ by {apart:.2g} of v5's, should be about 1e-6")
