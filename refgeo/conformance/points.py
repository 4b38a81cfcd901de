"""Where the test points of a run come from: generated ones, the heads of real networks, and somebody's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.arguments import number
from refgeo.conformance.case import GIVEN, VECTORS, Case
from refgeo.conformance.drawing import TIMES, make_case, rng_of
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.recipes import Lazy, generated
from refgeo.errors import RankDeficientError
from refgeo.pair import Pair


@dataclass(frozen=True)
class Points:
    """Where the test points of a run come from; says itself as a command line and as Python.

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
    def of_network(
        cls,
        checkpoint: str | Path | Mapping[str, Any],
        layout: str | None,
        heads: int | None,
        profile: str,
        dtype: str,
        seed: int,
        relaxation: float,
    ) -> Points:
        """The heads of a network, from a file or a state dict."""
        file = str(checkpoint) if isinstance(checkpoint, (str, Path)) else None
        options = {"checkpoint": file, "layout": layout, "heads": heads}
        return cls("checkpoint", profile, dtype, seed, relaxation, options, checkpoint)

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
    def _named(self) -> bool:
        return self.options.get("checkpoint") is not None


def _later(make: Callable[..., Case], *arguments: Any) -> Callable[[], Case]:
    return lambda: make(*arguments)


def _network_case(name: str, metric: str, point: Pair, points: Points) -> Case:
    """A block of a network, with random vectors."""
    try:
        return make_case(name, metric, point, rng_of(points.seed, name), points.dtype, points.seed, points.relaxation)
    except RankDeficientError as error:
        raise RankDeficientError(f"{name}: {error}", error.block, error.smallest_singular_value) from error


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
    try:
        point = Pair(arrays["G"], arrays["H"])
        given = {}
        for vector in VECTORS:
            parts = [arrays[f"{vector}_{part}"] for part in "GH" if f"{vector}_{part}" in arrays]
            if len(parts) == 1:
                raise ValueError(f"{vector}_G and {vector}_H go together, got one of them")
            if parts:
                given[vector] = _tangent(vector, Pair(*parts), point)
        hessian = [vector for vector in given if vector.startswith("hessian")]
        if len(hessian) not in (0, 3):
            raise ValueError(f"hessian_e, hessian_w and hessian_v go together, got {' and '.join(hessian)}")
        t = _time(arrays["t"], dtype) if "t" in arrays else TIMES[0]
        case = make_case(name, metric, point, rng_of(seed, name), dtype, seed, relaxation, given, t)
        slack = 200 * PRECISIONS[dtype].roundoff * np.max(case.condition, initial=1.0)
        if hessian and not np.all(case.space.is_horizontal(case.vectors["hessian_v"], float(slack))):
            raise ValueError(f"hessian_v: expected a horizontal vector of {metric}; use horizontal_projection")
    except RankDeficientError as error:
        raise RankDeficientError(f"point {name}: {error}", error.block, error.smallest_singular_value) from error
    except ValueError as error:
        raise ValueError(f"point {name}: {error}") from error
    return case


def _time(value: npt.ArrayLike, dtype: str) -> float:
    return float(PRECISIONS[dtype].rounded(np.array(number("t", value))))


def _tangent(name: str, v: Pair, point: Pair) -> Pair:
    if (v.G.shape, v.H.shape) != (point.G.shape, point.H.shape):
        raise ValueError(
            f"{name}_G and {name}_H: expected the shapes of G and H, {point.G.shape} and {point.H.shape}, got "
            f"{v.G.shape} and {v.H.shape}"
        )
    return v
