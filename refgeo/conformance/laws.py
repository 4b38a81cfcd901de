r"""Laws: what must hold between a backend's own results, whatever the values.

A law that involves the metric measures lengths and products with refgeo's geometry, so that a mistake in one function
does not accuse another; only the Koszul identity uses the backend's own inner product, which it must be compatible
with. Errors have the units of `refgeo.conformance.checks`; each is divided by the size of all the terms that are
compared, so that the judge's own rounding, in double precision, is a small part of a unit, and where products of plain
Euclidean vectors enter, which can be larger than their metric size, that rounding is credited explicitly.

Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) − f(−2δ))) / 12δ``: exact for polynomials of degree
four; otherwise with δ = u^{1/5}, where truncation δ⁴ and rounding u/δ are equal, their unit is u^{4/5}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np

from refgeo.arguments import Array
from refgeo.conformance.backend import BackendFailure, Refused
from refgeo.conformance.case import Case
from refgeo.conformance.checks import VALUE_CHECKS, Check, anywhere
from refgeo.conformance.drawing import InvariantLoss, horizontal_like, typical_size
from refgeo.conformance.host import LAYOUTS
from refgeo.conformance.trial import Parts, Trial, beside, blockwise, combination, product_of
from refgeo.errors import GeodesicAccuracyError, GeodesicIncompleteError, RankDeficientError
from refgeo.operations import OPERATIONS, VALUES, Value, christoffel_size, hessian_size
from refgeo.pair import Pair

LAWS: dict[str, Check] = {}

FEW, MANY = 2, 12
"""So many points, with leading dimensions and without, are enough for a law about how a function treats its arrays, and
for any other: values are judged everywhere.
"""
_MANY_BLOCKS = 1100
"""More than a kernel has threads."""

Law = Callable[[Trial], Any]


def law(
    function: str,
    name: str,
    statement: str,
    *,
    needs: Sequence[str] = (),
    scale: float = 1.0,
    differenced: bool = False,
    where: Callable[[Case], bool] = anywhere,
    most: int | None = MANY,
    unusual: int = 0,
    value: Value | None = None,
    of_metric: bool = False,
) -> Callable[[Law], Law]:
    """Register a law of `function`; `scale` widens its unit, `differenced` makes it that of five-point differences, and
    `of_metric` says that it pins down the values of this metric.
    """

    def register(errors: Law) -> Law:
        operation = OPERATIONS[function]
        full = f"{function}.{name}"
        LAWS[full] = Check(
            full,
            "law",
            operation,
            statement,
            lambda trial: np.asarray(errors(trial), dtype=np.float64),
            operation.loss if value is None else value.loss,
            scale,
            0.8 if differenced else 1.0,
            where,
            tuple(needs),
            value,
            most,
            unusual,
            of_metric,
        )
        return errors

    return register


# Helpers -------------------------------------------------------------------------------------------------------

Made = TypeVar("Made")


def _once(make: Callable[..., Made]) -> Callable[..., Made]:
    """The same for all laws of a case, which one process puts to a backend one after another."""

    @wraps(make)
    def made(trial: Trial, *arguments: str) -> Made:
        key = make, *arguments
        if key not in trial.case.derived:
            trial.case.derived[key] = make(trial, *arguments)
        return cast(Made, trial.case.derived[key])

    return made


def _differences(trial: Trial, results: Parts, others: Parts, size: Array) -> Array:
    return beside(trial.length(combination((1.0, results), (-1.0, others))), size)


def _norm(trial: Trial, v: Pair) -> Array:
    return trial.space.norm(v)


def _inner(trial: Trial, parts: Parts, v: Pair) -> Array:
    """The right inner product of a result with a vector; infinite where the result is not finite."""
    finite = np.isfinite(trial.length(parts))
    safe = Pair.unchecked(*(np.where(np.isfinite(part), part, 0.0) for part in parts))
    return np.where(finite, trial.space.inner_product(safe, v), np.inf)


def _paired(e: Parts | Pair, v: Parts | Pair) -> tuple[Array, Array]:
    """The Euclidean pairing of a covector with a vector, and what the judge's own rounding may add to it."""
    terms = [x * y for x, y in zip(e, v, strict=True)]
    value = sum(term.sum(axis=(-2, -1)) for term in terms)
    size = sum(np.abs(term).sum(axis=(-2, -1)) for term in terms)
    return np.asarray(value), np.asarray(2.0**-50 * size)


@_once
def _vector(trial: Trial, name: str) -> Pair:
    """A vector of the case; where it is zero, another one."""
    v = trial.case.vectors[name]
    zero = ~(_norm(trial, v) > 0.0)
    if not zero.any():
        return v
    drawn = trial.space.random_tangent_vector(trial.rng(f"for a zero {name}"), horizontal=False)
    return _replaced(trial, v, zero, drawn * _norm(trial, trial.case.point))


def _replaced(trial: Trial, v: Pair, where: Any, other: Pair) -> Pair:
    """Another vector in some blocks."""
    return trial.rounded(Pair.unchecked(*(np.where(blockwise(where), y, x) for x, y in zip(v, other, strict=True))))


@_once
def _third(trial: Trial) -> Pair:
    """Another tangent vector, of the size of `a`."""
    drawn = trial.space.random_tangent_vector(trial.rng("third vector"), horizontal=False)
    return trial.rounded(drawn * _norm(trial, _vector(trial, "a")))


