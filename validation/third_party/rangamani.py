"""The Riemannian Hessian of Rangamani et al., "A Scale Invariant Measure of Flatness", as released; for two layers.

    REPOSITORIES=FOLDER refgeo check validation/third_party/rangamani.py:hessian --dtype float32 --case 7x4x1/k3

Its metric divides by the squared norm of each layer. That is inv with h = 1 for two layers G and H, which a factor can
be moved between. FOLDER has a clone of akshay-r/scale-invariant-flatness, which computes in float32.
"""

from types import SimpleNamespace

import numpy as np
import torch

from validation.third_party.optimisers import module


def _layers(metric, G, H, *vectors):
    """The Hessian of each block: of a quadratic function with the gradient e at (G, H) and the Hessian w along v."""
    if metric != "inv":
        raise NotImplementedError("the metric divides by the squared norms of the layers, as inv does")
    if G.shape[-1] > 1:
        raise NotImplementedError("a pair of layers is a point with h = 1")
    blocks = [np.reshape(x, (-1, *x.shape[-2:])) for x in (G, H, *vectors)]
    result = [_block(*(torch.tensor(x[i]) for x in blocks)) for i in range(len(blocks[0]))]
    return tuple(np.stack(parts).reshape(x.shape) for parts, x in zip(zip(*result, strict=True), (G, H), strict=True))


def _block(G, H, e_G, e_H, w_G, w_H, v_G, v_H):
    weights = [x.clone().requires_grad_() for x in (G, H)]
    e, w, v = (torch.cat([x.ravel(), y.ravel()]) for x, y in ((e_G, e_H), (w_G, w_H), (v_G, v_H)))
    moved = torch.cat([(x - start).ravel() for x, start in zip(weights, (G, H), strict=True)])
    square = v @ v
    along = (v @ moved) / square if square > 0 else 0.0 * moved.sum()
    loss = e @ moved + along * (w @ moved) - 0.5 * along**2 * (w @ v)  # the Hessian takes v to w, for w·v is symmetric
    vector = module("scale-invariant-flatness", "quotient_manifold_tangent_vector_pytorch.py")
    tangent = vector.QuotientManifoldTangentVector([x.shape for x in weights])
    tangent.set_vector([x.numpy() for x in (v_G, v_H)])
    return tangent.riemannian_hess_vec_prod(loss, weights)


hessian = SimpleNamespace(riemannian_hessian=_layers)
