"""
# The spectrum of a small transformer

Eigenvalues of the Hessian with respect to the query and key weights of two heads: in weight space, at two sets of
weights that compute the same function, and modulo GL(h). Only the last are the same.
"""

import matplotlib.pyplot as plt
import numpy as np

import refgeo as rg

rng = np.random.default_rng(0)
model = rg.networks.AttentionClassifier(width=8, heads=2)
params, name = model.init(0), "layer0.query_key"
batch = rng.integers(0, model.vocabulary, (64, model.length)), rng.integers(0, model.classes, 64)
loss = rg.value_and_grad(lambda p: model.loss({**params, name: p}, batch))
moved = params[name].transform(np.eye(4) + 0.7 * rng.standard_normal((2, 4, 4)))


def of_arrays(p):
    value, gradient = loss(rg.Pair(p["G"], p["H"]))
    return value, {"G": gradient.G, "H": gradient.H}


plain = rg.ProductMetric({"G": rg.EuclideanMetric(), "H": rg.EuclideanMetric()})
for label, pair in (("", params[name]), (", equivalent weights", moved)):
    euclidean = rg.spectrum.RiemannianHessian(of_arrays, {"G": pair.G, "H": pair.H}, plain)
    modulo = rg.spectrum.RiemannianHessian(loss, pair, rg.InvariantMetric())
    for kind, hessian, mark in (("Euclidean", euclidean, "."), ("modulo GL(h)", modulo, "+")):
        values = rg.spectrum.eigenvalues(hessian, 20).values
        plt.semilogy(np.arange(1, 21), np.maximum(values, 1e-8), mark, label=kind + label, alpha=0.8, ms=9)
plt.xlabel("number")
plt.ylabel("eigenvalue")
plt.legend()
plt.show()
