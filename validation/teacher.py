r"""Does the sign of τ depend on the teacher's rank for attention? Students of one layer, teachers of different spectra.

A layer maps tokens x₁ … x_T in ℝᵈ to the mean of softmax(x P xᵀ/√d) x V, with P = W_q W_kᵀ and V = W_v W_oᵀ.
The teacher's P and V have r equal singular values and no others: r = 1 is concentrated, r = d flat. The students of a
set see the same data, fewer numbers than they have parameters, and differ in the size of their start and their step
size; all are trained to a small loss, and ranked by sharpness against their loss on new data.

On diagonal networks, sharp networks are near the interpolator of least ℓ1 norm, and τ is negative where this one is
right (`validation.phase`). If that carries over, τ is negative for concentrated teachers, whose spectra are sparse, and
rises as the spectra become flat.

    python -m validation teacher [--quick] [--out DIR] [--workers N]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import refgeo as rg
from validation import experiment
from validation.study import statistics

D, TOKENS, SEQUENCES, STUDENTS = 8, 5, 10, 40
RANKS = (1, 2, 3, 5, 8)
STEPS, TRAINED = 4000, 1e-4
"""A student is trained whose loss is this share of that of predicting nothing."""
RHO = 0.1
MEASURES = ("adaptive", "inv", "mix")
MEDIATORS = ("concentration of V", "size of V", "size of P")
FEWEST = 10


def layer(W_q: Any, W_k: Any, W_v: Any, W_o: Any, x: Any) -> Any:
    """The layer, for tokens of shape (sequences, T, d) and weights of shape (..., 1, d, h); tensors."""
    import torch

    scores = x @ W_q @ (x @ W_k).mT / D**0.5
    return (torch.softmax(scores, -1) @ x @ W_v @ W_o.mT).mean(-2)


def teacher(rank: int, rng: np.random.Generator) -> list[Any]:
    """W_q, W_k, W_v, W_o whose products have `rank` singular values, equal, with the same sum of squares for all."""
    weights = []
    for size in (3.0 * D, 3.0 * D):
        left, right = (np.linalg.qr(rng.standard_normal((D, D)))[0][:, :rank] for _ in range(2))
        root = (size / rank) ** 0.25
        weights += [np.pad(factor * root, ((0, 0), (0, D - rank))) for factor in (left, right)]
    return weights


def drawn(rank: int, rng: np.random.Generator) -> tuple[list[Any], Any, Any]:
    """A teacher's weights, sequences to learn from, and new ones."""
    import torch

    truth = [torch.from_numpy(w) for w in teacher(rank, rng)]
    x, x_new = (torch.from_numpy(rng.standard_normal((n, TOKENS, D))) for n in (SEQUENCES, 2000))
    return truth, x, x_new


