"""Sharpness against certified maxima, its limits, its invariance, and the machinery around it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import pickle
import re
import signal
import threading
import time
import tracemalloc
import types

import numpy as np
import pytest
import threadpoolctl
from helpers import linear_loss, product_loss, sampled
from scipy.sparse.linalg import eigsh

import refgeo as rg
from refgeo.diagonal.trust_region import maximise_quadratic
from refgeo.support.threads import one_thread
from validation.backends import alg1
from validation.findings.orbit import moved

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)
adaptive_case = functools.partial(rg.adaptive_sharpness, n_restarts=1)

PAIR_METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
pair_metrics = pytest.mark.parametrize("name", PAIR_METRICS)


@functools.cache
def transformer(norm="pre"):
    model = rg.networks.AttentionClassifier(width=8, heads=2, norm=norm)
    rng = np.random.default_rng(0)
    batch = rng.integers(0, model.vocabulary, (16, model.length)), rng.integers(0, model.classes, 16)
    params = model.init(1)
    for _ in range(60):  # some way towards a minimum
        _, grads = model.value_and_grad(params, batch)
        params = {name: block - 0.1 * grads[name] for name, block in params.items()}
    return model, params, lambda p: model.value_and_grad(p, batch)


def quadratic(g, H):
    return lambda w: (float(g @ w + 0.5 * w @ H @ w), g + H @ w)


# Known maxima ---------------------------------------------------------------------------------------------------


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
            found = adaptive_case(of_pairs, at, rho, **settings)
        else:
            found = worst_case(of_pairs, at, PAIR_METRICS[metric], rho, order=order, gradient="paper", **settings)
        if found.n_rejected:  # where there is no geodesic, the other one stops at the end of the domain
            continue
        assert found.value == pytest.approx(expected, rel=1e-9)
        returned += bool(np.any(found.values[1:] < found.trace[:-1]))
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


# Limits ---------------------------------------------------------------------------------------------------------


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


def critical_point(name):
    """A shallow linear network with residuals orthogonal to the data: every direction is stationary."""
    rng = np.random.default_rng(3)
    point = rg.Pair(rng.standard_normal((4, 2)) + np.eye(4, 2), rng.standard_normal((3, 2)) + np.eye(3, 2))
    x = rng.standard_normal((9, 3))
    y = x @ point.product.T
    return {"layers": point}, linear_loss(x, y), rg.ProductMetric({"layers": PAIR_METRICS[name]})


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
@pair_metrics
def test_at_a_critical_point_average_sharpness_tends_to_half_the_hessian_trace(name):
    params, f, metric = critical_point(name)
    operator = rg.spectrum.RiemannianHessian(f, params, metric)
    trace = sum((operator @ unit)[i] for i, unit in enumerate(np.eye(operator.shape[0])))
    result = rg.average_case_sharpness(lambda p: f(p)[0], params, metric, 1e-3, n_samples=2000, distribution="normal")
    ball = rg.average_case_sharpness(lambda p: f(p)[0], params, metric, 1e-3, n_samples=2000)
    N = operator._space.dim
    assert ball.value / 1e-6 == pytest.approx(0.5 * trace / (N + 2), abs=4 * ball.standard_error / 1e-6)
    assert ball.value <= worst_case(f, params, metric, 1e-3).value
    assert result.value / 1e-6 == pytest.approx(0.5 * trace, abs=4 * result.standard_error / 1e-6)
    assert result.standard_error < 0.05 * result.value
    # the standard error is that of the mean: the spread of independent repetitions
    repeats = [
        rg.average_case_sharpness(lambda p: f(p)[0], params, metric, 1e-3, n_samples=60, rng=seed) for seed in range(60)
    ]
    spread = np.std([r.value for r in repeats], ddof=1)
    assert 0.7 < spread / np.mean([r.standard_error for r in repeats]) < 1.4


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_curvature_and_pairs_sharpness_is_adaptive_sharpness(norm):
    """The whole-network Γ = 0 limit: the elementwise metric on every parameter, and first-order geodesics."""
    _model, params, f = transformer(norm)
    entries = {
        name: np.concatenate([x.ravel() for x in b]) if isinstance(b, rg.Pair) else b for name, b in params.items()
    }

    def g(p):
        pairs = {}
        for name, block in params.items():
            if isinstance(block, rg.Pair):
                G, H = np.split(p[name], [block.G.size])
                pairs[name] = rg.Pair(G.reshape(block.G.shape), H.reshape(block.H.shape))
            else:
                pairs[name] = p[name]
        loss, grads = f(pairs)
        return loss, {
            n: np.concatenate([x.ravel() for x in e]) if isinstance(e, rg.Pair) else e for n, e in grads.items()
        }

    metric = rg.ProductMetric({name: rg.ElementwiseMetric() for name in params})
    for rho in (1e-3, 0.1, 1.0):
        ours = worst_case(g, entries, metric, rho, order=1, n_restarts=2)
        theirs = adaptive_case(f, params, rho, n_restarts=2)
        assert theirs.value > 0
        if rho < 1:  # at rho = 1 signs flip, and 20 iterations amplify rounding
            assert ours.value == pytest.approx(theirs.value, rel=1e-12)
        assert ours.loss == theirs.loss
    constant = rg.ProductMetric({name: rg.ElementwiseMetric(curved=False) for name in params})
    again = worst_case(g, entries, constant, 0.1, order=2)
    assert again.value == pytest.approx(adaptive_case(f, params, 0.1).value, rel=1e-12)


def test_adaptive_sharpness_of_a_linear_loss_is_known():
    """max c·δ over ‖δ/w‖₂ ≤ ρ is ρ‖c w‖₂, over ‖δ/w‖_∞ ≤ ρ it is ρ‖c w‖₁; zeros do not move."""
    rng = np.random.default_rng(0)
    w, c = rng.standard_normal(30), rng.standard_normal(30)
    w[[3, 7]] = 0.0
    two = adaptive_case(lambda p: (float(c @ p), c), w, 0.3)
    most = adaptive_case(lambda p: (float(c @ p), c), w, 0.3, norm=math.inf)
    assert two.value == pytest.approx(0.3 * np.linalg.norm(c * w), rel=1e-12)
    assert most.value == pytest.approx(0.3 * np.abs(c * w).sum(), rel=1e-12)
    for result in (two, most):
        assert not result.maximizer[[3, 7]].any()
        assert result.converged
    named = adaptive_case(
        lambda p: (float(c @ p["a"] + p["b"].sum()), {"a": c, "b": np.ones(2)}),
        {"a": w, "b": np.ones(2)},
        0.3,
        names=["a"],
    )
    assert named.value == pytest.approx(two.value, rel=1e-12)
    assert set(named.maximizer) == {"a"}


def test_adaptive_sharpness_takes_the_paper_s_c_as_arrays():
    """A linear loss again: ρ‖e ⊙ c‖₂."""
    rng = np.random.default_rng(4)
    params = {
        "w": rng.standard_normal((4, 3, 2)),
        "b": rng.standard_normal(4),
        "qk": rg.Pair(*rng.standard_normal((2, 5, 2))),
    }
    e = {
        "w": rng.standard_normal((4, 3, 2)),
        "b": rng.standard_normal(4),
        "qk": rg.Pair(*rng.standard_normal((2, 5, 2))),
    }

    def loss(p):
        return float(
            np.sum(e["w"] * p["w"])
            + e["b"] @ p["b"]
            + sum(np.sum(x * y) for x, y in zip(e["qk"], p["qk"], strict=True))
        ), e

    given = {
        "w": rng.standard_normal((4, 3, 2)),
        "b": np.array([1.0, 0.0, -2.0, 3.0]),
        "qk": rg.Pair(*rng.standard_normal((2, 5, 2))),
    }
    terms = [e["w"] * given["w"], e["b"] * given["b"], *(x * y for x, y in zip(e["qk"], given["qk"], strict=True))]
    expected = 0.3 * np.linalg.norm(np.concatenate([term.ravel() for term in terms]))
    found = adaptive_case(loss, params, 0.3, scale=given)
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.maximizer["b"][1] == 0.0
    with pytest.raises(ValueError, match=r"scale: expected .* of shape \(4,\), got \(3,\)"):
        adaptive_case(loss, params, 0.3, scale={**given, "b": np.ones(3)})
    for wrong, error, message in (
        ("filter", TypeError, "scale: expected a dict with an array for every block, got str"),
        (np.ones(4), TypeError, "scale: expected a dict with an array for every block, got ndarray"),
        ({"w": given["w"]}, ValueError, "scale: the block 'b' is missing"),
        ({**given, "z": np.ones(3)}, ValueError, r"scale: expected blocks of params, got \['z'\]"),
        ({**given, "b": np.full(4, np.nan)}, ValueError, "scale: expected finite numbers"),
    ):
        with pytest.raises(error, match=message):
            adaptive_case(loss, params, 0.3, scale=wrong)


def test_adaptive_sharpness_in_the_box_is_found_for_separable_losses():
    """Σ cosh is convex and even: the maximum over a box is at a corner, ρ|w| away in the direction of w."""
    w = np.array([0.5, -1.0, 2.0])
    result = adaptive_case(lambda p: (float(np.cosh(p).sum()), np.sinh(p)), w, 0.2, norm=np.inf)
    assert result.value == pytest.approx(np.cosh(1.2 * w).sum() - np.cosh(w).sum(), rel=1e-12)


# Invariance -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order", "norm"), sampled(list(itertools.product(PAIR_METRICS, (1, 2), ("pre", "post"))), 3)
)
def test_sharpness_does_not_change_along_an_orbit_and_adaptive_sharpness_does(name, order, norm):
    model, params, f = transformer(norm)
    metric = model.metric(name)
    here = worst_case(f, params, metric, 0.1, order=order, n_restarts=2)
    adaptive = [adaptive_case(f, params, 0.1).value]
    for seed, scale in enumerate((1e-2, 1.0, 1e2)):
        there = moved(params, scale, seed)
        result = worst_case(f, there, metric, 0.1, order=order, n_restarts=2)
        assert result.value == pytest.approx(here.value, rel=1e-9)
        adaptive.append(adaptive_case(f, there, 0.1).value)
    assert max(adaptive) > 1.5 * min(adaptive)


# What any sharpness must satisfy --------------------------------------------------------------------------------


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
    there = {**params, **space.geodesic(result.maximizer, 1.0, order)}
    assert f(there)[0] - f(params)[0] == pytest.approx(result.value, rel=1e-8)
    assert result.loss_max == pytest.approx(result.loss + result.value)
    assert result.trace[-1] == result.value == np.max(result.values)
    assert result.n_evaluations == 21
    assert len(result.trace) == len(result.values) == len(result.steps) == 21


@pytest.mark.parametrize("n_iter", [1, 2, 3])
def test_few_iterations_take_steps(n_iter):
    def f(w):
        return float(w @ w), 2 * w

    found = worst_case(f, np.array([1.0, 2.0]), rg.EuclideanMetric(), 0.5, n_iter=n_iter)
    assert found.value == pytest.approx((5**0.5 + 0.5) ** 2 - 5, rel=1e-12)


@pytest.mark.slow
def test_exact_gradient_is_better_than_the_papers_on_a_curved_problem():
    model, params, f = transformer()
    values = {}
    for gradient in ("exact", "paper"):
        results = [worst_case(f, params, model.metric("inv"), rho, gradient=gradient, n_iter=60) for rho in (0.5, 1.0)]
        values[gradient] = [(r.value, r.residual) for r in results]
    assert all(e[0] >= p[0] * (1 - 1e-6) for e, p in zip(values["exact"], values["paper"], strict=True))


# Leaving the domain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7])
def test_steps_fill_the_ball_evenly(size):
    """The mean of ‖ξ‖² is d/(d+2) ρ², and that of ‖ξ‖⁴ d/(d+4) ρ⁴."""
    for power, loss in ((2, lambda w: float(w @ w)), (4, lambda w: float(w @ w) ** 2)):
        found = rg.average_case_sharpness(loss, np.zeros(size), rg.EuclideanMetric(), 0.5, n_samples=4000, verify=False)
        assert abs(found.value - size / (size + power) * 0.5**power) < 4.0 * found.standard_error


def test_a_step_that_leaves_the_domain_is_rejected_and_not_averaged_in():
    """mix, GH = 1 and a loss that falls: the geodesic to GH = 0 ends at ‖ξ‖ = 1/√2."""

    def loss(pair):
        product = (pair.G @ pair.H.T).item()
        return -product, rg.Pair(-pair.H, -pair.G)

    point, metric = rg.Pair([[1.0]], [[1.0]]), rg.MixedMetric()
    result = worst_case(loss, point, metric, 2.0, order="exact")
    assert result.n_rejected > 0
    assert 0.9 < result.value < 1.0  # GH falls from 1 towards the end of the manifold at 0
    assert np.isneginf(result.values).sum() == result.n_rejected
    average = rg.average_case_sharpness(
        lambda p: loss(p)[0], point, metric, 0.5, order="exact", n_samples=400, distribution="normal"
    )
    assert 0 < average.n_rejected < 200
    assert np.isnan(average.samples).sum() == average.n_rejected
    assert abs(average.value) < 1e-12  # GH moves on a straight line: pairs ±ξ cancel
    with pytest.raises(
        ValueError, match=r"rho: expected at least two pairs of steps .* fewer than two of 5 pairs at rho = 1000"
    ):
        rg.average_case_sharpness(lambda p: loss(p)[0], point, metric, 1000.0, order="exact", n_samples=10)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_or_gradient_that_is_not_finite_is_rejected(bad):
    for spoil_loss in (True, False):

        def loss(w, spoil_loss=spoil_loss):
            outside = w[0] > 1.5
            return bad if outside and spoil_loss else float(w.sum()), np.array([bad if outside else 1.0, 1.0])

        result = worst_case(loss, np.ones(2), rg.EuclideanMetric(), 1.0, n_iter=60)
        assert result.n_rejected > 0
        assert 0.99 < result.value < 1.0  # the gradient leads straight to the wall at w_0 = 1.5
        assert np.isfinite(result.trace).all()
        with pytest.raises(ValueError, match=r"expected a finite (loss|gradient) at the given parameters"):
            worst_case(loss, np.full(2, 2.0), rg.EuclideanMetric(), 1.0)
    with pytest.raises(ValueError, match="a finite loss at the given parameters"):
        rg.average_case_sharpness(lambda w: bad, np.ones(2), rg.EuclideanMetric(), 1.0)
    with pytest.raises(TypeError, match=r"got a tuple; value_and_grad\(params\)\[0\] is the loss without the gradient"):
        rg.average_case_sharpness(lambda w: (1.0, w), np.ones(2), rg.EuclideanMetric(), 1.0)


# Seeds, workers, batches, callbacks -----------------------------------------------------------------------------


def batches_of(model, n):
    rng = np.random.default_rng(7)
    return [(rng.integers(0, model.vocabulary, (8, model.length)), rng.integers(0, model.classes, 8)) for _ in range(n)]


def test_the_maximizer_of_a_smaller_ball_is_no_search_that_was_not_made():
    loss = rg.value_and_grad(lambda w: -np.sum((w - 0.12) ** 2))
    small, large = rg.worst_case_sharpness(
        loss, np.zeros(1), rg.EuclideanMetric(), [0.1, 1.0], n_iter=1, n_restarts=1, verify=False
    )
    assert large.value == small.value > 0.0
    assert not large.converged
    assert "no start found more than the maximizer of a smaller ball" in str(large)


@pytest.mark.slow
def test_same_seed_same_result():
    model, params, f = transformer()
    metric, batches = model.metric("inv"), batches_of(model, 4)

    def measure(rng=3):
        return (
            worst_case(f, params, metric, 0.1, n_iter=6, n_restarts=4, rng=rng),
            worst_case(model.value_and_grad, params, metric, 0.1, n_iter=6, batches=batches, rng=rng, n_restarts=2),
        )

    for one, other in zip(measure(), measure(), strict=True):
        assert pickle.dumps(one) == pickle.dumps(other)
    averages = [
        rg.average_case_sharpness(model.loss, params, metric, 0.1, batches=batches, n_samples=6) for _ in range(2)
    ]
    assert np.array_equal(averages[0].samples, averages[1].samples)
    assert averages[0].value == averages[1].value
    generators = [
        worst_case(f, params, metric, 0.1, n_iter=3, n_restarts=3, rng=np.random.default_rng(5)) for _ in range(2)
    ]
    assert pickle.dumps(generators[0]) == pickle.dumps(generators[1])


def test_restarts_differ_and_the_best_is_kept():
    def two_peaks(w):
        # uphill along the gradient there is a small peak; the large one is on the other side
        value = 0.1 * w[0] + np.where(w[0] < 0, w[0] ** 2, 0)
        return float(value), np.array([0.1 + (2 * w[0] if w[0] < 0 else 0.0), 0.0])

    metric = rg.EuclideanMetric()
    single = worst_case(two_peaks, np.zeros(2), metric, 1.0)
    several = worst_case(two_peaks, np.zeros(2), metric, 1.0, n_restarts=6)
    assert single.value == pytest.approx(0.1)
    assert several.value == pytest.approx(0.9)
    assert several.n_evaluations > 6 * 20


@pytest.mark.slow
def test_batches_have_maxima_of_their_own_and_are_averaged():
    model, params, _ = transformer()
    metric, batches = model.metric("mix"), batches_of(model, 3)
    whole = worst_case(model.value_and_grad, params, metric, 0.1, batches=iter(batches))
    apart = [worst_case(lambda p, b=batch: model.value_and_grad(p, b), params, metric, 0.1) for batch in batches]
    assert whole.value == pytest.approx(np.mean([r.value for r in apart]), rel=1e-14)
    assert whole.loss == pytest.approx(np.mean([r.loss for r in apart]))
    assert [r.value for r in whole.batches] == [r.value for r in apart]
    assert len(whole.maximizer) == 3
    assert whole.n_evaluations == sum(r.n_evaluations for r in apart)
    assert np.allclose(whole.trace, np.mean([r.trace for r in apart], axis=0))
    adaptive = adaptive_case(model.value_and_grad, params, 0.1, batches=batches)
    assert len(adaptive.batches) == 3
    average = rg.average_case_sharpness(model.loss, params, metric, 0.1, batches=batches, n_samples=8)
    assert average.value == pytest.approx(np.mean(average.samples))
    assert average.standard_error == pytest.approx(np.sqrt(np.sum(np.var(average.samples, axis=1, ddof=1) / 4)) / 3)


def test_callback_sees_every_evaluation_and_can_stop():
    model, params, _ = transformer()
    batches, seen = batches_of(model, 3), []
    arguments = {
        "metric": model.metric("inv"),
        "rho": 0.1,
        "n_iter": 4,
        "n_restarts": 2,
        "batches": batches,
    }
    worst_case(model.value_and_grad, params, callback=seen.append, **arguments)
    # per batch: θ, four tries of three iterations each, the best of their points, 2 · 4 iterations; and perhaps, from
    # the best of all, once more as many as of one start
    assert 78 <= len(seen) <= 78 + 3 * 5 * 5
    assert (len(seen) - 78) % 5 == 0
    assert [p.done for p in seen] == list(range(1, len(seen) + 1))
    assert {p.total for p in seen} == {78 + 3 * 5 * 5}
    assert {(p.batch, p.start) for p in seen} == {(b, s) for b in range(3) for s in range(2)}
    for p in seen:
        assert p.best >= p.value or p.start == 1

    def stop(progress):
        if progress.done == 7:
            raise StopIteration

    stopped = worst_case(model.value_and_grad, params, callback=stop, **arguments)
    assert stopped.n_evaluations < 78
    assert stopped.value > 0


# Results --------------------------------------------------------------------------------------------------------


def result_with_batches():
    model, params, _ = transformer()
    return worst_case(model.value_and_grad, params, model.metric("inv"), 0.1, n_iter=3, batches=batches_of(model, 2))


def test_results_can_be_pickled():
    for result in (
        result_with_batches(),
        worst_case(lambda w: (float(w @ w), 2 * w), np.ones(3), rg.EuclideanMetric(), [0.1, 0.2]),
        worst_case(
            lambda p: (float(np.sum(p.product)), rg.Pair(np.ones((2, 3)) @ p.H, np.ones((3, 2)) @ p.G)),
            rg.Pair(np.eye(2, 2), np.eye(3, 2)),
            rg.MixedMetric(),
            0.1,
        ),
    ):
        again = pickle.loads(pickle.dumps(result))
        assert str(again) == str(result)
        assert again.to_dict() == result.to_dict()
        for one, other in zip(*(vars(each).items() for each in (again, result)), strict=True):
            assert pickle.dumps(one) == pickle.dumps(other)


# Wrong input ----------------------------------------------------------------------------------------------------


def line(w):
    return float(w.sum()), np.ones_like(w)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rho": 0}, ValueError, "rho: expected a finite number > 0"),
        ({"rho": np.inf}, ValueError, "rho: expected a finite number > 0"),
        ({"rho": "1"}, ValueError, "rho: expected a finite number > 0"),
        ({"order": 3}, ValueError, 'order: expected 1, 2 or "exact"'),
        ({"gradient": "autodiff"}, ValueError, "gradient: expected one of exact, paper"),
        ({"n_iter": 0}, ValueError, "n_iter: expected an integer >= 1, got 0"),
        ({"n_restarts": 1.5}, ValueError, "n_restarts: expected an integer >= 1"),
        ({"rng": "seed"}, TypeError, "rng: expected a seed"),
        (
            {"metric": rg.EuclideanMetric},
            TypeError,
            "got the class EuclideanMetric; call it",
        ),
        ({"metric": "inv"}, TypeError, "metric: expected a metric such as"),
        ({"params": {"w": np.ones(3)}}, TypeError, "expected a refgeo.ProductMetric that names its blocks"),
        (
            {"value_and_grad": lambda w: 1.0},
            TypeError,
            r"expected a function that returns \(loss, gradients\), got float",
        ),
        ({"value_and_grad": lambda w: (w, w)}, TypeError, "expected the loss to be one real number"),
        (
            {"value_and_grad": lambda w: (1.0, np.ones(2))},
            ValueError,
            r"the gradient: expected real numbers of shape \(3,\)",
        ),
        ({"value_and_grad": lambda w: (1.0, 1j * np.ones(3))}, ValueError, "got complex128"),
        ({"batches": []}, ValueError, "batches: expected at least one batch"),
        ({"batches": 5}, TypeError, "batches: expected an iterable"),
        ({"batches": "data"}, TypeError, "batches: expected an iterable"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"value_and_grad": line, "params": np.ones(3), "metric": rg.EuclideanMetric(), "rho": 0.1} | change
    with pytest.raises(error, match=message):
        worst_case(**arguments)


def test_bad_gradients_of_a_dict_are_named():
    model, params, f = transformer()
    metric = model.metric("inv")

    def without(name):
        return lambda p: (1.0, {k: v for k, v in f(p)[1].items() if k != name})

    with pytest.raises(ValueError, match="gradient of 'tokens' is missing"):
        worst_case(without("tokens"), params, metric, 0.1)
    with pytest.raises(ValueError, match="gradient of 'tokens' is missing"):
        adaptive_case(without("tokens"), params, 0.1)
    with pytest.raises(TypeError, match=r"gradient of 'layer0\.query_key': expected a Pair"):
        worst_case(lambda p: (1.0, {**f(p)[1], "layer0.query_key": 3.0}), params, metric, 0.1)
    with pytest.raises(ValueError, match=r"gradient of 'layer0\.query_key', G: expected real numbers of shape"):
        worst_case(lambda p: (1.0, {**f(p)[1], "layer0.query_key": (np.ones(3), np.ones(3))}), params, metric, 0.1)
    with pytest.raises(TypeError, match="expected a dict of gradients, got ndarray"):
        worst_case(lambda p: (1.0, np.ones(3)), params, metric, 0.1)
    with pytest.raises(ValueError, match="names: expected blocks of params"):
        adaptive_case(f, params, 0.1, names=["tokenz"])
    with pytest.raises(ValueError, match="norm: expected 2 or inf, got 1"):
        adaptive_case(f, params, 0.1, norm=1)
    with pytest.raises(ValueError, match="n_samples: expected an even number >= 4"):
        rg.average_case_sharpness(lambda p: f(p)[0], params, metric, 0.1, n_samples=5)


def test_an_error_of_the_loss_is_not_swallowed():
    def loss(w):
        raise RankDeficient

    RankDeficient = rg.RankDeficientError("the user's own", (), 0.0)
    with pytest.raises(rg.RankDeficientError, match="the user's own"):
        worst_case(loss, np.ones(2), rg.EuclideanMetric(), 0.1)


def test_parameters_are_not_modified_and_frozen_ones_are_passed_on():
    model, params, f = transformer()
    before = {name: [np.array(x) for x in (b if isinstance(b, rg.Pair) else [b])] for name, b in params.items()}

    def loss(p):
        assert p["tokens"] is params["tokens"]
        return f(p)

    worst_case(loss, params, model.metric("mix", frozen="tokens"), 0.1, n_iter=3)
    for name, block in params.items():
        for now, then in zip(block if isinstance(block, rg.Pair) else [block], before[name], strict=True):
            assert np.array_equal(now, then)


def test_float32_losses_and_gradients_are_accepted():
    def loss(w):
        w = w.astype(np.float32)
        return np.float32(w @ w), 2 * w

    result = worst_case(loss, np.ones(3), rg.EuclideanMetric(), 0.1)
    assert result.value == pytest.approx(2 * 0.1 * math.sqrt(3) + 0.01, rel=1e-5)


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def set_by_a_thread_that_ends(number):
    """Because threadpoolctl ≥ 3.8 lets nobody else change OpenBLAS while the thread that has changed it lives."""
    thread = threading.Thread(target=threadpoolctl.threadpool_limits, args=(number,), kwargs={"user_api": "blas"})
    thread.start()
    thread.join()


def test_blas_has_its_threads_again_after_searches_in_threads_and_an_interruption():
    inside, leave = threading.Event(), threading.Event()

    def first():
        with one_thread():
            inside.set()
            leave.wait(10.0)

    at_start = blas_threads().pop()
    set_by_a_thread_that_ends(2)
    try:
        thread = threading.Thread(target=first)
        thread.start()
        assert inside.wait(10.0)
        with one_thread():  # the other thread leaves while this one is inside
            leave.set()
            thread.join()
        assert blas_threads() == {2}
        with pytest.raises(KeyboardInterrupt), one_thread():
            raise KeyboardInterrupt
        assert blas_threads() == {2}
    finally:
        set_by_a_thread_that_ends(at_start)


def test_several_starts_find_what_one_misses_and_say_how_many_have():
    """A narrow high peak beside a broad low one, to which the gradient leads."""
    centres, widths, heights = np.array([[1.3, 0.0], [-0.7, 1.0]]), np.array([0.8, 0.5]), np.array([1.0, 2.0])

    def f(x):
        d = x - centres
        values = heights * np.exp(-np.sum(d**2, axis=1) / widths**2)
        return float(values.sum()), -2.0 * (values / widths**2) @ d

    one = rg.worst_case_sharpness(f, np.zeros(2), rg.EuclideanMetric(), 1.0, n_restarts=1)
    five = rg.worst_case_sharpness(f, np.zeros(2), rg.EuclideanMetric(), 1.0)
    assert one.converged, "to a local maximum"
    assert one.n_evaluations == 21
    assert five.n_evaluations == 21 + 4 * (4 * 4 + 21)
    assert five.value > 1.5 * one.value
    assert 0 < five.n_reached < 5
    assert f"reached by {five.n_reached} of 5 starts" in str(five)
    assert "starts" not in str(one)
    assert five.to_dict()["n_reached"] == five.n_reached
    assert "more than each of 5 starts" in str(dataclasses.replace(five, n_reached=0)), "the best one was continued"


def test_tries_are_two_directions_and_their_opposites():
    seen = []
    f = lambda w: (float(w.sum()), np.ones(6))  # noqa: E731
    metric = rg.EuclideanMetric()
    rg.worst_case_sharpness(f, np.zeros(6), metric, 1.0, n_restarts=3, verify=False, callback=seen.append)
    for start in (1, 2):
        a, opposite, b, other = [p.value for p in seen if p.start == start and p.iteration == 0][:4]
        assert [opposite, other] == pytest.approx([-a, -b], rel=1e-12)
        assert abs(a) != pytest.approx(abs(b), rel=1e-3)


@pytest.mark.parametrize("search", [rg.worst_case_sharpness, None])
def test_evaluations_are_counted_whatever_becomes_of_them(search):
    """Of tries, of starts that are given up because the gradient is rounding, and of points without a value."""
    rng, calls = np.random.default_rng(0), []
    d = rng.uniform(1.0, 2.0, 6)

    def f(w):
        calls.append(w)
        return (float(d @ w**2) if w[0] < 0.5 else math.nan), 2.0 * d * w + 1e-14

    for n_restarts in (1, 4):
        calls.clear()
        settings = {"n_restarts": n_restarts, "verify": False}
        if search is None:
            found = rg.adaptive_sharpness(lambda w: f(w - 1.0), np.ones(6), 1.0, **settings)
        else:
            found = search(f, np.zeros(6), rg.EuclideanMetric(), 1.0, **settings)
        assert found.n_evaluations == len(calls)
        assert found.n_rejected == sum(w[0] >= 0.5 for w in calls)


# The ball's steps -----------------------------------------------------------------------------------------------


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


# Found by reviewers ---------------------------------------------------------------------------------------------


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


@pair_metrics
def test_average_sharpness_is_the_same_on_an_orbit_with_equal_singular_values(name):
    rng = np.random.default_rng(0)
    point = rg.Pair(np.linalg.qr(rng.standard_normal((6, 3)))[0], np.linalg.qr(rng.standard_normal((5, 3)))[0])
    loss = product_loss(point.product + 0.1)
    values = [
        rg.average_case_sharpness(lambda p: loss(p)[0], at, PAIR_METRICS[name], 0.3, n_samples=20).value
        for at in (point, point.transform(rng.standard_normal((3, 3))))
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-9)


def test_parameters_in_other_precisions_are_taken_as_the_numbers_they_are():
    w = np.random.default_rng(0).standard_normal(10000).astype(np.float32)

    def loss(p):
        return float(np.sum(p * p)), 2 * p

    results = [worst_case(loss, p, rg.EuclideanMetric(), 1e-6).value for p in (w, w.astype(np.float64))]
    assert results[0] == results[1]
    listed = worst_case(loss, [1.0, 2.0], rg.EuclideanMetric(), 0.1)
    assert listed.value == pytest.approx(0.2 * math.sqrt(5) + 0.01)
    averages = [
        rg.average_case_sharpness(lambda p: loss(p)[0], p, rg.EuclideanMetric(), 1e-5, n_samples=4).value
        for p in (w, w.astype(np.float64))
    ]
    assert averages[0] == averages[1]


def test_a_stop_iteration_of_the_loss_is_an_error():
    def loss(w, batch):
        return (next(iter([])), w) if batch == 4 else (batch * float(w.sum()), batch * np.ones_like(w))

    with pytest.raises(RuntimeError, match="value_and_grad: it raised StopIteration"):
        worst_case(loss, np.ones(2), rg.EuclideanMetric(), 0.1, batches=[1, 4, 2, 3])


def test_a_stopped_run_does_not_drain_its_batches():
    taken = []

    def batches():
        for i in range(1000):
            taken.append(i)
            yield i + 1.0

    def stop(progress):
        raise StopIteration

    result = worst_case(
        lambda w, b: (b * float(w.sum()), b * np.ones_like(w)),
        np.ones(2),
        rg.EuclideanMetric(),
        0.1,
        batches=batches(),
        callback=stop,
    )
    assert len(taken) == 1
    assert len(result.batches) == 1


def test_a_stopped_run_averages_no_different_radii():
    """Small balls are searched first: of the second batch there is only the small one, which is given last."""

    def stop(progress):
        if progress.batch == 1 and progress.iteration == 1:
            raise StopIteration

    curve = worst_case(
        lambda w, b: (b * float(w @ w), 2 * b * w),
        np.ones(3),
        rg.EuclideanMetric(),
        [0.2, 0.1],
        batches=[1.0, 2.0],
        n_iter=3,
        callback=stop,
    )
    assert [(one.rho, [batch.rho for batch in one.batches]) for one in curve] == [(0.1, [0.1, 0.1])]


def test_a_stopped_average_is_that_of_the_pairs_that_were_done():
    def stop_at(n):
        def stop(progress):
            if progress.done == n:
                raise StopIteration

        return stop

    def average(n, batches):
        return rg.average_case_sharpness(
            lambda w, b: b * float(w @ w), np.ones(3), rg.EuclideanMetric(), 0.1, batches=batches, callback=stop_at(n)
        )

    stopped = average(5, [1.0, 2.0])
    assert stopped.samples.shape == (1, 50)
    assert np.isfinite(stopped.samples).sum() == 5
    assert stopped.n_rejected == 0
    with pytest.raises(ValueError, match="stopped the computation before two pairs"):
        average(1, [1.0, 2.0])


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


def test_a_run_of_which_every_step_was_rejected_has_not_converged():
    def loss(w):
        return (0.0 if not w.any() else math.nan), np.zeros(2) if w.any() else np.ones(2)

    result = worst_case(loss, np.zeros(2), rg.EuclideanMetric(), 1.0)
    assert result.value == 0.0
    assert not result.converged


def test_adaptive_arguments_are_checked():
    def loss(p):
        return float(p["w"] @ p["w"]), {"w": 2 * p["w"]}

    params = {"w": np.ones(2)}
    assert adaptive_case(loss, params, 0.1, names="w").value > 0
    with pytest.raises(ValueError, match="expected each block once"):
        adaptive_case(loss, params, 0.1, names=["w", "w"])
    with pytest.raises(TypeError, match=r"params: expected real numbers .*, got dtype complex128"):
        adaptive_case(loss, {"w": 1j * np.ones(2)}, 0.1)
    with pytest.raises(TypeError, match="batches: expected an iterable"):
        rg.average_case_sharpness(lambda p, b: 1.0, np.ones(2), rg.EuclideanMetric(), 0.1, batches=3)


def _cliff(wrap):
    """½‖GHᵀ‖², whose gradient is NaN beyond a small step."""

    def loss(pair):
        product = pair.G @ pair.H.T
        bad = np.nan if np.abs(product - 6.0).max() > 0.5 else 1.0
        return 0.5 * float(np.sum(product**2)), wrap(bad * product @ pair.H, bad * product.T @ pair.G)

    return loss


@pytest.mark.parametrize("wrap", [lambda *g: g, lambda *g: rg.Pair(*g), lambda *g: rg.Pair.unchecked(*g)])
def test_a_gradient_that_is_not_finite_undoes_the_step(wrap):
    found = worst_case(_cliff(wrap), rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.5, verify=False)
    assert found.n_rejected > 0
    assert 0.0 < found.value < 0.5 * 6.5**2 - 18.0


def test_autograds_gradient_that_is_not_finite_undoes_the_step():
    import autograd.numpy as anp

    loss = rg.value_and_grad(lambda pair: anp.sum(anp.sqrt(7.0 - pair.G @ pair.H.T) ** 1.0) * -1.0)
    with np.errstate(all="ignore"):
        found = worst_case(loss, rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.5, verify=False)
    assert found.n_rejected > 0
    assert found.value > 0.0


def test_a_loss_that_changes_during_the_search_is_refused():
    evaluations = []

    def drifting(w):
        evaluations.append(1)
        return float(np.sum(w**2)) + 1e-3 * max(len(evaluations) - 10, 0), 2.0 * w

    with pytest.raises(ValueError, match="before and after the search"):
        worst_case(drifting, np.ones(3), rg.EuclideanMetric(), 0.1, n_restarts=2)
    evaluations.clear()
    assert worst_case(drifting, np.ones(3), rg.EuclideanMetric(), 0.1, verify=False).value > 0.0


@pytest.mark.parametrize("kind", ["arrays", "pairs"])
def test_a_loss_may_keep_every_point_it_is_given(kind):
    """What a user kept, even as a view, does not change afterwards."""
    rng = np.random.default_rng(0)
    if kind == "arrays":
        params, metric = {"w": rng.standard_normal((40, 30))}, rg.ProductMetric({"w": rg.ElementwiseMetric()})
    else:
        pair = rg.Pair(rng.standard_normal((2, 70, 64)), rng.standard_normal((2, 70, 64)))
        params, metric = {"w": pair}, rg.ProductMetric({"w": rg.InvariantMetric()})
    kept = []

    def loss(p):
        factors = list(p["w"]) if kind == "pairs" else [p["w"]]
        kept.append(([f[::2] for f in factors], [f[::2].copy() for f in factors]))
        if kind == "arrays":
            return float(np.sum(np.sin(factors[0]))), {"w": np.cos(factors[0])}
        G, H = factors
        slope = np.cos(G @ H.mT)
        return float(np.sum(np.sin(G @ H.mT))), {"w": (slope @ H, slope.mT @ G)}

    result = worst_case(loss, params, metric, 0.5)
    # five evaluations verify the gradient, eight measure noise, one that the loss has not changed, five a symmetry
    assert len(kept) == 21 + 14 + 5 * (kind == "pairs")
    for views, copies in kept:
        assert all(np.array_equal(view, copy) for view, copy in zip(views, copies, strict=True))
    assert np.isfinite(result.value)


# Several radii ------------------------------------------------------------------------------------


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


def test_several_radii_with_batches_and_a_callback():
    model, params, _ = transformer()
    batches, seen = batches_of(model, 2), []
    curve = worst_case(
        model.value_and_grad, params, model.metric("mix"), [0.1, 0.2], n_iter=3, batches=batches, callback=seen.append
    )
    assert [len(result.batches) for result in curve] == [2, 2]
    assert {p.rho for p in seen} == {0.1, 0.2}
    assert seen[-1].done <= seen[-1].total == 2 * (2 * 3 + 2)
    assert sum(result.n_evaluations for result in curve) == seen[-1].done
    for bad in ([], [0.1, -1.0], [[0.1]]):
        with pytest.raises(ValueError, match=r"^rho: expected"):
            worst_case(model.value_and_grad, params, model.metric("mix"), bad, batches=batches)


def test_results_say_what_to_try():
    metric, theta = rg.EuclideanMetric(), np.array([1.0, 0.5, 0.2])
    curved = np.array([1.0, 30.0, 31.0])

    def f(w):
        return float(0.5 * w @ (curved * w)), curved * w

    rough = worst_case(f, theta, metric, 5.0, n_iter=1)
    assert not rough.converged
    assert "n_iter=2" in rough.advice
    fine = worst_case(f, theta, metric, 5.0, n_iter=60)
    assert fine.converged
    assert "stationary" in fine.advice
    assert json.loads(json.dumps(fine.to_dict()))["n_restarts"] == 1


@pytest.mark.parametrize("name", ["inv", "mix", "s=0.5"])
def test_at_the_proposed_radius_geodesics_are_nearly_straight_whatever_head_moves(name):
    """In proportion to the geometry: weights of any size, and one head alone that gets all of the radius."""
    rng = np.random.default_rng(0)
    metric = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric, "s=0.5": lambda: rg.InterpolatedMetric(0.5)}[name]()
    x, y = rng.standard_normal((3, 9, 6)), rng.standard_normal((3, 9, 5))

    def loss(pair):
        residual = (x @ pair.H) @ pair.G.mT - y
        return 0.5 * float(np.sum(residual**2)), rg.Pair(residual.mT @ (x @ pair.H), x.mT @ (residual @ pair.G))

    radii = []
    for size in (1.0, 0.01):
        pair = size * rg.Pair(rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 6, 2)))
        radius = rg.proposed_radius(loss, pair, metric)
        space, gradient = metric.at(pair), rg.Pair(*loss(pair)[1])
        v = space.riemannian_gradient(gradient)
        u = v / space.norm(v)
        bends = 0.5 * radius * space.norm(space.christoffel(u))
        assert 0.045 <= bends.max() <= 0.05 * (1 + 1e-9)
        assert worst_case(loss, pair, metric, radius).bend < 0.1
        radii.append(radius)
    # a homothety of the metric: ‖v‖ of mix is of the fourth order in the size of the factors, that of inv is relative
    assert radii[1] / radii[0] < {"inv": 10.0, "mix": 1e-3, "s=0.5": 0.1}[name]
    assert radii[1] / radii[0] > {"inv": 0.1, "mix": 1e-5, "s=0.5": 1e-3}[name]


def test_the_proposed_radius_where_nothing_bends():
    flat = rg.proposed_radius(lambda w: (float(w.sum()), np.ones(4)), np.full(4, 3.0), rg.EuclideanMetric(), bend=0.1)
    assert flat == 0.6
    still = rg.proposed_radius(lambda p: (0.0, rg.Pair(0 * p.G, 0 * p.H)), rg.Pair([[2.0]], [[1.0]]), rg.MixedMetric())
    assert still > 0.0
    with pytest.raises(ValueError, match="bend"):
        rg.proposed_radius(lambda w: (0.0, w), np.ones(2), rg.EuclideanMetric(), bend=0.0)


def test_a_result_is_printed_with_its_advice():
    good = worst_case(lambda w: (float(w @ w), 2 * w), np.ones(3), rg.EuclideanMetric(), 0.1)
    assert str(good) == f"sharpness {good.value:.6g} at ρ = 0.1 (loss 3, 21 evaluations, converged)"
    curve = worst_case(
        lambda p: (float(np.sum(p.product**2)), rg.Pair(2 * p.product @ p.H, 2 * p.product.mT @ p.G)),
        0.1 * rg.Pair(np.eye(3)[:, :2], np.eye(4)[:, :2]), rg.MixedMetric(), [1e-4, 1.0], n_iter=3,
    )  # fmt: skip
    assert "ρ = 1: ρ is too large: the second-order correction" in str(curve)
    assert "proposed_radius" in str(curve[1])
    assert "ρ = 0.0001" not in str(curve)


def test_adaptive_sharpness_is_that_of_relative_steps():
    """Without any metric: a search in u, with L(θ + θ ⊙ u) written out."""
    rng = np.random.default_rng(3)
    G, H, w = rng.standard_normal((4, 2)), rng.standard_normal((3, 2)), rng.standard_normal(5)
    w[2] = 0.0

    def loss(p):
        R, tanh = p["qk"].product - 1.0, np.tanh(p["w"])
        grads = {"qk": rg.Pair(R @ p["qk"].H, R.T @ p["qk"].G), "w": 3 * tanh**2 * (1 - tanh**2)}
        return float(0.5 * np.sum(R**2) + np.sum(tanh**3)), grads

    theta = np.concatenate([G.ravel(), H.ravel(), w])

    def of_steps(u):
        moved = theta * (1.0 + u)
        value, grads = loss({"qk": rg.Pair(moved[:8].reshape(4, 2), moved[8:14].reshape(3, 2)), "w": moved[14:]})
        return value, theta * np.concatenate([x.ravel() for x in (*grads["qk"], grads["w"])])

    found = adaptive_case(loss, {"qk": rg.Pair(G, H), "w": w}, [0.1, 1.0])
    expected = worst_case(of_steps, np.zeros(19), rg.EuclideanMetric(), [0.1, 1.0])
    assert np.allclose(found.values, expected.values, rtol=1e-10, atol=0.0)
    for one, other in zip(found, expected, strict=True):
        delta = np.concatenate([x.ravel() for x in (*one.maximizer["qk"], one.maximizer["w"])])
        assert np.allclose(delta, theta * other.maximizer, rtol=0.0, atol=1e-5)


def test_a_larger_ball_never_gives_less_than_a_smaller_one():
    """A bump near θ: at the larger boundary, where the smaller maximizer is tried, the loss is below that at θ."""

    def bump(w):
        size = float(w @ w)
        return float(w[0] * np.exp(-size)), np.eye(3)[0] * np.exp(-size) - 2.0 * w[0] * np.exp(-size) * w

    curve = worst_case(bump, np.zeros(3), rg.EuclideanMetric(), [0.5, 50.0, 500.0], n_iter=3, verify=False)
    assert np.all(np.diff(curve.values) >= 0.0)
    assert curve.values[0] > 0.3


# What is given, and what comes of Ctrl-C ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 2])
@pytest.mark.parametrize("kind", [list, tuple])
def test_several_arrays_are_no_array(rows, kind):
    """A list of arrays would become one array, if their shapes happen to be equal."""
    arrays = kind([np.ones((3, 4)), np.ones((rows, 4))])

    def loss(w):
        return float(sum(np.sum(x) for x in w)), w

    for call in (
        lambda: rg.adaptive_sharpness(loss, arrays, 0.1),
        lambda: worst_case(loss, arrays, rg.ScalingMetric(), 0.1),
        lambda: worst_case(loss, {"w": arrays}, rg.ProductMetric({"w": rg.TranslationMetric()}), 0.1),
        lambda: rg.check_gradient(loss, arrays),
        lambda: rg.QuotientMetric(lambda w: np.eye(12)).at(list(arrays)),
    ):
        with pytest.raises(
            TypeError, match=rf"expected one array, got a (list|{kind.__name__}) of arrays; name several by a dict"
        ):
            call()


def test_masks_are_not_dropped():
    masked, point = np.ma.masked_array([1.0, 2.0], [False, True]), np.ones(2)
    for call in (
        lambda: rg.EuclideanMetric().at(masked),
        lambda: worst_case(lambda w: (np.ma.masked, w), point, rg.EuclideanMetric(), 0.1),
        lambda: worst_case(lambda w: (1.0, masked), point, rg.EuclideanMetric(), 0.1),
        lambda: rg.average_case_sharpness(lambda w: np.ma.masked, point, rg.EuclideanMetric(), 0.1),
        lambda: rg.value_and_grad(lambda w: np.ma.masked)(point),
        lambda: rg.Pair(np.ma.masked_array(np.eye(2), np.eye(2)), np.eye(2)),
    ):
        with pytest.raises(TypeError, match=r"(?i)masked"):
            call()
    assert rg.EuclideanMetric().at(np.ma.masked_array([1.0, 2.0])).dim == 2


@pytest.mark.parametrize("count", [0, 3])
def test_an_iterator_that_ends_does_not_end_somebody_elses(count):
    def ending():
        batches = iter(range(count))

        def loss(w):
            next(batches)
            return float(w @ w), 2.0 * w

        return loss

    w = np.ones(3)
    for search in (
        lambda f: worst_case(f, w, rg.EuclideanMetric(), 0.1, n_restarts=5),
        lambda f: rg.adaptive_sharpness(f, w, 0.1),
        lambda f: rg.average_case_sharpness(lambda w: f(w)[0], w, rg.EuclideanMetric(), 0.1),
        lambda f: rg.spectrum.trace(rg.spectrum.RiemannianHessian(f, w, rg.EuclideanMetric()), 60),
        lambda f: rg.symmetry.verify(f, w, rg.ScalingMetric(), samples=9),
        lambda f: [rg.check_gradient(f, w) for _ in range(9)],
        lambda f: [rg.proposed_radius(f, w, rg.EuclideanMetric()) for _ in range(40)],
    ):
        with pytest.raises(RuntimeError, match="it raised StopIteration; has an iterator of batches come to its end"):
            list(map(search, [ending()]))


@pytest.mark.parametrize("what", ["worst", "curve", "batches", "adaptive", "average"])
def test_ctrl_c_leaves_what_was_found(what):
    calls, w = [], np.arange(1.0, 4.0)

    def loss(w, *batch):
        calls.append(1)
        if len(calls) == 60:
            signal.raise_signal(signal.SIGINT)
        return float(np.sum(np.sin(5.0 * w))), 5.0 * np.cos(5.0 * w)

    searches = {
        "worst": lambda: worst_case(loss, w, rg.EuclideanMetric(), 0.1, n_restarts=5),
        "curve": lambda: worst_case(loss, w, rg.EuclideanMetric(), [0.1, 0.2], n_restarts=5),
        "batches": lambda: worst_case(loss, w, rg.EuclideanMetric(), 0.1, n_restarts=5, batches=[1, 2, 3]),
        "adaptive": lambda: rg.adaptive_sharpness(loss, w, 0.1),
        "average": lambda: rg.average_case_sharpness(lambda w: loss(w)[0], w, rg.EuclideanMetric(), 0.1, n_samples=400),
    }
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as stop:
        searches[what]()
    assert isinstance(stop.value, rg.Interrupted)
    assert len(calls) < 65
    found = stop.value.result
    assert isinstance(found, {"average": rg.AverageSharpness, "curve": rg.SharpnessCurve}.get(what, rg.SharpnessResult))
    assert float(found[0] if what == "curve" else found) > (-1.0 if what == "average" else 0.0)
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_shown_if_it_is_asked_for(monkeypatch, capsys):
    from refgeo.support import progress

    monkeypatch.setattr(progress, "FIRST_LINE", 0.001)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.001)

    def loss(w):
        time.sleep(0.004)
        return float(w @ w), 2.0 * w

    for asked in (False, True):
        worst_case(loss, np.ones(3), rg.EuclideanMetric(), 0.1, n_iter=3, progress=asked)
        rg.adaptive_sharpness(loss, np.ones(3), 0.1, n_iter=3, n_restarts=1, progress=asked)
        rg.average_case_sharpness(
            lambda w: loss(w)[0], np.ones(3), rg.EuclideanMetric(), 0.1, n_samples=4, progress=asked
        )
        lines = capsys.readouterr().err.splitlines()
        assert bool(lines) == asked
    assert any(re.match(r"searching ρ = 0.1: [123] of 4, ", line) for line in lines)
    assert any(line.startswith("averaging ρ = 0.1: 1 of 2, ") for line in lines)


@pytest.mark.parametrize("seed", range(5))
def test_an_average_is_at_most_the_worst_case_in_the_same_ball(seed):
    """In many dimensions, too, where normal perturbations are far longer than ρ."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((60, 60))

    def loss(w):
        return float(np.sum(np.sin(A @ w))), A.T @ np.cos(A @ w)

    w = rng.standard_normal(60)
    worst = worst_case(loss, w, rg.EuclideanMetric(), 0.05, n_restarts=3).value
    mean = rg.average_case_sharpness(lambda w: loss(w)[0], w, rg.EuclideanMetric(), 0.05)
    assert mean.value <= worst
    with pytest.raises(ValueError, match="distribution: expected one of ball, normal"):
        rg.average_case_sharpness(lambda w: loss(w)[0], w, rg.EuclideanMetric(), 0.05, distribution="cube")


