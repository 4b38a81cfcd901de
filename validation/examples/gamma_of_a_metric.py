"""The Christoffel term of a metric of one's own, beside a formula for it.

The metric is the sum of inv and mix, ⟨a, b⟩ = tr(M a_Gᵀ b_G) + tr(N a_Hᵀ b_H) with M = S⁻¹ + T and N = T⁻¹ + S.
With Ṁ[a] for the derivative of M along a, 2 Γ_G M = b_G Ṁ[a] + a_G Ṁ[b] − ∇, where ∇ is the gradient of ⟨a, b⟩ by G
with a and b fixed. Γ_H has N in the place of M, and the gradient by H.
"""

import numpy as np

import refgeo as rg


def inner_product(θ, a, b):
    S, T = θ.G.T @ θ.G, θ.H.T @ θ.H
    return np.trace((np.linalg.inv(S) + T) @ a.G.T @ b.G) + np.trace((np.linalg.inv(T) + S) @ a.H.T @ b.H)


def twice(A):
    return A + A.T


rng = np.random.default_rng(0)
θ, a, b = (rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))) for _ in range(3))
K, T = np.linalg.inv(θ.G.T @ θ.G), θ.H.T @ θ.H
Ṁ_a, Ṁ_b = (twice(θ.H.T @ v.H) - K @ twice(θ.G.T @ v.G) @ K for v in (a, b))
gradient = θ.G @ (twice(a.H.T @ b.H) - K @ twice(a.G.T @ b.G) @ K)
Γ_G = (b.G @ Ṁ_a + a.G @ Ṁ_b - gradient) @ np.linalg.inv(K + T) / 2
assert np.allclose(Γ_G, rg.QuotientMetric(inner_product).at(θ).christoffel(a, b).G, rtol=1e-9)
