"""Circumstances: how the arrays of a call lie, what was asked before, and where it runs. None changes what is right.

They are levels of the design as the features of a point are: `assign_circumstances` gives every circumstance to several
points, so that it meets as many levels of the features as there is room for. A wrong result in a circumstance is
attributed to it only if the plain call is right at the same point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.call import Call
from refgeo.conformance.features import NARROW, Features, all_levels, distribute
from refgeo.conformance.memory import LIES
from refgeo.conformance.operations import VALUES, Value
from refgeo.conformance.scene import TURNS, Scene
from refgeo.support.arguments import ENDS, Array

Before = Callable[[Scene, Value], Call | None]
"""The earlier call; None where there is none of this kind."""
Change = Callable[[Call], Call]


def _changed(change: Callable[[Array], Array | None], *which: int) -> Before:
    """The same call with some of its arrays changed; all of them, where none is named."""

    def call(scene: Scene, value: Value) -> Call | None:
        plain = scene.call(value)
        some = [plain.arrays[i] for i in which if i < len(plain.arrays)] if which else plain.arrays
        once = {id(x): change(x) for x in some}
        if not some or any(x is None for x in once.values()):
            return None
        return replace(plain, arrays=[x if (y := once.get(id(x))) is None else y for x in plain.arrays])

    return call


def _times(factor: float, *place: Any) -> Callable[[Array], Array]:
    """An array times a factor, or a part of it: a row, an entry; None stands for the middle row."""

    def change(x: Array) -> Array:
        x = np.array(x)
        x[(..., *(x.shape[-2] // 2 if i is None else i for i in place))] *= x.dtype.type(factor)
        return x

    return change


def _block_times(block: int) -> Callable[[Array], Array | None]:
    def change(x: Array) -> Array | None:
        blocks = np.array(x).reshape(-1, *x.shape[-2:])
        blocks[block] *= 2
        return blocks.reshape(x.shape) if len(blocks) > 1 else None

    return change


def _permuted(x: Array) -> Array:
    return np.concatenate([x[..., 1:], -x[..., :1]], axis=-1)


def _too_wide(x: Array) -> Array:
    """With a column too many, so that the call fails at its beginning, where it has to, or midway."""
    return np.concatenate([x, x[..., :1]], axis=-1)


def _single(x: Array) -> Array | None:
    """In float32, which whoever is judged in float64 may keep."""
    sizes = np.abs(x[x != 0.0])
    is_possible = x.dtype == np.float64 and 1e-30 < sizes.min(initial=1.0) <= sizes.max(initial=1.0) < 1e30
    return x.astype(np.float32) if is_possible else None


def _another_block(x: Array) -> Array:
    """Of a batch the first block alone; else a batch that begins with this block."""
    return np.array(x.reshape(-1, *x.shape[-2:])[0]) if x.ndim > 2 else np.stack([x, -x])


def _exchanged(scene: Scene, value: Value) -> Call:
    """G and H, and the parts of all vectors, in each other's place."""
    plain = scene.call(value)
    arrays = [x for i in range(0, len(plain.arrays), 2) for x in (plain.arrays[i + 1], plain.arrays[i])]
    return replace(plain, arrays=arrays, shapes=plain.shapes[::-1])


def in_another_metric(scene: Scene, value: Value) -> Call | None:
    """The same call, but for its metric."""
    return replace(scene.call(value), metric=scene.other_metric) if scene.metric in ENDS else None


def _another_t(scene: Scene, value: Value) -> Call | None:
    return scene.call(value, t=0.5 * scene.time(value)) if "t" in value.operation.extra else None


def _another_order(scene: Scene, value: Value) -> Call | None:
    other = {1: 2, 2: 1, "exact": 2}.get(value.order)
    return None if other is None else scene.call(VALUES[f"geodesic_{other}"])


