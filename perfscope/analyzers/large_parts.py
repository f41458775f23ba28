"""The large parts of the step: ops, kernels, instructions, lines and idle causes that take at least a fifth of it.

Each has a finding or a reason: it runs at its roofline, memory bounds it, or an input for its analysis is missing.
Shares refer to the steps of all devices together, without the time in which the host waited for a core. The share of a
name is its part of all work times the busy share, so the shares of all names sum to the busy share.

A finding is about an op if at least half of the op's work is in the finding's spans, and the finding's cost is at least
a quarter of these spans. A finding without a time must name the op, or the line of a compiled instruction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ops import (
    NOT_KNOWN,
    NOTHING,
    Achieved,
    TopWork,
    WorkRow,
    device_peaks,
    op_class,
    short_kernel_name,
    times_of_ops,
)
from perfscope.analyzers.spans import named_slices, outermost_ancestor
from perfscope.analyzers.time import account_windows, warm_accounts
from perfscope.model.finding import MOST_SPANS, Finding, Outcome, covered_ns
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.programs import HotInstruction
    from perfscope.analyzers.time import StepAccount

LARGE_SHARE = 0.2
"""Share of the step from which a part is large and needs a finding or a reason."""

KEPT_SHARE = 0.05
"""Share of one trace's step from which a part is kept, because it may be large over many traces."""

CORE_WAIT_SHARE = 0.01
"""Share of the step spent waiting for a core; below it, shares with and without this time look the same."""

MOST_PARTS = 20
"""Maximum number of parts kept per trace."""

AT_ROOFLINE = 0.6
"""Ratio of least time to measured time. Tuned kernels of the vendors reach 60 to 90 % of a modelled roofline."""

FEW_FLOPS_PER_BYTE = 4.0
"""Products with fewer FLOPs per byte are limited by memory on CPUs and on every device in the catalogue: the slowest of
them computes 10 FLOPs in the time of a byte. It corresponds to fewer than eight rows in float32.
"""

SHORT_CALL_NS = 10_000
"""Duration of a short call on the host: an eager op costs 2 to 10 us before it computes anything."""

MOST_START_NS = 30_000
"""On the host between two ops: Python and the dispatcher need 2 to 10 us for one, twice that under a profiler."""

NAMED_SPANS = 0.5
"""Share of an op's time that a finding's spans must contain for the finding to be about the op."""
NAMED_COST = 0.25
"""Share of its spans that such a finding must also save, because the spans of a slow rank are whole steps."""

REST = "unexplained_idle"
"""Rule for idle time that no other finding explains."""

PartKind = Literal["op", "kernel", "instruction", "line", "cause"]
Reason = Literal[
    "finding",
    "at_roofline",
    "below_roofline",
    "bound",
    "few_rows",
    "short_calls",
    "communication",
    "no_peak",
    "no_cost",
    "no_rule",
    "many_ops",
    "no_core",
]
"""Reason of a part. ``bound``: modelled at its least time. ``no_peak``: the device's peaks are unknown. ``no_rule``:
idle time that no rule explains; ``no_core``: the same while the host waited for a core, which lengthens it.
``many_ops``: time that Python and dispatch need to start the ops.
"""

FINE: frozenset[Reason] = frozenset({"finding", "at_roofline", "bound", "few_rows", "communication", "many_ops"})
"""The others are not judged."""


def _program_ns(account: StepAccount) -> int:
    """Return the duration of the steps without waits for a core, which the account attributes to the machine."""
    return account.whole_ns - account.total_ns["core_wait"]


