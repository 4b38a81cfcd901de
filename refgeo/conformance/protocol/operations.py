"""The specification: the functions that a backend can provide, in one table with typed arguments and results.

All other parts of the referee use it: calls, values, files for other languages, laws, the dictionary of terms for
formulas, tests. An *operation* is a function of the protocol. A *value* is an operation whose result is enclosed; a
geodesic of each order is a value of its own.

The types say how the group acts. At A·θ = (GA⁻¹, HAᵀ), a *vector* v becomes (v_GA⁻¹, v_HAᵀ), as a *point* does, a
*covector* becomes (e_GAᵀ, e_HA⁻¹), and a *scalar* does not change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from refgeo import paper
from refgeo.conformance.protocol.call import RULE_ARGUMENTS, UPDATE_RULES
from refgeo.exact import Enclosure, ExactTangentSpace
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_space import PairTangentSpace, relative_speed
from refgeo.support.arguments import ENDS, Array

Vectors = Sequence[Pair]
Parts = tuple[Array, ...]
"""A result: the parts of a vector or point, or one array with a number for each block."""


@dataclass(frozen=True)
class Argument:
    """A vector or covector that an operation gets as two arrays.

    Attributes
    ----------
    name : str
        The name in the protocol.
    type : "vector" or "covector"
    source : str
        The name under which a test point keeps it.
    """

    name: str
    type: Literal["vector", "covector"]
    source: str = ""


@dataclass(frozen=True)
class Operation:
    """A function of a backend.

    Attributes
    ----------
    name : str
    inputs : tuple of Argument
        The arguments after the point.
    extra : tuple of "t" and "order"
        The arguments after these.
    result : "vector", "scalar" (one number per block) or "point"
    gram_power : int
        The exponent of κ in the error of an algorithm that forms Gram matrices.
    solved_power : int, optional
        The same, if the vertical part requires a Sylvester equation, as in all metrics except mix without relaxation.
    """

    name: str
    inputs: tuple[Argument, ...]
    extra: tuple[str, ...] = ()
    result: Literal["vector", "scalar", "point"] = "vector"
    gram_power: int = 2
    solved_power: int | None = None

    def loss(self, metric: str, relaxation: float) -> float:
        """Return the exponent of κ in the error of an algorithm that forms Gram matrices, for one metric.

        Examples
        --------
        >>> [OPERATIONS["horizontal_projection"].loss(metric, 0.0) for metric in ("inv", "mix")]
        [4.0, 2.0]
        """
        explicit = metric == "mix" and relaxation == 0.0
        return float(self.gram_power if explicit or self.solved_power is None else self.solved_power)

    @property
    def scalar(self) -> bool:
        """Whether the result is one number per block rather than a pair."""
        return self.result == "scalar"

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """The names of the vectors and covectors after the point."""
        return tuple(x.name for x in self.inputs)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments after the metric.

        Examples
        --------
        >>> OPERATIONS["riemannian_gradient"].arguments
        ('G', 'H', 'e_G', 'e_H')
        """
        return ("G", "H", *(f"{vector}_{part}" for vector in self.vectors for part in "GH"), *self.extra)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The names under which a test point keeps the vectors."""
        return tuple(x.source or x.name for x in self.inputs)

    def shapes(self, point: Pair) -> list[tuple[int, ...]]:
        """Return the shapes of the result's parts."""
        return [point.block_shape] if self.scalar else [point.G.shape, point.H.shape]


def _vectors(names: str) -> tuple[Argument, ...]:
    """Declare arguments that are tangent vectors, by their names."""
    return tuple(Argument(name, "vector") for name in names.split())


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("inner_product", _vectors("a b"), result="scalar"),
        Operation("horizontal_projection", _vectors("v"), solved_power=4),
        Operation("riemannian_gradient", (Argument("e", "covector"),)),
        Operation(
            "riemannian_hessian",
            (
                Argument("e", "covector", "hessian_e"),
                Argument("w", "covector", "hessian_w"),
                Argument("v", "vector", "hessian_v"),
            ),
            gram_power=3,
            solved_power=4,
        ),
        Operation("christoffel", _vectors("a b"), gram_power=3),
        Operation("geodesic", _vectors("v"), ("t", "order"), result="point", gram_power=3),
        Operation("retraction", _vectors("v"), ("t",), result="point"),
    )
}