def _another_function(scene: Scene, value: Value) -> Call:
    names = [*VALUES]
    at = names.index(value.name) if value.name in names else 0
    return scene.call(VALUES[next(name for name in names[at + 1 :] + names if VALUES[name].order in (None, 2))])


def _written_to(scene: Scene, value: Value) -> Call:
    """The same call, whose results the caller then writes to."""
    return replace(scene.call(value), do="write")


BEFORE: dict[str, tuple[str, Before]] = {
    "metric": ("a call with the other metric", in_another_metric),
    "permuted": ("a call with the columns of all arrays permuted", _changed(_permuted)),
    "exchanged": ("a call with G and H exchanged", _exchanged),
    "row": ("a call with the same factors but for the last row of H", _changed(_times(0.5, -1, slice(None)), 1)),
    "middle": ("a call with the same factors but for a row in the middle of G",
               _changed(_times(0.5, None, slice(None)), 0)),
    "entry": ("a call with the same factors but for an entry of G", _changed(_times(1.0 + 2.0**-10, -1, -1), 0)),
    "digit": ("a call with the same G, and an H that is the same in float32",
              _changed(_times(1.0 + 2.0**-26, -1, -1), 1)),
    "twelfth": ("a call with factors that are the same in twelve digits",
                _changed(_times(1.0 + 2.0**-40, -1, -1), 0, 1)),
    "first-block": ("a call with another first block of G", _changed(_block_times(0), 0)),
    "last-block": ("a call with another last block of H", _changed(_block_times(-1), 1)),
    "same-G": ("a call with the same G and another H", _changed(_times(2.0), 1)),
    "same-H": ("a call with the same H and another G", _changed(_times(2.0), 0)),
    "near-G": ("a call with nearly the same G and the same H", _changed(_times(1.0 + 2.0**-20), 0)),
    "point": ("a call with the same vectors at another point", _changed(_times(2.0), 0, 1)),
    "first-G": ("a call with another G part of the first vector", _changed(_times(0.5), 2)),
    "first-H": ("a call with another H part of the first vector", _changed(_times(0.5), 3)),
    "second-G": ("a call with another G part of the second vector", _changed(_times(0.5), 4)),
    "second-H": ("a call with another H part of the second vector", _changed(_times(0.5), 5)),
    "third": ("a call with another third vector", _changed(_times(0.5), 6, 7)),
    "dtype": ("a call with float32 arrays", _changed(_single)),
    "t": ("a call with another t", _another_t),
    "order": ("a call with another order", _another_order),
    "function": ("a call of another function", _another_function),
    "refused": ("a call that failed at a vector's shape", _changed(_too_wide, 2)),
    "refused-late": ("a call that failed at the last vector's shape", _changed(_too_wide, -1)),
    "singular": ("a call with H = 0", _changed(_times(0.0), 1)),
    "nan": ("a call with NaN", _changed(_times(math.nan), 2)),
    "block": ("a call with another number of blocks", _changed(_another_block)),
    "written": ("the same call, whose result was written to", _written_to),
}  # fmt: skip
BESIDE = ("metric", "point")
"""Those that another thread makes meanwhile."""


