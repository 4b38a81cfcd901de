r"""Laws: relations between results of a backend that must hold where no right result is known.

They are judged for a *retraction*, which may be any curve in the quotient with γ(0) = θ and γ'(0) = v. The first two
laws are this definition; the third is a metamorphic relation: a changed call must give the result of the plain one.

Lengths are measured with refgeo's geometry. Errors have the units of `evidence.py`; each is relative to the scale of
all terms that are compared. Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) − f(−2δ))) / 12δ``,
with δ = u^{1/5}, where the truncation error δ⁴ and the rounding error u/δ are equal; their unit is u^{4/5}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.judging.evidence import (
    Enclosing,
    Evidence,
    compare,
    error_units,
    relative_to,
    to_evidence,
)
from refgeo.conformance.points.circumstances import Transformation, perturb
from refgeo.conformance.points.scene import Scene
from refgeo.conformance.protocol.call import Answer, Call, Event, NoResult, is_demanding
from refgeo.conformance.protocol.operations import RETRACTION, Parts, Value
from refgeo.conformance.protocol.precision import INTEGRATOR_FACTOR, N_PERTURBATIONS, round_to_dtype
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array
from refgeo.support.records import with_fields

_FIVE_POINT_WEIGHTS = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))
"""Multiples of the step δ at which a derivative evaluates the curve, and the weights of the points times 12δ."""


CallFunction = Callable[[Call], Answer]
"""A function that makes a call, and returns the backend's answer."""


@dataclass(frozen=True)
class Law:
    """One law of retractions.

    Attributes
    ----------
    statement : str
    errors : callable
        From a scene, a function that makes changed calls, and one that makes plain calls, to the relative errors, one
        per block.
    factor, roundoff_power : float
        Of the error units.
    sensitivity : callable, optional
        From a scene and a function that makes plain calls, to how far a right result moves if the inputs change as much
        as the law allows for. Without it, what is expected moves as little as the inputs themselves.
    """

    statement: str
    errors: Callable[[Scene, CallFunction, CallFunction], Array]
    factor: float
    roundoff_power: float = 1.0
    sensitivity: Callable[[Scene, CallFunction], Array] | None = None


def can_be_judged(value: Value, scene: Scene) -> bool:
    """Return whether a value can be judged at a point: by laws, or by an enclosure that takes a short time."""
    return value is RETRACTION or scene.can_be_enclosed(value)


def evaluate(
    scene: Scene,
    value: Value,
    call_backend: CallFunction,
    transform: Transformation = lambda call: call,
    enclosing: Enclosing = "in doubt",
    **fields: Any,
) -> list[Evidence]:
    """Make the call for a value at a point, changed, and compare the result with the right one, or check its laws."""
    call = scene.call(value)
    fields["demanding"] = is_demanding(call)
    if value is RETRACTION:
        return _check_laws(scene, lambda c: call_backend(transform(replace(c, decisive=True))), call_backend, **fields)
    is_decisive = bool(error_units(scene, value).decisive.all())
    return compare(scene, value, call_backend(transform(with_fields(call, decisive=is_decisive))), enclosing, **fields)


def _check_laws(scene: Scene, call_changed: CallFunction, call_plain: CallFunction, **fields: Any) -> list[Evidence]:
    """Check all laws of retractions that can be decided at a point; an exception ends the check."""
    evidence: list[Evidence] = []
    for law in RETRACTION_LAWS:
        units = error_units(scene, RETRACTION, law.factor, law.roundoff_power)
        if not np.all(units.decisive):
            continue
        try:
            with np.errstate(all="ignore"):
                errors = law.errors(scene, call_changed, call_plain)
                if law.sensitivity and np.any(errors > units.gram):
                    units = units.enlarge(law.sensitivity(scene, call_plain))
        except NoResult as failure:
            return [*evidence, *compare(scene, RETRACTION, Answer(failure=failure), **fields)]
        except (ValueError, ArithmeticError) as error:  # The referee's own mathematics cannot use the numbers.
            detail = f"{type(error).__name__}: {error}"
            return [*evidence, Evidence(scene.name, event=Event.ORACLE_FAILED, detail=detail, **fields)]
        evidence += to_evidence(scene, units, errors, law=law.statement, **fields)
    return evidence


# Curves --------------------------------------------------------------------------------------------------------------


_MAX_BEND = 0.2
"""The largest ‖Γ(v, v)‖ / ‖v‖ of a velocity along which a curve is differentiated; chosen."""
_DIFFERENCE_FACTOR = 10.0
"""How many times as large the unit is for differences of a curve, besides the loss of a fifth of the digits; chosen."""


