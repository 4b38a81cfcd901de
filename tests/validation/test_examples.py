"""The examples: files that are ready to use, the tour, and the gallery."""

import json
import runpy
from pathlib import Path

import pytest

import refgeo as rg
from validation.examples import tour

FOLDER = Path(tour.__file__).parent


GALLERY = sorted((FOLDER / "gallery").glob("plot_*.py"))


def test_the_tour_is_a_notebook_in_cells(tmp_path, monkeypatch):
    pytest.importorskip("jupytext", reason="jupytext is not installed")
    monkeypatch.setattr("sys.argv", ["tour", "--notebook", str(tmp_path / "tour.ipynb")])
    tour.main()
    cells = json.loads((tmp_path / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    assert sum(cell["cell_type"] == "code" for cell in cells) >= 6


@pytest.mark.exhaustive  # CI draws them with the site
@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_has_short_programs_that_draw_one_picture(script, monkeypatch):
    import matplotlib.pyplot as plt

    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    with plt.style.context("default"):
        monkeypatch.setattr(plt, "show", lambda: None)
        runpy.run_path(str(script))
        assert len(plt.get_fignums()) == 1
        plt.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gamma_of_a_metric", "loss", "row_scaling"])
def test_examples_that_pages_link_run(name):
    if name == "loss":
        pytest.importorskip("transformers", reason="transformers is not installed")
    runpy.run_path(str(FOLDER / f"{name}.py"))


def test_the_gallery_has_eight_programs():
    assert len(GALLERY) == 8


@pytest.mark.slow
def test_the_template_of_a_backend_is_right_in_both_precisions():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    for dtype in ("float32", "float64"):
        report = rg.check(FOLDER / "torch_backend.py", dtype=dtype, cases=["5x4x2/k3", "2.3-6x7x2/k3"])
        assert report.passed, report.conclusion
        assert len([row for row in report.judged if row.kind == "value"]) == 4
