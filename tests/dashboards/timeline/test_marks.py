"""Findings on the clock of the trace they are of, whatever order the traces were read in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.timeline.marks import marks
from perfscope.dashboards.views import Gathered, Job, Place, timeline
from perfscope.model.finding import Finding, Outcome, Where
from tests.build import TraceBuilder
from tests.dashboards.views.made import view_of

CLOCK_US = 5e9
"""Where recorded clocks stand: far from zero."""


def stalled(rank: int | None, idle_us: float, clock_us: float = CLOCK_US) -> TraceBuilder:
    """Two kernels with nothing between them while the host is in a checkpoint."""
    made = TraceBuilder(rank=rank, path=f"rank{rank}.json")
    made.launched("a", clock_us, clock_us + 5, clock_us + 1000, correlation=1)
    made.python("train.py(12): checkpoint", clock_us + 500, clock_us + 998 + idle_us)
    made.launched("b", clock_us + 998 + idle_us, clock_us + 1000 + idle_us, clock_us + 4000 + idle_us, correlation=2)
    return made


def _of(view: dict[str, Any], rule: str) -> dict[str, Any]:
    (found,) = [one for one in view["findings"] if one["rule"] == rule]
    return found


def test_a_piece_is_on_the_clock_of_its_trace(tmp_path: Path) -> None:
    made = stalled(None, 2000).build()
    mark = _of(view_of("timeline", [made], tmp_path), "launch-bound")
    start = int((CLOCK_US + 1000) * 1000)
    assert (mark["how"], mark["severity"]) == ("piece", "high")
    assert mark["spans"] == [[0, str(start), str(start + 2_000_000)]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_rank_has_its_own_pieces_in_whatever_order_it_was_read(tmp_path: Path, order: tuple[int, int]) -> None:
    idle, clock = {0: 2000.0, 1: 3000.0}, {0: CLOCK_US, 1: CLOCK_US + 70_000}
    traces = [stalled(rank, idle[rank], clock[rank]).build() for rank in order]
    spans = _of(view_of("timeline", traces, tmp_path), "launch-bound")["spans"]
    found = {order[number]: (int(start), int(end)) for number, start, end in spans}
    assert found == {
        rank: (round((clock[rank] + 1000) * 1000), round((clock[rank] + 1000 + idle[rank]) * 1000)) for rank in (0, 1)
    }


def test_the_page_of_findings_names_the_same_piece_and_rank(tmp_path: Path) -> None:
    traces = [stalled(rank, 2000 + 1000 * rank, CLOCK_US + 70_000 * rank).build() for rank in (0, 1)]
    (row,) = [one for one in view_of("findings", traces, tmp_path)["findings"] if one["rule"] == "launch-bound"]
    start = int((CLOCK_US + 70_000 + 1000) * 1000)
    said = "3.00 ms, 1.00 ms behind the start of rank 1"
    assert row["at"][0] == {"mark": f"1:{start}-{start + 3_000_000}", "said": said}
    assert row["at"][1]["mark"].startswith("0:")


def _marked(where: Where, folder: Path) -> list[dict[str, Any]]:
    """The marks of one finding that names no piece, on a trace with a line that runs three ops and one kernel."""
    made = TraceBuilder(rank=None)
    for at in range(3):
        begin = 100.0 + 600 * at
        made.python("train.py(30): read", begin, begin + 90)
        made.op("aten::item", begin + 10, begin + 20 * (at + 2))
    made.launched("gemm", 250, 255, 300, correlation=1)
    trace = made.build()
    place = Place(folder=folder, number=0)
    gathered = [Gathered(source=trace.source, place=place, held=timeline.gather(trace, place))]
    told = Finding(subject="s", title="t", severity="low", basis="structural", advice="a", where=where)
    outcome = Outcome(rule="host_sync", status="flagged", findings=(told,))
    analysis = replace(analyze(trace, rules=[]), outcomes=(outcome,))
    return marks(Job(analysis=analysis, traces=[trace], report={}, gathered=gathered, folder=folder))


def test_a_finding_without_pieces_is_where_its_line_runs(tmp_path: Path) -> None:
    (found,) = _marked(Where(file="train.py", line=30), tmp_path)
    assert found["how"] == "line"
    assert [(int(start) // 1000, int(end) // 1000) for _, start, end in found["spans"]] == [
        (1310, 1380), (710, 760), (110, 140),
    ]  # fmt: skip


def test_or_where_its_kernel_runs(tmp_path: Path) -> None:
    (found,) = _marked(Where(kernel="gemm", op="aten::item"), tmp_path)
    assert (found["how"], found["spans"]) == ("name", [[0, "255000", "300000"]])


def test_a_finding_of_nothing_that_was_recorded_has_no_mark(tmp_path: Path) -> None:
    assert _marked(Where(file="other.py", line=3, op="aten::relu"), tmp_path) == []
