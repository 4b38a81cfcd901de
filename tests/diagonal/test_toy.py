"""The scalar toy model (App. D): closed forms against differences, the pair geometry and the general search."""

from __future__ import annotations

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import refgeo as rg
from refgeo import paper

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
KINDS = ("Euclidean", *METRICS)
DATA = [(np.array([1.7]), np.array([2.0])), (np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, -2.0]))]
data = pytest.mark.parametrize(("x", "y"), DATA)


def pair(G, H):
    return rg.Pair([[G]], [[H]])


def loss_of(x, y):
    return lambda weights: anp.sum((weights[0] * weights[1] * x - y) ** 2)


@data
def test_euclidean_norm_and_trace_are_those_of_the_loss(x, y):
    for weights in np.random.default_rng(0).standard_normal((5, 2)):
        gradient, hessian = autograd.grad(loss_of(x, y))(weights), autograd.hessian(loss_of(x, y))(weights)
        assert paper.toy_gradient_norms(*weights, x, y)[0] == pytest.approx(np.hypot(*gradient), rel=1e-12)
        assert paper.toy_hessian_traces(*weights, x, y)[0] == pytest.approx(np.trace(hessian), rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
@data
def test_riemannian_quantities_are_those_of_the_pair_geometry(name, x, y):
    weights = np.array([1.3, -0.7])
    space = METRICS[name].at(pair(*weights))
    egrad = autograd.grad(loss_of(x, y))(weights)
    norm = paper.toy_gradient_norms(*weights, x, y)[KINDS.index(name)]
    assert norm == pytest.approx(float(space.norm(space.riemannian_gradient(pair(*egrad)))), rel=1e-12)
    v = space.random_tangent_vector(0)
    along = autograd.hessian(loss_of(x, y))(weights) @ [v.G.item(), v.H.item()]
    apply = space.riemannian_hessian(pair(*egrad), pair(*along), v)
    trace = paper.toy_hessian_traces(*weights, x, y)[KINDS.index(name)]
    assert trace == pytest.approx(float(space.inner_product(v, apply)), rel=1e-11)


@data
def test_riemannian_quantities_are_functions_of_the_product_and_euclidean_ones_are_not(x, y):
    """The numerical content of Figures 1 and 6."""
    for P in (-2.0, 0.4, 3.0):
        for quantity in (paper.toy_gradient_norms, paper.toy_hessian_traces):
            euclidean, *riemannian = np.transpose([quantity(G, P / G, x, y) for G in np.geomspace(0.05, 20.0, 41)])
            assert euclidean.max() > 10 * euclidean.min()
            for values in riemannian:
                assert np.ptp(values) <= 1e-12 * np.max(np.abs(values))


def test_small_radii_away_from_the_minimum_and_at_it():
    """S = 2√2ρ|y₀||y − y₀| + O(ρ²), and 2ρ²y₀² + O(ρ³) at the minimum, with the stated second-order term."""
    G, H, x = 1.3, 0.9, 1.7
    y0 = G * H * x
    for y in (y0 + 0.5, y0 - 2.0):
        for rho in (1e-3, 1e-4):
            first = 2 * 2**0.5 * rho * abs(y0) * abs(y - y0)
            second = 2 * rho**2 * y0 * (2 * y0 - y)
            assert paper.toy_sharpness(G, H, x, y, rho) == pytest.approx(first + second, rel=5 * rho**2)
            assert first == pytest.approx(rho * paper.toy_gradient_norms(G, H, x, y)[1], rel=1e-12)
    for rho in (1e-3, 1e-4):
        assert paper.toy_sharpness(G, H, x, y0, rho) == pytest.approx(2 * rho**2 * y0**2, rel=2 * rho)
    assert paper.toy_hessian_traces(G, H, x, y0)[1] == pytest.approx(4 * y0**2, rel=1e-12)
