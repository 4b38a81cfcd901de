"""What the README shows is what happens: its example, its output, its tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def block(start, language):
    """The first block of code after these words."""
    return re.search(rf"```{language}\n(.*?)```", README[README.index(start) :], re.S).group(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    (path / "my_backend.py").write_text(block("Save this as `my_backend.py`", "python"), encoding="utf-8")
    return path


def run(folder, *command):
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=300)


def squeezed(line):
    return " ".join(line.split())


def test_the_example_is_judged_as_shown(folder):
    done = run(folder, "refgeo", "check", "my_backend.py")
    assert done.returncode == 1
    printed = {squeezed(line) for line in done.stdout.splitlines()}
    shown = block("Save this as `my_backend.py`", "console").splitlines()[1:]
    for line in map(squeezed, shown):
        cells = line.split()
        if line.endswith("...") or not line.strip("─"):  # shortened, or a rule of the table
            continue
        if line.startswith("riemannian_gradient"):  # ratios are rounding, which is another machine's affair
            first = next(k for k, cell in enumerate(cells) if cell in ("inv", "mix")) + 2
            assert any(one.split()[:first] == cells[:first] for one in printed), line
        else:
            assert line in printed, line
    assert any("S and T are exchanged" in line for line in shown)


def test_the_tests_are_green_when_copied(folder):
    (folder / "test_mine.py").write_text(block("**3. Keep it checked.**", "python"), encoding="utf-8")
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout
