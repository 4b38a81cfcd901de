"""Backends that misbehave: each gets a row of the report that is true, and no other function is blamed."""

import numpy as np
import pytest

import refgeo as rg
from refgeo.conformance.judging.verdict import Verdict

RIGHT = """
import os, threading, time
import numpy as np

COUNT = [0]

def riemannian_gradient(metric, G, H, e_G, e_H):
    if metric != "inv":
        raise NotImplementedError
    return e_G @ (G.mT @ G), e_H @ (H.mT @ H)

def part(F, a, b):
    W = np.linalg.inv(F.mT @ F)
    return 0.5 * (F @ W @ (a.mT @ b + b.mT @ a) - a @ W @ (b.mT @ F + F.mT @ b) - b @ W @ (a.mT @ F + F.mT @ a))

def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
    misbehave(G)
    return part(G, a_G, b_G), part(H, a_H, b_H)

def misbehave(G):
    COUNT[0] += 1
"""

KINDS = {
    "forks": ("    if COUNT[0] == 7:\n        os.fork()\n", "forks, and both processes return"),
    "ends from a thread": (
        "    if COUNT[0] == 3:\n"
        "        threading.Thread(target=lambda: (time.sleep(0.03), os._exit(0)), daemon=True).start()\n",
        "after it has returned, its process ended with status 0",
    ),
    "writes to every descriptor": (
        "    for descriptor in range(64):\n"
        "        try:\n            os.write(descriptor, b'junk')\n        except OSError:\n            pass\n",
        "wrote to a file descriptor that is not its own",
    ),
    "a few bytes": (
        "    for descriptor in range(3, 64):\n"
        "        try:\n            os.write(descriptor, b'x')\n        except OSError:\n            pass\n",
        "wrote to a file descriptor that is not its own",
    ),
}


def check(path, code, **options):
    path.write_text(RIGHT + code, encoding="utf-8")
    report = rg.check(str(path), checks=["riemannian_gradient", "christoffel"], metrics=["inv"], **options)
    return {row.check: row for row in report.rows}


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_misbehaves_has_a_row_and_no_other_one_is_blamed(kind, tmp_path):
    code, words = KINDS[kind]
    cases = ["5x4x2/k3", "3-6x5x3/k3"] if kind != "ends from a thread" else None
    rows = check(tmp_path / "rude.py", code, cases=cases)
    assert rows["christoffel"].verdict is Verdict.WRONG
    assert words in rows["christoffel"].message
    assert rows["riemannian_gradient"].verdict is Verdict.PASS


def test_a_timeout_at_one_large_point_does_not_end_the_checks_of_small_ones(tmp_path):
    code = "    if G.shape[-2] > 40:\n        time.sleep(60)\n"
    row = check(tmp_path / "slow.py", code, timeout=0.5, cases=["50x4x2/k3", "5x4x2/k3", "4x5x3/k3"])["christoffel"]
    judged = {e.case for e in row.measurements if e.decisive and np.isfinite(e.relative_error)}
    assert {"5x4x2/k3", "4x5x3/k3"} <= judged
    assert "50x4x2/k3" not in judged
