"""Purpose of each block and the evidence for it.

With the module, the user's line, the phase and step of its allocation.

The most certain source is used first; a block without any source stays unknown:

1. the category in the recording itself;

2. its address is one of the program's own tensors (``tensors``: parameters, gradients, optimizer state);

3. the op or the stack that allocated it: collectives, scratch of a library, data loaders, the optimizer's first step;

4. the phases of its allocation and free: made in the forward pass and live when the next backward pass begins is an
activation; made in the backward pass and live when the optimizer begins, a gradient; made by the optimizer and live
when it begins again, or never freed, its state; freed before the next phase, a temporary;

5. the cache of keys and values: what attention joins with the cache of the previous step, or writes into it, and keeps.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from perfscope.analyzers.memory.blocks import Memory, event_timelines, memory_of, memory_rows
from perfscope.analyzers.memory.phases import NO_PHASES, Phases, event_phases, following, op_categories, span_phases
from perfscope.analyzers.memory.sites import Numbered, block_sites, stack_categories, stack_phases
from perfscope.analyzers.ops import movements, recompute_regions
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.analyzers.time import step_windows, steps_at
from perfscope.model.live_bytes import NEVER, Int64
from perfscope.model.memory import (
    ALLOCATION_ROUNDING,
    BLOCKS,
    KnownBy,
    MemoryPhase,
    MemoryTimeline,
    strictly_increasing,
)
from perfscope.model.trace import MISSING, Rows, Trace
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_bytes

_KEPT = (MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE)
"""Categories that a stack indicates but that only lasting blocks have, because initialisation has temporaries too."""

_OUTLIVES = {
    MemoryPhase.FORWARD: (MemoryPhase.BACKWARD, MemoryCategory.ACTIVATION),
    MemoryPhase.BACKWARD: (MemoryPhase.OPTIMIZER, MemoryCategory.GRADIENT),
    MemoryPhase.OPTIMIZER: (MemoryPhase.OPTIMIZER, MemoryCategory.OPTIMIZER_STATE),
}
"""Phase of allocation -> phase in which the block must still be live, and its category then."""

Codes = npt.NDArray[np.uint8]
Columns = dict[str, npt.NDArray[Any]]

SAME_CACHE = 0.9
"""Ratio of the bytes of a cache to those of the next one: it grows by one token, of at least ten."""


def memory_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """Return all memories of a trace over time: allocations, and the needs of compiled programs.

    Devices by number, the host, compiled programs; memories that were not recorded have no timeline.
    """
    recorded = tuple(categorized(trace, timeline) for timeline in trace.fact(event_timelines))
    if not trace.hlo:
        return recorded
    from perfscope.analyzers.programs import program_timelines

    return (*recorded, *trace.fact(program_timelines))


def categorized(trace: Trace, timeline: MemoryTimeline) -> MemoryTimeline:
    """Return the timeline of events or of a snapshot with owners; ``trace`` is the one it was derived from.

    Tensors of the program without an event are added as blocks held before and after.
    """
    if timeline.of_driver or timeline.sums_only:
        return timeline
    recorded = timeline.of(trace)
    timeline = _with_tensors(trace, timeline)
    blocks = {name: timeline.blocks[name].copy() for name in timeline.blocks}
    phases = memory_phases(trace, timeline)
    made = ~blocks["before"]
    blocks["phase"] = np.where(made, phases.phase_at(blocks["start"]), np.uint8(MemoryPhase.UNKNOWN))
    again, again_until = _made_again(recorded, blocks, phases)
    blocks["phase"][again & made] = MemoryPhase.RECOMPUTE
    blocks["step"] = _steps(recorded, phases, timeline, blocks)

    _set(blocks, op_categories(recorded, blocks), KnownBy.OP)
    _set(blocks, _from_stacks(recorded, blocks, phases), KnownBy.STACK)
    _set(blocks, _from_phases(blocks, phases, again_until), KnownBy.PHASE)

    _set(blocks, _kv_cache(with_graph(trace, recorded), blocks), KnownBy.OP)

    texts = Numbered(timeline.texts)
    sites = block_sites(recorded, blocks["op"], blocks["frame"], texts, graph=with_graph(trace, recorded))
    known = (blocks["module"] == MISSING) & (sites.modules != MISSING)
    blocks["module"][known] = sites.modules[known]
    blocks["line"] = sites.lines
    return replace(timeline, blocks=Rows(BLOCKS, blocks), texts=texts.values, lines=sites.places)


def memory_phases(trace: Trace, timeline: MemoryTimeline) -> Phases:
    """Return the phases of training on the axis of a timeline of events; empty if unknown."""
    recorded = timeline.of(trace)
    spans = recorded.fact(span_phases) if timeline.axis == "ns" else NO_PHASES
    events = memory_rows(recorded, "memory", memory_of(timeline))
    if not len(events) or not len(recorded.rows["frames"]):
        return spans
    positions = strictly_increasing(recorded.rows["memory"]["time_ns"][events])
    return event_phases(recorded, events, positions, spans=spans)


def _set(blocks: Columns, categories: Codes, how: KnownBy) -> None:
    """Set the category of blocks without one."""
    new = (blocks["category"] == MemoryCategory.UNKNOWN) & (categories != MemoryCategory.UNKNOWN)
    blocks["category"][new] = categories[new]
    blocks["known_by"][new] = how


def _from_phases(blocks: Columns, phases: Phases, again_until: Int64) -> Codes:
    """Return categories by the phase of allocation and the phases in which the block is still live (see the module)."""
    categories = np.zeros(len(blocks["start"]), np.uint8)
    if not len(phases.starts):
        return categories
    start, phase = blocks["start"], blocks["phase"]
    end = np.where(blocks["after"], NEVER, blocks["end"])
    made = ~blocks["before"]
    segment = phases.segment_at(start)
    until = np.where(segment == MISSING, following(phases.starts, start), phases.ends[segment])
    gone = made & ~blocks["after"] & (end <= until)
    comes = {
        later_phase: phases.next_start(start, later_phase)
        for later_phase in (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER)
    }
    for memory_phase, (later, category) in _OUTLIVES.items():
        chosen = made & (phase == memory_phase)
        categories[chosen & (gone | ((comes[later] != NEVER) & (end <= comes[later])))] = MemoryCategory.TEMPORARY
        categories[chosen & ~gone & (comes[later] != NEVER) & (end > comes[later])] = category
    # the last step of the recording: blocks that the optimizer left when it finished
    over = (segment != MISSING) & (phases.whole[segment] | (segment < len(phases.starts) - 1))
    categories[made & (phase == MemoryPhase.OPTIMIZER) & (end == NEVER) & over] = MemoryCategory.OPTIMIZER_STATE
    # an optimizer that makes its state again each step frees the old one; gradients are freed in zero_grad, outside of
    # it
    replaced = ~made & ~blocks["after"] & (phases.phase_at(blocks["end"] - 1) == MemoryPhase.OPTIMIZER)
    categories[replaced] = MemoryCategory.OPTIMIZER_STATE
    again = made & (phase == MemoryPhase.RECOMPUTE)
    categories[again] = np.where(end > again_until, MemoryCategory.ACTIVATION, MemoryCategory.TEMPORARY)[again]
    categories[gone & (phase == MemoryPhase.UNKNOWN)] = MemoryCategory.TEMPORARY
    # the model is not a module: blocks freed in the backward pass were saved for it
    saved = made & (phase == MemoryPhase.UNKNOWN) & (comes[MemoryPhase.BACKWARD] == until)
    let_go = phases.segment_at(np.where(blocks["after"], NEVER, blocks["end"]) - 1)
    categories[saved & (let_go != MISSING) & (let_go == phases.segment_at(until))] = MemoryCategory.ACTIVATION
    categories[made & _is_input(start, end, phase, phases)] = MemoryCategory.INPUT
    return categories


def _kv_cache(trace: Trace, blocks: Columns) -> Codes:
    """Return the results of joins with a cache, and freed blocks of that size that existed before: earlier caches."""
    categories = np.zeros(len(blocks["start"]), np.uint8)
    joins = [item.rows for item in trace.fact(movements) if item.kind == "cache_join"] if len(blocks["op"]) else []
    if not joins:
        return categories
    rows = np.zeros(len(trace.rows["slices"]), bool)
    rows[np.concatenate(joins)] = True
    made = nearest_ancestor(trace, blocks["op"].astype(np.int64), rows) != MISSING
    sizes = np.unique(blocks["bytes"][made])
    if not len(sizes):
        return categories
    larger = sizes[np.minimum(np.searchsorted(sizes, blocks["bytes"]), len(sizes) - 1)]
    earlier = blocks["before"] & (blocks["bytes"] <= larger) & (blocks["bytes"] >= SAME_CACHE * larger)
    categories[made | (earlier & ~blocks["after"])] = MemoryCategory.KV_CACHE
    return categories


def _is_input(start: Int64, end: Int64, phase: Codes, phases: Phases) -> npt.NDArray[np.bool_]:
    """Whether blocks were made in a step before its first module call, are live at it, and end by the next step."""
    call = following(phases.modules, start)
    ahead = np.isin(phase, (MemoryPhase.UNKNOWN, MemoryPhase.FORWARD)) & ~phases.behind_module(start)
    for later_phase in (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER):
        ahead &= phases.next_start(start, later_phase) > call
    kept = phases.next_start(phases.next_start(call, MemoryPhase.FORWARD), MemoryPhase.FORWARD)
    return np.asarray(ahead & (call != NEVER) & (end > call) & ((kept == NEVER) | (end <= kept)))


def _from_stacks(trace: Trace, blocks: Columns, phases: Phases) -> Codes:
    """Return categories by the stack alone; categories of lasting blocks only for these."""
    frames = blocks["frame"]
    categories = np.zeros(len(frames), np.uint8)
    known = frames != MISSING
    if not known.any():
        return categories
    categories[known] = trace.fact(stack_categories)[frames[known]]
    forward = phases.next_start(blocks["start"], MemoryPhase.FORWARD)
    stays = blocks["after"] | (blocks["end"] > forward)
    categories[np.isin(categories, _KEPT) & ~stays] = MemoryCategory.UNKNOWN
    return categories


def _made_again(trace: Trace, blocks: Columns, phases: Phases) -> tuple[npt.NDArray[np.bool_], Int64]:
    """Return which blocks were made by forward work repeated in the backward pass, and when that work ended."""
    ops, frames = blocks["op"].astype(np.int64), blocks["frame"]
    until = np.full(len(ops), NEVER, np.int64)
    slices = trace.rows["slices"]
    regions = trace.fact(recompute_regions) if len(slices) else ()
    if regions:
        ends = np.zeros(len(slices), np.int64)
        for region in regions:
            ends[list(region.ops)] = int(slices["end_ns"][list(region.ops)].max())
        op = nearest_ancestor(trace, ops, ends > 0)
        again = op != MISSING
        until[again] = ends[op[again]]
        return again, until
    again = np.zeros(len(ops), bool)
    known = frames != MISSING
    again[known] = trace.fact(stack_phases)[frames[known]] == MemoryPhase.RECOMPUTE
    until[again] = following(phases.again_ends, blocks["start"][again])
    return again, until


def _steps(trace: Trace, phases: Phases, timeline: MemoryTimeline, blocks: Columns) -> Int64:
    """Return the number of the step of each block's allocation: recorded, else by the previous optimizer steps."""
    start, made = blocks["start"], ~blocks["before"]
    windows = trace.fact(step_windows)
    if timeline.axis == "ns" and windows.count:
        index = steps_at(trace, start)
        numbers = windows.numbers[np.argsort(windows.starts, kind="stable")]
        return np.where(made & (index != MISSING), numbers[index], MISSING)
    done = phases.ends[phases.phase == MemoryPhase.OPTIMIZER]
    if not len(done):
        return np.full(len(start), MISSING, np.int64)
    return np.where(made, np.searchsorted(done, start, side="right"), MISSING)


