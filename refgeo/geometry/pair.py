"""`Pair`: two factors ``(G, H)``, a point of the total space or a tangent vector at one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.gauge import balance
from refgeo.support.arguments import Array, real_array


class Pair:
    r"""Two factors :math:`(G, H)` with a common last dimension h: a point, or a tangent vector at one.

    A network that uses the factors only through :math:`G H^\top` is unchanged by
    :math:`\psi(A, (G, H)) = (G A^{-1}, H A^\top)`, A in GL(h) (Sec. 3.1 of the paper). Leading dimensions are
    independent blocks, for example attention heads.

    Parameters
    ----------
    G : array_like, shape ``(..., n, h)``
    H : array_like, shape ``(..., m, h)``
        Metrics that divide by GL(h) need factors of full column rank, h ≤ min(n, m).

    Raises
    ------
    ValueError
        Fewer than two dimensions, different h or different leading dimensions, no row or no column, NaN or infinity.
    TypeError
        Complex, boolean or non-numeric entries.

    Notes
    -----
    Immutable: the arrays are copied on the way in, stored as float64 and read-only. ``+``, ``-``, unary ``-``,
    ``*`` and ``/`` act on both factors; a multiplier may be a number or an array with one number per block.

    Examples
    --------
    >>> import refgeo as rg
    >>> pair = rg.Pair([[1.0], [2.0]], [[3.0], [4.0]])
    >>> (2 * pair).product
    array([[12., 16.],
           [24., 32.]])
    >>> G, H = pair
    >>> G.shape, H.shape
    ((2, 1), (2, 1))
    """

    __slots__ = ("G", "H")
    __array_ufunc__ = None  # so that numpy_scalar * pair and per_block_array * pair come to Pair.__rmul__

    G: Array
    H: Array

    def __init__(self, G: npt.ArrayLike, H: npt.ArrayLike) -> None:
        first, second = real_array("G", G), real_array("H", H)
        for name, factor in (("G", first), ("H", second)):
            if factor.ndim < 2:
                raise ValueError(f"{name}: expected shape (..., rows, h), got {factor.shape}; write a vector as (d, 1)")
        if first.shape[-1] != second.shape[-1]:
            raise ValueError(
                f"H: expected h = {first.shape[-1]} columns as in G {first.shape}, got {second.shape}; "
                "G is (..., n, h) and H is (..., m, h)"
            )
        if first.shape[:-2] != second.shape[:-2]:
            raise ValueError(
                f"H: expected the leading (block) dimensions {first.shape[:-2]} of G, got {second.shape[:-2]}"
            )
        for name, factor in (("G", first), ("H", second)):
            if 0 in factor.shape[-2:]:
                raise ValueError(f"{name}: expected at least one row and one column, got the shape {factor.shape}")
        self._set(first, second)

    def _set(self, G: Array, H: Array) -> None:
        for factor in (G, H):
            factor.flags.writeable = False
        object.__setattr__(self, "G", G)
        object.__setattr__(self, "H", H)

    @classmethod
    def unchecked(cls, G: Array, H: Array) -> Pair:
        """Return a pair of arrays as they are, neither copied nor checked: they fit, and nobody else writes to them.

        They are float64, but for rotary planes, which are complex, and for tensors of a checkpoint.

        Examples
        --------
        >>> Pair.unchecked(np.full((2, 1), np.nan), np.ones((1, 1)))
        Pair(G (2, 1), H (1, 1))
        """
        pair = cls.__new__(cls)
        pair._set(G, H)
        return pair

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Pair is immutable; make a new one instead of setting {name}")

    def __reduce__(self) -> tuple[Callable[..., Pair], tuple[Array, Array]]:
        return (Pair.unchecked, (self.G, self.H))

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Array]:
        return iter((self.G, self.H))

    def __repr__(self) -> str:
        return f"Pair(G {self.G.shape}, H {self.H.shape})"

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The leading dimensions: the shape of a per-block scalar.

        Examples
        --------
        >>> Pair(np.ones((12, 5, 1)), np.ones((12, 4, 1))).block_shape
        (12,)
        """
        return self.G.shape[:-2]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """``(n, m, h)``.

        Examples
        --------
        >>> Pair(np.ones((12, 5, 1)), np.ones((12, 4, 1))).sizes
        (5, 4, 1)
        """
        return self.G.shape[-2], self.H.shape[-2], self.G.shape[-1]

    @property
    def product(self) -> Array:
        r"""The invariant :math:`G H^\top`, shape ``(..., n, m)``: all that the network sees.

        Examples
        --------
        >>> Pair([[1.0], [2.0]], [[3.0]]).product
        array([[3.],
               [6.]])
        """
        return self.G @ self.H.mT

    def transform(self, A: npt.ArrayLike) -> Pair:
        r"""Return the group action :math:`(G A^{-1}, H A^\top)`, for points and tangent vectors alike.

        Parameters
        ----------
        A : array_like, shape ``(h, h)`` (the same for all blocks) or ``(..., h, h)``; invertible

        Returns
        -------
        Pair of the same shapes.

        Raises
        ------
        ValueError
            A has another shape, or is singular.

        Examples
        --------
        >>> pair = Pair([[1.0], [2.0]], [[3.0], [4.0]])
        >>> bool(np.all(pair.transform([[2.0]]).product == pair.product))
        True
        """
        group_element = self.square("A", A)
        try:
            G = np.linalg.solve(group_element.mT, self.G.mT).mT
        except np.linalg.LinAlgError as error:
            raise ValueError("A: expected an invertible matrix, got a singular one") from error
        if group_element.size and not np.all(np.linalg.cond(group_element) < 1.0 / np.finfo(np.float64).eps):
            raise ValueError("A: expected an invertible matrix, got one that is singular to working precision")
        return Pair.unchecked(G, self.H @ group_element.mT)

    def square(self, name: str, value: npt.ArrayLike) -> Array:
        """Return a checked matrix of shape ``(h, h)``, or one for each block.

        Examples
        --------
        >>> Pair(np.ones((2, 1)), np.ones((3, 1))).square("A", [[2.0]])
        array([[2.]])
        """
        matrix, h = real_array(name, value), self.sizes[2]
        if matrix.shape not in ((h, h), (*self.block_shape, h, h)):
            raise ValueError(f"{name}: expected shape {(h, h)} or {(*self.block_shape, h, h)}, got {matrix.shape}")
        return matrix

    def require_shapes(self, name: str, vector: Pair) -> Pair:
        """Return the vector if it has the shapes of this point, else raise an error.

        Examples
        --------
        >>> point = Pair(np.ones((2, 1)), np.ones((3, 1)))
        >>> point.require_shapes("v", 2 * point)
        Pair(G (2, 1), H (3, 1))
        """
        if vector.G.shape != self.G.shape or vector.H.shape != self.H.shape:
            raise ValueError(
                f"{name}: expected the shapes of the point, G {self.G.shape} and H {self.H.shape}, "
                f"got G {vector.G.shape} and H {vector.H.shape}"
            )
        return vector

    def balanced(self) -> tuple[Pair, Array]:
        r"""Return the representative of the orbit with :math:`\hat G^\top\hat G = \hat H^\top\hat H = \Sigma`.

        Returns
        -------
        balanced : Pair
            :math:`(G A^{-1}, H A^\top)`; Σ holds the singular values of :math:`G H^\top`.
        A : ndarray, shape ``(..., h, h)``

        Raises
        ------
        RankDeficientError
            A factor has numerical rank below h.

        Examples
        --------
        >>> pair, A = Pair([[8.0], [0.0]], [[2.0], [0.0]]).balanced()
        >>> (pair.G.T @ pair.G).item(), (pair.H.T @ pair.H).item(), A.item()
        (16.0, 16.0, 2.0)
        """
        gauge = balance(self.G, self.H)
        return Pair.unchecked(*gauge.representative), gauge.to_balanced[0]

    def __add__(self, other: Pair) -> Pair:
        if not isinstance(other, Pair):
            return NotImplemented
        self._require_same_shapes(other)
        return Pair.unchecked(self.G + other.G, self.H + other.H)

    def __sub__(self, other: Pair) -> Pair:
        if not isinstance(other, Pair):
            return NotImplemented
        self._require_same_shapes(other)
        return Pair.unchecked(self.G - other.G, self.H - other.H)

    def _require_same_shapes(self, other: Pair) -> None:
        if self.G.shape != other.G.shape or self.H.shape != other.H.shape:
            raise ValueError(f"cannot combine {self!r} and {other!r}: the shapes differ")

    def __neg__(self) -> Pair:
        return Pair.unchecked(-self.G, -self.H)

    def __mul__(self, scalar: npt.ArrayLike) -> Pair:
        factor = self._per_block(scalar)
        return Pair.unchecked(factor * self.G, factor * self.H)

    __rmul__ = __mul__

    def __truediv__(self, scalar: npt.ArrayLike) -> Pair:
        factor = self._per_block(scalar)
        return Pair.unchecked(self.G / factor, self.H / factor)

    def _per_block(self, scalar: npt.ArrayLike) -> Array:
        if isinstance(scalar, Pair):
            raise TypeError("a Pair can be multiplied by a number or by one number per block, not by another Pair")
        factor = real_array("scalar", scalar)
        if factor.shape not in ((), self.block_shape):
            raise ValueError(f"scalar: expected a number or an array of shape {self.block_shape}, got {factor.shape}")
        return factor[..., None, None]


