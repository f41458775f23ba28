"""Parts of its declaration in the core: verbs, forms of `compare`, checks of `doctor`, public names."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

import perfscope
from perfscope.commands import group
from perfscope.dashboards import figures
from perfscope.model.plugins import load
from perfscope.plugins.ahead import PLUGIN


@pytest.mark.parametrize(
    ("words", "expected"),
    [("perfscope compile --target h100n", ["h100nvl"]), ("perfscope compare pro", ["programs"])],
)
def test_a_shell_completes(words: str, expected: list[str]) -> None:
    _, *args, incomplete = words.split()
    completion = ShellComplete(group.cli, {}, "perfscope", "_PERFSCOPE_COMPLETE")
    assert [item.value for item in completion.get_completions(args, incomplete) if item.type == "plain"] == expected


@pytest.mark.parametrize("words", [["compare", "programs"], ["compare", "--programs"]])
def test_a_form_of_compare(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert group.cli.main([*words, "--help"], prog_name="perfscope", standalone_mode=False) == 0
    assert "Usage: perfscope compare programs " in capsys.readouterr().out


def test_public_names() -> None:
    for name, home in PLUGIN.names.items():
        holder = figures if name.startswith("figures.") else perfscope
        assert getattr(holder, name.rpartition(".")[2]) is load(home)


def test_doctor_has_a_check_of_each_kind_of_target() -> None:
    (checks,) = PLUGIN.checks.values()
    assert [check.name for check in load(checks.find)()] == [
        "JAX for NVIDIA GPUs",
        "JAX for AMD GPUs",
        "JAX for TPUs",
        "PyTorch for GPUs (planned)",
    ]
