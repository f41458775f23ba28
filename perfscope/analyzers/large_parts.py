"""Nothing large is left unsaid: the ops, kernels, instructions, lines and idle causes that take a fifth of the step.

Each is in a finding, or it has a reason: it runs at its roofline, memory bounds it, or what is missing to judge it.
Shares are of the steps of all devices together, without what the host waited for a core: the time of a name over that
of all work, times the busy share, so that the shares of all names sum to the busy share.

Whether a finding is about an op is decided by time: at least half of the op's work lies in the finding's spans, and the
finding's cost is at least a quarter of these spans. A finding without a time must name the op, or the line
of a compiled instruction.
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
from perfscope.analyzers.time import BUSY_SHARE, account_windows, named_slices, outermost_ancestor, warm_accounts
from perfscope.model.finding import MOST_SPANS, Finding, Outcome, covered_ns
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.programs import HotInstruction
    from perfscope.analyzers.time import StepAccount

LARGE_SHARE = 0.2
"""Of the step: a fifth of it must not be left unsaid."""

KEPT_SHARE = 0.05
"""Of the step, of one trace: what many traces together may make large."""

TOLD = 0.01
"""Of the step without a core: with less the shares of the account and of the parts look alike."""

MOST_PARTS = 20
"""Kept of each trace."""

AT_ROOFLINE = 0.6
"""Least time over measured time. Tuned kernels of the vendors reach 60 to 90 % of a modelled roofline."""

FEW_FLOPS_PER_BYTE = 4.0
"""A product below it waits for memory on every device in the catalogue and on CPUs: the least of them computes 10 FLOPs
in the time of a byte. It is that of fewer than eight rows in float32."""

SHORT_CALL_NS = 10_000
"""On the host: what an eager op costs before it computes anything is 2 to 10 us."""

MOST_START_NS = 30_000
"""On the host between two ops: Python and the dispatcher need 2 to 10 us for one, twice that under a profiler."""

NAMED_SPANS = 0.5
"""Of an op's time: a finding whose spans hold half of it is about it ..."""
NAMED_COST = 0.25
"""... if it would save a quarter of its spans: those of a slow rank are whole steps."""

REST = "unexplained_idle"
"""The rule that names the idle time that no other finding explains."""

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
"""``bound``: modelled at its least time. ``no_peak``: the device's peaks are unknown. ``no_rule``: idle time that no
rule explains; ``no_core``: the same, and the host waited for a core, which lengthens everything. ``many_ops``: what
Python and dispatch need to start the ops."""

FINE: frozenset[Reason] = frozenset({"finding", "at_roofline", "bound", "few_rows", "communication", "many_ops"})
"""The others are not judged."""


def _program_ns(account: StepAccount) -> int:
    """The steps without what the thread waited for a core: that is the machine's, and the account has it."""
    return account.whole_ns - account.total_ns["core_wait"]


class LargePart(Struct, frozen=True, kw_only=True):
    """One name, and why its time is fine or not judged."""

    kind: PartKind
    name: str
    """Name of the part; an idle cause has its name in ``accounts``."""
    where: str = ""
    """Line of most of it; ``""``: not known, or the name is a line."""
    time_ns: int
    """In all steps."""
    whole_ns: int
    """Steps of all devices together, without waits for a core: what ``share`` is of."""
    busy: float
    """Part of ``time_ns`` that counts, where work runs side by side; 0 to 1."""
    steps: int
    """0: the times are of the whole capture."""
    waited: bool = False
    """Whether the host waited for a core in the steps, so that ``whole_ns`` is less than they lasted."""
    calls: int = 0
    reason: Reason
    """finding: rule is about it. at_roofline: little to gain. bound: modelled at its least time. few_rows: memory
    bounds a product of few rows. short_calls: mostly the price of a call. no_peak, no_cost: peaks of the device, or
    the cost of the op, are not known. no_rule: idle time that no rule explains."""
    rule: str | None = None
    """The rule whose finding is about it."""
    work: str | None = None
    """What it works at (``op_class``)."""
    achieved: Achieved = NOTHING
    bound: str | None = None
    """What holds an instruction back."""
    mainly: str = ""
    """Of a line: the op that takes most of it."""
    inside: str = ""
    """Of an op: the op that most of its time is spent for, where that is not itself."""
    on_host: bool = False
    """Time of the host, which has no entry in the catalogue of devices."""

    @property
    def share(self) -> float:
        """Of the step, 0 to 1."""
        return self.busy * self.time_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def judged(self) -> bool:
        """Whether it is in a finding or known to be fine."""
        return self.reason in FINE


