"""Process groups as the head of a trace lists them, for collectives whose events do not tell theirs.

``"pg_config": [{"pg_name": "1", "pg_desc": "mesh_tp", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}]``

An event of a large group cuts its list of ranks short; some leave its size or description out. They name the group,
and the head has the rest. Host collectives of gloo name none: where one group only runs gloo, it is theirs. A kernel
without a name may be of a library with communicators of its own, and is left as it is.

A send or receive on the host tells the other side by its number in the group: the group says which rank that is, and
where it is not known, it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers.kineto.document import Head
from perfscope.model.trace import Rows, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

# Who a send or receive on the host is with: gloo's spans do not say it, the op that began them does.
#
# ```
# {"cat": "cpu_op", "name": "c10d::recv_", "ts": 10, "dur": 8, "args": {"Concrete Inputs": ["", "", "3", "0"]}}
# {"cat": "user_annotation", "name": "gloo:recv", "ts": 15, "dur": 900}
# ```
#
# ``c10d::send(Tensor[] tensors, ProcessGroup pg, int dst, int tag)`` and ``c10d::recv_(..., int src, int tag)``: the
# third input is the rank in the group, written where shapes are recorded. The span begins inside of the op, on its
# thread, and mostly ends after it.


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
    result = np.full(len(names), MISSING, np.int64)
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
            result[rows[once]] = ops["peer"][mine[at[once]]]
    return result


def table_of(columns: Mapping[str, Array], members: list[tuple[int, str, Any]]) -> dict[str, Array]:
    """Columns of the ops among a chunk's slices; ``members``: (place in ``columns``, name, arguments) of them."""
    positions = [index for index, _, _ in members]
    return {
        **{name: columns[name][positions] for name in ("start_ns", "end_ns", "thread")},
        "receives": np.array([OPERATION_OF[name] == "recv" for _, name, _ in members], np.int8),
        "peer": np.array([peer_in_group(bytes(args.concrete)) for _, _, args in members], np.int64),
    }


UNDEFINED = ("", "undefined")
"""What torch writes for a group that the program did not describe."""

MOST_GROUPS = 65_536
"""Groups of a process. A mesh of three axes has a handful a rank; a file that lists more is not from a profiler."""


class _Listed(msgspec.Struct):
    """The keys that are read of a group."""

    name: str | int = msgspec.field(default="", name="pg_name")
    description: str | None = msgspec.field(default=None, name="pg_desc")
    backends: str = msgspec.field(default="", name="backend_config")
    size: int = msgspec.field(default=MISSING, name="pg_size")
    ranks: list[int] = msgspec.field(default_factory=list)


class ProcessGroup(Struct, frozen=True, kw_only=True):
    """One group, as far as the head tells of it."""

    name: str
    description: str | None
    size: int
    """``MISSING`` where it is not told, or does not fit the ranks."""
    ranks: tuple[int, ...]
    by_place: tuple[int, ...]
    """The same as listed: the n-th has the number n in the group (it may have been made unsorted)."""
    gloo: bool


def process_groups(head: Head) -> tuple[ProcessGroup, ...]:
    """The groups that the head lists; what is not as torch writes it is left out, never an error."""
    listed = head.distributed.groups if head.distributed is not None else b""
    try:
        entries = msgspec.json.decode(listed, type=list[msgspec.Raw]) if listed else []
    except (ValueError, RecursionError):
        return ()
    result: dict[str, ProcessGroup | None] = {}
    for entry in entries[:MOST_GROUPS]:
        group = _group(entry)
        if group is not None:  # two of one name cannot be told apart
            result[group.name] = None if group.name in result and result[group.name] != group else group
    return tuple(group for group in result.values() if group is not None)


def _group(entry: msgspec.Raw) -> ProcessGroup | None:
    try:
        one = msgspec.json.decode(entry, type=_Listed)
    except (ValueError, RecursionError):
        return None
    ranks = tuple(sorted(set(one.ranks)))
    name = str(one.name)
    if not name or any(rank < 0 for rank in ranks) or (ranks and one.size not in (MISSING, len(ranks))):
        return None
    return ProcessGroup(
        name=name,
        description=None if one.description in UNDEFINED else one.description,
        size=len(ranks) or one.size,
        ranks=ranks,
        by_place=tuple(one.ranks) if len(ranks) == len(one.ranks) else (),
        gloo="gloo" in one.backends.lower(),
    )


def complete_groups(collectives: Rows, head: Head, builder: TraceBuilder) -> Rows:
    """The rows of ``collectives`` with what only the head tells of their groups; its texts are added to ``builder``."""
    groups = process_groups(head)
    if not len(collectives):
        return collectives
    columns: dict[str, Any] = {
        name: collectives[name].copy() for name in ("group", "description", "ranks", "group_size", "peer")
    }
    strings = builder.strings
    on_host = (collectives["slice"] != MISSING) & (collectives["kernel"] == MISSING)
    running_gloo = [group for group in groups if group.gloo]
    if len(running_gloo) == 1:
        unnamed = on_host & (columns["group"] == MISSING)
        columns["group"][unnamed] = builder.code(running_gloo[0].name)
    held = {group.name: group for group in groups}
    columns["peer"][on_host] = MISSING
    for code in np.unique(columns["group"]).tolist():
        group = None if code == MISSING else held.get(strings[code])
        if group is None:
            continue
        mine = columns["group"] == code
        told = mine & on_host & (collectives["peer"] >= 0) & (collectives["peer"] < len(group.by_place))
        columns["peer"][told] = np.array(group.by_place, np.int64)[collectives["peer"][told]]
        if group.ranks:
            lacking = mine & ~_whole(columns["ranks"], strings)
            if lacking.any():
                columns["ranks"][lacking] = builder.code(json.dumps(list(group.ranks)))
        if group.size != MISSING:
            columns["group_size"][mine & (columns["group_size"] < 0)] = group.size
        if group.description is not None:
            undescribed = mine & _among(columns["description"], strings, UNDEFINED)
            if undescribed.any():
                columns["description"][undescribed] = builder.code(group.description)
    return collectives.with_columns(columns)


def _whole(ranks: np.ndarray, strings: list[str]) -> np.ndarray:
    """Rows whose list of ranks is there and not cut short (torch writes ``...`` after the thirtieth)."""
    texts, inverse = np.unique(ranks, return_inverse=True)
    whole = [
        code != MISSING and strings[code].strip('"') not in ("", "[]") and "..." not in strings[code] for code in texts
    ]
    return np.array(whole, bool)[inverse]


def _among(column: np.ndarray, strings: list[str], wanted: tuple[str, ...]) -> np.ndarray:
    texts, inverse = np.unique(column, return_inverse=True)
    return np.array([code == MISSING or strings[code] in wanted for code in texts], bool)[inverse]
