r"""Worst-case sharpness over a geodesic ball (Eq. 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np

from refgeo.geometry.tangent_space import Metric
from refgeo.sharpness.auto_pgd import N_RESTARTS, RoundBall
from refgeo.sharpness.objective import Objective, ParameterSpace
from refgeo.sharpness.parameters import LossAndGradient
from refgeo.sharpness.result import SharpnessCurve, SharpnessResult
from refgeo.sharpness.search import Callback, SearchOptions, search
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
    n_iter: int = 20,
    n_restarts: int = N_RESTARTS,
    rng: np.random.Generator | int | None = 0,
    gradient: Literal["exact", "paper"] = "exact",
    batches: Iterable[Any] | None = None,
    callback: Callback | None = None,
    verify: bool = True,
    maximizers: bool = True,
    progress: bool = False,
) -> SharpnessResult | SharpnessCurve:
    r"""Find the largest increase of a loss in a geodesic ball, by Auto-PGD (Eq. 3; Alg. 1).

    .. math:: \max_{‖ξ‖_θ ≤ ρ,\; ξ\,\text{horizontal}} L(γ_ξ(1)) - L(θ)

    The search runs in orthonormal coordinates of the horizontal space, where the ball is round. The first start is
    along the Riemannian gradient, so that at another point of the orbit the same search takes place. Every further
    one begins at the best of four points, which are found in a few iterations along two random directions and their
    opposites, drawn in coordinates; the first begins in one of these where the gradient is nothing but rounding.
    ``gradient="paper"`` and ``n_restarts=1`` is Alg. 1 literally, but for a gradient that is nothing but rounding.
    Beside the loss a search of a network of many blocks needs at most 12 times the memory that the moving parameters
    take in float32, and of a single large block up to 21 times.

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
    n_iter : int
        Iterations of each start. Each takes one evaluation of the loss and its gradient.
    n_restarts : int
        Number of starts; the best is returned, and ``result.n_reached`` says how many have reached it. 1 is the paper's
        protocol and takes ``n_iter + 1`` evaluations; every further start takes ``n_iter + 17`` more, 16 of them to
        choose among four random directions, and of several the best is followed further where it is not stationary.
    rng : int, numpy Generator or None
        Seed. The same seed gives the same result.
    gradient : "exact" or "paper"
        "exact": of :math:`ξ ↦ L(γ_ξ(1))`, with the derivative of Γ. "paper": that of L at the perturbed parameters.
    batches : iterable, optional
        Each batch has a maximum of its own; the values are averaged (Eq. 3).
    callback : callable, optional
        Called with a `Progress` after every evaluation. Raise ``StopIteration`` in it to stop: what has been found by
        then is returned, without the batches that had not begun.
    verify : bool
        Before the search evaluate twice at θ, measure the noise of the loss, and compare the gradient with differences
        along it and along random signs, as far as the noise lets it be seen: an error says which block disagrees
        (`refgeo.check_gradient`), that the loss is not the same twice, that the gradient of a block is zero where the
        loss changes, or that the loss does not depend on a block that is to move. Evaluate where random elements of the
        groups that the metric divides out carry θ, and after other changes of the same size: an error says which
        symmetry the loss does not have, or that this is undecided (`refgeo.symmetry.verify`); one says that a metric of
        your own does not live on the quotient. Evaluate at θ once more after the search of every batch: an error says
        that the loss has changed. Compare the gradient with differences at the maximizer, too. None of these
        evaluations, at most 30 at θ and usually 4 at the maximizer, is counted; the noise of the first batch stands for
        that of the others.
    maximizers : bool
        Whether results keep their maximizers. Each takes 8 bytes a parameter that moves.
    progress : bool
        Show how far the search is, on a terminal as a bar.

    Returns
    -------
    SharpnessResult, or SharpnessCurve for several radii
        A step that leaves the domain (an incomplete geodesic, a loss or gradient that is not finite) is undone and
        the next one halved.

    Raises
    ------
    ValueError
        Loss or gradient at θ itself is not finite; an argument is out of range.
    TypeError
        Something is of the wrong kind; the message says what was expected.
    Interrupted
        Ctrl-C was pressed, after the evaluation that was running: a ``KeyboardInterrupt`` whose ``result`` is what was
        found by then. Pressed again, it ends at once.

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
    options = SearchOptions(n_iter, n_restarts, rng, callback, verify, maximizers, progress)
    radii, order = radii_listed(rho), order_of(order)
    one_of("gradient", gradient, ("exact", "paper"))
    space, gradient_order = ParameterSpace(params, metric), order if gradient == "exact" else order_of(1)
    settings = {"sharpness": "worst case", "metric": str(metric), "order": order, "gradient": gradient}
    balls = [RoundBall(radius) for radius in radii]
    return search(
        value_and_grad, params, lambda loss: Objective(loss, space, order, gradient_order), batches, balls, options,
        settings, np.ndim(rho) == 0,
    )  # fmt: skip
