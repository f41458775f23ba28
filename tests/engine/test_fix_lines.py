"""The line that a fix changes, read from the source of the program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.analyzers.fix_lines import fix_line
from perfscope.analyzers.source_code import with_code
from perfscope.dashboards.report.blocks import FindingBlock
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.model.finding import Finding, Outcome, Where

TRAINING = """\
import jax, torch

model = make()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
seen, total = [], 0.0

@jax.jit
def step(state, x):
    return state + x

@functools.partial(jax.checkpoint, policy=None)
def block(w, x):
    def inner(x):
        return x @ w
    return inner(x)

def evaluate(x):
    return (model(x) - x).abs().mean()

fast = torch.compile(evaluate)
for x in data:
    loss = model(x).mean()
    optimizer.step()
    out = step(state, x)
    seen.append(out)
    total += evaluate(x)
    other = model(x)
    print(other)
    kept = torch.cat([kept, x])
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TRAINING.splitlines(), 1) if text in line)


def finding(text: str, op: str | None = None, file: str = "train.py") -> Finding:
    return Finding(
        subject="s", title="t", severity="high", basis="measured", advice="Do it.",
        where=Where(file=file, line=line_of(text), op=op),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "at", "op", "fix"),
    [
        ("unfused_optimizer", "optimizer.step()", "AdamW.step", "torch.optim.AdamW("),
        ("donation_missed", "return state + x", None, "@jax.jit"),
        ("dynamic_shape_churn", "(model(x) - x).abs()", None, "torch.compile(evaluate)"),
        ("memory_leak", "out = step(state, x)", None, "seen.append(out)"),
        ("memory_leak", "(model(x) - x).abs()", None, "total += evaluate(x)"),
    ],
)
def test_the_call_that_the_fix_changes(rule: str, at: str, op: str | None, fix: str) -> None:
    assert fix_line(rule, finding(at, op), lambda file: TRAINING) == line_of(fix)


@pytest.mark.parametrize(
    ("rule", "at", "op"),
    [
        ("unfused_optimizer", "optimizer.step()", "Adam.step"),
        ("memory_leak", "total += evaluate(x)", None),
        ("memory_leak", "kept = torch.cat", None),
        ("memory_leak", "other = model(x)", None),
        ("host_sync", "out = step(state, x)", None),
    ],
    ids=["no such class", "the line keeps by itself", "it joins by itself", "nothing keeps it", "another rule"],
)
def test_no_other_line(rule: str, at: str, op: str | None) -> None:
    assert fix_line(rule, finding(at, op), lambda file: TRAINING) is None


def test_of_two_constructors_none_is_chosen() -> None:
    twice = TRAINING + "second = torch.optim.AdamW(model.parameters())\n"
    assert fix_line("unfused_optimizer", finding("optimizer.step()", "AdamW.step"), lambda file: twice) is None


@pytest.mark.parametrize("text", ["", "def broken(:\n", "\0", "(" * 100_000])
def test_text_that_is_no_program_has_no_lines(text: str) -> None:
    assert fix_line("memory_leak", finding("out = step(state, x)"), lambda file: text) is None


def test_the_report_says_where_the_fix_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "trace.json").write_text("{}")
    os.utime(tmp_path / "train.py", (1, 1))
    found = finding("optimizer.step()", "AdamW.step", str(tmp_path / "train.py"))
    outcome = Outcome(rule="unfused_optimizer", status="flagged", findings=(found,))
    ((coded,),) = (outcome.findings for outcome in with_code([outcome], [str(tmp_path / "trace.json")]))
    assert coded.fix_line == line_of("torch.optim.AdamW(")
    assert finding_words(FindingBlock(rule="unfused_optimizer", finding=coded)).lead == "Fix at train.py:4"
    os.utime(tmp_path / "train.py", (2e9, 2e9))
    ((changed,),) = (outcome.findings for outcome in with_code([outcome], [str(tmp_path / "trace.json")]))
    assert changed.fix_line is None


def test_a_program_of_another_folder_is_read_for_the_line_and_not_shown(tmp_path: Path) -> None:
    run = tmp_path / "here" / "perfscope-runs" / "one"
    run.mkdir(parents=True)
    (tmp_path / "train.py").write_text(TRAINING)
    os.utime(tmp_path / "train.py", (1, 1))
    (run / "run.json").write_text('{"script": "../train.py"}')
    outcome = Outcome(
        rule="unfused_optimizer", status="flagged", findings=(finding("optimizer.step()", "AdamW.step"),)
    )  # fmt: skip
    ((coded,),) = (outcome.findings for outcome in with_code([outcome], [str(run)]))
    assert (coded.fix_line, coded.excerpt) == (line_of("torch.optim.AdamW("), None)
    (run / "run.json").write_text("{}")
    ((unknown,),) = (outcome.findings for outcome in with_code([outcome], [str(run)]))
    assert unknown.fix_line is None
