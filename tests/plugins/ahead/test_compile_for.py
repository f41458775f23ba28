"""`perfscope.compile_for`: functions compiled for machines that are not here, from a program without such a device."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import perfscope
from perfscope.model.errors import UsageError
from perfscope.plugins.ahead.targets import plugins
from tests import warm
from tests.plugins.ahead.compilers import require, require_checkpoint

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
    done = warm.run(
        [sys.executable, "mlp.py", target], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
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

    with pytest.raises(UsageError, match="unknown device"):
        perfscope.compile_for(len, target="h1000")


def under_checkpoints() -> tuple[Any, Any, tuple[Any, ...]]:
    """A training step that keeps everything, the same with ``jax.checkpoint`` written into it, and arguments."""
    require_checkpoint()
    import jax

    jnp = jax.numpy

    def step(under: Any) -> Any:
        body = under(lambda x, weights: (x + jnp.tanh(jnp.tanh(x @ weights["a"]) @ weights["b"]), None))
        return jax.jit(jax.grad(lambda weights, x: (jax.lax.scan(body, x, weights)[0] ** 2).mean()))

    weights = {"a": jax.ShapeDtypeStruct((6, 64, 128), "float32"), "b": jax.ShapeDtypeStruct((6, 128, 64), "float32")}
    return step(lambda one: one), step(jax.checkpoint), (weights, jax.ShapeDtypeStruct((128, 64), "float32"))


def test_a_policy_is_nobody_elses() -> None:
    """Functions jitted in this process before, after and in another thread are unchanged."""
    plain, _, arguments = under_checkpoints()
    from perfscope.plugins.ahead.jax import export
    from perfscope.plugins.ahead.request import parse_checkpoint

    def exported(asked: str | None) -> bytes:
        policy = None if asked is None else parse_checkpoint(asked)
        return export.export(plain, arguments, {}, "cuda", policy)[0]

    assert b"optimization_barrier" not in exported(None)
    head = json.loads(exported("full").partition(b"\n")[2].partition(b"\n")[0])
    assert [(one["kind"], one["how"], one["count"]) for one in head["checkpoint"]["places"]] == [("scan", "wrapped", 6)]
    assert len(head["notes"]) == 1
    assert b"optimization_barrier" in exported("full")
    assert b"optimization_barrier" not in exported(None)
    assert "remat" not in str(plain.trace(*arguments).jaxpr)
    other, _, _ = under_checkpoints()
    from perfscope.plugins.ahead.jax.checkpoint.rewrite import checkpointed

    with checkpointed(parse_checkpoint("full"), thread=threading.get_ident()) as book:
        thread = threading.Thread(target=other.trace, args=arguments)
        thread.start()
        thread.join()
    assert book is not None
    assert book.differentiated == 0
    with pytest.raises(UsageError, match=r"^checkpoint fll: no such policy"):
        perfscope.compile_for(plain, *arguments, checkpoint="fll")


@pytest.mark.aot
@pytest.mark.slow
def test_a_policy_is_the_one_written_by_hand(tmp_path: Path) -> None:
    plain, by_hand, arguments = under_checkpoints()
    require("gpu-nvidia")

    def temporaries(function: Any, policy: str | None) -> Any:
        found = perfscope.compile_for(function, *arguments, target="h100", folder=tmp_path, checkpoint=policy)
        assert (found.manifest.checkpoint is not None) == (policy is not None)
        return found.manifest.programs[0].temporary_bytes

    edited = temporaries(by_hand, None)
    assert temporaries(plain, "full") == edited
    assert temporaries(by_hand, "none") > edited
