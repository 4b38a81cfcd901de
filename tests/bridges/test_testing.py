"""Helpers for somebody's own tests: items, selection, expected failures, and one assertion for one result."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import FUNCTIONS, METRICS, backend

import refgeo as rg
from refgeo import paper
from refgeo.conformance.execution import host  # noqa: F401  # so that no run within a run imports it anew
from refgeo.conformance.protocol.operations import OPERATIONS

ARGUMENTS = {name: OPERATIONS[name].vectors for name in FUNCTIONS}

pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(
        mine="""
        from refgeo.paper import *
        from refgeo import paper

        def christoffel(metric, *arguments):
            c_G, c_H = paper.christoffel(metric, *arguments)
            return (2 * c_G, 2 * c_H) if metric == "inv" else (c_G, c_H)

        def riemannian_hessian(*arguments):
            raise NotImplementedError("on our list")
        """
    )
    pytester.makeconftest("import warnings")

    def run(decorator_arguments, *options):
        pytester.makepyfile(
            test_mine=f"""
            import mine
            import refgeo as rg

            @rg.testing.parametrize_with_checks([mine], {decorator_arguments})
            def test_geometry(backend, check):
                check(backend)
            """
        )
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rA", *options)

    return run


@pytest.mark.slow
def test_items_are_selected_by_name_and_fail_with_the_reason(suite):
    result = suite('checks=["christoffel", "inner_product"]', "-k", "christoffel")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert outcomes["deselected"] > 6
    result.stdout.fnmatch_lines(
        [
            "*cause      your result is 2 times the right one*",
            "FAILED *mine-inv-christoffel*",
        ]
    )


@pytest.mark.slow
def test_a_rule_of_conduct_is_an_item_for_all_functions_and_names_who_breaks_it():
    arguments = ("metrics", ("inv",)), ("checks", ("christoffel", "inner_product"))
    check = rg.testing.BackendCheck("inputs_unchanged", "", arguments)
    check(paper)

    def careless(metric, G, H, a_G, *a):
        result = paper.christoffel(metric, G, H, a_G, *a)
        a_G *= 2.0
        return result

    with pytest.raises(AssertionError, match=r"inputs_unchanged: FAILS: changed its input a_G \(christoffel; "):
        check(backend(christoffel=careless))


@pytest.mark.slow
def test_a_check_called_often_keeps_one_process():
    check = rg.testing.BackendCheck("inner_product", "inv")
    check(paper)
    known = rg.testing._backend(paper)
    check(paper)
    assert rg.testing._backend(paper) is known


@pytest.mark.slow
def test_what_is_not_provided_is_skipped_with_the_reason(suite):
    result = suite('checks=["riemannian_hessian"], metrics=["mix"]')
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"skipped"}
    result.stdout.fnmatch_lines(["SKIPPED *not provided: *on our list*"])


@pytest.mark.slow
def test_expected_failures_are_reported_with_their_reason(suite):
    result = suite(
        'checks=["christoffel"], metrics=["inv"], expected_failures={"mine": {"christoffel": "known since May"}}'
    )
    outcomes = result.parseoutcomes()
    assert outcomes["xfailed"] == 1
    assert "failed" not in outcomes, "one entry is enough: the laws of a wrong function are skipped"
    result.stdout.fnmatch_lines(["XFAIL *mine-inv-christoffel* known since May"])


@pytest.mark.slow
def test_an_expected_failure_that_passes_is_a_failure(suite):
    result = suite('checks=["inner_product"], metrics=["mix"], expected_failures={"inner_product[mix]": "was wrong"}')
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*[[]XPASS(strict)[]] was wrong*"])


@pytest.mark.exhaustive
def test_update_rules_are_items_of_backends_that_have_them(pytester):
    pytester.makepyfile(
        mine="""
        def step(state, G, H, e_G, e_H, rate=0.1):
            return state, G - rate * e_G, H - rate * e_H
        """
    )
    pytester.makepyfile(
        """
        import mine
        import refgeo as rg

        failures = {"step.invariant[rate=0.1]": "gradient descent", "step.invariant[rate=0.2]": "too"}
        options = {"rate": [0.1, 0.2]}

        @rg.testing.parametrize_with_checks([mine], expected_failures=failures, options=options)
        def test_mine(backend, check):
            check(backend)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rA", "-k", "step")
    assert {"xfailed": 2, "passed": 6}.items() <= result.parseoutcomes().items()
    result.stdout.fnmatch_lines(
        ["PASSED *mine-step.repeatable[[]rate=0.1]*", "XFAIL *mine-step.invariant[[]rate=0.2]*"]
    )
    assert not [item for item in rg.testing.parametrize_with_checks([paper]).args[1] if "step" in item.id]


