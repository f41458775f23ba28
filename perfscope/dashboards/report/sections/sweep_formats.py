"""A sweep on a terminal: what follows from it, and every variant with the front marked."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.html_page import page
from perfscope.dashboards.report.sections.sweep import choice_words, dump, facts, headline, rows_of, step_words, words
from perfscope.dashboards.report.text_page import WIDTH, printed
from perfscope.dashboards.report.text_tables import hanging
from perfscope.model.units import format_bytes, format_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.dashboards.report.sections.sweep import Sweep, SweepRow, SweptVariant


def render_text(sweep: Sweep, *, width: int = WIDTH, color: bool = False) -> str:
    """The sweep as text for ``width`` columns."""
    return printed(lambda columns: _parts(sweep), width=width, color=color)


def _parts(sweep: Sweep) -> Iterator[RenderableType]:
    yield Text(f"perfscope: {headline(sweep)}", style="bold")
    yield from (Padding(Text(fact), (0, 0, 0, 2)) for fact in facts(sweep))
    if sweep.said:
        yield ""
        yield from (hanging(one) for one in sweep.said)
    yield ""
    yield _table(sweep)
    if sweep.notes:
        yield ""
        yield from (hanging(note) for note in sweep.notes)


def _table(sweep: Sweep) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for axis in sweep.axes:
        table.add_column(axis.name, justify="right" if axis.kind == "size" else "left", no_wrap=True)
    for name in ("step, modelled", "peak", "of memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    apart = [at for at, axis in enumerate(sweep.axes) if axis.kind != "choice"]
    last: tuple[str, ...] | None = None
    for row in rows_of(sweep):
        group = tuple(row.settings[at] for at in apart)
        if last is not None and group != last and len(apart) < len(sweep.axes):
            table.add_row()
        last = group
        cells = (">" if row.on_front else "", *row.settings, row.step, row.peak, row.share, row.fits, row.note)
        table.add_row(*map(Text, cells), style="bold" if row.on_front else "")
    return Padding(table, (0, 0, 0, 2))


# The picture of a sweep as inline SVG: peak upwards, modelled time to the right, both on logarithms.
#
# A choice has a colour; its sizes are joined by a line. Places along the width are percentages, so that words keep
# their size on a phone.


COLORS = ("#3f7fd6", "#e0892b", "#2e9c7a", "#9465c2", "#c8486b", "#7a8a2a", "#4aa3b5", "#8a6d4f")
TOO_MUCH = "#9aa3af"
_TOP, _BOTTOM = 24, 300
_LEFT, _RIGHT = 13.0, 96.0

STYLE = """
.ps-sweep{display:block;overflow:visible;width:100%;height:334px;margin:4px 0 10px}
.ps-sweep text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
.ps-sweep .ps-grid{stroke:var(--line)}
.ps-sweep .ps-memory{stroke:var(--high);stroke-dasharray:6 4}
.ps-sweep .ps-reach{stroke-width:2px;stroke-opacity:.35}
.ps-sweep .ps-join{stroke-width:1px;stroke-opacity:.5;stroke-dasharray:2 3}
.ps-sweep .ps-front{fill:none;stroke:var(--ink);stroke-width:2px}
.ps-sweep-key{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 6px;padding:0;list-style:none}
.ps-sweep-key svg{vertical-align:-1px}
.mark{font-weight:650}
"""


def colors_of(sweep: Sweep) -> dict[str, str]:
    """Choice -> colour, in the order of the variants; beyond eight they come again."""
    names = dict.fromkeys(choice_words(sweep, one) for one in sweep.variants)
    return {name: COLORS[at % len(COLORS)] for at, name in enumerate(names)}


def drawn(sweep: Sweep) -> list[int]:
    """Numbers of the variants that have a place in the picture."""
    return [number for number, one in enumerate(sweep.variants) if one.step_ns and one.peak_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Where a time and a peak lie: logarithms between the least and the most."""

    quick: float
    slow: float
    lean: float
    full: float

    def across(self, ns: float) -> float:
        """Percent of the width."""
        return _LEFT + (_RIGHT - _LEFT) * (log(max(ns, 1)) - log(self.quick)) / (log(self.slow) - log(self.quick))

    def down(self, size: float) -> float:
        """Pixels from the top."""
        return _BOTTOM - (_BOTTOM - _TOP) * (log(max(size, 1)) - log(self.lean)) / (log(self.full) - log(self.lean))


