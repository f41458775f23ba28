"""Spans of a recording for a finding that names ops, instructions, or moments of a memory.

Every span is from the recording itself: of the kernels and copies that ops launched (without any, the ops on the host),
of the rows of instructions, of blocks that lived on the trace's clock. If the recording has none of them there is no
span.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.analyzers.spans import Window, work_inside, worst_spans
from perfscope.model.finding import MOST_SPANS, Span
from perfscope.model.intervals import Intervals
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import HloModule
    from perfscope.analyzers.programs import Part

Int64 = npt.NDArray[np.int64]


def spans_of_slices(trace: Trace, rows: Iterable[int]) -> tuple[Span, ...]:
    """Return the device work launched inside host spans (rows of ``slices``), longest first; without any, the spans."""
    return _longest(*_work_of(trace, np.fromiter(rows, np.int64)))


def spans_of_regions(trace: Trace, regions: Iterable[Iterable[int]]) -> tuple[Span, ...]:
    """Return a span per region of consecutive host spans: from the begin of its first work to the end of its last.

    Longest first.
    """
    starts, ends = [], []
    for region in regions:
        begins, stops = _work_of(trace, np.fromiter(region, np.int64))
        if len(begins):
            starts.append(int(begins.min()))
            ends.append(int(stops.max()))
    return _longest(np.array(starts, np.int64), np.array(ends, np.int64))


def spans_of_ops(trace: Trace, ops: Iterable[int]) -> tuple[Span, ...]:
    """Return the work of ops of the op graph in the timed steps, as far as both could be matched; longest first."""
    chosen = np.fromiter(dict.fromkeys(ops), np.int64)
    rows = [spans[chosen] for spans in trace.fact(graph_time).spans]
    if not rows:
        return ()
    chosen_rows = np.concatenate(rows)
    return spans_of_slices(trace, chosen_rows[chosen_rows != MISSING].tolist())


def spans_of_instructions(trace: Trace, module: HloModule, names: Iterable[str]) -> tuple[Span, ...]:
    """Return the rows of instructions on all devices, longest first; a loop with its own row is one span."""
    from perfscope.analyzers.programs import Part

    return spans_of_parts(trace, [Part(module=module, instructions=tuple(names), modelled_ns=None)])


def spans_of_parts(trace: Trace, parts: Iterable[Part]) -> tuple[Span, ...]:
    """Return the same as `spans_of_instructions` for the instructions of several parts."""
    from perfscope.analyzers.hlo import rows_of

    if not len(trace.rows["hlo_ops"]):
        return ()
    found = [rows_of(trace, part.module, part.instructions) for part in parts]
    rows = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    ops = trace.rows["hlo_ops"]
    return _longest(ops["start_ns"][rows], ops["end_ns"][rows])


def spans_of_peak(timeline: MemoryTimeline, blocks: npt.ArrayLike) -> tuple[Span, ...]:
    """Return the time of a memory's peak, followed by the lifetimes of ``blocks`` (rows), largest first.

    Empty if its positions are not times of the trace: another recording, counted events, a schedule.
    """
    if not _is_on_clock(timeline):
        return ()
    return (*spans_at(timeline, timeline.peak()[0]), *spans_of_blocks(timeline, blocks))[:MOST_SPANS]


def spans_of_blocks(timeline: MemoryTimeline, blocks: npt.ArrayLike) -> tuple[Span, ...]:
    """Return the lifetimes of blocks (rows), largest first; empty as for `spans_of_peak`."""
    if not _is_on_clock(timeline):
        return ()
    rows, table = np.asarray(blocks, np.int64), timeline.blocks
    # a block that is never freed lives to the end of the recording
    ends = np.minimum(table["end"][rows], timeline.last)
    return worst_spans(table["start"][rows], ends, table["bytes"][rows])


def spans_at(timeline: MemoryTimeline, position: int) -> tuple[Span, ...]:
    """Return the span from a moment of a memory to its next change, else to its end; empty as for `spans_of_peak`."""
    if not _is_on_clock(timeline):
        return ()
    later = timeline.live().positions
    index = int(np.searchsorted(later, position, side="right"))
    end = int(later[index]) if index < len(later) else timeline.last
    return (Span(start_ns=position, end_ns=max(end, position + 1)),)


def spans_of_windows(windows: Iterable[Window]) -> tuple[Span, ...]:
    """Return spans of host time, longest first."""
    chosen_rows = list(windows)
    starts = np.array([window.start_ns for window in chosen_rows], np.int64)
    return _longest(starts, np.array([window.end_ns for window in chosen_rows], np.int64))


def spans_within(trace: Trace, found: Intervals) -> tuple[Span, ...]:
    """Return the parts of some intervals on the trace's clock within the recording, longest first."""
    low, high = trace.span_ns()
    seen = (found.ends > low) & (found.starts < high)
    return _longest(np.maximum(found.starts[seen], low), np.minimum(found.ends[seen], high))


def _is_on_clock(timeline: MemoryTimeline) -> bool:
    return timeline.axis == "ns" and not timeline.detail and timeline.space != "program"


def _work_of(trace: Trace, rows: Int64) -> tuple[Int64, Int64]:
    """Return starts and ends of the device work launched inside host spans; without a device, of the spans."""
    tables = [name for name in ("kernels", "copies") if len(trace.rows[name])] if len(trace.rows["kernels"]) else []
    found = [(trace.rows[name], work_inside(trace, name, rows)) for name in tables] or [(trace.rows["slices"], rows)]
    starts = np.concatenate([table["start_ns"][mine] for table, mine in found])
    ends = np.concatenate([table["end_ns"][mine] for table, mine in found])
    return starts, ends


def _longest(starts: Int64, ends: Int64) -> tuple[Span, ...]:
    return worst_spans(starts, ends, ends - starts)