def test_options_of_an_expected_failure_stand_in_any_order():
    options, name = {"momentum": [0], "eps": [1e-6]}, "step.invariant[eps=1e-6,momentum=0]"
    mark = rg.testing.parametrize_with_checks([paper_step], options=options, expected_failures={name: "known"})
    known = [item.id for item in mark.args[1] if item.marks and item.marks[0].name == "xfail"]
    assert known == ["paper_step-step.invariant[momentum=0, eps=1e-06]"]


def paper_step(state, G, H, e_G, e_H, momentum=0.0, eps=0.0):
    return state, G, H


def test_checks_of_which_a_backend_has_no_function_are_an_error():
    with pytest.raises(ValueError, match="has none of the functions of these checks, step, make"):
        rg.testing.parametrize_with_checks([paper], checks=["step"])


def test_one_name_may_be_given_alone():
    mark = rg.testing.parametrize_with_checks([paper], metrics="inv", checks="inner_product", dtype="float64")
    assert mark.args[1][0].id == "refgeo.paper-inv-inner_product"


def test_every_check_of_every_metric_and_dtype_is_an_item_and_names_differ():
    mark = rg.testing.parametrize_with_checks([paper, "refgeo.paper"], dtype=("float64", "float32"))
    from refgeo.conformance.judging.checks import select_checks

    ids = [item.id for item in mark.args[1]]
    kinds = [entry.kind for entry in select_checks(None) if entry.name != "retraction"]
    # the law of the retraction, which the formulas lack, is one skipped item of each
    assert len(ids) == 2 * (2 * (2 * kinds.count("value") + kinds.count("contract")) + 1)
    assert "refgeo.paper-mix-geodesic_2-float32" in ids
    assert "refgeo.paper-dtype_kept" in ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"expected_failures": {"christofel": "typo"}},
            "expected_failures: 'christofel' is unknown; did you mean christoffel",
        ),
        ({"expected_failures": {"christoffel[max]": "typo"}}, 'expected_failures: expected "inv", "mix" or'),
        ({"expected_failures": {"christoffel": ""}}, "expected a text that says why christoffel fails, got ''"),
        ({"checks": ["curvature"]}, "is none of"),
        ({"checks": []}, "checks: expected at least one check, got none"),
        ({"metrics": ["euclid"]}, 'metrics: expected "inv", "mix" or'),
        ({"dtype": ["float8"]}, "dtype: expected one of"),
    ],
)
def test_bad_options_are_named_when_tests_are_collected(options, message):
    with pytest.raises(ValueError, match=message):
        rg.testing.parametrize_with_checks([paper], **options)


def arguments_of(function, metric, seed=0, batch=(3,)):
    rng = np.random.default_rng(seed)
    n, m, h = 6, 5, 3
    arrays = [rng.standard_normal((*batch, n, h)), rng.standard_normal((*batch, m, h))]
    for _ in ARGUMENTS[function]:
        arrays += [rng.standard_normal((*batch, n, h)), rng.standard_normal((*batch, m, h))]
    if function == "riemannian_hessian":
        point, v = rg.Pair(*arrays[:2]), rg.Pair(*arrays[-2:])
        arrays[-2:] = METRICS[metric]().at(point).horizontal_projection(v)
    return (*arrays, 0.3, 2) if function == "geodesic" else tuple(arrays)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("function", ARGUMENTS)
def test_assert_matches_takes_right_results_and_refuses_small_errors(function, metric):
    arguments = arguments_of(function, metric)
    right = getattr(paper, function)(metric, *arguments)
    rg.testing.assert_matches(right, function, metric, *arguments)
    off = tuple(x * (1 + 1e-8) for x in right) if isinstance(right, tuple) else right * (1 + 1e-8)
    with pytest.raises(
        AssertionError, match=rf"{function}\[{metric}\] does not match: the relative error is .*in block"
    ):
        rg.testing.assert_matches(off, function, metric, *arguments)


def test_assert_matches_judges_float32_by_its_own_roundoff():
    arguments = [a.astype(np.float32) for a in arguments_of("christoffel", "inv")]
    single = paper.christoffel("inv", *arguments)
    assert single[0].dtype == np.float32
    rg.testing.assert_matches(single, "christoffel", "inv", *arguments)
    double = tuple(part.astype(np.float64) for part in single)
    with pytest.raises(AssertionError):
        rg.testing.assert_matches(double, "christoffel", "inv", *arguments)
    rg.testing.assert_matches(double, "christoffel", "inv", *arguments, dtype="float32")