@_once
def _vertical(trial: Trial) -> Pair:
    h = trial.case.point.sizes[2]
    return trial.rounded(trial.space.vertical_vector(trial.rng("vertical").standard_normal((h, h))))


@_once
def _horizontal(trial: Trial, name: str = "a") -> Pair:
    return trial.rounded(horizontal_like(trial.space, _vector(trial, name), trial.rng(f"horizontal {name}")))


@_once
def _velocity(trial: Trial) -> Pair:
    """A horizontal velocity so short that no geodesic ends before t = 1."""
    return _shortened(trial, _horizontal(trial, "v"))


@_once
def _any_velocity(trial: Trial) -> Pair:
    """As short, and not horizontal."""
    return _shortened(trial, _vector(trial, "v"))


def _shortened(trial: Trial, v: Pair) -> Pair:
    return trial.rounded(v / np.maximum(1.0, 2.0 * _bend(trial, v)))


def _bend(trial: Trial, v: Pair) -> Array:
    """How fast the metric changes along v: ‖Γ(v, v)‖ / ‖v‖, at least the relative speed of the factors."""
    speed = np.maximum(*(
        np.linalg.norm(velocity, axis=(-2, -1)) / np.linalg.norm(factor, axis=(-2, -1))
        for velocity, factor in zip(v, trial.case.point, strict=True)
    ))  # fmt: skip
    bend = _norm(trial, trial.space.christoffel(v)) / _norm(trial, v)
    return np.asarray(np.maximum(speed, bend))


@_once
def _group_element(trial: Trial) -> Array:
    """A fixed element of the group: of GL(h) with condition number 4, neither a rotation nor symmetric; of O(h) where
    the geometry is relaxed.
    """
    h = trial.case.point.sizes[2]
    rng = trial.rng("group element")
    left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
    if trial.case.relaxation > 0.0:
        return np.asarray(left)
    return np.asarray((left * np.geomspace(2.0, 0.5, h)) @ right if h > 1 else np.array([[-1.7]]))


def _moved(trial: Trial, *vectors: Pair) -> tuple[Pair, ...]:
    """The point and vectors, moved by the group element."""
    A = _group_element(trial)
    return tuple(trial.rounded(pair.transform(A)) for pair in (trial.case.point, *vectors))


def _equivariance(
    trial: Trial,
    function: str,
    vectors: tuple[Pair, ...],
    size: Array,
    extra: tuple[Any, ...] = (),
    there: tuple[Pair, ...] | None = None,
) -> Array:
    """f(A·θ, A·v) against A·f(θ, v), measured at the moved point; `there` is A·v where it is no vector."""
    A = _group_element(trial)
    point, *moved = _moved(trial, *(vectors if there is None else ()))
    at_point = trial.call(function, *vectors, extra=extra)
    at_moved = trial.call(function, *(there or moved), point=point, extra=extra)
    carried = (at_point[0] @ np.linalg.inv(A), at_point[1] @ A.T)
    space = trial.space.metric.at(point)
    size = np.maximum(size, trial.length(carried, space))  # the update rule of another metric has a size of its own
    return beside(trial.length(combination((1.0, at_moved), (-1.0, carried)), space), size)


def _derivative(f: Callable[[float], Parts], step: float) -> Parts:
    weights = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))
    return combination(*((weight / (12.0 * step), f(k * step)) for k, weight in weights))


def _step(trial: Trial) -> float:
    return float(trial.precision.roundoff**0.2)


def _is_small(case: Case) -> bool:
    """A few small blocks of plain size: an exact geodesic may have to be integrated, which takes a backend its time."""
    small = int(np.prod(case.point.block_shape)) <= 3 and case.entries <= 200
    return small and all(np.all((typical_size(x) > 0.01) & (typical_size(x) < 100.0)) for x in case.point)


_FOR_EXACT: dict[str, Any] = {"where": _is_small, "most": 5, "unusual": FEW}
"""Which points laws of exact geodesics are tried on."""

# Every function: what any route must have in common ----------------------------------------------------------------


def _again(trial: Trial, value: Value, first: Parts, **options: Any) -> Array:
    other = trial.value(value, **options)
    size = np.maximum(trial.case.size(value), trial.length(first))  # of a wrong result, which may be far too large
    return _differences(trial, first, other, size)


def _scaled(trial: Trial, value: Value, plain: Parts, factors: tuple[float, float]) -> Array:
    """The factors scaled, which is a homothety of all metrics: the result is known from one at the point.

    The vectors stay as they are, so that one factor is all that is new, and it is those at the point that are scaled
    back; but for exact geodesics, one of which could end before t, and for vectors that must be horizontal.
    """
    case, operation = trial.case, value.operation
    constant = (factors[0] * factors[1]) ** (2.0 * trial.space.metric.s)
    stay = value.order != "exact" and "hessian_v" not in operation.sources

    def scaled(name: str, forth: bool) -> Pair:
        covector = name in ("e", "hessian_e", "hessian_w")
        x, y = (constant / f if covector else f for f in factors)
        x, y = (x, y) if forth else (1.0 / x, 1.0 / y)
        return Pair.unchecked(x * case.vectors[name].G, y * case.vectors[name].H)

    def called(vectors: list[Pair], point: Pair) -> Parts:
        return trial.call(operation.name, *vectors, point=point, extra=value.extra(case.t))

    moved = Pair.unchecked(factors[0] * case.point.G, factors[1] * case.point.H)
    there = called([case.vectors[name] if stay else scaled(name, True) for name in operation.sources], moved)
    here = [scaled(name, False) if stay else case.vectors[name] for name in operation.sources]
    expected = called(here, case.point) if stay else plain
    scales = (constant,) if operation.scalar else factors
    back = tuple(part / scale for part, scale in zip(there, scales, strict=True))
    return _differences(trial, expected, back, np.asarray(value.size(case.space, here, case.t)))


