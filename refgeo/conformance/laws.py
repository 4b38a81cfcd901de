r"""Laws: what must hold between a backend's own results, whatever the values.

A law that involves the metric measures lengths and products with refgeo's geometry, so that a mistake in one function
does not accuse another; only the Koszul identity uses the backend's own inner product, which it must be compatible
with. Errors have the units of `refgeo.conformance.checks`. Laws are tried on generated points where the
factors are well conditioned, κ ≤ 10.

Derivatives are five-point differences, ``(8(f(δ) − f(−δ)) − (f(2δ) − f(−2δ))) / 12δ``: exact for polynomials of degree
four; otherwise with δ = u^{1/5}, where truncation δ⁴ and rounding u/δ are equal, their unit is u^{4/5}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refgeo.conformance.cases import METRICS, Case, InvariantLoss, horizontal_like
from refgeo.conformance.checks import GRAM_POWERS, Check, christoffel_size, gram_unit, hessian_size
from refgeo.conformance.trial import Trial
from refgeo.errors import GeodesicAccuracyError, GeodesicIncompleteError
from refgeo.pair import Array, Pair

LAWS: dict[str, Check] = {}

Law = Callable[[Trial], Any]


def law(
    function: str,
    name: str,
    statement: str,
    *,
    needs: Sequence[str] = (),
    scale: float = 1.0,
    differenced: bool = False,
    where: Callable[[Case], bool] = lambda case: True,
) -> Callable[[Law], Law]:
    """Register a law of `function`; `scale` widens its unit, `differenced` makes it that of five-point differences."""

    def register(relative_errors: Law) -> Law:
        def unit(case: Case) -> Array:
            rounding = scale * gram_unit(case, GRAM_POWERS[function])
            # u^{4/5} in place of u
            return rounding * (np.finfo(case.dtype).eps / 2) ** -0.2 if differenced else rounding

        full = f"{function}.{name}"
        LAWS[full] = Check(
            full,
            function,
            statement,
            lambda trial: np.asarray(relative_errors(trial), dtype=np.float64),
            unit,
            lambda case: case.generated and bool(np.all(case.space.gauge.condition <= 15.0)) and where(case),
            tuple(needs),
        )
        return relative_errors

    return register


# Helpers -------------------------------------------------------------------------------------------------------


def _parts(pair: Pair) -> tuple[Array, Array]:
    return pair.G, pair.H


def _combination(*terms: tuple[Any, tuple[Array, Array]]) -> tuple[Array, Array]:
    """Σ cᵢ xᵢ of results, which may contain NaN."""
    G, H = (sum(_blockwise(c) * parts[i] for c, parts in terms) for i in (0, 1))
    return G, H


def _blockwise(scalar: Any) -> Any:
    return np.asarray(scalar)[..., None, None]


def _inner(trial: Trial, parts: tuple[Array, Array], v: Pair) -> Array:
    """The right inner product of a result with a vector; infinite where the result is not finite."""
    finite = np.isfinite(trial.length(parts))
    safe = Pair._of(*(np.where(np.isfinite(part), part, 0.0) for part in parts))
    return np.where(finite, trial.space.inner_product(safe, v), np.inf)


def _group_element(trial: Trial) -> Array:
    """A fixed element of GL(h) with condition number 4, not a rotation and not symmetric."""
    h = trial.case.point.sizes[2]
    rng = trial.rng("group element")
    left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
    return np.asarray((left * np.geomspace(2.0, 0.5, h)) @ right if h > 1 else np.array([[-1.7]]))


def _third(trial: Trial) -> Pair:
    """Another tangent vector, of the size of `a`."""
    drawn = trial.space.random_tangent_vector(trial.rng("third vector"), horizontal=False)
    return trial.rounded(drawn * trial.space.norm(trial.case.a))


def _vertical(trial: Trial) -> Pair:
    h = trial.case.point.sizes[2]
    return trial.rounded(trial.space.vertical_vector(trial.rng("vertical").standard_normal((h, h))))


def _horizontal(trial: Trial, vector: str = "a") -> Pair:
    v = horizontal_like(trial.space, getattr(trial.case, vector), trial.rng(f"horizontal {vector}"))
    return trial.rounded(v)


def _moved(trial: Trial, *vectors: Pair) -> tuple[Pair, ...]:
    """The point and vectors, moved by the group element."""
    A = _group_element(trial)
    return tuple(trial.rounded(pair.transform(A)) for pair in (trial.case.point, *vectors))


def _derivative(f: Callable[[float], tuple[Array, ...]], step: float) -> tuple[Array, ...]:
    values = {factor: f(factor * step) for factor in (-2, -1, 1, 2)}
    return tuple(
        (8.0 * (values[1][i] - values[-1][i]) - (values[2][i] - values[-2][i])) / (12.0 * step)
        for i in range(len(values[1]))
    )


def _step(trial: Trial) -> float:
    return float(trial.roundoff**0.2)


def _differences(trial: Trial, results: tuple[Array, Array], others: tuple[Array, Array], size: Array) -> Array:
    return trial.length(_combination((1.0, results), (-1.0, others))) / size


# Inner product -------------------------------------------------------------------------------------------------


@law("inner_product", "symmetric", "⟨a, b⟩ = ⟨b, a⟩")
def _(trial: Trial) -> Array:
    a, b = trial.case.a, trial.case.b
    difference = trial.call("inner_product", a, b) - trial.call("inner_product", b, a)
    return np.asarray(np.abs(difference) / (trial.space.norm(a) * trial.space.norm(b)))


@law("inner_product", "bilinear", "⟨2a − 3c, b⟩ = 2⟨a, b⟩ − 3⟨c, b⟩", scale=5.0)
def _(trial: Trial) -> Array:
    a, b, c = trial.case.a, trial.case.b, _third(trial)
    together = trial.call("inner_product", trial.rounded(2 * a - 3 * c), b)
    apart = 2 * trial.call("inner_product", a, b) - 3 * trial.call("inner_product", c, b)
    return np.asarray(np.abs(together - apart) / (trial.space.norm(a) * trial.space.norm(b)))


@law("inner_product", "positive", "⟨a, a⟩ > 0 for a ≠ 0")
def _(trial: Trial) -> Array:
    return np.where(trial.call("inner_product", trial.case.a, trial.case.a) > 0, 0.0, 1.0)


@law("inner_product", "invariant", "⟨Aa, Ab⟩ at A·θ = ⟨a, b⟩ at θ for A in GL(h)", scale=16.0)
def _(trial: Trial) -> Array:
    a, b = trial.case.a, trial.case.b
    point, moved_a, moved_b = _moved(trial, a, b)
    difference = trial.call("inner_product", moved_a, moved_b, point=point) - trial.call("inner_product", a, b)
    return np.asarray(np.abs(difference) / (trial.space.norm(a) * trial.space.norm(b)))


# Projection ----------------------------------------------------------------------------------------------------


@law("horizontal_projection", "idempotent", "P(P(a)) = P(a)", scale=2.0)
def _(trial: Trial) -> Array:
    once = trial.call("horizontal_projection", trial.case.a)
    if not all(np.isfinite(part).all() for part in once):
        return np.full(trial.case.point.block_shape, np.inf)
    twice = trial.call("horizontal_projection", trial.rounded(Pair(*once)))
    return _differences(trial, twice, once, trial.space.norm(trial.case.a))


@law("horizontal_projection", "self_adjoint", "⟨P(a), b⟩ = ⟨a, P(b)⟩", scale=2.0)
def _(trial: Trial) -> Array:
    a, b = trial.case.a, trial.case.b
    one = _inner(trial, trial.call("horizontal_projection", a), b)
    other = _inner(trial, trial.call("horizontal_projection", b), a)
    return np.abs(one - other) / (trial.space.norm(a) * trial.space.norm(b))


@law("horizontal_projection", "orthogonal", "⟨P(a), (GK, −HKᵀ)⟩ = 0 for every K")
def _(trial: Trial) -> Array:
    vertical = _vertical(trial)
    product = _inner(trial, trial.call("horizontal_projection", trial.case.a), vertical)
    return np.abs(product) / (trial.space.norm(trial.case.a) * trial.space.norm(vertical))


@law("horizontal_projection", "identity_on_horizontal", "P(a) = a for horizontal a")
def _(trial: Trial) -> Array:
    a = _horizontal(trial)  # rounded to the dtype beside the vector it was projected from
    return _differences(trial, trial.call("horizontal_projection", a), _parts(a), trial.space.norm(trial.case.a))


@law("horizontal_projection", "zero_on_vertical", "P((GK, −HKᵀ)) = 0")
def _(trial: Trial) -> Array:
    vertical = _vertical(trial)
    return trial.length(trial.call("horizontal_projection", vertical)) / trial.space.norm(vertical)


@law("horizontal_projection", "equivariant", "P at A·θ of A·a = A·(P at θ of a)", scale=256.0)
def _(trial: Trial) -> Array:
    return _equivariance(trial, "horizontal_projection", (trial.case.a,), trial.space.norm(trial.case.a))


def _equivariance(
    trial: Trial, function: str, vectors: tuple[Pair, ...], size: Array, extra: tuple[Any, ...] = ()
) -> Array:
    """The length of the difference, measured at the moved point."""
    point, *moved = _moved(trial, *vectors)
    there = trial.call(function, *moved, point=point, extra=extra)
    here = trial.call(function, *vectors, extra=extra)
    A = _group_element(trial)
    carried = (here[0] @ np.linalg.inv(A), here[1] @ A.T)
    space = METRICS[trial.case.metric]().at(point)
    return trial.length(_combination((1.0, there), (-1.0, carried)), space) / size


# Riemannian gradient -------------------------------------------------------------------------------------------


def _loss(trial: Trial) -> tuple[InvariantLoss, Pair]:
    """A loss and its Euclidean gradient."""
    loss = InvariantLoss(trial.case.point, trial.rng("loss"))
    return loss, loss.gradient(trial.case.point)


@law("riemannian_gradient", "represents_the_derivative", "⟨grad f, v⟩ = Df[v], by differences of a loss", scale=10.0)
def _(trial: Trial) -> Array:
    loss, egrad = _loss(trial)
    v = trial.case.a
    # f is a polynomial of degree four along a line: the five-point difference is exact
    derivative = _derivative(lambda s: (loss.value(trial.case.point + s * v),), 0.25)[0]
    gradient = trial.call("riemannian_gradient", trial.rounded(egrad))
    size = trial.space.norm(trial.space.riemannian_gradient(egrad)) * trial.space.norm(v)
    return np.abs(_inner(trial, gradient, v) - derivative) / size


@law("riemannian_gradient", "horizontal", "the gradient of an invariant loss is horizontal")
def _(trial: Trial) -> Array:
    _, egrad = _loss(trial)
    gradient = trial.call("riemannian_gradient", trial.rounded(egrad))
    vertical = _vertical(trial)
    size = trial.space.norm(trial.space.riemannian_gradient(egrad)) * trial.space.norm(vertical)
    return np.abs(_inner(trial, gradient, vertical)) / size


@law("riemannian_gradient", "equivariant", "grad at A·θ = A·(grad at θ), for (e_G Aᵀ, e_H A⁻¹)", scale=16.0)
def _(trial: Trial) -> Array:
    A = _group_element(trial)
    e = trial.case.e
    here = trial.call("riemannian_gradient", e)
    (point,) = _moved(trial)
    there = trial.call("riemannian_gradient", trial.rounded(Pair(e.G @ A.T, e.H @ np.linalg.inv(A))), point=point)
    carried = (here[0] @ np.linalg.inv(A), here[1] @ A.T)
    space = METRICS[trial.case.metric]().at(point)
    size = trial.space.norm(trial.space.riemannian_gradient(e))
    return trial.length(_combination((1.0, there), (-1.0, carried)), space) / size


# Riemannian Hessian --------------------------------------------------------------------------------------------


def _hessian(trial: Trial, v: Pair) -> tuple[Array, Array]:
    """The backend's Hessian of the loss, along a horizontal vector."""
    loss, egrad = _loss(trial)
    ehess_v = loss.hessian(trial.case.point, v)
    result: tuple[Array, Array] = trial.call("riemannian_hessian", trial.rounded(egrad), trial.rounded(ehess_v), v)
    return result


