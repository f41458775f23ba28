"""A history as one HTML file: a picture a metric, where its level changed, and the runs; it opens offline."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.history_json import document
from perfscope.dashboards.reports.history_rows import amount, commit_words, newest_words, programs, scale
from perfscope.dashboards.reports.html_page import page
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.analyzers.compare.series import History, Series
    from perfscope.dashboards.reports.history_rows import CountBetween, Moved

MOST_ROWS = 200
"""Runs in the table of a metric, the newest ones: the embedded JSON has all."""
MOST_PICTURED = 500

WIDTH, HEIGHT, EDGE = 1000.0, 120.0, 8.0

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


def render(found: History, *, count_between: CountBetween | None = None) -> str:
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
    step = WIDTH / max(1, len(values) - 1)

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
        f'<svg class="ps-history" role="img" aria-label="{escape(words)}" viewBox="-6 0 {WIDTH + 12:.0f} {HEIGHT:.0f}" '
        f'preserveAspectRatio="none" xmlns="http://www.w3.org/2000/svg">{lines}<polyline points="{course}"/>{dot}</svg>'
    )
