"""
# A wrong backend's report

A backend with one mistake: S⁻¹ stands where T⁻¹ belongs. The picture has the digits that each function keeps at each
point, against the condition number; the report says what is wrong.
"""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np

import refgeo as rg


def gradient(metric, G, H, e_G, e_H):
    S, T = G.mT @ G, H.mT @ H
    return (e_G @ S, e_H @ T) if metric == "inv" else (e_G @ np.linalg.inv(S), e_H @ np.linalg.inv(T))


backend = SimpleNamespace(riemannian_gradient=gradient, inner_product=rg.paper.inner_product)
report = rg.check(backend)
print("\n".join(report.conclusion))
for row in (row for row in report.judged if row.metric in ("inv", "mix")):
    points = [(one.condition, one.digits) for one in row.measurements]
    plt.semilogx(*zip(*points, strict=True), ".", alpha=0.5, label=f"{row.check}, {row.metric}: {row.verdict.value}")
plt.xlabel("κ of the factors")
plt.ylabel("digits kept")
plt.legend()
plt.show()
