"""Timelines of the memories in allocator events and snapshots: one per device, one for the host.

The allocator's own totals, if recorded, are used to check the blocks and to find memory that the blocks do not cover:
``unseen_bytes`` was held before the recording began, with unknown owner.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.live_bytes import Curve, Int64
from perfscope.model.memory import BLOCKS, Axis, KnownBy, MemoryTimeline, Pairs, pair_events, strictly_increasing
from perfscope.model.trace import MISSING, Rows, Trace
from perfscope.model.trace.tables import HeldState, MemoryAction, MemoryCategory
from perfscope.model.units import format_bytes

_ALLOCATOR = (MemoryAction.ALLOCATE, MemoryAction.FREE, MemoryAction.HELD_BEFORE)
_DRIVER = (MemoryAction.RESERVE, MemoryAction.RELEASE)
_ENDS = (MemoryAction.FREE, MemoryAction.RELEASE)

_SNAPSHOT, _PROFILE, _EVENTS = "CUDA memory snapshot", "JAX device memory profile", "allocator events"
_KNOWN_FROM = {
    "kineto": "allocator events of torch.profiler",
    "run": "allocator events of torch.profiler",
    "xla_trace_json": "allocator events of XLA",
    "xplane": "allocator events of XLA",
    "nsys": "allocations from the driver (Nsight Systems)",
    "torch_memory": _SNAPSHOT,
}
"""Source of the blocks by format, for sources other than snapshots."""

_OF_XLA = ("xla_trace_json", "xplane")
"""Formats with XLA's device numbers."""

STACKS = "stacks of running programs"
"""Name of the blocks for memory that programs use outside of the allocator's total (XLA on TPUs)."""


class Memory(Struct, frozen=True):
    """One memory of a recording: the device with that number, or the host (``MISSING``)."""

    on_device: bool
    ordinal: int

    @property
    def label(self) -> str:
        """``cuda:0`` or ``host``."""
        if not self.on_device:
            return "host"
        return f"cuda:{self.ordinal}" if self.ordinal != MISSING else "device"


def event_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """Return timelines from allocator events, driver events and snapshots; devices by number, followed by the host.

    A memory that is missing in the trace itself may be in ``trace.detail``: `perfscope run` records memory in the pass
    with shapes and stacks. Such a timeline is marked (`MemoryTimeline.detail`), and the rows and texts of its blocks
    are of that trace. Categories are the recorded ones; `memory/categories.py` adds the others.
    """
    own = _timelines(trace)
    if trace.detail is None:
        return own
    known = {(timeline.space, timeline.ordinal, timeline.of_driver) for timeline in own}
    further = [
        replace(timeline, detail=True, known_from=f"{timeline.known_from}, in the detail pass")
        for timeline in _timelines(trace.detail)
        if (timeline.space, timeline.ordinal, timeline.of_driver) not in known
    ]
    return (*own, *further)


def memory_rows(trace: Trace, table: str, memory: Memory) -> Int64:
    """Return the rows of ``memory``, ``segments``, ``held`` or ``tensors`` of one memory, in order of the table."""
    ordinal = memory.ordinal if memory.on_device else MISSING
    return trace.fact(_rows_by_memory)[table].get((memory.on_device, ordinal), np.empty(0, np.int64))


def _rows_by_memory(trace: Trace) -> dict[str, dict[tuple[bool, int], Int64]]:
    """Return, per table, the rows of each memory (on a device, its number.

    ``MISSING`` for the host), in order of the table.
    """
    result = {}
    for table in ("memory", "segments", "held", "tensors"):
        rows = trace.rows[table]
        ordinals = np.where(rows["on_device"], rows["ordinal"], MISSING)
        order = np.lexsort((ordinals, rows["on_device"])).astype(np.int64)
        key = np.stack((rows["on_device"][order].astype(np.int64), ordinals[order]))
        firsts = np.flatnonzero(np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0))) if len(order) else order
        groups = np.split(order, firsts[1:])
        result[table] = {(bool(key[0, at]), int(key[1, at])): group for at, group in zip(firsts, groups, strict=False)}
    return result


def memory_of(timeline: MemoryTimeline) -> Memory:
    """Return the memory that a timeline of events or of a snapshot describes."""
    ordinal = MISSING if timeline.ordinal is None else timeline.ordinal
    return Memory(on_device=timeline.space == "device", ordinal=ordinal)