@pytest.mark.filterwarnings("error")
def test_assert_matches_takes_lists_pairs_and_refuses_what_overflows():
    arguments = arguments_of("inner_product", "inv")
    right = paper.inner_product("inv", *arguments)
    rg.testing.assert_matches(list(right), "inner_product", "inv", *arguments)
    with pytest.raises(AssertionError, match="does not match"):
        rg.testing.assert_matches([1.0, 2.0, 3.0], "inner_product", "inv", *arguments)
    with pytest.raises(AssertionError, match="does not match"):
        rg.testing.assert_matches(np.full(3, 1e300), "inner_product", "inv", *arguments)
    G, H, v_G, v_H, *_ = arguments
    pair = rg.MixedMetric().at(rg.Pair(G, H)).horizontal_projection(rg.Pair(v_G, v_H))
    rg.testing.assert_matches(pair, "horizontal_projection", "mix", G, H, v_G, v_H)
    end = paper.geodesic("mix", G, H, v_G, v_H, 0.5, 2)
    rg.testing.assert_matches(end, "geodesic", "mix", G, H, v_G, v_H, 0.5, 2.0)
    for t, order, message in (
        (np.array([0.5]), 2, "t: expected a finite number"),
        (0.5, True, "order: expected 1, 2"),
        (1e160, 2, "alone can cause an error of any size"),
    ):
        with pytest.raises(ValueError, match=message):
            rg.testing.assert_matches(end, "geodesic", "mix", G, H, v_G, v_H, t, order)


def test_assert_matches_names_the_mistake_and_shows_both():
    arguments = arguments_of("christoffel", "mix", batch=())
    double = tuple(2 * x for x in paper.christoffel("mix", *arguments))
    with pytest.raises(AssertionError, match="does not match: the relative error is") as caught:
        rg.testing.assert_matches(double, "christoffel", "mix", *arguments)
    text = str(caught.value)
    assert re.search(r"\nG\[\d, \d\] is \S+ and not \S+, H\[\d, \d\] is ", text)


def test_assert_matches_knows_the_exact_geodesic_of_inv():
    G, H, v_G, v_H = arguments_of("geodesic", "inv", batch=())[:4]
    end = rg.InvariantMetric().at(rg.Pair(G, H)).geodesic(rg.Pair(v_G, v_H), 0.3, "exact")
    rg.testing.assert_matches(tuple(end), "geodesic", "inv", G, H, v_G, v_H, 0.3, "exact")
    with pytest.raises(AssertionError):
        rg.testing.assert_matches(tuple(end * (1 + 1e-7)), "geodesic", "inv", G, H, v_G, v_H, 0.3, "exact")
    with pytest.raises(ValueError, match="no closed form"):
        rg.testing.assert_matches(tuple(end), "geodesic", "mix", G, H, v_G, v_H, 0.3, "exact")
    vector = arguments_of("geodesic", "mix", batch=())
    G, H, v_G, v_H = (x[:, :1] for x in vector[:4])
    end = rg.MixedMetric().at(rg.Pair(G, H)).geodesic(rg.Pair(v_G, v_H), 0.1, "exact")
    rg.testing.assert_matches(tuple(end), "geodesic", "mix", G, H, v_G, v_H, 0.1, "exact")
    with pytest.raises(AssertionError):
        rg.testing.assert_matches(tuple(end * (1 + 1e-7)), "geodesic", "mix", G, H, v_G, v_H, 0.1, "exact")


def test_assert_matches_uses_the_time_as_it_is():
    """0.1 is no float32 number."""
    *vectors, _, _ = arguments_of("geodesic", "inv")
    right = paper.geodesic("inv", *vectors, 0.1, 1)
    rg.testing.assert_matches(right, "geodesic", "inv", *vectors, 0.1, 1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a, x: (a[:-1], x), ValueError, "expected the arguments G, H, v_G, v_H, got 3"),
        (lambda a, x: (a, x[0]), AssertionError, "expected a tuple of 2 arrays"),
        (lambda a, x: (a, (x[0], x[1][:, :-1])), AssertionError, "expected shape"),
        (lambda a, x: (a, (x[0] * np.nan, x[1])), AssertionError, "relative error is inf"),
        (lambda a, x: ((a[0], a[1], 0 * a[2], 0 * a[3]), x), AssertionError, "does not match"),
        (lambda a, x: ((a[0] * [1, 1, 1e-6], *a[1:]), x), ValueError, "alone can cause an error of any size"),
    ],
)
def test_assert_matches_says_what_does_not_fit(change, error, message):
    arguments = arguments_of("horizontal_projection", "inv", batch=())
    result = paper.horizontal_projection("inv", *arguments)
    changed, actual = change(arguments, result)
    with pytest.raises(error, match=message):
        rg.testing.assert_matches(actual, "horizontal_projection", "inv", *changed)