@dataclass(frozen=True)
class Circumstance:
    """One circumstance.

    Attributes
    ----------
    kind : "lies", "before", "beside", "thread" or ""
    name : str
        One of its levels.
    """

    kind: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """What it is, in words.

        Examples
        --------
        >>> Circumstance("before", "t").words, PLAIN.words
        ('after a call with another t', '')
        """
        if self.kind in ("lies", ""):
            return LIES[self.name][0]
        other = BEFORE[self.name][0] if self.name else ""
        return {"before": f"after {other}", "beside": f"beside {other} in another thread"}.get(self.kind, "in a thread")

    @property
    def rule(self) -> str:
        """The rule of conduct that it shows; empty if there is none."""
        rules = {"lies": "takes_any_memory_layout", "beside": "thread_safe", "thread": "thread_safe"}
        return rules.get(self.kind, "")

    def of(self, scene: Scene, value: Value) -> Change | None:
        """What makes a call at a point one in this circumstance; None where there is no such call."""
        changes: dict[str, Any] = {"lies": self.name} if self.kind == "lies" else {"in_thread": self.kind == "thread"}
        if self.kind in ("before", "beside"):
            other = scene.kept((self, value.name), lambda: BEFORE[self.name][1](scene, value))
            if other is None:
                return None
            changes = {self.kind: (other,)}
        return lambda call: replace(call, **changes)

    def points(self, scene: Scene) -> Iterator[Scene]:
        """The point of its calls; where contents matter, with some that no other call has had, and then others with
        numbers of the same size, and of the same signs.
        """
        if self.kind in ("lies", ""):
            yield scene
            return
        k = 1 + CIRCUMSTANCES.index(self)
        yield from (scene.turned(*one) for one in ((k, k), (k + TURNS, k), (k, k + 1)))

    def fits(self, features: Features) -> bool:
        """Whether points of these features have it; where nothing is decisive it shows nothing."""
        if self.kind and (features.max_condition > 700.0 or features.cost > _MOST):
            return False
        if self.name in ("expanded", "overlapping"):
            return features.shared in (("rows",) if self.name == "overlapping" else ("G", "H", "all"))
        if self.name.startswith(("heads-", "blocks-")) or self.name in ("first-block", "last-block"):
            return math.prod(features.blocks) > 1
        return self.kind not in ("thread", "beside") or (features.cost <= 10_000 and math.prod(features.blocks) <= 20)


PLAIN = Circumstance()
TURNED = "with some rows negated, and all numbers times a power of two"
_SMALL, _MOST = 100, 30_000
"""What a small point costs, and what any point may cost that has a circumstance."""
_PLAINLY = 4
"""So many of the first points are asked plainly in any case."""
CIRCUMSTANCES = [
    *(Circumstance("lies", name) for name in LIES if name),
    *(Circumstance("before", name) for name in BEFORE),
    *(Circumstance("beside", name) for name in BESIDE),
    Circumstance("thread"),
]


def nearly(call: Call) -> Call:
    """A call that is so near that its result is nearly the same, with contents of its own."""
    once = {id(x): x * x.dtype.type(1.0 + np.finfo(x.dtype).eps ** 0.5) for x in call.arrays}
    return replace(call, arrays=[once[id(x)] for x in call.arrays])


def assign_circumstances(points: Sequence[Features]) -> list[list[Circumstance]]:
    """Assign circumstances to points: each of them to a batch of narrow heads and to one of wide heads, layouts and
    threads also to a single wide head, all at sensitive points with most levels that it has not met. Most points have
    one circumstance, so that a value is evaluated once.

    Examples
    --------
    >>> one, many = assign_circumstances([Features()]), assign_circumstances([Features()] * 200)
    >>> [len(some) > 30 for some in one], max(map(len, many))
    ([True], 1)
    """
    clear = {i for i, one in enumerate(points) if one.is_sensitive}
    items: list[tuple[Circumstance, Sequence[int]]] = [(PLAIN, [i]) for i in range(min(_PLAINLY, len(points)))]
    for is_wide, in_batch in ((False, True), (True, False), (True, True)):
        for circumstance in (one for one in CIRCUMSTANCES if in_batch or one.kind != "before"):
            possible = [i for i, one in enumerate(points) if circumstance.fits(one)]
            plain = [i for i in possible if i in clear]
            alike = [
                i for i in plain if (points[i].h > NARROW) == is_wide and (math.prod(points[i].blocks) > 1) == in_batch
            ]
            few = [i for i in alike if not points[i].is_large and (is_wide or points[i].cost <= _SMALL)]
            items.append((circumstance, few or alike or plain or possible))
    found = distribute([sorted(all_levels(one)) for one in points], items)
    return [some or [PLAIN] for some in found]
