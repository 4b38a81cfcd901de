"""Worst-case sharpness against certified maxima, its limits, its invariance, and how it searches."""

import dataclasses
import functools
import itertools
import math
import tracemalloc
import types

import numpy as np
import pytest
from helpers import critical_point, linear_loss, product_loss, sample, transformer
from scipy.sparse.linalg import eigsh

import refgeo as rg
from refgeo.diagonal.trust_region import maximise_quadratic
from validation.backends import alg1
from validation.findings.orbit import move_heads

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)
adaptive_case = functools.partial(rg.adaptive_sharpness, n_restarts=1)

PAIR_METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
pair_metrics = pytest.mark.parametrize("name", PAIR_METRICS)


def quadratic(g, H):
    return lambda w: (float(g @ w + 0.5 * w @ H @ w), g + H @ w)


def random_quadratic(i):
    rng = np.random.default_rng([i, 17])
    n = int(rng.integers(2, 80))
    A = rng.standard_normal((n, n))
    spectrum = i % 3
    if spectrum == 0:
        H = (A + A.T) / np.sqrt(4 * n)
    elif spectrum == 1:
        H = A @ A.T / n
    else:
        Q = np.linalg.qr(A)[0]
        H = (Q * np.exp(rng.uniform(-6, 3, n))) @ Q.T
    # gradients from dominant to so small that only curvature counts
    return 10 ** rng.uniform(-3, 0.5) * rng.standard_normal(n), H, 10 ** rng.uniform(-2, 1)


@pytest.mark.slow
def test_default_search_finds_the_certified_maximum_of_random_quadratics():
    reached, claimed = [], []
    for i in range(100):
        g, H, rho = random_quadratic(i)
        upper = float(maximise_quadratic(g, H, rho).upper)
        result = rg.worst_case_sharpness(quadratic(g, H), np.zeros(len(g)), rg.EuclideanMetric(), rho)
        assert result.value <= upper * (1 + 1e-12)
        assert result.n_evaluations <= 21 + 4 * 37 + 5 * 21
        reached.append(result.value >= 0.999 * upper)
        assert result.n_reached > 0
        claimed.append(result.converged)
    assert np.mean(reached) >= 0.95
    assert np.mean(np.array(claimed) & ~np.array(reached)) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2, "exact"])
@pytest.mark.parametrize("metric", ["inv", "mix", "adaptive"])
@pytest.mark.parametrize("n_iter", [20, 60])
def test_it_follows_an_implementation_that_knows_diagonal_networks_only(metric, order, n_iter):
    """Of the paper's lines with the paper's gradient, in numbers instead of coordinates, from the centre."""
    returned = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, n_iter])
        d = int(rng.integers(2, 9))
        X, u, v = rng.standard_normal((d + 2, d)), *rng.standard_normal((2, d))
        y, rho = X @ (u * v) + rng.choice([0.01, 1.0]) * rng.standard_normal(d + 2), rng.choice([0.1, 0.4])

        def value_and_grad(u, v, X=X, y=y):
            residual = X @ (u * v) - y
            e = 2.0 * X.T @ residual
            return float(residual @ residual), (e * v, e * u)

        def of_pairs(pair, f=value_and_grad):
            value, grads = f(pair.G[:, 0, 0], pair.H[:, 0, 0])
            return value, rg.Pair(*(e[:, None, None] for e in grads))

        problem, at = types.SimpleNamespace(value_and_grad=value_and_grad), rg.Pair(u[:, None, None], v[:, None, None])
        expected, _ = alg1.sharpness(metric, problem, u, v, rho, order, n_iter, start=(0.0 * u, 0.0 * v))
        settings = {"n_iter": n_iter, "n_restarts": 1}
        if metric == "adaptive":
            result = adaptive_case(of_pairs, at, rho, **settings)
        else:
            result = worst_case(of_pairs, at, PAIR_METRICS[metric], rho, order=order, gradient="paper", **settings)
        if result.n_rejected:  # where there is no geodesic, the other one stops at the end of the domain
            continue
        assert result.value == pytest.approx(expected, rel=1e-9)
        returned += bool(np.any(result.values[1:] < result.trace[:-1]))
    assert returned  # to the best point, at some checkpoint


