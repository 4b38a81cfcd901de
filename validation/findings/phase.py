r"""When is τ negative on diagonal networks? A phase diagram, and a prediction without free parameters.

Gradient flow from (u, v) = (α, 0) keeps u² − v² = α². At zero residual it ends at the β that minimises a potential
which is ‖β‖₁ for α → 0 and ‖β‖₂² for α → ∞ (Woodworth et al. 2020). So all networks of a set lie on a path from the ℓ1
interpolator to the least-norm interpolator X⁺y:

    β = ½α² sinh(2Xᵀλ),  where λ solves Xβ = y                                                     (a convex problem)

Sharpness is nearly 2ρ²λ_max(D XᵀX D) with D = diag(|β|), and bounded by it (`bounds`). Hypothesis: sharpness falls
along the path, and the error ‖β − β*‖², where β* is the true β, changes in one direction. Then τ has the sign of
‖β_ℓ1 − β*‖ − ‖X⁺y − β*‖: it is negative where sparse recovery is better than the least norm. Theory gives the boundary
(`limits`): the error of both ends for d → ∞.

Measured on two grids: n/d against the share of zeros in β* without noise, and noise against the share of zeros at
n = d/2. Each cell has twenty sets of data; each set has one network for each of 51 values of α, and certified sharpness
for inv at ρ = 0.1. Cells whose median τ is not of the predicted sign are measured again with 201 values of α.

    python -m validation phase [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special

from refgeo import diagonal
from validation import experiment
from validation.findings.study import statistics
from validation.findings.study.diagonal_sets import DIMENSION, RHO, Setting, draw_set, top_eigenvalues

ALPHAS = (1e-4, 10.0)
"""The smallest and the largest start: near both ends of the path."""
FORMER = (0.01, 0.3)
"""Starts that are a part of the path."""
NETWORKS, FINER = 51, 201
ZEROS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.15, 0.0)
POINTS = (20, 40, 60, 80, 100, 120, 140, 160, 180)
NOISE = (0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def path(X: Any, y: Any, alphas: Any) -> Any:
    """The end of gradient flow from (α, 0) for each α, by Newton's method for the dual problem, from large α to small.

    The dual problem minimises ¼α²Σ cosh(2Xᵀλ) − yᵀλ. Between two values of α, λ is scaled such that the largest
    coordinate of β stays where it is; a step changes no coordinate of 2Xᵀλ by more than 2, the range in which the
    quadratic model of cosh holds. So values of α that follow each other should differ by a factor of ten at most.
    """
    result = np.zeros((len(alphas), X.shape[1]))
    dual, beta = np.zeros(len(X)), np.zeros(X.shape[1])
    for k in np.argsort(alphas)[::-1]:
        square = alphas[k] ** 2
        if dual.any():
            dual *= 0.5 * np.arcsinh(2.0 * np.abs(beta).max() / square) / np.abs(dual @ X).max()
        for _ in range(1000):
            beta = 0.5 * square * np.sinh(2.0 * dual @ X)
            residual = X @ beta - y
            if np.linalg.norm(residual) <= 1e-12 * np.linalg.norm(y):
                break
            hessian = (X * np.sqrt(square**2 + 4.0 * beta**2)) @ X.T
            step = np.linalg.solve(hessian, residual)
            dual = dual - step / max(1.0, np.abs(step @ X).max())
        else:
            raise ArithmeticError(f"Newton's method has not converged for α = {alphas[k]:g}")
        result[k] = beta
    return result


def weights(beta: Any, alphas: Any) -> tuple[Any, Any]:
    """Return the weights u and v with u ⊙ v = β and u² − v² = α²."""
    square = np.asarray(alphas)[:, None] ** 2
    u = np.sqrt(0.5 * (square + np.hypot(square, 2.0 * beta)))
    return u, beta / u


def bounds(top: Any, rho: float) -> tuple[Any, Any]:
    r"""Bounds of the sharpness for inv at zero residual, from λ_max(D XᵀX D).

    Let B = diag(β), with signs; B XᵀX B has the eigenvalues of D XᵀX D. Along a geodesic of length ρ, β_i becomes
    β_i exp(s_i) with ‖s‖ ≤ m = √2ρ, so S = max ‖XB(exp(s) − 1)‖². As |exp(x) − 1| ≤ (eᵐ − 1)|x|/m for |x| ≤ m,
    S ≤ (eᵐ − 1)²λ_max. As |exp(x) − 1 − x| ≤ (eᵐ − 1 − m)x²/m², the s of length m along the first right singular vector
    of XB gives √S ≥ (m − (eᵐ − 1 − m))√λ_max. Both are 2ρ²λ_max(1 + O(ρ)).
    """
    m = np.sqrt(2.0) * rho
    return max(2.0 * m - np.expm1(m), 0.0) ** 2 * top, np.expm1(m) ** 2 * top


def sparsest(X: Any, y: Any) -> Any:
    """Return the interpolator of least ℓ1 norm, by linear programming."""
    d = X.shape[1]
    result = scipy.optimize.linprog(np.ones(2 * d), A_eq=np.hstack([X, -X]), b_eq=y, bounds=(0.0, None))
    return result.x[:d] - result.x[d:]


def limits(points: float, zeros: float, noise: float) -> tuple[float, float]:
    """‖β − β*‖²/‖β*‖² of the ℓ1 and of the least-norm interpolator for d → ∞, n/d = `points`, Gaussian X and β*.

    Least norm: 1 − n/d, and noise² (n/d)/(1 − n/d) from the mean of tr (XXᵀ)⁻¹. ℓ1: the fixed point of approximate
    message passing (Donoho, Maleki and Montanari 2009) for the LASSO with vanishing penalty (Bayati and Montanari
    2012): soft thresholding at θ of β* + N(0, τ²), where τ² = σ² + error/(n/d), and n of d coordinates are above θ.
    """
    share = 1.0 - zeros
    variance = noise**2 * share / points  # that of the noise in y/√n
    square = variance + share / points
    for _ in range(3000):
        before = square
        square = variance + _threshold_error(points, share, np.sqrt(square)) / points
        if square < 1e-12 or abs(square - before) < 1e-10 * before:
            break
    return (square - variance) * points / share, 1.0 - points + noise**2 * points / (1.0 - points)


def _threshold_error(points: float, share: float, tau: float) -> float:
    """Return the mean squared error of soft thresholding, at the θ that leaves a share `points` of the coordinates."""
    spread = np.hypot(1.0, tau)  # of β* + N(0, τ²) where β* is not zero

    def tail(x: float) -> float:
        return float(scipy.special.ndtr(-x))

    def excess(theta: float) -> float:
        return 2.0 * (share * tail(theta / spread) + (1.0 - share) * tail(theta / tau)) - points

    theta = scipy.optimize.brentq(excess, 0.0, 40.0 * spread)
    c, t, zero = 1.0 / spread**2, theta / spread, theta / tau
    density, density_at_zero = (np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi) for x in (t, zero))
    second = t * density + tail(t)  # E N² 1(N > t)
    target = 2.0 * ((1.0 - c) ** 2 * second - 2.0 * (1.0 - c) * t * density + t * t * tail(t)) + c * c * (
        1.0 - 2.0 * second
    )
    error = spread**2 * target + tau**2 * c  # that of the mean of β* given the sum, and the variance of β* given it
    return share * error + (1.0 - share) * 2.0 * tau**2 * ((1.0 + zero**2) * tail(zero) - zero * density_at_zero)


def one_set(seed: int, n: int, zeros: float, noise: float, networks: int = NETWORKS) -> dict[str, Any]:
    """τ of one set, how sharpness and error change along the path, and the errors of both ends."""
    X, y, truth = draw_set(Setting(zeros=zeros, n=n, noise=noise), np.random.default_rng([seed, n, DIMENSION]))
    alphas = np.geomspace(*ALPHAS, networks)
    beta = path(X, y, alphas)
    certified = diagonal.worst_case("inv", *weights(beta, alphas), X, y, RHO, tight=False)
    error, norm = np.sum((beta - truth) ** 2, axis=-1), np.linalg.norm(beta, axis=-1)
    large = alphas >= FORMER[0]
    former = large & (alphas <= FORMER[1])
    proved = certified.lower[:, None] > certified.upper
    top = top_eigenvalues(X, beta)
    return {
        "tau": statistics.tau_a(certified.lower, error),
        "tau, former starts": statistics.tau_a(certified.lower[former], error[former]),
        "tau, α from 0.01 on": statistics.tau_a(certified.lower[large], error[large]),
        "tau of the norm": statistics.tau_a(norm, error),
        "norm along the path": statistics.tau_a(norm, alphas),
        "sharpness along the path": statistics.tau_a(certified.lower, alphas),
        "error along the path": statistics.tau_a(error, alphas),
        "share of networks before the least error": float(np.argmin(error) / networks),
        "largest rise of λ_max": float(np.max(top[1:] / top[:-1] - 1.0)),
        "pairs proved": float(2.0 * proved.sum() / (networks * (networks - 1))),
        "ends": [
            float(np.sum((end - truth) ** 2) / np.sum(truth**2)) for end in (sparsest(X, y), np.linalg.pinv(X) @ y)
        ],
    }


def cells(quick: bool) -> dict[str, dict[str, tuple[int, float, float]]]:
    """n, share of zeros, and noise of each cell of both grids."""
    zeros = (0.9, 0.6, 0.3) if quick else ZEROS
    points, noises = ((40, 100, 160), (0.1, 0.5)) if quick else (POINTS, NOISE)
    return {
        "n/d": {f"n {n}, zeros {z:g}": (n, z, 0.0) for n in points for z in zeros},
        "noise": {f"noise {noise:g}, zeros {z:g}": (DIMENSION // 2, z, noise) for noise in noises for z in zeros},
    }


def summarise(sets: list[dict[str, Any]], at: tuple[float, float]) -> dict[str, Any]:
    """Return medians over the sets of a cell, and how many of them have the sign that their own two ends predict."""
    target = [item for item in sets if "tau" in item]
    if not target:
        return {"at": list(at), "sets": 0}
    ends = np.array([item["ends"] for item in target])
    difference, tau = ends[:, 0] - ends[:, 1], np.array([item["tau"] for item in target])
    return {
        "at": list(at),
        "sets": len(target),
        **{name: list(statistics.median([item[name] for item in target])) for name in target[0] if name != "ends"},
        "ends": np.median(ends, axis=0).tolist(),
        "difference of the ends": float(np.median(difference)),
        "sets negative": int(np.sum(tau < 0.0)),
        "sets in which sharpness rises": int(sum(item["sharpness along the path"] > 0.0 for item in target)),
        "sets as predicted": int(np.sum(np.sign(tau) == np.sign(difference))),
    }


def count_predicted(sets: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return how many sets have a τ, and meet a condition, and how many of these are as predicted."""
    of = {name: np.array([item[name] for item in sets if "tau" in item]) for name in sets[0]}
    difference, sharpness = of["ends"][:, 0] - of["ends"][:, 1], of["sharpness along the path"]
    one_way = np.abs(of["error along the path"]) > 0.95
    right = np.sign(of["tau"]) == np.sign(difference)
    parts = {
        "all": np.full(len(right), True),
        "ends differ by more than 0.1": np.abs(difference) > 0.1,
        "ends differ by less": np.abs(difference) <= 0.1,
        "sharpness falls": sharpness < -0.99,
        "sharpness has τ > -0.9 with α": sharpness > -0.9,
        "sharpness rises": sharpness > 0.0,
        "error in one direction": one_way,
        "both assumptions": (sharpness < -0.99) & one_way,
    }
    return {name: [int(part.sum()), int(right[part].sum())] for name, part in parts.items()}