class LargePart(Struct, frozen=True, kw_only=True):
    """One large part, and why its time is fine or not analyzed."""

    kind: PartKind
    name: str
    """Name of the part; an idle cause has its name in ``accounts``."""
    where: str = ""
    """Source line of most of its time; ``""`` if unknown or if the name is a line."""
    time_ns: int
    """Time in all steps, ns."""
    whole_ns: int
    """Duration of the steps of all devices, without waits for a core, ns; the denominator of ``share``."""
    busy: float
    """Share of ``time_ns`` that counts if work overlaps, 0 to 1."""
    steps: int
    """Number of steps; 0 if the times cover the whole capture."""
    waited: bool = False
    """Whether the host waited for a core in the steps, so that ``whole_ns`` is less than their duration."""
    calls: int = 0
    reason: Reason
    """finding: rule is about it. at_roofline: little to gain. bound: modelled at its least time. few_rows: memory
    bounds a product of few rows. short_calls: mostly the price of a call. no_peak, no_cost: peaks of the device, or
    the cost of the op, are not known. no_rule: idle time that no rule explains; no_core: the same while the host waited
    for a core, which lengthens it. many_ops: time that Python and dispatch need to start the ops."""
    rule: str | None = None
    """Rule whose finding is about this part."""
    work: str | None = None
    """Kind of its work (``op_class``)."""
    achieved: Achieved = NOTHING
    bound: str | None = None
    """Limit of an instruction."""
    mainly: str = ""
    """For a line: the op that takes most of its time."""
    inside: str = ""
    """For an op: the outer op that accounts for most of its time, if different."""
    on_host: bool = False
    """Whether it is host time, for which the catalogue of devices has no entry."""

    @property
    def share(self) -> float:
        """Share of the step, 0 to 1."""
        return self.busy * self.time_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def judged(self) -> bool:
        """Whether it has a finding or is known to be fine."""
        return self.reason in FINE


def large_parts(trace: Trace, top: TopWork | None, outcomes: Sequence[Outcome]) -> tuple[LargePart, ...]:
    """Return the parts of one trace, largest first; ``top``: its costliest work."""
    accounts = [account for account in trace.fact(warm_accounts) if account.whole_ns]
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings]
    whole, busy = sum(map(_program_ns, accounts)), sum(item.busy_ns for item in accounts)
    if not whole:
        return _of_programs(trace, found)
    work = _Work(trace, found, whole, busy)
    parts = [*work.instructions()] if trace.hlo else []
    if not parts and top is not None and top.total_ns:
        parts = [*work.named(top)]
    parts += [_of_many_ops(trace, part) for part in _idle(accounts, found, whole)]
    parts = [part for part in parts if part.share >= KEPT_SHARE]
    return tuple(sorted(parts, key=lambda part: -part.share)[:MOST_PARTS])


def merge_large_parts(
    of_traces: Sequence[tuple[Sequence[LargePart], Sequence[StepAccount]]],
) -> tuple[LargePart, ...]:
    """Return the parts that are large over all traces, largest first; at least the largest part.

    ``of_traces``: parts and accounts of each trace.
    """
    whole_ns = sum(_program_ns(account) for _, accounts in of_traces for account in accounts)
    by_name: dict[tuple[PartKind, str], list[LargePart]] = defaultdict(list)
    for parts, _ in of_traces:
        for part in parts:
            by_name[part.kind, part.name].append(part)
    waited = any(
        account.total_ns["core_wait"] > CORE_WAIT_SHARE * account.whole_ns
        for _, given in of_traces
        for account in given
    )
    merged = [replace(_together(members, whole_ns), waited=waited) for members in by_name.values()]
    if any(account.lacked_core for _, given in of_traces for account in given):
        merged = [replace(part, reason="no_core") if part.reason == "no_rule" else part for part in merged]
    merged.sort(key=lambda part: -part.share)
    large = [part for part in merged if part.share >= LARGE_SHARE]
    return tuple(large or [part for part in merged if part.kind != "cause"][:1])