def _with_other_last_rows(trial: Trial, value: Value) -> Array:
    """A point whose last rows alone are others, right after the point itself, and once more after a call elsewhere."""
    case = trial.case
    if value.order == "exact":  # a geodesic from there may end before t
        return np.zeros(case.point.block_shape)

    def at(point: Pair) -> Parts:
        vectors, extra = case.inputs(value.operation), value.extra(case.t)
        return trial.call(value.operation.name, *vectors, point=point, extra=extra)

    halved = (np.where(np.arange(x.shape[-2]) == x.shape[-2] - 1, 0.5, 1.0)[:, None] * x for x in case.point)
    other = Pair.unchecked(*halved)
    trial.value(value)
    first, _, again = at(other), at(2.0 * case.point), at(other)
    return _differences(trial, first, again, np.maximum(case.size(value), trial.length(again)))


def _turned(trial: Trial, value: Value, plain: Parts, sign: float) -> Array:
    """Columns permuted, one with a sign, which rounds nothing and changes no norm: results turn with them."""
    turn = np.roll(np.eye(trial.case.point.sizes[2]), 1, axis=0)
    turn[0] *= sign
    pairs = (trial.case.point, *trial.case.inputs(value.operation))
    point, *vectors = (Pair.unchecked(*(factor @ turn.T for factor in pair)) for pair in pairs)
    found = trial.call(value.operation.name, *vectors, point=point, extra=value.extra(trial.case.t))
    back = found if value.operation.scalar else tuple(part @ turn for part in found)
    return _differences(trial, plain, back, trial.case.size(value))


def _same_twice(trial: Trial, value: Value) -> Array:
    return _again(trial, value, trial.value(value))


def _any_memory_layout(trial: Trial, value: Value) -> Array:
    def error_with(one: Trial, plain: Parts, layout: str) -> Array:
        return _again(one, value, plain, layout=layout)

    return _over_layouts(trial, lambda one: one.value(value), error_with)


def _over_layouts(
    trial: Trial, plain_of: Callable[[Trial], Made], error_with: Callable[[Trial, Made, str], Array]
) -> Array:
    """The largest error with arrays in any memory layout that is taken; the last layout is for equal blocks."""
    errors: list[Array] = [np.zeros(trial.case.point.block_shape)]
    alike = Trial(trial.backend, trial.case.of_one_block())
    for one, layouts in ((trial, LAYOUTS[1:-1]), (alike, LAYOUTS[-1:])):
        plain = plain_of(one)
        for layout in layouts:
            with suppress(Refused, BackendFailure):  # a matter of conduct
                errors.append(error_with(one, plain, layout))
    return np.asarray(np.max(errors, axis=0))


def _remembers_nothing(trial: Trial, value: Value) -> Array:
    errors = [_again(trial, value, trial.value(value), do="again")]
    signs = (-1.0, 1.0) if trial.case.point.sizes[2] > 1 else (-1.0,)
    variations = [partial(_turned, sign=sign) for sign in signs]
    if trial.case.relaxation == 0.0:
        near, nearer = (1.0 + trial.precision.roundoff**p for p in (0.4, 0.6))  # "close enough" is not the same
        factors = (1.0, 2.0), (2.0, 1.0), (near, 1.0), (nearer, 1.0)
        variations += [partial(_scaled, factors=pair) for pair in factors]
    # each right after the point itself: what is kept of the latest call only is kept of that
    errors += [vary(trial, value, trial.value(value)) for vary in variations]
    errors.append(_with_other_last_rows(trial, value))
    return np.asarray(np.max(errors, axis=0))


def _loop_over_blocks(trial: Trial, value: Value) -> Array:
    case = trial.case.blocks(4)
    whole = Trial(trial.backend, case)
    together, size = whole.value(value), case.size(value)
    distances = tuple(np.zeros_like(part) for part in together)
    for block in np.ndindex(case.point.block_shape):
        point, *vectors = (Pair(x.G[block], x.H[block]) for x in (case.point, *case.inputs(value.operation)))
        alone = trial.call(value.operation.name, *vectors, point=point, extra=value.extra(case.t))
        for distance, x, y in zip(distances, together, alone, strict=True):
            distance[block] = x[block] - y
    errors = beside(whole.length(distances), np.maximum(size, whole.length(together)))
    return np.full(trial.case.point.block_shape, np.max(errors))


def _many_blocks(trial: Trial, value: Value) -> Array:
    case = trial.case.repeated(_MANY_BLOCKS)
    many = Trial(trial.backend, case)
    few = tuple(part.reshape(-1, *part.shape[len(trial.case.point.block_shape) :]) for part in trial.value(value))
    expected = tuple(part[np.arange(_MANY_BLOCKS) % len(part)] for part in few)
    size = np.maximum(case.size(value), many.length(expected))
    return np.full(trial.case.point.block_shape, np.max(_differences(many, many.value(value), expected, size)))


def _one_number_a_block(case: Case) -> bool:
    return bool(case.point.block_shape) and max(case.point.sizes) == 1


