r"""What does the sign of τ depend on? The paper's open question, on diagonal networks, where sharpness is known.

At zero residual the loss is ‖X(β' − β)‖², and to second order in ρ

    S_inv ≈ S_adaptive ≈ 2ρ² λ_max(D_β XᵀX D_β),    D_β = diag(|β|),

because in the ball of radius ρ each coordinate of β = u ⊙ v moves by √2 |β_i| t_i with ‖t‖ ≤ ρ. It grows with the size
of β, and among β of one norm with its concentration. All networks of a set fit the same data. `validation.phase`
predicts the sign of τ for one kind of start.

Interventions: the truth's share of zeros, the start, n/d, the noise (data are drawn anew for each). α is drawn from
0.01 to 0.3, step sizes are 5% to 50% of the stability limit; another range of α can give another sign
(`validation.phase`). Every set of 50 networks is trained to a loss of 1e-5, its sharpness certified (inv, ρ = 0.1), and
ranked against ‖β − truth‖²; so are other numbers, and a partial τ says what is left of sharpness once one of them is
known. Given λ_max little can be left, since it is the leading coefficient of sharpness itself; `validation.regime` has
plainer ones.

    python -m validation sign [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from refgeo import diagonal
from validation import experiment
from validation.study import statistics
from validation.study.diagonal_sets import FEWEST, Setting, network_set

RHO = 0.1
ZEROS = (0.98, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.15, 0.0)
MEDIATORS = ("λ_max(D XᵀX D)", "‖β‖₄/‖β‖₂", "−ℓ1/ℓ2", "largest |β|")


def settings(quick: bool) -> dict[str, Setting]:
    """Every intervention by name; the first two vary the truth alone."""
    zeros = (0.9, 0.5, 0.0) if quick else ZEROS
    found = {
        f"zeros {z:g}, start {start}": Setting(zeros=z, start=start) for start in ("gaussian", "zero") for z in zeros
    }
    for z in (0.9, 0.3):
        for n in (100,) if quick else (40, 70, 140):
            found[f"n {n}, zeros {z:g}"] = Setting(zeros=z, n=n, start="zero")
        for noise in (0.3,) if quick else (0.1, 0.3, 1.0):
            found[f"noise {noise:g}, zeros {z:g}"] = Setting(zeros=z, noise=noise, start="zero")
    return found


def top_eigenvalues(X: Any, beta: Any) -> Any:
    """λ_max(D XᵀX D) of each β."""
    return np.array([np.linalg.norm(X * np.abs(b), 2) ** 2 for b in beta])


def mediators(X: Any, beta: Any) -> dict[str, Any]:
    """Numbers of β that sharpness may follow: larger where β is larger, or more concentrated."""
    two = np.linalg.norm(beta, axis=-1)
    return {
        "λ_max(D XᵀX D)": top_eigenvalues(X, beta),
        "‖β‖₄/‖β‖₂": np.sum(beta**4, axis=-1) ** 0.25 / two,
        "−ℓ1/ℓ2": -np.sum(np.abs(beta), axis=-1) / two,
        "largest |β|": np.max(np.abs(beta), axis=-1),
    }


def one_set(setting: tuple[Any, ...], seed: int) -> dict[str, Any]:
    """τ of one set's sharpness and mediators with its test loss, and what is left given each mediator."""
    found = network_set(Setting(*setting), seed)
    result: dict[str, Any] = {"trained": found.trained, "networks": len(found.test_loss)}
    if len(found.test_loss) < FEWEST:
        return result
    certified = diagonal.worst_case("inv", found.u, found.v, found.X, found.y, RHO, tight=False)
    sharpness, test = certified.lower, found.test_loss
    measured = mediators(found.X, found.beta)
    second_order = 2.0 * RHO**2 * measured["λ_max(D XᵀX D)"]
    result |= {
        "tau": statistics.tau_a(sharpness, test),
        "gap": float(np.max(certified.gap)),
        "second order / sharpness": float(np.median(second_order / sharpness)),
        "mediators": {
            name: {
                "with test loss": statistics.tau_a(values, test),
                "with sharpness": statistics.tau_a(values, sharpness),
                "left": statistics.partial_tau(sharpness, test, values),
            }
            for name, values in measured.items()
        },
    }
    return result