_INPUTS = {x.source or x.name: x.type for operation in OPERATIONS.values() for x in operation.inputs}
VECTORS = tuple(sorted(_INPUTS, key=lambda name: (len(name), name)))
"""The vectors and covectors of a test point."""
COVECTORS = tuple(name for name in VECTORS if _INPUTS[name] == "covector")

ROUTINE = "sharpness"
"""The function of the protocol that is a whole search; see `refgeo.conformance.optimisers.searches`."""

FUNCTIONS = (*OPERATIONS, ROUTINE, *UPDATE_RULES)


def arguments_of(function: str, is_plain: bool = False) -> tuple[str, ...]:
    """Return the arguments of a function of the protocol; if `is_plain`, those of a search that is a lone function.

    Examples
    --------
    >>> arguments_of("geodesic")
    ('metric', 'G', 'H', 'v_G', 'v_H', 't', 'order')
    """
    if function in RULE_ARGUMENTS:
        return RULE_ARGUMENTS[function]
    if function == ROUTINE:
        return (
            ("value_and_grad", "params", "metric", "rho")
            if is_plain
            else ("metric", "problem", "G", "H", "rho", "order")
        )
    return ("metric", *OPERATIONS[function].arguments)


@dataclass(frozen=True)
class Value:
    """An operation whose result is enclosed.

    Attributes
    ----------
    name : str
    operation : Operation
    statement : str
        The formula, in one line.
    expected : callable
        ``(exact space, vectors, t) -> tuple of Enclosure``.
    size : callable
        ``(space, vectors, t) -> ndarray``: the scale of the result, that is, the size of its terms before they cancel.
    loss : callable
        From the metric and its relaxation to the exponent of κ in the error of an algorithm with Gram matrices.
    order : 1, 2, "exact" or None
    between : str
        The formula for a metric between inv and mix, if it differs.
    uses : tuple of str
        The values that its formula contains.
    """

    name: str
    operation: Operation
    statement: str
    expected: Callable[[ExactTangentSpace, Vectors, float], tuple[Enclosure, ...]]
    size: Callable[[PairTangentSpace, Vectors, float], Array]
    loss: Callable[[str, float], float]
    order: Any = None
    between: str = ""
    uses: tuple[str, ...] = ()

    def statement_of(self, metric: str) -> str:
        """Return the formula for one metric, in one line.

        Examples
        --------
        >>> VALUES["riemannian_gradient"].statement_of("s=0.5")
        '(e_G M_G⁻¹, e_H M_H⁻¹) with M_G = S⁻¹(ST)ˢ, M_H = T⁻¹(TS)ˢ'
        """
        return self.between if self.between and metric not in ENDS else self.statement

    def extra(self, t: float) -> tuple[Any, ...]:
        """Return the arguments after the vectors.

        Examples
        --------
        >>> VALUES["geodesic_2"].extra(0.5)
        (0.5, 2)
        """
        return tuple({"t": t, "order": self.order}[name] for name in self.operation.extra)


def christoffel_size(space: PairTangentSpace, a: Pair, b: Pair) -> Array:
    r"""Return the scale of Γ(a, b): a bound on the length of each of its terms, which can cancel.

    In inv, a term is like :math:`a_G S^{-1} b_G^\top G`, no longer than ‖a‖ times the relative speed :math:`‖b_G
    S^{-½}‖_F` of the factor; in mix like :math:`a_G b_H^\top H T^{-1}`, no longer than :math:`‖a_G T^{½}‖ ‖b_H
    T^{-½}‖`. So both are ‖a‖ times the relative speed of b, or the reverse.

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.InvariantMetric().at(Pair([[1.0]], [[1.0]]))
    >>> float(christoffel_size(space, space.point, space.point).round(12))
    4.0
    """
    return np.asarray(space.norm(a) * relative_speed(space, b) + space.norm(b) * relative_speed(space, a))


def hessian_size(space: PairTangentSpace, e: Pair, w: Pair, v: Pair) -> Array:
    """Return the scale of Hess f[v]: of g⁻¹w, of e D(g⁻¹)[v], which is about twice Γ(grad f, v), and of Γ itself.

    Examples
    --------
    >>> import refgeo as rg
    >>> point = Pair([[1.0]], [[1.0]])
    >>> float(hessian_size(rg.InvariantMetric().at(point), point, point, point).round(12))
    13.414213562373
    """
    gradient = space.riemannian_gradient(e)
    return np.asarray(space.norm(space.riemannian_gradient(w)) + 3 * christoffel_size(space, gradient, v))


