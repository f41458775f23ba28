"""What every report of a history says, decided once: amounts, small pictures of characters, changes in words."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST
from perfscope.dashboards.report.html_page import page
from perfscope.dashboards.report.renderers.text import WIDTH, printed
from perfscope.model.units import format_bytes, format_count, format_ns
from perfscope.model.untrusted_text import sanitize, sanitize_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.compare.statistics.series import Change, History, Series
    from perfscope.model.documents.stored_run import Baseline


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfscope.analyzers.compare.statistics.series import Change, History, Point, Series

    CountBetween = Callable[[str, str], int | None]

BLOCKS = "▁▂▃▄▅▆▇█"
FLAT = "▄"
SPARK = 40
"""Columns of a series of characters."""
HASH = 12
"""Characters of a commit, as git shows them in a large repository."""
FEW = 4
"""Metrics of a program, up to which each has a row even if it never moved."""
MANIFOLD = 9.0
"""Relative change from which it is told as a multiple."""
LEAST_SHOWN = 0.01
"""Percent."""
CLEAR_GROWTH = 1.0
"""Percent below which a change has two digits behind the point."""

_FORMATS: dict[str, Callable[[float], str]] = {"ns": format_ns, "bytes": format_bytes, "FLOP": format_count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """All metrics whose level changed between the same two runs."""

    where: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The series of one program on one kind of machine."""

    title: str
    series: tuple[Series, ...]

    @property
    def runs(self) -> int:
        """Of the metric that most runs have."""
        return max(len(series.points) for series in self.series)

    def parted(self) -> tuple[tuple[Series, ...], str | None]:
        """The series that moved at all (all of them where they are few), and the others in one line."""
        still = [series for series in self.series if len({point.value for point in series.points}) == 1]
        if len(self.series) < FEW or not still:
            return self.series, None
        words = ", ".join(
            f"{sanitize(series.metric)} {amount(series.points[-1].value, series.unit)}" for series in still
        )
        of = "its only run" if self.runs == 1 else "the same in all runs"  # of one nothing can be the same or another
        return tuple(series for series in self.series if series not in still), f"{of}: {words}"

    @property
    def newest_utc(self) -> str:
        """When it ran last."""
        return max(point.created_utc for series in self.series for point in series.points)

    def moved(self, count: CountBetween | None) -> tuple[Moved, ...]:
        """Where levels changed, the newest first. ``count``: commits between two, as git says."""
        places: dict[tuple[str, str], list[tuple[Series, Change]]] = {}
        for series in self.series:
            for change in series.changes:
                places.setdefault((change.before.run, change.after.run), []).append((series, change))
        ordered = sorted(places.values(), key=lambda held: held[0][1].after.created_utc, reverse=True)
        return tuple(
            Moved(
                where=where_words(held[0][1], count),
                lines=tuple(f"{sanitize(series.metric)} {size_words(change, series)}" for series, change in held),
            )
            for held in ordered
        )


def programs(history: History) -> tuple[Program, ...]:
    """The series by program and machine, what ran last first; times first in each."""
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


def amount(value: float, unit: str) -> str:
    """A value with its unit, as it is shown everywhere else."""
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def percent(change: float) -> str:
    """A relative change with its sign."""
    if change >= MANIFOLD:
        return f"x {1 + change:,.0f}"
    share = 100 * change
    if abs(share) < LEAST_SHOWN:
        return f"<{LEAST_SHOWN}%" if change else "0%"
    return f"{share:+.2f}%" if abs(share) < CLEAR_GROWTH else f"{share:+.1f}%"


def sparkline(values: Sequence[float], width: int = SPARK) -> str:
    """The values as blocks between the smallest and the largest; of many each block is the middle of a few."""
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
    """The lower and the upper edge of a picture: 2% apart at least, so that what does not matter looks flat."""
    low, high = min(values), max(values)
    middle, half = (low + high) / 2, max(high - low, STEP_LEAST * abs(high)) / 2
    return middle - half, middle + half


def commit_words(point: Point) -> str:
    """The commit of a point, and whether it had changes beside it."""
    if point.commit is None:
        return "no commit"
    return point.commit[:HASH] + ("+" if point.dirty else "")


