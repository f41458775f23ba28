"""What lies in memory when a compiled program needs most of it, by the line that made it."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap, OpKey, op_key
from perfscope.analyzers.compare.programs.row import LESS_LIVE, MORE_LIVE, ProgramRow
from perfscope.analyzers.compare.programs.units import PEAK, PLAN_PEAK
from perfscope.analyzers.hlo.buffers import AssignedMemory, assigned_memory
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.model.torch_plan import StepMemory, TorchPlan, category_label, memory_as_run

LASTING = "arguments, results and constants"
"""What is there all the time: it has no line of its own."""

_Place = tuple[str, str, str]


def peak_rows(
    base: HloModule, head: HloModule, lines: LineMap
) -> tuple[tuple[int, int] | None, tuple[ProgramRow, ...]]:
    """((base, head) bytes at the peak, rows that sum to the difference); ``None`` where a side does not say."""
    sides = assigned_memory(base), assigned_memory(head)
    if sides[0] is None or sides[1] is None:
        return None, ()
    by_place = _by_place(base, sides[0], lines), _by_place(head, sides[1], NO_LINES)
    rows = []
    for key in dict.fromkeys((*by_place[1], *by_place[0])):
        before, after = by_place[0].get(key, 0), by_place[1].get(key, 0)
        if before != after:
            location, what, phase = key
            change = MORE_LIVE if after > before else LESS_LIVE
            rows.append(
                ProgramRow(change=change, what=what, place=location, phase=phase, amounts={PEAK: (before, after)})
            )  # fmt: skip
    return (sides[0].peak_bytes, sides[1].peak_bytes), tuple(rows)


def plan_peak_rows(base: TorchPlan, head: TorchPlan, lines: LineMap) -> tuple[ProgramRow, ...]:
    """Rows that sum to how the peak of the step changed, as the programs run it; none where a side does not say it.

    What has no line of its own is told by its category.
    """
    sides = memory_as_run(base), memory_as_run(head)
    if sides[0] is None or sides[1] is None:
        return ()
    by_line = _by_line(sides[0], lines), _by_line(sides[1], NO_LINES)
    rows = []
    for key in dict.fromkeys((*by_line[1], *by_line[0])):
        before, after = by_line[0].get(key, 0), by_line[1].get(key, 0)
        if before != after:
            location, what = key
            change = MORE_LIVE if after > before else LESS_LIVE
            rows.append(ProgramRow(change=change, what=what, place=location, amounts={PLAN_PEAK: (before, after)}))
    return tuple(rows)


def _by_line(step: StepMemory, lines: LineMap) -> dict[tuple[str, str], int]:
    result: dict[tuple[str, str], int] = {("", "many small blocks"): step.left_bytes}
    for holder in step.holders:
        location = ""
        if holder.file is not None and holder.line is not None:
            location = f"{lines.file(holder.file)}:{lines.line(holder.file, holder.line)}"
        key = (location, category_label(holder.category))
        result[key] = result.get(key, 0) + holder.bytes
    return result


def _by_place(module: HloModule, memory: AssignedMemory, lines: LineMap) -> dict[_Place, int]:
    result: dict[_Place, int] = {("", LASTING, ""): memory.whole_run_bytes}
    for key, size in _live(module, memory, lines):
        result[key] = result.get(key, 0) + size
    return result


def _live(module: HloModule, memory: AssignedMemory, lines: LineMap) -> Iterator[tuple[_Place, int]]:
    wanted = {buffer.instruction for buffer in memory.live_at_peak}
    keys = {
        instruction.name: _key(module, instruction, lines)
        for _, instruction in module.instructions()
        if instruction.name in wanted
    }
    for buffer in memory.live_at_peak:
        key = keys.get(buffer.instruction)
        if key is None:
            yield ("", "values without a line", ""), buffer.size
            continue
        phase = key.phase if key.phase in ("backward", "recompute") else ""
        if key.file:
            location = f"{key.file}:{key.line}" if key.line >= 0 else key.file
            yield (location, key.primitive, phase), buffer.size
        else:
            yield ("/".join(key.path), key.primitive or key.opcode, phase), buffer.size


def _key(module: HloModule, instruction: Instruction, lines: LineMap) -> OpKey:
    """Of what makes a value; of a fusion that says no line, the first op in it that does."""
    if instruction.file is None and instruction.opcode == "fusion" and instruction.called:
        inner = module.computations[instruction.called[0]].instructions
        instruction = next((op for op in inner if op.file is not None), instruction)
    return op_key(instruction, lines)
