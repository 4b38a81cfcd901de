"""Vectors in files: what an author elsewhere reads and writes, and what happens to damaged or foreign files."""

import itertools
import json
import pickle
import zipfile

import numpy as np
import pytest
from helpers import bert_layer, sample

import refgeo as rg
from refgeo import paper
from refgeo.cli import main
from refgeo.conformance import vectors
from refgeo.conformance.judging.evidence import error_units
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.scene import generate
from refgeo.conformance.protocol.operations import VALUES
from refgeo.conformance.vectors import VectorFileError

FEW = ["20-1x1x1", "10x9x4/k1", "10x9x4/k10", "10x9x4/k1000", "4-25x24x6/k3"]


def load(folder, format):
    """The inputs, read as their format's own readers do; no code of refgeo."""
    file = folder / f"inputs.{format}"
    if format == "npz":
        with np.load(file, allow_pickle=False) as archive:
            named = dict(archive)
        cases = [str(name) for name in named["cases"]]
    else:
        named = json.loads(file.read_text())
        cases = named["cases"]
    return cases, named


def solve(cases, named):
    """All functions of every case, from the documented names alone."""
    results = {}
    for case in cases:

        def get(name, case=case):
            return np.asarray(named[f"{case}__{name}"])

        def both(vector, get=get):
            return get(f"{vector}_G"), get(f"{vector}_H")

        metric, point, t = str(get("metric").item()), (get("G"), get("H")), get("t").item()
        results[f"{case}__inner_product"] = paper.inner_product(metric, *point, *both("a"), *both("b"))
        hessian = (*both("hessian_e"), *both("hessian_w"), *both("hessian_v"))
        for name, pair in {
            "horizontal_projection": paper.horizontal_projection(metric, *point, *both("v")),
            "riemannian_gradient": paper.riemannian_gradient(metric, *point, *both("e")),
            "riemannian_hessian": paper.riemannian_hessian(metric, *point, *hessian),
            "christoffel": paper.christoffel(metric, *point, *both("a"), *both("b")),
            "geodesic_1": paper.geodesic(metric, *point, *both("v"), t, 1),
            "geodesic_2": paper.geodesic(metric, *point, *both("v"), t, 2),
        }.items():
            results[f"{case}__{name}_G"], results[f"{case}__{name}_H"] = pair
    return results


def save(file, results):
    if file.suffix == ".npz":
        np.savez(file, **results)
    else:
        file.write_text(json.dumps({name: np.asarray(value).tolist() for name, value in results.items()}))
    return file


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    vectors.write(folder, "npz", cases=FEW)
    return folder, solve(*load(folder, "npz"))


