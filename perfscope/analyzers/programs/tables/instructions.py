"""Instructions of compiled programs by time."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.programs.hot_instructions import HotInstruction, HotSpots, hot_instructions
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


class Instruction(Struct, frozen=True):
    """An instruction, and the list whose time is its 100%."""

    found: HotInstruction
    spots: HotSpots

    def line(self) -> str:
        """Its line, or that of the nearest reader of its value; ``''``: unknown."""
        file, line = self.found.file, self.found.line
        return (self.found.serves or "") if file is None else file if line is None else f"{file}:{line}"


def instructions(trace: Trace) -> Iterator[Instruction]:
    """Yield the instructions of all programs, the longest of each list first."""
    for spots in trace.fact(hot_instructions):
        yield from (Instruction(found, spots) for found in spots.instructions)


RESULT: ResultTable[Instruction] = ResultTable(
    name="instructions",
    doc="Instructions of compiled programs over all their runs: measured in a recording, or modelled for one run.",
    columns=(
        Column("name", str, "code", "as the program names it", "key", lambda row: row.found.instruction, "instruction"),
        Column("program", str, "code", "its program", "key", lambda row: row.found.program),
        Column("time_ns", int, "ns", "time of all runs", of=lambda row: row.found.time_ns),
        Column("share", float, "share", "its share of the instructions' time",
               of=lambda row: row.found.time_ns / (row.spots.total_ns or 1)),
        Column("basis", str, "text", "measured, or modelled", of=lambda row: row.spots.basis),
        Column("line", str, "code", "line of the program", of=Instruction.line),
        Column("opcode", str | None, "text", "HLO's opcode", of=lambda row: row.found.opcode),
        Column("phase", str | None, "text", "forward, backward or recompute", of=lambda row: row.found.phase),
        Column("module", str, "code", "its layer: named scopes without the numbers of equal layers",
               of=lambda row: row.found.module),
        Column("scope", str | None, "code", "the user's scopes and the primitive", of=lambda row: row.found.scope),
        Column("calls", int, "count", "runs", of=lambda row: row.found.calls),
        Column("roof_ns", float | None, "ns", "least time of a run on the device", of=lambda row: row.found.roof_ns,
               title="least possible"),
        Column("headroom_ns", int | None, "ns", "measured time beyond the least, all runs",
               of=lambda row: row.found.headroom_ns, title="beyond it"),
        Column("flops", int | None, "quantity", "FLOPs of a run", of=lambda row: row.found.flops,
               title="FLOPs per call"),
        Column("bytes", int | None, "bytes", "device memory read and written by a run",
               of=lambda row: row.found.bytes, title="bytes per call"),
    ),
    rows=instructions,
)  # fmt: skip