def sweep_picture(sweep: Sweep) -> str:
    """The picture; ``''`` where no variant has both a time and a peak."""
    shown = [sweep.variants[number] for number in drawn(sweep)]
    if not shown:
        return ""
    peaks = [one.peak_bytes or 1 for one in shown]
    memories = [size for size in sorted({one.memory_bytes or 0 for one in shown}) if 0 < size <= 4 * max(peaks)]
    scale = _Scale(
        quick=min(one.step_low_ns or 1 for one in shown) / 1.3,
        slow=max(one.step_high_ns or 1 for one in shown) * 1.3,
        lean=min(peaks) / 1.5,
        full=max([*peaks, *memories]) * 1.3,
    )
    shapes = list(_grid(scale))
    for memory in memories:
        y = scale.down(memory)
        shapes.append(f'<line class="ps-memory" x1="{_LEFT}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="100%" y="{y - 5:.1f}" text-anchor="end">memory: {format_bytes(memory)}</text>')
    colors = colors_of(sweep)
    shapes += _joins(sweep, colors, scale)
    for number in drawn(sweep):
        one = sweep.variants[number]
        shapes += _point(one, words(sweep, number), colors[choice_words(sweep, one)], scale)
    said = f"{len(shown)} variants: peak of memory against modelled time of a step; the table has the numbers"
    return f'<svg class="ps-sweep" role="img" aria-label="{escape(said)}">{"".join(shapes)}</svg>'


def key_of(sweep: Sweep) -> str:
    """Which colour is which choice; ``''`` where there is but one."""
    colors = colors_of(sweep)
    if len(colors) < 2:
        return ""
    items = "".join(
        f'<li><svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="5" fill="{color}"/></svg> '
        f"{escape(name)}</li>"
        for name, color in colors.items()
    )
    return f'<ul class="ps-sweep-key">{items}</ul>'


def _grid(scale: _Scale) -> Iterator[str]:
    for size in _spread([2**power for power in range(63) if scale.lean <= 2**power <= scale.full], 6):
        y = scale.down(size)
        yield f'<line class="ps-grid" x1="{_LEFT}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 1:.1f}%" y="{y + 4:.1f}" text-anchor="end">{format_bytes(size)}</text>'
    round_times = [first * 10**power for power in range(18) for first in (1, 2, 5)]
    for ns in _spread([one for one in round_times if scale.quick <= one <= scale.slow], 4):
        x = scale.across(ns)
        yield f'<line class="ps-grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_TOP}" y2="{_BOTTOM}"/>'
        yield f'<text x="{x:.2f}%" y="{_BOTTOM + 18}" text-anchor="middle">{format_ns(ns)}</text>'


