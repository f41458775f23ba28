"""JAX processes with several devices each: one job, matched by what the launches and the programs say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.ranks.devices import RANK_NOTE, comparable_processes, is_process, process_sets
from perfscope.analyzers.readers.load import load_path
from perfscope.analyzers.sections.collectives import NO_COLLECTIVES, collectives_section
from perfscope.model.finding import AbstainError, Finding
from perfscope.model.trace import Trace
from perfscope.model.trace.trace import Tables
from tests import warm
from tests.build import TraceBuilder
from tests.ranks.build import named

PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=4

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[1000]{0} parameter(0)
  ROOT reduced = f32[1000]{0} all-reduce(p), channel_id=1, replica_groups=GROUPS, to_apply=add
}
"""
LATE_US = 20_000.0


def process(
    rank: int | None,
    places: Sequence[int],
    late_us: Sequence[float],
    *,
    groups: str = "{{0,1,2,3}}",
    first_run: int = 7,
    world: int | None = 2,
) -> Trace:
    """A process whose devices are at ``places``; ``late_us``: how late it comes to each run. They end together."""
    build = TraceBuilder(rank=rank, path=f"process{rank}.xplane.pb")
    for run, late in enumerate(late_us):
        for turn, index in enumerate(places):
            # the devices of a process arrive one after the other, 100 us apart
            start, end = 100_000 * run + late + 100 * turn, 100_000 * run + 40_000
            build.op("reduced", start, end, tid=10 + turn)
            build.row(
                "hlo_ops", start_ns=int(start * 1000), end_ns=int(end * 1000), name=build.code("reduced"),
                module=build.code("jit_step"), program_id=5, run_id=first_run + run, ordinal=2048 * (rank or 0) + turn,
                place=index, launch_end_ns=-1, encloses=False, kernel=-1, copy=-1, slice=run * len(places) + turn,
            )  # fmt: skip
    trace = named(build.build(), world=world)
    trace = replace(
        trace,
        hlo=(replace(module_of(PROGRAM.replace("GROUPS", groups).splitlines(keepends=True), "step"), program_id=5),),
    )
    return replace(trace, recorded=trace.recorded | {"hlo"})


def job(late_us: Sequence[float], **more: str) -> list[Trace]:
    """Two processes of two devices; ``late_us`` is how late the second one comes."""
    return [process(0, (0, 1), [0.0] * len(late_us), **more), process(1, (2, 3), late_us, **more)]  # type: ignore[arg-type]


def stragglers(traces: Sequence[Trace]) -> list[Finding]:
    return [finding for rule, finding in analyze(traces, ["straggler"]).findings() if rule == "straggler"]


def test_devices_of_all_processes_are_one_set() -> None:
    (found,) = collectives_section(job([0.0, LATE_US])).jobs
    (kind,) = found.kinds
    assert (found.label, found.members, found.matched, found.unmatched) == ("devices 0-3 of 4", "device", 2, 0)
    assert (kind.operation, kind.group, kind.message_bytes, kind.dtype) == ("all_reduce", (0, 1, 2, 3), 4000, "f32")
    # in the first run device 1 and 3 are 100 us late; in the second, device 3 is last, 100 us after device 2
    assert kind.wait_ns == {0: 100_000 + 20_100_000, 1: 20_000_000, 2: 200_000, 3: 0}
    assert kind.core_ns == 39_900_000 + 19_900_000
    assert "devices of 2 processes" in found.notes[0]


def test_a_process_that_comes_late_is_the_straggler() -> None:
    (finding,) = stragglers(job([LATE_US] * 5))
    assert finding.ranks == (1,)
    assert finding.cost_ns == 100_000_000
    assert finding.evidence[0]["before"] == "host gap"


def test_processes_in_time_are_clean() -> None:
    assert stragglers(job([0.0] * 5)) == []


def test_lateness_before_the_first_step_is_not_of_the_steps() -> None:
    """As in NVIDIA's pax_fsdp4 recordings: 3.6 s of waiting while the model is built, 1 ms in the steps."""

    def stepped(trace: Trace, first: int) -> Trace:
        build = TraceBuilder()
        for run in range(first, 5):
            build.step(run, 100_000 * run, 100_000 * (run + 1))
        return replace(trace, rows=Tables({**trace.rows, "steps": build.build().rows["steps"]}))

    late = job([1.5 * LATE_US, 0.0, 0.0, 0.0, 0.0])
    assert stragglers([stepped(trace, 1) for trace in late]) == []
    (finding,) = stragglers([stepped(trace, 0) for trace in late])
    assert finding.cost_ns == 30_000_000


