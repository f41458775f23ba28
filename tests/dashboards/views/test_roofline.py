"""Points of the roofline: rates, roofs and headroom as the facts have them, and words where something is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.hardware import find_device
from perfscope.analyzers.readers.load import load
from perfscope.dashboards.views._rooflines import Point, merged
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.dashboards.views.made import view_of
from tests.graphs import GraphBuilder
from tests.hlo_build import hlo_trace, recorded_trace
from tests.programs.test_programs import step

FLOPS = 2 * 4096**3
H100 = "NVIDIA H100 80GB HBM3"
HOSTILE = '<img src=x onerror="alert(1)">'


def _rows(view: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    keys = [column["key"] for column in view["tables"][kind]["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in view["tables"][kind]["rows"]]


def _recorded(device: str = H100) -> Trace:
    return recorded_trace(step(), ops=[("dot", 0, 300), ("neg", 310, 350)], runs=[1, 1], device=device)


def test_a_measured_instruction_below_its_roof(tmp_path: Path) -> None:
    view = view_of("roofline", [_recorded()], tmp_path)
    dot, neg = _rows(view, "instructions")
    device = find_device(H100)
    assert device is not None
    least = FLOPS / device.peak_flops["bfloat16"] * 1e9
    assert (dot["name"], dot["line"], dot["bound"], dot["basis"]) == ("dot", "train.py:7", "compute", "measured")
    assert dot["rate"] == pytest.approx(FLOPS / 300e-6)
    assert dot["intensity"] == pytest.approx(FLOPS / dot["bytes"])
    assert dot["least_ns"] == pytest.approx(least)
    assert dot["headroom_ns"] == round(300_000 - least)
    assert neg["bound"] == "memory"
    assert view["tables"]["instructions"]["ns"] == 340_000
    assert [one["name"] for one in view["devices"]] == ["H100 SXM"]
    assert view["devices"][0]["bandwidth"] == device.memory_bandwidth
    assert view["devices"][0]["source"] == device.source
    assert view["lacks"] == []


def test_a_program_alone_lies_on_its_roof_and_has_no_headroom(tmp_path: Path) -> None:
    view = view_of("roofline", [hlo_trace(step())], tmp_path)
    rows = _rows(view, "instructions")
    assert {row["basis"] for row in rows} == {"modelled"}
    assert all(row["headroom_ns"] is None and row["of_roof"] is None for row in rows)
    assert all(row["run_ns"] == pytest.approx(row["least_ns"]) for row in rows)
    assert view["devices"][0]["assumed"]


def test_without_known_peaks_rates_are_shown_and_the_rest_is_said(tmp_path: Path) -> None:
    view = view_of("roofline", [_recorded("Mystery 9000")], tmp_path)
    dot = next(row for row in _rows(view, "instructions") if row["name"] == "dot")
    assert dot["rate"] == pytest.approx(FLOPS / 300e-6)
    assert (dot["least_ns"], dot["headroom_ns"]) == (None, None)
    assert view["devices"] == []
    assert "Mystery 9000" in view["lacks"][0]


def test_ranks_are_summed(tmp_path: Path) -> None:
    view = view_of("roofline", [_recorded(), _recorded()], tmp_path)
    dot = next(row for row in _rows(view, "instructions") if row["name"] == "dot")
    assert (dot["ns"], dot["runs"]) == (600_000, 2)
    assert dot["run_ns"] == 300_000


def test_ops_of_a_graph_with_the_time_of_their_kernels(tmp_path: Path) -> None:
    graph = GraphBuilder(device="cuda")
    a = graph.input((1024, 1024), "bfloat16")
    b = graph.op("mm", [a, a], flops=2 * 1024**3)
    graph.op("silu", [b])
    made = TraceBuilder(op_graph=graph.graph())
    made.device(0, H100)
    made.op("aten::mm", 0, 10)
    made.op(HOSTILE, 2, 3)
    made.op("aten::silu", 20, 30)
    made.launched("gemm", 4, 40, 50, correlation=1)
    made.launched("silu", 24, 50, 54, correlation=2)
    view = view_of("roofline", [made.build()], tmp_path)
    rows = {row["name"]: row for row in _rows(view, "ops")}
    assert rows["aten::mm"]["ns"] == 10_000
    assert rows["aten::mm"]["rate"] == pytest.approx(2 * 1024**3 / 10e-6)
    assert rows["aten::mm"]["bytes"] == 2 * 2 * 1024**2
    assert (rows["aten::silu"]["rate"], rows["aten::silu"]["bound"]) == (None, "memory")
    assert view["tables"]["ops"]["plain_ns"] == 4_000
    assert [one["name"] for one in view["devices"]] == ["H100 SXM"]


def test_kernels_alone_say_what_to_record(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.op("aten::mm", 0, 10)
    made.launched("gemm", 2, 20, 30, correlation=1)
    view = view_of("roofline", [made.build()], tmp_path)
    assert all(not table["rows"] for table in view["tables"].values())
    assert "perfscope run" in view["lacks"][0]


def test_an_unknown_roof_stays_unknown_when_ranks_are_added() -> None:
    def point(least: float | None) -> Point:
        return Point(name="a", what="", program="", line="", dtype="", flops=1, bytes=1, ns=2.0, runs=1,
                     least_ns=least, bound="", basis="measured")  # fmt: skip

    (one,) = merged([point(1.0), point(None)])
    assert (one.ns, one.runs, one.least_ns) == (4.0, 2, None)


@pytest.mark.corpus
def test_a_real_recording_holds_all_instructions_that_were_measured(corpus: Path, tmp_path: Path) -> None:
    (trace,) = load(corpus / "xplane" / "TraceLens__mi300_jax08_gemm.xplane.pb.gz")
    rows = _rows(view_of("roofline", [trace], tmp_path), "instructions")
    assert {row["basis"] for row in rows} == {"measured"}
    fastest = max(row["rate"] or 0 for row in rows)
    assert 1e14 < fastest < 1.31e15  # below the bfloat16 peak of an MI300X
