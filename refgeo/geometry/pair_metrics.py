r"""The pair metrics, inv and mix and all between: one family, in metric-orthonormal coordinates.

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

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.balanced import BalancedGauge, balance
from refgeo.geometry.blocks import ONLY
from refgeo.geometry.geodesics import InvariantCurve, exact_geodesic
from refgeo.geometry.groups import Symmetry, general_linear
from refgeo.geometry.pair import Pair, as_pair, each
from refgeo.geometry.tangent_space import Metric, TangentSpace
from refgeo.support.arguments import ENDS, Array, Order, number, order_of
from refgeo.support.threads import groups, spread

Matrices = tuple[Array, Array]
"""For G and for H, h×h."""


def symmetric_sum(matrix: Array) -> Array:
    """``M + Mᵀ``, block by block.

    Examples
    --------
    >>> symmetric_sum(np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[2., 2.],
           [2., 6.]])
    """
    return matrix + matrix.mT


class InterpolatedMetric(Metric[Pair]):
    r"""The metric :math:`S^{-1} \#_s T` between inv (s = 0) and mix (s = 1).

    :math:`⟨η, ζ⟩ = \mathrm{tr}(S^{-1}(ST)^s η_G^\top ζ_G) + \mathrm{tr}(T^{-1}(TS)^s η_H^\top ζ_H)`, with
    :math:`S = G^\top G` and :math:`T = H^\top H`: invariant under GL(h) for every s. The Riemannian gradient for s = ½
    is the preconditioned gradient of RefLoRA (Zhang et al., 2025). Complete for s = 0 only: otherwise a geodesic can
    lose rank in finite time, which raises `GeodesicIncompleteError` with the time.

    Parameters
    ----------
    s : float, 0 ≤ s ≤ 1
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance.

    Notes
    -----
    For 0 < s < 1 the metric depends on powers of the singular values σ of G Hᵀ, of which the smallest are known to
    eps times the largest: results have a relative error of about eps times the condition number of G Hᵀ.

    Examples
    --------
    The weight of G is (HᵀH/GᵀG)^½ for s = ½ and h = 1:

    >>> import refgeo as rg
    >>> M_G, M_H = rg.InterpolatedMetric(0.5).at(rg.Pair([[2.0]], [[4.0]])).metric_tensor()
    >>> round(M_G.item(), 12), round(M_H.item(), 12)
    (2.0, 0.5)
    """

    def __init__(self, s: float, relaxation: float = 0.0) -> None:
        self.s = number("s", s, "0 is inv, 1 is mix", least=0.0, most=1.0)
        self.relaxation = number("relaxation", relaxation, "ε of App. H.2", least=0.0)
        self.name = next((name for name, end in ENDS.items() if end == self.s), f"s={self.s:g}")

    def __repr__(self) -> str:
        s = f"{self.s:g}, " if type(self) is InterpolatedMetric else ""
        return f"{type(self).__name__}({s}relaxation={self.relaxation})"

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
        return PairTangentSpace(self, point, balance(point.G, point.H, self.relaxation))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """GL(h), also with a relaxation, of which only O(h) leaves the metric alone."""
        return [general_linear(block)]


class InvariantMetric(InterpolatedMetric):
    r"""The metric "inv" (9): :math:`⟨η, ζ⟩ = \mathrm{tr}(S^{-1} η_G^\top ζ_G) + \mathrm{tr}(T^{-1} η_H^\top ζ_H)`.

    Each factor is measured in its own Gram matrix, :math:`S = G^\top G` and :math:`T = H^\top H`. Invariant under
    GL(h); geodesically complete; without units (scaling a loss's parameters changes nothing).

    Parameters
    ----------
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance; the
        default 0 needs no regularisation here, because no Gram matrix is inverted.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rng = np.random.default_rng(0)
    >>> point = rg.Pair(rng.standard_normal((12, 65, 8)), rng.standard_normal((12, 65, 8)))  # twelve heads
    >>> space = rg.InvariantMetric().at(point)
    >>> v = space.random_tangent_vector(rng)
    >>> space.geodesic(0.1 * v, order="exact")
    Pair(G (12, 65, 8), H (12, 65, 8))
    """

    def __init__(self, relaxation: float = 0.0) -> None:
        super().__init__(ENDS["inv"], relaxation)


class MixedMetric(InterpolatedMetric):
    r"""The metric "mix" (10): :math:`⟨η, ζ⟩ = \mathrm{tr}(T η_G^\top ζ_G) + \mathrm{tr}(S η_H^\top ζ_H)`.

    Each factor is measured in the other's Gram matrix, :math:`S = G^\top G` and :math:`T = H^\top H`. Invariant under
    GL(h); not complete: a geodesic can lose rank in finite time, which raises `GeodesicIncompleteError` with the time.

    Parameters
    ----------
    relaxation : float
        ε of App. H.2: S + εI and T + εI in the metric. Any ε > 0 leaves only O(h) of the GL(h)-invariance.

    Examples
    --------
    Two numbers (G, H) move so that the product G H is a straight line in time (Sec. 5.1):

    >>> import refgeo as rg
    >>> space = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]]))
    >>> space.geodesic(rg.Pair([[1.0]], [[1.5]]), t=1.0, order="exact").product.round(12)
    array([[12.]])
    """

    def __init__(self, relaxation: float = 0.0) -> None:
        super().__init__(ENDS["mix"], relaxation)


PAIR_METRICS: dict[str, type[InvariantMetric] | type[MixedMetric]] = {"inv": InvariantMetric, "mix": MixedMetric}
"""The paper's two metrics by name."""


