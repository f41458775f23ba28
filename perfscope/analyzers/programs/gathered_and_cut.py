"""All-gathers whose result is only divided again in another way: XLA's "involuntary full rematerialization".

XLA's partitioner has a few direct ways from one sharding to another (all-to-all, permutation). Without one it gathers
the whole value on every device, and each device then slices its new part.
"""

from __future__ import annotations

from msgspec import Struct

from perfscope.analyzers.graph import HloProgram
from perfscope.analyzers.hlo import SAME_ELEMENTS, Collective, HloModule, Instruction, Shape, collectives_of
from perfscope.model.trace import Trace

_PASSED = SAME_ELEMENTS | {"all-gather", "all-gather-start", "all-gather-done", "copy-start", "copy-done"}
"""Opcodes between the gather and the slice."""

_MOST_VALUES = 2_000
"""Maximum number of values examined after an all-gather, or before the start of a slice."""


class GatheredAndCut(Struct, frozen=True, kw_only=True):
    """A value that was gathered whole and sliced again."""

    gathers: tuple[Collective, ...]
    """In execution order; each gathers along another axis."""
    whole: Shape
    """The value as every device holds it."""
    before: tuple[int, ...]
    """Previous number of parts per dimension, in XLA's notation of shardings: ``[2, 1, 4]``."""
    after: tuple[int, ...]
    cut: Instruction
    """The first instruction that slices a device's part."""

    @property
    def bytes(self) -> int:
        """Bytes that all its all-gathers move to a device per run of the program."""
        return sum(one.bytes_a_run for one in self.gathers)


def gathered_and_cut(trace: Trace) -> tuple[GatheredAndCut, ...]:
    """Return such values of all programs, in schedule order."""
    return tuple(found for module in trace.hlo if module.num_partitions > 1 for found in _of(module))


def _of(module: HloModule) -> list[GatheredAndCut]:
    gathers = [one for one in collectives_of(module) if one.kind == "all-gather"]
    if not gathers or not any(one.opcode == "partition-id" for _, one in module.instructions()):
        return []
    flow, result, taken = HloProgram(module), [], set[str]()
    for gather in gathers:
        if gather.done.name in taken:
            continue
        end = _end(flow, flow.numbers[gather.computation.name, gather.done.name])
        if end is None:
            continue
        passed, cuts = end
        chain = [one for one in gathers if flow.numbers[one.computation.name, one.done.name] in passed]
        taken.update(one.done.name for one in chain)
        first, last = flow.nodes[flow.numbers[gather.computation.name, gather.done.name]], chain[-1]
        source = first.computation.by_name[gather.start.operands[0]].shape
        whole = max((one.done.shape for one in chain), key=lambda shape: shape.elements, default=last.done.shape)
        part = cuts[0].shape
        if len(source.dims) != len(whole.dims) or len(part.dims) != len(whole.dims):
            continue
        result.append(
            GatheredAndCut(
                gathers=tuple(chain),
                whole=whole,
                before=_parts(whole, source),
                after=_parts(whole, part),
                cut=cuts[0],
            )
        )
    return result


def _parts(whole: Shape, part: Shape) -> tuple[int, ...]:
    return tuple(-(-all_ // max(1, mine)) for all_, mine in zip(whole.dims, part.dims, strict=True))


def _end(flow: HloProgram, gathered: int) -> tuple[set[int], list[Instruction]] | None:
    """Values that a gathered one goes through, and what cuts it; ``None`` where anything else uses it."""
    waiting, seen, cuts = [gathered], set[int](), list[Instruction]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        if len(seen) > _MOST_VALUES or not flow.users[number]:
            return None  # the program returns the whole value
        for user in flow.users[number]:
            value = flow.nodes[user]
            if number in value.names or value.instruction.opcode in _PASSED:
                waiting.append(user)
            elif _is_own_part(flow, user, number):
                cuts.append(value.instruction)
            else:
                return None
    return (seen, cuts) if cuts else None


def _is_own_part(flow: HloProgram, number: int, source: int) -> bool:
    """Return whether it is a slice of the value that begins at the device's number."""
    value = flow.nodes[number]
    if value.instruction.opcode != "dynamic-slice" or value.reads[0] != source:
        return False
    if value.size >= flow.nodes[source].size:
        return False
    waiting, seen = list(value.reads[1:]), set[int]()
    while waiting and len(seen) < _MOST_VALUES:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if flow.nodes[one].instruction.opcode == "partition-id":
            return True
        waiting += [*flow.nodes[one].names, *flow.nodes[one].reads]
    return False
