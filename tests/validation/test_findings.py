"""What the page of findings says, from the published rows: a concluding sentence is tested like a formula."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from validation.findings import matched
from validation.findings.study import runner, statistics
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


def within(rows, name, group):
    """τ over the pairs of models that have the same value of `group`."""
    x, y, z = column(rows, name), column(rows, "gap"), column(rows, group)
    i, j = np.triu_indices(len(x), 1)
    same = z[i] == z[j]
    return float(np.mean((np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]))[same]))


def said(pattern):
    """The numbers of a sentence of the page."""
    found = re.search(pattern, PAGE)
    assert found, pattern
    return [float(text.replace("−", "-")) for text in found.groups()]


NUMBER = "([+−]?[0-9]\\.[0-9]+)"


def published(name):
    return json.loads((VALIDATION / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_has_the_papers_table_1_beside_ours():
    told = published("table1")["populations"]
    for name in ("adaptive", "inv", "mix", "mix, no Γ", "mix, ε=0.01"):
        cells = []
        for population in ("diagonal", "digits", "sentences"):
            row = told[population]["gap"].get(name, {}).get("0.1")
            cell = str(statistics.Estimate(*row["tau_a"])) if row else ""
            paper = PAPER.get(population, {}).get(name)
            cells.append(f"{cell} ({paper:+.2f})".replace("-", "−") if row and paper is not None else cell)
        assert f"| {name.replace('=', ' = ')} | {' | '.join(cells)} |".replace("|  |", "| |") in PAGE
    for population, count in (("digits", "58 of the 72"), ("sentences", "22 of the 36")):
        rows = rows_of(population)
        assert f"{sum(bool(row['trained']) for row in rows)} of the {len(rows)}" == count
        assert count in PAGE


def test_the_page_says_what_is_beside_table_1():
    digits, sentences = rows_of("digits"), rows_of("sentences")
    low = "adaptive @ 0.03"
    numbers = [tau(digits, low), tau(digits, low, "train loss"), tau(digits, low, "gap", "train loss")]
    pattern = f"adaptive sharpness has τ = {NUMBER} \\[.*?\\]; but its τ with the training loss is {NUMBER}, "
    pattern += f"and the partial τ given the training loss is {NUMBER}\\."
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    assert [tau(digits, f"adaptive @ {rho}") for rho in (0.03, 0.1, 0.3)] == sorted(
        tau(digits, f"adaptive @ {rho}") for rho in (0.03, 0.1, 0.3)
    )
    similar = [tau(digits, f"inv @ {a}") - tau(digits, f"adaptive @ {b}") for a, b in ((0.03, 0.1), (0.1, 0.3))]
    pattern = f"between inv and adaptive \\({NUMBER} \\[.*?\\] and {NUMBER} \\["
    assert similar == pytest.approx(said(pattern), abs=0.006)
    error = kendalltau(column(sentences, "train error"), column(sentences, "gap")).statistic
    assert [error] == pytest.approx(said(f"the training error has τ = {NUMBER} with the gap"), abs=0.006)
    numbers = [tau(sentences, f"{name} @ 0.1", "test error") for name in ("adaptive", "inv")]
    pattern = f"With the test error, adaptive has {NUMBER} \\[.*?\\], and inv {NUMBER} \\["
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    trained = [row for row in digits if row["trained"]]
    published_interval = published("table1")["populations"]["digits"]["gap, trained"]["inv"]["0.1"]["tau_a"]
    numbers = [tau(trained, "inv @ 0.1"), *published_interval[1:], within(trained, "inv @ 0.1", "train_size")]
    pattern = f"inv has τ = {NUMBER} \\[{NUMBER}, {NUMBER}\\] at ρ = 0.1, and {NUMBER} among pairs with equally"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    assert [tau(digits, "inv @ 0.1", "test error")] == pytest.approx(
        said(f"For the \\*digits\\*, inv has {NUMBER} with the test error"), abs=0.006
    )


def test_the_page_says_what_leaving_out_the_curvature_changes():
    changes = {}
    for population, rho in (("sentences", 0.1), ("digits", 0.3)):
        rows = rows_of(population)
        without, with_it = (column(rows, f"{name} @ {rho}") for name in ("mix, no Γ", "mix"))
        changes[population] = tau(rows, f"mix, no Γ @ {rho}") - tau(rows, f"mix @ {rho}")
        assert population == "digits" or np.abs(without / with_it - 1.0).max() < 1e-3
    pattern = f"changes by {NUMBER} for the \\*sentences\\*.*? at ρ = 0.3 by {NUMBER}"
    assert [changes["sentences"], changes["digits"]] == pytest.approx(said(pattern), abs=0.006)


def test_the_page_says_what_figure_3_is_here():
    settings = published("diagonal")["summary"].values()
    assert len(settings) == 16
    paper = np.array([-0.68, -0.83, -0.86])
    apart = [
        np.abs(np.array([one["tau"][name][k][0] for name in ("adaptive", "inv", "mix")]) - paper).max()
        for one in settings
        for k in range(5)
    ]
    (least,) = said("none gives all three: at least one differs by ([0-9.]+) or more")
    assert least <= min(apart) < least + 0.01
    reference = next(iter(settings))
    assert [reference["tau"]["mix"][0][0]] == pytest.approx(said(f"for most pairs, τ is {NUMBER}"), abs=0.006)
    assert reference["decided"]["mix"][0] > 0.5 > reference["decided"]["mix"][2] == 0.0
    printed = [reference["tau"][f"printed ({k})"][2][0] for k in (26, 35)]
    pattern = f"at ρ = 0.1 give {NUMBER} and {NUMBER} in the setting that we chose by its adaptive τ, {NUMBER};"
    assert [*printed, reference["tau"]["adaptive"][2][0]] == pytest.approx(said(pattern), abs=0.006)


def pairs_that_agree_in(models, names):
    """Indices of the pairs of models that agree in these numbers and differ elsewhere in their recipe."""
    i, j = np.triu_indices(len(models), 1)
    same = [all(models[a][name] == models[b][name] for name in names) for a, b in zip(i, j, strict=True)]
    return i[same], j[same]


def matched_measure(models, name):
    """Of each model, the mean over both batches."""
    return np.mean([column(models, f"{name}, matched, batch {k}") for k in (0, 1)], axis=0)


def tau_over(pairs, x, y):
    """τ over these pairs, without those that lack a number."""
    i, j = pairs
    return float(np.nanmean(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])))


@pytest.mark.parametrize("population", ["digits", "sentences"])
def test_the_tables_of_models_that_fit_equally_well_are_those_of_the_models(population):
    """τ again, pair by pair, and p again by other random orders."""
    models = runner.load_table(VALIDATION / "results" / f"matched-{population}.csv")
    told = json.loads((VALIDATION / "results" / "matched.json").read_text(encoding="utf-8"))["populations"][population]
    assert " ".join(matched.page_table(told).split()) in PAGE
    assert all(row["train loss"] <= 0.01 for row in models)
    assert told["models"] == len(models)
    error, rng = column(models, "test error"), np.random.default_rng(1)
    for name in matched.NAMES:
        measure = matched_measure(models, name)
        there = np.isfinite(measure)
        row = told["measures"][f"{name}, matched"]
        assert row["models"] == there.sum()
        signs = np.sign(measure[:, None] - measure) * np.sign(error[:, None] - error)
        assert row["tau"][0] == pytest.approx(
            np.mean(signs[there][:, there][np.triu_indices(there.sum(), 1)]), abs=1e-3
        )
        for number in matched.RECIPE:
            i, j = pairs_that_agree_in(models, set(matched.RECIPE) - {number})
            if len(i):
                assert row[f"{number} alone"][0] == pytest.approx(np.nanmean(signs[i, j]), abs=1e-3)
        shuffled = [kendalltau(measure[there], rng.permutation(error[there])).statistic for _ in range(1000)]
        p = np.mean(np.abs(shuffled) >= abs(kendalltau(measure[there], error[there]).statistic))
        assert row["p"] == pytest.approx(p, abs=4.0 * np.sqrt(row["p"] / 1000) + 5e-3)
        assert_sets_are_exchanged(models, measure, error, row, rng)


def assert_sets_are_exchanged(models, measure, error, row, rng):
    """p again from random orders of the nine sets, by moving the measures; and τ with the same examples, set by set."""
    sets = sorted({(one["train_size"], one["seed"]) for one in models})
    recipes = [name for name in matched.RECIPE if name not in ("train_size", "seed")]
    place = {(one["train_size"], one["seed"], *(one[name] for name in recipes)): k for k, one in enumerate(models)}

    def statistic(order):
        moved = np.empty(len(models))
        for here, there in zip(sets, order, strict=True):
            for key in [key for key in place if key[:2] == here]:
                moved[place[key]] = measure[place[there + key[2:]]]
        signs = np.sign(moved[:, None] - moved) * np.sign(error[:, None] - error)
        return abs(np.nansum(signs))

    orders = [[sets[k] for k in rng.permutation(9)] for _ in range(400)]
    p = np.mean([statistic(order) >= statistic(sets) - 0.5 for order in orders])
    assert row["p, sets"] == pytest.approx(p, abs=4.0 * np.sqrt(max(row["p, sets"], 1e-3) / 400) + 5e-3)
    pairs = [
        kendall_sum(measure[rows], error[rows])
        for one in sets
        if len(rows := [k for k, m in enumerate(models) if (m["train_size"], m["seed"]) == one])
    ]
    assert row["same examples"][0] == pytest.approx(sum(s for s, _ in pairs) / sum(n for _, n in pairs), abs=1e-3)


def kendall_sum(x, y):
    """Concordant minus discordant pairs, and the number of pairs without a missing number."""
    i, j = np.triu_indices(len(x), 1)
    there = np.isfinite(x[i]) & np.isfinite(x[j])
    return float(np.sum((np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]))[there])), int(there.sum())


def test_the_page_says_what_models_that_fit_equally_well_carry():
    told = published("matched")["populations"]
    rows = {name: {m: of["measures"][f"{m}, matched"] for m in matched.NAMES} for name, of in told.items()}
    every = [row for of in rows.values() for row in of.values()]
    assert [min(row["p, sets, Holm"] for row in every)] == pytest.approx(
        said("the smallest p is ([0-9.]+)\\. With"), abs=0.005
    )
    assert sum(row["p, Holm"] < 0.05 for row in every) == 5
    assert all(row["p, Holm"] > 0.05 for row in rows["digits"].values())
    assert sum(row["p, sets, tails, Holm"] < 0.05 for row in every) == 8
    assert "eight of the twelve are below 0.05" in PAGE
    same = {population: {name: row["same examples"] for name, row in of.items()} for population, of in rows.items()}
    others = [of[0] for name, of in same["digits"].items() if not name.startswith("mix")]
    numbers = [same["digits"]["mix"][0], same["digits"]["mix, average"][0], min(others), max(others)]
    pattern = f"the \\*digits\\*, τ is {NUMBER} for mix, {NUMBER} for .mix, average., and {NUMBER} to {NUMBER} for the"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    numbers = [min(of[0] for of in same["sentences"].values()), max(of[0] for of in same["sentences"].values())]
    assert numbers == pytest.approx(said(f"sentences\\*, it is {NUMBER} to {NUMBER} for all six\\."), abs=0.006)
    norm = told["digits"]["others"]["weight norm"][1]
    largest = max(abs(row["equally many examples"][0]) for row in rows["digits"].values())
    pattern = f"τ is {NUMBER} for the norm of all weights, and at most ([0-9.]+) in absolute"
    assert [norm, largest] == pytest.approx(said(pattern), abs=0.006)
    norm = told["sentences"]["others"]["weight norm"][1]
    assert [norm] == pytest.approx(said(f"For the \\*sentences\\* the norm has {NUMBER}\\."), abs=0.006)
    numbers = [of["others"]["train_size"][0] for of in told.values()]
    pattern = f"has τ = {NUMBER} with the test error of the \\*digits\\*, and {NUMBER} with"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    most = [row for name, row in rows["sentences"].items() if name != "adaptive, average"]
    equal, pooled = ([row[key][0] for row in most] for key in ("equally many examples", "tau"))
    numbers = [min(pooled), max(pooled), min(equal), max(equal)]
    pattern = f"a τ of {NUMBER} to {NUMBER} over all pairs, but {NUMBER} to {NUMBER} over pairs with equally many"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    digits = runner.load_table(VALIDATION / "results" / "matched-digits.csv")
    pairs, error = pairs_that_agree_in(digits, {"train_size", "seed", "weight_decay"}), column(digits, "test error")
    numbers = [tau_over(pairs, matched_measure(digits, name), error) for name in ("mix", "mix, average")]
    pattern = f"Without these pairs, τ is {NUMBER} for mix and {NUMBER} for .mix, average."
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    of_the_pool = [row | {"seed": row["seed"] * (row["train_size"] < 600)} for row in digits]
    pairs = pairs_that_agree_in(of_the_pool, {"train_size", "seed"})
    numbers = {name: tau_over(pairs, matched_measure(digits, name), error) for name in matched.NAMES}
    others = [value for name, value in numbers.items() if not name.startswith("mix")]
    pattern = (
        f"pairs between these seeds, τ is {NUMBER} for mix, {NUMBER} for .mix, average., and {NUMBER} to {NUMBER} for"
    )
    assert [numbers["mix"], numbers["mix, average"], min(others), max(others)] == pytest.approx(
        said(pattern), abs=0.006
    )
    for population, sign in (("digits", -1.0), ("sentences", 1.0)):
        models = runner.load_table(VALIDATION / "results" / f"matched-{population}.csv")
        pairs, size = pairs_that_agree_in(models, set(matched.RECIPE) - {"train_size"}), column(models, "train_size")
        for name in matched.NAMES:
            assert sign * tau_over(pairs, matched_measure(models, name), size) > 0.2, (population, name)

    def on_one_side(name):  # of zero, in both populations
        intervals = [of["measures"][f"{name}, matched"]["tau"][1:] for of in told.values()]
        return np.all(np.greater(intervals, 0.0)) or np.all(np.less(intervals, 0.0))

    assert not any(map(on_one_side, matched.NAMES)), "no measure ranks both populations"


def test_the_page_says_what_happens_along_the_paths():
    summary = published("phase")["summary"]
    rows = [row for grid in ("n/d", "noise") for row in summary[grid].values()]
    assert summary["all sets"]["the norm always falls"] == 1.0
    wrong = [row for row in rows if row["tau"][0] * row["difference of the ends"] < 0.0]
    assert [len(wrong), len(rows)] == said("In ([0-9]+) of the ([0-9]+) cells the median τ has the wrong sign")
    assert max(abs(row["tau"][0]) for row in wrong) == pytest.approx(0.17, abs=0.006)
    assert {row["tau"][0] > 0.0 for row in rows if row["tau"][1] * row["tau"][2] > 0.0} == {True, False}
    sets, right = published("sensing")["summary"]["all sets"]["all"]
    assert [round(100 * right / sets), sets] == said("is right in ([0-9]+)% of ([0-9]+) sets")
    sets = summary["all sets"]["sets"]
    shares = [100 * sets[name][1] / sets[name][0] for name in ("ends differ by less", "ends differ by more than 0.1")]
    assert list(map(round, shares)) == said("right in ([0-9]+)% of the sets, else in ([0-9]+)%")
    for grid, shares in zip(("n/d", "noise"), said("seen afterwards \\| ([0-9]+)% \\| ([0-9]+)%"), strict=True):
        cells = summary[grid].values()
        most = sum(max(row["sets negative"], row["sets"] - row["sets negative"]) for row in cells)
        assert round(100 * most / sum(row["sets"] for row in cells)) == shares
    of_ends = [
        f"{100 * sum(r['sets as predicted'] for r in summary[g].values()) / n:.0f}%"
        for g, n in (("n/d", 1800), ("noise", 1400))
    ]
    assert f"| from the ends of each set | {' | '.join(of_ends)} |" in PAGE
    proved = 100 * summary["all sets"]["pairs proved"]
    assert [round(proved)] == said("the bounds prove the order of ([0-9]+)% of the pairs")
    signs = [(row["tau, former starts"], row["difference of the ends"]) for row in rows]
    wrong = [tau for tau, ends in signs if tau[0] * ends < 0.0]
    clearly = [tau for tau in wrong if tau[1] * tau[2] > 0.0]
    assert [len(wrong), len(clearly)] == said("([0-9]+) cells have the wrong sign, ([0-9]+) of them clearly")
    former = 100 * summary["all sets"]["tau of the former starts as predicted"]
    assert [round(former)] == said("For α from 0.01 to 0.3, it is right in ([0-9]+)% of the sets")
    norm = 100 * summary["all sets"]["tau of the norm as predicted"]
    assert [round(norm)] == said("and its τ has the predicted sign in ([0-9]+)% of them")
