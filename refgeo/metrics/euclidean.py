"""Flat metrics on arrays: the Euclidean one, and its quotient by translations (Sec. 3.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array
from refgeo.metrics.array_space import ArrayTangentSpace
from refgeo.metrics.tangent_space import Metric


class EuclideanMetric(Metric[Array]):
    """The Euclidean metric on arrays: plain weight space.

    Examples
    --------
    >>> import refgeo as rg
    >>> rg.EuclideanMetric().at([1.0, 2.0]).geodesic([3.0, 4.0])
    array([4., 6.])
    """

    name = "euclidean"

    def at(self, point: npt.ArrayLike) -> ArrayTangentSpace:
        """The tangent space at `point`, an array of any shape."""
        return ArrayTangentSpace(self, point)


class TranslationTangentSpace(ArrayTangentSpace):
    """Tangent space of `TranslationMetric`: horizontal vectors have mean zero."""

    def _vertical(self, x: Array) -> Array:
        return np.full_like(x, x.mean())


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
