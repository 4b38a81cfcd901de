"""The spectrum of the Riemannian Hessian, beside dense matrices, known values and the limit of sharpness."""

from __future__ import annotations

import contextlib
import itertools
from functools import lru_cache

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from helpers import sample
from scipy.sparse.linalg import ArpackNoConvergence

import refgeo as rg
from refgeo import spectrum

METRICS = {
    "inv": rg.InvariantMetric(),
    "mix": rg.MixedMetric(),
    "s=0.5": rg.InterpolatedMetric(0.5),
}


def problem(seed=0, n=4, m=3, h=2, heads=()):
    """A loss of products with everything that autograd says of it."""
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((*heads, n, h)), rng.standard_normal((*heads, m, h)))
    A, B = rng.standard_normal((7, n)), rng.standard_normal((m, 3))

    def loss(pair):
        G, H = pair
        return anp.sum(anp.tanh(A @ (G @ anp.swapaxes(H, -1, -2)) @ B) ** 2)

    value_and_grad = rg.value_and_grad(loss)
    gradient = autograd.grad(lambda factors, G, H: loss(factors))

    def product(params, v):
        def directional(factors):
            g = gradient(factors, None, None)
            return anp.sum(g[0] * v.G) + anp.sum(g[1] * v.H)

        return rg.Pair(*autograd.grad(directional)((params.G, params.H)))

    return value_and_grad, point, product


