"""Process groups from the head of a trace, for collectives whose events lack facts about their group.

``"pg_config": [{"pg_name": "1", "pg_desc": "mesh_tp", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}]``

An event of a large group truncates its list of ranks, and some events lack its size or description. They have the
group's name, and the head has the rest. Host collectives of gloo have no group name: if a single group uses gloo only,
it is that group. A kernel without a name may belong to a library with other communicators, and stays unchanged.

A send or receive on the host has the other side as a number in the group. The group maps it to a rank; without a known
group the rank is missing.
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

OPERATION_OF = {"c10d::send": "send", "c10d::recv_": "recv"}
"""Ops whose third concrete input is read -> the operation in the name of gloo's span."""

MOST_RANKS = 1 << 24
"""Maximum rank; a larger number is not from a profiler."""

_PLACE = 2

UNDEFINED = ("", "undefined")
"""Description that torch writes for a group without one."""

MOST_GROUPS = 65_536
"""Maximum number of groups of a process. A mesh of three axes has a handful per rank; more are not from a profiler."""


# Peer of a send or receive on the host: gloo's spans lack it, the op that began them has it.
#
# ```
# {"cat": "cpu_op", "name": "c10d::recv_", "ts": 10, "dur": 8, "args": {"Concrete Inputs": ["", "", "3", "0"]}}
# {"cat": "user_annotation", "name": "gloo:recv", "ts": 15, "dur": 900}
# ```
#
# ``c10d::send(Tensor[] tensors, ProcessGroup pg, int dst, int tag)`` and ``c10d::recv_(..., int src, int tag)``: the
# third input is the rank in the group, recorded with shapes. The span begins inside of the op, on its thread, and
# mostly ends after it.


def peer_in_group(concrete: bytes) -> int:
    """Return the rank in the group from an op's concrete inputs as written, or ``MISSING``."""
    try:
        inputs = msgspec.json.decode(concrete, type=list[msgspec.Raw])
        place = msgspec.json.decode(inputs[_PLACE], type=int, strict=False)
    except (ValueError, IndexError, RecursionError):  # Not recorded, or not as torch writes it.
        return MISSING
    return place if 0 <= place < MOST_RANKS else MISSING


def peers_of_spans(spans: Mapping[str, Array], names: list[str], ops: Mapping[str, Array]) -> Array:
    """Return the peer of each span from the op in which it began; shape (spans,), int64, ``MISSING`` if unknown.

    ``spans``: ``start_ns`` and ``thread`` of host spans, ``names`` their operations. ``ops``: ``start_ns``, ``end_ns``,
    ``thread``, ``receives``, ``peer`` of the ops. An op begins one span; if two seem to be in it, both lack a peer.
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
    """Return columns of the ops among a chunk's slices. ``members``: their (place in ``columns``, name, arguments)."""
    positions = [index for index, _, _ in members]
    return {
        **{name: columns[name][positions] for name in ("start_ns", "end_ns", "thread")},
        "receives": np.array([OPERATION_OF[name] == "recv" for _, name, _ in members], np.int8),
        "peer": np.array([peer_in_group(bytes(args.concrete)) for _, _, args in members], np.int64),
    }


class _Listed(msgspec.Struct):
    """Keys of a group that are read."""

    name: str | int = msgspec.field(default="", name="pg_name")
    description: str | None = msgspec.field(default=None, name="pg_desc")
    backends: str = msgspec.field(default="", name="backend_config")
    size: int = msgspec.field(default=MISSING, name="pg_size")
    ranks: list[int] = msgspec.field(default_factory=list)


class ProcessGroup(Struct, frozen=True, kw_only=True):
    """One group, as recorded in the head."""

    name: str
    description: str | None
    size: int
    """``MISSING`` if it is not recorded, or does not fit the ranks."""
    ranks: tuple[int, ...]
    by_place: tuple[int, ...]
    """Ranks in the listed order: the n-th has number n in the group (it may have been made unsorted)."""
    gloo: bool


def process_groups(head: Head) -> tuple[ProcessGroup, ...]:
    """Return the groups in the head; an entry that torch would not write is left out without an error."""
    listed = head.distributed.groups if head.distributed is not None else b""
    try:
        entries = msgspec.json.decode(listed, type=list[msgspec.Raw]) if listed else []
    except (ValueError, RecursionError):
        return ()
    result: dict[str, ProcessGroup | None] = {}
    for entry in entries[:MOST_GROUPS]:
        group = _group(entry)
        if group is not None:  # Two groups of one name cannot be distinguished.
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
    """Return ``collectives`` completed with group facts of the head; their texts are added to ``builder``."""
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
        with_peer = mine & on_host & (collectives["peer"] >= 0) & (collectives["peer"] < len(group.by_place))
        columns["peer"][with_peer] = np.array(group.by_place, np.int64)[collectives["peer"][with_peer]]
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
    """Return the rows with a complete list of ranks (torch writes ``...`` after the thirtieth)."""
    texts, inverse = np.unique(ranks, return_inverse=True)
    whole = [
        code != MISSING and strings[code].strip('"') not in ("", "[]") and "..." not in strings[code] for code in texts
    ]
    return np.array(whole, bool)[inverse]


def _among(column: np.ndarray, strings: list[str], wanted: tuple[str, ...]) -> np.ndarray:
    texts, inverse = np.unique(column, return_inverse=True)
    return np.array([code == MISSING or strings[code] in wanted for code in texts], bool)[inverse]
