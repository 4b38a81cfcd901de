"""Geodesics: the ODE, the second-order expansion, speed, horizontality, momenta, equivariance, completeness."""

import numpy as np
import pytest
from helpers import FAMILY, SHAPES, factor_of_condition, like, random_pair, relative_error, sample

import refgeo as rg
from refgeo.geometry import geodesics
from refgeo.geometry.geodesics import integrate

everything = pytest.mark.parametrize("name", FAMILY)
everywhere = pytest.mark.parametrize(
    ("name", "batch", "n", "m", "h"), sample([(name, *shape) for name in FAMILY for shape in SHAPES], 2)
)


def setting(name, batch, n, m, h, seed=0):
    """A point and a horizontal velocity, long enough to bend and short enough not to end."""
    rng = np.random.default_rng(seed)
    space = FAMILY[name]().at(random_pair(rng, batch, n, m, h))
    v = space.random_tangent_vector(rng)
    s = space.metric.s
    size = 1.0 if s == 0.0 else 0.6 * space.gauge.sigma[..., -1] ** s / s
    return rng, space, v * size


def velocity(space, v, t, step=1e-4):
    """γ'(t) by a fourth-order difference."""

    def at(s):
        return space.geodesic(v, s, "exact")

    return (8 * (at(t + step) - at(t - step)) - (at(t + 2 * step) - at(t - 2 * step))) / (12 * step)


def test_inv_closed_form_holds_for_velocities_that_are_not_horizontal():
    rng, space, _ = setting("inv", (3,), 7, 5, 3)
    v = like(space.point, rng) * (1 / space.norm(like(space.point, rng)))
    assert relative_error(integrate(space, v, 0.8).point, space.geodesic(v, 0.8, "exact")) < 1e-11


def test_mix_with_velocities_that_are_not_horizontal_is_integrated():
    """The closed forms are lifts of the quotient's geodesics and do not apply; a vertical part must not be dropped."""
    rng, space, v = setting("mix", (), 3, 3, 3)
    tilted = v + 0.3 * space.vertical_vector(rng.standard_normal((3, 3)))
    curve = space.geodesic(tilted, 0.2, "exact")
    assert relative_error(curve, integrate(space, tilted, 0.2).point) < 1e-13
    assert relative_error(space.geodesic(tilted, 1e-4, "exact"), space.geodesic(tilted, 1e-4)) < 1e-10


@pytest.mark.slow
@everywhere
def test_momenta_are_conserved(name, batch, n, m, h):
    _, space, v = setting(name, batch, n, m, h)
    target = FAMILY[name]().at(space.geodesic(v, 0.8, "exact"))
    before, after = space.momenta(v), target.momenta(velocity(space, v, 0.8))
    for quantity, value in before.items():
        assert np.allclose(after[quantity], value, rtol=1e-7, atol=1e-8 * np.max(np.abs(before["rotation_G"])) + 1e-8)


def test_momenta_of_mix_are_the_written_ones():
    """Energy; Gᵀξ_G T − S ξ_Hᵀ H; ξ_G T Gᵀ − G T ξ_Gᵀ: by the formulas, with Gram matrices."""
    rng, space, _ = setting("mix", (), 6, 5, 3)
    xi = like(space.point, rng)
    G, H = space.point
    S, T = G.T @ G, H.T @ H
    momenta = space.momenta(xi)
    energy = 0.5 * (np.trace(T @ xi.G.T @ xi.G) + np.trace(S @ xi.H.T @ xi.H))
    assert momenta["energy"] == pytest.approx(energy, rel=1e-12)
    assert np.allclose(momenta["vertical"], G.T @ xi.G @ T - S @ xi.H.T @ H, rtol=1e-12, atol=1e-10)
    assert np.allclose(momenta["rotation_G"], xi.G @ T @ G.T - G @ T @ xi.G.T, rtol=1e-12, atol=1e-10)
    assert np.allclose(momenta["rotation_H"], xi.H @ S @ H.T - H @ S @ xi.H.T, rtol=1e-12, atol=1e-10)


