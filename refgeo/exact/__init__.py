r"""The geometry in ball arithmetic (python-flint, Arb): rigorous enclosures, the final judge.

Inputs are doubles, taken exactly. Every quantity comes as a ball that certainly contains the exact value, computed at
a working precision that doubles until the ball is far narrower than a double's rounding; the returned `Enclosure` then
rounds the midpoint to double and widens the radius by that rounding. A ball that stays too wide raises
`EnclosureError` and is never returned.

The base point is first divided by powers of two, exactly, so that its entries are of order one: (αG, βH) is a homothety
of both metrics, under which tangent vectors scale like the point, covectors by (α⁻¹, β⁻¹), and ε as α² and β².

The formulas are the literal ones (Gram matrices included): with enough bits their loss of digits does not matter, and
they share nothing with the factorised route of the rest of the package. With M the metric's weights and M' their
derivatives, Koszul's formula for tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H) reads

    Γ(a, b)_G = {½(b_G M_G'[a] + a_G M_G'[b]) − G W_G} M_G⁻¹,    W_G = M'_G with ½(a_Gᵀb_G + b_Gᵀa_G) for Ṡ, alike Ṫ.

**Between inv and mix** M_G = S⁻¹ #ₛ T needs the eigenvalues σ² and eigenvectors of S T in balls (Arb's certified ones):
A with A⁻ᵀSA⁻¹ = ATAᵀ = Σ gives M_G = A⁻¹Σ²ˢ⁻¹A⁻ᵀ, and there M' multiplies entry by entry with the divided
differences of x ↦ xˢ and xˢ⁻¹ at σ². Points where singular values of G Hᵀ coincide are refused for 0 < s < 1.

**The Sylvester equation, certified.** The vertical part of v minimises the distance to v, so its Λ solves the normal
equations of the vertical space,

    N(Λ) = M₁ Λ M₂ + M₃ Λ M₄ = R,    all Mᵢ symmetric positive definite:
    (M₁, M₂, M₃, M₄) = (S, M_G, M_H, T),    R = M_H v_HᵀH − Gᵀv_G M_G,
    inv: M_G = S_ε⁻¹, M_H = T_ε⁻¹           mix: M_G = T_ε, M_H = S_ε

which for inv is the paper's Sylvester equation multiplied by T_ε⁻¹ and S_ε⁻¹, without its loss of symmetry. Let L and
K be *any* double matrices that nearly diagonalise the pairs (M₁, M₃) and (M₂, M₄): LᵀM₁L = D₁^½(I + E₁)D₁^½, and so on
for M₂, M₃, M₄ with diagonals D₂, D₃, D₄. With Λ = L Y Kᵀ the operator becomes Y ↦ M̃₁YM̃₂ + M̃₃YM̃₄, close to the
diagonal N₀ = d₁ᵢd₂ⱼ + d₃ᵢd₄ⱼ. If ‖Eᵢ‖ ≤ δ for all four, Kronecker products of Loewner-ordered matrices give

    (1 − δ)² N₀ ≤ N ≤ (1 + δ)² N₀,

so the iteration Y ← Y + N₀⁻¹(R̃ − N(Y)) converges like (2δ + δ²)ᵏ, and any Y whatever is within

    |Y − Y*|_ij ≤ ‖R̃ − N(Y)‖_{N₀⁻¹} / ((1 − δ)² √N₀_ij)

of the solution Y*: a certificate that needs one residual, evaluated in balls, and no system of size h².

Examples
--------
>>> import numpy as np
>>> space = ExactTangentSpace("inv", np.array([[2.0]]), np.array([[3.0]]))
>>> G, H = space.horizontal_projection((np.array([[2.0]]), np.array([[0.0]])))
>>> G.mid.item(), H.mid.item(), bool(H.rad.item() < 1e-15)
(1.0, 1.5, True)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import flint
import numpy as np
import scipy  # whose modules load where they are used
from flint import acb_mat, arb, arb_mat

from refgeo.exact.flow import NARROW as FLOW_NARROW
from refgeo.exact.flow import FlowError, flow, identity
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import ENDS, Array, number, one_of, order_of

INITIAL_BITS = 128
MAXIMUM_BITS = 3072
NARROW = 2.0**-80
"""A ball is narrow enough when its radius is at most this fraction of the largest entry it is judged beside."""

Vector = Sequence[Array] | Pair


class EnclosureError(ArithmeticError):
    """No enclosure narrow enough to judge with was found; the value must not be used."""


@dataclass(frozen=True)
class Enclosure:
    """``|exact - mid| <= rad``, entry by entry, rigorously.

    Attributes
    ----------
    mid, rad : ndarray of float64, of the same shape
    ball : arb_mat, optional
        The narrower ball that they were rounded from.
    """

    mid: Array
    rad: Array
    ball: arb_mat = field(repr=False, compare=False)

    def decimals(self, digits: int = 30) -> tuple[Any, Any]:
        """Midpoints and radii as nested lists of decimal numbers in text; they enclose the exact value, too.

        Examples
        --------
        >>> third = ExactTangentSpace("inv", np.array([[3.0]]), np.array([[1.0]]))
        >>> third.christoffel((np.ones((1, 1)), np.zeros((1, 1))))[0].decimals(25)[0]
        [['-0.3333333333333333333333333']]
        """
        texts = [entry.str(digits).strip("[]").split("+/-") for entry in self.ball.entries()]
        mids, rads = (
            np.array([parts[i].strip() or "0" if i < len(parts) else "0" for parts in texts], dtype=object)
            for i in (0, 1)
        )
        shape = self.mid.shape
        return mids.reshape(shape).tolist(), rads.reshape(shape).tolist()


class ExactTangentSpace:
    r"""Enclosures at one base point: one block, two-dimensional factors.

    Parameters
    ----------
    metric : "inv", "mix", or s between 0 and 1 for S⁻¹ #ₛ T
    G : ndarray, shape (n, h)
    H : ndarray, shape (m, h)
    relaxation : float
        ε of App. H.2.
    max_bits : int
        Give up (`EnclosureError`) when this working precision does not suffice.
    least_bits : int
        Begin with this working precision, for more digits than a judge of doubles needs.

    Notes
    -----
    Vectors are pairs of arrays. A space is cheap to keep: Gram matrices and their inverses are computed once a
    precision. The precision of python-flint is global to the process, so spaces must not be used from several threads
    at once.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones((1, 1))
    >>> space = ExactTangentSpace("mix", 2 * one, 3 * one)
    >>> space.inner_product((one, one), (one, one)).mid.item()
    13.0
    """

    def __init__(
        self,
        metric: str | float,
        G: Array,
        H: Array,
        relaxation: float = 0.0,
        max_bits: int = MAXIMUM_BITS,
        least_bits: int = INITIAL_BITS,
    ) -> None:
        if isinstance(metric, str):
            metric = ENDS[one_of("metric", metric, ENDS)]
        point = Pair(G, H)
        if point.block_shape:
            raise ValueError(f"G, H: expected one block (two dimensions), got shape {point.G.shape}; loop over blocks")
        self.s, self.point = number("metric", metric, "s", least=0.0, most=1.0), point
        self.least_bits, self.max_bits = least_bits, max_bits
        self.relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
        self._exponents = tuple(int(np.frexp(np.abs(factor).max())[1]) for factor in point)
        self._ball_points: dict[int, _BallPoint] = {}

    def inner_product(self, a: Vector, b: Vector) -> Enclosure:
        """tr(S_ε⁻¹ a_Gᵀb_G) + tr(T_ε⁻¹ a_Hᵀb_H), or with T_ε and S_ε for mix; a 0-dimensional `Enclosure`.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 4 * one).inner_product((one, one), (one, one)).mid.item()
        0.3125
        """

        def compute(point: _BallPoint) -> list[arb_mat]:
            return [arb_mat([[self._metric_scale() * point.inner_product(self._balls(a), self._balls(b))]])]

        def size(point: _BallPoint) -> list[float]:
            # Cancellation can make the value tiny; its natural size is that of the two lengths.
            squares = [point.inner_product(self._balls(vector), self._balls(vector)) for vector in (a, b)]
            return [float((squares[0] * squares[1]).abs_upper().sqrt() * self._metric_scale())]

        enclosure = self._enclose(compute, size)[0]
        return Enclosure(enclosure.mid[0, 0], enclosure.rad[0, 0], enclosure.ball)

    def horizontal_projection(self, v: Vector) -> tuple[Enclosure, Enclosure]:
        """(v_G + GΛ, v_H − HΛᵀ), Λ from the certified normal equations of the module's text.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("mix", 2 * one, 3 * one).horizontal_projection((2 * one, 0 * one))[1].mid.item()
        1.5
        """

        def compute(point: _BallPoint) -> list[arb_mat]:
            v_G, v_H = self._balls(v)
            L = point.vertical_coefficients(v_G, v_H)
            return self._moved_back([v_G + point.G * L, v_H - point.H * L.transpose()])

        return self._enclose_pair(compute, v)

    def riemannian_gradient(self, e: Vector) -> tuple[Enclosure, Enclosure]:
        """(e_G S_ε, e_H T_ε) for inv, (e_G T_ε⁻¹, e_H S_ε⁻¹) for mix.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("mix", 2 * one, 4 * one).riemannian_gradient((one, one))[0].mid.item()
        0.0625
        """

        def compute(point: _BallPoint) -> list[arb_mat]:
            return self._moved_back(point.raised(self._covector_balls(e)))

        return self._enclose_pair(compute, e)

    def riemannian_hessian(self, e: Vector, w: Vector, v: Vector) -> tuple[Enclosure, Enclosure]:
        """P(D grad f[v] + Γ(grad f, v)) from the Euclidean gradient e and the Euclidean Hessian w applied to v.

        With g⁻¹ the inverse metric, grad f = e g⁻¹ and D grad f[v] = w g⁻¹ + e D(g⁻¹)[v].

        Examples
        --------
        The loss ½(GH)² of two numbers, along (G, H), of length √2: twice 4(GH)².

        >>> g, h = 2 * np.ones((1, 1)), 3 * np.ones((1, 1))
        >>> e, w = (g * h**2, g**2 * h), (3 * g * h**2, 3 * g**2 * h)
        >>> space = ExactTangentSpace("inv", g, h)
        >>> [part.mid.item() for part in space.riemannian_hessian(e, w, (g, h))]
        [288.0, 432.0]
        """

        def compute(point: _BallPoint) -> list[arb_mat]:
            egrad, direction = self._covector_balls(e), self._balls(v)
            gradient = point.raised(egrad)
            covariant_G, covariant_H = (
                w_part * inverse + x * change + bend
                for w_part, inverse, x, change, bend in zip(
                    self._covector_balls(w),
                    point.inverse_weights,
                    egrad,
                    point.inverse_weights_derivative(direction),
                    point.christoffel(gradient, direction),
                    strict=True,
                )
            )
            L = point.vertical_coefficients(covariant_G, covariant_H)
            return self._moved_back([covariant_G + point.G * L, covariant_H - point.H * L.transpose()])

        return self._enclose_pair(compute, tuple(0.0 * factor for factor in self.point))

    def christoffel(self, a: Vector, b: Vector | None = None) -> tuple[Enclosure, Enclosure]:
        """Γ(a, b), Eq. (11) and (12) polarised.

        Examples
        --------
        >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 3 * one).christoffel((one, zero))[0].mid.item()
        -0.5
        """
        other = a if b is None else b

        def compute(point: _BallPoint) -> list[arb_mat]:
            return self._moved_back(point.christoffel(self._balls(a), self._balls(other)))

        return self._enclose_pair(compute, a)

    def christoffel_adjoint(self, a: Vector, e: Vector) -> tuple[Enclosure, Enclosure]:
        """Γ(a, ·)* e in the Euclidean pairing.

        Examples
        --------
        >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 3 * one).christoffel_adjoint((one, zero), (4 * one, zero))[0].mid.item()
        -2.0
        """

        def compute(point: _BallPoint) -> list[arb_mat]:
            return self._covectors_back(point.christoffel_adjoint(self._balls(a), self._covector_balls(e)))

        return self._enclose_pair(compute, e)

    def geodesic(self, v: Vector, t: float = 1.0, order: object = 2) -> tuple[Enclosure, Enclosure]:
        r"""γ(t): order 1, 2, or "exact".

        Exact, inv: :math:`e^{tΩ}Ge^{tP^\top}` with :math:`Ω[G\,ξ] = [G\,ξ]K`,
        :math:`K = [[-S^{-1}ξ^\top G, -S^{-1}ξ^\top ξ], [I, S^{-1}G^\top ξ]]`, so that
        :math:`e^{tΩ}G = [G\,ξ]\,e^{tK}[I\,0]^\top`: no orthonormal basis, only a 2h×2h exponential.
        Exact, mix with h = 1: a straight line in an unrolled cone (`_cone_geodesic`). Otherwise, a validated
        integration, `refgeo.exact_flow`.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 3 * one).geodesic((one, one), 1.0, order="exact")[0].mid.item()
        3.2974425414002564
        """
        order = order_of(order)

        def compute(point: _BallPoint) -> list[arb_mat]:
            time, velocity = arb(float(t)), self._balls(v)
            if order == "exact":
                return self._moved_back(self._exact(point, velocity, time))
            moved = [factor + time * step for factor, step in zip((point.G, point.H), velocity, strict=True)]
            if order == 2:
                curvature = point.christoffel(velocity, velocity)
                moved = [place - (time * time / 2) * bend for place, bend in zip(moved, curvature, strict=True)]
            return self._moved_back(moved)

        # An exact geodesic can shrink by any factor; the other orders are sums beside the point.
        closed = order == "exact" and self._is_closed
        beside = tuple(0.0 * factor for factor in self.point) if closed else self.point
        return self._enclose_pair(compute, beside, FLOW_NARROW if order == "exact" and not closed else None)

    @property
    def _is_closed(self) -> bool:
        """Whether exact geodesics have a closed form that is known to hold for any velocity."""
        return self.relaxation == 0.0 and (self.s == 0.0 or self.point.sizes[2] == 1)

    def _exact(self, point: _BallPoint, velocity: list[arb_mat], time: arb) -> list[arb_mat]:
        factors = (point.G, point.H)
        if not self._is_closed:
            if self.s not in (0.0, 1.0):
                raise EnclosureError(
                    "for a metric between inv and mix, refgeo can enclose exact geodesics only if h = 1"
                )
            return flow("mix" if self.s else "inv", factors, velocity, point.epsilons, time)
        if self.s > 0.0:
            return _cone_geodesic(factors, velocity, time, arb(self.s))
        return [_exact_geodesic(F, W, x, time) for F, W, x in zip(factors, point.weights, velocity, strict=True)]

    def _scaled(self, parts: Sequence[arb_mat], sign: int) -> list[arb_mat]:
        """Parts multiplied by 2 to the ±exponents of the point: exact."""
        return [part * arb(2) ** (sign * p) for part, p in zip(parts, self._exponents, strict=True)]

    def _moved_back(self, parts: Sequence[arb_mat]) -> list[arb_mat]:
        """Tangent vectors or points of the scaled geometry in the original one."""
        return self._scaled(parts, 1)

    def _metric_scale(self) -> arb:
        """⟨a, b⟩ beside the inner product of the scaled vectors at the scaled point."""
        return arb(2) ** (2 * arb(self.s) * sum(self._exponents))

    def _covector_balls(self, e: Vector) -> list[arb_mat]:
        scale = 1 / self._metric_scale()
        return [part * scale for part in self._scaled(_balls(self._checked(e)), 1)]

    def _covectors_back(self, parts: Sequence[arb_mat]) -> list[arb_mat]:
        scale = self._metric_scale()
        return [part * scale for part in self._scaled(parts, -1)]

    def _balls(self, vector: Vector) -> list[arb_mat]:
        """The vector in balls, scaled like the point."""
        return self._scaled(_balls(self._checked(vector)), -1)

    def _checked(self, vector: Vector) -> Pair:
        return self.point.fitting("vector", vector if isinstance(vector, Pair) else Pair(*vector))

    def _formulas(self) -> type[_BallPoint]:
        return _BallPoint

    def _ball_point(self, bits: int) -> _BallPoint:
        if bits not in self._ball_points:
            self._ball_points[bits] = self._formulas()(self.s, self.point, self.relaxation, self._exponents)
        return self._ball_points[bits]

    def _enclose_pair(
        self, compute: Callable[[_BallPoint], list[arb_mat]], beside: Vector, narrow: float | None = None
    ) -> tuple[Enclosure, Enclosure]:
        sizes = [float(np.abs(factor).max()) for factor in beside]
        first, second = self._enclose(compute, lambda point: sizes, narrow)
        return first, second

    def _enclose(
        self,
        compute: Callable[[_BallPoint], list[arb_mat]],
        sizes: Callable[[_BallPoint], list[float]],
        narrow: float | None = None,
    ) -> list[Enclosure]:
        """Run `compute` at doubling precision until every ball is narrow beside its entries or beside `sizes`."""
        bits, trouble = self.least_bits, ""
        while bits <= self.max_bits:
            with _precision(bits), _threads(self.point.G.size):
                try:
                    point = self._ball_point(bits)
                    balls = compute(point)
                    results = [_read(ball) for ball in balls]
                    beside = sizes(point)
                except FlowError as error:
                    raise EnclosureError(str(error)) from error
                except (ZeroDivisionError, EnclosureError) as error:
                    trouble = str(error) or type(error).__name__
                else:
                    if all(
                        np.isfinite(mid).all() and rad.max() <= (narrow or NARROW) * max(np.abs(mid).max(), size)
                        for (mid, rad), size in zip(results, beside, strict=True)
                    ):
                        return [_rounded(*result, ball) for result, ball in zip(results, balls, strict=True)]
                    trouble = "the balls are too wide"
            bits *= 2
        raise EnclosureError(f"no usable enclosure with up to {self.max_bits} bits: {trouble}")


class _BallPoint:
    """The base point in balls at the current working precision, and the metric's formulas there."""

    def __init__(self, s: float, point: Pair, relaxation: float, exponents: Sequence[int]) -> None:
        self.s = s
        self.point = Pair(*(np.ldexp(factor, -p) for factor, p in zip(point, exponents, strict=True)))
        self.G, self.H = (ball * arb(2) ** -p for ball, p in zip(_balls(point), exponents, strict=True))
        h = point.sizes[2]
        self.epsilons = tuple(arb(relaxation) * arb(2) ** (-2 * p) for p in exponents)
        shifts = [epsilon * identity(h) for epsilon in self.epsilons]
        self.S, self.T = self.G.transpose() * self.G, self.H.transpose() * self.H
        self.S_eps, self.T_eps = self.S + shifts[0], self.T + shifts[1]

    @cached_property
    def inverses(self) -> tuple[arb_mat, arb_mat]:
        """S_ε⁻¹ and T_ε⁻¹; ZeroDivisionError when the precision does not separate them from singular."""
        return self.S_eps.inv(), self.T_eps.inv()

    @cached_property
    def gauge(self) -> _BallGauge:
        """Only between inv and mix."""
        return _BallGauge.of(self.S_eps, self.T_eps)

    @cached_property
    def weights(self) -> tuple[arb_mat, arb_mat]:
        """The metric tensor of the G and of the H part."""
        if self.s in (0.0, 1.0):
            return (self.T_eps, self.S_eps) if self.s else self.inverses
        power = self.gauge.power(2 * arb(self.s) - 1)
        return self.gauge.carried(power, power)

    @cached_property
    def inverse_weights(self) -> tuple[arb_mat, arb_mat]:
        if self.s in (0.0, 1.0):
            return (self.inverses[1], self.inverses[0]) if self.s else (self.S_eps, self.T_eps)
        power = self.gauge.power(1 - 2 * arb(self.s))
        to_H, to_G = self.gauge.carried(power, power)
        return to_G, to_H

    def inner_product(self, a: Sequence[arb_mat], b: Sequence[arb_mat]) -> arb:
        total = arb(0)
        for weight, first, second in zip(self.weights, a, b, strict=True):
            total += (weight * (first.transpose() * second)).trace()
        return total

    def raised(self, e: Sequence[arb_mat]) -> list[arb_mat]:
        return [x * inverse for x, inverse in zip(e, self.inverse_weights, strict=True)]

    def weights_derivative(self, S_dot: arb_mat, T_dot: arb_mat) -> tuple[arb_mat, arb_mat]:
        """The derivative of `weights` when S and T change."""
        if self.s == 1.0:
            return T_dot, S_dot
        if self.s == 0.0:
            S_inverse, T_inverse = self.inverses
            return -(S_inverse * S_dot * S_inverse), -(T_inverse * T_dot * T_inverse)
        return self.gauge.mean_derivative(arb(self.s), S_dot, T_dot)

    def weights_along(self, v: Sequence[arb_mat]) -> tuple[arb_mat, arb_mat]:
        S_dot, T_dot = (_symmetric_sum(x.transpose() * F) for x, F in zip(v, (self.G, self.H), strict=True))
        return self.weights_derivative(S_dot, T_dot)

    def inverse_weights_derivative(self, v: Sequence[arb_mat]) -> list[arb_mat]:
        return [-(M * change * M) for M, change in zip(self.inverse_weights, self.weights_along(v), strict=True)]

    def christoffel(self, a: Sequence[arb_mat], b: Sequence[arb_mat]) -> list[arb_mat]:
        half = arb(1) / 2
        between = self.weights_derivative(
            *(_symmetric_sum(x.transpose() * z) * half for x, z in zip(a, b, strict=True))
        )
        return [
            z * (along_a * inverse * half) + x * (along_b * inverse * half) - F * (W * inverse)
            for F, x, z, along_a, along_b, W, inverse in zip(
                (self.G, self.H), a, b, self.weights_along(a), self.weights_along(b), between, self.inverse_weights,
                strict=True,
            )
        ]  # fmt: skip

    def christoffel_adjoint(self, a: Sequence[arb_mat], e: Sequence[arb_mat]) -> list[arb_mat]:
        """Γ(a, ·)* e: the map (Ṡ, Ṫ) ↦ (M_G', M_H') is its own adjoint in tr(M_G'X) + tr(M_H'Y)."""
        half = arb(1) / 2
        raised = self.raised(e)
        small = [_symmetric_sum(f.transpose() * x) * half for f, x in zip(raised, a, strict=True)]
        beside = [_symmetric_sum(f.transpose() * F) * half for f, F in zip(raised, (self.G, self.H), strict=True)]
        bends, falls = self.weights_derivative(*small), self.weights_derivative(*beside)
        return [
            f * (along * half) + F * bend - x * fall
            for F, x, f, along, bend, fall in zip(
                (self.G, self.H), a, raised, self.weights_along(a), bends, falls, strict=True
            )
        ]

    def vertical_coefficients(self, v_G: arb_mat, v_H: arb_mat) -> arb_mat:
        """Λ of the horizontal projection, by the certified iteration of the module's text."""
        weight_G, weight_H = self.weights
        right_side = weight_H * (v_H.transpose() * self.H) - (self.G.transpose() * v_G) * weight_G
        operators, L, K, diagonal, delta = self._nearly_diagonal
        M1, M2, M3, M4 = operators
        target = L.transpose() * right_side * K
        h = target.nrows()
        inverse_diagonal = (1.0 / diagonal).ravel().tolist()

        def residual(Y: arb_mat) -> arb_mat:
            return target - (M1 * Y * M2 + M3 * Y * M4)

        def step(R: arb_mat) -> arb_mat:
            return arb_mat(h, h, [r * arb(d) for r, d in zip(R.entries(), inverse_diagonal, strict=True)])

        Y = arb_mat(h, h)
        for _ in range(_iterations((1.0 + delta) ** 2 - 1.0)):
            Y = (Y + step(residual(Y))).mid()
        # inverse_diagonal is a rounded double; 1 + 2⁻⁵⁰ makes it an upper bound
        upper = [arb(d) * (1 + arb(2) ** -50) for d in inverse_diagonal]
        weighted = arb(0)
        for r, d in zip(residual(Y).entries(), upper, strict=True):
            weighted += r * r * d
        radius = weighted.abs_upper().sqrt() / (1 - arb(delta)) ** 2
        corrected = [y + arb(0, (radius * d.sqrt()).abs_upper()) for y, d in zip(Y.entries(), upper, strict=True)]
        return L * arb_mat(h, h, corrected) * K.transpose()

    @cached_property
    def _nearly_diagonal(self) -> tuple[list[arb_mat], arb_mat, arb_mat, Array, float]:
        """M̃₁..M̃₄ in the bases L and K, those bases, the diagonal N₀ (as doubles), and a bound δ on all ‖Eᵢ‖."""
        left, right = self._diagonalising_bases()
        L, K = _ball(left), _ball(right)
        weight_G, weight_H = self.weights
        operators = (self.S, weight_G, weight_H, self.T)
        transformed, diagonals, delta = [], [], arb(0)
        for operator, basis in zip(operators, (L, K, L, K), strict=True):
            matrix = basis.transpose() * operator * basis
            h = matrix.nrows()
            diagonal = np.array([float(matrix[i, i].mid()) for i in range(h)])
            if not (np.isfinite(diagonal).all() and (diagonal > 0).all()):
                raise EnclosureError("the approximate diagonalisation is not positive")
            roots = [arb(d).sqrt() for d in diagonal.tolist()]
            squares = arb(0)
            for i in range(h):
                for j in range(h):
                    entry = matrix[i, j] / (roots[i] * roots[j]) - (1 if i == j else 0)
                    squares += entry * entry
            delta = delta.max(squares.abs_upper().sqrt().abs_upper())
            transformed.append(matrix)
            diagonals.append(diagonal)
        bound = float(delta.abs_upper()) * (1 + 2.0**-50)
        if not bound < 0.4:  # (1 + 0.4)² − 1 < 1: beyond it the iteration need not converge
            raise EnclosureError(
                "the factors are too ill-conditioned to solve the Sylvester equation with proved bounds"
            )
        d1, d2, d3, d4 = diagonals
        with np.errstate(over="ignore", under="ignore"):
            N0 = np.outer(d1, d2) + np.outer(d3, d4)
        if not (N0.min() > 1e-280 and N0.max() < 1e280):
            raise EnclosureError(
                "the numbers in G and H are too large or too small for double precision; multiply G and H by other "
                "numbers"
            )
        # A rounded N₀ is as good as the exact one with the relative difference put into δ.
        return transformed, L, K, N0, bound + 2.0**-50

    def _diagonalising_bases(self) -> tuple[Array, Array]:
        """Double matrices L, K that nearly diagonalise (M₁, M₃) and (M₂, M₄); their errors cost time, never truth."""
        G, H = self.point
        if self.s == 1.0:
            # (S, S_ε) and (T_ε, T) are diagonal in the right singular vectors of G and H.
            return _right_singular_vectors(G), _right_singular_vectors(H)
        if self.s > 0.0:
            middles = [_read(matrix)[0] for matrix in (self.S, *self.weights, self.T)]
            pairs = [(middles[0], middles[2]), (middles[3], middles[1])]
            try:
                left, right = (scipy.linalg.eigh(0.5 * (a + a.T), 0.5 * (b + b.T))[1] for a, b in pairs)
            except np.linalg.LinAlgError:
                raise EnclosureError(
                    "the factors are too ill-conditioned to solve the Sylvester equation with proved bounds"
                ) from None
            return left, right
        shifts = [np.sqrt(float(epsilon)) * np.eye(self.S.nrows()) for epsilon in self.epsilons]
        (_, R_G), (_, R_H) = np.linalg.qr(G), np.linalg.qr(H)
        (_, relaxed_G), (_, relaxed_H) = (
            np.linalg.qr(np.vstack([factor, shift])) for factor, shift in zip((G, H), shifts, strict=True)
        )
        # With U Σ Vᵀ = R_G R_H,εᵀ and L = R_H,εᵀ V: LᵀT_ε⁻¹L = I and LᵀSL = Σ². K alike, with the roles exchanged.
        left = relaxed_H.T @ _right_singular_vectors(R_G @ relaxed_H.T)
        right = relaxed_G.T @ _right_singular_vectors(R_H @ relaxed_G.T)
        return left, right


