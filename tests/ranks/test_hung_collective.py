"""hung_collective: ranks that are stuck, that never came, that wait for each other, that call other things."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers import flight_recorder
from perfscope.analyzers.readers.load import load_all, load_path
from perfscope.model.documents.flight_recorder import FlightRecord, Progress
from perfscope.model.errors import DataError
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED
from tests.build import TraceBuilder
from tests.ranks.flight_dumps import dump, entry, write_dumps
from tests.rules import compared_by

STACK = [
    {"name": "all_reduce", "filename": "/usr/lib/python3/dist-packages/torch/distributed/c10d.py", "line": 1},
    {"name": "train", "filename": "/home/user/train.py", "line": 88},
]  # fmt: skip


def record_of(path: Path) -> FlightRecord:
    (trace,) = load_all(path)
    assert trace.recorded == {"flight_record"}
    assert trace.flight_record is not None
    return trace.flight_record


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_any_binary_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(pickle.dumps(dump([entry(frames=STACK)], status={"0": (1, 0)}), protocol=protocol))
    if protocol < 2:  # text protocols have no magic bytes; torch writes none of them
        with pytest.raises(DataError):
            load_all(path)
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
    traces = load_all(tmp_path)
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
    assert [trace.source.rank for trace in load_all(path)] == [0, 1]


class Call:
    """Pickles as a call of a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_what_asks_for_a_function_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**dump(), "more": Call()}, protocol=4))
    with pytest.raises(DataError, match="it needs a class"):
        load_all(path)
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
    write_dumps(tmp_path, {0: dump([entry()]), 1: dump([entry()])})
    cut = tmp_path / "nccl_trace_rank_1"
    cut.write_bytes(cut.read_bytes()[:-40])
    loaded = load_path(tmp_path)
    assert [trace.source.rank for trace in loaded.traces] == [0]
    assert "nccl_trace_rank_1 was not read" in loaded.traces[0].source.notes[-1]


def test_odd_values_are_left_out_and_not_taken_for_others(tmp_path: Path) -> None:
    odd = entry(timeout_ms="long", input_sizes=None, frames="none", process_group=None, state="lost", retired=True)
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({**dump([odd]), "pg_config": {"0": {"ranks": "[0, 1, ..."}, "1": 3}, "pg_status": 7}))
    (trace,) = load_all(path)
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
    traces = load_all(corpus / "nccl_fr" / "nvidia-resiliency-ext__gpu_error_1st.tar.gz")
    assert [trace.source.rank for trace in traces] == list(range(16))
    assert sum(trace.source.events_read for trace in traces) == 289


TWO = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [1, 2]}


outcome_of = compared_by("hung_collective")


def judged(folder: Path, dumps: dict[int, dict[str, Any]]) -> Outcome:
    return outcome_of(load_all(write_dumps(folder, dumps)))


def test_the_rank_that_never_came_is_named_and_its_victims_are_not(tmp_path: Path) -> None:
    """0 waits for 1 in a pair, 1 waits for 3 in the world, 2 waits for 3: 3 waits for no other rank."""
    dumps = {
        0: dump([entry(sequence=7, group="1"), entry(sequence=9)], TWO),
        1: dump([entry(sequence=9, frames=[{"filename": "/home/user/train.py", "line": 5, "name": "f"}])], TWO),
        2: dump([entry(sequence=9)], TWO),
        3: dump([], TWO),
    }
    (finding,) = judged(tmp_path, dumps).findings
    assert (finding.subject, finding.ranks, finding.severity) == ("ranks never came to a collective", (3,), "high")
    assert "all_reduce 1024 BFloat16 (number 9 of default_pg 0, 4 ranks)" in finding.detail
    assert "3 ranks hang" in finding.title
    assert (finding.basis, finding.cost_ns) == ("structural", None)
    (row,) = finding.evidence
    assert (row["waiting_ranks"], row["own_calls_pending"], row["timeout_ns"]) == (3, 0, 600 * 10**9)


def test_a_rank_that_has_not_ended_what_others_ended_is_stuck(tmp_path: Path) -> None:
    """2 is stuck in number 8; the others ended it and wait for 2 at number 9."""
    rest = {rank: dump([entry(sequence=9)], TWO, status={"0": (9, 8)}) for rank in (0, 1, 3)}
    dumps = {**rest, 2: dump([entry(sequence=8)], TWO, status={"0": (8, 7)})}
    (finding,) = judged(tmp_path, dumps).findings
    assert (finding.subject, finding.ranks) == ("ranks are stuck in a collective that others have ended", (2,))
    assert "Rank 2 has not ended all_reduce 1024 BFloat16 (number 8" in finding.detail
    assert "which ranks 0, 1, 3 have ended, and 0 more since" in finding.detail
    assert "4 ranks hang" in finding.title


