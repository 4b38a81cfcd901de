r"""How far are the students of `validation.teacher` from their teachers?

Beside their loss on new data stands that of predicting zero, for the same teacher and the same data.

    python -m validation teacher_baseline [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from validation import experiment, teacher


def of_zero(rank: int, seed: int) -> float:
    """The mean squared error of predicting zero on the data that `teacher.students` is tested on."""
    truth, _, x_new = teacher.drawn(rank, np.random.default_rng([seed, rank]))
    return float((teacher.layer(*truth, x_new) ** 2).sum(-1).mean())


def one_set(rank: int, seed: int) -> dict[str, float]:
    """The losses of students that fit their data, beside that of predicting zero."""
    _, (_, y), train, test = teacher.students(rank, seed)
    there = test[train <= teacher.TRAINED * float((y**2).sum(-1).mean())] / of_zero(rank, seed)
    return {
        "best": float(there.min()),
        "median": float(np.median(there)),
        "better than zero": float(np.mean(there < 1)),
    }


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    sets, ranks = (1, (1,)) if options.quick else (5, teacher.RANKS)
    results = experiment.Results(options.out / "teacher_baseline.json", {"quick": options.quick, "sets": sets})
    tasks: dict[str, Any] = {f"rank {rank} | {seed}": (rank, seed) for rank in ranks for seed in range(sets)}
    found = results.measure_all(one_set, tasks, options.workers, "sets of students")
    results.values["summary"] = {
        f"rank {rank}": {
            "loss of zero": [of_zero(rank, seed) for seed in range(sets)],
            **{what: [one[what] for one in found[k * sets : (k + 1) * sets]] for what in found[0]},
        }
        for k, rank in enumerate(ranks)
    }
    results.save()
    for rank, row in results.values["summary"].items():
        told = ", ".join(f"{x:.2f}" for x in row["median"])
        experiment.console.print(f"{rank}: the median student of each set has {told} times the loss of predicting zero")


if __name__ == "__main__":
    main()
