"""Sentences of a diagnosis are tested where they could be false."""

import importlib

import numpy as np
import pytest
from helpers import backend

import refgeo as rg
from refgeo import paper
from refgeo.conformance.execution.coverage import Coverage, find_uncovered_lines
from refgeo.conformance.judging.verdict import Verdict


def row_of(name, function, metric="inv", **options):
    report = rg.check(backend(**{name: function}), checks=[options.pop("check", name)], metrics=[metric], **options)
    return report.rows[0], "\n".join(report.details(report.rows[0]))


def test_a_part_is_right_only_beside_its_own_size():
    """Its error is a millionth of the other part, and as large as itself."""

    def wrong(metric, G, H, e_G, e_H):
        g_G, g_H = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        return 2.0 * g_G, 2.0 * g_H

    row, text = row_of("riemannian_gradient", wrong, cases=["5x4x2/k3/size_G=1e+06/size_H=1e-06"])
    assert row.verdict is Verdict.WRONG
    assert text.count(" and not ") == 2


def test_a_term_that_is_zero_at_the_failing_points_is_not_said_to_be_missing():
    def wrong(metric, G, H, v_G, v_H, t, order):
        new_G, new_H = paper.geodesic(metric, G, H, v_G, v_H, t, order)
        return (new_G, new_H) if np.any(v_G) else (new_G, H + 0.5 * t * v_H)

    row, text = row_of("geodesic", wrong, check="geodesic_1", cases=["5x4x2/k3/part=0", "5x4x2/k3", "6x5x3/k3/part=0"])
    assert row.verdict is Verdict.WRONG
    assert "t v_G is missing" not in text


def test_wrong_in_float32_only_is_said_if_the_same_points_are_right_in_float64():
    def wrong(metric, G, H, *vectors):
        result = paper.christoffel(metric, G, H, *vectors)
        norms = np.linalg.norm(G, axis=-2)
        return tuple(1.5 * x for x in result) if np.allclose(norms, 1.0, atol=1e-5) else result

    row, text = row_of("christoffel", wrong, cases=["6x5x3/k3/normed=1/single=1", "6x5x3/k3", "7x5x3/k3/single=1"])
    assert row.verdict is Verdict.WRONG
    assert "in float32 only" not in text


def test_a_factor_that_some_blocks_alone_have_is_named():
    def wrong(metric, G, H, e_G, e_H):
        g_G, g_H = paper.riemannian_gradient(metric, G, H, e_G, e_H)
        odd = np.sum(G > 0.0, axis=(-2, -1), keepdims=True) % 2
        return g_G * (1.0 + odd), g_H * (1.0 + odd)

    row, text = row_of("riemannian_gradient", wrong)
    assert row.verdict is Verdict.WRONG
    assert "2 times the right one" in text


@pytest.mark.parametrize(("body", "missed"), [
    ("    for x in range(9):\n        if x > 2:\n            return x\n", []),
    ("    for x in range(9):\n        if x > 2:\n            return x\n        if x > 1:\n            print(x)\n", []),
    ("    for x in range(9):\n        if x > 8:\n            print(x)\n        return x\n", [(4, 4)]),
])  # fmt: skip
def test_a_loop_that_is_never_exhausted_is_no_line_that_did_not_run(body, missed, tmp_path, monkeypatch, capsys):
    file = tmp_path / "loops.py"
    file.write_text(f"def search():\n{body}", encoding="utf-8")
    coverage = Coverage(str(file))
    coverage.switch_context("decisive")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.reload(importlib.import_module("loops"))
    module.search()
    found = find_uncovered_lines([coverage.data()])
    coverage._measured.stop()
    capsys.readouterr()
    assert found.get(str(file), []) == missed
