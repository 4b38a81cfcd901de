"""The same geometry of large blocks, faster: every formula here is one of `refgeo.geometry.pair_space`.

- *Cholesky.* Where κ(G) is small, R of GᵀG is as good as Householder's (`fast_balance`).
- *Fused changes of coordinates* (`FusedSpace`). The small matrices that carry a vector to coordinates and back are
  multiplied with the h×h matrices of a formula, so that only products with tall matrices are left that a formula
  itself has. A second-order step is xA + QB and its gradient eA + QB + xC.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from refgeo.geometry.gauge import BalancedGauge, check_sizes, from_triangular
from refgeo.geometry.pair import Pair, each
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.support.arguments import Array, Order, number, order_of

LARGE = 1 << 12
"""Number of entries of a point from which this is faster."""


def fast_balance(G: Array, H: Array, relaxation: float = 0.0) -> BalancedGauge:
    """Return the gauge, by one fast product a factor where ‖R‖‖R⁻¹‖ ≤ 2h (Frobenius): there κ² costs few digits.

    Examples
    --------
    >>> fast_balance(np.array([[3.0], [4.0]]), np.array([[2.0], [0.0]])).sigma
    array([10.])
    """
    check_sizes(G, H)
    Qs, Rs = zip(*(_orthonormal_and_triangular(F) for F in (G, H)), strict=True)
    return from_triangular(G, H, Qs, Rs, relaxation)


def _orthonormal_and_triangular(F: Array) -> tuple[Array | None, Array]:
    with np.errstate(over="ignore", invalid="ignore"):
        gram = F.mT @ F
        size = np.trace(gram, axis1=-2, axis2=-1)
        if np.all((size > 1e-200) & (size < 1e200)):
            try:
                R = np.linalg.cholesky(gram, upper=True)
                spread = np.linalg.norm(R, axis=(-2, -1)) * np.linalg.norm(np.linalg.inv(R), axis=(-2, -1))
                if np.all(spread <= 2.0 * F.shape[-1]):
                    return None, R
            except np.linalg.LinAlgError:
                pass
    Q, R = np.linalg.qr(F)
    return Q, R


class FusedSpace(PairTangentSpace):
    """With changes of coordinates inside the formulas."""

    def horizontal_projection(self, v: Pair) -> Pair:
        """Compute it as `TangentSpace` does, with fewer tall products."""
        v, (to_G, to_H), (back_G, back_H) = self._vector("v", v), self._C, self._C_inverse
        (Q_G, Q_H), weights = self.gauge.columns, self._P_weights
        Y = self._solve(to_H.mT @ ((v.H.mT @ Q_H) * weights) - (weights.mT * (Q_G.mT @ v.G)) @ to_G)
        G, H = Q_G @ (weights.mT * (Y @ back_G)), Q_H @ (-weights.mT * (Y.mT @ back_H))
        G += v.G
        H += v.H
        return Pair.unchecked(G, H)

    def christoffel(self, a: Pair, b: Pair | None = None) -> Pair:
        """Compute it as `TangentSpace` does, with fewer tall products."""
        x = each(np.matmul, self._vector("a", a), self._C)
        z = x if b is None else each(np.matmul, self._vector("b", b), self._C)
        return self._half_sum(x, z, 1.0, self._C_inverse)

    def christoffel_adjoint(self, a: Pair, e: Pair) -> Pair:
        """Compute it as `TangentSpace` does, with fewer tall products."""
        x = each(np.matmul, self._vector("a", a), self._C)
        falling = each(np.matmul, self._vector("e", e), [C.mT for C in self._C_inverse])
        return self._half_sum(x, falling, -1.0, [C.mT for C in self._C])

    def geodesic(self, v: Pair, t: float = 1.0, order: Order = 2) -> Pair:
        """Compute it as `TangentSpace` does, with fewer tall products."""
        if order_of(order) != 2:
            return super().geodesic(v, t, order)
        step = self._vector("v", v) * number("t", t)
        x = each(np.matmul, step, self._C)
        return self._half_sum(x, x, 1.0, [-0.5 * C for C in self._C_inverse], self.point, step)

    def _half_sum(self, x: Pair, z: Pair, sign: float, back: Sequence[Array], *added: Pair) -> Pair:
        """Return ½ [z D(x, p) ± (x D(z, p) − p D(x, z))] times `back`: Γ(x, z), or with the minus sign Γ(x, ·)* z; and
        what is to be `added`.
        """
        along_x = self._along(*x)
        along_z = along_x if z is x else self._along(*z)
        between = self._between(*x, *z)

        def part(
            x: Array, z: Array, Q: Array, along_x: Array, along_z: Array, between: Array, back: Array, *added: Array
        ) -> Array:
            if z is x:
                result = x @ (0.5 * (along_x + sign * along_z) @ back)
            else:
                result = z @ (0.5 * along_x @ back)
                result += x @ (0.5 * sign * along_z @ back)
            result -= Q @ (0.5 * sign * between @ back)
            for term in added:
                result += term
            return result

        return each(part, x, z, self.gauge.columns, along_x, along_z, between, back, *added)

    def point_at(self, x: npt.ArrayLike, order: Order = 2) -> Pair:
        """Compute it as `TangentSpace` does, with four tall products a factor."""
        if order_of(order) != 2:
            return super().point_at(x, order)
        x_G, x_H = self._split(self._coordinates(x))
        along, bends = self._along(x_G, x_H), self._between(x_G, x_H, x_G, x_H)

        def part(x: Array, Q: Array, back: Array, along: Array, bend: Array, base: Array) -> Array:
            moved = x @ (back - 0.5 * along @ back)
            moved += Q @ (0.25 * bend @ back)
            moved += base
            return moved

        return each(part, (x_G, x_H), self.gauge.columns, self._C_inverse, along, bends, self.point)

    def gradient_at(self, x: npt.ArrayLike, e: Pair, order: Order = 2) -> Array:
        """Compute it as `TangentSpace` does, with six tall products a factor."""
        if order_of(order) == "exact":
            return super().gradient_at(x, e, order)
        x = self._coordinates(x)
        e, step, columns = self._vector("e", e), self._split(x), self.gauge.columns
        changes = [C.mT for C in self._C_inverse]
        falling = [(Q.mT @ part) @ C for Q, part, C in zip(columns, e, changes, strict=True)]
        identity = np.eye(self.point.sizes[2])
        # the result is e A + Q B + x C
        A: list[Array] = [identity, identity]
        B: list[Array] = [np.zeros(part.shape) for part in falling]
        C: list[Array | None] = [None, None]
        if order == 2:
            mixed = [(y.mT @ part) @ change / self._powers.mT for y, part, change in zip(step, e, changes, strict=True)]
            along = [Q.mT @ y for Q, y in zip(columns, step, strict=True)]
            A = [identity - 0.5 * D for D in self._derivative(*along)]
            B = [-0.5 * bend for bend in self._bend(*mixed)]
            C = [0.5 * D for D in self._derivative(*falling)]
            falling = [
                q @ a + (b if gram is None else gram @ b) + y @ c
                for q, a, b, y, c, gram in zip(falling, A, B, along, C, self._grams, strict=True)
            ]
        weights = self._P_weights
        Y = self._solve(falling[1].mT * weights - weights.mT * falling[0])
        B = [B[0] + weights.mT * Y, B[1] - weights.mT * Y.mT]
        flat = np.empty(x.shape)
        for i, result in enumerate(self._split(flat)):
            np.matmul(e.G if i == 0 else e.H, changes[i] @ A[i], out=result)
            result += columns[i] @ B[i]
            c = C[i]
            if c is not None:
                result += step[i] @ c
        return flat

    @cached_property
    def _grams(self) -> tuple[Array | None, Array | None]:
        """QᵀQ, where it is not the identity."""
        G, H = (Q.mT @ Q if self.gauge.relaxed else None for Q in self.gauge.columns)
        return G, H
