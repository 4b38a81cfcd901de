"""
# Sharpness along an orbit

The heads of a small transformer move along their orbit: A = exp(tK) changes the query and key weights, and no output.
Sharpness in the two metrics of the paper stays the same. Adaptive sharpness does not.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import expm

import refgeo as rg

rng = np.random.default_rng(0)
model = rg.networks.AttentionClassifier(width=8, heads=2)
params = model.init(0)
batch = rng.integers(0, model.vocabulary, (16, model.length)), rng.integers(0, model.classes, 16)
loss = rg.value_and_grad(lambda p: model.loss(p, batch))
frozen, name, K = ["tokens", "positions"], "layer0.query_key", rng.standard_normal((2, 4, 4)) / 2

times = np.linspace(0.0, 2.0, 6)
found = {"inv": [], "mix": [], "adaptive": []}
for t in times:
    moved = {**params, name: params[name].transform(expm(t * K))}
    for metric in ("inv", "mix"):
        result = rg.worst_case_sharpness(loss, moved, model.metric(metric, frozen=frozen), 0.1, n_restarts=1)
        found[metric].append(result.value)
    names = [block for block in moved if block not in frozen]
    found["adaptive"].append(rg.adaptive_sharpness(loss, moved, 0.1, names=names, n_restarts=1).value)
for label, values in found.items():
    plt.plot(times, np.divide(values, values[0]), "o-", label=label)
plt.xlabel("t, along the orbit")
plt.ylabel("sharpness, relative to the start")
plt.legend()
plt.show()
