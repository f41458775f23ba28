"""Sections on a terminal: short by default, everything with ``-v``; columns that do not fit are dropped."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text as RichText

from perfscope.dashboards.report.blocks import Advice, Badge, Chart, Code, Command, FindingBlock, Listing, Table, Text
from perfscope.dashboards.report.renderers.values import (
    NAMES,
    NO_TIME,
    WORDS,
    FindingWords,
    code_lines,
    finding_words,
    parts,
    place_end,
    rest_text,
    shown,
)
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.report.blocks import Block, Head, Report, Section, Value

WIDTH = 110
"""Columns if the terminal's width is unknown, so that a log or file looks the same everywhere."""

NARROWEST = 60
"""Fewest columns of a table: below, its cells have no room for words, and wrapping by the terminal reads better."""

SENTENCE = 36
"""Characters of a column of words before it is folded into lines."""

COMFORTABLE, NARROWEST_PLACE = 28, 16
"""Characters of a name or place for which other columns are dropped, and the fewest it keeps in any case."""

MOST_ROWS = 40
"""Most rows of a table with ``-v``; the JSON report has more."""

STYLES = {"worse": "bold red", "better": "green", "open": "yellow", "plain": ""}
"""Style of a badge, by tone."""

MOST_LINES = 200
"""Most sentences of a listing with ``-v``: a document may be untrusted."""

MOST_BAR = 120
"""Most characters of a bar that shows a whole."""

GLYPHS = "█▒▓░#=+-:."
PART_STYLES = ("blue", "red", "yellow", "magenta", "cyan", "green")
"""Style of the parts of a bar, in order. Neighbours also differ in their characters, for output without colours."""

INDENT, GAP = 2, 2
"""Columns before a table, and between its columns."""

LEAST_CODE = 30
"""Fewest characters of code that are shown next to its place; with less room the code has its own line."""

MARGIN = 5
"""Columns before the text of a finding."""

SEVERITY_STYLES = {"high": "bold red", "medium": "yellow", "low": ""}


def printed(parts: Callable[[int], Iterable[RenderableType]], *, width: int, color: bool = False) -> str:
    """Render the parts given by ``parts(columns)`` in order, with at most one empty line between them."""
    into = io.StringIO()
    console = Console(
        file=into,
        width=max(width, NARROWEST),
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts(console.width):
        console.print(part)
    lines = [line.rstrip() for line in into.getvalue().splitlines()]
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept).rstrip("\n") + "\n"


