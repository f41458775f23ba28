"""A profile that the installed jax writes now, read by us and by jaxlib's own decoder."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.ranks.rendezvous import collective_skew
from perfscope.analyzers.readers.load import load_path
from perfscope.model.trace import Trace
from tests import warm

pytestmark = [pytest.mark.jax, pytest.mark.skipif(sys.platform != "linux", reason="thread names are Linux's")]

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("data",))
x_BD = jax.device_put(jnp.ones((64, 32)), NamedSharding(mesh, P("data", None)))

@jax.jit
def step(x_BD):
    def body(carry_BD, _):
        return jnp.tanh(carry_BD @ jnp.ones((32, 32))), None
    y_BD, _ = jax.lax.scan(body, x_BD, length=5)
    return (y_BD ** 2).sum()

step(x_BD).block_until_ready()
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(sys.argv[1], profiler_options=options)
for number in range(3):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        step(x_BD).block_until_ready()
jax.profiler.stop_trace()

from pathlib import Path
(file,) = Path(sys.argv[1]).rglob("*.xplane.pb")
data = jax.profiler.ProfileData.from_file(str(file))
events = {}
for plane in data.planes:
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats:
                key = stats["hlo_op"] + "/" + str(stats["device_ordinal"])
                events[key] = events.get(key, 0) + 1
total = sum(1 for plane in data.planes for line in plane.lines for _ in line.events)
print(json.dumps({"ops": events, "total": total}))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("profile")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    run = warm.run(
        [sys.executable, "-c", PROGRAM, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    loaded = load_path(folder)
    assert not loaded.skipped
    (trace,) = loaded.traces
    trace.check()
    return trace, json.loads(run.stdout.splitlines()[-1])


def test_every_event_and_instruction_is_read(recorded: tuple[Trace, dict[str, Any]]) -> None:
    trace, theirs = recorded
    assert trace.source.events_read == theirs["total"]
    assert trace.source.events_unplaced == 0
    ours: dict[str, int] = {}
    ops = trace.rows["hlo_ops"]
    for code, ordinal in zip(ops["name"].tolist(), ops["ordinal"].tolist(), strict=True):
        key = f"{trace.text(code)}/{ordinal}"
        ours[key] = ours.get(key, 0) + 1
    assert ours == theirs["ops"]


def test_every_instruction_ends_and_has_its_program(recorded: tuple[Trace, dict[str, Any]]) -> None:
    trace, _ = recorded
    assert not any("without an end mark" in note for note in trace.source.notes)
    assert not any("not read" in note for note in trace.source.notes)
    found = trace.fact(hlo_time)
    assert found.total_ns > 0
    assert found.unmatched_ns == 0
    loops = [row for row in found.instructions if row.encloses]
    assert loops
    assert all(row.instruction.startswith(("while", "call", "conditional")) for row in loops)
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2]


def test_devices_meet_at_the_sum(recorded: tuple[Trace, dict[str, Any]]) -> None:
    trace, _ = recorded
    skew = trace.fact(collective_skew)
    assert skew.collectives
    assert {collective.operation for collective in skew.collectives} == {"all_reduce"}
    assert {collective.devices for collective in skew.collectives} == {(0, 1, 2, 3)}
