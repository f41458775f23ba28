"""Programs of several processes: the plan of rank 0 compared with the same programs running over gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.plans.time import plan_works
from perfscope.analyzers.readers.compiled import read_plan_folder
from perfscope.model.documents.torch_plan import PlannedCollective, PlannedProcesses
from perfscope.model.errors import PerfscopeError
from perfscope.model.trace import Trace
from perfscope.plugins.ahead.command import request_of
from perfscope.plugins.ahead.common.compile import compile_program
from perfscope.plugins.ahead.targets import plugins
from tests.plugins.ahead import distributed_programs

pytestmark = [pytest.mark.aot, pytest.mark.slow]

FLOAT32 = 4
BYTES = {"float": FLOAT32, "int": 4}
SCALARS = 64
"""Bytes: numbers that the run makes tensors of by itself and the plan does not see."""


def planned(folder: Path, text: str, target: str) -> Trace:
    found = plugins.find("torch")
    if isinstance(found, plugins.MissingPlugin):
        pytest.skip(f"{found.reason}: PERFSCOPE_PLUGINS names no folder with triton")
    script = folder / "train.py"
    script.write_text(text)
    asked = parse_target(target, None)
    request = request_of((str(script),), module=False, framework="torch", target=asked, seconds=500)
    trace = read_plan_folder(compile_program(request, root=folder / "runs"))
    return replace(trace, target=asked)


def processes_of(trace: Trace) -> PlannedProcesses:
    (held,) = trace.torch_plans
    assert held.plan.failure is None
    assert held.plan.not_covered == ()
    assert held.plan.processes is not None
    return held.plan.processes


def really_run(folder: Path, text: str, world: int, *, alone: bool = False) -> list[list[dict[str, Any]]]:
    """Records of torch's profiler on rank 0 for each examined step.

    ``alone``: over a group that exchanges nothing, for peaks: gloo's threads take scratch memory and free tensors at
    arbitrary times.
    """
    (steps,) = run_ranks(folder, text, world, observed=(0,), alone=alone)
    return steps


def run_ranks(
    folder: Path, text: str, world: int, *, observed: Sequence[int], alone: bool = False
) -> list[list[list[dict[str, Any]]]]:
    """The same of each observed rank of one run."""
    script = folder / "real.py"
    script.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(1 if alone else world):
        job = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        own = {"TRUTH": str(folder / f"truth-{rank}.json")} if rank in observed else {}
        environment = {**os.environ, **job, **own, **({"ALONE": "1"} if alone else {})}
        started.append(subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL))
    try:
        assert [one.wait(300) for one in started] == [0] * len(started)
    finally:
        for one in started:
            one.kill()
    return [looks_of(folder / f"truth-{rank}.json") for rank in observed]


def looks_of(truth: Path) -> list[list[dict[str, Any]]]:
    """Records of each examined step in a file of torch's profiler."""
    events = json.loads(truth.read_text())["traceEvents"]
    looks = [(one["ts"], one["ts"] + one["dur"]) for one in events if one.get("name") == "look"]
    return [[one for one in events if start <= one.get("ts", 0) <= end] for start, end in looks]


def exchanged(steps: list[list[dict[str, Any]]], world: int) -> Counter[tuple[str, int]]:
    """Collectives of gloo in a step by name and bytes of the whole array; the same in each step."""
    first, *others = [exchanged_in(events, world) for events in steps]
    assert others == [first] * len(others)
    return first


def exchanged_in(events: list[dict[str, Any]], world: int) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for one in events:
        if one.get("name", "").startswith("gloo:"):
            size = BYTES[one["args"]["Input type"][0]]
            for extent in one["args"]["Input Dims"][0]:
                size *= extent
            name = one["name"].removeprefix("gloo:")
            found[name, size * (world if name == "all_gather" else 1)] += 1
    return found


def as_gloo_does(rows: tuple[PlannedCollective, ...] | None) -> Counter[tuple[str, int]]:
    """Gloo has no reduce-scatter: torch makes an all-reduce of it."""
    names = {"all-reduce": "all_reduce", "reduce-scatter": "all_reduce", "all-gather": "all_gather"}
    return Counter((names[one.kind], one.bytes) for one in rows or ())


