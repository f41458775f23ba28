"""``perfscope compare --ab`` on its command line, with real commits and processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from perfscope.model.documents.ab import LAUNCHES_FILE
from tests.profiler.ab_programs import git, repository, sleeps
from tests.profiler.programs import plain

QUICK = ("--calibration", "0", "--pairs", "6", "--no-confirm", "--profile", "0")


def asked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return plain("-m", "perfscope", "compare", "--ab", *arguments, cwd=folder)


def test_a_regression_fails_the_build_that_asked_for_it(tmp_path: Path) -> None:
    repository(tmp_path, sleeps(0.004), sleeps(0.016))
    done = asked(tmp_path, "--base", "HEAD~1", *QUICK, "--seed", "5", "--fail-on", "regression", "--", "train.py", "25")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("perfscope: regression: step time +")
    assert "order by seed 5" in done.stdout
    assert "no launch was profiled (--profile 0)" in done.stdout
    assert "perfscope: gate not met: step time: regression" in done.stderr
    assert "perfscope: pair 6 of 6" in done.stderr
    (folder,) = (tmp_path / "perfscope-runs").iterdir()
    held = json.loads((folder / "result.json").read_text())
    assert (held["schema"], held["headline"]) == ("perfscope.compare/1", "regression")
    assert held["metrics"][0]["verdict"] == "regression"
    assert held["failed"] == ["step time: regression"]
    assert held["method"]["base_commit"] == git(tmp_path, "rev-parse", "HEAD~1").strip()
    assert len(held["method"]["launches"]) == 12
    assert str(tmp_path) not in (folder / "result.json").read_text()
    assert git(tmp_path, "worktree", "list").count("\n") == 1

    # Complete as it is, it starts nothing when it is resumed, and says the same.
    launches = (folder / LAUNCHES_FILE).read_bytes()
    again = asked(tmp_path, "--resume", str(folder), "--json", "-", "-q", "--", "train.py", "25")
    assert again.returncode == 0, "no gate was asked for"
    assert json.loads(again.stdout) == {**held, "failed": [], "gates": []}
    assert (again.stderr, (folder / LAUNCHES_FILE).read_bytes()) == ("", launches)
    other = asked(tmp_path, "--resume", str(folder), "--", "other.py")
    assert other.returncode == 2
    assert "began with another program" in other.stderr


@pytest.mark.slow
def test_the_reverse_is_an_improvement_and_two_pairs_settle_nothing(tmp_path: Path) -> None:
    repository(tmp_path, sleeps(0.004), sleeps(0.016))
    done = asked(tmp_path, "--base", "HEAD", "--head", "HEAD~1", *QUICK, "--fail-on", "regression", "train.py", "25")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("perfscope: improvement: step time -")
    few = asked(
        tmp_path, "--base", "HEAD", "--pairs", "2", "--calibration", "0", "--least", "0.01", "--strict",
        "--profile", "0", "train.py",
    )  # fmt: skip
    assert few.returncode == 3, few.stdout
    assert "inconclusive" in few.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("train.py",), 2, "--base REF"),
        (("--base", "HEAD"), 2, "nothing to run"),
        (("--base", "nowhere", "train.py"), 2, "nowhere: no commit"),
        (("--base", "HEAD", "--pairs", "1", "train.py"), 2, "--pairs"),
        (("--base", "HEAD", "missing.py"), 4, "base (HEAD): exit code 2"),
        (("--base", "HEAD", "--link", "nothing", "train.py"), 2, "--link nothing: no such file"),
        (("--resume", "nothing", "train.py"), 4, "no such file"),
        (("--base", "HEAD", "--", "no-such-tool"), 125, "no-such-tool: no such command"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    repository(tmp_path)
    done = asked(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert git(tmp_path, "worktree", "list").count("\n") == 1


def test_outside_of_a_checkout(tmp_path: Path) -> None:
    done = asked(tmp_path, "--base", "HEAD", "train.py")
    assert done.returncode == 2
    assert "not in a git checkout" in done.stderr
