"""Where the test points of a run come from: generated ones, the heads of real networks, and somebody's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import integer, listed, number, one_of
from refgeo.conformance.case import GIVEN, Case
from refgeo.conformance.drawing import TIMES, make_case, rng_of
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.recipes import Lazy, Recipe, generated, lazy
from refgeo.errors import about
from refgeo.operations import VECTORS
from refgeo.pair import Pair

PROFILES = ("quick", "full", "fuzz")
EXAMPLES = 300
"""How many points the profile fuzz tries by default."""
GivenPoints = Mapping[str, Mapping[str, npt.ArrayLike]]


@dataclass(frozen=True)
class Points:
    """Where the test points of a run come from; can be written as a command line and as Python.

    Attributes
    ----------
    kind : "generated", "checkpoint", "given", "fuzz" or "files"
    profile, dtype : str
    seed : int
    relaxation : float
    options : dict
        What else the command line has to say: the checkpoint, its layout and heads; the examples of a search.
    source : object
        The state dict, or the named arrays of given points.
    """

    kind: str = "generated"
    profile: str = "quick"
    dtype: str = "float64"
    seed: int = 0
    relaxation: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    source: Any = None

    @classmethod
    def chosen(
        cls,
        profile: str,
        dtype: str,
        seed: int,
        relaxation: float,
        points: GivenPoints | None = None,
        checkpoint: str | Path | Mapping[str, Any] | None = None,
        layout: str | None = None,
        heads: int | None = None,
        examples: int = EXAMPLES,
    ) -> Points:
        """Those that arguments of `refgeo.check` choose: the user's, a network's, a search's, or generated ones.

        Examples
        --------
        >>> str(Points.chosen("quick", "float64", 0, 0.0))
        'generated points'
        """
        common = (
            one_of("profile", profile, PROFILES),
            one_of("dtype", dtype, PRECISIONS),
            integer("seed", seed, least=0),
            number("relaxation", relaxation, "ε of App. H.2", least=0.0),
        )
        if sum((points is not None, checkpoint is not None, profile == "fuzz")) > 1:
            raise ValueError("points, checkpoint, profile='fuzz': expected one kind of test points, got several")
        if checkpoint is not None:
            file = str(checkpoint) if isinstance(checkpoint, (str, Path)) else None
            return cls("checkpoint", *common, {"checkpoint": file, "layout": layout, "heads": heads}, checkpoint)
        if layout is not None or heads is not None:
            raise ValueError("layout, heads: go with a checkpoint, got none")
        if points is not None:
            _refuse_strange(points)
            return cls("given", *common, source=points)
        if profile == "fuzz":
            return cls("fuzz", *common, {"examples": integer("examples", examples)})
        return cls("generated", *common)

    def cases(self, metric: str) -> Iterator[Lazy]:
        """The names of the points, each with the function that makes it."""
        if self.kind == "generated":
            yield from generated(self.profile, metric, self.dtype, self.seed, self.relaxation)
        elif self.kind == "given":
            for name, arrays in self.source.items():
                yield name, _later(given_case, name, metric, arrays, self.dtype, self.seed, self.relaxation)
        elif self.kind == "files":
            yield from ((case.name, lambda case=case: case) for case in self.source if case.metric == metric)
        elif self.kind == "checkpoint":
            for name, point in self._network().items():
                yield name, _later(_network_case, name, metric, point, self)

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
            recipe = Recipe.parse(start) if self.kind == "generated" and not exact else None
            if recipe is not None:
                exact = [lazy(recipe, metric, self.dtype, self.seed, self.relaxation)]
            several = exact or [one for one in found if one[0].startswith((start + "/", start + ".", start + " "))]
            if not several:
                raise ValueError(f"cases: none of the test points is called {name}; --list shows them")
            chosen |= {one[0]: one for one in several}
        return list(chosen.values())

    def _network(self) -> dict[str, Pair]:
        from refgeo import networks

        layout = self.options.get("layout")
        if layout is None:
            raise ValueError(f"layout: a checkpoint needs one of {', '.join(networks.LAYOUTS)}")
        blocks = networks.read(self.source, layout, self.options.get("heads")).blocks
        return {name: block for name, block in blocks.items() if isinstance(block, Pair)}

    def __str__(self) -> str:
        text = {
            "generated": "generated points",
            "given": "given points",
            "checkpoint": f"{self.options.get('layout')} checkpoint",
            "fuzz": f"search with Hypothesis, {self.options.get('examples')} examples",
            "files": f"vectors in {self.options.get('directory')}",
        }[self.kind]
        return text + (f", ε = {self.relaxation:g}" if self.relaxation else "")

    def command(self) -> list[str] | None:
        """The options of a command line that makes the same points; None if there is none."""
        if self.kind not in ("generated", "checkpoint") or (self.kind == "checkpoint" and not self._named):
            return None
        import shlex

        words = [f"--dtype {self.dtype}"] if self.dtype != "float64" else []
        words += [f"--profile {self.profile}"] if self.profile != "quick" else []
        words += [f"--relaxation {self.relaxation:g}"] if self.relaxation else []
        return words + [f"--{key} {shlex.quote(str(x))}" for key, x in self.options.items() if x is not None]

    def python(self, case: str | None, arrays: Mapping[str, Any] | None = None) -> list[str]:
        """The arguments of `refgeo.check` that make one point again; `arrays`: those of a point that a search found."""
        words = [f"dtype={self.dtype!r}"] if self.dtype != "float64" else []
        words += [f"relaxation={self.relaxation!r}"] if self.relaxation else []
        if self.kind == "fuzz" and (case is None or arrays is None):
            return [*words, "profile='fuzz'", f"examples={self.options['examples']}"]  # one among many that passed
        if arrays is not None:
            literal = {name: np.asarray(array).tolist() for name, array in arrays.items()}
            return [*words, f"points={{{case!r}: {literal!r}}}"]
        if self.kind == "given":
            return [*words, f"points={{{case!r}: points[{case!r}]}}"]
        words += [f"profile={self.profile!r}"] if self.profile != "quick" else []
        if self.kind == "checkpoint":
            words += [f"{key}={x!r}" for key, x in self.options.items() if x is not None]
            words += [] if self._named else ["checkpoint=state_dict"]
        return [*words, f"cases={[case]!r}"] if case is not None else words

    @property
    def can_be_sent(self) -> bool:
        """Whether another process can make the same points."""
        return self.kind == "generated" or (self.kind == "checkpoint" and self._named)

    @property
    def _named(self) -> bool:
        return self.options.get("checkpoint") is not None


def _refuse_strange(points: Any) -> None:
    if not isinstance(points, Mapping) or not points:
        raise ValueError(f'points: expected a dict such as {{"mine": {{"G": ..., "H": ...}}}}, got {points!r:.80}')
    for name, arrays in points.items():
        if not isinstance(name, str) or not isinstance(arrays, Mapping):
            raise ValueError(f"points: expected names with dicts of arrays, got {name!r}: {type(arrays).__name__}")


def _later(make: Callable[..., Case], *arguments: Any) -> Callable[[], Case]:
    return lambda: make(*arguments)


def _network_case(name: str, metric: str, point: Pair, points: Points) -> Case:
    """A block of a network, with random vectors."""
    with about(name):
        return make_case(name, metric, point, rng_of(points.seed, name), points.dtype, points.seed, points.relaxation)


def given_case(
    name: str, metric: str, arrays: Mapping[str, npt.ArrayLike], dtype: str, seed: int = 0, relaxation: float = 0.0
) -> Case:
    """A case from named arrays: ``G``, ``H`` and any of `GIVEN`; the vectors that are missing are drawn.

    Raises
    ------
    ValueError
        An array is missing, unknown, of the wrong shape or not real.

    Examples
    --------
    >>> one = {"G": [[2.0]], "H": [[3.0]], "a_G": [[1.0]], "a_H": [[0.0]]}
    >>> given_case("mine", "inv", one, "float64").vectors["a"].G.item()
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
                raise ValueError(f"{vector}_G and {vector}_H go together, got one of them")
            if parts:
                given[vector] = point.fitting(f"{vector}_G and {vector}_H", Pair(*parts))
        hessian = [vector for vector in given if vector.startswith("hessian")]
        if len(hessian) not in (0, 3):
            raise ValueError(f"hessian_e, hessian_w and hessian_v go together, got {' and '.join(hessian)}")
        t = _time(arrays["t"], dtype) if "t" in arrays else TIMES[0]
        case = make_case(name, metric, point, rng_of(seed, name), dtype, seed, relaxation, given, t)
        slack = 200 * PRECISIONS[dtype].roundoff * np.max(case.condition, initial=1.0)
        if hessian and not np.all(case.space.is_horizontal(case.vectors["hessian_v"], float(slack))):
            raise ValueError(f"hessian_v: expected a horizontal vector of {metric}; use horizontal_projection")
    return case


def _time(value: npt.ArrayLike, dtype: str) -> float:
    return float(PRECISIONS[dtype].rounded(np.array(number("t", value))))