@dataclass(frozen=True)
class _BallGauge:
    """A with A⁻ᵀSA⁻¹ = ATAᵀ = Σ, its inverse, and σ²."""

    A: arb_mat
    inverse: arb_mat
    squares: list[arb]

    @classmethod
    def of(cls, S: arb_mat, T: arb_mat) -> _BallGauge:
        """From S T = AᵀΣ²A⁻ᵀ, whose eigenvalues are real and whose eigenvectors may be taken so."""
        try:
            values, vectors = acb_mat(S * T).eig(right=True)
        except ValueError as error:
            raise EnclosureError(
                "for a metric between inv and mix, the singular values of G Hᵀ must differ, and refgeo cannot "
                "prove this"
            ) from error
        W, squares = vectors.real, [value.real for value in values]
        if not all(square > 0 for square in squares):
            raise EnclosureError(
                "refgeo cannot prove that the eigenvalues of S T are positive, where S = GᵀG and T = HᵀH"
            )
        h = S.nrows()
        lengths = [(W.transpose() * T * W)[i, i] for i in range(h)]
        A = (
            W * _diagonal([(x.sqrt() / length).sqrt() for x, length in zip(squares, lengths, strict=True)])
        ).transpose()
        return cls(A, A.inv(), squares)

    def carried(self, G: arb_mat, H: arb_mat) -> tuple[arb_mat, arb_mat]:
        """Metric tensors of the gauge at the point."""
        return self.inverse * G * self.inverse.transpose(), self.A.transpose() * H * self.A

    def power(self, p: arb) -> arb_mat:
        """Σᵖ."""
        return _diagonal([x ** (p / 2) for x in self.squares])

    def mean_derivative(self, s: arb, S_dot: arb_mat, T_dot: arb_mat) -> tuple[arb_mat, arb_mat]:
        """The derivatives of S⁻¹ #ₛ T and T⁻¹ #ₛ S: (f(M) − f(N))/(M − N) entry by entry where M and N are diagonal."""
        moved_S = self.inverse.transpose() * S_dot * self.inverse
        moved_T = self.A * T_dot * self.A.transpose()
        alpha = self._divided_differences(s - 1, arb(1) / 2)
        beta = self._divided_differences(s, arb(0))
        return self.carried(
            _entrywise(alpha, moved_S) + _entrywise(beta, moved_T),
            _entrywise(alpha, moved_T) + _entrywise(beta, moved_S),
        )

    def _divided_differences(self, power: arb, weight: arb) -> arb_mat:
        """(xᵢxⱼ)ʷ (xᵢᵖ − xⱼᵖ)/(xᵢ − xⱼ), x = σ², and its limit on the diagonal."""

        def entry(i: int, j: int) -> arb:
            x, y = self.squares[i], self.squares[j]
            quotient = power * x ** (power - 1) if i == j else (x**power - y**power) / (x - y)
            return (x * y) ** weight * quotient

        h = len(self.squares)
        return arb_mat([[entry(i, j) for j in range(h)] for i in range(h)])


