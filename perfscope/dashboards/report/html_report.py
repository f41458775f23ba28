"""The HTML report as one file that loads nothing, and its cards as the output of a notebook cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.savings import Spread, step_time
from perfscope.dashboards.report import charts
from perfscope.dashboards.report.blocks import Block, Column, Legend, Listing, Section, Tile, notes, table
from perfscope.dashboards.report.json_report import document
from perfscope.dashboards.report.renderers.charts import chart_html
from perfscope.dashboards.report.renderers.html import card, finding_card, notebook_html, sections_html
from perfscope.dashboards.report.renderers.page import page
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.sections.critical_path import critical_path_sections
from perfscope.dashboards.report.sections.devices import device_sections, fold_devices
from perfscope.dashboards.report.sections.plugins import plugin_sections
from perfscope.dashboards.report.summary import Summary, coverage_sections, spread_text, step_text, summarize
from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.analyzers.engine import Analysis, Step
    from perfscope.model.trace import Source, Trace


MOST_SOURCES = 64
"""Most rows of the table of sources."""

MOST_STEPS = 2_000
"""Most step times in the embedded JSON: about 250 KB."""

FEW_SOURCES = 4
"""Up to this number of sources their table is unfolded."""

MOST_FINDINGS = 200
"""Most findings that are drawn: a reader does not need the two hundred first, and a phone must open the file."""

OPENED = 3
"""Findings whose details are unfolded: the first ones to act on."""

MOST_CELL_FINDINGS = 20
"""Most findings in a cell's output; ``analysis.findings()`` has all."""


def render(analysis: Analysis) -> str:
    """Return the whole page. Every text of the trace is escaped; the content policy forbids any request."""
    summary = summarize(analysis)
    title = _title(analysis)
    return page(_page(summary, analysis, title), title=title, data_id="perfscope-report", data=embedded(analysis))


def _title(analysis: Analysis) -> str:
    if not analysis.sources:
        return "no source"
    if len(analysis.sources) > 1:
        return f"{len(analysis.sources):,} traces"
    return sanitize(Path(sanitize(analysis.sources[0].path)).name)


def embedded(analysis: Analysis) -> str:
    """The JSON report for a ``<script>`` block, bounded and without ``<``; ``left_out`` lists what was cut."""
    held = document(analysis)
    left_out = []
    if len(held["steps"]) > MOST_STEPS:
        left_out.append(f"{len(held['steps']) - MOST_STEPS} steps")
        held["steps"] = held["steps"][:MOST_STEPS]
    result = 0
    for outcome in held["outcomes"]:
        kept = outcome["findings"][: max(0, MOST_FINDINGS - result)]
        result += len(outcome["findings"])
        outcome["findings"] = kept
    if result > MOST_FINDINGS:
        left_out.append(f"{result - MOST_FINDINGS} findings")
    if left_out:
        held["left_out"] = left_out
    text = json.dumps(held, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(summary: Summary, analysis: Analysis, title: str) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(title)}</span></h1>"
    yield f"{_headline(summary)}</header>"
    yield tiles(summary, analysis)
    yield from sections_html(summary.account)
    yield from findings(summary)
    yield from sections_html((*summary.recording, *summary.lines, *summary.top))
    yield from sections_html((*summary.sections, *device_sections(summary.devices)))
    yield from _step_cards(analysis)
    yield from sections_html(coverage_sections(summary))
    yield from sections_html(tuple(origin_sections(analysis, summary)))
    yield f"<footer>{escape(_origin())}</footer>"


def _headline(summary: Summary) -> str:
    """The source, then the reasons to doubt its numbers."""
    doubts = "".join(f"<p>{escape(sanitize(text, TEXT_LIMIT))}</p>" for text in summary.warnings)
    return f'<p class="sub">{escape(sanitize(summary.headline, TEXT_LIMIT))}</p>{doubts}'


def overview_parts(
    summary: Summary,
    analysis: Analysis,
    more: Sequence[Tile] = (),
    *,
    first: Sequence[Tile] = (),
) -> dict[str, str]:
    """Parts of the dashboard's first page around the findings, by name: HTML with escaped texts.

    ``first`` and ``more``: additional tiles before and after the others.
    """
    return {
        "headline": _headline(summary),
        "tiles": tiles(summary, analysis, more, first=first),
        "account": "".join(sections_html(summary.account)),
        "path": "".join(sections_html(critical_path_sections(analysis.of("critical_paths")))),
        "top": "".join(sections_html((*summary.lines, *summary.top))),
        "devices": "".join(sections_html(device_sections(summary.devices))),
        "steps": "".join(_step_cards(analysis)),
        "plugins": "".join(sections_html(plugin_sections(analysis))),
        "rest": "".join(
            (*sections_html(coverage_sections(summary)), *sections_html(tuple(origin_sections(analysis, summary))))
        ),
    }


