"""Memories: peak, owners, and use over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.analyzers.memory import UNSEEN
from perfscope.dashboards.report.blocks import Axis, Column, Line, Plot, Section, Table, Tile, notes, table, tables
from perfscope.dashboards.report.charts import FREE_COLOR, TRACED_COLOR
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.dashboards.report.sections.memory_picture import (
    NOT_KNOWN,
    category_words,
    memory_areas,
    moment,
)
from perfscope.model.memory import KnownBy, MemoryPhase
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.memory import HeldCategory, Holder, Holders, Memory, MemoryPicture, Reserved, RunCurve
    from perfscope.analyzers.sections import MemoryEntry, MemorySection, RankMemory
    from perfscope.dashboards.report.blocks import Block
    from perfscope.model.memory import SourceLine

NAME_LIMIT = 28
"""Characters of a memory's name."""

FEW_MEMORIES = 3
"""Most memories shown at once: a device's, the program's and the host's."""

MOST_PARTS, SMALL_PART = 2, 0.01
"""Most categories in the sentence at the top, and the smallest share of the peak that is named there."""

SMALL_MEMORY = 0.01
"""Memories below this share of the largest peak are small, such as a few scalars on the host."""

SMALL_PROGRAM = 0.1
"""Programs below this share of the largest program's peak are small, such as initialisation, metrics and conversions.
"""

MOMENTS = 12
"""Most rows of the table with the picture's numbers."""

_BASIS = {
    KnownBy.NOTHING: "",
    KnownBy.RECORDED: "the recording",
    KnownBy.ADDRESS: "its address",
    KnownBy.PHASE: "phases of the step",
    KnownBy.STACK: "its stack",
    KnownBy.OP: "its op",
    KnownBy.SCHEDULE: "the schedule",
}


def memory_sections(section: MemorySection, *, pictures: bool = True) -> tuple[Section, ...]:
    """A section per memory, fullest first, and one for all smaller programs; empty without memories.

    ``pictures``: include the curve of each memory, drawn and in numbers.
    """
    memories, programs = [], []
    for index, entry in enumerate(section.entries):
        small = index >= FEW_MEMORIES or _is_small(entry, section)
        if small and entry.worst.space == "program":
            programs.append(entry)
        else:
            memories.append(_memory(entry, small=small, pictures=pictures))
    memories += _over_run(section.over_run, pictures=pictures)
    left = (f"and {section.entries_left:,} more memories, with lower peaks",) if section.entries_left else ()
    blocks: tuple[Block, ...] = (*tables(_programs(programs)), *notes(*section.problems, *left))
    if blocks:
        title = "Memory of smaller programs" if programs else "Memory"
        memories.append(Section(title=title, detail=not section.problems, blocks=blocks))
    return tuple(memories)


_CURVES = {
    "arrays": ("living arrays of JAX", FREE_COLOR),
    "device": ("allocated on the device", FREE_COLOR),
    "resident": ("resident memory of the process", TRACED_COLOR),
}


def _over_run(curves: tuple[RunCurve, ...], *, pictures: bool) -> Iterator[Section]:
    """Yield the section of the curves over the run, a plot for each."""
    if not curves:
        return
    columns: tuple[Column[RunCurve], ...] = (
        Column("memory", lambda curve: _CURVES[curve.kind][0]),
        Column("first", lambda curve: curve.bytes[0], "bytes"),
        Column("largest", lambda curve: max(curve.bytes), "bytes"),
        Column("after step", lambda curve: curve.steps[curve.bytes.index(max(curve.bytes))], "count", drop=1),
        Column("last", lambda curve: curve.bytes[-1], "bytes"),
        Column("readings", lambda curve: len(curve.bytes), "count", drop=2),
    )
    main = curves[0]
    words = f"{_CURVES[main.kind][0]}: {format_bytes(main.bytes[0])} to {format_bytes(main.bytes[-1])}"
    facts = ["measured after steps without a profiler; inside a step it may be more"]
    if main.inside_bytes is not None:
        facts = [
            f"measured after steps without a profiler; inside a step up to {format_bytes(main.inside_bytes)} more: "
            "activations, gradients and temporaries of the largest program (modelled)"
        ]
    yield Section(
        title="Memory over the run",
        summary=f"{words}, steps {main.steps[0]:,} to {main.steps[-1]:,}",
        detail=True,
        blocks=(*map(_curve_plot, curves if pictures else ()), *tables(table(columns, curves)), *notes(*facts)),
    )


