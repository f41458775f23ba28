"""Comparison of two models: where they first diverge, and the errors of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.dashboards.report.blocks import (
    Badge,
    Block,
    Column,
    Listing,
    Report,
    Section,
    Table,
    Text,
    table,
    tables,
)
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.plugins.parity.document import Divergence, Mapping, OptimizerSetting, Parity, Row, SideSummary

FEW_ROWS = 8
SECTIONS = (
    ("Weights of B against A's", "weight"),
    ("Activations, in the order of the forward", "activation"),
    ("Gradients, in the order of the backward", "gradient"),
    ("Gradients of weights", "weight gradient"),
    ("Updates of weights by one step of the optimizers", "update"),
)


def render_text(document: Parity, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The document for a terminal."""
    return report_text(report_of(document), width=width, color=color, verbose=verbose)


def report_of(document: Parity) -> Report:
    """The document as blocks."""
    return Report(headline=headline(document), facts=tuple(_facts(document)), sections=tuple(_sections(document)))


def headline(document: Parity) -> str:
    """The verdict in a sentence."""
    if document.verdict == "not compared":
        return "no layer of A has a counterpart in B: nothing was compared"
    if document.first is None:
        judged = sum(not row.regrouped for row in document.rows)
        count = f"{judged} value{'' if judged == 1 else 's'}"
        return f"A and B compute the same: {count} within what rounding explains"
    row = document.first.row
    return f"A and B part at {row.name}: {_what(row)}"


def _what(row: Row) -> str:
    what = "its output" if row.kind == "activation" else f"its {row.kind}"
    error = max((error for error in (row.error_a, row.error_b) if error is not None), default=None)
    if row.remark and (error is None or row.kind == "update"):
        return f"{what}: {row.remark}"
    return f"{what} differs by {error or 0.0:.1e}, rounding explains {row.expected:.1e}"


def _facts(document: Parity) -> Iterator[str]:
    for name, side in (("A", document.a), ("B", document.b)):
        yield f"{name} {side.source}: {side_text(side)}"
    yield f"errors are relative to {document.reference}"


def side_text(side: SideSummary) -> str:
    """Framework, dtype, device and size of a side."""
    return f"{side.framework} {side.version}, {side.dtype} on {side.device}, {side.layers} layers recorded"


def _sections(document: Parity) -> Iterator[Section]:
    lines = () if document.first is None else tuple(divergence_lines(document.first))
    if lines:
        yield Section(title="First divergence", blocks=(Listing(items=lines, few=12),))
    noise = document.first is not None and document.first.row.kind == "activation"
    for title, kind in SECTIONS:
        rows = [row for row in document.rows if row.kind == kind]
        if rows:  # differing gradients of activations mean little
            detail = noise and kind in ("gradient", "weight gradient")
            yield Section(title=title, summary=_summary(rows), blocks=tables(_table(rows)), detail=detail)
    for group in document.optimizers:
        differ = sum(not each.same for each in group.settings)
        count = f"{len(group.weights)} weight{'' if len(group.weights) == 1 else 's'}"
        title = f"Optimizers of {count}: {', '.join(group.weights[:2])}{', ...' if len(group.weights) > 2 else ''}"
        blocks = tables(table(_SETTINGS, group.settings, few=12))
        yield Section(title=title, summary="" if differ else "equal in all settings", blocks=blocks, detail=not differ)
    if document.unmatched_a or document.unmatched_b:
        items = [
            f"{name}: {', '.join(names)}"
            for name, names in (("A", document.unmatched_a), ("B", document.unmatched_b))
            if names
        ]
        lead = Text("An error in one of them shows in the next layer that both have.")
        yield Section(title="Layers of one side only", blocks=(lead, Listing(items=tuple(items))), detail=True)
    if document.notes:
        yield Section(title="Notes", blocks=(Listing(items=document.notes),))
    yield Section(title="Method", blocks=tuple(_method(document)), detail=True)


_SETTINGS: list[Column[OptimizerSetting]] = [
    Column("", lambda each: Badge("same") if each.same else Badge("DIFFERS", "worse")),
    Column("setting, measured", lambda each: each.name),
    Column("A", lambda each: each.a),
    Column("B", lambda each: each.b),
]