def students(rank: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Weights of trained students, four of shape (students, d, d); the data; losses at home and on new data."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, rank])
    truth, x, x_new = drawn(rank, rng)
    y, y_new = layer(*truth, x), layer(*truth, x_new)
    size, step = (np.exp(rng.uniform(*np.log(bounds), (STUDENTS, 1, 1))) for bounds in ((0.03, 1.0), (0.003, 0.02)))
    weights = [torch.from_numpy(size * rng.standard_normal((STUDENTS, D, D)) / D**0.5) for _ in range(4)]
    squares = [torch.zeros_like(w) for w in weights]
    means = [torch.zeros_like(w) for w in weights]
    for k in range(1, STEPS + 1):
        leaves = [w.requires_grad_() for w in weights]
        loss = losses(leaves, x, y).sum()
        grads = torch.autograd.grad(loss, leaves)
        rate = torch.from_numpy(step * (1.0 - k / (STEPS + 1)))
        with torch.no_grad():  # Adam, each student with its own step size
            for w, g, m, s in zip(weights, grads, means, squares, strict=True):
                m.mul_(0.9).add_(g, alpha=0.1)
                s.mul_(0.999).addcmul_(g, g, value=0.001)
                w -= rate * (m / (1 - 0.9**k)) / ((s / (1 - 0.999**k)).sqrt() + 1e-12)
        weights = [w.detach() for w in weights]
    return weights, (x, y), losses(weights, x, y).numpy(), losses(weights, x_new, y_new).numpy()


def losses(weights: Any, x: Any, y: Any) -> Any:
    """The mean squared error of every student."""
    found = layer(*(w[:, None] for w in weights), x)
    return ((found - y) ** 2).sum(-1).mean(-1)


def sharpness(weights: Any, data: Any, measure: str) -> float:
    """Of one student."""
    import torch

    x, y = data

    def loss(blocks: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        leaves = [torch.from_numpy(np.array(f)).requires_grad_() for name in ("P", "V") for f in blocks[name]]
        value = losses([w[None] for w in leaves], x, y)[0]
        grads = [g.numpy() for g in torch.autograd.grad(value, leaves)]
        return value.item(), {"P": tuple(grads[:2]), "V": tuple(grads[2:])}

    factors = [w.numpy() for w in weights]
    params = {"P": rg.Pair(*factors[:2]), "V": rg.Pair(*factors[2:])}
    if measure == "adaptive":
        return rg.adaptive_sharpness(loss, params, RHO, n_restarts=1).value
    on_pairs = rg.InvariantMetric() if measure == "inv" else rg.MixedMetric()
    try:
        return rg.worst_case_sharpness(
            loss, params, rg.ProductMetric(dict.fromkeys(params, on_pairs)), RHO, n_restarts=1
        ).value
    except rg.RankDeficientError:  # training has switched a column off, and there is no quotient
        return math.nan


def one_set(rank: int, seed: int) -> dict[str, Any]:
    """τ of each measure with the test loss, and how concentrated the sharp students are."""
    weights, data, train, test = students(rank, seed)
    y = data[1].numpy()
    ok = train <= TRAINED * np.mean(np.sum(y**2, axis=-1))
    result: dict[str, Any] = {"trained": float(ok.mean())}
    if ok.sum() < FEWEST:
        return result
    chosen = [[w[k] for w in weights] for k in np.flatnonzero(ok)]
    values = {measure: np.array([sharpness(one, data, measure) for one in chosen]) for measure in MEASURES}
    there = np.isfinite(values["inv"])
    result["deficient"] = float(np.mean(~there))
    if there.sum() < FEWEST:
        return result
    told = [_mediators(one) for one in chosen]
    values |= {name: np.array([one[name] for one in told]) for name in MEDIATORS}
    test = test[ok][there]
    result |= {
        "test loss": [float(test.min()), float(test.max())],
        "tau": {name: statistics.tau_a(of[there], test) for name, of in values.items()},
        "with inv": {name: statistics.tau_a(values[name][there], values["inv"][there]) for name in MEDIATORS},
        "left": {name: statistics.partial_tau(values["inv"][there], test, values[name][there]) for name in MEDIATORS},
    }
    return result


def _mediators(weights: Any) -> dict[str, float]:
    """‖σ‖₄/‖σ‖₂ of the singular values of V, and how large V and P are."""
    P, V = ((weights[k] @ weights[k + 1].mT).numpy() for k in (0, 2))
    values = np.linalg.svd(V, compute_uv=False)
    return {
        "concentration of V": float(np.sum(values**4) ** 0.25 / np.sum(values**2) ** 0.5),
        "size of V": float(np.linalg.norm(V)),
        "size of P": float(np.linalg.norm(P)),
    }


def summarised(sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over sets with intervals."""
    there = [one for one in sets if "tau" in one]
    found: dict[str, Any] = {"sets": len(there), "trained": float(np.mean([one["trained"] for one in sets]))}
    if there:
        found["deficient"] = float(np.mean([one["deficient"] for one in there]))
        for what in ("tau", "with inv", "left"):
            found[what] = {name: list(statistics.median([one[what][name] for one in there])) for name in there[0][what]}
    return found


def plot(table: dict[str, Any], place: Path) -> None:
    """τ against the teacher's rank."""
    plt = experiment.style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), sharex=True)
    rows = {int(rank): row for rank, row in table.items() if "tau" in row}
    for axis, key, names, title in (
        (left, "tau", MEASURES, "sharpness, τ with the test loss"),
        (right, "with inv", MEDIATORS, "what inv measures, τ with inv"),
    ):
        for name, style in zip(names, ("-", "--", ":"), strict=True):
            values = np.array([row[key][name] for row in rows.values()])
            colour = experiment.COLOURS.get(name, "0.4")
            axis.plot(list(rows), values[:, 0], "o" + style, ms=4, color=colour, label=name)
            axis.fill_between(list(rows), values[:, 1], values[:, 2], color=colour, alpha=0.15, lw=0)
        axis.axhline(0.0, color="0.7", lw=0.8)
        axis.set(xlabel="rank of the teacher's products (of 8)", title=title, ylim=(-1.05, 1.05))
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(place)
    plt.close(figure)


def main() -> None:
    """Run it."""
    options = experiment.parser(__doc__).parse_args()
    seeds, ranks = (2, (1, 8)) if options.quick else (20, RANKS)
    results = experiment.Results(options.out / "teacher.json", {"quick": options.quick, "ρ": RHO, "seeds": seeds})
    tasks = {f"rank {rank} | {seed}": (rank, seed) for rank in ranks for seed in range(seeds)}
    sets = results.measure_all(one_set, tasks, options.workers, "sets of 40 students")
    table = {str(rank): summarised(sets[k * seeds : (k + 1) * seeds]) for k, rank in enumerate(ranks)}
    results.values["summary"] = table
    results.save()
    plot(table, options.out / "teacher.png")
    for rank, row in table.items():
        told = ", ".join(f"{name} {statistics.Estimate(*tau)}" for name, tau in row.get("tau", {}).items())
        experiment.console.print(
            f"rank {rank}: {row['trained']:.0%} of the students trained, {row['sets']} sets; {told}"
        )


if __name__ == "__main__":
    main()
