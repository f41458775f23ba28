"""What each block is for, and how that is known; with the module, the user's line, the phase and step it was made in.

The surest source first; a block that none of them knows stays unknown:

1. what the recording itself says;
2. its address is one of the program's own tensors (``tensors``: parameters, gradients, optimizer state);
3. the op or the stack that asked for it: collectives, scratch of a library, data loaders, the optimizer's first step;
4. the phases it was made and let go in: made in the forward pass and alive when the next backward pass begins is an
   activation; made in the backward pass and alive when the optimizer begins, a gradient; made by the optimizer and
   alive when it begins again, or never freed, its state; gone before the next phase, a temporary;
5. what attention joins with the cache of the step before, or writes into it, and keeps: the cache of keys and values.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from perfscope.analyzers.memory.blocks import Memory, event_timelines, memory_of, memory_rows
from perfscope.analyzers.memory.phases import NO_PHASES, Phases, event_phases, following, op_categories, span_phases
from perfscope.analyzers.memory.sites import Numbered, block_sites, stack_categories, stack_phases
from perfscope.analyzers.ops import movements
from perfscope.analyzers.ops.recompute import recompute_regions
from perfscope.analyzers.time import nearest_ancestor, step_windows, steps_at
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
"""Categories that a stack names and only a block that stays can have: an initialisation has temporaries too."""

_OUTLIVES = {
    MemoryPhase.FORWARD: (MemoryPhase.BACKWARD, MemoryCategory.ACTIVATION),
    MemoryPhase.BACKWARD: (MemoryPhase.OPTIMIZER, MemoryCategory.GRADIENT),
    MemoryPhase.OPTIMIZER: (MemoryPhase.OPTIMIZER, MemoryCategory.OPTIMIZER_STATE),
}
"""Phase a block was made in -> the next phase it must be alive for, and what it is then."""

Codes = npt.NDArray[np.uint8]
Columns = dict[str, npt.NDArray[Any]]


def memory_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """All memories of a trace over time: what allocators did, and what compiled programs need.

    Devices by number, the host, compiled programs; no timeline for what nobody recorded.
    """
    recorded = tuple(categorized(trace, timeline) for timeline in trace.fact(event_timelines))
    if not trace.hlo:
        return recorded
    from perfscope.analyzers.programs.blocks import program_timelines

    return (*recorded, *trace.fact(program_timelines))


def categorized(trace: Trace, timeline: MemoryTimeline) -> MemoryTimeline:
    """The timeline of events or of a snapshot with owners; ``trace`` is the one it was derived from.

    Adds the program's tensors that no event tells of as blocks held before and after.
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
    """The phases of training on the axis of a timeline of events; none where nothing tells."""
    recorded = timeline.of(trace)
    spans = recorded.fact(span_phases) if timeline.axis == "ns" else NO_PHASES
    events = memory_rows(recorded, "memory", memory_of(timeline))
    if not len(events) or not len(recorded.rows["frames"]):
        return spans
    positions = strictly_increasing(recorded.rows["memory"]["time_ns"][events])
    return event_phases(recorded, events, positions, spans=spans)


def _set(blocks: Columns, categories: Codes, how: KnownBy) -> None:
    """Fill in the category of blocks that have none yet."""
    new = (blocks["category"] == MemoryCategory.UNKNOWN) & (categories != MemoryCategory.UNKNOWN)
    blocks["category"][new] = categories[new]
    blocks["known_by"][new] = how


def _from_phases(blocks: Columns, phases: Phases, again_until: Int64) -> Codes:
    """See the module: by the phase a block was made in, and what it is still alive for."""
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
    # the last step of the recording: what the optimizer left behind when it was done
    over = (segment != MISSING) & (phases.whole[segment] | (segment < len(phases.starts) - 1))
    categories[made & (phase == MemoryPhase.OPTIMIZER) & (end == NEVER) & over] = MemoryCategory.OPTIMIZER_STATE
    # an optimizer that makes its state again each step lets the old one go; gradients go in zero_grad, outside of it
    replaced = ~made & ~blocks["after"] & (phases.phase_at(blocks["end"] - 1) == MemoryPhase.OPTIMIZER)
    categories[replaced] = MemoryCategory.OPTIMIZER_STATE
    again = made & (phase == MemoryPhase.RECOMPUTE)
    categories[again] = np.where(end > again_until, MemoryCategory.ACTIVATION, MemoryCategory.TEMPORARY)[again]
    categories[gone & (phase == MemoryPhase.UNKNOWN)] = MemoryCategory.TEMPORARY
    # the model is no module: what the backward pass lets go was saved for it
    saved = made & (phase == MemoryPhase.UNKNOWN) & (comes[MemoryPhase.BACKWARD] == until)
    let_go = phases.segment_at(np.where(blocks["after"], NEVER, blocks["end"]) - 1)
    categories[saved & (let_go != MISSING) & (let_go == phases.segment_at(until))] = MemoryCategory.ACTIVATION
    categories[made & _is_input(start, end, phase, phases)] = MemoryCategory.INPUT
    return categories


SAME_CACHE = 0.9
"""Bytes of a cache over those of the next one: it grows by one token, of at least ten."""


def _kv_cache(trace: Trace, blocks: Columns) -> Codes:
    """What joins of a cache made, and blocks of that size that were there before and are let go: earlier caches."""
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
    """Made in a step before its first module is called, there when it is, and not kept beyond the next step."""
    call = following(phases.modules, start)
    ahead = np.isin(phase, (MemoryPhase.UNKNOWN, MemoryPhase.FORWARD)) & ~phases.behind_module(start)
    for later_phase in (MemoryPhase.BACKWARD, MemoryPhase.OPTIMIZER):
        ahead &= phases.next_start(start, later_phase) > call
    kept = phases.next_start(phases.next_start(call, MemoryPhase.FORWARD), MemoryPhase.FORWARD)
    return np.asarray(ahead & (call != NEVER) & (end > call) & ((kept == NEVER) | (end <= kept)))


def _from_stacks(trace: Trace, blocks: Columns, phases: Phases) -> Codes:
    """By the stack alone; what only blocks that stay can be, only for those."""
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
    """Which blocks forward work made that runs again in the backward pass, and when that work was done."""
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
    """Number of the step each block was made in: as recorded, else by the optimizer steps before it."""
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
    """With the names of the program's tensors; those that no event tells of are blocks held before and after."""
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
    # what another event tells of is a block already, and what went before the recording is none
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
        notes.append(f"the allocator's total leaves out {format_bytes(beyond)} of the program's tensors")
    return replace(
        timeline,
        blocks=Rows(BLOCKS, {name: np.concatenate((filled[name], blocks[name])) for name in blocks}),
        texts=pool.values,
        unseen_bytes=max(0, timeline.unseen_bytes - tensor_bytes),
        notes=tuple(notes),
    )


def _once(tensors: Rows, rows: Int64) -> Int64:
    """One row per storage: tied weights share theirs. Address 0 is that of many together, each row others."""
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
    """The recording that blocks are of (`MemoryTimeline.of`) with the run's op graph beside it."""
    return trace if recorded is trace else trace.fact(_detail_with_graph)


def _detail_with_graph(trace: Trace) -> Trace:
    assert trace.detail is not None
    return dataclasses.replace(trace.detail, op_graph=trace.op_graph)
