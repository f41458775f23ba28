"""The host waits for the device, and the device then waits for the host.

Example:
    Before::

        for batch in loader:
            total += train_step(batch).item()   # waits for the device in each step

    After::

        for batch in loader:
            total += train_step(batch).detach()
        print(total.item())

Why it costs: an accelerator works through a queue that the host fills ahead of time. A call that needs a
value of the device (`.item()`, `nonzero`, an `if` on a tensor, a copy to the host) holds the host until
the queue is empty. Afterwards the device is idle until the host has launched the next work. The wait
itself is harmless; the cost is the idle time after it.

How it is found: from the account of the step, the time with cause *sync*, by the line that waited. Idle time of a
device is charged to the blocking call that was waiting when the queue became empty, if the launch that ended the idle
time came after that call returned (CUDA, HIP and driver calls; asynchronous copies into pageable memory block too). At
most the length of the wait is charged, because the host could have worked ahead for as long; the rest is launching
(`launch_bound`) or other work of the host (`host_bound`). A wait from which the host returns in time to keep the device
busy costs nothing, and a trace with only such waits is clean. The profiler's own waits are not counted, and time in a
data loader belongs to `input_stall`. Reads of the loss at the very end of a step count, but not after the last step.

The line is the executed one in a recording of `perfscope run`, mostly; Python stacks of other traces only have the
first line of the function. `line_is` in the evidence distinguishes the two. Reads of one kind in lines of a function
that are at most two apart (`print(loss.item(), accuracy.item())`) are one finding, with the sum of their idle time: one
read of all values replaces them. Reads inside an installed package are one finding per package, because its lines are
not the program's to change.

Without an accelerator in the recording, the op graph of a run is searched for ops that would make an accelerator drain
its queue. These findings are structural, without time. Left out are the range check of `one_hot` on a CPU, which an
accelerator omits if the number of classes is given, and reads of tensors that the step creates without an input
(`torch.randint`): they stay on the host unless the program names a device, which a recording on a CPU does not show. In
a program with compiled graphs, whose ops are not in an op graph, the recorded ops outside of the graphs are searched.
Their line is the one at which a graph ends in the same function, from the log of torch.compile.

In a planned program (`perfscope compile`) two more kinds of reads are left out: by a line that read once in the five
planned steps (a loss that is read every N steps), and of values that torch itself keeps on the host (the optimizer's
counters).

In a JAX program the reads that `perfscope run` saw are listed instead (`float(x)`, `.item()`, `block_until_ready` ...):
a line counts if it reads in at least half of the steps with reads. Reads after the last step are left out.

Fix: keep the value on the device. Use `torch.where` or a mask in place of a branch, accumulate metrics in
a tensor and read them every N steps, `torch.nonzero_static` or a fixed capacity in place of `nonzero`,
`x.to("cpu", non_blocking=True)` into pinned memory in place of `.cpu()`, and put the read after the
launches of the next step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops import spans_of_ops, spans_within
from perfscope.analyzers.spans import named_slices, nearest_ancestor, outermost, slice_name, worst_spans
from perfscope.analyzers.time.account import abstain_if_unrecorded, idle_pieces, step_accounts, worst_device
from perfscope.analyzers.time.calls import NO_OP, blocking_calls
from perfscope.analyzers.time.fixes import read_fix, situation
from perfscope.analyzers.time.model_calls import answered_calls
from perfscope.analyzers.time.near_lines import Place, by_place, lines_in_words
from perfscope.analyzers.time.sites import CallSite, call_site, graph_ops_inside, op_of, steps_at
from perfscope.analyzers.time.steps import step_windows, steps_known, timed_cost, whole_ns
from perfscope.model.finding import (
    MOST_ROWS,
    AbstainError,
    Cell,
    Finding,
    Removed,
    Scope,
    Where,
    fit_title,
)
from perfscope.model.frames.kinds import FrameKind, frame_kind, package_of
from perfscope.model.intervals import union
from perfscope.model.severity import MEDIUM_SHARE, Severity
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns, ordinal

if TYPE_CHECKING:
    from perfscope.model.jax_log import HostRead
    from perfscope.model.op_graph import GraphOp, OpGraph


EVERY = 0.5
"""Share of the steps with reads from which a line is reported: fewer are occasional logging."""

MOST_APART = 5
"""Largest distance in steps between two reads of a line: rarer reads already follow the advice."""

MANY = 16
"""Reads of one tensor or line in a step from which they are taken for reads of its elements, one after the other."""

_INSIDE_LIBRARY = (
    "The read is inside `{package}`, not in your line. If it reads a small argument (a time step, a length), keep that "
    "tensor on the CPU; else look for the option of `{package}` that reads or checks values in each step."
)
_LIBRARY_ADVICE = (
    "The read is inside `{package}`, not in your line: turn off the option of it that waits for results or checks "
    "them, or call `jax.jit` in its place."
)

IDLE_SHARE = MEDIUM_SHARE
"""Smallest share of the step for all lines: less is within the variation between launches."""

LINE_SHARE = 0.001
"""Smallest share of the step for a finding about one line."""

READS = {
    "item": "`.item()`, `float()` or a print",
    "bool": "a branch on a tensor",
    "nonzero": "`nonzero` or a boolean index",
    "masked_select": "`masked_select`",
    "unique": "`unique`",
    "equal": "`torch.equal`",
    "to_host": "a copy to the host",
    "check": "a check of a distribution's arguments",
}
"""Kind of ``GraphOp.host_read`` in words; other kinds are shown unchanged."""

CHECKED_ON_CPU_ONLY = frozenset({"aten::one_hot"})
"""Ops that read values to check them on a CPU but not on CUDA (ATen, `one_hot` with a number of classes)."""

_KIND_OF_OP = {
    "aten::_local_scalar_dense": "item",
    "aten::item": "item",
    "aten::is_nonzero": "bool",
    "aten::equal": "equal",
    "aten::nonzero": "nonzero",
    "aten::index": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique2": "unique",
    "aten::copy_": "copy",
    "aten::_to_copy": "copy",
    "aten::to": "copy",
}

READING_OPS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::item",
        "aten::is_nonzero",
        "aten::equal",
        "aten::nonzero",
        "aten::masked_select",
    }
)
"""Ops that read a tensor's values on the host, with any arguments."""


