"""`perfscope.compile_for`: functions compiled for machines that are not here, from a program without such a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.profiler.aot import plugins
from perfscope.profiler.errors import AskedWronglyError
from tests.aot import require

MLP = """
import functools, json, sys
import jax, jax.numpy as jnp
import perfscope

{devices}

def made(scale):
    def step(weights, batch, power):
        with jax.named_scope("mlp"):
            return jax.tree.map(lambda one: one - scale * jax.nn.gelu(batch @ one) ** power, weights)
    return step

{arguments}
found = perfscope.compile_for(
    jax.jit(made(0.1), donate_argnums=0, static_argnums=2), weights, batch, 2, target=sys.argv[1], folder="kept",
    name="mlp",
)
(module,) = found.trace.hlo
lines = sorted({{one.line for _, one in module.instructions() if one.file and one.file.endswith("mlp.py")}})
print(json.dumps({{
    "name": module.name, "platform": module.platform, "partitions": module.num_partitions, "lines": lines,
    "aliases": len(module.aliases), "scopes": any("mlp" in one.op_name for _, one in module.instructions()),
    "page": str(found), "folder": found.folder.name, "jax": jax.default_backend(),
    "plugins": [name for name in sys.modules if name.startswith(("jax_plugins.xla", "libtpu"))],
}}))
"""
ONE = """
weights = {"up": jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)}
batch = jnp.ones((256, 256), jnp.bfloat16)
"""
MANY = """
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((8,), ("data",))
weights = {"up": jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("data")))}
batch = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec()))
"""


def compiled(folder: Path, target: str, arguments: str, devices: str = "") -> dict[str, object]:
    (folder / "mlp.py").write_text(MLP.format(devices=devices, arguments=arguments))
    done = subprocess.run(
        [sys.executable, "mlp.py", target], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.aot
@pytest.mark.parametrize(
    ("target", "kind", "platform"), [("h100", "gpu-nvidia", "gpu"), ("v5e", "tpu", "tpu"), ("mi300x", "gpu-amd", "gpu")]
)
def test_a_local_function(tmp_path: Path, target: str, kind: plugins.Kind, platform: str) -> None:
    pytest.importorskip("jax")
    require(kind)
    said = compiled(tmp_path, target, ONE)
    assert (said["name"], said["platform"], said["jax"]) == ("jit_step", platform, "cpu")
    assert said["aliases"] == 1  # donated
    assert said["scopes"]
    assert said["lines"] == [11]  # of the function, not of where it is exported
    assert said["plugins"] == []
    assert "jit_step" in str(said["page"])
    assert (tmp_path / "kept" / str(said["folder"]) / "compile.json").is_file()


@pytest.mark.aot
@pytest.mark.slow
def test_a_sharded_function(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    require("gpu-nvidia")
    said = compiled(tmp_path, "h100x8", MANY, 'jax.config.update("jax_num_cpu_devices", 8)')
    assert said["partitions"] == 8


def test_no_such_target() -> None:
    import perfscope

    with pytest.raises(AskedWronglyError, match="no such device"):
        perfscope.compile_for(len, target="h1000")