def _with_tensors(trace: Trace, timeline: MemoryTimeline) -> MemoryTimeline:
    """Add the names of the program's tensors; tensors without an event become blocks held before and after."""
    recorded = timeline.of(trace)
    source, rows = _tensor_rows(trace, recorded, memory_of(timeline))
    if not len(rows):
        return timeline
    tensors = source.rows["tensors"]
    rows = _once(tensors, rows)
    addresses = tensors["address"][rows]
    blocks = {name: timeline.blocks[name].copy() for name in timeline.blocks}
    pool = Numbered(timeline.texts)
    texts = {
        name: np.array([pool.number(source.text(int(code))) for code in tensors[name][rows]], np.int32)
        for name in ("name", "module")
    }
    category = tensors["category"][rows]

    order = np.argsort(addresses)
    index = np.minimum(np.searchsorted(addresses[order], blocks["address"]), len(rows) - 1)
    same = blocks["before"] & (addresses[order][index] == blocks["address"]) & (blocks["address"] != 0)
    tensor = order[index[same]]
    for name, values in texts.items():
        blocks[name][same] = values[tensor]
    unknown = np.flatnonzero(same)[blocks["category"][same] == MemoryCategory.UNKNOWN]
    blocks["category"][unknown] = category[order[index[unknown]]]
    blocks["known_by"][unknown] = KnownBy.ADDRESS

    freed = tensors["freed_ns"][rows]
    freed = np.where((freed == MISSING) | (timeline.axis != "ns") | (freed > timeline.last), timeline.last + 1, freed)
    # a tensor with an event is a block already, and a tensor from before the recording is not one
    new = np.flatnonzero(~np.isin(addresses, blocks["address"][blocks["before"]]) & (freed > timeline.first))
    size = tensors["bytes"][rows[new]]
    if timeline.space == "device":
        size = -(-size // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING
    further: Columns = {
        "start": np.full(len(new), timeline.first, np.int64),
        "end": freed[new],
        "before": np.ones(len(new), bool),
        "after": freed[new] > timeline.last,
        "bytes": size,
        "requested_bytes": tensors["bytes"][rows[new]],
        "count": tensors["count"][rows[new]],
        "address": addresses[new],
        "category": category[new],
        "known_by": np.full(len(new), KnownBy.ADDRESS, np.uint8),
    }
    filled = Rows(BLOCKS, further | {name: values[new] for name, values in texts.items()})
    tensor_bytes = int(size.sum())
    notes = list(timeline.notes)
    beyond = tensor_bytes - timeline.unseen_bytes
    if beyond > 0:
        notes.append(f"the allocator's total excludes {format_bytes(beyond)} of the program's tensors")
    return replace(
        timeline,
        blocks=Rows(BLOCKS, {name: np.concatenate((filled[name], blocks[name])) for name in blocks}),
        texts=pool.values,
        unseen_bytes=max(0, timeline.unseen_bytes - tensor_bytes),
        notes=tuple(notes),
    )


def _once(tensors: Rows, rows: Int64) -> Int64:
    """Return one row per storage: tied weights share one.

    Address 0 is a sum of several storages, distinct in each row.
    """
    named = rows[tensors["address"][rows] != 0]
    _, first = np.unique(tensors["address"][named], return_index=True)
    return np.concatenate((named[np.sort(first)], rows[tensors["address"][rows] == 0]))


def _tensor_rows(trace: Trace, recorded: Trace, memory: Memory) -> tuple[Trace, Int64]:
    for source in (recorded, trace):
        rows = memory_rows(source, "tensors", memory)
        if len(rows):
            return source, rows
    return recorded, np.empty(0, np.int64)


def with_graph(trace: Trace, recorded: Trace) -> Trace:
    """Return the recording of the blocks (`MemoryTimeline.of`) with the run's op graph."""
    return trace if recorded is trace else trace.fact(_detail_with_graph)


def _detail_with_graph(trace: Trace) -> Trace:
    assert trace.detail is not None
    return msgspec.structs.replace(trace.detail, op_graph=trace.op_graph)
