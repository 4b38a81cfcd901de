r"""Laws: what must hold between a backend's own results, as functions of a specification and not of a function's name.

*Circumstances* are transformations of a call that change nothing of its value: another memory layout, a second call,
another call between, factors scaled by powers of two, columns permuted, a batch in the place of its blocks. They are
tried everywhere. *Linear*, *symmetric*, *equivariant* and *horizontal* follow from the types of an operation; a wrong
formula that keeps them is only seen by its values, and one that breaks them is seen by its values, too. So these laws
are judged where there is no value: for update rules of other metrics (``laws_only``), for retractions, and for exact
geodesics that no enclosure follows.

Lengths are measured with refgeo's geometry. Errors have the units of `refgeo.conformance.checks`; each is divided by
the size of all the terms that are compared.

Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) − f(−2δ))) / 12δ``, with δ = u^{1/5}, where
truncation δ⁴ and rounding u/δ are equal; their unit is u^{4/5}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.checks import VALUE_CHECKS, Check, anywhere
from refgeo.conformance.drawing import InvariantLoss, horizontal_like, typical_size
from refgeo.conformance.host import LAYOUTS, BackendFailure, Refused
from refgeo.conformance.operations import OPERATIONS, VALUES, Operation, Parts, Value
from refgeo.conformance.trial import Trial, beside, combination, comparable, short
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array
from refgeo.support.errors import RankDeficientError

FEW, MANY = 1, 12
"""So many points, with leading dimensions and without, for circumstances, and for any other law."""
_MANY_BLOCKS = 1100
"""More than a kernel has threads."""

# What is compared ----------------------------------------------------------------------------------------------------

RETRACTION = Value(
    "retraction", OPERATIONS["retraction"], "a curve in the quotient with γ(0) = θ, γ'(0) = v", lambda *_: (),
    lambda space, vectors, t: np.asarray(space.norm(space.point)), OPERATIONS["retraction"].loss,
)  # fmt: skip
TARGETS = (*VALUES.values(), RETRACTION)
"""All that a backend's functions give: of geodesics a result for each order."""


def _call(
    trial: Trial, value: Value, point: Pair, vectors: list[Pair], t: float | None = None, **options: Any
) -> Parts:
    return trial.call(
        value.operation.name, *vectors, point=point, extra=value.extra(trial.case.t if t is None else t), **options
    )


def _difference(trial: Trial, value: Value, x: Parts, y: Parts, size: Array) -> Array:
    """Between two results, beside their size; of retractions between the products G Hᵀ, all that is said of them."""
    x, y = comparable(value.operation, x), comparable(value.operation, y)
    if value is RETRACTION:
        error = np.linalg.norm(np.where(np.isfinite(x[0]), x[0] - y[0], np.inf), axis=(-2, -1))
        return beside(np.asarray(error), np.linalg.norm(trial.case.point.product, axis=(-2, -1)))
    size = np.maximum(size, trial.length(y))  # of a wrong result, which may be far too large
    return beside(trial.length(combination((1.0, x), (-1.0, y))), size)


def _is_small(case: Case) -> bool:
    """A few small blocks of plain size: an exact geodesic may have to be integrated, which takes a backend its time."""
    small = int(np.prod(case.point.block_shape)) <= 3 and case.entries <= 200
    return small and all(np.all((typical_size(x) > 0.01) & (typical_size(x) < 100.0)) for x in case.point)


# Circumstances -------------------------------------------------------------------------------------------------------


def _any_memory_layout(trial: Trial, value: Value) -> Array:
    """The largest error with arrays in any memory layout that is taken; the last layout is for equal blocks."""
    errors: list[Array] = [np.zeros(trial.case.point.block_shape)]
    alike = Trial(trial.backend, trial.case.of_one_block())
    for one, layouts in ((trial, LAYOUTS[1:-1]), (alike, LAYOUTS[-1:])):
        plain, size = one.value(value), one.case.size(value)
        for layout in layouts:
            try:
                errors.append(_difference(one, value, one.value(value, layout=layout), plain, size))
            except Refused:  # by its asarray, as torch.from_numpy refuses reversed views: a limit, and no misconduct
                continue
            except BackendFailure as failure:
                trial.breach = f"the function fails for arrays with the memory layout '{layout}': {short(failure)}"
    return np.asarray(np.max(errors, axis=0))


Elsewhere = tuple[Pair, list[Pair], Callable[[Parts], Parts], list[Pair]]


