"""One case put to one backend: calls by name with pairs in and pairs out, beside what is known to be right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.case import Case
from refgeo.conformance.drawing import rng_of
from refgeo.conformance.host import Breaches, Request
from refgeo.conformance.operations import OPERATIONS, Operation, Parts, Value
from refgeo.conformance.precision import PRECISIONS, Precision, representable
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.support.arguments import Array

Watch = Callable[[Operation, Case, Breaches], None]


def _unseen(operation: Operation, case: Case, breaches: Breaches) -> None:
    pass


class Trial:
    """A case and a backend.

    Attributes
    ----------
    backend : Backend
    case : Case
    watch : callable
        Told what every call did besides returning.
    least : int
        So many blocks are enclosed at least.
    enclosed : ndarray of bool
        Which blocks of the latest value were.
    decisive : bool
        Whether a verdict rests on the calls.
    breach : str
        How it was misconduct, if it was; of a law.
    """

    def __init__(self, backend: Backend, case: Case, watch: Watch = _unseen, least: int = 0) -> None:
        self.backend, self.case, self.watch, self.least = backend, case, watch, least
        self.enclosed, self.decisive, self.breach = np.zeros(case.point.block_shape, dtype=bool), False, ""

    @property
    def precision(self) -> Precision:
        """Of the arrays that the backend gets."""
        return PRECISIONS[self.case.dtype]

    @property
    def space(self) -> PairTangentSpace:
        """The right geometry at the case's point, in double precision."""
        return self.case.space

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers that depend on the case and the purpose only."""
        return rng_of(self.case.seed, f"{self.case.name} {purpose}")

    def rounded(self, pair: Pair) -> Pair:
        """The pair that the backend will really get."""
        return representable(pair, self.case.dtype)

    def arrays(self, *pairs: Pair) -> list[Array]:
        """The factors of pairs in the backend's dtype; one pair given twice is one array given twice."""
        made: dict[int, Array] = {}
        factors = [factor for pair in pairs for factor in pair]
        for factor in factors:
            if id(factor) not in made:
                made[id(factor)] = factor.astype(self.precision.carrier)
        return [made[id(factor)] for factor in factors]

    def call(
        self, function: str, *vectors: Pair, point: Pair | None = None, extra: tuple[Any, ...] = (), **options: Any
    ) -> Parts:
        """The parts of the backend's result as float64; `options` are those of `Request`."""
        operation, point = OPERATIONS[function], self.case.point if point is None else point
        parts, breaches = self.ask(operation, self.arrays(point, *vectors), point, extra, **options)
        if not options:
            self.watch(operation, self.case, breaches)
        return tuple(parts)

    def ask(
        self, operation: Operation, arrays: list[Array], point: Pair, extra: tuple[Any, ...] = (), **options: Any
    ) -> tuple[list[Array], Breaches]:
        """A call with any arrays."""
        plain = Request(
            "call", operation.name, self.case.metric, arrays, (), extra, operation.shapes(point),
            self.precision.dtypes, decisive=self.decisive,
        )  # fmt: skip
        return self.backend.call(replace(plain, **options))

    def value(self, value: Value, **options: Any) -> Parts:
        """The backend's result for a value of this case."""
        return self.call(
            value.operation.name, *self.case.inputs(value.operation), extra=value.extra(self.case.t), **options
        )

    def length(self, parts: Parts, space: PairTangentSpace | None = None) -> Array:
        """Length in the metric of the parts of a vector, or the number itself; infinite where it is not finite."""
        space = self.space if space is None else space
        shape = space.point.block_shape
        if len(parts) == 1:
            return np.where(np.isfinite(parts[0]), np.abs(parts[0]), np.inf)
        finite = np.ones(shape, dtype=bool)
        for part in parts:
            finite &= np.isfinite(part).reshape(*shape, -1).all(axis=-1)
        lengths = space.norm(Pair.unchecked(*(np.where(np.isfinite(part), part, 0.0) for part in parts)))
        return np.where(finite & np.isfinite(lengths), lengths, np.inf)


def beside(error: Array, size: Array) -> Array:
    """Error / size; where the size is zero nothing but zero is right, and any other number is as wrong as can be.

    Examples
    --------
    >>> beside(np.array([1.0, 0.0, 1.0]), np.array([2.0, 0.0, 0.0]))
    array([5.e-001, 0.e+000, 1.e+200])
    """
    with np.errstate(all="ignore"):
        hopeless = np.where(np.isfinite(error), 1e200, error)
        return np.where(size > 0.0, error / size, np.where(error == 0.0, 0.0, hopeless))


def combination(*terms: tuple[Any, Parts]) -> Parts:
    """Σ cᵢ xᵢ of results, which may contain NaN.

    Examples
    --------
    >>> combination((2.0, (np.ones(1), np.ones(2))), (-1.0, (np.ones(1), np.zeros(2))))
    (array([1.]), array([2., 2.]))
    """
    count = len(terms[0][1])
    return tuple(
        np.asarray(sum((c if count == 1 else blockwise(c)) * parts[i] for c, parts in terms)) for i in range(count)
    )


def comparable(operation: Operation, parts: Parts) -> Parts:
    """What two results must agree in: of a retraction, which is a curve in the quotient, the product G Hᵀ.

    Examples
    --------
    >>> comparable(OPERATIONS["retraction"], (np.ones((2, 1)), np.ones((3, 1))))[0].shape
    (2, 3)
    """
    return (np.asarray(parts[0] @ parts[1].mT),) if operation.name == "retraction" else parts


def blockwise(scalar: Any) -> Any:
    """One number a block, to multiply its arrays by.

    Examples
    --------
    >>> blockwise([2.0, 3.0]).shape
    (2, 1, 1)
    """
    scalar = np.asarray(scalar)
    return scalar[..., None, None] if scalar.ndim else scalar


def short(error: Exception) -> str:
    """The first line of what an exception says, or its beginning.

    Examples
    --------
    >>> len(short(ValueError("no" * 100)))
    90
    """
    text = str(error).split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."
