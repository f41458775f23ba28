"""Sections in HTML: one card each, important parts open and the rest folded; tables stack on a phone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import (
    Advice,
    Badge,
    Chart,
    Code,
    Command,
    Effect,
    FindingBlock,
    Listing,
    Paragraph,
    Table,
    Text,
    paragraphs,
)
from perfscope.dashboards.report.charts import parts_lanes
from perfscope.dashboards.report.renderers.charts import chart_html, share_bar
from perfscope.dashboards.report.renderers.page import NOTEBOOK, RULES, page
from perfscope.dashboards.report.renderers.values import (
    NAMES,
    NO_TIME,
    WORDS,
    code_lines,
    finding_words,
    interval_bar,
    parts,
    rest_text,
    scale_of,
    scale_title,
    sentence,
    shown,
)
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perfscope.dashboards.report.blocks import Bar, Block, Head, Report, Section, Value

MOST_NARROW = 6
"""Most columns that fit side by side on a tablet."""

FEWEST_OPEN = 8
"""Fewest rows of a table that are shown unfolded."""

NO_TIME_HTML = f"<span>{NO_TIME}</span>"


def sections_html(sections: Sequence[Section], more: str = "More") -> Iterator[str]:
    """A card per section; small sections are folded into one card titled ``more``."""
    yield from (section_html(section) for section in sections if not section.detail)
    small = [section for section in sections if section.detail]
    if small:
        folds = (_fold(_lead(section), "".join(blocks_html(section.blocks))) for section in small)
        yield card(more, "".join(folds))


def notebook_html(parts: Iterable[str]) -> str:
    """Cards and other parts as the output of a notebook cell, with their style sheet in the notebook's colours."""
    return f'<div class="ps-report"><style>.ps-report{{{NOTEBOOK}}}.ps-report{{{RULES}}}</style>{"".join(parts)}</div>'


def section_html(section: Section) -> str:
    """One section as a card."""
    summary = sanitize(section.summary, TEXT_LIMIT)
    lead = f"<p>{prose(sentence(summary))}</p>" if summary else ""
    kind = "" if section.tone is None else f"verdict {section.tone}"
    return card(sanitize(section.title), lead + "".join(blocks_html(section.blocks)), kind=kind)


def _lead(section: Section) -> str:
    title = sanitize(section.title)
    return f"{title}: {sanitize(section.summary, TEXT_LIMIT)}" if section.summary else title


def blocks_html(blocks: Sequence[Block]) -> Iterator[str]:
    """Blocks in order, each detail in its own fold."""
    for block in blocks:
        if isinstance(block, Chart):
            yield chart_html(block)
        elif isinstance(block, FindingBlock):
            yield finding_card(block, opened=False)
        elif isinstance(block, Code):
            yield code_html("\n".join(code_lines(block)))
        elif isinstance(block, Advice):
            body = "".join(advice_html(shorten(clean(block.text), TEXT_LIMIT)))
            yield _fold(sanitize(block.title), body)
        elif isinstance(block, Command):
            command = escape(sanitize(block.command, TEXT_LIMIT))
            yield f'<p class="note">{escape(sentence(f"{block.what}:"))} <code>{command}</code></p>'
        elif isinstance(block, Text):
            kind = "" if block.warning else ' class="note"'
            yield f"<p{kind}>{prose(sentence(sanitize(block.text, TEXT_LIMIT)))}</p>"
        elif isinstance(block, Listing):
            yield from _listing(block)
        else:
            yield from _table(block)


def _listing(block: Listing) -> Iterator[str]:
    items = [prose(sanitize(item, TEXT_LIMIT)) for item in block.items]
    shown_items = [] if block.detail else items[: block.few]
    folded = items[len(shown_items) :]
    if shown_items:
        yield f"<ul>{''.join(f'<li>{item}</li>' for item in shown_items)}</ul>"
    text = rest_text(block, 0)
    note = f'<p class="note">{escape(text)}</p>' if text else ""
    if folded:
        title = f"{len(folded):,} {block.rest or 'lines'}" if block.detail else f"{len(folded):,} more {block.rest}"
        yield _fold(title, f"<ul>{''.join(f'<li>{item}</li>' for item in folded)}</ul>{note}")
    else:
        yield note


def _table(block: Table) -> Iterator[str]:
    text = rest_text(block, 0)
    note = f'<p class="note">{escape(text)}</p>' if text else ""
    if block.detail:
        yield _fold(sanitize(block.title) or "details", table_html(block.heads, block.rows, bar=block.bar) + note)
        return
    few = max(block.few, FEWEST_OPEN)
    first, folded = block.rows[:few], block.rows[few:]
    if block.title:
        yield f"<h3>{escape(sanitize(block.title))}</h3>"
    if first:
        yield table_html(block.heads, first, bar=block.bar)
    if folded:
        yield _fold(f"{len(folded):,} more {block.rest}", table_html(block.heads, folded, bar=block.bar) + note)
    else:
        yield note


def _fold(title: str, body: str) -> str:
    return f"<details><summary>{escape(sanitize(title, TEXT_LIMIT))}</summary>{body}</details>"


