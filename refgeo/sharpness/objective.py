"""A loss as a function of coordinates: what leaves the domain has the value −inf."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from refgeo.arguments import Array, Order
from refgeo.errors import NO_GEODESIC, NotFiniteError
from refgeo.metrics.product import Blocks, ProductMetric, ProductTangentSpace
from refgeo.metrics.tangent_space import Metric, as_metric
from refgeo.pair import Pair
from refgeo.sharpness.parameters import (
    ONLY,
    CheckedGradients,
    LossAndGradient,
    Parameters,
    checked_evaluation,
    is_finite,
)
from refgeo.sharpness.vectors import Combination, Precise, Vector, is_zero
from refgeo.threads import one_thread

_SHORT = 1 << 18
"""Numbers of a vector of which one copy more is nothing."""
_CHANGED = 1e-4
"""A change of the loss by a larger share is investigated: in float32 elements of groups change it by 1e-5 or so."""


class Geometry:
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
            space = (ProductMetric({ONLY: metric}) if single else metric).at(self.parameters.blocks)
        assert isinstance(space, ProductTangentSpace)
        self.space = space

    @property
    def size(self) -> float:
        """How long θ itself is in the metric: the mean of its blocks."""
        blocks = sum(int(np.prod(part.block_shape)) for part in self.space.spaces.values())
        return float(self.space.norm(self.space.point)) / math.sqrt(blocks)

    def gradients(self, grads: Any, dtype: Any) -> Mapping[str, Any]:
        """The user's gradients as blocks; shapes are checked, so that nothing broadcasts."""
        points = {name: space.point for name, space in self.space.spaces.items()}
        return CheckedGradients(self.parameters.gradients(grads), points, dtype)

    def tangent_vector(self, x: Array) -> Any:
        """The tangent vector with coordinates x."""
        with one_thread(len(x)):
            parts = self.space.parts(Precise(x, np.float64))
            vector = Blocks({name: space.from_coordinates(*next(parts)) for name, space in self.space.spaces.items()})
        return vector[ONLY] if self.parameters.single else vector

    def horizontal(self, x: Vector | Precise, dtype: Any = np.float64) -> Array:
        """The horizontal part of coordinates, block by block."""
        found: Array = np.empty(x.shape, dtype)
        with one_thread(len(found)):
            for space, (part, place) in zip(self.space.spaces.values(), self.space.parts(x, found), strict=True):
                place[...] = space.horizontal_coordinates(part)
        return found

    def point(self, x: Vector | Precise, order: Order) -> Any | None:
        """γ_ξ(1), or None where the geodesic does not get there; θ itself for ξ = 0, in the precision of x."""
        if is_zero(x):
            here = self.space.point if x.dtype == np.float64 else self.space.point_at(x, 1)
            return self.parameters.assembled(here)
        try:
            with one_thread(x.shape[0]), np.errstate(over="ignore", invalid="ignore"):
                return self.parameters.assembled(self.space.point_at(x, order))
        except NO_GEODESIC:
            return None


def _in(dtype: Any, block: Any) -> Any:
    """A block in the precision of the search."""
    if isinstance(block, Pair):
        return Pair.unchecked(*(factor.astype(dtype, copy=False) for factor in block))
    return block.astype(dtype, copy=False)


class Increase(ABC):
    """x ↦ L(at x) − L(at the origin), with its gradient in x.

    Parameters
    ----------
    value_and_grad : callable
    params
    length : int
        Of x.
    dtype : "float64" or "float32"
        The precision of the points that the loss gets.
    kept : "float64" or "float32"
        That of vectors that are kept: gradients, directions.

    Attributes
    ----------
    origin : ndarray
        x of the parameters themselves.
    loss, gradient_at_origin
        Value and gradient there.
    source
        The user's function, and the parameters.
    """

    def __init__(
        self, value_and_grad: LossAndGradient, params: Any, length: int, dtype: str = "float64", kept: str = "float64"
    ) -> None:
        self.source, self.dtype, self.kept = (value_and_grad, params), np.dtype(dtype), np.dtype(kept)
        self.origin: Array = np.zeros(length, self.kept)
        self.loss, self.gradient_at_origin = self._evaluate(Precise(self.origin, self.dtype))
        if not math.isfinite(self.loss):
            raise ValueError("value_and_grad: expected a finite loss and gradient at the parameters themselves")

    def __call__(self, x: Vector) -> tuple[float, Array]:
        """Value and gradient; −inf where there is none."""
        if not isinstance(x, Combination) or len(x) <= _SHORT:  # its many blocks are made faster all at once
            loss, gradient = self._evaluate(Precise(x[:], self.dtype))
        else:
            loss, gradient = self._evaluate(x)
        return loss - self.loss, gradient

    @abstractmethod
    def _evaluate(self, x: Combination | Precise) -> tuple[float, Array]:
        """The loss itself, and its gradient, in the precision of vectors that are kept."""

    @property
    @abstractmethod
    def size(self) -> float:
        """How long the parameters themselves are."""

    @abstractmethod
    def random_direction(self, rng: np.random.Generator) -> Array:
        """A direction for a random start."""

    @abstractmethod
    def horizontal(self, x: Vector) -> Array:
        """The part of x that is to be searched."""

    @abstractmethod
    def tangent_vector(self, x: Array) -> Any:
        """What x stands for."""

    def bend(self, x: Array) -> float:
        """How long ½Γ(ξ, ξ) is beside ξ; 0 where no Γ takes part."""
        return 0.0

    def check_symmetry(self) -> None:  # noqa: B027  (most have nothing to check)
        """An error where the loss has not the symmetries that are divided by; here there are none."""


