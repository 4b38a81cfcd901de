"""Pair: arithmetic, the group action, immutability, and errors that name the argument."""

import pickle

import numpy as np
import pytest
from helpers import SHAPES, like, random_pair
from scipy.linalg import expm

import refgeo as rg
from refgeo.geometry.groups import commuting_part


@pytest.mark.parametrize(("batch", "n", "m", "h"), SHAPES)
def test_arithmetic_acts_on_both_factors(batch, n, m, h):
    rng = np.random.default_rng(0)
    x = random_pair(rng, batch, n, m, h)
    y = like(x, rng)
    for combined, expected in (
        (x + y, lambda a, b: a + b),
        (x - y, lambda a, b: a - b),
        (-x, lambda a, b: -a),
        (x * 3, lambda a, b: 3 * a),
        (np.float64(3) * x, lambda a, b: 3 * a),
        (x / 4, lambda a, b: a / 4),
    ):
        assert np.array_equal(combined.G, expected(x.G, y.G))
        assert np.array_equal(combined.H, expected(x.H, y.H))


def test_one_number_per_block_scales_that_block():
    rng = np.random.default_rng(1)
    x = random_pair(rng, (3,), 4, 5, 2)
    scale = np.array([1.0, 2.0, -3.0])
    for scaled in (x * scale, scale * x, x / (1 / scale)):
        for i in range(3):
            assert np.allclose(scaled.G[i], scale[i] * x.G[i], rtol=1e-15)
            assert np.allclose(scaled.H[i], scale[i] * x.H[i], rtol=1e-15)


@pytest.mark.parametrize(("batch", "n", "m", "h"), SHAPES)
def test_group_action_keeps_the_product_and_composes(batch, n, m, h):
    rng = np.random.default_rng(2)
    x = random_pair(rng, batch, n, m, h)
    A, B = rng.standard_normal((h, h)), rng.standard_normal((*batch, h, h))
    assert np.allclose(x.transform(A).product, x.product, rtol=0, atol=1e-11 * np.abs(x.product).max())
    twice, once = x.transform(A).transform(B), x.transform(B @ A)
    assert np.allclose(twice.G, once.G, rtol=1e-9, atol=1e-11)
    assert np.allclose(twice.H, once.H, rtol=1e-9, atol=1e-11)
    assert np.allclose(x.transform(2 * np.eye(h)).G, x.G / 2, rtol=1e-15)
    assert np.allclose(x.transform(2 * np.eye(h)).H, x.H * 2, rtol=1e-15)


@pytest.mark.parametrize(("batch", "n", "m", "h"), SHAPES)
def test_balanced_is_on_the_orbit_with_equal_diagonal_grams(batch, n, m, h):
    rng = np.random.default_rng(3)
    x = random_pair(rng, batch, n, m, h)
    balanced, A = x.balanced()
    moved = x.transform(A)
    sigma = np.linalg.svd(x.product, compute_uv=False)[..., :h]
    expected = sigma[..., None] * np.eye(h)
    size = sigma.max()
    for factor, same in ((balanced.G, moved.G), (balanced.H, moved.H)):
        assert np.allclose(factor, same, rtol=0, atol=1e-12 * np.sqrt(size))
        assert np.allclose(np.swapaxes(factor, -1, -2) @ factor, expected, rtol=0, atol=1e-13 * size)


def test_balanced_is_the_same_for_the_whole_orbit():
    rng = np.random.default_rng(4)
    x = random_pair(rng, (3,), 6, 5, 3)
    first, second = x.balanced()[0], x.transform(100.0 * rng.standard_normal((3, 3))).balanced()[0]
    assert np.allclose(first.G, second.G, rtol=0, atol=1e-11)
    assert np.allclose(first.H, second.H, rtol=0, atol=1e-11)