@pytest.mark.slow
@pytest.mark.parametrize(("format", "out"), sample(list(itertools.product(("npz", "json"), repeat=2)), 2))
def test_right_results_pass_in_every_format(format, out, tmp_path):
    vectors.write(tmp_path, format, cases=FEW)
    cases, named = load(tmp_path, format)
    report = vectors.grade(tmp_path, save(tmp_path / f"results.{out}", solve(cases, named)))
    assert report.passed
    judged = [row for row in report.rows if row.check != "geodesic_exact"]
    assert {row.verdict for row in judged} == {Verdict.PASS}
    assert len(judged) == 14
    assert {row.points for row in judged} == {len(cases) // 2}


@pytest.mark.parametrize("format", ["npz", "json"])
def test_the_inputs_are_those_of_refgeo_check_and_hold_no_expected_values(format, tmp_path):
    count = vectors.write(tmp_path, format, cases=["3-5x4x3/k3"], metrics=["inv"], seed=5)
    cases, named = load(tmp_path, format)
    assert cases == ["inv_0001", "inv_0002", "inv_0003"]
    assert count == 3
    case = generate(Features.parse("3-5x4x3/k3"), "inv", "float64", 5)
    assert np.array_equal(named["inv_0003__G"], case.point.G[2])
    assert np.array_equal(named["inv_0003__v_H"], case.vectors["v"].H[2])


def test_no_expected_value_is_among_the_inputs(tmp_path):
    """Every result of every function, against every input of the same shape and against its negative."""
    vectors.write(tmp_path, "npz", cases=FEW)
    cases, named = load(tmp_path, "npz")
    results = solve(cases, named)
    compared = 0
    for key, result in results.items():
        case, _, name = key.partition("__")
        if name.startswith("geodesic_1"):
            continue  # a sum of inputs, but none of them
        assert f"{case}__{name}" not in named
        for second, value in named.items():
            if second.startswith(f"{case}__") and value.dtype.kind == "f" and value.shape == np.shape(result):
                compared += 1
                size = np.linalg.norm(result)
                assert np.linalg.norm(value - result) > 1e-6 * size, (key, second)
                assert np.linalg.norm(value + result) > 1e-6 * size, (key, second)
    assert compared > 1000


def test_single_precision_is_written_and_judged_as_such(tmp_path):
    vectors.write(tmp_path, "npz", dtype="float32", cases=FEW)
    cases, named = load(tmp_path, "npz")
    assert named[f"{cases[0]}__G"].dtype == np.float32
    results = solve(cases, named)
    assert results[f"{cases[0]}__christoffel_G"].dtype == np.float32
    report = vectors.grade(tmp_path, save(tmp_path / "results.npz", results))
    assert report.passed
    assert report.dtype == "float32"


def grade_changed(solved, tmp_path, change):
    folder, results = solved
    results = dict(results)
    change(results)
    return vectors.grade(folder, save(tmp_path / "results.npz", results))


def verdict(report, check, metric):
    return next(row for row in report.rows if (row.check, row.metric) == (check, metric))


@pytest.mark.slow
def test_a_wrong_result_is_wrong_with_its_diagnosis_and_shown_by_its_line(solved, tmp_path):
    def double(results):
        for name in results:
            if name.startswith("inv") and "christoffel" in name:
                results[name] = 2 * results[name]

    report = grade_changed(solved, tmp_path, double)
    assert report.wrong == ["christoffel[inv]"]
    row = verdict(report, "christoffel", "inv")
    assert row.diagnosis == "your result is 2 times the right one"
    assert row.worst_case.case.startswith("inv_00")
    files, case = report.files, row.worst_case.case.split(" ")[0]
    again = vectors.grade(*files, cases=[case], checks=["christoffel"])
    assert [str(row) for row in again.rows] == again.wrong == ["christoffel[inv]"]
    assert again.rows[0].points == 1
    assert vectors.grade(*files, cases=[case], checks=["horizontal_projection"]).passed


def test_what_is_missing_everywhere_is_not_provided_and_what_is_missing_somewhere_fails(solved, tmp_path):
    def remove(results):
        for name in list(results):
            if name.startswith("mix") and "geodesic_2" in name:
                del results[name]
        del results["inv_0002__riemannian_gradient_H"]

    report = grade_changed(solved, tmp_path, remove)
    assert verdict(report, "geodesic_2", "mix").verdict is Verdict.NOT_PROVIDED
    assert verdict(report, "geodesic_2", "inv").verdict is Verdict.PASS
    row = verdict(report, "riemannian_gradient", "inv")
    assert row.verdict is Verdict.WRONG
    assert "inv_0002__riemannian_gradient_H is not in the file" in row.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    sample([
        (lambda x: x.T, "are rows and columns exchanged"),
        (lambda x: x + 1j, "expected real numbers, got dtype complex"),
        (lambda x: np.full_like(x, np.nan), "NaN or infinity"),
        (lambda x: x[:-1], "expected shape"),
        (lambda x: x.astype(str), "expected real numbers, got text"),
    ], 2),
)  # fmt: skip
def test_unusable_results_are_failed_rows_with_the_reason(solved, tmp_path, change, message):
    def broken(results):
        name = next(
            name
            for name, value in results.items()
            if name.startswith("mix") and "projection_G" in name and np.shape(value) == (10, 4)
        )
        results[name] = change(results[name])

    report = grade_changed(solved, tmp_path, broken)
    assert report.wrong == ["horizontal_projection[mix]"]
    assert message in verdict(report, "horizontal_projection", "mix").message


def test_matrices_that_are_transposed_everywhere_are_named(tmp_path):
    """Square ones, and single columns, fit all the same."""
    vectors.write(tmp_path, "npz", cases=["4x4x4/k3", "5x4x2/k3", "7x4x1/k3"], metrics=["mix"])
    results = {name: np.transpose(value) for name, value in solve(*load(tmp_path, "npz")).items()}
    row = verdict(vectors.grade(tmp_path, save(tmp_path / "results.npz", results)), "christoffel", "mix")
    assert "are rows and columns exchanged?; where the function returns numbers, they are wrong" in row.message
    assert row.diagnosis == "your result is transposed"


