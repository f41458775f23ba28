"""Heat maps hold every wait of every rank, however many collectives share a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.ranks.sets import rank_sets, table_of
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.views import ranks as _heat
from tests.build import TraceBuilder
from tests.conftest import corpus_files
from tests.ranks.build import rank_set
from tests.web.views import view_of

LATE = ((0, 0, 300), (0, 200, 0), (50, 0, 0), (0, 0, 900))


def _sum_by_rank(heat: dict[str, Any], held: list[int | None]) -> dict[int, int]:
    columns = heat["columns"]
    return {
        row["member"]: sum(value or 0 for value in held[at * columns : (at + 1) * columns])
        for at, row in enumerate(heat["rows"])
    }


def _rows(held: dict[str, Any]) -> list[dict[str, Any]]:
    keys = [column["key"] for column in held["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in held["rows"]]


def test_every_wait_is_a_cell(tmp_path: Path) -> None:
    traces = rank_set(LATE, jitter_us=0)
    (job,) = view_of("ranks", traces, tmp_path)["jobs"]
    heat = job["heat"]
    (ranks,) = rank_sets(traces)
    assert (heat["columns"], heat["count"], heat["sum"]) == (4, 4, None)
    assert heat["value"][:4] == [300_000, 200_000, 0, 900_000]
    assert _sum_by_rank(heat, heat["value"]) == {one.rank: one.wait_ns for one in table_of(ranks).ranks}
    assert [row["trace"] for row in heat["rows"]] == [0, 1, 2]


def test_who_came_last_is_one_sentence(tmp_path: Path) -> None:
    (mixed,), (late,) = (
        view_of("ranks", rank_set(held, jitter_us=0), tmp_path / str(len(held)))["jobs"] for held in (LATE, LATE[::3])
    )
    assert mixed["lead"] == (
        "No rank came last at more than half of the 4 collectives. Rank 0 waited longest, 1.40 ms in all."
    )
    assert late["lead"] == (
        "Rank 2 came last at 2 of 2 collectives. Rank 0 waited longest, 1.20 ms in all; rank 2 waited 0 ns."
    )


def test_a_cell_knows_its_collective_and_when_it_began_on_its_rank(tmp_path: Path) -> None:
    traces = rank_set(LATE, jitter_us=0)
    (job,) = view_of("ranks", traces, tmp_path)["jobs"]
    heat = job["heat"]
    (ranks,) = rank_sets(traces)
    for row, rank in enumerate(ranks.job.ranks):
        for column, one in enumerate(ranks.matching.matched):
            cell = row * heat["columns"] + column
            number, words, core, last = heat["collectives"][heat["of"][cell]]
            assert (number, core, last) == (column, one.core_ns, one.last)
            assert words.startswith("all_reduce ")
            assert int(heat["base"]) + heat["at"][cell] == one.sides[rank].start_ns


def test_more_collectives_than_columns_keep_the_worst_and_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_heat, "LEAST_COLUMNS", 2)
    monkeypatch.setattr(_heat, "MOST_CELLS", 6)
    traces = rank_set(LATE, jitter_us=0)
    (job,) = view_of("ranks", traces, tmp_path)["jobs"]
    heat = job["heat"]
    (ranks,) = rank_sets(traces)
    assert (heat["columns"], heat["count"]) == (2, 4)
    assert heat["labels"] == ["collectives 1 to 2", "collectives 3 to 4"]
    assert heat["value"][:2] == [300_000, 900_000]
    assert _sum_by_rank(heat, heat["sum"]) == {one.rank: one.wait_ns for one in table_of(ranks).ranks}


def test_more_ranks_than_rows_keep_those_that_wait_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_heat, "MOST_HEAT_ROWS", 2)
    (job,) = view_of("ranks", rank_set(LATE, jitter_us=0), tmp_path)["jobs"]
    assert [row["member"] for row in job["heat"]["rows"]] == [0, 1]
    assert job["heat"]["rows_left"] == 1


def test_the_tables_say_the_same_as_the_picture(tmp_path: Path) -> None:
    view = view_of("ranks", rank_set(LATE, jitter_us=0), tmp_path)
    (kind,) = _rows(view["tables"]["kinds"])
    each = _rows(view["tables"]["collectives"])
    members = _rows(view["tables"]["members"])
    assert (kind["count"], kind["core_ns"]) == (4, sum(row["core_ns"] for row in each))
    for rank in range(3):
        waited = members[rank]["wait_ns"]
        assert kind[f"wait_{rank}_ns"] == waited == sum(row[f"wait_{rank}_ns"] for row in each)
    assert [row["number"] for row in each] == [4, 1, 2, 3]  # longest waits come first
    assert each[0]["bus_bytes_per_s"] == pytest.approx(2e6 * (2 * 2 / 3) / 500e-6)
    (bar,) = view["jobs"][0]["bars"]
    assert bar["wait_ns"] * 3 == pytest.approx(sum(row["wait_ns"] for row in members))


def test_busy_shares_are_of_the_steps_window(tmp_path: Path) -> None:
    made = TraceBuilder(rank=3)
    made.step(7, 0, 100)
    made.step(8, 100, 300)
    made.kernel("gemm", 20, 70)
    made.kernel("gemm", 90, 150)
    busy = view_of("ranks", [made.build()], tmp_path)["busy"]
    assert busy["value"] == [0.6, 0.25]
    assert busy["labels"] == ["step 7", "step 8"]
    assert busy["rows"] == [{"member": 3, "label": "rank 3", "trace": 0}]
    assert busy["of_steps"]


def test_without_steps_parts_of_the_recording(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.kernel("gemm", 0, 50)
    made.kernel("gemm", 75, 100)
    busy = view_of("ranks", [made.build()], tmp_path)["busy"]
    assert not busy["of_steps"]
    whole = sum(share * span for share, span in zip(busy["value"], busy["spans"], strict=True))
    assert whole == pytest.approx(75_000)


def test_ranks_with_fewer_steps_have_no_value_behind_them(tmp_path: Path) -> None:
    traces = []
    for rank, steps in ((0, 3), (1, 2)):
        made = TraceBuilder(rank=rank)
        for step in range(steps):
            made.step(step, step * 100, step * 100 + 100)
        made.kernel("gemm", 0, 50)
        traces.append(made.build())
    busy = view_of("ranks", traces, tmp_path)["busy"]
    assert busy["value"] == [0.5, 0.0, 0.0, 0.5, 0.0, None]
    assert busy["starts"][5] is None


@pytest.mark.corpus
def test_a_real_job_sums_to_what_its_ranks_waited(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for file in corpus_files("kineto", "torchrec__sst_sleep*"):
        (folder / file.name).symlink_to(file)
    traces = load_all(folder)
    view = view_of("ranks", traces, tmp_path / "view")
    (ranks,) = rank_sets(traces)
    heat = view["jobs"][0]["heat"]
    assert _sum_by_rank(heat, heat["value"]) == {one.rank: one.wait_ns for one in table_of(ranks).ranks}
    assert len(view["busy"]["rows"]) == 4
