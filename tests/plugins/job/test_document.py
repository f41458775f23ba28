"""Reading ledgers that are cut off, of another version, hostile, or not ledgers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.model.errors import DataError
from perfscope.plugins.job.account import job_account
from perfscope.plugins.job.document import load_ledger
from tests.plugins.job.written import S, Written


def three_rows(folder: Path) -> Written:
    ledger = Written(folder)
    for _ in range(3):
        ledger.row({"train": 5, "data": 1}, steps=5)
    return ledger


def test_a_ledger_is_read_up_to_any_cut(tmp_path: Path) -> None:
    written = three_rows(tmp_path)
    content = written.path.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(first, len(content), 7):
        written.path.write_bytes(content[:end])
        ledger = load_ledger(written.path)
        whole = content[:end].count(b"\n") - 1
        torn = end < len(content) and content[end - 1 : end] != b"\n" and content[end : end + 1] != b"\n"
        assert len(ledger.rows) == whole or not torn
        assert ledger.end_ns == 102 * S + 6 * S * len(ledger.rows)
        if torn:
            assert "1 of its lines were not whole" in ledger.notes[0]


def test_the_first_line_must_be_whole(tmp_path: Path) -> None:
    written = three_rows(tmp_path)
    content = written.path.read_bytes()
    for end in range(content.index(b"\n") - 1):
        written.path.write_bytes(content[:end])
        with pytest.raises(DataError, match="not a ledger of perfscope, or cut off"):
            load_ledger(written.path)


def test_another_version_is_named(tmp_path: Path) -> None:
    written = Written(tmp_path, schema="perfscope.ledger/2")
    with pytest.raises(DataError, match=r"schema 'perfscope\.ledger/2', not perfscope\.ledger/1"):
        load_ledger(written.path)


def test_a_ledger_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    three_rows(tmp_path)
    (tmp_path / "ledger" / "broken.jsonl").write_text("nothing\n")
    account = job_account([tmp_path])
    assert account.steps == 15
    assert "broken.jsonl: not a ledger" in account.notes[0]


def test_rows_after_a_line_that_a_full_disk_tore_count(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5}, steps=5)
    ledger.add(b'{"from": 107, "to"\n')
    ledger.row({"train": 6}, steps=6)
    assert sum(cause.ns for cause in job_account([tmp_path]).causes) == 13 * S


@pytest.mark.parametrize(
    "lie",
    [
        {"from": 0, "to": 200 * S, "at": [[0, 3, 200 * S]]},  # before the last row's end
        {"from": 107 * S, "to": 120 * S, "at": [[0, 3, 5 * S]]},  # parts that do not sum to it
        {"from": 107 * S, "to": 106 * S, "at": []},
        {"from": 107 * S, "to": 108 * S, "at": [[0, 9, S]]},  # no such phase
        {"from": 107 * S, "to": 108 * S, "at": [[0, 3, -S]], "core": 2 * S},
        {"from": 107 * S, "to": "later", "at": []},
        {"from": 107 * S, "to": 1 << 70, "at": []},
        [1, 2],
    ],
)
def test_rows_that_lie_are_left_out(tmp_path: Path, lie: object) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5}, steps=5)
    ledger.add(json.dumps(lie).encode() + b"\n")
    ledger.row({"train": 6}, steps=6)
    read = load_ledger(ledger.path)
    assert len(read.rows) == 2
    assert "1 of its lines" in read.notes[0]


def test_nodes_texts_and_callers_that_do_not_exist_are_no_lines(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5}, steps=5)
    ledger.add({"nodes": [[70, 999, 1, 999], [3, 0, -5, 0]], "calls": [[0, 888], [12345, 0]]})
    ledger.add({"from": 107 * S, "to": 108 * S, "at": [[5000, 3, S // 2], [2, 3, S // 2]]})
    account = job_account([tmp_path])
    assert account.total_ns == sum(cause.ns for cause in account.causes) == 8 * S


def test_control_characters_in_names_do_not_reach_the_screen(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.add({"texts": ["a\x1b[31m.py", "f\u202e"], "nodes": [[-1, 0, 1, 1]]})
    ledger.add({"from": 102 * S, "to": 103 * S, "at": [[0, 3, S]], "steps": 1})
    (line, _) = job_account([tmp_path]).causes[-1].lines[0]
    assert line.isprintable()
    assert "\x1b" not in line
