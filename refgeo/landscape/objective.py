"""A loss as a function of coordinates: what leaves the domain has the value −inf."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import ONLY, Blocks
from refgeo.geometry.pair import Pair
from refgeo.geometry.product import ProductMetric, ProductTangentSpace
from refgeo.geometry.tangent_space import Metric, as_metric
from refgeo.landscape import symmetry
from refgeo.landscape.parameters import (
    CheckedGradients,
    LossAndGradient,
    Parameters,
    checked_evaluation,
    is_finite,
)
from refgeo.landscape.vectors import Combination, Precise, Vector, is_zero
from refgeo.support.arguments import Array, Order
from refgeo.support.errors import NO_GEODESIC, NotFiniteError
from refgeo.support.threads import one_thread

_SHORT = 1 << 18
"""Numbers of a vector of which one copy more is nothing."""
_CHANGED = 1e-4
"""A larger share of what other changes of this size do is investigated: in float32 rounding does 1e-5 or so."""


class ParameterSpace:
    """The tangent space of all parameters that a metric names; the others are frozen."""

    def __init__(self, params: Any, metric: Metric[Any]) -> None:
        as_metric("metric", metric)
        self.parameters = Parameters(params)
        single = self.parameters.single
        if not (single or isinstance(getattr(metric, "base", metric), ProductMetric)):
            raise TypeError(
                f"metric: for a dict of parameters, expected a refgeo.ProductMetric that names its blocks, got {metric}"
            )
        with one_thread():
            tangent = (ProductMetric({ONLY: metric}) if single else metric).at(self.parameters.blocks)
        assert isinstance(tangent, ProductTangentSpace)
        self.tangent = tangent

    @property
    def size(self) -> float:
        """How long θ itself is in the metric: the mean of its blocks."""
        blocks = sum(int(np.prod(part.block_shape)) for part in self.tangent.spaces.values())
        return float(self.tangent.norm(self.tangent.point)) / math.sqrt(blocks)

    def gradients(self, grads: Any, dtype: Any) -> Mapping[str, Any]:
        """The user's gradients as blocks; shapes are checked, so that nothing broadcasts."""
        points = {name: space.point for name, space in self.tangent.spaces.items()}
        return CheckedGradients(self.parameters.gradients(grads), points, dtype)

    def tangent_vector(self, x: Array) -> Any:
        """The tangent vector with coordinates x."""
        with one_thread(len(x)):
            parts = self.tangent.parts(Precise(x, np.float64))
            vector = Blocks({name: space.from_coordinates(*next(parts)) for name, space in self.tangent.spaces.items()})
        return vector[ONLY] if self.parameters.single else vector

    def horizontal(self, x: Vector | Precise, dtype: Any = np.float64) -> Array:
        """The horizontal part of coordinates, block by block."""
        found: Array = np.empty(x.shape, dtype)
        with one_thread(len(found)):
            for space, (part, place) in zip(self.tangent.spaces.values(), self.tangent.parts(x, found), strict=True):
                place[...] = space.horizontal_coordinates(part)
        return found

    def bend(self, x: Array, power: int) -> float:
        """‖½Γ(ξ, ξ)‖/‖ξ‖ᵖ, the largest of all blocks and heads."""
        largest = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for space, (part,) in zip(
                self.tangent.spaces.values(), self.tangent.parts(Precise(x, np.float64)), strict=True
            ):
                v = space.from_coordinates(part)
                length, half = space.norm(v) ** power, 0.5 * space.norm(space.christoffel(v))
                largest = max(largest, float(np.max(half / np.where(length > 0.0, length, 1.0), initial=0.0)))
        return largest

    def point(self, x: Vector | Precise, order: Order) -> Any | None:
        """γ_ξ(1), or None where the geodesic does not get there; θ itself for ξ = 0, in the precision of x."""
        if is_zero(x):
            here = self.tangent.point if x.dtype == np.float64 else self.tangent.point_at(x, 1)
            return self.parameters.assembled(here)
        try:
            with one_thread(x.shape[0]), np.errstate(over="ignore", invalid="ignore"):
                return self.parameters.assembled(self.tangent.point_at(x, order))
        except NO_GEODESIC:
            return None


def _in(dtype: Any, block: Any) -> Any:
    """A block in the precision of the search."""
    if isinstance(block, Pair):
        return Pair.unchecked(*(factor.astype(dtype, copy=False) for factor in block))
    return block.astype(dtype, copy=False)


