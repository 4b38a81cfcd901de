"""Names of a package that load on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def deferred(
    package: str, modules: Collection[str], names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of `package`: its `modules`, and `names` with the module that each is in."""

    def get(name: str) -> Any:
        if name not in modules and name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{package}.{names.get(name, name)}")
        except ImportError as error:  # of an optional package: help() and inspect skip what is no attribute
            raise AttributeError(str(error)) from error
        return module if name in modules else getattr(module, name)

    def listed() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *modules, *names})

    return get, listed
