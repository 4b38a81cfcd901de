"""What the page of findings says, from the published rows: a concluding sentence is tested like a formula."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from validation import matched
from validation.study import runner, statistics

VALIDATION = Path(__file__).parents[2] / "validation"
PAGE = " ".join((VALIDATION / "README.md").read_text(encoding="utf-8").split())


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


def test_the_page_says_what_the_digits_carry():
    rows = rows_of("digits")
    trained = [row for row in rows if row["trained"]]
    low = "adaptive @ 0.03"
    numbers = [tau(rows, low, "train loss"), tau(rows, low, "gap", "train loss"), tau(trained, low)]
    pattern = (
        f"τ between adaptive sharpness and the training loss is {NUMBER}\\. .*? the partial τ between adaptive "
        f"sharpness and the gap is only {NUMBER}\\. If we use only the {len(trained)} models with "
        f"successful training, the τ between adaptive sharpness and the gap is {NUMBER} "
    )
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    rise = tau(trained, "adaptive @ 0.3") - tau(trained, low)
    assert [rise] == pytest.approx(said(f"than at ρ = 0.03: the difference is {NUMBER} \\["), abs=0.006)
    medians = [np.median(column(rows, name)) for name in ("adaptive @ 0.1", "inv @ 0.1")]
    assert medians == pytest.approx(
        said("loss is ([0-9.]+) in the ball of adaptive sharpness and ([0-9.]+) in the ball of inv"), abs=0.006
    )
    differences = [tau(rows, f"inv @ {a}") - tau(rows, f"adaptive @ {b}") for a, b in ((0.03, 0.1), (0.1, 0.3))]
    minus = f"Here the τ of inv sharpness minus the τ of adaptive sharpness is {NUMBER} \\["
    assert differences == pytest.approx(said(f"{minus}.*? second comparison .*? {minus}"), abs=0.006)
    # within equal numbers of images
    numbers = [within(rows, name, "train_size") for name in ("inv @ 0.1", "inv, average @ 0.1", "mix, average @ 0.1")]
    pattern = (
        f"From these pairs, the τ between inv sharpness at ρ = 0.1 and the gap is {NUMBER} .*? average-case sharpness "
        f"at ρ = 0.1 and the gap is {NUMBER} \\[.*?\\] for inv and {NUMBER} \\[.*?\\] for mix"
    )
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    assert kendalltau(column(rows, "train_size"), column(rows, "gap")).statistic == pytest.approx(-0.56, abs=0.005)
    there = [row for row in rows if np.isfinite(row["mix, Euclidean norm @ 0.1"])]
    assert len(rows) - len(there) == 4
    moved = tau(there, "mix, Euclidean norm @ 0.1") - tau(there, "mix @ 0.1")
    pattern = f"other {len(there)} models at ρ = 0.1, the Euclidean norm changes the τ of mix sharpness by {NUMBER}"
    assert [moved] == pytest.approx(said(pattern), abs=0.006)


def test_the_page_says_what_leaving_out_the_curvature_changes():
    changes = {}
    for population, rho in (("sentences", 0.1), ("digits", 0.3)):
        rows = rows_of(population)
        without, with_it = (column(rows, f"{name} @ {rho}") for name in ("mix, no Γ", "mix"))
        changes[population] = tau(rows, f"mix, no Γ @ {rho}") - tau(rows, f"mix @ {rho}")
        changed = np.abs(without / with_it - 1.0)
        if population == "sentences":
            assert changed.max() < 1e-3
        else:
            assert [100.0 * np.median(changed)] == pytest.approx(
                said("and by ([0-9.]+)% for the \\*digits\\* at"), abs=0.06
            )
            assert 0.3 < np.mean(changed > 0.1) < 0.37
    pattern = (
        f"changes the τ of mix by {NUMBER} for the \\*sentences\\*, and for the \\*digits\\* at ρ = 0.3 by {NUMBER}"
    )
    assert [changes["sentences"], changes["digits"]] == pytest.approx(said(pattern), abs=0.006)


def test_the_page_says_what_ranks_by_the_test_error():
    rows = rows_of("digits")
    numbers = [tau(rows, f"{name} @ 0.1", "test error") for name in ("inv", "adaptive", "mix")]
    pattern = f"at ρ = 0.1, τ is {NUMBER} \\[.*?\\] for inv, {NUMBER} \\[.*?\\] for adaptive and {NUMBER}"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    trained = [row for row in rows if row["trained"]]
    assert [tau(trained, "inv @ 0.1")] == pytest.approx(said(f"ρ = 0.1: its τ is {NUMBER} \\["), abs=0.006)
    rows = rows_of("sentences")
    names = ("mix, average @ 0.1", "trace, Euclidean", "relative flatness, all layers")
    numbers = [tau(rows, name, "test error") for name in names]
    pattern = f"it does not: τ is {NUMBER} \\[.*?\\] for .mix, average., {NUMBER} \\[.*?\\] for .*? and {NUMBER} \\["
    assert numbers == pytest.approx(said(pattern), abs=0.006)


def test_the_page_says_what_the_bounds_of_mix_prove():
    settings = json.loads((VALIDATION / "results" / "diagonal.json").read_text(encoding="utf-8"))["summary"].values()
    smallest, small, *others = zip(*([tau for tau, _, _ in one["tau"]["mix"]] for one in settings), strict=True)
    proved = np.array([one["decided"]["mix"] for one in settings])
    assert len(settings) == 16
    assert max(smallest) < 0.0 < min(map(min, others))
    assert [sum(tau > 0.0 for tau in small)] == said("positive in ([0-9]+) settings at ρ = 0.01")
    shares = [100.0 * x for x in (proved[:, 1].min(), proved[:, 1].max(), proved[:, 2:].max(), proved[:, 0].min())]
    pattern = "prove the order of at most ([0-9]+)% .*? they prove ([0-9]+)% to ([0-9]+)%\\. .*? prove ([0-9]+)% of the"
    assert max(tau for tau, share in zip(small, proved[:, 1], strict=True) if share >= 0.475) < 0.035
    assert [shares[i] for i in (2, 0, 1, 3)] == pytest.approx(said(pattern), abs=0.6)


def test_the_page_says_what_the_sentences_carry():
    rows = rows_of("sentences")
    error = kendalltau(column(rows, "train error"), column(rows, "gap")).statistic
    measures = [name for name in rows[0] if re.search("@|λ|trace|flatness", name)]
    assert abs(error) > max(abs(kendalltau(column(rows, name), column(rows, "gap")).statistic) for name in measures)
    assert [error] == pytest.approx(said(f"The training error has a τ_b of {NUMBER} with the gap"), abs=0.006)
    numbers = [tau(rows, f"{name} @ 0.1", "test error") for name in ("adaptive", "inv")]
    pattern = f"This τ is {NUMBER} \\[.*?\\] for adaptive sharpness and {NUMBER} \\[.*?\\] for inv sharpness"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    names = ("inv, average", "adaptive", "mix", "inv")
    numbers = [tau(rows, f"{name} @ 0.1", "gap", "train loss") for name in names]
    pattern = (
        f"partial τ given the training loss is only {NUMBER} .*? given the training loss is {NUMBER} \\[.*?\\] for "
        f"adaptive, {NUMBER} \\[.*?\\] for mix and {NUMBER} \\[.*?\\] for inv"
    )
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    test = column(rows, "test error")
    sampling = np.sqrt(np.mean(test * (1.0 - test)) / 300)
    assert 0.45 < sampling / np.std(test) < 0.55
    assert [test.mean()] == pytest.approx(said("The mean test error of the 36 models is ([0-9.]+);"), abs=0.006)
    told = json.loads((VALIDATION / "results" / "table1.json").read_text(encoding="utf-8"))["populations"]["sentences"]
    assert told["errors and losses"]["train error"] == pytest.approx(error, abs=1e-3)


def test_the_sign_turns_with_the_number_of_points():
    summary = json.loads((VALIDATION / "results" / "regime.json").read_text(encoding="utf-8"))["summary"]
    assert summary["zeros 0.9, n 20"]["tau"]["sharpness"][1] > 0.0
    assert summary["zeros 0.9, n 100"]["tau"]["sharpness"][2] < 0.0
    for name, row in summary.items():
        zeros, n = (float(part.split()[1]) for part in name.split(", "))
        if n <= 200 * (1.0 - zeros) + 1e-9:
            assert row["tau"]["sharpness"][0] > 0.0, name
        if n >= 1.6 * 200 * (1.0 - zeros):
            assert row["tau"]["sharpness"][0] < 0.0, name
        strong = abs(row["tau"]["‖β‖₂"][0])
        assert strong >= abs(row["tau"]["sharpness"][0]) - 1e-9, name
        assert abs(row["sharpness given the norm"][0]) < abs(row["the norm given sharpness"][0]), name
        assert np.sign(row["tau"]["−ℓ1/ℓ2"][0]) == np.sign(row["tau"]["sharpness"][0]), name
    *left, largest = sorted(row["sharpness given the norm"][0] for row in summary.values())
    pattern = f"partial τ of {NUMBER} to {NUMBER} in nine settings, and one of {NUMBER} "
    assert [left[0], left[-1], largest] == pytest.approx(said(pattern), abs=0.006)
    assert summary["zeros 0.9, n 100"]["tau"]["‖β‖₄/‖β‖₂"][0] > 0.0


def test_no_student_of_attention_is_near_its_teacher():
    summary = json.loads((VALIDATION / "results" / "teacher_baseline.json").read_text(encoding="utf-8"))["summary"]
    assert min(min(row["best"]) for row in summary.values()) > 0.2
    every = [x for row in summary.values() for x in row["median"]]
    rank_one = summary["rank 1"]["median"]
    numbers = [min(every), max(every), min(min(row["best"]) for row in summary.values()), min(rank_one), max(rank_one)]
    spread = "the median (?:of this ratio )?is ([0-9.]+) to ([0-9.]+)"
    pattern = f"{spread}, .*? smallest ratio in all sets is ([0-9]\\.[0-9]+).*? {spread}\\."
    assert numbers == pytest.approx(said(pattern), abs=0.006)


def test_the_page_says_what_the_searches_found():
    summary = json.loads((VALIDATION / "results" / "fault.json").read_text(encoding="utf-8"))["summary"]
    for rho, row in summary["diagonal"].items():
        shares = [f"{row['tau']['certified'][0]:.2f}".replace("-", "−")]
        for name in ("ours", "published"):
            shares.append(", ".join(f"{x:.2f}" for x in row["share"][name]))
            moves = row["moves"][name][0]
            shares.append(f"{moves:.3f}" if 0.002 < moves < 0.01 else f"{moves:.2f}")
        assert f"| {' | '.join([rho.replace('0.0001', '1e-4'), *shares])} |" in PAGE
    for rho, row in summary["digits"].items():
        shares = [", ".join(f"{x:.2f}" for x in row[name]) for name in ("ours", "published", "published, 100")]
        assert f"| {' | '.join([rho, *shares])} |" in PAGE
    smallest = summary["diagonal"]["0.0001"]
    numbers = [100 * smallest["above the bound"]["published"], 100 * smallest["outside"]]
    pattern = "1e-4, ([0-9]+)% of the values that the published search finds .*? by up to ([0-9]+)%"
    assert numbers == pytest.approx(said(pattern), abs=0.5)
    assert summary["digits"]["0.3"]["ours"][0] == pytest.approx(0.56, abs=0.005)


def pairs_that_agree_in(models, names):
    """Indices of the pairs of models that agree in these numbers and differ elsewhere in their recipe."""
    i, j = np.triu_indices(len(models), 1)
    same = [all(models[a][name] == models[b][name] for name in names) for a, b in zip(i, j, strict=True)]
    return i[same], j[same]


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
        measure = np.mean([column(models, f"{name}, matched, batch {k}") for k in (0, 1)], axis=0)
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
    told = json.loads((VALIDATION / "results" / "matched.json").read_text(encoding="utf-8"))["populations"]
    rows = {name: {m: of["measures"][f"{m}, matched"] for m in matched.NAMES} for name, of in told.items()}
    every = [row for of in rows.values() for row in of.values()]
    assert [min(row["p, sets, Holm"] for row in every)] == pytest.approx(
        said("the smallest corrected p-value is ([0-9.]+)\\. "), abs=0.005
    )
    assert sum(row["p, sets, tails, Holm"] < 0.05 for row in every) == 8
    assert "eight of the twelve are below 0.05" in PAGE
    too_large = [name for name, row in rows["digits"].items() if row["p"] > row["p, sets"]]
    assert sorted(set(rows["digits"]) - set(too_large)) == ["mix", "mix, average"]
    assert all(row["p"] < row["p, sets"] for row in rows["sentences"].values())
    registered = sorted(row["p, Holm"] for row in rows["sentences"].values())
    assert [registered[0], registered[4]] == pytest.approx(
        said("all of the \\*sentences\\*, ([0-9.]+) to ([0-9.]+); for the"), abs=5e-4
    )
    assert registered[5] > 0.5
    assert {f"{row['p, Holm']:.3f}" for row in rows["digits"].values()} == {"0.637"}
    assert [min(row["p, sets of one size, Holm"] for row in every)] == pytest.approx(
        said("below 0.05 \\(the smallest is ([0-9.]+)\\)"), abs=5e-4
    )
    same = {population: {name: row["same examples"] for name, row in of.items()} for population, of in rows.items()}
    others = [of[0] for name, of in same["digits"].items() if not name.startswith("mix")]
    numbers = [same["digits"]["mix"][0], same["digits"]["mix, average"][0], min(others), max(others)]
    pattern = f"τ is {NUMBER} for mix and {NUMBER} for .mix, average., and {NUMBER} to {NUMBER} for the other four"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    numbers = [min(of[0] for of in same["sentences"].values()), max(of[0] for of in same["sentences"].values())]
    assert numbers == pytest.approx(said(f"sentences\\*, τ is {NUMBER} to {NUMBER} for all six measures"), abs=0.006)
    assert [name for name, of in same["sentences"].items() if of[1] < 0.005] == ["inv", "mix"]
    norms = [of["others"]["weight norm"][1] for of in told.values()]
    assert [norms[0]] == pytest.approx(said(f"There, τ is {NUMBER} for the norm of all weights"), abs=0.006)
    assert [norms[1]] == pytest.approx(said(f"the norm has τ = {NUMBER} among pairs"), abs=0.006)
    assert norms[0] > max(abs(row["equally many examples"][0]) for row in rows["digits"].values())
    sentences = rows["sentences"]
    most = [row["tau"][0] for name, row in sentences.items() if name != "adaptive, average"]
    assert [min(most), max(most)] == pytest.approx(said(f"Over all pairs, τ is {NUMBER} to {NUMBER} for"), abs=0.006)
    assert all(row["equally many examples"][1] < 0 < row["equally many examples"][2] for row in sentences.values())
    for name, row in sentences.items():
        models = runner.load_table(VALIDATION / "results" / "matched-sentences.csv")
        measure = np.mean([column(models, f"{name}, matched, batch {k}") for k in (0, 1)], axis=0)
        i, j = pairs_that_agree_in(models, {"train_size"})
        apart = np.array([models[a]["seed"] != models[b]["seed"] for a, b in zip(i, j, strict=True)])
        error = column(models, "test error")
        signs = np.sign(measure[i] - measure[j]) * np.sign(error[i] - error[j])
        if name != "adaptive, average":
            assert row["same examples"][0] > 0.0
            assert -0.245 < np.nanmean(signs[apart]) < -0.115
    models = runner.load_table(VALIDATION / "results" / "matched-sentences.csv")
    i, j = pairs_that_agree_in(models, set(matched.RECIPE) - {"step_size"})
    steps, error = column(models, "step_size"), column(models, "test error")
    assert [np.sum((steps[i] - steps[j]) * (error[i] - error[j]) < 0), len(i)] == said(
        "in ([0-9]+) of the ([0-9]+) pairs that differ in the step size alone"
    )
    loss = column(models, "train loss")
    assert np.all((steps[i] - steps[j]) * (loss[i] - loss[j]) < 0)
    assert "in all 18 it has the smaller training loss" in PAGE
    digits = runner.load_table(VALIDATION / "results" / "matched-digits.csv")
    i, j = pairs_that_agree_in(digits, {"train_size"})
    loss, error = column(digits, "train loss"), column(digits, "test error")
    ranked = np.mean(np.sign(loss[i] - loss[j]) * np.sign(error[i] - error[j]))
    assert [ranked] == pytest.approx(
        said(f"number of images, the τ between training loss and test error is {NUMBER}"), abs=0.006
    )
    numbers = []
    for population in ("digits", "sentences"):
        models = runner.load_table(VALIDATION / "results" / f"matched-{population}.csv")
        i, j = pairs_that_agree_in(models, {"train_size", "seed"})
        loss, error = column(models, "train loss"), column(models, "test error")
        numbers.append(np.mean(np.sign(loss[i] - loss[j]) * np.sign(error[i] - error[j])))
    pattern = f"opposite signs, too: it is {NUMBER} for the \\*digits\\* and {NUMBER} for the"
    assert numbers == pytest.approx(said(pattern), abs=0.006)
    numbers = {}
    for group in ({"train_size", "seed", "weight_decay"}, {"train_size", "weight_decay"}):
        i, j = pairs_that_agree_in(digits, group)
        for name in ("weight norm", "mix", "mix, average"):
            value = (
                column(digits, name)
                if name == "weight norm"
                else sum(column(digits, f"{name}, matched, batch {k}") for k in (0, 1))
            )
            error = column(digits, "test error")
            numbers[len(group), name] = np.mean(np.sign(value[i] - value[j]) * np.sign(error[i] - error[j]))
    told_here = said(f"without these pairs, τ is {NUMBER} for mix and {NUMBER} for .mix, average.")
    assert [numbers[3, "mix"], numbers[3, "mix, average"]] == pytest.approx(told_here, abs=0.006)
    told_here = said(f"too, τ is {NUMBER} for the norm, {NUMBER} for mix and {NUMBER} for .mix, average.")
    expected = [numbers[2, name] for name in ("weight norm", "mix", "mix, average")]
    assert expected == pytest.approx(told_here, abs=0.006)
    found = {}
    for population in ("digits", "sentences"):
        models = runner.load_table(VALIDATION / "results" / f"matched-{population}.csv")
        i, j = pairs_that_agree_in(models, set(matched.RECIPE) - {"train_size"})
        more = np.sign(column(models, "train_size")[i] - column(models, "train_size")[j])
        for name in matched.NAMES:
            measure = np.mean([column(models, f"{name}, matched, batch {k}") for k in (0, 1)], axis=0)
            found[population, name] = np.nanmean(np.sign(measure[i] - measure[j]) * more)
    ends = [f([found[p, name] for name in matched.NAMES]) for p in ("digits", "sentences") for f in (min, max)]
    pattern = f"and this number is {NUMBER} to {NUMBER} for the \\*digits\\* and {NUMBER} to {NUMBER} for the"
    assert ends == pytest.approx(said(pattern), abs=0.006)
    assert all(row["step_size alone"][0] > 0.4 for row in rows["sentences"].values())
    rejecting = [row for name, row in rows["sentences"].items() if name != "adaptive, average"]
    assert all(row["seed alone"][0] < 0.0 for row in rejecting)
    numbers = [of["others"]["train_size"][0] for of in told.values()]
    pattern = f"its τ with the test error is {NUMBER} for the \\*digits\\* and {NUMBER} for the \\*sentences"
    assert numbers == pytest.approx(said(pattern), abs=0.006)

    def on_one_side(name, column):  # of zero, in both populations
        intervals = [of["measures"][name].get(column, [0.0, -1.0, 1.0])[1:] for of in told.values()]
        return np.all(np.greater(intervals, 0.0)) or np.all(np.less(intervals, 0.0))

    assert not any(on_one_side(f"{name}, matched", column) for name in matched.NAMES for column in matched.COLUMNS)
    assert [name for name in matched.NAMES if on_one_side(f"{name}, fixed", "tau")] == ["mix, average"]
    assert [name for name in matched.NAMES if on_one_side(f"{name}, matched", "test loss")] == ["mix, average"]
    digits = runner.load_table(VALIDATION / "results" / "matched-digits.csv")
    i, j = pairs_that_agree_in(digits, set(matched.RECIPE) - {"weight_decay"})
    less = column(digits, "weight_decay")[i] < column(digits, "weight_decay")[j]
    i, j = np.where(less, i, j), np.where(less, j, i)
    assert len(i) == 36
    assert np.sum(column(digits, "test error")[j] < column(digits, "test error")[i]) == 35
    for name, larger in (("mix", 36), ("adaptive", 18), ("inv", 17)):
        value = sum(column(digits, f"{name}, matched, batch {k}") for k in (0, 1))
        assert np.sum(value[j] > value[i]) == larger


def test_the_page_says_what_happens_along_the_paths():
    summary = json.loads((VALIDATION / "results" / "phase.json").read_text(encoding="utf-8"))["summary"]
    rows = [(grid, row) for grid in ("n/d", "noise") for row in summary[grid].values()]
    rising = [row["sets in which sharpness rises"] for _, row in rows]
    near = [of for (grid, row), of in zip(rows, rising, strict=True) if grid == "n/d" and row["at"][0] >= 0.7]
    assert [sum(near), sum(rising)] == said("In ([0-9]+) of these ([0-9]+) sets, n is at least 0.7 d")
    assert summary["all sets"]["the norm always falls"] == 1.0
    wrong = [row for _, row in rows if row["tau"][0] * row["difference of the ends"] < 0.0]
    shares = [100.0 * row["share of networks before the least error"][0] for row in wrong]
    assert [min(shares), max(shares)] == pytest.approx(said("minimum \\(([0-9]+)% to ([0-9]+)% of them"), abs=0.5)
    larger = [row["tau, α from 0.01 on"] for row in wrong]
    assert [max(larger)[0], min(larger)[0]] == pytest.approx(said(f"their medians are {NUMBER} to {NUMBER}"), abs=0.006)
    assert all(high < 0.0 for _, _, high in larger)
    later = [(row["tau, α from 0.01 on"], row["difference of the ends"]) for _, row in rows]
    failures = [tau for tau, ends in later if tau[0] * ends < 0.0]
    clear = [value for value, low, high in failures if low * high > 0.0]
    assert len(failures) == 16
    assert len(clear) == 4
    assert "wrong in 16 other cells, and clearly wrong in four of them" in PAGE
    assert [min(clear), max(clear)] == pytest.approx(said(f"four of them, where τ is {NUMBER} to {NUMBER}"), abs=0.006)
