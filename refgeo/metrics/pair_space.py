r"""The two GL(h) quotient geometries in common: everything in metric-orthonormal coordinates.

Write the metric tensor as :math:`C C^\top`, so that a tangent vector ξ has coordinates
:math:`x = (ξ_G C_G, ξ_H C_H)` and :math:`⟨ξ, ζ⟩` is the plain dot product of x and z. The balanced factorisation gives

    inv:  C_G = white_G,  C_H = white_H        mix:  C_G = root_H,  C_H = root_G

The base point has coordinates :math:`p = (G C_G, H C_H)`, and with :math:`P_G = G C_H^{-\top}`,
:math:`P_H = H C_G^{-\top}` the vertical space is :math:`\{(P_G Y, -P_H Y^\top)\}`. (Put
:math:`Λ = C_H^{-\top} Y C_G^{-1}` in (GΛ, −HΛᵀ).) Both are the gauge's orthonormal columns Q, scaled:

    inv:  p = Q,  P = QΣ (or any multiple of it)     mix:  p = QΣ,  P = Q

Projecting x therefore means solving

    (P_GᵀP_G) Y + Y (P_HᵀP_H) = x_Hᵀ P_H − P_Gᵀ x_G,

a Sylvester equation that is diagonal: without relaxation both coefficients are Σ² (inv) or I (mix). With it the
columns Q are no longer orthonormal, and the eigenvectors of the two coefficients make it diagonal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refgeo.arguments import Array, Order, number, order_of, real_array
from refgeo.balanced import BalancedGauge, balance
from refgeo.geodesics import integrate
from refgeo.metrics.tangent_space import Metric, TangentSpace
from refgeo.pair import Pair, transpose


def symmetric_sum(matrix: Array) -> Array:
    """``M + Mᵀ``, block by block.

    Examples
    --------
    >>> symmetric_sum(np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[2., 2.],
           [2., 6.]])
    """
    return matrix + transpose(matrix)


@dataclass(frozen=True)
class Frame:
    """Change of coordinates for one factor: ``x = ξ @ to`` and ``ξ = x @ back``; a Euclidean gradient e becomes
    ``e @ backᵀ``.
    """

    to: Array
    back: Array


@dataclass(frozen=True)
class VerticalBasis:
    """``P`` of one factor, with the eigenvalues and orthogonal eigenvectors of ``PᵀP`` (None for the identity)."""

    P: Array
    eigenvalues: Array
    eigenvectors: Array | None


class PairMetric(Metric[Pair]):
    """A metric on pairs that depends on them through ``S + εI`` and ``T + εI`` only."""

    _space: type[PairTangentSpace]

    def __init__(self, relaxation: float = 0.0) -> None:
        self.relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(relaxation={self.relaxation})"

    def at(self, point: Pair) -> PairTangentSpace:
        """Factorise `point` once and return its tangent space.

        Parameters
        ----------
        point : Pair, or a tuple (G, H)

        Returns
        -------
        PairTangentSpace

        Raises
        ------
        RankDeficientError
            A factor has numerical rank below h at double precision.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.MixedMetric().at(rg.Pair(np.ones((5, 1)), np.ones((4, 1)))).dim
        8
        """
        point = as_pair("point", point)
        return self._space(self, point, balance(point, self.relaxation))


def as_pair(name: str, value: object) -> Pair:
    """`value` itself if it is a `Pair`, a `Pair` of its two members if it is a tuple or list of two.

    Examples
    --------
    >>> as_pair("v", ([[1.0]], [[2.0]]))
    Pair(G (1, 1), H (1, 1))
    """
    if isinstance(value, Pair):
        return value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return Pair(*value)
    raise TypeError(f"{name}: expected a Pair (or a tuple (G, H)), got {type(value).__name__}; use refgeo.Pair(G, H)")


class PairTangentSpace(TangentSpace[Pair]):
    r"""Tangent space of a pair metric; made by ``metric.at(point)``.

    Attributes
    ----------
    metric : PairMetric
    point : Pair
    dim : int
        Dimension of the quotient, (n + m − h) h, per block.
    n_coordinates : int
        Length of a coordinate vector, (n + m) h, per block.
    block_shape : tuple
        Shape of the independent blocks.
    gauge : BalancedGauge
        The factorisation of the base point.
    """

    metric: PairMetric

    def __init__(self, metric: PairMetric, point: Pair, gauge: BalancedGauge) -> None:
        n, m, h = point.sizes
        self.metric, self.point, self.gauge = metric, point, gauge
        self.dim = (n + m - h) * h
        self.n_coordinates = (n + m) * h
        self.block_shape = point.block_shape
        self._frame_G, self._frame_H = self._frames(gauge)
        point_weights, vertical_weights = self._weights(gauge)
        self._columns = (gauge.orthonormal_G, gauge.orthonormal_H)
        self._grams = tuple(transpose(q) @ q if metric.relaxation > 0.0 else None for q in self._columns)
        self._vertical_weights = np.ones_like(gauge.sigma) if vertical_weights is None else vertical_weights
        self._p = _scaled_columns(gauge, point_weights)
        self._vertical_bases = _vertical_bases(gauge, vertical_weights, relaxed=metric.relaxation > 0.0)

    # What a metric adds ------------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def _frames(gauge: BalancedGauge) -> tuple[Frame, Frame]:
        """C of both factors with its inverse."""

    @staticmethod
    @abstractmethod
    def _weights(gauge: BalancedGauge) -> tuple[Array | None, Array | None]:
        """The factors of the orthonormal columns in p and in P (None: all 1)."""

    @abstractmethod
    def _christoffel(self, x: Pair, z: Pair) -> Pair:
        """Γ in coordinates."""

    @abstractmethod
    def _christoffel_adjoint(self, x: Pair, e: Pair) -> Pair:
        """Γ(x, ·)* in coordinates."""

    @abstractmethod
    def _bent(
        self, along: Sequence[Array], squares: Sequence[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """A and B of both factors with x − ½Γ(x, x) = xA + QB, from Qᵀx and xᵀx."""

    @abstractmethod
    def _bent_adjoint(
        self, along: Sequence[Array], falling: Sequence[Array], mixed: Sequence[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        """A, B and C of both factors with e − Γ(x, ·)* e = eA + QB + xC, from Qᵀx, Qᵀe and eᵀx."""

    @abstractmethod
    def _gradient_derivative(self, e: Pair, x: Pair) -> Pair:
        """The derivative of the metric tensor's inverse along x, applied to the gradient e, in coordinates."""

    @abstractmethod
    def _exact_geodesic(self, v: Pair, t: float) -> Pair:
        """The geodesic without truncation."""

    # Shared machinery --------------------------------------------------------------------------------------------

    def _vector(self, name: str, value: object) -> Pair:
        vector = as_pair(name, value)
        if vector.G.shape != self.point.G.shape or vector.H.shape != self.point.H.shape:
            raise ValueError(
                f"{name}: expected the shapes of the point, G {self.point.G.shape} and H {self.point.H.shape}, "
                f"got G {vector.G.shape} and H {vector.H.shape}"
            )
        return vector

    def _to(self, v: Pair) -> Pair:
        return Pair.unchecked(v.G @ self._frame_G.to, v.H @ self._frame_H.to)

    def _back(self, x: Pair) -> Pair:
        return Pair.unchecked(x.G @ self._frame_G.back, x.H @ self._frame_H.back)

    def _gradient_to(self, e: Pair) -> Pair:
        return Pair.unchecked(e.G @ transpose(self._frame_G.back), e.H @ transpose(self._frame_H.back))

    def _gradient_back(self, e: Pair) -> Pair:
        return Pair.unchecked(e.G @ transpose(self._frame_G.to), e.H @ transpose(self._frame_H.to))

    def _vertical_coefficients(self, v: Pair) -> Array:
        """Y of the vertical part (−P_G Y, P_H Yᵀ) of v. The tall products come first, so that only h×h ones follow."""
        basis_G, basis_H = self._vertical_bases
        right_side = transpose(self._frame_H.to) @ (transpose(v.H) @ basis_H.P)
        right_side -= (transpose(basis_G.P) @ v.G) @ self._frame_G.to
        return self._solved(right_side)

    def _solved(self, right_side: Array) -> Array:
        """Y of the diagonal Sylvester equation."""
        basis_G, basis_H = self._vertical_bases
        denominator = basis_G.eigenvalues[..., :, None] + basis_H.eigenvalues[..., None, :]
        if basis_G.eigenvectors is None or basis_H.eigenvectors is None:
            return right_side / denominator
        rotated = transpose(basis_G.eigenvectors) @ right_side @ basis_H.eigenvectors / denominator
        return basis_G.eigenvectors @ rotated @ transpose(basis_H.eigenvectors)

    def _vertical_part(self, v: Pair) -> tuple[Array, Array]:
        """Both parts, as arrays that the caller may write to."""
        basis_G, basis_H = self._vertical_bases
        Y = self._vertical_coefficients(v)
        return basis_G.P @ (-Y @ self._frame_G.back), basis_H.P @ (transpose(Y) @ self._frame_H.back)

    # The geometry ------------------------------------------------------------------------------------------------

    def inner_product(self, a: Pair, b: Pair) -> Array:
        r"""The metric (9) or (10): inv :math:`\mathrm{tr}(S^{-1} a_G^\top b_G) + \mathrm{tr}(T^{-1} a_H^\top b_H)`,
        mix :math:`\mathrm{tr}(T a_G^\top b_G) + \mathrm{tr}(S a_H^\top b_H)`.

        Parameters
        ----------
        a, b : Pair, shapes ``(..., n, h)`` and ``(..., m, h)``

        Returns
        -------
        ndarray, shape ``(...)``; error about κ·eps times ‖a‖ ‖b‖.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> float(space.inner_product(rg.Pair([[2.0]], [[3.0]]), rg.Pair([[4.0]], [[3.0]])))
        3.0
        """
        x, z = self._to(self._vector("a", a)), self._to(self._vector("b", b))
        return np.asarray(np.sum(x.G * z.G, axis=(-2, -1)) + np.sum(x.H * z.H, axis=(-2, -1)))

    def norm(self, a: Pair) -> Array:
        """Length in the metric, one number per block.

        Examples
        --------
        >>> import refgeo as rg
        >>> float(rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]])).norm(rg.Pair([[1.0]], [[2.0]])))
        5.0
        """
        x = self._to(self._vector("a", a))
        return _frobenius(x)

    def metric_tensor(self) -> tuple[Array, Array]:
        r"""The matrices :math:`M_G, M_H` with ⟨a, b⟩ = tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H): S⁻¹ and T⁻¹, or T and S.

        Examples
        --------
        >>> import refgeo as rg
        >>> M_G, M_H = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]])).metric_tensor()
        >>> round(M_G.item(), 12), round(M_H.item(), 12)
        (9.0, 4.0)
        """
        to_G, to_H = self._frame_G.to, self._frame_H.to
        return to_G @ transpose(to_G), to_H @ transpose(to_H)

    def vertical_vector(self, K: npt.ArrayLike) -> Pair:
        r"""The velocity :math:`(G K, -H K^\top)` of the group orbit in direction −K of the Lie algebra (Sec. 5.2).

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
        generator = real_array("K", K)
        h = self.point.sizes[2]
        if generator.shape not in ((h, h), (*self.point.block_shape, h, h)):
            raise ValueError(f"K: expected shape {(h, h)} or {(*self.point.block_shape, h, h)}, got {generator.shape}")
        return Pair.unchecked(self.point.G @ generator, -(self.point.H @ transpose(generator)))

    def horizontal_projection(self, v: Pair) -> Pair:
        r"""Metric-orthogonal projection onto the horizontal space (Sec. 5.2).

        :math:`(v_G + GΛ, v_H - HΛ^\top)`, where Λ solves

            inv:  (S T) Λᵀ + Λᵀ (S T) = S Hᵀ v_H − v_Gᵀ G T
            mix:  Λ = ½ (v_Hᵀ H T⁻¹ − S⁻¹ Gᵀ v_G)

        (with relaxation, the equations of App. H.2). The equation is solved in coordinates where it is diagonal. The
        paper's text prints ``AΛ + ΛAᵀ`` on the left for inv, which gives a vector that is not horizontal if h > 1.

        Parameters
        ----------
        v : Pair, shapes ``(..., n, h)`` and ``(..., m, h)``

        Returns
        -------
        Pair of the same shapes. Relative error about κ·eps, κ the condition number of G and H (not its square), as
        long as the condition number of the product G Hᵀ is below 1/eps; beyond, inv can lose more.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> G, H = space.horizontal_projection(rg.Pair([[2.0]], [[0.0]]))
        >>> round(G.item(), 12), round(H.item(), 12)
        (1.0, 1.5)
        """
        v = self._vector("v", v)
        vertical_G, vertical_H = self._vertical_part(v)
        # In place: for many heads a fresh array costs more than the subtraction.
        return Pair.unchecked(
            np.subtract(v.G, vertical_G, out=vertical_G), np.subtract(v.H, vertical_H, out=vertical_H)
        )

    def vertical_projection(self, v: Pair) -> Pair:
        """The vertical part: `v` minus its horizontal projection.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> G, H = space.vertical_projection(rg.Pair([[2.0]], [[0.0]]))
        >>> round(G.item(), 12), round(H.item(), 12)
        (1.0, -1.5)
        """
        return Pair.unchecked(*self._vertical_part(self._vector("v", v)))

    def is_horizontal(self, v: Pair, tolerance: float = 1e-8) -> npt.NDArray[np.bool_]:
        """Whether the vertical part of `v` is at most `tolerance` times `v`, in the metric, one answer per block.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> bool(space.is_horizontal(rg.Pair([[2.0]], [[3.0]]))), bool(space.is_horizontal(rg.Pair([[2.0]], [[0.0]])))
        (True, False)
        """
        v = self._vector("v", v)
        return np.asarray(_frobenius(self._to(self.vertical_projection(v))) <= tolerance * _frobenius(self._to(v)))

    def riemannian_gradient(self, egrad: Pair) -> Pair:
        r"""The Riemannian gradient: inv :math:`(E_G S, E_H T)`, mix :math:`(E_G T^{-1}, E_H S^{-1})`.

        Horizontal if the loss is invariant; of a loss that is only approximately invariant, project it.

        Parameters
        ----------
        egrad : Pair
            The Euclidean gradient (E_G, E_H).

        Returns
        -------
        Pair with ``inner_product(gradient, v)`` = :math:`\mathrm{tr}(E_G^\top v_G) + \mathrm{tr}(E_H^\top v_H)`.

        Examples
        --------
        >>> import refgeo as rg
        >>> G, H = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]])).riemannian_gradient(rg.Pair([[1.0]], [[1.0]]))
        >>> round(G.item(), 12), round(H.item(), 12)
        (4.0, 9.0)
        """
        return self._back(self._gradient_to(self._vector("egrad", egrad)))

    def riemannian_hessian(self, egrad: Pair, ehess_v: Pair, v: Pair) -> Pair:
        r"""The Riemannian Hessian :math:`P^H(D\,\mathrm{grad} f[v] + Γ(\mathrm{grad} f, v))` of the quotient.

        Parameters
        ----------
        egrad : Pair
            Euclidean gradient of an invariant loss.
        ehess_v : Pair
            Euclidean Hessian of the loss applied to `v`.
        v : Pair
            A horizontal vector.

        Returns
        -------
        Pair, horizontal; self-adjoint in the metric as a map of horizontal vectors.

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
        """
        e = self._gradient_to(self._vector("egrad", egrad))
        e_dot = self._gradient_to(self._vector("ehess_v", ehess_v))
        x = self._to(self._vector("v", v))
        covariant = e_dot + self._gradient_derivative(e, x) + self._christoffel(e, x)
        return self.horizontal_projection(self._back(covariant))

    def christoffel(self, a: Pair, b: Pair | None = None) -> Pair:
        r"""The Christoffel term Γ(a, b) of the Levi-Civita connection (Eq. 11, 12), symmetric and bilinear.

        The G part (the H part exchanges G with H and S with T):

            inv:  ½ [ −a_G S⁻¹(b_Gᵀ G + Gᵀ b_G) − b_G S⁻¹(a_Gᵀ G + Gᵀ a_G) + G S⁻¹(a_Gᵀ b_G + b_Gᵀ a_G) ]
            mix:  ½ [ a_G(b_Hᵀ H + Hᵀ b_H) + b_G(a_Hᵀ H + Hᵀ a_H) − G(a_Hᵀ b_H + b_Hᵀ a_H) ] T⁻¹

        Parameters
        ----------
        a, b : Pair
            Tangent vectors; ``b=None`` means ``b = a``.

        Returns
        -------
        Pair of the same shapes.

        Examples
        --------
        On 1×1 factors, Γ¹₁₁ = −1/G (App. D):

        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> round(space.christoffel(rg.Pair([[1.0]], [[0.0]])).G.item(), 12)
        -0.5
        """
        x = self._to(self._vector("a", a))
        z = x if b is None else self._to(self._vector("b", b))
        return self._back(self._christoffel(x, z))

    def christoffel_adjoint(self, a: Pair, e: Pair) -> Pair:
        r"""The adjoint Γ(a, ·)* in the Euclidean pairing: :math:`⟨Γ(a,·)^* e, b⟩_F = ⟨e, Γ(a, b)⟩_F` for every b.

        The gradient of :math:`ξ ↦ ℓ(θ + ξ - ½Γ(ξ,ξ))` is :math:`e - Γ(ξ,·)^* e` with e = ∇ℓ at the perturbed point,
        which needs no automatic differentiation of the geometry.

        Parameters
        ----------
        a : Pair
            Tangent vector.
        e : Pair
            Euclidean gradient.

        Returns
        -------
        Pair, a Euclidean gradient.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> round(space.christoffel_adjoint(rg.Pair([[1.0]], [[0.0]]), rg.Pair([[4.0]], [[0.0]])).G.item(), 12)
        -2.0
        """
        x = self._to(self._vector("a", a))
        return self._gradient_back(self._christoffel_adjoint(x, self._gradient_to(self._vector("e", e))))

    def geodesic(self, v: Pair, t: float = 1.0, order: Order = 2) -> Pair:
        r"""The geodesic :math:`γ(t)` with γ(0) the base point and γ'(0) = v (Sec. 4).

        Parameters
        ----------
        v : Pair
            Initial velocity.
        t : float
            Time; may be negative.
        order : 1, 2 or "exact"
            1 is :math:`θ + tv`; 2 is :math:`θ + tv - ½t²Γ(v,v)` (4/5), whose error is O(t³); "exact" has no truncation:
            a closed form for inv, for mix with h = 1 and with n = m = h, and otherwise (mix in general, any
            relaxation > 0) numerical integration whose conserved quantities are checked, see `refgeo.geodesics`.

        Returns
        -------
        Pair, a point.

        Raises
        ------
        GeodesicIncompleteError
            Only "exact", mix: rank is lost at or before `t`. inv is geodesically complete.
        GeodesicAccuracyError
            Only "exact" by integration: a conserved quantity drifted by more than the stated bound.

        Examples
        --------
        On 1×1 factors the inv geodesic is (G exp(bt), H exp(bt)) (App. D):

        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> space.geodesic(rg.Pair([[2.0]], [[3.0]]), t=np.log(2), order="exact").product.round(12)
        array([[24.]])
        """
        v, t, order = self._vector("v", v), number("t", t), order_of(order)
        if order == "exact":
            return self._exact_geodesic(v, t) if self.metric.relaxation == 0.0 else integrate(self, v, t).point
        straight = self.point + t * v
        return straight if order == 1 else straight - 0.5 * self.christoffel(t * v)

    def to_coordinates(self, v: Pair) -> Array:
        """Orthonormal coordinates: dot products of coordinate vectors are metric inner products.

        Parameters
        ----------
        v : Pair

        Returns
        -------
        ndarray, shape ``(..., (n + m) h)``. At every point of an orbit a vector that moves with the group has the same
        coordinates (up to rounding, and up to rotation where singular values of G Hᵀ coincide).

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.InvariantMetric().at(rg.Pair([[2.0]], [[4.0]])).to_coordinates(rg.Pair([[1.0]], [[1.0]]))
        array([0.5 , 0.25])
        """
        return self._flat(self._to(self._vector("v", v)))

    def from_coordinates(self, x: npt.ArrayLike) -> Pair:
        """The tangent vector with orthonormal coordinates `x`; inverse of `to_coordinates`.

        Examples
        --------
        >>> import refgeo as rg
        >>> G, H = rg.InvariantMetric().at(rg.Pair([[2.0]], [[4.0]])).from_coordinates([0.5, 0.25])
        >>> G.item(), H.item()
        (1.0, 1.0)
        """
        return self._back(self._pair_of(real_array("x", x)))

    # The fast way for optimisers: with Q the columns of p and P before they are scaled, a second-order step is xA + QB
    # and its gradient eA + QB + xC, with h×h matrices that swallow every change of coordinates.

    def point_at(self, x: Array, order: Order = 2) -> Pair:
        """``geodesic(from_coordinates(x), 1, order)`` with four tall products a factor."""
        order = order_of(order)
        if order == "exact":
            return super().point_at(x, order)
        step, frames = self._split(x), (self._frame_G, self._frame_H)
        if order == 1:
            moved = [part @ f.back for part, f in zip(step, frames, strict=True)]
        else:
            along = [transpose(q) @ part for q, part in zip(self._columns, step, strict=True)]
            squares = [transpose(part) @ part for part in step]
            moved = []
            for part, q, frame, A, B in zip(step, self._columns, frames, *self._bent(along, squares), strict=True):
                factor = part @ (A @ frame.back)
                factor += q @ (B @ frame.back)
                moved.append(factor)
        for factor, base in zip(moved, self.point, strict=True):
            factor += base
        return Pair.unchecked(*moved)

    def gradient_at(self, x: Array, e: Pair, order: Order = 2, out: Array | None = None) -> Array:
        """The gradient of ``ℓ(point_at(x, order))`` in coordinates, projected to the horizontal space.

        With six tall products a factor.
        """
        order = order_of(order)
        if order == "exact":
            return super().gradient_at(x, e, order, out)
        step, gradients = self._split(x), tuple(e)
        changes = [transpose(frame.back) for frame in (self._frame_G, self._frame_H)]
        falling = [(transpose(q) @ part) @ C for q, part, C in zip(self._columns, gradients, changes, strict=True)]
        identity: Array = np.broadcast_to(np.eye(self.point.sizes[2]), falling[0].shape)
        if order == 1:
            nothing: Array = np.zeros(falling[0].shape)
            As, Bs, Cs = (identity, identity), (nothing, nothing), None
        else:
            along = [transpose(q) @ part for q, part in zip(self._columns, step, strict=True)]
            mixed = [transpose(C) @ (transpose(part) @ y) for C, part, y in zip(changes, gradients, step, strict=True)]
            As, Bs, Cs = self._bent_adjoint(along, falling, mixed)
            falling = [q @ A + y @ C for q, A, y, C in zip(falling, As, along, Cs, strict=True)]
            falling = [
                q + (B if gram is None else gram @ B) for q, B, gram in zip(falling, Bs, self._grams, strict=True)
            ]
        weights = self._vertical_weights[..., None, :]
        Y = self._solved(transpose(falling[1]) * weights - transpose(weights) * falling[0])
        Bs = (Bs[0] + transpose(weights) * Y, Bs[1] - transpose(weights) * transpose(Y))
        flat = np.empty((*self.block_shape, self.n_coordinates)) if out is None else out
        for i, result in enumerate(self._split(flat)):
            np.matmul(gradients[i], changes[i] @ As[i], out=result)
            result += self._columns[i] @ Bs[i]
            if Cs is not None:
                result += step[i] @ Cs[i]
        return flat

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Standard normal coordinates, the same vector along an orbit even where singular values of G Hᵀ coincide.

        There the gauge is free to rotate, Q to QR; noise of the product space, Z Q_H and Zᵀ Q_G, rotates with it.
        """
        n, m, _ = self.point.sizes
        first, second = rng.standard_normal((2, *self.block_shape, n, m))
        Q_G, Q_H = self._columns
        if self.metric.relaxation > 0.0:  # only O(h) is left, and Q has no orthonormal columns
            return super().normal_coordinates(rng)
        return self._flat(Pair.unchecked(first @ Q_H, transpose(second) @ Q_G))

    def _flat(self, x: Pair) -> Array:
        parts = [factor.reshape(*self.point.block_shape, factor.shape[-2] * factor.shape[-1]) for factor in x]
        return np.concatenate(parts, axis=-1)

    def _pair_of(self, x: Array) -> Pair:
        return Pair.unchecked(*self._split(x))

    def _split(self, x: Array) -> tuple[Array, Array]:
        """Both factors of flat coordinates, as views."""
        n, m, h = self.point.sizes
        expected = (*self.point.block_shape, (n + m) * h)
        if x.shape != expected:
            raise ValueError(f"x: expected shape {expected}, got {x.shape}")
        return x[..., : n * h].reshape(self.point.G.shape), x[..., n * h :].reshape(self.point.H.shape)

    def random_tangent_vector(self, rng: np.random.Generator | int | None = None, horizontal: bool = True) -> Pair:
        """A random tangent vector of unit length in every block, uniform in direction in the metric.

        Parameters
        ----------
        rng : numpy Generator, or a seed
        horizontal : bool
            Draw from the horizontal space (default) or from the whole tangent space.

        Returns
        -------
        Pair

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.InvariantMetric().at(rg.Pair(np.eye(3, 2), np.eye(4, 2)))
        >>> v = space.random_tangent_vector(0)
        >>> bool(space.is_horizontal(v)), round(float(space.norm(v)), 12)
        (True, 1.0)
        """
        n, m, h = self.point.sizes
        normal = np.random.default_rng(rng).standard_normal((*self.point.block_shape, (n + m) * h))
        v = self.from_coordinates(normal)
        if horizontal:
            # twice: the rounding of the first is large beside what it leaves of a nearly vertical draw
            v = self.horizontal_projection(v)
            v = self.horizontal_projection(v / self.norm(v))
        return v / self.norm(v)

    def momenta(self, v: Pair) -> dict[str, Array]:
        r"""What a geodesic with velocity `v` at this point conserves, by the symmetries of the metric (Noether).

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
        x, p = self._to(v), self._p
        vertical = transpose(self.point.G) @ x.G @ transpose(self._frame_G.to)
        vertical = vertical - self._frame_H.to @ transpose(x.H) @ self.point.H
        if self.metric.relaxation > 0.0:
            vertical = vertical - transpose(vertical)
        return {
            "energy": 0.5 * _frobenius(x) ** 2,
            "rotation_G": x.G @ transpose(p.G) - p.G @ transpose(x.G),
            "rotation_H": x.H @ transpose(p.H) - p.H @ transpose(x.H),
            "vertical": vertical,
        }

    def _per_factor(self, operation: Callable[..., Array], *pairs: Pair) -> Pair:
        """Apply a formula that treats the two factors alike."""
        return Pair.unchecked(operation(*(pair.G for pair in pairs)), operation(*(pair.H for pair in pairs)))


def _scaled_columns(gauge: BalancedGauge, weights: Array | None) -> Pair:
    if weights is None:
        return Pair.unchecked(gauge.orthonormal_G, gauge.orthonormal_H)
    return Pair.unchecked(gauge.orthonormal_G * weights[..., None, :], gauge.orthonormal_H * weights[..., None, :])


def _vertical_bases(gauge: BalancedGauge, weights: Array | None, relaxed: bool) -> tuple[VerticalBasis, VerticalBasis]:
    squares = np.ones_like(gauge.sigma) if weights is None else weights**2
    bases = []
    for P in _scaled_columns(gauge, weights):
        eigenvalues, eigenvectors = squares, None
        if relaxed:
            _, singular_values, W_transposed = np.linalg.svd(P, full_matrices=False)
            eigenvalues, eigenvectors = singular_values**2, transpose(W_transposed)
        bases.append(VerticalBasis(P, eigenvalues, eigenvectors))
    return bases[0], bases[1]


def _frobenius(x: Pair) -> Array:
    return np.asarray(np.hypot(np.linalg.norm(x.G, axis=(-2, -1)), np.linalg.norm(x.H, axis=(-2, -1))))
