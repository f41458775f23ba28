"""What is kept of a run says what a comparison of it says, under the same names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfscope.analyzers.compare.comparison import compare
from perfscope.analyzers.compare.run_record import MOST_FINDINGS, record_of, uid_of
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import load
from perfscope.profiler.errors import DataError
from perfscope.profiler.run_store.record import MOST_BYTES, StoredRun, decode, encode
from tests.conftest import REPOSITORY

RUNS = sorted(path.parent for path in (REPOSITORY / "fixtures").glob("*/run.json"))
ONE, OTHER = (REPOSITORY / "fixtures" / name for name in ("cpu-attention-sdpa", "cpu-attention-sdpa-item"))


def test_the_metrics_are_those_that_a_comparison_judges() -> None:
    one, other = record_of(ONE), record_of(OTHER)
    compared = compare(load(ONE), load(OTHER))
    judged = {result.name: (result.unit, result.base, result.head) for result in (one.result for one in compared.exact)}
    assert len(judged) >= 5

    def kept(record: StoredRun) -> dict[str, tuple[str, float | str | None]]:
        return {held.name: (held.unit, held.value if held.text is None else held.text) for held in record.metrics}

    mine, theirs = kept(one), kept(other)
    assert {name: (unit, base) for name, (unit, base, _) in judged.items()}.items() <= mine.items()
    assert {name: (unit, head) for name, (unit, _, head) in judged.items()}.items() <= theirs.items()
    assert set(mine) - set(judged) <= {"step time", "step time (mean of a window)", "step time (profiled)"}
    assert {held.known for held in one.metrics if held.name in judged} == {"exact"}


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_real_runs(run: Path) -> None:
    record = record_of(run)
    analysis = analyze(load(run))
    manifest = json.loads((run / "run.json").read_text())
    assert (record.name, record.created_utc, record.exit_code) == (manifest["name"], manifest["created_utc"], 0)
    assert [(one.rule, one.subject, one.cost_ns) for one in record.findings] == [
        (rule, one.subject, one.cost_ns) for rule, one in analysis.findings()[:MOST_FINDINGS]
    ]
    free = sorted(step.duration_ns for step in analysis.steps if not step.traced)
    times = [one for one in record.metrics if one.name.startswith("step time")]
    assert [one.known for one in times] == ["single captures"]
    windows = [
        process["window_ns"] / process["window_steps"] for process in manifest["processes"] if process.get("window_ns")
    ]
    if windows:
        assert (times[0].name, times[0].value) == ("step time (mean of a window)", windows[0])
    else:
        assert times[0].name == "step time"
        assert free[0] <= (times[0].value or 0) <= free[-1]
    assert record.hardware["arch"] == manifest["platform"]["machine"]
    assert decode(encode(record), "it") == record
    assert record.finished


def test_a_run_is_known_by_its_content(tmp_path: Path) -> None:
    copy = tmp_path / "20260101-000000-copy-0001"
    shutil.copytree(ONE, copy)
    assert uid_of(copy) == uid_of(ONE)
    (copy / "report.html").write_text("written later")
    assert uid_of(copy) == uid_of(ONE)
    assert uid_of(OTHER) != uid_of(ONE)
    manifest = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(manifest | {"created_utc": "2026-01-01T00:00:00+00:00"}))
    assert uid_of(copy) != uid_of(ONE)


def test_a_recording_that_is_no_run() -> None:
    trace = next(path for path in (ONE / "rank00000").iterdir() if path.name.startswith("timing"))
    record = record_of(trace, branch="main", commit="a" * 40)
    assert (record.id, record.name, record.branch, record.commit) == (trace.name, "timing", "main", "a" * 40)
    assert record.command == ()
    names = {one.name for one in record.metrics}
    assert "step time (profiled)" in names
    assert "step time" not in names, "with a profiler it is another metric"
    assert record_of(trace, commit="HEAD; rm -rf /").commit is None
    assert record.uid == uid_of(trace)


def test_a_run_that_recorded_nothing_keeps_its_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ONE, run)
    for file in run.glob("rank*/*"):
        if file.name != "process.json":
            file.unlink()
    record = record_of(run)
    assert [one.name for one in record.metrics] == ["step time"]
    assert "nothing recorded that can be read" in record.notes[-1]
    assert record.kind == "no recording"


def test_a_run_that_still_runs_is_not_kept(tmp_path: Path) -> None:
    from perfscope.profiler import store

    run = tmp_path / "run"
    shutil.copytree(ONE, run)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"state": "running"}))
    with store.alive(run), pytest.raises(DataError, match="still running"):
        record_of(run)
    assert not record_of(run).finished, "killed"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        record_of(tmp_path / "gone")
    (tmp_path / "text").write_text("no trace")
    with pytest.raises(DataError, match="text: "):
        record_of(tmp_path / "text")


def test_the_machine_is_its_hardware() -> None:
    from dataclasses import replace

    record = record_of(ONE)
    assert replace(record, software={"torch": "9"}).machine == record.machine
    assert replace(record, hardware={**record.hardware, "cpu": "another"}).machine != record.machine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[", "not valid JSON"),
        (b"[]", "its schema is None"),
        (b'{"schema": "perfscope.stored-run/2"}', "stored-run/2"),
        (b'{"schema": "perfscope.stored-run/1"}', "missing required field"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " * (MOST_BYTES + 1), "larger than"),
    ],
)
def test_what_is_no_record(text: bytes, said: str) -> None:
    with pytest.raises(DataError, match=f"^it: .*{said}"):
        decode(text, "it")


def test_keys_of_a_later_perfscope_are_passed_over() -> None:
    record = record_of(ONE)
    later = json.loads(encode(record)) | {"colour": "red"}
    assert decode(json.dumps(later), "it") == record
