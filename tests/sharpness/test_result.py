"""Results, printed and pickled."""

import functools
import math
import pickle

import numpy as np
from helpers import batches_of, transformer

import refgeo as rg

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)


def result_with_batches():
    model, params, _ = transformer()
    return worst_case(model.value_and_grad, params, model.metric("inv"), 0.1, n_iter=3, batches=batches_of(model, 2))


def test_results_can_be_pickled():
    for result in (
        result_with_batches(),
        worst_case(lambda w: (float(w @ w), 2 * w), np.ones(3), rg.EuclideanMetric(), [0.1, 0.2]),
        worst_case(
            lambda p: (float(np.sum(p.product)), rg.Pair(np.ones((2, 3)) @ p.H, np.ones((3, 2)) @ p.G)),
            rg.Pair(np.eye(2, 2), np.eye(3, 2)),
            rg.MixedMetric(),
            0.1,
        ),
    ):
        again = pickle.loads(pickle.dumps(result))
        assert str(again) == str(result)
        assert again.to_dict() == result.to_dict()
        for item, second in zip(*(vars(each).items() for each in (again, result)), strict=True):
            assert pickle.dumps(item) == pickle.dumps(second)


def test_a_result_is_printed_with_its_advice():
    good = worst_case(lambda w: (float(w @ w), 2 * w), np.ones(3), rg.EuclideanMetric(), 0.1)
    assert str(good) == f"sharpness {good.value:.6g} at ρ = 0.1 (loss 3, 21 evaluations, converged)"
    curve = worst_case(
        lambda p: (float(np.sum(p.product**2)), rg.Pair(2 * p.product @ p.H, 2 * p.product.mT @ p.G)),
        0.1 * rg.Pair(np.eye(3)[:, :2], np.eye(4)[:, :2]), rg.MixedMetric(), [1e-4, 1.0], n_iter=3,
    )  # fmt: skip
    assert "ρ = 1: ρ is too large: the second-order correction" in str(curve)
    assert "proposed_radius" in str(curve[1])
    assert "ρ = 0.0001" not in str(curve)


def test_gradients_of_zero_are_not_taken_for_a_radius_that_is_too_large():
    """Both end without a residual, and only an advice that fits the cause helps."""
    settings = {"verify": False, "n_restarts": 2, "n_iter": 3}
    zero = rg.worst_case_sharpness(lambda w: (float(w @ w), 0.0 * w), np.ones(3), rg.EuclideanMetric(), 0.1, **settings)
    assert zero.value > 0.0
    assert "the gradient is zero at every point" in zero.advice
    assert "smaller rho" not in zero.advice

    def bounded(w):
        return (float(w @ w), 2.0 * w) if np.array_equal(w, np.ones(3)) else (math.nan, w)

    outside = rg.worst_case_sharpness(bounded, np.ones(3), rg.EuclideanMetric(), 0.1, **settings)
    assert outside.n_rejected
    assert "try a smaller rho" in outside.advice
