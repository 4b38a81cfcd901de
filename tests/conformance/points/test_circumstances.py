"""What is met together: mistakes that show where two bands meet, in a layout, beside or between other calls."""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import sample

import refgeo as rg
from refgeo import paper
from refgeo.conformance.judging.scope import Scope
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.points.circumstances import CIRCUMSTANCES, assign_circumstances, combine
from refgeo.conformance.points.covering_design import covering_design

SEEDS = (0, 1, 2)


def row_of(check, seed=0, **functions):
    report = rg.check(SimpleNamespace(**functions), checks=[check, "thread_safe"], metrics=["mix"], seed=seed)
    return next(row for row in report.rows if row.check == check), {row.check: row for row in report.rows}


def gradient_where(is_wrong, solve=np.linalg.solve):
    """The gradient in mix, wrong in its last row where something holds."""

    def riemannian_gradient(metric, G, H, e_G, e_H):
        g_G, g_H = solve(H.mT @ H, e_G.mT).mT, solve(G.mT @ G, e_H.mT).mT
        if is_wrong(G, H):
            g_G[..., -1, :] = 0.0
        return g_G, g_H

    return riemannian_gradient


WHERE_TWO_MEET = {
    "tiles": lambda G, H: G.shape[-2] % 128 == 0,
    "a dozen heads of 64": lambda G, H: G.shape[-1] == 64 and G.ndim > 2 and len(G) > 8,
    "wide and κ = 30": lambda G, H: G.shape[-1] > 32 and np.linalg.cond(G).max() > 10.0,
    "two leading dimensions and long": lambda G, H: G.ndim > 3 and G.shape[-2] > 100,
    "wide and many": lambda G, H: G.shape[-1] > 16 and np.prod(G.shape[:-2]) > 20,
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), sample(list(itertools.product(WHERE_TWO_MEET, SEEDS)), 7))
def test_a_mistake_where_two_bands_meet_is_seen(name, seed):
    row, _ = row_of("riemannian_gradient", seed, riemannian_gradient=gradient_where(WHERE_TWO_MEET[name]))
    assert row.verdict is Verdict.WRONG


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_heads_side_by_side_are_a_layout(seed):
    def gathered(x):
        if x.strides[-1] != x.itemsize or min(x.strides) <= 0:
            return np.ascontiguousarray(x)
        return np.lib.stride_tricks.as_strided(x, x.shape, sorted(x.strides, reverse=True)).copy()

    right = gradient_where(lambda G, H: False)
    row, _ = row_of("riemannian_gradient", seed, riemannian_gradient=lambda m, *a: right(m, *map(gathered, a)))
    assert row.verdict is Verdict.WRONG
    assert "of heads side by side" in row.diagnosis


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_layout_is_tested_with_several_leading_dimensions(seed):
    points = covering_design("quick", seed)
    assigned = zip(points, assign_circumstances(points), strict=True)
    nested = itertools.chain(*(tested for f, tested in assigned if sum(size > 1 for size in f.blocks) > 1))
    missing = {c.name for c in CIRCUMSTANCES if c.kind == "layout"} - {c.name for c in nested}
    assert missing <= {"overlapping", "expanded"}, "these are for points that share arrays"


@pytest.mark.slow
def test_calls_of_the_same_metric_beside_each_other_are_tried():
    kept = SimpleNamespace()

    def riemannian_gradient(metric, G, H, e_G, e_H):
        kept.S, kept.T = G.mT @ G, H.mT @ H
        return np.linalg.solve(kept.T, e_G.mT).mT, np.linalg.solve(kept.S, e_H.mT).mT

    _, rows = row_of("riemannian_gradient", riemannian_gradient=riemannian_gradient)
    assert rows["thread_safe"].verdict is Verdict.CONTRACT


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda G, H: (G, H[..., :1, :]), id="G and the first row of H"),
        pytest.param(lambda G, H: (G[..., :1, :], H), marks=pytest.mark.exhaustive, id="H and the first row of G"),
        pytest.param(lambda G, H: (G, H.astype("f")), marks=pytest.mark.exhaustive, id="G and H in float32"),
        pytest.param(lambda G, H: (G, H.reshape(-1, *H.shape[-2:])[0]), id="G and the first block of H"),
    ],
)
def test_what_is_kept_by_the_whole_of_one_factor_and_a_part_of_the_other_is_seen(key):
    kept = {}

    def riemannian_gradient(metric, G, H, e_G, e_H):
        known = (metric, H.shape, *(x.tobytes() for x in key(G, H)))
        if kept.get("key") != known:
            kept.update(key=known, S=G.mT @ G, T=H.mT @ H)
        return np.linalg.solve(kept["T"], e_G.mT).mT, np.linalg.solve(kept["S"], e_H.mT).mT

    row, _ = row_of("riemannian_gradient", riemannian_gradient=riemannian_gradient)
    assert row.verdict is Verdict.WRONG


