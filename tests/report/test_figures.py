"""Figures: their numbers equal the tables', and the message names plotly if it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import perfscope
from perfscope.analyzers.engine import Step
from perfscope.analyzers.time import step_accounts
from perfscope.dashboards import figures
from perfscope.dashboards.report.charts import CAUSE_COLORS
from perfscope.model.documents.comparison import Account, Amount
from perfscope.model.errors import UsageError
from perfscope.model.version import install_command
from tests.build import TraceBuilder
from tests.memory.test_section import of_rank
from tests.report.analyses import MS, STEPS, device

pytest.importorskip("plotly")


def trace_of_kernels() -> TraceBuilder:
    builder = TraceBuilder()
    for index in range(30):
        builder.kernel(f"kernel <{index % 5}>", 10 * index, 10 * index + 1 + index % 5, stream=7 + index % 2)
    builder.kernel("nccl", 300, 320, communication=True, stream=20)
    builder.copy("Memcpy HtoD", 320, 330, stream=21)
    return builder


def test_device_time_sums_to_the_span() -> None:
    figure = figures.device_time([device(0), device(1, compute=100)])
    assert [bar.name for bar in figure.data] == ["compute", "exposed communication", "exposed copy", "idle"]
    assert list(figure.data[0].y) == ["rank 0 · NVIDIA H200 (0)", "rank 1 · NVIDIA H200 (0)"]
    assert list(figure.data[0].x) == [160, 100]
    assert [sum(bar.x[row] for bar in figure.data) for row in range(2)] == [206, 206]


def test_step_times_keep_traced_and_untraced_apart() -> None:
    figure = figures.step_times([*STEPS, Step(rank=1, number=3, duration_ns=5 * MS, traced=True)])
    assert [(trace.name, len(trace.x)) for trace in figure.data] == [
        ("no profiler on, rank 0", 12), ("while traced, rank 0", 5), ("while traced, rank 1", 1)
    ]  # fmt: skip
    assert list(figure.data[2].y) == [5]


def test_both_sides_and_their_changes_sum_by_cause() -> None:
    causes = {"compute": Amount(base_ns=3 * MS, head_ns=5 * MS), "<new>": Amount(base_ns=MS, head_ns=0)}
    figure = figures.account_change(Account(base_ns=4 * MS, head_ns=5 * MS, causes=causes))
    assert [(bar.name, list(bar.y), list(bar.x)) for bar in figure.data if bar.xaxis == "x"] == [
        ("compute", ["head", "base"], [5, 3]), ("&lt;new&gt;", ["head", "base"], [0, 1])
    ]  # fmt: skip
    changes = [bar for bar in figure.data if bar.xaxis == "x2"]
    assert [(list(bar.y), list(bar.x)) for bar in changes] == [(["compute"], [2]), (["&lt;new&gt;"], [-1])]
    labels = [label.text for label in figure.layout.annotations]
    assert labels == ["compute <b>+2.00 ms</b>", "&lt;new&gt; <b>-1.00 ms</b>"]
    assert [bar.marker.color for bar in figure.data[:2]] == [CAUSE_COLORS["compute"]] * 2


def test_a_cause_that_rounds_to_nothing_is_in_no_legend() -> None:
    causes = {"compute": Amount(base_ns=MS, head_ns=MS), "launch": Amount(base_ns=MS // 4_000, head_ns=0)}
    change = figures.account_change(Account(base_ns=MS, head_ns=MS, causes=causes))
    assert {bar.name for bar in change.data} == {"compute"}
    builder = TraceBuilder()
    builder.kernel("k", 0, 9_999)
    builder.copy("Memcpy HtoD", 9_999, 10_000)
    (account,) = step_accounts(builder.build())
    bars = figures.step_account([account]).data
    assert [(bar.name, bar.showlegend) for bar in bars] == [("compute 100.0%", True), ("exposed copies 0.0%", False)]


def test_memory_timeline_stacks_to_the_peak_of_the_fullest_memory() -> None:
    trace = of_rank(0)
    figure = figures.memory_timeline(trace)
    names = [area.name for area in figure.data]
    assert names[:4] == ["allocated before", "activation", "reserved", "peak 1.07 KiB"]
    stacked = [area.y for area in figure.data if area.type == "scatter" and area.stackgroup]
    assert max(map(sum, zip(*stacked, strict=True))) * 1024 == pytest.approx(1100)  # of KiB
    assert list(figure.data[3].x) == [pytest.approx(15e-6)]
    assert figure.layout.title.text == "Memory of cuda:0, measured"
    with pytest.raises(UsageError, match="no such memory in the trace; it has: cuda:0"):
        figures.memory_timeline(trace, "cuda:9")


def test_kernel_time_adds_up_and_names_the_rest() -> None:
    trace = trace_of_kernels().build()
    bars = figures.kernel_time(trace, top=2).data[0]
    assert [label.partition(". ")[2] for label in bars.y] == ["kernel &lt;4&gt;", "kernel &lt;3&gt;", "4 other kernels"]
    assert list(bars.x) == [pytest.approx(0.030), pytest.approx(0.024), pytest.approx(0.056)]
    assert list(bars.customdata) == [6, 6, 19]
    kernels = trace.rows["kernels"]
    assert sum(bars.x) * MS == pytest.approx((kernels["end_ns"] - kernels["start_ns"]).sum())


def test_kernel_time_of_everything_has_no_rest() -> None:
    assert len(figures.kernel_time(trace_of_kernels().build()).data[0].y) == 6
    with pytest.raises(ValueError, match="top is 0"):
        figures.kernel_time(trace_of_kernels().build(), top=0)


def test_timeline_draws_what_touches_the_window() -> None:
    trace = trace_of_kernels().build()
    everything = figures.timeline(trace)
    assert {bar.name: len(bar.x) for bar in everything.data} == {"kernels": 30, "communication": 1, "copies": 1}
    assert everything.layout.title.text == "Timeline"
    part = figures.timeline(trace, start_ns=300_000, end_ns=320_000)
    assert {bar.name: len(bar.x) for bar in part.data} == {"kernels": 0, "communication": 1, "copies": 0}
    assert list(part.data[1].base) == [0]
    assert list(part.data[1].x) == [pytest.approx(0.02)]
    assert list(part.data[1].y) == ["device 0 · stream 20"]


def test_timeline_draws_the_longest_and_says_so() -> None:
    figure = figures.timeline(trace_of_kernels().build(), limit=3)
    assert figure.layout.title.text == "Timeline: the longest 3 of 32"
    assert {bar.name: len(bar.x) for bar in figure.data} == {"kernels": 1, "communication": 1, "copies": 1}


def test_empty_tables_draw_empty_figures() -> None:
    trace = TraceBuilder().build()
    for figure in (
        figures.device_time([]),
        figures.step_times([]),
        figures.kernel_time(trace),
        figures.timeline(trace),
    ):
        figure.to_json()


def test_the_public_name_gives_functions_every_time() -> None:
    assert perfscope.figures is figures
    assert all(callable(getattr(figures, name)) for name in figures.__all__)


def test_without_plotly_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "plotly.py").write_text("raise ImportError('no plotly here')")
    program = "import sys, perfscope\ntry:\n    perfscope.figures.step_times([])\nexcept Exception as e:\n    print(e)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)},
        cwd=Path(perfscope.__file__).parent.parent,
    )  # fmt: skip
    assert done.stdout == f"figures need plotly: {install_command('ui')}\n"


def _point(name: str, rate: float | None, bound: str = "memory", ns: float = 1e3) -> dict[str, object]:
    basis = {"line": "a.py:1", "share": 0.5, "basis": "measured", "intensity": 2.0, "of_roof": None}
    return {"name": name, "rate": rate, "bound": bound, "time_ns": ns, **basis}


def test_a_roofline_has_its_points_by_what_holds_them_back_below_the_roofs() -> None:
    device = {"name": "H100", "bandwidth": 1e12, "peaks": [{"label": "fp32", "flops": 1e13}]}
    points = [_point("<a>", 1e12), _point("b", 2e12, ns=4e3), _point("c", None), _point("d", 1e12, bound="unknown")]
    figure = figures.roofline(points, [device], chosen="b")
    assert [trace.name for trace in figure.data] == ["roofs of H100", "memory", "no roof known"]
    assert list(figure.data[1].customdata) == ["b", "<a>"]  # the longest below the others; no rate, no point
    assert figure.data[1].text[1].startswith("&lt;a&gt;<br>1.00 us")
    roof = [(x, y) for x, y in zip(figure.data[0].x, figure.data[0].y, strict=True) if x is not None]
    assert all(y == pytest.approx(min(x * 1e12, 1e13)) for x, y in roof)


def test_a_device_without_peaks_has_no_roof() -> None:
    figure = figures.roofline([], [{"name": "x", "bandwidth": 1e12, "peaks": []}])
    assert not figure.data[0].x


def test_a_heat_map_has_a_row_a_rank_in_seconds() -> None:
    heat = {"columns": 2, "rows": [{"label": "rank 0"}, {"label": "rank 1"}], "value": [0, 2_000_000, None, 5]}
    (cells,) = figures.heat_map(heat | {"labels": ["first", "second"]}, "wait").data
    assert [list(row) for row in cells.z] == [[0, 0.002], [None, 5e-9]]
    (shares,) = figures.heat_map(heat | {"labels": ["step 1", "step 1"], "value": [0.5, 1, 0, None]}, "busy").data
    assert shares.zmax == 1
    assert list(shares.x) == ["step 1", "step 1 (2)"]  # equal labels do not share a column
