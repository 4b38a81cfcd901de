"""What an extra installs is asked for before anything else is done, and by its name."""

import subprocess
import sys

import pytest

import refgeo as rg
from refgeo.cli import main

WITHOUT = """
import sys
sys.modules[{missing!r}] = None
import numpy as np, refgeo as rg
{use}
"""
SEARCH = "rg.worst_case_sharpness(lambda w: (float(w @ w), 2 * w), np.ones(2), rg.EuclideanMetric(), [1.0])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "extra", "use"),
    [
        ("matplotlib", "plot", f"{SEARCH}.plot()"),
        ("matplotlib", "html", "rg.check(checks=['inner_product'], cases=['10x9x4/k1']).to_html()"),
        ("pymanopt", "pymanopt", "import refgeo.bridges.pymanopt"),
        ("hypothesis", "strategies", "import refgeo.bridges.strategies"),
    ],
)  # fmt: skip
def test_a_missing_package_is_an_error_that_names_the_extra(missing, extra, use):
    program = WITHOUT.format(missing=missing, use=use)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f'expected the package {missing}, which is not installed; pip install "refgeo[{extra}]"' in last


def test_the_command_line_says_so_before_the_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file = str(tmp_path / "x")
    model = ["--checkpoint", file, "--layout", "bert"]
    for command in (["inspect", *model, "--plot", file + ".png"], ["check", "--html", file]):
        assert main(command) == 2
        assert 'pip install "refgeo[' in capsys.readouterr().err
    assert rg.__version__
