"""The statistics of the study of models that fit equally well, by their definitions."""

import itertools
import math

import numpy as np
import pytest

from validation import matched
from validation.study import statistics


def test_adjusted_p_values_reject_what_holms_procedure_rejects():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = list(rng.random(6) ** 3)
        adjusted = matched.holm(p)
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
    found = matched.within(x, y, groups)
    assert found.value == pytest.approx(right)
    assert found.low <= found.value <= found.high
    assert matched.within(x, y, [0] * 24).value == pytest.approx(statistics.tau_a(x, y))


def test_the_matched_radius_is_where_the_loss_has_risen():
    for scale, power in ((0.3, 1.0), (50.0, 2.0), (3.0, 1.7)):
        rho = matched.matched_radius(lambda rho, scale=scale, power=power: scale * rho**power)
        assert scale * rho**power == pytest.approx(matched.INCREASE, rel=1e-9)
    assert math.isnan(matched.matched_radius(lambda rho: 1e9 * rho))  # reached before the first radius
    assert math.isnan(matched.matched_radius(lambda rho: 0.0))  # never


def test_every_setting_has_all_seeds_and_no_test_image_is_a_training_image():
    every = matched.recipes(False)
    assert len(every) == len(set(every)) == 72
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    seen = set()
    for recipe in every:
        x, y, x_test, y_test = matched.images(recipe)
        assert len(x) == len(y) == recipe.train_size
        assert len(x_test) == len(y_test) == 1197
        seen |= {row.numpy().tobytes() for row in x}
    assert len(seen) <= 600
    assert not seen & {row.numpy().tobytes() for row in x_test}


def test_a_summary_finds_what_was_put_in():
    rng = np.random.default_rng(0)
    models = []
    for recipe in matched.recipes(False):
        error = rng.random()
        noise = {name: [[error + 0.01 * rng.random(), error], [rng.random(), rng.random()]] for name in matched.NAMES}
        models.append({
            **vars(recipe), "train error": 0.0, "train loss": 0.005 * rng.random(), "test error": error,
            "test loss": -error, "gap": error, "steps": 1, "norm": 1.0,
            "measures": {name: {"matched": of[0], "fixed": of[1]} for name, of in noise.items()},
        })  # fmt: skip
    models[0]["train loss"] = 1.0
    table = matched.summarised(models)
    assert table["trained"] == pytest.approx(71 / 72)
    good, bad = table["measures"]["inv, matched"], table["measures"]["inv, fixed"]
    assert min(good["tau"][0], good["seed alone"][0], good["equal training images"][0], -good["test loss"][0]) > 0.95
    assert good["p, Holm"] < 0.01
    assert abs(bad["tau"][0]) < 0.3
    assert good["reliability"] > 0.9 > 0.3 > abs(bad["reliability"])
