"""``perfscope explain RULE RUN``: the findings of a rule in a real recording."""

from __future__ import annotations

import pytest

from perfscope.__main__ import run
from tests.conftest import REPOSITORY

RUN = str(REPOSITORY / "fixtures" / "advice" / "ddp_accumulate")


def test_findings_of_a_rule_have_their_lines_and_how_to_verify(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "host-bound", RUN]) == 0
    shown = capsys.readouterr().out
    assert "ddp_accumulate.py:21" in shown
    assert "host_was_in" in shown or "site" in shown, "the evidence"
    assert "perfscope compare BEFORE AFTER" in shown


def test_a_rule_without_findings_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "host_bound", RUN.replace("ddp_accumulate", "anomaly_left_on")]) == 0
    assert capsys.readouterr().out.startswith("host_bound is not evaluated in ")


def test_two_runs_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "host_bound", RUN, RUN]) == 2
    assert "give one run" in capsys.readouterr().err
