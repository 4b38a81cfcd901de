"""The results of the sharpness functions, and advice about results that need care."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from refgeo.sharpness.auto_pgd import N_RESTARTS, STATIONARY
from refgeo.support.arguments import Array
from refgeo.support.figures import make_axes

_MIN_NOISE_RATIO = 100.0
"""Ratio of a value to the noise of the loss below which the value has fewer than two correct digits."""
_MAX_BEND = 0.5
"""Value of `SharpnessResult.bend` above which second-order geodesics are no approximation. For inv with h = 1, the
geodesic is t ↦ G eᵗ and the bend ½t. At t = 1, the second-order step is 1.5 G long, and is wrong by 0.22 G, or 15%.
"""


class Progress(NamedTuple):
    """The state of a search, which a callback gets after every evaluation of the loss.

    ``done`` is the number of evaluations so far, of all batches and starts. ``total`` is the number expected at most:
    it grows if more are needed, and is None if the number of batches is not known. ``value`` is the increase of the
    loss at this evaluation (−inf if the step was rejected), ``best`` the best value of this start, ``step`` the step
    size, and ``rho`` the radius of the ball that is searched.

    Examples
    --------
    >>> import refgeo as rg
    >>> reports = []
    >>> loss = rg.value_and_grad(lambda w: (w**2).sum())
    >>> settings = {"n_iter": 3, "n_restarts": 1, "callback": reports.append}
    >>> _ = rg.worst_case_sharpness(loss, np.ones(2), rg.EuclideanMetric(), rho=1.0, **settings)
    >>> [progress.done for progress in reports]
    [1, 2, 3, 4]
    """

    done: int
    total: int | None
    batch: int
    start: int
    iteration: int
    value: float
    best: float
    step: float
    rho: float


@dataclass(frozen=True, eq=False)
class SharpnessResult:
    """The largest increase of the loss that was found in a ball.

    Attributes
    ----------
    value : float
        max L(γ_ξ(1)) − L(θ); with `batches`, the mean of their values. A lower bound of the true maximum.
    maximizer : tangent vector
        The ξ at which this value is attained, of the type of the parameters; with `batches`, a list of them.
    loss, loss_max : float
        L(θ) and L(γ_ξ(1)); with `batches`, means.
    trace : ndarray
        The best value after every evaluation of the best start; with `batches`, means.
    values : ndarray
        The value at every evaluation of the best start, −inf where the step was rejected. Evaluations of other starts,
        of the points among which a start is chosen, and of the best start's continuation are counted, but not kept.
    steps : ndarray
        The step sizes that led to these evaluations.
    n_evaluations : int
        The number of evaluations of loss and gradient, of all starts and batches together.
    n_rejected : int
        The number of steps that left the domain: the geodesic did not exist, or the loss was not finite.
    residual : float
        The distance of `maximizer` from a stationary point of the ball, 0 to about 2: ‖P(ξ + ρ g/‖g‖) − ξ‖/ρ, where g
        is the gradient at ξ and P the projection onto the ball; the largest of all batches.
    converged : bool
        Whether `residual` is at most 0.01. This is a local statement, of first order: it does not say that the maximum
        is the global one, nor how much larger the loss is nearby if it has much curvature.
    n_reached : int
        The number of starts that ended within 1% of `value`; with `batches`, the smallest of these numbers. If it is 1
        of several, more starts (``n_restarts``) may well find a larger value. If it is 0, they may, too: the value came
        from a smaller ball, or from continuing the best start.
    rho : float
        The ball's radius.
    settings : dict
        The other settings of the search.
    bend : float
        With second-order geodesics, ‖½Γ(ξ, ξ)‖/‖ξ‖ at the maximizer, the largest of all blocks and heads. If it is not
        small, they are no approximation of geodesics.
    noise : float
        The error of the loss's values, measured before the search; the largest of all batches. NaN if it was not
        measured, because of ``verify=False`` or because the loss is constant.
    undecided_directions : tuple of str
        The directions along which this noise hides whether the gradient is right.
    batches : tuple of SharpnessResult
        The result of every batch; empty without `batches`.

    Examples
    --------
    >>> import refgeo as rg
    >>> loss = rg.value_and_grad(lambda w: (w**2).sum())
    >>> result = rg.worst_case_sharpness(loss, np.array([3.0, 4.0]), rg.EuclideanMetric(), rho=1.0)
    >>> round(result.value, 9), result.converged, result.maximizer.round(6)
    (11.0, True, array([0.6, 0.8]))
    """

    value: float
    maximizer: Any = field(repr=False)
    loss: float
    loss_max: float
    trace: Array = field(repr=False)
    values: Array = field(repr=False)
    steps: Array = field(repr=False)
    n_evaluations: int
    n_rejected: int
    residual: float
    converged: bool
    rho: float
    settings: dict[str, Any] = field(repr=False)
    bend: float = 0.0
    n_reached: int = 1
    noise: float = math.nan
    undecided_directions: tuple[str, ...] = ()
    batches: tuple[SharpnessResult, ...] = field(default=(), repr=False)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        """Return the main numbers in a sentence, and advice if the value needs it."""
        starts = self.settings.get("n_restarts", 1)
        has_starts = starts > 1 and not self._has_no_step
        by = f"reached by {self.n_reached} of" if self.n_reached else "more than each of"
        reached = f", {by} {starts} starts" if has_starts else ""
        numbers = (
            f"sharpness {self.value:.6g} at ρ = {self.rho:g} (loss {self.loss:.6g}, {self.n_evaluations} evaluations, "
            f"{'converged' if self.converged else 'not converged'}{reached})"
        )
        return f"{numbers}\n{self.advice}" if self.needs_advice else numbers

    @property
    def needs_advice(self) -> bool:
        """Whether the value needs care: the search has not converged, a step is too long, or noise is too large.

        Examples
        --------
        >>> import refgeo as rg
        >>> loss = lambda w: (float(w @ w), 2 * w)
        >>> rg.worst_case_sharpness(loss, np.ones(4), rg.EuclideanMetric(), rho=0.1).needs_advice
        False
        """
        return not self.converged or self.bend > _MAX_BEND or bool(self._noise_advice)

    @property
    def advice(self) -> str:
        """Advice on how to get a better value."""
        return " ".join([*self._noise_advice, self._search_advice])

    @property
    def _noise_advice(self) -> list[str]:
        """Sentences about what the noise of the loss hides."""
        advice = []
        if 0.0 < self.value < _MIN_NOISE_RATIO * self.noise:
            advice.append(
                f"the values of the loss have errors of about {self.noise:.1g}, which is "
                f"{self.noise / self.value:.0%} of the sharpness: use a larger rho, or a loss in float64."
            )
        if self.undecided_directions:
            advice.append(
                f"it is undecided whether the gradient is right along {' and '.join(self.undecided_directions)}: noise "
                "or kinks of the loss hide its slope."
            )
        return advice

    @property
    def _has_no_step(self) -> bool:
        return len(self.trace) == 1 and self.value == 0.0

    @property
    def _search_advice(self) -> str:
        """A sentence about how the search ended, and which argument to change."""
        if self._has_no_step:
            return "no search was made: no parameter can move, or the gradient is zero here and after every random step"
        if self.bend > _MAX_BEND:
            return (
                f"ρ is too large: the second-order correction is {self.bend:.2g} times as long as the first-order "
                "step. "
                'Use a smaller rho (refgeo.proposed_radius), or order="exact", which is slow if the geodesics of the '
                "metric have no closed form"
            )
        n_restarts = max(N_RESTARTS, 2 * self.settings.get("n_restarts", 1))
        again = f"n_restarts={n_restarts} shows whether another start finds more"
        if self.converged:
            return f"the search ended at a stationary point (residual {self.residual:.2g}); {again}"
        n_iter = len(self.trace) - 1
        results = [result for result in self.batches or (self,) if len(result.values) > 1]
        if np.isinf(self.residual) and all(np.isfinite(result.values[1:]).any() for result in results):
            return "the gradient is zero at every point of the search, which thus had no direction to follow"
        if np.isinf(self.residual) or self.n_rejected > self.n_evaluations // 2:
            return (
                f"in {self.n_rejected} of {self.n_evaluations} evaluations, the geodesic did not exist or the loss "
                "was not finite: try a smaller rho"
            )
        if n_iter == 0:
            return f"no start found more than the maximizer of a smaller ball, which is not stationary here; {again}"
        end = f"the search ended at a point that is not stationary (residual {self.residual:.3g} > {STATIONARY:g})"
        return f"{end}: try n_iter={2 * n_iter}; {again}"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and settings without the arrays, for a table or JSON.

        Examples
        --------
        >>> import refgeo as rg
        >>> loss = lambda w: (float(w @ w), 2 * w)
        >>> rg.worst_case_sharpness(loss, np.ones(4), rg.EuclideanMetric(), rho=0.1).to_dict()["rho"]
        0.1
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {**numbers, "batches": len(self.batches) or 1, **self.settings}


@dataclass(frozen=True, eq=False, repr=False)
class SharpnessCurve:
    """Results for several radii, a sequence of `SharpnessResult`.

    Attributes
    ----------
    results : tuple of SharpnessResult
        In the order in which the radii were given.

    Examples
    --------
    >>> import refgeo as rg
    >>> loss = lambda w: (float(w @ w), 2 * w)
    >>> curve = rg.worst_case_sharpness(loss, np.zeros(2), rg.EuclideanMetric(), rho=[0.1, 0.2])
    >>> curve.rho, curve.values.round(6)
    (array([0.1, 0.2]), array([0.01, 0.04]))
    """

    results: tuple[SharpnessResult, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, i: int) -> SharpnessResult:
        return self.results[i]

    def __iter__(self) -> Iterator[SharpnessResult]:
        return iter(self.results)

    @property
    def rho(self) -> Array:
        """The radii."""
        return np.array([result.rho for result in self.results])

    @property
    def values(self) -> Array:
        """The sharpness for each radius."""
        return np.array([result.value for result in self.results])

    def __repr__(self) -> str:
        rows = (
            f"{result.rho:10.4g}  {result.value:12.6g}  {result.residual:8.2g}  {result.n_evaluations:11}"
            f"  {'yes' if result.converged else 'no':>9}"
            for result in self
        )
        return "\n".join(["       rho     sharpness  residual  evaluations  converged", *rows])

    def __str__(self) -> str:
        """Return the table, and below it advice about the values that need it."""
        advice = [f"ρ = {result.rho:g}: {result.advice}" for result in self if result.needs_advice]
        return "\n".join([repr(self), *advice])

    def to_dict(self) -> dict[str, list[Any]]:
        """Return a column for every number and setting, as `pandas.DataFrame` takes them.

        Examples
        --------
        >>> import refgeo as rg
        >>> loss = lambda w: (float(w @ w), 2 * w)
        >>> rg.worst_case_sharpness(loss, np.zeros(2), rg.EuclideanMetric(), rho=[0.1, 0.2]).to_dict()["rho"]
        [0.1, 0.2]
        """
        rows = [result.to_dict() for result in self.results]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def plot(self, ax: Any = None, label: str | None = None) -> Any:
        """Plot sharpness over radius with matplotlib, both on logarithmic scales, and return the axes.

        Markers are hollow where the search has not converged.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Default: the axes of a new figure.
        label : str, optional
            The curve's name in a legend.
        """
        ax = make_axes(ax)
        order = np.argsort(self.rho)
        (line,) = ax.loglog(self.rho[order], self.values[order], "o-", label=label)
        hollow = [(result.rho, result.value) for result in self if not result.converged]
        ax.plot([rho for rho, _ in hollow], [value for _, value in hollow], "o", color=line.get_color(), mfc="white")
        ax.set_xticks(self.rho[order], [f"{rho:.3g}" for rho in self.rho[order]])
        ax.minorticks_off()
        ax.set_xlabel("radius ρ")
        ax.set_ylabel("increase of the loss")
        return ax


_NUMBERS = (
    "value", "loss", "loss_max", "n_evaluations", "n_rejected", "residual", "converged", "rho", "bend", "n_reached",
    "noise",
)  # fmt: skip
"""The attributes of a result that are single numbers, for `to_dict`."""


@dataclass(frozen=True, eq=False)
class AverageSharpness:
    """The mean increase of the loss over random perturbations.

    Attributes
    ----------
    value : float
        The mean of ½[L(γ_ξ(1)) + L(γ_{−ξ}(1))] − L(θ) over the pairs ±ξ that stayed in the domain.
    standard_error : float
        The standard error of `value`. It comes from the spread of the pairs, and from the noise of the loss at θ, which
        all pairs have in common. The choice of batches is not included.
    loss : float
        L(θ), the mean over batches.
    samples : ndarray, shape ``(batches, pairs)``
        The value of every pair, NaN where it was rejected.
    n_rejected : int
        The number of pairs of which a step left the domain: the geodesic did not exist, or the loss was not finite. The
        mean leaves them out, so it is that of the perturbations within the domain.
    rho : float
        The radius of the ball, or the scale of the normal distribution.

    Examples
    --------
    >>> import refgeo as rg
    >>> loss = lambda w: float((w**2).sum())
    >>> result = rg.average_case_sharpness(loss, np.ones(2), rg.EuclideanMetric(), rho=0.1, n_samples=400)
    >>> abs(result.value - 0.005) < 3 * result.standard_error  # ½ρ² tr(Hess)/(N + 2), N = 2
    True
    """

    value: float
    standard_error: float
    loss: float
    samples: Array = field(repr=False)
    n_rejected: int
    rho: float

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, float]:
        """Return the numbers without the samples, for a table or JSON."""
        return {name: value for name, value in vars(self).items() if name != "samples"}
