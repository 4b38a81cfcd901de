r"""Laws: what must hold between a backend's own results where no right result is known.

*Exact geodesics* that no enclosure follows: a curve with γ(0) = θ and γ'(0) = v is the geodesic if it solves
γ'' = −Γ(γ', γ'), and on it the speed and the momenta of the metric are conserved. *Retractions* are any curve in the
quotient with γ(0) = θ and γ'(0) = v. *Update rules* of other metrics (``laws_only``) obey what follows from the types
of an operation: linear, symmetric, equivariant, horizontal.

Lengths are measured with refgeo's geometry. Errors have the units of `refgeo.conformance.evidence`; each is divided by
the size of all the terms that are compared. Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) −
f(−2δ))) / 12δ``, with δ = u^{1/5}, where truncation δ⁴ and rounding u/δ are equal; their unit is u^{4/5}.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.call import Answer, Call, Event, NoResult
from refgeo.conformance.evidence import (
    INTEGRATED,
    Evidence,
    Units,
    beside,
    combination,
    comparable,
    difference,
    hold,
    measured,
    units,
)
from refgeo.conformance.operations import OPERATIONS, VALUES, Operation, Parts, Value
from refgeo.conformance.precision import representable
from refgeo.conformance.scene import InvariantLoss, Scene, horizontal_like
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array
from refgeo.support.errors import RankDeficientError

RETRACTION = Value(
    "retraction", OPERATIONS["retraction"], "a curve in the quotient with γ(0) = θ, γ'(0) = v", lambda *_: (),
    lambda space, vectors, t: np.asarray(space.norm(space.point)), OPERATIONS["retraction"].loss,
)  # fmt: skip
TARGETS = {value.name: value for value in (*VALUES.values(), RETRACTION)}
"""All that a backend's functions give: of geodesics a result for each order."""
_FIRST = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))
_TIMES = (0.5, 1.25)
"""At these the equation is tried."""


@dataclass(frozen=True)
class Ask:
    """What asks a backend.

    Attributes
    ----------
    there : callable
        In some circumstance.
    nearby : callable
        In none, with arrays that are nearly the same.
    """

    there: Callable[[Call], Answer]
    nearby: Callable[[Call], Answer]

    def __call__(self, call: Call) -> Answer:
        """The answer in the circumstance."""
        return self.there(call)


@dataclass(frozen=True)
class Law:
    """One law.

    Attributes
    ----------
    statement : str
    errors : callable
        Of a scene, a value and what asks the backend: the errors beside their natural size, per block.
    scale, roundoff_power : float
        Of the unit.
    part : callable
        Of a scene what the law is judged on.
    """

    statement: str
    errors: Callable[[Scene, Value, Ask], Array]
    scale: float
    roundoff_power: float = 1.0
    part: Callable[[Scene], Scene] = lambda scene: scene

    def units(self, scene: Scene, value: Value) -> Units:
        """What the errors are measured in."""
        return units(scene, value, self.scale, self.roundoff_power)


def obeys(scene: Scene, value: Value, laws: Iterable[Law], ask: Ask, **more: Any) -> list[Evidence]:
    """What is seen of laws at a point, as far as they can tell anything there."""
    found: list[Evidence] = []
    for law in laws:
        part = law.part(scene)
        unit = law.units(part, value)
        if not np.all(unit.decisive):
            continue
        try:
            with np.errstate(all="ignore"):
                errors = law.errors(part, value, ask)
        except NoResult as failure:
            return [*found, *hold(scene, value, Answer(failure=failure), **more)]
        except (ValueError, ArithmeticError) as error:  # of the referee's own mathematics, at numbers it cannot use
            said = f"{type(error).__name__}: {error}"
            return [*found, Evidence(scene.name, event=Event.UNEVALUATED, said=said, **more)]
        found += measured(part, unit, errors, law=law.statement, **more)
    return found


def _results(scene: Scene, value: Value, ask: Ask, vectors: list[Pair], t: float | None = None) -> Parts:
    return tuple(ask(scene.call(value, vectors, t)).result())


# Curves --------------------------------------------------------------------------------------------------------------


