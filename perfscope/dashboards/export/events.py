"""Events on tracks as columns: what the formats with a timeline are written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfscope.analyzers.readers.perfetto import vocabulary as words
from perfscope.model.trace.columns import MISSING, Array, Column, Rows

Value = Literal["flag", "float", "int", "text", "uint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of events: a column of values, and of which events it is."""

    name: str
    value: Value
    values: Array
    """Shape (n,); of text: codes."""
    present: Array | None = None
    """Flags of shape (n,); ``None``: every event has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events of one kind as columns of shape (n,)."""

    kind: Literal["slices", "instants", "counters"]
    track: Array
    """Uuid of the track; of slices that of the track before they are spread over lanes."""
    start_ns: Array
    end_ns: Array
    """Of slices; the start of others."""
    name: Array
    """Codes; of counters unused."""
    category: Array
    """Codes."""
    flow: Array
    """Number of the arrow that an event is on, uint64; 0: none."""
    arguments: tuple[Argument, ...] = ()
    value: Array | None = None
    """Of counters: the sample, float64."""

    def __len__(self) -> int:
        """Number of events."""
        return len(self.track)


def of_column(name: str, column: Column, values: Array) -> Argument:
    """A declared column as an argument: absent where the source said nothing."""
    present: Array | None = None
    if column.nullable or values.dtype.kind == "f":
        present = ~np.isnan(values) if values.dtype.kind == "f" else values != MISSING
        if present.all():
            present = None
    return Argument(name=name, value=_value(column, values), values=values, present=present)


def _value(column: Column, values: Array) -> Value:
    if column.text:
        return "text"
    kinds: dict[str, Value] = {"b": "flag", "f": "float", "u": "uint"}
    return kinds.get(values.dtype.kind, "int")


def op_of(rows: Rows) -> Argument:
    """The number of the host op that each row belongs to."""
    ops = rows["op"]
    return Argument(name=words.OP_ARGUMENT, value="int", values=ops, present=ops != MISSING)


def spread(argument: Argument, rows: Array, size: int) -> Argument:
    """An argument of some of ``size`` events: that of event ``rows[i]`` is ``values[i]``."""
    values = np.zeros(size, argument.values.dtype)
    values[rows] = argument.values
    present = np.zeros(size, np.bool_)
    present[rows] = True if argument.present is None else argument.present
    return Argument(name=argument.name, value=argument.value, values=values, present=present)


def constant(code: int, size: int) -> Array:
    """The same code for all events."""
    return np.full(size, code, np.int64)


def no_flow(size: int) -> Array:
    """Events that are on no arrow."""
    return np.zeros(size, np.uint64)


def together(parts: Sequence[Events]) -> Events:
    """Events of one kind that share tracks as one; an argument that a part lacks is absent there."""
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part) for part in parts]
    begins = np.concatenate(([0], np.cumsum(sizes))).astype(int)
    total = int(begins[-1])
    found: dict[tuple[str, Value], list[tuple[int, Argument]]] = {}
    for place, part in enumerate(parts):
        for one in part.arguments:
            found.setdefault((one.name, one.value), []).append((place, one))
    arguments = []
    for (name, value), held in found.items():
        values = np.zeros(total, np.result_type(*(one.values.dtype for _, one in held)))
        present = np.zeros(total, np.bool_)
        for place, one in held:
            part_of = slice(begins[place], begins[place + 1])
            values[part_of] = one.values
            present[part_of] = True if one.present is None else one.present
        arguments.append(Argument(name=name, value=value, values=values, present=present))
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("track", "start_ns", "end_ns", "name", "category", "flow")
    }
    return Events(kind=parts[0].kind, arguments=tuple(arguments), **columns)
