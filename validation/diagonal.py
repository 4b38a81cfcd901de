r"""Figure 3: sharpness of diagonal networks against their test loss, and a map of what the answer depends on.

The paper trains 50 networks ‖X(u ⊙ v) − y‖², d = 200, d > n, on a ground truth with 90% zeros, to a training loss of
1e-5, and finds Kendall's τ between sharpness and test loss to be −0.68 (adaptive), −0.83 (inv) and −0.86 (mix). It says
neither how many data points there are, nor where training starts, nor its step sizes, nor ρ. Here X is Gaussian, y has
no noise, the test loss is that of new Gaussian data, ‖β − β_true‖², and each network of a set draws

    α, the size of its start, and its step size, log-uniformly from a range;
    its start: "gaussian" u, v ~ N(0, α²); "zero" u = α, v = 0; "balanced" |u| = |v| = α with random signs.

The reference is n = 100, gaussian, α from 0.01 to 0.3, steps of 0.01 to 0.05, where adaptive sharpness has the paper's
τ. The map varies all of it, over seeds.
Sharpness values are certified (`refgeo.diagonal.worst_case`); τ is that of the values that are reached, and the share
of pairs of networks whose order the bounds prove is given beside it. Two more columns take the paper's printed formulas
at their word: (26) and (35), which hold for XᵀX = I, with the least-norm solution for β*. Auto-PGD runs with default
settings, that is with second-order geodesics.

    python -m validation diagonal [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import bootstrap, kendalltau

import refgeo as rg
from refgeo import diagonal
from validation import experiment

PAPER = {"adaptive": -0.68, "inv": -0.83, "mix": -0.86}
PRINTED = {"inv": "printed (26)", "mix": "printed (35)"}
MEASURES = PAPER | {printed: PAPER[name] for name, printed in PRINTED.items()}
"""All that τ is taken of, with the paper's number."""
DIMENSION, NETWORKS, SPARSITY, TARGET = 200, 50, 0.9, 1e-5
FEWEST = 10
"""Trained networks below which there is no τ."""
FEWEST_SETS = 5
"""Sets below which a median has no interval."""


class Setting(NamedTuple):
    """What the paper does not fix."""

    n: int
    start: str
    size: tuple[float, float]
    step: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"n {self.n}, {self.start} {self.size[0]:g} to {self.size[1]:g}, steps {self.step[0]:g} to {self.step[1]:g}"
        )


REFERENCE = Setting(100, "gaussian", (0.01, 0.3), (0.01, 0.05))
MAP = [
    Setting(*chosen)
    for chosen in itertools.product(
        (50, 100, 150), ("gaussian", "zero", "balanced"), ((0.01, 0.3), (0.1, 1.0)), ((0.01, 0.05), (0.05, 0.4))
    )
]


def trained_networks(setting: Setting, seed: int, max_steps: int) -> tuple[diagonal.Trained, Any, Any, Any]:
    """The networks of a setting with their data and the truth."""
    rng = np.random.default_rng([seed, setting.n])
    truth = np.zeros(DIMENSION)
    support = rng.permutation(DIMENSION)[: round(DIMENSION * (1 - SPARSITY))]
    truth[support] = rng.standard_normal(len(support))
    X = rng.standard_normal((setting.n, DIMENSION))
    size, step = (np.exp(rng.uniform(*np.log(bounds), NETWORKS)) for bounds in (setting.size, setting.step))
    shape = (NETWORKS, DIMENSION)
    if setting.start == "gaussian":
        u, v = size[:, None] * rng.standard_normal((2, *shape))
    else:
        u = size[:, None] * np.ones(shape)
        v = np.zeros(shape) if setting.start == "zero" else u * rng.choice([-1.0, 1.0], shape)
    y = X @ truth
    return diagonal.train(X, y, u, v, step, target=TARGET, max_steps=max_steps), X, y, truth


def decided(found: diagonal.Certified) -> list[float]:
    """The share of pairs whose order the bounds prove, for every radius."""
    shares = []
    for lower, upper in zip(found.lower, found.upper, strict=True):
        apart = upper[:, None] < lower
        shares.append(float(2 * np.count_nonzero(apart) / (len(lower) * (len(lower) - 1))))
    return shares


