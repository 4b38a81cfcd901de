"""What the page of findings says, from the published rows: a concluding sentence is tested like a formula."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from validation.findings import publish
from validation.findings.study import runner, statistics
from validation.paper import protocol
from validation.paper.table1 import PAPER

VALIDATION = Path(__file__).parents[2] / "validation"
PAGE = " ".join((VALIDATION / "findings" / "README.md").read_text(encoding="utf-8").split())


def rows_of(population):
    return runner.load_table(VALIDATION / "results" / f"table1-{population}.csv")


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def tau(rows, name, outcome="gap", given=None):
    rows = [row for row in rows if np.isfinite(row[name])]
    x, y = column(rows, name), column(rows, outcome)
    return statistics.tau_a(x, y) if given is None else statistics.partial_tau(x, y, column(rows, given))


def numbers_in(pattern):
    """The numbers of a sentence of the page."""
    result = re.search(pattern, PAGE)
    assert result, pattern
    return [float(text.replace("−", "-")) for text in result.groups()]


NUMBER = "([+−]?[0-9]\\.[0-9]+)"


def read_results(name):
    return json.loads((VALIDATION / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_has_the_papers_table_1_beside_ours():
    assert " ".join(publish.page_table(read_results("table1"), "images").split()) in PAGE
    message = read_results("table1")["populations"]["diagonal"]["gap"]
    cells = [str(statistics.Estimate(*message[name]["0.1"]["tau_a"])) for name in protocol.NAMES]
    said_there = f"is {cells[0]} for adaptive sharpness .*?, {cells[1]} for inv .*? and {cells[2]} for mix"
    assert re.search(said_there.replace("[", "\\[").replace("+", "\\+"), PAGE)
    assert [PAPER["images"]["inv"], PAPER["images"]["adaptive"]] == pytest.approx(
        numbers_in(f"the gap is between .*? \\(the paper: {NUMBER} to {NUMBER}\\)")
    )
    language = PAPER["definitions"]
    pattern = f"the seed alone, τ is between .*? \\(the paper: {NUMBER} to {NUMBER}\\)"
    assert [language["adaptive"], language["mix"]] == pytest.approx(numbers_in(pattern))


def draws_of(kind):
    return f"{kind}-0", f"{kind}-1"


def names_of_kind(kind):
    return [f"{name} @ {rho:g}" for name in protocol.NAMES for rho in protocol.read_radii(kind)[name]]


DRAWS, NAMED = draws_of("images"), names_of_kind("images")


def by_the_plan(populations, outcome="gap", key="tau_a", part=0, kind="images"):
    """Of every draw the τ of the six tests, or an end of its interval."""
    tests = [name.split(" @ ") for name in names_of_kind(kind)]
    return np.array(
        [[populations[draw][outcome][name][rho][key][part] for name, rho in tests] for draw in draws_of(kind)]
    )


def test_the_page_says_what_table_1_is_here():
    document = read_results("table1")
    populations, verdicts = document["populations"], document["predicts"]["images"].values()
    assert [item["verdict"] for item in verdicts] == ["does not predict"] * 6
    assert not any(item.get("better than adaptive") for item in verdicts)
    taus = by_the_plan(populations)
    assert [taus.min(), taus.max()] == pytest.approx(
        numbers_in(f"sharpness and the gap is between {NUMBER} and {NUMBER} \\(the paper"), abs=0.006
    )
    assert np.all(taus < 0.0)
    lower = by_the_plan(populations, part=1)
    assert np.all(lower > PAPER["images"]["adaptive"]), "no interval reaches the paper's"
    means = taus.mean(axis=0)
    assert [means.min(), means.max()] == pytest.approx(
        numbers_in(f"their means over both draws are {NUMBER} to {NUMBER} \\("), abs=0.006
    )
    upper = by_the_plan(populations, part=2)
    wide = np.hypot(*(upper - lower)) / 2.0
    assert np.all(np.abs(taus[1] - taus[0]) < wide), "the draws do not clearly differ"
    corrected = np.array([item["p, Holm"] for item in verdicts])
    pattern = f"the smallest p is {NUMBER} for the first models, and {NUMBER} for the others"
    assert list(corrected.min(axis=0)) == pytest.approx(numbers_in(pattern), abs=0.006)
    significant = [name for name, item in document["predicts"]["images"].items() if item["p, Holm"][1] < 0.05]
    smaller = protocol.read_radii("images")["inv"][0]
    assert [name for name in significant if "adaptive" not in name] == [f"inv @ {smaller:g}"]
    assert len(significant) == 3
    assert "three tests are significant: both of adaptive sharpness, and that of inv at its smaller radius" in PAGE
    beside = {
        (draw, increase, name): of for draw in DRAWS for increase, by in populations[draw]["minus adaptive"].items()
        for name, of in by.items() if name in protocol.NAMES
    }  # fmt: skip
    values = [value for value, _, _ in beside.values()]
    pattern = f"minus that of adaptive sharpness is between {NUMBER} and {NUMBER}, and no interval goes below −0.07"
    assert [min(values), max(values)] == pytest.approx(numbers_in(pattern), abs=0.006)
    assert all(low > -0.07 and high > 0.0 for _, low, high in beside.values())
    message = [PAPER["images"][name] - PAPER["images"]["adaptive"] for name in ("inv", "mix")]
    assert message == pytest.approx(numbers_in(f"the paper has {NUMBER} and {NUMBER}\\. One interval"), abs=0.006)
    assert [place for place, (_, low, _) in beside.items() if low > 0.0] == [("images-1", "0.5", "mix")]
    assert np.all(by_the_plan(populations, "test error", part=1) > 0.0), "and so are their intervals"
    for draw in DRAWS:
        rows = rows_of(draw)
        of = {name: statistics.rest(column(rows, name), column(rows, "train error")) for name in ("gap", *NAMED)}
        assert all(statistics.estimate_tau(of[name], of["gap"]).high > 0.0 for name in NAMED), (
            "given the training error"
        )
    errors, given = (by_the_plan(populations, "test error", key) for key in ("tau_a", "given"))
    numbers = [errors.min(), errors.max(), given.min(), given.max()]
    pattern = f"all τ are positive\\*\\* \\({NUMBER} to {NUMBER}\\).*? size, τ is between {NUMBER} and {NUMBER}"
    assert numbers == pytest.approx(numbers_in(pattern), abs=0.006)


def test_the_page_says_what_leaving_out_the_curvature_changes():
    changes = []
    for draw in DRAWS:
        rows = rows_of(draw)
        for rho in protocol.read_radii("images")["mix"]:
            changes.append(tau(rows, f"mix, no Γ @ {rho:g}") - tau(rows, f"mix @ {rho:g}"))
            ratio = column(rows, f"mix, no Γ @ {rho:g}") / column(rows, f"mix @ {rho:g}")
            assert np.median(np.abs(ratio - 1.0)) < 0.005, "a median of at most 0.5%"
    largest = float(np.abs(changes).max())
    pattern = "\\*\\*Without Γ\\*\\*, the τ of mix changes by at most ([0-9.]+)\\. This"
    assert [largest] == pytest.approx(numbers_in(pattern), abs=0.006)
    paper = (VALIDATION / "docs" / "paper.md").read_text(encoding="utf-8")
    assert paper.count(f"without Γ, the τ of mix changes by at most {largest:.2f} |") == 1


def test_the_page_says_what_orders_the_models():
    populations = read_results("table1")["populations"]
    steps, between = [], []
    for draw in DRAWS:
        rows = rows_of(draw)
        steps += [tau(rows, name, "step_size") for name in NAMED]
        between += [tau(rows, a, b) for a, b in itertools.combinations(NAMED, 2) if a.split()[0] != b.split()[0]]
    pattern = f"orders the models by sharpness \\(τ between {NUMBER} and {NUMBER}\\), and the augmentation by the gap"
    assert sorted([min(steps), max(steps)]) == pytest.approx(sorted(numbers_in(pattern)), abs=0.006)
    pattern = f"between two of them, τ is {NUMBER} to {NUMBER}\\."
    assert [min(between), max(between)] == pytest.approx(numbers_in(pattern), abs=0.006)
    others = [populations[draw]["others"]["augmentation"][0] for draw in DRAWS]
    assert others == pytest.approx(numbers_in(f"augmentation by the gap \\({NUMBER} and {NUMBER}\\)"), abs=0.006)
    others = [populations[draw]["others"]["train error"][0] for draw in DRAWS]
    assert others == pytest.approx(
        numbers_in(f"The training error.*? orders it best \\({NUMBER} and {NUMBER}\\)"), abs=0.006
    )
    for draw in DRAWS:
        result = populations[draw]["others"]
        assert max(result, key=lambda name: abs(result[name][0])) == "train error"


def share_found(truth, models):
    """How often a test of the six, at least, passes in both draws: by drawing normal columns with this τ."""
    rng, r = np.random.default_rng(0), np.sin(np.pi / 2 * truth)
    passed = []
    for _ in range(300):
        x, noise = rng.standard_normal((2, models))
        passed.append(kendalltau(x, r * x + np.sqrt(1 - r**2) * noise).pvalue < 0.05 / 6)
    return np.mean(passed) ** 2


def test_the_page_says_what_the_text_encoders_say():
    document, kind = read_results("table1"), "definitions"
    populations, verdicts = document["populations"], document["predicts"][kind].values()
    assert " ".join(publish.page_table(document, kind).split()) in PAGE
    assert [item["verdict"] for item in verdicts] == ["does not predict"] * 6
    assert not any(item.get("better than adaptive") for item in verdicts)
    taus = by_the_plan(populations, kind=kind)
    pattern = f"in the seed alone, τ is between {NUMBER} and {NUMBER} \\(the paper"
    assert [taus.min(), taus.max()] == pytest.approx(numbers_in(pattern), abs=0.006)
    assert [item["p, Holm"] for item in verdicts] == [[1.0, 1.0]] * 6
    assert "With Holm's correction, every p is 1.0. Every interval holds zero, and so do those of τ with the" in PAGE
    for outcome in ("gap", "test error", "challenge error"):
        low, high = (by_the_plan(populations, outcome, part=part, kind=kind) for part in (1, 2))
        assert np.all((low < 0.0) & (high > 0.0)), outcome
    value, low, high = (by_the_plan(populations, "test loss", part=part, kind=kind) for part in range(3))
    clear = (low > 0.0) | (high < 0.0)
    assert np.array_equal(np.argwhere(clear), [[1, 2], [1, 4]]), "inv and mix at the smaller radius for the others"
    assert list(value[clear]) == pytest.approx(
        numbers_in(f"for the others, {NUMBER} and {NUMBER}\\. With 35"), abs=0.006
    )
    assert by_the_plan(populations, part=2, kind=kind)[:, 4:].max() < PAPER[kind]["mix"], "no interval of mix"
    medians = np.array(
        [[np.median(column(rows_of(draw), name)) for name in names_of_kind(kind)] for draw in draws_of(kind)]
    )
    numbers = [f(medians[:, k::2]) for k in (0, 1) for f in (np.min, np.max)]
    pattern = f"medians of sharpness are {NUMBER} to {NUMBER} and {NUMBER} to {NUMBER} for these"
    assert numbers == pytest.approx(numbers_in(pattern), abs=0.006)
    halves = np.array(
        [[populations[draw]["between halves"][name] for name in names_of_kind(kind)] for draw in draws_of(kind)]
    )
    smaller, larger = halves[:, ::2], halves[:, 1::2]
    numbers = [smaller.min(), smaller.max(), larger.min(), larger.max()]
    pattern = f"is {NUMBER} to {NUMBER} at the smaller radii, and {NUMBER} to {NUMBER} at the larger"
    assert numbers == pytest.approx(numbers_in(pattern), abs=0.006)
    halves = [populations[draw]["between halves"][name] for draw in DRAWS for name in NAMED]
    assert [min(halves), max(halves)] == pytest.approx(numbers_in(f"The images have {NUMBER} to {NUMBER}"), abs=0.006)
    rows = [row for draw in draws_of(kind) for row in rows_of(draw)]
    for name, noun in (("gap", "The gaps"), ("challenge error", "errors on the challenge")):
        column_ = column(rows, name)
        assert [column_.min(), column_.max()] == pytest.approx(
            numbers_in(f"{noun} lie between {NUMBER} and {NUMBER}"), abs=6e-4
        )
    assert {(row["step_size"], row["steps"]) for row in rows} == {(1e-4, 384.0)}, "one recipe"
    others = [populations[draw]["others"]["train error"][0] for draw in draws_of(kind)]
    assert others == pytest.approx(numbers_in(f"part of the gap, has τ = {NUMBER} and {NUMBER} with"), abs=0.006)


def test_the_page_says_what_72_and_35_models_can_show():
    assert share_found(0.41, 72) > 0.95
    assert 0.12 < share_found(0.2, 72) < 0.28
    assert 0.4 < share_found(0.38, 35) < 0.6
    assert 0.09 < share_found(0.28, 35) < 0.17
    said_there = "a test finds a τ of 0.28 in both draws in an eighth of all cases, and one of 0.38 in about half"
    assert said_there in PAGE
    assert "a test finds a τ of −0.41 almost always, but one of 0.2 in both draws only in a fifth of all cases" in PAGE


def test_the_page_says_what_figure_3_is_here():
    settings = read_results("diagonal")["summary"].values()
    assert len(settings) == 16
    paper = np.array([-0.68, -0.83, -0.86])
    apart = [
        np.abs(np.array([setting["tau"][name][k][0] for name in ("adaptive", "inv", "mix")]) - paper).max()
        for setting in settings
        for k in range(5)
    ]
    (least,) = numbers_in("none gives all three: at least one differs by ([0-9.]+) or more")
    assert least <= min(apart) < least + 0.01
    reference = next(iter(settings))
    assert [reference["tau"]["mix"][0][0]] == pytest.approx(numbers_in(f"for most pairs, τ is {NUMBER}"), abs=0.006)
    assert reference["decided"]["mix"][0] > 0.5 > reference["decided"]["mix"][2] == 0.0
    printed = [reference["tau"][f"printed ({k})"][2][0] for k in (26, 35)]
    pattern = rf"its adaptive τ is {NUMBER}, the printed formulas \(26\) and \(35\) give {NUMBER} and {NUMBER} at ρ"
    assert [reference["tau"]["adaptive"][2][0], *printed] == pytest.approx(numbers_in(pattern), abs=0.006)


def test_the_page_says_what_happens_along_the_paths():
    summary = read_results("phase")["summary"]
    rows = [row for grid in ("n/d", "noise") for row in summary[grid].values()]
    assert summary["all sets"]["the norm always falls"] == 1.0
    wrong = [row for row in rows if row["tau"][0] * row["difference of the ends"] < 0.0]
    assert [len(wrong), len(rows)] == numbers_in("In ([0-9]+) of the ([0-9]+) cells the median τ has the wrong sign")
    assert max(abs(row["tau"][0]) for row in wrong) == pytest.approx(0.17, abs=0.006)
    assert {row["tau"][0] > 0.0 for row in rows if row["tau"][1] * row["tau"][2] > 0.0} == {True, False}
    sets = summary["all sets"]["sets"]
    shares = [100 * sets[name][1] / sets[name][0] for name in ("ends differ by less", "ends differ by more than 0.1")]
    assert list(map(round, shares)) == numbers_in("right in ([0-9]+)% of the sets, else in ([0-9]+)%")
    for grid, shares in zip(("n/d", "noise"), numbers_in("seen afterwards \\| ([0-9]+)% \\| ([0-9]+)%"), strict=True):
        cells = summary[grid].values()
        most = sum(max(row["sets negative"], row["sets"] - row["sets negative"]) for row in cells)
        assert round(100 * most / sum(row["sets"] for row in cells)) == shares
    of_ends = [
        f"{100 * sum(r['sets as predicted'] for r in summary[g].values()) / n:.0f}%"
        for g, n in (("n/d", 1800), ("noise", 1400))
    ]
    assert f"| from the ends of each set | {' | '.join(of_ends)} |" in PAGE
    proved = 100 * summary["all sets"]["pairs proved"]
    assert [round(proved)] == numbers_in("the bounds prove the order of ([0-9]+)% of the pairs")
    signs = [(row["tau, former starts"], row["difference of the ends"]) for row in rows]
    wrong = [tau for tau, ends in signs if tau[0] * ends < 0.0]
    clearly = [tau for tau in wrong if tau[1] * tau[2] > 0.0]
    assert [len(wrong), len(clearly)] == numbers_in("([0-9]+) cells have the wrong sign, ([0-9]+) of them clearly")
    former = 100 * summary["all sets"]["tau of the former starts as predicted"]
    assert [round(former)] == numbers_in("For α from 0.01 to 0.3, it is right in ([0-9]+)% of the sets")
    norm = 100 * summary["all sets"]["tau of the norm as predicted"]
    assert [round(norm)] == numbers_in("and its τ has the predicted sign in ([0-9]+)% of them")