def _hessian_size(trial: Trial, v: Pair) -> Array:
    loss, egrad = _loss(trial)
    return hessian_size(trial.space, egrad, loss.hessian(trial.case.point, v), v)


@law("riemannian_hessian", "symmetric", "⟨Hess[v], w⟩ = ⟨v, Hess[w]⟩ for horizontal v, w", scale=2.0)
def _(trial: Trial) -> Array:
    v, w = _horizontal(trial, "a"), _horizontal(trial, "b")
    one, other = _inner(trial, _hessian(trial, v), w), _inner(trial, _hessian(trial, w), v)
    size = _hessian_size(trial, v) * trial.space.norm(w) + _hessian_size(trial, w) * trial.space.norm(v)
    return np.abs(one - other) / size


@law("riemannian_hessian", "linear", "Hess[2v − 3w] = 2Hess[v] − 3Hess[w]", scale=5.0)
def _(trial: Trial) -> Array:
    v, w = _horizontal(trial, "a"), _horizontal(trial, "b")
    together = _hessian(trial, trial.rounded(2 * v - 3 * w))
    apart = _combination((2.0, _hessian(trial, v)), (-3.0, _hessian(trial, w)))
    return _differences(trial, together, apart, _hessian_size(trial, v) + _hessian_size(trial, w))


