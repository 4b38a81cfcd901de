"""Exact geodesics in balls where a closed form is known: inv, and h = 1."""

from __future__ import annotations

from collections.abc import Sequence

from flint import arb, arb_mat

from refgeo.exact.ball import Ball
from refgeo.exact.flow import FlowError


def invariant_geodesic(G: Ball, xi: Ball, t: arb) -> Ball:
    r"""Return one factor of the inv geodesic: :math:`e^{tΩ}Ge^{tP^\top}` with :math:`P^\top = S^{-1}ξ^\top G`.

    :math:`Ω[G\,ξ] = [G\,ξ]K` with :math:`K = [[-S^{-1}ξ^\top G, -S^{-1}ξ^\top ξ], [I, S^{-1}G^\top ξ]]`, so that
    :math:`e^{tΩ}G = [G\,ξ]\,e^{tK}[I\,0]^\top`: no orthonormal basis, only a 2h×2h exponential.

    Examples
    --------
    >>> one = Ball(arb_mat([[1]]))
    >>> bool(abs(invariant_geodesic(one, one, arb(1)).matrix[0, 0] - arb(1).exp()) < 1e-14)
    True
    """
    h, inverse = G.shape[1], G.gram.inverse
    cross, momentum, square = ((inverse @ (x.mT @ y)).matrix * t for x, y in ((G, xi), (xi, G), (xi, xi)))
    K = arb_mat(
        [[-momentum[i, j] for j in range(h)] + [-square[i, j] for j in range(h)] for i in range(h)]
        + [[t * int(i == j) for j in range(h)] + [cross[i, j] for j in range(h)] for i in range(h)]
    )
    E = K.exp()
    top, bottom = (arb_mat([[E[row + i, j] for j in range(h)] for i in range(h)]) for row in (0, h))
    return Ball((G.matrix * top + xi.matrix * bottom) * momentum.exp())


def cone_geodesic(factors: Sequence[Ball], velocity: Sequence[Ball], t: arb, s: arb) -> list[Ball]:
    r"""Return the geodesic of S⁻¹ #ₛ T for h = 1 and s > 0, whatever the velocity; mix is s = 1.

    With G = r g, H = q k (g, k unit vectors), x = rq and y = ln(r/q) the metric is
    x²ˢ(½ẋ²/x² + ½ẏ² + |ġ|² + |k̇|²): a cone of radius ρ = xˢ/(√2 s) over the flat line times two spheres, of which the
    angle advances at φ̇ = s(ẏ² + 2|ġ|² + 2|k̇|²)^½. Unrolled, a geodesic is the straight line (ρ₀ + ρ̇₀t, ρ₀φ̇₀t); with τ
    the angle of it divided by φ̇₀, y, g and k have moved along their own geodesics for the time τ.

    Examples
    --------
    Two numbers: G H moves on a straight line.

    >>> one = Ball(arb_mat([[1]]))
    >>> G, H = cone_geodesic((one, one), (one, one), arb(1), arb(1))
    >>> bool(abs((G @ H).matrix[0, 0] - 3) < 1e-14)
    True
    """
    lengths = [_frobenius(factor) for factor in factors]
    directions = [factor * (1 / length) for factor, length in zip(factors, lengths, strict=True)]
    stretch = [(d.mT @ v).matrix[0, 0] / r for d, v, r in zip(directions, velocity, lengths, strict=True)]
    turns = [v * (1 / r) - d * a for d, v, r, a in zip(directions, velocity, lengths, stretch, strict=True)]
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


def _frobenius(matrix: Ball) -> arb:
    total = sum((entry * entry for entry in matrix.matrix.entries()), arb(0))
    return total.sqrt() if total > 0 else arb(0, total.abs_upper().sqrt())
