"""Checkpoints on disk: safetensors, whole or in shards."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.geometry.blocks import names_of
from refgeo.networks.attention import LayoutError
from refgeo.support.arguments import detach, refuse_masked

INDEX_ENDS = ".safetensors.index.json"
INDEX = f"model{INDEX_ENDS}"
"""What lists the files of a checkpoint in shards."""
_BESIDE_WEIGHTS = ("bias", "running_mean", "running_var", "num_batches_tracked")
"""What a module has beside its weight that is no scale of it."""
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.")


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint: the one that is named, or those of a folder.

    Examples
    --------
    >>> weight_files(Path("nowhere"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: checkpoint: there is no file or folder nowhere
    """
    if path.is_file():
        if path.name.endswith(INDEX_ENDS):
            return _read_index(path)
        if (shard := _SHARD.search(path.name)) and int(shard[2]) > 1:
            raise LayoutError(
                f"checkpoint: {path} is one of {int(shard[2])} shards, a part of the network; give the folder, or the "
                "index of the shards, or read a state dict of the tensors that you want"
            )
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no file or folder {path}")
    if (index := _index_of(path)) is not None:
        return _read_index(index)
    inside = sorted(path.glob("*.safetensors"))
    if len(inside) != 1:
        names = ", ".join(file.name for file in inside) or "none"
        remedy = "; use torch.load on its .bin file and pass the state dict" if any(path.glob("*.bin")) else ""
        raise LayoutError(
            f"checkpoint: expected one .safetensors file in the folder {path}, found {names}; give the path of a file"
            + remedy * (not inside)
        )
    return weight_files(inside[0])


def _read_index(index: Path) -> list[Path]:
    """Return the shards that an index lists, which are beside it."""
    names = list(dict.fromkeys(_weight_map(index).values()))
    absent = [name for name in names if not (isinstance(name, str) and index.with_name(name).is_file())]
    if absent:
        raise LayoutError(f"{index}: it lists {len(absent)} files that are not there: {absent[0]!r}, ...")
    return [index.with_name(name) for name in sorted(names)]