def _together(parts: Sequence[LargePart], whole_ns: int) -> LargePart:
    """Merge the parts of one name; the reason is that of most of the time."""
    if len(parts) == 1 and whole_ns in (0, parts[0].whole_ns):
        return parts[0]
    spent: dict[Reason, int] = defaultdict(int)
    for part in parts:
        spent[part.reason] += part.time_ns
    most = max(parts, key=lambda part: (spent[part.reason], part.time_ns))
    time = sum(part.time_ns for part in parts)
    return replace(
        most,
        time_ns=time,
        whole_ns=whole_ns or max(part.whole_ns for part in parts),
        busy=sum(part.busy * part.time_ns for part in parts) / max(time, 1),
        steps=sum(part.steps for part in parts),
        calls=sum(part.calls for part in parts),
        achieved=sum((part.achieved for part in parts), NOTHING),
    )


_Finder = Callable[[str], str | None]


class _Work:
    """The work of one trace and the findings about it."""

    def __init__(self, trace: Trace, found: Sequence[tuple[str, Finding]], whole: int, busy: int) -> None:
        self._trace, self._found, self._whole, self._busy = trace, found, whole, busy
        self._peaks = any(device is not None for device in trace.fact(device_peaks))
        self._on_host = not len(trace.rows["kernels"])

    def named(self, top: TopWork) -> Iterator[LargePart]:
        """Yield large ops, kernels whose op is unknown or small, and lines with several ops."""
        scale = min(1.0, self._busy / top.total_ns)
        ops = [row for row in top.ops if row.name != NOT_KNOWN and scale * row.total_ns >= KEPT_SHARE * self._whole]
        for row in ops:
            yield self._part("op", row, top, scale, self._of_op)
        large = {row.name for row in ops if scale * row.total_ns >= LARGE_SHARE * self._whole}
        for row in top.kernels:
            if row.op not in large:
                yield self._part("kernel", row, top, scale, self._of_kernel)
        for row in top.lines:
            if row.name != NOT_KNOWN and row.op not in large:
                yield self._part("line", row, top, scale, self._of_line)

    def _part(self, kind: PartKind, row: WorkRow, top: TopWork, scale: float, finder: _Finder) -> LargePart:
        rule = finder(row.name) if scale * row.total_ns >= KEPT_SHARE * self._whole else None
        return LargePart(
            kind=kind,
            name=row.name,
            where=row.line if kind != "line" else "",
            time_ns=row.total_ns,
            whole_ns=self._whole,
            busy=scale,
            steps=top.steps,
            calls=row.calls,
            reason="finding" if rule else self._reason(row),
            rule=rule,
            work=op_class(row.name),
            achieved=row.achieved,
            mainly=row.op if kind == "line" and row.op != NOT_KNOWN else "",
            inside=self._inside(row.name) if kind == "op" else "",
            on_host=self._on_host,
        )

    def _reason(self, row: WorkRow) -> Reason:
        if op_class(row.name) == "collective":
            return "communication"
        known = row.achieved if 2 * row.achieved.time_ns >= row.total_ns else NOTHING
        if known.roofline_share is not None:
            return "at_roofline" if known.roofline_share >= AT_ROOFLINE else "below_roofline"
        if known.flops and known.bytes and known.flops < FEW_FLOPS_PER_BYTE * known.bytes:
            return "few_rows"
        if self._on_host and row.total_ns < SHORT_CALL_NS * row.calls:
            return "short_calls"
        if not known.time_ns:
            return "no_cost"
        return "no_cost" if self._peaks else "no_peak"

    def _rows(self, name: str) -> tuple[Int64, Int64]:
        """Return (row of ``slices``, ns) for an op's calls with work."""
        rows, times = self._trace.fact(times_of_ops)
        codes = [code for code, text in enumerate(self._trace.strings) if text == name]
        mine = np.isin(self._trace.rows["slices"]["name"][rows], codes)
        return rows[mine], times[mine]

    def _inside(self, name: str) -> str:
        """Return the outermost ATen op around most of an op's time; ``""`` if that is the op itself."""
        rows, times = self._rows(name)
        slices = self._trace.rows["slices"]
        ops = named_slices(self._trace, lambda text: text.startswith("aten::")) & (slices["kind"] == SliceKind.OP)
        outer = outermost_ancestor(self._trace, rows, ops)
        spent: dict[int, int] = defaultdict(int)
        for row, time in zip(outer.tolist(), times.tolist(), strict=True):
            spent[MISSING if row == MISSING else int(slices["name"][row])] += time
        code = max(spent, key=lambda item: spent[item], default=MISSING)
        around = "" if code == MISSING or 2 * spent[code] < times.sum() else self._trace.text(code)
        return "" if around == name else around

    def _of_op(self, name: str) -> str | None:
        mine, _ = self._rows(name)
        if self._on_host:
            slices = self._trace.rows["slices"]
            starts, ends = slices["start_ns"][mine], slices["end_ns"][mine]
        else:
            pieces = [
                (table["start_ns"][chosen], table["end_ns"][chosen])
                for table in (self._trace.rows["kernels"], self._trace.rows["copies"])
                for chosen in (np.isin(table["op"], mine),)
            ]
            starts, ends = (np.concatenate(side) for side in zip(*pieces, strict=True))
        return self._about(starts, ends, name)

    def _of_kernel(self, name: str) -> str | None:
        kernels = self._trace.rows["kernels"]
        codes = [
            code for code in np.unique(kernels["name"]).tolist() if short_kernel_name(self._trace.text(code)) == name
        ]
        mine = np.isin(kernels["name"], codes)
        return self._about(kernels["start_ns"][mine], kernels["end_ns"][mine], name)

    def _of_line(self, name: str) -> str | None:
        return next((rule for rule, finding in self._found if finding.where.label() == name and finding.cost_ns), None)

    def _about(self, starts: Int64, ends: Int64, name: str, where: str = "") -> str | None:
        """Return the rule whose finding is about most of this time; costlier findings take precedence.

        ``where``: line of an instruction; a finding without a time is about the instructions at its line.
        """
        time = union(starts, ends)
        for rule, finding in sorted(self._found, key=lambda pair: -(pair[1].cost_ns or 0)):
            if _names(finding, name) or (finding.cost_ns is None and where and finding.where.label() == where):
                return rule
            spans = union([span.start_ns for span in finding.spans], [span.end_ns for span in finding.spans])
            if not finding.cost_ns or finding.cost_ns < NAMED_COST * spans.total():
                continue
            inside = int(covered(spans, time.starts, time.ends).sum())
            least = NAMED_SPANS * time.total()
            if len(finding.spans) >= MOST_SPANS:  # the finding does not keep all spans
                least = min(least, NAMED_SPANS * spans.total())
            if inside and inside >= least:
                return rule
        return None

    def instructions(self) -> Iterator[LargePart]:
        """Yield the measured instructions of compiled programs."""
        from perfscope.analyzers.programs import hot_instructions

        spots = [spot for spot in self._trace.fact(hot_instructions) if spot.basis == "measured"]
        if not spots or not spots[0].total_ns:
            return
        scale = min(1.0, self._busy / spots[0].total_ns)
        ops, steps = self._trace.rows["hlo_ops"], len(self._trace.fact(warm_accounts)[0].numbers)
        for row in spots[0].instructions:
            if scale * row.time_ns < KEPT_SHARE * self._whole:
                continue
            codes = [code for code, text in enumerate(self._trace.strings) if text == row.instruction]
            mine = np.isin(ops["name"], codes)
            line = "" if row.file is None else f"{row.file}:{row.line}"
            rule = self._about(ops["start_ns"][mine], ops["end_ns"][mine], row.instruction, line)
            yield _instruction(row, self._whole, scale, rule, steps=steps, on_host=self._on_host)


