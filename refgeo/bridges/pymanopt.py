"""The quotients of this package as manifolds of Pymanopt, whose optimisers then run on them.

Needs Pymanopt (``pip install "refgeo[pymanopt]"``). For a product take Pymanopt's ``Product`` of several.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refgeo.geometry.arrays import ElementwiseMetric
from refgeo.geometry.pair import Pair, as_pair
from refgeo.geometry.tangent_space import Metric, TangentSpace
from refgeo.support.arguments import Array, Order
from refgeo.support.errors import NotFiniteError
from refgeo.support.extras import require

require("refgeo.bridges.pymanopt", "pymanopt", "pymanopt")
from pymanopt.manifolds.manifold import Manifold  # noqa: E402

__all__ = ["QuotientManifold"]


class QuotientManifold(Manifold):  # type: ignore[misc]  # Pymanopt has no types
    """A metric's quotient: points are `Pair`s or arrays, tangent vectors horizontal ones.

    The cost is a function of the two factors, ``cost(G, H)``, or of the array.

    Parameters
    ----------
    metric : Metric
        On pairs or on arrays.
    like : Pair or array
        A point, for the shapes; random points have normal entries, as large as these.
    retraction_order : 1, 2 or "exact"
        1 is θ + v; 2 also has the curvature of the geodesic, so that it is a retraction of second order. For
        ``InterpolatedMetric(0.5)`` 1 is one as well: Γ(v, v) is vertical for a horizontal v. "exact" raises
        `GeodesicIncompleteError` where the geodesic ends before.
    rng : numpy Generator, or a seed
        Of random points and vectors.

    Examples
    --------
    Fit a matrix of rank one, by trust regions:

    >>> import numpy as np, pymanopt, refgeo as rg
    >>> from refgeo.bridges.pymanopt import QuotientManifold
    >>> A = np.outer([1.0, 2.0, 2.0], [2.0, 1.0])
    >>> manifold = QuotientManifold(rg.InvariantMetric(), rg.Pair(np.ones((3, 1)), np.ones((2, 1))))
    >>> @pymanopt.function.autograd(manifold)
    ... def cost(G, H):
    ...     return ((G @ H.T - A) ** 2).sum()
    >>> optimizer = pymanopt.optimizers.TrustRegions(verbosity=0)
    >>> point = optimizer.run(pymanopt.Problem(manifold, cost)).point
    >>> bool(np.allclose(point.product, A))
    True
    """

    def __init__(
        self,
        metric: Metric[Any],
        like: Any,
        retraction_order: Order = 1,
        rng: np.random.Generator | int | None = 0,
    ) -> None:
        space = metric.at(like)
        self.metric, self.retraction_order = metric, retraction_order
        self._rng = np.random.default_rng(rng)
        self._like, self._recent = space.point, [space]
        heads = int(np.prod(space.block_shape, dtype=int))
        super().__init__(f"{metric!r} on {space.point!r}", space.dim * heads, 2 if isinstance(space.point, Pair) else 1)

    def _vector(self, v: Any) -> Any:
        """Return a pair; Pymanopt's gradients of two factors are lists."""
        return as_pair("vector", v) if isinstance(self._like, Pair) else v

    def at(self, point: Any) -> TangentSpace[Any]:
        """Return the tangent space; the two latest are kept, for an optimiser looks back and forth."""
        for space in self._recent:
            if space.point is point:
                return space
        space = self.metric.at(point)
        self._recent = [space, *self._recent[:1]]
        return space

    @property
    def typical_dist(self) -> float:
        """The length of the point that the manifold was made with."""
        return self.norm(self._like, self._like) or 1.0

    def inner_product(self, point: Any, a: Any, b: Any) -> float:
        """Return the inner product of two tangent vectors, summed over all heads."""
        try:
            return float(np.sum(self.at(point).inner_product(self._vector(a), self._vector(b))))
        except NotFiniteError:  # of a step of 0/0 at the optimum, which Pymanopt expects to see
            return math.nan

    def norm(self, point: Any, v: Any) -> float:
        """Return the length of a tangent vector, all heads together."""
        return math.sqrt(abs(self.inner_product(point, v, v)))

    def projection(self, point: Any, v: Any) -> Any:
        """Return the horizontal part."""
        return self.at(point).horizontal_projection(self._vector(v))

    to_tangent_space = projection

    def random_point(self) -> Any:
        """Return normal entries of the size of those of `like`; zeros that the metric freezes stay."""
        frozen = isinstance(self.metric, ElementwiseMetric)

        def draw(x: Array) -> Array:
            size = np.where(x == 0.0, 0.0, 1.0) if frozen else np.ones(x.shape)
            return np.asarray(self._rng.standard_normal(x.shape) * size * (float(np.sqrt(np.mean(x**2))) or 1.0))

        return Pair(*map(draw, self._like)) if isinstance(self._like, Pair) else draw(self._like)

    def random_tangent_vector(self, point: Any) -> Any:
        """Return a horizontal vector of unit length, all heads together."""
        v = self.at(point).random_tangent_vector(self._rng)
        return v / self.norm(point, v)

    def zero_vector(self, point: Any) -> Any:
        """Return the zero vector."""
        return 0.0 * point

    def euclidean_to_riemannian_gradient(self, point: Any, euclidean_gradient: Any) -> Any:
        """Return the Riemannian gradient, which is horizontal up to rounding."""
        space = self.at(point)
        return space.horizontal_projection(space.riemannian_gradient(self._vector(euclidean_gradient)))

    def euclidean_to_riemannian_hessian(
        self, point: Any, euclidean_gradient: Any, euclidean_hessian: Any, tangent_vector: Any
    ) -> Any:
        """Return the Riemannian Hessian; see `TangentSpace.riemannian_hessian`."""
        vectors = map(self._vector, (euclidean_gradient, euclidean_hessian, tangent_vector))
        try:
            return self.at(point).riemannian_hessian(*vectors)
        except NotFiniteError:
            return math.nan * point

    def retraction(self, point: Any, tangent_vector: Any) -> Any:
        """Return the geodesic, of `retraction_order`."""
        try:
            return self.at(point).geodesic(tangent_vector, 1.0, self.retraction_order)
        except NotFiniteError:
            return math.nan * point

    def exp(self, point: Any, tangent_vector: Any) -> Any:
        """Return the exact geodesic; raise `GeodesicIncompleteError` where it ends before."""
        return self.at(point).geodesic(tangent_vector, 1.0, "exact")

    def transport(self, point_a: Any, point_b: Any, tangent_vector_a: Any) -> Any:
        """Project a vector to the horizontal space at the other point, a vector transport if the two are close,
        as a point and its retraction are: other representatives of their orbits give other vectors.
        """
        return self.at(point_b).horizontal_projection(self._vector(tangent_vector_a))
