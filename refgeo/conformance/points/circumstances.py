"""Circumstances: how the arrays of a call lie in memory, which calls precede it, and in which thread it is made.

A circumstance is a metamorphic relation: a call that is changed in this way must give the result of the plain call.
Circumstances are levels of the covering design, as the features of a point are: `assign_circumstances` gives each of
them to several points, so that it meets as many levels of the features as there is room for. A wrong result is
attributed to a circumstance only if the plain call is right at the same point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refgeo.conformance.execution.memory_layout import LAYOUTS
from refgeo.conformance.points.covering_design import NARROW, all_levels, distribute, size_levels
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.scene import N_SIZES, Scene
from refgeo.conformance.points.visibility import is_sensitive
from refgeo.conformance.protocol.call import Call
from refgeo.conformance.protocol.operations import VALUES, Value
from refgeo.support.arguments import ENDS, Array
from refgeo.support.records import with_fields

CallFactory = Callable[[Scene, Value], Call | None]
"""From a point and a value to a call that precedes the value's own one; to None, if there is none of this kind."""
Transformation = Callable[[Call], Call]
"""A function that changes a plain call into one in a circumstance."""


def _change_arrays(change: Callable[[Array], Array | None], *indices: int) -> CallFactory:
    """Create a factory of the value's own call with some arrays changed, or with all of them if no index is given."""

    def make_call(scene: Scene, value: Value) -> Call | None:
        plain = scene.call(value)
        chosen = [plain.arrays[i] for i in indices if i < len(plain.arrays)] if indices else plain.arrays
        changed = {id(x): change(x) for x in chosen}
        if not chosen or any(x is None for x in changed.values()):
            return None
        return replace(plain, arrays=[x if (y := changed.get(id(x))) is None else y for x in plain.arrays])

    return make_call


