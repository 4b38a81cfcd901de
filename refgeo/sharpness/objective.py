"""A loss as a function of coordinates, which are arrays of numbers: what leaves the domain has the value −inf."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.product import ProductTangentSpace
from refgeo.geometry.tangent_space import Metric, TangentSpace, as_metric
from refgeo.sharpness import symmetry
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
_CHANGED = 1e-4
"""A larger share of what other changes of this size do is investigated: in float32 rounding does 1e-5 or so."""


class ParameterSpace:
    """The tangent space of all parameters that a metric names; the others are frozen. Coordinates are flat."""

    def __init__(self, params: Any, metric: Metric[Any]) -> None:
        as_metric("metric", metric)
        self.parameters = Parameters(params)
        if not (self.parameters.single or metric.base.has_blocks):
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
    """

    def __init__(
        self, value_and_grad: LossAndGradient, space: ParameterSpace, order: Order, gradient_order: Order
    ) -> None:
        self.value_and_grad, self.space = value_and_grad, space
        self._order, self._gradient_order = order, gradient_order
        self.loss = 0.0
        self.loss, slope = self(self.origin)
        self._slope: Array | None = slope
        if not math.isfinite(self.loss):
            raise ValueError("value_and_grad: expected a finite loss and gradient at the given parameters")

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
        return (-math.inf, self.origin) if gradient is None else (loss - self.loss, gradient)

    def check_symmetry(self) -> None:
        """See `check_symmetry`."""
        check_symmetry(self.space, lambda params: checked_evaluation(self.value_and_grad(params))[0], self.loss)

    def bend(self, x: Array) -> float:
        """‖½Γ(ξ, ξ)‖/‖ξ‖ of second-order geodesics, the largest of all blocks and heads."""
        return self.space.bend(x, 1) if self._order == 2 else 0.0


def check_symmetry(space: ParameterSpace, value: Callable[[Any], float], here: float) -> None:
    """An error where a loss, which is `here` at θ, changes along the symmetries that the metric divides out.

    One evaluation with all blocks moved at once, one with other changes of the same size, and more only if the loss has
    changed.

    Examples
    --------
    >>> import refgeo as rg
    >>> check_symmetry(ParameterSpace(np.ones(3), rg.TranslationMetric()), lambda w: float(w @ w), 3.0)
    Traceback (most recent call last):
    ...
    ValueError: metric: the metric divides out the symmetry translation, which the loss does not have: ...
    """
    groups = space.tangent.metric.symmetries()
    if not groups or space.dim == 0:
        return

    def loss(blocks: Mapping[str, Any]) -> float:
        return value(space.parameters.assembled(blocks))

    point = space.points
    rng, moved = np.random.default_rng([0, 1]), dict(point)  # a stream that parameters are not drawn from
    for one in groups:
        moved |= one.act(moved, one.generator(moved, rng), 0.5)
    change = abs(loss(moved) - here)
    # beside what changes of the same size do: a loss may be large for another reason
    if change == 0.0 or change <= _CHANGED * abs(loss(symmetry.scrambled(point, moved, rng)) - here):
        return
    for found in symmetry.verify(loss, point, groups, samples=1):
        if found.verdict == "does not hold":
            where = "" if found.blocks[0] == ONLY else f" of {found.blocks[0]!r}"
            raise ValueError(
                f"metric: the metric divides out the symmetry {found.symmetry}{where}, which the loss does not "
                f"have: an element of this group changes the loss by {found.change:.2g} (relative). Give this "
                "block another metric, or leave it out of the metric, so that it does not move. "
                "refgeo.symmetry.verify measures all symmetries; verify=False turns this check off"
            )
