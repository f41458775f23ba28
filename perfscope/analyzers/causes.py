"""One cause, one finding: what a rule finds several times at one place becomes one finding with a count.

A cause is a rule, a subject and a place: the source line where it is known, else op, kernel and module. Texts that hold
numbers do not count. Costs are added where the findings do not overlap in time: their spans are disjoint, or they are
different instructions of one program. Of others the largest stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from perfscope.model.finding import MOST_SPANS, Cell, Finding, Outcome, Where

MOST_ROWS = 60
"""Evidence rows of a finding that stands for several."""

ROWS_OF_EACH = 3
"""Rows that each of several findings adds to the evidence: its worst."""


TOLD_SHARE = 0.5
"""Of the time of a finding: where comparing ranks explains so much of it, it is the same waiting with less known."""


_SAY_WHY = ("straggler", "repeated_reductions")
"""Rules whose findings say why ranks wait for one another."""


def without_told(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes without the waiting for other ranks that a finding of another rule explains: that one says why."""
    told = [
        finding
        for outcome in outcomes
        if outcome.rule in _SAY_WHY
        for finding in outcome.findings
        if "other_ranks" in finding.covers_ns
    ]
    if not told:
        return list(outcomes)
    explained = max(finding.covers_ns["other_ranks"] for finding in told)
    result = []
    for outcome in outcomes:
        kept = outcome.findings
        if outcome.rule == "unexplained_idle":
            kept = tuple(finding for finding in kept if not _is_told(finding, explained))
        emptied = outcome.findings and not kept
        status = "clean" if emptied else outcome.status
        result.append(outcome if kept == outcome.findings else replace(outcome, findings=kept, status=status))
    return result


def _is_told(finding: Finding, explained_ns: int) -> bool:
    most = max(finding.covers_ns, key=lambda cause: finding.covers_ns[cause], default="")
    return most == "other_ranks" and explained_ns >= TOLD_SHARE * finding.covers_ns[most]


def cause_of(finding: Finding) -> Hashable:
    """What a rule's findings of one trace are told apart by."""
    where = finding.where
    place: Hashable = (where.file, where.line) if where.file is not None else where
    return finding.subject, place


def causes_of_sources(sources: Sequence[Sequence[Finding]]) -> list[list[Hashable]]:
    """The same for each finding of several ranks or programs.

    Without a source line an op or kernel tells findings of one source apart; where no source has two findings of a
    subject, the subject is enough: the longest of many equal gaps is in another op on each rank.
    """
    several = {
        subject
        for findings in sources
        for subject, count in Counter(item.subject for item in findings if item.where.file is None).items()
        if count > 1
    }
    return [
        [
            (item.subject, Where()) if item.where.file is None and item.subject not in several else cause_of(item)
            for item in findings
        ]
        for findings in sources
    ]


def one_per_cause(findings: Sequence[Finding], whole_ns: int) -> list[Finding]:
    """The findings of a rule in one trace with those of one cause together; worst first stays worst first.

    ``whole_ns``: the steps together, ns, which no added cost exceeds.
    """
    causes: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        causes.setdefault(cause_of(finding), []).append(finding)
    return [_together(members, whole_ns) if len(members) > 1 else members[0] for members in causes.values()]


def _together(members: Sequence[Finding], whole_ns: int) -> Finding:
    worst, apart = members[0], _are_apart(members)
    cost, per_step = worst.cost_ns, worst.cost_ns_per_step
    if apart and cost is not None:
        cost = sum(member.cost_ns or 0 for member in members)
        if worst.basis == "measured":
            cost = max(min(cost, whole_ns), worst.cost_ns or 0)
        if per_step is not None and worst.cost_ns:
            per_step = round(per_step * cost / worst.cost_ns)
    sizes = [member.cost_bytes for member in members if member.cost_bytes is not None]
    rows: list[Mapping[str, Cell]] = [row for member in members for row in member.evidence[:ROWS_OF_EACH]]
    keys = dict.fromkeys(key for row in rows for key in row)
    return replace(
        worst,
        cost_ns=cost,
        cost_ns_per_step=per_step,
        run_ns=None if apart else worst.run_ns,
        memory_bytes=None if apart else worst.memory_bytes,
        cost_bytes=(sum(sizes) if apart else max(sizes)) if sizes else None,
        covers_ns=_added(members) if apart else worst.covers_ns,
        evidence=tuple({key: row.get(key) for key in keys} for row in rows[:MOST_ROWS]),
        spans=tuple(span for member in members for span in member.spans)[:MOST_SPANS],
        count=sum(member.count for member in members),
        removes=tuple(removed for member in members for removed in member.removes) if apart else worst.removes,
    )


def _are_apart(members: Sequence[Finding]) -> bool:
    """Whether the findings do not overlap in time."""
    if all(member.spans for member in members):
        pieces = sorted(
            (span.source, span.start_ns, span.end_ns, index)
            for index, member in enumerate(members)
            for span in member.spans
        )
        reach: dict[int, tuple[int, int]] = {}
        for source, start, end, index in pieces:
            before, owner = reach.get(source, (start, index))
            if start < before and owner != index:
                return False
            reach[source] = max((before, owner), (end, index))
        return True
    programs = [{row.get("program") for row in member.evidence} for member in members]
    return len(set(map(frozenset, programs))) == 1  # of several programs each runs in its own step


def _added(members: Iterable[Finding]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for member in members:
        total.update(member.covers_ns)
    return dict(total)
