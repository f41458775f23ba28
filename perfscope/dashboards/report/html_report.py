"""The report as one HTML file: opens offline, loads nothing, reads well on a phone and in the dark.

It is a bounded summary however large the trace: rows are capped and what is left out is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report import svg
from perfscope.dashboards.report.evidence import evidence_cell, evidence_headers
from perfscope.dashboards.report.html_page import page
from perfscope.dashboards.report.json_report import document
from perfscope.dashboards.report.sections.advice_formats import Block, blocks
from perfscope.dashboards.report.sections.collectives import collectives_cards
from perfscope.dashboards.report.sections.compile import compile_card
from perfscope.dashboards.report.sections.estimate import estimate_card
from perfscope.dashboards.report.sections.memory_formats import memory_cards
from perfscope.dashboards.report.sections.plan import plan_card
from perfscope.dashboards.report.sections.program import programs_cards
from perfscope.dashboards.report.summary import (
    NO_TIME,
    SHARE_OF,
    WAITED,
    FindingRow,
    Spread,
    Summary,
    summarize,
    window_mean,
)
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perfscope.analyzers.engine import Analysis, Step
    from perfscope.dashboards.report.hot_rows import DeviceRow


# Findings in HTML: a card each, with what to do and the evidence folded below.


MOST_FINDINGS = 200
"""Findings that are drawn: nobody reads on to the two hundred first, and a phone must open the file."""

FIRST_ROWS = 6
"""Rows of evidence that are seen without asking."""

SHORT_CHARS, LINE_CHARS = 18, 60
"""Of a column of evidence, the longest text: it stays on one line, it is about a line, it is a list."""

LETTER_PX, BETWEEN_PX, LINE_PX, LIST_PX = 7, 14, 12 * 13, 18 * 13
"""Of a letter and of what is between columns; of the columns whose least width the style says."""
TABLET_PX = 570
"""What a tablet has for a table: where that is too little, rows are stacked there too."""

FEW_COLUMNS = 3
"""Columns that a phone shows side by side."""

OPENED = 3
"""Findings whose details stand open: the ones to begin with."""


def findings(summary: Summary) -> Iterator[str]:
    """The heading and a card each, the costliest first; that there are none, or more, is said."""
    rows = summary.findings[:MOST_FINDINGS]
    if not rows:
        yield card("Findings", f"<p>{nothing_found(summary)}</p>")
        return
    yield f"<h2>Findings{', the largest saving first' if len(summary.timed) > 1 else ''}</h2>"
    yield from (finding_card(row, opened=index < OPENED) for index, row in enumerate(rows))
    if len(rows) < len(summary.findings):
        left = len(summary.findings) - len(rows)
        yield card("More", f"<p>{left:,} more findings are left out of this page; the JSON report holds all.</p>")


def nothing_found(summary: Summary) -> str:
    """That there are no findings, and how much that is worth: rules that could not look found nothing either."""
    clean = len(summary.clean)
    if not clean:
        return "No rule could look at this: nothing is known to be clean."
    looked = f"{clean} rule{'' if clean == 1 else 's'} looked and found nothing"
    return f"No findings: {looked}{f'; {summary.blind} could not look' if summary.blind else ''}."


def finding_card(row: FindingRow, *, opened: bool) -> str:
    """One finding with its evidence and advice; ``opened``: its details stand open."""
    amount, over = _per(row.gain)
    share = f"<span>{escape(f'{row.share} {SHARE_OF[row.per_step]}')}</span>" if row.share else ""
    if row.memory and not row.saves:
        share = "<span>of memory</span>"
    per = f"<span>{over}{', ' if share else ''}</span>" if over else ""
    saves = f"<b>{escape(amount)}</b>{per}{share}" if row.saves or row.memory else f"<span>{NO_TIME}</span>"
    place = " · ".join(f"{escape(what)} <code>{escape(name)}</code>" for what, name in row.place)
    moves = f" · moves {escape(row.bytes)}" if row.bytes else ""
    return (
        f'<article class="card finding {row.severity}"><div class="row">'
        f'<div class="saves">{saves}</div>'
        f'<div class="what"><div class="title">{escape(row.rule)}: {prose(row.title + row.on_ranks)}</div>'
        f'<div class="where">{place}{moves}</div></div>'
        f'<div class="chips"><span class="chip {row.severity}">{row.severity}</span>'
        f'<span class="chip">{escape(row.known_by)}</span></div></div>'
        f"<details{' open' if opened else ''}><summary>what to do, and the evidence</summary>"
        f"{''.join(advice_html(row.advice))}{_evidence(row)}</details></article>"
    )


def _per(gain: str) -> tuple[str, str]:
    """``'6.90 ms a run'`` -> ``('6.90 ms', 'a run')``: the amount stands large, what it is of below it."""
    for over in ("a run", "in all"):
        if gain.endswith(f" {over}"):
            return gain.removesuffix(f" {over}"), over
    return gain, ""


def _evidence(row: FindingRow) -> str:
    """A table; each cell knows its column's name, because on a phone rows are stacked and the head is gone."""
    if not row.evidence:
        return ""
    names = {key: escape(head) for key, head in evidence_headers(row.evidence[0]).items()}
    told = {key: [evidence_cell(key, cells.get(key)) for cells in row.evidence] for key in names}
    kinds = {key: _side([cells.get(key) for cells in row.evidence]) for key in names}
    heads = [f'<th class="{kinds[key]}">{name}</th>' for key, name in names.items()]
    body = [
        f"<tr>{''.join(_cell(kinds[key], name, told[key][at]) for key, name in names.items())}</tr>"
        for at in range(len(row.evidence))
    ]
    least = sum(_least_px(kinds[key], [name, *told[key]]) for key, name in names.items())
    kind = "stacks wide" if least > TABLET_PX else "stacks" if len(heads) > FEW_COLUMNS else ""
    left = f'<p class="note">and {row.evidence_left:,} more rows in the JSON report</p>' if row.evidence_left else ""
    first = f"<h3>Evidence</h3>{table(heads, body[:FIRST_ROWS], kind=kind)}"
    if len(body) <= FIRST_ROWS:
        return first + left
    more, rest = f"{len(body) - FIRST_ROWS} more rows", table(heads, body[FIRST_ROWS:], kind=kind)
    return f"{first}<details><summary>{more}</summary>{rest}{left}</details>"


