"""A comparison on one screen of a terminal: the verdict, what changed and where, the step in parts, the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.analyzers.units import format_ns
from perfscope.dashboards.reports.compare_rows import (
    BY_TIME,
    FINDING_WORDS,
    cause_row,
    change,
    finding_counts,
    headline,
    kinds,
    not_looked,
    part_words,
    percent,
    signed_ns,
    title,
    value,
    verdict,
)
from perfscope.dashboards.reports.summary import tail
from perfscope.dashboards.reports.text_page import WIDTH, printed
from perfscope.dashboards.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.compare.causes import Cause
    from perfscope.analyzers.compare.change import StepChange
    from perfscope.analyzers.compare.comparison import Comparison
    from perfscope.analyzers.compare.findings import FindingChange
    from perfscope.analyzers.compare.ranks import TimeChange


MOST_CAUSES = 8
"""Places on the one screen; a change of the program touches a few, a new version of a library hundreds."""
MOST_PARTS = 8
MOST_FINDINGS = 12
MOST_RANKS = 16

PLACE_SHARE = 36
"""Percent of the width for a place: cut at its beginning, never folded."""

_STYLES = {"regression": "bold red", "improvement": "green", "inconclusive": "yellow"}


def render(comparison: Comparison, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The comparison as text for ``width`` columns; ``verbose``: everything, not only what fits one screen."""
    return printed(lambda columns: _parts(comparison, columns, verbose=verbose), width=width, color=color)


def _parts(comparison: Comparison, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield _line("perfscope: ", headline(comparison), style=_STYLES.get(comparison.headline, "bold"))
    yield _line("  ", title(comparison))
    yield ""
    yield from _metrics(comparison, verbose=verbose)
    per = "step" if comparison.time is None else comparison.time.median.per
    yield from _causes(comparison.causes, width, per, verbose=verbose)
    if comparison.time is not None:
        yield from _time(comparison.time, verbose=verbose)
    yield from _findings(comparison.findings, verbose=verbose)
    blind = not_looked(comparison)
    if blind:
        yield "  could not look:"
        yield from (_line("    ", f"{names} ({reason})") for names, reason in blind)
    yield from (_line("  note: ", shown(note, 400)) for note in comparison.notes)


def _metrics(comparison: Comparison, *, verbose: bool) -> Iterator[RenderableType]:
    shown_ones = [one for one in comparison.metrics if verbose or not one.gates or one.verdict != "no change"]
    same = [shown(one.name) for one in comparison.metrics if one not in shown_ones]
    if shown_ones:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("metric", overflow="fold", ratio=1)
        for name in ("base", "head", "change"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for one in shown_ones:
            table.add_row(
                Text(shown(one.name)),
                Text(value(one, one.base)),
                Text(value(one, one.head)),
                Text(change(one)),
                Text(verdict(one), style=_STYLES.get(one.verdict, "") if one.gates else "dim"),
            )
        yield Padding(table, (0, 0, 0, 2))
    if same:
        yield _line("  no change: ", f"{', '.join(same)} ({len(same)})")
    yield ""


def _causes(found: Sequence[Cause], width: int, per: str, *, verbose: bool) -> Iterator[RenderableType]:
    exact = [one for one in found if one.exact]
    rows = exact if verbose else exact[:MOST_CAUSES]
    if not rows:
        yield "  nothing changed in what can be counted"
        yield ""
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where", no_wrap=True)
    table.add_column("what changed", overflow="fold", ratio=1)
    table.add_column(f"time a {per}", justify="right", no_wrap=True)
    for row in (cause_row(one, per) for one in rows):
        said = "\n".join(row.lines) + (f"\nand {row.left} more" if row.left else "")
        table.add_row(Text(tail(row.place, width * PLACE_SHARE // 100), style="bold"), Text(said), Text(row.time))
    yield Padding(table, (0, 0, 0, 2))
    if len(rows) < len(exact):
        yield f"  and {len(exact) - len(rows)} more places: -v shows all"
    yield ""


def _time(time: TimeChange, *, verbose: bool) -> Iterator[RenderableType]:
    step = time.median
    whose = "" if time.worst is None else f" of the rank in the middle ({_rank(step)})"
    of = "a step" if step.per == "step" else "in all"
    yield _line("  ", f"where the recorded time goes{whose}, {of}; parts sum to the whole exactly")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("part", overflow="fold")
    for name in ("base", "head", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, base, head in (*kinds(step), ("sum", step.base_ns, step.head_ns)):
        table.add_row(*map(Text, (name, format_ns(base), format_ns(head), signed_ns(head - base))))
    yield Padding(table, (0, 0, 0, 2))
    yield from _largest(step, verbose=verbose)
    if time.worst is not None:
        share = percent(time.worst.share)
        yield _line("  ", f"worst: {_rank(time.worst)}, {signed_ns(time.worst.delta_ns)} a {step.per} ({share})")
        rows = time.ranks if verbose else time.ranks[:MOST_RANKS]
        said = ", ".join(f"{one.rank}: {signed_ns(one.delta_ns)}" for one in rows)
        left = f" and {len(time.ranks) - len(rows)} more" if len(rows) < len(time.ranks) else ""
        yield _line("  change by rank: ", said + left)
    yield ""


def _largest(step: StepChange, *, verbose: bool) -> Iterator[RenderableType]:
    moved = [part for part in step.parts if part.delta_ns]
    rows = moved if verbose else moved[:MOST_PARTS]
    if not rows:
        return
    yield "  largest differences of measured time (one launch each: part of them is chance)"
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for part in rows:
        place = part.key().place()
        said = part_words(part, step.per) + (f"  {shown(place)}" if place else "")
        table.add_row(Text(signed_ns(part.delta_ns)), Text(said))
    yield Padding(table, (0, 0, 0, 4))
    if len(rows) < len(moved):
        rest = sum(part.delta_ns for part in moved[len(rows) :])
        yield f"    {signed_ns(rest)} in {len(moved) - len(rows)} other parts"


def _rank(step: StepChange) -> str:
    return shown(step.device) if step.rank is None else f"rank {step.rank}"


def _findings(found: Sequence[FindingChange], *, verbose: bool) -> Iterator[RenderableType]:
    yield _line("  findings: ", finding_counts(found))
    changed = [one for one in found if verbose or one.change != "unchanged"]
    rows = changed if verbose else changed[:MOST_FINDINGS]
    if rows:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one in rows:
            where = one.shown.where.label()
            place = f"\n{shown(where)}" if where != "-" else ""
            said = f"{one.rule.replace('_', '-')}: {shown(one.shown.title, 320)}{BY_TIME if one.by_time else ''}{place}"
            table.add_row(Text(FINDING_WORDS[one.change], style="bold"), Text(one.shown.severity), Text(said))
        yield Padding(table, (0, 0, 0, 4))
    if len(rows) < len(changed):
        yield f"    and {len(changed) - len(rows)} more: -v shows all"


def _line(lead: str, text: str, style: str = "") -> RenderableType:
    """A paragraph that hangs below its lead word."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style="bold" if style else ""), Text(text, style=style))
    return table
