r"""Does sharpness predict the test error of models that fit equally well? With an analysis fixed before the run.

Models: 72 vision transformers on scikit-learn's digits, a full factorial of step size, batch size, weight decay and
number of training images, three seeds each. Every model is trained until its training loss is at most 0.01, so that
neither the training loss nor an unfinished training can explain a difference. All are tested on the same 1,197 images.

Measures: adaptive, inv and mix, each in the worst case and on average. *Matched*: −ρ for the ρ at which the measure
increases the loss by 0.1, so that units of ρ do not matter; *fixed*: the increase at ρ = 0.03. Both on two disjoint
batches of 64 training images each; the measure of a model is the mean over the batches.

Registered: the headline tests are the six matched measures, τ with the test error, two-sided permutation tests, Holm's
correction over the six, level 5%. All else is description: fixed ρ; τ with the test loss; partial τ given the training
loss; τ among pairs of models that differ in their seed alone, and among those with equally many training images; τ
between the two batches (reliability); and τ of the hyper-parameters with the test error.

    python -m validation matched [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.networks.adapters import torch_value_and_grad
from validation import experiment
from validation.study import digits, statistics
from validation.study.measures import MEASURES, Effort, Measured, Model
from validation.study.training import network_of, outcomes

CHOICES = {
    "step size": (1e-3, 3e-3),
    "batch size": (16, 64),
    "weight decay": (1e-4, 1.0),
    "training images": (150, 300, 600),
    "seed": (0, 1, 2),
}
TARGET, MAX_STEPS, EVERY = 0.01, 20_000, 50
BATCH, INCREASE, FIXED = 64, 0.1, 0.03
NAMES = ("adaptive", "inv", "mix", "adaptive, average", "inv, average", "mix, average")
START = 4e-3
"""The radius from which on ρ is doubled until the increase is reached."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    step_size: float
    batch_size: int
    weight_decay: float
    train_size: int
    seed: int


def recipes(quick: bool) -> list[Recipe]:
    """All of them; quickly, two seeds of the first settings."""
    every = [Recipe(*chosen) for chosen in itertools.product(*CHOICES.values())]
    return (
        [one for one in every if one.weight_decay < 1.0 and one.train_size < 600 and one.seed < 2] if quick else every
    )


def images(recipe: Recipe) -> tuple[Any, Any, Any, Any]:
    """Training images and labels, of a pool of 600, and the images outside this pool."""
    import torch

    x, y = map(torch.from_numpy, digits.everything())
    order = np.random.default_rng(0).permutation(len(x))
    pool, rest = order[: max(CHOICES["training images"])], order[max(CHOICES["training images"]) :]
    chosen = np.random.default_rng([recipe.seed, recipe.train_size]).permutation(pool)[: recipe.train_size]
    return x[chosen], y[chosen], x[rest], y[rest]


