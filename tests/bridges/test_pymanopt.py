"""Pymanopt's optimisers and its own checks on every pair metric, and on products."""

from __future__ import annotations

import itertools

import numpy as np
import pymanopt
import pytest
from helpers import sample
from pymanopt.tools import diagnostics

import refgeo as rg
from refgeo.bridges.pymanopt import QuotientManifold

METRICS = [rg.InvariantMetric(), rg.InterpolatedMetric(0.5), rg.MixedMetric(), rg.InvariantMetric(1e-2)]
every_metric = pytest.mark.parametrize("metric", sample(METRICS, 2, ids=repr))


@pytest.fixture(autouse=True)
def linear_piece(monkeypatch):
    """Pymanopt 2.2's own assigns an array of one number, or of none, to an entry, which NumPy 2.4 refuses."""

    def best(x, y, window_length):
        fits = []
        for k in range(len(x) - window_length):
            part = np.arange(k, k + window_length + 1)
            line = np.polyfit(x[part], y[part], 1)
            fits.append((float(np.sum((np.polyval(line, x[part]) - y[part]) ** 2)), k, line))
        _, k, line = min(fits, key=lambda fit: fit[0])
        return np.arange(k, k + window_length + 1), line

    monkeypatch.setattr(diagnostics, "identify_linear_piece", best)


