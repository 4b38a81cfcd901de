"""The contract: how every function must behave, whatever it computes. Kept apart from correctness.

Most of it is seen on every call (`SEEN`); the rest takes calls of its own, on a few cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from refgeo.conformance.backend import NotCalled
from refgeo.conformance.case import Case
from refgeo.conformance.checks import Check, anywhere
from refgeo.conformance.host import BackendFailure
from refgeo.conformance.operations import OPERATIONS, Operation
from refgeo.conformance.trial import Trial, comparable, short
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

SEEN = {
    "inputs_unchanged": "the function must not write to the arrays that it gets",
    "silent": "the function must not print anything or give warnings",
    "dtype_kept": "the result must have the dtype of the input",
    "owns_its_results": "results must not share memory with inputs or with each other",
    "keeps_its_results": "later calls must not change the results of earlier ones",
    "frees_its_memory": "repeated calls must not use more and more memory",
    "leaves_the_process_alone": "the function must not change random generators, NumPy's settings, warning filters, "
    "the working directory, standard streams or environment variables",
}
HARMFUL = ("inputs_unchanged", "keeps_its_results")
"""Who breaks these makes his caller's numbers wrong: a report with such a row does not pass."""


class Breach(Exception):
    """What a function does that it must not, in words."""


def _extra(operation: Operation, trial: Trial) -> tuple[object, ...]:
    return tuple({"t": trial.case.t, "order": 1}[name] for name in operation.extra)


def _called(operation: Operation, trial: Trial) -> Array:
    """A call, which is watched as every one is."""
    trial.call(operation.name, *trial.case.inputs(operation), extra=_extra(operation, trial))
    return np.zeros(trial.case.point.block_shape)


def _refuses_wrong_shapes(operation: Operation, trial: Trial) -> Array:
    point, first, *others = trial.case.point, *trial.case.inputs(operation)
    wide = np.concatenate([first.G, first.G[..., :1]], axis=-1).astype(trial.precision.carrier)
    arrays = [*trial.arrays(point), wide, *trial.arrays(first)[1:], *trial.arrays(*others)]
    try:
        trial.ask(operation, arrays, point, _extra(operation, trial))
    except BackendFailure:
        return np.zeros(point.block_shape)
    raise Breach(f"the function accepts a vector of shape {wide.shape} at a G of shape {point.G.shape}")


def _takes_an_empty_batch(operation: Operation, trial: Trial) -> Array:
    """No blocks, no results; a filter of heads can leave none."""
    none = trial.case.blocks(0)
    try:
        trial.call(
            operation.name, *none.inputs(operation), point=none.point, extra=_extra(operation, trial), layout="plain"
        )
    except BackendFailure as failure:
        raise Breach(f"the function fails for a batch without blocks: {short(failure)}") from None
    return np.zeros(trial.case.point.block_shape)


def _nan_stays_in_its_block(operation: Operation, trial: Trial) -> Array:
    """NaN in the first block's vector: NaN there, the other blocks as before; or a clear refusal."""
    extra, (vector, *rest), shape = _extra(operation, trial), trial.case.inputs(operation), trial.case.point.block_shape
    clean = trial.call(operation.name, vector, *rest, extra=extra)
    G, first, others = np.array(vector.G), (0,) * len(shape), np.ones(shape, dtype=bool)
    G[first], others[first] = np.nan, False
    try:
        marked = Pair.unchecked(G, np.array(vector.H))
        result = trial.call(operation.name, marked, *rest, extra=extra, layout="plain")
    except BackendFailure:
        return np.zeros(shape)  # an error is an answer, too
    if all(np.isfinite(part[first]).all() for part in result):
        raise Breach("the function returns finite numbers for a vector that contains NaN")
    pairs = zip(comparable(operation, result), comparable(operation, clean), strict=True)
    if not all(_alike(x[others], y[others], 1e-6, rtol=1e-2) for x, y in pairs):
        raise Breach("NaN in the first block of a batch changes the results of the other blocks")
    return np.zeros(shape)


def _alike(found: Array, right: Array, tolerance: float, rtol: float = 0.0) -> bool:
    """Up to `tolerance` times the largest number; what is NaN or infinite in one is so in the other."""
    largest = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return bool(np.allclose(found, right, rtol=rtol, atol=tolerance * largest, equal_nan=True))


def _thread_safe(operation: Operation, trial: Trial) -> Array:
    """Two calls at once, again and again: each what it is alone."""
    if not trial.backend.thread_safe:
        raise NotCalled("the backend says that it is not thread-safe (thread_safe = False)")
    pairs, extra = [trial.case.point, *trial.case.inputs(operation)], _extra(operation, trial)
    alone = [
        trial.call(operation.name, *vectors, point=point, extra=extra)
        for point, *vectors in (pairs, [0.5 * pair for pair in pairs])
    ]
    together = trial.call(operation.name, *pairs[1:], extra=extra, do="together")
    rounding = 100.0 * float(np.max(CONTRACT[f"{operation.name}.thread_safe"].unit(trial.case)))
    for i in range(0, len(together), len(alone[0])):
        expected = comparable(operation, alone[i * 2 // len(together)])
        found = comparable(operation, together[i : i + len(alone[0])])
        if not all(_alike(part, right, rounding) for part, right in zip(found, expected, strict=True)):
            raise Breach("two calls at the same time, in two threads, give other results than each call alone")
    return np.zeros(trial.case.point.block_shape)


def _several_blocks(case: Case) -> bool:
    return int(np.prod(case.point.block_shape)) > 1


_RULES: dict[str, tuple[str, Callable[[Operation, Trial], Array], Callable[[Case], bool]]] = {
    **{name: (statement, _called, anywhere) for name, statement in SEEN.items()},
    "refuses_wrong_shapes": ("a vector of the wrong shape must raise an error", _refuses_wrong_shapes, anywhere),
    "takes_an_empty_batch": ("an empty batch must give empty results", _takes_an_empty_batch,
                             _several_blocks),
    "nan_stays_in_its_block": ("NaN in one block must not change the results of the others", _nan_stays_in_its_block,
                               _several_blocks),
    "thread_safe": ("two calls at the same time must give the same results as each call alone", _thread_safe, anywhere),
}  # fmt: skip


CONTRACT: dict[str, Check] = {
    f"{operation.name}.{rule}": Check(
        f"{operation.name}.{rule}", "contract", operation, statement, partial(errors, operation), operation.loss,
        applies=applies, most=1, always=True, harmful=rule in HARMFUL,
    )
    for operation in OPERATIONS.values()
    for rule, (statement, errors, applies) in _RULES.items()
}  # fmt: skip
