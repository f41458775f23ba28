"""The module and the user's line that each block was asked for from. Vectorised, and judged once for each distinct op.

The same sources as for any host span (`facts/call_sites.py`): the op graph has qualified modules and the line that
ran; Python spans have modules by class (``Block_3.Linear_7``: numbered as torch.profiler numbers them, one inside the
other) and the line where the user's function begins; an op of the backward pass has those of its forward op. A
recorded stack has the line, and no module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.alignment import graph_op
from perfscope.analyzers.facts.memory_stacks import user_frames
from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.analyzers.facts.recompute import autograd_nodes
from perfscope.model.frames import Owner, parse_frame, parse_module
from perfscope.model.memory import Int64, SourceLine
from perfscope.model.trace import MISSING, SliceKind, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Where blocks come from. Shapes (blocks,); ``MISSING`` where it is not known."""

    modules: npt.NDArray[np.int64]
    """Index into ``names``."""
    lines: npt.NDArray[np.int64]
    """Index into ``places``."""
    names: tuple[str, ...]
    places: tuple[SourceLine, ...]


class _Known:
    """Distinct values, numbered as they come."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.places: dict[SourceLine, int] = {}

    def module(self, name: str | None) -> int:
        return self.names.setdefault(name, len(self.names)) if name else MISSING

    def line(self, place: SourceLine | None) -> int:
        return MISSING if place is None else self.places.setdefault(place, len(self.places))


def block_sites(trace: Trace, ops: Int64, frames: Int64, *, graph: Trace | None = None) -> Sites:
    """Sites of blocks by their rows of ``slices`` and of ``frames``, each ``MISSING`` where there is none.

    ``graph``: a trace with the same rows that also holds an op graph (`facts/memory_categories.py`).
    """
    known = _Known()
    distinct, inverse = np.unique(ops, return_inverse=True)
    module, line = _of_ops(trace, distinct, known)
    if graph is not None and graph.op_graph is not None:
        _of_graph(graph, distinct, module, line, known)
    modules, lines = module[inverse], line[inverse]
    stacked = (lines == MISSING) & (frames != MISSING)
    if stacked.any():
        lines[stacked] = _of_frames(trace, frames[stacked], known)
    return Sites(modules=modules, lines=lines, names=tuple(known.names), places=tuple(known.places))


def _of_ops(trace: Trace, ops: Int64, known: _Known) -> tuple[Int64, Int64]:
    python, masks = trace.rows["slices"]["kind"] == SliceKind.PYTHON, trace.fact(_python_masks)
    start = _forward_side(trace, ops) if python.any() else np.full(len(ops), MISSING, np.int64)
    user = nearest_ancestor(trace, start, masks["user"])
    user = np.where(user == MISSING, nearest_ancestor(trace, start, masks["library"]), user)
    inside = nearest_ancestor(trace, start, masks["module"])
    module = _each(inside, lambda row: known.module(_module_path(trace, row)))
    return module, _each(user, lambda row: known.line(_span_line(trace, row)))


def _of_graph(trace: Trace, ops: Int64, module: Int64, line: Int64, known: _Known) -> None:
    qualified: dict[int, set[int]] = {}
    certain = np.zeros(len(ops), bool)
    for index, row in enumerate(ops.tolist()):
        found = graph_op(trace, row) if row != MISSING else None
        if found is None:
            continue
        if found.module:
            name = known.module(found.module)
            qualified.setdefault(int(module[index]), set()).add(name)
            module[index], certain[index] = name, True
        if found.file is not None:
            line[index] = known.line(SourceLine(file=found.file, line=found.line, function=found.function))
    # ops that the graph has not, in a call that all of the graph's ops put into one module, are in that module too
    for span, names in qualified.items():
        if span != MISSING and len(names) == 1:
            module[~certain & (module == span)] = names.pop()


def _of_frames(trace: Trace, frames: Int64, known: _Known) -> Int64:
    return _each(trace.fact(user_frames)[frames], lambda row: known.line(_frame_line(trace, row)))


def _each(rows: Int64, found: Callable[[int], int]) -> Int64:
    """``found(row)`` for every row, asked once for each distinct one; ``MISSING`` stays so."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    values = [MISSING if row == MISSING else found(row) for row in distinct.tolist()]
    return np.array(values, np.int64)[inverse]


