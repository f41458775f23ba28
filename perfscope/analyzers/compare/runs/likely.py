"""Evidence of one launch on each side about the step time, and the findings that carry the change.

Launches of one program differ: in memory layout, clocks and other load on the machine. One launch on each side proves
nothing, but a step that is half as long again is not chance on most machines. A change is *likely* if

- it is ``LIKELY_LEAST`` or more and the interval of the steps excludes zero; without an interval, ``FEW_LEAST`` or
  more;
- and a second measurement of the same launches agrees: the recorded steps changed in the same direction by at least
  ``AGREES`` of it (or ``FEW_LEAST``), or new, fixed, grown or shrunk findings explain as much;
- and on a machine with other load, the program explains ``AGREES`` of it: a count changed in the same direction, or
  findings or causes of the account did, other than the time of the same ops and waiting for a core. Both sides are
  compared by the time in which the step had a core.

Counts that grew while the step became faster are notes, because the step time matters more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from perfscope.analyzers.compare.runs.causes import cost_of
from perfscope.analyzers.compare.runs.change import TimeChange
from perfscope.analyzers.compare.runs.structure import ExactMetric
from perfscope.analyzers.compare.statistics.verdict import MetricResult
from perfscope.model.documents.compared_findings import Carried, FindingChange
from perfscope.model.documents.comparison import Account
from perfscope.model.finding import Finding
from perfscope.model.frames import parse_frame

LIKELY_LEAST = 0.1
"""Relative change of the step; launches of one program on an exclusive machine differ by a few percent."""

FEW_LEAST = 0.25
"""The same with too few steps for an interval."""

AGREES = 0.5
"""Share of the change that the second measurement has to show."""

CARRIES = 0.2
"""Share of the step's change: a finding whose cost changed by as much carries the change."""

SETTLE = "perfscope compare commits --base REF -- train.py"
"""Command that settles a change of the step time of a program in a repository."""

LIKELY = "by the step time of one launch on each side, and another measurement of them agrees"
"""Remark of a step time that is likely worse or better."""

NOTED = "the step became faster: a note"
"""Remark of a count that became worse while the step became faster."""

OTHER_VENDOR = "libraries of another vendor: a note"
"""Remark of a count that differs between devices of two vendors."""

DEVICE_COUNTS = ("kernels per", "copies per", "launches per", "host syncs per")
"""Prefixes of the names of a device's counts."""

Direction = Literal["regression", "improvement"]


def likely_change(
    step: MetricResult | None,
    time: TimeChange | None,
    findings: Sequence[FindingChange],
    account: Account | None = None,
    metrics: Sequence[ExactMetric] = (),
    *,
    busy: bool = False,
) -> Direction | None:
    """Return whether the step time of two launches, which fails no build by itself, is likely worse or better.

    ``busy``: other programs used the machine during one of the sides.
    """
    if step is None or step.gates or step.effect is None or time is None or time.median.per != "step":
        return None
    if not isinstance(step.base, int | float) or not isinstance(step.head, int | float):
        return None
    decided = step.low is not None and step.high is not None
    if step.low is not None and step.high is not None and step.low <= 0 <= step.high:
        return None
    effect = max(step.effect, -step.effect / (1 + step.effect))
    if effect < (LIKELY_LEAST if decided else FEW_LEAST):
        return None
    sign = 1 if step.effect > 0 else -1
    verdict: Direction = "regression" if sign > 0 else "improvement"
    needed = AGREES * abs(step.head - step.base)
    explained = sum(sign * change_ns(change) for change in findings)
    recorded = sign * time.median.share
    if recorded < min(AGREES * abs(step.effect), FEW_LEAST) and explained < needed:
        return None
    if busy and explained < needed and sign * _own_change(account) < AGREES * abs(step.effect):
        counts = any(metric.result.verdict == verdict for metric in metrics if not metric.neutral)
        return verdict if counts else None
    return verdict


CORE_WAIT = "core_wait"
"""Cause of the account that other programs create."""


def _own_change(account: Account | None) -> float:
    """Return the change of the step that other programs cannot cause, over the base step's time with a core."""
    if account is None:
        return 0.0
    waits = account.causes.get(CORE_WAIT)
    on_core = account.base_ns - (0 if waits is None else waits.base_ns)
    chance = {CORE_WAIT, "compute"} if account.on_host else {CORE_WAIT}
    moved = sum(amount.head_ns - amount.base_ns for cause, amount in account.causes.items() if cause not in chance)
    return moved / on_core if on_core > 0 else 0.0


