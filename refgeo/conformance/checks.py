r"""What a check is, how large an error may be, and the value checks.

An error is measured in the metric itself (its length at the base point), beside the natural size of the result, and
divided by what rounding alone must be expected to do:

    ratio = error / (size · u · condition · √h),

u the unit roundoff of the backend's dtype; the h×h matrices between input and result add up h roundings a number. There
are two condition numbers. With κ the larger condition number of G and H,

- *attainable*: κ. A factorised implementation keeps its errors this small.
- *Gram*: an implementation that forms S = GᵀG and T = HᵀH, as the paper's formulas do, squares κ, and the Sylvester
  equation or the product of several such quantities squares it again: κ^p with p given in `GRAM_POWERS`.

A verdict rests on *decisive* points: well conditioned, κ ≤ `WELL_CONDITIONED`, and with a Gram condition that leaves
at least one digit. There a ratio against the Gram condition above `THRESHOLD` is wrong: no reasonable order of
operations explains it. Where κ is larger, errors show what conditioning costs an implementation: a ratio against the
attainable condition above the threshold means that it is right but loses digits, which is a finding and not an error.

Lengths are computed in double precision by the factorised geometry; that affects the unit in which an error is
expressed (by rounding), never the expected value, which comes from `refgeo.exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refgeo.conformance.cases import Case, ExactBlock
from refgeo.conformance.trial import Trial
from refgeo.exact import Enclosure
from refgeo.metrics.pair_space import PairTangentSpace
from refgeo.pair import Array, Pair

THRESHOLD = 30.0
UNDECIDABLE = 0.1
"""A point is decisive when the tolerated relative error is below this: an error of one tenth must be seen."""

WELL_CONDITIONED = 15.0
"""The largest κ of a decisive point."""

GRAM_POWERS = {
    "inner_product": 2,
    "horizontal_projection": 4,
    "riemannian_gradient": 2,
    "riemannian_hessian": 4,
    "christoffel": 3,
    "geodesic": 3,
}


def gram_unit(case: Case, power: int) -> Array:
    """The relative error of ratio 1 of an operation that loses κ^power, per block.

    Examples
    --------
    >>> from refgeo.conformance.cases import generated_cases
    >>> case = generated_cases("inv", "quick", 0, "float64")[0]
    >>> bool(gram_unit(case, 2) < 1e-15)
    True
    """
    h = case.point.sizes[2]
    return np.asarray(np.finfo(case.dtype).eps / 2 * np.sqrt(h) * case.space.gauge.condition**power)


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes
    ----------
    name : str
        ``function`` or ``function_order`` for a value, ``function.law`` for a law.
    function : str
        The backend's function that is judged.
    statement : str
        What must hold, in a line.
    relative_errors : callable
        The errors of a trial beside their natural size, per block; NaN where a block could not be judged.
    unit : callable
        The relative error of ratio 1 with Gram matrices, per block of a case.
    applies : callable
        Whether a case is one for this check.
    needs : tuple of str
        Further functions of the backend that the check uses.
    """

    name: str
    function: str
    statement: str
    relative_errors: Callable[[Trial], Array]
    unit: Callable[[Case], Array]
    applies: Callable[[Case], bool] = lambda case: True
    needs: tuple[str, ...] = ()

    @property
    def is_law(self) -> bool:
        """Whether this is a law rather than a value.

        Examples
        --------
        >>> VALUES["christoffel"].is_law
        False
        """
        return "." in self.name


def can_tell(check: Check, case: Case) -> bool:
    """Whether a law can be decided on some block; a value is measured everywhere, for the digits that it keeps.

    Examples
    --------
    >>> from refgeo.conformance.cases import generated_cases
    >>> can_tell(VALUES["christoffel"], generated_cases("inv", "quick", 0, "float32")[-1])
    True
    """
    return not check.is_law or bool(np.any(THRESHOLD * check.unit(case) <= UNDECIDABLE))


Expected = Callable[[ExactBlock, float], tuple[Enclosure, ...]]


def _outside(trial: Trial, name: str, results: tuple[Array, ...], expected: Expected) -> tuple[list[Array], Array]:
    """How far results lie outside their enclosures, and which blocks have enclosures."""
    errors = [np.zeros_like(result) for result in results]
    enclosed = np.ones(trial.case.point.block_shape, dtype=bool)
    for block, exact in trial.case.exact_blocks.items():
        enclosures = exact.enclosures(name, lambda exact: expected(exact, trial.case.t))
        if enclosures is None:
            enclosed[block] = False
            continue
        for error, result, enclosure in zip(errors, results, enclosures, strict=True):
            difference = result[block] - enclosure.mid
            # Only what certainly lies outside counts; NaN stays NaN.
            error[block] = np.sign(difference) * np.maximum(np.abs(difference) - enclosure.rad, 0.0)
    return errors, enclosed


def _value(
    name: str,
    function: str,
    statement: str,
    expected: Expected,
    size: Callable[[PairTangentSpace, Case], Array],
    order: int | str | None = None,
) -> Check:
    def relative_errors(trial: Trial) -> Array:
        case = trial.case
        extra = () if order is None else (case.t, order)
        result = trial.call(function, *case.vectors(function), extra=extra)
        results = result if isinstance(result, tuple) else (result,)
        errors, enclosed = _outside(trial, name, results, expected)
        if function == "inner_product":
            length = np.where(np.isfinite(errors[0]), np.abs(errors[0]), np.inf)
        else:
            length = trial.length((errors[0], errors[1]))
        return np.where(enclosed, length / size(case.space, case), np.nan)

    power = 1 if order == 1 else GRAM_POWERS[function]
    return Check(name, function, statement, relative_errors, lambda case: gram_unit(case, power))


