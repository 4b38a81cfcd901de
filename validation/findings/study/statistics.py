r"""Rank correlation over a population of models, with what chance does to it.

:math:`τ_a = \frac{2}{n(n-1)} Σ_{i<j} \mathrm{sign}(x_i - x_j)\, \mathrm{sign}(y_i - y_j)` is the paper's; τ_b, SciPy's,
divides by the pairs that are not tied. A bootstrap draws models with replacement; a pair of a model with itself says
nothing and does not count. What compares two measures draws the same models for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau, rankdata

Array = npt.NDArray[np.float64]

RESAMPLES = 2000


def format_signed(value: float) -> str:
    """Format a number with two digits, and a true minus sign.

    Examples
    --------
    >>> signed(-0.414), signed(0.2)
    ('−0.41', '+0.20')
    """
    return f"{value:+.2f}".replace("-", "−")


class Estimate(NamedTuple):
    """A number with its 95% bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{format_signed(self.value)} [{format_signed(self.low)}, {format_signed(self.high)}]"


class Correlation(NamedTuple):
    """How one measure ranks a population.

    Attributes
    ----------
    tau_a, tau_b : Estimate, float
    p : float
        Share of random orders with a τ_a at least as far from zero, two-sided.
    models : int
    """

    tau_a: Estimate
    tau_b: float
    p: float
    models: int


def signs(x: npt.ArrayLike) -> Array:
    """sign(x_i − x_j) for all pairs.

    Examples
    --------
    >>> signs([1.0, 3.0])
    array([[ 0., -1.],
           [ 1.,  0.]])
    """
    x = np.asarray(x, dtype=np.float64)
    return np.sign(x[:, None] - x)


