"""Distances in the quotient: short geodesics are shortest, so that their length is the distance, to be found again."""

import itertools

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
    assert found.is_exact
    assert found.upper == pytest.approx(length * 3**0.5, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_distance_of_square_mix_is_that_of_products(seed):
    point = random_pair(np.random.default_rng(seed), (2,), 3, 3, 3)
    length = 0.3 * float(np.linalg.svd(point.product, compute_uv=False).min())
    other = ends(METRICS["mix"], point, length, seed)
    found = rg.quotient_distance(METRICS["mix"], point, other)
    assert found.is_exact
    assert found.upper == pytest.approx(length * 2**0.5, rel=1e-8)
    far = rg.Pair(-point.G, point.H)  # of three columns: with a determinant of the other sign
    assert rg.quotient_distance(METRICS["mix"], point, far, n_shots=0).lower == np.inf
    turned = rg.Pair(point.G * [-1.0, -1.0, 1.0], point.H)  # the straight line loses rank halfway
    found = rg.quotient_distance(METRICS["mix"], point, turned, n_shots=0)
    assert found.lower == pytest.approx(np.linalg.norm(point.product - turned.product) / 2**0.5)
    assert not found.is_exact


@metrics
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_the_length_of_a_short_geodesic_and_shooting_finds_it(name, seed):
    point = random_pair(np.random.default_rng(seed), (), 6, 5, 3)
    sigma = np.linalg.svd(point.product, compute_uv=False)[:3]
    length = 0.2 * {"inv": 1.0, "mix": sigma[-1], "s=0.4": sigma[-1] ** 0.4}[name]
    other = ends(METRICS[name], point, length, seed)
    found = rg.quotient_distance(METRICS[name], point, other)
    assert found.lower <= length * (1 + 1e-9)
    assert found.upper == pytest.approx(length, rel=1e-6)
    rough = rg.quotient_distance(METRICS[name], point, other, n_shots=0)
    assert length * (1 - 1e-7) <= rough.upper <= 1.2 * length


@metrics
def test_lower_bounds_are_below_the_lengths_of_random_curves(name):
    rng = np.random.default_rng(7)
    for _ in range(8):
        a, b = (random_pair(rng, (), 4, 5, 2) for _ in range(2))
        found = rg.quotient_distance(METRICS[name], a, b, n_shots=0)
        assert 0 < found.lower <= found.upper
        bent = random_pair(rng, (), 4, 5, 2)
        times = np.linspace(0.0, 1.0, 201)
        places = [a * (1 - t) + b * t + bent * (t * (1 - t)) for t in times]
        middles = [(p + q) / 2 for p, q in itertools.pairwise(places)]
        length = 0.0
        for p, q, middle in zip(places, places[1:], middles, strict=False):
            space = METRICS[name].at(middle)
            length += float(space.norm(space.horizontal_projection(q - p)))
        assert found.lower <= length * 1.02


@metrics
@pytest.mark.parametrize("h", [1, 2])
def test_distances_do_not_change_along_orbits_and_are_symmetric(name, h):
    rng = np.random.default_rng(8)
    a, b = (random_pair(rng, (2,), 5, 4, h) for _ in range(2))
    A, B = rng.standard_normal((2, h, h))
    found = rg.quotient_distance(METRICS[name], a, b, 0)
    moved = rg.quotient_distance(METRICS[name], a.transform(A), b.transform(1e3 * B), 0)
    back = rg.quotient_distance(METRICS[name], b, a, 0)
    assert found.lower == pytest.approx(moved.lower, rel=1e-9) == pytest.approx(back.lower, rel=1e-9)
    assert rg.quotient_distance(METRICS[name], a, a.transform(A), 0).upper == pytest.approx(0.0, abs=1e-6)
    if h == 1:
        c = random_pair(rng, (2,), 5, 4, h)
        direct = found.upper
        way = rg.quotient_distance(METRICS[name], a, c).upper + rg.quotient_distance(METRICS[name], c, b).upper
        assert direct <= way * (1 + 1e-12)


@pytest.mark.parametrize("s", [0.4, 1.0])
def test_beyond_the_cone_s_half_turn_the_way_leads_by_the_apex(s):
    u = np.array([[1.0], [0.0]])
    a, b = rg.Pair(2 * u, u), rg.Pair(3 * u[::-1], -u)
    found = rg.quotient_distance(rg.InterpolatedMetric(s), a, b).upper
    angle = np.hypot(np.pi / 2, 0.0)  # from (u, w) to (-u, -w), which is the same point, it is less far
    phi = np.sqrt(2) * s * angle
    one, other = 2**s / s, 3**s / s
    assert found == pytest.approx(np.sqrt((one**2 + other**2 - 2 * one * other * np.cos(phi)) / 2), rel=1e-12)
    opposite = rg.quotient_distance(rg.MixedMetric(), rg.Pair(u, u), rg.Pair(u[::-1], u[::-1])).upper
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
    assert rg.quotient_distance(metric, point, other).upper == pytest.approx(0.05 * 2**0.5, rel=1e-8)


@metrics
@pytest.mark.parametrize("seed", range(3))
def test_far_pairs_have_bounds_at_once(name, seed):
    """Shots at a point that is far away must not run off; they can only tighten what is known."""
    rng = np.random.default_rng(seed)
    a, b = (random_pair(rng, (2,), 8, 7, 4) for _ in range(2))
    found = rg.quotient_distance(METRICS[name], a, b, 3 if name == "inv" else 0)
    rough = rg.quotient_distance(METRICS[name], a, b, 0)
    assert 0 < found.lower == rough.lower < found.upper <= rough.upper < np.inf
    assert not found.is_exact


def test_very_different_sizes_keep_the_angle():
    """inv splits into the size, of which log is a coordinate of constant length, and the rest."""
    R = np.array([[np.cos(1.0), 0.0, -np.sin(1.0)], [0.0, 1.0, 0.0], [np.sin(1.0), 0.0, np.cos(1.0)]])
    a = rg.Pair(np.eye(3, 2), np.eye(3, 2))
    there = rg.quotient_distance(rg.InvariantMetric(), a, rg.Pair(R @ a.G, a.H), 0)
    far = rg.quotient_distance(rg.InvariantMetric(), a, rg.Pair(1e6 * R @ a.G, 1e6 * a.H), 0)
    least, most = (np.hypot(np.log(1e12), length) for length in (there.lower, there.upper))
    assert least * (1 - 1e-12) <= far.upper <= most * (1 + 1e-7)
    assert least - np.log(1e12) > 1e-3
    assert not far.is_exact


def test_a_line_through_a_loss_of_rank_is_no_upper_bound():
    a = random_pair(np.random.default_rng(0), (), 3, 4, 2).balanced()[0]
    assert rg.quotient_distance(rg.InvariantMetric(), a, rg.Pair(a.G * [-1, 1], a.H), 0).upper == np.inf


@metrics
def test_what_no_curve_connects_is_infinitely_far(name):
    for a, b in [([[2.0]], [[-2.0]]), (np.diag([1.0, 2.0]), np.diag([1.0, -2.0]))]:
        H = np.eye(len(a))
        found = rg.quotient_distance(METRICS[name], rg.Pair(a, H), rg.Pair(b, H))
        assert (found.lower, found.upper, found.is_exact) == (np.inf, np.inf, True)
    both = rg.quotient_distance(METRICS[name], rg.Pair([[2.0]], [[3.0]]), rg.Pair([[-2.0]], [[-3.0]]))
    assert both.upper == 0.0
    assert rg.quotient_distance(rg.ScalingMetric(), [1.0], [-1.0]).upper == np.inf


@metrics
@pytest.mark.parametrize("k", [1e3, 1e4])
def test_representatives_in_far_gauges_are_compared_in_the_balanced_one(name, k):
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(2))
    a = random_pair(rng, (), 5, 4, 3)
    one, other = (a.transform(X @ np.diag([1 / k, 1, k]) @ Y) for X, Y in ((U, V), (V, U)))
    found = rg.quotient_distance(METRICS[name], one, other, 0)
    assert found.upper < 1e-15 * k**2 * 1e3