def christoffel_size(space: PairTangentSpace, a: Pair, b: Pair) -> Array:
    r"""The natural size of Γ(a, b): a bound for the length of each of its terms, which can cancel.

    In inv a term is like :math:`a_G S^{-1} b_G^\top G`, no longer than ‖a‖ times the relative speed
    :math:`‖b_G S^{-½}‖_F` of the factor; in mix like :math:`a_G b_H^\top H T^{-1}`, no longer than
    :math:`‖a_G T^{½}‖ ‖b_H T^{-½}‖`. So both are ‖a‖ times the relative speed of b, or the reverse.

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.InvariantMetric().at(Pair([[1.0]], [[1.0]]))
    >>> float(christoffel_size(space, space.point, space.point).round(12))
    4.0
    """
    return np.asarray(space.norm(a) * relative_speed(space, b) + space.norm(b) * relative_speed(space, a))


def relative_speed(space: PairTangentSpace, v: Pair) -> Array:
    r"""How fast the factors change beside themselves: :math:`(‖v_G S^{-½}‖_F^2 + ‖v_H T^{-½}‖_F^2)^{½}`.

    Examples
    --------
    >>> import refgeo as rg
    >>> float(relative_speed(rg.MixedMetric().at(Pair([[2.0]], [[5.0]])), Pair([[6.0]], [[20.0]])).round(12))
    5.0
    """
    gauge = space.gauge
    return np.asarray(
        np.hypot(np.linalg.norm(v.G @ gauge.white_G, axis=(-2, -1)), np.linalg.norm(v.H @ gauge.white_H, axis=(-2, -1)))
    )


def hessian_size(space: PairTangentSpace, e: Pair, w: Pair, v: Pair) -> Array:
    """The natural size of Hess f[v]: of g⁻¹w, of e D(g⁻¹)[v], which is like twice Γ(grad f, v), and of Γ itself.

    Examples
    --------
    >>> import refgeo as rg
    >>> one = Pair([[1.0]], [[1.0]])
    >>> float(hessian_size(rg.InvariantMetric().at(one), one, one, one).round(12))
    13.414213562373
    """
    gradient = space.riemannian_gradient(e)
    return np.asarray(space.norm(space.riemannian_gradient(w)) + 3 * christoffel_size(space, gradient, v))


def _geodesic_size(space: PairTangentSpace, case: Case, order: int | str) -> Array:
    t = np.abs(np.float64(case.t))  # which overflows to infinity
    size = space.norm(space.point) + t * space.norm(case.a)
    if order != 1:
        size = size + 0.5 * t**2 * christoffel_size(space, case.a, case.a)
    return np.asarray(size)


def _geodesic_value(order: int | str, statement: str) -> Check:
    return _value(
        f"geodesic_{order}",
        "geodesic",
        statement,
        lambda exact, t: exact.space.geodesic(exact.vectors("geodesic")[0], t, order),
        lambda space, case: _geodesic_size(space, case, order),
        order,
    )


VALUES: dict[str, Check] = {
    check.name: check
    for check in (
        _value(
            "inner_product",
            "inner_product",
            "inv: tr(S⁻¹ a_Gᵀb_G) + tr(T⁻¹ a_Hᵀb_H); mix: tr(T a_Gᵀb_G) + tr(S a_Hᵀb_H)",
            lambda exact, t: (exact.space.inner_product(*exact.vectors("inner_product")),),
            lambda space, case: space.norm(case.a) * space.norm(case.b),
        ),
        _value(
            "horizontal_projection",
            "horizontal_projection",
            "the metric-orthogonal projection onto the complement of (GΛ, −HΛᵀ)",
            lambda exact, t: exact.space.horizontal_projection(*exact.vectors("horizontal_projection")),
            lambda space, case: space.norm(case.a),
        ),
        _value(
            "riemannian_gradient",
            "riemannian_gradient",
            "inv: (e_G S, e_H T); mix: (e_G T⁻¹, e_H S⁻¹)",
            lambda exact, t: exact.space.riemannian_gradient(*exact.vectors("riemannian_gradient")),
            lambda space, case: space.norm(space.riemannian_gradient(case.e)),
        ),
        _value(
            "riemannian_hessian",
            "riemannian_hessian",
            "the horizontal part of D grad f[v] + Γ(grad f, v)",
            lambda exact, t: exact.space.riemannian_hessian(*exact.vectors("riemannian_hessian")),
            lambda space, case: hessian_size(space, *case.hessian),
        ),
        _value(
            "christoffel",
            "christoffel",
            "Γ(a, b) of the Levi-Civita connection, bilinear",
            lambda exact, t: exact.space.christoffel(*exact.vectors("christoffel")),
            lambda space, case: christoffel_size(space, case.a, case.b),
        ),
        _geodesic_value(1, "θ + ta"),
        _geodesic_value(2, "θ + ta − ½t²Γ(a, a)"),
    )
}

EXACT_GEODESIC = _geodesic_value("exact", "the geodesic with velocity a at time t")
"""For single results only (`refgeo.testing.assert_matches`): there is a closed form for inv alone."""
