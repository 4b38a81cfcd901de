r"""Does sharpness predict the test error of models that fit equally well? With an analysis fixed before the run.

The models are those of `validation.findings.study.fitted`: two populations that are trained until the training loss is
at most 0.01, so that the training losses differ little; they still rank the test error. Measures: adaptive, inv and
mix, each in the worst case and on average, *matched* (−ρ for the ρ at which the measure increases the loss by 0.1) and
*fixed* (the increase at one ρ). The measure of a model is the mean over two disjoint batches of training examples.

Registered: the headline tests are the six matched measures of both populations, τ with the test error, two-sided
permutation tests, Holm's correction over the twelve, level 5%. All else is description: fixed ρ; τ with the test loss;
partial τ given the training loss; τ among pairs of models with equally many training examples, and among those that
differ in the seed alone; τ between the two batches, and between the test errors on two halves of the test examples
(reliability); and τ of the hyper-parameters with the test error. Models that miss the target are left out.

Added after the first results: τ among pairs that differ in another number of their recipe alone (granulated, Jiang et
al. 2020: the mean over these numbers), the reliability of the test error among such pairs, and what the bootstrap draws
(`statistics.within`). Models with equally many examples and the same seed share their examples and batches; the
intervals treat them as independent, except those of pairs with the same examples.

Corrected later: nine sets of training examples are shared by all models of a population, so these tests are not
valid, and the page has intervals alone. The cleanest comparison, of models that have the same examples and differ in
the recipe alone, was added with it. An earlier version of this plan, from two hours before the run, had six tests, of
the digits alone, and a weight decay of 1 in the place of 0.2.

    python -m validation matched [--quick] [--population NAME ...] [--out DIR] [--workers N | --cluster ADDRESS]
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.support.files import write_text
from validation import experiment
from validation.findings.study import runner, statistics
from validation.findings.study.fitted import SOURCES, Recipe
from validation.findings.study.runner import Row, Task, load_table, of_population, run, save_table
from validation.paper.table1 import all_units

NAMES = ("adaptive", "inv", "mix", "adaptive, average", "inv, average", "mix, average")
KINDS = ("matched", "fixed")
FIXED = 0.03
OTHERS = ("step_size", "batch_size", "weight_decay", "train_size", "steps", "weight norm", "train loss")
RECIPE = tuple(field.name for field in fields(Recipe))
COLUMNS = {
    "tau": "all pairs",
    "same examples": "same examples",
    "train_size alone": "training examples alone",
}
"""Which pairs of models count, as the table and the picture call them."""


def tasks(population: str, quick: bool, out: Path) -> list[Task]:
    """A task for every model of a population."""
    options = {"source": population, "quick": quick}
    effort = SOURCES[population].effort
    effort = replace(effort, n_iter=3, n_samples=4) if quick else effort
    return all_units("validation.findings.study.fitted", options, NAMES, (FIXED,), effort, out)


def by_model(rows: list[Row]) -> list[Row]:
    """A row for each model, with a column for each measure and batch."""
    return runner.by_model(rows, lambda row: f"{row['measure']}, batch {row['batch']:g}")


def summarised(models: list[Row]) -> dict[str, Any]:
    """What the rows of `by_model`, of one population, say."""
    fitted = [one for one in models if one["trained"]]
    columns = {name: np.array([one[name] for one in fitted]) for name in fitted[0] if name not in ("unit", "model")}
    error, loss = columns["test error"], columns["train loss"]
    table = {f"{name}, {kind}": ranked(columns, f"{name}, {kind}") for kind in KINDS for name in NAMES}
    return {
        "models": len(models),
        "trained": len(fitted) / len(models),
        "test error": [float(f(error)) for f in (np.min, np.median, np.max)],
        "training loss": [float(f(loss)) for f in (np.min, np.max)],
        "reliability of the test error": {
            "tau": statistics.tau_a(columns["test error, even"], columns["test error, odd"]),
            **{name: one.value for name, one in alone(columns, columns["test error, even"], "test error, odd").items()},
        },
        "measures": table,
        "others": {
            name: [
                statistics.tau_a(columns[name], error),
                statistics.within(columns[name], error, columns["train_size"], "models").value,
            ]
            for name in OTHERS
        },
    }


def ranked(columns: dict[str, Any], measure: str) -> dict[str, Any]:
    """How one measure ranks the models for which it is a number."""
    batches = np.array([values for name, values in columns.items() if name.startswith(f"{measure}, batch")])
    there = np.isfinite(batches).all(axis=0)
    of = {name: values[there] for name, values in columns.items()}
    value, error = batches[:, there].mean(axis=0), of["test error"]
    one = statistics.correlation(value, error)
    by_number = alone(of, value)
    return {
        "tau": list(one.tau_a),
        "p": one.p,
        "models": one.models,
        "test loss": list(statistics.estimated_tau(value, of["test loss"])),
        "given the training loss": statistics.partial_tau(value, error, of["train loss"]),
        "same examples": list(statistics.within(value, error, sets_of(of), "groups")),
        "equally many examples": list(statistics.within(value, error, of["train_size"], "models")),
        **{name: list(one) for name, one in by_number.items()},
        "granulated": float(np.mean([one.value for one in by_number.values()])),
        "reliability": statistics.tau_a(*batches[:, there]),
    }


def sets_of(columns: dict[str, Any]) -> list[tuple[float, float]]:
    """Which training examples each model has."""
    return list(zip(columns["train_size"], columns["seed"], strict=True))


def alone(columns: dict[str, Any], value: Any, outcome: str = "test error") -> dict[str, statistics.Estimate]:
    """For each number of the recipe, τ among the pairs of models that differ in it alone."""
    found = {}
    for name in RECIPE:
        groups = list(zip(*(columns[other] for other in RECIPE if other != name), strict=True))
        found[f"{name} alone"] = statistics.within(value, columns[outcome], groups, "groups")
    return {name: one for name, one in found.items() if np.isfinite(one.value)}


def corrected(populations: dict[str, Any]) -> dict[str, Any]:
    """With Holm's correction over the headline tests of all populations."""
    headline = [found["measures"][f"{name}, matched"] for found in populations.values() for name in NAMES]
    for row, p in zip(headline, statistics.holm([row["p"] for row in headline]), strict=True):
        row["p, Holm"] = p
    return populations


