"""Conduct: how every function must behave, whatever it computes. Kept apart from correctness: a row a rule.

Most of it is seen on every call (`Answer.conduct`); the rest takes calls of its own, on a few points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from refgeo.conformance.backend import Backend
from refgeo.conformance.call import Answer, Call, Event, NoResult
from refgeo.conformance.evidence import comparable, units
from refgeo.conformance.operations import Value
from refgeo.conformance.scene import Scene
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

RULES = {
    "inputs_unchanged": "the function must not write to the arrays that it gets",
    "silent": "the function must not print anything or give warnings",
    "dtype_kept": "the result must have the dtype of the input",
    "owns_its_results": "results must not share memory with inputs or with each other",
    "keeps_its_results": "later calls must not change the results of earlier ones",
    "leaves_the_process_alone": "the function must not change random generators, NumPy's settings, the default dtype "
    "and device of PyTorch and JAX, warning filters, the working directory, standard streams or environment variables",
    "frees_its_memory": "repeated calls must not use more and more memory",
    "takes_any_memory_layout": "arrays in any memory layout must be taken",
    "refuses_wrong_shapes": "a vector of the wrong shape must raise an error",
    "takes_an_empty_batch": "an empty batch must give empty results",
    "nan_stays_in_its_block": "NaN in one block must not change the results of the others",
    "thread_safe": "two calls at the same time must give the same results as each call alone",
}
HARMFUL = ("inputs_unchanged", "keeps_its_results")
"""Who breaks these makes his caller's numbers wrong: a report with such a row does not pass."""
Ask = Callable[[Call], Answer]


@dataclass(frozen=True)
class Observed:
    """How a rule was seen to be kept or broken; of what was not seen, why."""

    rule: str
    broken: str = ""
    unseen: str = ""


def observe(backend: Backend, scene: Scene, value: Value, ask: Ask) -> Iterator[Observed]:
    """The rules that take calls of their own."""
    several = math.prod(scene.shape) > 1
    for rule, observer in _OBSERVERS.items():
        if rule in ("takes_an_empty_batch", "nan_stays_in_its_block") and not several:
            continue
        if rule == "thread_safe" and not backend.thread_safe:
            yield Observed(rule, unseen="the backend says that it is not thread-safe (thread_safe = False)")
            continue
        try:
            yield Observed(rule, observer(scene, value, ask))
        except NoResult as failure:
            text = str(failure)
            if failure.event is Event.FAILED:
                text = f"the function gave no result ({short(text)})"
            yield Observed(rule, unseen=text)


def _refuses_wrong_shapes(scene: Scene, value: Value, ask: Ask) -> str:
    call = scene.call(value)
    arrays = list(call.arrays)
    wide = np.concatenate([arrays[2], arrays[2][..., :1]], axis=-1)
    answer = ask(replace(call, arrays=[*arrays[:2], wide, *map(np.array, arrays[3:])]))
    if answer.failure is not None and answer.failure.event is Event.FAILED:
        return ""
    answer.result()
    return f"the function accepts a vector of shape {wide.shape} at a G of shape {scene.point.G.shape}"


def _takes_an_empty_batch(scene: Scene, value: Value, ask: Ask) -> str:
    """No blocks, no results; a filter of heads can leave none."""
    call = scene.call(value)
    shapes = [(0, *shape[len(scene.shape) :]) for shape in call.shapes]
    arrays = [x.reshape(-1, *x.shape[-2:])[:0] for x in call.arrays]
    answer = ask(replace(call, arrays=arrays, shapes=shapes))
    if answer.failure is not None and answer.failure.event is Event.FAILED:
        return f"the function fails for a batch without blocks: {short(str(answer.failure))}"
    answer.result()
    return ""


def _nan_stays_in_its_block(scene: Scene, value: Value, ask: Ask) -> str:
    """NaN in the first block's vector: NaN there, the other blocks as before; or a clear refusal."""
    clean = ask(scene.call(value)).result()
    vector, *rest = scene.inputs(value.operation)
    G, first, others = np.array(vector.G), (0,) * len(scene.shape), np.ones(scene.shape, dtype=bool)
    G[first], others[first] = np.nan, False
    answer = ask(scene.call(value, [Pair.unchecked(G, np.array(vector.H)), *rest]))
    if answer.failure is not None and answer.failure.event is Event.FAILED:
        return ""  # an error is an answer, too
    result = answer.result()
    if all(np.isfinite(part[first]).all() for part in result):
        return "the function returns finite numbers for a vector that contains NaN"
    pairs = zip(*(comparable(value.operation, tuple(parts)) for parts in (result, clean)), strict=True)
    alike = all(_alike(x[others], y[others], 1e-6, rtol=1e-2) for x, y in pairs)
    return "" if alike else "NaN in the first block of a batch changes the results of the other blocks"


def _thread_safe(scene: Scene, value: Value, ask: Ask) -> str:
    """Two calls at once, again and again: each what it is alone."""
    call = scene.call(value)
    halves = replace(call, arrays=[0.5 * x for x in call.arrays])
    alone = [ask(one).result() for one in (call, halves)]
    together = ask(replace(call, do="together")).result()
    rounding, count = 100.0 * float(np.max(units(scene, value).gram)), len(alone[0])
    for i in range(0, len(together), count):
        expected = comparable(value.operation, tuple(alone[i * 2 // len(together)]))
        found = comparable(value.operation, tuple(together[i : i + count]))
        if not all(_alike(part, right, rounding) for part, right in zip(found, expected, strict=True)):
            return "two calls at the same time, in two threads, give other results than each call alone"
    return ""


def _frees_its_memory(scene: Scene, value: Value, ask: Ask) -> str:
    answer = ask(replace(scene.call(value), do="repeat"))
    answer.result()
    return answer.conduct.get("frees_its_memory", "")


def _alike(found: Array, right: Array, tolerance: float, rtol: float = 0.0) -> bool:
    """Up to `tolerance` times the largest number; what is NaN or infinite in one is so in the other."""
    largest = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return bool(np.allclose(found, right, rtol=rtol, atol=tolerance * largest, equal_nan=True))


_OBSERVERS: dict[str, Callable[[Scene, Value, Ask], str]] = {
    "frees_its_memory": _frees_its_memory,
    "refuses_wrong_shapes": _refuses_wrong_shapes,
    "takes_an_empty_batch": _takes_an_empty_batch,
    "nan_stays_in_its_block": _nan_stays_in_its_block,
    "thread_safe": _thread_safe,
}


def short(text: str) -> str:
    """The first line of a text, or its beginning.

    Examples
    --------
    >>> len(short("no" * 100))
    90
    """
    text = text.split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."
