"""A history on a terminal: a line a metric with its course, and where its level changed; and the list of baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.reports.history_rows import (
    Program,
    amount,
    commit_words,
    newest_words,
    percent,
    programs,
    sparkline,
)
from perfscope.dashboards.reports.text_page import WIDTH, printed
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.compare.series import History, Series
    from perfscope.dashboards.reports.history_rows import CountBetween
    from perfscope.profiler.store.runs import Baseline

MOST_PROGRAMS = 6
"""On the screen, those that ran last."""
MOST_CHANGES = 6
"""Points of a program at which levels changed, the newest ones."""
MOST_POINTS = 20
"""Runs that are listed of a metric, the newest ones."""


def render(
    found: History,
    *,
    width: int = WIDTH,
    color: bool = False,
    verbose: bool = False,
    count_between: CountBetween | None = None,
) -> str:
    """The history as text; of a single metric with its runs. ``count_between``: commits between two, as git says."""
    return printed(lambda _: _parts(found, verbose=verbose, count=count_between), width=width, color=color)


def _parts(found: History, *, verbose: bool, count: CountBetween | None) -> Iterator[RenderableType]:
    alone = len({one.metric for one in found.series}) == 1
    held = programs(found)
    rows = [one for one in held if verbose or one.runs > 1] or list(held)
    for program in rows if verbose else rows[:MOST_PROGRAMS]:
        yield Text(program.title, style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("metric", overflow="fold", ratio=1)
        table.add_column("runs", justify="right", no_wrap=True)
        for name in ("first", "newest", "change"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        series, still = (program.series, None) if verbose else program.parted()
        for one in series:
            table.add_row(*map(Text, _row(one)))
        if series:
            yield Padding(table, (0, 0, 0, 2))
        if still is not None:
            yield Padding(Text(still), (0, 0, 0, 2))
        yield from _changes(program, verbose=verbose, count=count)
        if alone:
            for one in program.series:
                yield from _points(one, verbose=verbose)
        yield ""
    left = len(held) - (len(rows) if verbose else min(len(rows), MOST_PROGRAMS))
    if left:
        yield Text(f"and {left} more (programs with other arguments, other machines, single runs): -v shows all")
    for line in (*(f"left out: {one}" for one in found.left_out), *found.notes):
        yield Text(f"note: {line}", style="dim")


def _row(one: Series) -> tuple[str, ...]:
    first, last = one.points[0].value, one.points[-1].value
    moved = percent(last / first - 1) if first and last != first else "" if last == first else "-"
    return (
        sanitize(one.metric),
        str(len(one.points)),
        amount(first, one.unit),
        amount(last, one.unit),
        moved,
        sparkline([point.value for point in one.points]),
    )


def _changes(program: Program, *, verbose: bool, count: CountBetween | None) -> Iterator[RenderableType]:
    moved = program.moved(count)
    rows = moved if verbose else moved[:MOST_CHANGES]
    for one in rows:
        yield Padding(Text(f"changed {one.where}", style="bold"), (0, 0, 0, 2))
        yield from (Padding(Text(line), (0, 0, 0, 6)) for line in one.lines)
    if len(rows) < len(moved):
        yield Padding(Text(f"and at {len(moved) - len(rows)} earlier points: -v shows all"), (0, 0, 0, 2))
    for series in program.series:
        newest = newest_words(series)
        for line in (*series.remarks, *(() if newest is None else (newest,))):
            yield Padding(Text(f"{sanitize(series.metric)}: {line}", style="dim"), (0, 0, 0, 2))


def _points(one: Series, *, verbose: bool) -> Iterator[RenderableType]:
    points = one.points if verbose else one.points[-MOST_POINTS:]
    starts = {change.index for change in one.changes}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "commit", "branch"):
        table.add_column(name, overflow="fold")
    table.add_column(sanitize(one.metric), justify="right", no_wrap=True)
    table.add_column("")
    for place, point in enumerate(points, start=len(one.points) - len(points)):
        table.add_row(
            Text(sanitize(point.run)),
            Text(commit_words(point)),
            Text(sanitize(point.branch or "-")),
            Text(amount(point.value, one.unit)),
            Text("<- new level" if place in starts else "", style="bold"),
        )
    yield Padding(table, (1, 0, 0, 2))
    if len(points) < len(one.points):
        yield Padding(Text(f"and {len(one.points) - len(points)} earlier runs: -v shows all"), (0, 0, 0, 2))


def baselines_table(found: Sequence[Baseline]) -> RenderableType:
    """A row a baseline, as they come."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "run", "commit", "branch", "set (UTC)"):
        table.add_column(name, overflow="fold")
    table.add_column("files", justify="right", no_wrap=True)
    for one in found:
        commit = "-" if one.run.commit is None else one.run.commit[:12] + ("+" if one.run.dirty else "")
        table.add_row(
            Text(sanitize(one.name), style="bold"),
            Text(sanitize(one.run.id)),
            Text(commit),
            Text(sanitize(one.run.branch or "-")),
            Text(sanitize(one.set_utc[:19].replace("T", " "))),
            Text("numbers only" if one.digest is None else f"{one.bytes / (1 << 20):.2f} MiB"),
        )
    return table