for _value in VALUES.values():
    for _name, _errors, _statement in (
        ("same_twice", _same_twice, "the same input gives the same result, to rounding"),
        ("any_memory_layout", _any_memory_layout, "transposed, strided, reversed, expanded and read-only arrays are "
                                                  "arrays, too"),
        ("remembers_nothing", _remembers_nothing, "the result follows the arrays' contents, not their address, one "
                                                  "factor alone, or norms"),
        ("loop_over_blocks", _loop_over_blocks, "a batch gives what its blocks give one by one"),
    ):  # fmt: skip
        law(
            _value.operation.name, _name if _value.order is None else f"{_name}_{_value.order}", _statement,
            most=FEW, value=_value, scale=2.0, where=_is_small if _value.order == "exact" else anywhere,
            of_metric=_name == "remembers_nothing",  # it uses that homotheties and turns of the point are known
        )(partial(_errors, value=_value))  # fmt: skip
    if _value.order != "exact":
        law(
            _value.operation.name, "many_blocks" if _value.order is None else f"many_blocks_{_value.order}",
            f"a batch of {_MANY_BLOCKS:,} blocks gives each what it gives a few", most=1, value=_value, scale=2.0,
            where=_one_number_a_block,
        )(partial(_many_blocks, value=_value))  # fmt: skip

# Inner product -------------------------------------------------------------------------------------------------


@law("inner_product", "symmetric", "⟨a, b⟩ = ⟨b, a⟩")
def _(trial: Trial) -> Array:
    a, b = _vector(trial, "a"), _vector(trial, "b")
    difference = trial.call("inner_product", a, b)[0] - trial.call("inner_product", b, a)[0]
    return beside(np.abs(difference), _norm(trial, a) * _norm(trial, b))


@law("inner_product", "bilinear", "⟨2a − 3c, b⟩ = 2⟨a, b⟩ − 3⟨c, b⟩", scale=5.0)
def _(trial: Trial) -> Array:
    a, b, c = _vector(trial, "a"), _vector(trial, "b"), _third(trial)
    together = trial.call("inner_product", trial.rounded(2 * a - 3 * c), b)[0]
    apart = 2 * trial.call("inner_product", a, b)[0] - 3 * trial.call("inner_product", c, b)[0]
    return beside(np.abs(together - apart), _norm(trial, a) * _norm(trial, b))


@law("inner_product", "positive", "⟨a, a⟩ > 0 for a ≠ 0")
def _(trial: Trial) -> Array:
    a = _vector(trial, "a")
    return np.where(trial.call("inner_product", a, a)[0] > 0, 0.0, 1.0)


@law("inner_product", "invariant", "⟨Aa, Ab⟩ at A·θ = ⟨a, b⟩ at θ for A in GL(h)", scale=16.0)
def _(trial: Trial) -> Array:
    a, b = _vector(trial, "a"), _vector(trial, "b")
    point, moved_a, moved_b = _moved(trial, a, b)
    difference = trial.call("inner_product", moved_a, moved_b, point=point)[0] - trial.call("inner_product", a, b)[0]
    return beside(np.abs(difference), _norm(trial, a) * _norm(trial, b))


# Projection ----------------------------------------------------------------------------------------------------


@law("horizontal_projection", "idempotent", "P(P(a)) = P(a)", scale=2.0)
def _(trial: Trial) -> Array:
    a = _vector(trial, "a")
    once = trial.call("horizontal_projection", a)
    if not all(np.isfinite(part).all() for part in once):
        return np.full(trial.case.point.block_shape, np.inf)
    again = trial.rounded(Pair(*once))
    return _differences(trial, trial.call("horizontal_projection", again), (again.G, again.H), _norm(trial, a))


@law("horizontal_projection", "linear", "P(2a − 3c) = 2P(a) − 3P(c)", scale=5.0)
def _(trial: Trial) -> Array:
    a, c = _vector(trial, "a"), _third(trial)
    together = trial.call("horizontal_projection", trial.rounded(2 * a - 3 * c))
    apart = combination((2.0, trial.call("horizontal_projection", a)), (-3.0, trial.call("horizontal_projection", c)))
    return _differences(trial, together, apart, _norm(trial, a))


@law("horizontal_projection", "self_adjoint", "⟨P(a), b⟩ = ⟨a, P(b)⟩", scale=2.0)
def _(trial: Trial) -> Array:
    a, b = _vector(trial, "a"), _vector(trial, "b")
    one = _inner(trial, trial.call("horizontal_projection", a), b)
    other = _inner(trial, trial.call("horizontal_projection", b), a)
    return beside(np.abs(one - other), _norm(trial, a) * _norm(trial, b))


@law("horizontal_projection", "orthogonal", "⟨P(a), (GK, −HKᵀ)⟩ = 0 for every K")
def _(trial: Trial) -> Array:
    a, vertical = _vector(trial, "a"), _vertical(trial)
    product = _inner(trial, trial.call("horizontal_projection", a), vertical)
    return beside(np.abs(product), _norm(trial, a) * _norm(trial, vertical))


@law("horizontal_projection", "identity_on_horizontal", "P(a) = a for horizontal a")
def _(trial: Trial) -> Array:
    a = _horizontal(trial)  # rounded to the dtype beside the vector it was projected from
    size = np.maximum(_norm(trial, _vector(trial, "a")), _norm(trial, a))
    return _differences(trial, trial.call("horizontal_projection", a), (a.G, a.H), size)


