"""The account of a trace's steps, divided by op and line; the parts of each cause sum to it exactly, in integer ns.

Causes and steps are those of the report (``analyzers/time/account.py``, without steps that compiled and outliers). In
the busy time of a device each moment belongs to one kernel or copy: the one that began first. Idle time belongs to the
wait or the launch at the end of its interval. Without a device a moment belongs to the compiled instruction or the op
that runs, otherwise to the innermost Python function or range of the thread that runs the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.keys import Key, Naming, instruction_keys, span_key
from perfscope.analyzers.compare.runs.window import Window, account_window, inside, without, work_in_window
from perfscope.analyzers.spans import covering_slices, nearest_ancestor, rows_by_device
from perfscope.analyzers.time import StepAccount, cause_intervals, idle_pieces, warm_windows
from perfscope.model.documents.causes import BUSY, CAUSES, Cause
from perfscope.model.intervals import EMPTY, Int64, Intervals, covered, intersection, union
from perfscope.model.trace import MISSING, SliceKind, Trace

# Owners of overlapping time: each moment goes to exactly one row, in integer ns.
#
# Layers claim time one after another; the next layer gets the remaining time. So the rows of all layers and the final
# remainder sum exactly to the whole.


def claim_first(free: Intervals, starts: Int64, ends: Int64) -> tuple[Int64, Intervals]:
    """Return the ns of ``free`` that each row gets, and the remaining intervals.

    Overlapping time goes to the row that began first, or to the earlier row if both began together. ``starts`` and
    ``ends``: shape (n,), half open, in any order.
    """
    own = np.zeros(len(starts), np.int64)
    if not len(starts) or not len(free.starts):
        return own, free
    order = np.argsort(starts, kind="stable")
    begin, finish = starts[order], ends[order]
    reach = np.maximum.accumulate(finish)
    begin = np.maximum(begin, np.concatenate(([begin[0]], reach[:-1])))
    own[order] = covered(free, begin, np.maximum(begin, finish))
    return own, without(free, union(starts, ends))


class Innermost(Struct, frozen=True, kw_only=True):
    """Pieces of a thread's time with their innermost wanted span, in order. Arrays of one shape; times in ns."""

    starts: Int64
    ends: Int64
    rows: Int64
    """Row of ``slices``."""

    def claim(self, free: Intervals) -> tuple[dict[int, int], Intervals]:
        """Return the ns of ``free`` by row of ``slices``, and the remaining intervals."""
        own: dict[int, int] = {}
        for row, ns in zip(self.rows.tolist(), covered(free, self.starts, self.ends).tolist(), strict=True):
            if ns:
                own[row] = own.get(row, 0) + ns
        return own, without(free, union(self.starts, self.ends))


def innermost(trace: Trace, thread: int, wanted: npt.NDArray[np.bool_]) -> Innermost:
    """Return the innermost wanted spans of a thread; they include the time of unwanted spans inside them.

    ``wanted``: mask over ``slices``.
    """
    slices = trace.rows["slices"]
    mine = np.flatnonzero((slices["thread"] == thread) & wanted)
    edges = np.unique(np.concatenate((slices["start_ns"][mine], slices["end_ns"][mine])))
    begin, finish = edges[:-1], edges[1:]
    rows = nearest_ancestor(trace, covering_slices(trace, np.full(len(begin), thread), begin), wanted)
    known = rows != MISSING
    return Innermost(starts=begin[known], ends=finish[known], rows=rows[known])


# Parts of the time of a trace's steps.


class Part(Struct, frozen=True, kw_only=True):
    """All work of one key in the window, over all its steps."""

    key: Key
    own_ns: int
    """Time of this part; no moment is in two parts."""
    calls: int
    """Number of calls or launches in the window; 0 for idle time."""
    busy_ns: int
    """Summed durations of the counted calls; more than ``own_ns`` if other work ran at the same time or inside them."""
    typical_ns: float = 0.0
    """Median time of a call times the number of calls, which interrupted calls do not change."""
    example: int = MISSING
    """Row of ``slices`` that called or launched one of them."""

    @property
    def countable(self) -> bool:
        """Whether ``calls`` follows from the program, as for ops and device work."""
        if self.key.kind == "host":
            return bool(self.key.op) and self.key.cause in ("compute", "")
        return self.key.kind != "idle"