def measured_peak(steps: list[list[dict[str, Any]]]) -> int:
    """Bytes, of the lowest step: what a thread of gloo still holds only adds."""
    return min(
        max(int(one["args"]["Total Allocated"]) for one in events if one.get("name") == "[memory]") for events in steps
    )


def planned_peak(trace: Trace) -> int:
    """Peak of the eager step, before an allocator rounds."""
    memory = trace.torch_plans[0].plan.memory
    assert memory is not None
    assert memory.eager is not None
    return memory.eager.requested_bytes


@pytest.mark.parametrize("world", [2, 4])
def test_data_parallel_is_planned_as_it_runs(tmp_path: Path, world: int) -> None:
    trace = planned(tmp_path, distributed_programs.DDP, f"h100x{world}")
    processes, events = processes_of(trace), really_run(tmp_path, distributed_programs.DDP, world)
    measured = exchanged(events, world)
    for rows in (processes.eager, processes.outside):
        assert rows is not None
        assert sum(one.bytes for one in rows) == sum(size * count for (_, size), count in measured.items())
        assert abs(len(rows) - measured.total()) <= 1
        assert {(one.kind, one.dtype, one.by) for one in rows} == {("all-reduce", "float32", "DistributedDataParallel")}
        assert [one.bytes for one in rows] == [one.bytes for one in processes.buckets]
        assert all(one.phase == "backward" and one.until is not None for one in rows)
    assert len(processes.buckets) > 1  # so the backward may hide them
    eager = processes.eager or ()
    assert eager[0].at.ops < eager[-1].at.ops
    assert any("buckets are modelled from parameter sizes" in note for note in processes.notes)
    largest = max(one.bytes for one in processes.buckets)
    peaks = [measured_peak(events)]
    while peaks[-1] > planned_peak(trace) + largest and len(peaks) < 3:  # seldom gloo's threads keep the first buckets
        peaks.append(measured_peak(really_run(tmp_path, distributed_programs.DDP, world)))
    assert abs(planned_peak(trace) - min(peaks)) <= largest


def test_communication_hooks_are_not_covered(tmp_path: Path) -> None:
    (held,) = planned(tmp_path, distributed_programs.COMPRESSED, "h100x2").torch_plans
    assert held.plan.failure is None
    (line,) = held.plan.not_covered
    assert line.startswith("communication hooks of DistributedDataParallel are not covered")
    assert held.plan.processes is not None
    assert {one.dtype for one in held.plan.processes.eager or ()} == {"float32"}


def test_gradients_are_not_reduced_under_no_sync(tmp_path: Path) -> None:
    text = distributed_programs.DDP.replace(
        "        optimizer.step()\n",
        "        with model.no_sync():\n"
        "            model(torch.randn(33, 256, device=DEVICE)[1:]).square().mean().backward()\n"
        "        optimizer.step()\n",
    )
    processes = processes_of(planned(tmp_path, text, "h100x2"))
    assert [one.bytes for one in processes.eager or ()] == [one.bytes for one in processes.buckets]


def test_sharded_parameters_are_planned_as_they_run(tmp_path: Path) -> None:
    trace = planned(tmp_path, distributed_programs.CLIPPED, "h100x2")
    processes = processes_of(trace)
    events = really_run(tmp_path, distributed_programs.CLIPPED, 2)
    assert as_gloo_does(processes.eager) == exchanged(events, 2)
    assert as_gloo_does(processes.outside) == exchanged(events, 2)
    events = really_run(tmp_path, distributed_programs.CLIPPED, 2, alone=True)
    assert abs(planned_peak(trace) - measured_peak(events)) <= SCALARS
    (work,) = trace.fact(plan_works)
    assert work.eager_exchanges is not None
    gathers = [row for row in work.eager_exchanges.rows if row.collective.kind == "all-gather"]
    assert gathers[0].blocks  # nothing was requested before the first
    assert not gathers[1].blocks  # the others run parallel to the previous layer


def test_modules_that_are_sharded_without_a_mesh_are_sharded_over_all(tmp_path: Path) -> None:
    text = distributed_programs.FULLY_SHARD
    assert ", mesh=mesh" in text
    with_one, without = tmp_path / "with", tmp_path / "without"
    with_one.mkdir()
    without.mkdir()
    wanted = processes_of(planned(with_one, text, "h100x8"))
    found = processes_of(planned(without, text.replace(", mesh=mesh", ""), "h100x8"))
    assert wanted.eager
    assert as_gloo_does(found.eager) == as_gloo_does(wanted.eager)