@law("horizontal_projection", "zero_on_vertical", "P((GK, −HKᵀ)) = 0")
def _(trial: Trial) -> Array:
    vertical = _vertical(trial)
    return beside(trial.length(trial.call("horizontal_projection", vertical)), _norm(trial, vertical))


@law("horizontal_projection", "equivariant", "P at A·θ of A·a = A·(P at θ of a)", scale=256.0)
def _(trial: Trial) -> Array:
    a = _vector(trial, "a")
    return _equivariance(trial, "horizontal_projection", (a,), _norm(trial, a))


# Riemannian gradient -------------------------------------------------------------------------------------------


def _covector(trial: Trial) -> Pair:
    """The case's covector e; where it is zero, the gradient of a loss."""
    e = trial.case.vectors["e"]
    zero = ~np.any([np.any(factor, axis=(-2, -1)) for factor in e], axis=0)
    return _replaced(trial, e, zero, _loss(trial)[1]) if zero.any() else e


def _loss(trial: Trial) -> tuple[InvariantLoss, Pair]:
    """An invariant loss and its Euclidean gradient."""
    loss = InvariantLoss(trial.case.point, trial.rng("loss"))
    return loss, loss.gradient(trial.case.point)


@law(
    "riemannian_gradient", "represents_the_derivative", "⟨grad, v⟩ = tr(e_Gᵀv_G) + tr(e_Hᵀv_H)", scale=2.0,
    of_metric=True,
)  # fmt: skip
def _(trial: Trial) -> Array:
    e, v = _covector(trial), _vector(trial, "a")
    derivative, rounding = _paired(e, v)
    difference = np.abs(_inner(trial, trial.call("riemannian_gradient", e), v) - derivative)
    size = _norm(trial, trial.space.riemannian_gradient(e)) * _norm(trial, v)
    return beside(np.maximum(difference - rounding, 0.0), size)


@law("riemannian_gradient", "linear", "grad of 2e − 3f = 2 grad of e − 3 grad of f", scale=5.0)
def _(trial: Trial) -> Array:
    e, (_, f) = _covector(trial), _loss(trial)
    f = trial.rounded(f)
    together = trial.call("riemannian_gradient", trial.rounded(2 * e - 3 * f))
    apart = combination((2.0, trial.call("riemannian_gradient", e)), (-3.0, trial.call("riemannian_gradient", f)))
    size = _norm(trial, trial.space.riemannian_gradient(e)) + _norm(trial, trial.space.riemannian_gradient(f))
    size = np.maximum(size, trial.length(apart))
    return _differences(trial, together, apart, size)


@law("riemannian_gradient", "horizontal", "the gradient of an invariant loss is horizontal", scale=2.0)
def _(trial: Trial) -> Array:
    _, egrad = _loss(trial)
    egrad, vertical = trial.rounded(egrad), _vertical(trial)
    product = np.abs(_inner(trial, trial.call("riemannian_gradient", egrad), vertical))
    # what rounding e and the vertical vector to the dtype makes of a pairing that is zero
    credit = np.abs(_paired(egrad, vertical)[0])
    size = _norm(trial, trial.space.riemannian_gradient(egrad)) * _norm(trial, vertical)
    return beside(np.maximum(product - credit, 0.0), size)


@law("riemannian_gradient", "equivariant", "grad at A·θ = A·(grad at θ), for (e_G Aᵀ, e_H A⁻¹)", scale=16.0)
def _(trial: Trial) -> Array:
    A, e = _group_element(trial), _covector(trial)
    there = trial.rounded(Pair(e.G @ A.T, e.H @ np.linalg.inv(A)))
    size = _norm(trial, trial.space.riemannian_gradient(e))
    return _equivariance(trial, "riemannian_gradient", (e,), size, there=(there,))


# Riemannian Hessian --------------------------------------------------------------------------------------------


def _hessian(trial: Trial, v: Pair) -> Parts:
    """The backend's Hessian of the loss, along a horizontal vector."""
    loss, egrad = _loss(trial)
    return trial.call("riemannian_hessian", trial.rounded(egrad), trial.rounded(loss.hessian(trial.case.point, v)), v)


def _hessian_size(trial: Trial, v: Pair) -> Array:
    loss, egrad = _loss(trial)
    return hessian_size(trial.space, egrad, loss.hessian(trial.case.point, v), v)


@law("riemannian_hessian", "symmetric", "⟨Hess[v], w⟩ = ⟨v, Hess[w]⟩ for horizontal v, w", scale=2.0)
def _(trial: Trial) -> Array:
    v, w = _horizontal(trial, "a"), _horizontal(trial, "b")
    one, other = _inner(trial, _hessian(trial, v), w), _inner(trial, _hessian(trial, w), v)
    size = _hessian_size(trial, v) * _norm(trial, w) + _hessian_size(trial, w) * _norm(trial, v)
    return beside(np.abs(one - other), size)


@law("riemannian_hessian", "linear", "Hess[2v − 3w] = 2Hess[v] − 3Hess[w]", scale=5.0)
def _(trial: Trial) -> Array:
    v, w = _horizontal(trial, "a"), _horizontal(trial, "b")
    together = _hessian(trial, trial.rounded(2 * v - 3 * w))
    apart = combination((2.0, _hessian(trial, v)), (-3.0, _hessian(trial, w)))
    return _differences(trial, together, apart, _hessian_size(trial, v) + _hessian_size(trial, w))


