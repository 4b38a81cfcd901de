"""Diagonal networks: closed forms against the general geometry, and what the general search finds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import one_by_one

import refgeo as rg
from refgeo import diagonal
from refgeo.diagonal.geometry import GEOMETRIES, geometry_of

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
BETWEEN = (rg.InterpolatedMetric(0.3), rg.InterpolatedMetric(0.7))
NAMES = ("inv", "mix", "adaptive")


# Geodesics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inv", "mix", *BETWEEN])
def test_geodesics_norms_and_projections_are_those_of_the_pair_geometry(name):
    rng = np.random.default_rng(0)
    for _ in range(20):
        u, v, a, c = rng.standard_normal((4, 6))
        space = METRICS.get(name, name).at(one_by_one(u, v))
        projected = diagonal.horizontal_projection(u, v, a, c)
        expected = space.horizontal_projection(one_by_one(a, c))
        assert np.allclose(projected[0], expected.G[:, 0, 0], rtol=1e-12)
        assert np.allclose(projected[1], expected.H[:, 0, 0], rtol=1e-12)
        length = diagonal.norm(name, u, v, a, c)
        assert length == pytest.approx(np.linalg.norm(space.norm(one_by_one(a, c))), rel=1e-12)
        b = 0.5 * (a / u + c / v)
        t = 0.4 * min(1.0, 0.5 / max(-b.min(), 1e-9))
        moved = diagonal.geodesic(name, u, v, *projected, t=t)
        exact = space.geodesic(one_by_one(*projected), t=t, order="exact")
        assert np.allclose(moved[0], exact.G[:, 0, 0], rtol=1e-10)
        assert np.allclose(moved[1], exact.H[:, 0, 0], rtol=1e-10)


@pytest.mark.parametrize("name", ["inv", "mix", *BETWEEN])
def test_geodesics_are_the_printed_ones_and_solve_the_equation(name):
    """(24), and between them (u(1 + 2sbt)^(1/2s), v(1 + 2sbt)^(1/2s)); the product of mix moves on a line."""
    rng = np.random.default_rng(1)
    (u, v), b = rng.standard_normal((2, 6)), rng.uniform(-0.4, 2.0, 6)
    s = {"inv": 0.0, "mix": 1.0}.get(name) if isinstance(name, str) else name.s
    growth = np.exp(b) if s == 0.0 else (1.0 + 2.0 * s * b) ** (0.5 / s)
    result = diagonal.geodesic(name, u, v, b * u, b * v)
    assert np.allclose(result[0], growth * u, rtol=1e-13)
    assert np.allclose(result[1], growth * v, rtol=1e-13)


def test_the_mix_geodesic_ends_where_a_weight_is_zero():
    u, v = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    velocity = (-0.25 * u, -0.25 * v)  # 1 − ½t reaches zero at 2
    with pytest.raises(rg.GeodesicIncompleteError) as caught:
        diagonal.geodesic("mix", u, v, *velocity, t=2.5)
    assert caught.value.time == pytest.approx(2.0, rel=1e-12)
    with pytest.raises(rg.GeodesicIncompleteError) as caught:
        diagonal.geodesic("mix", u, v, -velocity[0], -velocity[1], t=-3.0)
    assert caught.value.time == pytest.approx(-2.0, rel=1e-12)
    assert np.all(np.isfinite(diagonal.geodesic("inv", u, v, *velocity, t=100.0)))


def test_each_network_of_a_batch_ends_by_itself():
    """1 + 2bt = 0 at t = 1/(2|b|) where b < 0; the first of the batch is named."""
    u, v = np.ones((3, 2)), np.full((3, 2), 2.0)
    b = np.array([[0.1, -0.25], [-1.0, 0.5], [0.3, 0.2]])
    with pytest.raises(rg.GeodesicIncompleteError, match=r"at time 0\.5 ") as caught:
        diagonal.geodesic("mix", u, v, b * u, b * v, 0.5)
    assert caught.value.block[0] == 1
    moved, _ = diagonal.geodesic("mix", u, v, b * u, b * v, 0.4)
    assert np.allclose(moved, np.sqrt(1.0 + 0.8 * b), rtol=1e-14)


def test_mix_follows_a_tilted_velocity_and_frozen_coordinates_stay():
    """With τ = uv and y = log(u/v) mix is ½(dτ² + τ²dy²), flat in polar coordinates: from (1, 0) along (1, 1)."""
    u, v = diagonal.geodesic("mix", [1.0], [1.0], [1.0], [0.0])
    assert (u * v, np.log(u / v)) == (pytest.approx(5.0**0.5), pytest.approx(np.arctan2(1.0, 2.0)))
    for name in NAMES:
        u, v = diagonal.geodesic(name, [0.0, 2.0], [3.0, 1.0], [5.0, 0.2], [5.0, 0.1])
        assert (u[0], v[0]) == (0.0, 3.0)
        assert u[1] > 2.0


@pytest.mark.parametrize("name", [*NAMES, *BETWEEN])
def test_coordinates_are_isometric_and_their_velocities_end_where_the_shift_says(name):
    rng = np.random.default_rng(1)
    geometry = geometry_of(name)
    for _ in range(50):
        u, v = rng.standard_normal((2, 5))
        u[0] = 0.0
        t = rng.standard_normal(5) * (u != 0)
        t = np.maximum(t, 0.9 * geometry.lowest(u * v))
        eta_u, eta_v = geometry.velocity(u, v, t)
        assert diagonal.norm(name, u, v, eta_u, eta_v) == pytest.approx(np.linalg.norm(t), rel=1e-12)
        moved_u, moved_v = diagonal.geodesic(name, u, v, eta_u, eta_v)
        assert np.allclose(moved_u * moved_v - u * v, geometry.shift(u * v, t), rtol=1e-12, atol=1e-14)
        shift, slope, curvature = (f(u * v, t) for f in (geometry.shift, geometry.slope, geometry.curvature))
        # between inv and mix, beside the distance from the end
        h = 1e-5 if name in NAMES else np.where(u != 0, 1e-4 * (t - geometry.end(u * v)), 1.0)
        plus, minus = geometry.shift(u * v, t + h), geometry.shift(u * v, t - h)
        smooth = np.abs(t + np.sqrt(0.5)) > 0.01  # the adaptive shift bends suddenly there
        first, second = (plus - minus) / (2 * h), (plus - 2 * shift + minus) / h**2
        assert np.allclose(first[smooth], slope[smooth], rtol=1e-8, atol=1e-9)
        assert np.allclose(second[smooth], curvature[smooth], rtol=1e-4, atol=1e-4)


def test_no_pair_of_weights_reaches_a_product_more_cheaply_than_adaptive_coordinates_say():
    adaptive = geometry_of("adaptive")
    for t in (-3.0, -1.2, -1.0, -0.72, -0.7, -0.3, 0.4, 2.0):
        product = 1.0 + float(adaptive.shift(np.asarray(1.0), np.asarray(t)))
        x = np.concatenate([np.linspace(-6, -1e-3, 40_001), np.linspace(1e-3, 6, 40_001)])
        price = (x - 1) ** 2 + (product / x - 1) ** 2
        assert price.min() >= t * t * (1 - 1e-12)
        assert price.min() <= t * t * (1 + 1e-5)


# The general machinery -------------------------------------------------------------------------------------------


def network_loss(X, y):
    def value_and_grad(pair):
        u, v = pair.G[:, 0, 0], pair.H[:, 0, 0]
        residual = X @ (u * v) - y
        e = 2 * X.T @ residual
        return float(residual @ residual), one_by_one(e * v, e * u)

    return value_and_grad


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inv", "mix"])
def test_auto_pgd_reaches_the_certified_maximum(name):
    """Default settings, 10 networks: at least 99.9% of the certified value in 95% of them, and never more."""
    reached = []
    for d in (3, 10):
        rng = np.random.default_rng([d, 15])
        u, v = rng.standard_normal((2, 5, d))
        u, v = u + np.sign(u), v + np.sign(v)
        X = rng.standard_normal((5, d + 2, d))
        noise = rng.standard_normal((5, d + 2)) * 10 ** rng.uniform(-3, 0, (5, 1))
        y, rho = (X @ (u * v)[..., None])[..., 0] + noise, 10 ** rng.uniform(-3, -1, 5)
        actual = diagonal.worst_case(name, u, v, X, y, rho)
        for k in range(5):
            value_and_grad, start = network_loss(X[k], y[k]), one_by_one(u[k], v[k])
            result = rg.worst_case_sharpness(value_and_grad, start, METRICS[name], rho[k], order="exact")
            assert result.value <= actual.upper[k] * (1 + 1e-9)
            reached.append(result.value >= 0.999 * actual.lower[k])
    assert np.mean(reached) >= 0.95


def test_auto_pgd_reaches_the_certified_adaptive_maximum():
    for i in range(20):
        rng = np.random.default_rng([i, 16])
        u, v = rng.standard_normal((2, 6))
        X, y = rng.standard_normal((5, 6)), rng.standard_normal(5)
        actual = diagonal.worst_case("adaptive", u, v, X, y, 0.05)

        def value_and_grad(w, X=X, y=y):
            residual = X @ (w[0] * w[1]) - y
            e = 2 * X.T @ residual
            return float(residual @ residual), np.stack([e * w[1], e * w[0]])

        result = rg.adaptive_sharpness(value_and_grad, np.stack([u, v]), 0.05, n_iter=60)
        assert 0.999 * actual.lower <= result.value <= actual.upper * (1 + 1e-9)


@pytest.mark.parametrize("name", ["inv", "mix", *BETWEEN])
def test_the_second_order_value_is_that_of_the_riemannian_hessian(name):
    """At zero residual the value is ½ρ²λ_max of the Hessian on the quotient, here as a dense matrix."""
    rng = np.random.default_rng(17)
    d = 5
    u, v = rng.standard_normal((2, d))
    X = rng.standard_normal((3, d))
    space = METRICS.get(name, name).at(one_by_one(u, v))
    zero = one_by_one(np.zeros(d), np.zeros(d))
    geometry = geometry_of(name)
    H = np.empty((d, d))
    basis = [one_by_one(*geometry.velocity(u, v, row)) for row in np.eye(d)]
    for i, xi in enumerate(basis):
        along = X @ (xi.G[:, 0, 0] * v + u * xi.H[:, 0, 0])  # of the residual, which is zero
        ehess = one_by_one(2 * X.T @ along * v, 2 * X.T @ along * u)
        apply = space.riemannian_hessian(zero, ehess, xi)
        for j, zeta in enumerate(basis):
            H[j, i] = np.sum(space.inner_product(zeta, apply))
    result = diagonal.second_order(name, u, v, X, X @ (u * v), 0.1)
    assert float(result.lower) == pytest.approx(0.005 * np.linalg.eigvalsh(H)[-1], rel=1e-10)


def test_all_geometries_are_tested():
    assert set(GEOMETRIES) == set(NAMES)
