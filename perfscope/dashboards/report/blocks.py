"""Building blocks of a report: sections of blocks that hold values with units.

Sections decide what is shown. The renderers in ``renderers`` format, escape, mask, narrow and bound it, once for all
sections. A new column is one line in a section, a new section is one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import Struct

from perfscope.model.results import Unit

if TYPE_CHECKING:
    from perfscope.model.finding import Finding

Bar = Literal["", "shares", "parts", "effects"]
"""``shares``: one bar per row, in formats with pictures. ``parts``: rows are parts of one whole, drawn in order in one
bar, on a terminal too. ``effects``: intervals on one scale, except on a terminal."""

Tone = Literal["plain", "worse", "better", "open"]
"""Meaning of a word to the reader: bad, good or undecided."""

Number = int | float

T = TypeVar("T")

NEGLIGIBLE = 0.0005
"""Share of the step: a smaller one is written as 0.0 %."""

_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})(\w*)\s*$")
_SPAN = re.compile(r"`([^`]+)`")


class Range(Struct, frozen=True):
    """A value known to lie between two ends, in the unit of its column."""

    low: Number
    high: Number


class Marked(Struct, frozen=True):
    """A value with a mark before it: ``'>='`` for a lower bound, ``'~'`` for an approximation, ``''`` for no mark."""

    value: Number | Range
    mark: str


class Amount(Struct, frozen=True):
    """A number with its own unit, for a column of several units."""

    value: Number
    unit: Unit


class Effect(Struct, frozen=True):
    """A relative change, 0.03 for 3%, with its interval where it was judged."""

    change: float
    low: float | None = None
    high: float | None = None
    least: float = 0.0
    """Smaller changes do not matter."""
    tone: Tone = "plain"


class Badge(Struct, frozen=True):
    """A word whose meaning is also shown by a colour or a mark."""

    text: str
    tone: Tone = "plain"


Value = str | Number | Range | Marked | Amount | Effect | Badge | None
"""Value of a cell; ``None`` and ``''`` show as nothing. A text in a column of numbers is shown unchanged."""


class Column(Struct, Generic[T], frozen=True):
    """A column: its title, and how to read its value from a row's item."""

    title: str
    value: Callable[[T], Value]
    unit: Unit = "text"
    drop: int = 0
    """Order in which columns are dropped on a narrow terminal, 1 first; 0 is always kept."""
    limit: int = 0
    """Most characters of a name or place; 0: the limit of the unit."""
    key: str = ""
    """Column name in CSV files that the dashboard exports."""
    width: int | None = None
    """Pixels on the dashboard; ``None`` takes the remaining width."""


class Head(Struct, frozen=True):
    """The head of a column: all of it but the function that reads a value."""

    title: str
    unit: Unit
    drop: int = 0
    limit: int = 0