def summed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Merge the parts of single calls into one part per key, longest first.

    Parts without calls (idle time, work that began before the window) are summed as they are.
    """
    by_key: dict[Key, list[Part]] = {}
    for part in parts:
        by_key.setdefault(part.key, []).append(part)
    rows = [
        Part(
            key=key,
            own_ns=sum(part.own_ns for part in same),
            calls=sum(part.calls for part in same),
            busy_ns=sum(part.busy_ns for part in same),
            typical_ns=float(median(each)) * len(each)
            if (each := [part.own_ns for part in same if part.calls])
            else float(sum(part.own_ns for part in same)),
            example=same[0].example,
        )
        for key, same in by_key.items()
    ]
    return tuple(sorted(rows, key=lambda part: (-part.own_ns, -part.calls, part.key.name())))


# Account of one device, or of the host, in parts.


NOTHING_RECORDED = "outside every recorded span"

PLACED: frozenset[Cause] = frozenset({"sync", "launch", "compilation", "other_host"})
"""Causes of idle time with a line in the program: that of the wait, else of the launch that ends the interval."""


class Account(Struct, frozen=True, kw_only=True):
    """The time of one device (or of the host) in the usual steps of one trace."""

    rank: int | None
    device: str
    """Name of the device; ``host`` if the trace has no device."""
    ordinal: int | None
    total_ns: int
    steps: int
    per: str
    """``step`` or ``trace``: what ``steps`` counts."""
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """``ValueError`` unless the parts sum to the whole."""
        total = sum(part.own_ns for part in self.parts)
        if total != self.total_ns:
            raise ValueError(f"parts sum to {total} ns, not to {self.total_ns}")


def in_parts(trace: Trace, account: StepAccount | None) -> Account:
    """Divide one of the trace's ``warm_accounts`` into parts; without one, the host's time, with unknown causes."""
    spans, window = trace.fact(steps_of_account), trace.fact(account_window)
    naming, devices = Naming(trace, window), trace.rows["devices"]
    device = MISSING if account is None else account.device
    parts = _of_device(trace, naming, device) if device != MISSING else _of_host(trace, window, naming, account)
    result = Account(
        rank=trace.source.rank,
        device="host" if device == MISSING else trace.text(int(devices["name"][device])) or "device",
        ordinal=None if device == MISSING else int(devices["ordinal"][device]),
        total_ns=spans.total(),
        steps=window.steps,
        per=window.per,
        parts=summed(parts),
        notes=naming.notes,
    )
    result.check()
    return result


def steps_of_account(trace: Trace) -> Intervals:
    """Return the time of the usual steps."""
    windows = trace.fact(warm_windows)
    return union(windows.starts, windows.ends)


def _of_device(trace: Trace, naming: Naming, device: int) -> list[Part]:
    spans, causes = trace.fact(steps_of_account), trace.fact(cause_intervals)[device]
    here = trace.fact(rows_by_device)
    kernels = here["kernels"][device]
    talks = trace.rows["kernels"]["communication"][kernels]
    parts: list[Part] = []
    for cause, table, rows in zip(
        BUSY, ("kernels", "kernels", "copies"), (kernels[~talks], kernels[talks], here["copies"][device]), strict=True
    ):
        work = trace.rows[table]
        own, _ = claim_first(intersection(causes[cause], spans), work["start_ns"][rows], work["end_ns"][rows])
        parts += _work_parts(trace, naming, table, rows, own)
    for cause in CAUSES:
        if cause not in BUSY:
            parts += _idle_parts(trace, naming, device, cause)
    return parts


def _work_parts(trace: Trace, naming: Naming, table: str, rows: Int64, own: Int64) -> Iterable[Part]:
    """Yield a part per key of device work, without work of other steps that runs outside the window."""
    work = trace.rows[table]
    counted = work_in_window(trace, table, trace.fact(account_window))[rows]
    kept = counted | (own > 0)
    rows, own, counted = rows[kept], own[kept], counted[kept]
    durations = work["end_ns"][rows] - work["start_ns"][rows]
    return _parts(naming.of_work(table, rows), own, counted, durations, work["op"][rows])


def _idle_parts(trace: Trace, naming: Naming, device: int, cause: Cause) -> list[Part]:
    """Return the idle time of one cause, a part per idle interval."""
    pieces = idle_pieces(trace, cause, trace.fact(warm_windows), device=device)
    calls = np.full(len(pieces), MISSING, np.int64)
    if cause in PLACED:
        calls = pieces.wait if cause == "sync" else pieces.launch
    return [
        Part(key=key, own_ns=ns, calls=int(cause == "sync"), busy_ns=ns, example=example)
        for (key, example), ns in zip(naming.of_idle(cause, calls), pieces.cost_ns.tolist(), strict=True)
    ]


def _parts(
    keys: Sequence[Key], own: Int64, counted: npt.NDArray[np.bool_], durations: Int64, examples: Int64
) -> Iterable[Part]:
    for key, ns, count, duration, row in zip(
        keys, own.tolist(), counted.tolist(), durations.tolist(), examples.tolist(), strict=True
    ):
        yield Part(key=key, own_ns=ns, calls=int(count), busy_ns=duration if count else 0, example=row)


def _of_host(trace: Trace, window: Window, naming: Naming, account: StepAccount | None) -> Iterator[Part]:
    """Yield the host's time by cause. Calls of ops are counted in the first cause, compute."""
    spans = trace.fact(steps_of_account)
    causes: dict[Cause | Literal[""], Intervals] = {"": spans}
    if account is not None:
        known = trace.fact(cause_intervals)[MISSING]
        causes = {cause: intersection(known.get(cause, EMPTY), spans) for cause in CAUSES}
    slices, ops = trace.rows["slices"], trace.rows["hlo_ops"]
    instructions = np.flatnonzero(~ops["encloses"]) if len(ops) else np.empty(0, np.int64)
    xla = np.zeros(len(slices), bool)
    xla[ops["slice"][ops["slice"] != MISSING]] = True
    is_op = (slices["kind"] == SliceKind.OP) & ~xla
    threads = _threads(trace, spans, xla)
    layers = [(thread, is_op) for thread in threads] + [(thread, ~is_op & ~xla) for thread in threads[:1]]
    inner = [innermost(trace, thread, wanted) for thread, wanted in layers]
    began = window.began_inside(slices["start_ns"])
    called = [np.flatnonzero((slices["thread"] == thread) & wanted & began) for thread, wanted in layers]
    for number, (cause, free) in enumerate(causes.items()):
        if number and not free.total():
            continue
        own, free = claim_first(free, ops["start_ns"][instructions], ops["end_ns"][instructions])
        yield from _instruction_parts(trace, window, cause, instructions, own, first=not number)
        for layer, rows in zip(inner, called, strict=True):
            taken, free = layer.claim(free)
            yield from _span_parts(trace, naming, cause, taken, rows if not number else np.empty(0, np.int64))
        if free.total():
            nothing = Key(kind="host", cause=cause, work=NOTHING_RECORDED)
            yield Part(key=nothing, own_ns=free.total(), calls=0, busy_ns=0)