@law("riemannian_hessian", "horizontal", "Hess[v] is horizontal")
def _(trial: Trial) -> Array:
    v, vertical = _horizontal(trial), _vertical(trial)
    product = np.abs(_inner(trial, _hessian(trial, v), vertical))
    return beside(product, _hessian_size(trial, v) * _norm(trial, vertical))


@law(
    "riemannian_hessian",
    "quadratic_model",
    "⟨v, Hess[v]⟩ = (f∘γ)''(0) = ⟨w, v⟩ − ⟨e, Γ(v, v)⟩ along the geodesic, in the Euclidean pairing",
    scale=10.0,
    of_metric=True,
)
def _(trial: Trial) -> Array:
    v = _horizontal(trial)
    loss, egrad = _loss(trial)
    along, rounding = _paired(trial.rounded(loss.hessian(trial.case.point, v)), v)
    bend, bend_rounding = _paired(trial.rounded(egrad), trial.space.christoffel(v))
    difference = np.abs(_inner(trial, _hessian(trial, v), v) - (along - bend))
    credit = (rounding + bend_rounding) * (1.0 + trial.case.condition)
    return beside(np.maximum(difference - credit, 0.0), _hessian_size(trial, v) * _norm(trial, v))


# Christoffel ---------------------------------------------------------------------------------------------------


@law("christoffel", "symmetric", "Γ(a, b) = Γ(b, a)")
def _(trial: Trial) -> Array:
    a, b = _vector(trial, "a"), _vector(trial, "b")
    size = christoffel_size(trial.space, a, b)
    return _differences(trial, trial.call("christoffel", a, b), trial.call("christoffel", b, a), size)


@law("christoffel", "bilinear", "Γ(2a − 3c, b) = 2Γ(a, b) − 3Γ(c, b)", scale=5.0)
def _(trial: Trial) -> Array:
    a, b, c = _vector(trial, "a"), _vector(trial, "b"), _third(trial)
    together = trial.call("christoffel", trial.rounded(2 * a - 3 * c), b)
    apart = combination((2.0, trial.call("christoffel", a, b)), (-3.0, trial.call("christoffel", c, b)))
    size = christoffel_size(trial.space, a, b) + christoffel_size(trial.space, c, b)
    return _differences(trial, together, apart, size)


@law("christoffel", "equivariant", "Γ at A·θ of (A·a, A·b) = A·Γ(a, b)", scale=64.0)
def _(trial: Trial) -> Array:
    a, b = _vector(trial, "a"), _vector(trial, "b")
    return _equivariance(trial, "christoffel", (a, b), christoffel_size(trial.space, a, b))


@law(
    "christoffel",
    "koszul",
    "2⟨Γ(a, b), c⟩ = D⟨b, c⟩[a] + D⟨a, c⟩[b] − D⟨a, b⟩[c], with the backend's own inner product",
    needs=("inner_product",),
    differenced=True,
    scale=10.0,
    most=FEW,
    of_metric=True,
)
def _(trial: Trial) -> Array:
    a, b, c = _vector(trial, "a"), _vector(trial, "b"), _third(trial)
    step = _step(trial)

    def along(direction: Pair, x: Pair, y: Pair) -> Array:
        # a step of length δ in units in which the metric changes by its own size
        scaled = direction * (1.0 / _bend(trial, direction))

        def product(s: float) -> Parts:
            return trial.call("inner_product", x, y, point=trial.rounded(trial.case.point + s * scaled))

        return _derivative(product, step)[0] * _bend(trial, direction)

    right = along(a, b, c) + along(b, a, c) - along(c, a, b)
    left = 2 * _inner(trial, trial.call("christoffel", a, b), c)
    size = _bend(trial, a) * _norm(trial, b) + _bend(trial, b) * _norm(trial, a)
    size = size * _norm(trial, c) + _bend(trial, c) * _norm(trial, a) * _norm(trial, b)
    return beside(np.abs(left - right), size)


# Geodesic ------------------------------------------------------------------------------------------------------


def _place_size(trial: Trial) -> Array:
    return np.asarray(_norm(trial, trial.case.point) + _norm(trial, _velocity(trial)))


def _starts_at_the_point(trial: Trial, order: Any) -> Array:
    place = trial.call("geodesic", _velocity(trial), extra=(0.0, order))
    return _differences(trial, place, tuple(trial.case.point), _place_size(trial))


def _initial_velocity(trial: Trial, order: Any) -> Array:
    v = _any_velocity(trial)
    slope = _derivative(lambda s: trial.call("geodesic", v, extra=(s, order)), _step(trial))
    return _differences(trial, slope, (v.G, v.H), _place_size(trial))


def _homogeneous(trial: Trial, order: Any) -> Array:
    v = _velocity(trial)
    one = trial.call("geodesic", 2 * v, extra=(0.5, order))
    return _differences(trial, one, trial.call("geodesic", v, extra=(1.0, order)), _place_size(trial))


def _equivariant(trial: Trial, order: Any) -> Array:
    return _equivariance(trial, "geodesic", (_velocity(trial),), _place_size(trial), (0.5, order))


