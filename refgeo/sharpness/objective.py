"""A loss as a function of coordinates, which are arrays of numbers: what leaves the domain has the value −inf."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    checked_evaluation,
    checked_gradient,
    is_finite,
)
from refgeo.support.arguments import Array, Order
from refgeo.support.errors import NO_GEODESIC, NotFiniteError
from refgeo.support.threads import LEAST, one_thread

_LONG = 1 << 18
"""Vectors of more numbers are kept in single precision: their directions are rounded by 1e-7, no value is."""
_BRIEFLY = (0.1, 0.1)
"""So far a metric is followed along its orbits: there it changes as it does farther away."""


class ParameterSpace:
    """The tangent space of all parameters that a metric names; the others are frozen. Coordinates are flat."""

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
        self.dtype = np.dtype(np.float32 if self.length > _LONG else np.float64)
        self.points = {ONLY: tangent.point} if self.parameters.single else dict(tangent.point)
        self.one_thread = partial(one_thread, self.length) if self.length >= LEAST else nullcontext

    @property
    def size(self) -> float:
        """How long θ itself is in the metric: the mean of its blocks."""
        blocks = sum(math.prod(part.block_shape) for part in self.spaces.values())
        return float(np.linalg.norm(self.tangent.norm(self.tangent.point))) / math.sqrt(blocks)

    @property
    def that_move(self) -> list[str]:
        """The blocks that the metric moves at all: zeros do not move in proportion to themselves."""
        if not (self.parameters.single or isinstance(self.tangent, ProductTangentSpace)):
            return list(self.parameters.blocks)
        return [name for name, space in self.spaces.items() if space.dim and space.n_coordinates]

    def coordinates(self, x: Array) -> Array:
        """In the shape of the tangent space's."""
        return x.reshape(self.shape)

    def point(self, x: Array, order: Order) -> Any | None:
        """γ_ξ(1), or None where the geodesic does not get there; θ itself for ξ = 0."""
        point = self.tangent.point
        if x.any():
            try:
                with self.one_thread(), np.errstate(over="ignore", invalid="ignore"):
                    point = self.tangent.point_at(self.coordinates(x), order)
            except NO_GEODESIC:
                return None
        return point if self.parameters.single else self.parameters.assembled(point)

    def gradient(self, x: Array, grads: Any, order: Order) -> Array | None:
        """Of ℓ(γ_ξ(1)) in coordinates, from somebody's gradients there; None where it is not finite."""
        with self.one_thread(), np.errstate(over="ignore", invalid="ignore"):
            try:
                gradient = self.tangent.gradient_at(self.coordinates(x), self.gradients(grads), order)
            except NotFiniteError:
                return None
        gradient = gradient.reshape(-1).astype(self.dtype, copy=False)
        gradient = gradient if self.dim else np.zeros_like(gradient)  # what is left is rounding
        return gradient if is_finite(gradient) else None

    def gradients(self, grads: Any) -> Any:
        """Somebody's gradients as a vector; shapes are checked, so that nothing broadcasts."""
        if self.parameters.single:
            return checked_gradient("", {"": grads}, self.tangent.point)
        return CheckedGradients(self.parameters.gradients(grads), self.points)

    def tangent_vector(self, x: Array) -> Any:
        """The tangent vector with coordinates x."""
        with self.one_thread():
            return self.tangent.from_coordinates(self.coordinates(x))

    def horizontal(self, x: Array) -> Array:
        """The horizontal part of coordinates."""
        if self.dim == 0:
            return np.zeros_like(x)
        with self.one_thread():
            horizontal = self.tangent.horizontal_coordinates(self.coordinates(x))
        return horizontal.reshape(-1).astype(x.dtype, copy=False)

    def random_direction(self, rng: np.random.Generator) -> Array:
        """Coordinates of a horizontal direction, the same along an orbit."""
        return self.horizontal(self.tangent.normal_coordinates(rng).reshape(-1).astype(self.dtype, copy=False))

    def bend(self, x: Array, power: int) -> float:
        """‖½Γ(ξ, ξ)‖/‖ξ‖ᵖ, the largest of all blocks and heads."""
        largest, tangent = 0.0, self.tangent
        with self.one_thread(), np.errstate(over="ignore", invalid="ignore"):
            for name, space in self.spaces.items():
                part = tangent.part(name, x) if isinstance(tangent, ProductTangentSpace) else self.coordinates(x)
                length = np.linalg.norm(part, axis=-1) ** power
                half = 0.5 * space.norm(space.christoffel(space.from_coordinates(part)))
                largest = max(largest, float(np.max(half / np.where(length > 0.0, length, 1.0), initial=0.0)))
        return largest