@pytest.mark.slow
@everything
@pytest.mark.parametrize(("batch", "n", "m", "h"), [((2,), 6, 5, 3), ((2,), 3, 3, 3), ((), 4, 3, 1)])
def test_relaxed_geodesics_are_integrated_and_conserve_what_is_left(name, batch, n, m, h):
    """Also where there is a closed form without relaxation."""
    rng = np.random.default_rng(0)
    space = FAMILY[name](0.4).at(random_pair(rng, batch, n, m, h))
    v = space.random_tangent_vector(rng)
    solution = integrate(space, v, 0.7)
    assert set(solution.drift) == {"energy", "rotation_G", "rotation_H", "vertical"}
    assert max(solution.drift.values()) < 1e-11
    assert relative_error(space.geodesic(v, 0.7, "exact"), solution.point) < 1e-14
    errors = [np.max(space.norm(space.geodesic(v, t) - space.geodesic(v, t, "exact"))) for t in (0.02, 0.04)]
    assert np.log2(errors[1] / errors[0]) == pytest.approx(3.0, abs=0.15)


def test_inv_is_complete():
    """Far along, the geodesic is still a full-rank point, reached at constant speed."""
    _, space, v = setting("inv", (), 5, 4, 2)
    far = space.geodesic(v, 20.0, "exact")
    assert np.isfinite(far.G).all()
    target = rg.InvariantMetric().at(far)
    assert target.norm(velocity(space, v, 20.0)) == pytest.approx(space.norm(v), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "n", "m", "h"), sample([((), 6, 5, 3), ((), 4, 4, 4), ((3,), 5, 4, 1), ((2,), 1, 1, 1)][::-1])
)
def test_mix_says_when_it_ends(batch, n, m, h):
    """(−bG, −bH) shrinks σ like 1 − 2bt: every singular value vanishes at t = 1/(2b), by both routes."""
    rng = np.random.default_rng(0)
    space = rg.MixedMetric().at(random_pair(rng, batch, n, m, h))
    v = -0.8 * space.point
    for geodesic in (lambda t: space.geodesic(v, t, "exact"), lambda t: integrate(space, v, t)):
        geodesic(0.6)
        with pytest.raises(rg.GeodesicIncompleteError, match=r"loses rank at time 0\.625") as caught:
            geodesic(2.0)
        assert caught.value.time == pytest.approx(0.625, rel=1e-8)
        assert len(caught.value.block) == len(batch)
    with pytest.raises(rg.GeodesicIncompleteError) as caught:
        space.geodesic(-1 * v, -2.0, "exact")
    assert caught.value.time == pytest.approx(-0.625, rel=1e-8)


def test_a_geodesic_that_only_passes_close_to_the_apex_goes_on():
    """h = 1, aimed almost at the apex: no rank is lost, and closed form and ODE agree on the far side."""
    space = rg.MixedMetric().at(rg.Pair([[1.0], [0.0]], [[1.0], [0.0]]))
    v = rg.Pair([[-1.0], [0.02]], [[-1.0], [0.0]])
    exact = space.geodesic(v, 1.0, "exact")
    assert relative_error(integrate(space, v, 1.0).point, exact) < 1e-8
    assert exact.product[0, 0] < 0.0  # √2 of the angle turns by nearly π: past a right angle


def test_drift_beyond_the_bound_is_an_error(monkeypatch):
    _, space, v = setting("mix", (), 6, 5, 3)
    monkeypatch.setattr(geodesics, "DRIFT_BOUND", 1e-18)
    with pytest.raises(rg.GeodesicAccuracyError, match="conserved quantity"):
        integrate(space, v, 0.9, rtol=1e-6)


