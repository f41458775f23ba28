"""The JAX workloads as programs: their command line, and the lines of code that reports will name."""

from __future__ import annotations

import json
import logging
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.hlo.module import Instruction
from perfscope.analyzers.readers.hlo import text
from tests.conftest import REPOSITORY
from tests.workloads.jax.twins import options, tokens, workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

FOLDER = REPOSITORY / "perfscope" / "workloads" / "jax"
NAMES = ("attention", "moe", "ssm", "transformer")
OUTPUT = re.compile(r"step   0  loss \d\.\d{4}\nstep   1  loss \d\.\d{4}\n")


def defect_lines(file: str) -> dict[int, str]:
    lines = (FOLDER / file).read_text().splitlines()
    return {number: line for number, line in enumerate(lines, start=1) if "# defect:" in line}


def line_of(file: str, part: str) -> int:
    (line,) = [number for number, text in defect_lines(file).items() if part in text]
    return line


def lowered(name: str, variant: str, *defects: str) -> str:
    """One step of training as jax hands it to XLA, with the places of the source."""
    from perfscope.workloads.jax.training import LanguageModel, start, step_of

    model = LanguageModel(workload(name).Block, options(name, variant, defects=frozenset(defects)))
    text: str = jax.jit(step_of(model)).lower(start(model), tokens(name)).as_text(debug_info=True)
    return text


def places(text: str) -> set[tuple[str, int]]:
    """Files of the workloads, and lines in them, from which the program's ops come."""
    found = re.findall(r'loc\("([^"]*/workloads/jax/[^"]*)":(\d+):', text)
    return {(Path(file).name, int(line)) for file, line in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "moe", "ssm"])