def _frame_line(trace: Trace, row: int) -> SourceLine:
    frames = trace.rows["frames"]
    number = int(frames["line"][row])
    return SourceLine(
        file=trace.text(int(frames["file"][row])),
        line=None if number == MISSING else number,
        function=trace.text(int(frames["name"][row])),
    )


def _span_line(trace: Trace, row: int) -> SourceLine | None:
    frame = parse_frame(trace.text(int(trace.rows["slices"]["name"][row])))
    return None if frame is None else SourceLine(file=frame.file, line=frame.line, function=frame.function)


def _module_path(trace: Trace, row: int) -> str:
    """``Transformer_0.Block_3.Linear_7`` for the row of a module's call: the modules around it, outermost first."""
    names, parents = trace.rows["slices"]["name"], trace.fact(_module_parents)
    parts = []
    while row != MISSING:
        parts.append(parse_module(trace.text(int(names[row]))) or "")
        row = parents[row]
    return ".".join(reversed(parts))


def _module_parents(trace: Trace) -> dict[int, int]:
    """Row of a module's call -> row of the call around it, or ``MISSING``."""
    modules = trace.fact(_python_masks)["module"]
    rows = np.flatnonzero(modules)
    around = nearest_ancestor(trace, trace.rows["slices"]["parent"][rows].astype(np.int64), modules)
    return dict(zip(rows.tolist(), around.tolist(), strict=True))


def _forward_side(trace: Trace, ops: Int64) -> Int64:
    """Each op, or for one inside an autograd node the forward op whose gradient that is."""
    slices = trace.rows["slices"]
    node = nearest_ancestor(trace, ops, trace.fact(autograd_nodes) & (slices["sequence"] != MISSING))
    numbers, rows = trace.fact(_forward_rows)
    if not len(numbers):
        return ops
    wanted = np.where(node == MISSING, MISSING, slices["sequence"][node])
    index = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    matches = (node != MISSING) & (numbers[index] == wanted)
    return np.where(matches, rows[index], ops)


def _forward_rows(trace: Trace) -> tuple[Int64, Int64]:
    """Sequence numbers, sorted, and for each the last op outside the backward pass that shows it."""
    slices = trace.rows["slices"]
    numbered = (slices["kind"] == SliceKind.OP) & (slices["sequence"] != MISSING) & (slices["forward_thread"] <= 0)
    rows = np.flatnonzero(numbered)
    rows = rows[np.lexsort((slices["start_ns"][rows], slices["sequence"][rows]))]
    numbers = slices["sequence"][rows]
    last = np.ones(len(rows), bool)
    last[:-1] = numbers[1:] != numbers[:-1]
    return numbers[last].astype(np.int64), rows[last]


def _python_masks(trace: Trace) -> dict[str, npt.NDArray[np.bool_]]:
    """By kind of Python span: a mask over ``slices``. Judged once for each distinct name."""
    slices = trace.rows["slices"]
    python = slices["kind"] == SliceKind.PYTHON
    codes: dict[str, list[int]] = {"user": [], "library": [], "module": []}
    for code in np.unique(slices["name"][python]).tolist():
        name = trace.text(code)
        frame = parse_frame(name)
        if parse_module(name) is not None:
            codes["module"].append(code)
        elif frame is not None and frame.owner is not Owner.FRAMEWORK:
            codes["user" if frame.owner is Owner.USER else "library"].append(code)
    return {kind: python & np.isin(slices["name"], found) for kind, found in codes.items()}