@pytest.mark.slow
def test_default_search_finds_the_certified_maximum_of_linear_networks():
    """n = m = h and mix: X = GHᵀ moves on a straight line with ‖ξ‖² = ½‖dX‖², so the objective is a quadratic in dX."""
    reached = []
    for i in range(10):
        rng = np.random.default_rng([i, 5])
        h = int(rng.integers(1, 5))
        point = rg.Pair(rng.standard_normal((h, h)) + 2 * np.eye(h), rng.standard_normal((h, h)) + 2 * np.eye(h))
        x, y = rng.standard_normal((7, h)), rng.standard_normal((7, h))
        rho = 10 ** rng.uniform(-3, -1) * np.linalg.svd(point.product, compute_uv=False)[-1]
        result = rg.worst_case_sharpness(
            linear_loss(x, y),
            {"layers": point},
            rg.ProductMetric({"layers": rg.MixedMetric()}),
            rho,
            order="exact",
        )
        residual = x @ point.product.T - y
        gradient = (residual.T @ x / len(x)).ravel()
        upper = maximise_quadratic(gradient, np.kron(np.eye(h), x.T @ x / len(x)), math.sqrt(2) * rho).upper
        assert result.value <= upper * (1 + 1e-9)
        reached.append(result.value >= 0.999 * upper)
    assert np.mean(reached) >= 0.95


@pytest.mark.slow
@pair_metrics
@pytest.mark.parametrize("order", [1, 2])
def test_sharpness_over_rho_tends_to_the_riemannian_gradient_norm(name, order):
    model, params, f = transformer()
    metric = model.metric(name)
    space = metric.at(params)
    length = float(space.norm(space.riemannian_gradient(f(params)[1])))
    errors = []
    for rho in (1e-3, 1e-4):
        result = worst_case(f, params, metric, rho, order=order)
        errors.append(abs(result.value / rho - length) / length)
    assert errors[1] < 1e-2
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.2)  # the next term is of first order in ρ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order"),
    [("inv", 2), ("inv", "exact"), ("mix", 2), pytest.param("mix", "exact", marks=pytest.mark.exhaustive)],
)
def test_at_a_critical_point_sharpness_over_rho_squared_tends_to_half_the_largest_hessian_eigenvalue(name, order):
    params, f, metric = critical_point(name)
    largest = eigsh(rg.spectrum.RiemannianHessian(f, params, metric), k=1, which="LA", v0=np.ones(14))[0][0]
    ratios = []
    for rho in (1e-2, 1e-3):
        n_restarts = 1 if (order, name) == ("exact", "mix") else 5  # an integrated geodesic takes its time
        result = worst_case(f, params, metric, rho, order=order, n_iter=40, n_restarts=n_restarts)
        ratios.append(result.value / rho**2 / (0.5 * largest) - 1)
    assert abs(ratios[1]) < 1e-2
    assert abs(ratios[1]) < 0.3 * abs(ratios[0]) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order", "norm"), sample(list(itertools.product(PAIR_METRICS, (1, 2), ("pre", "post"))), 3)
)
def test_sharpness_does_not_change_along_an_orbit_and_adaptive_sharpness_does(name, order, norm):
    model, params, f = transformer(norm)
    metric = model.metric(name)
    here = worst_case(f, params, metric, 0.1, order=order, n_restarts=2)
    adaptive = [adaptive_case(f, params, 0.1).value]
    for seed, scale in enumerate((1e-2, 1.0, 1e2)):
        target = move_heads(params, scale, seed)
        result = worst_case(f, target, metric, 0.1, order=order, n_restarts=2)
        assert result.value == pytest.approx(here.value, rel=1e-9)
        adaptive.append(adaptive_case(f, target, 0.1).value)
    assert max(adaptive) > 1.5 * min(adaptive)


@pytest.mark.slow
@pair_metrics
def test_sharpness_grows_with_rho_and_is_never_negative(name):
    model, params, f = transformer()
    values = [worst_case(f, params, model.metric(name), rho).value for rho in (1e-8, 1e-4, 1e-2, 0.1, 0.3)]
    assert all(a < b for a, b in itertools.pairwise(values))
    assert values[0] >= 0


