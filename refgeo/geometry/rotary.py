r"""Pairs behind rotary positions: the quotient by what commutes with the rotations, :math:`(\mathbb{C}^*)^{h/2}`.

Rotary positions turn columns i and i + h/2 of queries and keys together, every plane with a frequency of its own. Of
GL(h) only :math:`A = aI + bJ` in each plane leaves the loss alone, J a quarter turn.

With complex columns :math:`z = G_{\cdot i} + \mathrm{i}\, G_{\cdot, i+h/2}` and w of H, that is one complex number per
plane, :math:`(z, w) → (z/c, \bar c\, w)`: a pair over the complex numbers with h = 1, whose geometry is that of
`refgeo.geometry.pair_space`. Exact geodesics are those of the real pair with factors
:math:`(\mathrm{Re}\,z, \mathrm{Im}\,z)` and :math:`(\mathrm{Re}\,w, \mathrm{Im}\,w)`, as multiplying by a phase is an
isometry of that, and a geodesic conserves its product with the direction :math:`(\mathrm{i}z, \mathrm{i}w)`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import ONLY
from refgeo.geometry.gauge import balance
from refgeo.geometry.groups import Symmetry, commutant, commuting_part
from refgeo.geometry.pair import Pair, as_pair, each
from refgeo.geometry.pair_metrics import InterpolatedMetric, pair_metric
from refgeo.geometry.pair_space import PairTangentSpace
from refgeo.geometry.tangent_space import Metric, TangentSpace
from refgeo.support.arguments import Array


class RotaryTangentSpace(TangentSpace[Pair]):
    """Tangent space of `RotaryMetric`: that of one real pair a plane, less the direction of the phase."""

    metric: RotaryMetric

    def __init__(self, metric: RotaryMetric, point: Pair) -> None:
        n, m, h = point.sizes
        if h % 2:
            raise ValueError(
                "point: expected an even number of columns, because rotary positions rotate pairs of columns, got "
                f"h = {h}"
            )
        self.metric, self.point = metric, point
        complex_point = _complex(point)
        self._planes = PairTangentSpace(
            metric.pairs, complex_point, balance(complex_point.G, complex_point.H, metric.relaxation)
        )
        self.block_shape, self.dim, self.n_coordinates = point.block_shape, (n + m - 1) * h, (n + m) * h

    def vertical_vector(self, K: npt.ArrayLike) -> Pair:
        """Return (G K, −H Kᵀ) for a K that commutes with the rotations, shape ``(h, h)`` or ``(..., h, h)``.

        Examples
        --------
        >>> import refgeo as rg
        >>> space = rg.RotaryMetric().at(rg.Pair(np.eye(2), 2 * np.eye(2)))
        >>> space.vertical_vector([[0.0, -1.0], [1.0, 0.0]]).H + 0.0
        array([[ 0., -2.],
               [ 2.,  0.]])
        """
        generator, h = self.point.square("K", K), self.point.sizes[2]
        if np.abs(generator - commuting_part(generator)).max() > 1e-12 * np.abs(generator).max():
            form = (
                f"a + bJ, with J = [[0, −1], [1, 0]], in every plane of columns (i, i + {h // 2}), and zero elsewhere"
            )
            raise ValueError(f"K: expected a matrix that is {form}; got another matrix")
        return Pair(self.point.G @ generator, -(self.point.H @ generator.mT))

    def _vector(self, name: str, value: object) -> Pair:
        return self.point.require_shapes(name, as_pair(name, value))

    def _to(self, v: Pair) -> Array:
        return self._together(self._planes._to(_complex(v)))

    def _back(self, x: Array) -> Pair:
        return _real(self._planes._back(self._as_planes(x)))

    def _gradient_to(self, e: Pair) -> Array:
        return self._together(self._planes._gradient_to(_complex(e)))

    def _gradient_back(self, x: Array) -> Pair:
        return _real(self._planes._gradient_back(self._as_planes(x)))

    def _vertical(self, x: Array) -> Array:
        return self._together(self._planes._vertical(self._as_planes(x)))

    def _gamma(self, x: Array, z: Array) -> Array:
        return self._together(self._planes._gamma(self._as_planes(x), self._as_planes(z)))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        return self._together(self._planes._gamma_adjoint(self._as_planes(x), self._as_planes(e)))

    @cached_property
    def _real_planes(self) -> PairTangentSpace:
        return self.metric.pairs.at(_halves(self.point))

    def _exact(self, v: Pair, t: float) -> Pair:
        return _columns(self._real_planes._exact(_halves(v), t))

    def _exact_gradient(self, v: Pair, e: Pair) -> Pair:
        return _columns(self._real_planes._exact_gradient(_halves(v), _halves(e)))

    def _together(self, x: Array) -> Array:
        """Return coordinates of the planes as those of a block."""
        return x.reshape(*self.block_shape, self.n_coordinates)

    def _as_planes(self, x: Array) -> Array:
        """Return coordinates of a block as those of the planes."""
        return np.ascontiguousarray(x).reshape(*self._planes.block_shape, self._planes.n_coordinates)


class RotaryMetric(Metric[Pair]):
    r"""The quotient of query and key by what rotary positions leave of GL(h).

    In each plane (i, i + h/2) a metric on pairs, with the Gram matrices replaced by numbers, :math:`‖z‖^2` and
    :math:`‖w‖^2` of the complex columns z, w: for inv :math:`⟨ξ, ζ⟩ = \mathrm{Re}\, ξ_z^* ζ_z/‖z‖^2 +
    \mathrm{Re}\, ξ_w^* ζ_w/‖w‖^2`, for mix :math:`‖w‖^2\, \mathrm{Re}\, ξ_z^* ζ_z + ‖z‖^2\, \mathrm{Re}\, ξ_w^* ζ_w`.

    Parameters
    ----------
    pairs : "inv", "mix", "s=0.5" or an `InterpolatedMetric`

    Notes
    -----
    Planes are columns i and i + h/2, as in Llama. Where they are neighbours, 2i and 2i + 1, permute the columns first:
    ``G[..., [0, 2, ..., 1, 3, ...]]``.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> rng = np.random.default_rng(0)
    >>> space = rg.RotaryMetric("mix").at(rg.Pair(rng.standard_normal((8, 6, 4)), rng.standard_normal((8, 5, 4))))
    >>> space.dim, rg.MixedMetric().at(space.point).dim
    (40, 28)
    """

    def __init__(self, pairs: str | InterpolatedMetric = "inv") -> None:
        metric = pair_metric(pairs, argument="pairs") if isinstance(pairs, str) else pairs
        if not isinstance(metric, InterpolatedMetric):
            raise TypeError(f'pairs: expected "inv", "mix" or a metric on pairs, got {type(metric).__name__}')
        self.pairs, self.relaxation = metric, metric.relaxation
        self.name, self.is_invariant = f"rotary {metric.name}", metric.is_invariant

    def at(self, point: Pair) -> RotaryTangentSpace:
        """Return the tangent space at `point`, a Pair with an even number of columns.

        Raises
        ------
        RankDeficientError
            Both columns of a plane are zero.
        """
        return RotaryTangentSpace(self, as_pair("point", point))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return the group that commutes with the rotations."""
        return [commutant(block)]

    def __repr__(self) -> str:
        return f"RotaryMetric({self.pairs!r})"


