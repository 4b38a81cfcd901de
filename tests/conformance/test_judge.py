"""refgeo check: right backends pass, wrong ones are named, missing or unusable results never pass."""

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import FUNCTIONS, backend, bert_layer, sample

import refgeo as rg
from refgeo import exact, paper
from refgeo.conformance import Backend, BackendError
from refgeo.conformance.judging.checks import CHECKS
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.points.scene import Scene
from refgeo.conformance.protocol.conduct import RULES
from refgeo.conformance.protocol.operations import OPERATIONS, VALUES

SOME = ["1x1x1", "1x5x1", "7x4x1/k3", "4x4x4", "10x9x4/k10", "2-6x7x2"]
"""Points enough for a wrong formula; `refgeo check` itself runs the whole profile on the literal ones."""

EVERY = [f"{name}[{metric}]" for name in VALUES if name != "geodesic_exact" for metric in ("inv", "mix")]


def verdicts(report):
    return {str(row): row.verdict for row in report.rows if row.kind == "value"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sample(["float64", "float32"]))
def test_the_literal_formulas_pass_and_are_told_their_lost_digits(dtype):
    report = rg.check(dtype=dtype, cases=[*SOME, "10x9x4/k10000", "4-25x24x6", "20-1x1x1"])
    assert report.passed
    assert {name for name, verdict in verdicts(report).items() if verdict is Verdict.PASS} == set(EVERY)
    projection = next(row for row in report.rows if str(row) == "horizontal_projection[inv]")
    if dtype == "float64":
        assert projection.digits_lost >= 5
        assert projection.lossy_case.condition > 10
    else:  # no block with κ above 12 is decisive, so none loses a whole digit
        assert projection.lossy_case is None
    provided = [row for row in report.rows if row.verdict is not Verdict.NOT_PROVIDED]
    judged = [row for row in provided if row.kind == "value"]
    assert all(row.worst_ratio < 10 for row in judged), "a right backend should be far from the threshold"
    assert all(0 < row.decisive_points <= row.points for row in judged)
    assert all(row.points > 30 for row in judged)
    rules = {name for name, item in CHECKS.items() if item.kind == "contract"}
    assert {row.check for row in provided if row.kind != "value"} == rules
    assert len(report.rows) <= 45


@pytest.mark.slow
def test_the_factorised_route_passes_and_loses_no_digits():
    def vectors(function):
        def call(metric, G, H, *arguments):
            count = 2 * len(OPERATIONS[function].vectors)
            parts, extra = arguments[:count], arguments[count:]
            if "exact" in extra:
                raise NotImplementedError("it takes its time; test_exact judges it")
            space = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}[metric]().at(rg.Pair(G, H))
            pairs = [rg.Pair(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
            result = getattr(space, function)(*pairs, *extra)
            return tuple(result) if isinstance(result, rg.Pair) else result

        return call

    factorised = SimpleNamespace(**{name: vectors(name) for name in FUNCTIONS})
    report = rg.check(factorised, cases=[*SOME, "10x9x4", "4-25x24x6"])
    assert report.passed
    assert not report.findings
    assert all(row.digits_lost < 1 for row in report.rows)


def scale_result(function, factor, metrics=("inv", "mix")):
    def call(metric, *arguments):
        result = function(metric, *arguments)
        if metric not in metrics:
            return result
        return tuple(factor * part for part in result) if isinstance(result, tuple) else factor * result

    return call


@pytest.mark.slow
@pytest.mark.parametrize(("name", "metric"), sample([(f, m) for m in ("inv", "mix") for f in FUNCTIONS], 7))
def test_a_result_off_by_one_part_in_a_billion_is_wrong_and_nothing_else_is(name, metric):
    broken = backend(**{name: scale_result(getattr(paper, name), 1 + 1e-9, (metric,))})
    report = rg.check(broken, cases=SOME)
    expected = [row for row in EVERY if row.startswith(name) and row.endswith(f"[{metric}]")]
    assert sorted(report.wrong) == sorted(expected)
    assert not report.passed


def both(function):
    return {row for row in EVERY if row.startswith(function)}


def raising(*arguments):
    raise RuntimeError("no such kernel")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising, "RuntimeError: no such kernel"),
        (lambda *arguments: None, "expected a tuple of 2 arrays"),
        (lambda *arguments: (arguments[1],), "expected a tuple of 2 arrays .*, got 1 parts"),
        (lambda m, G, H, a, b: (a, b[..., :1, :]), "expected shape"),
        (lambda m, G, H, a, b: (a + 0j, b), "expected real numbers, got dtype complex"),
        (lambda m, G, H, a, b: (a * np.nan, b), "NaN or infinity"),
    ],
)
def test_unusable_results_are_failures_with_the_reason(function, message):
    broken, checks = backend(horizontal_projection=function), ["horizontal_projection"]
    report = rg.check(broken, checks=checks, metrics=["inv"], cases=SOME)
    row = report.rows[0]
    assert row.verdict is Verdict.WRONG
    assert re.search(message, row.message), row.message
    assert not any(line.startswith("  expected") for line in report.details(row)), "a formula is for wrong numbers"
    json.loads(report.to_json())


@pytest.mark.slow
def test_failing_only_where_nothing_can_be_expected_is_a_lost_digit_not_an_error():
    """A Cholesky factorisation that breaks down at κ = 1e6 has no digits there: no wrong formula, but it is said."""

    def breaks_down(metric, G, H, *vectors):
        if np.linalg.cond(G).max() > 1e5:
            raise np.linalg.LinAlgError("not positive definite")
        return paper.horizontal_projection(metric, G, H, *vectors)

    report = rg.check(backend(horizontal_projection=breaks_down), checks=["horizontal_projection"])
    assert report.passed
    values = [row for row in report.rows if row.kind == "value"]
    assert all("not positive definite" in row.no_result and "no result" in row.outcome for row in values)


@pytest.mark.slow
def test_what_is_not_provided_is_said_and_never_passed():
    def inv_only(metric, *arguments):
        if metric != "inv":
            raise NotImplementedError("mix is on our list")
        return paper.riemannian_gradient(metric, *arguments)

    report = rg.check(backend(riemannian_gradient=inv_only, christoffel=None), cases=SOME)
    missing = {name for name, verdict in verdicts(report).items() if verdict is Verdict.NOT_PROVIDED}
    exact_geodesics = {"geodesic_exact[inv]", "geodesic_exact[mix]"}
    assert missing == {"riemannian_gradient[mix]", "christoffel[inv]", "christoffel[mix]"} | exact_geodesics
    assert report.passed
    nothing = rg.check(backend(christoffel=None), checks=["christoffel"])
    assert not nothing.passed


