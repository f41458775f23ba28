"""The first page: the share of the peak by hand, the interval of the median, what was not recorded."""

from __future__ import annotations

import re
from math import comb
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices import find_device
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.views import Gathered, Job, Place, findings, timeline
from perfscope.dashboards.web.views._not_recorded import RUN
from perfscope.dashboards.web.views.overview import median_interval, utilization_of
from perfscope.model.finding import Finding, Outcome, Span, Where
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.conftest import REPOSITORY
from tests.graphs import GraphBuilder
from tests.hlo_build import hlo_module, hlo_trace
from tests.memory.build import MemoryBuilder
from tests.web.views import view_of

H100 = "NVIDIA H100 80GB HBM3"
FLOPS = 10**9


def _made(device: str = H100, *, dtype: str = "bfloat16", again: bool = True, **more: Any) -> TraceBuilder:
    """A step of 1 ms with a product of a GFLOP, and the same once more as a recomputation."""
    graph = GraphBuilder(device="cuda")
    value = graph.input((8, 8), dtype)
    graph.op("mm", [value, value], flops=FLOPS)
    if again:
        graph.op("mm", [value, value], flops=FLOPS, recompute=True)
    made = TraceBuilder(op_graph=graph.graph(), **more)
    made.device(0, device)
    made.step(1, 0, 1000)
    made.kernel("gemm", 10, 90)
    return made


def test_mfu_is_the_arithmetic_at_the_peak_over_the_step(tmp_path: Path) -> None:
    peak = find_device(H100).peak_flops["bfloat16"]  # type: ignore[union-attr]
    used = utilization_of(_made().build())
    assert used is not None
    assert used.mfu == pytest.approx(FLOPS / peak / 1e-3)  # what runs again is not in it
    assert (used.exact, used.over) == (True, "the mean step while profiled")
    tiles = view_of("overview", [_made().build()], tmp_path)["parts"]["tiles"]
    assert f"{100 * used.mfu:.1f}%" in tiles
    assert "FLOPs modelled, time measured" in tiles


def test_mfu_is_over_the_step_without_a_profiler_where_there_is_one() -> None:
    traced = utilization_of(_made().build())
    free = utilization_of(_made(step_times_us=(500, 500, 500)).build())
    assert traced is not None
    assert free is not None
    assert free.mfu == pytest.approx(2 * traced.mfu)
    assert free.over == "the median step without a profiler"


@pytest.mark.parametrize("made", [_made("a device nobody knows"), _made(dtype="int64"), TraceBuilder()])
def test_no_mfu_where_no_peak_is_known(made: TraceBuilder, tmp_path: Path) -> None:
    assert utilization_of(made.build()) is None
    assert "MFU" not in view_of("overview", [made.build()], tmp_path)["parts"]["tiles"]


def test_mfu_of_ranks_is_their_mean_and_the_lowest_is_named(tmp_path: Path) -> None:
    traces = [_made(rank=0).build(), _made(rank=1, step_times_us=(4000,)).build()]
    low, high = sorted(used.mfu for trace in traces if (used := utilization_of(trace)) is not None)
    tiles = view_of("overview", traces, tmp_path)["parts"]["tiles"]
    assert f"{100 * (low + high) / 2:.1f}%" in tiles
    assert f"mean of 2, lowest {100 * low:.1f}% (rank 1)" in tiles


def test_the_interval_of_a_median_covers_as_often_as_it_says() -> None:
    for many in (6, 9, 20, 41, 100):
        low, high = median_interval(range(many))  # type: ignore[misc]
        outside = sum(comb(many, at) for at in range(low + 1)) / 2**many
        assert high == many - 1 - low
        assert 2 * outside <= 0.05 < 2 * (outside + comb(many, low + 1) / 2**many)


def test_too_few_steps_have_no_interval(tmp_path: Path) -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert view_of("overview", [_made().build()], tmp_path)["interval"] == ""
    said = view_of("overview", [_made(step_times_us=tuple(range(100, 110))).build()], tmp_path)["interval"]
    assert "95% interval of the median 101 us to 108 us (10 steps without a profiler" in said


