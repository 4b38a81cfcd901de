"""The statistics of the study of models that fit equally well, by their definitions."""

import itertools
import math

import numpy as np
import pytest

from validation.findings import matched
from validation.findings.study import fitted, statistics
from validation.findings.study.measures import Effort, Model
from validation.findings.study.runner import Task


def test_adjusted_p_values_reject_what_holms_procedure_rejects():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = list(rng.random(6) ** 3)
        adjusted = statistics.holm(p)
        for level in (0.01, 0.05, 0.3):
            rejected = set()
            for k, i in enumerate(np.argsort(p)):  # step down: stop at the first that is not rejected
                if p[i] > level / (len(p) - k):
                    break
                rejected.add(i)
            assert {i for i, value in enumerate(adjusted) if value <= level} == rejected


def test_tau_within_groups_counts_their_pairs_alone():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 24))
    groups = list(rng.integers(5, size=24))
    pairs = [(i, j) for i, j in itertools.combinations(range(24), 2) if groups[i] == groups[j]]
    right = np.mean([np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in pairs])
    for drawn in ("groups", "models"):
        found = statistics.within(x, y, groups, drawn)
        assert found.value == pytest.approx(right)
        assert found.low <= found.value <= found.high
        assert math.isnan(statistics.within(x, y, range(24), drawn).value)
    assert statistics.within(x, y, [0] * 24, "models") == pytest.approx(statistics.correlation(x, y).tau_a)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "drawn"), [(2, "groups"), (3, "groups"), (30, "models")])
def test_intervals_within_groups_hold_the_truth_as_often_as_they_say(size, drawn):
    held, rng = 0, np.random.default_rng(0)
    for _ in range(200):
        x, y = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]], 90).T
        found = statistics.within(x, y, list(np.repeat(np.arange(90 // size), size)), drawn)
        held += found.low <= 2.0 / np.pi * np.arcsin(0.6) <= found.high
    assert 0.9 <= held / 200 <= 0.99


def test_the_matched_radius_is_where_the_loss_has_risen():
    for scale, power in ((0.3, 1.0), (50.0, 2.0), (3.0, 1.7), (1e4, 2.0)):
        rho = fitted.matched_radius(lambda rho, scale=scale, power=power: scale * rho**power, 0.1, 0.03)
        assert scale * rho**power == pytest.approx(0.1, rel=1e-9)
    assert math.isnan(fitted.matched_radius(lambda rho: 1.0, 0.1, 0.03))  # reached at every radius
    assert math.isnan(fitted.matched_radius(lambda rho: 0.0, 0.1, 0.03))  # never


def test_a_model_is_matched_where_its_loss_in_closed_form_has_risen():
    w = np.array([0.5, -2.0, 3.0])

    def value_and_grad(blocks, batch):  # ‖δ ⊘ w‖² times the batch's number: adaptive sharpness is ρ² times it
        relative = blocks["w"] / w - 1.0
        return batch * float(relative @ relative), {"w": 2.0 * batch * relative / w}

    model = Model({"w": w}, value_and_grad, [2.0, 8.0], {"test error": 0.5})
    task = Task("", (), "one", ("adaptive",), (0.03,), Effort(), "")
    rows = list(fitted.matched(model, task, 0.1))
    assert [row["measure"] for row in rows] == ["adaptive, fixed", "adaptive, matched"] * 2
    found = [row["value"] for row in rows]
    right = [value for c in model.batches for value in (c * 0.03**2, -((0.1 / c) ** 0.5))]
    assert found == pytest.approx(right, rel=1e-3)


@pytest.fixture(scope="module")
def images():
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    return {recipe: fitted.digits_of(recipe) for recipe in fitted.Population("digits").recipes()}


def test_every_setting_has_all_seeds_and_no_test_image_is_a_training_image(images):
    assert len(images) == 72
    assert len(fitted.Population("digits").units()) == len(set(fitted.Population("digits").units()))
    seen = set()
    for recipe, ((x, y), (x_test, y_test)) in images.items():
        assert len(x) == len(y) == recipe.train_size
        assert len(x_test) == len(y_test) == 1197
        seen |= {row.numpy().tobytes() for row in x}
    assert len(seen) <= 600
    assert not seen & {row.numpy().tobytes() for row in x_test}


def test_training_ends_at_the_target(images):
    import torch

    recipe, (examples, _) = next(iter(images.items()))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    steps = fitted.fit(module, examples, [{"params": module.parameters(), "lr": 1e-2}], recipe, 0.05)
    loss = float(torch.nn.functional.cross_entropy(module(examples[0]), examples[1]).detach())
    assert loss <= 0.05
    assert 0 < steps < fitted.MAX_STEPS
    assert steps % fitted.EVERY == 0


def models_of(rng):
    for recipe in fitted.Population("digits").recipes():
        error = rng.random()
        row = {
            **vars(recipe), "model": recipe.unit, "train loss": 0.005 * rng.random(), "test error": error,
            "test loss": -error, "steps": 1, "weight norm": 1.0, "test error, odd": error, "test error, even": error,
            "trained": True,
        }  # fmt: skip
        for name in matched.NAMES:
            row |= {f"{name}, matched, batch 0": error + 0.01 * rng.random(), f"{name}, matched, batch 1": error}
            row |= {f"{name}, fixed, batch 0": rng.random(), f"{name}, fixed, batch 1": rng.random()}
        yield row


@pytest.mark.slow
def test_a_summary_finds_what_was_put_in():
    models = list(models_of(np.random.default_rng(0)))
    models[0]["trained"] = False
    models[1]["inv, matched, batch 1"] = math.nan
    found = matched.corrected({"digits": matched.summarised(models)})["digits"]
    assert found["trained"] == pytest.approx(71 / 72)
    good, bad = found["measures"]["inv, matched"], found["measures"]["inv, fixed"]
    assert good["models"] == 70
    assert min(good["tau"][0], good["seed alone"][0], good["equally many examples"][0], -good["test loss"][0]) > 0.95
    assert good["p, Holm"] < 0.01
    assert abs(bad["tau"][0]) < 0.3
    assert good["reliability"] > 0.9 > 0.3 > abs(bad["reliability"])
    assert found["reliability of the test error"]["tau"] == pytest.approx(1.0)
