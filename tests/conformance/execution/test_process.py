"""A backend in a process of its own: whatever it does there, the referee reaches its end and says so."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers import sample

import refgeo as rg
from refgeo.cli import main
from refgeo.conformance import BackendError
from refgeo.conformance.judging.verdict import Verdict

MISDEEDS = {
    "exit": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "kill the group": "os.killpg(0, signal.SIGTERM); time.sleep(30)",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "alarm": "signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(30)",
    "lock": "ctypes.PyDLL(None).sleep(1000)",
    "loop": "\n    while True: pass",
    "recursion": "return christoffel(*a)",
    "huge": "return np.broadcast_to(1.0, (10**6, 10**6)), np.zeros((2, 2))",
    "memory": "\n    kept = []\n    while True: kept.append(np.zeros(1 << 28))",
}
HARMLESS = {
    "close streams": "sys.stdout.close(); os.closerange(1, 3)",
    "replace streams": "sys.stdout = None",
    "signal the parent": "os.kill(os.getppid(), signal.SIGWINCH); print('sent')",
    "print": "os.write(1, b'hello'); print('hello'); import warnings; warnings.warn('hello')",
}
HEAD = """
import atexit, ctypes, os, signal, sys, time
import numpy as np
from refgeo import paper
from refgeo.paper import inner_product


def christoffel(*a):
    {deed}
    return paper.christoffel(*a)
"""


def write_backend(tmp_path, deed, name="hostile.py"):
    file = tmp_path / name
    file.write_text(HEAD.replace("{deed}", deed))
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize("deed", sample(MISDEEDS))
def test_no_misdeed_ends_the_referee_or_passes(deed, tmp_path):
    backend = write_backend(tmp_path, MISDEEDS[deed])
    report = rg.check(
        backend, checks=["christoffel", "inner_product"], metrics=["inv"], cases=["5x4x2/k3"], timeout=1.0
    )
    rows = {row.check: row for row in report.rows}
    assert rows["christoffel"].fails
    assert rows["christoffel"].message
    assert rows["inner_product"].verdict is Verdict.PASS, "the run goes on"
    assert report.wrong == ["christoffel[inv]"] * (deed not in ("stop", "lock", "loop", "memory"))
    assert not report.passed
    assert report.where == "a process of its own"


@pytest.mark.slow
@pytest.mark.parametrize("deed", HARMLESS)
def test_what_is_said_by_a_backend_floods_no_report(deed, tmp_path, capfd):
    report = rg.check(
        write_backend(tmp_path, HARMLESS[deed]), checks=["christoffel"], metrics=["inv"], cases=["5x4x2/k3"]
    )
    assert report.passed_strictly
    report.print()
    assert "hello" not in "".join(capfd.readouterr())


RACE = """
import contextlib, threading, time
from refgeo import paper

taken = {taken}


class Space:
    def at(self, metric, G, H):
        self.metric, self.G, self.H = metric, G, H
        return self

    def inner_product(self, *vectors):
        return paper.inner_product(self.metric, self.G, self.H, *vectors)


space = Space()


def inner_product(metric, G, H, *vectors):
    with taken:
        here = space.at(metric, G, H)
        time.sleep(0.001)  # while another thread runs
        return here.inner_product(*vectors)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "found"), [("contextlib.nullcontext()", 2), ("threading.Lock()", 0)])
