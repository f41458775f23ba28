"""The account of a job as a report: where the time went, what happened, and when the step time changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.dashboards.report.blocks import (
    Badge,
    Column,
    Effect,
    Report,
    Section,
    Table,
    Text,
    Tone,
    Value,
    table,
    tables,
)
from perfscope.model.units import format_ns
from perfscope.plugins.job.account import CauseTime, JobAccount
from perfscope.plugins.job.nodes import Node
from perfscope.plugins.job.rank import Attempt, Event
from perfscope.plugins.job.rank_sections import (
    change_fact,
    clock,
    hang_fact,
    rank_sections,
    recordings_section,
    saves_fact,
)
from perfscope.plugins.job.recordings import Compared
from perfscope.plugins.job.steps import StepChange

FEW = 10
FEW_RANKS = 4
TOGETHER_S = 10
"""Rows of ranks are written at different times, up to this long apart at first."""
BUSY = "waiting for a core"
"""Cause of a change that the program did not make: other causes are named first."""
MEANT = {
    "waiting for a core": "the thread could run and other threads or processes had the cores",
    "lost work": "trained after the save that the next attempt went on from, and trained again",
    "not recorded": "between a process's rows, or its stack could not be read",
}
"""Explanations that are shown only where the cause is."""


def report_of(account: JobAccount, recordings: Sequence[Compared] = ()) -> Report:
    """The account as blocks. ``recordings``: made while the job ran."""
    return Report(
        headline=_headline(account),
        facts=tuple(_facts(account)),
        sections=tuple(_sections(account, recordings)),
    )


def _headline(account: JobAccount) -> str:
    ranks = "one process" if len(account.ranks) == 1 else f"{len(account.ranks):,} ranks"
    return f"{account.goodput:.1%} of {format_ns(account.wall_ns)} of {ranks} trained what was kept"


def _facts(account: JobAccount) -> Iterator[str]:
    most = next((cause for cause in account.causes if cause.cause not in ("training steps",)), None)
    if most is not None:
        at = f", most of it at {most.lines[0][0]}" if most.lines else ""
        yield f"most of the rest: {most.cause}, {format_ns(most.ns)} ({most.share:.1%}){at}"
    tokens = f", {account.tokens:,} tokens" if account.tokens else ""
    steps = f"{account.steps:,} steps" if account.steps != 1 else "1 step"
    yield f"{steps}{tokens}; times by samples of the main thread, ten a second"
    yield from map(hang_fact, account.hangs[-1:])
    if account.changes:
        yield change_fact(max(account.changes, key=lambda change: (change.cause != BUSY, abs(change.change))))
    slowing = [saves for saves in account.saves if saves.slowed]
    yield from map(saves_fact, slowing[:1])


def _sections(account: JobAccount, recordings: Sequence[Compared]) -> Iterator[Section]:
    yield Section(title="Where the time went", blocks=(*tables(_causes(account)), *_meanings(account)))
    if account.changes:
        yield Section(title="Changes of the step time", blocks=tables(_changes(account.changes)))
    yield from rank_sections(account.hangs, account.rank_notes, account.saves, account.watched)
    if len(account.nodes) > 1:
        yield Section(title="Nodes", summary=_slow_nodes(account.nodes), blocks=tables(_nodes(account.nodes)))
    if recordings:
        yield recordings_section(recordings)
    notable = [event for event in account.events if event.kind not in ("started", "ended")]
    if notable:
        yield Section(title="Events", summary=_counts(notable), blocks=tables(_events(notable)))
    if len(account.attempts) > 1:
        yield Section(title="Processes", blocks=tables(_attempts(account.attempts)))
    if account.notes:
        yield Section(title="Notes", blocks=tuple(Text(note, warning=True) for note in account.notes))


def _causes(account: JobAccount) -> Table:
    columns: tuple[Column[CauseTime], ...] = (
        Column("cause", lambda row: row.cause),
        Column("time", lambda row: row.ns, "ns"),
        Column("share", lambda row: row.share, "share"),
        Column("most of it at", _most_at, "place", drop=1),
    )
    return table(columns, account.causes, few=len(account.causes), bar="parts")


def _most_at(row: CauseTime) -> str:
    if not row.lines:
        return ""
    line, ns = row.lines[0]
    return f"{line} ({ns / row.ns:.0%})"


def _meanings(account: JobAccount) -> Iterator[Text]:
    for cause in account.causes:
        meaning = MEANT.get(cause.cause)
        if meaning:
            yield Text(f"{cause.cause}: {meaning}", detail=True)


def _changes(changes: tuple[StepChange, ...]) -> Table:
    columns: tuple[Column[StepChange], ...] = (
        Column("from", lambda row: clock(row.unix_ns)),
        Column("rank", lambda row: "" if row.rank is None else str(row.rank)),
        Column("per step", lambda row: row.series, drop=1),
        Column("before", lambda row: round(row.before_ns), "ns"),
        Column("after", lambda row: round(row.after_ns), "ns"),
        Column("change", _effect),
        Column("changed most", lambda row: row.cause),
        Column("line", lambda row: row.line, "place"),
        Column("by", lambda row: round(row.line_ns), "signed_ns", drop=3),
        Column("ranks that wait", lambda row: ", ".join(map(str, row.waits)), drop=2),
    )
    return table(columns, changes, few=FEW)


def _effect(row: StepChange) -> Value:
    return Effect(row.change, tone="worse" if row.change > 0 else "better")


def _counts(events: list[Event]) -> str:
    kinds = dict.fromkeys(event.kind for event in events)
    return ", ".join(f"{sum(event.kind == kind for event in events):,} {kind}" for kind in kinds)


def _events(events: list[Event]) -> Table:
    columns: tuple[Column[list[Event]], ...] = (
        Column("at", lambda row: clock(row[0].unix_ns)),
        Column("what", lambda row: Badge(row[0].kind, "worse" if row[0].kind in ("stalled", "killed") else "plain")),
        Column("ranks", _whose, drop=2),
        Column("took", lambda row: max(event.ns for event in row) or None, "ns"),
        Column("line", lambda row: row[0].line, "place"),
        Column("details", lambda row: row[0].text if len({event.text for event in row}) == 1 else "", drop=1),
    )
    order = {"killed": 0, "stalled": 0, "failed save": 1, "failed restore": 1}
    shown = sorted(together(events), key=lambda row: (order.get(row[0].kind, 2), -max(event.ns for event in row)))
    return table(columns, shown, few=FEW, rest="events, which took less")


def together(events: Sequence[Event]) -> list[list[Event]]:
    """Events of one kind and line that begin within ``TOGETHER_S`` of each other on several ranks."""
    groups: list[list[Event]] = []
    newest: dict[tuple[str, str], tuple[list[Event], set[int | None]]] = {}
    for event in sorted(events, key=lambda event: event.unix_ns):
        key = event.kind, event.line
        group, ranks = newest.get(key, ([], set()))
        if not group or event.unix_ns - group[0].unix_ns > TOGETHER_S * 1e9 or event.rank in ranks:
            group, ranks = newest[key] = [], set()
            groups.append(group)
        group.append(event)
        ranks.add(event.rank)
    return groups


def _whose(row: list[Event]) -> str:
    ranks = sorted(event.rank for event in row if event.rank is not None)
    if len(ranks) < FEW_RANKS:
        return ", ".join(map(str, ranks))
    whole = ranks == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]} to {ranks[-1]}" if whole else f"{', '.join(map(str, ranks[:2]))} and {len(ranks) - 2:,} more"


def _slow_nodes(nodes: tuple[Node, ...]) -> str:
    slow = [node.host for node in nodes if node.slow_again]
    return f"slow again and again: {', '.join(slow[:FEW])}" if slow else "none is slow again and again"


def _nodes(nodes: tuple[Node, ...]) -> Table:
    columns: tuple[Column[Node], ...] = (
        Column("node", lambda row: Badge(row.host, "worse" if row.slow_again else "plain")),
        Column("ranks", lambda row: row.ranks, "count", drop=2),
        Column("a step", lambda row: None if row.step_ns is None else round(row.step_ns), "ns"),
        Column("to the others", lambda row: None if row.excess is None else Effect(row.excess, tone=_tone(row))),
        Column("slow in", lambda row: f"{row.slow_bins} of {row.bins} times" if row.bins else ""),
        Column("kept", lambda row: row.kept_share, "share"),
        Column("killed", lambda row: row.killed or None, "count", drop=2),
        Column("stalled", lambda row: row.stalled or None, "count", drop=2),
        Column("lost", lambda row: row.lost_ns or None, "ns", drop=1),
    )
    return table(columns, nodes, few=FEW, rest="nodes")


def _tone(node: Node) -> Tone:
    return "worse" if node.slow_again else "plain"


def _end(attempt: Attempt, last: Attempt) -> str:
    if attempt.ended:
        return "by itself"
    return "killed or running" if attempt is last else "killed"


def _attempts(attempts: tuple[Attempt, ...]) -> Table:
    last = {attempt.rank: attempt for attempt in attempts}  # by their begins
    columns: tuple[Column[Attempt], ...] = (
        Column("began", lambda row: clock(row.begin_ns)),
        Column("rank", lambda row: "" if row.rank is None else str(row.rank)),
        Column("host", lambda row: row.host, drop=1),
        Column("process", lambda row: str(row.pid), drop=2),
        Column("ran for", lambda row: row.end_ns - row.begin_ns, "ns"),
        Column("steps", lambda row: row.steps, "count"),
        Column("lost", lambda row: row.lost_ns or None, "ns"),
        Column("end", lambda row: Badge(_end(row, last[row.rank]), "plain")),
    )
    return table(columns, attempts, few=FEW, rest="processes")
