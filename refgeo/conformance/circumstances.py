"""Circumstances: how the arrays of a call lie, what was asked before, and where it runs. None changes what is right.

They are levels of the design as the features of a point are: `dealt` gives every circumstance to several points, so
that each meets as many levels of the features as there is room for. A wrong result in a circumstance is laid to it only
if the plain call is right at the same point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.call import Call
from refgeo.conformance.features import Features, levels_of, spread
from refgeo.conformance.memory import LIES
from refgeo.conformance.operations import VALUES, Value
from refgeo.conformance.scene import TURNS, Scene
from refgeo.support.arguments import ENDS, Array

Before = Callable[[Scene, Value], Call | None]
"""The earlier call; None where there is none of this kind."""


def _at(G: float | Array, H: float | Array) -> Before:
    """The same vectors at a point whose factors are multiplied."""
    return lambda scene, value: scene.at([G * scene.point.G, H * scene.point.H], value=value).call(value)


def _nearly_the_same_G(scene: Scene, value: Value) -> Call:
    """What is "close enough" is not the same."""
    return scene.at([(1.0 + scene.precision.roundoff**0.4) * scene.point.G, scene.point.H], value=value).call(value)


def _in_another_metric(scene: Scene, value: Value) -> Call | None:
    return scene.at(scene.point, scene.other_metric, value=value).call(value) if scene.metric in ENDS else None


def _permuted(scene: Scene, value: Value) -> Call:
    turn = np.roll(np.eye(scene.point.sizes[2]), 1, axis=0)
    turn[0] *= -1.0
    return scene.changed(lambda x: x @ turn.T).call(value)


def _but_for(factor: float, *place: Any) -> Before:
    """A part of both factors multiplied: a row, an entry; None stands for the middle row."""

    def changed(x: Array) -> Array:
        x = np.array(x)
        x[(..., *(x.shape[-2] // 2 if i is None else i for i in place))] *= factor
        return x

    return lambda scene, value: scene.at(map(changed, scene.point), value=value).call(value)


def _other_blocks(last: bool) -> Before:
    """Of a batch the first block, or the last one, is another."""

    def call(scene: Scene, value: Value) -> Call | None:
        count = math.prod(scene.shape)
        if count < 2:
            return None
        factors = np.where(np.arange(count) == (count - 1 if last else 0), 2.0, 1.0).reshape(*scene.shape, 1, 1)
        return scene.at((factors * x for x in scene.point), value=value).call(value)

    return call


def _another_part(i: int) -> Before:
    """One array of the vectors alone is another; of a horizontal vector both, which stays horizontal."""

    def call(scene: Scene, value: Value) -> Call | None:
        plain = scene.call(value)
        is_hessian = "hessian_v" in value.operation.sources
        if 2 + i >= len(plain.arrays) - (is_hessian and 1):
            return None
        changed = (6, 7) if is_hessian and i == 4 else (2 + i,)
        factor = 0.5 if value.operation.extra else 2.0
        arrays = [np.asarray(factor * x, x.dtype) if j in changed else x for j, x in enumerate(plain.arrays)]
        return replace(plain, arrays=arrays)

    return call


def in_single(scene: Scene, value: Value) -> Call | None:
    """In float32, which whoever is judged in float64 may keep."""
    sizes = [np.abs(x[x != 0.0]) for pair in (scene.point, *scene.vectors.values()) for x in pair]
    if scene.dtype != "float64" or not all(x.min(initial=1.0) > 1e-30 and x.max(initial=1.0) < 1e30 for x in sizes):
        return None
    single = scene.changed(lambda x: x.astype(np.float32).astype(np.float64))
    return replace(single, dtype="float32").call(value)


def _another_t(scene: Scene, value: Value) -> Call | None:
    return scene.call(value, t=0.5 * scene.time(value)) if "t" in value.operation.extra else None


def _another_order(scene: Scene, value: Value) -> Call | None:
    other = {1: 2, 2: 1, "exact": 2}.get(value.order)
    return None if other is None else scene.call(VALUES[f"geodesic_{other}"])


def _another_function(scene: Scene, value: Value) -> Call:
    names = [*VALUES]
    at = names.index(value.name) if value.name in names else 0
    return scene.call(VALUES[next(name for name in names[at + 1 :] + names if VALUES[name].order in (None, 2))])


def _too_wide(i: int) -> Before:
    """A part of a vector has a column too many: the call fails at its beginning, where it has to, or midway."""

    def call(scene: Scene, value: Value) -> Call:
        plain = scene.call(value)
        arrays = list(map(np.array, plain.arrays))
        arrays[i] = np.concatenate([arrays[i], arrays[i][..., :1]], axis=-1)
        return replace(plain, arrays=arrays)

    return call


def _with(i: int, factor: float) -> Before:
    """One array multiplied, by 0 or by NaN."""

    def call(scene: Scene, value: Value) -> Call:
        plain = scene.call(value)
        arrays = list(map(np.array, plain.arrays))
        arrays[i] = factor * arrays[i]
        return replace(plain, arrays=arrays)

    return call


def _another_block(scene: Scene, value: Value) -> Call:
    """Of a batch the first block alone; else a batch that begins with this block."""
    first = (0,) * len(scene.shape)
    return scene.changed((lambda x: x[first]) if scene.shape else (lambda x: np.stack([x, -x]))).call(value)


def _exchanged(scene: Scene, value: Value) -> Call:
    """G and H, and the parts of all vectors, in each other's place."""
    plain = scene.call(value)
    arrays = [x for i in range(0, len(plain.arrays), 2) for x in (plain.arrays[i + 1], plain.arrays[i])]
    return replace(plain, arrays=arrays, shapes=plain.shapes[::-1])