# Reads of arrays by the host in a JAX run: findings by line about reads that would drain an accelerator's queue.


def read_findings(trace: Trace) -> Iterable[Finding]:
    """Yield one structural finding per line that reads an array in at least half of the steps with reads.

    The host's waiting time is measured, but the idle time of an accelerator is unknown, so there is no cost. Reads
    between steps, before the first one and on other threads are excluded.
    """
    lines: dict[tuple[str | None, int | None, str | None], list[HostRead]] = defaultdict(list)
    steps: set[int] = set()
    for read in trace.host_reads:
        if read.main_thread and read.step is not None:
            lines[(read.file, read.line, read.library)].append(read)
            steps.add(read.step)
    often: dict[Place, list[HostRead]] = {}
    for (file, line, library), reads in lines.items():
        seen = {read.step for read in reads}
        apart = _steps_apart(trace, seen)
        if len(seen) >= EVERY * len(steps) and apart <= MOST_APART:
            calls = frozenset(read.call for read in reads)
            often[Place((library, reads[0].function, apart, calls), file, line)] = reads
    for group in by_place(often):
        yield _finding(trace, group)


def _steps_apart(trace: Trace, steps: Collection[int | None]) -> int:
    """Return the median distance between steps with reads; for a single one, the number of steps that were watched."""
    numbers = np.unique(np.array([step for step in steps if step is not None], np.int64))
    return round(float(np.median(np.diff(numbers)))) if len(numbers) > 1 else steps_known(trace) or 1


