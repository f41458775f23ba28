"""Products of 16-bit weights that run in float32 because their other factor is float32: silent promotion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from perfscope.analyzers.graph import HloProgram
from perfscope.analyzers.hlo import Instruction, InstructionCost, ModuleCost, casts, fusions_of, kernels_of, primitive

NARROW = frozenset({"bf16", "f16"})
CAST = "convert_element_type"
"""JAX's own cast, as in a promotion or ``astype``; a cast by XLA has the name of the op that needs it."""

_MOST_VALUES = 2_000
"""Maximum number of values examined that lead to a factor; a layer has some hundred."""


class Widened(Struct, frozen=True, kw_only=True):
    """A float32 product with a factor that was widened from 16 bits."""

    cost: ModuleCost
    row: InstructionCost
    narrow: str
    """``bf16`` or ``f16``."""
    widens: Instruction | None
    """Instruction that made the other factor float32, else the cast of this one; ``None`` if it is not in the program.
    """
    forward: bool
    """Whether it is outside of a backward pass."""
    argument: str
    """The program's float32 argument that the other factor was combined with, ``ps[0]['s']``; ``''`` without one."""


def widened_products(cost: ModuleCost) -> list[Widened]:
    """Return such products of one program, in execution order; empty if only a backward pass has them.

    A product of 16-bit factors that is summed in float32 (``preferred_element_type``) has float32 gradients.
    """
    module, callers, holders = cost.module, fusions_of(cost.module), kernels_of(cost)
    places = {
        (name, one.name): place
        for name, computation in module.computations.items()
        for place, one in enumerate(computation.instructions)
    }
    found = []
    flow: HloProgram | None = None
    for row in cost.rows:
        if row.place == "control" or not row.runs or row.instruction.opcode in ("fusion", "async-start"):
            continue
        if not any(kind.dtype == "f32" for kind in row.once.products):
            continue
        factors = row.instruction.operands[:2]
        made = [_cast(casts(module, callers, row.computation, name)) for name in factors]
        cast = next((one for one in made if one is not None), None)
        own = [one for one in made if one is not None and primitive(one[0].op_name) == CAST]
        if cast is None or (all(made) and not own):
            continue  # both factors are 16-bit in the program, and XLA widens them itself
        flow = flow or HloProgram(module)
        other = next((name for name, one in zip(factors, made, strict=True) if one is None), None)
        behind, argument = (None, "") if other is None else _behind(flow, flow.numbers[row.computation, other])
        if other is None:
            behind = own[0][0]
        kernel = next(iter(holders.around(row)), row)
        place = places[kernel.computation, kernel.instruction.name]
        found.append(
            (place, Widened(cost=cost, row=row, narrow=cast[1], widens=behind, argument=argument, forward=forward(row)))
        )
    found.sort(key=lambda pair: pair[0])
    return [one for _, one in found] if any(one.forward for _, one in found) else []


def forward(row: InstructionCost) -> bool:
    """Whether an instruction is outside of a backward pass."""
    return "transpose(" not in row.instruction.op_name


def first_forward(found: Sequence[Widened]) -> Widened:
    """Return the first forward product whose widening instruction has a known line, else the first forward product."""
    candidates = [one for one in found if one.forward]
    known = (one for one in candidates if one.widens is not None and one.widens.file is not None)
    return next(known, candidates[0])


def _cast(steps: Iterator[tuple[Instruction, Instruction]]) -> tuple[Instruction, str] | None:
    for made, source in steps:
        if made.shape.dtype == "f32" and source.shape.dtype in NARROW:
            return made, source.shape.dtype
    return None


def _behind(flow: HloProgram, factor: int) -> tuple[Instruction | None, str]:
    """Return the instruction that made a factor float32, and the float32 argument that caused it (``''``: none).

    It is the op that reads the argument, else the farthest of JAX's own casts from 16 bits.
    """
    start = flow.nodes[factor].instruction
    waiting, seen = [(factor, start)], set[int]()
    cast: Instruction | None = None
    while waiting and len(seen) < _MOST_VALUES:
        number, reader = waiting.pop(0)
        if number in seen:
            continue
        seen.add(number)
        value = flow.nodes[number]
        one = value.instruction
        if one.shape.dtype not in ("f32", "tuple"):
            continue
        if one.opcode == "convert" and flow.nodes[value.reads[0]].instruction.shape.dtype in NARROW:
            cast = one if primitive(one.op_name) == CAST and one.file is not None else cast
            continue
        if one.opcode == "parameter" and not value.names and one.shape.dims:
            return reader, one.op_name
        reader = reader if one.file is None else one
        waiting += [(behind, reader) for behind in value.names or value.reads]
    return cast, ""
