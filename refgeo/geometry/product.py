r"""The product geometry of a network: ‖ξ‖² = Σ_blocks ‖ξ_block‖² (App. C.1), each block with a metric of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import ONLY, Blocks, Named, names_of
from refgeo.geometry.groups import Symmetry
from refgeo.geometry.tangent_space import Metric, TangentSpace, as_metric
from refgeo.support.arguments import Array, Order
from refgeo.support.errors import about


class ProductTangentSpace(TangentSpace[Named]):
    """Tangent space of a `ProductMetric`: vectors are dicts with the names of the metric's blocks (what it
    returns are `Blocks`, which can be added).

    Attributes
    ----------
    metric : ProductMetric
    point : dict
    spaces : dict
        The tangent space of every block.
    dim : int
        Of the quotient, all blocks and heads together.
    n_coordinates : int
        Length of a coordinate vector.
    """

    metric: ProductMetric

    def __init__(self, metric: ProductMetric, point: dict[str, Any], spaces: dict[str, TangentSpace[Any]]) -> None:
        self.metric, self.point, self.spaces = metric, Blocks(point), spaces
        heads = {name: math.prod(space.block_shape) for name, space in spaces.items()}
        self.dim = sum(space.dim * heads[name] for name, space in spaces.items())
        ends = np.cumsum([0, *(space.n_coordinates * heads[name] for name, space in spaces.items())]).tolist()
        self.n_coordinates = ends[-1]
        self.slices = {name: slice(*ends[i : i + 2]) for i, name in enumerate(spaces)}

    def _vector(self, name: str, value: Named) -> Blocks:
        given = self._check_blocks(name, value)
        return Blocks({b: space._vector(f"{name}, block {b!r}", given[b]) for b, space in self.spaces.items()})

    def _check_blocks(self, name: str, value: Named) -> Named:
        if not isinstance(value, Mapping):
            raise TypeError(
                f"{name}: expected a dict with the blocks {names_of(self.spaces)}, got {type(value).__name__}"
            )
        missing = [block for block in self.spaces if block not in value]
        if missing:
            raise ValueError(f"{name}: the block {missing[0]!r} is missing; expected {names_of(self.spaces)}")
        return value

    def _gather(self, of_block: Callable[[str, TangentSpace[Any]], Array], dtype: Any = np.float64) -> Array:
        """Return coordinates, from those of one block after another."""
        x = np.empty(self.n_coordinates, dtype)
        for name, space in self.spaces.items():
            x[self.slices[name]] = of_block(name, space).ravel()
        return x

    def _scatter(self, x: npt.ArrayLike, of_block: Callable[[TangentSpace[Any], Array], Any]) -> Blocks:
        """Return a block each, from its coordinates."""
        return Blocks({name: of_block(space, self.part(name, x)) for name, space in self.spaces.items()})

    def _coordinates(self, x: npt.ArrayLike) -> Array:
        """Check coordinates; they stay in single precision, as long vectors of a search are."""
        x = np.asarray(x)
        if x.dtype != np.float32 or x.shape != (self.n_coordinates,):
            return super()._coordinates(x)
        return x

    def part(self, name: str, x: npt.ArrayLike) -> Array:
        """Return the coordinates of one block, in double precision.

        Examples
        --------
        >>> import refgeo as rg
        >>> plain = rg.EuclideanMetric()
        >>> space = rg.ProductMetric({"w": plain, "v": plain}).at({"w": [1.0], "v": [2.0]})
        >>> space.part("v", np.array([3.0, 4.0]))
        array([4.])
        """
        space = self.spaces[name]
        part = self._coordinates(x)[self.slices[name]].astype(np.float64, copy=False)
        return part.reshape(*space.block_shape, space.n_coordinates)

    def _to(self, v: Named) -> Array:
        return self._gather(lambda name, space: space._to(v[name]))

    def _back(self, x: Array) -> Blocks:
        return self._scatter(x, lambda space, part: space._back(part))

    def _gradient_to(self, e: Named) -> Array:
        return self._gather(lambda name, space: space._gradient_to(e[name]))

    def _gradient_back(self, x: Array) -> Blocks:
        return self._scatter(x, lambda space, part: space._gradient_back(part))

    def _vertical(self, x: Array) -> Array:
        return self._gather(lambda name, space: space._vertical(self.part(name, x)))

    def _gamma(self, x: Array, z: Array) -> Array:
        return self._gather(lambda name, space: space._gamma(self.part(name, x), self.part(name, z)))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        return self._gather(lambda name, space: space._gamma_adjoint(self.part(name, x), self.part(name, e)))

    def _exact(self, v: Named, t: float) -> Blocks:
        return Blocks({name: space._exact(v[name], t) for name, space in self.spaces.items()})

    def _exact_gradient(self, v: Named, e: Named) -> Blocks:
        return Blocks({name: space._exact_gradient(v[name], e[name]) for name, space in self.spaces.items()})

    def point_at(self, x: npt.ArrayLike, order: Order = 2) -> Blocks:
        """Return the point, computed block by block."""
        return self._scatter(x, lambda space, part: space.point_at(part, order))

    def gradient_at(self, x: npt.ArrayLike, e: Named, order: Order = 2) -> Array:
        """Return the gradient, computed block by block."""
        x = self._coordinates(x)
        return self._gather(lambda name, space: space.gradient_at(self.part(name, x), e[name], order), x.dtype)

    def horizontal_coordinates(self, x: npt.ArrayLike) -> Array:
        """Return the horizontal part, computed block by block."""
        x = self._coordinates(x)
        return self._gather(lambda name, space: space.horizontal_coordinates(self.part(name, x)), x.dtype)

    def normal_coordinates(self, rng: np.random.Generator) -> Array:
        """Return normal coordinates, drawn block by block."""
        return self._gather(lambda name, space: space.normal_coordinates(rng))

    def inner_product(self, a: Named, b: Named) -> Array:
        """Return the sum over blocks and heads, one number; one block after another, to save memory.

        Examples
        --------
        >>> import refgeo as rg
        >>> elementwise = rg.ElementwiseMetric()
        >>> space = rg.ProductMetric({"w": elementwise, "v": elementwise}).at({"w": [2.0], "v": [1.0]})
        >>> float(space.inner_product({"w": [2.0], "v": [3.0]}, {"w": [2.0], "v": [3.0]}))
        10.0
        """
        a, b = self._check_blocks("a", a), self._check_blocks("b", b)
        return np.asarray(sum(float(np.sum(s.inner_product(a[name], b[name]))) for name, s in self.spaces.items()))

    def is_horizontal(self, v: Named, tolerance: float = 1e-8) -> bool:
        """Return whether every block is horizontal."""
        v = self._check_blocks("v", v)
        return all(np.all(space.is_horizontal(v[name], tolerance)) for name, space in self.spaces.items())


class ProductMetric(Metric[Named]):
    """Named blocks, each with its own metric; what it does not name stays fixed.

    Parameters
    ----------
    metrics : mapping of str to Metric
        By the name of the block.

    Raises
    ------
    TypeError
        Something is not a metric.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> metric = rg.ProductMetric({"heads": rg.MixedMetric(), "bias": rg.ElementwiseMetric()})
    >>> point = {"heads": rg.Pair(np.ones((12, 5, 1)), np.ones((12, 4, 1))), "bias": np.ones(7)}
    >>> space = metric.at(point)
    >>> space.dim, space.n_coordinates
    (103, 115)
    """

    name = "product"
    has_blocks = True

    def __init__(self, metrics: Mapping[str, Metric[Any]]) -> None:
        for name, metric in metrics.items():
            as_metric(f"metrics[{name!r}]", metric)
        if not metrics:
            raise ValueError("metrics: expected at least one block, got none")
        self.metrics = dict(metrics)

    def at(self, point: Named) -> ProductTangentSpace:
        """Return the tangent space at `point`.

        Parameters
        ----------
        point : dict
            With every block of the metric; further ones are not part of the geometry.

        Returns
        -------
        ProductTangentSpace

        Raises
        ------
        ValueError
            A block is missing, or of the wrong kind; the message names it.
        """
        if not isinstance(point, Mapping):
            raise TypeError(
                f"point: expected a dict with the blocks {names_of(self.metrics)}, got {type(point).__name__}"
            )
        spaces = {}
        for name, metric in self.metrics.items():
            if name not in point:
                raise ValueError(f"point: the block {name!r} is missing; it has {names_of(point)}")
            with about(f"block {name!r}"):
                spaces[name] = metric.at(point[name])
        return ProductTangentSpace(self, {name: space.point for name, space in spaces.items()}, spaces)

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return the symmetries of all blocks, under their own names."""
        return [symmetry for name, metric in self.metrics.items() for symmetry in metric.symmetries(name)]

    def __repr__(self) -> str:
        return f"ProductMetric({self.metrics!r})"

    def __str__(self) -> str:
        """Return each metric and the number of its blocks, in the order in which they come."""
        counts = Counter(map(str, self.metrics.values()))
        return ", ".join(f"{metric} on {count} block{'s' if count > 1 else ''}" for metric, count in counts.items())
