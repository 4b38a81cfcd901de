r"""Figure 3: sharpness of diagonal networks against their test loss, and a map of what the answer depends on.

The paper trains 50 networks ‖X(u ⊙ v) − y‖², d = 200, d > n, on a ground truth with 90% zeros, to a training loss of
1e-5, and finds Kendall's τ between sharpness and test loss to be −0.68 (adaptive), −0.83 (inv) and −0.86 (mix). It says
neither how many data points there are, nor where training starts, nor its step sizes, nor ρ. The reference is that of
`validation.findings.study.diagonal_sets`: n = 100, u, v ~ N(0, α²), α from 0.01 to 0.3, steps of 5 to 50% of their
limit; there adaptive sharpness has the paper's τ. The map varies n, the start, its size and the steps, over seeds; not
to n nearer to d, where training to that loss takes very long.

Sharpness values are certified (`refgeo.diagonal.worst_case`); τ is that of the values that are reached, and the share
of pairs of networks whose order the bounds prove is given beside it. Two more columns take the paper's printed formulas
at their word: (26) and (35), which hold for XᵀX = I, with the least-norm solution for β*. The picture shows the median
set of the reference by adaptive sharpness, with what Auto-PGD finds there from one start with second-order geodesics,
as the paper's algorithm does.

    python -m validation figure3 [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from refgeo import diagonal
from refgeo.diagonal.trust_region import maximise_diagonal_quadratic
from validation import experiment
from validation.findings.study import statistics
from validation.findings.study.diagonal_sets import FEWEST, NETWORKS, Setting, network_set

PAPER = {"adaptive": -0.68, "inv": -0.83, "mix": -0.86}
PRINTED = {"inv": "printed (26)", "mix": "printed (35)"}
MEASURES = PAPER | {printed: PAPER[name] for name, printed in PRINTED.items()}
"""All that τ is taken of, with the paper's number."""
REFERENCE = Setting()
MAP = [
    Setting(n=n, start=start, size=size, share=share)
    for n, start, size, share in itertools.product(
        (50, 100), ("gaussian", "zero"), ((0.01, 0.3), (0.1, 1.0)), ((0.05, 0.5), (0.5, 0.9))
    )
]


def name_of(setting: Setting) -> str:
    """Return what the map calls a setting."""
    (small, large), (low, high) = setting.size, setting.share
    return f"n {setting.n}, {setting.start} {small:g} to {large:g}, steps {low:.0%} to {high:.0%}"


def share_decided(found: diagonal.Certified) -> list[float]:
    """Return the share of pairs whose order the bounds prove, for every radius."""
    shares = []
    for lower, upper in zip(found.lower, found.upper, strict=True):
        apart = upper[:, None] < lower
        shares.append(float(2 * np.count_nonzero(apart) / (len(lower) * (len(lower) - 1))))
    return shares


def formula_26(u: Any, v: Any, X: Any, y: Any, rho: Any) -> Any:
    """Return (26), max of 4bᵀ(β₀ ⊙ (β₀ − β*)) + 4bᵀ diag(β₀(2β₀ − β*)) b over ‖b‖ ≤ ρ; β* has the least norm."""
    beta, least = u * v, np.linalg.pinv(X) @ y
    return maximise_diagonal_quadratic(4.0 * beta * (beta - least), 8.0 * beta * (2.0 * beta - least), rho).lower


def formula_35(u: Any, v: Any, X: Any, y: Any, rho: Any) -> Any:
    """Return (35), ρ‖β₀ − β*‖."""
    return rho * np.linalg.norm(u * v - np.linalg.pinv(X) @ y, axis=-1)


def cell(setting: dict[str, Any], seed: int, radii: Sequence[float]) -> dict[str, Any]:
    """One set of networks: τ of everything for every radius."""
    actual = network_set(Setting(**setting), seed)
    result: dict[str, Any] = {"trained": actual.trained}
    if len(actual.test_loss) < FEWEST:
        return result
    network = actual.u, actual.v, actual.X, actual.y
    rho = np.array(radii)[:, None]

    def tau(values: Any) -> list[float]:
        return [statistics.tau_a(row, actual.test_loss) for row in values]

    result |= {"test loss": [float(actual.test_loss.min()), float(actual.test_loss.max())], "tau": {}, "bounds": {}}
    for name in PAPER:
        certified = diagonal.worst_case(name, *network, rho, n_starts=0, tight=False)
        result["tau"][name] = tau(certified.lower)
        result["bounds"][name] = {
            "decided": share_decided(certified),
            "widest gap": [float(gap) for gap in certified.gap.max(axis=1)],
            "leaves domain": [float(share) for share in certified.leaves_domain.mean(axis=1)],
        }
    result["tau"][PRINTED["inv"]] = tau(formula_26(*network, rho))
    result["tau"][PRINTED["mix"]] = tau(formula_35(*network, rho))
    return result


