"""Time inside compiled regions that no compiled graph runs in: what graph breaks leave to Python and to eager ops.

A profiler shows a frame that dynamo rewrote as ``Torch-Compiled Region: 0/0``. Inside it stand calls of compiled graphs
(``CompiledFunction`` where gradients are recorded, ``## Call CompiledFxGraph`` else) and, behind a graph break, the
line itself and the regions of the functions it calls and of the resume function. What a region does outside of all
those is its own time: the broken line, lookups of compiled code, the way into the next graph.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.model.intervals import complement, union
from perfscope.model.trace import MISSING, SliceKind, Trace

REGION = "Torch-Compiled Region"
_GRAPH = "CompiledFunction"
_INDUCTOR_GRAPH = "## Call CompiledFxGraph"

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of host time."""

    thread: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One run of a compiled frame."""

    compile_id: str | None
    """``None``: this version of torch does not write it."""
    outer: int | None
    """Index of the region around it."""
    own: tuple[Window, ...]
    """Its time outside compiled graphs and regions inside it; the way into the first graph left out where no region is
    around it: a frame that compiles whole has that as well."""
    graphs: int
    """Calls of compiled graphs directly in it."""


def regions(trace: Trace) -> tuple[Region, ...]:
    """Every run of a compiled frame, by thread and start."""
    slices = trace.rows["slices"]
    by_prefix = {
        REGION: [code for code, text in enumerate(trace.strings) if text == REGION or text.startswith(REGION + ":")],
        _GRAPH: [code for code, text in enumerate(trace.strings) if text == _GRAPH or text.startswith(_INDUCTOR_GRAPH)],
    }
    real = slices["kind"] != SliceKind.PYTHON
    is_region = real & np.isin(slices["name"], by_prefix[REGION])
    marked = is_region | (real & np.isin(slices["name"], by_prefix[_GRAPH]))
    rows = np.flatnonzero(is_region)
    index = {int(row): place for place, row in enumerate(rows.tolist())}
    around = nearest_ancestor(trace, slices["parent"][rows], is_region)
    marks = np.flatnonzero(marked)
    holders = nearest_ancestor(trace, slices["parent"][marks], marked)
    inside: dict[int, list[int]] = defaultdict(list)
    for mark, holder in zip(marks.tolist(), holders.tolist(), strict=True):
        if holder != MISSING and is_region[holder]:
            inside[holder].append(mark)
    return tuple(
        Region(
            compile_id=_id_of(trace.text(int(slices["name"][row]))),
            outer=index.get(int(outer)),
            own=_own(trace, row, inside[row], outermost=int(outer) == MISSING, is_region=is_region),
            graphs=sum(not is_region[mark] for mark in inside[row]),
        )
        for row, outer in zip(rows.tolist(), around.tolist(), strict=True)
    )


def _id_of(name: str) -> str | None:
    return name.partition(": ")[2] or None


def _own(
    trace: Trace, row: int, inside: list[int], *, outermost: bool, is_region: npt.NDArray[np.bool_]
) -> tuple[Window, ...]:
    slices = trace.rows["slices"]
    start, end = int(slices["start_ns"][row]), int(slices["end_ns"][row])
    graphs = [mark for mark in inside if not is_region[mark]]
    if outermost and graphs:
        start = min(end, int(slices["start_ns"][graphs].min()))
    taken = union(slices["start_ns"][inside], slices["end_ns"][inside])
    free = complement(taken, start, end)
    thread = int(slices["thread"][row])
    return tuple(
        Window(thread=thread, start_ns=begin, end_ns=finish)
        for begin, finish in zip(free.starts.tolist(), free.ends.tolist(), strict=True)
    )
