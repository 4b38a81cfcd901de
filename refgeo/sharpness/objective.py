"""The objective of a search: the increase of a loss, as a function of the coordinates of a tangent vector.

Outside the domain, where there is no geodesic or no finite loss, its value is −inf.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.groups import together
from refgeo.geometry.product import ProductTangentSpace
from refgeo.geometry.tangent_space import Metric, TangentSpace, as_metric
from refgeo.sharpness import symmetry
from refgeo.sharpness.auto_pgd import norm
from refgeo.sharpness.parameters import (
    CheckedGradients,
    LossAndGradient,
    Parameters,
    as_gradient,
    is_finite,
    unpack_evaluation,
)
from refgeo.support.arguments import Array, Order
from refgeo.support.errors import NO_GEODESIC, NotFiniteError
from refgeo.support.threads import LEAST, one_thread

_MAX_DOUBLE_LENGTH = 1 << 18
"""Number of coordinates above which vectors are kept in single precision. This rounds directions by 1e-7, but no value
of the loss, which is evaluated in double precision where the rounded vector leads. Chosen: vectors of 2 MB.
"""
_TIMES = (0.1, 0.1)
"""Values of t in exp(tK) at which a metric is tested along its orbits; chosen. Short ones suffice, because a metric
that changes along an orbit does so near the point, too.
"""


_MIN_DISPLACEMENT = 0.01
"""The smallest displacement of a block along random signs, relative to the largest one; chosen."""


class ParameterSpace:
    """The tangent space of all parameters that a metric names; the others are frozen.

    Attributes
    ----------
    parameters : Parameters
    tangent : TangentSpace
    spaces : dict of str to TangentSpace
        The tangent space of each block.
    points : dict of str to Pair or array
        The point of each block.
    length, shape
        The number of coordinates, which are a flat array here, and their shape in the tangent space.
    dim : int
        The dimension of the quotient.
    dtype : dtype
        That of coordinates.
    one_thread : callable
        Makes the context in which linear algebra runs in one thread, if vectors are long.
    """

    def __init__(self, params: Any, metric: Metric[Any]) -> None:
        as_metric("metric", metric)
        self.parameters = Parameters(params)
        if not (self.parameters.single or metric.has_blocks):
            raise TypeError(
                f"metric: for a dict of parameters, expected a refgeo.ProductMetric that names its blocks, got {metric}"
            )
        with one_thread():
            tangent: TangentSpace[Any] = metric.at(params)
        self.tangent = tangent
        self.spaces = tangent.spaces if isinstance(tangent, ProductTangentSpace) else {ONLY: tangent}
        self.shape = *tangent.block_shape, tangent.n_coordinates
        self.length = math.prod(self.shape)
        self.dim = tangent.dim * math.prod(tangent.block_shape)
        self.dtype = np.dtype(np.float32 if self.length > _MAX_DOUBLE_LENGTH else np.float64)
        self.points = {ONLY: tangent.point} if self.parameters.single else dict(tangent.point)
        self.one_thread = partial(one_thread, self.length) if self.length >= LEAST else nullcontext

    @property
    def size(self) -> float:
        """The length of θ in the metric, as a root mean square over its blocks."""
        blocks = sum(math.prod(part.block_shape) for part in self.spaces.values())
        return float(np.linalg.norm(self.tangent.norm(self.tangent.point))) / math.sqrt(blocks)

    @property
    def moving_blocks(self) -> list[str]:
        """The blocks that can move in the metric. A block of zeros cannot, if steps are proportional to entries."""
        if not (self.parameters.single or isinstance(self.tangent, ProductTangentSpace)):
            return list(self.parameters.blocks)
        return [name for name, space in self.spaces.items() if space.dim and space.n_coordinates]

    def coordinates(self, x: Array) -> Array:
        """Reshape flat coordinates as the tangent space has them."""
        return x.reshape(self.shape)

    def point(self, x: Array, order: Order) -> Any | None:
        """Return γ_ξ(1), which is θ for ξ = 0; None if the geodesic does not exist up to there."""
        point = self.tangent.point
        if x.any():
            try:
                with self.one_thread(), np.errstate(over="ignore", invalid="ignore"):
                    point = self.tangent.point_at(self.coordinates(x), order)
            except NO_GEODESIC:
                return None
        return point if self.parameters.single else self.parameters.assemble(point)

    def gradient(self, x: Array, grads: Any, order: Order) -> Array | None:
        """Return the gradient of ξ ↦ ℓ(γ_ξ(1)) in coordinates, from the caller's gradients at γ_ξ(1); None if it is not
        finite.
        """
        with self.one_thread(), np.errstate(over="ignore", invalid="ignore"):
            try:
                gradient = self.tangent.gradient_at(self.coordinates(x), self.gradients(grads), order)
            except NotFiniteError:
                return None
        gradient = gradient.reshape(-1).astype(self.dtype, copy=False)
        gradient = gradient if self.dim else np.zeros_like(gradient)  # anything else is rounding
        return gradient if is_finite(gradient) else None

    def gradients(self, grads: Any) -> Any:
        """Return the caller's gradients as a cotangent vector, after a check of shapes, so that nothing broadcasts."""
        if self.parameters.single:
            return as_gradient("", {"": grads}, self.tangent.point)
        return CheckedGradients(self.parameters.gradients(grads), self.points)

    def as_given(self, point: Any) -> Any:
        """Return a point as the caller's function takes it."""
        return point

    def tangent_vector(self, x: Array) -> Any:
        """Return the tangent vector with coordinates x."""
        with self.one_thread():
            return self.tangent.from_coordinates(self.coordinates(x))

    def horizontal(self, x: Array) -> Array:
        """Return the coordinates of the horizontal part."""
        if self.dim == 0:
            return np.zeros_like(x)
        with self.one_thread():
            horizontal = self.tangent.horizontal_coordinates(self.coordinates(x))
        return horizontal.reshape(-1).astype(x.dtype, copy=False)

    def random_direction(self, rng: np.random.Generator) -> Array:
        """Draw the coordinates of a horizontal direction, which are the same at every point of an orbit."""
        return self.horizontal(self.tangent.normal_coordinates(rng).reshape(-1).astype(self.dtype, copy=False))

    @property
    def slices(self) -> list[slice]:
        """The coordinates of each block."""
        return list(self.tangent.slices.values()) if isinstance(self.tangent, ProductTangentSpace) else [slice(None)]

    @property
    def block_lengths(self) -> list[float]:
        """The length of each block, per coordinate."""
        sizes = (float(np.linalg.norm(space.norm(space.point))) or 1.0 for space in self.spaces.values())
        return [x / math.sqrt(max(len(range(self.length)[s]), 1)) for x, s in zip(sizes, self.slices, strict=True)]

    def equalise(self, gradient: Array) -> tuple[float, ...]:
        """Find a length of displacements for each block such that, along random signs, all blocks have equal slopes.

        All slopes together are as large as along the gradient. Relative to its own size, no block is displaced by less
        than `_MIN_DISPLACEMENT` times as much as another one.
        """
        lengths = self.block_lengths
        slopes = [length * norm(gradient[s]) for length, s in zip(lengths, self.slices, strict=True)]
        least = min((slope for slope in slopes if slope > 0.0), default=0.0)
        shares = [max(least / slope, _MIN_DISPLACEMENT) if slope else 1.0 for slope in slopes]
        total = math.hypot(*(slope * share for slope, share in zip(slopes, shares, strict=True))) or 1.0
        return tuple(length * share * norm(gradient) / total for length, share in zip(lengths, shares, strict=True))

    def random_signs(self, lengths: Sequence[float], seed: int) -> Array:
        """Draw a horizontal vector from random signs, times a length for each block.

        With the lengths of `equalise`, a wrong block, row or head is visible in the slope along it.
        """
        x = np.random.default_rng(seed).choice(np.array([-1.0, 1.0], self.dtype), self.length)
        for length, s in zip(lengths, self.slices, strict=True):
            x[s] *= length
        return self.horizontal(x)

    def bend(self, x: Array, power: int) -> float:
        """Return ‖½Γ(ξ, ξ)‖/‖ξ‖ᵖ, the largest of all blocks and heads."""
        largest, tangent = 0.0, self.tangent
        with self.one_thread(), np.errstate(over="ignore", invalid="ignore"):
            for name, space in self.spaces.items():
                part = tangent.part(name, x) if isinstance(tangent, ProductTangentSpace) else self.coordinates(x)
                length = np.linalg.norm(part, axis=-1) ** power
                half = 0.5 * space.norm(space.christoffel(space.from_coordinates(part)))
                largest = max(largest, float(np.max(half / np.where(length > 0.0, length, 1.0), initial=0.0)))
        return largest


