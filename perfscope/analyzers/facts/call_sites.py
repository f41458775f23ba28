"""From a host span to the user's line: three sources, the most exact one first.

1. The op graph of a run has the line that ran. Its ops are matched with the trace's by the k-th op of a
   name in the step, and only in steps where both have the same number of that name.
2. Python spans of the trace itself: the innermost frame of the user's that covers the moment.
3. Python spans of ``trace.detail``, a second recording of the same program: matched by the order of the
   ops in a step, never by time (``alignment.py``).

Python spans carry the line where a function's definition begins, not the line that ran; ``exact`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.facts.alignment import detail_row, graph_op
from perfscope.analyzers.facts.frames import Frame, Owner, parse_frame, parse_module
from perfscope.analyzers.facts.nesting import lineage
from perfscope.analyzers.finding import Where
from perfscope.analyzers.trace import MISSING, SliceKind, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where in the user's program a host span was called from. All parts may be unknown."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    exact: bool = False
    """True: ``line`` is the line that ran. False: the line where ``function`` begins."""

    def line_is(self) -> str | None:
        """What ``line`` says, in words; None without a line."""
        if self.line is None:
            return None
        return "the line that ran" if self.exact else f"where {self.function} begins"

    def where(self, op: str | None = None, kernel: str | None = None) -> Where:
        """As place of a finding."""
        return Where(op=op, kernel=kernel, module=self.module, file=self.file, line=self.line)


UNKNOWN_SITE = CallSite()


def call_site(trace: Trace, row: int) -> CallSite:
    """The call site of a row of ``slices`` (``MISSING``: unknown)."""
    if row == MISSING:
        return UNKNOWN_SITE
    recorded = _from_stack(trace, row)
    graph = graph_op(trace, row)
    if graph is not None and graph.file is not None:
        return CallSite(
            file=graph.file,
            line=graph.line,
            function=graph.function,
            module=graph.module or recorded.module,
            exact=True,
        )
    if recorded.file is not None or trace.detail is None:
        return recorded
    match = detail_row(trace, row)
    return recorded if match is None else _from_stack(trace.detail, match)


def op_of(trace: Trace, row: int) -> str | None:
    """Name of the innermost op that encloses a row of ``slices``, or of the row itself; None if none does."""
    slices = trace.rows["slices"]
    for ancestor in lineage(trace, row):
        if slices["kind"][ancestor] == SliceKind.OP:
            return trace.text(int(slices["name"][ancestor]))
    return None


def _from_stack(trace: Trace, row: int) -> CallSite:
    slices = trace.rows["slices"]
    module: str | None = None
    library: Frame | None = None
    found: Frame | None = None
    for ancestor in lineage(trace, row):
        if slices["kind"][ancestor] != SliceKind.PYTHON:
            continue
        name = trace.text(int(slices["name"][ancestor]))
        module = module or parse_module(name)
        frame = parse_frame(name) if found is None else None
        if frame is None:
            if found is not None and module is not None:
                break
        elif frame.owner is Owner.USER:
            found = frame
        elif frame.owner is Owner.LIBRARY:
            library = library or frame
    found = found or library
    if found is None:
        return CallSite(module=module)
    return CallSite(file=found.file, line=found.line, function=found.function, module=module)
