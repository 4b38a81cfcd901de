"""The scalar toy model: closed forms against differences, the pair geometry, and diagonal networks of width one."""

from __future__ import annotations

import numpy as np
import pytest

import refgeo as rg
from refgeo import diagonal, toy

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
DATA = [([1.7], [2.0]), ([1.0, -2.0, 0.5], [0.3, 1.0, -2.0])]


def pair(G, H):
    return rg.Pair([[G]], [[H]])


@pytest.mark.parametrize(("x", "y"), DATA)
def test_euclidean_gradient_and_hessian_are_differences_of_the_loss(x, y):
    G, H, h = 1.3, -0.7, 1e-4

    def f(a, b):
        return float(toy.loss(a, b, x, y))

    gradient = [(f(G + h, H) - f(G - h, H)) / (2 * h), (f(G, H + h) - f(G, H - h)) / (2 * h)]
    assert np.allclose(toy.euclidean_gradient(G, H, x, y), gradient, rtol=1e-7)
    assert toy.gradient_norm("Euclidean", G, H, x, y) == pytest.approx(np.hypot(*gradient), rel=1e-7)
    second = [(f(G + h, H) - 2 * f(G, H) + f(G - h, H)) / h**2, (f(G, H + h) - 2 * f(G, H) + f(G, H - h)) / h**2]
    crossed = (f(G + h, H + h) - f(G + h, H - h) - f(G - h, H + h) + f(G - h, H - h)) / (4 * h * h)
    hessian = toy.euclidean_hessian(G, H, x, y)
    assert np.allclose(hessian, [[second[0], crossed], [crossed, second[1]]], rtol=1e-5)
    assert toy.hessian_trace("Euclidean", G, H, x, y) == pytest.approx(np.trace(hessian), rel=1e-12)


@pytest.mark.parametrize("name", ["inv", "mix"])
@pytest.mark.parametrize(("x", "y"), DATA)
def test_riemannian_quantities_are_those_of_the_pair_geometry(name, x, y):
    G, H = 1.3, -0.7
    space = METRICS[name].at(pair(G, H))
    egrad = pair(*map(float, toy.euclidean_gradient(G, H, x, y)))
    gradient = space.riemannian_gradient(egrad)
    assert np.allclose(toy.riemannian_gradient(name, G, H, x, y), [gradient.G.item(), gradient.H.item()], rtol=1e-12)
    assert toy.gradient_norm(name, G, H, x, y) == pytest.approx(float(space.norm(gradient)), rel=1e-12)
    v = space.random_tangent_vector(0)
    along = toy.euclidean_hessian(G, H, x, y) @ [v.G.item(), v.H.item()]
    applied = space.riemannian_hessian(egrad, pair(*along), v)
    assert toy.hessian_trace(METRICS[name], G, H, x, y) == pytest.approx(
        float(space.inner_product(v, applied)), rel=1e-11
    )


def test_riemannian_quantities_are_functions_of_the_product_and_euclidean_ones_are_not():
    """The numerical content of Figures 1 and 6."""
    x, y = DATA[1]
    for P in (-2.0, 0.4, 3.0):
        G = np.geomspace(0.05, 20.0, 41)
        H = P / G
        for quantity in (toy.gradient_norm, toy.hessian_trace):
            for name in ("inv", "mix"):
                values = quantity(name, G, H, x, y)
                assert np.ptp(values) <= 1e-12 * np.max(np.abs(values))
            euclidean = quantity("Euclidean", G, H, x, y)
            assert euclidean.max() > 10 * euclidean.min()


@pytest.mark.parametrize("name", ["inv", "mix", "adaptive"])
@pytest.mark.parametrize(("x", "y"), DATA)
def test_sharpness_is_that_of_a_diagonal_network_of_width_one(name, x, y):
    rng = np.random.default_rng(0)
    for rho in (1e-3, 0.3, 2.0):
        G, H = rng.standard_normal((2, 30))
        found = diagonal.worst_case(name, G[:, None], H[:, None], np.array(x)[:, None], y, rho)
        assert np.allclose(toy.worst_case(name, G, H, x, y, rho), found.lower, rtol=1e-9)
        assert np.allclose(toy.worst_case(name, G, H, x, y, rho), found.upper, rtol=1e-9)


