"""The pair metrics beside the literal formulas, and at the edges; `test_laws` has their laws."""

import numpy as np
import pytest
from helpers import FAMILY, METRICS, SHAPES, like, random_pair, relative_error

import refgeo as rg
from refgeo import paper
from refgeo.support.errors import NotFiniteError

RELAXATIONS = [0.0, 0.3]
everything = pytest.mark.parametrize("name", FAMILY)
papers = pytest.mark.parametrize("name", METRICS)
shapes = pytest.mark.parametrize(("batch", "n", "m", "h"), SHAPES)
relaxations = pytest.mark.parametrize("relaxation", RELAXATIONS)


def setting(name, batch, n, m, h, relaxation=0.0, seed=0):
    rng = np.random.default_rng(seed)
    point = random_pair(rng, batch, n, m, h)
    return rng, point, FAMILY[name](relaxation).at(point)


@everything
def test_relaxation_keeps_rotations_and_breaks_the_rest(name):
    """App. H.2's ε trades away the invariance: what mathematics says, measured."""
    rng, point, space = setting(name, (), 6, 5, 3, 0.5)
    v = like(point, rng)
    rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    stretch = np.diag([3.0, 1.0, 0.2])
    rotated, stretched = (FAMILY[name](0.5).at(point.transform(A)).norm(v.transform(A)) for A in (rotation, stretch))
    assert rotated == pytest.approx(space.norm(v), rel=1e-13)
    assert abs(stretched / space.norm(v) - 1) > 1e-3


@everything
def test_a_tie_for_the_largest_entry_does_not_flip_coordinates(name):
    rng = np.random.default_rng(0)
    point = rg.Pair([[1.0], [-1.0]], [[1.0], [2.0]])
    v = like(point, rng)
    here = FAMILY[name]().at(point).to_coordinates(v)
    for scale in rng.uniform(-3.0, 3.0, 50):
        target = FAMILY[name]().at(point.transform([[scale]])).to_coordinates(v.transform([[scale]]))
        assert np.allclose(target, here, rtol=1e-12)


@pytest.mark.slow
@everything
@relaxations
def test_random_tangent_vectors_have_unit_length_and_fill_the_space(name, relaxation):
    _, _, space = setting(name, (2,), 3, 4, 2, relaxation)
    rng = np.random.default_rng(0)
    for horizontal in (True, False):
        sample = np.array([space.to_coordinates(space.random_tangent_vector(rng, horizontal))[0] for _ in range(2000)])
        assert np.allclose(np.linalg.norm(sample, axis=1), 1.0, rtol=1e-12)
        variances = np.linalg.eigvalsh(sample.T @ sample / len(sample))
        dimension = space.dim if horizontal else 14
        assert np.sum(variances > 1e-12) == dimension
        # uniform in direction: every variance is 1/dimension, to within the sampling error of 2000 draws, 3%
        assert np.all(np.abs(variances[-dimension:] * dimension - 1) < 0.2)
    assert np.array_equal(*(space.random_tangent_vector(7).G for _ in range(2)))


def test_the_seed_that_has_drawn_the_point_draws_no_rounding():
    """Its own coordinates are vertical; what is drawn instead changes little with the point."""
    point = np.random.default_rng(0).standard_normal(5)
    here, target = (rg.ScalingMetric().at(x).random_tangent_vector(0) for x in (point, point + 1e-11 * np.arange(5)))
    assert np.abs(here - target).max() < 1e-9


@everything
def test_a_nearly_vertical_draw_still_becomes_horizontal_to_rounding(name):
    ones = np.ones((20000, 1, 1))
    space = FAMILY[name]().at(rg.Pair(ones, ones))
    v = space.random_tangent_vector(0)  # the smallest horizontal part of 20,000 draws is about 1e-4
    assert np.max(np.abs(v.G - v.H)) < 1e-15


