"""Names of a package that load on first use."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def deferred(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names stand once: in its file, below
    ``if TYPE_CHECKING:``, as imports for type checkers, which load nothing.

    Examples
    --------
    >>> import refgeo
    >>> get, _, names = deferred("refgeo", refgeo.__file__)
    >>> get("spectrum").__name__, get("Pair").__name__, "Pair" in names
    ('refgeo.sharpness.spectrum', 'Pair', True)
    """
    places = {
        alias.asname or alias.name: (node.module, alias.name)
        for block in ast.parse(Path(file).read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        try:
            try:
                value: Any = importlib.import_module(f"{module}.{attribute}")
            except ModuleNotFoundError as error:
                if error.name not in (module, f"{module}.{attribute}"):
                    raise
                value = getattr(importlib.import_module(str(module)), attribute)
        except ImportError as error:  # of an optional package: help() and inspect skip what is no attribute
            raise AttributeError(str(error)) from error
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, listed, sorted(places)
