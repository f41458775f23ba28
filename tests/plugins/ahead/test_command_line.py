"""The verbs of programs compiled for absent machines on the command line: completion, and the form of ``compare``."""

from __future__ import annotations

import pytest

from perfscope.__main__ import run
from tests.commands.test_cli import completed


def test_a_shell_completes() -> None:
    assert completed("perfscope compile --target h100n") == ["h100nvl"]
    assert completed("perfscope compare pro") == ["programs"]


@pytest.mark.parametrize("arguments", [["compare", "--programs", "--help"], ["compare", "programs", "--help"]])
def test_compare_has_the_form(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "Usage: perfscope compare programs " in capsys.readouterr().out
