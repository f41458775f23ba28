"""`perfscope run --fingerprint` and `perfscope parity` on its runs: files, exit codes, errors of one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.commands.group import command_at
from perfscope.model.errors import UsageError
from perfscope.plugins.fingerprint.sources import has_fingerprints
from perfscope.plugins.parity.command import parity
from tests.plugins.fingerprint.conftest import Runs

pytest.importorskip("torch")


def asked(*words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(parity, list(words), standalone_mode=False)
    if answer.exception is not None:
        raise answer.exception
    return int(answer.return_value), answer.output


def test_exit_codes_and_files(runs: Runs, tmp_path: Path) -> None:
    a, b = str(runs.planted("base")), str(runs.planted("upgrade"))
    assert asked(a, a)[0] == 0
    code, text = asked(a, b)
    assert code == 0
    assert "`gelu`" in text
    assert asked(a, b, "--fail-on", "divergence", "--markdown", str(tmp_path / "comment.md"))[0] == 1
    assert (tmp_path / "comment.md").read_text().startswith("### A and B differ first in step 0")
    assert json.loads(asked(a, b, "--json", "-")[1])["verdict"] == "differs"


def test_errors_are_of_one_line(runs: Runs, tmp_path: Path) -> None:
    run_folder = runs.planted("base")
    broken = tmp_path / "broken"
    shutil.copytree(run_folder, broken)
    (recording,) = broken.rglob("fingerprint.jsonl.gz")
    recording.write_bytes(recording.read_bytes()[:30])
    done = runs.perfscope("parity", str(run_folder), str(broken))
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
    assert "cut off or corrupt before its first step" in done.stderr
    shutil.rmtree(broken)
    shutil.copytree(run_folder, broken)
    (recording,) = broken.rglob("fingerprint.jsonl.gz")
    recording.write_bytes(recording.read_bytes()[:-2000])
    code, text = asked(str(run_folder), str(broken), "--strict")
    assert code == 3
    assert "the recording ends within a step" in text
    assert has_fingerprints(run_folder)
    assert not has_fingerprints(tmp_path)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two runs with fingerprints"):
        asked("a.py:f", "b.py:f", "--tolerance", "rounding")
    run = command_at("perfscope.commands.run:run", "run")
    answer = CliRunner().invoke(run, ["--fingerprint", "--level", "light", "train.py"], standalone_mode=False)
    assert isinstance(answer.exception, UsageError)
    assert str(answer.exception) == "--fingerprint records no profile: it goes without --capture and --level light"
    answer = CliRunner().invoke(run, ["--numerics", "--steps", "1:2", "train.py"], standalone_mode=False)
    assert isinstance(answer.exception, UsageError)


@pytest.mark.slow
def test_steps_are_selected(runs: Runs) -> None:
    folder = runs.planted("base", "--steps", "0:1")
    done = runs.perfscope("parity", str(folder), str(runs.planted("base")), "--json", "-")
    document = json.loads(done.stdout)
    assert (document["a"]["sampled"], document["verdict"], document["counts"]["steps"]) == ([0], "same", 4)
