"""The metrics on plain arrays, their product and their ablations, each law by differences of the metric itself."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import conditioned_factor, documented

import refgeo as rg

RNG = np.random.default_rng(0)
POINT = np.array([[1.5, -0.7, 2.0], [-3.0, 0.4, 1.1]])
OWN = documented("symmetries.md", "row_scaling.py")
METRICS = {
    "elementwise": rg.ElementwiseMetric(),
    "euclidean": rg.EuclideanMetric(),
    "translation": rg.TranslationMetric(),
    "scaling": rg.ScalingMetric(),
    "constant": rg.ConstantMetric(rg.ElementwiseMetric()),
    "rows": OWN["RowScalingMetric"](),
}
CURVED = ("elementwise", "euclidean", "translation", "scaling", "rows")
# losses with the metric's symmetry, and their gradients
LOSSES = {
    "elementwise": lambda w: (np.sum(np.sin(w)), np.cos(w)),
    "euclidean": lambda w: (np.sum(np.sin(w)), np.cos(w)),
    "constant": lambda w: (np.sum(np.sin(w)), np.cos(w)),
    "translation": lambda w: (np.sum(np.sin(w - w.mean())), np.cos(w - w.mean()) - np.cos(w - w.mean()).mean()),
    "scaling": lambda w: _scale_invariant(w),
    "rows": lambda w: _of_rows(w),
}
everything = pytest.mark.parametrize("name", METRICS)
curved = pytest.mark.parametrize("name", CURVED)


def _scale_invariant(w):
    radius = np.linalg.norm(w)
    u = w / radius
    e = np.cos(u) / radius
    return np.sum(np.sin(u)), e - np.sum(e * u) * u


def _of_rows(w):
    losses, gradients = zip(*map(_scale_invariant, w), strict=True)
    return sum(losses), np.array(gradients)


def vector(seed):
    return np.random.default_rng(seed).standard_normal(POINT.shape)


def derivative(f, step=1e-3):
    """Five points; the error is O(step⁴)."""
    return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step)


def tensor(metric, point, a, b):
    return float(metric.at(point).inner_product(a, b))


@everything
def test_inner_product_is_symmetric_bilinear_and_positive(name):
    space, a, b, c = METRICS[name].at(POINT), vector(1), vector(2), vector(3)
    assert np.isclose(space.inner_product(a, b), space.inner_product(b, a), rtol=1e-14)
    together = space.inner_product(2 * a - 3 * c, b)
    assert np.isclose(together, 2 * space.inner_product(a, b) - 3 * space.inner_product(c, b), rtol=1e-12)
    assert space.inner_product(a, a) > 0


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("elementwise", lambda a, b: np.sum(a * b / POINT**2)),
        ("euclidean", lambda a, b: np.sum(a * b)),
        ("scaling", lambda a, b: np.sum(a * b) / np.sum(POINT**2)),
    ],
)
def test_inner_product_is_the_one_in_the_paper(name, formula):
    a, b = vector(1), vector(2)
    assert np.isclose(METRICS[name].at(POINT).inner_product(a, b), formula(a, b), rtol=1e-14)


@curved
def test_christoffel_is_that_of_the_levi_civita_connection(name):
    """Koszul: 2⟨Γ(a, b), c⟩ = D⟨b, c⟩[a] + D⟨a, c⟩[b] − D⟨a, b⟩[c] for constant a, b, c."""
    metric, a, b, c = METRICS[name], vector(1), vector(2), vector(3)
    space = metric.at(POINT)

    def change(u, v, along):
        return derivative(lambda t: tensor(metric, POINT + t * along, u, v))

    koszul = change(b, c, a) + change(a, c, b) - change(a, b, c)
    assert np.isclose(2 * space.inner_product(space.christoffel(a, b), c), koszul, rtol=1e-8, atol=1e-10)
    assert np.allclose(space.christoffel(a, b), space.christoffel(b, a), rtol=1e-14)
    assert np.array_equal(space.christoffel(a), space.christoffel(a, a))


@everything
def test_christoffel_adjoint(name):
    space, a, b, e = METRICS[name].at(POINT), vector(1), vector(2), vector(3)
    assert np.isclose(np.sum(space.christoffel_adjoint(a, e) * b), np.sum(e * space.christoffel(a, b)), rtol=1e-12)


@curved
def test_exact_geodesics_solve_the_geodesic_equation_at_constant_speed(name):
    metric, v = METRICS[name], 0.3 * vector(1)
    space = metric.at(POINT)
    for t in (-0.8, 0.0, 0.9):
        at = metric.at(space.geodesic(v, t, "exact"))
        velocity = derivative(lambda s, t=t: space.geodesic(v, t + s, "exact"))
        path = [space.geodesic(v, t + s, "exact") for s in (-2e-3, -1e-3, 0.0, 1e-3, 2e-3)]
        acceleration = (-path[0] + 16 * path[1] - 30 * path[2] + 16 * path[3] - path[4]) / 12e-6
        assert np.allclose(acceleration, -at.christoffel(velocity), atol=1e-7)
        assert np.isclose(at.norm(velocity), space.norm(v), rtol=1e-9)
    assert np.allclose(space.geodesic(v, 0.0, "exact"), POINT, rtol=1e-15)


@everything
def test_first_and_second_order_geodesics_are_taylor_polynomials_of_the_exact_one(name):
    space, v = METRICS[name].at(POINT), vector(1)
    for order, power in ((1, 2), (2, 3)):
        errors = [np.abs(space.geodesic(v, t, order) - space.geodesic(v, t, "exact")).max() for t in (1e-2, 1e-3)]
        if errors[0] > 1e-14:  # a straight geodesic has no error at all
            assert np.isclose(np.log10(errors[0] / errors[1]), power, atol=0.1)
        else:
            assert name in ("euclidean", "translation", "constant")


@everything
def test_gradient_represents_the_derivative_and_is_horizontal_for_an_invariant_loss(name):
    space, v = METRICS[name].at(POINT), vector(1)
    gradient = space.riemannian_gradient(LOSSES[name](POINT)[1])
    slope = derivative(lambda t: LOSSES[name](POINT + t * v)[0])
    assert np.isclose(space.inner_product(gradient, v), slope, rtol=1e-8)
    assert space.is_horizontal(gradient)


@everything
def test_hessian_is_the_second_derivative_along_exact_geodesics(name):
    space = METRICS[name].at(POINT)
    v = space.horizontal_projection(vector(1))
    e = LOSSES[name](POINT)[1]
    ehess_v = derivative(lambda t: LOSSES[name](POINT + t * v)[1])
    path = [LOSSES[name](space.geodesic(v, t, "exact"))[0] for t in (-4e-3, -2e-3, 0.0, 2e-3, 4e-3)]
    second = (-path[0] + 16 * path[1] - 30 * path[2] + 16 * path[3] - path[4]) / (12 * 4e-6)
    assert np.isclose(space.inner_product(v, space.riemannian_hessian(e, ehess_v, v)), second, rtol=1e-6)


@everything
def test_projection_is_idempotent_self_adjoint_and_complementary(name):
    space, a, b = METRICS[name].at(POINT), vector(1), vector(2)
    part = space.horizontal_projection(a)
    assert np.allclose(space.horizontal_projection(part), part, rtol=1e-14, atol=1e-15)
    assert np.allclose(part + space.vertical_projection(a), a, rtol=1e-14)
    assert np.isclose(space.inner_product(part, b), space.inner_product(a, space.horizontal_projection(b)), rtol=1e-12)
    vertical = {"translation": np.ones_like(POINT), "scaling": POINT, "rows": [[2.0], [-3.0]] * POINT}.get(name)
    if vertical is not None:
        assert np.allclose(space.horizontal_projection(vertical), 0.0, atol=1e-15)
        assert space.dim == POINT.size - (len(POINT) if name == "rows" else 1)
    else:
        assert np.array_equal(part, a)
        assert space.dim == POINT.size


@everything
def test_coordinates_are_an_isometry(name):
    space, a, b = METRICS[name].at(POINT), vector(1), vector(2)
    x, z = space.to_coordinates(a), space.to_coordinates(b)
    assert x.shape == (space.n_coordinates,)
    assert np.isclose(x @ z, space.inner_product(a, b), rtol=1e-13)
    assert np.allclose(space.from_coordinates(x), a, rtol=1e-14)
    drawn = space.random_tangent_vector(3)
    assert np.isclose(space.norm(drawn), 1.0, rtol=1e-14)
    assert space.is_horizontal(drawn, 1e-14)


def test_scaling_metric_ignores_the_scale():
    a = vector(1)
    here, there = (rg.ScalingMetric().at(s * POINT) for s in (1.0, 7.0))
    assert np.isclose(here.norm(a), there.norm(7.0 * a), rtol=1e-14)
    assert np.allclose(7.0 * here.christoffel(a), there.christoffel(7.0 * a), rtol=1e-13)


# Zero parameters ------------------------------------------------------------------------------------------------


def test_zero_parameters_are_frozen_and_never_nan():
    space = rg.ElementwiseMetric().at([2.0, 0.0, -1.0, -0.0])
    v, e = np.array([1.0, 5.0, 2.0, 7.0]), np.ones(4)
    assert space.dim == space.n_coordinates == 2
    assert space.inner_product(v, v) == 0.25 + 4.0
    for result in (
        space.horizontal_projection(v),
        space.riemannian_gradient(e),
        space.christoffel(v),
        space.christoffel_adjoint(v, e),
        space.riemannian_hessian(e, e, v),
        space.from_coordinates(np.ones(2)),
        space.random_tangent_vector(0),
    ):
        assert np.isfinite(result).all()
        assert not result[[1, 3]].any()
    for order in (1, 2, "exact"):
        moved = space.geodesic(space.horizontal_projection(v), order=order)
        assert np.isfinite(moved).all()
        assert not moved[[1, 3]].any()
        assert not space.point_at(np.ones(2), order)[[1, 3]].any()
        assert space.gradient_at(np.ones(2), e, order).shape == (2,)
    assert not space.is_horizontal(v)
    assert rg.ElementwiseMetric().at([0.0]).n_coordinates == 0


# Products -------------------------------------------------------------------------------------------------------


def network(seed=0):
    rng = np.random.default_rng(seed)
    point = {
        "heads": rg.Pair(rng.standard_normal((3, 6, 2)), rng.standard_normal((3, 5, 2))),
        "mlp": rng.standard_normal((4, 3)),
        "bias": rng.standard_normal(4),
        "frozen": rng.standard_normal(7),
    }
    metric = rg.ProductMetric(
        {"heads": rg.MixedMetric(), "mlp": rg.ElementwiseMetric(), "bias": rg.TranslationMetric()}
    )
    return metric, point, rng


def test_a_geometry_of_the_documentation_is_a_product_of_others():
    metric = rg.ProductMetric({"0": rg.ScalingMetric(), "1": rg.ScalingMetric()})
    product, space = metric.at(dict(zip("01", POINT, strict=True))), METRICS["rows"].at(POINT)
    a, e = vector(1), vector(2)
    rows_a, rows_e = (dict(zip("01", x, strict=True)) for x in (a, e))
    for method, mine, theirs in (
        ("christoffel", (a,), (rows_a,)),
        ("riemannian_hessian", (e, e, a), (rows_e, rows_e, rows_a)),
        ("geodesic", (0.3 * a, 2.0, "exact"), ({name: 0.3 * x for name, x in rows_a.items()}, 2.0, "exact")),
        ("geodesic_gradient", (a, e, "exact"), (rows_a, rows_e, "exact")),
    ):
        found, expected = getattr(space, method)(*mine), getattr(product, method)(*theirs)
        assert np.allclose(found, [expected["0"], expected["1"]], rtol=1e-8), method


def test_product_sums_blocks_and_heads():
    metric, point, rng = network()
    space = metric.at(point)
    a, b = (
        {
            "heads": space.spaces["heads"].random_tangent_vector(rng),
            "mlp": rng.standard_normal((4, 3)),
            "bias": rng.standard_normal(4),
        }
        for _ in range(2)
    )
    expected = sum(np.sum(metric.metrics[name].at(point[name]).inner_product(a[name], b[name])) for name in a)
    assert np.isclose(space.inner_product(a, b), expected, rtol=1e-14)
    assert space.dim == 3 * (6 + 5 - 2) * 2 + 12 + 3
    assert space.n_coordinates == 3 * (6 + 5) * 2 + 12 + 4
    x, z = space.to_coordinates(a), space.to_coordinates(b)
    assert np.isclose(x @ z, expected, rtol=1e-13)
    back = space.from_coordinates(x)
    assert np.allclose(back["heads"].G, a["heads"].G, rtol=1e-12)
    assert np.array_equal(back["bias"], a["bias"])
    for method, arguments in (
        ("horizontal_projection", (a,)),
        ("vertical_projection", (a,)),
        ("christoffel", (a, b)),
        ("christoffel_adjoint", (a, b)),
        ("riemannian_gradient", (a,)),
        ("riemannian_hessian", (a, b, a)),
        ("geodesic", (a, 0.1, "exact")),
        ("geodesic_gradient", (a, b)),
    ):
        whole = getattr(space, method)(*arguments)
        for name, part in space.spaces.items():
            own = [argument[name] if isinstance(argument, dict) else argument for argument in arguments]
            expected = getattr(part, method)(*own)
            # in coordinates here, directly there: not to the last bit
            both = (np.hstack([np.ravel(f) for f in block]) for block in (whole[name], expected))
            assert np.allclose(*both, rtol=1e-11, atol=1e-13)
    drawn = space.random_tangent_vector(1)
    assert space.is_horizontal(drawn)
    assert np.isclose(space.norm(drawn), 1.0, rtol=1e-13)


def test_product_errors_name_the_block():
    metric, point, _ = network()
    with pytest.raises(ValueError, match=r"block 'mlp' is missing; it has heads"):
        metric.at({"heads": point["heads"]})
    with pytest.raises(rg.RankDeficientError, match=r"block 'heads': .*rank"):
        metric.at({**point, "heads": rg.Pair(np.zeros((6, 2)), np.ones((5, 2)))})
    with pytest.raises(TypeError, match=r"metrics\['a'\]: expected a metric such as .*, got 'inv'"):
        rg.ProductMetric({"a": "inv"})
    with pytest.raises(TypeError, match=r"point: expected a dict with the blocks heads, mlp, bias, got ndarray"):
        metric.at(np.ones(3))
    with pytest.raises(ValueError, match=r"x: expected shape \(82,\), got \(3,\)"):
        metric.at(point).from_coordinates(np.ones(3))


# In coordinates -------------------------------------------------------------------------------------------------

SPACES = {
    **{name: metric.at(POINT) for name, metric in METRICS.items()},
    **{
        f"{metric.name} {n}x{m}x{h} {relaxation}": metric.at(
            # far from a loss of rank
            rg.Pair(
                RNG.standard_normal((2, n, h)) + 3 * np.eye(n, h), RNG.standard_normal((2, m, h)) + 3 * np.eye(m, h)
            )
        )
        for relaxation in (0.0, 0.3)
        for metric in (rg.InvariantMetric(relaxation), rg.MixedMetric(relaxation))
        for n, m, h in ((5, 4, 2), (3, 3, 3), (4, 3, 1))
    },
    "product": network()[0].at(network()[1]),
    "constant product": rg.ConstantMetric(network()[0]).at(network()[1]),
    "euclidean norm": rg.EuclideanNormMetric(rg.MixedMetric()).at(
        rg.Pair(RNG.standard_normal((2, 5, 2)), RNG.standard_normal((2, 4, 2)))
    ),
}
spaces = pytest.mark.parametrize("name", SPACES)
orders = pytest.mark.parametrize("order", [1, 2, "exact"])


def flat(value):
    if isinstance(value, dict):
        return np.concatenate([flat(part) for part in value.values()])
    return np.concatenate([np.ravel(factor) for factor in value]) if isinstance(value, rg.Pair) else np.ravel(value)


def loss_of(space):
    """A smooth loss of any parameters, not invariant; and its gradient as the same type."""
    weights = np.random.default_rng(5).standard_normal(flat(space.point).size)

    def like(template, values):
        if isinstance(template, dict):
            parts = {}
            for name, part in template.items():
                parts[name] = like(part, values[: flat(part).size])
                values = values[flat(part).size :]
            return parts
        if isinstance(template, rg.Pair):
            return rg.Pair(
                values[: template.G.size].reshape(template.G.shape), values[template.G.size :].reshape(template.H.shape)
            )
        return values.reshape(template.shape)

    def loss(point):
        return float(weights @ np.sin(flat(point)))

    def gradient(point):
        return like(point, weights * np.cos(flat(point)))

    return loss, gradient


@spaces
@orders
def test_points_in_coordinates_are_geodesics(name, order):
    space = SPACES[name]
    x = 0.1 * np.random.default_rng(1).standard_normal((*space.block_shape, space.n_coordinates))
    assert np.allclose(
        flat(space.point_at(x, order)),
        flat(space.geodesic(space.from_coordinates(x), 1.0, order)),
        rtol=1e-10,
        atol=1e-12,
    )
    if order != "exact":
        assert np.array_equal(flat(space.point_at(0 * x, order)), flat(space.point))


@spaces
@orders
def test_gradient_in_coordinates_is_the_horizontal_part_of_the_derivative(name, order):
    space = SPACES[name]
    loss, euclidean_gradient = loss_of(space)
    rng = np.random.default_rng(1)
    x, z = (rng.standard_normal((*space.block_shape, space.n_coordinates)) for _ in range(2))
    x, z = (space.to_coordinates(space.horizontal_projection(space.from_coordinates(y))) for y in (x, z))
    x = 0.2 * x / np.linalg.norm(x)
    gradient = space.gradient_at(x, euclidean_gradient(space.point_at(x, order)), order)
    slope = derivative(lambda t: loss(space.point_at(x + t * z, order)), 1e-3)
    # "exact" of a general metric differentiates two integrations by five points
    assert np.isclose(np.sum(gradient * z), slope, rtol=1e-6 if order == "exact" else 1e-8, atol=1e-9)
    assert (
        space.is_horizontal(space.from_coordinates(gradient), 1e-10 if isinstance(space.point, dict) else 1e-8)
        if not isinstance(space.point, rg.Pair)
        else space.is_horizontal(space.from_coordinates(gradient)).all()
    )


@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.MixedMetric(0.1), rg.InterpolatedMetric(0.4)])
@pytest.mark.parametrize("order", [1, 2])
def test_coordinates_in_single_precision_stay_single(metric, order):
    """Points and gradients of a search with dtype="float32", beside those in doubles."""
    rng = np.random.default_rng(0)
    space = metric.at(rg.Pair(rng.standard_normal((3, 6, 2)), rng.standard_normal((3, 5, 2))))
    x = 0.1 * rng.standard_normal((3, 22))
    e = rg.Pair(rng.standard_normal((3, 6, 2)), rng.standard_normal((3, 5, 2)))
    single = rg.Pair.unchecked(*(factor.astype(np.float32) for factor in e))
    there, gradient = (
        space.point_at(x.astype(np.float32), order),
        space.gradient_at(x.astype(np.float32), single, order),
    )
    assert {there.G.dtype, there.H.dtype, gradient.dtype} == {np.dtype(np.float32)}
    assert np.allclose(flat(there), flat(space.point_at(x, order)), rtol=0.0, atol=1e-5)
    assert np.allclose(gradient, space.gradient_at(x, e, order), rtol=0.0, atol=1e-5)
    assert np.allclose(space.gradient_at(x, tuple(e), order), space.gradient_at(x, e, order), rtol=0.0, atol=0.0)
    assert np.array_equal(flat(space.point_at(x)), flat(space.point_at(x, 2)))


def test_order_is_checked():
    for name in ("elementwise", "euclidean", "constant", "product"):
        space = SPACES[name]
        for call in (
            lambda space=space: space.point_at(np.zeros(space.n_coordinates), 3),
            lambda space=space: space.geodesic(space.from_coordinates(np.zeros(space.n_coordinates)), 1.0, "third"),
        ):
            with pytest.raises(ValueError, match=r'order: expected 1, 2 or "exact", got'):
                call()


# Ablations ------------------------------------------------------------------------------------------------------


def test_constant_metric_is_the_other_one_without_curvature():
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2)))
    base = rg.MixedMetric().at(point)
    space = rg.ConstantMetric(rg.MixedMetric()).at(point)
    a, b = base.random_tangent_vector(1, horizontal=False), base.random_tangent_vector(2)
    assert np.isclose(space.inner_product(a, b), base.inner_product(a, b), rtol=1e-14)  # summed in another order
    assert np.array_equal(space.horizontal_projection(a).G, base.horizontal_projection(a).G)
    assert not flat(space.christoffel(a, b)).any()
    for order in (1, 2, "exact"):
        assert np.array_equal(flat(space.geodesic(a, 0.7, order)), flat(point + 0.7 * a))


@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.MixedMetric(), rg.MixedMetric(0.2)])
def test_euclidean_norm_projects_orthogonally_onto_the_same_horizontal_space(metric):
    """Against a dense orthonormal basis of the horizontal space."""
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2)))
    base, space = metric.at(point), rg.EuclideanNormMetric(metric).at(point)
    horizontal = [base.horizontal_projection(space.from_coordinates(unit)) for unit in np.eye(18)]
    basis, sizes, _ = np.linalg.svd(np.array([flat(v) for v in horizontal]).T)
    basis = basis[:, : np.sum(sizes > 1e-10)]
    assert basis.shape[1] == space.dim
    v = rng.standard_normal(18)
    part = flat(space.horizontal_projection(space.from_coordinates(v)))
    assert np.allclose(part, basis @ (basis.T @ v), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.MixedMetric(), rg.InterpolatedMetric(0.4)])
@pytest.mark.parametrize("condition", [30.0, 300.0])
@pytest.mark.parametrize("seed", range(3))
def test_euclidean_norm_keeps_its_digits_or_refuses(metric, condition, seed):
    """Pv horizontal, v − Pv Euclidean-orthogonal to horizontal vectors; at κ = 1e7 an error."""
    rng = np.random.default_rng(seed)

    def point(condition):
        return rg.Pair(conditioned_factor(rng, 12, 4, condition), conditioned_factor(rng, 9, 4, condition))

    there = point(condition)
    base, space = metric.at(there), rg.EuclideanNormMetric(metric).at(there)
    v = rg.Pair(rng.standard_normal((12, 4)), rng.standard_normal((9, 4)))
    projected = space.horizontal_projection(v)
    assert base.is_horizontal(projected, 1e-9 * condition)
    for _ in range(5):
        w = base.random_tangent_vector(rng)
        assert abs(space.inner_product(v - projected, w)) <= 1e-12 * condition * space.norm(v) * space.norm(w)
    with pytest.raises(ValueError, match="point: expected a smaller condition number"):
        rg.EuclideanNormMetric(metric).at(point(1e7)).horizontal_projection(v)


def test_euclidean_norm_keeps_the_horizontal_space_and_the_geodesics():
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2)))
    base, space = rg.InvariantMetric().at(point), rg.EuclideanNormMetric(rg.InvariantMetric()).at(point)
    a = base.random_tangent_vector(1)
    assert np.isclose(space.norm(a) ** 2, np.sum(a.G**2) + np.sum(a.H**2), rtol=1e-14)
    assert space.is_horizontal(a)
    assert np.allclose(flat(space.geodesic(a, 1.0, 2)), flat(base.geodesic(a, 1.0, 2)), rtol=1e-13)  # in another order
    with pytest.raises(NotImplementedError, match="defines no Riemannian Hessian"):
        space.riemannian_hessian(a, a, a)
    with pytest.raises(TypeError, match="wrap the metric of each block by itself"):
        rg.EuclideanNormMetric(network()[0])
    with pytest.raises(TypeError, match="expected a metric"):
        rg.ConstantMetric("inv")


def test_a_product_says_in_short_which_metrics_it_has():
    metric = rg.ProductMetric(
        {"a": rg.MixedMetric(0.1), "b": rg.MixedMetric(), "c": OWN["RowScalingMetric"](), "d": rg.MixedMetric()}
    )
    text = (
        "MixedMetric(relaxation=0.1) on 1 block, MixedMetric(relaxation=0.0) on 2 blocks, RowScalingMetric() on 1 block"
    )
    assert str(metric) == text
    result = rg.worst_case_sharpness(
        lambda p: (float(np.sum(p["c"])), {"c": np.ones((2, 3))}),
        {"c": POINT},
        rg.ProductMetric({"c": OWN["RowScalingMetric"]()}),
        0.1,
        verify=False,
        n_iter=2,
    )
    assert result.settings["metric"] == "RowScalingMetric() on 1 block"


def test_vectors_of_a_product_can_be_added():
    metric, point, _ = network()
    space = metric.at(point)
    a, b = space.random_tangent_vector(0), space.random_tangent_vector(1)
    x = space.to_coordinates(2.0 * a - b / 4.0 + (-a))
    assert np.allclose(x, space.to_coordinates(a) - 0.25 * space.to_coordinates(b), rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="blocks: expected a dict with the blocks"):
        a + {"other": 1.0}


def test_a_constant_product_is_a_product_of_constants():
    metric, point, _ = network()

    def value_and_grad(blocks):
        flats = [np.concatenate([np.ravel(x) for x in (b if isinstance(b, rg.Pair) else [b])]) for b in blocks.values()]
        return float(sum(x @ x for x in flats)), {name: 2.0 * block for name, block in blocks.items()}

    # weight decay has none of the symmetries, and it does not matter here
    one = rg.worst_case_sharpness(value_and_grad, point, rg.ConstantMetric(metric), 0.1, verify=False)
    parts = rg.ProductMetric({name: rg.ConstantMetric(part) for name, part in metric.metrics.items()})
    assert one.value == rg.worst_case_sharpness(value_and_grad, point, parts, 0.1, verify=False).value


def test_wrong_kinds_are_refused_at_once():
    pair = rg.Pair(np.eye(3, 2), np.eye(4, 2))
    with pytest.raises(
        TypeError, match=r"point: expected an array, because ElementwiseMetric\(\) is for arrays, got a Pair"
    ):
        rg.ElementwiseMetric().at(pair)
    with pytest.raises(TypeError, match="got the class InvariantMetric; call it"):
        rg.worst_case_sharpness(lambda p: (0.0, p), pair, rg.InvariantMetric, 0.1)
    with pytest.raises(TypeError, match="pairs: expected a metric on pairs"):
        rg.networks.block_metric({"heads": pair}, rg.ConstantMetric(rg.ElementwiseMetric()))
    spaces = [rg.ElementwiseMetric().at(np.ones(3)), rg.EuclideanMetric().at(np.ones(3))]
    for space in spaces:
        for call in (lambda s=space: s.gradient_at(np.zeros(3), np.ones(1)), lambda s=space: s.point_at(np.zeros(1))):
            with pytest.raises(ValueError, match="expected"):
                call()
    flat = rg.EuclideanMetric().at(np.ones(3))
    for call, name in (
        (lambda: flat.christoffel(np.ones(2), np.ones(3)), "a"),
        (lambda: flat.christoffel(np.ones(3), np.ones(2)), "b"),
        (lambda: flat.christoffel_adjoint(np.ones(2), np.ones(3)), "a"),
        (lambda: flat.riemannian_hessian(np.ones(2), np.ones(3), np.ones(3)), "egrad"),
        (lambda: flat.riemannian_hessian(np.ones(3), np.ones(3), np.ones(2)), "v"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: expected the shape of the point"):
            call()
    with pytest.raises(ValueError, match="t: expected a finite number"):
        flat.geodesic(np.ones(3), np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="e: expected the shapes of the point"):
        rg.MixedMetric().at(pair).gradient_at(np.zeros(14), rg.Pair(np.eye(3, 2), np.eye(3, 2)))


@pytest.mark.parametrize("name", ["elementwise", "scaling", "euclidean", "translation"])
@pytest.mark.parametrize("length", [0.0, 1e-5, 0.02, 0.04, 1.5])
def test_gradients_through_exact_geodesics_are_their_derivatives(name, length):
    rng = np.random.default_rng(3)
    space = METRICS[name].at(POINT)
    v = length * space.random_tangent_vector(rng, horizontal=False)
    w, e = space.random_tangent_vector(rng, horizontal=False), rng.standard_normal(POINT.shape)
    gradient, step = space.geodesic_gradient(v, e, "exact"), 1e-3

    def end(s):
        return space.geodesic(v + s * w, 1.0, "exact")

    moved = (8 * (end(step) - end(-step)) - (end(2 * step) - end(-2 * step))) / (12 * step)
    assert space.inner_product(gradient, w) == pytest.approx(np.sum(e * moved), rel=1e-9, abs=1e-10)