@pytest.mark.parametrize("name", ["inv", "mix"])
def test_sharpness_is_that_of_the_general_search(name):
    def value_and_grad(p):
        G, H = p.G.item(), p.H.item()
        return float(toy.loss(G, H, 1.7, 2.0)), pair(*map(float, toy.euclidean_gradient(G, H, 1.7, 2.0)))

    for G, H in ((1.3, -0.7), (0.4, 2.0)):
        found = rg.worst_case_sharpness(value_and_grad, pair(G, H), METRICS[name], 0.1, order="exact")
        assert found.value == pytest.approx(float(toy.worst_case(name, G, H, 1.7, 2.0, 0.1)), rel=1e-9)


def test_small_radii_away_from_the_minimum_and_at_it():
    """S = 2√2ρ|y₀||y − y₀| + O(ρ²), and 2ρ²y₀² + O(ρ³) at the minimum, with the stated second-order term."""
    G, H, x = 1.3, 0.9, 1.7
    y0 = G * H * x
    for y in (y0 + 0.5, y0 - 2.0):
        for rho in (1e-3, 1e-4):
            first = 2 * 2**0.5 * rho * abs(y0) * abs(y - y0)
            second = 2 * rho**2 * y0 * (2 * y0 - y)
            assert float(toy.worst_case("inv", G, H, x, y, rho)) == pytest.approx(first + second, rel=5 * rho**2)
            assert first == pytest.approx(rho * float(toy.gradient_norm("inv", G, H, x, y)), rel=1e-12)
    for rho in (1e-3, 1e-4):
        assert float(toy.worst_case("inv", G, H, x, y0, rho)) == pytest.approx(2 * rho**2 * y0**2, rel=2 * rho)
    assert float(toy.hessian_trace("inv", G, H, x, y0)) == pytest.approx(4 * y0**2, rel=1e-12)


def test_at_the_minimum_the_euclidean_trace_is_its_largest_eigenvalue_and_not_invariant():
    x, P = 1.7, 0.8
    for G in (0.1, 1.0, 10.0):
        eigenvalues = np.linalg.eigvalsh(toy.euclidean_hessian(G, P / G, x, P * x))
        assert eigenvalues[0] == pytest.approx(0.0, abs=1e-12 * eigenvalues[1])
        assert eigenvalues[1] == pytest.approx(2 * x**2 * (G**2 + (P / G) ** 2), rel=1e-12)
        assert eigenvalues[1] == pytest.approx(float(toy.hessian_trace("Euclidean", G, P / G, x, P * x)), rel=1e-12)


def test_sharpness_is_constant_along_the_orbit_and_grows_with_the_radius():
    for name in ("inv", "mix"):
        G = np.geomspace(0.01, 100, 21)
        values = toy.worst_case(name, G, 0.8 / G, 1.7, 2.0, [[0.1], [0.2], [5.0]])
        assert values.shape == (3, 21)
        assert np.all(np.ptp(values, axis=1) <= 1e-12 * values.max(axis=1))
        assert np.all(np.diff(values, axis=0) > 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: toy.worst_case("Euclidean", 1.0, 1.0, 1.0, 1.0, 0.1), 'metric: expected "inv", "mix" or "adaptive"'),
        (lambda: toy.gradient_norm("adaptive", 1.0, 1.0, 1.0, 1.0), 'metric: expected "Euclidean", "inv" or "mix"'),
        (lambda: toy.riemannian_gradient("adaptive", 1.0, 1.0, 1.0, 1.0), 'metric: expected "inv" or "mix"'),
        (lambda: toy.loss([1.0, 2.0], [1.0, 2.0, 3.0], 1.0, 1.0), "H: expected a shape that broadcasts"),
        (lambda: toy.loss(1.0, 1.0, [1.0, 2.0], [1.0]), "y: expected one number for each x"),
        (lambda: toy.worst_case("inv", 1.0, 1.0, 1.0, 1.0, -0.1), "rho: expected numbers > 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
