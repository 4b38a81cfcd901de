r"""What else ranks diagonal networks as their sharpness does, and what does the number of points do?

In a set that starts at (α, 0) only α and the step differ. A small α leads to sparse β and a large one to β of small
norm: the rich and the kernel regime (Woodworth et al. 2020). So everything that moves with α ranks the networks, and
sharpness among it. Sets differ in the truth's share of zeros and in the number n of
points. For each: τ with the test loss of certified sharpness (inv, ρ = 0.1), of its own leading coefficient
λ_max(D XᵀX D), of α, of ‖β‖₂, of ‖β‖₄/‖β‖₂ and of −ℓ1/ℓ2; and what is left of sharpness given ‖β‖₂, and the reverse.

    python -m validation regime [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refgeo import diagonal
from validation import experiment
from validation.sign import RHO, mediators
from validation.study import statistics
from validation.study.diagonal_sets import FEWEST, Setting, network_set

POINTS = (
    (0.9, 20),
    (0.8, 30),
    (0.8, 70),
    (0.7, 40),
    (0.6, 50),
    (0.6, 140),
    (0.9, 100),
    (0.7, 100),
    (0.5, 100),
    (0.0, 100),
)
"""Shares of zeros and numbers of points."""
NORM = "‖β‖₂"


def one_set(zeros: float, n: int, seed: int) -> dict[str, Any]:
    """τ of one set's numbers with its test loss."""
    found = network_set(Setting(zeros=zeros, n=n, start="zero"), seed)
    result: dict[str, Any] = {"trained": found.trained}
    if len(found.test_loss) < FEWEST:
        return result
    sharpness = diagonal.worst_case("inv", found.u, found.v, found.X, found.y, RHO, tight=False).lower
    norm, test = np.linalg.norm(found.beta, axis=-1), found.test_loss
    told = {"sharpness": sharpness, "α": found.alpha, NORM: norm, **mediators(found.X, found.beta)}
    return result | {
        "tau": {name: statistics.tau_a(values, test) for name, values in told.items()},
        "sharpness given the norm": statistics.partial_tau(sharpness, test, norm),
        "the norm given sharpness": statistics.partial_tau(norm, test, sharpness),
        "networks": {name: told[name].tolist() for name in ("sharpness", "α", NORM)} | {"test loss": test.tolist()},
    }


def summarised(sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over sets with intervals; the range of τ of sharpness, and how many sets are negative."""
    there = [one for one in sets if "tau" in one]
    tau = [one["tau"]["sharpness"] for one in there]
    left = ("sharpness given the norm", "the norm given sharpness")
    return {
        "sets": len(there),
        "trained": float(np.mean([one["trained"] for one in sets])),
        "tau": {name: list(statistics.median([one["tau"][name] for one in there])) for name in there[0]["tau"]},
        "range": [min(tau), max(tau)],
        "negative": int(np.sum(np.array(tau) < 0.0)),
        **{name: list(statistics.median([one[name] for one in there])) for name in left},
    }


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    seeds, chosen = (2, POINTS[:2]) if options.quick else (20, POINTS)
    results = experiment.Results(options.out / "regime.json", {"quick": options.quick, "ρ": RHO, "seeds": seeds})
    tasks = {f"zeros {z:g}, n {n} | {seed}": (z, n, seed) for z, n in chosen for seed in range(seeds)}
    sets = results.measure_all(one_set, tasks, options.workers, "sets of 50 networks")
    names = [f"zeros {z:g}, n {n}" for z, n in chosen]
    table = {name: summarised(sets[k * seeds : (k + 1) * seeds]) for k, name in enumerate(names)}
    results.values["summary"] = table
    results.save()
    for name, row in table.items():
        told = ", ".join(f"{what} {statistics.Estimate(*of)}" for what, of in row["tau"].items())
        experiment.console.print(f"{name}: {told}; negative in {row['negative']} of {row['sets']} sets")


if __name__ == "__main__":
    main()
