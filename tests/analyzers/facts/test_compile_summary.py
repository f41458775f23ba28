"""The summary of a log of torch.compile: every record in one row, every moment in one frame, states told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.compile_log import (
    CacheResult,
    Compile,
    CompileLog,
    Direction,
    Graph,
    GraphBreak,
    GraphNode,
    Phase,
    Place,
    Recompile,
)
from perfscope.analyzers.facts.compile_phases import Stage
from perfscope.analyzers.facts.compile_summary import CompileSummary, compile_summary
from perfscope.analyzers.load import load
from perfscope.analyzers.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files

MS = 1_000_000


def line(number: int, function: str = "f") -> Place:
    return Place(file="/home/user/train.py", line=number, function=function)


def compiled(compile_id: str = "0/0", function: str = "f", first: int = 10, **more: object) -> Compile:
    parts: dict[str, object] = {"graph_ops": 2, "traced_graphs": 1, "has_code": True, "start_ns": 0, **more}
    return Compile(compile_id=compile_id, function=function, place=line(first, function), **parts)  # type: ignore[arg-type]


def graph(compile_id: str, direction: Direction, ops: int) -> Graph:
    nodes = tuple(GraphNode(name=f"n{index}", op="aten.add.Tensor") for index in range(ops))
    return Graph(compile_id=compile_id, direction=direction, nodes=nodes)


def broken(compile_id: str, at: int, reason: str = "print", **more: object) -> GraphBreak:
    return GraphBreak(compile_id=compile_id, reason=reason, place=line(at), doc_id="gb0059", **more)  # type: ignore[arg-type]


def again(compile_id: str, *reasons: str) -> Recompile:
    return Recompile(compile_id=compile_id, function="f", place=line(10), reasons=reasons)


def phase(name: str, start_ms: int, end_ms: int, compile_id: str, parent: int | None = None) -> Phase:
    return Phase(name=name, start_ns=start_ms * MS, end_ns=end_ms * MS, compile_id=compile_id, parent=parent)


def traced(log: CompileLog, builder: TraceBuilder | None = None) -> Trace:
    trace = (builder or TraceBuilder(recorded=frozenset({"compile_log"}))).build()
    trace.compile_log = log
    return trace


def summed(**parts: object) -> CompileSummary:
    found = compile_summary(traced(CompileLog(path="x.log", **parts)))  # type: ignore[arg-type]
    assert found is not None
    adds_up(found, CompileLog(path="x.log", **parts))  # type: ignore[arg-type]
    return found


def adds_up(found: CompileSummary, log: CompileLog) -> None:
    """Every count is the log's."""
    assert sum(row.count for row in found.break_rows) == len(log.breaks)
    assert sum(row.count for row in found.recompile_rows) == found.recompiles == len(log.recompiles)
    assert sum(frame.compiles for frame in found.frames) == found.compiles == len(log.compiles)
    assert sum(row.calls for row in found.kernels) == sum(one.calls for one in log.kernels)
    assert sum(frame.recompiles for frame in found.frames) <= found.recompiles
    if log.graphs:
        assert sum(group.count for frame in found.frames for group in frame.graphs) == found.graphs == len(log.graphs)
    assert sum(found.stages_ns.values()) in (0, found.total_ns)
    assert sum(frame.time_ns for frame in found.frames) + found.unowned_ns == found.total_ns
    assert found.unowned_ns >= 0
    for frame in found.frames:
        assert sum(frame.stages_ns.values()) in (0, frame.time_ns)


def test_nothing_was_compiled() -> None:
    assert compile_summary(TraceBuilder().build()) is None
    assert compile_summary(traced(CompileLog(path="x.log"))) is None


def test_a_frame_has_its_graphs_breaks_caches_and_time() -> None:
    caches: dict[str, CacheResult] = {"fx_graph": "hit", "fx_graph_backward": "miss", "aotautograd": "bypass"}
    found = summed(
        compiles=(compiled(attempts=2, caches=caches, cache_reasons={"aotautograd": "custom op"}),),
        graphs=(graph("0/0", "forward", 3), graph("0/0", "backward", 5)),
        breaks=(broken("0/0", 12), broken("0/0", 12), broken("0/0", 14)),
        phases=(phase("dynamo", 0, 100, "0/0"), phase("inductor_compile", 20, 80, "0/0", 0)),
    )
    (frame,) = found.frames
    assert [(one.direction, one.count, one.ops_least, one.ops_most) for one in frame.graphs] == [
        ("forward", 1, 3, 3), ("backward", 1, 5, 5),
    ]  # fmt: skip
    assert (frame.breaks, frame.restarts, frame.state) == (3, 1, "compiled")
    assert frame.caches == {"fx_graph": {"hit": 1, "miss": 1}, "aotautograd": {"bypass": 1}}
    assert frame.cache_reasons == ("custom op",)
    assert frame.stages_ns == {Stage.LOWERING: 60 * MS, Stage.TRACING: 40 * MS}
    assert (found.total_ns, found.graph_kind, found.breaks) == (100 * MS, "inductor", 3)
    assert [(row.count, row.place and row.place.line) for row in found.break_rows] == [(2, 12), (1, 14)]


