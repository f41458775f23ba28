"""Who a send or receive on the host is with: gloo's spans do not say it, the op that began them does.

```
{"cat": "cpu_op", "name": "c10d::recv_", "ts": 10, "dur": 8, "args": {"Concrete Inputs": ["", "", "3", "0"]}}
{"cat": "user_annotation", "name": "gloo:recv", "ts": 15, "dur": 900}
```

``c10d::send(Tensor[] tensors, ProcessGroup pg, int dst, int tag)`` and ``c10d::recv_(..., int src, int tag)``: the
third input is the rank in the group, written where shapes are recorded. It is the only concrete input that is ever
read, and of these two ops only. The span begins inside of the op, on its thread, and mostly ends after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from perfscope.model.trace.columns import MISSING, Array

OPERATION_OF = {"c10d::send": "send", "c10d::recv_": "recv"}
"""The ops whose third concrete input is read -> the operation that gloo's span names."""

MOST_RANKS = 1 << 24
"""A rank above it is not from a profiler."""

_PLACE = 2


def peer_in_group(concrete: bytes) -> int:
    """The rank in the group from an op's concrete inputs as written; ``MISSING`` where they do not tell it."""
    try:
        inputs = msgspec.json.decode(concrete, type=list[msgspec.Raw])
        told = msgspec.json.decode(inputs[_PLACE], type=int, strict=False)
    except (ValueError, IndexError, RecursionError):  # not recorded, or not as torch writes it
        return MISSING
    return told if 0 <= told < MOST_RANKS else MISSING


def peers_of_spans(spans: Mapping[str, Array], names: list[str], ops: Mapping[str, Array]) -> Array:
    """The peer of each span by the op in which it began; shape (spans,), int64, ``MISSING`` where none tells.

    ``spans``: ``start_ns`` and ``thread`` of host spans, ``names`` their operations. ``ops``: ``start_ns``, ``end_ns``,
    ``thread``, ``receives``, ``peer`` of the ops. An op begins one span: where two seem to be in it, neither is its.
    """
    found = np.full(len(names), MISSING, np.int64)
    for receives, operation in enumerate(OPERATION_OF.values()):
        wanted = np.flatnonzero([name == operation for name in names])
        held = np.flatnonzero(ops["receives"] == receives)
        for thread in np.unique(spans["thread"][wanted]).tolist():
            mine = held[ops["thread"][held] == thread]
            mine = mine[np.argsort(ops["start_ns"][mine], kind="stable")]
            rows = wanted[spans["thread"][wanted] == thread]
            at = np.searchsorted(ops["start_ns"][mine], spans["start_ns"][rows], side="right") - 1
            rows, at = rows[at >= 0], at[at >= 0]
            inside = spans["start_ns"][rows] <= ops["end_ns"][mine[at]]
            rows, at = rows[inside], at[inside]
            once = np.bincount(at, minlength=len(mine))[at] == 1
            found[rows[once]] = ops["peer"][mine[at[once]]]
    return found


def table_of(columns: Mapping[str, Array], members: list[tuple[int, str, Any]]) -> dict[str, Array]:
    """Columns of the ops among a chunk's slices; ``members``: (place in ``columns``, name, arguments) of them."""
    places = [place for place, _, _ in members]
    return {
        **{name: columns[name][places] for name in ("start_ns", "end_ns", "thread")},
        "receives": np.array([OPERATION_OF[name] == "recv" for _, name, _ in members], np.int8),
        "peer": np.array([peer_in_group(bytes(args.concrete)) for _, _, args in members], np.int64),
    }