@law("riemannian_hessian", "horizontal", "Hess[v] is horizontal")
def _(trial: Trial) -> Array:
    v, vertical = _horizontal(trial), _vertical(trial)
    size = _hessian_size(trial, v) * trial.space.norm(vertical)
    return np.abs(_inner(trial, _hessian(trial, v), vertical)) / size


@law(
    "riemannian_hessian",
    "quadratic_model",
    "⟨v, Hess[v]⟩ = (f∘γ)''(0) along the geodesic, so that f + t⟨grad f, v⟩ + ½t²⟨v, Hess[v]⟩ is off by O(t³)",
    scale=10.0,
)
def _(trial: Trial) -> Array:
    v = _horizontal(trial)
    v = trial.rounded(v * (1.0 / _bend(trial, v)))
    loss, _ = _loss(trial)
    # Along the parabola of order 2 the loss is a polynomial of degree 8, for which this difference is exact.
    weights = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)
    step = 0.25
    values = {k: loss.value(trial.space.geodesic(v, k * step, 2)) for k in range(-4, 5)}
    second = sum(weights[abs(k)] * value for k, value in values.items()) / step**2
    return np.abs(_inner(trial, _hessian(trial, v), v) - second) / (_hessian_size(trial, v) * trial.space.norm(v))


# Christoffel ---------------------------------------------------------------------------------------------------


