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
from perfscope.dashboards.report.text_tables import WIDTH, printed
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
        return max(len(one.points) for one in self.series)

    def parted(self) -> tuple[tuple[Series, ...], str | None]:
        """The series that moved at all (all of them where they are few), and the others in one line."""
        still = [one for one in self.series if len({point.value for point in one.points}) == 1]
        if len(self.series) < FEW or not still:
            return self.series, None
        words = ", ".join(f"{sanitize(one.metric)} {amount(one.points[-1].value, one.unit)}" for one in still)
        of = "its only run" if self.runs == 1 else "the same in all runs"  # of one nothing can be the same or another
        return tuple(one for one in self.series if one not in still), f"{of}: {words}"

    @property
    def newest_utc(self) -> str:
        """When it ran last."""
        return max(point.created_utc for one in self.series for point in one.points)

    def moved(self, count: CountBetween | None) -> tuple[Moved, ...]:
        """Where levels changed, the newest first. ``count``: commits between two, as git says."""
        places: dict[tuple[str, str], list[tuple[Series, Change]]] = {}
        for one in self.series:
            for change in one.changes:
                places.setdefault((change.before.run, change.after.run), []).append((one, change))
        ordered = sorted(places.values(), key=lambda held: held[0][1].after.created_utc, reverse=True)
        return tuple(
            Moved(
                where=where_words(held[0][1], count),
                lines=tuple(f"{sanitize(one.metric)} {size_words(change, one)}" for one, change in held),
            )
            for held in ordered
        )


def programs(found: History) -> tuple[Program, ...]:
    """The series by program and machine, what ran last first; times first in each."""
    made = [
        Program(title=_title(members[0]), series=tuple(sorted(members, key=lambda one: one.known == "exact")))
        for members in (list(group) for _, group in groupby(sorted(found.series, key=_which), key=_which))
    ]
    return tuple(sorted(made, key=lambda one: one.newest_utc, reverse=True))


def _which(one: Series) -> tuple[str, tuple[str, ...], str]:
    return one.name, one.command, one.machine


def _title(one: Series) -> str:
    words = [sanitize(value) for key, value in one.hardware.items() if key in ("gpu", "cpu")] or [
        sanitize(value) for value in one.hardware.values()
    ]
    on = f" on {', '.join(words)}" if words else " (no machine recorded)"
    how = "by commit" if one.ordered == "commits" else "by time"
    command = f": {sanitize(shlex.join(one.command))}" if one.command else ""
    return f"{sanitize(one.name)}{command}{on}, {how}"


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
    edges = [round(place * len(values) / count) for place in range(count + 1)]
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
    one = series.newest
    if one is None or not one.outside:
        return None
    return (
        f"the newest run is {percent(one.change)} from the one before; neighbours here differ by at most "
        f"{100 * one.bound:.1f}% as a rule (one run: `perfscope compare --ab` settles it)"
    )


# A history as JSON, ``perfscope.history/1`` (docs/store.md). Keys are only added within a schema version.


SCHEMA = "perfscope.history/1"