def _weight_map(index: Path) -> dict[str, str]:
    """Return the name of the file of every tensor."""
    try:
        return dict(json.loads(index.read_text(encoding="utf-8-sig"))["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LayoutError(
            f"{index}: expected JSON with a weight_map from tensor names to file names; reading it raised {error!r}"
        ) from error


def as_numpy(tensor: Any, name: str = "source") -> npt.NDArray[Any]:
    """Return an array or a PyTorch tensor as NumPy's; bfloat16 and float8, which NumPy lacks, as float32.

    Examples
    --------
    >>> as_numpy([1.0, 2.0])
    array([1., 2.])
    """
    try:
        if hasattr(tensor, "detach"):
            tensor = detach(tensor)
            if "bfloat16" in str(tensor.dtype) or "float8" in str(tensor.dtype):
                tensor = tensor.float()
        refuse_masked(name, tensor)
        return np.asarray(tensor)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        kind = type(tensor).__name__
        raise LayoutError(
            f"{name}: expected a dense array of numbers (undo a quantisation), got a {kind}, "
            f"which NumPy cannot convert: {error}"
        ) from error


def holds_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is floating point, including types that NumPy knows from other packages (bfloat16,
    float8).

    Examples
    --------
    >>> holds_numbers(np.dtype(np.float32)), holds_numbers(np.dtype(int))
    (True, False)
    """
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def refuse_scaled(source: str, float8: Iterable[str], names: Collection[str]) -> None:
    """Raise an error if float8 numbers have a scale beside them, because they are codes and not weights then.

    Every tensor beside the weight of a module may be a scale, except a bias and statistics.
    """

    def is_scale(rest: str, own: str) -> bool:
        if rest == own or rest in _BESIDE_WEIGHTS:
            return False
        return own == "weight" or rest.startswith(own) or ("scale" in rest.lower() and "." not in rest)

    places = {weight: weight.rpartition(".") for weight in float8}
    inside: dict[str, list[str]] = {module: [] for module, _, _ in places.values()}
    for name in names:  # into each of its modules that has such a weight, as there are many names
        parts = name.split(".")
        for module in inside.keys() & {".".join(parts[:end]) for end in range(len(parts))}:
            inside[module].append(name)
    scaled = {
        weight: name
        for weight, (module, dot, own) in places.items()
        for name in inside[module]
        if is_scale(name.removeprefix(module + dot), own)
    }
    if scaled:
        raise LayoutError(
            f"{source}: {len(scaled)} tensors are float8 numbers with others beside them, such as "
            f"{names_of(scaled.values(), 1)}, which may be scales, so they may be no weights by themselves: "
            f"{names_of(scaled, 3)}; undo the quantisation first"
        )


def _no_safetensors(path: Path, error: Exception) -> LayoutError:
    advice = "; use torch.load and pass the state dict" if path.suffix in (".pt", ".pth", ".bin", ".ckpt") else ""
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            return LayoutError(
                f"checkpoint {path}: this is a git-lfs pointer, not the file; run git lfs pull to get it"
            )
    return LayoutError(f"checkpoint {path}: expected a safetensors file whose types NumPy knows, got {error}{advice}")


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all tensors of a checkpoint, each once; of shards, those that the index lists."""
    files = weight_files(path)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for file in files:
        tensors = _load(file)
        if twice := arrays.keys() & tensors.keys():
            raise LayoutError(f"checkpoint: {sorted(twice)[0]!r} is in {file} and in another shard, too")
        arrays |= tensors
    if (index := _index_of(path)) is not None and (missing := _weight_map(index).keys() - arrays.keys()):
        raise LayoutError(f"{index}: it lists {len(missing)} tensors that are in no shard: {sorted(missing)[0]!r}, ...")
    return arrays


def _index_of(path: Path) -> Path | None:
    """Return the index of shards, if there is one."""
    if not path.is_dir():
        return path if path.name.endswith(INDEX_ENDS) else None
    indices = [path / INDEX] if (path / INDEX).is_file() else sorted(path.glob(f"*{INDEX_ENDS}"))
    return indices[0] if len(indices) == 1 else None


_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_FLOAT8 = {"F8_E4M3": (3, 7), "F8_E5M2": (2, 15)}
"""Bits of the fraction, and the exponent's offset."""


def _load(path: Path) -> dict[str, Any]:
    """Return the tensors of a file in its order; bfloat16, the upper half of float32, and float8 as
    float32.
    """
    import safetensors

    arrays: dict[str, Any] = {}
    content = path.read_bytes()
    try:
        tensors: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except (safetensors.SafetensorError, ValueError) as error:
        raise _no_safetensors(path, error) from error
    # what is given comes in another order every time, and random starts would differ from run to run
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors.sort(key=lambda item: (header[item[0]]["data_offsets"], item[0]))
    float8 = [name for name, tensor in tensors if tensor["dtype"] in _FLOAT8]
    refuse_scaled(f"checkpoint {path}", float8, {name for name, _ in tensors})
    for name, tensor in tensors:
        kind, data = tensor["dtype"], tensor["data"]
        if kind == "BF16":
            flat: Any = (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif kind in _FLOAT8:
            flat = _float8(np.frombuffer(data, "u1"), *_FLOAT8[kind])
        elif kind in _TYPES:
            flat = np.frombuffer(data, _TYPES[kind])
        else:
            raise _no_safetensors(path, TypeError(f"{name} of the type {kind}"))
        arrays[name] = flat.reshape(tensor["shape"])
    return arrays


def _float8(bits: npt.NDArray[np.uint8], fraction_bits: int, offset: int) -> npt.NDArray[np.float32]:
    """Return the numbers ±1.f · 2ᵉ, and ±0.f · 2ᵉ for the least e; what stands for infinity or no number is NaN."""
    exponent = ((bits & 0x7F) >> fraction_bits).astype(np.int32)
    fraction = (bits & (2**fraction_bits - 1)).astype(np.float32) / 2**fraction_bits
    value = np.ldexp(np.where(exponent > 0, 1.0, 0.0) + fraction, np.maximum(exponent, 1) - offset)
    special = (bits & 0x7F) == 0x7F if offset == 7 else exponent == 31
    return np.where(special, np.nan, np.where(bits & 0x80, -value, value)).astype(np.float32)
