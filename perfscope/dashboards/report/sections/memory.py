"""The memories of an analysis as rows and sentences, decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.analyzers.memory.holders import UNSEEN
from perfscope.dashboards.report.hot_rows import NAME_LIMIT, PLACE_LIMIT, place_end
from perfscope.dashboards.report.sections.memory_picture import (
    NOT_KNOWN,
    PictureView,
    category_words,
    moment,
    picture_view,
)
from perfscope.model.memory import KnownBy, MemoryPhase
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.memory import HeldCategory, Holders, Memory, Reserved
    from perfscope.analyzers.memory.holders import Holder
    from perfscope.analyzers.memory.picture import MemoryPicture
    from perfscope.analyzers.sections.memory import MemoryEntry, MemorySection, RankMemory
    from perfscope.model.memory import SourceLine


# What is said of a memory: its peak in a sentence, and what is around it, the same words in every report.


_PHASES = {MemoryPhase.RECOMPUTE: "recomputing forward"}


def memory_name(memory: Memory) -> str:
    """``cuda:0``, ``the host``, ``program jit_step``."""
    label = shorten(sanitize(memory.label), NAME_LIMIT)
    if memory.space == "program":
        return f"program {label}"
    return "the host" if memory.space == "host" else label


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
        where.append(shorten(sanitize(memory.op), PLACE_LIMIT))
    if memory.line is not None:
        where.append(place_text(memory.line))
    return f"{text}: {', '.join(where)}" if where else text


def size_words(memory: Memory) -> str:
    """One moment has no peak, and nothing has none either."""
    if not memory.peak_bytes:
        return "nothing was in use" + (" at this one moment" if memory.first == memory.last else "")
    bytes_ = format_bytes(memory.peak_bytes)
    return f"{bytes_} held at one moment" if memory.first == memory.last else f"peak {bytes_}"


def phase_words(phase: MemoryPhase) -> str:
    """``forward``, ``recomputing forward``."""
    return _PHASES.get(phase, phase.name.lower())


def place_text(line: SourceLine) -> str:
    """``…/model.py:39``: the end of a path tells."""
    return place_end(path_text(line))


def path_text(line: SourceLine) -> str:
    """With the slashes that every other path has: a snapshot may come from Windows."""
    file = sanitize(line.file, TEXT_LIMIT).replace("\\", "/")
    return file if line.line is None else f"{file}:{line.line}"


def facts(memory: Memory) -> Iterator[str]:
    """What failed, what is reserved, what is left, whether it grows."""
    if memory.out_of_memory:
        many = "an allocation" if memory.out_of_memory == 1 else f"{memory.out_of_memory:,} allocations"
        asked = "" if memory.failed_bytes is None else f", {format_bytes(memory.failed_bytes)} was asked for"
        yield f"{many} failed for want of memory{asked}"
    if memory.reserved is not None:
        yield from _reserved(memory, memory.reserved)
    if memory.capacity_bytes is not None and memory.headroom_bytes is not None:
        left = format_bytes(max(0, memory.headroom_bytes))
        whose = f"{left} of the device's {format_bytes(memory.capacity_bytes)}"
        yield f"it leaves {whose}" if memory.space == "program" else f"{whose} were never taken"
    grown = memory.growth
    if grown is not None and grown.growing:
        full = "" if grown.steps_left is None else f": full in {grown.steps_left:,} more"
        yield f"grows by {format_bytes(grown.bytes_per_step)} a step, over {grown.steps:,} steps{full}"
    elif grown is not None:
        yield f"does not grow from step to step, over {grown.steps:,} steps"


def _reserved(memory: Memory, reserved: Reserved) -> Iterator[str]:
    most = format_bytes(reserved.peak_bytes)
    if memory.space == "program":
        if reserved.excess_bytes:
            yield f"{most} assigned, {format_bytes(reserved.excess_bytes)} more than is in use at once"
        return
    if reserved.excess_bytes < 0:
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


def known_words(memory: Memory) -> str:
    """``'measured, CUDA memory snapshot'``."""
    text = f"{memory.basis}, {sanitize(memory.known_from)}"
    return f"{text}: blocks that a framework's allocator took from the driver" if memory.of_driver else text


def unmatched_words(memory: Memory) -> Iterator[str]:
    """That events belong to no block, if some do."""
    if memory.unmatched:
        yield f"{memory.unmatched:,} events belong to no block: its allocation or its free was not recorded"


Cells = tuple[tuple[str, str], ...]
"""(column, cell); the same columns in every row of a table."""

_KNOWN_BY = {
    KnownBy.NOTHING: "",
    KnownBy.RECORDED: "the recording",
    KnownBy.ADDRESS: "its address",
    KnownBy.PHASE: "phases of the step",
    KnownBy.STACK: "its stack",
    KnownBy.OP: "its op",
    KnownBy.SCHEDULE: "the schedule",
}

MOST_PARTS, SMALL_PART = 2, 0.01
"""Categories of the sentence at the top, and the share of the peak from which they are worth naming there."""

SMALL_MEMORY = 0.01
"""Of the largest memory's peak: the host's few scalars beside a device full of tensors."""

SMALL_PROGRAM = 0.1
"""Of the largest program's peak: initialisation, metrics and conversions beside the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderTable:
    """Modules or lines, most bytes first, and what is not among them."""

    title: str
    rows: tuple[Cells, ...]
    row_bytes: tuple[int, ...]
    """Of each row."""
    more: int
    """Owners that have no row, and what they hold."""
    more_bytes: int

    def left(self, most: int) -> str:
        """``'and 12 more, 40.0 MiB together'`` behind the first ``most`` rows; ``''`` if there is nothing."""
        count = max(0, len(self.rows) - most) + self.more
        return f"and {count:,} more, {format_bytes(sum(self.row_bytes[most:]) + self.more_bytes)} together" * bool(
            count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """One memory, or the fullest of several ranks'."""

    title: str
    headline: str
    """The peak, when it was, and what asked for it."""
    facts: tuple[str, ...]
    """What is reserved, what is left, what failed, whether it grows, how all of it is known."""
    categories: tuple[Cells, ...]
    """Sums to the peak."""
    modules: HolderTable | None
    lines: HolderTable | None
    others: tuple[Cells, ...]
    """Ranks or devices side by side."""
    others_left: int
    notes: tuple[str, ...]
    picture: PictureView | None
    minor: bool
    """So small beside the largest memory that it is told of only when asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoriesView:
    """The whole section."""

    summary: str
    """The fullest memory that was measured, in a sentence; ``''`` where there is none."""
    fullest: tuple[str, str, str] | None
    """The same for a glance: what it is, how much, and whose."""
    memories: tuple[MemoryView, ...]
    memories_left: int
    notes: tuple[str, ...]


def memory_view(section: MemorySection) -> MemoriesView | None:
    """The section as rows; ``None`` where no memory is known of."""
    if not section.entries and not section.problems:
        return None
    fullest = next((entry for entry in section.entries if entry.worst.basis == "measured"), None)
    return MemoriesView(
        summary="" if fullest is None else _summary(fullest),
        fullest=None if fullest is None else _glance(fullest),
        memories=tuple(_entry(entry, minor=_is_minor(entry, section)) for entry in section.entries),
        memories_left=section.entries_left,
        notes=tuple(sanitize(problem) for problem in section.problems),
    )


def _is_minor(entry: MemoryEntry, section: MemorySection) -> bool:
    peak, program = entry.worst.peak_bytes, entry.worst.space == "program"
    largest = section.entries[0].worst.peak_bytes
    programs = [entry.worst.peak_bytes for entry in section.entries if entry.worst.space == "program"]
    return peak < SMALL_MEMORY * largest or (program and peak < SMALL_PROGRAM * programs[0])


def _entry(entry: MemoryEntry, *, minor: bool) -> MemoryView:
    memory = entry.worst
    return MemoryView(
        title=_title(entry),
        headline=headline(memory),
        facts=(*facts(memory), *_beside(entry), known_words(memory)),
        categories=tuple(_categories(memory)),
        modules=_holders("by module", "module", memory.by_module, memory.peak_bytes),
        lines=_holders("by line of the program", "source line", memory.by_line, memory.peak_bytes),
        others=tuple(_other(other, entry) for other in entry.others),
        others_left=entry.others_left,
        notes=(*(sanitize(note) for note in memory.notes), *unmatched_words(memory)),
        picture=None if memory.picture is None or _is_flat(memory.picture) else picture_view(memory, memory.picture),
        minor=minor,
    )


def _summary(entry: MemoryEntry) -> str:
    """``'memory of cuda:0: peak 11.6 GiB (activation 57.3%, optimizer state 27.2%)'``."""
    memory = entry.worst
    parts = f" ({', '.join(_parts(memory))})" if memory.peak_bytes else ""
    return f"memory of {_whole_name(entry)}: {size_words(memory)}{parts}"


def _glance(entry: MemoryEntry) -> tuple[str, str, str]:
    """``('peak memory', '11.6 GiB', 'cuda:0; activation 57.3%, optimizer state 27.2%')``."""
    memory = entry.worst
    what = "memory held" if memory.first == memory.last else "peak memory"
    parts = f"; {', '.join(_parts(memory))}" if memory.peak_bytes else ""
    return what, format_bytes(memory.peak_bytes), f"{_whole_name(entry)}{parts}"


def _parts(memory: Memory) -> list[str]:
    """The largest of its categories, what was held before among them."""
    held = [(category.bytes, category_words(category.category)) for category in memory.by_category]
    largest = sorted([*held, (memory.unseen_bytes, UNSEEN)], key=lambda item: -item[0])[:MOST_PARTS]
    return [
        f"{words} {format_share(bytes_, memory.peak_bytes)}"
        for bytes_, words in largest
        if bytes_ >= SMALL_PART * memory.peak_bytes
    ]


def _is_flat(picture: MemoryPicture) -> bool:
    """Nothing comes or goes: the table below says all of it."""
    return bool((picture.total == picture.total[0]).all())


def _title(entry: MemoryEntry) -> str:
    return f"Memory of {_whole_name(entry)}"


def _whole_name(entry: MemoryEntry) -> str:
    several = len(entry.others) + entry.others_left
    whose = "" if entry.worst.rank is None else f" on rank {entry.worst.rank}"
    among = f", the fullest of {several:,} {_members(entry)}" if several else ""
    return f"{memory_name(entry.worst)}{whose}{among}"


def _members(entry: MemoryEntry) -> str:
    """What stands side by side."""
    sources = {other.source for other in entry.others}
    if len(sources) == 1:
        return "devices"
    return "ranks" if _is_of_ranks(entry) and len(sources) == len(entry.others) else "recordings"


def _is_of_ranks(entry: MemoryEntry) -> bool:
    """Every trace is another rank's: a run has the memory at a failed allocation as a trace of its own."""
    ranks = {other.rank for other in entry.others}
    return None not in ranks and len(ranks) == len({other.source for other in entry.others})


def _beside(entry: MemoryEntry) -> Iterator[str]:
    if entry.others and not entry.others_left:
        least = entry.others[-1]
        yield (
            f"peaks of all: {format_bytes(least.peak_bytes)} ({_whose(least, entry)}) to "
            f"{format_bytes(entry.worst.peak_bytes)} ({_whose(entry.others[0], entry)})"
        )


def _categories(memory: Memory) -> Iterator[Cells]:
    rows = [(category.bytes, _category(category, memory)) for category in memory.by_category]
    if memory.unseen_bytes:
        rows.append((memory.unseen_bytes, _unseen(memory)))
    filled = {name for _, cells in rows for name, cell in cells if cell}
    for _, cells in sorted(rows, key=lambda row: -row[0]):
        yield tuple((name, cell) for name, cell in cells if name in filled)


def _category(category: HeldCategory, memory: Memory) -> Cells:
    where = "" if category.place is None else place_text(category.place)
    return (
        ("category", category_words(category.category)),
        *_amount(category.bytes, memory.peak_bytes, category.blocks),
        ("known by", _KNOWN_BY[category.known_by]),
        ("mostly at", where or place_end(sanitize(category.name or ""))),
        ("there", format_bytes(category.place_bytes) if where or category.name else ""),
    )


def _unseen(memory: Memory) -> Cells:
    return (
        ("category", UNSEEN),
        *_amount(memory.unseen_bytes, memory.peak_bytes, 0),
        ("known by", "the allocator's total"),
        ("mostly at", ""),
        ("there", ""),
    )


def _amount(bytes_: int, whole: int, blocks: int) -> Cells:
    return (
        ("bytes", format_bytes(bytes_)),
        ("share", format_share(bytes_, whole)),
        ("blocks", f"{blocks:,}" if blocks else "-"),
    )


def _holders(title: str, column: str, holders: Holders, peak: int) -> HolderTable | None:
    """A table of owners; ``None`` where no owner but what is not known is told of, or nothing is held."""
    if not peak or all(row.name is None or row.name == UNSEEN for row in holders.rows):
        return None
    return HolderTable(
        title=title,
        rows=tuple(_holder(column, row, peak) for row in holders.rows),
        row_bytes=tuple(row.bytes for row in holders.rows),
        more=holders.left,
        more_bytes=holders.left_bytes,
    )


def _holder(column: str, holder: Holder, peak: int) -> Cells:
    name = NOT_KNOWN if holder.name is None else sanitize(holder.name)
    name = place_end(name if holder.line is None else path_text(holder.line))
    many = f" ({holder.members:,} of them)" if holder.members > 1 else ""
    return ((column, name + many), *_amount(holder.bytes, peak, holder.blocks))


def _whose(rank_memory: RankMemory, entry: MemoryEntry) -> str:
    """``rank 3``, ``source 3``; several devices of one trace by their own name."""
    label = shorten(sanitize(rank_memory.label), NAME_LIMIT)
    sources = {other.source for other in entry.others}
    if len(sources) == 1:
        return label
    whose = f"rank {rank_memory.rank}" if _is_of_ranks(entry) else f"source {rank_memory.source}"
    alike = len({(other.source, other.label) for other in entry.others}) > len(sources)
    return f"{whose} {label}" if alike else whose


def _other(rank_memory: RankMemory, entry: MemoryEntry) -> Cells:
    shows = entry.others
    cells = [("memory", _whose(rank_memory, entry)), ("peak", format_bytes(rank_memory.peak_bytes))]
    cells += _optional("reserved", [other.reserved_bytes for other in shows], rank_memory.reserved_bytes)
    cells += _optional("never taken", [other.headroom_bytes for other in shows], rank_memory.headroom_bytes)
    if any(other.step is not None for other in shows):
        cells.append(("step", "" if rank_memory.step is None else str(rank_memory.step)))
    if any(other.phase != MemoryPhase.UNKNOWN for other in shows):
        cells.append(("phase", "" if rank_memory.phase == MemoryPhase.UNKNOWN else phase_words(rank_memory.phase)))
    if any(other.out_of_memory for other in shows):
        cells.append(("failed", f"{rank_memory.out_of_memory:,}"))
    return tuple(cells)


def _optional(name: str, of_all: Sequence[int | None], value: int | None) -> list[tuple[str, str]]:
    """A column, if any row fills it."""
    if all(value is None for value in of_all):
        return []
    return [(name, "" if value is None else format_bytes(max(0, value)))]