def render_json(found: History) -> str:
    """The history as indented JSON text."""
    return json.dumps(document(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(found: History) -> dict[str, Any]:
    """The history as plain dicts and lists; times are ns."""
    held: dict[str, Any] = sanitize_value(
        {
            "schema": SCHEMA,
            "runs": found.runs,
            "left_out": list(found.left_out),
            "notes": list(found.notes),
            "series": [_series(one) for one in found.series],
        }
    )
    return held


def _series(one: Series) -> dict[str, Any]:
    return {
        "metric": one.metric,
        "unit": one.unit,
        "known": one.known,
        "program": one.name,
        "command": list(one.command),
        "machine": one.machine,
        "hardware": dict(one.hardware),
        "ordered_by": one.ordered,
        "points": [asdict(point) for point in one.points],
        "changes": [_change(change) for change in one.changes],
        "newest": None if one.newest is None else asdict(one.newest),
        "remarks": list(one.remarks),
    }


def _change(one: Change) -> dict[str, Any]:
    return {
        "index": one.index,
        "after_commit": one.before.commit,
        "up_to_commit": one.after.commit,
        "after_run": one.before.run,
        "up_to_run": one.after.run,
        "old": one.old,
        "new": one.new,
        "change": one.change if one.change is None or math.isfinite(one.change) else None,
        "p": one.p,
        "same_commit": one.same_commit,
        "software": list(one.software),
    }


# A history on a terminal: a line a metric with its course, and where its level changed; and the list of baselines.


MOST_PROGRAMS = 6
"""On the screen, those that ran last."""
MOST_CHANGES = 6
"""Points of a program at which levels changed, the newest ones."""
MOST_POINTS = 20
"""Runs that are listed of a metric, the newest ones."""


def render_text(
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


def render_html(found: History, *, count_between: CountBetween | None = None) -> str:
    """The page; ``count_between``: commits between two, as git says."""
    data = json.dumps(document(found), ensure_ascii=False, allow_nan=False)
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    body = _page(found, count_between)
    return page(body, title="history", data_id="perfscope-history", data=data, style=STYLE)


def _page(found: History, count: CountBetween | None) -> Iterator[str]:
    yield "<h1><b>perfscope</b> <span>history</span></h1>"
    changed = sum(bool(one.changes) for one in found.series)
    yield f'<p class="sub">{found.runs} runs, {len(found.series)} series, {changed} of them with a change of level. '
    yield "A history reports; it proves nothing of one commit: <code>perfscope compare --ab</code> does.</p>"
    for program in programs(found):
        yield f'<section class="card"><h2>{escape(program.title)}</h2>'
        for moved in program.moved(count):
            yield moved_html(moved)
        series, still = program.parted()
        for one in series:
            yield metric_html(one)
        if still is not None:
            yield f'<p class="note">{escape(still)}</p>'
        yield "</section>"
    lines = (*(f"left out: {one}" for one in found.left_out), *found.notes)
    yield from (f'<p class="note">{escape(sanitize(line, 400))}</p>' for line in lines)


def moved_html(moved: Moved) -> str:
    """Metrics that changed between the same two runs."""
    items = "".join(f"<li>{escape(line)}</li>" for line in moved.lines)
    return f"<p><b>changed</b> {escape(moved.where)}</p><ul>{items}</ul>"


def metric_html(one: Series) -> str:
    """A series: its picture, what is to be said of it, and its newest runs as a table."""
    return "".join(_metric(one))


def _metric(one: Series) -> Iterator[str]:
    newest = one.points[-1]
    yield f"<h3>{escape(sanitize(one.metric))}: {escape(amount(newest.value, one.unit))}</h3>"
    yield _picture(one)
    values = [point.value for point in one.points[-MOST_PICTURED:]]
    between = f"{amount(min(values), one.unit)} to {amount(max(values), one.unit)}"
    texts = (commit_words(one.points[-len(values)]), between, commit_words(newest))
    yield f'<div class="ends">{"".join(f"<span>{escape(text)}</span>" for text in texts)}</div>'
    for line in (*one.remarks, newest_words(one)):
        if line is not None:
            yield f'<p class="note">{escape(sanitize(line, 400))}</p>'
    yield "<details><summary>the runs</summary><div class='scroll'><table>"
    yield "<tr><th>run</th><th>commit</th><th>branch</th><th class='n'>value</th></tr>"
    for point in reversed(one.points[-MOST_ROWS:]):
        cells = (sanitize(point.run), commit_words(point), sanitize(point.branch or "-"))
        value = f'<td class="n">{escape(amount(point.value, one.unit))}</td>'
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}{value}</tr>"
    yield "</table></div></details>"


def _picture(one: Series) -> str:
    """The last values from the smallest to the largest; dashed where the level changed."""
    skipped = max(0, len(one.points) - MOST_PICTURED)
    values = [point.value for point in one.points[skipped:]]
    low, high = scale(values)
    step = CHART_WIDTH / max(1, len(values) - 1)

    def height(value: float) -> float:
        return HEIGHT / 2 if high <= low else EDGE + (HEIGHT - 2 * EDGE) * (high - value) / (high - low)

    places = [(place * step, height(value)) for place, value in enumerate(values)]
    cuts = [change.index - skipped for change in one.changes if change.index > skipped]
    lines = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT:.0f}"/>' for x in ((cut - 0.5) * step for cut in cuts)
    )
    course = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    dot = f'<line class="dot" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    ends = f"{amount(min(values), one.unit)} to {amount(max(values), one.unit)}"
    words = f"{len(values)} runs from {ends}, {len(cuts)} changes of level"
    return (
        f'<svg class="ps-history" role="img" aria-label="{escape(words)}" '
        f'viewBox="-6 0 {CHART_WIDTH + 12:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" '
        f'xmlns="http://www.w3.org/2000/svg">{lines}<polyline points="{course}"/>{dot}</svg>'
    )
