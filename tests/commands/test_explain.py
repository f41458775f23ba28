"""``perfscope explain RULE RUN``: the findings of a rule in a real recording."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perfscope.__main__ import run
from tests.conftest import REPOSITORY

RUN = str(REPOSITORY / "fixtures" / "advice" / "ddp_accumulate")


def test_findings_of_a_rule_have_their_lines_and_how_to_verify(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "host-bound", RUN]) == 0
    shown = capsys.readouterr().out
    assert "ddp_accumulate.py:21" in shown
    assert "host_was_in" in shown or "site" in shown, "the evidence"
    assert f"perfscope compare {RUN} latest" in " ".join(shown.split())


def test_a_rule_without_findings_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "host_bound", RUN.replace("ddp_accumulate", "anomaly_left_on")]) == 0
    assert capsys.readouterr().out.startswith("host_bound is not evaluated in ")


def test_two_runs_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "host_bound", RUN, RUN]) == 2
    assert "give one run" in capsys.readouterr().err


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose program, with a finding at line 21, is next to its folder of runs."""
    copy = tmp_path / "perfscope-runs" / "before"
    shutil.copytree(REPOSITORY / "fixtures" / "advice" / "numpy_doubles", copy)
    lines = [f"x = {number}" for number in range(1, 30)]
    lines[10] = "model = net.double()"
    program = tmp_path / "numpy_doubles.py"
    program.write_text("\n".join(lines))
    os.utime(program, (0, 0))
    monkeypatch.chdir(tmp_path)
    return program


def test_the_line_of_the_run_is_before_and_the_example_of_the_rule_after(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "double_precision", "perfscope-runs/before"]) == 0
    *_, shown = capsys.readouterr().out.partition("Before, ")
    assert shown.splitlines()[:4] == [
        "in the recorded program:",
        "    model = net.double()    # numpy_doubles.py:11",
        "After, in the rule's example:",
        "    x = torch.from_numpy(array).float()",
    ]
    assert "`perfscope run numpy_doubles.py`, then `perfscope compare perfscope-runs/before latest`" in shown
    recorded.unlink()
    assert run(["explain", "double_precision", "perfscope-runs/before"]) == 0
    assert "Before, in the rule's example:\n    x = torch.from_numpy(array)  " in capsys.readouterr().out


def test_a_rule_whose_findings_are_silenced_says_so(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = recorded.read_text().replace(
        "net.double()", "net.double()  # perfscope: ignore[double_precision] needs 53 bits"
    )
    recorded.write_text(text)
    os.utime(recorded, (0, 0))
    assert run(["explain", "double_precision", "perfscope-runs/before"]) == 0
    assert capsys.readouterr().out == (
        "double_precision has 1 finding in perfscope-runs/before, silenced: numpy_doubles.py:11: needs 53 bits\n"
    )
