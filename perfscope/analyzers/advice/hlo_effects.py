"""What a checkpoint policy changes in the memory of a compiled program: which blocks go, which come, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfscope.analyzers.advice.hlo_again import Again, again_of
from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_layers import Kept, Layers, takes_buffers
from perfscope.analyzers.advice.hlo_orders import frees_first, lowest
from perfscope.analyzers.advice.hlo_policies import Keeps
from perfscope.analyzers.advice.hlo_program_blocks import Block, Change, comes_from_nothing, readers_in
from perfscope.analyzers.advice.hlo_unrolled import Part, part_number, readers_of
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.schedule import Schedule


class Effects:
    """Works them out for one program."""

    def __init__(
        self, module: HloModule, flow: Flow, schedule: Schedule, blocks: Iterable[Block], layers: Sequence[Layers]
    ) -> None:
        """``blocks``: all of the program, named after the instructions that make them."""
        self._late = {name: one.backward[1] for one in layers for name in one.late}
        self._regions = len(layers)
        self._last_backward = max((one.backward[1] for one in layers), default=0)
        self._module = module
        self._flow = flow
        self._schedule = schedule
        self._blocks = tuple(blocks)
        self._by_instruction: dict[str, list[Block]] = {}
        for one in self._blocks:
            for name in dict.fromkeys(name for name, _ in one.parts):
                self._by_instruction.setdefault(name, []).append(one)

    def of(self, layers: Layers, keeps: Keeps) -> tuple[Again, tuple[Change, ...]]:
        """What a policy makes of layers that keep everything today."""
        layer = Layer(self._flow, layers)
        again = again_of(layer, layers.kept, keeps)
        changes = _Changes()
        kept = list(self._kept_blocks(layers))
        for block in {id(block): block for block in kept if layers.count > 1 or not layers.scope}.values():
            changes.add(block.start, block.end, -block.bytes)
        self._forward(layers, layer, again, keeps, frozenset(map(id, kept)), changes)
        self._not_in_place(layers, layer, keeps, changes)
        if not layers.scope:
            self._constants(layers, frozenset(map(id, kept)), changes)
            for _, size in again.stacks:
                changes.add(layers.forward[0], layers.backward[1], size)
        for buffer in again.buffers:
            if not (layers.scope and layer.carried(buffer.number)):
                changes.add(buffer.first, buffer.last + 1, buffer.bytes)
        if layers.scope or self._regions > 1:
            return again, changes.all()
        for start, size in self._laid_out(layers, layer, again, keeps):
            changes.add(start, start + 1, size)
        others = [
            *frees_first(self._module, self._schedule, layers, self._blocks),
            *((one.first + 1, one.last + 1, -one.bytes) for one in again.buffers if one.frees and one.last > one.first),
        ]
        return again, lowest(self._blocks, changes.all(), others)

    def _laid_out(self, layers: Layers, layer: Layer, again: Again, keeps: Keeps) -> Iterator[tuple[int, int]]:
        """Where a stack is laid out anew in front of the backward, both are there: when, and bytes of one."""
        for number, size in again.stacks:
            starts = [
                block.start
                for one in layers.kept
                if any(number in layer.bases(made, keeps, {}) for made in layer.made(one.number))
                for name in one.copies
                for block in self._by_instruction.get(name, ())
                if layers.forward[1] <= block.start < layers.backward[0]
            ]
            if starts:
                yield max(starts), size

    def _not_in_place(self, layers: Layers, layer: Layer, keeps: Keeps, changes: _Changes) -> None:
        """A kernel that goes over rows again (softmax) to make what was kept does not write onto its input."""
        again = set()
        for one in layers.kept:
            bases = {base for made in layer.made(one.number) for base in layer.bases(made, keeps, {})}
            if len(bases) > 1 and any(self._flow.opcode(base) == "reduce" for base in bases):
                again |= {reader.last for reader in one.readers if not reader.into_product}
        for block in self._blocks:
            for name, _ in block.parts[1:]:
                at = self._schedule.positions.get(name, -1)
                if at in again and block.start < at < block.end:
                    changes.add(at, at + 1, block.bytes)

    def _kept_blocks(self, layers: Layers) -> Iterator[Block]:
        """The blocks that hold what is kept, and copies of it in the backward."""
        taken: set[int] = set()
        for one in layers.kept:
            for block in self._named(one, layers):
                if id(block) not in taken and block.bytes == one.bytes:
                    taken.add(id(block))
                    yield block
                    break
            for name in one.copies:
                yield from self._by_instruction.get(name, ())

    def _named(self, kept: Kept, layers: Layers) -> Iterator[Block]:
        """Blocks that hold a kept value when the forward of its layers ends."""
        end = layers.forward[1]
        for name in sorted(kept.makers):
            part = _part(name)
            for block in self._by_instruction.get(name.partition("{")[0], ()):
                if part is not None or layers.scope:
                    if part is None or part in block.parts:
                        yield block
                elif block.start < end <= block.end:
                    yield block

    def _constants(self, layers: Layers, kept: frozenset[int], changes: _Changes) -> None:
        """Masks and the like that are kept although they come from nothing: computed where they are read, instead."""
        entry = self._module.entry_computation()
        for block in self._blocks:
            one = entry.by_name.get(block.parts[0][0]) if block.parts and id(block) not in kept else None
            spans = block.start <= layers.forward[0] and block.end >= layers.backward[1]
            if one is not None and spans and one.opcode != "constant" and comes_from_nothing(entry.by_name, one):
                changes.add(layers.forward[1], block.end, -block.bytes)

    def _forward(
        self,
        layers: Layers,
        layer: Layer,
        again: Again,
        keeps: Keeps,
        kept: frozenset[int],
        changes: _Changes,
    ) -> None:
        """Blocks of the forward that end sooner, or are not there, where nobody keeps what they are for."""
        module, body, positions = self._module, layers.body, self._schedule.positions
        readers = dict(readers_of(body))
        held = dict(again.stacks)
        mine: dict[int, Block] = {}
        owners: dict[int, Block] = {}
        made_of: dict[int, frozenset[int]] = {}
        for block in self._blocks:
            inside = layers.forward[0] <= block.start and (layers.scope or block.end <= layers.forward[1])
            if not inside or (id(block) in kept and not layers.scope):
                continue
            numbers = [part_number(module, self._flow, body, one) for one in block.parts if one[0] in body.by_name]
            if not any(one is not None for one in numbers):
                continue
            made_of[id(block)] = frozenset(made for one in numbers if one is not None for made in layer.made(one))
            for origin in made_of[id(block)]:
                owners.setdefault(origin, block)
            mine[id(block)] = block
        ends: dict[int, int] = {}
        for key, block in mine.items():
            users = self._users(block, body, readers)
            early = [one for one in users if one.name not in layers.takers]
            if len(early) == len(users) or (layers.scope and key not in kept):
                continue
            made = made_of[key]
            if any(number in held for number in made) and layers.scope:
                continue
            looped = any(body.by_name[name].opcode == "while" for name, _ in block.parts if name in body.by_name)
            has_buffer = looped or not made or any(layer.has_buffer(number) for number in made)
            if not early:
                ends[key] = block.start if not layers.scope else block.start + 1
            elif has_buffer or any(self._takes(one, body.root) for one in early):
                ends[key] = min(block.end, max(positions[one.name] for one in early) + 1)
            else:
                ends[key] = block.start
                last = max(positions[one.name] for one in early) + 1
                for number in made:
                    for base in layer.bases(number, keeps, {}):
                        owner = owners.get(base)
                        if owner is not None and id(owner) in mine:
                            ends[id(owner)] = max(ends.get(id(owner), owner.end), last)
        if layers.scope:
            changes.add(layers.forward[0], layers.backward[1], layer.argument_bytes())
            for buffer in again.buffers:
                if layer.carried(buffer.number):
                    self._prolong(owners, buffer.number, buffer.last + 1, ends, mine)
            for number in held:
                last = max((reader.last + 1 for one in layers.kept for reader in one.readers), default=0)
                self._prolong(owners, number, last, ends, mine)
            self._put_forward(layers, readers, changes)
        for key, end in ends.items():
            block = mine[key]
            if end < block.end:
                changes.add(max(end, block.start), block.end, -block.bytes)
            elif end > block.end:
                changes.add(block.end, end, block.bytes)

    def _users(self, block: Block, body: Computation, readers: Mapping[Part, list[Instruction]]) -> list[Instruction]:
        """Who reads a block. A loop that only writes into it does not: those behind the loop do."""
        found = []
        for one in readers_in(block, readers):
            if one.opcode != "tuple" or one is body.root:
                found.append(one)
                continue
            for loop in readers.get((one.name, None), ()):
                own = {name for name, _ in block.parts}
                elements = [at for at, name in enumerate(one.operands) if name in own or _view_of(body, name) in own]
                for element in elements:
                    if loop.opcode != "while" or not _only_written(self._module.computations[loop.called[1]], element):
                        found.append(loop)
                    found += readers.get((loop.name, element), ())
        return found

    def _put_forward(self, layers: Layers, readers: Mapping[Part, list[Instruction]], changes: _Changes) -> None:
        """Gradients that wait today are computed with the layer's backward, and what they are of is gone then."""
        stop = layers.backward[1]
        for block in self._blocks:
            users = readers_in(block, readers)
            if block.parts and block.parts[0][0] in layers.late:
                if all(one.name in layers.late for one in users):
                    changes.add(block.start, block.end, -block.bytes)  # for a moment only
                else:
                    changes.add(stop - 1, block.start, block.bytes)
            elif layers.backward[0] <= block.start < stop < block.end and block.parts:
                ends = [
                    self._late.get(one.name, stop if at > self._last_backward else at + 1)
                    for one in users
                    for at in (self._schedule.positions[one.name],)
                    if one is not layers.body.root
                ]
                if len(ends) == len(users):
                    changes.add(max(stop, *ends) if ends else stop, block.end, -block.bytes)

    def _prolong(
        self, owners: Mapping[int, Block], number: int, end: int, ends: dict[int, int], mine: dict[int, Block]
    ) -> None:
        """A value of a single layer that the policy keeps lives on where it is."""
        block = owners.get(number)
        if block is None:
            value = self._flow.values[number].instruction
            block = next(iter(self._by_instruction.get(value.name, ())), None)
        if block is not None:
            mine.setdefault(id(block), block)
            ends[id(block)] = max(ends.get(id(block), block.end), end)

    def _takes(self, one: Instruction, root: Instruction) -> bool:
        return one is root or takes_buffers(self._module, one)


