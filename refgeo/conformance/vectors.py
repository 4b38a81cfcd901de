"""Test points in files and results from files, for implementations in any language (format: ``FORMAT.md``)."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.archive import WRITERS, Named, VectorFileError, read_named
from refgeo.conformance.backend import Backend
from refgeo.conformance.evidence import adapt_units, error_units
from refgeo.conformance.host import NotInFile, Unusable, array_of
from refgeo.conformance.operations import VALUES, Operation, Value
from refgeo.conformance.plan import Plan
from refgeo.conformance.points import Points
from refgeo.conformance.report import Report
from refgeo.conformance.run import Progress, judge, no_progress
from refgeo.conformance.scene import GIVEN, Scene, given
from refgeo.geometry.pair_metrics import PAIR_METRICS
from refgeo.support.arguments import listed, one_of
from refgeo.support.files import refuse_unwritable, write_text, write_whole

SPECIFICATION = 2
"""The version of the protocol and of the formulas, which ``FORMAT.md`` describes."""
SCHEMA = f"refgeo-vectors/{SPECIFICATION}"
FORMATS = ("npz", "json")
INPUTS, EXPECTED, FORMAT = tuple(f"inputs.{format}" for format in FORMATS), "expected.json", "FORMAT.md"
"""The files of a folder: one of the inputs, and what may lie beside it."""
EXPECTED_SCHEMA = f"refgeo-expected/{SPECIFICATION}"
OPTIONS = ("dtype", "profile", "seed", "relaxation")
PROFILES = ("quick", "full")
DTYPES = ("float64", "float32")


def write(
    directory: str | Path,
    format: str = "npz",
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    dtype: str = "float64",
    profile: str = "quick",
    seed: int = 0,
    relaxation: float = 0.0,
    cases: Iterable[str] | None = None,
    checkpoint: str | Path | Mapping[str, Any] | None = None,
    layout: str | None = None,
    heads: int | None = None,
    key_value_heads: int | None = None,
    with_results: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write test points, and how to use them, into a folder.

    Parameters
    ----------
    directory : str or Path
        Made if it does not exist. Its former inputs are replaced.
    format : "npz" or "json"
    metrics, dtype, profile, seed, relaxation, cases, checkpoint, layout, heads, key_value_heads
        As for `refgeo.check`.
    with_results : bool
        Also write ``expected.json``: the enclosure of every value, as decimal numbers, for grading without refgeo.
    progress : callable, optional
        Called as ``progress(done, total, what)``.

    Returns
    -------
    int
        The number of cases: every block is one.

    Raises
    ------
    ValueError
        An option has an unknown value, or no case is left.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder, "json", cases=["20-1x1x1"])
    40
    """
    one_of("format", format, FORMATS)
    one_of("profile", profile, PROFILES)
    one_of("dtype", dtype, DTYPES)
    wanted = [one_of("metrics", metric, PAIR_METRICS) for metric in listed(metrics)]
    points = Points(profile, dtype, seed, relaxation, None, checkpoint, layout, heads, key_value_heads)
    folder = Path(directory)
    former = _ours_in(folder)
    refuse_unwritable(folder / EXPECTED)
    made = (point.make() for metric in wanted for point in points.selected(metric, cases))
    blocks = _blocks(case for case in made if case.dtype == dtype)  # a file has one
    options = {"dtype": dtype, "profile": profile, "seed": seed, "relaxation": relaxation}
    named = {"schema": SCHEMA, **options, **_inputs(blocks)}
    inputs = {**named, "sha256": _digest(named)}
    expected = _expected(blocks, progress or no_progress) if with_results else None
    for place in former:
        place.unlink()
    shutil.copyfile(Path(__file__).with_name(FORMAT), folder / FORMAT)
    if expected is not None:
        write_text(folder / EXPECTED, json.dumps({"schema": EXPECTED_SCHEMA, "cases": expected}, indent=0) + "\n")
    write_whole(folder / f"inputs.{format}", WRITERS[format](inputs))  # last: the folder is complete
    return len(blocks)


