r"""How much of a τ is the search's fault? Certified values, our search, and the procedure that is published.

*Published*: the ℓ2 Auto-PGD of "A modern look at the relationship between sharpness and generalization"
(Andriushchenko et al. 2023), step by step as its ``sharpness.py`` has it (tml-epfl/sharpness-vs-generalization at
6d73be9), adaptive and without a random start, which is the default of its scripts:

* the step is η |w| ⊙ g/‖g‖: the gradient is multiplied by |w| and divided by its own length, not that of |w| ⊙ g;
* the projection onto ‖δ/|w|‖ ≤ ρ is the Euclidean one; a search for its multiplier ends at an absolute 1e-5;
* momentum is δ ← ¾ P(δ + step) + ¼ δ⁻, with no second projection;
* where the step is halved the weights go back to the best ones, and δ does not.

On diagonal networks the largest increase is certified, so shares and τ are known. On vision transformers trained on
digits the reference is the best that any of them finds, ours with restarts included.

    python -m validation fault [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from refgeo import diagonal
from refgeo.sharpness.adaptive import Arrays
from validation import experiment
from validation.study import statistics
from validation.study.diagonal_sets import Setting, network_set

TOLERANCE = 1e-5
MOST_BISECTIONS = 10_000
RADII = {"diagonal": (1e-4, 0.01, 0.1), "digits": (0.03, 0.1, 0.3)}
SEARCHES = ("ours", "published")


def projected(delta: Any, w: Any, rho: float) -> Any:
    """The published projection onto ‖δ/w‖ ≤ ρ; entries with w = 0 stay where they are, at 0."""
    c = np.divide(1.0, w, out=np.zeros_like(w), where=w != 0)
    length = float(np.linalg.norm(c * delta))
    if length <= rho:
        return delta
    found, multiplier, low, high, limit = delta, 0.1, 0.0, 10.0, 10.0
    for _ in range(MOST_BISECTIONS):  # there, without an end
        if abs(length - rho) <= TOLERANCE:
            break
        found = delta / (1.0 + 2.0 * multiplier * c**2)
        length = float(np.linalg.norm(c * found))
        if length > rho:
            multiplier, low = 0.5 * (multiplier + high), multiplier
        else:
            multiplier, high = 0.5 * (low + multiplier), multiplier
        if limit - high < 1e-2:
            limit, high = 2.0 * limit, 2.0 * high
    return found


def checkpoints(n_iter: int) -> list[int]:
    """The iterations after which the step is looked at."""
    shares, found = [0.0, 0.22], [0, math.ceil(0.22 * n_iter)]
    while found[-1] < n_iter and found[-1] != found[-2]:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
        found.append(math.ceil(shares[-1] * n_iter))
    return found[1:]


def published(value_and_grad: Any, w: Any, rho: float, n_iter: int = 20) -> tuple[float, float]:
    """The increase that it claims, and how far outside the ball its δ lies, in radii."""
    size, looked_at = np.abs(w), checkpoints(n_iter)
    loss, gradient = value_and_grad(w)
    here = best_weights = w
    delta = before = np.zeros_like(w)
    best, best_then, eta, eta_then, then, improved = loss, loss, 2.0 * rho, 2.0 * rho, 0, 0
    for i in range(n_iter):
        if i:
            gradient = value_and_grad(here)[1]
        step = eta / (float(np.linalg.norm(gradient)) + 1e-12) * gradient * size
        delta, before = 0.75 * projected(delta + step, size, rho) + 0.25 * before, delta
        here = w + delta
        value = value_and_grad(here)[0]
        if value > best:
            best, best_weights, improved = value, here, improved + 1
        if i in looked_at:
            stuck = eta == eta_then and best == best_then
            few = improved < 0.75 * (i - then)
            eta_then, best_then, then, improved = eta, best, i, 0
            if few or stuck:
                eta, here = 0.5 * eta, best_weights
    ratios = np.divide(best_weights - w, w, out=np.zeros_like(w), where=w != 0)
    return float(best - loss), float(np.linalg.norm(ratios)) / rho - 1.0


def on_diagonal_networks(seed: int, most: int) -> dict[str, Any]:
    """One set: τ of certified and searched values, and the share that each search finds."""
    found = network_set(Setting(), seed)
    X, y, test = found.X, found.y, found.test_loss[:most]
    result: dict[str, Any] = {}
    for rho in RADII["diagonal"]:
        certified = diagonal.worst_case("adaptive", found.u[:most], found.v[:most], X, y, rho, tight=False)
        values: dict[str, list[float]] = {name: [] for name in SEARCHES}
        outside = []
        for u, v in zip(found.u[:most], found.v[:most], strict=True):
            w = np.concatenate([u, v])

            def loss(w: Any) -> tuple[float, Any]:
                a, b = np.split(w, 2)
                residual = X @ (a * b) - y
                e = 2.0 * X.T @ residual
                return float(residual @ residual), np.concatenate([e * b, e * a])

            values["ours"].append(rg.adaptive_sharpness(loss, w, rho, n_restarts=1).value)
            value, beyond = published(loss, w, rho)
            values["published"].append(value)
            outside.append(beyond)
        result[f"{rho:g}"] = {
            "tau": {
                "certified": statistics.tau_a(certified.lower, test),
                **{name: statistics.tau_a(of, test) for name, of in values.items()},
            },
            "share": {name: (np.array(of) / certified.lower).tolist() for name, of in values.items()},
            "above the bound": {name: float(np.mean(np.array(of) > certified.upper)) for name, of in values.items()},
            "outside": float(np.max(outside)),
        }
    return result


def on_digits(unit: str, out: str) -> dict[str, Any]:
    """One transformer: shares of the best known."""
    from validation.study.digits import Population

    model = Population(batches=1).model(unit, Path(out) / "table1" / "weights" / "digits")
    arrays = Arrays(model.blocks)
    evaluate = arrays.value_and_grad(lambda blocks: model.value_and_grad(blocks, model.batches[0]))
    w = np.concatenate([array.ravel() for array in arrays.given.values()])
    ends = np.cumsum([array.size for array in arrays.given.values()])[:-1]

    def loss(flat: Any) -> tuple[float, Any]:
        parts = zip(arrays.given.items(), np.split(flat, ends), strict=True)
        value, gradients = evaluate({name: part.reshape(array.shape) for (name, array), part in parts})
        return value, np.concatenate([gradients[name].ravel() for name in arrays.given])

    result: dict[str, Any] = {}
    for rho in RADII["digits"]:
        values = {
            "ours": rg.adaptive_sharpness(loss, w, rho, n_restarts=1).value,
            "published": published(loss, w, rho)[0],
            "published, 100": published(loss, w, rho, 100)[0],
        }
        best = max(*values.values(), rg.adaptive_sharpness(loss, w, rho, n_iter=100, n_restarts=3).value)
        result[f"{rho:g}"] = {name: value / best for name, value in values.items()}
    return result


def plot(sets: list[dict[str, Any]], models: list[dict[str, Any]], place: Path) -> None:
    """Shares found, and τ of what was found."""
    plt = experiment.style()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12.0, 3.6))
    colours = {"ours": experiment.COLOURS["inv"], "published": experiment.COLOURS["adaptive"], "certified": "0.2"}
    for axis, key in ((left, "diagonal"), (right, "digits")):
        for k, rho in enumerate(RADII[key]):
            names = SEARCHES if key == "diagonal" else (*SEARCHES, "published, 100")
            for j, name in enumerate(names):
                if key == "diagonal":
                    values = [x for one in sets for x in one[f"{rho:g}"]["share"][name]]
                else:
                    values = [one[f"{rho:g}"][name] for one in models]
                box = axis.boxplot([values], positions=[k + 0.25 * (j - 0.5)], widths=0.2, whis=(0, 100))
                plt.setp(
                    [*box["boxes"], *box["medians"], *box["whiskers"], *box["caps"]],
                    color=colours[name.split(",")[0]],
                    ls="--" if "100" in name else "-",
                )
        axis.set_xticks(range(len(RADII[key])), [f"{rho:g}" for rho in RADII[key]])
        what = "the certified maximum" if key == "diagonal" else "the best known"
        axis.set(xlabel="ρ", ylabel=f"share of {what}", title=f"{key}: blue ours, red published")
    for k, name in enumerate(("certified", *SEARCHES)):
        taus = np.array([[one[f"{rho:g}"]["tau"][name] for rho in RADII["diagonal"]] for one in sets])
        middle.plot(
            np.arange(len(RADII["diagonal"])) + 0.12 * (k - 1),
            np.median(taus, axis=0),
            "o",
            color=colours[name],
            label=name,
        )
        middle.vlines(
            np.arange(len(RADII["diagonal"])) + 0.12 * (k - 1), taus.min(axis=0), taus.max(axis=0), color=colours[name]
        )
    middle.set_xticks(range(len(RADII["diagonal"])), [f"{rho:g}" for rho in RADII["diagonal"]])
    middle.set(xlabel="ρ", ylabel="Kendall's τ with the test loss", title="diagonal: median and range of sets")
    middle.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    seeds, most, models = (2, 10, 1) if options.quick else (10, 50, 12)
    results = experiment.Results(options.out / "fault.json", {"quick": options.quick, "seeds": seeds, "models": models})
    tasks: dict[str, Any] = {f"set {seed}": (seed, most) for seed in range(seeds)}
    sets = results.measure_all(on_diagonal_networks, tasks, options.workers, "sets of networks")
    units = {f"digits {k:03d}": (f"{k:03d}", str(options.out)) for k in range(models)}
    found = results.measure_all(on_digits, units, options.workers, "transformers")
    summary = results.values["summary"] = {
        "diagonal": {
            f"{rho:g}": {
                "tau": {
                    name: list(statistics.median([one[f"{rho:g}"]["tau"][name] for one in sets]))
                    for name in ("certified", *SEARCHES)
                },
                "moves": {
                    name: list(
                        statistics.median(
                            [abs(one[f"{rho:g}"]["tau"][name] - one[f"{rho:g}"]["tau"]["certified"]) for one in sets]
                        )
                    )
                    for name in SEARCHES
                },
                "share": {
                    name: np.quantile([x for one in sets for x in one[f"{rho:g}"]["share"][name]], (0, 0.5, 1)).tolist()
                    for name in SEARCHES
                },
                "above the bound": {
                    name: float(np.mean([one[f"{rho:g}"]["above the bound"][name] for one in sets]))
                    for name in SEARCHES
                },
                "outside": float(np.max([one[f"{rho:g}"]["outside"] for one in sets])),
            }
            for rho in RADII["diagonal"]
        },
        "digits": {
            f"{rho:g}": {
                name: np.quantile([one[f"{rho:g}"][name] for one in found], (0, 0.5, 1)).tolist()
                for name in (*SEARCHES, "published, 100")
            }
            for rho in RADII["digits"]
        },
    }
    results.save()
    plot(sets, found, options.out / "fault.png")
    for rho, row in summary["diagonal"].items():
        for name in SEARCHES:
            low, mid, high = row["share"][name]
            experiment.console.print(
                f"diagonal, ρ = {rho}, {name}: finds {low:.2f}, {mid:.3f}, {high:.2f} of the certified maximum (least, "
                f"median, most), above the bound in {row['above the bound'][name]:.0%}; τ moves by "
                f"{row['moves'][name][0]:.3f} from {row['tau']['certified'][0]:+.2f}"
            )
    for rho, by_name in summary["digits"].items():
        told = ", ".join(f"{name} {low:.2f}, {mid:.3f}, {high:.2f}" for name, (low, mid, high) in by_name.items())
        experiment.console.print(f"digits, ρ = {rho}, of the best known: {told}")


if __name__ == "__main__":
    main()
