r"""Geodesics in ball arithmetic where no closed form is known: a validated Taylor integration.

**Reduction.** γ'' = −Γ(γ', γ') multiplies the factors from the right only, so that with B = [G ξ_G] (n×2h) the factor
stays G(t) = B C(t), C a 2h×h matrix, C(0) = [I 0]ᵀ, C'(0) = [0 I]ᵀ. With M = BᵀB

    S = CᵀMC,   D = C'ᵀMC (= γ'ᵀγ),   Q = C'ᵀMC',   W = (S + εI)⁻¹

and alike for H, the Christoffel term (11) and (12) of a velocity with itself is

    inv:  Γ_G = C_G W_G Q_G − C'_G W_G (D_G + D_Gᵀ)       mix:  Γ_G = {C'_G (D_H + D_Hᵀ) − C_G Q_H} W_H

so the cost of a step does not depend on n and m.

**One step.** The Taylor coefficients c_0, c_1, ... of C follow from c_{k+2} = −Γ_k / ((k+1)(k+2)). On [0, δ]

    C(δ) = Σ_{k<K} c_k δᵏ + r,   r ∈ c_K(C([0, δ]), C'([0, δ])) δᴷ    (Lagrange),

where c_K is evaluated in balls over a box that contains the solution for the whole step. A box is one if
C'_0 + [0, δ]·(−Γ(box)) lies within its C' part and C_0 + [0, δ]·C' within its C part (Picard–Lindelöf). Radii from
earlier steps are carried along by ball arithmetic; at the working precision they are nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flint import arb, arb_mat

ORDER = 20
MOST_STEPS = 200
MOST_HALVINGS = 16
NARROW = 2.0**-66
"""An integrated geodesic is narrow enough with this relative radius: a small part of a double's roundoff."""


class FlowError(ArithmeticError):
    """No box contains the solution: the geodesic may end, or bends too fast."""


Series = tuple[list[arb_mat], list[arb_mat]]
"""Taylor coefficients of C of both factors, up to `ORDER`."""
State = tuple[tuple[arb_mat, arb_mat], tuple[arb_mat, arb_mat]]
"""C and C' of both factors."""


def flow(
    metric: str, point: Sequence[arb_mat], velocity: Sequence[arb_mat], epsilons: Sequence[arb], t: arb
) -> list[arb_mat]:
    """γ(t) of both factors, as balls at the current working precision.

    Parameters
    ----------
    metric : "inv" or "mix"
    point, velocity : two arb_mat each, n×h and m×h
    epsilons : the relaxation of S and of T
    t : arb

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
    >>> G, H = flow("mix", (one(2), one(3)), (one(2), one(3)), (arb(0), arb(0)), arb(1))
    >>> abs(float((G * H)[0, 0]) - 18.0) < 1e-10  # at 53 bits
    True
    """
    h = point[0].ncols()
    bases = [_beside(x, v) for x, v in zip(point, velocity, strict=True)]
    system = _System(metric, [B.transpose() * B for B in bases], epsilons)
    start, moving = _unit(h, 0), _unit(h, h)
    state: State = ((start, start), (moving, moving))
    remaining, step = t, t
    for _ in range(MOST_STEPS):
        if remaining == 0:
            return [B * C for B, C in zip(bases, state[0], strict=True)]
        longer = abs(float(2 * step)) >= abs(float(remaining))
        state, step = system.advance(state, remaining if longer else 2 * step)
        remaining = remaining - step
    raise FlowError("the geodesic ends before this time, or bends too fast for an integration with proved bounds")


