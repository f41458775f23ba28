"""One outcome of a rule for several compiled programs that are not ranks of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfscope.analyzers.causes import MOST_ROWS, ROWS_OF_EACH, cause_of
from perfscope.model.finding import TITLE_LENGTH, Cell, Finding, Outcome, fit_title

MOST_NAMED = 3
"""Maximum number of programs named in a reason; the rest is counted."""


def merge_programs(outcomes: Sequence[Outcome], labels: Sequence[str]) -> Outcome:
    """Merge a rule's outcomes of all programs. Clean means that every program was examined and has no finding.

    Programs with the same finding at the same place have one finding, because there is one line to change. It names the
    costliest program and has the title and costs of that program. Costs are never added, because the programs need not
    run together. Each of ``outcomes`` is of the same rule, with its findings worst first.
    """
    blind = [(label, outcome) for label, outcome in zip(labels, outcomes, strict=True) if outcome.status == "abstained"]
    reason = _reason(blind, len(outcomes)) if blind else None
    return merged_outcome(outcomes, tuple(_merged(outcomes, labels)), reason)


def merged_outcome(outcomes: Sequence[Outcome], findings: tuple[Finding, ...], reason: str | None) -> Outcome:
    """Return the merged outcome. ``reason``: why some programs could not be evaluated; ``None`` if all could."""
    return Outcome(
        rule=outcomes[0].rule,
        status="flagged" if findings else "clean" if reason is None else "abstained",
        reason=reason,
        findings=findings,
        examined=sum(outcome.examined for outcome in outcomes),
        examined_what=max(outcomes, key=lambda outcome: outcome.examined).examined_what,
        missing=tuple(dict.fromkeys(key for outcome in outcomes for key in outcome.missing)),
    )


def _reason(blind: Sequence[tuple[str, Outcome]], programs: int) -> str:
    """Return the most frequent reason, and the programs it applies to if not all."""
    counts = Counter(outcome.reason or "no reason given" for _, outcome in blind)
    (reason, count), *others = counts.most_common()
    if count == programs:
        return reason
    whose = [label for label, outcome in blind if (outcome.reason or "no reason given") == reason]
    named = ", ".join(whose[:MOST_NAMED]) + (f" and {count - MOST_NAMED:,} more" if count > MOST_NAMED else "")
    more = f"; {len(blind) - count:,} more for other reasons" if others else ""
    return f"{named}: {reason}{more}"


def _merged(outcomes: Sequence[Outcome], labels: Sequence[str]) -> list[Finding]:
    groups: dict[object, list[tuple[str, Finding]]] = {}
    for label, outcome in zip(labels, outcomes, strict=True):
        for finding in outcome.findings:
            groups.setdefault(cause_of(finding), []).append((label, finding))
    return [_one(members) for members in groups.values()]


def _one(members: list[tuple[str, Finding]]) -> Finding:
    members = sorted(members, key=lambda pair: _by_cost(pair[1]))
    label, worst = members[0]
    others = len({name for name, _ in members} - {label})
    rows = [_row(name, row) for name, finding in members for row in _kept(finding, alone=not others)]
    count = sum(finding.count for _, finding in members)
    title = fit_title(f"{label}: {worst.title}", label)
    named = len(title) <= TITLE_LENGTH
    return replace(
        worst,
        title=title if named else worst.title,
        detail=worst.detail if named else f"In {label}. {worst.detail}".strip(),
        evidence=tuple(rows[:MOST_ROWS]),
        count=count,
    )


def _kept(finding: Finding, *, alone: bool) -> Sequence[Mapping[str, Cell]]:
    return finding.evidence if alone else finding.evidence[:ROWS_OF_EACH]


def _row(label: str, row: Mapping[str, Cell]) -> dict[str, Cell]:
    return {"program": label, **{key: cell for key, cell in row.items() if key != "program"}}


def _by_cost(finding: Finding) -> tuple[int, int, int]:
    """Sort findings with a time first; then by time, bytes and severity."""
    severity = ("high", "medium", "low").index(finding.severity)
    if finding.cost_ns is not None:
        return (0, -finding.cost_ns, severity)
    return (1, -(finding.cost_bytes or 0), severity)