def _view_of(body: Computation, name: str) -> str:
    one = body.by_name[name]
    while one.opcode in ("bitcast", "get-tuple-element"):
        one = body.by_name[one.operands[0]]
    return one.name


def _only_written(body: Computation, element: int) -> bool:
    """Whether a loop puts a turn's part into an element of its state and does nothing else with it."""
    if body.root.opcode != "tuple" or element >= len(body.root.operands):
        return False
    writer = _view_of(body, body.root.operands[element])
    names = {
        one.name
        for one in body.instructions
        if one.opcode == "get-tuple-element" and one.attributes.get("index") == str(element)
    }
    users = {one.name for one in body.instructions if not names.isdisjoint(one.operands)}
    return users == {writer} and "dynamic-update-slice" in writer.replace("_", "-")


def _part(name: str) -> Part | None:
    """``fusion.1{2}``; ``None`` without a part."""
    text = name.partition("{")[2].rstrip("}")
    return (name.partition("{")[0], int(text)) if text.isdecimal() else None


class _Changes:
    def __init__(self) -> None:
        self._found: list[Change] = []

    def add(self, start: int, stop: int, size: int) -> None:
        if stop > start and size:
            self._found.append((start, stop, size))

    def all(self) -> tuple[Change, ...]:
        return tuple(self._found)
