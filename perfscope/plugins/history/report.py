"""A history of runs: the series of each metric, the commits at which its level changed, and the runs themselves."""

from __future__ import annotations

import json
import shlex
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perfscope.analyzers.compare import STEP_LEAST
from perfscope.dashboards.report.blocks import (
    Axis,
    Badge,
    Block,
    Column,
    Dot,
    Line,
    Listing,
    Plot,
    Report,
    Section,
    Text,
    notes,
    table,
    tables,
)
from perfscope.dashboards.report.renderers.html import report_html
from perfscope.dashboards.report.renderers.records import Shape, Shapes, plain
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.dashboards.report.renderers.values import amount, amount_text, percent
from perfscope.model.untrusted_text import sanitize, sanitize_value
from perfscope.plugins.history.series import Change, History, Point, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfscope.dashboards.report.blocks import Table
    from perfscope.plugins.history.stored_run import Baseline, StoredRun

    CountBetween = Callable[[str, str], int | None]

BLOCKS = "▁▂▃▄▅▆▇█"
FLAT = "▄"
SPARK = 40
"""Width of a sparkline, characters."""
HASH = 12
"""Characters of a commit, as git shows them in a large repository."""
FEW = 4
"""With fewer metrics than this, each metric has a row even if it never changed."""
MOST_PROGRAMS = 6
"""Most programs on the screen without ``-v``, latest run first."""
MOST_CHANGES = 6
"""Most change points shown per program, newest first."""
MOST_POINTS = 20
"""Most runs listed for a metric selected by name."""
MOST_ROWS = 200
"""Most runs in the table of a metric, newest first; the JSON has all."""
MOST_PICTURED = 500

PROOF = "A history shows when a metric changed. To test a single commit, run `perfscope compare commits`."

SCHEMA = "perfscope.history/1"

COURSE = "#3f7fd6"
"""Colour of the line of a metric."""

STYLE = """
h3{font-size:15px;margin:18px 0 2px}
.ends span{white-space:nowrap}
"""


class Program(Struct, frozen=True, kw_only=True):
    """The series of one program on one kind of machine."""

    title: str
    series: tuple[Series, ...]

    @property
    def runs(self) -> int:
        """Largest number of runs that any metric has."""
        return max(len(series.points) for series in self.series)

    @property
    def newest_utc(self) -> str:
        """Time of the latest run, UTC."""
        return max(point.created_utc for series in self.series for point in series.points)

    def parted(self) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
        """Return (series that changed at all, series that did not); with few series all are in the first."""
        still = tuple(series for series in self.series if len({point.value for point in series.points}) == 1)
        if len(self.series) < FEW:
            return self.series, ()
        return tuple(series for series in self.series if series not in still), still

    def moved(self) -> list[list[tuple[Series, Change]]]:
        """Changes of level, newest first; changes between the same two runs are grouped."""
        places: dict[tuple[str, str], list[tuple[Series, Change]]] = {}
        for series in self.series:
            for change in series.changes:
                places.setdefault((change.before.run, change.after.run), []).append((series, change))
        return sorted(places.values(), key=lambda held: held[0][1].after.created_utc, reverse=True)


def programs(history: History) -> tuple[Program, ...]:
    """Group the series by program and machine, latest run first; times come first in each group."""
    made = [
        Program(title=_title(members[0]), series=tuple(sorted(members, key=lambda series: series.known == "exact")))
        for members in (list(group) for _, group in groupby(sorted(history.series, key=_which), key=_which))
    ]
    return tuple(sorted(made, key=lambda program: program.newest_utc, reverse=True))


def _which(series: Series) -> tuple[str, tuple[str, ...], str]:
    return series.name, series.command, series.machine


def _title(series: Series) -> str:
    words = [sanitize(value) for key, value in series.hardware.items() if key in ("gpu", "cpu")] or [
        sanitize(value) for value in series.hardware.values()
    ]
    on = f" on {', '.join(words)}" if words else " (no machine recorded)"
    how = "by commit" if series.ordered == "commits" else "by time"
    command = f": {sanitize(shlex.join(series.command))}" if series.command else ""
    return f"{sanitize(series.name)}{command}{on}, {how}"


def render_text(
    history: History,
    *,
    width: int = WIDTH,
    color: bool = False,
    verbose: bool = False,
    count_between: CountBetween | None = None,
) -> str:
    """Return the history as text; a single metric includes its runs. ``count_between``: commits between two, by git."""
    return report_text(_report(history, count_between), width=width, color=color, verbose=verbose)


def render_html(history: History, *, count_between: CountBetween | None = None) -> str:
    """Return the page; ``count_between``: commits between two, by git."""
    data = json.dumps(document(history), ensure_ascii=False, allow_nan=False)
    report = _report(history, count_between)
    return report_html(report, data_id="perfscope-history", data=data, style=STYLE)


