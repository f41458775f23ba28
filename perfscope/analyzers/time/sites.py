"""The user's line of a host span, from four sources, most exact first.

0. The log of torch.compile, for kernels and library calls of a compiled graph: inductor records the lines that each of
them computes; the first line of the user is used. A Python stack would show the call of the compiled function.

1. The op graph of a run has the executed line. Its ops are matched with the trace's by the k-th op of a name in the
step, and only in steps in which both have the same number of that name.

2. Python spans of the trace itself: the user's innermost frame that covers the moment. An op of the backward pass has
the place of its forward op.

3. Python spans of ``trace.detail``, a second recording of the same program: matched by the order of the ops in a step,
never by time.

In a recording of `perfscope run`, a call from the user's frame has the executed line (``call_line``). Other Python
spans, and ops that no call is around (``a + b``), have the line at which a function's definition begins, or, if the
function was already running, its line when recording began. ``line_is`` distinguishes them. For an annotation (a data
loader's fetch) the op graph's line is that of an op inside it, in the same function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.spans import GRAPH_CALL, compiled_kernel, lineage, nearest_ancestor, outermost, user_line
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.finding import Where
from perfscope.model.frames import Owner, parse_frame, parse_module
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp

# Looking up a member of the enumeration is slower than the comparison, which runs for each span of a stack.
_OP, _PYTHON = int(SliceKind.OP), int(SliceKind.PYTHON)

MOST_INSIDE = 1000
"""Maximum number of spans examined inside an annotation: a fetch has a few ops, a whole step has thousands."""

MOST_SITES = 20_000
"""Maximum number of spans whose call site is looked up, most time first: each takes 10 to 40 us."""


# The same call in another recording of the same program: by order within a step, never by time.
#
# Two recordings of one loop differ in every time but run the same ops in the same order. A span is the k-th of its
# (name, enclosing op's name) in its step; it corresponds to the k-th of that key in a step of the other recording with
# the same number of them. A step with the same whole op sequence is preferred. If no step agrees, nothing is matched:
# no line is better than a wrong one.


class _Calls(Struct, frozen=True, kw_only=True):
    """Host spans by step and key, in order of start."""

    place_of: dict[int, tuple[int, Hashable, int]]
    """Row of ``slices`` -> (step, key, position among the rows of its key in that step)."""
    rows_of: dict[int, dict[Hashable, list[int]]]
    """Step -> key -> rows."""
    counts: dict[int, dict[Hashable, int]]
    """Step -> key -> number of rows, a summary of the step's whole sequence."""


