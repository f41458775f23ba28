"""An A/B on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.model.documents import ab
from perfscope.model.documents.ab import LAUNCHES_FILE, PLAN_FILE, AbState, Launch, begin
from perfscope.model.errors import DataError, UsageError
from tests.profiler.test_ab import plan

LAUNCH = Launch(
    arm="head", phase="measure", pair=3, slot=1, seconds=2.5, code=0, step_source="perfscope.step", steps_seen=9,
    step_ns=(10, 11), windows_ns=(80, 88), window_steps=8, exact={"steps": 9}, strays=("a",), problem="none",
)  # fmt: skip


def resume(folder: Path) -> AbState:
    return ab.resume(folder, command=("train.py",), kind="script")


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    state = begin(tmp_path, plan(links=("data",), timeout_s=60.0))
    state.add(LAUNCH)
    held = resume(tmp_path)
    assert held.plan == state.plan
    assert held.launches == [LAUNCH]
    assert LAUNCH.times_ns() == (10, 11), "per step"


def test_times_are_the_windows_where_there_are_some() -> None:
    alone = Launch(arm="base", phase="warm", pair=0, slot=0, seconds=1, code=0, step_ns=(5, 6))
    assert alone.times_ns() == (5, 6)


def test_a_line_that_was_not_finished_is_dropped(tmp_path: Path) -> None:
    begin(tmp_path, plan()).add(LAUNCH)
    with (tmp_path / LAUNCHES_FILE).open("ab") as stream:
        stream.write(b'{"arm": "base", "pha')
    state = resume(tmp_path)
    assert state.launches == [LAUNCH]
    state.add(LAUNCH)
    assert resume(tmp_path).launches == [LAUNCH, LAUNCH]


@pytest.mark.parametrize("line", ["[]", "{}", '{"arm": "tail"}', "nonsense", "[" * 100_000])
def test_a_damaged_line_is_one_clear_error(tmp_path: Path, line: str) -> None:
    begin(tmp_path, plan())
    (tmp_path / LAUNCHES_FILE).write_text(line + "\n")
    with pytest.raises(DataError, match=r"launches.jsonl: line 1 is no launch"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "not valid JSON"), ("[]", "not the plan"), ('{"schema": "perfscope.ab/9"}', "not the plan"),
     ('{"schema": "perfscope.ab/1", "seed": "x"}', "ab.json: ")],
)  # fmt: skip
def test_a_damaged_plan_is_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / PLAN_FILE).write_text(text)
    with pytest.raises(DataError, match=said):
        resume(tmp_path)


def test_a_folder_without_a_plan_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ab.json: no such file"):
        resume(tmp_path)


def test_another_program_is_not_gone_on_with(tmp_path: Path) -> None:
    begin(tmp_path, plan())
    with pytest.raises(UsageError, match=r"began with another program: train.py"):
        ab.resume(tmp_path, command=("other.py",), kind="script")


def test_secrets_of_the_command_stay_off_the_disk_and_are_there_again(tmp_path: Path) -> None:
    command = ("train.py", "--hf-token", "hush")
    begin(tmp_path, plan(command=command))
    assert "hush" not in (tmp_path / PLAN_FILE).read_text()
    assert ab.resume(tmp_path, command=command, kind="script").plan == plan(command=command)


def test_nothing_of_the_environment_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tell-nobody")
    begin(tmp_path, plan()).add(LAUNCH)
    assert "tell-nobody" not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert set(json.loads((tmp_path / PLAN_FILE).read_text())) >= {"schema", "seed", "base", "head"}