def cell(setting: Setting, seed: int, radii: Sequence[float], max_steps: int) -> dict[str, Any]:
    """One set of networks: τ of everything for every radius."""
    setting = Setting(*setting)
    trained, X, y, truth = trained_networks(setting, seed, max_steps)
    ok = trained.converged
    counts = {"converged": int(ok.sum()), "diverged": int(trained.diverged.sum())}
    if ok.sum() < FEWEST:
        return counts
    u, v = trained.u[ok], trained.v[ok]
    test = np.sum((u * v - truth) ** 2, axis=-1)
    rho = np.array(radii)[:, None]

    def tau(values: Any) -> list[float | None]:
        found = [float(kendalltau(row, test).statistic) for row in values]
        return [value if np.isfinite(value) else None for value in found]

    result: dict[str, Any] = {**counts, "test loss": [float(test.min()), float(test.max())], "tau": {}, "bounds": {}}
    for name in PAPER:
        found = diagonal.worst_case(name, u, v, X, y, rho, n_starts=0, tight=False)
        result["tau"][name] = tau(found.lower)
        result["bounds"][name] = {
            "decided": decided(found),
            "widest gap": [float(gap) for gap in found.gap.max(axis=1)],
            "leaves domain": [float(share) for share in found.leaves_domain.mean(axis=1)],
        }
    result["tau"][PRINTED["inv"]] = tau(diagonal.paper_26(u, v, X, y, rho))
    result["tau"][PRINTED["mix"]] = tau(diagonal.paper_35(u, v, X, y, rho))
    return result


def portrait(rho: float, max_steps: int, n_iter: int) -> dict[str, Any]:
    """The reference's first set: certified values with their bounds, and Auto-PGD's."""
    trained, X, y, truth = trained_networks(REFERENCE, 0, max_steps)
    u, v = trained.u[trained.converged], trained.v[trained.converged]
    result: dict[str, Any] = {"rho": rho, "test loss": np.sum((u * v - truth) ** 2, axis=-1).tolist()}
    for name in PAPER:
        found = diagonal.worst_case(name, u, v, X, y, rho)
        searched = [auto_pgd(name, a, b, X, y, rho, n_iter) for a, b in zip(u, v, strict=True)]
        result[name] = {"lower": found.lower.tolist(), "upper": found.upper.tolist(), "Auto-PGD": searched}
    return result


def auto_pgd(name: str, u: Any, v: Any, X: Any, y: Any, rho: float, n_iter: int) -> float:
    """The general search's value for one network."""

    def evaluated(a: Any, b: Any) -> tuple[float, Any]:
        residual = X @ (a * b) - y
        return float(residual @ residual), 2.0 * X.T @ residual

    if name == "adaptive":

        def on_arrays(w: Any) -> tuple[float, Any]:
            value, e = evaluated(*w)
            return value, np.stack([e * w[1], e * w[0]])

        return rg.adaptive_sharpness(on_arrays, np.stack([u, v]), rho, n_iter=n_iter).value

    def on_pairs(pair: rg.Pair) -> tuple[float, Any]:
        a, b = pair.G[:, 0, 0], pair.H[:, 0, 0]
        value, e = evaluated(a, b)
        return value, rg.Pair((e * b)[:, None, None], (e * a)[:, None, None])

    metric = rg.InvariantMetric() if name == "inv" else rg.MixedMetric()
    point = rg.Pair(u[:, None, None], v[:, None, None])
    return rg.worst_case_sharpness(on_pairs, point, metric, rho, n_iter=n_iter).value