def summarised(sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the sets of one setting, with intervals."""
    there = [one for one in sets if "tau" in one]
    if not there:
        return {"sets": 0, "trained": float(np.mean([one["trained"] for one in sets]))}
    return {
        "sets": len(there),
        "trained": float(np.mean([one["trained"] for one in sets])),
        "tau": list(statistics.median([one["tau"] for one in there])),
        "negative": float(np.mean([one["tau"] < 0 for one in there])),
        "second order / sharpness": float(np.median([one["second order / sharpness"] for one in there])),
        "mediators": {
            name: {
                what: _listed([one["mediators"][name][what] for one in there])
                for what in ("with test loss", "with sharpness", "left")
            }
            for name in MEDIATORS
        },
    }


def _listed(values: list[float]) -> list[float] | None:
    found = statistics.median(values)
    return list(found) if np.isfinite(found.value) else None


def plot(table: dict[str, Any], place: Path) -> None:
    """τ of sharpness and of mediators against the truth's share of zeros; and what other interventions do."""
    plt = experiment.style()
    others = {name: row for name, row in table.items() if not name.startswith("zeros") and row["sets"]}
    panels = 3 if others else 2
    figure, (left, middle, *rest) = plt.subplots(1, panels, figsize=(4.2 * panels, 3.8))
    colours = {"gaussian": experiment.COLOURS["inv"], "zero": experiment.COLOURS["adaptive"]}
    for start, colour in colours.items():
        rows = {
            float(name.split()[1].rstrip(",")): row for name, row in table.items() if name.endswith(f"start {start}")
        }
        rows = {zeros: row for zeros, row in rows.items() if row["sets"]}
        zeros = sorted(rows)
        tau = np.array([rows[z]["tau"] for z in zeros])
        left.plot(
            zeros, tau[:, 0], "o-", ms=4, color=colour, label="u, v ~ N(0, α²)" if start == "gaussian" else "(α, 0)"
        )
        left.fill_between(zeros, tau[:, 1], tau[:, 2], color=colour, alpha=0.2, lw=0)
        if start == "zero":
            for style, name in zip(("-", "--", ":", "-."), MEDIATORS, strict=True):
                middle.plot(
                    zeros,
                    [rows[z]["mediators"][name]["with test loss"][0] for z in zeros],
                    style,
                    color="0.3",
                    label=name,
                )
            middle.plot(zeros, tau[:, 0], "o", ms=4, color=colour, label="sharpness")
    for axis, title in ((left, "sharpness (inv, ρ = 0.1, certified)"), (middle, "what it measures, start (α, 0)")):
        axis.axhline(0.0, color="0.7", lw=0.8)
        axis.set(
            xlabel="the truth's share of zeros",
            ylabel="Kendall's τ with the test loss",
            title=title,
            ylim=(-1.05, 1.05),
        )
        axis.legend(fontsize=7)
    for axis in rest:
        for k, (name, row) in enumerate(others.items()):
            value, low, high = row["tau"]
            colour = experiment.COLOURS["mix" if name.endswith("0.9") else "adaptive"]
            axis.plot([low, high], [k, k], color=colour, lw=2)
            axis.plot(value, k, "o", color=colour, ms=5)
        axis.set_yticks(range(len(others)), others, fontsize=7)
        axis.axvline(0.0, color="0.7", lw=0.8)
        axis.set(xlim=(-1.05, 1.05), xlabel="Kendall's τ with the test loss", title="other interventions")
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    seeds = 2 if options.quick else 20
    chosen = settings(options.quick)
    results = experiment.Results(options.out / "sign.json", {"quick": options.quick, "ρ": RHO, "seeds": seeds})
    table: dict[str, Any] = {}
    for what in ("the truth", "other interventions"):  # the first has its picture before the second is done
        part = {name: one for name, one in chosen.items() if name.startswith("zeros") == (what == "the truth")}
        tasks = {
            f"{name} | {seed}": (tuple(vars(setting).values()), seed)
            for name, setting in part.items()
            for seed in range(seeds)
        }
        sets = results.measure_all(one_set, tasks, options.workers, f"sets of 50 networks, {what}")
        table |= {name: summarised(sets[k * seeds : (k + 1) * seeds]) for k, name in enumerate(part)}
        results.values["summary"] = table
        results.save()
        plot(table, options.out / "sign.png")
    for name, row in table.items():
        if row["sets"]:
            experiment.console.print(
                f"{name}: τ = {statistics.Estimate(*row['tau'])}, negative in {row['negative']:.0%} of {row['sets']} "
                f"sets, {row['trained']:.0%} of the networks trained; given each mediator {_left(row)}"
            )


def _left(row: dict[str, Any]) -> dict[str, str]:
    """What is left of τ given each mediator; of one that always orders like sharpness that cannot be said."""
    found = {name: row["mediators"][name]["left"] for name in MEDIATORS}
    return {name: "orders alike" if left is None else f"{left[0]:+.2f}" for name, left in found.items()}


if __name__ == "__main__":
    main()