@law("christoffel", "symmetric", "Γ(a, b) = Γ(b, a)")
def _(trial: Trial) -> Array:
    a, b = trial.case.a, trial.case.b
    size = christoffel_size(trial.space, a, b)
    return _differences(trial, trial.call("christoffel", a, b), trial.call("christoffel", b, a), size)


@law("christoffel", "bilinear", "Γ(2a − 3c, b) = 2Γ(a, b) − 3Γ(c, b)", scale=5.0)
def _(trial: Trial) -> Array:
    a, b, c = trial.case.a, trial.case.b, _third(trial)
    together = trial.call("christoffel", trial.rounded(2 * a - 3 * c), b)
    apart = _combination((2.0, trial.call("christoffel", a, b)), (-3.0, trial.call("christoffel", c, b)))
    size = christoffel_size(trial.space, a, b) + christoffel_size(trial.space, c, b)
    return _differences(trial, together, apart, size)


@law("christoffel", "equivariant", "Γ at A·θ of (A·a, A·b) = A·Γ(a, b)", scale=64.0)
def _(trial: Trial) -> Array:
    a, b = trial.case.a, trial.case.b
    return _equivariance(trial, "christoffel", (a, b), christoffel_size(trial.space, a, b))


@law(
    "christoffel",
    "koszul",
    "2⟨Γ(a, b), c⟩ = D⟨b, c⟩[a] + D⟨a, c⟩[b] − D⟨a, b⟩[c], with the backend's own inner product",
    needs=("inner_product",),
    differenced=True,
    scale=10.0,
)
def _(trial: Trial) -> Array:
    a, b, c = trial.case.a, trial.case.b, _third(trial)
    step = _step(trial)

    def along(direction: Pair, x: Pair, y: Pair) -> Array:
        # a step of length δ in units in which the metric changes by its own size
        scaled = direction * (1.0 / _bend(trial, direction))

        def product(s: float) -> tuple[Array]:
            return (trial.call("inner_product", x, y, point=trial.rounded(trial.case.point + s * scaled)),)

        return _derivative(product, step)[0] * _bend(trial, direction)

    right = along(a, b, c) + along(b, a, c) - along(c, a, b)
    left = 2 * _inner(trial, trial.call("christoffel", a, b), c)
    size = _bend(trial, a) * trial.space.norm(b) + _bend(trial, b) * trial.space.norm(a)
    size = size * trial.space.norm(c) + _bend(trial, c) * trial.space.norm(a) * trial.space.norm(b)
    return np.abs(left - right) / size