class _System:
    def __init__(self, metric: str, grams: Sequence[arb_mat], epsilons: Sequence[arb]) -> None:
        self.metric, self.grams = metric, grams
        h = grams[0].nrows() // 2
        self.shifts = [epsilon * identity(h) for epsilon in epsilons]

    def series(self, state: State) -> Series:
        coefficients: Series = ([state[0][0], state[1][0]], [state[0][1], state[1][1]])
        S, D, Q, W, inner = ([[], []] for _ in range(5))  # type: ignore[var-annotated]
        transposed = [[(M * c).transpose() for c in cs] for M, cs in zip(self.grams, coefficients, strict=True)]
        for k in range(ORDER - 1):
            velocity = [[c * (j + 1) for j, c in enumerate(cs[1:])] for cs in coefficients]
            for i in (0, 1):
                cs, ts = coefficients[i], transposed[i]
                moving = [x * (j + 1) for j, x in enumerate(ts[1:])]
                S[i].append(_convolution(ts, cs, k))
                crossed = _convolution(moving, cs, k)
                D[i].append(crossed + crossed.transpose())
                Q[i].append(_convolution(moving, velocity[i], k))
                if k == 0:
                    W[i].append((S[i][0] + self.shifts[i]).inv())
                else:
                    W[i].append(-(W[i][0] * _convolution(S[i][1:], W[i], k - 1)))
            bent = []
            for i in (0, 1):
                cs, vs = coefficients[i], velocity[i]
                if self.metric == "inv":
                    inner[i].append((_convolution(W[i], Q[i], k), _convolution(W[i], D[i], k)))
                    bent.append(
                        _convolution(cs, [x for x, _ in inner[i]], k) - _convolution(vs, [x for _, x in inner[i]], k)
                    )
                else:
                    inner[i].append(_convolution(vs, D[1 - i], k) - _convolution(cs, Q[1 - i], k))
                    bent.append(_convolution(inner[i], W[1 - i], k))
            for i in (0, 1):
                following = bent[i] * (arb(-1) / ((k + 1) * (k + 2)))
                coefficients[i].append(following)
                transposed[i].append((self.grams[i] * following).transpose())
        return coefficients

    def acceleration(self, state: State) -> list[arb_mat]:
        """−Γ at a state, or over a box."""
        (C, V), M = state, self.grams
        D = [v.transpose() * g * c for v, g, c in zip(V, M, C, strict=True)]
        D = [d + d.transpose() for d in D]
        Q = [v.transpose() * g * v for v, g in zip(V, M, strict=True)]
        W = [(c.transpose() * g * c + e).inv() for c, g, e in zip(C, M, self.shifts, strict=True)]
        if self.metric == "inv":
            return [v * W[i] * D[i] - c * W[i] * Q[i] for i, (c, v) in enumerate(zip(C, V, strict=True))]
        return [(c * Q[1 - i] - v * D[1 - i]) * W[1 - i] for i, (c, v) in enumerate(zip(C, V, strict=True))]

    def box(self, state: State, step: arb) -> State:
        """A box that contains the solution on [0, step], by Picard iteration with inflation."""
        during = step / 2 + arb(0, step.abs_upper() / 2)
        C, V = state
        box: State = state
        for _ in range(12):
            moved_V = [v + a * during for v, a in zip(V, self.acceleration(box), strict=True)]
            moved_C = [c + v * during for c, v in zip(C, box[1], strict=True)]
            if _within(moved_C, box[0]) and _within(moved_V, box[1]):
                return box
            moved_C = [c + v * during for c, v in zip(C, moved_V, strict=True)]
            box = (_wider(moved_C), _wider(moved_V))
        raise FlowError("no box contains the step")

    def advance(self, state: State, step: arb) -> tuple[State, arb]:
        """The state after a step, and its length: halved until a box holds and the remainder is small."""
        series = self.series(state)
        for _ in range(MOST_HALVINGS):
            try:
                box = self.box(state, step)
                rest = self.series(box)
            except (FlowError, ZeroDivisionError):
                step = step / 2
                continue
            excess = _size(rest, ORDER) * float(step.abs_upper()) ** ORDER / (2.0**-20 * NARROW * _size(series, 0))
            if excess <= 1.0:
                return _after(series, rest, step), step
            step = step / 2 ** int(np.ceil(np.log2(excess) / ORDER))
        raise FlowError("the geodesic ends before this time, or bends too fast for an integration with proved bounds")


def _after(series: Series, rest: Series, step: arb) -> State:
    """The Taylor polynomials at the end of a step, with the Lagrange remainder."""
    places, velocities = [], []
    for known, beyond in zip(series, rest, strict=True):
        place = beyond[ORDER] * step
        velocity = beyond[ORDER] * ORDER
        for k in range(ORDER - 1, 0, -1):
            place = (place + known[k]) * step
            velocity = velocity * step + known[k] * k
        places.append(place + known[0])
        velocities.append(velocity)
    return (places[0], places[1]), (velocities[0], velocities[1])


def _size(series: Series, k: int) -> float:
    return max(_largest(coefficients[k]) for coefficients in series)


def _convolution(left: list[arb_mat], right: list[arb_mat], k: int) -> arb_mat:
    total = left[0] * right[k]
    for i in range(1, k + 1):
        total = total + left[i] * right[k - i]
    return total


def _within(inner: Sequence[arb_mat], outer: Sequence[arb_mat]) -> bool:
    return all(big.contains(small) for small, big in zip(inner, outer, strict=True))


def _wider(parts: Sequence[arb_mat]) -> tuple[arb_mat, arb_mat]:
    """Radii an eighth larger, and never zero."""

    def widened(part: arb_mat) -> arb_mat:
        least = _largest(part) * 2.0**-40
        entries = [x + arb(0, x.rad() * 0.125 + least) for x in part.entries()]
        return arb_mat(part.nrows(), part.ncols(), entries)

    return widened(parts[0]), widened(parts[1])


def _largest(matrix: arb_mat) -> float:
    return max(float(entry.abs_upper()) for entry in matrix.entries())


def identity(h: int) -> arb_mat:
    """The h×h identity, in balls."""
    return arb_mat([[int(i == j) for j in range(h)] for i in range(h)])


def _unit(h: int, offset: int) -> arb_mat:
    return arb_mat([[int(i == j + offset) for j in range(h)] for i in range(2 * h)])


def _beside(left: arb_mat, right: arb_mat) -> arb_mat:
    n, h = left.nrows(), left.ncols()
    return arb_mat([[left[i, j] for j in range(h)] + [right[i, j] for j in range(h)] for i in range(n)])