def test_scales_neither_overflow_nor_underflow():
    rng = np.random.default_rng(0)
    a = random_pair(rng, (), 4, 4, 4)
    for scale in (1e-100, 1e100):
        for metric, size in ((rg.InvariantMetric(), 1.0), (rg.MixedMetric(), scale**2)):
            moved = rg.Pair(scale * a.G, scale * a.H)
            here = rg.quotient_distance(metric, a, rg.Pair(1.5 * a.G, a.H), 0)
            there = rg.quotient_distance(metric, moved, rg.Pair(1.5 * moved.G, moved.H), 0)
            assert there.lower == pytest.approx(size * here.lower, rel=1e-9)
    for scale in (1e-200, 1e160):
        one = rg.Pair(scale * np.ones((3, 1)), np.ones((2, 1)) / scale)
        assert rg.quotient_distance(rg.MixedMetric(), one, 2 * one).upper == pytest.approx(6**0.5 * 3 / 2**0.5)
    rotary = random_pair(rng, (), 5, 4, 4)
    for scale in (1e-100, 1e100):
        found = rg.quotient_distance(rg.RotaryMetric("mix"), scale * rotary, 1.5 * scale * rotary).upper
        here = rg.quotient_distance(rg.RotaryMetric("mix"), rotary, 1.5 * rotary).upper
        assert found == pytest.approx(scale**2 * here)
    assert rg.quotient_distance(rg.ElementwiseMetric(), [1e-200], [1e200]).upper == pytest.approx(400 * np.log(10))
    small = rg.quotient_distance(rg.ElementwiseMetric(), [1.0], [1.0 + 2.0**-40]).upper
    assert small == pytest.approx(np.log1p(2.0**-40), rel=1e-12)


