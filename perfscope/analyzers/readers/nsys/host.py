"""Host rows: calls of the CUDA runtime and driver, NVTX ranges, calls of the operating system, the profiler's own."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.readers.columns import Columns, join_columns
from perfscope.analyzers.readers.kineto import categories
from perfscope.analyzers.readers.nsys import names
from perfscope.analyzers.readers.nsys.database import NULL, Export, Session, nullable, process_of
from perfscope.analyzers.readers.nsys.samples import callers
from perfscope.model.intervals import distinct_rows
from perfscope.model.trace import SliceKind
from perfscope.model.trace.columns import MISSING, Array

_OWN_DOMAIN, _OWN_NAME, _OWN_EXIT = "perfscope", "step", "exit"
"""Names of the ranges of ``perfscope.step()`` (``profiler/session/annotate.py``). The exit closes a range that is not a
step.
"""

_WORDS = r"(?:train(?:ing)?|global|inference|decode)?[ _.:/-]*(?:step|iteration|iter)"
"""Names of steps; an optimizer's step is part of a step and does not match."""
_NUMBERED = re.compile(rf"{_WORDS}[ _.:#=/-]*(\d{{1,12}})", re.IGNORECASE)
_PLAIN = re.compile(_WORDS, re.IGNORECASE)

LEAST = 2
"""Minimum number of ranges with a guessed name; a single one may be the whole loop."""

_HEAD = struct.Struct("<IIIIQQ")

_FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "No. of ranks": "ranks",
    "Rank": "rank",
    "Peer rank": "peer",
}
"""Fields that are read, by NCCL's name."""

Fields = dict[str, int]
"""Values of a payload, by the names on the right of ``_FIELDS``."""

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

_SPANS = (
    ("OSRT_API", SliceKind.OTHER, "(system call)"),
    ("PROFILER_OVERHEAD", SliceKind.OVERHEAD, "(profiler)"),
    ("CUPTI_ACTIVITY_KIND_OVERHEAD", SliceKind.OVERHEAD, "(profiler)"),
)

_NVTX = "NVTX_EVENTS"

_NVTX_COLUMNS = ("start", "end", "eventType", "globalTid", "textId", "domainId")

OWN_LANE = {0: "", 1: " ranges", 2: " profiler"}
"""Lanes of a thread outside its stack: start/end ranges, which may cross, and the profiler's work."""


# Ranges that are the steps of the program's loop: perfscope's, a profiler's, or ranges with the name of a step.


class Steps(Struct, frozen=True, kw_only=True):
    """The steps of one process, and the name that they were guessed from."""

    columns: Columns
    guessed: str | None
    unfinished: int = 0
    """Number of ranges of the steps' name that the end of the recording or program closed; they are not steps."""


def find_steps(slices: Columns, domains: Array, strings: list[str], ended_ns: int | None) -> Steps:
    """Return the steps among ``slices`` (by thread, then start); ``domains``: code of each slice's NVTX domain.

    ``ended_ns``: end of the recording, if known. Nsight Systems closes open ranges then.

    Steps do not overlap. If ranges of one name do, take the outermost ranges of the thread with most of them.
    """
    if not slices:
        return Steps(columns={}, guessed=None)
    ranges = np.flatnonzero(slices["kind"] == int(SliceKind.ANNOTATION))
    texts = {code: strings[code] for code in np.unique(slices["name"][ranges]).tolist()}
    own = [code for code in np.unique(domains).tolist() if code != MISSING and strings[code] == _OWN_DOMAIN]
    mine = ranges[np.isin(domains[ranges], own)] if own else ranges[:0]
    exits = [row for row in mine.tolist() if texts[int(slices["name"][row])] == _OWN_EXIT]
    cut = _cut_off(slices, exits, ended_ns)
    for rows, numbers, guessed in (
        (mine, {code: MISSING for code, text in texts.items() if text == _OWN_NAME}, False),
        *((ranges, _numbers(texts, pattern, full=False), False) for pattern in categories.STEP_NAMES),
        (ranges, _numbers(texts, _NUMBERED, full=True), True),
        (ranges, {code: MISSING for code, text in texts.items() if _PLAIN.fullmatch(text)}, True),
    ):
        named_so = rows[np.isin(slices["name"][rows], list(numbers))] if numbers else rows[:0]
        chosen = _apart(slices, named_so[~cut[named_so]])
        if len(chosen) >= (LEAST if guessed else 1):
            named = [numbers[code] for code in slices["name"][chosen].tolist()]
            counted = [index if number == MISSING else number for index, number in enumerate(named)]
            columns = {name: slices[name][chosen] for name in ("start_ns", "end_ns", "name")}
            columns["number"] = np.array(counted, np.int64)
            return Steps(
                columns=columns,
                guessed=texts[int(slices["name"][chosen[0]])] if guessed else None,
                unfinished=int(cut[named_so].sum()),
            )
    return Steps(columns={}, guessed=None)


