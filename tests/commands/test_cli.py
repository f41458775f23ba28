"""``main()``: one line on stderr, the right code, no traceback; and the verbs are found lazily."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from perfscope import __main__ as program
from perfscope.commands import COMMANDS, TASKS, group
from perfscope.model.errors import DataError, NotStartedError, UsageError
from perfscope.model.plugins import named
from tests.conftest import REPOSITORY

VERBS = sorted({*COMMANDS, *(name for name in named("commands") if " " not in name)})
"""Commands of the core and of plug-ins."""


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Add a command ``try`` with behaviour set by the test."""

    def add(body: Any) -> None:
        from perfscope.commands.options import verbose_option

        @click.command()
        @verbose_option
        def command(verbose: bool) -> Any:
            return body()

        monkeypatch.setitem(COMMANDS, "try", "tests.commands.test_cli:added")
        monkeypatch.setattr(sys.modules[__name__], "added", command, raising=False)

    return add


def raising(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("t.json: cut off at byte 7"), 4, "perfscope: t.json: cut off at byte 7\n"),
        (UsageError("no: such rule"), 2, "perfscope: no: such rule\n"),
        (NotStartedError("x: not found"), 125, "perfscope: x: not found\n"),
        (MemoryError(), 4, 'perfscope: not enough memory for this input (`perfscope explain "recording too large"`)\n'),
        (KeyboardInterrupt(), 130, ""),
        (DataError("a\x1b[31m\nb"), 4, "perfscope: a b\n"),
        (DataError("d/" * 400 + "t.json: empty"), 4, "perfscope: " + "d/" * 400 + "t.json: empty\n"),
        (KeyError("x"), 70, "perfscope: internal error: KeyError: 'x' (-v shows where; please report it)\n"),
    ],
)
def test_an_error_is_one_line(
    verb: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    verb(raising(error))
    assert program.run(["try"]) == code
    out, err = capsys.readouterr()
    assert (out, err.lstrip("\n")) == ("", line)


def test_verbose_shows_the_traceback(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(DataError("t.json: empty")))
    assert program.run(["try", "-v"]) == 4
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "in body" in err
    assert err.endswith("perfscope: t.json: empty\n")


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (125, 125), ("text", 0)])
def test_a_command_returns_its_code(verb: Any, returned: object, code: int) -> None:
    verb(lambda: returned)
    with pytest.raises(SystemExit) as caught:
        program.main(["try"])
    assert caught.value.code == code


@pytest.mark.parametrize("arguments", [["nonsense"], ["analyze"], ["analyze", "--format", "pdf", "x"], ["--nonsense"]])
def test_asked_wrongly(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: perfscope" in err
    assert "Traceback" not in err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["--help"]) == 0
    text = capsys.readouterr().out
    words = " ".join(text.split())
    for name in VERBS:
        assert f"\n  {name} " in text
        command = group.cli.get_command(click.Context(group.cli), name)
        assert command is not None
        sentence = (command.help or "").strip().partition("\n")[0]
        assert sentence.endswith(".")
        assert sentence in words
    assert "cannot be loaded" not in text
    assert program.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("perfscope ")


def test_without_a_command_a_short_help_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run([]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    assert all(f"  {command} " in text for command, _ in group.FIRST_CONTACT)
    for command, _ in group.FIRST_CONTACT:
        assert command.split()[1] in COMMANDS


def test_each_verb_has_one_task() -> None:
    assert sorted(name for names in TASKS.values() for name in names) == sorted(COMMANDS)
    assert {*named("tasks"), *COMMANDS} == set(VERBS)
    assert set(named("tasks").values()) <= set(TASKS)


@pytest.mark.parametrize("arguments", [["compare"], ["help", "compare"]])
def test_a_group_alone_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(arguments) == 0
    assert f"Usage: perfscope {arguments[-1]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["anaylze"], "analyze"),
        (["rnu"], "run"),
        (["compare", "commts", "--base", "x"], "commits"),
        (["run", "--lvel"], "--level"),
    ],
)
def test_a_typo_gets_a_suggestion(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(arguments) == 2
    assert meant in capsys.readouterr().err.lower().partition("did you mean")[2]


def test_a_run_that_is_misspelled_gets_a_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "perfscope-runs" / "20261122-192123-train_gpt-a4de"
    kept.mkdir(parents=True)
    (kept / "run.json").write_text("{}")
    (tmp_path / "trace.json.gz").touch()
    monkeypatch.chdir(tmp_path)
    for path, meant in (("train_gpt", kept.name), ("latset", "latest"), ("trace.jsn.gz", "trace.json.gz")):
        for command in ("analyze", "serve"):
            assert program.run([command, path]) == 4
            assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run([name, "--help"]) == 0
    assert f"Usage: perfscope {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", VERBS)
