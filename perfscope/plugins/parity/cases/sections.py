"""Several comparisons as a table."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.dashboards.report.blocks import Badge, Column, Listing, Report, Section, table, tables
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.plugins.parity.cases.document import Case, Cases
from perfscope.plugins.parity.document import Row, SideSummary
from perfscope.plugins.parity.sections import divergence_lines, error_text, side_text

_BADGES = {"same": Badge("same"), "diverges": Badge("PARTS", "worse"), "not run": Badge("not run")}
_FEW_LINES = 12


def render_text(document: Cases, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The document for a terminal."""
    return report_text(report_of(document), width=width, color=color, verbose=verbose)


def report_of(document: Cases) -> Report:
    """The document as blocks."""
    return Report(headline=_headline(document), facts=tuple(_facts(document)), sections=tuple(_sections(document)))


def _headline(document: Cases) -> str:
    what = "regimes of inputs" if document.kind == "inputs" else "pairs"
    ran = [case for case in document.cases if case.verdict in ("same", "diverges")]
    parted = [case for case in ran if case.verdict == "diverges"]
    if not parted:
        return f"the same in all of {len(ran)} {what}, within what rounding explains"
    first = parted[0]
    at = f", first at {_name(first.first.row)}" if first.first is not None else ""
    return f"A and B part in {len(parted)} of {len(ran)} {what}: {', '.join(case.name for case in parted[:4])}{at}"


def _facts(document: Cases) -> Iterator[str]:
    for name, side in zip("AB", document.sides, strict=False) if document.kind == "inputs" else ():
        yield f"{name} {side.source}: {side_text(side)}"
    yield from document.notes


def _sections(document: Cases) -> Iterator[Section]:
    columns: list[Column[Case]] = [
        Column("", lambda case: _BADGES.get(case.verdict, Badge("-"))),
        Column("inputs" if document.kind == "inputs" else "pair", lambda case: case.name, "code"),
        Column("values", lambda case: str(case.values) if case.values else ""),
        Column("error", lambda case: "" if _row(case) is None else error_text(case.error)),
        Column("explained", lambda case: "" if (row := _row(case)) is None else error_text(row.expected)),
        Column("at", lambda case: case.reason or ("" if (row := _row(case)) is None else _name(row)), "text"),
        Column("in A", lambda case: "" if (row := _row(case)) is None else _place(row.op_a, row.line_a), "place", 2),
        Column("in B", lambda case: "" if (row := _row(case)) is None else _place(row.op_b, row.line_b), "place", 1),
    ]
    title = "First value that parts, else the one nearest to its bound"
    yield Section(title=title, blocks=tables(table(columns, document.cases, few=40)))
    if document.kind == "backends":
        sides: list[Column[SideSummary]] = [
            Column("side", lambda side: side.source, "code"), Column("", side_text),
        ]  # fmt: skip
        yield Section(title="Sides", blocks=tables(table(sides, document.sides, few=40)), detail=True)
    parted: dict[tuple[str, ...], list[str]] = {}
    for case in document.cases:
        if case.first is not None:
            parted.setdefault(tuple(divergence_lines(case.first)), []).append(case.name)
    for lines, names in parted.items():
        yield Section(title=f"First divergence: {', '.join(names)}", blocks=(Listing(items=lines, few=_FEW_LINES),))


def _row(case: Case) -> Row | None:
    return case.first.row if case.first is not None else case.worst


def _name(row: Row) -> str:
    return row.name if row.kind == "activation" else f"{row.kind} of {row.name}"


def _place(op: str, line: str) -> str:
    return f"{op} at {line}" if op and line else op or line
