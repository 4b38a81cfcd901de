r"""Pairs behind rotary positions: the quotient by what commutes with the rotations, :math:`(\mathbb{C}^*)^{h/2}`.

Rotary positions turn columns i and i + h/2 of queries and keys together, every plane with a frequency of its own. Of
GL(h) only :math:`A = aI + bJ` in each plane leaves the loss alone, J a quarter turn.

As complex columns :math:`z = G_{\cdot i} + \mathrm{i}\, G_{\cdot, i+h/2}` and w of H, that is one complex number per
plane, :math:`(z, w) → (z/c, \bar c\, w)`. Its modulus is the GL(1) of a real pair with h = 1 and factors
:math:`(\mathrm{Re}\,z, \mathrm{Im}\,z)`, :math:`(\mathrm{Re}\,w, \mathrm{Im}\,w)`, which the pair metrics divide
by. Its phase moves along :math:`(\mathrm{i}z, \mathrm{i}w)`, which is orthogonal to the orbits of the modulus and turns
the factors without changing the metric. So the horizontal space is that of the pairs less one direction a plane; and as
a geodesic conserves its product with such a direction, Γ and all geodesics are those of the pairs, closed forms
included.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from refgeo.geometry.balanced import generic_vector
from refgeo.geometry.blocks import ONLY
from refgeo.geometry.groups import Symmetry, commutant, commuting_part
from refgeo.geometry.pair import Pair, as_pair, each
from refgeo.geometry.pair_metrics import InterpolatedMetric, pair_metric
from refgeo.geometry.tangent_space import Metric, TangentSpace
from refgeo.support.arguments import Array, Order


class RotaryTangentSpace(TangentSpace[Pair]):
    """Tangent space of `RotaryMetric`: that of one real pair a plane, less the direction of the phase."""

    def __init__(self, metric: RotaryMetric, point: Pair) -> None:
        n, m, h = point.sizes
        if h % 2:
            raise ValueError(
                "point: expected an even number of columns, because rotary positions rotate pairs of columns, got "
                f"h = {h}"
            )
        self.metric, self.point = metric, point
        self.block_shape, self.dim, self.n_coordinates = point.block_shape, (n + m - 1) * h, (n + m) * h
        self._pairs = metric.pairs.at(_planes(point))
        p = self._complex(self._pairs.to_coordinates(self._pairs.point))
        p = p / np.max(np.abs(p), axis=-1, keepdims=True)  # whose squares neither overflow nor underflow
        self._turn = 1j * p / np.linalg.norm(p, axis=-1, keepdims=True)
        # any function of the orbit's points that turns with them makes coordinates that do not
        z = p[..., :n] @ generic_vector(n)
        self._phase = np.exp(1j * np.angle(z))[..., None]

    def vertical_vector(self, K: npt.ArrayLike) -> Pair:
        """(G K, −H Kᵀ) for a K that commutes with the rotations, shape ``(h, h)`` or ``(..., h, h)``.

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
        return self.point.fitting(name, as_pair(name, value))

    def _to(self, v: Pair) -> Array:
        return self._turned(self._pairs._to(_planes(v)))

    def _back(self, x: Array) -> Pair:
        return _columns(self._pairs._back(self._of_the_pairs(x)))

    def _gradient_to(self, e: Pair) -> Array:
        return self._turned(self._pairs._gradient_to(_planes(e)))

    def _gradient_back(self, x: Array) -> Pair:
        return _columns(self._pairs._gradient_back(self._of_the_pairs(x)))

    def _vertical(self, x: Array) -> Array:
        """That of the pairs, and what lies along (iz, iw) in every plane."""
        of_the_pairs = self._of_the_pairs(x)
        vertical = self._pairs._vertical(of_the_pairs)
        rest = self._complex(of_the_pairs - vertical)
        return self._turned(vertical + _real(rest - self._without_turn(rest), self.point))

    def _gamma(self, x: Array, z: Array) -> Array:
        return self._turned(self._pairs._gamma(self._of_the_pairs(x), self._of_the_pairs(z)))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        return self._turned(self._pairs._gamma_adjoint(self._of_the_pairs(x), self._of_the_pairs(e)))

    def _exact(self, v: Pair, t: float) -> Pair:
        return _columns(self._pairs._exact(_planes(v), t))

    def _exact_gradient(self, v: Pair, e: Pair) -> Pair:
        return _columns(self._pairs._exact_gradient(_planes(v), _planes(e)))

    def point_at(self, x: Array, order: Order = 2) -> Pair:
        """``geodesic(from_coordinates(x), 1, order)``."""
        return _columns(self._pairs.point_at(self._of_the_pairs(x), order))

    def gradient_at(self, x: Array, e: Pair, order: Order = 2, out: Array | None = None) -> Array:
        """The gradient of ``ℓ(point_at(x, order))`` in coordinates, projected to the horizontal space."""
        gradient = self._pairs.gradient_at(self._of_the_pairs(x), _planes(as_pair("e", e)), order)
        flat = self._turned(_real(self._without_turn(self._complex(gradient)), self.point))
        result = np.empty(flat.shape, x.dtype) if out is None else out
        result[...] = flat
        return result

    def _turned(self, x: Array) -> Array:
        """Coordinates of the pairs as those of all, the same along an orbit."""
        turned = _real(self._complex(x) / self._phase, self.point)
        return turned.reshape(*self.block_shape, self.n_coordinates)

    def _of_the_pairs(self, x: Array) -> Array:
        """The inverse of `_turned`."""
        planes = self.point.sizes[2] // 2
        x = self._coordinates(x).reshape(*self.block_shape, planes, self.n_coordinates // planes)
        return _real(self._complex(x) * self._phase, self.point).astype(x.dtype, copy=False)

    def _complex(self, x: Array) -> npt.NDArray[np.complex128]:
        """Coordinates of the pairs as (z, w), a row per plane."""
        n, m, _ = self.point.sizes
        parts = np.split(x, (n, 2 * n, 2 * n + m), axis=-1)
        return np.concatenate([parts[0] + 1j * parts[1], parts[2] + 1j * parts[3]], axis=-1)

    def _without_turn(self, x: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
        along = np.sum((x * self._turn.conj()).real, axis=-1, keepdims=True)
        return np.asarray(x - along * self._turn)


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
        self.name = f"rotary {metric.name}"

    def at(self, point: Pair) -> RotaryTangentSpace:
        """The tangent space at `point`, a Pair with an even number of columns.

        Raises
        ------
        RankDeficientError
            Both columns of a plane are zero.
        """
        return RotaryTangentSpace(self, as_pair("point", point))

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """What commutes with the rotations."""
        return [commutant(block)]

    def __repr__(self) -> str:
        return f"RotaryMetric({self.pairs!r})"


def complex_columns(pair: Pair) -> tuple[npt.NDArray[np.complex128], npt.NDArray[np.complex128]]:
    """The complex columns z and w of every plane, shape ``(..., h/2, n)`` and ``(..., h/2, m)``.

    Examples
    --------
    >>> complex_columns(Pair(np.eye(2), np.eye(2)))[0]
    array([[1.+0.j, 0.+1.j]])
    """
    half = pair.sizes[2] // 2
    z, w = ((F[..., :half] + 1j * F[..., half:]).mT for F in pair)
    return z, w


def _planes(pair: Pair) -> Pair:
    """Columns i and i + h/2 below each other: shape (..., h/2, 2n, 1) and (..., h/2, 2m, 1)."""
    return each(
        lambda F: np.swapaxes(F.reshape(*F.shape[:-1], 2, F.shape[-1] // 2), -1, -3).reshape(
            *F.shape[:-2], F.shape[-1] // 2, 2 * F.shape[-2], 1
        ),
        pair,
    )


def _columns(planes: Pair) -> Pair:
    """The inverse of `_planes`."""
    return each(
        lambda F: np.swapaxes(F.reshape(*F.shape[:-2], 2, F.shape[-2] // 2), -1, -3).reshape(
            *F.shape[:-3], F.shape[-2] // 2, 2 * F.shape[-3]
        ),
        planes,
    )


def _real(x: npt.NDArray[np.complex128], point: Pair) -> Array:
    """Coordinates of the pairs from (z, w)."""
    z, w = np.split(x, (point.sizes[0],), axis=-1)
    return np.concatenate([z.real, z.imag, w.real, w.imag], axis=-1)