def _instruction(
    row: HotInstruction, whole: int, scale: float, rule: str | None, *, steps: int, on_host: bool = False
) -> LargePart:
    known = row.flops is not None and row.bytes
    roof = row.roof_ns * row.calls if row.roof_ns else 0.0
    achieved = Achieved(
        flops=float(row.flops or 0) * row.calls,
        bytes=float(row.bytes or 0) * row.calls,
        time_ns=row.time_ns if known else 0,
        roof_ns=roof,
        roofed_ns=row.time_ns if roof else 0,
    )
    reason: Reason = "no_peak" if known else "no_cost"
    if achieved.roofline_share is not None:
        reason = "at_roofline" if achieved.roofline_share >= AT_ROOFLINE else "below_roofline"
    return LargePart(
        kind="instruction",
        name=row.instruction,
        where="" if row.file is None else f"{row.file}:{row.line}" if row.line is not None else row.file,
        time_ns=row.time_ns,
        whole_ns=whole,
        busy=scale,
        steps=steps,
        calls=row.calls,
        reason="finding" if rule else reason,
        rule=rule,
        work=row.scope,
        achieved=achieved,
        bound=row.bound,
        on_host=on_host,
    )


def _of_programs(trace: Trace, found: Sequence[tuple[str, Finding]]) -> tuple[LargePart, ...]:
    """Return the instructions of the longest program that was compiled but not run, as shares of its modelled time."""
    if not trace.hlo:
        return ()
    from perfscope.analyzers.programs import hot_instructions

    spots = [spot for spot in trace.fact(hot_instructions) if spot.basis == "modelled" and spot.total_ns]
    if not spots:
        return ()
    parts = []
    for row in spots[0].instructions:
        if row.time_ns >= KEPT_SHARE * spots[0].total_ns:
            rule = next((rule for rule, finding in found if _names(finding, row.instruction)), None)
            part = _instruction(row, spots[0].total_ns, 1.0, rule, steps=0)
            parts.append(part if rule else replace(part, reason="bound"))
    return tuple(parts[:MOST_PARTS])