def _diagonal(entries: Sequence[arb]) -> arb_mat:
    h = len(entries)
    return arb_mat([[entries[i] if i == j else arb(0) for j in range(h)] for i in range(h)])


def _entrywise(a: arb_mat, b: arb_mat) -> arb_mat:
    return arb_mat(a.nrows(), a.ncols(), [x * y for x, y in zip(a.entries(), b.entries(), strict=True)])


def _iterations(contraction: float) -> int:
    """Steps until a contracting iteration has reached the working precision."""
    return int(np.ceil(-flint.ctx.prec / np.log2(max(contraction, 2.0**-52))))


def _right_singular_vectors(matrix: Array) -> Array:
    return np.linalg.svd(matrix, full_matrices=False)[2].mT


def _cone_geodesic(factors: Sequence[arb_mat], velocity: Sequence[arb_mat], t: arb, s: arb) -> list[arb_mat]:
    r"""S⁻¹ #ₛ T with h = 1 and s > 0, whatever the velocity; mix is s = 1.

    With G = r g, H = q k (g, k unit vectors), x = rq and y = ln(r/q) the metric is
    x²ˢ(½ẋ²/x² + ½ẏ² + |ġ|² + |k̇|²): a cone of radius ρ = xˢ/(√2 s) over the flat line times two spheres, of which the
    angle advances at φ̇ = s(ẏ² + 2|ġ|² + 2|k̇|²)^½. Unrolled, a geodesic is the straight line (ρ₀ + ρ̇₀t, ρ₀φ̇₀t); with τ
    the angle of it divided by φ̇₀, y, g and k have moved along their own geodesics for the time τ.
    """
    lengths = [_frobenius(factor) for factor in factors]
    directions = [factor * (1 / length) for factor, length in zip(factors, lengths, strict=True)]
    stretch = [(d.transpose() * v)[0, 0] / r for d, v, r in zip(directions, velocity, lengths, strict=True)]
    turns = [(v * (1 / r)) - d * a for d, v, r, a in zip(directions, velocity, lengths, stretch, strict=True)]
    speeds = [_frobenius(turn) for turn in turns]
    y_dot = stretch[0] - stretch[1]
    outward = 1 + s * (stretch[0] + stretch[1]) * t  # ρ/ρ₀ along the ray
    turned = s * (y_dot * y_dot + 2 * speeds[0] * speeds[0] + 2 * speeds[1] * speeds[1]).sqrt()
    if not (outward > 0 or turned > 0):
        raise FlowError("the geodesic ends before this time: it reaches G Hᵀ = 0, where a factor is zero")
    advance = turned * t
    if turned > 0:
        tau = arb.atan2(advance, outward) / turned
    else:  # 1 − z²/3 ≤ atan(z)/z ≤ 1, z = φ̇t/outward
        tau = t / outward * (1 + arb(0, ((advance / outward) ** 2).abs_upper() / 3))
    growth = (outward * outward + advance * advance) ** (1 / (4 * s))  # of r and of q, √(x/x₀)
    results = []
    for sign, r, d, turn, speed in zip((1, -1), lengths, directions, turns, speeds, strict=True):
        radius = r * growth * (sign * y_dot * tau / 2).exp()
        results.append((d * (speed * tau).cos() + turn * (tau * (speed * tau).sinc())) * radius)
    return results


