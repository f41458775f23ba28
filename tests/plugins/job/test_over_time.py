"""The ledger over time, evaluations as events, and nodes that are slow again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.plugins.job import account_cache
from perfscope.plugins.job.account import job_account, on_cluster
from perfscope.plugins.job.account_cache import kept_account
from perfscope.plugins.job.causes import CAUSES
from perfscope.plugins.job.nodes import Node
from perfscope.plugins.job.timeline import MOST_BINS, NARROWEST_NS, Timeline
from tests.plugins.job.written import BEGAN, S, Written

WIDTH = len(CAUSES) + 1


def random_rows(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    values = random.integers(0, 7 * S, (rows, WIDTH)) * random.integers(0, 2, (rows, WIDTH))
    edges = BEGAN + np.concatenate(([0], np.cumsum(values[:, :-1].sum(axis=1))))
    return edges, values


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_bins_hold_every_nanosecond_and_step_of_all_ranks(rows: int) -> None:
    whole, total = Timeline(), np.zeros(WIDTH, dtype=np.int64)
    for rank in range(3):
        edges, values = random_rows(rank, rows)
        one = Timeline()
        one.add(edges, values)
        assert np.array_equal(sum(map(np.array, one.rows.values())), values.sum(axis=0))
        whole.merge(one)
        total += values.sum(axis=0)
    held = whole.rows
    assert np.array_equal(sum(map(np.array, held.values())), total)
    assert max(held) - min(held) < MOST_BINS
    assert all(sum(row[:-1]) <= 3 * (whole.width_ns + WIDTH) for row in held.values())  # parts of ns
    assert whole.width_ns == NARROWEST_NS or max(held) - min(held) >= MOST_BINS // 2 - 1


def test_a_row_over_several_bins_is_divided_by_time() -> None:
    one = Timeline()
    edges = np.array([BEGAN + S, BEGAN + 7 * S])
    one.add(edges, np.array([[6 * S] + [0] * (WIDTH - 2) + [6]]))
    assert [row[0] for row in one.rows.values()] == [S, 2 * S, 2 * S, S]
    assert sum(row[-1] for row in one.rows.values()) == 6


def test_neighbouring_rows_with_evaluation_are_one_event(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 10}, steps=5)
    ledger.row({"train": 7, "eval": 3}, steps=5)
    ledger.row({"eval": 4, "train": 6}, steps=5)
    ledger.row({"train": 10}, steps=5)
    ledger.row({"eval": 1, "train": 9}, steps=5, tail={})
    events = [event for event in job_account([tmp_path]).events if event.kind == "evaluation"]
    assert [(event.unix_ns - BEGAN, event.ns, event.line) for event in events] == [
        (19 * S, 7 * S, "train.py:32"),
        (42 * S, S, "train.py:32"),
    ]


def nodes_of(folder: Path, *seconds: float, minutes: int = 6) -> tuple[Node, ...]:
    """A node per argument: its training time per step."""
    for rank, step in enumerate(seconds):
        ledger = Written(folder, rank=rank, pid=rank, host=f"node{rank // 2}")
        for _ in range(6 * minutes):
            ledger.row({"train": step * 4, "ranks": 10 - step * 4}, steps=4)
    return job_account([folder]).nodes


def test_a_node_that_is_slow_again_and_again_is_first(tmp_path: Path) -> None:
    first, *others = nodes_of(tmp_path, 1, 1, 1, 1, 1.3, 1.1, 1, 1)
    assert (first.host, first.ranks, first.slow_again) == ("node2", 2, True)
    assert first.slow_bins == first.bins > 100
    assert first.excess == pytest.approx(0.2)
    assert not any(node.slow_again or node.slow_bins for node in others)


def test_a_node_just_below_the_threshold_is_not_slow(tmp_path: Path) -> None:
    assert not any(node.slow_bins for node in nodes_of(tmp_path, 1, 1, 1, 1, 1.09, 1))


def test_nodes_that_wait_for_others_are_not_slow(tmp_path: Path) -> None:
    """All steps take equally long where ranks wait for each other; only the time without waits is compared."""
    nodes = nodes_of(tmp_path, 1, 1, 2, 2, 1, 1)
    assert [node.host for node in nodes if node.slow_again] == ["node1"]


def test_a_node_alone_is_not_compared(tmp_path: Path) -> None:
    (node,) = nodes_of(tmp_path, 1, 2)
    assert (node.excess, node.bins, node.slow_again) == (None, 0, False)


def test_ranks_that_are_read_in_processes_make_the_same_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_of(tmp_path, 1, 1.5, 1, 1, minutes=1)
    here = job_account([tmp_path])
    monkeypatch.setattr("perfscope.plugins.job.account.BYTES_PER_PROCESS", 1000)
    monkeypatch.setattr("perfscope.plugins.job.account.cores", lambda: 2)
    assert job_account([tmp_path]) == here


def test_ranks_that_a_dask_cluster_reads_make_the_same_account(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="no Dask")
    nodes_of(tmp_path, 1, 1.5, 1, 1, minutes=1)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        read = on_cluster(cluster.scheduler_address)
        assert job_account([tmp_path], read) == job_account([tmp_path])


def test_the_account_of_a_large_job_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(account_cache, "SMALLEST", 1000)
    run = tmp_path / "run"
    nodes_of(run, 1, 1.5, 1, 1, minutes=1)
    account = kept_account([run])
    assert account == job_account([run])
    with monkeypatch.context() as patched:
        patched.setattr(account_cache, "job_account", None)
        assert kept_account([run]) == account
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(b"{")
    assert kept_account([run]) == account
    Written(run, rank=9, pid=9).row({"train": 1}, steps=1)
    assert len(kept_account([run]).ranks) == 5
    monkeypatch.setenv("PERFSCOPE_CACHE", "off")
    assert len(kept_account([run]).ranks) == 5
    assert len(list((tmp_path / "cache").iterdir())) == 2
