"""What most launches of a program say of it: a finding that one launch in three has is chance, or a rare event."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.compare.findings import cost_of
from perfscope.model.finding import Finding, Outcome


def of_most(launches: Sequence[Sequence[Outcome]]) -> tuple[Outcome, ...]:
    """One outcome a rule from those of all launches: findings that more than half of them have.

    The same finding has the same subject at the same place; of its costs the one in the middle is given. A rule that
    abstained in half of the launches or more, and of which no finding is left, has abstained.
    """
    by_rule: dict[str, list[Outcome]] = {}
    for outcomes in launches:
        for outcome in outcomes:
            by_rule.setdefault(outcome.rule, []).append(outcome)
    return tuple(_of_rule(rule, held, len(launches)) for rule, held in by_rule.items())


def _of_rule(rule: str, outcomes: Sequence[Outcome], launches: int) -> Outcome:
    held: dict[tuple[object, ...], list[Finding]] = {}
    for outcome in outcomes:
        once = {(one.subject, one.where): one for one in reversed(outcome.findings)}  # of several the costliest
        for signature, finding in once.items():
            held.setdefault(signature, []).append(finding)
    kept = [_typical(same) for same in held.values() if 2 * len(same) > launches]
    blind = [one for one in outcomes if one.status == "abstained" or one.reason is not None]
    reason = blind[0].reason if 2 * len(blind) >= launches else None
    if kept:
        return Outcome(
            rule=rule,
            status="flagged",
            reason=reason,
            findings=tuple(sorted(kept, key=lambda one: -(cost_of(one) or 0))),
        )
    return Outcome(rule=rule, status="clean" if reason is None else "abstained", reason=reason)


def _typical(same: Sequence[Finding]) -> Finding:
    return sorted(same, key=lambda one: cost_of(one) or 0)[(len(same) - 1) // 2]