def _written_to(scene: Scene, value: Value) -> Call:
    """The same call, whose results the caller then writes to."""
    return replace(scene.call(value), do="write")


BEFORE: dict[str, tuple[str, Before]] = {
    "metric": ("a call with the other metric", _in_another_metric),
    "permuted": ("a call with the columns of the factors permuted", _permuted),
    "row": ("a call with the same factors but for the last row", _but_for(0.5, -1, slice(None))),
    "middle": ("a call with the same factors but for a row in the middle", _but_for(0.5, None, slice(None))),
    "entry": ("a call with the same factors but for an entry", _but_for(1.0 + 2.0**-10, -1, -1)),
    "digit": ("a call with factors that are the same in float32", _but_for(1.0 + 2.0**-26, -1, -1)),
    "twelfth": ("a call with factors that are the same in twelve digits", _but_for(1.0 + 2.0**-40, -1, -1)),
    "exchanged": ("a call with G and H exchanged", _exchanged),
    "written": ("the same call, whose result was written to", _written_to),
    "first-block": ("a call with another first block", _other_blocks(last=False)),
    "last-block": ("a call with another last block", _other_blocks(last=True)),
    "same-G": ("a call with the same G and another H", _at(1.0, 2.0)),
    "same-H": ("a call with the same H and another G", _at(2.0, 1.0)),
    "near-G": ("a call with nearly the same G and the same H", _nearly_the_same_G),
    "point": ("a call with the same vectors at another point", _at(2.0, 3.0)),
    "first-G": ("a call with another G part of the first vector", _another_part(0)),
    "first-H": ("a call with another H part of the first vector", _another_part(1)),
    "second-G": ("a call with another G part of the second vector", _another_part(2)),
    "second-H": ("a call with another H part of the second vector", _another_part(3)),
    "third": ("a call with another third vector", _another_part(4)),
    "dtype": ("a call with float32 arrays", in_single),
    "t": ("a call with another t", _another_t),
    "order": ("a call with another order", _another_order),
    "function": ("a call of another function", _another_function),
    "refused": ("a call that failed at a vector's shape", _too_wide(2)),
    "refused-late": ("a call that failed at the last vector's shape", _too_wide(-1)),
    "singular": ("a call with H = 0", _with(1, 0.0)),
    "nan": ("a call with NaN", _with(2, math.nan)),
    "block": ("a call with another number of blocks", _another_block),
}
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
        is_plain = self.kind in ("before", "")
        return "" if is_plain else "takes_any_memory_layout" if self.kind == "lies" else "thread_safe"

    def of(self, scene: Scene, value: Value) -> Callable[[Call], Call] | None:
        """What makes a call at a point one in this circumstance; None where there is no such call."""
        changes: dict[str, Any] = {"lies": self.name} if self.kind == "lies" else {"in_thread": self.kind == "thread"}
        if self.kind in ("before", "beside"):
            other = scene.kept((self, value.name), lambda: BEFORE[self.name][1](scene, value))
            if other is None:
                return None
            changes = {self.kind: (other,)}
        return lambda call: replace(call, **changes)

    def at(self, scene: Scene, again: int = 0) -> Scene:
        """The point of its calls: one with contents that no other call has had, where that matters; other ones of the
        same size again.
        """
        if self.kind in ("lies", ""):
            return scene
        return scene.turned(1 + CIRCUMSTANCES.index(self) + TURNS * again)

    def fits(self, features: Features) -> bool:
        """Whether points of these features have it; where nothing is decisive it shows nothing."""
        if self.kind and (features.kappa > 700.0 or features.cost > _MOST):
            return False
        if self.name in ("expanded", "overlapping"):
            return features.shared in (("rows",) if self.name == "overlapping" else ("G", "H", "all"))
        if self.name.startswith(("heads-", "blocks-")) or self.name in ("first-block", "last-block"):
            return math.prod(features.blocks) > 1
        return self.kind not in ("thread", "beside") or (features.cost <= 10_000 and math.prod(features.blocks) <= 20)


PLAIN = Circumstance()
TURNED = "with some rows negated, and all numbers times a power of two"
_SMALL, _MOST = 200, 30_000
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


def dealt(points: Sequence[Features]) -> list[list[Circumstance]]:
    """Of each point its circumstances: each of them at two points that hide nothing, a small one with several blocks
    and a large one, and where it meets most that it has not met. Most points have one, so that a value is asked once.

    Examples
    --------
    >>> [len(some) > 30 for some in dealt([Features()])], max(map(len, dealt([Features()] * 200)))
    ([True], 1)
    """
    clear = {i for i, one in enumerate(points) if one.is_clear}
    items: list[tuple[Circumstance, Sequence[int]]] = [(PLAIN, [i]) for i in range(min(_PLAINLY, len(points)))]
    for is_large in (False, True):
        for circumstance in CIRCUMSTANCES:
            possible = [i for i, one in enumerate(points) if circumstance.fits(one)]
            plain = [i for i in possible if i in clear]
            alike = [i for i in plain if points[i].is_large == is_large and (is_large or points[i].blocks)]
            if not is_large:
                alike = [i for i in alike if points[i].cost <= _SMALL] or alike
            items.append((circumstance, alike or plain or possible))
    found = spread([sorted(levels_of(one)) for one in points], items)
    return [some or [PLAIN] for some in found]
