r"""What every geometry offers at a base point: the interfaces `Metric` and `TangentSpace`.

A geometry is six methods, in orthonormal coordinates x, z (flat arrays, one for each block) in which the metric is the
plain dot product:

    _to(v), _back(x)      the coordinates of a vector, and the vector
    _vertical(x)          the part along the orbit of the symmetry that the metric divides out
    _gamma(x, z)          the Christoffel term Γ(x, z)
    _gamma_adjoint(x, e)  its adjoint, Γ(x, ·)* e
    _exact(v, t)          the geodesic without truncation

beside what its points are made of (`_vector`), and how the coordinates of Euclidean gradients, which are those of the
Riemannian ones, come from the transposes of `_back` and `_to`. A geometry is flat, and divides out nothing, unless it
says otherwise. All else follows, once for all geometries: as the metric is constant along the Levi-Civita connection,
Hess f[v] is the horizontal part of Hess v − Γ(v, ·)* e in coordinates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import scipy  # whose modules load where they are used

from refgeo.geometry.blocks import ONLY, Named, flat, reshape_like
from refgeo.geometry.groups import Symmetry
from refgeo.support.arguments import Array, Order, number, order_of, real_array
from refgeo.support.differences import five_point
from refgeo.support.errors import NO_GEODESIC, NotFiniteError

Point = TypeVar("Point")

_SHORT = 0.3
"""Of vectors along which orbits are followed, beside the point."""
_SQUARED = 1e-150
"""Lengths below have squares that lose digits; those above its reciprocal have none."""
_VERTICAL = 1e-6
"""What is left of a vector that is vertical, but for rounding."""
_STEP = 3e-3
"""Step of five-point differences, relative to the inverse of the rate at which geodesics change: truncation and an
integrator's rounding, each about 1e-10, are equal at this step. Chosen."""