def _initial_acceleration(trial: Trial, order: Any) -> Array:
    v = _velocity(trial)
    # order 2 is a parabola, and any step is exact; else truncation δ² and rounding u/δ² are equal at δ = u^{1/4}
    roundoff = trial.precision.roundoff
    step = 1.0 if order == 2 else roundoff**0.25
    ahead, here, behind = (trial.call("geodesic", v, extra=(s * step, order)) for s in (1.0, 0.0, -1.0))
    bend = combination((step**-2, ahead), (-2 * step**-2, here), (step**-2, behind))
    gamma = trial.space.christoffel(v)
    error = _differences(trial, bend, (-gamma.G, -gamma.H), _place_size(trial))
    return error if order == 2 else error * roundoff**0.5 / 10.0  # in the unit of rounding


_OF_A_GEODESIC: tuple[tuple[str, Callable[..., Array], str, dict[str, Any]], ...] = (
    ("starts_at_the_point", _starts_at_the_point, "γ(0) = θ", {}),
    ("initial_velocity", _initial_velocity, "γ'(0) = v, by differences", {"differenced": True, "scale": 10.0}),
    ("homogeneous", _homogeneous, "γ with velocity 2v at t/2 = γ with velocity v at t", {"scale": 2.0}),
    ("equivariant", _equivariant, "γ at A·θ with velocity A·v = A·γ", {"scale": 64.0}),
    (
        "initial_acceleration",
        _initial_acceleration,
        "γ''(0) = −Γ(v, v), by differences",
        {"scale": 10.0, "of_metric": True},
    ),
)

for _order in (1, 2, "exact"):
    for _name, _errors_of, _statement, _options in _OF_A_GEODESIC:
        if _order == 1 and _name == "initial_acceleration":
            continue
        if _order == "exact":
            _options = {**_options, **({"most": None} if _name == "starts_at_the_point" else _FOR_EXACT)}
        law(
            "geodesic", f"{_name}_{_order}", f"order {_order}: {_statement}", value=VALUES[f"geodesic_{_order}"],
            **_options,
        )(partial(_errors_of, order=_order))  # fmt: skip


@law(
    "geodesic", "third_order_error", "order 2: the error against the exact geodesic shrinks like t³",
    where=_is_small, most=FEW, value=VALUES["geodesic_2"], of_metric=True,
)  # fmt: skip
def _(trial: Trial) -> Array:
    v = _velocity(trial)
    errors = []
    for t in (0.4, 0.2):
        try:
            exact = trial.space.geodesic(v, t, "exact")
        except (GeodesicIncompleteError, GeodesicAccuracyError):
            return np.full(trial.case.point.block_shape, np.nan)
        errors.append(trial.length(combination((1.0, trial.call("geodesic", v, extra=(t, 2))), (-1.0, tuple(exact)))))
    # the judge's own exact geodesics are integrated to 1e-10
    floor = (1e3 * trial.precision.roundoff * trial.case.condition + 1e-9) * _place_size(trial)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.log2(errors[0] / errors[1])
    # errors that are all rounding have no slope; a slope between 2.5 and 3.5 (or steeper: no error) is third order
    return np.where((errors[0] <= floor) | (slope >= 2.5), 0.0, 1.0)


def _of_an_exact_geodesic(
    name: str,
    statement: str,
    quantity: Callable[[Trial, Pair, Any, Pair, Pair], Array],
    velocity: Callable[[Trial], Pair] = _any_velocity,
) -> None:
    """A law of where the geodesic is at the case's time, how fast it moves there, and how it bends."""

    @law(
        "geodesic", f"{name}_exact", f"order exact: {statement}", scale=10.0, value=VALUES["geodesic_exact"],
        of_metric=True, **_FOR_EXACT,
    )  # fmt: skip
    def _(trial: Trial) -> Array:
        t = trial.case.t or 0.5
        units = max(1.0, abs(t))  # of time: the place is that of a velocity so many times as large at |t| <= 1
        v = trial.rounded(velocity(trial) / units)
        roundoff = trial.precision.roundoff
        step = roundoff ** (1.0 / 6.0)  # truncation δ⁴ and rounding u/δ² are equal
        places = [trial.call("geodesic", v, extra=(t + k * step * units, "exact")) for k in (-2, -1, 0, 1, 2)]
        if not all(np.isfinite(part).all() for place in places for part in place):
            return np.full(trial.case.point.block_shape, np.inf)
        slope, bend = (
            Pair.unchecked(*combination(*zip(weights, places, strict=True)))
            for weights in (
                np.array([1, -8, 0, 8, -1]) / (12.0 * step),
                np.array([-1, 16, -30, 16, -1]) / (12.0 * step**2),
            )
        )
        try:
            there = trial.space.metric.at(Pair(*places[2]))
        except RankDeficientError:  # the right geodesic has rank h there
            return np.full(trial.case.point.block_shape, np.inf)
        error = quantity(trial, v * units, there, slope, bend)
        return beside(error * roundoff ** (1.0 / 3.0), _place_size(trial))  # in units of rounding


def _change_of_momenta(trial: Trial, v: Pair, there: Any, moving: Pair) -> Array:
    before, after = trial.space.momenta(v), there.momenta(moving)
    turned = [np.linalg.norm(after[key] - before[key], axis=(-2, -1)) for key in ("rotation_G", "rotation_H")]
    return np.asarray(np.hypot(*turned) / _norm(trial, trial.case.point))


