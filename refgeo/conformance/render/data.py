"""Dataclasses as plain data for JSON; a field of another name there has it in its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def as_plain(value: Any) -> Any:
    """As numbers, texts, lists and dicts; infinities become texts.

    Examples
    --------
    >>> as_plain({"a": (1.0, float("inf"))})
    {'a': [1.0, 'inf']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.metadata.get("json", field.name): as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if abs(value) < float("inf") else repr(float(value))
    return value if isinstance(value, (int, str, type(None))) else str(value)
