"""What the sharpness functions return."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from refgeo.support.arguments import Array
from refgeo.support.figures import plain_axes

_CLEARLY = 100.0
"""A value that is less than so many times the noise of the loss has no two digits."""
_BENT = 0.5
"""Of `SharpnessResult.bend`: along Geᵇ, the geodesic of inv for h = 1, an error of 15% of the displacement."""


class Progress(NamedTuple):
    """What a callback is told after every evaluation of the loss.

    ``done`` of ``total`` evaluations are over, of all batches and starts (None if the number of batches is not known;
    fewer can be enough, so ``total`` need not be reached); ``value`` is the one just found (−inf where
    the step was rejected), ``best`` the best of its start; ``rho`` is the radius of the ball that is searched.

    Examples
    --------
    >>> import refgeo as rg
    >>> heard = []
    >>> loss = rg.value_and_grad(lambda w: (w**2).sum())
    >>> settings = {"n_iter": 3, "n_restarts": 1, "callback": heard.append}
    >>> _ = rg.worst_case_sharpness(loss, np.ones(2), rg.EuclideanMetric(), rho=1.0, **settings)
    >>> [progress.done for progress in heard]
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
        The ξ where it was found, of the type of the parameters; with `batches`, a list of them.
    loss, loss_max : float
        L(θ) and L(γ_ξ(1)); with `batches`, means.
    trace : ndarray
        The best value after every evaluation of the best start; with `batches`, means.
    values : ndarray
        The value at every evaluation of the best start, −inf where the step was rejected; those of other starts, of
        the points between which a start is chosen, and of what continues the best are counted and not kept.
    steps : ndarray
        The step sizes that led there.
    n_evaluations : int
        Of loss and gradient, all starts and batches together.
    n_rejected : int
        Steps that left the domain: an incomplete geodesic, or a loss that is not finite.
    residual : float
        How far `maximizer` is from a stationary point of the ball, 0 to about 2: ‖P(ξ + ρ g/‖g‖) − ξ‖/ρ with the
        gradient g there and the projection P onto the ball; the largest of all batches.
    converged : bool
        Whether `residual` is at most 0.01: a local statement, of first order. It does not say that the maximum is the
        global one, nor, where the loss bends much, how much more there is to find nearby.
    n_reached : int
        How many of the starts ended within 1% of `value`; with `batches`, the smallest of these numbers. One of
        several is a warning: further starts (``n_restarts``) may well find more. None is one, too: what was better came
        from a smaller ball, or by continuing the best start.
    rho : float
        The ball's radius.
    settings : dict
        What else was chosen, for the record.
    bend : float
        With second-order geodesics, ‖½Γ(ξ, ξ)‖/‖ξ‖ at the maximizer, the largest of all blocks and heads: where it is
        not small, these are no approximation of geodesics.
    noise : float
        What values of the loss are off by, measured before the search; the largest of all batches. NaN if it was not:
        ``verify=False``, or a loss that does not change.
    untold : tuple of str
        Along which directions this noise hides whether the gradient is that of the loss.
    batches : tuple of SharpnessResult
        One for every batch; empty without `batches`.

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
    untold: tuple[str, ...] = ()
    batches: tuple[SharpnessResult, ...] = field(default=(), repr=False)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        """What it found, and what to try where that is not to be taken as it is."""
        starts = self.settings.get("n_restarts", 1)
        several = starts > 1 and not self._found_nowhere_to_go
        by = f"reached by {self.n_reached} of" if self.n_reached else "more than each of"
        reached = f", {by} {starts} starts" if several else ""
        found = (
            f"sharpness {self.value:.6g} at ρ = {self.rho:g} (loss {self.loss:.6g}, {self.n_evaluations} evaluations, "
            f"{'converged' if self.converged else 'not converged'}{reached})"
        )
        return f"{found}\n{self.advice}" if self.needs_advice else found

    @property
    def needs_advice(self) -> bool:
        """Whether the value is not to be taken as it is: the search has not converged, or left the approximation.

        Examples
        --------
        >>> import refgeo as rg
        >>> loss = lambda w: (float(w @ w), 2 * w)
        >>> rg.worst_case_sharpness(loss, np.ones(4), rg.EuclideanMetric(), rho=0.1).needs_advice
        False
        """
        return not self.converged or self.bend > _BENT or bool(self._of_noise)

    @property
    def advice(self) -> str:
        """What to try for a better value."""
        return " ".join([*self._of_noise, self._of_search])

    @property
    def _of_noise(self) -> list[str]:
        """What the noise of the loss hides."""
        found = []
        if 0.0 < self.value < _CLEARLY * self.noise:
            found.append(
                f"values of the loss are off by about {self.noise:.1g}, which is {self.noise / self.value:.0%} of the "
                "sharpness: use a larger rho, or a loss in float64."
            )
        if self.untold:
            found.append(
                f"whether the gradient is that of the loss could not be told along {' and '.join(self.untold)}: the "
                "noise of the loss hides its slope."
            )
        return found

    @property
    def _found_nowhere_to_go(self) -> bool:
        return len(self.trace) == 1 and self.value == 0.0

    @property
    def _of_search(self) -> str:
        if self._found_nowhere_to_go:
            return (
                "no search was made: no parameter can move, or the gradient is zero here and wherever a random step led"
            )
        if self.bend > _BENT:
            return (
                f"ρ is too large: the second-order correction is {self.bend:.2g} times as long as the first-order "
                "step. "
                'Use a smaller rho (refgeo.proposed_radius), or order="exact", which is slow if the geodesics of the '
                "metric have no closed form"
            )
        again = f"n_restarts={max(5, 2 * self.settings.get('n_restarts', 1))} shows whether another start gives more"
        if self.converged:
            return f"the search ended at a stationary point (residual {self.residual:.2g}); {again}"
        done = len(self.trace) - 1
        if not np.isfinite(self.residual) or self.n_rejected > self.n_evaluations // 2:
            return (
                f"in {self.n_rejected} of {self.n_evaluations} evaluations, the geodesic did not exist or the loss "
                "was not finite: try a smaller rho"
            )
        if done == 0:
            return f"no start found more than the maximizer of a smaller ball, which is not stationary here; {again}"
        here = f"the search ended at a point that is not stationary (residual {self.residual:.3g} > 0.01)"
        return f"{here}: try n_iter={2 * done}; {again}"

    def to_dict(self) -> dict[str, Any]:
        """The numbers and settings without the arrays, for a table or JSON.

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
        """The sharpness for each."""
        return np.array([result.value for result in self.results])

    def __repr__(self) -> str:
        rows = (
            f"{one.rho:10.4g}  {one.value:12.6g}  {one.residual:8.2g}  {one.n_evaluations:11}"
            f"  {'yes' if one.converged else 'no':>9}"
            for one in self
        )
        return "\n".join(["       rho     sharpness  residual  evaluations  converged", *rows])

    def __str__(self) -> str:
        """The table, and below it what to try where a value is not to be taken as it is."""
        advice = [f"ρ = {one.rho:g}: {one.advice}" for one in self if one.needs_advice]
        return "\n".join([repr(self), *advice])

    def to_dict(self) -> dict[str, list[Any]]:
        """A column for every number and setting; `pandas.DataFrame` takes it.

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
        """Sharpness over radius, both logarithmic, with matplotlib; returns the axes. Hollow where not converged.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Default: those of a new figure.
        label : str, optional
            For a legend.
        """
        ax = plain_axes(ax)
        order = np.argsort(self.rho)
        (line,) = ax.loglog(self.rho[order], self.values[order], "o-", label=label)
        unsure = [one for one in self if not one.converged]
        ax.plot([one.rho for one in unsure], [one.value for one in unsure], "o", color=line.get_color(), mfc="white")
        ax.set_xticks(self.rho[order], [f"{rho:.3g}" for rho in self.rho[order]])
        ax.minorticks_off()
        ax.set_xlabel("radius ρ")
        ax.set_ylabel("increase of the loss")
        return ax