def test_points_that_cannot_tell_give_no_verdict():
    report = rg.check(checks=["horizontal_projection"], metrics=["inv"], cases=["10x9x4/k1e+06"], dtype="float32")
    assert report.rows[0].verdict is Verdict.UNDECIDED
    assert not report.passed


def test_a_point_without_an_enclosure_is_reported_and_not_used(monkeypatch):
    def hopeless(self, v):
        raise exact.EnclosureError("balls too wide")

    monkeypatch.setattr(exact.ExactTangentSpace, "horizontal_projection", hopeless)
    monkeypatch.setattr(Scene, "reference", lambda *_: None)  # which might acquit
    # a seed of its own, since enclosures are kept for the next run
    report = rg.check(checks=["horizontal_projection", "inner_product"], metrics=["inv"], cases=["10x9x4"], seed=991)
    inner, projection = (row for row in report.rows if row.kind == "value")
    assert inner.verdict is Verdict.PASS
    assert projection.verdict is Verdict.UNDECIDED
    assert "not judged" in projection.message
    assert projection.points == 0


def test_backends_convert_both_ways_and_get_their_dtype():
    seen = set()

    class Foreign:
        def __init__(self, array):
            self.array = array

    def asarray(array):
        seen.add(array.dtype.name)
        return Foreign(array)

    def gradient(metric, *arguments):
        return tuple(Foreign(p) for p in paper.riemannian_gradient(metric, *(a.array for a in arguments)))

    foreign = SimpleNamespace(asarray=asarray, to_numpy=lambda a: a.array, riemannian_gradient=gradient)
    report = rg.check(foreign, checks=["riemannian_gradient"], dtype="float32", cases=SOME)
    assert report.passed
    assert seen == {"float32"}


def test_results_with_a_graph_are_read_without_it():
    class Tensor:
        def __init__(self, array):
            self.array = array

        def detach(self):
            return self.array

        def __array__(self, *args, **kwargs):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")

    def gradient(*arguments):
        return tuple(map(Tensor, paper.riemannian_gradient(*arguments)))

    assert rg.check(backend(riemannian_gradient=gradient), checks=["riemannian_gradient"], cases=SOME).passed
    G, H, e_G, e_H = np.random.default_rng(0).standard_normal((4, 5, 2))
    rg.testing.assert_matches(gradient("inv", G, H, e_G, e_H), "riemannian_gradient", "inv", G, H, e_G, e_H)


def test_who_takes_no_arrays_of_numpy_is_told_how_to_convert():
    def gradient(metric, *arguments):
        raise TypeError(f"argument 'A' must be Tensor, not numpy.ndarray, got {len(arguments)}")

    message = {}
    for name, more in {"plain": {}, "converts": {"asarray": lambda x: x}}.items():
        report = rg.check(
            backend(riemannian_gradient=gradient, **more), checks=["riemannian_gradient"], cases=["5x4x2"]
        )
        message[name] = report.failures[0].message
        assert report.failures[0].points == 1, "the point, and not each circumstance"
    assert "the backend has no asarray (PyTorch: asarray = torch.from_numpy)" in message["plain"]
    assert "asarray" not in message["converts"]


@pytest.mark.slow
def test_loading_backends_by_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from refgeo.paper import inner_product\nclass Box:\n    inner_product = staticmethod(inner_product)\n"
    )
    for spec in (str(file), f"{file}:Box", "refgeo.paper"):
        assert rg.check(spec, checks=["inner_product"], cases=["1x1x1"]).passed
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for spec, message in (
        ("no_such_module", "importing it raised ModuleNotFoundError"),
        (str(tmp_path / "nothing.py"), "no such file"),
        (str(tmp_path / "broken.py"), "ZeroDivisionError"),
        (f"{file}:Bag", "has no 'Bag'"),
        ("json", "expected at least one of the functions"),
    ):
        with pytest.raises(BackendError, match=message):
            Backend(spec)


def test_unknown_options_are_named():
    for options, message in (
        ({"metrics": ["euclid"]}, 'metrics: expected "inv", "mix" or'),
        ({"checks": ["curvature"]}, "is none of"),
        ({"dtype": "float8"}, "dtype: expected"),
        ({"profile": "slow"}, "profile: expected"),
        ({"cases": ["1x1x1"], "checks": ["step"]}, "got step: searches and update rules choose points of their own"),
        ({"cases": ["nowhere"]}, "none of the test points is called nowhere"),
        ({"checkpoint": {}}, "layout: expected one of refgeo.networks.LAYOUTS"),
    ):
        with pytest.raises(ValueError, match=message):
            rg.check(**options)


@pytest.mark.slow
def test_a_network_gives_the_test_points():
    state = bert_layer(8)
    report = rg.check(checkpoint=state, layout="bert", heads=2)
    assert report.passed
    values = [row for row in report.rows if row.kind == "value" and row.verdict is Verdict.PASS]
    assert {row.points for row in values} == {4}
    assert {row.check for row in report.rows if row.kind == "contract" and row.verdict is Verdict.PASS} == {*RULES}
    assert report.rows[0].worst_case.case.startswith("encoder.layer.0.attention.")


@pytest.mark.slow
def test_large_heads_come_in_portions_and_none_is_left_out(monkeypatch):
    """A mistake in the fifth of six heads is seen; a portion has a name of its own."""
    from refgeo.conformance.points import sources as points

    state = bert_layer(24)
    network = {"checkpoint": state, "layout": "bert", "heads": 6, "checks": ["christoffel"], "metrics": ["inv"]}
    monkeypatch.setattr(points, "_MAX_ENTRIES", 2 * (25 + 25) * 4)
    fifth = state["encoder.layer.0.attention.self.query.weight"][16:20].T

    def christoffel(metric, G, *rest):
        parts = paper.christoffel(metric, G, *rest)
        hit = np.all(np.isin(G[..., :24, :], fifth), axis=(-2, -1)) if G.shape[-2] == 25 else False
        return tuple(np.where(np.asarray(hit)[..., None, None], 2.0 * part, part) for part in parts)

    report = rg.check(backend(christoffel=christoffel), **network)
    row = next(row for row in report.rows if row.check == "christoffel")
    assert row.verdict is Verdict.WRONG
    assert str(row.example) == "encoder.layer.0.attention.query_key/4-5[0]"
    assert {e.case.rpartition("/")[2] for e in row.measurements} == {"0-1", "2-3", "4-5"}
    assert row.points == 12
    again = rg.check(backend(christoffel=christoffel), **network, cases=["encoder.layer.0.attention.query_key/4-5"])
    assert again.wrong == ["christoffel[inv]"]
    assert rg.check(**network, cases=["encoder.layer.0"]).rows[0].points == 12