def _finding(trace: Trace, lines: Mapping[Place, list[HostRead]]) -> Finding:
    """Return the finding about reads of near lines, which have the same calls, library and distance in steps."""
    reads = [read for of_line in lines.values() for read in of_line]
    library, apart = reads[0].library, _steps_apart(trace, {read.step for read in reads})
    calls = sorted({read.call for read in reads})
    named = " / ".join(f"`{call}`" for call in calls)
    package = library.partition("/")[0] if library else None
    subject = f"{named} in {package} reads an array" if package else f"{named} reads an array"
    place = f", at {library}" if library else ""
    stalls = [read for read in reads if read.ready is False]
    each, steps = sum(read.duration_ns for read in reads) // len(reads), len({read.step for read in reads})
    often = "each step" if apart == 1 else f"every {ordinal(apart)} step"
    begins = np.array([read.begin_ns for read in reads], np.int64)
    rows: list[dict[str, Cell]] = []
    for call in calls:
        of_call = [read for read in reads if read.call == call]
        rows.append(
            {
                "call": call,
                "reads": len(of_call),
                "not_ready": sum(read.ready is False for read in of_call),
                "wait_ns": sum(read.duration_ns for read in of_call),
                "bytes": sum(read.bytes or 0 for read in of_call),
            }
        )
    rows.sort(key=lambda row: -int(row["wait_ns"] or 0))
    whose = f"in {package} " if package else ""
    waits = f"waits {'' if package else 'for the device '}in {len(stalls):,} of {len(reads):,} calls"
    if not stalls:
        waits = f"reads an array that is ready in {len(reads):,} calls"
    return Finding(
        subject=subject,
        title=fit_title(
            f"{named} {whose}{waits}, {format_ns(each)} per call ({often}){lines_in_words(lines)}",
            named,
        ),
        detail=f"It reads in {steps:,} steps{place}. The resulting idle time of an accelerator is unknown.",
        severity="medium" if 2 * len(stalls) >= len(reads) and apart == 1 else "low",
        basis="structural",
        advice=_LIBRARY_ADVICE.format(package=package) if package else _read_fix(trace, calls, len(reads) / steps),
        where=Where(file=reads[0].file, line=min((place.line for place in lines if place.line), default=None)),
        evidence=tuple(rows[:MOST_ROWS]),
        spans=spans_within(trace, union(begins, begins + [max(1, read.duration_ns) for read in reads])),
    )


def _fix_at(trace: Trace, kind: str, file: str | None, line: int | None) -> str:
    """Return the fix for a read at a line; a read inside a library cannot be changed at a line of the program."""
    if kind == "item" and _reads_elements(trace, file, line):
        kind = "elements"
    if file is not None and frame_kind(f"{file}(1): f") not in (FrameKind.USER, FrameKind.UNKNOWN):
        return _INSIDE_LIBRARY.format(package=package_of(file))
    return read_fix(kind, trace.fact(situation))


def _reads_elements(trace: Trace, file: str | None, line: int | None) -> bool:
    """Whether a line reads so many parts of one tensor in a step that it reads its elements, one after the other."""
    graph = trace.op_graph
    if graph is None:
        return False
    reads = [op for op in graph.ops if op.host_read == "item" and (op.file, op.line) == (file, line)]
    return len(reads) >= MANY and len({graph.tensors[index].storage for op in reads for index in op.inputs}) == 1


def _read_fix(trace: Trace, calls: Sequence[str], per_step: float) -> str:
    waits = all(call == "block_until_ready" for call in calls)
    return read_fix("wait" if waits else "elements" if per_step >= MANY else "item", trace.fact(situation))


class _Line(Struct, kw_only=True):
    """Waits of one op at one line, or at near lines of a function."""

    op: str
    site: CallSite
    calls: set[str] = field(default_factory=set)
    rows: list[int] = field(default_factory=list)
    """Rows of ``calls`` of the waits."""
    wait_ns: int = 0
    charged: int = 0
    pieces: list[int] = field(default_factory=list)
    """Idle intervals charged to it: rows of ``idle_pieces``."""
    idle_ns: int = 0
    """Idle time of the device that idles most for these waits, because devices idle in parallel."""
    lines: str = ""
    """The lines for the end of a title; empty for one line."""
    parts: tuple[_Line, ...] = ()
    """The same by line; empty for one line."""

    @property
    def waits(self) -> int:
        return len(self.rows)

    def kind(self) -> str:
        """Key of ``fixes.read_fix``: how the program waited."""
        if all("Free" in name for name in self.calls):
            return "free"
        if self.op == NO_OP and all("synchronize" in name.casefold() for name in self.calls):
            return "wait"
        return _KIND_OF_OP.get(self.op, "")

    def in_words(self) -> str:
        """Subject that waits: the Python operation if the op identifies it, else the calls and the op."""
        known = {"item": "`.item()`", "nonzero": "`nonzero`"}.get(self.kind())
        return known or f"{'/'.join(sorted(self.calls))}{'' if self.op == NO_OP else f' in {self.op}'}"

    def row(self) -> Mapping[str, Cell]:
        return {
            "op": self.op,
            "site": self.site.where().label(),
            "line_is": self.site.line_is(),
            "idle_ns": self.idle_ns,
            "waits": self.waits,
            "waits_that_cost": self.charged,
            "wait_ns": self.wait_ns,
            "calls": ", ".join(sorted(self.calls)),
        }