def test_dimensions_of_length_one_may_be_lost(solved, tmp_path):
    def squeeze(results):
        for name in results:
            results[name] = np.squeeze(results[name])

    assert grade_changed(solved, tmp_path, squeeze).passed


def test_json_with_null_or_ragged_rows_fails_the_row(solved, tmp_path):
    folder, results = solved
    plain = {name: np.asarray(value).tolist() for name, value in results.items()}
    plain["inv_0021__christoffel_G"] = [[1.0, 2.0], [3.0]]
    plain["mix_0048__inner_product"] = None
    plain["inv_0021__inner_product"] = "1.0"
    file = tmp_path / "results.json"
    file.write_text(json.dumps(plain))
    report = vectors.grade(folder, file)
    message = {str(row): row.message.partition(": ")[2] for row in report.failures}
    assert message == {
        "christoffel[inv]": "expected an array, got rows of different lengths",
        "inner_product[inv]": "expected real numbers, got text",
        "inner_product[mix]": "expected real numbers, got dtype object (with null or None, for NaN?)",
    }


class Bomb:
    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_damaged_and_foreign_results_are_clear_errors(solved, tmp_path, suffix, damage):
    folder, results = solved
    file = save(tmp_path / f"results{suffix}", results)
    content = file.read_bytes()
    file.write_bytes({"truncated": content[: len(content) // 2], "foreign": b"\x89PNG\r\n" * 99, "empty": b""}[damage])
    with pytest.raises(VectorFileError, match=rf"results\{suffix}: .*(damaged|truncated|not)"):
        vectors.grade(folder, file)


@pytest.mark.slow
def test_a_flipped_byte_never_passes_unnoticed(solved, tmp_path):
    folder, results = solved
    passed = 0
    for suffix in (".npz", ".json"):
        file = save(tmp_path / f"results{suffix}", results)
        content = bytearray(file.read_bytes())
        rng = np.random.default_rng(0)
        for place in rng.integers(0, len(content), 2):
            changed = bytearray(content)
            changed[place] ^= 0x10
            file.write_bytes(changed)
            try:
                report = vectors.grade(folder, file)
            except VectorFileError:
                continue
            if report.passed:  # then it was in padding, or in a digit that rounding takes
                read = vectors.read_named(file)
                for name, value in results.items():
                    assert np.allclose(read[name], value, rtol=1e-9, atol=1e-9 * np.max(np.abs(value))), name
                passed += 1
    assert passed < 4, "most bytes matter"


def test_nothing_is_ever_unpickled(solved, tmp_path, capsys):
    folder, _ = solved
    file = tmp_path / "results.npz"
    np.savez(file, inv_0001__inner_product=np.array([Bomb()], dtype=object))
    with pytest.raises(VectorFileError, match="pickle"):
        vectors.grade(folder, file)
    file.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(VectorFileError):
        vectors.grade(folder, file)
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"inv_0001__cristoffel_G": [[1.0]]}, "is no result of this folder; did you mean inv_0001__christoffel_G"),
        ({"inv_0001__christoffel_g": [[1.0]]}, "did you mean inv_0001__christoffel_G"),
        ({"INV_0001__christoffel_G": [[1.0]]}, "did you mean inv_0001__christoffel_G"),
        ({"inv_0001_christoffel_G": [[1.0]], "inv_0001__inner_product": 1.0}, "did you mean inv_0001__christoffel_G"),
        ({"inv_9999__christoffel_G": [[1.0]]}, "results belong to another folder, give that one"),
        ({"inv_0001__inner_product": 1.0, "sha256": "0"}, "by its sha256, these are results of other inputs"),
        ({"x": 1.0}, "expected names such as inv_0001__christoffel_G"),
        ({"inv_0001__G": [[1.0]]}, "expected results with names such as inv_0001__christoffel_G, got none$"),
        ([1.0], "expected one object with named values, got list"),
    ],
)
def test_results_of_other_names_are_not_passed_over(solved, tmp_path, results, message):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results))
    with pytest.raises(VectorFileError, match=message):
        vectors.grade(solved[0], file)