def _same_values_elsewhere(trial: Trial, value: Value) -> Iterator[Elsewhere]:
    """Points and vectors where the result is known, the way back, and from which vectors at the case's point.

    Columns permuted, one with a sign, round nothing and change no norm. Factors scaled are a homothety of all metrics:
    (αG, βH), with vectors' parts scaled alike and covectors' by the inverse times (αβ)²ˢ. There the vectors stay what
    they are, so that one factor is all that is new, and those at the case's point are scaled back; but for exact
    geodesics, one of which could end before t, and for vectors that must be horizontal.
    """
    case, h = trial.case, trial.case.point.sizes[2]
    vectors = case.inputs(value.operation)
    for sign in (-1.0, 1.0) if h > 1 else (-1.0,):
        turn = np.roll(np.eye(h), 1, axis=0)
        turn[0] *= sign
        turned = [Pair.unchecked(*(factor @ turn.T for factor in pair)) for pair in (case.point, *vectors)]
        back = (lambda x: x) if value.operation.scalar else lambda x, turn=turn: tuple(part @ turn for part in x)
        yield turned[0], turned[1:], back, vectors
    roundoff = trial.precision.roundoff
    near, nearer = (1.0 + roundoff**p for p in (0.4, 0.6))  # "close enough" is not the same
    for G, H in ((1.0, 2.0), (2.0, 1.0), (near, 1.0), (nearer, 1.0)) if case.relaxation == 0.0 else ():
        constant = (G * H) ** (2.0 * trial.space.metric.s)

        def moved(power: float, G: float = G, H: float = H, constant: float = constant) -> list[Pair]:
            scales = {"vector": (G**power, H**power), "covector": ((constant / G) ** power, (constant / H) ** power)}
            pairs = zip(value.operation.inputs, vectors, strict=True)
            return [Pair.unchecked(*(c * x for c, x in zip(scales[one.type], v, strict=True))) for one, v in pairs]

        stay = value.order != "exact" and "hessian_v" not in value.operation.sources
        there, here = (vectors, moved(-1.0)) if stay else (moved(1.0), vectors)
        parts = (constant,) if value.operation.scalar else (G, H)
        point = Pair.unchecked(G * case.point.G, H * case.point.H)
        yield point, there, lambda x, c=parts: tuple(p / s for p, s in zip(x, c, strict=True)), here  # type: ignore[misc]


def _remembers_nothing(trial: Trial, value: Value) -> Array:
    """What is kept of the latest call, or of all calls, by less than all that the result depends on, shows here."""
    case, vectors = trial.case, trial.case.inputs(value.operation)
    size, plain = case.size(value), trial.value(value)
    errors = [_difference(trial, value, trial.value(value, do="again"), plain, size)]
    if value is not RETRACTION:
        for group in value.operation.linear:  # one vector twice as long, twice the result
            twice = [2.0 * v if name in group else v for name, v in zip(value.operation.vectors, vectors, strict=True)]
            found = tuple(0.5 * part for part in _call(trial, value, case.point, twice))
            errors.append(_difference(trial, value, found, plain, size))
        for point, there, back, here in _same_values_elsewhere(trial, value):
            trial.value(value)
            with suppress(NotImplementedError, BackendFailure):
                _call(trial, value, point, there, metric="mix" if case.metric == "inv" else "inv")
            found, expected = back(_call(trial, value, point, there)), _call(trial, value, case.point, here)
            errors.append(_difference(trial, value, found, expected, value.size(case.space, here, case.t)))
    if value.order != "exact":  # a geodesic from there may end before t
        # the same vectors at other points, each right after one that it shares a factor or all but a row with
        G, H = case.point
        halved = [np.where(np.arange(x.shape[-2]) == x.shape[-2] - 1, 0.5, 1.0)[:, None] * x for x in (G, H)]
        for other in (Pair.unchecked(*halved), Pair.unchecked(G, 2.0 * H), Pair.unchecked(2.0 * G, H)):
            trial.value(value)
            first, _, again = (_call(trial, value, at, vectors) for at in (other, 2.0 * other + case.point, other))
            errors.append(_difference(trial, value, first, again, size))
    return np.asarray(np.max(errors, axis=0))


def _loop_over_blocks(trial: Trial, value: Value) -> Array:
    case = trial.case.blocks(4)
    whole = Trial(trial.backend, case)
    together = whole.value(value)
    alone = tuple(np.zeros_like(part) for part in together)
    for block in np.ndindex(case.point.block_shape):
        point, *vectors = (Pair(x.G[block], x.H[block]) for x in (case.point, *case.inputs(value.operation)))
        for all_of_them, part in zip(alone, _call(whole, value, point, vectors), strict=True):
            all_of_them[block] = part
    return np.full(trial.case.point.block_shape, np.max(_difference(whole, value, together, alone, case.size(value))))