def examined(trace: Trace) -> Scope:
    """Count runtime calls.

    Without an accelerator, ops of the graph, or steps in which reads of arrays were observed.
    """
    if "device_work" in trace.recorded:
        return Scope(len(trace.rows["calls"]), "runtime calls in the recording")
    if trace.op_graph is not None or trace.torch_plans:
        return op_records(trace)
    if trace.compile_log is not None and "host_ops" in trace.recorded:
        return Scope(len(trace.rows["slices"]), "ops and spans of the host in the recording")
    steps = max(len(trace.rows["steps"]), len(trace.step_times_ns), trace.window_steps or 0)
    return Scope(steps + len(trace.host_reads), "steps and reads of arrays")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per waiting line: with device work by measured idle time, else from the op graph."""
    if "device_work" in trace.recorded:
        return _measured(trace)
    if trace.op_graph is not None:
        return _structural(trace, trace.op_graph)
    if "host_reads" in trace.recorded:
        return read_findings(trace)
    if trace.compile_log is not None and "host_ops" in trace.recorded:
        return _recorded(trace)
    raise AbstainError(
        "no accelerator work in the recording, and no other evidence; `perfscope run` records it (the op graph "
        "of a PyTorch program, the host's reads of a JAX program)",
        ("op_graph",),
    )


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield reads of the recorded step, by line, if the other planned steps read at that line too."""
    from perfscope.model.documents.torch_plan import ALL_STEPS

    if trace.op_graph is None:
        raise AbstainError("the ops of the planned program were not kept")
    times: dict[tuple[str, int], int] = defaultdict(int)
    for torch_plan in trace.torch_plans:
        for read in torch_plan.plan.made_up:
            if read.place is not None:
                # a program that ended before all steps were planned may read in every step
                times[read.place.file, read.place.line] += read.times if torch_plan.plan.stopped == ALL_STEPS else 2
    yield from _structural(
        trace,
        trace.op_graph,
        lambda op: op.host_read == "to_host" or times[op.file or "", op.line or 0] > 1,
    )


def _measured(trace: Trace) -> list[Finding]:
    absent = {"runtime_calls", "launch_links"} - trace.recorded
    if absent:
        raise AbstainError("runtime calls and their links to device work were not recorded")
    if "waiting_calls" not in trace.recorded:
        raise AbstainError("the profiler recorded launch calls but no calls that wait for the device")
    whole = whole_ns(trace)
    lines = _lines(trace)
    costly = sorted((line for line in lines if line.idle_ns), key=lambda line: -line.idle_ns)
    if sum(line.idle_ns for line in costly) < IDLE_SHARE * whole or not costly:
        abstain_if_unrecorded(trace.fact(step_accounts), IDLE_SHARE * whole)
        return []
    harmless = sorted((line for line in lines if not line.idle_ns), key=lambda line: -line.wait_ns)
    shown = [line for line in costly if line.idle_ns >= LINE_SHARE * whole][:MOST_ROWS] or costly[:1]
    return [_finding_host_sync(trace, line, harmless if line is shown[0] else [], whole) for line in shown]


def _finding_host_sync(trace: Trace, line: _Line, harmless: list[_Line], whole: int) -> Finding:
    detail, words = "", line.in_words()
    pieces, charged = worst_device(idle_pieces(trace, "sync")), np.array(line.pieces, np.int64)
    if harmless:
        waited = format_ns(sum(other.wait_ns for other in harmless))
        count = sum(other.waits for other in harmless)
        detail = f"{count:,} other waits ({waited} of waiting) left the device busy: they cost nothing."
    return Finding(
        subject="/".join(sorted(line.calls)) if line.op == NO_OP else line.op,
        title=fit_title(
            f"{words} drains the device: {line.charged:,} of {line.waits:,} waits cost{line.lines}",
            words,
        ),
        detail=detail,
        **timed_cost(trace, line.idle_ns, whole),
        covers_ns={"sync": line.idle_ns},
        advice=_fix_at(trace, line.kind(), line.site.file, line.site.line),
        where=line.site.where(op=line.op),
        evidence=tuple(other.row() for other in (*(line.parts or (line,)), *harmless)[:MOST_ROWS]),
        spans=worst_spans(pieces.start_ns[charged], pieces.end_ns[charged], pieces.cost_ns[charged]),
        removes=(Removed(table="waits", rows=np.array(line.rows, np.int64)),),
    )


