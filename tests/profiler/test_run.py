"""The manifest: what is written is read again, and what is corrupt is one line with the path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.model.documents.run import RUN_SCHEMA, Capture, Process, Run, dump, load_process, load_run
from perfscope.model.errors import DataError


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
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
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
def test_a_corrupt_manifest_is_one_line_with_the_path(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_run(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert said in text
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
