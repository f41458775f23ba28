"""``perfscope run``: where our options end and the program's begin, what it returns, and its report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from perfscope.commands.run import TARGET, run
from perfscope.model.documents import run_folders
from tests.profiler.programs import LOOP, captured, environment, plain, write


def split(*words: str) -> tuple[dict[str, object], tuple[str, ...], str]:
    """(our options that were given, the program's words, what kind of target)."""
    context = run.make_context("run", list(words))
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    target, kind = context.meta[TARGET]
    return given, target, kind


@pytest.mark.parametrize(
    ("words", "given", "target", "kind"),
    [
        (["train.py"], {}, ("train.py",), "script"),
        (["train.py", "--level", "x", "-q"], {}, ("train.py", "--level", "x", "-q"), "script"),
        (
            ["-q", "--level", "deep", "train.py", "-o", "y"],
            {"quiet": True, "level": "deep"},
            ("train.py", "-o", "y"),
            "script",
        ),
        (["--level=deep", "train.py", "--help"], {"level": "deep"}, ("train.py", "--help"), "script"),
        (["-m", "pkg.train", "-q", "--", "a"], {}, ("pkg.train", "-q", "--", "a"), "module"),
        (["-mpkg", "-q"], {}, ("pkg", "-q"), "module"),
        (["-q", "--", "torchrun", "-q", "train.py"], {"quiet": True}, ("torchrun", "-q", "train.py"), "command"),
        (["-oruns", "-"], {"output": Path("runs")}, ("-",), "script"),
        (["--name", "-m", "train.py"], {"name": "-m"}, ("train.py",), "script"),
    ],
)
def test_options_before_the_program_are_ours_and_all_behind_is_the_programs(
    words: list[str], given: dict[str, object], target: tuple[str, ...], kind: str
) -> None:
    assert split(*words) == (given, target, kind)


def test_an_unknown_option_of_ours_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--levle"):
        split("--levle", "deep", "train.py")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "nothing to run"),
        (["--steps", "5", "x.py"], 2, "give A:B"),
        (["--steps", "0:2", "x.py"], 2, "first step that can be captured is 1"),
        (["--steps", "5:5", "x.py"], 2, "captures no step"),
        (["--whole", "--steps", "1:2", "x.py"], 2, "--whole"),
        (["absent.py"], 125, "absent.py: no such file"),
        (["--", "no-such-command-here"], 125, "no-such-command-here: no such command"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_leaves_no_run(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    done = captured(*words, cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("perfscope: ")
    assert said in line
    assert not (tmp_path / "perfscope-runs").exists()


def test_a_run_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, "print('ran')")
    (tmp_path / "taken").write_text("a file")
    done = captured("-o", "taken/runs", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert "taken/runs" in done.stderr


def test_two_runs_never_share_a_directory_and_latest_is_the_second(tmp_path: Path) -> None:
    write(tmp_path, "print('ran')")
    for _ in range(2):
        assert captured("--name", "twice", "train.py", cwd=tmp_path).returncode == 0
    first, second = sorted(path for path in (tmp_path / "perfscope-runs").iterdir() if not path.is_symlink())
    ids = {first.name, second.name}
    assert all("-twice-" in name for name in ids)
    assert run_folders.find("latest", tmp_path / "perfscope-runs").name in ids
    assert run_folders.load_run(first / "run.json").id == first.name


@pytest.mark.torch
def test_the_whole_verb_reports_and_leaves_stdout_to_the_program(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(12)\nprint('mine')\n")
    done = plain("-m", "perfscope", "run", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    run = (tmp_path / "perfscope-runs" / "latest").resolve()
    assert (run / "report.html").read_text().lstrip().startswith("<!")
    report = json.loads((run / "report.json").read_text())
    assert report["schema"] == "perfscope.report/1"
    assert {one["rule"] for one in report["outcomes"]} >= {"unfused_ops", "launch_bound"}
    assert "report.html" in done.stderr
    assert "look    perfscope serve latest" in done.stderr
    quiet = subprocess.run(
        [sys.executable, "-m", "perfscope", "run", "-q", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (quiet.stdout, quiet.stderr) == ("mine\n", "")
    assert (tmp_path / "perfscope-runs" / "latest").resolve() != run