def test_drift_measures_the_error():
    """A sloppy integration shows in the conserved quantities."""
    _, space, v = setting("mix", (), 6, 5, 3)
    sloppy, careful = (max(integrate(space, v, 0.9, rtol=rtol).drift.values()) for rtol in (1e-5, 1e-13))
    assert careful < 1e-12 < 1e-9 > sloppy > 10 * careful


def test_a_closed_form_is_not_taken_for_a_velocity_with_a_small_vertical_part():
    """mix has one for n = m = h and horizontal velocities; beside a part of 1e-10 it would be wrong in that digit."""
    rng = np.random.default_rng(3)
    space = rg.MixedMetric().at(rg.Pair(*(np.eye(3) + 0.2 * rng.standard_normal((2, 3, 3)))))
    vertical = space.vertical_vector(rng.standard_normal((3, 3)))
    length = space.norm(space.point)
    v = (0.2 * length) * space.random_tangent_vector(1)
    tilted = v + (1e-10 * length / space.norm(vertical)) * vertical
    result, expected = space.geodesic(tilted, 0.9, "exact"), integrate(space, tilted, 0.9).point
    assert relative_error(result, expected) < 1e-12
    assert relative_error(space.geodesic(v, 0.9, "exact"), expected) > 1e-11


def square_velocity(N):
    """The horizontal velocity at (I, I) along which the product is I + tN."""
    return rg.MixedMetric().at(rg.Pair(np.eye(len(N)), np.eye(len(N)))), rg.Pair(0.5 * N, 0.5 * N.T)


def test_one_singular_value_of_several_is_enough_to_end_a_geodesic():
    space, v = square_velocity(np.diag([0.1, -2.0, 0.3]))
    assert np.allclose(space.geodesic(v, 0.4, "exact").product, np.diag([1.04, 0.2, 1.12]), rtol=1e-13, atol=1e-14)
    with pytest.raises(rg.GeodesicIncompleteError, match=r"rank at time 0\.5,"):
        space.geodesic(v, 1.0, "exact")


def test_a_line_that_only_passes_close_to_a_singular_matrix_goes_on():
    """det(I + tN) = (1 − t)² + t²/4 is smallest at t = 0.8, and not zero."""
    N = np.array([[-1.0, -0.5], [0.5, -1.0]])
    space, v = square_velocity(N)
    assert np.allclose(space.geodesic(v, 1.0, "exact").product, np.eye(2) + N, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("real", "imaginary"),
    [(1e-12, 1e-9), (-1.0 + 2.0**-40, 2.0**-42), (-1.0, 1e-8), (0.3, 0.2), (-0.6, 0.1), (5.0, 1.0)],
)
def test_the_logarithm_of_a_modulus_keeps_all_digits(real, imaginary):
    """Against balls of 200 bits, near 1 and near 0."""
    flint = pytest.importorskip("flint")
    with flint.ctx.workprec(200):
        expected = float(((1 + flint.arb(real)) ** 2 + flint.arb(imaginary) ** 2).log().mid()) / 2.0
    assert geodesics._log_modulus(np.array(real), np.array(imaginary)) == pytest.approx(expected, rel=4e-16, abs=0.0)


@pytest.mark.parametrize("name", ["mix", "s=0.3", "s=0.8"])
def test_an_integration_does_not_depend_on_the_representative(name):
    """It is done in the balanced gauge: a representative with κ = 1e6 costs the digits of moving it, and no others."""
    rng, space, v = setting(name, (), 5, 4, 2)
    A = np.diag([1e3, 1e-3]) @ np.linalg.qr(rng.standard_normal((2, 2)))[0]
    target = space.metric.at(space.point.transform(A))
    moved = integrate(target, v.transform(A), 0.7).point.transform(np.linalg.inv(A))
    assert relative_error(moved, integrate(space, v, 0.7).point) < 1e-9