def test_what_follows_a_break_is_a_frame_of_its_own() -> None:
    found = summed(compiles=(compiled(), compiled("1/0", "torch_dynamo_resume_in_f_at_12", 12)))
    assert [(frame.function, frame.after_line) for frame in found.frames] == [("f", None), ("f", 12)]
    assert (found.graphs, found.graph_kind) == (2, "dynamo")


def test_states() -> None:
    limit = broken("2/1", 10, "Dynamo recompile limit exceeded", skipped_frame=True)
    found = summed(
        compiles=(
            compiled("0/0", "good"),
            compiled("1/0", "given_up", traced_graphs=0, has_code=False),
            compiled("2/0", "churning"), compiled("2/1", "churning", traced_graphs=0, has_code=False),
            compiled("3/0", "empty", traced_graphs=0, has_code=False, graph_ops=None),
            compiled("4/0", "cut_off", traced_graphs=0, has_code=None, complete=False),
            compiled("5/0", "later"), compiled("5/1", "later", traced_graphs=0, has_code=False),
            compiled("6/0", "failed", traced_graphs=0, has_code=False, fail_type="Unsupported"),
        ),
        breaks=(broken("1/0", 11, skipped_frame=True), limit),
    )  # fmt: skip
    assert {frame.function: frame.state for frame in found.frames} == {
        "good": "compiled", "given_up": "eager", "churning": "recompile limit", "empty": "nothing to compile",
        "cut_off": "unfinished", "later": "partly eager", "failed": "eager",
    }  # fmt: skip
    assert (found.eager_frames, found.limit_frames, found.breaks) == (3, 1, 0)
    assert all(row.whole_frame for row in found.break_rows)


def test_guards_on_one_thing_are_one_row_with_their_values() -> None:
    found = summed(
        compiles=tuple(compiled(f"0/{turn}") for turn in range(5)),
        recompiles=(
            again("0/1", "rate == 0.1"), again("0/2", "rate == 0.2", "rate == 0.1"),
            again("0/3", "tensor 'x' size mismatch at index 0. expected 4, actual 5"), again("0/4"),
        ),
    )  # fmt: skip
    assert [(row.count, row.guard, row.values) for row in found.recompile_rows] == [
        (2, "rate == 0.1", ("0.1", "0.2")),
        (1, "tensor 'x' size mismatch at index 0. expected 4, actual 5", ("4", "5")),
        (1, "the log names no guard", ()),
    ]


def test_an_id_given_anew_is_another_frame() -> None:
    found = summed(
        compiles=(compiled("0/0", "f", start_ns=0), compiled("0/0", "g", 30, start_ns=1_000 * MS, has_code=False,
                                                             traced_graphs=1)),
        graphs=(graph("0/0", "forward", 3), graph("0/0", "backward", 4), graph("0/0", "forward", 7)),
        breaks=(broken("0/0", 12, time_ns=5 * MS), broken("0/0", 31, time_ns=1_005 * MS)),
        phases=(phase("dynamo", 0, 100, "0/0"), phase("dynamo", 990, 1_040, "0/0")),
    )  # fmt: skip
    frames = {frame.function: frame for frame in found.frames}
    assert [one.ops_most for one in frames["f"].graphs] == [3, 4]
    assert [one.ops_most for one in frames["g"].graphs] == [7]
    assert (frames["f"].time_ns, frames["g"].time_ns) == (100 * MS, 50 * MS)
    assert (frames["f"].breaks, frames["g"].breaks, found.breaks) == (1, 0, 1)


def test_compile_time_in_the_traced_steps() -> None:
    builder = TraceBuilder(recorded=frozenset({"compile_log"}))
    builder.step(3, 10_000, 30_000)  # us
    log = CompileLog(path="x.log", compiles=(compiled(),), phases=(phase("dynamo", 0, 15, "0/0"),), clock_offset_ns=MS)
    found = compile_summary(traced(log, builder))
    assert found is not None
    assert (found.total_ns, found.in_steps_ns) == (15 * MS, 6 * MS)
    assert summed(compiles=(compiled(),)).in_steps_ns is None


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus_files("tlparse", "*.log.gz"), ids=lambda path: path.name)
def test_logs_of_every_age_add_up(path: Path) -> None:
    (trace,) = load(path)
    found = trace.fact(compile_summary)
    assert found is not None
    assert trace.compile_log is not None
    adds_up(found, trace.compile_log)
    assert found.total_ns > 0
