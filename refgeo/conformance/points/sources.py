"""Make the test points of a run: generated ones, the heads of real networks, and the user's own."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refgeo.conformance.points.covering_design import covering_design
from refgeo.conformance.points.features import MAX_ENCLOSED_SIZE, Features, enclosed_size
from refgeo.conformance.points.scene import Scene, from_arrays, generate
from refgeo.conformance.protocol.precision import PRECISIONS
from refgeo.geometry.pair import Pair, each
from refgeo.support.arguments import Array, as_list, integer, number, one_of

PROFILES = ("quick", "full")
MAX_CONTEXT_ENTRIES = 140_000
"""Number of entries of a point above which circumstances are tested on the first rows of two blocks; chosen."""
_MAX_ENTRIES = 2_000_000
"""Number of entries of a network's point; chosen, to bound memory."""
_MAX_WELL_CONDITIONED = 300.0
"""κ of the first rows of a head up to which all values there are decisive."""
GivenPoints = Mapping[str, Mapping[str, npt.ArrayLike]]


class LazyPoint(NamedTuple):
    """A test point that is made when it is needed, because all points of a large network together need much memory.

    Attributes
    ----------
    name : str
    make : callable
    features : Features
        If the point was not generated, these describe its shapes only.
    """

    name: str
    make: Callable[[], Scene]
    features: Features


def points_named(points: Iterable[LazyPoint], names: Iterable[str]) -> list[Scene]:
    """Make the points with these names."""
    requested = set(names)
    return [point.make() for point in points if point.name in requested]


@dataclass(frozen=True)
class Points:
    """The source of the test points of a run: options of `refgeo.check`, with their defaults.

    Attributes
    ----------
    profile, dtype, seed, relaxation, points, checkpoint, layout, heads, key_value_heads
        As for `refgeo.check`.
    files : tuple of str and list of Scene, optional
        A folder of vectors, and its points.

    Examples
    --------
    >>> str(Points())
    'generated points'
    """

    profile: str = "quick"
    dtype: str = "float64"
    seed: int = 0
    relaxation: float = 0.0
    points: GivenPoints | None = None
    checkpoint: str | Path | Mapping[str, Any] | None = None
    layout: str | None = None
    heads: int | None = None
    key_value_heads: int | None = None
    files: tuple[str, list[Scene]] | None = None

    def __post_init__(self) -> None:
        one_of("profile", self.profile, PROFILES)
        one_of("dtype", self.dtype, PRECISIONS)
        numbers = {
            "seed": integer("seed", self.seed, least=0),
            "relaxation": number("relaxation", self.relaxation, "ε of App. H.2", least=0.0),
        }
        for name, value in numbers.items():  # NumPy's numbers are no JSON
            object.__setattr__(self, name, value)
        if self.points is not None and self.checkpoint is not None:
            raise ValueError("points, checkpoint: expected at most one of these two, got both")
        if self.checkpoint is None and (self.layout is not None or self.heads is not None):
            raise ValueError("layout, heads: expected a checkpoint together with these arguments, got none")
        if self.checkpoint is not None and self.layout is None:
            raise ValueError("layout: expected one of refgeo.networks.LAYOUTS together with a checkpoint, got none")
        if self.points is not None:
            _refuse_strange(self.points)

    @property
    def is_generated(self) -> bool:
        """Whether the points are generated from their names."""
        return self.points is None and self.checkpoint is None and self.files is None

    def all_points(self, metric: str) -> Sequence[LazyPoint]:
        """Return all points for a metric; each is made when it is needed."""
        options = metric, self.dtype, self.seed, self.relaxation
        if self.is_generated:
            largest = PRECISIONS[self.dtype].largest
            design = (f for f in self._design if f.is_in_range(self.dtype, largest))
            return [LazyPoint(f.name, partial(generate if f.is_large else _generate, f, *options), f) for f in design]
        if self.files is not None:
            scenes = [scene for scene in self.files[1] if scene.metric == metric]
            return [LazyPoint(s.name, partial(_identity, s), _shape_of(*s.point)) for s in scenes]
        arrays = self._network if self.points is None else self.points
        return [
            LazyPoint(name, partial(from_arrays, name, f, *options), _shape_of(f.get("G"), f.get("H")))
            for name, f in arrays.items()
            if str(f.get("metric", metric)) == metric
        ]

    def select(self, metric: str, names: Iterable[str] | None) -> list[LazyPoint]:
        """Return the points with these names, or whose names begin with one of them; all points for None.

        A generated point that is not in the profile is made from its name.
        """
        if names is None:
            return list(self.all_points(metric))
        selection: dict[str, LazyPoint] = {}
        for name in as_list(names):
            start = name.split("[")[0].rstrip("/.")  # a block's index, as a table shows it, is no part of a name
            features = Features.parse(start) if self.is_generated else None
            matching: list[LazyPoint]
            if features is not None:
                make = partial(_generate, features, metric, self.dtype, self.seed, self.relaxation)
                matching = [LazyPoint(features.name, make, features)]
            else:
                points = self.all_points(metric)
                matching = [point for point in points if point[0] == start] or [
                    point for point in points if point[0].startswith((start + "/", start + ".", start + " "))
                ]
            if not matching:
                raise ValueError(
                    f"cases: none of the test points is called {name}; refgeo check --list shows their names"
                )
            selection |= {point[0]: point for point in matching}
        return list(selection.values())

    @cached_property
    def _design(self) -> tuple[Features, ...]:
        """The design of generated points."""
        return covering_design(self.profile, self.seed)

    @cached_property
    def _network(self) -> dict[str, dict[str, Array]]:
        """The arrays of each point of a checkpoint."""
        from refgeo import networks

        assert self.checkpoint is not None and self.layout is not None  # noqa: PT018
        blocks = networks.read(self.checkpoint, self.layout, self.heads, self.key_value_heads).blocks
        pairs = {name: block for name, block in blocks.items() if isinstance(block, Pair)}
        portions = itertools.chain(_first_rows(pairs), *(_group_heads(*pair) for pair in pairs.items()))
        return {name: {"G": part.G, "H": part.H} for name, part in portions}

    def __str__(self) -> str:
        if self.is_generated:
            text = "generated points"
        elif self.files is not None:
            text = f"vectors in {self.files[0]}"
        else:
            text = "given points" if self.checkpoint is None else f"{self.layout} checkpoint"
        return text + (f", ε = {self.relaxation:g}" if self.relaxation else "")

    def command(self) -> list[str] | None:
        """Return the command-line options that make one of the points again; None if there are none."""
        if not (self.is_generated or isinstance(self.checkpoint, (str, Path))):
            return None
        names = ("dtype", "relaxation", "layout", "heads", "key_value_heads", "checkpoint")
        non_default = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Points, name)}
        return [f"--{name.replace('_', '-')} {shlex.quote(str(x))}" for name, x in non_default.items()]


