"""
# The same network, other gradients

Two weights G and H, and the loss (GH − 1)². All points of a curve GH = const are the same network. The norm of the
Riemannian gradient is constant along these curves, as the loss is; the Euclidean one is not.
"""

import matplotlib.pyplot as plt
import numpy as np

import refgeo as rg

G, H = np.meshgrid(np.linspace(0.1, 3.0, 200), np.linspace(0.1, 3.0, 200))
euclidean, inv, _ = rg.paper.toy_gradient_norms(G, H, 1.0, 1.0)
pictures = {"loss": (G * H - 1.0) ** 2, "Euclidean gradient norm": euclidean, "gradient norm, inv": inv}
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for axis, (title, values) in zip(axes, pictures.items(), strict=True):
    axis.contour(G, H, np.log(values + 1e-3), 12, cmap="viridis")
    axis.plot(G[0], 1.0 / G[0], "k--", lw=1)  # the minima
    axis.set(title=title, xlabel="G", ylim=(0.1, 3.0))
axes[0].set_ylabel("H")
plt.show()