def test_at_a_maximum_sharpness_is_zero():
    result = worst_case(lambda w: (-float(w @ w), -2 * w), np.zeros(4), rg.EuclideanMetric(), 0.5)
    assert result.value == 0.0
    assert not result.maximizer.any()
    assert result.loss_max == result.loss == 0.0


@pytest.mark.slow
@pair_metrics
@pytest.mark.parametrize("order", [1, 2])
def test_maximizer_is_horizontal_within_the_ball_and_has_the_value(name, order):
    model, params, f = transformer()
    metric = model.metric(name, frozen=["tokens", "positions"])
    space = metric.at(params)
    result = worst_case(f, params, metric, 0.1, order=order)
    assert set(result.maximizer) == set(params) - {"tokens", "positions"}
    assert space.is_horizontal(result.maximizer, 1e-10)
    assert space.norm(result.maximizer) == pytest.approx(0.1, rel=1e-9)
    target = {**params, **space.geodesic(result.maximizer, 1.0, order)}
    assert f(target)[0] - f(params)[0] == pytest.approx(result.value, rel=1e-8)
    assert result.loss_max == pytest.approx(result.loss + result.value)
    assert result.trace[-1] == result.value == np.max(result.values)
    assert result.n_evaluations == 21
    assert len(result.trace) == len(result.values) == len(result.steps) == 21


@pytest.mark.parametrize("n_iter", [1, 2, 3])
def test_few_iterations_take_steps(n_iter):
    def f(w):
        return float(w @ w), 2 * w

    result = worst_case(f, np.array([1.0, 2.0]), rg.EuclideanMetric(), 0.5, n_iter=n_iter)
    assert result.value == pytest.approx((5**0.5 + 0.5) ** 2 - 5, rel=1e-12)


@pytest.mark.slow
def test_exact_gradient_is_better_than_the_papers_on_a_curved_problem():
    model, params, f = transformer()
    values = {}
    for gradient in ("exact", "paper"):
        results = [worst_case(f, params, model.metric("inv"), rho, gradient=gradient, n_iter=60) for rho in (0.5, 1.0)]
        values[gradient] = [(r.value, r.residual) for r in results]
    assert all(e[0] >= p[0] * (1 - 1e-6) for e, p in zip(values["exact"], values["paper"], strict=True))


@pytest.mark.slow
@pair_metrics
@pytest.mark.parametrize("equal_singular_values", [False, True])
@pytest.mark.parametrize("n_restarts", [1, 3])
def test_at_a_minimum_sharpness_does_not_follow_the_rounding_of_the_gradient(name, equal_singular_values, n_restarts):
    """There, the gradient is about 1e-15 and points anywhere; the search starts in a direction of the orbit instead."""
    rng = np.random.default_rng(0)
    G, H = rng.standard_normal((6, 3)), rng.standard_normal((5, 3))
    if equal_singular_values:
        G, H = np.linalg.qr(G)[0], np.linalg.qr(H)[0]
    point = rg.Pair(G, H)
    loss, metric = product_loss(point.product), PAIR_METRICS[name]
    values = []
    for scale in (None, 0.1, 1.0, 10.0):
        at = point if scale is None else point.transform(scale * rng.standard_normal((3, 3)))
        values.append(worst_case(loss, at, metric, 0.3, n_restarts=n_restarts).value)
    assert values[0] > 0
    assert np.allclose(values, values[0], rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-200, 1e-300, 1e140])
def test_gradients_of_any_size_are_followed(scale):
    result = worst_case(lambda w: (scale * float(w.sum()), scale * np.ones(2)), np.zeros(2), rg.EuclideanMetric(), 0.5)
    assert result.value == pytest.approx(scale * 0.5 * math.sqrt(2))


