"""Where time goes, by instruction, line and scope: it sums to what was measured, nothing is dropped."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.programs.hot_instructions import NO_LINE, NO_SCOPE, UNMATCHED, HotSpots, hot_instructions
from perfscope.analyzers.readers import load
from perfscope.model.trace import Trace
from tests.conftest import corpus_files
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace
from tests.programs.test_programs import H100, loop, step


def only(trace: Trace) -> HotSpots:
    (spots,) = trace.fact(hot_instructions)
    return spots


def sums(spots: HotSpots) -> set[int]:
    return {sum(row.time_ns for row in rows) for rows in (spots.instructions, spots.lines, spots.scopes)}


def without_line(name: str = "jit_step") -> HloModule:
    return hlo_module(
        f"ENTRY main {{\n  a = f32[64]{{0}} parameter(0)\n  ROOT copy = f32[64]{{0}} copy(a), {GPU}\n}}\n", name
    )


def test_measured_rows_sum_to_what_was_measured() -> None:
    spots = only(
        recorded_trace(step(), ops=[("dot", 0, 300), ("neg", 310, 350), ("strange", 400, 460)], runs=[1, 1, 1])
    )
    assert (spots.basis, spots.program) == ("measured", None)
    assert (spots.total_ns, spots.unmatched_ns) == (400_000, 60_000)
    assert sums(spots) == {400_000}
    dot, neg, unmatched = spots.instructions
    assert (dot.instruction, dot.calls, dot.time_ns, dot.scope, dot.phase) == (
        "dot",
        1,
        300_000,
        "mlp/dot_general",
        "forward",
    )
    assert (dot.file, dot.line, dot.flops) == ("train.py", 7, 2 * 4096**3)
    assert (neg.phase, neg.bytes) == ("backward", 2 * 2 * 4096**2)
    assert (unmatched.instruction, unmatched.opcode, unmatched.time_ns) == (UNMATCHED, None, 60_000)
    assert [(place.name, place.time_ns) for place in spots.lines] == [
        ("train.py:7", 300_000), (UNMATCHED, 60_000), ("train.py:9", 40_000),
    ]  # fmt: skip
    assert [(place.name, place.phase) for place in spots.scopes] == [
        ("mlp/dot_general", "forward"), (UNMATCHED, None), ("mlp/neg", "backward"),
    ]  # fmt: skip
    assert [(place.name, place.time_ns) for place in spots.modules] == [("mlp", 340_000), (UNMATCHED, 60_000)]


def test_roof_and_headroom_on_the_device_that_is_recorded() -> None:
    dot, _ = only(
        recorded_trace(step(), ops=[("dot", 0, 300), ("neg", 310, 350)], runs=[1, 1], device=H100)
    ).instructions
    assert dot.bound == "compute"
    assert dot.roof_ns is not None
    assert dot.headroom_ns == round(300_000 - dot.roof_ns)


def test_no_roof_where_the_device_is_not_known() -> None:
    dot, _ = only(recorded_trace(step(), ops=[("dot", 0, 300), ("neg", 310, 350)], runs=[1, 1], device="")).instructions
    assert (dot.bound, dot.roof_ns, dot.headroom_ns) == (None, None, None)
    assert dot.time_ns == 300_000


def test_a_loop_does_not_count_what_is_inside_twice() -> None:
    ops = [("while", 0, 100), ("add", 10, 30), ("add", 40, 60)]
    spots = only(recorded_trace(loop(2), ops=ops, runs=[1, 1, 1], around=("while",)))
    assert spots.total_ns == 40_000
    assert [row.instruction for row in spots.instructions] == ["add"]
    assert sums(spots) == {40_000}


def test_what_has_no_line_and_no_scope_has_a_row() -> None:
    spots = only(recorded_trace(without_line(), ops=[("copy", 0, 10)], runs=[1]))
    assert [place.name for place in spots.lines] == [NO_LINE]
    assert [(place.name, place.mainly) for place in spots.scopes] == [(NO_SCOPE, "copy")]
    assert spots.modules == (), "no program names a scope"


def test_without_a_recording_the_least_time_stands_in() -> None:
    spots = only(hlo_trace(step()))
    assert (spots.basis, spots.program) == ("modelled", "jit_step")
    assert [row.instruction for row in spots.instructions] == ["dot", "neg"]
    assert all(row.headroom_ns is None for row in spots.instructions)
    assert sums(spots) == {spots.total_ns}


def test_programs_that_need_not_run_together_are_not_summed() -> None:
    first, second = hlo_trace(step("jit_a"), without_line("jit_b")).fact(hot_instructions)
    assert (first.program, second.program) == ("jit_a", "jit_b")
    assert first.total_ns > second.total_ns


def test_nothing_measured_and_no_peaks_says_nothing() -> None:
    plain = hlo_module(
        "ENTRY main {\n  a = f32[64]{0} parameter(0)\n  ROOT neg = f32[64]{0} negate(a)\n}\n", scheduled=False
    )
    assert hlo_trace(plain).fact(hot_instructions) == ()


def test_the_top_keeps_what_is_unmatched_and_counts_the_rest() -> None:
    ops = [("dot", 0, 300), ("neg", 310, 350), ("strange", 400, 410)]
    top = only(recorded_trace(step(), ops=ops, runs=[1, 1, 1])).top(1)
    assert [row.instruction for row in top.instructions] == ["dot", UNMATCHED]
    assert (top.left["instructions"].count, top.left["instructions"].time_ns) == (1, 40_000)
    assert (top.left["lines"].count, top.left["lines"].time_ns) == (2, 50_000)


FILES = [*corpus_files("xplane", "*[0-9].xplane.pb.gz"), *corpus_files("aot", "*.xplane.pb.gz")]


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shares_add_up(path: Path) -> None:
    trace = load.load_one(path)
    spots = only(trace)
    assert spots.basis == "measured"
    assert spots.total_ns == trace.fact(hlo_time).total_ns
    assert sums(spots) == {spots.total_ns}
    top = spots.top(3)
    for name, rows in (("instructions", top.instructions), ("lines", top.lines), ("scopes", top.scopes)):
        assert sum(row.time_ns for row in rows) + top.left[name].time_ns == spots.total_ns


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["synth_attn_naive", "synth_attn_blocked"])
def test_agrees_with_xprof(name: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls, times and bytes to the unit; FLOPs of matrix products, too.

    xprof counts an elementwise op on a GPU as the instructions it takes (3 for an addition), we as one an element:
    its FLOPs are never below ours.
    """
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    copy = tmp_path / "x.xplane.pb"  # xprof counts writes in addition to reads
    copy.write_bytes(gzip.decompress((corpus / "aot" / f"{name}.xplane.pb.gz").read_bytes()))
    text, _ = convert.xspace_to_tool_data([str(copy)], "hlo_stats", {"use_saved_result": False})
    table = json.loads(text)
    names = [column["id"] for column in table["cols"]]
    theirs = {}
    for row in table["rows"]:
        cells = dict(zip(names, (cell.get("v") for cell in row["c"]), strict=True))
        theirs[cells["hlo_op_name"]] = cells
    ours = only(load.load_one(copy)).instructions
    assert {row.instruction for row in ours} == set(theirs)
    for row in ours:
        cells = theirs[row.instruction]
        assert row.calls == cells["occurrences"]
        assert row.time_ns / 1e3 == pytest.approx(cells["total_self_time"], abs=1e-3)
        each_s = cells["avg_time"] / 1e6
        assert row.bytes == pytest.approx(cells["hbm_bw"] * 2**30 * each_s, abs=4.5)
        flops = cells["model_flop_rate"] * 1e9 * each_s
        assert row.flops is not None
        assert row.flops <= flops * (1 + 1e-9) + 1e-3
    products = {"synth_attn_naive": "gemm_fusion_dot.2", "synth_attn_blocked": "gemm_fusion_dot.3"}
    (product,) = [row for row in ours if row.instruction == products[name]]
    cells = theirs[product.instruction]
    assert product.flops == pytest.approx(cells["model_flop_rate"] * 1e9 * cells["avg_time"] / 1e6, rel=1e-12)
