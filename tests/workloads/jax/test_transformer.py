"""The sharded transformer: the same numbers on any mesh, and no exchange but those of its kind of parallelism."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from perfscope.analyzers.hlo.module import Instruction
from perfscope.analyzers.readers.hlo import text
from tests.conftest import REPOSITORY
from tests.workloads.jax.twins import options, workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

COLLECTIVES = {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}
ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PATH": "", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """The folder of the compiled steps, and the losses on each mesh."""
    folder = tmp_path_factory.mktemp("hlo")
    command = [sys.executable, "-m", "tests.workloads.jax.eight_devices", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def collectives(folder: Path, name: str) -> list[Instruction]:
    (module,) = text.read(folder / f"{name}.hlo.txt").hlo
    return [one for _, one in module.instructions() if one.opcode in COLLECTIVES]


def test_the_same_numbers_on_every_mesh(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    _, losses = meshes
    assert len(losses["one"]) == 2
    assert losses["one"][0] > losses["one"][1]
    for found in losses.values():
        assert found == pytest.approx(losses["one"], rel=1e-5)  # sums over devices, in another order, float32


def test_the_same_numbers_as_the_attention_workload(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    from perfscope.workloads.jax.training import train

    asked = options("transformer", "naive", steps=2)
    assert train(workload("attention").Block, asked) == pytest.approx(meshes[1]["one"], rel=1e-5)


def test_each_parallelism_has_its_own_exchanges(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    folder, _ = meshes
    kinds = {name: Counter(one.opcode for one in collectives(folder, name)) for name in meshes[1]}
    assert kinds["one"] == {}
    assert set(kinds["data"]) == {"all-reduce"}  # of the gradients
    assert kinds["fsdp"]["all-gather"] == 4 + 2  # the four large arrays of a layer, embedding and head
    assert kinds["tensor"] == {"all-reduce": 4}  # after attention and after the hidden layer, forward and backward
    assert set(kinds["all"]) == {"all-gather", "all-reduce"}
    assert kinds["defect"]["all-to-all"] > 0


def test_the_bad_sharding_exchanges_activations_on_its_line(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    lines = (REPOSITORY / "perfscope/workloads/jax/transformer.py").read_text().splitlines()
    (defect,) = [number for number, line in enumerate(lines, start=1) if "# defect: moves all" in line]
    exchanges = [one for one in collectives(meshes[0], "defect") if one.opcode == "all-to-all"]
    assert {Path(one.file or "").name for one in exchanges} == {"transformer.py"}
    # The add of the residual is no request for an exchange: what asks for the layout is the line it stands in.
    assert [one.line for one in exchanges if one.op_name.endswith("/add")] == [defect]
    assert all(re.search(r"while/body", one.op_name) for one in exchanges)  # once a layer


def test_it_runs_on_devices_of_its_own_making() -> None:
    command = [sys.executable, "-m", "perfscope.workloads.jax.transformer", "--size", "tiny", "--steps", "1"]
    mesh = ["--devices", "8", "--data", "2", "--fsdp", "2", "--tensor", "1", "--defect", "retrace"]
    done = subprocess.run(
        [*command, *mesh], capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step   0  loss ")


def test_too_few_devices_are_said() -> None:
    with pytest.raises(ValueError, match="a mesh of 64 x 2 x 1 needs 128 devices, jax has"):
        workload("transformer").mesh_of((64, 2, 1), "cpu")


def test_its_flags() -> None:
    transformer = workload("transformer")
    asked, shape, devices = transformer.parse([])
    assert (asked.variant, shape, devices) == ("naive", (2, 2, 2), 8)
    asked, shape, devices = transformer.parse(["--data", "4", "--fsdp", "1", "--defect", "sharding"])
    assert (asked.defects, shape, devices) == ({"sharding"}, (4, 1, 2), 8)
    assert transformer.parse(["--devices", "16"])[2] == 16


def test_every_array_but_the_small_ones_is_cut() -> None:
    from jax.sharding import PartitionSpec

    from perfscope.workloads.jax.training import LanguageModel, start

    transformer = workload("transformer")
    state = start(LanguageModel(workload("attention").Block, options("transformer", "naive")))
    shardings = transformer.weight_shardings(transformer.mesh_of((1, 1, 1), "cpu"), state.weights)
    pairs = zip(jax.tree.leaves(state.weights), jax.tree.leaves(shardings), strict=True)
    whole = [array.size for array, sharding in pairs if sharding.spec == PartitionSpec()]
    assert whole
    assert max(whole) <= state.weights["blocks"]["down_D"].size
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(state.weights)}
    assert set(transformer.SPECS) <= names
