"""Time inside compiled regions outside of compiled graphs: Python and eager ops due to graph breaks.

A profiler shows a frame that dynamo rewrote as ``Torch-Compiled Region: 0/0``. It contains calls of compiled graphs
(``CompiledFunction`` if gradients are recorded, else ``## Call CompiledFxGraph``) and, after a graph break, the line
itself and the regions of the functions it calls and of the resume function. The rest is the region's own time: the
broken line, lookups of compiled code, the way into the next graph.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.spans.rows import lineage, nearest_ancestor
from perfscope.model.frames import Owner, owner_of
from perfscope.model.intervals import complement, union
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.compile_log import CodeLine, CompiledKernel

REGION = "Torch-Compiled Region"
_GRAPH = "CompiledFunction"
GRAPH_CALL = "## Call CompiledFxGraph"

Rows = npt.NDArray[np.int64]

_CPU_KERNEL = re.compile(r"graph_\d+_(cpp_\w+)$")

_LIBRARY = re.compile(r"(?:extern_kernels|torch\.ops\.aten|aten)\.(\w+)")

_OWN = re.compile(r"(?:torch\.ops\.)?(\w+)(?:::|\.)(\w+)(?:\.\w+)?")
"""Name of an op of a custom library: ``mine::halved``, ``torch.ops.mine.halved.default``."""

_FUSED = re.compile(r"(?:triton_\w{2,4}|cpp)_fused_")

_GraphKey = tuple[str, str]


def is_compiled(name: str) -> bool:
    """Whether a host span with this name is a run of a compiled frame or graph."""
    return name == _GRAPH or name.startswith((REGION, GRAPH_CALL))


class Window(Struct, frozen=True, kw_only=True):
    """An interval of host time."""

    thread: int
    start_ns: int
    end_ns: int


class Region(Struct, frozen=True, kw_only=True):
    """One run of a compiled frame."""

    compile_id: str | None
    """``None`` if this version of torch does not record it."""
    outer: int | None
    """Index of the enclosing region."""
    own: tuple[Window, ...]
    """Its time outside of compiled graphs and inner regions; without the way into the first graph for outermost
    regions, because a frame that compiles whole has that as well.
    """
    graphs: int
    """Number of calls of compiled graphs directly in it."""


def regions(trace: Trace) -> tuple[Region, ...]:
    """Return every run of a compiled frame, by thread and start."""
    slices = trace.rows["slices"]
    by_prefix = {
        REGION: [code for code, text in enumerate(trace.strings) if text == REGION or text.startswith(REGION + ":")],
        _GRAPH: [code for code, text in enumerate(trace.strings) if text == _GRAPH or text.startswith(GRAPH_CALL)],
    }
    real = slices["kind"] != SliceKind.PYTHON
    is_region = real & np.isin(slices["name"], by_prefix[REGION])
    marked = is_region | (real & np.isin(slices["name"], by_prefix[_GRAPH]))
    rows = np.flatnonzero(is_region)
    index = {int(row): index for index, row in enumerate(rows.tolist())}
    around = nearest_ancestor(trace, slices["parent"][rows], is_region)
    marks = np.flatnonzero(marked)
    holders = nearest_ancestor(trace, slices["parent"][marks], marked)
    inside: dict[int, list[int]] = defaultdict(list)
    for mark, holder in zip(marks.tolist(), holders.tolist(), strict=True):
        if holder != MISSING and is_region[holder]:
            inside[holder].append(mark)
    return tuple(
        Region(
            compile_id=(trace.text(int(slices["name"][row])).partition(": ")[2] or None),
            outer=index.get(int(outer)),
            own=_own(trace, row, inside[row], outermost=int(outer) == MISSING, is_region=is_region),
            graphs=sum(not is_region[mark] for mark in inside[row]),
        )
        for row, outer in zip(rows.tolist(), around.tolist(), strict=True)
    )


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


# Kernels of the log of inductor that host spans of a trace belong to.
#
# A call of a compiled graph (``## Call CompiledFxGraph <hash> ##``) runs its kernels and library calls as its children:
# ``triton_poi_fused_add_0`` or ``graph_0_cpp_fused_add_0`` (with inductor's kernel profile), and ``aten::mm`` for
# ``extern_kernels.mm``. They follow the order of the output code, so the k-th one is the k-th call of the log. The
# graph of a hash follows from the names: it is the graph of the log whose calls all appear in order. A frame that was
# compiled again may match several times, always with the same lines. If no graph matches, or graphs with different
# lines do, a kernel is matched by its name if that is unique in the log.


def compiled_rows(trace: Trace) -> Mapping[int, int]:
    """Map rows of ``slices`` to indices in ``CompileLog.kernels``, for matched rows; empty without a log."""
    log = trace.compile_log
    if log is None or not log.kernels:
        return {}
    slices = trace.rows["slices"]
    names = [call_name(text) for text in trace.strings]
    graphs: dict[_GraphKey, list[int]] = defaultdict(list)
    for index, kernel in enumerate(log.kernels):
        graphs[kernel.compile_id, kernel.direction].extend([index] * (1 if kernel.handle else kernel.calls))
    calls_of = {
        key: [call_name(log.kernels[index].name) or "" for index in graph_kernels]
        for key, graph_kernels in graphs.items()
    }
    result: dict[int, int] = {}
    joined: dict[tuple[int, str | None], _GraphKey | None] = {}
    for call, children in _calls(trace).items():
        ran = [(row, name) for row in children if (name := names[int(slices["name"][row])]) is not None]
        key = (int(slices["name"][call]), _region_of(trace, call))
        if key not in joined:
            fitting = _graphs_of([name for _, name in ran], calls_of, key[1])
            same = {tuple(log.kernels[index].places for index in graphs[graph]) for graph in fitting}
            joined[key] = fitting[0] if len(same) == 1 else None  # compiled again, with the same lines
        graph = joined[key]
        if graph is None:
            continue
        order = _in_order([name for _, name in ran], calls_of[graph])
        for (row, _), position in zip(ran, order, strict=True):
            if position is not None:
                result[row] = graphs[graph][position]
    _by_name_alone(trace, names, log.kernels, result)
    return result


def compiled_kernel(trace: Trace, row: int) -> CompiledKernel | None:
    """Return the kernel of the log that a row of ``slices`` is, or runs inside."""
    rows = trace.fact(compiled_rows)
    log = trace.compile_log
    if not rows or log is None:
        return None
    owner = next((rows[ancestor] for ancestor in lineage(trace, row) if ancestor in rows), None)
    return None if owner is None else log.kernels[owner]


def user_line(kernel: CompiledKernel) -> CodeLine | None:
    """Return the first of its lines that is the user's, else the first line."""
    mine = (code_line for code_line in kernel.places if owner_of(code_line.file) is Owner.USER)
    return next(mine, kernel.places[0] if kernel.places else None)


