"""Blocks alive at the peak of each memory."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.memory.holders import memory_holders
from perfscope.analyzers.memory.phases import allocating_op
from perfscope.analyzers.memory.tables.memory_owners import line_text
from perfscope.model.memory import MemoryPhase, MemoryTimeline
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory


class Block(Struct, frozen=True, kw_only=True):
    """A row of ``MemoryTimeline.blocks``: a block, or several equal ones."""

    trace: Trace
    timeline: MemoryTimeline
    row: int

    def number(self, name: str) -> int:
        """The value of a column."""
        return int(self.timeline.blocks[name][self.row])

    def text(self, name: str) -> str | None:
        """The text of a column; ``None`` if it is empty."""
        return self.timeline.text(self.number(name)) or None

    @property
    def category(self) -> MemoryCategory:
        """Category of its memory."""
        return MemoryCategory(self.number("category"))

    @property
    def line(self) -> str | None:
        """The user's line that allocated it."""
        line = self.number("line")
        return None if line == MISSING else line_text(self.timeline.lines[line])

    @property
    def op(self) -> str | None:
        """The op that allocated it."""
        return allocating_op(self.timeline.of(self.trace), self.number("op"))

    @property
    def phase(self) -> str | None:
        """Phase of the step in which it was allocated."""
        phase = self.number("phase")
        return MemoryPhase(phase).name.lower() if phase else None

    @property
    def step(self) -> int | None:
        """Step in which it was allocated."""
        step = self.number("step")
        return None if step == MISSING else step

    @property
    def start(self) -> int | None:
        """Its allocation, from the first position of the timeline; ``None``: before the recording."""
        return None if self.number("before") else self.number("start") - self.timeline.first

    @property
    def end(self) -> int | None:
        """Its end, from the first position of the timeline; ``None``: after the recording."""
        return None if self.number("after") else self.number("end") - self.timeline.first


def _rows(trace: Trace) -> Iterator[Block]:
    for peak in trace.fact(memory_holders):
        for row in peak.timeline.alive_at(peak.position).tolist() if peak.bytes else ():
            yield Block(trace=trace, timeline=peak.timeline, row=row)


RESULT: ResultTable[Block] = ResultTable(
    name="peak_blocks",
    title="Blocks at the peak",
    doc="Blocks alive at the peak of each memory, largest first. They sum to the peak, except for memory that was "
    "allocated before the recording.",
    columns=(
        Column("memory", str, "code", "the memory, such as cuda:0", "key", of=lambda block: block.timeline.label),
        Column("space", str, "text", "device, host or program", "key", of=lambda block: block.timeline.space),
        Column("bytes", int, "bytes", "its memory", of=lambda block: block.number("bytes")),
        Column("category", str, "text", "category of its memory", title="what"),
        Column("name", str | None, "code", "tensor", of=lambda block: block.text("name"), title="tensor"),
        Column("module", str | None, "code", "module that allocated it", of=lambda block: block.text("module")),
        Column("line", str | None, "place", "line of the program that allocated it"),
        Column("op", str | None, "code", "op that allocated it"),
        Column("phase", str | None, "text", "phase of the step in which it was allocated", title="made in"),
        Column("step", int | None, "count", "step in which it was allocated"),
        Column("blocks", int, "count", "number of equal blocks", of=lambda block: block.number("count")),
        Column("start", int | None, "count", "its allocation, on the memory's axis from the start of the recording; "
               "missing: before it"),
        Column("end", int | None, "count", "its end on the same axis; missing: after the recording"),
    ),
    rows=_rows,
)  # fmt: skip
