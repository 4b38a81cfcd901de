"""Derivatives by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def five_point(f: Callable[[float], Any], step: float) -> Any:
    """Return the derivative of f at 0; the error is O(step⁴).

    Examples
    --------
    >>> import numpy as np
    >>> round(float(five_point(np.exp, 1e-3)), 11)
    1.0
    """
    return ((f(step) - f(-step)) * 8.0 - (f(2.0 * step) - f(-2.0 * step))) * (1.0 / (12.0 * step))