def test_rank_loss_at_a_defective_eigenvalue_is_seen():
    """A Jordan block at −1: X(1) is singular, though the computed eigenvalues miss −1 by the root of rounding."""
    G, H = np.array([[2.0, 3.0], [3.0, 0.0]]), np.array([[3.0, 3.0], [3.0, -3.0]])
    N = np.array([[-1.0, 0.0], [-1.0, -1.0]])
    space = rg.MixedMetric().at(rg.Pair(G, H))
    v = rg.Pair(G @ N / 2, H @ N.T / 2)
    space.geodesic(v, 0.9, "exact")
    with pytest.raises(rg.GeodesicIncompleteError, match="loses rank") as caught:
        space.geodesic(v, 2.0, "exact")
    assert caught.value.time == pytest.approx(1.0, rel=1e-6)


@pytest.mark.slow
def test_an_integration_that_cannot_be_trusted_is_refused():
    """Through an exact loss of rank at t = 1 that steps straddle: momenta hold to 1e-12, two integrations disagree."""
    G = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    H = np.array([[1.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    N = np.array([[-1.0, 1.0], [0.0, -1.0]])
    space = rg.MixedMetric().at(rg.Pair(G, H))
    with pytest.raises((rg.GeodesicAccuracyError, rg.GeodesicIncompleteError)):
        space.geodesic(rg.Pair(G @ N / 2, H @ N.T / 2), 2.0, "exact")


def test_rank_lost_in_the_past_does_not_matter():
    space = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]]))
    assert space.geodesic(0.8 * space.point, 2.0, "exact").product[0, 0] == pytest.approx(6 * (1 + 2 * 0.8 * 2.0))


def test_errors_survive_pickling():
    import pickle

    error = rg.GeodesicIncompleteError("m", 0.5, (1,))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.time, again.block) == ("m", 0.5, (1,))
    again = pickle.loads(pickle.dumps(rg.RankDeficientError("m", (2,), 0.1)))
    assert (again.block, again.smallest_singular_value) == ((2,), 0.1)


