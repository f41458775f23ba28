"""Tables of compilations hold every record; the stages of a frame sum to its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.programs.programs import programs
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.views import compile as compile_page
from perfscope.dashboards.web.views.compile import REST
from perfscope.model.compile_log import CodeLine, CompileLog, Graph, GraphBreak, GraphNode, LoggedRecompile
from perfscope.model.jax_log import CompileEvent
from tests.build import TraceBuilder, replace
from tests.conftest import REPOSITORY, corpus_files
from tests.torch_compile.logs import MODEL, SECOND, compiled, log_trace, phase
from tests.web.views import view_of

HOSTILE = "<script>alert(1)</script>\x1b[31m=cmd"
AT = CodeLine(file="/home/user/train.py", line=30)


def _log(path: str = "x.log") -> CompileLog:
    nodes = tuple(GraphNode(name=f"n{at}", op="aten.add.Tensor" if at else "aten.mm.default") for at in range(3))
    return CompileLog(
        path=path,
        compiles=(compiled("0/0"), compiled("0/1")),
        phases=(phase("_compile.compile_inner", 0, 4), phase("backend_compile", 1, 3), phase("PyCodegen", 3, 3.5)),
        breaks=tuple(GraphBreak(compile_id="0/0", reason=HOSTILE, place=AT, doc_id="GB0059") for _ in range(3)),
        recompiles=tuple(
            LoggedRecompile(compile_id="0/1", function="forward", place=MODEL, reasons=(f"L['x'].size()[0] == {size}",))
            for size in (4, 8)
        ),
        graphs=(Graph(compile_id="0/0", direction="forward", nodes=nodes),),
    )


def _rows(view: dict[str, Any], name: str) -> list[dict[str, Any]]:
    keys = [column["key"] for column in view["tables"][name]["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in view["tables"][name]["rows"]]


def test_every_record_is_in_a_row(tmp_path: Path) -> None:
    view = view_of("compile", [log_trace(_log())], tmp_path)
    (broken,) = _rows(view, "compile_breaks")
    assert (broken["count"], broken["place"], broken["doc_id"]) == (3, "~/train.py:30", "GB0059")
    assert "\x1b" not in broken["reason"]
    assert sum(row["count"] for row in _rows(view, "compile_recompilations")) == 2
    assert _rows(view, "compile_recompilations")[0]["guard"].startswith("L['x'].size()[0] ==")
    (graph,) = _rows(view, "compile_graphs")
    assert (graph["ops"], graph["direction"], graph["function"]) == (3, "forward", "forward")
    assert graph["frequent_ops"] == "add.Tensor 2x, mm 1x"
    assert "rank" not in graph  # of one process there is no such column


def test_the_page_says_why_torch_compiled_again(tmp_path: Path) -> None:
    held = _log()
    held = replace(held, phases=(*held.phases, phase("_compile.compile_inner", 5, 7, "0/1")))
    view = view_of("compile", [log_trace(held)], tmp_path)
    (row,) = view["again"]
    assert (row["why"], row["values"], row["count"]) == ("The size of x in dimension 0 changes.", ["4", "8"], 2)
    assert "mark_dynamic(x, 0)" in row["fix"]
    assert row["ns"] == _rows(view, "compile_recompilations")[0]["time_ns"] == 2 * SECOND
    (broken,) = view["broken"]
    assert broken["count"] == 3
    assert "\x1b" not in broken["why"]
    assert view["said"][0].startswith("torch.compile: 1 graph")


def test_the_page_says_why_jax_compiled_again(tmp_path: Path) -> None:
    """Two lengths after the first: one row with the sum of their times; a function compiled once has none."""
    events = []
    for number, size in enumerate((8, 16, 32)):
        reason = f"different input types: * at x, now f32[{size}] and before f32[8]" if number else None
        kind = "retrace" if number else "first_trace"
        events.append(CompileEvent(kind=kind, end_ns=100 * number, step=number, function="step", reason=reason))  # type: ignore[arg-type]
        events += [
            CompileEvent(kind="compile", end_ns=100 * number + 50, duration_ns=40, step=number, function="jit(step)",
                         file="train.py", line=7)
        ]  # fmt: skip
    events.append(CompileEvent(kind="compile", end_ns=900, duration_ns=40, step=2, function="jit(once)"))
    trace = replace(TraceBuilder(recorded=frozenset({"compile_events"})).build(), compile_events=tuple(events))
    view = view_of("compile", [trace], tmp_path)
    (row,) = view["again"]
    assert (row["function"], row["line"], row["count"], row["ns"]) == ("step", "train.py:7", 2, 80)
    assert row["why"] == "The shape of x changes."
    assert row["values"] == ["f32[8]", "f32[16]", "f32[32]"]
    assert row["fix"].startswith("Allocate x once")


def test_stages_of_a_frame_sum_to_its_time(tmp_path: Path) -> None:
    (bar,) = view_of("compile", [log_trace(_log())], tmp_path)["bars"]
    assert bar["ns"] == 4 * SECOND == sum(bar["stages"].values())
    assert bar["function"] == "forward"


def test_more_stages_than_colours_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_page, "MOST_STAGES", 1)
    (bar,) = view_of("compile", [log_trace(_log())], tmp_path)["bars"]
    assert len(bar["stages"]) == 2
    assert sum(bar["stages"].values()) == bar["ns"]
    assert bar["stages"][REST] == bar["ns"] - max(bar["stages"].values())


def test_ranks_stand_beside_each_other(tmp_path: Path) -> None:
    view = view_of("compile", [log_trace(_log("a.log"), rank=0), log_trace(_log("b.log"), rank=3)], tmp_path)
    assert [row["rank"] for row in _rows(view, "compile_breaks")] == [0, 3]
    assert view["bars"][0]["rank"] in (0, 3)


def test_what_a_table_leaves_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_page, "MOST_ROWS", 2)
    held = _log()
    lines = tuple(replace(held.breaks[0], place=CodeLine(file="/home/user/train.py", line=at)) for at in range(5))
    view = view_of("compile", [log_trace(replace(held, breaks=lines))], tmp_path)
    assert len(view["tables"]["compile_breaks"]["rows"]) == 2
    assert view["tables"]["compile_breaks"]["left"] == 3


def test_what_jax_logged(tmp_path: Path) -> None:
    trace = TraceBuilder().build()
    trace = replace(
        trace,
        compile_events=(
            CompileEvent(kind="compile", end_ns=9, duration_ns=5, function="step", step=2),
            CompileEvent(kind="retrace", end_ns=9, function="step", file="/home/user/t.py", line=3, reason="new shape"),
        ),
    )
    rows = _rows(view_of("compile", [trace], tmp_path), "jax_compilations")
    assert [row["what"] for row in rows] == ["compiling", "traced again"]
    assert (rows[0]["time_ns"], rows[0]["step"], rows[1]["reason"]) == (5, 2, "new shape")


def test_programs_are_those_of_the_trace(tmp_path: Path) -> None:
    file = REPOSITORY / "fixtures" / "h100-programs" / "attention-blocked-scan-small-dots.hlo.pb.xz"
    traces = load_all(file)
    rows = _rows(view_of("compile", traces, tmp_path), "xla_programs")
    expected = [one for trace in traces for one in trace.fact(programs)]
    assert [(row["flops"], row["bytes"], row["peak_bytes"]) for row in rows] == [
        (one.flops, one.bytes, one.peak_bytes) for one in expected
    ]
    assert all(row["executions"] is None and row["mfu"] is None for row in rows)  # nothing ran


@pytest.mark.corpus
@pytest.mark.parametrize("file", corpus_files("tlparse", "*simple.log.gz") + corpus_files("tlparse", "*cache*.log.gz"))
def test_real_logs(corpus: Path, file: Path, tmp_path: Path) -> None:
    view = view_of("compile", load_all(file), tmp_path)
    assert view["bars"]
    for bar in view["bars"]:
        assert sum(bar["stages"].values()) == bar["ns"]
    assert sum(row["time_ns"] or 0 for row in _rows(view, "compile_frames")) >= sum(bar["ns"] for bar in view["bars"])