def over_all(sets: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often the prediction holds, its assumptions do, and other predictions do."""
    ends = np.array([item["ends"] for item in sets])
    predicted = np.sign(ends[:, 0] - ends[:, 1])
    negative = np.array([row["sets negative"] / row["sets"] for row in rows])
    theory = np.array([np.subtract(*row["ends, theory"]) < 0.0 for row in rows])

    def share(what: Any) -> float:
        return float(np.mean(what))

    def as_predicted_by_ends(name: str) -> float:
        return share(np.sign([item[name] for item in sets]) == predicted)

    return {
        "sets": count_predicted(sets),
        "as theory predicts": share(np.where(theory, negative, 1.0 - negative)),
        "the more frequent sign of each cell": share(np.maximum(negative, 1.0 - negative)),
        "the more frequent sign": max(share(negative), 1.0 - share(negative)),
        "tau of the former starts as predicted": as_predicted_by_ends("tau, former starts"),
        "tau of the norm as predicted": as_predicted_by_ends("tau of the norm"),
        "the norm always falls": share([item["norm along the path"] <= -1.0 for item in sets]),
        "largest rise of λ_max": max(item["largest rise of λ_max"] for item in sets),
        "pairs proved": float(np.median([item["pairs proved"] for item in sets])),
    }


def as_predicted(row: dict[str, Any]) -> bool:
    """Return whether the median τ of a cell has the sign of the median difference between the errors of the ends."""
    return bool(np.sign(row["tau"][0]) == np.sign(row["difference of the ends"]))


def measure_cells(
    results: experiment.Results, function: Any, chosen: dict[str, tuple[Any, ...]], at: Any, workers: int, what: str
) -> dict[str, Any]:
    """Return the summary of every cell, each with as many sets as the settings of `results` say."""
    seeds = range(results.settings["seeds"])
    tasks = {f"{name} | {seed}": (seed, *cell) for name, cell in chosen.items() for seed in seeds}
    sets = iter(results.measure_all(function, tasks, workers, what))
    return {name: summarise([next(sets) for _ in seeds], at(*cell)) for name, cell in chosen.items()}


def diagram(axis: Any, table: dict[str, Any]) -> Any:
    """The median τ of each cell as a colour, crosses where the prediction fails, and the predicted boundaries."""
    rows = [row for row in table.values() if row["sets"]]
    across, up = (sorted({row["at"][i] for row in table.values()}) for i in (0, 1))
    tau, difference, theory = np.full((3, len(up), len(across)), np.nan)
    for row in rows:
        i, k = across.index(row["at"][0]), up.index(row["at"][1])
        tau[k, i], difference[k, i] = row["tau"][0], row["difference of the ends"]
        theory[k, i] = np.subtract(*row.get("ends, theory", (np.nan, np.nan)))
        if not as_predicted(row):
            axis.plot(i, k, "x", color="k", ms=6)
    image = axis.imshow(tau, origin="lower", cmap="RdBu_r", vmin=-1.0, vmax=1.0, aspect="auto")
    axis.contour(difference, levels=[0.0], colors="k", linewidths=1.5)
    axis.plot([], [], "k-", label="equal errors of the two ends")
    if np.isfinite(theory).any():
        axis.contour(theory, levels=[0.0], colors="k", linewidths=1.5, linestyles="--")
        axis.plot([], [], "k--", label="the same, theory")
    axis.set_xticks(range(len(across)), [f"{x:g}" for x in across])
    axis.set_yticks(range(len(up)), [f"{y:g}" for y in up])
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return image


def against_ends(axis: Any, tables: dict[str, dict[str, Any]]) -> None:
    """τ with its interval against the difference between the errors of the two ends, a dot for each cell."""
    for label, table in tables.items():
        rows = [row for row in table.values() if row["sets"]]
        tau = np.array([row["tau"] for row in rows])
        axis.errorbar(
            [row["difference of the ends"] for row in rows], tau[:, 0], np.abs(tau[:, 1:] - tau[:, :1]).T,
            fmt="o", ms=3, lw=0.6, label=label,
        )  # fmt: skip
    axis.axhline(0.0, color="0.7", lw=0.8)
    axis.axvline(0.0, color="0.7", lw=0.8)
    axis.set(ylabel="median τ", ylim=(-1.05, 1.05))
    axis.legend(fontsize=7)


def plot(table: dict[str, dict[str, Any]], place: Path) -> None:
    """τ on both grids with the two boundaries, and τ against the difference of the ends."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, 3, figsize=(13.0, 4.2))
    for axis, grid, label in zip(
        axes, ("n/d", "noise"), ("n/d, without noise", "noise / signal, n/d = ½"), strict=False
    ):
        image = diagram(axis, table[grid])
        axis.set(xlabel=label, ylabel="share of zeros in the true β", title="median τ")
        figure.colorbar(image, ax=axis)
    against_ends(axes[2], {"left": table["n/d"], "middle": table["noise"]})
    axes[2].set(xlabel="error of ℓ1 − error of least norm, / ‖true β‖²", xlim=(-1.0, 1.0), title="every cell")
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def describe(grid: str, rows: dict[str, Any]) -> str:
    """Describe how often the prediction holds."""
    cells = {name: row for name, row in rows.items() if row["sets"]}
    fails = [name for name, row in cells.items() if not as_predicted(row)]
    return (
        f"{grid}: the two ends predict the sign of τ in {sum(row['sets as predicted'] for row in cells.values())} of "
        f"{sum(row['sets'] for row in cells.values())} sets, and that of the median τ in {len(cells) - len(fails)} of "
        f"{len(cells)} cells; not in: {'; '.join(fails) or 'none'}"
    )


def measure_grid(
    results: experiment.Results, grid: str, quick: bool, workers: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure the cells of a grid, and on finer paths those whose median τ does not have the predicted sign."""

    def at(n: int, zeros: float, noise: float, networks: int) -> tuple[float, float]:
        return (n / DIMENSION if grid == "n/d" else noise), zeros

    def of(chosen: list[tuple[str, tuple[int, float, float]]], networks: int) -> dict[str, Any]:
        named = {f"{name}, {networks} networks": (*cell, networks) for name, cell in chosen}
        return measure_cells(results, one_set, named, at, workers, f"{grid} and zeros, sets of {networks} networks")

    chosen = list(cells(quick)[grid].items())
    rows = of(chosen, NETWORKS)
    for row in rows.values():
        x, zeros = row["at"]
        row["ends, theory"] = list(map(float, limits(x, zeros, 0.0) if grid == "n/d" else limits(0.5, zeros, x)))
    wrong = [cell for cell, row in zip(chosen, rows.values(), strict=True) if not as_predicted(row)]
    return rows, of(wrong, FINER)


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    seeds = 2 if options.quick else 20
    settings = {"quick": options.quick, "ρ": RHO, "seeds": seeds, "α": ALPHAS, "networks": NETWORKS, "finer": FINER}
    results = experiment.Results(options.out / "phase.json", settings)
    table: dict[str, dict[str, Any]] = {}
    for grid in cells(options.quick):
        table[grid], table[f"{grid}, finer paths"] = measure_grid(results, grid, options.quick, options.workers)
    rows = {name: row for grid in cells(options.quick) for name, row in table[grid].items()}
    sets = [results.values[f"{name} | {seed}"] for name in rows for seed in range(seeds)]
    results.values["summary"] = table | {"all sets": over_all(sets, list(rows.values()))}
    results.save()
    plot(table, options.out / "phase.png")
    for grid, part in table.items():
        experiment.console.print(describe(grid, part))


if __name__ == "__main__":
    main()