@pytest.mark.slow
def test_a_caller_may_write_to_a_result():
    kept = {}

    def riemannian_gradient(metric, G, H, e_G, e_H):
        key = tuple(x.tobytes() for x in (G, H, e_G, e_H))
        if key not in kept:
            kept[key] = tuple(map(np.array, paper.riemannian_gradient(metric, G, H, e_G, e_H)))
        return kept[key]

    row, _ = row_of("riemannian_gradient", riemannian_gradient=riemannian_gradient)
    assert row.verdict is Verdict.WRONG
    assert "whose result was written to" in row.diagnosis


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_wrong", "said"),
    [
        pytest.param(lambda G, H: (np.linalg.cond(G) * np.linalg.cond(H) > 60.0).any(), None, id="a product of two κ"),
        pytest.param(lambda G, H: G.size >= 64, None, marks=pytest.mark.exhaustive, id="numbers of the batch"),
        pytest.param(lambda G, H: H.shape[-1] >= 17, "wrong where h ≥ 17", id="h"),
        pytest.param(
            lambda G, H: G.shape[-1] >= 17 and np.linalg.cond(G).max() > 10.0,
            None,
            marks=pytest.mark.exhaustive,
            id="h and κ",
        ),
    ],
)
def test_a_bound_is_said_only_if_nothing_contradicts_it(is_wrong, said):
    row, _ = row_of("riemannian_gradient", riemannian_gradient=gradient_where(is_wrong))
    assert row.verdict is Verdict.WRONG
    if said:
        assert row.diagnosis.startswith(said)
    else:
        assert "wrong where" not in row.diagnosis
        assert "right when your function gets it alone" not in row.diagnosis


@pytest.mark.slow
def test_a_term_is_said_only_if_it_is_so_at_other_times():
    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != 2:
            raise NotImplementedError
        c_G, c_H = paper.christoffel(metric, G, H, v_G, v_H, v_G, v_H)
        s = max(t, -1.0)
        return G + t * v_G - 0.5 * s * s * c_G, H + t * v_H - 0.5 * s * s * c_H

    row, _ = row_of("geodesic_2", geodesic=geodesic)
    assert (row.diagnosis, row.differs) == ("wrong where t < -1", "")


def test_momentum_that_two_trajectories_share_is_seen():
    buffers = {}

    def step(state, G, H, e_G, e_H):
        m_G, m_H = buffers.get(G.shape, (0.0, 0.0)) if state else (0.0, 0.0)
        buffers[G.shape] = m_G, m_H = 0.9 * m_G + e_G, 0.9 * m_H + e_H
        return "started", G - 0.02 * m_G, H - 0.02 * m_H

    rows = {row.check: row for row in rg.check(step, checks=["step.repeatable"]).rows}
    assert rows["step.repeatable"].verdict is Verdict.WRONG
    assert "between its own" in rows["step.repeatable"].message