def test_the_first_rows_of_large_heads_are_what_is_enclosed(monkeypatch):
    from refgeo.conformance import judge
    from refgeo.conformance.points import scene
    from refgeo.conformance.points import sources as points

    monkeypatch.setattr(points, "MAX_ENCLOSED_SIZE", 700)
    monkeypatch.setattr(scene, "MAX_ENCLOSED_SIZE", 700)
    monkeypatch.setattr(judge, "MAX_ENCLOSED_SIZE", 700)
    report = rg.check(checkpoint=bert_layer(24), layout="bert", heads=6, checks=["christoffel"], metrics=["inv"])
    row = report.rows[0]
    assert report.passed
    assert {e.case.rpartition("/")[2] for e in row.measurements if e.enclosed} == {"rows0-8"}
    assert sum(not e.enclosed for e in row.measurements) == 12


@pytest.mark.slow
def test_points_are_not_kept_when_they_have_been_judged():
    """Those of a large network together need much memory."""
    import gc

    rng, alive = np.random.default_rng(0), []
    points = {f"p{i}": {"G": rng.standard_normal((400, 2)), "H": rng.standard_normal((300, 2))} for i in range(3)}

    def look(done, total, what):
        gc.collect()
        alive.append({x.name for x in gc.get_objects() if type(x) is Scene} & set(points))

    # in one thread: gc.get_objects disturbs tuples that another one is making
    assert rg.check(rg.paper, points=points, checks=["christoffel"], progress=look).passed
    assert len(alive) > 6
    assert max(map(len, alive)) <= 1


@pytest.mark.slow
def test_same_seed_same_report_other_seed_other_points():
    options = {"checks": ["christoffel"], "cases": ["10x9x4"]}
    first, again, second = (rg.check(**options, seed=seed).to_dict() for seed in (3, 3, 4))
    assert first == again
    assert first["rows"][0]["worst_ratio"] != second["rows"][0]["worst_ratio"]


@pytest.mark.slow
def test_progress_runs_from_nothing_to_all():
    calls = []
    rg.check(rg.paper, checks=["inner_product"], cases=["10x9x4"], progress=lambda *call: calls.append(call[:2]))
    totals = {total for _, total in calls}
    assert len(totals) == 1
    assert [done for done, _ in calls] == list(range(totals.pop() + 1))


def test_a_property_that_raises_and_messages_that_cannot_be_written_are_failed_rows():
    class Odd:
        @property
        def christoffel(self):
            raise RuntimeError("not built")

        def riemannian_gradient(self, *arguments):
            raise NotImplementedError("caf\udce9")

        def inner_product(self, *arguments):
            class Unspeakable(Exception):
                def __str__(self):
                    raise ValueError

            raise Unspeakable

    report = rg.check(Odd(), cases=["10x9x4/k1"], metrics=["inv"])
    rows = {row.check: row for row in report.rows}
    assert "RuntimeError: not built" in rows["christoffel"].message
    assert "Unspeakable: (no message)" in rows["inner_product"].message
    assert rows["riemannian_gradient"].verdict is Verdict.NOT_PROVIDED
    for text in (report.to_json(), report.to_html()):
        text.encode("utf-8")


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_time_limit_that_is_none_is_named(timeout):
    with pytest.raises(ValueError, match="timeout: expected a finite number > 0"):
        rg.check(timeout=timeout)


@pytest.mark.slow
def test_no_time_limit_at_all():
    assert rg.check(timeout=float("inf"), checks=["inner_product"], cases=["1x1x1"]).passed


# Found by reviews -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "dtype"),
    [
        ({"t": 1e100}, "float64"),
        ({"t": 1e300}, "float64"),
        ({"t": 1e25}, "float32"),
        ({"a_G": 1e30 * np.ones((5, 2)), "a_H": 1e30 * np.ones((4, 2))}, "float32"),
        ({"a_G": 1e100 * np.ones((5, 2)), "a_H": 1e100 * np.ones((4, 2))}, "float64"),
    ],
)
def test_what_leaves_the_range_of_the_dtype_accuses_nobody(point, dtype):
    rng = np.random.default_rng(0)
    plain = {"G": rng.standard_normal((5, 2)), "H": rng.standard_normal((4, 2))}
    assert rg.check(points={"far": plain | point}, dtype=dtype).wrong == []


def test_without_a_diagnosis_the_worst_entries_are_shown():
    calls = []

    def riemannian_gradient(metric, G, H, e_G, e_H):
        g_G, g_H = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        calls.append((G.dtype.name, g_H[2, 1]))
        g_H[2, 1] += 1.25 + G[0, 0]
        return g_G, g_H

    rng = np.random.default_rng(0)
    points = {"mine": {"G": rng.standard_normal((5, 2)), "H": rng.standard_normal((4, 2))}}
    options = {"points": points, "metrics": ["inv"], "checks": ["riemannian_gradient"]}
    row = rg.check(backend(riemannian_gradient=riemannian_gradient), **options).rows[0]
    right = next(number for dtype, number in calls if dtype == "float64")
    assert row.diagnosis == "not found: no formula gives these numbers"
    wrong = right + 1.25 + points["mine"]["G"][0, 0]
    assert row.example.detail == f"G is right, H[2, 1] is {wrong:.8g} and not {right:.8g}"

    def nearly(metric, G, H, e_G, e_H):
        g_G, g_H = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        return g_G, g_H * (1.0 + 1e-9 * np.cos(G[0, 0] + 3.0 * np.arange(2)))

    entries = rg.check(backend(riemannian_gradient=nearly), **options).rows[0].example.detail
    wrong, right = re.search(r"G is right, H\[\d, \d\] is (\S+) and not (\S+)$", entries).groups()
    assert wrong != right


def test_digits_lost_beyond_the_range_of_the_dtype_are_not_laid_to_conditioning():
    """Results of 1e33 are cut at 1e30: they fit into float32, but squares, as in a norm, would not."""

    def riemannian_gradient(metric, G, H, e_G, e_H):
        return tuple(np.clip(part, -1e30, 1e30) for part in paper.riemannian_gradient(metric, G, H, e_G, e_H))

    rng = np.random.default_rng(0)
    plain = {"G": rng.standard_normal((5, 2)), "H": rng.standard_normal((4, 2))}
    plain |= {"e_G": rng.standard_normal((5, 2)), "e_H": rng.standard_normal((4, 2))}
    far = {name: (1e15 if "e_" in name else 1e9) * array for name, array in plain.items()}
    report = rg.check(
        backend(riemannian_gradient=riemannian_gradient),
        points={"near": plain, "far": far}, dtype="float32", metrics=["inv"], checks=["riemannian_gradient"],
    )  # fmt: skip
    assert report.rows[0].outcome == "pass"
    assert max(e.relative_error for e in report.rows[0].measurements) > 0.9