def _curve_plot(curve: RunCurve) -> Plot:
    """The plot of a curve, from zero."""
    name, color = _CURVES[curve.kind]
    points = tuple(zip(map(float, curve.steps), map(float, curve.bytes), strict=True))
    most = max(curve.bytes)
    return Plot(
        words=f"{name} after {len(points)} steps, at most {format_bytes(most)}",
        title=name,
        x=Axis(low=curve.steps[0], high=max(curve.steps[-1], curve.steps[0] + 1)),
        y=Axis(low=0, high=1.05 * most, unit="bytes"),
        lines=(Line(points=points, color=color),),
        below=(f"step {curve.steps[0]:,}", f"step {curve.steps[-1]:,}"),
    )


def _programs(entries: list[MemoryEntry]) -> Table:
    columns: tuple[Column[MemoryEntry], ...] = (
        Column("program", lambda entry: _whole_name(entry).removeprefix("program ")),
        Column("peak", lambda entry: entry.worst.peak_bytes, "bytes"),
        Column("largest at the peak", lambda entry: ", ".join(_parts(entry.worst)), drop=1),
    )
    return table(columns, entries, title="smaller programs")


def memory_fact(section: MemorySection) -> str:
    """The fullest measured memory: ``'memory of cuda:0: peak 11.6 GiB (activation 57.3%)'``; ``''`` without one."""
    entry = _fullest(section)
    if entry is None:
        return ""
    memory = entry.worst
    parts = f" ({', '.join(_parts(memory))})" if memory.peak_bytes and _parts(memory) else ""
    return f"memory of {_whole_name(entry)}: {size_words(memory)}{parts}"


def memory_tile(section: MemorySection) -> Tile | None:
    """``('peak memory', '11.6 GiB', 'cuda:0; activation 57.3%')`` of the fullest measured memory."""
    entry = _fullest(section)
    if entry is None:
        return None
    memory = entry.worst
    what = "memory held" if memory.first == memory.last else "peak memory"
    parts = f"; {', '.join(_parts(memory))}" if memory.peak_bytes and _parts(memory) else ""
    return Tile(what, format_bytes(memory.peak_bytes), f"{_whole_name(entry)}{parts}")


def _fullest(section: MemorySection) -> MemoryEntry | None:
    return next((entry for entry in section.entries if entry.worst.basis == "measured"), None)


def _is_small(entry: MemoryEntry, section: MemorySection) -> bool:
    peak, program = entry.worst.peak_bytes, entry.worst.space == "program"
    largest = section.entries[0].worst.peak_bytes
    programs = [entry.worst.peak_bytes for entry in section.entries if entry.worst.space == "program"]
    return peak < SMALL_MEMORY * largest or (program and peak < SMALL_PROGRAM * programs[0])


def _memory(entry: MemoryEntry, *, small: bool, pictures: bool) -> Section:
    memory = entry.worst
    picture = memory.picture if pictures and memory.picture is not None and not _is_flat(memory.picture) else None
    title, summary = f"Memory of {_whole_name(entry)}", headline(memory)
    facts = notes(
        "; ".join((*_facts(memory), *_other_memory(entry), _basis(memory))), *memory.notes, *_unmatched(memory)
    )
    return Section(
        title=title,
        summary=summary,
        detail=small,
        blocks=(
            *(() if picture is None else (memory_areas(memory, picture, f"{title}: {summary}. In numbers below."),)),
            *tables(_categories(memory)),
            *facts,
            *_holders("by module", "module", memory.by_module, memory.peak_bytes),
            *_holders("by line of the program", "source line", memory.by_line, memory.peak_bytes),
            *tables(_others(entry)),
            *(() if picture is None else (_moments(memory, picture),)),
        ),
    )


