"""``perfscope rules``: the list, and a rule's page from its docstring."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import perfscope
from perfscope.__main__ import run
from perfscope.analyzers import registry
from perfscope.commands.explain import paragraphs
from perfscope.commands.symptoms import SYMPTOMS
from perfscope.model.errors import see

DOC = """The host waits for the device.

Why it costs:
    While it waits it launches nothing; `x[i]` and [bold]this[/] stay as they are.

Fix:
    Do not wait.
"""


@pytest.fixture(autouse=True)
def two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, doc, needs in (("fake_wait", DOC, ("device_work", "steps")), ("fake_free", "Nothing is needed.", ())):
        module = ModuleType(name, doc)
        module.NEEDS, module.check = needs, list  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(registry, "named", lambda _: {})
    monkeypatch.setattr(registry, "RULES", {"host_wait": "fake_wait", "no_needs": "fake_free"})
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rule", "finds", "needs"]
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["rule", "host_wait", "no_needs"]
    assert "The host waits for the device." in lines[1]
    assert "kernels and copies" in lines[1]


@pytest.mark.parametrize("command", ["rules", "explain"])
@pytest.mark.parametrize("name", ["host_wait", "host-wait"])
def test_page(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, name]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "host_wait",
        "The host waits for the device.",
        "",
        "Why it costs: While it waits it launches nothing; `x[i]` and [bold]this[/] stay as they are.",
        "",
        "Fix: Do not wait.",
        "",
        "Needs: kernels and copies of an accelerator; step boundaries",
        "Silence: `# perfscope: ignore[host_wait] reason` at the end of the line that a finding names",
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert [rule["id"] for rule in held] == ["host_wait", "no_needs"]
    assert held[0]["summary"] == "The host waits for the device."
    assert held[0]["needs"] == ["device_work", "steps"]


def test_the_real_rules_have_a_page_each(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.undo()
    for name in registry.rule_ids():
        assert run(["rules", name]) == 0
        page = capsys.readouterr().out
        places = [page.find(heading) for heading in ("\nWhy it costs: ", "\nFix: ", "\nHow it is found: ", "\nNeeds: ")]
        assert -1 not in places, f"{name}: a section is missing"
        assert places == sorted(places)


@pytest.mark.parametrize("name", ["hostwait", "host_wiat", "wait"])
def test_a_rule_that_is_misspelled(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == 2
    assert capsys.readouterr() == ("", f"perfscope: {name}: unknown rule; did you mean host_wait?\n")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("my GPU is idle", "My GPU is idle or its utilization is low"),
        ("why did it recompile?", "torch.compile recompiles again and again"),
        ("OOM", "CUDA out of memory (OOM)"),
        ("FSDP is slow", "Distributed training does not scale (DDP, FSDP are slow)"),
        ("JAX's first step is slow", "JAX's first step is slow, or startup takes minutes"),
        ("TPU input-bound", "A TPU is input-bound"),
        ("no steps found", "No steps were found"),
        ("what does saving mean", "What does 'saves up to' mean?"),
        ("does it send anything anywhere", "Does perfscope send anything anywhere?"),
        ("loss becomes NaN", "The loss is NaN"),
        ("it hangs in nccl", "The job hangs in NCCL"),
        ("memory grows", "Memory grows until the program dies"),
    ],
)
def test_a_question_in_the_users_words(words: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *words.split()]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == first
    assert "\nRun: perfscope " in shown


def questions_in_messages() -> set[str]:
    """Questions that messages of perfscope end with."""
    sources = (file.read_text(encoding="utf-8") for file in Path(perfscope.__file__).parent.rglob("*.py"))
    calls = (
        node
        for source in sources
        if "see(" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "see"
    )
    return {node.args[0].value if isinstance(node.args[0], ast.Constant) else "nothing was captured" for node in calls}


def test_a_message_ends_with_a_question_that_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    asked = questions_in_messages()
    assert {"no steps found", "nothing was captured", "out of memory", "recording too large"} <= asked
    for words in sorted(asked):
        assert run(["explain", words]) == 0
        first = capsys.readouterr().out.partition("\n")[0].lower()
        assert all(word in first for word in words.lower().split() if word != "was"), words
    assert see("no steps found") == ' (`perfscope explain "no steps found"`)'


def test_a_question_about_perfscope_has_an_answer_and_no_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "can", "I", "add", "up", "savings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Can I add up the savings of several findings?"
    assert lines[1].startswith("Answer: No. Each is an upper bound by itself")


def test_a_question_that_no_page_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "weather", "tomorrow"]) == 2
    assert "`perfscope explain` list them" in capsys.readouterr().err
    assert run(["explain"]) == 0
    assert capsys.readouterr().out.count("\n- ") == len(SYMPTOMS) - 1


def test_paragraphs_are_filled_and_code_and_lists_keep_their_lines() -> None:
    doc = "One\ntwo.\n\nFix: do\nthis:\n    x = 1\n    y = 2\n- a\n- b\nend"
    assert list(paragraphs(doc)) == [
        "One two.", "", "Fix: do this:", "    x = 1", "    y = 2", "- a", "- b", "end", "",
    ]  # fmt: skip
