r"""Adaptive sharpness (Eq. 1; Kwon et al. 2021): the baseline, written without any metric.

:math:`\max_{‖δ ⊘ |θ|‖_p ≤ ρ} L(θ + δ) - L(θ)`. With δ = θ ⊙ u the ball is one of ℝᴺ in u. (The paper's text prints
``‖δ ⊙ |θ|‖``; its App. D has it right.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from refgeo.arguments import Array, listed, radii_listed, real_array
from refgeo.pair import Pair
from refgeo.sharpness.auto_pgd import Ball, Box, RoundBall
from refgeo.sharpness.objective import Increase
from refgeo.sharpness.parameters import (
    ONLY,
    LossAndGradient,
    Parameters,
    as_factors,
    checked_evaluation,
    checked_gradient,
    on_batch,
)
from refgeo.sharpness.result import SharpnessCurve, SharpnessResult
from refgeo.sharpness.search import Callback, Effort, search
from refgeo.sharpness.vectors import Combination, Precise, Vector

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
    n_restarts: int = 1,
    rng: np.random.Generator | int | None = 0,
    batches: Iterable[Any] | None = None,
    workers: int = 1,
    callback: Callback | None = None,
    verify: bool = True,
    memory: float | None = None,
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
        raise ValueError('method: expected "auto_pgd" for the norm inf, whose ball is not round, got "model_steps"')
    chosen = method if method is not None else "model_steps" if norm == 2 else "auto_pgd"
    effort = Effort(chosen, n_iter, n_restarts, rng, workers, callback, verify, memory)
    radii = radii_listed(rho)
    arrays = Arrays(params, names)
    if norm == 2:
        effort.plan(len(arrays.theta))
    settings = {
        "sharpness": "adaptive",
        "norm": "inf" if norm == math.inf else 2,
    }

    def objective(batch: Any) -> _Adaptive:
        loss = value_and_grad if batches is None else on_batch(value_and_grad, batch)
        return _Adaptive(loss, arrays, effort.kept)

    results = search(objective, batches, [_NORMS[norm](radius) for radius in radii], effort, settings)
    return results[0] if np.ndim(rho) == 0 else SharpnessCurve(tuple(results))


class Arrays:
    """Parameters as one flat vector, and back."""

    def __init__(self, params: Any, names: Iterable[str] | None) -> None:
        self.parameters = Parameters(params)
        if self.parameters.single and names is not None:
            raise ValueError("names: expected none, because params is not a dict")
        self.names = listed(self.parameters.blocks if names is None else names)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"names: expected each block once, got {self.names}")
        unknown = [name for name in self.names if name not in self.parameters.blocks]
        if unknown or not self.names:
            raise ValueError(f"names: expected blocks of params, got {unknown or self.names}")
        given = {name: self.parameters.blocks[name] for name in self.names}
        self._own = {name: x if isinstance(x, Pair) else real_array("params", x) for name, x in given.items()}
        self.theta = _flattened(self._own)

    def flat(self, grads: Any) -> Array:
        """Gradients as one vector; their shapes must be those of the parameters."""
        grads = self.parameters.gradients(grads)
        return _flattened({name: checked_gradient(name, grads, block) for name, block in self._own.items()})

    def structured(self, vector: Array) -> Any:
        """Blocks of the type of the parameters from one vector; blocks that are not named are left out."""
        blocks = self._structured(vector)
        return blocks[ONLY] if self.parameters.single else blocks

    def whole(self, vector: Array) -> Any:
        """Parameters as the user gave them."""
        return self.parameters.assembled(self._structured(vector))

    def _structured(self, vector: Array) -> dict[str, Any]:
        blocks, start = {}, 0
        for name, own in self._own.items():
            parts = []
            for factor in as_factors(own):
                parts.append(vector[start : (start := start + factor.size)].reshape(factor.shape))
            blocks[name] = Pair.unchecked(*parts) if len(parts) == 2 else parts[0]
        return blocks


def _flattened(blocks: Mapping[str, Any]) -> Array:
    return np.concatenate([np.ravel(factor) for block in blocks.values() for factor in as_factors(block)])


class _Adaptive(Increase):
    """u ↦ L(θ + θ ⊙ u) − L(θ). The signs of θ change no ball."""

    def __init__(self, value_and_grad: LossAndGradient, arrays: Arrays, kept: str) -> None:
        self._arrays, self._theta = arrays, arrays.theta
        super().__init__(value_and_grad, arrays.parameters.given, len(self._theta), kept=kept)

    def _evaluate(self, x: Combination | Precise) -> tuple[float, Array]:
        moved: Array = np.array(x, dtype=np.float64)
        moved += 1.0
        moved *= self._theta
        loss, grads = checked_evaluation(self.source[0](self._arrays.whole(moved)))
        if not math.isfinite(loss):
            return -math.inf, self.origin
        gradient = self._arrays.flat(grads)
        gradient *= self._theta
        is_finite = math.isfinite(np.dot(gradient, gradient))
        return (loss, gradient.astype(self.kept, copy=False)) if is_finite else (-math.inf, self.origin)

    @property
    def size(self) -> float:
        """That of u = 1."""
        return math.sqrt(len(self.origin))

    def random_direction(self, rng: np.random.Generator) -> Array:
        return np.asarray(rng.standard_normal(len(self.origin)) * (self._theta != 0.0), self.kept)

    def horizontal(self, x: Vector) -> Array:
        """All of x."""
        return np.asarray(x)

    def tangent_vector(self, x: Array) -> Any:
        return self._arrays.structured(self._theta * x)