def divergence_lines(first: Divergence) -> Iterator[str]:
    """Lines on the first layer in which the sides differ."""
    row = first.row
    for name, op, line in (("A", row.op_a, row.line_a), ("B", row.op_b, row.line_b)):
        if op:
            yield f"in {name} it is {op}{f' at {line}' if line else ''}"
    if row.kind == "activation":
        yield f"the last layer that agrees is {first.after}" if first.after else "no layer before it agrees"
    if first.common_a or first.common_b:
        yield f"both still have the result of {first.common_a} (A) and {first.common_b} (B)"
    if first.next_a or first.next_b:
        word = "then" if first.common_a else "from there"
        yield f"{word} A goes on with {first.next_a or 'nothing'}, B with {first.next_b or 'nothing'}"
    if first.lines_a or first.lines_b:
        what = "results that the other side lacks" if first.exact else "lines that may hold the difference"
        sides = (("A", first.lines_a), ("B", first.lines_b))
        yield f"{what}: {'; '.join(f'{name} at {_places(lines)}' for name, lines in sides if lines)}"
    if not first.exact:
        yield f"in {row.dtype} norms and sums do not tell ops apart: compare in float32 to narrow it down"
    if row.remark:
        yield row.remark


def _places(lines: Sequence[str]) -> str:
    """``llama.py:17, :18, rope.py:3``: the file once for lines of one file in a row."""
    texts, file = [], ""
    for line in lines:
        name, _, number = line.rpartition(":")
        texts.append(f":{number}" if name == file else line)
        file = name
    return ", ".join(texts)


def _summary(rows: Sequence[Row]) -> str:
    wrong, regrouped = sum(row.diverges for row in rows), sum(row.regrouped for row in rows)
    judged = len(rows) - regrouped
    if wrong and rows[0].kind == "update":
        return f"{wrong} of {judged} differ, by their size or by a setting"
    text = (
        f"{wrong} of {judged} beyond what rounding explains" if wrong else f"all {judged} within what rounding explains"
    )
    if regrouped:
        text += f"; {regrouped} more computed in another order ('later'): one side has their value at a later op"
    return text


def _table(rows: Sequence[Row]) -> Table:
    columns: list[Column[Row]] = [
        Column("", _badge),
        Column("layer", lambda row: row.name, "code"),
        Column("error A", lambda row: error_text(row.error_a)),
        Column("error B", lambda row: error_text(row.error_b)),
        Column("expected", lambda row: error_text(row.expected)),
        Column("cosine", lambda row: "" if row.cosine is None else f"{row.cosine:.6f}", "text", 2),
        Column("max ulp", lambda row: "" if row.max_ulp is None else f"{row.max_ulp:.3g}", "text", 3),
        Column("in A", lambda row: row.line_a, "place", 4),
        Column("in B", lambda row: row.line_b, "place", 1),
    ]
    first = next((index for index, row in enumerate(rows) if row.diverges), 0)
    return table(columns, [*rows[first:], *rows[:first]], few=FEW_ROWS)


def _badge(row: Row) -> Badge:
    if row.diverges:
        return Badge("PARTS", "worse")
    return Badge("later" if row.regrouped else "same")


def error_text(error: float | None) -> str:
    """A relative error, ``-`` for ``None``."""
    return "-" if error is None else f"{error:.1e}"


def _method(document: Parity) -> Iterator[Block]:
    yield Text(
        "Errors are norms of differences over the norm of the reference. Expected error of the side that is not "
        "the reference: 2 sqrt(r u^2 + n v^2) for r ops that round and n terms of reductions since the layer before "
        "(Higham and Mary 2019), and 8 times the other side's error; u is the unit roundoff of the dtype, v that of "
        "sums."
    )
    columns: list[Column[Mapping]] = [
        Column("weight of A", lambda mapping: mapping.a, "code"),
        Column("weight of B", lambda mapping: mapping.b, "code"),
        Column("layout", lambda mapping: mapping.layout),
        Column("matched by", lambda mapping: mapping.by),
    ]
    yield from tables(table(columns, document.mappings, few=200))
