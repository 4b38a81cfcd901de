"""The contract: how every function must behave, whatever it computes. Kept apart from correctness.

Most of it is seen on every call (`seen`); the rest takes calls of its own, on a few cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from refgeo.arguments import Array
from refgeo.conformance.backend import BackendFailure, NotCalled, Observed, Refused
from refgeo.conformance.case import Case
from refgeo.conformance.checks import Check, anywhere
from refgeo.conformance.host import LAYOUTS
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.trial import Parts, Trial, product_of
from refgeo.operations import OPERATIONS, Operation
from refgeo.pair import Pair

CONTRACT: dict[str, Check] = {}

SEEN = {
    "inputs_unchanged": "the arrays it gets are not written to",
    "silent": "nothing is printed, nothing is warned of",
    "dtype_kept": "the result has the dtype of the input",
    "stays_within_itself": "no process is forked, and the standard streams are left alone",
    "owns_its_results": "results share no memory with inputs or with each other",
    "keeps_its_results": "later calls leave the results of earlier ones alone",
    "frees_its_memory": "one call after another does not use up the memory of its process",
    "leaves_the_process_alone": "random generators, NumPy's settings, warning filters, folder and environment stay",
}
HARMFUL = ("inputs_unchanged", "keeps_its_results")
"""Who breaks these makes his caller's numbers wrong: a report with such a row does not pass."""


class Breach(Exception):
    """What a function does that it must not, in words."""


def seen(operation: Operation, case: Case, observed: Observed) -> Iterator[tuple[str, str]]:
    """Which of `SEEN` a call has broken, and how."""
    if observed.changed:
        names = ", ".join(operation.arguments[i] for i in observed.changed)
        yield "inputs_unchanged", f"changed its input {names}"
    elif observed.changed_later:
        yield "inputs_unchanged", "a call changes what an earlier call had got"
    if observed.printed:
        yield "silent", f"printed {observed.printed[:100]!r}"
    precision = PRECISIONS[case.dtype]
    allowed = {precision.name, precision.carrier, "number"}
    if precision.name == "bfloat16":  # which NumPy does not have: to_numpy widens it
        allowed |= {"float64"}
    foreign = sorted(set(observed.kinds) - allowed)
    if foreign:
        yield "dtype_kept", f"returned {', '.join(foreign)} for {case.dtype} input"
    if observed.streams or observed.forked:
        yield "stays_within_itself", observed.streams or "forked a process"
    if observed.aliases:
        yield "owns_its_results", observed.aliases
    if observed.overwritten:
        yield "keeps_its_results", "a call overwrites what an earlier call had returned"
    if observed.leaked:
        yield "frees_its_memory", f"its process ran out of memory after {observed.leaked} calls; a new one did not"
    if observed.disturbed:
        yield "leaves_the_process_alone", f"changed {observed.disturbed}"


def _extra(operation: Operation, trial: Trial) -> tuple[object, ...]:
    return tuple({"t": trial.case.t, "order": 1}[name] for name in operation.extra)


def _called(operation: Operation, trial: Trial) -> Array:
    """A call, which is watched as every one is."""
    trial.call(operation.name, *trial.case.inputs(operation), extra=_extra(operation, trial))
    return _fine(trial)


def _register(
    name: str,
    statement: str,
    errors: Callable[[Operation, Trial], Array],
    applies: Callable[[Case], bool] = anywhere,
) -> None:
    for operation in OPERATIONS.values():
        full = f"{operation.name}.{name}"
        found = partial(errors, operation)
        CONTRACT[full] = Check(
            full, "contract", operation, statement, found, operation.loss, applies=applies, most=2,
            harmful=name in HARMFUL,
        )  # fmt: skip


def comparable(operation: Operation, parts: Parts) -> Parts:
    """What two results must agree in: of a retraction, which is a curve in the quotient, the product G Hᵀ."""
    return (product_of(parts),) if operation.name == "retraction" else parts


def _fine(trial: Trial) -> Array:
    return np.zeros(trial.case.point.block_shape)


def _refuses_wrong_shapes(operation: Operation, trial: Trial) -> Array:
    """A vector with one column too many."""
    point, first, *others = trial.case.point, *trial.case.inputs(operation)
    wide = [np.concatenate([factor, factor[..., :1]], axis=-1) for factor in first]
    arrays = trial.arrays(point)
    arrays += [wide[0].astype(trial.precision.carrier), *trial.arrays(first)[1:], *trial.arrays(*others)]
    try:
        trial.backend.call(operation.name, trial.case.metric, arrays, _extra(operation, trial), operation.shapes(point))
    except BackendFailure:
        return _fine(trial)
    raise Breach(f"accepted a vector of shape {wide[0].shape} at a point of shape {point.G.shape}")