def _scale(factor: float, *index: Any) -> Callable[[Array], Array]:
    """Create a function that scales an array, or only a row or an entry; the index None is that of the middle row."""

    def change(x: Array) -> Array:
        x = np.array(x)
        x[(..., *(x.shape[-2] // 2 if i is None else i for i in index))] *= x.dtype.type(factor)
        return x

    return change


def _scale_block(block: int) -> Callable[[Array], Array | None]:
    """Create a function that doubles one block of a batch, and returns None for a single block."""

    def change(x: Array) -> Array | None:
        blocks = np.array(x).reshape(-1, *x.shape[-2:])
        blocks[block] *= 2
        return blocks.reshape(x.shape) if len(blocks) > 1 else None

    return change


def _rotate_columns(x: Array) -> Array:
    """Move the first column to the end and negate it."""
    return np.concatenate([x[..., 1:], -x[..., :1]], axis=-1)


def _append_column(x: Array) -> Array:
    """Append a column, so that the call must fail: at its beginning, or midway."""
    return np.concatenate([x, x[..., :1]], axis=-1)


def _convert_to_float32(x: Array) -> Array | None:
    """Convert to float32, which a backend may keep for calls in float64."""
    sizes = np.abs(x[x != 0.0])
    is_possible = x.dtype == np.float64 and 1e-30 < sizes.min(initial=1.0) <= sizes.max(initial=1.0) < 1e30
    return x.astype(np.float32) if is_possible else None


def _change_block_count(x: Array) -> Array:
    """Take the first block of a batch; or make a batch that begins with the only block."""
    return np.array(x.reshape(-1, *x.shape[-2:])[0]) if x.ndim > 2 else np.stack([x, -x])


def _exchange_factors(scene: Scene, value: Value) -> Call:
    """Exchange G and H, and the two parts of each vector."""
    plain = scene.call(value)
    arrays = [x for i in range(0, len(plain.arrays), 2) for x in (plain.arrays[i + 1], plain.arrays[i])]
    return replace(plain, arrays=arrays, shapes=plain.shapes[::-1])


def change_metric(scene: Scene, value: Value) -> Call | None:
    """Make the call of a value at a test point in the other one of the paper's two metrics."""
    return replace(scene.call(value), metric=scene.other_metric) if scene.metric in ENDS else None


def _change_t(scene: Scene, value: Value) -> Call | None:
    """Make the same call with half the time."""
    return scene.call(value, t=0.5 * scene.time(value)) if "t" in value.operation.extra else None


def _change_order(scene: Scene, value: Value) -> Call | None:
    """Make the call of a geodesic of another order."""
    order = {1: 2, 2: 1, "exact": 2}.get(value.order)
    return None if order is None else scene.call(VALUES[f"geodesic_{order}"])


def _change_function(scene: Scene, value: Value) -> Call:
    """Make the call of another function with the same point."""
    names = [*VALUES]
    at = names.index(value.name) if value.name in names else 0
    return scene.call(VALUES[next(name for name in names[at + 1 :] + names if VALUES[name].order in (None, 2))])


def _write_to_result(scene: Scene, value: Value) -> Call:
    """Make the same call, after which the caller writes to its result."""
    return replace(scene.call(value), action="write")


PRECEDING_CALLS: dict[str, tuple[str, CallFactory]] = {
    "metric": ("a call with the other metric", change_metric),
    "permuted": ("a call with the columns of all arrays permuted", _change_arrays(_rotate_columns)),
    "exchanged": ("a call with G and H exchanged", _exchange_factors),
    "row": ("a call with the same factors but for the last row of H", _change_arrays(_scale(0.5, -1, slice(None)), 1)),
    "middle": ("a call with the same factors but for a row in the middle of G",
               _change_arrays(_scale(0.5, None, slice(None)), 0)),
    "entry": ("a call with the same factors but for an entry of G", _change_arrays(_scale(1.0 + 2.0**-10, -1, -1), 0)),
    "digit": ("a call with the same G, and an H that is the same in float32",
              _change_arrays(_scale(1.0 + 2.0**-26, -1, -1), 1)),
    "twelfth": ("a call with factors that are the same in twelve digits",
                _change_arrays(_scale(1.0 + 2.0**-40, -1, -1), 0, 1)),
    "first-block": ("a call with another first block of G", _change_arrays(_scale_block(0), 0)),
    "last-block": ("a call with another last block of H", _change_arrays(_scale_block(-1), 1)),
    "same-G": ("a call with the same G and another H", _change_arrays(_scale(2.0), 1)),
    "same-H": ("a call with the same H and another G", _change_arrays(_scale(2.0), 0)),
    "near-G": ("a call with nearly the same G and the same H", _change_arrays(_scale(1.0 + 2.0**-20), 0)),
    "point": ("a call with the same vectors at another point", _change_arrays(_scale(3.0), 0, 1)),
    "first-G": ("a call with another G part of the first vector", _change_arrays(_scale(0.5), 2)),
    "first-H": ("a call with another H part of the first vector", _change_arrays(_scale(0.5), 3)),
    "second-G": ("a call with another G part of the second vector", _change_arrays(_scale(0.5), 4)),
    "second-H": ("a call with another H part of the second vector", _change_arrays(_scale(0.5), 5)),
    "third": ("a call with another third vector", _change_arrays(_scale(0.5), 6, 7)),
    "dtype": ("a call with float32 arrays", _change_arrays(_convert_to_float32)),
    "t": ("a call with another t", _change_t),
    "order": ("a call with another order", _change_order),
    "function": ("a call of another function", _change_function),
    "refused": ("a call that failed at a vector's shape", _change_arrays(_append_column, 2)),
    "refused-late": ("a call that failed at the last vector's shape", _change_arrays(_append_column, -1)),
    "singular": ("a call with H = 0", _change_arrays(_scale(0.0), 1)),
    "nan": ("a call with NaN", _change_arrays(_scale(math.nan), 2)),
    "block": ("a call with another number of blocks", _change_arrays(_change_block_count)),
    "written": ("the same call, whose result was written to", _write_to_result),
}  # fmt: skip
"""The calls after which a call is tested, by the name of the circumstance: in words, and as functions."""
CONCURRENT_CALLS = ("metric", "point")
"""The names of those that are also tested in another thread at the same time."""


@dataclass(frozen=True)
class Circumstance:
    """A way to change a call that must not change its result.

    Attributes
    ----------
    kind : "layout", "preceding", "concurrent", "thread" or ""
    name : str
        One of `refgeo.conformance.execution.memory_layout.LAYOUTS`, or of `PRECEDING_CALLS`.
    """

    kind: str = ""
    name: str = ""

    @property
    def description(self) -> str:
        """The circumstance in words.

        Examples
        --------
        >>> Circumstance("preceding", "t").description, BASELINE.description
        ('after a call with another t', '')
        """
        if self.kind in ("layout", ""):
            return LAYOUTS[self.name][0]
        call = PRECEDING_CALLS[self.name][0] if self.name else ""
        words = {"preceding": f"after {call}", "concurrent": f"beside {call} in another thread"}
        return words.get(self.kind, "in a thread")

    @property
    def rule(self) -> str:
        """The rule of conduct that it tests; empty if there is none."""
        rules = {"layout": "takes_any_memory_layout", "concurrent": "thread_safe", "thread": "thread_safe"}
        return rules.get(self.kind, "")

    @property
    def is_combinable(self) -> bool:
        """Whether one call can test it with another one: a layout that makes no call before, nor needs equal rows."""
        return self.kind == "preceding" or (self.kind == "layout" and self.name not in ("reused", "overlapping"))

    def transformation(self, scene: Scene, value: Value) -> Transformation | None:
        """Create the function that changes the plain call of a value at a point; None if there is no such call."""
        if self.kind not in ("preceding", "concurrent"):
            return lambda call: with_fields(call, layout=self.name, in_thread=self.kind == "thread")
        second_call = scene.cached((self, value.name), lambda: PRECEDING_CALLS[self.name][1](scene, value))
        changes: dict[str, Any] = {self.kind: (second_call,)}
        return None if second_call is None else lambda call: with_fields(call, **changes)

    def variants(self, scene: Scene) -> Iterator[Scene]:
        """Yield the test point with whose numbers a call is made in the circumstance, then points for controls."""
        if self.kind in ("layout", ""):
            yield scene
            return
        k = _NUMBERS[self]
        yield from (scene.sign_flipped(signs, size) for signs, size in ((k, k), (k + N_SIZES, k), (k, k + 1)))

    def is_testable(self, features: Features) -> bool:
        """Return whether a point with these features can show a failure in this circumstance, at a moderate cost."""
        if self.kind and (features.max_condition > _MAX_CONDITION or features.cost > _MAX_COST):
            return False
        if self.name in ("expanded", "overlapping"):
            return features.shared in (("rows",) if self.name == "overlapping" else ("G", "H", "all"))
        count = math.prod(features.blocks)
        if self.name.startswith(("heads-", "blocks-")) or self.name in ("first-block", "last-block"):
            return count > 1
        is_threaded = self.kind in ("thread", "concurrent")
        return not is_threaded or (features.cost <= _MAX_THREAD_COST and count <= _MAX_THREAD_BLOCKS)


BASELINE = Circumstance()
"""The circumstance of a plain call, in which nothing is changed."""
SIGN_FLIPPED = "with some rows negated, and all numbers times a power of two"
"""The description of a control call that fails: what is wrong is due to its numbers, and not to the circumstance."""
_MAX_COST, _MAX_CONDITION = 30_000, 700.0
"""The largest `Features.cost`, and the largest κ, of points at which circumstances are tested. The cost is chosen: a
dozen heads of 64 exceed it. The κ is that of the levels (700, 3) and (3, 700), where gradients are decisive."""
_MAX_THREAD_COST, _MAX_THREAD_BLOCKS = 10_000, 20
"""The largest cost, and number of blocks, of points that are tested in threads, which take turns at every line;
chosen."""
_MAX_NARROW_COST = 2_000
"""The largest cost of the points with narrow heads that are preferred; chosen: dozens of heads with h = 4."""
_CROWDING_COST = 0.03
"""Cost of each circumstance of a point, in calls, for the choice between points; chosen, so that they are spread."""
_MAX_NESTED = 3
"""The number of points with several leading dimensions, the cheapest ones, at which layouts are tested; chosen."""
_MIN_PLAIN_POINTS = 4
"""The number of points, the first ones, at which there are plain calls in any case."""
CIRCUMSTANCES = [
    *(Circumstance("layout", name) for name in LAYOUTS if name),
    *(Circumstance("preceding", name) for name in PRECEDING_CALLS),
    *(Circumstance("concurrent", name) for name in CONCURRENT_CALLS),
    Circumstance("thread"),
]
_NUMBERS = {circumstance: k for k, circumstance in enumerate(CIRCUMSTANCES, 1)}
"""A number of each circumstance, which decides which rows of its points are negated (`Scene.sign_flipped`)."""


def apply_all(transformations: Iterable[Transformation], call: Call) -> Call:
    """Apply transformations to a call, one after another."""
    for transform in transformations:
        call = transform(call)
    return call


def combine(circumstances: Iterable[Circumstance], h: int) -> list[tuple[Circumstance, ...]]:
    """Group circumstances that one call can test: at points with wide heads, a call before it and the layout of its
    own arrays.

    With narrow heads each is tested alone, as the layout may decide whether a function uses what it keeps.

    Examples
    --------
    >>> chosen = [Circumstance("layout", "fused"), Circumstance("preceding", "t"), Circumstance("thread")]
    >>> [len(group) for group in combine(chosen, 20)], [len(group) for group in combine(chosen, 4)]
    ([2, 1], [1, 1, 1])
    """
    groups: dict[str, list[Circumstance]] = {"preceding": [], "layout": [], "": []}
    for circumstance in circumstances:
        groups[circumstance.kind if h > NARROW and circumstance.is_combinable else ""].append(circumstance)
    pairs = itertools.zip_longest(groups["preceding"], groups["layout"])
    return [*(tuple(filter(None, pair)) for pair in pairs), *((circumstance,) for circumstance in groups[""])]


def perturb(call: Call, rng: np.random.Generator | None = None, direction: float = 1.0) -> Call:
    """Make a call whose arrays differ by √eps, so that a right result is the same in half of its digits.

    All numbers become larger; with a random generator, each becomes larger or smaller; with the direction −1, the
    opposite.
    """
    perturbed = {}
    for x in call.arrays:
        signs = direction * (1.0 if rng is None else rng.choice((-1.0, 1.0), x.shape))
        perturbed[id(x)] = np.asarray(x * (1.0 + signs * np.finfo(x.dtype).eps ** 0.5), dtype=x.dtype)
    return replace(call, arrays=[perturbed[id(x)] for x in call.arrays])


def assign_circumstances(points: Sequence[Features]) -> list[list[Circumstance]]:
    """Assign to each point of a design the circumstances that are tested there; to most points one.

    Each circumstance is tested at a batch of narrow heads and at one of wide heads, layouts and threads also at a
    single wide head; all at sensitive points, with as many levels as possible that it has not met before. Layouts are
    tested with two or more leading dimensions where there are such points, as their strides differ.

    Examples
    --------
    >>> single, many = assign_circumstances([Features()]), assign_circumstances([Features()] * 200)
    >>> [len(circumstances) > 30 for circumstances in single], max(map(len, many))
    ([True], 1)
    """
    if len(points) == 1:
        return [[BASELINE, *(circumstance for circumstance in CIRCUMSTANCES if circumstance.is_testable(points[0]))]]
    items: list[tuple[Circumstance, Sequence[int]]] = [(BASELINE, [i]) for i in range(len(points))[:_MIN_PLAIN_POINTS]]
    reveals_faults = [is_sensitive(features) for features in points]
    shapes = [(features.h > NARROW, math.prod(features.blocks) > 1) for features in points]
    all_testable = {c: [i for i, features in enumerate(points) if c.is_testable(features)] for c in CIRCUMSTANCES}
    for is_wide, is_batch in ((False, True), (True, False), (True, True)):
        for circumstance in (c for c in CIRCUMSTANCES if is_batch or c.kind != "preceding"):
            sensitive = [i for i in all_testable[circumstance] if reveals_faults[i]]
            shaped = [i for i in sensitive if shapes[i] == (is_wide, is_batch)]
            if circumstance.kind == "layout":
                nested = [i for i in shaped if size_levels(points[i])["blocks"] == "several"]
                shaped = sorted(nested, key=lambda i: points[i].cost)[:_MAX_NESTED] or shaped
            small = [i for i in shaped if not points[i].is_large and (is_wide or points[i].cost <= _MAX_NARROW_COST)]
            items.append((circumstance, small or shaped or sensitive or all_testable[circumstance]))

    def added_cost(i: int, assigned: Sequence[Circumstance], circumstance: Circumstance) -> float:
        """Return the number of calls that it adds, and a little for each circumstance there; the first adds none."""
        before, after = (max(len(combine(x, points[i].h)), 1) for x in (assigned, [*assigned, circumstance]))
        return after - before + _CROWDING_COST * len(assigned)

    assigned = distribute([sorted(all_levels(features)) for features in points], items, added_cost)
    return [circumstances or [BASELINE] for circumstances in assigned]
