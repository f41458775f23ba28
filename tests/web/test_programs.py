"""Pictures of the graph page: what is drawn, the bytes between, places that do not overlap, findings first."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.devices import find_device
from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.sections.roofline_points import Point, merged
from perfscope.dashboards.web.views._graphs import MOST_NODES, NODE_H, NODE_W, laid_out
from perfscope.model.compile_log import CodeLine as Line
from perfscope.model.compile_log import CompiledKernel, CompileLog, FusionRefusal, Graph, GraphNode
from perfscope.model.trace import Source, Trace
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY
from tests.graphs import GraphBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace
from tests.programs.test_programs import step
from tests.web.views import view_of

SIZE = 4096 * 4096 * 4


def _fused() -> Trace:
    """Two fusions with a value between them; the first computes an exponential and a product of it."""
    return hlo_trace(
        hlo_module(
            f"""
            first {{
              p = f32[4096,4096]{{1,0}} parameter(0)
              e = f32[4096,4096]{{1,0}} exponential(p)
              ROOT m = f32[4096,4096]{{1,0}} multiply(e, p)
            }}

            second {{
              q = f32[4096,4096]{{1,0}} parameter(0)
              ROOT n = f32[4096,4096]{{1,0}} negate(q)
            }}

            ENTRY main {{
              a = f32[4096,4096]{{1,0}} parameter(0)
              one = f32[4096,4096]{{1,0}} fusion(a), kind=kLoop, calls=first, {GPU}
              ROOT two = f32[4096,4096]{{1,0}} fusion(one), kind=kLoop, calls=second, {GPU}
            }}
            """
        )
    )


def _edges(subject: dict[str, Any]) -> set[tuple[str, str, int | None]]:
    nodes = subject["nodes"]
    return {(nodes[one["from"]]["name"], nodes[one["to"]]["name"], one["bytes"]) for one in subject["edges"]}


def test_a_round_trip_between_fusions_that_are_opened(tmp_path: Path) -> None:
    view = view_of("graph", [_fused()], tmp_path)
    subject = view["subjects"][0]
    assert subject["title"].startswith("one to two")
    assert _edges(subject) == {("a", "e", SIZE), ("a", "m", None), ("e", "m", None), ("m", "n", SIZE)}
    assert [box["title"] for box in subject["boxes"]] == ["one", "two"]
    saved = [one for one in subject["edges"] if one["saved"]]
    assert [(one["bytes"], one["said"]) for one in saved] == [(SIZE, "could stay on the chip")]
    assert "128 MiB per run" in " ".join(subject["said"])
    assert "xla_dump_hlo_pass_re" in " ".join(subject["said"])
    assert {one["rule"] for one in subject["findings"]} == {"unfused_ops"}
    exponential = next(one for one in subject["nodes"] if one["name"] == "e")
    assert "e = f32[4096,4096] exponential(p)" in exponential["text"]
    assert view["tables"]["edges"]["rows"][0][:4] == [1, SIZE, "a", "e"]


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=14), st.data())
@settings(max_examples=30, deadline=None)
def test_any_graph_is_laid_out_without_overlaps(boxes: list[int], data: st.DataObject) -> None:
    index = st.integers(0, len(boxes) - 1)
    edges = data.draw(st.lists(st.tuples(index, index), max_size=25))
    place = laid_out(boxes, edges)
    rectangles = [(x, y, NODE_W, NODE_H) for x, y in zip(place["x"], place["y"], strict=True)]
    for at, one in enumerate(rectangles):
        assert one[0] >= 0
        assert one[0] + NODE_W <= place["width"] + 1e-6
        assert one[1] + NODE_H <= place["height"] + 1e-6
        assert not any(_overlap(one, other) for other in rectangles[at + 1 :])
        for number, box in place["boxes"].items():
            assert _overlap(one, box) == (boxes[at] == number)


def test_readers_lie_below_what_they_read() -> None:
    place = laid_out([-1, -1, -1], [(0, 1), (1, 2), (0, 2)])
    assert place["y"][0] < place["y"][1] < place["y"][2]


def _grouped(count: int = 3) -> Trace:
    graph = GraphBuilder()
    x = graph.input((256, 1024), parameter=True)
    value = x
    for at in range(count):
        value = graph.op("mul" if at % 2 else "silu", [value], line=10 + at)
    graph.op("mm", [value, value], shape=(256, 256), flops=1)
    return TraceBuilder(op_graph=graph.graph()).build()


def test_a_group_of_ops_is_a_box_with_its_neighbours(tmp_path: Path) -> None:
    view = view_of("graph", [_grouped()], tmp_path)
    subject = next(one for one in view["subjects"] if one["kind"] == "ops")
    size = 256 * 1024 * 4
    assert _edges(subject) == {
        ("storage 1", "silu", size),
        ("silu", "mul", size),
        ("mul", "silu", size),
        ("silu", "mm", size),
    }
    (box,) = subject["boxes"]
    assert not box["one"]
    assert [node["name"] for node in subject["nodes"] if node["box"] == 0] == ["silu", "mul", "silu"]
    assert "4.00 MiB" in subject["why"]  # 6 of 256 x 1024 floats go, 2 of them stay
    assert not next(node for node in subject["nodes"] if node["name"] == "storage 1")["runs"]


def test_a_picture_is_bounded_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    view = view_of("graph", [_grouped(200)], tmp_path)
    subject = view["subjects"][0]
    assert len(subject["nodes"]) <= MOST_NODES
    assert subject["left"] >= 200 - MOST_NODES


def test_what_inductor_kept_apart_with_its_reason(tmp_path: Path) -> None:
    shape = {"dtype": "torch.float32", "shape": (1024, 1024)}
    nodes = (
        GraphNode(name="relu", op="aten.relu.default", inputs=("x",), place=Line(file="m.py", line=3), **shape),
        GraphNode(name="flip", op="aten.neg.default", inputs=("relu",), place=Line(file="m.py", line=4), **shape),
    )
    graph = Graph(compile_id="0/0", direction="forward", nodes=nodes, outputs=("flip",),
                  inputs=(GraphNode(name="x", op="placeholder", **shape),))  # fmt: skip
    kernels = tuple(
        CompiledKernel(
            name=f"triton_poi_{name}", backend="triton", compile_id="0/0", direction="forward", nodes=(name,)
        )
        for name in ("relu", "flip")
    )
    refusal = FusionRefusal(compile_id="0/0", direction="forward", first="op0", second="op1", reason="no shared data",
                            first_nodes=("relu",), second_nodes=("flip",), first_kernel="triton_poi_relu",
                            second_kernel="triton_poi_flip", shared_bytes=4 << 20)  # fmt: skip
    log = CompileLog(path="log", graphs=(graph,), kernels=kernels, refusals=(refusal,), has_refusals=True)
    source = Source(path="built.json", format="kineto", rank=0, events_read=0, events_unplaced=0)
    trace = Trace(source=source, strings=[], rows={}, recorded=frozenset(), compile_log=log)
    (subject,) = view_of("graph", [trace], tmp_path)["subjects"]
    assert subject["title"] == "triton_poi_relu to triton_poi_flip"
    assert _edges(subject) == {("x", "relu", 4 << 20), ("relu", "flip", 4 << 20)}
    assert [one["saved"] for one in subject["edges"]] == [False, True]
    assert "another order" in subject["said"][0]


def test_ranks_that_run_the_same_are_drawn_once(tmp_path: Path) -> None:
    one = view_of("graph", [_fused()], tmp_path / "one")
    both = view_of("graph", [_fused(), _fused()], tmp_path / "both")
    assert [each["title"] for each in both["subjects"]] == [each["title"] for each in one["subjects"]]
    assert {each["alike"] for each in both["subjects"]} == {0}


def test_a_log_without_kernels_says_why_there_is_no_graph(tmp_path: Path) -> None:
    """With another torch.compile backend than inductor the run has neither kernels nor an op graph."""
    log = CompileLog(path="log", graphs=(Graph(compile_id="0/0", direction="forward", nodes=()),))
    source = Source(path="built.json", format="run", rank=0, events_read=0, events_unplaced=0)
    trace = Trace(source=source, strings=[], rows={}, recorded=frozenset(), compile_log=log)
    trace = replace(trace, why_no_step="its graphs are compiled")
    view = view_of("graph", [trace], tmp_path)
    assert view["subjects"] == []
    (said,) = view["lacks"]
    assert said.startswith("torch.compile's log names no kernels")
    assert "its graphs are compiled" in said


@pytest.mark.corpus
def test_real_programs_keep_every_bound(corpus: Path, tmp_path: Path) -> None:
    from perfscope.analyzers.readers.load import load_all

    traces = load_all(corpus / "xplane" / "TraceLens__mi300_jax_conv_08.xplane.pb.gz")
    view = view_of("graph", traces, tmp_path)
    assert view["subjects"]
    for subject in view["subjects"]:
        assert len(subject["nodes"]) <= MOST_NODES
        assert all(0 <= one["from"] < len(subject["nodes"]) > one["to"] for one in subject["edges"])


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
    assert (dot["time_ns"], dot["runs"]) == (600_000, 2)
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
    assert rows["aten::mm"]["time_ns"] == 10_000
    assert rows["aten::mm"]["rate"] == pytest.approx(2 * 1024**3 / 10e-6)
    assert rows["aten::mm"]["bytes"] == 2 * 2 * 1024**2
    assert (rows["aten::silu"]["rate"], rows["aten::silu"]["bound"]) == (None, "memory")
    assert view["tables"]["ops"]["plain_ns"] == 4_000
    assert [one["name"] for one in view["devices"]] == ["H100 SXM"]


def test_an_unknown_roof_stays_unknown_when_ranks_are_added() -> None:
    def point(least: float | None) -> Point:
        return Point(kind="calls", name="a", what="", program="", line="", dtype="", flops=1, bytes=1, ns=2.0, runs=1,
                     least_ns=least, bound="", basis="measured")  # fmt: skip

    (one,) = merged([point(1.0), point(None)])
    assert (one.ns, one.runs, one.least_ns) == (4.0, 2, None)


@pytest.mark.corpus
def test_a_real_recording_holds_all_instructions_that_were_measured(corpus: Path, tmp_path: Path) -> None:
    (trace,) = load_all(corpus / "xplane" / "TraceLens__mi300_jax08_gemm.xplane.pb.gz")
    rows = _rows(view_of("roofline", [trace], tmp_path), "instructions")
    assert {row["basis"] for row in rows} == {"measured"}
    fastest = max(row["rate"] or 0 for row in rows)
    assert 1e14 < fastest < 1.31e15  # below the bfloat16 peak of an MI300X


SHAPE = "f32[4096,4096]{1,0}"
PROGRAM = f"""HloModule jit_step, is_scheduled=true