@papers
@shapes
@relaxations
def test_core_agrees_with_the_literal_formulas(name, batch, n, m, h, relaxation):
    rng, point, space = setting(name, batch, n, m, h, relaxation)
    a, b = like(point, rng), like(point, rng)
    inner = paper.inner_product(name, *point, *a, *b, relaxation=relaxation)
    assert np.all(np.abs(space.inner_product(a, b) - inner) <= 1e-9 * space.norm(a) * space.norm(b))
    for function, vectors, extra in (
        ("horizontal_projection", (a,), ()),
        ("riemannian_gradient", (a,), ()),
        ("christoffel", (a, b), ()),
        ("christoffel_adjoint", (a, b), ()),
        ("geodesic", (a,), (0.4, 1)),
        ("geodesic", (a,), (0.4, 2)),
    ):
        literal = getattr(paper, function)(
            name, *point, *(part for v in vectors for part in v), *extra, relaxation=relaxation
        )
        assert relative_error(getattr(space, function)(*vectors, *extra), rg.Pair(*literal)) < 1e-9


@everything
@relaxations
def test_empty_batches_give_empty_answers(name, relaxation):
    point = rg.Pair(np.zeros((0, 5, 2)), np.zeros((0, 4, 2)))
    space = FAMILY[name](relaxation).at(point)
    assert space.inner_product(point, point).shape == (0,)
    for result in (
        space.horizontal_projection(point),
        space.riemannian_gradient(point),
        space.christoffel(point),
        space.christoffel_adjoint(point, point),
        space.geodesic(point, 0.5),
        space.geodesic(point, 0.5, "exact"),
        space.random_tangent_vector(0),
    ):
        assert result.G.shape == (0, 5, 2)
        assert result.H.shape == (0, 4, 2)
    assert space.to_coordinates(point).shape == (0, 18)


def test_a_length_is_right_or_refused_where_floats_do_not_hold_it():
    rng, point, space = setting("inv", (), 5, 4, 2)
    v = like(point, rng)
    for size in (1e-150, 1e150):
        assert rg.InvariantMetric().at(size * point).norm(size * v) == pytest.approx(space.norm(v))
    for metric in (*(FAMILY[name]() for name in FAMILY), rg.EmbeddedMetric(), rg.RotaryMetric("mix")):
        for size in (1e-200, 1e155):
            with pytest.raises(
                NotFiniteError, match="point: the singular values of G Hᵀ are beyond the range of floats"
            ):
                metric.at(size * point)
        assert metric.at(1e-120 * point).norm(1e-120 * v) > 0.0
    for size, factor in ((1e-130, 1e-220), (1e150, 1e200)):
        with pytest.raises(NotFiniteError, match="a: the length of this vector is beyond the range of floats"):
            rg.MixedMetric().at(size * point).norm(factor * v)
    assert rg.MixedMetric().at(point).norm(0.0 * v) == 0.0
    for size in (1e-160, 1e154, 1e200):
        assert rg.ScalingMetric().at([3.0 * size, 4.0 * size]).norm([size, 0.0]) == pytest.approx(0.2, rel=1e-12)
    assert rg.ElementwiseMetric().at([1.0, 0.0]).norm([0.0, 1.0]) == 0.0  # a zero does not move