def grade(
    directory: str | Path,
    results: str | Path,
    *,
    cases: Iterable[str] | None = None,
    checks: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Judge results that were computed elsewhere.

    Parameters
    ----------
    directory : str or Path
        What `write` has written.
    results : str or Path
        A ``.npz`` or ``.json`` file.
    cases : iterable of str, optional
        Only these cases, by their identifiers.
    checks : iterable of str, optional
        Only these values.
    progress : callable, optional
        Called as ``progress(done, total, what)``.

    Returns
    -------
    Report

    Raises
    ------
    VectorFileError
        A file is missing, damaged or foreign; it holds no results, or results of unknown names.
    """
    inputs, known = _read_cases(Path(directory))
    recorded = read_named(Path(results))
    _check_names(recorded, inputs, Path(results))
    wanted = [one_of("cases", name, known) for name in (known if cases is None else listed(cases))]
    values = [one_of("checks", name, VALUES) for name in (VALUES if checks is None else listed(checks))]
    chosen = [known[name] for name in wanted]
    points = Points(**{name: inputs[name] for name in OPTIONS}, files=(str(directory), chosen))
    backend = Backend(_replay(known, recorded), name=str(results))
    metrics = list(dict.fromkeys(case.metric for case in chosen))
    plan = Plan.of(metrics, values, points)
    plan = replace(plan, names=[one.name for one in plan.checks if one.kind == "value"], closely=False)
    return replace(judge(plan, backend, progress or no_progress), files=(str(directory), str(results)))


def _ours_in(folder: Path) -> list[Path]:
    """The files of ours in a folder, which is made; not if it holds somebody else's files under our names."""
    if folder.is_file():
        raise VectorFileError(f"{folder}: expected a folder to write to, got a file")
    folder.mkdir(parents=True, exist_ok=True)
    there = [place for name in (*INPUTS, EXPECTED, FORMAT) if (place := folder / name).exists()]
    for place in there:
        if not _is_ours(place):
            raise VectorFileError(
                f"{folder}: expected an empty or new folder, got one with the file {place.name}, which refgeo has not "
                "written"
            )
    return there


def _is_ours(place: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if place.name == FORMAT:
            return place.read_text(encoding="utf-8").startswith("# refgeo vectors")
        return str(read_named(place).get("schema")).startswith("refgeo-")
    return False


def _digest(named: Named) -> str:
    """Of all numbers and words, however a file holds them."""
    plain = {name: np.asarray(value).tolist() for name, value in named.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# Inputs --------------------------------------------------------------------------------------------------------


Block = tuple[str, Scene, tuple[int, ...]]
"""A block of a batch, which is a case of its own in a file, under a name of its own."""


def _blocks(cases: Iterable[Scene]) -> list[Block]:
    as_written = (replace(case, features=None) for case in cases)  # whose time is the one in the file
    every = ((case, block) for case in as_written for block in np.ndindex(case.shape))
    return [(f"{case.metric}_{count:04d}", case, block) for count, (case, block) in enumerate(every, 1)]


def _inputs(blocks: list[Block]) -> Named:
    """What an author gets."""
    named: Named = {"cases": [name for name, _, _ in blocks], "points": [_name(*one[1:]) for one in blocks]}
    for name, case, block in blocks:
        arrays = {key: np.asarray(x)[block].astype(case.dtype) for key, x in case.arrays().items() if key != "t"}
        one = {"metric": case.metric, **arrays, "t": case.t}
        named |= {f"{name}__{key}": value for key, value in one.items()}
    return named


def _name(case: Scene, block: tuple[int, ...]) -> str:
    return case.name + (f"[{','.join(map(str, block))}]" if block else "")


def _expected(blocks: list[Block], progress: Progress) -> Named:
    """Every value of every case as midpoints and radii, in decimal numbers that enclose it."""
    found: Named = {}
    for done, (name, case, block) in enumerate(blocks):
        progress(done, len(blocks), f"{case.metric} {case.name}")
        for value in VALUES.values():
            if not case.can_be_enclosed(value):
                continue
            enclosures = case.enclosures(value, block)
            parts = [""] if value.operation.scalar else ["_G", "_H"]
            units = _units(case, block, value)
            for part, enclosure, unit in zip(parts, enclosures or (), units, strict=bool(enclosures)):
                mid, rad = enclosure.decimals()
                found[f"{name}__{value.name}{part}"] = {"mid": mid, "rad": rad, "unit": unit}
    return found


def _units(case: Scene, block: tuple[int, ...], value: Value) -> list[float | None]:
    """How large an error of one entry can be where its length in the metric has the ratio 1; None where undecided.

    In inv a part δ_G of length d has no entry beyond d·√(σ²_max(G) + ε), in mix none beyond d/√(σ²_min(H) + ε).
    """
    unit, count = error_units(case, value), 1 if value.operation.scalar else 2
    unit = adapt_units(case, value, unit, unit.decisive)
    if not unit.decisive[block]:
        return [None] * count
    length = float(unit.gram[block] * case.size(value)[block])
    if count == 1:
        return [length]
    inverse = case.metric == "mix"
    factors = case.point if case.metric == "inv" else reversed(tuple(case.point))
    values = [np.linalg.svd(factor[block], compute_uv=False) for factor in factors]
    sizes = [float(np.hypot(s[-1] if inverse else s[0], np.sqrt(case.relaxation))) for s in values]
    return [length / size if inverse else length * size for size in sizes]


def _read_cases(folder: Path) -> tuple[Named, dict[str, Scene]]:
    """The inputs, and the cases by their identifiers; verified."""
    if not folder.is_dir():
        raise VectorFileError(f"{folder}: no such folder; 'refgeo vectors write {folder}' makes it")
    place = next((folder / name for name in INPUTS if (folder / name).is_file()), None)
    if place is None:
        raise VectorFileError(
            f"{folder}: expected a folder made by 'refgeo vectors write', got one without {' or '.join(INPUTS)}; if "
            "the command was interrupted, run it again"
        )
    named = read_named(place)
    schema = str(named.get("schema"))
    if schema != SCHEMA:
        raise VectorFileError(f"{place}: expected the schema {SCHEMA}, got {schema}")
    if str(named.get("sha256")) != _digest({name: value for name, value in named.items() if name != "sha256"}):
        raise VectorFileError(
            f"{place}: these are not the numbers that refgeo has written (sha256 differs); write the vectors again, "
            "and compute the results from them"
        )
    named |= {name: np.asarray(named[name]).tolist() for name in (*OPTIONS, "cases", "points", "sha256")}
    of_all = named["dtype"], named["seed"], named["relaxation"]
    cases = {}
    for name, point in zip(named["cases"], named["points"], strict=True):
        arrays = {key: named[f"{name}__{key}"] for key in ("G", "H", *GIVEN)}
        arrays["t"] = np.asarray(arrays["t"]).reshape(())
        cases[name] = given(f"{name} {point}", arrays, str(named[f"{name}__metric"]), *of_all)
    return named, cases


# Results -------------------------------------------------------------------------------------------------------

_RESULT_NAMES = tuple(
    name
    for value in VALUES.values()
    for name in ([value.name] if value.operation.scalar else [f"{value.name}_G", f"{value.name}_H"])
)


def _check_names(recorded: Named, inputs: Named, file: Path) -> None:
    """Names that mean nothing are mistakes, not results to be passed over; inputs among the results are no mistake."""
    cases = inputs["cases"]
    results = [f"{case}__{name}" for case in cases for name in _RESULT_NAMES]
    if unknown := sorted(recorded.keys() - inputs.keys() - set(results)):
        by_lower = {name.lower(): name for name in results}
        near = difflib.get_close_matches(unknown[0].lower(), by_lower, n=1)
        hint = f"did you mean {by_lower[near[0]]}?" if near else f"expected names such as {cases[0]}__christoffel_G."
        raise VectorFileError(
            f"{file}: {unknown[0]} is no result of this folder; {hint} If the results belong to another folder, give "
            "that one"
        )
    if str(recorded.get("sha256", inputs["sha256"])) != inputs["sha256"]:
        raise VectorFileError(f"{file}: by its sha256, these are results of other inputs; give the folder of those")
    if recorded.keys().isdisjoint(results):
        raise VectorFileError(f"{file}: expected results with names such as {cases[0]}__christoffel_G, got none")


def _replay(cases: Mapping[str, Scene], recorded: Named) -> SimpleNamespace:
    """The results as a backend, which knows a case by the arrays that it gets."""
    provided = {(name.split("_")[0], part) for name, _, part in (key.partition("__") for key in recorded)}

    def function_of(operation: Operation) -> Callable[..., Any]:
        def key_of(metric: str, arrays: Iterable[npt.NDArray[Any]]) -> bytes:
            return b"".join([metric.encode(), *(array.tobytes() for array in arrays)])

        known = {}
        for name, case in cases.items():
            factors = (factor.astype(case.dtype) for pair in (case.point, *case.inputs(operation)) for factor in pair)
            known[key_of(case.metric, factors)] = name

        def call(metric: str, *arguments: Any) -> Any:
            arrays = arguments[: len(arguments) - len(operation.extra)]
            value = f"{operation.name}_{arguments[-1]}" if operation.extra else operation.name
            parts = [value] if operation.scalar else [f"{value}_G", f"{value}_H"]
            if not any((metric, part) in provided for part in parts):
                raise NotInFile(f"no {value} of {metric} in the file")
            name = known.get(key_of(metric, arrays))
            if name is None:
                raise Unusable("only the results of the cases are known")
            missing = [part for part in parts if f"{name}__{part}" not in recorded]
            if missing:
                raise Unusable(f"{name}__{missing[0]} is not in the file")
            shapes = [()] if operation.scalar else [arrays[0].shape, arrays[1].shape]
            results = [_fitting(recorded[f"{name}__{p}"], shape) for p, shape in zip(parts, shapes, strict=True)]
            return results[0] if operation.scalar else tuple(results)

        return call

    operations = {value.operation.name: value.operation for value in VALUES.values() for _, part in provided
                  if part.removesuffix("_G").removesuffix("_H") == value.name}  # fmt: skip
    return SimpleNamespace(**{name: function_of(operation) for name, operation in operations.items()})


def _fitting(value: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """In its shape, where dimensions of length one have been added or lost on the way."""
    array = array_of(value)
    if array.shape != shape and tuple(s for s in array.shape if s != 1) == tuple(s for s in shape if s != 1):
        return array.reshape(shape)
    if array.ndim == 2 and array.shape == shape[::-1] != shape:
        raise Unusable(f"expected shape {shape}, got {array.shape}; are rows and columns exchanged?")
    return array
