"""Memories in the JSON report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.facts.memory_picture import MemoryPicture
    from perfscope.analyzers.facts.trace_memories import Held, HeldCategory, Holders, Memory, Reserved
    from perfscope.analyzers.memory_section import MemoryEntry, MemorySection, RankMemory
    from perfscope.model.memory import SourceLine


def memory_document(section: MemorySection) -> dict[str, Any]:
    """The section as dicts and lists; positions are on the memory's own axis."""
    return {
        "items": [_entry(entry) for entry in section.entries],
        "left": section.entries_left,
        "problems": list(section.problems),
    }


def _entry(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "source": entry.source,
        **_memory(entry.worst),
        "others": [_other(one) for one in entry.others],
        "others_left": entry.others_left,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "rank": memory.rank,
        "space": memory.space,
        "label": memory.label,
        "known_from": memory.known_from,
        "basis": memory.basis,
        "of_driver": memory.of_driver,
        "axis": memory.axis,
        "first": memory.first,
        "last": memory.last,
        "peak_bytes": memory.peak_bytes,
        "peak_position": memory.peak_position,
        "phase": memory.phase.name.lower(),
        "step": memory.step,
        "op": memory.op,
        "where": _line(memory.line),
        "by_category": [_category(one) for one in memory.by_category],
        "by_module": _holders(memory.by_module),
        "by_line": _holders(memory.by_line),
        "unseen_bytes": memory.unseen_bytes,
        "reserved": None if memory.reserved is None else _reserved(memory.reserved),
        "capacity_bytes": memory.capacity_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "out_of_memory": memory.out_of_memory,
        "failed_bytes": memory.failed_bytes,
        "unmatched": memory.unmatched,
        "growth": None if memory.growth is None else asdict(memory.growth),
        "notes": list(memory.notes),
        "picture": None if memory.picture is None else _picture(memory.picture),
    }


def _line(line: SourceLine | None) -> dict[str, Any] | None:
    return None if line is None else asdict(line)


def _category(one: HeldCategory) -> dict[str, Any]:
    return {
        "category": one.category.name.lower(),
        "bytes": one.bytes,
        "blocks": one.blocks,
        "known_by": one.known_by.name.lower(),
        "mostly_at": _line(one.place),
        "largest_name": one.name,
        "place_bytes": one.place_bytes,
    }


def _holders(holders: Holders) -> dict[str, Any]:
    return {
        "rows": [_held(one) for one in holders.rows],
        "left": holders.left,
        "left_bytes": holders.left_bytes,
    }


def _held(one: Held) -> dict[str, Any]:
    return {
        "name": one.name,
        "bytes": one.bytes,
        "blocks": one.blocks,
        "members": one.members,
        "where": _line(one.line),
    }


def _reserved(reserved: Reserved) -> dict[str, Any]:
    return {**asdict(reserved), "fragmentation": reserved.fragmentation}


def _other(one: RankMemory) -> dict[str, Any]:
    return {**asdict(one), "phase": one.phase.name.lower()}


def _picture(picture: MemoryPicture) -> dict[str, Any]:
    return {
        "positions": picture.positions.tolist(),
        "bytes": {
            category.name.lower(): held
            for category, held in zip(picture.categories, picture.bytes.tolist(), strict=True)
        },
        "unseen_bytes": picture.unseen_bytes,
        "reserved": None if picture.reserved is None else picture.reserved.tolist(),
        "steps": [asdict(band) for band in picture.steps],
        "phases": [asdict(band) for band in picture.phases],
    }
