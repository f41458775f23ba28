"""Files made to break a reader: one clear line, one pass, and the other files of a folder are still read."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers.kineto import document
from perfscope.analyzers.readers.load import load
from perfscope.model.errors import DataError

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0,
         "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip


def trace(rank: int) -> bytes:
    names = random.Random(rank)
    events = [{**EVENT, "name": f"k{names.getrandbits(64):x}", "ts": float(index)} for index in range(5_000)]
    document = {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}, "traceEvents": events}
    return gzip.compress(json.dumps(document).encode())


def broken(content: bytes) -> bytes:
    """Packed data whose middle is overwritten: an invalid deflate symbol, not a cut."""
    middle = len(content) // 2
    return content[:middle] + b"\xff" * 64 + content[middle + 64 :]


def test_corrupt_gzip_is_bad_data_and_costs_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(trace(0))
    (tmp_path / "rank1.json.gz").write_bytes(broken(trace(1)))
    assert run(["analyze", str(tmp_path / "rank1.json.gz")]) == 4
    assert "gzip is corrupt" in capsys.readouterr().err
    assert run(["analyze", str(tmp_path)]) == 0
    out = capsys.readouterr()
    assert "rank 0" in out.out
    assert "gzip is corrupt" in out.out + out.err


def test_the_end_of_the_events_is_looked_for_in_few_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[{"ph":"X"}' + b'],"a":[{},{"ph":"X"}' * 5_000)
    tried = []
    completes = document._completes
    monkeypatch.setattr(document, "_completes", lambda rest, **keys: tried.append(1) or completes(rest, **keys))
    with pytest.raises(DataError, match="the event array does not end"):
        load(path)
    assert 0 < len(tried) < 100


def test_nested_shared_lists_of_a_dump_are_no_text(tmp_path: Path) -> None:
    """14 levels of ten references to one list are 834 bytes, and 10**14 words as a text."""
    shared: list[object] = ["x" * 10]
    for _ in range(14):
        shared = [shared] * 10
    entry = {"record_id": 1, "pg_id": 0, "process_group": (shared, shared), "collective_seq_id": 1, "p2p_seq_id": 0,
             "op_id": 1, "profiling_name": shared, "time_created_ns": 1, "input_sizes": [[8]],
             "input_dtypes": [shared], "output_sizes": [[8]], "output_dtypes": ["Float"], "state": shared,
             "is_p2p": False}  # fmt: skip
    dump = {"version": "2.10", "pg_config": {"0": {"name": shared, "desc": shared, "ranks": "[0]"}}, "pg_status": {},
            "entries": [entry]}  # fmt: skip
    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps(dump, 2))
    (read,) = load(path)
    assert read.flight_record is not None
    (call,) = read.flight_record.calls
    assert call.state == "scheduled"
