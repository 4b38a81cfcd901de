"""Adaptive sharpness: the limit without curvature, and losses whose maximum is known."""

import functools
import math

import numpy as np
import pytest
from helpers import transformer

import refgeo as rg

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)
adaptive_case = functools.partial(rg.adaptive_sharpness, n_restarts=1)


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
    result = adaptive_case(loss, params, 0.3, scale=given)
    assert result.value == pytest.approx(expected, rel=1e-12)
    assert result.maximizer["b"][1] == 0.0
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

    result = adaptive_case(loss, {"qk": rg.Pair(G, H), "w": w}, [0.1, 1.0])
    expected = worst_case(of_steps, np.zeros(19), rg.EuclideanMetric(), [0.1, 1.0])
    assert np.allclose(result.values, expected.values, rtol=1e-10, atol=0.0)
    for item, second in zip(result, expected, strict=True):
        delta = np.concatenate([x.ravel() for x in (*item.maximizer["qk"], item.maximizer["w"])])
        assert np.allclose(delta, theta * second.maximizer, rtol=0.0, atol=1e-5)
