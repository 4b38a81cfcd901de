"""Write test points into files, and grade results from files, for implementations in any language (``FORMAT.md``)."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.execution.host import NotInFile, Unusable, array_of
from refgeo.conformance.judging.evidence import adapt_units, error_units
from refgeo.conformance.plan import Plan
from refgeo.conformance.points.scene import ARRAY_NAMES, Scene, from_arrays
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.operations import VALUES, Operation, Value
from refgeo.conformance.report import Report
from refgeo.conformance.run import Progress, judge_all, no_progress
from refgeo.geometry.pair_metrics import PAIR_METRICS
from refgeo.support.arguments import as_list, one_of
from refgeo.support.files import refuse_unwritable, write_text, write_whole

SPECIFICATION = 2
"""The version of the protocol and of the formulas, which ``FORMAT.md`` describes."""
SCHEMA = f"refgeo-vectors/{SPECIFICATION}"
FORMATS = ("npz", "json")
INPUTS, EXPECTED, FORMAT = tuple(f"inputs.{format}" for format in FORMATS), "expected.json", "FORMAT.md"
"""The files of a folder: one of the inputs, and what may lie beside it."""
EXPECTED_SCHEMA = f"refgeo-expected/{SPECIFICATION}"
OPTIONS = ("dtype", "profile", "seed", "relaxation")
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
    """Write test points into a folder, with a description of what to compute.

    Parameters
    ----------
    directory : str or Path
        It is made if it does not exist. Former inputs in it are replaced.
    format : "npz" or "json"
    metrics, dtype, profile, seed, relaxation, cases, checkpoint, layout, heads, key_value_heads
        As for `refgeo.check`; only inv and mix, float64 and float32.
    with_results : bool
        Also write ``expected.json``: the enclosure of every value, as decimal numbers, for grading without refgeo.
    progress : callable, optional
        Called as ``progress(done, total, what)``.

    Returns
    -------
    int
        The number of cases; each block is a case.

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
    one_of("dtype", dtype, DTYPES)
    metric_names = [one_of("metrics", metric, PAIR_METRICS) for metric in as_list(metrics)]
    points = Points(profile, dtype, seed, relaxation, None, checkpoint, layout, heads, key_value_heads)
    folder = Path(directory)
    former = _prepare_folder(folder)
    refuse_unwritable(folder / EXPECTED)
    test_points = (point.make() for metric in metric_names for point in points.select(metric, cases))
    blocks = _blocks(case for case in test_points if case.dtype == dtype)  # a file has one
    options = {"dtype": dtype, "profile": profile, "seed": seed, "relaxation": relaxation}
    named = {"schema": SCHEMA, **options, **_inputs(blocks)}
    inputs = {**named, "sha256": _checksum(named)}
    expected = _make_expected(blocks, progress or no_progress) if with_results else None
    for file in former:
        file.unlink()
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
    """Judge results that another program has computed.

    Parameters
    ----------
    directory : str or Path
        The folder that `write` has written.
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
        A file is missing, damaged or not refgeo's; it contains no results, or results with unknown names.
    """
    inputs, known = _read_cases(Path(directory))
    recorded = read_named(Path(results))
    _check_names(recorded, inputs, Path(results))
    names = [one_of("cases", name, known) for name in (known if cases is None else as_list(cases))]
    values = [one_of("checks", name, VALUES) for name in (VALUES if checks is None else as_list(checks))]
    selection = [known[name] for name in names]
    points = Points(**{name: inputs[name] for name in OPTIONS}, files=(str(directory), selection))
    backend = Backend(_replay_backend(known, recorded), name=str(results))
    metrics = list(dict.fromkeys(case.metric for case in selection))
    plan = Plan.of(metrics, values, points)
    plan = replace(plan, names=[check.name for check in plan.checks if check.kind == "value"], tests_contexts=False)
    return replace(judge_all(plan, backend, progress or no_progress), files=(str(directory), str(results)))


def _prepare_folder(folder: Path) -> list[Path]:
    """Make a folder, and return the files in it that refgeo has written; other files with these names are an error."""
    if folder.is_file():
        raise VectorFileError(f"{folder}: expected a folder to write to, got a file")
    folder.mkdir(parents=True, exist_ok=True)
    present = [file for name in (*INPUTS, EXPECTED, FORMAT) if (file := folder / name).exists()]
    for file in present:
        if not _is_ours(file):
            raise VectorFileError(
                f"{folder}: expected an empty or new folder, got one with the file {file.name}, which refgeo has not "
                "written"
            )
    return present


def _is_ours(file: Path) -> bool:
    """Return whether refgeo has written a file."""
    with contextlib.suppress(OSError, ValueError):
        if file.name == FORMAT:
            return file.read_text(encoding="utf-8").startswith("# refgeo vectors")
        return str(read_named(file).get("schema")).startswith("refgeo-")
    return False