def table_html(heads: Sequence[Head], rows: Sequence[Sequence[Value]], *, bar: Bar = "") -> str:
    """A table that stacks on a phone, and on a tablet if wide. ``bar``: as in ``Table``; ``parts`` have no table."""
    if bar == "parts":
        return chart_html(parts_lanes(parts(heads, rows)))
    drawn = next((index for index, head in enumerate(heads) if head.unit == "share" and bar == "shares"), None)
    kind = "stacks wide" if len(heads) > MOST_NARROW else "stacks"
    titles = [f'<th class="{_side(head)}">{escape(sanitize(head.title))}</th>' for head in heads]
    bars: list[str] = [""] * len(rows)
    if drawn is not None:
        titles.insert(0, "<td></td>")
        kind += " hot"
        bars = [f'<td class="share">{share_bar(_share(row[drawn]))}</td>' for row in rows]
    end = scale_of(rows) if bar == "effects" else None
    if end is not None:
        titles.append(f"<th>{escape(scale_title(end))}</th>")
    drawn_rows = (_row(heads, row, piece, end) for row, piece in zip(rows, bars, strict=True))
    return html_table(titles, drawn_rows, kind=kind)


def _share(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _row(heads: Sequence[Head], row: Sequence[Value], bar: str, end: float | None) -> str:
    cells = [bar]
    for value, head in zip(row, heads, strict=True):
        words = shown(value, head)
        text = prose(words) if head.unit == "text" else escape(words)
        if head.unit in NAMES and text:
            text = f"<code>{text.replace('/', '/<wbr>')}</code>"
        if isinstance(value, Badge) and text:
            text = f'<span class="chip {value.tone}">{text}</span>'
        kind = f"{_side(head)} at" if head.unit == "place" else _side(head)
        cells.append(f'<td class="{kind}" data-name="{escape(sanitize(head.title))}">{text}</td>')
    if end is not None:
        effect = next((value for value in row if isinstance(value, Effect)), None)
        cells.append(f'<td class="interval">{"" if effect is None else interval_bar(effect, end)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _side(head: Head) -> str:
    return "t" if head.unit in WORDS else "n"


def report_html(report: Report, *, data_id: str, data: str, style: str = "") -> str:
    """The page; ``data`` is JSON, embedded in an element with id ``data_id``. The policy forbids any request."""
    facts = " · ".join(escape(sanitize(fact, TEXT_LIMIT)) for fact in report.facts)
    headline = sanitize(report.headline, TEXT_LIMIT)
    head = f'<header><h1><b>perfscope</b> <span>{escape(headline)}</span></h1><p class="sub">{facts}</p></header>'
    body = (head, *sections_html(report.sections))
    return page(body, title=headline, data_id=data_id, data=data.replace("<", "\\u003c"), style=style)


def finding_card(block: FindingBlock, *, opened: bool) -> str:
    """A finding with its evidence and advice; ``opened``: its details are unfolded."""
    words = finding_words(block)
    amount = words.saves.removesuffix(f" {block.over}") if block.over else words.saves
    share = words.share or (f"of {block.share_of}" if block.share_of == "memory" else "")
    per = ", ".join(filter(None, (block.over, share)))
    saves = f"<b>{escape(amount)}</b>{f'<span>{escape(per)}</span>' if per else ''}" if amount else NO_TIME_HTML
    known = [f"{escape(what)} <code>{escape(name)}</code>" for what, name in words.place]
    known += [escape(f"moves {words.moves}")] if words.moves else []
    detail = f'<div class="detail">{prose(words.detail)}</div>' if words.detail else ""
    code = f"<pre>{escape(chr(10).join(words.around))}</pre>" if words.around else ""
    evidence = "".join(_table(block.evidence)) if block.evidence is not None else ""
    lead = f'<b class="lead">{escape(words.lead)}:</b>'
    fix = f'<div class="fix">{lead}{"".join(advice_html(words.advice))}</div>' if words.advice else ""
    unfolded = " open" if opened else ""
    details = f"<details{unfolded}><summary>evidence</summary>{evidence}</details>" if evidence else ""
    return (
        f'<article class="card finding {words.severity}"><div class="row">'
        f'<div class="saves">{saves}</div>'
        f'<div class="what"><div class="title">{escape(words.rule)}: {prose(words.title + words.on_ranks)}</div>'
        f'{detail}<div class="where">{" · ".join(known)}</div>{code}</div>'
        f'<div class="chips"><span class="chip {words.severity}">{words.severity}</span>'
        f'<span class="chip">{escape(words.basis)}</span></div></div>'
        f"{fix}{details}</article>"
    )


def prose(text: str) -> str:
    """Words, with text between backticks as code."""
    pieces = Paragraph(text=text, is_code=False).pieces()
    return "".join(f"<code>{escape(piece)}</code>" if is_code else escape(piece) for piece, is_code in pieces)


def code_html(text: str) -> str:
    """Code with a button that copies it."""
    return (
        f'<div class="code"><pre tabindex="0">{escape(text)}</pre>'
        '<button class="copy" type="button">copy</button></div>'
    )


def advice_html(text: str) -> Iterator[str]:
    """Advice as paragraphs, and code blocks with a button that copies them."""
    for block in paragraphs(text):
        if block.is_code:
            yield code_html(block.text)
        else:
            yield f"<p>{prose(block.text)}</p>"


def html_table(heads: Iterable[str], rows: Iterable[str], *, kind: str = "") -> str:
    """A table that scrolls by itself if the page is too narrow; cells must be HTML."""
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def card(title: str, body: str, *, kind: str = "") -> str:
    """A titled box around ``body``, which must be HTML."""
    return f'<section class="card {kind}"><h2>{escape(title)}</h2>{body}</section>'
