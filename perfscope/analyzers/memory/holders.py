"""The peak of each memory: its time, and its holders by category, module, line and op. Every sum is exact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.memory.categories import memory_phases, memory_timelines
from perfscope.analyzers.memory.phases import allocating_op
from perfscope.model.finding import AbstainError, Finding, Scope, Where
from perfscope.model.live_bytes import Int64
from perfscope.model.memory import MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.severity import HIGH_SHARE, Severity
from perfscope.model.trace import MISSING, RECORDED, Trace
from perfscope.model.trace.tables import MemoryCategory

_NUMBER = re.compile(r"(?<![^._/\[])\d+(?![^._/\]])")
"""A number in a module's name: ``blocks.3.mlp``, ``Linear_7``, ``layers[2]``."""


class Holder(Struct, frozen=True, kw_only=True):
    """Memory of one owner at the peak. ``name`` is None for blocks with unknown owner."""

    name: str | None
    """null: the owner is not known."""
    bytes: int
    blocks: int
    """Number of blocks; 0 if only the sum is known."""
    members: int = 1
    """Number of modules that ``name`` covers: ``blocks.*.mlp`` of 12 layers is 12."""
    line: SourceLine | None = None


class PeakHolders(Struct, frozen=True, kw_only=True):
    """The peak of one timeline. Each grouping sums to ``bytes``, with ``unseen_bytes`` as a separate holder."""

    timeline: MemoryTimeline
    position: int
    bytes: int
    unseen_bytes: int
    phase: MemoryPhase
    """Phase of training at the peak."""
    step: int | None
    op: str | None
    """Op that allocated the block that made the peak; None if it was not recorded."""
    line: SourceLine | None
    by_category: tuple[Holder, ...]
    """``name``: the category in small letters; None for blocks with unknown category. Largest first, as in all
    groupings.
    """
    by_module: tuple[Holder, ...]
    """Numbered layers share a row: ``blocks.*.mlp``, with their number in ``members``."""
    by_line: tuple[Holder, ...]
    by_op: tuple[Holder, ...]


_Owner = str | SourceLine | None

UNSEEN = "held before the recording began"
"""Name of the holder of ``unseen_bytes``."""


def memory_holders(trace: Trace) -> tuple[PeakHolders, ...]:
    """Return the peak of each of the trace's memories, in the order of `memory_timelines`."""
    return tuple(peak_holders(trace, timeline) for timeline in trace.fact(memory_timelines))


def peak_holders(trace: Trace, timeline: MemoryTimeline) -> PeakHolders:
    """Return the holders of the peak of ``timeline``, which was derived from ``trace``."""
    position, total = timeline.peak()
    return holders_at(trace, timeline, position, total)


def holders_at(trace: Trace, timeline: MemoryTimeline, position: int, total: int) -> PeakHolders:
    """Return the holders of the ``total`` bytes in use at ``position``."""
    rows = timeline.alive_at(position)
    blocks, recorded = timeline.blocks, timeline.of(trace)
    size, counts = blocks["bytes"][rows], blocks["count"][rows]
    modules = [timeline.text(int(code)) or None for code in blocks["module"][rows]]

    def by(
        owners: Sequence[str | SourceLine | None], members: Sequence[str | None] | None = None
    ) -> tuple[Holder, ...]:
        return _holders(owners, size, counts, timeline.unseen_bytes, members)

    making = np.flatnonzero((blocks["start"] == position) & ~blocks["before"])
    made = int(making[-1]) if len(making) else MISSING
    step = int(blocks["step"][made]) if made != MISSING else MISSING
    return PeakHolders(
        timeline=timeline,
        position=position,
        bytes=total,
        unseen_bytes=timeline.unseen_bytes,
        phase=_phase_at(trace, timeline, position, made),
        step=None if step == MISSING else step,
        op=None if made == MISSING else allocating_op(recorded, int(blocks["op"][made])),
        line=None if made == MISSING else line_of(timeline, made),
        by_category=by(
            [
                (None if int(code) == MemoryCategory.UNKNOWN else MemoryCategory(int(code)).name.lower())
                for code in blocks["category"][rows]
            ]
        ),
        by_module=by([None if name is None else _NUMBER.sub("*", name) for name in modules], modules),
        by_line=by([line_of(timeline, row) for row in rows.tolist()]),
        by_op=by([allocating_op(recorded, int(row)) for row in blocks["op"][rows]]),
    )


def line_of(timeline: MemoryTimeline, row: int) -> SourceLine | None:
    """Return the user's line that allocated a block (a row of ``timeline.blocks``)."""
    index = int(timeline.blocks["line"][row])
    return None if index == MISSING else timeline.lines[index]


def _phase_at(trace: Trace, timeline: MemoryTimeline, position: int, made: int) -> MemoryPhase:
    if made != MISSING and timeline.blocks["phase"][made]:
        return MemoryPhase(int(timeline.blocks["phase"][made]))
    if timeline.space == "program":
        return MemoryPhase.UNKNOWN
    phases = memory_phases(trace, timeline).phase_at(np.array([position], np.int64))
    return MemoryPhase(int(phases[0]))


