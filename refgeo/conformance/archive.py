"""Read and write files of named arrays, npz or JSON: test points for other languages, and results."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
