"""What the scores of written-out attention cost a compiled program: every time a kernel writes or reads them.

A fused kernel (flash attention) keeps scores and probabilities on chip, in the backward too. So all bytes of values as
large as the scores that pass through memory between launches are bytes that it would not move; queries, keys, values,
outputs, masks and biases it reads as well, and they are not counted.

On TPU XLA lays values that fit into the chip's own memory (VMEM, space 1): what goes from kernel to kernel there is
counted apart, for it is none of the HBM's traffic and has no known price.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.cost.ops import result_of
from perfscope.analyzers.hlo.cost.types import Phase, phase_of
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import ITEM_BITS, Computation, Instruction, Shape
from perfscope.analyzers.hlo.program import costs, launched
from perfscope.analyzers.hlo.views import made_by
from perfscope.analyzers.programs.attention import ScoreGroup, products_of, score_groups
from perfscope.model.trace import Trace

_HBM, _VMEM = 0, 1
"""Memory spaces of shapes; those of other numbers are not device memory on TPU, and none that scores lie in on GPU."""


class ScoreUse(Struct, frozen=True, kw_only=True):
    """A kernel that writes or reads values of the scores' size."""

    instruction: Instruction
    runs: int
    """In one run of the program."""
    bytes: int
    """Of such values in device memory, each run."""
    chip_bytes: int
    """The same in a TPU's VMEM."""


class WrittenAttention(Struct, frozen=True, kw_only=True):
    """Attention of a program whose scores pass through memory."""

    cost: ModuleCost
    group: ScoreGroup
    times: int
    """The scores are computed, in one run of the program."""
    uses: tuple[ScoreUse, ...]
    """In order of the program."""

    @property
    def bytes(self) -> int:
        """Moved in one run of the program, that a fused kernel would not move."""
        return sum(use.runs * use.bytes for use in self.uses)

    @property
    def chip_bytes(self) -> int:
        """The same within a TPU's VMEM."""
        return sum(use.runs * use.chip_bytes for use in self.uses)

    @property
    def shape(self) -> Shape:
        """Shape of the scores."""
        return self.group.scores[0].result

    @property
    def phase(self) -> Phase:
        """Of the product that makes the scores."""
        return phase_of(self.group.scores[0].instruction.op_name)


def written_attention(trace: Trace) -> tuple[WrittenAttention, ...]:
    """Attention in all compiled programs whose scores leave the kernel that computes them, in program order."""
    return tuple(attention for cost in trace.fact(costs) for attention in _of_program(cost))


def _of_program(cost: ModuleCost) -> Iterator[WrittenAttention]:
    flow = Flow(cost.module)
    for group in score_groups(flow, products_of(cost, flow)):
        spaces = (_HBM, _VMEM if cost.module.platform == "tpu" else None)
        uses = tuple(
            ScoreUse(instruction=instruction, runs=runs.times, bytes=moved[0], chip_bytes=moved[1])
            for computation, instruction, runs in launched(cost.module)
            if any(moved := [_moved(flow, group, computation, instruction, space) for space in spaces])
        )
        if uses:
            yield WrittenAttention(cost=cost, group=group, times=_times(flow, cost, group), uses=uses)


def _times(flow: Flow, cost: ModuleCost, group: ScoreGroup) -> int:
    """Runs of the products of one phase: two calls of one fusion share a group."""
    first = phase_of(group.scores[0].instruction.op_name)
    names = [
        (flow.values[score.number].computation.name, score.instruction.name)
        for score in group.scores
        if phase_of(score.instruction.op_name) == first
    ]
    return sum(cost.by_name[name].runs for name in names)


def _moved(flow: Flow, group: ScoreGroup, computation: Computation, instruction: Instruction, space: int | None) -> int:
    """Bytes of the group's values that a launch reads from a memory and writes to it; 0 for none."""
    if space is None:
        return 0
    return _read(flow, group, computation, instruction, space) + _written(flow, group, computation, instruction, space)


def _read(flow: Flow, group: ScoreGroup, computation: Computation, instruction: Instruction, space: int) -> int:
    """Bytes of the group's values that a launch reads from a memory, each once."""
    if instruction.opcode == "copy-done":  # copy-start has read it
        return 0
    read = {made_by(computation, name, ("bitcast",)).name for name in instruction.operands}
    numbers = [flow.numbers[computation.name, name] for name in read]
    whole = sum(
        result_of(flow.values[number].instruction).bytes
        for number in numbers
        if number in group.values and result_of(flow.values[number].instruction).memory_space == space
    )
    return whole + sum(
        _bytes(group, flow.values[inner.operands[0]].instruction.shape, space)
        for number in _inside(flow, computation, instruction)
        if (inner := flow.values[number]).instruction.opcode in ("dynamic-slice", "slice")
        and number in group.values
        and inner.operands[0] in group.stacks
    )


def _written(flow: Flow, group: ScoreGroup, computation: Computation, instruction: Instruction, space: int) -> int:
    """Bytes of the group's values that a launch writes to a memory."""
    whole = sum(
        shape.bytes
        for number, shape in _results(flow, computation, instruction)
        if number in group.values and shape.memory_space == space
    )
    return whole + sum(
        _bytes(group, flow.values[number].instruction.shape, space)
        for number in _inside(flow, computation, instruction)
        if number in group.stacks and flow.opcode(number) == "dynamic-update-slice"
    )


def _bytes(group: ScoreGroup, stack: Shape, space: int) -> int:
    """Bytes of one slice of a larger value that lies in this memory."""
    return 0 if stack.memory_space != space else -(-group.size * ITEM_BITS[stack.dtype] // 8)


def _inside(flow: Flow, computation: Computation, instruction: Instruction) -> Iterator[int]:
    """The launch itself, or what its fusion holds."""
    if instruction.opcode != "fusion":
        yield flow.numbers[computation.name, instruction.name]
        return
    for name in instruction.called:
        body = flow.module.computations[name]
        for inner in body.instructions:
            yield from _inside(flow, body, inner)


def _results(flow: Flow, computation: Computation, instruction: Instruction) -> Iterator[tuple[int, Shape]]:
    """Arrays that a launch writes, with what computes them."""
    if instruction.opcode == "copy-done":
        return
    if instruction.shape.dtype != "tuple" or instruction.opcode in ("custom-call", "copy-start"):
        yield flow.numbers[computation.name, instruction.name], result_of(instruction)
    elif instruction.opcode == "fusion" and instruction.called:
        body = flow.module.computations[instruction.called[0]]
        if body.root.opcode != "tuple":
            yield from _results(flow, body, body.root)
            return
        for name, shape in zip(body.root.operands, instruction.shape.parts, strict=True):
            yield flow.numbers[body.name, name], shape