def _cut_off(slices: Columns, exits: list[int], ended_ns: int | None) -> Array:
    """Flag slices that were closed by the end of something else. ``exits``: rows of the ranges that mark exits."""
    end = slices["end_ns"]
    cut = np.zeros(len(end), bool) if ended_ns is None else end >= ended_ns
    for row in exits:
        cut |= (
            (slices["start_ns"] < slices["start_ns"][row])
            & (end >= slices["start_ns"][row])
            & (end <= slices["end_ns"][row])
        )
    return cut


def _numbers(texts: dict[int, str], pattern: re.Pattern[str], *, full: bool) -> dict[int, int]:
    match = pattern.fullmatch if full else pattern.match
    return {code: int(result[1][:18]) for code, text in texts.items() if (result := match(text)) is not None}


def _apart(slices: Columns, rows: Array) -> Array:
    """Return ``rows`` of the thread with most, by start, without those that begin before the previous one ended."""
    if not len(rows):
        return rows
    threads, counts = np.unique(slices["thread"][rows], return_counts=True)
    rows = rows[slices["thread"][rows] == threads[np.argmax(counts)]]
    rows = rows[np.lexsort((-slices["end_ns"][rows], slices["start_ns"][rows]))]
    kept, until = [], -(2**63)
    for row, start, end in zip(
        rows.tolist(), slices["start_ns"][rows].tolist(), slices["end_ns"][rows].tolist(), strict=True
    ):
        if start >= until:
            kept.append(row)
            until = end
    return np.array(kept, np.int64)


# NCCL's data about its own calls: payloads of its NVTX ranges, and the kernel of each call.
#
# A payload is a block of bytes, laid out by ``NVTX_PAYLOAD_SCHEMA_ENTRIES``. In the export it follows a head of 32
# bytes (``<IIIIQQ``: domain, -, schema, -, bytes of the payload, bytes in all). Only the fields of a schema named here
# are read. The size of a message is that of one rank: the input of an all-gather, the output of a reduce-scatter (NCCL,
# ``src/init_nvtx.cc`` and ``src/collectives.cc``).
#
# A call outside a group launches its kernel inside its range. In a group the outermost ``ncclGroupEnd`` launches the
# kernel; if it launches one kernel, that kernel does the work of all calls of the group.


class Call(Struct, frozen=True, kw_only=True):
    """One NCCL range of a thread."""

    name: str
    start_ns: int
    end_ns: int
    fields: Fields = field(default_factory=dict)


class Message(Struct, frozen=True, kw_only=True):
    """Data that one kernel moved; ``None`` for unknown values."""

    operation: str
    communicator: int | None
    bytes_in: int | None
    bytes_out: int | None


class Payloads:
    """Decoder of payloads by the schemas of an export."""

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
        """Return the allow-listed fields of a payload; empty if it has none, or is truncated."""
        if len(payload) < _HEAD.size:
            return {}
        domain, _, schema, _, _, _ = _HEAD.unpack_from(payload)
        body = payload[_HEAD.size :]
        layout = self._layouts.get((domain, schema), {})
        return {
            name: struct.unpack_from(f"<{code}", body, index)[0]
            for name, (index, code) in layout.items()
            if index + struct.calcsize(code) <= len(body)
        }