def trained(recipe: Recipe, x: Any, y: Any) -> tuple[Any, int]:
    """A vision transformer, trained by AdamW until its loss on all training images is at most the target; the steps."""
    import torch

    torch.manual_seed(recipe.seed)
    module = digits.vision_transformer()
    optimizer = torch.optim.AdamW(module.parameters(), recipe.step_size, weight_decay=recipe.weight_decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    entropy = torch.nn.functional.cross_entropy
    for step in range(1, MAX_STEPS + 1):
        part = torch.randint(len(x), (recipe.batch_size,), generator=generator)
        optimizer.zero_grad()
        entropy(module(x[part]), y[part]).backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                if entropy(module(x), y) <= TARGET:
                    return module, step
    return module, MAX_STEPS


def matched_radius(increase: Callable[[float], float]) -> float:
    """The ρ at which the increase is reached: ρ is doubled until it is exceeded, then interpolated in logarithms.

    Examples
    --------
    >>> round(matched_radius(lambda rho: 2.0 * rho**2), 6) == round((INCREASE / 2.0) ** 0.5, 6)
    True
    """
    rho, before = START, math.nan
    while rho < 1e3:
        value = increase(rho)
        if value >= INCREASE:
            if rho == START:
                return math.nan
            return rho * 2.0 ** (-math.log(value / INCREASE) / math.log(value / before)) if before > 0.0 else rho
        before, rho = value, 2.0 * rho
    return math.nan


def one_model(*chosen: Any) -> dict[str, Any]:
    """Train a model and measure it."""
    import torch

    torch.set_num_threads(1)
    recipe = Recipe(*chosen)
    x, y, x_test, y_test = images(recipe)
    module, steps = trained(recipe, x, y)
    module = module.double().eval()
    network = network_of(module, "clip", digits.HEADS)

    def loss(call: Any, pictures: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(call(pictures), labels)

    evaluate = torch_value_and_grad(module, network, loss, dtype=np.float64)
    order = np.random.default_rng([recipe.seed, 5]).permutation(len(x))
    batches = [(x[part].double(), y[part]) for part in (order[:BATCH], order[BATCH : 2 * BATCH])]
    with torch.no_grad():
        told = outcomes([("train", module(x.double()), y), ("test", module(x_test.double()), y_test)])
    model = Model(dict(network.blocks), lambda blocks, batch: evaluate(blocks, *batch), batches, {})
    norm = float(np.sqrt(sum(float((p.detach() ** 2).sum()) for p in module.parameters())))
    return {**vars(recipe), **told, "steps": steps, "norm": norm, "measures": measured(model)}


def measured(model: Model) -> dict[str, dict[str, list[float]]]:
    """Of every measure, a number for each batch: matched, and at the fixed ρ."""
    found: dict[str, dict[str, list[float]]] = {name: {"matched": [], "fixed": []} for name in NAMES}
    for name, batch in itertools.product(NAMES, model.batches):
        alone = Measured(replace(model, batches=[batch]), Effort(n_samples=20))

        def increase(rho: float, name: str = name, alone: Measured = alone) -> float:
            return float(alone.rows(MEASURES[name], [rho])[0]["value"])

        found[name]["matched"].append(-matched_radius(increase))
        found[name]["fixed"].append(increase(FIXED))
    return found


def holm(p: list[float]) -> list[float]:
    """Holm's adjusted p-values.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, found, largest = np.argsort(p), [0.0] * len(p), 0.0
    for k, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - k) * p[i]))
        found[i] = largest
    return found


def within(x: Any, y: Any, groups: list[Any], seed: int = 0) -> statistics.Estimate:
    """τ among pairs of models of one group, with a bootstrap over groups.

    Examples
    --------
    >>> within([1, 2, 3, 4], [1, 2, 4, 3], ["a", "a", "b", "b"]).value
    0.0
    """
    products = statistics.signs(x) * statistics.signs(y)
    members = [np.flatnonzero([one == group for one in groups]) for group in dict.fromkeys(groups)]
    sums = np.array([products[np.ix_(of, of)].sum() for of in members])
    pairs = np.array([len(of) * (len(of) - 1.0) for of in members])
    drawn = np.random.default_rng(seed).integers(len(members), size=(statistics.RESAMPLES, len(members)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / pairs[drawn].sum(axis=1), (0.025, 0.975))
    return statistics.Estimate(float(sums.sum() / pairs.sum()), float(low), float(high))


def summarised(models: list[dict[str, Any]]) -> dict[str, Any]:
    """The headline tests, and what describes them."""
    fitted = [one for one in models if one["train loss"] <= TARGET]
    columns = {name: np.array([one[name] for one in fitted]) for name in fitted[0] if name != "measures"}
    error, test_loss = columns["test error"], columns["test loss"]
    settings = [(one["step_size"], one["batch_size"], one["weight_decay"], one["train_size"]) for one in fitted]
    sizes = [one["train_size"] for one in fitted]
    table: dict[str, Any] = {}
    for kind, name in itertools.product(("matched", "fixed"), NAMES):
        batches = np.array([one["measures"][name][kind] for one in fitted])
        value = batches.mean(axis=1)
        there = np.isfinite(value)
        one = statistics.correlation(value[there], error[there])
        table[f"{name}, {kind}"] = {
            "tau": list(one.tau_a),
            "p": one.p,
            "models": one.models,
            "test loss": list(statistics.correlation(value[there], test_loss[there]).tau_a),
            "given the training loss": statistics.partial_tau(value[there], error[there], columns["train loss"][there]),
            "seed alone": list(_within(value, error, settings, there)),
            "equal training images": list(_within(value, error, sizes, there)),
            "reliability": statistics.tau_a(*batches[there].T),
        }
    headline = [f"{name}, matched" for name in NAMES]
    for name, p in zip(headline, holm([table[name]["p"] for name in headline]), strict=True):
        table[name]["p, Holm"] = p
    others = ("step_size", "batch_size", "weight_decay", "train_size", "steps", "norm", "train loss")
    return {
        "models": len(models),
        "trained": len(fitted) / len(models),
        "test error": [float(np.min(error)), float(np.median(error)), float(np.max(error))],
        "training loss": [float(np.min(columns["train loss"])), float(np.max(columns["train loss"]))],
        "measures": table,
        "others": {name: statistics.tau_a(columns[name], error) for name in others},
    }


def _within(value: Any, outcome: Any, groups: list[Any], there: Any) -> statistics.Estimate:
    return within(value[there], outcome[there], [group for group, ok in zip(groups, there, strict=True) if ok])


def plot(table: dict[str, Any], place: Path) -> None:
    """τ of every measure, over all models and among models that differ in their seed alone."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, 3, figsize=(12.0, 3.8), sharey=True)
    names = list(table["measures"])[::-1]
    for axis, column, title in zip(
        axes, ("tau", "equal training images", "seed alone"),
        ("all models", "equally many training images", "models that differ in the seed alone"), strict=True,
    ):  # fmt: skip
        for k, name in enumerate(names):
            value, low, high = table["measures"][name][column]
            colour = experiment.COLOURS[name.split(",")[0]]
            axis.plot([low, high], [k, k], color=colour, lw=2)
            axis.plot(value, k, "o", color=colour, ms=5)
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.axvline(0.0, color="0.7", lw=0.8)
        axis.set(xlim=(-1.05, 1.05), xlabel="τ with the test error", title=title)
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    settings = {"quick": options.quick, "target": TARGET, "increase": INCREASE, "ρ": FIXED, "batch": BATCH}
    results = experiment.Results(options.out / "matched.json", settings)
    tasks = {" ".join(f"{value:g}" for value in astuple(one)): astuple(one) for one in recipes(options.quick)}
    models = results.measure_all(one_model, tasks, options.workers, "models")
    results.values["summary"] = table = summarised(models)
    results.save()
    plot(table, options.out / "matched.png")
    experiment.console.print(f"{table['models']} models, {table['trained']:.0%} trained; others: {table['others']}")
    for name, row in table["measures"].items():
        adjusted = f", p after Holm {row['p, Holm']:.3f}" if "p, Holm" in row else ""
        experiment.console.print(
            f"{name}: τ {statistics.Estimate(*row['tau'])}{adjusted}; seed alone "
            f"{statistics.Estimate(*row['seed alone'])}; between the batches {row['reliability']:+.2f}"
        )


if __name__ == "__main__":
    main()