def tiles(
    summary: Summary,
    analysis: Analysis,
    more: Sequence[Tile] = (),
    *,
    first: Sequence[Tile] = (),
) -> str:
    """The key figures at the top; ``first`` and ``more``: additional ones."""
    drawn = map(_tile, (*first, *_tiles(summary, analysis), *more))
    return f'<section class="tiles">{"".join(drawn)}</section>'


def _step_cards(analysis: Analysis) -> Iterator[str]:
    if len(analysis.steps) > 1:  # with a single value the tile is enough
        yield card("Step times", _steps(analysis.steps))


def _tiles(summary: Summary, analysis: Analysis) -> Iterator[Tile]:
    timed = step_time(analysis)
    if timed is not None:
        words = step_text(analysis, timed)
        yield Tile("step time", format_ns(timed.ns), words.removeprefix(f"{format_ns(timed.ns)} ").strip("()"))
    yield from summary.tiles
    spans = sum(device.span_ns for device in analysis.devices)
    if spans:
        yield _busy_tile(analysis, spans)
    section = analysis.programs
    if section.on_cpu and not spans:
        programs = f"{section.ran:,} program{'' if section.ran == 1 else 's'} on XLA's CPU backend"
        yield Tile("instruction time", format_ns(section.instructions_ns), f"{programs}, thread pools included")
    if summary.timed:
        best = finding_words(summary.timed[0])
        share = f"{best.share}; " if best.share else ""
        yield Tile("largest saving, up to", best.saves, f"{share}{best.rule}")
    blind = f"; {summary.blind} not evaluated" if summary.blind else ""
    clean = f"{len(summary.clean)} rule{'' if len(summary.clean) == 1 else 's'} clean"
    yield Tile("findings", str(len(summary.findings)), f"{clean}{blind}")


def _busy_tile(analysis: Analysis, spans: int) -> Tile:
    count, busy, of = len(analysis.devices), sum(device.busy_ns for device in analysis.devices), "its span"
    accounts = [account for account in analysis.accounts if account.device != MISSING and account.whole_ns]
    if accounts:
        count, busy = len(accounts), sum(account.busy_ns for account in accounts)
        spans = sum(account.whole_ns for account in accounts)
        of = "the step" if any(account.numbers for account in accounts) else "the capture"
    return Tile("device busy", f"{100 * busy / spans:.1f}%", f"of {of}" if count == 1 else f"mean of {count} devices")


def _tile(tile: Tile) -> str:
    name, value, note = (escape(sanitize(text, TEXT_LIMIT)) for text in (tile.name, tile.value, tile.note))
    return (
        f'<div class="card"><div class="tile">{name}</div><div class="big">{value}</div>'
        f'<div class="note">{note}</div></div>'
    )


def _steps(steps: Sequence[Step]) -> str:
    kinds = [
        ("no profiler on", charts.FREE_COLOR, [step for step in steps if not step.traced]),
        ("while profiled", charts.TRACED_COLOR, [step for step in steps if step.traced]),
    ]
    spreads = [(Spread.of([step.duration_ns for step in members]), words, color) for words, color, members in kinds]
    legend = Legend(
        tuple((spread_text(spread, words), color) for spread, words, color in spreads if spread is not None)
    )
    return chart_html(charts.steps_plot([step for _, _, members in kinds for step in members], legend))


SOURCE_COLUMNS: tuple[Column[Source], ...] = (
    Column("path", lambda source: source.path, "place", limit=TEXT_LIMIT),
    Column("format", lambda source: source.format),
    Column("rank", lambda source: source.rank, "count"),
    Column("events", lambda source: source.events_read, "count"),
    Column("unplaced", lambda source: source.events_unplaced, "count"),
)
RUN_COLUMNS: tuple[Column[tuple[str, str]], ...] = (
    Column("run", lambda row: row[0].replace("_", " ")),
    Column("value", lambda row: row[1]),
)
_RUN_FACTS = (
    "command",
    "created_utc",
    "state",
    "exit_code",
    "error",
    "git",
    "python",
    "platform",
    "packages",
    "driver",
)
"""Keys of a run's manifest that are shown; the JSON report has all."""