def test_products_that_are_spread_are_planned_as_they_run(tmp_path: Path) -> None:
    trace = planned(tmp_path, distributed_programs.TENSOR_PARALLEL, "h100x2")
    processes, events = processes_of(trace), really_run(tmp_path, distributed_programs.TENSOR_PARALLEL, 2)
    assert as_gloo_does(processes.eager) == exchanged(events, 2)
    calls = Counter(run.graph for run in processes.runs)
    inside = [one for found in processes.inside for one in found.collectives * calls[found.graph]]
    assert processes.outside == ()
    assert as_gloo_does(tuple(inside)) == exchanged(events, 2)
    assert all(one.file == "train.py" and one.line for one in inside)
    events = really_run(tmp_path, distributed_programs.TENSOR_PARALLEL, 2, alone=True)
    assert abs(planned_peak(trace) - measured_peak(events)) <= SCALARS
    (work,) = trace.fact(plan_works)
    assert work.compiled_exchanges is not None
    assert all(row.blocks for row in work.compiled_exchanges.rows)  # the next op needs each


def test_every_kind_has_its_bytes_group_and_wait(tmp_path: Path) -> None:
    processes = processes_of(planned(tmp_path, distributed_programs.EVERY_KIND, "h100x8"))
    rows = processes.eager
    assert rows is not None
    whole = 32 * 256 * FLOAT32
    found = {one.kind: (one.bytes, processes.groups[one.group], one.pairs) for one in rows}
    everybody, pair = tuple(range(8)), (0, 1)
    assert found == {
        "all-reduce": (whole, everybody, None),
        "all-gather": (2 * whole, pair, None),
        "reduce-scatter": (whole, everybody, None),
        "all-to-all": (whole, pair, None),
        "broadcast": (whole, everybody, None),
        "send": (whole, everybody, (0, 1)),
        "recv": (whole, everybody, (1, 0)),
        "barrier": (found["barrier"][0], everybody, None),
    }
    first, *others = rows
    assert first.until is not None
    assert first.until.ops > first.at.ops  # a product lies between the call and its wait
    assert all(one.until is not None and one.until.ops <= one.at.ops + 1 for one in others)
    assert any("broadcast_object_list" in note for note in processes.notes)


def test_a_program_that_starts_its_processes_itself(tmp_path: Path) -> None:
    processes = processes_of(planned(tmp_path, distributed_programs.SPAWNED, "h100x8"))
    assert processes.world_size == 4
    assert any("8 devices" in note for note in processes.notes)
    assert [one.bytes for one in processes.eager or ()] == [65 * 64 * FLOAT32]  # once, not under no_sync()


def test_a_sweep_over_devices_has_a_lower_peak_with_more_of_them(tmp_path: Path) -> None:
    found = plugins.find("torch")
    if isinstance(found, plugins.MissingPlugin):
        pytest.skip(f"{found.reason}: PERFSCOPE_PLUGINS names no folder with triton")
    (tmp_path / "train.py").write_text(distributed_programs.FULLY_SHARD)
    command = [sys.executable, "-m", "perfscope", "compile", "--sweep", "target=h100x2,h100x8", "--json", "sweep.json"]
    subprocess.run([*command, "train.py"], cwd=tmp_path, check=True, capture_output=True, timeout=500)
    few, many = json.loads((tmp_path / "sweep.json").read_text())["variants"]
    assert (few["settings"], many["settings"]) == ({"target": "h100x2"}, {"target": "h100x8"})
    # parameters and two states of AdamW are shared out; one block's gradients, too, when the peak is there
    sharded = 3 * (2 * 256 * 1024 + 1024 + 256) * FLOAT32 * 3
    assert sharded * 3 / 8 <= few["peak_bytes"] - many["peak_bytes"] <= sharded * 3 / 8 * 1.25
    assert 0 < many["step_low_ns"] <= many["step_high_ns"]


@pytest.mark.parametrize("what", sorted(distributed_programs.REFUSED))
def test_what_does_not_fit_is_told_in_a_line(tmp_path: Path, what: str) -> None:
    with pytest.raises(PerfscopeError, match=rf"{what}.*not covered"):
        planned(tmp_path, distributed_programs.REFUSED[what], "h100x2")
