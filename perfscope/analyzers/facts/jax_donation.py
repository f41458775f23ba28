"""Donated buffers that jax could not use, as it warned of them when a run of ours lowered the program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfscope.model.trace import Trace

_BYTES = {"bool": 1, "complex64": 8, "complex128": 16, "bfloat16": 2}
"""Of types whose name does not end in their bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The buffers of one program, from one line."""

    module: str | None
    file: str | None
    """Of the user's line that called it."""
    line: int | None
    shapes: tuple[str, ...]
    """As jax writes them, ``float32[8,128]``; of divided arrays the part of one device."""
    count: int
    """At least as many as ``shapes``."""

    @property
    def bytes(self) -> int:
        """Of ``shapes`` together."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> list[tuple[str, int]]:
        """Shape and bytes of each, the largest first."""
        return sorted(((shape, _bytes(shape)) for shape in self.shapes), key=lambda one: (-one[1], one[0]))


def refused_donations(trace: Trace) -> tuple[Refused, ...]:
    """One for each program and line, the largest first: a program that is lowered again warns again."""
    found: dict[tuple[str | None, str | None, int | None], Refused] = {}
    for event in trace.compile_events:
        if event.kind == "donation_unusable":
            key = (event.module, event.file, event.line)
            one = Refused(module=event.module, file=event.file, line=event.line, shapes=event.shapes,
                          count=max(event.count or 0, len(event.shapes)))  # fmt: skip
            if key not in found or one.bytes > found[key].bytes:
                found[key] = one
    return tuple(sorted(found.values(), key=lambda one: -one.bytes))


def _bytes(shape: str) -> int:
    dtype, _, dims = shape.removesuffix("]").partition("[")
    bits = int("".join(filter(str.isdigit, dtype.partition("_")[0])) or 0)  # float8_e4m3fn has 8
    size = _BYTES.get(dtype) or bits / 8
    return round(size * math.prod(int(dim) for dim in dims.split(",") if dim))