def origin_sections(analysis: Analysis, summary: Summary) -> Iterator[Section]:
    """The run and the recordings that were read."""
    if analysis.run is not None:
        run = analysis.run
        facts = [(key, words) for key in _RUN_FACTS if (words := _words(run.get(key)))]
        yield Section(title="Run", blocks=(table(RUN_COLUMNS, facts, few=len(facts)),))
    rows, left = analysis.sources[:MOST_SOURCES], max(0, len(analysis.sources) - MOST_SOURCES)
    title, folded = f"all {len(analysis.sources):,} sources", len(analysis.sources) > FEW_SOURCES
    sources = table(SOURCE_COLUMNS, rows, title=title if folded else "", left=left, rest="sources", detail=folded)
    remarks = Listing(items=summary.remarks, few=len(summary.remarks), rest="remarks")
    yield Section(title="Sources", blocks=(sources, *((remarks,) if summary.remarks else ())))


def _words(value: Any) -> str:
    """A part of the manifest on one line; ``''`` for unknown values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(value)}" for key, value in value.items() if value not in (None, ""))
    if isinstance(value, list | tuple):
        return " ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _origin() -> str:
    return f"perfscope {package_version()}. This file loads nothing; the report as JSON is embedded in it."


def findings(summary: Summary, *, most: int = MOST_FINDINGS, opened: int = OPENED) -> Iterator[str]:
    """The heading and one card per finding, costliest first; a note in place of no findings, and of those left out.

    ``opened``: findings whose details are unfolded.
    """
    rows = summary.findings[:most]
    if not rows:
        yield card("Findings", f"<p>{nothing_found(summary)}</p>")
        yield from sections_html(summary.large)
        return
    yield f"<h2>Findings{', the largest saving first' if len(summary.timed) > 1 else ''}</h2>"
    yield from (finding_card(row, opened=index < opened) for index, row in enumerate(rows))
    if len(rows) < len(summary.findings):
        left = len(summary.findings) - len(rows)
        yield card("More", f"<p>{left:,} more findings; the JSON report holds all.</p>")
    yield from sections_html(summary.large)


def nothing_found(summary: Summary) -> str:
    """A sentence on the absence of findings and how reliable that is."""
    return f"{summary.nothing[:1].upper()}{summary.nothing[1:]}." if summary.nothing else ""


SIZE_COLUMNS: tuple[Column[tuple[str, int]], ...] = (
    Column("table", lambda row: row[0]),
    Column("rows", lambda row: row[1], "count"),
)


def trace_html(trace: Trace) -> str:
    """A trace: its source, its device time by part, and the sizes of its tables."""
    from perfscope.analyzers.time import device_times
    from perfscope.model.trace import MEMORY_TABLES

    source = trace.source
    start, end = trace.span_ns()
    rank = "" if source.rank is None else f", rank {source.rank}"
    unplaced = f", {source.events_unplaced:,} unplaced" if source.events_unplaced else ""
    summary = f"{source.format}{rank}, {source.events_read:,} events{unplaced}, {format_ns(end - start)}"
    elsewhere = MEMORY_TABLES if trace.memory_pass is not trace else ()
    sizes = [(f"{name} (detail pass)" if name in elsewhere else name, size) for name, size in trace.sizes().items()]
    blocks: tuple[Block, ...] = (table(SIZE_COLUMNS, sizes, few=len(sizes)), *notes(*source.notes))
    devices = device_sections(fold_devices(trace.fact(device_times)))
    return notebook_html(sections_html((Section(title=source.path, summary=summary, blocks=blocks), *devices)))


def analysis_html(analysis: Analysis) -> str:
    """An analysis: account of the step, findings with the largest saving first, and what was not evaluated."""
    summary = summarize(analysis)
    facts = "".join(f'<p class="note">{escape(sanitize(fact, 400))}</p>' for fact in summary.facts)
    devices = () if summary.account else device_sections(summary.devices)
    remarks = (Section(title="Notes", blocks=notes(*summary.remarks)),) if summary.remarks else ()
    return notebook_html(
        (
            f"<p><b>perfscope</b> {escape(sanitize(summary.headline, TEXT_LIMIT))}</p>{facts}",
            *sections_html((*summary.account, *devices)),
            *findings(summary, most=MOST_CELL_FINDINGS, opened=0),
            *sections_html((*summary.recording, *coverage_sections(summary), *remarks)),
        )
    )