def test_folders_that_are_none_or_changed_are_refused(solved, tmp_path):
    folder, results = solved
    file = save(tmp_path / "results.npz", results)
    with pytest.raises(
        VectorFileError, match=r"made by 'refgeo vectors write', got one without inputs\.npz or inputs\.json; if"
    ):
        vectors.grade(tmp_path, file)
    with pytest.raises(VectorFileError, match="no such folder"):
        vectors.grade(tmp_path / "nowhere", file)
    with pytest.raises(VectorFileError, match="no such file"):
        vectors.grade(folder, tmp_path / "nothing.npz")
    with pytest.raises(VectorFileError, match=r"expected a file that ends in \.npz, \.json"):
        vectors.grade(folder, tmp_path / "results.csv")
    copy = tmp_path / "copy"
    vectors.write(copy, "json", cases=["1x1x1"])
    inputs = (copy / "inputs.json").read_text()
    for text, message in (
        ("{", "damaged, truncated or not JSON"),
        ("[]", "expected one object"),
        ('{"schema": "x"}', "expected the schema"),
        ('{"schema": "refgeo-vectors/2"}', "sha256 differs"),
        (inputs.replace("0.7", "0.6"), "sha256 differs"),
        (inputs.replace("float64", "float32"), "sha256 differs"),
        (inputs.replace('"inv_0001"', '"inv_0009"'), "sha256 differs"),
    ):
        (copy / "inputs.json").write_text(text)
        with pytest.raises(VectorFileError, match=message):
            vectors.grade(copy, file)