def _bend(trial: Trial, v: Pair) -> Array:
    """How fast the metric changes along v: ‖Γ(v, v)‖ / ‖v‖, at least the relative speed of the factors."""
    speed = np.maximum(*(
        np.linalg.norm(velocity, axis=(-2, -1)) / np.linalg.norm(factor, axis=(-2, -1))
        for velocity, factor in zip(v, trial.case.point, strict=True)
    ))  # fmt: skip
    bend = trial.space.norm(trial.space.christoffel(v)) / trial.space.norm(v)
    return np.asarray(np.maximum(speed, bend))


# Geodesic ------------------------------------------------------------------------------------------------------


def _geodesic_law(
    order: int | str, name: str, statement: str, **options: Any
) -> Callable[[Callable[[Trial, Any], Any]], Law]:
    """A law of one order; `order` becomes part of its name."""

    def register(relative_errors: Callable[[Trial, Any], Any]) -> Law:
        if order == "exact":
            options["where"] = _is_single
        return law("geodesic", f"{name}_{order}", f"order {order}: {statement}", **options)(
            lambda trial: relative_errors(trial, order)
        )

    return register


def _is_single(case: Case) -> bool:
    """One plain block: the exact geodesic of mix has to be integrated, by a backend too, which takes its time."""
    return not case.point.block_shape and case.name.endswith("/s1,1")


def _place_size(trial: Trial) -> Array:
    return np.asarray(trial.space.norm(trial.case.point) + trial.space.norm(trial.case.a))


def _velocity(trial: Trial) -> Pair:
    """A horizontal velocity so short that no geodesic ends before t = 1."""
    return trial.rounded(_horizontal(trial) * 0.25)


for _order in (1, 2, "exact"):

    @_geodesic_law(_order, "starts_at_the_point", "γ(0) = θ")
    def _(trial: Trial, order: Any) -> Array:
        place = trial.call("geodesic", _velocity(trial), extra=(0.0, order))
        return _differences(trial, place, _parts(trial.case.point), _place_size(trial))

    @_geodesic_law(_order, "initial_velocity", "γ'(0) = v, by differences", differenced=True, scale=10.0)
    def _(trial: Trial, order: Any) -> Array:
        v = _velocity(trial)
        slope = _derivative(lambda s: trial.call("geodesic", v, extra=(s, order)), _step(trial))
        return _differences(trial, (slope[0], slope[1]), _parts(v), _place_size(trial))

    @_geodesic_law(_order, "homogeneous", "γ with velocity 2v at t/2 = γ with velocity v at t", scale=2.0)
    def _(trial: Trial, order: Any) -> Array:
        v = _velocity(trial)
        one = trial.call("geodesic", 2 * v, extra=(0.5, order))
        return _differences(trial, one, trial.call("geodesic", v, extra=(1.0, order)), _place_size(trial))

    @_geodesic_law(_order, "equivariant", "γ at A·θ with velocity A·v = A·γ", scale=64.0)
    def _(trial: Trial, order: Any) -> Array:
        return _equivariance(trial, "geodesic", (_velocity(trial),), _place_size(trial), (0.5, order))


