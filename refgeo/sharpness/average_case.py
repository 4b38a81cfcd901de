r"""Average-case sharpness: the mean increase of the loss over random horizontal perturbations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

from refgeo.geometry.tangent_space import Metric
from refgeo.sharpness.auto_pgd import norm
from refgeo.sharpness.noise import least_noise
from refgeo.sharpness.objective import ParameterSpace, check_symmetry
from refgeo.sharpness.parameters import Calls, as_loss, on_batch
from refgeo.sharpness.result import AverageSharpness
from refgeo.sharpness.search import Callback, ProgressMonitor, as_batches
from refgeo.support.arguments import Array, Order, integer, one_of, order_of, radius_of, seed_of
from refgeo.support.errors import Interrupted
from refgeo.support.progress import interruptible, show_progress


def average_case_sharpness(
    value: Callable[..., float],
    params: Any,
    metric: Metric[Any],
    rho: float,
    *,
    distribution: Literal["ball", "normal"] = "ball",
    n_samples: int = 100,
    order: Order = 2,
    rng: np.random.Generator | int | None = 0,
    batches: Iterable[Any] | None = None,
    callback: Callback | None = None,
    verify: bool = True,
    progress: bool = False,
) -> AverageSharpness:
    r"""Return the mean of L(γ_ξ(1)) − L(θ) over horizontal ξ, uniform in the ball ‖ξ‖ ≤ ρ of `worst_case_sharpness`.

    So it is at most the worst case at the same ρ. In N dimensions, at a critical point and to second order in ρ, it is
    ½ρ² tr(H)/(N + 2) with the Riemannian Hessian H; for ``distribution="normal"``, ξ = ρPn with n standard normal in
    metric-orthonormal coordinates, whose length is about ρ√N, it is ½ρ² tr(H). Perturbations come in pairs ±ξ, so that
    the first-order part, which has mean zero, does not add to the error.

    Parameters
    ----------
    value : callable
        ``value(params) -> loss``; with `batches`, ``value(params, batch)``.
    params : Pair, array or dict of these
    metric : Metric
    rho : float
        The radius of the ball; for "normal", the standard deviation along every horizontal direction.
    distribution : "ball" or "normal"
    n_samples : int
        Evaluations of the loss per batch, an even number >= 4.
    order : 1, 2 or "exact"
        Of the geodesics.
    rng : numpy Generator, or a seed
    batches : iterable, optional
        As in `worst_case_sharpness`.
    callback : callable, optional
        Called with a `Progress` after every pair (``value`` and ``best`` are that pair's value). Raise
        ``StopIteration`` in it to stop; batches of which fewer than two pairs are done are left out.
    verify : bool
        Before anything is drawn, evaluate the first batch where random elements of the groups that the metric divides
        out carry θ, and after other changes of the same size: an error says which symmetry the loss does not have, or
        that this is undecided.
    progress : bool
        Show how far it is, on a terminal as a bar.

    Returns
    -------
    AverageSharpness
        With a standard error, and the number of pairs that left the domain and were not averaged in.

    Raises
    ------
    ValueError
        An argument is out of range; the loss at θ is not finite; fewer than two pairs stayed in the domain.
    Interrupted
        Ctrl-C was pressed: a ``KeyboardInterrupt`` whose ``result`` is the mean of the pairs that were done.

    Examples
    --------
    The mean of ½‖w‖² in three dimensions is 0.3 ρ² in the ball, and 1.5 ρ² over w ~ N(0, ρ²):

    >>> import refgeo as rg
    >>> loss = lambda w: 0.5 * float(w @ w)
    >>> for distribution, expected in (("ball", 0.003), ("normal", 0.015)):
    ...     result = rg.average_case_sharpness(loss, np.zeros(3), rg.EuclideanMetric(), 0.1, n_samples=4000,
    ...                                        distribution=distribution)
    ...     print(bool(abs(result.value - expected) < 3 * result.standard_error < 0.1 * expected))
    True
    True
    """
    rho, order, seed = radius_of(rho), order_of(order), seed_of(rng)
    one_of("distribution", distribution, ("ball", "normal"))
    n_samples = integer("n_samples", n_samples)
    if n_samples < 4 or n_samples % 2:
        raise ValueError(
            f"n_samples: expected an even number >= 4, because steps are drawn in pairs ξ and −ξ, got {n_samples}"
        )
    space, losses = ParameterSpace(params, metric), _losses(value, batches)
    calls = Calls("value", value)
    with calls, show_progress("averaging", quiet=not progress) as tell, interruptible() as interrupted:
        at_origin = [as_loss("value", loss(space.point(np.zeros(space.length), order))) for loss in losses]
        for index, loss in enumerate(at_origin):
            if not math.isfinite(loss):
                where = f", batch {index}," if batches is not None else ","
                raise ValueError(f"value: expected a finite loss at the given parameters{where} got {loss}")
        noise = 0.0
        if verify:
            noise = _noise(space, losses[0])
            check_symmetry(space, losses[0], noise)
        monitor = ProgressMonitor(callback, len(losses) * n_samples // 2, tell, interrupted)

        def loss_at(batch: int, x: Array) -> float:
            point = space.point(x, order)
            loss = math.nan if point is None else as_loss("value", losses[batch](point))
            return loss if math.isfinite(loss) else math.nan

        def pair(batch: int, sample: int) -> float | None:
            if monitor.is_stopped:
                return None
            x = _draw(space, rho, distribution, np.random.default_rng([seed, batch, sample]))
            increase = 0.5 * (loss_at(batch, x) + loss_at(batch, -x)) - at_origin[batch]
            monitor.tell(batch, sample, rho, 0, increase, increase, rho)
            return increase

        increases = [pair(batch, sample) for batch in range(len(losses)) for sample in range(n_samples // 2)]
        if interrupted() and sum(value is not None for value in increases) < 2:
            raise KeyboardInterrupt
        samples = np.array([math.nan if value is None else value for value in increases]).reshape(len(losses), -1)
        is_drawn = np.array([value is not None for value in increases]).reshape(samples.shape)
        result = _average(samples, is_drawn, at_origin, rho, monitor.is_stopped, noise)
        if interrupted():
            raise Interrupted(result)
    return result


def _noise(space: ParameterSpace, loss: Callable[[Any], float]) -> float:
    """Measure the noise of the loss at θ, along a random direction; 0 if nothing moves."""

    def along(i: int) -> Callable[[float], float]:
        direction = space.random_direction(np.random.default_rng(i))
        unit = direction * (space.size / (norm(direction) or 1.0))

        def at(t: float) -> float:
            point = space.point(t * unit, 1)
            return math.nan if point is None else as_loss("value", loss(point))

        return at

    noise = least_noise(along) if space.dim else 0.0
    return noise if math.isfinite(noise) else 0.0


def _draw(space: ParameterSpace, rho: float, distribution: str, rng: np.random.Generator) -> Array:
    """Return coordinates of ξ."""
    normal = space.random_direction(rng)
    if space.dim == 0:
        return 0.0 * normal
    if distribution == "normal":
        return rho * normal
    length = norm(normal)
    return normal * (rho * rng.random() ** (1.0 / space.dim) / length) if length > 0.0 else normal


def _losses(value: Callable[..., float], batches: Iterable[Any] | None) -> list[Callable[[Any], float]]:
    """Return a function of the parameters for each batch."""
    losses = [value] if batches is None else [on_batch(value, batch) for batch in as_batches(batches)]
    if not losses:
        raise ValueError("batches: expected at least one batch, got none")
    return losses


def _spread(samples: Array) -> float:
    """Return the standard deviation, also where squares leave the range."""
    size = float(np.max(np.abs(samples))) or 1.0
    return size * float(np.std(samples / size, ddof=1))


def _average(
    samples: Array, begun: Array, at_origin: list[float], rho: float, stopped: bool, noise: float
) -> AverageSharpness:
    """Return the mean over batches of the mean over their pairs; NaN is a pair that left the domain, or had not
    begun.
    """
    kept = np.isfinite(samples)
    enough = kept.sum(axis=1) >= 2
    if stopped and enough.any():
        samples, begun, kept = samples[enough], begun[enough], kept[enough]
        at_origin = [loss for loss, used in zip(at_origin, enough, strict=True) if used]
    elif stopped:
        raise ValueError(
            "callback: it stopped the computation before two pairs of steps ξ and −ξ were done; stop it later"
        )
    elif not enough.all():
        raise ValueError(
            "rho: expected at least two pairs of steps ξ and −ξ for which the geodesics exist and the loss is "
            f"finite, got fewer than two of {samples.shape[1]} pairs at rho = {rho:g}; try a smaller rho"
        )
    means = [float(np.mean(row[keep])) for row, keep in zip(samples, kept, strict=True)]
    errors = [_spread(row[keep]) / math.sqrt(keep.sum()) for row, keep in zip(samples, kept, strict=True)]
    return AverageSharpness(
        value=math.fsum(means) / len(means),
        standard_error=math.hypot(*errors, *[noise] * len(errors)) / len(errors),  # L(θ) is in all pairs of a batch
        loss=math.fsum(at_origin) / len(at_origin),
        samples=samples,
        n_rejected=int((begun & ~kept).sum()),
        rho=rho,
    )
