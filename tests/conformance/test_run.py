"""Metrics judged side by side: the same rows, and no process that is left behind."""

import os
import time
from pathlib import Path

import pytest

import refgeo as rg
from refgeo.conformance.judging.verdict import Verdict

FEW = {"checks": ["inner_product"], "cases": ["5x4x2/k3", "7x4x1/k3", "5x4x3/k3", "3-5x4x4/k3"]}

WRONG_TWICE = """
import os
from refgeo import paper

open(f"{__file__}.{os.getpid()}", "w").close()


def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
    if metric == "mix" or G.shape[-1] > 2:
        a_G = abs(a_G)
    return paper.inner_product(metric, G, H, a_G, a_H, b_G, b_H)
"""


@pytest.fixture
def backend(tmp_path):
    file = tmp_path / "twice.py"
    file.write_text(WRONG_TWICE)
    return file


def processes(backend: Path) -> list[int]:
    """Those that have imported the backend."""
    return [int(file.suffix[1:]) for file in backend.parent.glob(f"{backend.name}.*")]


def with_processors(monkeypatch, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)


def ends(process: int) -> bool:
    """Whether a process that has been killed is gone, as soon as the system has noticed."""
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
def test_rows_are_the_same_progress_counts_all_points_and_no_process_is_left(backend, monkeypatch):
    with_processors(monkeypatch, 2)
    calls = []
    apart = rg.check(str(backend), **FEW, progress=lambda *call: calls.append(call[:2]))
    assert len(processes(backend)) >= 2
    for count in (1, 8):
        with_processors(monkeypatch, count)
        assert apart.rows == rg.check(str(backend), **FEW).rows
    assert [(row.metric, row.verdict) for row in apart.rows if row.kind == "value"] == [
        ("inv", Verdict.WRONG),
        ("mix", Verdict.WRONG),
    ]
    assert all(ends(process) for process in processes(backend))
    done, totals = zip(*calls, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == sorted(done)
    assert done[0] == 0
    assert totals[0] // 2 <= done[-1] <= totals[0]


@pytest.mark.slow
def test_an_interrupt_ends_all_processes(backend, monkeypatch):
    with_processors(monkeypatch, 2)

    def stop(done, total, what):
        if len(processes(backend)) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.check(str(backend), **FEW, progress=stop)
    assert len(processes(backend)) >= 2
    assert all(ends(process) for process in processes(backend))


@pytest.mark.slow
def test_a_second_process_that_cannot_import_the_backend_has_rows_that_say_so(tmp_path):
    file = tmp_path / "once.py"
    file.write_text(
        "import pathlib\nfrom refgeo.paper import inner_product\n"
        "pathlib.Path(__file__).with_suffix('.mark').open('x').close()\n"
    )
    report = rg.check(str(file), checks=["inner_product"], cases=["5x4x2"])
    assert report.wrong == ["inner_product[mix]"]
    assert "once.py: importing it raised FileExistsError" in report.failures[0].message


FROZEN = """
from refgeo import paper

first = []


def riemannian_gradient(metric, G, H, e_G, e_H):
    first.append(WHAT)
    return paper.riemannian_gradient(HOW)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how", "said"),
    [
        ("metric", "first[0], G, H, e_G, e_H", dict.fromkeys(("inv", "mix"), "the other metric")),
        ("G.dtype", "metric, *(x.astype(first[0]).astype(x.dtype) for x in (G, H, e_G, e_H))",
         dict.fromkeys(("inv", "mix"), "float32 arrays")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_kept_of_the_first_call_is_wrong_however_many_processors_there_are(
    what, how, said, count, tmp_path, monkeypatch
):
    with_processors(monkeypatch, count)
    file = tmp_path / "frozen.py"
    file.write_text(FROZEN.replace("WHAT", what).replace("HOW", how))
    report = rg.check(str(file), checks=["riemannian_gradient"], cases=["5x4x2/k3", "5x4x3/k3/single=1"])
    assert report.wrong
    for row in report.failures:
        assert row.diagnosis == f"right if this call is the first one, and wrong after a call with {said[row.metric]}"