def _checksum(named: NamedArrays) -> str:
    """Return the checksum of all numbers and texts, which does not depend on the file format."""
    lists = {name: np.asarray(value).tolist() for name, value in named.items()}
    return hashlib.sha256(json.dumps(lists, sort_keys=True).encode()).hexdigest()


# Inputs --------------------------------------------------------------------------------------------------------


Block = tuple[str, Scene, tuple[int, ...]]
"""A block of a batch: its name in a file, where it is a case of its own, the point, and the block's index."""


def _blocks(cases: Iterable[Scene]) -> list[Block]:
    """Return all blocks of all points."""
    as_written = (replace(case, features=None) for case in cases)  # whose time is the one in the file
    every = ((case, block) for case in as_written for block in np.ndindex(case.shape))
    return [(f"{case.metric}_{count:04d}", case, block) for count, (case, block) in enumerate(every, 1)]


def _inputs(blocks: list[Block]) -> NamedArrays:
    """Return the arrays of the file of inputs."""
    inputs: NamedArrays = {"cases": [name for name, _, _ in blocks], "points": [_name(*block[1:]) for block in blocks]}
    for name, case, block in blocks:
        arrays = {key: np.asarray(x)[block].astype(case.dtype) for key, x in case.arrays().items() if key != "t"}
        entries = {"metric": case.metric, **arrays, "t": case.t}
        inputs |= {f"{name}__{key}": value for key, value in entries.items()}
    return inputs


def _name(case: Scene, block: tuple[int, ...]) -> str:
    """Return the name of a block of a point."""
    return case.name + (f"[{','.join(map(str, block))}]" if block else "")


def _make_expected(blocks: list[Block], progress: Progress) -> NamedArrays:
    """Return an enclosure of every value of every case: midpoints and radii as decimal numbers."""
    expected: NamedArrays = {}
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
                expected[f"{name}__{value.name}{part}"] = {"mid": mid, "rad": rad, "unit": unit}
    return expected


def _units(case: Scene, block: tuple[int, ...], value: Value) -> list[float | None]:
    """Return, for each part of a result, the largest entry of an error of test ratio 1; None if undecided.

    In inv, a part δ_G of length d has no entry larger than d·√(σ²_max(G) + ε), in mix none larger than d/√(σ²_min(H) +
    ε).
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


def _read_cases(folder: Path) -> tuple[NamedArrays, dict[str, Scene]]:
    """Read and verify the inputs, and return them with the cases by name."""
    if not folder.is_dir():
        raise VectorFileError(f"{folder}: no such folder; 'refgeo vectors write {folder}' makes it")
    file = next((folder / name for name in INPUTS if (folder / name).is_file()), None)
    if file is None:
        raise VectorFileError(
            f"{folder}: expected a folder made by 'refgeo vectors write', got one without {' or '.join(INPUTS)}; if "
            "the command was interrupted, run it again"
        )
    named = read_named(file)
    schema = str(named.get("schema"))
    if schema != SCHEMA:
        raise VectorFileError(f"{file}: expected the schema {SCHEMA}, got {schema}")
    if str(named.get("sha256")) != _checksum({name: value for name, value in named.items() if name != "sha256"}):
        raise VectorFileError(
            f"{file}: these are not the numbers that refgeo has written (sha256 differs); write the vectors again, "
            "and compute the results from them"
        )
    named |= {name: np.asarray(named[name]).tolist() for name in (*OPTIONS, "cases", "points", "sha256")}
    options = named["dtype"], named["seed"], named["relaxation"]
    cases = {}
    for name, point in zip(named["cases"], named["points"], strict=True):
        arrays = {key: named[f"{name}__{key}"] for key in ("G", "H", *ARRAY_NAMES)}
        arrays["t"] = np.asarray(arrays["t"]).reshape(())
        cases[name] = from_arrays(f"{name} {point}", arrays, str(named[f"{name}__metric"]), *options)
    return named, cases


# Results -------------------------------------------------------------------------------------------------------

_RESULT_NAMES = tuple(
    name
    for value in VALUES.values()
    for name in ([value.name] if value.operation.scalar else [f"{value.name}_G", f"{value.name}_H"])
)


def _check_names(recorded: NamedArrays, inputs: NamedArrays, file: Path) -> None:
    """Raise an error if a name is unknown; inputs among the results are accepted."""
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


def _replay_backend(cases: Mapping[str, Scene], recorded: NamedArrays) -> SimpleNamespace:
    """Make a backend of the results, which finds a case by the arrays that it gets."""
    provided = {(name.split("_")[0], part) for name, _, part in (key.partition("__") for key in recorded)}

    def function_of(operation: Operation) -> Callable[..., Any]:
        def key_of(metric: str, arrays: Iterable[npt.NDArray[Any]]) -> bytes:
            return b"".join([metric.encode(), *(array.tobytes() for array in arrays)])

        names_by_inputs = {}
        for name, case in cases.items():
            factors = (factor.astype(case.dtype) for pair in (case.point, *case.inputs(operation)) for factor in pair)
            names_by_inputs[key_of(case.metric, factors)] = name

        def call(metric: str, *arguments: Any) -> Any:
            arrays = arguments[: len(arguments) - len(operation.extra)]
            value = f"{operation.name}_{arguments[-1]}" if operation.extra else operation.name
            parts = [value] if operation.scalar else [f"{value}_G", f"{value}_H"]
            if not any((metric, part) in provided for part in parts):
                raise NotInFile(f"no {value} of {metric} in the file")
            name = names_by_inputs.get(key_of(metric, arrays))
            if name is None:
                raise Unusable("only the results of the cases are known")
            missing = [part for part in parts if f"{name}__{part}" not in recorded]
            if missing:
                raise Unusable(f"{name}__{missing[0]} is not in the file")
            shapes = [()] if operation.scalar else [arrays[0].shape, arrays[1].shape]
            results = [_reshape_to(recorded[f"{name}__{p}"], shape) for p, shape in zip(parts, shapes, strict=True)]
            return results[0] if operation.scalar else tuple(results)

        return call

    operations = {value.operation.name: value.operation for value in VALUES.values() for _, part in provided
                  if part.removesuffix("_G").removesuffix("_H") == value.name}  # fmt: skip
    return SimpleNamespace(**{name: function_of(operation) for name, operation in operations.items()})


def _reshape_to(value: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Reshape an array from which dimensions of length one were removed, or to which some were added."""
    array = array_of(value)
    if array.shape != shape and tuple(s for s in array.shape if s != 1) == tuple(s for s in shape if s != 1):
        return array.reshape(shape)
    if array.ndim == 2 and array.shape == shape[::-1] != shape:
        raise Unusable(f"expected shape {shape}, got {array.shape}; are rows and columns exchanged?")
    return array


