"""The embedded metric against what defines it: ‖dX‖_F on dense matrices, and differences of a loss."""

import numpy as np
import pytest
from helpers import SHAPES, random_pair

import refgeo as rg

RANKS = [shape for shape in SHAPES if shape[3] > 1 or shape[1] > 1]


def move_product(point, v):
    """dX."""
    return v.G @ point.H.mT + point.G @ v.H.mT


def projectors(point):
    return [F @ np.linalg.pinv(F) for F in point]


def setting(shape, seed=0):
    batch, n, m, h = shape
    rng = np.random.default_rng(seed)
    point = random_pair(rng, batch, n, m, h)
    return rng, point, rg.EmbeddedMetric().at(point)


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_horizontal_vectors_are_as_long_as_the_matrices_that_they_move(shape):
    rng, point, space = setting(shape)
    a, b = (space.random_tangent_vector(rng) for _ in range(2))
    expected = np.sum(move_product(point, a) * move_product(point, b), axis=(-2, -1))
    np.testing.assert_allclose(space.inner_product(a, b), expected, atol=1e-12)
    assert np.all(rg.MixedMetric().at(point).is_horizontal(a))


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_mix_counts_half_of_the_core(shape):
    rng, point, space = setting(shape)
    v = space.random_tangent_vector(rng)
    P_U, P_V = projectors(point)
    core = np.sum((P_U @ move_product(point, v) @ P_V) ** 2, axis=(-2, -1))
    np.testing.assert_allclose(space.norm(v) ** 2, rg.MixedMetric().at(point).norm(v) ** 2 + 0.5 * core, atol=1e-12)


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_the_gradient_is_the_tangent_part_of_the_euclidean_one(shape):
    rng, point, space = setting(shape)
    E = rng.standard_normal((*shape[0], shape[1], shape[2]))
    P_U, P_V = projectors(point)
    gradient = space.riemannian_gradient(rg.Pair(E @ point.H, E.mT @ point.G))
    np.testing.assert_allclose(move_product(point, gradient), P_U @ E + E @ P_V - P_U @ E @ P_V, atol=1e-11)
    assert np.all(space.is_horizontal(gradient))
    # two other ways to write it: mix's counts the core twice, inv's weights it
    of_mix = rg.MixedMetric().at(point).riemannian_gradient(rg.Pair(E @ point.H, E.mT @ point.G))
    np.testing.assert_allclose(move_product(point, of_mix), P_U @ E + E @ P_V, atol=1e-11)


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_second_order_geodesics_accelerate_in_the_normal_space_only(shape):
    rng, point, space = setting(shape)
    v = space.random_tangent_vector(rng)
    step = 1e-3
    products = [space.geodesic(v, t).product for t in (step, -step)]
    acceleration = (products[0] + products[1] - 2.0 * point.product) / step**2
    P_U, P_V = projectors(point)
    scale = np.abs(acceleration).max() + 1.0
    for tangent in (P_U @ acceleration, acceleration @ P_V):
        np.testing.assert_allclose(tangent, 0.0, atol=1e-5 * scale)
    straight, bent = space.geodesic(v, order=1), space.geodesic(v, order=2)
    n, m, h = point.sizes
    if min(n, m) > h:  # there is a normal space, and they bend in it
        assert np.abs(straight.product - bent.product).max() > 1e-4


def test_it_serves_searches_of_sharpness():
    rng, point, _ = setting(((), 6, 5, 2))
    Y = rng.standard_normal((6, 5))

    def value_and_grad(params):
        G, H = params["layer"]
        R = G @ H.T - Y
        return 0.5 * np.sum(R**2), {"layer": rg.Pair(R @ H, R.T @ G)}

    metric = rg.networks.block_metric({"layer": point}, "embedded")
    result = rg.worst_case_sharpness(value_and_grad, {"layer": point}, metric, 0.1, n_iter=30)
    R = point.product - Y
    P_U, P_V = projectors(point)
    slope = np.linalg.norm(P_U @ R + R @ P_V - P_U @ R @ P_V)
    assert 0.1 * slope < result.value < 0.1 * slope + 0.01  # the curvature of ½‖X − Y‖² adds ½ρ², and a little


def test_there_is_no_exact_geodesic():
    _, _, space = setting(((), 6, 5, 2))
    v = space.random_tangent_vector(0)
    with pytest.raises(NotImplementedError, match="order 1 and 2 only"):
        space.geodesic(v, 1.0, "exact")