@lru_cache
def dense(seed, name):
    """The matrix of second differences of the loss along exact geodesics between orthonormal horizontal vectors."""
    value_and_grad, point, _ = problem(seed)
    space = METRICS[name].at(point)
    n = int(np.prod(space.block_shape, dtype=int)) * space.n_coordinates
    shape = (*space.block_shape, space.n_coordinates)
    projected = [
        space.to_coordinates(space.horizontal_projection(space.from_coordinates(e.reshape(shape)))).ravel()
        for e in np.eye(n)
    ]
    U, s, _ = np.linalg.svd(np.array(projected).T)
    basis = U[:, s > 0.5]
    t = 3e-3

    def along(x):
        def at(step):
            moved = space.geodesic(space.from_coordinates(x.reshape(shape)), step, "exact")
            return value_and_grad(moved)[0]

        # sixth order
        outer = [at(k * t) + at(-k * t) for k in (1, 2, 3)]
        return (1.5 * outer[0] - 0.15 * outer[1] + outer[2] / 90.0 - (49.0 / 18.0) * at(0.0)) / t**2

    k = basis.shape[1]
    matrix = np.empty((k, k))
    for i in range(k):
        matrix[i, i] = along(basis[:, i])
    for i in range(k):
        for j in range(i):
            both = along((basis[:, i] + basis[:, j]) / 2**0.5)
            matrix[i, j] = matrix[j, i] = both - 0.5 * (matrix[i, i] + matrix[j, j])
    return matrix


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(METRICS))
def test_spectra_are_those_of_second_differences_along_geodesics(name):
    for seed in range(3 if name == "inv" else 1):  # the exact geodesics of the others are integrated
        value_and_grad, point, product = problem(seed)
        expected = np.linalg.eigvalsh(dense(seed, name))
        scale = np.abs(expected).max()
        for given, rounding in ((product, 1e-12), (None, 1e-7)):  # the second by differences of gradients
            hessian = spectrum.RiemannianHessian(value_and_grad, point, METRICS[name], given)
            for which, of in (("largest", expected[::-1]), ("smallest", expected)):
                result = spectrum.eigenvalues(hessian, len(expected), which)
                assert np.allclose(result.values, of, rtol=0, atol=2e-8 * scale)
                assert np.all(result.residuals < rounding * scale)
            total = spectrum.trace(hessian, 3 * hessian.shape[0])
            assert total.value == pytest.approx(expected.sum(), abs=1e-7 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_spectra_do_not_change_along_an_orbit(name):
    """With heads, and more coordinates than are made into a matrix: Lanczos' method."""
    rng = np.random.default_rng(1)
    value_and_grad, point, product = problem(2, 8, 6, 3, heads=(2,))
    moved = point.transform(rng.standard_normal((2, 3, 3)) + 2.0 * np.eye(3))
    result = [
        spectrum.eigenvalues(spectrum.RiemannianHessian(value_and_grad, p, METRICS[name], product), 3, which).values
        for which in ("largest", "smallest")
        for p in (point, moved)
    ]
    for here, target in (result[:2], result[2:]):
        assert np.allclose(here, target, rtol=1e-9, atol=1e-9 * np.abs(result[0]).max())
    differences = spectrum.RiemannianHessian(value_and_grad, point, METRICS[name])
    assert differences.error() < 1e-7
    assert np.allclose(spectrum.eigenvalues(differences, 3).values, result[0], rtol=1e-7)


def quadratic(eigenvalues, n):
    """A loss of a unit-scaled array whose Hessian has these eigenvalues, and zeros up to n."""
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    diagonal = np.zeros(n)
    diagonal[: len(eigenvalues)] = eigenvalues
    matrix = (Q * diagonal) @ Q.T
    return (lambda w: (float(0.5 * w @ matrix @ w), matrix @ w)), matrix


def test_vertical_zeros_are_not_taken_for_eigenvalues():
    """A loss with a translation symmetry and a positive definite quotient: the smallest eigenvalue is not 0."""
    n = 80
    rng = np.random.default_rng(3)
    root = rng.standard_normal((n, n))
    P = np.eye(n) - np.ones((n, n)) / n
    matrix = P @ (root @ root.T + np.eye(n)) @ P

    def loss(w):
        return float(0.5 * w @ matrix @ w), matrix @ w

    expected = np.linalg.eigvalsh(matrix)[1:]
    for sign in (1.0, -1.0):
        hessian = spectrum.RiemannianHessian(
            lambda w, sign=sign: tuple(sign * x for x in loss(w)), rng.standard_normal(n), rg.TranslationMetric()
        )
        smallest = spectrum.eigenvalues(hessian, 2, "smallest").values
        largest = spectrum.eigenvalues(hessian, 2, "largest").values
        if sign > 0:
            assert np.allclose(smallest, expected[:2], rtol=1e-6)
            assert np.allclose(largest, expected[::-1][:2], rtol=1e-8)
        else:
            assert np.allclose(largest, -expected[:2], rtol=1e-6)
            assert np.allclose(smallest, -expected[::-1][:2], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "heads", "sign"),
    sample([(name, heads, sign) for name in METRICS for heads in ((), (4,)) for sign in (1.0, -1.0)], 3),
)
def test_many_coordinates_and_both_ends_beside_the_whole_matrix(name, heads, sign):
    """At a critical point, all eigenvalues of one sign; the vertical zeros are none of them."""
    rng = np.random.default_rng(2)
    point = rg.Pair(rng.standard_normal((*heads, 18, 2)), rng.standard_normal((*heads, 15, 2)))
    target = point.product

    def loss(pair):
        residual = pair.product - target
        grads = rg.Pair(sign * residual @ pair.H, sign * residual.mT @ pair.G)
        return 0.5 * sign * float(np.sum(residual**2)), grads

    hessian = spectrum.RiemannianHessian(loss, point, METRICS[name])
    assert hessian.shape[0] > 64
    whole = np.linalg.eigvalsh(0.5 * ((m := hessian @ np.eye(hessian.shape[0])) + m.T))
    nonzero = whole[np.abs(whole) > 1e-6 * np.abs(whole).max()]
    for which, expected in (("largest", nonzero[::-1]), ("smallest", nonzero)):
        for k in (1, 4):
            result = spectrum.eigenvalues(hessian, k, which)
            assert np.allclose(result.values, expected[:k], rtol=1e-5)
            assert np.all(result.residuals < 1e-5 * np.abs(whole).max())


def test_a_hessian_that_is_zero_and_parameters_that_are():
    hessian = spectrum.RiemannianHessian(lambda w: (3.0, np.zeros(80)), np.zeros(80), rg.TranslationMetric())
    result = spectrum.eigenvalues(hessian, 3)
    assert np.array_equal(result.values, np.zeros(3))
    assert np.array_equal(result.residuals, np.zeros(3))
    loss, _ = quadratic([3.0, 1.0], 70)
    at_zero = spectrum.RiemannianHessian(loss, np.zeros(70), rg.EuclideanMetric())
    assert np.allclose(spectrum.eigenvalues(at_zero, 2).values, [3.0, 1.0])


def hessian_with(values, seed=None):
    """½ wᵀ H w with these eigenvalues, in the coordinate axes or in random directions."""
    d = np.asarray(values, dtype=float)
    Q = np.eye(len(d)) if seed is None else np.linalg.qr(np.random.default_rng(seed).standard_normal((len(d),) * 2))[0]
    H = (Q * d) @ Q.T
    return spectrum.RiemannianHessian(
        lambda w: (float(w @ H @ w) / 2.0, H @ w), np.zeros(len(d)), rg.EuclideanMetric(), lambda w, v: H @ v
    )