def test_no_findings_says_how_many_rules_could_not_look(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.step(1, 0, 1000)
    made.launched("gemm", 0, 0, 1000, correlation=1)
    view = view_of("overview", [made.build()], tmp_path)
    assert view["first"] == []
    assert re.match(r"No findings: \d+ rules evaluated and clean, [1-9]\d* not evaluated", view["nothing"])
    assert view_of("findings", [made.build()], tmp_path / "more")["nothing"] == view["nothing"]


def test_what_this_run_could_not_record_says_why(tmp_path: Path) -> None:
    """The same command again would not have it either."""
    trace = TraceBuilder(recorded=EVERYTHING - {"op_graph"}).build()
    trace = msgspec.structs.replace(trace, why_no_step="the run has no op graph of a step: <b>its graphs are compiled")
    view = view_of("overview", [trace], tmp_path)
    (row,) = (row for row in view["missing"] if row["what"].startswith("the op graph"))
    assert row["command"] == ""
    assert "its graphs are compiled" in row["what"]


def test_missing_ranks_of_jax_are_no_torchrun(tmp_path: Path) -> None:
    for recorded, launcher in ((EVERYTHING, "torchrun"), (EVERYTHING | {"compile_events"}, "srun")):
        trace = TraceBuilder(recorded=recorded, rank=0).build()
        trace = msgspec.structs.replace(trace, source=msgspec.structs.replace(trace.source, world_size=4))
        view = view_of("overview", [trace], tmp_path / launcher)
        (row,) = (row for row in view["missing"] if row["what"] == "3 of 4 ranks")
        assert launcher in row["command"]


def test_what_the_detail_pass_recorded_is_there(tmp_path: Path) -> None:
    light = TraceBuilder(recorded=EVERYTHING - {"memory"}, detail=TraceBuilder().build()).build()
    view = view_of("overview", [light], tmp_path)
    assert "memory over time" not in [row["what"] for row in view["missing"]]


def test_a_program_alone_asks_for_a_recording(tmp_path: Path) -> None:
    traces = load_all(REPOSITORY / "fixtures" / "h100-programs" / "attention-blocked-scan-small-dots.hlo.pb.xz")
    (only,) = view_of("overview", traces, tmp_path)["missing"]
    assert only["command"] == RUN


@pytest.mark.corpus
def test_a_real_trace(corpus: Path, tmp_path: Path) -> None:
    view = view_of("overview", load_all(corpus / "kineto" / "TraceLens__h100_bert-small.json.gz"), tmp_path)
    assert view["findings"] == 1
    assert "4.43 ms" in view["parts"]["tiles"]


PROGRAM = "ENTRY %main (a: f32[4]) -> f32[4] {\n  ROOT %a = f32[4]{0} parameter(0)\n}"


def _row(trace: Trace, folder: Path, rule: str = "host_sync", **told: Any) -> dict[str, Any]:
    """The page's row of a finding, with the timeline as the server's child leaves it."""
    place = Place(folder=folder / "timeline" / "0", number=0)
    place.folder.mkdir(parents=True)
    timeline.gather(trace, place)
    finding = Finding(subject="s", title="t", severity="low", basis="structural", advice="a", **told)
    outcome = Outcome(rule=rule, status="flagged", findings=(finding,))
    analysis = replace(analyze(trace, rules=[]), outcomes=(outcome,))
    mine = Place(folder=folder / "findings" / "0", number=0)
    gathered = [Gathered(source=trace.source, place=mine, held=None)]
    job = Job(analysis=analysis, traces=[trace], report={}, gathered=gathered, folder=folder / "findings")
    (row,) = findings.view(job)["findings"]
    return row  # type: ignore[no-any-return]


def _ran() -> TraceBuilder:
    made = TraceBuilder()
    made.python("train.py(30): read", 100, 190)
    made.op("aten::item", 110, 150)
    return made


def test_a_piece_before_the_first_event_is_said_to_be_before_it(tmp_path: Path) -> None:
    row = _row(_ran().build(), tmp_path, spans=(Span(start_ns=60_000, end_ns=120_000),))
    assert row["at"] == [
        {"mark": "0:60000-120000", "said": "60.0 us, 40.0 us before the start", "short": "60.0 us at -40.0 us"}
    ]
    assert (row["how"], row["none"]) == ("piece", "")


def test_where_a_rule_names_no_piece_it_leads_to_the_events_of_its_line(tmp_path: Path) -> None:
    row = _row(_ran().build(), tmp_path, where=Where(file="train.py", line=30))
    assert row["at"] == [
        {"mark": "0:110000-150000", "said": "40.0 us, 10.0 us after the start", "short": "40.0 us at 10.0 us"}
    ]
    assert (row["how"], row["none"]) == ("line", "")


def test_of_what_no_event_is_it_is_said(tmp_path: Path) -> None:
    row = _row(_ran().build(), tmp_path / "a", where=Where(file="other.py", line=3, op="aten::relu"))
    assert (row["at"], row["none"]) == ([], "no recorded event belongs to its line, module, op, kernel or instruction")
    assert _row(_ran().build(), tmp_path / "b")["none"] == "it is about the recording as a whole"


def test_of_a_program_it_is_said_that_nothing_ran(tmp_path: Path) -> None:
    row = _row(hlo_trace(hlo_module(PROGRAM)), tmp_path, where=Where(op="dot"))
    assert (row["at"], row["find"], row["none"]) == ([], [], "compiled program: nothing ran")


def test_of_memory_of_the_detail_pass_it_is_said_and_its_page_is_named(tmp_path: Path) -> None:
    made = MemoryBuilder()
    made.make(1, 1 << 20, 10)
    trace = _ran().build()
    trace = msgspec.structs.replace(trace, detail=made.build())
    row = _row(trace, tmp_path, "peak_owner", cost_bytes=1 << 20, bytes_are="freed")
    assert row["none"] == "its memory was recorded in the detail pass, after the steps that the timeline shows"
    assert row["memory"]