doubled {{
  p = {SHAPE} parameter(0)
  ROOT m = {SHAPE} add(p, p)
}}

ENTRY main {{
  a = {SHAPE} parameter(0)
  one = {SHAPE} fusion(a), kind=kLoop, calls=doubled, {GPU}
  ROOT two = {SHAPE} transpose(one), dimensions={{1,0}}, {GPU}
}}
"""
LEAST_NS = 2 * 2 * 4 * 4096 * 4096 / 3.35e12 * 1e9
"""Two kernels that read and write 64 MiB each, at the peak bandwidth of an H100."""


@pytest.fixture
def compiled(tmp_path: Path) -> Trace:
    file = tmp_path / "step.hlo.txt"
    file.write_text(PROGRAM)
    (trace,) = load_all(file)
    trace = replace(trace, judged_device="H100 SXM")
    return replace(trace, target=parse_target("h100"))


def _words(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def test_the_first_page_says_that_nothing_ran_and_gives_the_modelled_step(compiled: Trace, tmp_path: Path) -> None:
    view = view_of("overview", [compiled], tmp_path / "view")
    assert view["planned"].startswith("Compiled for H100 SXM and never run")
    words = _words(view["parts"]["tiles"])
    low = re.search(r"modelled time of a run\s+([\d.]+)", words)
    assert low is not None, words
    assert float(low[1]) == pytest.approx(LEAST_NS / 1_000, rel=0.02)
    assert [row["what"].split(":")[0] for row in view["missing"]] == ["a run"]


def test_the_page_of_compilation_has_its_lines_and_what_is_assumed(compiled: Trace, tmp_path: Path) -> None:
    words = _words(view_of("compile", [compiled], tmp_path / "view")["html"])
    assert "Modelled time on H100 SXM" in words
    assert "assumptions, and what is not in the range" in words


def test_the_timeline_is_the_modelled_schedule(compiled: Trace, tmp_path: Path) -> None:
    view = view_of("timeline", [compiled], tmp_path / "view")
    assert not any(one["events"] for one in view["traces"])
    assert "one run, modelled" in view["modelled"]
    assert view["modelled"].count("<title>") == 2


def test_the_page_of_memory_has_the_planned_peaks(tmp_path: Path) -> None:
    """Planned, because nothing was recorded: the same bytes as on the first page, and their owners."""
    traces = load_all(REPOSITORY / "fixtures" / "plans-h100" / "attention-naive")
    view = view_of("memory", traces, tmp_path / "memory")
    assert view["memories"] == []
    words = _words(view["planned"])
    tiles = _words(view_of("overview", traces, tmp_path / "overview")["parts"]["tiles"])
    peaks = re.findall(r"Peak \w+, planned\s+([\d.]+ \w+)", tiles)
    assert len(peaks) == 2
    assert all(peak in words for peak in peaks)
    assert "activation" in words
