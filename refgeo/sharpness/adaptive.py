r"""Adaptive sharpness (Eq. 1; Kwon et al. 2021): the baseline, which knows no curvature.

:math:`\max_{‖δ ⊘ c‖_p ≤ ρ} L(θ + δ) - L(θ)`, c = |θ| by default: straight steps in a metric that is constant,
:math:`⟨ξ, ζ⟩ = Σ ξ_iζ_i/c_i^2`, in whose coordinates δ ⊘ c the ball is one of ℝᴺ. (The paper's text prints ``‖δ ⊙ c‖``;
its App. D has it right.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from refgeo.geometry.arrays import WeightedMetric
from refgeo.geometry.blocks import ONLY
from refgeo.geometry.pair import as_pair
from refgeo.geometry.product import ProductMetric
from refgeo.sharpness.auto_pgd import N_RESTARTS, Ball, Box, RoundBall
from refgeo.sharpness.objective import Objective, ParameterSpace
from refgeo.sharpness.parameters import Arrays, LossAndGradient
from refgeo.sharpness.result import SharpnessCurve, SharpnessResult
from refgeo.sharpness.search import Callback, SearchOptions, search
from refgeo.support.arguments import Array, as_list, radii_listed, real_array

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
    scale: Any = None,
    norm: float = 2,
    names: Iterable[str] | None = None,
    n_iter: int = 20,
    n_restarts: int = N_RESTARTS,
    rng: np.random.Generator | int | None = 0,
    batches: Iterable[Any] | None = None,
    callback: Callback | None = None,
    verify: bool = True,
    maximizers: bool = True,
    progress: bool = False,
) -> SharpnessResult | SharpnessCurve:
    r"""Find the largest increase of a loss under perturbations δ with :math:`‖δ ⊘ c‖ ≤ ρ` (Eq. 1), by Auto-PGD.

    Parameters
    ----------
    value_and_grad : callable
        As in `worst_case_sharpness`.
    params : Pair, array or dict of these
    rho : float or sequence of float
        Radius of the ball, or radii, as in `worst_case_sharpness`.
    scale : like params, optional
        The vector c, an array for each of the parameters; default: |θ|. Where c is zero, parameters do not move.
    norm : 2 or inf
    names : iterable of str, optional
        The blocks of a dict that are perturbed; default: all.
    n_iter, n_restarts : int
        As in `worst_case_sharpness`.
    rng : numpy Generator, or a seed
        Of random starts.
    batches : iterable, optional
        As in `worst_case_sharpness`.
    callback : callable, optional
        As in `worst_case_sharpness`.
    verify : bool
        As in `worst_case_sharpness`; there is no symmetry to test.
    maximizers, progress : bool
        As in `worst_case_sharpness`.

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
    options = SearchOptions(n_iter, n_restarts, rng, callback, verify, maximizers, progress)
    radii = radii_listed(rho)
    arrays = Arrays(params, _choose(params, names))
    space = _ScaledSteps(arrays, _scales(arrays, scale))
    settings = {"sharpness": "adaptive", "norm": "inf" if norm == math.inf else 2}
    settings |= {} if scale is None else {"scale": "given"}
    return search(
        value_and_grad, params, lambda loss: Objective(arrays.value_and_grad(loss), space, 1, 1), batches,
        [_NORMS[norm](radius) for radius in radii], options, settings, np.ndim(rho) == 0,
    )  # fmt: skip


class _ScaledSteps(ParameterSpace):
    """Every array with a constant metric, whose coordinates are δ ⊘ c."""

    def __init__(self, arrays: Arrays, scales: Mapping[Any, Array]) -> None:
        super().__init__(arrays.given, ProductMetric({name: WeightedMetric(c) for name, c in scales.items()}))
        self._arrays = arrays

    @property
    def moving_blocks(self) -> list[str]:
        """The blocks that have an array that can move."""
        return list(dict.fromkeys(name[0] for name in super().moving_blocks))

    def as_given(self, point: Any) -> Any:
        """Return the parameters with these arrays."""
        return self._arrays.assemble(point)

    def tangent_vector(self, x: Array) -> Any:
        """Return δ, of the type of the parameters."""
        return self._arrays.join(super().tangent_vector(x))


def _scales(arrays: Arrays, scale: Any) -> dict[Any, Array]:
    """Return the array c of every array."""
    if scale is None:
        return {name: np.abs(array) for name, array in arrays.given.items()}
    if not (arrays.parameters.single or isinstance(scale, Mapping)):
        raise TypeError(f"scale: expected a dict with an array for every block, got {type(scale).__name__}")
    of_blocks = {ONLY: scale} if arrays.parameters.single else scale
    if unknown := [block for block in of_blocks if block not in arrays.parameters.blocks]:
        raise ValueError(f"scale: expected blocks of params, got {unknown}")
    scales = {}
    for name, array in arrays.given.items():
        block, factor = name
        if block not in of_blocks:
            raise ValueError(f"scale: the block {block!r} is missing")
        value = getattr(as_pair("scale", of_blocks[block]), factor) if factor else of_blocks[block]
        scales[name] = np.abs(real_array("scale", value))
        if scales[name].shape != array.shape:
            raise ValueError(f"scale: expected {arrays.label(name)} of shape {array.shape}, got {scales[name].shape}")
    return scales


def _choose(params: Any, names: Iterable[str] | None) -> list[str] | None:
    """Return the blocks that move, each once."""
    if not isinstance(params, Mapping):
        if names is not None:
            raise ValueError("names: expected no names, because params is not a dict")
        return None
    chosen = list(params) if names is None else as_list(names)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"names: expected each block once, got {chosen}")
    unknown = [name for name in chosen if name not in params]
    if unknown or not chosen:
        raise ValueError(f"names: expected blocks of params, got {unknown or chosen}")
    return chosen