def test_strange_options_and_points_are_named():
    item = {"G": [[1.0]], "H": [[1.0]]}
    for options, message in (
        ({"points": {"x": {"G": [[1e100]], "H": [[1.0]]}}}, "point x: G: expected a largest absolute value between"),
        ({"points": [1]}, "points: expected a dict"),
        ({"points": {}}, "points: expected a dict"),
        ({"points": {3: item}}, "points: expected names"),
        ({"points": {"x": None}}, "points: expected names"),
        (
            {"points": {"x": {"G": np.zeros((0, 2, 1)), "H": np.zeros((0, 2, 1))}}},
            "point x: G: expected at least one number",
        ),
        ({"layout": "bert"}, "layout, heads: expected a checkpoint"),
        ({"progress": 3}, "progress: expected a function"),
        ({"timeout": "a"}, "timeout: expected a finite number > 0"),
        ({"checks": ["gradient"]}, "checks: 'gradient' is unknown; did you mean riemannian_gradient"),
        ({"seed": 1.5}, "seed: expected an integer"),
        ({"seed": -1}, "seed: expected an integer"),
        ({"metrics": []}, "metrics: expected at least one"),
        ({"checks": []}, "checks: expected at least one"),
        ({"relaxation": True}, "relaxation: expected a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            rg.check(**options)


def change_where(function, broken):
    """The formulas, but for what `broken` changes of the right result."""
    right = getattr(paper, function)

    def call(metric, G, H, *rest):
        return broken(right(metric, G, H, *rest), metric, G, H, *rest)

    return backend(**{function: call})


def _scaled_if(condition):
    return lambda result, metric, G, H, *rest: tuple(1.01 * x for x in result) if condition(G, H, *rest) else result


@pytest.mark.slow
def test_a_cache_of_gram_matrices_by_their_norms_is_caught():
    kept = {}

    def riemannian_gradient(metric, G, H, e_G, e_H):
        key = G.shape, H.shape, f"{np.linalg.norm(G):.9e}", f"{np.linalg.norm(H):.9e}"
        G, H = kept.setdefault(key, (G.copy(), H.copy()))
        return paper.riemannian_gradient(metric, G, H, e_G, e_H)

    report = rg.check(backend(riemannian_gradient=riemannian_gradient), checks=["riemannian_gradient"])
    assert report.wrong == ["riemannian_gradient[inv]", "riemannian_gradient[mix]"]


def polarised(metric, G, H, a_G, a_H, b_G, b_H):
    def square(x, y):
        return paper.inner_product(metric, G, H, x, y, x, y)

    return (square(a_G + b_G, a_H + b_H) - square(a_G - b_G, a_H - b_H)) / 4.0


@pytest.mark.parametrize(("seed", "dtype"), sample([(s, d) for s in range(3) for d in ("float64", "float32")], 5))
def test_polarisation_is_right(seed, dtype):
    """It rounds the longer vector: where one is 1e8 times as long, no digit of the other need be left."""
    few = ["10x9x4/k3", "7x4x1/k3", "3-7x4x1/k3", "2-6x7x2"]
    options = {"checks": ["inner_product"], "cases": few}
    assert rg.check(backend(inner_product=polarised), dtype=dtype, seed=seed, **options).wrong == []


@pytest.mark.slow
def test_a_place_is_found_by_bisection():
    report = rg.check(
        change_where("christoffel", _scaled_if(lambda G, H, *v: G.shape[-1] >= 10)),
        checks=["christoffel"],
        metrics=["inv"],
    )
    assert [row.diagnosis for row in report.failures] == [
        "wrong where h ≥ 10; there, your result is 1.01 times the right one"
    ]


def _clipped(*a):
    return tuple(np.clip(x, -1e8, 1e8) for x in paper.christoffel(*a))


def _nothing_of_little(metric, G, H, v_G, v_H):
    parts = paper.horizontal_projection(metric, G, H, v_G, v_H)
    return tuple(0.0 * x for x in parts) if np.linalg.norm(v_G) + np.linalg.norm(v_H) < 1e-10 else parts


def _square_of_one_object(metric, G, H, a_G, a_H, b_G, b_H):
    parts = paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H)
    return tuple(0.5 * x for x in parts) if a_G is b_G else parts


def _time_in_single(metric, G, H, v_G, v_H, t, order):
    return paper.geodesic(metric, G, H, v_G, v_H, float(np.float32(t)), order)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("check", "broken", "said"),
    [
        ("christoffel", _clipped, ""),
        ("horizontal_projection", _nothing_of_little, "wrong at some points, such as "),
        (
            "christoffel",
            _square_of_one_object,
            "wrong where both vectors are one array; there, your result is 0.5 times",
        ),
        ("geodesic_1", _time_in_single, ""),
    ],
)
def test_a_place_is_named_only_where_nothing_nearby_refutes_it(check, broken, said):
    """Few failing points are separated by much, by accident; one object, and times of many digits, by nothing."""
    report = rg.check(backend(**{VALUES[check].operation.name: broken}), checks=[check], metrics=["inv"])
    (row,) = report.failures
    assert row.diagnosis.startswith(said or "not found: no formula gives these numbers"), row.diagnosis


@pytest.mark.slow
def test_a_second_mistake_is_not_inherited():
    def christoffel(*a):
        return tuple(2 * x for x in paper.christoffel(*a))

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != 2:
            raise NotImplementedError
        c_G, c_H = christoffel(metric, G, H, v_G, v_H, v_G, v_H)
        square = t * t if t >= 0 else -t * t
        return G + t * v_G - 0.5 * square * c_G, H + t * v_H - 0.5 * square * c_H

    options = {"metrics": ["inv"], "checks": ["christoffel", "geodesic"]}
    report = rg.check(backend(christoffel=christoffel, geodesic=geodesic), **options)
    row = next(row for row in report.rows if row.check == "geodesic_2")
    assert row.verdict is Verdict.WRONG
    assert "½ is missing" not in row.diagnosis, "not where t is negative"


@pytest.mark.slow
def test_what_goes_wrong_at_large_points_alone_is_not_inherited():
    """The backend's own Γ is not tried there: it would be slow."""

    def christoffel(*a):
        return tuple(2 * x for x in paper.christoffel(*a))

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != 2:
            raise NotImplementedError
        place = paper.geodesic(metric, G, H, v_G, v_H, t, order)
        return place if len(G) < 4000 else (1.01 * place[0], place[1])

    report = rg.check(
        backend(christoffel=christoffel, geodesic=geodesic),
        checks=["christoffel", "geodesic"], metrics=["inv"], cases=["5x4x2/k3", "6x6x3/k3", "16411x3x2"],
    )  # fmt: skip
    row = next(row for row in report.rows if row.check == "geodesic_2")
    assert row.verdict is Verdict.WRONG


