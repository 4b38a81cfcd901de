"""Where the test points of a run come from: generated ones, the heads of real networks, and somebody's own."""

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

from refgeo.conformance.features import Features, covering_design
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.scene import SMALL, Scene, build, given
from refgeo.geometry.pair import Pair, each
from refgeo.support.arguments import Array, integer, listed, number, one_of

PROFILES = ("quick", "full")
LARGE = 140_000
"""Of points with more numbers, which a profile does not have, circumstances see the first rows of two blocks."""
_MOST_NUMBERS = 2_000_000
"""Of a network's point."""
_WELL_CONDITIONED = 300.0
"""κ of the first rows of a head, where all values are decisive."""
GivenPoints = Mapping[str, Mapping[str, npt.ArrayLike]]


class Case(NamedTuple):
    """A point that is made when it is wanted: those of a large network together need much memory.

    Attributes
    ----------
    name : str
    make : callable
    features : Features
        Of a point that was not generated, its shape.
    """

    name: str
    make: Callable[[], Scene]
    features: Features


def named(points: Iterable[Case], names: Iterable[str]) -> list[Scene]:
    """Those with these names, made again."""
    wanted = set(names)
    return [one.make() for one in points if one.name in wanted]


@dataclass(frozen=True)
class Points:
    """Where the test points of a run come from: options of `refgeo.check`, with their defaults.

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
        plain = {
            "seed": integer("seed", self.seed, least=0),
            "relaxation": number("relaxation", self.relaxation, "ε of App. H.2", least=0.0),
        }
        for name, value in plain.items():  # NumPy's numbers are no JSON
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
    def generated(self) -> bool:
        """Whether they are made from names."""
        return self.points is None and self.checkpoint is None and self.files is None

    def scenes(self, metric: str) -> Sequence[Case]:
        """The names of the points, each with the function that makes it; a search makes its own."""
        options = metric, self.dtype, self.seed, self.relaxation
        if self.generated:
            largest = PRECISIONS[self.dtype].largest
            fitting = (one for one in covering_design(self.profile, self.seed) if one.is_in_range(self.dtype, largest))
            return [Case(one.name, partial(build if one.is_large else _built, one, *options), one) for one in fitting]
        if self.files is not None:
            some = [scene for scene in self.files[1] if scene.metric == metric]
            return [Case(scene.name, partial(_itself, scene), _shaped(scene.point.G, scene.point.H)) for scene in some]
        arrays = self._network if self.points is None else self.points
        return [
            Case(name, partial(given, name, one, *options), _shaped(one.get("G"), one.get("H")))
            for name, one in arrays.items()
            if str(one.get("metric", metric)) == metric
        ]

    def selected(self, metric: str, names: Iterable[str] | None) -> list[Case]:
        """The points with these names, or whose names begin with one; None: all. A generated point that the profile
        does not hold is made from its name.
        """
        if names is None:
            return list(self.scenes(metric))
        chosen: dict[str, Case] = {}
        for name in listed(names):
            start = name.split("[")[0].rstrip("/.")  # a block's index, as a table shows it, is no part of a name
            features = Features.parse(start) if self.generated else None
            several: list[Case]
            if features is not None:
                make = partial(_built, features, metric, self.dtype, self.seed, self.relaxation)
                several = [Case(features.name, make, features)]
            else:
                found = self.scenes(metric)
                several = [one for one in found if one[0] == start] or [
                    one for one in found if one[0].startswith((start + "/", start + ".", start + " "))
                ]
            if not several:
                raise ValueError(
                    f"cases: none of the test points is called {name}; refgeo check --list shows their names"
                )
            chosen |= {one[0]: one for one in several}
        return list(chosen.values())

    @cached_property
    def _network(self) -> dict[str, dict[str, Array]]:
        from refgeo import networks

        assert self.checkpoint is not None and self.layout is not None  # noqa: PT018
        blocks = networks.read(self.checkpoint, self.layout, self.heads, self.key_value_heads).blocks
        pairs = {name: block for name, block in blocks.items() if isinstance(block, Pair)}
        portions = itertools.chain(_first_rows(pairs), *(_portions(*pair) for pair in pairs.items()))
        return {name: {"G": part.G, "H": part.H} for name, part in portions}

    def __str__(self) -> str:
        if self.generated:
            text = "generated points"
        elif self.files is not None:
            text = f"vectors in {self.files[0]}"
        else:
            text = "given points" if self.checkpoint is None else f"{self.layout} checkpoint"
        return text + (f", ε = {self.relaxation:g}" if self.relaxation else "")

    def command(self) -> list[str] | None:
        """The options of a command line that makes one of the points again; None if there is none."""
        if not (self.generated or isinstance(self.checkpoint, (str, Path))):
            return None
        names = ("dtype", "relaxation", "layout", "heads", "key_value_heads", "checkpoint")
        unusual = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Points, name)}
        return [f"--{name.replace('_', '-')} {shlex.quote(str(x))}" for name, x in unusual.items()]


def _shaped(G: Any, H: Any) -> Features:
    """The features that shapes alone have, of large points those of the part that circumstances see; the usual ones
    where shapes fit nothing, which making the point will say.
    """
    try:
        shapes = np.shape(G), np.shape(H)
    except ValueError:
        return Features()
    if min(map(len, shapes)) < 2:
        return Features()
    (*blocks, n, h), m = shapes[0], shapes[1][-2]
    if math.prod(blocks) * (n + m) * h > LARGE:
        blocks, n, m = [min(2, math.prod(blocks))] * bool(blocks), min(n, 2 * h + 1), min(m, 2 * h + 1)
    return Features(tuple(blocks), n, m, h)


def _itself(scene: Scene) -> Scene:
    return scene


@lru_cache(maxsize=800)
def _built(features: Features, metric: str, dtype: str, seed: int, relaxation: float) -> Scene:
    """Kept, with its enclosures, for the next run in this process."""
    return build(features, metric, dtype, seed, relaxation)


def _first_rows(pairs: Mapping[str, Pair]) -> Iterator[tuple[str, Pair]]:
    """Of the first head, if an enclosure would take long: a small point, whose values are enclosed."""
    for name, block in itertools.islice(pairs.items(), 1):
        n, m, h = block.sizes
        first = each(lambda F, rows=2 * h + 1: F.reshape(-1, *F.shape[-2:])[0, :rows], block)
        if (n + m) * h * h > SMALL and all(np.linalg.cond(F) < _WELL_CONDITIONED for F in first):
            yield f"{name}/rows0-{2 * h}", first


def _portions(name: str, block: Pair) -> Iterator[tuple[str, Pair]]:
    """Heads of a network, so many at once that their vectors need little memory."""
    (n, m, h), heads = block.sizes, math.prod(block.block_shape)
    count = max(1, _MOST_NUMBERS // ((n + m) * h))
    if count >= heads:
        yield name, block
        return
    G, H = (factor.reshape(heads, *factor.shape[-2:]) for factor in block)
    for first in range(0, heads, count):
        last = min(first + count, heads)
        yield f"{name}/{first}-{last - 1}", Pair(G[first:last], H[first:last])


def _refuse_strange(points: Any) -> None:
    if not isinstance(points, Mapping) or not points:
        raise ValueError(f'points: expected a dict such as {{"mine": {{"G": ..., "H": ...}}}}, got {points!r:.80}')
    for name, arrays in points.items():
        if not isinstance(name, str) or not isinstance(arrays, Mapping):
            raise ValueError(f"points: expected names with dicts of arrays, got {name!r}: {type(arrays).__name__}")