def test_errors_say_what_to_do():
    with pytest.raises(TypeError, match=r"got a dict; refgeo\.ProductMetric of it is one metric"):
        worst_case(lambda p: (1.0, p), {"w": np.ones(2)}, {"w": rg.EuclideanMetric()}, 0.1)
    with pytest.raises(rg.RankDeficientError, match="B of a fresh low-rank adapter is; train a step first"):
        rg.InvariantMetric().at(rg.Pair(np.zeros((4, 2)), np.ones((3, 2))))
    with pytest.raises(ValueError, match="expected a finite gradient at the given parameters; the loss is 1"):
        worst_case(lambda w: (1.0, np.nan * w), np.ones(2), rg.EuclideanMetric(), 0.1)
    for wrong, said in (
        (None, "got NoneType"),
        ("a", "got str"),
        (1j, "got complex"),
        (np.ones(2), r"the shape \(2,\)"),
    ):
        with pytest.raises(TypeError, match=f"^loss: expected a function that returns one real number, {said}|{said}"):
            rg.value_and_grad(lambda w, wrong=wrong: wrong)(np.ones(2))


def test_an_average_has_the_noise_of_its_centre_in_its_error():
    rng = np.random.default_rng(0)
    w, a = rng.standard_normal((2, 20))

    def loss(p, offset):
        return float(np.float32(offset) + np.float32(0.1 * np.sin(p) @ a))

    exact = rg.average_case_sharpness(
        lambda p: 0.1 * float(np.sin(p) @ a), w, rg.EuclideanMetric(), 0.5, n_samples=1000
    )
    for offset in (1.0, 1e3, 1e5, 1e6):
        found = rg.average_case_sharpness(lambda p, o=offset: loss(p, o), w, rg.EuclideanMetric(), 0.5, n_samples=1000)
        assert abs(found.value - exact.value) < 4.0 * found.standard_error


def test_ctrl_c_before_there_is_an_average_is_ctrl_c():
    calls = []

    def value(p):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return float(p @ p)

    with pytest.raises(KeyboardInterrupt) as stop:
        rg.average_case_sharpness(value, np.ones(4), rg.EuclideanMetric(), 0.1)
    assert not isinstance(stop.value, rg.Interrupted)