def sections_text(sections: Sequence[Section], width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Each section and an empty line, then the titles of the small sections left out."""
    kept = [section for section in sections if verbose or not section.detail]
    for section in kept:
        yield from section_text(section, width, verbose=verbose)
        yield ""
    if len(kept) < len(sections):
        titles = "; ".join(sanitize(section.title) for section in sections if section not in kept)
        yield hanging(f"more with -v: {titles}")
        yield ""


def section_text(section: Section, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The title with the summary, and the blocks below it; ``(-v)`` if all blocks are details."""
    title = sanitize(section.title)
    hidden = not verbose and section.blocks and all(is_hidden(block) for block in section.blocks)
    summary = f": {sanitize(section.summary, TEXT_LIMIT)}" if section.summary else ""
    line = RichText(f"{title}{summary}{' (-v)' if hidden else ''}", overflow="fold")
    line.stylize("bold", 0, len(title))
    yield Padding(line, (0, 0, 0, INDENT))
    after_table = False
    for block in section.blocks:
        open_table = isinstance(block, Table) and (verbose or not block.detail)
        if after_table and open_table:
            yield ""
        yield from block_text(block, width, verbose=verbose)
        after_table = open_table


def is_hidden(block: Block) -> bool:
    """Whether a block is shown with ``-v`` only, or never because it is a picture."""
    return isinstance(block, Chart | Command | Advice) or getattr(block, "detail", False)


def block_text(block: Block, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Render a block; nothing for a picture, or for a detail without ``verbose``."""
    if isinstance(block, Chart | Command | Advice):
        if verbose and isinstance(block, Command):
            yield hanging(f"{block.what}: {sanitize(block.command, TEXT_LIMIT)}")
        if verbose and isinstance(block, Advice):
            yield hanging(sanitize(block.title, TEXT_LIMIT))
            yield from (Padding(RichText(line), (0, 0, 0, 6)) for line in clean(block.text).splitlines())
        return
    if isinstance(block, FindingBlock):
        words = finding_words(block)
        yield from finding_text(words, width, widths=(len(words.gain), len(words.share)))
        if verbose:
            yield from finding_detail(words, block.evidence, width)
        return
    if isinstance(block, Code):
        yield from (Padding(RichText(line), (0, 0, 0, 6)) for line in code_lines(block))
        return
    if block.detail and not verbose:
        return
    if isinstance(block, Text):
        yield hanging(sanitize(block.text, TEXT_LIMIT), style="yellow" if block.warning else "dim")
    elif isinstance(block, Listing):
        items = block.items if verbose else block.items[: block.few]
        yield from (hanging(sanitize(item, TEXT_LIMIT)) for item in items[:MOST_LINES])
        yield from _rest(rest_text(block, len(block.items) - len(items[:MOST_LINES])), verbose=verbose)
    else:
        rows = block.rows[: max(MOST_ROWS, block.few) if verbose else block.few]
        if block.title and block.detail:
            yield Padding(RichText(sanitize(block.title), style="dim"), (0, 0, 0, INDENT))
        if rows and block.bar == "parts":
            yield from parts_text(block.heads, block.rows, width)
        if rows and (verbose or block.bar != "parts"):
            yield table_text(block.heads, rows, width)
        yield from _rest(rest_text(block, len(block.rows) - len(rows)), verbose=verbose)


def _rest(text: str, *, verbose: bool) -> Iterator[RenderableType]:
    if text:
        yield f"    {text}{'' if verbose else ' (-v)'}"


def table_text(heads: Sequence[Head], rows: Sequence[Sequence[Value]], width: int) -> RenderableType:
    """The rows in the columns that fit the width; words are aligned left, numbers right."""
    cells = [[shown(value, head) for value, head in zip(row, heads, strict=True)] for row in rows]
    kept, limit = _fitting(heads, cells, width)
    table = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for index in kept:
        words = heads[index].unit == "text"
        title, left = sanitize(heads[index].title), heads[index].unit in WORDS
        table.add_column(title, justify="left" if left else "right", no_wrap=not words, overflow="fold")
    for number, row in enumerate(cells):
        texts = [RichText(place_end(row[index], limit[index]), _style(rows[number][index])) for index in kept]
        table.add_row(*texts)
    return Padding(table, (0, 0, 0, INDENT))


def _style(value: Value) -> str:
    return STYLES[value.tone] if isinstance(value, Badge) else ""


def parts_text(heads: Sequence[Head], rows: Sequence[Sequence[Value]], width: int) -> Iterator[RenderableType]:
    """Rows that are parts of one whole, in order: one bar, and a legend with their cells."""
    known = parts(heads, rows)
    shares = [share for _, share in known]
    bar, legend, sizes = RichText(), [], _lengths(shares, min(width - 2 * INDENT, MOST_BAR))
    for number, ((text, _), size) in enumerate(zip(known, sizes, strict=True)):
        glyph, style = GLYPHS[number % len(GLYPHS)], PART_STYLES[number % len(PART_STYLES)]
        bar.append(glyph * size, style)
        legend.append(RichText.assemble((glyph, style), f" {text}"))
    yield Padding(bar, (0, 0, 0, INDENT))
    yield from flowing(legend, width)


def _lengths(shares: Sequence[float], whole: int) -> list[int]:
    """Characters of each part: at least one each, and together the length of the bar."""
    total = min(round(whole * sum(shares)), whole)
    sizes = [max(1, int(whole * share)) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda number: -(whole * shares[number] % 1))
    for number in by_rest[: max(0, total - sum(sizes))]:
        sizes[number] += 1
    if sizes and (over := sum(sizes) - whole) > 0:
        largest = sizes.index(max(sizes))
        sizes[largest] = max(1, sizes[largest] - over)
    return sizes


def flowing(texts: Sequence[RichText], width: int, gap: str = "   ") -> Iterator[RenderableType]:
    """Texts side by side, as many as fit on a line; a longer text is folded."""
    line: RichText | None = None
    for text in texts:
        if line is None:
            line = text.copy()
        elif len(line) + len(gap) + len(text) <= width - INDENT:
            line = RichText.assemble(line, gap, text)
        else:
            yield Padding(line, (0, 0, 0, INDENT))
            line = text.copy()
    if line is not None:
        yield Padding(line, (0, 0, 0, INDENT))


def _fitting(heads: Sequence[Head], cells: Sequence[Sequence[str]], width: int) -> tuple[list[int], dict[int, int]]:
    """Return the columns that are kept, with the characters each may have.

    Columns are dropped until names and places have room for ``COMFORTABLE`` characters; then the widest of them shrink.
    """
    limit = {index: max(len(head.title), *(len(row[index]) for row in cells)) for index, head in enumerate(heads)}
    names = [index for index, head in enumerate(heads) if head.unit in NAMES]
    words = {
        index: min(limit[index], SENTENCE) if head.unit == "text" else limit[index] for index, head in enumerate(heads)
    }
    kept = list(limit)

    def missing(most: int) -> int:
        wide = sum(min(limit[index], most if index in names else words[index]) for index in kept)
        return INDENT + wide + GAP * (len(kept) - 1) - width

    for index in sorted((index for index in kept if heads[index].drop), key=lambda index: heads[index].drop):
        if missing(COMFORTABLE) > 0:
            kept.remove(index)
    while missing(width) > 0:
        widest = max((index for index in names if index in kept), key=lambda index: limit[index], default=None)
        if widest is None or limit[widest] <= NARROWEST_PLACE:
            break
        limit[widest] -= 1
    return kept, limit


def hanging(text: str, style: str = "dim") -> RenderableType:
    """An indented paragraph below a title."""
    table = RichTable.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(RichText("    "), RichText(text, style=style))
    return table


def finding_text(
    words: FindingWords, width: int, *, widths: tuple[int, int], number: int = 0, code: bool = True, links: bool = False
) -> Iterator[RenderableType]:
    """Saving and place in one line, description in the next; code next to the place if both fit.

    ``widths``: columns for savings and shares; ``code``: include the source line; ``links``: make its place a link.
    """
    head = RichText(f"  {number}. " if number else "  ")
    head.append(f"{words.gain:<{widths[0]}}", "dim" if words.gain == NO_TIME else SEVERITY_STYLES[words.severity])
    head.append(f"  {words.share:>{widths[1]}}" if widths[1] else "").append("  ").append(words.rule, "bold")
    known = "; ".join(filter(None, (words.basis, words.on_ranks.strip(" ()"))))
    fitting = (text for text in (f" ({known})", f" ({words.basis})") if len(head) + len(text) <= width)
    head.append(next(fitting, ""))
    fits = len(head) + INDENT + len(words.where) <= width
    place, line = Style(color="cyan", link=(words.link or None) if links else None), words.code if code else ""
    if words.where and fits:
        head.append("  ").append(words.where, place)
    yield head
    yield indented(words.title)
    if words.where and not fits:
        text, room = RichText(words.where, place, overflow="fold"), width - MARGIN - len(words.where) - 4
        if line and room >= LEAST_CODE:
            text.append(f"  > {shorten_end(line, room)}", "italic")
            line = ""
        yield Padding(text, (0, 0, 0, MARGIN))
    if line:
        yield indented(f"> {shorten_end(line, width - MARGIN - 2)}", "italic")


def finding_detail(words: FindingWords, evidence: Table | None, width: int) -> Iterator[RenderableType]:
    """Place, evidence and advice, shown below a finding."""
    known = [f"{what} {name}" for what, name in words.place if name != words.where]
    known += [f"moves {words.moves}"] if words.moves else []
    yield from (indented(text) for text in (", ".join(known), words.detail) if text)
    yield from (indented(line[: width - MARGIN]) for line in words.around)
    if evidence is not None:
        table = block_text(evidence, width - MARGIN + INDENT, verbose=True)
        yield from (Padding(part, (0, 0, 0, MARGIN - INDENT)) for part in table)
    yield from (indented(line) for line in words.advice.splitlines())
    yield ""


def indented(text: str, style: str | Style = "") -> RenderableType:
    """A paragraph of a finding."""
    return Padding(RichText(text, style=style, overflow="fold"), (0, 0, 0, MARGIN))


def shorten_end(text: str, limit: int) -> str:
    """The beginning of a line, cut to its limit; control characters and secrets masked."""
    line = sanitize(text, TEXT_LIMIT)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def line_of(lead: str, text: str, style: str = "") -> RenderableType:
    """A paragraph indented below its lead word; control characters and secrets masked."""
    table = RichTable.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(RichText(lead, style="bold" if style else ""), RichText(sanitize(text, TEXT_LIMIT), style=style))
    return table


def report_text(report: Report, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The report as text of ``width`` columns; ``verbose``: every block and row."""

    def parts(columns: int) -> Iterator[RenderableType]:
        yield RichText(f"perfscope: {sanitize(report.headline, TEXT_LIMIT)}", style="bold", overflow="fold")
        yield from (Padding(RichText(sanitize(fact, TEXT_LIMIT)), (0, 0, 0, 2)) for fact in report.facts)
        yield ""
        yield from sections_text(report.sections, columns, verbose=verbose)

    return f"{printed(parts, width=width, color=color).rstrip()}\n"