# Files ---------------------------------------------------------------------------------------------------------------


NamedArrays = dict[str, Any]


class VectorFileError(ValueError):
    """A file of vectors or results is missing, damaged, of another program, or does not fit."""


def _as_npz(named: NamedArrays) -> bytes:
    """Encode named arrays as npz."""
    stream, arrays = io.BytesIO(), dict[str, Any]({name: np.asarray(value) for name, value in named.items()})
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _as_json(named: NamedArrays) -> bytes:
    """Encode named arrays as JSON, one name per line."""
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in named.items()}
    lines = (f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in values.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


WRITERS: dict[str, Callable[[NamedArrays], bytes]] = {"npz": _as_npz, "json": _as_json}


def _read_npz(file: Path) -> NamedArrays:
    """Read an archive of named arrays."""
    with file.open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("expected an archive of named arrays (numpy.savez), got a single array")
        named = {name: archive[name] for name in archive.files}
    strange = [name for name, value in named.items() if not isinstance(value, np.ndarray)]
    if strange:
        raise ValueError(f"{strange[0]} is not an array of numpy.savez")
    return named


def _read_json(file: Path) -> NamedArrays:
    """Read a JSON object of named values; names with a double underscore are arrays."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"expected one object with named values, got {type(content).__name__}")
    return {name: _array(value) if "__" in name else value for name, value in content.items()}


def _array(value: Any) -> Any:
    """Convert a list or a number to an array; rows of different lengths are returned as they are, and judged later."""
    try:
        return np.asarray(value) if isinstance(value, (list, int, float)) else value
    except ValueError:  # rows of different lengths, which the case that they belong to will tell
        return value


_READERS: dict[str, Callable[[Path], NamedArrays]] = {".npz": _read_npz, ".json": _read_json}


def read_named(file: Path) -> NamedArrays:
    """Read the named arrays of a file."""
    if file.suffix not in _READERS:
        raise VectorFileError(f"{file}: expected a file that ends in {', '.join(_READERS)}")
    if not file.is_file():
        raise VectorFileError(f"{file}: no such file")
    try:
        return _READERS[file.suffix](file)
    # The readers raise a dozen kinds of errors on damaged files (zip, zlib, struct, value, type, end of file).
    except Exception as error:
        kind = "JSON" if file.suffix == ".json" else f"a {file.suffix} file"
        raise VectorFileError(f"{file}: damaged, truncated or not {kind} ({type(error).__name__}: {error})") from error