def test_it_runs_as_a_module(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--size", "tiny", "--steps", "2", "--layers", "1"])
    monkeypatch.delitem(sys.modules, f"perfscope.workloads.jax.{name}", raising=False)
    runpy.run_module(f"perfscope.workloads.jax.{name}", run_name="__main__")
    assert OUTPUT.fullmatch(capsys.readouterr().out)


def test_the_folder_is_never_taken_for_the_library() -> None:
    # What `python perfscope/workloads/moe.py` puts on the path.
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


class Loss(float):
    """A loss that notes from where it is read."""

    read_at: list[int]

    def __float__(self) -> float:
        self.read_at.append(sys._getframe(1).f_lineno)
        return 1.0


@pytest.mark.parametrize("defects", [(), ("float",)])
def test_the_loss_is_read_in_every_step_on_its_line(defects: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.workloads.jax import training

    Loss.read_at = []
    monkeypatch.setattr(training, "report", lambda losses: losses)
    asked = options("ssm", "scan", steps=3, defects=frozenset(defects))
    assert len(training.loop(lambda state, _: (state, Loss()), None, asked, jax.devices()[0])) == 3  # type: ignore[arg-type]
    assert Loss.read_at == ([line_of("training.py", "float(loss)")] * 3 if defects else [])


@pytest.mark.slow
def test_every_step_retraces_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    from perfscope.workloads.jax.training import train

    found = {}
    for defects in ((), ("retrace",)):
        caplog.clear()
        with jax.explain_cache_misses(True), caplog.at_level(logging.WARNING):
            train(workload("ssm").Block, options("ssm", "scan", steps=2, defects=frozenset(defects)))
        log = "\n".join(record.getMessage() for record in caplog.records)
        found[defects] = [int(line) for line in re.findall(r"MISS at [^\n]*training\.py:(\d+):\d+ \(loop\)", log)]
        assert ("Static(val=2)" in log) == bool(defects)
    line = line_of("training.py", "static int")
    assert found[("retrace",)] == [line] * 2
    assert len(found[()]) == 1
    assert line not in found[()]


@pytest.mark.slow
def test_naive_attention_keeps_scores_and_its_twins_do_not() -> None:
    line = ("attention.py", line_of("attention.py", "scores"))
    size = workload("attention").SIZES["tiny"]
    scores = f"{size.batch}x{size.heads}x{size.seq}x{size.seq}xf32"
    naive = lowered("attention", "naive")
    assert line in places(naive)
    assert scores in naive
    for variant in ("blocked", "pallas"):
        assert line not in places(lowered("attention", variant))
    # At more than one block of keys, no array of the twin is as large as the scores.
    shape = jax.ShapeDtypeStruct((1, 1, 256, 16), np.float32)
    for variant, kept in (("naive", True), ("blocked", False), ("pallas", False)):
        attend = workload("attention").ATTENTION[variant]
        both_ways = jax.jit(jax.grad(lambda q, k, v, attend=attend: attend(q, k, v).sum(), argnums=(0, 1, 2)))
        assert ("256x256xf32" in both_ways.lower(shape, shape, shape).as_text()) is kept


@pytest.mark.slow
def test_rows_are_moved_by_products_on_their_lines_or_not_at_all() -> None:
    einsum = {("moe.py", line) for line, text in defect_lines("moe.py").items() if "einsum" in text}
    ragged = {("moe.py", line) for line, text in defect_lines("moe.py").items() if "ragged_dot" in text}
    assert len(einsum) == len(ragged) == 2
    for variant, theirs, others in (("einsum", einsum, ragged), ("ragged", ragged, einsum)):
        found = places(lowered("moe", variant))
        assert theirs <= found
        assert not others & found
    assert not (einsum | ragged) & places(lowered("moe", "scatter"))


@pytest.mark.slow
def test_the_scan_is_a_loop_over_time_on_one_line() -> None:
    ssm, shape = workload("ssm"), jax.ShapeDtypeStruct((2, 96, 3, 4), np.float32)
    loops = {name: jax.jit(recur).lower(shape, shape).as_text() for name, recur in ssm.RECURRENCE.items()}
    assert loops["scan"].count("stablehlo.while") == 1
    assert "dense<96>" in loops["scan"]
    assert "stablehlo.while" not in loops["associative"]
    line = ("ssm.py", line_of("ssm.py", "lax.scan(advance"))
    assert line in places(lowered("ssm", "scan"))
    assert line not in places(lowered("ssm", "associative"))


@pytest.mark.slow
def test_checkpointing_recomputes_on_its_line() -> None:
    from perfscope.workloads.jax.training import LanguageModel, start, step_of

    line = ("training.py", line_of("training.py", "jax.checkpoint(self.block"))
    plain = lowered("moe", "scatter")
    assert "rematted_computation" not in plain
    assert line not in places(plain)
    model = LanguageModel(workload("moe").Block, options("moe", "scatter", defects=frozenset({"checkpoint"})))
    stage = jax.jit(step_of(model)).lower(start(model), tokens("moe"))
    assert line in places(stage.as_text(debug_info=True))
    # XLA has not merged it with the first forward: the hidden layer of the experts, at least, is computed again.
    again = re.findall(r'rematted_computation[^"]*/dot_general"', stage.compile().as_text())
    assert len(again) >= 2


def test_the_logits_at_full_precision_on_their_line() -> None:
    plain, full = lowered("ssm", "scan"), lowered("ssm", "scan", "fp32")
    line = ("training.py", line_of("training.py", "highest"))
    assert "HIGHEST" not in plain
    assert line not in places(plain)
    highest = [text for text in full.splitlines() if "precision = [HIGHEST, HIGHEST]" in text]
    assert len(highest) == 3  # forward, and the gradients of its two factors
    assert line in places(full)


@pytest.mark.parametrize("file", ["attention.py", "moe.py", "ssm.py", "training.py", "transformer.py"])
def test_each_defect_is_one_line_that_says_what_it_is(file: str) -> None:
    lines = defect_lines(file)
    assert lines
    assert all(line.split("#")[0].strip() for line in lines.values())


def test_every_defect_has_its_place() -> None:
    from perfscope.workloads.jax.options import DEFECTS

    source = (FOLDER / "training.py").read_text()
    assert [name for name in DEFECTS if source.count(f'"{name}" in ') == 0] == []


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
    return [item for _, item in module.instructions() if item.opcode in COLLECTIVES]


@pytest.mark.slow
def test_the_same_numbers_on_every_mesh(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    _, losses = meshes
    assert len(losses["one"]) == 2
    assert losses["one"][0] > losses["one"][1]
    for loss in losses.values():
        assert loss == pytest.approx(losses["one"], rel=1e-5)  # sums over devices, in another order, float32


@pytest.mark.slow
def test_each_parallelism_has_its_own_exchanges(meshes: tuple[Path, dict[str, list[float]]]) -> None:
    folder, _ = meshes
    kinds = {name: Counter(collective.opcode for collective in collectives(folder, name)) for name in meshes[1]}
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
    # The add of the residual is no request for an exchange: what asks for the layout is the line it stands in.
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


def test_its_flags() -> None:
    transformer = workload("transformer")
    asked, shape, devices = transformer.parse([])
    assert (asked.variant, shape, devices) == ("naive", (2, 2, 2), 8)
    asked, shape, devices = transformer.parse(["--data", "4", "--fsdp", "1", "--defect", "sharding"])
    assert (asked.defects, shape, devices) == ({"sharding"}, (4, 1, 2), 8)
    assert transformer.parse(["--devices", "16"])[2] == 16
