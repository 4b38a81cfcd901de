"""Threads of linear algebra, which are given back."""

import threading

import pytest
import threadpoolctl

from refgeo.support.threads import one_thread


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def set_by_a_thread_that_ends(number):
    """Because threadpoolctl ≥ 3.8 lets nobody else change OpenBLAS while the thread that has changed it lives."""
    thread = threading.Thread(target=threadpoolctl.threadpool_limits, args=(number,), kwargs={"user_api": "blas"})
    thread.start()
    thread.join()


def test_blas_has_its_threads_again_after_searches_in_threads_and_an_interruption():
    inside, leave = threading.Event(), threading.Event()

    def first():
        with one_thread():
            inside.set()
            leave.wait(10.0)

    at_start = blas_threads().pop()
    set_by_a_thread_that_ends(2)
    try:
        thread = threading.Thread(target=first)
        thread.start()
        assert inside.wait(10.0)
        with one_thread():  # the other thread leaves while this one is inside
            leave.set()
            thread.join()
        assert blas_threads() == {2}
        with pytest.raises(KeyboardInterrupt), one_thread():
            raise KeyboardInterrupt
        assert blas_threads() == {2}
    finally:
        set_by_a_thread_that_ends(at_start)
