"""One finding per cause: findings of a rule with the same cause are merged into one finding with a count.

A cause is a rule, a subject and a place: the source line if known, else op, kernel and module. Texts with numbers are
ignored. Costs are added if the findings do not overlap in time, that is, if their spans are disjoint or they concern
different instructions of one program; otherwise the largest cost counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from perfscope.model.finding import MOST_SPANS, Cell, Finding, Outcome, Where

MOST_ROWS = 60
"""Maximum number of evidence rows of a merged finding."""

ROWS_OF_EACH = 3
"""Number of evidence rows kept from each merged finding: its worst."""


EXPLAINED_SHARE = 0.5
"""Share of a finding's time from which a comparison of ranks explains it; the finding is then dropped, because it
reports the same waiting with less detail.
"""


_EXPLAINING_RULES = ("straggler", "repeated_reductions")
"""Rules whose findings explain why ranks wait for each other."""


def without_explained(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Remove the findings about waiting for other ranks that a finding of another rule explains in more detail."""
    explaining = [
        finding
        for outcome in outcomes
        if outcome.rule in _EXPLAINING_RULES
        for finding in outcome.findings
        if "other_ranks" in finding.covers_ns
    ]
    if not explaining:
        return list(outcomes)
    explained = max(finding.covers_ns["other_ranks"] for finding in explaining)
    result = []
    for outcome in outcomes:
        kept = outcome.findings
        if outcome.rule == "unexplained_idle":
            kept = tuple(finding for finding in kept if not _is_explained(finding, explained))
        emptied = outcome.findings and not kept
        status = "clean" if emptied else outcome.status
        result.append(outcome if kept == outcome.findings else replace(outcome, findings=kept, status=status))
    return result


def _is_explained(finding: Finding, explained_ns: int) -> bool:
    most = max(finding.covers_ns, key=lambda cause: finding.covers_ns[cause], default="")
    return most == "other_ranks" and explained_ns >= EXPLAINED_SHARE * finding.covers_ns[most]


def cause_of(finding: Finding) -> Hashable:
    """Return the key of a finding's cause among the findings of a rule in one trace."""
    where = finding.where
    place: Hashable = (where.file, where.line) if where.file is not None else where
    return finding.subject, place


def causes_of_sources(sources: Sequence[Sequence[Finding]]) -> list[list[Hashable]]:
    """Return the keys of the causes of findings from several ranks or programs.

    Without a source line, op or kernel distinguish the findings of one source. If no source has two findings with a
    subject, the subject is sufficient, because the longest of many equal gaps may be in another op on each rank.
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
    """Merge a rule's findings in one trace that have the same cause; the order by cost is kept.

    ``whole_ns``: duration of all steps, ns, an upper limit for added costs.
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
    return len(set(map(frozenset, programs))) == 1  # each of several programs runs in its own step


def _added(members: Iterable[Finding]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for member in members:
        total.update(member.covers_ns)
    return dict(total)
