"""Packages that not everybody needs: an error that names the extra, before anything else is done."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtraError(ImportError, ValueError):
    """A package is missing that an extra of refgeo installs."""


def require(purpose: str, extra: str, *packages: str) -> None:
    """Raise `MissingExtraError` if one of the packages of an extra is not installed.

    Examples
    --------
    >>> require("plots", "plot", "math")
    >>> require("plots", "plot", "no_such_package")
    Traceback (most recent call last):
    ...
    refgeo.support.extras.MissingExtraError: plots: expected the package no_such_package, which is not installed; \
pip install "refgeo[plot]"
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(
                f'{purpose}: expected the package {package}, which is not installed; pip install "refgeo[{extra}]"'
            )
