"""``perfscope compare programs``: two commits of a real repository, compiled for a machine that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ab.repositories import commit, git, repository
from tests.plugins.ahead.compilers import require
from tests.plugins.ahead.distributed_programs import FULLY_SHARD

MODEL = """
import jax
import jax.numpy as jnp


def loss(weights, x):
    hidden = jnp.tanh(x @ weights)
    scores = jnp.exp(hidden) * x
    scaled = jnp.sin(scores) + scores * 2.0
    return jnp.sum(scaled * scaled)


@jax.jit
def step(weights, x):
    return weights - 0.1 * jax.grad(loss)(weights, x)


def start():
    return jnp.zeros((512, 512), jnp.bfloat16), jnp.zeros((4096, 512), jnp.bfloat16)
"""
COMMENTED = MODEL.replace("    scores = ", "    # exp, then the gate\n    scores = ")
BROKEN = MODEL.replace("    scaled = ", "    scores = jax.lax.optimization_barrier(scores)\n    scaled = ")
BARRIER = "work.py:9"

TRAIN = """
import work

weights, x = work.start()
for _ in range(3):
    weights = work.step(weights, x)
"""


def compare(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", "compare", "--programs", *words],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    repository(folder, MODEL, MODEL)
    commit(folder, train=TRAIN)
    (folder / ".gitignore").write_text("perfscope-runs/\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "ignore")
    return folder


def described(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
class TestForAnH100:
    @pytest.fixture(autouse=True)
    def compiler(self) -> None:
        require("gpu-nvidia")

    def test_one_line_that_breaks_a_fusion_is_named_first(self, checkout: Path) -> None:
        commit(checkout, work=BROKEN)
        done = compare(checkout, "--base", "HEAD~1", "--json", "c.json", "-q", "--", "train.py")
        assert done.returncode == 1, done.stderr
        held = described(checkout / "c.json")
        (program,) = held["programs"]
        first = program["rows"][0]
        assert (first["source"], first["change"]) == (BARRIER, "moved out of a fusion")
        assert {one["what"] for one in program["written"]} == {"optimization_barrier"}
        assert {one["place"] for one in program["written"]} == {BARRIER}
        assert held["failed"][0].startswith("lost-fusions: ")
        assert f": {BARRIER}" in held["failed"][0]
        assert any(line.startswith("hbm-bytes: ") for line in held["failed"])
        assert held["method"]["kind"] == "compiled once each for H100 SXM; nothing ran on one"
        assert held["method"]["head_commit"] == git(checkout, "rev-parse", "HEAD").strip()
        assert program["base_modelled"]["low"] < program["head_modelled"]["low"]
        assert git(checkout, "worktree", "list").count("\n") == 1
        assert str(checkout) not in (checkout / "c.json").read_text().replace("\\\\", "")

    def test_a_comment_is_the_same_program(self, checkout: Path) -> None:
        commit(checkout, work=COMMENTED)
        done = compare(checkout, "--base", "HEAD~1", "--json", "c.json", "-m", "train")
        assert done.returncode == 0, done.stderr
        assert "identical: same fingerprint" in done.stdout
        held = described(checkout / "c.json")
        (program,) = held["programs"]
        assert program["identical"]
        assert (program["rows"], program["written"], held["failed"]) == ([], [], [])
        assert held["gates"] == ["programs"]

    def test_a_commit_that_cannot_be_compiled(self, checkout: Path) -> None:
        commit(checkout, work="import jax\n\nraise ValueError('no such model')\n")
        done = compare(checkout, "--base", "HEAD~1", "--", "train.py")
        assert done.returncode == 4
        assert "head was not compiled" in done.stderr
        assert "no such model" in done.stderr
        assert git(checkout, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--base", "HEAD"), "nothing to compile"),
        (("--base", "HEAD", "--", "ls"), "nothing to compile"),
        (("--", "train.py"), "--base REF"),
        (("--base", "nowhere", "--", "train.py"), "nowhere: not a commit of this repository"),
        (("--base", "HEAD", "--target", "h1000", "--", "train.py"), "h1000"),
        (("--base", "HEAD", "--fail-on", "speed", "--", "train.py"), "--fail-on speed: not one of"),
    ],
)
def test_asked_wrongly_is_one_line(checkout: Path, words: tuple[str, ...], said: str) -> None:
    done = compare(checkout, *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line
    assert not (checkout / "perfscope-runs").exists()


PLANNED = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        h = self.up(x)
        h = F.gelu(h) * torch.sigmoid(h)
        h = h * 2.0 + 1.0
        return self.down(h).square().mean()
"""
KERNEL = """

@torch.library.custom_op("mine::clamped", mutates_args=())
def clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-4, 4)


clamped.register_fake(torch.empty_like)
clamped.register_autograd(lambda context, gradient: gradient)


class Model"""
APART = PLANNED.replace("\n\nclass Model", KERNEL).replace("h = h * 2.0", "h = clamped(h) * 2.0")

