r"""The geometry in ball arithmetic (python-flint, Arb): rigorous enclosures, the final judge.

Inputs are doubles, taken exactly. Every quantity comes as a ball that certainly contains the exact value, computed at
a working precision that doubles until the ball is far narrower than a double's rounding; the returned `Enclosure` then
rounds the midpoint to double and widens the radius by that rounding. A ball that stays too wide raises
`EnclosureError` and is never returned.

The formulas are those of `refgeo.paper`, which runs on balls as it does on arrays (`refgeo.exact.ball`, with a
certified solution of the Sylvester equation): with enough bits the loss of digits by Gram matrices does not matter.
Here is what the paper does not have: exact geodesics (`refgeo.exact.closed`, `refgeo.exact.flow`) and the metrics
between inv and mix (`refgeo.exact.family`).

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import flint
import numpy as np
from flint import arb, arb_mat

from refgeo import paper
from refgeo.exact.ball import Ball, EnclosureError, read
from refgeo.exact.closed import cone_geodesic, invariant_geodesic
from refgeo.exact.family import BetweenPoint
from refgeo.exact.flow import NARROW as FLOW_NARROW
from refgeo.exact.flow import FlowError, flow
from refgeo.support.arguments import ENDS, Array, number, one_of, order_of, real_array

__all__ = ["Enclosure", "EnclosureError", "ExactTangentSpace"]

INITIAL_BITS = 128
MAXIMUM_BITS = 3072
NARROW = 2.0**-80
"""A ball is narrow enough when its radius is at most this fraction of the largest entry it is judged beside."""

Vector = Iterable[Array]
"""Two arrays, or a `refgeo.Pair`."""


@dataclass(frozen=True)
class Enclosure:
    """``|exact - mid| <= rad``, entry by entry, rigorously.

    Attributes
    ----------
    mid, rad : ndarray of float64, of the same shape
    ball : arb_mat
        The narrower ball that they were rounded from.
    """

    mid: Array
    rad: Array
    ball: arb_mat = field(repr=False, compare=False)

    def decimals(self, digits: int = 30) -> tuple[Any, Any]:
        """Return midpoints and radii as nested lists of decimal numbers in text; they enclose the exact value, too.

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
        self.s = number("metric", metric, "s", least=0.0, most=1.0)
        self.point = real_array("G", G), real_array("H", H)
        shapes = [factor.shape for factor in self.point]
        if [len(shape) for shape in shapes] != [2, 2] or shapes[0][1] != shapes[1][1]:
            raise ValueError(
                f"G, H: expected one block (two dimensions) with the same number of columns, got shapes {shapes[0]} "
                f"and {shapes[1]}; loop over blocks"
            )
        self.least_bits, self.max_bits = least_bits, max_bits
        self.relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
        self._points: dict[int, Any] = {}

    def inner_product(self, a: Vector, b: Vector) -> Enclosure:
        """Return tr(S_ε⁻¹ a_Gᵀb_G) + tr(T_ε⁻¹ a_Hᵀb_H), for mix with T_ε and S_ε; a 0-dimensional `Enclosure`.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 4 * one).inner_product((one, one), (one, one)).mid.item()
        0.3125
        """

        def compute(point: Any, *v: Ball) -> list[Ball]:
            return [Ball(arb_mat([[point.inner_product(*v)]]))]

        def size(point: Any, *v: Ball) -> list[float]:
            # Cancellation can make the value tiny; its natural size is that of the two lengths.
            squares = point.inner_product(*v[:2], *v[:2]) * point.inner_product(*v[2:], *v[2:])
            return [float(squares.abs_upper().sqrt())]

        (enclosure,) = self._enclose((a, b), compute, size)
        return Enclosure(enclosure.mid[0, 0], enclosure.rad[0, 0], enclosure.ball)

    def horizontal_projection(self, v: Vector) -> tuple[Enclosure, Enclosure]:
        """Return (v_G + GΛ, v_H − HΛᵀ).

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("mix", 2 * one, 3 * one).horizontal_projection((2 * one, 0 * one))[1].mid.item()
        1.5
        """
        return self._operation("horizontal_projection", v, beside=v)

    def riemannian_gradient(self, e: Vector) -> tuple[Enclosure, Enclosure]:
        """Return (e_G S_ε, e_H T_ε) for inv, (e_G T_ε⁻¹, e_H S_ε⁻¹) for mix.

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("mix", 2 * one, 4 * one).riemannian_gradient((one, one))[0].mid.item()
        0.0625
        """
        return self._operation("riemannian_gradient", e, beside=e)

    def riemannian_hessian(self, e: Vector, w: Vector, v: Vector) -> tuple[Enclosure, Enclosure]:
        """Return P(D grad f[v] + Γ(grad f, v)) from the Euclidean gradient e and the Euclidean Hessian w applied to v.

        Examples
        --------
        The loss ½(GH)² of two numbers, along (G, H), of length √2: twice 4(GH)².

        >>> g, h = 2 * np.ones((1, 1)), 3 * np.ones((1, 1))
        >>> e, w = (g * h**2, g**2 * h), (3 * g * h**2, 3 * g**2 * h)
        >>> space = ExactTangentSpace("inv", g, h)
        >>> [part.mid.item() for part in space.riemannian_hessian(e, w, (g, h))]
        [288.0, 432.0]
        """
        return self._operation("riemannian_hessian", e, w, v)

    def christoffel(self, a: Vector, b: Vector | None = None) -> tuple[Enclosure, Enclosure]:
        """Return Γ(a, b), Eq. (11) and (12) polarised.

        Examples
        --------
        >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 3 * one).christoffel((one, zero))[0].mid.item()
        -0.5
        """
        return self._operation("christoffel", a, a if b is None else b, beside=a)

    def christoffel_adjoint(self, a: Vector, e: Vector) -> tuple[Enclosure, Enclosure]:
        """Return Γ(a, ·)* e in the Euclidean pairing.

        Examples
        --------
        >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 3 * one).christoffel_adjoint((one, zero), (4 * one, zero))[0].mid.item()
        -2.0
        """
        return self._operation("christoffel_adjoint", a, e, beside=e)

    def geodesic(self, v: Vector, t: float = 1.0, order: object = 2) -> tuple[Enclosure, Enclosure]:
        """Return γ(t): order 1, 2, or "exact".

        Exact: a closed form for inv and for h = 1 (`refgeo.exact.closed`), otherwise a validated integration
        (`refgeo.exact.flow`).

        Examples
        --------
        >>> one = np.ones((1, 1))
        >>> ExactTangentSpace("inv", 2 * one, 3 * one).geodesic((one, one), 1.0, order="exact")[0].mid.item()
        3.2974425414002564
        """
        t = number("t", t)
        if order_of(order) != "exact":
            return self._operation("geodesic", v, t=t, order=order, beside=self.point)
        # where it is closed, a geodesic can shrink by any factor; the others are sums beside the point
        beside = [0.0, 0.0] if self._is_closed else [_largest(factor) for factor in self.point]
        G, H = self._enclose(
            (v,),
            lambda point, *velocity: self._exact(velocity, arb(float(t))),
            lambda point, *velocity: beside,
            None if self._is_closed else FLOW_NARROW,
        )
        return G, H

    @property
    def _is_closed(self) -> bool:
        """Whether exact geodesics have a closed form that is known to hold for any velocity."""
        return self.relaxation == 0.0 and (self.s == 0.0 or self.point[0].shape[1] == 1)

    def _exact(self, velocity: Sequence[Ball], t: arb) -> list[Ball]:
        factors = [Ball.of(factor) for factor in self.point]
        if self._is_closed and self.s > 0.0:
            return cone_geodesic(factors, velocity, t, arb(self.s))
        if self._is_closed:
            return [invariant_geodesic(F, x, t) for F, x in zip(factors, velocity, strict=True)]
        if self.s not in (0.0, 1.0):
            raise EnclosureError("for a metric between inv and mix, refgeo can enclose exact geodesics only if h = 1")
        point, moving = ([F.matrix for F in pair] for pair in (factors, velocity))
        narrow = FLOW_NARROW * 2.0 ** ((INITIAL_BITS - flint.ctx.prec) / 16)  # for more digits, shorter steps
        with _precision(2 * flint.ctx.prec):  # radii of rounding grow from step to step
            return [Ball(F) for F in flow(self._name, point, moving, arb(self.relaxation), t, narrow)]

    @property
    def _name(self) -> str:
        return "mix" if self.s else "inv"

    def _check(self, vector: Vector) -> list[Array]:
        parts = [real_array("vector", part) for part in vector]
        if [part.shape for part in parts] != [factor.shape for factor in self.point]:
            raise ValueError(
                f"vector: expected the shapes of the point, {self.point[0].shape} and {self.point[1].shape}, "
                f"got {' and '.join(str(part.shape) for part in parts)}"
            )
        return parts

    def _formulas(self, G: Ball, H: Ball) -> Any:
        """Return the operations at the point, in balls: those of the paper, or of a metric between."""
        relaxation = arb(self.relaxation)
        if self.s not in (0.0, 1.0):
            return BetweenPoint(self.s, G, H, relaxation)
        return of_paper(self._name, G, H, relaxation)

    def _operation(
        self, name: str, *vectors: Vector, t: float = 0.0, order: object = None, beside: Vector | None = None
    ) -> tuple[Enclosure, Enclosure]:
        """Return one of the point's operations, narrow beside the largest entries of `beside`, or of the result
        itself.
        """
        extra = [] if order is None else [arb(float(t)), order_of(order)]
        sizes = [0.0, 0.0] if beside is None else [_largest(part) for part in beside]
        G, H = self._enclose(vectors, lambda point, *v: getattr(point, name)(*v, *extra), lambda point, *v: sizes)
        return G, H

    def _enclose(
        self,
        vectors: Sequence[Vector],
        compute: Callable[..., Sequence[Ball]],
        sizes: Callable[..., list[float]],
        narrow: float | None = None,
    ) -> list[Enclosure]:
        """Run `compute` at doubling precision until every ball is narrow beside its entries or beside `sizes`.

        Both get the operations at the point, and the parts of the vectors; what these keep is of one precision.
        """
        bits, trouble = self.least_bits, "that is less than least_bits"
        arrays = [array for vector in vectors for array in self._check(vector)]
        while bits <= self.max_bits:
            with _precision(bits), _threads(self.point[0].size):
                try:
                    if bits not in self._points:
                        self._points[bits] = self._formulas(*map(Ball.of, self.point))
                    point, v = self._points[bits], [Ball.of(array) for array in arrays]
                    balls = [ball.matrix for ball in compute(point, *v)]
                    results, beside = [read(ball) for ball in balls], sizes(point, *v)
                except FlowError as error:
                    raise EnclosureError(str(error)) from error
                except ZeroDivisionError:
                    trouble = "a matrix cannot be told from a singular one; have G and H full column rank?"
                except EnclosureError as error:
                    trouble = str(error)
                else:
                    if all(
                        np.isfinite(mid).all()
                        and np.isfinite(rad).all()
                        and rad.max() <= (narrow or NARROW) * max(np.abs(mid).max(), size)
                        for (mid, rad), size in zip(results, beside, strict=True)
                    ):
                        return [_round(*result, ball) for result, ball in zip(results, balls, strict=True)]
                    trouble = "the balls are too wide, or their values beyond the range of doubles"
            bits *= 2
        raise EnclosureError(f"no usable enclosure with up to {self.max_bits} bits: {trouble}")


