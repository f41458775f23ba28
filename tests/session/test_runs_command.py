"""``perfscope runs``: the list, as a table and as JSON, and pruning."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.__main__ import run as main
from perfscope.analyzers.readers import resolve
from perfscope.commands.runs import _lines, _table, runs
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Capture, Process, Run
from perfscope.model.documents.run_list import list_runs, row_of, worst_words


def put(
    root: Path,
    name: str,
    *,
    command: tuple[str, ...] = ("train.py",),
    exit_code: int = 0,
    window: tuple[int | None, int] = (None, 0),
    steps_ns: tuple[int, ...] = (3_000_000, 1_000_000, 2_000_000),
) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    captures = (
        Capture(pass_name="timing", tool="torch_profiler", state="recorded", artifact="rank00000/t.gz"),
        Capture(pass_name="structure", tool="op_graph", state="missing", reason="compiled"),
    )
    process = Process(
        rank=0,
        directory="rank00000",
        steps_seen=12,
        untraced_step_ns=steps_ns,
        captures=captures,
        window_ns=window[0],
        window_steps=window[1],
    )
    run_folders.write(
        directory,
        Run(
            id=name,
            name="train",
            created_utc="2026-01-01T00:00:00+00:00",
            command=command,
            state="finished",
            exit_code=exit_code,
            processes=(process,),
        ),
    )
    return directory


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "perfscope-runs"


def ask(*words: str) -> str:
    done = CliRunner().invoke(runs, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_the_table_shows_each_run_newest_first(here: Path) -> None:
    put(here, "20260101-000000-train-aaaa")
    put(here, "20260102-000000-train-bbbb", exit_code=3)
    (put(here, "20260103-000000-train-cccc") / "run.json").write_text("{")
    shown = ask()
    order = [shown.index(digits) for digits in ("cccc", "bbbb", "aaaa")]
    assert order == sorted(order)
    assert "unreadable" in shown
    assert "failed (3)" in shown
    assert "2.00 ms" in shown


def test_of_an_even_number_of_steps_the_median_is_between_the_two_in_the_middle_as_in_the_run_s_report(
    here: Path,
) -> None:
    put(here, "20260101-000000-train-aaaa", steps_ns=(61_061_342, 69_363_465, 39_217_793, 44_205_151))
    assert json.loads(ask("--json"))[0]["step_ns"] == (61_061_342 + 44_205_151) // 2
    assert "52.6 ms" in ask()


def test_json_has_the_same_and_is_stable(here: Path) -> None:
    put(here, "20260101-000000-train-aaaa")
    (put(here, "20260103-000000-train-cccc") / "run.json").write_text("{")
    broken, good = json.loads(ask("--json"))
    assert (broken["id"], broken["state"]) == ("20260103-000000-train-cccc", "unreadable")
    assert good == {
        "id": "20260101-000000-train-aaaa",
        "name": "train",
        "created_utc": "2026-01-01T00:00:00+00:00",
        "state": "finished",
        "exit_code": 0,
        "ranks": 1,
        "steps": 12,
        "step_ns": 2_000_000,
        "captures": ["timing"],
        "command": ["train.py"],
        "commit": None,
        "dirty": False,
        "devices": [],
        "tags": [],
        "findings": None,
        "worst_finding": None,
        "notes": [],
    }


def test_nothing_captured_here_is_said(here: Path) -> None:
    assert "no runs" in ask()
    assert json.loads(ask("--json")) == []


def test_a_command_cannot_steer_the_terminal(here: Path) -> None:
    put(here, "20260101-000000-train-aaaa", command=("\x1b[2J[red]x",))
    shown = ask()
    assert "\x1b" not in shown
    assert "[red]" in shown


def test_prune_keeps_the_newest(here: Path) -> None:
    for day in (1, 2, 3):
        put(here, f"2026010{day}-000000-train-aaaa")
    assert "removed 2 runs" in ask("--prune", "1")
    assert [path.name for path in here.iterdir()] == ["20260103-000000-train-aaaa"]
    assert json.loads(ask("--prune", "0", "--json")) == {"removed": ["20260103-000000-train-aaaa"]}


def test_a_negative_number_to_keep_is_refused() -> None:
    assert CliRunner().invoke(runs, ["--keep", "-1"]).exit_code == 2


def finding(cost_ns: int | None, **more: object) -> dict[str, object]:
    return {"severity": "high", "cost_ns": cost_ns, "cost_ns_per_step": None, **more}


def test_the_worst_finding_is_that_of_the_report(here: Path) -> None:
    report = {
        "schema": "perfscope.report/1",
        "outcomes": [
            {"rule": "host_sync", "findings": [finding(None), finding(9_000_000, cost_ns_per_step=1_000_000)]},
            {"rule": "input_stall", "findings": [finding(3_000_000), finding(9_000_000, silenced="on purpose")]},
            {"rule": "small_kernels", "findings": []},
        ],
    }
    (put(here, "20260101-000000-train-aaaa") / "report.json").write_text(json.dumps(report))
    (put(here, "20260102-000000-train-bbbb") / "report.json").write_text("{")
    clean = {"schema": "perfscope.report/1", "outcomes": [{"rule": "host_sync", "findings": []}]}
    (put(here, "20260103-000000-train-cccc") / "report.json").write_text(json.dumps(clean))
    none, bad, good = json.loads(ask("--json"))
    assert [row["findings"] for row in (none, bad, good)] == [0, None, 3]
    assert none["worst_finding"] is None
    assert bad["worst_finding"] is None
    words = [worst_words(row) for row in (none, bad, good)]
    assert words == ["none", "no report", "input_stall"]
    assert worst_words({"state": "unreadable"}) == ""
    assert good["worst_finding"] == {"rule": "input_stall", "severity": "high", "cost_ns": 3_000_000, "count": 3}
    assert "input_stall 3.00 ms" in ask()


def test_without_times_the_most_severe_finding_is_the_worst(here: Path) -> None:
    outcomes = [
        {"rule": rule, "findings": [finding(None, severity=severity)]}
        for rule, severity in (("a_rule", "medium"), ("nonfinite", "high"), ("z_rule", "low"))
    ]
    report = {"schema": "perfscope.report/1", "outcomes": outcomes}
    (put(here, "20260101-000000-train-aaaa") / "report.json").write_text(json.dumps(report))
    (row,) = json.loads(ask("--json"))
    assert row["worst_finding"]["rule"] == "nonfinite"


def test_commit_device_and_age_are_shown(here: Path) -> None:
    directory = put(here, "20260101-000000-train-aaaa")
    run = run_folders.read(directory)
    devices = ({"name": "NVIDIA H100"},) * 2
    run_folders.write(directory, replace(run, git={"commit": "0123456789abcdef", "dirty": True}, devices=devices))
    shown = ask()
    for text in ("01234567+", "2x NVIDIA H100", " ago"):
        assert text in shown
    (row,) = json.loads(ask("--json"))
    assert (row["commit"], row["dirty"]) == ("0123456789abcdef", True)


def test_a_short_line_drops_columns(here: Path) -> None:
    directory = put(here, "20260101-000000-train-aaaa")
    run = run_folders.read(directory)
    run_folders.write(directory, replace(run, git={"commit": "0123456789abcdef"}, devices=({"name": "x" * 60},)))
    rows = [row_of(listed) for listed in list_runs(here)]
    now = datetime(2026, 1, 1, 2, tzinfo=UTC)
    assert _table(rows, 200, now)[0] == ("run", "when", "state", "step", "device", "commit", "program")
    assert _table(rows, 60, now) == [
        ("run", "when", "state", "step", "program"),
        ("20260101-000000-train-aaaa", "2 h ago", "finished", "2.00 ms", "train.py"),
    ]


def test_a_tag_names_one_run_and_keeps_it(here: Path) -> None:
    first, second, third = (put(here, f"2026010{day}-000000-train-aaaa") for day in (1, 2, 3))
    ask("--tag", first.name, "good", "--tag", first.name, "v1")
    assert run_folders.find("good", here) == first
    assert resolve("good").resolve() == first.resolve()
    assert "good, v1" in ask()
    ask("--tag", second.name, "good")
    assert (run_folders.find("good", here), run_folders.tags_of(first)) == (second, ("v1",))
    assert json.loads(ask("--keep", "1", "--json")) == {"removed": []}
    ask("--untag", "v1")
    assert json.loads(ask("--keep", "1", "--json")) == {"removed": [first.name]}
    assert "removed 1 run " in ask("--delete", "good")
    assert run_folders.kept_directories(here) == [third]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--tag", "20260101-000000-train-aaaa", "two words"], 2),
        (["--tag", "20260101-000000-train-aaaa", "latest"], 2),
        (["--tag", "absent", "good"], 4),
        (["--untag", "absent"], 2),
        (["--delete", "absent"], 4),
    ],
)
def test_mistakes_change_nothing(here: Path, words: list[str], code: int) -> None:
    put(here, "20260101-000000-train-aaaa")
    assert main(["runs", *words]) == code
    assert [row["tags"] for row in json.loads(ask("--json"))] == [[]]


def test_what_runs_or_lies_elsewhere_is_not_deleted(here: Path, tmp_path: Path) -> None:
    directory = put(here, "20260101-000000-train-aaaa")
    elsewhere = put(tmp_path / "other", "20260101-000000-train-bbbb")
    with run_folders.alive(directory):
        assert main(["runs", "--delete", directory.name]) == 2
    assert main(["runs", "--delete", str(elsewhere)]) == 4
    assert directory.is_dir()
    assert elsewhere.is_dir()


def test_a_step_is_the_window_over_its_steps_where_the_devices_were_waited_for(here: Path) -> None:
    put(here, "20260101-000000-train-aaaa", window=(164_000_000, 4))
    (row,) = json.loads(ask("--json"))
    assert row["step_ns"] == 41_000_000


ROWS = [
    ("run", "state", "command"),
    ("20260101-000000-träin-日本", "finished", "-m perfscope.workloads.moe --variant grouped_mm --defect item"),
]


def test_a_command_goes_below_its_run_where_it_would_be_a_ribbon() -> None:
    assert list(_lines(ROWS, 60)) == [
        "run                         state",
        "    command",
        "20260101-000000-träin-日本  finished",
        "    -m perfscope.workloads.moe --variant grouped_mm --defect",
        "    item",
    ]


def test_a_command_stands_beside_its_run_where_there_is_room_and_folds_under_itself() -> None:
    assert list(_lines(ROWS, 80)) == [
        "run                         state     command",
        "20260101-000000-träin-日本  finished  -m perfscope.workloads.moe --variant",
        "                                      grouped_mm --defect item",
    ]


def test_columns_stand_closer_where_they_would_not_fit_otherwise() -> None:
    first = [("a" * 30, "finished", "train.py"), ("b" * 30, "running", "train.py")]
    assert list(_lines(first, 39)) == [f"{'a' * 30} finished", "    train.py", f"{'b' * 30} running", "    train.py"]


def test_a_word_longer_than_the_line_is_cut_by_its_columns() -> None:
    *_, one, two = _lines([("run", "command"), ("a" * 30, "日" * 20)], 34)
    assert (one, two) == (f"    {'日' * 15}", f"    {'日' * 5}")


def test_no_line_ends_in_blanks(here: Path) -> None:
    put(here, "20260101-000000-train-aaaa", command=())
    assert not [line for line in ask().splitlines() if line != line.rstrip()]


def test_the_last_steps_of_a_run_that_goes_on(here: Path) -> None:
    run = run_folders.read(put(here, "20260101-000000-train-aaaa"))
    (process,) = run.processes
    many = replace(process, untraced_step_ns=(9_000_000,) * 50 + (1_000_000,) * 60 + (3_000_000,) * 40)
    assert run_folders.recent_of(replace(run, processes=(many,))) == (100, 1_000_000, None)
    read = replace(process, untraced_step_ns=(2_000_000,) * 3, untraced_step_tokens=((4, 100), (4, 100), (4, 200)))
    assert run_folders.recent_of(replace(run, processes=(read,))) == (3, 2_000_000, 1600 / 6e-3)
    unknown = replace(read, untraced_step_tokens=((4, 100), None, (4, 200)))
    assert run_folders.recent_of(replace(run, processes=(unknown,))) == (3, 2_000_000, None)
    assert run_folders.recent_of(replace(run, processes=())) is None
