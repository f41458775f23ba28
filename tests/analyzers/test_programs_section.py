"""The section of compiled programs: bounded, summed over traces, and never in the way of the findings."""

from __future__ import annotations

import pytest

from perfscope.analyzers import programs_section as home
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.programs_section import MOST_PROGRAMS, MOST_ROWS, MOST_SPOTS, programs_section
from perfscope.analyzers.trace import Trace
from tests.analyzers.facts.test_programs import loop, step
from tests.build import TraceBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace


def cpu_trace(instructions: int = 1) -> Trace:
    """Instructions of XLA's CPU backend of 70 us, 10 us of it in the call that began each; no module is recorded."""
    builder = TraceBuilder(recorded=frozenset({"host_ops"}))
    module = builder.code("jit_f")
    for index in range(instructions):
        start = 100_000 * index
        builder.row("hlo_ops", start_ns=start, end_ns=start + 70_000, launch_end_ns=start + 10_000,
                    name=builder.code(f"add.{index}"), module=module, program_id=3, run_id=1, ordinal=0,
                    encloses=False)  # fmt: skip
    return builder.build()


def test_no_programs() -> None:
    assert programs_section([TraceBuilder().build()]) == home.NO_PROGRAMS


def test_what_ran_on_the_cpu() -> None:
    section = programs_section([cpu_trace()])
    assert (section.on_cpu, section.ran, section.instructions_ns) == (True, 1, 70_000)
    (program,) = section.programs
    assert program.execution is not None
    assert program.execution.launch_ns == 10_000


def test_what_ran_on_a_device() -> None:
    assert not programs_section([recorded_trace(step(), ops=[("dot", 0, 300)], runs=[1])]).on_cpu


def test_programs_alone_did_not_run_anywhere() -> None:
    section = programs_section([hlo_trace(step())])
    assert (section.on_cpu, section.ran, section.instructions_ns) == (False, 0, 0)


def test_many_programs_and_instructions_are_bounded_and_counted() -> None:
    lines = "\n".join(f"  add.{i} = f32[1024]{{0}} add(a, a), {GPU}" for i in range(3 * MOST_ROWS))
    head, root = "ENTRY main {\n  a = f32[1024]{0} parameter(0)\n", f"  ROOT out = f32[1024]{{0}} copy(a), {GPU}\n}}\n"
    long = hlo_module(f"{head}{lines}\n{root}", "jit_long")
    section = programs_section([hlo_trace(long, *(loop(n + 1) for n in range(2 * MOST_PROGRAMS)))])
    assert (len(section.programs), section.programs_left) == (MOST_PROGRAMS, MOST_PROGRAMS + 1)
    assert (len(section.hot_spots), section.spots_left) == (MOST_SPOTS, 2 * MOST_PROGRAMS + 1 - MOST_SPOTS)
    (spots,) = [one for one in section.hot_spots if one.program == "jit_long"]
    assert len(spots.instructions) == MOST_ROWS
    left = spots.left["instructions"]
    assert left.count == 2 * MOST_ROWS + 1
    assert left.time_ns + sum(row.time_ns for row in spots.instructions) == spots.total_ns


def test_traces_are_summed_and_the_longest_stands_first() -> None:
    short = recorded_trace(step("jit_a"), ops=[("dot", 0, 10)], runs=[1])
    long = recorded_trace(step("jit_b"), ops=[("dot", 0, 90)], runs=[1])
    section = programs_section([short, long])
    assert [program.name for program in section.programs] == ["jit_b", "jit_a"]
    assert [spots.total_ns for spots in section.hot_spots] == [90_000, 10_000]
    assert (section.ran, section.instructions_ns) == (2, 100_000)


def test_what_breaks_is_said_and_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Trace) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(home, "programs", broken)
    held = analyze(hlo_trace(step()), rules=["unfused_ops"])
    assert held.programs.programs == ()
    assert held.programs.problems == ("the compiled programs could not be summed up: KeyError: 'odd'",)
    assert [outcome.rule for outcome in held.outcomes] == ["unfused_ops"]
