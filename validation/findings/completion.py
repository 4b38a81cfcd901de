r"""Low-rank matrix completion: the quotients of refgeo in Pymanopt beside its own fixed-rank manifold.

A matrix of rank h is to be found from a share of its entries, f(X) = ½‖P(X − A)‖². Conjugate gradients and trust
regions of Pymanopt run on the quotients of pairs (G, H), inv and mix; conjugate gradients also on Pymanopt's
``FixedRankEmbedded``, which has no Riemannian Hessian for trust regions. Counted are evaluations of the loss, of its
gradient and of the Hessian, until P(X − A), which all have in common, has fallen by 1e-10.

    python -m validation completion [--quick] [--out DIR]

Needs the package pymanopt.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pymanopt
from pymanopt.manifolds import FixedRankEmbedded
from pymanopt.manifolds.fixed_rank import _FixedRankPoint
from pymanopt.optimizers import ConjugateGradient, TrustRegions

import refgeo as rg
from refgeo.bridges.pymanopt import QuotientManifold
from validation import experiment

KINDS = ("inv", "mix", "fixed rank")
OPTIMIZERS = {"conjugate gradients": ConjugateGradient, "trust regions": TrustRegions}
ENOUGH = 1e-10


class _Reached(Exception):
    """The residual is small enough."""


class Problem:
    """Entries of a random matrix of rank h, three times as many as it has degrees of freedom, and a count of calls."""

    def __init__(self, n: int, m: int, h: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.truth = rng.standard_normal((n, h)) @ rng.standard_normal((h, m))
        self.seen = rng.random((n, m)) < 3.0 * (n + m - h) * h / (n * m)
        # the usual start: the best approximation of what is seen
        U, s, V = np.linalg.svd(np.where(self.seen, self.truth, 0.0), full_matrices=False)
        self.start = U[:, :h], s[:h], V[:h]
        self.losses, self.products, self.norms = 0, 0, []
        self.latest: tuple[Any, ...] = ()

    def residual(self, X: Any) -> Any:
        """P(X − A)."""
        return np.where(self.seen, X - self.truth, 0.0)

    def saw(self, D: Any) -> None:
        """A gradient in X."""
        self.norms.append(float(np.linalg.norm(D)))
        if self.norms[-1] <= ENOUGH * self.norms[0]:
            raise _Reached

    def on_pairs(self, metric: rg.InterpolatedMetric) -> tuple[pymanopt.Problem, Any]:
        """In factors."""
        U, s, V = self.start
        start = rg.Pair(U * np.sqrt(s), V.T * np.sqrt(s))
        manifold = QuotientManifold(metric, start)

        @pymanopt.function.numpy(manifold)
        def cost(G: Any, H: Any) -> float:
            self.losses += 1
            return 0.5 * float(np.sum(self.residual(G @ H.T) ** 2))

        @pymanopt.function.numpy(manifold)
        def gradient(G: Any, H: Any) -> Any:
            if not (self.latest and self.latest[0] is G and self.latest[1] is H):  # asked for with each product, too
                D = self.residual(G @ H.T)
                self.saw(D)
                self.latest = (G, H, D @ H, D.T @ G)
            return self.latest[2:]

        @pymanopt.function.numpy(manifold)
        def hessian(G: Any, H: Any, v_G: Any, v_H: Any) -> Any:
            self.products += 1
            D = self.residual(G @ H.T)
            dD = np.where(self.seen, v_G @ H.T + G @ v_H.T, 0.0)
            return dD @ H + D @ v_H, dD.T @ G + D.T @ v_G

        problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient, euclidean_hessian=hessian)
        return problem, start

    def of_fixed_rank(self) -> tuple[pymanopt.Problem, Any]:
        """In X = U diag(s) V."""
        manifold = FixedRankEmbedded(*self.truth.shape, len(self.start[1]))

        @pymanopt.function.numpy(manifold)
        def cost(u: Any, s: Any, vt: Any) -> float:
            self.losses += 1
            return 0.5 * float(np.sum(self.residual((u * s) @ vt) ** 2))

        @pymanopt.function.numpy(manifold)
        def gradient(u: Any, s: Any, vt: Any) -> Any:
            D = self.residual((u * s) @ vt)
            self.saw(D)
            # by the chain rule, as the manifold expects it
            return (D @ vt.T) * s, np.diag(u.T @ D @ vt.T).copy(), (u * s).T @ D

        return pymanopt.Problem(manifold, cost, euclidean_gradient=gradient), _FixedRankPoint(*self.start)


def solve(kind: str, optimizer: str, size: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """One run: how many gradients and Hessian products until the residual has fallen enough, and the time."""
    found = Problem(*size, seed)
    problem, start = found.of_fixed_rank() if kind == "fixed rank" else found.on_pairs(METRICS[kind])
    # small enough that Pymanopt does not stop before
    settings = {"max_iterations": 1000, "min_gradient_norm": 1e-300, "min_step_size": 1e-300, "verbosity": 0}
    reached, begin = False, time.perf_counter()
    try:
        OPTIMIZERS[optimizer](**settings).run(problem, initial_point=start)
    except _Reached:
        reached = True
    return {
        "reached": reached,
        "losses": found.losses,
        "gradients": len(found.norms),
        "products": found.products,
        "seconds": time.perf_counter() - begin,
        "norms": [norm / found.norms[0] for norm in found.norms],
    }


def is_possible(optimizer: str, kind: str) -> bool:
    """Whether Pymanopt has all that it takes."""
    return kind != "fixed rank" or optimizer != "trust regions"


METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}


def plot(values: dict[str, dict[str, Any]], path: Path) -> None:
    """The gradient's norm against evaluations, for the first seed."""
    plt = experiment.style()
    figure, axes = plt.subplots(1, len(OPTIMIZERS), figsize=(9.2, 3.6), layout="constrained", sharey=True)
    colours = {**experiment.COLOURS, "fixed rank": "#c0392b"}
    for ax, optimizer in zip(axes, OPTIMIZERS, strict=True):
        for kind in KINDS:
            if not is_possible(optimizer, kind):
                continue
            norms = np.minimum.accumulate(values[f"{optimizer}, {kind}, 0"]["norms"])
            ax.semilogy(1 + np.arange(len(norms)), norms, color=colours[kind], label=kind)
        ax.set_title(optimizer)
        ax.set_xlabel("gradient evaluations")
    axes[0].set_ylabel("‖P(X − A)‖, relative")
    axes[0].legend()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Solve, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    size, seeds = ((60, 50, 3), 3) if options.quick else ((300, 200, 5), 5)
    results = experiment.Results(options.out / "completion.json", {"size": size, "seeds": seeds})
    tasks = {
        f"{optimizer}, {kind}, {seed}": (kind, optimizer, size, seed)
        for optimizer in OPTIMIZERS
        for kind in KINDS
        if is_possible(optimizer, kind)
        for seed in range(seeds)
    }
    results.measure_all(solve, tasks, 1, "completion")
    plot(results.values, options.out / "completion.png")
    rows = []
    for optimizer in OPTIMIZERS:
        for kind in KINDS:
            if not is_possible(optimizer, kind):
                rows.append([optimizer, kind, "no Riemannian Hessian", "", "", "", ""])
                continue
            runs = [results.values[f"{optimizer}, {kind}, {seed}"] for seed in range(seeds)]
            keys = ("losses", "gradients", "products", "seconds")
            losses, gradients, products, seconds = (np.median([run[key] for run in runs]) for key in keys)
            reached = sum(run["reached"] for run in runs)
            counts = [
                f"{reached} of {seeds}",
                f"{losses:.0f}",
                f"{gradients:.0f}",
                f"{products:.0f}",
                f"{1e3 * seconds:.0f} ms",
            ]
            rows.append([optimizer, kind, *counts])
    header = ["optimiser", "manifold", "reached", "losses", "gradients", "Hessian products", "time"]
    experiment.table(header, rows, options.out / "completion.md")
    experiment.console.print(f"picture and numbers in {options.out}")


if __name__ == "__main__":
    main()