def portrait(seed: int, rho: float, n_iter: int) -> dict[str, Any]:
    """One set of the reference: certified values with their bounds, and Auto-PGD's."""
    trained = network_set(REFERENCE, seed)
    result: dict[str, Any] = {"seed": seed, "rho": rho, "test loss": trained.test_loss.tolist()}
    for name in PAPER:
        actual = diagonal.worst_case(name, trained.u, trained.v, trained.X, trained.y, rho)
        searched = [
            auto_pgd(name, u, v, trained.X, trained.y, rho, n_iter) for u, v in zip(trained.u, trained.v, strict=True)
        ]
        result[name] = {"lower": actual.lower.tolist(), "upper": actual.upper.tolist(), "Auto-PGD": searched}
    return result


def auto_pgd(name: str, u: Any, v: Any, X: Any, y: Any, rho: float, n_iter: int) -> float:
    """Return the general search's value for one network."""

    def evaluate(a: Any, b: Any) -> tuple[float, Any]:
        residual = X @ (a * b) - y
        return float(residual @ residual), 2.0 * X.T @ residual

    if name == "adaptive":

        def on_arrays(w: Any) -> tuple[float, Any]:
            value, e = evaluate(*w)
            return value, np.stack([e * w[1], e * w[0]])

        return rg.adaptive_sharpness(on_arrays, np.stack([u, v]), rho, n_iter=n_iter, n_restarts=1).value

    def on_pairs(pair: rg.Pair) -> tuple[float, Any]:
        a, b = pair.G[:, 0, 0], pair.H[:, 0, 0]
        value, e = evaluate(a, b)
        return value, rg.Pair((e * b)[:, None, None], (e * a)[:, None, None])

    metric = rg.InvariantMetric() if name == "inv" else rg.MixedMetric()
    point = rg.Pair(u[:, None, None], v[:, None, None])
    return rg.worst_case_sharpness(on_pairs, point, metric, rho, n_iter=n_iter, n_restarts=1).value


def summarise(settings: Sequence[Setting], cells: list[dict[str, Any]], radii: Sequence[float]) -> dict[str, Any]:
    """Return medians over seeds, by setting, measure and radius."""
    by_setting = np.array(cells, dtype=object).reshape(len(settings), -1)
    table = {}
    for setting, row in zip(settings, by_setting, strict=True):
        sets = [result for result in row if "tau" in result]
        table[name_of(setting)] = {
            "sets": len(sets),
            "trained": float(np.mean([result["trained"] for result in row])),
            "tau": {
                name: [list(statistics.median([result["tau"][name][i] for result in sets])) for i in range(len(radii))]
                for name in MEASURES
                if sets
            },
            "decided": {
                name: [
                    float(np.median([result["bounds"][name]["decided"][i] for result in sets]))
                    for i in range(len(radii))
                ]
                for name in PAPER
                if sets
            },
        }
    return table