def change_ns(change: FindingChange) -> int:
    """How much more a finding costs than before, ns per step; what is paid once is not in it."""
    base, head = (
        0 if isinstance(side, Finding) and side.once is not None else cost_of(side) or 0
        for side in (change.base, change.head)
    )
    return head - base


def carrying(
    findings: Iterable[FindingChange], step: MetricResult | None, verdict: Direction | None
) -> tuple[FindingChange, ...]:
    """Return the findings, those that carry the change of the step first.

    If the step is likely worse or better, they are no longer *by time alone*. Otherwise the change must be large:
    ``LIKELY_LEAST`` of the step.
    """
    if step is None or not isinstance(step.base, float) or not isinstance(step.head, float):
        return tuple(findings)
    marked = []
    for change in findings:
        moved = change_ns(change)
        if verdict is not None and moved / (CARRIES * (step.head - step.base)) >= 1:
            marked.append(replace(change, by_time=False, carries=True))
        else:
            marked.append(replace(change, carries=abs(moved) >= LIKELY_LEAST * max(step.base, step.head)))
    return tuple(sorted(marked, key=lambda change: (not change.carries, -abs(change_ns(change)) * change.carries)))


def carried_by(
    findings: Sequence[FindingChange], account: Account | None, verdict: Direction | None
) -> tuple[Carried, ...]:
    """Return the findings that carry a change.

    For a likely change without findings, the cause that moved most with it.
    """
    sign = {"regression": 1, "improvement": -1, None: 0}[verdict]
    named = tuple(_carried(change, account) for change in findings if change.carries and sign * change_ns(change) >= 0)
    if named or account is None or not sign:
        return named
    moved = {cause: amount.head_ns - amount.base_ns for cause, amount in account.causes.items() if cause != CORE_WAIT}
    most = max(moved, key=lambda cause: sign * moved[cause], default=None)
    if most is None or sign * moved[most] <= 0:
        return ()
    return (Carried(cause=most, delta_ns=moved[most], on_host=account.on_host),)


def _carried(change: FindingChange, account: Account | None) -> Carried:
    """A finding with at most what its cause changed by: one that came may have been there below its threshold."""
    finding, where, moved = change.shown, change.shown.where, change_ns(change)
    covers = finding.covers_ns if isinstance(finding, Finding) else {}
    cause = max(covers, key=covers.__getitem__, default="")
    amount = None if account is None else account.causes.get(cause)
    if amount is not None and 0 < abs(amount.head_ns - amount.base_ns) < abs(moved):
        moved = amount.head_ns - amount.base_ns
    return Carried(
        rule=change.rule,
        cause=cause,
        delta_ns=moved,
        place=where.label() if where.file is not None else "",
        function=_function(change),
        on_host=account is not None and account.on_host,
    )


def _function(change: FindingChange) -> str:
    """The function that the evidence of a finding names first; ``''`` where it names none."""
    finding = change.shown
    for row in finding.evidence[:1] if isinstance(finding, Finding) else ():
        frame = parse_frame(str(row.get("host_was_in") or ""))
        if frame is not None:
            return frame.function
    return ""


def as_notes(metrics: Iterable[ExactMetric], *, faster: bool, other_vendors: bool = False) -> tuple[ExactMetric, ...]:
    """Return the metrics; counts that became worse while the step became ``faster`` are neutral, but never memory.

    ``other_vendors``: kernels, copies and launches belong to other libraries, and their numbers are neutral.
    """
    return tuple(_as_note(metric, faster=faster, other_vendors=other_vendors) for metric in metrics)


def _as_note(metric: ExactMetric, *, faster: bool, other_vendors: bool) -> ExactMetric:
    result = metric.result
    if other_vendors and result.verdict != "no change" and result.name.startswith(DEVICE_COUNTS):
        return replace(metric, neutral=True, result=_noted(result, OTHER_VENDOR))
    if faster and result.verdict == "regression" and result.unit != "bytes":
        return replace(metric, neutral=True, result=_noted(result, NOTED))
    return metric


def _noted(result: MetricResult, remark: str) -> MetricResult:
    return replace(result, verdict="inconclusive", remarks=(*result.remarks, remark))
