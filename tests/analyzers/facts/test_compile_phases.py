"""The parts of compiling add up to the moments in which anything was compiled, whatever the phases overlap."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compile_log import Compile, CompileLog, Phase
from perfscope.analyzers.facts.compile_phases import NOT_COMPILING, CompileTimes, Stage, compile_times, exclusive_ns
from perfscope.analyzers.facts.intervals import union
from perfscope.analyzers.load import load
from perfscope.analyzers.trace import Trace
from tests.build import TraceBuilder

LOGS = (
    "simple", "simple_corrupted_json", "cache_hit_miss", "autotune_with_compile_id", "multi_rank_runtime_rank0",
    "multi_rank_runtime_rank1",
)  # fmt: skip


def phase(name: str, start: int, end: int, compile_id: str | None = "0/0", parent: int | None = None) -> Phase:
    return Phase(name=name, start_ns=start, end_ns=end, compile_id=compile_id, parent=parent)


def compiled(compile_id: str = "0/0", start: int = 0, duration: int = 100) -> Compile:
    return Compile(compile_id=compile_id, function="f", place=None, start_ns=start, duration_ns=duration)


def traced(*phases: Phase, compiles: tuple[Compile, ...] = (compiled(),)) -> Trace:
    trace = TraceBuilder(recorded=frozenset({"compile_log"})).build()
    trace.compile_log = CompileLog(path="x", compiles=compiles, phases=phases)
    return trace


def adds_up(trace: Trace) -> CompileTimes:
    """The split, after holding it to the moments in which any phase ran and to its own sums."""
    assert trace.compile_log is not None
    times = trace.fact(compile_times)
    phases = [one for one in trace.compile_log.phases if one.name not in NOT_COMPILING]
    whole = union([one.start_ns for one in phases], [one.end_ns for one in phases]).total()
    assert sum(times.stages_ns.values()) == sum(one.exclusive_ns for one in times.phases) == whole
    assert sum(sum(one.stages_ns.values()) for one in times.compiles) <= whole
    return times


def test_a_phase_takes_its_moments_from_the_one_around_it() -> None:
    times = adds_up(
        traced(
            phase("dynamo", 0, 100),
            phase("create_aot_dispatcher_function", 20, 90, parent=0),
            phase("inductor_compile", 30, 80, parent=1),
            phase("code_gen", 40, 70, parent=2),
            phase("async_compile.wait", 50, 60, parent=3),
        )
    )
    assert times.stages_ns == {
        Stage.TRACING: 30, Stage.AOT: 20, Stage.LOWERING: 20, Stage.CODE: 20, Stage.KERNELS: 10,
    }  # fmt: skip
    assert times.compiles[0].stages_ns == times.stages_ns
    assert (times.total_ns, times.compiles[0].total_ns, times.compiles[0].cached_ns) == (100, 100, 70)


def test_threads_side_by_side_count_once() -> None:
    times = adds_up(traced(phase("compile_file", 0, 60), phase("compile_file", 10, 50), phase("dynamo", 40, 100)))
    assert times.stages_ns == {Stage.TRACING: 60, Stage.KERNELS: 40}


def test_what_has_no_phases_is_known_as_a_whole() -> None:
    times = adds_up(traced(compiles=(compiled(), compiled("0/1", start=200, duration=50))))
    assert ([one.total_ns for one in times.compiles], times.total_ns) == ([100, 50], 150)


def test_an_id_given_anew_stands_for_the_compilation_of_its_time() -> None:
    first, second = compiled(start=2), compiled(start=1_002)
    times = adds_up(traced(phase("dynamo", 0, 100), phase("dynamo", 1_000, 1_300), compiles=(first, second)))
    assert [one.total_ns for one in times.compiles] == [100, 300]


def test_a_phase_without_an_id_belongs_to_the_one_around_it_or_to_none() -> None:
    times = adds_up(
        traced(
            phase("dynamo", 0, 100),
            phase("InductorBenchmarker.benchmark_gpu", 10, 30, None, 0),
            phase("compile_file", 200, 300, None),
        )
    )
    assert times.compiles[0].stages_ns == {Stage.TRACING: 80, Stage.TUNING: 20}
    assert times.stages_ns == {Stage.TRACING: 80, Stage.TUNING: 20, Stage.KERNELS: 100}


def test_the_first_run_of_the_program_is_no_compiling() -> None:
    assert adds_up(traced(phase("CUDAGraphTreeManager.run_eager", 0, 100))).total_ns == 100  # the metrics' duration
    assert adds_up(traced(phase("CUDAGraphTreeManager.run_eager", 0, 9), compiles=())).total_ns == 0


def test_nothing_was_compiled() -> None:
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
    phases = [phase(name, start, start + length, owner) for name, start, length, owner in drawn]
    adds_up(traced(*phases))
    spent = [0] * len(phases)
    for at in range(101):  # moment by moment, of the phases around it the one that began last
        around = [index for index, one in enumerate(phases) if one.start_ns <= at < one.end_ns]
        if around:
            spent[max(around, key=lambda index: (phases[index].start_ns, -phases[index].end_ns, index))] += 1
    assert exclusive_ns(phases) == spent


@pytest.mark.corpus
@pytest.mark.parametrize("name", LOGS)
def test_logs_of_every_age_add_up(corpus: Path, name: str) -> None:
    (trace,) = load(corpus / f"tlparse/tlparse__{name}.log.gz")
    times = adds_up(trace)
    assert times.total_ns > 0
    assert times.stages_ns.get(Stage.OTHER, 0) < 0.001 * times.total_ns
