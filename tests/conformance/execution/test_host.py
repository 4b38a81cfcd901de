"""What is judged is the object that was given, whatever leads to it; and nothing that was started stays."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path

import pytest
from helpers import sample

import refgeo as rg
from refgeo.conformance.execution.backend import Backend
from refgeo.support.files import origin, place_of

SOURCE = """
import numpy as np
FACTOR = 1.0
def riemannian_gradient(metric, G, H, e_G, e_H):
    S, T = np.swapaxes(G, -1, -2) @ G, np.swapaxes(H, -1, -2) @ H
    if metric == "inv":
        return FACTOR * (e_G @ S), e_H @ T
    return e_G @ np.linalg.inv(T), e_H @ np.linalg.inv(S)
"""
WRONG = SOURCE.replace("FACTOR * (e_G @ S)", "2 * e_G @ S")
RIGHT, ACCUSED = ["PASS"], ["WRONG: riemannian_gradient[inv]"]
FEW = {"cases": ["5x4x2/k3"]}


def conclusion(backend):
    return rg.check(backend, **FEW).conclusion


def load_module(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clean(monkeypatch):
    """What tests add to the modules and the path goes."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain_name", "nowhere.inside", "statistics"])
def test_a_module_is_judged_under_whatever_name_it_was_loaded(name, tmp_path, clean):
    for i, (source, expected) in enumerate([(SOURCE, RIGHT), (WRONG, ACCUSED)]):
        file = tmp_path / f"one_{i}.py"
        file.write_text(source)
        assert conclusion(load_module(name, file)) == expected


@pytest.mark.slow
def test_a_module_beside_another_of_its_name_is_judged_itself(tmp_path, clean):
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "geometry_twin.py").write_text(SOURCE)
    (tmp_path / "geometry_twin.py").write_text(WRONG)
    sys.path.insert(0, str(tmp_path / "installed"))
    assert conclusion(load_module("geometry_twin", tmp_path / "geometry_twin.py")) == ACCUSED
    assert conclusion("geometry_twin") == RIGHT  # the name leads to the other