def median_set(cells: Sequence[dict[str, Any]], radius: int) -> int:
    """The set whose τ of adaptive sharpness is the (lower) median."""
    taus = {seed: result["tau"]["adaptive"][radius] for seed, result in enumerate(cells) if "tau" in result}
    return sorted(taus, key=lambda seed: taus[seed])[(len(taus) - 1) // 2]


def find_reached(table: dict[str, Any], measure: str, value: float, radii: Sequence[float]) -> list[str]:
    """Find where a median's interval, or its neighbourhood of 0.02, holds the paper's number."""
    places = []
    for setting, row in table.items():
        for radius, (middle, low, high) in zip(radii, row["tau"].get(measure, ()), strict=False):
            if min(low, middle - 0.02) <= value <= max(high, middle + 0.02):
                places.append(f"{setting}, ρ {radius:g}")
    return places


def closest(table: dict[str, Any], measures: Sequence[str], radii: Sequence[float]) -> str:
    """Return where three measures are nearest to the paper's three numbers, and how near."""
    places = []
    target = {setting: row for setting, row in table.items() if row["sets"]}
    for (setting, row), (i, radius) in itertools.product(target.items(), enumerate(radii)):
        result = [row["tau"][measure][i][0] for measure in measures]
        distance = max(abs(value - paper) for value, paper in zip(result, PAPER.values(), strict=True))
        places.append((distance, f"{', '.join(f'{value:+.2f}' for value in result)} ({setting}, ρ {radius:g})"))
    return min(places)[1]


def plot_portrait(found: dict[str, Any], path: Path) -> None:
    """Sharpness against test loss, with the bounds and Auto-PGD's values."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained")
    test = np.array(found["test loss"])
    for ax, (name, paper) in zip(axes, PAPER.items(), strict=True):
        lower, upper = np.array(found[name]["lower"]), np.array(found[name]["upper"])
        tau = statistics.tau_a(lower, test)
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
        ax.set_title(f"{name}: τ = {tau:.2f} (paper {paper})")
        ax.set_xlabel("test loss")
    axes[0].set_ylabel(f"sharpness, ρ = {found['rho']:g}, median set")
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
        nothing = [[np.nan] * 3] * len(radii)
        values = np.array([[tau[0] for tau in row["tau"].get(name, nothing)] for row in table.values()])
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


def main() -> None:
    """Measure, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    radii = [1e-3, 1e-1] if options.quick else [1e-3, 1e-2, 1e-1, 0.3, 1.0]
    seeds = 1 if options.quick else 20
    chosen = [
        setting for setting in MAP if not options.quick or (setting.n == 100 and setting.share == REFERENCE.share)
    ]
    settings = {"radii": radii, "seeds": seeds, "map": [asdict(setting) for setting in chosen]}
    results = experiment.Results(options.out / "diagonal.json", settings)
    middle = len(radii) // 2
    # the reference first: its picture does not wait for the map
    chosen.sort(key=lambda setting: setting != REFERENCE)
    cells: list[dict[str, Any]] = []
    for part in (chosen[:1], chosen[1:]):
        tasks: dict[str, tuple[Any, ...]] = {
            f"{name_of(setting)}, seed {seed}": (asdict(setting), seed, radii)
            for setting in part
            for seed in range(seeds)
        }
        cells += results.measure_all(cell, tasks, options.workers, f"sets of {NETWORKS} networks")
        shown = median_set(cells[:seeds], middle)
        with experiment.console.status("the median set, with tight bounds and Auto-PGD"):
            picture = results.measure("portrait", lambda shown=shown: portrait(shown, radii[middle], 20))
        plot_portrait(picture, options.out / "figure3.png")
    table = results.values["summary"] = summarise(chosen, cells, radii)
    results.save()
    plot_map(table, radii, options.out / "figure3_map.png")
    say(table, radii, picture)
    experiment.console.print(f"pictures and numbers in {options.out}")


def say(table: dict[str, Any], radii: Sequence[float], picture: dict[str, Any]) -> None:
    """The findings beside the paper's numbers."""
    say_line = experiment.console.print
    reference = table[name_of(REFERENCE)]
    where = radii.index(picture["rho"])
    say_line(
        f"reference ({name_of(REFERENCE)}), ρ = {picture['rho']:g}, medians over {reference['sets']} sets "
        f"with {reference['trained']:.0%} of the networks trained; the picture is of set {picture['seed']}:"
    )
    for name, paper in PAPER.items():
        line = f"  {name}: τ = {statistics.Estimate(*reference['tau'][name][where])} (the paper: {paper})"
        if name in PRINTED:
            printed = statistics.Estimate(*reference["tau"][PRINTED[name]][where])
            line += f"; with the formula as {PRINTED[name]}: {printed}"
        ratio = float(np.median(np.divide(picture[name]["Auto-PGD"], picture[name]["lower"])))
        say_line(line)
        say_line(
            f"    the bounds prove the order of {reference['decided'][name][where]:.0%} of the pairs; "
            f"Auto-PGD from one start{'' if name == 'adaptive' else ', with second-order geodesics,'} finds "
            f"{ratio:.4g} times the certified value{', as they pass the end of the manifold' if ratio > 10.0 else ''}"
        )
    differences = [
        abs(a[0] - b[0])
        for row in table.values()
        if row["sets"]
        for a, b in zip(row["tau"]["adaptive"], row["tau"]["inv"], strict=True)
    ]
    papers = ", ".join(map(str, PAPER.values()))
    say_line(f"nearest to the paper's {papers} at once: {closest(table, list(PAPER), radii)}")
    say_line(f"nearest with the printed formulas: {closest(table, ['adaptive', *PRINTED.values()], radii)}")
    say_line(f"adaptive and inv: medians differ by at most {max(differences):.2f} over all settings and radii")
    for measure, value in MEASURES.items():
        places = find_reached(table, measure, value, radii)
        total = sum(len(row["tau"].get(measure, ())) for row in table.values())
        say_line(
            f"{measure}: the paper's {value} is reached in {len(places)} of {total} places"
            + (f", such as {places[0]}" if places else "")
        )


if __name__ == "__main__":
    main()
