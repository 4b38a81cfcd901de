"""The study of generalisation: statistics, measures against routes of their own, a pipeline that can be killed."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from helpers import grow_weights, sample

import refgeo as rg
from refgeo import diagonal
from validation.findings.study import diagonal_sets, images, runner, statistics, summary, tiny
from validation.findings.study.measures import MEASURES, Effort, Measured, Model
from validation.paper import figure3, protocol, table1

ROOT = Path(__file__).parents[2]


# Statistics ------------------------------------------------------------------------------------------------------


def by_pairs(x, y):
    pairs = list(itertools.combinations(range(len(x)), 2))
    return sum(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in pairs) / len(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_tau_is_that_of_all_pairs_and_scipys_without_ties(seed):
    x, y = np.random.default_rng(seed).standard_normal((2, 17))
    assert statistics.tau_a(x, y) == pytest.approx(by_pairs(x, y))
    assert statistics.tau_a(x, y) == pytest.approx(scipy.stats.kendalltau(x, y).statistic)
    tied = np.round(x)
    result = statistics.correlation(tied, y)
    assert result.tau_a.value == pytest.approx(by_pairs(tied, y))
    assert result.tau_b == pytest.approx(scipy.stats.kendalltau(tied, y).statistic)
    assert abs(result.tau_a.value) < abs(result.tau_b)


def test_p_values_are_those_of_all_orders():
    x, y = np.random.default_rng(0).standard_normal((2, 6))
    right = np.mean(
        [abs(by_pairs(x[list(p)], y)) >= abs(by_pairs(x, y)) - 1e-9 for p in itertools.permutations(range(6))]
    )
    assert statistics.correlation(x, y).p == pytest.approx(right, abs=4 * np.sqrt(right * (1 - right) / 2000) + 1e-3)


@pytest.mark.exhaustive
def test_intervals_hold_the_truth_as_often_as_they_say():
    # of normal variables with correlation r, τ = 2/π arcsin r
    truth = 2 / np.pi * np.arcsin(0.6)
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(40)
        y = 0.6 * x + 0.8 * rng.standard_normal(40)
        low, high = statistics.correlation(x, y, seed).tau_a[1:]
        held += low <= truth <= high
    assert 52 <= held <= 60  # 95% of 60 is 57, give or take 1.7


def test_a_difference_of_measures_on_the_same_models_is_sharper_than_the_two_alone():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(60)
    common = rng.standard_normal(60)
    measures = {"adaptive": 0.5 * y + common, "inv": 0.6 * y + common}
    difference = statistics.differences(measures, y, of="adaptive")["inv"]
    assert difference.value == pytest.approx(by_pairs(measures["inv"], y) - by_pairs(measures["adaptive"], y))
    assert difference.low <= difference.value <= difference.high
    alone = [statistics.correlation(measures[name], y).tau_a for name in measures]
    assert difference.high - difference.low < 0.5 * min(item.high - item.low for item in alone)


def test_partial_tau_is_the_phi_coefficient_of_pairs_that_agree_with_the_third():
    rng = np.random.default_rng(0)
    cause = rng.standard_normal(60)
    x, y = cause + 0.3 * rng.standard_normal(60), cause + 0.3 * rng.standard_normal(60)
    upper = np.triu_indices(60, 1)
    with_x, with_y = (statistics.signs(v)[upper] == statistics.signs(cause)[upper] for v in (x, y))
    assert statistics.partial_tau(x, y, cause) == pytest.approx(np.corrcoef(with_x, with_y)[0, 1])
    assert statistics.tau_a(x, y) > 0.6
    assert statistics.partial_tau(x, y, cause) < 0.35
    assert np.isnan(statistics.partial_tau(x, y, x))


def residual_ranks(x, given):
    ranks, t = scipy.stats.rankdata(x), scipy.stats.rankdata(given)
    return ranks - np.polynomial.Polynomial.fit(t, ranks, 3)(t)


@pytest.mark.parametrize("bent", [np.asarray, np.exp, np.square])
def test_what_another_number_leaves_has_nothing_of_it(bent):
    """Two columns have a cause and nothing else in common: the partial τ is not zero, τ of what is left nearly is."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(200):
        cause = rng.standard_normal(72)
        x, y = bent(cause) + 0.1 * rng.standard_normal(72), bent(cause) + rng.standard_normal(72)
        left = [statistics.rest(z, cause) for z in (x, y)]
        assert left[0] == pytest.approx(residual_ranks(x, cause), abs=1e-8)
        result.append((statistics.partial_tau(x, y, cause), statistics.tau_a(*left)))
    partial, of_rest = np.mean(result, axis=0)
    assert abs(of_rest) < 0.04  # one interval is ±0.17
    assert partial > 2.0 * abs(of_rest) + 0.05