def large_parts(trace: Trace, top: TopWork | None, outcomes: Sequence[Outcome]) -> tuple[LargePart, ...]:
    """The parts of one trace, the largest first; ``top``: its costliest work."""
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
    """Those of all traces together that are large, the largest first; the first of all if none is.

    Of each trace its parts and its accounts.
    """
    whole_ns = sum(_program_ns(account) for _, accounts in of_traces for account in accounts)
    by_name: dict[tuple[PartKind, str], list[LargePart]] = defaultdict(list)
    for parts, _ in of_traces:
        for part in parts:
            by_name[part.kind, part.name].append(part)
    waited = any(account.total_ns["core_wait"] > TOLD * account.whole_ns for _, given in of_traces for account in given)
    merged = [replace(_together(members, whole_ns), waited=waited) for members in by_name.values()]
    if any(
        account.total_ns["core_wait"] >= BUSY_SHARE * account.whole_ns for _, given in of_traces for account in given
    ):
        merged = [replace(part, reason="no_core") if part.reason == "no_rule" else part for part in merged]
    merged.sort(key=lambda part: -part.share)
    large = [part for part in merged if part.share >= LARGE_SHARE]
    return tuple(large or [part for part in merged if part.kind != "cause"][:1])


def _together(parts: Sequence[LargePart], whole_ns: int) -> LargePart:
    """One part of all; its reason is that of most of its time."""
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
    """The work of one trace, and what findings say of it."""

    def __init__(self, trace: Trace, found: Sequence[tuple[str, Finding]], whole: int, busy: int) -> None:
        self._trace, self._found, self._whole, self._busy = trace, found, whole, busy
        self._peaks = any(device is not None for device in trace.fact(device_peaks))
        self._on_host = not len(trace.rows["kernels"])

    def named(self, top: TopWork) -> Iterator[LargePart]:
        """Ops; kernels whose op is not known, or not large; lines of many ops."""
        scale = min(1.0, self._busy / top.total_ns)
        ops = [row for row in top.ops if row.name != NOT_KNOWN and scale * row.total_ns >= KEPT_SHARE * self._whole]
        for row in ops:
            yield self._part("op", row, top, scale, self._of_op)
        said = {row.name for row in ops if scale * row.total_ns >= LARGE_SHARE * self._whole}
        for row in top.kernels:
            if row.op not in said:
                yield self._part("kernel", row, top, scale, self._of_kernel)
        for row in top.lines:
            if row.name != NOT_KNOWN and row.op not in said:
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
        """(row of ``slices``, ns) of an op's calls with work."""
        rows, times = self._trace.fact(times_of_ops)
        codes = [code for code, text in enumerate(self._trace.strings) if text == name]
        mine = np.isin(self._trace.rows["slices"]["name"][rows], codes)
        return rows[mine], times[mine]

    def _inside(self, name: str) -> str:
        """The outermost op of ATen around most of an op's time; ``""``: itself."""
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
        """The rule whose finding is about most of this time, the costliest finding first.

        ``where``: the line of an instruction; a finding without a time is about what is at its line.
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
            if len(finding.spans) >= MOST_SPANS:  # not all of them are kept
                least = min(least, NAMED_SPANS * spans.total())
            if inside and inside >= least:
                return rule
        return None

    def instructions(self) -> Iterator[LargePart]:
        """Instructions of compiled programs, as measured."""
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
    """Instructions of the longest program that was compiled and did not run: shares of its modelled time."""
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
    """Time between ops of the host, with their number where it is what starting an op costs."""
    if part.name != "launch" or part.reason != "no_rule" or not part.on_host:
        return part
    slices, windows = trace.rows["slices"], trace.fact(account_windows)
    ops = np.flatnonzero(slices["kind"] == SliceKind.OP)
    ops = ops[covered(union(windows.starts, windows.ends), slices["start_ns"][ops], slices["end_ns"][ops]) > 0]
    pieces = len(union(slices["start_ns"][ops], slices["end_ns"][ops]).starts)
    usual = pieces and part.time_ns <= MOST_START_NS * pieces
    return replace(part, reason="many_ops", calls=pieces) if usual else part


def _idle(accounts: Iterable[StepAccount], found: Sequence[tuple[str, Finding]], whole: int) -> Iterator[LargePart]:
    """Causes other than compute, with the finding that explains most of each.

    Findings explain the time of the device that has most of it; what no other finding does is `unexplained_idle`.
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