def _timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    timelines: list[MemoryTimeline] = []
    for memory in _memories(trace):
        events = memory_rows(trace, "memory", memory)
        action = trace.rows["memory"]["action"][events]
        allocator = bool(np.isin(action, _ALLOCATOR).any())
        if allocator:
            timelines.append(_from_events(trace, memory, events, _ALLOCATOR))
        elif len(memory_rows(trace, "held", memory)):
            timelines.append(_from_moment(trace, memory, events))
        elif np.isin(action, _DRIVER).any():
            timelines.append(_from_events(trace, memory, events, _DRIVER))
        elif memory.on_device and "memory_state" in trace.recorded:  # no block: a failed allocation, or segments only
            timelines.append(_from_moment(trace, memory, events))
    return tuple(timelines)


def _memories(trace: Trace) -> list[Memory]:
    known = set()
    for table in ("memory", "held", "segments"):
        rows = trace.rows[table]
        for on_device in np.unique(rows["on_device"]).tolist():
            ordinals = np.unique(rows["ordinal"][rows["on_device"] == on_device]).tolist() if on_device else [MISSING]
            known |= {Memory(on_device, ordinal) for ordinal in ordinals}
    return sorted(known, key=lambda memory: (not memory.on_device, memory.ordinal))


def _from_events(trace: Trace, memory: Memory, events: Int64, kinds: tuple[MemoryAction, ...]) -> MemoryTimeline:
    """Return the timeline of blocks (``_ALLOCATOR``), or of segments if only the driver was recorded (``_DRIVER``)."""
    rows = trace.rows["memory"]
    of_driver = kinds is _DRIVER
    positions = strictly_increasing(rows["time_ns"][events])
    first, last = _span(trace, positions)
    chosen = np.isin(rows["action"][events], kinds)
    picked, at_picked = events[chosen], positions[chosen]
    size = np.abs(rows["bytes"][picked])
    is_free, nameless = np.isin(rows["action"][picked], _ENDS), rows["address"][picked] == 0
    addresses = rows["address"][picked].copy()
    addresses[nameless] = _stand_in_addresses(size[nameless], is_free[nameless])
    pairs = pair_events(addresses, size, is_free)
    made = pairs.made
    columns = _paired_columns(rows, picked, at_picked, pairs, nameless, (first, last))
    notes = []
    if not rows["bytes"][events].any():
        notes.append(f"all {len(events):,} events of the history are of 0 bytes")
    if nameless.any():
        notes.append(
            f"{int(nameless.sum()):,} events have no address: their sum over time is exact, but owners and memory "
            "held before the recording are unknown"
        )
    if pairs.resized:
        notes.append(f"{pairs.resized} blocks were freed with a different size than allocated")
    columns, missed = _with_held(trace, memory, columns, first, last, of_driver=of_driver)
    if missed:
        notes.append(f"{missed} blocks of the snapshot are older than its history; earlier frees are unknown")
    timeline = _timeline(trace, memory, columns, axis="event" if trace.source.events_only else "ns", span=(first, last))
    mapped = np.zeros(len(made), bool) if memory.on_device else _mapped_blocks(rows, picked, pairs)
    unseen, total_notes = _unseen_bytes(rows, picked, timeline, at_picked, pairs, mapped)
    failed = positions[rows["action"][events] == MemoryAction.OUT_OF_MEMORY]
    return replace(
        _with_stacks(timeline, rows["stack_bytes"][events], positions),
        of_driver=of_driver,
        sums_only=bool(nameless.all()) and bool((rows["allocated_bytes"][picked] == MISSING).all()),
        unseen_bytes=unseen,
        reserved=None if of_driver or mapped.any() else _reserved(trace, memory, events, positions, first),
        out_of_memory=tuple(failed.tolist()),
        unmatched=pairs.unmatched,
        notes=(*notes, *total_notes),
    )