class Metric(ABC, Generic[Point]):
    """A Riemannian metric; `at` fixes a base point and factorises it once."""

    name: str
    has_blocks = False
    """Whether a point may be a dict of blocks."""
    is_invariant: bool | None = None
    """Whether the metric lives on the quotient by its groups, which is proved; None: searches measure it."""

    @abstractmethod
    def at(self, point: Point) -> TangentSpace[Point]:
        """Return the tangent space at `point`."""

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return the groups that the metric divides out, as they act on parameters of which it measures this block.

        A loss must have them, or its sharpness is not that of a function on the quotient: searches, averages,
        Hessians and `refgeo.symmetry.verify` ask. Unless a metric says more, its orbits are followed along its
        vertical vectors.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.EmbeddedMetric().symmetries("adapter")[0].name, rg.ElementwiseMetric().symmetries()
        ('GL(h)', [])
        """
        return [orbits(self, block)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def as_metric(name: str, value: object) -> Metric[Any]:
    """Return the value if it is a metric, else raise an error.

    Examples
    --------
    >>> import refgeo as rg
    >>> as_metric("metric", rg.InvariantMetric)
    Traceback (most recent call last):
    ...
    TypeError: metric: expected a metric such as refgeo.InvariantMetric(), got the class InvariantMetric; call it
    """
    if isinstance(value, Metric):
        return value
    if isinstance(value, str):
        got = repr(value)
    elif isinstance(value, Mapping):
        got = "a dict; refgeo.ProductMetric of it is one metric"
    else:
        got = f"the class {value.__name__}; call it" if isinstance(value, type) else type(value).__name__
    raise TypeError(f"{name}: expected a metric such as refgeo.InvariantMetric(), got {got}")


class TangentSpace(ABC, Generic[Point]):
    """An immutable value that answers every question about one base point.

    Points and tangent vectors have the same type. Leading dimensions are independent blocks; a scalar per block has
    their shape. Made by `Metric.at`.

    Attributes
    ----------
    metric : Metric
    point
    dim : int
        Dimension of the quotient, per block.
    n_coordinates : int
        Length of a coordinate vector, per block.
    block_shape : tuple of int
        Shape of the independent blocks.
    """

    metric: Metric[Point]
    point: Point
    dim: int
    n_coordinates: int
    block_shape: tuple[int, ...] = ()

    # A geometry ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _to(self, v: Point) -> Array: ...

    @abstractmethod
    def _back(self, x: Array) -> Point: ...

    def _vertical(self, x: Array) -> Array:
        return np.zeros_like(x)

    def _gamma(self, x: Array, z: Array) -> Array:
        return np.zeros_like(x)

    def _gamma_adjoint(self, x: Array, e: Array, /) -> Array:
        return np.zeros_like(x)

    def _exact(self, v: Any, t: float) -> Point:
        straight: Point = self.point + v * t
        return straight

    @abstractmethod
    def _gradient_to(self, e: Point, /) -> Array: ...

    @abstractmethod
    def _gradient_back(self, x: Array, /) -> Point: ...

    @abstractmethod
    def _vector(self, name: str, value: Any) -> Point:
        """Return a vector or Euclidean gradient, checked."""

    # What follows ----------------------------------------------------------------------------------------------------

    def inner_product(self, a: Point, b: Point) -> Array:
        """Return the inner product of two tangent vectors, one number per block.

        Examples
        --------
        >>> import refgeo as rg
        >>> float(rg.ScalingMetric().at([3.0, 4.0]).inner_product([5.0, 0.0], [10.0, 1.0]))
        2.0
        """
        x = self._to(self._vector("a", a))
        return np.asarray((x * (x if b is a else self._to(self._vector("b", b)))).sum(axis=-1))

    def norm(self, a: Point) -> Array:
        """Return the length of a tangent vector in the metric, one number per block; also where squares leave the
        range.
        """
        with np.errstate(all="ignore"):
            lengths = np.asarray(np.sqrt(self.inner_product(a, a)))
            if ((lengths > _SQUARED) & (lengths < 1.0 / _SQUARED)).all():
                return lengths
            vector: Any = self._vector("a", a)
            lengths = np.asarray(np.hypot.reduce(np.abs(self._to(vector)), axis=-1))
            for scale, lost in ((2.0**500, lengths == 0.0), (2.0**-500, ~np.isfinite(lengths))):
                rescaled = np.hypot.reduce(np.abs(self._to(vector * scale)), axis=-1) if lost.any() else lengths
                if np.any(lost & (rescaled > 0.0) & (rescaled < np.inf)):
                    raise NotFiniteError("a: the length of this vector is beyond the range of floats; use other units")
        return lengths

    def horizontal_projection(self, v: Point) -> Point:
        """Project a vector orthogonally in the metric onto the horizontal space.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.TranslationMetric().at([5.0, 6.0]).horizontal_projection([1.0, 3.0])
        array([-1.,  1.])
        """
        return self._back(self.horizontal_coordinates(self._to(self._vector("v", v))))

    def vertical_projection(self, v: Point) -> Point:
        """Return the vertical part: `v` minus its horizontal projection."""
        v = self._vector("v", v)
        return v - self.horizontal_projection(v)  # type: ignore[operator, no-any-return]

    def is_horizontal(self, v: Point, tolerance: float = 1e-8) -> Any:
        """Return whether the vertical part is at most `tolerance` times the vector in the metric, one answer per
        block.
        """
        return np.asarray(self.norm(self.vertical_projection(v)) <= tolerance * self.norm(v))

    def riemannian_gradient(self, egrad: Point) -> Point:
        """Return the vector that represents the Euclidean gradient `egrad` in the metric.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ElementwiseMetric().at([2.0, 0.0]).riemannian_gradient([1.0, 5.0])
        array([4., 0.])
        """
        return self._back(self._gradient_to(self._vector("egrad", egrad)))

    def riemannian_hessian(self, egrad: Point, ehess_v: Point, v: Point) -> Point:
        """Return the Riemannian Hessian applied to a horizontal `v`, from the gradient and the Hessian-vector product
        that are Euclidean, of an invariant loss.

        Examples
        --------
        The loss ½w² is ½e²ˣ in the coordinate x = log w:

        >>> import refgeo as rg
        >>> float(rg.ElementwiseMetric().at([3.0]).riemannian_hessian([3.0], [3.0], [3.0])[0] / 3.0)
        18.0
        """
        e, w = self._gradient_to(self._vector("egrad", egrad)), self._gradient_to(self._vector("ehess_v", ehess_v))
        return self._back(self.horizontal_coordinates(w - self._gamma_adjoint(self._to(self._vector("v", v)), e)))

    def christoffel(self, a: Point, b: Point | None = None) -> Point:
        """Return the Christoffel term Γ(a, b), a symmetric bilinear map; ``b=None`` means Γ(a, a).

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ElementwiseMetric().at([2.0]).christoffel([1.0])  # −a²/w
        array([-0.5])
        """
        x = self._to(self._vector("a", a))
        return self._back(self._gamma(x, x if b is None else self._to(self._vector("b", b))))

    def christoffel_adjoint(self, a: Point, e: Point) -> Point:
        """Return the adjoint Γ(a, ·)* applied to a Euclidean gradient `e`."""
        return self._gradient_back(
            self._gamma_adjoint(self._to(self._vector("a", a)), self._gradient_to(self._vector("e", e)))
        )

    def geodesic(self, v: Point, t: float = 1.0, order: Order = 2) -> Point:
        """Return the geodesic with initial velocity `v` at time `t`: θ + tv, θ + tv − ½t²Γ(v, v), or without
        truncation.

        Raises
        ------
        ValueError
            `order` is not 1, 2 or "exact".

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.ElementwiseMetric().at([2.0])
        >>> [space.geodesic([2.0], order=order).round(3).item() for order in (1, 2, "exact")]
        [4.0, 5.0, 5.437]
        """
        v, t, order = self._vector("v", v), number("t", t), order_of(order)
        if order == "exact":
            return self._exact(v, t)
        step: Any = v * t  # type: ignore[operator]
        moved: Any = self.point + step
        if order == 2:
            x = self._to(step)
            moved = moved - self._back(0.5 * self._gamma(x, x))
        return moved  # type: ignore[no-any-return]

    def geodesic_gradient(self, v: Point, e: Point, order: Order = 2) -> Point:
        r"""Return the Riemannian gradient at ξ = v of :math:`ξ ↦ ℓ(γ_ξ(1))`, by the chain rule through the geodesic.

        Order 1 raises e, order 2 raises :math:`e - Γ(v,·)^* e`; "exact" differentiates the closed form where there is
        one. Without, it needs no derivative of a formula: a geodesic flow is symplectic, so the adjoint of its
        derivative is the derivative of the reversed flow. With v₁ the velocity at the end θ₁ and g₁ the Riemannian
        gradient of ℓ there,

        .. math:: \mathrm{grad} = -\frac{d}{ds} \exp_{θ_1}(-(v_1 + s g_1)) \Big|_{s=0},

        taken by five-point differences (relative error about 1e-10): one direction, and so four geodesics, where the
        equation of variation would need the derivative of Γ.

        Parameters
        ----------
        v : tangent vector
        e : Euclidean gradient of ℓ at γ_v(1)
        order : 1, 2 or "exact"

        Returns
        -------
        tangent vector

        Raises
        ------
        GeodesicIncompleteError
            Only "exact": a reversed geodesic ends before it is back.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ElementwiseMetric().at([2.0]).geodesic_gradient([2.0], [3.0])  # w(1 + x + ½x²), x = 1: 2·2·3·(1 + x)
        array([24.])
        """
        v, e, order = self._vector("v", v), self._vector("e", e), order_of(order)
        if order == "exact":
            return self._exact_gradient(v, e)
        falling = self._gradient_to(e)
        return self._back(falling if order == 1 else falling - self._gamma_adjoint(self._to(v), falling))

    def _exact_gradient(self, v: Point, e: Point) -> Point:
        """Differentiate the reversed flow by differences."""
        end, arriving = self._arrival(v)
        space = self.metric.at(end)
        gradient: Any = space.riemannian_gradient(e)
        if space._is_horizontal_but_for_noise(arriving) and space._is_horizontal_but_for_noise(gradient):
            # without the rounding of the differences, closed forms serve the way back
            arriving, gradient = space.horizontal_projection(arriving), space.horizontal_projection(gradient)
        rate = np.maximum(space._rate(gradient, gradient), space._rate(arriving, gradient))
        step = _STEP / np.where(rate > 0.0, rate, 1.0)
        back: Any = five_point(lambda s: space._exact(-(arriving + gradient * (s * step)), 1.0), 1.0)
        return back * (-1.0 / step)  # type: ignore[no-any-return]

    def _arrival(self, v: Any) -> tuple[Any, Any]:
        """Return the end of the geodesic, and its velocity there."""
        end, rate = self._exact(v, 1.0), float(np.max(self._rate(v, v), initial=1e-3))
        for _ in range(4):  # as a rule once; more often near the end of the manifold, where the rate is larger
            velocity: Any = five_point(lambda t: self._exact(v, 1.0 + t), _STEP / rate)
            known, rate = rate, float(np.max(self.metric.at(end)._rate(velocity, velocity), initial=rate))
            if rate <= 2.0 * known:
                break
        return end, velocity

    def _rate(self, v: Any, w: Any) -> Array:
        """Return how fast geodesics with velocity v change along w, relative to their point and to their direction."""
        length, bend = self.norm(v), self.norm(self.christoffel(v, w))
        turn = np.divide(bend, length, out=np.zeros_like(bend), where=length > 0.0)
        return np.maximum(self.norm(w) / (length + self.norm(self.point)), turn)

    def _is_horizontal_but_for_noise(self, v: Point) -> bool:
        """Return whether a vector is horizontal relative to its largest block: a small block may be rounding."""
        return bool(np.max(self.norm(self.vertical_projection(v))) <= 1e-8 * np.max(self.norm(v)))

    # In coordinates: what an optimiser that knows no geometry needs --------------------------------------------------

    def to_coordinates(self, v: Point) -> Array:
        """Return orthonormal coordinates: an isometry to flat vectors, one vector per block.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ElementwiseMetric().at([2.0, 0.0]).to_coordinates([1.0, 5.0])
        array([0.5])
        """
        return self._to(self._vector("v", v))

    def from_coordinates(self, x: npt.ArrayLike) -> Point:
        """Return the inverse of `to_coordinates`."""
        return self._back(self._coordinates(real_array("x", x)))

    def _coordinates(self, x: npt.ArrayLike) -> Array:
        x = np.asarray(x, dtype=np.float64)
        if x.shape != (*self.block_shape, self.n_coordinates):
            raise ValueError(f"x: expected shape {(*self.block_shape, self.n_coordinates)}, got {x.shape}")
        return x

    def horizontal_coordinates(self, x: npt.ArrayLike) -> Array:
        """Return the horizontal part, in coordinates.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ScalingMetric().at([3.0, 4.0]).horizontal_coordinates(np.array([0.0, 1.0]))
        array([-0.48,  0.36])
        """
        x = self._coordinates(x)
        return x - self._vertical(x)

    def point_at(self, x: npt.ArrayLike, order: Order = 2) -> Point:
        """Return ``geodesic(from_coordinates(x), 1, order)``; without "exact", x = 0 gives the base point bit by bit.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.EuclideanMetric().at([1.0, 2.0]).point_at([0.5, 0.0])
        array([1.5, 2. ])
        """
        order, x = order_of(order), self._coordinates(x)
        if order == "exact":
            return self._exact(self._back(x), 1.0)
        step: Any = self._back(x if order == 1 else x - 0.5 * self._gamma(x, x))
        return self.point + step  # type: ignore[no-any-return]

    def gradient_at(self, x: npt.ArrayLike, e: Point, order: Order = 2) -> Array:
        """Return the gradient of ``ℓ(point_at(x, order))`` in coordinates, projected to the horizontal space.

        Where a geodesic can be followed to its end but not differentiated there, as beside a loss of rank ("exact"
        only), it is the gradient of the second-order geodesic.

        Parameters
        ----------
        x : ndarray, coordinates
        e : Euclidean gradient of ℓ at ``point_at(x, order)``
        order : 1, 2 or "exact"

        Returns
        -------
        ndarray, coordinates

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.ScalingMetric().at([3.0, 4.0]).gradient_at([0.0, 0.0], [0.0, 1.0], order=1)
        array([-2.4,  1.8])
        """
        order, x = order_of(order), self._coordinates(x)
        e = self._vector("e", e)
        if order == "exact":
            with suppress(*NO_GEODESIC):
                return self.horizontal_coordinates(self._to(self._exact_gradient(self._back(x), e)))
        falling = self._gradient_to(e)
        return self.horizontal_coordinates(falling if order == 1 else falling - self._gamma_adjoint(x, falling))

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Return standard normal coordinates; for the same generator they stand for the same vector along an orbit.

        Examples
        --------
        >>> import numpy as np, refgeo as rg
        >>> rg.EuclideanMetric().at(np.ones(5)).normal_coordinates(np.random.default_rng(0)).shape
        (5,)
        """
        return rng.standard_normal((*self.block_shape, self.n_coordinates))

    def random_tangent_vector(self, rng: np.random.Generator | int | None = None, horizontal: bool = True) -> Point:
        """Return a tangent vector of unit length, uniform in direction in the metric.

        Parameters
        ----------
        rng : numpy Generator, or a seed
        horizontal : bool
            Draw from the horizontal space (default) or from the whole tangent space.

        Raises
        ------
        ValueError
            There is no vector but zero.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.ElementwiseMetric().at([1.0, 20.0, 0.0])
        >>> round(float(space.norm(space.random_tangent_vector(0))), 12)
        1.0
        """
        if not (self.dim if horizontal else self.n_coordinates):
            others = "; horizontal=False draws a vertical one" if self.n_coordinates else ""
            raise ValueError(f"horizontal: expected vectors to draw, but this space has dimension 0 here{others}")
        rng, shape = np.random.default_rng(rng), (*self.block_shape, self.n_coordinates)
        x: Array = rng.standard_normal(shape)
        if horizontal and np.linalg.norm(self.horizontal_coordinates(x), axis=-1).min(initial=1.0) < _VERTICAL:
            x = rng.standard_normal(shape)  # the seed that has drawn the point may draw its own coordinates again
        # twice: the rounding of the first is large beside what it leaves of a nearly vertical draw
        for _ in range(2 if horizontal else 0):
            x = self.horizontal_coordinates(x)
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        return self._back(x / np.linalg.norm(x, axis=-1, keepdims=True))


