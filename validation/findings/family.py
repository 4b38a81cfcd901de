r"""Between inv and mix: sharpness along the family S⁻¹ #ₛ T, of an attention layer and of diagonal networks.

The metrics have different units: σˢ of the singular values of G Hᵀ. So the radius is a share of the point's own length
in each metric. On the left, the sharpness of the query and key weights of a trained attention layer, and of the same
layer at another point of its orbit. On the right, sets of 50 diagonal networks: Kendall's τ between the certified
sharpness and the test loss, for one radius in a set, that share of the median network's length. At zero residual the
sharpness is ρ²λ_max(2 D XᵀX D) to second order, D = diag(|β|¹⁻ˢ): beside it, the τ of that eigenvalue alone.

    python -m validation family [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from refgeo import diagonal
from validation import experiment
from validation.findings.study import statistics
from validation.findings.study.diagonal_sets import Setting, network_set

SHARES = (0.01, 0.03, 0.1)
BLOCK = "layer0.query_key"


def attention(steps: int, points: int) -> dict[str, Any]:
    """Sharpness along s for every share, here and along the orbit."""
    model = rg.networks.AttentionClassifier(width=8, heads=2)
    rng = np.random.default_rng(0)
    params = model.init(0)
    tokens = rng.integers(0, model.vocabulary, (128, model.length))
    batch = tokens, (tokens[:, 0] + tokens[:, -1]) % model.classes
    losses = []
    for _ in range(steps):
        loss, grads = model.value_and_grad(params, batch)
        losses.append(loss)
        params = {name: block - grads[name] * 0.5 for name, block in params.items()}
    moved = {**params, BLOCK: params[BLOCK].transform(rng.standard_normal((2, 4, 4)))}
    found: dict[str, Any] = {"s": np.linspace(0, 1, points).tolist(), "loss": [losses[0], losses[-1]], "sharpness": {}}
    for share in SHARES:
        rows = []
        for s in found["s"]:
            metric = rg.ProductMetric({BLOCK: rg.InterpolatedMetric(s)})
            values = []
            for point in (params, moved):
                space = metric.at(point)
                rho = share * float(space.norm(space.point))
                result = rg.worst_case_sharpness(
                    lambda p: model.value_and_grad(p, batch), point, metric, rho, n_iter=40, n_restarts=2
                )
                values.append(result.value)
            rows.append(values)
        found["sharpness"][str(share)] = rows
    return found


def diagonal_set(seed: int, points: int, share: float) -> dict[str, Any]:
    """τ along s for one set."""
    trained = network_set(Setting(), seed)
    u, v, X, y, test = trained.u, trained.v, trained.X, trained.y, trained.test_loss
    taus, curvatures = [], []
    for s in np.linspace(0, 1, points):
        metric = rg.InterpolatedMetric(float(s))
        rho = share * float(np.median(diagonal.norm(metric, u, v, u, v)))
        found = diagonal.worst_case(metric, u, v, X, y, rho, n_starts=0, tight=False)
        taus.append(statistics.tau_a(found.lower, test))
        D = np.abs(u * v) ** (1.0 - s)
        largest = np.linalg.eigvalsh(D[:, :, None] * (X.T @ X) * D[:, None, :])[:, -1]
        if s < 1.0:  # there it is the same for all networks
            curvatures.append(statistics.tau_a(largest, test))
    return {"trained": trained.trained, "tau": taus, "tau of the eigenvalue": curvatures}


def plot(found: dict[str, Any], sets: list[dict[str, Any]], path: Path) -> None:
    """Sharpness beside inv's, and τ of every set with the median."""
    plt = experiment.style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    s = found["s"]
    for (share, rows), color in zip(found["sharpness"].items(), ("#8fb8de", "#3f7cb5", "#1f4e79"), strict=True):
        here, there = np.array(rows).T
        left.plot(s, here / here[0], color=color, linewidth=2, label=f"ρ = {share} ‖θ‖")
        left.plot(s, there / here[0], "o", color=color, markersize=3.5)
    left.set_title("attention layer; dots: elsewhere on its orbit", fontsize=10)
    left.set_ylabel("sharpness beside that of inv")
    left.legend(fontsize=9)
    taus = np.array([one["tau"] for one in sets])
    for row in taus:
        right.plot(s, row, color="#bbbbbb", linewidth=1)
    right.plot(s, np.median(taus, axis=0), color="#1f4e79", linewidth=2, label=f"median of {len(sets)} sets")
    eigenvalue = np.median([one["tau of the eigenvalue"] for one in sets], axis=0)
    right.plot(s[:-1], eigenvalue, ":", color="#c0392b", linewidth=2, label="the same of λ_max(D XᵀX D)")
    right.set_title("diagonal networks: sharpness and test loss", fontsize=10)
    right.set_ylabel("Kendall's τ")
    right.legend(fontsize=9)
    for ax in (left, right):
        ax.set_xlabel("s:  0 inv, 1 mix")
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    settings = {"points": 3 if options.quick else 11, "sets": 2 if options.quick else 20, "share": 0.03, "steps": 300}
    results = experiment.Results(options.out / "family.json", settings)
    found = results.measure("attention", lambda: attention(settings["steps"], settings["points"]))
    tasks = {f"set {seed}": (seed, settings["points"], settings["share"]) for seed in range(settings["sets"])}
    sets = results.measure_all(diagonal_set, tasks, options.workers, "sets of diagonal networks")
    plot(found, sets, options.out / "family.png")
    apart = max(abs(b / a - 1.0) for rows in found["sharpness"].values() for a, b in rows)
    median = np.median([one["tau"] for one in sets], axis=0)
    alone = np.median([one["tau of the eigenvalue"] for one in sets], axis=0)
    ends = {share: rows[-1][0] / rows[0][0] for share, rows in found["sharpness"].items()}
    results.values["summary"] = {
        "s": found["s"],
        "tau": [list(statistics.median(taus)) for taus in np.transpose([one["tau"] for one in sets])],
        "tau of the eigenvalue": alone.tolist(),
        "trained": float(np.mean([one["trained"] for one in sets])),
        "mix beside inv": ends,
    }
    results.save()
    experiment.console.print(
        f"attention layer (loss {found['loss'][0]:.3f} to {found['loss'][1]:.3f}): sharpness of mix beside inv "
        + ", ".join(f"{value:.2f} at {share} ‖θ‖" for share, value in ends.items())
        + f"; along an orbit at most {apart:.0e} apart; diagonal networks: median τ {median[0]:.2f} for inv, "
        f"{median[len(median) // 2]:.2f} half-way, {median[-1]:.2f} for mix, and but for mix that of the eigenvalue "
        f"alone to {np.max(np.abs(alone - median[:-1])):.2f}; picture and numbers in {options.out}"
    )


if __name__ == "__main__":
    main()