def test_small_s_does_not_cancel():
    a = random_pair(np.random.default_rng(0), (), 5, 4, 2)
    found = rg.quotient_distance(rg.InterpolatedMetric(1e-12), a, rg.Pair(1.001 * a.G, a.H), 0)
    assert found.lower == pytest.approx(np.log(1.001), rel=1e-9)  # both σ by a thousandth


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
    assert rg.quotient_distance(rg.RotaryMetric(), a, b).upper == pytest.approx(np.hypot(*angles).min(), rel=1e-8)


def test_arrays_and_products():
    rng = np.random.default_rng(9)
    w = rng.standard_normal(6)
    v = 0.3 * rng.standard_normal(6)
    for metric in (rg.ElementwiseMetric(), rg.EuclideanMetric(), rg.TranslationMetric(), rg.ScalingMetric()):
        space = metric.at(w)
        along = space.horizontal_projection(v)
        end = space.geodesic(along, 1.0, "exact")
        found = rg.quotient_distance(metric, w, end)
        assert found.is_exact
        assert found.upper == pytest.approx(float(space.norm(along)), rel=1e-12)
    assert rg.quotient_distance(rg.ElementwiseMetric(), w, -w).upper == np.inf
    assert rg.quotient_distance(rg.ElementwiseMetric(), w * 0, w * 0).upper == 0
    assert rg.quotient_distance(rg.TranslationMetric(), w, w + 3).upper < 1e-14
    assert rg.quotient_distance(rg.ScalingMetric(), w, 3 * w).upper < 1e-14
    product = rg.ProductMetric({"w": rg.EuclideanMetric(), "x": rg.ScalingMetric()})
    found = rg.quotient_distance(product, {"w": w, "x": w}, {"w": w + 1, "x": v})
    assert found.upper == pytest.approx(np.hypot(found.blocks["w"].upper, found.blocks["x"].upper))
    assert found.blocks["w"].upper == pytest.approx(6**0.5)


def test_bad_input_is_named():
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
    network = rg.ProductMetric({"w": rg.ConstantMetric(rg.ElementwiseMetric())})
    with pytest.raises(NotImplementedError, match=r"block 'w': .*arrays=refgeo.ElementwiseMetric"):
        rg.quotient_distance(network, {"w": np.ones(2)}, {"w": np.ones(2)})
    a = random_pair(r, (), 4, 3, 2)
    with pytest.raises(ValueError, match="n_shots"):
        rg.quotient_distance(rg.InvariantMetric(), a, a, -1)
