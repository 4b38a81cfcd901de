r"""Worst-case sharpness over a geodesic ball (Eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np

from refgeo.geometry.pair import as_factors
from refgeo.geometry.tangent_space import Metric
from refgeo.landscape.auto_pgd import RoundBall
from refgeo.landscape.objective import Objective, ParameterSpace
from refgeo.landscape.parameters import LossAndGradient
from refgeo.landscape.result import SharpnessCurve, SharpnessResult
from refgeo.landscape.search import N_RESTARTS, Callback, Effort, search
from refgeo.support.arguments import Order, one_of, order_of, radii_listed


@overload
def worst_case_sharpness(
    value_and_grad: LossAndGradient, params: Any, metric: Metric[Any], rho: float, **settings: Any
) -> SharpnessResult: ...
@overload
def worst_case_sharpness(
    value_and_grad: LossAndGradient, params: Any, metric: Metric[Any], rho: Sequence[float], **settings: Any
) -> SharpnessCurve: ...
def worst_case_sharpness(  # type: ignore[misc]  # it names the settings that the overloads leave open
    value_and_grad: LossAndGradient,
    params: Any,
    metric: Metric[Any],
    rho: float | Sequence[float],
    *,
    order: Order = 2,
    method: Literal["model_steps", "auto_pgd"] = "model_steps",
    n_iter: int = 20,
    n_restarts: int = N_RESTARTS,
    rng: np.random.Generator | int | None = 0,
    gradient: Literal["exact", "paper"] = "exact",
    dtype: Literal["float64", "float32"] = "float64",
    batches: Iterable[Any] | None = None,
    workers: int = 1,
    callback: Callback | None = None,
    verify: bool = True,
    memory: float | None = None,
    maximizers: bool = True,
) -> SharpnessResult | SharpnessCurve:
    r"""The largest increase of a loss in a geodesic ball, by Auto-PGD (Eq. 3; Alg. 1).

    .. math:: \max_{‖ξ‖_θ ≤ ρ,\; ξ\,\text{horizontal}} L(γ_ξ(1)) - L(θ)

    The search runs in orthonormal coordinates of the horizontal space, where the ball is round. The first start is
    along the Riemannian gradient, so that at another point of the orbit the same search takes place. Every further
    one begins at the best of four points, which are found in a few iterations along two random directions and their
    opposites, drawn in coordinates; so does the first, in one direction, where the gradient is nothing but rounding.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(params) -> (loss, grads)``, with ``params`` of the type given here: a `Pair`, an array or a
        dict of these, and ``grads`` alike (for a dict, blocks that the metric does not name may be left out). Any
        program can be behind it; `refgeo.value_and_grad` makes one with autograd. With `batches`, it is called as
        ``value_and_grad(params, batch)``.
    params : Pair, array or dict
        The point θ.
    metric : Metric
        For a dict, a `ProductMetric`: parameters that it does not name stay fixed.
    rho : float or sequence of float
        Radius of the ball in the metric. For several there is one search each, and the maximizer of a smaller ball is
        moved to the boundary of the next larger one and tried as a start there; a larger ball never gives less.
    order : 1, 2 or "exact"
        Of the geodesics; 2 is the paper's (4).
    method : "model_steps" or "auto_pgd"
        "auto_pgd" with ``gradient="paper"`` and ``n_restarts=1`` is Alg. 1 literally. "model_steps" spends every fourth
        evaluation, and the last, on the maximum of a quadratic model made of the 20 latest points, as long as that
        pays; of fewer where memory is short.
    n_iter : int
        Iterations of each start. Each takes one evaluation of the loss and its gradient.
    n_restarts : int
        Number of starts; the best is returned, and ``result.n_reached`` says how many have reached it. 1 is the paper's
        protocol and takes ``n_iter + 1`` evaluations; every further start takes ``n_iter + 17`` more, 16 of them to
        choose among four random directions, and of several the best is followed further where it is not stationary. Of
        60 small problems, 4 miss more than 1% of the maximum at ρ = 0.1 with one start, and 13 at ρ = 0.5; with five,
        none and 2 (`validation.search_methods`).
    rng : int, numpy Generator or None
        Seed. The same seed gives the same result, whatever the number of workers.
    gradient : "exact" or "paper"
        "exact": of :math:`ξ ↦ L(γ_ξ(1))`, with the derivative of Γ. "paper": that of L at the perturbed parameters.
    dtype : "float64" or "float32"
        Of the search's vectors, and of the points that `value_and_grad` gets. "float32" saves about half of the time
        and a third of the memory beside a loss that is computed in float32 itself. The base point is factorised in
        double precision all the same; points and gradients have the errors that rounding parameters to float32 has:
        1e-7 times the condition number of the factors. Radii that are not long beside that are refused.
    batches : iterable, optional
        Each batch has a maximum of its own; the values are averaged (Eq. 3).
    workers : int
        Threads, over batches if there are any, else over starts; `value_and_grad` must then be thread-safe, and
        NumPy's linear algebra has one thread each.
    callback : callable, optional
        Called with a `Progress` after every evaluation. Raise ``StopIteration`` in it to stop: what has been found by
        then is returned, without the batches that had not begun.
    verify : bool
        Before the search evaluate twice at θ, and compare the gradient with differences along it and along a random
        direction: an error says which block disagrees (`refgeo.check_gradient`), or that the loss is not the same
        twice. Evaluate where random elements of the groups that the metric divides out carry θ: an error says which
        symmetry the loss has not, after a few more evaluations if it has changed (`refgeo.symmetry.verify`). Evaluate
        at θ once more after the search of every batch: an error says that the loss has changed. None of these
        evaluations is counted, and all but the last are of the first batch only.
    memory : float, optional
        Bytes that the search may need beside the loss. Default: 16 times the size of the moving parameters in float32,
        12 with one start, or what 25 vectors in double precision take if that is at most 48 MB. With less memory the
        search keeps vectors in single precision, and fewer of them; ``result.settings`` says how many, and in which
        precision.
    maximizers : bool
        Whether results keep their maximizers. Each takes 8 bytes a parameter that moves, which `memory` does not count.

    Returns
    -------
    SharpnessResult, or SharpnessCurve for several radii
        A step that leaves the domain (an incomplete geodesic, a loss or gradient that is not finite) is undone and
        the next one halved.

    Raises
    ------
    ValueError
        Loss or gradient at θ itself is not finite; an argument is out of range; `memory` is not enough.
    TypeError
        Something is of the wrong kind; the message says what was expected.

    Examples
    --------
    A scalar network with the loss ½(GH − 1)², at GH = 6:

    >>> import refgeo as rg
    >>> def loss(pair):
    ...     residual = pair.G @ pair.H.T - 1.0
    ...     return 0.5 * residual.item() ** 2, rg.Pair(residual @ pair.H, residual.T @ pair.G)
    >>> result = rg.worst_case_sharpness(loss, rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.1, order="exact")
    >>> expected = 0.5 * (6.0 * np.exp(0.1 * 2**0.5) - 1.0) ** 2 - 12.5
    >>> bool(abs(result.value - expected) < 1e-12), result.converged
    (True, True)
    """
    effort = Effort(method, n_iter, n_restarts, rng, workers, callback, verify, memory, maximizers)
    radii, order = radii_listed(rho), order_of(order)
    if gradient not in ("exact", "paper"):
        raise ValueError(f'gradient: expected "exact" or "paper", got {gradient!r}')
    one_of("dtype", dtype, ("float64", "float32"))
    space = ParameterSpace(params, metric)
    if dtype == "float32":
        _refuse_rounding(space, min(radii))
    effort.plan(space.tangent.n_coordinates, dtype)
    settings: dict[str, Any] = {"sharpness": "worst case", "metric": str(metric), "order": order}
    settings |= {"gradient": gradient, "dtype": dtype}

    def objective(loss: LossAndGradient) -> Objective:
        return Objective(loss, space, order, order if gradient == "exact" else 1, dtype, effort.kept)

    balls = [RoundBall(radius) for radius in radii]
    results = search(value_and_grad, params, objective, batches, balls, effort, settings)
    return results[0] if np.ndim(rho) == 0 else SharpnessCurve(tuple(results))


def _refuse_rounding(space: ParameterSpace, rho: float) -> None:
    """Rounding every parameter to float32 must be short beside a perturbation, and possible."""
    with np.errstate(over="ignore", invalid="ignore"):
        here = space.tangent.point_at(np.zeros(space.tangent.n_coordinates, np.float32), 1)
    if not all(np.isfinite(factor).all() for block in here.values() for factor in as_factors(block)):
        raise ValueError('dtype: expected parameters that are finite in float32, got larger ones; use "float64"')
    least = 50.0 * 2.0**-24 * math.sqrt(space.tangent.n_coordinates)
    if rho < least:
        raise ValueError(
            f'rho: expected at least {least:.1g} with dtype="float32", got {rho:g}; rounding the '
            f'{space.tangent.n_coordinates} parameters to float32 alone moves them by {least / 50.0:.1g}; use "float64"'
        )
