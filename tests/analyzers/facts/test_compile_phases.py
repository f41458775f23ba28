"""The parts of compiling add up to the moments in which anything was compiled, whatever the phases overlap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compile_log import Compile, CompileLog, Phase
from perfscope.analyzers.facts.compile_phases import PARTS, CompileTime, compile_time, split_time
from perfscope.analyzers.facts.intervals import union
from perfscope.analyzers.readers.torch_trace import read_log
from tests.build import TraceBuilder

LOGS = (
    "simple", "simple_corrupted_json", "cache_hit_miss", "autotune_with_compile_id", "multi_rank_runtime_rank0",
    "multi_rank_runtime_rank1",
)  # fmt: skip


def phase(name: str, start: int, end: int, compile_id: str | None = "0/0", parent: int | None = None) -> Phase:
    return Phase(name=name, start_ns=start, end_ns=end, compile_id=compile_id, parent=parent)


def compiled(compile_id: str = "0/0", start: int = 0, duration: int = 100) -> Compile:
    return Compile(compile_id=compile_id, function="f", place=None, start_ns=start, duration_ns=duration)


def log(*phases: Phase, compiles: tuple[Compile, ...] = (compiled(),)) -> CompileLog:
    return CompileLog(path="x", compiles=compiles, phases=phases)


def adds_up(held: CompileLog) -> CompileTime:
    """The split, after holding it to the union of all that was timed and to its own sums."""
    time = split_time(held)
    assert sum(time.by_part.values()) == time.total_ns
    assert sum(sum(parts.values()) for parts in time.by_compile.values()) == time.total_ns
    assert set(time.by_part) <= set(PARTS)
    assert all(one.start_ns < one.end_ns for one in time.segments)
    assert all(one.end_ns <= two.start_ns for one, two in pairwise(time.segments))
    metrics = [(one.start_ns or 0, (one.start_ns or 0) + (one.duration_ns or 0)) for one in held.compiles]
    phases = [(one.start_ns, one.end_ns) for one in held.phases]
    starts, ends = zip(*(metrics + phases), strict=True) if metrics or phases else ((), ())
    most = union(starts, ends).total()
    least = union([start for start, _ in phases], [end for _, end in phases]).total()
    assert least <= time.total_ns <= most
    return time


def test_a_phase_takes_its_moments_from_the_one_around_it() -> None:
    time = adds_up(
        log(
            phase("dynamo", 0, 100),
            phase("backend_compile", 20, 90, parent=0),
            phase("inductor_compile", 30, 80, parent=1),
            phase("code_gen", 40, 70, parent=2),
            phase("async_compile.wait", 50, 60, parent=3),
        )
    )
    assert time.by_part == {
        "dynamo": 30, "aot_autograd": 20, "inductor": 20, "codegen": 20, "kernel_compiler": 10,
    }  # fmt: skip
    assert time.by_compile == {0: time.by_part}


def test_the_longest_name_that_fits_counts_and_an_unknown_one_is_part_of_what_is_around_it() -> None:
    time = adds_up(
        log(
            phase("Scheduler.__init__", 0, 10),
            phase("Scheduler.codegen", 10, 30),
            phase("CachingAutotuner.benchmark_all_configs", 30, 60),
            phase("a new name", 40, 50, parent=2),
            phase("a new name", 60, 61),
        )
    )
    assert time.by_part == {"inductor": 10, "codegen": 20, "autotuning": 30, "unsplit": 1}


def test_threads_side_by_side_count_once() -> None:
    time = adds_up(log(phase("compile_file", 0, 60), phase("compile_file", 10, 50), phase("dynamo", 40, 100)))
    assert time.by_part == {"dynamo": 60, "kernel_compiler": 40}


def test_what_has_no_phases_is_known_as_a_whole() -> None:
    again = compiled("0/1", start=200, duration=50)
    time = adds_up(log(phase("dynamo", 0, 100), compiles=(compiled(), again)))
    assert time.by_part == {"dynamo": 100, "unsplit": 50}
    assert time.by_compile == {0: {"dynamo": 100}, 1: {"unsplit": 50}}


def test_an_id_given_anew_stands_for_the_compilation_of_its_time() -> None:
    first, second = compiled(start=2), compiled(start=1_002)
    time = adds_up(log(phase("dynamo", 0, 100), phase("dynamo", 1_000, 1_100), compiles=(first, second)))
    assert time.by_compile == {0: {"dynamo": 100}, 1: {"dynamo": 100}}


def test_a_phase_without_an_id_belongs_to_the_one_around_it_or_to_none() -> None:
    held = log(phase("dynamo", 0, 100), phase("InductorBenchmarker.benchmark_gpu", 10, 30, None, 0),
               phase("compile_file", 200, 300, None))  # fmt: skip
    time = adds_up(held)
    assert time.by_compile == {0: {"dynamo": 80, "autotuning": 20}, None: {"kernel_compiler": 100}}


def test_nothing_was_compiled() -> None:
    nothing = compile_time(TraceBuilder().build())
    assert (nothing.total_ns, nothing.segments, nothing.by_part) == (0, (), {})
    assert split_time(log(compiles=())).total_ns == 0


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
    time = adds_up(log(*phases, compiles=()))
    assert time.total_ns == len({at for one in phases for at in range(one.start_ns, one.end_ns)})
    for one in time.segments:  # of the phases around a moment it is one that began last
        around = [other for other in phases if other.start_ns <= one.start_ns < other.end_ns]
        assert max(other.start_ns for other in around) <= one.start_ns


@pytest.mark.corpus
@pytest.mark.parametrize("name", LOGS)
def test_logs_of_every_age_add_up(corpus: Path, name: str) -> None:
    held = read_log(corpus / f"tlparse/tlparse__{name}.log.gz")
    time = adds_up(held)
    assert time.total_ns > 0
    assert time.by_part.get("unsplit", 0) < 0.001 * time.total_ns
