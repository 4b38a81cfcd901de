"""Dataclasses as plain data for JSON, and the schema of that, from their types."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints


def as_plain(value: Any) -> Any:
    """As numbers, texts, lists and dicts; infinities become texts.

    Examples
    --------
    >>> as_plain({"a": (1.0, float("inf"))})
    {'a': [1.0, 'inf']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return repr(float(value))
    return (
        float(value) if isinstance(value, float) else value if isinstance(value, (int, str, type(None))) else str(value)
    )


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of what `as_plain` makes of a type.

    Examples
    --------
    >>> schema_of(tuple[int, ...])
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        properties = {field.name: schema_of(hints[field.name]) for field in fields(kind)}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one) for one in arguments]}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [one.value for one in kind]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    plain: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"}, int: {"type": "integer"}, str: {"type": "string"}, type(None): {"type": "null"},
        float: {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]},
    }  # fmt: skip
    return plain.get(kind, {})