def median(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """The median of what is there with its 95% bootstrap interval, no wider than itself for fewer than five values."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    middle = float(np.median(there))
    if len(there) < FEWEST_SETS or np.ptp(there) == 0.0:
        return middle, middle, middle
    interval = bootstrap((there,), np.median, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return middle, float(interval.low), float(interval.high)


def summarised(settings: Sequence[Setting], cells: list[dict[str, Any]], radii: Sequence[float]) -> dict[str, Any]:
    """Medians over seeds, by setting, measure and radius."""
    by_setting = np.array(cells, dtype=object).reshape(len(settings), -1)
    table = {}
    for setting, row in zip(settings, by_setting, strict=True):
        with_tau = [found for found in row if "tau" in found]
        measures = {
            name: [median([found["tau"][name][i] for found in with_tau]) for i in range(len(radii))]
            for name in MEASURES
        }
        table[str(setting)] = {
            "sets": len(with_tau),
            "converged": float(np.mean([found["converged"] for found in row])),
            "diverged": float(np.mean([found["diverged"] for found in row])),
            "tau": measures,
            "decided": {
                name: [
                    float(np.median([found["bounds"][name]["decided"][i] for found in with_tau])) if with_tau else None
                    for i in range(len(radii))
                ]
                for name in PAPER
            },
        }
    return table


def reached(table: dict[str, Any], measure: str, value: float, radii: Sequence[float]) -> list[str]:
    """Where a median's interval, or its neighbourhood of 0.02, holds the paper's number."""
    places = []
    for setting, row in table.items():
        for radius, found in zip(radii, row["tau"][measure], strict=True):
            if found is not None and min(found[1], found[0] - 0.02) <= value <= max(found[2], found[0] + 0.02):
                places.append(f"{setting}, ρ {radius:g}")
    return places


def closest(table: dict[str, Any], measures: Sequence[str], radii: Sequence[float]) -> str:
    """Where three measures are nearest to the paper's three numbers, and how near."""
    places = []
    for (setting, row), (i, radius) in itertools.product(table.items(), enumerate(radii)):
        found = [row["tau"][measure][i] for measure in measures]
        if all(value is not None for value in found):
            distance = max(abs(value[0] - paper) for value, paper in zip(found, PAPER.values(), strict=True))
            values = ", ".join(f"{value[0]:.2f}" for value in found)
            places.append((distance, f"{values} ({setting}, ρ {radius:g})"))
    return min(places)[1]


def plot_portrait(found: dict[str, Any], path: Path) -> None:
    """Sharpness against test loss, with the bounds and Auto-PGD's values."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained")
    test = np.array(found["test loss"])
    for ax, (name, paper) in zip(axes, PAPER.items(), strict=True):
        lower, upper = np.array(found[name]["lower"]), np.array(found[name]["upper"])
        tau = kendalltau(lower, test).statistic
        colour = experiment.COLOURS[name]
        ax.vlines(test, lower, upper, color=colour, alpha=0.4, linewidth=2.0, label="up to the proved bound")
        ax.plot(test, lower, "o", color=colour, markersize=4, label="certified value")
        searched = np.array(found[name]["Auto-PGD"])
        if np.median(searched / lower) < 10:
            ax.plot(test, searched, "x", color="#222222", markersize=4, label="Auto-PGD")
        else:
            text = f"Auto-PGD: × {np.median(searched / lower):.0e}\n(second-order geodesics\npass the manifold's end)"
            ax.text(0.35, 0.03, text, transform=ax.transAxes, fontsize=8)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"{name}: τ = {tau:.2f} (paper {paper})")
        ax.set_xlabel("test loss")
    axes[0].set_ylabel(f"sharpness, ρ = {found['rho']:g}")
    axes[0].legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def plot_map(table: dict[str, Any], radii: Sequence[float], path: Path) -> None:
    """Median τ as colours: settings down, measures and radii across."""
    plt = experiment.style()
    figure, axes = plt.subplots(
        1, len(MEASURES), figsize=(13.0, 1.6 + 0.24 * len(table)), layout="constrained", sharey=True
    )
    for ax, (name, paper) in zip(axes, MEASURES.items(), strict=True):
        values = np.array([[np.nan if m is None else m[0] for m in row["tau"][name]] for row in table.values()])
        image = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        for i, k in np.ndindex(values.shape):
            if np.isfinite(values[i, k]):
                colour = "white" if abs(values[i, k]) > 0.6 else "black"
                ax.text(k, i, f"{values[i, k]:.2f}".replace("0.", "."), ha="center", va="center", size=6, color=colour)
        for i in np.flatnonzero(np.isnan(values).all(axis=1)):
            ax.text(0.5 * (len(radii) - 1), i, "did not train", ha="center", va="center", size=6, color="#888888")
        ax.set_title(f"{name}\npaper {paper}", fontsize=9)
        ax.set_xticks(range(len(radii)), [f"{radius:g}" for radius in radii], fontsize=7)
        ax.set_xlabel("ρ")
        ax.spines[:].set_visible(False)
    axes[0].set_yticks(range(len(table)), list(table), fontsize=7)
    figure.colorbar(image, ax=axes, label="median τ over seeds", shrink=0.6)
    figure.savefig(path)
    plt.close(figure)


def described(value: tuple[float, float, float] | None) -> str:
    """A median with its interval, if it has one."""
    if value is None:
        return "no set trained"
    return f"{value[0]:.2f}" + (f" [{value[1]:.2f}, {value[2]:.2f}]" if value[1] < value[2] else "")


def main() -> None:
    """Measure, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    radii = [1e-3, 1e-1, 1.0] if options.quick else [1e-3, 1e-2, 1e-1, 0.3, 1.0]
    seeds = 2 if options.quick else 20
    max_steps = 20_000
    chosen = [setting for setting in MAP if not options.quick or (setting.n == 100 and setting.size == (0.01, 0.3))]
    if options.quick:
        chosen = [setting for setting in chosen if setting.step == REFERENCE.step and setting.start != "balanced"]
    settings = {
        "networks": [NETWORKS, DIMENSION, SPARSITY, TARGET, FEWEST],
        "radii": radii,
        "seeds": seeds,
        "max_steps": max_steps,
        "map": [str(setting) for setting in chosen],
    }
    results = experiment.Results(options.out / "diagonal.json", settings)
    middle = radii[len(radii) // 2]
    tasks: dict[str, tuple[Any, ...]] = {
        f"{setting}, seed {seed}": (tuple(setting), seed, radii, max_steps)
        for setting in chosen
        for seed in range(seeds)
    }
    with experiment.console.status("the reference's first set, with tight bounds and Auto-PGD"):
        first = results.measure("portrait", lambda: portrait(middle, max_steps, 20))
    cells = results.measure_all(cell, tasks, options.workers, "sets of 50 networks")
    table = results.values["summary"] = summarised(chosen, cells, radii)
    results.save()
    plot_portrait(first, options.out / "figure3.png")
    plot_map(table, radii, options.out / "figure3_map.png")
    say(table, radii, first)
    experiment.console.print(f"pictures and numbers in {options.out}")


def say(table: dict[str, Any], radii: Sequence[float], first: dict[str, Any]) -> None:
    """The findings beside the paper's numbers."""
    say_line = experiment.console.print
    reference = table[str(REFERENCE)]
    where = radii.index(first["rho"])
    say_line(
        f"reference ({REFERENCE}), ρ = {first['rho']:g}, medians over {reference['sets']} sets "
        f"with {reference['converged']:.0f} of {NETWORKS} networks trained:"
    )
    for name, paper in PAPER.items():
        line = f"  {name}: τ = {described(reference['tau'][name][where])} (the paper: {paper})"
        if name in PRINTED:
            line += f"; with the formula as {PRINTED[name]}: {described(reference['tau'][PRINTED[name]][where])}"
        ratio = float(np.median(np.divide(first[name]["Auto-PGD"], first[name]["lower"])))
        say_line(line)
        say_line(
            f"    the bounds prove the order of {reference['decided'][name][where]:.0%} of the pairs; "
            f"Auto-PGD (second order) finds {ratio:.4g} times the certified value"
        )
    differences = [
        abs(a[0] - b[0])
        for row in table.values()
        for a, b in zip(row["tau"]["adaptive"], row["tau"]["inv"], strict=True)
        if a is not None and b is not None
    ]
    papers = ", ".join(map(str, PAPER.values()))
    say_line(f"nearest to the paper's {papers} at once: {closest(table, list(PAPER), radii)}")
    printed = ["adaptive", *PRINTED.values()]
    say_line(f"nearest with the printed formulas: {closest(table, printed, radii)}")
    say_line(f"adaptive and inv: medians differ by at most {max(differences):.2f} over all settings and radii")
    for measure, value in MEASURES.items():
        places = reached(table, measure, value, radii)
        total = sum(found is not None for row in table.values() for found in row["tau"][measure])
        say_line(
            f"{measure}: the paper's {value} is reached in {len(places)} of {total} places"
            + (f", such as {places[0]}" if places else "")
        )


if __name__ == "__main__":
    main()
