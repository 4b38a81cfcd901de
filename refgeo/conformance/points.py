"""Where the test points of a run come from: generated ones, the heads of real networks, and somebody's own."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.case import GIVEN, Case
from refgeo.conformance.drawing import TIMES, make_case, rng_of
from refgeo.conformance.operations import VECTORS
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.recipes import Lazy, Recipe, generated, lazy
from refgeo.geometry.pair import Pair, each
from refgeo.support.arguments import Array, integer, listed, number, one_of
from refgeo.support.errors import about

PROFILES = ("quick", "full")
_MOST_NUMBERS = 2_000_000
"""Of a network's point."""
_SLOW_TO_ENCLOSE, _WELL_CONDITIONED = 2_000_000, 300.0
"""(n + m)h² of a head; κ of its first rows, where all values are decisive."""
GivenPoints = Mapping[str, Mapping[str, npt.ArrayLike]]


@dataclass(frozen=True)
class Points:
    """Where the test points of a run come from: options of `refgeo.check`, with their defaults.

    Attributes
    ----------
    profile, dtype, seed, relaxation, points, checkpoint, layout, heads
        As for `refgeo.check`.
    files : tuple of str and list of Case, optional
        A folder of vectors, and its cases.

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
    files: tuple[str, list[Case]] | None = None

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
        if self.points is not None:
            _refuse_strange(self.points)

    def with_layout(self) -> Points:
        """The same, with the layout that fits the checkpoint where none was given."""
        if self.checkpoint is None or self.layout is not None:
            return self
        from refgeo import networks

        return replace(self, layout=networks.layout_of(self.checkpoint))

    @property
    def generated(self) -> bool:
        """Whether they are made from names."""
        return self.points is None and self.checkpoint is None and self.files is None

    def cases(self, metric: str) -> Sequence[Lazy]:
        """The names of the points, each with the function that makes it; a search makes its own."""
        options = metric, self.dtype, self.seed, self.relaxation
        if self.generated:
            return generated(self.profile, *options)
        if self.files is not None:
            return [(case.name, partial(_itself, case)) for case in self.files[1] if case.metric == metric]
        arrays = self._network if self.points is None else self.points
        return [(name, partial(given_case, name, one, *options)) for name, one in arrays.items()]

    def selected(self, metric: str, names: Iterable[str] | None) -> list[Lazy]:
        """The cases with these names, or whose names begin with one; None: all. A generated case that the profile does
        not hold is made from its name.
        """
        found = list(self.cases(metric))
        if names is None:
            return found
        chosen: dict[str, Lazy] = {}
        for name in listed(names):
            start = name.split("[")[0].rstrip("/.")  # a block's index, as a table shows it, is no part of a case's name
            exact = [one for one in found if one[0] == start]
            recipe = Recipe.parse(start) if self.generated and not exact else None
            if recipe is not None:
                exact = [lazy(recipe, metric, self.dtype, self.seed, self.relaxation)]
            several = exact or [one for one in found if one[0].startswith((start + "/", start + ".", start + " "))]
            if not several:
                raise ValueError(f"cases: none of the test points is called {name}; --list shows their names")
            chosen |= {one[0]: one for one in several}
        return list(chosen.values())

    @cached_property
    def _network(self) -> dict[str, dict[str, Array]]:
        from refgeo import networks

        assert self.checkpoint is not None
        blocks = networks.read(self.checkpoint, self.layout, self.heads).blocks
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
        words = (f"--{key} {shlex.quote(str(x))}" for key, x in self._unusual(one_point=True).items())
        return list(words) if self.can_be_sent else None

    def python(self, case: str | None) -> list[str]:
        """The arguments of `refgeo.check` that make one point again, or all."""
        words = [f"{key}={x!r}" for key, x in self._unusual(case is not None).items()]
        if self.points is not None:
            return [*words, f"points={{{case!r}: points[{case!r}]}}"]
        words += ["checkpoint=state_dict"] if self.checkpoint is not None and not self.can_be_sent else []
        return [*words, f"cases={[case]!r}"] if case is not None else words

    def _unusual(self, one_point: bool) -> dict[str, Any]:
        """The options that are not those by default; one point that a search has found has a name."""
        names = ["dtype", "relaxation", "layout", "heads"]
        if self.can_be_sent:
            names.append("checkpoint")
        names.append("profile")
        found = {key: getattr(self, key) for key in names if getattr(self, key) != getattr(Points, key)}
        return {key: str(x) if isinstance(x, Path) else x for key, x in found.items()}

    @property
    def can_be_sent(self) -> bool:
        """Whether another process can make the same points."""
        return self.generated or isinstance(self.checkpoint, (str, Path))


def _itself(case: Case) -> Case:
    return case


def _first_rows(pairs: Mapping[str, Pair]) -> Iterator[tuple[str, Pair]]:
    """Of the first head, if an enclosure would take long: of every value one is made at the first point."""
    for name, block in itertools.islice(pairs.items(), 1):
        n, m, h = block.sizes
        first = each(lambda F, rows=2 * h + 1: F.reshape(-1, *F.shape[-2:])[0, :rows], block)
        if (n + m) * h * h > _SLOW_TO_ENCLOSE and all(np.linalg.cond(F) < _WELL_CONDITIONED for F in first):
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


def given_case(
    name: str, arrays: Mapping[str, npt.ArrayLike], metric: str, dtype: str, seed: int = 0, relaxation: float = 0.0
) -> Case:
    """A case from named arrays: ``G``, ``H`` and any of `GIVEN`; the vectors that are missing are drawn.

    Raises
    ------
    ValueError
        An array is missing, unknown, of the wrong shape or not real.

    Examples
    --------
    >>> one = {"G": [[2.0]], "H": [[3.0]], "a_G": [[1.0]], "a_H": [[0.0]]}
    >>> given_case("mine", one, "inv", "float64").vectors["a"].G.item()
    1.0
    """
    unknown = sorted(set(arrays) - {"G", "H", *GIVEN})
    if unknown:
        raise ValueError(f"point {name}: unknown array {unknown[0]!r}; expected G, H and any of {', '.join(GIVEN)}")
    if "G" not in arrays or "H" not in arrays:
        raise ValueError(f"point {name}: expected the arrays G and H, got {', '.join(sorted(arrays)) or 'nothing'}")
    with about(f"point {name}"):
        point = Pair(arrays["G"], arrays["H"])
        given = {}
        for vector in VECTORS:
            parts = [arrays[f"{vector}_{part}"] for part in "GH" if f"{vector}_{part}" in arrays]
            if len(parts) == 1:
                raise ValueError(f"expected both {vector}_G and {vector}_H, or neither, got one of them")
            if parts:
                given[vector] = point.fitting(f"{vector}_G and {vector}_H", Pair(*parts))
        hessian = [vector for vector in given if vector.startswith("hessian")]
        if len(hessian) not in (0, 3):
            raise ValueError(
                f"expected all of hessian_e, hessian_w and hessian_v, or none, got {' and '.join(hessian)}"
            )
        t = float(PRECISIONS[dtype].rounded(np.array(number("t", arrays.get("t", TIMES[0])))))
        case = make_case(name, metric, point, rng_of(seed, name), dtype, seed, relaxation, given, t)
        slack = 200 * PRECISIONS[dtype].roundoff * np.max(case.condition, initial=1.0)
        if hessian and not np.all(case.space.is_horizontal(case.vectors["hessian_v"], float(slack))):
            raise ValueError(f"hessian_v: expected a horizontal vector of {metric}; horizontal_projection makes one")
    return case
