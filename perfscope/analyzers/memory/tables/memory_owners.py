"""Owners of each memory at its peak."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.memory.holders import Holder, PeakHolders, memory_holders
from perfscope.model.memory import SourceLine
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace

GROUPINGS = {"modules": "by_module", "lines": "by_line", "ops": "by_op", "categories": "by_category"}
"""Grouping of a peak -> its field of `PeakHolders`."""


class Owner(Struct, frozen=True, kw_only=True):
    """An owner in one grouping of a peak."""

    peak: PeakHolders
    grouping: str
    holder: Holder

    def name(self) -> str | None:
        """Its line if known, else its name; ``None``: unknown."""
        holder = self.holder
        return holder.name if holder.line is None or holder.name is None else line_text(holder.line)

    def share(self) -> float:
        """Share of the peak."""
        return self.holder.bytes / self.peak.bytes


def line_text(line: SourceLine) -> str:
    """``train.py:12 step``."""
    text = line.file if line.line is None else f"{line.file}:{line.line}"
    return text if line.function is None else f"{text} {line.function}"


def owners(peak: PeakHolders, grouping: str) -> list[Owner]:
    """Return the owners of a peak in a grouping, most bytes first; they sum to the peak."""
    holders: tuple[Holder, ...] = getattr(peak, GROUPINGS[grouping])
    return [Owner(peak=peak, grouping=grouping, holder=holder) for holder in holders]


def _rows(trace: Trace) -> Iterator[Owner]:
    for peak in trace.fact(memory_holders):
        for grouping in GROUPINGS if peak.bytes else ():
            yield from owners(peak, grouping)


RESULT: ResultTable[Owner] = ResultTable(
    name="memory_owners",
    doc="Owners of each memory at its peak. The rows of one memory and one grouping sum to the peak.",
    columns=(
        Column("memory", str, "code", "the memory, such as cuda:0", "key", of=lambda owner: owner.peak.timeline.label),
        Column("space", str, "text", "device, host or program", "key", of=lambda owner: owner.peak.timeline.space),
        Column("grouping", str, "text", "modules, lines, ops or categories", "key"),
        Column("name", str | None, "code", "the owner; missing: unknown", "key", of=Owner.name, title="holder"),
        Column("bytes", int, "bytes", "its memory at the peak", of=lambda owner: owner.holder.bytes,
               title="at the peak"),
        Column("share", float, "share", "its share of the peak", of=Owner.share),
        Column("blocks", int, "count", "blocks; 0 if only the sum is known", of=lambda owner: owner.holder.blocks),
        Column("members", int, "count", "modules that the name covers", of=lambda owner: owner.holder.members,
               title="modules"),
    ),
    rows=_rows,
)  # fmt: skip