def _lines(trace: Trace) -> list[_Line]:
    """Return all waits of the program by op and place, with the idle time charged to them."""
    calls, pieces = trace.rows["calls"], worst_device(idle_pieces(trace, "sync"))
    of_wait: dict[int, list[int]] = defaultdict(list)
    for piece, wait in enumerate(pieces.wait.tolist()):
        of_wait[wait].append(piece)
    lines: dict[tuple[str, Where], _Line] = {}
    for call in trace.fact(blocking_calls).tolist():
        parent = int(calls["parent"][call])
        name = trace.text(int(calls["name"][call]))
        op, site = op_of(trace, parent) or NO_OP, call_site(trace, parent)
        # outside of every op, only the call identifies the wait
        line = lines.setdefault((name if op == NO_OP else op, site.where()), _Line(op=op, site=site))
        line.calls.add(name)
        line.rows.append(call)
        line.wait_ns += int(calls["end_ns"][call] - calls["start_ns"][call])
        line.charged += call in of_wait
        line.pieces += of_wait.get(call, ())
        for piece in of_wait.get(call, ()):
            line.idle_ns += int(pieces.cost_ns[piece])
    executed, others = dict[Place, _Line](), list[_Line]()
    for (name, where), line in lines.items():
        if line.site.exact:
            executed[Place((name, line.site.function, where.module), line.site.file, line.site.line)] = line
        else:
            others.append(line)
    return [*map(_near_lines, by_place(executed)), *others]


def _near_lines(group: Mapping[Place, _Line]) -> _Line:
    """Return the sum of the waits at near lines; its place is the line with most idle time."""
    worst, *rest = parts = sorted(group.values(), key=lambda line: -line.idle_ns)
    if not rest:
        return worst
    return _Line(
        op=worst.op,
        site=worst.site,
        calls={call for line in parts for call in line.calls},
        rows=[row for line in parts for row in line.rows],
        wait_ns=sum(line.wait_ns for line in parts),
        charged=sum(line.charged for line in parts),
        pieces=[piece for line in parts for piece in line.pieces],
        idle_ns=sum(line.idle_ns for line in parts),
        lines=lines_in_words(group),
        parts=tuple(parts),
    )


def _structural(trace: Trace, graph: OpGraph, counts: Callable[[GraphOp], bool] = lambda _: True) -> Iterator[Finding]:
    """Yield the reads among the ops of a step, by kind and near lines; ``counts``: whether a read is the program's."""
    reads: dict[Place, list[GraphOp]] = defaultdict(list)
    left_out: set[int] = set()
    if graph.device == "cpu":
        left_out = {*graph_ops_inside(trace, CHECKED_ON_CPU_ONLY), *_reads_of_host_data(graph), *_answers(trace)}
    for op in graph.ops:
        if op.host_read is not None and op.index not in left_out and counts(op):
            package = _package(graph, op)
            place = Place((op.host_read, op.function), op.file, op.line)
            reads[place if package is None else Place(package, None, None)].append(op)
    last_update = max((op.index for op in graph.ops if op.phase == "optimizer"), default=-1)
    for group in by_place(reads):
        yield _structural_finding(trace, group, last_update)


def _package(graph: OpGraph, op: GraphOp) -> str | None:
    """Return the installed package with the op's line; ``None`` for a line of the program."""
    return package_of(op.file) if op.file is not None and op.file in graph.libraries else None


def _answers(trace: Trace) -> set[int]:
    """Return the reads that each call of one row needs: `single_requests` is about these calls."""
    calls = trace.fact(answered_calls)
    return set() if calls is None else {op.index for op in calls.answers}


def _reads_of_host_data(graph: OpGraph) -> set[int]:
    """Return reads of tensors made in the step without an input, or from such tensors: ``torch.randint`` and similar.

    They are on the host also with an accelerator, unless the program names the device when it makes them, which a
    recording on a CPU does not show.
    """
    made: set[int] = set()
    reads = set()
    for op in graph.ops:
        inputs, outputs = ({graph.tensors[index].storage for index in side} for side in (op.inputs, op.outputs))
        outputs |= {graph.tensors[index].storage for index in op.mutated}
        if inputs <= made:
            made |= outputs
            if op.host_read is not None:
                reads.add(op.index)
        else:
            made -= outputs
    return reads