def headline(memory: Memory) -> str:
    """``'peak 11.6 GiB at 50.5 ms of 280 ms: step 0, backward, aten::mm, train.py:3'``."""
    text = size_words(memory)
    if not memory.peak_bytes:
        return text
    if memory.first != memory.last:
        text += f" at {moment(memory, memory.peak_position)}"
    where = [] if memory.step is None else [f"step {memory.step}"]
    if memory.phase != MemoryPhase.UNKNOWN:
        where.append(phase_words(memory.phase))
    if memory.op is not None:
        where.append(sanitize(memory.op))
    if memory.line is not None:
        where.append(place_end(path_text(memory.line)))
    return f"{text}: {', '.join(where)}" if where else text


def size_words(memory: Memory) -> str:
    """Size in words; a snapshot of one moment has no peak."""
    if not memory.peak_bytes:
        return "nothing was in use" + (" at this one moment" if memory.first == memory.last else "")
    bytes_ = format_bytes(memory.peak_bytes)
    return f"{bytes_} held at one moment" if memory.first == memory.last else f"peak {bytes_}"


def phase_words(phase: MemoryPhase) -> str:
    """``forward``, ``recomputing forward``."""
    return "recomputing forward" if phase == MemoryPhase.RECOMPUTE else phase.name.lower()


def path_text(line: SourceLine) -> str:
    """A path with forward slashes: a snapshot may come from Windows."""
    file = line.file.replace("\\", "/")
    return file if line.line is None else f"{file}:{line.line}"


def _whole_name(entry: MemoryEntry) -> str:
    memory, several = entry.worst, len(entry.others) + entry.others_left
    label = shorten(sanitize(memory.label), NAME_LIMIT)
    if memory.space == "program":
        label = f"program {label}"
    elif memory.space == "host":
        label = "the host"
    whose = "" if memory.rank is None else f" on rank {memory.rank}"
    among = f", the fullest of {several:,} {_members(entry)}" if several else ""
    return f"{label}{whose}{among}"


def _members(entry: MemoryEntry) -> str:
    """Kind of a memory's entries: devices, ranks or recordings."""
    sources = {other.source for other in entry.others}
    if len(sources) == 1:
        return "devices"
    return "ranks" if _is_of_ranks(entry) and len(sources) == len(entry.others) else "recordings"


def _is_of_ranks(entry: MemoryEntry) -> bool:
    """Whether each trace is from another rank: a run stores the memory at a failed allocation as a second trace."""
    ranks = {other.rank for other in entry.others}
    return None not in ranks and len(ranks) == len({other.source for other in entry.others})


def _parts(memory: Memory) -> list[str]:
    """The largest categories, including blocks from before the recording; empty if no category is known."""
    if not memory.unseen_bytes and {held.category for held in memory.by_category} == {MemoryCategory.UNKNOWN}:
        return []
    parts = [(category.bytes, category_words(category.category)) for category in memory.by_category]
    largest = sorted([*parts, (memory.unseen_bytes, UNSEEN)], key=lambda item: -item[0])[:MOST_PARTS]
    return [
        f"{words} {format_share(bytes_, memory.peak_bytes)}"
        for bytes_, words in largest
        if bytes_ >= SMALL_PART * memory.peak_bytes
    ]


