"""Result tables of two analyses: rows are matched by key, and only their differences are reported."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.compare.runs import result_tables
from perfscope.analyzers.compare.runs.result_tables import table_changes
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.dashboards.report.compare.sections import detail_sections
from perfscope.model.documents.comparison import Document, Side, TableChange
from perfscope.model.results import Column, ResultRows, ResultTable
from tests.build import TraceBuilder, replace

TABLE: ResultTable[dict[str, Any]] = ResultTable(
    name="layers",
    doc="Layers.",
    columns=(
        Column("layer", str, "code", "layer", "key"),
        Column("part", str | None, "text", "part of it", "key"),
        Column("time_ns", int, "ns", "time"),
        Column("share", dict[str, float], "share", "shares"),
        Column("line", str, "code", "line"),
    ),
    rows=lambda trace: (),
)


def row(layer: str, time_ns: float, *, rank: int = 0, part: str | None = None, **more: Any) -> dict[str, Any]:
    shares = {"share": {"half": 0.5}, "line": "model.py:3"} | more
    return {"source": 0, "rank": rank, "layer": layer, "part": part, "time_ns": time_ns, **shares}


def analysis(*rows: dict[str, Any]) -> Analysis:
    made: Analysis = replace(analyze([TraceBuilder().build()]), tables={"layers": ResultRows(rows=rows)})
    return made


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "result_table", {"layers": TABLE}.__getitem__)


def changed(base: Analysis, head: Analysis) -> list[tuple[str, str, Any, Any]]:
    (found,) = table_changes(base, head)
    return [(value.row, value.column, value.base, value.head) for value in found.changes]


def test_rows_are_matched_by_key_and_not_by_place() -> None:
    base = analysis(row("a", 100), row("b", 200), row("gone", 1))
    head = analysis(row("new", 1), row("new too", 1), row("b", 400), row("a", 100))
    (found,) = table_changes(base, head)
    assert (found.added, found.removed) == (2, 1)
    assert changed(base, head) == [("b", "time", 200, 400)]


def test_the_largest_relative_change_is_first_and_small_ones_are_left_out() -> None:
    base = analysis(row("a", 100), row("b", 1000), row("c", 100), row("d", 100))
    head = analysis(row("a", 101), row("b", 1100), row("c", 50), row("d", 100, line="model.py:9"))
    assert [(where, column) for where, column, _, _ in changed(base, head)] == [
        ("d", "line"),
        ("c", "time"),
        ("b", "time"),
    ]


def test_a_map_has_a_value_per_key() -> None:
    base, head = analysis(row("a", 1, part="x")), analysis(row("a", 1, part="x", share={"half": 0.25, "bf16": 0.1}))
    assert changed(base, head) == [("a · x", "share bf16", None, 0.1), ("a · x", "share half", 0.5, 0.25)]


def test_ranks_are_compared_with_themselves_if_both_sides_have_several() -> None:
    several = analysis(row("a", 100), row("a", 300, rank=1))
    slower = analysis(row("a", 100), row("a", 900, rank=1))
    assert changed(several, slower) == [("rank 1 · a", "time", 300, 900)]
    assert table_changes(several, analysis(row("a", 100))) == ()


def test_equal_tables_and_a_number_that_is_none_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table_changes(analysis(row("a", 100)), analysis(row("a", 100))) == ()
    assert table_changes(analysis(row("a", float("nan"))), analysis(row("a", float("nan")))) == ()
    monkeypatch.setattr(result_tables, "MOST_CHANGES", 1)
    (found,) = table_changes(analysis(row("a", 1), row("b", 1)), analysis(row("a", 9), row("b", 9)))
    assert (len(found.changes), found.changes_left) == (1, 1)


def test_the_report_has_the_values_with_their_units() -> None:
    tables = table_changes(analysis(row("a", 1_000)), analysis(row("a", 3_000), row("b", 1)))
    assert isinstance(tables[0], TableChange)
    document = Document(
        schema="perfscope.compare/1", headline="not judged", summary="", base=Side(), head=Side(), metrics=(),
        tables=tables,
    )  # fmt: skip
    (section,) = [section for section in detail_sections(document) if section.title == "Layers"]
    assert section.summary == "1 row only in head"
    (block,) = section.blocks
    (cells,) = block.rows  # type: ignore[union-attr]
    assert [getattr(cell, "value", cell) for cell in cells] == ["a", "time", 1_000, 3_000]