def test_random_numbers_of_a_rule_are_its_own():
    """Whatever other trajectories draw from the generators of the process."""

    def step(state, G, H, e_G, e_H):
        noise = 1.0 + 0.1 * np.random.standard_normal()  # noqa: NPY002
        return state, G - 0.01 * noise * e_G, H - 0.01 * noise * e_H

    assert rg.check(step, checks=["step.repeatable"]).passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_without", "how", "said"),
    [
        pytest.param(lambda X, h: X.shape[0] == X.shape[1], "nan", "is not finite, for every size", id="as many rows"),
        pytest.param(lambda X, h: h > 3, "raise", "LinAlgError: too large", id="h > 3"),
    ],
)
def test_what_has_no_result_from_both_representations_is_told_and_does_not_contradict(is_without, how, said):
    def step(state, G, H, e_G, e_H):
        if is_without(G @ H.mT, G.shape[-1]):  # whatever the representation
            if how == "raise":
                raise np.linalg.LinAlgError("too large")
            return state, np.nan * G, np.nan * H
        return state, G - 0.02 * np.linalg.solve(H.mT @ H, e_G.mT).mT, H - 0.02 * np.linalg.solve(G.mT @ G, e_H.mT).mT

    report = rg.check(step, checks=["step.invariant"])
    (row,) = (row for row in report.rows if row.kind == "trajectory")
    assert row.verdict is Verdict.PARTIAL
    assert report.passed
    assert not report.passed_strictly
    assert "no result at " in row.message
    assert said in row.message
    assert "invariant under" not in row.message


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scope_counts_pairs_of_levels_that_occur_in_one_call(seed):
    """Not pairs whose two levels occur in different calls. Each number here is in a level of its own."""
    rng = np.random.default_rng(seed)
    widths, counts = rng.choice((2, 8, 20, 40, 64), 3, replace=False), (3, 30, 300)
    met = {(int(h), int(h), int(h), int(rng.choice(counts)), 3.0) for h in widths for _ in range(2)}
    n_widths, n_counts = len(widths), len({size[3] for size in met})
    with_fixed = 3 * n_widths + 3 * n_counts + 3  # pairs with n = h, m = h or κ = 3, which all calls have
    together = len({(h, blocks) for h, _, _, blocks, _ in met})
    assert Scope(frozenset(met)).covered_pairs == (together + with_fixed, n_widths * n_counts + with_fixed)


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_a_scope_does_not_depend_on_the_order_of_sets(seed):
    code = "from refgeo.conformance.judging.scope import Scope\n"
    code += "met = {(h, h + 3 * k, h, b, 3.0) for h in range(2, 40) for k in (0, 1) for b in (1, 7)}\n"
    code += "print(Scope(frozenset(met), frozenset((word, 20, b) for word in 'abc' for b in (True, False))))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        text=True,
        capture_output=True,
        check=True,
    )
    assert result.stdout.startswith("h = 2 to 39, n = 2 to 42, m = 2 to 39, 1 to 7 blocks, κ = 3; ")
    assert result.stdout.endswith("together; 3 circumstances: 3 with h > 16, 3 with h > 16 and several blocks\n")


def test_a_range_says_how_many_values_it_has():
    met = {(h, h + more, h, 1, 3.0) for h in (2, 3, 16) for more in (1, 4)}
    assert str(Scope(frozenset(met))).startswith("h = 2 to 16 (3 values), n = 3 to 20, m = 2 to 16, 1 block")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["the first number is negative", "every seventh call"])
def test_what_has_nothing_to_do_with_threads_is_laid_to_none(kind):
    """Numbers in a thread have another sign than those of the plain call; a counter is wrong there now and then."""
    calls = itertools.count()

    def riemannian_gradient(metric, G, H, e_G, e_H):
        is_wrong = G.flat[0] < 0 if kind.startswith("the first") else next(calls) % 7 == 6
        g_G, g_H = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        return g_G * (1.001 if is_wrong else 1.0), g_H

    row, rows = row_of("riemannian_gradient", riemannian_gradient=riemannian_gradient)
    assert row.verdict is Verdict.WRONG
    assert not any(value.fails for value in rows.values() if value is not row)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(SEEDS))
def test_two_vectors_can_both_be_horizontal(seed):
    def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
        space = rg.MixedMetric().at(rg.Pair(G, H))
        both = all(np.all(space.is_horizontal(rg.Pair(*v), 1e-9)) for v in ((a_G, a_H), (b_G, b_H)))
        return tuple((1.0 + 0.01 * both) * x for x in paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H))

    assert row_of("christoffel", seed, christoffel=christoffel)[0].verdict is Verdict.WRONG


def test_what_fails_only_in_two_circumstances_at_once_is_wrong():
    """Arrays that are not contiguous, right after a call in the other metric, and neither of the two alone."""
    latest = [""]

    def riemannian_gradient(metric, G, H, e_G, e_H):
        is_changed, latest[0] = metric != latest[0], metric
        right = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        is_strided = not G.flags.c_contiguous
        return tuple(2.0 * x for x in right) if is_changed and is_strided else right

    report = rg.check(
        SimpleNamespace(riemannian_gradient=riemannian_gradient), checks=["riemannian_gradient"], metrics=["mix"],
    )  # fmt: skip
    assert report.wrong == ["riemannian_gradient[mix]"]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_shares_a_call_is_tested_alone_elsewhere(seed):
    """As another circumstance may mask it."""
    points = covering_design("quick", seed)
    assigned = zip(points, assign_circumstances(points), strict=True)
    groups = [group for f, circumstances in assigned for group in combine(circumstances, f.h)]
    assert {group[0] for group in groups if len(group) == 1} >= set(CIRCUMSTANCES)
    assert seed != 0 or sum(len(group) > 1 for group in groups) > 10