def test_a_point_that_two_threads_share_is_seen_and_a_lock_helps(taken, found, tmp_path):
    """Between two lines Python changes threads once in thousands of calls."""
    file = tmp_path / "race.py"
    file.write_text(RACE.replace("{taken}", taken))
    report = rg.check(str(file), checks=["inner_product"], cases=["5x4x2/k3", "3-5x4x4/k3"])
    broken = [row for row in report.findings if re.search("wrong beside a call .* in another thread", row.message)]
    assert len(broken) == (found > 0)
    assert report.wrong == []
    assert report.passed is (found == 0), "it makes its caller's numbers wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    "prelude",
    sample([
        "atexit.register(os._exit, 0)",
        "np.linalg.norm = np.abs = lambda *a, **k: 0.0",
        "import refgeo.conformance.report as r; r.Report.passed = property(lambda self: True)",
        "sys.settrace(lambda *a: None)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ]),
)  # fmt: skip
def test_the_exit_status_is_the_referees(prelude, tmp_path):
    file = write_backend(tmp_path, "return tuple(2 * x for x in paper.christoffel(*a))")
    with open(file, "a") as stream:
        stream.write(prelude + "\n")
    command = [sys.executable, "-m", "refgeo", "check", file, "--checks", "christoffel", "--case", "5x4x2/k3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cause      your result is 2 times the right one" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("code", ["os._exit(0)", "sys.exit(0)", "raise KeyError('x')", "os.kill(os.getpid(), 9)"])
def test_a_backend_that_cannot_be_imported_is_a_usage_error(code, tmp_path):
    file = tmp_path / "gone.py"
    file.write_text(f"import os, sys\n{code}\n")
    with pytest.raises(BackendError, match="importing it"):
        rg.check(str(file))
    assert main(["check", str(file)]) == 2


@pytest.mark.slow
def test_exceptions_name_file_and_line(tmp_path):
    file = write_backend(tmp_path, "raise KeyError('missing')")
    report = rg.check(file, checks=["christoffel"], metrics=["inv"], cases=["5x4x2/k3"])
    assert "KeyError: 'missing' (hostile.py:9, in christoffel)" in report.rows[0].message
    broken = [row for row in report.rows if row.kind == "contract" and row.verdict is Verdict.CONTRACT]
    assert broken == [], "an exception is no misconduct"
    singular = write_backend(tmp_path, "return np.linalg.inv(np.zeros((2, 2)))", "singular.py")
    message = rg.check(singular, checks=["christoffel"], metrics=["inv"], cases=["5x4x2/k3"]).rows[0].message
    assert "Singular matrix (singular.py:9, in christoffel)" in message, "not NumPy's line"
    absent = write_backend(tmp_path, "raise NotImplementedError", "absent.py")
    message = rg.check(absent, checks=["christoffel"], metrics=["inv"], cases=["5x4x2/k3"]).rows[0].message
    assert message == "NotImplementedError"


@pytest.mark.slow
def test_a_function_with_other_arguments_is_told_which_it_gets(tmp_path):
    file = tmp_path / "arguments.py"
    file.write_text(
        "def inner_product(G, H, a, b):\n    return 0.0\n\n\ndef christoffel(*a):\n    return a[0] + 1\n\n\n"
        "def routine(loss, rho):\n    return 0.0\n"
    )
    only = {"metrics": ["inv"], "cases": ["5x4x2/k3"]}
    rows = {row.check: row for row in rg.check(str(file), checks=["inner_product", "christoffel"], **only).rows}
    message = rows["inner_product"].message
    assert message.endswith("7 were given; refgeo calls it with (metric, G, H, a_G, a_H, b_G, b_H)")
    assert rows["christoffel"].message.endswith("(arguments.py:6, in christoffel)"), "a mistake of its own"
    message = rg.check(f"{file}:routine", checks=["sharpness"]).failures[0].message
    assert message.endswith("4 were given; refgeo calls it with (value_and_grad, params, metric, rho)")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def christoffel(:\n", r"raised SyntaxError: invalid syntax \(odd.py, line 1\); expected"),
        ("import nothing_of_this_name", r"'nothing_of_this_name' \(odd.py:1, in <module>\); expected"),
        ("def christofel(): ...", "found none; refgeo knows no function christofel; did you mean christoffel\\?"),
    ],
)
def test_what_cannot_be_imported_is_said_in_the_users_own_words(code, message, tmp_path):
    file = tmp_path / "odd.py"
    file.write_text(code)
    with pytest.raises(BackendError, match=message):
        rg.check(str(file))


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["time.sleep(1000)", "os._exit(11)"])
def test_what_is_never_called_is_not_accused(deed, tmp_path):
    """Right, but for a hang at an ill-conditioned point of inv: mix has done nothing, nor have other points of inv."""
    file = write_backend(tmp_path, f"if a[0] == 'inv' and np.linalg.cond(a[1]).max() > 1e5: {deed}")
    report = rg.check(file, checks=["christoffel"], cases=["10x9x4", "10x9x4/k1e+06", "6x5x4/k3/t=2.5"], timeout=1.5)
    rows = {str(row): row for row in report.rows if row.kind == "value"}
    assert report.wrong == []
    assert rows["christoffel[mix]"].verdict is Verdict.PASS
    inv = rows["christoffel[inv]"]
    assert inv.verdict is Verdict.PASS, "nothing is decisive there, and the points after it are judged"
    assert ("did not return within 1.5 s" if "sleep" in deed else "ended with status 11") in inv.no_result
    assert "6x5x4/k3/t=2.5" in {e.case for e in inv.measurements}


