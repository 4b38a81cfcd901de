"""The design: every level is met where it decides something, in every circumstance that there is, by every subject."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import sample

import refgeo as rg
from refgeo import paper
from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.execution.memory_layout import LAYOUTS, apply_layout
from refgeo.conformance.judge import Judge
from refgeo.conformance.judging.evidence import error_units
from refgeo.conformance.optimisers import searches
from refgeo.conformance.optimisers.invariance import InvarianceTest
from refgeo.conformance.optimisers.update_rule import ELEMENTS, Rule
from refgeo.conformance.plan import Plan
from refgeo.conformance.points.circumstances import BASELINE, CIRCUMSTANCES, assign_circumstances
from refgeo.conformance.points.covering_design import (
    SIZE_LEVELS,
    all_levels,
    covering_design,
    distribute,
    infeasible_pairs,
    levels_visible_alone,
    size_levels,
    visible_levels,
)
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.scene import generate
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.call import Event
from refgeo.conformance.protocol.operations import VALUES

EVERY_PAIR = {
    frozenset(((one, x), (other, y)))
    for one, other in itertools.combinations(SIZE_LEVELS, 2) for x in SIZE_LEVELS[one] for y in SIZE_LEVELS[other]
} - {frozenset(pair) for pair in infeasible_pairs("full")}  # fmt: skip
"""Every two bands of sizes that can be."""


def retraction(metric, G, H, v_G, v_H, t):
    return G + t * v_G, H + t * v_H


def geodesic(metric, G, H, v_G, v_H, t, order):
    if order != "exact":
        return paper.geodesic(metric, G, H, v_G, v_H, t, order)
    space = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}[metric]().at(rg.Pair(G, H))
    return tuple(space.geodesic(rg.Pair(v_G, v_H), t, "exact"))


def step(state, G, H, e_G, e_H):
    g = rg.MixedMetric().at(rg.Pair(G, H)).riemannian_gradient(rg.Pair(e_G, e_H))
    return state, (G - 0.1 * g.G).astype(G.dtype), (H - 0.1 * g.H).astype(H.dtype)


def make_backend():
    """Every value by the paper's formulas, exact geodesics by refgeo's geometry, and an update rule."""
    names = ("inner_product", "horizontal_projection", "riemannian_gradient", "riemannian_hessian", "christoffel")
    functions = {name: getattr(paper, name) for name in names}
    return SimpleNamespace(**functions, retraction=retraction, geodesic=geodesic, step=step)


def evidence_of(metric, seed=0):
    """What is seen of a right implementation, by check."""
    plan = Plan.of([metric], None, Points(seed=seed))
    judge = Judge(plan, Backend(make_backend()), metric)
    for i in range(len(judge.points)):
        judge.judge_point(i)
    return {name: result for name, result in judge.evidence.items() if name not in judge.rules}


def collect_levels(evidence, name=""):
    """The levels, the circumstances, and the pairs of both, that decisive evidence has met."""
    message = [item for item in evidence if item.decisive and item.event is Event.RESULT]
    places = {(Features.parse(item.case), item.circumstance) for item in message}
    levels = {level for features, _ in places for level in all_levels(features)}
    circumstances = {circumstance for _, circumstance in places}
    pairs = {(level, circumstance) for features, circumstance in places for level in all_levels(features)}
    shown = [visible_levels(features).get(name, set()) | {*size_levels(features).items()} for features, _ in places]
    visible = set().union(*shown)
    return levels, circumstances, pairs, visible


def pairs_met(evidence):
    """Every two bands of sizes that decisive evidence has met together."""
    message = {Features.parse(item.case) for item in evidence if item.decisive and item.event is Event.RESULT}
    return {frozenset(pair) for item in message for pair in itertools.combinations(size_levels(item).items(), 2)}


@pytest.fixture(scope="module", params=sample(["inv", "mix"]))
def evidence(request):
    return evidence_of(request.param)


@pytest.mark.slow
def test_every_level_is_met_by_some_value_where_it_decides(evidence):
    result = [collect_levels(selection, name) for name, selection in evidence.items()]
    sizes = {(kind, band) for kind, bands in SIZE_LEVELS.items() for band in bands}
    assert not sizes.union(*map(levels_visible_alone, VALUES)) - set.union(*(item[3] for item in result))


@pytest.mark.slow
def test_every_two_bands_meet_where_they_decide(evidence):
    """For every value; exact geodesics of mix, which take long to enclose, have as many columns as they can."""
    for name, selection in evidence.items():
        met = pairs_met(selection)
        wanted = EVERY_PAIR if name != "geodesic_exact" else set()
        assert not wanted - met, (name, [tuple(pair) for pair in wanted - met][:5])


def exists(circumstance, value):
    """Whether there is such a call for a value at some clear point."""
    scenes = (generate(item, "inv", "float64") for item in (Features(h=2), Features((3,), h=2)))
    return any(circumstance.transformation(scene, value) is not None for scene in scenes)


@pytest.mark.slow
def test_every_value_meets_every_circumstance_that_there_is_for_it(evidence):
    for name, value in VALUES.items():
        wanted = {c.description for c in CIRCUMSTANCES if c.description and c.name != "nan" and exists(c, value)}
        assert not wanted - collect_levels(evidence[name])[1], name


@pytest.mark.slow
def test_pairs_are_met_as_far_as_there_is_room(evidence):
    for name in VALUES:
        result = collect_levels(evidence[name])
        assert len(result[2]) > 8 * len(result[1]), "each circumstance meets many levels"


@pytest.mark.slow
def test_scopes_are_those_of_what_was_met():
    report = rg.check(make_backend(), checks=["christoffel", "horizontal_projection"], metrics=["inv"])
    for row in (row for row in report.rows if row.kind == "value"):
        message = [Features.parse(item.case) for item in row.measurements if item.decisive]
        assert {size[:4] for size in row.scope.met} == {(f.h, f.n, f.m, int(np.prod(f.blocks))) for f in message}
        assert {word for word, *_ in row.scope.circumstances} <= {item.description for item in CIRCUMSTANCES}
    widest = {row.check: max(size[-1] for size in row.scope.met) for row in report.rows if row.kind == "value"}
    assert widest["christoffel"] > widest["horizontal_projection"], "each as wide as what it can tell"
    scopes = [next(text for text, _ in report.foot(verbose) if text.startswith("scope")) for verbose in (False, True)]
    assert all(text.startswith("scope         h = 1 to ") for text in scopes)
    covered, feasible = map(
        int, re.search(r"n = 1 to 32801, .*; (\d+) of (\d+) pairs of size levels", scopes[0]).groups()
    )
    assert 0.5 * feasible < covered < feasible, "the largest sizes meet few others"
    assert re.search(r"; \d+ circumstances: \d+ with h > 16, \d+ with h > 16 and several blocks$", scopes[1])


@pytest.mark.slow
def test_trajectories_take_their_starts_and_elements_from_the_design():
    rule = Rule(Backend(make_backend()), "step", Points(), {})
    seen = InvarianceTest.of(rule)
    starts = {item[0].case.rpartition("/")[0] for item in seen.results}
    features = [Features.parse(name) for name in starts]
    assert {size_levels(item)["h"] for item in features} >= {"1", "2 to 4", "5 to 16", "17 to 32"}
    assert {size_levels(item)["n"] for item in features} >= {"= h", "near h", "tiles", "odd"}
    assert {item.identity for item in features} >= {0, 1, 2, 3}
    assert {item[0].subject for item in seen.results} == set(ELEMENTS)
    assert max(item.relative_error for selection in seen.results for item in selection) <= 1.0


def test_searches_have_one_column_and_several():
    for seed in range(4):
        wide = [network.sizes for network in searches.make_problems("quick", seed) if not network.is_diagonal]
        widths = [size_levels(Features((), n, m, h))["h"] for n, m, h, _ in wide]
        assert set(widths) >= {"2 to 4", "5 to 16", "17 to 32"}
        assert {blocks > 1 for *_, blocks in wide} == {True, False}


@pytest.mark.parametrize("lies", LAYOUTS)
def test_arrays_keep_their_contents_however_they_lie(lies):
    scene = generate(Features((2, 3), 5, 4, 2, shared="rows" if lies == "overlapping" else "all"), "inv", "float64")
    call = scene.call(VALUES["christoffel"])
    laid = apply_layout(call.arrays, lies)
    for item, x in zip(laid, call.arrays, strict=True):
        assert np.array_equal(item.array, x)
    if lies in ("fused", "overlapping"):
        assert np.may_share_memory(laid[0].base, laid[1].base)
    if lies == "overlapping":
        assert np.shares_memory(laid[0].array, laid[1].array)
    if lies.startswith("heads"):
        assert abs(laid[0].array.strides[-2]) > abs(laid[0].array.strides[-3]), (
            "rows of one head are further apart than heads"
        )
    if lies == "expanded":
        assert 0 in laid[0].array.strides


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_turned_point_has_other_numbers_and_the_same_difficulty(value):
    scene = generate(Features((3,), h=2), "mix", "float64")
    for k in (1, 2, 5, 38):
        target = scene.sign_flipped(k)
        assert not np.array_equal(target.call(value).arrays[0], scene.call(value).arrays[0])
        assert np.allclose(target.condition, scene.condition, rtol=1e-12)
        assert np.array_equal(error_units(target, value).decisive, error_units(scene, value).decisive)
        assert np.allclose(error_units(target, value).gram, error_units(scene, value).gram, rtol=1e-6)


def test_points_have_few_circumstances_and_one_has_all():
    many = assign_circumstances(covering_design("quick"))
    assert sum(map(len, many)) < 2 * len(many)
    assert all(many)
    (alone,) = assign_circumstances([Features((3,))])
    assert BASELINE in alone
    assert len(alone) >= len(CIRCUMSTANCES) - 3


def test_what_is_spread_meets_new_levels_first():
    points = [[("a", i % 2), ("b", i // 2)] for i in range(4)]
    result = distribute(points, [("x", range(4))] * 2)
    first, second = (points[i] for i, selection in enumerate(result) if selection)
    assert set(first).isdisjoint(second)