def _report(history: History, count: CountBetween | None) -> Report:
    changed = sum(bool(series.changes) for series in history.series)
    counts = f"{history.runs} runs, {len(history.series)} series, {changed} of them with a change of level"
    return Report(headline="history", facts=(counts,), sections=tuple(history_sections(history, count)))


def history_sections(history: History, count: CountBetween | None = None) -> Iterator[Section]:
    """A section per program and machine, latest run first; programs with a single run are details."""
    alone = len({series.metric for series in history.series}) == 1
    held = programs(history)
    several = any(program.runs > 1 for program in held)
    kept = 0
    for program in held:
        detail = kept >= MOST_PROGRAMS or (several and program.runs == 1)
        kept += not detail
        yield Section(title=program.title, blocks=tuple(_program(program, count, alone=alone)), detail=detail)
    remarks = [PROOF, *(f"left out: {text}" for text in history.left_out), *history.notes]
    yield Section(title="Notes", blocks=notes(*remarks))


METRIC_COLUMNS: tuple[Column[Series], ...] = (
    Column("metric", lambda series: series.metric),
    Column("runs", lambda series: len(series.points), "count"),
    Column("first", lambda series: amount(series.unit, series.points[0].value), "count"),
    Column("newest", lambda series: amount(series.unit, series.points[-1].value), "count"),
    Column("change", lambda series: grown(series), "change"),
    Column("course", lambda series: sparkline([point.value for point in series.points]), drop=1),
)


def grown(series: Series) -> float | None:
    """Relative change from the first to the newest run; ``None`` if it is zero or unknown."""
    first, last = series.points[0].value, series.points[-1].value
    return last / first - 1 if first and last != first else None


def _program(program: Program, count: CountBetween | None, *, alone: bool) -> Iterator[Block]:
    moving, still = program.parted()
    yield from tables(table(METRIC_COLUMNS, moving, few=len(moving)))
    if still:
        of = "its only run" if program.runs == 1 else "the same in all runs"  # with one run there is nothing to compare
        yield Text(f"{of}: {', '.join(f'{s.metric} {amount_text(s.unit, s.points[-1].value)}' for s in still)}")
        yield table(METRIC_COLUMNS, still, title=of, few=len(still), detail=True)
    moved = program.moved()
    for changes in moved[:MOST_CHANGES]:
        yield from changes_blocks(changes, count)
    if len(moved) > MOST_CHANGES:
        yield Text(f"and at {len(moved) - MOST_CHANGES:,} earlier points")
    for series in program.series:
        yield from series_blocks(series, alone=alone, moving=series in moving)


def changes_blocks(changes: Sequence[tuple[Series, Change]], count: CountBetween | None) -> tuple[Block, ...]:
    """Metrics that changed between the same two runs."""
    lines = tuple(f"{sanitize(series.metric)} {_size_words(change, series)}" for series, change in changes)
    return Text(f"changed {_where_words(changes[0][1], count)}"), Listing(items=lines, rest="metrics")


def series_blocks(series: Series, *, alone: bool = False, moving: bool = True) -> Iterator[Block]:
    """A metric: its picture, remarks, and its runs, unfolded if it is shown ``alone``."""
    if moving:
        yield _drawn(series)
    yield from notes(*(f"{series.metric}: {line}" for line in (*series.remarks, _newest_words(series)) if line))
    if alone or moving:
        yield _points(series, detail=not alone)


def _points(series: Series, *, detail: bool) -> Table:
    starts = {series.points[change.index].run for change in series.changes}
    newest = series.points[: -MOST_ROWS - 1 : -1]
    columns: tuple[Column[Point], ...] = (
        Column("run", lambda point: point.run),
        Column("commit", commit_words),
        Column("branch", lambda point: point.branch or ""),
        Column("value", lambda point: amount(series.unit, point.value), "count"),
        Column("", lambda point: Badge("new level", "open") if point.run in starts else None),
    )
    left = len(series.points) - len(newest)
    title = f"the runs: {series.metric}"
    return table(columns, newest, title=title, few=MOST_POINTS, left=left, rest="runs", detail=detail)


def baselines_section(found: Sequence[Baseline]) -> Section:
    """One row per baseline, in the given order."""
    columns: tuple[Column[Baseline], ...] = (
        Column("name", lambda baseline: baseline.name),
        Column("run", lambda baseline: baseline.run.id),
        Column("commit", lambda baseline: commit_words(baseline.run)),
        Column("branch", lambda baseline: baseline.run.branch or ""),
        Column("set (UTC)", lambda baseline: baseline.set_utc[:19].replace("T", " ")),
        Column("files", lambda baseline: "numbers only" if baseline.digest is None else baseline.bytes, "bytes"),
    )
    return Section(title="Baselines", blocks=(table(columns, found, few=len(found)),))