def _velocity(scene: Scene) -> Pair:
    """A velocity along which the metric changes slowly."""
    v = scene.space.random_tangent_vector(scene.rng("v 0"), horizontal=False) * scene.space.norm(scene.point)
    return representable(v * (0.2 / np.maximum(_bend(scene, v), 0.2)), scene.dtype)


def _bend(scene: Scene, v: Pair) -> Array:
    """How fast the metric changes along v: ‖Γ(v, v)‖ / ‖v‖, at least the relative speed of the factors."""
    speed = np.maximum(*(
        np.linalg.norm(velocity, axis=(-2, -1)) / np.linalg.norm(factor, axis=(-2, -1))
        for velocity, factor in zip(v, scene.point, strict=True)
    ))  # fmt: skip
    return np.asarray(np.maximum(speed, scene.space.norm(scene.space.christoffel(v)) / scene.space.norm(v)))


def _starts_at_the_point(scene: Scene, value: Value, ask: Ask) -> Array:
    """γ(0) = θ, and with no velocity for all t."""
    v, standing = scene.vectors["v"], 0.0 * scene.vectors["v"]
    found = [_results(scene, value, ask, [v], 0.0), _results(scene, value, ask, [standing])]
    size = np.asarray(scene.space.norm(scene.point))
    return np.asarray(np.max([difference(scene, value, one, tuple(scene.point), size) for one in found], axis=0))


def _initial_velocity(scene: Scene, value: Value, ask: Ask) -> Array:
    """γ'(0) = v; of a retraction modulo the group, (G Hᵀ)' = v_G Hᵀ + G v_Hᵀ."""
    v, point, step = _velocity(scene), scene.point, float(scene.precision.roundoff**0.2)
    places = [comparable(value.operation, _results(scene, value, ask, [v], k * step)) for k, _ in _FIRST]
    slope = combination(*((w / (12.0 * step), place) for (_, w), place in zip(_FIRST, places, strict=True)))
    if value is not RETRACTION:
        return difference(scene, value, slope, tuple(v), np.asarray(scene.space.norm(point)))
    error = np.linalg.norm(slope[0] - (v.G @ point.H.mT + point.G @ v.H.mT), axis=(-2, -1))
    return beside(np.asarray(error), np.linalg.norm(point.product, axis=(-2, -1)))


def _at(scene: Scene, value: Value, ask: Ask, t: float) -> tuple[Any, Pair, Pair] | None:
    """The place on a curve, its velocity and its acceleration, by differences; None if the place has no rank h."""
    v, step = _velocity(scene), scene.precision.roundoff ** (1.0 / 6.0)  # truncation δ⁴ and rounding u/δ² are equal
    places = [_results(scene, value, ask, [v], t + k * step) for k in (-2, -1, 0, 1, 2)]
    if not all(np.isfinite(part).all() for place in places for part in place):
        return None
    weights = np.array([1, -8, 0, 8, -1]) / (12.0 * step), np.array([-1, 16, -30, 16, -1]) / (12.0 * step**2)
    slope, bend = (Pair.unchecked(*combination(*zip(w, places, strict=True))) for w in weights)
    try:
        return scene.space.metric.at(Pair(*places[2])), slope, bend
    except RankDeficientError:  # the right geodesic has rank h there
        return None


def _of_curve(scene: Scene, value: Value, ask: Ask, error: Callable[[Any, Pair, Pair], Array], power: float) -> Array:
    """The largest error at a few times; times u^power, in roundings."""
    found = []
    for t in _TIMES:
        at = _at(scene, value, ask, t)
        if at is None:
            return np.full(scene.shape, np.inf)
        found.append(error(*at) * scene.precision.roundoff**power)
    return beside(np.max(found, axis=0), np.asarray(scene.space.norm(scene.point)))


def _equation(scene: Scene, value: Value, ask: Ask) -> Array:
    return _of_curve(scene, value, ask, lambda there, slope, bend: there.norm(bend + there.christoffel(slope)), 1 / 3)


def _conserves(scene: Scene, value: Value, ask: Ask) -> Array:
    v = _velocity(scene)
    before = scene.space.momenta(v)

    def error(there: Any, slope: Pair, bend: Pair) -> Array:
        after = there.momenta(slope)
        turned = [np.linalg.norm(after[key] - before[key], axis=(-2, -1)) for key in ("rotation_G", "rotation_H")]
        speed = np.abs(there.norm(slope) - scene.space.norm(v))
        return np.asarray(np.maximum(speed, np.hypot(*turned) / scene.space.norm(scene.point)))

    return _of_curve(scene, value, ask, error, 1 / 6)


