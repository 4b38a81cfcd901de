r"""Geodesics in balls where no closed form is known: a validated Taylor integration of γ'' = −Γ(γ', γ').

**Reduction.** γ'' = −Γ(γ', γ') multiplies the factors from the right only, so that with B = [G ξ_G] (n×2h) the factor
stays G(t) = B C(t), C a 2h×h matrix: an `InSpan`, which knows BᵀB for products of two such factors. The cost of a step
does not depend on n and m, and boxes around C are as good as the representation of G is bad.

**One step.** The Taylor coefficients c₀, c₁, ... of γ follow from c_{k+2} = −Γ_k/((k+1)(k+2)). On [0, δ]

    γ(δ) = Σ_{k<K} c_k δᵏ + r,   r ∈ c_K(γ([0, δ]), γ'([0, δ])) δᴷ    (Lagrange),

where c_K is evaluated over a box that contains the solution for the whole step. A box is one if
γ'(0) + [0, δ]·(−Γ(box)) lies within its velocities and γ(0) + [0, δ]·velocities within its points (Picard–Lindelöf).
Radii from earlier steps are carried along by ball arithmetic; at the working precision they are nothing.

Γ is the paper's, `refgeo.paper.christoffel`, of power series: a `Series` computes a coefficient when it is asked for,
so that Γ of γ and γ' *is* the recursion, although γ is only known as far as it has been computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flint import arb, arb_mat

from refgeo import paper
from refgeo.exact import ball
from refgeo.exact.ball import Ball

ORDER = 24
MOST_STEPS = 200
MOST_HALVINGS = 16
NARROW = 2.0**-66
"""An integrated geodesic is narrow enough with this relative radius: a small part of a double's roundoff."""

Parts = tuple[arb_mat, arb_mat]
State = tuple[Parts, Parts]
"""C and C' of both factors."""
Coefficients = tuple[list[arb_mat], list[arb_mat]]
"""Of C, up to `ORDER`: of both factors."""
_ENDED = "the geodesic ends before this time, or bends too fast for an integration with proved bounds"


class FlowError(ArithmeticError):
    """No box contains the solution: the geodesic may end, or bends too fast."""


class Series:
    """A power series of matrices with ``@ + - * .mT``; a coefficient is computed once, when it is asked for.

    Parameters
    ----------
    compute : callable
        ``compute(k)``, the k-th coefficient; it may ask for lower ones.
    degree : int, optional
        Coefficients beyond it are zero.

    Examples
    --------
    >>> line = Series(lambda k: arb_mat([[1 if k < 2 else 0]]))  # 1 + t
    >>> [float((line @ line)[k][0, 0]) for k in range(4)]
    [1.0, 2.0, 1.0, 0.0]
    """

    def __init__(self, compute: Callable[[int], arb_mat], degree: int = sys.maxsize) -> None:
        self.degree = degree
        self._compute, self._coefficients = compute, list[arb_mat]()
        self._made: dict[Any, Series] = {}

    def __getitem__(self, k: int) -> arb_mat:
        return self.up_to(k)[k]

    def up_to(self, k: int) -> list[arb_mat]:
        """Return the coefficients, of which those to the k-th are known.

        Examples
        --------
        >>> len(Series(lambda k: arb_mat([[k]])).up_to(2))
        3
        """
        while len(self._coefficients) <= k:
            self._coefficients.append(self._compute(len(self._coefficients)))
        return self._coefficients

    def __array_namespace__(self, **_: Any) -> Any:
        return sys.modules[__name__]

    def _keep(self, made: tuple[Any, ...], compute: Callable[[int], arb_mat]) -> Series:
        """Keep a series, because a formula may contain the same term twice."""
        return self._made.setdefault(made, Series(compute))

    @property
    def mT(self) -> Series:
        """The transpose."""
        return self._keep(("mT",), lambda k: self[k].transpose())

    @property
    def derivative(self) -> Series:
        """In time."""
        return self._keep(("derivative",), lambda k: self[k + 1] * (k + 1))

    def __matmul__(self, other: Series) -> Series:
        if not isinstance(other, Series):
            return NotImplemented
        return self._keep(("@", other), lambda k: _convolution(self, other, 0, k))

    def __add__(self, other: Series) -> Series:
        return self._keep(("+", other), lambda k: self[k] + other[k])

    def __sub__(self, other: Series) -> Series:
        return self._keep(("-", other), lambda k: self[k] - other[k])

    def __mul__(self, number: Any) -> Series:
        return Series(lambda k: self[k] * arb(number))

    __rmul__ = __mul__