@law(
    "geodesic", "straight_product_exact", "order exact, mix, n = m = h: the product G Hᵀ moves on a straight line",
    scale=VALUE_CHECKS["geodesic_exact"].scale, value=VALUES["geodesic_exact"], most=None, of_metric=True,
    where=lambda case: (case.metric, case.relaxation, len(set(case.point.sizes))) == ("mix", 0.0, 1),
)  # fmt: skip
def _(trial: Trial) -> Array:
    v, point, t = _velocity(trial), trial.case.point, 0.5
    place = product_of(trial.call("geodesic", v, extra=(t, "exact")))
    right = point.product + t * (v.G @ point.H.mT + point.G @ v.H.mT)
    return _product_error(place, right, np.linalg.norm(point.product, axis=(-2, -1)))


_of_an_exact_geodesic(
    "stays_horizontal", "γ' stays horizontal",
    lambda trial, v, there, slope, bend: there.norm(there.vertical_projection(slope)), _velocity,
)  # fmt: skip
_of_an_exact_geodesic(
    "equation", "γ'' = −Γ(γ', γ'), and ‖γ'‖ and the momenta of the metric are conserved",
    lambda trial, v, there, slope, bend: np.max([
        there.norm(bend + there.christoffel(slope)),
        np.abs(there.norm(slope) - _norm(trial, v)),
        _change_of_momenta(trial, v, there, slope),
    ], axis=0),
)  # fmt: skip


# Retraction ------------------------------------------------------------------------------------------------------


def _product_error(found: Array, right: Array, size: Array | None = None) -> Array:
    """Beside the size of what is right, if no other is given."""
    error = np.linalg.norm(np.where(np.isfinite(found), found - right, np.inf), axis=(-2, -1))
    return beside(np.asarray(error), np.linalg.norm(right, axis=(-2, -1)) if size is None else size)


def _moved_product(trial: Trial, point: Pair, v: Pair, t: float | None = None, **options: Any) -> Array:
    return product_of(trial.call("retraction", v, point=point, extra=(trial.case.t if t is None else t,), **options))


@law(
    "retraction", "any_memory_layout", "transposed, strided, reversed, expanded and read-only arrays are arrays, too",
    most=FEW, scale=2.0,
)  # fmt: skip
def _(trial: Trial) -> Array:
    def moved(one: Trial, **options: Any) -> Array:
        return _moved_product(one, one.case.point, one.case.vectors["v"], **options)

    return _over_layouts(trial, moved, lambda one, plain, layout: _product_error(moved(one, layout=layout), plain))


@law(
    "retraction", "remembers_nothing", "the result follows the arrays' contents, not their address or one factor alone",
    most=FEW, scale=2.0,
)  # fmt: skip
def _(trial: Trial) -> Array:
    point, v = trial.case.point, trial.case.vectors["v"]
    plain = _moved_product(trial, point, v)
    errors = [
        _product_error(_moved_product(trial, point, v), plain),
        _product_error(_moved_product(trial, point, v, do="again"), plain),
    ]
    start = _product_error(_moved_product(trial, point, v, 0.0), point.product)
    known = np.all(start <= trial.precision.roundoff**0.5)  # at t = 0 any right retraction is
    for G, H in ((1.0, 2.0), (2.0, 1.0)) if known else ():
        _moved_product(trial, point, v, 0.0)
        scaled = Pair.unchecked(G * point.G, H * point.H)
        errors.append(_product_error(_moved_product(trial, scaled, v, 0.0), scaled.product))
    return np.asarray(np.max(errors, axis=0))


@law("retraction", "loop_over_blocks", "a batch gives what its blocks give one by one", most=FEW, scale=2.0)
def _(trial: Trial) -> Array:
    case = trial.case.blocks(4)
    point, v, whole = case.point, case.vectors["v"], Trial(trial.backend, case)
    together = _moved_product(whole, point, v)
    alone = np.empty_like(together)
    for block in np.ndindex(point.block_shape):
        one, other = (Pair(x.G[block], x.H[block]) for x in (point, v))
        alone[block] = _moved_product(whole, one, other)
    return np.full(trial.case.point.block_shape, np.max(_product_error(together, alone), initial=0.0))


@law("retraction", "starts_at_the_point", "γ(0) = θ modulo the group: the product G Hᵀ is that of the point", most=None)
def _(trial: Trial) -> Array:
    right, v = trial.case.point.product, trial.case.vectors["v"]
    standing = np.asarray(0.0 * v.G), np.asarray(0.0 * v.H)
    found = [
        product_of(trial.call("retraction", v, extra=(0.0,))),
        product_of(trial.call("retraction", Pair.unchecked(*standing), extra=(trial.case.t,))),
    ]
    return np.asarray(np.max([_product_error(one, right) for one in found], axis=0))


@law(
    "retraction", "initial_velocity", "γ'(0) = v modulo the group: (G Hᵀ)' = v_G Hᵀ + G v_Hᵀ, by differences",
    differenced=True, scale=10.0, most=None,
)  # fmt: skip
def _(trial: Trial) -> Array:
    v, point = _vector(trial, "v"), trial.case.point
    # steps so short that the factors change by a quarter of themselves at most, and so does the time
    unit = 0.25 / max(1.0, float(np.max(_bend(trial, v))))

    def moved(s: float) -> Parts:
        return (product_of(trial.call("retraction", v, extra=(s * unit,))),)

    slope = _derivative(moved, _step(trial))[0]
    right = unit * (v.G @ point.H.mT + point.G @ v.H.mT)
    return _product_error(slope, right, np.linalg.norm(point.product, axis=(-2, -1)))
