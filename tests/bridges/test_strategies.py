"""Strategies: what they promise about conditioning, scale and horizontality; what they shrink to; bad ranges."""

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

import refgeo as rg
from refgeo.bridges import strategies

# and a slow machine fails nothing
seeded = settings(
    max_examples=40, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@seeded
@given(st.data(), st.sampled_from([1.0, 30.0, 1e6]), st.sampled_from([1e-8, 1.0, 1e8]))
def test_pairs_have_the_condition_number_and_scale_they_were_asked_for(data, condition, scale):
    point = data.draw(strategies.pairs(condition=condition, scale=scale))
    for factor in point:
        values = np.linalg.svd(factor, compute_uv=False)
        assert np.allclose(values[..., 0], scale, rtol=1e-12)
        if factor.shape[-1] > 1:
            assert np.allclose(values[..., 0] / values[..., -1], condition, rtol=1e-6)


@seeded
@given(st.data())
def test_ranges_are_kept_and_both_ends_are_reached(data):
    point = data.draw(strategies.pairs(((), 4, 3, 2), condition=(2.0, 50.0), scale=(1e-3, 10.0)))
    for factor in point:
        values = np.linalg.svd(factor, compute_uv=False)
        assert 2.0 * 0.999 <= values[0] / values[1] <= 50.0 * 1.001
        assert 1e-3 * 0.999 <= values[0] <= 10.0 * 1.001


@pytest.mark.slow
def test_ranges_reach_their_ends():
    for end in (1e-3, 10.0):
        result = find(
            strategies.pairs(((), 1, 1, 1), scale=(1e-3, 10.0)),
            lambda point, end=end: np.isclose(abs(point.G.item()), end),
            settings=settings(max_examples=2000, database=None, derandomize=True),
        )
        assert result.H.item() == 1.0, "the other factor is shrunk to scale 1"


@seeded
@given(st.data(), st.booleans())
def test_tangent_vectors_fit_and_are_never_zero_and_horizontal_if_asked(data, horizontal):
    point = data.draw(strategies.pairs(scale=(1e-4, 1e4)))
    v = data.draw(strategies.tangent_vectors(point, horizontal=horizontal))
    assert (v.G.shape, v.H.shape) == (point.G.shape, point.H.shape)
    space = rg.InvariantMetric().at(point)
    assert np.all(space.norm(v) > 0)
    if horizontal:
        assert np.all(space.is_horizontal(v))


@seeded
@given(st.data())
def test_group_elements_are_invertible_with_the_condition_number(data):
    A = data.draw(strategies.group_elements(3, condition=7.0, scale=2.0))
    assert np.allclose(np.linalg.svd(A, compute_uv=False)[[0, -1]], [2.0, 2.0 / 7.0])


@pytest.mark.slow
def test_what_is_drawn_shrinks_to_something_readable():
    options = settings(max_examples=200, database=None, derandomize=True)
    point = find(strategies.pairs(), lambda point: point.sizes[2] == 2 and point.sizes[0] > 2, settings=options)
    assert point.block_shape == ()
    assert np.array_equal(point.G, np.eye(3, 2))
    assert np.array_equal(point.H, np.eye(2))
    v = find(strategies.tangent_vectors(point), lambda v: v.G[2, 1] > 0.3, settings=options)
    assert np.count_nonzero(np.concatenate([v.G.ravel(), v.H.ravel()])) == 1
    assert v.G[2, 1] == 0.375


def test_vectors_scale_with_the_point_and_covectors_against_it():
    point = rg.Pair([[1e6]], [[1e-6]])
    options = settings(max_examples=500, database=None, derandomize=True)
    v = find(strategies.tangent_vectors(point), lambda v: v.G != 0 and v.H != 0, settings=options)
    e = find(strategies.covectors(point), lambda e: e.G != 0 and e.H != 0, settings=options)
    assert 1e5 < abs(v.G.item()) < 1e8
    assert 1e-8 < abs(v.H.item()) < 1e-4
    assert 1e-8 < abs(e.G.item()) < 1e-4


@given(st.data())
@settings(max_examples=5, database=None, derandomize=True)
def test_shapes_of_real_heads_are_drawn_with_the_settings_of_hypothesis(data):
    point = data.draw(strategies.pairs(((12,), 65, 64, 16), condition=100.0))
    v = data.draw(strategies.tangent_vectors(point, horizontal=True))
    data.draw(strategies.covectors(point))
    A = data.draw(strategies.group_elements(64, condition=10.0))
    assert point.G.shape == (12, 65, 16)
    assert np.linalg.cond(point.G).max() < 101.0
    assert np.all(rg.InvariantMetric().at(point).is_horizontal(v))
    assert np.linalg.cond(A) < 10.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda x=x: rg.strategies.pairs(condition=x), "condition: expected a finite number >= 1, or .low, high.")
          for x in (0.5, np.inf, None, "a", (2.0,), (1.0, 2.0, 3.0))),
        *((lambda x=x: rg.strategies.pairs(scale=x), "scale: expected a finite number")
          for x in ((2.0, 1.0), (0.0, 1.0), -1.0, None, (1.0, np.inf))),
        *((lambda x=x: rg.strategies.pairs(x), "shape: expected .batch, n, m, h.")
          for x in (((), 2.5, 2, 2), ((-1,), 2, 2, 2), ("ab", 2, 2, 2))),
        *((lambda x=x: rg.strategies.group_elements(x), "h: expected an integer >= 1") for x in (0, 1.5, None)),
        (lambda: rg.strategies.pairs(((), 1, 2, 2)), "shape: expected n, m >= h >= 1"),
        (lambda: rg.strategies.pairs((3, 2)), "shape: expected .batch, n, m, h."),
        (lambda: rg.strategies.shapes(max_h=0), "max_h: expected an integer >= 1, got 0"),
        (lambda: rg.strategies.covectors(np.eye(2)), "point: expected a Pair")
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        find(make(), lambda x: True)


def test_wide_pairs_are_drawn_within_the_default_health_checks():
    @settings(database=None, max_examples=20)
    @given(rg.strategies.pairs(((), 65, 65, 16)))
    def wide(point):
        assert point.sizes == (65, 65, 16)

    wide()
