r"""Adaptive sharpness (Eq. 1; Kwon et al. 2021): the baseline, which knows no curvature.

:math:`\max_{‖δ ⊘ |θ|‖_p ≤ ρ} L(θ + δ) - L(θ)`: geodesics of order 1 of the elementwise metric, in whose coordinates
δ ⊘ θ the ball is one of ℝᴺ. (The paper's text prints ``‖δ ⊙ |θ|‖``; its App. D has it right.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from refgeo.geometry.arrays import ElementwiseMetric
from refgeo.geometry.product import ProductMetric
from refgeo.landscape.auto_pgd import Ball, Box, RoundBall
from refgeo.landscape.objective import Objective, ParameterSpace
from refgeo.landscape.parameters import Arrays, LossAndGradient
from refgeo.landscape.result import SharpnessCurve, SharpnessResult
from refgeo.landscape.search import N_RESTARTS, Callback, Effort, search
from refgeo.support.arguments import Array, listed, radii_listed

_NORMS: dict[float, Callable[[float], Ball]] = {2: RoundBall, math.inf: Box}


@overload
def adaptive_sharpness(
    value_and_grad: LossAndGradient, params: Any, rho: float, **settings: Any
) -> SharpnessResult: ...
@overload
def adaptive_sharpness(
    value_and_grad: LossAndGradient, params: Any, rho: Sequence[float], **settings: Any
) -> SharpnessCurve: ...
def adaptive_sharpness(  # type: ignore[misc]  # it names the settings that the overloads leave open
    value_and_grad: LossAndGradient,
    params: Any,
    rho: float | Sequence[float],
    *,
    norm: float = 2,
    names: Iterable[str] | None = None,
    method: Literal["model_steps", "auto_pgd"] | None = None,
    n_iter: int = 20,
    n_restarts: int = N_RESTARTS,
    rng: np.random.Generator | int | None = 0,
    batches: Iterable[Any] | None = None,
    workers: int = 1,
    callback: Callback | None = None,
    verify: bool = True,
    memory: float | None = None,
    maximizers: bool = True,
) -> SharpnessResult | SharpnessCurve:
    r"""The largest increase of a loss under perturbations δ with :math:`‖δ ⊘ |θ|‖ ≤ ρ` (Eq. 1), by Auto-PGD.

    Parameters
    ----------
    value_and_grad : callable
        As in `worst_case_sharpness`.
    params : Pair, array or dict of these
        Parameters that are exactly zero do not move.
    rho : float or sequence of float
        Radius of the ball, or radii, as in `worst_case_sharpness`.
    norm : 2 or inf
    names : iterable of str, optional
        The blocks of a dict that are perturbed; default: all.
    method : "model_steps" or "auto_pgd"
        As in `worst_case_sharpness`. The first is for round balls only; for the norm inf the second is the default.
    n_iter, n_restarts : int
        As in `worst_case_sharpness`.
    rng : numpy Generator, or a seed
        Of random starts.
    batches : iterable, optional
        As in `worst_case_sharpness`.
    workers : int
        Threads.
    callback : callable, optional
        As in `worst_case_sharpness`.
    verify : bool
        Evaluate twice at θ and compare the gradient with differences along it and along a random direction, before the
        search: an error says which block disagrees (`refgeo.check_gradient`), or that the loss is not the same twice.
        Evaluate at θ once more after the search of every batch: an error says that the loss has changed. None of these
        evaluations is counted, and all but the last are of the first batch only.
    memory : float, optional
        As in `worst_case_sharpness`; the norm inf takes what it needs.

    Returns
    -------
    SharpnessResult, or SharpnessCurve for several radii
        Its ``maximizer`` is δ.

    Examples
    --------
    >>> import refgeo as rg
    >>> loss = lambda w: (float(w.sum()), np.ones(2))
    >>> round(rg.adaptive_sharpness(loss, np.array([3.0, 4.0]), rho=0.1).value, 12)
    0.5
    >>> round(rg.adaptive_sharpness(loss, np.array([3.0, 4.0]), rho=0.1, norm=np.inf).value, 12)
    0.7
    """
    if not isinstance(norm, (int, float)) or norm not in _NORMS:
        raise ValueError(f"norm: expected 2 or inf, got {norm!r}")
    if method == "model_steps" and norm != 2:
        raise ValueError(
            'method: expected "auto_pgd" for the norm inf, got "model_steps", which works for the norm 2 only'
        )
    chosen = method if method is not None else "model_steps" if norm == 2 else "auto_pgd"
    effort = Effort(chosen, n_iter, n_restarts, rng, workers, callback, verify, memory, maximizers)
    radii = radii_listed(rho)
    arrays = Arrays(params, _chosen(params, names))
    space = _RelativeSteps(arrays)
    if norm == 2:
        effort.plan(space.tangent.n_coordinates)
    settings = {"sharpness": "adaptive", "norm": "inf" if norm == math.inf else 2}

    def objective(loss: LossAndGradient) -> Objective:
        return Objective(arrays.value_and_grad(loss), space, 1, 1, kept=effort.kept)

    balls = [_NORMS[norm](radius) for radius in radii]
    results = search(value_and_grad, params, objective, batches, balls, effort, settings)
    return results[0] if np.ndim(rho) == 0 else SharpnessCurve(tuple(results))


class _RelativeSteps(ParameterSpace):
    """Every array with the elementwise metric, whose coordinates are δ ⊘ θ."""

    def __init__(self, arrays: Arrays) -> None:
        metrics: dict[Any, ElementwiseMetric] = {name: ElementwiseMetric() for name in arrays.given}
        super().__init__(arrays.given, ProductMetric(metrics))
        self._arrays = arrays

    def tangent_vector(self, x: Array) -> Any:
        """δ, of the type of the parameters."""
        return self._arrays.joined(super().tangent_vector(x))


def _chosen(params: Any, names: Iterable[str] | None) -> list[str] | None:
    """The blocks that move, each once."""
    if not isinstance(params, Mapping):
        if names is not None:
            raise ValueError("names: expected no names, because params is not a dict")
        return None
    chosen = list(params) if names is None else listed(names)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"names: expected each block once, got {chosen}")
    unknown = [name for name in chosen if name not in params]
    if unknown or not chosen:
        raise ValueError(f"names: expected blocks of params, got {unknown or chosen}")
    return chosen
