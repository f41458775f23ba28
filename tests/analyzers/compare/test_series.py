"""Runs as series: one a program and machine, ordered by commits, with the places where their level changed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from perfscope.analyzers.compare.series import History, Series, history
from perfscope.profiler.run_store.record import StoredMetric, StoredRun
from tests.profiler.run_store.records import stored


def timed(*levels: float, each: int = 12, spread: float = 0.01, **other: object) -> list[StoredRun]:
    rng = random.Random(5)
    values = [level * (1 + spread * rng.gauss(0, 1)) for level in levels for _ in range(each)]
    return [stored(number, step_ns=value, **other) for number, value in enumerate(values)]


def one(found: History, metric: str = "step time") -> Series:
    held = [series for series in found.series if series.metric == metric]
    assert len(held) == 1
    return held[0]


def test_a_step_is_found_between_its_commits() -> None:
    runs = timed(1e7, 1.1e7)
    found = one(history(runs))
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
    assert one(history(timed(1e7, each=40))).changes == ()


def test_texts_are_no_series_and_one_metric_can_be_asked_for() -> None:
    runs = timed(1e7)
    assert {series.metric for series in history(runs).series} == {"step time", "host syncs a step"}
    assert [series.metric for series in history(runs, metrics=["host syncs a step"]).series] == ["host syncs a step"]
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
    runs = [stored(number, syncs=float(count)) for number, count in enumerate(counts)]
    found = one(history(runs), "host syncs a step")
    said = [(change.index, change.old, change.new, change.change, change.p) for change in found.changes]
    assert said == [(3, 0.0, 1.0, None, None), (6, 1.0, 0.0, -1.0, None)]
    assert found.newest is None


@pytest.mark.parametrize(("values", "cuts"), [([1e9, 1.0005e9], []), ([1e9, 1.002e9], [1]), ([1000.0, 900_000.0], [])])
def test_bytes_change_by_what_a_comparison_lets_count(values: list[float], cuts: list[int]) -> None:
    runs = [
        stored(number, metrics=(StoredMetric(name="peak memory", unit="bytes", known="exact", value=value),))
        for number, value in enumerate(values)
    ]
    assert [change.index for change in one(history(runs), "peak memory").changes] == cuts


def test_units_of_a_later_perfscope_change_where_they_differ() -> None:
    runs = [
        stored(number, metrics=(StoredMetric(name="energy", unit="J", known="exact", value=value),))
        for number, value in enumerate((1.0, 1.0, 1.5, 1.5))
    ]
    assert [change.index for change in one(history(runs), "energy").changes] == [2]


def test_a_count_that_never_holds_still_is_no_property_of_commits() -> None:
    runs = [stored(number, syncs=float(number % 2)) for number in range(10)]
    found = one(history(runs), "host syncs a step")
    assert found.changes == ()
    assert "differs between 9 of 9 neighbours" in found.remarks[0]


def test_runs_that_failed_are_no_points() -> None:
    runs = [stored(0), stored(1, exit_code=1), stored(2, state="killed"), stored(3)]
    found = history(runs)
    assert len(one(found).points) == 2
    assert found.runs == 2
    assert found.left_out == ("2 runs that did not finish, or whose program failed",)


def test_commits_give_the_order_where_all_are_known() -> None:
    """An old commit is measured again, later: by time it would be the newest."""
    runs = timed(1e7, 1.2e7)
    late = stored(99, step_ns=1e7, commit=runs[3].commit)
    order = {run.commit or "": len(runs) - place for place, run in enumerate(runs)}
    found = one(history([*runs, late], order=order))
    assert found.ordered == "commits"
    assert [point.commit for point in found.points[3:5]] == [runs[3].commit, runs[3].commit]
    assert len(found.changes) == 1
    assert found.changes[0].after.commit == runs[12].commit
    by_time = one(history([*runs, late, stored(100, commit=None)], order=order))
    assert by_time.ordered == "time"


def test_a_change_without_another_commit_is_not_the_code() -> None:
    runs = [replace(run, commit="c" * 40) for run in timed(1e7, 1.3e7)]
    change = one(history(runs)).changes[0]
    assert change.same_commit
    dirty = [replace(run, dirty=True) for run in runs]
    assert not one(history(dirty)).changes[0].same_commit, "uncommitted code may be other code"


def test_versions_that_changed_at_the_same_point_are_told() -> None:
    runs = timed(1e7, 1.2e7)
    runs = [*runs[:12], *(replace(run, software={**run.software, "torch": "2.7.0"}) for run in runs[12:])]
    assert one(history(runs)).changes[0].software == ("torch 2.6.0 -> 2.7.0",)
    assert one(history(timed(1e7, 1.2e7))).changes[0].software == ()


def test_a_perfscope_that_may_count_otherwise_is_told() -> None:
    runs = [stored(0), stored(1, perfscope="0.2.0")]
    assert "counted by perfscope 0.1.0, 0.2.0: how something is counted may differ" in history(runs).notes
    assert history(runs[:1]).notes == ()


def test_the_newest_run_is_held_to_its_neighbours() -> None:
    runs = timed(1e7, each=20, spread=0.005)
    last = one(history([*runs, stored(50, step_ns=1.3e7)])).newest
    assert last is not None
    assert last.outside
    short = one(history(runs[:3])).newest
    assert short is None


def test_nothing() -> None:
    assert history([]) == History(series=(), runs=0, left_out=(), notes=())
