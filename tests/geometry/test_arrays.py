"""The metrics on plain arrays, their product and their ablations, each law by differences of the metric itself."""

from __future__ import annotations

import numpy as np
import pytest

import refgeo as rg
from validation.examples.row_scaling import RowScalingMetric

POINT = np.array([[1.5, -0.7, 2.0], [-3.0, 0.4, 1.1]])
METRICS = {
    "elementwise": rg.ElementwiseMetric(),
    "euclidean": rg.EuclideanMetric(),
    "translation": rg.TranslationMetric(),
    "scaling": rg.ScalingMetric(),
    "constant": rg.ElementwiseMetric(curved=False),
    "rows": RowScalingMetric(),
}


def vector(seed):
    return np.random.default_rng(seed).standard_normal(POINT.shape)


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


def flat(value):
    if isinstance(value, dict):
        return np.concatenate([flat(part) for part in value.values()])
    return np.concatenate([np.ravel(factor) for factor in value]) if isinstance(value, rg.Pair) else np.ravel(value)


def test_order_is_checked():
    metric, point, _ = network()
    spaces = [METRICS[name].at(POINT) for name in ("elementwise", "euclidean", "constant")]
    for space in (*spaces, metric.at(point)):
        for call in (
            lambda space=space: space.point_at(np.zeros(space.n_coordinates), 3),
            lambda space=space: space.geodesic(space.from_coordinates(np.zeros(space.n_coordinates)), 1.0, "third"),
        ):
            with pytest.raises(ValueError, match=r'order: expected 1, 2 or "exact", got'):
                call()


def test_a_product_says_in_short_which_metrics_it_has():
    metric = rg.ProductMetric(
        {"a": rg.MixedMetric(0.1), "b": rg.MixedMetric(), "c": RowScalingMetric(), "d": rg.MixedMetric()}
    )
    text = (
        "MixedMetric(relaxation=0.1) on 1 block, MixedMetric(relaxation=0.0) on 2 blocks, RowScalingMetric() on 1 block"
    )
    assert str(metric) == text
    result = rg.worst_case_sharpness(
        lambda p: (float(np.sum(p["c"])), {"c": np.ones((2, 3))}),
        {"c": POINT},
        rg.ProductMetric({"c": RowScalingMetric()}),
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


def test_wrong_kinds_are_refused_at_once():
    pair = rg.Pair(np.eye(3, 2), np.eye(4, 2))
    with pytest.raises(
        TypeError, match=r"point: expected an array, because ElementwiseMetric\(\) is for arrays, got a Pair"
    ):
        rg.ElementwiseMetric().at(pair)
    with pytest.raises(TypeError, match="got the class InvariantMetric; call it"):
        rg.worst_case_sharpness(lambda p: (0.0, p), pair, rg.InvariantMetric, 0.1)
    with pytest.raises(TypeError, match="pairs: expected a metric on pairs"):
        rg.networks.block_metric({"heads": pair}, rg.ElementwiseMetric(curved=False))
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
