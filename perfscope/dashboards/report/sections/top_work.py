"""The costliest kernels, ops, modules and lines, in every report format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.analyzers.ops import NOT_KNOWN
from perfscope.dashboards.report.html_page import card, table
from perfscope.dashboards.report.markdown_text import code, escape, in_html, markdown_table
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfscope.analyzers.ops import Achieved, TopWork, Utilization, WorkRow

FIRST_ROWS = 5
"""Rows of the first table on one screen."""

MOST_ROWS = 20
"""Rows of each table where all is shown."""

NAME_LIMIT = 64
NAME_COLUMNS = (28, 60)
OP_COLUMNS = 14
PLACE_LIMIT = 36
PLACE_COLUMNS = (12, 30)
"""Least and most columns of a name or place in a terminal: of a place its end tells most."""

_NUMBERS = ("time", "share", "calls", "mean")
_RATES = ("TFLOP/s", "GB/s", "roofline")
_FROM = {"mean": 100, "TFLOP/s": 100, "GB/s": 100, "launched by": 130}
"""Columns of a terminal from which a column of the table is shown."""
NOT_COSTED = "not costed"

EXACT_SHARE = 0.99
"""Of the time of kernels that compute: with less of it costed the FLOPs are a lower bound."""

LEAST_COSTED = 0.5
"""With less, a lower bound of the MFU says nothing of the step."""

TERA, GIGA = 10**12, 10**9

_TITLES = {"kernels": "kernel", "ops": "op", "modules": "module", "lines": "source line"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTable:
    """One kind of work."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int
    """Columns of numbers after the name; places follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """What the work is of, and a table a kind; the first is the one to begin with."""

    title: str
    tables: tuple[TopTable, ...]
    rates: str = ""
    """Sentence: how much of the work has a known cost."""


def top_view(top: TopWork | None) -> TopView | None:
    """``None`` where nothing is known. Kinds of which no name is known are left out."""
    if top is None or not top.total_ns:
        return None
    kinds = [(kind, getattr(top, kind)) for kind in _TITLES]
    tables = tuple(_table(kind, rows, top) for kind, rows in kinds if any(row.name != NOT_KNOWN for row in rows))
    if not tables:
        return None
    what = "ops of the host by the time in them alone" if top.on_host else "work of the devices"
    over = "mean of a step" if top.steps else "of the whole capture"
    title = f"{what}, {over}; shares of {format_ns(top.total_ns // max(1, top.steps))}"
    return TopView(title=title, tables=tables, rates=_rates_sentence(top))


def _rates_sentence(top: TopWork) -> str:
    known = top.costed_share
    rest = f"; {NOT_COSTED}: {100 * (1 - known):.1f}%" if known < 1 else ""
    return f"FLOPs and bytes modelled for {100 * known:.1f}% of this time{rest}" if known else ""


def utilization_sentences(top: TopWork | None) -> list[str]:
    """What the steps reached of a peak, for the head of a report; none where it is not known."""
    if top is None:
        return []
    return [
        f"MFU {'' if item.costed_share >= EXACT_SHARE else 'at least '}{100 * item.mfu:.1f}%{_with_repeats(item)} "
        f"(modelled; {item.dtype} dense peak of {item.device}, "
        f"{item.peak_flops / TERA:,.0f} TFLOP/s)"
        for item in top.utilization
        if item.costed_share >= LEAST_COSTED
    ]


def _with_repeats(item: Utilization) -> str:
    return f", {100 * item.hfu:.1f}% with recomputation" if item.repeated_flops else ""


def _table(kind: str, rows: tuple[WorkRow, ...], top: TopWork) -> TopTable:
    steps = max(1, top.steps)
    shown = rows[:MOST_ROWS]
    rates = _RATES if any(row.achieved.time_ns for row in shown) else ()
    places = ("line", "launched by") if kind == "kernels" else ()
    return TopTable(
        heads=(_TITLES[kind], *_NUMBERS, *rates, *places),
        rows=tuple(
            (*_row(row, top, steps), *(_rate_cells(row) if rates else ()), *(_place_cells(row) if places else ()))
            for row in shown
        ),
        numbers=len(_NUMBERS) + len(rates),
    )


def _row(row: WorkRow, top: TopWork, steps: int) -> tuple[str, ...]:
    per_step = row.calls / steps
    return (
        shorten(sanitize(row.name), NAME_LIMIT),
        format_ns(row.total_ns // steps),
        f"{100 * row.total_ns / top.total_ns:.1f}%",
        f"{per_step:,.0f}" if per_step == int(per_step) else f"{per_step:,.1f}",
        format_ns(row.total_ns // max(1, row.calls)),
    )


def _rate_cells(row: WorkRow) -> tuple[str, ...]:
    known = row.achieved
    if 2 * known.time_ns < row.total_ns:  # what is known does not stand for the row
        return ("", "", NOT_COSTED)
    share = known.roofline_share
    roof = "" if share is None else f"{100 * share:.1f}%"
    return (_rate(known.flops_per_s, TERA), _rate(known.bytes_per_s, GIGA), roof)


def _rate(value: float | None, unit: int) -> str:
    if value is None:
        return ""
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 0.1 else f"{scaled:.1g}"


def _place_cells(row: WorkRow) -> tuple[str, ...]:
    op = "" if row.op == NOT_KNOWN else shorten(sanitize(row.op), PLACE_LIMIT)
    return (place_end(sanitize(row.line), PLACE_LIMIT), op)


def top_text(view: TopView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """For a terminal: the first rows of the first table, all with ``verbose``."""
    tables = view.tables if verbose else view.tables[:1]
    for number, item in enumerate(tables):
        if number == 0:
            yield Padding(Text(f"top {item.heads[0]}s: {view.title}"), (0, 0, 0, 2))
            if view.rates:
                yield Padding(Text(view.rates, style="dim"), (0, 0, 0, 4))
        yield Padding(_grid(item, width, item.rows if verbose else item.rows[:FIRST_ROWS]), (0, 0, 0, 4))
        yield ""


def _grid(item: TopTable, width: int, rows: Sequence[tuple[str, ...]]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown = [column for column, head in enumerate(item.heads) if width >= _FROM.get(head, 0)]
    widest = {column: max(len(item.heads[column]), *(len(row[column]) for row in rows)) for column in shown[1:]}
    used = sum(2 + widest[column] for column in shown if 0 < column <= item.numbers)
    used += OP_COLUMNS + 2 if len(shown) > item.numbers + 2 else 0
    place = PLACE_COLUMNS[0] if "line" in item.heads else 0
    free = width - used - place - 8
    name = max(NAME_COLUMNS[0], min(NAME_COLUMNS[1], free, max(len(row[0]) for row in rows)))
    place = max(place, min(width - used - name - 8, PLACE_COLUMNS[1]))
    places = {"line": place, "launched by": OP_COLUMNS}
    for column in shown:
        head = item.heads[column]
        if column == 0:
            grid.add_column(head, no_wrap=True, overflow="ellipsis", max_width=name)
        elif column <= item.numbers:
            grid.add_column(head, justify="right", no_wrap=True, min_width=widest[column])
        else:
            grid.add_column(head, no_wrap=True, overflow="ellipsis", width=places[head])
    for row in rows:
        cells = [place_end(row[c], places[item.heads[c]]) if c > item.numbers else row[c] for c in shown]
        grid.add_row(*map(Text, cells))
    return grid


def top_markdown(view: TopView) -> str:
    """Folded away, one table a kind."""
    parts = [f"\n<details><summary>Where the work is: {in_html(view.title)}</summary>\n"]
    if view.rates:
        parts.append(escape(view.rates) + "\n")
    for item in view.tables:
        places = item.numbers + 1
        rows = [
            (code(row[0]), *row[1:places], *(code(cell) if cell else "" for cell in row[places:])) for row in item.rows
        ]
        sides = "l" + "r" * item.numbers + "l" * (len(item.heads) - places)
        parts.append(markdown_table(item.heads, rows, sides) + "\n")
    return "\n".join([*parts, "</details>\n"])


def top_card(view: TopView) -> str:
    """As a card; all tables but the first are folded."""
    drawn = []
    for number, item in enumerate(view.tables):
        body = table(_html_heads(item), (_html_row(item, row) for row in item.rows))
        drawn.append(body if number == 0 else f"<details><summary>by {item.heads[0]}</summary>{body}</details>")
    rates = f"<p>{escape_html(view.rates)}</p>" if view.rates else ""
    return card("Where the work is", f"<p>{escape_html(view.title)}</p>{rates}{''.join(drawn)}")


def _html_row(item: TopTable, row: tuple[str, ...]) -> str:
    numbers = "".join(f'<td class="n">{escape_html(cell)}</td>' for cell in row[1 : item.numbers + 1])
    places = "".join(f"<td><code>{escape_html(cell)}</code></td>" for cell in row[item.numbers + 1 :])
    return f"<tr><td><code>{escape_html(row[0])}</code></td>{numbers}{places}</tr>"


def _html_heads(item: TopTable) -> list[str]:
    numbers = [f'<th class="n">{head}</th>' for head in item.heads[1 : item.numbers + 1]]
    return [f"<th>{item.heads[0]}</th>", *numbers, *(f"<th>{head}</th>" for head in item.heads[item.numbers + 1 :])]


def top_document(top: TopWork | None) -> dict[str, Any] | None:
    """For the JSON report. Rates are per second, shares of 1."""
    if top is None:
        return None
    document = asdict(top)
    for kind in _TITLES:
        for item, row in zip(document[kind], getattr(top, kind), strict=True):
            item["achieved"] = _achieved(row.achieved)
    document["achieved"], document["costed_share"] = _achieved(top.achieved), top.costed_share
    document["utilization"] = [
        {**asdict(item), "costed_share": item.costed_share, "mfu": item.mfu, "hfu": item.hfu}
        for item in top.utilization
    ]
    return document


def _achieved(known: Achieved) -> dict[str, Any] | None:
    if not known.time_ns:
        return None
    return {
        **asdict(known),
        "flops_per_s": known.flops_per_s,
        "bytes_per_s": known.bytes_per_s,
        "roofline_share": known.roofline_share,
    }
