r"""Laws: what must hold between a backend's own results where no right result is known.

A *retraction* is any curve in the quotient with γ(0) = θ and γ'(0) = v.

Lengths are measured with refgeo's geometry. Errors have the units of `refgeo.conformance.evidence`; each is divided by
the size of all the terms that are compared. Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) −
f(−2δ))) / 12δ``, with δ = u^{1/5}, where truncation δ⁴ and rounding u/δ are equal; their unit is u^{4/5}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo.conformance.call import Answer, Call, Event, NoResult
from refgeo.conformance.evidence import INTEGRATED, Evidence, Units, beside, hold, measured, units
from refgeo.conformance.operations import OPERATIONS, VALUES, Parts, Value
from refgeo.conformance.precision import representable
from refgeo.conformance.scene import Scene
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

RETRACTION = Value(
    "retraction", OPERATIONS["retraction"], "a curve in the quotient with γ(0) = θ, γ'(0) = v", lambda *_: (),
    lambda space, vectors, t: np.asarray(space.norm(space.point)), OPERATIONS["retraction"].loss,
)  # fmt: skip
TARGETS = {value.name: value for value in (*VALUES.values(), RETRACTION)}
"""All that a backend's functions give: of geodesics a result for each order."""
_FIRST = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))


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
    """

    statement: str
    errors: Callable[[Scene, Value, Ask], Array]
    scale: float
    roundoff_power: float = 1.0

    def units(self, scene: Scene, value: Value) -> Units:
        """What the errors are measured in."""
        return units(scene, value, self.scale, self.roundoff_power)


def obeys(scene: Scene, value: Value, laws: Iterable[Law], ask: Ask, **more: Any) -> list[Evidence]:
    """What is seen of laws at a point, as far as they can tell anything there."""
    found: list[Evidence] = []
    for law in laws:
        unit = law.units(scene, value)
        if not np.all(unit.decisive):
            continue
        try:
            with np.errstate(all="ignore"):
                errors = law.errors(scene, value, ask)
        except NoResult as failure:
            return [*found, *hold(scene, value, Answer(failure=failure), **more)]
        except (ValueError, ArithmeticError) as error:  # of the referee's own mathematics, at numbers it cannot use
            said = f"{type(error).__name__}: {error}"
            return [*found, Evidence(scene.name, event=Event.UNEVALUATED, said=said, **more)]
        found += measured(scene, unit, errors, law=law.statement, **more)
    return found


def _results(scene: Scene, value: Value, ask: Ask, vectors: list[Pair], t: float | None = None) -> Parts:
    return tuple(ask(scene.call(value, vectors, t)).result())


# Curves --------------------------------------------------------------------------------------------------------------


def _velocity(scene: Scene) -> Pair:
    """A velocity along which the metric changes slowly: ‖Γ(v, v)‖ ≤ 0.2 ‖v‖, and so do the factors."""
    v = scene.space.random_tangent_vector(scene.rng("v 0"), horizontal=False) * scene.space.norm(scene.point)
    bend = scene.space.norm(scene.space.christoffel(v)) / scene.space.norm(v)
    return representable(v * (0.2 / np.maximum(bend, 0.2)), scene.dtype)


def _apart(scene: Scene, place: Parts, other: Parts) -> Array:
    """Between the products G Hᵀ of two places, which is all that is said of them, beside their size."""
    x, y = (G @ H.mT for G, H in (place, other))
    error = np.linalg.norm(np.where(np.isfinite(x), x - y, np.inf), axis=(-2, -1))
    return beside(np.asarray(error), np.maximum(*(np.linalg.norm(X, axis=(-2, -1)) for X in (scene.point.product, y))))


def _starts_at_the_point(scene: Scene, value: Value, ask: Ask) -> Array:
    """γ(0) = θ, and with no velocity for all t."""
    v, standing = scene.vectors["v"], 0.0 * scene.vectors["v"]
    found = [_results(scene, value, ask, [v], 0.0), _results(scene, value, ask, [standing])]
    return np.asarray(np.max([_apart(scene, one, tuple(scene.point)) for one in found], axis=0))


def _initial_velocity(scene: Scene, value: Value, ask: Ask) -> Array:
    """γ'(0) = v modulo the group: (G Hᵀ)' = v_G Hᵀ + G v_Hᵀ."""
    v, point, step = _velocity(scene), scene.point, float(scene.precision.roundoff**0.2)
    places = ((w / (12.0 * step), _results(scene, value, ask, [v], k * step)) for k, w in _FIRST)
    slope = sum(w * (G @ H.mT) for w, (G, H) in places)
    error = np.linalg.norm(slope - (v.G @ point.H.mT + point.G @ v.H.mT), axis=(-2, -1))
    return beside(np.asarray(error), np.linalg.norm(point.product, axis=(-2, -1)))


def _repeats(scene: Scene, value: Value, ask: Ask) -> Array:
    """A call in the circumstance, and one plainly that is so near that the results differ by half of the digits."""
    return _apart(scene, *(tuple(asked(scene.call(value)).result()) for asked in (ask, ask.nearby)))


REPEATS = Law(
    "the result depends on the contents of the arrays alone: not on their memory layout, nor on other calls",
    _repeats, INTEGRATED, 0.5,
)  # fmt: skip
CURVE = (
    Law("γ(0) = θ", _starts_at_the_point, INTEGRATED),
    Law("γ'(0) = v, by finite differences", _initial_velocity, 10.0, 0.8),
    REPEATS,
)