def _holders(
    owners: Sequence[_Owner],
    size: Int64,
    counts: Int64,
    unseen: int,
    members: Sequence[str | None] | None = None,
) -> tuple[Holder, ...]:
    """Return one holder per owner, including ``unseen``, largest first.

    ``members``: module of each block before numbering.
    """
    sums_of: dict[_Owner, list[int]] = {}
    within: dict[_Owner, set[str | None]] = {}
    for index, (owner, bytes_, many) in enumerate(zip(owners, size.tolist(), counts.tolist(), strict=True)):
        sums = sums_of.setdefault(owner, [0, 0])
        sums[0] += bytes_
        sums[1] += many
        if members is not None:
            within.setdefault(owner, set()).add(members[index])
    holders = [
        Holder(
            name=_line_name(owner) if isinstance(owner, SourceLine) else owner,
            bytes=bytes_,
            blocks=blocks,
            members=len(within.get(owner, "1")),
            line=owner if isinstance(owner, SourceLine) else None,
        )
        for owner, (bytes_, blocks) in sums_of.items()
    ]
    if unseen:
        holders.append(Holder(name=UNSEEN, bytes=unseen, blocks=0))
    return tuple(sorted(holders, key=lambda holder: -holder.bytes))


def _line_name(line: SourceLine) -> str:
    return line.file if line.line is None else f"{line.file}:{line.line}"


# Memories that rules on memory evaluate, severity of their findings, and reasons if nothing was recorded.


NO_MEMORY = f"not recorded: {RECORDED['memory']}"
"""Reason for abstaining. The detail pass of a run may have what the timing pass lacks, so rules do not ``NEED`` it of
the trace itself.
"""

HOST_ONLY = "the program computes in the host's memory, whose free space is not analyzed"
"""Reason for abstaining from the headroom of a device if the program uses none."""

OF_XLA = "allocator events of XLA"
"""Prefix of `MemoryTimeline.known_from` for XLA's allocator."""

SCARCE_SHARE = 0.9
"""Share of the device at the peak of the allocator's memory from which memory is scarce: memory outside of the
allocator (the CUDA context, communicators, other processes) takes some of the rest, and a longer batch the remainder.
It is also vLLM's default for the largest safe share (``gpu_memory_utilization``).
"""

FITS_ANYWHERE_BYTES = 1 << 30
"""Largest peak on the host that is not reported: the smallest machines for training have 8 GiB."""


def judged_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """Return the memories of devices according to their allocators; the host's only if the program computes there.

    `AbstainError` without any. Needs of compiled programs are modelled and evaluated by separate rules.
    """
    known = [timeline for timeline in trace.fact(memory_timelines) if not timeline.of_driver]
    devices = tuple(timeline for timeline in known if timeline.space == "device")
    if devices:
        return devices
    hosts = tuple(timeline for timeline in known if timeline.space == "host") if not len(trace.rows["kernels"]) else ()
    if not hosts:
        raise AbstainError(NO_MEMORY, ("memory",))
    return hosts


def worst_of_devices(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for devices of a process that have the same one: the device with the largest saving."""
    alike: dict[tuple[str, Where], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.subject, finding.where), []).append(finding)
    worst = []
    for members in alike.values():
        chosen = max(members, key=lambda finding: finding.cost_bytes or 0)
        others = len(members) - 1
        if others:
            also = f"The same holds for {others} more device{'' if others == 1 else 's'}."
            chosen = replace(chosen, detail=f"{chosen.detail} {also}".strip())
        worst.append(chosen)
    return worst


def is_scarce(timeline: MemoryTimeline) -> bool:
    """Whether the device is nearly full at the peak, or an allocation failed."""
    if timeline.out_of_memory:
        return True
    capacity = timeline.capacity_bytes
    return capacity is not None and peak_held(timeline) >= SCARCE_SHARE * capacity


def peak_held(timeline: MemoryTimeline) -> int:
    """Return the peak of the bytes taken from the device: reserved bytes if known, else bytes in use."""
    _, live = timeline.peak()
    return live if timeline.reserved is None else max(live, int(timeline.reserved.bytes.max(initial=0)))


def severity_of_bytes(saved: int, whole: int, timeline: MemoryTimeline) -> Severity:
    """Return the severity: high if memory is scarce and the saving noticeable, never if the device's size is unknown.

    Low on a host whose tensors fit into any machine.
    """
    if timeline.space == "host" and whole < FITS_ANYWHERE_BYTES and not timeline.out_of_memory:
        return "low"
    felt = saved >= HIGH_SHARE * whole
    if felt and is_scarce(timeline):
        return "high"
    return "medium" if felt else "low"


def short_line(line: SourceLine | None) -> str | None:
    """Return ``memory_defects.py:18``, with its folder: short enough for a title. `Where` has the file as recorded."""
    if line is None:
        return None
    file = "/".join(line.file.replace("\\", "/").split("/")[-2:])
    return file if line.line is None else f"{file}:{line.line}"


def where_of(line: SourceLine | None, *, op: str | None = None, module: str | None = None) -> Where:
    """Return the place of a finding about memory allocated at ``line``."""
    if line is None:
        return Where(op=op, module=module)
    return Where(file=line.file, line=line.line, op=op, module=module)


def memory_records(trace: Trace) -> Scope:
    """Count the allocations with a block or a counter of the allocator."""
    timelines = trace.fact(memory_timelines)
    known = "" if timelines and all(timeline.sums_only for timeline in timelines) else " with an address"
    return Scope(sum(len(timeline.blocks) for timeline in timelines), f"allocations{known} in the recording")