@pytest.mark.slow
def test_a_hang_at_a_decisive_point_is_not_judged_and_fails(tmp_path):
    report = rg.check(write_backend(tmp_path, "time.sleep(1000)"), checks=["christoffel"], metrics=["inv"], timeout=1)
    rows = {row.check: row.verdict for row in report.rows}
    assert rows["christoffel"] is Verdict.NOT_JUDGED
    assert not report.passed
    assert report.conclusion == ["NOT JUDGED: christoffel[inv]"]
    assert not [row for row in report.rows if row.kind == "contract"]


OUT = 'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 1 bytes")'


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["time.sleep(1000)", "raise MemoryError", OUT])
def test_who_runs_out_of_time_or_memory_where_a_right_route_may_is_not_wrong(deed, tmp_path):
    """Not with more rows either, once that has happened; but with fewer, and with little at all nothing is judged."""
    cases = ["5x4x2/k3", "20x19x17/k3", "16411x3x2/k3", "16x16x16/k3"]
    options = {"checks": ["christoffel"], "metrics": ["inv"], "cases": cases, "timeout": 1}
    body = "    return paper.christoffel(*a)"
    report = rg.check(write_backend(tmp_path, f"if a[1].shape[-1] == 17: {deed}\n{body}"), **options)
    row = report.rows[0]
    assert row.verdict is Verdict.PARTIAL
    assert row.message.startswith("not judged at 20x19x17/k3: ")
    assert "; not judged at 16411x3x2/k3: not called again: " in row.message
    judged = {e.case for e in row.measurements}
    assert {cases[0], cases[3]} <= judged
    assert not {cases[1], cases[2]} & judged
    assert report.passed
    assert not report.passed_strictly, "what comes after may be anything"
    little = rg.check(write_backend(tmp_path, f"if a[1].shape[-1] == 2: {deed}\n{body}"), **options)
    assert little.rows[0].verdict is Verdict.NOT_JUDGED
    assert not little.passed


@pytest.mark.slow
def test_another_exception_there_is_wrong_and_no_result_anywhere_does_not_pass(tmp_path):
    options = {"checks": ["christoffel"], "metrics": ["inv"], "cases": ["20x19x17/k3"]}
    assert rg.check(write_backend(tmp_path, "raise KeyError"), **options).wrong == ["christoffel[inv]"]
    alone = rg.check(write_backend(tmp_path, "raise MemoryError"), **options)
    assert alone.rows[0].verdict is Verdict.NOT_JUDGED
    assert "not judged at 20x19x17/k3" in alone.rows[0].message
    assert not alone.passed


@pytest.mark.slow
def test_a_backend_that_cannot_be_imported_again_ends_no_run(tmp_path):
    """It ends its process, and has changed the file so that it cannot be imported any more."""
    deed = "open(__file__, 'w').write('1/0'); os._exit(3)"
    file = write_backend(tmp_path, f"{deed}\n\nfrom refgeo.paper import geodesic\ndef more():\n    pass")
    report = rg.check(file, checks=["christoffel", "geodesic_1"], metrics=["inv"], cases=["5x4x2"])
    rows = {row.check: row for row in report.rows if row.kind == "value"}
    for row in rows.values():  # the process is lost in an opening call
        assert "ZeroDivisionError" in row.message
    assert not report.passed


@pytest.mark.slow
def test_a_backend_that_removes_its_file_is_judged_for_both_metrics(tmp_path):
    file = write_backend(tmp_path, "os.path.exists(__file__) and os.remove(__file__); os._exit(3)")
    report = rg.check(file, checks=["christoffel"])
    assert report.wrong == ["christoffel[inv]", "christoffel[mix]"]


@pytest.mark.slow
def test_objects_run_here_and_the_report_says_so():
    from helpers import backend

    assert rg.check(backend(), checks=["inner_product"], cases=["1x1x1"]).where == "this process"
    assert rg.check(rg.paper, checks=["inner_product"], cases=["1x1x1"]).where == "this process"
    assert rg.check("refgeo.paper", checks=["inner_product"], cases=["1x1x1"]).where == "a process of its own"


def test_no_process_is_left_behind(tmp_path):
    backend = rg.conformance.Backend(write_backend(tmp_path, "pass"))
    process = backend._server._child._process.pid
    backend.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.slow
def test_a_name_of_several_words_is_no_misspelling_of_one_of_them():
    """`refgeo.paper` has `toy_sharpness`, and no `sharpness`; `projection` is nearer to its own name's than another."""
    assert "did you mean" not in str(rg.check(checks=["inner_product"], cases=["1x1x1"]))
    mine = SimpleNamespace(horizontal_projection=rg.paper.horizontal_projection, projection=len)
    assert "did you mean" not in str(rg.check(mine, cases=["1x1x1"]))
