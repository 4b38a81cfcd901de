r"""What is checked, and how large an error may be.

An error is measured in the metric itself (its length at the base point), beside the natural size of the result, and
divided by what rounding alone must be expected to do:

    ratio = error / (size · u · condition · √N),    N = (n + m) h,

u the unit roundoff of the backend's dtype. √N is the length of a vector of independent roundings. There are two
condition numbers. With κ the larger condition number of G and H,

- *attainable*: κ. A factorised implementation keeps its errors this small.
- *Gram*: an implementation that forms S = GᵀG and T = HᵀH, as the paper's formulas do, squares κ, and the Sylvester
  equation or the product of several such quantities squares it again: κ^p with p given per check.

A ratio against the Gram condition above `THRESHOLD` is wrong: no reasonable order of operations explains it. A ratio
against the attainable condition above it, only, is right but loses digits, which is a finding and not an error. A point
where the Gram condition leaves less than one digit can show neither, and does not count towards a verdict.

Lengths are computed in double precision by the factorised geometry; that affects the unit in which an error is
expressed (by rounding), never the expected value, which comes from `refgeo.exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.cases import Case
from refgeo.exact import Enclosure, ExactTangentSpace
from refgeo.metrics.pair_space import PairTangentSpace
from refgeo.pair import Array, Pair

THRESHOLD = 30.0
UNDECIDABLE = 0.1
"""A point is decisive when the tolerated relative error is below this: an error of one tenth must be seen."""


@dataclass(frozen=True)
class Check:
    """One value check.

    Attributes
    ----------
    name : str
        ``function``, or ``function_order``.
    function : str
        The backend's function.
    statement : str
        What must hold, in a line.
    vectors : str
        Which vectors of a case the function takes, in order.
    extra : tuple
        Arguments after the arrays, given the case.
    expected : callable
        Enclosures of one block, from its exact tangent space, its vectors by name, and t.
    size : callable
        The natural size of the result, per block.
    gram_power : int
        p of the module's text.
    """

    name: str
    function: str
    statement: str
    vectors: str
    extra: Callable[[Case], tuple[Any, ...]]
    expected: Callable[[ExactTangentSpace, dict[str, Pair], float], tuple[Enclosure, ...]]
    size: Callable[[PairTangentSpace, Case], Array]
    gram_power: int

    def arguments(self, case: Case, dtype: str) -> list[npt.NDArray[Any]]:
        """The arrays that the backend gets, in its dtype.

        Examples
        --------
        >>> from refgeo.conformance.cases import generated_cases
        >>> case = next(generated_cases("inv", "quick", 0, "float64"))
        >>> [array.shape for array in CHECKS["riemannian_gradient"].arguments(case, "float32")]
        [(1, 1), (1, 1), (1, 1), (1, 1)]
        """
        pairs = [case.point, *(getattr(case, vector) for vector in self.vectors)]
        return [factor.astype(dtype) for pair in pairs for factor in pair]

    def shapes(self, case: Case) -> list[tuple[int, ...]]:
        """The shapes of the backend's results."""
        if self.function == "inner_product":
            return [case.point.block_shape]
        return [case.point.G.shape, case.point.H.shape]

    def error(self, case: Case, errors: Sequence[Array]) -> Array:
        """The length of an error in the metric, per block."""
        if self.function == "inner_product":
            return np.abs(errors[0])
        return case.space.norm(Pair._of(*(np.array(error) for error in errors)))

    def unit(self, case: Case, dtype: str) -> tuple[Array, Array]:
        """Relative errors of ratio 1, per block: attainable, and with Gram matrices."""
        n, m, h = case.point.sizes
        roundoff = np.finfo(dtype).eps / 2 * np.sqrt((n + m) * h)
        condition = case.space.gauge.condition
        return roundoff * condition, roundoff * condition**self.gram_power


def _christoffel_size(space: PairTangentSpace, a: Pair, b: Pair) -> Array:
    # The terms of Γ(a, b) can cancel; those of Γ(a, a) and Γ(b, b) tell their size.
    return np.asarray(
        space.norm(space.christoffel(a, b))
        + np.sqrt(space.norm(space.christoffel(a)) * space.norm(space.christoffel(b)))
    )


def _geodesic_size(space: PairTangentSpace, case: Case, order: int) -> Array:
    size = space.norm(space.point) + case.t * space.norm(case.a)
    if order == 2:
        size = size + 0.5 * case.t**2 * _christoffel_size(space, case.a, case.a)
    return np.asarray(size)


def _geodesic_check(order: int, statement: str, gram_power: int) -> Check:
    return Check(
        name=f"geodesic_{order}",
        function="geodesic",
        statement=statement,
        vectors="a",
        extra=lambda case: (case.t, order),
        expected=lambda space, vectors, t: space.geodesic(vectors["a"], t, order),
        size=lambda space, case: _geodesic_size(space, case, order),
        gram_power=gram_power,
    )


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            name="inner_product",
            function="inner_product",
            statement="inv: tr(S⁻¹aᵀb) + tr(T⁻¹aᵀb); mix: tr(Taᵀb) + tr(Saᵀb)",
            vectors="ab",
            extra=lambda case: (),
            expected=lambda space, vectors, t: (space.inner_product(vectors["a"], vectors["b"]),),
            size=lambda space, case: space.norm(case.a) * space.norm(case.b),
            gram_power=2,
        ),
        Check(
            name="horizontal_projection",
            function="horizontal_projection",
            statement="the metric-orthogonal projection onto the complement of (GΛ, −HΛᵀ)",
            vectors="a",
            extra=lambda case: (),
            expected=lambda space, vectors, t: space.horizontal_projection(vectors["a"]),
            size=lambda space, case: space.norm(case.a),
            gram_power=4,
        ),
        Check(
            name="riemannian_gradient",
            function="riemannian_gradient",
            statement="inv: (eS, eT); mix: (eT⁻¹, eS⁻¹)",
            vectors="e",
            extra=lambda case: (),
            expected=lambda space, vectors, t: space.riemannian_gradient(vectors["e"]),
            size=lambda space, case: space.norm(space.riemannian_gradient(case.e)),
            gram_power=2,
        ),
        Check(
            name="christoffel",
            function="christoffel",
            statement="Γ(a, b) of the Levi-Civita connection, bilinear",
            vectors="ab",
            extra=lambda case: (),
            expected=lambda space, vectors, t: space.christoffel(vectors["a"], vectors["b"]),
            size=lambda space, case: _christoffel_size(space, case.a, case.b),
            gram_power=3,
        ),
        _geodesic_check(1, "θ + ta", 1),
        _geodesic_check(2, "θ + ta − ½t²Γ(a, a)", 3),
    )
}
