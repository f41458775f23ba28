"""Records as plain dicts and lists for JSON: field by field, except where a ``Shape`` differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct, field


class Shape(Struct, frozen=True, kw_only=True):
    """How records of a class are written if not field by field under the same names."""

    left_out: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Field -> its key."""
    added: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    """Key -> its value: the path of an attribute of the record, or a function of it; it replaces a field of that
    name."""
    merged: tuple[str, ...] = ()
    """Fields whose keys are written into the record's own level."""


Shapes = Mapping[type, Shape]

AS_IT_IS = Shape()


def plain(value: Any, shapes: Shapes) -> Any:
    """Convert a value for JSON: records become dicts, enums names, numpy values Python values, and NaN ``null``."""
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value) or isinstance(value, msgspec.Struct):
        return _record(value, shapes)
    if isinstance(value, Mapping):
        return {str(plain(key, shapes)): plain(item, shapes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, shapes) for item in value]
    if hasattr(value, "tolist"):  # a numpy value, recognised without importing numpy
        return plain(value.tolist(), shapes)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float) else str(value)


def _record(record: Any, shapes: Shapes) -> dict[str, Any]:
    shape = shapes.get(type(record), AS_IT_IS)
    result: dict[str, Any] = {}
    struct = isinstance(record, msgspec.Struct)
    for name in record.__struct_fields__ if struct else [one.name for one in fields(record)]:
        if name in shape.merged:
            result |= plain(getattr(record, name), shapes)
        elif name not in shape.left_out and name not in shape.added:
            result[shape.renamed.get(name, name)] = plain(getattr(record, name), shapes)
    added = {key: attrgetter(value) if isinstance(value, str) else value for key, value in shape.added.items()}
    return result | {key: plain(value(record), shapes) for key, value in added.items()}
