"""Around a search: seeds, batches, callbacks, counts, Ctrl-C."""

import functools
import math
import pickle
import re
import signal
import time

import numpy as np
import pytest
from helpers import batches_of, transformer

import refgeo as rg

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)
adaptive_case = functools.partial(rg.adaptive_sharpness, n_restarts=1)


@pytest.mark.slow
def test_same_seed_same_result():
    model, params, f = transformer()
    metric, batches = model.metric("inv"), batches_of(model, 4)

    def measure(rng=3):
        return (
            worst_case(f, params, metric, 0.1, n_iter=6, n_restarts=4, rng=rng),
            worst_case(model.value_and_grad, params, metric, 0.1, n_iter=6, batches=batches, rng=rng, n_restarts=2),
        )

    for item, second in zip(measure(), measure(), strict=True):
        assert pickle.dumps(item) == pickle.dumps(second)
    averages = [
        rg.average_case_sharpness(model.loss, params, metric, 0.1, batches=batches, n_samples=6) for _ in range(2)
    ]
    assert np.array_equal(averages[0].samples, averages[1].samples)
    assert averages[0].value == averages[1].value
    generators = [
        worst_case(f, params, metric, 0.1, n_iter=3, n_restarts=3, rng=np.random.default_rng(5)) for _ in range(2)
    ]
    assert pickle.dumps(generators[0]) == pickle.dumps(generators[1])


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


@pytest.mark.slow
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


@pytest.mark.parametrize("radii", [[0.1, 0.2], [0.3, 0.1, 0.2]])
@pytest.mark.parametrize("n_restarts", [1, 3])
def test_the_number_of_evaluations_to_come_is_known_from_the_start(radii, n_restarts):
    """For several radii, too, where the maximiser of a smaller ball is one more start."""
    totals, rng = [], np.random.default_rng(0)
    for centre in 0.5 * rng.standard_normal((10, 3)):

        def f(w, centre=centre):
            return float(np.sum(np.sin(3.0 * (w - centre)))), 3.0 * np.cos(3.0 * (w - centre))

        seen = []
        settings = {"n_iter": 4, "n_restarts": n_restarts, "verify": False, "callback": seen.append}
        rg.worst_case_sharpness(f, np.ones(3), rg.EuclideanMetric(), radii, **settings)
        totals += [{progress.total for progress in seen}]
        assert seen[-1].done <= seen[-1].total
    assert all(total == totals[0] for total in totals)
    assert len(totals[0]) == 1


@pytest.mark.parametrize("gradient", [1.0, 0.0])
@pytest.mark.parametrize("order", [1, -1])
def test_a_stopped_search_evaluates_nothing_more(gradient, order):
    """Wherever it is stopped: at θ, at a random start, while climbing, and in a larger ball."""
    calls = []

    def f(w):
        calls.append(1)
        return float(np.sum(np.sin(3.0 * w))), gradient * 3.0 * np.cos(3.0 * w)

    stops = 0
    for last in range(1, 120, 3):

        def stop(progress, last=last):
            if progress.done == last:
                calls.clear()
                raise StopIteration

        calls.append("not stopped")
        settings = {"n_iter": 4, "n_restarts": 3, "callback": stop, "verify": bool(gradient)}
        curve = rg.worst_case_sharpness(f, np.ones(3), rg.EuclideanMetric(), [0.1, 0.2][::order], **settings)
        stops += "not stopped" not in calls
        assert "not stopped" in calls or not calls, f"{len(calls)} evaluations after the {last}th, which was to be last"
        values = curve.values[np.argsort(curve.rho)]
        assert np.all(np.diff(values) >= 0.0), "a larger ball is left out if it has not come as far as the smaller one"
    assert stops > 5


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
            result = rg.adaptive_sharpness(lambda w: f(w - 1.0), np.ones(6), 1.0, **settings)
        else:
            result = search(f, np.zeros(6), rg.EuclideanMetric(), 1.0, **settings)
        assert result.n_evaluations == len(calls)
        assert result.n_rejected == sum(w[0] >= 0.5 for w in calls)


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
    assert [(item.rho, [batch.rho for batch in item.batches]) for item in curve] == [(0.1, [0.1, 0.1])]


def test_several_radii_with_batches_and_a_callback():
    model, params, _ = transformer()
    batches, seen = batches_of(model, 2), []
    curve = worst_case(
        model.value_and_grad, params, model.metric("mix"), [0.1, 0.2], n_iter=3, batches=batches, callback=seen.append
    )
    assert [len(result.batches) for result in curve] == [2, 2]
    assert {p.rho for p in seen} == {0.1, 0.2}
    assert seen[-1].done <= seen[-1].total == 2 * (2 * (1 + 3) + 1 + (1 + 3) + 1)
    assert sum(result.n_evaluations for result in curve) == seen[-1].done
    for bad in ([], [0.1, -1.0], [[0.1]]):
        with pytest.raises(ValueError, match=r"^rho: expected"):
            worst_case(model.value_and_grad, params, model.metric("mix"), bad, batches=batches)


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
    result = stop.value.result
    assert isinstance(
        result, {"average": rg.AverageSharpness, "curve": rg.SharpnessCurve}.get(what, rg.SharpnessResult)
    )
    assert float(result[0] if what == "curve" else result) > (-1.0 if what == "average" else 0.0)
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
