"""The path of diagonal networks, its ends, the bounds of their sharpness, and the same for matrices."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

import refgeo as rg
from refgeo import diagonal
from validation.findings import phase, sensing
from validation.findings.study.diagonal_sets import Setting, drawn

RESULTS = Path(phase.__file__).parents[1] / "results"


def problem(seed, n=6, d=12, zeros=0.5):
    return drawn(Setting(zeros=zeros, n=n, d=d), np.random.default_rng(seed))


def test_the_path_is_where_gradient_flow_ends():
    X, y, _ = problem(0)
    for alpha in (0.1, 1.0):

        def flow(_, weights):
            u, v = np.split(weights, 2)
            e = X.T @ (X @ (u * v) - y)
            return -np.concatenate([e * v, e * u])

        start = np.concatenate([np.full(12, alpha), np.zeros(12)])
        end = scipy.integrate.solve_ivp(flow, (0.0, 1e4), start, method="LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
        beta = phase.path(X, y, np.array([alpha]))
        assert np.allclose(X @ (end[:12] * end[12:]), y, atol=1e-6)
        assert np.allclose(phase.weights(beta, np.array([alpha])), np.split(end[:, None].T, 2, axis=1), atol=1e-6)


def test_its_ends_are_the_interpolators_of_least_norm():
    for seed in range(5):
        X, y, _ = problem(seed)
        small, *_, large = phase.path(X, y, np.geomspace(1e-10, 100.0, 60))
        assert np.allclose(small, phase.sparsest(X, y), atol=1e-4)  # the distance vanishes like a power of α
        assert np.allclose(large, np.linalg.pinv(X) @ y, atol=1e-6)


def test_every_network_of_the_path_fits_and_minimises_its_potential():
    """No move within the solutions of Xβ = y makes Σ β asinh(2β/α²) − ½√(4β² + α⁴) smaller."""
    X, y, _ = problem(1)
    rng = np.random.default_rng(0)
    free = np.linalg.svd(X)[2][6:]

    def potential(beta, alpha):
        return np.sum(beta * np.arcsinh(2.0 * beta / alpha**2) - 0.5 * np.hypot(2.0 * beta, alpha**2))

    for alpha in (1e-4, 0.1, 1.0):
        (beta,) = phase.path(X, y, np.array([alpha]))
        assert np.allclose(X @ beta, y, rtol=1e-11)
        for size in (1e-3, 0.1):
            for _ in range(20):
                moved = beta + size * rng.standard_normal(6) @ free
                assert potential(moved, alpha) > potential(beta, alpha)


def test_sharpness_at_zero_residual_lies_between_its_bounds():
    """Hundreds of instances, against certified bounds, which come from another derivation."""
    rng = np.random.default_rng(0)
    for k in range(40):
        n, d = rng.integers(1, 9, 2)
        X, beta = rng.standard_normal((n, d)), rng.standard_normal((8, d)) * 10.0 ** rng.uniform(-2, 2, (8, d))
        rho = float(10.0 ** rng.uniform(-3, -0.3))
        y = (X @ beta.T).T
        top = np.array([np.linalg.norm(X * np.abs(b), 2) ** 2 for b in beta])
        low, high = phase.bounds(top, rho)
        found = diagonal.worst_case("inv", *phase.weights(beta, np.full(8, 0.1)), X, y, rho, tight=False)
        assert np.all(found.lower <= high * (1.0 + 1e-12)), k
        assert np.all(found.upper >= low * (1.0 - 1e-12)), k
    assert np.allclose(np.divide(*phase.bounds(1.0, 1e-6)), 1.0, atol=1e-5)
    assert np.allclose(phase.bounds(3.0, 1e-4), 2 * 1e-8 * 3.0, rtol=1e-3)


def test_with_orthonormal_columns_the_upper_bound_is_the_sharpness():
    rng = np.random.default_rng(1)
    X = np.linalg.qr(rng.standard_normal((7, 5)))[0]
    beta = rng.standard_normal((6, 5))
    for rho in (0.01, 0.1, 0.5):
        found = diagonal.worst_case("inv", *phase.weights(beta, np.ones(6)), X, beta @ X.T, rho)
        top = np.abs(beta).max(axis=1) ** 2
        assert np.allclose(found.lower, phase.bounds(top, rho)[1], rtol=1e-9)
        assert np.all(found.exact)


@pytest.mark.slow
def test_theory_has_the_published_transition_and_the_errors_of_large_problems():
    """The transition in the closed form of Donoho, Maleki and Montanari (2009): 0.385 n at n = d/2."""
    z = np.linspace(0.01, 4.0, 4000)
    risk = 2.0 * ((1.0 + z**2) * scipy.stats.norm.sf(z) - z * scipy.stats.norm.pdf(z))
    for points in (0.5, 0.1):
        threshold = np.max((1.0 - risk / points) / (1.0 + z**2 - risk))
        assert points == 0.1 or threshold == pytest.approx(0.385, abs=1e-3)
        below, above = (phase.limits(points, 1.0 - points * (threshold + change), 0.0)[0] for change in (-0.01, 0.01))
        assert below < 1e-6
        assert above > 1e-3
    for n, zeros, noise in ((60, 0.7, 0.0), (100, 0.5, 0.5)):
        errors = []
        for seed in range(40):
            X, y, truth = drawn(Setting(zeros=zeros, n=n, noise=noise), np.random.default_rng(seed))
            ends = phase.sparsest(X, y), np.linalg.pinv(X) @ y
            errors.append([np.sum((end - truth) ** 2) / np.sum(truth**2) for end in ends])
        apart = np.mean(errors, axis=0) - phase.limits(n / 200, zeros, noise)
        assert np.all(np.abs(apart) < 4.0 * np.std(errors, axis=0) / 40**0.5 + 0.02)  # d = 200 is not ∞


def test_soft_thresholding_has_the_error_of_a_sample():
    rng = np.random.default_rng(0)
    beta = rng.standard_normal(2_000_000) * (rng.random(2_000_000) < 0.3)
    seen = beta + 0.7 * rng.standard_normal(len(beta))
    theta = np.quantile(np.abs(seen), 1.0 - 0.4)
    error = np.mean((np.sign(seen) * np.maximum(np.abs(seen) - theta, 0.0) - beta) ** 2)
    assert phase._thresholded(0.4, 0.3, 0.7) == pytest.approx(error, rel=5e-3)


def test_a_matrix_network_has_the_sharpness_that_a_search_finds():
    rng = np.random.default_rng(0)
    A, G, H = rng.standard_normal((20, 5, 4)), rng.standard_normal((5, 4)), rng.standard_normal((4, 4))
    y = np.sum(A * (G @ H.T), axis=(1, 2))

    def loss(blocks):
        g, h = blocks["X"]
        residual = np.sum(A * (g @ h.T), axis=(1, 2)) - y
        E = 2.0 * np.tensordot(residual, A, 1)
        return residual @ residual, {"X": (E @ h, E.T @ g)}

    rho = 1e-4
    metric = rg.ProductMetric({"X": rg.InvariantMetric()})
    found = rg.worst_case_sharpness(loss, {"X": rg.Pair(G, H)}, metric, rho, n_iter=100)
    assert found.value == pytest.approx(rho**2 * sensing.top(G, H, A), rel=1e-3)


def test_least_nuclear_norm_is_that_of_a_dual_certificate():
    """A point with Y = 𝒜*(λ), ‖Y‖ ≤ 1 and ⟨Y, X⟩ = ‖X‖_* is optimal; λ from least squares on the tangent space."""
    A, truth = sensing.drawn(2, 60, np.random.default_rng(3))
    y = np.sum(A * truth, axis=(1, 2))
    X = sensing.least_nuclear(A, y)
    assert np.allclose(np.sum(A * X, axis=(1, 2)), y, atol=1e-8)
    nuclear = np.linalg.norm(X, "nuc")
    flat = A.reshape(len(y), -1)

    def largest(dual):
        return np.linalg.norm((dual @ flat).reshape(10, 10), 2)

    rng = np.random.default_rng(0)
    free = np.linalg.svd(flat)[2][len(y) :]
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(50):
            assert (
                np.linalg.norm(X + (size * rng.standard_normal(len(free)) @ free).reshape(10, 10), "nuc")
                > nuclear - 1e-9
            )
    start = np.linalg.lstsq(flat.T, (np.linalg.svd(X)[0][:, :2] @ np.linalg.svd(X)[2][:2]).ravel(), rcond=None)[0]
    best = scipy.optimize.minimize(
        lambda dual: -(dual @ y) / largest(dual), start, method="BFGS", options={"gtol": 1e-10}
    )
    assert -best.fun == pytest.approx(nuclear, rel=1e-3)  # the dual problem: max ⟨λ, y⟩ over ‖𝒜*(λ)‖ ≤ 1


@pytest.mark.parametrize("name", ["phase", "sensing"])
def test_published_samples_can_be_computed_again(name):
    document = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    ((task, before),) = document["sample"].items()
    cell, seed = task.split(" | ")
    if name == "phase":
        chosen = phase.cells(False)["n/d"] | phase.cells(False)["noise"]
        again = phase.one_set(int(seed), *chosen[cell.rsplit(",", 1)[0]])
    else:
        rank, n = (int(part.split()[1]) for part in cell.split(","))
        again = sensing.one_set(int(seed), rank, n)
    for key, value in before.items():
        assert np.allclose(again[key], value, rtol=1e-3, atol=0.02), key
