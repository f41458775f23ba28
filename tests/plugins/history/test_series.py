"""One run per commit."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all, load_path
from perfscope.analyzers.savings import step_time
from perfscope.model.errors import DataError
from perfscope.plugins.history.run_record import MOST_FINDINGS, record_of, uid_of
from perfscope.plugins.history.series import History, Series, change_points, fence, history
from perfscope.plugins.history.stored_run import MOST_BYTES, StoredMetric, StoredRun, decode, encode
from tests.conftest import REPOSITORY
from tests.plugins.history.records import stored_run


def test_the_fence() -> None:
    rng = np.random.default_rng(0)
    before = (100 * (1 + 0.005 * rng.standard_normal(40))).tolist()
    inside, outside = fence([*before, before[-1] * 1.003]), fence([*before, before[-1] * 1.1])
    assert inside is not None
    assert outside is not None
    assert not inside.outside
    assert outside.outside
    assert outside.change == pytest.approx(0.1)
    assert fence([1.0] * 6) is None, "too short a history"
    still = fence([5.0] * 20)
    assert still is not None
    assert (still.bound, still.outside) == (0.002, False)


def series(*levels: float, count: int = 25, spread: float = 0.01, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(spread * rng.standard_normal())) for level in levels for _ in range(count)]


def test_steps_are_found_where_they_are() -> None:
    found = change_points(series(100, 105, 95))
    assert [point.index for point in found] == pytest.approx([25, 50], abs=1)
    assert [point.change for point in found] == pytest.approx([0.05, -0.095], abs=0.015)


def test_a_series_without_a_step_has_none() -> None:
    assert np.mean([bool(change_points(series(100, count=100, seed=seed))) for seed in range(60)]) <= 0.03


def test_a_step_that_does_not_matter_is_left_out() -> None:
    small = series(100, 101, count=40, spread=0.003)
    assert change_points(small) == []
    assert len(change_points(small, least=0.005)) == 1


def test_the_cut_is_that_of_the_formula() -> None:
    from perfscope.plugins.history.series import LEAST_SEGMENT, _best_cut

    values = np.random.default_rng(3).standard_normal(20)
    values[8:] += 1.5
    distances = np.abs(values[:, None] - values[None, :])

    def statistic(cut: int) -> float:
        m, n = cut, values.size - cut
        across = 2 / (m * n) * distances[:cut, cut:].sum()
        inside = sum(2 / (k * (k - 1)) * np.triu(part, 1).sum() for k, part in
                     ((m, distances[:cut, :cut]), (n, distances[cut:, cut:])))  # fmt: skip
        return float(m * n / (m + n) * (across - inside))

    cuts = range(LEAST_SEGMENT, values.size - LEAST_SEGMENT + 1)
    assert _best_cut(distances) == max(cuts, key=statistic)


def test_short_equal_and_bad_series() -> None:
    assert change_points([]) == []
    assert change_points([1.0] * 7) == []
    assert change_points([2.0] * 50) == []
    assert [point.index for point in change_points([2.0] * 20 + [3.0] * 20)] == [20]
    for bad in ([0.0] * 9, [float("nan")] * 9):
        with pytest.raises(ValueError):
            change_points(bad)
        with pytest.raises(ValueError):
            fence(bad)


def test_of_a_long_series_the_last_points_count_and_keep_their_numbers() -> None:
    long = series(100, 110, count=400)
    assert [point.index for point in change_points(long)] == pytest.approx([400], abs=2)


RUNS = [REPOSITORY / "fixtures" / name for name in ("cpu-attention-sdpa-adam-loop", "cpu-moe-loop", "cpu-ssm-scan")]
ONE, OTHER = (REPOSITORY / "fixtures" / name for name in ("cpu-attention-sdpa", "cpu-attention-sdpa-item"))


def test_the_metrics_are_those_that_a_comparison_judges() -> None:
    one, other = record_of(ONE), record_of(OTHER)
    compared = compare(load_all(ONE), load_all(OTHER))
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
    analysis = analyze(load_all(run))
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
    assert "no readable recording" in record.notes[-1]
    assert record.kind == "no recording"


def test_a_run_that_still_runs_is_not_kept(tmp_path: Path) -> None:
    from perfscope.model.documents import run_folders

    run = tmp_path / "run"
    shutil.copytree(ONE, run)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"state": "running"}))
    with run_folders.alive(run), pytest.raises(DataError, match="still running"):
        record_of(run)
    assert not record_of(run).finished, "killed"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        record_of(tmp_path / "gone")
    (tmp_path / "text").write_text("no trace")
    with pytest.raises(DataError, match="text: "):
        record_of(tmp_path / "text")


def test_the_machine_is_its_hardware() -> None:
    from msgspec.structs import replace

    record = record_of(ONE)
    assert replace(record, software={"torch": "9"}).machine == record.machine
    assert replace(record, hardware={**record.hardware, "cpu": "another"}).machine != record.machine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "its schema is None"),
        (b'{"schema": "perfscope.stored-run/2"}', "stored-run/2"),
        (b'{"schema": "perfscope.stored-run/1"}', "missing required field"),
        (b'{"a":' * 100_000, "not valid JSON"),
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


def timed(*levels: float, each: int = 12, spread: float = 0.01, **other: object) -> list[StoredRun]:
    rng = random.Random(5)
    values = [level * (1 + spread * rng.gauss(0, 1)) for level in levels for _ in range(each)]
    return [stored_run(number, step_ns=value, **other) for number, value in enumerate(values)]


def series_of(found: History, metric: str = "step time") -> Series:
    held = [series for series in found.series if series.metric == metric]
    assert len(held) == 1
    return held[0]


def test_a_step_is_found_between_its_commits() -> None:
    runs = timed(1e7, 1.1e7)
    found = series_of(history(runs))
    assert (found.unit, found.known, found.ordered, len(found.points)) == ("ns", "single captures", "time", 24)
    assert len(found.changes) == 1
    change = found.changes[0]
    assert change.index == 12
    assert (change.before.commit, change.after.commit) == (runs[11].commit, runs[12].commit)
    assert change.change == pytest.approx(0.1, abs=0.01)
    assert change.p is not None
    assert change.p < 0.001
    assert not change.same_commit


def test_no_step_no_change() -> None:
    assert series_of(history(timed(1e7, each=40))).changes == ()


def test_texts_are_no_series_and_one_metric_can_be_asked_for() -> None:
    runs = timed(1e7)
    assert {series.metric for series in history(runs).series} == {"step time", "host syncs per step"}
    (syncs,) = history(runs, metrics=["host syncs per step"]).series
    assert syncs.metric == "host syncs per step"
    assert history(runs, metrics=["nothing"]).series == ()


def test_machines_are_never_mixed() -> None:
    """Two kinds of machine take turns: their times differ by half, and nothing changed."""
    runs = [
        replace(run, hardware={"gpu": f"1 x {'Old' if number % 2 else 'New'} GPU"})
        for number, run in enumerate(timed(1e7, each=24))
    ]
    runs = [
        replace(run, metrics=(replace(run.metrics[0], value=1.5e7), *run.metrics[1:])) if number % 2 else run
        for number, run in enumerate(runs)
    ]
    found = history(runs, metrics=["step time"])
    assert [len(series.points) for series in found.series] == [12, 12]
    assert {series.hardware["gpu"] for series in found.series} == {"1 x Old GPU", "1 x New GPU"}
    assert [series.changes for series in found.series] == [(), ()]
    assert any("several machines" in note for note in found.notes)


def test_other_arguments_are_another_program() -> None:
    runs = [*timed(1e7), *(replace(run, command=("train.py", "--large")) for run in timed(3e7))]
    found = history(runs, metrics=["step time"])
    assert sorted(len(series.points) for series in found.series) == [12, 12]
    assert not any(series.changes for series in found.series)


def test_exact_metrics_change_where_they_differ() -> None:
    counts = [0, 0, 0, 1, 1, 1, 0, 0]
    runs = [stored_run(number, syncs=float(count)) for number, count in enumerate(counts)]
    found = series_of(history(runs), "host syncs per step")
    said = [(change.index, change.old, change.new, change.change, change.p) for change in found.changes]
    assert said == [(3, 0.0, 1.0, None, None), (6, 1.0, 0.0, -1.0, None)]
    assert found.newest is None


@pytest.mark.parametrize(("values", "cuts"), [([1e9, 1.0005e9], []), ([1e9, 1.002e9], [1]), ([1000.0, 900_000.0], [])])
def test_bytes_change_by_what_a_comparison_lets_count(values: list[float], cuts: list[int]) -> None:
    runs = [
        stored_run(number, metrics=(StoredMetric(name="peak memory", unit="bytes", known="exact", value=value),))
        for number, value in enumerate(values)
    ]
    assert [change.index for change in series_of(history(runs), "peak memory").changes] == cuts


def test_units_of_a_later_perfscope_change_where_they_differ() -> None:
    runs = [
        stored_run(number, metrics=(StoredMetric(name="energy", unit="J", known="exact", value=value),))
        for number, value in enumerate((1.0, 1.0, 1.5, 1.5))
    ]
    assert [change.index for change in series_of(history(runs), "energy").changes] == [2]


def test_a_count_that_never_holds_still_is_no_property_of_commits() -> None:
    runs = [stored_run(number, syncs=float(number % 2)) for number in range(10)]
    found = series_of(history(runs), "host syncs per step")
    assert found.changes == ()
    assert "differs between 9 of 9 neighbours" in found.remarks[0]


def test_runs_that_failed_are_no_points() -> None:
    runs = [stored_run(0), stored_run(1, exit_code=1), stored_run(2, state="killed"), stored_run(3)]
    found = history(runs)
    assert len(series_of(found).points) == 2
    assert found.runs == 2
    assert found.left_out == ("2 runs that did not finish, or whose program failed",)


def test_commits_give_the_order_where_all_are_known() -> None:
    """An old commit is measured again, later: by time it would be the newest."""
    runs = timed(1e7, 1.2e7)
    late = stored_run(99, step_ns=1e7, commit=runs[3].commit)
    order = {run.commit or "": len(runs) - place for place, run in enumerate(runs)}
    found = series_of(history([*runs, late], order=order))
    assert found.ordered == "commits"
    assert [point.commit for point in found.points[3:5]] == [runs[3].commit, runs[3].commit]
    assert len(found.changes) == 1
    assert found.changes[0].after.commit == runs[12].commit
    by_time = series_of(history([*runs, late, stored_run(100, commit=None)], order=order))
    assert by_time.ordered == "time"


def test_a_change_without_another_commit_is_not_the_code() -> None:
    runs = [replace(run, commit="c" * 40) for run in timed(1e7, 1.3e7)]
    change = series_of(history(runs)).changes[0]
    assert change.same_commit
    dirty = [replace(run, dirty=True) for run in runs]
    assert not series_of(history(dirty)).changes[0].same_commit, "uncommitted code may be other code"


def test_versions_that_changed_at_the_same_point_are_told() -> None:
    runs = timed(1e7, 1.2e7)
    runs = [*runs[:12], *(replace(run, software={**run.software, "torch": "2.7.0"}) for run in runs[12:])]
    assert series_of(history(runs)).changes[0].software == ("torch 2.6.0 -> 2.7.0",)
    assert series_of(history(timed(1e7, 1.2e7))).changes[0].software == ()


def test_a_perfscope_that_may_count_otherwise_is_told() -> None:
    runs = [stored_run(0), stored_run(1, perfscope="0.2.0")]
    assert "counted by perfscope 0.1.0, 0.2.0: how something is counted may differ" in history(runs).notes
    assert history(runs[:1]).notes == ()


def test_the_newest_run_is_held_to_its_neighbours() -> None:
    runs = timed(1e7, each=20, spread=0.005)
    last = series_of(history([*runs, stored_run(50, step_ns=1.3e7)])).newest
    assert last is not None
    assert last.outside
    short = series_of(history(runs[:3])).newest
    assert short is None


def test_nothing() -> None:
    assert history([]) == History(series=(), runs=0, left_out=(), notes=())


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_step_of_a_record_is_that_of_the_report(path: Path) -> None:
    timed = step_time(analyze(load_path(path).traces))
    stored = [metric.value for metric in record_of(path).metrics if metric.unit == "ns"]
    assert stored == ([] if timed is None else [timed.ns])
