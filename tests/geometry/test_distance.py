"""Distances in the quotient: short geodesics are shortest, so that their length is the distance, to be found again."""

import numpy as np
import pytest
from helpers import random_pair

import refgeo as rg

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric(), "s=0.4": rg.InterpolatedMetric(0.4)}
metrics = pytest.mark.parametrize("name", METRICS)


def ends(metric, point, length, seed):
    """The point and the end of a geodesic of a given length in every block, moved along its orbit."""
    space = metric.at(point)
    v = space.random_tangent_vector(seed)
    v = v * (length / space.norm(v))
    h = point.sizes[2]
    A = np.random.default_rng(seed).standard_normal((h, h))
    return space.geodesic(v, 1.0, "exact").transform(A)


@metrics
@pytest.mark.parametrize("length", [1e-6, 0.01, 0.4])
@pytest.mark.parametrize("seed", range(3))
def test_distance_with_one_column_is_the_length_of_the_geodesic(name, length, seed):
    point = random_pair(np.random.default_rng(seed), (3,), 5, 4, 1)
    found = rg.quotient_distance(METRICS[name], point, ends(METRICS[name], point, length, seed))
    assert found == pytest.approx(length * 3**0.5, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_distance_of_square_mix_is_that_of_products(seed):
    point = random_pair(np.random.default_rng(seed), (2,), 3, 3, 3)
    length = 0.3 * float(np.linalg.svd(point.product, compute_uv=False).min())
    found = rg.quotient_distance(METRICS["mix"], point, ends(METRICS["mix"], point, length, seed))
    assert found == pytest.approx(length * 2**0.5, rel=1e-8)
    far = rg.Pair(-point.G, point.H)  # of three columns: with a determinant of the other sign
    assert rg.quotient_distance(METRICS["mix"], point, far) == np.inf
    turned = rg.Pair(point.G * [-1.0, -1.0, 1.0], point.H)  # the straight line loses rank halfway
    with pytest.raises(NotImplementedError, match="stays regular"):
        rg.quotient_distance(METRICS["mix"], point, turned)


@metrics
def test_distances_do_not_change_along_orbits_are_symmetric_and_take_no_detour(name):
    rng = np.random.default_rng(8)
    a, b, c = (random_pair(rng, (2,), 5, 4, 1) for _ in range(3))
    A, B = rng.standard_normal((2, 1, 1))
    found = rg.quotient_distance(METRICS[name], a, b)
    assert found == pytest.approx(rg.quotient_distance(METRICS[name], a.transform(A), b.transform(1e3 * B)), rel=1e-9)
    assert found == pytest.approx(rg.quotient_distance(METRICS[name], b, a), rel=1e-9)
    assert rg.quotient_distance(METRICS[name], a, a.transform(A)) == pytest.approx(0.0, abs=1e-6)
    way = rg.quotient_distance(METRICS[name], a, c) + rg.quotient_distance(METRICS[name], c, b)
    assert found <= way * (1 + 1e-12)


@metrics
def test_what_no_curve_connects_is_infinitely_far(name):
    assert rg.quotient_distance(METRICS[name], rg.Pair([[2.0]], [[1.0]]), rg.Pair([[-2.0]], [[1.0]])) == np.inf
    assert rg.quotient_distance(METRICS[name], rg.Pair([[2.0]], [[3.0]]), rg.Pair([[-2.0]], [[-3.0]])) == 0.0
    assert rg.quotient_distance(rg.ScalingMetric(), [1.0], [-1.0]) == np.inf


def test_scales_neither_overflow_nor_underflow():
    rng = np.random.default_rng(0)
    a, rotary = random_pair(rng, (), 4, 4, 4), random_pair(rng, (), 5, 4, 4)
    for scale in (1e-100, 1e100):
        moved = rg.Pair(scale * a.G, scale * a.H)
        here = rg.quotient_distance(rg.MixedMetric(), a, rg.Pair(1.5 * a.G, a.H))
        there = rg.quotient_distance(rg.MixedMetric(), moved, rg.Pair(1.5 * moved.G, moved.H))
        assert there == pytest.approx(scale**2 * here, rel=1e-9)
        found = rg.quotient_distance(rg.RotaryMetric("mix"), scale * rotary, 1.5 * scale * rotary)
        assert found == pytest.approx(scale**2 * rg.quotient_distance(rg.RotaryMetric("mix"), rotary, 1.5 * rotary))
    for scale in (1e-200, 1e160):
        one = rg.Pair(scale * np.ones((3, 1)), np.ones((2, 1)) / scale)
        assert rg.quotient_distance(rg.MixedMetric(), one, 2 * one) == pytest.approx(6**0.5 * 3 / 2**0.5)
    assert rg.quotient_distance(rg.ElementwiseMetric(), [1e-200], [1e200]) == pytest.approx(400 * np.log(10))
    small = rg.quotient_distance(rg.ElementwiseMetric(), [1.0], [1.0 + 2.0**-40])
    assert small == pytest.approx(np.log1p(2.0**-40), rel=1e-12)


@pytest.mark.parametrize("s", [0.4, 1.0])
def test_beyond_the_cone_s_half_turn_the_way_leads_by_the_apex(s):
    u = np.array([[1.0], [0.0]])
    a, b = rg.Pair(2 * u, u), rg.Pair(3 * u[::-1], -u)
    found = rg.quotient_distance(rg.InterpolatedMetric(s), a, b)
    angle = np.hypot(np.pi / 2, 0.0)  # from (u, w) to (-u, -w), which is the same point, it is less far
    phi = np.sqrt(2) * s * angle
    one, other = 2**s / s, 3**s / s
    assert found == pytest.approx(np.sqrt((one**2 + other**2 - 2 * one * other * np.cos(phi)) / 2), rel=1e-12)
    opposite = rg.quotient_distance(rg.MixedMetric(), rg.Pair(u, u), rg.Pair(u[::-1], u[::-1]))
    assert opposite == pytest.approx(np.sqrt((1 + 1 - 2 * np.cos(np.pi)) / 2))


@metrics
@pytest.mark.parametrize("seed", range(2))
def test_behind_rotations_the_phase_is_free(name, seed):
    metric = rg.RotaryMetric(name)
    rng = np.random.default_rng(seed)
    point = random_pair(rng, (2,), 5, 6, 4)
    space = metric.at(point)
    v = 0.05 * space.random_tangent_vector(seed)
    K = rng.standard_normal((2, 2))
    A = np.block([[np.diag(K[0]), -np.diag(K[1])], [np.diag(K[1]), np.diag(K[0])]])
    other = space.geodesic(v, 1.0, "exact").transform(A)
    assert rg.quotient_distance(metric, point, other) == pytest.approx(0.05 * 2**0.5, rel=1e-8)


def test_the_least_angle_is_looked_for_in_every_basin():
    """Two minima over the phase that differ by 1e-4, of which a grid prefers the wrong one; against brute force."""

    def columns(overlap, phase):
        return np.array([1, 0]), np.array([overlap * np.exp(1j * phase), np.sqrt(1 - overlap**2)])

    (u, u_other), (w, w_other) = (
        columns(0.8823976854373153, 5.33156099986815),
        columns(0.9993553013354981, 8.47326383873246),
    )
    a, b = (rg.Pair(*(np.stack([z.real, z.imag], -1) for z in pair)) for pair in ((u, w), (u_other, w_other)))
    phases = np.exp(1j * np.linspace(0, 2 * np.pi, 400_001))
    angles = [np.arccos(np.clip((phases * np.vdot(x, y)).real, -1, 1)) for x, y in ((u, u_other), (w, w_other))]
    assert rg.quotient_distance(rg.RotaryMetric(), a, b) == pytest.approx(np.hypot(*angles).min(), rel=1e-8)


def test_arrays_and_products():
    rng = np.random.default_rng(9)
    w = rng.standard_normal(6)
    v = 0.3 * rng.standard_normal(6)
    for metric in (rg.ElementwiseMetric(), rg.EuclideanMetric(), rg.TranslationMetric(), rg.ScalingMetric()):
        space = metric.at(w)
        along = space.horizontal_projection(v)
        end = space.geodesic(along, 1.0, "exact")
        found = rg.quotient_distance(metric, w, end)
        assert found == pytest.approx(float(space.norm(along)), rel=1e-12)
    assert rg.quotient_distance(rg.ElementwiseMetric(), w, -w) == np.inf
    assert rg.quotient_distance(rg.ElementwiseMetric(), w * 0, w * 0) == 0
    assert rg.quotient_distance(rg.TranslationMetric(), w, w + 3) < 1e-14
    assert rg.quotient_distance(rg.ScalingMetric(), w, 3 * w) < 1e-14
    product = rg.ProductMetric({"w": rg.EuclideanMetric(), "x": rg.ScalingMetric()})
    found = rg.quotient_distance(product, {"w": w, "x": w}, {"w": w + 1, "x": v})
    scaled = rg.quotient_distance(rg.ScalingMetric(), w, v)
    assert found == pytest.approx(np.hypot(6**0.5, scaled))


def test_bad_input_is_named():
    with pytest.raises(TypeError, match=r"metric: expected a metric such as refgeo.InvariantMetric\(\), got 'inv'"):
        rg.quotient_distance("inv", rg.Pair([[1.0]], [[1.0]]), rg.Pair([[1.0]], [[1.0]]))
    a, b = random_pair(np.random.default_rng(0), (), 4, 3, 2), random_pair(np.random.default_rng(1), (), 5, 3, 2)
    with pytest.raises(ValueError, match="same shapes"):
        rg.quotient_distance(rg.InvariantMetric(), a, b)
    with pytest.raises(NotImplementedError, match="with relaxation"):
        rg.quotient_distance(rg.InvariantMetric(0.1), a, a)
    r = np.random.default_rng(2)
    for a, b, message in [
        (random_pair(r, (), 5, 4, 3), random_pair(r, (), 5, 4, 3), "even number of columns"),
        (random_pair(r, (), 5, 4, 2), random_pair(r, (3,), 5, 4, 2), "same shapes"),
        (random_pair(r, (), 5, 4, 4), random_pair(r, (), 5, 4, 2), "same shapes"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.quotient_distance(rg.RotaryMetric(), a, b)
    with pytest.raises(rg.RankDeficientError):
        rg.quotient_distance(rg.InvariantMetric(), rg.Pair(np.zeros((2, 1)), np.ones((2, 1))), a)
    network = rg.ProductMetric({"w": rg.ElementwiseMetric(curved=False)})
    with pytest.raises(NotImplementedError, match=r"block 'w': .*arrays=refgeo.ElementwiseMetric"):
        rg.quotient_distance(network, {"w": np.ones(2)}, {"w": np.ones(2)})
    with pytest.raises(NotImplementedError, match=r"got h = 2; .* no closed form"):
        rg.quotient_distance(rg.InvariantMetric(), random_pair(r, (), 4, 3, 2), random_pair(r, (), 4, 3, 2))
    with pytest.raises(NotImplementedError, match="expected a metric for which refgeo knows a distance"):
        rg.quotient_distance(rg.EmbeddedMetric(), random_pair(r, (), 4, 3, 2), random_pair(r, (), 4, 3, 2))