_NUMBERS = (
    "value", "loss", "loss_max", "n_evaluations", "n_rejected", "residual", "converged", "rho", "bend", "n_reached",
    "noise",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AverageSharpness:
    """The mean increase of the loss over random perturbations.

    Attributes
    ----------
    value : float
        The mean of ½[L(γ_ξ(1)) + L(γ_{−ξ}(1))] − L(θ) over the pairs ±ξ that stayed in the domain.
    standard_error : float
        Of `value`, from the spread of the pairs, and from the noise of the loss at θ, which all pairs have in common;
        it does not include the choice of batches.
    loss : float
        L(θ), the mean over batches.
    samples : ndarray, shape ``(batches, pairs)``
        The value of every pair, NaN where it was rejected.
    n_rejected : int
        Pairs of which one left the domain: an incomplete geodesic, or a loss that is not finite. They are not
        averaged in, so with any of them the value is that of the perturbations within the domain.
    rho : float

    Examples
    --------
    >>> import refgeo as rg
    >>> loss = lambda w: float((w**2).sum())
    >>> found = rg.average_case_sharpness(loss, np.ones(2), rg.EuclideanMetric(), rho=0.1, n_samples=400)
    >>> abs(found.value - 0.005) < 3 * found.standard_error  # ½ρ² tr(Hess)/(N + 2), N = 2
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
        """The numbers without the samples, for a table or JSON."""
        return {name: value for name, value in vars(self).items() if name != "samples"}
