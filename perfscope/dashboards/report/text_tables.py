"""Tables of sections on a terminal: the columns that fit, and lines that hang below them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.hot_rows import WORDS
from perfscope.model.untrusted_text import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType


# What text reports share: their width, and printing parts into a string that looks the same everywhere.


WIDTH = 110
"""Columns where no terminal tells its own: a log or a file looks the same everywhere."""

NARROWEST = 80
"""Below it the columns of a table have no room for words, and wrapping by the terminal reads better."""


def printed(parts: Callable[[int], Iterable[RenderableType]], *, width: int, color: bool) -> str:
    """The parts that ``parts(columns)`` gives, one below the other, without spaces at the ends of lines."""
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
    return "".join(f"{line.rstrip()}\n" for line in into.getvalue().splitlines())


_CUT = ("at", "source line", "scope", "lines", "mostly at", "module")
"""Columns that are cut at their beginning where all that is left is too wide still."""

NARROWEST_PLACE = 16

INDENT, GAP = 2, 2

_SHORT = {
    "program": "compiled program", "FLOPs a run": "FLOPs", "bytes a run": "bytes", "peak memory": "peak",
    "instructions": "instr.",
}  # fmt: skip


def fitting(rows: Sequence[Mapping[str, str]], give_way: Sequence[str], width: int) -> list[dict[str, str]]:
    """The columns that the width holds, and places cut to what is left for them."""
    widest = {name: max(len(_SHORT.get(name, name)), *(len(row[name]) for row in rows)) for name in rows[0]}
    kept = list(rows[0])

    def missing() -> int:
        return INDENT + sum(widest[text] + GAP for text in kept) - GAP - width

    for name in give_way:
        if missing() > 0 and name in kept:
            kept.remove(name)
    text = next((name for name in _CUT if name in kept), None)
    limit = 0 if text is None or missing() <= 0 else max(NARROWEST_PLACE, widest[text] - missing())
    return [{name: tail(row[name], limit) if limit and name == text else row[name] for name in kept} for row in rows]


def table_of(rows: Sequence[Mapping[str, str]]) -> RenderableType:
    """Rows of the same columns; words stand left, numbers right."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for head in rows[0]:
        left = head in WORDS
        table.add_column(_SHORT.get(head, head), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return Padding(table, (0, 0, 0, INDENT))


def hanging(text: str) -> RenderableType:
    """A paragraph below a table, indented and dim."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("    "), Text(text, style="dim"))
    return table


def tail(text: str, limit: int) -> str:
    """The last parts of a path that fit, marked as cut; other text is cut in the middle."""
    if len(text) <= limit:
        return text
    kept = text[-(limit - 2) :]
    return f"…{kept[kept.index('/') :]}" if "/" in kept else shorten(text, limit)
