"""Bytes that unfused attention moves for its scores in a compiled program: every kernel that writes or reads them.

A fused kernel (flash attention) keeps scores and probabilities on chip, also in the backward pass. It would therefore
move none of the bytes of score-sized values that pass through memory between launches. It also reads queries, keys,
values, outputs, masks and biases, so these are not counted.

On TPU, XLA places values that fit into the chip's own memory (VMEM, space 1). Traffic between kernels through VMEM is
counted separately, because it is not HBM traffic and its cost is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.graph import HloProgram, ScoreGroup, Value, score_groups
from perfscope.analyzers.hlo import (
    ITEM_BITS,
    Computation,
    Instruction,
    ModuleCost,
    Phase,
    Shape,
    costs,
    launched,
    made_by,
    phase_of,
    result_of,
)
from perfscope.model.trace import Trace

_HBM, _VMEM = 0, 1
"""Memory spaces of shapes; others are not device memory on TPU, and never contain scores on GPU."""


class ScoreUse(Struct, frozen=True, kw_only=True):
    """A kernel that writes or reads values of the scores' size."""

    instruction: Instruction
    runs: int
    """Runs per run of the program."""
    bytes: int
    """Bytes of such values in device memory, per run of the kernel."""
    chip_bytes: int
    """Bytes of such values in a TPU's VMEM, per run of the kernel."""


class WrittenAttention(Struct, frozen=True, kw_only=True):
    """Attention of a program whose scores pass through memory."""

    cost: ModuleCost
    group: ScoreGroup
    score: Value
    """The first product of the scores."""
    place: Instruction
    """The instruction whose line is the attention's."""
    times: int
    """Number of times the scores are computed, per run of the program."""
    uses: tuple[ScoreUse, ...]
    """Uses in order of the program."""

    @property
    def bytes(self) -> int:
        """Bytes per run of the program that a fused kernel would not move."""
        return sum(use.runs * use.bytes for use in self.uses)

    @property
    def chip_bytes(self) -> int:
        """The same bytes within a TPU's VMEM."""
        return sum(use.runs * use.chip_bytes for use in self.uses)

    @property
    def shape(self) -> Shape:
        """Shape of the scores."""
        return result_of(self.score.instruction)

    @property
    def phase(self) -> Phase:
        """Phase of the product that makes the scores."""
        return phase_of(self.score.instruction.op_name)


def written_attention(trace: Trace) -> tuple[WrittenAttention, ...]:
    """Return attention in all compiled programs whose scores leave the kernel that computes them, in program order."""
    return tuple(attention for cost in trace.fact(costs) for attention in _of_program(cost))


def _of_program(cost: ModuleCost) -> Iterator[WrittenAttention]:
    flow = HloProgram(cost.module, cost)
    for group in score_groups(flow):
        spaces = (_HBM, _VMEM if cost.module.platform == "tpu" else None)
        uses = []
        for computation, instruction, runs in launched(cost.module):
            moved = list(_moved(flow, group, computation, instruction))
            outside, inside = (sum(size for space, size in moved if space == wanted) for wanted in spaces)
            if outside or inside:
                uses.append(ScoreUse(instruction=instruction, runs=runs.times, bytes=outside, chip_bytes=inside))
        if uses:
            score, place = flow.nodes[group.scores[0]], flow.nodes[group.place].instruction
            times = _times(flow, cost, group)
            yield WrittenAttention(cost=cost, group=group, score=score, place=place, times=times, uses=tuple(uses))


def _times(flow: HloProgram, cost: ModuleCost, group: ScoreGroup) -> int:
    """Runs of the products of one phase: two calls of one fusion share a group."""
    scores = [flow.nodes[score] for score in group.scores]
    first = phase_of(scores[0].instruction.op_name)
    alike = [score for score in scores if phase_of(score.instruction.op_name) == first]
    return sum(cost.by_name[score.computation.name, score.instruction.name].runs for score in alike)


def _moved(
    flow: HloProgram, group: ScoreGroup, computation: Computation, instruction: Instruction
) -> Iterator[tuple[int, int]]:
    """Memory space and bytes of the group's values that a launch reads, each once, and writes."""
    if instruction.opcode == "copy-done":  # copy-start has moved it
        return
    read = {made_by(computation, name, ("bitcast",)).name for name in instruction.operands}
    for number in (flow.numbers[computation.name, name] for name in sorted(read)):
        if number in group.values:
            shape = result_of(flow.nodes[number].instruction)
            yield shape.memory_space, shape.bytes
    for number, shape in _results(flow, computation, instruction):
        if number in group.values:
            yield shape.memory_space, shape.bytes
    for number in _inside(flow, computation, instruction):  # slices of larger values
        value = flow.nodes[number]
        stack = value.reads[0] if value.op == "slice" and number in group.values else number
        if value.op in ("slice", "update") and stack in group.stacks:
            shape = flow.nodes[stack].instruction.shape
            yield shape.memory_space, -(-group.size * ITEM_BITS[shape.dtype] // 8)


def _inside(flow: HloProgram, computation: Computation, instruction: Instruction) -> Iterator[int]:
    """The launch itself, or what its fusion holds."""
    if instruction.opcode != "fusion":
        yield flow.numbers[computation.name, instruction.name]
        return
    for name in instruction.called:
        body = flow.module.computations[name]
        for inner in body.instructions:
            yield from _inside(flow, body, inner)


def _results(flow: HloProgram, computation: Computation, instruction: Instruction) -> Iterator[tuple[int, Shape]]:
    """Arrays that a launch writes, with what computes them."""
    if instruction.shape.dtype != "tuple" or instruction.opcode in ("custom-call", "copy-start"):
        yield flow.numbers[computation.name, instruction.name], result_of(instruction)
    elif instruction.opcode == "fusion" and instruction.called:
        body = flow.module.computations[instruction.called[0]]
        if body.root.opcode != "tuple":
            yield from _results(flow, body, body.root)
            return
        for name, shape in zip(body.root.operands, instruction.shape.parts, strict=True):
            yield flow.numbers[body.name, name], shape