def test_a_broadcast_that_its_root_has_ended_makes_nobody_stuck(tmp_path: Path) -> None:
    dumps = {
        0: dump([entry("broadcast", 3, state="completed")]),
        1: dump([entry("broadcast", 3)]),
    }
    (finding,) = judged(tmp_path, dumps).findings
    assert finding.subject == "a collective that all have begun does not end"


def test_other_operations_and_other_sizes_are_named(tmp_path: Path) -> None:
    groups = {"0": [0, 1, 2]}
    for number, (name, sizes, what) in enumerate(
        [("all_gather", [[1024]], "operation"), ("all_reduce", [[512]], "size")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        usual = {rank: dump([entry(sequence=5)], groups) for rank in (0, 1)}
        findings = judged(folder, {**usual, 2: dump([entry(name, 5, sizes=sizes)], groups)}).findings
        (finding,) = [finding for finding in findings if finding.subject == f"members of a group call another {what}"]
        assert finding.ranks == (2,)
        assert f"Rank 2 calls {name} {sizes[0][0]} BFloat16 as number 5" in finding.detail


def test_all_to_all_of_other_sizes_is_right(tmp_path: Path) -> None:
    dumps = {rank: dump([entry("all_to_all", 5, sizes=[[100 + rank, 8]], state="completed")]) for rank in (0, 1)}
    assert judged(tmp_path, dumps).status == "clean"


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    """Rank 1 is in the pair (0, 1), rank 0 already in the world as the only one, and 1 is missing there."""
    dumps = {
        0: dump([entry(sequence=4)], {"0": [0, 1], "1": [0, 1]}),
        1: dump([entry(sequence=7, group="1")], {"0": [0, 1], "1": [0, 1]}),
    }
    (finding,) = judged(tmp_path, dumps).findings
    assert (finding.subject, finding.ranks) == ("ranks wait for each other", (0, 1))


def test_a_receive_waits_for_its_send(tmp_path: Path) -> None:
    receive, send = entry("recv 0<-1", 3, between=True), entry("send 1->0", 3, between=True)
    (finding,) = judged(tmp_path, {0: dump([receive]), 1: dump([])}).findings
    assert finding.ranks == (1,)
    assert finding.title == "rank 1 never came to recv: 1 rank hangs"
    assert finding.detail.startswith("It waits in recv")
    both = tmp_path / "both"
    both.mkdir()
    (finding,) = judged(both, {0: dump([receive]), 1: dump([send])}).findings
    assert finding.subject == "a collective that all have begun does not end"


def test_a_rank_without_a_dump_is_named_where_nobody_else_is(tmp_path: Path) -> None:
    rest = {rank: dump([entry(sequence=9)], TWO) for rank in (0, 1, 2)}
    (finding,) = judged(tmp_path, rest).findings
    assert (finding.subject, finding.ranks) == ("ranks that others wait for left no dump", (3,))


def test_nothing_pending_is_clean(tmp_path: Path) -> None:
    dumps = {rank: dump([entry(state="completed"), entry(sequence=2, retired=True)]) for rank in (0, 1)}
    assert judged(tmp_path, dumps).status == "clean"


def test_one_dump_or_dumps_of_two_jobs_are_not_judged(tmp_path: Path) -> None:
    write_dumps(tmp_path, {0: dump([entry()]), 1: dump([])})
    one, other = load_all(tmp_path)
    assert "collect the dumps of all ranks" in (outcome_of([one]).reason or "")
    twice = outcome_of([one, other, one])
    assert (twice.status, "several dumps are of rank 0" in (twice.reason or "")) == ("abstained", True)
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['flight_record']}"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "ranks", "subject"),
    [
        ("gpu_error_1st", (12, 14), "ranks are stuck in a collective that others have ended"),
        ("lock_gil_1st", (9, 14), "ranks never came to a collective"),
    ],
)
def test_the_faults_that_were_injected_are_found_and_nothing_else(
    corpus: Path, name: str, ranks: tuple[int, ...], subject: str
) -> None:
    (finding,) = outcome_of(load_all(corpus / "nccl_fr" / f"nvidia-resiliency-ext__{name}.tar.gz")).findings
    assert (finding.ranks, finding.subject) == (ranks, subject)
