"""What is said of a memory: its peak in a sentence, and what is around it, the same words in every report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.hot_rows import NAME_LIMIT, PLACE_LIMIT, place_end
from perfscope.dashboards.reports.memory_picture_rows import moment
from perfscope.model.memory import MemoryPhase
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.facts.trace_memories import Memory, Reserved
    from perfscope.model.memory import SourceLine

_PHASES = {MemoryPhase.RECOMPUTE: "recomputing forward"}


def memory_name(memory: Memory) -> str:
    """``cuda:0``, ``the host``, ``program jit_step``."""
    label = shorten(sanitize(memory.label), NAME_LIMIT)
    if memory.space == "program":
        return f"program {label}"
    return "the host" if memory.space == "host" else label


def headline(memory: Memory) -> str:
    """``'peak 11.6 GiB at 50.5 ms of 280 ms: step 0, backward, aten::mm, train.py:3'``."""
    said = size_words(memory)
    if not memory.peak_bytes:
        return said
    if memory.first != memory.last:
        said += f" at {moment(memory, memory.peak_position)}"
    where = [] if memory.step is None else [f"step {memory.step}"]
    if memory.phase != MemoryPhase.UNKNOWN:
        where.append(phase_words(memory.phase))
    if memory.op is not None:
        where.append(shorten(sanitize(memory.op), PLACE_LIMIT))
    if memory.line is not None:
        where.append(place_text(memory.line))
    return f"{said}: {', '.join(where)}" if where else said


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
    said = f"{most} reserved at most"
    if reserved.fragmentation is not None:
        said += f", {format_share(reserved.peak_bytes - (reserved.allocated_bytes or 0), reserved.peak_bytes)} of it"
        said += " not in use then" + (", rounding included" if reserved.as_requested else "")
    if reserved.excess_bytes > 0:
        said += f"; {format_bytes(reserved.excess_bytes)} more than the peak in use"
    yield said
    if reserved.split_bytes:
        yield (
            f"{format_bytes(reserved.split_bytes)} of free pieces at the snapshot cannot go back to the driver, the "
            f"largest free piece is {format_bytes(reserved.largest_free_bytes or 0)}"
        )


def known_words(memory: Memory) -> str:
    """``'measured, CUDA memory snapshot'``."""
    said = f"{memory.basis}, {sanitize(memory.known_from)}"
    return f"{said}: blocks that a framework's allocator took from the driver" if memory.of_driver else said


def unmatched_words(memory: Memory) -> Iterator[str]:
    """That events belong to no block, if some do."""
    if memory.unmatched:
        yield f"{memory.unmatched:,} events belong to no block: its allocation or its free was not recorded"