def solve(A: Series, B: Any) -> Any:
    """Return A⁻¹B, from the coefficients of AX = B.

    Examples
    --------
    >>> one = lambda k, *coefficients: arb_mat([[coefficients[k] if k < len(coefficients) else 0]])
    >>> X = solve(Series(lambda k: one(k, 1, -1)), Series(lambda k: one(k, 1)))  # 1/(1 − t)
    >>> [float(X[k][0, 0]) for k in range(3)]
    [1.0, 1.0, 1.0]
    """
    if isinstance(B, InSpan):
        return InSpan(solve(A, B.value), B.gram, B.is_transposed)
    inverse = A._keep(("inverse",), lambda k: A[0].inv())

    def coefficient(k: int) -> arb_mat:
        right: arb_mat = B[k] - _convolution(A, X, 1, k) if k else B[0]
        return inverse[0] * right

    X = A._keep(("solve", B), coefficient)
    return X


linalg = SimpleNamespace(solve=solve)


def identity_like(M: Series) -> Series:
    """Return I, at all times.

    Examples
    --------
    >>> identity_like(Series(lambda k: arb_mat([[7, 7], [7, 7]])))[0][1, 0] == 0
    True
    """
    return _constant(ball.identity_like(Ball(M[0])).matrix)


class InSpan:
    """A tall matrix B C by its C, or the transpose of one; products of two take BᵀB.

    Parameters
    ----------
    value : Ball or Series
        C, or its transpose.
    gram : Ball or Series
        BᵀB.

    Examples
    --------
    >>> two, three = Ball(arb_mat([[2]])), Ball(arb_mat([[3]]))
    >>> tall = InSpan(two, three)  # √3 · 2
    >>> float((tall.mT @ tall).matrix[0, 0]), float((tall @ two).value.matrix[0, 0])
    (12.0, 4.0)
    """

    def __init__(self, value: Any, gram: Any, is_transposed: bool = False) -> None:
        self.value, self.gram, self.is_transposed = value, gram, is_transposed

    @property
    def mT(self) -> InSpan:
        """The transpose."""
        return InSpan(self.value.mT, self.gram, not self.is_transposed)

    def __matmul__(self, other: Any) -> Any:
        if self.is_transposed:
            return self.value @ (self.gram @ other.value)
        return InSpan(self.value @ other, self.gram)

    def __rmatmul__(self, other: Any) -> InSpan:
        return InSpan(other @ self.value, self.gram, self.is_transposed)

    def __add__(self, other: InSpan) -> InSpan:
        return InSpan(self.value + other.value, self.gram, self.is_transposed)

    def __sub__(self, other: InSpan) -> InSpan:
        return InSpan(self.value - other.value, self.gram, self.is_transposed)

    def __mul__(self, number: Any) -> InSpan:
        return InSpan(self.value * number, self.gram, self.is_transposed)

    __rmul__ = __mul__


def _constant(matrix: arb_mat) -> Series:
    return Series(lambda k: matrix * 0 if k else matrix, degree=0)


def _convolution(left: Series, right: Series, first: int, k: int) -> arb_mat:
    """Return the part of a product's k-th coefficient that comes from the left's coefficients from the first on."""
    last = min(k, max(first, left.degree))
    a, b = left.up_to(last), right.up_to(k - first)
    total = a[first] * b[k - first]
    for i in range(first + 1, last + 1):
        total = total + a[i] * b[k - i]
    return total


def flow(
    metric: str, point: Sequence[arb_mat], velocity: Sequence[arb_mat], relaxation: arb, t: arb, narrow: float = NARROW
) -> list[arb_mat]:
    """Return γ(t) of both factors, as balls at the current working precision.

    Parameters
    ----------
    metric : "inv" or "mix"
    point, velocity : two arb_mat each, n×h and m×h
    relaxation, t : arb
    narrow : float
        The relative radius that the result is to have; what a step leaves out is a millionth of it.

    Raises
    ------
    FlowError
        The geodesic ends before t, or more than `MOST_STEPS` steps would be needed.
    ZeroDivisionError
        A Gram matrix cannot be told from a singular one.

    Examples
    --------
    Two numbers with mix: the product moves on a straight line, 6 + 12t (a ray of the cone, h = 1).

    >>> one = lambda x: arb_mat([[x]])
    >>> G, H = flow("mix", (one(2), one(3)), (one(2), one(3)), arb(0), arb(1))
    >>> abs(float((G * H)[0, 0]) - 18.0) < 1e-10  # at 53 bits
    True
    """
    bases = [
        _concatenate(x, v * t) for x, v in zip(point, velocity, strict=True)
    ]  # γ(t) is where tγ'(0) leads in time 1
    system = _System(metric, [Ball(B).gram for B in bases], relaxation, 2.0**-20 * narrow)
    h = point[0].ncols()
    start, moving = _unit(h, 0), _unit(h, h)
    state: State = ((start, start), (moving, moving))
    remaining, step = arb(1), arb(1)
    for _ in range(MOST_STEPS):
        if remaining == 0:
            return [B * C for B, C in zip(bases, state[0], strict=True)]
        state, taken, step = system.advance(state, min(step, remaining))
        remaining = remaining - taken
    raise FlowError(_ENDED)


