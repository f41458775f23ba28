"""Programs of public libraries: captured and compiled as they are, and their output stays theirs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 900
OPTIMIZER, MODULE = "optimizer.step", "calls of "


@dataclass(frozen=True)
class Program:
    """A program of `PROGRAMS`: the packages it imports, and the source that its steps are known from."""

    name: str
    needs: tuple[str, ...]
    steps: str
    launcher: tuple[str, ...] = ()
    ranks: int = 1


TORCH = (
    Program("accelerate_train", ("torch", "accelerate"), OPTIMIZER),
    Program("diffusers_sample", ("torch", "diffusers"), MODULE),
    Program("fsdp2_train", ("torch",), OPTIMIZER, ("torchrun", "--nproc-per-node", "2"), 2),
    Program("lightning_fit", ("torch", "lightning"), OPTIMIZER),
    Program("peft_lora", ("torch", "peft", "transformers"), OPTIMIZER),
    Program("timm_eval", ("torch", "timm", "torchvision"), MODULE),
    Program("timm_train", ("torch", "timm", "torchvision"), OPTIMIZER),
    Program("torch_compile_no_grad", ("torch",), MODULE),
    Program("torch_compile_train", ("torch",), OPTIMIZER),
    Program("torch_no_grad", ("torch",), MODULE),
    Program("torchvision_train", ("torch", "torchvision"), OPTIMIZER),
    Program("transformers_generate", ("torch", "transformers"), MODULE),
    Program("transformers_train", ("torch", "transformers"), OPTIMIZER),
    Program("transformers_trainer", ("torch", "transformers", "accelerate"), OPTIMIZER),
    Program("trl_sft", ("torch", "trl", "transformers"), OPTIMIZER),
)
DEEPSPEED = Program("deepspeed_train", ("torch", "deepspeed"), OPTIMIZER, ("torchrun", "--nproc-per-node", "1"))
JAX = (
    Program("equinox_train", ("jax", "equinox", "optax"), MODULE),
    Program("flax_linen", ("jax", "flax", "optax"), MODULE),
    Program("flax_nnx", ("jax", "flax", "optax"), MODULE),
    Program("grain_input", ("jax", "grain", "optax"), MODULE),
    Program("haiku_train", ("jax", "haiku", "optax"), MODULE),
    Program("maxtext_scan", ("jax", "optax"), MODULE),
)


def start(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PERFSCOPE_CACHE": "off"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def command_of(program: Program) -> list[str]:
    return [*program.launcher, str(PROGRAMS / f"{program.name}.py")]


def need(program: Program) -> None:
    for package in program.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def bare(program: Program, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program without perfscope, or a skip where this library and this torch or jax do not go together."""
    command = command_of(program)
    alone = start(command if program.launcher else [sys.executable, *command], folder)
    if alone.returncode:
        lines = alone.stderr.strip().splitlines() or ["it said nothing"]
        pytest.skip(f"{program.name} fails by itself here: {lines[-1]}")
    return alone


def warnings_in(text: str) -> set[str]:
    return set(re.findall(r"\b(\w*Warning): (.{0,60})", text))


def newest(folder: Path, name: str) -> dict[str, Any]:
    (path,) = (folder / "perfscope-runs").glob(f"2*/{name}")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("program", [*TORCH, DEEPSPEED, *JAX], ids=lambda program: program.name)
def test_a_run_finds_the_steps_and_adds_no_warning(program: Program, tmp_path: Path) -> None:
    need(program)
    alone = bare(program, tmp_path)
    run = start([sys.executable, "-m", "perfscope", "run", *command_of(program)], tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    assert warnings_in(run.stderr) <= warnings_in(alone.stderr)
    manifest = newest(tmp_path, "run.json")
    assert manifest["state"] == "finished"
    assert len(manifest["processes"]) == program.ranks
    for process in manifest["processes"]:
        assert (process["step_source"] or "").startswith(program.steps)
        timing = [capture for capture in process["captures"] if capture["pass"] == "timing"]
        assert [capture["state"] for capture in timing] == ["recorded"]
        assert not [capture for capture in process["captures"] if "failed" in (capture["reason"] or "")]
    report = newest(tmp_path, "report.json")
    assert report["steps"] or report["windows"], "where no step waits for its work, and jax 0.6 gives executions no id"
    assert report["accounts"]


@pytest.mark.aot
@pytest.mark.parametrize("program", TORCH, ids=lambda program: program.name)
def test_a_torch_program_is_planned_for_an_h100(program: Program, tmp_path: Path) -> None:
    need(program)
    from tests.plugins.ahead.compilers import require

    require("torch")
    if tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 12):
        pytest.skip("planning needs torch 2.12 or later")
    bare(program, tmp_path)
    target = "h100" if program.ranks == 1 else f"h100:{program.ranks}"
    script = str(PROGRAMS / f"{program.name}.py")
    compiled = start([sys.executable, "-m", "perfscope", "compile", "--target", target, script], tmp_path)
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    assert not warnings_in(compiled.stderr)
    plan = newest(tmp_path, "plans/*.json")
    assert plan["failure"] is None
    assert plan["graphs"]
    assert plan["steps_from"].startswith(program.steps)
    assert plan["eager_file"], "eager and compiled stand side by side"
    assert plan["outside_file"]


@pytest.mark.aot
@pytest.mark.parametrize("program", JAX, ids=lambda program: program.name)
def test_a_jax_program_is_compiled_for_a_tpu(program: Program, tmp_path: Path) -> None:
    need(program)
    from tests.plugins.ahead.compilers import require

    require("tpu")
    compiled = start([sys.executable, "-m", "perfscope", "compile", "--target", "v5e", *command_of(program)], tmp_path)
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    manifest = newest(tmp_path, "compile.json")
    assert manifest["programs"]
    assert not manifest["not_compiled"]
