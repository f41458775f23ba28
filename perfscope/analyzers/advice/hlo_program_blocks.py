"""Blocks of a compiled program's memory, and who writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.analyzers.advice.hlo_unrolled import Part
from perfscope.analyzers.facts.hlo_blocks import program_blocks
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.schedule import Schedule

Change = tuple[int, int, int]
"""From a position up to another, that many bytes more (or fewer)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A block of the program's memory. Positions are those of ``Schedule``, half open."""

    start: int
    end: int
    bytes: int
    parts: tuple[Part, ...]
    """Instructions that write it, and which part of their tuple, the first first."""


def blocks_of(module: HloModule, schedule: Schedule) -> tuple[Block, ...]:
    """Of a program whose buffers are assigned."""
    return tuple(
        Block(
            start=one.start,
            end=one.end,
            bytes=one.bytes,
            parts=tuple((made.name, index[0] if index else None) for made, index in one.made),
        )
        for one in program_blocks(module, schedule)
    )


def readers_in(block: Block, readers: Mapping[Part, list[Instruction]]) -> list[Instruction]:
    """Who reads anything in the block; what goes on in it is no reader."""
    own = {name for name, _ in block.parts}
    return [one for part in block.parts for one in readers.get(part, ()) if one.name not in own]


def comes_from_nothing(by_name: Mapping[str, Instruction], one: Instruction) -> bool:
    """Computed from constants alone."""
    waiting, seen = [one], {one.name}
    while waiting:
        now = waiting.pop()
        if now.opcode in ("parameter", "while", "custom-call", "conditional", "rng", "rng-bit-generator"):
            return False
        for name in now.operands:
            if name not in seen:
                seen.add(name)
                waiting.append(by_name[name])
    return True