class Objective:
    """x ↦ L(γ_ξ(1)) − L(θ) with its gradient, in coordinates.

    Parameters
    ----------
    value_and_grad : callable
    space : ParameterSpace
    order : 1, 2 or "exact"
    gradient_order : 1, 2 or "exact"
        The geodesic that the gradient is of; 1 is the paper's, which ignores the derivative of Γ.

    Attributes
    ----------
    loss : float
        At the parameters themselves.
    saw_slope : bool
        Whether a gradient that was asked for had a number that is not zero.
    """

    def __init__(
        self, value_and_grad: LossAndGradient, space: ParameterSpace, order: Order, gradient_order: Order
    ) -> None:
        self.value_and_grad, self.space = value_and_grad, space
        self._order, self._gradient_order = order, gradient_order
        self.loss, self.saw_slope = 0.0, False
        self.loss, slope = self(self.origin)
        self._slope: Array | None = slope
        if not math.isfinite(self.loss):
            loss, _ = checked_evaluation(value_and_grad(self.space.point(self.origin, 1)))
            if not math.isfinite(loss):
                raise ValueError(f"value_and_grad: expected a finite loss at the given parameters, got {loss}")
            raise ValueError(
                f"value_and_grad: expected a finite gradient at the given parameters; the loss is {loss:g}, but its "
                "gradient has NaN or infinity"
            )

    @property
    def origin(self) -> Array:
        """The coordinates of the parameters themselves, a new array."""
        return np.zeros(self.space.length, self.space.dtype)

    @property
    def gradient_at_origin(self) -> Array:
        """The gradient there, computed again if it was forgotten."""
        if self._slope is None:
            _, self._slope = self(self.origin)
        return self._slope

    def forget_gradient(self) -> None:
        """Of the origin: it is as long as the parameters, and is hardly needed after the first start."""
        self._slope = None

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Value and gradient; −inf where there is none."""
        if self._order == "exact" and x.any():
            x = self.space.horizontal(x)  # it is, but for rounding, and closed forms are of horizontal geodesics
        try:
            point = self.space.point(x, self._order)
            loss, grads = (-math.inf, None) if point is None else checked_evaluation(self.value_and_grad(point))
        except NotFiniteError:  # by a Pair, for example, that is made of its gradient
            if not x.any():
                raise
            return -math.inf, self.origin
        del point
        gradient = self.space.gradient(x, grads, self._gradient_order) if math.isfinite(loss) else None
        if gradient is None:
            return -math.inf, self.origin
        self.saw_slope = self.saw_slope or bool(gradient.any())
        return loss - self.loss, gradient

    @cached_property
    def is_flat(self) -> bool:
        """Whether nothing is seen: no slope here and beside, and equal values."""
        if self.gradient_at_origin.any() or (self.space.dim == 0 and self.space.length > 0):
            return False
        aside = self.space.random_direction(np.random.default_rng(0))
        increase, slope = self(aside * (0.1 * (self.space.size or 1.0) / (norm(aside) or 1.0)))
        return increase == 0.0 and not slope.any()

    def bend(self, x: Array) -> float:
        """‖½Γ(ξ, ξ)‖/‖ξ‖ of second-order geodesics, the largest of all blocks and heads."""
        return self.space.bend(x, 1) if self._order == 2 else 0.0


def check_symmetry(space: ParameterSpace, function: Callable[[Any], Any], noise: float | None = None) -> None:
    """An error unless the metric lives on the quotient by its groups, and a loss does so, too, as far as its noise
    tells: with all groups at once, and with each where that does not tell. The function gives the loss, alone or with
    its gradient.

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
    for block, one in symmetry.metrics_of(metric).items():
        for found in () if one.is_invariant is not None else symmetry.invariance(one, block, space.points, _BRIEFLY):
            if not (found.holds or found.unseen):
                lives, differs = ("does not", "differs") if found.is_broken else ("may not", "may differ")
                raise ValueError(
                    f"metric: {one} {lives} live on the quotient by its group: {found.symmetry} "
                    f"{found.verdict}{f' ({found.reason})' if found.reason else ''}, so its sharpness {differs} along "
                    "an orbit. See refgeo.QuotientMetric.verify; verify=False turns this check off"
                )

    def loss(blocks: Mapping[str, Any]) -> Any:
        found = function(space.parameters.assembled(blocks))
        return found[0] if isinstance(found, tuple) else found

    whole = together(groups)
    points = space.points if whole.whole else {name: space.points[name] for name in whole.blocks}
    if symmetry.verify(loss, points, whole, sizes=1.0, samples=1, noise=noise).holds:
        return
    for found in symmetry.verify(loss, points, groups, samples=1):
        if found.holds or found.unseen == symmetry.UNMOVED:
            continue
        where = "" if found.blocks[0] == ONLY else f" of {found.blocks[0]!r}"
        missing = (
            f"which the loss does not have: an element of this group changes the loss by {found.change:.2g} (relative)"
            if found.is_broken
            else f"of which it cannot be told whether the loss has it: {found.reason}"
        )
        raise ValueError(
            f"metric: the metric divides out the symmetry {found.symmetry}{where}, {missing}. Give this block another "
            "metric, or leave it out of the metric, so that it does not move. refgeo.symmetry.verify measures all "
            "symmetries; verify=False turns this check off"
        )