class Objective:
    """The function x ↦ L(γ_ξ(1)) − L(θ) with its gradient, where x are the coordinates of ξ.

    Parameters
    ----------
    value_and_grad : callable
    space : ParameterSpace
    order : 1, 2 or "exact"
        The order of the geodesics.
    gradient_order : 1, 2 or "exact"
        The order of the geodesics that are differentiated; 1 is the paper's, which ignores the derivative of Γ.

    Attributes
    ----------
    loss : float
        The loss at θ.
    has_seen_slope : bool
        Whether any gradient so far had an entry that is not zero.
    """

    def __init__(
        self, value_and_grad: LossAndGradient, space: ParameterSpace, order: Order, gradient_order: Order
    ) -> None:
        self.value_and_grad, self.space = value_and_grad, space
        self._order, self._gradient_order = order, gradient_order
        self.loss, self.has_seen_slope = 0.0, False
        self.loss, gradient = self(self.origin)
        self._gradient: Array | None = gradient
        if not math.isfinite(self.loss):
            loss, _ = unpack_evaluation(value_and_grad(self.space.point(self.origin, 1)))
            if not math.isfinite(loss):
                raise ValueError(f"value_and_grad: expected a finite loss at the given parameters, got {loss}")
            raise ValueError(
                f"value_and_grad: expected a finite gradient at the given parameters; the loss is {loss:g}, but its "
                "gradient has NaN or infinity"
            )

    @property
    def has_differenced_gradient(self) -> bool:
        """Whether geodesics are exact: the gradient along them consists of differences, and is less accurate."""
        return self._order == "exact"

    def point_for_caller(self, x: Array) -> Any:
        """Return γ_ξ(1) as the caller's function takes it."""
        return self.space.as_given(self.space.point(x, self._order))

    @property
    def has_exact_gradient(self) -> bool:
        """Whether the gradient is that of the objective, and not the paper's."""
        return self._order == self._gradient_order

    def with_exact_gradient(self) -> Objective:
        """Return the same objective, with its own gradient."""
        exact = copy.copy(self)
        exact._gradient_order = self._order
        return exact

    @property
    def origin(self) -> Array:
        """The coordinates of θ, a new array of zeros."""
        return np.zeros(self.space.length, self.space.dtype)

    @property
    def gradient_at_origin(self) -> Array:
        """The gradient at θ, computed again if `forget_gradient` was called."""
        if self._gradient is None:
            _, self._gradient = self(self.origin)
        return self._gradient

    def forget_gradient(self) -> None:
        """Free the memory of the gradient at θ, which is as long as the parameters, and is seldom needed again."""
        self._gradient = None

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Return value and gradient; outside the domain these are −inf and zeros."""
        if self._order == "exact" and x.any():
            x = self.space.horizontal(x)  # removes rounding: the closed forms hold for horizontal geodesics alone
        try:
            point = self.space.point(x, self._order)
            loss, grads = (-math.inf, None) if point is None else unpack_evaluation(self.value_and_grad(point))
        except NotFiniteError:  # raised, for example, by a Pair that the caller makes of the gradient
            if not x.any():
                raise
            return -math.inf, self.origin
        del point
        gradient = self.space.gradient(x, grads, self._gradient_order) if math.isfinite(loss) else None
        if gradient is None:
            return -math.inf, self.origin
        self.has_seen_slope = self.has_seen_slope or bool(gradient.any())
        return loss - self.loss, gradient

    @cached_property
    def is_flat(self) -> bool:
        """Whether the loss seems constant: no slope at θ, and neither a slope nor another value near it."""
        if self.gradient_at_origin.any() or (self.space.dim == 0 and self.space.length > 0):
            return False
        direction = self.space.random_direction(np.random.default_rng(0))
        increase, gradient = self(direction * (0.1 * (self.space.size or 1.0) / (norm(direction) or 1.0)))
        return increase == 0.0 and not gradient.any()

    def bend(self, x: Array) -> float:
        """Return ‖½Γ(ξ, ξ)‖/‖ξ‖, the largest of all blocks and heads; 0 unless geodesics are of second order."""
        return self.space.bend(x, 1) if self._order == 2 else 0.0


def check_symmetry(space: ParameterSpace, function: Callable[[Any], Any], noise: float | None = None) -> None:
    """Raise an error unless both the metric and the loss live on the quotient by the metric's groups.

    All groups are tested at once. Each is tested by itself if this does not show that the loss has the symmetry. If
    together they change the loss although each by itself does not, this is an error, too.

    Parameters
    ----------
    space : ParameterSpace
    function : callable
        Returns the loss, or the loss and its gradient.
    noise : float, optional
        The noise of the loss; default: it is measured.

    Examples
    --------
    >>> import refgeo as rg
    >>> check_symmetry(ParameterSpace(np.ones(3), rg.TranslationMetric()), lambda w: float(w @ w))
    Traceback (most recent call last):
    ...
    ValueError: metric: the metric divides out the symmetry translation, which the loss does not have: ...
    """
    metric = space.tangent.metric
    groups = metric.symmetries()
    if not groups:
        return
    for block, part in symmetry.metrics_of(metric).items():
        for finding in () if part.is_invariant is not None else symmetry.invariance(part, block, space.points, _TIMES):
            if not (finding.holds or finding.obstacle):
                lives, differs = ("does not", "differs") if finding.is_broken else ("may not", "may differ")
                raise ValueError(
                    f"metric: {part} {lives} live on the quotient by its group: {finding.symmetry} "
                    f"{finding.verdict}{f' ({finding.reason})' if finding.reason else ''}, so its sharpness {differs} "
                    "along an orbit. See refgeo.QuotientMetric.verify; verify=False turns this check off"
                )

    def loss(blocks: Mapping[str, Any]) -> Any:
        result = function(space.parameters.assemble(blocks))
        return result[0] if isinstance(result, tuple) else result

    whole = together(groups)
    points = space.points if whole.whole else {name: space.points[name] for name in whole.blocks}
    (joint,) = symmetry.verify(loss, points, whole, sizes=1.0, samples=1, noise=noise)
    if joint.holds:
        return
    separate = list(symmetry.verify(loss, points, groups, samples=1, noise=noise))
    failed = [finding for finding in separate if not (finding.holds or finding.obstacle == symmetry.UNMOVED)]
    if joint.is_broken and not failed:
        raise ValueError(
            f"metric: the metric divides out {len(groups)} symmetries, which the loss has one by one but not together: "
            f"elements of all groups, one after the other, change it by {joint.change:.2g} (relative). Does the loss "
            "depend on whether several blocks have changed? verify=False turns this check off"
        )
    for finding in failed:
        where = "" if finding.blocks[0] == ONLY else f" of {finding.blocks[0]!r}"
        problem = (
            f"which the loss does not have: an element of this group changes it by {finding.change:.2g} (relative)"
            if finding.is_broken
            else f"but it is undecided whether the loss has it: {finding.reason}"
        )
        raise ValueError(
            f"metric: the metric divides out the symmetry {finding.symmetry}{where}, {problem}. Give this block "
            "another metric, or leave it out of the metric, so that it does not move. refgeo.symmetry.verify measures "
            "all symmetries; verify=False turns this check off"
        )