class Table(Struct, frozen=True, kw_only=True):
    """Rows, most important first. Columns that are empty in every row are left out."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    few: int = 5
    """Rows shown at once; the others appear with ``-v`` or in an opened fold."""
    left: int = 0
    """Known rows that are not in the table."""
    rest: str = ""
    """Description of the rows that are not shown: ``'kernels, which move less'``."""
    detail: bool = False
    """Shown only with ``-v`` or in an opened fold."""
    bar: Bar = ""
    """How the first column of shares is drawn."""

    def column(self, title: str) -> tuple[Value, ...]:
        """Return the values of the column with this title; ``ValueError`` if the table has no such column."""
        index = [head.title for head in self.heads].index(title)
        return tuple(row[index] for row in self.rows)


class Text(Struct, frozen=True):
    """A paragraph; text between single backticks is code."""

    text: str
    detail: bool = False
    warning: bool = False


class Listing(Struct, frozen=True, kw_only=True):
    """Sentences, one per line."""

    items: tuple[str, ...]
    few: int = 6
    left: int = 0
    rest: str = ""
    detail: bool = False


class Command(Struct, frozen=True):
    """A command to type, and what it does."""

    what: str
    command: str


class Advice(Struct, frozen=True):
    """Paragraphs and code blocks below a title: what to do about something."""

    title: str
    text: str


class Code(Struct, frozen=True):
    """Lines to copy, unchanged."""

    lines: tuple[str, ...]


class Box(Struct, frozen=True, kw_only=True):
    """A bar of a lane or plot; ``start`` and ``end`` in the unit of the horizontal axis."""

    start: float
    end: float
    color: str
    title: str = ""
    """Text shown on hover."""
    opacity: float = 1.0
    top: float = 0.0
    """Height in a plot, in the unit of the vertical axis; lanes are filled."""


class Lane(Struct, frozen=True, kw_only=True):
    """A row of bars."""

    name: str
    boxes: tuple[Box, ...]
    words: str = ""
    """Description for readers who cannot see it; ``''`` if the text next to it is enough."""
    amount: str = ""
    """Text at its end."""
    mark: float | None = None
    """Place of a thin line through it."""


class Legend(Struct, frozen=True):
    """Colours of a chart with their meaning; entries without a colour are texts."""

    entries: tuple[tuple[str, str], ...] = ()
    """(words, colour or ``''``)"""
    is_below: bool = False


class Lanes(Struct, frozen=True, kw_only=True):
    """Rows of bars on one axis from ``start`` to ``end``; not part of formats without charts."""

    lanes: tuple[Lane, ...]
    start: float = 0.0
    end: float = 1.0
    legend: Legend = Legend()
    below: tuple[str, ...] = ()
    """Texts under the lanes, spread from the left edge to the right."""


class Dot(Struct, frozen=True, kw_only=True):
    """A point of a plot; ``low`` and ``high`` are the ends of its range (``high`` of infinity: not bounded)."""

    x: float
    y: float
    color: str
    title: str = ""
    low: float | None = None
    high: float | None = None
    ring: bool = False
    label: str = ""


class Line(Struct, frozen=True, kw_only=True):
    """A line through points (x, y) of a plot."""

    points: tuple[tuple[float, float], ...]
    color: str
    kind: Literal["solid", "dashed", "faint"] = "solid"


class Axis(Struct, frozen=True, kw_only=True):
    """An axis from ``low`` to ``high``; without a unit it has no ticks."""

    low: float
    high: float
    unit: Literal["", "ns", "bytes"] = ""
    logarithmic: bool = False


class Plot(Struct, frozen=True, kw_only=True):
    """Points, lines and bars on two axes; not part of formats without charts."""

    words: str
    """Description for readers who cannot see it."""
    x: Axis
    y: Axis
    dots: tuple[Dot, ...] = ()
    lines: tuple[Line, ...] = ()
    boxes: tuple[Box, ...] = ()
    limits: tuple[tuple[float, str], ...] = ()
    """Heights that must not be passed, with their names."""
    title: str = ""
    note: str = ""
    """How to read it."""
    legend: Legend = Legend()
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    """Texts over and under the plot, spread from the left edge to the right."""


class Area(Struct, frozen=True, kw_only=True):
    """Bytes that one category holds from each place up to the next one."""

    name: str
    color: str
    bytes: tuple[int, ...]


class Band(Struct, frozen=True, kw_only=True):
    """A step or a phase; ``start`` and ``end`` are fractions (0 to 1) of the width."""

    name: str
    start: float
    end: float
    color: str = ""


class Areas(Struct, frozen=True, kw_only=True):
    """Bytes in use over time by category; places are fractions (0 to 1) of the width."""

    words: str
    """Description for readers who cannot see it."""
    places: tuple[float, ...]
    areas: tuple[Area, ...]
    """From the lowest to the highest."""
    reserved: tuple[int, ...] | None
    capacity_bytes: int | None
    peak_place: float
    peak_bytes: int
    steps: tuple[Band, ...]
    phases: tuple[Band, ...]
    begins: str
    ends: str


Chart = Lanes | Plot | Areas
"""Drawn in HTML; text and Markdown have the numbers in tables."""


class FindingBlock(Struct, frozen=True, kw_only=True):
    """A finding: what is wrong, where, the most that a fix saves, and what to do."""

    rule: str
    finding: Finding
    saves: Amount | None = None
    """Time that a fix saves, or the memory it frees if no time is known; ``None`` if neither is known."""
    over: str = ""
    """Reference of a time that is not per step: ``'per run'``, ``'in all'``, ``'once'``."""
    share: float | None = None
    """Share that a fix saves, 0 to 1; for a one-time cost its length in steps."""
    share_of: str = ""
    """``'step'``, ``'step of rank 3'``, ``'span'`` of the devices, ``'run'`` of a program, ``'memory'`` at its peak, or
    ``'once'`` for a cost that no later step pays."""
    ranks: tuple[int, ...] = ()
    """Ranks that have the finding, if there are several sources."""
    evidence: Table | None = None

    @property
    def negligible(self) -> bool:
        """Whether its share rounds to 0.0 %: left out where only the first findings are shown."""
        return self.saves is not None and self.share is not None and self.share < NEGLIGIBLE


class Tile(Struct, frozen=True):
    """A number at the top of a page."""

    name: str
    value: str
    note: str


Block = Table | Text | Listing | Command | Advice | Code | Chart | FindingBlock


class Section(Struct, frozen=True, kw_only=True):
    """A titled part of a report."""

    title: str
    summary: str = ""
    """The section in one sentence, without a capital letter or full stop."""
    blocks: tuple[Block, ...] = ()
    detail: bool = False
    """So small compared with other sections that it is shown only with ``-v`` or in an opened fold."""
    tone: Tone | None = None
    """Meaning of a verdict; shown as a colour in formats with colours."""

    def table(self, title: str) -> Table:
        """Return the table with this title; ``KeyError`` if the section has none."""
        tables = {block.title: block for block in self.blocks if isinstance(block, Table)}
        return tables[title]

    def texts(self) -> tuple[str, ...]:
        """All sentences of the section, in order."""
        return tuple(
            text
            for block in self.blocks
            if isinstance(block, Text | Listing)
            for text in ((block.text,) if isinstance(block, Text) else block.items)
        )


class Report(Struct, frozen=True, kw_only=True):
    """A whole page or screen."""

    headline: str
    facts: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()


def table(columns: Sequence[Column[T]], items: Sequence[T], **options: Any) -> Table:
    """Build a table with one row per item and no empty columns; ``options`` are fields of ``Table``."""
    cells = [[column.value(item) for column in columns] for item in items]
    filled = [
        index for index in range(len(columns)) if any(row[index] is not None and row[index] != "" for row in cells)
    ]
    return Table(
        heads=tuple(
            Head(column.title, column.unit, column.drop, column.limit)
            for column in (columns[index] for index in filled)
        ),
        rows=tuple(tuple(row[index] for index in filled) for row in cells),
        **options,
    )


def tables(*made: Table) -> tuple[Table, ...]:
    """The tables that have at least one row."""
    return tuple(block for block in made if block.rows)


def notes(*texts: str, detail: bool = False) -> tuple[Text, ...]:
    """A paragraph for each non-empty text."""
    return tuple(Text(text, detail) for text in texts if text)


# Parts of an advice text.


class Paragraph(Struct, frozen=True, kw_only=True):
    """A paragraph (lines joined by spaces), or code as written (``is_code``)."""

    text: str
    is_code: bool
    language: str = ""

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Split a paragraph into (text, is code): text between single backticks is code."""
        for index, piece in enumerate(_SPAN.split(self.text)):
            if piece:
                yield piece, bool(index % 2)


def paragraphs(advice: str) -> Iterator[Paragraph]:
    """Split ``advice`` into paragraphs and code; code is fenced (closed or not) or indented by four spaces."""
    prose: list[str] = []
    code: list[str] = []
    language: str | None = None
    for line in advice.splitlines():
        fence = _FENCE.match(line)
        if language is not None:  # inside a fence: every line up to its end is code
            if fence is None:
                code.append(line)
                continue
            yield from _code(code, language)
            language = None
        elif fence is not None:
            yield from _code(code)
            yield from _paragraph(prose)
            language = fence[1]
        elif line.startswith("    ") and not prose:
            code.append(line[4:])
        elif not line.strip():
            yield from _paragraph(prose)
            if code:
                code.append("")
        else:
            yield from _code(code)
            prose.append(line.strip())
    yield from _paragraph(prose)
    yield from _code(code, language or "")


def _paragraph(lines: list[str]) -> Iterator[Paragraph]:
    if lines:
        yield Paragraph(text=" ".join(lines), is_code=False)
        lines.clear()


def _code(lines: list[str], language: str = "") -> Iterator[Paragraph]:
    text = "\n".join(lines).strip("\n")
    if text:
        yield Paragraph(text=text, is_code=True, language=language)
    lines.clear()
