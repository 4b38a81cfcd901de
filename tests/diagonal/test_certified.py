"""Certified sharpness of diagonal networks against brute force."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from helpers import ball_points, increase_at, loss, orthonormal, sample
from scipy.optimize import minimize_scalar

import refgeo as rg
from refgeo import diagonal, paper
from refgeo.diagonal import outer
from refgeo.diagonal.ascent import climb, farthest, value_at
from refgeo.diagonal.geometry import geometry_of
from refgeo.diagonal.problem import LeastSquares
from refgeo.diagonal.separable import dominating_diagonal, dual
from validation.paper import figure3

NAMES = ("inv", "mix", "adaptive", rg.InterpolatedMetric(0.3), rg.InterpolatedMetric(0.7))


# The parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_ascent_ends_where_no_direction_gains(name):
    """Also at radii where a step on the tangent plane overshoots: there gᵀ(s − t) = 0 for the s farthest along g."""
    rng = np.random.default_rng(12)
    geometry = geometry_of(name)
    for _ in range(12):
        d = int(rng.integers(2, 6))
        u, v = rng.standard_normal((2, d))
        X, rho = rng.standard_normal((d, d)), rng.uniform(1.0, 4.0)
        problem = LeastSquares.of(u, v, X, X @ (u * v) + rng.standard_normal(d))
        lowest = geometry.lowest(problem.beta)
        starts = rng.standard_normal((20, d))
        starts = np.maximum(rho * starts / np.linalg.norm(starts, axis=-1, keepdims=True), lowest)
        rhos = np.full(20, rho)
        ends, values = climb(problem, geometry, starts, rhos, 4000)
        assert np.all(np.linalg.norm(ends, axis=-1) <= rho * (1 + 1e-12))
        assert np.all(ends >= lowest)
        np.testing.assert_allclose(values, value_at(problem, geometry, ends), rtol=1e-12)
        assert np.all(values >= value_at(problem, geometry, starts))
        steps = 1e-6 * np.eye(d)
        differences = [value_at(problem, geometry, ends + s) - value_at(problem, geometry, ends - s) for s in steps]
        gradient = np.stack(differences, axis=-1) / 2e-6
        gain = np.sum(gradient * (farthest(gradient, lowest, rhos) - ends), axis=-1)
        assert np.all(gain <= 1e-5 * np.abs(values).max())


@pytest.mark.parametrize("name", NAMES)
def test_a_term_is_concave_up_to_the_stated_point_and_convex_beyond(name):
    rng = np.random.default_rng(2)
    geometry = geometry_of(name)
    for _ in range(200):
        beta, g = rng.standard_normal(2)
        D, multiplier = 10.0 ** rng.uniform(-2, 2, 2)
        at = [np.asarray(x) for x in (beta, g, D, multiplier)]
        first, turn = float(geometry.concave_from(*at)), float(geometry.concave_until(*at))
        t = np.linspace(max(-0.7, geometry.lowest(np.asarray(beta))), 2.0, 400)
        w, slope = geometry.shift(beta, t), geometry.slope(beta, t)
        bend = 2 * (g + D * w) * geometry.curvature(beta, t) + 2 * D * slope**2 - 2 * multiplier
        assert np.all(bend[(first + 1e-9 < t) & (t < turn - 1e-9)] <= 1e-9)
        if name != "adaptive":
            assert np.all(bend[t < first - 1e-9] >= -1e-9)
        assert np.all(bend[t > turn + 1e-9] >= -1e-9)


@pytest.mark.slow
def test_the_dual_bound_of_one_coordinate_is_its_maximum():
    """With one coordinate, the term in one variable is all there is; SciPy maximises it from many brackets."""
    rng = np.random.default_rng(3)
    for name in NAMES:
        geometry = geometry_of(name)
        for _ in range(6):
            beta, g = rng.standard_normal(2)
            D, rho = 10.0 ** rng.uniform(-1, 1, 2)
            low = max(-rho, float(geometry.lowest(np.asarray(beta))))

            def value(t, geometry=geometry, beta=beta, g=g, D=D):
                w = geometry.shift(np.asarray(beta), np.asarray(t))
                return float(2 * g * w + D * w * w)

            ends = np.linspace(low, rho, 12)
            best = max(
                -minimize_scalar(lambda t: -value(t), bounds=pair, method="bounded", options={"xatol": 1e-12}).fun
                for pair in itertools.pairwise(ends)
            )
            best = max(best, value(low), value(rho))
            result = dual(geometry, *(np.array([number]) for number in (beta, g, D)), np.asarray(rho))
            assert result.upper >= best * (1 - 1e-10)
            assert result.upper <= best * (1 + 1e-9) + 1e-300


def test_dominating_diagonals_dominate():
    rng = np.random.default_rng(4)
    for n in (1, 3, 8):
        X = rng.standard_normal((n, 6))
        D = dominating_diagonal(X.T @ X, rng.standard_normal(6))
        assert np.linalg.eigvalsh(np.diag(D) - X.T @ X)[0] >= -1e-12


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mix"])
@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_the_price_of_a_step_and_how_far_its_third_derivative_is_negative(name, beta):
    geometry, beta = geometry_of(name), np.array([beta])
    price = geometry.price(beta)

    def at(t):
        e = geometry.shift(beta, t) / beta
        return e, price.value(e) - t**2, price.bend(e)

    longest = min(float(price.longest), 5.0)
    t = np.linspace(-0.999 * longest, 0.999 * longest, 300)
    t = t[t > 0.9 * geometry.lowest(beta)]  # at the end itself 1 + e has no digits
    e, error, bend = at(t)
    assert np.abs(error).max() <= 1e-11
    assert np.all(np.diff(bend) < 0.0)
    step = 1e-5 * (1.0 + e)
    slopes = (price.value(e + step) - price.value(e - step)) / (2 * step)
    bends = (price.slope(e + step) - price.slope(e - step)) / (2 * step)
    np.testing.assert_allclose(price.slope(e), slopes, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(bend, bends, rtol=1e-7, atol=1e-7)
    if longest < 5.0:
        with np.errstate(divide="ignore"):  # where 1 + e is 0
            _, error, bend = at(longest * np.array([-1.2, 1.001, 1.02]))
        assert abs(error[0]) > 1e-3 if name == "adaptive" else bend[2] > bend[1]


def test_each_network_of_a_batch_has_its_own_parts():
    """At sizes so different that a norm or a sum over the whole batch would show."""
    rng = np.random.default_rng(21)
    sizes = np.array([1e-180, 1e-3, 1.0, 1e3, 1e130])
    u, v, p = rng.standard_normal((3, 5, 4))
    X = sizes[:, None, None] * rng.standard_normal((5, 6, 4))
    problem = LeastSquares.of(u, v, X, np.zeros((5, 6)))
    rho, lowest = np.abs(rng.standard_normal(5)), -np.abs(rng.standard_normal((5, 4)))
    together = farthest(p * sizes[:, None], lowest, rho), dominating_diagonal(problem.gram, problem.beta)
    with np.errstate(over="ignore"):
        together = (*together, problem.rounding(p))
    for k in range(5):
        item = LeastSquares.of(u[k], v[k], X[k], np.zeros(6))
        alone = farthest(p[k], lowest[k], rho[k]), dominating_diagonal(item.gram, item.beta), item.rounding(p[k])
        for x, y in zip(together, alone, strict=True):
            np.testing.assert_allclose(x[k], y, rtol=1e-12)
        if 1e-10 < sizes[k] < 1e10:
            assert np.linalg.eigvalsh(np.diag(together[1][k]) - item.gram).min() > -1e-12 * sizes[k] ** 2


def test_the_rounding_of_an_increase_is_enclosed():
    """Against fractions, where Xᵀr cancels: a residual that is orthogonal to the columns of X, but for rounding."""
    for seed in range(50):
        rng = np.random.default_rng([seed, 22])
        X, w = rng.standard_normal((9, 4)) * 10.0 ** rng.uniform(-3, 3), rng.standard_normal(4) * 1e-9
        y = 1e3 * rng.standard_normal(9)
        y -= X @ np.linalg.lstsq(X, y, rcond=None)[0]
        problem = LeastSquares.of(np.zeros(4), np.zeros(4), X, y)
        rows = [[Fraction(x) for x in row] for row in X]
        z = [sum(x * Fraction(c) for x, c in zip(row, w, strict=True)) for row in rows]
        exact = sum(a * (a - 2 * Fraction(b)) for a, b in zip(z, y, strict=True))
        rounding = float(problem.rounding(w))
        assert abs(float(Fraction(float(problem.increase(w))) - exact)) <= rounding
        assert rounding <= 1e-13 * np.linalg.norm(X) * np.linalg.norm(y) * np.linalg.norm(w)


def test_the_farthest_point_of_a_cut_ball():
    rng = np.random.default_rng(5)
    for _ in range(100):
        d = int(rng.integers(1, 7))
        p, lowest, rho = rng.standard_normal(d), -(10 ** rng.uniform(-3, 1, d)), np.asarray(10 ** rng.uniform(-2, 1))
        t = farthest(p, lowest, rho)
        assert np.all(t >= lowest)
        assert np.linalg.norm(t) <= rho * (1 + 1e-12)
        others = np.maximum(ball_points(rng, 2000, d, rho), lowest)
        assert np.max(others @ p) <= t @ p * (1 + 1e-12)


def raw_bounds(name, u, v, X, y, rho, t):
    """Every upper bound, before anything is done with it."""
    problem, geometry, radius = LeastSquares.of(u, v, X, y), geometry_of(name), np.asarray(rho)
    D = dominating_diagonal(problem.gram, problem.beta)
    bounds = {"dual": dual(geometry, problem.beta, problem.g, D, radius).upper}
    if name == "mix":
        bounds["trust region"] = diagonal.second_order("mix", u, v, X, y, rho).upper
    else:
        bounds["ball"] = outer.ball(problem, geometry, radius)[0]
        bounds["ellipsoid"] = outer.ellipsoid(problem, geometry, t, radius)
    return {bound: float(value) for bound, value in bounds.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(NAMES))
def test_every_bound_alone_is_above_all_points(name):
    """Also where another one is smaller, and around points that are not the maximum; each is tight somewhere."""
    rng = np.random.default_rng(20)
    geometry = geometry_of(name)
    tightest = {}
    for i in range(25 if isinstance(name, str) else 15):
        d = int(rng.integers(1, 4))
        u, v = rng.standard_normal((2, d)) * 10 ** rng.uniform(-1, 1)
        X = rng.standard_normal((int(rng.integers(1, 5)), d))
        y = X @ (u * v) - rng.standard_normal(len(X)) * 10 ** rng.uniform(-3, 1) * (i % 3 > 0)
        rho = 10 ** rng.uniform(-3, 0.3) if i % 5 else (1 - 10 ** rng.uniform(-16, -3)) / 2**0.5
        t = np.maximum(grid(d, rho, geometry.lowest(u * v)), -rho)
        values = np.sum(((u * v + geometry.shift(u * v, t)) @ X.T - y) ** 2, axis=-1) - loss(u, v, X, y)
        rounding = 1e-13 * (np.sum(y * y) + values.max())
        for touch in (t[np.argmax(values)], t[i % len(t)]):
            for bound, value in raw_bounds(name, u, v, X, y, rho, touch).items():
                assert value >= values.max() - rounding, bound
                tightest[bound] = min(tightest.get(bound, np.inf), value / (values.max() + rounding))
    assert all(ratio < 1.01 for ratio in tightest.values()), tightest


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "mix"])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_bounds_by_a_quadratic_problem_are_tight_in_small_balls(name, noise):
    """Where the loss is linear in t, and at a minimum, where it is quadratic: to first order in ρ."""
    rng = np.random.default_rng(31)
    for _ in range(6):
        u, v = rng.standard_normal((2, 3))
        X = rng.standard_normal((4, 3))
        y, rho = X @ (u * v) - noise * rng.standard_normal(4), 1e-4
        result = diagonal.worst_case(name, u, v, X, y, rho)
        bounds = raw_bounds(name, u, v, X, y, rho, result.coordinates)
        for bound in ("ball", "ellipsoid"):
            assert 0.0 <= bounds[bound] - result.lower <= 0.02 * result.lower, bound


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mix"])
def test_the_bounds_of_a_batch_are_those_of_its_problems(name):
    """Of very different sizes, with a coordinate that cannot move, and one where no bound is finite."""
    rng = np.random.default_rng(32)
    u, v = rng.standard_normal((2, 5, 3)) * 10.0 ** np.array([-3, 0, 1, 0, 0])[:, None]
    u[3, 1] = 0.0
    X, noise = rng.standard_normal((5, 4, 3)), rng.standard_normal((5, 4))
    y = (X @ (u * v)[..., None])[..., 0] - noise
    rho = np.array([0.01, 0.1, 0.3, 0.05, 1e200])
    problem, geometry = LeastSquares.of(u, v, X, y), geometry_of(name)
    t = np.maximum(0.5 * rho[:, None] * rng.random((5, 3)), geometry.lowest(problem.beta))
    t[4] = 0.1

    def bounds(problem, t, rho):
        with np.errstate(over="ignore"):
            return np.array([outer.ball(problem, geometry, rho)[0], outer.ellipsoid(problem, geometry, t, rho)])

    together = bounds(problem, t, rho)
    for k in range(5):
        alone = bounds(LeastSquares.of(u[k], v[k], X[k], y[k]), t[k], np.asarray(rho[k]))
        assert np.allclose(together[:, k], alone, rtol=1e-9)
    assert np.isfinite(together[:, 1:4]).all()
    assert np.isfinite(together[0, 0])
    assert np.isinf(together[0, 4])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@np.errstate(divide="ignore", invalid="ignore")  # of a coordinate that cannot move, as in `worst_case`
def test_the_dual_bounds_of_a_batch_are_those_of_its_problems(name):
    """With both of its points: one in the ball, one not, and none moves a coordinate that cannot move."""
    rng = np.random.default_rng(33)
    u, v = rng.standard_normal((2, 2, 4, 3)) * 10.0 ** rng.uniform(-2, 1, (4, 1))
    u[1, 3, 1] = 0.0
    X, noise = rng.standard_normal((2, 4, 4, 3)), rng.standard_normal((2, 4, 4)) * 10.0 ** rng.uniform(-2, 1, (4, 1))
    y = (X @ (u * v)[..., None])[..., 0] - noise
    rho = np.array([[0.01, 0.3, 1e-6, 0.05], [2.0, 0.1, 1e-3, 0.5]])
    problem, geometry = LeastSquares.of(u, v, X, y), geometry_of(name)
    D = dominating_diagonal(problem.gram, problem.beta)
    together = dual(geometry, problem.beta, problem.g, D, rho)
    assert np.all(np.linalg.norm(together.inside, axis=-1) <= rho * (1 + 1e-12))
    assert np.all(np.linalg.norm(together.outside, axis=-1) >= rho * (1 - 1e-12))
    assert np.all(together.inside[problem.beta == 0.0] == 0.0)
    for k in np.ndindex(2, 4):
        item = LeastSquares.of(u[k], v[k], X[k], y[k])
        assert np.allclose(dominating_diagonal(item.gram, item.beta), D[k], rtol=1e-12)
        alone = dual(geometry, item.beta, item.g, D[k], np.asarray(rho[k]))
        assert np.allclose(alone.upper, together.upper[k], rtol=1e-9)
        for mine, theirs in ((alone.inside, together.inside[k]), (alone.outside, together.outside[k])):
            assert np.allclose(mine, theirs, rtol=1e-6, atol=1e-6 * rho[k])


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(NAMES, 2))
@np.errstate(over="ignore")
def test_the_dual_bound_is_the_maximum_where_the_gram_matrix_is_diagonal(name):
    """To the last digits in most cases; where the maximizer jumps past the sphere a small gap remains."""
    rng = np.random.default_rng(34)
    geometry, ratios = geometry_of(name), []
    for i in range(12):
        u, v = rng.standard_normal((2, 4)) * 10.0 ** rng.uniform(-1, 1)
        X = orthonormal(rng, 6, 4) * 10.0 ** rng.uniform(-1, 1, 4)
        y = X @ (u * v) - rng.standard_normal(6) * 10.0 ** rng.uniform(-2, 0)
        rho = float((1e-3, 0.03, 0.2, 0.6)[i % 4])
        problem, result = LeastSquares.of(u, v, X, y), diagonal.worst_case(name, u, v, X, y, rho)
        bound = dual(geometry, problem.beta, problem.g, np.diag(problem.gram).copy(), np.asarray(rho))
        ratios.append(float(bound.upper / result.lower))
        assert np.linalg.norm(bound.inside) <= rho * (1 + 1e-12)
    assert min(ratios) >= 1 - 1e-12
    assert np.sum(np.array(ratios) <= 1 + 1e-9) >= 6
    assert max(ratios) < 1.05


def test_the_smaller_of_two_dominating_diagonals_is_chosen_where_it_counts():
    gram = np.array([[2.0, -1.0], [-1.0, 3.0]])
    largest = np.linalg.eigvalsh(gram)[-1]
    assert np.array_equal(dominating_diagonal(gram, np.array([3.0, 0.1])), [3.0, 4.0])  # 27 < 3.6 · 9.01
    assert np.allclose(dominating_diagonal(gram, np.array([0.1, 3.0])), largest, rtol=1e-12)  # 36 > 3.6 · 9.01
    both = dominating_diagonal(gram, np.array([[[3.0, 0.1]], [[0.1, 3.0]]]))
    assert np.allclose(both[:, 0], [[3.0, 4.0], [largest, largest]], rtol=1e-12)


def test_a_bound_that_is_beaten_is_an_error(monkeypatch):
    monkeypatch.setattr(outer, "ellipsoid", lambda *arguments: np.zeros(()))
    X = np.array([[1.0, 2.0], [0.0, 1.0]])
    with pytest.raises(
        ArithmeticError, match="the upper bound is smaller than an increase of the loss that is reached, in 1 networks"
    ):
        diagonal.worst_case("inv", [1.0, 2.0], [1.0, 1.0], X, [1.0, 1.0], 0.1)


# Certified values ------------------------------------------------------------------------------------------------


def grid(d, rho, lowest):
    """Points of the ball, its surface included, that the manifold has."""
    angle = np.linspace(0, 2 * np.pi, 721)
    if d == 1:
        sphere = np.array([[1.0], [-1.0]])
    elif d == 2:
        sphere = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    else:
        height = np.linspace(-1, 1, 181)[:, None, None]
        around = np.stack([np.cos(angle[::3]), np.sin(angle[::3])], axis=-1)
        ring = np.sqrt(1 - height**2) * around
        sphere = np.concatenate([ring, np.broadcast_to(height, (*ring.shape[:2], 1))], axis=-1).reshape(-1, 3)
    points = np.concatenate([rho * radius * sphere for radius in (0.25, 0.5, 0.75, 0.9, 1.0)])
    return np.maximum(points, lowest)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "d"), sample([(name, d) for d in (1, 2, 3) for name in NAMES], 4))
def test_no_point_of_a_fine_grid_beats_the_bounds(name, d):
    rng = np.random.default_rng([d, 6])
    geometry = geometry_of(name)
    for i in range(12):
        u, v = rng.standard_normal((2, d))
        X = orthonormal(rng, d + 1, d) if i % 2 else rng.standard_normal((max(d - 1, 1), d))
        y = X @ (u * v) if i % 3 == 0 else rng.standard_normal(len(X))
        rho = float((0.01, 0.1, 0.5, 2.0)[i % 4])
        result = diagonal.worst_case(name, u, v, X, y, rho)
        t = grid(d, rho, geometry.lowest(u * v))
        beta = u * v + geometry.shift(u * v, t)
        best = np.max(np.sum((beta @ X.T - y) ** 2, axis=-1) - loss(u, v, X, y))
        rounding = 1e-13 * (np.sum(y * y) + float(result.upper))
        assert best <= result.upper + rounding
        assert best <= result.lower + rounding  # the search found the global maximum
        assert best >= 0.98 * result.lower - rounding  # and the grid is fine enough to say so


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rho"), sample([(name, rho) for rho in (1e-6, 1e-2, 0.3, 3.0) for name in NAMES], 2))
def test_no_random_point_beats_the_bounds_in_200_dimensions(name, rho):
    rng = np.random.default_rng(7)
    d, n = 200, 60
    u, v = rng.standard_normal((2, d)) * 0.5
    u[:3] = 0.0
    X, y = rng.standard_normal((n, d)) / 10, rng.standard_normal(n)
    geometry = geometry_of(name)
    result = diagonal.worst_case(name, u, v, X, y, rho)
    t = np.maximum(ball_points(rng, 10_000, d, rho), geometry.lowest(u * v))
    near = np.maximum(result.coordinates + 0.1 * t, geometry.lowest(u * v))
    near *= rho / np.maximum(np.linalg.norm(near, axis=1, keepdims=True), rho)
    at_start = loss(u, v, X, y)
    rounding = 1e-13 * (at_start + result.upper)
    for points in (t, near):
        values = np.sum(((u * v + geometry.shift(u * v, points)) @ X.T - y) ** 2, axis=-1) - at_start
        assert values.max() <= result.upper + rounding
        assert values.max() <= result.lower + rounding
    assert increase_at(name, u, v, X, y, result.coordinates) == pytest.approx(
        result.lower, abs=10 * rounding, rel=1e-12
    )
    assert diagonal.norm(name, u, v, *result.maximizer) <= rho * (1 + 1e-12)


def batch(i):
    """Forty networks of one shape: XᵀX = I, general, rank one, diagonal, a zero column; all radii; hard cases."""
    rng = np.random.default_rng([i, 8])
    d, n, count = int(rng.integers(1, 9)), int(rng.integers(1, 9)), 40
    u, v = rng.standard_normal((2, count, d)) * 10 ** rng.uniform(-2, 1, (count, 1))
    kind = i % 5
    if kind == 0:
        X = np.stack([orthonormal(rng, d + 2, d) for _ in range(count)])
    elif kind == 2:
        X = rng.standard_normal((count, n, 1)) * rng.standard_normal((count, 1, d))
    elif kind == 3:
        X = 10 ** rng.uniform(-2, 2, (count, d))[..., None] * np.eye(d)
    else:
        X = rng.standard_normal((count, n, d))
        X[::2, :, 0] *= kind == 1
    u[::4, 0] = 0.0
    v[1::20] = 0.0
    at_start = (X @ (u * v)[..., None])[..., 0]
    residual = rng.standard_normal(at_start.shape) * 10 ** rng.uniform(-2, 1, (count, 1))
    residual[::3] = 0.0
    for k in range(1, count, 6):  # the hard case: nothing along the top singular vector
        top = np.linalg.svd(X[k])[0][:, 0]
        residual[k] -= top * (top @ residual[k])
    return u, v, X, at_start - residual, 10 ** rng.uniform(-8, 3, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(NAMES, 5))
def test_hundreds_of_instances_are_certified(name):
    exact = {True: [], False: []}  # with XᵀX diagonal, and not
    for i in range(4 if isinstance(name, str) else 3):
        u, v, X, y, rho = batch(i)
        result = diagonal.worst_case(name, u, v, X, y, rho, n_starts=2)
        finite = np.isfinite(result.upper)
        assert np.all(finite | (rho > 100)), "an overflow where none is due"
        if name == "mix":
            within = ~result.leaves_domain
            assert np.all(result.exact[within])
        exact[i % 5 in (0, 3)].append(result.exact[rho < 0.1])
        polynomial = diagonal.second_order(name, u, v, X, y, rho)
        assert np.all(polynomial.upper - polynomial.lower <= 1e-10 * polynomial.upper)
        assert np.all(diagonal.norm(name, u, v, *result.maximizer) <= rho * (1 + 1e-12))
        for k in np.flatnonzero(finite & (result.upper < 1e100)):
            reached = increase_at(name, u[k], v[k], X[k], y[k], result.coordinates[k])
            size = loss(u[k], v[k], X[k], y[k]) + np.sum(y[k] ** 2) + result.lower[k]
            assert abs(reached - result.lower[k]) <= 1e-11 * size
    shares = {diagonal_gram: np.mean(np.concatenate(values)) for diagonal_gram, values in exact.items()}
    assert shares[True] >= (0.98 if isinstance(name, str) else 0.97)
    assert shares[False] >= 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(NAMES, 2))
def test_second_order_values_are_the_maximum_of_the_taylor_polynomial(name):
    """Differences of the loss along geodesics give the polynomial; random points, that nothing is larger."""
    rng = np.random.default_rng(9)
    d = 4
    for _ in range(20):
        u, v = rng.standard_normal((2, d)) + 2.0
        X, y = rng.standard_normal((3, d)), rng.standard_normal(3)
        result = diagonal.second_order(name, u, v, X, y, 0.5)

        def polynomial(t, u=u, v=v, X=X, y=y, h=1e-3):
            plus, minus = (increase_at(name, u, v, X, y, s * h * t) for s in (1.0, -1.0))
            return (plus - minus) / (2 * h) + (plus + minus) / (2 * h**2)

        assert polynomial(result.coordinates) == pytest.approx(float(result.lower), rel=1e-5)
        others = [polynomial(t) for t in ball_points(rng, 200, d, 0.5)]
        assert max(others) <= result.upper * (1 + 1e-5)


def test_known_values_for_orthonormal_data():
    rng = np.random.default_rng(10)
    d, rho = 7, 0.05
    u, v = rng.standard_normal((2, d)) + 3.0
    X = orthonormal(rng, 9, d)
    y = rng.standard_normal(9)
    distance = np.linalg.norm(u * v - X.T @ y)
    mix = diagonal.worst_case("mix", u, v, X, y, rho)
    assert mix.exact
    assert float(mix.lower) == pytest.approx(2 * 2**0.5 * rho * distance + 2 * rho**2, rel=1e-13)
    at_minimum = X @ (u * v)
    for name in ("inv", "adaptive"):
        result = diagonal.second_order(name, u, v, X, at_minimum, rho)
        assert float(result.lower) == pytest.approx(2 * rho**2 * np.max((u * v) ** 2), rel=1e-12)


def test_at_zero_residual_adaptive_and_inv_coincide_to_second_order():
    rng = np.random.default_rng(11)
    u, v = rng.standard_normal((2, 6))
    X = rng.standard_normal((4, 6))
    values = {name: diagonal.second_order(name, u, v, X, X @ (u * v), 1e-3).lower for name in ("inv", "adaptive")}
    assert values["inv"] == pytest.approx(values["adaptive"], rel=1e-12)
    exact = [[diagonal.worst_case(n, u, v, X, X @ (u * v), rho).lower for n in values] for rho in (1e-2, 1e-3)]
    differences = [abs(a / b - 1) for a, b in exact]
    assert differences[1] == pytest.approx(differences[0] / 10, rel=0.1)  # a finite-ρ effect


def test_the_printed_formulas_differ_by_what_the_table_of_misprints_says():
    rng = np.random.default_rng(12)
    d, rho = 5, 0.1
    u, v = rng.standard_normal((2, d)) + 2.0
    X, y = orthonormal(rng, 6, d), rng.standard_normal(6)
    second = diagonal.second_order("inv", u, v, X, y, 2**0.5 * rho)
    assert figure3.formula_26(u, v, X, y, rho) == pytest.approx(float(second.lower), rel=1e-12)
    exact = diagonal.worst_case("mix", u, v, X, y, rho)
    expected = 2 * 2**0.5 * figure3.formula_35(u, v, X, y, rho) + 2 * rho**2
    assert float(exact.lower) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.slow
def test_networks_radii_and_data_broadcast():
    rng = np.random.default_rng(13)
    u, v = rng.standard_normal((2, 3, 5))
    u[1, 2] = 0.0
    X, y = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 4))
    rho = np.array([0.01, 0.6])[:, None]
    for name in NAMES:
        together = diagonal.worst_case(name, u, v, X, y, rho)
        assert together.lower.shape == (2, 3)
        for i, k in np.ndindex(2, 3):
            alone = diagonal.worst_case(name, u[k], v[k], X[k], y[k], rho[i, 0])
            assert together.lower[i, k] == pytest.approx(float(alone.lower), rel=1e-6)
            # beside smaller radii, the bound of the dual is there for all
            assert together.upper[i, k] <= alone.upper * (1 + 1e-6)
        shared = diagonal.worst_case(name, u, v, X[0], y[0], 0.1)
        assert shared.lower[2] == pytest.approx(
            float(diagonal.worst_case(name, u[2], v[2], X[0], y[0], 0.1).lower), rel=1e-6
        )


def test_leaving_the_domain_is_said_and_the_maximizer_still_has_a_geodesic():
    u, v = np.array([0.01, 1.0]), np.array([1.0, 1.0])
    X, y = np.eye(2), np.array([3.0, 1.0])  # β₀ should grow from 0.01 to 3: the loss rises the other way
    result = diagonal.worst_case("mix", u, v, X, y, 0.5)
    assert result.leaves_domain
    moved = diagonal.geodesic("mix", u, v, *result.maximizer)
    assert np.all(moved[0] * moved[1] > 0)
    inside = diagonal.worst_case("mix", u, v, X, y, 0.005)
    assert not inside.leaves_domain
    unconstrained = diagonal.second_order("mix", u, v, X, y, 0.5)
    assert unconstrained.leaves_domain
    assert unconstrained.lower > result.upper


def test_at_zero_residual_the_maximizer_is_on_the_side_that_the_domain_has():
    inside = [diagonal.worst_case("mix", [b, 1.0], [1.0, 1.0], np.eye(2), [b, 1.0], 0.5) for b in (0.01, -0.01)]
    for result in inside:
        assert not result.leaves_domain
        assert result.exact
        assert float(result.lower) == pytest.approx(0.5, rel=1e-12)


def test_large_radii_and_small_weights_do_not_lose_digits():
    s, rho = 1e-50, 520 / 2**0.5
    result = diagonal.worst_case("inv", [s], [s], [[1.0]], [s * s], rho)
    end = np.prod(diagonal.geodesic("inv", [s], [s], *result.maximizer))
    assert float(result.lower) == pytest.approx(float(end) ** 2, rel=1e-9)
    assert result.upper >= result.lower
    assert paper.toy_sharpness(s, s, 1.0, s * s, rho) == pytest.approx(float(result.lower), rel=1e-9)


@pytest.mark.slow
def test_the_largest_radii_are_infinite_and_nothing_that_moves_is_zero():
    result = diagonal.worst_case("inv", [1.0, 2.0], [1.0, 1.0], np.eye(2), [0.0, 0.0], 1e3)
    assert result.lower == result.upper == np.inf
    assert not result.exact
    assert np.isfinite(result.coordinates).all()
    for name in NAMES:
        still = diagonal.worst_case(name, [0.0], [1.0], np.eye(1), [1.0], 0.3)
        assert still.lower == still.upper == 0.0
        assert still.exact


def test_repr_says_how_sure_it_is():
    assert repr(diagonal.worst_case("mix", [1.0], [1.0], [[1.0]], [1.0], 0.1)) == "Certified(0.02, exact)"
    rng = np.random.default_rng(14)
    u, v = rng.standard_normal((2, 4, 3))
    assert repr(diagonal.worst_case("mix", u, v, np.eye(3), np.ones(3), 1e-3)) == "Certified(4 values, 4 exact)"
    open_gap = diagonal.worst_case("inv", u[0], v[0], rng.standard_normal((2, 3)), np.ones(2), 2.0)
    assert " to " in repr(open_gap)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "euclidean"}, 'or one between them such as "s=0.5", or "adaptive", got'),
        ({"metric": rg.MixedMetric(0.1)}, "metric: expected no relaxation"),
        ({"v": [1.0]}, r"v: expected the shape of u, \(2,\)"),
        ({"X": np.eye(3)}, r"X: expected shape \(\.\.\., n, 2\)"),
        ({"y": [1.0]}, r"y: expected shape \(\.\.\., 2\)"),
        ({"rho": 0.0}, "rho: expected numbers > 0"),
        ({"rho": [0.1, 0.2], "u": np.ones((3, 2)), "v": np.ones((3, 2))}, "rho: expected a shape that broadcasts"),
        ({"u": [np.nan, 1.0]}, "^u: expected finite numbers"),
        ({"v": [1.0, np.inf]}, "^v: expected finite numbers"),
        ({"X": np.nan * np.eye(2)}, "^X: expected finite numbers"),
        ({"y": [np.nan, 1.0]}, "^y: expected finite numbers"),
        (
            {"y": np.ones((4, 2)), "u": np.ones((3, 2)), "v": np.ones((3, 2)), "X": np.ones((5, 1, 2, 2))},
            r"^u, X, y: expected leading dimensions that broadcast, got \(3,\), \(5, 1\) and \(4,\)$",
        ),
        ({"X": np.ones((3, 2, 2)), "y": np.ones((4, 2))}, r"got \(\), \(3,\) and \(4,\)$"),
        ({"n_starts": -1}, "n_starts: expected an integer >= 0"),
        ({"X": 1e200 * np.eye(2)}, "X: expected entries below 1e.140"),
        (
            {"u": np.ones(0), "v": np.ones(0), "X": np.ones((1, 0)), "y": np.ones(1)},
            "^u: expected at least one coordinate, got none$",
        ),
        ({"rng": "a"}, "rng: expected a seed"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"metric": "inv", "u": np.ones(2), "v": np.ones(2), "X": np.eye(2), "y": np.ones(2), "rho": 0.1}
    with pytest.raises((ValueError, TypeError), match=message):
        diagonal.worst_case(**(arguments | change))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("d", [1, 3])
def test_of_two_opposite_maxima_of_mix_the_one_in_the_domain_is_taken(sign, d):
    """At zero residual F(w) = ‖w‖² is even; w = −β is the end of the manifold, on one side only: 2ρ² is reached."""
    beta = np.array([sign, 0.5, -0.5])[:d]
    result = diagonal.worst_case("mix", np.abs(beta), np.sign(beta), np.eye(d), beta, [[0.9], [0.3]])
    assert np.allclose(result.lower, result.upper, rtol=1e-14)
    assert np.allclose(result.lower[:, 0], 2.0 * np.array([0.9, 0.3]) ** 2, rtol=1e-14)
    assert not np.any(result.leaves_domain)
    moved = diagonal.geodesic("mix", np.abs(beta), np.sign(beta), *result.maximizer)
    assert np.allclose(np.sum((moved[0] * moved[1] - beta) ** 2, axis=-1), result.lower, rtol=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_maximizer_of_the_polynomial_of_mix_is_turned_into_the_domain_where_the_opposite_is_as_good(sign):
    """β ends at 0, and the small radius does not get there: each network and radius by itself."""
    rho = np.array([[0.3], [5.0]])
    y = np.array([[sign], [2.0 * sign], [sign]])  # at zero residual −w is as good as w; else only that towards zero
    alone = diagonal.second_order("mix", [1.0], [sign], [[1.0]], y, rho)
    assert np.array_equal(alone.leaves_domain, [[False, False, False], [False, True, False]])
    proved = diagonal.worst_case("mix", [1.0], [sign], [[1.0]], y, rho)
    assert np.array_equal(np.isclose(proved.lower, alone.lower, rtol=1e-12), ~alone.leaves_domain)
    moved = sign + np.sqrt(2.0) * sign * alone.coordinates[..., 0]
    assert np.allclose((moved - y[:, 0]) ** 2 - (sign - y[:, 0]) ** 2, alone.lower, rtol=1e-12)
    assert np.array_equal(sign * moved < 0.0, alone.leaves_domain)
    X, v = np.array([[[1.0, -1.0]], [[1.0, 0.0]]]), np.array([[1.0, 1.0], [sign, 1.0]])
    two = diagonal.second_order("mix", np.abs(v), v, X, [[0.0], [sign]], rho)
    assert np.array_equal(two.leaves_domain, [[False, False], [True, False]]), "along (1, −1) β ends on either side"


@pytest.mark.parametrize("metric", ["inv", "mix", "adaptive"])
def test_what_cannot_move_does_not(metric):
    result = diagonal.second_order(metric, [1.0, 0.0], [2.0, 3.0], np.ones((1, 2)), [1.0], 0.1)
    assert result.coordinates[1] == 0.0 < abs(result.coordinates[0])
    assert np.array_equal(np.array(result.maximizer)[..., 1], [0.0, 0.0])
    u, v = [[1.0, 0.0], [0.0, 0.0], [1.0, 2.0]], [[2.0, 3.0], [1.0, 2.0], [1.0, 1.0]]
    selection = diagonal.worst_case(metric, u, v, [[1.0, 1.0], [1.0, 2.0]], [1.0, 1.0], 0.7)
    assert np.array_equal(selection.coordinates == 0.0, [[False, True], [True, True], [False, False]])
    assert np.array_equal(selection.upper == 0.0, [False, True, False]), "of a network in which nothing moves, alone"
    assert not np.any(selection.leaves_domain), "nor does an open gap mean that"
    assert np.array_equal(selection.exact, [True, True, metric != "inv"])


@pytest.mark.parametrize("metric", ["inv", "mix", "adaptive"])
def test_where_the_gram_matrix_is_diagonal_little_work_is_exact_in_small_balls(metric):
    rng = np.random.default_rng(0)
    u, v, y = rng.standard_normal((3, 50, 4))
    rho = np.array([[0.003], [0.03]])
    result = diagonal.worst_case(metric, u, v, np.diag([3.0, 1.0, 2.0, 0.5]), y, rho, tight=False)
    assert result.exact.all()