def test_a_search_says_where_second_order_geodesics_are_none():
    """mix at a point whose product is nearly of lower rank: what is reported there is no sharpness of anything."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((n, 2)))[0] for n in (6, 5))
    point = rg.Pair(U * [1.0, 1e-2], V * [1.0, 1e-2])

    target = -3.0 * np.outer(U[:, 1], V[:, 1])  # so that the gradient leads where the product is small

    def loss(pair):
        residual = pair.product - (target if pair.G.shape == (6, 2) else 0.0)
        return 0.5 * float(np.sum(residual**2)), rg.Pair(residual @ pair.H, residual.T @ pair.G)

    far = worst_case(loss, point, rg.MixedMetric(), 0.1)
    assert far.bend > 10
    assert "second-order correction is" in far.advice
    for near in (
        worst_case(loss, point, rg.MixedMetric(), 1e-6),
        worst_case(loss, point, rg.InvariantMetric(), 0.1),
    ):
        assert 0 < near.bend < 0.1
        assert "second-order" not in near.advice
    # the number is what it says: along Ge^b it is b/2
    single = worst_case(loss, rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.2)
    assert single.bend == pytest.approx(0.2 / 2**0.5 / 2, rel=1e-6)
    assert worst_case(loss, rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.2, order="exact").bend == 0.0


def test_spaces_without_a_direction_have_no_sharpness():
    def loss(w):
        return float(np.sum(w)), np.ones_like(w)

    for metric, point in (
        (rg.TranslationMetric(), np.ones(1)),
        (rg.ScalingMetric(), np.ones(1)),
        (rg.ElementwiseMetric(), np.zeros(3)),
    ):
        if point.any():  # all directions are of the symmetry, which the loss has not
            with pytest.raises(ValueError, match="which the loss does not have"):
                worst_case(loss, point, metric, 0.1)
        result = worst_case(loss, point, metric, 0.1, n_restarts=3, verify=False)
        assert result.value == 0.0
        assert not result.converged
        assert "no parameter can move" in result.advice
        assert np.array_equal(result.maximizer, np.zeros_like(point))
    assert adaptive_case(loss, np.zeros(3), 0.1, n_restarts=2).value == 0.0


@pytest.mark.slow
def test_a_search_of_many_parameters_needs_little_memory():
    """Beside the loss and its gradients, in sizes of the parameters in float32; the loss has nothing of its own."""
    n = 500_000
    w = np.random.default_rng(0).standard_normal((4, n // 4))
    params = {str(i): row for i, row in enumerate(w)}
    metric = rg.ProductMetric(dict.fromkeys(params, rg.ElementwiseMetric()))
    gradients = {name: np.empty_like(row) for name, row in params.items()}

    def loss(p):
        value = 0.0
        for name, row in p.items():
            np.multiply(row, row, out=gradients[name])
            value += float(gradients[name].sum())
            np.multiply(row, 2.0, out=gradients[name])
        return value, gradients

    tracemalloc.start()
    try:
        result = rg.worst_case_sharpness(loss, params, metric, 0.1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.value > 0.0
    assert peak < 12 * 4 * n


def test_several_radii_are_one_search_each_in_the_order_given():
    model, params, f = transformer()
    metric, radii = model.metric("inv"), [0.4, 0.05, 0.2]
    curve = worst_case(f, params, metric, radii, n_iter=8)
    assert curve.rho.tolist() == radii
    for result in curve:
        alone = worst_case(f, params, metric, result.rho, n_iter=8)
        assert result.value >= alone.value * (1 - 1e-12)
        space = metric.at(params)
        assert float(space.norm(result.maximizer)) <= result.rho * (1 + 1e-12)
    assert curve.to_dict()["rho"] == radii
    assert len(set(map(len, curve.to_dict().values()))) == 1
    assert len(repr(curve).splitlines()) == 4
    assert curve.plot().get_xlabel() == "radius ρ"


def test_a_smaller_balls_maximum_is_the_start_of_a_larger_search_where_that_finds_more():
    """Two peaks, the higher one on the side that the gradient does not lead to; the small ball's random start knows."""

    def two_sided(w):
        x = float(w[0])
        return x + 3.0 * x**2 * (x < 0) - 0.1 * x**4, np.array([1.0 + 6.0 * x * (x < 0) - 0.4 * x**3, 0.0])

    metric = rg.EuclideanMetric()
    larger = worst_case(two_sided, np.zeros(2), metric, 1.2, n_iter=5)
    assert larger.maximizer[0] > 0
    seeds = [
        seed
        for seed in range(20)
        if worst_case(
            two_sided, np.zeros(2), metric, 1.0, n_iter=5, n_restarts=2, rng=seed
        ).maximizer[0] < 0
    ]  # fmt: skip
    assert seeds
    curve = worst_case(two_sided, np.zeros(2), metric, [1.2, 1.0], n_iter=5, n_restarts=2, rng=seeds[0])
    assert curve[0].maximizer[0] < 0
    assert curve[0].value > larger.value


