"""Flat metrics on arrays: the Euclidean one, and its quotient by translations (Sec. 3.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array
from refgeo.metrics.array_space import ArrayTangentSpace
from refgeo.metrics.tangent_space import Metric


class EuclideanTangentSpace(ArrayTangentSpace):
    """Tangent space of `EuclideanMetric`; see `ArrayTangentSpace` for its members."""

    def inner_product(self, a: Array, b: Array) -> Array:
        """Σ a_i b_i."""
        return np.asarray(np.vdot(self._vector("a", a), self._vector("b", b)))

    def riemannian_gradient(self, egrad: Array) -> Array:
        """The Euclidean gradient itself."""
        return self._vector("egrad", egrad)

    def riemannian_hessian(self, egrad: Array, ehess_v: Array, v: Array) -> Array:
        """The Euclidean Hessian, projected to the horizontal space."""
        self._vector("egrad", egrad), self._vector("v", v)
        return self.horizontal_projection(self._vector("ehess_v", ehess_v))

    def christoffel(self, a: Array, b: Array | None = None) -> Array:
        """Γ = 0."""
        self._vector("a", a)
        return np.zeros_like(self._vector("b", a if b is None else b))

    def christoffel_adjoint(self, a: Array, e: Array) -> Array:
        """Γ(a, ·)* e = 0."""
        self._vector("a", a)
        return np.zeros_like(self._vector("e", e))

    def _exact_geodesic(self, v: Array) -> Array:
        return np.asarray(self.point + v)

    def to_coordinates(self, v: Array) -> Array:
        """The entries, as a flat vector."""
        return self._vector("v", v).ravel()

    def from_coordinates(self, x: npt.ArrayLike) -> Array:
        """The entries in the shape of the point."""
        return self._coordinates(x).reshape(self.point.shape)


class EuclideanMetric(Metric[Array]):
    """The Euclidean metric on arrays: plain weight space.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.EuclideanMetric().at([1.0, 2.0]).geodesic([3.0, 4.0])
    array([4., 6.])
    """

    name = "euclidean"

    def at(self, point: npt.ArrayLike) -> EuclideanTangentSpace:
        """The tangent space at `point`, an array of any shape."""
        return EuclideanTangentSpace(self, point)


class TranslationTangentSpace(EuclideanTangentSpace):
    """Tangent space of `TranslationMetric`: horizontal vectors have mean zero."""

    def horizontal_projection(self, v: Array) -> Array:
        """`v` minus its mean.

        Examples
        --------
        >>> TranslationMetric().at([5.0, 6.0]).horizontal_projection([1.0, 3.0])
        array([-1.,  1.])
        """
        v = self._vector("v", v)
        return np.asarray(v - v.mean())


class TranslationMetric(EuclideanMetric):
    """The Euclidean metric, for a loss that does not change when one number is added to all entries (Sec. 3.1).

    Such are the logits' biases before a softmax. Geodesics are straight.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.TranslationMetric().at([5.0, 6.0, 7.0]).dim
    2
    """

    name = "translation"

    def at(self, point: npt.ArrayLike) -> TranslationTangentSpace:
        """The tangent space at `point`, an array of any shape."""
        return TranslationTangentSpace(self, point, dim=np.size(point) - 1)
