"""What the experiments share: results that survive an interruption, and the statistics of Figure 3."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from refgeo import diagonal
from validation import experiment
from validation.findings.study import diagonal_sets, statistics
from validation.paper import figure3


def square_or_raise(number):
    if number == 3:
        raise ArithmeticError("three")
    return number * number


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_continued_where_they_were_interrupted(tmp_path, workers):
    path = tmp_path / "results.json"
    tasks = {str(i): (i,) for i in (1, 2, 3)}
    results = experiment.Results(path, {"a": 1})
    with pytest.raises(ArithmeticError, match="three"):
        results.measure_all(square_or_raise, tasks, workers, "squares")
    saved = json.loads(path.read_text(encoding="utf-8"))["values"]
    assert set(saved) <= {"1", "2"}
    assert workers == 2 or saved == {"1": 1, "2": 4}
    again = experiment.Results(path, {"a": 1})
    assert again.values == saved
    assert again.measure_all(square_or_raise, {"1": (1,), "2": (2,), "5": (5,)}, workers, "squares") == [1, 4, 25]


def test_half_written_and_foreign_files_are_not_taken_for_results(tmp_path):
    path = tmp_path / "results.json"
    whole = experiment.Results(path, {"a": 1})
    whole.measure("x", lambda: 2.0)
    path.with_name("results.json.part").write_text('{"settings": {"a": 1}, "values": {"x": 3', encoding="utf-8")
    assert experiment.Results(path, {"a": 1}).values == {"x": 2.0}
    second = experiment.Results(path, {"a": 2})
    assert second.values == {}
    second.measure("x", lambda: 4.0)
    aside = path.with_name("results.1.json")  # nothing is lost
    assert json.loads(aside.read_text(encoding="utf-8"))["values"] == {"x": 2.0}
    for damaged in (path.read_text(encoding="utf-8")[:-10], "[]", "{}"):
        path.write_text(damaged, encoding="utf-8")
        assert experiment.Results(path, {"a": 2}).values == {}


def test_an_order_is_proved_where_intervals_do_not_meet():
    lower = np.array([[1.0, 2.0, 4.0]])
    upper = np.array([[1.5, 3.0, 4.5]])
    nothing = np.zeros_like(lower)
    certified = diagonal.Certified(lower, upper, (nothing, nothing), nothing, nothing.astype(bool))
    assert figure3.share_decided(certified) == [1.0]
    wider = diagonal.Certified(lower, upper + 1.0, (nothing, nothing), nothing, nothing.astype(bool))
    assert figure3.share_decided(wider) == pytest.approx([1 / 3])


def test_medians_have_intervals_and_nothing_has_none():
    low, high = statistics.median(list(np.random.default_rng(0).standard_normal(400)))[1:]
    assert -0.25 < low < 0.0 < high < 0.25
    assert statistics.median([0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert np.isnan(statistics.median([])).all()
    assert statistics.median([0.1, np.nan, 0.3]).value == pytest.approx(0.2, rel=1e-15)


def test_a_set_that_does_not_train_is_counted_and_has_no_tau(monkeypatch):
    monkeypatch.setattr(diagonal_sets, "MAX_STEPS", 3)
    result = figure3.cell(asdict(figure3.REFERENCE), 0, [0.1])
    assert result == {"trained": 0.0}
    table = figure3.summarise([figure3.REFERENCE], [result, result], [0.1])
    assert table[figure3.name_of(figure3.REFERENCE)] == {"sets": 0, "trained": 0.0, "tau": {}, "decided": {}}
    assert figure3.find_reached(table, "inv", -0.83, [0.1]) == []


def test_the_set_that_is_shown_is_the_median_one():
    taus = [0.3, -0.9, None, 0.1, -0.2]
    cells = [{} if tau is None else {"tau": {"adaptive": [0.0, tau]}} for tau in taus]
    assert figure3.median_set(cells, 1) == 4  # of −0.9, −0.2, 0.1, 0.3 the lower of the two in the middle
    assert figure3.median_set(cells[:4], 1) == 3


def test_places_where_the_papers_number_is_reached():
    row = {"tau": {"inv": [(-0.5, -0.6, -0.4), (-0.82, -0.825, -0.815)]}}
    near = {"sets": 1, "tau": {name: [(value + 0.01,) * 3] for name, value in figure3.PAPER.items()}}
    far = {"sets": 1, "tau": {name: [(value + 0.5,) * 3] for name, value in figure3.PAPER.items()}}
    result = figure3.closest({"far": far, "near": near}, list(figure3.PAPER), [0.1])
    assert result == "-0.67, -0.82, -0.85 (near, ρ 0.1)"
    assert figure3.find_reached({"here": row}, "inv", -0.83, [0.1, 0.2]) == ["here, ρ 0.2"]
