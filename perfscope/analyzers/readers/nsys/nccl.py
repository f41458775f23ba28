"""What NCCL says of its own calls: payloads of its NVTX ranges, and which kernel each call became.

A payload is one block of bytes, laid out by ``NVTX_PAYLOAD_SCHEMA_ENTRIES``; in the export it stands after a
head of 32 bytes (``<IIIIQQ``: domain, -, schema, -, bytes of the payload, bytes in all). Of a schema only the
fields named here are read. A message's size is that of one rank: what an all-gather sends, what a
reduce-scatter receives (NCCL, ``src/init_nvtx.cc`` and ``src/collectives.cc``).

A call outside a group launches its kernel inside its range. In a group the kernel is launched by the outermost
``ncclGroupEnd``; where that launches one kernel, the kernel is the work of all calls of the group.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfscope.analyzers.readers.nsys.database import NULL, Export

_HEAD = struct.Struct("<IIIIQQ")
_FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "No. of ranks": "ranks",
    "Rank": "rank",
    "Peer rank": "peer",
}
"""Fields that are read, by the name NCCL gives them."""
Fields = dict[str, int]
"""What a payload tells, by the names on the right of ``_FIELDS``."""

_TYPES = {
    5: "i", 6: "I", 9: "q", 10: "Q", 13: "h", 14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 22: "Q", 7: "q", 8: "Q",
}  # fmt: skip
"""``NVTX_PAYLOAD_ENTRY_TYPE_*`` (nvToolsExtPayload.h) -> struct code, of the integers."""

OPERATIONS = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "all_gather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
    "ncclAllToAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
"""Calls that move data."""
_BEGIN, _END = "ncclGroupStart", "ncclGroupEnd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One NCCL range of a thread."""

    name: str
    start_ns: int
    end_ns: int
    fields: Fields = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one kernel moved. ``None``: not told."""

    operation: str
    communicator: int | None
    bytes_in: int | None
    bytes_out: int | None


class Payloads:
    """Decodes payloads by the schemas of an export."""

    def __init__(self, database: Export) -> None:
        columns, (texts,) = database.mixed(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES", ("domainId", "schemaId", "idx", "type", "offset"), "name"
        )
        self._layouts: dict[tuple[int, int], dict[str, tuple[int, str]]] = defaultdict(dict)
        for domain, schema, index, kind, offset, text in zip(
            *(values.tolist() for values in columns.values()), texts, strict=True
        ):
            at = 0 if offset == NULL and index == 0 else offset
            if text in _FIELDS and kind in _TYPES and 0 <= at < 512:
                self._layouts[domain, schema][_FIELDS[str(text)]] = (at, _TYPES[kind])

    def fields(self, payload: bytes) -> Fields:
        """The allow-listed fields of a payload; empty where it has none, or is cut off."""
        if len(payload) < _HEAD.size:
            return {}
        domain, _, schema, _, _, _ = _HEAD.unpack_from(payload)
        body = payload[_HEAD.size :]
        layout = self._layouts.get((domain, schema), {})
        return {
            name: struct.unpack_from(f"<{code}", body, at)[0]
            for name, (at, code) in layout.items()
            if at + struct.calcsize(code) <= len(body)
        }


def messages(calls: Sequence[Call], launches: Iterable[tuple[int, int]], size_of: dict[int, int]) -> dict[int, Message]:
    """Kernel -> what it moved. ``calls``: one thread's NCCL ranges by start, then longest first.

    ``launches``: (when the launch call began, kernel) of the thread's communication kernels. ``size_of``: ranks of a
    communicator. Kernels of which the calls do not tell what they moved are left out.
    """
    inside = _innermost(calls, launches)
    found: dict[int, Message] = {}
    pending: list[Call] = []
    depth = 0
    for index, call in enumerate(calls):
        kernels = inside.get(index, [])
        if call.name == _BEGIN:
            depth += 1
        elif call.name == _END:
            depth = max(depth - 1, 0)
            if depth == 0:
                moved = _together(pending, size_of) if len(kernels) == 1 else None
                if moved is not None:
                    found[kernels[0]] = moved
                pending = []
        elif call.name in OPERATIONS:
            if depth:
                pending.append(call)
            elif len(kernels) == 1 and (moved := _together([call], size_of)) is not None:
                found[kernels[0]] = moved
    return found


def _innermost(calls: Sequence[Call], launches: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Index of a call -> kernels launched in it and in no call inside it."""
    found: dict[int, list[int]] = defaultdict(list)
    stack: list[int] = []
    following = 0
    for begun, kernel in sorted(launches):
        while following < len(calls) and calls[following].start_ns <= begun:
            stack.append(following)
            following += 1
        while stack and calls[stack[-1]].end_ns <= begun:
            stack.pop()
        if stack:
            found[stack[-1]].append(kernel)
    return found


def _together(calls: Sequence[Call], size_of: dict[int, int]) -> Message | None:
    """The calls of a group as one message; None if they are of several kinds or communicators."""
    operations = {OPERATIONS[call.name] for call in calls}
    communicators = {call.fields.get("communicator") for call in calls}
    if not calls or len(communicators) > 1 or (len(operations) > 1 and operations != {"send", "recv"}):
        return None
    communicator = communicators.pop()
    ranks = size_of.get(communicator) if communicator is not None else None
    if operations <= {"send", "recv"}:
        operation = "send_recv" if len(operations) > 1 else operations.pop()
        return Message(
            operation=operation,
            communicator=communicator,
            bytes_in=_sum([call for call in calls if call.name == "ncclSend"]),
            bytes_out=_sum([call for call in calls if call.name == "ncclRecv"]),
        )
    operation = operations.pop()
    told = _sum(calls)
    spread = None if told is None or ranks is None else told * ranks
    return Message(
        operation=operation,
        communicator=communicator,
        bytes_in=spread if operation == "reduce_scatter" else told,
        bytes_out=told if operation == "reduce_scatter" else spread if operation == "all_gather" else told,
    )


def _sum(calls: Sequence[Call]) -> int | None:
    sizes = [call.fields.get("bytes") for call in calls]
    told = [size for size in sizes if size is not None and 0 <= size < 1 << 56]
    return sum(told) if told and len(told) == len(sizes) else None