def _facts(memory: Memory) -> Iterator[str]:
    """Failed allocations, reserved and remaining memory, growth."""
    if memory.out_of_memory:
        many = "an allocation" if memory.out_of_memory == 1 else f"{memory.out_of_memory:,} allocations"
        requested = "" if memory.failed_bytes is None else f", {format_bytes(memory.failed_bytes)} was requested"
        yield f"{many} failed: out of memory{requested}"
    rounded = None if memory.rounded_peak_bytes is None else format_bytes(memory.rounded_peak_bytes)
    if rounded is not None and rounded != format_bytes(memory.peak_bytes):
        yield (
            f"the peak is {format_bytes(memory.peak_bytes)} as requested and {rounded} in blocks of the allocator, "
            "which `torch.cuda.max_memory_allocated` counts"
        )
    if memory.reserved is not None:
        yield from _reserved(memory, memory.reserved)
    if memory.capacity_bytes is not None and memory.headroom_bytes is not None:
        left = format_bytes(max(0, memory.headroom_bytes))
        whose = f"{left} of the device's {format_bytes(memory.capacity_bytes)}"
        yield f"it leaves {whose}" if memory.space == "program" else f"{whose} were never reserved"
    grown = memory.growth
    if grown is not None and grown.growing:
        full = "" if grown.steps_left is None else f": full in {grown.steps_left:,} more"
        yield f"grows by {format_bytes(grown.bytes_per_step)} per step, over {grown.steps:,} steps{full}"
    elif grown is not None:
        yield f"does not grow from step to step, over {grown.steps:,} steps"


def _reserved(memory: Memory, reserved: Reserved) -> Iterator[str]:
    most = format_bytes(reserved.peak_bytes)
    if memory.space == "program":
        if reserved.excess_bytes:
            yield f"{most} assigned, {format_bytes(reserved.excess_bytes)} more than is in use at once"
        return
    if reserved.excess_bytes is None:
        yield f"{most} reserved at most, as recorded: less than what is in use, so one of the two is not complete"
        return
    text = f"{most} reserved at most"
    if reserved.fragmentation is not None:
        text += f", {format_share(reserved.peak_bytes - (reserved.allocated_bytes or 0), reserved.peak_bytes)} of it"
        text += " not in use then" + (", rounding included" if reserved.as_requested else "")
    if reserved.excess_bytes > 0:
        text += f"; {format_bytes(reserved.excess_bytes)} more than the peak in use"
    yield text
    if reserved.split_bytes:
        yield (
            f"{format_bytes(reserved.split_bytes)} of free pieces at the snapshot cannot go back to the driver, the "
            f"largest free piece is {format_bytes(reserved.largest_free_bytes or 0)}"
        )


def _other_memory(entry: MemoryEntry) -> Iterator[str]:
    if entry.others and not entry.others_left:
        least = entry.others[-1]
        yield (
            f"peaks of all: {format_bytes(least.peak_bytes)} ({_whose(least, entry)}) to "
            f"{format_bytes(entry.worst.peak_bytes)} ({_whose(entry.others[0], entry)})"
        )


def _basis(memory: Memory) -> str:
    """``'measured, CUDA memory snapshot'``."""
    text = f"{memory.basis}, {memory.known_from}"
    return f"{text}: blocks that a framework's allocator took from the driver" if memory.of_driver else text


def _unmatched(memory: Memory) -> Iterator[str]:
    if memory.unmatched:
        yield f"{memory.unmatched:,} events belong to no block: its allocation or its free was not recorded"


def _is_flat(picture: MemoryPicture) -> bool:
    """Whether use never changes, so that the table below shows all of it."""
    return bool((picture.total == picture.total[0]).all())


def _categories(memory: Memory) -> Table:
    """Categories that hold the peak; they sum to it."""
    peak = memory.peak_bytes
    columns: tuple[Column[HeldCategory | None], ...] = (
        Column("category", lambda row: UNSEEN if row is None else category_words(row.category)),
        Column("bytes", lambda row: memory.unseen_bytes if row is None else row.bytes, "bytes"),
        Column("share", lambda row: (memory.unseen_bytes if row is None else row.bytes) / peak, "share"),
        Column("blocks", lambda row: row.blocks or None if row is not None else None, "count", drop=2),
        Column("basis", lambda row: "the allocator's total" if row is None else _BASIS[row.known_by], drop=1),
        Column("mostly at", lambda row: None if row is None else _mostly_at(row), "place"),
        Column("there", lambda row: row.place_bytes if row is not None and _mostly_at(row) else None, "bytes", drop=3),
    )
    rows: list[HeldCategory | None] = list(memory.by_category) if peak else []
    if memory.unseen_bytes and peak:
        rows.append(None)
    rows.sort(key=lambda row: -(memory.unseen_bytes if row is None else row.bytes))
    return table(columns, rows, few=5, rest="categories, which hold less")