@pytest.mark.slow
def test_where_rounding_explains_as_much_no_mistake_is_named():
    """A hundredth off beside a block that is ill-conditioned: the right numbers would agree as well there."""

    def geodesic(metric, G, H, v_G, v_H, t, order):
        place = paper.geodesic(metric, G, H, v_G, v_H, t, order)
        kappa = np.max([np.linalg.cond(G), np.linalg.cond(H)], axis=0)
        return tuple(1.01 * x for x in place) if np.max(kappa) > 1e3 * np.min(kappa) else place

    cases = [
        "4-6x5x3/k3/uneven_condition=1e+09",
        "2.2-7x4x2/k3/uneven_condition=1e+09",
        "3-4x3x2/k3/uneven_condition=2000",
        "5x4x2/k3",
        "3-5x4x4/k3",
    ]
    report = rg.check(backend(geodesic=geodesic), checks=["geodesic_1"], cases=cases)
    assert report.wrong == ["geodesic_1[inv]", "geodesic_1[mix]"]
    for row in report.failures:
        assert "of the metric" not in row.diagnosis, "at order 1 both metrics have the same"


def keeping_by(key):
    kept = {}

    def christoffel(metric, G, H, *vectors):
        place = key(metric, G, H, vectors)
        if place not in kept:
            kept[place] = paper.christoffel(metric, G, H, *vectors)
        return tuple(part.copy() for part in kept[place])

    return backend(christoffel=christoffel)


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        lambda m, G, H, v: (m, G.shape, H.shape, *(x.tobytes() for x in v)),
        lambda m, G, H, v: (m, G.tobytes(), H.tobytes(), *(x.tobytes() for x in v[:2])),
        lambda m, G, H, v: (G.tobytes(), H.tobytes(), *(x.tobytes() for x in v)),
        lambda m, G, H, v: (m, G.tobytes(), *(x.tobytes() for x in v)),
        lambda m, G, H, v: (m, H.tobytes(), *(x.tobytes() for x in v)),
        lambda m, G, H, v: (m, *(x.tobytes() for x in v)),
    ],
)
def test_results_kept_by_less_than_their_inputs_are_caught(key):
    assert rg.check(keeping_by(key), checks=["christoffel"], cases=["7x4x1", "5x4x3"]).wrong


def half_of_sylvester(metric, G, H, v_G, v_H):
    """X = ½A⁻¹B for the solution of AX + XA = B: any Λ that is linear in B is right for horizontal vectors."""
    if metric == "mix":
        return paper.horizontal_projection(metric, G, H, v_G, v_H)
    t = np.swapaxes
    S, T = t(G, -1, -2) @ G, t(H, -1, -2) @ H
    L = t(0.5 * np.linalg.solve(S @ T, S @ t(H, -1, -2) @ v_H - t(v_G, -1, -2) @ G @ T), -1, -2)
    return v_G + G @ L, v_H - H @ t(L, -1, -2)


@pytest.mark.exhaustive
def test_an_experiment_that_other_points_refute_is_no_diagnosis():
    report = rg.check(backend(horizontal_projection=half_of_sylvester), checks=["horizontal_projection"])
    assert report.wrong == ["horizontal_projection[inv]"]
    message = [row.diagnosis for row in report.failures if row.kind == "value"]
    assert not any("correct only" in text for text in message)


@pytest.mark.slow
def test_an_unknown_small_format_is_not_named_more_exactly_than_it_shows():
    def coarse(x):
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.round(mantissa * 2**8) / 2**8, exponent)

    def in_eight_bits(metric, *arrays):
        return coarse(paper.inner_product(metric, *map(coarse, arrays)))

    report = rg.check(backend(inner_product=in_eight_bits), checks=["inner_product"], metrics=["inv"])
    for row in report.failures:
        if row.kind == "value":
            assert "lower precision" not in row.diagnosis or "bfloat16" in row.diagnosis


@pytest.mark.slow
def test_a_wrong_function_used_by_another_is_blamed_alone():
    def wrong_gamma(metric, *arguments):
        return tuple(1.5 * x for x in paper.christoffel(metric, *arguments))

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != 2:
            return paper.geodesic(metric, G, H, v_G, v_H, t, order)
        bend = wrong_gamma(metric, G, H, v_G, v_H, v_G, v_H)
        return G + t * v_G - 0.5 * t**2 * bend[0], H + t * v_H - 0.5 * t**2 * bend[1]

    report = rg.check(backend(christoffel=wrong_gamma, geodesic=geodesic), cases=SOME)
    assert set(report.wrong) == {"christoffel[inv]", "christoffel[mix]"}
    inherits = {str(row): row.message for row in report.rows if row.verdict is Verdict.INHERITS}
    assert set(inherits) == {"geodesic_2[inv]", "geodesic_2[mix]"}
    assert all("christoffel" in message for message in inherits.values())
    assert not report.passed
    # asked for alone, too
    for checks in (["geodesic_2"], ["geodesic"]):
        alone = rg.check(backend(christoffel=wrong_gamma, geodesic=geodesic), cases=SOME, checks=checks)
        assert {row.verdict for row in alone.rows if row.check == "geodesic_2"} == {Verdict.INHERITS}
        assert alone.wrong == []
        assert not [row for row in alone.rows if row.verdict is Verdict.WRONG], "laws of what inherits are not judged"
        assert not alone.passed


def exchanged(metric, G, H, e_G, e_H):
    S, T = G.mT @ G, H.mT @ H
    return (e_G @ T, e_H @ S) if metric == "inv" else (e_G @ np.linalg.inv(S), e_H @ np.linalg.inv(T))


def hessian_with(gradient, raises_all):
    """P(D grad f[v] + Γ(grad f, v)) with somebody's gradient: of e only, or also where w and the rest are raised."""

    def hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
        g = gradient(metric, G, H, e_G, e_H)
        raised = gradient if raises_all else paper.riemannian_gradient
        S_dot, T_dot = v_G.mT @ G + G.mT @ v_G, v_H.mT @ H + H.mT @ v_H
        d = raised(metric, G, H, w_G, w_H)
        moving = (e_G @ S_dot, e_H @ T_dot) if metric == "inv" else raised(metric, G, H, -g[0] @ T_dot, -g[1] @ S_dot)
        bend = paper.christoffel(metric, G, H, *g, v_G, v_H)
        return paper.horizontal_projection(metric, G, H, *(x + y + z for x, y, z in zip(d, moving, bend, strict=True)))

    return hessian