def _calls(trace: Trace, rows: Int64, keys: Sequence[Hashable]) -> _Calls:
    """Index the ``rows`` of ``slices`` in steps by their ``keys``."""
    starts = trace.rows["slices"]["start_ns"][rows]
    steps = steps_at(trace, starts)
    place_of: dict[int, tuple[int, Hashable, int]] = {}
    rows_of: dict[int, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index in np.argsort(starts, kind="stable").tolist():
        step, key, row = int(steps[index]), keys[index], int(rows[index])
        if step != MISSING:
            place_of[row] = (step, key, len(rows_of[step][key]))
            rows_of[step][key].append(row)
    counts = {step: {key: len(rows) for key, rows in keyed.items()} for step, keyed in rows_of.items()}
    return _Calls(place_of=place_of, rows_of=dict(rows_of), counts=counts)


def detail_row(trace: Trace, row: int) -> int | None:
    """Return the row of ``trace.detail``'s ``slices`` with the same call as ``row`` of ``trace``; None if unsure."""
    if trace.detail is None:
        return None
    ours, theirs = trace.fact(_spans_of_steps), trace.detail.fact(_spans_of_steps)
    for ancestor in lineage(trace, row):
        if ancestor not in ours.place_of:
            continue
        step, key, position = ours.place_of[ancestor]
        shape = ours.counts[step]
        agreeing = [number for number, counts in theirs.counts.items() if counts.get(key, 0) == shape[key]]
        if not agreeing:
            return None
        same = (number for number in agreeing if theirs.counts[number] == shape)
        return theirs.rows_of[next(same, agreeing[0])][key][position]
    return None


def graph_op(trace: Trace, row: int) -> GraphOp | None:
    """Return the op of ``trace.op_graph`` with the same call as ``row`` or its innermost matching op.

    None if unsure.
    """
    if trace.op_graph is None:
        return None
    graph, ours = trace.fact(_graph_ops_by_name), trace.fact(_dispatched_ops)
    for ancestor in lineage(trace, row):
        if ancestor in ours.place_of:
            op = _same_op(ours, graph, ancestor)
            if op is not None:
                return op
    return None


def _same_op(ours: _Calls, graph: Mapping[Hashable, Sequence[GraphOp]], row: int) -> GraphOp | None:
    step, name, position = ours.place_of[row]
    return graph[name][position] if len(ours.rows_of[step][name]) == len(graph[name]) else None


def graph_ops_inside(trace: Trace, enclosing: frozenset[str]) -> frozenset[int]:
    """Return ``GraphOp.index`` of the graph's ops that ran inside an op with one of these names (``aten::one_hot``)."""
    slices, ours, graph = trace.rows["slices"], trace.fact(_dispatched_ops), trace.fact(_graph_ops_by_name)
    around = [code for code, text in enumerate(trace.strings) if text in enclosing]
    rows = np.array(sorted(ours.place_of), np.int64)
    inside = nearest_ancestor(trace, rows, np.isin(slices["name"], around)) != MISSING
    result = (_same_op(ours, graph, row) for row in rows[inside].tolist())
    return frozenset(op.index for op in result if op is not None)


def _graph_ops_by_name(trace: Trace) -> dict[Hashable, list[GraphOp]]:
    """Map the profiler's name to ops of the graph: ``aten::add`` for ``aten.add.Tensor``."""
    named: dict[Hashable, list[GraphOp]] = defaultdict(list)
    for op in trace.op_graph.ops if trace.op_graph is not None else ():
        namespace, _, rest = op.name.partition(".")
        named[f"{namespace}::{rest.split('.')[0]}"].append(op)
    return named


def _dispatched_ops(trace: Trace) -> _Calls:
    """Return the ops named in the graph outside of other such ops, because inner calls are not dispatched again."""
    slices = trace.rows["slices"]
    in_graph = [code for code, text in enumerate(trace.strings) if text in trace.fact(_graph_ops_by_name)]
    wanted = (slices["kind"] == SliceKind.OP) & np.isin(slices["name"], in_graph)
    rows = outermost(trace, wanted)
    return _calls(trace, rows, [trace.strings[code] for code in slices["name"][rows].tolist()])


def _spans_of_steps(trace: Trace) -> _Calls:
    """Return ops and annotations by their name and that of the innermost enclosing op.

    A call of a compiled graph is an op in one recording and an annotation in the other, so it encloses nothing here.
    """
    slices = trace.rows["slices"]
    rows = np.flatnonzero(np.isin(slices["kind"], [SliceKind.OP, SliceKind.ANNOTATION]))
    graphs = [code for code, text in enumerate(trace.strings) if text.startswith(GRAPH_CALL)]
    encloses = (slices["kind"] == SliceKind.OP) & ~np.isin(slices["name"], graphs)
    around = nearest_ancestor(trace, slices["parent"][rows], encloses)
    outer = np.where(around == MISSING, MISSING, slices["name"][np.maximum(around, 0)])
    names = zip(slices["name"][rows].tolist(), outer.tolist(), strict=True)
    return _calls(trace, rows, [(trace.strings[name], trace.text(code)) for name, code in names])


def steps_at(trace: Trace, times_ns: Int64) -> Int64:
    """Return the number of the step window at each time; ``MISSING`` outside. Without steps the trace is one step."""
    windows = trace.fact(step_windows)
    if not windows.count:
        return np.zeros(len(times_ns), np.int64)
    order = np.argsort(windows.starts, kind="stable")
    starts, ends = windows.starts[order], windows.ends[order]
    index = np.searchsorted(starts, times_ns, side="right") - 1
    inside = (index >= 0) & (times_ns < ends[np.maximum(index, 0)])
    return np.where(inside, index, MISSING)


class CallSite(Struct, frozen=True, kw_only=True):
    """Place in the user's program that called a host span. All parts may be unknown."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    exact: bool = False
    """Whether ``line`` is the executed line."""
    running: bool = False
    """Whether ``function`` was running when recording began, so that ``line`` was its line then."""

    def line_is(self) -> str | None:
        """Meaning of ``line``, in words; None without a line."""
        if self.line is None:
            return None
        if self.exact:
            return "the line that ran"
        return f"where {self.function} {'was when recording began' if self.running else 'begins'}"

    def where(self, op: str | None = None, kernel: str | None = None) -> Where:
        """Return the call site as the place of a finding."""
        return Where(op=op, kernel=kernel, module=self.module, file=self.file, line=self.line)


UNKNOWN_SITE = CallSite()


def call_site(trace: Trace, row: int) -> CallSite:
    """Return the call site of a row of ``slices`` (``MISSING``: unknown)."""
    if row == MISSING or not trace.fact(_has_lines):
        return UNKNOWN_SITE
    known = trace.fact(_call_sites)
    if row not in known:
        known[row] = _call_site(trace, row)
    return known[row]


def _has_lines(trace: Trace) -> bool:
    """Return whether anything was recorded that names a line."""
    sources = (trace.detail, trace.op_graph, trace.compile_log)
    return any(source is not None for source in sources) or bool((trace.rows["slices"]["kind"] == _PYTHON).any())


def _call_sites(trace: Trace) -> dict[int, CallSite]:
    """Return the call sites by row; filled on look-up."""
    return {}


def _call_site(trace: Trace, row: int) -> CallSite:
    compiled = compiled_kernel(trace, row)
    site = None if compiled is None else user_line(compiled)
    if site is not None:
        return CallSite(file=site.file, line=site.line, function=site.function, exact=True)
    recorded = _from_stack(trace, row)
    if recorded.file is None and trace.detail is not None:
        match = detail_row(trace, row)
        recorded = recorded if match is None else _from_stack(trace.detail, match)
    graph = graph_op(trace, row) or _op_inside(trace, row, recorded)
    if graph is None or graph.file is None:
        forward = _around(trace, row).op_forward
        of_forward = UNKNOWN_SITE if forward == MISSING else call_site(trace, forward)
        return recorded if of_forward.file is None else of_forward
    return CallSite(
        file=graph.file,
        line=graph.line,
        function=graph.function,
        module=graph.module or recorded.module,
        exact=True,
    )


def launch_sites(trace: Trace) -> dict[int, CallSite]:
    """Map rows of ``slices`` to call sites, for the host spans that launched device work."""
    total = np.zeros(len(trace.rows["slices"]), np.int64)
    for table in (trace.rows["kernels"], trace.rows["copies"]):
        linked = table["op"] != MISSING
        np.add.at(total, table["op"][linked], (table["end_ns"] - table["start_ns"])[linked])
    rows = np.flatnonzero(total)
    rows = rows[np.argsort(-total[rows], kind="stable")][:MOST_SITES]
    return {row: call_site(trace, row) for row in rows.tolist()}


def op_of(trace: Trace, row: int) -> str | None:
    """Return the name of the innermost op around a row of ``slices``, or of the row itself; None without an op."""
    slices = trace.rows["slices"]
    for ancestor in lineage(trace, row):
        if slices["kind"][ancestor] == _OP:
            return trace.text(int(slices["name"][ancestor]))
    return None


def _op_inside(trace: Trace, row: int, recorded: CallSite) -> GraphOp | None:
    """Return an op of the graph that ran inside an annotation, called from the function in ``recorded``."""
    slices = trace.rows["slices"]
    if trace.op_graph is None or recorded.file is None or slices["kind"][row] != SliceKind.ANNOTATION:
        return None
    end = row + int(np.searchsorted(slices["start_ns"][row:], slices["end_ns"][row]))
    for inner in range(row + 1, min(end, row + MOST_INSIDE)):
        if slices["thread"][inner] != slices["thread"][row]:
            break
        graph = graph_op(trace, inner)
        if graph is None or graph.file is None or graph.function is None:
            continue
        same_file = graph.file.endswith(recorded.file) or recorded.file.endswith(graph.file)
        if same_file and graph.function.rpartition(".")[2] == recorded.function:
            return graph
    return None


def _from_stack(trace: Trace, row: int) -> CallSite:
    """Return the user's innermost frame around a row, else that of a library."""
    around, known = _around(trace, row), trace.fact(_sites_of_frames)
    if around.op_forward != MISSING:
        return _from_stack(trace, around.op_forward)
    if around.frame == MISSING:
        return UNKNOWN_SITE
    if around.frame not in known:
        known[around.frame] = _from_frame(trace, around.frame)
    return known[around.frame]


def _sites_of_frames(trace: Trace) -> dict[int, CallSite]:
    """Return the call sites by row of a Python span; filled on look-up, because many ops run in one frame."""
    return {}


def _from_frame(trace: Trace, row: int) -> CallSite:
    around = _around(trace, row)
    if around.forward != MISSING:
        return _from_stack(trace, around.forward)
    index = around.library if around.user == MISSING else around.user
    frame = None if index == MISSING else parse_frame(trace.text(int(trace.rows["slices"]["name"][index])))
    if frame is None:
        return CallSite(module=around.module)
    called = MISSING if around.call == MISSING else int(trace.rows["slices"]["call_line"][around.call])
    known = called != MISSING and index == around.user
    return CallSite(
        file=frame.file,
        line=called if known else frame.line,
        function=frame.function,
        module=around.module,
        exact=known,
        running=not known and _was_running(trace, index),
    )


class _Around(Struct, frozen=True, kw_only=True):
    """Spans around a row of ``slices``, including the row itself: rows, ``MISSING`` without one."""

    frame: int = MISSING
    """Innermost Python span; ``MISSING`` if an op of the backward pass comes first."""
    op_forward: int = MISSING
    """Forward op of that op."""
    user: int = MISSING
    """The user's innermost Python span; ``MISSING`` if an op of the backward pass comes first."""
    call: int = MISSING
    """The Python span that the user's innermost one called."""
    forward: int = MISSING
    """Forward op of that op."""
    library: int = MISSING
    """A library's innermost Python span."""
    module: str | None = None
    """Innermost module."""
    spans: int = 0
    """Number of Python spans."""


def _arounds(trace: Trace) -> dict[int, _Around]:
    """Return the enclosing spans by row; filled on look-up."""
    return {}


def _around(trace: Trace, row: int) -> _Around:
    """Return the spans around a row; each row of a deep stack is visited once."""
    known = trace.fact(_arounds)
    if row in known:
        return known[row]
    parents, missing = trace.rows["slices"]["parent"].data, list[int]()  # its values are ints of Python
    while row != MISSING and row not in known:
        missing.append(row)
        row = parents[row]
    around = _Around() if row == MISSING else known[row]
    for inner in reversed(missing):
        around = known[inner] = _further_in(trace, inner, around)
    return around


def _further_in(trace: Trace, row: int, outside: _Around) -> _Around:
    """Return the spans around ``row``, from those around its parent."""
    slices = trace.rows["slices"]
    if slices["kind"][row] != _PYTHON:
        forward = _forward_of(trace, row)
        if forward == MISSING:
            return outside
        return replace(outside, frame=MISSING, op_forward=forward, user=MISSING, call=MISSING, forward=forward)
    name = trace.text(int(slices["name"][row]))
    frame, module = parse_frame(name), parse_module(name) or outside.module
    owner = None if frame is None else frame.owner
    first = outside.user != MISSING and outside.call == MISSING
    return _Around(
        frame=row,
        user=row if owner is Owner.USER else outside.user,
        call=MISSING if owner is Owner.USER else row if first else outside.call,
        forward=MISSING if owner is Owner.USER else outside.forward,
        library=row if owner is Owner.LIBRARY else outside.library,
        module=module,
        spans=outside.spans + 1,
    )


def _forward_of(trace: Trace, row: int) -> int:
    """Return the forward op of a backward node, by autograd sequence number; else ``MISSING``."""
    slices = trace.rows["slices"]
    sequence = slices["sequence"].data[row]
    if sequence == MISSING or slices["kind"][row] != _OP or slices["forward_thread"][row] <= 0:
        return MISSING
    forward = trace.fact(_forward_ops).get(sequence, MISSING)
    return forward if forward != MISSING and slices["start_ns"][forward] < slices["start_ns"][row] else MISSING


def forward_rows(trace: Trace) -> Int64:
    """Return, per row of ``slices``, the forward op of an op of the backward pass; ``MISSING`` for others."""
    slices = trace.rows["slices"]
    result = np.full(len(slices), MISSING, np.int64)
    behind = (slices["kind"] == SliceKind.OP) & (slices["sequence"] != MISSING) & (slices["forward_thread"] > 0)
    for row in np.flatnonzero(behind).tolist():
        result[row] = _forward_of(trace, row)
    return result


def _forward_ops(trace: Trace) -> dict[int, int]:
    """Map sequence numbers to rows of forward ops; of several (some have a stale number), the one that began last."""
    slices = trace.rows["slices"]
    numbered = (slices["kind"] == SliceKind.OP) & (slices["sequence"] != MISSING) & (slices["forward_thread"] <= 0)
    rows = np.flatnonzero(numbered)
    rows = rows[np.argsort(slices["start_ns"][rows], kind="stable")]
    return dict(zip(slices["sequence"][rows].tolist(), rows.tolist(), strict=True))


def _was_running(trace: Trace, row: int) -> bool:
    """Whether every earlier Python span on its thread encloses this one, so that its call was not recorded."""
    slices, counted = trace.rows["slices"], trace.fact(_python_spans_before)
    first = int(np.searchsorted(slices["thread"], slices["thread"][row]))
    around = _around(trace, row).spans - 1
    return int(counted[row] - counted[first]) == around


def _python_spans_before(trace: Trace) -> Int64:
    """Return, per row of ``slices``, the number of Python spans in the rows before it."""
    is_python = trace.rows["slices"]["kind"] == SliceKind.PYTHON
    return np.asarray(np.cumsum(is_python) - is_python, np.int64)