def size_words(change: Change, series: Series) -> str:
    """How much a level changed, and how sure that is."""
    old, new = amount(change.old, series.unit), amount(change.new, series.unit)
    size = f" ({percent(change.change)})" if change.change is not None else ""
    return f"{old} -> {new}{size}" + ("" if change.p is None else f", p {change.p:.1g}")


def where_words(change: Change, count: CountBetween | None) -> str:
    """Between which commits it changed, and what else changed there. ``count``: commits between two."""
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


def newest_words(series: Series) -> str | None:
    """The last run where it lies outside of what neighbours differ by; one run proves nothing, and that is said."""
    fence_result = series.newest
    if fence_result is None or not fence_result.outside:
        return None
    return (
        f"the newest run is {percent(fence_result.change)} from the one before; neighbours here differ by at most "
        f"{100 * fence_result.bound:.1f}% as a rule (one run: `perfscope compare --ab` settles it)"
    )


# A history as JSON, ``perfscope.history/1`` (docs/store.md). Keys are only added within a schema version.


SCHEMA = "perfscope.history/1"


def render_json(history: History) -> str:
    """The history as indented JSON text."""
    return json.dumps(document(history), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(history: History) -> dict[str, Any]:
    """The history as plain dicts and lists; times are ns."""
    held: dict[str, Any] = sanitize_value(
        {
            "schema": SCHEMA,
            "runs": history.runs,
            "left_out": list(history.left_out),
            "notes": list(history.notes),
            "series": [_series(series) for series in history.series],
        }
    )
    return held


def _series(series: Series) -> dict[str, Any]:
    return {
        "metric": series.metric,
        "unit": series.unit,
        "known": series.known,
        "program": series.name,
        "command": list(series.command),
        "machine": series.machine,
        "hardware": dict(series.hardware),
        "ordered_by": series.ordered,
        "points": [asdict(point) for point in series.points],
        "changes": [_change(change) for change in series.changes],
        "newest": None if series.newest is None else asdict(series.newest),
        "remarks": list(series.remarks),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "index": change.index,
        "after_commit": change.before.commit,
        "up_to_commit": change.after.commit,
        "after_run": change.before.run,
        "up_to_run": change.after.run,
        "old": change.old,
        "new": change.new,
        "change": change.change if change.change is None or math.isfinite(change.change) else None,
        "p": change.p,
        "same_commit": change.same_commit,
        "software": list(change.software),
    }


# A history on a terminal: a line a metric with its course, and where its level changed; and the list of baselines.


MOST_PROGRAMS = 6
"""On the screen, those that ran last."""
MOST_CHANGES = 6
"""Points of a program at which levels changed, the newest ones."""
MOST_POINTS = 20
"""Runs that are listed of a metric, the newest ones."""


def render_text(
    history: History,
    *,
    width: int = WIDTH,
    color: bool = False,
    verbose: bool = False,
    count_between: CountBetween | None = None,
) -> str:
    """The history as text; of a single metric with its runs. ``count_between``: commits between two, as git says."""
    return printed(lambda _: _parts(history, verbose=verbose, count=count_between), width=width, color=color)


def _parts(history: History, *, verbose: bool, count: CountBetween | None) -> Iterator[RenderableType]:
    alone = len({series.metric for series in history.series}) == 1
    held = programs(history)
    rows = [program for program in held if verbose or program.runs > 1] or list(held)
    for program in rows if verbose else rows[:MOST_PROGRAMS]:
        yield Text(program.title, style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("metric", overflow="fold", ratio=1)
        table.add_column("runs", justify="right", no_wrap=True)
        for name in ("first", "newest", "change"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        series, still = (program.series, None) if verbose else program.parted()
        for item in series:
            table.add_row(*map(Text, _row(item)))
        if series:
            yield Padding(table, (0, 0, 0, 2))
        if still is not None:
            yield Padding(Text(still), (0, 0, 0, 2))
        yield from _changes(program, verbose=verbose, count=count)
        if alone:
            for item in program.series:
                yield from _points(item, verbose=verbose)
        yield ""
    left = len(held) - (len(rows) if verbose else min(len(rows), MOST_PROGRAMS))
    if left:
        yield Text(f"and {left} more (programs with other arguments, other machines, single runs): -v shows all")
    for line in (*(f"left out: {text}" for text in history.left_out), *history.notes):
        yield Text(f"note: {line}", style="dim")


def _row(series: Series) -> tuple[str, ...]:
    first, last = series.points[0].value, series.points[-1].value
    moved = percent(last / first - 1) if first and last != first else "" if last == first else "-"
    return (
        sanitize(series.metric),
        str(len(series.points)),
        amount(first, series.unit),
        amount(last, series.unit),
        moved,
        sparkline([point.value for point in series.points]),
    )


def _changes(program: Program, *, verbose: bool, count: CountBetween | None) -> Iterator[RenderableType]:
    moved = program.moved(count)
    rows = moved if verbose else moved[:MOST_CHANGES]
    for row in rows:
        yield Padding(Text(f"changed {row.where}", style="bold"), (0, 0, 0, 2))
        yield from (Padding(Text(line), (0, 0, 0, 6)) for line in row.lines)
    if len(rows) < len(moved):
        yield Padding(Text(f"and at {len(moved) - len(rows)} earlier points: -v shows all"), (0, 0, 0, 2))
    for series in program.series:
        newest = newest_words(series)
        for line in (*series.remarks, *(() if newest is None else (newest,))):
            yield Padding(Text(f"{sanitize(series.metric)}: {line}", style="dim"), (0, 0, 0, 2))


def _points(series: Series, *, verbose: bool) -> Iterator[RenderableType]:
    points = series.points if verbose else series.points[-MOST_POINTS:]
    starts = {change.index for change in series.changes}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "commit", "branch"):
        table.add_column(name, overflow="fold")
    table.add_column(sanitize(series.metric), justify="right", no_wrap=True)
    table.add_column("")
    for index, point in enumerate(points, start=len(series.points) - len(points)):
        table.add_row(
            Text(sanitize(point.run)),
            Text(commit_words(point)),
            Text(sanitize(point.branch or "-")),
            Text(amount(point.value, series.unit)),
            Text("<- new level" if index in starts else "", style="bold"),
        )
    yield Padding(table, (1, 0, 0, 2))
    if len(points) < len(series.points):
        yield Padding(Text(f"and {len(series.points) - len(points)} earlier runs: -v shows all"), (0, 0, 0, 2))


def baselines_table(found: Sequence[Baseline]) -> RenderableType:
    """A row a baseline, as they come."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "run", "commit", "branch", "set (UTC)"):
        table.add_column(name, overflow="fold")
    table.add_column("files", justify="right", no_wrap=True)
    for baseline in found:
        commit = "-" if baseline.run.commit is None else baseline.run.commit[:12] + ("+" if baseline.run.dirty else "")
        table.add_row(
            Text(sanitize(baseline.name), style="bold"),
            Text(sanitize(baseline.run.id)),
            Text(commit),
            Text(sanitize(baseline.run.branch or "-")),
            Text(sanitize(baseline.set_utc[:19].replace("T", " "))),
            Text("numbers only" if baseline.digest is None else f"{baseline.bytes / (1 << 20):.2f} MiB"),
        )
    return table


# A history as one HTML file: a picture a metric, where its level changed, and the runs; it opens offline.


MOST_ROWS = 200
"""Runs in the table of a metric, the newest ones: the embedded JSON has all."""
MOST_PICTURED = 500

CHART_WIDTH, HEIGHT, EDGE = 1000.0, 120.0, 8.0

STYLE = """
.ps-history{display:block;width:100%;height:130px;margin:4px 0 6px;background:var(--code);border-radius:6px}
.ps-history polyline{fill:none;stroke:var(--link);stroke-width:1.5px;vector-effect:non-scaling-stroke}
.ps-history line{stroke:var(--high);stroke-dasharray:5 4;vector-effect:non-scaling-stroke}
.ps-history .dot{stroke:var(--link);stroke-width:6px;stroke-linecap:round;vector-effect:non-scaling-stroke;
stroke-dasharray:none}
h3{font-size:15px;margin:18px 0 2px}
.ends{display:flex;justify-content:space-between;gap:12px;font-size:13px;color:var(--soft)}
.ends span{white-space:nowrap}
"""


def render_html(history: History, *, count_between: CountBetween | None = None) -> str:
    """The page; ``count_between``: commits between two, as git says."""
    data = json.dumps(document(history), ensure_ascii=False, allow_nan=False)
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    body = _page(history, count_between)
    return page(body, title="history", data_id="perfscope-history", data=data, style=STYLE)


def _page(history: History, count: CountBetween | None) -> Iterator[str]:
    yield "<h1><b>perfscope</b> <span>history</span></h1>"
    changed = sum(bool(series.changes) for series in history.series)
    yield (
        f'<p class="sub">{history.runs} runs, {len(history.series)} series, {changed} of them with a change of level. '
    )
    yield "A history reports; it proves nothing of one commit: <code>perfscope compare --ab</code> does.</p>"
    for program in programs(history):
        yield f'<section class="card"><h2>{escape(program.title)}</h2>'
        for moved in program.moved(count):
            yield moved_html(moved)
        series, still = program.parted()
        for item in series:
            yield metric_html(item)
        if still is not None:
            yield f'<p class="note">{escape(still)}</p>'
        yield "</section>"
    lines = (*(f"left out: {text}" for text in history.left_out), *history.notes)
    yield from (f'<p class="note">{escape(sanitize(line, 400))}</p>' for line in lines)


def moved_html(moved: Moved) -> str:
    """Metrics that changed between the same two runs."""
    items = "".join(f"<li>{escape(line)}</li>" for line in moved.lines)
    return f"<p><b>changed</b> {escape(moved.where)}</p><ul>{items}</ul>"


def metric_html(series: Series) -> str:
    """A series: its picture, what is to be said of it, and its newest runs as a table."""
    return "".join(_metric(series))


def _metric(series: Series) -> Iterator[str]:
    newest = series.points[-1]
    yield f"<h3>{escape(sanitize(series.metric))}: {escape(amount(newest.value, series.unit))}</h3>"
    yield _picture(series)
    values = [point.value for point in series.points[-MOST_PICTURED:]]
    between = f"{amount(min(values), series.unit)} to {amount(max(values), series.unit)}"
    texts = (commit_words(series.points[-len(values)]), between, commit_words(newest))
    yield f'<div class="ends">{"".join(f"<span>{escape(text)}</span>" for text in texts)}</div>'
    for line in (*series.remarks, newest_words(series)):
        if line is not None:
            yield f'<p class="note">{escape(sanitize(line, 400))}</p>'
    yield "<details><summary>the runs</summary><div class='scroll'><table>"
    yield "<tr><th>run</th><th>commit</th><th>branch</th><th class='n'>value</th></tr>"
    for point in reversed(series.points[-MOST_ROWS:]):
        cells = (sanitize(point.run), commit_words(point), sanitize(point.branch or "-"))
        value = f'<td class="n">{escape(amount(point.value, series.unit))}</td>'
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}{value}</tr>"
    yield "</table></div></details>"


def _picture(series: Series) -> str:
    """The last values from the smallest to the largest; dashed where the level changed."""
    skipped = max(0, len(series.points) - MOST_PICTURED)
    values = [point.value for point in series.points[skipped:]]
    low, high = scale(values)
    step = CHART_WIDTH / max(1, len(values) - 1)

    def height(value: float) -> float:
        return HEIGHT / 2 if high <= low else EDGE + (HEIGHT - 2 * EDGE) * (high - value) / (high - low)

    places = [(index * step, height(value)) for index, value in enumerate(values)]
    cuts = [change.index - skipped for change in series.changes if change.index > skipped]
    lines = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT:.0f}"/>' for x in ((cut - 0.5) * step for cut in cuts)
    )
    course = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    dot = f'<line class="dot" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    ends = f"{amount(min(values), series.unit)} to {amount(max(values), series.unit)}"
    words = f"{len(values)} runs from {ends}, {len(cuts)} changes of level"
    return (
        f'<svg class="ps-history" role="img" aria-label="{escape(words)}" '
        f'viewBox="-6 0 {CHART_WIDTH + 12:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" '
        f'xmlns="http://www.w3.org/2000/svg">{lines}<polyline points="{course}"/>{dot}</svg>'
    )