def _frobenius(matrix: arb_mat) -> arb:
    total = arb(0)
    for entry in matrix.entries():
        total += entry * entry
    return total.sqrt() if total > 0 else arb(0, total.abs_upper().sqrt())


def _exact_geodesic(G: arb_mat, inverse: arb_mat, xi: arb_mat, t: arb) -> arb_mat:
    h = G.ncols()
    cross = inverse * (G.transpose() * xi)
    momentum = inverse * (xi.transpose() * G)
    square = inverse * (xi.transpose() * xi)
    K = arb_mat(
        [[-t * momentum[i, j] for j in range(h)] + [-t * square[i, j] for j in range(h)] for i in range(h)]
        + [[t * arb(int(i == j)) for j in range(h)] + [t * cross[i, j] for j in range(h)] for i in range(h)]
    )
    E = K.exp()
    top = arb_mat([[E[i, j] for j in range(h)] for i in range(h)])
    bottom = arb_mat([[E[h + i, j] for j in range(h)] for i in range(h)])
    # exp(tPᵀ), Pᵀ = S⁻¹ξᵀG
    return (G * top + xi * bottom) * (t * momentum).exp()


@contextmanager
def _precision(bits: int) -> Iterator[None]:
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        yield
    finally:
        flint.ctx.prec = before


