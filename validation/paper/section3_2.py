r"""Does a larger group distort the Euclidean trace more (Sec. 3.2)? Shallow linear networks along random orbits.

    python -m validation section3_2 [--quick] [--out DIR]

The loss ½‖GHᵀ − Y‖² of a network with h hidden neurons has at a minimum the Euclidean trace n‖H‖² + m‖G‖², which
changes along the orbit (GA⁻¹, HAᵀ), while the one modulo GL(h) does not. How far depends on which A are drawn. With
A = exp(K):

- "length": K is a random matrix with ‖K‖ = 1 (Frobenius), so that all of them are equally far along the orbit in inv,
- "entries": K has independent entries of variance 1/h, so that its singular values keep their size,
- "gaussian": A itself is a Gaussian matrix, as in the orbit experiment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

from validation import experiment

ROWS = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
RULES = {
    "length": "A = exp(K), the length of K fixed",
    "entries": "A = exp(K), the singular values of K fixed",
    "gaussian": "A is a Gaussian matrix",
}


def draw_element(rule: str, h: int, rng: np.random.Generator) -> Any:
    """Draw an element of GL(h)."""
    K = rng.standard_normal((h, h))
    if rule == "gaussian":
        return K
    return scipy.linalg.expm(K / (np.linalg.norm(K) if rule == "length" else h**0.5))


def trace(G: Any, H: Any) -> float:
    """Return the Euclidean trace of the Hessian at a minimum."""
    return float(len(G) * np.sum(H * H) + len(H) * np.sum(G * G))


def measure(h: int, rule: str, draws: int = 200, seed: int = 0) -> dict[str, Any]:
    """By how much the trace at a random point of the orbit exceeds that at the balanced one: median and quartiles."""
    rng = np.random.default_rng([seed, h])
    G, H = (np.linalg.qr(rng.standard_normal((ROWS, h)))[0] for _ in "GH")  # balanced, all singular values 1
    excess = []
    for _ in range(draws):
        A = draw_element(rule, h, rng)
        excess.append(trace(np.linalg.solve(A.T, G.T).T, H @ A.T) / trace(G, H) - 1.0)
    quartiles = np.quantile(excess, [0.25, 0.5, 0.75]).tolist()
    return {"h": h, "rule": rule, "median": quartiles[1], "quartiles": [quartiles[0], quartiles[2]]}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Median and quartiles against h."""
    plt = experiment.style()
    figure, axis = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    for rule, label in RULES.items():
        mine = [row for row in rows if row["rule"] == rule]
        sizes = [row["h"] for row in mine]
        axis.loglog(sizes, [row["median"] for row in mine], "o-", label=label)
        axis.fill_between(sizes, *np.array([row["quartiles"] for row in mine]).T, alpha=0.2)
    axis.set(xlabel="h, where the group is GL(h)", ylabel="excess of the Euclidean trace")
    axis.set_xticks(SIZES, [str(h) for h in SIZES])
    axis.minorticks_off()
    axis.legend(fontsize=9)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, draw, and say what was found."""
    options = experiment.parser(__doc__).parse_args()
    draws = 20 if options.quick else 1000
    results = experiment.Results(options.out / "section3_2.json", {"draws": draws})
    rows = [results.measure(f"{rule} {h}", lambda h=h, r=rule: measure(h, r, draws)) for rule in RULES for h in SIZES]
    plot(rows, options.out / "section3_2.png")
    for rule, label in RULES.items():
        medians = [f"{row['median']:.2g}" for row in rows if row["rule"] == rule]
        experiment.console.print(f"{label}: {', '.join(medians)} for h = {', '.join(map(str, SIZES))}")


if __name__ == "__main__":
    main()