def plot(populations: dict[str, Any], place: Path) -> None:
    """τ of every matched measure: for all pairs, with the same examples, and where their number alone differs."""
    plt = experiment.style()
    shape = (len(populations), len(COLUMNS))
    figure, axes = plt.subplots(*shape, figsize=(7.5, 2.2 * len(populations)), sharex=True, sharey=True, squeeze=False)
    for panels, (population, found) in zip(axes, populations.items(), strict=True):
        for axis, (column, title) in zip(panels, COLUMNS.items(), strict=True):
            for k, name in enumerate(NAMES[::-1]):
                row = found["measures"][f"{name}, matched"]
                if column in row:
                    value, low, high = row[column]
                    axis.plot([low, high], [k, k], color=experiment.COLOURS[name.split(",")[0]], lw=2)
                    axis.plot(value, k, "o", color=experiment.COLOURS[name.split(",")[0]], ms=5)
            axis.set_yticks(range(len(NAMES)), NAMES[::-1], fontsize=7)
            axis.axvline(0.0, color="0.7", lw=0.8)
            axis.set_title(title, fontsize=8)
            axis.set(xlim=(-1.05, 1.05), xlabel="τ" if panels is axes[-1] else "")
        panels[0].set_ylabel(population)
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def page_table(found: dict[str, Any]) -> str:
    """The matched measures of one population as the page has them."""
    rows = found["measures"]
    columns = {name: title for name, title in COLUMNS.items() if name in rows["inv, matched"]}

    def cells(row: dict[str, Any]) -> list[str]:
        reliability = statistics.signed(row["reliability"])
        return [*(str(statistics.Estimate(*row[name])) for name in columns), reliability]

    header = ["matched measure", *columns.values(), "batches"]
    return experiment.markdown(header, [[name, *cells(rows[f"{name}, matched"])] for name in NAMES])


def say(populations: dict[str, Any]) -> None:
    """The numbers, as text."""
    for population, found in populations.items():
        error = ", ".join(f"{x:.3f}" for x in found["test error"])
        others = ", ".join(f"{name} {tau:+.2f} ({equal:+.2f})" for name, (tau, equal) in found["others"].items())
        halves = found["reliability of the test error"]["tau"]
        experiment.console.print(
            f"{population}: {found['models']} models, {found['trained']:.0%} trained; test error {error}; between its "
            f"halves τ {halves:+.2f}; others, and among equally many examples: {others}"
        )
        experiment.console.print(page_table(found), soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    """Run it."""
    parser = runner.parser(__doc__)
    parser.add_argument("--population", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    options = parser.parse_args()
    out: Path = options.out / "matched"
    chosen = [task for name in options.population for task in tasks(name, options.quick, out)]
    save_table(run(chosen, runner.workers(options)), out / "matched.csv")
    rows = of_population(load_table(out / "matched.csv"))
    summary = corrected({name: summarised(by_model(part)) for name, part in rows.items()})
    settings = {task.population.name: {**task.settings, "unit": "each"} for task in chosen}
    document = {"settings": settings, "versions": experiment.versions(), "populations": summary}
    write_text(out / "matched.json", json.dumps(document, indent=1))
    plot(summary, out / "matched.png")
    say(summary)


if __name__ == "__main__":
    main()