for _order in (2, "exact"):

    @_geodesic_law(_order, "initial_acceleration", "γ''(0) = −Γ(v, v), by differences")
    def _(trial: Trial, order: Any) -> Array:
        v = _velocity(trial)
        # order 2 is a parabola, and any step is exact; else truncation δ² and rounding u/δ² are equal at δ = u^{1/4}
        step = 1.0 if order == 2 else trial.roundoff**0.25
        ahead, here, behind = (trial.call("geodesic", v, extra=(s * step, order)) for s in (1.0, 0.0, -1.0))
        bend = _combination((step**-2, ahead), (-2 * step**-2, here), (step**-2, behind))
        minus_gamma = _parts(-trial.space.christoffel(v))
        error = _differences(trial, bend, minus_gamma, _place_size(trial))
        return error if order == 2 else error * trial.roundoff**0.5 / 10.0  # in the unit of rounding


@law(
    "geodesic",
    "third_order_error",
    "order 2: the error against the exact geodesic shrinks like t³",
    where=_is_single,
)
def _(trial: Trial) -> Array:
    v = _velocity(trial)
    errors = []
    for t in (0.4, 0.2):
        try:
            exact = trial.space.geodesic(v, t, "exact")
        except (GeodesicIncompleteError, GeodesicAccuracyError):
            return np.full(trial.case.point.block_shape, np.nan)
        errors.append(trial.length(_combination((1.0, trial.call("geodesic", v, extra=(t, 2))), (-1.0, _parts(exact)))))
    floor = 100 * gram_unit(trial.case, 1) * _place_size(trial)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.log2(errors[0] / errors[1])
    # errors that are all rounding have no slope; a slope between 2.5 and 3.5 (or steeper: no error) is third order
    return np.where((errors[0] <= floor) | (slope >= 2.5), 0.0, 1.0)


@law(
    "geodesic",
    "constant_speed_exact",
    "order exact: ‖γ'(t)‖ is constant",
    differenced=True,
    scale=10.0,
    where=_is_single,
)
def _(trial: Trial) -> Array:
    return _along_exact(trial, lambda trial, v, there, moving: np.abs(there.norm(moving) - trial.space.norm(v)))


@law(
    "geodesic",
    "stays_horizontal_exact",
    "order exact: γ' stays horizontal",
    differenced=True,
    scale=10.0,
    where=_is_single,
)
def _(trial: Trial) -> Array:
    return _along_exact(trial, lambda trial, v, there, moving: there.norm(there.vertical_projection(moving)))


@law("geodesic", "conserved_momenta_exact", "order exact: the momenta of the metric are conserved",
     differenced=True, scale=10.0, where=_is_single)  # fmt: skip
def _(trial: Trial) -> Array:
    def change(trial: Trial, v: Pair, there: Any, moving: Pair) -> Array:
        before, after = trial.space.momenta(v), there.momenta(moving)
        turned = [np.linalg.norm(after[key] - before[key], axis=(-2, -1)) for key in ("rotation_G", "rotation_H")]
        return np.asarray(np.hypot(*turned) / trial.space.norm(trial.case.point))

    return _along_exact(trial, change)


def _along_exact(trial: Trial, quantity: Callable[..., Array]) -> Array:
    v, t = _velocity(trial), 0.5
    slope = _derivative(lambda s: trial.call("geodesic", v, extra=(t + s, "exact")), _step(trial))
    place = trial.call("geodesic", v, extra=(t, "exact"))
    if not all(np.isfinite(part).all() for part in (*slope, *place)):
        return np.full(trial.case.point.block_shape, np.inf)
    there = METRICS[trial.case.metric]().at(Pair(*place))
    return quantity(trial, v, there, Pair(*slope)) / _place_size(trial)