def _repeats(scene: Scene, value: Value, ask: Ask) -> Array:
    """A call in the circumstance, and one plainly that is so near that the results differ by half of the digits."""
    there, nearby = (tuple(asked(scene.call(value)).result()) for asked in (ask, ask.nearby))
    return difference(scene, value, there, nearby, scene.size(value))


REPEATS = Law(
    "the result depends on the contents of the arrays alone: not on their memory layout, nor on other calls",
    _repeats, INTEGRATED, 0.5,
)  # fmt: skip
CURVE = (
    Law("γ(0) = θ", _starts_at_the_point, INTEGRATED),
    Law("γ'(0) = v, by finite differences", _initial_velocity, 10.0, 0.8),
    REPEATS,
)
GEODESIC = (
    *CURVE,
    Law("γ'' = −Γ(γ', γ'), by finite differences", _equation, INTEGRATED),
    Law("‖γ'‖ and the momenta of the metric are conserved", _conserves, INTEGRATED),
)


# What types say ------------------------------------------------------------------------------------------------------


def _inputs(scene: Scene, value: Value, loss: int = 0, direction: int = 0) -> list[Pair]:
    """Vectors for an operation; others with other numbers. Covectors are those of an invariant loss, w along v."""
    operation, space = value.operation, scene.space
    made = InvariantLoss(scene.point, scene.rng(f"loss {loss}"))
    found: dict[str, Pair] = {}
    for one in operation.inputs:
        if one.type == "vector":
            rng = scene.rng(f"{one.name} {direction}")
            v = space.random_tangent_vector(rng, horizontal=False) * space.norm(scene.point)
            if operation.extra:
                v = v * (0.2 / np.maximum(_bend(scene, v), 0.2))
            horizontal = operation.horizontal and operation.vectors != ("v",)  # a projection is of any vector
            found[one.name] = horizontal_like(space, v, rng) if horizontal else v
    for one in operation.inputs:
        if one.type == "covector":
            found[one.name] = made.gradient() if one.name == "e" else made.hessian(found["v"])
    return [representable(found[name], scene.dtype) for name in operation.vectors]


def _size(scene: Scene, value: Value, *inputs: list[Pair]) -> Array:
    return np.asarray(sum(value.size(scene.space, vectors, 1.0) for vectors in inputs))


def _linear(scene: Scene, value: Value, ask: Ask) -> Array:
    """f(2x − 3y) = 2f(x) − 3f(y) in each argument, or in several together."""
    errors, operation = [], value.operation
    for group in operation.linear:
        several = {"loss": int("e" in group), "direction": int("e" not in group)}
        x, y = _inputs(scene, value), _inputs(scene, value, **several)
        if len(operation.linear) > 1 and len(group) == 1:  # of two vectors, one stays
            y = [new if name in group else old for name, new, old in zip(operation.vectors, y, x, strict=True)]
        both = [
            representable(2.0 * a - 3.0 * b, scene.dtype) if name in group else a
            for name, a, b in zip(operation.vectors, x, y, strict=True)
        ]
        at_x, at_y, together = (_results(scene, value, ask, vectors) for vectors in (x, y, both))
        apart = combination((2.0, at_x), (-3.0, at_y))
        errors.append(difference(scene, value, together, apart, _size(scene, value, x, y)))
    return np.asarray(np.max(errors, axis=0))


def _symmetric(scene: Scene, value: Value, ask: Ask) -> Array:
    vectors = _inputs(scene, value)
    one, other = (_results(scene, value, ask, order) for order in (vectors, vectors[::-1]))
    return difference(scene, value, one, other, _size(scene, value, vectors))


def _group_element(scene: Scene) -> Array:
    """Of GL(h) with condition number 4, neither a rotation nor symmetric; of O(h) where the geometry is relaxed."""
    # each point has its own: what is kept by G alone would be consistent otherwise
    h, rng = scene.point.sizes[2], scene.rng(f"group element {zlib.crc32(scene.point.H.tobytes())}")
    left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
    if scene.relaxation > 0.0:
        return np.asarray(left)
    return np.asarray((left * np.geomspace(2.0, 0.5, h)) @ right if h > 1 else np.array([[-1.7]]))