def pair_metric(name: str, relaxation: float = 0.0, argument: str = "metric") -> InterpolatedMetric:
    """The metric called "inv", "mix" or, between them, "s=0.5".

    Examples
    --------
    >>> pair_metric("s=0.5")
    InterpolatedMetric(0.5, relaxation=0.0)
    """
    if name in PAIR_METRICS:
        return PAIR_METRICS[name](relaxation)
    try:
        kind, _, value = name.partition("=")
        metric = InterpolatedMetric(float(value), relaxation)
        if kind == "s" and metric.name == name:
            return metric
    except (AttributeError, ValueError):
        pass
    raise ValueError(f'{argument}: expected "inv", "mix" or one between them such as "s=0.5", got {name!r}')


class PairTangentSpace(TangentSpace[Pair]):
    r"""Tangent space of a pair metric; made by ``metric.at(point)``.

    The Riemannian Hessian :math:`P^H(D\,\mathrm{grad} f[v] + Γ(\mathrm{grad} f, v))` of an invariant loss along a
    horizontal v is self-adjoint in the metric. Exact geodesics have a closed form for inv, for mix with h = 1 and with
    n = m = h; otherwise (mix in general, any relaxation > 0) they are integrated, and their conserved quantities are
    checked, see `refgeo.geodesics`: `GeodesicIncompleteError` where rank is lost at or before t, which inv never does,
    `GeodesicAccuracyError` where a conserved quantity has drifted. In coordinates a vector that moves with the group is
    the same at every point of an orbit (up to rounding, and up to rotation where singular values of G Hᵀ coincide).

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

    metric: InterpolatedMetric

    def __init__(self, metric: InterpolatedMetric, point: Pair, gauge: BalancedGauge) -> None:
        n, m, h = point.sizes
        self.metric, self.point, self.gauge = metric, point, gauge
        self.dim = (n + m - h) * h
        self.n_coordinates = (n + m) * h
        self.block_shape = point.block_shape
        self._C, self._C_inverse = _frames(gauge, metric.s)
        self._powers = gauge.sigma[..., None, :] ** metric.s
        # Any multiple of P spans the vertical space; this one neither overflows nor underflows.
        self._vertical_weights = (gauge.sigma / gauge.sigma[..., :1])[..., None, :] ** (1.0 - metric.s)

    def _vector(self, name: str, value: object) -> Pair:
        return self.point.fitting(name, as_pair(name, value))

    # Coordinates, as pairs: x = ξC; those of a Euclidean gradient are e C⁻ᵀ

    def _in(self, v: Pair) -> Pair:
        return each(np.matmul, v, self._C)

    def _out(self, x: Pair) -> Pair:
        return each(np.matmul, x, self._C_inverse)

    def _falling(self, e: Pair) -> Pair:
        return each(np.matmul, e, _transposed(self._C_inverse))

    def _to(self, v: Pair) -> Array:
        return self._flat(self._in(v))

    def _back(self, x: Array) -> Pair:
        return self._out(self._split(x))

    def _gradient_to(self, e: Pair) -> Array:
        return self._flat(self._falling(e))

    def _gradient_back(self, x: Array) -> Pair:
        return each(np.matmul, self._split(x), _transposed(self._C))

    def _flat(self, x: Pair) -> Array:
        parts = [factor.reshape(*self.block_shape, factor.shape[-2] * factor.shape[-1]) for factor in x]
        return np.concatenate(parts, axis=-1)

    def _parts(self, x: Array) -> tuple[Array, Array]:
        """Both factors of flat coordinates, as views."""
        rows, h = self.point.G.shape[-2], self.point.G.shape[-1]
        G, H = self._coordinates(x)[..., : rows * h], x[..., rows * h :]
        return G.reshape(self.point.G.shape), H.reshape(self.point.H.shape)

    def _split(self, x: Array) -> Pair:
        return Pair.unchecked(*self._parts(x))

    # A few blocks at a time: what is made of them in between stays in the processor's cache

    @cached_property
    def _groups(self) -> list[tuple[slice, PairTangentSpace]]:
        """Of a large batch, with their tangent spaces."""
        parts = groups(math.prod(self.block_shape), self.n_coordinates)
        if len(parts) < 2:
            return []
        point = each(_as_one_batch, self.point)
        return [
            (part, PairTangentSpace(self.metric, each(lambda F: F[part], point), self.gauge.blocks(part)))  # noqa: B023
            for part in parts
        ]

    def _by_groups(self, function: Callable[..., Pair], *vectors: Pair) -> Pair:
        """``function(space, *vectors)`` of all blocks."""
        if not self._groups:
            return function(self, *vectors)
        flat = [each(_as_one_batch, v) for v in vectors]
        whole = [np.empty(F.shape) for F in self.point]

        def of_group(group: tuple[slice, PairTangentSpace]) -> None:
            part, space = group
            found = function(space, *(each(lambda F: F[part], v) for v in flat))
            for target, F in zip(whole, found, strict=True):
                _as_one_batch(target)[part] = F

        spread(of_group, self._groups)
        return Pair.unchecked(*whole)

    # What h×h matrices do to them

    @property
    def _columns(self) -> tuple[Array, Array]:
        return self.gauge.columns

    @cached_property
    def _in_single(self) -> tuple[Pair, tuple[Array, Array]]:
        point, columns = (each(lambda F: F.astype(np.float32), pair) for pair in (self.point, self._columns))
        return point, (columns.G, columns.H)

    def _tall(self, dtype: Any) -> tuple[Pair, tuple[Array, Array]]:
        """The point and Q in a precision."""
        return self._in_single if dtype == np.float32 else (self.point, self._columns)

    @cached_property
    def _vertical_eigen(self) -> list[tuple[Array, Array | None]]:
        """Eigenvalues and orthogonal eigenvectors (None for the identity) of PᵀP, P = Q times the weights."""
        weights = self._vertical_weights
        if not self.gauge.relaxed:
            return [(weights[..., 0, :] ** 2, None)] * 2
        decompositions = [np.linalg.svd(Q * weights, full_matrices=False) for Q in self._columns]
        return [(values**2, W_transposed.mT) for _, values, W_transposed in decompositions]

    def _solved(self, right_side: Array) -> Array:
        """Y of the diagonal Sylvester equation."""
        (values_G, vectors_G), (values_H, vectors_H) = self._vertical_eigen
        denominator = values_G[..., :, None] + values_H[..., None, :]
        if vectors_G is None or vectors_H is None:
            return right_side / denominator
        return vectors_G @ (vectors_G.mT @ right_side @ vectors_H / denominator) @ vectors_H.mT

    def _vertical_part(self, v: Pair, to: Matrices, back: Matrices) -> Pair:
        """(−P_G Y, P_H Yᵀ) of the vector with coordinates v·to, times `back`."""
        (Q_G, Q_H), weights = self._columns, self._vertical_weights
        right_side = to[1].mT @ ((v.H.mT @ Q_H) * weights)
        right_side -= (weights.mT * (Q_G.mT @ v.G)) @ to[0]
        Y = self._solved(right_side)
        return Pair.unchecked(Q_G @ (-weights.mT * (Y @ back[0])), Q_H @ (weights.mT * (Y.mT @ back[1])))

    @cached_property
    def _kernels(self) -> tuple[Array, Array]:
        """α and β without their factor (σ_iσ_j)⁻ˢ."""
        s, sigma = self.metric.s, self.gauge.sigma
        return -_sinh_ratio(1.0 - s, sigma), _sinh_ratio(s, sigma)

    def _combined(self, G: Array, H: Array) -> Matrices:
        """α ∘ G + β ∘ H, and the same with the factors exchanged."""
        alpha, beta = self._kernels
        return alpha * G + beta * H, alpha * H + beta * G

    def _along(self, x: Iterable[Array]) -> list[Array]:
        parts = tuple(x)
        return [Q.mT @ part for Q, part in zip(self._tall(parts[0].dtype)[1], parts, strict=True)]

    def _derivative(self, along: Sequence[Array]) -> Matrices:
        """D(x, p) from Qᵀx."""
        return self._combined(*(symmetric_sum(part / self._powers) for part in along))

    def _bending(self, products: Sequence[Array]) -> Matrices:
        """Σˢ D(x, z), so that p D(x, z) is Q times it, from Σ⁻ˢ xᵀz."""
        ratio = self._powers.mT / self._powers
        return self._combined(*(ratio * part + part.mT for part in products))

    def _half_sum(self, x: Pair, z: Pair, sign: float, back: Matrices, *added: Pair) -> Pair:
        """½ [z D(x, p) ± (x D(z, p) − p D(x, z))] times `back`: Γ(x, z), or with the minus sign Γ(x, ·)* z; and what is
        to be `added`.
        """
        D_x = self._derivative(self._along(x))
        D_z = D_x if z is x else self._derivative(self._along(z))
        # divided before it is multiplied, so that small factors cannot underflow
        weighted = x if self.metric.s == 0.0 else each(np.divide, x, (self._powers, self._powers))
        bends = self._bending([one.mT @ other for one, other in zip(weighted, z, strict=True)])

        def part(
            x: Array, z: Array, Q: Array, D_x: Array, D_z: Array, bend: Array, back: Array, *added: Array
        ) -> Array:
            if z is x:
                result = x @ (0.5 * (D_x + sign * D_z) @ back)
            else:
                result = z @ (0.5 * D_x @ back)
                result += x @ (0.5 * sign * D_z @ back)
            result -= Q @ (0.5 * sign * bend @ back)
            for term in added:
                result += term
            return result

        return each(part, x, z, self._columns, D_x, D_z, bends, back, *added)

    @property
    def _identity(self) -> Matrices:
        return (np.eye(self.point.sizes[2]),) * 2

    def _vertical(self, x: Array) -> Array:
        return self._flat(self._vertical_part(self._split(x), self._identity, self._identity))

    def _gamma(self, x: Array, z: Array) -> Array:
        first = self._split(x)
        return self._flat(self._half_sum(first, first if z is x else self._split(z), 1.0, self._identity))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        return self._flat(self._half_sum(self._split(x), self._split(e), -1.0, self._identity))

    def _exact(self, v: Pair, t: float) -> Pair:
        return self._invariant_geodesic(t * v) if self._is_invariant else exact_geodesic(self, v, t)

    @property
    def _is_invariant(self) -> bool:
        return self.metric.s == 0.0 and not self.gauge.relaxed

    def _curves(self, v: Pair) -> list[InvariantCurve]:
        return [InvariantCurve(Q, x) for Q, x in zip(self._columns, self._in(v), strict=True)]

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
        x, z = self._in(self._vector("a", a)), self._in(self._vector("b", b))
        return np.asarray(np.sum(x.G * z.G, axis=(-2, -1)) + np.sum(x.H * z.H, axis=(-2, -1)))

    def norm(self, a: Pair) -> Array:
        """Length in the metric, one number per block.

        Examples
        --------
        >>> import refgeo as rg
        >>> float(rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]])).norm(rg.Pair([[1.0]], [[2.0]])))
        5.0
        """
        return _frobenius(self._in(self._vector("a", a)))

    def metric_tensor(self) -> tuple[Array, Array]:
        r"""The matrices :math:`M_G, M_H` with ⟨a, b⟩ = tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H): S⁻¹ and T⁻¹, or T and S.

        Examples
        --------
        >>> import refgeo as rg
        >>> M_G, M_H = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]])).metric_tensor()
        >>> round(M_G.item(), 12), round(M_H.item(), 12)
        (9.0, 4.0)
        """
        C_G, C_H = self._C
        return C_G @ C_G.mT, C_H @ C_H.mT

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
        generator = self.point.square("K", K)
        return Pair.unchecked(self.point.G @ generator, -(self.point.H @ generator.mT))

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
        return self._by_groups(PairTangentSpace._projected, self._vector("v", v))

    def _projected(self, v: Pair) -> Pair:
        return v - self._vertical_part(v, self._C, self._C_inverse)

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
        return self._vertical_part(self._vector("v", v), self._C, self._C_inverse)

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
        return self._out(self._falling(self._vector("egrad", egrad)))

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
        given = [self._vector("a", a)] if b is None else [self._vector("a", a), self._vector("b", b)]
        return self._by_groups(PairTangentSpace._christoffel, *given)

    def _christoffel(self, a: Pair, b: Pair | None = None) -> Pair:
        x = self._in(a)
        return self._half_sum(x, x if b is None else self._in(b), 1.0, self._C_inverse)

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
        return self._by_groups(PairTangentSpace._adjoint, self._vector("a", a), self._vector("e", e))

    def _adjoint(self, a: Pair, e: Pair) -> Pair:
        return self._half_sum(self._in(a), self._falling(e), -1.0, _transposed(self._C))

    def geodesic(self, v: Pair, t: float = 1.0, order: Order = 2) -> Pair:
        """The geodesic with initial velocity `v` at time `t`: θ + tv, θ + tv − ½t²Γ(v, v) (4), or without truncation.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.MixedMetric().at(rg.Pair([[2.0]], [[3.0]]))
        >>> space.geodesic(rg.Pair([[1.0]], [[1.5]]), order="exact").product.round(12)  # GH moves at constant speed
        array([[12.]])
        """
        v, t, order = self._vector("v", v), number("t", t), order_of(order)
        if order == 2:
            return self._by_groups(lambda space, v: space._bent(v * t), v)
        if order == "exact" and self._is_invariant:
            return self._by_groups(lambda space, v: space._invariant_geodesic(v * t), v)
        return super().geodesic(v, t, order)

    def _bent(self, step: Pair) -> Pair:
        """θ + ξ − ½Γ(ξ, ξ)."""
        x = self._in(step)
        return self._half_sum(x, x, 1.0, (-0.5 * self._C_inverse[0], -0.5 * self._C_inverse[1]), self.point, step)

    def _invariant_geodesic(self, v: Pair) -> Pair:
        return each(InvariantCurve.end, self._curves(v), self._C_inverse)

    def _exact_gradient(self, v: Pair, e: Pair) -> Pair:
        if not self._is_invariant:
            return super()._exact_gradient(v, e)
        return self._by_groups(PairTangentSpace._invariant_gradient, v, e)

    def _invariant_gradient(self, v: Pair, e: Pair) -> Pair:
        return each(InvariantCurve.gradient, self._curves(v), self._falling(e), self._C_inverse)

    # The fast way for optimisers: a second-order step is xA + QB and its gradient eA + QB + xC, with h×h matrices that
    # swallow every change of coordinates. Tall products are in the precision of x, small ones in double.

    def point_at(self, x: Array, order: Order = 2) -> Pair:
        """``geodesic(from_coordinates(x), 1, order)`` with four tall products a factor."""
        order = order_of(order)
        if order == "exact":
            return super().point_at(x, order)
        step = self._parts(x)
        point, columns = self._tall(x.dtype)
        if order == 1:
            moved = [part @ back.astype(x.dtype) for part, back in zip(step, self._C_inverse, strict=True)]
        else:
            derivatives = self._derivative(self._along(step))
            bends = self._bending([part.mT @ part / self._powers.mT for part in step])
            moved = []
            for part, Q, back, D, bend in zip(step, columns, self._C_inverse, derivatives, bends, strict=True):
                factor = part @ (back - 0.5 * D @ back).astype(x.dtype)
                factor += Q @ (0.25 * bend @ back).astype(x.dtype)
                moved.append(factor)
        for factor, base in zip(moved, point, strict=True):
            factor += base
        return Pair.unchecked(*moved)

    def gradient_at(self, x: Array, e: Pair, order: Order = 2, out: Array | None = None) -> Array:
        """The gradient of ``ℓ(point_at(x, order))`` in coordinates, projected to the horizontal space.

        With six tall products a factor.
        """
        order = order_of(order)
        if order == "exact":
            return super().gradient_at(x, e, order, out)
        step, gradients = self._parts(x), tuple(self.point.fitting("e", e if isinstance(e, Pair) else as_pair("e", e)))
        changes = _transposed(self._C_inverse)
        falling = [part @ C for part, C in zip(self._along(gradients), changes, strict=True)]
        identity: Array = np.eye(self.point.sizes[2])
        As, Cs = [identity, identity], None
        Bs: list[Array] = [np.zeros(part.shape) for part in falling]
        if order == 2:
            along = self._along(step)
            mixed = [(y.mT @ part) @ C / self._powers.mT for C, part, y in zip(changes, gradients, step, strict=True)]
            As = [identity - 0.5 * D for D in self._derivative(along)]
            Bs = [-0.5 * bend for bend in self._bending(mixed)]
            Cs = [0.5 * D for D in self._derivative(falling)]
            falling = [
                q @ A + (B if gram is None else gram @ B) + y @ C
                for q, A, B, y, C, gram in zip(falling, As, Bs, along, Cs, self._grams, strict=True)
            ]
        weights = self._vertical_weights
        Y = self._solved(falling[1].mT * weights - weights.mT * falling[0])
        Bs = [Bs[0] + weights.mT * Y, Bs[1] - weights.mT * Y.mT]
        flat = np.empty((*self.block_shape, self.n_coordinates), x.dtype) if out is None else out
        columns = self._tall(x.dtype)[1]
        for i, result in enumerate(self._parts(flat)):
            np.matmul(gradients[i], (changes[i] @ As[i]).astype(x.dtype), out=result)
            result += columns[i] @ Bs[i].astype(x.dtype)
            if Cs is not None:
                result += step[i] @ Cs[i].astype(x.dtype)
        return flat

    @cached_property
    def _grams(self) -> tuple[Array | None, Array | None]:
        """QᵀQ, where it is not the identity."""
        G, H = (Q.mT @ Q if self.gauge.relaxed else None for Q in self._columns)
        return G, H

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Standard normal coordinates, the same vector along an orbit even where singular values of G Hᵀ coincide.

        There the gauge is free to rotate, Q to QR; noise of the product space, Z Q_H and Zᵀ Q_G, rotates with it.
        """
        n, m, _ = self.point.sizes
        first, second = rng.standard_normal((2, *self.block_shape, n, m))
        Q_G, Q_H = self._columns
        if self.gauge.relaxed:  # only O(h) is left, and Q has no orthonormal columns
            return super().normal_coordinates(rng)
        return self._flat(Pair.unchecked(first @ Q_H, second.mT @ Q_G))

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
        x, p = self._in(v), each(lambda Q: Q * self._powers, self._columns)
        vertical = self.point.G.mT @ x.G @ self._C[0].mT - self._C[1] @ x.H.mT @ self.point.H
        if self.gauge.relaxed:
            vertical = vertical - vertical.mT
        return {
            "energy": 0.5 * _frobenius(x) ** 2,
            "rotation_G": x.G @ p.G.mT - p.G @ x.G.mT,
            "rotation_H": x.H @ p.H.mT - p.H @ x.H.mT,
            "vertical": vertical,
        }