class Objective(Increase):
    """x ↦ L(γ_ξ(1)) − L(θ) with its gradient in coordinates.

    Parameters
    ----------
    value_and_grad : callable
    geometry : Geometry
    order : 1, 2 or "exact"
    gradient_order : 1, 2 or "exact"
        The geodesic that the gradient is of; 1 is the paper's, which ignores the derivative of Γ.
    dtype, kept
        As for `Increase`.
    """

    def __init__(
        self,
        value_and_grad: LossAndGradient,
        geometry: Geometry,
        order: Order,
        gradient_order: Order,
        dtype: str = "float64",
        kept: str | None = None,
    ) -> None:
        self.geometry, self._order, self._gradient_order = geometry, order, gradient_order
        super().__init__(value_and_grad, geometry.parameters.given, geometry.space.n_coordinates, dtype, kept or dtype)

    def _evaluate(self, x: Combination | Precise) -> tuple[float, Array]:
        if "exact" in (self._order, self._gradient_order) and not is_zero(x):
            # it is, but for rounding, and closed forms are of horizontal geodesics
            x = Precise(self.geometry.horizontal(x, self.dtype), self.dtype)
        try:
            loss, grads = self._loss_at(x)
        except NotFiniteError:  # by a Pair, for example, that is made of its gradient
            if is_zero(x):
                raise
            return -math.inf, self.origin
        if not math.isfinite(loss):
            return -math.inf, self.origin
        gradient = np.empty(x.shape, self.kept)
        blocks = self.geometry.gradients(grads, self.dtype)
        with one_thread(len(gradient)), np.errstate(over="ignore", invalid="ignore"):
            try:
                self.geometry.space.gradient_at(x, blocks, self._gradient_order, gradient)
            except NotFiniteError:
                return -math.inf, self.origin
            kept = is_finite(gradient)
        return (loss, gradient) if kept else (-math.inf, self.origin)

    def _loss_at(self, x: Combination | Precise) -> tuple[float, Any]:
        """The user's loss and gradients; the point is not kept."""
        point = self.geometry.point(x, self._order)
        return (-math.inf, None) if point is None else checked_evaluation(self.source[0](point))

    @property
    def size(self) -> float:
        """How long θ is."""
        return self.geometry.size

    def check_symmetry(self) -> None:
        """An error where the loss changes along the symmetries that the metric divides by: one evaluation with all
        blocks moved at once, and more only if it has changed.
        """
        from refgeo import symmetry  # deferred: it loads networks

        groups = symmetry.of_metric(self.geometry.space.metric)
        if not groups or self.geometry.space.dim == 0:
            return
        value_and_grad, _ = self.source
        dtype = self.dtype

        def loss(blocks: Mapping[str, Any]) -> float:
            moved = {name: _in(dtype, block) for name, block in blocks.items()}
            return checked_evaluation(value_and_grad(self.geometry.parameters.assembled(moved)))[0]

        here = {name: space.point for name, space in self.geometry.space.spaces.items()}
        rng, moved = np.random.default_rng(0), dict(here)
        for one in groups:
            moved |= one.act(moved, one.generator(moved, rng), 0.5)
        if abs(loss(moved) - self.loss) <= _CHANGED * abs(self.loss):
            return
        for found in symmetry.verify(loss, here, groups, samples=1):
            if found.verdict == "does not hold":
                where = "" if found.blocks[0] == ONLY else f" of {found.blocks[0]!r}"
                raise ValueError(
                    f"metric: it divides by the symmetry {found.symmetry}{where}, which the loss does not have: an "
                    f"element of that group changes it by a share of {found.change:.2g}. Give this block another "
                    "metric, or none to keep it fixed; refgeo.symmetry.verify measures all symmetries; verify=False "
                    "searches without this check"
                )

    def bend(self, x: Array) -> float:
        """‖½Γ(ξ, ξ)‖/‖ξ‖ of second-order geodesics, the largest of all blocks and heads."""
        if self._order != 2:
            return 0.0
        found = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            parts = self.geometry.space.parts(Precise(x, np.float64))
            for space in self.geometry.space.spaces.values():
                v = space.from_coordinates(*next(parts))
                length = space.norm(v)
                half = 0.5 * space.norm(space.christoffel(v))
                found = max(found, float(np.max(half / np.where(length > 0.0, length, 1.0), initial=0.0)))
        return found

    def random_direction(self, rng: np.random.Generator) -> Array:
        """Coordinates of a horizontal direction, the same along an orbit."""
        return self.horizontal(self.geometry.space.normal_coordinates(rng).astype(self.kept, copy=False))

    def horizontal(self, x: Vector) -> Array:
        """The horizontal part of coordinates."""
        return self.geometry.horizontal(x if isinstance(x, Combination) else Precise(x, np.float64), self.kept)

    def tangent_vector(self, x: Array) -> Any:
        """ξ of coordinates x, of the type of the parameters."""
        return self.geometry.tangent_vector(x)