def test_the_side_of_a_process_is_its_last_device() -> None:
    (found,) = process_sets(job([LATE_US]))
    (matched,) = found.ranks.matching.matched
    assert {rank: side.duration_ns for rank, side in matched.sides.items()} == {0: 39_900_000, 1: 19_900_000}
    assert (matched.group, matched.last) == ((0, 1), 1)
    assert RANK_NOTE in found.ranks.notes


def test_groups_across_processes_are_matched_each_by_itself() -> None:
    (found,) = process_sets(job([LATE_US], groups="{{0,2},{1,3}}"))
    assert [collective.group for collective in found.devices.collectives] == [(0, 2), (1, 3)]
    assert len(found.ranks.matching.matched) == 2


def test_groups_within_a_process_say_nothing_of_processes() -> None:
    traces = job([LATE_US] * 5, groups="{{0,1},{2,3}}")
    (found,) = process_sets(traces)
    assert found.devices.matched == 10
    assert (found.ranks.matching.matched, found.ranks.matching.alone) == ((), 10)
    assert stragglers(traces) == []


def test_executions_are_matched_by_their_number_and_not_by_their_order() -> None:
    """The second process recorded from the second run on."""
    first, second = process(0, (0, 1), [0.0] * 3), process(1, (2, 3), [0.0] * 3, first_run=8)
    (found,) = process_sets([first, second])
    assert (found.devices.matched, found.devices.unmatched) == (2, 4)
    assert "4 runs of collectives on a device, not on all recorded devices of their group" in found.devices.notes[1]


def test_places_that_are_not_recorded_are_not_guessed() -> None:
    traces = [process(0, (-1, -1), [0.0]), process(1, (-1, -1), [LATE_US])]
    assert process_sets(traces) == ()
    with pytest.raises(AbstainError, match="places of the processes"):
        comparable_processes(traces)
    assert collectives_section(traces) == NO_COLLECTIVES


def test_processes_that_are_not_told_are_not_guessed() -> None:
    traces = [process(None, (0, 1), [0.0], world=None), process(None, (2, 3), [LATE_US], world=None)]
    with pytest.raises(AbstainError, match="numbers of the processes"):
        comparable_processes(traces)


def test_one_process_alone_abstains() -> None:
    (trace, _) = job([LATE_US] * 5)
    assert is_process(trace)
    (outcome,) = [item for item in analyze([trace], ["straggler"]) if item.rule == "straggler"]
    assert outcome.status == "abstained"
    assert "a single process" in str(outcome.reason)


def test_a_process_with_all_devices_of_its_programs_is_not_one_of_several() -> None:
    assert not is_process(process(0, (0, 1, 2, 3), [0.0], world=None))


JAX = """
import sys
import jax

index, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)

import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
x_BD = jax.make_array_from_callback((64, 32), sharding, lambda where: np.ones((64, 32), np.float32)[where])
step = jax.jit(lambda x_BD: jnp.tanh(x_BD).sum(axis=0))
step(x_BD).block_until_ready()
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(folder, profiler_options=options)
for number in range(5):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        step(x_BD).block_until_ready()
jax.profiler.stop_trace()
"""


def run(folder: Path) -> list[Trace]:
    """Profiles of two processes of four virtual devices each."""
    pytest.importorskip("jax")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    started = [
        warm.Popen(
            [sys.executable, "-c", JAX, str(index), str(port), str(folder / f"process{index}")],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]
    try:
        said = [item.communicate(timeout=120)[1].decode() for item in started]
    finally:
        for item in started:
            item.kill()
    assert [item.returncode for item in started] == [0, 0], said
    profiles = folder / "profiles"
    profiles.mkdir()
    for index in range(2):
        (file,) = (folder / f"process{index}").rglob("*.xplane.pb")
        file.rename(profiles / f"host{1 - index}.xplane.pb")  # the names of files say nothing of processes
    return list(load_path(profiles).traces)


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.skipif(sys.platform != "linux", reason="gloo in jaxlib is Linux's")
def test_two_real_processes(tmp_path: Path) -> None:
    traces = run(tmp_path)
    assert sorted((trace.source.rank, trace.source.world_size) for trace in traces) == [(0, 2), (1, 2)]
    (found,) = collectives_section(traces).jobs
    assert (found.label, found.matched, found.unmatched) == ("devices 0-7 of 8", 5, 0)
    assert [kind.group for kind in found.kinds] == [tuple(range(8))]
    exposed, straggler = analyze(traces, ["exposed_communication", "straggler"])
    assert exposed.status == "abstained"  # devices of the CPU backend share cores: nothing is idle while one waits
    assert straggler.status != "abstained"