def test_unknown_functions_and_metrics_are_named():
    item = np.ones((1, 1))
    with pytest.raises(ValueError, match="function: expected one of"):
        rg.testing.assert_matches(1.0, "norm", "inv", item, item)
    with pytest.raises(ValueError, match='metric: expected "inv", "mix" or'):
        rg.testing.assert_matches(1.0, "inner_product", "euclid", item, item, item, item, item, item)


@pytest.mark.slow
def test_a_check_can_be_called_outside_pytest():
    check = rg.testing.BackendCheck("horizontal_projection", "inv")
    check(paper)
    with pytest.raises(AssertionError, match="cause      not found: no formula"):
        rg.testing.BackendCheck("christoffel", "inv")(backend(christoffel=lambda m, G, H, *a: (0.9 * a[0], 0.9 * a[1])))


def in_place(state, G, H, e_G, e_H, rate=0.1):
    G -= rate * e_G
    H -= rate * e_H
    return state, G, H


def greedy(metric, problem, G, H, rho, order):
    step = 1e-3 * rho * G / np.linalg.norm(G)
    G *= 2.0
    return problem.value_and_grad(G + step, H)[0] - problem.value_and_grad(G, H)[0], (step, 0.0 * H)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("function", "routine", "rule", "said"),
    [
        ("step", in_place, "inputs_unchanged", "changed its input G, H"),
        ("sharpness", greedy, "inputs_unchanged", "writes to the arrays it gets"),
    ],
)
def test_rules_of_conduct_are_items_of_update_rules_and_searches(function, routine, rule, said):
    items = rg.testing.parametrize_with_checks([SimpleNamespace(**{function: routine})]).args[1]
    checks = {item.values[1].name: item.values[1] for item in items if item.values[1]}
    mine = items[0].values[0]
    with pytest.raises(AssertionError, match=rf"{rule}: {said}"):
        checks[rule](mine)
    assert "thread_safe" not in checks, "nothing watches it in whole searches and update rules"
    with pytest.raises(pytest.skip.Exception, match="not provided: no function riemannian_hessian"):
        rg.testing.BackendCheck("riemannian_hessian", "inv")(mine)


@pytest.mark.exhaustive
def test_a_rule_that_adds_an_epsilon_is_declared_in_tests_too():
    def damped(state, G, H, e_G, e_H, eps=1e-3):
        S, T = (F.mT @ F + eps * np.eye(F.shape[-1]) for F in (G, H))
        return state, G - 0.1 * e_G @ np.linalg.inv(T), H - 0.1 * e_H @ np.linalg.inv(S)

    for relaxation in (0.0, 1e-3):
        items = rg.testing.parametrize_with_checks(
            [SimpleNamespace(step=damped)], checks=["step.invariant"], relaxation=relaxation, options={"eps": 1e-3}
        ).args[1]
        (item,) = (item for item in items if "step.invariant[eps=0.001]" in item.id)
        implementation, check = item.values
        if relaxation:
            check(implementation)
        else:
            with pytest.raises(AssertionError, match="depends on the representation"):
                check(implementation)


@pytest.mark.slow
def test_what_is_not_provided_is_one_skipped_item(pytester):
    pytester.makepyfile(
        gradient_alone="from refgeo.paper import riemannian_gradient",
        test_mine="""
        import gradient_alone
        import refgeo as rg

        @rg.testing.parametrize_with_checks([gradient_alone])
        def test_geometry(backend, check):
            check(backend)
        """,
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs", "-k", "provided or gradient")
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(["*not provided: *inner_product*christoffel*"])
    assert result.parseoutcomes()["passed"] >= 2


@pytest.mark.parametrize("exponent", [-3, -15])
def test_assert_matches_is_undecided_where_a_rounding_of_the_arguments_decides(exponent):
    """A geodesic of mix that passes the end of the manifold, at this distance."""
    G, H = np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]])
    v_G, v_H = np.array([[-1.5], [10.0**exponent]]), np.array([[-1.5], [10.0**exponent]])
    arguments = ("geodesic", "mix", G, H, v_G, v_H, 1.0, "exact")
    wrong = np.array([[-1.0], [1.0]]), np.array([[1.0], [1.0]])
    if exponent == -3:
        right = rg.MixedMetric().at(rg.Pair(G, H)).geodesic(rg.Pair(v_G, v_H), 1.0, "exact")
        rg.testing.assert_matches(right, *arguments)
        with pytest.raises(AssertionError, match="does not match"):
            rg.testing.assert_matches(wrong, *arguments)
    else:
        with pytest.raises(ValueError, match="rounding in float64 alone can cause an error of any size"):
            rg.testing.assert_matches(wrong, *arguments)