@pytest.mark.slow
@pytest.mark.parametrize("raises_all", [True, False])
def test_a_hessian_inherits_its_gradient_wherever_it_uses_it(raises_all):
    broken = backend(riemannian_gradient=exchanged, riemannian_hessian=hessian_with(exchanged, raises_all))
    report = rg.check(broken, checks=["riemannian_gradient", "riemannian_hessian"], cases=SOME)
    assert set(report.wrong) == {"riemannian_gradient[inv]", "riemannian_gradient[mix]"}
    inherits = {str(row): row.message for row in report.rows if row.verdict is Verdict.INHERITS}
    assert set(inherits) == {"riemannian_hessian[inv]", "riemannian_hessian[mix]"}
    assert all("riemannian_gradient" in message for message in inherits.values())


def test_the_norm_of_a_product_of_grams_may_overflow_in_single_precision():
    def projection(metric, G, H, v_G, v_H):
        S, T = G.mT @ G, H.mT @ H
        size = np.linalg.norm(S @ T, axis=(-2, -1))
        if not np.all((size > 0) & np.isfinite(size)):
            raise np.linalg.LinAlgError("Singular matrix")
        return paper.horizontal_projection(metric, G, H, v_G, v_H)

    scales = [
        "10x9x4/k3/size_G=1e6/size_H=1e6",
        "10x9x4/k3/size_G=1e-6/size_H=1e-6",
        "10x9x4/k3/size_G=1e3",
        "10x9x4/k3",
    ]
    report = rg.check(
        backend(horizontal_projection=projection), checks=["horizontal_projection"], cases=scales, dtype="float32"
    )
    assert report.wrong == []
    assert report.passed


@pytest.mark.slow
def test_zeros_for_ill_conditioned_factors_are_wrong():
    def gives_up(metric, G, H, v_G, v_H):
        result = paper.horizontal_projection(metric, G, H, v_G, v_H)
        hopeless = max(np.linalg.cond(G).max(), np.linalg.cond(H).max()) > 50
        return tuple(0 * x for x in result) if hopeless else result

    report = rg.check(backend(horizontal_projection=gives_up), checks=["horizontal_projection"])
    assert set(report.wrong) == {"horizontal_projection[inv]", "horizontal_projection[mix]"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_formats_are_judged_where_they_leave_something_to_tell(dtype):
    """NumPy computes in the carrier, and rounds the result: right; twice the result is wrong where that can be told."""
    from refgeo.conformance.protocol.precision import PRECISIONS

    def rounded(function, factor=1.0):
        def call(metric, *arrays):
            result = function(metric, *(x.astype(float) if isinstance(x, np.ndarray) else x for x in arrays))
            carrier = PRECISIONS[dtype].carrier
            parts = result if isinstance(result, tuple) else (result,)
            parts = tuple(PRECISIONS[dtype].round(factor * x).astype(carrier) for x in parts)
            return parts if isinstance(result, tuple) else parts[0]

        return call

    options = {"checks": ["inner_product"], "metrics": ["inv"], "dtype": dtype}
    right = rg.check(backend(inner_product=rounded(paper.inner_product)), **options)
    assert right.wrong == []
    if dtype == "float16":
        assert right.passed
        wrong = backend(inner_product=rounded(paper.inner_product, 2.0))
        assert rg.check(wrong, **options).wrong


def test_points_of_one_column_alone_do_not_show_that_a_function_of_matrices_is_right():
    """With S and T exchanged, few scalars in bfloat16 differ by more than rounding."""
    options = {"dtype": "bfloat16", "metrics": ["mix"], "checks": ["riemannian_gradient"]}
    right = backend(riemannian_gradient=paper.riemannian_gradient)
    verdicts = {
        cases: {row.verdict for row in rg.check(right, cases=cases, **options).judged if row.kind == "value"}
        for cases in (("1x1x1/k3",), ("1x1x1/k3", "5x4x3/k3"))
    }
    assert [*verdicts.values()] == [{Verdict.PASS}, {Verdict.UNDECIDED}]


def test_a_conversion_that_rounds_is_no_change_of_the_input():
    """Laws make arrays that a small format does not hold."""
    from refgeo.conformance.protocol.precision import PRECISIONS

    precision = PRECISIONS["bfloat16"]

    def asarray(x):
        return precision.round(x.astype(float)).astype(precision.carrier)

    gradient = backend(riemannian_gradient=paper.riemannian_gradient, asarray=asarray)
    options = {"dtype": "bfloat16", "metrics": ["inv"], "cases": ["1x1x1/k3", "7x4x1/k3", "20-1x1x1/k3"]}
    report = rg.check(gradient, checks=["riemannian_gradient"], **options)
    rows = {row.check: row.verdict for row in report.rows}
    assert rows["inputs_unchanged"] is Verdict.PASS


def test_lists_of_numbers_are_no_matter_of_dtype():
    report = rg.check(
        backend(inner_product=lambda *a: np.asarray(paper.inner_product(*a)).tolist(),
                riemannian_gradient=lambda *a: [part.tolist() for part in paper.riemannian_gradient(*a)]),
        checks=["inner_product", "riemannian_gradient"], dtype="float32", cases=["5x4x2/k3", "3-5x4x4/k3"],
    )  # fmt: skip
    assert report.passed
    assert not report.findings


def test_no_number_anywhere_is_wrong_and_no_matter_of_threads_or_blocks():
    report = rg.check(
        backend(inner_product=lambda metric, *arrays: np.nan * paper.inner_product(metric, *arrays)),
        checks=["inner_product"], metrics=["inv"], cases=["5x4x2/k3", "3-5x4x4/k3"],
    )  # fmt: skip
    rows = {row.check.split(".")[-1]: row.verdict for row in report.rows}
    assert rows["inner_product"] is Verdict.WRONG
    assert "thread_safe" not in rows, "what cannot be seen is not passed"


def test_wrong_numbers_are_counted_and_explained_beside_missing_ones():
    def christoffel(metric, *arrays):
        factor = np.nan if arrays[0].shape[-1] == 1 else 2.0
        return tuple(factor * part for part in paper.christoffel(metric, *arrays))

    cases = ["7x4x1/k3", "5x4x2/k3", "6x6x3/k3", "10x9x4/k3"]
    row = rg.check(backend(christoffel=christoffel), checks=["christoffel"], metrics=["inv"], cases=cases).rows[0]
    assert re.search(
        r"returned NaN or infinity; where the function returns numbers, they are wrong at \d+ of \d+ dec", row.message
    )
    assert row.diagnosis == "your result is 2 times the right one"


@pytest.mark.slow
@pytest.mark.parametrize(
    "projected",
    [
        lambda v, factor: factor * (np.linalg.norm(v.G) > 1e8) + (np.linalg.norm(v.G) <= 1e8),
        lambda v, factor: factor if v.G.shape == (3, 3, 3) else 1.0,
    ],
)
def test_vectors_are_long_and_all_dimensions_can_be_the_same(projected):
    def horizontal_projection(metric, G, H, v_G, v_H):
        result = paper.horizontal_projection(metric, G, H, v_G, v_H)
        return tuple(projected(rg.Pair(v_G, v_H), 1.01) * part for part in result)

    cases = ["5x4x3/k3/length=1e12", "3-3x3x3", "3-4x3x2"]
    options = {"checks": ["horizontal_projection"], "cases": cases}
    report = rg.check(backend(horizontal_projection=horizontal_projection), **options)
    assert report.wrong == ["horizontal_projection[inv]", "horizontal_projection[mix]"]


# Between inv and mix -------------------------------------------------------------------------------------------------


def _root(A, power=0.5):
    values, Q = np.linalg.eigh(A)
    return (Q * values[..., None, :] ** power) @ np.swapaxes(Q, -1, -2)


def _mean(A, B):
    """The geometric mean A # B of positive definite matrices, by its definition."""
    root, inverse = _root(A), _root(A, -0.5)
    return root @ _root(inverse @ B @ inverse) @ root


class RefLoRA:
    """S⁻¹ # T by roots of Gram matrices, as its authors precondition a gradient."""

    @staticmethod
    def _grams(G, H):
        return np.swapaxes(G, -1, -2) @ G, np.swapaxes(H, -1, -2) @ H

    def inner_product(self, metric, G, H, a_G, a_H, b_G, b_H):
        S, T = self._grams(G, H)
        weights = _mean(np.linalg.inv(S), T), _mean(np.linalg.inv(T), S)
        return sum(
            np.einsum("...ij,...kj,...ki->...", M, a, b)
            for M, a, b in zip(weights, (a_G, a_H), (b_G, b_H), strict=True)
        )

    def riemannian_gradient(self, metric, G, H, e_G, e_H):
        S, T = self._grams(G, H)
        return e_G @ _mean(S, np.linalg.inv(T)), e_H @ _mean(T, np.linalg.inv(S))


def _define(name):
    def function(self, metric, G, H, *rest):
        arrays = [x for x in rest if isinstance(x, np.ndarray) and x.ndim > 1]
        vectors = [rg.Pair(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]
        result = getattr(rg.InterpolatedMetric(self.s).at(rg.Pair(G, H)), name)(*vectors, *rest[len(arrays) :])
        return tuple(result) if isinstance(result, rg.Pair) else result

    return function


class OfTheFamily:
    """refgeo's own geometry, of one s whatever is asked for."""

    def __init__(self, s):
        self.s = s


for _name in OPERATIONS:
    if _name != "retraction":
        setattr(OfTheFamily, _name, _define(_name))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "dtype"), sample([(0, "float64"), (7, "float64"), (0, "float32")], 3))
