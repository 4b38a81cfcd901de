"""Average-case sharpness: its limits, and its standard error."""

import functools
import signal

import numpy as np
import pytest
from helpers import critical_point, product_loss

import refgeo as rg

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)

PAIR_METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
pair_metrics = pytest.mark.parametrize("name", PAIR_METRICS)


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


@pytest.mark.parametrize("size", [1, 2, 7])
def test_steps_fill_the_ball_evenly(size):
    """The mean of ‖ξ‖² is d/(d+2) ρ², and that of ‖ξ‖⁴ d/(d+4) ρ⁴."""
    for power, loss in ((2, lambda w: float(w @ w)), (4, lambda w: float(w @ w) ** 2)):
        result = rg.average_case_sharpness(
            loss, np.zeros(size), rg.EuclideanMetric(), 0.5, n_samples=4000, verify=False
        )
        assert abs(result.value - size / (size + power) * 0.5**power) < 4.0 * result.standard_error


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


def test_an_average_has_the_noise_of_its_centre_in_its_error():
    rng = np.random.default_rng(0)
    w, a = rng.standard_normal((2, 20))

    def loss(p, offset):
        return float(np.float32(offset) + np.float32(0.1 * np.sin(p) @ a))

    exact = rg.average_case_sharpness(
        lambda p: 0.1 * float(np.sin(p) @ a), w, rg.EuclideanMetric(), 0.5, n_samples=1000
    )
    for offset in (1.0, 1e3, 1e5, 1e6):
        result = rg.average_case_sharpness(lambda p, o=offset: loss(p, o), w, rg.EuclideanMetric(), 0.5, n_samples=1000)
        assert abs(result.value - exact.value) < 4.0 * result.standard_error


@pytest.mark.parametrize("size", [1e-160, 1e160])
def test_nothing_depends_on_the_size_of_the_loss(size):
    def scaled(factor):
        return lambda w: (factor * float(np.sum(w**4)), factor * 4.0 * w**3)

    result, usual = (
        rg.average_case_sharpness(lambda w, c=c: scaled(c)(w)[0], np.ones(3), rg.EuclideanMetric(), 0.1)
        for c in (size, 1.0)
    )
    assert result.standard_error / size == pytest.approx(usual.standard_error, rel=1e-9)
    values = [
        rg.spectrum.eigenvalues(
            rg.spectrum.RiemannianHessian(scaled(c), np.arange(1.0, 4.0), rg.EuclideanMetric())
        ).values
        for c in (size, 1.0)
    ]
    assert values[0] / size == pytest.approx(values[1], rel=1e-7)


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
