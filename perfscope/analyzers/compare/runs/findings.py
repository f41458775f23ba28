"""Findings of two analyses side by side: new, fixed, unchanged, worse, better; and what only one side looked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from perfscope.model.finding import MEDIUM_SHARE, SEVERITIES, Finding, Outcome

Change = Literal["new", "fixed", "worse", "better", "unchanged", "first looked at", "no longer looked at"]

LEAST_RATIO = 1.5
"""Of costs that are called different: costs of single captures move by a fifth from run to run, and a rank or a step
that was cut at the edge by more."""

_ORDER: tuple[Change, ...] = (
    "new", "worse", "first looked at", "fixed", "better", "no longer looked at", "unchanged",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """One finding on both sides. ``None`` where a side does not have it."""

    rule: str
    change: Change
    base: Finding | None
    head: Finding | None
    by_time: bool = False
    """Nothing that can be counted changed with it: a threshold on a measured time was crossed, maybe by chance."""

    @property
    def shown(self) -> Finding:
        """The head's, else the base's."""
        found = self.head or self.base
        if found is None:
            raise ValueError("a change of no finding")
        return found

    @property
    def is_worse(self) -> bool:
        """New, or costlier than it was, and not by a measured time alone: what a gate asks for."""
        return self.change in ("new", "worse") and not self.by_time


def findings_change(
    base: Iterable[Outcome], head: Iterable[Outcome], *, step_ns: float | None = None
) -> tuple[FindingChange, ...]:
    """Every finding of both sides once, worst change first.

    ``base`` and ``head``: an analysis, or outcomes. ``step_ns``: a step of the head: a cost that moved by less than 1%
    of it is the same. A finding that one side did not look for (its rule abstained, or was not asked) is never called
    new or fixed.
    """
    outcomes = {one.rule: one for one in base}, {one.rule: one for one in head}
    found: list[FindingChange] = []
    for rule in dict.fromkeys((*outcomes[0], *outcomes[1])):
        mine, theirs = outcomes[0].get(rule), outcomes[1].get(rule)
        for one, other in _paired(mine.findings if mine else (), theirs.findings if theirs else ()):
            change = _change(one, other, mine, theirs, step_ns)
            found.append(FindingChange(rule=rule, change=change, base=one, head=other))
    return tuple(sorted(found, key=_worst_first))


def _change(
    base: Finding | None, head: Finding | None, mine: Outcome | None, theirs: Outcome | None, step_ns: float | None
) -> Change:
    if base is None:
        return "new" if _looked(mine) else "first looked at"
    if head is None:
        return "fixed" if _looked(theirs) else "no longer looked at"
    before, after = cost_of(base), cost_of(head)
    moved = SEVERITIES.index(head.severity) - SEVERITIES.index(base.severity)
    if before is None or after is None:
        return "worse" if moved > 0 else "better" if moved < 0 else "unchanged"
    if max(before, after) < LEAST_RATIO * min(before, after):
        return "unchanged"
    if step_ns is not None and abs(after - before) < MEDIUM_SHARE * step_ns:
        return "unchanged"
    return "worse" if after > before else "better"


def _looked(outcome: Outcome | None) -> bool:
    """Whether the rule could look everywhere: one that abstained of a part may have missed it there."""
    return outcome is not None and outcome.status != "abstained" and outcome.reason is None


def cost_of(finding: Finding | None) -> int | None:
    """ns that it costs: a step where that is known, else in all; ``None`` for no time, or no finding."""
    if finding is None:
        return None
    return finding.cost_ns_per_step if finding.cost_ns_per_step is not None else finding.cost_ns


_Signature = Callable[[Finding], tuple[object, ...]]


def _exactly(one: Finding) -> tuple[object, ...]:
    return (one.subject, one.where)


def _without_line(one: Finding) -> tuple[object, ...]:
    """The file's name alone: another checkout lies in another folder."""
    where = one.where
    return (one.subject, where.file and PurePath(where.file).name, where.op, where.module)


def _subject(one: Finding) -> tuple[object, ...]:
    return (one.subject, one.where.file and PurePath(one.where.file).name)


_LEVELS: tuple[_Signature, ...] = (_exactly, _without_line, _subject)


def _paired(base: Sequence[Finding], head: Sequence[Finding]) -> list[tuple[Finding | None, Finding | None]]:
    """The same finding on both sides: at the same place, else at another line of the file in order of the lines."""
    left, right = list(base), list(head)
    pairs: list[tuple[Finding | None, Finding | None]] = []
    for level in _LEVELS:
        mine, theirs = _grouped(left, level), _grouped(right, level)
        for shared in mine.keys() & theirs.keys():
            ours, others = sorted(mine[shared], key=_line), sorted(theirs[shared], key=_line)
            for one, other in zip(ours, others, strict=False):
                pairs.append((one, other))
                left = [held for held in left if held is not one]
                right = [held for held in right if held is not other]
    return [*pairs, *((one, None) for one in left), *((None, other) for other in right)]


def _grouped(findings: Sequence[Finding], level: _Signature) -> dict[tuple[object, ...], list[Finding]]:
    found: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
    for one in findings:
        found[level(one)].append(one)
    return found


def _line(one: Finding) -> int:
    return one.where.line or 0


def _worst_first(one: FindingChange) -> tuple[int, int, int, str]:
    shown = one.shown
    return (_ORDER.index(one.change), -SEVERITIES.index(shown.severity), -(cost_of(shown) or 0), shown.title)