def _many_blocks(trial: Trial, value: Value) -> Array:
    case = trial.case.repeated(_MANY_BLOCKS)
    many = Trial(trial.backend, case)
    few = tuple(part.reshape(-1, *part.shape[len(trial.case.point.block_shape) :]) for part in trial.value(value))
    expected = tuple(part[np.arange(_MANY_BLOCKS) % len(part)] for part in few)
    error = _difference(many, value, many.value(value), expected, case.size(value))
    return np.full(trial.case.point.block_shape, np.max(error))


def _one_column(case: Case) -> bool:
    return bool(case.point.block_shape) and max(case.point.sizes) <= 8 and case.point.sizes[2] == 1


CIRCUMSTANCES: dict[str, tuple[Callable[[Trial, Value], Array], str]] = {
    "any_memory_layout": (_any_memory_layout, "the memory layout of the arrays does not change the result"),
    "remembers_nothing": (_remembers_nothing, "the result depends on the contents of the arrays only, not on their "
                          "addresses or on earlier calls"),
    "loop_over_blocks": (_loop_over_blocks, "a batch gives the same results as its blocks one by one"),
    "many_blocks": (_many_blocks, f"a block has the same result in a batch of {_MANY_BLOCKS:,} blocks as in a "
    "small batch"),
}  # fmt: skip


# What types say ------------------------------------------------------------------------------------------------------


def _inputs(trial: Trial, value: Value, loss: int = 0, direction: int = 0) -> list[Pair]:
    """Vectors for an operation; others with other numbers. Covectors are those of an invariant loss, w along v."""
    case, operation = trial.case, value.operation
    made = InvariantLoss(case.point, trial.rng(f"loss {loss}"))
    found: dict[str, Pair] = {}
    for one in operation.inputs:
        if one.type == "vector":
            rng = trial.rng(f"{one.name} {direction}")
            v = trial.space.random_tangent_vector(rng, horizontal=False) * trial.space.norm(case.point)
            if operation.extra:
                v = v * (0.2 / np.maximum(_bend(trial, v), 0.2))
            found[one.name] = trial.rounded(horizontal_like(trial.space, v, rng) if operation.horizontal else v)
    if operation.vectors == ("v",):  # a projection, of any vector
        found = {"v": trial.rounded(v)}
    for one in operation.inputs:
        if one.type == "covector":
            e = made.gradient() if one.name == "e" else made.hessian(found["v"])
            found[one.name] = trial.rounded(e)
    return [found[name] for name in operation.vectors]


def _size(trial: Trial, value: Value, *inputs: list[Pair]) -> Array:
    return np.asarray(sum(value.size(trial.space, vectors, 1.0) for vectors in inputs))


def _bend(trial: Trial, v: Pair) -> Array:
    """How fast the metric changes along v: ‖Γ(v, v)‖ / ‖v‖, at least the relative speed of the factors."""
    speed = np.maximum(*(
        np.linalg.norm(velocity, axis=(-2, -1)) / np.linalg.norm(factor, axis=(-2, -1))
        for velocity, factor in zip(v, trial.case.point, strict=True)
    ))  # fmt: skip
    return np.asarray(np.maximum(speed, trial.space.norm(trial.space.christoffel(v)) / trial.space.norm(v)))


def _linear(trial: Trial, value: Value) -> Array:
    """f(2x − 3y) = 2f(x) − 3f(y) in each argument, or in several together."""
    errors, operation = [], value.operation
    for group in operation.linear:
        several = {"loss": int("e" in group), "direction": int("e" not in group)}
        x, y = _inputs(trial, value), _inputs(trial, value, **several)
        if len(operation.linear) > 1 and len(group) == 1:  # of two vectors, one stays
            y = [new if name in group else old for name, new, old in zip(operation.vectors, y, x, strict=True)]
        both = [
            trial.rounded(2.0 * a - 3.0 * b) if name in group else a
            for name, a, b in zip(operation.vectors, x, y, strict=True)
        ]
        at_x, at_y, together = (_call(trial, value, trial.case.point, vectors) for vectors in (x, y, both))
        apart = combination((2.0, at_x), (-3.0, at_y))
        errors.append(_difference(trial, value, together, apart, _size(trial, value, x, y)))
    return np.asarray(np.max(errors, axis=0))


def _symmetric(trial: Trial, value: Value) -> Array:
    vectors = _inputs(trial, value)
    one, other = (_call(trial, value, trial.case.point, order) for order in (vectors, vectors[::-1]))
    return _difference(trial, value, one, other, _size(trial, value, vectors))


