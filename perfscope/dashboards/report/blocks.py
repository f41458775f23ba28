"""What a report is made of: sections of blocks that hold values with units.

Sections say what is shown; they format, escape, mask, narrow and bound nothing. The renderers in ``renderers`` do that,
once for all sections. A new column is one line in a section, a new section one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from perfscope.model.finding import Finding

Unit = Literal[
    "text", "code", "place", "ns", "signed_ns", "bytes", "count", "quantity", "share", "change", "chance", "bytes_per_s"
]
"""How a value is shown: ``code`` is a name of the program (cut at its end where it is too long), ``place`` a path, a
source line or a scope (cut at its beginning), ``quantity`` a count with decimal prefixes, ``share`` a number from 0
to 1, ``change`` a relative one with its sign (0.03 is +3.0%), ``chance`` a probability; ns and bytes are
numbers of them."""

Bar = Literal["", "shares", "parts", "effects"]
"""``shares``: bars where there are pictures. ``parts`` of one whole, in order: pieces of one bar, on a terminal too.
``effects``: intervals on one scale, except on a terminal."""

Tone = Literal["plain", "worse", "better", "open"]
"""What a word means to the reader: bad, good, or not decided."""

Number = int | float


class Range(Struct, frozen=True):
    """A value that is known to lie between two ends, in the unit of its column."""

    low: Number
    high: Number


class Marked(Struct, frozen=True):
    """A value with a mark before it: ``'>='`` of a lower bound, ``'~'`` of an approximation; ``''`` for none."""

    value: Number | Range
    mark: str


class Amount(Struct, frozen=True):
    """A number in a unit of its own, in a column of several units."""

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
    """A word with its meaning as a colour or a mark."""

    text: str
    tone: Tone = "plain"


Value = str | Number | Range | Marked | Amount | Effect | Badge | None
"""What a cell holds; ``None`` and ``''`` show as nothing. A text in a column of numbers is shown as it is."""

T = TypeVar("T")


class Column(Struct, Generic[T], frozen=True):
    """A column: its title, and its value in the row of an item."""

    title: str
    value: Callable[[T], Value]
    unit: Unit = "text"
    drop: int = 0
    """On a narrow terminal columns go in this order, 1 first; 0 stays."""
    limit: int = 0
    """Characters of a name or place; 0: those of the unit."""
    key: str = ""
    """Its name in a file: the dashboard's tables can be taken away as CSV."""
    width: int | None = None
    """Pixels on the dashboard; ``None`` takes what is left."""


class Head(Struct, frozen=True):
    """A column of a table, without the way to its values."""

    title: str
    unit: Unit
    drop: int = 0
    limit: int = 0


class Table(Struct, frozen=True, kw_only=True):
    """Rows, those that matter most first. Columns that no row fills are not in it."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    few: int = 5
    """Rows that are shown at once; the others with ``-v`` or when a fold is opened."""
    left: int = 0
    """Rows that are known of and not in the table."""
    rest: str = ""
    """What all rows that are not shown are: ``'kernels, which move less'``."""
    detail: bool = False
    """Shown with ``-v`` or when a fold is opened, and not at once."""
    bar: Bar = ""
    """How the first column of shares is drawn."""

    def column(self, title: str) -> tuple[Value, ...]:
        """The values of a column; ``ValueError`` if there is none of that title."""
        index = [head.title for head in self.heads].index(title)
        return tuple(row[index] for row in self.rows)


class Text(Struct, frozen=True):
    """A paragraph; what stands between single backticks is code."""

    text: str
    detail: bool = False
    warning: bool = False


class Listing(Struct, frozen=True, kw_only=True):
    """Sentences, a line each."""

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
    """Paragraphs and blocks of code below a title, for who wants to know what to do."""

    title: str
    text: str


class Code(Struct, frozen=True):
    """Lines to copy, as they are."""

    lines: tuple[str, ...]


class Picture(Struct, frozen=True):
    """A drawing, for formats that have pictures: markup whose texts are escaped, and which loads nothing."""

    markup: str


class FindingBlock(Struct, frozen=True, kw_only=True):
    """A finding: what is wrong and where, what fixing it saves at most, and what to do."""

    rule: str
    finding: Finding
    saves: Amount | None = None
    """Time, else memory that a fix gives back; ``None`` where neither is known."""
    over: str = ""
    """What a time is over where that is not a step: ``'per run'``, ``'in all'``, ``'once'``."""
    share: float | None = None
    """Of what is saved, 0 to 1; of what is paid once, as many steps as it is long."""
    share_of: str = ""
    """``'step'``, ``'step of rank 3'``, ``'span'`` of the devices, ``'run'`` of a program, ``'memory'`` at its peak;
    ``'once'``: of a cost that no further step pays."""
    ranks: tuple[int, ...] = ()
    """Those that show it, where there are several sources."""
    evidence: Table | None = None


class Tile(Struct, frozen=True):
    """A number at the top of a page."""

    name: str
    value: str
    note: str


Block = Table | Text | Listing | Command | Advice | Code | Picture | FindingBlock


class Section(Struct, frozen=True, kw_only=True):
    """A titled part of a report."""

    title: str
    summary: str = ""
    """All of it in one sentence, which begins with a small letter and has no full stop."""
    blocks: tuple[Block, ...] = ()
    detail: bool = False
    """So small beside the others that it is shown with ``-v`` or when a fold is opened only."""
    tone: Tone | None = None
    """Of a verdict: drawn as a colour where there are colours."""

    def table(self, title: str) -> Table:
        """The table of a title; ``KeyError`` if there is none."""
        tables = {block.title: block for block in self.blocks if isinstance(block, Table)}
        return tables[title]

    def texts(self) -> tuple[str, ...]:
        """All its sentences, in order."""
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
    """A table with a row for each of ``items``, without the columns that hold nothing; ``options``: of ``Table``."""
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
    """Those that have a row."""
    return tuple(block for block in made if block.rows)


def notes(*texts: str, detail: bool = False) -> tuple[Text, ...]:
    """A paragraph for each text that is not empty."""
    return tuple(Text(text, detail) for text in texts if text)


# What stands in an advice.


_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})(\w*)\s*$")
_SPAN = re.compile(r"`([^`]+)`")


class Paragraph(Struct, frozen=True, kw_only=True):
    """A paragraph (lines joined by spaces), or code as it was written (``is_code``)."""

    text: str
    is_code: bool
    language: str = ""

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """(text, is code) of a paragraph: what stands between single backticks is code."""
        for index, piece in enumerate(_SPAN.split(self.text)):
            if piece:
                yield piece, bool(index % 2)


def paragraphs(advice: str) -> Iterator[Paragraph]:
    """The paragraphs of ``advice`` and its code: fenced (closed or not), or indented by four spaces."""
    prose: list[str] = []
    code: list[str] = []
    language: str | None = None
    for line in advice.splitlines():
        fence = _FENCE.match(line)
        if language is not None:  # inside a fence, where every line but its end is code
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
