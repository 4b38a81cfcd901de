"""Recycled memory is never memory that somebody still holds."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import refgeo as rg
from refgeo.recycling import empty, recycling

LARGE = (400, 300)


def test_memory_is_reused_only_when_nothing_refers_to_it():
    with recycling():
        first = empty(LARGE)
        first[...] = 1.0
        part = first[3:5, ::2].T  # a view of a view of the buffer
        del first
        second = empty(LARGE)
        second[...] = 2.0
        assert np.all(part == 1.0)
        address = second.ctypes.data
        del second
        third = empty(LARGE)
        assert third.ctypes.data == address
        del part
        fourth = empty(LARGE)
        assert not np.shares_memory(third, fourth)
        assert empty((200, 600)).shape == (200, 600)  # another shape of the same size


def test_arrays_outlive_the_block():
    with recycling():
        kept = empty(LARGE)
        kept[...] = 3.0
    gc.collect()
    others = [np.full(LARGE, 4.0) for _ in range(5)]
    assert np.all(kept == 3.0)
    assert len(others) == 5
    assert not np.shares_memory(empty(LARGE), empty(LARGE))


def test_threads_do_not_share_buffers():
    def work(i):
        with recycling():
            for _ in range(50):
                arrays = [empty(LARGE) for _ in range(2)]
                for j, array in enumerate(arrays):
                    array[...] = 10 * i + j
                assert np.all(arrays[0] == 10 * i)
                assert np.all(arrays[1] == 10 * i + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("kind", ["arrays", "pairs"])
def test_a_loss_may_keep_every_point_it_is_given(kind):
    """The search reuses memory; what a user kept, even as a view, must not change afterwards."""
    rng = np.random.default_rng(0)
    if kind == "arrays":
        params, metric = {"w": rng.standard_normal((300, 300))}, rg.ProductMetric({"w": rg.ElementwiseMetric()})
    else:
        pair = rg.Pair(rng.standard_normal((2, 300, 200)), rng.standard_normal((2, 300, 200)))
        params, metric = {"w": pair}, rg.ProductMetric({"w": rg.InvariantMetric()})
    kept = []

    def loss(p):
        factors = list(p["w"]) if kind == "pairs" else [p["w"]]
        value = sum(float(np.sum(np.sin(f))) for f in factors)
        kept.append(([f[::2] for f in factors], [f[::2].copy() for f in factors]))
        gradient = [np.cos(f) for f in factors]
        return value, {"w": tuple(gradient) if kind == "pairs" else gradient[0]}

    result = rg.worst_case_sharpness(loss, params, metric, 0.5, memory=0)
    assert len(kept) == 21 + 4, "three evaluations verify the gradient, and one that the loss has not changed"
    for views, copies in kept:
        assert all(np.array_equal(view, copy) for view, copy in zip(views, copies, strict=True))
    assert np.isfinite(result.value)
