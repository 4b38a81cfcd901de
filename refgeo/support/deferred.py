"""Names of a package that load on first use."""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Callable
from typing import Any

from refgeo.support.extras import MissingExtraError


def defer(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load on first use.

    The names stand once: below ``if TYPE_CHECKING:`` in the package's file, as imports for type checkers. They are read
    from its code, which is also there in a zip file, or without sources.

    Examples
    --------
    >>> get, _, names = defer("refgeo")
    >>> get("spectrum").__name__, get("Pair").__name__, "Pair" in names
    ('refgeo.sharpness.spectrum', 'Pair', True)
    """
    loader: Any = sys.modules[package].__spec__.loader  # type: ignore[union-attr]
    places: dict[str, tuple[str, str]] = {}
    module, attribute, is_deferred = "", "", False
    for step in dis.get_instructions(loader.get_code(package)):
        is_deferred = is_deferred or (step.argval == "TYPE_CHECKING" and step.opname == "LOAD_NAME")
        if step.opname == "IMPORT_NAME":
            module = step.argval
        elif step.opname == "IMPORT_FROM":
            attribute = step.argval
        elif step.opname == "STORE_NAME" and attribute:
            places |= {step.argval: (module, attribute)} if is_deferred else {}
            attribute = ""

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
                value = getattr(importlib.import_module(module), attribute)
        except MissingExtraError as error:  # help() and inspect skip what is no attribute
            raise AttributeError(str(error)) from error
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, list_names, sorted(places)
