"""Collectives as a table: as each rank recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfscope.analyzers.ranks import locals_of
from perfscope.model.collectives import bus_factor, element_size
from perfscope.model.trace import MISSING, Trace


def message_rows(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    """One row per collective of each trace, in the order of its columns."""
    rows: list[tuple[Any, ...]] = []
    for source, trace in enumerate(traces):
        for local in trace.fact(locals_of):
            size = local.message_bytes()
            width = element_size(local.dtype)
            rows.append(
                (
                    source,
                    trace.source.rank,
                    local.operation,
                    local.description,
                    local.size,
                    local.dtype,
                    local.algorithm,
                    local.protocol,
                    None if local.kernel == MISSING else local.kernel,
                    local.start_ns,
                    local.duration_ns,
                    size,
                    _bus_bytes(local.operation, size, local.size),
                    None if width is None or local.elements is None else local.elements * width,
                    None if width is None or local.received is None else local.received * width,
                )
            )
    return rows


def _bus_bytes(operation: str, size: int | None, members: int | None) -> float | None:
    factor = None if members is None else bus_factor(operation, members)
    return None if size is None or factor is None else size * factor