def messages(calls: Sequence[Call], launches: Iterable[tuple[int, int]], size_of: dict[int, int]) -> dict[int, Message]:
    """Return kernel -> message. ``calls``: one thread's NCCL ranges by start, then longest first.

    ``launches``: (start of the launch call, kernel) of the thread's communication kernels. ``size_of``: ranks of a
    communicator. Kernels whose message is unknown are left out.
    """
    inside = _innermost(calls, launches)
    result: dict[int, Message] = {}
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
                    result[kernels[0]] = moved
                pending = []
        elif call.name in OPERATIONS:
            if depth:
                pending.append(call)
            elif len(kernels) == 1 and (moved := _together([call], size_of)) is not None:
                result[kernels[0]] = moved
    return result


def _innermost(calls: Sequence[Call], launches: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return index of a call -> kernels launched in it and not in a call inside it."""
    result: dict[int, list[int]] = defaultdict(list)
    stack: list[int] = []
    following = 0
    for begun, kernel in sorted(launches):
        while following < len(calls) and calls[following].start_ns <= begun:
            stack.append(following)
            following += 1
        while stack and calls[stack[-1]].end_ns <= begun:
            stack.pop()
        if stack:
            result[stack[-1]].append(kernel)
    return result


def _together(calls: Sequence[Call], size_of: dict[int, int]) -> Message | None:
    """Return the calls of a group as one message; ``None`` if they are of several kinds or communicators."""
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
    size = _sum(calls)
    spread = None if size is None or ranks is None else size * ranks
    return Message(
        operation=operation,
        communicator=communicator,
        bytes_in=spread if operation == "reduce_scatter" else size,
        bytes_out=size if operation == "reduce_scatter" else spread if operation == "all_gather" else size,
    )


def _sum(calls: Sequence[Call]) -> int | None:
    sizes = [call.fields.get("bytes") for call in calls]
    known = [size for size in sizes if size is not None and 0 <= size < 1 << 56]
    return sum(known) if known and len(known) == len(sizes) else None


class Host(Struct, kw_only=True):
    """Host rows of all processes."""

    calls: Columns
    """``start_ns, end_ns, process, globalTid, name, correlation``."""
    slices: Columns
    """``start_ns, end_ns, process, globalTid, name, kind, sequence, shapes, lane, domain, payload``.

    ``lane``: of ``OWN_LANE``; ``domain``: code of the NVTX domain's name; ``payload``: row of ``payloads``.
    """
    payloads: list[Fields]
    """Allow-listed fields of NCCL in the payloads of NVTX ranges."""


def read_host(session: Session) -> Host:
    """Return all host rows of an export."""
    calls = session.events("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", "nameId", "callchainId")
    calls["name"] = _named(session, session.codes(calls.pop("nameId"), names.call_name), "(unnamed call)")
    calls["correlation"] = nullable(calls.pop("correlationId"))
    ranges, payloads = _ranges(session)
    parts = [ranges, _callers(session, calls, "CUDA_CALLCHAINS")]
    for table, kind, nameless in _SPANS:
        rows = session.events(table, "nameId", "callchainId")
        rows["name"] = _named(session, session.codes(rows.pop("nameId")), nameless)
        parts.append(_callers(session, rows, "OSRT_CALLCHAINS"))
        parts.append(_as_slices(rows, kind))
    return Host(calls=calls, slices=join_columns(parts), payloads=payloads)


def _callers(session: Session, calls: Columns, table: str) -> Columns:
    """Return an op around each call that was recorded with its stack: the program's function that made it."""
    name = callers(session, table, calls.pop("callchainId"))
    known = name != MISSING
    rows = {column: calls[column][known] for column in ("start_ns", "end_ns", "process", "globalTid")}
    return _as_slices({**rows, "name": name[known]}, SliceKind.OP)


def _as_slices(rows: Columns, kind: SliceKind) -> Columns:
    """Return ``rows`` with the other columns of ``Host.slices``."""
    size = len(rows["name"])
    rows["kind"] = np.full(size, int(kind), np.uint8)
    rows["lane"] = np.full(size, 2 if kind == SliceKind.OVERHEAD else 0, np.int64)
    for name, dtype in (("sequence", np.int64), ("shapes", np.int32), ("domain", np.int32), ("payload", np.int64)):
        rows[name] = np.full(size, MISSING, dtype)
    return rows


def _named(session: Session, codes: Array, nameless: str) -> Array:
    if not (codes == MISSING).any():
        return codes
    return np.where(codes == MISSING, session.pool.code(nameless), codes).astype(np.int32)


def _ranges(session: Session) -> tuple[Columns, list[Fields]]:
    """Return NVTX ranges and the fields of their payloads."""
    payloads = Payloads(session.database)
    columns, (texts, binaries) = session.database.mixed(
        _NVTX,
        _NVTX_COLUMNS,
        "text",
        "binaryData",
        keep={
            "text": lambda value: session.pool.code(value) if isinstance(value, str) else None,
            "binaryData": lambda value: payloads.fields(value) or None if isinstance(value, bytes) else None,
        },
    )
    codes = session.codes(columns.pop("textId"))
    written = np.array([code if isinstance(code, int) else MISSING for code in texts], np.int32)
    codes = np.where(written == MISSING, codes, written)
    kind = columns["eventType"]
    domains = _domain_names(columns, codes)
    columns |= {"text": codes, "row": np.arange(len(codes)), "domain": _domain_codes(columns, domains)}
    span = (kind == names.NVTX_PUSH_POP) | (kind == names.NVTX_START_END)
    session.pool.events += int((~span).sum())
    for number in np.unique(kind[~span]).tolist():
        count = int((kind == number).sum())
        if number != names.NVTX_DOMAIN:
            session.pool.unplaced[names.NVTX_OTHERS.get(number, "NVTX event of another type")] += count
    spans = {name: values[span] for name, values in columns.items()}
    spans["globalPid"] = np.full(int(span.sum()), NULL)
    ranges = session.timed(spans, _NVTX)
    decoded = [binaries[row] for row in ranges.pop("row").tolist()]
    carries = np.array([isinstance(fields, dict) for fields in decoded], bool)
    ranges["payload"] = np.where(carries, np.cumsum(carries) - 1, MISSING)
    ranges["lane"] = (ranges.pop("eventType") == names.NVTX_START_END).astype(np.int64)
    del ranges["domainId"]
    _describe(session, ranges)
    return ranges, [fields for fields in decoded if isinstance(fields, dict)]


def _domain_names(columns: Columns, codes: Array) -> dict[tuple[int, int], int]:
    """Return (process, number) -> code of a domain's name."""
    rows = np.flatnonzero(columns["eventType"] == names.NVTX_DOMAIN)
    process = process_of(columns["globalTid"][rows], columns["globalTid"][rows])
    return dict(
        zip(zip(process.tolist(), columns["domainId"][rows].tolist(), strict=True), codes[rows].tolist(), strict=True)
    )


def _domain_codes(columns: Columns, named: dict[tuple[int, int], int]) -> Array:
    process = process_of(columns["globalTid"], columns["globalTid"])
    each, inverse = distinct_rows(process, columns["domainId"])
    pairs = zip(process[each].tolist(), columns["domainId"][each].tolist(), strict=True)
    return np.array([named.get(pair, MISSING) for pair in pairs], np.int32)[inverse]


def _describe(session: Session, ranges: Columns) -> None:
    """Set name, kind, sequence number and shapes of each range from its text, once per distinct text."""
    pool = session.pool
    distinct, inverse = np.unique(ranges.pop("text"), return_inverse=True)
    read = [names.read_range(pool.strings[code] if code != MISSING else "") for code in distinct.tolist()]
    unknown = [one.sequence if one.sequence is not None else MISSING for one in read]
    ranges["name"] = np.array([pool.code(one.name) for one in read], np.int32)[inverse]
    ranges["kind"] = np.array([int(one.kind) for one in read], np.uint8)[inverse]
    ranges["sequence"] = np.array(unknown, np.int64)[inverse]
    ranges["shapes"] = np.array([pool.code(one.sizes) if one.sizes else MISSING for one in read], np.int32)[inverse]
