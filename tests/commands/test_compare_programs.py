"""``perfscope compare --programs``: two commits of a real repository, compiled for a machine that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.aot import require
from tests.profiler.ab_programs import commit, git, repository

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
        (("--base", "nowhere", "--", "train.py"), "nowhere: no commit of this repository"),
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
