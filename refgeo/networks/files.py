"""Checkpoints on disk: safetensors, whole or in shards, the configuration beside them, and which layout fits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.networks.attention import LayoutError
from refgeo.networks.layouts import LAYOUTS, Heads

INDEX = "model.safetensors.index.json"
"""What lists the files of a checkpoint in shards."""


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint: the one that is named, or those of a folder.

    Examples
    --------
    >>> weight_files(Path("nowhere"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: checkpoint: there is no file or folder nowhere
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no file or folder {path}")
    if (path / INDEX).is_file():
        return [path / name for name in _shards(path / INDEX)]
    inside = sorted(path.glob("*.safetensors"))
    if len(inside) != 1:
        found = ", ".join(file.name for file in inside) or "none"
        raise LayoutError(
            f"checkpoint: expected one .safetensors file in the folder {path}, found {found}; give the path of a file"
        )
    return inside


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(
            f"{index}: expected JSON with a weight_map from tensor names to file names; reading it raised {error!r}"
        ) from error


def parameter_names(source: str | Path | Mapping[str, Any]) -> list[str]:
    """The names of the tensors that hold floating-point numbers, of a file without their numbers."""
    if isinstance(source, Mapping):
        return [name for name, tensor in source.items() if holds_numbers(np.asarray(tensor).dtype)]
    from safetensors import SafetensorError, safe_open

    names: list[str] = []
    for file in weight_files(Path(source)):
        try:
            with safe_open(file, "np") as opened:
                names += [name for name in opened.keys() if "F" in opened.get_slice(name).get_dtype()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise _no_safetensors(file, error) from error
    return names


def holds_numbers(dtype: np.dtype[Any]) -> bool:
    """Floating point, with the machine-learning types (bfloat16, float8) that NumPy knows from other packages.

    Examples
    --------
    >>> holds_numbers(np.dtype(np.float32)), holds_numbers(np.dtype(int))
    (True, False)
    """
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def fitting_layout(names: Iterable[str]) -> str:
    """The layout whose names a checkpoint's parameters have.

    Of Llama's names it is ``llama_rotary``, unless a network normalises queries and keys.

    Raises
    ------
    LayoutError
        None fits, or several do.

    Examples
    --------
    >>> fitting_layout(["base.lora_A.weight", "base.lora_B.weight"])
    'lora'
    """
    known = list(names)
    fitting = [layout for layout in LAYOUTS if _fits(layout, known)]
    llama = [layout for layout in fitting if layout.startswith("llama")]
    if fitting and fitting == llama:
        return "llama_rotary" if "llama_rotary" in llama else llama[0]
    if len(fitting) == 1:
        return fitting[0]
    found = f"{' and '.join(fitting)} fit" if fitting else f"none fits tensors such as {', '.join(known[:2])}"
    raise LayoutError(f"layout: expected one of {', '.join(LAYOUTS)}; of these {found}")


def _fits(layout: str, names: Iterable[str]) -> bool:
    one, constant = LAYOUTS[layout], re.compile(LAYOUTS[layout].constants)
    try:
        return bool(one.used({name: None for name in names if not constant.fullmatch(name)}))
    except LayoutError:
        return False


def _no_safetensors(path: Path, error: Exception) -> LayoutError:
    advice = "; use torch.load and pass the state dict" if path.suffix in (".pt", ".pth", ".bin", ".ckpt") else ""
    return LayoutError(f"checkpoint {path}: expected a safetensors file whose types NumPy knows, got {error}{advice}")


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a checkpoint."""
    return {name: tensor for file in weight_files(path) for name, tensor in _load(file).items()}


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        widened = _with_bfloat16(path)
        if widened is not None:
            return widened
        raise _no_safetensors(path, error) from error


_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}


def _with_bfloat16(path: Path) -> dict[str, Any] | None:
    """The tensors of a file with bfloat16, which NumPy lacks: as float32, of which it is the upper half; or None."""
    import safetensors

    found: dict[str, Any] = {}
    try:
        tensors: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        for name, tensor in tensors:
            if tensor["dtype"] == "BF16":
                upper = np.frombuffer(tensor["data"], dtype="<u2").astype(np.uint32)
                flat: Any = (upper << np.uint32(16)).view(np.float32)
            else:
                flat = np.frombuffer(tensor["data"], dtype=_TYPES[tensor["dtype"]])
            found[name] = flat.reshape(tensor["shape"])
    except (safetensors.SafetensorError, ValueError, KeyError):
        return None
    return found


def configuration(path: Path) -> tuple[Path, dict[str, Any]]:
    """The config.json beside a file, or in a folder, if there is one."""
    file = path / "config.json" if path.is_dir() else path.with_name("config.json")
    if not file.is_file():
        return file, {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LayoutError(f"{file}: expected JSON, got {error}; correct or remove this file") from error
    if not isinstance(config, dict):
        raise LayoutError(f"{file}: expected a JSON object, got {type(config).__name__}; correct or remove this file")
    return file, config


def configured(configuration: tuple[Path, dict[str, Any]], keys: tuple[str, ...]) -> Heads | None:
    """The first of the keys that the configuration has, a whole number, or one for each tower."""
    file, config = configuration
    for key in keys:
        if key in config:
            value = config[key]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer():
                raise LayoutError(f"{file}: expected a whole number for {key}, got {value!r}; correct this file")
            return int(value)
    towers = {
        f"{tower}_model.*": found
        for tower in ("text", "vision")
        if isinstance(config.get(f"{tower}_config"), dict)
        and (found := configured((file, config[f"{tower}_config"]), keys)) is not None
    }
    return {pattern: found for pattern, found in towers.items() if isinstance(found, int)} or None