@everything
@pytest.mark.parametrize("scale", [(1e-150, 1e150), (1e100, 1e100), (1e-100, 1e-100), (1e70, 1e70), (1e-70, 1e-70)])
def test_extreme_scales_neither_overflow_nor_lose_digits(name, scale):
    """Of (αG, βH) every result is that of (G, H), times α and β, and (αβ)^±2s where the metric stands in it once."""
    rng, point, space = setting(name, (), 5, 4, 2)

    def scaled(v, power=1):
        return rg.Pair(v.G * scale[0] ** power, v.H * scale[1] ** power)

    target, (a, e, d) = FAMILY[name]().at(scaled(point)), (like(point, rng) for _ in range(3))
    v, w = (0.1 * space.horizontal_projection(like(point, rng)) for _ in range(2))
    pairs = [
        (target.horizontal_projection(scaled(a)), space.horizontal_projection(a), 1.0),
        (target.christoffel(scaled(v), scaled(a)), space.christoffel(v, a), 1.0),
        (target.geodesic(scaled(v), 0.3), space.geodesic(v, 0.3), 1.0),
    ]
    exponent = 2.0 * space.metric.s * np.log10(scale[0] * scale[1])
    if abs(exponent) < 300.0:  # that of the metric, and of its gradients, is one of doubles
        size, (of_e, of_d) = 10.0**exponent, (scaled(item, -1) for item in (e, d))
        pairs += [
            (target.geodesic(scaled(v), 0.3, "exact"), space.geodesic(v, 0.3, "exact"), 1.0),
            (target.riemannian_gradient(of_e), space.riemannian_gradient(e), 1.0 / size),
            (target.riemannian_hessian(of_e, of_d, scaled(v)), space.riemannian_hessian(e, d, v), 1.0 / size),
        ]
        inner = target.inner_product(scaled(v), scaled(w)) / size
        assert inner == pytest.approx(space.inner_product(v, w), rel=1e-12)
    for result, expected, factor in pairs:
        assert relative_error(scaled(result * (1.0 / factor), -1), expected) < 1e-12


@everything
@relaxations
def test_rank_deficient_points_are_refused_with_block_and_singular_value(name, relaxation):
    rng = np.random.default_rng(0)
    point = random_pair(rng, (2, 3), 6, 5, 3)
    for factor in ("G", "H"):
        parts = {"G": np.array(point.G), "H": np.array(point.H)}
        parts[factor][1, 2, :, 0] = parts[factor][1, 2, :, 1] - parts[factor][1, 2, :, 2]
        with pytest.raises(rg.RankDeficientError, match=rf"{factor}: .*block \(1, 2\)") as caught:
            FAMILY[name](relaxation).at(rg.Pair(**parts))
        assert caught.value.block == (1, 2)
        assert 0 <= caught.value.smallest_singular_value < 1e-14
    with pytest.raises(rg.RankDeficientError):
        FAMILY[name](relaxation).at(rg.Pair(np.zeros((3, 1)), np.ones((3, 1))))


@everything
def test_bad_vectors_and_options_are_named(name):
    rng, point, space = setting(name, (2,), 4, 3, 2)
    second = random_pair(rng, (3,), 4, 3, 2)
    for call, argument in (
        (lambda: space.inner_product(point, second), "b"),
        (lambda: space.horizontal_projection(second), "v"),
        (lambda: space.riemannian_gradient(second), "egrad"),
        (lambda: space.christoffel(second), "a"),
        (lambda: space.christoffel_adjoint(point, second), "e"),
        (lambda: space.geodesic(second), "v"),
        (lambda: space.vertical_vector(np.eye(3)), "K"),
        (lambda: space.from_coordinates(np.zeros((2, 3))), "x"),
        (lambda: space.geodesic(point, [1.0, 2.0]), "t"),
        (lambda: space.geodesic(point, np.nan), "t"),
        (lambda: space.geodesic(point, 1.0, 3), "order"),
        (lambda: FAMILY[name](-1.0), "relaxation"),
        (lambda: FAMILY[name](np.nan), "relaxation"),
    ):
        with pytest.raises(ValueError, match=rf"^{argument}: expected"):
            call()
    with pytest.raises(TypeError, match="v: expected a Pair"):
        space.horizontal_projection(np.ones((4, 2)))
    with pytest.raises(TypeError, match="point: expected a Pair"):
        FAMILY[name]().at(np.ones((4, 2)))


@everything
def test_tuples_are_taken_as_pairs(name):
    rng, point, space = setting(name, (), 4, 3, 2)
    v = like(point, rng)
    assert FAMILY[name]().at(tuple(point)).norm(tuple(v)) == space.norm(v)
