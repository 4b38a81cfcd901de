"""Reports in files: the JSON follows its schema, the page stands alone."""

import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import backend

import refgeo as rg
from refgeo import paper
from refgeo.conformance.judging.verdict import Verdict

SOME = ["10x9x4/k1", "10x9x4/k3", "10x9x4/k1e+06", "4-25x24x6/k3"]


def hostile(metric, *arguments):
    raise RuntimeError("<script>alert(1)</script> & \x1b[31mred\x00 ]]> \ud800")


@pytest.fixture(scope="module")
def report():
    broken = backend(
        christoffel=lambda *a: tuple(2 * x for x in paper.christoffel(*a)),
        riemannian_gradient=hostile,
        geodesic=None,
    )
    return rg.check(broken, cases=SOME)


@pytest.mark.slow
def test_json_has_every_measurement_of_a_value(report):
    rows = {(row["check"], row["metric"]): row for row in report.to_dict()["rows"]}
    row = rows["inner_product", "inv"]
    assert sum(item["blocks"] for item in row["measurements"]) == row["points"]
    assert sum(item["blocks"] for item in row["measurements"] if item["decisive"]) == row["decisive_points"]
    assert max(item["relative_error"] for item in row["measurements"] if item["decisive"]) > 0
    assert rows["dtype_kept", "any metric"]["measurements"] == []


class Page(HTMLParser):
    """What a page loads, its identifiers, its visible text; and that every element is closed."""

    VOID = ("meta", "br", "link", "img", "path", "use", "rect", "circle")

    def __init__(self):
        super().__init__()
        self.loads, self.ids, self.open, self.text, self.scripts = [], [], [], "", 0

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for key in ("src", "href", "xlink:href", "data"):
            if key in attributes and not attributes[key].startswith("#"):
                self.loads.append(attributes[key])
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.slow
def test_the_page_stands_alone_and_shows_what_the_table_does(report):
    text = report.to_html()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == [], "nothing from elsewhere"
    assert page.scripts == 0
    assert not re.search(r"url\((?!#)|@import", text)
    assert len(page.ids) == len(set(page.ids))
    assert 'name="viewport"' in text
    for row in report.rows:
        if row.kind != "contract" or row.verdict is Verdict.CONTRACT:
            assert row.check in page.text or row.verdict is Verdict.NOT_PROVIDED
    assert "your result is 2 times the right one" in page.text
    assert "loses" in page.text
    assert {"check", "metric", "verdict"} <= set(re.findall("<th>(.*?)</th>", text))
    assert "<script>alert(1)</script>" in page.text, "as text"
    values = {row.check for row in report.rows if row.measurements}
    assert text.count("<svg") == len(values) > 3


@pytest.mark.slow
def test_the_conclusion_and_what_is_wrong_come_first_and_the_rest_with_verbose(report):
    report.print(short := io.StringIO())
    report.print(full := io.StringIO(), verbose=True)
    lines = short.getvalue().splitlines()
    assert lines[2] == f"WRONG: {', '.join(report.wrong)}"
    for row in report.failures:
        headline = next(line for line in lines if line.startswith("SimpleNamespace: ") and f"{row}" in line)
        assert ": WRONG: " in headline
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("check ")) + 1 :]
    verdicts = ["WRONG" in line for line in table[: table.index("")]]
    assert verdicts == sorted(verdicts, reverse=True), "on top"
    assert sum(verdicts) == len(report.failures)
    for words in ("an implementation that uses QR factorisations", "results were compared with proved intervals"):
        assert words not in short.getvalue()
        assert words in full.getvalue()


def test_lines_of_the_paper_s_own_code_that_did_not_run_are_shown_with_verbose_alone():
    report = rg.check(checks=["inner_product"], metrics=["inv"], cases=["1x1x1"])
    assert report.not_run
    assert not any(text.startswith("not run") for text, _ in report.foot())
    assert any(text.startswith("not run       paper.py:") for text, _ in report.foot(verbose=True))


