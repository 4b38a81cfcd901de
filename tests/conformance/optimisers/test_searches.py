"""Whole searches on trial: bounds that hold, routines that lie, and what share of the maximum they find."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import solve_sylvester

import refgeo as rg
from refgeo.conformance.execution import drivers as routine
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.optimisers import searches


def ours(metric, problem, G, H, rho, order):
    pair = rg.Pair(G, H)

    def value_and_grad(place):
        value, grads = problem.value_and_grad(place.G, place.H)
        return value, rg.Pair(*grads)

    if metric == "adaptive":
        result = rg.adaptive_sharpness(value_and_grad, pair, rho, n_restarts=2)
    else:
        geometry = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}[metric]()
        result = rg.worst_case_sharpness(value_and_grad, pair, geometry, rho, order=order, n_restarts=2)
    return result.value, tuple(result.maximizer)


def is_short(network):
    """One diagonal network, and a wide one with several blocks."""
    return network.name == "net6/1" or (network.sizes[2] in (2, 3, 4) and network.sizes[3] > 1)


@pytest.fixture
def use_few_problems(monkeypatch):
    """A lie shows at any problem."""
    every = searches.make_problems
    monkeypatch.setattr(searches, "make_problems", lambda *what: filter(is_short, every(*what)))
    monkeypatch.setattr(searches, "RADII", (1e-2, 0.1))
    monkeypatch.setattr(searches, "_MAX_COLUMNS", 0)  # searches along integrated geodesics take long


def judge(routine, **options):
    return rg.check(SimpleNamespace(sharpness=routine), checks=["sharpness"], **options)


@pytest.mark.exhaustive
def test_our_search_is_judged_right_and_finds_nearly_all():
    report = judge(ours)
    assert report.passed
    rows = searches_of(report)
    assert [row.verdict for row in rows] == [Verdict.PASS] * 7
    for row in rows:
        result = [1.0 - e.relative_error for e in row.measurements]
        assert np.median(result) > 0.999, str(row)
        assert len(result) >= 10
    assert "% of the maximum" in rows[0].message


@pytest.mark.parametrize("seed", range(4, 8))
@pytest.mark.parametrize("order", [1, 2])
def test_model_steps_stay_horizontal_and_in_the_ball(order, seed):
    """At the minimum all directions are alike, and model steps magnify rounding: 9e-7 of ρ at seed 4, once."""
    net = next(net for net in searches.make_problems("quick", seed) if len(net.G) == 4)
    point, space = rg.Pair(net.G, net.H), rg.MixedMetric()
    problem = routine.Problem(net.X, net.y, list, np.asarray)
    for rho in (1e-4, 1e-3, 1e-2):
        _, steps = ours("mix", problem, *point, rho, order)
        xi, at = rg.Pair(*steps), space.at(point)
        assert np.linalg.norm(at.norm(at.vertical_projection(xi))) < 1e-12 * rho
        assert np.linalg.norm(at.norm(xi)) < rho * (1 + 1e-12)


def searches_of(report):
    """Its rows without those of conduct."""
    return [row for row in report.rows if row.kind == "search"]


def single(metric, problem, G, H, rho, order):
    """A search in single precision, whose perturbation is a difference of points."""
    value, (a, b) = ours(metric, problem, G.astype(float), H.astype(float), rho, order)
    return np.float32(value), ((G + a.astype("f4")) - G, (H + b.astype("f4")) - H)


@pytest.mark.slow
def test_a_search_in_single_precision_is_judged_by_its_roundoff(use_few_problems):
    def kept(metric, problem, G, H, rho, order):
        assert G.dtype == H.dtype == np.float32
        assert all(part.dtype == np.float32 for part in problem.value_and_grad(G, H)[1])
        return single(metric, problem, G, H, rho, order)

    def longer(*asked):
        value, steps = single(*asked)
        return value, tuple(1.05 * step for step in steps)

    assert judge(kept, dtype="float32").passed
    assert len(judge(longer, dtype="float32").wrong) == 7
    half = judge(single, dtype="bfloat16")
    assert {row.verdict for row in half.rows} == {Verdict.NOT_JUDGED}
    assert not half.passed, "nothing was judged"


def test_a_projection_in_single_precision_leaves_a_vertical_part_that_is_nobodys_mistake():
    message = []
    for network in searches.make_problems("quick", 0, "float32"):
        space = rg.InvariantMetric().at(rg.Pair(network.G, network.H))
        for seed in range(5 * (not network.is_diagonal)):
            rng = np.random.default_rng(seed)
            v_G, v_H = (rng.standard_normal(F.shape) for F in (network.G, network.H))
            blocks = [single_projection(*block) for block in zip(network.G, network.H, v_G, v_H, strict=True)]
            step = rg.Pair(*map(np.stack, zip(*blocks, strict=True)))
            step = step * float(0.9 / np.linalg.norm(space.norm(step)))
            vertical = space.vertical_vector(np.array([np.eye(network.sizes[2])] * network.sizes[3]))
            tilted = step + vertical * float(0.1 / np.linalg.norm(space.norm(vertical)))
            for item in (step, tilted):
                value = network.increase(rg.Pair(network.G + item.G, network.H + item.H))
                message.append(searches.SearchOutcome("inv", 1, network, 1.0, value, item).violation(np.inf))
    assert len(message) >= 40
    assert not any("horizontal" in item for item in message[::2])
    assert all("not horizontal" in item for item in message[1::2])


def single_projection(G, H, v_G, v_H):
    """Of inv, as somebody would write it."""
    G, H, v_G, v_H = (x.astype(np.float32) for x in (G, H, v_G, v_H))
    S, T = G.T @ G, H.T @ H
    L = solve_sylvester(S @ T, S @ T, S @ H.T @ v_H - v_G.T @ G @ T).T
    return (v_G + G @ L).astype(float), (v_H - H @ L.T).astype(float)


def change_routine(change):
    def routine(metric, problem, G, H, rho, order):
        value, (a, b) = ours(metric, problem, G, H, rho, order)
        return change(value, a, b, G, H)

    return routine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value, a, b, G, H: (value, (1.1 * a, 1.1 * b)), "leaves the ball"),
        (lambda value, a, b, G, H: (value, (0.7 * a + 0.01 * G * np.abs(a).max(), 0.7 * b)), "not horizontal"),
        (lambda value, a, b, G, H: (1.05 * value, (a, b)), "the step increases the loss by"),
        (lambda value, a, b, G, H: ((1.0 + 1e-5) * value, (a, b)), "the step increases the loss by"),
        (lambda value, a, b, G, H: (value * np.nan, (a, b)), "NaN"),
        (lambda value, a, b, G, H: value, "expected (value, (step_G, step_H))"),
    ],
)
def test_a_routine_that_lies_is_wrong(change, message, use_few_problems):
    report = judge(change_routine(change))
    exact = next(row for row in report.rows if str(row) == "sharpness_exact[inv]")
    assert exact.verdict is Verdict.WRONG
    assert message in exact.message
    assert not report.passed


def test_a_claim_above_the_proved_bound_is_wrong(monkeypatch):
    network = next(searches.make_problems("quick", 0))
    upper = searches._upper_bound("inv", network, 0.1)
    monkeypatch.setattr(searches.SearchProblem, "increase", lambda *x: 2.0 * upper)
    search = searches.SearchOutcome("inv", "exact", network, 0.1, 2.0 * upper, 0.0 * rg.Pair(network.G, network.H))
    assert "more than the proved bound" in search.violation(upper)


@pytest.mark.slow
def test_a_routine_that_finds_nothing_is_wrong():
    report = judge(lambda metric, problem, G, H, rho, order: (0.0, (0.0 * G, 0.0 * H)))
    rows = searches_of(report)
    assert {row.verdict for row in rows} == {Verdict.WRONG}
    assert "finds 0% of the maximum" in rows[0].message
    assert "one projected gradient step by" in rows[0].message


def test_a_search_that_returns_nan_finds_nothing():
    report = judge(lambda metric, problem, G, H, rho, order: (0.0, (np.nan * G, 0.0 * H)))
    assert all("nan%" not in row.message and "returned NaN" in row.message for row in searches_of(report))


def test_a_routine_that_finds_less_than_a_half_is_inaccurate(monkeypatch):
    """At a minimum of the loss, where no gradient step gains anything, half a radius along one coordinate."""
    every = searches.make_problems
    monkeypatch.setattr(searches, "make_problems", lambda *what: (net for net in every(*what) if net.name == "net4/0"))

    def short(metric, problem, G, H, rho, order):
        b = np.zeros_like(G)
        b[0] = 0.5 * rho / np.sqrt(2.0)
        value = problem.value_and_grad(G * (1 + b), H * (1 + b))[0] - problem.value_and_grad(G, H)[0]
        return value, (G * b, H * b)

    (row,) = rg.check(SimpleNamespace(sharpness=short), checks=["sharpness_1"], metrics=["inv"]).rows
    assert row.verdict is Verdict.INACCURATE
    assert re.search(r"finds [1-4]?\d\.\d+% of what refgeo", row.message)


@pytest.mark.slow
def test_what_a_routine_does_besides_is_a_finding(use_few_problems, capsys):
    def careless(metric, problem, G, H, rho, order):
        result = ours(metric, problem, G, H, rho, order)
        G *= 2.0
        return result

    report = judge(careless, metrics=["inv"])
    rows = {row.check: row for row in report.rows}
    assert {row.verdict for row in searches_of(report)} == {Verdict.PASS}
    assert rows["inputs_unchanged"].verdict is Verdict.CONTRACT
    assert rows["inputs_unchanged"].broken_by == ("sharpness",)
    assert not report.passed, "who writes to its inputs makes its caller's numbers wrong"
    report.print()
    shown = capsys.readouterr().out
    assert "inputs_unchanged: FAILS: writes to the arrays it gets (sharpness; net6/1/rho0.01 and 2 more)" in shown
    assert "4 of 4 searches pass" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda G, H: (G, np.abs(H)), "but the step increases the loss by"),
        (lambda G, H: (np.abs(G), H), "but the step increases the loss by"),
    ],
)
def test_signs_matter(mistake, said, use_few_problems):
    report = judge(lambda metric, problem, G, H, rho, order: ours(metric, problem, *mistake(G, H), rho, order))
    rows = searches_of(report)
    assert {row.verdict for row in rows} == {Verdict.WRONG}
    assert said in rows[0].message


@pytest.mark.slow
def test_a_result_kept_by_shape_and_radius_is_seen(monkeypatch):
    """Two problems have the same size."""
    monkeypatch.setattr(searches, "RADII", (0.1,))
    kept = {}

    def keeping(metric, problem, G, H, rho, order):
        key = metric, order, G.shape, rho
        if key not in kept:
            kept[key] = ours(metric, problem, G, H, rho, order)
        return kept[key]

    assert {row.verdict for row in searches_of(judge(keeping, metrics=["inv"]))} == {Verdict.WRONG}


def test_eighty_percent_of_the_maximum_pass_with_that_finding(use_few_problems, monkeypatch):
    """In two searches: in three, one projected gradient step that gains more would be too much."""
    every = searches.make_problems
    monkeypatch.setattr(searches, "make_problems", lambda *what: itertools.islice(every(*what), 1))

    def lazy(metric, problem, G, H, rho, order):
        step = 0.8
        value, (a, b) = ours(metric, problem, G, H, step * rho, order)
        return value, (a, b)

    report = judge(lazy)
    assert report.passed
    row = next(row for row in report.rows if str(row) == "sharpness_exact[inv]")
    assert 0.5 < np.median([1.0 - e.relative_error for e in row.measurements]) < 0.85


@pytest.mark.slow
def test_a_search_that_goes_down_is_wrong(use_few_problems):
    def down(metric, problem, G, H, rho, order):
        _, (a, b) = ours(metric, problem, G, H, rho, order)
        first = problem.value_and_grad(G, H)[0]
        return problem.value_and_grad(G - a, H - b)[0] - first, (-a, -b)

    row = next(row for row in judge(down).rows if str(row) == "sharpness_1[inv]")
    assert "the search descends: the step decreases the loss by" in row.message


@pytest.mark.slow
def test_the_reproduce_lines_of_searches_repeat_them(use_few_problems):
    report = judge(change_routine(lambda value, a, b, G, H: (2.0 * value, (a, b))))
    for row in searches_of(report):
        again = rg.check(
            SimpleNamespace(sharpness=change_routine(lambda value, a, b, G, H: (2.0 * value, (a, b)))),
            checks=[row.check], metrics=[row.metric] if row.metric != "adaptive" else ["inv"],
        )  # fmt: skip
        assert [str(item) for item in again.rows if item.metric == row.metric] == [str(row)]
        assert "relative error" not in " ".join(report.details(row))


def test_a_plain_callable_is_judged_by_the_order_that_it_uses(use_few_problems):
    def routine(value_and_grad, params, metric, rho):
        class Problem:
            @staticmethod
            def value_and_grad(G, H):
                return value_and_grad((G, H))

        return ours(metric, Problem, *params, rho, 2)

    report = rg.check(routine, checks=["sharpness"])
    assert report.passed
    result = {str(row) for row in searches_of(report)}
    assert result == {"sharpness_2[inv]", "sharpness_2[mix]", "sharpness_adaptive[adaptive]"}


def test_a_routine_cannot_change_the_judges_data(use_few_problems):
    def vandal(metric, problem, G, H, rho, order):
        problem.X[:], problem.y[:], G[:], H[:] = 0.0, 0.0, 1.0, 1.0
        return 0.0, (0 * G, 0 * H)

    for row in judge(vandal).rows:
        assert all(abs(e.relative_error - 1.0) < 1e-9 for e in row.measurements), "it finds nothing"


@pytest.mark.parametrize("share", [-0.5, -0.6])
def test_a_step_whose_end_a_rounding_decides_is_no_lie(share):
    """In mix, numbers g and h move as g·h does: with half of both lengths, g·h becomes 0 at t = 1 up to rounding."""
    u, v = np.array([0.7]), np.array([1.3])
    network = searches.SearchProblem.diagonal("mine", u, v, np.eye(1), np.array([5.0]))
    steps = share * network.G, share * network.H
    rho = 1.001 * searches._length("mix", network, rg.Pair(*steps))
    loss = float((5.0 - 0.91) ** 2)
    search = searches.SearchOutcome.of("mix", "exact", network, rho, (25.0 - loss, *steps, 1))
    violation = search.violation(np.inf)
    if share == -0.5:
        assert "leaves the domain" not in violation
    else:
        assert "leaves the domain" in violation
