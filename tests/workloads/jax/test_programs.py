"""The JAX workloads as programs: their command line, and the lines of code that reports will name."""

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
from tests import warm
from tests.conftest import REPOSITORY
from tests.workloads.jax.numbers import options, workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

FOLDER = REPOSITORY / "perfscope" / "workloads" / "jax"
NAMES = ("attention", "moe", "ssm", "transformer")
OUTPUT = re.compile(r"step   0  loss \d\.\d{4}\nstep   1  loss \d\.\d{4}\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "moe", "ssm"])
def test_it_runs_as_a_module(name: str) -> None:
    command = [
        sys.executable,
        "-m",
        f"perfscope.workloads.jax.{name}",
        "--size",
        "tiny",
        "--steps",
        "2",
        "--layers",
        "1",
    ]
    done = warm.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT, check=False)
    assert OUTPUT.fullmatch(done.stdout), done.stderr


def test_the_folder_is_never_taken_for_the_library() -> None:
    # The path entry made by `python perfscope/workloads/moe.py`.
    code = f"import sys; sys.path.insert(0, {str(FOLDER.parent)!r}); import jax"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: this folder holds example programs")


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_presets(name: str) -> None:
    from perfscope.workloads.jax.options import parse
    from perfscope.workloads.options import Options

    module = workload(name)

    def asked(*arguments: str) -> Options:
        return parse("", module.VARIANTS, module.SIZES, arguments)

    assert asked() == Options(variant=module.VARIANTS[0], size=module.SIZES["cpu"])
    large = asked("--size", "gpu")
    assert (large.device, large.dtype, large.size) == ("gpu", "bfloat16", module.SIZES["gpu"])
    assert asked("--size", "gpu", "--defect", "fp32").dtype == "float32"
    assert asked("--size", "gpu", "--device", "cpu", "--dim", "64").size.dim == 64
    assert asked("--defect", "float", "--defect", "retrace").defects == {"float", "retrace"}
    with pytest.raises(SystemExit):
        asked("--defect", "item")


def test_a_device_that_is_not_there() -> None:
    from perfscope.workloads.jax.data import device_of

    assert device_of(options("ssm", "scan")).platform == "cpu"
    with pytest.raises(RuntimeError, match="nonsense"):
        device_of(options("ssm", "scan", device="nonsense"))


COLLECTIVES = {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}
ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PATH": "", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """The folder of the compiled steps, and the losses on each mesh."""
    folder = tmp_path_factory.mktemp("hlo")
    command = [sys.executable, "-m", "tests.workloads.jax.eight_devices", str(folder)]
    done = warm.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def collectives(folder: Path, name: str) -> list[Instruction]:
    (module,) = text.read(folder / f"{name}.hlo.txt").hlo
    return [item for _, item in module.instructions() if item.opcode in COLLECTIVES]


@pytest.mark.slow
def test_the_same_numbers_on_every_mesh(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    _, losses = meshes
    assert len(losses["one"]) == 2
    assert losses["one"][0] > losses["one"][1]
    for name, loss in losses.items():
        kind = next((kind for kind in ("experts", "context") if kind in name), None)
        one = losses["one" if kind is None else f"one of {kind}"]
        assert loss == pytest.approx(one, rel=1e-5), name  # sums over devices, in another order, float32


@pytest.mark.slow
def test_each_parallelism_has_its_own_exchanges(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    folder, _ = meshes
    names = [name for name in meshes[1] if "experts" not in name and "context" not in name]
    kinds = {name: Counter(collective.opcode for collective in collectives(folder, name)) for name in names}
    assert kinds["one"] == {}
    assert set(kinds["data"]) == {"all-reduce"}  # of the gradients
    assert kinds["fsdp"]["all-gather"] == 4 + 2  # the four large arrays of a layer, embedding and head
    assert kinds["tensor"] == {"all-reduce": 4}  # after attention and after the hidden layer, forward and backward
    assert set(kinds["all"]) == {"all-gather", "all-reduce"}
    assert kinds["defect"]["all-to-all"] > 0


@pytest.mark.slow
def test_the_bad_sharding_exchanges_activations_on_its_line(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    lines = (REPOSITORY / "perfscope/workloads/jax/transformer.py").read_text().splitlines()
    (defect,) = [number for number, line in enumerate(lines, start=1) if "# defect: resharding_collective" in line]
    exchanges = [collective for collective in collectives(meshes[0], "defect") if collective.opcode == "all-to-all"]
    assert {Path(exchange.file or "").name for exchange in exchanges} == {"transformer.py"}
    # The add of the residual does not request an exchange: the layout is requested by its line.
    assert [exchange.line for exchange in exchanges if exchange.op_name.endswith("/add")] == [defect]
    assert all(re.search(r"while/body", exchange.op_name) for exchange in exchanges)  # once a layer


@pytest.mark.slow
def test_it_runs_on_devices_of_its_own_making() -> None:
    command = [sys.executable, "-m", "perfscope.workloads.jax.transformer", "--size", "tiny", "--steps", "1"]
    mesh = ["--devices", "8", "--data", "2", "--fsdp", "2", "--tensor", "1"]
    done = subprocess.run([*command, *mesh], capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step   0  loss ")


def test_too_few_devices_are_said() -> None:
    with pytest.raises(ValueError, match="a mesh of 64 x 2 x 1 needs 128 devices, jax has"):
        workload("transformer").mesh_of((64, 2, 1), "cpu")


def test_flags_of_experts() -> None:
    experts = workload("experts")
    asked, flags = experts.parse(["--expert", "8", "--data", "1", "--skew", "4", "--defect", "checkpoint"])
    assert (asked.policy, flags.data, flags.fsdp, flags.expert, flags.skew) == ("full", 1, 1, 8, 4.0)
    assert experts.parse([])[1].capacity == workload("moe").CAPACITY


def test_its_flags() -> None:
    transformer = workload("transformer")
    asked, shape, devices = transformer.parse([])
    assert (asked.variant, shape, devices) == ("naive", (2, 2, 2), 8)
    asked, shape, devices = transformer.parse(["--data", "4", "--fsdp", "1", "--defect", "sharding"])
    assert (asked.defects, shape, devices) == ({"sharding"}, (4, 1, 2), 8)
    assert transformer.parse(["--devices", "16"])[2] == 16