def test_files_of_somebody_else_are_left_alone(tmp_path):
    for name, content in (
        ("inputs.json", '{"name": "a web page"}'),
        ("inputs.npz", "mine"),
        ("expected.json", "[]"),
        ("FORMAT.md", "Mine"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(VectorFileError, match="which refgeo has not written"):
            vectors.write(folder, "npz", cases=["1x1x1"])
        assert [(file.name, file.read_text()) for file in folder.iterdir()] == [(name, content)]


def test_writing_again_replaces_the_inputs_and_an_interrupted_writing_leaves_no_folder_of_vectors(
    tmp_path, monkeypatch
):
    vectors.write(tmp_path, "npz", cases=["1x1x1"])
    vectors.write(tmp_path, "json", cases=["1x1x1"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["FORMAT.md", "inputs.json"]

    def interrupted(named):
        raise KeyboardInterrupt

    monkeypatch.setitem(vectors.WRITERS, "npz", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vectors.write(tmp_path, "npz", cases=["1x1x1"])
    monkeypatch.undo()
    with pytest.raises(VectorFileError, match="if the command was interrupted, run it again"):
        vectors.grade(tmp_path, tmp_path / "results.npz")
    assert vectors.write(tmp_path, "npz", cases=["1x1x1"]) == 2


def test_the_format_is_written_down_for_every_name(tmp_path):
    vectors.write(tmp_path, "npz", cases=["1x1x1"])
    text = (tmp_path / "FORMAT.md").read_text(encoding="utf-8")
    _, named = load(tmp_path, "npz")
    for name in {key.split("__")[1] for key in named if "__" in key}:
        assert f"CASE__{name}" in text, name
    for name in vectors._RESULT_NAMES:
        assert f"CASE__{name}" in text or (name.endswith("_H") and f"CASE__{name[:-1]}G`, `..._H`" in text), name


@pytest.mark.slow
def test_the_command_line(tmp_path, capsys):
    folder = tmp_path / "my vectors"
    assert main(["vectors", "write", str(folder), "--format", "json", "--case", "20-1x1x1/k3", "--metric", "inv"]) == 0
    out = capsys.readouterr().out
    assert "20 test points are in" in out
    assert f"refgeo vectors grade '{folder}' RESULTS" in out
    results = solve(*load(folder, "json"))
    file = save(tmp_path / "results.json", results)
    files = [f"--{name}={tmp_path / name}" for name in ("json", "html")]
    assert main(["vectors", "grade", str(folder), str(file), *files]) == 0
    assert "PASS: 7 of 7 values" in capsys.readouterr().out
    assert json.loads((tmp_path / "json").read_text())["passed"] is True
    results["inv_0002__inner_product"] = 0.0
    assert main(["vectors", "grade", str(folder), str(save(file, results))]) == 1
    assert "WRONG: inner_product[inv]" in capsys.readouterr().out
    file.write_text("{")
    assert main(["vectors", "grade", str(folder), str(file)]) == 2
    assert "damaged, truncated or not JSON" in capsys.readouterr().err
    assert main(["vectors", "write", str(folder), "--format", "csv"]) == 2
    assert main(["vectors", "write", str(folder), "--case", "nowhere"]) == 2


def test_heads_of_a_network_go_into_files_too(tmp_path):
    state = bert_layer(8)
    assert vectors.write(tmp_path, "npz", checkpoint=state, layout="bert", heads=2) == 8
    report = vectors.grade(tmp_path, save(tmp_path / "results.npz", solve(*load(tmp_path, "npz"))))
    assert report.passed


def test_zip_archives_that_are_no_arrays_are_named(solved, tmp_path):
    file = tmp_path / "results.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inv_0001__inner_product.npy", "not an array")
    with pytest.raises(VectorFileError, match="damaged"):
        vectors.grade(solved[0], file)


def test_expected_values_are_written_on_request_and_enclose_the_right_ones(tmp_path):
    """Read as decimal numbers; the literal formulas lie within rounding of every midpoint."""
    from decimal import Decimal

    few = ["7x4x1/k3/cosine=1", "5x4x2/k3/t=1"]
    vectors.write(tmp_path, "json", cases=few, with_results=True)
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert expected["schema"] == "refgeo-expected/2"
    results = solve(*load(tmp_path, "json"))
    compared = 0
    for name, value in results.items():
        mid, rad = (np.array(expected["cases"][name][key], dtype=object) for key in ("mid", "rad"))
        size = max(np.abs(np.asarray(value)).max(), 1e-3)  # orthogonal vectors have a product of rounding
        for x, m, r in zip(np.ravel(value), mid.ravel(), rad.ravel(), strict=True):
            assert Decimal(r) <= Decimal("1e-18") * Decimal(size)
            assert abs(Decimal(float(x)) - Decimal(m)) <= Decimal("1e-12") * Decimal(size)
            compared += 1
    assert compared > 100
    assert any(key.endswith("geodesic_exact_G") for key in expected["cases"])
    assert len(max((str(m) for m in np.ravel(mid)), key=len)) > 20, "more digits than a double has"


@pytest.mark.parametrize("relaxation", [0.0, 0.5])
@pytest.mark.parametrize("metric", ["inv", "mix"])
def test_the_units_of_expected_values_accuse_nobody_that_the_metric_does_not(metric, relaxation):
    """An error of one unit of length in the metric has no entry beyond the unit of the file, and one comes close."""
    value = VALUES["horizontal_projection"]
    rng, close = np.random.default_rng(0), []
    for seed in range(5):
        case = generate(Features(n=6, m=5, condition_G=2.0, condition_H=8.0), metric, "float64", seed, relaxation)
        entries = vectors._units(case, (), value)
        length = float(error_units(case, value).gram * case.size(value))
        for part in (0, 1):
            largest = 0.0
            for column in np.linalg.svd(tuple(case.point)[1 - part if metric == "mix" else part])[2]:
                error = [np.zeros_like(factor) for factor in case.point]
                error[part][0] = column + 0.01 * rng.standard_normal(3)
                error[part] *= length / case.space.norm(rg.Pair(*error))
                assert np.abs(error[part]).max() <= entries[part] * (1 + 1e-9)
                largest = max(largest, float(np.linalg.norm(error[part])))
            close.append(largest / entries[part])
    assert min(close) > 0.95
    ill = generate(Features(n=6, m=5, condition_G=1e6, condition_H=1e6), metric, "float64", 0, relaxation=0.0)
    assert vectors._units(ill, (), value) == [None, None]


@pytest.mark.slow
def test_results_without_the_relaxation_are_told(tmp_path):
    vectors.write(tmp_path, "json", cases=["5x4x2/k3", "7x6x3/k3"], relaxation=0.3)
    report = vectors.grade(tmp_path, save(tmp_path / "results.json", solve(*load(tmp_path, "json"))))
    assert len(report.failures) == 12
    for row in report.failures:
        assert row.diagnosis == "your result is that of ε = 0, not of ε = 0.3", row
        lines = report.details(row)
        labels = [line[:11].strip() for line in lines]
        expected = lines[labels.index("expected") : labels.index("cause")]
        assert (
            "10/3" in expected[-1]
            or "_ε" in expected[0]
            or "Γ(v,v)" in expected[0]
            or "grad" in expected[0]
            or "  (if ε = 0; " in expected[0]
        )
