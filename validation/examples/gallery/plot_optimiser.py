"""
# An optimiser's orbit error, step by step

Two optimisers of low-rank factors start at (G, H) and at (G A⁻¹, H Aᵀ), with the same product. Gradient descent on the
factors depends on the representation from the first step on. Its Riemannian form in mix does not.
"""

import matplotlib.pyplot as plt
import numpy as np

import refgeo as rg

rng = np.random.default_rng(0)
start = rg.Pair(rng.standard_normal((8, 3)), rng.standard_normal((6, 3)))
Y, A = rng.standard_normal((8, 6)), np.diag([0.2, 1.0, 3.0])


def gradient(p):
    E = p.product - Y
    return rg.Pair(E @ p.H, E.T @ p.G)


rules = {
    "gradient descent": lambda p: p - 0.005 * gradient(p),
    "Riemannian, mix": lambda p: p - 0.05 * rg.MixedMetric().at(p).riemannian_gradient(gradient(p)),
}
for name, step in rules.items():
    one, other, travelled, apart = start, start.transform(A), 0.0, []
    for _ in range(25):
        before = one.product
        one, other = step(one), step(other)
        travelled += np.linalg.norm(one.product - before)
        apart.append(np.linalg.norm(one.product - other.product) / travelled)
    plt.semilogy(range(1, 26), np.maximum(apart, 1e-17), "o-", label=name)
plt.xlabel("step")
plt.ylabel("difference / way travelled")
plt.legend()
plt.show()
