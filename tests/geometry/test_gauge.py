"""Digits: the factorised route against enclosures, where Gram matrices keep few or none."""

import numpy as np
import pytest
from helpers import METRICS, factor_of_condition, like, relative_error

import refgeo as rg
from refgeo import paper
from refgeo.exact import ExactTangentSpace
from refgeo.geometry.accelerated import fast_balance
from refgeo.geometry.gauge import balance

EPS = np.finfo(float).eps


def setting(name, condition, seed, sizes=(10, 9, 4)):
    rng = np.random.default_rng(seed)
    n, m, h = sizes
    point = rg.Pair(factor_of_condition(rng, n, h, condition), factor_of_condition(rng, m, h, condition))
    return rng, point, METRICS[name]().at(point), ExactTangentSpace(name, *point)


def middle(enclosures):
    return rg.Pair(*(item.mid for item in enclosures))


@pytest.mark.parametrize("name", METRICS)
def test_the_gram_route_does_not_and_the_comparison_sees_it(name):
    """If the literal formulas were as good, the tests below would prove nothing."""
    rng, point, _, exact = setting(name, 1e4, 0)
    v = like(point, rng)
    literal = rg.Pair(*paper.horizontal_projection(name, *point, *v))
    assert relative_error(literal, middle(exact.horizontal_projection(v))) > 1e-10


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
def test_errors_of_every_operation_grow_like_the_condition_number(name, condition):
    """In the metric, relative to the natural size: at most 30 κ·eps·√N, the threshold of refgeo check."""
    for seed in range(5):
        rng, point, space, exact = setting(name, condition, seed)
        a, b, e = (like(point, rng) for _ in range(3))
        unit = 30 * condition * EPS * np.sqrt(19 * 4)
        lengths = space.norm(a) * space.norm(b)
        assert abs(space.inner_product(a, b) - exact.inner_product(a, b).mid) <= unit * lengths
        projected, gradient = exact.horizontal_projection(a), exact.riemannian_gradient(e)
        assert space.norm(space.horizontal_projection(a) - middle(projected)) <= unit * space.norm(a)
        assert space.norm(space.riemannian_gradient(e) - middle(gradient)) <= unit * space.norm(middle(gradient))
        gamma = middle(exact.christoffel(a, b))
        size = space.norm(gamma) + np.sqrt(space.norm(space.christoffel(a)) * space.norm(space.christoffel(b)))
        assert space.norm(space.christoffel(a, b) - gamma) <= unit * size


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("relaxation", [1e-6, 1e-2])
@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_relaxed_operations_agree_with_their_enclosures(name, relaxation, condition):
    rng = np.random.default_rng(0)
    point = rg.Pair(factor_of_condition(rng, 10, 4, condition), factor_of_condition(rng, 9, 4, condition))
    space, exact = METRICS[name](relaxation).at(point), ExactTangentSpace(name, *point, relaxation)
    a, b, e = (like(point, rng) for _ in range(3))
    for actual, expected in (
        (space.horizontal_projection(a), exact.horizontal_projection(a)),
        (space.riemannian_gradient(e), exact.riemannian_gradient(e)),
        (space.christoffel(a, b), exact.christoffel(a, b)),
        (space.christoffel_adjoint(a, e), exact.christoffel_adjoint(a, e)),
        (space.geodesic(1e-3 * a, 0.5), exact.geodesic(1e-3 * a, 0.5)),
    ):
        assert relative_error(actual, middle(expected)) <= 1e-13 * condition


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
def test_exact_inv_geodesic_against_its_enclosure(condition):
    for seed in range(3):
        rng, _, space, exact = setting("inv", condition, seed)
        v = space.random_tangent_vector(rng)
        for t in (0.5, -3.0):
            expected = middle(exact.geodesic(v, t, "exact"))
            assert relative_error(space.geodesic(v, t, "exact"), expected) <= 1e-13 * condition


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("balance_by", [balance, fast_balance])
def test_both_factorisations_have_orthonormal_columns_and_give_the_factor_again(batch, balance_by):
    """Orthonormal columns, and the factor again, column by column, whether or not R came from a Gram matrix."""
    rng = np.random.default_rng(0)
    for condition in (1.0, 1.5, 6.0, 1e3, 1e5, 3e6, 1e9, 1e12):
        left = np.linalg.qr(rng.standard_normal((*batch, 600, 24)))[0]
        right = np.linalg.qr(rng.standard_normal((*batch, 24, 24)))[0]
        factor = (left * np.geomspace(1.0, 1.0 / condition, 24)) @ np.swapaxes(right, -1, -2)
        if batch:
            factor[0] = left[0]  # well conditioned beside the others
            factor[1] *= 1e-140  # whose square is not a number with digits
        gauge = balance_by(factor, left)
        Q = gauge.columns[0]
        assert np.abs(np.swapaxes(Q, -1, -2) @ Q - np.eye(24)).max() < 2e-14
        again = Q @ np.swapaxes(gauge.root_G, -1, -2)
        # the gauge may turn by κ·eps
        assert np.all(np.linalg.norm(again - factor, axis=-2) < 2e-14 * condition * np.linalg.norm(factor, axis=-2))


def test_a_large_factor_without_full_rank_is_named():
    G = np.random.default_rng(0).standard_normal((2, 300, 20))
    G[1, :, 3] = G[1, :, 4]
    with pytest.raises(rg.RankDeficientError, match=r"G: expected numerical rank h = 20.*block \(1,\)"):
        rg.MixedMetric().at(rg.Pair(G, np.ones((2, 300, 20)) * G[0]))


def test_the_condition_of_a_point_is_that_of_its_worse_factor():
    rng = np.random.default_rng(0)
    gauge = balance(*(factor_of_condition(rng, n, 4, kappa) for n, kappa in ((9, 1e3), (7, 1e5))))
    assert gauge.condition == pytest.approx(1e5, rel=1e-8)
    assert gauge.condition_of_product == pytest.approx(1e8, rel=1e-8)