def test_the_earliest_loss_of_rank_is_the_one_reported():
    rng = np.random.default_rng(0)
    for h in (1, 3):
        space = rg.MixedMetric().at(random_pair(rng, (3,), 3 if h == 3 else 4, 3, h))
        with pytest.raises(rg.GeodesicIncompleteError, match=r"block \(2,\)") as caught:
            space.geodesic(np.array([-0.5, -0.4, -1.0]) * space.point, 5.0, "exact")
        assert caught.value.time == pytest.approx(0.5, rel=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_an_ill_conditioned_point_tilts_nothing(monkeypatch, seed):
    """A projected vector has a vertical part of κ times rounding; the closed form is for it all the same."""
    rng = np.random.default_rng(seed)
    space = rg.MixedMetric().at(rg.Pair(*(factor_of_condition(rng, 4, 4, 1e5) for _ in range(2))))
    v = space.horizontal_projection(like(space.point, rng))
    assert space.norm(space.vertical_projection(v)) > 1e-14 * space.norm(v)  # there is something to forgive
    monkeypatch.setattr(geodesics, "integrate", None)
    t = 1e-10  # short beside the smallest singular value of the product, which moves on a straight line
    line = space.point.product + t * (v.G @ space.point.H.T + space.point.G @ v.H.T)
    assert np.linalg.norm(space.geodesic(v, t, "exact").product - line) < 1e-10 * np.linalg.norm(line)  # κ·eps


def test_one_tilted_block_among_horizontal_ones_is_not_flattened():
    rng, space, v = setting("mix", (2,), 3, 3, 3)
    vertical = space.vertical_vector(rng.standard_normal((3, 3)))
    tilted = v + np.array([0.0, 1e-6]) * vertical
    assert relative_error(space.geodesic(tilted, 0.3, "exact"), integrate(space, tilted, 0.3).point) < 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_the_cone_takes_any_velocity(seed):
    """Mix with h = 1: closed form against integration, horizontal or not, forwards and back, in a batch."""
    rng = np.random.default_rng(seed)
    point = rg.Pair(3.0 * rng.standard_normal((2, 7, 1)), rng.standard_normal((2, 4, 1)))
    space = rg.MixedMetric().at(point)
    v = 0.5 * rg.Pair(rng.standard_normal((2, 7, 1)), rng.standard_normal((2, 4, 1)))
    if seed % 4 == 0:
        v = space.vertical_projection(v)
    for t in (0.7, -0.4):
        closed, integrated = space.geodesic(v, t, "exact"), geodesics.integrate(space, v, t).point
        for x, y in zip(closed, integrated, strict=True):
            assert np.abs(x - y).max() < 1e-11 * np.abs(y).max()


@pytest.mark.slow
@pytest.mark.parametrize("s", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("times", [1.5, 6.0])
def test_no_step_of_an_integrator_passes_a_lower_rank(s, times):
    """Along −θ, G(t) = (1 − 2st)^{1/2s} G, which for s = ½ is a straight line, so that no step needs to be small."""
    point = rg.Pair(*(np.random.default_rng(0).standard_normal((n, 2)) for n in (5, 4)))
    space, end = rg.InterpolatedMetric(s).at(point), 0.5 / s
    before = space.geodesic(-1.0 * point, 0.9 * end, "exact")
    assert np.allclose(before.G, 0.1**end * point.G, rtol=1e-9)
    with pytest.raises(rg.GeodesicIncompleteError) as caught:
        space.geodesic(-1.0 * point, times * end, "exact")
    assert caught.value.time == pytest.approx(end, rel=0.01)


@pytest.mark.parametrize("metric", [rg.MixedMetric(), rg.MixedMetric(0.1), rg.InterpolatedMetric(0.5)], ids=str)
@pytest.mark.parametrize("kappa", [1.0, 30.0, 300.0])
def test_the_gradient_through_a_geodesic_of_length_zero_is_the_riemannian_one(metric, kappa):
    rng = np.random.default_rng(0)
    factors = (np.linalg.qr(rng.standard_normal((n, 3)))[0] * np.geomspace(1.0, 1.0 / kappa, 3) for n in (6, 5))
    space = metric.at(rg.Pair(*factors))
    e = rg.Pair(rng.standard_normal((6, 3)), rng.standard_normal((5, 3)))
    e = space.horizontal_projection(space.riemannian_gradient(e))
    covector = rg.Pair(*(x @ M for x, M in zip(e, space.metric_tensor(), strict=True)))
    difference = space.geodesic_gradient(0.0 * e, covector, "exact") - e
    assert space.norm(difference) < 1e-6 * space.norm(e)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_the_gradient_through_a_geodesic_is_right_up_to_the_end_of_the_manifold(share):
    """Along a radial velocity, X = G Hᵀ shrinks to 0 in mix."""
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((5, 1)), rng.standard_normal((4, 1)))
    space, Y = rg.MixedMetric().at(point), rng.standard_normal((5, 4))
    x = space.to_coordinates(-0.5 * share * point) + 1e-3 * space.normal_coordinates(rng)
    x, direction = space.horizontal_coordinates(x), space.random_tangent_vector(rng)
    end, direction = space.point_at(x, "exact"), space.to_coordinates(direction)
    E = 2.0 * (end.product - Y)
    gradient = space.gradient_at(x, rg.Pair(E @ end.H, E.T @ end.G), "exact")

    def loss(s):
        return float(np.sum((space.point_at(x + s * direction, "exact").product - Y) ** 2))

    step = 1e-4 * (1.0 - share)
    slope = (8.0 * (loss(step) - loss(-step)) - (loss(2.0 * step) - loss(-2.0 * step))) / (12.0 * step)
    assert abs(gradient @ direction - slope) < 1e-6 * np.linalg.norm(gradient)
