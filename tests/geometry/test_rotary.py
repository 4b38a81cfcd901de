"""The quotient behind rotary positions, with a loss; `test_laws` and `test_quotient` have its geometry."""

import numpy as np
import pytest
from helpers import random_pair

import refgeo as rg
from refgeo.geometry.groups import commuting_part


def rotary_loss(rng, tokens, n, h):
    """Attention scores of queries and keys that are turned by their positions, and its gradient by hand."""
    x, target = rng.standard_normal((tokens, n)), rng.standard_normal((tokens, tokens))
    angles = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(h // 2) / (h // 2))
    c, s = np.cos(angles), np.sin(angles)

    def turned(q, s=s):
        first, second = np.split(q, 2, axis=-1)
        return np.concatenate([first * c - second * s, first * s + second * c], axis=-1)

    def value_and_grad(pair):
        q, k = turned(x @ pair.G), turned(x @ pair.H)
        scores = q @ k.T
        error = np.tanh(scores) - target
        slope = error * (1 - np.tanh(scores) ** 2)
        gradient = [x.T @ turned(slope @ k, -s), x.T @ turned(slope.T @ q, -s)]
        return 0.5 * np.sum(error**2), rg.Pair(*gradient)

    return value_and_grad


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_with_rotary_positions_has_this_symmetry_and_not_that_of_all_matrices(seed):
    rng = np.random.default_rng(seed)
    f, point = rotary_loss(rng, 5, 6, 4), random_pair(rng, (), 6, 6, 4)
    verified = rg.symmetry.verify(f, point, rg.RotaryMetric())
    assert [finding.verdict for finding in verified.findings] == ["holds"]
    assert [finding.verdict for finding in rg.symmetry.verify(f, point, rg.InvariantMetric()).findings] == [
        "does not hold"
    ]
    with pytest.raises(ValueError, match="symmetr"):
        rg.worst_case_sharpness(f, point, rg.InvariantMetric(), 0.1, n_iter=2)


@pytest.mark.parametrize("name", ["inv", "mix", "s=0.4"])
def test_sharpness_is_constant_along_orbits(name):
    rng = np.random.default_rng(5)
    f, point = rotary_loss(rng, 5, 6, 4), random_pair(rng, (), 6, 6, 4)
    values = [
        rg.worst_case_sharpness(f, point.transform(A), rg.RotaryMetric(name), 0.1).value
        for A in (np.eye(4), *(commuting_part(rng.standard_normal((4, 4))) * [1.0, x, 1.0, x] for x in (1e3, 1e-3)))
    ]
    assert np.ptp(values) <= 1e-9 * values[0]


def test_bad_points_and_metrics_are_named():
    with pytest.raises(ValueError, match="even number of columns"):
        rg.RotaryMetric().at(rg.Pair(np.ones((3, 3)), np.ones((4, 3))))
    with pytest.raises(rg.RankDeficientError):
        rg.RotaryMetric().at(rg.Pair(np.zeros((2, 2)), np.ones((2, 2))))
    with pytest.raises(TypeError, match="pairs"):
        rg.RotaryMetric(rg.ElementwiseMetric())
    space = rg.RotaryMetric().at(rg.Pair(np.ones((2, 2)), np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"K: .*a \+ bJ"):
        space.vertical_vector(np.diag([1.0, 2.0]))
    with pytest.raises(ValueError, match="v: expected the shapes"):
        space.horizontal_projection(rg.Pair(np.ones((3, 2)), np.ones((2, 2))))
    with pytest.raises(ValueError, match="b: expected the shapes"):
        space.inner_product(rg.Pair(np.ones((2, 2)), np.ones((2, 2))), rg.Pair(np.ones((2, 2)), np.ones((3, 2))))
    with pytest.raises(ValueError, match="x: expected shape"):
        space.from_coordinates(np.ones(3))