def test_a_literal_geometric_mean_passes_as_the_metric_between(seed, dtype):
    report = rg.check(RefLoRA(), metrics=["s=0.5"], dtype=dtype, seed=seed)
    assert report.passed, report.wrong
    assert {row.check for row in report.rows if row.kind == "value" and row.decisive_points > 300} == {
        "inner_product", "riemannian_gradient",
    }  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("s", sample([0.5, 0.2]))
def test_a_metric_between_is_judged_by_enclosures(s):
    name = f"s={s:g}"
    right = rg.check(OfTheFamily(s), metrics=[name], cases=["5x4x2/k3/t=1", "7x4x1", "3-7x4x1/k3/uneven=1e6"])
    assert right.passed, right.wrong
    exact = next(row for row in right.rows if row.check == "geodesic_exact")
    assert {e.case.split("x")[2][0] for e in exact.measurements} == {"1"}, "others have no enclosure"
    near = ["inner_product", "horizontal_projection", "riemannian_gradient", "riemannian_hessian", "christoffel"]
    for checks, case in ((near, "5x4x2/k3/t=1"), (["geodesic_exact"], "3-7x4x1/k3/uneven=1e6")):
        result = rg.check(OfTheFamily(s + 0.01), metrics=[name], cases=[case], checks=checks)
        assert {row.check for row in result.failures if row.kind == "value"} == {*checks}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["inv", "mix"])
def test_one_of_the_papers_metrics_in_place_of_one_between_is_named(end):
    wrong = rg.check(
        OfTheFamily(0.0 if end == "inv" else 1.0), metrics=["s=0.5"], checks=["riemannian_gradient"], cases=SOME
    )
    formulas_of = {"inv": "G: e_G S; H: e_H T", "mix": "G: e_G T⁻¹; H: e_H S⁻¹"}
    yours = {row.check: "; ".join(row.yours) for row in wrong.failures if row.kind == "value"}
    assert yours == {"riemannian_gradient": formulas_of[end]}


@pytest.mark.parametrize("name", ["s=2", "s=", "between", "s=0", "s=half", ""])
def test_metrics_that_there_are_not_are_refused(name):
    with pytest.raises(ValueError, match=r'metrics: expected "inv", "mix" or one between them such as "s=0.5"'):
        rg.check(metrics=[name])


# What a cache, a shortcut or a large h hides ------------------------------------------------------------------------


class KeepsTheLatestPoint:
    """Gram matrices of the latest call, looked up by one factor alone, or by what is close enough."""

    def __init__(self, key_of, same=np.array_equal):
        self.key_of, self.same, self.key, self.grams = key_of, same, None, None

    def riemannian_gradient(self, metric, G, H, e_G, e_H):
        key = self.key_of(G, H)
        if self.key is None or self.key.shape != key.shape or not self.same(self.key, key):
            self.key = np.array(key)
            self.grams = [np.swapaxes(F, -1, -2) @ F for F in (G, H)]
        S, T = self.grams
        return (e_G @ S, e_H @ T) if metric == "inv" else (e_G @ np.linalg.inv(T), e_H @ np.linalg.inv(S))


def both_close(x, y):
    return np.allclose(x, y, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    "kept",
    [
        KeepsTheLatestPoint(lambda G, H: G),
        KeepsTheLatestPoint(lambda G, H: H),
        KeepsTheLatestPoint(lambda G, H: np.concatenate([G, H], axis=-2), both_close),
    ],
    ids=["by G", "by H", "while close"],
)
def test_grams_kept_of_the_latest_point_are_caught(kept):
    report = rg.check(kept, checks=["riemannian_gradient"], cases=SOME)
    assert report.wrong == ["riemannian_gradient[inv]", "riemannian_gradient[mix]"]
    assert all("after a call with" in row.diagnosis for row in report.failures)


