"""The path of diagonal networks, its ends, the bounds of their sharpness."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from refgeo import diagonal
from validation.findings import phase
from validation.findings.study.diagonal_sets import Setting, draw_set

RESULTS = Path(phase.__file__).parents[1] / "results"


def problem(seed, n=6, d=12, zeros=0.5):
    return draw_set(Setting(zeros=zeros, n=n, d=d), np.random.default_rng(seed))


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
        result = diagonal.worst_case("inv", *phase.weights(beta, np.full(8, 0.1)), X, y, rho, tight=False)
        assert np.all(result.lower <= high * (1.0 + 1e-12)), k
        assert np.all(result.upper >= low * (1.0 - 1e-12)), k
    assert np.allclose(np.divide(*phase.bounds(1.0, 1e-6)), 1.0, atol=1e-5)
    assert np.allclose(phase.bounds(3.0, 1e-4), 2 * 1e-8 * 3.0, rtol=1e-3)


def test_with_orthonormal_columns_the_upper_bound_is_the_sharpness():
    rng = np.random.default_rng(1)
    X = np.linalg.qr(rng.standard_normal((7, 5)))[0]
    beta = rng.standard_normal((6, 5))
    for rho in (0.01, 0.1, 0.5):
        result = diagonal.worst_case("inv", *phase.weights(beta, np.ones(6)), X, beta @ X.T, rho)
        top = np.abs(beta).max(axis=1) ** 2
        assert np.allclose(result.lower, phase.bounds(top, rho)[1], rtol=1e-9)
        assert np.all(result.exact)


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
            X, y, truth = draw_set(Setting(zeros=zeros, n=n, noise=noise), np.random.default_rng(seed))
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
    assert phase._threshold_error(0.4, 0.3, 0.7) == pytest.approx(error, rel=5e-3)


def test_the_published_sample_can_be_computed_again():
    document = json.loads((RESULTS / "phase.json").read_text(encoding="utf-8"))
    ((task, before),) = document["sample"].items()
    cell, seed = task.split(" | ")
    chosen = phase.cells(False)["n/d"] | phase.cells(False)["noise"]
    again = phase.one_set(int(seed), *chosen[cell.rsplit(",", 1)[0]])
    for key, value in before.items():
        assert np.allclose(again[key], value, rtol=1e-3, atol=0.02), key