def _structural_finding(trace: Trace, lines: Mapping[Place, list[GraphOp]], last_update: int) -> Finding:
    """Return a structural finding. ``last_update``: index of the last op of the optimizer, -1 without one."""
    ops = sorted((op for of_line in lines.values() for op in of_line), key=lambda op: op.index)
    first = ops[0]
    severity: Severity = "medium"
    each = f"{len(ops)} times per step" if len(ops) > 1 else "once per step"
    late, kind = "", first.host_read or ""
    package = None if trace.op_graph is None else _package(trace.op_graph, first)
    what = READS.get(kind, kind) if package is None else f"`{package}`"
    if package is not None:  # its line with most reads
        most, _ = Counter((op.file, op.line) for op in ops).most_common(1)[0]
        first = next(op for op in ops if (op.file, op.line) == most)
        places = len({(op.file, op.line) for op in ops})
        each += f", in {places} lines" if places > 1 else ""
    if ops[0].index > last_update >= 0:
        severity = "low"
        late = " It is read after the step, between two steps."
    return Finding(
        subject=f"{kind} read" if package is None else f"reads in {package}",
        title=f"{what} reads a tensor on the host: {each}{lines_in_words(lines)}",
        detail="An accelerator's queue would run dry there." + late,
        severity=severity,
        basis="structural",
        advice=_INSIDE_LIBRARY.format(package=package) if package else _fix_at(trace, kind, first.file, first.line),
        where=Where(op=first.name, module=first.module or None, file=first.file, line=first.line),
        evidence=tuple(
            {"op": name, "phase": phase, "module": module, "reads_per_step": count}
            for (name, phase, module), count in _counts(ops)[:MOST_ROWS]
        ),
        spans=spans_of_ops(trace, (op.index for op in ops)),
    )


def _recorded(trace: Trace) -> Iterator[Finding]:
    """Yield the reads among the recorded ops of a program with compiled code and no op graph, by kind and line."""
    rows = outermost(trace, named_slices(trace, lambda name: name in READING_OPS))
    steps = steps_at(trace, trace.rows["slices"]["start_ns"][rows])
    on_cpu = not len(trace.rows["kernels"])
    around = named_slices(
        trace,
        lambda name: frame_kind(name) is FrameKind.OPTIMIZER or (on_cpu and name in CHECKED_ON_CPU_ONLY),
    )
    rows = rows[(steps != MISSING) & (nearest_ancestor(trace, rows, around) == MISSING)]
    reads: dict[Place, list[int]] = defaultdict(list)
    for row in rows.tolist():
        site = broken_line(trace, call_site(trace, row))
        if site.file is not None:
            group = _KIND_OF_OP[slice_name(trace, row)], site.function, site.exact or site.line
            reads[Place(group, site.file, site.line)].append(row)
    often = {
        place: found
        for place, found in reads.items()
        if len(np.unique(steps_at(trace, trace.rows["slices"]["start_ns"][found])))
        >= EVERY * trace.fact(step_windows).count
    }
    for lines in by_place(often):
        yield _recorded_finding(trace, lines)


def broken_line(trace: Trace, site: CallSite) -> CallSite:
    """Return the line at which a graph of the function ends, if the site has only the function's first line."""
    log = trace.compile_log
    if site.exact or site.file is None or log is None:
        return site
    name = PurePath(site.file).name
    lines = {
        (broken.place.file, broken.place.line)
        for broken in log.breaks
        if broken.place is not None
        and broken.place.function == site.function
        and PurePath(broken.place.file).name == name
    }
    if len(lines) != 1:
        return site
    return replace(site, line=next(iter(lines))[1], exact=True)


def _recorded_finding(trace: Trace, lines: Mapping[Place, list[int]]) -> Finding:
    rows = sorted(row for of_line in lines.values() for row in of_line)
    site = broken_line(trace, call_site(trace, rows[0]))
    kind = _KIND_OF_OP[slice_name(trace, rows[0])]
    starts, ends = (trace.rows["slices"][column][rows] for column in ("start_ns", "end_ns"))
    times = max(1, round(len(rows) / len(np.unique(steps_at(trace, starts)))))
    return Finding(
        subject=f"{kind} read",
        title=f"{READS[kind]} reads a tensor on the host: {f'{times} times' if times > 1 else 'once'} per step"
        f"{lines_in_words(lines)}",
        detail="An accelerator's queue would run dry there.",
        severity="medium",
        basis="structural",
        advice=read_fix(kind, trace.fact(situation)),
        where=site.where(slice_name(trace, rows[0])),
        evidence=({"op": slice_name(trace, rows[0]), "reads_per_step": times, "line_is": site.line_is()},),
        spans=worst_spans(starts, ends, ends - starts),
    )


def _counts(ops: list[GraphOp]) -> list[tuple[tuple[str, str, str], int]]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for op in ops:
        counts[op.name, op.phase, op.module] += 1
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