def _evaluate_curve(scene: Scene, call_backend: CallFunction, v: Pair, t: float | None = None) -> Parts:
    """Return the point of a retraction's curve at time t."""
    return tuple(call_backend(scene.call(RETRACTION, [v], t)).result())


def _draw_velocity(scene: Scene) -> Pair:
    """Draw a velocity along which the metric, and so the factors, change slowly: ‖Γ(v, v)‖ ≤ `_MAX_BEND` ‖v‖."""
    v = scene.space.random_tangent_vector(scene.rng("v 0"), horizontal=False) * scene.space.norm(scene.point)
    bend = scene.space.norm(scene.space.christoffel(v)) / scene.space.norm(v)
    return round_to_dtype(v * (_MAX_BEND / np.maximum(bend, _MAX_BEND)), scene.dtype)


def _product_distance(scene: Scene, result: Parts, expected: Parts) -> Array:
    """Compute the relative distance of the products G Hᵀ of two points, as only the product is determined."""
    x, y = (G @ H.mT for G, H in (result, expected))
    x_is_finite, y_is_finite = np.isfinite(x), np.isfinite(y)
    difference = np.where(x_is_finite & y_is_finite, x - y, np.where(x_is_finite | y_is_finite, np.inf, 0.0))
    sizes = [np.linalg.norm(X, axis=(-2, -1)) for X in (scene.point.product, np.where(y_is_finite, y, 0.0))]
    return relative_to(np.asarray(np.linalg.norm(difference, axis=(-2, -1))), np.maximum(*sizes))


def _initial_point_error(scene: Scene, call_changed: CallFunction, call_plain: CallFunction) -> Array:
    """Check γ(0) = θ, and for the velocity zero γ(t) = θ."""
    v, zero = scene.vectors["v"], 0.0 * scene.vectors["v"]
    points = [_evaluate_curve(scene, call_changed, v, 0.0), _evaluate_curve(scene, call_changed, zero)]
    return np.asarray(np.max([_product_distance(scene, point, tuple(scene.point)) for point in points], axis=0))


def _initial_velocity_error(scene: Scene, call_changed: CallFunction, call_plain: CallFunction) -> Array:
    """Check γ'(0) = v modulo the group: (G Hᵀ)' = v_G Hᵀ + G v_Hᵀ."""
    v, point, step = _draw_velocity(scene), scene.point, float(scene.precision.roundoff**0.2)
    points = ((w / (12.0 * step), _evaluate_curve(scene, call_changed, v, k * step)) for k, w in _FIVE_POINT_WEIGHTS)
    derivative = sum(w * (G @ H.mT) for w, (G, H) in points)
    error = np.linalg.norm(derivative - (v.G @ point.H.mT + point.G @ v.H.mT), axis=(-2, -1))
    return relative_to(np.asarray(error), np.linalg.norm(point.product, axis=(-2, -1)))


def _reproducibility_error(scene: Scene, call_changed: CallFunction, call_plain: CallFunction) -> Array:
    """Compare a changed call with a plain one, perturbed so that a right result changes in half of its digits."""
    call = scene.call(RETRACTION)
    answers = call_changed(call), call_plain(perturb(call))
    return _product_distance(scene, *(tuple(answer.result()) for answer in answers))


def _reproducibility_sensitivity(scene: Scene, call_plain: CallFunction) -> Array:
    """Compare plain calls with opposite perturbations, between which a right result may jump.

    The unperturbed call is not among them, as its own result is in question: it may be that of a call before it. If a
    repeated call has another result, the results do not depend on the inputs alone, and 0 is returned.
    """
    call = scene.call(RETRACTION)
    calls = [perturb(call, scene.rng(f"perturbation {k}"), s) for k in range(N_PERTURBATIONS) for s in (1.0, -1.0)]
    *perturbed, repeated = (tuple(call_plain(c).result()) for c in (*calls, calls[0]))
    if not all(np.array_equal(x, y, equal_nan=True) for x, y in zip(perturbed[0], repeated, strict=True)):
        return np.zeros(scene.shape)
    opposite = zip(perturbed[::2], perturbed[1::2], strict=True)
    return np.asarray(np.max([_product_distance(scene, *pair) for pair in opposite], axis=0))


RETRACTION_LAWS = (
    Law("γ(0) = θ", _initial_point_error, INTEGRATOR_FACTOR),
    Law("γ'(0) = v, by finite differences", _initial_velocity_error, _DIFFERENCE_FACTOR, 0.8),
    Law("the result depends on the contents of the arrays alone: not on their memory layout, nor on other calls",
        _reproducibility_error, INTEGRATOR_FACTOR, 0.5, _reproducibility_sensitivity),
)  # fmt: skip