def sparkline(values: Sequence[float], width: int = SPARK) -> str:
    """The values as block characters between the extremes; with many values each block is the median of a few."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    held = [sorted(values[start:end])[(end - start) // 2] for start, end in pairwise(edges)]
    if min(held) == max(held):
        return FLAT * count
    low, high = scale(held)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(top * (value - low) / (high - low))] for value in held)


def scale(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper edge of a picture, at least 2% apart so that irrelevant changes look flat."""
    low, high = min(values), max(values)
    middle, half = (low + high) / 2, max(high - low, STEP_LEAST * abs(high)) / 2
    return middle - half, middle + half


def commit_words(point: Point | StoredRun) -> str:
    """The run's commit, with ``+`` if files had uncommitted changes."""
    if point.commit is None:
        return "no commit"
    return point.commit[:HASH] + ("+" if point.dirty else "")


def _size_words(change: Change, series: Series) -> str:
    """Size of a change of level, and its confidence."""
    old, new = amount_text(series.unit, change.old), amount_text(series.unit, change.new)
    size = f" ({percent(change.change)})" if change.change is not None else ""
    return f"{old} → {new}{size}" + ("" if change.p is None else f", p {change.p:.1g}")


def _where_words(change: Change, count: CountBetween | None) -> str:
    """Commits between which the level changed, and other changes at that point. ``count``: commits between two."""
    before, after = change.before.commit, change.after.commit
    if change.same_commit:
        where = f"at {commit_words(change.after)}, the commit of both runs: not the code"
    elif before is None and after is None:
        where = f"after {sanitize(change.before.run)}, up to {sanitize(change.after.run)}"
    else:
        where = f"after {commit_words(change.before)}, up to {commit_words(change.after)}"
        between = count(before, after) if count is not None and before is not None and after is not None else None
        where += f" ({between} commits)" if between is not None and between > 1 else ""
    return where + (f"; {', '.join(map(sanitize, change.software))} there" if change.software else "")


def _newest_words(series: Series) -> str | None:
    """A remark if the last run differs by more than neighbours usually do, and that one run proves nothing."""
    fence = series.newest
    if fence is None or not fence.outside:
        return None
    return (
        f"the newest run is {percent(fence.change)} from the one before; neighbours differ by at most "
        f"{100 * fence.bound:.1f}% as a rule (one run: `perfscope compare commits` settles it)"
    )


# A history as JSON, ``perfscope.history/1`` (docs/store.md). Within a schema version keys are only added.


def render_json(history: History) -> str:
    """Return the history as indented JSON text."""
    return json.dumps(document(history), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(history: History) -> dict[str, Any]:
    """Return the history as plain dicts and lists; times are ns."""
    return {"schema": SCHEMA, **sanitize_value(plain(history, SHAPES))}


SHAPES: Shapes = {
    Series: Shape(renamed={"name": "program", "ordered": "ordered_by"}),
    Change: Shape(
        left_out=("before", "after"),
        added={
            "after_commit": attrgetter("before.commit"),
            "up_to_commit": attrgetter("after.commit"),
            "after_run": attrgetter("before.run"),
            "up_to_run": attrgetter("after.run"),
            "same_commit": attrgetter("same_commit"),
        },
    ),
}
"""Per class: fields that are not written as they are."""


def _drawn(series: Series) -> Plot:
    """A line through the values, from smallest to largest; dashed where the level changed."""
    skipped = max(0, len(series.points) - MOST_PICTURED)
    points = series.points[skipped:]
    values = [point.value for point in points]
    low, high = scale(values)
    cuts = [change.index - skipped - 0.5 for change in series.changes if change.index > skipped]
    course = Line(points=tuple(enumerate(values)), color=COURSE)
    levels = (Line(points=((cut, low), (cut, high)), color=COURSE, kind="dashed") for cut in cuts)
    between = f"{amount_text(series.unit, min(values))} to {amount_text(series.unit, max(values))}"
    newest = points[-1]
    return Plot(
        title=f"{series.metric}: {amount_text(series.unit, newest.value)}",
        words=f"{len(values)} runs from {between}, {len(cuts)} changes of level",
        x=Axis(low=0, high=max(1, len(values) - 1)),
        y=Axis(low=low, high=high),
        lines=(course, *levels),
        dots=(Dot(x=len(values) - 1, y=newest.value, color=COURSE),),
        below=(commit_words(points[0]), between, commit_words(newest)),
    )