def test_grams_kept_by_the_first_rows_are_caught():
    kept = KeepsTheLatestPoint(lambda G, H: np.concatenate([G[..., :2, :], H[..., :2, :]], axis=-2))
    report = rg.check(kept, checks=["riemannian_gradient"], cases=["5x4x2"])
    assert report.wrong == ["riemannian_gradient[inv]", "riemannian_gradient[mix]"]


def test_an_end_of_the_manifold_that_is_refused_is_no_mistake():
    """θ = 1 along −1, to t = 2: rank is lost at 1, and there is no right value."""

    def geodesic(metric, G, H, v_G, v_H, t, order):
        return tuple(rg.MixedMetric().at(rg.Pair(G, H)).geodesic(rg.Pair(v_G, v_H), t, order))

    point = {"G": [[1.0]], "H": [[1.0]], "v_G": [[0.5]], "v_H": [[0.5]], "t": -2.0}
    report = rg.check(backend(geodesic=geodesic), points={"p": point}, metrics=["mix"], checks=["geodesic_exact"])
    assert report.wrong == []
    assert [row.verdict for row in report.rows if row.kind == "value"] == [Verdict.UNDECIDED]


@pytest.mark.exhaustive
def test_an_iteration_that_stops_early_for_large_h_is_caught():
    def gradient(metric, G, H, e_G, e_H):
        S, T = (np.swapaxes(F, -1, -2) @ F for F in (G, H))
        if metric == "inv":
            return e_G @ S, e_H @ T
        if G.shape[-1] <= 16:
            return e_G @ np.linalg.inv(T), e_H @ np.linalg.inv(S)
        X = [np.eye(len(M)) / np.trace(M) for M in (S, T)]
        for _ in range(12):
            X = [2 * x - x @ M @ x for x, M in zip(X, (S, T), strict=True)]
        return e_G @ X[1], e_H @ X[0]

    unbatched = SimpleNamespace(riemannian_gradient=rg.adapters.unbatched(gradient))
    report = rg.check(unbatched, checks=["riemannian_gradient"], metrics=["mix"])
    assert "riemannian_gradient[mix]" in report.wrong


@pytest.mark.slow
def test_a_shortcut_for_small_vectors_is_not_blamed_on_the_factors():
    def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
        if max(np.abs(x).max() for x in (a_G, a_H, b_G, b_H)) < 1e-5:
            return np.zeros_like(G), np.zeros_like(H)
        return paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H)

    report = rg.check(SimpleNamespace(christoffel=christoffel), checks=["christoffel"], metrics=["inv"])
    (row,) = (row for row in report.failures if row.kind == "value")
    assert "factors are tiny" not in row.diagnosis


def test_the_formula_of_a_metric_between_is_told():
    wrong = SimpleNamespace(riemannian_gradient=lambda metric, G, H, e_G, e_H: (e_G, e_H))
    report = rg.check(wrong, checks=["riemannian_gradient"], metrics=["s=0.5"], cases=["5x4x2/k3"])
    (row,) = (row for row in report.failures if row.kind == "value")
    assert row.statement.startswith("(e_G M_G⁻¹, e_H M_H⁻¹) with M_G = S⁻¹(ST)ˢ")


@pytest.mark.slow
def test_a_retraction_may_choose_its_gauge():
    """It is a curve in the quotient, at random in every fibre."""
    rng = np.random.default_rng(0)

    def retraction(metric, G, H, v_G, v_H, t):
        h = G.shape[-1]
        Q = np.linalg.qr(rng.standard_normal((h, h)))[0] * rng.choice([-1.0, 1.0])
        return (G + t * v_G) @ Q, (H + t * v_H) @ Q

    report = rg.check(SimpleNamespace(retraction=retraction), checks=["retraction"], cases=SOME)
    assert report.passed
    assert not report.findings


@pytest.mark.exhaustive
def test_chance_is_no_cache():
    rng = np.random.default_rng(0)

    def gradient(*a):
        return tuple(x * (1.01 if rng.random() < 0.2 else 1.0) for x in paper.riemannian_gradient(*a))

    report = rg.check(SimpleNamespace(riemannian_gradient=gradient), checks=["riemannian_gradient"])
    diagnoses = {row.diagnosis for row in report.failures if row.kind == "value"}
    assert diagnoses == {
        "for the same input, the result is sometimes right and sometimes wrong: so it depends on earlier calls, "
        "or on chance"
    }


@pytest.mark.parametrize("seed", range(4))
def test_points_hold_every_two_bands_and_every_rare_level_where_it_shows(seed):
    from refgeo.conformance.points import covering_design as design
    from refgeo.conformance.points.features import Features
    from refgeo.conformance.points.sources import Points
    from refgeo.conformance.points.visibility import find_visible

    def reveals(features):
        return all(find_visible(features, [value for value in VALUES.values() if value.order != "exact"]))

    result = design.covering_design("quick", seed)
    assert len(set(result)) == len(result) <= 120
    assert set(itertools.chain(*map(design.all_levels, result))) >= {
        (kind, band) for kind, bands in design.SPECIAL_LEVELS.items() for band in bands
    }
    for name in VALUES:
        seen = set().union(*(design.visible_levels(item)[name] for item in result))
        missing = design.levels_visible_alone(name) - seen
        assert all(name == "geodesic_exact" and kind == "large" for kind, _ in missing), "too large to be enclosed"
    levels = [design.size_levels(item).items() for item in result if reveals(item)]
    pairs = {frozenset(pair) for sizes in levels for pair in itertools.combinations(sizes, 2)}
    kinds = itertools.combinations(design.SIZE_LEVELS, 2)
    every = {
        frozenset(((a, x), (b, y))) for a, b in kinds for x in design.SIZE_LEVELS[a] for y in design.SIZE_LEVELS[b]
    } - {frozenset((("h", "64"), ("blocks", "a dozen")))}  # one large point, which is counted among what is rare
    assert every - pairs == {frozenset(pair) for pair in design.infeasible_pairs("full")}
    run = [name for name, *_ in Points("quick", "float64", seed, 0.0).select("inv", None)]
    assert sorted(run) == sorted(item.name for item in result), "nothing is left out in double precision"
    for item in result:
        assert Features.parse(item.name) == item


@pytest.mark.parametrize(
    "name",
    ["", "5x4", "5x4x6", "5x4x3/k0.5", "5x4x3/kx", "0-5x4x3", "5x4x3/nonsense", "7x4x1/k3/t=t", "5x4x3/k3/n=4"],
)
def test_what_is_no_name_is_none(name):
    from refgeo.conformance.points.features import Features

    assert Features.parse(name) is None