def _mostly_at(row: HeldCategory) -> str:
    return row.name or "" if row.place is None else path_text(row.place)


def _holders(title: str, column: str, holders: Holders, peak: int) -> tuple[Block, ...]:
    """A table of owners; empty if no owner is known or nothing is held."""
    if not peak or all(row.name is None or row.name == UNSEEN for row in holders.rows):
        return ()
    columns: tuple[Column[Holder], ...] = (
        Column(column, _holder_name, "place", limit=48),
        Column("bytes", lambda row: row.bytes, "bytes"),
        Column("share", lambda row: row.bytes / peak, "share"),
        Column("blocks", lambda row: row.blocks or None, "count", drop=1),
    )
    return tables(table(columns, holders.rows, title=title, detail=True, left=holders.left, rest="which hold less"))


def _holder_name(holder: Holder) -> str:
    name = NOT_KNOWN if holder.name is None else holder.name
    name = place_end(sanitize(name if holder.line is None else path_text(holder.line)))
    return name + (f" ({holder.members:,} of them)" if holder.members > 1 else "")


def _whose(rank_memory: RankMemory, entry: MemoryEntry) -> str:
    """``rank 3``, ``source 3``; several devices of one trace by their names."""
    label = shorten(sanitize(rank_memory.label), NAME_LIMIT)
    sources = {other.source for other in entry.others}
    if len(sources) == 1:
        return label
    whose = f"rank {rank_memory.rank}" if _is_of_ranks(entry) else f"source {rank_memory.source}"
    alike = len({(other.source, other.label) for other in entry.others}) > len(sources)
    return f"{whose} {label}" if alike else whose


def _others(entry: MemoryEntry) -> Table:
    """Ranks or devices side by side."""
    columns: tuple[Column[RankMemory], ...] = (
        Column("memory", lambda other: _whose(other, entry)),
        Column("peak", lambda other: other.peak_bytes, "bytes"),
        Column("reserved", lambda other: other.reserved_bytes, "bytes"),
        Column(
            "never reserved",
            lambda other: None if other.headroom_bytes is None else max(0, other.headroom_bytes),
            "bytes",
        ),
        Column("step", lambda other: other.step, "count", drop=2),
        Column("phase", lambda other: "" if other.phase == MemoryPhase.UNKNOWN else phase_words(other.phase), drop=1),
        Column("failed", lambda other: other.out_of_memory or None, "count"),
    )
    return table(
        columns, entry.others, title="side by side", detail=True, left=entry.others_left, rest="with lower peaks"
    )


def _moments(memory: Memory, picture: MemoryPicture) -> Table:
    """The picture in numbers: the highest moment of each part of the axis."""
    total, positions = picture.total.tolist(), picture.positions.tolist()
    span = memory.last - memory.first + 1
    highest: dict[int, int] = {}
    for index, position in enumerate(positions):
        part = (position - memory.first) * MOMENTS // span
        if part not in highest or total[index] > total[highest[part]]:
            highest[part] = index
    areas = {area.name: area.bytes for area in memory_areas(memory, picture, "").areas}
    columns: list[Column[int]] = [
        Column("at", lambda index: moment(memory, positions[index])),
        Column("in use", lambda index: total[index], "bytes"),
        *(_area(name, bytes_) for name, bytes_ in areas.items()),
    ]
    if picture.reserved is not None:
        reserved = picture.reserved.tolist()
        columns.append(Column("reserved", lambda index: reserved[index], "bytes"))
    return table(columns, list(highest.values()), title="the picture in numbers", detail=True)


def _area(name: str, bytes_: tuple[int, ...]) -> Column[int]:
    return Column(name, lambda index: bytes_[index], "bytes")
