"""Paths are short: how many functions of the package stand between a call and its formula, or a search and the loss."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import refgeo as rg
from refgeo.conformance.execution.process import Process

PACKAGE = str(Path(rg.__file__).parent)
PAIR, VECTOR = (rg.Pair(*np.random.default_rng(seed).standard_normal((2, 5, 3))) for seed in (0, 1))


def walk(run, seen=lambda depth: None):
    """Calls of functions of the package, and how deep they go, once everything is loaded; `seen` is told of others."""
    run()
    calls = depth = deepest = 0

    def profile(frame, event, _):
        nonlocal calls, depth, deepest
        if not frame.f_code.co_filename.startswith(PACKAGE):
            if event == "call" and frame.f_code.co_name == "loss":
                seen(depth)
        elif event == "call":
            calls, depth = calls + 1, depth + 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls, deepest


def loss(pair):
    residual = pair.G @ pair.H.T - 1.0
    return 0.5 * float(np.sum(residual**2)), rg.Pair(residual @ pair.H, residual.T @ pair.G)


def test_between_christoffel_and_its_formula_lie_few_functions():
    calls, deepest = walk(lambda: rg.InvariantMetric().at(PAIR).christoffel(VECTOR))
    assert calls <= 45
    assert deepest <= 5


def test_between_a_search_and_the_loss_lie_few_functions():
    depths = []
    calls, _ = walk(lambda: rg.worst_case_sharpness(loss, PAIR, rg.InvariantMetric(), 0.1), depths.append)
    assert max(depths) <= 8
    assert calls <= 100 * len(depths)


BACKEND = """
import inspect
from refgeo import paper


def christoffel(*arguments):
    with open({file!r}, "a") as file:
        print(len([frame for frame in inspect.stack() if frame.function != "<module>"]), file=file)
    return paper.christoffel(*arguments)
"""


@pytest.mark.slow
def test_between_check_and_a_backends_function_lie_few_functions(tmp_path, monkeypatch):
    file, ask, own = tmp_path / "mine.py", Process.request, len(inspect.stack())
    file.write_text(BACKEND.format(file=str(tmp_path / "depths")))
    depths = []

    def seen(self, call, timeout):
        if call.action == "call":
            depths.append(len(inspect.stack()) - 1 - own)  # but for this function
        return ask(self, call, timeout)

    monkeypatch.setattr(Process, "request", seen)
    rg.check(str(file), checks=["christoffel"], metrics=["inv"], cases=["5x4x2/k3"])
    theirs = [int(line) for line in (tmp_path / "depths").read_text().split()]
    assert depths[0] + 1 + theirs[0] <= 12  # with Process.request itself, and from the start of the backend's process


@pytest.mark.slow
def test_a_named_case_builds_no_other():
    calls, _ = walk(lambda: rg.check("refgeo.paper", checks=["christoffel"], metrics=["inv"], cases=["5x4x2/k3"]))
    assert calls < 12_000