def _spread(values: list[int], most: int) -> list[int]:
    """Every n-th, so that no more than ``most`` are left."""
    return values[:: max(1, -(-len(values) // most))]


def _joins(sweep: Sweep, colors: dict[str, str], scale: _Scale) -> Iterator[str]:
    """Lines through the sizes of each choice."""
    lines: dict[str, list[SweptVariant]] = {}
    for number in drawn(sweep):
        lines.setdefault(choice_words(sweep, sweep.variants[number]), []).append(sweep.variants[number])
    if not any(axis.kind == "size" for axis in sweep.axes):
        return
    for name, line in lines.items():
        for one, other in pairwise(line):
            ends = [(scale.across(end.step_ns or 1), scale.down(end.peak_bytes or 1)) for end in (one, other)]
            yield (
                f'<line class="ps-join" stroke="{colors[name]}" x1="{ends[0][0]:.2f}%" y1="{ends[0][1]:.1f}" '
                f'x2="{ends[1][0]:.2f}%" y2="{ends[1][1]:.1f}"/>'
            )


def _point(one: SweptVariant, name: str, color: str, scale: _Scale) -> Iterator[str]:
    y, x = scale.down(one.peak_bytes or 1), scale.across(one.step_ns or 1)
    low, high = scale.across(one.step_low_ns or 1), scale.across(one.step_high_ns or 1)
    fill = TOO_MUCH if one.state == "does not fit" else color
    title = f"{name}: {step_words(one)}, {format_bytes(one.peak_bytes or 0)}" + (
        ", does not fit" if one.state == "does not fit" else ", front" if one.on_front else ""
    )
    yield f'<line class="ps-reach" stroke="{fill}" x1="{low:.2f}%" x2="{high:.2f}%" y1="{y:.1f}" y2="{y:.1f}"/>'
    if one.on_front:
        yield f'<circle class="ps-front" cx="{x:.2f}%" cy="{y:.1f}" r="8"/>'
    yield f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="5" fill="{fill}"><title>{escape(title)}</title></circle>'


# A sweep as one HTML file: opens offline, loads nothing, reads well on a phone.


_NUMBERS = ("step, modelled", "peak", "of memory")


def render_html(sweep: Sweep) -> str:
    """The page. Every text is escaped; the policy forbids any request."""
    data = dump(sweep).decode().replace("<", "\\u003c")
    return page(_page(sweep), title=headline(sweep), data_id="perfscope-sweep", data=data, style=STYLE)


def _page(sweep: Sweep) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(headline(sweep))}</span></h1>"
    yield f'<p class="sub">{" · ".join(escape(fact) for fact in facts(sweep))}</p></header>'
    if sweep.said:
        items = "".join(f"<li>{escape(one)}</li>" for one in sweep.said)
        yield f'<section class="card"><h2>What follows</h2><ul>{items}</ul></section>'
    picture = sweep_picture(sweep)
    if picture:
        yield '<section class="card"><h2>Peak against modelled time</h2>'
        yield (
            '<p class="note">Upwards: the peak of one device. To the right: the modelled time of a step; a bar reaches '
            "from all peaks of the vendor reached to what kernels usually reach. Ringed: the front, which nothing that "
            "does the same work beats. Grey: it does not fit.</p>"
        )
        yield key_of(sweep) + picture + "</section>"
    yield '<section class="card"><h2>Variants</h2><div class="scroll"><table class="stacks">'
    yield _head(sweep)
    yield "<tbody>" + "".join(_row(sweep, row) for row in rows_of(sweep)) + "</tbody></table></div></section>"
    if sweep.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in sweep.notes)
        yield f'<section class="card unseen"><h2>How it is known</h2><ul>{items}</ul></section>'


def _columns(sweep: Sweep) -> tuple[str, ...]:
    return (*(axis.name for axis in sweep.axes), *_NUMBERS, "fits", "note")


def _head(sweep: Sweep) -> str:
    heads = "".join(
        f'<th scope="col"{" class=n" if name in _NUMBERS else ""}>{escape(name)}</th>' for name in _columns(sweep)
    )
    return f"<thead><tr>{heads}</tr></thead>"


def _row(sweep: Sweep, row: SweepRow) -> str:
    chip = ' <span class="chip ok">front</span>' if row.on_front else ""
    note = row.note.removeprefix("front").removeprefix("; ")
    cells = [*map(escape, row.settings), row.step, row.peak, row.share, row.fits, escape(note) + chip]
    names = _columns(sweep)
    body = "".join(
        f'<td data-name="{escape(name)}" class="{"n" if name in _NUMBERS else "t" if at == 0 else ""}">{cell}</td>'
        for at, (name, cell) in enumerate(zip(names, cells, strict=True))
    )
    return f"<tr{' class=mark' if row.on_front else ''}>{body}</tr>"
