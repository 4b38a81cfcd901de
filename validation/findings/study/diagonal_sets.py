"""Diagonal networks ‖X(u ⊙ v) − y‖², whose sharpness is known and not searched for.

A unit is a set of 50 networks on the same data, d = 200 parameters β = u ⊙ v and n = 100 points, X Gaussian, a ground
truth with 90% zeros, no noise. They differ in the size α of their Gaussian start and in their step size, a share of the
stability limit at the truth; all are trained to a loss of 1e-5. Every set has a τ of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo import diagonal
from validation.findings.study.runner import Row, Task

NETWORKS, DIMENSION, TARGET = 50, 200, 1e-5
RHO = 0.1
MAX_STEPS = 200_000
FEWEST = 10
"""Trained networks below which a set has no τ."""


def top_eigenvalues(X: Any, beta: Any) -> Any:
    """λ_max(D XᵀX D), D = diag(|β|), of each β: at zero residual inv's sharpness is 2ρ² times that, to second order."""
    return np.array([np.linalg.norm(X * np.abs(b), 2) ** 2 for b in beta])


@dataclass(frozen=True)
class Setting:
    """What a set is made of.

    Attributes
    ----------
    zeros : float
        The truth's share of zeros.
    n, d : int
    noise : float
        Standard deviation of what is added to y, beside that of y.
    start : "gaussian" or "zero"
        u, v ~ N(0, α²); or u = α, v = 0.
    size : (float, float)
        α is drawn log-uniformly between these.
    share : (float, float)
        And the step, of the stability limit.
    """

    zeros: float = 0.9
    n: int = 100
    d: int = DIMENSION
    noise: float = 0.0
    start: str = "gaussian"
    size: tuple[float, float] = (0.01, 0.3)
    share: tuple[float, float] = (0.05, 0.5)


@dataclass(frozen=True)
class NetworkSet:
    """Trained networks; those that did not reach the target are left out and counted.

    Attributes
    ----------
    u, v : ndarray, shape (networks, d)
    X, y, truth
    test_loss : ndarray
        ‖β − truth‖², that of new Gaussian data.
    trained : float
        The share that reached the target.
    alpha : ndarray
        The size of each network's start.
    """

    u: Any
    v: Any
    X: Any
    y: Any
    truth: Any
    test_loss: Any
    trained: float
    alpha: Any

    @property
    def beta(self) -> Any:
        """The product u ⊙ v."""
        return self.u * self.v


def draw_set(setting: Setting, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Draw X, y and the true β of a set."""
    truth = np.zeros(setting.d)
    support = rng.permutation(setting.d)[: max(1, round(setting.d * (1.0 - setting.zeros)))]
    truth[support] = rng.standard_normal(len(support))
    X = rng.standard_normal((setting.n, setting.d))
    y = X @ truth
    return X, y + setting.noise * np.std(y) * rng.standard_normal(setting.n), truth


def network_set(setting: Setting, seed: int) -> NetworkSet:
    """Train on the set of a seed, and return it."""
    rng = np.random.default_rng([seed, setting.n, setting.d])
    X, y, truth = draw_set(setting, rng)
    size, share = (np.exp(rng.uniform(*np.log(bounds), NETWORKS)) for bounds in (setting.size, setting.share))
    shape = (NETWORKS, setting.d)
    u = size[:, None] * (rng.standard_normal(shape) if setting.start == "gaussian" else np.ones(shape))
    v = size[:, None] * rng.standard_normal(shape) if setting.start == "gaussian" else np.zeros(shape)
    trained = diagonal.train(X, y, u, v, share * stability_limit(X, truth), target=TARGET, max_steps=MAX_STEPS)
    ok = trained.converged
    u, v = trained.u[ok], trained.v[ok]
    return NetworkSet(u, v, X, y, truth, np.sum((u * v - truth) ** 2, axis=-1), float(ok.mean()), size[ok])


def stability_limit(X: Any, beta: Any) -> float:
    """2/λ_max of the Hessian (2/n) D XᵀX Dᵀ of the mean squared error where |u| = |v| and u ⊙ v = β."""
    weighted = X * np.sqrt(2.0 * np.abs(beta))
    return float(2.0 / (2.0 / len(X) * np.linalg.norm(weighted, 2) ** 2))


class Population:
    """So many sets.

    Parameters
    ----------
    sets : int
    setting : Setting, or its fields
    """

    name = "diagonal"

    def __init__(self, sets: int = 20, **setting: Any) -> None:
        self.sets, self.setting = sets, Setting(**setting)

    def units(self) -> list[str]:
        """Return a set each."""
        return [f"{seed:03d}" for seed in range(self.sets)]

    def rows(self, task: Task) -> list[Row]:
        """Certified values; the gap is the test loss, since the training loss is nothing."""
        result, radii = network_set(self.setting, int(task.unit)), task.radii
        columns = [
            {"test loss": float(loss), "gap": float(loss), "trained": result.trained} for loss in result.test_loss
        ]
        rho, rows = np.array(radii)[:, None], []
        for measure in task.measures:
            certified = diagonal.worst_case(measure, result.u, result.v, result.X, result.y, rho, tight=False)
            for radius, lower, upper in zip(radii, certified.lower, certified.upper, strict=True):
                rows += [
                    {
                        "model": f"{k:02d}", **columns[k], "measure": measure, "kind": "worst", "metric": measure,
                        "order": "exact", "rho": radius, "batch": 0, "value": float(lower[k]), "upper": float(upper[k]),
                        "note": "",
                    }
                    for k in range(len(columns))
                ]  # fmt: skip
        return rows