def _frames(gauge: BalancedGauge, s: float) -> tuple[Matrices, Matrices]:
    """C of both factors and its inverse, from the nearer end of the family."""
    power = gauge.sigma[..., None, :] ** min(s, 1.0 - s)
    roots, whites = (gauge.root_G, gauge.root_H), (gauge.white_G, gauge.white_H)
    if s <= 0.5:
        return (whites[0] * power, whites[1] * power), ((roots[0] / power).mT, (roots[1] / power).mT)
    return (roots[1] / power, roots[0] / power), ((whites[1] * power).mT, (whites[0] * power).mT)


def _as_one_batch(F: Array) -> Array:
    return F.reshape(-1, *F.shape[-2:])


def _transposed(matrices: Matrices) -> Matrices:
    return matrices[0].mT, matrices[1].mT


def _sinh_ratio(a: float, sigma: Array) -> Array:
    """sinh(a r)/sinh(r) for r = |log(σ_i/σ_j)|, 0 ≤ a ≤ 1: a where they coincide, and never a difference of powers."""
    if a in (0.0, 1.0):
        return np.asarray(a)
    r = np.abs(np.log(sigma[..., :, None] / sigma[..., None, :]))
    quotient = np.divide(np.expm1(-2.0 * a * r), np.expm1(-2.0 * r), out=np.full(r.shape, a), where=r > 0.0)
    return np.asarray(np.exp((a - 1.0) * r) * quotient)


def _frobenius(x: Pair) -> Array:
    return np.asarray(np.sqrt(np.einsum("...ij,...ij", x.G, x.G) + np.einsum("...ij,...ij", x.H, x.H)))