def orbits(metric: Metric[Any], block: str) -> Symmetry:
    """Return the group of any metric, by its vertical vectors alone: θ flows along the vertical part of a constant
    vector.

    Orbits are the integral manifolds of the vertical spaces, so no flow leaves them.

    Examples
    --------
    >>> import refgeo as rg
    >>> group, params = orbits(rg.ScalingMetric(), "w"), {"w": np.array([3.0, 4.0])}
    >>> moved = group.act(params, np.array([1.0, 2.0]), 1.0)["w"]
    >>> (moved / params["w"]).round(9)
    array([1.44, 1.44])
    """
    drawn, moved = partial(_constant_vector, metric, block), partial(_follow, metric, block)
    return Symmetry("orbits of the metric", (block,), drawn, moved, whole=block == ONLY)


def _constant_vector(metric: Metric[Any], block: str, params: Named, rng: np.random.Generator) -> Array:
    numbers = flat(params.get(block, params))  # a metric on several blocks moves them all
    # short: along the vertical part of a constant vector a point may come near a singular one in a time of order 1
    return np.asarray(_SHORT * rng.standard_normal(numbers.shape) * (float(np.sqrt(np.mean(numbers**2))) or 1.0))


def _follow(metric: Metric[Any], block: str, params: Named, K: Array, t: float) -> dict[str, Any]:
    point = params.get(block, params)
    moved = flow(point, lambda x: flat(metric.at(x).vertical_projection(reshape_like(K, point))), t)
    return {block: moved} if block in params else moved


def flow(point: Any, velocity: Callable[[Any], Array], t: float) -> Any:
    """Return where a point that moves with a velocity is at time t; the velocity is given as one flat array.

    Examples
    --------
    >>> flow(np.ones(2), lambda x: np.array([1.0, -1.0]) * x, np.log(2.0)).round(9)
    array([2. , 0.5])
    """
    with np.errstate(under="ignore"):  # as SciPy's own code expects
        path = scipy.integrate.solve_ivp(
            lambda _, x: velocity(reshape_like(x, point)), (0.0, t), flat(point), "DOP853", rtol=1e-13, atol=1e-15
        )
    return reshape_like(path.y[:, -1], point)