@pytest.mark.slow
def test_references_inside_the_plots_point_at_what_is_there(report):
    text = report.to_html()
    targets = set(re.findall(r'id="([^"]+)"', text))
    references = re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', text)
    assert references
    assert set(references) <= targets


@pytest.mark.slow
def test_the_points_of_a_plot_are_the_measurements(monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    original = Axes.plot

    def plot(self, x, y, *arguments, **options):
        drawn.append((options.get("label"), x, y))
        return original(self, x, y, *arguments, **options)

    monkeypatch.setattr(Axes, "plot", plot)
    report = rg.check(checks=["horizontal_projection"], cases=SOME)
    report.to_html()
    for row in report.rows:
        if row.kind == "value":
            x, y = next((x, y) for label, x, y in drawn if label == row.metric)
            assert np.allclose(x, [e.condition for e in row.measurements])
            expected = [-np.log10(max(e.relative_error, 2**-53)) for e in row.measurements]
            assert np.allclose(y, np.clip(expected, 0, None))


def test_without_the_extra_the_error_comes_before_the_run(monkeypatch, capsys, tmp_path):
    from refgeo.cli import main

    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setattr("refgeo.conformance.check", lambda *a, **k: pytest.fail("the run has started"))
    assert main(["check", "--html", str(tmp_path / "report.html")]) == 2
    assert 'pip install "refgeo[html]"' in capsys.readouterr().err


@pytest.mark.slow
def test_a_right_float32_backend_passes_at_a_point_where_some_laws_cannot_tell():
    rng = np.random.default_rng(0)
    factors = [np.linalg.qr(rng.standard_normal((n, 3)))[0] * [1.0, 0.3, 0.1] for n in (6, 5)]
    report = rg.check(points={"x": dict(zip("GH", factors, strict=True))}, dtype="float32")
    assert report.passed
    assert "riemannian_hessian" in {row.check for row in report.rows}


@pytest.mark.slow
def test_a_module_is_reproduced_by_its_name_and_a_file_by_its_path(tmp_path):
    file = tmp_path / "my backend.py"
    file.write_text("from refgeo import paper\ndef inner_product(*a): return 2 * paper.inner_product(*a)\n")
    report = rg.check(str(file), checks=["inner_product"], cases=["10x9x4/k3"], timeout=7.0, dtype="float32")
    row = report.failures[0]
    assert f"'{file}' --timeout 7 --dtype float32 --metric inv" in report.reproduce(row)
    report = rg.check("refgeo.paper", checks=["inner_product"], cases=["1x1x1"])
    assert report.reproduce(report.rows[0]).startswith("refgeo check --metric inv")
    assert rg.check(paper, checks=["inner_product"], cases=["1x1x1"]).reproduce(report.rows[0]) == ""


@pytest.mark.slow
def test_the_example_of_a_refusal_is_the_point_that_was_refused():
    def small_only(metric, G, *arguments):
        if G.shape[-1] > 4:
            raise NotImplementedError("h > 4")
        return paper.riemannian_gradient(metric, G, *arguments)

    report = rg.check(backend(riemannian_gradient=small_only), cases=["10x9x4/k1", "3-9x8x5/k1"], metrics=["inv"])
    row = next(row for row in report.rows if row.check == "riemannian_gradient")
    assert row.verdict is Verdict.PARTIAL
    assert row.example.case == "3-9x8x5/k1"


@pytest.mark.slow
def test_right_with_lost_digits_is_another_outcome_than_right_and_than_wrong():
    def outcome(backend_, cases):
        report = rg.check(backend_, checks=["horizontal_projection"], metrics=["inv"], cases=cases)
        return report.rows[0].outcome

    assert outcome(paper, ["10x9x4/k1", "10x9x4/k3"]) == "pass"
    assert re.fullmatch(r"loses \d digits at κ=1e\+0[46]", outcome(paper, ["10x9x4/k1", "10x9x4/k10000"]))
    wrong = backend(horizontal_projection=lambda m, G, H, a, b: (a, b))
    assert outcome(wrong, ["10x9x4/k3"]) == "WRONG"


def test_your_own_points_are_judged_and_bad_ones_are_named():
    point = {"G": [[2.0, 0.0], [0.0, 1.0]], "H": [[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]}
    report = rg.check(backend(), points={"mine": point}, checks=["horizontal_projection"])
    assert report.passed
    assert {row.worst_case.case for row in report.rows if row.kind != "contract"} == {"mine"}
    for change, message in (
        ({"G": [[1.0]]}, "point mine: .*h"),
        ({"K": [[1.0]]}, "point mine: unknown array 'K'"),
        ({"a_G": [[1.0, 0.0], [0.0, 0.0]]}, "expected both a_G and a_H"),
        ({"a_G": np.ones((3, 2)), "a_H": np.ones((3, 2))}, "a_G and a_H: expected the shapes of the point"),
        ({"t": [1.0, 2.0]}, "t: expected a finite number"),
        (
            {"hessian_v_G": np.ones((2, 2)), "hessian_v_H": np.ones((3, 2))},
            "expected all of hessian_e, hessian_w and hessian_v",
        ),
        (
            {f"hessian_{v}_{part}": np.ones((rows, 2)) for v in "ewv" for part, rows in (("G", 2), ("H", 3))},
            "hessian_v: expected a horizontal vector",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            rg.check(backend(), points={"mine": point | change}, checks=["horizontal_projection"])
    zero = {"a_G": np.zeros((2, 2)), "a_H": np.zeros((3, 2))}
    assert rg.check(backend(), points={"mine": point | zero}, checks=["christoffel", "inner_product"]).passed
    big = {"G": [[1e60]], "H": [[1e60]]}
    assert rg.check(backend(), points={"big": big}, checks=["inner_product"], metrics=["inv"]).passed
    with pytest.raises(ValueError, match="expected the arrays G and H, got G"):
        rg.check(backend(), points={"mine": {"G": [[1.0]]}})


def test_a_remark_on_several_rows_is_made_once():
    """Cholesky factorisations break down in each function, at the same point, on another line of code."""

    def breaking(name):
        def call(metric, G, *rest):
            if np.linalg.cond(G).max() > 1e5:
                raise np.linalg.LinAlgError("not positive definite")
            return getattr(paper, name)(metric, G, *rest)

        return call

    names = ["horizontal_projection", "riemannian_gradient"]
    broken = SimpleNamespace(**{name: breaking(name) for name in names})
    report = rg.check(broken, metrics=["mix"], cases=["10x9x4/k1e+06", "5x4x2/k3"])
    stream = io.StringIO()
    report.print(stream, verbose=True)
    remarks = [line for line in stream.getvalue().splitlines() if "not positive definite" in line]
    assert len(remarks) == 1
    rows = "horizontal_projection[mix], riemannian_gradient[mix]"
    assert remarks[0].startswith(f"SimpleNamespace: {rows}: no result: right elsewhere")
    report.print(stream := io.StringIO())
    assert "not positive definite" not in stream.getvalue()
    assert "no result     from 2 values at a large κ, which is allowed" in stream.getvalue()


_MEASURE = """<script>
document.body.dataset.right = [...document.querySelectorAll("th")].map(
    x => x.textContent + "=" + x.getBoundingClientRect().right).join("|")
document.body.dataset.width = document.documentElement.scrollWidth
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "columns"), [(1280, ["check", "metric", "verdict", "worst case"]), (500, ["metric"])]
)
def test_a_browser_shows_the_page_without_cutting_it_off(width, columns, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no browser is installed")
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    page.write_text(rg.check(metrics=["inv"], cases=["5x4x2/k3"]).to_html() + _MEASURE, encoding="utf-8")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    dom = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    right = dict(x.split("=") for x in re.search(r'data-right="([^"]*)"', dom)[1].split("|"))
    assert [*right][:3] == ["check", "metric", "verdict"]
    assert all(float(right[name]) <= width for name in columns)
    assert int(re.search(r'data-width="(\d+)"', dom)[1]) <= width, "nothing scrolls but the table"
