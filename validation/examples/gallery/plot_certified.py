"""
# Certified sharpness of a diagonal network

For diagonal networks, refgeo computes a lower and an upper bound of sharpness. The lower bound is an increase that is
reached. Where both meet, sharpness is known.
"""

import matplotlib.pyplot as plt
import numpy as np

import refgeo as rg

rng = np.random.default_rng(0)
u, v = rng.standard_normal((2, 8))
X, y = rng.standard_normal((5, 8)), rng.standard_normal(5)
radii = np.geomspace(0.01, 2.0, 25)
for metric, colour in (("inv", "C0"), ("mix", "C1"), ("adaptive", "C2")):
    bounds = [rg.diagonal.worst_case(metric, u, v, X, y, rho) for rho in radii]
    low, high = (np.array([float(getattr(one, end)) for one in bounds]) for end in ("lower", "upper"))
    plt.fill_between(radii, low / radii, high / radii, color=colour, alpha=0.3)
    plt.plot(radii, low / radii, color=colour, label=metric)
plt.xscale("log")
plt.yscale("log")
plt.xlabel("ρ")
plt.ylabel("sharpness / ρ, between its bounds")
plt.legend()
plt.show()