def complex_columns(pair: Pair) -> tuple[npt.NDArray[np.complex128], npt.NDArray[np.complex128]]:
    """Return the complex columns z and w of every plane, shape ``(..., h/2, n)`` and ``(..., h/2, m)``.

    Examples
    --------
    >>> complex_columns(Pair(np.eye(2), np.eye(2)))[0]
    array([[1.+0.j, 0.+1.j]])
    """
    half = pair.sizes[2] // 2
    z, w = ((F[..., :half] + 1j * F[..., half:]).mT for F in pair)
    return z, w


def _complex(pair: Pair) -> Pair:
    """Return the complex columns as pairs with h = 1."""
    z, w = complex_columns(pair)
    return Pair.unchecked(z[..., None], w[..., None])  # type: ignore[arg-type]  # the only complex pairs there are


def _real(planes: Pair) -> Pair:
    """Return the inverse of `_complex`."""
    return each(lambda z: np.concatenate([z[..., 0].mT.real, z[..., 0].mT.imag], axis=-1), planes)


def _halves(pair: Pair) -> Pair:
    """Return columns i and i + h/2 below each other: shape (..., h/2, 2n, 1) and (..., h/2, 2m, 1)."""
    return each(lambda z: np.concatenate([z.real, z.imag], axis=-2), _complex(pair))


def _columns(halves: Pair) -> Pair:
    """Return the inverse of `_halves`."""
    return each(lambda F: np.concatenate(np.split(F[..., 0].mT, 2, axis=-2), axis=-1), halves)
