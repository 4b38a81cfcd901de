"""
# Where second-order geodesics stop being good

The paper moves along θ + ξ − ½Γ(ξ, ξ). How far is that from the exact geodesic, and from the straight line θ + ξ? Here
for 40 random directions at a random pair of a head's size; the error is relative to the way that the geodesic goes.
"""

import matplotlib.pyplot as plt
import numpy as np

import refgeo as rg

rng = np.random.default_rng(0)
pair = rg.Pair(rng.standard_normal((40, 33, 8)), rng.standard_normal((40, 33, 8)))
space = rg.InvariantMetric().at(pair)
v = space.random_tangent_vector(rng)


def length(moved):
    return np.linalg.norm(moved.G, axis=(-2, -1)) + np.linalg.norm(moved.H, axis=(-2, -1))


radii = np.geomspace(0.01, 10.0, 20)
for order in (1, 2):
    errors = []
    for rho in radii:
        exact, short = (space.geodesic(rho * v, order=k) for k in ("exact", order))
        errors.append(np.median(length(short - exact) / length(exact - pair)))
    plt.loglog(radii, errors, "o-", label=f"order {order}")
plt.axhline(0.1, color="0.7", lw=1)
plt.xlabel("ρ, the length of the geodesic")
plt.ylabel("relative error")
plt.legend()
plt.show()
