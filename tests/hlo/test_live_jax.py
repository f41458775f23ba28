"""A program compiled here and now: text, module proto and the profiler's snapshot give one model."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.hlo.buffers import assigned_memory
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.hlo.protos import message
from perfscope.analyzers.hlo.scope import scope_of
from tests import warm
from tests.hlo.modules import differences

pytestmark = pytest.mark.jax

PROGRAM = """
import json, pathlib
import jax, jax.numpy as jnp

def loss(weights, inputs):
    def layer(carry, weight):
        with jax.named_scope("mlp"):
            return jnp.tanh(carry @ weight), None
    out, _ = jax.lax.scan(jax.checkpoint(layer), inputs, weights)
    return (out**2).sum()

shapes = jax.ShapeDtypeStruct((3, 64, 64), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")
compiled = jax.jit(jax.grad(loss)).lower(*shapes).compile()
(module,) = compiled.runtime_executable().hlo_modules()
memory = compiled.memory_analysis()
sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
here = pathlib.Path(__file__).parent
(here / "module.txt").write_text(compiled.as_text())
(here / "module.pb").write_bytes(module.as_serialized_hlo_module_proto())
(here / "sizes.json").write_text(json.dumps(sizes))
if hasattr(jax.profiler, "ProfileOptions"):  # jax 0.7 and newer
    from jax._src.lib import _profiler
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = options.python_tracer_level = 0
    (here / "snapshot.pb").write_bytes(_profiler.ProfilerSession(options).stop())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's output folder; in a separate process, because jax's threads do not work with tests that fork."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    place = tmp_path_factory.mktemp("live")
    (place / "train.py").write_text(PROGRAM)
    warm.run([sys.executable, "train.py"], cwd=place, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return place


@pytest.fixture(scope="module")
def text(folder: Path) -> HloModule:
    return module_of((folder / "module.txt").read_text().splitlines(), "m")


def test_text_and_proto_agree(folder: Path, text: HloModule) -> None:
    assert list(differences(text, module_of_proto((folder / "module.pb").read_bytes(), "m"))) == []


def test_what_the_program_says_of_itself(folder: Path, text: HloModule) -> None:
    written = (folder / "module.txt").read_text()
    marked = "outer_dimension_partitions" in written or "fusion_config" in written  # older XLA leaves no mark
    assert text.platform == ("cpu" if marked else None)
    assert {one.trip_count for _, one in text.instructions() if one.opcode == "while"} == {3}
    named = [one for _, one in text.instructions() if one.op_name and one.opcode != "parameter"]
    scopes = [scope_of(one.op_name) for one in named]
    assert {one.phase for one in scopes} == {"forward", "backward", "recompute"}
    assert any(one.path == ("mlp",) and one.primitive == "dot_general" for one in scopes)
    assert {Path(one.file).name for one in named if one.file} == {"train.py"}


def test_buffers_of_the_snapshot_cover_what_the_executable_reports(folder: Path) -> None:
    if not (folder / "snapshot.pb").exists():
        pytest.skip("this jax takes no snapshot without tracing")
    space = message("xspace.XSpace").FromString((folder / "snapshot.pb").read_bytes())
    modules = [
        module_of_proto(stat.bytes_value, entry.value.name)
        for plane in space.planes
        for entry in plane.event_metadata
        for stat in entry.value.stats
        if stat.bytes_value
    ]
    (mine,) = (one for one in modules if one.name == "jit_loss")
    timeline = assigned_memory(mine)
    assert timeline is not None
    bound = sum(json.loads((folder / "sizes.json").read_text()))
    # the arena's fragmentation is all that the executable counts more
    assert bound - 8192 < timeline.peak_bytes <= bound
