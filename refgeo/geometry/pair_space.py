r"""The tangent space of a pair metric, of inv and mix and all between: in metric-orthonormal coordinates.

inv (9) measures G in :math:`S^{-1}` and mix (10) in T, with :math:`S = G^\top G, T = H^\top H`. Between two positive
definite matrices lies their weighted geometric mean, so both are ends of one family of GL(h)-invariant metrics,

    ⟨a, b⟩ = tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H),    M_G = S⁻¹ #ₛ T = S⁻¹(ST)ˢ,    M_H = T⁻¹ #ₛ S,    0 ≤ s ≤ 1.

*Coordinates.* In the balanced gauge S = T = Σ, and both weights are :math:`Σ^{2s-1}`. Carried back to the point,
:math:`M = C C^\top` with

    C_G = white_G Σˢ = root_H Σˢ⁻¹,    C_H = white_H Σˢ = root_G Σˢ⁻¹,

so a tangent vector ξ has coordinates :math:`x = (ξ_G C_G, ξ_H C_H)` and ⟨ξ, ζ⟩ is the plain dot product of x and z.
The base point has coordinates :math:`p = QΣ^s`, Q the gauge's orthonormal columns.

*Projection.* With :math:`P = QΣ^{1-s}` the vertical space is :math:`\{(P_G Y, -P_H Y^\top)\}` (put
:math:`Λ = C_H^{-\top} Y C_G^{-1}` in (GΛ, −HΛᵀ)). Projecting x means solving

    (P_GᵀP_G) Y + Y (P_HᵀP_H) = x_Hᵀ P_H − P_Gᵀ x_G,

a Sylvester equation that is diagonal: without relaxation both coefficients are :math:`Σ^{2-2s}`. With it the columns Q
are no longer orthonormal, and the eigenvectors of the two coefficients make it diagonal.

*Derivative of the metric.* Divided differences of powers of σ² give the derivative of a weighted mean where S = T = Σ.
In coordinates the derivative of :math:`M_G` along ξ, and of :math:`M_H` with the factors exchanged, is D(x, p), with

    D_G(x, z) = α ∘ (x_Gᵀz_G + z_Gᵀx_G) + β ∘ (x_Hᵀz_H + z_Hᵀx_H),
    α_ij = −(σ_iσ_j)⁻ˢ sinh((1−s) r)/sinh r,    β_ij = (σ_iσ_j)⁻ˢ sinh(s r)/sinh r,    r = log(σ_i/σ_j)

(for inv α = −1, β = 0; for mix α = 0, β = 1/(σ_iσ_j); where r = 0, sinh(s r)/sinh r = s). The D(x, p) are symmetric,
and so is D in its arguments; Koszul's formula for :math:`⟨·, ·⟩` and its adjoint leave

    Γ(x, z)    = ½ [ z D(x, p) + x D(z, p) − p D(x, z) ]
    Γ(x, ·)* e = ½ [ e D(x, p) + p D(x, e) − x D(e, p) ]
    D(grad f)  = grad of the Euclidean Hessian − e D(x, p).

With relaxation ε (App. H.2) S + εI and T + εI replace S and T in the metric: their gauge, the same formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.gauge import BalancedGauge
from refgeo.geometry.geodesics import InvariantCurve, cone_geodesic, integrate, square_geodesic_of_mix
from refgeo.geometry.pair import Pair, as_pair
from refgeo.geometry.tangent_space import TangentSpace
from refgeo.support.arguments import Array
from refgeo.support.errors import NotFiniteError

Matrices = tuple[Array, Array]
"""For G and for H."""

_NOISE = 1 << 18
"""Number of random numbers at a time, to save memory."""


class PairTangentSpace(TangentSpace[Pair]):
    r"""Tangent space of a pair metric; made by ``metric.at(point)``.

    The Riemannian Hessian :math:`P^H(D\,\mathrm{grad} f[v] + Γ(\mathrm{grad} f, v))` of an invariant loss along a
    horizontal v is self-adjoint in the metric. Exact geodesics have a closed form for inv, for h = 1, and for mix
    with n = m = h; otherwise (mix in general, any relaxation > 0) they are integrated, and their conserved quantities
    are checked, see `refgeo.geometry.geodesics`: `GeodesicIncompleteError` where rank is lost at or before t, which
    inv never does, `GeodesicAccuracyError` where a conserved quantity has drifted. In coordinates a vector that moves
    with the group is the same at every point of an orbit (up to rounding, and up to rotation where singular values of
    G Hᵀ coincide).

    Attributes
    ----------
    metric : InterpolatedMetric
    point : Pair
    dim : int
        Dimension of the quotient, (n + m − h) h, per block.
    n_coordinates : int
        Length of a coordinate vector, (n + m) h, per block.
    block_shape : tuple
        Shape of the independent blocks.
    gauge : BalancedGauge
        The factorisation of the base point.

    Examples
    --------
    The loss ½(GH)² of two numbers has Hessian 4(GH)² in the direction (G, H)/√2 of unit length:

    >>> import refgeo as rg
    >>> g, h = 2.0, 3.0
    >>> space = rg.InvariantMetric().at(rg.Pair([[g]], [[h]]))
    >>> v = rg.Pair([[g]], [[h]]) / 2**0.5
    >>> egrad = rg.Pair([[g * h * h]], [[g * g * h]])
    >>> ehess_v = rg.Pair([[h * h * g + 2 * g * h * h]], [[2 * g * h * g + g * g * h]]) / 2**0.5
    >>> round(float(space.inner_product(v, space.riemannian_hessian(egrad, ehess_v, v))), 12)
    144.0

    The inv geodesic of two numbers is (G exp(bt), H exp(bt)) (App. D):

    >>> space.geodesic(rg.Pair([[2.0]], [[3.0]]), t=np.log(2), order="exact").product.round(12)
    array([[24.]])

    The gradient of ℓ = G along G e^b is 2e^b, and twice that as ⟨·, ·⟩ is da²/G²:

    >>> space.geodesic_gradient(rg.Pair([[2.0]], [[0.0]]), rg.Pair([[1.0]], [[0.0]]), "exact").G.round(6)
    array([[10.873127]])
    """

    metric: Any

    def __init__(self, metric: Any, point: Pair, gauge: BalancedGauge) -> None:
        n, m, h = point.sizes
        self.metric, self.point, self.gauge = metric, point, gauge
        self.is_complex = point.G.dtype.kind == "c"
        self.block_shape, self.dim = point.block_shape, (n + m - h) * h * (2 if self.is_complex else 1)
        self.n_coordinates = (n + m) * h * (2 if self.is_complex else 1)
        self._cut = n * h
        if not np.all((gauge.sigma >= np.finfo(float).tiny) & (gauge.sigma < np.inf)):
            raise NotFiniteError("point: the singular values of G Hᵀ are beyond the range of floats; use other units")
        self._C, self._C_inverse = _frames(gauge, metric.s)
        self._powers = gauge.sigma[..., None, :] ** metric.s
        # α and β without their factor (σ_iσ_j)⁻ˢ
        self._kernels = -_sinh_ratio(1.0 - metric.s, gauge.sigma), _sinh_ratio(metric.s, gauge.sigma)
        # Any multiple of P spans the vertical space; this one neither overflows nor underflows.
        self._P_weights = (gauge.sigma / gauge.sigma[..., :1])[..., None, :] ** (1.0 - metric.s)

    def _vector(self, name: str, value: object) -> Pair:
        return self.point.require_shapes(name, as_pair(name, value))

    # Coordinates: x = ξC; those of a Euclidean gradient are e C⁻ᵀ

    def _to(self, v: Pair) -> Array:
        return self._flat(v.G @ self._C[0], v.H @ self._C[1])

    def _back(self, x: Array) -> Pair:
        G, H = self._split(x)
        return Pair.unchecked(G @ self._C_inverse[0], H @ self._C_inverse[1])

    def _gradient_to(self, e: Pair) -> Array:
        return self._flat(e.G @ self._C_inverse[0].mT.conj(), e.H @ self._C_inverse[1].mT.conj())

    def _gradient_back(self, x: Array) -> Pair:
        G, H = self._split(x)
        return Pair.unchecked(G @ self._C[0].mT.conj(), H @ self._C[1].mT.conj())

    def _flat(self, G: Array, H: Array) -> Array:
        parts = G.reshape(*self.block_shape, self._cut), H.reshape(*self.block_shape, H.shape[-2] * H.shape[-1])
        x = np.concatenate(parts, axis=-1)
        return x.view(np.float64) if self.is_complex else x

    def _split(self, x: Array) -> Matrices:
        """Return both factors of flat coordinates, as views."""
        x = x.view(np.complex128) if self.is_complex else x
        return x[..., : self._cut].reshape(self.point.G.shape), x[..., self._cut :].reshape(self.point.H.shape)

    # The geometry, in coordinates

    def _vertical(self, x: Array) -> Array:
        """Return (−P_G Y, P_H Yᵀ) for (P_GᵀP_G) Y + Y (P_HᵀP_H) = x_HᵀP_H − P_Gᵀx_G."""
        (x_G, x_H), (P_G, P_H) = self._split(x), self._P
        Y = self._solve(x_H.mT.conj() @ P_H - P_G.mT.conj() @ x_G)
        return self._flat(-P_G @ Y, P_H @ Y.mT.conj())

    def _gamma(self, x: Array, z: Array) -> Array:
        """Return ½ [ z D(x, p) + x D(z, p) − p D(x, z) ]."""
        (x_G, x_H), (z_G, z_H), (Q_G, Q_H) = self._split(x), self._split(z), self.gauge.columns
        along_x, between = self._along(x_G, x_H), self._between(x_G, x_H, z_G, z_H)
        along_z = along_x if z is x else self._along(z_G, z_H)
        return self._flat(
            0.5 * (z_G @ along_x[0] + x_G @ along_z[0] - Q_G @ between[0]),
            0.5 * (z_H @ along_x[1] + x_H @ along_z[1] - Q_H @ between[1]),
        )

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        """Return ½ [ e D(x, p) + p D(x, e) − x D(e, p) ]."""
        (x_G, x_H), (e_G, e_H), (Q_G, Q_H) = self._split(x), self._split(e), self.gauge.columns
        along_x, along_e, between = self._along(x_G, x_H), self._along(e_G, e_H), self._between(x_G, x_H, e_G, e_H)
        return self._flat(
            0.5 * (e_G @ along_x[0] + Q_G @ between[0] - x_G @ along_e[0]),
            0.5 * (e_H @ along_x[1] + Q_H @ between[1] - x_H @ along_e[1]),
        )

    def _along(self, x_G: Array, x_H: Array) -> Matrices:
        """Return D(x, p)."""
        Q_G, Q_H = self.gauge.columns
        return self._derivative(Q_G.mT.conj() @ x_G, Q_H.mT.conj() @ x_H)

    def _derivative(self, G: Array, H: Array) -> Matrices:
        """Return D(x, p) from Qᵀx."""
        (alpha, beta), G, H = self._kernels, G / self._powers, H / self._powers
        G, H = G + G.mT.conj(), H + H.mT.conj()
        return alpha * G + beta * H, alpha * H + beta * G

    def _between(self, x_G: Array, x_H: Array, z_G: Array, z_H: Array) -> Matrices:
        """Return Σˢ D(x, z), so that p D(x, z) is Q times it; divided before it is multiplied, so that nothing
        underflows.
        """
        return self._bend((x_G / self._powers).mT.conj() @ z_G, (x_H / self._powers).mT.conj() @ z_H)

    def _bend(self, G: Array, H: Array) -> Matrices:
        """Return Σˢ D(x, z) from Σ⁻ˢxᵀz."""
        (alpha, beta), ratio = self._kernels, self._powers.mT / self._powers
        G, H = ratio * G + G.mT.conj(), ratio * H + H.mT.conj()
        return alpha * G + beta * H, alpha * H + beta * G

    @cached_property
    def _P(self) -> Matrices:
        Q_G, Q_H = self.gauge.columns
        return Q_G * self._P_weights, Q_H * self._P_weights

    @cached_property
    def _vertical_eigen(self) -> list[tuple[Array, Array | None]]:
        """Eigenvalues and orthogonal eigenvectors (None for the identity) of PᵀP."""
        if not self.gauge.relaxed:
            return [(self._P_weights[..., 0, :] ** 2, None)] * 2
        decompositions = [np.linalg.svd(P, full_matrices=False) for P in self._P]
        return [(values**2, W.mT.conj()) for _, values, W in decompositions]

    def _solve(self, right_side: Array) -> Array:
        """Return Y of the diagonal Sylvester equation."""
        (values_G, vectors_G), (values_H, vectors_H) = self._vertical_eigen
        denominator = values_G[..., :, None] + values_H[..., None, :]
        if vectors_G is None or vectors_H is None:
            return right_side / denominator
        return vectors_G @ (vectors_G.mT @ right_side @ vectors_H / denominator) @ vectors_H.mT

    def _exact(self, v: Pair, t: float) -> Pair:
        s, (n, m, h) = self.metric.s, self.point.sizes
        if self.gauge.relaxed:
            return integrate(self, v, t).point
        if s == 0.0:
            curves = zip(self._curves(v * t), self._C_inverse, strict=True)
            return Pair.unchecked(*(curve.end(C) for curve, C in curves))
        if h == 1:
            return cone_geodesic(self.gauge, v, t, s)
        if s == 1.0 and n == m == h and not self._counts_as_vertical(v):
            return square_geodesic_of_mix(self.gauge, v, t)
        return integrate(self, v, t).point

    def _exact_gradient(self, v: Pair, e: Pair) -> Pair:
        if self.metric.s > 0.0 or self.gauge.relaxed:
            return super()._exact_gradient(v, e)
        falling = zip(self._curves(v), self._split(self._gradient_to(e)), self._C_inverse, strict=True)
        return Pair.unchecked(*(curve.gradient(x, C) for curve, x, C in falling))

    def _curves(self, v: Pair) -> list[InvariantCurve]:
        """Return the curves of G and of H, which do not depend on each other."""
        return [InvariantCurve(Q, x) for Q, x in zip(self.gauge.columns, self._split(self._to(v)), strict=True)]

    def _counts_as_vertical(self, v: Pair) -> bool:
        """Return whether v has a vertical part beyond the rounding of v or of the point: a closed form is
        horizontal.
        """
        rounding = np.finfo(np.float64).eps * float(np.max(self.gauge.condition, initial=1.0))
        vertical = self.norm(self.vertical_projection(v))
        return bool(np.any(vertical > rounding * np.maximum(100.0 * self.norm(v), 1000.0 * self.norm(self.point))))

    # What is said otherwise than in general ------------------------------------------------------------------------

    def metric_tensor(self) -> tuple[Array, Array]:
        r"""Return the matrices :math:`M_G, M_H` with ⟨a, b⟩ = tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H): S⁻¹ and T⁻¹, or T and
        S.

        Examples
        --------
        >>> import refgeo as rg
        >>> M_G, M_H = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]])).metric_tensor()
        >>> round(M_G.item(), 12), round(M_H.item(), 12)
        (9.0, 4.0)
        """
        C_G, C_H = self._C
        return C_G @ C_G.mT.conj(), C_H @ C_H.mT.conj()

    def vertical_vector(self, K: npt.ArrayLike) -> Pair:
        r"""Return the velocity :math:`(G K, -H K^\top)` of the group orbit in direction −K of the Lie algebra (Sec.
        5.2).

        Parameters
        ----------
        K : array_like, shape ``(h, h)`` or ``(..., h, h)``

        Returns
        -------
        Pair, a vertical tangent vector.

        Examples
        --------
        >>> import refgeo as rg
        >>> G, H = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]])).vertical_vector([[1.0]])
        >>> G.item(), H.item()
        (2.0, -3.0)
        """
        generator = self.point.square("K", K)
        return Pair.unchecked(self.point.G @ generator, -(self.point.H @ generator.mT))

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Return standard normal coordinates, the same vector along an orbit even where singular values of G Hᵀ
        coincide.

        There the gauge is free to rotate, Q to QR; noise of the product space, Z Q_H and Zᵀ Q_G, rotates with it.
        """
        n, m, _ = self.point.sizes
        Q_G, Q_H = self.gauge.columns
        if self.gauge.relaxed:  # only O(h) is left, and Q has no orthonormal columns
            return super().normal_coordinates(rng)
        rows = max(1, _NOISE // m)

        def noise() -> Iterator[tuple[slice, Array]]:
            """Yield the rows of Z, n×m, a few at a time."""
            for start in range(0, n, rows):
                part = slice(start, min(start + rows, n))
                yield part, rng.standard_normal((part.stop - start, m))

        x_G, x_H = np.empty(Q_G.shape), np.zeros(Q_H.shape)
        for block in np.ndindex(self.block_shape):
            for part, Z in noise():
                x_G[block][part] = Z @ Q_H[block]
        for block in np.ndindex(self.block_shape):
            for part, Z in noise():
                x_H[block] += Z.T @ Q_G[block][part]
        return self._flat(x_G, x_H)

    def momenta(self, v: Pair) -> dict[str, Array]:
        r"""Return what a geodesic with velocity `v` conserves, by the symmetries of the metric (Noether).

        Returns
        -------
        dict of ndarray
            ``energy`` ½‖v‖²; ``rotation_G`` :math:`x_G p_G^\top - p_G x_G^\top` from O(n) acting on G from the left
            (for mix :math:`v_G T G^\top - G T v_G^\top`), ``rotation_H`` alike; ``vertical`` the momentum of GL(h)
            (zero if v is horizontal; for mix :math:`G^\top v_G T - S v_H^\top H`). With relaxation only O(h) is left
            of GL(h), and ``vertical`` is the skew part.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.MixedMetric().at(rg.Pair(np.eye(3, 2), np.eye(4, 2)))
        >>> bool(np.abs(space.momenta(space.random_tangent_vector(0))["vertical"]).max() < 1e-14)
        True
        """
        v = self._vector("v", v)
        (x_G, x_H), (Q_G, Q_H) = self._split(self._to(v)), self.gauge.columns
        p_G, p_H = Q_G * self._powers, Q_H * self._powers
        vertical = self.point.G.mT @ x_G @ self._C[0].mT - self._C[1] @ x_H.mT @ self.point.H
        if self.gauge.relaxed:
            vertical = vertical - vertical.mT
        return {
            "energy": 0.5 * self.norm(v) ** 2,
            "rotation_G": x_G @ p_G.mT - p_G @ x_G.mT,
            "rotation_H": x_H @ p_H.mT - p_H @ x_H.mT,
            "vertical": vertical,
        }


def _frames(gauge: BalancedGauge, s: float) -> tuple[Matrices, Matrices]:
    """Return C of both factors and its inverse, from the nearer end of the family."""
    power = gauge.sigma[..., None, :] ** min(s, 1.0 - s)
    roots, whites = (gauge.root_G, gauge.root_H), (gauge.white_G, gauge.white_H)
    if s <= 0.5:
        return (whites[0] * power, whites[1] * power), ((roots[0] / power).mT.conj(), (roots[1] / power).mT.conj())
    return (roots[1] / power, roots[0] / power), ((whites[1] * power).mT.conj(), (whites[0] * power).mT.conj())


def _sinh_ratio(a: float, sigma: Array) -> Array:
    """Return sinh(a r)/sinh(r), r = |log(σ_i/σ_j)|, 0 ≤ a ≤ 1: a where r = 0, and never a difference of powers."""
    if a in (0.0, 1.0):
        return np.asarray(a)
    r = np.abs(np.log(sigma[..., :, None] / sigma[..., None, :]))
    quotient = np.divide(np.expm1(-2.0 * a * r), np.expm1(-2.0 * r), out=np.full(r.shape, a), where=r > 0.0)
    return np.asarray(np.exp((a - 1.0) * r) * quotient)


def relative_speed(space: PairTangentSpace, v: Pair) -> Array:
    """Return the speed of the factors relative to themselves: :math:`(‖v_G S^{-½}‖_F^2 + ‖v_H T^{-½}‖_F^2)^{½}`.

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
