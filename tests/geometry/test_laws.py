"""The laws of a geometry, for all of them: a new one is one line in `CASES`.

Each law is told by the metric itself, by differences, or by a loss that has the symmetry; none by a formula for Γ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from helpers import relative_error

import refgeo as rg
from refgeo.geometry.arrays import WeightedMetric
from refgeo.geometry.groups import commuting_part
from validation.examples.row_scaling import RowScalingMetric

ARRAY = np.array([[1.5, -0.7, 2.0], [-3.0, 0.4, 1.1]])


@dataclass
class Case:
    """A geometry at a point.

    `loss` has its symmetry, `act` moves points and vectors by a random element of the group, of a size,
    `verticals` are velocities of it; `relaxed` metrics are not invariant, `open` ones have no exact geodesics.
    """

    metric: rg.TangentSpace
    point: Any
    loss: Callable[[Any], Any]
    act: Callable[[Any, float], tuple[Callable[[Any], Any], Callable[[Any], Any]]] | None = None
    verticals: Callable[[Any], list[Any]] = lambda rng: []
    relaxed: bool = False
    open: bool = False

    @property
    def space(self):
        return self.metric.at(self.point)


def pairs(metric, batch, n, m, h, loss=None, action=None, **more):
    """A metric on pairs far from a loss of rank."""
    rng = np.random.default_rng(0)
    point = rg.Pair(*(rng.standard_normal((*batch, rows, h)) + 2.0 * np.eye(rows, h) for rows in (n, m)))
    Y, W = rng.standard_normal((2, *batch, n, m))

    def of_product(p):
        X = anp.matmul(p.G, anp.swapaxes(p.H, -1, -2))
        return anp.sum(anp.sin(W * X) + 0.1 * (X - Y) ** 2)

    def element(rng, size):
        A = rng.standard_normal((h, h))
        A = size * A if action is None else action(A) * np.tile(size ** rng.uniform(0.0, 1.0, h // 2), 2)
        return (lambda p: p.transform(A)), (lambda v: v.transform(A))

    def verticals(rng):
        generators = [
            rng.standard_normal((h, h)) if action is None else action(rng.standard_normal((h, h))) for _ in "ab"
        ]
        written = [rg.Pair(point.G @ K, -(point.H @ K.T)) for K in generators]
        for K, v in zip(generators, written, strict=True) if hasattr(metric.at(point), "vertical_vector") else ():
            assert relative_error(metric.at(point).vertical_vector(K), v) < 1e-14
        return written

    return Case(metric, point, loss or of_product, element, verticals, **more)


def planes(metric, batch, n, m, h):
    """Behind rotary positions a loss sees z w* of each plane."""
    W = np.random.default_rng(1).standard_normal((2, *batch, n, m))

    def loss(p):
        half = h // 2
        total = 0.0
        for i in range(half):
            (a, b), (c, d) = ((F[..., i, None], F[..., i + half, None]) for F in p)
            c, d = anp.swapaxes(c, -1, -2), anp.swapaxes(d, -1, -2)
            total = total + anp.sum(anp.sin(W[0] * (a * c + b * d)) + anp.cos(W[1] * (b * c - a * d)))
        return total

    return pairs(metric, batch, n, m, h, loss, commuting_part)


def arrays(metric, loss, act=None, vertical=None, **more):
    verticals = (lambda rng: [vertical]) if vertical is not None else lambda rng: []
    return Case(metric, ARRAY, loss, act, verticals, **more)


def sines(w):
    return anp.sum(anp.sin(np.arange(1.0, 7.0).reshape(2, 3) * w))


def shift(rng, size):
    return (lambda w: w + 1.7 * size), (lambda v: v)


def stretch(rng, size):
    return (lambda w: 2.5 * size * w), (lambda v: 2.5 * size * v)


def of_blocks(loss):
    return lambda params: sum(loss[name](params[name]) for name in loss)


def network():
    mlp = np.random.default_rng(2).standard_normal((4, 3))
    cases = {
        "heads": pairs(rg.MixedMetric(), (3,), 6, 5, 2),
        "mlp": Case(rg.ElementwiseMetric(), mlp, lambda w: anp.sum(anp.sin(w))),
        "bias": Case(rg.TranslationMetric(), np.arange(4.0), lambda w: anp.sum(anp.sin(w - anp.mean(w)))),
    }
    metric = rg.ProductMetric({name: case.metric for name, case in cases.items()})
    loss = {name: case.loss for name, case in cases.items()}
    return Case(metric, {name: case.point for name, case in cases.items()}, of_blocks(loss))


UNIT = {"translation": np.ones_like(ARRAY), "rows": ARRAY * [[2.0], [-3.0]]}
CASES = {
    **{
        f"{metric.name} {shape}": pairs(metric, *shape)
        for metric in (rg.InvariantMetric(), rg.MixedMetric(), rg.InterpolatedMetric(0.4))
        for shape in (((), 5, 4, 2), ((2,), 3, 3, 3))
    },
    "inv neurons": pairs(rg.InvariantMetric(), (4,), 3, 2, 1),
    "mix neurons": pairs(rg.MixedMetric(), (4,), 3, 2, 1),
    "inv relaxed": pairs(rg.InvariantMetric(0.3), (), 5, 4, 2, relaxed=True),
    "mix relaxed": pairs(rg.MixedMetric(0.3), (), 5, 4, 2, relaxed=True),
    "s=0.4 relaxed": pairs(rg.InterpolatedMetric(0.4, 0.3), (), 4, 3, 2, relaxed=True),
    "embedded": pairs(rg.EmbeddedMetric(), (2,), 6, 5, 2, open=True),
    "rotary inv": planes(rg.RotaryMetric("inv"), (2,), 5, 6, 4),
    "rotary mix": planes(rg.RotaryMetric("mix"), (), 2, 2, 2),
    "rotary s=0.4": planes(rg.RotaryMetric("s=0.4"), (), 4, 5, 4),
    "elementwise": arrays(rg.ElementwiseMetric(), sines),
    "euclidean": arrays(rg.EuclideanMetric(), sines),
    "weighted": arrays(WeightedMetric([[1.0, 2.0, 3.0], [0.5, 1.0, 2.0]]), sines),
    "constant": arrays(rg.ElementwiseMetric(curved=False), sines),
    "translation": arrays(rg.TranslationMetric(), lambda w: sines(w - anp.mean(w)), shift, UNIT["translation"]),
    "scaling": arrays(rg.ScalingMetric(), lambda w: sines(w / anp.sqrt(anp.sum(w**2))), stretch, ARRAY),
    "rows": arrays(
        RowScalingMetric(), lambda w: sines(w / anp.sqrt(anp.sum(w**2, axis=1, keepdims=True))), stretch,
        UNIT["rows"],
    ),
    "product": network(),
}  # fmt: skip
everything = pytest.mark.parametrize("name", CASES)


def where(holds):
    """The geometries of which a law holds."""
    return pytest.mark.parametrize("name", [name for name, case in CASES.items() if holds(name, case)])


closed = where(lambda name, case: not case.open)


def flat(value):
    if isinstance(value, dict):
        return np.concatenate([flat(part) for part in value.values()])
    return np.concatenate([np.ravel(F) for F in value]) if isinstance(value, rg.Pair) else np.ravel(value)


def like(template, values):
    """The inverse of `flat`."""
    if isinstance(template, dict):
        parts = {}
        for name, part in template.items():
            size = flat(part).size
            parts[name], values = like(part, values[:size]), values[size:]
        return type(template)(parts)
    if isinstance(template, rg.Pair):
        cut = template.G.size
        return rg.Pair(values[:cut].reshape(template.G.shape), values[cut:].reshape(template.H.shape))
    return values.reshape(template.shape)


def vectors(case, count, seed=1):
    rng = np.random.default_rng(seed)
    point = case.space.point
    return [like(point, rng.standard_normal(flat(point).size)) for _ in range(count)]


def total(numbers):
    return float(np.sum(numbers))


def derivative(f, step=1e-3):
    """Five points; the error is O(step⁴)."""
    return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step)


def second_derivative(f, step):
    ahead, behind = f(step) + f(-step), f(2 * step) + f(-2 * step)
    return (16 * ahead - behind - 30 * f(0.0)) / (12 * step**2)


def loss_and_gradient(case):
    f = rg.value_and_grad(case.loss)
    return (lambda p: f(p)[0]), (lambda p: f(p)[1])


def length(space, v):
    return float(np.sqrt(total(space.inner_product(v, v))))


def horizontal(case, seed=1, size=0.3):
    """A horizontal vector, of a length beside which nothing ends."""
    space = case.space
    v = space.random_tangent_vector(np.random.default_rng(seed))
    return v * (size * min(1.0, length(space, space.point)) / length(space, v))


@everything
def test_coordinates_are_an_isometry(name):
    case = CASES[name]
    space, (a, b) = case.space, vectors(case, 2)
    x, z = space.to_coordinates(a), space.to_coordinates(b)
    assert x.shape == (*space.block_shape, space.n_coordinates)
    size = length(space, a) * length(space, b)
    assert np.sum(x * z) == pytest.approx(total(space.inner_product(a, b)), abs=1e-12 * size)
    np.testing.assert_allclose(flat(space.from_coordinates(x)), flat(a), rtol=1e-11, atol=1e-11)
    assert total(space.inner_product(a, a)) > 0.0
    assert total(space.inner_product(b, a)) == pytest.approx(total(space.inner_product(a, b)), abs=1e-12 * size)


@everything
def test_the_projection_is_orthogonal_and_its_rank_is_the_dimension(name):
    case = CASES[name]
    space, (a, b) = case.space, vectors(case, 2)
    part = space.horizontal_projection(a)
    np.testing.assert_allclose(flat(space.horizontal_projection(part)), flat(part), atol=1e-11)
    np.testing.assert_allclose(flat(part) + flat(space.vertical_projection(a)), flat(a), atol=1e-11)
    assert np.all(space.is_horizontal(part))
    both = total(space.inner_product(part, b)), total(space.inner_product(a, space.horizontal_projection(b)))
    assert both[0] == pytest.approx(both[1], abs=1e-11 * length(space, a) * length(space, b))
    for vertical in case.verticals(np.random.default_rng(3)):
        assert total(space.inner_product(part, vertical)) == pytest.approx(0.0, abs=1e-10)
        assert length(space, space.horizontal_projection(vertical)) <= 1e-11 * length(space, vertical)
        assert not np.any(space.is_horizontal(vertical))
    columns = [flat(space.horizontal_projection(like(space.point, e))) for e in np.eye(flat(space.point).size)]
    rank = np.linalg.matrix_rank(np.array(columns), tol=1e-8)
    assert rank == space.dim * (1 if isinstance(space.point, dict) else int(np.prod(space.block_shape)))


# one has no metric of its own, one has Γ up to a vertical vector, one has that of its blocks
@where(lambda name, case: name not in ("constant", "embedded", "product"))
def test_gamma_is_that_of_the_levi_civita_connection(name):
    """Koszul: 2⟨Γ(a, b), c⟩ = D⟨b, c⟩[a] + D⟨a, c⟩[b] − D⟨a, b⟩[c], by differences of the metric."""
    case = CASES[name]
    space, (a, b, c) = case.space, vectors(case, 3)

    def change(along, u, v):
        return derivative(lambda t: total(case.metric.at(space.point + t * along).inner_product(u, v)), 3e-4)

    terms = [change(a, b, c), change(b, a, c), -change(c, a, b)]
    gamma = space.christoffel(a, b)
    assert 2 * total(space.inner_product(gamma, c)) == pytest.approx(sum(terms), abs=1e-8 * max(1.0, *map(abs, terms)))
    np.testing.assert_allclose(flat(space.christoffel(b, a)), flat(gamma), atol=1e-12 * np.abs(flat(gamma)).max())
    np.testing.assert_allclose(flat(space.christoffel(a)), flat(space.christoffel(a, a)), rtol=1e-12, atol=1e-12)


@everything
def test_gamma_has_its_adjoint(name):
    case = CASES[name]
    space, (a, b, e) = case.space, vectors(case, 3)
    item = flat(e) @ flat(space.christoffel(a, b))
    second = flat(space.christoffel_adjoint(a, e)) @ flat(b)
    size = np.linalg.norm(flat(e)) * np.linalg.norm(flat(space.christoffel(a, b)))
    assert item == pytest.approx(second, abs=1e-11 * max(size, abs(item)))


@everything
def test_the_gradient_represents_the_derivative_and_is_horizontal_for_an_invariant_loss(name):
    case = CASES[name]
    (value, gradient), space, (v,) = loss_and_gradient(case), case.space, vectors(case, 1)
    riemannian = space.riemannian_gradient(gradient(space.point))
    along = v if name != "embedded" else space.horizontal_projection(v)  # whose gradient is the horizontal one
    slope = derivative(lambda t: value(space.point + t * along))
    assert total(space.inner_product(riemannian, along)) == pytest.approx(slope, rel=1e-7, abs=1e-8)
    if not case.relaxed:
        assert np.all(space.is_horizontal(riemannian, 1e-9))


@everything
def test_the_hessian_is_the_second_derivative_along_geodesics(name):
    case = CASES[name]
    (value, gradient), space, v, w = loss_and_gradient(case), case.space, horizontal(case, 1), horizontal(case, 2)

    def hessian(u):
        return space.riemannian_hessian(
            gradient(space.point),
            like(space.point, derivative(lambda t: flat(gradient(space.point + t * u)))),
            u,
        )

    size = length(space, hessian(v)) * length(space, w)
    symmetric = total(space.inner_product(hessian(v), w)), total(space.inner_product(v, hessian(w)))
    assert symmetric[0] == pytest.approx(symmetric[1], abs=1e-7 * size)
    assert np.all(space.is_horizontal(hessian(v), 1e-8))
    second = second_derivative(lambda t: value(space.geodesic(v, t)), 1e-2)
    assert total(space.inner_product(v, hessian(v))) == pytest.approx(second, rel=1e-4, abs=1e-6)


@where(lambda name, case: case.act and not case.relaxed)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
def test_everything_is_equivariant(name, size):
    case = CASES[name]
    (_, gradient), space, (a, b) = loss_and_gradient(case), case.space, vectors(case, 2)
    move, carry = case.act(np.random.default_rng(4), size)
    target = case.metric.at(move(space.point))
    results = [
        (target.horizontal_projection(carry(a)), carry(space.horizontal_projection(a))),
        (target.riemannian_gradient(gradient(target.point)), carry(space.riemannian_gradient(gradient(space.point)))),
        (target.christoffel(carry(a), carry(b)), carry(space.christoffel(a, b))),
        (target.geodesic(0.1 * carry(a)) - target.point, carry(space.geodesic(0.1 * a) - space.point))
        if name != "translation" else (a, a),
    ]  # fmt: skip
    if not case.open:
        v = horizontal(case)
        results.append((target.geodesic(carry(v), 0.7, "exact"), move(space.geodesic(v, 0.7, "exact"))))
    for result, expected in results:
        assert length(target, result - expected) <= 1e-9 * (length(target, expected) + length(target, carry(a)))
    size = total(space.inner_product(a, a))
    assert total(target.inner_product(carry(a), carry(a))) == pytest.approx(size, rel=1e-10)
    np.testing.assert_allclose(target.to_coordinates(carry(a)), space.to_coordinates(a), atol=1e-9 * np.sqrt(size))
    drawn = (item.to_coordinates(item.random_tangent_vector(5)) for item in (space, target))
    np.testing.assert_allclose(*drawn, atol=1e-9)


@pytest.mark.slow
@where(lambda name, case: not case.open and name != "constant")  # which is the metric at the base point alone
def test_exact_geodesics_solve_the_geodesic_equation(name):
    """γ'' = −Γ(γ', γ') by differences, at constant speed; horizontal stays horizontal."""
    case = CASES[name]
    space, v = case.space, horizontal(case)
    for t in (-0.6, 0.8):
        target = case.metric.at(space.geodesic(v, t, "exact"))
        velocity = like(space.point, derivative(lambda s, t=t: flat(space.geodesic(v, t + s, "exact")), 1e-2))
        acceleration = second_derivative(lambda s, t=t: flat(space.geodesic(v, t + s, "exact")), 1e-2)
        scale = 1.0 + np.abs(acceleration).max()
        np.testing.assert_allclose(acceleration, -flat(target.christoffel(velocity)), atol=1e-6 * scale)
        assert length(target, velocity) == pytest.approx(length(space, v), rel=1e-7)
        if not case.relaxed:
            assert np.all(target.is_horizontal(velocity, 1e-5))
    np.testing.assert_allclose(flat(space.geodesic(v, 0.0, "exact")), flat(space.point), rtol=1e-13, atol=1e-13)


@closed
def test_orders_are_taylor_polynomials(name):
    case = CASES[name]
    space, v = case.space, horizontal(case)
    for order, power in ((1, 2), (2, 3)):
        errors = [
            np.linalg.norm(flat(space.geodesic(v, t, order)) - flat(space.geodesic(v, t, "exact")))
            for t in (0.08, 0.04)
        ]
        if errors[0] > 1e-12:  # a straight geodesic has no error at all
            assert np.log2(errors[0] / errors[1]) == pytest.approx(power, abs=0.2)
        else:
            assert name in ("euclidean", "weighted", "translation", "constant")
    step = 1e-6
    slope = (flat(space.geodesic(v, step, 1)) - flat(space.geodesic(v, -step, 1))) / (2 * step)
    np.testing.assert_allclose(slope, flat(v), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order"),
    [(name, order) for name, case in CASES.items() for order in (1, 2, "exact") if order != "exact" or not case.open],
)
def test_points_and_gradients_in_coordinates(name, order):
    """``point_at`` is the geodesic, and ``gradient_at`` the horizontal part of its derivative, of any loss."""
    case = CASES[name]
    space, rng = case.space, np.random.default_rng(1)
    weights = rng.standard_normal(flat(space.point).size)
    x, z = space.to_coordinates(horizontal(case, 2)), space.to_coordinates(horizontal(case, 3, 1.0))

    def along(t):
        return space.point_at(x + t * z, order)

    np.testing.assert_allclose(
        flat(along(0.0)), flat(space.geodesic(space.from_coordinates(x), 1.0, order)), rtol=1e-9, atol=1e-11
    )
    if order != "exact":
        assert np.array_equal(flat(space.point_at(0 * x, order)), flat(space.point))
    gradient = space.gradient_at(x, like(space.point, weights * np.cos(flat(along(0.0)))), order)
    slope = derivative(lambda t: float(weights @ np.sin(flat(along(t)))))
    # "exact" of a general metric differentiates two integrations by five points
    assert np.sum(gradient * z) == pytest.approx(slope, rel=1e-5 if order == "exact" else 1e-7, abs=1e-8)
    assert np.all(space.is_horizontal(space.from_coordinates(gradient), 1e-8))


ANY_VELOCITY = [name for name in CASES if name.startswith("inv (") or name in (
    "inv neurons", "elementwise", "euclidean", "weighted", "translation", "scaling",
)]  # fmt: skip


@pytest.mark.parametrize("name", ANY_VELOCITY)
@pytest.mark.parametrize("length", [0.0, 1e-6, 0.028, 0.04, 1.5, 8.0])
def test_gradients_through_exact_geodesics_are_their_derivatives_whatever_the_velocity(name, length):
    """Horizontal or not, short (where closed forms are series) or long."""
    space, rng = CASES[name].space, np.random.default_rng(5)
    v, w = (space.random_tangent_vector(rng, horizontal=False) for _ in range(2))
    (e,) = vectors(CASES[name], 1)
    ends = [flat(space.geodesic(length * v + s * w, 1.0, "exact")) for s in 1e-3 * np.array([1.0, -1.0, 2.0, -2.0])]
    moved = (8.0 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / 12e-3
    result = total(space.inner_product(space.geodesic_gradient(length * v, e, "exact"), w))
    assert result == pytest.approx(flat(e) @ moved, abs=2e-10 * (np.abs(flat(e)) @ np.abs(moved)))


@everything
def test_random_vectors_are_horizontal_of_unit_length_and_reproducible(name):
    space = CASES[name].space
    drawn = space.random_tangent_vector(7)
    np.testing.assert_allclose(space.norm(drawn), 1.0, rtol=1e-12)
    assert np.all(space.is_horizontal(drawn, 1e-12))
    assert np.array_equal(flat(drawn), flat(space.random_tangent_vector(7)))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case.point, rg.Pair)])
def test_a_batch_is_its_blocks(name):
    case = CASES[name]
    space, (a, b) = case.space, vectors(case, 2)
    for i in np.ndindex(space.block_shape):
        item = case.metric.at(rg.Pair(case.point.G[i], case.point.H[i]))
        x, y = (rg.Pair(v.G[i], v.H[i]) for v in (a, b))
        for batched, single in (
            (space.horizontal_projection(a), item.horizontal_projection(x)),
            (space.christoffel(a, b), item.christoffel(x, y)),
            (space.christoffel_adjoint(a, b), item.christoffel_adjoint(x, y)),
            (space.riemannian_gradient(a), item.riemannian_gradient(x)),
            (space.geodesic(a, 0.2), item.geodesic(x, 0.2)),
        ):
            expected = flat(single)
            result = flat(rg.Pair(batched.G[i], batched.H[i]))
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-11 * np.abs(expected).max())