def _cell(kind: str, name: str, told: str) -> str:
    return f'<td class="{kind}" data-name="{name}">{escape(told)}</td>'


def _side(values: Sequence[object]) -> str:
    """How wide a column may be: numbers (``n``), a word that stays whole (``s``), lines (``t``), lists (``l``)."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        return "n"
    longest = max(map(len, texts))
    return "s" if longest <= SHORT_CHARS else "t" if longest <= LINE_CHARS else "l"


def _least_px(kind: str, told: Sequence[str]) -> int:
    """How narrow a column can be, about."""
    return BETWEEN_PX + ({"t": LINE_PX, "l": LIST_PX}.get(kind) or LETTER_PX * max(map(len, told)))


def table(heads: Iterable[str], rows: Iterable[str], *, kind: str = "") -> str:
    """A table that scrolls by itself where the page is too narrow; cells are HTML already."""
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def advice_html(text: str) -> Iterator[str]:
    """Advice as paragraphs, and blocks of code with a button that copies them."""
    for block in blocks(text):
        if block.is_code:
            yield (
                f'<div class="code"><pre tabindex="0">{escape(block.text)}</pre>'
                '<button class="copy" type="button">copy</button></div>'
            )
        else:
            yield f"<p>{prose(block.text)}</p>"


def prose(text: str) -> str:
    """Words, and code where they stand between backticks."""
    pieces = Block(text=text, is_code=False).pieces()
    return "".join(f"<code>{escape(piece)}</code>" if is_code else escape(piece) for piece, is_code in pieces)


def card(title: str, body: str, *, kind: str = "") -> str:
    """A titled box around ``body``, which is HTML already."""
    return f'<section class="card {kind}"><h2>{escape(title)}</h2>{body}</section>'


SUFFIXES = (".html", ".htm")

MOST_SOURCES = 64
"""Rows of the table of sources."""

MOST_STEPS = 2_000
"""Step times in the embedded JSON: about 250 KB."""

FEW_SOURCES = 4
"""Up to it the table of sources stands open."""


def render(analysis: Analysis) -> str:
    """The whole page. Every text of the trace is escaped; the policy forbids any request."""
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
    """The JSON report for a ``<script>`` block, bounded; ``left_out`` says what was cut. No ``<`` is in it."""
    held = document(analysis)
    left_out = []
    if len(held["steps"]) > MOST_STEPS:
        left_out.append(f"{len(held['steps']) - MOST_STEPS} steps")
        held["steps"] = held["steps"][:MOST_STEPS]
    found = 0
    for outcome in held["outcomes"]:
        kept = outcome["findings"][: max(0, MOST_FINDINGS - found)]
        found += len(outcome["findings"])
        outcome["findings"] = kept
    if found > MOST_FINDINGS:
        left_out.append(f"{found - MOST_FINDINGS} findings")
    if left_out:
        held["left_out"] = left_out
    text = json.dumps(held, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(summary: Summary, analysis: Analysis, title: str) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(title)}</span></h1>"
    yield f'<p class="sub">{escape(summary.headline)}</p></header>'
    yield tiles(summary, analysis)
    yield from findings(summary)
    yield from map(plan_card, summary.plans)
    if summary.estimate is not None:
        yield estimate_card(summary.estimate)
    if summary.programs is not None:
        yield from programs_cards(summary.programs)
    if summary.compile is not None:
        yield compile_card(summary.compile)
    if summary.collectives is not None:
        yield from collectives_cards(summary.collectives)
    if summary.memory is not None:
        yield from memory_cards(summary.memory)
    yield from not_flagged(summary)
    yield from _devices_and_steps(summary, analysis)
    yield from _origin_cards(summary, analysis)
    yield f"<footer>{escape(_origin())}</footer>"


def overview_parts(
    summary: Summary,
    analysis: Analysis,
    more: Sequence[tuple[str, str, str]] = (),
    *,
    first: Sequence[tuple[str, str, str]] = (),
) -> dict[str, str]:
    """What the dashboard's first page shows around the findings, by name: HTML, its texts escaped.

    ``first`` and ``more``: further tiles, (name, value, note), before and behind the others.
    """
    return {
        "headline": f'<p class="sub">{escape(summary.headline)}</p>',
        "tiles": tiles(summary, analysis, more, first=first),
        "devices": "".join(_device_cards(summary)),
        "steps": "".join(_step_cards(analysis)),
        "rest": "".join((*not_flagged(summary), *_origin_cards(summary, analysis))),
    }


def tiles(
    summary: Summary,
    analysis: Analysis,
    more: Sequence[tuple[str, str, str]] = (),
    *,
    first: Sequence[tuple[str, str, str]] = (),
) -> str:
    """The few numbers at the top; ``first`` and ``more``: further ones, (name, value, note)."""
    drawn = (*(_tile(*one) for one in first), *_tiles(summary, analysis), *(_tile(*one) for one in more))
    return f'<section class="tiles">{"".join(drawn)}</section>'


def _devices_and_steps(summary: Summary, analysis: Analysis) -> Iterator[str]:
    yield from _device_cards(summary)
    yield from _step_cards(analysis)


def _device_cards(summary: Summary) -> Iterator[str]:
    if summary.devices:
        bars = "".join(map(_device, summary.devices))
        yield card("Where the device time goes", f'<div class="legend">{svg.legend()}</div>{bars}')


def _step_cards(analysis: Analysis) -> Iterator[str]:
    if analysis.steps:
        yield card("Step times", "".join(_steps(analysis.steps)))


def _origin_cards(summary: Summary, analysis: Analysis) -> Iterator[str]:
    if analysis.run is not None:
        yield card("Run", _run(analysis.run))
    yield card("Sources", "".join(_sources(analysis, summary)))


def _tiles(summary: Summary, analysis: Analysis) -> Iterator[str]:
    free = [step.duration_ns for step in analysis.steps if not step.traced]
    spread = Spread.of(free or [step.duration_ns for step in analysis.steps])
    waited = window_mean(analysis, median(free) if free else None)
    if waited is not None:
        yield _tile("step time", format_ns(waited[0]), f"mean of {waited[1]:,} {WAITED}")
    elif spread is not None:
        how = "no profiler on" if free else "while traced"
        around = f"{spread.how} {format_ns(spread.low_ns)} to {format_ns(spread.high_ns)}"
        note = f"median of {spread.count:,}, {how}; {around}" if spread.count > 1 else f"one, {how}"
        yield _tile("step time", format_ns(spread.median_ns), note)
    if summary.estimate is not None and summary.estimate.tile is not None:
        yield _tile(*summary.estimate.tile)
    spans = sum(device.span_ns for device in analysis.devices)
    if spans:
        busy = 100 * sum(device.busy_ns for device in analysis.devices) / spans
        count = len(analysis.devices)
        yield _tile("device busy", f"{busy:.1f}%", "of its span" if count == 1 else f"mean of {count} devices")
    section = analysis.programs
    if section.on_cpu and not spans:
        programs = f"{section.ran:,} program{'' if section.ran == 1 else 's'} on XLA's CPU backend"
        yield _tile("instruction time", format_ns(section.instructions_ns), f"{programs}, thread pools included")
    if summary.timed:
        best = summary.timed[0]
        share = f"{best.share} {SHARE_OF[best.per_step]}; " if best.share else ""
        yield _tile("largest saving, up to", best.saves, f"{share}{best.rule}")
    if summary.memory is not None and summary.memory.fullest is not None:
        yield _tile(*summary.memory.fullest)
    blind = f"; {summary.blind} could not look" if summary.blind else ""
    clean = f"{len(summary.clean)} rule{'' if len(summary.clean) == 1 else 's'} clean"
    yield _tile("findings", str(len(summary.findings)), f"{clean}{blind}")


def _tile(name: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><div class="tile">{escape(name)}</div><div class="big">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def not_flagged(summary: Summary) -> Iterator[str]:
    """Cards of what could not look, and of what looked and is clean."""
    if summary.abstained or summary.partly:
        items = [f"<li><b>{escape(', '.join(rules))}</b>: {prose(reason)}</li>" for reason, rules in summary.abstained]
        items += [f"<li><b>{escape(rule)}</b>, in part: {prose(reason)}</li>" for rule, reason in summary.partly]
        body = f"<p>These rules say nothing, neither good nor bad.</p><ul>{''.join(items)}</ul>"
        yield card("Could not look", body, kind="unseen")
    if summary.clean:
        chips = "".join(f'<span class="chip ok">{escape(rule)}</span>' for rule in summary.clean)
        yield card("Looked at and clean", f'<div class="rules">{chips}</div>')


def _device(row: DeviceRow) -> str:
    rank = f"rank {row.ranks} · " if row.ranks != "-" else ""
    parts = " · ".join(f"{words} {share}" for (words, _, _), share in zip(svg.PARTS, row.shares(), strict=True))
    return (
        f'<div class="device"><div class="name">{escape(rank + row.device)}</div>{svg.device_bar(row)}'
        f'<div class="parts">{escape(f"span {format_ns(row.span_ns)} · {parts}")}</div></div>'
    )


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    kinds = [
        ("no profiler on", svg.FREE_COLOR, [step for step in steps if not step.traced]),
        ("while traced", svg.TRACED_COLOR, [step for step in steps if step.traced]),
    ]
    yield '<div class="legend">'
    for words, color, members in kinds:
        spread = Spread.of([step.duration_ns for step in members])
        if spread is not None:
            yield f"<span>{svg.swatch(color)} {escape(spread.text(words))}</span>"
    yield "</div>"
    shown_steps = [step for _, _, members in kinds for step in members]
    yield svg.step_chart(shown_steps)
    longest = max(step.duration_ns for step in steps)
    bunched = f"; each bar is the longest of {-(-len(steps) // svg.MOST_BARS)}" if len(steps) > svg.MOST_BARS else ""
    many = f"{len(steps):,} step{'s' * (len(steps) != 1)}{bunched}"
    yield f'<div class="ends"><span>{many}</span><span>tallest {format_ns(longest)}</span></div>'


def _sources(analysis: Analysis, summary: Summary) -> Iterator[str]:
    heads = ("<th>path</th>", *(f'<th class="n">{name}</th>' for name in ("rank", "events", "unplaced")))
    rows = (
        f'<tr><td class="t">{escape(sanitize(source.path))} '
        f'<span class="note">{escape(sanitize(source.format))}</span></td>'
        f'<td class="n">{"-" if source.rank is None else source.rank}</td>'
        f'<td class="n">{source.events_read:,}</td><td class="n">{source.events_unplaced:,}</td></tr>'
        for source in analysis.sources[:MOST_SOURCES]
    )
    drawn = table(heads, rows)
    if len(analysis.sources) > MOST_SOURCES:
        drawn += f'<p class="note">and {len(analysis.sources) - MOST_SOURCES:,} more</p>'
    folded = len(analysis.sources) > FEW_SOURCES
    yield f"<details><summary>all {len(analysis.sources):,} sources</summary>{drawn}</details>" if folded else drawn
    if summary.remarks:
        yield f"<ul>{''.join(f'<li>{prose(remark)}</li>' for remark in summary.remarks)}</ul>"


_RUN_FACTS = ("command", "created_utc", "state", "exit_code", "git", "python", "platform", "packages", "driver")
"""What of a run's manifest is shown; the JSON report holds all of it."""


def _run(run: Mapping[str, Any]) -> str:
    rows = []
    for key in _RUN_FACTS:
        words = _words(run.get(key))
        if words:
            name = escape(key.replace("_", " "))
            rows.append(f'<tr><th scope="row">{name}</th><td class="t">{escape(sanitize(words, TEXT_LIMIT))}</td></tr>')
    return f'<div class="scroll"><table class="facts"><tbody>{"".join(rows)}</tbody></table></div>'


def _words(value: Any) -> str:
    """A part of the manifest on one line; nothing for what is not known."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(held)}" for key, held in value.items() if held not in (None, ""))
    if isinstance(value, list | tuple):
        return " ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _origin() -> str:
    return f"perfscope {package_version()}. This file loads nothing; the report as JSON is embedded in it."