def each(function: Callable[..., Array], *pairs: Iterable[Any]) -> Pair:
    """Return the function of the G parts, and of the H parts.

    Examples
    --------
    >>> each(np.add, Pair([[1.0]], [[2.0]]), ([[3.0]], [[4.0]])).H
    array([[6.]])
    """
    return Pair.unchecked(*(function(*parts) for parts in zip(*pairs, strict=True)))


def as_pair(name: str, value: object) -> Pair:
    """Return `value` itself if it is a `Pair`, a `Pair` of its two members if it is a tuple or list of two.

    Examples
    --------
    >>> as_pair("v", ([[1.0]], [[2.0]]))
    Pair(G (1, 1), H (1, 1))
    """
    if isinstance(value, Pair) and value.G.dtype == value.H.dtype == np.float64:
        return value
    if isinstance(value, Pair) or (isinstance(value, (tuple, list)) and len(value) == 2):
        return Pair(*value)
    raise TypeError(f"{name}: expected a Pair (or a tuple (G, H)), got {type(value).__name__}; use refgeo.Pair(G, H)")


def as_factors(block: Any) -> tuple[Array, ...]:
    """Return the arrays of a block.

    Examples
    --------
    >>> as_factors(np.ones(2))
    (array([1., 1.]),)
    """
    return tuple(block) if isinstance(block, Pair) else (block,)