def completion(seed, metric, n=12, m=9, h=2, share=0.6):
    """Entries of a matrix of rank h, and the problem to find the others."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, h)) @ rng.standard_normal((h, m))
    mask = rng.random(A.shape) < share
    U, s, Vt = np.linalg.svd(A * mask / share, full_matrices=False)
    start = rg.Pair(U[:, :h] * s[:h] ** 0.5, Vt[:h].T * s[:h] ** 0.5)
    manifold = QuotientManifold(metric, start, rng=seed)

    @pymanopt.function.numpy(manifold)
    def cost(G, H):
        return float(np.sum((mask * (G @ H.T - A)) ** 2))

    @pymanopt.function.numpy(manifold)
    def gradient(G, H):
        e = 2 * mask * (G @ H.T - A)
        return rg.Pair(e @ H, e.T @ G)

    @pymanopt.function.numpy(manifold)
    def hessian(G, H, v_G, v_H):
        e, de = 2 * mask * (G @ H.T - A), 2 * mask * (v_G @ H.T + G @ v_H.T)
        return rg.Pair(de @ H + e @ v_H, de.T @ G + e.T @ v_G)

    return pymanopt.Problem(manifold, cost, euclidean_gradient=gradient, euclidean_hessian=hessian), start, A


@pytest.mark.slow
@every_metric
def test_pymanopts_checks_of_gradient_and_hessian(metric, capsys):
    """The error of the linear model along exact geodesics falls with the square of the step, the quadratic's with its
    cube.
    """
    for seed in range(3 if repr(metric) == "InvariantMetric(relaxation=0.0)" else 1):  # others are integrated
        problem, start, _ = completion(seed, metric)
        v = problem.manifold.random_tangent_vector(start)
        for quadratic, slope in ((False, 2.0), (True, 3.0)):
            result = diagnostics.check_directional_derivative(problem, start, v, use_quadratic_model=quadratic)
            assert result[-1][0] == pytest.approx(slope, abs=0.1)
        w = problem.manifold.random_tangent_vector(start)
        Hv, Hw = problem.riemannian_hessian(start, v), problem.riemannian_hessian(start, w)
        inner = problem.manifold.inner_product
        assert inner(start, w, Hv) == pytest.approx(inner(start, v, Hw), rel=1e-9, abs=1e-9)
        gradient = problem.riemannian_gradient(start)
        rest = gradient - problem.manifold.to_tangent_space(start, gradient)
        assert problem.manifold.norm(start, rest) < 1e-12 * problem.manifold.norm(start, gradient)
    capsys.readouterr()


@pytest.mark.slow
@every_metric
@pytest.mark.parametrize(("order", "slope"), [(1, 2.0), (2, 3.0)])
def test_pymanopts_check_of_the_retraction(metric, order, slope, monkeypatch, capsys):
    """Its distance from the exponential map falls with the square of the step, or its cube; for s = ½ with the cube
    anyway, because Γ(v, v) is vertical there.
    """
    slope = 3.0 if metric.name == "s=0.5" else slope
    rng = np.random.default_rng(1)
    like = rg.Pair(rng.standard_normal((6, 2)), rng.standard_normal((5, 2)))
    manifold = QuotientManifold(metric, like, order)
    # of two points so near to each other their difference, horizontal, is the distance; Pymanopt wants one by this name
    manifold.dist = lambda a, b: manifold.norm(a, manifold.projection(a, b - a))
    monkeypatch.setattr(diagnostics.plt, "show", lambda: diagnostics.plt.close("all"))
    monkeypatch.setattr(diagnostics.np, "logspace", lambda *_: 10.0 ** np.linspace(-3.0, -0.5, 40))
    diagnostics.check_retraction(manifold, like, manifold.random_tangent_vector(like))
    message = capsys.readouterr().out
    assert float(message.split("slope is: ")[1].split()[0].rstrip(".")) == pytest.approx(slope, abs=0.15)


@every_metric
def test_trust_regions_converge_superlinearly(metric):
    """Each of the last gradients is the one before to a power of about two."""
    problem, start, A = completion(0, metric)
    optimizer = pymanopt.optimizers.TrustRegions(verbosity=0, min_gradient_norm=1e-9)
    norms = []
    cost_gradient = problem.riemannian_gradient

    def watched(point):
        gradient = cost_gradient(point)
        norms.append(problem.manifold.norm(point, gradient))
        return gradient

    problem._riemannian_gradient = watched
    result = optimizer.run(problem, initial_point=start)
    assert np.allclose(result.point.product, A, atol=1e-7)
    falling = [norm for norm in dict.fromkeys(norms) if 1e-12 < norm < 0.3][-3:]
    powers = [np.log(b) / np.log(a) for a, b in itertools.pairwise(falling)]
    assert powers
    assert min(powers) > 1.4


@pytest.mark.parametrize("optimizer", ["ConjugateGradient", "SteepestDescent"])
def test_first_order_optimisers_find_the_matrix(optimizer):
    problem, start, A = completion(2, rg.MixedMetric())
    made = getattr(pymanopt.optimizers, optimizer)(verbosity=0, min_gradient_norm=1e-6, max_iterations=3000)
    assert np.allclose(made.run(problem, initial_point=start).point.product, A, atol=1e-4)


def test_products_and_arrays():
    """Two factors times an array of scales: Pymanopt's product of two of ours."""
    rng = np.random.default_rng(0)
    A = np.outer(np.arange(1.0, 6.0), np.ones(4))
    pair = QuotientManifold(rg.InvariantMetric(), rg.Pair(rng.standard_normal((5, 1)), rng.standard_normal((4, 1))))
    array = QuotientManifold(rg.ElementwiseMetric(), 1.0 + rng.random(5))
    assert (pair.dim, array.dim) == (8, 5)
    product = pymanopt.manifolds.Product([pair, array])

    @pymanopt.function.autograd(product)
    def cost(G, H, w):
        return ((w[:, None] * (G @ H.T) - A) ** 2).sum()

    start = [pair.random_point(), 1.0 + rng.random(5)]
    result = pymanopt.optimizers.ConjugateGradient(verbosity=0, max_iterations=500).run(
        pymanopt.Problem(product, cost), initial_point=start
    )
    assert result.cost < 1e-8


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("metric", [rg.EuclideanMetric(), rg.TranslationMetric()], ids=repr)
def test_trust_regions_end_at_the_exact_minimum_of_a_quadratic(metric):
    """Where the gradient becomes exactly zero, Pymanopt divides by it and looks at what comes."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A, b = np.diag(rng.integers(1, 4, 4).astype(float)), rng.integers(-3, 4, 4).astype(float)
        P = np.eye(4) - (0.25 if isinstance(metric, rg.TranslationMetric) else 0.0)
        manifold = QuotientManifold(metric, np.zeros(4), rng=seed)

        @pymanopt.function.autograd(manifold)
        def cost(w, A=A, b=b, P=P):
            return ((A @ (P @ w) - b) ** 2).sum()

        result = pymanopt.optimizers.TrustRegions(verbosity=0).run(pymanopt.Problem(manifold, cost))
        assert np.isfinite(result.cost)
        assert result.gradient_norm < 1e-5


def test_gradients_as_lists():
    manifold = QuotientManifold(rg.InvariantMetric(), rg.Pair(np.ones((3, 1)), np.ones((2, 1))))
    gradient = [np.ones((3, 1)), np.zeros((2, 1))]
    assert manifold.norm(manifold._like, manifold.euclidean_to_riemannian_gradient(manifold._like, gradient)) > 0.0


def test_zeros_that_are_frozen_stay_in_random_points():
    manifold = QuotientManifold(rg.ElementwiseMetric(), np.array([1.0, 0.0, -2.0]))
    assert np.array_equal(manifold.random_point() == 0.0, [False, True, False])


def test_two_points_are_factorised_once_each():
    rng = np.random.default_rng(0)
    points = [rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))) for _ in range(3)]
    manifold = QuotientManifold(rg.InvariantMetric(), points[0])
    spaces = [manifold.at(p) for p in (points[0], points[1], points[0], points[1])]
    assert spaces[0] is spaces[2]
    assert spaces[1] is spaces[3]
    manifold.at(points[2])
    assert manifold.at(points[0]) is not spaces[0]


def test_heads_are_one_manifold():
    rng = np.random.default_rng(0)
    like = rg.Pair(rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 4, 2)))
    manifold = QuotientManifold(rg.MixedMetric(), like)
    assert manifold.dim == 3 * (5 + 4 - 2) * 2
    v = manifold.random_tangent_vector(like)
    assert manifold.norm(like, v) == pytest.approx(1.0)
    assert manifold.inner_product(like, v, v) == pytest.approx(1.0)
    assert manifold.norm(like, manifold.zero_vector(like)) == 0.0
    assert manifold.random_point().G.shape == like.G.shape


@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.EmbeddedMetric(), rg.RotaryMetric("mix")], ids=repr)
def test_transport_is_horizontal_and_nearby_hardly_changes_a_vector(metric):
    rng = np.random.default_rng(0)
    a, step = (rg.Pair(rng.standard_normal((6, 4)), rng.standard_normal((5, 4))) for _ in range(2))
    manifold = QuotientManifold(metric, a)
    v = manifold.random_tangent_vector(a)
    b = a + 0.3 * step
    assert metric.at(b).is_horizontal(manifold.transport(a, b, v)).all()
    changes = [manifold.norm(a, manifold.transport(a, a + size * step, v) - v) for size in (1e-2, 1e-3)]
    assert changes[1] < 0.11 * changes[0] < 1e-2
