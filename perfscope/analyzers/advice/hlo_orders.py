"""The order in which XLA runs what is around a pair of loops over layers, where less is kept for them.

XLA's memory scheduler orders a program in several ways and takes the one whose peak is lowest. Two of them are told
apart here. One runs what needs nothing, and what is needed at the end only, where it is asked for: that is how programs
that keep everything are found. The other, a list scheduler, takes what is ready and frees the most: zeros, which need
nothing, run in front of the forward, and what only the loss is needed for (the gradient of the head's weights) runs
before the backward and frees its inputs. Which has the lower peak depends on what the loops keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from perfscope.analyzers.advice.hlo_layers import Layers
from perfscope.analyzers.advice.hlo_program_blocks import Block, Change, comes_from_nothing, readers_in
from perfscope.analyzers.advice.hlo_unrolled import readers_of
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.schedule import Schedule

HELD = frozenset({"parameter", "constant"})
"""Opcodes of what is there for the whole run."""


def lowest(blocks: Sequence[Block], changes: Sequence[Change], others: Sequence[Change]) -> tuple[Change, ...]:
    """``changes``, with ``others`` where the peak is lower with them."""
    both = (*changes, *others)
    return both if peak_of(blocks, both) < peak_of(blocks, changes) else tuple(changes)


def peak_of(blocks: Iterable[Block], changes: Iterable[Change]) -> int:
    """Bytes at the highest point of the blocks with changes."""
    spans = [(one.start, one.end, one.bytes) for one in blocks] + list(changes)
    curve = np.zeros(max((stop for _, stop, _ in spans), default=0) + 1, np.int64)
    for start, stop, size in spans:
        curve[start] += size
        curve[stop] -= size
    return int(np.cumsum(curve).max())


def frees_first(module: HloModule, schedule: Schedule, layers: Layers, blocks: Iterable[Block]) -> Iterator[Change]:
    """What changes where whatever is ready and frees memory runs first. Linear in the entry's instructions."""
    entry = module.entry_computation()
    readers = dict(readers_of(entry))
    begin, end = layers.backward
    behind = _behind(module, schedule, layers)
    free = {
        one.name
        for one in entry.instructions
        if schedule.positions.get(one.name, -1) >= end and one.name not in behind and one is not entry.root
    }
    early: list[Change] = []
    for block in blocks:
        if not block.parts or block.parts[0][0] not in entry.by_name:
            continue
        first = entry.by_name[block.parts[0][0]]
        if first.opcode in HELD:
            continue
        if layers.forward[0] < block.start and comes_from_nothing(entry.by_name, first):
            yield layers.forward[0], block.start, block.bytes
            continue
        users = readers_in(block, readers)
        late = [one for one in users if schedule.positions[one.name] >= end]
        can = bool(late) and all(one.name in free for one in late)
        own = all(name in free or schedule.positions.get(name, -1) < begin for name, _ in block.parts)
        if not own:
            continue
        if block.start < begin and block.end > end and can:
            early.append((begin, block.end, -block.bytes))
        elif block.start >= end and block.parts[0][0] in free:
            early.append((block.start, block.end, -block.bytes) if can else (begin, block.start, block.bytes))
    if sum(size for start, _, size in early if start == begin) < 0:
        yield from early


def _behind(module: HloModule, schedule: Schedule, layers: Layers) -> frozenset[str]:
    """Instructions of the entry that need the backward loop's result."""
    found: set[str] = set()
    for one in module.entry_computation().instructions:
        is_loop = one.opcode == "while" and schedule.positions[one.name] + 1 == layers.backward[1]
        if is_loop or not found.isdisjoint(one.operands):
            found.add(one.name)
    return frozenset(found)
