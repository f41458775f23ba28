"""Dumps of NCCL's flight recorder: pickles, JSON, tars; what asks for a class is refused."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.flight_recorder import FlightRecord, Progress
from perfscope.analyzers.load import load, load_path
from perfscope.analyzers.readers import flight_recorder
from perfscope.profiler.errors import DataError
from tests.analyzers.dumps import dump, entry, written

STACK = [
    {"name": "all_reduce", "filename": "/usr/lib/python3/dist-packages/torch/distributed/c10d.py", "line": 1},
    {"name": "train", "filename": "/home/user/train.py", "line": 88},
]  # fmt: skip


def record_of(path: Path) -> FlightRecord:
    (trace,) = load(path)
    assert trace.recorded == {"flight_record"}
    assert trace.flight_record is not None
    return trace.flight_record


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_any_binary_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(pickle.dumps(dump([entry(frames=STACK)], status={"0": (1, 0)}), protocol=protocol))
    if protocol < 2:  # text protocols have no magic bytes; torch writes none of them
        with pytest.raises(DataError):
            load(path)
        return
    record = record_of(path)
    assert (record.rank, record.version, record.nccl_version) == (3, "2.9", "2.21.5")
    assert record.groups[0].ranks == (0, 1)
    assert record.progress == {"0": Progress(enqueued=1, completed=0)}
    (call,) = record.calls
    assert (call.operation, call.sequence, call.pending, call.timeout_ns) == ("all_reduce", 1, True, 600 * 10**9)
    assert (call.file, call.line) == ("/home/user/train.py", 88)
    assert call.label() == "all_reduce 1024 BFloat16"


def test_json_and_gzip(tmp_path: Path) -> None:
    text = json.dumps(dump([entry("send 0->1", 4, between=True), entry("recv 0<-1", 5, between=True)])).encode()
    (tmp_path / "nccl_trace_rank_0.json").write_bytes(text)
    (tmp_path / "nccl_trace_rank_1.json.gz").write_bytes(gzip.compress(text))
    traces = load(tmp_path)
    assert [trace.source.rank for trace in traces] == [0, 1]
    assert traces[0].flight_record is not None
    assert [(call.operation, call.peer) for call in traces[0].flight_record.calls] == [
        ("send", (0, 1)),
        ("recv", (1, 0)),
    ]
    assert [trace.source.world_size for trace in traces] == [2, 2]


def test_a_tar_of_them_and_other_files(tmp_path: Path) -> None:
    path = tmp_path / "dumps.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in (
            ("run/_dump_1", pickle.dumps(dump([entry()]), protocol=2)),
            ("run/_dump_0", pickle.dumps(dump(), protocol=2)),
            ("run/notes.txt", b"nothing"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert [trace.source.rank for trace in load(path)] == [0, 1]


class Call:
    """Pickles as a call of a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_what_asks_for_a_function_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**dump(), "more": Call()}, protocol=4))
    with pytest.raises(DataError, match=r"it asks for builtins.print"):
        load(path)
    assert capsys.readouterr().out == ""


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    "data",
    [
        opcodes(b"cos\nsystem\n"),
        opcodes(b"\x8c\x02os\x8c\x06system\x93"),
        opcodes(b"\x82\x01"),
        opcodes(b"\x8c\x01x", b"Q"),
        opcodes(b"\x97"),
        opcodes(b"}", b"r\xff\xff\xff\x7f"),  # a memo of 2 G places
        opcodes(b"\x8e" + (2**62).to_bytes(8, "little")),
        opcodes(b"0" * 5),
        opcodes(b"]" * 2000 + b"a" * 1999),
        opcodes(b"K\x01"),
        opcodes(b"}"),
        b"\x80\x04",
        b"\x80\xff.",
    ],
)
def test_forged_pickles_raise_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(DataError, match="not a dump of a flight recorder"):
        flight_recorder.read(path)


def test_a_cut_dump_is_left_out_and_said(tmp_path: Path) -> None:
    written(tmp_path, {0: dump([entry()]), 1: dump([entry()])})
    cut = tmp_path / "nccl_trace_rank_1"
    cut.write_bytes(cut.read_bytes()[:-40])
    loaded = load_path(tmp_path)
    assert [trace.source.rank for trace in loaded.traces] == [0]
    assert "nccl_trace_rank_1 was not read" in loaded.traces[0].source.notes[-1]


def test_odd_values_are_left_out_and_not_taken_for_others(tmp_path: Path) -> None:
    odd = entry(timeout_ms="long", input_sizes=None, frames="none", process_group=None, state="lost", retired=True)
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({**dump([odd]), "pg_config": {"0": {"ranks": "[0, 1, ..."}, "1": 3}, "pg_status": 7}))
    (trace,) = load(path)
    assert trace.flight_record is not None
    (call,) = trace.flight_record.calls
    assert (call.timeout_ns, call.input_sizes, call.file, call.group, call.pending) == (None, (), None, "", False)
    assert trace.flight_record.groups[0].ranks == ()
    assert (trace.source.rank, trace.source.world_size) == (None, None)
    assert "does not end in the number of its rank" in trace.source.notes[0]


def test_a_trace_that_tells_of_nccl_is_no_dump() -> None:
    head = b'{"schemaVersion": 1, "distributedInfo": {"pg_config": [], "nccl_version": "2.21"}, "entries": 1'
    assert not flight_recorder.sniff(Path("x.json"), head)
    assert not flight_recorder.sniff(Path("x"), b"\x80\x04}q\x00X\x08\x00\x00\x00segments")


@pytest.mark.corpus
def test_the_corpus(corpus: Path) -> None:
    traces = load(corpus / "nccl_fr" / "nvidia-resiliency-ext__gpu_error_1st.tar.gz")
    assert [trace.source.rank for trace in traces] == list(range(16))
    assert sum(trace.source.events_read for trace in traces) == 289