def _group_element(trial: Trial) -> Array:
    """Of GL(h) with condition number 4, neither a rotation nor symmetric; of O(h) where the geometry is relaxed."""
    h, rng = trial.case.point.sizes[2], trial.rng("group element")
    left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
    if trial.case.relaxation > 0.0:
        return np.asarray(left)
    return np.asarray((left * np.geomspace(2.0, 0.5, h)) @ right if h > 1 else np.array([[-1.7]]))


def _equivariant(trial: Trial, value: Value) -> Array:
    """f(A·θ, A·v) = A·f(θ, v) as the types say, measured at the moved point."""
    A, vectors = _group_element(trial), _inputs(trial, value)
    inverse = np.linalg.inv(A)

    def moved(pair: Pair, kind: str = "vector") -> Pair:
        return trial.rounded(Pair(pair.G @ A.T, pair.H @ inverse) if kind == "covector" else pair.transform(A))

    point = moved(trial.case.point)
    there = [moved(v, one.type) for v, one in zip(vectors, value.operation.inputs, strict=True)]
    t = 0.5 if value.operation.extra else None
    here, found = _call(trial, value, trial.case.point, vectors, t), _call(trial, value, point, there, t)
    size = _size(trial, value, vectors)
    if value.operation.scalar:
        return _difference(trial, value, found, here, size)
    space, carried = trial.space.metric.at(point), (here[0] @ inverse, here[1] @ A.T)
    size = np.maximum(size, trial.length(carried, space))  # the update rule of another metric has a size of its own
    return beside(trial.length(combination((1.0, found), (-1.0, carried)), space), size)


def _horizontal(trial: Trial, value: Value) -> Array:
    """The result is orthogonal to (GK, −HKᵀ) for every K; for the derivatives of an invariant loss."""
    vectors = _inputs(trial, value)
    result, size = _call(trial, value, trial.case.point, vectors), _size(trial, value, vectors)
    finite = np.isfinite(trial.length(result))
    vector = Pair.unchecked(*(np.where(np.isfinite(part), part, 0.0) for part in result))
    error = trial.space.norm(trial.space.vertical_projection(vector))
    # what rounding covectors to the dtype adds to a vertical part that is zero
    credit = size * trial.precision.roundoff * 4.0
    return beside(np.where(finite, np.maximum(error - credit, 0.0), np.inf), size)


OF_TYPES: dict[str, tuple[Callable[[Trial, Value], Array], str, Callable[[Operation], bool], float]] = {
    "linear": (_linear, "f(2x − 3y) = 2f(x) − 3f(y) in each vector", lambda one: bool(one.linear), 8.0),
    "symmetric": (_symmetric, "f(a, b) = f(b, a)", lambda one: one.symmetric, 2.0),
    "equivariant": (_equivariant, "f(A·θ, A·v) = A·f(θ, v)", lambda one: one.name != "retraction", 256.0),
    "horizontal": (_horizontal, "the result is horizontal", lambda one: one.horizontal, 4.0),
}


# Curves --------------------------------------------------------------------------------------------------------------


def _starts_at_the_point(trial: Trial, value: Value) -> Array:
    """γ(0) = θ, and with no velocity for all t."""
    case = trial.case
    v = case.vectors["v"]
    standing = Pair.unchecked(0.0 * v.G, 0.0 * v.H)
    found = [_call(trial, value, case.point, [v], 0.0), _call(trial, value, case.point, [standing])]
    size = np.asarray(trial.space.norm(case.point))
    return np.asarray(np.max([_difference(trial, value, one, tuple(case.point), size) for one in found], axis=0))


_FIRST = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))


def _initial_velocity(trial: Trial, value: Value) -> Array:
    """γ'(0) = v; of a retraction modulo the group, (G Hᵀ)' = v_G Hᵀ + G v_Hᵀ."""
    (v,), point, step = _inputs(trial, value), trial.case.point, float(trial.precision.roundoff**0.2)
    places = [comparable(value.operation, _call(trial, value, point, [v], k * step)) for k, _ in _FIRST]
    slope = combination(*((w / (12.0 * step), place) for (_, w), place in zip(_FIRST, places, strict=True)))
    if value is not RETRACTION:
        return _difference(trial, value, slope, tuple(v), np.asarray(trial.space.norm(point)))
    error = np.linalg.norm(slope[0] - (v.G @ point.H.mT + point.G @ v.H.mT), axis=(-2, -1))
    return beside(np.asarray(error), np.linalg.norm(point.product, axis=(-2, -1)))