def _nan_stays_in_its_block(operation: Operation, trial: Trial) -> Array:
    """NaN in the first block's vector: NaN there, the other blocks as before; or a clear refusal."""
    extra, vectors = _extra(operation, trial), trial.case.inputs(operation)
    clean = trial.call(operation.name, *vectors, extra=extra)
    G = np.array(vectors[0].G)
    first = (0,) * len(trial.case.point.block_shape)
    G[first] = np.nan
    try:
        result = trial.call(
            operation.name, Pair.unchecked(G, np.array(vectors[0].H)), *vectors[1:], extra=extra, layout="plain"
        )
    except BackendFailure:
        return _fine(trial)  # an error is an answer, too
    others = np.ones(trial.case.point.block_shape, dtype=bool)
    others[first] = False
    if all(np.isfinite(part[first]).all() for part in result):
        raise Breach("returned finite numbers for a vector with NaN")
    pairs = zip(comparable(operation, result), comparable(operation, clean), strict=True)
    if not all(_alike(x[others], y[others], 1e-6, rtol=1e-2) for x, y in pairs):
        raise Breach("NaN in the first block of a batch changes the others")
    return _fine(trial)


def _alike(found: Array, right: Array, tolerance: float, rtol: float = 0.0) -> bool:
    """Up to `tolerance` times the largest number; what is NaN or infinite in one is so in the other."""
    largest = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return bool(np.allclose(found, right, rtol=rtol, atol=tolerance * largest, equal_nan=True))


def _takes_any_layout(operation: Operation, trial: Trial) -> Array:
    _called(operation, trial)
    for layout in LAYOUTS[1:]:
        try:
            trial.call(operation.name, *trial.case.inputs(operation), extra=_extra(operation, trial), layout=layout)
        except Refused:  # by its asarray, as torch.from_numpy refuses reversed views: a limit, and no misconduct
            continue
        except BackendFailure as failure:
            raise Breach(f"does not take {layout}: {_short(failure)}") from None
    return _fine(trial)


def _short(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return text if len(text) <= 90 else f"{text[:87]}..."


_TIMES = 6


def _thread_safe(operation: Operation, trial: Trial) -> Array:
    """Two calls at once, several times: each what it is alone."""
    if not trial.backend.thread_safe:
        raise NotCalled("the backend says that it is not (thread_safe)")
    vectors, extra = trial.case.inputs(operation), _extra(operation, trial)
    arrays, shapes = trial.arrays(trial.case.point, *vectors), operation.shapes(trial.case.point)
    halved = [0.5 * pair for pair in (trial.case.point, *vectors)]
    alone = [
        trial.call(operation.name, *pairs[1:], point=pairs[0], extra=extra)
        for pairs in ([trial.case.point, *vectors], halved)
    ]
    together, _ = trial.backend.call(
        operation.name, trial.case.metric, arrays, extra, shapes, do="together", times=_TIMES
    )
    rounding = 100.0 * float(np.max(CONTRACT[f"{operation.name}.thread_safe"].unit(trial.case)))
    count = len(shapes)
    for run in range(2 * _TIMES):
        expected = comparable(operation, alone[run // _TIMES])
        found = comparable(operation, tuple(together[run * count : (run + 1) * count]))
        for part, right in zip(found, expected, strict=True):
            if not _alike(part, right, rounding):
                raise Breach("two calls at once, in threads, do not give what each gives alone")
    return _fine(trial)


for _name, _statement in SEEN.items():
    _register(_name, _statement, _called)
_register("refuses_wrong_shapes", "a vector of another shape is refused", _refuses_wrong_shapes)
_register(
    "nan_stays_in_its_block", "NaN in one block leaves the others alone", _nan_stays_in_its_block,
    lambda case: int(np.prod(case.point.block_shape)) > 1,
)  # fmt: skip
_register(
    "takes_any_layout",
    "transposed, strided, reversed, expanded and read-only arrays are taken (where asarray takes them)",
    _takes_any_layout,
)
_register("thread_safe", "two calls at once give what each gives alone", _thread_safe)
