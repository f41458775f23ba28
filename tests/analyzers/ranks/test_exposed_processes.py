"""Exposed communication of JAX processes with several devices: one finding for all of them, conserving exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.facts.device_time import device_times
from perfscope.analyzers.finding import Finding
from perfscope.analyzers.hlo.text import module_of
from perfscope.analyzers.ranks.exposed_processes import device_clocks, waits_of_processes
from perfscope.analyzers.ranks.processes import process_sets
from perfscope.analyzers.scale.slim import slim
from perfscope.analyzers.trace import Trace
from tests.analyzers.ranks.build import named
from tests.analyzers.ranks.test_processes import PROGRAM
from tests.build import TraceBuilder

RUN_US, END_US = 100_000, 60_000
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def process(
    rank: int, arrivals_us: Sequence[Sequence[float]], *, groups: str = "{{0,1,2,3}}", place: bool = True
) -> Trace:
    """Two devices that compute until they arrive in each run's all-reduce, which all leave together."""
    build = TraceBuilder(rank=rank, path=f"process{rank}.xplane.pb")
    kernels = 0
    for run, arrivals in enumerate(arrivals_us):
        begin = RUN_US * run
        for turn, arrival in enumerate(arrivals):
            build.kernel("fusion", begin, begin + arrival, device=turn)
            build.kernel(KERNEL, begin + arrival, begin + END_US, device=turn, stream=20, communication=True)
            build.row(
                "hlo_ops", start_ns=int(1000 * (begin + arrival)), end_ns=1000 * (begin + END_US),
                name=build.code("reduced"), module=build.code("jit_step"), program_id=5, run_id=run, ordinal=turn,
                place=2 * rank + turn if place else -1, launch_end_ns=-1, encloses=False, kernel=kernels + 1, copy=-1,
                slice=-1,
            )  # fmt: skip
            kernels += 2
    trace = named(build.build(), world=2)
    trace.hlo = (replace(module_of(PROGRAM.replace("GROUPS", groups).splitlines(keepends=True), "step"), program_id=5),)
    trace.recorded = trace.recorded | {"hlo"}
    return trace


def exposed(traces: Sequence[Trace]) -> list[Finding]:
    return [
        one for rule, one in analyze(traces, ["exposed_communication"]).findings() if rule == "exposed_communication"
    ]


EARLY, LATE = [(10_000, 11_000)] * 4, [(40_000, 41_000)] * 4


def test_the_process_that_came_late_is_named_and_its_part_is_not_the_cost() -> None:
    (finding,) = exposed([process(0, EARLY), process(1, LATE)])
    assert finding.ranks == (0, 1)
    first, second = finding.evidence
    assert (first["rank"], first["exposed_ns"], first["waiting_ns"], first["mostly_for"]) == (
        0, 4 * 50_000_000, 4 * 31_000_000, 1,
    )  # fmt: skip
    # the device of process 1 that has most came 1 ms before the other one of it
    assert (second["rank"], second["exposed_ns"], second["waiting_ns"], second["own_device_ns"]) == (
        1, 4 * 20_000_000, 0, 4_000_000,
    )  # fmt: skip
    assert first["transfer_ns"] == second["transfer_ns"] == 4 * 19_000_000
    assert finding.cost_ns == 4 * 20_000_000
    assert "124 ms waiting for rank 1, which came late" in finding.title


def test_the_parts_of_every_device_sum_to_its_exposed_time() -> None:
    traces = [process(0, [(10_000, 30_000), (5_000, 7_000)]), process(1, [(20_000, 12_000), (40_000, 6_000)])]
    (finding,) = exposed(traces)
    rows = {row["rank"]: row for row in finding.evidence}
    for trace in traces:
        most = max(device.exposed_communication_ns for device in trace.fact(device_times))
        row = rows[trace.source.rank]
        parts = ("waiting_ns", "own_device_ns", "together_ns", "transfer_ns", "unclear_ns", "unmatched_ns")
        assert row["exposed_ns"] == most == sum(int(row[part] or 0) for part in parts)


def test_processes_that_come_together_have_no_waiting() -> None:
    (finding,) = exposed([process(0, EARLY), process(1, EARLY)])
    assert {row["waiting_ns"] for row in finding.evidence} == {0}
    assert {row["transfer_ns"] for row in finding.evidence} == {4 * 49_000_000}
    assert "came late" not in finding.title


def test_a_device_of_another_process_that_came_as_late_is_not_told_apart() -> None:
    (found,) = process_sets([process(0, [(10_000, 40_500)] * 3), process(1, [(10_000, 41_000)] * 3)])
    clocks = replace(device_clocks(found), uncertainty_ns=dict.fromkeys(range(4), 300_000))
    waits = waits_of_processes(found, clocks)
    assert {wait.late for held in waits.values() for wait in held.values()} == {None}
    exact = waits_of_processes(found, device_clocks(found))
    assert {wait.late for held in exact.values() for wait in held.values()} == {1}


def test_slim_traces_say_the_same() -> None:
    traces = [process(0, EARLY), process(1, LATE)]
    assert exposed([slim(trace) for trace in traces]) == exposed(traces)


@pytest.mark.parametrize(
    ("groups", "place"), [("{{0,1},{2,3}}", True), ("{{0,1,2,3}}", False)], ids=["within a process", "places unknown"]
)
def test_without_collectives_across_processes_each_says_its_own(groups: str, place: bool) -> None:
    (finding,) = exposed([process(0, EARLY, groups=groups, place=place), process(1, LATE, groups=groups, place=place)])
    assert (finding.evidence[0]["device"], finding.evidence[0]["waiting_ns"], finding.cost_ns) == (
        0, 4_000_000, 200_000_000,
    )  # fmt: skip
