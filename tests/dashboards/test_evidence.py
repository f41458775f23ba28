"""Evidence as people read it: a moment of a trace's clock is counted from where that trace begins."""

from __future__ import annotations

from dataclasses import replace

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.dashboards.reports.evidence import evidence_cell, evidence_header, evidence_headers, shown_rows
from perfscope.dashboards.reports.summary import summarize
from perfscope.model.finding import Cell
from tests.build import TraceBuilder

EPOCH_NS = 1_700_000_000_000_000_000


def test_a_moment_is_counted_from_the_beginning_of_its_trace() -> None:
    rows: list[dict[str, Cell]] = [
        {"source": "rank 0", "start_ns": EPOCH_NS + 1_500, "idle_ns": 20},
        {"source": "rank 3", "start_ns": EPOCH_NS + 9_500, "idle_ns": 10},
    ]
    found = shown_rows(rows, {"rank 0": EPOCH_NS, "rank 3": EPOCH_NS + 9_000})
    assert [list(row.items()) for row in found] == [
        [("source", "rank 0"), ("since_start_ns", 1_500), ("idle_ns", 20)],
        [("source", "rank 3"), ("since_start_ns", 500), ("idle_ns", 10)],
    ]
    assert (evidence_header("since_start_ns"), evidence_cell("since_start_ns", 1_500)) == ("since start", "1.50 us")


def test_columns_that_would_be_called_the_same_say_what_they_count() -> None:
    keys = ("at", "saved_ns", "launches", "saved_bytes", "moved_bytes")
    assert list(evidence_headers(keys).values()) == ["at", "saved time", "launches", "saved bytes", "moved"]


def test_without_a_known_beginning_no_moment_is_shown() -> None:
    assert shown_rows([{"start_ns": EPOCH_NS, "idle_ns": 20}], {}) == ({"idle_ns": 20},)


def _stalled(begin: float, rank: int | None) -> TraceBuilder:
    build = TraceBuilder(rank=rank)
    build.launched("a", begin, begin + 5, begin + 1000, correlation=1)
    build.launched("b", begin + 2998, begin + 3001, begin + 4000, correlation=2)
    return build


def _since(found: Analysis) -> list[Cell]:
    (row,) = [one for one in summarize(found).findings if "while the host does something else" in one.title]
    return [cells["since_start_ns"] for cells in row.evidence]


def test_one_trace_and_several_count_alike() -> None:
    begin_us = 5e9
    assert _since(analyze(_stalled(begin_us, None).build())) == [1_000_000]
    ranks = [_stalled(begin_us, 0).build(), _stalled(begin_us + 50_000, 1).build()]
    assert _since(analyze(ranks)) == [1_000_000, 1_000_000]


def test_an_analysis_made_without_beginnings_is_still_shown() -> None:
    bare = replace(analyze(_stalled(0, None).build()), starts_ns=())
    (row,) = [one for one in summarize(bare).findings if "while the host does something else" in one.title]
    assert all("since_start_ns" not in cells and "start_ns" not in cells for cells in row.evidence)