def of_paper(metric: str, G: Ball, H: Ball, relaxation: arb) -> SimpleNamespace:
    """Return the operations of `refgeo.paper` at a point, as functions of vectors alone.

    Examples
    --------
    >>> one = Ball(arb_mat([[1]]))
    >>> of_paper("mix", one * 2, one * 3, arb(0)).inner_product(one, one, one, one) == 13
    True
    """
    names = (
        "inner_product", "horizontal_projection", "riemannian_gradient", "riemannian_hessian", "christoffel",
        "christoffel_adjoint", "geodesic",
    )  # fmt: skip
    return SimpleNamespace(
        **{name: partial(getattr(paper, name), metric, G, H, relaxation=relaxation) for name in names}
    )


def _largest(array: Array) -> float:
    return float(np.abs(array).max())


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
    """Run FLINT on all cores, for blocks whose products repay the milliseconds that starting threads costs."""
    if entries < 4000:
        yield
        return
    before = flint.ctx.threads
    flint.ctx.threads = os.cpu_count() or 1
    try:
        yield
    finally:
        flint.ctx.threads = before


def _round(mid: Array, rad: Array, ball: arb_mat) -> Enclosure:
    # float() of a ball is its midpoint rounded to double: half a unit in the last place, bounded by eps·|mid| or,
    # below the normal range, by the smallest double.
    tiny = np.finfo(np.float64).smallest_subnormal
    return Enclosure(mid, (rad + np.finfo(np.float64).eps * np.abs(mid)) * (1 + 1e-15) + tiny, ball)
