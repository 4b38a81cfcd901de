"""One case put to one backend: calls by name with pairs in and pairs out, beside what is known to be right."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.cases import Case, representable
from refgeo.metrics.pair_space import PairTangentSpace
from refgeo.pair import Array, Pair


class Trial:
    """A case and a backend.

    Attributes
    ----------
    backend : Backend
    case : Case
    """

    def __init__(self, backend: Backend, case: Case) -> None:
        self.backend, self.case = backend, case

    @property
    def dtype(self) -> str:
        """Of the arrays that the backend gets."""
        return self.case.dtype

    @property
    def space(self) -> PairTangentSpace:
        """The right geometry at the case's point, in double precision."""
        return self.case.space

    @property
    def roundoff(self) -> float:
        """Unit roundoff of the dtype."""
        return float(np.finfo(self.dtype).eps / 2)

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers that depend on the case and the purpose only."""
        return np.random.default_rng([self.case.seed, zlib.crc32(f"{self.case.name} {purpose}".encode())])

    def rounded(self, pair: Pair) -> Pair:
        """The pair that the backend will really get."""
        return representable(pair, self.dtype)

    def call(self, function: str, *vectors: Pair, point: Pair | None = None, extra: tuple[Any, ...] = ()) -> Any:
        """The backend's result as float64: an array for the inner product, else a tuple of arrays (G part, H part)."""
        point = self.case.point if point is None else point
        arrays = [factor.astype(self.dtype) for pair in (point, *vectors) for factor in pair]
        shapes: list[tuple[int, ...]] = [point.G.shape, point.H.shape]
        if function == "inner_product":
            return self.backend.call(function, self.case.metric, arrays, extra, [point.block_shape])[0]
        return tuple(self.backend.call(function, self.case.metric, arrays, extra, shapes))

    def length(self, parts: tuple[Array, Array], space: PairTangentSpace | None = None) -> Array:
        """Length in the metric of the parts of a vector, infinite where they are not finite."""
        space = self.space if space is None else space
        shape = space.point.block_shape
        finite = np.ones(shape, dtype=bool)
        for part in parts:
            finite &= np.isfinite(part).reshape(*shape, -1).all(axis=-1)
        lengths = space.norm(Pair._of(*(np.where(np.isfinite(part), part, 0.0) for part in parts)))
        return np.where(finite & np.isfinite(lengths), lengths, np.inf)