def _names(finding: Finding, name: str) -> bool:
    """Whether a finding's place is an op, kernel or instruction of that name."""
    where = finding.where
    plain = name.removeprefix("aten::")
    return name in (where.op, where.kernel) or (
        where.op is not None and where.op.startswith("aten.") and where.op.split(".")[1] == plain
    )


def _of_many_ops(trace: Trace, part: LargePart) -> LargePart:
    """Return time between ops of the host with the number of ops, if it is no more than their start costs."""
    if part.name != "launch" or part.reason != "no_rule" or not part.on_host:
        return part
    slices, windows = trace.rows["slices"], trace.fact(account_windows)
    ops = np.flatnonzero(slices["kind"] == SliceKind.OP)
    ops = ops[covered(union(windows.starts, windows.ends), slices["start_ns"][ops], slices["end_ns"][ops]) > 0]
    pieces = len(union(slices["start_ns"][ops], slices["end_ns"][ops]).starts)
    usual = pieces and part.time_ns <= MOST_START_NS * pieces
    return replace(part, reason="many_ops", calls=pieces) if usual else part


def _idle(accounts: Iterable[StepAccount], found: Sequence[tuple[str, Finding]], whole: int) -> Iterator[LargePart]:
    """Yield the causes other than compute, with the finding that explains most of each.

    Findings explain the time of the device with most idle time of the cause; `unexplained_idle` covers the rest.
    """
    explained, rest = covered_ns(found), any(rule == REST for rule, _ in found)
    total: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    steps, on_host = 0, False
    for account in accounts:
        on_host |= account.device == MISSING
        steps = max(steps, len(account.numbers))
        for cause, value in account.total_ns.items():
            total[cause] += value
            most[cause] = max(most[cause], value)
    for name, value in total.items():
        if name in ("compute", "core_wait"):
            continue
        rule = next((rule for rule, finding in found if finding.covers_ns.get(name)), None)
        if rule is None or 2 * explained.get(name, 0) < most[name]:
            rule = REST if rest else None
        yield LargePart(
            kind="cause",
            name=name,
            time_ns=value,
            whole_ns=whole,
            busy=1.0,
            steps=steps,
            reason="no_rule" if rule is None else "finding",
            rule=rule,
            on_host=on_host,
        )