# Measures --------------------------------------------------------------------------------------------------------


def quadratic(seed=0, n=6):
    """½wᵀAw − bᵀw on one array, whose Hessian is known."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((n, n))
    A, w = root @ root.T, rng.standard_normal(n)
    b = rng.standard_normal(n)

    def value_and_grad(blocks, batch):
        x = blocks["w"]
        return float(0.5 * x @ A @ x - b @ x), {"w": A @ x - b}

    return A, b, Model({"w": w}, value_and_grad, [None], {"gap": 0.0})


def value_of(model, name, rho=0.1, effort=None):
    (row,) = Measured(model, effort or Effort(probes=4000)).rows(MEASURES[name], [rho])
    assert row["note"] == ""
    return row["value"]


def test_euclidean_curvature_is_that_of_the_hessian():
    A, _, model = quadratic()
    assert value_of(model, "λ_max, Euclidean") == pytest.approx(np.linalg.eigvalsh(A)[-1], rel=1e-4)
    spread = np.sqrt(2 * (np.sum(A**2) - np.sum(np.diag(A) ** 2)) / 4000)
    assert abs(value_of(model, "trace, Euclidean") - np.trace(A)) < 4 * spread


def scalar_network():
    """½(gh − 1)² of one pair."""

    def value_and_grad(blocks, batch):
        pair = blocks["p"]
        residual = pair.G.item() * pair.H.item() - 1.0
        return 0.5 * residual**2, {"p": (residual * pair.H, residual * pair.G)}

    return Model({"p": rg.Pair([[2.0]], [[3.0]])}, value_and_grad, [None], {"gap": 0.0})


@pytest.mark.parametrize("name", ["inv", "mix"])
def test_riemannian_curvature_is_that_of_the_quotient(name):
    """The quotient has one dimension: second differences of the loss along its geodesic."""
    model = scalar_network()
    space = (rg.InvariantMetric() if name == "inv" else rg.MixedMetric()).at(model.blocks["p"])
    v = space.random_tangent_vector(0)

    def loss(t):
        pair = space.geodesic(v, t, "exact")
        return 0.5 * (pair.G.item() * pair.H.item() - 1.0) ** 2

    second = (loss(1e-3) - 2 * loss(0.0) + loss(-1e-3)) / 1e-6
    assert value_of(model, f"trace, {name}", effort=Effort(probes=400)) == pytest.approx(second, rel=0.05)


def test_relative_flatness_is_petzkas_sum():
    rng = np.random.default_rng(0)
    W, C = rng.standard_normal((3, 4)), rng.standard_normal((12, 12))
    A = C @ C.T

    def value_and_grad(blocks, batch):
        w = blocks["W"].ravel()
        return float(0.5 * w @ A @ w), {"W": (A @ w).reshape(3, 4)}

    model = Model({"W": W}, value_and_grad, [None], {"gap": 0.0}, weights=("W",))
    H = A.reshape(3, 4, 3, 4)
    right = sum((W[s] @ W[r]) * np.trace(H[s, :, r, :]) for s in range(3) for r in range(3))
    for name in ("relative flatness, last layer", "relative flatness, all layers"):
        assert value_of(model, name) == pytest.approx(right, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(MEASURES, 3))
def test_every_measure_gives_a_number_and_invariant_ones_do_not_change_along_an_orbit(name):
    model = tiny.Population(1, 20).model(0)
    effort = Effort(n_iter=4, n_samples=4, probes=2, restarts=20)
    radii = [0.05]
    A = np.random.default_rng(1).standard_normal((1, 4, 4)) + 2 * np.eye(4)
    key = "layer0.query_key"
    second = Model(
        {**model.blocks, key: model.blocks[key].transform(A)},
        model.value_and_grad,
        model.batches,
        {},
        (),
        model.weights,
    )
    (here,), (target,) = (Measured(item, effort).rows(MEASURES[name], radii) for item in (model, second))
    assert here["note"] == ""
    assert np.isfinite(here["value"])
    if MEASURES[name].metric in ("inv", "mix", "s=0.5") and "norm" not in name and "ε" not in name:
        tolerance = {"top": 0.02, "trace": 1e-4}.get(MEASURES[name].kind, 1e-6)
        assert target["value"] == pytest.approx(here["value"], rel=tolerance)
    elif name in ("adaptive", "λ_max, Euclidean", "trace, Euclidean", "inv, Euclidean norm"):
        assert abs(target["value"] / here["value"] - 1) > 0.01


# The pipeline ----------------------------------------------------------------------------------------------------


def tiny_tasks(out, count=6):
    effort = Effort(n_iter=3, n_samples=4, probes=2)
    measures = ("adaptive", "inv", "λ_max, inv")
    return table1.all_units(
        "validation.findings.study.tiny", {"count": count, "steps": 5}, measures, (0.05, 0.1), effort, out
    )


@pytest.mark.slow
def test_a_study_from_training_to_the_table(tmp_path):
    pd = pytest.importorskip("pandas")
    document = table1.study(tiny_tasks(tmp_path), tmp_path, 1)
    rows = runner.load_table(tmp_path / "table1.csv")
    assert len(rows) == 6 * 5
    assert {row["unit"] for row in rows} == set("012345")
    frame = pd.read_csv(tmp_path / "table1.csv")
    assert list(frame.columns) == list(rows[0])
    assert set(frame["measure"]) == {"adaptive", "inv", "λ_max, inv"}
    assert frame["rho"].isna().sum() == 6
    result = document["populations"]["tiny"]
    assert result["models"] == 6
    inv = frame[(frame["measure"] == "inv") & (frame["rho"] == 0.1)]
    assert result["gap"]["inv"]["0.1"]["tau_a"][0] == pytest.approx(
        by_pairs(inv["value"].to_numpy(), inv["gap"].to_numpy())
    )
    item = inv.groupby("model").first()
    assert result["others"]["step_size"][0] == pytest.approx(by_pairs(item["step_size"], item["gap"]))
    left = [residual_ranks(inv[name].to_numpy(), item["step_size"].to_numpy()) for name in ("value", "gap")]
    assert result["gap"]["inv"]["0.1"]["given"][0] == pytest.approx(by_pairs(*left))
    assert json.loads((tmp_path / "table1.json").read_text())["versions"]["tiny"][0]["refgeo"] == rg.__version__
    table1.plot(rows, tmp_path / "table1.png")
    table1.say(document)
    assert (tmp_path / "table1.png").stat().st_size > 5000


def test_halves_of_the_batches_agree_as_far_as_the_models_differ():
    rng = np.random.default_rng(0)
    model, batch = rng.standard_normal((2, 60, 8))
    rows = [
        {"unit": f"{k}", "model": f"{k}", "gap": 0.1, "measure": name, "rho": 0.1, "batch": j,
         "value": size * model[k, 0] + batch[k, j]}
        for name, size in (("clear", 10.0), ("noise", 0.0)) for k in range(60) for j in range(8)
    ]  # fmt: skip
    result = summary.between_halves(rows)
    assert list(result) == ["clear @ 0.1", "noise @ 0.1"]
    assert result["clear @ 0.1"] > 0.9
    assert abs(result["noise @ 0.1"]) < 0.2
    halves = [[np.mean([batch[k, j] for j in range(k0, 8, 2)]) for k in range(60)] for k0 in (0, 1)]
    assert result["noise @ 0.1"] == pytest.approx(scipy.stats.kendalltau(*halves).statistic)
    assert summary.between_halves([row for row in rows if row["batch"] == 0]) == {}


def test_sets_of_models_have_a_tau_each(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {
            "population": "p", "unit": str(unit), "model": str(model), "measure": "inv", "rho": 0.1, "value": float(x),
            "gap": float(x if unit else -x), "trained": True, "note": "",
        }
        for unit in range(3)
        for model, x in enumerate(rng.standard_normal(8))
    ]  # fmt: skip
    result = summary.by_radius(rows, "gap")["inv"][0.1]
    assert result["sets"] == 3
    assert result["tau_a"][0] == pytest.approx(1.0)  # the median of −1, 1, 1


@pytest.mark.exhaustive
def test_processes_and_other_maps_give_the_same_table(tmp_path):
    tables = []
    for k, workers in enumerate((1, 2, map, lambda f, tasks: [f(task) for task in tasks][::1])):
        out = tmp_path / str(k)
        runner.save_table(runner.run(tiny_tasks(out), workers), out / "table.csv")
        tables.append((out / "table.csv").read_bytes())
    assert len(set(tables)) == 1


@pytest.mark.exhaustive
def test_a_dask_cluster_gives_the_same_table(tmp_path):
    distributed = pytest.importorskip("distributed")
    here = runner.run(tiny_tasks(tmp_path / "here"), 1)
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        options = runner.parser("").parse_args(["--cluster", cluster.scheduler_address])
        target = runner.run(tiny_tasks(tmp_path / "there"), runner.workers(options))
    assert json.dumps(here) == json.dumps(target)


PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}, {tests!r} + "/.."]
from test_study import tiny_tasks
from validation.findings.study import runner
runner.save_table(runner.run(tiny_tasks(Path({out!r})), 1), Path({out!r}) / "table.csv")
"""


