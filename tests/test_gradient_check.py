"""check_gradient, and the check that every search makes first."""

import numpy as np
import pytest

import refgeo as rg


def quartic(pair, scale=(1.0, 1.0)):
    residual = pair.product - 1.0
    cube = residual**3
    return 0.25 * float(np.sum(residual**4)), rg.Pair(scale[0] * cube @ pair.H, scale[1] * cube.T @ pair.G)


@pytest.fixture
def point():
    rng = np.random.default_rng(0)
    return rg.Pair(rng.standard_normal((4, 2)), rng.standard_normal((4, 2)))


def test_a_right_gradient_passes_block_by_block(point):
    found = rg.check_gradient(quartic, point)
    assert set(found) == {"G", "H"}
    assert max(found.values()) < 1e-2
    nested = rg.check_gradient(lambda p: (quartic(p["a"])[0], {"a": quartic(p["a"])[1]}), {"a": point, "b": np.ones(3)})
    assert set(nested) == {"a.G", "a.H"}


@pytest.mark.parametrize("seed", range(20))
def test_right_gradients_in_float32_are_never_refused(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((50, 6)).astype(np.float32)

    def loss(w):
        z = np.tanh(X @ w.astype(np.float32))
        return float(np.mean(z**2) + 10.0), (2 * X.T @ (z * (1 - z**2)) / 50).astype(float)

    for size in (1e-3, 1.0, 100.0):
        w = size * rng.standard_normal(6)
        rg.check_gradient(loss, w)
        rg.worst_case_sharpness(loss, w, rg.EuclideanMetric(), 0.1 * size, n_iter=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda p: (quartic(p)[0], rg.Pair(*reversed(tuple(quartic(p)[1])))), "the gradient is not that of the loss"),
        (lambda p: quartic(p, (1.0, -1.0)), "H: the loss changes by -1 times"),
        (lambda p: quartic(p, (2.0, 1.0)), "G: the loss changes by 0.5 times"),
    ],
)
def test_a_wrong_gradient_is_refused_with_its_block(wrong, message, point):
    with pytest.raises(ValueError, match=message):
        rg.check_gradient(wrong, point)
    for search in (
        lambda: rg.worst_case_sharpness(wrong, point, rg.InvariantMetric(), 0.1),
        lambda: rg.adaptive_sharpness(wrong, point, 0.1),
    ):
        with pytest.raises(ValueError, match="gradient"):
            search()
    assert rg.worst_case_sharpness(wrong, point, rg.InvariantMetric(), 0.1, verify=False).n_evaluations > 1


def test_a_loss_that_is_not_the_same_twice_is_refused(point):
    rng = np.random.default_rng(0)

    def with_dropout(pair):
        value, gradient = quartic(pair)
        return value * (1 + 0.01 * rng.standard_normal()), gradient

    with pytest.raises(ValueError, match=r"two evaluations at the same parameters gave .*dropout"):
        rg.worst_case_sharpness(with_dropout, point, rg.MixedMetric(), 0.1)
    with pytest.raises(ValueError, match="dropout"):
        rg.check_gradient(with_dropout, point)


def test_rounding_of_the_loss_is_no_difference(point):
    rng = np.random.default_rng(0)

    def on_a_gpu(pair):
        value, gradient = quartic(pair)
        return value * (1 + 1e-7 * rng.standard_normal()), gradient

    rg.worst_case_sharpness(on_a_gpu, point, rg.MixedMetric(), 0.1)


def test_at_a_minimum_nothing_can_be_told_and_nothing_is_refused():
    def flat(w):
        return float(np.sum(w**2)), 2 * w

    assert rg.worst_case_sharpness(flat, np.zeros(3), rg.EuclideanMetric(), 0.1).value > 0
    found = rg.check_gradient(flat, np.zeros(3))
    assert np.isnan(found["parameters"]) or found["parameters"] < 0.1


@pytest.mark.parametrize(
    ("value_and_grad", "message"),
    [
        (lambda p: (float("nan"), p), "expected a finite loss"),
        (lambda p: (0.0, {"another": 1.0}), "expected gradients of some of w"),
        (lambda p: (0.0, {"w": None}), "the gradient of 'w': expected real numbers of shape"),
        (lambda p: (0.0, None), "expected a dict of gradients"),
        (3, "expected a function of the parameters"),
    ],
)
def test_no_gradient_at_all_is_an_error(value_and_grad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        rg.check_gradient(value_and_grad, {"w": np.ones(2)})
