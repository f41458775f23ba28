"""Work of steps that only dispatch: linked by hand-made calls and runs, and on a real profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.time.steps import StepsWork, late_span_ns, per_step, step_windows, steps_work, whole_ns
from perfscope.model.jax_log import HostRead
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.readers.wire import SpaceWriter

US = 1_000_000
"""ps"""
OTHER = "jit__lambda_"
"""Module of ``jax.jit(lambda ...)``."""
Event = tuple[Any, ...]


def step(number: int, start: float, end: float) -> Event:
    return "train", int(start * US), int(end * US), {"step_num": number}


def call(name: str, start: float, end: float) -> Event:
    return f"PjitFunction({name})", int(start * US), int(end * US)


def op(start: float, end: float, *, run: int, module: str = "jit_step", device: int = 0) -> Event:
    stats = {"hlo_op": "dot.1", "hlo_module": module, "program_id": 3, "run_id": run, "device_ordinal": device}
    return "dot.1", int(start * US), int(end * US), stats


def read(folder: Path, **threads: list[Event]) -> Trace:
    path = folder / "x.xplane.pb"
    path.write_bytes(SpaceWriter().plane("/host:CPU", threads).bytes())
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    return trace


def work_of(trace: Trace) -> StepsWork:
    work = trace.fact(steps_work)
    assert work is not None
    return work


DISPATCH = [
    step(2, 0, 10), call("step", 1, 9),
    step(3, 10, 20), call("step", 11, 19),
    step(4, 20, 30), call("step", 21, 29),
]  # fmt: skip


def test_each_execution_goes_to_the_step_that_called_it(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        python=DISPATCH,
        pool=[op(5, 40, run=7), op(50, 100, run=7), op(110, 200, run=8), op(200, 290, run=9)],
        other=[op(30, 60, run=7, device=1)],
    )
    base = int(trace.rows["steps"]["start_ns"][0])
    work = work_of(trace)
    assert [(one.number, one.end_ns - base, one.complete_ns) for one in work.steps] == [
        (2, 100_000, 100_000), (3, 200_000, 100_000), (4, 290_000, 90_000),
    ]  # fmt: skip
    assert (work.late, work.span_ns) == (True, 290_000)


def test_shares_are_of_the_work_of_the_steps_and_not_of_their_dispatch(tmp_path: Path) -> None:
    trace = read(tmp_path, python=DISPATCH, pool=[op(5, 100, run=7), op(110, 200, run=8), op(200, 290, run=9)])
    assert whole_ns(trace) == 290_000
    assert per_step(trace, 29_000) == 9_667
    steps = analyze(trace, []).steps
    assert [(one.number, one.duration_ns, one.traced) for one in steps] == [
        (2, 100_000, True),
        (3, 100_000, True),
        (4, 90_000, True),
    ]
    assert sum(one.duration_ns for one in steps) == whole_ns(trace)


def test_a_step_that_waits_is_as_long_as_the_host_says(tmp_path: Path) -> None:
    python = [step(0, 0, 100), call("step", 1, 9), step(1, 150, 250), call("step", 151, 160)]
    trace = read(tmp_path, python=python, pool=[op(5, 99, run=1), op(155, 251, run=2)])
    assert not work_of(trace).late, "the last instruction's end mark may come when the host knows already"
    assert late_span_ns(trace) is None
    assert whole_ns(trace) == 200_000, "what lies between two steps is of none"
    assert [one.duration_ns for one in analyze(trace, []).steps] == [100_000, 100_000]


def test_a_step_that_reads_what_the_step_before_gave_is_as_long_as_the_host_says(tmp_path: Path) -> None:
    python = [step(0, 0, 100), call("step", 90, 99), step(1, 100, 200), call("step", 190, 199)]

    def late(*ops: Event, reads: tuple[int, ...]) -> bool:
        told = [
            HostRead(call="item", begin_ns=0, duration_ns=1, traced=True, main_thread=True, step=one) for one in reads
        ]
        return work_of(replace(read(tmp_path, python=python, pool=list(ops)), host_reads=tuple(told))).late

    one_is_left = (op(110, 150, run=1), op(210, 250, run=2))
    assert not late(*one_is_left, reads=(0, 1))
    assert late(*one_is_left, reads=(1,)), "a step that reads nothing may leave its work to later ones"
    assert late(*one_is_left, reads=())
    assert late(op(210, 250, run=1), op(250, 290, run=2), reads=(0, 1)), "work of two steps is left"


def test_programs_are_told_apart_by_the_name_of_their_function(tmp_path: Path) -> None:
    python = [
        step(0, 0, 10), call("<lambda>", 1, 3), call("step", 4, 9),
        step(1, 10, 20), call("step", 11, 15), call("<lambda>", 16, 19),
    ]  # fmt: skip

    trace = read(
        tmp_path, python=python, pool=[op(2, 5, run=1, module=OTHER), op(20, 60, run=4, module=OTHER)],
        step=[op(5, 30, run=2), op(30, 50, run=3)],
    )  # fmt: skip
    base = int(trace.rows["steps"]["start_ns"][0])
    assert [one.end_ns - base for one in work_of(trace).steps] == [30_000, 60_000]


def test_the_call_in_which_the_recording_stopped_is_the_last(tmp_path: Path) -> None:
    pool = [op(2, 12, run=7), op(12, 60, run=8), op(60, 100, run=9)]
    trace = read(tmp_path, python=DISPATCH[:-1], pool=pool)
    base = int(trace.rows["steps"]["start_ns"][0])
    assert [one.end_ns - base for one in work_of(trace).steps] == [12_000, 60_000, 100_000]


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param([op(5, 100, run=7), op(110, 200, run=8)], id="a run is missing"),
        pytest.param([op(5, 100, run=7), op(6, 16, run=8), op(110, 200, run=9)], id="work before its call"),
        pytest.param([op(5, 100, run=7, module="jit_other")], id="another program"),
    ],
)
def test_what_cannot_be_linked_gives_a_span_and_no_steps(tmp_path: Path, pool: list[Event]) -> None:
    trace = read(tmp_path, python=DISPATCH, pool=pool)
    work = work_of(trace)
    assert work.steps == ()
    assert work.late
    assert whole_ns(trace) == max(end for _, _, end, _ in pool) // 1000
    assert not analyze(trace, []).steps, "the dispatch is not shown for the step"
    assert trace.fact(step_windows).count == 3, "a cost is still known by the step"


def test_kernels_go_to_the_step_in_which_they_were_launched() -> None:
    build = TraceBuilder()
    for number, start in enumerate((0, 10)):
        build.step(number, start, start + 10)
        build.launched("dot", start + 2, 20 + 50 * number, 70 + 50 * number, correlation=number)
        build.row("hlo_ops", start_ns=20_000 + 50_000 * number, end_ns=70_000 + 50_000 * number,
                  name=build.code("dot.1"), module=build.code("jit_step"), program_id=1, kernel=number,
                  encloses=False)  # fmt: skip
    trace = build.build()
    assert [(one.end_ns, one.complete_ns) for one in work_of(trace).steps] == [(70_000, 70_000), (120_000, 50_000)]


def test_a_trace_without_programs_has_no_such_fact() -> None:
    build = TraceBuilder()
    build.step(0, 0, 10)
    build.kernel("k", 5, 100)
    trace = build.build()
    assert trace.fact(steps_work) is None
    assert whole_ns(trace) == 10_000