def _homogeneous(trial: Trial, value: Value) -> Array:
    """γ with velocity 2v at t/2 = γ with velocity v at t."""
    (v,), point = _inputs(trial, value), trial.case.point
    one, other = _call(trial, value, point, [2.0 * v], 0.5), _call(trial, value, point, [v], 1.0)
    return _difference(trial, value, one, other, np.asarray(trial.space.norm(point)))


def _geodesic_equation(trial: Trial, value: Value) -> Array:
    """γ'' = −Γ(γ', γ') at a time, ‖γ'‖ and the momenta of the metric conserved, by differences."""
    (v,), t = _inputs(trial, value), 0.5
    roundoff = trial.precision.roundoff
    step = roundoff ** (1.0 / 6.0)  # truncation δ⁴ and rounding u/δ² are equal
    places = [_call(trial, value, trial.case.point, [v], t + k * step) for k in (-2, -1, 0, 1, 2)]
    if not all(np.isfinite(part).all() for place in places for part in place):
        return np.full(trial.case.point.block_shape, np.inf)
    weights = np.array([1, -8, 0, 8, -1]) / (12.0 * step), np.array([-1, 16, -30, 16, -1]) / (12.0 * step**2)
    slope, bend = (Pair.unchecked(*combination(*zip(w, places, strict=True))) for w in weights)
    try:
        there = trial.space.metric.at(Pair(*places[2]))
    except RankDeficientError:  # the right geodesic has rank h there
        return np.full(trial.case.point.block_shape, np.inf)
    before, after = trial.space.momenta(v), there.momenta(slope)
    turned = [np.linalg.norm(after[key] - before[key], axis=(-2, -1)) for key in ("rotation_G", "rotation_H")]
    error = np.max([
        there.norm(bend + there.christoffel(slope)),
        np.abs(there.norm(slope) - trial.space.norm(v)),
        np.hypot(*turned) / trial.space.norm(trial.case.point),
    ], axis=0)  # fmt: skip
    return beside(error * roundoff ** (1.0 / 3.0), np.asarray(trial.space.norm(trial.case.point)))  # in roundings


# The register --------------------------------------------------------------------------------------------------------


def _named(value: Value, law: str) -> str:
    return f"{value.operation.name}.{law}" + ("" if value.order is None else f"_{value.order}")


def _no_enclosure(case: Case) -> bool:
    return _is_small(case) and not case.can_flow(case.t)


def _made() -> Iterator[Check]:
    def law(
        value: Value, name: str, statement: str, errors: Callable[[Trial, Value], Array], scale: float, **more: Any
    ) -> Check:
        statement = statement if value.order is None else f"order {value.order}: {statement}"
        return Check(
            _named(value, name), "law", value.operation, statement, lambda trial: errors(trial, value), value.loss,
            scale=scale, value=value, **more,
        )  # fmt: skip

    for value in TARGETS:
        exact = value.order == "exact"
        for name, (errors, statement) in CIRCUMSTANCES.items():
            where = _one_column if name == "many_blocks" else _is_small if exact else anywhere
            if not (exact and name == "many_blocks"):
                of_metric = name == "remembers_nothing" and value is not RETRACTION
                most = 1 if name == "many_blocks" else FEW
                yield law(
                    value, name, statement, errors, 2.0, applies=where, most=most, of_metric=of_metric, always=True
                )
        for name, (errors, statement, holds, scale) in OF_TYPES.items():
            if holds(value.operation):
                yield law(value, name, statement, errors, scale, applies=_no_enclosure if exact else anywhere,
                          most=MANY, always=exact and name == "equivariant")  # fmt: skip
        if exact or value is RETRACTION:
            where = _no_enclosure if exact else anywhere
            yield law(value, "starts_at_the_point", "γ(0) = θ", _starts_at_the_point, 1.0, always=True, most=MANY,
                      applies=_is_small if exact else anywhere)  # fmt: skip
            yield law(value, "initial_velocity", "γ'(0) = v, by finite differences", _initial_velocity, 10.0,
                      applies=where, roundoff_power=0.8, always=True, most=MANY)  # fmt: skip
        if exact:
            scale = VALUE_CHECKS["geodesic_exact"].scale
            yield law(value, "homogeneous", "γ with velocity 2v at time t/2 equals γ with velocity v at time t",
                      _homogeneous, scale, applies=where, always=True, most=5)  # fmt: skip
            yield law(value, "equation", "γ'' = −Γ(γ', γ'), and ‖γ'‖ and the momenta of the metric are conserved",
                      _geodesic_equation, 10.0, applies=where, always=True, most=5, of_metric=True)  # fmt: skip


LAWS: dict[str, Check] = {one.name: one for one in _made()}