def call_name(name: str) -> str | None:
    """Return the common name of a kernel or library call; ``None`` for other names.

    ``cpp_fused_mul_0`` for ``graph_3_cpp_fused_mul_0``, ``mm`` for ``aten::mm`` and ``extern_kernels.mm``,
    ``mine.halved`` for ``mine::halved`` and ``torch.ops.mine.halved.default``.
    """
    on_cpu = _CPU_KERNEL.match(name)
    if on_cpu is not None:
        return on_cpu[1]
    if name.startswith("aten::"):
        return name.removeprefix("aten::")
    library = _LIBRARY.match(name)
    if library is not None:
        return library[1]
    if _FUSED.match(name):
        return name
    own = _OWN.fullmatch(name)
    return f"{own[1]}.{own[2]}" if own else None


def _calls(trace: Trace) -> dict[int, list[int]]:
    """Map the row of each call of a graph to its direct children, in order of start."""
    slices = trace.rows["slices"]
    codes = [code for code, text in enumerate(trace.strings) if text.startswith(GRAPH_CALL)]
    rows = np.flatnonzero(np.isin(slices["name"], codes) & (slices["kind"] != SliceKind.PYTHON))
    children: dict[int, list[int]] = {int(row): [] for row in rows}
    for row in np.flatnonzero(np.isin(slices["parent"], rows)).tolist():
        children[int(slices["parent"][row])].append(row)
    return children


def _region_of(trace: Trace, row: int) -> str | None:
    """Return the compile id of the region around a row; a backward graph is in none."""
    slices = trace.rows["slices"]
    for ancestor in lineage(trace, row):
        text = trace.text(int(slices["name"][ancestor]))
        if text.startswith(f"{REGION}: "):
            return text.removeprefix(f"{REGION}: ")
    return None


def _graphs_of(ran: Sequence[str], names: Mapping[_GraphKey, list[str]], region: str | None) -> list[_GraphKey]:
    """Return the graphs whose calls ran, in order; of several, those with every fused kernel that ran."""
    fitting = [
        key
        for key, calls in names.items()
        if calls and (region is None or key[0] == region) and all(index is not None for index in _places(calls, ran))
    ]
    if len(fitting) < 2:
        return fitting
    fused = [name for name in ran if _FUSED.match(name)]
    return [key for key in fitting if [name for name in names[key] if _FUSED.match(name)] == fused]


def _places(wanted: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """Return the position of each wanted name in ``names``, after the previous one.

    ``None`` for a name that does not follow.
    """
    positions: list[int | None] = []
    index = 0
    for name in wanted:
        while index < len(names) and names[index] != name:
            index += 1
        positions.append(index if index < len(names) else None)
        index += 1
    return positions


def _in_order(ran: Sequence[str], calls: Sequence[str]) -> list[int | None]:
    """Return the call of each span that ran; ``None`` for spans between calls (allocations, copies)."""
    order: list[int | None] = [None] * len(ran)
    for position, index in enumerate(_places(calls, ran)):
        if index is not None:
            order[index] = position
    return order


def _by_name_alone(
    trace: Trace, names: Sequence[str | None], kernels: Sequence[CompiledKernel], rows_found: dict[int, int]
) -> None:
    """Match fused kernels outside of matched graph calls, if their name is unique in the log."""
    counts = Counter(kernel.name for kernel in kernels)
    only = {kernel.name: index for index, kernel in enumerate(kernels) if counts[kernel.name] == 1}
    slices = trace.rows["slices"]
    codes = {code: only[name] for code, name in enumerate(names) if name in only and _FUSED.match(name)}
    wanted = np.isin(slices["name"], list(codes)) & (slices["kind"] != SliceKind.PYTHON)
    for row in np.flatnonzero(wanted).tolist():
        rows_found.setdefault(row, codes[int(slices["name"][row])])
