"""Training of diagonal networks, many at once."""

from __future__ import annotations

import numpy as np
import pytest

from refgeo import diagonal


def data(seed, n, d):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X @ (rng.standard_normal(d) * (rng.random(d) < 0.2)), rng


def test_full_batch_training_is_plain_gradient_descent():
    X, y, rng = data(0, 12, 20)
    u, v = rng.standard_normal((2, 4, 20))
    steps = np.array([0.01, 0.02, 0.03, 0.04])
    result = diagonal.train(X, y, u, v, steps, target=1e-4, max_steps=4000)
    assert result.converged.all()
    for k in range(4):
        a, b = u[k].copy(), v[k].copy()
        count = 0
        while np.mean((X @ (a * b) - y) ** 2) > 1e-4:
            e = 2 * X.T @ (X @ (a * b) - y) / 12
            a, b = a - steps[k] * e * b, b - steps[k] * e * a
            count += 1
        assert result.steps[k] == count
        assert np.allclose(result.u[k], a, rtol=1e-9)
        assert np.allclose(result.v[k], b, rtol=1e-9)
        assert result.loss[k] == pytest.approx(np.mean((X @ (a * b) - y) ** 2), rel=1e-9)


def test_gradient_flow_conserves_what_rescaling_invariance_says():
    """For small steps u² − v² stays (Noether), so that a start with |u| = |v| cannot change β's signs."""
    X, y, rng = data(1, 10, 16)
    u, v = rng.standard_normal((2, 3, 16))
    result = diagonal.train(X, y, u, v, 1e-3, target=1e-3, max_steps=20_000)
    assert np.allclose(result.u**2 - result.v**2, u**2 - v**2, atol=0.02)
    balanced = diagonal.train(X, y, u, np.abs(u), 1e-3, target=0.0, max_steps=5_000)
    assert np.all(np.sign(balanced.u * balanced.v) == np.sign(u))


def test_every_network_can_have_its_own_data():
    together_X, together_y = zip(*(data(seed, 8, 12)[:2] for seed in (2, 3)), strict=True)
    u = np.ones(12)
    result = diagonal.train(np.stack(together_X), np.stack(together_y), u, 0.1 * u, 0.02, max_steps=20_000)
    for k in range(2):
        alone = diagonal.train(together_X[k], together_y[k], u, 0.1 * u, 0.02, max_steps=20_000)
        assert result.steps[k] == alone.steps
        assert np.allclose(result.u[k], alone.u, rtol=1e-9)


def test_divergence_is_reported_and_does_not_touch_the_others():
    X, y, rng = data(5, 12, 20)
    u, v = rng.standard_normal((2, 2, 20))
    result = diagonal.train(X, y, u, v, [0.02, 5.0], max_steps=20_000)
    assert result.converged.tolist() == [True, False]
    assert result.diverged.tolist() == [False, True]
    assert result.loss[1] == np.inf
    assert np.isfinite(result.u).all()
    alone = diagonal.train(X, y, u[0], v[0], 0.02, max_steps=20_000)
    assert np.allclose(result.u[0], alone.u, rtol=1e-9)
    assert repr(result) == "Trained(2 networks: 1 converged, 1 diverged, 0 unfinished)"


def test_running_out_of_steps_is_neither():
    X, y, rng = data(6, 12, 20)
    u, v = rng.standard_normal((2, 20))
    result = diagonal.train(X, y, u, v, 1e-4, max_steps=10)
    assert not result.converged
    assert not result.diverged
    assert result.steps == 10
    assert result.loss == pytest.approx(np.mean((X @ (result.u * result.v) - y) ** 2), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.eye(3)}, r"X: expected shape \(\.\.\., n, 2\)"),
        ({"y": np.ones(3)}, r"y: expected shape \(\.\.\., 2\)"),
        ({"step_size": 0.0}, "step_size: expected numbers > 0"),
        ({"u": np.ones((2, 2, 2)), "v": np.ones((2, 2, 2))}, None),
        ({"u": np.ones(3)}, "v: expected the shape of u"),
        ({"target": -1.0}, "target: expected a finite number >= 0"),
        ({"target": "x"}, "target: expected a finite number >= 0"),
        ({"max_steps": 0}, "max_steps: expected an integer >= 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"X": np.eye(2), "y": np.ones(2), "u": np.ones(2), "v": np.ones(2), "step_size": 0.1} | change
    if message is None:
        arguments["step_size"] = np.full((3, 1, 2), 0.1)
        assert diagonal.train(**arguments).loss.shape == (3, 2, 2)
        return
    with pytest.raises(ValueError, match=message):
        diagonal.train(**arguments)


def test_any_of_the_arguments_may_have_the_batch():
    rng = np.random.default_rng(40)
    X, y, u, v = rng.standard_normal((6, 4)), rng.standard_normal(6), *rng.standard_normal((2, 4))
    whole = {"X": X, "y": y, "u": u, "v": v, "step_size": np.asarray(0.05)}
    for name, array in whole.items():
        items = np.stack([array, 0.9 * array, 1.1 * array])
        both = {"u": np.stack([u] * 3), "v": np.stack([v] * 3)} if name in "uv" else {}
        together = diagonal.train(**(whole | both | {name: items}), max_steps=50)
        assert together.loss.shape == together.steps.shape == (3,)
        assert together.u.shape == together.v.shape == (3, 4)
        assert together.steps.dtype == np.int64
        assert together.converged.dtype == together.diverged.dtype == bool
        for k in range(3):
            alone = diagonal.train(**(whole | {name: items[k]}), max_steps=50)
            assert np.allclose(together.u[k], alone.u, rtol=1e-12)
            assert np.allclose(together.loss[k], alone.loss, rtol=1e-10)
            assert together.steps[k] == alone.steps


def test_the_limit_of_divergence_is_each_network_s_own():
    """A network with large data is not stopped by the small data of another, nor the other way round."""
    X, u = np.eye(2), np.full((2, 2), 1.0)
    y = np.array([[1e6, 1e6], [1e-3, 1e-3]])
    trained = diagonal.train(X, y, u, u, step_size=np.array([1e-8, 0.1]), max_steps=2000)
    assert not trained.diverged.any()
    explosive = diagonal.train(X, y, u, u, step_size=np.array([1.0, 0.1]), max_steps=2000)
    assert list(explosive.diverged) == [True, False]