TRAIN_TORCH = """
import torch
import work

model = torch.compile(work.Model().to("cuda", torch.bfloat16))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(8):
    model(torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.aot
@pytest.mark.slow
class TestTorchPrograms:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        require("torch")
        folder = tmp_path / "checkout"
        folder.mkdir()
        git(folder, "init", "-q")
        (folder / ".gitignore").write_text("perfscope-runs/\n")
        commit(folder, work=PLANNED, train=TRAIN_TORCH)
        return folder

    def test_a_kernel_that_breaks_a_fusion_is_named_at_its_line(self, checkout: Path) -> None:
        commit(checkout, work=APART)
        line = APART.splitlines().index("        h = clamped(h) * 2.0 + 1.0") + 1
        done = compare(checkout, "--base", "HEAD~1", "--json", "c.json", "--markdown", "c.md", "-q", "--", "train.py")
        assert done.returncode == 1, done.stderr
        held = described(checkout / "c.json")
        (program,) = held["programs"]
        (lost,) = (row for row in program["rows"] if row["change"] == "moved out of a fusion")
        assert lost["place"] == f"work.py:{line}"
        assert f"lost-fusions: 2 launches were part of a fusion, +32.0 MiB a run: work.py:{line}" in held["failed"]
        kind = "planned once each for H100 SXM, over CPU tensors; nothing was compiled or run"
        assert held["method"]["kind"] == kind
        assert kind in (checkout / "c.md").read_text()
        assert held["notes"] == []
        assert git(checkout, "worktree", "list").count("\n") == 1


SUMMED = """
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO = 2
dist.init_process_group("nccl")
layers = (layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU()))
model = DistributedDataParallel(nn.Sequential(*layers).cuda().bfloat16())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(6):
    for micro in range(MICRO):
        last = micro == MICRO - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)).square().mean()
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOST_NO_SYNC = SUMMED.replace("contextlib.nullcontext() if last else model.no_sync()", "contextlib.nullcontext()")
BLOCKING_SUM = SUMMED.replace("    optimizer.step()", "    dist.all_reduce(loss.detach())\n    optimizer.step()")


@pytest.mark.aot
@pytest.mark.slow
class TestOfSeveralProcesses:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        require("torch")
        folder = tmp_path / "checkout"
        folder.mkdir()
        git(folder, "init", "-q")
        (folder / ".gitignore").write_text("perfscope-runs/\n")
        commit(folder, train=SUMMED)
        return folder

    def compared(self, checkout: Path, code: int) -> dict[str, Any]:
        done = compare(
            checkout, "--base", "HEAD~1", "--target", "h100x8", "--json", "c.json", "-q", "--", "train.py"
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return described(checkout / "c.json")

    def line(self, text: str, of: str) -> str:
        return f"train.py:{next(at for at, line in enumerate(text.splitlines(), 1) if of in line)}"

    def test_gradients_that_are_summed_after_every_micro_batch(self, checkout: Path) -> None:
        commit(checkout, train=LOST_NO_SYNC)
        held = self.compared(checkout, 1)
        (program,) = held["programs"]
        first = program["rows"][0]
        assert (first["change"], first["place"]) == ("new collective", self.line(SUMMED, "loss.backward()"))
        amounts = {one["name"]: (one["base"], one["head"]) for one in program["amounts"]}
        before, after = amounts["planned collective bytes per step"]
        gradients = 4 * (512 * 512 + 512) * 2
        assert before == pytest.approx(gradients * 2 * 7 / 8, abs=8)
        assert after == 2 * before
        assert any(line.startswith("collective-bytes: ") for line in held["failed"])

    def test_a_sum_that_the_next_line_waits_for_and_back(self, checkout: Path) -> None:
        commit(checkout, train=BLOCKING_SUM)
        held = self.compared(checkout, 1)
        place = self.line(BLOCKING_SUM, "dist.all_reduce")
        (row,) = (row for row in held["programs"][0]["rows"] if row["place"] == place and "collective" in row["change"])
        assert (row["change"], row["blocking"]) == ("new collective", 1)
        assert f"blocking-collectives: 1 collective blocks now: {place}" in held["failed"]
        commit(checkout, train=SUMMED)
        held = self.compared(checkout, 0)
        assert [row["change"] for row in held["programs"][0]["rows"] if "collective" in row["change"]] == [
            "collective gone"
        ]

    def test_parameters_that_are_gathered_again_in_the_backward(self, checkout: Path) -> None:
        kept = FULLY_SHARD.replace("(block, mesh=mesh)", "(block, mesh=mesh, reshard_after_forward=False)")
        commit(checkout, train=kept)
        commit(checkout, train=FULLY_SHARD)
        held = self.compared(checkout, 1)
        (row,) = (row for row in held["programs"][0]["rows"] if "collective" in row["change"])
        assert (row["change"], row["phase"]) == ("new collective", "backward")
        assert row["what"].startswith("all-gather of fully_shard")
        (amount,) = (one for one in row["amounts"] if one["name"] == "planned collectives per step")
        assert (amount["base"], amount["head"]) == (0, 3)  # a block each
        assert held["failed"][0].startswith("collective-bytes: ")

    def test_a_comment_is_the_same_plan(self, checkout: Path) -> None:
        commit(checkout, train=SUMMED.replace("MICRO = 2", "# of a step\nMICRO = 2"))
        held = self.compared(checkout, 0)
        assert [one["identical"] for one in held["programs"]] == [True]
