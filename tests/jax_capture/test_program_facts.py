"""Settings of JAX programs, Pallas kernels that are interpreted, and steps of ``jax.pmap``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.programs import captured, only, write

pytestmark = pytest.mark.jax

PALLAS = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

jax.config.update("jax_debug_infs", True)

def kernel(x, out):
    out[...] = x[...] * 2

@jax.jit
def step(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

x = jnp.ones((8, 8))
for _ in range(6):
    x = step(x) / 2
print(float(x.sum()))
"""

PMAP = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp

@jax.pmap
def evaluate(x):
    return x.sum()

@jax.pmap
def train_step(x):
    return x * 0.5

x = jnp.ones((2, 4))
evaluate(x)
for _ in range(8):
    x = train_step(x)
print(float(x.sum()))
"""


def test_interpreted_kernels_and_switches_are_noted_with_their_lines(tmp_path: Path) -> None:
    done = captured(write(tmp_path, PALLAS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "64.0"
    process = only(tmp_path)
    facts = {fact.name: fact for fact in process.facts}
    lines = PALLAS.splitlines()
    interpreted, switch = facts["pallas_interpret"], facts["jax_debug_infs"]
    assert interpreted.line is not None
    assert switch.line is not None
    assert "pallas_call" in lines[interpreted.line - 1]
    assert interpreted.count in (1, 2), "in jax 0.12 the first call adds settings, so the second compiles again"
    assert "jax_debug_infs" in lines[switch.line - 1]


def test_steps_of_pmap_are_calls_of_the_programs_function(tmp_path: Path) -> None:
    done = captured(write(tmp_path, PMAP), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    process = only(tmp_path)
    import jax._src.api

    unseen = hasattr(jax._src.api, "_cpp_pmap")  # jax 0.6: the first call, which compiles, passes none of its hooks
    assert (process.step_source, process.steps_seen) == ("calls of train_step", 8 - unseen)