class Objective:
    """x ↦ L(γ_ξ(1)) − L(θ) with its gradient, in coordinates.

    Parameters
    ----------
    value_and_grad : callable
    space : ParameterSpace
    order : 1, 2 or "exact"
    gradient_order : 1, 2 or "exact"
        The geodesic that the gradient is of; 1 is the paper's, which ignores the derivative of Γ.
    dtype : "float64" or "float32"
        The precision of the points that the loss gets.
    kept : "float64" or "float32", optional
        That of vectors that are kept: gradients, directions. Default: `dtype`.

    Attributes
    ----------
    origin : ndarray
        x of the parameters themselves.
    loss, gradient_at_origin
        Value and gradient there.
    """

    def __init__(
        self,
        value_and_grad: LossAndGradient,
        space: ParameterSpace,
        order: Order,
        gradient_order: Order,
        dtype: str = "float64",
        kept: str | None = None,
    ) -> None:
        self.value_and_grad, self.space = value_and_grad, space
        self._order, self._gradient_order = order, gradient_order
        self.dtype, self.kept = np.dtype(dtype), np.dtype(kept or dtype)
        self.origin: Array = np.zeros(space.tangent.n_coordinates, self.kept)
        self.loss = 0.0
        self.loss, self.gradient_at_origin = self(self.origin)
        if not math.isfinite(self.loss):
            raise ValueError("value_and_grad: expected a finite loss and gradient at the given parameters")

    def __call__(self, x: Vector) -> tuple[float, Array]:
        """Value and gradient; −inf where there is none."""
        at = self._in_precision(x)
        try:  # the point is not kept
            point = self.space.point(at, self._order)
            loss, grads = (-math.inf, None) if point is None else checked_evaluation(self.value_and_grad(point))
            del point
        except NotFiniteError:  # by a Pair, for example, that is made of its gradient
            if is_zero(at):
                raise
            return -math.inf, self.origin
        gradient = self._gradient(at, grads) if math.isfinite(loss) else None
        return (-math.inf, self.origin) if gradient is None else (loss - self.loss, gradient)

    def _in_precision(self, x: Vector) -> Combination | Precise:
        """As the geometry takes it."""
        # of a short one its many blocks are made faster all at once
        at = x if isinstance(x, Combination) and len(x) > _SHORT else Precise(x[:], self.dtype)
        if "exact" in (self._order, self._gradient_order) and not is_zero(at):
            # it is, but for rounding, and closed forms are of horizontal geodesics
            return Precise(self.space.horizontal(at, self.dtype), self.dtype)
        return at

    def _gradient(self, x: Combination | Precise, grads: Any) -> Array | None:
        """In coordinates, in the precision of vectors that are kept; None where it is not finite."""
        gradient = np.empty(x.shape, self.kept)
        blocks = self.space.gradients(grads, self.dtype)
        with one_thread(len(gradient)), np.errstate(over="ignore", invalid="ignore"):
            try:
                self.space.tangent.gradient_at(x, blocks, self._gradient_order, gradient)
            except NotFiniteError:
                return None
            return gradient if is_finite(gradient) else None

    def check_symmetry(self) -> None:
        """See `check_symmetry`."""

        def value(params: Any) -> float:
            return checked_evaluation(self.value_and_grad(params))[0]

        check_symmetry(self.space, value, self.loss, self.dtype)

    def bend(self, x: Array) -> float:
        """‖½Γ(ξ, ξ)‖/‖ξ‖ of second-order geodesics, the largest of all blocks and heads."""
        if self._order != 2:
            return 0.0
        return self.space.bend(x, 1)

    def random_direction(self, rng: np.random.Generator) -> Array:
        """Coordinates of a horizontal direction, the same along an orbit."""
        return self.horizontal(self.space.tangent.normal_coordinates(rng).astype(self.kept, copy=False))

    def horizontal(self, x: Vector) -> Array:
        """The horizontal part of coordinates."""
        return self.space.horizontal(x if isinstance(x, Combination) else Precise(x, np.float64), self.kept)

    def tangent_vector(self, x: Array) -> Any:
        """ξ of coordinates x, of the type of the parameters."""
        return self.space.tangent_vector(x)


def check_symmetry(
    space: ParameterSpace, value: Callable[[Any], float], here: float, dtype: npt.DTypeLike = np.float64
) -> None:
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
    if not groups or space.tangent.dim == 0:
        return

    def loss(blocks: Mapping[str, Any]) -> float:
        return value(space.parameters.assembled({name: _in(dtype, block) for name, block in blocks.items()}))

    point = {name: tangent.point for name, tangent in space.tangent.spaces.items()}
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
