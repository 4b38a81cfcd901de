"""An explanation says when it holds: in which circumstance, dtype or points; and it is true of the program."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import sample

import refgeo as rg
from refgeo import paper


def rows_of(metrics=("mix",), **functions):
    report = rg.check(SimpleNamespace(**functions), checks=list(functions), metrics=metrics)
    rows = [row for row in report.failures if row.kind == "value"]
    assert rows
    return {row.metric: row for row in rows}


@pytest.mark.slow
def test_a_formula_in_one_dtype_alone_is_said_with_it():
    def riemannian_gradient(metric, G, H, e_G, e_H):
        if G.dtype == np.float32 and metric == "inv":
            return e_G @ (H.mT @ H), e_H @ (G.mT @ G)
        return paper.riemannian_gradient(metric, G, H, e_G, e_H)

    row = rows_of(["inv"], riemannian_gradient=riemannian_gradient)["inv"]
    assert row.differs == "e_G T stands where e_G S belongs; e_H S stands where e_H T belongs"
    assert row.diagnosis.startswith("wrong in float32 only")


@pytest.mark.exhaustive
def test_a_cause_at_some_points_is_not_said_of_all():
    def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
        right = paper.riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H)
        if G.shape[-1] <= 4:
            return right
        gradient = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        again = paper.horizontal_projection(metric, G, H, *paper.christoffel(metric, G, H, *gradient, v_G, v_H))
        return tuple(x + y for x, y in zip(right, again, strict=True))

    for row in rows_of(riemannian_hessian=riemannian_hessian).values():
        assert row.diagnosis.startswith(("wrong at some points, such as ", "wrong where h ≥ 5"))
        assert row.differs == "the factor of Γ(grad,v)_G: 2, not 1; the factor of Γ(grad,v)_H: 2, not 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_right", "where", "metric"),
    [
        pytest.param(lambda G, H: G.shape[-1] == 1, "h ≥ 2", "inv", id="h=1"),
        pytest.param(
            lambda G, H: G.shape[-2] == H.shape[-2], "|n − m| ≥ 1", "mix", id="n=m", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_what_is_right_for_unusual_shapes_alone_is_wrong_where_it_is(metric, is_right, where):
    """Though every usual point fails, and a formula is read there, which is not what it gives at others."""

    def christoffel(metric, G, H, *vectors):
        return [(1.0 if is_right(G, H) else 1.01) * x for x in paper.christoffel(metric, G, H, *vectors)]

    report = rg.check(SimpleNamespace(christoffel=christoffel), checks=["christoffel"], metrics=[metric])
    (row,) = (row for row in report.failures if row.kind == "value")
    assert row.diagnosis == f"wrong where {where}; there, your result is 1.01 times the right one"
    assert not row.yours


@pytest.mark.slow
def test_a_formula_that_is_right_at_one_column_by_chance_is_said_of_all_points():
    def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
        x, y = paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H)
        return x + 0.5 * a_G @ (b_G.mT @ G - G.mT @ b_G) @ np.linalg.inv(G.mT @ G), y  # 0 where h = 1

    report = rg.check(SimpleNamespace(christoffel=christoffel), checks=["christoffel"], metrics=["mix"])
    (row,) = (row for row in report.failures if row.kind == "value")
    assert row.differs == "½ a_G b_GᵀG S⁻¹ − ½ a_G Gᵀb_G S⁻¹ does not belong there"
    assert not row.diagnosis


@pytest.mark.slow
def test_a_factor_at_equal_arrays_is_named_where_it_is():
    def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
        same = np.array_equal(a_G, b_G) and np.array_equal(a_H, b_H)
        return (0.5 if same else 1.0) * paper.inner_product(metric, G, H, a_G, a_H, b_G, b_H)

    for row in rows_of(inner_product=inner_product).values():
        assert row.diagnosis.startswith("wrong ")
        assert row.diagnosis.endswith("your result is 0.5 times the right one")


@pytest.mark.slow
def test_a_factor_is_named_although_a_part_of_some_results_is_zero():
    """Γ(a, b) of vectors without a G part has none either, which is any number of times the right one."""

    def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
        right = paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H)
        return tuple(2.5 * x for x in right) if np.array_equal(a_G, b_G) else right

    (row,) = rows_of(["inv"], christoffel=christoffel).values()
    assert any("part=0" in e.case for e in row.measurements if e.decisive and e.relative_error > 0.1)
    assert row.diagnosis.endswith("your result is 2.5 times the right one"), row.diagnosis


@pytest.mark.slow
def test_a_wrong_first_call_is_not_laid_to_any_circumstance():
    seen = set()

    def christoffel(metric, G, H, *vectors):
        first = (metric, G.shape[-1]) not in seen
        seen.add((metric, G.shape[-1]))
        return tuple((0.5 if first else 1.0) * x for x in paper.christoffel(metric, G, H, *vectors))

    for row in rows_of(christoffel=christoffel).values():
        assert row.diagnosis.endswith("so it depends on earlier calls, or on chance")


@pytest.mark.slow
def test_blocks_with_one_factor_in_common_stand_in_one_batch():
    def riemannian_gradient(metric, G, H, e_G, e_H):
        same = G.ndim == 3 and len(G) > 1 and np.all(H[:1] == H)
        return paper.riemannian_gradient(metric, np.broadcast_to(G[:1], G.shape) if same else G, H, e_G, e_H)

    for row in rows_of(riemannian_gradient=riemannian_gradient).values():
        assert "in all blocks but the first" in row.diagnosis or "not those of its blocks" in row.diagnosis
        assert "where all blocks have the same H" in row.diagnosis or "at some points" in row.diagnosis


@pytest.mark.exhaustive
def test_a_cause_that_cannot_be_tried_hinders_no_other_explanation():
    """Nothing encloses the other metric's exact geodesic."""

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != "exact" or metric != "inv":
            raise NotImplementedError
        space = rg.InvariantMetric().at(rg.Pair(G, H))
        return tuple(map(np.array, space.geodesic(space.horizontal_projection(rg.Pair(v_G, v_H)), t, "exact")))

    assert rows_of(["inv"], geodesic=geodesic)["inv"].diagnosis.startswith(
        "not found: no formula gives these numbers; right at "
    )


