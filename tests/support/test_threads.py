"""Work that is spread over threads gives what it gives at once."""

import threading

import numpy as np
import pytest
import threadpoolctl

import refgeo as rg
from refgeo.geometry.accelerated import GroupedSpace
from refgeo.support import threads


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """As on a machine with two processors, for batches of any size."""
    monkeypatch.setattr(threads, "_LARGE", 500)
    with threadpoolctl.threadpool_limits(2):
        yield


def a_batch():
    rng = np.random.default_rng(0)
    return (rg.Pair(rng.standard_normal((3, 7, 70, 60)), rng.standard_normal((3, 7, 65, 60))) for _ in range(3))


OPERATIONS = {
    "projection": lambda space, v: space.horizontal_projection(v),
    "christoffel": lambda space, v: space.christoffel(v),
    "geodesic": lambda space, v: space.geodesic(0.01 * v),
}
EXACT = {"exact": lambda space, v: space.geodesic(0.01 * v, 1.0, "exact")}


@pytest.mark.parametrize(
    "metric", [rg.InvariantMetric(), rg.MixedMetric(), rg.InterpolatedMetric(0.5)], ids=["inv", "mix", "between"]
)
def test_a_large_batch_is_what_it_is_at_once(metric, monkeypatch):
    point, v, _ = a_batch()
    operations = OPERATIONS | (EXACT if metric.s == 0.0 else {})

    def results():
        space = metric.at(point)
        assert isinstance(space, GroupedSpace) == (threads._LARGE == 500)
        return [space.gauge.sigma, *(factor for act in operations.values() for factor in act(space, v))]

    spread = results()
    monkeypatch.setattr(threads, "_LARGE", 1 << 40)
    for one, other in zip(spread, results(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13 * np.abs(other).max())


def test_an_error_names_the_block_of_the_whole_batch():
    point, _, _ = a_batch()
    G = point.G.copy()
    G[2, 4, :, 1] = G[2, 4, :, 0]
    with pytest.raises(rg.RankDeficientError) as caught:
        rg.InvariantMetric().at(rg.Pair(G, point.H))
    assert caught.value.block == (2, 4)


def test_threads_have_the_callers_floating_point_errors():
    def overflow(_):
        return np.full(10, 1e300) * 1e300

    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        threads.spread(overflow, [0, 1])
    with np.errstate(over="ignore"):
        threads.spread(overflow, [0, 1])


def test_where_no_thread_can_be_started_the_work_is_done_all_the_same(monkeypatch):
    seen, submit = [], threads.ThreadPoolExecutor.submit

    def refused(self, *given):
        if len(seen) == 0:
            seen.append("one")
            return submit(self, *given)
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(threads.ThreadPoolExecutor, "submit", refused)
    done = []
    threads.spread(done.append, list(range(10)))
    assert sorted(done) == list(range(10))


def test_inside_one_thread_nothing_is_spread():
    seen = set()
    with threads.one_thread():
        threads.spread(lambda _: seen.add(threading.get_ident()), list(range(20)))
    assert seen == {threading.get_ident()}
    both = set()
    barrier = threading.Barrier(2, timeout=60)
    threads.spread(lambda _: both.add(threading.get_ident()) or barrier.wait(), [0, 1])
    assert len(both) == 2
