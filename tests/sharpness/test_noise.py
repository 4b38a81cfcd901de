"""The noise of a loss is what it is off by from the same loss in more digits."""

from __future__ import annotations

import numpy as np
import pytest

from refgeo.sharpness.noise import FINE_STEP, NOISE_FACTOR, last_digit, least_noise, noise_along


def network(seed, dtype, activation, shift=0.0):
    """A loss along a line, in some precision and in double."""
    rng = np.random.default_rng(seed)
    W, V, X = rng.standard_normal((64, 20)) / 4, rng.standard_normal((5, 64)) / 8, rng.standard_normal((100, 20))
    directions = [rng.standard_normal(W.shape) * np.abs(W).mean() for _ in range(2)]

    def at(i, kind):
        def loss(t):
            w = (W + t * directions[i]).astype(kind)
            hidden = activation(X.astype(kind) @ w.T)
            return float(np.mean((hidden @ V.T.astype(kind)) ** 2, dtype=kind)) + shift

        return loss

    return lambda i: at(i, dtype), lambda i: at(i, np.float64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("activation", [np.tanh, lambda z: np.maximum(z, 0.0)], ids=["tanh", "relu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_that_of_rounding(seed, activation, dtype):
    rounded, exact = network(seed, dtype, activation)
    result = least_noise(rounded)
    if dtype is np.float64:
        assert result < (1e-15 if activation is np.tanh else 1e-9)  # kinks are no rounding, but not smooth
        return
    errors = [rounded(0)(t) - exact(0)(t) for t in np.linspace(0.0, 1e-3, 40)]
    assert np.std(errors) / 5.0 < result < 5.0 * np.std(errors) + 0.5 * np.finfo(np.float32).eps * exact(0)(0.0)
    assert max(np.abs(errors - np.mean(errors))) < NOISE_FACTOR * result


def test_a_smooth_function_has_none_whatever_its_slopes():
    for scale in (1e-3, 1.0, 1e6):
        assert noise_along(lambda t, s=scale: s * np.sin(3.0 * t) + t**5, FINE_STEP) < 1e-14 * max(1.0, scale)


def test_what_is_rounded_to_few_digits_has_their_half():
    assert noise_along(lambda t: float(np.float32(0.7)), FINE_STEP) == 2.0**-25
    assert last_digit([np.float16(0.3), np.float16(0.7)]) == 2.0**-12
    assert noise_along(lambda t: float(np.float16(0.7 + 1e-7 * t)), FINE_STEP) >= 2.0**-12


def test_vectors_have_a_length():
    rng = np.random.default_rng(0)
    result = [
        noise_along(lambda t: np.sin(t + np.arange(50.0)) + 1e-6 * rng.standard_normal(50), FINE_STEP)
        for _ in range(20)
    ]
    assert np.median(result) == pytest.approx(1e-6 * 50**0.5, rel=0.3)


def test_where_there_is_no_value_nothing_is_known():
    assert noise_along(lambda t: np.nan if t > 0 else 1.0, FINE_STEP) == np.inf


def test_each_point_of_a_line_is_evaluated_once():
    points = []
    assert least_noise(lambda i: lambda t: points.append(t) or 1.0 + t) < 1e-15
    assert len(points) == len(set(points)) == 7


def test_a_loss_that_is_nearly_zero_has_the_noise_of_its_plateaus():
    """A well-fitted classifier in float32: its loss is a difference of numbers of the order of 10."""
    logits = np.array([16.0, 0.0, 1.0])

    def along(i):
        return lambda t: float(
            np.log(np.sum(np.exp((logits * (1.0 + t)).astype(np.float32)))) - np.float32(16.0 * (1.0 + t))
        )

    assert least_noise(along) > 1e-8
    assert least_noise(lambda i: lambda t: 0.0) == np.inf
    assert least_noise(lambda i: lambda t: 0.5 + (i == 1) * 1e-6 * np.sign(t)) > 1e-8