@contextmanager
def _threads(entries: int) -> Iterator[None]:
    """FLINT on all cores, for blocks whose products repay the milliseconds that starting threads costs."""
    if entries < 4000:
        yield
        return
    before = flint.ctx.threads
    flint.ctx.threads = os.cpu_count() or 1
    try:
        yield
    finally:
        flint.ctx.threads = before


def _ball(array: Array) -> arb_mat:
    rows, columns = array.shape
    return arb_mat(rows, columns, array.ravel().tolist())


def _balls(vector: Vector) -> list[arb_mat]:
    return [_ball(np.asarray(factor, dtype=np.float64)) for factor in vector]


def _symmetric_sum(matrix: arb_mat) -> arb_mat:
    return matrix + matrix.transpose()


def _read(matrix: arb_mat) -> tuple[Array, Array]:
    """Midpoints and radii; a midpoint beyond double precision is rounded, see `_rounded`."""
    shape = (matrix.nrows(), matrix.ncols())
    entries: list[Any] = matrix.entries()
    mid = np.array([float(entry) for entry in entries]).reshape(shape)
    rad = np.array([float(entry.rad()) for entry in entries]).reshape(shape)
    return mid, rad


def _rounded(mid: Array, rad: Array, ball: arb_mat) -> Enclosure:
    # float() of a ball is its midpoint rounded to double: half a unit in the last place, bounded by eps·|mid| or,
    # below the normal range, by the smallest double.
    tiny = np.finfo(np.float64).smallest_subnormal
    return Enclosure(mid, (rad + np.finfo(np.float64).eps * np.abs(mid)) * (1 + 1e-15) + tiny, ball)