def _instruction_parts(
    trace: Trace, window: Window, cause: Cause | Literal[""], rows: Int64, own: Int64, *, first: bool
) -> Iterable[Part]:
    """Yield the parts of compiled instructions that the host ran."""
    ops = trace.rows["hlo_ops"]
    counted = inside(window.spans, ops["start_ns"][rows]) & first
    kept = counted | (own > 0)
    rows, own, counted = rows[kept], own[kept], counted[kept]
    keys = [replace(key, cause=cause) for key in instruction_keys(trace, rows)]
    return _parts(keys, own, counted, ops["end_ns"][rows] - ops["start_ns"][rows], np.full(len(rows), MISSING))


def _span_parts(
    trace: Trace, naming: Naming, cause: Cause | Literal[""], own: Mapping[int, int], called: Int64
) -> Iterable[Part]:
    """Yield the parts of one thread's spans by self time ``own``; ``called``: spans that began in the steps."""
    slices = trace.rows["slices"]
    rows = np.union1d(called, np.fromiter(own, np.int64, len(own)))
    keys = [replace(span_key(naming, row), cause=cause) for row in rows.tolist()]
    self_ns = np.array([own.get(row, 0) for row in rows.tolist()], np.int64)
    return _parts(keys, self_ns, np.isin(rows, called), slices["end_ns"][rows] - slices["start_ns"][rows], rows)


def _threads(trace: Trace, spans: Intervals, left_out: npt.NDArray[np.bool_]) -> list[int]:
    """Return the threads with spans in the steps. The first one's spans cover most of the steps, so it runs them."""
    slices = trace.rows["slices"]
    amounts = []
    for thread in np.unique(slices["thread"]).tolist():
        mine = (slices["thread"] == thread) & ~left_out
        _, left = claim_first(spans, slices["start_ns"][mine], slices["end_ns"][mine])
        amounts.append((left.total(), -int(mine.sum()), thread))
    return [thread for left, _, thread in sorted(amounts) if left < spans.total()]