class _System:
    def __init__(self, metric: str, grams: Sequence[Ball], relaxation: arb, remainder: float) -> None:
        self.metric, self.grams, self.relaxation, self.remainder = metric, grams, relaxation, remainder

    def series(self, state: State) -> Coefficients:
        """Return the Taylor coefficients of γ."""
        bend: list[InSpan] = []

        def coefficient(part: int, k: int) -> arb_mat:
            if k < 2:
                return state[k][part]
            return cast(arb_mat, bend[part].value[k - 2] * (arb(-1) / (k * (k - 1))))

        G, H = (Series(partial(coefficient, part)) for part in (0, 1))
        of_G, of_H = (_constant(gram.matrix) for gram in self.grams)
        point, velocity = (InSpan(G, of_G), InSpan(H, of_H)), (InSpan(G.derivative, of_G), InSpan(H.derivative, of_H))
        bend += paper.christoffel(self.metric, *point, *velocity, *velocity, self.relaxation)
        return G.up_to(ORDER)[: ORDER + 1], H.up_to(ORDER)[: ORDER + 1]

    def acceleration(self, state: State) -> list[arb_mat]:
        """Return −Γ at a state, or over a box."""
        (of_G, of_H), ((G, H), (v_G, v_H)) = self.grams, state
        point, velocity = ((InSpan(Ball(x), of_G), InSpan(Ball(y), of_H)) for x, y in ((G, H), (v_G, v_H)))
        bends = paper.christoffel(self.metric, *point, *velocity, *velocity, self.relaxation)
        return [-bend.value.matrix for bend in bends]

    def box(self, state: State, step: arb) -> State:
        """Return a box that contains the solution on [0, step], by Picard iteration with inflation."""
        during = step / 2 + arb(0, step.abs_upper() / 2)
        point, velocity = state
        box: State = state
        for _ in range(12):
            velocities = [v + a * during for v, a in zip(velocity, self.acceleration(box), strict=True)]
            points = [x + v * during for x, v in zip(point, box[1], strict=True)]
            if _within(points, box[0]) and _within(velocities, box[1]):
                return box
            points = [x + v * during for x, v in zip(point, velocities, strict=True)]
            box = (_wider(points), _wider(velocities))
        raise FlowError("no box contains the step")

    def advance(self, state: State, step: arb) -> tuple[State, arb, arb]:
        """Return the state after a step, its length, and one for the next: a box must hold, and the remainder be
        small.
        """
        series = self.series(state)
        for _ in range(MOST_HALVINGS):
            try:
                rest = self.series(self.box(state, step))
            except (FlowError, ZeroDivisionError):
                step = step / 2
                continue
            far = max(_largest(beyond[ORDER]) / _largest(known[0]) for known, beyond in zip(series, rest, strict=True))
            excess = float((far * step.abs_upper() ** ORDER).abs_upper()) / self.remainder
            ratio = 0.9 * max(excess, 2.0**-ORDER) ** (-1.0 / ORDER)
            fitting = arb(float(np.float32(float(step) * max(ratio, 2.0**-4))))  # few bits: sums of steps are exact
            if excess <= 1.0:
                return _after(series, rest, step), step, fitting
            step = fitting
        raise FlowError(_ENDED)


def _after(series: Coefficients, rest: Coefficients, step: arb) -> State:
    """Return the Taylor polynomials at the end of a step, with the Lagrange remainder."""
    points, velocities = [], []
    for known, beyond in zip(series, rest, strict=True):
        point = beyond[ORDER] * step
        velocity = beyond[ORDER] * ORDER
        for k in range(ORDER - 1, 0, -1):
            point = (point + known[k]) * step
            velocity = velocity * step + known[k] * k
        points.append(point + known[0])
        velocities.append(velocity)
    return (points[0], points[1]), (velocities[0], velocities[1])


def _unit(h: int, offset: int) -> arb_mat:
    return arb_mat([[int(i == j + offset) for j in range(h)] for i in range(2 * h)])


def _concatenate(left: arb_mat, right: arb_mat) -> arb_mat:
    return arb_mat([[*x, *y] for x, y in zip(left.tolist(), right.tolist(), strict=True)])


def _within(inner: Sequence[arb_mat], outer: Sequence[arb_mat]) -> bool:
    return all(big.contains(small) for small, big in zip(inner, outer, strict=True))


def _wider(parts: Sequence[arb_mat]) -> Parts:
    """Enlarge radii by an eighth, and never to zero."""

    def widen(part: arb_mat) -> arb_mat:
        least = _largest(part) * arb(2) ** -40
        entries = [x + arb(0, x.rad() / 8 + least) for x in part.entries()]
        return arb_mat(part.nrows(), part.ncols(), entries)

    return widen(parts[0]), widen(parts[1])


def _largest(matrix: arb_mat) -> arb:
    return max(entry.abs_upper() for entry in matrix.entries())
