"""Files made to break a reader: one clear line, one pass, and the other files of a folder are still read."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.ranks.rules import hung_collective
from perfscope.analyzers.readers.kineto import document
from perfscope.analyzers.readers.load import load_all
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
        load_all(path)
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
    (read,) = load_all(path)
    assert read.flight_record is not None
    (call,) = read.flight_record.calls
    assert call.state == "scheduled"


NEVER_ENDING = """HloModule m, is_scheduled=true

%body (s: (s32[])) -> (s32[]) {
  %s = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %a = f32[536870912,536870912]{1,0} broadcast(%i), dimensions={}
  %d = f32[536870912,536870912]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[]) tuple(%i)
}

%c (s: (s32[])) -> pred[] {
  %s = (s32[]) parameter(0)
  ROOT %p = pred[] constant(true)
}

ENTRY %e (a: s32[]) -> (s32[]) {
  %a = s32[] parameter(0)
  %t = (s32[]) tuple(%a)
  ROOT %w = (s32[]) while(%t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"999999999999999"}}
}
"""
NO_OPERAND = """HloModule m, is_scheduled=true

ENTRY %e (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %b = f32[8]{0} bitcast()
}
"""


TOO_LARGE = """HloModule m, is_scheduled=true

ENTRY %e (a: f32[8]) -> f32[8] {
  %a = f32[9223372036854775807]{0} parameter(0)
  ROOT %b = f32[8]{0} all-reduce(%a)
}
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [(NEVER_ENDING, "never end"), (NO_OPERAND, "lacks operands"), (TOO_LARGE, "larger than any memory")],
)
def test_programs_that_cannot_be_are_refused(
    program: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.txt").write_text(program)
    assert run(["analyze", str(tmp_path / "program.txt")]) == 4
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("sizes", [([[8], [8], [8]], [[8], [8], [4]]), ([[8], [8]], [[8], [8], [4]])])
def test_calls_that_differ_in_a_late_input(sizes: tuple[list[list[int]], ...], tmp_path: Path) -> None:
    for rank, inputs in enumerate(sizes):
        entry = {"record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1,
                 "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1,
                 "input_sizes": inputs, "input_dtypes": ["Float"] * len(inputs), "output_sizes": inputs,
                 "output_dtypes": ["Float"] * len(inputs), "state": "scheduled", "is_p2p": False}  # fmt: skip
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        dump = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": [entry]}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))
    findings = list(hung_collective.compare(load_all(tmp_path)))
    mismatch = next(finding for finding in findings if finding.subject == "members of a group call another size")
    assert len(mismatch.ranks) == 1
    assert len({row["call"] for row in mismatch.evidence}) == 2


BREAKS_A_RULE = """
from perfscope.__main__ import main
from perfscope.analyzers.ops.rules import full_precision_matmul

def broken(trace):
    raise LookupError("a name\\x1b[31m of\\nothers")

full_precision_matmul.check = broken
main()
"""


@pytest.mark.parametrize("verbose", [False, True])
def test_a_rule_that_breaks_is_one_line(verbose: bool, tmp_path: Path) -> None:
    program = [sys.executable, "-c", BREAKS_A_RULE, "analyze", *["-v"][: int(verbose)], str(tmp_path / "t.json")]
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}))
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0
    assert "LookupError: a name of others" in ended.stderr
    assert ("Traceback" in ended.stderr) == verbose
