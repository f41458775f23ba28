"""Live bytes of a compiled step with less kept for its layers, estimated from the program without asking the compiler.

Three changes to the live bytes of the program as it is compiled: what the forward keeps today goes, what the policy
keeps instead stays from the forward to the backward, and in the backward the values of one layer at a time are there
again. XLA schedules and fuses the changed program anew, which is not modelled: `bounds.py` has the errors that were
measured for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.checkpointing.jax_layers.layer import Layer
from perfscope.analyzers.checkpointing.jax_layers.layers import Kept, Layers
from perfscope.analyzers.checkpointing.jax_layers.policies import Keeps
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.model.memory import MemoryTimeline

Span = tuple[int, int, int]
"""From a position of the schedule up to another, that many bytes more (or fewer)."""


def estimated_spans(
    layers: Layers, layer: Layer, keeps: Keeps, schedule: Schedule, timeline: MemoryTimeline
) -> tuple[Span, ...]:
    """What keeping only ``keeps`` and the layers' inputs changes, of layers that keep everything now.

    ``layer`` and ``timeline``: of the same program. Linear in the values of a layer.
    """
    gone = _gone_alone(layers, schedule, timeline) if layers.scope else _gone_stacks(layers, schedule)
    spans = (*gone, *_added(layers, layer, keeps))
    return tuple(span for span in spans if span[1] > span[0] and span[2])


def _gone_stacks(layers: Layers, schedule: Schedule) -> Iterator[Span]:
    """The stacks of a loop over layers, and the part of a layer that is copied out of each."""
    for kept in layers.kept:
        filled = min((*_positions(kept, schedule), layers.forward[0]))
        yield filled, layers.backward[1], -kept.bytes
        if kept.copies:
            first = min(reader.first for reader in kept.readers)
            last = max(reader.last for reader in kept.readers)
            yield first, last + 1, -kept.bytes // layers.count


def _gone_alone(layers: Layers, schedule: Schedule, timeline: MemoryTimeline) -> Iterator[Span]:
    """The blocks that hold what a single layer keeps, from the position after the one that makes them."""
    blocks, used = timeline.blocks, set[int]()
    for kept in layers.kept:
        makers = _positions(kept, schedule)
        for row in range(len(blocks["bytes"])):
            start, end = int(blocks["start"][row]), int(blocks["end"][row])
            of_kept = int(blocks["bytes"][row]) == kept.bytes and start in makers and end > layers.backward[0]
            if of_kept and row not in used:
                used.add(row)
                yield start + 1, end, -kept.bytes
                break


def _positions(kept: Kept, schedule: Schedule) -> list[int]:
    names = (maker.partition("{")[0] for maker in kept.makers)
    return [schedule.positions[name] for name in names if name in schedule.positions]


def _added(layers: Layers, layer: Layer, keeps: Keeps) -> Iterator[Span]:
    """What the policy keeps of all layers, and what one layer's backward makes again."""
    for number, (first, last) in _needed_again(layers, layer, keeps).items():
        size = layer.bytes(number)
        kept = keeps(number) or layer.carried(number)
        if kept and layers.scope:
            yield layers.forward[1], last + 1, size
            continue
        if kept:
            yield layers.forward[0], layers.backward[1], size * layers.count
        if not layer.nested(number):
            yield first, last + 1, size


def _needed_again(layers: Layers, layer: Layer, keeps: Keeps) -> dict[int, tuple[int, int]]:
    """Values with a buffer in a layer's backward: the first position that needs them, and the last that reads them.

    What is not kept and has a buffer is made again at the beginning of the backward; all else is computed within its
    readers, so that what it is computed from is read there.
    """
    begin = layers.backward[0]
    memory: dict[int, frozenset[int]] = {}
    needed: dict[int, tuple[int, int]] = {}
    waiting: list[int] = []

    def read(number: int, first: int, last: int) -> None:
        number = layer.first_of_its_kind(number)
        before = needed.get(number)
        now = (first, last) if before is None else (min(first, before[0]), max(last, before[1]))
        needed[number] = now
        if before is None or now[0] != before[0]:
            waiting.append(number)

    for kept in layers.kept:
        for reader in kept.readers:
            for made in layer.made(kept.number):
                for number in (made,) if reader.into_product else layer.bases(made, keeps, memory):
                    read(number, reader.first, reader.last)
    while waiting:
        number = waiting.pop()
        if keeps(number):
            continue
        position = begin if layer.has_buffer(number) else needed[number][0]
        read(number, position, position)
        whole = layer.is_product(number) and not layer.of_loop(number)
        for source in layer.behind(number):
            for base in (source,) if whole else layer.bases(source, keeps, memory):
                read(base, position, position)
    return needed
