"""`perfscope try` on the command line: usage, and the list of interventions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfscope.__main__ import main
from perfscope.commands.options import parse_time
from perfscope.model.documents.ab import Launch
from perfscope.model.errors import UsageError
from perfscope.profiler.ab.launch import Changes
from tests.plugins.trials.test_runner import Program


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to run"),
        (["--only", "compile", "--all", "train.py"], "--only and --all"),
        (["--only", "compiled", "train.py"], "compiled: no such intervention"),
        (["--only", " , ", "train.py"], "--only: give names"),
        (["--no-profile", "train.py"], "--no-profile"),
        (["--budget", "soon", "train.py"], "--budget soon"),
        (["--json", "-", "--markdown", "-", "train.py"], "two reports"),
    ],
)
def test_usage_errors_come_before_any_launch(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    with pytest.raises(SystemExit) as ended:
        main(["try", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_was_measured_before_an_interruption_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    program = Program(monkeypatch, fused_optimizer=0.5)
    whole = program.launch

    def launch(*given: object, changes: Changes, **settings: object) -> Launch:
        if "gc-freeze" in changes.settings["interventions"]:
            raise KeyboardInterrupt
        return whole(*given, changes=changes, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr("perfscope.plugins.trials.launches.launch_once", launch)
    with pytest.raises(SystemExit) as ended:
        main(["try", "--only", "fused-optimizer,gc-freeze", "--no-profile", "--pairs", "6", "train.py"])
    assert ended.value.code == 130
    printed = capsys.readouterr().out
    assert re.search(r"fused-optimizer: step time -(50|49\.9)", printed)  # the order of the launches is drawn
    assert "gc-freeze" not in printed


def test_an_interrupted_try_prints_its_pairs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    program = Program(monkeypatch, fused_optimizer=0.5)
    plain = program.launch

    def launch(*given: object, changes: Changes, **settings: object) -> Launch:
        if program.count == 5:
            raise KeyboardInterrupt
        return plain(*given, changes=changes, **settings)

    monkeypatch.setattr("perfscope.plugins.trials.launches.launch_once", launch)
    with pytest.raises(SystemExit) as ended:
        main(["try", "--only", "fused-optimizer", "--no-profile", "--pairs", "6", "train.py"])
    assert ended.value.code == 130
    shown = capsys.readouterr()
    assert "fused-optimizer: step time -50.0% after 1 pair (no interval before 4 pairs)" in shown.err
    assert "open after 1 pair: an answer needs 4 or more" in shown.out
    (folder,) = tmp_path.glob("perfscope-runs/try-*")
    assert f"interrupted: --resume {folder.relative_to(tmp_path)} goes on from here" in " ".join(shown.out.split())
    monkeypatch.setattr("perfscope.plugins.trials.launches.launch_once", plain)
    with pytest.raises(SystemExit) as ended:
        main(["try", "--resume", str(folder), "train.py"])
    assert ended.value.code == 0
    assert re.search(r"fused-optimizer: step time -(50|49\.9)", capsys.readouterr().out)
    assert program.launches.count(("fused-optimizer",)) in (5, 6), (
        "values and four pairs, and the pair without its second launch again"
    )


def test_only_a_folder_of_a_try_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["try", "--resume", str(tmp_path), "train.py"])
    assert ended.value.code == 4
    assert "settings.json: no options of a try" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("20m", 1200), ("1.5h", 5400), ("3", 180)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_time("--budget", text, unit="m") == seconds


@pytest.mark.parametrize("text", ["", "0m", "-3m", "5 days"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time("--budget", text, unit="m")


def test_the_list_names_every_intervention(capsys: pytest.CaptureFixture[str]) -> None:
    from perfscope.plugins.trials.interventions import INTERVENTIONS

    with pytest.raises(SystemExit) as ended:
        main(["try", "--list"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert [name for name in INTERVENTIONS if name not in printed] == []
