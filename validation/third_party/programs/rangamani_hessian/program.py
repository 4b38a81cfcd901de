# in a clone of akshay-r/scale-invariant-flatness, with torch==2.13.0
import torch
from quotient_manifold_tangent_vector_pytorch import QuotientManifoldTangentVector

torch.manual_seed(0)
layers = [torch.randn(5, 3), torch.randn(4, 3)]
target = layers[0] @ layers[1].T  # the loss ½‖W₁W₂ᵀ − target‖² has a minimum here, and at α W₁, W₂/α
v = [torch.randn(5, 3), torch.randn(4, 3)]
slopes = [(w * x).sum() / (w * w).sum() for w, x in zip(layers, v, strict=True)]
v[1] += (slopes[0] - slopes[1]) * layers[1]  # so v is horizontal: orthogonal to (W₁, −W₂) in the metric Σ‖v_W‖²/‖W‖²


def quadratic_forms(layers):
    """⟨v, Hess v⟩ by the package, and the second derivative of the loss along the geodesic of v."""
    w = [x.clone().requires_grad_() for x in layers]
    loss = 0.5 * ((w[0] @ w[1].T - target) ** 2).sum()
    vector = QuotientManifoldTangentVector([x.shape for x in w])
    vector.set_vector([x.numpy() for x in v])
    product = vector.riemannian_hess_vec_prod(loss, w)
    package = sum((x.numpy() * h).sum() / (y * y).sum().item() for x, h, y in zip(v, product, layers, strict=True))
    bend = [(2 * (y * x).sum() * x - (x * x).sum() * y) / (y * y).sum() for x, y in zip(v, layers, strict=True)]
    t = torch.zeros((), requires_grad=True)
    curve = [y + t * x + 0.5 * t**2 * b for x, y, b in zip(v, layers, bend, strict=True)]
    along = 0.5 * ((curve[0] @ curve[1].T - target) ** 2).sum()
    (slope,) = torch.autograd.grad(along, t, create_graph=True)
    return package, torch.autograd.grad(slope, t)[0].item()


for where, factor in (("at the minimum", 1.0), ("with the first layer 1.5 times as large", 1.5)):
    package, second = quadratic_forms([factor * layers[0], layers[1]])
    print(f"{where}: by the package {package:.5g}, along the geodesic {second:.5g}")