def _shape_of(G: Any, H: Any) -> Features:
    """Return features that have these shapes and are generic otherwise.

    Of a large point, these are the features of the part on which circumstances are tested. Shapes that do not fit give
    the default features; making the point raises the error.
    """
    try:
        shapes = np.shape(G), np.shape(H)
    except ValueError:
        return Features()
    if min(map(len, shapes)) < 2:
        return Features()
    (*blocks, n, h), m = shapes[0], shapes[1][-2]
    if math.prod(blocks) * (n + m) * h > MAX_CONTEXT_ENTRIES:
        blocks, n, m = [min(2, math.prod(blocks))] * bool(blocks), min(n, 2 * h + 1), min(m, 2 * h + 1)
    return Features(tuple(blocks), n, m, h)


def _identity(scene: Scene) -> Scene:
    """Return a point as it is."""
    return scene


@lru_cache(maxsize=800)
def _generate(features: Features, metric: str, dtype: str, seed: int, relaxation: float) -> Scene:
    """Generate a point, and keep it with its enclosures for the next run in this process."""
    return generate(features, metric, dtype, seed, relaxation)


def _first_rows(pairs: Mapping[str, Pair]) -> Iterator[tuple[str, Pair]]:
    """Yield the first rows of the first head, a small point whose values are enclosed, if an enclosure of the head
    takes long.
    """
    for name, block in itertools.islice(pairs.items(), 1):
        rows = 2 * block.sizes[2] + 1
        first = each(lambda F, rows=rows: F.reshape(-1, *F.shape[-2:])[0, :rows], block)
        if enclosed_size(*block.sizes) > MAX_ENCLOSED_SIZE and all(
            np.linalg.cond(F) < _MAX_WELL_CONDITIONED for F in first
        ):
            yield f"{name}/rows0-{rows - 1}", first


def _group_heads(name: str, block: Pair) -> Iterator[tuple[str, Pair]]:
    """Split a network's heads into points of so few heads that their vectors need little memory."""
    (n, m, h), heads = block.sizes, math.prod(block.block_shape)
    count = max(1, _MAX_ENTRIES // ((n + m) * h))
    if count >= heads:
        yield name, block
        return
    G, H = (factor.reshape(heads, *factor.shape[-2:]) for factor in block)
    for first in range(0, heads, count):
        last = min(first + count, heads)
        yield f"{name}/{first}-{last - 1}", Pair(G[first:last], H[first:last])


def _refuse_strange(points: Any) -> None:
    """Raise an error unless points are a dict of dicts."""
    if not isinstance(points, Mapping) or not points:
        raise ValueError(f'points: expected a dict such as {{"mine": {{"G": ..., "H": ...}}}}, got {points!r:.80}')
    for name, arrays in points.items():
        if not isinstance(name, str) or not isinstance(arrays, Mapping):
            raise ValueError(f"points: expected names with dicts of arrays, got {name!r}: {type(arrays).__name__}")
