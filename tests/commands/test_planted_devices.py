"""A JAX program on eight virtual devices: a planted straggler, a planted input stall, and neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.jax, pytest.mark.slow]

PROGRAM = """
import sys, time
import numpy as np
import jax, jax.numpy as jnp
from functools import partial
from jax.sharding import Mesh, PartitionSpec as P
import perfscope

planted = sys.argv[1]
mesh = Mesh(np.array(jax.devices()), ("d",))
rounds = {"straggler": (200, 1)}.get(planted, (1, 1))

def work(x, times):
    return jax.lax.fori_loop(0, times, lambda _, y: jnp.tanh(y @ y * 1e-2), x)

@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
def train_step(x):
    x = x.reshape(256, 256)
    late = jax.lax.axis_index("d") == 3
    x = jax.lax.cond(late, lambda y: work(y, rounds[0]), lambda y: work(y, rounds[1]), x)
    return (x + jax.lax.psum(x, "d") * 1e-3).reshape(1, 256, 256)

def batches():
    batch = np.full((8, 256, 256), 0.01, np.float32)
    for _ in range(14):
        if planted == "input":
            time.sleep(0.2)
        yield batch

source = batches()
x = jnp.full((8, 256, 256), 0.01)
while True:
    with perfscope.region("input"):
        batch = next(source, None)
    if batch is None:
        break
    x = train_step(x + batch)
    x.block_until_ready()
    time.sleep(0.05)
    perfscope.step()
"""


def captured(folder: Path, planted: str) -> Analysis:
    folder.mkdir()
    program = folder / "train.py"
    program.write_text(PROGRAM)
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false",
    }
    command = [sys.executable, "-m", "perfscope", "run", "--no-report", "--", sys.executable, str(program), planted]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return analyze(load_path(folder / "perfscope-runs").traces, ["straggler", "input_stall"])


def test_a_straggler_and_an_input_stall_are_found_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    found = {planted: captured(tmp_path / planted, planted) for planted in ("straggler", "input", "nothing")}
    (late,) = found["straggler"]["straggler"].findings
    assert late.subject == "one device comes late"
    assert {row["straggler"] for row in late.evidence} == {3}
    assert found["straggler"]["input_stall"].status == "clean"

    (stall,) = found["input"]["input_stall"].findings
    assert stall.subject == "input"
    assert found["input"]["straggler"].status == "clean"

    assert [found["nothing"][rule].status for rule in ("straggler", "input_stall")] == ["clean", "clean"]
