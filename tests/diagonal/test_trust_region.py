"""The trust-region subproblem against its dual bound, random points, and cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from refgeo.diagonal.trust_region import maximise_diagonal_quadratic, maximise_quadratic


def instance(i):
    """Random signature and scale; every fourth in the hard case, every eighth close to it, some with c = 0."""
    rng = np.random.default_rng([i, 11])
    n = int(rng.integers(1, 40))
    w = rng.standard_normal(n) * 10 ** rng.uniform(-3, 3)
    w = (np.abs(w), -np.abs(w), w)[i % 3]
    if i % 7 == 0:
        w[rng.integers(n)] = w.max()
    c = rng.standard_normal(n) * 10 ** rng.uniform(-6, 6)
    if i % 8 == 0:
        c[w == w.max()] = 1e-14 * np.abs(c).max()
    elif i % 4 == 0:
        c[w == w.max()] = 0.0
    if i % 11 == 0:
        c[:] = 0.0
    return c, w, 10 ** rng.uniform(-8, 3), rng


def test_value_and_dual_bound_meet():
    for i in range(2000):
        c, w, rho, _ = instance(i)
        result = maximise_diagonal_quadratic(c, w, rho)
        assert np.linalg.norm(result.x) <= rho * (1 + 1e-14)
        assert result.lower == pytest.approx(c @ result.x + 0.5 * w @ result.x**2, rel=1e-12, abs=1e-300)
        assert 0 <= result.upper - result.lower <= 1e-13 * abs(result.upper)


def test_no_random_point_beats_the_bound():
    for i in range(200):
        c, w, rho, rng = instance(i)
        result = maximise_diagonal_quadratic(c, w, rho)
        x = rng.standard_normal((2000, len(c)))
        x *= rho * (rng.random((2000, 1)) ** (1 / len(c))) / np.linalg.norm(x, axis=1, keepdims=True)
        assert np.all(x @ c + 0.5 * x**2 @ w <= result.upper * (1 + 1e-12))


def test_rotated_and_batched():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 4, 4))
    B, c, rho = A + np.swapaxes(A, -1, -2), rng.standard_normal((5, 4)), rng.uniform(0.1, 3.0, 5)
    together = maximise_quadratic(c, B, rho)
    for i in range(5):
        alone = maximise_quadratic(c[i], B[i], rho[i])
        assert np.allclose(together.x[i], alone.x, rtol=1e-12)
        # Moré & Sorensen's conditions, with the whole matrix
        stationary = (alone.multiplier * np.eye(4) - B[i]) @ alone.x
        assert np.allclose(stationary, c[i], rtol=1e-10)
        assert alone.multiplier >= np.linalg.eigvalsh(B[i])[-1] - 1e-12
    assert np.allclose(together.upper, together.lower, rtol=1e-13)


def test_zero_objective():
    result = maximise_diagonal_quadratic(np.zeros(3), np.zeros(3), 2.0)
    assert result.lower == result.upper == 0.0


@pytest.mark.parametrize("c", [[1e-170, 1.0], [1e200, 1.0], [1e-310, 1e-300], [0.0, 1e-320]])
def test_extreme_sizes_have_certificates_too(c):
    result = maximise_diagonal_quadratic(c, [1.0, 0.5], 10.0)
    assert np.isfinite(result.x).all()
    assert result.upper - result.lower <= 1e-13 * abs(result.upper)


@pytest.mark.parametrize(
    ("c", "w", "radius", "message"),
    [
        ([np.nan], [1.0], 1.0, "c: expected finite numbers"),
        ([1.0], [np.inf], 1.0, "w: expected finite numbers"),
        ([1.0], [1.0], -1.0, "radius: expected finite numbers > 0"),
        ([], [], 1.0, "c: expected at least one coefficient"),
    ],
)
def test_impossible_problems_are_named(c, w, radius, message):
    with pytest.raises(ValueError, match=message):
        maximise_diagonal_quadratic(c, w, radius)


def test_problems_of_a_batch_are_independent():
    """Of very different sizes, with hard cases among them: what is summed or compared is so block by block."""
    rng = np.random.default_rng(50)
    c = rng.standard_normal((6, 4)) * np.array([1e-8, 1.0, 1e8, 1.0, 1e-3, 0.0])[:, None]
    B = rng.standard_normal((6, 4, 4))
    B = (B + B.mT) * np.array([1.0, 1e-6, 1e6, 1.0, 1.0, 1.0])[:, None, None]
    c[3] -= (top := np.linalg.eigh(B[3])[1][:, -1]) * (top @ c[3])  # nothing along the largest eigenvector
    radius = np.array([0.1, 10.0, 1e-3, 5.0, 1.0, 2.0])
    together = maximise_quadratic(c, B, radius)
    for k in range(6):
        alone = maximise_quadratic(c[k], B[k], radius[k])
        for name in ("lower", "upper"):
            assert np.isclose(getattr(together, name)[k], getattr(alone, name), rtol=1e-12, atol=0.0)
    integers = maximise_quadratic([1, 0], [[2, 0], [0, 1]], 1)
    assert float(integers.lower) == pytest.approx(2.0)
