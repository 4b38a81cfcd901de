"""Lines that no decisive call has reached are named, and no others."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refgeo as rg
from refgeo.cli import main

BODY = """
import numpy as np
from refgeo import paper


def never_called():
    return 1


def helper(x):
    return 2 * x


def inner_product(metric, G, *a):
    if G.shape[-1] == 777:
        G = helper(G)
        print("never here")
    if metric not in ("inv", "mix"):
        raise NotImplementedError
    try:
        found = paper.inner_product(metric, G, *a)
    except np.linalg.LinAlgError:
        raise
    if metric == "mix":
        return found
    for _ in range(0):
        found = -found

    def inside():
        return "never here"

    return found


if __name__ == "__main__":
    never_called()
"""


def report_of(tmp_path, body=BODY, function="inner_product", **options):
    file = tmp_path / "mine.py"
    file.write_text(body)
    return rg.check(str(file), checks=[function], **options)


def numbers(tmp_path, pattern):
    lines = (tmp_path / "mine.py").read_text().splitlines()
    return {i for i, line in enumerate(lines, 1) if re.search(pattern, line)}


def uncovered_lines(report):
    return {i for ranges in report.not_run.values() for a, b in ranges for i in range(a, b + 1)}


@pytest.mark.slow
def test_lines_and_branches_that_were_not_run_are_named(tmp_path):
    report = report_of(tmp_path, cases=["5x4x2", "3-5x4x3"])
    assert uncovered_lines(report) == numbers(tmp_path, r"helper\(G\)|never here|-found")
    assert report.passed
    assert not report.passed_strictly
    assert report.missing.startswith("mine.py:")


@pytest.mark.slow
def test_processes_add_up(tmp_path):
    assert uncovered_lines(report_of(tmp_path)) == uncovered_lines(report_of(tmp_path, cases=["5x4x2"]))


def test_a_case_that_decides_nothing_reaches_nothing(tmp_path):
    body = (
        "import numpy as np\nfrom refgeo import paper\n\n\ndef horizontal_projection(metric, G, *a):\n"
        "    if np.linalg.cond(G) > 1e5:\n        G = 1.0 * G\n"
        "    return paper.horizontal_projection(metric, G, *a)\n"
    )
    cases = ["5x4x2", "5x4x2/k1e+06"]
    assert uncovered_lines(report_of(tmp_path, body, "horizontal_projection", metrics=["inv"], cases=cases)) == {7}


def test_what_was_not_asked_for_is_not_missed(tmp_path):
    """An earlier call of another function, a circumstance, enters it."""
    body = (
        "from refgeo import paper\n\n\ndef riemannian_gradient(metric, *a):\n    if metric == 'mix':\n"
        "        return paper.riemannian_gradient(metric, *a)\n    return paper.riemannian_gradient(metric, *a)\n\n\n"
        "def inner_product(metric, *a):\n    return paper.inner_product(metric, *a)\n"
    )
    assert report_of(tmp_path, body, metrics=["inv"], cases=["5x4x2", "2-6x7x2"]).not_run == {}


@pytest.mark.slow
def test_it_is_printed_written_and_strict(tmp_path, capsys):
    report_of(tmp_path, cases=["5x4x2"])
    file, page = tmp_path / "mine.py", tmp_path / "r.html"
    few = ["--checks", "inner_product", "--case", "5x4x2", "--quiet"]
    assert main(["check", str(file), *few, "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^not run       mine.py:\d", out, flags=re.M)
    assert main(["check", str(file), *few, "--strict"]) == 1
    assert "not passed with --strict, because of lines that were not run" in capsys.readouterr().out
    assert "mine.py:" in page.read_text()
    report = rg.check(str(file), checks=["inner_product"], cases=["5x4x2"])
    assert list(report.to_dict()["not_run"]) == [str(file)]


@pytest.mark.slow
@pytest.mark.parametrize("place", [".venv/lib/site-packages", "vendor"])
def test_packages_in_an_environment_beside_the_file_are_not_its_own(tmp_path, monkeypatch, place):
    packages = tmp_path / place
    (packages / "theirs-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(packages)
    text = "\n\ndef name(x):\n    if x == 777:\n        x = 778\n    return x\n"
    (packages / "theirs.py").write_text(text.replace("name", "theirs"))
    (tmp_path / "mine.py").write_text(text.replace("name", "mine"))
    file = tmp_path / "backend.py"
    file.write_text(
        f"import sys\nsys.path[:0] = [{str(tmp_path)!r}]\nimport mine, theirs\n"
        "from refgeo import paper\n\n\ndef inner_product(*a):\n"
        "    return paper.inner_product(*a) * (mine.mine(1) + theirs.theirs(1)) / 2\n"
    )
    report = rg.check(str(file), checks=["inner_product"], cases=["5x4x2"])
    assert report.missing == "mine.py:5"
    many = dataclasses.replace(report, not_run={"a.py": [(i, i) for i in range(1, 20, 2)]})
    assert many.missing == "a.py:1, 3, 5, 7, 9, 11, 13, 15 and 2 more"


def test_an_object_has_no_file():
    from helpers import backend

    report = rg.check(backend(), checks=["inner_product"], cases=["5x4x2"])
    assert report.passed
    assert report.not_run is None
    assert not report.passed_strictly, "nobody has watched its lines"


@pytest.mark.slow
def test_functions_of_one_line_are_run(tmp_path):
    file = tmp_path / "short.py"
    file.write_text(
        "import refgeo as rg\n"
        "def inner_product(metric, *a): return rg.paper.inner_product(metric, *a)\n"
        "def christoffel(metric, *a): return rg.paper.christoffel(metric, *a)\n"
    )
    assert rg.check(str(file), cases=["5x4x2/k3"]).not_run == {}


@pytest.mark.slow
def test_refgeo_itself_below_the_folder_of_a_backend_is_not_its_own(tmp_path):
    shutil.copytree(Path(rg.__file__).parent, tmp_path / "refgeo")
    (tmp_path / "mine.py").write_text("from refgeo.paper import inner_product\n")
    command = [sys.executable, "-P", "-m", "refgeo", "check", "mine.py", "--quiet", "--strict", "--case", "5x4x2/k3"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
