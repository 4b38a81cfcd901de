"""Metrics judged by processes of their own: the same rows, and no process that is lost unnoticed or left behind."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import refgeo as rg
from refgeo.conformance import process, side_by_side
from refgeo.conformance.points import Points
from refgeo.conformance.rows import Verdict
from refgeo.conformance.side_by_side import Elsewhere

CHECKS = ["inner_product"]

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


def ends(process: int) -> bool:
    """Whether a process that has been killed is gone, as soon as the system has noticed."""
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_there_are_no_more_processes_than_processors(monkeypatch):
    both = ["inv", "mix"]
    for processors, dealt in ((1, [both]), (2, [["inv"], ["mix"]]), (8, [["inv"], ["mix"]])):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=processors: set(range(count)), raising=False)
        assert side_by_side.shares(both, None) == dealt
    assert side_by_side.shares(["inv"], None) == [["inv"]]


def test_rows_are_the_same_progress_counts_all_points_and_no_process_is_left(backend):
    calls = []
    apart = rg.check(str(backend), checks=CHECKS, jobs=2, progress=lambda *call: calls.append(call[:2]))
    several = len(processes(backend))
    assert several >= 2
    assert apart.rows == rg.check(str(backend), checks=CHECKS, jobs=1).rows
    assert len(processes(backend)) < 2 * several, "one fewer, and as many that are new for a diagnosis"
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


def test_an_interrupt_ends_all_processes(backend):
    def stop(done, total, what):
        while len(processes(backend)) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.check(str(backend), checks=CHECKS, jobs=2, progress=stop)
    assert len(processes(backend)) == 2
    assert all(ends(process) for process in processes(backend))


def test_a_referee_that_is_killed_leaves_no_backend_behind(tmp_path):
    backend = tmp_path / "hangs.py"
    mark = 'open(f"{__file__}.{os.getpid()}", "w").close()'
    backend.write_text(f"import os\n\ndef christoffel(*a):\n    {mark}\n    while True: pass\n")
    command = [
        sys.executable,
        "-m",
        "refgeo",
        "check",
        str(backend),
        "--checks",
        "christoffel",
        "--jobs",
        "2",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as referee:
        while len(processes(backend)) < 2:
            assert referee.poll() is None
            time.sleep(0.01)
        referee.kill()
    assert all(ends(process) for process in processes(backend))


def test_a_process_that_is_lost_is_an_error(monkeypatch):
    begin = side_by_side.Elsewhere.__init__

    def exits(self, module):
        with monkeypatch.context() as lost:
            lost.setattr(process, "_BOOT", "import sys; sys.exit(1)")
            begin(self, module)

    monkeypatch.setattr(side_by_side.Elsewhere, "__init__", exits)
    with pytest.raises(
        ChildProcessError, match=r"its process ended with status 1; with jobs=1 \(--jobs 1\), refgeo judges one"
    ):
        rg.check(checks=["inner_product"], jobs=2)


def test_what_goes_wrong_there_is_said_here():
    points = Points()
    backend = "refgeo.paper", "formulas", 1.0, {}
    other = Elsewhere("refgeo.conformance.run")
    other.begin(0, "judged", backend, ["nonsense"], ["inv"], points)
    with contextlib.closing(other), pytest.raises(KeyError, match="nonsense"):
        other.result()


def test_a_second_process_that_cannot_import_the_backend_has_rows_that_say_so(tmp_path):
    file = tmp_path / "once.py"
    file.write_text(
        "import pathlib\nfrom refgeo.paper import inner_product\n"
        "pathlib.Path(__file__).with_suffix('.mark').open('x').close()\n"
    )
    report = rg.check(str(file), checks=["inner_product"], jobs=2)
    assert report.wrong == ["inner_product[mix]"]
    assert "once.py: importing it raised FileExistsError" in report.failures[0].message
