"""The rank of a trace, and how it is known."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_one
from perfscope.dashboards.report import text

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {}}
COLLECTIVE = {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", "pid": 0, "tid": 7,
    "ts": 20, "dur": 5,
    "args": {"device": 0, "stream": 7, "correlation": 3, "Collective name": "allreduce", "In msg nelems": 4},
}  # fmt: skip


def _written(folder: Path, name: str, *events: dict[str, Any], **head: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": [OP, *events]}))
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("job_rank_3.json", 3),
        ("trace_rank-3.pt.trace.json", 3),
        ("trace_3.json", None),
        ("frank3.json", None),
    ],
)
def test_the_name_of_the_file(tmp_path: Path, name: str, rank: int | None) -> None:
    source = load_one(_written(tmp_path, name, OP)).source
    assert (source.rank, source.rank_source) == (rank, None if rank is None else "file name")


@pytest.mark.parametrize(("name", "rank"), [("trace_3.json", 3), ("worker.1700000000.pt.trace.json", None)])
def test_a_number_at_the_end_is_a_rank_where_there_are_collectives(tmp_path: Path, name: str, rank: int | None) -> None:
    assert load_one(_written(tmp_path, name, COLLECTIVE)).source.rank == rank


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("rank_3/worker.json", (3, "folder name")),
        ("rank00012/worker_7.json", (12, "folder name")),
        ("rank_3/rank5.json", (5, "file name")),
        ("ranks/worker.json", (None, None)),
        ("rank_3_of_8/worker.json", (None, None)),
    ],
)
def test_the_name_of_the_folder(tmp_path: Path, place: str, expected: tuple[int | None, str | None]) -> None:
    path = tmp_path / place
    path.parent.mkdir()
    source = load_one(_written(path.parent, path.name, COLLECTIVE)).source
    assert (source.rank, source.rank_source) == expected


def test_what_a_trace_says_comes_before_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "rank3"
    folder.mkdir()
    path = _written(folder, "t.json", distributedInfo={"rank": 5, "world_size": 8, "backend": "nccl"})
    assert load_one(path).source.rank == 5


def test_a_memory_snapshot_has_the_rank_of_its_name(tmp_path: Path) -> None:
    snapshot = {"segments": [], "device_traces": [[
        {"action": "alloc", "addr": 64, "size": 512, "stream": 0, "time_us": 1, "frames": []},
        {"action": "free_completed", "addr": 64, "size": 512, "stream": 0, "time_us": 2, "frames": []},
    ]]}  # fmt: skip
    path = tmp_path / "rank2_memory_snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    source = load_one(path).source
    assert (source.rank, source.rank_source) == (2, "file name")


def test_what_the_trace_says_comes_before_its_name(tmp_path: Path) -> None:
    path = _written(tmp_path, "rank3.json", distributedInfo={"rank": 5, "world_size": 8, "backend": "nccl"})
    trace = load_one(path)
    assert (trace.source.rank, trace.source.rank_source) == (5, "distributedInfo")
    analysis = analyze(trace)
    assert "distributedInfo" in text.render(analysis, verbose=True)
    assert "distributedInfo" not in text.render(analysis)
