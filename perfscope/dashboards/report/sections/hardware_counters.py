"""Hardware counters: FLOPs executed and bytes moved, by op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Listing, Section, Text, notes, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.ops import CountedOp, CountedWork

FEW_ROWS = 10
"""Ops shown at once."""

_NO_TIMES = (
    "the times of this recording are not the program's: to count, the profiler runs each kernel several times "
    "and waits for it; record times in another run, without counters"
)
_INSTRUCTIONS = (
    "FLOP measured: add + mul + 2 fma instructions of all threads. Tensor core work is not included, so ops "
    "that use tensor cores show fewer FLOP than their shapes imply; padded tiles and other algorithms (FFT, Winograd) "
    "change it"
)
_HALF = "float16 instructions also load constants, so an op on float32 data has some"


def counted_sections(counted: Sequence[CountedWork]) -> tuple[Section, ...]:
    """A section per recording that has counters."""
    return tuple(_section(work, alone=len(counted) == 1) for work in counted)


def _section(work: CountedWork, *, alone: bool) -> Section:
    whose = "" if alone or work.rank is None else f", rank {work.rank}"
    return Section(
        title=f"Hardware counters{whose}",
        summary=f"{work.ranges:,} range{'' if work.ranges == 1 else 's'} with {work.counters:,} counters, {work.basis}",
        blocks=(
            Text(_NO_TIMES, warning=True),
            table(tuple(_columns(work)), work.ops, few=FEW_ROWS, left=work.left, rest="ops"),
            *notes(*_remarks(work)),
            Listing(items=work.metrics, few=0, left=work.counters - len(work.metrics), rest="counters", detail=True),
        ),
    )


def _columns(work: CountedWork) -> Iterator[Column[CountedOp]]:
    yield Column("op" if work.joined else "range", lambda op: op.name, "code")
    yield Column("line", lambda op: op.line, "place")
    yield Column("calls", lambda op: op.calls, "count", drop=2)
    yield Column("kernels", lambda op: op.kernels, "count", drop=1)
    yield Column("FLOP measured", lambda op: op.flops, "quantity")
    yield Column("in float16", lambda op: op.float16_flops or None, "quantity", drop=3)
    yield Column("FLOP by shapes (modelled)", lambda op: op.modelled_flops, "quantity")
    yield Column("memory traffic measured", lambda op: op.dram_bytes, "bytes")
    yield Column("least by shapes (modelled)", lambda op: op.modelled_bytes, "bytes")
    yield Column("tensor cores", lambda op: "yes" if op.tensor_cores else "")


def _remarks(work: CountedWork) -> Iterator[str]:
    if any(op.flops is not None for op in work.ops):
        yield _INSTRUCTIONS
    if any(op.float16_flops for op in work.ops):
        yield _HALF
    if work.unnamed:
        many = "one range is" if work.unnamed == 1 else f"{work.unnamed:,} ranges are"
        yield f"{many} of a kernel without a recorded name (`__missing__`)"
