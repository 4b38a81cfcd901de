"""Laws of conduct: how every function must behave, whatever it computes.

Tried on a few cases only, since they do not depend on the point. A broken one has relative error 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from refgeo.conformance.backend import ARGUMENTS, FUNCTIONS, BackendFailure, Observation
from refgeo.conformance.checks import GRAM_POWERS, Check, gram_unit
from refgeo.conformance.trial import Trial
from refgeo.pair import Array, Pair

CONDUCT: dict[str, Check] = {}


def _add(
    name: str, statement: str, relative_errors: Callable[[Trial, str], Array], case_names: tuple[str, ...]
) -> None:
    for function in FUNCTIONS:
        full = f"{function}.{name}"
        CONDUCT[full] = Check(
            full,
            function,
            statement,
            partial(_of_function, relative_errors, function),
            partial(gram_unit, power=GRAM_POWERS[function]),
            lambda case: case.name in case_names,
        )


def _of_function(relative_errors: Callable[[Trial, str], Array], function: str, trial: Trial) -> Array:
    return np.asarray(relative_errors(trial, function), dtype=np.float64)


def _extra(trial: Trial, function: str) -> tuple[Any, ...]:
    return (trial.case.t, 2) if function == "geodesic" else ()


def _call(trial: Trial, function: str) -> tuple[Array, ...]:
    result = trial.call(function, *trial.case.vectors(function), extra=_extra(trial, function))
    return result if isinstance(result, tuple) else (result,)


def _observe(trial: Trial, function: str) -> Observation:
    pairs = (trial.case.point, *trial.case.vectors(function))
    arrays = [factor.astype(trial.dtype) for pair in pairs for factor in pair]
    return trial.backend.observe(function, trial.case.metric, arrays, _extra(trial, function))


def _verdict(trial: Trial, fine: Any) -> Array:
    return np.full(trial.case.point.block_shape, 0.0 if fine else 1.0)


def _same_twice(trial: Trial, function: str) -> Array:
    first, second = _call(trial, function), _call(trial, function)
    return _verdict(trial, all(np.array_equal(x, y, equal_nan=True) for x, y in zip(first, second, strict=True)))


def _inputs_unchanged(trial: Trial, function: str) -> Array:
    observation = _observe(trial, function)
    if observation.changed_inputs:
        names = ("G", "H", *(f"{vector}_{part}" for vector in ARGUMENTS[function] for part in "GH"))
        changed = ", ".join(names[i] for i in observation.changed_inputs)
        raise BackendFailure(f"changed its input {changed}")
    return _verdict(trial, True)


def _silent(trial: Trial, function: str) -> Array:
    printed = _observe(trial, function).printed
    if printed:
        raise BackendFailure(f"printed {printed.strip()[:60]!r}")
    return _verdict(trial, True)


def _dtype_kept(trial: Trial, function: str) -> Array:
    dtypes = _observe(trial, function).dtypes
    if any(dtype != trial.dtype for dtype in dtypes):
        raise BackendFailure(f"returned {', '.join(sorted(set(dtypes)))} for {trial.dtype} input")
    return _verdict(trial, True)


def _loop_over_blocks(trial: Trial, function: str) -> Array:
    """Each block alone, as its own case without leading dimensions, against the batch."""
    together = _call(trial, function)
    errors = np.zeros(trial.case.point.block_shape)
    for block in np.ndindex(trial.case.point.block_shape):
        point, *vectors = (
            Pair(pair.G[block], pair.H[block]) for pair in (trial.case.point, *trial.case.vectors(function))
        )
        alone = trial.call(function, *vectors, point=point, extra=_extra(trial, function))
        alone = alone if isinstance(alone, tuple) else (alone,)
        sizes = [np.abs(x[block]).max() for x in together]
        differences = [np.abs(x[block] - y).max() for x, y in zip(together, alone, strict=True)]
        errors[block] = max(d / s if s > 0 else d for d, s in zip(differences, sizes, strict=True))
    return errors


def _nan_stays_in_its_block(trial: Trial, function: str) -> Array:
    """NaN in the first block's vector: the other blocks as before, or a clear refusal."""
    clean = _call(trial, function)
    vectors = list(trial.case.vectors(function))
    G = np.array(vectors[0].G)
    first = (0,) * len(trial.case.point.block_shape)
    G[first] = np.nan
    vectors[0] = Pair._of(G, np.array(vectors[0].H))
    try:
        result = trial.call(function, *vectors, extra=_extra(trial, function))
    except BackendFailure:
        return _verdict(trial, True)  # an error is an answer, too
    result = result if isinstance(result, tuple) else (result,)
    others = np.ones(trial.case.point.block_shape, dtype=bool)
    others[first] = False
    return _verdict(
        trial, all(np.allclose(x[others], y[others], rtol=1e-3, atol=0.0) for x, y in zip(result, clean, strict=True))
    )


def _wrong_shapes_raise(trial: Trial, function: str) -> Array:
    """A vector with one column too many."""
    pairs = (trial.case.point, *trial.case.vectors(function))
    arrays = [factor.astype(trial.dtype) for pair in pairs for factor in pair]
    arrays[2] = np.concatenate([arrays[2], arrays[2][..., :1]], axis=-1)
    try:
        trial.backend.observe(function, trial.case.metric, arrays, _extra(trial, function))
    except BackendFailure:
        return _verdict(trial, True)
    raise BackendFailure(f"accepted a vector of shape {arrays[2].shape} at a point of shape {arrays[0].shape}")


_ONE_BLOCK = ("tall/k3/s1,1",)
_BATCHES = ("heads/k3/s1,1", "nested/k3/s1,1")
_add("same_twice", "the same input gives the same result", _same_twice, _ONE_BLOCK + _BATCHES)
_add("inputs_unchanged", "the arrays it gets are not written to", _inputs_unchanged, _ONE_BLOCK + _BATCHES)
_add("silent", "nothing is printed", _silent, _ONE_BLOCK)
_add("dtype_kept", "the result has the dtype of the input", _dtype_kept, _ONE_BLOCK + _BATCHES)
_add("loop_over_blocks", "a batch gives what its blocks give one by one", _loop_over_blocks, _BATCHES)
_add("nan_stays_in_its_block", "NaN in one block leaves the others alone", _nan_stays_in_its_block, _BATCHES)
_add("wrong_shapes_raise", "a vector of another shape is refused", _wrong_shapes_raise, _ONE_BLOCK)
