"""The quotient behind rotary positions: far along its orbits, and with a loss.

`test_laws` and `test_quotient` hold it against its laws and its definition at one point; equivariance carries both on.
"""

import numpy as np
import pytest
from helpers import like, random_pair, relative_error

import refgeo as rg
from refgeo.geometry.groups import commuting_part

SHAPES = [((), 2, 2, 2), ((), 6, 4, 2), ((3,), 5, 7, 4), ((2, 2), 6, 6, 6)]
NAMES = ["inv", "mix", "s=0.4"]
SIZES = [1e-6, 1.0, 1e6]
shapes = pytest.mark.parametrize(("batch", "n", "m", "h"), SHAPES)
names = pytest.mark.parametrize("name", NAMES)
sizes = pytest.mark.parametrize("size", SIZES)


def group_element(rng, h, size):
    """A + bJ in each plane, of very different sizes."""
    a, b = rng.standard_normal((2, h // 2))
    scale = size ** rng.uniform(0.0, 1.0, h // 2)
    A = np.zeros((h, h))
    i = np.arange(h // 2)
    A[i, i] = A[i + h // 2, i + h // 2] = scale * a
    A[i, i + h // 2], A[i + h // 2, i] = -scale * b, scale * b
    return A


@names
@shapes
@sizes
def test_everything_is_equivariant(name, batch, n, m, h, size):
    rng = np.random.default_rng(0)
    point, A = random_pair(rng, batch, n, m, h), group_element(rng, h, size)
    space = rg.RotaryMetric(name).at(point)
    there = rg.RotaryMetric(name).at(point.transform(A))
    a, b, e = like(point, rng), like(point, rng), like(point, rng)
    moved_e = rg.Pair(e.G @ A.T, e.H @ np.linalg.inv(A))
    for result, expected in [
        (there.horizontal_projection(a.transform(A)), space.horizontal_projection(a)),
        (there.christoffel(a.transform(A), b.transform(A)), space.christoffel(a, b)),
        (there.riemannian_gradient(moved_e), space.riemannian_gradient(e)),
        (there.geodesic(0.1 * a.transform(A)), space.geodesic(0.1 * a)),
    ]:
        expected = expected.transform(A)
        assert np.all(there.norm(result - expected) <= 1e-12 * (there.norm(expected) + there.norm(there.point)))
    assert np.allclose(there.to_coordinates(a.transform(A)), space.to_coordinates(a), rtol=0, atol=1e-11)
    x = space.to_coordinates(space.random_tangent_vector(1))
    assert np.allclose(there.gradient_at(x, moved_e), space.gradient_at(x, e), rtol=1e-11, atol=1e-11)


@names
def test_vertical_vectors_are_velocities_of_the_group(name):
    rng = np.random.default_rng(0)
    point, K, step = random_pair(rng, (3,), 5, 7, 4), commuting_part(rng.standard_normal((4, 4))), 1e-6
    space = rg.RotaryMetric(name).at(point)
    vertical = space.vertical_vector(K)
    ahead, behind = (point.transform(np.eye(4) - sign * step * K) for sign in (1, -1))
    assert relative_error((ahead - behind) / (2 * step), vertical) < 1e-8
    assert np.all(space.norm(space.horizontal_projection(vertical)) <= 1e-13 * space.norm(vertical))


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
    assert [one.verdict for one in verified.findings] == ["holds"]
    assert [one.verdict for one in rg.symmetry.verify(f, point, rg.InvariantMetric()).findings] == ["does not hold"]
    with pytest.raises(ValueError, match="symmetr"):
        rg.worst_case_sharpness(f, point, rg.InvariantMetric(), 0.1, n_iter=2)


@names
def test_sharpness_is_constant_along_orbits(name):
    rng = np.random.default_rng(5)
    f, point = rotary_loss(rng, 5, 6, 4), random_pair(rng, (), 6, 6, 4)
    values = [
        rg.worst_case_sharpness(f, point.transform(group_element(rng, 4, size)), rg.RotaryMetric(name), 0.1).value
        for size in (1.0, 1e3, 1e-3)
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