@pytest.mark.exhaustive
def test_a_killed_study_goes_on_and_gives_the_same_table(tmp_path):
    def program(out):
        text = PROGRAM.format(root=str(ROOT), tests=str(Path(__file__).parent), out=str(out))
        return [sys.executable, "-c", text]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    runner.save_table(runner.run(tiny_tasks(whole), 1), whole / "table.csv")
    process = subprocess.Popen(program(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    units = killed / "units" / "tiny"
    while process.poll() is None and len(list(units.glob("*.json"))) < 2:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    damaged, *others = units.glob("*.json")
    assert 1 <= len(others) < 5
    before = {file: file.stat().st_mtime_ns for file in others}
    damaged.write_text("{")
    subprocess.run(program(killed), check=True, capture_output=True)
    assert (killed / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()
    assert {file: file.stat().st_mtime_ns for file in others} == before  # what was done is not done again


def test_numbers_that_a_measure_has_not_are_said_and_empty(tmp_path):
    def value_and_grad(blocks, batch):
        return 1.0, {"p": (np.zeros((2, 1)), np.zeros((2, 1)))}

    deficient = Model({"p": rg.Pair(np.zeros((2, 1)), np.ones((2, 1)))}, value_and_grad, [None], {"gap": 0.0})
    (row,) = Measured(deficient, Effort()).rows(MEASURES["inv"], [0.1])
    assert np.isnan(row["value"])
    assert "RankDeficientError" in row["note"]
    runner.save_table([row], tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as stream:
        assert next(csv.DictReader(stream))["value"] == ""


@pytest.mark.exhaustive
def test_your_own_checkpoints_with_the_pages_example(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    page = (ROOT / "validation" / "findings" / "README.md").read_text(encoding="utf-8")
    blocks = page.split("```python\n")[1:]
    (example,) = [block.split("```")[0] for block in blocks if "def model(path, network)" in block]
    (tmp_path / "loss.py").write_text(example, encoding="utf-8")
    for k in range(2):
        torch.manual_seed(k)
        config = transformers.BertConfig(
            vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=8,
        )  # fmt: skip
        folder = tmp_path / "models" / str(k)
        grow_weights(transformers.BertForSequenceClassification(config)).save_pretrained(folder)
        (folder / "errors.json").write_text(json.dumps({"train": 0.1, "test": 0.2 + k, "test loss": 0.5}))
    command = [
        sys.executable,
        "-m",
        "validation",
        "table1",
        "--quick",
        "--layout",
        "bert",
        "--out",
        str(tmp_path / "out"),
    ]
    given = ["--checkpoints", str(tmp_path / "models"), "--loss", str(tmp_path / "loss.py")]
    done = subprocess.run([*command, *given], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = runner.load_table(tmp_path / "out" / "table1" / "table1.csv")
    assert {row["measure"] for row in rows} == {"adaptive", "inv", "mix"}
    assert len({row["unit"] for row in rows}) == 2
    assert all(row["value"] > 0 and not isinstance(row["note"], str) for row in rows)
    assert sorted({row["gap"] for row in rows}) == pytest.approx([0.1, 1.1])
    document = json.loads((tmp_path / "out" / "table1" / "table1.json").read_text())
    assert document["populations"]["checkpoints"]["gap"]["inv"]["0.1"]["models"] == 0  # two are too few for a τ


def read_published(name):
    """A published experiment, and the one raw number that is kept to compute it again."""
    document = json.loads((ROOT / "validation" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert {"settings", "versions", "summary", "sample"} <= document.keys()
    ((where, value),) = document["sample"].items()
    return where, value


@pytest.mark.exhaustive
def test_the_published_set_of_figure_3_can_be_computed_again():
    where, before = read_published("diagonal")
    setting, seed = where.split(", seed ")
    assert setting == figure3.name_of(figure3.REFERENCE)
    again = figure3.cell(vars(figure3.REFERENCE), int(seed), (0.001, 0.01, 0.1, 0.3, 1.0))
    for name, tau in before["tau"].items():
        assert again["tau"][name] == pytest.approx(tau, abs=0.02), name
    assert again["bounds"]["mix"]["decided"] == pytest.approx(before["bounds"]["mix"]["decided"], abs=0.02)


@pytest.mark.exhaustive
def test_second_order_geodesics_of_mix_say_far_more_than_any_exact_one_reaches():
    """On one network of Figure 3, beside a certified upper bound."""
    trained = diagonal_sets.network_set(figure3.REFERENCE, 0)
    u, v = trained.u[:1], trained.v[:1]
    bound = diagonal.worst_case("mix", u, v, trained.X, trained.y, 0.1, n_starts=0, tight=False).upper
    assert figure3.auto_pgd("mix", u[0], v[0], trained.X, trained.y, 0.1, 20) > 1e3 * float(bound[0])


def read_models(population):
    """A row for each model of a population of Table 1."""
    return runner.load_table(ROOT / "validation" / "results" / f"table1-{population}.csv")


def read_table():
    return json.loads((ROOT / "validation" / "results" / "table1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("draw", [0, 1])
def test_the_published_table_is_that_of_its_models(draw):
    """τ again from the models' numbers, by pairs; and models were trained by the recipes of their index."""
    rows, result = read_models(f"images-{draw}"), read_table()["populations"][f"images-{draw}"]
    assert result["models"] == len(rows) == 72
    assert result["batches"] == protocol.BATCHES
    for outcome in ("gap", "test error", "test loss"):
        checked = set()
        for measure, by_radius in result[outcome].items():
            for radius, numbers in by_radius.items():
                pairs = np.array([(row[f"{measure} @ {radius}"], row[outcome]) for row in rows])
                assert numbers["models"] == len(pairs)
                assert numbers["tau_a"][0] == pytest.approx(by_pairs(*pairs.T), abs=2e-3)  # ties of rounded numbers
                checked.add((measure, float(radius)))
        fixed = protocol.read_radii("images")
        assert checked >= {(name, rho) for name in protocol.NAMES for rho in fixed[name]}
    for name, (value, *_) in result["others"].items():
        assert value == pytest.approx(by_pairs([row[name] for row in rows], [row["gap"] for row in rows]), abs=2e-3)
    for row in rows:
        assert row["gap"] == pytest.approx(row["test error"] - row["train error"])
        for name, value in vars(images.Recipe.draw_once(draw, int(row["unit"]))).items():
            assert row[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.exhaustive
def test_the_published_diagonal_networks_can_be_computed_again():
    rows = read_models("diagonal")
    again = diagonal_sets.network_set(diagonal_sets.Setting(), int(rows[0]["unit"]))
    assert len(rows) == len(again.test_loss)
    assert np.allclose(again.test_loss, [row["test loss"] for row in rows], rtol=1e-3)
    for measure in ("adaptive", "inv"):
        result = diagonal.worst_case(measure, again.u, again.v, again.X, again.y, 0.1, tight=False)
        assert np.allclose(result.lower, [row[f"{measure} @ 0.1"] for row in rows], rtol=1e-3)