def geodesic_size(space: PairTangentSpace, v: Pair, t: float, order: Any) -> Array:
    """Return the scale of a point of a geodesic: of the base point, the step, and the curvature term.

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.InvariantMetric().at(Pair([[1.0]], [[1.0]]))
    >>> float(geodesic_size(space, space.point, 1.0, 1).round(12))
    2.828427124746
    """
    time = np.abs(np.float64(t))  # which overflows to infinity
    size = space.norm(space.point) + time * space.norm(v)
    if order != 1:
        size = size + 0.5 * time**2 * christoffel_size(space, v, v)
    if order == "exact":  # a factor can grow by the exponential of its relative speed
        size = size * np.exp(np.minimum(time * relative_speed(space, v), 600.0))
    return np.asarray(size)


def statement_of_paper(name: str) -> str:
    """Return the first line of the docstring of a function of `refgeo.paper`.

    Examples
    --------
    >>> statement_of_paper("riemannian_gradient")
    'From the Euclidean gradient e (Sec. 5.2): inv (e_G S, e_H T); mix (e_G T⁻¹, e_H S⁻¹).'
    """
    return str(inspect.getdoc(getattr(paper, name))).splitlines()[0]


def _geodesic(order: Any, statement: str) -> Value:
    """Make the value of a geodesic of one order."""
    return Value(
        f"geodesic_{order}",
        OPERATIONS["geodesic"],
        statement,
        lambda exact, vectors, t: exact.geodesic(vectors[0], t, order),
        lambda space, vectors, t: geodesic_size(space, vectors[0], t, order),
        (lambda metric, relaxation: 1.0) if order == 1 else OPERATIONS["geodesic"].loss,
        order,
        uses=("christoffel",) if order == 2 else (),
    )


def _plain(
    name: str,
    expected: Callable[..., tuple[Enclosure, ...]],
    size: Callable[..., Array],
    between: str = "",
    uses: tuple[str, ...] = (),
) -> Value:
    """Make the value of an operation that has only one."""
    operation = OPERATIONS[name]
    return Value(
        name,
        operation,
        statement_of_paper(name),
        lambda exact, vectors, t: expected(exact, *vectors),
        lambda space, vectors, t: size(space, *vectors),
        operation.loss,
        between=between,
        uses=uses,
    )


_WEIGHTS = "with M_G = S⁻¹(ST)ˢ, M_H = T⁻¹(TS)ˢ"


VALUES: dict[str, Value] = {
    value.name: value
    for value in (
        _plain(
            "inner_product",
            lambda exact, a, b: (exact.inner_product(a, b),),
            lambda space, a, b: space.norm(a) * space.norm(b),
            f"tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H) {_WEIGHTS}",
        ),
        _plain(
            "horizontal_projection",
            lambda exact, v: exact.horizontal_projection(v),
            lambda space, v: space.norm(v),
        ),
        _plain(
            "riemannian_gradient",
            lambda exact, e: exact.riemannian_gradient(e),
            lambda space, e: space.norm(space.riemannian_gradient(e)),
            f"(e_G M_G⁻¹, e_H M_H⁻¹) {_WEIGHTS}",
        ),
        _plain(
            "riemannian_hessian",
            lambda exact, e, w, v: exact.riemannian_hessian(e, w, v),
            hessian_size,
            uses=("riemannian_gradient", "christoffel", "horizontal_projection"),
        ),
        _plain(
            "christoffel",
            lambda exact, a, b: exact.christoffel(a, b),
            christoffel_size,
        ),
        _geodesic(1, statement_of_paper("geodesic")),
        _geodesic(2, statement_of_paper("geodesic")),
        _geodesic("exact", "the geodesic with velocity v at time t"),
    )
}

RETRACTION = Value(
    "retraction", OPERATIONS["retraction"], "a curve in the quotient with γ(0) = θ, γ'(0) = v", lambda *_: (),
    lambda space, vectors, t: np.asarray(space.norm(space.point)), OPERATIONS["retraction"].loss,
)  # fmt: skip
JUDGED_VALUES = {value.name: value for value in (*VALUES.values(), RETRACTION)}
"""All values of a backend's functions, by name; a geodesic has one for each order."""
