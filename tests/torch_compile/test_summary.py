"""Frames of a log: ids given anew after a reset, whose line a frame is, and when it was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.sections import compile as home
from perfscope.analyzers.sections.compile import MOST_OPS, MOST_PLACES, MOST_ROWS, NO_COMPILE, compile_section
from perfscope.analyzers.torch_compile.frames import (
    compile_spans,
    compiled_frames,
    hit_limit,
    is_users,
    plain_function,
    resumed_at,
)
from perfscope.analyzers.torch_compile.phases import NOT_COMPILING, CompileTimes, Stage, compile_times, exclusive_ns
from perfscope.analyzers.torch_compile.summary import CompileSummary, compile_summary
from perfscope.model.compile_log import (
    CacheResult,
    CodeLine,
    Compile,
    CompiledKernel,
    CompileLog,
    Direction,
    Graph,
    GraphBreak,
    GraphNode,
    LoggedRecompile,
    Phase,
)
from perfscope.model.intervals import union
from perfscope.model.trace import Trace
from tests.build import TraceBuilder, replace
from tests.conftest import corpus_files
from tests.torch_compile.logs import (
    AFTER_TRACE_S,
    MODEL_FRAME,
    SECOND,
    compilation,
    compiled,
    graph_break,
    log_alone,
    log_trace,
    phase,
)

TORCH = CodeLine(file="/src/pytorch/torch/_dynamo/external_utils.py", line=66, function="inner")


def test_an_id_that_comes_again_is_another_frame() -> None:
    compiles = (compilation("0/0", 0.0), compilation("0/1", 10.0), compilation("0/0", 20.0), compilation("0/1", 30.0))
    again = LoggedRecompile(
        compile_id="0/1",
        function="forward",
        place=MODEL_FRAME,
        reasons=("k == 0",),
        time_ns=round((AFTER_TRACE_S + 30) * SECOND),
    )
    first, second = log_alone(CompileLog(path="log", compiles=compiles, recompiles=(again,))).fact(compiled_frames)
    assert [len(frame.compiles) for frame in (first, second)] == [2, 2]
    assert (first.recompiles, second.recompiles) == ((), (again,))


def test_phases_of_an_id_are_parted_by_time() -> None:
    early, late = compilation("0/0", 0.0), compilation("0/0", 20.0)
    phases = tuple(
        Phase(
            name="dynamo",
            start_ns=round((AFTER_TRACE_S + at) * SECOND),
            end_ns=round((AFTER_TRACE_S + at + 2) * SECOND),
            compile_id="0/0",
        )
        for at in (0.0, 20.0, 21.0)
    )
    trace = log_alone(CompileLog(path="log", compiles=(early, late), phases=phases))
    assert [compile_spans(trace, (one,)).total() for one in (early, late)] == [2 * SECOND, 3 * SECOND]
    assert compile_spans(trace, (early, late)).total() == 5 * SECOND


def test_times_are_moved_to_the_clock_of_the_trace() -> None:
    one = compilation("0/0", 0.0)
    trace = log_alone(CompileLog(path="log", compiles=(one,), clock_offset_ns=7))
    assert compile_spans(trace, (one,)).starts.tolist() == [round(AFTER_TRACE_S * SECOND) + 7]


def test_a_frame_of_torchs_is_placed_at_the_users_line() -> None:
    caller = CodeLine(file="/home/user/run.py", line=164, function="main")
    log = CompileLog(path="log", compiles=(compilation("0/0", place=TORCH, function="inner", stack=(caller, TORCH)),))
    (frame,) = log_alone(log).fact(compiled_frames)
    assert (frame.place, frame.user_place) == (TORCH, caller)
    assert [is_users(file) for file in (TORCH.file, caller.file, "/v/lib/python3.12/site-packages/einops/e.py")] == [
        False,
        True,
        False,
    ]


def test_what_follows_a_break_is_named_like_its_function() -> None:
    assert plain_function("torch_dynamo_resume_in_forward_at_44") == "forward"
    assert resumed_at("torch_dynamo_resume_in_forward_at_44") == ("forward", 44)
    assert (plain_function("forward"), resumed_at("forward"), plain_function(None)) == ("forward", None, "a frame")


def test_the_limit_is_known_by_id_and_by_older_words() -> None:
    skip = graph_break(doc_id=None, reason="other", skipped_frame=True)
    assert [hit_limit(one) for one in (
        replace(skip, doc_id="gb0039"), replace(skip, reason="cache_size_limit reached"), skip,
    )] == [True, True, False]  # fmt: skip


LOGS = (
    "simple", "simple_corrupted_json", "cache_hit_miss", "autotune_with_compile_id", "multi_rank_runtime_rank0",
    "multi_rank_runtime_rank1",
)  # fmt: skip


def phase_ns(name: str, start: int, end: int, compile_id: str | None = "0/0", parent: int | None = None) -> Phase:
    return Phase(name=name, start_ns=start, end_ns=end, compile_id=compile_id, parent=parent)


def compile_of(compile_id: str = "0/0", start: int = 0, duration: int = 100) -> Compile:
    return Compile(compile_id=compile_id, function="f", place=None, start_ns=start, duration_ns=duration)


def trace_of_phases(*phases: Phase, compiles: tuple[Compile, ...] = (compile_of(),)) -> Trace:
    trace = TraceBuilder(recorded=frozenset({"compile_log"})).build()
    return replace(trace, compile_log=CompileLog(path="x", compiles=compiles, phases=phases))


def checked_split(trace: Trace) -> CompileTimes:
    """The split, after holding it to the moments in which any phase ran and to its own sums."""
    assert trace.compile_log is not None
    times = trace.fact(compile_times)
    phases = [one for one in trace.compile_log.phases if one.name not in NOT_COMPILING]
    whole = union([one.start_ns for one in phases], [one.end_ns for one in phases]).total()
    assert sum(times.stages_ns.values()) == sum(one.exclusive_ns for one in times.phases) == whole
    assert sum(sum(one.stages_ns.values()) for one in times.compiles) <= whole
    return times


def test_a_phase_takes_its_moments_from_the_one_around_it() -> None:
    times = checked_split(
        trace_of_phases(
            phase_ns("dynamo", 0, 100),
            phase_ns("create_aot_dispatcher_function", 20, 90, parent=0),
            phase_ns("inductor_compile", 30, 80, parent=1),
            phase_ns("code_gen", 40, 70, parent=2),
            phase_ns("async_compile.wait", 50, 60, parent=3),
        )
    )
    assert times.stages_ns == {
        Stage.TRACING: 30, Stage.AOT: 20, Stage.LOWERING: 20, Stage.CODE: 20, Stage.KERNELS: 10,
    }  # fmt: skip
    assert times.compiles[0].stages_ns == times.stages_ns
    assert (times.total_ns, times.compiles[0].total_ns, times.compiles[0].cached_ns) == (100, 100, 70)


def test_threads_side_by_side_count_once() -> None:
    times = checked_split(
        trace_of_phases(phase_ns("compile_file", 0, 60), phase_ns("compile_file", 10, 50), phase_ns("dynamo", 40, 100))
    )
    assert times.stages_ns == {Stage.TRACING: 60, Stage.KERNELS: 40}


def test_what_has_no_phases_is_known_as_a_whole() -> None:
    times = checked_split(trace_of_phases(compiles=(compile_of(), compile_of("0/1", start=200, duration=50))))
    assert ([one.total_ns for one in times.compiles], times.total_ns) == ([100, 50], 150)


def test_an_id_given_anew_stands_for_the_compilation_of_its_time() -> None:
    first, second = compile_of(start=2), compile_of(start=1_002)
    times = checked_split(
        trace_of_phases(phase_ns("dynamo", 0, 100), phase_ns("dynamo", 1_000, 1_300), compiles=(first, second))
    )
    assert [one.total_ns for one in times.compiles] == [100, 300]


def test_a_phase_without_an_id_belongs_to_the_one_around_it_or_to_none() -> None:
    times = checked_split(
        trace_of_phases(
            phase_ns("dynamo", 0, 100),
            phase_ns("InductorBenchmarker.benchmark_gpu", 10, 30, None, 0),
            phase_ns("compile_file", 200, 300, None),
        )
    )
    assert times.compiles[0].stages_ns == {Stage.TRACING: 80, Stage.TUNING: 20}
    assert times.stages_ns == {Stage.TRACING: 80, Stage.TUNING: 20, Stage.KERNELS: 100}


def test_the_first_run_of_the_program_is_no_compiling() -> None:
    assert (
        checked_split(trace_of_phases(phase_ns("CUDAGraphTreeManager.run_eager", 0, 100))).total_ns == 100
    )  # the metrics' duration
    assert checked_split(trace_of_phases(phase_ns("CUDAGraphTreeManager.run_eager", 0, 9), compiles=())).total_ns == 0


def test_without_compiles_there_are_no_times() -> None:
    nothing = compile_times(TraceBuilder().build())
    assert (nothing.total_ns, nothing.compiles, nothing.stages_ns) == (0, (), {})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["dynamo", "inductor_compile", "code_gen", "compile_file"]),
            st.integers(0, 60), st.integers(0, 40), st.sampled_from(["0/0", "1/0", None]),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_any_phases_add_up_to_the_moments_they_lie_in(drawn: list[tuple[str, int, int, str | None]]) -> None:
    phases = [phase_ns(name, start, start + length, owner) for name, start, length, owner in drawn]
    checked_split(trace_of_phases(*phases))
    spent = [0] * len(phases)
    for at in range(101):  # moment by moment, of the phases around it the one that began last
        around = [index for index, one in enumerate(phases) if one.start_ns <= at < one.end_ns]
        if around:
            spent[max(around, key=lambda index: (phases[index].start_ns, -phases[index].end_ns, index))] += 1
    assert exclusive_ns(phases) == spent


@pytest.mark.corpus
@pytest.mark.parametrize("name", LOGS)
def test_the_phases_of_logs_of_every_age_add_up(corpus: Path, name: str) -> None:
    (trace,) = load_all(corpus / f"tlparse/tlparse__{name}.log.gz")
    times = checked_split(trace)
    assert times.total_ns > 0
    assert times.stages_ns.get(Stage.OTHER, 0) < 0.001 * times.total_ns


MS = 1_000_000


def line(number: int, function: str = "f") -> CodeLine:
    return CodeLine(file="/home/user/train.py", line=number, function=function)


def compile_record(compile_id: str = "0/0", function: str = "f", first: int = 10, **more: object) -> Compile:
    parts: dict[str, object] = {"graph_ops": 2, "traced_graphs": 1, "has_code": True, "start_ns": 0, **more}
    return Compile(compile_id=compile_id, function=function, place=line(first, function), **parts)  # type: ignore[arg-type]


def graph(compile_id: str, direction: Direction, ops: int) -> Graph:
    nodes = tuple(GraphNode(name=f"n{index}", op="aten.add.Tensor") for index in range(ops))
    return Graph(compile_id=compile_id, direction=direction, nodes=nodes)


def broken(compile_id: str, at: int, reason: str = "print", **more: object) -> GraphBreak:
    return GraphBreak(compile_id=compile_id, reason=reason, place=line(at), doc_id="gb0059", **more)  # type: ignore[arg-type]


def recompile(compile_id: str, *reasons: str) -> LoggedRecompile:
    return LoggedRecompile(compile_id=compile_id, function="f", place=line(10), reasons=reasons)


def phase_ms(name: str, start_ms: int, end_ms: int, compile_id: str, parent: int | None = None) -> Phase:
    return Phase(name=name, start_ns=start_ms * MS, end_ns=end_ms * MS, compile_id=compile_id, parent=parent)


def trace_of_log(log: CompileLog, builder: TraceBuilder | None = None) -> Trace:
    trace = (builder or TraceBuilder(recorded=frozenset({"compile_log"}))).build()
    return replace(trace, compile_log=log)


def summed(**parts: object) -> CompileSummary:
    found = compile_summary(trace_of_log(CompileLog(path="x.log", **parts)))  # type: ignore[arg-type]
    assert found is not None
    assert_counts(found, CompileLog(path="x.log", **parts))  # type: ignore[arg-type]
    return found


def assert_counts(found: CompileSummary, log: CompileLog) -> None:
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


def test_without_compiles_there_is_no_summary() -> None:
    assert compile_summary(TraceBuilder().build()) is None
    assert compile_summary(trace_of_log(CompileLog(path="x.log"))) is None


def test_a_frame_has_its_graphs_breaks_caches_and_time() -> None:
    caches: dict[str, CacheResult] = {"fx_graph": "hit", "fx_graph_backward": "miss", "aotautograd": "bypass"}
    found = summed(
        compiles=(compile_record(attempts=2, caches=caches, cache_reasons={"aotautograd": "custom op"}),),
        graphs=(graph("0/0", "forward", 3), graph("0/0", "backward", 5)),
        breaks=(broken("0/0", 12), broken("0/0", 12), broken("0/0", 14)),
        phases=(phase_ms("dynamo", 0, 100, "0/0"), phase_ms("inductor_compile", 20, 80, "0/0", 0)),
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
    found = summed(compiles=(compile_record(), compile_record("1/0", "torch_dynamo_resume_in_f_at_12", 12)))
    assert [(frame.function, frame.after_line) for frame in found.frames] == [("f", None), ("f", 12)]
    assert (found.graphs, found.graph_kind) == (2, "dynamo")


def test_states() -> None:
    limit = broken("2/1", 10, "Dynamo recompile limit exceeded", skipped_frame=True)
    found = summed(
        compiles=(
            compile_record("0/0", "good"),
            compile_record("1/0", "given_up", traced_graphs=0, has_code=False),
            compile_record("2/0", "churning"), compile_record("2/1", "churning", traced_graphs=0, has_code=False),
            compile_record("3/0", "empty", traced_graphs=0, has_code=False, graph_ops=None),
            compile_record("4/0", "cut_off", traced_graphs=0, has_code=None, complete=False),
            compile_record("5/0", "later"), compile_record("5/1", "later", traced_graphs=0, has_code=False),
            compile_record("6/0", "failed", traced_graphs=0, has_code=False, fail_type="Unsupported"),
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
        compiles=tuple(compile_record(f"0/{turn}") for turn in range(5)),
        recompiles=(
            recompile("0/1", "rate == 0.1"), recompile("0/2", "rate == 0.2", "rate == 0.1"),
            recompile("0/3", "tensor 'x' size mismatch at index 0. expected 4, actual 5"), recompile("0/4"),
        ),
    )  # fmt: skip
    assert [(row.count, row.guard, row.values) for row in found.recompile_rows] == [
        (2, "rate == 0.1", ("0.1", "0.2")),
        (1, "tensor 'x' size mismatch at index 0. expected 4, actual 5", ("4", "5")),
        (1, "the log has no guard", ()),
    ]


def test_an_id_given_anew_is_another_frame() -> None:
    found = summed(
        compiles=(
            compile_record("0/0", "f", start_ns=0),
            compile_record("0/0", "g", 30, start_ns=1_000 * MS, has_code=False, traced_graphs=1),
        ),
        graphs=(graph("0/0", "forward", 3), graph("0/0", "backward", 4), graph("0/0", "forward", 7)),
        breaks=(broken("0/0", 12, time_ns=5 * MS), broken("0/0", 31, time_ns=1_005 * MS)),
        phases=(phase_ms("dynamo", 0, 100, "0/0"), phase_ms("dynamo", 990, 1_040, "0/0")),
    )
    frames = {frame.function: frame for frame in found.frames}
    assert [one.ops_most for one in frames["f"].graphs] == [3, 4]
    assert [one.ops_most for one in frames["g"].graphs] == [7]
    assert (frames["f"].time_ns, frames["g"].time_ns) == (100 * MS, 50 * MS)
    assert (frames["f"].breaks, frames["g"].breaks, found.breaks) == (1, 0, 1)


def test_compile_time_in_the_traced_steps() -> None:
    builder = TraceBuilder(recorded=frozenset({"compile_log"}))
    builder.step(3, 10_000, 30_000)  # us
    log = CompileLog(
        path="x.log", compiles=(compile_record(),), phases=(phase_ms("dynamo", 0, 15, "0/0"),), clock_offset_ns=MS
    )
    found = compile_summary(trace_of_log(log, builder))
    assert found is not None
    assert (found.total_ns, found.in_steps_ns) == (15 * MS, 6 * MS)
    assert summed(compiles=(compile_record(),)).in_steps_ns is None


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus_files("tlparse", "*.log.gz"), ids=lambda path: path.name)
def test_the_summaries_of_logs_of_every_age_add_up(path: Path) -> None:
    (trace,) = load_all(path)
    found = trace.fact(compile_summary)
    assert found is not None
    assert trace.compile_log is not None
    assert_counts(found, trace.compile_log)
    assert found.total_ns > 0


def rank_trace(rank: int | None, seconds: float = 1.0, frames: int = 1) -> Trace:
    log = CompileLog(
        path=f"rank{rank}.log",
        compiles=tuple(compiled(f"{n}/0", place=CodeLine(file="/u/t.py", line=n)) for n in range(frames)),
        phases=(phase("dynamo", 0, seconds),),
    )
    return log_trace(log, rank=rank)


def test_without_compiles_the_section_is_empty() -> None:
    assert compile_section([TraceBuilder().build()]) == NO_COMPILE
    assert compile_section([log_trace(CompileLog(path="x.log"))]) == NO_COMPILE
    assert analyze(TraceBuilder().build(), rules=[]).compile == NO_COMPILE


def test_the_lists_are_those_of_the_rank_that_compiled_longest() -> None:
    section = compile_section([rank_trace(0), rank_trace(1, 3.0, frames=2), rank_trace(2)])
    assert [(one.label, one.rank, one.frames, one.total_ns) for one in section.ranks] == [
        ("rank 0", 0, 1, SECOND), ("rank 1", 1, 2, 3 * SECOND), ("rank 2", 2, 1, SECOND),
    ]  # fmt: skip
    assert section.ranks[0].counts() == section.ranks[2].counts() != section.ranks[1].counts()
    assert section.detail is not None
    assert (section.detail_label, len(section.detail.frames)) == ("rank 1", 2)


def test_logs_without_a_rank_are_numbered() -> None:
    assert [one.label for one in compile_section([rank_trace(None), rank_trace(None)]).ranks] == [
        "source 0",
        "source 1",
    ]


def test_long_lists_are_bounded_and_counted() -> None:
    many = 3 * MOST_ROWS
    places = tuple(CodeLine(file="/u/t.py", line=n) for n in range(many))
    log = CompileLog(
        path="x.log",
        compiles=tuple(compiled(f"{n}/0", place=places[n]) for n in range(many)),
        breaks=tuple(GraphBreak(compile_id=f"{n}/0", reason="r", place=places[n]) for n in range(many)) * 2,
        recompiles=tuple(
            LoggedRecompile(compile_id=f"{n}/0", function="f", place=places[n], reasons=("k == 1",))
            for n in range(many)
        ),
        kernels=tuple(
            CompiledKernel(
                name=f"triton_poi_fused_{n}", backend="triton", compile_id="0/0", direction="forward",
                ops=tuple(f"aten.op{index}" for index in range(2 * MOST_OPS)), places=places,
            )
            for n in range(many)
        ),
    )  # fmt: skip
    section = compile_section([log_trace(log)])
    detail = section.detail
    assert detail is not None
    assert {len(rows) for rows in (detail.frames, detail.break_rows, detail.recompile_rows, detail.kernels)} == {
        MOST_ROWS
    }
    assert set(section.left.values()) == {many - MOST_ROWS}
    assert sum(row.count for row in detail.break_rows) + section.left_records["breaks"] == len(log.breaks)
    assert sum(row.count for row in detail.recompile_rows) + section.left_records["recompiles"] == len(log.recompiles)
    assert (len(detail.kernels[0].ops), len(detail.kernels[0].places)) == (MOST_OPS, MOST_PLACES)


def test_what_breaks_is_said_and_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Trace) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(home, "compile_summary", broken)
    held = analyze(rank_trace(0), rules=["host_sync"])
    assert held.compile.detail is None
    assert held.compile.problems == ("what torch.compile did could not be summed up: KeyError: 'odd'",)
    assert [outcome.rule for outcome in held.outcomes] == ["host_sync"]