def test_a_backend_without_batches_is_not_asked_for_them_at_a_point_without():
    def riemannian_gradient(metric, G, H, e_G, e_H):
        if G.ndim != 2:
            raise ValueError("no batches")
        return paper.riemannian_gradient(metric, G, H, e_G, e_H)

    report = rg.check(SimpleNamespace(riemannian_gradient=riemannian_gradient), cases=["5x4x2"])
    assert report.passed
    assert {row.verdict.value for row in report.rows if row.kind == "value" and row.points} == {"pass"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "fails", "where"),
    sample(
        [
            ("christoffel", lambda G, H: G.shape[-1] > 4, "h ≥ 5"),
            ("inner_product", lambda G, H: G.shape[-2] != H.shape[-2], "|n − m| ≥ 1"),
            ("riemannian_gradient", lambda G, H: G.ndim > 2, "the number of leading dimensions ≥ 1"),
            ("horizontal_projection", lambda G, H: G.ndim > 3, "the number of leading dimensions ≥ 2"),
        ],
        3,
    ),
)
def test_an_exception_has_a_place_too(function, fails, where):
    def partly(metric, G, H, *vectors):
        assert not fails(G, H)
        return getattr(paper, function)(metric, G, H, *vectors)

    for row in rows_of(**{function: partly}).values():
        assert row.diagnosis == f"wrong where {where}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_what_is_computed_in_float32_is_said_to_be_where_it_is_right_there(factor):
    def inner_product(metric, *arrays):
        return factor * paper.inner_product(metric, *(x.astype("f4") for x in arrays)).astype(float)

    for row in rows_of(inner_product=inner_product).values():
        assert row.verdict.value == "WRONG"
        assert row.diagnosis.startswith("your numbers are those of float32, and right") == (factor == 1.0)


@pytest.mark.slow
def test_a_bound_is_found_beyond_which_all_else_hides_the_mistake():
    """Of the few points with a later time, those at t = 1000 have vectors of which nothing bends."""

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != 2:
            raise NotImplementedError
        while t > 1.0:
            (G, H), t = paper.geodesic(metric, G, H, v_G, v_H, 1.0, order), t - 1.0
        return paper.geodesic(metric, G, H, v_G, v_H, t, order)

    report = rg.check(SimpleNamespace(geodesic=geodesic), checks=["geodesic_2"], metrics=["mix"])
    assert [row.diagnosis for row in report.failures] == ["wrong where t > 1"]