def tau_a(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Concordant minus discordant pairs, over all pairs; NaN without a pair.

    Examples
    --------
    >>> tau_a([1, 2, 3], [1, 3, 2])
    0.3333333333333333
    """
    n = len(np.asarray(x))
    return float(np.sum(signs(x) * signs(y)) / (n * (n - 1))) if n > 1 else np.nan


def partial_tau(x: npt.ArrayLike, y: npt.ArrayLike, given: npt.ArrayLike) -> float:
    r"""Kendall's partial τ: :math:`(τ_{xy} - τ_{xz}τ_{yz}) / \sqrt{(1 - τ_{xz}^2)(1 - τ_{yz}^2)}`.

    The correlation, over pairs, of "x agrees with z" and "y agrees with z". NaN where z orders like x or y. It is less
    than τ where z explains something, and not zero where z explains everything.

    Examples
    --------
    >>> round(partial_tau([1, 2, 3, 4], [2, 1, 3, 4], [1, 2, 4, 3]), 12)
    0.632455532034
    """
    xy, xz, yz = tau_a(x, y), tau_a(x, given), tau_a(y, given)
    rest = (1.0 - xz**2) * (1.0 - yz**2)
    return (xy - xz * yz) / rest**0.5 if rest > 1e-12 else np.nan


def rest(x: npt.ArrayLike, given: npt.ArrayLike) -> Array:
    """Return what is left of the ranks of x after a cubic polynomial in the ranks of another number.

    If x and y depend on this number and on nothing common besides, τ of what is left of them is nearly zero on average;
    the partial τ is not.

    Examples
    --------
    >>> np.abs(rest([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])).max() < 1e-9
    np.True_
    """
    t = rankdata(given)
    t = 2.0 * (t - t.mean()) / len(t)
    ranks = rankdata(x)
    basis = np.vander(t, 4)
    return np.asarray(ranks - basis @ np.linalg.lstsq(basis, ranks, rcond=None)[0])


def estimate_tau(x: npt.ArrayLike, y: npt.ArrayLike, seed: int = 0) -> Estimate:
    """Return τ_a with its interval, from a bootstrap over models; NaN without a pair.

    Examples
    --------
    >>> estimated_tau([1, 2, 3], [1, 3, 2]).value
    0.3333333333333333
    """
    products = signs(x) * signs(y)
    return _estimate(products, ~np.eye(len(products), dtype=bool), seed)


def correlation(x: npt.ArrayLike, y: npt.ArrayLike, seed: int = 0) -> Correlation:
    """τ of two columns with its interval and p-value; NaN and p = 1 for fewer than two models.

    Examples
    --------
    >>> found = correlation([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5])
    >>> round(found.tau_a.value, 12), found.models, found.p < 0.02
    (0.866666666667, 6, True)
    """
    estimate, S_x, S_y = estimate_tau(x, y, seed), signs(x), signs(y)
    products = S_x * S_y
    if len(products) < 2:
        return Correlation(estimate, np.nan, 1.0, len(products))
    generator = np.random.default_rng([seed, 1])
    orders = [generator.permutation(len(products)) for _ in range(RESAMPLES)]
    shuffled = np.array([np.sum(S_x[np.ix_(order, order)] * S_y) for order in orders])
    beyond = np.count_nonzero(np.abs(shuffled) >= np.abs(products.sum()) - 0.5)
    p = (1 + beyond) / (1 + len(shuffled))
    return Correlation(estimate, float(kendalltau(x, y).statistic), float(p), len(products))


def within(x: npt.ArrayLike, y: npt.ArrayLike, groups: Sequence[object], drawn: str, seed: int = 0) -> Estimate:
    """τ_a among the pairs of models of one group; NaN without such a pair.

    Parameters
    ----------
    x, y : array_like
    groups : sequence
        Of each model.
    drawn : "groups" or "models"
        By the bootstrap: groups where they are many and small, models where they are few and large. (Of small groups,
        few keep two models if models are drawn, which makes intervals too wide.)

    Examples
    --------
    >>> within([1, 2, 3, 4], [1, 2, 4, 3], ["a", "a", "b", "b"], "groups").value
    0.0
    """
    index = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    number = np.array([index[group] for group in groups])
    same = (number[:, None] == number) & ~np.eye(len(number), dtype=bool)
    products = signs(x) * signs(y) * same
    if drawn == "models" or not same.any():
        return _estimate(products, same, seed)
    sums, pairs = (np.bincount(number, of.sum(axis=1)) for of in (products, same))
    chosen = np.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
    return Estimate(
        float(products.sum() / same.sum()), *_interval(sums[chosen].sum(axis=1) / pairs[chosen].sum(axis=1))
    )


def differences(measures: Mapping[str, npt.ArrayLike], y: npt.ArrayLike, of: str, seed: int = 0) -> dict[str, Estimate]:
    """τ_a of each other measure minus that of one of them, on the same models.

    Examples
    --------
    >>> found = differences({"a": [1, 2, 3, 4], "b": [4, 3, 2, 1]}, [1, 2, 3, 4], of="a")
    >>> found["b"].value
    -2.0
    """
    S_y = signs(y)
    base = signs(measures[of]) * S_y
    result = {}
    for name, values in measures.items():
        if name != of:
            products = signs(values) * S_y - base
            result[name] = _estimate(products, ~np.eye(len(products), dtype=bool), seed)
    return result


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, result, largest = np.argsort(p), [0.0] * len(p), 0.0
    for k, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - k) * p[i]))
        result[i] = largest
    return result


def median(values: Sequence[float], seed: int = 0) -> Estimate:
    """Return the median over sets, with its bootstrap interval.

    Examples
    --------
    >>> median([1.0, 2.0, 3.0]).value
    2.0
    """
    target = np.asarray([value for value in values if np.isfinite(value)])
    if not len(target):
        return Estimate(np.nan, np.nan, np.nan)
    drawn = np.random.default_rng(seed).integers(len(target), size=(RESAMPLES, len(target)))
    return Estimate(float(np.median(target)), *_interval(np.median(target[drawn], axis=1)))


def _estimate(products: Array, pair: npt.NDArray[np.bool_], seed: int) -> Estimate:
    """The mean of what pairs say, of those that are pairs; NaN without one."""
    if not pair.any():
        return Estimate(np.nan, np.nan, np.nan)
    return Estimate(float(products.sum() / pair.sum()), *_interval(_resample(products, pair, seed)))


def _resample(products: Array, pair: npt.NDArray[np.bool_], seed: int) -> Array:
    """Return the same mean over models drawn with replacement, many times."""
    n = len(products)
    generator = np.random.default_rng(seed)
    result = np.full(RESAMPLES, np.nan)
    for i in range(RESAMPLES):
        # how often each model was drawn; a model and itself are no pair
        counts = np.bincount(generator.integers(n, size=n), minlength=n).astype(np.float64)
        pairs = counts @ pair @ counts
        if pairs > 0:
            result[i] = counts @ products @ counts / pairs
    return result[np.isfinite(result)]


def _interval(drawn: Array) -> tuple[float, float]:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)