STATE = """
from types import SimpleNamespace
SETTINGS, SCALE = {"factor": 1.0}, SimpleNamespace(factor=1.0)
def riemannian_gradient(metric, G, H, e_G, e_H, *, factor=1.0):
    S, T, f = G.mT @ G, H.mT @ H, SETTINGS["factor"] * SCALE.factor * factor
    if metric == "inv":
        return f * (e_G @ S), e_H @ T
    return f * (e_G @ np.linalg.inv(T)), e_H @ np.linalg.inv(S)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["nothing", "a dict", "an object", "a default"])
def test_state_that_was_changed_is_judged(what, tmp_path, clean):
    (tmp_path / "geometry_state.py").write_text("import numpy as np\n" + STATE)
    sys.path.insert(0, str(tmp_path))
    module = load_module("geometry_state", tmp_path / "geometry_state.py")
    if what == "a dict":
        module.SETTINGS["factor"] = 2.0
    elif what == "an object":
        module.SCALE.factor = 2.0
    elif what == "a default":
        module.riemannian_gradient.__kwdefaults__ = {"factor": 2.0}
    assert bool(rg.check(module, **FEW).failures) == (what != "nothing")


CHANGES = {
    "all of it": lambda module: exec(WRONG, module.__dict__),
    "the function": lambda module: setattr(module, "riemannian_gradient", lambda m, *x: (2 * x[2], x[3])),
    "a constant": lambda module: setattr(module, "FACTOR", 2.0),
    "its file": lambda module: Path(module.__file__).write_text(SOURCE.replace("FACTOR = 1.0", "FACTOR = 1.0 + 0")),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_after_the_import_is_judged(what, tmp_path, clean):
    (tmp_path / "geometry_changed.py").write_text(SOURCE)
    sys.path.insert(0, str(tmp_path))
    module = load_module("geometry_changed", tmp_path / "geometry_changed.py")
    assert Backend(module).where == "this process"
    CHANGES[what](module)
    assert conclusion(module)[0].startswith(RIGHT[0] if what == "its file" else ACCUSED[0])


@pytest.mark.slow
def test_a_helper_that_was_changed_is_seen(tmp_path, clean):
    (tmp_path / "changed_helper.py").write_text("def gram(F): return F.mT @ F")
    source = SOURCE.replace("import numpy as np", "import numpy as np\nimport changed_helper")
    source = source.replace("S, T = np.swapaxes(G, -1, -2) @ G, np.swapaxes(H, -1, -2) @ H",
                            "S, T = changed_helper.gram(G), changed_helper.gram(H)")  # fmt: skip
    (tmp_path / "uses_helper.py").write_text(source)
    sys.path.insert(0, str(tmp_path))
    module = load_module("uses_helper", tmp_path / "uses_helper.py")
    assert conclusion(module) == RIGHT
    module.changed_helper.gram = lambda F: 2 * F.mT @ F
    assert conclusion(module)[0].startswith("WRONG")


@pytest.mark.slow
def test_modules_of_zip_files_and_of_memory_are_judged(tmp_path, clean):
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("geometry_zipped.py", SOURCE)
    sys.path.insert(0, str(tmp_path / "z.zip"))
    import geometry_zipped

    assert conclusion(geometry_zipped) == RIGHT
    made = types.ModuleType("in_memory")
    exec(WRONG, made.__dict__)
    sys.modules["in_memory"] = made
    assert conclusion(made) == ACCUSED


# Names and encodings --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_path_may_have_a_colon(tmp_path):
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "c.py").write_text(SOURCE)
    assert place_of(f"{folder}/c.py") == (f"{folder}/c.py", "")
    assert place_of(f"{folder}/c.py:riemannian_gradient") == (f"{folder}/c.py", "riemannian_gradient")
    assert conclusion(str(folder / "c.py")) == RIGHT


def test_names_lead_where_another_process_would_go(tmp_path, clean):
    (tmp_path / "statistics.py").write_text(SOURCE)
    sys.path.append(str(tmp_path))
    assert origin("statistics") != tmp_path / "statistics.py"
    assert origin("no_such_package.inside") is None


UNREACHED = SOURCE.replace(
    "        return FACTOR", "        if G.shape[-2] > 10**7:\n            e_G = 2 * e_G\n        return FACTOR"
)
ENCODED = {
    "plain": UNREACHED.encode(),
    "a byte-order mark": b"\xef\xbb\xbf" + UNREACHED.encode(),
    "latin-1": ("# -*- coding: latin-1 -*-\n# caf\xe9" + UNREACHED).encode("latin-1"),
    "koi8-r": ("# vim: set fileencoding=koi8-r :\n# \u0434\u0430" + UNREACHED).encode("koi8-r"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODED)
def test_lines_that_did_not_run_are_told_in_any_encoding(name, tmp_path):
    (tmp_path / "backend.py").write_bytes(ENCODED[name])
    report = rg.check(tmp_path / "backend.py", **FEW)
    assert "e_G = 2 * e_G" in " ".join(
        ENCODED[name].decode("latin-1").splitlines()[a - 1] for ranges in report.not_run.values() for a, _ in ranges
    )


# Processes ------------------------------------------------------------------------------------------------------------


def python(text, folder, **more):
    return subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=120, check=False, **more
    )


ITSELF = {
    "by its path": "import refgeo as rg\nfound = rg.check(__file__, cases=['5x4x2/k3'])\n",
    "reading it": "import refgeo as rg\nfound = rg.read(__file__)\n",
    "as a command": "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-m', 'refgeo', 'check', __file__, '--quiet', '--case', '5x4x2/k3'])\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ITSELF)
def test_a_file_that_asks_for_itself_starts_no_chain(name, tmp_path):
    (tmp_path / "itself.py").write_text(SOURCE + ITSELF[name])
    done = subprocess.run(
        [sys.executable, "-m", "refgeo", "check", "itself.py", "--quiet", "--case", "5x4x2/k3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if name == "as a command":
        assert "PASS: 2 of 2 values and 6 of 6 rules of conduct" in done.stdout.splitlines()
    else:
        assert done.returncode == 2
        assert 'put that below if __name__ == "__main__":' in done.stderr


PROCESSES = Path("/proc")


def children(of):
    result = []
    for item in PROCESSES.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = (item.parent / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            result += (
                [item]
                if parent == str(of) and "refgeo.conformance.execution.process" in item.read_text(errors="replace")
                else []
            )
    return result


@pytest.mark.slow
@pytest.mark.skipif(not PROCESSES.is_dir(), reason="no list of processes")
def test_what_was_started_ends_with_who_started_it(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\n" + SOURCE.replace("    if metric", "    time.sleep(60)\n    if metric")
    )
    first = subprocess.Popen(
        [sys.executable, "-m", "refgeo", "check", "slow.py", "--quiet"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 30
    try:
        while not (started := children(first.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        assert started
    finally:
        first.kill()
        first.wait()
    while any(item.is_file() for item in started) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(item.is_file() for item in started)


SPAWNS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import numpy as np
_pool = None
def pool():
    global _pool
    if _pool is None:
        _pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    return _pool
def gram(F): return F.mT @ F
def riemannian_gradient(metric, G, H, e_G, e_H):
    S, T = pool().map(gram, [G, H])
    if metric == "inv":
        return e_G @ S, e_H @ T
    return e_G @ np.linalg.inv(T), e_H @ np.linalg.inv(S)
"""


def test_a_backend_may_start_processes_of_its_own(tmp_path):
    (tmp_path / "spawns.py").write_text(SPAWNS)
    assert rg.check(tmp_path / "spawns.py", cases=["5x4x2/k3"], metrics=["inv"]).conclusion == RIGHT


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
@pytest.mark.parametrize("closed", sample(["<&- >&- 2>&-", "<&-", ">&-", "2>&-"]))
def test_standard_streams_may_be_closed(closed, tmp_path):
    (tmp_path / "right.py").write_text(SOURCE)
    command = f'"{sys.executable}" -m refgeo check right.py --quiet --case 5x4x2/k3 --json out.json {closed}'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=60, check=False, capture_output=True)
    assert done.returncode == 0
    assert '"fails": []' in (tmp_path / "out.json").read_text() or (tmp_path / "out.json").stat().st_size > 1000


@pytest.mark.slow
def test_the_working_directory_may_be_gone(tmp_path):
    (tmp_path / "right.py").write_text(SOURCE)
    text = f"""
import os, tempfile
import refgeo as rg
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
print(rg.check({str(tmp_path / "right.py")!r}, cases=['5x4x2/k3']).conclusion)
"""
    assert python(text, tmp_path).stdout.strip() == str(RIGHT)


@pytest.mark.slow
def test_a_backend_may_remove_its_working_directory(tmp_path):
    gone = "    import os, tempfile\n    folder = tempfile.mkdtemp()\n    os.chdir(folder)\n    os.rmdir(folder)\n"
    source = SOURCE.replace("    S, T =", gone + "    S, T =")
    (tmp_path / "removes.py").write_text(source)
    report = rg.check(tmp_path / "removes.py", **FEW)
    assert not report.failures
    assert not any("WRONG" in item for item in report.conclusion)