def _equivariant(scene: Scene, value: Value, ask: Ask) -> Array:
    """f(A·θ, A·v) = A·f(θ, v) as the types say, measured at the moved point."""
    A, vectors = _group_element(scene), _inputs(scene, value)
    inverse = np.linalg.inv(A)

    def moved(pair: Pair, kind: str = "vector") -> Pair:
        there = Pair(pair.G @ A.T, pair.H @ inverse) if kind == "covector" else pair.transform(A)
        return representable(there, scene.dtype)

    there = replace(scene, space=scene.space.metric.at(moved(scene.point)))
    inputs = [moved(v, one.type) for v, one in zip(vectors, value.operation.inputs, strict=True)]
    t = 0.5 if value.operation.extra else None
    here, found = _results(scene, value, ask, vectors, t), _results(there, value, ask, inputs, t)
    size = _size(scene, value, vectors)
    if value.operation.scalar:
        return difference(scene, value, found, here, size)
    carried = (here[0] @ inverse, here[1] @ A.T)
    size = np.maximum(size, scene.length(carried, there.space))  # another metric's rule has a size of its own
    return beside(scene.length(combination((1.0, found), (-1.0, carried)), there.space), size)


def _horizontal(scene: Scene, value: Value, ask: Ask) -> Array:
    """The result is orthogonal to (GK, −HKᵀ) for every K; for the derivatives of an invariant loss."""
    vectors = _inputs(scene, value)
    result, size = _results(scene, value, ask, vectors), _size(scene, value, vectors)
    finite = np.isfinite(scene.length(result))
    vector = Pair.unchecked(*(np.where(np.isfinite(part), part, 0.0) for part in result))
    error = scene.space.norm(scene.space.vertical_projection(vector))
    # what rounding covectors to the dtype adds to a vertical part that is zero
    credit = size * scene.precision.roundoff * 4.0
    return beside(np.where(finite, np.maximum(error - credit, 0.0), np.inf), size)


def _loop_over_blocks(scene: Scene, value: Value, ask: Ask) -> Array:
    """A batch gives what its blocks give one by one."""
    together = _results(scene, value, ask, scene.inputs(value.operation))
    alone = tuple(np.zeros_like(part) for part in together)
    for block in np.ndindex(scene.shape):
        one = scene.changed(operator.itemgetter(block))
        for all_of_them, part in zip(alone, _results(one, value, ask, one.inputs(value.operation)), strict=True):
            all_of_them[block] = part
    return difference(scene, value, together, alone, scene.size(value))


OF_TYPES: dict[str, tuple[Law, Callable[[Operation], bool]]] = {
    "linear": (Law("f(2x − 3y) = 2f(x) − 3f(y) in each vector", _linear, 8.0), lambda one: bool(one.linear)),
    "symmetric": (Law("f(a, b) = f(b, a)", _symmetric, 2.0), lambda one: one.symmetric),
    "equivariant": (Law("f(A·θ, A·v) = A·f(θ, v)", _equivariant, 256.0), lambda one: one.name != "retraction"),
    "horizontal": (Law("the result is horizontal", _horizontal, 4.0), lambda one: one.horizontal),
    "loop_over_blocks": (
        Law(
            "a batch gives the same results as its blocks",
            _loop_over_blocks,
            2.0,
            part=lambda scene: scene.first_blocks(4),
        ),
        lambda _: True,
    ),
}


def named(value: Value, law: str) -> str:
    """What the law of a value is called.

    Examples
    --------
    >>> named(VALUES["geodesic_2"], "equivariant")
    'geodesic.equivariant_2'
    """
    return f"{value.operation.name}.{law}" + ("" if value.order is None else f"_{value.order}")


LAWS: dict[str, tuple[Value, Law]] = {
    named(value, name): (value, law)
    for value in TARGETS.values()
    for name, (law, holds) in OF_TYPES.items()
    if holds(value.operation)
}
"""Those of update rules, by function and law."""
