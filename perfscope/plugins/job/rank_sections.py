"""Sections of the report about ranks: hangs, slow and silent ranks, asynchronous saves, changes found while it ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from perfscope.dashboards.report.blocks import Amount, Badge, Column, Section, Table, Value, table, tables
from perfscope.model.units import format_ns
from perfscope.plugins.job.hangs import Hang, RankStall
from perfscope.plugins.job.recordings import Compared
from perfscope.plugins.job.saves import AsyncSaves
from perfscope.plugins.job.steps import StepChange
from perfscope.plugins.job.together import RankNote
from perfscope.plugins.job.watched import WatchedChange

FEW = 10
SERIES_OF = {
    "own time": "the time per step without waits for ranks or a core",
    "step time": "the step time",
}
SERIES = {"step_ns": "step time", "tokens_per_s": "tokens per second", "memory": "memory", "loss": "loss"}
"""Names of the series that are watched."""


def clock(unix_ns: int) -> str:
    """Month, day and time, UTC."""
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%m-%d %H:%M:%S")


def ranks_named(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0, 2 and 3``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:8]]
    more = len(ranks) - len(shown)
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}" + (f" and {more:,} more" if more else "")


def hang_fact(hang: Hang) -> str:
    """One sentence: how long, who is missing where, who waits."""
    text = f"no step for {format_ns(hang.ns)} from {clock(hang.unix_ns)}"
    if not hang.missing:
        return f"{text}, {hang.collective or 'at ' + hang.ranks[0].line}"
    at = next((stall for stall in hang.ranks if stall.rank in hang.missing), None)
    where = f" (at {at.line}, {at.cause})" if at is not None and at.line else ""
    dead = ", which has no process" if hang.dead == hang.missing and len(hang.missing) == 1 else ""
    came = f"did not come to {hang.collective}" if hang.collective else "did not come"
    return f"{text}: {ranks_named(hang.missing)}{dead} {came}{where}"


def change_fact(change: StepChange) -> str:
    """One sentence on a change of the step time: from, to, where, who waits."""
    at = f" at {change.line}" if change.line else ""
    by = f", {format_ns(change.line_ns)} of it {change.cause}{at}" if change.line_ns > 0 else ""
    on = "" if change.rank is None else f" on rank {change.rank}"
    wait = "waits" if len(change.waits) == 1 else "wait"
    waits = f"; {ranks_named(change.waits)} {wait} for it" if change.waits else ""
    return (
        f"{SERIES_OF[change.series]} changed by {change.change:+.0%} at {clock(change.unix_ns)}: "
        f"{format_ns(change.before_ns)} to {format_ns(change.after_ns)}{on}{by}{waits}"
    )


def saves_fact(saves: AsyncSaves) -> str:
    """One sentence on asynchronous saves that slow the steps after them."""
    return (
        f"steps after the asynchronous save at {saves.line} took {format_ns(saves.step_ns)} instead of "
        f"{format_ns(saves.usual_ns)} while it was stored, in {saves.slowed:,} of {saves.saves:,} saves: {saves.why}"
    )


def rank_sections(
    hangs: Sequence[Hang], notes: Sequence[RankNote], saves: Sequence[AsyncSaves], watched: Sequence[WatchedChange]
) -> Iterator[Section]:
    """Sections of what there is."""
    if hangs:
        rows = [(hang, stall) for hang in hangs for stall in hang.ranks]
        yield Section(title="Hangs", summary="; ".join(map(hang_fact, hangs[:3])), blocks=tables(_hangs(rows)))
    if notes:
        yield Section(title="Ranks that differ", blocks=tables(_ranks(notes)))
    if saves:
        yield Section(title="Asynchronous saves", blocks=tables(_saves(saves)))
    if watched:
        yield Section(title="Changes that were found while it ran", blocks=tables(_watched(watched)))


def recordings_section(compared: Sequence[Compared]) -> Section:
    """Recordings against the ones before them."""
    return Section(title="Recordings compared with the last ones before", blocks=tables(_compared(compared)))


def _hangs(rows: Sequence[tuple[Hang, RankStall]]) -> Table:
    columns: tuple[Column[tuple[Hang, RankStall]], ...] = (
        Column("no step from", lambda row: clock(row[0].unix_ns)),
        Column("for", lambda row: row[0].ns, "ns", drop=2),
        Column("rank", lambda row: "" if row[1].rank is None else str(row[1].rank)),
        Column("", _role),
        Column("line", lambda row: row[1].line, "place"),
        Column("cause", lambda row: row[1].cause, drop=1),
        Column("known by", lambda row: row[0].known, drop=3),
    )
    ordered = sorted(rows, key=lambda row: (row[0].unix_ns, row[1].rank not in row[0].missing, row[1].rank or 0))
    return table(columns, ordered, few=FEW, rest="ranks")


def _role(row: tuple[Hang, RankStall]) -> Value:
    hang, stall = row
    if stall.rank in hang.missing:
        return Badge("missing", "worse")
    return Badge("waits" if stall.waits else "", "plain")


def _ranks(notes: Sequence[RankNote]) -> Table:
    columns: tuple[Column[RankNote], ...] = (
        Column("rank", lambda row: str(row.rank)),
        Column("host", lambda row: row.host, drop=1),
        Column("what", lambda row: Badge(row.what, "worse")),
        Column("own time per step", lambda row: None if row.own_ns is None else round(row.own_ns), "ns"),
        Column("of the others", lambda row: None if row.others_ns is None else round(row.others_ns), "ns"),
        Column("last row", lambda row: clock(row.since_ns) if row.since_ns else ""),
    )
    return table(columns, notes, few=FEW, rest="ranks")


def _saves(saves: Sequence[AsyncSaves]) -> Table:
    columns: tuple[Column[AsyncSaves], ...] = (
        Column("line", lambda row: row.line, "place"),
        Column("saves", lambda row: row.saves, "count"),
        Column("staging", lambda row: round(row.staging_ns), "ns"),
        Column("stored after", lambda row: round(row.storing_ns), "ns"),
        Column("slowed steps", lambda row: row.slowed or None, "count"),
        Column("a step then", lambda row: round(row.step_ns) or None, "ns"),
        Column("else", lambda row: round(row.usual_ns), "ns", drop=2),
        Column("because of", lambda row: row.why or "", drop=1),
    )
    return table(columns, saves, few=FEW)


def _watched(changes: Sequence[WatchedChange]) -> Table:
    columns: tuple[Column[WatchedChange], ...] = (
        Column("after", lambda row: clock(row.unix_ns)),
        Column("rank", lambda row: "" if row.rank is None else str(row.rank)),
        Column("series", lambda row: SERIES.get(row.series, row.series)),
        Column("before", lambda row: _amount(row.series, row.levels[0])),
        Column("now", lambda row: _amount(row.series, row.levels[1])),
        Column("step", lambda row: row.step, "count", drop=1),
        Column("recorded", lambda row: "yes" if row.recorded else "", drop=2),
    )
    return table(columns, changes, few=FEW, rest="changes")


def _amount(series: str, value: float | None) -> Value:
    if value is None:
        return "not a number"
    if series == "step_ns":
        return format_ns(value)
    return Amount(value, "bytes") if series == "memory" else f"{value:,.4g}"


def _compared(rows: Sequence[Compared]) -> Table:
    columns: tuple[Column[Compared], ...] = (
        Column("rank", lambda row: str(row.rank)),
        Column("steps", lambda row: f"{row.steps[0]:,} to {row.steps[1] - 1:,}"),
        Column("because of", lambda row: SERIES.get(row.why, row.why) or "a request", drop=2),
        Column("a step before", lambda row: row.base_ns, "ns"),
        Column("now", lambda row: row.head_ns, "ns"),
        Column("changed most", _most),
        Column("finding that is new or worse", lambda row: row.finding, drop=1),
        Column("at", lambda row: row.line, "place"),
        Column("recording", lambda row: row.head, "place", drop=3),
    )
    return table(columns, rows, few=FEW, rest="recordings")


def _most(row: Compared) -> str:
    if not row.parts:
        return ""
    part = row.parts[0]
    change = part.head_ns - part.base_ns
    return f"{part.name} {'+' if change >= 0 else '-'}{format_ns(abs(change))}"
