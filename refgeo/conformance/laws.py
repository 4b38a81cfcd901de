r"""Laws: what must hold between a backend's own results where no right result is known.

A *retraction* is any curve in the quotient with γ(0) = θ and γ'(0) = v.

Lengths are measured with refgeo's geometry. Errors have the units of `refgeo.conformance.evidence`; each is divided by
the size of all the terms that are compared. Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) −
f(−2δ))) / 12δ``, with δ = u^{1/5}, where truncation δ⁴ and rounding u/δ are equal; their unit is u^{4/5}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.backend import is_demanding
from refgeo.conformance.call import Answer, Call, Event, NoResult
from refgeo.conformance.circumstances import Change, nearly
from refgeo.conformance.evidence import INTEGRATED, Evidence, beside, compare, measured, units
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


Ask = Callable[[Call], Answer]
"""What asks a backend."""


@dataclass(frozen=True)
class Law:
    """One law of retractions.

    Attributes
    ----------
    statement : str
    errors : callable
        Of a scene, what asks the backend in some circumstance, and what asks it plainly: the errors beside their
        natural size, per block.
    scale, roundoff_power : float
        Of the unit.
    """

    statement: str
    errors: Callable[[Scene, Ask, Ask], Array]
    scale: float
    roundoff_power: float = 1.0


def can_be_judged(value: Value, scene: Scene) -> bool:
    """Whether a law, or an enclosure in a moment, tells something of it at a point."""
    return value is RETRACTION or scene.can_be_enclosed(value)


def evaluate(scene: Scene, value: Value, ask: Ask, change: Change = lambda call: call, **more: Any) -> list[Evidence]:
    """Make the call for a value at a point, changed, and compare the result with the right one, or check its laws."""
    call = scene.call(value)
    more["demanding"] = is_demanding(call)
    if value is RETRACTION:
        return _obeys(scene, lambda call: ask(change(replace(call, decisive=True))), ask, **more)
    is_decisive = bool(np.all(units(scene, value).decisive))
    return list(compare(scene, value, ask(change(replace(call, decisive=is_decisive))), **more))


def _obeys(scene: Scene, ask: Ask, plainly: Ask, **more: Any) -> list[Evidence]:
    """What is seen of the laws of a retraction, as far as they can tell anything there."""
    found: list[Evidence] = []
    for law in CURVE:
        unit = units(scene, RETRACTION, law.scale, law.roundoff_power)
        if not np.all(unit.decisive):
            continue
        try:
            with np.errstate(all="ignore"):
                errors = law.errors(scene, ask, plainly)
        except NoResult as failure:
            return [*found, *compare(scene, RETRACTION, Answer(failure=failure), **more)]
        except (ValueError, ArithmeticError) as error:  # of the referee's own mathematics, at numbers it cannot use
            said = f"{type(error).__name__}: {error}"
            return [*found, Evidence(scene.name, event=Event.UNEVALUATED, said=said, **more)]
        found += measured(scene, unit, errors, law=law.statement, **more)
    return found


def _place(scene: Scene, ask: Ask, v: Pair, t: float | None = None) -> Parts:
    return tuple(ask(scene.call(RETRACTION, [v], t)).result())


# Curves --------------------------------------------------------------------------------------------------------------


def _velocity(scene: Scene) -> Pair:
    """A velocity along which the metric changes slowly: ‖Γ(v, v)‖ ≤ 0.2 ‖v‖, and so do the factors."""
    v = scene.space.random_tangent_vector(scene.rng("v 0"), horizontal=False) * scene.space.norm(scene.point)
    bend = scene.space.norm(scene.space.christoffel(v)) / scene.space.norm(v)
    return representable(v * (0.2 / np.maximum(bend, 0.2)), scene.dtype)


def _apart(scene: Scene, place: Parts, other: Parts) -> Array:
    """Between the products G Hᵀ of two places, which is all that is said of them, beside their size."""
    x, y = (G @ H.mT for G, H in (place, other))
    is_number, is_one = np.isfinite(x), np.isfinite(y)
    difference = np.where(is_number & is_one, x - y, np.where(is_number | is_one, np.inf, 0.0))
    sizes = [np.linalg.norm(X, axis=(-2, -1)) for X in (scene.point.product, np.where(is_one, y, 0.0))]
    return beside(np.asarray(np.linalg.norm(difference, axis=(-2, -1))), np.maximum(*sizes))


def _starts_at_the_point(scene: Scene, ask: Ask, plainly: Ask) -> Array:
    """γ(0) = θ, and with no velocity for all t."""
    v, standing = scene.vectors["v"], 0.0 * scene.vectors["v"]
    found = [_place(scene, ask, v, 0.0), _place(scene, ask, standing)]
    return np.asarray(np.max([_apart(scene, one, tuple(scene.point)) for one in found], axis=0))


def _initial_velocity(scene: Scene, ask: Ask, plainly: Ask) -> Array:
    """γ'(0) = v modulo the group: (G Hᵀ)' = v_G Hᵀ + G v_Hᵀ."""
    v, point, step = _velocity(scene), scene.point, float(scene.precision.roundoff**0.2)
    places = ((w / (12.0 * step), _place(scene, ask, v, k * step)) for k, w in _FIRST)
    slope = sum(w * (G @ H.mT) for w, (G, H) in places)
    error = np.linalg.norm(slope - (v.G @ point.H.mT + point.G @ v.H.mT), axis=(-2, -1))
    return beside(np.asarray(error), np.linalg.norm(point.product, axis=(-2, -1)))


def _repeats(scene: Scene, ask: Ask, plainly: Ask) -> Array:
    """A call in the circumstance, and one plainly that is so near that the results differ by half of the digits."""
    call = scene.call(RETRACTION)
    return _apart(scene, *(tuple(answer.result()) for answer in (ask(call), plainly(nearly(call)))))


CURVE = (
    Law("γ(0) = θ", _starts_at_the_point, INTEGRATED),
    Law("γ'(0) = v, by finite differences", _initial_velocity, 10.0, 0.8),
    Law("the result depends on the contents of the arrays alone: not on their memory layout, nor on other calls",
        _repeats, INTEGRATED, 0.5),
)  # fmt: skip