def test_options_may_follow_the_arguments_of_each_command(name: str) -> None:
    verb = group.cli.get_command(click.Context(group.cli), name)
    assert verb is not None
    context = click.Context(verb)
    forms = [verb, *(verb.get_command(context, form) for form in verb.list_commands(context))] if isinstance(
        verb, click.Group
    ) else [verb]  # fmt: skip
    taking = [form for form in forms if form is not None and any(isinstance(p, click.Argument) for p in form.params)]
    assert all(form.allow_interspersed_args for form in taking)


def test_the_list_of_verbs_is_sorted_and_complete() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)
    listed = {home.partition(":")[0].rpartition(".")[2] for home in COMMANDS.values()}
    decorated = {
        file.parent.name if file.stem == "__init__" else file.stem
        for pattern in ("*.py", "*/__init__.py")
        for file in (REPOSITORY / "perfscope" / "commands").glob(pattern)
        if re.search(r"^@\w+\.command\(", file.read_text(), re.MULTILINE)
    } | {"compare"}
    assert decorated == listed


@pytest.mark.parametrize("home", ["perfscope.commands.absent:absent", "perfscope.commands.rules:absent"])
def test_a_verb_that_cannot_be_loaded_fails_only_when_called(
    home: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "broken", home)
    assert program.run(["--help"]) == 0
    assert "(cannot be loaded)" in capsys.readouterr().out
    assert program.run(["rules", "--help"]) == 0
    capsys.readouterr()
    assert program.run(["broken", "--any", "thing"]) == 4
    assert capsys.readouterr().err.startswith("perfscope: broken: this command cannot be loaded: ")


def test_what_is_no_command_is_a_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "odd", "perfscope.commands.options:width_of")
    with pytest.raises(TypeError, match="is not a click command"):
        group.cli.get_command(click.Context(group.cli), "odd")


def shell(command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable}, **more,
    )  # fmt: skip


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    program_text = (
        "import sys; sys.path.insert(0, '.')\n"
        "import click\nfrom perfscope import __main__ as p\nfrom perfscope.commands import COMMANDS\n"
        "@click.command()\ndef talk():\n    for _ in range(100000): click.echo('x' * 100)\n"
        "COMMANDS['talk'] = '__main__:talk'\np.main(['talk'])\n"
    )
    (tmp_path / "talk.py").write_text(program_text)
    done = shell(f"$PYTHON {tmp_path / 'talk.py'} | head -1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr == ""


def test_interrupt_is_quiet(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program_text = (
        "import sys, time; sys.path.insert(0, '.')\n"
        "import click, pathlib\nfrom perfscope import __main__ as p\nfrom perfscope.commands import COMMANDS\n"
        f"@click.command()\ndef wait():\n    pathlib.Path({str(started)!r}).touch(); time.sleep(60)\n"
        "COMMANDS['wait'] = '__main__:wait'\np.main(['wait'])\n"
    )
    (tmp_path / "wait.py").write_text(program_text)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "wait.py")], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not started.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == ""


def test_the_module_can_be_run(tmp_path: Path) -> None:
    done = shell(f"$PYTHON -m perfscope analyze {tmp_path}")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr == f"perfscope: {tmp_path}: an empty folder\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("perfscope explain host", ["host_bound", "host_callback", "host_sync"]),
        ("perfscope analyze --rule host-s", ["host_sync"]),
        ("perfscope analyze 2026", ["20260101-000000-train-aaaa"]),
        ("perfscope compare latest go", ["good"]),
        ("perfscope compare lat", ["latest"]),
        ("perfscope compare com", ["commits"]),
        ("perfscope serve lat", ["latest"]),
        ("perfscope runs --delete go", ["good"]),
    ],
)
def test_a_shell_completes(words: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "perfscope-runs" / "20260101-000000-train-aaaa"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / ".tags").write_text("good")
    monkeypatch.chdir(tmp_path)
    assert completed(words) == expected


def completed(words: str) -> list[str]:
    """What a shell offers after these words."""
    _, *args, incomplete = words.split()
    completion = ShellComplete(group.cli, {}, "perfscope", "_PERFSCOPE_COMPLETE")
    return [item.value for item in completion.get_completions(args, incomplete) if item.type == "plain"]


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["compare", "--ab", "--help"], "compare commits"),
        (["compare", "--base", "main", "--ab", "--help"], "compare commits"),
        (["compare", "commits", "--help"], "compare commits"),
        (["compare", "base", "head", "--help"], "compare runs"),
        (["compare", "-q", "--help"], "compare runs"),
        (["compare", "--help"], "compare"),
        (["compare"], "compare"),
    ],
)
def test_the_forms_of_compare(arguments: list[str], usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(arguments) == 0
    assert capsys.readouterr().out.split("Usage: perfscope ", 1)[1].startswith(f"{usage} ")


def test_a_flag_of_the_program_is_not_one_of_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["compare", "base", "--", "--ab"]) != 0
    assert "commits" not in capsys.readouterr().err
