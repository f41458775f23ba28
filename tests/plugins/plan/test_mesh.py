"""How a program gets its mesh: by its flags, and by its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfscope
from perfscope.__main__ import run
from perfscope.model.errors import UsageError
from perfscope.plugins.plan.candidate import Mesh
from perfscope.plugins.plan.document import load
from perfscope.plugins.plan.mesh import VARIABLE, axes_of_template, environment_of, words_of
from tests.plugins.ahead.compilers import require

PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import perfscope

sizes = perfscope.mesh(data=4, fsdp=1) if MESH else {"data": 4, "fsdp": 1}
mesh = Mesh(np.array(jax.devices()[:4]).reshape(sizes["data"], sizes["fsdp"]), ("data", "fsdp"))

@jax.jit
def step(w, x):
    return w - 0.1 * x.T @ jnp.tanh(x @ w)

w = jax.device_put(jnp.zeros((256, 256)), NamedSharding(mesh, PartitionSpec(None, "fsdp")))
x = jax.device_put(jnp.zeros((64, 256)), NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))
for _ in range(3):
    w = step(w, x)
"""


def test_template_names_axes_and_gives_words() -> None:
    template = "--mesh {data}x{tensor} --seq={context}"
    assert axes_of_template(template) == ("data", "context", "tensor")
    assert words_of(template, Mesh(data=4, tensor=2)) == ("--mesh", "4x2", "--seq=1")
    for wrong in ("--mesh 4x2", "--mesh {width}"):
        with pytest.raises(UsageError, match="axes in braces"):
            axes_of_template(wrong)


def test_program_reads_its_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    assert perfscope.mesh(data=8, tensor=1) == {"data": 8, "tensor": 1}
    for name, value in environment_of(Mesh(data=2, tensor=4), ("data", "tensor")).items():
        monkeypatch.setenv(name, value)
    assert perfscope.mesh(data=8, tensor=1) == {"data": 2, "tensor": 4}
    monkeypatch.setenv(VARIABLE, "fsdp=4")
    with pytest.raises(ValueError, match="the plan has an axis fsdp, the program has data"):
        perfscope.mesh(data=1)


@pytest.mark.slow
@pytest.mark.jax
def test_meshes_of_a_program_are_compiled_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require("gpu-nvidia")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("MESH", "True"))
    words = ["plan", "--target", "h100x4", "--axes", "data,fsdp", "-o", str(tmp_path / "runs"), "--json",
             str(tmp_path / "plan.json"), str(script)]  # fmt: skip
    assert run(words) == 0
    plan = load(tmp_path)
    assert {row.candidate.mesh for row in plan.candidates} == {Mesh(fsdp=4), Mesh(data=2, fsdp=2), Mesh(data=4)}
    assert all(row.basis == "compiled" and row.memory_low <= row.memory_high for row in plan.candidates)
    gathers = {row.candidate.mesh: any(one.exchange.kind == "all-gather" for one in row.exchanges)
               for row in plan.candidates}  # fmt: skip
    assert not gathers[Mesh(data=4)]
    capsys.readouterr()
    assert run(words) == 0
    assert "3 of an earlier plan" in capsys.readouterr().err
    script.write_text(PROGRAM.replace("MESH", "False"))
    assert run(words) == 2
    assert "it ignores its mesh" in capsys.readouterr().err