def test_pairs_are_immutable_and_copied():
    G, H = np.ones((3, 2)), np.ones((4, 2))
    x = rg.Pair(G, H)
    G[0, 0] = 7.0
    assert x.G[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        x.G[0, 0] = 7.0
    with pytest.raises(AttributeError, match="immutable"):
        x.G = H
    again = pickle.loads(pickle.dumps(x))
    assert np.array_equal(again.G, x.G)
    assert not again.H.flags.writeable


def test_integers_lists_and_float32_are_taken_exactly():
    x = rg.Pair([[1, 2], [3, 4]], np.array([[5, 6], [7, 8]], dtype=np.float32))
    assert x.G.dtype == x.H.dtype == np.float64
    assert np.array_equal(x.product, [[17, 23], [39, 53]])


@pytest.mark.parametrize(
    ("G", "H", "error", "message"),
    [
        (np.ones(3), np.ones((3, 1)), ValueError, r"G: .*\(3,\)"),
        (np.ones((3, 2)), np.ones((3, 1)), ValueError, "H: expected h = 2"),
        (np.ones((2, 3, 1)), np.ones((3, 3, 1)), ValueError, r"H: expected the leading \(block\) dimensions"),
        (
            np.ones((2, 0)),
            np.ones((2, 0)),
            ValueError,
            r"G: expected at least one row and .* got the shape \(2, 0\)",
        ),
        (np.ones((2, 1)), np.ones((0, 1)), ValueError, "H: expected at least one row"),
        (
            np.ones((2, 1)) * np.nan,
            np.ones((2, 1)),
            ValueError,
            r"G: expected finite numbers, got nan at index \(0, 0\)",
        ),
        (np.ones((2, 1)), [[1.0], [np.inf]], ValueError, r"H: expected finite numbers, got inf at index \(1, 0\)"),
        (np.ones((2, 1)) * 1j, np.ones((2, 1)), TypeError, "G: .*complex"),
        (np.ones((2, 1), dtype=bool), np.ones((2, 1)), TypeError, "G: .*bool"),
        ([["a"]], [[1.0]], TypeError, "G: expected real numbers"),
        ([[1.0], [2.0, 3.0]], [[1.0]], ValueError, "G: expected a rectangular array"),
    ],
)
def test_bad_input_is_named(G, H, error, message):
    with pytest.raises(error, match=message):
        rg.Pair(G, H)


def test_large_finite_entries_are_not_mistaken_for_infinite():
    assert rg.Pair(np.full((2, 1), 1.7e308), np.ones((2, 1))).G[0, 0] == 1.7e308


@pytest.mark.parametrize(
    ("A", "message"), [(np.eye(3), r"A: expected shape \(2, 2\)"), (np.zeros((2, 2)), "A: expected an invertible")]
)
def test_bad_group_elements_are_named(A, message):
    with pytest.raises(ValueError, match=message):
        random_pair(np.random.default_rng(0), (), 3, 3, 2).transform(A)


def test_adding_other_shapes_or_types_is_refused():
    x = rg.Pair(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="shapes differ"):
        x + rg.Pair(np.ones((4, 2)), np.ones((3, 2)))
    with pytest.raises(TypeError):
        x + 1
    with pytest.raises(TypeError, match="not by another Pair"):
        x * x
    with pytest.raises(ValueError, match="scalar"):
        x * np.ones(3)


def test_metrics_that_divide_by_gl_h_need_full_rank_and_rotary_planes_do_not():
    rng = np.random.default_rng(0)
    pair = rg.Pair(rng.standard_normal((3, 6)), rng.standard_normal((5, 6)))
    for metric in (rg.InvariantMetric(), rg.MixedMetric(), rg.InterpolatedMetric(0.5), rg.EmbeddedMetric()):
        with pytest.raises(rg.RankDeficientError, match=r"h <= min\(n, m\) .* got h = 6, n = 3, m = 5"):
            metric.at(pair)
    space = rg.RotaryMetric("mix").at(pair)
    v = space.random_tangent_vector(rng)
    assert space.dim == (3 + 5 - 1) * 6
    assert space.is_horizontal(v)
    K = commuting_part(rng.standard_normal((6, 6)))
    moved = rg.RotaryMetric("mix").at(pair.transform(expm(K)))
    assert moved.norm(v.transform(expm(K))) == pytest.approx(float(space.norm(v)), rel=1e-12)
    assert abs(space.inner_product(v, space.vertical_vector(K))) < 1e-12
