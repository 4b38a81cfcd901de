# in a clone of tnurbek/loft, with torch==2.13.0
import torch
from loft_optim.optim_helper import get_reprojected_momentum, get_reprojected_second_moment

torch.manual_seed(0)
R, v = torch.randn(3, 3), torch.randn(3, 1)  # a column of the first moment of A, and what is to become of it: R v
for is_A, moment in ((True, v), (False, v.T)):
    moved = get_reprojected_momentum(R, moment, is_A)
    square = moved @ moved.T if is_A else moved.T @ moved  # the second moment of the moved first one
    second = get_reprojected_second_moment(R, (v @ v.T)[None], is_A)[0]
    apart = (second - square).norm() / square.norm()
    print(f"{'A' if is_A else 'B'}: distance of the two second moments {apart:.2g}, should be 0")