def test_a_larger_ball_never_gives_less_than_a_smaller_one():
    """A bump near θ: at the larger boundary, where the smaller maximizer is tried, the loss is below that at θ."""

    def bump(w):
        size = float(w @ w)
        return float(w[0] * np.exp(-size)), np.eye(3)[0] * np.exp(-size) - 2.0 * w[0] * np.exp(-size) * w

    curve = worst_case(bump, np.zeros(3), rg.EuclideanMetric(), [0.5, 50.0, 500.0], n_iter=3, verify=False)
    assert np.all(np.diff(curve.values) >= 0.0)
    assert curve.values[0] > 0.3


def test_the_maximizer_of_a_smaller_ball_is_no_search_that_was_not_made():
    loss = rg.value_and_grad(lambda w: -np.sum((w - 0.12) ** 2))
    small, large = rg.worst_case_sharpness(
        loss, np.zeros(1), rg.EuclideanMetric(), [0.1, 1.0], n_iter=1, n_restarts=1, verify=False
    )
    assert large.value == small.value > 0.0
    assert not large.converged
    assert "no start found more than the maximizer of a smaller ball" in str(large)


def test_restarts_differ_and_the_best_is_kept():
    def two_peaks(w):
        # uphill along the gradient there is a small peak; the large one is on the other side
        value = 0.1 * w[0] + np.where(w[0] < 0, w[0] ** 2, 0)
        return float(value), np.array([0.1 + (2 * w[0] if w[0] < 0 else 0.0), 0.0])

    metric = rg.EuclideanMetric()
    single = worst_case(two_peaks, np.zeros(2), metric, 1.0)
    items = worst_case(two_peaks, np.zeros(2), metric, 1.0, n_restarts=6)
    assert single.value == pytest.approx(0.1)
    assert items.value == pytest.approx(0.9)
    assert items.n_evaluations > 6 * 20


def test_several_starts_find_what_one_misses_and_say_how_many_have():
    """A narrow high peak beside a broad low one, to which the gradient leads."""
    centres, widths, heights = np.array([[1.3, 0.0], [-0.7, 1.0]]), np.array([0.8, 0.5]), np.array([1.0, 2.0])

    def f(x):
        d = x - centres
        values = heights * np.exp(-np.sum(d**2, axis=1) / widths**2)
        return float(values.sum()), -2.0 * (values / widths**2) @ d

    item = rg.worst_case_sharpness(f, np.zeros(2), rg.EuclideanMetric(), 1.0, n_restarts=1)
    five = rg.worst_case_sharpness(f, np.zeros(2), rg.EuclideanMetric(), 1.0)
    assert item.converged, "to a local maximum"
    assert item.n_evaluations == 21
    assert five.n_evaluations == 21 + 4 * (4 * 4 + 21)
    assert five.value > 1.5 * item.value
    assert 0 < five.n_reached < 5
    assert f"reached by {five.n_reached} of 5 starts" in str(five)
    assert "starts" not in str(item)
    assert five.to_dict()["n_reached"] == five.n_reached
    assert "more than each of 5 starts" in str(dataclasses.replace(five, n_reached=0)), "the best one was continued"


def test_tries_are_two_directions_and_their_opposites():
    seen = []
    f = lambda w: (float(w.sum()), np.ones(6))  # noqa: E731
    metric = rg.EuclideanMetric()
    rg.worst_case_sharpness(f, np.zeros(6), metric, 1.0, n_restarts=3, verify=False, callback=seen.append)
    for start in (1, 2):
        a, opposite, b, second = [p.value for p in seen if p.start == start and p.iteration == 0][:4]
        assert [opposite, second] == pytest.approx([-a, -b], rel=1e-12)
        assert abs(a) != pytest.approx(abs(b), rel=1e-3)
