"""Names of a package that load on first use, and modules that can be imported under a shorter name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any


def deferred(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of `package`; each of its `names` is a ``"module"`` or ``"module:name"``.

    Examples
    --------
    >>> get, _ = deferred("refgeo", {"root": "geometry.balanced:balance", "spectrum": "landscape.spectrum"})
    >>> get("root").__name__, get("spectrum").__name__
    ('balance', 'refgeo.landscape.spectrum')
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = names[name].partition(":")
        try:
            found = importlib.import_module(f"{package}.{module}")
        except ImportError as error:  # of an optional package: help() and inspect skip what is no attribute
            raise AttributeError(str(error)) from error
        return getattr(found, attribute) if attribute else found

    def listed() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *names})

    return get, listed


class ShortNames(MetaPathFinder):
    """Lets ``import refgeo.spectrum`` find the very module that stands in a folder of the package.

    Parameters
    ----------
    modules : mapping of str to str
        The full name of the module behind each short one.

    Examples
    --------
    >>> import refgeo.spectrum, refgeo.landscape.spectrum
    >>> refgeo.spectrum is refgeo.landscape.spectrum
    True
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """That of the module behind a short name."""
        return spec_from_loader(fullname, _SameModule(self._modules[fullname])) if fullname in self._modules else None


class _SameModule(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def get_code(self, name: str) -> Any:
        """For ``python -m``."""
        loader: Any = importlib.util.find_spec(self._name).loader  # type: ignore[union-attr]
        return loader.get_code(self._name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which the import system has replaced by that of the short name