SPECTRA = {
    "every value ten times": np.repeat(np.linspace(1.0, 0.01, 30), 10),
    "zeros below": np.r_[np.zeros(5), np.linspace(0.1, 1.0, 95)],
    "zeros above": -np.r_[np.zeros(5), np.linspace(0.1, 1.0, 95)],
    "a cluster": np.r_[1.0, 1.0, 1.0 - 1e-6, np.linspace(-0.5, 0.9, 90)],
    "rank one": np.r_[3.0, np.zeros(99)],
    "two values": np.repeat([2.0, -2.0], 50),
    "one value": np.full(80, -7.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("name", SPECTRA)
def test_multiple_and_zero_eigenvalues_come_as_often_as_they_are_there(name, which, k):
    ordered = np.sort(SPECTRA[name])[:: -1 if which == "largest" else 1]
    size = np.abs(ordered).max()
    for seed in (None, 1):
        hessian = hessian_with(SPECTRA[name], seed)
        for rng in range(2):
            result = spectrum.eigenvalues(hessian, k, which, rng=rng)
            assert np.allclose(result.values, ordered[:k], rtol=0, atol=1e-9 * size)
            assert np.allclose(result.vectors.T @ result.vectors, np.eye(k), rtol=0, atol=1e-10)
            assert result.residuals.max() <= 1e-7 * size


def test_a_linear_layer_has_every_eigenvalue_once_for_each_output():
    """½‖X Wᵀ − Y‖²/N has the Hessian I ⊗ XᵀX/N, and unused inputs are in its null space."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 12))
    X[:, :2] = 0.0
    Y = rng.standard_normal((200, 10))

    def loss(W):
        residual = X @ W.T - Y
        return float(np.sum(residual**2)) / 400.0, residual.T @ X / 200.0

    hessian = spectrum.RiemannianHessian(loss, rng.standard_normal((10, 12)), rg.EuclideanMetric())
    expected = np.repeat(np.linalg.eigvalsh(X.T @ X / 200.0)[::-1], 10)
    assert np.allclose(spectrum.eigenvalues(hessian, 25).values, expected[:25], rtol=0, atol=1e-7)
    assert np.allclose(spectrum.eigenvalues(hessian, 21, "smallest").values, expected[::-1][:21], rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_inputs_that_never_occur_are_in_the_null_space_of_the_quotient(name):
    rng = np.random.default_rng(1)
    point = rg.Pair(rng.standard_normal((20, 3)), rng.standard_normal((25, 3)))
    X = rng.standard_normal((100, 25))
    X[:, :4] = 0.0
    Y = X @ point.H @ point.G.T  # no residual: the Hessian is that of Gauss and Newton

    def loss(pair):
        residual = X @ pair.H @ pair.G.T - Y
        return float(np.sum(residual**2)) / 2.0, rg.Pair(residual.T @ X @ pair.H, X.T @ residual @ pair.G)

    space = METRICS[name].at(point)
    hessian = spectrum.RiemannianHessian(loss, point, METRICS[name])
    vectors = [space.from_coordinates(e) for e in np.eye(space.n_coordinates)]
    J = np.array([(X @ v.H @ point.G.T + X @ point.H @ v.G.T).ravel() for v in vectors])
    expected = np.linalg.eigvalsh(J @ J.T)  # zeros of vertical directions, which J does not see, come first
    assert np.allclose(expected[: 9 + 12], 0.0, atol=1e-8)
    assert np.allclose(spectrum.eigenvalues(hessian, 13, "smallest").values, expected[9:22], rtol=1e-5, atol=1e-5)
    assert np.allclose(spectrum.eigenvalues(hessian, 6).values, expected[::-1][:6], rtol=1e-7)


def test_eigenvalues_that_are_not_reached_are_refused():
    """A product that grows with every call, so that every new beginning finds more."""
    calls = itertools.count(1)
    hessian = spectrum.RiemannianHessian(
        lambda w: (float(w @ w) / 2.0, w), np.ones(100), rg.EuclideanMetric(), lambda w, v: next(calls) * v
    )
    with pytest.raises(ArpackNoConvergence, match="still found a better one"):
        spectrum.eigenvalues(hessian, 3)


def test_eigenvectors_of_a_zero_hessian_are_orthonormal_and_horizontal():
    point = rg.Pair(*np.random.default_rng(0).standard_normal((2, 30, 3)))
    hessian = spectrum.RiemannianHessian(lambda p: (1.0, rg.Pair(0.0 * p.G, 0.0 * p.H)), point, rg.MixedMetric())
    result = spectrum.eigenvalues(hessian, 5)
    assert not result.values.any()
    assert np.allclose(result.vectors.T @ result.vectors, np.eye(5), rtol=0, atol=1e-12)
    assert all(np.allclose(hessian.horizontal(v), v, rtol=0, atol=1e-12) for v in result.vectors.T)


@pytest.mark.parametrize("n", [1, 2, 4, 10])
def test_the_trace_of_few_coordinates_is_exact(n):
    result = spectrum.trace(hessian_with(np.arange(n) - 1.0, seed=0))
    assert result.value == pytest.approx(np.sum(np.arange(n) - 1.0), abs=1e-12)
    assert result.standard_error == 0.0


def test_the_trace_has_the_standard_error_that_it_says():
    """Hutch++ on a spectrum that decays: the truth is within two standard errors nearly always, and they are small."""
    values = 1.0 / np.arange(1, 101) ** 1.5
    loss, matrix = quadratic(values, 100)
    hessian = spectrum.RiemannianHessian(loss, np.ones(100), rg.EuclideanMetric())
    result = [spectrum.trace(hessian, 30, seed) for seed in range(60)]
    errors = np.array([(item.value - values.sum()) / item.standard_error for item in result])
    assert np.mean(np.abs(errors) < 2.5) > 0.9
    assert 0.7 < np.std(errors) < 1.6
    hutchinson = (2 * np.sum((matrix - np.diag(np.diag(matrix))) ** 2) / 30) ** 0.5
    assert np.median([item.standard_error for item in result]) < hutchinson


@pytest.mark.slow
def test_a_network_is_a_product_and_frozen_blocks_stay():
    model = rg.networks.AttentionClassifier(width=4, heads=2, hidden=4)
    params = model.init(0)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, model.vocabulary, (8, model.length))
    batch = tokens, rng.integers(0, model.classes, 8)
    block = "layer0.query_key"

    def loss(p):
        return model.value_and_grad(p, batch)

    metric = rg.ProductMetric({block: rg.InvariantMetric()})
    hessian = spectrum.RiemannianHessian(loss, params, metric)
    assert hessian.shape[0] == sum(factor.size for factor in params[block])
    # the same as that of the block alone
    alone = spectrum.RiemannianHessian(
        lambda pair: (lambda value, grads: (value, grads[block]))(*loss({**params, block: pair})),
        params[block],
        rg.InvariantMetric(),
    )
    assert np.allclose(spectrum.eigenvalues(hessian, 4).values, spectrum.eigenvalues(alone, 4).values, rtol=1e-6)
    vector = spectrum.eigenvalues(hessian).vectors[:, 0]
    assert metric.at(params).is_horizontal(hessian.tangent_vector(vector))


def test_bad_arguments_are_named():
    loss, _ = quadratic([1.0], 3)
    hessian = spectrum.RiemannianHessian(loss, np.ones(3), rg.EuclideanMetric())
    with pytest.raises(ValueError, match="k: expected at most 3, the dimension of the quotient, got 4"):
        spectrum.eigenvalues(hessian, 4)
    with pytest.raises(ValueError, match="which: "):
        spectrum.eigenvalues(hessian, 1, "both")
    with pytest.raises(ValueError, match="products: expected at least 12"):
        spectrum.trace(hessian, 5)
    with pytest.raises(ValueError, match="step: "):
        spectrum.RiemannianHessian(loss, np.ones(3), rg.EuclideanMetric(), step=0.0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rows", [3, 40])
def test_a_loss_in_float32_has_a_trace_within_its_error(seed, rows):
    """Summed exactly or by random vectors; the step follows the noise, which nobody has to say."""
    rng = np.random.default_rng(seed)
    X, y, w = rng.standard_normal((50, 2 * rows)), rng.standard_normal(50), rng.standard_normal(2 * rows) / rows**0.5

    def loss(w, dtype):
        data, z = X.astype(dtype), np.tanh(X.astype(dtype) @ w.astype(dtype))
        r = z - y.astype(dtype)
        return float(np.mean(r**2) + dtype(3.0)), (2 * data.T @ (r * (1 - z**2)) / dtype(50)).astype(np.float64)

    whole = spectrum.RiemannianHessian(lambda w: loss(w, np.float64), w, rg.EuclideanMetric())
    exact = np.trace(whole @ np.eye(len(w)))
    single = spectrum.RiemannianHessian(lambda w: loss(w, np.float32), w, rg.EuclideanMetric())
    result = spectrum.trace(single, 30)
    assert 0.0 < result.standard_error < (2e-3 if rows == 3 else 10.0)
    assert abs(result.value - exact) < 4.0 * result.standard_error
    x = rng.standard_normal(len(w))
    assert np.linalg.norm(single @ x - whole @ x) < 4.0 * single.error() * np.linalg.norm(whole @ x)
    assert single.step > 100.0 * whole.step
    values = [spectrum.eigenvalues(item, 2).values for item in (single, whole)]
    assert values[0] == pytest.approx(values[1], abs=1e-2 * abs(values[1][0]))


@pytest.mark.parametrize("frequency", [1.0, 5.0, 10.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_residuals_contain_what_differences_do_to_sharp_directions(frequency, dtype):
    """sin(ωw) of a few directions: along a random one its fourth derivative is hardly seen."""
    rng = np.random.default_rng(0)
    A = np.vstack([frequency * rng.standard_normal((2, 20)), 0.1 * rng.standard_normal((30, 20))])

    def loss(w):
        z = A.astype(dtype) @ w.astype(dtype)
        return float(np.sum(np.sin(z))), (A.T.astype(dtype) @ np.cos(z)).astype(np.float64)

    w = 0.3 * rng.standard_normal(20)
    exact = A.T @ (-np.sin(A @ w)[:, None] * A)
    hessian = spectrum.RiemannianHessian(loss, w, rg.EuclideanMetric())
    values, true = spectrum.eigenvalues(hessian, 2), np.linalg.eigvalsh(exact)
    for value, residual in zip(values.values, values.residuals, strict=True):
        assert np.abs(true - value).min() <= residual
    for products in (30, 60):
        result = spectrum.trace(hessian, products)
        assert abs(result.value - np.trace(exact)) < 4.0 * result.standard_error


@pytest.mark.parametrize("kind", ["right", "relu", "float32", "twice", "one row", "gradient"])
def test_a_wrong_hessian_vector_product_is_refused(kind):
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((40, 8)), rng.standard_normal(8)

    def value_and_grad(p):
        z = A @ p
        if kind == "relu":
            return 0.5 * float(np.mean(np.maximum(z, 0.0) ** 2)), A.T @ np.maximum(z, 0.0) / 40
        gradient = A.T @ z**3 / 40
        return 0.25 * float(np.mean(z**4)), gradient.astype(np.float32).astype(float) if kind == "float32" else gradient

    def product(p, v):
        curvature = (A @ p > 0.0) if kind == "relu" else 3.0 * (A @ p) ** 2
        result = A.T @ (curvature * (A @ v)) / 40
        if kind == "one row":
            return result * np.where(np.arange(8) == 3, 1.1, 1.0)
        return {"twice": 2.0 * result, "gradient": value_and_grad(p)[1]}.get(kind, result)

    hessian = rg.spectrum.RiemannianHessian(value_and_grad, w, rg.EuclideanMetric(), product)
    if kind in ("right", "relu", "float32"):
        assert np.allclose(hessian @ np.ones(8), product(w, np.ones(8)))
    else:
        with pytest.raises(ValueError, match="hessian_vector_product: it is not what differences of the gradient give"):
            hessian @ np.ones(8)
        unverified = rg.spectrum.RiemannianHessian(value_and_grad, w, rg.EuclideanMetric(), product, verify=False)
        assert np.isfinite(unverified @ np.ones(8)).all()


def test_a_wrong_block_of_a_hessian_vector_product_is_seen_before_the_first_product():
    """Eigenvalues of a small matrix begin with basis vectors, of which the first ones do not move the second block."""
    D = np.array([100.0, 200.0, 300.0, 400.0])
    params = {"a": np.random.default_rng(0).standard_normal(60), "b": np.ones(4)}

    def loss(p):
        return 0.5 * float(p["a"] @ p["a"] + p["b"] @ (D * p["b"])), {"a": p["a"], "b": D * p["b"]}

    metric = rg.ProductMetric({"a": rg.EuclideanMetric(), "b": rg.EuclideanMetric()})
    for factor in (1.0, 1.03):
        hessian = spectrum.RiemannianHessian(
            loss, params, metric, lambda p, v, c=factor: {"a": v["a"], "b": c * D * v["b"]}
        )
        with pytest.raises(ValueError, match="relative to its blocks") if factor > 1.0 else contextlib.nullcontext():
            assert spectrum.eigenvalues(hessian).values[0] == pytest.approx(400.0)
