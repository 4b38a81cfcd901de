r"""Geodesics without truncation: closed forms, and an integrator that is checked by what must be conserved.

The paper uses the second-order expansion (4) and knows no closed form. There is one for inv, one for mix with square
factors, and one for h = 1.

*inv.* The metric treats the factors separately. The Euler-Lagrange equation conserves :math:`P^\top = S^{-1}ξ^\top G`
and :math:`Ω = ξS^{-1}G^\top - GS^{-1}ξ^\top`, so :math:`G' = ΩG + GP^\top` has constant coefficients:
:math:`G(t) = e^{tΩ} G e^{tP^\top}`. In coordinates G is a p with orthonormal columns
and S = I. With :math:`B = p^\top x` the curve :math:`e^{tΩ}p` stays in the span of p and x:

    e^{Ω} p = p U + x Y,    [U; Y] = the first h columns of exp [[−Bᵀ, −xᵀx], [I, B]].

*mix, n = m = h.* The quotient metric is ½‖dX‖², X = GHᵀ: X is a straight line, :math:`X(t) = X_0 + t\dot X`. Its
horizontal lift is :math:`G(t) = G B, H(t) = H B^\top` with :math:`B = (I + tN)^{½}`,
:math:`N = G^{-1}ξ_G + (H^{-1}ξ_H)^\top`: then G(t)H(t)ᵀ = G(I + tN)Hᵀ, which is the line, and G⁻¹G' = (H⁻¹H')ᵀ =
½N(I + tN)⁻¹, which is horizontal. For h = 1 this is the paper's √(1 + 2bt).

*h = 1.* With G = re^{y/2}u, H = re^{-y/2}w, u and w unit vectors and σ = r², the metric S⁻¹ #ₛ T, s > 0, is
σ^{2s}(½dσ²/σ² + ½dy² + |du|² + |dw|²): with τ = σˢ/s a cone ½(dτ² + τ²dφ²) over the flat line of y times two spheres,
of which the angle φ advances at the speed s(ẏ² + 2|u̇|² + 2|ẇ|²)^½. Unrolled, a geodesic is a straight line; along it
y moves on the line, u and w on great circles. Horizontal velocities have ẏ = 0.

*Otherwise* the equation γ'' = −Γ(γ',γ') is integrated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # whose modules load where they are used

from refgeo.geometry.gauge import BalancedGauge
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array
from refgeo.support.errors import GeodesicAccuracyError, GeodesicIncompleteError, RankDeficientError

RANK_FLOOR = 1e-10
"""Rank counts as lost when the smallest singular value of G Hᵀ falls to this fraction of its initial value."""

DRIFT_BOUND = 1e-9
"""Largest relative change of a conserved quantity that an integrated geodesic may show."""

AGREEMENT_BOUND = 1e-7
"""Largest relative difference of two integrations that differ by rounding."""

_MAXIMUM_STEPS = 3_000


class InvariantCurve:
    """One factor of an inv geodesic in coordinates, to time 1 (derivation in the module's text).

    Parameters
    ----------
    p : ndarray, shape ``(..., n, h)``
        The base point, with orthonormal columns.
    x : ndarray, shape ``(..., n, h)``
        The velocity.

    Examples
    --------
    >>> one = np.array([[1.0]])
    >>> curve = InvariantCurve(one, 0.5 * one)
    >>> curve.end(one), curve.gradient(one, one)
    (array([[1.64872127]]), array([[1.64872127]]))
    """

    def __init__(self, p: Array, x: Array) -> None:
        h, square = p.shape[-1], x.mT @ x
        self.p, self.x, self.B = p, x, p.mT @ x
        # ‖x‖ ≤ speed; Y comes as Y·speed, so that all blocks of the matrix have this size
        speed = np.sqrt(np.trace(square, axis1=-2, axis2=-1))[..., None, None]
        self.speed = np.where(speed > 0.0, speed, 1.0)
        K = np.block([[-self.B.mT, -square / self.speed], [self.speed * np.eye(h), self.B]])
        self.turn, self.growth = _Exponential(K, np.eye(2 * h, h)), _Exponential(self.B, np.eye(h))
        self.U, Y = np.split(self.turn.end, 2, axis=-2)
        self.Y, self.F = Y / self.speed, self.growth.end.mT

    def end(self, back: Array) -> Array:
        """Return the factor at time 1, times `back`, an h×h matrix."""
        return np.asarray(self.p @ (self.U @ self.F @ back) + self.x @ (self.Y @ self.F @ back))

    def gradient(self, e: Array, back: Array) -> Array:
        """Return the gradient of ⟨e, end⟩ with respect to x, times `back`: backwards through `end` and `__init__`."""
        h, falling = self.B.shape[-1], e @ self.F.mT
        to_K = self.turn.gradient(np.concatenate([self.p.mT @ falling, self.x.mT @ falling / self.speed], axis=-2))
        to_B = self.growth.gradient((self.U.mT @ (self.p.mT @ e) + self.Y.mT @ (self.x.mT @ e)).mT)
        to_B = to_B + to_K[..., h:, h:] - to_K[..., :h, :h].mT
        to_square = -to_K[..., :h, h:] / self.speed
        return np.asarray((falling @ self.Y.mT + self.x @ (to_square + to_square.mT) + self.p @ to_B) @ back)


class _Exponential:
    """exp(K) times a start, by Taylor series over k equal substeps, and its derivative with respect to K.

    Terms are T_j = K T_{j−1}/(jk); backwards, T̄_{j−1} = (what the sum passes on) + Kᵀ T̄_j/(jk), and K̄ is the sum of
    T̄_j T_{j−1}ᵀ/(jk). (With SciPy's `expm` and the exponential of a block matrix a search takes twice as long.)
    """

    def __init__(self, K: Array, start: Array) -> None:
        size = float(np.sqrt(np.max(np.linalg.norm(K, 1, (-2, -1)) * np.linalg.norm(K, np.inf, (-2, -1)), initial=0.0)))
        self.K, self.substeps, degree = K, max(1, math.ceil(size / 2.0)), 1
        while (size / self.substeps) ** degree > 2.0**-56 * math.factorial(degree):
            degree += 1
        self.terms: list[list[Array]] = []
        self.end = start
        for _ in range(self.substeps):
            terms = [np.broadcast_to(self.end, (*K.shape[:-1], start.shape[-1]))]
            for j in range(1, degree + 1):
                terms.append(K @ terms[-1] / (j * self.substeps))
            self.terms.append(terms)
            self.end = sum(terms[1:], start=terms[0])

    def gradient(self, falling: Array) -> Array:
        """Return the gradient with respect to K, from that with respect to the end."""
        total: Array = np.zeros(self.K.shape)
        for terms in reversed(self.terms):
            passed = falling
            for j in range(len(terms) - 1, 0, -1):
                back = falling / (j * self.substeps)
                total += back @ terms[j - 1].mT
                falling = passed + self.K.mT @ back
        return total


def square_geodesic_of_mix(gauge: BalancedGauge, v: Pair, t: float) -> Pair:
    """Return the mix geodesic for n = m = h and horizontal `v` (derivation in the module's text).

    Parameters
    ----------
    gauge : BalancedGauge
        Of the base point.
    v : Pair
    t : float

    Returns
    -------
    Pair

    Raises
    ------
    GeodesicIncompleteError
        The line X(t) meets a singular matrix.

    Examples
    --------
    >>> from refgeo.geometry.gauge import balance
    >>> point = Pair([[2.0]], [[3.0]])
    >>> square_geodesic_of_mix(balance(*point), point / 2, 1.0).product.round(12)
    array([[12.]])
    """
    A, A_inverse = gauge.to_balanced
    G, H = gauge.representative
    # Ĝ⁻¹ = Σ⁻¹Ĝᵀ in the balanced gauge.
    inverse_G = G.mT / gauge.sigma[..., :, None]
    inverse_H = H.mT / gauge.sigma[..., :, None]
    N = inverse_G @ v.G @ A_inverse + (inverse_H @ v.H @ A.mT).mT
    _require_rank_kept_on_line(N, t)
    B = _principal_square_root(np.eye(N.shape[-1]) + t * N)
    return Pair.unchecked(G @ B @ A, H @ B.mT @ A_inverse.mT)


def cone_geodesic(gauge: BalancedGauge, v: Pair, t: float, s: float) -> Pair:
    """Return the geodesic of S⁻¹ #ₛ T for h = 1 and s > 0, whatever the velocity (derivation in the module's text).

    Parameters
    ----------
    gauge : BalancedGauge
        Of the base point.
    v : Pair
    t, s : float

    Returns
    -------
    Pair

    Raises
    ------
    GeodesicIncompleteError
        The geodesic runs into the apex of the cone.

    Examples
    --------
    A velocity without radial part:

    >>> from refgeo.geometry.gauge import balance
    >>> point = Pair([[1.0], [0.0]], [[1.0], [0.0]])
    >>> cone_geodesic(balance(*point), Pair([[0.0], [1.0]], [[0.0], [0.0]]), 1.0, s=1.0).G.round(4)
    array([[1.027 ],
           [0.8229]])
    """
    A, A_inverse = gauge.to_balanced
    point, velocities = gauge.representative, (v.G * A_inverse, v.H * A)
    squared_length = gauge.sigma[..., None]
    # The logarithmic derivatives of the lengths; what is left of the velocity turns the factors.
    grows = [np.sum(x * y, axis=-2, keepdims=True) / squared_length for x, y in zip(point, velocities, strict=True)]
    turning = [y - a * x for a, x, y in zip(grows, point, velocities, strict=True)]
    speeds = [np.linalg.norm(x, axis=-2, keepdims=True) / np.sqrt(squared_length) for x in turning]
    apart = grows[0] - grows[1]
    radial = s * (grows[0] + grows[1])
    tangential = s * np.hypot(apart, np.sqrt(2.0) * np.hypot(speeds[0], speeds[1]))
    _require_rank_kept(radial[..., 0], tangential[..., 0], t)
    # σˢ grows by the factor |1 + t(radial + i tangential)|, and r² = σ.
    growth = np.exp(_log_modulus(t * radial, t * tangential) / (2.0 * s))
    # Each of the three moves at its own speed for this time; where nothing does, any value will do.
    angle = np.arctan2(t * tangential, 1.0 + t * radial)
    time = np.divide(angle, tangential, out=np.zeros_like(tangential), where=tangential > 0)
    G, H = (
        # cos(ωt) x + sin(ωt)/ω y, written with sinc for the limit ω = 0
        growth
        * np.exp(sign * 0.5 * apart * time)
        * (x * np.cos(speed * time) + y * time * np.sinc(speed * time / np.pi))
        for sign, x, y, speed in zip((1.0, -1.0), point, turning, speeds, strict=True)
    )
    return Pair.unchecked(G * A, H * A_inverse)


def _log_modulus(real: Array, imaginary: Array) -> Array:
    """Return log |1 + real + i·imaginary|, with all digits both near 1 and near 0."""
    squares = real * (2.0 + real) + imaginary**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > -0.5, 0.5 * np.log1p(squares), np.log(np.hypot(1.0 + real, imaginary)))


def _require_rank_kept(real: Array, imaginary: Array, t: float) -> None:
    """Raise if ``1 + s(real + i·imaginary)`` comes within `RANK_FLOOR` of zero for an s between 0 and t."""
    modulus = np.hypot(real, imaginary)
    with np.errstate(divide="ignore", invalid="ignore"):
        nearest = -real / modulus**2
        hit = (np.abs(imaginary) <= RANK_FLOOR * modulus) & (nearest * np.sign(t) > 0) & (np.abs(nearest) <= abs(t))
    _refuse_first(hit, nearest, t)


def _require_rank_kept_on_line(N: Array, t: float) -> None:
    """Raise if ``I + sN`` is singular, to `RANK_FLOOR`, for an s between 0 and t.

    An eigenvalue λ of N puts the nearest approach at s = −Re λ/|λ|². Eigenvalues of a defective N are known to a root
    of the rounding only, but the smallest singular value there is small all the same.
    """
    eigenvalues = np.linalg.eigvals(N)
    with np.errstate(all="ignore"):
        s = -eigenvalues.real / np.abs(eigenvalues) ** 2
        reached = np.isfinite(s) & (s * np.sign(t) > 0) & (np.abs(s) <= abs(t))
    s = np.where(reached, s, 0.0)
    values = np.linalg.svd(np.eye(N.shape[-1]) + s[..., None, None] * N[..., None, :, :], compute_uv=False)
    size = 1.0 + np.abs(s) * np.linalg.norm(N, axis=(-2, -1))[..., None]
    _refuse_first(reached & (values[..., -1] <= RANK_FLOOR * size), s, t)


def _refuse_first(hit: npt.NDArray[np.bool_], times: Array, t: float) -> None:
    """Raise for the first of the times that hit."""
    if hit.any():
        index = np.unravel_index(int(np.argmin(np.where(hit, np.abs(times), np.inf))), times.shape)
        raise _incomplete(float(times[index]), t, tuple(int(i) for i in index[:-1]))


def _incomplete(time: float, t: float, block: tuple[int, ...]) -> GeodesicIncompleteError:
    place = f" in block {block}" if block else ""
    return GeodesicIncompleteError(
        f"the geodesic loses rank at time {time:.9g}{place}, before t = {t:.9g}: there, a factor no longer has full "
        "column rank, so the geodesic ends; ask for a shorter time or a smaller velocity",
        time,
        block,
    )


@partial(np.vectorize, signature="(h,h)->(h,h)", otypes=[np.float64])
def _principal_square_root(matrix: Array) -> Array:
    return np.asarray(scipy.linalg.sqrtm(matrix).real)


@dataclass(frozen=True)
class GeodesicSolution:
    """An integrated geodesic.

    Attributes
    ----------
    point, velocity : Pair
        γ(t) and γ'(t).
    drift : dict of float
        The largest relative change, over all blocks, of each conserved quantity of `PairTangentSpace.momenta`.
    """

    point: Pair
    velocity: Pair
    drift: dict[str, float]


def integrate(space: Any, v: Pair, t: float, rtol: float = 1e-13) -> GeodesicSolution:
    r"""Integrate :math:`γ'' = -Γ(γ', γ')` with SciPy's DOP853 and check what the geodesic must conserve.

    The curve stays in the span of the columns of G and v_G (and of H and v_H), so 2h rows suffice whatever n and m;
    without relaxation the balanced gauge is used. All blocks advance together, with a common step.

    Parameters
    ----------
    space : PairTangentSpace
        At γ(0).
    v : Pair
        γ'(0).
    t : float
    rtol : float
        Tolerance of the integrator.

    Returns
    -------
    GeodesicSolution

    Raises
    ------
    GeodesicIncompleteError
        Rank is lost before `t`: the smallest singular value of a block's G Hᵀ falls to 1e-10 of its initial value.
    GeodesicAccuracyError
        A conserved quantity changed by more than ``DRIFT_BOUND`` = 1e-9, relative; two integrations, with different
        tolerances and velocities that differ by a rounding, come apart by more than ``AGREEMENT_BOUND`` = 1e-7; or the
        integrator does not reach t.

    Examples
    --------
    >>> import refgeo as rg
    >>> space = rg.MixedMetric().at(rg.Pair(np.eye(4, 2), np.eye(3, 2)))
    >>> solution = integrate(space, space.random_tangent_vector(0), 0.5)
    >>> max(solution.drift.values()) < 1e-11
    True
    """
    if t == 0.0 or space.point.G.size == 0:
        return GeodesicSolution(space.point, v, dict.fromkeys(space.momenta(v), 0.0))
    # Momenta bound the error along the symmetries only; close to a loss of rank nearby geodesics part, and that shows
    # when one that differs by a rounding is followed with another tolerance.
    rng, eps = np.random.default_rng(0), np.finfo(np.float64).eps
    nearby = Pair.unchecked(*(part * (1.0 + eps * rng.standard_normal(part.shape)) for part in v))
    solution, again = _integrate(space, v, t, rtol), _integrate(space, nearby, t, 30.0 * rtol)
    difference = max(
        float(np.max(np.linalg.norm(a - b, axis=(-2, -1)) / np.linalg.norm(a, axis=(-2, -1))))
        for a, b in zip(solution.point, again.point, strict=True)
    )
    if not difference <= AGREEMENT_BOUND:
        raise GeodesicAccuracyError(
            f"two integrations of the geodesic to t = {t:.9g} that differ by rounding come apart by {difference:.1e} "
            f"(relative), which is more than the bound {AGREEMENT_BOUND:.0e}; the geodesic passes too close to a point "
            "without full rank; ask for a shorter time or a smaller velocity"
        )
    return solution


class _Reduced:
    """The same geodesic in the balanced gauge and in the span of point and velocity, which it never leaves."""

    def __init__(self, space: Any, v: Pair) -> None:
        self.metric = space.metric
        self.is_relaxed = space.gauge.relaxed  # only O(h) is left of the group
        self._A = np.eye(space.point.sizes[2]) if self.is_relaxed else space.gauge.to_balanced[0]
        self._A_inverse = np.linalg.inv(self._A)  # of A as it is, so that a point comes back to rounding
        point, velocity = space.point.transform(self._A), v.transform(self._A)
        self._bases = [np.linalg.qr(np.concatenate(parts, axis=-1))[0] for parts in zip(point, velocity, strict=True)]
        self.point, self.velocity = (
            Pair.unchecked(*(basis.mT @ part for basis, part in zip(self._bases, pair, strict=True)))
            for pair in (point, velocity)
        )

    def lift(self, reduced: Pair) -> Pair:
        """Return a point or vector in the coordinates of the space."""
        parts = (basis @ part for basis, part in zip(self._bases, reduced, strict=True))
        return Pair.unchecked(*parts).transform(self._A_inverse)

    def pack(self, position: Pair, velocity: Pair) -> Array:
        """Return both as one flat vector."""
        return np.concatenate([part.ravel() for part in (*position, *velocity)])

    def unpack(self, y: Array) -> tuple[Pair, Pair]:
        """Return the inverse of `pack`."""
        parts = np.split(y, np.cumsum([self.point.G.size, self.point.H.size, self.point.G.size]))
        shapes = 2 * (self.point.G.shape, self.point.H.shape)
        G, H, v_G, v_H = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        return Pair.unchecked(G, H), Pair.unchecked(v_G, v_H)

    def derivative(self, _: float, y: Array) -> Array:
        """Return γ'' = −Γ(γ', γ')."""
        position, velocity = self.unpack(y)
        return self.pack(velocity, -self.metric.at(position).christoffel(velocity))


def _integrate(space: Any, v: Pair, t: float, rtol: float) -> GeodesicSolution:
    """Integrate once in time from 0 to 1 with velocity t·v, so that positions and velocities have comparable
    size.
    """
    from scipy.integrate import DOP853  # deferred: slow to import, and no other part needs it

    reduced = _Reduced(space, t * v)
    first = space.metric.at(reduced.point)
    size = np.hypot(*(np.linalg.norm(factor, axis=(-2, -1)) for factor in reduced.point))[..., None, None]
    sizes = Pair.unchecked(*(np.broadcast_to(size, factor.shape).copy() for factor in reduced.point))
    y, scale = reduced.pack(reduced.point, reduced.velocity), reduced.pack(sizes, sizes)
    with np.errstate(under="ignore"):  # as SciPy's own code expects
        solver = DOP853(reduced.derivative, 0.0, y, 1.0, rtol=rtol, atol=rtol * scale)
        last = _follow(solver, reduced, first, t)
    end, end_velocity = reduced.unpack(solver.y)
    drift = _drift(first, reduced.velocity, last, end_velocity)
    worst = max(drift, key=lambda name: drift[name])
    if drift[worst] > DRIFT_BOUND:
        raise GeodesicAccuracyError(
            f"along the integrated geodesic, the conserved quantity {worst!r} changes by {drift[worst]:.1e} "
            f"(relative), which is more than the bound {DRIFT_BOUND:.0e}; ask for a shorter time or a smaller velocity"
        )
    return GeodesicSolution(reduced.lift(end), reduced.lift(end_velocity) / t, drift)


def _follow(solver: Any, reduced: _Reduced, first: Any, t: float) -> Any:
    """Return the tangent space at the end, or raise an error where the geodesic loses rank before."""
    last = first
    for _ in range(_MAXIMUM_STEPS):
        previous, velocity = solver.t, reduced.unpack(solver.y)[1]
        whitened = (velocity.G @ last.gauge.white_G, velocity.H @ last.gauge.white_H)
        speed = max(float(np.linalg.norm(part, axis=(-2, -1)).max()) for part in whitened)
        solver.max_step = 0.5 / speed if speed else np.inf  # within which no factor passes a lower rank
        try:
            solver.step()
            last = reduced.metric.at(reduced.unpack(solver.y)[0])
        except RankDeficientError as error:
            raise _incomplete(t * previous, t, error.block) from error
        ratio = last.gauge.sigma[..., -1] / first.gauge.sigma[..., -1]
        if not reduced.is_relaxed and ratio.min() <= RANK_FLOOR:
            block = np.unravel_index(int(np.argmin(ratio)), ratio.shape)
            raise _incomplete(t * solver.t, t, tuple(int(i) for i in block))
        if solver.status == "finished":
            return last
        if solver.status != "running":
            break
    raise GeodesicAccuracyError(
        f"the integration of the geodesic stopped at time {t * solver.t:.9g}, before t = {t:.9g}, after {solver.nfev} "
        "evaluations of Γ; ask for a shorter time or a smaller velocity"
    )


def _drift(first: Any, v0: Pair, last: Any, v1: Pair) -> dict[str, float]:
    before, after = first.momenta(v0), last.momenta(v1)
    energy = before["energy"]
    momentum = first.norm(first.point) * first.norm(v0)
    drift = {}
    for name in before:
        scale = energy if name == "energy" else momentum[..., None, None]
        with np.errstate(invalid="ignore"):  # a block at rest: 0/0, nothing changed
            drift[name] = float(np.nan_to_num(np.abs(after[name] - before[name]) / scale).max())
    return drift
