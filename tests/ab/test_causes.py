"""``perfscope compare commits`` with profiled launches: planted defects in commits of small PyTorch programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ab.repositories import commit, git
from tests.session.programs import environment, plain

pytestmark = [pytest.mark.slow, pytest.mark.torch]

TRAIN = """
import torch
from model import Model
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(4, 64, 64)
for step in range(16):
    loss = model.loss(x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MODEL = """
import torch
from torch.nn import functional as F

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def loss(self, x):
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = self.attend(q, k, v)
        return y.square().mean()
"""
ITEM = MODEL.replace("        return y.square()", "        self.seen = y.max().item()\n        return y.square()")
NO_SDPA = MODEL.replace("F.scaled_dot_product_attention(q, k, v)", "(q @ k.transpose(-2, -1) / 4).softmax(-1) @ v")
COMMENT = "# The model of the paper.\n" + MODEL

SECONDS = 600.0
"""Eight launches, each of which imports torch, two of them with two ranks, on a machine that others use too."""
FEW = ("--calibration", "0", "--pairs", "2", "--no-confirm", "--seed", "1")
"""The times of a shared machine are not asked: whatever is asserted below is exact."""
ANY_TIME = ("--least", "100")
"""Steps that take less than twice as long do not matter."""


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


def compared(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "compare", "--ab", *FEW, *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    made = sorted((folder / "perfscope-runs").glob("ab-*/result.json"), key=lambda path: path.stat().st_mtime)
    return done, json.loads(made[-1].read_text())


def counted(held: dict[str, Any], change: str) -> list[str]:
    """Rules whose findings changed so, without those that a measured time alone brought over a threshold."""
    return [one["rule"] for one in held["findings"] if one["change"] == change and not one["by_time"]]


@pytest.fixture
def code(tmp_path: Path) -> Callable[[str, str], Path]:
    def made(base: str, head: str) -> Path:
        git(tmp_path, "init", "-q")
        (tmp_path / ".gitignore").write_text("perfscope-runs\n__pycache__\n")
        commit(tmp_path, train=TRAIN, model=base)
        commit(tmp_path, model=head)
        return tmp_path

    return made


def test_an_added_item_is_a_regression_with_its_line_first_and_its_runs_open_later(
    code: Callable[[str, str], Path],
) -> None:
    folder = code(MODEL, ITEM)
    done, held = compared(folder, "--base", "HEAD~1", "--fail-on", "regression", *ANY_TIME, "--", "train.py")
    assert done.returncode == 1, done.stderr
    line = f"model.py:{line_of(ITEM, '.item()')}"
    assert (held["headline"], held["causes"][0]["place"]) == ("regression", line)
    assert "reads by the host per step (structure): regression" in held["failed"]
    assert "host_sync" in counted(held, "new")  # what is near a share of the step may come and go with its time
    assert held["step"]["parts"]
    assert held["method"]["profiled"] == 1
    assert held["method"]["environment"]["torch"]
    assert str(folder) not in json.dumps(held)
    assert line in done.stdout
    assert git(folder, "worktree", "list").count("\n") == 1

    (base,) = folder.glob("perfscope-runs/ab-*/profiled/*-base-1-*")
    (head,) = folder.glob("perfscope-runs/ab-*/profiled/*-head-1-*")
    again = plain("-m", "perfscope", "compare", str(base), str(head), "--json", "-", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["headline"] == "regression"
    report = plain("-m", "perfscope", "analyze", str(head), cwd=folder)
    assert report.returncode == 0, report.stderr
    assert "host_sync" in report.stdout

    back, held = compared(folder, "--base", "HEAD", "--head", "HEAD~1", *ANY_TIME, "--", "train.py")
    assert back.returncode == 0, back.stderr
    assert (held["headline"], held["causes"][0]["place"]) == ("improvement", line)
    assert counted(held, "fixed") == ["host_sync"]


def test_a_disabled_sdpa_is_a_regression_with_its_line_first(code: Callable[[str, str], Path]) -> None:
    folder = code(MODEL, NO_SDPA)
    _, held = compared(folder, "--base", "HEAD~1", *ANY_TIME, "--", "train.py")
    assert (held["headline"], held["causes"][0]["place"]) == (
        "regression", f"model.py:{line_of(NO_SDPA, '.softmax(-1)')}",
    )  # fmt: skip
    assert {one["name"]: one["verdict"] for one in held["metrics"]}["ops per step"] == "regression"


def test_a_comment_is_quiet(code: Callable[[str, str], Path]) -> None:
    folder = code(MODEL, COMMENT)
    gates = ("--fail-on", "regression", "--fail-on", "finding:low")
    done, held = compared(folder, "--base", "HEAD~1", *gates, *ANY_TIME, "--", "train.py")
    assert done.returncode == 0, done.stdout
    assert held["headline"] in ("no change", "inconclusive")  # of the time, which two pairs do not settle
    assert {one["verdict"] for one in held["metrics"] if one["known"] == "exact"} == {"no change"}
    assert not any(one["exact"] for one in held["causes"])
    assert not any(one["change"] in ("new", "worse") and not one["by_time"] for one in held["findings"])
    assert "nothing changed in what can be counted" in done.stdout


def test_ranks_of_torchrun_are_one_program(tmp_path: Path) -> None:
    """Rank 1 sleeps in each step; the other waits for it, and each step is as long as that of the slowest."""
    train = (
        "import torch, torch.distributed as dist\nfrom work import turn\ndist.init_process_group('gloo')\n"
        "model = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
        "for step in range(20):\n    turn(dist.get_rank())\n    model(torch.ones(2, 8)).mean().backward()\n"
        "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
        "dist.destroy_process_group()\n"
    )
    git(tmp_path, "init", "-q")
    commit(tmp_path, train=train, work="def turn(rank):\n    pass\n")
    commit(tmp_path, work="import time\n\ndef turn(rank):\n    time.sleep(0.1 * rank)\n")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    done, held = compared(tmp_path, "--base", "HEAD~1", "--", *launcher, "train.py")
    assert done.returncode == 0, done.stderr
    assert held["metrics"][0]["head"] >= 0.09e9, "it sleeps a tenth of a second"
    assert "2 ranks: each step is as long as that of the slowest" in held["method"]["remarks"]
    assert len(held["ranks"]) == 2
    assert all(one["head_ns"] > 0.09e9 for one in held["ranks"])
    lines = next(tmp_path.glob("perfscope-runs/ab-*/launches.jsonl")).read_text().splitlines()
    assert {json.loads(line)["ranks"] for line in lines if json.loads(line)["phase"] == "measure"} == {2}


def test_a_build_is_run_in_both_arms_and_a_profile_that_fails_does_not_lose_the_verdict(tmp_path: Path) -> None:
    """The program needs a file that only the build makes, and ends badly where a profiler is near."""
    train = (
        "import os, torch, built\nfrom torch.autograd import profiler\n"
        "p = torch.nn.Parameter(torch.ones(4))\noptimizer = torch.optim.SGD([p], lr=0.1)\n"
        "for step in range(16):\n    if profiler._is_profiler_enabled:\n        os._exit(7)\n"
        "    (p * built.VALUE).sum().backward()\n    optimizer.step()\n"
    )
    git(tmp_path, "init", "-q")
    commit(tmp_path, train=train)
    commit(tmp_path, other="")
    asked = ("--base", "HEAD~1", "--build", "echo VALUE = 2.0 > built.py", *ANY_TIME, "--", "train.py")
    done, held = compared(tmp_path, *asked)
    assert done.returncode == 0, done.stderr
    assert "perfscope: building head" in done.stderr
    assert held["metrics"][0]["pairs"] == 2
    (cause,) = [one for one in held["not_looked"] if one["name"].startswith("cause")]
    assert "exit code 7" in cause["reason"]
    assert "gave no profile, so its cause is not known from this pair" in done.stderr
    failed = plain(
        "-m", "perfscope", "compare", "--ab", "--base", "HEAD", "--build", "exit 4", "train.py", cwd=tmp_path
    )
    assert failed.returncode == 4
    assert "--build failed in base with exit code 4" in failed.stderr
    assert "Traceback" not in failed.stderr
