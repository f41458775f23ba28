"""Contents of memory at the peak of a compiled program, by the line that made them."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap, op_key
from perfscope.analyzers.compare.programs.row import LIVE, ProgramRow, difference_rows
from perfscope.analyzers.compare.programs.units import PEAK, PLAN_PEAK
from perfscope.analyzers.hlo import AssignedMemory, HloModule, assigned_memory
from perfscope.model.torch_plan import StepMemory, TorchPlan, category_label, memory_as_run

LASTING = "arguments, results and constants"
"""Values that exist all the time and have no line."""

_Place = tuple[str, str, str]
"""Line, maker of the value, and phase in which it is made."""


def peak_rows(
    base: HloModule, head: HloModule, lines: LineMap
) -> tuple[tuple[int, int] | None, tuple[ProgramRow, ...]]:
    """Return the (base, head) bytes at the peak and rows that sum to the difference; ``None`` if a side has no peak."""
    sides = assigned_memory(base), assigned_memory(head)
    if sides[0] is None or sides[1] is None:
        return None, ()
    by_place = _by_place(base, sides[0], lines), _by_place(head, sides[1], NO_LINES)
    return (sides[0].peak_bytes, sides[1].peak_bytes), tuple(difference_rows(*by_place, PEAK, LIVE))


def plan_peak_rows(base: TorchPlan, head: TorchPlan, lines: LineMap) -> Iterator[ProgramRow]:
    """Yield rows that sum to the change of the step's peak as the programs run it; none if a side has no peak.

    Values without a line are named by their category.
    """
    sides = memory_as_run(base), memory_as_run(head)
    if sides[0] is not None and sides[1] is not None:
        yield from difference_rows(_by_line(sides[0], lines), _by_line(sides[1], NO_LINES), PLAN_PEAK, LIVE)


def _by_line(step: StepMemory, lines: LineMap) -> dict[_Place, int]:
    result: dict[_Place, int] = {("", "many small blocks", ""): step.left_bytes}
    for holder in step.holders:
        known = holder.file is not None and holder.line is not None
        key = (lines.place(holder.file or "", holder.line) if known else "", category_label(holder.category), "")
        result[key] = result.get(key, 0) + holder.bytes
    return result


def _by_place(module: HloModule, memory: AssignedMemory, lines: LineMap) -> dict[_Place, int]:
    """Return bytes at the peak; a fusion without a line takes the line of its first op that has one."""
    result: dict[_Place, int] = {("", LASTING, ""): memory.whole_run_bytes}
    by_name = {instruction.name: instruction for _, instruction in module.instructions()}
    for buffer in memory.live_at_peak:
        instruction = by_name.get(buffer.instruction)
        if instruction is None:
            place: _Place = ("", "values without a line", "")
        else:
            if instruction.file is None and instruction.opcode == "fusion" and instruction.called:
                inner = module.computations[instruction.called[0]].instructions
                instruction = next((op for op in inner if op.file is not None), instruction)
            key = op_key(instruction, lines)
            phase = key.phase if key.phase in ("backward", "recompute") else ""
            place = (key.place(), key.primitive or ("" if key.file else key.opcode), phase)
        result[place] = result.get(place, 0) + buffer.size
    return result
