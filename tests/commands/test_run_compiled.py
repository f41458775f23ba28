"""``perfscope run`` on programs that torch.compile trips over: each line under its rule, the twins under none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.profiler.programs import environment, plain, write

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORKLOADS = REPOSITORY / "perfscope" / "workloads"
SECONDS = 1200
"""A frame compiled cold eight times takes minutes where g++ has little of the machine."""
RULES = ("graph_break", "eager_fallback", "recompilation", "dynamic_shape_churn")

PROGRAM = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(16, 16))
optimizer = torch.optim.SGD([weight], lr=0.01)

@torch.compile(backend="aot_eager")
def branching(x):
    h = torch.relu(x @ weight)
    if h.amax() > 1000:  # breaks
        h = h * 0.5
    return h + 1

@torch.compile(backend="eager")
def looping(x):
    for _ in range(2):
        x = x.sin()
        print("loud", x.abs().amax().item())  # falls back
    return x

@torch.compile(backend="eager", dynamic=True)
def dropping(x, rate):
    return F.dropout(x, p=rate)  # recompiles

@torch.compile(backend="eager", dynamic=False)
def reading(x):  # churns
    return x.cos()

@torch.compile(backend="eager", dynamic=True)
def whole(x, rate):
    h = x
    for _ in range(2):
        h = torch.where(h > rate, h, 0.5 * h)
    return h

for step in range(12):
    optimizer.zero_grad()
    y = reading(looping(branching(torch.randn(8 + step, 16))))
    loss = dropping(y, 0.1 + 0.01 * step).sum() + whole(y, torch.tensor(0.01 * step)).sum()
    loss.backward()
    optimizer.step()
"""
"""Backends that make no code: what dynamo does with the lines is the same, and costs a second."""


def judged(folder: Path, *program: str, **env: str) -> dict[str, list[dict[str, Any]]]:
    """Findings of the four rules by rule; each was asked and could look."""
    command = [sys.executable, "-m", "perfscope", "run", "--no-report", *program]
    ran = subprocess.run(command, cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr
    found = plain("-m", "perfscope", "analyze", "latest", "--format", "json", cwd=folder)
    report = json.loads(found.stdout)
    outcomes = {outcome["rule"]: outcome for outcome in report["outcomes"] if outcome["rule"] in RULES}
    assert sorted(outcomes) == sorted(RULES)
    assert all(outcome["status"] != "abstained" for outcome in outcomes.values())
    return {rule: outcomes[rule]["findings"] for rule in RULES}


def places(findings: dict[str, list[dict[str, Any]]]) -> dict[str, set[tuple[str, int]]]:
    """(name of the file, line) of the findings, by rule; rules without any left out."""
    held: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for rule, found in findings.items():
        held[rule].update((Path(one["where"]["file"]).name, one["where"]["line"]) for one in found)
    return {rule: lines for rule, lines in held.items() if lines}


def line_of(file: Path, text: str) -> int:
    """Number of the only line with ``text``."""
    (number,) = (number for number, line in enumerate(file.read_text().splitlines(), start=1) if text in line)
    return number


def test_each_line_is_found_with_its_time_and_the_clean_function_is_not(tmp_path: Path) -> None:
    name = write(tmp_path, PROGRAM)
    found = judged(tmp_path, name)
    lines = {word: line_of(tmp_path / name, f"# {word}") for word in ("breaks", "falls back", "recompiles", "churns")}
    first = line_of(tmp_path / name, "def dropping") - 1  # of a function: its decorator
    assert places(found) == {
        "graph_break": {(name, lines["breaks"])},
        "eager_fallback": {(name, lines["falls back"]), (name, first), (name, lines["churns"] - 1)},
        "recompilation": {(name, lines["recompiles"])},
        "dynamic_shape_churn": {(name, lines["churns"] - 1)},
    }
    timed = {(rule, one["where"]["line"]): one["basis"] for rule, ones in found.items() for one in ones}
    assert [timed["graph_break", lines["breaks"]], timed["eager_fallback", lines["falls back"]]] == ["measured"] * 2
    assert timed["eager_fallback", first] == "structural"  # it is eager since a step that was not recorded
    (again,) = found["recompilation"]
    assert "the number rate changes" in again["title"]
    (churn,) = found["dynamic_shape_churn"]
    assert "9 sizes of x.size()[0]" in churn["title"]


DEFECTS = {
    "print": {
        "graph_break": ("compile_defects.py", 'print("loudest"'),
        "eager_fallback": ("compile_defects.py", 'print("loudest"'),
    },
    "branch": {"graph_break": ("compile_defects.py", "if x_BLD.abs().amax() > LIMIT")},
    "unsupported": {
        "graph_break": ("compile_defects.py", "x_BLD[x_BLD.mean(-1) > 0]"),
        "eager_fallback": ("compile_defects.py", "x_BLD[x_BLD.mean(-1) > 0]"),
    },
    "float-arg": {
        "recompilation": ("compile_defects.py", "F.dropout(x_BLD, p=rate)"),
        "eager_fallback": ("training.py", "def forward(self, tokens_BL"),
    },
    "shapes": {
        "dynamic_shape_churn": ("training.py", "def forward(self, tokens_BL"),
        "eager_fallback": ("training.py", "def forward(self, tokens_BL"),
    },
}


WORKLOAD = """
import os
import torch

if os.environ["BACKEND"] != "inductor":
    import functools
    torch.compile = functools.partial(torch.compile, backend=os.environ["BACKEND"])
from perfscope.workloads.attention import SIZES, VARIANTS, main
from perfscope.workloads.options import parse
main(parse("", VARIANTS, SIZES))
"""

BACKEND = os.environ.get("PERFSCOPE_TEST_BACKEND", "aot_eager")
"""``inductor`` is what users have, and takes minutes of g++; dynamo does the same in front of either."""

RECOMPILING = ("float-arg", "shapes")
"""Compile in every step: a recording with Python stacks then holds all of dynamo's own calls."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Inductor's cache: defects and twins share graphs."""
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize("how", ["defect", "twin"])
def test_workloads(name: str, how: str, cache: str, tmp_path: Path) -> None:
    level = "light" if name in RECOMPILING else "default"
    program = (write(tmp_path, WORKLOAD), "--size", "tiny", "--variant", "sdpa", f"--compile-{how}", name)
    env = {"BACKEND": BACKEND, "TORCHINDUCTOR_CACHE_DIR": cache}
    found = places(judged(tmp_path, "--level", level, *program, **env))
    expected = {rule: {(file, line_of(WORKLOADS / file, text))} for rule, (file, text) in DEFECTS[name].items()}
    assert found == (expected if how == "defect" else {})
