"""Circumstances: the same call in another memory layout, or after another call. Its result is judged as any other is,
and the circumstance is the diagnosis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from refgeo.conformance.call import EQUAL_BLOCKS, LAYOUTS, Call
from refgeo.conformance.operations import VALUES, Value
from refgeo.conformance.precision import representable
from refgeo.conformance.scene import Scene
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import ENDS, Array

Circumstance = tuple[str, Scene, Value, Call]
"""In words, and what is asked where."""


def circumstances(scene: Scene, value: Value) -> Iterator[Circumstance]:
    """Of a value at a point all that changes nothing of what is right."""
    plain, scaled = scene.call(value), list(_scaled_ones(scene, value))
    for layout in LAYOUTS:
        yield layout, scene, value, replace(plain, layout=layout)
    if scene.shape:
        equal = scene.of_equal_blocks()
        yield EQUAL_BLOCKS, equal, value, equal.call(value, layout=EQUAL_BLOCKS)
    elif value.order != "exact":
        for words, other in scaled:
            both = _together(scene, other)
            yield f"in a batch with {words}", both, value, both.call(value)
    if scene.metric in ENDS:
        yield from _in_another_metric(scene, value)
    neighbours = itertools.chain(((words, other, value) for words, other in scaled), _neighbours(scene, value))
    for words, other, asked in neighbours:
        earlier = other.call(asked)
        yield f"after a call with {words}", scene, value, plain.after(earlier)
        if other.dtype == scene.dtype and asked is value:
            yield f"after a call with {words}", other, value, earlier.after(plain)


def _in_another_metric(scene: Scene, value: Value) -> Iterator[Circumstance]:
    """After a call with the other metric, and that one after a call with this metric."""
    metric, here = scene.other_metric, scene.call(value)
    there = scene.in_metric(metric)
    yield f"after a call with the metric {metric}", scene, value, here.after(there.call(value))
    yield f"after a call with the metric {scene.metric}", there, value, there.call(value).after(here)
    if value.order != "exact":  # at a point where no metric was asked before, since the first result may be kept
        new = scene.changed(lambda x: 2.0 * x)
        first = new.in_metric(metric).call(value)
        yield f"after a call with the metric {metric}", new, value, new.call(value).after(first)


def _neighbours(scene: Scene, value: Value) -> Iterator[tuple[str, Scene, Value]]:
    """Other calls that share much with one: what is kept by less than all that it depends on is taken for it."""
    G, H = scene.point
    turn = np.roll(np.eye(G.shape[-1]), 1, axis=0)
    turn[0] *= -1.0
    yield "the columns of the factors permuted", scene.changed(lambda x: x @ turn.T), value
    if _takes_any_vectors(value):
        last = [np.where(np.arange(len_) == len_ - 1, 0.5, 1.0)[:, None] for len_ in (G.shape[-2], H.shape[-2])]
        yield "the same factors but for a row", scene.at(last[0] * G, last[1] * H), value
    for group in value.operation.linear or (value.operation.vectors,):
        sources = [one.source or one.name for one in value.operation.inputs if one.name in group]
        vectors = {name: 2.0 * v if name in sources else v for name, v in scene.vectors.items()}
        if value.operation.extra:
            vectors = scene.vectors | {"v": 0.5 * scene.vectors["v"]}
        yield f"another {' and '.join(group)}", replace(scene, vectors=vectors), value
    if scene.dtype == "float64" and all(1e-9 < np.abs(factor).max() < 1e9 for factor in scene.point):
        yield "float32 arrays", _in_single(scene), value
    if "t" in value.operation.extra:
        yield "another t", replace(scene, t=0.5 * scene.t), value
    for other_order in (one for one in VALUES.values() if one.order not in (None, value.order, "exact")):
        if value.order is not None:
            yield f"order {other_order.order}", scene, other_order


def _scaled_ones(scene: Scene, value: Value) -> Iterator[tuple[str, Scene]]:
    """Points that share a factor with one, or nearly do."""
    near = 1.0 + scene.precision.roundoff**0.4  # "close enough" is not the same
    for words, first, second in (
        ("the same G and another H", 1.0, 2.0), ("the same H and another G", 2.0, 1.0),
        ("nearly the same G and the same H", near, 1.0),
    ):  # fmt: skip
        yield words, _scaled(scene, value, first, second)


def _together(first: Scene, second: Scene) -> Scene:
    """Two points as the blocks of a batch."""

    def both(a: Pair, b: Pair) -> Pair:
        return Pair(*map(np.stack, zip(a, b, strict=True)))

    vectors = {name: both(v, second.vectors[name]) for name, v in first.vectors.items()}
    return replace(first, space=first.space.metric.at(both(first.point, second.point)), vectors=vectors)


def _takes_any_vectors(value: Value) -> bool:
    """Whether the value is defined for the same vectors at another point: no exact geodesic ends there before t, and
    no vector has to be horizontal.
    """
    return value.order != "exact" and "hessian_v" not in value.operation.sources


def _scaled(scene: Scene, value: Value, G: float, H: float) -> Scene:
    """Factors scaled; vectors with them where they could not stay, covectors by the inverse, as gradients are."""
    if _takes_any_vectors(value):
        return scene.at(G * scene.point.G, H * scene.point.H)
    covectors = {one.source or one.name for one in value.operation.inputs if one.type == "covector"}

    def moved(pair: Pair, power: float = 1.0) -> Pair:
        return representable(Pair(G**power * pair.G, H**power * pair.H), scene.dtype)

    vectors = {name: moved(v, -1.0 if name in covectors else 1.0) for name, v in scene.vectors.items()}
    return replace(scene, space=scene.space.metric.at(moved(scene.point)), vectors=vectors)


def _in_single(scene: Scene) -> Scene:
    """The same in float32."""

    def rounded(x: Array) -> Array:
        return np.asarray(x.astype(np.float32), dtype=np.float64)

    return replace(scene.changed(rounded), dtype="float32")
