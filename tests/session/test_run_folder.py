"""The manifest: what is written is read again, and what is corrupt is one line with the path."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import (
    RUN_SCHEMA,
    Capture,
    Process,
    Run,
    RunState,
    dump,
    failure_of,
    load_process,
    load_run,
)
from perfscope.model.documents.run_list import list_runs
from perfscope.model.errors import DataError, NotStartedError, UsageError, see
from perfscope.model.files import write_atomically


def process(**more: Any) -> Process:
    timing = Capture(
        pass_name="timing",
        tool="torch_profiler",
        state="recorded",
        steps=(2, 5),
        artifact="rank00003/timing.pt.trace.json.gz",
    )
    structure = Capture(pass_name="structure", tool="op_graph", state="missing", reason="compiled")
    usual = {"rank": 3, "directory": "rank00003", "untraced_step_ns": (5, 7), "captures": (timing, structure)}
    return Process(**{**usual, **more})


def run(**more: Any) -> Run:
    usual = {"id": "r", "name": "n", "created_utc": "2026-01-01T00:00:00+00:00", "command": ("a.py",)}
    return Run(**{**usual, "state": "finished", "processes": (process(),), **more})


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    held = run(exit_code=3, git={"commit": "abc", "dirty": True}, devices=({"name": "H200", "cores": 132},))
    (tmp_path / "run.json").write_bytes(dump(held))
    (tmp_path / "process.json").write_bytes(dump(process()))
    assert load_run(tmp_path / "run.json") == held
    assert load_process(tmp_path / "process.json") == process()


def test_the_json_has_the_documented_keys() -> None:
    written = json.loads(dump(run()))
    assert written["schema"] == RUN_SCHEMA
    assert written["processes"][0]["captures"][0] == {
        "pass": "timing",
        "tool": "torch_profiler",
        "state": "recorded",
        "steps": [2, 5],
        "reason": None,
        "artifact": "rank00003/timing.pt.trace.json.gz",
    }


def test_artifacts_are_the_recorded_files(tmp_path: Path) -> None:
    (artifact,) = run().artifacts(tmp_path)
    assert (artifact.rank, artifact.pass_name, artifact.steps) == (3, "timing", (2, 5))
    assert artifact.path == tmp_path / "rank00003" / "timing.pt.trace.json.gz"


def changed(**keys: Any) -> bytes:
    return json.dumps({**json.loads(dump(run())), **keys}).encode()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "its schema is None"),
        (b"[]", "its schema is None"),
        (b"{}", "its schema is None"),
        (changed(schema="perfscope.run/2"), "this perfscope reads 'perfscope.run/1'"),
        (changed(state="dreaming"), "dreaming"),
        (changed(command="a.py"), "command"),
        (changed(processes=[3]), "processes"),
        (changed(processes=[{"rank": 0}]), "directory"),
        (changed(exit_code="0"), "exit_code"),
    ],
)
def test_a_corrupt_manifest_is_one_line_with_the_path(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_run(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert sentence in text
    assert "\n" not in text


def test_a_manifest_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_run(tmp_path / "run.json")


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/x.gz", "rank0/../../x", "a\\..\\b", "a\0b"])
def test_a_manifest_cannot_lead_out_of_its_run(tmp_path: Path, name: str) -> None:
    stray = Capture(pass_name="timing", tool="torch_profiler", state="recorded", artifact=name)
    for bad in (process(captures=(stray,)), process(directory=name)):
        path = tmp_path / "run.json"
        path.write_bytes(dump(run(processes=(bad,))))
        with pytest.raises(DataError, match="leads out"):
            load_run(path)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_manifest_cut_anywhere_never_passes_for_a_whole_one(tmp_path_factory: Any, data: Any) -> None:
    whole = dump(run())
    end = data.draw(st.integers(min_value=0, max_value=len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / "run.json"
    path.write_bytes(whole[:end])
    with pytest.raises(DataError):
        load_run(path)


def make(root: Path, name: str = "train", state: RunState = "finished") -> Path:
    directory = run_folders.create(root, name)
    run_folders.write(directory, Run(id=directory.name, name=name, created_utc="2026", command=("a.py",), state=state))
    return directory


def old(root: Path, name: str, state: RunState = "finished") -> Path:
    """A run of a written name: the order of runs is that of their names."""
    directory = root / name
    directory.mkdir(parents=True)
    run_folders.write(directory, Run(id=name, name="n", created_utc="2026", command=("a.py",), state=state))
    return directory


def test_a_directory_says_when_and_what_and_latest_points_to_it(tmp_path: Path) -> None:
    directory = run_folders.create(tmp_path / "runs", "../my train.py/ü")
    stamp, clock, *label, digits = directory.name.split("-")
    assert (len(stamp), len(clock), len(digits)) == (8, 6, 4)
    assert "-".join(label) == "my-train.py"
    assert (tmp_path / "runs" / "latest").resolve() == directory.resolve()


def test_a_name_of_nothing_but_signs_still_names_a_directory(tmp_path: Path) -> None:
    assert "-run-" in run_folders.create(tmp_path, "///").name


def test_a_directory_that_exists_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = iter(["aaaa", "0000", "aaaa", "bbbb", "0000"])
    monkeypatch.setattr(run_folders.os, "urandom", lambda _: bytes.fromhex(next(digits)))

    class Noon(run_folders.datetime):
        @classmethod
        def now(cls, tz: object = None) -> Noon:  # type: ignore[override]
            return cls(2026, 1, 1, 12)

    monkeypatch.setattr(run_folders, "datetime", Noon)
    first = run_folders.create(tmp_path, "a")
    (first / "kept").touch()
    second = run_folders.create(tmp_path, "a")
    assert (first.name, second.name) == ("20260101-120000-a-aaaa", "20260101-120000-a-bbbb")
    assert (first / "kept").exists()


def test_no_free_directory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", _taken)
    with pytest.raises(NotStartedError, match="no free run directory"):
        run_folders.create(tmp_path, "a")


def _taken(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
    if not exist_ok:
        raise FileExistsError


def test_a_file_called_latest_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("mine")
    run_folders.create(tmp_path, "a")
    assert (tmp_path / "latest").read_text() == "mine"


def test_writing_replaces_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [item.name for item in tmp_path.iterdir()] == ["run.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folders.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert [item.name for item in tmp_path.iterdir()] == ["run.json"]


def test_a_run_is_running_while_it_is_held_and_killed_when_nobody_holds_it(tmp_path: Path) -> None:
    directory = make(tmp_path, state="running")
    assert run_folders.read(directory).state == "killed"
    holder = (
        "import sys; from pathlib import Path; from perfscope.model.documents import run_folders\n"
        "with run_folders.alive(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert run_folders.read(directory).state == "running"
        assert run_folders.prune(tmp_path, 0) == []
        process.kill()
    assert run_folders.read(directory).state == "killed"


def test_what_the_processes_wrote_last_is_read_by_rank(tmp_path: Path) -> None:
    directory = make(tmp_path)
    for rank in (10, 2):
        (directory / f"rank{rank:05d}").mkdir()
        process = Process(rank=rank, directory=f"rank{rank:05d}", steps_seen=rank)
        write_atomically(directory / f"rank{rank:05d}" / "process.json", dump(process))
    assert [process.steps_seen for process in run_folders.read(directory).processes] == [2, 10]


def test_find_knows_paths_latest_ids_and_their_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path("perfscope-runs")
    first, second = old(root, "20260101-000000-a-1111"), old(root, "20260102-000000-b-2222")
    (root / "latest").symlink_to(second.name)
    assert run_folders.find(str(first)) == first
    assert run_folders.find("latest") == second.resolve()
    assert run_folders.find("20260101") == first
    assert run_folders.find(second.name) == second
    with pytest.raises(UsageError, match="2 runs begin so"):
        run_folders.find("2026")
    for absent in ("2025", ""):
        with pytest.raises(DataError, match="no such run"):
            run_folders.find(absent)
    with pytest.raises(DataError, match="no run was captured here yet"):
        run_folders.find("latest", tmp_path / "elsewhere")


def test_the_list_is_newest_first_and_holds_the_corrupt_with_their_problem(tmp_path: Path) -> None:
    for name in ("20260102-0", "20260101-0", "20260103-0"):
        old(tmp_path, name)
    (tmp_path / "20260102-0" / "run.json").write_text("{")
    (tmp_path / "not-a-run").mkdir()
    listed = list_runs(tmp_path)
    assert [item.directory.name for item in listed] == ["20260103-0", "20260102-0", "20260101-0"]
    assert [item.run is None for item in listed] == [False, True, False]
    assert "not valid JSON" in str(listed[1].problem)
    assert list_runs(tmp_path / "absent") == []


def test_prune_keeps_the_newest_and_what_is_not_a_run_and_mends_latest(tmp_path: Path) -> None:
    names = [f"2026010{day}-0" for day in range(1, 5)]
    for name in names:
        old(tmp_path, name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "latest").symlink_to(names[0])
    removed = run_folders.prune(tmp_path, 2)
    assert sorted(path.name for path in removed) == names[:2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names[2:], "latest", "mine"]
    assert (tmp_path / "latest").resolve().name == names[3]
    with pytest.raises(UsageError):
        run_folders.prune(tmp_path, -1)


def _create(root: str) -> str:
    return run_folders.create(Path(root), "same").name


def test_processes_that_start_at_once_get_directories_of_their_own(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        names = pool.map(_create, [str(tmp_path)] * 20)
    assert len(set(names)) == 20
    assert (tmp_path / "latest").resolve().name in names
    assert json.dumps(sorted(names)) == json.dumps(sorted(p.name for p in tmp_path.iterdir() if not p.is_symlink()))


@pytest.mark.parametrize("kind", ["OutOfMemoryError", "MemoryError"])
def test_a_program_that_ran_out_of_memory_gets_the_question_that_explains_it(kind: str) -> None:
    assert failure_of("finished", 1, f"{kind}: 3 GiB") == (
        f"the program failed with exit code 1: {kind}: 3 GiB{see('out of memory')}"
    )
    assert failure_of("finished", 1, "ValueError: MemoryError") == (
        "the program failed with exit code 1: ValueError: MemoryError"
    )