def _paired_columns(
    rows: Rows, picked: Int64, positions: Int64, pairs: Pairs, nameless: npt.NDArray[np.bool_], span: tuple[int, int]
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the blocks of ``pairs``.

    ``picked``, ``positions``, ``nameless``: of the paired events, (events,).
    """
    first, last = span
    action, size = rows["action"][picked], np.abs(rows["bytes"][picked])
    made = pairs.made
    source = np.where(made == MISSING, pairs.freed, made)  # the event with the block's size
    before = (made == MISSING) | (action[source] == MemoryAction.HELD_BEFORE)
    ended = np.where(pairs.freed == MISSING, pairs.replaced, pairs.freed)
    known_rows = picked[source]
    return {
        "start": np.where(before, first, positions[source]),
        "end": np.where(ended == MISSING, last + 1, positions[ended]),
        "before": before, "after": ended == MISSING, "bytes": size[source],
        "count": np.ones(len(source), np.int64),
        **{name: rows[name][known_rows] for name in ("address", "stream", "requested_bytes", "category")},
        # A free names the op that frees, not the one that made the block. Without addresses it is unknown which block
        # is freed, and so are the owners of the remaining blocks.
        **{
            name: np.where((made == MISSING) | nameless[source], MISSING, rows[name][known_rows])
            for name in ("op", "frame")
        },
    }  # fmt: skip


def _with_stacks(timeline: MemoryTimeline, stacks: Int64, positions: Int64) -> MemoryTimeline:
    """Add a block for each interval in which programs used a constant number of bytes.

    ``stacks`` after each event, (events,).
    """
    known = stacks != MISSING
    if not (stacks > 0).any():
        return timeline
    steps = _steps(positions[known], stacks[known], int(positions[known][0]))
    ends = np.concatenate((steps.positions[1:], [timeline.last + 1]))
    held = steps.bytes > 0
    every = np.zeros(int(held.sum()), np.int64)
    further = Rows(BLOCKS, {
        "start": steps.positions[held], "end": ends[held], "bytes": steps.bytes[held],
        "before": every, "after": ends[held] > timeline.last, "address": every,
        "category": every + MemoryCategory.TEMPORARY, "known_by": every + KnownBy.RECORDED,
        "name": every + len(timeline.texts),
    })  # fmt: skip
    blocks = {name: np.concatenate((timeline.blocks[name], further[name])) for name in further}
    order = np.argsort(blocks["start"], kind="stable")
    return replace(
        timeline,
        blocks=Rows(BLOCKS, blocks).take(order),
        texts=(*timeline.texts, STACKS),
    )


def _stand_in_addresses(size: Int64, is_free: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Return addresses that pair a free with the latest live allocation of its size. Shapes (events,).

    Any pairing of equal sizes gives the same sum over time. A free without a previous allocation ends a block that was
    held before the recording. The addresses are the highest possible ones, which no allocator hands out.
    """
    if not len(size):
        return np.empty(0, np.uint64)
    order = np.argsort(size, kind="stable")
    change = np.where(is_free[order], -1, 1)
    level = np.cumsum(change)
    firsts = np.flatnonzero(np.concatenate(([True], np.diff(size[order]) != 0)))
    lengths = np.diff(np.concatenate((firsts, [len(order)])))
    level -= np.repeat(level[firsts] - change[firsts], lengths)  # a separate count for each size
    level += is_free[order]  # an allocation and the free that ends it have the same level
    _, codes = np.unique(np.stack((size[order], level)), axis=1, return_inverse=True)
    addresses = np.empty(len(size), np.uint64)
    addresses[order] = np.iinfo(np.uint64).max - codes.reshape(-1).astype(np.uint64)
    return addresses


def _with_held(
    trace: Trace,
    memory: Memory,
    columns: dict[str, npt.NDArray[Any]],
    first: int,
    last: int,
    *,
    of_driver: bool,
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """Add the blocks that a snapshot holds but its history lacks; return their number too."""
    rows = trace.rows["held"]
    held_rows = memory_rows(trace, "held", memory)
    held_rows = held_rows[(rows["state"][held_rows] != HeldState.FREE) & (rows["address"][held_rows] != 0)]
    known = columns["address"][columns["after"].astype(bool)]
    held_rows = held_rows[~np.isin(rows["address"][held_rows], known)]
    if of_driver or not len(held_rows):
        return columns, 0
    further = _held_columns(rows, held_rows, first, last)
    return {name: np.concatenate((further[name], columns[name])) for name in columns}, len(held_rows)


def _held_columns(rows: Rows, held_rows: Int64, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
    size = len(held_rows)
    return {
        "start": np.full(size, first, np.int64),
        "end": np.full(size, last + 1, np.int64),
        "before": np.ones(size, bool),
        "after": np.ones(size, bool),
        **{
            name: rows[name][held_rows]
            for name in ("bytes", "requested_bytes", "address", "category", "frame", "count")
        },
        "stream": np.full(size, MISSING, np.int64),
        "op": np.full(size, MISSING, np.int32),
    }


def _from_moment(trace: Trace, memory: Memory, events: Int64) -> MemoryTimeline:
    """Return the timeline of a snapshot without history: one moment, at which all blocks are held."""
    rows = trace.rows["held"]
    held_rows = memory_rows(trace, "held", memory)
    held_rows = held_rows[rows["state"][held_rows] != HeldState.FREE]
    columns = _held_columns(rows, held_rows, 0, 0)
    within = rows["segment"][held_rows]
    if len(trace.rows["segments"]):
        columns["stream"] = np.where(within == MISSING, MISSING, trace.rows["segments"]["stream"][within])
    columns["name"] = rows["kind"][held_rows]
    timeline = _timeline(trace, memory, columns, axis="event", span=(0, 0))
    segments = trace.rows["segments"]["bytes"][memory_rows(trace, "segments", memory)]
    failed = (trace.rows["memory"]["action"][events] == MemoryAction.OUT_OF_MEMORY).any()
    return replace(
        timeline,
        reserved=Curve(positions=np.zeros(1, np.int64), bytes=segments.sum(keepdims=True)) if len(segments) else None,
        out_of_memory=(0,) if failed else (),
        notes=("a single moment, without a history of allocations",),
    )


def _timeline(
    trace: Trace,
    memory: Memory,
    columns: dict[str, npt.NDArray[Any]],
    *,
    axis: Axis,
    span: tuple[int, int],
) -> MemoryTimeline:
    order = np.argsort(columns["start"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    recorded = columns["category"] != int(MemoryCategory.UNKNOWN)
    columns["known_by"] = np.where(recorded, KnownBy.RECORDED, KnownBy.NOTHING)
    return MemoryTimeline(
        space="device" if memory.on_device else "host",
        label=memory.label.replace("cuda:", "device ") if trace.source.format in _OF_XLA else memory.label,
        ordinal=None if memory.ordinal == MISSING else memory.ordinal,
        known_from=_known_from(trace, memory, one_moment=span[0] == span[1]),
        axis=axis,
        basis="measured",
        first=span[0],
        last=span[1],
        blocks=Rows(BLOCKS, columns),
        texts=trace.strings,
        capacity_bytes=_capacity(trace, memory),
    )


def _known_from(trace: Trace, memory: Memory, *, one_moment: bool) -> str:
    if len(memory_rows(trace, "segments", memory)):
        return _SNAPSHOT
    if one_moment and len(memory_rows(trace, "held", memory)):
        return _PROFILE
    return _KNOWN_FROM.get(trace.source.format, _EVENTS)


def _span(trace: Trace, positions: Int64) -> tuple[int, int]:
    """Return the first and last position of the events, and of the steps if they use the same clock."""
    first, last = int(positions[0]), int(positions[-1])
    steps = trace.rows["steps"]
    if len(steps) and not trace.source.events_only:
        first, last = min(first, int(steps["start_ns"].min())), max(last, int(steps["end_ns"].max()))
    return first, last


def _reserved(trace: Trace, memory: Memory, events: Int64, at: Int64, first: int) -> Curve | None:
    """Return the memory reserved from the driver: as recorded, else from the segments that were added and removed."""
    rows = trace.rows["memory"]
    recorded = rows["reserved_bytes"][events]
    known = recorded != MISSING
    if known.any() and recorded[known].any():
        return _steps(at[known], recorded[known], first)
    segments = trace.rows["segments"]["bytes"][memory_rows(trace, "segments", memory)]
    if not len(segments):
        return None
    moved = np.isin(rows["action"][events], _DRIVER)
    change = rows["bytes"][events][moved]
    after = int(segments.sum()) - int(change.sum()) + np.cumsum(change)
    positions = np.concatenate(([first], at[moved]))
    return _steps(positions, np.concatenate(([int(segments.sum()) - int(change.sum())], after)), first)


def _steps(positions: Int64, values: Int64, first: int) -> Curve:
    """Return the curve from ``first`` on, with points only where it changes."""
    changed = np.ones(len(values), bool)
    changed[1:] = values[1:] != values[:-1]
    positions, values = positions[changed].copy(), values[changed]
    positions[0] = min(int(positions[0]), first)
    return Curve(positions=positions.astype(np.int64), bytes=values.astype(np.int64))


def _capacity(trace: Trace, memory: Memory) -> int | None:
    """Return the allocator's limit, if recorded (XLA takes a share of the device), else the device's memory."""
    devices = trace.rows["devices"]
    if not memory.on_device:
        return None
    limit = int(trace.rows["memory"]["limit_bytes"][memory_rows(trace, "memory", memory)].max(initial=MISSING))
    if limit > 0:
        return limit
    known = devices["memory_bytes"][(devices["ordinal"] == memory.ordinal) & (devices["memory_bytes"] > 0)]
    return int(known[0]) if len(known) else None


# An allocator's own totals compared with the blocks: memory outside of all blocks, and differences.
#
# On the host two allocators report to torch.profiler. The CPU allocator counts its allocations and reserves nothing.
# Tensors in shared memory (batches of a ``DataLoader``'s workers) and mapped files belong to another one, which counts
# nothing: its events have no bytes in use, and its block as *reserved* (``MapAllocator`` in
# ``aten/src/ATen/MapAllocator.cpp``). Such blocks are in use like others but missing in the totals, and their reserved
# size is not that of a reserve.


def _mapped_blocks(rows: Rows, picked: Int64, pairs: Pairs) -> npt.NDArray[np.bool_]:
    """Mask of the host's blocks that are mapped, (blocks,). ``picked``: the rows that were paired.

    A mapped block from before the recording is recognized by its free, which reports no bytes in use. A free of the
    CPU's allocator may report that too, but its allocation is recorded.
    """
    reserved, total = rows["reserved_bytes"][picked], rows["allocated_bytes"][picked]
    size = np.abs(rows["bytes"][picked])
    event_is_mapped = (reserved > 0) & (reserved == size) & (total == 0)
    if not event_is_mapped.any():
        return np.zeros(len(pairs.made), bool)
    made = pairs.made != MISSING
    mapped: npt.NDArray[np.bool_] = np.where(made, event_is_mapped[pairs.made], total[pairs.freed] == 0)
    return mapped


def _unseen_bytes(
    rows: Rows,
    picked: Int64,
    timeline: MemoryTimeline,
    positions: Int64,
    pairs: Pairs,
    mapped: npt.NDArray[np.bool_],
) -> tuple[int, list[str]]:
    """Return the bytes that the allocator counts at the first event outside of all blocks, and notes on differences.

    ``positions``: of ``picked``; ``mapped``: blocks of ``pairs`` that the totals exclude.
    """
    totals = rows["allocated_bytes"][picked]
    counted = (totals != MISSING) & (rows["action"][picked] != MemoryAction.HELD_BEFORE)
    mapped_bytes = _mapped_bytes(np.abs(rows["bytes"][picked]), pairs, mapped, counted)
    recorded = np.flatnonzero(counted)
    if not len(recorded):
        return 0, []
    ours = timeline.live().at(positions[recorded]) - mapped_bytes[recorded]
    unseen = int(totals[recorded[0]] - ours[0])
    notes = []
    if unseen < 0:
        notes.append(
            f"the allocator's own total excludes {format_bytes(-unseen)} that the program held before the recording"
        )
    differs = totals[recorded] - ours - unseen
    wrong = int((differs != 0).sum())
    if wrong:
        notes.append(
            f"at {wrong} of {len(recorded)} events the allocator's own total differs from its events, by up to "
            f"{format_bytes(int(np.abs(differs).max()))}"
        )
    return max(unseen, 0), notes


def _mapped_bytes(size: Int64, pairs: Pairs, mapped: npt.NDArray[np.bool_], counted: npt.NDArray[np.bool_]) -> Int64:
    """Return the bytes of mapped blocks in use after each event, (events,); remove their events from ``counted``."""
    change = np.zeros(len(size), np.int64)
    made, freed = pairs.made[mapped], pairs.freed[mapped]
    ended = np.where(freed == MISSING, pairs.replaced[mapped], freed)
    sizes = size[np.where(made == MISSING, freed, made)]
    seen, over = made != MISSING, ended != MISSING
    np.add.at(change, made[seen], sizes[seen])
    np.subtract.at(change, ended[over], sizes[over])
    counted[made[seen]] = False
    counted[freed[freed != MISSING]] = False
    in_use: Int64 = np.cumsum(change) + int(sizes[~seen].sum())
    return in_use
